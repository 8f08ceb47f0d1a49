//! Calls that are open when the relay is killed: the next start finds them, once each, with what is known of them.

use std::path::PathBuf;

use rustix::process::Signal;

use super::support::process::say;
use super::support::session::{Ended, Session, call, cancel, eventually, session};
use super::support::{Start, TempDir};

const FOLDER: &str = ".mcprelay";

/// The flight files beside the queue.
fn flights(dir: &TempDir) -> Vec<PathBuf> {
    let entries = std::fs::read_dir(dir.join(FOLDER)).into_iter().flatten().flatten();
    let mut paths: Vec<PathBuf> = entries.map(|entry| entry.path()).collect();
    paths.retain(|path| path.file_name().is_some_and(|name| name.to_string_lossy().starts_with("flight-")));
    paths.sort();
    paths
}

fn flight_text(dir: &TempDir) -> String {
    flights(dir)
        .iter()
        .map(|path| String::from_utf8_lossy(&std::fs::read(path).unwrap_or_default()).into_owned())
        .collect()
}

/// Waits until the flight file says so.
fn wait_flight(dir: &TempDir, what: &str, enough: impl Fn(&str) -> bool) {
    eventually(what, || {
        let text = flight_text(dir);
        if enough(&text) { Ok(()) } else { Err(text) }
    });
}

/// Kills the relay, and gives its directory once the server has seen the end of its input.
fn kill(session: Session) -> TempDir {
    let Session { mut relay, dir } = session;
    relay.signal(Signal::KILL);
    relay.wait();
    while relay.next_or_end().is_some() {}
    dir
}

/// Starts the relay once more where another was killed, lets it end, and gives what it left.
fn start_again(dir: TempDir) -> Ended {
    let server = Start::server("");
    let relay = Start::relay("", &server).cwd(dir.path()).env("XDG_STATE_HOME", dir.join("state"));
    let output = relay.start().finish();
    Ended { code: output.status.code(), stderr: output.stderr, seen: Vec::new(), dir }
}

const FACTS: &str = "tool_name, failure_class, failure_executed, failure_attempts, replay_status, arguments";

#[test]
fn a_call_that_was_sent_is_found_as_maybe_executed_and_an_answered_one_is_not_found() {
    let mut session = session("flight-sent").start();
    session.relay.initialize();
    session.call("1", "echo", r#"{"n":1}"#);
    session.call("2", "rpc-error", r#"{"n":2}"#);
    session.send(&call("3", "hang", r#"{"n":1.50,"password":"hunter2-secret"}"#));
    session.send(&call("4", "hang", r#"{"n":4}"#));
    session.wait_seen("the calls", |seen| seen.iter().filter(|line| line.contains("\"hang\"")).count() == 2);
    session.send(&cancel("4"));
    session.wait_seen("the cancel", |seen| seen.iter().any(|line| line.contains("notifications/cancelled")));
    let correlation = session.got("tools/call")[2].at("params._meta.mcprelay.correlation_id").to_owned();
    wait_flight(&session.dir, "the end of the withdrawn call", |text| text.matches(" ended ").count() == 3);
    assert!(!flight_text(&session.dir).contains("hunter2"), "secrets are masked there too");

    let ended = start_again(kill(session));
    let expected = [
        r#"rpc-error|upstream_error|maybe|1|pending|{"n":2}"#,
        r#"hang|interrupted|maybe|1|pending|{"n":1.50,"password":"[REDACTED]"}"#,
    ];
    let mut rows = ended.queued(FACTS);
    rows.sort_by_key(|row| row.contains("interrupted"));
    assert_eq!(rows, expected, "{}", ended.stderr);
    let found =
        ended.query_queue("SELECT correlation_id, client_name, server_name, id FROM failures WHERE tool_name = 'hang'");
    let found: Vec<&str> = found[0].split('|').collect();
    assert_eq!((found[0], found[1], found[2]), (correlation.trim_matches('"'), "test", "testpeer"));
    assert!(ended.stderr.contains("1 calls were open when an earlier mcprelay was killed, 1 of them may have run"));
    let audited = ended.query_history("SELECT failure_id FROM audit WHERE kind = 'captured' ORDER BY seq DESC LIMIT 1");
    assert_eq!(audited, [found[3]]);
    assert_eq!(flights(&ended.dir), Vec::<PathBuf>::new());
}

#[test]
fn a_call_of_which_no_byte_left_is_found_as_not_executed() {
    let mut session = session("flight-unsent").start();
    session.settle();
    let server = rustix::process::Pid::from_raw(session.server_pids()[0]).expect("a process id");
    rustix::process::kill_process(server, Signal::STOP).expect("our server");
    // The first fills the pipe and is begun; no byte of the second fits.
    session.send(&call("1", "echo", &format!(r#"{{"n":1,"t":"{}"}}"#, "x".repeat(1_000_000))));
    session.send(&call("2", "echo", r#"{"n":2}"#));
    wait_flight(&session.dir, "both calls", |text| {
        text.matches(" accepted ").count() == 2 && text.matches(" begun ").count() == 1
    });
    let dir = kill(session);
    rustix::process::kill_process(server, Signal::KILL).expect("our server");
    let ended = start_again(dir);
    let rows = ended.queued("failure_executed, failure_attempts, failure_message, substr(arguments, 1, 6)");
    assert_eq!(rows.len(), 2, "{rows:?}");
    assert!(rows.iter().any(|row| row.starts_with("maybe|1|") && row.ends_with(r#"{"n":1"#)), "{rows:?}");
    assert!(
        rows.iter().any(|row| row.starts_with("no|0|")
            && row.contains("before the call was sent")
            && row.ends_with(r#"{"n":2"#)),
        "{rows:?}"
    );
}

#[test]
fn an_answer_that_the_client_never_took_is_no_answer() {
    let mut session = session("flight-unread").started(|start| start.frames_read(1)).start();
    session.settle();
    // Much more than a pipe holds.
    session.send(&call("1", "big", r#"{"bytes":3000000}"#));
    session.send(&call("2", "echo", "{}"));
    session.wait_seen("both", |seen| seen.iter().filter(|line| line.contains("tools/call")).count() == 2);
    eventually("the answers are in", || {
        let said = session.relay.stderr();
        if said.matches("\"decision\":\"allowed\"").count() == 2 { Ok(()) } else { Err(said) }
    });
    assert_eq!(flight_text(&session.dir).matches(" ended ").count(), 0, "their answers wait");
    let Session { mut relay, dir } = session;
    relay.signal(Signal::KILL);
    relay.wait();
    let ended = start_again(dir);
    assert_eq!(ended.queued("tool_name, failure_executed"), ["big|maybe", "echo|maybe"]);
}

#[test]
fn an_orderly_end_leaves_no_file() {
    for signal in [None, Some(Signal::TERM)] {
        let mut session = session("flight-orderly").start();
        session.call("1", "echo", "{}");
        assert_eq!(flights(&session.dir).len(), 1);
        if let Some(signal) = signal {
            session.relay.signal(signal);
        }
        let ended = session.finish();
        assert_eq!(flights(&ended.dir), Vec::<PathBuf>::new(), "{signal:?}");
    }
}

#[test]
fn a_session_without_calls_makes_no_file() {
    let mut session = session("flight-none").start();
    session.settle();
    assert!(!session.dir.join(FOLDER).exists());
    session.finish();
}

#[test]
fn a_signal_captures_open_calls_itself_and_nothing_is_found_later() {
    let mut session = session("flight-term").config("shutdown: {signal_drain_ms: 10}").start();
    session.send(&call("1", "hang", "{}"));
    session.wait_seen("the call", |seen| seen.iter().any(|line| line.contains("\"hang\"")));
    session.relay.signal(Signal::TERM);
    session.answer("1");
    let ended = session.finish();
    assert_eq!(flights(&ended.dir), Vec::<PathBuf>::new());
    let ended = start_again(ended.dir);
    assert_eq!(ended.queued("failure_class"), ["interrupted"]);
}

#[test]
fn two_starts_at_once_find_each_call_once() {
    for round in 0..20 {
        let mut session = session("flight-race").start();
        for id in 0..3 {
            session.send(&call(&id.to_string(), "hang", "{}"));
        }
        session.wait_seen("the calls", |seen| seen.iter().filter(|line| line.contains("\"hang\"")).count() == 3);
        let dir = kill(session);
        let server = Start::server("");
        let start = || Start::relay("", &server).cwd(dir.path()).env("XDG_STATE_HOME", dir.join("state")).start();
        let (one, two) = (start(), start());
        let (one, two) = (one.finish().stderr, two.finish().stderr);
        let ended = Ended { code: None, stderr: one + &two, seen: Vec::new(), dir };
        assert_eq!(ended.queued("tool_name"), ["hang"; 3], "round {round}: {}", ended.stderr);
        assert_eq!(ended.query_history("SELECT count(*) FROM audit"), ["3"], "round {round}");
        assert_eq!(flights(&ended.dir), Vec::<PathBuf>::new(), "round {round}: {}", ended.stderr);
    }
}

#[test]
fn a_start_beside_a_living_relay_leaves_its_calls_alone() {
    let mut first = session("flight-living").start();
    first.send(&call("1", "hold", r#"{"key":"k"}"#));
    first.wait_seen("the call", |seen| seen.iter().any(|line| line.contains("\"hold\"")));
    let server = Start::server("");
    let second = Start::relay("", &server).cwd(first.dir.path()).env("XDG_STATE_HOME", first.dir.join("state"));
    assert_eq!(second.start().finish().stderr.matches("were open").count(), 0);
    assert_eq!(flights(&first.dir).len(), 1);
    first.ask(r#"{"jsonrpc":"2.0","id":"r","method":"x/release","params":{"keys":["k"]}}"#);
    first.answer("1");
    let ended = first.finish();
    assert_eq!(ended.queued("id"), [""; 0]);
}

#[test]
fn under_load_the_file_stays_small_and_forgets_no_open_call() {
    let mut session = session("flight-load").config("recorder: {max_bytes: 16384}").start();
    session.send(&call("\"open\"", "hang", r#"{"n":1}"#));
    let mut largest = 0;
    for id in 0..400 {
        session.send(&call(&id.to_string(), "echo", &format!(r#"{{"t":"{}"}}"#, "x".repeat(500))));
        session.answer(&id.to_string());
        let bytes = flights(&session.dir).iter().filter_map(|path| path.metadata().ok()).map(|data| data.len()).max();
        largest = largest.max(bytes.unwrap_or(0));
    }
    assert!((8_192..32_768).contains(&largest), "{largest}");
    assert_eq!(flights(&session.dir).len(), 1);
    let ended = start_again(kill(session));
    let mut rows = ended.queued("tool_name, failure_executed");
    // The last answer may have left before its mark did.
    rows.retain(|row| !row.starts_with("echo"));
    assert_eq!(rows, ["hang|maybe"]);
}

#[test]
fn members_of_a_batch_are_open_until_the_batch_is_answered() {
    let mut session = session("flight-batch").start();
    let (one, two) = (call("1", "echo", "{}"), call("2", "hold", r#"{"key":"k"}"#));
    session.send(&format!("[{one},{two}]"));
    session.wait_seen("both", |seen| seen.iter().filter(|line| line.contains("tools/call")).count() == 2);
    eventually("the answer of one", || {
        let said = session.relay.stderr();
        if said.contains("\"decision\":\"allowed\"") { Ok(()) } else { Err(said) }
    });
    session.settle();
    assert_eq!(flight_text(&session.dir).matches(" ended ").count(), 0);
    let ended = start_again(kill(session));
    assert_eq!(ended.queued("failure_executed"), ["maybe", "maybe"]);
}

#[test]
fn read_only_commands_take_nothing_over() {
    let mut session = session("flight-commands").start();
    session.call("1", "rpc-error", "{}");
    session.send(&call("2", "hang", "{}"));
    session.wait_seen("the call", |seen| seen.iter().any(|line| line.contains("\"hang\"")));
    let dir = kill(session);
    let before = flights(&dir);
    let ended = Ended { code: None, stderr: String::new(), seen: Vec::new(), dir };
    ended.command("replay list");
    ended.command("report");
    assert_eq!(flights(&ended.dir), before);
    assert_eq!(ended.queued("tool_name"), ["rpc-error"]);
}

// --- the order of system calls ---

/// What a session of `tool` did, one system call a line with the paths of its files; `None` without strace.
fn traced(name: &str, tool: &str) -> Option<Vec<String>> {
    let works = std::process::Command::new("strace").args(["-y", "-e", "trace=write", "true"]).output();
    if !works.is_ok_and(|output| output.status.success()) {
        say(&format!("SKIPPED recorder::{name}: strace is not there or may not trace"));
        return None;
    }
    let trace = TempDir::new(name);
    let file = trace.join("trace");
    let strace = Start::new("strace")
        .args(["-f", "-y", "-s", "4000", "-e", "trace=write,pwrite64,fsync,fdatasync", "-o"])
        .arg(&file);
    let mut session = session(name).wrapped(strace).start();
    session.settle();
    session.call("7", tool, "{}");
    session.finish();
    Some(trace.read("trace").lines().map(str::to_owned).collect())
}

/// Where the first line stands that holds all of `parts`.
fn line_of(trace: &[String], parts: &[&str]) -> usize {
    let found = trace.iter().position(|line| parts.iter().all(|part| line.contains(part)));
    found.unwrap_or_else(|| panic!("no system call with {parts:?} in\n{}", trace.join("\n")))
}

/// Where the system call that begins in this line is over: another thread's may stand in between.
fn end_of(trace: &[String], at: usize) -> usize {
    if !trace[at].ends_with("<unfinished ...>") {
        return at;
    }
    let thread = trace[at].split(' ').next().expect("a thread id");
    let resumed = |line: &String| line.starts_with(thread) && line.contains("resumed>");
    at + trace[at..].iter().position(resumed).expect("it comes back")
}

#[test]
fn a_call_is_in_the_kernel_before_its_first_byte_and_its_end_after_its_answer() {
    let Some(trace) = traced("order-call", "echo") else { return };
    let accepted = line_of(&trace, &["write(", "flight-", " accepted ", " begun "]);
    let sent = line_of(&trace, &["write(", "pipe:", r#"\"method\":\"tools/call\""#, "mcprelay"]);
    // The server answers by our number for the attempt; this is the client's own.
    let answered = line_of(&trace, &["write(", "pipe:", r#"\"id\":7,\"result\""#]);
    let ended = line_of(&trace, &["write(", "flight-", " ended "]);
    assert!(accepted < sent && sent < answered && answered < ended, "{accepted} {sent} {answered} {ended}");
    let flights = trace.iter().filter(|line| line.contains("flight-") && line.contains("write(")).count();
    assert_eq!(flights, 3, "the beginning, then two writes for a call");
    assert!(!trace.iter().any(|line| line.contains("sync(") && line.contains("flight-")), "no synchronisation");
}

#[test]
fn the_dead_letter_is_synchronised_before_the_client_hears_of_the_failure() {
    let Some(trace) = traced("order-capture", "rpc-error") else { return };
    let answered = line_of(&trace, &["pipe:", r#"\"id\":7,\"error\""#]);
    let written = line_of(&trace, &["pwrite64(", "queue.db-wal"]);
    let synchronised = (0..trace.len())
        .filter(|at| trace[*at].contains("sync(") && trace[*at].contains("queue.db-wal"))
        .map(|at| end_of(&trace, at))
        .find(|end| *end > written)
        .unwrap_or_else(|| panic!("no synchronisation in\n{}", trace.join("\n")));
    assert!(written < synchronised && synchronised < answered, "{written} {synchronised} {answered}");
    let ended = line_of(&trace, &["write(", "flight-", " ended "]);
    assert!(answered < ended);
}
