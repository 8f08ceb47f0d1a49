//! Retries and side effects (hazards RET-1 to RET-3), through the real binary.

use crate::support::session::{Session, call, session};

const FAST: &str = "retry: {max_attempts: 3, base_ms: 1}";

/// Calls the tool that writes a line before it goes on as told; gives its error's `executed`.
fn side_effect(session: &mut Session, then: &str) -> String {
    let error = session.call("1", "side-effect", &format!(r#"{{"file":"effects","then":"{then}"}}"#));
    error.at("error.data.mcprelay.executed").to_owned()
}

#[test]
fn ret_1_work_whose_answer_is_lost_is_not_done_twice() {
    for (then, class) in [("crash", "transport"), ("hang", "timeout"), ("close-stdout", "transport")] {
        let config = format!("reliability: {{timeout_ms: 300, {FAST}}}");
        let mut session = session("ret-1").config(&config).start();
        assert_eq!(side_effect(&mut session, then), "\"maybe\"", "{then}: the client is told");
        assert_eq!(session.dir.read("effects"), "done\n", "{then}");
        let ended = session.finish();
        let stored = ended.queued("failure_class, failure_executed, failure_attempts, idempotent");
        assert_eq!(stored, [format!("{class}|maybe|1|0")], "{then}");
        let [line] = &ended.logged("side-effect")[..] else { panic!("{}", ended.stderr) };
        assert_eq!(line.at("error.executed"), "\"maybe\"", "{then}");
    }
}

#[test]
fn ret_1_an_error_of_the_tool_itself_is_not_repeated_either() {
    let mut session = session("ret-1-error").config(&format!("reliability: {{{FAST}}}")).start();
    let error = session.call("1", "side-effect", r#"{"file":"effects","then":"error"}"#);
    assert_eq!(error.at("error.code"), "-32000", "the server's own error: {error:?}");
    assert_eq!(session.dir.read("effects"), "done\n");
    session.finish();
}

#[test]
fn ret_1_a_tool_that_may_be_repeated_is() {
    let config = format!("reliability: {{{FAST}, per_tool: {{side-eff*: {{idempotent: true}}}}}}");
    let mut session = session("ret-1-idempotent").config(&config).start();
    session.call("1", "side-effect", r#"{"file":"effects","then":"error"}"#);
    assert_eq!(session.dir.read("effects"), "done\ndone\ndone\n");
    let stored = session.finish().queued("failure_class, failure_executed, failure_attempts, idempotent");
    assert_eq!(stored, ["upstream_error|maybe|3|1"]);
}

#[test]
fn ret_1_errors_that_no_repetition_cures_are_not_repeated() {
    let config = format!("reliability: {{idempotent_default: true, {FAST}}}");
    for code in ["-32700", "-32600", "-32601", "-32602", "-32020", "-32042", "-32099"] {
        let mut session = session("ret-1-final").config(&config).start();
        let error = session.call("1", "rpc-error", &format!("{{\"code\":{code},\"data\":{{\"a\":1.0}}}}"));
        let expected = format!(
            r#"{{"jsonrpc":"2.0","id":1,"error":{{"code":{code},"message":"rpc-error failed","data":{{"a":1.0}}}}}}"#
        );
        assert_eq!(error.text(), expected);
        assert_eq!(session.finish().got("tools/call").len(), 1, "{code}");
    }
}

/// How often a call that fails reaches the server, with these annotations and this configuration.
fn tries(annotations: &str, reliability: &str) -> usize {
    let tools = format!(r#"[{{"name":"rpc-error","inputSchema":{{}},"annotations":{annotations}}}]"#);
    let config = format!("reliability: {{{FAST}, {reliability}}}");
    let mut session = session("ret-2").config(&config).server("--tools").server_arg(&tools).start();
    session.ask(r#"{"jsonrpc":"2.0","id":0,"method":"tools/list"}"#);
    session.call("1", "rpc-error", "{}");
    session.finish().got("tools/call").len()
}

#[test]
fn ret_2_hints_allow_no_repetition_unless_they_are_trusted() {
    let all = r#"{"readOnlyHint":true,"idempotentHint":true,"destructiveHint":true}"#;
    let trusted = "trust_annotations: true";
    assert_eq!(tries(all, "trust_annotations: false"), 1);
    assert_eq!(tries(r#"{"idempotentHint":true}"#, trusted), 3);
    assert_eq!(tries(r#"{"readOnlyHint":true}"#, trusted), 3);
    assert_eq!(tries(r#"{"readOnlyHint":true,"destructiveHint":true}"#, trusted), 1, "contradictory");
    assert_eq!(tries("{}", trusted), 1);
    let denied = "trust_annotations: true, per_tool: {rpc-error: {idempotent: false}}";
    assert_eq!(tries(all, denied), 1, "the configuration wins");
}

#[test]
fn ret_3_executions_are_remembered_by_key_and_arguments_and_failures_are_not() {
    let keyed = |key: &str, rest: &str| format!("{{\"idempotency_key\":\"{key}\"{rest}}}");
    let mut session = session("ret-3").start();
    // Spelling and order do not matter, values do.
    session.call("1", "echo", &keyed("a", r#","x":1,"y":2"#));
    session.call("2", "echo", r#"{ "y":2.0, "x":1e0, "idempotency_key":"a"}"#);
    session.call("3", "echo", &keyed("b", r#","x":1,"y":3"#));
    session.call("4", "rpc-error", &keyed("c", ""));
    session.call("5", "boom", &keyed("d", ""));
    session.call("6", "echo", r#"{"no":"key"}"#);
    // Failed first, then done.
    session.call("7", "flaky", &keyed("e", r#","fail_times":1"#));
    session.call("8", "flaky", &keyed("e", r#","fail_times":1"#));
    // By _meta.
    session.send(&call("9", "echo", r#"{"x":1},"_meta":{"idempotencyKey":"f"}"#));
    session.answer("9");
    let ended = session.finish();
    let keys = ended.query_queue("SELECT tool_name, key, source FROM executions ORDER BY key");
    assert_eq!(keys, ["echo|a|live", "echo|b|live", "flaky|e|live", "echo|f|live"]);
    let hashes = ended.query_queue("SELECT DISTINCT arguments_hash FROM executions WHERE tool_name = 'echo'");
    assert_eq!(hashes.len(), 3);
}

#[test]
fn ret_3_the_same_arguments_spelled_otherwise_have_the_same_hash() {
    let mut session = session("ret-3-hash").start();
    for (number, arguments) in [
        r#"{"x":1,"y":[100,"a"]}"#,
        r#"{"y" : [1e2, "\u0061"], "x" : 1.0}"#,
        r#"{"x":1,"y":["a",100]}"#,
        r#"{"x":9007199254740993}"#,
        r#"{"x":9007199254740992}"#,
    ]
    .iter()
    .enumerate()
    {
        session.call(&number.to_string(), "rpc-error", arguments);
    }
    let hashes = session.finish().queued("arguments_hash");
    assert_eq!(hashes[0], hashes[1], "another spelling");
    let distinct: std::collections::BTreeSet<&String> = hashes.iter().collect();
    assert_eq!(distinct.len(), 4, "{hashes:?}");
}

#[test]
fn ret_3_a_replay_of_what_was_done_meanwhile_is_refused_without_force() {
    let config = "reliability: {timeout_ms: 300}";
    let mut session = session("ret-3-replay").config(config).start();
    let arguments = |ms: u32| format!("{{\"ms\":{ms},\"idempotency_key\":\"k\"}}");
    session.call("1", "sleep", &arguments(5_000));
    let key = session.call("2", "echo", "{\"idempotency_key\":\"k\"}");
    assert!(key.get("result").is_some(), "another tool: no guard between them");
    session.call("3", "sleep", &arguments(1));
    let ended = session.finish();
    let [id] = &ended.queued("id")[..] else { panic!("{}", ended.stderr) };
    let refused = ended.command(&format!("replay run {id}"));
    assert_eq!(refused.code(), 1, "{refused:?}");
    assert!(refused.stderr.contains("--force"), "{refused:?}");
    assert_eq!(ended.got_by_now("tools/call").len(), 3, "nothing was called");
    ended.command(&format!("replay run {id} --force --set ms=1"));
    assert_eq!(ended.got_by_now("tools/call").len(), 4);
}
