//! Back-pressure: new requests wait, everything else goes on, and nothing grows without bound.

use super::super::event::{Level, OUTBOX_FULL_BYTES};
use super::super::sim::{Sim, cancel};

#[test]
fn above_the_first_mark_new_requests_wait_in_order_and_the_rest_passes() {
    for client_side in [false, true] {
        let mut sim = Sim::new();
        sim.call(1, "echo");
        let press = |sim: &mut Sim, level| {
            if client_side { sim.client_outbox(level) } else { sim.upstream_outbox(level) }
        };
        press(&mut sim, Level::High);
        sim.skip();
        sim.call(2, "b");
        sim.client(r#"{"jsonrpc":"2.0","id":3,"method":"ping"}"#);
        sim.call(4, "c");
        sim.expect("");
        assert!(sim.engine.intake().clients, "cancels must still be read");
        sim.client(r#"{"jsonrpc":"2.0","method":"notifications/x"}"#);
        sim.expect(r#">u {"jsonrpc":"2.0","method":"notifications/x"}"#);
        sim.client(cancel(1));
        sim.expect(&format!(">u {}\n!log cancelled echo attempts=1", cancel(2)));
        sim.upstream(r#"{"jsonrpc":"2.0","id":"q","method":"ping"}"#);
        sim.client(r#"{"jsonrpc":"2.0","id":6,"result":{}}"#);
        assert_eq!(sim.to_upstream.len(), 4);
        sim.client(cancel(2));
        sim.skip();
        press(&mut sim, Level::Low);
        sim.expect(
            r#"
            >u {"jsonrpc":"2.0","id":7,"method":"ping"}
            >u {"jsonrpc":"2.0","id":8,"method":"tools/call","params":{"_meta":{"mcprelay":{"correlation_id":"C2"}},"name":"c"}}
        "#,
        );
        sim.result(7, "{}");
        sim.result(8, "{}");
        sim.assert_at_rest();
    }
}

#[test]
fn a_denial_does_not_wait() {
    let mut sim = Sim::new();
    sim.upstream_outbox(Level::High);
    sim.call(1, "denied");
    assert_eq!(sim.to_client.len(), 1);
}

#[test]
fn a_request_in_line_does_not_overtake_an_older_one() {
    let mut sim = Sim::new();
    sim.call(1, "safe_first");
    sim.error(2, -32000, "busy");
    sim.upstream_outbox(Level::High);
    sim.call(2, "second");
    // The first is retried into the line, and is the older one.
    sim.run_until(100);
    sim.skip();
    sim.upstream_outbox(Level::Low);
    let names: Vec<_> = sim.to_upstream[1..]
        .iter()
        .map(|(_, bytes)| serde_json::from_slice::<serde_json::Value>(bytes).expect("JSON")["params"]["name"].clone())
        .collect();
    assert_eq!(names, ["safe_first", "second"]);
}

#[test]
fn a_call_that_waited_too_long_was_certainly_not_executed() {
    let mut sim = Sim::new();
    sim.upstream_outbox(Level::High);
    sim.call(1, "pay");
    // Not sent is always safe to try again, and three times in vain is the end.
    sim.run_until(10_000);
    assert!(sim.to_upstream.is_empty());
    assert_eq!((sim.last_mark()["executed"].as_str(), sim.last_mark()["attempts"].as_i64()), (Some("no"), Some(3)));
    assert_eq!(sim.events[0].latency_ms, 3_300);
    sim.assert_at_rest();
}

#[test]
fn pip_1_an_upstream_that_never_reads_ends_its_calls_by_their_timeout() {
    let mut sim = Sim::new();
    sim.call(1, "pay");
    sim.upstream_outbox(Level::Full);
    assert!(!sim.engine.intake().clients && sim.engine.intake().upstreams);
    sim.run_until(1_000);
    assert_eq!(sim.last_mark()["class"], "timeout");
    sim.client_closes();
    sim.run_to_exit();
    assert!(sim.now() <= 1_000 + 2_000 + 3_000 + 1_000);
}

#[test]
fn a_full_outbox_stops_its_source() {
    let mut sim = Sim::new();
    sim.upstream_outbox(Level::Full);
    assert!(!sim.engine.intake().clients && sim.engine.intake().upstreams);
    sim.upstream_outbox(Level::Low);
    sim.client_outbox(Level::Full);
    assert!(sim.engine.intake().clients && !sim.engine.intake().upstreams);
    sim.client_outbox(Level::High);
    assert!(sim.engine.intake().clients && sim.engine.intake().upstreams);
}

#[test]
fn the_line_is_bounded_in_bytes_whoever_fills_it() {
    let mut sim = Sim::new();
    sim.upstream_outbox(Level::High);
    let filler = "x".repeat(OUTBOX_FULL_BYTES / 4);
    let frame =
        |id| format!(r#"{{"jsonrpc":"2.0","id":{id},"method":"tools/call","params":{{"name":"a","x":"{filler}"}}}}"#);
    for id in 0..4 {
        assert!(sim.engine.intake().clients);
        sim.client(frame(id));
    }
    assert!(!sim.engine.intake().clients);
    sim.client(cancel(0));
    assert!(sim.engine.intake().clients, "a cancel makes room");
    sim.client(frame(9).replace("tools/call", "ping"));
    assert!(!sim.engine.intake().clients);
    sim.upstream_outbox(Level::Low);
    assert!(sim.engine.intake().clients);
    assert_eq!(sim.sent().len(), 4);
}
