//! The store against real files: what is stored when, and what faults of the files do to it.

use super::*;
use crate::clock::Wall;
use crate::record::test_values::{audit, call_error, event, letter};
use crate::record::{Executed, Status};
use queue::{Filter, Queue};
use rusqlite::Connection;
use std::collections::BTreeSet;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use test_dir::TestDir;

/// Long enough for any machine; only a failing test waits for it.
const PATIENCE: Duration = Duration::from_secs(30);

struct Running {
    store: Store,
    reports: Receiver<Report>,
}

fn settings(dir: &Path) -> StoreSettings {
    StoreSettings {
        queue: Place::new(dir.join(".mcprelay/queue.db"), None),
        history: Place::new(dir.join(".mcprelay/history.db"), None),
        retention_days: 30,
        redactor: Redactor::new(&["token".to_owned(), "password".to_owned()]),
        seal: std::sync::Arc::default(),
        queue_busy: Duration::from_millis(5_000),
    }
}

impl Running {
    fn start(settings: StoreSettings) -> Running {
        let (to, reports) = crossbeam_channel::unbounded();
        let report = Box::new(move |report| to.send(report).expect("the test listens"));
        Running { store: Store::start(settings, report).expect("a thread"), reports }
    }

    fn send(&self, command: Command) {
        self.store.submit(command).expect("the store takes it");
    }

    fn capture(&self, ticket: u64, id: &str) {
        let audit = audit(&format!("A{id}"), id);
        self.send(Command::Capture { ticket, letter: std::sync::Arc::new(letter(id)), audit });
    }

    fn next(&self) -> Report {
        self.reports.recv_timeout(PATIENCE).expect("a report comes")
    }

    /// Ends the store and gives the reports that were not looked at.
    fn finish(self) -> Vec<Report> {
        self.store.finish();
        self.reports.try_iter().collect()
    }
}

fn queue(dir: &Path) -> Queue {
    Queue::open_existing(&dir.join(".mcprelay/queue.db"), PATIENCE).expect("the queue opens")
}

fn history(dir: &Path) -> Connection {
    Connection::open(dir.join(".mcprelay/history.db")).expect("the history opens")
}

fn count(conn: &Connection, table: &str) -> i64 {
    conn.query_row(&format!("SELECT count(*) FROM {table}"), [], |row| row.get(0)).expect("counted")
}

fn mode(path: &Path) -> u32 {
    path.metadata().expect("it exists").permissions().mode() & 0o777
}

#[test]
fn a_capture_can_be_read_by_others_when_it_is_reported_and_no_earlier_file_exists() {
    let dir = TestDir::new();
    let running = Running::start(settings(dir.path()));
    assert!(!dir.path().join(".mcprelay").exists(), "nothing is made before it is needed");
    running.capture(7, "01A");
    assert_eq!(running.next(), Report::Stored { ticket: 7 });
    let record = queue(dir.path()).get("01A").expect("stored");
    assert_eq!(record, crate::record::stored::Record::of(&letter("01A"), &settings(dir.path()).redactor).0);
    assert_eq!(record.arguments.as_deref(), Some(r#"{"path":"/srv/a","n":1.10,"token":"[REDACTED]"}"#));
    assert_eq!(running.finish(), []);
    assert_eq!(count(&history(dir.path()), "audit"), 1);
}

#[test]
fn every_member_of_a_record_survives_the_file() {
    let dir = TestDir::new();
    let mut full = letter("01B");
    full.code = None;
    full.client = None;
    full.server.cwd = None;
    full.arguments = None;
    full.detail = Some(br#"{"n":1e400,"s":"\ud800"}"#.to_vec());
    full.idempotency_key = Some("key \u{0} 'quoted'".to_owned());
    full.mid_conversation = true;
    full.idempotent = true;
    full.policy.rule = Some(3);
    full.message = "line\nnul \u{0} emoji 🎉".to_owned();
    let running = Running::start(settings(dir.path()));
    let command = Command::Capture { ticket: 1, letter: std::sync::Arc::new(full.clone()), audit: audit("A", "01B") };
    running.send(command);
    assert_eq!(running.next(), Report::Stored { ticket: 1 });
    let expected = crate::record::stored::Record::of(&full, &settings(dir.path()).redactor).0;
    assert_eq!(queue(dir.path()).get("01B").expect("stored"), expected);
}

#[test]
fn all_captures_that_wait_are_stored_and_each_is_reported_once() {
    let dir = TestDir::new();
    let running = Running::start(settings(dir.path()));
    for ticket in 0..300 {
        running.capture(ticket, &format!("01{ticket:04}"));
    }
    let mut stored = BTreeSet::new();
    while stored.len() < 300 {
        let Report::Stored { ticket } = running.next() else { panic!("all are stored") };
        assert!(stored.insert(ticket), "{ticket} twice");
    }
    assert_eq!(queue(dir.path()).count(&Filter::default()).expect("counted"), 300);
    assert_eq!(running.finish(), []);
}

#[test]
fn a_record_that_comes_twice_is_stored_once() {
    let dir = TestDir::new();
    let running = Running::start(settings(dir.path()));
    running.capture(1, "01A");
    assert_eq!(running.next(), Report::Stored { ticket: 1 });
    let first = queue(dir.path()).claim("01A", "a", PATIENCE, Wall(0), false).expect("free");
    running.capture(2, "01A");
    assert_eq!(running.next(), Report::Stored { ticket: 2 });
    assert_eq!(queue(dir.path()).get("01A").expect("stored"), first, "its life is not reset");
    assert_eq!(queue(dir.path()).count(&Filter::default()).expect("counted"), 1);
}

#[test]
fn dlq_3_directory_and_files_are_private_whatever_the_umask_and_looser_ones_are_reported() {
    let dir = TestDir::new();
    let home = dir.path().join(".mcprelay");
    let running = Running::start(settings(dir.path()));
    running.capture(1, "01A");
    running.send(Command::Event(std::sync::Arc::new(event("01E"))));
    running.send(Command::Flush);
    assert_eq!(running.next(), Report::Stored { ticket: 1 });
    assert_eq!(mode(&home), 0o700);
    for name in ["queue.db", "queue.db-wal", "queue.db-shm"] {
        assert_eq!(mode(&home.join(name)), 0o600, "{name}");
    }
    running.capture(2, "01B");
    assert_eq!(running.next(), Report::Stored { ticket: 2 });
    for name in ["history.db", "history.db-wal", "history.db-shm"] {
        assert_eq!(mode(&home.join(name)), 0o600, "{name}");
    }
    running.finish();

    std::fs::set_permissions(home.join("queue.db"), PermissionsExt::from_mode(0o644)).expect("changed");
    let running = Running::start(settings(dir.path()));
    running.capture(3, "01C");
    let Report::Trouble(text) = running.next() else { panic!("the mode is reported first") };
    assert!(text.contains("queue.db") && text.contains("0644"), "{text}");
    assert_eq!(running.next(), Report::Stored { ticket: 3 });
}

#[test]
fn a_deleted_directory_is_made_again_and_nothing_is_written_into_the_void() {
    let dir = TestDir::new();
    let running = Running::start(settings(dir.path()));
    running.capture(1, "01A");
    assert_eq!(running.next(), Report::Stored { ticket: 1 });
    // Moved, which is a removal that cannot race with what is written behind the report.
    std::fs::rename(dir.path().join(".mcprelay"), dir.path().join("moved")).expect("moved");
    running.capture(2, "01B");
    // The history may have been moved away while it was being opened; that says so and heals by itself.
    let report = std::iter::repeat_with(|| running.next()).find(|report| !matches!(report, Report::Trouble(_)));
    assert_eq!(report, Some(Report::Stored { ticket: 2 }));
    assert_eq!(mode(&dir.path().join(".mcprelay/queue.db")), 0o600);
    let ids: Vec<String> =
        queue(dir.path()).list(&Filter::default()).expect("listed").into_iter().map(|record| record.id).collect();
    assert_eq!(ids, ["01B"]);
}

/// What a second process does in the tests below; it is started by them and does nothing otherwise.
#[test]
#[ignore = "started by other tests as a process of its own"]
fn as_another_process() {
    let (Ok(dir), Ok(id), Ok(job)) =
        (std::env::var("STORE_TEST_DIR"), std::env::var("STORE_TEST_ID"), std::env::var("STORE_TEST_JOB"))
    else {
        return;
    };
    let dir = Path::new(&dir);
    match job.as_str() {
        "capture" => {
            let running = Running::start(settings(dir));
            running.capture(1, &id);
            assert_eq!(running.next(), Report::Stored { ticket: 1 });
            assert_eq!(running.finish(), []);
        }
        "capture despite damage" => {
            let running = Running::start(settings(dir));
            running.capture(1, &id);
            let reports = running.finish();
            assert!(reports.contains(&Report::Stored { ticket: 1 }), "{reports:?}");
        }
        "die" => {
            let running = Running::start(settings(dir));
            running.capture(1, &id);
            assert_eq!(running.next(), Report::Stored { ticket: 1 });
            let me = rustix::process::getpid();
            rustix::process::kill_process(me, rustix::process::Signal::KILL).expect("killed");
        }
        "disk" => out_of_space(dir),
        other => panic!("unknown job {other}"),
    }
}

fn process(dir: &Path, id: &str, job: &str) -> std::process::Command {
    let mut command = std::process::Command::new(std::env::current_exe().expect("this test binary"));
    command.args(["--exact", "store::tests::as_another_process", "--ignored", "--nocapture"]);
    command.env("STORE_TEST_DIR", dir).env("STORE_TEST_ID", id).env("STORE_TEST_JOB", job);
    command.stdout(std::process::Stdio::piped()).stderr(std::process::Stdio::piped());
    command
}

#[test]
fn sql_1_processes_that_start_together_on_a_fresh_directory_all_write_without_a_warning() {
    for _ in 0..12 {
        let dir = TestDir::new();
        let children: Vec<_> =
            (0..8).map(|n| process(dir.path(), &format!("01{n}"), "capture").spawn().expect("started")).collect();
        for child in children {
            let output = child.wait_with_output().expect("ended");
            let said = String::from_utf8_lossy(&output.stderr).into_owned();
            assert!(output.status.success() && String::from_utf8_lossy(&output.stdout).contains("1 passed"), "{said}");
        }
        assert_eq!(queue(dir.path()).count(&Filter::default()).expect("counted"), 8);
        chain_holds(dir.path(), 8);
    }
}

#[test]
fn a_stored_capture_survives_kill_9() {
    let dir = TestDir::new();
    let output = process(dir.path(), "01A", "die").output().expect("ran");
    assert!(!output.status.success());
    assert_eq!(queue(dir.path()).get("01A").expect("stored").status, Status::Pending);
    let running = Running::start(settings(dir.path()));
    running.capture(2, "01B");
    assert_eq!(running.next(), Report::Stored { ticket: 2 });
}

/// Every row carries the hash of the row before it, and no number is left out.
fn chain_holds(dir: &Path, rows: u64) {
    let trail = reading::History::open_existing(&dir.join(".mcprelay/history.db"), PATIENCE).expect("it opens");
    let verified = trail.verify(&mut |_| ()).expect("read");
    assert_eq!((verified.rows, verified.breaks), (rows, Vec::new()));
}

#[test]
fn the_audit_trail_chains_over_batches_and_every_column_counts() {
    let dir = TestDir::new();
    for round in 0..3 {
        let running = Running::start(settings(dir.path()));
        for n in 0..3 {
            let mut row = audit(&format!("A{round}{n}"), "01A");
            row.detail = Some(r#"{"reason":"bad","token":"abc"}"#.to_owned());
            running.send(Command::Audit(row));
        }
        assert_eq!(running.finish(), []);
    }
    chain_holds(dir.path(), 9);
    let conn = history(dir.path());
    let detail: String = conn.query_row("SELECT detail FROM audit LIMIT 1", [], |row| row.get(0)).expect("read");
    assert_eq!(detail, r#"{"reason":"bad","token":"[REDACTED]"}"#);
    let row = history::StoredAudit {
        seq: 1,
        id: "A".to_owned(),
        at: Wall(5_000),
        kind: "captured".to_owned(),
        correlation_id: "c".to_owned(),
        record_id: Some("01A".to_owned()),
        caller: "local".to_owned(),
        tool: "write_file".to_owned(),
        detail: None,
        previous_hash: crate::record::anchor::CHAIN_START.to_owned(),
    };
    let edits: [fn(&mut history::StoredAudit); 10] = [
        |row| row.seq = 2,
        |row| row.id.push('x'),
        |row| row.at = Wall(1),
        |row| row.kind.push('x'),
        |row| row.correlation_id.push('x'),
        |row| row.record_id = None,
        |row| row.caller.push('x'),
        |row| row.tool.push('x'),
        |row| row.detail = Some("null".to_owned()),
        |row| row.previous_hash.push('x'),
    ];
    for (column, edit) in edits.iter().enumerate() {
        let mut other = row.clone();
        edit(&mut other);
        assert_ne!(other.hash(), row.hash(), "column {column}");
    }
}

#[test]
fn sql_1_a_first_start_waits_for_a_writer_that_is_at_work() {
    let dir = TestDir::new();
    let running = Running::start(settings(dir.path()));
    let path = dir.path().join(".mcprelay/queue.db");
    std::fs::create_dir_all(dir.path().join(".mcprelay")).expect("made");
    let other = Connection::open(&path).expect("opened");
    other.execute_batch("BEGIN EXCLUSIVE").expect("locked");
    running.capture(1, "01A");
    running.reports.recv_timeout(Duration::from_millis(300)).expect_err("it waits");
    other.execute_batch("COMMIT").expect("unlocked");
    // The test's own file was made with the umask of the test.
    let reports = [running.next(), running.next()];
    assert!(matches!(&reports[0], Report::Trouble(text) if text.contains("can be read by others")), "{reports:?}");
    assert_eq!(reports[1], Report::Stored { ticket: 1 });
    let mode: String = other.query_row("PRAGMA journal_mode", [], |row| row.get(0)).expect("read");
    assert_eq!(mode, "wal");
}

#[test]
fn sql_1_the_switch_to_wal_is_tried_again_while_a_reader_is_in_the_way() {
    let dir = TestDir::new();
    let running = Running::start(settings(dir.path()));
    std::fs::create_dir_all(dir.path().join(".mcprelay")).expect("made");
    let other = Connection::open(dir.path().join(".mcprelay/queue.db")).expect("opened");
    other.execute_batch("BEGIN; SELECT count(*) FROM sqlite_master;").expect("reading");
    running.capture(1, "01A");
    running.reports.recv_timeout(Duration::from_millis(300)).expect_err("it waits");
    other.execute_batch("COMMIT").expect("done");
    let reports = [running.next(), running.next()];
    assert!(matches!(&reports[0], Report::Trouble(text) if text.contains("can be read by others")), "{reports:?}");
    assert_eq!(reports[1], Report::Stored { ticket: 1 });
    // A connection of its own: the reader remembers the mode it began with.
    let fresh = Connection::open(dir.path().join(".mcprelay/queue.db")).expect("opened");
    let mode: String = fresh.query_row("PRAGMA journal_mode", [], |row| row.get(0)).expect("read");
    assert_eq!(mode, "wal");
}

#[test]
fn a_lasting_fault_is_told_once_and_its_end_once() {
    let dir = TestDir::new();
    let path = dir.path().join(".mcprelay/history.db");
    std::fs::create_dir_all(&path).expect("made");
    let running = Running::start(settings(dir.path()));
    let mut reports = Vec::new();
    for n in 0..5 {
        running.send(Command::Event(Arc::new(crate::record::CallEvent { at: day(0), ..event(&format!("01{n}")) })));
        running.send(Command::Flush);
        running.capture(n, &format!("01{n}"));
        // One turn after the other: commands that wait together are one try.
        while !matches!(reports.last(), Some(Report::Stored { ticket }) if *ticket == n) {
            reports.push(running.next());
        }
    }
    std::fs::remove_dir(&path).expect("removed");
    reports.extend(running.finish());
    let troubles: Vec<&Report> = reports.iter().filter(|report| matches!(report, Report::Trouble(_))).collect();
    let [Report::Trouble(first), Report::Trouble(last)] = troubles[..] else { panic!("{troubles:?}") };
    assert!(first.contains("is a directory") && last.contains("works again"), "{troubles:?}");
    assert_eq!(count(&history(dir.path()), "call_events"), 5, "nothing was lost meanwhile");
}

#[test]
fn a_locked_queue_fails_its_captures_by_name_and_works_when_it_is_free_again() {
    let dir = TestDir::new();
    let running = Running::start(StoreSettings { queue_busy: Duration::from_millis(30), ..settings(dir.path()) });
    running.capture(1, "01A");
    assert_eq!(running.next(), Report::Stored { ticket: 1 });
    let other = Connection::open(dir.path().join(".mcprelay/queue.db")).expect("opened");
    other.execute_batch("BEGIN IMMEDIATE").expect("locked");
    running.capture(2, "01B");
    let Report::StoreFailed { ticket: 2, error } = running.next() else { panic!("it is locked") };
    assert!(error.contains("queue.db") && error.contains("locked"), "{error}");
    other.execute_batch("COMMIT").expect("unlocked");
    running.capture(3, "01C");
    assert_eq!(running.next(), Report::Stored { ticket: 3 });
    assert_eq!(running.finish(), [], "a failed capture leaves no audit row and no second word");
    chain_holds(dir.path(), 2);
}

#[test]
fn a_locked_history_holds_up_no_capture_and_is_written_later() {
    let dir = TestDir::new();
    // Captures that waited behind the history for as long would outlast the patience of this test.
    let running = Running::start(StoreSettings { queue_busy: PATIENCE * 4, ..settings(dir.path()) });
    running.send(Command::Event(std::sync::Arc::new(event("01E"))));
    running.capture(1, "01A");
    assert_eq!(running.next(), Report::Stored { ticket: 1 });
    running.capture(2, "01B");
    assert_eq!(running.next(), Report::Stored { ticket: 2 });
    let other = history(dir.path());
    other.execute_batch("BEGIN IMMEDIATE").expect("locked");
    for ticket in 3..20 {
        running.capture(ticket, &format!("02{ticket:02}"));
    }
    let mut stored = 0;
    let mut troubles = Vec::new();
    while stored < 17 {
        match running.next() {
            Report::Stored { .. } => stored += 1,
            Report::Trouble(text) => troubles.push(text),
            Report::StoreFailed { error, .. } => panic!("{error}"),
        }
    }
    // The lock ends only when the fault was seen, however slow the machine is.
    while troubles.is_empty() {
        if let Report::Trouble(text) = running.next() {
            troubles.push(text);
        }
    }
    other.execute_batch("COMMIT").expect("unlocked");
    let rest = running.finish();
    assert!(
        troubles.len() == 1 && troubles[0].contains("history.db") && troubles[0].contains("locked"),
        "{troubles:?}"
    );
    assert!(
        rest.iter().all(|report| matches!(report, Report::Trouble(text) if text.contains("works again"))),
        "{rest:?}"
    );
    chain_holds(dir.path(), 19);
    assert_eq!(count(&history(dir.path()), "call_events"), 1);
}

#[test]
fn sql_2_a_path_that_is_a_directory_is_named_and_calls_go_on() {
    let dir = TestDir::new();
    std::fs::create_dir_all(dir.path().join(".mcprelay/queue.db")).expect("made");
    let running = Running::start(settings(dir.path()));
    for ticket in [1, 2] {
        running.capture(ticket, "01A");
        let Report::StoreFailed { error, .. } = running.next() else { panic!("it is a directory") };
        assert!(error.contains(".mcprelay/queue.db") && error.contains("is a directory"), "{error}");
    }
    std::fs::remove_dir(dir.path().join(".mcprelay/queue.db")).expect("removed");
    running.capture(3, "01A");
    assert_eq!(running.next(), Report::Stored { ticket: 3 });
}

#[test]
fn foreign_and_newer_files_are_refused_by_name_and_not_touched() {
    let dir = TestDir::new();
    let path = dir.path().join(".mcprelay/queue.db");
    let running = Running::start(settings(dir.path()));
    running.capture(1, "01A");
    assert_eq!(running.next(), Report::Stored { ticket: 1 });
    running.finish();
    let good = std::fs::read(&path).expect("read");

    let newer = |conn: &Connection| conn.execute_batch("PRAGMA user_version = 99").expect("changed");
    let foreign =
        |conn: &Connection| conn.execute_batch("PRAGMA application_id = 0; PRAGMA user_version = 0").expect("changed");
    let history = |conn: &Connection| {
        conn.pragma_update(None, "application_id", schema::HISTORY.application_id).expect("changed")
    };
    let edited = |edit: &dyn Fn(&Connection)| {
        std::fs::write(&path, &good).expect("written");
        let conn = Connection::open(&path).expect("opened");
        edit(&conn);
        drop(conn);
        std::fs::read(&path).expect("read")
    };
    for (bytes, reason) in [
        (edited(&newer), "newer mcprelay (schema 99"),
        (edited(&foreign), "another program's database"),
        (edited(&history), "not a queue of mcprelay"),
    ] {
        std::fs::write(&path, &bytes).expect("written");
        let running = Running::start(settings(dir.path()));
        running.capture(2, "01B");
        let Report::StoreFailed { error, .. } = running.next() else { panic!("{reason}") };
        assert!(error.contains("queue.db") && error.contains(reason), "{error}");
        running.finish();
        assert!(std::fs::read(&path).expect("read") == bytes, "{reason}: the file was changed");
    }
}

#[test]
fn a_damaged_queue_is_put_aside_with_all_that_belongs_to_it_and_a_new_one_takes_the_capture() {
    let dir = TestDir::new();
    let path = dir.path().join(".mcprelay/queue.db");
    let running = Running::start(settings(dir.path()));
    running.capture(1, "01A");
    assert_eq!(running.next(), Report::Stored { ticket: 1 });
    running.finish();
    let good = std::fs::read(&path).expect("read");
    let mut damaged = good.clone();
    damaged[100..].iter_mut().for_each(|byte| *byte = 0xAA);
    let cut = good[..good.len() / 2].to_vec();
    let text = b"not a database at all, but long enough to be taken for one; ".repeat(20);
    for (round, bytes) in [damaged, cut, text].into_iter().enumerate() {
        std::fs::write(&path, &bytes).expect("written");
        let wal = format!("a log of round {round}");
        std::fs::write(files::with_suffix(&path, "-wal"), &wal).expect("written");
        let running = Running::start(settings(dir.path()));
        running.capture(2, "01B");
        let Report::Trouble(said) = running.next() else { panic!("round {round}") };
        assert!(said.starts_with("THE QUEUE IS DAMAGED: cannot "), "{said}");
        assert_eq!(running.next(), Report::Stored { ticket: 2 }, "round {round}");
        running.capture(3, "01C");
        assert_eq!(running.next(), Report::Stored { ticket: 3 }, "said once: round {round}");
        running.finish();
        let ids: Vec<String> =
            queue(dir.path()).list(&Filter::default()).expect("listed").into_iter().map(|record| record.id).collect();
        assert_eq!(ids, ["01C", "01B"], "round {round}");
        let aside = said.split(" is kept as ").nth(1).and_then(|rest| rest.split(", and").next()).expect("it is named");
        assert_eq!(std::fs::read(aside).expect("kept"), bytes, "round {round}");
        assert_eq!(std::fs::read(format!("{aside}-wal")).expect("kept"), wal.into_bytes(), "round {round}");
    }
}

#[test]
fn a_file_that_never_claimed_to_be_a_database_stays_where_it_is() {
    let dir = TestDir::new();
    let path = dir.path().join("notes.txt");
    let text = b"somebody's notes, at the path that a typing error named; ".repeat(20);
    std::fs::write(&path, &text).expect("written");
    let running = Running::start(StoreSettings { queue: Place::new(&path, None), ..settings(dir.path()) });
    running.capture(1, "01A");
    let Report::StoreFailed { error, .. } = running.next() else { panic!("it is no queue") };
    assert!(error.contains("notes.txt: not a SQLite database") && error.contains("left alone"), "{error}");
    running.finish();
    assert_eq!(std::fs::read(&path).expect("read"), text);
}

#[test]
fn processes_that_find_the_same_damage_put_one_file_aside_and_lose_nothing() {
    for _ in 0..6 {
        let dir = TestDir::new();
        std::fs::create_dir(dir.path().join(".mcprelay")).expect("made");
        let path = dir.path().join(".mcprelay/queue.db");
        std::fs::write(&path, "no database ".repeat(100)).expect("written");
        let children: Vec<_> = (0..6)
            .map(|n| process(dir.path(), &format!("01{n}"), "capture despite damage").spawn().expect("started"))
            .collect();
        for child in children {
            let output = child.wait_with_output().expect("ended");
            assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        }
        assert_eq!(queue(dir.path()).count(&Filter::default()).expect("counted"), 6);
        let aside = std::fs::read_dir(dir.path().join(".mcprelay")).expect("readable").flatten();
        let aside = aside.filter(|entry| entry.file_name().to_string_lossy().contains(".corrupt-")).count();
        assert_eq!(aside, 1);
    }
}

/// Runs in its own process, because the limit on the size of files is the whole process's.
fn out_of_space(dir: &Path) {
    use rustix::process::{Resource, Rlimit, setrlimit};
    signal_hook::flag::register(signal_hook::consts::SIGXFSZ, Arc::default()).expect("registered");
    let limit = |bytes| setrlimit(Resource::Fsize, Rlimit { current: bytes, maximum: None }).expect("limited");
    let running = Running::start(settings(dir));
    running.capture(0, "01start");
    assert_eq!(running.next(), Report::Stored { ticket: 0 });
    limit(Some(400 * 1024));
    let mut failed = 0;
    for ticket in 1..=50 {
        let mut letter = letter(&format!("01{ticket:03}"));
        letter.message = "x".repeat(20_000);
        running.send(Command::Capture {
            ticket,
            letter: std::sync::Arc::new(letter),
            audit: audit(&format!("A{ticket}"), "01A"),
        });
        loop {
            match running.next() {
                Report::Stored { .. } => break,
                Report::StoreFailed { error, .. } => {
                    assert!(error.contains("queue.db"), "{error}");
                    failed += 1;
                    break;
                }
                Report::Trouble(_) => {}
            }
        }
    }
    assert!(failed > 10, "the limit was felt: {failed}");
    limit(None);
    running.capture(99, "01end");
    loop {
        match running.next() {
            Report::Stored { ticket } => break assert_eq!(ticket, 99),
            Report::Trouble(_) => {}
            Report::StoreFailed { error, .. } => panic!("still failing: {error}"),
        }
    }
    running.finish();
    assert_eq!(queue(dir).count(&Filter::default()).expect("counted"), 52 - failed);
    let check: String = Connection::open(dir.join(".mcprelay/queue.db"))
        .and_then(|conn| conn.query_row("PRAGMA integrity_check", [], |row| row.get(0)))
        .expect("checked");
    assert_eq!(check, "ok");
}

#[test]
fn sql_3_captures_fail_by_name_while_there_is_no_space_and_work_once_there_is() {
    let dir = TestDir::new();
    let output = process(dir.path(), "", "disk").output().expect("ran");
    let said = String::from_utf8_lossy(&output.stdout).into_owned() + &String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success() && said.contains("1 passed"), "{said}");
}

#[test]
fn one_row_that_is_refused_does_not_spoil_its_group() {
    let dir = TestDir::new();
    let running = Running::start(settings(dir.path()));
    running.capture(1, "01A");
    assert_eq!(running.next(), Report::Stored { ticket: 1 });
    let other = Connection::open(dir.path().join(".mcprelay/queue.db")).expect("opened");
    other
        .execute_batch(
            "CREATE TRIGGER bad BEFORE INSERT ON failures WHEN new.id = '01BAD' BEGIN SELECT raise(ABORT, 'bad row'); END;
            BEGIN IMMEDIATE",
        )
        .expect("made");
    for (ticket, id) in [(2, "01B"), (3, "01BAD"), (4, "01C")] {
        running.capture(ticket, id);
    }
    other.execute_batch("COMMIT").expect("unlocked");
    let mut reports = vec![running.next(), running.next(), running.next()];
    reports.sort_by_key(|report| match report {
        Report::Stored { ticket } | Report::StoreFailed { ticket, .. } => *ticket,
        Report::Trouble(_) => 0,
    });
    assert_eq!((&reports[0], &reports[2]), (&Report::Stored { ticket: 2 }, &Report::Stored { ticket: 4 }));
    assert!(
        matches!(&reports[1], Report::StoreFailed { ticket: 3, error } if error.contains("bad row")),
        "{reports:?}"
    );
}

#[test]
fn a_place_that_cannot_be_made_is_replaced_with_one_warning() {
    let dir = TestDir::new();
    std::fs::write(dir.path().join("file"), "").expect("written");
    let state = dir.path().join("state");
    let running = Running::start(StoreSettings {
        queue: Place::new(dir.path().join("file/queue.db"), Some(&state)),
        history: Place::new(dir.path().join("file/history.db"), Some(&state)),
        ..settings(dir.path())
    });
    running.capture(1, "01A");
    let Report::Trouble(text) = running.next() else { panic!("a warning comes first") };
    assert!(text.contains("state/queue.db"), "{text}");
    assert_eq!(running.next(), Report::Stored { ticket: 1 });
    assert!(state.join("queue.db").exists());
}

#[test]
fn events_wait_for_company_but_not_for_long_and_a_dry_run_line_is_no_event() {
    let dir = TestDir::new();
    let running = Running::start(settings(dir.path()));
    let mut failed = event("01E");
    failed.error = Some(call_error("x"));
    failed.dead_letter_id = Some("01D".to_owned());
    running.send(Command::Event(std::sync::Arc::new(failed)));
    running.send(Command::Event(std::sync::Arc::new(crate::record::CallEvent { enforced: false, ..event("01F") })));
    let path = dir.path().join(".mcprelay/history.db");
    // No flush: the 50 ms run out by themselves.
    let written = (0..3_000).any(|_| {
        let _ = running.reports.recv_timeout(Duration::from_millis(10));
        let conn = Connection::open_with_flags(&path, rusqlite::OpenFlags::SQLITE_OPEN_READ_ONLY);
        conn.is_ok_and(|conn| conn.query_row("SELECT count(*) FROM call_events", [], |row| row.get(0)) == Ok(1))
    });
    assert!(written);
    let row: (String, String, String, String, i64, String) = history(dir.path())
        .query_row("SELECT id, server, class, executed, latency_ms, dead_letter_id FROM call_events", [], |row| {
            Ok((row.get(0)?, row.get(1)?, row.get(2)?, row.get(3)?, row.get(4)?, row.get(5)?))
        })
        .expect("one event");
    let expected = ("01E", "files", "upstream_error", "maybe", 812, "01D");
    assert_eq!((row.0.as_str(), row.1.as_str(), row.2.as_str(), row.3.as_str(), row.4, row.5.as_str()), expected);
    assert!(!dir.path().join(".mcprelay/queue.db").exists(), "events need no queue");
}

#[test]
fn an_orderly_end_writes_every_event() {
    let dir = TestDir::new();
    let running = Running::start(settings(dir.path()));
    for n in 0..1_500 {
        running.send(Command::Event(std::sync::Arc::new(event(&format!("01{n:05}")))));
    }
    assert_eq!(running.finish(), []);
    assert_eq!(count(&history(dir.path()), "call_events"), 1_500);
}

fn day(n: i64) -> Wall {
    let now = crate::clock::Clock::start().now().wall;
    Wall(now.0 - n * 86_400_000)
}

fn with_events(dir: &Path, prefix: &str, days: i64, events: usize) {
    let running = Running::start(StoreSettings { retention_days: 0, ..settings(dir) });
    for n in 0..events {
        let at = day(days);
        running.send(Command::Event(std::sync::Arc::new(crate::record::CallEvent {
            at,
            ..event(&format!("{prefix}{n:06}"))
        })));
    }
    assert_eq!(running.finish(), []);
}

/// Starts the store with a new event, as a run does, until the expected number of events is left.
fn pruned(dir: &Path, left: i64) -> Vec<Report> {
    let running = Running::start(settings(dir));
    running.send(Command::Event(std::sync::Arc::new(crate::record::CallEvent { at: day(0), ..event("99") })));
    running.send(Command::Flush);
    let conn = history(dir);
    let done = (0..3_000).any(|_| {
        count(&conn, "call_events") == left
            || crossbeam_channel::never::<()>().recv_timeout(Duration::from_millis(10)).is_ok()
    });
    assert!(done, "{} are left", count(&conn, "call_events"));
    running.finish()
}

#[test]
fn old_events_are_deleted_step_by_step_and_younger_ones_stay() {
    let dir = TestDir::new();
    with_events(dir.path(), "01", 31, 5_100);
    with_events(dir.path(), "02", 29, 5_200);
    assert_eq!(pruned(dir.path(), 5_201), []);
}

#[test]
fn sql_5_a_wild_jump_of_the_clock_deletes_nothing_silently() {
    let dir = TestDir::new();
    with_events(dir.path(), "01", 3_650, 50);
    let reports = pruned(dir.path(), 51);
    assert!(
        matches!(&reports[..], [Report::Trouble(text)] if text.contains("all call events") && text.contains("clock")),
        "{reports:?}"
    );
    // The next start finds a young event, so the others are old; it says so, because they are most of all.
    let reports = pruned(dir.path(), 2);
    assert!(matches!(&reports[..], [Report::Trouble(text)] if text.contains("deleted 50")), "{reports:?}");
}

fn execution(key: &str, arguments: &str, at: i64) -> Command {
    Command::Executed(Execution {
        key: key.to_owned(),
        server: "files".to_owned(),
        tool: "write_file".to_owned(),
        arguments: Some(arguments.as_bytes().to_vec()),
        at: Wall(at),
    })
}

#[test]
fn ret_3_executions_are_kept_by_server_tool_and_key_with_the_hash_of_their_arguments() {
    let dir = TestDir::new();
    let running = Running::start(settings(dir.path()));
    running.send(execution("k", r#"{"n":1,"s":"a"}"#, 10));
    running.send(execution("k", r#"{"s":"a","n":1.0}"#, 20));
    running.send(execution("other", r#"{"n":2}"#, 30));
    assert_eq!(running.finish(), []);
    let queue = queue(dir.path());
    let found = queue.last_execution("files", "write_file", "k").expect("read").expect("known");
    let hash = crate::record::hash::arguments_hash(Some(br#"{"n":1,"s":"a"}"#));
    assert_eq!((found.at, found.arguments_hash.as_str(), found.source), (Wall(20), hash.as_str(), Source::Live));
    let by_hash = queue.last_execution_by_hash("files", "write_file", &hash).expect("read");
    assert_eq!(by_hash, Some(found));
    for (server, tool, key) in [("other", "write_file", "k"), ("files", "read_file", "k"), ("files", "write_file", "x")]
    {
        assert_eq!(queue.last_execution(server, tool, key).expect("read"), None);
        assert_eq!(queue.last_execution_by_hash(server, tool, &hash).expect("read").is_some(), key == "x");
    }
}

fn late(id: &str, executed: Executed, success: bool, body: &str) -> Command {
    let body = body.as_bytes().to_vec();
    Command::Late(LateResult { record_id: id.to_owned(), at: Wall(9_000), executed, success, body })
}

#[test]
fn a_late_success_is_attached_redacted_settles_the_record_and_enters_the_index() {
    let dir = TestDir::new();
    let running = Running::start(settings(dir.path()));
    let mut keyed = letter("01A");
    keyed.idempotency_key = Some("k".to_owned());
    keyed.arguments = Some(br#"{"password":"s3cr3t-S"}"#.to_vec());
    running.send(Command::Capture { ticket: 1, letter: std::sync::Arc::new(keyed), audit: audit("A", "01A") });
    running.send(late("01A", Executed::Yes, true, r#"{"text":"done with s3cr3t-S","n":1.0}"#));
    running.capture(2, "01B");
    running.send(late("01B", Executed::Yes, false, r#"{"code":-1}"#));
    assert_eq!(running.finish(), [Report::Stored { ticket: 1 }, Report::Stored { ticket: 2 }]);
    let queue = queue(dir.path());
    let record = queue.get("01A").expect("stored");
    assert_eq!(
        (record.status, record.executed, record.resolved_at),
        (Status::Settled, Executed::Yes, Some(Wall(9_000)))
    );
    assert_eq!(
        record.late_result.as_deref(),
        Some(
            r#"{"at":"1970-01-01T00:00:09.000Z","success":true,"executed":"yes","body":{"text":"done with [REDACTED]","n":1.0}}"#
        )
    );
    assert_eq!(queue.last_execution("files", "write_file", "k").expect("read").expect("known").at, Wall(9_000));
    let failed = queue.get("01B").expect("stored");
    assert_eq!((failed.status, failed.executed, failed.resolved_at), (Status::Pending, Executed::Yes, None));
    assert!(failed.late_result.expect("attached").contains(r#""success":false"#));
}

#[test]
fn a_late_answer_whose_secrets_are_forgotten_keeps_its_fact_and_not_its_text() {
    let dir = TestDir::new();
    let running = Running::start(settings(dir.path()));
    running.capture(1, "01A");
    running.finish();
    let running = Running::start(settings(dir.path()));
    running.send(late("01A", Executed::Yes, true, r#"{"text":"maybe a secret"}"#));
    running.send(late("01X", Executed::Yes, true, "{}"));
    let reports = running.finish();
    assert!(matches!(&reports[..], [Report::Trouble(text)] if text.contains("01X")), "{reports:?}");
    let record = queue(dir.path()).get("01A").expect("stored");
    assert_eq!(record.status, Status::Settled);
    assert!(record.late_result.expect("attached").ends_with(r#""body":"[REDACTED]"}"#));
}

#[test]
fn executions_and_late_answers_wait_for_a_queue_that_is_locked() {
    let dir = TestDir::new();
    let running = Running::start(StoreSettings { queue_busy: Duration::from_millis(20), ..settings(dir.path()) });
    running.capture(1, "01A");
    assert_eq!(running.next(), Report::Stored { ticket: 1 });
    let other = Connection::open(dir.path().join(".mcprelay/queue.db")).expect("opened");
    other.execute_batch("BEGIN IMMEDIATE").expect("locked");
    running.send(execution("k", "{}", 10));
    running.send(late("01A", Executed::Yes, true, "{}"));
    let Report::Trouble(text) = running.next() else { panic!("it is locked") };
    assert!(text.contains("locked"), "{text}");
    other.execute_batch("COMMIT").expect("unlocked");
    let reports = running.finish();
    assert!(matches!(&reports[..], [Report::Trouble(text)] if text.contains("works again")), "{reports:?}");
    let queue = queue(dir.path());
    assert_eq!(queue.get("01A").expect("stored").status, Status::Settled);
    assert!(queue.last_execution("files", "write_file", "k").expect("read").is_some());
}

/// A history as the first version made it, with events and audit rows.
fn first_version(dir: &Path, events: usize) -> std::path::PathBuf {
    let home = dir.join(".mcprelay");
    std::fs::create_dir_all(&home).expect("made");
    let path = home.join("history.db");
    let conn = Connection::open(&path).expect("opened");
    conn.execute_batch(schema::HISTORY.migrations[0]).expect("made");
    std::fs::set_permissions(&path, PermissionsExt::from_mode(0o600)).expect("changed");
    conn.pragma_update(None, "application_id", schema::HISTORY.application_id).expect("set");
    conn.pragma_update(None, "user_version", 1).expect("set");
    for n in 0..events {
        conn.execute(
            "INSERT INTO call_events VALUES (?1, ?2, 'c', 'stdio', 'local', 'files', 'write_file', 'failed', 'timeout',
                'maybe', 7, 8, 9, 3, 'D')",
            rusqlite::params![format!("E{n}"), day(1).0 - n as i64],
        )
        .expect("inserted");
    }
    path
}

#[test]
fn sql_1_a_history_of_the_first_version_is_read_as_it_is_and_brought_up_to_date_by_the_first_write_of_many() {
    let dir = TestDir::new();
    let path = first_version(dir.path(), 1_000);
    let read = || {
        let history = reading::History::open_existing(&path, PATIENCE).expect("it opens");
        let mut seen = Vec::new();
        history
            .events(Wall(0), day(0), &mut |event| {
                assert_eq!((event.caller, event.server, event.tool), ("local", "files", "write_file"));
                assert_eq!((event.decision, event.class, event.executed), ("failed", Some("timeout"), Some("maybe")));
                assert_eq!((event.latency_ms, event.request_bytes, event.response_bytes), (7, 8, 9));
                assert_eq!(event.attempts, 3);
                seen.push(event.at);
            })
            .expect("read");
        seen
    };
    let before = read();
    assert!(before.len() == 1_000 && before.is_sorted());
    let version = |path: &Path| {
        let conn = Connection::open(path).expect("opened");
        conn.pragma_query_value(None, "user_version", |row| row.get::<_, i64>(0)).expect("read")
    };
    assert_eq!(version(&path), 1, "reading changes nothing");

    let children: Vec<_> =
        (0..4).map(|n| process(dir.path(), &format!("01{n}"), "capture").spawn().expect("started")).collect();
    for child in children {
        assert!(child.wait_with_output().expect("ended").status.success());
    }
    assert_eq!(version(&path), 2);
    assert_eq!(read(), before);
    chain_holds(dir.path(), 4);
}

#[test]
fn an_update_of_the_tables_that_fails_half_way_leaves_the_file_as_it_was() {
    let dir = TestDir::new();
    let path = first_version(dir.path(), 10);
    // In the way of what the update makes.
    let conn = Connection::open(&path).expect("opened");
    conn.execute_batch("CREATE TABLE call_events_by_id (x)").expect("made");
    drop(conn);
    let running = Running::start(settings(dir.path()));
    running.send(Command::Event(std::sync::Arc::new(event("01E"))));
    running.send(Command::Flush);
    let Report::Trouble(text) = running.next() else { panic!("the history's trouble is told") };
    assert!(text.contains("history.db") && text.contains("call_events_by_id"), "{text}");
    let conn = history(dir.path());
    assert_eq!(count(&conn, "call_events"), 10);
    conn.execute_batch(
        "INSERT INTO call_events SELECT 'new', 1, correlation_id, caller_type, caller_identity, server,
        tool, decision, class, executed, latency_ms, request_bytes, response_bytes, attempt, dead_letter_id
        FROM call_events LIMIT 1; DROP TABLE call_events_by_id",
    )
    .expect("the tables are those of the first version");
    running.finish();
    assert_eq!(count(&history(dir.path()), "call_events"), 12, "it works again once nothing is in the way");
}

fn pages(dir: &Path) -> (i64, i64) {
    let conn = history(dir);
    let number = |name| conn.pragma_query_value(None, name, |row| row.get::<_, i64>(0)).expect("read");
    (number("page_count"), number("freelist_count"))
}

#[test]
fn the_file_shrinks_after_old_events_are_deleted() {
    let dir = TestDir::new();
    with_events(dir.path(), "01", 31, 40_000);
    with_events(dir.path(), "02", 29, 10);
    let (before, _) = pages(dir.path());
    let running = Running::start(settings(dir.path()));
    running.send(Command::Event(std::sync::Arc::new(crate::record::CallEvent { at: day(0), ..event("99") })));
    running.send(Command::Flush);
    let small = (0..3_000).any(|_| {
        pages(dir.path()).0 < before / 4
            || crossbeam_channel::never::<()>().recv_timeout(Duration::from_millis(10)).is_ok()
    });
    assert!(small, "{before} pages before, {:?} after", pages(dir.path()));
    running.finish();
    let (left, free) = pages(dir.path());
    assert!(left < before / 4 && free <= 256, "{before} pages before, {left} after, {free} of them free");
    let bytes = dir.path().join(".mcprelay/history.db").metadata().expect("it exists").len();
    assert!(bytes <= u64::try_from(left).expect("a count") * 4_096, "the file itself has {bytes} bytes");
}

#[test]
fn a_file_that_cannot_shrink_is_pruned_all_the_same() {
    let dir = TestDir::new();
    first_version(dir.path(), 10);
    with_events(dir.path(), "01", 31, 5_100);
    // Ten from the first version, which are a day old, and the new one.
    let reports = pruned(dir.path(), 11);
    assert!(matches!(&reports[..], [Report::Trouble(text)] if text.contains("deleted 5100")), "{reports:?}");
}

#[test]
fn an_audit_row_that_comes_twice_is_stored_once_and_uses_up_no_number() {
    let dir = TestDir::new();
    for id in ["A1", "A1", "A2", "A1", "A3"] {
        let running = Running::start(settings(dir.path()));
        running.send(Command::Audit(audit(id, "01A")));
        assert_eq!(running.finish(), []);
    }
    chain_holds(dir.path(), 3);
}

#[test]
fn rows_of_a_kind_that_only_a_newer_version_knows_are_chained_to() {
    let dir = TestDir::new();
    let running = Running::start(settings(dir.path()));
    running.send(Command::Audit(audit("A1", "01A")));
    assert_eq!(running.finish(), []);
    history(dir.path()).execute("UPDATE audit SET kind = 'teleported'", []).expect("changed");
    let running = Running::start(settings(dir.path()));
    running.send(Command::Audit(audit("A2", "01A")));
    assert_eq!(running.finish(), []);
    chain_holds(dir.path(), 2);
}

#[test]
fn events_of_one_moment_are_all_read_also_where_a_stretch_ends_among_them() {
    let dir = TestDir::new();
    let running = Running::start(settings(dir.path()));
    running.send(Command::Event(std::sync::Arc::new(event("01E"))));
    assert_eq!(running.finish(), []);
    // More than one stretch, at two moments, the first of which is the beginning of what is asked for.
    let insert = "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < 130000)
        INSERT INTO call_events SELECT 7000 + i / 120000, printf('M%06d', i), caller_identity, server, tool, decision,
            class, executed, latency_ms, request_bytes, response_bytes, attempt, caller_type, correlation_id,
            dead_letter_id FROM n, call_events WHERE id = '01E'";
    history(dir.path()).execute_batch(insert).expect("inserted");
    let trail = reading::History::open_existing(&dir.path().join(".mcprelay/history.db"), PATIENCE).expect("it opens");
    let read = |since, until| {
        let mut seen = 0;
        trail.events(Wall(since), Wall(until), &mut |_| seen += 1).expect("read");
        seen
    };
    assert_eq!((read(7_000, 7_001), read(7_000, 7_000), read(7_001, 9_000)), (130_000, 119_999, 10_001));
}
