//! Progress, and time that does not count against a call.

use std::time::Duration;

use super::super::event::Level;
use super::super::sim::Sim;

fn call_with_token(token: &str, tool: &str) -> String {
    format!(
        r#"{{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{{"name":"{tool}","_meta":{{"progressToken":{token},"vendor/x":{{"n":1.0}}}}}}}}"#
    )
}

fn progress(token: &str, progress: &str) -> String {
    format!(
        r#"{{"jsonrpc":"2.0","method":"notifications/progress","params":{{"progressToken":{token},"progress":{progress},"total":1e1}}}}"#
    )
}

#[test]
fn tim_1_progress_extends_the_attempt() {
    let mut sim = Sim::new();
    sim.client(call_with_token(r#""t""#, "pay"));
    for step in 1..=12 {
        sim.run_until(step * 400);
        sim.upstream(progress(r#""mcprelay-2""#, &step.to_string()));
    }
    sim.run_until(5_000);
    sim.result(2, "{}");
    assert_eq!(sim.to_client.len(), 13);
    assert_eq!(sim.events[0].latency_ms, 5_000);
    sim.assert_at_rest();
}

#[test]
fn tim_1_progress_of_another_token_extends_nothing() {
    let mut sim = Sim::new();
    sim.client(call_with_token(r#""t""#, "pay"));
    sim.run_until(900);
    sim.skip();
    let other = progress(r#""other""#, "1");
    sim.upstream(&other);
    sim.expect(&format!("@900\n>c {other}"));
    sim.run_until(1_000);
    assert_eq!(sim.last_mark()["class"], "timeout");
}

#[test]
fn tim_1_progress_for_ever_ends_at_the_whole_calls_limit() {
    let mut sim = Sim::with(|settings| settings.reliability.max_total = Some(Duration::from_millis(3_500)));
    sim.client(call_with_token("7", "safe_echo"));
    for step in 1..20 {
        sim.run_until(step * 400);
        sim.upstream(progress(r#""mcprelay-2""#, &step.to_string()));
    }
    assert_eq!(sim.events[0].latency_ms, 3_500);
    assert_eq!(sim.sent(), [2]);
    assert_eq!(sim.last_mark()["class"], "timeout");
    sim.assert_at_rest();
}

#[test]
fn progress_need_not_extend() {
    let mut sim = Sim::with(|settings| settings.reliability.extend_on_progress = false);
    sim.client(call_with_token("7", "pay"));
    sim.run_until(900);
    sim.upstream(progress(r#""mcprelay-2""#, "1"));
    assert_eq!(sim.to_client.len(), 1);
    sim.run_until(1_000);
    assert_eq!(sim.events.len(), 1);
}

#[test]
fn jsn_8_the_clients_token_comes_back_in_its_own_bytes() {
    for token in [r#""tök-1""#, r#""\u0074""#, "0", "1.0", r#""""#, "12345678901234567890"] {
        let mut sim = Sim::new();
        sim.client(call_with_token(token, "pay"));
        sim.expect(
            r#">u {"jsonrpc":"2.0","id":2,"method":"tools/call","params":{"name":"pay","_meta":{"mcprelay":{"correlation_id":"C1"},"progressToken":"mcprelay-2","vendor/x":{"n":1.0}}}}"#,
        );
        sim.upstream(progress(r#""mcprelay-2""#, "0.50"));
        sim.expect(&format!(">c {}", progress(token, "0.50")));
    }
}

#[test]
fn jsn_8_no_token_is_added() {
    let mut sim = Sim::new();
    sim.call(1, "pay");
    assert!(!String::from_utf8_lossy(&sim.to_upstream[0].1).contains("progressToken"));
}

#[test]
fn progress_that_does_not_advance_is_dropped() {
    let mut sim = Sim::new();
    sim.client(call_with_token("7", "pay"));
    sim.skip();
    for (value, passes) in [
        ("-1", true),
        ("0", true),
        ("0", false),
        ("-0.5", false),
        ("1e-1", true),
        ("0.1", false),
        ("0.10000000000000000000001", true),
        ("1e400", true),
        ("1e399", false),
    ] {
        sim.upstream(progress(r#""mcprelay-2""#, value));
        let line = if passes { format!(">c {}", progress("7", value)) } else { String::new() };
        sim.expect(&line);
    }
    assert_eq!(sim.engine.counters.stale_progress, 4);
}

#[test]
fn a_second_attempt_has_its_own_token_and_only_goes_on_from_the_first() {
    let mut sim = Sim::new();
    sim.client(call_with_token("7", "safe_echo"));
    sim.upstream(progress(r#""mcprelay-2""#, "5"));
    sim.error(2, -32000, "busy");
    sim.run_until(100);
    assert_eq!(sim.sent(), [2, 3]);
    sim.skip();
    sim.upstream(progress(r#""mcprelay-2""#, "9"));
    sim.upstream(progress(r#""mcprelay-3""#, "4"));
    sim.expect("");
    sim.upstream(progress(r#""mcprelay-3""#, "6"));
    sim.expect(&format!(">c {}", progress("7", "6")));
    sim.result(3, "{}");
    sim.skip();
    sim.upstream(progress(r#""mcprelay-3""#, "7"));
    sim.expect("");
}

#[test]
fn a_task_keeps_its_token_until_it_ends() {
    for (handle, end) in [
        (r#"{"task":{"taskId":"t","status":"working"}}"#, "status"),
        (r#"{"task":{"taskId":"t","status":"working"}}"#, "result"),
        (r#"{"resultType":"task","taskId":"t","status":"working"}"#, "status"),
    ] {
        let mut sim = Sim::new();
        sim.client(call_with_token("7", "pay"));
        sim.upstream(progress(r#""mcprelay-2""#, "1"));
        sim.result(2, handle);
        assert_eq!(sim.executions, []);
        sim.run_until(60_000);
        sim.skip();
        sim.upstream(progress(r#""mcprelay-2""#, "2"));
        sim.upstream(progress(r#""mcprelay-2""#, "2"));
        sim.expect(&format!("@60000\n>c {}", progress("7", "2")));
        if end == "status" {
            for (status, task) in [("working", "t"), ("completed", "u"), ("completed", "t")] {
                sim.upstream(format!(
                    r#"{{"jsonrpc":"2.0","method":"notifications/tasks/status","params":{{"taskId":"{task}","status":"{status}"}}}}"#
                ));
                let live = !(status == "completed" && task == "t");
                let before = sim.to_client.len();
                sim.upstream(progress(r#""mcprelay-2""#, &format!("{}", 10 + before)));
                assert_eq!(sim.to_client.len() > before, live, "{status} {task}");
            }
        } else {
            sim.client(r#"{"jsonrpc":"2.0","id":9,"method":"tasks/result","params":{"taskId":"t"}}"#);
            // It blocks as long as it likes (PRO-5).
            sim.run_for(60_000);
            sim.result(sim.last_sent(), "{}");
            sim.skip();
            sim.upstream(progress(r#""mcprelay-2""#, "99"));
            sim.expect("");
        }
        sim.assert_at_rest();
    }
}

#[test]
fn other_requests_keep_their_token_and_have_no_timeout() {
    let mut sim = Sim::new();
    let list = r#""method":"resources/list","params":{"_meta":{"progressToken":"mine"}}}"#;
    sim.client(format!(r#"{{"jsonrpc":"2.0","id":1,{list}"#));
    sim.expect(&format!(r#">u {{"jsonrpc":"2.0","id":2,{list}"#));
    sim.run_until(86_400_000);
    let note = progress(r#""mine""#, "1");
    sim.upstream(&note);
    sim.expect(&format!("@86400000\n>c {note}"));
    sim.result(2, "{}");
    sim.assert_at_rest();
}

#[test]
fn tim_2_time_with_an_open_question_to_the_client_does_not_count() {
    let mut sim = Sim::new();
    sim.call(1, "pay");
    sim.run_until(500);
    sim.upstream(r#"{"jsonrpc":"2.0","id":0,"method":"elicitation/create","params":{}}"#);
    sim.run_until(5_500);
    sim.client(r#"{"jsonrpc":"2.0","id":3,"result":{"action":"accept"}}"#);
    sim.run_until(5_600);
    sim.result(2, "{}");
    assert_eq!((sim.sent().len(), sim.letters.len()), (1, 0));
    assert_eq!(sim.events[0].latency_ms, 5_600);
    sim.assert_at_rest();
}

#[test]
fn tim_2_the_attempts_time_goes_on_where_it_stood() {
    let mut sim = Sim::new();
    sim.call(1, "pay");
    sim.run_until(600);
    sim.upstream(r#"{"jsonrpc":"2.0","id":0,"method":"elicitation/create"}"#);
    sim.run_until(50_000);
    sim.client(r#"{"jsonrpc":"2.0","id":3,"error":{"code":-1,"message":"no"}}"#);
    sim.run_until(50_399);
    assert!(sim.events.is_empty());
    sim.run_until(50_400);
    assert_eq!(sim.last_mark()["class"], "timeout");
}

#[test]
fn tim_2_two_questions_hold_until_the_second_is_answered() {
    let mut sim = Sim::new();
    sim.call(1, "pay");
    sim.run_until(100);
    sim.upstream(r#"{"jsonrpc":"2.0","id":"a","method":"elicitation/create"}"#);
    sim.run_until(200);
    sim.upstream(r#"{"jsonrpc":"2.0","id":"b","method":"sampling/createMessage"}"#);
    sim.run_until(9_000);
    sim.client(r#"{"jsonrpc":"2.0","id":3,"result":{}}"#);
    sim.run_until(20_000);
    assert!(sim.events.is_empty(), "the second question is still open");
    // The upstream withdraws it: that ends the wait as an answer does.
    sim.upstream(r#"{"jsonrpc":"2.0","method":"notifications/cancelled","params":{"requestId":"b"}}"#);
    sim.run_until(20_899);
    assert!(sim.events.is_empty());
    sim.run_until(20_900);
    assert_eq!(sim.last_mark()["class"], "timeout");
}

#[test]
fn tim_2_a_question_holds_no_longer_than_its_limit_and_outside_of_the_total() {
    let mut sim = Sim::with(|settings| {
        settings.reliability.client_wait_max = Duration::from_millis(10_000);
        settings.reliability.max_total = Some(Duration::from_millis(1_500));
    });
    sim.call(1, "pay");
    sim.run_until(100);
    sim.upstream(r#"{"jsonrpc":"2.0","id":"a","method":"elicitation/create"}"#);
    sim.run_until(5_100);
    sim.upstream(r#"{"jsonrpc":"2.0","id":"b","method":"elicitation/create"}"#);
    sim.run_until(15_999);
    assert!(sim.events.is_empty());
    sim.run_until(16_000);
    assert_eq!(sim.last_mark()["class"], "timeout");
    // Its answer is relayed all the same.
    sim.skip();
    sim.client(r#"{"jsonrpc":"2.0","id":3,"result":{}}"#);
    sim.expect(r#">u {"jsonrpc":"2.0","id":"a","result":{}}"#);
}

#[test]
fn tim_3_requests_of_the_upstream_pass_in_the_middle_of_a_call() {
    let mut sim = Sim::new();
    sim.call(1, "pay");
    sim.skip();
    sim.upstream(r#"{"jsonrpc":"2.0","id":0,"method":"roots/list"}"#);
    sim.upstream(r#"{"jsonrpc":"2.0","id":1,"method":"elicitation/create"}"#);
    sim.expect(
        r#"
        >c {"jsonrpc":"2.0","id":3,"method":"roots/list"}
        >c {"jsonrpc":"2.0","id":4,"method":"elicitation/create"}
    "#,
    );
    sim.client(r#"{"jsonrpc":"2.0","id":4,"result":{}}"#);
    sim.client(r#"{"jsonrpc":"2.0","id":3,"result":{}}"#);
    sim.expect(
        r#"
        >u {"jsonrpc":"2.0","id":1,"result":{}}
        >u {"jsonrpc":"2.0","id":0,"result":{}}
    "#,
    );
}

#[test]
fn tim_7_answers_overtake_each_other_and_only_one_call_waits_for_the_store() {
    use super::super::sim::Store;
    let mut sim = Sim::new();
    sim.store = Store::After(1_500);
    sim.call(1, "slow");
    sim.call(2, "bad");
    sim.client(r#"{"jsonrpc":"2.0","id":3,"method":"ping"}"#);
    sim.error(4, -32602, "no");
    sim.result(6, "{}");
    assert_eq!(sim.to_client.len(), 1, "the ping is answered, the failed call waits for the store");
    sim.call(4, "denied_x");
    assert_eq!(sim.to_client.len(), 2);
    sim.run_until(900);
    sim.result(2, "{}");
    assert_eq!(sim.to_client.len(), 3);
    sim.run_until(1_500);
    assert_eq!(sim.last_answer()["id"], 2);
    sim.assert_at_rest();
}

#[test]
fn while_the_upstream_is_not_read_attempts_stand_still() {
    let mut sim = Sim::new();
    sim.call(1, "pay");
    sim.run_until(400);
    sim.client_outbox(Level::Full);
    assert!(!sim.engine.intake().upstreams);
    sim.run_until(100_000);
    assert!(sim.events.is_empty());
    sim.client_outbox(Level::High);
    assert!(sim.engine.intake().upstreams);
    sim.run_until(100_599);
    assert!(sim.events.is_empty());
    sim.run_until(100_600);
    assert_eq!(sim.last_mark()["class"], "timeout");
}
