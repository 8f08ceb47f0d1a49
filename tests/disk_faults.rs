//! Faults of the disk: calls go on, no dead letter is lost, and everything works again when the fault is over.

use std::io::Write;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use super::support::process::say;
use super::support::session::{Ended, Session, session};
use super::support::{Start, TempDir};

const EMERGENCY: &str = "queue-emergency.jsonl";

/// A small file system of its own at `.mcprelay`, taken away when dropped.
struct Disk(PathBuf);

impl Disk {
    /// `None`, with a word about it, where it cannot be mounted.
    fn mount(test: &str, dir: &TempDir) -> Option<Disk> {
        let path = dir.join(".mcprelay");
        std::fs::create_dir(&path).expect("ours");
        let mounted = mount(&["-t", "tmpfs", "-o", "size=2m,mode=0700", "tmpfs"], &path);
        if !mounted {
            say(&format!("SKIPPED disk_faults::{test}: a file system cannot be mounted here (it needs root)"));
        }
        mounted.then_some(Disk(path))
    }

    /// Takes all space but so many bytes, until the file that it gives is removed.
    fn fill(&self, left: u64) -> PathBuf {
        let path = self.0.join("ballast");
        let mut file = std::fs::File::create(&path).expect("there is space");
        let block = [1; 4096];
        while file.write_all(&block).is_ok() {}
        file.set_len(file.metadata().expect("there").len().saturating_sub(left)).expect("it can shrink");
        path
    }

    fn remount(&self, option: &str) {
        assert!(mount(&["-o", &format!("remount,{option}")], &self.0), "remounted");
    }
}

impl Drop for Disk {
    fn drop(&mut self) {
        let _ = std::process::Command::new("umount").arg("-l").arg(&self.0).status();
    }
}

fn mount(args: &[&str], path: &Path) -> bool {
    let done = std::process::Command::new("mount").args(args).arg(path).output();
    done.is_ok_and(|output| output.status.success())
}

fn start_again(dir: &TempDir) -> String {
    let server = Start::server("");
    let relay = Start::relay("", &server).cwd(dir.path()).env("XDG_STATE_HOME", dir.join("state"));
    relay.start().finish().stderr
}

/// A call that fails, whose error comes whatever the disk does.
fn fails(session: &mut Session, id: u32) {
    let error = session.call(&id.to_string(), "rpc-error", &format!(r#"{{"n":{id},"token":"s3cr3t-{id}"}}"#));
    assert_eq!(error.at("error.message"), r#""rpc-error failed""#);
}

fn lines(dir: &TempDir, file: &str) -> Vec<String> {
    dir.read(file).lines().map(str::to_owned).collect()
}

fn numbers(ended: &Ended) -> Vec<String> {
    let mut rows = ended.queued("arguments, tool_name");
    rows.sort();
    rows
}

fn expected(ids: impl IntoIterator<Item = u32>) -> Vec<String> {
    let mut rows: Vec<String> =
        ids.into_iter().map(|id| format!(r#"{{"n":{id},"token":"[REDACTED]"}}|rpc-error"#)).collect();
    rows.sort();
    rows
}

#[test]
fn sql_3_on_a_full_disk_dead_letters_go_to_the_other_place_and_come_back_with_the_next_start() {
    let setup = session("disk-full");
    let Some(disk) = Disk::mount("sql_3", setup.dir()) else { return };
    let mut session = setup.start();
    fails(&mut session, 1);
    let ballast = disk.fill(0);
    for id in 2..52 {
        fails(&mut session, id);
        assert_eq!(session.call(&format!("\"e{id}\""), "echo", "{}").at("result.structuredContent"), "{}");
    }
    session.relay.stderr_with("No space left on device");
    std::fs::remove_file(ballast).expect("ours");
    fails(&mut session, 52);
    let Ended { dir, stderr, .. } = session.finish();
    let warnings = stderr.lines().filter(|line| line.contains("is not in the queue")).count();
    let rescued = lines(&dir, &format!("state/mcprelay/{EMERGENCY}"));
    let beside = lines(&dir, &format!(".mcprelay/{EMERGENCY}"));
    assert!(!rescued.is_empty(), "the disk was full: {stderr}");
    assert_eq!(rescued.len() + beside.len(), warnings, "each is told and kept: {stderr}");
    assert!(rescued.iter().all(|line| !line.contains("s3cr3t")), "secrets are masked there too");

    let said = start_again(&dir);
    assert!(said.contains("dead letters of "), "{said}");
    let ended = Ended { code: None, stderr, seen: Vec::new(), dir };
    assert_eq!(numbers(&ended), expected(1..53));
    assert!(!ended.dir.join("state/mcprelay").join(EMERGENCY).exists());
    drop(disk);
}

#[test]
fn a_disk_that_becomes_read_only_costs_nothing_and_is_used_again_later() {
    let setup = session("disk-read-only");
    let Some(disk) = Disk::mount("read_only", setup.dir()) else { return };
    let mut session = setup.start();
    fails(&mut session, 1);
    session.settle();
    // A file that is open for writing keeps the file system busy; the fault is forced as a failing disk forces it.
    let lazily = std::process::Command::new("mount").args(["-o", "remount,ro"]).arg(&disk.0).output();
    if !lazily.is_ok_and(|output| output.status.success()) {
        // Then a read-only mount over it is the same to whoever opens a path.
        let bound = mount(&["--bind", disk.0.to_str().expect("text")], &disk.0);
        assert!(bound && mount(&["-o", "remount,bind,ro"], &disk.0), "one of the two works");
        fails(&mut session, 2);
        let _ = std::process::Command::new("umount").arg("-l").arg(&disk.0).status();
    } else {
        fails(&mut session, 2);
        disk.remount("rw");
    }
    fails(&mut session, 3);
    let Ended { dir, stderr, .. } = session.finish();
    start_again(&dir);
    let ended = Ended { code: None, stderr, seen: Vec::new(), dir };
    assert_eq!(numbers(&ended), expected(1..4), "{}", ended.stderr);
    drop(disk);
}

#[test]
fn without_any_place_the_dead_letter_is_on_standard_error_whole_and_masked() {
    let config = "queue: {sqlite: {path: /proc/none/queue.db}}\nstore: {sqlite: {path: /proc/none/history.db}}";
    let setup = session("disk-nowhere").config(config).started(|start| start.env("XDG_STATE_HOME", "/proc/none/state"));
    let mut session = setup.start();
    fails(&mut session, 1);
    let said = session.relay.stderr_with("\"replay\"");
    let letter = said.lines().find(|line| line.starts_with('{') && line.contains("\"replay\"")).expect("it is there");
    let letter: serde_json::Value = serde_json::from_str(letter).expect("JSON");
    assert_eq!(letter["tool"]["arguments"].to_string(), r#"{"n":1,"token":"[REDACTED]"}"#);
    assert!(said.contains("its dead letter follows"), "{said}");
    session.finish();
}

#[test]
fn a_queue_that_is_damaged_while_it_is_open_is_put_aside_and_nothing_is_lost_silently() {
    let (mut state, mut noticed) = (1_u64, 0);
    for round in 0..8 {
        let mut session = session("disk-damage").start();
        for id in 0..3 {
            fails(&mut session, id);
        }
        session.settle();
        let file = session.dir.join(".mcprelay/queue.db");
        // All of it is in the file, of which then a part is overwritten at random, and every other time cut off.
        let checkpoint = rusqlite::Connection::open(&file).expect("a database");
        checkpoint.query_row("PRAGMA wal_checkpoint(TRUNCATE)", [], |_| Ok(())).expect("a checkpoint");
        drop(checkpoint);
        let mut bytes = std::fs::read(&file).expect("a file");
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        let at = usize::try_from(state >> 33).expect("small") % (bytes.len() / 2);
        bytes[at..].iter_mut().take(8_000).for_each(|byte| *byte ^= 0x5A);
        bytes.truncate(if round % 2 == 0 { bytes.len() } else { bytes.len() / 2 });
        {
            let mut open = std::fs::OpenOptions::new().write(true).truncate(true).open(&file).expect("ours");
            open.write_all(&bytes).expect("ours");
        }
        for id in 3..6 {
            fails(&mut session, id);
        }
        let Ended { dir, stderr, .. } = session.finish();
        start_again(&dir);
        let aside: Vec<String> = std::fs::read_dir(dir.join(".mcprelay"))
            .expect("ours")
            .flatten()
            .map(|entry| entry.file_name().to_string_lossy().into_owned())
            .filter(|name| name.starts_with("queue.db.corrupt-"))
            .collect();
        let damaged = stderr.contains("IS DAMAGED");
        assert_eq!(damaged, !aside.is_empty(), "round {round}, byte {at}: {aside:?}\n{stderr}");
        if damaged {
            noticed += 1;
            // What came before is in the file that is named; what came after is in the new one.
            let ended = Ended { code: None, stderr, seen: Vec::new(), dir };
            let found = numbers(&ended);
            assert!(expected(3..6).iter().all(|row| found.contains(row)), "round {round}, byte {at}: {found:?}");
        }
    }
    assert!(noticed >= 2, "damage elsewhere is not noticed by a write, but {noticed} of 8 is too few");
}

#[test]
fn a_slow_disk_delays_no_call_and_an_error_no_longer_than_configured() {
    let works = std::process::Command::new("strace").args(["-e", "inject=fsync:delay_enter=1", "true"]).output();
    if !works.is_ok_and(|output| output.status.success()) {
        say("SKIPPED disk_faults::slow_disk: strace is not there or may not trace");
        return;
    }
    let setup = session("disk-slow").config("queue: {capture_timeout_ms: 100}");
    let trace = setup.dir().join("trace");
    let strace = Start::new("strace")
        .args(["-f", "-e", "trace=fsync,fdatasync", "-e", "inject=fsync,fdatasync:delay_enter=400000", "-o"])
        .arg(&trace);
    let mut session = setup.wrapped(strace).start();
    session.settle();
    // The first file in a new directory waits for the disk; what is measured comes after it.
    session.call("0", "echo", "{}");
    let started = Instant::now();
    fails(&mut session, 1);
    let failed = started.elapsed();
    // Making the queue and writing to it takes at least three synchronisations.
    assert!((100..1_000).contains(&failed.as_millis()), "{failed:?}");
    let started = Instant::now();
    for id in 10..30 {
        session.call(&id.to_string(), "echo", "{}");
    }
    assert!(started.elapsed() < Duration::from_millis(1_000), "{:?}", started.elapsed());
    let Ended { dir, stderr, .. } = session.finish();
    assert!(stderr.contains("the queue did not confirm within 100 ms"), "{stderr}");
    start_again(&dir);
    let ended = Ended { code: None, stderr, seen: Vec::new(), dir };
    assert_eq!(numbers(&ended), expected([1]), "twice kept, once queued");
    assert!(!ended.dir.join(".mcprelay").join(EMERGENCY).exists());
}

#[test]
fn a_locked_queue_leaves_each_dead_letter_once() {
    let mut session = session("disk-locked").config("queue: {capture_timeout_ms: 100}").start();
    fails(&mut session, 0);
    let lock = session.lock_queue();
    for id in 1..4 {
        fails(&mut session, id);
    }
    assert!(session.relay.stderr_with("until the next start").contains(EMERGENCY));
    drop(lock);
    fails(&mut session, 4);
    let Ended { dir, stderr, .. } = session.finish();
    start_again(&dir);
    let ended = Ended { code: None, stderr, seen: Vec::new(), dir };
    assert_eq!(numbers(&ended), expected(0..5), "{}", ended.stderr);
}
