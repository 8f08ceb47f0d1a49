//! Claims and their ends, against real files and many hands.

use super::*;
use crate::store::db::immutable;
use crate::store::error::Fault;
use rusqlite::OpenFlags;
use crate::record::redact::Redactor;
use crate::record::stored::Record;
use crate::record::test_values::letter;
use crate::store::db::immutable;
use crate::store::error::Fault;
use crate::store::place::Place;
use crate::store::test_dir::TestDir;
use rusqlite::OpenFlags;
use std::sync::Barrier;

const LEASE: Duration = Duration::from_secs(60);
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

fn failed(at: i64) -> Resolution {
    Resolution {
        status: Status::FailedReplay,
        executed: None,
        outcome: r#"{"ok":false}"#.to_owned(),
        attempt: format!(r#"{{"at":{at}}}"#),
        at: Wall(at),
        success: false,
    }
}

fn replayed(at: i64) -> Resolution {
    Resolution { status: Status::Replayed, executed: Some(Executed::Yes), success: true, ..failed(at) }
}

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
fn the_filter_narrows_and_the_order_is_by_age() {
    let dir = TestDir::new();
    let mut letters: Vec<_> = (0..5).map(|n| letter(&format!("01{n}"))).collect();
    letters[1].tool = "other'; DROP TABLE failures; --".to_owned();
    letters[2].class = FailureClass::Timeout;
    letters[3].captured_at = Wall(9_000);
    letters[4].server.name = "s2".to_owned();
    letters[4].caller.identity = "ci".to_owned();
    let queue = queue_with(&dir, &letters);
    let ids = |filter: Filter| -> String {
        let records = queue.list(&filter).expect("listed");
        assert!(filter.limit.is_some() || queue.count(&filter).expect("counted") == records.len() as u64);
        records.iter().map(|record| &record.id[2..]).collect()
    };
    assert_eq!(ids(Filter::default()), "43210");
    assert_eq!(ids(Filter { oldest_first: true, limit: Some(2), ..Filter::default() }), "01");
    assert_eq!(ids(Filter { tool: Some(letters[1].tool.clone()), ..Filter::default() }), "1");
    assert_eq!(ids(Filter { class: Some(FailureClass::Timeout), ..Filter::default() }), "2");
    assert_eq!(ids(Filter { since: Some(Wall(9_000)), ..Filter::default() }), "3");
    assert_eq!(ids(Filter { until: Some(Wall(5_000)), ..Filter::default() }), "4210");
    assert_eq!(ids(Filter { server: Some("s2".to_owned()), caller: Some("ci".to_owned()), ..Filter::default() }), "4");
    assert_eq!(ids(Filter { correlation_id: Some("c-010".to_owned()), ..Filter::default() }), "0");
    assert_eq!(ids(Filter { statuses: vec![Status::Replayed], ..Filter::default() }), "");
    assert_eq!(ids(Filter { statuses: vec![Status::Replayed, Status::Pending], ..Filter::default() }), "43210");
}

#[test]
fn of_many_claims_at_once_one_wins() {
    let dir = TestDir::new();
    let letters: Vec<_> = (0..20).map(|n| letter(&format!("01{n:02}"))).collect();
    drop(queue_with(&dir, &letters));
    let hands = 6;
    let barrier = Barrier::new(hands);
    let mut won: Vec<String> = std::thread::scope(|scope| {
        let claim_all = |owner: usize| {
            let mut queue = Queue::open_existing(&path(&dir), BUSY).expect("opened");
            barrier.wait();
            let owner = format!("hand {owner}");
            let claimed =
                |letter: &&crate::record::DeadLetter| match queue.claim(&letter.id, &owner, LEASE, Wall(0), false) {
                    Ok(record) => record.claim.is_some_and(|claim| claim.owner == owner),
                    Err(QueueError::ClaimedBy { .. }) => false,
                    Err(error) => panic!("{error}"),
                };
            letters.iter().filter(claimed).map(|letter| letter.id.clone()).collect::<Vec<_>>()
        };
        let threads: Vec<_> = (0..hands).map(|owner| scope.spawn(move || claim_all(owner))).collect();
        threads.into_iter().flat_map(|thread| thread.join().expect("no panic")).collect()
    });
    won.sort();
    assert_eq!(won, letters.iter().map(|letter| letter.id.clone()).collect::<Vec<_>>());
}

#[test]
fn a_claim_blocks_others_until_it_is_released_or_runs_out() {
    let dir = TestDir::new();
    let mut queue = queue_with(&dir, &[letter("01A")]);
    let record = queue.claim("01A", "a", LEASE, Wall(1_000), false).expect("free");
    assert_eq!((record.status, record.claim.map(|claim| claim.expires_at)), (Status::Replaying, Some(Wall(61_000))));
    let error = queue.claim("01A", "b", LEASE, Wall(61_000), true).expect_err("claimed, even by force");
    assert!(matches!(&error, QueueError::ClaimedBy { claim, .. } if claim.owner == "a"), "{error}");
    queue.renew("01A", "a", LEASE, Wall(50_000)).expect("still ours");
    queue.claim("01A", "b", LEASE, Wall(61_001), false).expect_err("renewed");
    assert_eq!(queue.release("01A", "b"), Err(QueueError::LostClaim("01A".to_owned())));
    queue.release("01A", "a").expect("ours");
    let record = queue.get("01A").expect("there");
    assert_eq!((record.status, record.claim, record.replays.as_str()), (Status::Pending, None, "[]"));
    // One that ran out before anything was sent is free to take.
    queue.claim("01A", "a", LEASE, Wall(0), false).expect("free");
    queue.claim("01A", "b", LEASE, Wall(60_001), false).expect("ran out");
    assert_eq!(queue.mark_sent("01A", "a", Wall(60_002)), Err(QueueError::LostClaim("01A".to_owned())));
    assert_eq!(queue.renew("01A", "a", LEASE, Wall(0)), Err(QueueError::LostClaim("01A".to_owned())));
}

#[test]
fn sql_4_a_replay_that_died_after_sending_is_unknown_and_not_repeated_without_force() {
    let dir = TestDir::new();
    let mut queue = queue_with(&dir, &[letter("01A")]);
    let _ = queue.claim("01A", "dead", LEASE, Wall(0), false).expect("free");
    queue.mark_sent("01A", "dead", Wall(10)).expect("ours");
    let error = queue.claim("01A", "b", LEASE, Wall(60_001), false).expect_err("unknown");
    assert!(matches!(&error, QueueError::OutcomeUnknown { .. }) && error.to_string().contains("--force"), "{error}");
    let record = queue.claim("01A", "b", LEASE, Wall(60_001), true).expect("forced");
    assert_eq!(
        record.replays,
        r#"[{"at":"1970-01-01T00:00:00.010Z","by":"dead","outcome":"unknown","source":"replay"}]"#
    );
    assert_eq!(record.claim.expect("claimed").sent_at, None, "the new owner has sent nothing yet");
    // The late owner wakes up: it cannot overwrite the new one's result.
    assert_eq!(queue.resolve("01A", "dead", &replayed(70_000)), Err(QueueError::LostClaim("01A".to_owned())));
    queue.resolve("01A", "b", &failed(70_000)).expect("ours");
    let record = queue.get("01A").expect("there");
    assert_eq!((record.status, record.redrives, record.claim.is_none()), (Status::FailedReplay, 1, true));
    assert!(record.replays.ends_with(r#",{"at":70000}]"#), "{}", record.replays);
    serde_json::from_str::<serde_json::Value>(&record.to_json()).expect("valid JSON");
}

#[test]
fn a_failed_replay_can_be_tried_again_and_a_replayed_record_cannot() {
    let dir = TestDir::new();
    let mut keyed = letter("01A");
    keyed.idempotency_key = Some("k".to_owned());
    let mut queue = queue_with(&dir, &[keyed, letter("01B")]);
    for at in [1, 2] {
        let _ = queue.claim("01A", "a", LEASE, Wall(at), false).expect("free");
        queue.resolve("01A", "a", &failed(at)).expect("ours");
    }
    assert_eq!(queue.last_execution("files", "write_file", "k"), Ok(None), "failures are not indexed");
    // Given back, it is what it was before.
    let _ = queue.claim("01A", "a", LEASE, Wall(3), false).expect("free");
    queue.release("01A", "a").expect("ours");
    assert_eq!(queue.get("01A").expect("there").status, Status::FailedReplay);
    let _ = queue.claim("01A", "a", LEASE, Wall(4), false).expect("free");
    queue.resolve("01A", "a", &replayed(5)).expect("ours");
    let record = queue.get("01A").expect("there");
    assert_eq!((record.status, record.executed, record.redrives), (Status::Replayed, Executed::Yes, 2));
    assert_eq!((record.resolved_at, record.replays.as_str()), (Some(Wall(5)), r#"[{"at":1},{"at":2},{"at":5}]"#));
    let error = queue.claim("01A", "a", LEASE, Wall(6), true).expect_err("final, even by force");
    assert_eq!(error, QueueError::AlreadyResolved { id: "01A".to_owned(), status: Status::Replayed });
    let found = queue.last_execution("files", "write_file", "k").expect("read").expect("indexed");
    assert_eq!((found.at, found.source), (Wall(5), Source::Replay));
    // A success without a key is found by its arguments: the same call is seen as a duplicate.
    let _ = queue.claim("01B", "a", LEASE, Wall(6), false).expect("free");
    queue.resolve("01B", "a", &replayed(7)).expect("ours");
    let found = queue.last_execution_by_hash("files", "write_file", &record.arguments_hash).expect("read");
    assert_eq!(found.map(|row| (row.key, row.at)), Some((None, Wall(7))));
    assert_eq!(queue.get("nope"), Err(QueueError::NotFound("nope".to_owned())));
    assert_eq!(queue.claim("nope", "a", LEASE, Wall(0), true), Err(QueueError::NotFound("nope".to_owned())));
}

#[test]
fn a_settled_record_needs_force_and_a_late_success_settles_one_that_is_given_back() {
    let dir = TestDir::new();
    let mut queue = queue_with(&dir, &[letter("01A")]);
    let _ = queue.claim("01A", "a", LEASE, Wall(0), false).expect("free");
    let late = rows::Late {
        record_id: "01A".to_owned(),
        at: Wall(1),
        executed: Executed::Yes,
        success: true,
        json: "{}".to_owned(),
    };
    assert!(rows::attach_late(&queue.conn, &late).expect("attached"));
    assert_eq!(queue.get("01A").expect("there").status, Status::Replaying, "its owner is still at work");
    queue.release("01A", "a").expect("ours");
    let error = queue.claim("01A", "a", LEASE, Wall(2), false).expect_err("settled");
    assert_eq!(error, QueueError::AlreadyResolved { id: "01A".to_owned(), status: Status::Settled });
    let _ = queue.claim("01A", "a", LEASE, Wall(2), true).expect("forced");
    queue.release("01A", "a").expect("ours");
    assert_eq!(queue.get("01A").expect("there").status, Status::Settled);
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
