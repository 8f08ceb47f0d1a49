//! The SQLite queue keeps the contract; and what only a file can get wrong.

use super::*;
use crate::record::redact::Redactor;
use crate::record::stored::Record;
use crate::record::test_values::{audit, letter};
use crate::record::{DeadLetter, LateResult};
use crate::store::db::immutable;
use crate::store::error::Fault;
use crate::store::place::Place;
use crate::store::test_dir::TestDir;
use crate::store::{Command, Report, StoreSettings};
use rusqlite::OpenFlags;

const BUSY: Duration = Duration::from_secs(30);

fn path(dir: &TestDir) -> PathBuf {
    dir.path().join("queue.db")
}

fn queue_with(dir: &TestDir, letters: &[crate::record::DeadLetter]) -> Queue {
    let (db, _) = db::open(&Place::new(path(dir), None), &schema::QUEUE, BUSY).expect("made");
    for letter in letters {
        let (record, _) = Record::of(letter, &Redactor::new(&[]));
        rows::insert(&db.conn, &record).expect("inserted");
    }
    drop(db);
    Queue::open_existing(&path(dir), BUSY).expect("opened")
}

/// The queue as the relay fills it: by the store's thread.
struct Sqlite(TestDir);

impl Sqlite {
    fn with_store(&self, work: impl FnOnce(&crate::store::Store, &crossbeam_channel::Receiver<Report>)) {
        let (to, reports) = crossbeam_channel::unbounded();
        let settings = StoreSettings {
            queue: Place::new(path(&self.0), None),
            history: Place::new(self.0.path().join("history.db"), None),
            retention_days: 0,
            redactor: Redactor::new(&[]),
            seal: std::sync::Arc::default(),
            queue_busy: BUSY,
        };
        let store = crate::store::Store::start(settings, Box::new(move |said| drop(to.send(said)))).expect("a thread");
        work(&store, &reports);
        store.finish();
    }
}

impl contract::Provider for Sqlite {
    fn capture(&self, letters: &[DeadLetter]) {
        if letters.is_empty() {
            drop(Queue::open_or_make(&Place::new(path(&self.0), None), BUSY).expect("made"));
            return;
        }
        self.with_store(|store, reports| {
            for letter in letters {
                let (letter, audit) = (std::sync::Arc::new(letter.clone()), audit(&letter.id, &letter.id));
                store.submit(Command::Capture { ticket: 0, letter, audit }).expect("taken");
            }
            for _ in letters {
                assert_eq!(reports.recv_timeout(BUSY), Ok(Report::Stored { ticket: 0 }));
            }
        });
    }

    fn late(&self, late: LateResult) {
        self.with_store(|store, _| store.submit(Command::Late(late)).expect("taken"));
    }

    fn open(&self) -> Queue {
        Queue::open_existing(&path(&self.0), BUSY).expect("opened")
    }
}

contract::keeps!(sqlite, Sqlite(TestDir::new()));

#[test]
fn a_missing_file_is_said_to_be_missing_and_is_not_made() {
    let dir = TestDir::new();
    let error = Queue::open_existing(&path(&dir), BUSY).expect_err("missing");
    assert_eq!(error, QueueError::NoFile(path(&dir)));
    assert!(!path(&dir).exists());
    std::fs::write(path(&dir), "this is no database, it is a text of some length").expect("written");
    let error = Queue::open_existing(&path(&dir), BUSY).expect_err("no database").to_string();
    assert!(error.contains("queue.db") && error.contains("not a SQLite database"), "{error}");
}

#[test]
fn sql_2_a_queue_beside_which_nothing_can_be_written_is_still_read() {
    let dir = TestDir::new();
    let odd = TestDir::new();
    drop(queue_with(&dir, &[letter("01A")]));
    let odd = odd.path().join("a?b#c %20é.db");
    std::fs::copy(path(&dir), &odd).expect("copied");
    let error = StoreError::new(&odd, "open", Fault::ReadOnly, "no");
    let uri = immutable(&odd, &error).expect("no log beside it");
    let conn = db::connect(&uri, OpenFlags::SQLITE_OPEN_READ_ONLY | OpenFlags::SQLITE_OPEN_URI, BUSY).expect("opened");
    let queue = Queue { conn, path: odd.clone() };
    assert_eq!(queue.list(&Filter::default()).expect("listed").len(), 1);
    let names: Vec<_> = std::fs::read_dir(odd.parent().expect("a directory")).expect("read").collect();
    assert_eq!(names.len(), 1, "no side files: {names:?}");
    std::fs::write(format!("{}-wal", odd.display()), "rows").expect("written");
    assert!(immutable(&odd, &error).expect_err("rows would be missed").reason.contains("copy all its files"));
}

#[test]
fn a_list_grows_by_one_element() {
    assert_eq!(appended("[]", "1"), "[1]");
    assert_eq!(appended("[ ]", "1"), "[1]");
    assert_eq!(appended("[1]", "{}"), "[1,{}]");
    assert_eq!(appended(r#"["["]"#, "2"), r#"["[",2]"#);
    assert_eq!(appended("", "2"), "[2]");
}

/// A file as the first version made it, with one record in it.
fn first_version(path: &Path) {
    let conn = Connection::open(path).expect("made");
    conn.execute_batch(schema::QUEUE.migrations[0]).expect("the first tables");
    conn.pragma_update(None, "application_id", schema::QUEUE.application_id).expect("set");
    conn.pragma_update(None, "user_version", 1).expect("set");
    conn.execute_batch(
        "INSERT INTO failures (id, schema_version, correlation_id, captured_at, caller_type, caller_identity, server_name,
            server_transport, server_argv, tool_name, arguments_hash, idempotent, mid_conversation, failure_class,
            failure_executed, failure_message, failure_attempts, failure_tries, policy_allowed, policy_reason)
        VALUES ('01A', 1, 'c', 5, 'stdio', 'local', 's', 'stdio', '[]', 't', 'h', 0, 0, 'timeout', 'maybe', 'm', 1, '[]', 1, 'd')",
    )
    .expect("a record");
}

#[test]
fn a_file_of_the_first_version_is_brought_up_to_date_and_read_where_it_cannot_be() {
    let dir = TestDir::new();
    first_version(&path(&dir));
    let uri = immutable(&path(&dir), &StoreError::new(&path(&dir), "open", Fault::ReadOnly, "no")).expect("no log");
    let conn = db::connect(&uri, OpenFlags::SQLITE_OPEN_READ_ONLY | OpenFlags::SQLITE_OPEN_URI, BUSY).expect("opened");
    db::catch_up(&conn, &path(&dir), &schema::QUEUE, 1).expect("nothing to do for a reader");
    let record = Queue { conn, path: path(&dir) }.get("01A").expect("read as it is");
    assert_eq!((record.notes.as_str(), record.sealed), ("[]", None));
    let mut queue = Queue::open_existing(&path(&dir), BUSY).expect("opened");
    let note = Note { by: "me".to_owned(), at: Wall(1), text: None };
    let record = queue.decide("01A", Action::Discard, &note).expect("written");
    assert!(record.notes.contains("discard"), "{}", record.notes);
}

/// What SQLite says it will do.
fn query_plan(queue: &Queue, filter: &Filter) -> String {
    let (sql, values) = select::select("*", filter);
    let mut statement = queue.conn.prepare(&format!("EXPLAIN QUERY PLAN {sql}")).expect("prepared");
    let rows = statement.query_map(rusqlite::params_from_iter(values), |row| row.get::<_, String>(3)).expect("run");
    rows.map(|row| row.expect("a row")).collect::<Vec<_>>().join("; ")
}

#[test]
fn a_page_of_millions_is_found_by_an_index_without_sorting() {
    let dir = TestDir::new();
    let queue = queue_with(&dir, &[letter("01A")]);
    let text = || Some("x".to_owned());
    let filters = [
        Filter::default(),
        Filter { statuses: vec![Status::Pending], ..Filter::default() },
        Filter { tool: text(), ..Filter::default() },
        Filter { server: text(), ..Filter::default() },
        Filter { caller: text(), ..Filter::default() },
        Filter { class: Some(crate::record::FailureClass::Timeout), ..Filter::default() },
        Filter {
            tool: text(),
            statuses: vec![Status::Pending],
            class: Some(crate::record::FailureClass::Timeout),
            ..Filter::default()
        },
        Filter { sealed: true, after: text(), oldest_first: true, ..Filter::default() },
    ];
    for filter in filters {
        let plan = query_plan(&queue, &Filter { limit: Some(50), ..filter.clone() });
        assert!(plan.contains("INDEX") && !plan.contains("TEMP B-TREE"), "{filter:?}: {plan}");
    }
    // Few records have one time or one call, so that sorting them costs little.
    for filter in
        [Filter { since: Some(Wall(1)), ..Filter::default() }, Filter { correlation_id: text(), ..Filter::default() }]
    {
        assert!(query_plan(&queue, &filter).contains("USING INDEX"), "{filter:?}");
    }
}
