//! Dead letters: written before the client hears of the failure, whole, and never in the way of the answer.

use super::super::event::{Event, Ticket};
use super::super::sim::{Sim, Store};
use crate::record::{Decision, Executed, FailureClass};

#[test]
fn the_letter_is_stored_before_the_client_hears_of_the_failure() {
    let mut sim = Sim::new();
    sim.store = Store::After(300);
    sim.call(1, "pay");
    sim.skip();
    sim.error(2, -32000, "busy");
    sim.expect("!capture R1 UpstreamError executed=Maybe attempts=1");
    sim.run_until(299);
    sim.expect("");
    sim.run_until(300);
    sim.expect(
        r#"
        @300
        !log failed pay attempts=1 UpstreamError executed=Maybe code=-32000 R1
        >c {"jsonrpc":"2.0","id":1,"error":{"code":-32000,"message":"busy"}}
    "#,
    );
    sim.assert_at_rest();
}

#[test]
fn ids_5_the_letter_keeps_an_error_that_has_no_form() {
    for (error, message, detail) in [
        (r#""plain""#, "the server's error has no message", Some(r#""plain""#)),
        (r#"{"code":5,"reason":"full"}"#, "the server's error has no message", Some(r#"{"code":5,"reason":"full"}"#)),
        (r#"{"code":5,"message":"half \ud800"}"#, "half \u{fffd}", None),
        (r#"{"code":5,"message":"full","data":[1]}"#, "full", Some("[1]")),
    ] {
        let mut sim = Sim::new();
        sim.call(1, "pay");
        sim.upstream(format!(r#"{{"jsonrpc":"2.0","id":{},"error":{error}}}"#, sim.last_sent()));
        let letter = sim.letters.last().expect("a letter");
        assert_eq!(letter.message, message, "{error}");
        assert_eq!(letter.detail.as_deref(), detail.map(str::as_bytes), "{error}");
    }
}

#[test]
fn a_store_that_fails_leaves_the_answer_as_it_is_and_the_letter_elsewhere() {
    let mut sim = Sim::new();
    sim.store = Store::Fails(10);
    sim.call(1, "pay");
    sim.run_until(1_000);
    let answer = |sim: &mut Sim| {
        sim.run_until(5_000);
        let mut answer = sim.last_answer();
        let mark = &mut answer["error"]["data"]["mcprelay"];
        assert_eq!(mark["dead_letter_id"], sim.letters[0].id);
        mark["dead_letter_id"] = "x".into();
        mark["correlation_id"] = "x".into();
        answer
    };
    let failed = answer(&mut sim);
    assert!(sim.log.iter().any(|line| line.contains("!rescue R1 disk full")), "{:#?}", sim.log);
    let mut sim = Sim::new();
    sim.call(1, "pay");
    assert_eq!(answer(&mut sim), failed);
}

#[test]
fn a_silent_store_is_waited_for_two_seconds_and_its_late_word_changes_nothing() {
    let mut sim = Sim::new();
    sim.store = Store::Silent;
    sim.call(1, "pay");
    sim.error(2, -32000, "busy");
    sim.run_until(1_999);
    assert!(sim.to_client.is_empty());
    sim.skip();
    sim.run_until(2_000);
    sim.expect(
        r#"
        @2000
        !rescue R1 the queue did not confirm within 2000 ms (queue.capture_timeout_ms)
        !log failed pay attempts=1 UpstreamError executed=Maybe code=-32000 R1
        >c {"jsonrpc":"2.0","id":1,"error":{"code":-32000,"message":"busy"}}
    "#,
    );
    for ticket in 0..5 {
        sim.event(Event::Stored { ticket: Ticket(ticket) });
        sim.event(Event::StoreFailed { ticket: Ticket(ticket), error: "no".into() });
    }
    sim.expect("");
    sim.assert_at_rest();
}

#[test]
fn a_confirmation_concerns_its_own_letter_alone() {
    let mut sim = Sim::new();
    sim.store = Store::Silent;
    sim.call(1, "pay");
    sim.call(2, "pay");
    sim.error(2, -32000, "a");
    sim.error(4, -32000, "b");
    sim.event(Event::Stored { ticket: Ticket(3) });
    assert_eq!(sim.to_client.len(), 1);
    assert_eq!(sim.last_answer()["id"], 2);
}

#[test]
fn the_letter_tells_everything_about_the_call() {
    let mut sim = Sim::new();
    sim.client(
        r#"{"jsonrpc":"2.0","id":0,"method":"initialize","params":{"clientInfo":{"name":"desk","version":"1"}}}"#,
    );
    sim.result(2, r#"{"serverInfo":{"name":"files","version":"2"}}"#);
    sim.run_until(50);
    sim.client(
        r#"{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"arguments": {"n":1e5, "\u0061":-0} ,"name":"safe_\u0061","_meta":{"idempotencyKey":"k"}}}"#,
    );
    sim.upstream(r#"{"jsonrpc":"2.0","id":4,"error":{"message":"b\u00fcsy","code":-32000,"data":{ "x":1.0}}}"#);
    sim.run_until(150);
    sim.run_until(1_150);
    sim.run_until(1_350);
    sim.upstream(r#"{"jsonrpc":"2.0","id":6,"error":{"message":"no","code":-32602,"data":[ 1 ]}}"#);
    let letter = &sim.letters[0];
    assert_eq!(letter.tool, "safe_a");
    assert_eq!(letter.arguments.as_deref(), Some(&br#"{"n":1e5, "\u0061":-0}"#[..]));
    assert_eq!(letter.idempotency_key.as_deref(), Some("k"));
    assert_eq!(letter.client.as_ref().map(|client| (&*client.name, &*client.version)), Some(("desk", "1")));
    assert_eq!(
        (&*letter.server.name, &letter.server.argv[..]),
        ("files", &["fake".to_owned(), "--serve".to_owned()][..])
    );
    assert_eq!(letter.caller.identity, "local");
    assert!(letter.idempotent && !letter.mid_conversation && letter.policy.allowed);
    assert_eq!((letter.class, letter.code, &*letter.message), (FailureClass::NonRetryable, Some(-32602), "no"));
    assert_eq!(letter.detail.as_deref(), Some(&b"[ 1 ]"[..]));
    let attempts: Vec<_> = letter
        .attempts
        .iter()
        .map(|attempt| (attempt.number, attempt.class, attempt.executed, attempt.code, &*attempt.message))
        .collect();
    assert_eq!(
        attempts,
        [
            (1, FailureClass::UpstreamError, Executed::Maybe, Some(-32000), "büsy"),
            (2, FailureClass::Timeout, Executed::Maybe, None, "tool \"safe_a\" did not answer within 1000 ms"),
            (3, FailureClass::NonRetryable, Executed::No, Some(-32602), "no"),
        ]
    );
    // One of the attempts may have run, so the call may have.
    assert_eq!(letter.executed, Executed::Maybe);
    assert_eq!(letter.captured_at.0 - 1_700_000_000_000, 1_350);
    assert_eq!(letter.correlation_id, sim.events[0].correlation_id);
}

#[test]
fn a_modern_request_introduces_its_own_client() {
    let mut sim = Sim::new();
    sim.client(
        r#"{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"pay","_meta":{"io.modelcontextprotocol/clientInfo":{"name":"one"}}}}"#,
    );
    sim.run_until(5_000);
    assert_eq!(sim.letters[0].client.as_ref().map(|client| &*client.name), Some("one"));
}

#[test]
fn a_call_in_the_middle_of_a_conversation_says_so() {
    for (member, expected) in [("requestState", true), ("inputResponses", true), ("other", false)] {
        let mut sim = Sim::new();
        sim.client(format!(
            r#"{{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{{"name":"pay","{member}":{{}}}}}}"#
        ));
        sim.run_until(5_000);
        assert_eq!(sim.letters[0].mid_conversation, expected, "{member}");
    }
}

#[test]
fn every_error_of_ours_names_its_letter_and_every_relayed_one_is_untouched() {
    let mut sim = Sim::new();
    sim.call(1, "pay");
    sim.run_until(1_000);
    let mark = sim.last_mark();
    assert_eq!(mark["dead_letter_id"], sim.letters[0].id);
    assert_eq!(mark["correlation_id"], sim.letters[0].correlation_id);
    assert_eq!(
        (sim.letters[0].code, sim.events[0].error.as_ref().and_then(|error| error.code)),
        (Some(-32603), Some(-32603))
    );
    sim.call(2, "pay");
    sim.upstream(r#"{"jsonrpc":"2.0","id":4,"error":{"code":-32603,"message":"m","data":1.0},"x":[ ]}"#);
    assert_eq!(
        sim.to_client[1],
        br#"{"jsonrpc":"2.0","id":2,"error":{"code":-32603,"message":"m","data":1.0},"x":[ ]}"#
    );
}

#[test]
fn a_call_event_counts_bytes_and_time_and_keeps_the_trace() {
    let mut sim = Sim::new();
    let params = r#"{"name":"echo","_meta":{"tracestate":"b","traceparent":"a","baggage":7},"arguments":{}}"#;
    sim.client(format!(r#"{{"jsonrpc":"2.0","id":"a long id","method":"tools/call","params":{params}}}"#));
    sim.run_until(120);
    sim.result(2, r#"{"content":[]}"#);
    let event = &sim.events[0];
    let sent = &sim.to_upstream[0].1;
    let message = serde_json::from_slice::<serde_json::Value>(sent).expect("JSON");
    let in_params = sent.len() - r#"{"jsonrpc":"2.0","id":2,"method":"tools/call","params":}"#.len();
    assert_eq!(message["params"]["_meta"]["tracestate"], "b", "it goes on as well");
    assert_eq!((event.request_bytes, event.response_bytes), (in_params as u64, r#"{"content":[]}"#.len() as u64));
    assert_eq!((event.latency_ms, event.decision, event.attempts), (120, Decision::Allowed, 1));
    assert_eq!(event.trace, [("traceparent", "a".to_owned()), ("tracestate", "b".to_owned())]);
    sim.call(2, "denied");
    assert_eq!(sim.events[1].request_bytes, br#"{"name":"denied"}"#.len() as u64);
}
