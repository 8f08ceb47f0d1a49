//! Framing on standard input and output (hazards FRM-1 to FRM-12), through the real binary.
//!
//! FRM-11 names panics and an HTTP upstream: a panic's message goes to standard error by the language's own rule, and
//! there is no HTTP upstream yet.

use crate::support::Frame;
use crate::support::session::{call, ping, proc, session};

/// JSON text of a string.
fn quoted(text: &str) -> String {
    serde_json::Value::from(text).to_string()
}

/// A request by which the server writes `text` to its stdout as it is, and then answers.
fn raw(id: &str, text: &str) -> String {
    format!(r#"{{"jsonrpc":"2.0","id":{id},"method":"x/raw","params":{{"text":{}}}}}"#, quoted(text))
}

fn error_class(frame: &Frame) -> &str {
    frame.at("error.data.mcprelay.class")
}

#[test]
fn frm_1_characters_cut_by_reads_arrive_whole_in_both_directions() {
    let mut session = session("frm-1").server("--byte-by-byte").start();
    let line = "{\"jsonrpc\":\"2.0\",\"id\":1,\"method\":\"x/echo\",\"params\":{\"t\":\"读🎉é\"}}\n";
    for byte in line.as_bytes().chunks(1) {
        session.relay.send_raw(byte);
    }
    let answer = session.answer("1");
    assert_eq!(answer.text(), "{\"jsonrpc\":\"2.0\",\"id\":1,\"result\":{\"t\":\"读🎉é\"}}");
    let ended = session.finish();
    assert_eq!(ended.got("x/echo")[0].at("params"), "{\"t\":\"读🎉é\"}");
}

#[test]
fn frm_2_crlf_of_both_peers_is_taken_and_a_single_newline_given() {
    // One byte per write: the CR is the last byte of a read and the LF the first of the next.
    let mut session = session("frm-2").server("--crlf --byte-by-byte").start();
    session.relay.send_raw(b"{\"jsonrpc\":\"2.0\",\"id\":1,\"method\":\"x/echo\",\"params\":{\"a\":1}}\r");
    session.relay.send_raw(b"\n{\"jsonrpc\":\"2.0\",\"id\":2,\"method\":\"ping\"}\r\n");
    assert_eq!(session.answer("1").text(), r#"{"jsonrpc":"2.0","id":1,"result":{"a":1}}"#);
    assert_eq!(session.answer("2").text(), r#"{"jsonrpc":"2.0","id":2,"result":{}}"#);
    session.finish();
}

#[test]
fn frm_2_the_server_gets_single_newlines_from_a_crlf_client() {
    let dir = crate::support::TempDir::new("frm-2-raw");
    let copy = dir.join("copy");
    let tee = crate::support::Start::new("sh").args(["-c", "cat > \"$0\""]).arg(&copy);
    let mut relay = crate::support::Start::relay("", &tee).cwd(dir.path()).start();
    relay.send_raw(b"{\"method\":\"notifications/x\"}\r\n\r\n{\"method\":\"notifications/y\"}\r\n");
    assert_eq!(relay.finish().code(), 0);
    assert_eq!(dir.read("copy"), "{\"method\":\"notifications/x\"}\n{\"method\":\"notifications/y\"}\n");
}

#[test]
fn frm_3_unicode_line_separators_inside_strings_do_not_cut_a_message() {
    let mut session = session("frm-3").start();
    let arguments = "{\"t\":\"a\u{2028}b\u{2029}c\u{85}d\\u000b\\u000c\"}";
    let answer = session.call("1", "echo", arguments);
    assert_eq!(answer.at("result.structuredContent"), arguments);
    assert_eq!(session.got("tools/call")[0].at("params.arguments"), arguments);
    session.finish();
}

#[test]
fn frm_4_log_lines_on_the_protocol_channel_go_to_stderr() {
    let mut session = session("frm-4").server("--noise").start();
    session.relay.initialize();
    for id in ["1", "2", "3"] {
        assert_eq!(session.call(id, "echo", "{}").at("result.structuredContent"), "{}");
    }
    let ended = session.finish();
    for line in ["Server started on stdio", "(node:1) Warning: x", "[db] Connected"] {
        assert!(ended.stderr.matches(line).count() >= 4, "{line:?} is missing: {}", ended.stderr);
    }
    let marked = ended.stderr.lines().find(|line| line.contains("Server started")).unwrap_or_default();
    assert!(marked.starts_with("mcprelay: ") && marked != "mcprelay: Server started on stdio", "not marked: {marked}");
    assert!(!ended.stderr.contains('\u{1b}'), "an escape sequence reached the terminal");
}

#[test]
fn frm_4_a_long_log_line_on_the_protocol_channel_is_shown_in_part() {
    let mut session = session("frm-4-long").start();
    session.ask(&raw("1", &("noise ".repeat(100_000) + "\n")));
    let ended = session.finish();
    assert!(ended.stderr.contains("noise noise"), "{}", ended.stderr);
    assert!(ended.stderr.len() < 10_000, "{} bytes of noise were passed on", ended.stderr.len());
    assert!(ended.stderr.contains("600000 bytes"), "its true length is not told: {}", ended.stderr);
}

#[test]
fn frm_5_a_bad_client_line_costs_one_error_and_the_session_goes_on() {
    let mut session = session("frm-5").start();
    session.relay.send_raw(b"not json\n{\"jsonrpc\":\"2.0\"\n\xff\xfe{}\n");
    for _ in 0..3 {
        let error = session.relay.next();
        assert_eq!((error.at("id"), error.at("error.code")), ("null", "-32700"), "{error:?}");
    }
    assert_eq!(session.relay.initialize().at("result.serverInfo.name"), "\"testpeer\"");
    session.settle();
    let ended = session.finish();
    assert_eq!(ended.code, Some(0));
    assert!(ended.stderr.contains("3 invalid client frames"), "not counted: {}", ended.stderr);
    assert_eq!(ended.stderr.matches("refused a frame of the client").count(), 3, "{}", ended.stderr);
    assert!(ended.seen.iter().all(|note| !note.contains("not json")), "a bad line reached the server");
}

#[test]
fn frm_6_lines_around_64_kib_and_far_beyond_are_relayed_unchanged() {
    for (chunk, sizes) in [
        (1, &[65_535, 65_536, 65_537][..]),
        (4_096, &[65_535, 65_536, 65_537, 132_000]),
        (65_536, &[65_536, 5_000_000]),
    ] {
        let mut session = session("frm-6").server(&format!("--chunk {chunk}")).start();
        for size in sizes {
            let frame = |text: &str| {
                format!(r#"{{"jsonrpc":"2.0","id":1,"result":{{"content":[{{"type":"text","text":"{text}"}}]}}}}"#)
            };
            let text = "x".repeat(size - frame("").len());
            let answer = session.call("1", "big", &format!("{{\"bytes\":{}}}", text.len()));
            assert!(answer.text() == frame(&text), "{size} bytes in pieces of {chunk}: {answer:?}");
        }
        // And the other way.
        let arguments = format!("{{\"t\":\"{}\"}}", "y".repeat(sizes[sizes.len() - 1]));
        let answer = session.call("2", "echo", &arguments);
        assert!(answer.at("result.structuredContent") == arguments, "{answer:?}");
        session.finish();
    }
}

#[test]
fn frm_6_a_large_frame_in_small_pieces_takes_linear_time() {
    let mut session = session("frm-6-time").server("--chunk 512").start();
    session.settle();
    let cpu_of = |session: &mut crate::support::session::Session, bytes: usize| {
        let before = proc::cpu(session.relay.pid());
        session.call("1", "big", &format!("{{\"bytes\":{bytes}}}"));
        proc::cpu(session.relay.pid()) - before
    };
    let one = cpu_of(&mut session, 400_000);
    let eight = cpu_of(&mut session, 3_200_000);
    // A scan of everything at each read would take 64 times as long. Some ticks of grace for a clock of 10 ms.
    let limit = (one + std::time::Duration::from_millis(20)) * 20;
    assert!(eight < limit, "400 kB took {one:?}, 3.2 MB {eight:?}");
    session.finish();
}

#[test]
fn frm_7_an_endless_line_of_the_server_is_skipped_in_bounded_memory() {
    let mut session = session("frm-7").config("wire: {frame_max_bytes: 1048576}").start();
    // The answer and the flood behind it come in one piece.
    let answer = session.call("1", "flood", r#"{"bytes":200000000}"#);
    assert_eq!(answer.text(), r#"{"jsonrpc":"2.0","id":1,"result":{"content":[]}}"#);
    assert_eq!(session.ask(&ping("2")).at("result"), "{}");
    let peak = proc::peak_memory(session.relay.pid());
    assert!(peak < 32 << 20, "it held {peak} bytes");
    let ended = session.finish();
    assert!(ended.stderr.contains("dropped a frame of the server: longer than 1048576 bytes"), "{}", ended.stderr);
}

#[test]
fn frm_7_an_endless_line_of_the_client_is_refused_once_in_bounded_memory() {
    let mut session = session("frm-7-client").config("wire: {frame_max_bytes: 1048576}").start();
    session.send(&ping("1"));
    let chunk = vec![b'x'; 1 << 20];
    for _ in 0..200 {
        session.relay.send_raw(&chunk);
    }
    session.relay.send_raw(b"\n");
    session.send(&ping("2"));
    session.answer("1");
    let error = session.answer("null");
    assert_eq!(error.at("error.code"), "-32600", "{error:?}");
    session.answer("2");
    let peak = proc::peak_memory(session.relay.pid());
    assert!(peak < 32 << 20, "it held {peak} bytes");
    session.finish();
}

#[test]
fn frm_7_too_long_a_request_or_answer_ends_its_own_request_at_once() {
    let mut session = session("frm-7-own").config("wire: {frame_max_bytes: 100000}").start();
    let error = session.call("\"r-1\"", "echo", &format!("{{\"t\":\"{}\"}}", "x".repeat(200_000)));
    assert_eq!((error.at("id"), error.at("error.code")), ("\"r-1\"", "-32600"), "{error:?}");
    let error = session.call("\"r-2\"", "big", r#"{"bytes":200000}"#);
    assert_eq!((error.at("id"), error_class(&error)), ("\"r-2\"", "\"non_retryable\""), "{error:?}");
    assert_eq!(error.at("error.data.mcprelay.executed"), "\"yes\"", "the tool has run: {error:?}");
    assert!(error.at("error.message").contains("wire.frame_max_bytes"), "{error:?}");
    session.settle();
    let ended = session.finish();
    assert_eq!(ended.got("tools/call").len(), 1, "only the second call reached the server, once");
}

#[test]
fn frm_8_a_last_line_without_newline_is_delivered_with_one() {
    let mut session = session("frm-8").server("--exit-after 1 --no-final-newline").start();
    // The line end is seen to by `finish`.
    assert_eq!(session.ask(&ping("7")).text(), r#"{"jsonrpc":"2.0","id":7,"result":{}}"#);
    assert_eq!(session.relay.wait().code(), Some(3), "the server ended first");
    session.finish();
}

#[test]
fn frm_8_half_a_message_is_discarded_and_its_request_ends_at_once() {
    let mut session = session("frm-8-half").start();
    let partial = quoted(r#"{"jsonrpc":"2.0","id":$ID,"resu"#);
    let error = session.call("7", "crash", &format!("{{\"exit_code\":0,\"partial\":{partial}}}"));
    assert_eq!((error.at("id"), error_class(&error)), ("7", "\"transport\""), "{error:?}");
    assert!(error.at("error.message").contains("exited with status 0"), "{error:?}");
    assert_eq!(session.relay.wait().code(), Some(3));
    session.finish();
}

#[test]
fn frm_9_blank_lines_from_both_sides_are_skipped_in_silence() {
    let blanks = "\n\r\n   \t\n";
    let mut session = session("frm-9").start();
    session.relay.send_raw(blanks.as_bytes());
    session.ask(&raw("1", blanks));
    session.relay.send_raw(blanks.as_bytes());
    session.relay.initialize();
    session.ask(&raw("2", blanks));
    session.settle();
    let ended = session.finish();
    assert_eq!(ended.code, Some(0));
    let lines: Vec<&str> = ended.stderr.lines().filter(|line| !line.starts_with("mcprelay: warning: ")).collect();
    assert_eq!(lines, Vec::<&str>::new(), "blank lines left traces");
}

#[test]
fn frm_10_json_that_is_no_message_is_noise() {
    let lines = ["{}", "[]", "42", "\"ready\"", "null", r#"{"level":"info","msg":"x"}"#, r#"{"id":1}"#, "[1,{}]"];
    let mut session = session("frm-10").start();
    session.ask(&raw("1", &(lines.join("\n") + "\n")));
    let ended = session.finish();
    for line in lines {
        assert!(ended.stderr.lines().any(|shown| shown.ends_with(&format!(": {line}"))), "{line}: {}", ended.stderr);
    }
    assert!(ended.stderr.contains(&format!("{} server lines that are no messages", lines.len())), "{}", ended.stderr);
}

#[test]
fn frm_11_stdout_holds_messages_only_on_every_failure_path() {
    let config = r#"
queue: {sqlite: {path: /proc/none/queue.db}}
store: {sqlite: {path: /proc/none/history.db}}
policy: {rules: [{tool: boom, action: deny}]}
reliability: {timeout_ms: 100}
"#;
    let mut session = session("frm-11")
        .config(config)
        .server("--noise --stderr-flood 1000")
        .started(|start| start.env("RUST_LOG", "trace").env("RUST_BACKTRACE", "full").env("DEBUG", "*"))
        .start();
    session.send("broken");
    for line in [
        call("1", "boom", "{}"),
        call("2", "rpc-error", "{}"),
        call("3", "hang", "{}"),
        call("4", "crash", "{}"),
        r#"{"jsonrpc":"2.0","id":5,"method":"x/unknown"}"#.to_owned(),
    ] {
        session.send(&line);
    }
    let mut ids = Vec::new();
    while let Some(frame) = session.relay.next_or_end() {
        let value: serde_json::Value = serde_json::from_slice(&frame.0).unwrap_or_else(|_| panic!("{frame:?}"));
        assert_eq!(value["jsonrpc"], "2.0", "{frame:?}");
        ids.push(frame.at("id").to_owned());
    }
    ids.sort();
    // Whether the server still answers the last request depends on when its crash comes; an error is an answer too.
    assert_eq!(ids, ["1", "2", "3", "4", "5", "null"]);
    assert_eq!(session.relay.wait().code(), Some(3));
    session.finish();
}

#[test]
fn frm_12_a_server_that_floods_stderr_is_drained_and_answers() {
    const LINE: usize = 102;
    let per_call = (256 << 10) / LINE;
    let mut session = session("frm-12").server(&format!("--stderr-flood {}", per_call * LINE)).start();
    for id in 0..20 {
        let id = id.to_string();
        assert_eq!(session.call(&id, "echo", "{}").at("id"), id);
    }
    let ended = session.finish();
    let passed = ended.stderr.lines().filter(|line| line.ends_with("end of line")).count();
    let counts = ended.stderr.lines().filter_map(|line| {
        line.strip_prefix("mcprelay: ")?.strip_suffix(" older lines dropped: standard error was not read")
    });
    let dropped: usize = counts.map(|count| count.parse::<usize>().expect("a number")).sum();
    assert!(passed > 0 && passed <= 20 * per_call);
    assert!(passed + dropped >= 20 * per_call, "{passed} passed on, {dropped} dropped, of {}", 20 * per_call);
}
