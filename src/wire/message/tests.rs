//! Which frames are messages, which are refused and to whom, and which are noise.

#![allow(clippy::wildcard_enum_match_arm, reason = "a test names what it wants and fails on the rest")]

use super::*;

fn client(text: &str) -> FromClient {
    from_client(text.as_bytes().to_vec())
}

fn refusal(text: &str) -> (i64, AnswerTo, String) {
    match client(text) {
        FromClient::Refused(refusal) => (refusal.code, refusal.to, refusal.message),
        other => panic!("{text} was let through: {other:?}"),
    }
}

fn id(text: &str) -> RequestId {
    RequestId::from_json(Json::parse(text.as_bytes()).expect("valid")).expect("an id")
}

fn to(text: &str) -> AnswerTo {
    AnswerTo::Request(id(text))
}

#[test]
fn a_request_keeps_its_bytes_and_names_its_parts() {
    let text = r#" {"jsonrpc":"2.0", "id" : "a\u0062", "method":"tools\/call","params":{"name":"x","_meta":{"k":1.0}},"x":[1]}"#;
    let FromClient::Message(message) = client(text) else { panic!("refused") };
    assert_eq!(message.bytes, text.as_bytes());
    assert_eq!(message.role, Role::Request { method: Method::ToolsCall, id: id("\"ab\"") });
    assert_eq!(message.id_span.map(|span| span.of(&message.bytes)), Some(&br#""a\u0062""#[..]));
    assert_eq!(message.params_meta().map(Json::text), Some(&br#"{"k":1.0}"#[..]));
    assert_eq!(message.method_name().as_deref(), Some("tools/call"));
}

#[test]
fn frm_5_a_line_that_is_no_json_is_a_parse_error_for_nobody_in_particular() {
    for text in ["not json", r#"{"jsonrpc":"2.0""#, "[1,", "{\"id\":1,\"method\":\"a\"} x"] {
        let (code, to, message) = refusal(text);
        assert_eq!((code, to), (PARSE_ERROR, AnswerTo::Unknown), "{text}");
        assert!(message.contains("at byte"), "{message}");
    }
}

#[test]
fn json_that_is_no_message_is_an_invalid_request() {
    for text in ["42", "\"x\"", "null", "{}", "{\"level\":\"info\"}", "[]"] {
        assert_eq!((refusal(text).0, refusal(text).1), (INVALID_REQUEST, AnswerTo::Unknown), "{text}");
    }
    assert_eq!((refusal("{\"id\":4}").0, refusal("{\"id\":4}").1), (INVALID_REQUEST, to("4")));
    assert_eq!(refusal(r#"{"id":4,"method":7}"#).1, to("4"));
    assert_eq!(refusal(r#"{"method":7}"#).1, AnswerTo::Unknown);
}

#[test]
fn ids_2_a_null_id_is_not_a_missing_one() {
    let text = r#"{"jsonrpc":"2.0","id":null,"method":"tools/call","params":{"name":"denied_tool","arguments":{}}}"#;
    assert_eq!((refusal(text).0, refusal(text).1), (INVALID_REQUEST, AnswerTo::Unknown));
    let FromClient::Message(message) = client(r#"{"jsonrpc":"2.0","method":"tools/call"}"#) else { panic!("refused") };
    assert_eq!(message.role, Role::Notification { method: Method::ToolsCall });
}

#[test]
fn jsn_3_a_repeated_member_is_refused_and_named() {
    let (code, answer, message) = refusal(r#"{"id":1,"method":"ping","method":"tools/call"}"#);
    assert_eq!((code, answer), (INVALID_REQUEST, to("1")));
    assert_eq!(message, "member \"method\" occurs twice at top level");
    assert_eq!(refusal(r#"{"id":1,"id":2,"method":"ping"}"#).1, AnswerTo::Unknown);
    assert_eq!(refusal(r#"{"id":1,"method":"x","params":{"name":"a","n\u0061me":"b"}}"#).1, to("1"));
    assert_eq!(refusal(r#"{"method":"n","params":{"a":1,"a":1}}"#).1, AnswerTo::Nobody);
    let deep = r#"{"id":1,"method":"M","params":{"arguments":{"path":"/ok","path":"/etc/passwd"}}}"#;
    assert_eq!(refusal(&deep.replace('M', "tools/call")).1, to("1"));
    assert!(matches!(client(deep), FromClient::Message(_)), "only a tool call is searched to the bottom");
}

#[test]
fn a_refused_response_names_the_request_it_leaves_open() {
    let FromClient::Refused(refusal) = client(r#"{"id":5,"result":1,"result":2}"#) else { panic!("let through") };
    assert_eq!((refusal.to, refusal.response_to), (AnswerTo::Nobody, Some(id("5"))));
}

#[test]
fn jsn_5_depth_is_limited_for_clients_alone() {
    let nested = |depth: usize| {
        format!(r#"{{"id":1,"method":"x","params":{{"a":{}{}}}}}"#, "[".repeat(depth - 2), "]".repeat(depth - 2))
    };
    assert!(matches!(client(&nested(CLIENT_DEPTH_MAX)), FromClient::Message(_)));
    assert_eq!(refusal(&nested(CLIENT_DEPTH_MAX + 1)).1, to("1"));
    assert_eq!(refusal(&nested(100_000)).0, INVALID_REQUEST);
    assert!(matches!(from_upstream(nested(100_000).into_bytes()), FromUpstream::Message(_)));
}

#[test]
fn jsn_6_a_number_of_any_length_is_no_obstacle() {
    let text = format!(r#"{{"jsonrpc":"2.0","id":1,"method":"ping","x":{}}}"#, "1".repeat(5_000));
    assert!(matches!(client(&text), FromClient::Message(_)));
}

#[test]
fn pro_3_each_member_of_a_batch_is_read_by_the_same_rules() {
    let text = r#"  [{"id":1,"method":"tools/call","params":{"name":"a"}}, 7, {"method":"n"}, {"id":2,"method":"initialize"}]"#;
    let FromClient::Batch(members) = client(text) else { panic!("no batch") };
    assert!(matches!(&members[0], Ok(Message { role: Role::Request { method: Method::ToolsCall, .. }, .. })));
    assert!(matches!(&members[1], Err(Refusal { code: INVALID_REQUEST, to: AnswerTo::Unknown, .. })));
    assert!(matches!(&members[2], Ok(Message { role: Role::Notification { .. }, .. })));
    assert!(matches!(&members[3], Err(Refusal { code: INVALID_REQUEST, to: AnswerTo::Request(_), .. })));
    let many = format!("[{}]", vec!["1"; BATCH_MEMBERS_MAX + 1].join(","));
    assert_eq!(refusal(&many).0, INVALID_REQUEST);
}

#[test]
fn frm_10_json_that_is_no_message_is_noise() {
    for text in [
        "Server started on stdio",
        "\x1b[32m[db] Connected\x1b[0m",
        "{}",
        "[]",
        "42",
        "\"ready\"",
        "null",
        "[1,2]",
        r#"{"level":"info","msg":"x"}"#,
        r#"{"level":"error","error":{"stack":"x"}}"#,
        r#"{"id":1}"#,
        r#"{"method":7}"#,
        r#"{"id":1,"id":2,"result":{}}"#,
        r#"{"jsonrpc":"2.0","id":7,"resu"#,
    ] {
        assert_eq!(from_upstream(text.as_bytes().to_vec()), FromUpstream::Noise(text.as_bytes().to_vec()), "{text}");
    }
}

#[test]
fn ids_5_loose_envelopes_are_answers() {
    let role = |text: &str| match from_upstream(text.as_bytes().to_vec()) {
        FromUpstream::Message(message) => (message.role.clone(), message.error().is_some()),
        other => panic!("{text}: {other:?}"),
    };
    let response = |n: &str| Role::Response { id: Some(id(n)) };
    assert_eq!(role(r#"{"id":1,"result":{},"error":null}"#), (response("1"), false));
    assert_eq!(role(r#"{"jsonrpc":"2.0","id":2,"result":null}"#), (response("2"), false));
    assert_eq!(
        role(r#"{"jsonrpc":"2.0","id":3,"error":{"code":-1,"message":"x"},"result":null}"#),
        (response("3"), true)
    );
    assert_eq!(role(r#"{"jsonrpc":"2.0","error":{"code":-32600,"message":"x"}}"#), (Role::Response { id: None }, true));
    assert_eq!(role(r#"{"jsonrpc":"2.0","id":null,"error":{"code":-32600}}"#), (Role::Response { id: None }, true));
    assert_eq!(role(r#"{"id":null,"method":"x"}"#).0, Role::Notification { method: Method::Other });
}

#[test]
fn a_frame_that_is_too_long_is_known_by_its_first_bytes() {
    let sniffed = sniff(br#"{"jsonrpc":"2.0","id":17,"method":"x","params":{"id":99,"a":"xxxx"#);
    assert_eq!((sniffed.id, sniffed.has_method), (Some(id("17")), true));
    let sniffed = sniff(br#"{"result":{"id":5,"content":["xx"#);
    assert_eq!((sniffed.id, sniffed.has_method), (None, false));
    assert_eq!(sniff(br#"{"id":12"#).id, None, "the number may go on");
    assert_eq!(sniff("{\"id\":\"é\",\"result\":\"é".as_bytes().split_last().expect("bytes").1).id, Some(id("\"é\"")));
    assert_eq!(sniff(b"xxxx").id, None);
}

#[test]
fn an_id_at_the_end_of_a_long_frame_is_found() {
    let found = |text: &str| sniff_tail(text.as_bytes());
    assert_eq!(found(r#"xx"}]},"jsonrpc":"2.0","id":17}"#), Some(id("17")));
    assert_eq!(found(r#"xx"}]}, "id" : "a" } "#), Some(id("\"a\"")));
    for text in [r#"{"a":{"id":5}}"#, r#"{"id":5,"a":1}"#, r#""text \"id\":5}"#, r#"{"id":}"#, r#""id":5]"#, "", "}"] {
        assert_eq!(found(text), None, "{text}");
    }
}

#[test]
fn jsn_3_a_name_in_another_case_than_the_protocols_is_refused() {
    let refused = [
        r#"{"id":1,"method":"ping","Method":"tools/call","params":{"name":"x"}}"#,
        r#"{"id":1,"method":"tools/call","params":{"name":"x"},"PARAMS":{"name":"y"}}"#,
        r#"{"id":1,"method":"tools/call","params":{"name":"x","N\u0061me":"y"}}"#,
        r#"{"id":1,"method":"tools/call","params":{"name":"x","arguments":{},"Arguments":{}}}"#,
        r#"{"id":1,"method":"tools/call","params":{"name":"x","_Meta":{}}}"#,
        "{\"id\":1,\"method\":\"tools/call\",\"param\u{17f}\":{\"name\":\"x\"}}",
    ];
    for text in refused {
        let (code, answer_to, message) = refusal(text);
        assert_eq!((code, answer_to), (INVALID_REQUEST, to("1")), "{text}");
        assert!(message.contains("in another case"), "{message}");
    }
    // Nothing depends on the case of these.
    for text in [
        r#"{"id":1,"method":"prompts/get","params":{"name":"x","Name":"y"}}"#,
        r#"{"id":1,"method":"tools/call","params":{"name":"x","arguments":{"Name":1,"name":2}},"X":1}"#,
    ] {
        assert!(matches!(client(text), FromClient::Message(_)), "{text}");
    }
}

#[test]
fn a_carriage_return_inside_a_frame_becomes_a_blank() {
    // Python's text mode ends a line there, and would read the inner line as a call that nobody judged.
    let text = "{\"method\":\"x\",\"params\":[\r{\"id\":5,\"method\":\"tools/call\"}\r]\r}";
    let FromClient::Message(message) = client(text) else { panic!("refused") };
    assert_eq!(message.bytes, text.replace('\r', " ").as_bytes());
    let FromClient::Batch(members) = client(&format!("[\r{text}\r]")) else { panic!("refused") };
    assert_eq!(members[0].as_ref().map(|message| &message.bytes[..]), Ok(text.replace('\r', " ").as_bytes()));
}
