//! Queues and histories with known content, written by the store itself, and commands that are run on them.

use std::io::Write as _;
use std::path::Path;
use std::process::{Command, Output, Stdio};
use std::sync::Arc;
use std::time::Duration;

use mcprelay::clock::Wall;
use mcprelay::record::redact::Redactor;
use mcprelay::record::{
    AuditKind, AuditRow, CallError, CallEvent, Caller, DeadLetter, Decision, Executed, FailureClass, PolicyNote,
    Server, Transport,
};
use mcprelay::store::place::Place;
use mcprelay::store::{Command as Write, Report, Store, StoreSettings};

use super::{TempDir, mcprelay};

/// 2100-01-01T00:00:00Z. The future, because what waits since then has an age of nothing, today and tomorrow.
pub(crate) const THEN: i64 = 4_102_444_800_000;

/// A time some seconds after [`THEN`].
pub(crate) fn then(seconds: i64) -> Wall {
    Wall(THEN + seconds * 1_000)
}

/// A call that went well.
pub(crate) fn event(number: u32, tool: &str) -> CallEvent {
    CallEvent {
        id: format!("01EVENT{number:019}"),
        at: then(i64::from(number)),
        correlation_id: format!("c-{number}"),
        trace: Vec::new(),
        caller: Caller { transport: Transport::Stdio, identity: "local".to_owned() },
        server: "files".to_owned(),
        tool: tool.to_owned(),
        decision: Decision::Allowed,
        latency_ms: 100 + u64::from(number),
        request_bytes: 200,
        response_bytes: 1_000,
        attempts: 1,
        error: None,
        dead_letter_id: None,
        enforced: true,
    }
}

/// A call that failed.
pub(crate) fn failed(number: u32, tool: &str, class: FailureClass, executed: Executed) -> CallEvent {
    let error = CallError { message: "it broke".to_owned(), code: None, class: Some(class), executed, arguments: None };
    CallEvent { decision: Decision::Failed, error: Some(error), attempts: 3, ..event(number, tool) }
}

/// An audit row.
pub(crate) fn audit(number: u32, kind: AuditKind, tool: &str, record: Option<&str>) -> AuditRow {
    AuditRow {
        id: format!("01AUDIT{number:019}"),
        at: then(i64::from(number)),
        kind,
        correlation_id: format!("c-{number}"),
        record_id: record.map(str::to_owned),
        caller: "local".to_owned(),
        tool: tool.to_owned(),
        detail: (kind == AuditKind::Denied).then(|| r#"{"reason":"rule #1","token":"hidden"}"#.to_owned()),
    }
}

/// A dead letter; a capture writes an audit row of its own with it.
pub(crate) fn letter(number: u32, tool: &str, class: FailureClass) -> DeadLetter {
    DeadLetter {
        id: format!("01LETTER{number:018}"),
        correlation_id: format!("c-{number}"),
        captured_at: then(i64::from(number)),
        caller: Caller { transport: Transport::Stdio, identity: "local".to_owned() },
        server: Server {
            name: "files".to_owned(),
            transport: Transport::Stdio,
            argv: ["npx", "files-server"].map(str::to_owned).to_vec(),
            cwd: None,
        },
        client: None,
        tool: tool.to_owned(),
        arguments: Some(b"{}".to_vec()),
        idempotency_key: None,
        mid_conversation: false,
        idempotent: false,
        class,
        executed: Executed::Maybe,
        code: None,
        message: "it broke".to_owned(),
        detail: None,
        attempts: Vec::new(),
        policy: PolicyNote { allowed: true, rule: None, reason: "default".to_owned() },
    }
}

/// Writes all of it into the queue and the history under `dir`, in this order.
pub(crate) fn store(dir: &Path, letters: Vec<DeadLetter>, audits: Vec<AuditRow>, events: Vec<CallEvent>) {
    let settings = StoreSettings {
        queue: Place::new(dir.join(".mcprelay/queue.db"), None),
        history: Place::new(dir.join(".mcprelay/history.db"), None),
        retention_days: 0,
        redactor: Redactor::new(&["token".to_owned()]),
        seal: std::sync::Arc::default(),
        queue_busy: Duration::from_secs(30),
    };
    let report = |report| assert!(matches!(report, Report::Stored { .. }), "{report:?}");
    let store = Store::start(settings, Box::new(report)).expect("a thread");
    let submit = |write| store.submit(write).expect("the store takes it");
    for (ticket, letter) in letters.into_iter().enumerate() {
        let number = u32::try_from(ticket).expect("few") + 900;
        let audit = audit(number, AuditKind::Captured, &letter.tool.clone(), Some(&letter.id.clone()));
        submit(Write::Capture { ticket: u64::from(number), letter: Arc::new(letter), audit });
    }
    audits.into_iter().for_each(|row| submit(Write::Audit(row)));
    events.into_iter().for_each(|event| submit(Write::Event(Arc::new(event))));
    store.finish();
}

/// A directory with three kinds of calls, two dead letters, one of them replayed, and a denial.
pub(crate) fn example(name: &str) -> TempDir {
    let dir = TempDir::new(name);
    let mut events: Vec<CallEvent> = (0..20).map(|n| event(n, "read_file")).collect();
    events.push(failed(20, "write_file", FailureClass::Timeout, Executed::Maybe));
    events.push(failed(21, "write_file", FailureClass::Timeout, Executed::Maybe));
    events.push(failed(22, "write_file", FailureClass::Transport, Executed::No));
    events.push(CallEvent { decision: Decision::Denied, attempts: 0, latency_ms: 0, ..event(23, "delete_file") });
    events.push(CallEvent { decision: Decision::Cancelled, latency_ms: 90_000, ..event(24, "read_file") });
    events.push(CallEvent { attempts: 2, ..event(25, "read_file") });
    let ci = Caller { transport: Transport::Stdio, identity: "ci".to_owned() };
    events.push(CallEvent { caller: ci, server: "git".to_owned(), ..event(26, "git_log") });
    let letters =
        vec![letter(20, "write_file", FailureClass::Timeout), letter(21, "write_file", FailureClass::Timeout)];
    let replayed = letters[0].id.clone();
    let audits = vec![
        audit(23, AuditKind::Denied, "delete_file", None),
        audit(30, AuditKind::Replayed, "write_file", Some(&replayed)),
    ];
    store(dir.path(), letters, audits, events);
    dir
}

/// Runs `mcprelay` with arguments split at blanks, as in a pipe and without a user's own state.
pub(crate) fn command(dir: &Path, line: &str) -> Command {
    let mut command = Command::new(mcprelay());
    command.args(line.split_whitespace()).current_dir(dir).env("HOME", dir).env_remove("XDG_STATE_HOME");
    command.env_remove("COLUMNS").env_remove("NO_COLOR").stdin(Stdio::null());
    command
}

/// What a run came to: exit code, standard output, standard error without the warning about a missing policy.
pub(crate) fn run(dir: &Path, line: &str) -> (i32, String, String) {
    told(&command(dir, line).output().expect("it starts"))
}

pub(crate) fn told(output: &Output) -> (i32, String, String) {
    let text = |bytes: &[u8]| String::from_utf8(bytes.to_vec()).expect("text");
    let err = text(&output.stderr);
    let err: Vec<&str> = err.lines().filter(|line| !line.starts_with("mcprelay: warning: ")).collect();
    (output.status.code().unwrap_or(-1), text(&output.stdout), err.join("\n"))
}

/// The one JSON document that a successful run prints.
pub(crate) fn document(dir: &Path, line: &str) -> serde_json::Value {
    let (code, out, err) = run(dir, line);
    assert_eq!((code, err.as_str()), (0, ""), "{line}: {out}");
    assert_eq!(out.matches('\n').count(), 1, "{line}: one line");
    serde_json::from_str(&out).unwrap_or_else(|error| panic!("{line}: {error}: {out}"))
}

/// Compares a text with `tests/snapshots/NAME.txt`; with `MCPRELAY_UPDATE_SNAPSHOTS=1` the file is written instead.
pub(crate) fn snapshot(name: &str, text: &str) {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join(format!("tests/snapshots/{name}.txt"));
    if std::env::var_os("MCPRELAY_UPDATE_SNAPSHOTS").is_some_and(|value| value == "1") {
        std::fs::create_dir_all(path.parent().expect("it has a directory")).expect("made");
        std::fs::write(&path, text).expect("written");
        return;
    }
    let known = std::fs::read_to_string(&path).unwrap_or_default();
    if known != text {
        let _ = writeln!(std::io::stderr(), "--- {}\n{known}+++ now\n{text}", path.display());
        panic!("{name} is not what it was; MCPRELAY_UPDATE_SNAPSHOTS=1 takes the new text if it is meant");
    }
}

/// The program at its full path, if it is on the search path; says so if it is not, which is a failure where the peers
/// are required.
pub(crate) fn program(names: &[&str], what: &str) -> Option<std::path::PathBuf> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let found =
        names.iter().find_map(|name| std::env::split_paths(&path).map(|dir| dir.join(name)).find(|p| p.is_file()));
    if found.is_none() {
        let required = std::env::var_os("MCPRELAY_REQUIRE_PEERS").is_some_and(|value| value == "1");
        assert!(!required, "{what}: there is no {}", names.join(" or "));
        super::process::say(&format!("*** SKIPPED: {what}: there is no {}", names.join(" or ")));
    }
    found
}
