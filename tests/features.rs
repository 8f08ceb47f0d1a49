//! Protocol features (hazards PRO-1 to PRO-5), through the real binary.
//!
//! Of PRO-4, a notification that an HTTP upstream refuses waits for that upstream.

use crate::support::session::{Session, call, cancel, ping, session};

const DISCOVER: &str = concat!(
    r#"{"jsonrpc":"2.0","id":"d","method":"server/discover","params":{"_meta":{"#,
    r#""io.modelcontextprotocol/protocolVersion":"2026-07-28","#,
    r#""io.modelcontextprotocol/clientInfo":{"name":"t","version":"1"},"#,
    r#""io.modelcontextprotocol/clientCapabilities":{}}}}"#
);

/// The opening works, and the server was asked for discovery this often.
fn opens(mut session: Session, probes: usize) {
    assert_eq!(session.relay.initialize().at("result.serverInfo.name"), "\"testpeer\"");
    assert_eq!(session.call("1", "echo", "{}").at("result.structuredContent"), "{}");
    let ended = session.finish();
    assert_eq!(ended.code, Some(0), "{}", ended.stderr);
    assert_eq!(ended.got("server/discover").len(), probes);
    assert_eq!(ended.queued("tool_name"), Vec::<String>::new(), "a dead letter");
}

#[test]
fn pro_1_a_probe_that_is_ignored_leaves_the_session_as_it_was() {
    let mut session = session("pro-1-silent").server("--silent-discover").start();
    session.send(DISCOVER);
    session.wait_seen("the probe", |seen| seen.iter().any(|note| note.contains("server/discover")));
    session.send(&cancel("\"d\""));
    opens(session, 1);
}

#[test]
fn pro_1_a_probe_that_stays_open_is_answered_when_the_session_ends() {
    let mut session = session("pro-1-open").server("--silent-discover").options("--timeout-ms 200").start();
    session.send(DISCOVER);
    session.send(&ping("1"));
    session.answer("1");
    session.relay.close_stdin();
    let error = session.answer("\"d\"");
    assert_eq!(error.at("error.data.mcprelay.class"), "\"upstream_closed\"", "{error:?}");
    assert_eq!(session.finish().code, Some(0));
}

#[test]
fn pro_1_a_server_that_does_not_survive_the_probe_is_started_again() {
    let mut session = session("pro-1-exit").server("--exit-on-discover").start();
    let error = session.ask(DISCOVER);
    assert_eq!(error.at("error.code"), "-32601", "{error:?}");
    session.relay.initialize();
    assert_eq!(session.server_pids().len(), 2, "two starts");
    // Only once: it has answered now, and a second probe that it does not survive ends the session.
    session.send(&DISCOVER.replace("\"d\"", "2"));
    let error = session.answer("2");
    assert!(error.at("error.message").contains("exited with status 1"), "{error:?}");
    assert_eq!(session.relay.wait().code(), Some(3));
    session.finish();
}

#[test]
fn pro_1_a_server_that_does_not_survive_the_probe_still_opens() {
    let mut session = session("pro-1-exit-open").server("--exit-on-discover").start();
    session.ask(DISCOVER);
    opens(session, 1);
}

#[test]
fn pro_1_an_error_to_the_probe_is_the_clients_to_read() {
    let mut session = session("pro-1-error").server("--discover-error -32602").start();
    let error = session.ask(DISCOVER);
    assert_eq!(error.text(), r#"{"jsonrpc":"2.0","id":"d","error":{"code":-32602,"message":"no discovery here"}}"#);
    opens(session, 1);
}

#[test]
fn pro_1_a_session_without_initialize_works() {
    let mut session = session("pro-1-modern").server("--era modern --name modern-one").start();
    let found = session.ask(DISCOVER);
    assert_eq!(found.at("result.supportedVersions"), r#"["2026-07-28"]"#);
    let meta = r#""_meta":{"io.modelcontextprotocol/protocolVersion":"2026-07-28"}"#;
    let answer = session.ask(&call("1", "echo", &format!("{{}},{meta}")));
    assert_eq!(answer.at("result.resultType"), "\"complete\"");
    let ended = session.finish();
    assert_eq!(ended.got("initialize"), []);
    assert_eq!(ended.logged("echo")[0].at("server"), "\"modern-one\"", "it is known by the name it gave");
}

fn list(id: &str, params: &str) -> String {
    format!(r#"{{"jsonrpc":"2.0","id":{id},"method":"tools/list","params":{params}}}"#)
}

#[test]
fn pro_2_cursors_pass_untouched_and_nothing_is_kept() {
    for (options, cursors) in [
        ("--page-size 8", ["8", "16"]),
        ("--page-size 8 --repeat-cursor", ["8", "8"]),
        ("--page-size 8 --empty-cursor", ["", "16"]),
    ] {
        let mut session = session("pro-2").server(options).start();
        let mut params = "{}".to_owned();
        for cursor in cursors {
            let page = session.ask(&list("1", &params));
            assert_eq!(page.at("result.nextCursor"), format!("\"{cursor}\""), "{options}");
            params = format!("{{\"cursor\":\"{cursor}\"}}");
        }
        // The same question again goes to the server again.
        let first = session.ask(&list("1", "{}"));
        assert_eq!(first.at("result.nextCursor"), format!("\"{}\"", cursors[0]));
        let got = session.finish().got("tools/list");
        let asked: Vec<&str> = got.iter().map(|frame| frame.at("params")).collect();
        assert_eq!(asked, ["{}", &format!("{{\"cursor\":\"{}\"}}", cursors[0]), "{}"]);
    }
}

#[test]
fn pro_2_our_own_listing_follows_pages_and_ends() {
    for options in ["--page-size 8", "--page-size 8 --empty-cursor", "--page-size 8 --repeat-cursor"] {
        let mut session = session("pro-2-own").server(options).start();
        // The last of the list, so that it stands on the last page.
        session.send(&call("1", "slow-drain", r#"{"count":0}"#));
        session.answer("1");
        session.call("2", "rpc-error", "{}");
        let ended = session.finish();
        let [id] = &ended.queued("id")[..] else { panic!("{}", ended.stderr) };
        let dry = ended.command(&format!("replay run {id} --dry-run"));
        assert_eq!(dry.code(), 0, "{options}: {dry:?}");
        let asked = ended.got_by_now("tools/list").len();
        assert!((1..=4).contains(&asked), "{options}: asked {asked} times");
    }
}

#[test]
fn pro_2_denied_tools_stay_in_the_list() {
    let tools = r#"[{"name":"a","x":1.0},{"name":"b"}]"#;
    let mut session = session("pro-2-policy")
        .config("policy: {default: deny, rules: [{tool: a, action: allow}]}")
        .server("--tools")
        .server_arg(tools)
        .start();
    assert_eq!(session.ask(&list("1", "{}")).at("result.tools"), tools);
    session.finish();
}

#[test]
fn pro_3_every_member_of_a_batch_is_judged() {
    for blanks in ["", "  \t "] {
        let mut session = session("pro-3").config("policy: {rules: [{tool: denied, action: deny}]}").start();
        session.send(&format!(
            r#"{blanks}[{},{},{{"jsonrpc":"2.0","method":"notifications/x"}},{}]"#,
            call("1", "denied", "{}"),
            ping("2"),
            call("\"3\"", "echo", "{\"a\":1.0}")
        ));
        let answer = session.relay.next();
        let members: Vec<serde_json::Value> = serde_json::from_slice(&answer.0).expect("one array");
        let member = |id: serde_json::Value| members.iter().find(|member| member["id"] == id).expect("a member");
        assert_eq!(members.len(), 3, "{answer:?}");
        assert_eq!(member(1.into())["error"]["code"], -32001, "{answer:?}");
        assert_eq!(member(2.into())["result"], serde_json::json!({}));
        assert!(answer.text().contains("\"structuredContent\":{\"a\":1.0}"), "{answer:?}");
        let ended = session.finish();
        let names: Vec<String> =
            ended.got("tools/call").iter().map(|frame| frame.at("params.name").to_owned()).collect();
        assert_eq!(names, ["\"echo\""], "what the server got");
        assert_eq!(ended.got("notifications/x").len(), 1);
        assert_eq!(ended.logged("denied").len(), 1, "{}", ended.stderr);
        assert_eq!(ended.query_history("SELECT kind, tool_name FROM audit").len(), 1);
    }
}

#[test]
fn pro_3_odd_batches() {
    let mut session = session("pro-3-odd").start();
    session.send("[]");
    assert_eq!(session.answer("null").at("error.code"), "-32600");
    // Only notifications: no answer at all.
    session.send(r#"[{"jsonrpc":"2.0","method":"notifications/x"}]"#);
    session.send(r#"[{"jsonrpc":"2.0","id":1,"method":"initialize","params":{}}]"#);
    let answer = session.relay.next();
    assert!(answer.text().starts_with(r#"[{"jsonrpc":"2.0","id":1,"error":{"code":-32600"#), "{answer:?}");
    // A member that was cancelled is left out; with all of them cancelled there is no array.
    session.send(&format!("[{},{}]", call("2", "hang", "{}"), ping("3")));
    session.send(&cancel("2"));
    assert_eq!(session.relay.next().text(), r#"[{"jsonrpc":"2.0","id":3,"result":{}}]"#);
    session.send(&format!("[{}]", call("4", "hang", "{}")));
    session.send(&cancel("4"));
    session.settle();
    assert_eq!(session.finish().got("initialize"), []);
}

#[test]
fn pro_3_batches_of_the_server_are_taken_apart() {
    let mut session = session("pro-3-server").start();
    let frame = r#"[{"jsonrpc":"2.0","method":"notifications/x","params":{"a":1.0}},{"id":$ID,"result":{"b":1e5}}, 7]"#;
    let frames = serde_json::Value::from(vec![frame]);
    session.send(&call("1", "raw", &format!("{{\"frames\":{frames}}}")));
    assert_eq!(session.relay.next().text(), r#"{"jsonrpc":"2.0","method":"notifications/x","params":{"a":1.0}}"#);
    assert_eq!(session.relay.next().text(), r#"{"id":1,"result":{"b":1e5}}"#);
    session.finish();
}

#[test]
fn pro_4_a_notification_is_never_answered() {
    let told = |name: &str| {
        format!(r#"{{"jsonrpc":"2.0","method":"tools/call","params":{{"name":"{name}","arguments":{{}}}}}}"#)
    };
    let mut session = session("pro-4").config("policy: {rules: [{tool: boom, action: deny}]}").start();
    session.send(&told("echo"));
    session.send(&told("boom"));
    session.send(r#"{"jsonrpc":"2.0","method":"notifications/unknown"}"#);
    session.send(r#"{"jsonrpc":"2.0","method":"no-notification-name"}"#);
    session.send(r#"{"jsonrpc":"2.0","method":"tools/call","params":{}}"#);
    session.settle();
    let ended = session.finish();
    let names: Vec<String> = ended.got("tools/call").iter().map(|frame| frame.at("params.name").to_owned()).collect();
    assert_eq!(names, ["\"echo\""], "what the server got");
    assert_eq!(ended.got("notifications/unknown").len(), 1);
    assert_eq!(ended.logged("boom")[0].at("decision"), "\"denied\"");
    assert_eq!(ended.logged("echo").len(), 1);
    assert_eq!(ended.query_history("SELECT kind, tool_name FROM audit"), ["denied|boom"]);
}

#[test]
fn pro_5_a_task_handle_is_a_result_and_tasks_are_not_cut_off() {
    let mut session = session("pro-5").options("--timeout-ms 200").start();
    session.relay.initialize();
    session.send(concat!(
        r#"{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"task","arguments":{"progress":2,"#,
        r#""idempotency_key":"k"},"task":{"ttl":60000},"_meta":{"progressToken":"t"}}}"#
    ));
    assert_eq!(session.relay.next().at("result.task.taskId"), "\"task-1\"");
    // The progress of the task goes on under the client's token.
    for step in ["1", "2"] {
        let progress = session.relay.next();
        assert_eq!((progress.at("params.progressToken"), progress.at("params.progress")), ("\"t\"", step));
    }
    session.ask(r#"{"jsonrpc":"2.0","id":2,"method":"tasks/get","params":{"taskId":"task-1"}}"#);
    let result =
        session.ask(r#"{"jsonrpc":"2.0","id":3,"method":"tasks/result","params":{"taskId":"task-1","ms":600}}"#);
    assert!(result.at("result").contains("task done"), "{result:?}");
    session.ask(r#"{"jsonrpc":"2.0","id":4,"method":"tasks/cancel","params":{"taskId":"task-1"}}"#);
    let ended = session.finish();
    assert_eq!(ended.got("tools/call").len(), 1, "one task");
    assert_eq!(ended.got("tools/call")[0].at("params.task"), r#"{"ttl":60000}"#);
    assert_eq!(ended.query_queue("SELECT key FROM executions"), Vec::<String>::new(), "a handle is no finished work");
    assert_eq!(ended.queued("tool_name"), Vec::<String>::new());
}

#[test]
fn pro_5_a_call_that_asks_for_input_has_not_failed() {
    let config = "reliability: {idempotent_default: true, retry: {base_ms: 0}}";
    let mut session = session("pro-5-input").server("--era modern").config(config).start();
    let meta = r#""_meta":{"io.modelcontextprotocol/protocolVersion":"2026-07-28"}"#;
    let answer = session.ask(&call("1", "input-required", &format!("{{\"idempotency_key\":\"k\"}},{meta}")));
    assert_eq!(answer.at("result.resultType"), "\"input_required\"");
    let given = r#""inputResponses":{"ok":{"action":"accept"}},"requestState":"state-1""#;
    let answer = session.ask(&call("2", "input-required", &format!("{{}},{given},{meta}")));
    assert_eq!(answer.at("result.structuredContent.state"), "\"state-1\"");
    let ended = session.finish();
    assert_eq!(ended.got("tools/call").len(), 2);
    assert_eq!(ended.query_queue("SELECT key FROM executions"), Vec::<String>::new());
    assert_eq!(ended.queued("tool_name"), Vec::<String>::new());
}
