//! What a start makes of the files of others, against real files.

use super::*;
use crate::clock::Clock;
use crate::dispatcher::event::{AttemptId, CallId};
use crate::record::redact::Redactor;
use crate::record::test_values::{audit, letter};
use crate::store::place::Place;
use crate::store::queue::{Filter, Queue};
use crate::store::recorder::{Recorder, RecorderSettings};
use crate::store::test_dir::TestDir;
use crate::store::{Command, Report, Store, StoreSettings};
use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

const PATIENCE: Duration = Duration::from_secs(30);

fn redactor() -> Redactor {
    Redactor::new(&["token".to_owned()])
}

fn settings(dir: &Path) -> StoreSettings {
    StoreSettings {
        queue: Place::new(dir.join("queue.db"), None),
        history: Place::new(dir.join("history.db"), None),
        retention_days: 30,
        redactor: redactor(),
        seal: std::sync::Arc::default(),
        queue_busy: Duration::from_millis(5_000),
    }
}

/// Starts as a `run` does, ends, and gives what was said.
fn start(dir: &Path) -> Vec<String> {
    let (to, reports) = crossbeam_channel::unbounded();
    let store = Store::start(settings(dir), Box::new(move |report| drop(to.send(report)))).expect("a thread");
    store.submit(Command::Recover).expect("taken");
    store.finish();
    let text = |report| match report {
        Report::Trouble(text) => text,
        other => panic!("{other:?}"),
    };
    reports.try_iter().map(text).collect()
}

fn recorder(dir: &Path) -> Recorder {
    let clock = Clock::start();
    let settings =
        RecorderSettings { directories: vec![dir.to_owned()], bytes_max: 1 << 30, redactor: redactor(), clock };
    Recorder::new(settings, |text| panic!("{text}"))
}

/// A process that died with these calls open: the first never sent, the second sent, the third answered.
fn dead(dir: &Path, calls: [u64; 3]) {
    let recorder = recorder(dir);
    for call in calls {
        recorder.accepted(CallId(call), &letter(&format!("{call}")));
        recorder.attempting(CallId(call), AttemptId(call));
    }
    recorder.begins(AttemptId(calls[1]));
    recorder.begins(AttemptId(calls[2]));
    recorder.ended(CallId(calls[2]));
    recorder.flush();
}

fn records(dir: &Path) -> Vec<Record> {
    let queue = Queue::open_existing(&dir.join("queue.db"), PATIENCE).expect("the queue opens");
    queue.list(&Filter { oldest_first: true, ..Filter::default() }).expect("listed")
}

fn names(dir: &Path) -> Vec<String> {
    let entries = std::fs::read_dir(dir).expect("readable").flatten();
    let mut names: Vec<String> = entries.map(|entry| entry.file_name().to_string_lossy().into_owned()).collect();
    names.retain(|name| !name.contains(".db"));
    names.sort();
    names
}

fn flight_file(dir: &Path) -> PathBuf {
    let names = names(dir);
    assert_eq!(names.len(), 1, "{names:?}");
    dir.join(&names[0])
}

#[test]
fn open_calls_of_a_dead_process_become_dead_letters_and_its_file_goes() {
    let dir = TestDir::new();
    dead(dir.path(), [1, 2, 3]);
    let said = start(dir.path());
    assert_eq!(said.len(), 1, "{said:?}");
    assert!(said[0].starts_with("2 calls were open when an earlier mcprelay was killed, 1 of them may have run"));
    let records = records(dir.path());
    let facts: Vec<_> = records
        .iter()
        .map(|record| (record.correlation_id.as_str(), record.class, record.executed, record.attempts))
        .collect();
    let class = FailureClass::Interrupted;
    let mut sorted = facts.clone();
    sorted.sort_by_key(|fact| fact.0);
    assert_eq!(sorted, [("c-1", class, Executed::No, 0), ("c-2", class, Executed::Maybe, 1)]);
    let expected = Record::of(&letter("1"), &redactor()).0;
    let one = records.iter().find(|record| record.correlation_id == "c-1").expect("there");
    assert_eq!((&one.arguments, &one.arguments_hash), (&expected.arguments, &expected.arguments_hash));
    assert_eq!((&one.server, &one.client, one.captured_at), (&expected.server, &expected.client, expected.captured_at));
    assert!(one.id.len() == 26 && one.message.contains("before the call was sent"), "{one:?}");
    assert_eq!(names(dir.path()), [""; 0]);
    let history = rusqlite::Connection::open(dir.path().join("history.db")).expect("opens");
    let audited: i64 = history.query_row("SELECT count(*) FROM audit", [], |row| row.get(0)).expect("counted");
    assert_eq!(audited, 2);
    assert_eq!(start(dir.path()), [""; 0], "the second start has nothing to do");
}

#[test]
fn a_start_that_finds_nothing_makes_nothing_and_a_living_process_keeps_its_file() {
    let dir = TestDir::new();
    assert_eq!(start(dir.path()), [""; 0]);
    assert!(!dir.path().join("queue.db").exists());
    let living = recorder(dir.path());
    living.accepted(CallId(1), &letter("1"));
    living.flush();
    let before = names(dir.path());
    assert_eq!(start(dir.path()), [""; 0]);
    assert_eq!((before, dir.path().join("queue.db").exists()), (names(dir.path()), false));
    // Its file is taken for an unfinished one of nobody only while nobody holds it.
    std::fs::write(dir.path().join("flight-X.new"), "half").expect("written");
    start(dir.path());
    assert_eq!(names(dir.path()).len(), 1);
}

#[test]
fn a_call_that_is_in_the_queue_is_not_taken_over_again() {
    let dir = TestDir::new();
    let (to, reports) = crossbeam_channel::unbounded();
    let store = Store::start(settings(dir.path()), Box::new(move |report| drop(to.send(report)))).expect("a thread");
    let audit = audit("A1", "2");
    store.submit(Command::Capture { ticket: 1, letter: Arc::new(letter("2")), audit }).expect("taken");
    store.finish();
    assert_eq!(reports.try_iter().count(), 1);
    dead(dir.path(), [1, 2, 3]);
    start(dir.path());
    let classes: BTreeSet<_> = records(dir.path()).into_iter().map(|r| (r.correlation_id, r.class.as_str())).collect();
    let expected = [("c-1".to_owned(), "interrupted"), ("c-2".to_owned(), "upstream_error")];
    assert_eq!(classes, BTreeSet::from(expected));
}

#[test]
fn starts_at_once_take_each_call_over_once() {
    for round in 0..20 {
        let dir = TestDir::new();
        // The queue is there: within one process its making cannot be raced for, as it can between processes.
        emergency::append(&[dir.path().to_owned()], &Record::of(&letter("D"), &redactor()).0.to_json())
            .expect("written");
        start(dir.path());
        for file in 0..4 {
            dead(dir.path(), [file * 10, file * 10 + 1, file * 10 + 2]);
        }
        let line = Record::of(&letter("E"), &redactor()).0.to_json();
        emergency::append(&[dir.path().to_owned()], &line).expect("written");
        let starts: Vec<_> = (0..3)
            .map(|_| {
                let dir = dir.path().to_owned();
                crate::ports::spawn("test-start", move || start(&dir)).expect("a thread")
            })
            .collect();
        for start in starts {
            start.join().expect("no panic");
        }
        // What one had in hand when the other looked is nobody's loss, but it may be left for the next.
        start(dir.path());
        let mut calls: Vec<String> = records(dir.path()).into_iter().map(|record| record.correlation_id).collect();
        calls.sort();
        let expected = ["c-0", "c-1", "c-10", "c-11", "c-20", "c-21", "c-30", "c-31", "c-D", "c-E"];
        assert_eq!(calls, expected, "round {round}");
        assert_eq!(names(dir.path()), [""; 0], "round {round}");
    }
}

#[test]
fn a_killed_recovery_is_repeated_without_doubles() {
    let dir = TestDir::new();
    dead(dir.path(), [1, 2, 3]);
    let path = flight_file(dir.path());
    let bytes = std::fs::read(&path).expect("readable");
    start(dir.path());
    // As if it had been killed between the commit and the removal.
    std::fs::write(&path, bytes).expect("written");
    start(dir.path());
    assert_eq!((records(dir.path()).len(), names(dir.path())), (2, vec![]));
}

#[test]
fn the_file_of_a_process_that_could_not_write_its_marks_says_maybe() {
    let dir = TestDir::new();
    dead(dir.path(), [1, 2, 3]);
    let path = flight_file(dir.path());
    std::fs::rename(&path, dir.path().join("flight-A.unsure.log")).expect("renamed");
    start(dir.path());
    assert!(records(dir.path()).iter().all(|record| record.executed == Executed::Maybe));
    assert_eq!(records(dir.path()).len(), 2);
}

#[test]
fn a_damaged_file_is_kept_by_name_said_and_what_it_shows_is_taken_over_as_maybe() {
    let dir = TestDir::new();
    dead(dir.path(), [1, 2, 3]);
    let path = flight_file(dir.path());
    let whole = std::fs::read(&path).expect("readable");
    std::fs::remove_file(&path).expect("removed");
    let mut state = 12_345_u64;
    for round in 0..40 {
        let dir = TestDir::new();
        let mut bytes = whole.clone();
        // Anywhere but in the first mark, of which not the version is to be damaged.
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        let at = 64 + usize::try_from(state >> 33).expect("small") % (bytes.len() - 64);
        bytes[at] ^= 0x10;
        std::fs::write(dir.path().join("flight-A.log"), &bytes).expect("written");
        let said = start(dir.path());
        let last = said.last().expect("it is said");
        assert!(last.contains("flight-A.log is kept as ") && last.contains("damaged at byte"), "{last}");
        assert_eq!(names(dir.path()), ["flight-A.log.corrupt"], "byte {at} in round {round}");
        assert_eq!(std::fs::read(dir.path().join("flight-A.log.corrupt")).expect("kept"), bytes);
        let calls = records(dir.path());
        assert!(calls.iter().any(|r| r.correlation_id == "c-1") || calls.iter().any(|r| r.correlation_id == "c-2"));
        assert!(
            calls.iter().all(|record| record.executed == Executed::Maybe),
            "a lost mark may be the one that it was sent"
        );
        assert_eq!(start(dir.path()), [""; 0], "said once");
    }
}

#[test]
fn a_file_cut_anywhere_is_taken_over_and_goes() {
    let dir = TestDir::new();
    dead(dir.path(), [1, 2, 3]);
    let path = flight_file(dir.path());
    let whole = std::fs::read(&path).expect("readable");
    std::fs::remove_file(&path).expect("removed");
    for end in (0..whole.len()).step_by(97) {
        std::fs::write(&path, &whole[..end]).expect("written");
        let said = start(dir.path());
        assert!(said.iter().all(|said| said.contains("calls were open")), "cut at {end}: {said:?}");
        assert_eq!(names(dir.path()), [""; 0], "cut at {end}");
    }
    let known: BTreeSet<String> = records(dir.path()).into_iter().map(|record| record.correlation_id).collect();
    assert_eq!(known.len(), 3, "each was open at some cut, and each is there once");
}

#[test]
fn a_file_of_a_newer_form_is_kept_by_name_and_said() {
    let dir = TestDir::new();
    let mut bytes = Vec::new();
    let begin = flight::Entry::Begin { version: flight::VERSION + 1, pid: 1, at: Wall(0) };
    flight::append(&mut bytes, begin);
    std::fs::write(dir.path().join("flight-A.log"), &bytes).expect("written");
    let said = start(dir.path());
    assert!(said.len() == 1 && said[0].contains("newer mcprelay"), "{said:?}");
    assert_eq!(names(dir.path()), ["flight-A.log.newer"]);
}

#[test]
fn the_emergency_file_is_taken_in_once_and_a_damaged_line_is_kept() {
    let dir = TestDir::new();
    let places = [dir.path().to_owned()];
    let line = |id: &str| Record::of(&letter(id), &redactor()).0.to_json();
    for id in ["01A", "01B", "01A"] {
        emergency::append(&places, &line(id)).expect("written");
    }
    let said = start(dir.path());
    assert!(said.len() == 1 && said[0].starts_with("2 dead letters of "), "{said:?}");
    assert_eq!(names(dir.path()), [""; 0]);
    let half = &line("01C")[..200];
    emergency::append(&places, half).expect("written");
    emergency::append(&places, &line("01D")).expect("written");
    let said = start(dir.path());
    assert!(said[1].contains("1 of its 2 lines cannot be read (line 1: "), "{said:?}");
    let ids: Vec<String> = records(dir.path()).into_iter().map(|record| record.id).collect();
    assert_eq!(ids, ["01A", "01B", "01D"]);
    let kept = names(dir.path());
    assert!(kept.len() == 1 && kept[0].ends_with(".jsonl.damaged"), "{kept:?}");
    assert!(std::fs::read_to_string(dir.path().join(&kept[0])).expect("kept").contains(half));
}

#[test]
fn no_line_is_lost_between_writers_and_starts() {
    let dir = TestDir::new();
    let writers: Vec<_> = (0..3)
        .map(|writer| {
            let places = [dir.path().to_owned()];
            crate::ports::spawn("test-writer", move || {
                for number in 0..40 {
                    let record = Record::of(&letter(&format!("0{writer}-{number:02}")), &redactor()).0;
                    emergency::append(&places, &record.to_json()).expect("written");
                }
            })
            .expect("a thread")
        })
        .collect();
    while !writers.iter().all(std::thread::JoinHandle::is_finished) {
        start(dir.path());
    }
    writers.into_iter().for_each(|writer| writer.join().expect("no panic"));
    start(dir.path());
    assert_eq!(records(dir.path()).len(), 120);
    assert_eq!(names(dir.path()), [""; 0]);
}

#[test]
fn what_the_queue_cannot_take_stays_and_is_taken_by_the_next_start() {
    let dir = TestDir::new();
    dead(dir.path(), [1, 2, 3]);
    let line = Record::of(&letter("E"), &redactor()).0.to_json();
    emergency::append(&[dir.path().to_owned()], &line).expect("written");
    std::fs::create_dir(dir.path().join("queue.db")).expect("made");
    let said = start(dir.path());
    assert!(said.len() == 1 && said[0].contains("it is a directory"), "{said:?}");
    std::fs::remove_dir(dir.path().join("queue.db")).expect("removed");
    start(dir.path());
    assert_eq!(records(dir.path()).len(), 3);
    assert_eq!(names(dir.path()), [""; 0]);
}
