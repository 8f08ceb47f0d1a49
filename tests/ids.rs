//! Ids and envelopes (hazards IDS-1 to IDS-6), through the real binary.

use crate::support::session::{call, cancel, ping, same_but_id, session};

/// A call by which the server writes `frames` as its answers, `$ID` being the call's id there.
fn raw(id: &str, frames: &[&str]) -> String {
    call(id, "raw", &format!("{{\"frames\":{}}}", serde_json::Value::from(frames.to_vec())))
}

#[test]
fn ids_1_the_answer_carries_the_very_bytes_of_the_id() {
    let long = format!("\"{}\"", "x".repeat(10_000));
    let ids = [
        "1774232524389",
        "9007199254740993",
        "18446744073709551616",
        "-1",
        "1.0",
        "1e3",
        "0.5",
        "-0",
        "\"\"",
        "\"7\"",
        "\"\\u0061\\/é\"",
        &long,
    ];
    let mut session = session("ids-1").start();
    for id in ids {
        // All open at once, of both kinds.
        session.send(&ping(id));
    }
    for id in ids {
        assert_eq!(session.answer(id).at("result"), "{}");
    }
    for id in ids {
        session.send(&call(id, "echo", "{}"));
    }
    for id in ids {
        assert_eq!(session.answer(id).at("result.structuredContent"), "{}");
    }
    session.finish();
}

#[test]
fn ids_2_a_null_id_is_refused_and_nothing_is_forwarded() {
    let mut session = session("ids-2").config("policy: {rules: [{tool: denied_tool, action: deny}]}").start();
    let line = r#"{"jsonrpc":"2.0","id":null,"method":"tools/call","params":{"name":"NAME","arguments":{}}}"#;
    for name in ["denied_tool", "echo"] {
        let error = session.ask(&line.replace("NAME", name));
        assert_eq!((error.at("id"), error.at("error.code")), ("null", "-32600"), "{error:?}");
    }
    session.settle();
    assert_eq!(session.finish().got("tools/call"), [], "a request that nobody can be answered for went on");
}

#[test]
fn ids_3_a_client_id_equal_to_one_of_ours_is_told_apart() {
    let mut session = session("ids-3").start();
    session.relay.initialize();
    session.send(&call("\"outer\"", "ask-client", r#"{"id":3}"#));
    let asked = session.relay.message("sampling/createMessage");
    // Ours is open towards the client under this number: the client uses it and the next ones for its own requests.
    let ours: u64 = asked.at("id").parse().expect("our ids are numbers");
    for id in ours..ours + 5 {
        let answer =
            session.ask(&format!(r#"{{"jsonrpc":"2.0","id":{id},"method":"x/echo","params":{{"for":{id}}}}}"#));
        assert_eq!(answer.at("result.for"), id.to_string());
    }
    session.send(&format!(r#"{{"jsonrpc":"2.0","id":{ours},"result":{{"mine":true}}}}"#));
    let answer = session.answer("\"outer\"");
    assert!(answer.at("result.structuredContent.answers").contains(r#""id":3,"result":{"mine":true}"#), "{answer:?}");
    session.finish();
}

#[test]
fn ids_3_a_server_id_equal_to_one_of_ours_is_told_apart() {
    let mut session = session("ids-3-server").start();
    session.relay.initialize();
    session.send(&call("1", "hang", "{}"));
    session.wait_seen("the call", |seen| seen.iter().any(|note| note.contains("tools/call")));
    let hanging = session.got("tools/call")[0].at("id").to_owned();
    // The server asks under the number that our request to it bears, and under a text that looks like it.
    for id in [hanging.clone(), format!("\"{hanging}\"")] {
        session.send(&call("2", "ask-client", &format!("{{\"id\":{id}}}")));
        let asked = session.relay.message("sampling/createMessage");
        session.send(&format!(r#"{{"jsonrpc":"2.0","id":{},"result":{{}}}}"#, asked.at("id")));
        let answer = session.answer("2");
        let expected = format!(r#"[{{"jsonrpc":"2.0","id":{id},"result":{{}}}}]"#);
        assert_eq!(answer.at("result.structuredContent.answers"), expected);
    }
    session.send(&cancel("1"));
    session.finish();
}

#[test]
fn ids_4_only_the_first_answer_counts() {
    let mut session = session("ids-4").start();
    let frame = r#"{"jsonrpc":"2.0","id":$ID,"result":{"n":1}}"#;
    let second = frame.replace("\"n\":1", "\"n\":2");
    let answer = session.ask(&raw("5", &[frame, &second, r#"{"jsonrpc":"2.0","id":999999,"result":{}}"#]));
    assert_eq!(answer.text(), r#"{"jsonrpc":"2.0","id":5,"result":{"n":1}}"#);
    session.settle();
    let ended = session.finish();
    assert!(ended.stderr.contains("2 answers to unknown ids"), "not counted: {}", ended.stderr);
}

#[test]
fn ids_4_an_answer_after_the_timeout_is_dropped_and_counted() {
    let mut session = session("ids-4-timeout").options("--timeout-ms 100").start();
    let error = session.call("5", "sleep", r#"{"ms":300,"ignore_cancel":true}"#);
    assert_eq!(error.at("error.data.mcprelay.class"), "\"timeout\"");
    session.wait_seen("the late answer", |seen| seen.iter().any(|note| note.starts_with("#answered ")));
    session.settle();
    let ended = session.finish();
    assert!(ended.stderr.contains("1 late answers"), "not counted: {}", ended.stderr);
}

#[test]
fn ids_4_an_answer_after_the_clients_cancel_is_dropped_and_counted() {
    let mut session = session("ids-4-cancel").start();
    session.send(&call("5", "sleep", r#"{"ms":100,"ignore_cancel":true}"#));
    session.send(&cancel("5"));
    session.settle();
    // One for the ping of `settle`.
    session.wait_seen("the late answer", |seen| seen.iter().filter(|note| note.starts_with("#answered ")).count() == 2);
    session.settle();
    let ended = session.finish();
    assert!(ended.stderr.contains("1 late answers"), "not counted: {}", ended.stderr);
}

#[test]
fn ids_5_loose_envelopes_end_their_request_as_they_are() {
    let loose = [
        (r#"{"id":$ID,"result":{},"error":null}"#, true),
        (r#"{"jsonrpc":"2.0","id":$ID,"result":null}"#, true),
        (r#"{"jsonrpc":"2.0","id":$ID,"error":{"code":-1,"message":"x"},"result":null}"#, false),
        (r#"{"jsonrpc":"2.0","id":$ID,"error":{"code":-1}}"#, false),
        (r#"{"result":{},"id":"$ID"}"#, true),
    ];
    let mut session = session("ids-5").config("reliability: {idempotent_default: false}").start();
    for (number, (frame, _)) in loose.iter().enumerate() {
        let id = number.to_string();
        let answer = session.ask(&raw(&id, &[frame]));
        assert_eq!(answer.text(), frame.replace("\"$ID\"", "$ID").replace("$ID", &id));
    }
    session.settle();
    let ended = session.finish();
    let failed = ended.stderr.to_lowercase().matches("failed").count();
    let expected = loose.iter().filter(|(_, good)| !good).count();
    assert!(failed >= expected, "{expected} of these calls failed: {}", ended.stderr);
}

#[test]
fn ids_5_an_error_without_id_is_relayed_and_ends_nothing() {
    let mut session = session("ids-5-without").start();
    let loose = r#"{"jsonrpc":"2.0","error":{"code":-32600,"message":"x"}}"#;
    let with_null = r#"{"jsonrpc":"2.0","id":null,"error":{"code":-32700,"message":"y"}}"#;
    session.send(&raw("1", &[loose, with_null, r#"{"jsonrpc":"2.0","id":$ID,"result":{}}"#]));
    assert_eq!(session.relay.next().text(), loose);
    assert_eq!(session.relay.next().text(), with_null);
    assert_eq!(session.relay.next().text(), r#"{"jsonrpc":"2.0","id":1,"result":{}}"#);
    session.finish();
}

#[test]
fn ids_6_what_is_not_ours_to_read_passes_unread() {
    let lines = [
        concat!(
            r#"{"jsonrpc":"2.0","id":0,"x-top":[1, 2],"method":"initialize","params":{"protocolVersion":"2025-11-25","#,
            r#""capabilities":{"sampling":{},"x-new":{"a":[1]}},"clientInfo":{"name":"t","version":"1","x":null}}}"#
        ),
        r#"{ "method" : "vendor/foo", "params":[1,{"a":null}], "id" : 0, "jsonrpc":"1.0" }"#,
        r#"{"id":0,"method":"vendor/bar","trailing":"x"}"#,
        r#"{"jsonrpc":"2.0","id":0,"method":"x/echo","params":{"resultType":7,"_meta":{"progressToken":{"odd":1}}}}"#,
    ];
    let mut session = session("ids-6").start();
    for line in lines {
        session.ask(line);
    }
    let told = r#"{"jsonrpc":"2.0","x":1,"method":"notifications/vendor","params":{"b":1,"a":1.0}}"#;
    session.send(told);
    session.settle();
    let ended = session.finish();
    let frames: Vec<&String> = ended.seen.iter().filter(|note| note.starts_with('{')).collect();
    for (line, got) in lines.iter().zip(&frames) {
        assert_eq!(same_but_id(got, "0"), *line);
    }
    assert_eq!(*frames[lines.len()], told);
}
