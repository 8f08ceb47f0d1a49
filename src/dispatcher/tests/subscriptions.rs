//! `subscriptions/listen`: the id that we rewrite stands in what it sends, too.

use super::super::sim::{Sim, cancel};

fn note(method: &str, id: &str) -> String {
    format!(
        r#"{{"jsonrpc":"2.0","method":"notifications/{method}","params":{{"uri":"a\u0062","_meta":{{"io.modelcontextprotocol/subscriptionId": {id} }}}}}}"#
    )
}

fn listen(id: &str) -> String {
    format!(r#"{{"jsonrpc":"2.0","id":{id},"method":"subscriptions/listen","params":{{"notifications":{{}}}}}}"#)
}

#[test]
fn notifications_carry_the_clients_id_in_its_own_bytes() {
    for id in [r#""L1""#, "0", "1.0", r#""\u004c""#] {
        let mut sim = Sim::new();
        sim.client(listen(id));
        sim.skip();
        for spelling in ["2", r#""2""#, "2.0"] {
            sim.upstream(note("subscriptions/acknowledged", spelling));
            sim.expect(&format!(">c {}", note("subscriptions/acknowledged", id)));
        }
        sim.upstream(
            r#"{"result":{"_meta":{"io.modelcontextprotocol/subscriptionId":2,"x":1.0},"resultType":"complete"},"jsonrpc":"2.0","id":2}"#,
        );
        sim.expect(&format!(
            r#">c {{"result":{{"_meta":{{"io.modelcontextprotocol/subscriptionId":{id},"x":1.0}},"resultType":"complete"}},"jsonrpc":"2.0","id":{id}}}"#
        ));
        sim.upstream(note("resources/updated", "2"));
        sim.expect("");
        sim.assert_at_rest();
    }
}

#[test]
fn two_subscriptions_do_not_mix() {
    let mut sim = Sim::new();
    sim.client(listen(r#""a""#));
    sim.client(listen("4"));
    assert_eq!(sim.sent(), [2, 4]);
    sim.skip();
    sim.upstream(note("resources/updated", "4"));
    sim.expect(&format!(">c {}", note("resources/updated", "4")));
    sim.upstream(note("resources/updated", "2"));
    sim.expect(&format!(">c {}", note("resources/updated", r#""a""#)));
}

#[test]
fn what_names_no_open_subscription_is_dropped() {
    let mut sim = Sim::new();
    sim.call(1, "echo");
    sim.skip();
    for id in ["2", "99", r#""x""#, "null", "{}"] {
        sim.upstream(note("resources/updated", id));
    }
    sim.expect("");
    assert_eq!(sim.engine.counters.stale_subscriptions, 5);
}

#[test]
fn the_upstream_ends_a_subscription() {
    let mut sim = Sim::new();
    sim.client(listen(r#""L""#));
    sim.skip();
    sim.upstream(cancel(2));
    sim.expect(&format!(">c {}", cancel(r#""L""#)));
    sim.upstream(note("resources/updated", "2"));
    sim.result(2, "{}");
    sim.upstream(cancel(2));
    sim.expect("");
    sim.assert_at_rest();
}

#[test]
fn its_own_request_with_that_number_is_meant_first() {
    let mut sim = Sim::new();
    sim.client(listen(r#""L""#));
    sim.upstream(r#"{"jsonrpc":"2.0","id":2,"method":"ping"}"#);
    sim.skip();
    sim.upstream(cancel(2));
    sim.expect(&format!(">c {}", cancel(3)));
    sim.upstream(cancel(2));
    sim.expect(&format!(">c {}", cancel(r#""L""#)));
}

#[test]
fn an_open_subscription_does_not_hold_the_end_of_the_session() {
    let mut sim = Sim::new();
    sim.client(listen("1"));
    sim.skip();
    sim.client_closes();
    assert_eq!(sim.last_answer()["error"]["code"], -32603);
    assert_eq!(sim.last_mark()["class"], "upstream_closed");
    assert!(sim.log.last().is_some_and(|line| line.ends_with("!close")));
}
