//! What an attempt's end means: the class table, retries, back-off, and the limits in time.

use std::time::Duration;

use super::super::sim::Sim;
use crate::record::{Executed, FailureClass};
use crate::retry::{Reliability, RetryPlan};

/// How a call to a tool ends when its upstream always answers the same.
#[derive(Debug, PartialEq, Eq)]
struct Course {
    attempts: usize,
    /// Class and `executed` of the dead letter, if there is one.
    letter: Option<(FailureClass, Executed)>,
    /// The last part of what the client gets is the upstream's own answer.
    relayed: bool,
}

fn course(tool: &str, body: &str) -> Course {
    let mut sim = Sim::new();
    sim.call(r#""id""#, tool);
    for _ in 0..10 {
        if !sim.to_client.is_empty() {
            break;
        }
        let attempt = sim.last_sent();
        sim.upstream(format!(r#"{{"jsonrpc":"2.0","id":{attempt},{body}}}"#));
        sim.run_for(1_000);
    }
    sim.assert_at_rest();
    let relayed = sim.to_client[0] == format!(r#"{{"jsonrpc":"2.0","id":"id",{body}}}"#).as_bytes();
    let letter = sim.letters.first().map(|letter| (letter.class, letter.executed));
    assert_eq!(sim.events.len(), 1, "one line a call");
    assert_eq!(sim.events[0].attempts as usize, sim.sent().len(), "{body}");
    if let Some(letter) = sim.letters.first() {
        assert_eq!(letter.attempts.len(), sim.sent().len());
        assert_eq!(sim.events[0].dead_letter_id.as_ref(), Some(&letter.id));
        assert_eq!(letter.idempotent, tool.starts_with("safe"));
    }
    Course { attempts: sim.sent().len(), letter, relayed }
}

#[test]
fn every_row_of_the_class_table_for_both_kinds_of_tool() {
    use Executed::{Maybe, No};
    use FailureClass::{NonRetryable, UpstreamError};
    let never = |code: i64| {
        let executed = match code {
            -32700 | -32602..=-32600 | -32020 => No,
            _ => Maybe,
        };
        (1, 1, Some((NonRetryable, executed)))
    };
    let transient = (1, 3, Some((UpstreamError, Maybe)));
    let rows = [
        (-32700, never(-32700)),
        (-32600, never(-32600)),
        (-32601, never(-32601)),
        (-32602, never(-32602)),
        (-32603, transient),
        (-32000, transient),
        (-32001, transient),
        (-32002, transient),
        (-32019, transient),
        (-32020, never(-32020)),
        (-32042, never(-32042)),
        (-32099, never(-32099)),
        (-32100, transient),
        (-1, transient),
        (0, transient),
        (404, transient),
        (-32768, transient),
        // The two that say that client and server do not fit together leave no dead letter.
        (-32021, (1, 1, None)),
        (-32022, (1, 1, None)),
    ];
    for (code, (attempts, attempts_safe, letter)) in rows {
        let body = format!(r#""error":{{"code":{code},"message":"no","data":{{"x":1.0}}}}"#);
        let expected = Course { attempts, letter, relayed: true };
        assert_eq!(course("echo", &body), expected, "{code}");
        let expected = Course { attempts: attempts_safe, letter, relayed: true };
        assert_eq!(course("safe_echo", &body), expected, "{code} idempotent");
    }
}

#[test]
fn errors_without_a_readable_code_are_never_retried() {
    for error in [r#"{"code":"x","message":"no"}"#, r#"{"message":"no"}"#, r#""no""#, "true"] {
        for tool in ["echo", "safe_echo"] {
            let found = course(tool, &format!(r#""error":{error}"#));
            let letter = Some((FailureClass::NonRetryable, Executed::Maybe));
            assert_eq!(found, Course { attempts: 1, letter, relayed: true }, "{error}");
        }
    }
}

#[test]
fn results_end_a_call_whatever_they_say() {
    let results = [
        r#"{"content":[]}"#,
        r#"{"isError":true,"content":[{"type":"text","text":"no such file"}]}"#,
        r#"{"resultType":"input_required","requestState":"s"}"#,
        r#"{"resultType":"task","taskId":"t","status":"working"}"#,
        r#"{"task":{"taskId":"t","status":"working"}}"#,
        "null",
        "[]",
    ];
    for result in results {
        for tool in ["echo", "safe_echo"] {
            let found = course(tool, &format!(r#""result":{result}"#));
            assert_eq!(found, Course { attempts: 1, letter: None, relayed: true }, "{result}");
        }
    }
}

#[test]
fn a_tools_own_error_is_captured_on_request_with_its_own_words() {
    let body =
        r#""result":{"content":[{"type":"text","text":"no such file"},{"type":"text","text":"é"}],"isError":true}"#;
    let letter = Some((FailureClass::ToolError, Executed::Yes));
    assert_eq!(course("noted", body), Course { attempts: 1, letter, relayed: true });
    let mut sim = Sim::new();
    sim.call(1, "noted");
    sim.upstream(format!(r#"{{"jsonrpc":"2.0","id":2,{body}}}"#));
    assert_eq!(sim.letters[0].message, "no such file\né");
    let content = r#"[{"type":"text","text":"no such file"},{"type":"text","text":"é"}]"#;
    assert_eq!(sim.letters[0].detail.as_deref(), Some(content.as_bytes()));
    assert_eq!(sim.letters[0].code, None);
}

#[test]
fn a_long_tool_text_is_cut_between_characters() {
    let mut sim = Sim::new();
    sim.call(1, "noted");
    let text = "é".repeat(3_000);
    sim.result(2, &format!(r#"{{"isError":true,"content":[{{"type":"text","text":"{text}"}}]}}"#));
    let message = &sim.letters[0].message;
    assert!(message.len() < 4_200 && message.ends_with("é…"), "{} bytes", message.len());
}

#[test]
fn only_complete_results_count_as_executions_of_their_key() {
    let keyed = |result: &str| {
        let mut sim = Sim::new();
        sim.client(r#"{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"pay","arguments":{"b":1.0,"idempotency_key":"k"}}}"#);
        sim.result(2, result);
        sim.executions
    };
    let executions = keyed(r#"{"content":[]}"#);
    assert_eq!(executions.len(), 1);
    assert_eq!((executions[0].key.as_str(), executions[0].tool.as_str()), ("k", "pay"));
    assert_eq!(executions[0].server, "fake");
    assert_eq!(executions[0].arguments.as_deref(), Some(&br#"{"b":1.0,"idempotency_key":"k"}"#[..]));
    for result in [
        r#"{"isError":true}"#,
        r#"{"resultType":"input_required"}"#,
        r#"{"resultType":"task","taskId":"t"}"#,
        r#"{"task":{"taskId":"t"}}"#,
    ] {
        assert_eq!(keyed(result), [], "{result}");
    }
}

#[test]
fn the_key_is_taken_from_meta_then_from_the_arguments() {
    let key = |params: &str| {
        let mut sim = Sim::new();
        sim.client(format!(r#"{{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{{"name":"pay",{params}}}}}"#));
        sim.result(2, "{}");
        sim.executions.pop().map(|execution| execution.key)
    };
    let all = r#""_meta":{"idempotencyKey":"m"},"arguments":{"idempotencyKey":"b","idempotency_key":"a"}"#;
    assert_eq!(key(all).as_deref(), Some("m"));
    assert_eq!(key(r#""arguments":{"idempotencyKey":"b","idempotency_key":"a"}"#).as_deref(), Some("a"));
    assert_eq!(key(r#""arguments":{"idempotencyKey":"\u0062"}"#).as_deref(), Some("b"));
    assert_eq!(key(r#""arguments":{"idempotency_key":7.0}"#).as_deref(), Some("7.0"));
    assert_eq!(key(r#""arguments":{"idempotency_key":null}"#), None);
    assert_eq!(key(r#""arguments":{}"#), None);
}

#[test]
fn a_retry_waits_its_back_off_and_is_a_new_request() {
    let mut sim = Sim::new();
    sim.call(1, "safe_echo");
    sim.skip();
    sim.error(2, -32000, "busy");
    sim.expect("");
    sim.run_until(99);
    sim.expect("");
    sim.run_until(100);
    sim.expect(
        r#"
        @100
        >u {"jsonrpc":"2.0","id":3,"method":"tools/call","params":{"_meta":{"mcprelay":{"correlation_id":"C1"}},"name":"safe_echo"}}
    "#,
    );
    sim.error(3, -32000, "busy");
    sim.run_until(299);
    sim.expect("");
    sim.run_until(300);
    assert_eq!(sim.sent(), [2, 3, 4]);
    sim.skip();
    sim.run_until(350);
    sim.result(4, "{}");
    sim.expect(
        r#"
        @350
        !log allowed safe_echo attempts=3
        >c {"jsonrpc":"2.0","id":1,"result":{}}
    "#,
    );
    assert_eq!(sim.events[0].latency_ms, 350);
    sim.assert_at_rest();
}

#[test]
fn tim_5_an_abandoned_attempt_is_cancelled_before_the_next_starts() {
    let mut sim = Sim::new();
    sim.call(1, "safe_echo");
    sim.skip();
    sim.run_until(2_500);
    sim.expect(
        r#"
        @1000
        >u {"jsonrpc":"2.0","method":"notifications/cancelled","params":{"requestId":2,"reason":"timed out"}}
        @1100
        >u {"jsonrpc":"2.0","id":3,"method":"tools/call","params":{"_meta":{"mcprelay":{"correlation_id":"C1"}},"name":"safe_echo"}}
        @2100
        >u {"jsonrpc":"2.0","method":"notifications/cancelled","params":{"requestId":3,"reason":"timed out"}}
        @2300
        >u {"jsonrpc":"2.0","id":4,"method":"tools/call","params":{"_meta":{"mcprelay":{"correlation_id":"C1"}},"name":"safe_echo"}}
    "#,
    );
    sim.run_until(3_300);
    sim.expect(
        r#"
        @3300
        >u {"jsonrpc":"2.0","method":"notifications/cancelled","params":{"requestId":4,"reason":"timed out"}}
        !capture R1 Timeout executed=Maybe attempts=3
        !log failed safe_echo attempts=3 Timeout executed=Maybe code=-32603 R1
        >c {"jsonrpc":"2.0","id":1,"error":{"code":-32603,"message":"tool \"safe_echo\" did not answer within 1000 ms","data":{"mcprelay":{"class":"timeout","attempts":3,"executed":"maybe","correlation_id":"C1","dead_letter_id":"R1"}}}}
    "#,
    );
    let times: Vec<_> = sim.letters[0]
        .attempts
        .iter()
        .map(|attempt| (attempt.started_at.0 - 1_700_000_000_000, attempt.ended_at.0 - 1_700_000_000_000))
        .collect();
    assert_eq!(times, [(0, 1_000), (1_100, 2_100), (2_300, 3_300)]);
    sim.assert_at_rest();
}

#[test]
fn ret_1_a_call_that_may_have_run_is_never_sent_twice() {
    let mut sim = Sim::new();
    sim.call(1, "pay");
    sim.run_until(60_000);
    assert_eq!(sim.sent(), [2]);
    assert_eq!(sim.last_mark()["executed"], "maybe");
    assert_eq!(sim.last_mark()["class"], "timeout");
    assert_eq!(sim.last_mark()["attempts"], 1);
    sim.assert_at_rest();
}

#[test]
fn an_answer_in_the_same_turn_beats_the_timeout() {
    let mut sim = Sim::new();
    sim.call(1, "pay");
    sim.skip();
    // The laptop was closed for an hour; the answer was read first thing when it woke.
    sim.run_until(999);
    let answer = r#"{"jsonrpc":"2.0","id":2,"result":{}}"#;
    sim.jump(3_600_000);
    sim.upstream(answer);
    sim.expect(
        r#"
        @3600000
        !log allowed pay attempts=1
        >c {"jsonrpc":"2.0","id":1,"result":{}}
    "#,
    );
}

#[test]
fn after_a_long_sleep_each_deadline_fires_once() {
    let mut sim = Sim::new();
    sim.call(1, "safe_echo");
    sim.skip();
    sim.sleep_until(3_600_000);
    // The whole call's ten minutes are over as well.
    sim.expect(
        r#"
        @3600000
        >u {"jsonrpc":"2.0","method":"notifications/cancelled","params":{"requestId":2,"reason":"timed out"}}
        !capture R1 Timeout executed=Maybe attempts=1
        !log failed safe_echo attempts=1 Timeout executed=Maybe code=-32603 R1
        >c {"jsonrpc":"2.0","id":1,"error":{"code":-32603,"message":"tool \"safe_echo\" was not finished within 600000 ms, all attempts and waits included","data":{"mcprelay":{"class":"timeout","attempts":1,"executed":"maybe","correlation_id":"C1","dead_letter_id":"R1"}}}}
    "#,
    );
    sim.assert_at_rest();
}

#[test]
fn the_whole_call_has_its_own_limit() {
    let total = |millis| {
        let mut sim = Sim::with(|settings| settings.reliability.max_total = Some(Duration::from_millis(millis)));
        sim.call(1, "safe_echo");
        sim.run_until(10_000);
        sim.assert_at_rest();
        let message = sim.last_answer()["error"]["message"].as_str().expect("text").to_owned();
        (sim.events[0].latency_ms, sim.sent().len(), message)
    };
    // In the middle of the second attempt.
    let (ended, attempts, message) = total(1_500);
    assert_eq!((ended, attempts), (1_500, 2));
    assert!(message.contains("1500 ms"), "{message}");
    // In the middle of the first.
    assert_eq!(total(700).0, 700);
    // A back-off that would not end in time is not begun.
    let (ended, attempts, message) = total(1_050);
    assert_eq!((ended, attempts), (1_000, 1));
    assert!(message.contains("did not answer within 1000 ms"), "{message}");
    assert_eq!(total(3_300).1, 3);
}

#[test]
fn delays_with_jitter_stay_in_their_envelope_and_use_it() {
    let mut seen = [[u64::MAX, 0], [u64::MAX, 0]];
    for seed in 0..200 {
        let mut sim = Sim::seeded(seed, |settings| {
            for (_, tool) in &mut settings.reliability.per_tool {
                tool.retry = RetryPlan { attempts_max: 3, base: Duration::from_millis(100), jitter: true };
            }
        });
        sim.call(1, "safe_echo");
        for (failed, longest) in [(0, 100), (1, 200)] {
            let (sent, failed_at) = (sim.sent().len(), sim.now());
            sim.error(sim.last_sent(), -32000, "busy");
            while sim.sent().len() == sent {
                sim.run_for(1);
                assert!(sim.now() - failed_at <= longest, "waited more than {longest} ms");
            }
            let waited = sim.now() - failed_at;
            seen[failed] = [seen[failed][0].min(waited), seen[failed][1].max(waited)];
        }
    }
    let [[first_min, first_max], [second_min, second_max]] = seen;
    assert!(first_min <= 5 && first_max >= 95 && second_min <= 10 && second_max >= 190, "{seen:?}");
}

#[test]
fn hints_of_the_upstream_count_only_where_they_are_trusted() {
    let attempts = |trust: bool, annotations: &str| {
        let mut sim = Sim::with(|settings| settings.reliability.trust_annotations = trust);
        sim.client(r#"{"jsonrpc":"2.0","id":0,"method":"tools/list"}"#);
        sim.result(2, &format!(r#"{{"tools":[{{"name":"get","annotations":{annotations}}}]}}"#));
        sim.call(1, "get");
        sim.run_until(10_000);
        sim.sent().len() - 1
    };
    assert_eq!(attempts(false, r#"{"readOnlyHint":true,"idempotentHint":true}"#), 1);
    assert_eq!(attempts(true, r#"{"readOnlyHint":true}"#), 3);
    assert_eq!(attempts(true, r#"{"idempotentHint":true,"destructiveHint":true}"#), 3);
    assert_eq!(attempts(true, r#"{"readOnlyHint":true,"destructiveHint":true}"#), 1);
    assert_eq!(attempts(true, r#"{"readOnlyHint":"true"}"#), 1);
    assert_eq!(attempts(true, "{}"), 1);
}

#[test]
fn a_later_tool_list_takes_a_hint_back() {
    let mut sim = Sim::with(|settings| settings.reliability.trust_annotations = true);
    for (id, hint) in [(2, true), (4, false)] {
        sim.client(r#"{"jsonrpc":"2.0","id":0,"method":"tools/list"}"#);
        sim.result(id, &format!(r#"{{"tools":[{{"name":"get","annotations":{{"idempotentHint":{hint}}}}}]}}"#));
    }
    sim.call(1, "get");
    sim.run_until(10_000);
    assert_eq!(sim.sent().len(), 3);
}

#[test]
fn the_defaults_are_those_of_the_configuration() {
    let mut sim = Sim::with(|settings| settings.reliability = Reliability::default());
    sim.call(1, "echo");
    sim.run_until(29_999);
    assert!(sim.to_client.is_empty());
    sim.run_until(30_000);
    assert_eq!(sim.last_mark()["class"], "timeout");
}
