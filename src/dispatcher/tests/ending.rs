//! How a session ends: by the client, by a signal, by the upstream.

use super::super::event::{Level, ProcessEnd};
use super::super::sim::{Sim, Store};
use crate::exit::ExitStatus;
use crate::record::{Decision, Executed, FailureClass};

// --- the client's end ---

#[test]
fn at_the_clients_end_the_upstream_is_asked_to_end_step_by_step() {
    let mut sim = Sim::new();
    sim.client_closes();
    sim.expect("!close");
    assert_eq!(sim.run_to_exit(), ExitStatus::Success);
    sim.expect(
        r#"
        @2000
        !term
        @5000
        !kill
        @6000
        !exit 0
    "#,
    );
}

#[test]
fn an_upstream_that_ends_when_told_is_not_waited_for() {
    let mut sim = Sim::new();
    sim.client_closes();
    sim.run_until(30);
    sim.skip();
    sim.upstream_dies(0);
    // Its group may hold more than its leader: that is asked, then killed.
    sim.run_to_exit();
    sim.expect(
        r#"
        @30
        !term
        @80
        !kill
        !exit 0
    "#,
    );
}

#[test]
fn a_call_in_flight_is_answered_before_the_session_ends() {
    let mut sim = Sim::new();
    sim.call(1, "pay");
    sim.client(r#"{"jsonrpc":"2.0","id":2,"method":"ping"}"#);
    sim.client_closes();
    sim.skip();
    sim.run_until(500);
    sim.result(4, "{}");
    sim.run_until(600);
    sim.expect("@500\n>c {\"jsonrpc\":\"2.0\",\"id\":2,\"result\":{}}");
    sim.result(2, "{}");
    sim.expect(
        r#"
        @600
        !log allowed pay attempts=1
        >c {"jsonrpc":"2.0","id":1,"result":{}}
        !close
    "#,
    );
}

#[test]
fn retries_and_captures_go_on_after_the_clients_end() {
    let mut sim = Sim::new();
    sim.store = Store::After(100);
    sim.call(1, "safe_echo");
    sim.client_closes();
    sim.run_until(60_000);
    assert_eq!(sim.sent().len(), 3);
    assert_eq!(sim.letters[0].class, FailureClass::Timeout);
    assert_eq!(sim.to_client.len(), 1);
    assert_eq!(sim.exit, Some(ExitStatus::Success));
}

#[test]
fn requests_without_a_timeout_of_ours_get_one_at_the_clients_end() {
    let mut sim = Sim::new();
    sim.client(r#"{"jsonrpc":"2.0","id":1,"method":"tasks/result"}"#);
    sim.run_until(100_000);
    sim.client_closes();
    sim.run_until(100_999);
    assert!(sim.to_client.is_empty());
    sim.run_until(101_000);
    assert_eq!((sim.last_answer()["id"].as_i64(), sim.last_mark()["executed"].as_str()), (Some(1), Some("maybe")));
    assert_eq!(sim.last_mark()["class"], "upstream_closed");
    sim.run_to_exit();
}

#[test]
fn a_question_of_the_upstream_is_answered_when_the_client_has_ended() {
    let mut sim = Sim::new();
    sim.call(1, "pay");
    sim.upstream(r#"{"jsonrpc":"2.0","id":"q","method":"elicitation/create"}"#);
    sim.skip();
    sim.client_closes();
    sim.expect(
        r#">u {"jsonrpc":"2.0","id":"q","error":{"code":-32603,"message":"the client has closed the session","data":{"mcprelay":{"class":"client_closed","attempts":0,"executed":"no"}}}}"#,
    );
    sim.upstream(r#"{"jsonrpc":"2.0","id":"r","method":"ping"}"#);
    assert!(
        sim.to_upstream.last().is_some_and(|(_, bytes)| bytes.starts_with(br#"{"jsonrpc":"2.0","id":"r","error""#))
    );
    // The call's time runs again.
    sim.run_until(1_000);
    assert_eq!(sim.last_mark()["class"], "timeout");
    sim.run_to_exit();
}

#[test]
fn a_client_that_takes_nothing_more_has_a_second_and_ends_well() {
    let mut sim = Sim::with(|settings| settings.reliability.defaults.timeout *= 100);
    sim.call(1, "pay");
    sim.run_until(10);
    sim.client_gone();
    assert_eq!(sim.run_to_exit(), ExitStatus::Success);
    assert_eq!((sim.letters[0].class, sim.letters[0].executed), (FailureClass::Interrupted, Executed::Maybe));
    assert_eq!(sim.events[0].latency_ms, 1_010);
}

// --- signals ---

#[test]
fn after_a_signal_open_calls_have_a_second_and_are_then_captured() {
    let mut sim = Sim::with(|settings| settings.reliability.defaults.timeout *= 100);
    sim.store = Store::After(20);
    sim.call(1, "pay");
    sim.call(2, "echo");
    sim.client(r#"{"jsonrpc":"2.0","id":3,"method":"ping"}"#);
    sim.run_until(100);
    sim.skip();
    sim.terminate();
    assert!(!sim.engine.intake().clients);
    sim.run_until(900);
    sim.result(4, "{}");
    sim.skip();
    sim.run_until(1_130);
    sim.expect(
        r#"
        @1100
        >u {"jsonrpc":"2.0","method":"notifications/cancelled","params":{"requestId":2,"reason":"mcprelay is ending"}}
        !capture R1 Interrupted executed=Maybe attempts=1
        >c {"jsonrpc":"2.0","id":3,"error":{"code":-32603,"message":"the session ended before the server answered","data":{"mcprelay":{"class":"upstream_closed","attempts":1,"executed":"maybe"}}}}
        @1120
        !log failed pay attempts=1 Interrupted executed=Maybe code=-32603 R1
        >c {"jsonrpc":"2.0","id":1,"error":{"code":-32603,"message":"tool \"pay\": mcprelay was told to end while the call was open","data":{"mcprelay":{"class":"interrupted","attempts":1,"executed":"maybe","correlation_id":"C1","dead_letter_id":"R1"}}}}
        !close
    "#,
    );
    assert_eq!(sim.run_to_exit(), ExitStatus::Success);
}

#[test]
fn a_call_that_waits_is_interrupted_with_the_attempts_it_had() {
    let mut sim = Sim::with(|settings| settings.reliability.per_tool[0].1.retry.base *= 100);
    sim.call(1, "safe_echo");
    sim.error(2, -32602, "no");
    sim.call(2, "safe_echo");
    sim.error(sim.last_sent(), -32000, "busy");
    sim.upstream_outbox(Level::High);
    sim.call(3, "pay");
    sim.terminate();
    sim.terminate();
    let found: Vec<_> = sim.events[1..]
        .iter()
        .map(|event| (event.attempts, event.error.as_ref().map(|error| error.executed)))
        .collect();
    assert_eq!(found, [(1, Some(Executed::Maybe)), (1, Some(Executed::No))]);
    assert!(sim.letters[1..].iter().all(|letter| letter.class == FailureClass::Interrupted));
    sim.run_to_exit();
}

#[test]
fn a_second_signal_means_at_once_wherever_it_comes() {
    for second in [0, 500, 1_100] {
        let mut sim = Sim::with(|settings| settings.reliability.defaults.timeout *= 100);
        sim.store = Store::After(300);
        sim.call(1, "pay");
        sim.terminate();
        sim.run_until(second);
        sim.terminate();
        assert_eq!(sim.letters.len(), 1);
        assert!(sim.log.iter().any(|line| line.ends_with("!kill")), "{:#?}", sim.log);
        sim.upstream_exits(ProcessEnd::Signal(9), &[]);
        assert_eq!(sim.run_to_exit(), ExitStatus::Success);
        // The letter is waited for all the same.
        assert_eq!((sim.to_client.len(), sim.now()), (1, second.min(1_000) + 300));
    }
}

#[test]
fn a_signal_while_the_upstream_is_given_time_takes_the_next_step() {
    let mut sim = Sim::new();
    sim.client_closes();
    sim.run_until(500);
    sim.skip();
    sim.terminate();
    sim.expect("@500\n!term");
    sim.run_until(600);
    sim.terminate();
    sim.expect("@600\n!kill");
    assert_eq!(sim.run_to_exit(), ExitStatus::Success);
}

#[test]
fn a_signal_after_the_clients_end_limits_what_is_waited_for() {
    let mut sim = Sim::with(|settings| settings.reliability.defaults.timeout *= 100);
    sim.call(1, "pay");
    sim.client_closes();
    sim.run_until(5_000);
    sim.terminate();
    sim.run_until(6_000);
    assert_eq!(sim.last_mark()["class"], "interrupted");
}

#[test]
fn a_question_of_the_upstream_after_a_signal_is_answered_here() {
    let mut sim = Sim::new();
    sim.call(1, "pay");
    sim.upstream(r#"{"jsonrpc":"2.0","id":"q","method":"elicitation/create"}"#);
    sim.terminate();
    sim.upstream(r#"[{"jsonrpc":"2.0","id":"r","method":"ping"}]"#);
    let answers: Vec<_> = sim.to_upstream[1..].iter().map(|(_, bytes)| String::from_utf8_lossy(bytes)).collect();
    assert!(answers[0].starts_with(r#"{"jsonrpc":"2.0","id":"q","error":{"code":-32603"#), "{answers:?}");
    assert!(answers[1].starts_with(r#"[{"jsonrpc":"2.0","id":"r","error":{"code":-32603"#), "{answers:?}");
    sim.run_to_exit();
}

// --- the upstream's end ---

#[test]
fn prc_3_a_crash_ends_every_open_request_and_names_the_status() {
    let mut sim = Sim::new();
    sim.client(r#"{"jsonrpc":"2.0","id":0,"method":"initialize"}"#);
    sim.result(2, "{}");
    sim.call(1, "pay");
    sim.client(r#"{"jsonrpc":"2.0","id":2,"method":"ping"}"#);
    sim.skip();
    sim.upstream_closes(&[]);
    sim.run_until(10);
    sim.expect("");
    sim.upstream_exits(ProcessEnd::Code(1), &[]);
    sim.expect(
        r#"
        @10
        !diag the server exited with status 1
        !capture R1 Transport executed=Maybe attempts=1
        >c {"jsonrpc":"2.0","id":2,"error":{"code":-32603,"message":"the server exited with status 1","data":{"mcprelay":{"class":"upstream_closed","attempts":1,"executed":"maybe"}}}}
        !log failed pay attempts=1 Transport executed=Maybe code=-32603 R1
        >c {"jsonrpc":"2.0","id":1,"error":{"code":-32603,"message":"tool \"pay\": the server exited with status 1; the call may have run","data":{"mcprelay":{"class":"transport","attempts":1,"executed":"maybe","correlation_id":"C1","dead_letter_id":"R1"}}}}
        !close
        !term
    "#,
    );
    assert_eq!(sim.run_to_exit(), ExitStatus::Upstream);
    assert!(sim.now() < 1_000);
}

#[test]
fn the_last_answers_in_the_pipe_of_a_dead_server_are_read() {
    let mut sim = Sim::new();
    sim.call(1, "pay");
    sim.upstream_exits(ProcessEnd::Code(0), &[]);
    sim.run_until(200);
    sim.result(2, "{}");
    sim.upstream_closes(&[]);
    assert_eq!(sim.events[0].decision, Decision::Allowed);
    assert_eq!(sim.run_to_exit(), ExitStatus::Upstream);
}

#[test]
fn a_dead_server_is_not_given_up_while_its_pipe_may_not_be_read() {
    let mut sim = Sim::new();
    sim.call(1, "pay");
    sim.client_outbox(Level::Full);
    sim.upstream_exits(ProcessEnd::Code(0), &[]);
    sim.run_until(50_000);
    assert!(sim.events.is_empty(), "its answer may be in the pipe");
    sim.client_outbox(Level::Low);
    sim.run_until(50_100);
    sim.result(2, "{}");
    assert_eq!(sim.events[0].decision, Decision::Allowed);
}

#[test]
fn prc_4_a_server_that_closes_its_output_and_lives_on_is_ended() {
    let mut sim = Sim::new();
    sim.call(1, "pay");
    sim.upstream_closes(&[]);
    sim.run_until(250);
    assert_eq!(sim.last_mark()["class"], "transport");
    assert_eq!(
        sim.last_answer()["error"]["message"],
        "tool \"pay\": the server closed its output; the call may have run"
    );
    assert_eq!(sim.run_to_exit(), ExitStatus::Upstream);
    assert!(sim.log.iter().any(|line| line.ends_with("!kill")));
}

#[test]
fn what_never_left_was_not_executed() {
    let mut sim = Sim::new();
    sim.call(1, "pay");
    sim.call(2, "pay");
    sim.client(r#"{"jsonrpc":"2.0","id":3,"method":"ping"}"#);
    sim.upstream_exits(ProcessEnd::Signal(11), &[4]);
    sim.upstream_closes(&[6]);
    let executed: Vec<_> = sim.letters.iter().map(|letter| letter.executed).collect();
    assert_eq!(executed, [Executed::Maybe, Executed::No]);
    let ping: serde_json::Value = serde_json::from_slice(&sim.to_client[0]).expect("JSON");
    assert_eq!(ping["error"]["data"]["mcprelay"]["executed"], "no");
    assert_eq!(ping["error"]["message"], "the server was ended by signal 11");
    sim.run_to_exit();
}

#[test]
fn pip_3_a_request_that_meets_a_dead_server_fails_with_the_exit_status() {
    let mut sim = Sim::new();
    sim.client(r#"{"jsonrpc":"2.0","id":0,"method":"initialize"}"#);
    sim.result(2, "{}");
    sim.call(1, "pay");
    // The write fails before the exit is seen.
    sim.upstream_deaf(&[4]);
    sim.call(2, "pay");
    assert_eq!(sim.sent(), [2, 4], "what comes now waits for the news");
    sim.upstream_dies(3);
    let letters: Vec<_> = sim.letters.iter().map(|letter| (letter.executed, letter.message.clone())).collect();
    let message = "tool \"pay\": the server exited with status 3".to_owned();
    assert_eq!(letters, [(Executed::No, message.clone()), (Executed::No, message)]);
    assert_eq!(sim.run_to_exit(), ExitStatus::Upstream);
}

#[test]
fn a_server_that_only_closes_its_input_still_answers_what_it_has_read() {
    let mut sim = Sim::new();
    sim.call(1, "pay");
    sim.call(2, "pay");
    sim.upstream_deaf(&[4]);
    sim.call(3, "pay");
    sim.skip();
    sim.run_until(250);
    sim.expect(
        r#"
        @250
        !diag the server closed its input
        !capture R1 Transport executed=No attempts=1
        !capture R2 Transport executed=No attempts=1
        !log failed pay attempts=1 Transport executed=No code=-32603 R1
        >c {"jsonrpc":"2.0","id":2,"error":{"code":-32603,"message":"tool \"pay\": the server closed its input","data":{"mcprelay":{"class":"transport","attempts":1,"executed":"no","correlation_id":"C2","dead_letter_id":"R1"}}}}
        !log failed pay attempts=1 Transport executed=No code=-32603 R2
        >c {"jsonrpc":"2.0","id":3,"error":{"code":-32603,"message":"tool \"pay\": the server closed its input","data":{"mcprelay":{"class":"transport","attempts":1,"executed":"no","correlation_id":"C3","dead_letter_id":"R2"}}}}
    "#,
    );
    sim.run_until(500);
    sim.result(2, "{}");
    assert_eq!(sim.last_answer()["result"], serde_json::json!({}));
    sim.call(4, "pay");
    assert_eq!(sim.last_mark()["executed"], "no");
    assert_eq!(sim.exit, None);
    sim.upstream_dies(0);
    assert_eq!(sim.run_to_exit(), ExitStatus::Upstream);
}

#[test]
fn a_call_in_back_off_ends_as_its_last_attempt_did() {
    let mut sim = Sim::new();
    sim.call(1, "safe_echo");
    sim.error(2, -32000, "busy");
    sim.upstream_dies(1);
    let letter = &sim.letters[0];
    assert_eq!(
        (letter.class, letter.executed, letter.attempts.len()),
        (FailureClass::UpstreamError, Executed::Maybe, 1)
    );
    assert_eq!(letter.message, "busy; no other attempt is possible: the server exited with status 1");
    // The code in the letter is the one that the client got.
    assert_eq!(letter.code, sim.last_answer()["error"]["code"].as_i64());
    assert_eq!(sim.last_mark()["class"], "upstream_error");
    sim.run_to_exit();
}

#[test]
fn its_open_questions_are_withdrawn_from_the_client() {
    let mut sim = Sim::new();
    sim.upstream(r#"{"jsonrpc":"2.0","id":"q","method":"elicitation/create"}"#);
    sim.skip();
    sim.upstream_dies(1);
    assert_eq!(
        String::from_utf8_lossy(&sim.to_client[1]),
        r#"{"jsonrpc":"2.0","method":"notifications/cancelled","params":{"requestId":1,"reason":"the server exited with status 1"}}"#
    );
    sim.client(r#"{"jsonrpc":"2.0","id":1,"result":{}}"#);
    assert!(sim.to_upstream.is_empty());
    assert_eq!(sim.run_to_exit(), ExitStatus::Upstream);
}

#[test]
fn a_server_that_cannot_be_started_ends_the_session_at_once() {
    let mut sim = Sim::new();
    sim.call(1, "pay");
    sim.skip();
    sim.upstream_start_fails("cannot start \"nope\": not found in PATH /bin");
    assert_eq!(sim.exit, Some(ExitStatus::Upstream));
    assert_eq!(sim.letters[0].executed, Executed::No);
    assert!(sim.last_answer()["error"]["message"].as_str().is_some_and(|text| text.contains("not found in PATH")));
}

#[test]
fn requests_that_were_read_before_the_end_was_known_are_answered() {
    let mut sim = Sim::new();
    sim.upstream_dies(1);
    sim.store = Store::After(100);
    sim.call(1, "pay");
    sim.client(r#"{"jsonrpc":"2.0","id":2,"method":"ping"}"#);
    assert_eq!(sim.run_to_exit(), ExitStatus::Upstream);
    assert_eq!(sim.to_client.len(), 2);
}

// --- server/discover ---

const DISCOVER: &str = r#"{"jsonrpc":"2.0","id":"probe","method":"server/discover","params":{"_meta":{}}}"#;
const INITIALIZE: &str = r#"{"jsonrpc":"2.0","id":0,"method":"initialize"}"#;

#[test]
fn pro_1_a_server_that_exits_on_the_probe_gets_a_second_life() {
    let mut sim = Sim::new();
    sim.client(DISCOVER);
    sim.skip();
    sim.upstream_dies(1);
    sim.expect(
        r#"
        !diag the server exited with status 1 when asked server/discover; starting it once more without that question
        >c {"jsonrpc":"2.0","id":"probe","error":{"code":-32601,"message":"the server does not know server/discover","data":{"mcprelay":{"class":"upstream_closed","attempts":1,"executed":"no"}}}}
        !close
        !term
    "#,
    );
    // What is left of the first process has its time to end.
    sim.client(INITIALIZE);
    sim.run_until(50);
    sim.result(sim.last_sent(), "{}");
    sim.expect(
        r#"
        @50
        !kill
        !start 2
        >u {"jsonrpc":"2.0","id":4,"method":"initialize"}
        >c {"jsonrpc":"2.0","id":0,"result":{}}
    "#,
    );
    sim.assert_at_rest();
}

#[test]
fn pro_1_what_follows_the_probe_waits_for_the_second_life() {
    let mut sim = Sim::new();
    sim.client(DISCOVER);
    sim.upstream_exits(ProcessEnd::Code(1), &[]);
    sim.client(INITIALIZE);
    sim.run_until(250);
    // Its output is held by something of its group, which is asked to end.
    sim.run_until(3_249);
    assert_eq!(sim.log.last().map(String::as_str), Some("@250 !term"));
    sim.run_until(3_250);
    assert!(sim.log.last().is_some_and(|line| line.contains(r#">u {"jsonrpc":"2.0","id":4,"method":"initialize"}"#)));
    sim.result(4, "{}");
    sim.assert_at_rest();
}

#[test]
fn pro_1_what_the_first_life_asked_is_withdrawn() {
    let mut sim = Sim::new();
    sim.client(DISCOVER);
    sim.upstream(r#"{"jsonrpc":"2.0","id":"q","method":"ping"}"#);
    sim.upstream_dies(1);
    sim.skip();
    sim.client(r#"{"jsonrpc":"2.0","id":3,"result":{}}"#);
    sim.expect("");
    // Nothing holds the time of the new life's calls.
    sim.run_until(50);
    sim.call(1, "pay");
    sim.run_until(1_050);
    assert_eq!(sim.last_mark()["class"], "timeout");
}

#[test]
fn pro_1_only_once_and_only_before_any_answer() {
    let mut sim = Sim::new();
    sim.client(DISCOVER);
    sim.upstream_dies(1);
    sim.run_until(50);
    sim.client(DISCOVER);
    sim.upstream_dies(1);
    assert_eq!(sim.run_to_exit(), ExitStatus::Upstream);

    let mut sim = Sim::new();
    sim.client(r#"{"jsonrpc":"2.0","id":0,"method":"ping"}"#);
    sim.result(2, "{}");
    sim.client(DISCOVER);
    sim.upstream_dies(1);
    assert_eq!(sim.run_to_exit(), ExitStatus::Upstream);

    let mut sim = Sim::new();
    sim.client(DISCOVER);
    sim.call(1, "pay");
    sim.upstream_dies(1);
    assert_eq!(sim.run_to_exit(), ExitStatus::Upstream);
}

#[test]
fn pro_1_a_silent_or_refusing_server_is_left_alone() {
    let mut sim = Sim::new();
    sim.client(DISCOVER);
    sim.run_until(3_600_000);
    assert!(sim.to_client.is_empty());
    sim.client(INITIALIZE);
    sim.result(4, "{}");
    sim.error(2, -32602, "what?");
    assert_eq!(sim.last_answer()["id"], "probe");
    assert!(sim.letters.is_empty());
    sim.assert_at_rest();
}

#[test]
fn frames_of_an_earlier_life_are_not_taken_for_the_new_ones() {
    use super::super::event::{Event, Incarnation, UpstreamId};
    use crate::wire::message::from_upstream;
    let mut sim = Sim::new();
    sim.client(DISCOVER);
    sim.upstream_dies(1);
    sim.run_until(50);
    sim.call(1, "pay");
    sim.skip();
    let frame = from_upstream(format!(r#"{{"jsonrpc":"2.0","id":{},"result":{{}}}}"#, sim.last_sent()).into_bytes());
    let (upstream, incarnation) = (UpstreamId(0), Incarnation(1));
    sim.event(Event::UpstreamFrame { upstream, incarnation, frame });
    sim.event(Event::UpstreamExited { upstream, incarnation, end: ProcessEnd::Code(0), unsent: vec![] });
    sim.event(Event::UpstreamStartFailed { upstream, incarnation, error: "old".into() });
    sim.event(Event::UpstreamOutbox { upstream, incarnation, level: Level::Full });
    sim.expect("");
    assert!(sim.engine.intake().clients);
}

#[test]
fn the_last_line_of_a_session_counts_what_was_dropped() {
    let mut sim = Sim::new();
    sim.result(9, "{}");
    sim.upstream("noise");
    sim.client_closes();
    sim.upstream_dies(0);
    sim.skip();
    sim.run_to_exit();
    sim.expect(
        r#"
        @50
        !kill
        !diag not relayed in this session: 1 answers to unknown ids, 1 server lines that are no messages
        !exit 0
    "#,
    );
}
