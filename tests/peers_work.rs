//! The stand-in server does what the tests that lean on it take for granted.

use super::support::{Start, TempDir};

#[test]
fn arguments_come_back_as_the_bytes_that_were_sent() {
    let mut server = Start::server("").start();
    server.initialize();
    let arguments =
        r#"{"b":1e5,"a": 1.10,"big":9007199254740993,"d":1e400,"s":"\\u00e9\\ud800","c":-0}"#.replace("\\\\", "\\");
    let answer = server.ask(&format!(
        r#"{{"jsonrpc":"2.0","id":1.0,"method":"tools/call","params":{{"name":"echo","arguments":{arguments}}}}}"#
    ));
    assert_eq!(answer.at("result.structuredContent"), arguments);
    server.finish();
}

#[test]
fn held_answers_leave_in_the_order_that_was_asked_for() {
    let mut server = Start::server("").start();
    server.initialize();
    for (id, key) in [(1, "a"), (2, "b"), (3, "c")] {
        server.send(&format!(
            r#"{{"jsonrpc":"2.0","id":{id},"method":"tools/call","params":{{"name":"hold","arguments":{{"key":"{key}"}}}}}}"#
        ));
    }
    server.send(r#"{"jsonrpc":"2.0","id":4,"method":"x/release","params":{"keys":["c","a","b"]}}"#);
    let order: Vec<String> = (0..4).map(|_| server.next().at("id").to_string()).collect();
    assert_eq!(order, ["3", "1", "2", "4"]);
    server.finish();
}

#[test]
fn a_cancelled_call_is_not_answered_and_counted() {
    let mut server = Start::server("").start();
    server.initialize();
    server
        .send(r#"{"jsonrpc":"2.0","id":"s","method":"tools/call","params":{"name":"sleep","arguments":{"ms":60000}}}"#);
    server.send(r#"{"jsonrpc":"2.0","method":"notifications/cancelled","params":{"requestId":"s"}}"#);
    let stats = server.ask(r#"{"jsonrpc":"2.0","id":2,"method":"x/stats"}"#);
    assert_eq!(stats.at("result.cancelled"), r#"["\"s\""]"#);
    assert_eq!(stats.at("result.tools.sleep"), "1");
    server.finish();
}

#[test]
fn a_question_waits_for_the_clients_answer() {
    let mut server = Start::server("").start();
    server.initialize();
    server
        .send(r#"{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"ask-roots","arguments":{"id":77}}}"#);
    assert_eq!(server.message("roots/list").at("id"), "77");
    server.send(r#"{"jsonrpc":"2.0","id":77,"result":{"roots":[]}}"#);
    let answer = server.answer("1");
    assert_eq!(answer.at("result.structuredContent.answers"), r#"[{"jsonrpc":"2.0","id":77,"result":{"roots":[]}}]"#);
    server.finish();
}

#[test]
fn a_listen_is_acknowledged_and_told_under_its_id() {
    let mut server = Start::server("").start();
    server.send(concat!(
        r#"{"jsonrpc":"2.0","id":"L","method":"subscriptions/listen","params":{"notifications":{"toolsListChanged":true},"#,
        r#""_meta":{"io.modelcontextprotocol/protocolVersion":"2026-07-28"}}}"#
    ));
    let acknowledged = server.message("notifications/subscriptions/acknowledged");
    assert_eq!(acknowledged.at("params._meta"), r#"{"io.modelcontextprotocol/subscriptionId":"L"}"#);
    server.ask(concat!(
        r#"{"jsonrpc":"2.0","id":2,"method":"x/notify","params":{"frames":[{"jsonrpc":"2.0","method":"#,
        r#""notifications/tools/list_changed","params":{"_meta":{"io.modelcontextprotocol/subscriptionId":"$SUB"}}}]}}"#
    ));
    let told = server.message("notifications/tools/list_changed");
    assert_eq!(told.at("params._meta"), r#"{"io.modelcontextprotocol/subscriptionId":"L"}"#);
    server.finish();
}

#[test]
fn the_spy_log_tells_lines_and_ends() {
    let dir = TempDir::new("spy");
    let log = dir.join("log");
    let server = Start::server("--exit-after 1 --no-final-newline").arg("--log").arg(&log);
    let output = server.run(b"{\"jsonrpc\":\"2.0\",\"id\":1,\"method\":\"ping\"}\n");
    assert_eq!((output.code(), output.stdout.as_str()), (0, "{\"jsonrpc\":\"2.0\",\"id\":1,\"result\":{}}\n"));
    let lines: Vec<String> =
        dir.read("log").lines().filter_map(|line| Some(line.split_once('\t')?.1.to_string())).collect();
    assert_eq!(lines, ["#start", r#"{"jsonrpc":"2.0","id":1,"method":"ping"}"#]);
}

#[test]
fn stdout_can_end_while_the_process_stays() {
    let mut server = Start::server("--close-stdout-after 1 --ignore-eof --ignore-term").start();
    server.initialize();
    assert!(server.next_or_end().is_none());
    server.signal(rustix::process::Signal::TERM);
    server.signal(rustix::process::Signal::KILL);
    assert_eq!(std::os::unix::process::ExitStatusExt::signal(&server.wait()), Some(9));
}
