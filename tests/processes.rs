//! Process lifecycle (hazards PRC-1 to PRC-6 and PRC-10), through the real binary.
//!
//! PRC-7 is about Windows, PRC-8 and PRC-9 about restarts, none of which is there yet. That no signal follows the reaping
//! of a leader is the order of calls in `ports::upstream_stdio`.

use std::time::{Duration, Instant};

use crate::support::session::{call, eventually, ping, proc, session};
use crate::support::{Start, TempDir, mcprelay};
use rustix::process::Signal;

const SHORT_GRACE: &str = "shutdown: {stdin_grace_ms: 150, term_grace_ms: 150, signal_drain_ms: 150}\n";

/// A launcher that stays beside the server it starts, as npx and uv do.
const LAUNCHER: &str = r#"exec 3<&0; sh -c '"$@"; true' sh "$@" <&3 & wait"#;

fn gone(pids: &[i32]) {
    eventually("the end of every process", || match pids.iter().find(|pid| proc::is_alive(**pid)) {
        Some(pid) => Err(format!("{pid} of {pids:?} lives")),
        None => Ok(()),
    });
}

/// The processes below `pid`, all the way down.
fn descendants(pid: i32) -> Vec<i32> {
    let children = proc::children(pid);
    let below: Vec<i32> = children.iter().flat_map(|child| descendants(*child)).collect();
    children.into_iter().chain(below).collect()
}

#[test]
fn prc_1_no_process_behind_a_launcher_outlives_a_closed_stdin() {
    let setup = session("prc-1-eof").server("--ignore-eof --ignore-term").behind(LAUNCHER).config(SHORT_GRACE);
    let mut session = setup.start();
    session.settle();
    let tree = descendants(session.relay.pid());
    assert!(tree.len() >= 3, "launcher, shell, server: {tree:?}");
    let ended = session.finish();
    assert_eq!(ended.code, Some(0));
    let left: Vec<&i32> = tree.iter().filter(|pid| proc::is_alive(**pid)).collect();
    assert!(left.is_empty(), "{left:?} of {tree:?} live");
}

#[test]
fn prc_1_no_process_behind_a_launcher_outlives_sigterm() {
    let setup = session("prc-1-term").server("--ignore-eof --ignore-term").behind(LAUNCHER).config(SHORT_GRACE);
    let mut session = setup.start();
    session.settle();
    let tree = descendants(session.relay.pid());
    session.relay.signal(Signal::TERM);
    assert_eq!(session.relay.wait().code(), Some(0));
    let left: Vec<&i32> = tree.iter().filter(|pid| proc::is_alive(**pid)).collect();
    assert!(left.is_empty(), "{left:?} of {tree:?} live");
    session.finish();
}

#[test]
fn prc_1_a_server_behind_a_launcher_sees_the_end_of_its_input_when_we_are_killed() {
    let mut session = session("prc-1-kill").behind(LAUNCHER).start();
    session.settle();
    let tree = descendants(session.relay.pid());
    session.relay.signal(Signal::KILL);
    session.relay.wait();
    session.wait_seen("the end of its input", |seen| seen.contains(&"#eof".to_owned()));
    gone(&tree);
    session.finish();
}

#[test]
fn prc_1_what_a_server_leaves_in_its_group_goes_with_it() {
    // The server ends by itself; a helper that it started does not.
    let script = r#"sleep 600 & "$@""#;
    let mut session = session("prc-1-helper").behind(script).config(SHORT_GRACE).start();
    session.settle();
    let tree = descendants(session.relay.pid());
    assert!(tree.len() >= 2, "{tree:?}");
    session.finish();
    gone(&tree);
}

#[test]
fn prc_2_a_server_that_ignores_eof_and_term_is_killed_in_bounded_time() {
    let mut session = session("prc-2").server("--ignore-eof --ignore-term").config(SHORT_GRACE).start();
    session.send(&call("1", "echo", "{}"));
    session.relay.close_stdin();
    let started = Instant::now();
    session.answer("1");
    assert!(proc::is_alive(session.relay.pid()), "the answer comes before the end of the server is waited for");
    assert_eq!(session.relay.wait().code(), Some(0));
    assert!(started.elapsed() < Duration::from_secs(3), "it took {:?}", started.elapsed());
    let pids = session.server_pids();
    let ended = session.finish();
    let order: Vec<&str> =
        ended.seen.iter().map(String::as_str).filter(|note| ["#eof", "#term"].contains(note)).collect();
    assert_eq!(order, ["#eof", "#term"]);
    assert!(!proc::is_alive(pids[0]), "it lives");
}

#[test]
fn prc_2_a_second_signal_does_not_wait() {
    let config = "shutdown: {stdin_grace_ms: 60000, term_grace_ms: 60000, signal_drain_ms: 60000}\n";
    let mut session = session("prc-2-twice").server("--ignore-eof --ignore-term").config(config).start();
    session.send(&call("1", "hang", "{}"));
    session.wait_seen("the call", |seen| seen.iter().any(|note| note.contains("tools/call")));
    let started = Instant::now();
    session.relay.signal(Signal::TERM);
    session.relay.signal(Signal::INT);
    let error = session.answer("1");
    assert_eq!(error.at("error.data.mcprelay.class"), "\"interrupted\"", "{error:?}");
    assert_eq!(error.at("error.data.mcprelay.executed"), "\"maybe\"", "{error:?}");
    session.relay.wait();
    assert!(started.elapsed() < Duration::from_secs(5), "it took {:?}", started.elapsed());
    let pids = session.server_pids();
    session.finish();
    gone(&pids);
}

#[test]
fn prc_3_a_crash_fails_everything_open_at_once_and_says_how_it_ended() {
    for (how, words) in [("{\"exit_code\":7}", "exited with status 7"), ("{\"abort\":true}", "was ended by signal 6")] {
        let mut session = session("prc-3").server("--silent-discover").start();
        session.relay.initialize();
        session.send(&call("1", "hang", "{}"));
        session.send(r#"{"jsonrpc":"2.0","id":2,"method":"server/discover"}"#);
        let started = Instant::now();
        session.send(&call("3", "crash", how));
        for (id, class) in [("1", "\"transport\""), ("2", "\"upstream_closed\""), ("3", "\"transport\"")] {
            let error = session.answer(id);
            assert!(error.at("error.message").contains(words), "{error:?}");
            assert_eq!(error.at("error.data.mcprelay.class"), class, "{error:?}");
            assert_eq!(error.at("error.data.mcprelay.executed"), "\"maybe\"", "{error:?}");
        }
        assert!(started.elapsed() < Duration::from_secs(1), "it took {:?}", started.elapsed());
        assert_eq!(session.relay.wait().code(), Some(3));
        let ended = session.finish();
        assert!(ended.stderr.contains(&format!("mcprelay: the server {words}")), "{}", ended.stderr);
    }
}

#[test]
fn prc_3_a_crash_before_the_first_answer_fails_the_opening_and_shows_the_servers_words() {
    for options in ["--crash-on-start 5", "--exit-on-initialize 5"] {
        let mut session = session("prc-3-start").server(options).start();
        session.send(r#"{"jsonrpc":"2.0","id":0,"method":"initialize","params":{}}"#);
        // A server that is gone before the client's first word leaves nothing to answer: the client sees the end.
        if let Some(error) = session.relay.next_or_end() {
            assert_eq!(error.at("id"), "0");
            assert!(error.at("error.message").contains("exited with status 5"), "{error:?}");
        }
        assert_eq!(session.relay.wait().code(), Some(3), "{options}");
        let ended = session.finish();
        assert!(ended.stderr.contains("mcprelay: the server exited with status 5"), "{}", ended.stderr);
        if options.starts_with("--crash") {
            assert!(ended.stderr.contains("\ntestpeer: cannot start: no licence found\n"), "{}", ended.stderr);
        }
    }
}

#[test]
fn prc_4_a_server_that_closes_stdout_and_stays_fails_its_requests_and_is_ended() {
    let setup = session("prc-4").server("--close-stdout-on-call --ignore-eof --ignore-term").config(SHORT_GRACE);
    let mut session = setup.start();
    session.settle();
    let started = Instant::now();
    let error = session.call("1", "echo", "{}");
    assert!(started.elapsed() < Duration::from_secs(1), "it took {:?}", started.elapsed());
    assert_eq!(error.at("error.data.mcprelay.class"), "\"transport\"", "{error:?}");
    assert!(error.at("error.message").contains("closed its output"), "{error:?}");
    assert_eq!(session.relay.wait().code(), Some(3));
    let pids = session.server_pids();
    session.finish();
    assert!(!proc::is_alive(pids[0]), "it lives");
}

/// What `mcprelay run` says about a server command that cannot be started.
fn refused(start: Start) -> String {
    let output = start.run(b"{\"jsonrpc\":\"2.0\",\"id\":1,\"method\":\"ping\"}\n");
    assert_eq!(output.code(), 3, "{output:?}");
    // The client may have asked before it was seen that there is no server; then it has its error.
    for line in output.stdout.lines() {
        assert!(line.contains("\"id\":1,\"error\""), "{output:?}");
    }
    output.stderr
}

fn run(dir: &TempDir) -> Start {
    Start::new(mcprelay()).args(["run", "--"]).cwd(dir.path())
}

#[test]
fn prc_5_a_command_that_does_not_exist_is_named_with_the_path_searched() {
    let dir = TempDir::new("prc-5");
    let start = run(&dir).args(["npx-that-is-not-there", "foo"]);
    let stderr = refused(start.env("PATH", "/usr/bin:/bin").env("MY_TOKEN", "s3cr3t-value"));
    assert!(
        stderr.contains(
            "mcprelay: cannot start the server \"npx-that-is-not-there\": not found; PATH is /usr/bin:/bin\n"
        ),
        "{stderr}"
    );
    assert!(!stderr.contains("s3cr3t-value"), "a value of the environment is shown: {stderr}");
    let stderr = refused(run(&dir).args(["npx-that-is-not-there"]).no_env("PATH"));
    assert!(stderr.contains("not found; PATH is not set"), "{stderr}");
}

#[test]
fn prc_5_nothing_is_written_on_stdout_when_the_client_is_silent() {
    let dir = TempDir::new("prc-5-silent");
    for command in ["no-such-command", "/no/such/file", "/"] {
        let mut relay = run(&dir).arg(command).start();
        // Its stdin stays open: it must end by itself.
        assert_eq!(relay.wait().code(), Some(3));
        assert_eq!(relay.next_or_end(), None, "stdout stays empty");
        assert!(relay.stderr_at_end().contains(command));
    }
}

#[test]
fn prc_5_files_that_cannot_be_run_are_told_apart() {
    use std::os::unix::fs::PermissionsExt;
    let dir = TempDir::new("prc-5-files");
    let plain = dir.write("plain.sh", "#!/bin/sh\n");
    let script = dir.write("script.sh", "#!/no/such/interpreter\n");
    std::fs::set_permissions(&script, std::fs::Permissions::from_mode(0o755)).expect("our file");
    let expect = |command: &std::path::Path, words: &str| {
        let stderr = refused(run(&dir).arg(command));
        assert!(stderr.contains(words) && stderr.contains(&*command.to_string_lossy()), "{stderr}");
    };
    expect(&plain, "is not executable");
    expect(&script, "names the interpreter \"/no/such/interpreter\", which does not exist");
    expect(dir.path(), "is a directory");
    // The same by name: a file without execute bit in the PATH is not the same as none.
    let stderr = refused(run(&dir).arg("plain.sh").env("PATH", dir.path()));
    assert!(stderr.contains("is not executable"), "{stderr}");
}

#[test]
fn prc_6_a_whole_command_in_one_argument_fails_with_advice() {
    let dir = TempDir::new("prc-6");
    let stderr = refused(run(&dir).arg("npx -y pkg /tmp"));
    assert!(stderr.contains("\"npx -y pkg /tmp\""), "{stderr}");
    assert!(stderr.contains("write it as several: mcprelay run -- npx -y pkg /tmp"), "{stderr}");
}

#[test]
fn prc_6_arguments_reach_the_server_exactly_as_given() {
    let dir = TempDir::new("prc-6-args");
    let args = ["a b", "\"quoted\"", "'", "*", "$HOME", "", "--timeout-ms", "0", "-", "--", "ü\u{1F389}", "a\nb", "\\"];
    let script = "printf '%s\\0' \"$@\" > args";
    let output = run(&dir).args(["sh", "-c", script, "sh"]).args(args).run(b"");
    assert!([0, 3].contains(&output.code()), "{output:?}");
    let expected: String = args.iter().map(|arg| format!("{arg}\0")).collect();
    assert_eq!(dir.read("args"), expected);
}

#[test]
fn prc_6_arguments_that_are_not_unicode_reach_the_server_too() {
    use std::os::unix::ffi::OsStrExt;
    let dir = TempDir::new("prc-6-bytes");
    let arg = std::ffi::OsStr::from_bytes(b"caf\xe9");
    let output = run(&dir).args(["sh", "-c", "printf '%s' \"$1\" > args", "sh"]).arg(arg).run(b"");
    assert!([0, 3].contains(&output.code()), "{output:?}");
    assert_eq!(std::fs::read(dir.join("args")).expect("written"), b"caf\xe9");
}

#[test]
fn prc_10_hup_and_int_end_the_session_as_term_does() {
    for signal in [Signal::TERM, Signal::HUP, Signal::INT] {
        let mut session = session("prc-10").config(SHORT_GRACE).start();
        session.send(&call("1", "hang", "{}"));
        session.wait_seen("the call", |seen| seen.iter().any(|note| note.contains("tools/call")));
        session.relay.signal(signal);
        let error = session.answer("1");
        assert_eq!(error.at("error.data.mcprelay.class"), "\"interrupted\"", "{signal:?}: {error:?}");
        assert_eq!(session.relay.wait().code(), Some(0), "{signal:?}");
        let pids = session.server_pids();
        let ended = session.finish();
        assert!(ended.seen.contains(&"#eof".to_owned()), "{signal:?}: {:?}", ended.seen);
        gone(&pids);
    }
}

#[test]
fn prc_10_a_call_may_end_in_the_time_after_a_signal() {
    let config = "shutdown: {signal_drain_ms: 20000}\n";
    let mut session = session("prc-10-drain").config(config).start();
    session.send(&call("1", "sleep", r#"{"ms":200}"#));
    session.wait_seen("the call", |seen| seen.iter().any(|note| note.contains("tools/call")));
    session.relay.signal(Signal::TERM);
    assert!(session.answer("1").at("result").contains("slept"));
    assert_eq!(session.relay.wait().code(), Some(0));
    session.finish();
}

#[test]
fn prc_10_an_idle_session_uses_no_processor_time() {
    let mut session = session("prc-10-idle").start();
    session.relay.initialize();
    session.settle();
    let pid = session.relay.pid();
    let before = proc::cpu(pid);
    // Half a second in which nothing happens but one open call.
    session.call("1", "sleep", r#"{"ms":500}"#);
    let used = proc::cpu(pid) - before;
    assert!(used <= Duration::from_millis(30), "it used {used:?} in half a second of waiting");
    session.finish();
}

#[test]
fn prc_10_an_ended_server_leaves_no_zombie_behind() {
    // The server does not survive the probe and is started once more.
    let mut session = session("prc-10-zombie").server("--exit-on-discover").start();
    session.ask(r#"{"jsonrpc":"2.0","id":1,"method":"server/discover"}"#);
    session.ask(&ping("2"));
    let children = proc::children(session.relay.pid());
    let states: Vec<Option<char>> = children.iter().map(|pid| proc::state(*pid)).collect();
    assert!(children.len() == 1 && states[0] != Some('Z'), "{children:?} are {states:?}");
    session.finish();
}
