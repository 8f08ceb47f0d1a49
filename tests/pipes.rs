//! Pipes and back-pressure (hazards PIP-1 to PIP-4), through the real binary.

use std::time::{Duration, Instant};

use crate::support::session::{call, cancel, eventually, ping, proc, session};

/// Short waits at the end of a session whose server does not go by itself.
const SHORT_GRACE: &str = "shutdown: {stdin_grace_ms: 100, term_grace_ms: 100, signal_drain_ms: 100}\n";

/// The memory of a process once it no longer grows.
fn settled_memory(pid: i32) -> usize {
    let (mut held, mut looks) = (0, 0);
    eventually("an end of the growth", || {
        let now = proc::memory_now(pid);
        looks = if now == held && now > 16 << 20 { looks + 1 } else { 0 };
        held = now;
        if looks == 100 { Ok(()) } else { Err(format!("{now} bytes")) }
    });
    held
}

#[test]
fn pip_1_a_server_that_never_reads_costs_the_call_its_timeout_and_nothing_else() {
    let mut session =
        session("pip-1").config(SHORT_GRACE).options("--timeout-ms 200").server("--never-read --ignore-term").start();
    let started = Instant::now();
    session.send(&call("1", "echo", &format!("{{\"t\":\"{}\"}}", "x".repeat(1_000_000))));
    session.send(&ping("2"));
    session.relay.close_stdin();
    let error = session.answer("1");
    assert_eq!(error.at("error.data.mcprelay.class"), "\"timeout\"", "{error:?}");
    assert_eq!(error.at("error.data.mcprelay.executed"), "\"maybe\"", "some of it was taken: {error:?}");
    let error = session.answer("2");
    assert_eq!(error.at("error.data.mcprelay.class"), "\"upstream_closed\"", "{error:?}");
    let [server] = session.server_pids()[..] else { panic!("one server") };
    let ended = session.finish();
    assert_eq!(ended.code, Some(0), "the client ended the session: {}", ended.stderr);
    assert!(started.elapsed() < Duration::from_secs(5), "it took {:?}", started.elapsed());
    assert!(!proc::is_alive(server), "the server was left behind");
}

#[test]
fn pip_1_a_call_that_never_left_is_known_not_to_have_run() {
    let setup = session("pip-1-unsent").config(SHORT_GRACE).options("--timeout-ms 200 --max-attempts 1");
    let mut session = setup.server("--never-read").start();
    // The first call fills the outbox so that the second waits in line.
    session.send(&call("1", "echo", &format!("{{\"t\":\"{}\"}}", "x".repeat(10 << 20))));
    let error = session.call("2", "echo", "{}");
    assert_eq!(error.at("error.data.mcprelay.class"), "\"timeout\"", "{error:?}");
    assert_eq!(error.at("error.data.mcprelay.executed"), "\"no\"", "{error:?}");
    session.answer("1");
    session.finish();
}

#[test]
fn pip_2_both_directions_full_at_once_do_not_deadlock() {
    let mut session = session("pip-2").server("--noise-while-reading").start();
    let arguments = format!("{{\"t\":\"{}\"}}", "x".repeat(2_000_000));
    // The server gives back every byte as noise before it reads on, and then the same again as its answer.
    let answer = session.call("1", "echo", &arguments);
    assert!(answer.at("result.structuredContent") == arguments, "{answer:?}");
    session.finish();
}

#[test]
fn pip_2_a_client_that_does_not_read_is_held_in_bounded_memory_and_can_still_cancel() {
    let mut session = session("pip-2-slow-client").started(|start| start.paused()).start();
    session.send(&call("1", "slow-drain", r#"{"count":600,"bytes":100000}"#));
    session.send(&call("2", "hang", "{}"));
    session.wait_seen("both calls", |seen| seen.len() >= 3);
    let pid = session.relay.pid();
    let held = settled_memory(pid);
    // The marks are at 8 and 16 MiB: above the second the server is not read.
    assert!((16 << 20..40 << 20).contains(&held), "60 MB are on their way; it holds {held} bytes");
    session.send(&cancel("2"));
    session.wait_seen("the cancel", |seen| seen.iter().any(|note| note.contains("notifications/cancelled")));
    session.relay.resume();
    for number in 0..600 {
        let text = session.relay.next();
        assert_eq!(text.at("params.data.n"), number.to_string());
    }
    session.answer("1");
    let peak = proc::peak_memory(pid);
    assert!(peak < 40 << 20, "60 MB went through; it held {peak} bytes at once");
    session.finish();
}

#[test]
fn pip_2_a_server_that_does_not_read_is_held_in_bounded_memory() {
    let mut session = session("pip-2-slow-server").start();
    session.settle();
    let server = rustix::process::Pid::from_raw(session.server_pids()[0]).expect("a process id");
    rustix::process::kill_process(server, rustix::process::Signal::STOP).expect("our server");
    let mut stdin = session.relay.take_stdin();
    // More than the relay may hold: the writer is stopped until the server reads.
    std::thread::spawn(move || {
        use std::io::Write;
        for id in 0..100 {
            let line = call(&id.to_string(), "echo-length", &format!("{{\"t\":\"{}\"}}", "x".repeat(1_000_000)));
            stdin.write_all(line.as_bytes()).expect("the relay reads in the end");
            stdin.write_all(b"\n").expect("the relay reads in the end");
        }
    });
    let pid = session.relay.pid();
    let held = settled_memory(pid);
    // What waits is held once for the wire and once for another attempt.
    assert!((16 << 20..60 << 20).contains(&held), "100 MB are on their way; it holds {held} bytes");
    rustix::process::kill_process(server, rustix::process::Signal::CONT).expect("our server");
    for id in 0..100 {
        session.answer(&id.to_string());
    }
    let peak = proc::peak_memory(pid);
    assert!(peak < 70 << 20, "100 MB went through; it held {peak} bytes at once");
    session.finish();
}

#[test]
fn pip_3_a_request_to_a_server_that_has_just_ended_fails_alone() {
    for round in 0..25 {
        let mut session = session("pip-3").server("--exit-after 1").start();
        session.ask(&ping("1"));
        // The server is ending now: this request may be written, refused by the pipe, or not be read any more.
        session.send(&call("2", "echo", "{}"));
        if let Some(error) = session.relay.next_or_end() {
            assert_eq!(error.at("id"), "2", "round {round}: {error:?}");
            assert_eq!(error.at("error.data.mcprelay.class"), "\"transport\"", "round {round}: {error:?}");
        }
        session.relay.wait();
        let ended = session.finish();
        assert_eq!(ended.code, Some(3), "round {round}: {}", ended.stderr);
        assert!(!ended.stderr.contains("panicked"), "round {round}: {}", ended.stderr);
    }
}

#[test]
fn pip_4_a_closed_stderr_costs_the_log_alone() {
    let setup = session("pip-4-stderr").server("--noise --stderr-flood 10000").started(|start| start.stderr_closed());
    let mut session = setup.config("policy: {rules: [{tool: boom, action: deny}]}").start();
    for id in ["1", "2", "3", "4"] {
        session.call(id, "echo", "{}");
    }
    session.call("5", "boom", "{}");
    session.relay.close_stdin();
    let cpu = session.relay.cpu_at_end();
    assert!(cpu < Duration::from_millis(500), "it used {cpu:?} of processor time");
    assert_eq!(session.finish().code, Some(0));
}

#[test]
fn pip_4_a_blocked_stderr_does_not_slow_a_call() {
    // Nobody reads; the pipe takes 64 KiB and the queue 1 MiB.
    let setup = session("pip-4-blocked").server("--stderr-flood 4000000").started(|start| start.stderr_unread());
    let mut session = setup.start();
    let started = Instant::now();
    for id in 0..10 {
        session.call(&id.to_string(), "echo", "{}");
    }
    assert!(started.elapsed() < Duration::from_secs(10), "ten calls took {:?}", started.elapsed());
    let peak = proc::peak_memory(session.relay.pid());
    assert!(peak < 32 << 20, "it held {peak} bytes");
    session.relay.close_stdin();
    assert_eq!(session.relay.wait().code(), Some(0));
    session.finish();
}

#[test]
fn pip_4_a_closed_stdout_ends_the_session_in_order() {
    let setup = session("pip-4-stdout").server("--ignore-eof --ignore-term").config(SHORT_GRACE);
    let mut session = setup.started(|start| start.frames_read(1)).start();
    session.call("1", "echo", "{}");
    // Our end of its stdout is closed now. Its stdin stays open: only its own write tells that the client is gone.
    session.send(&call("2", "echo", "{}"));
    let cpu = session.relay.cpu_at_end();
    assert!(cpu < Duration::from_millis(500), "it used {cpu:?} of processor time");
    let [server] = session.server_pids()[..] else { panic!("one server") };
    let ended = session.finish();
    assert_eq!(ended.code, Some(0), "a closed client pipe is a normal end: {}", ended.stderr);
    assert!(ended.seen.contains(&"#eof".to_owned()), "its input was not closed first: {:?}", ended.seen);
    assert!(ended.seen.contains(&"#term".to_owned()), "it was not asked to end: {:?}", ended.seen);
    assert!(!proc::is_alive(server), "the server was left behind");
}
