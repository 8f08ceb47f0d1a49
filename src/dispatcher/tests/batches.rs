//! Batches, both ways: taken apart, judged one by one, answered by one array.

use super::super::sim::{Sim, call, cancel};

#[test]
fn pro_3_every_member_is_judged_and_one_array_answers() {
    let mut sim = Sim::new();
    sim.client(format!(r#"  [ {} , {{"jsonrpc":"2.0","id":2,"method":"ping"}} ]"#, call(1, "denied")));
    assert_eq!(sim.sent().len(), 1, "the denied one stays here");
    assert!(sim.to_client.is_empty());
    sim.result(sim.last_sent(), "{}");
    let answer = sim.last_answer();
    assert_eq!(answer.as_array().map(Vec::len), Some(2));
    assert_eq!((&answer[0]["id"], &answer[0]["error"]["code"]), (&1.into(), &(-32001).into()));
    assert_eq!((&answer[1]["id"], &answer[1]["result"]), (&2.into(), &serde_json::json!({})));
    sim.assert_at_rest();
}

#[test]
fn answers_stand_in_the_order_they_came_with_their_own_bytes() {
    let mut sim = Sim::new();
    sim.client(format!("[{},{},{}]", call(r#""a""#, "echo"), call("1.0", "echo"), call(3, "echo")));
    let sent = sim.sent();
    sim.result(sent[1], r#"{"n":1e5}"#);
    sim.result(sent[0], "{}");
    assert!(sim.to_client.is_empty());
    sim.result(sent[2], "{ }");
    let expected = r#"[{"jsonrpc":"2.0","id":1.0,"result":{"n":1e5}},{"jsonrpc":"2.0","id":"a","result":{}},{"jsonrpc":"2.0","id":3,"result":{ }}]"#;
    assert_eq!(String::from_utf8_lossy(&sim.to_client[0]), expected);
    sim.assert_at_rest();
}

#[test]
fn cancelled_members_are_left_out_and_an_empty_rest_is_not_sent() {
    let mut sim = Sim::new();
    sim.client(format!("[{},{}]", call(1, "echo"), call(2, "echo")));
    let sent = sim.sent();
    sim.client(cancel(1));
    sim.result(sent[1], "{}");
    assert_eq!(sim.to_client, [br#"[{"jsonrpc":"2.0","id":2,"result":{}}]"#]);
    sim.client(format!("[{}]", call(3, "echo")));
    sim.client(cancel(3));
    assert_eq!(sim.to_client.len(), 1);
    sim.assert_at_rest();
}

#[test]
fn notifications_alone_get_no_array() {
    let mut sim = Sim::new();
    sim.client(r#"[{"jsonrpc":"2.0","method":"notifications/a"},{"jsonrpc":"2.0","method":"notifications/b"}]"#);
    sim.expect(
        r#"
        >u {"jsonrpc":"2.0","method":"notifications/a"}
        >u {"jsonrpc":"2.0","method":"notifications/b"}
    "#,
    );
    sim.assert_at_rest();
}

#[test]
fn an_empty_batch_and_an_initialize_in_one_are_refused() {
    let mut sim = Sim::new();
    sim.client("[ ]");
    assert_eq!(sim.last_answer()["error"]["code"], -32600);
    assert_eq!(sim.last_answer()["id"], serde_json::Value::Null);
    sim.client(r#"[{"jsonrpc":"2.0","id":1,"method":"initialize"},{"jsonrpc":"2.0","id":2,"method":"ping"}]"#);
    assert_eq!(sim.sent().len(), 1);
    sim.result(sim.last_sent(), "{}");
    let answer = sim.last_answer();
    assert_eq!((&answer[0]["id"], &answer[0]["error"]["code"]), (&1.into(), &(-32600).into()));
    sim.assert_at_rest();
}

#[test]
fn bad_members_are_answered_within_the_array() {
    let mut sim = Sim::new();
    sim.client(r#"[1,{"jsonrpc":"2.0","id":7},{"jsonrpc":"2.0","id":8,"method":"tools/call","params":{"name":"a","name":"b"}}]"#);
    let answer = sim.last_answer();
    let ids: Vec<_> = answer.as_array().expect("an array").iter().map(|member| member["id"].clone()).collect();
    assert_eq!(ids, [serde_json::Value::Null, 7.into(), 8.into()]);
    sim.assert_at_rest();
}

#[test]
fn members_are_retried_and_captured_like_any_call() {
    let mut sim = Sim::new();
    sim.client(format!("[{},{}]", call(1, "safe_echo"), call(2, "pay")));
    sim.run_until(60_000);
    assert_eq!(sim.sent().len(), 4);
    assert_eq!(sim.letters.len(), 2);
    assert_eq!(sim.to_client.len(), 1);
    let answer = sim.last_answer();
    assert_eq!((&answer[0]["id"], &answer[1]["id"]), (&2.into(), &1.into()));
    for (member, attempts) in [(0, 1), (1, 3)] {
        assert_eq!(answer[member]["error"]["data"]["mcprelay"]["attempts"], attempts);
    }
    sim.assert_at_rest();
}

#[test]
fn a_batch_of_answers_from_the_client_goes_on_one_by_one() {
    let mut sim = Sim::new();
    sim.upstream(r#"{"jsonrpc":"2.0","id":"a","method":"roots/list"}"#);
    sim.upstream(r#"{"jsonrpc":"2.0","id":"b","method":"ping"}"#);
    sim.skip();
    sim.client(r#"[{"jsonrpc":"2.0","id":2,"result":{}},{"jsonrpc":"2.0","id":1,"result":{"roots":[]}}]"#);
    sim.expect(
        r#"
        >u {"jsonrpc":"2.0","id":"b","result":{}}
        >u {"jsonrpc":"2.0","id":"a","result":{"roots":[]}}
    "#,
    );
}

#[test]
fn a_batch_of_the_upstream_is_taken_apart_and_answered_by_one_array() {
    let mut sim = Sim::new();
    sim.call(1, "echo");
    sim.skip();
    sim.upstream(
        r#"[{"jsonrpc":"2.0","id":2,"result":{}},7,{"jsonrpc":"2.0","id":"a","method":"ping"},{"jsonrpc":"2.0","method":"notifications/x"},{"jsonrpc":"2.0","id":"b","method":"ping"},{"jsonrpc":"2.0","id":"c","method":"ping"}]"#,
    );
    sim.expect(
        r#"
        !log allowed echo attempts=1
        >c {"jsonrpc":"2.0","id":1,"result":{}}
        >c {"jsonrpc":"2.0","id":4,"method":"ping"}
        >c {"jsonrpc":"2.0","method":"notifications/x"}
        >c {"jsonrpc":"2.0","id":5,"method":"ping"}
        >c {"jsonrpc":"2.0","id":6,"method":"ping"}
    "#,
    );
    sim.client(r#"{"jsonrpc":"2.0","id":6,"result":{}}"#);
    sim.expect("");
    sim.upstream(cancel(r#""a""#));
    sim.skip();
    sim.client(r#"{"jsonrpc":"2.0","id":5,"result":{}}"#);
    sim.expect(r#">u [{"jsonrpc":"2.0","id":"c","result":{}},{"jsonrpc":"2.0","id":"b","result":{}}]"#);
    sim.assert_at_rest();
}
