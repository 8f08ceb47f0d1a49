//! Ids in both directions, loose envelopes, and answers that nobody waits for.

use super::super::sim::{Sim, call};

#[test]
fn ids_1_the_answer_carries_the_very_same_bytes() {
    let long = format!("\"{}\"", "x".repeat(10_240));
    let ids = [
        "1774232524389",
        "9007199254740993",
        "18446744073709551616",
        "-1",
        "1.0",
        "1e3",
        "0.5",
        "0",
        "-0",
        r#""""#,
        r#""\u0061\/""#,
        r#""\ud800""#,
        &long,
    ];
    for id in ids {
        let mut sim = Sim::new();
        sim.client(format!(r#"{{"jsonrpc":"2.0","id":{id},"method":"ping"}}"#));
        sim.client(format!(r#"{{ "id" : {id} ,"method":"tools/call","params":{{"name":"a"}},"jsonrpc":"2.0"}}"#));
        let [ping, tool] = sim.sent()[..] else { panic!("both were sent") };
        sim.upstream(format!(r#"{{"result":{{}},"jsonrpc":"2.0" , "id": {tool} }}"#));
        sim.result(ping, "{}");
        assert_eq!(sim.to_client[0], format!(r#"{{"result":{{}},"jsonrpc":"2.0" , "id": {id} }}"#).as_bytes());
        assert_eq!(sim.to_client[1], format!(r#"{{"jsonrpc":"2.0","id":{id},"result":{{}}}}"#).as_bytes());
        sim.assert_at_rest();
    }
}

#[test]
fn ids_1_the_upstreams_ids_come_back_as_they_were() {
    for id in ["0", "18446744073709551616", "1.0", "-1e400", r#""\u0061""#] {
        let mut sim = Sim::new();
        sim.upstream(format!(r#"{{"jsonrpc":"2.0","id":{id},"method":"roots/list"}}"#));
        sim.expect(r#">c {"jsonrpc":"2.0","id":1,"method":"roots/list"}"#);
        sim.client(r#"{"jsonrpc":"2.0","id":1,"result":{"roots":[]}}"#);
        sim.expect(&format!(r#">u {{"jsonrpc":"2.0","id":{id},"result":{{"roots":[]}}}}"#));
        sim.assert_at_rest();
    }
}

#[test]
fn ids_2_a_request_with_a_null_id_is_refused_and_never_forwarded() {
    for id in ["null", "true", "{}", "[1]"] {
        let mut sim = Sim::new();
        sim.client(call(id, "echo"));
        assert!(sim.sent().is_empty());
        assert_eq!(sim.last_answer()["id"], serde_json::Value::Null);
        assert_eq!(sim.last_answer()["error"]["code"], -32600);
        assert_eq!(sim.last_mark()["class"], "invalid_request");
        sim.assert_at_rest();
    }
}

#[test]
fn ids_3_equal_numbers_on_both_sides_reach_their_owners() {
    let mut sim = Sim::new();
    // The upstream's request gets the number 1; the client then uses 1, 2 and 3 for its own.
    sim.upstream(r#"{"jsonrpc":"2.0","id":7,"method":"roots/list"}"#);
    for id in 1..=3 {
        sim.client(format!(r#"{{"jsonrpc":"2.0","id":{id},"method":"ping"}}"#));
    }
    assert_eq!(sim.sent(), [3, 5, 7]);
    sim.skip();
    sim.client(r#"{"jsonrpc":"2.0","id":1,"result":{"roots":[]}}"#);
    sim.expect(r#">u {"jsonrpc":"2.0","id":7,"result":{"roots":[]}}"#);
    sim.result(3, "{}");
    sim.expect(r#">c {"jsonrpc":"2.0","id":1,"result":{}}"#);
    sim.result(7, "{}");
    sim.expect(r#">c {"jsonrpc":"2.0","id":3,"result":{}}"#);
    sim.result(5, "{}");
    sim.expect(r#">c {"jsonrpc":"2.0","id":2,"result":{}}"#);
    sim.assert_at_rest();
}

#[test]
fn ids_4_only_the_first_answer_counts() {
    let mut sim = Sim::new();
    sim.call(5, "echo");
    sim.result(2, "{}");
    sim.skip();
    sim.result(2, r#"{"again":true}"#);
    sim.error(2, -32000, "and again");
    sim.result(99, "{}");
    sim.result(5, "{}");
    sim.upstream(r#"{"jsonrpc":"2.0","id":"never","result":{}}"#);
    sim.expect("");
    sim.client_closes();
    sim.upstream_dies(0);
    sim.run_to_exit();
    assert!(sim.log.iter().any(|line| line.contains("5 answers to unknown ids")), "{:#?}", sim.log);
}

#[test]
fn ids_4_an_answer_of_the_client_that_nobody_waits_for_goes_nowhere() {
    let mut sim = Sim::new();
    sim.client(r#"{"jsonrpc":"2.0","id":1,"result":{}}"#);
    sim.upstream(r#"{"jsonrpc":"2.0","id":7,"method":"ping"}"#);
    sim.client(r#"{"jsonrpc":"2.0","id":1,"result":{}}"#);
    sim.skip();
    sim.client(r#"{"jsonrpc":"2.0","id":1,"result":{}}"#);
    sim.client(r#"{"jsonrpc":"2.0","id":1.5,"result":{}}"#);
    sim.expect("");
}

#[test]
fn ids_5_loose_envelopes_are_relayed_as_they_are_and_end_their_request() {
    for (body, failed) in [
        (r#"{"id":2,"result":{},"error":null}"#, false),
        (r#"{"jsonrpc":"2.0","id":2,"result":null}"#, false),
        (r#"{"jsonrpc":"2.0","id":2,"error":{"code":-1,"message":"x"},"result":null}"#, true),
        (r#"{"jsonrpc":"2.0","id":"2","result":{}}"#, false),
        (r#"{"jsonrpc":"2.0","id":2.0,"result":{},"x":[1]}"#, false),
    ] {
        let mut sim = Sim::new();
        sim.call(r#""c""#, "echo");
        sim.upstream(body);
        let expected = body
            .replace(r#""id":2.0"#, r#""id":"c""#)
            .replace(r#""id":2"#, r#""id":"c""#)
            .replace(r#""id":"2""#, r#""id":"c""#);
        assert_eq!(String::from_utf8_lossy(&sim.to_client[0]), expected);
        assert_eq!(sim.letters.len(), usize::from(failed), "{body}");
        sim.assert_at_rest();
    }
}

#[test]
fn ids_5_an_error_without_id_is_relayed_and_changes_nothing() {
    for line in [
        r#"{"jsonrpc":"2.0","error":{"code":-32600,"message":"x"}}"#,
        r#"{"jsonrpc":"2.0","id":null,"error":{"code":-32700,"message":"x"}}"#,
    ] {
        let mut sim = Sim::new();
        sim.call(1, "echo");
        sim.skip();
        sim.upstream(line);
        sim.expect(&format!(">c {line}"));
        sim.result(2, "{}");
        sim.assert_at_rest();
    }
}

#[test]
fn ids_6_what_is_not_ours_passes_unread() {
    let mut sim = Sim::new();
    let init = r#""method":"initialize","params":{"capabilities":{"sampling":{},"x-new":{"a":[1]}}},"x":1e400}"#;
    sim.client(format!(r#"{{"jsonrpc":"2.0","id":0,{init}"#));
    sim.expect(&format!(r#">u {{"jsonrpc":"2.0","id":2,{init}"#));
    sim.client(r#"{"jsonrpc":"2.0","id":1,"method":"vendor/foo","params":[1.10]}"#);
    sim.expect(r#">u {"jsonrpc":"2.0","id":4,"method":"vendor/foo","params":[1.10]}"#);
    sim.client(r#"{"method":"notifications/vendor", "params":7}"#);
    sim.expect(r#">u {"method":"notifications/vendor", "params":7}"#);
    sim.upstream(r#"{"method":"notifications/vendor", "params":-0}"#);
    sim.expect(r#">c {"method":"notifications/vendor", "params":-0}"#);
}

#[test]
fn frm_5_a_bad_line_gets_one_error_and_the_session_goes_on() {
    let mut sim = Sim::new();
    for (line, code, class) in [
        ("not json", -32700, "parse_error"),
        (r#"{"jsonrpc":"2.0""#, -32700, "parse_error"),
        ("42", -32600, "invalid_request"),
        (r#"{"jsonrpc":"2.0","id":3}"#, -32600, "invalid_request"),
    ] {
        let before = sim.to_client.len();
        sim.client(line);
        assert_eq!(sim.to_client.len(), before + 1, "{line}");
        assert_eq!(sim.last_answer()["error"]["code"], code, "{line}");
        assert_eq!(sim.last_mark()["class"], class);
        assert_eq!(sim.last_mark()["executed"], "no");
        assert_eq!(sim.last_mark()["attempts"], 0);
    }
    sim.client(r#"{"jsonrpc":"2.0","id":0,"method":"initialize"}"#);
    assert_eq!(sim.sent().len(), 1);
    assert_eq!(sim.engine.counters.refused_frames, 4);
}

#[test]
fn frm_10_json_that_is_no_message_is_noise() {
    let mut sim = Sim::new();
    for line in ["{}", "[]", "42", r#""ready""#, "null", r#"{"level":"info","msg":"x"}"#, "Server started", "[1,2]"] {
        sim.upstream(line);
        sim.expect(&format!("!noise {line}"));
    }
}

#[test]
fn jsn_3_repeated_members_are_refused_where_policy_could_depend_on_them() {
    for line in [
        r#"{"jsonrpc":"2.0","id":1,"method":"ping","method":"tools/call","params":{"name":"denied"}}"#,
        r#"{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"read_file","name":"denied"}}"#,
        r#"{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"read_file","n\u0061me":"denied"}}"#,
        r#"{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"a","arguments":{"path":"/ok","path":"/etc"}}}"#,
    ] {
        let mut sim = Sim::new();
        sim.client(line);
        assert_eq!((sim.last_answer()["error"]["code"].as_i64(), sim.sent().len()), (Some(-32600), 0), "{line}");
        assert_eq!(sim.last_answer()["id"], 1);
        sim.assert_at_rest();
    }
    let mut sim = Sim::new();
    sim.client(r#"{"jsonrpc":"2.0","id":1,"id":2,"method":"ping"}"#);
    assert_eq!(sim.last_answer()["id"], serde_json::Value::Null);
    assert!(sim.sent().is_empty());
}

#[test]
fn calls_that_cannot_be_judged_are_refused_with_their_id() {
    for (params, part) in [
        ("", "params"),
        (r#","params":[]"#, "params"),
        (r#","params":{}"#, "params.name"),
        (r#","params":{"name":7}"#, "params.name"),
        (r#","params":{"name":"\ud800"}"#, "params.name"),
        (r#","params":{"name":"a","_meta":[]}"#, "params._meta"),
        (r#","params":{"name":"a","arguments":"x"}"#, "params.arguments"),
    ] {
        let mut sim = Sim::new();
        sim.client(format!(r#"{{"jsonrpc":"2.0","id":"i","method":"tools/call"{params}}}"#));
        let answer = sim.last_answer();
        assert_eq!((answer["id"].as_str(), answer["error"]["code"].as_i64()), (Some("i"), Some(-32602)), "{params}");
        assert!(answer["error"]["message"].as_str().is_some_and(|text| text.starts_with(part)), "{answer}");
        assert_eq!(sim.last_mark()["class"], "invalid_params");
        assert!(sim.sent().is_empty());
        // The same without an id goes nowhere and is not answered (PRO-4).
        sim.client(format!(r#"{{"jsonrpc":"2.0","method":"tools/call"{params}}}"#));
        assert_eq!((sim.to_client.len(), sim.to_upstream.len()), (1, 0));
        sim.assert_at_rest();
    }
}

#[test]
fn a_client_frame_over_the_limit_is_answered_by_what_its_head_tells() {
    let mut sim = Sim::new();
    sim.client_oversized(r#"{"jsonrpc":"2.0","id":"big","method":"tools/call","params":{"#);
    assert_eq!(sim.last_answer()["id"], "big");
    assert_eq!(sim.last_answer()["error"]["code"], -32600);
    assert!(sim.last_answer()["error"]["message"].as_str().is_some_and(|text| text.contains("10000 bytes")));
    sim.client_oversized(r#"{"jsonrpc":"2.0","method":"tools/call","params":{"#);
    assert_eq!(sim.last_answer()["id"], serde_json::Value::Null);
    sim.client_oversized("xxxxxxxx");
    assert_eq!(sim.to_client.len(), 3);
    sim.assert_at_rest();
}

#[test]
fn an_answer_of_the_client_over_the_limit_ends_the_request_it_belongs_to() {
    let mut sim = Sim::new();
    sim.upstream(r#"{"jsonrpc":"2.0","id":"s","method":"sampling/createMessage"}"#);
    sim.skip();
    sim.client_oversized(r#"{"jsonrpc":"2.0","id":1,"result":{"text":"xxxx"#);
    let (_, bytes) = sim.to_upstream.last().expect("the upstream is answered");
    let answer: serde_json::Value = serde_json::from_slice(bytes).expect("JSON");
    assert_eq!((answer["id"].as_str(), answer["error"]["code"].as_i64()), (Some("s"), Some(-32603)));
    assert_eq!(answer["error"]["data"]["mcprelay"]["class"], "invalid_answer");
    assert!(sim.to_client.len() == 1, "the client hears nothing of it");
    sim.assert_at_rest();
}

#[test]
fn an_invalid_answer_of_the_client_ends_the_request_it_belongs_to() {
    let mut sim = Sim::new();
    sim.upstream(r#"{"jsonrpc":"2.0","id":"s","method":"sampling/createMessage"}"#);
    sim.client(r#"{"jsonrpc":"2.0","id":1,"result":{"a":1,"a":2}}"#);
    let (_, bytes) = sim.to_upstream.last().expect("the upstream is answered");
    assert!(bytes.starts_with(br#"{"jsonrpc":"2.0","id":"s","error""#), "{}", String::from_utf8_lossy(bytes));
    sim.assert_at_rest();
}

#[test]
fn an_answer_of_the_upstream_over_the_limit_ends_its_request_at_once() {
    for id in ["2", r#""2""#, "2.0"] {
        let mut sim = Sim::new();
        sim.call(1, "safe_echo");
        sim.upstream_oversized(
            &format!(r#"{{"jsonrpc":"2.0","id":{id},"result":{{"content":[xxx"#).replace("xxx", "\"x"),
        );
        assert_eq!(sim.last_mark()["executed"], "yes", "{id}");
        assert_eq!(sim.last_mark()["class"], "non_retryable");
        assert!(sim.last_answer()["error"]["message"].as_str().is_some_and(|text| text.contains("10000 bytes")));
        assert_eq!(sim.sent(), [2], "it ran: another try would run it again");
        sim.assert_at_rest();
    }
    let mut sim = Sim::new();
    sim.client(r#"{"jsonrpc":"2.0","id":1,"method":"resources/read"}"#);
    sim.upstream_oversized(r#"{"jsonrpc":"2.0","id":2,"result":{"#);
    assert_eq!(sim.last_answer()["error"]["code"], -32603);
    assert_eq!(sim.last_mark()["executed"], "yes");
    sim.assert_at_rest();
}

#[test]
fn a_request_of_the_upstream_over_the_limit_is_refused_and_a_notification_only_told() {
    let mut sim = Sim::new();
    sim.upstream_oversized(r#"{"jsonrpc":"2.0","id":"q","method":"sampling/createMessage","params":{"x":"#);
    let (_, bytes) = sim.to_upstream.last().expect("the upstream is answered");
    let answer: serde_json::Value = serde_json::from_slice(bytes).expect("JSON");
    assert_eq!((answer["id"].as_str(), answer["error"]["code"].as_i64()), (Some("q"), Some(-32600)));
    sim.skip();
    sim.upstream_oversized(r#"{"jsonrpc":"2.0","method":"notifications/message","params":{"x":"#);
    sim.expect("!diag dropped a frame of the server: longer than 10000 bytes (wire.frame_max_bytes)");
    assert!(sim.to_client.is_empty());
}
