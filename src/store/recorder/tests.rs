//! The recorder against real files: what is in them at each moment, and what faults of the disk do.

use super::*;
use crate::record::test_values::letter;
use crate::store::flight::{Flight, read};
use crate::store::test_dir::TestDir;
use std::sync::Arc;

const BIG: u64 = 1 << 30;

/// A recorder over these directories, and what it reports.
fn recorder(directories: &[&Path], bytes_max: u64) -> (Recorder, Arc<Mutex<Vec<String>>>) {
    let told = Arc::new(Mutex::new(Vec::new()));
    let settings = RecorderSettings {
        directories: directories.iter().map(|path| path.to_path_buf()).collect(),
        bytes_max,
        redactor: Redactor::new(&["token".to_owned()]),
        clock: Clock::start(),
    };
    let to = Arc::clone(&told);
    (Recorder::new(settings, move |text| to.lock().expect("no panic").push(text)), told)
}

fn accept(recorder: &Recorder, call: u64, attempt: u64) {
    recorder.accepted(CallId(call), &letter(&format!("{call}")));
    recorder.attempting(CallId(call), AttemptId(attempt));
}

/// The flight files of a directory.
fn files_in(dir: &Path) -> Vec<PathBuf> {
    let mut all: Vec<PathBuf> =
        std::fs::read_dir(dir).into_iter().flatten().flatten().map(|entry| entry.path()).collect();
    all.sort();
    all
}

fn only_file(dir: &Path) -> PathBuf {
    let mut all = files_in(dir);
    assert_eq!(all.len(), 1, "{all:?}");
    all.remove(0)
}

fn says(dir: &Path) -> Flight {
    let flight = read(&std::fs::read(only_file(dir)).expect("readable"));
    assert_eq!(flight.fault, None);
    flight
}

/// Open calls and how many of their attempts may have left.
fn open(dir: &Path) -> Vec<(u64, usize)> {
    says(dir).open.into_iter().map(|(call, open)| (call, open.begun.len())).collect()
}

fn is_locked(path: &Path) -> bool {
    !files::try_lock(&File::open(path).expect("open")).expect("a lock can be asked for")
}

#[test]
fn a_call_is_in_the_file_with_all_it_needs_before_its_first_byte_leaves() {
    let dir = TestDir::new();
    let place = dir.path().join("a/b");
    let (recorder, told) = recorder(&[&place], BIG);
    assert!(!dir.path().join("a").exists(), "nothing is made before it is needed");
    accept(&recorder, 1, 10);
    recorder.begins(AttemptId(10));
    assert_eq!(open(&place), [(1, 1)]);
    let record = says(&place).open.remove(&1).expect("open").record;
    let mut record = Record::from_json(&record).expect("a record");
    record.complete();
    assert_eq!(record, Record::of(&letter("1"), &Redactor::new(&["token".to_owned()])).0);
    use std::os::unix::fs::PermissionsExt;
    let mode = |path: &Path| path.metadata().expect("there").permissions().mode() & 0o777;
    assert_eq!((mode(&place), mode(&only_file(&place))), (0o700, 0o600));
    assert!(is_locked(&only_file(&place)));
    assert!(told.lock().expect("no panic").is_empty());
}

#[test]
fn what_was_not_sent_is_not_called_sent_and_other_requests_leave_no_mark() {
    let dir = TestDir::new();
    let (recorder, _) = recorder(&[dir.path()], BIG);
    accept(&recorder, 1, 10);
    recorder.begins(AttemptId(99));
    assert_eq!(files_in(dir.path()).len(), 1);
    recorder.flush();
    assert_eq!(open(dir.path()), [(1, 0)], "accepted, waiting");
    recorder.begins(AttemptId(10));
    recorder.stayed(AttemptId(10));
    recorder.flush();
    assert_eq!(open(dir.path()), [(1, 0)], "its pipe was full");
    recorder.begins(AttemptId(10));
    recorder.attempting(CallId(1), AttemptId(11));
    recorder.begins(AttemptId(11));
    assert_eq!(open(dir.path()), [(1, 2)]);
}

#[test]
fn an_orderly_end_removes_the_file_unless_a_call_is_open() {
    let dir = TestDir::new();
    let (one, _) = recorder(&[dir.path()], BIG);
    accept(&one, 1, 10);
    one.begins(AttemptId(10));
    one.ended(CallId(1));
    one.flush();
    assert_eq!(open(dir.path()), []);
    one.close();
    assert_eq!(files_in(dir.path()).len(), 0);

    let (two, _) = recorder(&[dir.path()], BIG);
    accept(&two, 1, 10);
    two.close();
    drop(two);
    assert_eq!(open(dir.path()), [(1, 0)]);
    assert!(!is_locked(&only_file(dir.path())), "the next start may have it");
}

#[test]
fn a_held_call_stays_open_until_its_dead_letter_is_on_the_disk() {
    let dir = TestDir::new();
    let (recorder, _) = recorder(&[dir.path()], BIG);
    accept(&recorder, 1, 10);
    accept(&recorder, 2, 11);
    recorder.hold(CallId(1));
    recorder.hold(CallId(2));
    recorder.ended(CallId(1));
    recorder.flush();
    assert_eq!(open(dir.path()), [(1, 0), (2, 0)]);
    recorder.release(CallId(1));
    recorder.release(CallId(2));
    assert_eq!(open(dir.path()), [(2, 0)], "the other has not ended");
}

#[test]
fn the_file_stays_small_and_keeps_every_open_call_and_its_lock() {
    let dir = TestDir::new();
    let (recorder, told) = recorder(&[dir.path()], 8_192);
    accept(&recorder, 1, 1);
    accept(&recorder, 2, 2);
    recorder.begins(AttemptId(2));
    let path = only_file(dir.path());
    for call in 3..500 {
        accept(&recorder, call, call);
        recorder.begins(AttemptId(call));
        recorder.ended(CallId(call));
        recorder.flush();
        assert_eq!(open(dir.path()), [(1, 0), (2, 1)]);
        assert!(is_locked(&path), "under its one name it is always ours");
        assert!(path.metadata().expect("there").len() < 12_000);
    }
    recorder.ended(CallId(1));
    recorder.flush();
    assert_eq!(open(dir.path()), [(2, 1)]);
    assert!(told.lock().expect("no panic").is_empty());
}

#[test]
fn more_open_calls_than_fit_are_all_kept_and_not_copied_for_every_new_one() {
    let dir = TestDir::new();
    let (recorder, _) = recorder(&[dir.path()], 4_096);
    for call in 0..200 {
        accept(&recorder, call, call);
        recorder.flush();
    }
    assert_eq!(open(dir.path()).len(), 200);
    let live = recorder.lock();
    let live = live.file.as_ref().expect("open");
    assert!(live.rewrite_at > live.bytes, "{} of {}", live.bytes, live.rewrite_at);
}

/// Lets every further write fail for want of space.
fn fill_disk(recorder: &Recorder) -> File {
    let full = std::fs::OpenOptions::new().append(true).open("/dev/full").expect("there is a full device");
    std::mem::replace(&mut recorder.lock().file.as_mut().expect("a file").file, full)
}

#[test]
fn a_full_disk_is_said_once_shown_in_the_name_and_made_good_when_there_is_space() {
    let dir = TestDir::new();
    let (recorder, told) = recorder(&[dir.path()], BIG);
    accept(&recorder, 1, 10);
    recorder.flush();
    let file = fill_disk(&recorder);
    recorder.begins(AttemptId(10));
    let name = only_file(dir.path());
    assert!(name.to_string_lossy().ends_with(UNSURE_SUFFIX), "its mark is missing, so the name must tell: {name:?}");
    assert_eq!(open(dir.path()), [(1, 0)]);
    accept(&recorder, 2, 11);
    recorder.begins(AttemptId(11));
    recorder.ended(CallId(2));
    recorder.flush();
    recorder.lock().file.as_mut().expect("a file").file = file;
    accept(&recorder, 3, 12);
    recorder.begins(AttemptId(12));
    recorder.flush();
    assert_eq!(open(dir.path()), [(1, 1), (3, 1)]);
    let name = only_file(dir.path());
    assert!(!name.to_string_lossy().ends_with(UNSURE_SUFFIX), "{name:?}");
    assert!(is_locked(&name));
    let told = told.lock().expect("no panic").clone();
    assert_eq!(told.len(), 2, "{told:?}");
    assert!(told[0].contains("cannot write ") && told[0].contains("No space left"), "{told:?}");
    assert_eq!(told[1], "flight recorder: works again");
}

#[test]
fn marks_that_no_disk_takes_are_bounded_and_the_file_is_right_again_afterwards() {
    let dir = TestDir::new();
    let (recorder, _) = recorder(&[dir.path()], BIG);
    accept(&recorder, 1, 10);
    accept(&recorder, 2, 11);
    recorder.flush();
    let file = fill_disk(&recorder);
    recorder.begins(AttemptId(10));
    recorder.ended(CallId(2));
    for call in 3..10_000 {
        accept(&recorder, call, call + 100);
        recorder.begins(AttemptId(call + 100));
        assert!(recorder.lock().waiting.len() <= WAITING_BYTES_MAX + 4_096);
    }
    assert!(recorder.lock().file.as_ref().expect("a file").stale);
    assert_eq!(recorder.lock().attempts.len(), 1, "calls that are in no file are forgotten");
    {
        let inner = &mut *recorder.lock();
        inner.file.as_mut().expect("a file").file = file;
        inner.retry_at = Time::ZERO;
    }
    recorder.flush();
    assert_eq!(open(dir.path()), [(1, 1)], "the lost begin and the lost end are known all the same");
    accept(&recorder, 20_000, 20_000);
    recorder.flush();
    assert_eq!(open(dir.path()), [(1, 1), (20_000, 0)]);
}

#[test]
fn another_directory_takes_over_when_the_first_is_full_and_when_it_cannot_be_made() {
    let dir = TestDir::new();
    let (one, two) = (dir.path().join("one"), dir.path().join("two"));
    let (first, told) = recorder(&[&one, &two], BIG);
    accept(&first, 1, 10);
    first.flush();
    accept(&first, 2, 11);
    let file = fill_disk(&first);
    // The marks that are in the file must still be read from it.
    let path = only_file(&one);
    first.lock().file.as_mut().expect("a file").file = {
        drop(file);
        // Read-only: every write fails.
        let file = File::open(&path).expect("open");
        files::try_lock(&file).expect("locked");
        file
    };
    first.begins(AttemptId(11));
    assert_eq!(open(&two), [(1, 0), (2, 1)]);
    assert_eq!(files_in(&one).len(), 0);
    assert!(is_locked(&only_file(&two)));
    assert_eq!(told.lock().expect("no panic").len(), 1);

    std::fs::write(dir.path().join("file"), "").expect("written");
    let (second, _) = recorder(&[&dir.path().join("file/no"), &one], BIG);
    accept(&second, 1, 10);
    second.flush();
    assert_eq!(open(&one), [(1, 0)]);
}

#[test]
fn without_any_directory_calls_go_on_and_it_is_said_once() {
    let dir = TestDir::new();
    std::fs::write(dir.path().join("file"), "").expect("written");
    let (recorder, told) = recorder(&[&dir.path().join("file/no")], BIG);
    for call in 0..10 {
        accept(&recorder, call, call);
        recorder.begins(AttemptId(call));
        recorder.ended(CallId(call));
        recorder.flush();
    }
    recorder.close();
    let told = told.lock().expect("no panic").clone();
    assert!(told.len() == 1 && told[0].contains("file/no"), "{told:?}");
}
