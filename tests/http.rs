//! Remote servers over HTTP, through the real binary: hazards HTT-3 to HTT-13 and TIM-6.

use std::net::{TcpStream, ToSocketAddrs as _};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use crate::support::http::{HttpServer, STREAM, Seen, json, legacy, ok, put, reply, reset};
use crate::support::session::{Session, call, cancel, session};

pub(crate) const INITIALIZE: &str = r#"{"jsonrpc":"2.0","id":"init","method":"initialize","params":{"protocolVersion":"2025-11-25","capabilities":{},"clientInfo":{"name":"c","version":"1"}}}"#;
pub(crate) const INITIALIZED: &str = r#"{"jsonrpc":"2.0","method":"notifications/initialized"}"#;
pub(crate) const FAST: &str = "reliability: {timeout_ms: 20000, retry: {max_attempts: 3, base_ms: 1}}";

/// A session with a legacy server that answers everything but its handshake as `handler` does.
pub(crate) fn opened(
    name: &str,
    config: &str,
    handler: impl Fn(&Seen, &mut TcpStream) -> bool + Send + Sync + 'static,
) -> (Session, HttpServer) {
    let server = HttpServer::start(move |seen, stream| match legacy(seen, "s1") {
        Some(bytes) => put(stream, bytes),
        None => handler(seen, stream),
    });
    let mut session = session(name).config(config).remote("http", &server.url()).start();
    session.ask(INITIALIZE);
    session.send(INITIALIZED);
    (session, server)
}

/// A modern call.
fn modern_call(id: &str, tool: &str, arguments: &str) -> String {
    let meta =
        r#"{"io.modelcontextprotocol/protocolVersion":"2026-07-28","io.modelcontextprotocol/clientCapabilities":{}}"#;
    format!(
        r#"{{"jsonrpc":"2.0","id":{id},"method":"tools/call","params":{{"name":"{tool}","arguments":{arguments},"_meta":{meta}}}}}"#
    )
}

pub(crate) fn outcome(frame: &crate::support::process::Frame) -> String {
    let field = |name| frame.get(&format!("error.data.mcprelay.{name}")).unwrap_or("none").replace('"', "");
    format!("{} {} {}", field("class"), field("executed"), field("attempts"))
}

#[test]
fn a_legacy_session_is_opened_used_and_ended() {
    let (mut session, server) = opened("http-legacy", FAST, |seen, stream| put(stream, json(&ok(seen))));
    let answer = session.call("7", "echo", r#"{"n":1.0}"#);
    assert_eq!(answer.text(), r#"{"jsonrpc":"2.0","id":7,"result":{"content":[],"ok":true}}"#);
    server.wait("a listening stream", |seen| seen.iter().any(|seen| seen.method == "GET"));
    let ended = session.finish();
    assert_eq!(ended.code, Some(0), "{}", ended.stderr);
    let seen = server.seen();
    let of =
        |method: &str| seen.iter().find(|seen| seen.rpc() == method).unwrap_or_else(|| panic!("{method}: {seen:#?}"));
    let first = of("initialize");
    assert_eq!((first.header("mcp-session-id"), first.header("mcp-protocol-version")), (None, None));
    assert_eq!(first.header("accept"), Some("application/json, text/event-stream"));
    assert_eq!(first.header("content-type"), Some("application/json"));
    for later in ["notifications/initialized", "tools/call"] {
        assert_eq!(of(later).header("mcp-session-id"), Some("s1"), "{later}");
        assert_eq!(of(later).header("mcp-protocol-version"), Some("2025-11-25"), "{later}");
        assert_eq!(of(later).header("mcp-method"), None, "{later}");
    }
    assert!(of("tools/call").body.contains(r#""arguments":{"n":1.0}"#), "the client's own bytes");
    let get = seen.iter().find(|seen| seen.method == "GET").expect("a listening stream was asked for");
    assert_eq!((get.header("accept"), get.header("mcp-session-id")), (Some("text/event-stream"), Some("s1")));
    let delete = seen.last().expect("requests");
    assert_eq!((delete.method.as_str(), delete.header("mcp-session-id")), ("DELETE", Some("s1")));
    let [line] = &ended.logged("echo")[..] else { panic!("{}", ended.stderr) };
    assert_eq!(line.at("decision"), "\"allowed\"");
}

#[test]
fn tim_6_what_follows_initialized_waits_until_it_is_taken() {
    let taken = Arc::new(AtomicUsize::new(0));
    let own = Arc::clone(&taken);
    let server = HttpServer::start(move |seen, stream| match seen.rpc().as_str() {
        "notifications/initialized" => {
            std::thread::sleep(Duration::from_millis(150));
            own.store(1, Ordering::SeqCst);
            put(stream, reply(202, "", ""))
        }
        "initialize" => put(stream, legacy(seen, "s1").expect("an answer")),
        _ if seen.method != "POST" => put(stream, reply(405, "", "")),
        _ if own.load(Ordering::SeqCst) == 0 => put(stream, reply(400, "", "")),
        _ => put(stream, json(&ok(seen))),
    });
    let mut session = session("tim-6").remote("http", &server.url()).start();
    session.ask(INITIALIZE);
    let list = r#"{"jsonrpc":"2.0","id":1,"method":"tools/list"}"#;
    let other = r#"{"jsonrpc":"2.0","id":2,"method":"resources/list"}"#;
    session.send(&format!("{INITIALIZED}\n{list}\n{other}"));
    for id in ["1", "2"] {
        assert!(session.answer(id).get("result").is_some());
    }
    session.finish();
}

#[test]
fn answers_come_as_streams_too_with_what_belongs_to_them() {
    let (mut session, _server) = opened("http-sse", FAST, |seen, stream| {
        let token = seen.json()["params"]["_meta"]["progressToken"].to_string();
        let progress = format!(
            "event: message\r\ndata: {{\"jsonrpc\":\"2.0\",\"method\":\"notifications/progress\",\r\ndata: \"params\":{{\"progressToken\":{token},\"progress\":1}}}}\r\n\r\n"
        );
        let _ = put(stream, STREAM)
            && put(stream, ": hello\n\n")
            && put(stream, progress)
            && put(stream, format!("data:{}\n\n", ok(seen)));
        false
    });
    let line =
        r#"{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"t","_meta":{"progressToken":"mine"}}}"#;
    session.send(line);
    let progress = session.relay.next();
    assert_eq!(progress.at("params.progressToken"), "\"mine\"");
    assert!(!progress.text().contains('\n'));
    assert_eq!(session.answer("1").at("result.ok"), "true");
    session.finish();
}

#[test]
fn a_request_of_the_server_inside_a_call_is_answered_by_a_post_of_its_own() {
    let answered = Arc::new(std::sync::Mutex::new(None::<String>));
    let (own, given) = (Arc::clone(&answered), Arc::clone(&answered));
    let server = HttpServer::start(move |seen, stream| {
        if seen.method == "POST" && seen.json().get("result").is_some() {
            *given.lock().expect("no panic") = Some(seen.body.clone());
            return put(stream, reply(202, "", ""));
        }
        if let Some(bytes) = legacy(seen, "s1") {
            return put(stream, bytes);
        }
        put(stream, STREAM);
        put(stream, "data: {\"jsonrpc\":\"2.0\",\"id\":5,\"method\":\"elicitation/create\",\"params\":{}}\n\n");
        while own.lock().expect("no panic").is_none() {
            std::thread::sleep(Duration::from_millis(2));
        }
        put(stream, format!("data: {}\n\n", ok(seen)));
        false
    });
    let mut session = session("http-elicit").remote("http", &server.url()).start();
    session.ask(INITIALIZE);
    session.send(INITIALIZED);
    session.send(&call("1", "t", "{}"));
    let question = session.relay.next();
    assert_eq!(question.at("method"), "\"elicitation/create\"");
    session.send(&format!(r#"{{"jsonrpc":"2.0","id":{},"result":{{"action":"accept"}}}}"#, question.at("id")));
    session.answer("1");
    let given = answered.lock().expect("no panic").clone().expect("an answer");
    assert_eq!(given, r#"{"jsonrpc":"2.0","id":5,"result":{"action":"accept"}}"#);
    session.finish();
}

#[test]
fn htt_5_any_success_will_do_for_what_has_no_answer() {
    let chunked = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n".to_vec();
    for (name, bytes) in [
        ("202", reply(202, "", "")),
        ("empty", reply(200, "", "")),
        ("null", reply(200, "Content-Type: application/json", "null")),
        ("text", reply(200, "Content-Type: text/plain", "ok")),
        ("204", b"HTTP/1.1 204 No Content\r\n\r\n".to_vec()),
        ("chunked", chunked),
    ] {
        let server = HttpServer::start(move |seen, stream| match seen.rpc().as_str() {
            "notifications/initialized" => put(stream, &bytes),
            _ => put(stream, legacy(seen, "s1").unwrap_or_else(|| json(&ok(seen)))),
        });
        let mut session = session("htt-5").remote("http", &server.url()).start();
        session.ask(INITIALIZE);
        session.send(INITIALIZED);
        assert_eq!(session.call("1", "t", "{}").at("result.ok"), "true", "{name}");
        let ended = session.finish();
        assert!(!ended.stderr.contains("notifications/initialized"), "{name}: {}", ended.stderr);
    }
}

#[test]
fn htt_6_a_session_that_is_gone_is_renewed_once_for_all_and_nothing_runs_twice() {
    const CALLS: usize = 10;
    let handshakes = Arc::new(AtomicUsize::new(0));
    let own = Arc::clone(&handshakes);
    let server = HttpServer::start(move |seen, stream| {
        if seen.rpc() == "initialize" {
            let count = own.fetch_add(1, Ordering::SeqCst) + 1;
            return put(stream, legacy(seen, &format!("s{count}")).expect("an answer"));
        }
        // The first session is forgotten once the handshake is over.
        let known = seen.header("mcp-session-id") == Some("s2");
        if seen.method == "POST"
            && !known
            && !seen.rpc().starts_with("notifications/initialized")
            && seen.rpc() != "logging/setLevel"
        {
            return put(stream, reply(404, "", ""));
        }
        put(stream, legacy(seen, "").unwrap_or_else(|| json(&ok(seen))))
    });
    let mut session = session("htt-6").config(FAST).remote("http", &server.url()).start();
    session.ask(INITIALIZE);
    session.send(INITIALIZED);
    session.ask(r#"{"jsonrpc":"2.0","id":"level","method":"logging/setLevel","params":{"level":"debug"}}"#);
    for id in 0..CALLS {
        session.send(&call(&id.to_string(), "write", "{}"));
    }
    for id in 0..CALLS {
        assert_eq!(session.answer(&id.to_string()).at("result.ok"), "true");
    }
    let ended = session.finish();
    let inits = server.got("initialize");
    assert_eq!(inits.len(), 2, "one new handshake for all");
    assert_eq!(inits[1].header("mcp-session-id"), None);
    assert_eq!(server.got("notifications/initialized").len(), 2);
    let levels = server.got("logging/setLevel");
    assert_eq!(levels.last().and_then(|seen| seen.header("mcp-session-id").map(str::to_owned)).as_deref(), Some("s2"));
    let executed: Vec<Seen> =
        server.got("tools/call").into_iter().filter(|seen| seen.header("mcp-session-id") == Some("s2")).collect();
    assert_eq!(executed.len(), CALLS, "each ran once");
    for line in ended.logged("write") {
        assert_eq!(line.at("attempt"), "1", "the client and its records see one attempt");
    }
}

#[test]
fn htt_6_a_404_without_a_session_and_an_error_404_inside_a_success_begin_no_session() {
    let server = HttpServer::start(|_, stream| put(stream, reply(404, "", "")));
    let mut session = session("htt-6-url").config(FAST).remote("http", &server.url()).start();
    let answer = session.ask(INITIALIZE);
    assert!(answer.at("error.message").contains("status 404"), "{answer:?}");
    session.finish();

    let (mut session, server) = opened("htt-6-inside", FAST, |seen, stream| {
        put(stream, json(&format!(r#"{{"jsonrpc":"2.0","id":{},"error":{{"code":404,"message":"m"}}}}"#, seen.id())))
    });
    assert_eq!(session.call("1", "t", "{}").at("error.code"), "404");
    session.finish();
    assert_eq!((server.got("initialize").len(), server.got("tools/call").len()), (1, 1));
}

#[test]
fn htt_9_a_request_on_a_kept_connection_that_is_reset_runs_once() {
    let used: Arc<std::sync::Mutex<std::collections::BTreeSet<usize>>> = Arc::default();
    let (mut session, server) = opened("htt-9", FAST, move |seen, stream| {
        if used.lock().expect("no panic").insert(seen.connection) {
            return put(stream, json(&ok(seen)));
        }
        reset(stream);
        false
    });
    // Which connection a call gets is the relay's own choice; sooner or later one is used again.
    let failed = (1..100).find_map(|id| {
        let answer = session.call(&id.to_string(), "write", "{}");
        answer.get("error").is_some().then_some((id, answer))
    });
    let (calls, answer) = failed.expect("a kept connection");
    assert_eq!(outcome(&answer), "transport maybe 1", "{answer:?}");
    session.finish();
    assert_eq!(server.got("tools/call").len(), calls, "no call ran twice");
}

#[test]
fn what_was_not_sent_is_tried_again_whatever_the_tool() {
    // A port where nobody listens.
    let free = std::net::TcpListener::bind("127.0.0.1:0").expect("a port").local_addr().expect("an address");
    let mut session = session("http-refused").config(FAST).remote("http", &format!("http://{free}/mcp")).start();
    let answer = session.call("1", "write", "{}");
    assert_eq!(outcome(&answer), "transport no 3", "{answer:?}");
    assert!(answer.at("error.message").contains("onnection refused"), "{answer:?}");
    let ended = session.finish();
    assert_eq!(ended.queued("failure_class, failure_executed, failure_attempts"), ["transport|no|3"]);
}

#[test]
fn htt_7_refused_credentials_are_final_and_recorded() {
    for (status, challenge, text) in [
        (401, r#"Bearer error="invalid_token""#, "the credential is not valid"),
        (403, r#"Bearer error="insufficient_scope", scope="files:write""#, "asked for: files:write"),
    ] {
        let config = format!("{FAST}\nupstream: {{http: {{headers: {{Authorization: Bearer t0psecret}}}}}}");
        let (mut session, server) = opened("htt-7", &config, move |_, stream| {
            put(stream, reply(status, &format!("WWW-Authenticate: {challenge}"), "<html>no</html>"))
        });
        let answer = session.call("1", "read", "{}");
        assert_eq!(outcome(&answer), "non_retryable no 1", "{answer:?}");
        assert!(answer.at("error.message").contains(text), "{answer:?}");
        assert!(!answer.text().contains("html"), "{answer:?}");
        let ended = session.finish();
        assert_eq!(server.got("tools/call").len(), 1);
        let call = &server.got("tools/call")[0];
        assert_eq!(call.header("authorization"), Some("Bearer t0psecret"));
        let inspected = ended.command(&format!("replay inspect {} --json", ended.queued("id")[0]));
        assert!(inspected.stdout.contains("www_authenticate"), "{inspected:?}");
        let everything = format!(
            "{}{:?}",
            ended.stderr,
            std::fs::read(ended.dir.join(".mcprelay/queue.db"))
                .map(|bytes| String::from_utf8_lossy(&bytes).into_owned())
        );
        assert!(!everything.contains("t0psecret"), "the credential is nowhere");
    }
}

#[test]
fn htt_8_a_wait_that_the_server_asks_for_is_kept() {
    let calls = Arc::new(AtomicUsize::new(0));
    let own = Arc::clone(&calls);
    let config = "reliability: {idempotent_default: true, retry: {max_attempts: 3, base_ms: 1}}";
    let (mut session, server) = opened("htt-8", config, move |seen, stream| match own.fetch_add(1, Ordering::SeqCst) {
        0 => put(stream, reply(429, "Retry-After: 1", "")),
        _ => put(stream, json(&ok(seen))),
    });
    let before = std::time::Instant::now();
    assert_eq!(session.call("1", "t", "{}").at("result.ok"), "true");
    assert!(before.elapsed() >= Duration::from_secs(1), "{:?}", before.elapsed());
    session.finish();
    assert_eq!(server.got("tools/call").len(), 2);
}

#[test]
fn htt_8_a_wait_beyond_the_limit_fails_at_once_and_pages_are_no_results() {
    let config = "reliability: {idempotent_default: true, retry: {max_attempts: 3, base_ms: 1}}";
    let (mut session, server) =
        opened("htt-8-long", config, |_, stream| put(stream, reply(503, "Retry-After: 86400", "")));
    let answer = session.call("1", "t", "{}");
    assert!(answer.at("error.message").contains("86400000 ms"), "{answer:?}");
    session.finish();
    assert_eq!(server.got("tools/call").len(), 1);

    let (mut session, server) = opened("htt-8-page", FAST, |_, stream| {
        put(stream, reply(502, "Content-Type: text/html", "<html>{\"result\":1}</html>"))
    });
    let answer = session.call("1", "t", "{}");
    assert_eq!(outcome(&answer), "transport maybe 1");
    assert!(!answer.text().contains("html"));
    session.finish();
    assert_eq!(server.got("tools/call").len(), 1);

    let (mut session, _server) =
        opened("htt-8-200", FAST, |_, stream| put(stream, reply(200, "Content-Type: text/html", "<html></html>")));
    let answer = session.call("1", "t", "{}");
    assert!(answer.at("error.message").contains("text/html"), "{answer:?}");
    session.finish();
}

#[test]
fn htt_3_a_stream_that_breaks_is_resumed_where_it_broke() {
    let asked: Arc<std::sync::Mutex<Option<Seen>>> = Arc::default();
    let server = HttpServer::start(move |seen, stream| match (seen.method.as_str(), seen.header("last-event-id")) {
        ("GET", Some("7")) => {
            let asked = asked.lock().expect("no panic").take().expect("a call before");
            let _ = put(stream, STREAM) && put(stream, format!("data: {}\n\n", ok(&asked)));
            false
        }
        ("POST", _) if seen.rpc() == "tools/call" => {
            *asked.lock().expect("no panic") = Some(seen.clone());
            let _ = put(stream, STREAM) && put(stream, "retry: 10\n\nid: 7\ndata: \n\n");
            false
        }
        _ => put(stream, legacy(seen, "s1").unwrap_or_else(|| reply(405, "", ""))),
    });
    let mut session = session("htt-3-a").config(FAST).remote("http", &server.url()).start();
    session.ask(INITIALIZE);
    session.send(INITIALIZED);
    assert_eq!(session.call("1", "write", "{}").at("result.ok"), "true");
    session.finish();
    assert_eq!(server.got("tools/call").len(), 1);
    let resumed: Vec<Seen> = server.seen().into_iter().filter(|seen| seen.header("last-event-id").is_some()).collect();
    assert_eq!(resumed.len(), 1);
    assert_eq!(resumed[0].header("mcp-session-id"), Some("s1"));
}

#[test]
fn htt_3_a_stream_that_cannot_be_resumed_ends_the_call_at_once() {
    for event in ["id: 7\ndata: \n\n", ": no id\n\n", ""] {
        let (mut session, server) = opened("htt-3-b", FAST, move |_, stream| {
            let _ = put(stream, STREAM) && put(stream, "retry: 10\n\n") && put(stream, event);
            false
        });
        let answer = session.call("1", "write", "{}");
        assert_eq!(outcome(&answer), "transport maybe 1", "{event:?}: {answer:?}");
        session.finish();
        assert_eq!(server.got("tools/call").len(), 1, "{event:?}");
    }
}

#[test]
fn a_modern_call_mirrors_its_body_and_is_cancelled_by_closing_its_stream() {
    let closed = Arc::new(AtomicUsize::new(0));
    let own = Arc::clone(&closed);
    let server = HttpServer::start(move |seen, stream| match seen.rpc().as_str() {
        "tools/list" => {
            let tool = |name: &str, kind: &str| {
                format!(
                    r#"{{"name":"{name}","inputSchema":{{"type":"object","properties":{{"region":{{"type":"{kind}","x-mcp-header":"Region"}}}}}}}}"#
                )
            };
            let tools = [tool("convert", "string"), tool("bad", "number")].join(",");
            put(
                stream,
                json(&format!(
                    r#"{{"jsonrpc":"2.0","id":{},"result":{{"resultType":"complete","tools":[{tools}],"ttlMs":0,"cacheScope":"private"}}}}"#,
                    seen.id()
                )),
            )
        }
        "tools/call" if seen.json()["params"]["arguments"]["region"] == "hang" => {
            use std::io::Read as _;
            let _ = put(stream, STREAM) && put(stream, ": working\n\n");
            // The stream ends when the client closes it.
            let _ = stream.read(&mut [0; 1]);
            own.fetch_add(1, Ordering::SeqCst);
            false
        }
        _ => put(stream, json(&ok(seen))),
    });
    let mut session = session("http-modern").config(FAST).remote("http", &server.url()).start();
    session.send(&modern_call("1", "convert", r#"{"region":"日本"}"#));
    assert_eq!(session.answer("1").at("result.ok"), "true");
    let calls = server.got("tools/call");
    let header = |name| calls[0].header(name);
    assert_eq!(header("mcp-protocol-version"), Some("2026-07-28"));
    assert_eq!(header("mcp-method"), Some("tools/call"));
    assert_eq!(header("mcp-name"), Some("convert"));
    assert_eq!(header("mcp-param-region"), Some("=?base64?5pel5pys?="));
    assert_eq!(header("mcp-session-id"), None);
    let lists = server.got("tools/list");
    assert_eq!(lists.len(), 1, "the tools were listed for the first call");
    assert_eq!(lists[0].header("mcp-method"), Some("tools/list"));

    // The client's own listing lacks the tool that must not be offered.
    let meta =
        r#"{"io.modelcontextprotocol/protocolVersion":"2026-07-28","io.modelcontextprotocol/clientCapabilities":{}}"#;
    let listed =
        session.ask(&format!(r#"{{"jsonrpc":"2.0","id":2,"method":"tools/list","params":{{"_meta":{meta}}}}}"#));
    assert!(listed.text().contains("\"convert\"") && !listed.text().contains("\"bad\""), "{listed:?}");
    let refused = session.ask(&modern_call("3", "bad", "{}"));
    assert_eq!(outcome(&refused), "non_retryable no 1", "{refused:?}");

    session.send(&modern_call("4", "convert", r#"{"region":"hang"}"#));
    server.wait("the call", |seen| seen.iter().filter(|seen| seen.rpc() == "tools/call").count() == 2);
    session.send(&cancel("4"));
    crate::support::session::eventually("the end of the stream", || match closed.load(Ordering::SeqCst) {
        1 => Ok(()),
        _ => Err("still open".to_owned()),
    });
    let ended = session.finish();
    assert_eq!(server.got("notifications/cancelled").len(), 0, "closing the stream is the cancellation");
    assert!(ended.stderr.contains("tool \"bad\" is left out"), "{}", ended.stderr);
    assert!(server.seen().iter().all(|seen| seen.method == "POST"), "modern servers are only posted to");
}

#[test]
fn a_modern_server_that_finds_headers_wrong_is_asked_for_its_tools_once_more() {
    let listings = Arc::new(AtomicUsize::new(0));
    let own = Arc::clone(&listings);
    let server = HttpServer::start(move |seen, stream| match seen.rpc().as_str() {
        "tools/list" => {
            let name = if own.fetch_add(1, Ordering::SeqCst) == 0 { "Old" } else { "New" };
            let tool = format!(
                r#"{{"name":"t","inputSchema":{{"properties":{{"a":{{"type":"integer","x-mcp-header":"{name}"}}}}}}}}"#
            );
            put(stream, json(&format!(r#"{{"jsonrpc":"2.0","id":{},"result":{{"tools":[{tool}]}}}}"#, seen.id())))
        }
        _ if seen.header("mcp-param-new") != Some("7") => {
            let body = format!(
                r#"{{"jsonrpc":"2.0","id":{},"error":{{"code":-32020,"message":"Mcp-Param-New is missing"}}}}"#,
                seen.id()
            );
            put(stream, reply(400, "Content-Type: application/json", &body))
        }
        _ => put(stream, json(&ok(seen))),
    });
    let mut session = session("http-mismatch").config(FAST).remote("http", &server.url()).start();
    session.send(&modern_call("1", "t", r#"{"a":7.0}"#));
    assert_eq!(session.answer("1").at("result.ok"), "true");
    session.send(&modern_call("2", "t", r#"{"a":8}"#));
    assert_eq!(session.answer("2").at("error.code"), "-32020", "asked again once, then passed on");
    session.finish();
    assert_eq!((server.got("tools/list").len(), server.got("tools/call").len()), (3, 4));
}

#[test]
fn a_legacy_call_is_cancelled_by_a_notification() {
    let (mut session, server) = opened("http-cancel", FAST, |_, stream| {
        use std::io::Read as _;
        put(stream, STREAM);
        let _ = stream.read(&mut [0; 1]);
        false
    });
    session.send(&call("1", "slow", "{}"));
    server.wait("the call", |seen| seen.iter().any(|seen| seen.rpc() == "tools/call"));
    session.send(&cancel("1"));
    server.wait("the cancellation", |seen| seen.iter().any(|seen| seen.rpc() == "notifications/cancelled"));
    let id = server.got("tools/call")[0].id();
    assert_eq!(server.got("notifications/cancelled")[0].json()["params"]["requestId"].to_string(), id);
    assert_eq!(session.finish().code, Some(0));
}

#[test]
fn redirects_are_followed_within_the_origin_only() {
    let other = HttpServer::start(|seen, stream| put(stream, json(&ok(seen))));
    let away = other.url();
    let server = HttpServer::start(move |seen, stream| match seen.target.as_str() {
        "/mcp" => put(stream, reply(307, "Location: /moved/mcp", "")),
        "/moved/mcp" if seen.rpc() == "away" => put(stream, reply(308, &format!("Location: {away}"), "")),
        _ => put(stream, legacy(seen, "s1").unwrap_or_else(|| json(&ok(seen)))),
    });
    let config = format!("{FAST}\nupstream: {{http: {{headers: {{X-Key: s3cret}}}}}}");
    let mut session = session("http-redirect").config(&config).remote("http", &server.url()).start();
    session.ask(INITIALIZE);
    session.send(INITIALIZED);
    assert_eq!(session.call("1", "t", "{}").at("result.ok"), "true");
    let answer = session.ask(r#"{"jsonrpc":"2.0","id":2,"method":"away"}"#);
    assert!(answer.at("error.message").contains("is not followed"), "{answer:?}");
    session.finish();
    assert_eq!(other.seen().len(), 0, "nothing is sent to another origin");
    assert_eq!(server.seen().iter().filter(|seen| seen.target == "/mcp").count(), 1, "the new place is remembered");
}

#[test]
fn the_older_transport_is_spoken_on_request_and_found_out_by_itself() {
    for option in ["sse", "http"] {
        let stream: Arc<std::sync::Mutex<Option<TcpStream>>> = Arc::default();
        let server = HttpServer::start(move |seen, connection| {
            if seen.method == "GET" {
                put(connection, STREAM);
                put(connection, "event: endpoint\ndata: /messages?sessionId=abc\n\n");
                *stream.lock().expect("no panic") = Some(connection.try_clone().expect("a handle"));
                loop {
                    std::thread::park_timeout(Duration::from_secs(60));
                }
            }
            if seen.target != "/messages?sessionId=abc" {
                return put(connection, reply(405, "Allow: GET", ""));
            }
            let mut stream = stream.lock().expect("no panic");
            let stream = stream.as_mut().expect("a stream");
            let body = match seen.rpc().as_str() {
                "initialize" => String::from_utf8(legacy(seen, "x").expect("an answer"))
                    .expect("text")
                    .split("\r\n\r\n")
                    .nth(1)
                    .expect("a body")
                    .to_owned(),
                "tools/call" => ok(seen),
                _ => return put(connection, reply(202, "", "")),
            };
            put(connection, reply(202, "", "Accepted")) && put(stream, format!("event: message\ndata: {body}\n\n"))
        });
        let mut session = session("http-older").config(FAST).remote(option, &server.url()).start();
        assert_eq!(session.ask(INITIALIZE).at("result.serverInfo.name"), "\"remote\"", "{option}");
        session.send(INITIALIZED);
        assert_eq!(session.call("1", "t", "{}").at("result.ok"), "true", "{option}");
        let ended = session.finish();
        assert_eq!(ended.code, Some(0), "{option}: {}", ended.stderr);
        assert_eq!(server.got("tools/call").len(), 1, "{option}");
    }
}

#[test]
fn calls_run_side_by_side_in_any_number() {
    const CALLS: usize = 256;
    let inside = Arc::new(AtomicUsize::new(0));
    let own = Arc::clone(&inside);
    let (mut session, server) = opened("http-many", FAST, move |seen, stream| {
        own.fetch_add(1, Ordering::SeqCst);
        // Nobody is answered before all have come.
        while own.load(Ordering::SeqCst) < CALLS {
            std::thread::sleep(Duration::from_millis(5));
        }
        put(stream, json(&ok(seen)))
    });
    for id in 0..CALLS {
        session.send(&call(&id.to_string(), "t", "{}"));
    }
    for id in 0..CALLS {
        assert_eq!(session.answer(&id.to_string()).at("result.ok"), "true");
    }
    session.finish();
    assert_eq!(server.got("tools/call").len(), CALLS);
}

#[test]
fn htt_13_ipv6_addresses_work_and_localhost_finds_either_family() {
    let answer =
        |seen: &Seen, stream: &mut TcpStream| put(stream, legacy(seen, "s1").unwrap_or_else(|| json(&ok(seen))));
    let six = HttpServer::at("[::1]:0", answer);
    let four = HttpServer::start(answer);
    let mut urls = vec![six.url(), four.url(), format!("http://localhost:{}/mcp", four.port())];
    // Not every machine calls both families localhost.
    if ("localhost", 1).to_socket_addrs().is_ok_and(|mut found| found.any(|address| address.is_ipv6())) {
        urls.push(format!("http://localhost:{}/mcp", six.port()));
    }
    for url in urls {
        let mut session = session("htt-13").remote("http", &url).start();
        session.ask(INITIALIZE);
        session.send(INITIALIZED);
        assert_eq!(session.call("1", "t", "{}").at("result.ok"), "true", "{url}");
        session.finish();
    }
}

#[test]
fn what_was_not_sent_is_known_after_good_exchanges_too() {
    // One connection is served, then nobody listens any more.
    let listener = std::net::TcpListener::bind("127.0.0.1:0").expect("a port");
    let url = format!("http://{}/mcp", listener.local_addr().expect("an address"));
    let server = std::thread::spawn(move || {
        let (mut stream, _) = listener.accept().expect("a connection");
        let mut reader = std::io::BufReader::new(stream.try_clone().expect("a handle"));
        let seen = crate::support::http::read_request(&mut reader, 1).expect("a request");
        put(&mut stream, reply(200, "Content-Type: application/json\nConnection: close", &ok(&seen)));
    });
    let mut session = session("http-gone").config(FAST).remote("http", &url).start();
    assert_eq!(session.call("1", "write", "{}").at("result.ok"), "true");
    server.join().expect("no panic");
    let answer = session.call("2", "write", "{}");
    assert_eq!(outcome(&answer), "transport no 3", "{answer:?}");
    session.finish();
}

#[test]
fn a_call_in_flight_is_found_after_a_kill() {
    let (mut session, server) = opened("http-kill", FAST, |_, stream| {
        use std::io::Read as _;
        let _ = stream.read(&mut [0; 1]);
        false
    });
    session.send(&call("1", "write", r#"{"n":1}"#));
    server.wait("the call", |seen| seen.iter().any(|seen| seen.rpc() == "tools/call"));
    let Session { mut relay, dir } = session;
    relay.signal(rustix::process::Signal::KILL);
    relay.wait();
    let again =
        crate::support::Start::new(crate::support::mcprelay()).args(["run", "--http", &server.url()]).cwd(dir.path());
    let output = again.start().finish();
    let ended =
        crate::support::session::Ended { code: output.status.code(), stderr: output.stderr, seen: Vec::new(), dir };
    let facts = ended.queued("tool_name, failure_class, failure_executed, failure_attempts, arguments");
    assert_eq!(facts, [r#"write|interrupted|maybe|1|{"n":1}"#], "{}", ended.stderr);
}

#[test]
fn a_replay_reaches_the_stored_server_and_headers_go_to_whom_they_belong() {
    let broken = Arc::new(AtomicUsize::new(1));
    let own = Arc::clone(&broken);
    let config = format!("{FAST}\nupstream: {{http: {{headers: {{Authorization: Bearer t0psecret}}}}}}");
    let (mut session, server) = opened("http-replay", &config, move |seen, stream| match own.load(Ordering::SeqCst) {
        1 => put(stream, reply(500, "", "")),
        _ => put(stream, json(&ok(seen))),
    });
    for id in ["1", "2", "3"] {
        assert_eq!(outcome(&session.call(id, "write", &format!("{{\"n\":{id}.50}}"))), "transport maybe 1");
    }
    let ended = session.finish();
    let stored = ended.queued("server_transport, server_argv");
    assert_eq!(stored[0], format!("http|[\"{}\"]", server.url()));
    let ids = ended.queued("id");
    broken.store(0, Ordering::SeqCst);
    let replayed = |args: String| {
        let before = server.got("tools/call").len();
        let output = ended.command(&args);
        assert!(output.stdout.contains("replay ok"), "{args}: {output:?}");
        let calls = server.got("tools/call").split_off(before);
        assert_eq!(calls.len(), 1, "{args}");
        assert!(calls[0].body.contains(".50}"), "{args}: {}", calls[0].body);
        (calls[0].header("authorization").map(str::to_owned), output.stderr)
    };
    // Whose headers they are, a stored URL does not say.
    let (sent, said) = replayed(format!("replay run {}", ids[0]));
    assert_eq!(sent, None);
    assert!(said.contains("no headers and no client certificate are sent"), "{said}");
    let (sent, said) = replayed(format!("replay run {} --http {}", ids[1], server.url()));
    assert_eq!(sent.as_deref(), Some("Bearer t0psecret"));
    assert!(!said.contains("no headers"), "{said}");
    let origin = server.url().replace("/mcp", "");
    let origins = format!("upstream: {{http: {{origins: {{\"{origin}\": {{headers: {{Authorization: today}}}}}}}}}}");
    ended.dir.write("mcprelay.config.yaml", &origins);
    let (sent, _) = replayed(format!("replay run {}", ids[2]));
    assert_eq!(sent.as_deref(), Some("today"));
}
