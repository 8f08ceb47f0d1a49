//! A client withdraws a request: wherever it is, nothing more happens for it, and nobody is answered.

use super::super::event::Level;
use super::super::sim::{Sim, Store, cancel};
use crate::record::Decision;

#[test]
fn tim_4_a_cancel_in_flight_reaches_the_upstream_by_the_id_used_there() {
    let mut sim = Sim::new();
    sim.call(r#""x""#, "safe_echo");
    sim.skip();
    sim.client(
        r#"{"jsonrpc":"2.0","method":"notifications/cancelled","params":{"reason":"user","requestId": "\u0078" }}"#,
    );
    sim.expect(
        r#"
        >u {"jsonrpc":"2.0","method":"notifications/cancelled","params":{"reason":"user","requestId": 2 }}
        !log cancelled safe_echo attempts=1
    "#,
    );
    sim.assert_at_rest();
    // A late answer and a second cancel go nowhere.
    sim.result(2, "{}");
    sim.client(cancel(r#""x""#));
    sim.run_until(60_000);
    sim.expect("");
    assert_eq!((sim.engine.counters.late_answers, sim.engine.counters.unknown_cancels), (1, 1));
}

#[test]
fn tim_4_a_cancel_in_back_off_ends_the_call() {
    let mut sim = Sim::new();
    sim.call(1, "safe_echo");
    sim.error(2, -32000, "busy");
    sim.run_until(50);
    sim.skip();
    sim.client(cancel(1));
    sim.expect("@50\n!log cancelled safe_echo attempts=1");
    sim.run_until(60_000);
    sim.expect("");
    assert!(sim.letters.is_empty());
    sim.assert_at_rest();
}

#[test]
fn tim_4_a_cancel_during_the_second_attempt_names_that_attempt() {
    let mut sim = Sim::new();
    sim.call(1, "safe_echo");
    sim.error(2, -32000, "busy");
    sim.run_until(100);
    sim.skip();
    sim.client(cancel(1));
    sim.expect(&format!(">u {}\n!log cancelled safe_echo attempts=2", cancel(3)));
    assert_eq!(sim.events[0].decision, Decision::Cancelled);
    sim.assert_at_rest();
}

#[test]
fn tim_4_a_queued_request_is_taken_out_of_the_line() {
    let mut sim = Sim::new();
    sim.upstream_outbox(Level::High);
    sim.call(1, "echo");
    sim.client(r#"{"jsonrpc":"2.0","id":2,"method":"ping"}"#);
    sim.client(cancel(1));
    sim.expect("!log cancelled echo attempts=0");
    sim.client(cancel(2));
    sim.upstream_outbox(Level::Low);
    sim.expect("");
    sim.assert_at_rest();
}

#[test]
fn a_cancel_while_capturing_leaves_the_letter_and_takes_the_answer() {
    let mut sim = Sim::new();
    sim.store = Store::After(500);
    sim.call(1, "pay");
    sim.error(2, -32000, "no");
    sim.skip();
    sim.client(cancel(1));
    sim.expect("");
    sim.run_until(500);
    sim.expect("@500\n!log cancelled pay attempts=1 UpstreamError executed=Maybe code=-32000 R1");
    sim.assert_at_rest();
}

#[test]
fn tim_4_initialize_is_never_cancelled() {
    let mut sim = Sim::new();
    sim.client(r#"{"jsonrpc":"2.0","id":1,"method":"initialize"}"#);
    sim.skip();
    sim.client(cancel(1));
    sim.expect("");
    sim.result(2, "{}");
    sim.expect(r#">c {"jsonrpc":"2.0","id":1,"result":{}}"#);
    sim.assert_at_rest();
}

#[test]
fn a_passed_on_request_and_a_subscription_are_withdrawn_too() {
    for method in ["resources/read", "subscriptions/listen"] {
        let mut sim = Sim::new();
        sim.client(format!(r#"{{"jsonrpc":"2.0","id":"L","method":"{method}"}}"#));
        sim.skip();
        sim.client(cancel(r#""L""#));
        sim.expect(&format!(">u {}", cancel(2)));
        sim.result(2, "{}");
        sim.upstream(r#"{"jsonrpc":"2.0","method":"notifications/x","params":{"_meta":{"io.modelcontextprotocol/subscriptionId":2}}}"#);
        sim.expect("");
        sim.assert_at_rest();
    }
}

#[test]
fn a_cancel_of_something_unknown_is_dropped_and_counted() {
    let mut sim = Sim::new();
    sim.call(1, "echo");
    sim.skip();
    for id in ["2", r#""1""#, "null", "1.5", "{}"] {
        sim.client(cancel(id));
    }
    sim.client(r#"{"jsonrpc":"2.0","method":"notifications/cancelled"}"#);
    sim.expect("");
    assert_eq!(sim.engine.counters.unknown_cancels, 6);
    // Another spelling of the same number is the same id.
    sim.client(cancel("1.0"));
    assert_eq!(sim.events.len(), 1);
}

#[test]
fn the_upstream_withdraws_its_own_request() {
    let mut sim = Sim::new();
    sim.upstream(r#"{"jsonrpc":"2.0","id":"q","method":"elicitation/create"}"#);
    sim.skip();
    sim.upstream(cancel(r#""q""#));
    sim.expect(&format!(">c {}", cancel(1)));
    sim.client(r#"{"jsonrpc":"2.0","id":1,"result":{}}"#);
    sim.upstream(cancel(r#""q""#));
    sim.expect("");
    assert_eq!((sim.engine.counters.unknown_answers, sim.engine.counters.unknown_cancels), (1, 1));
}

#[test]
fn the_upstream_cannot_cancel_a_call() {
    let mut sim = Sim::new();
    sim.call(1, "echo");
    sim.skip();
    sim.upstream(cancel(2));
    sim.expect("");
    sim.result(2, "{}");
    sim.assert_at_rest();
}
