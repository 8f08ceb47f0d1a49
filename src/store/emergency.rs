//! The emergency file: dead letters that the queue could not take, one line of JSON each, beside the queue.
//!
//! A line is on the disk when [`append`] returns. The next start that can write takes the lines into the queue
//! (`recovery`). Writers and that one keep apart by the file's lock: it moves the file away while it holds the lock, and
//! a writer that got the lock of a moved file opens a new one.

use super::files;
use std::fs::{File, OpenOptions, Permissions};
use std::io::Write;
use std::os::unix::fs::{FileExt, OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};

/// The name in the queue's directory.
pub const NAME: &str = "queue-emergency.jsonl";
/// How the name of a file that is being taken in begins and ends.
pub(super) const TAKEN_PREFIX: &str = "queue-emergency-";
pub(super) const TAKEN_SUFFIX: &str = ".jsonl";

/// How often a file that was moved away meanwhile is opened anew.
const TRIES: usize = 16;

/// Adds a line to the file in the first directory that takes it, and gives the file's path.
///
/// # Errors
/// In words: why no directory takes it.
pub fn append(directories: &[PathBuf], line: &str) -> Result<PathBuf, String> {
    let mut problems = Vec::new();
    for directory in directories {
        let path = directory.join(NAME);
        match append_to(&path, line) {
            Ok(()) => return Ok(path),
            Err(error) => problems.push(format!("cannot write {}: {error}", path.display())),
        }
    }
    Err(problems.join("; "))
}

fn append_to(path: &Path, line: &str) -> std::io::Result<()> {
    files::make_directory(files::parent_of(path))?;
    let (mut file, created) = open_locked(path)?;
    let before = file.metadata()?.len();
    let mut text = Vec::with_capacity(line.len() + 2);
    // A writer that was killed left half a line, which must not spoil this one.
    let mut last = [b'\n'];
    if before > 0 {
        file.read_exact_at(&mut last, before - 1)?;
    }
    if last != *b"\n" {
        text.push(b'\n');
    }
    text.extend_from_slice(line.as_bytes());
    text.push(b'\n');
    if let Err(error) = file.write_all(&text).and_then(|()| file.sync_all()) {
        // Half a line helps nobody, and its space may be what others need.
        let _ = file.set_len(before);
        return Err(error);
    }
    if created {
        files::sync_directory(files::parent_of(path))?;
    }
    Ok(())
}

/// The file under its lock, and whether it is new.
fn open_locked(path: &Path) -> std::io::Result<(File, bool)> {
    for _ in 0..TRIES {
        let file = OpenOptions::new().read(true).append(true).create(true).mode(0o600).open(path)?;
        files::lock(&file)?;
        if files::is_at(&file, path) {
            let created = file.metadata()?.len() == 0;
            if created {
                file.set_permissions(Permissions::from_mode(0o600))?;
            }
            return Ok((file, created));
        }
    }
    Err(std::io::Error::other("others move the file away again and again"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::store::test_dir::TestDir;

    #[test]
    fn lines_are_added_in_a_private_file_in_the_first_directory_that_takes_them() {
        let dir = TestDir::new();
        std::fs::write(dir.path().join("file"), "").expect("written");
        let places = [dir.path().join("file/no"), dir.path().join("a/b")];
        assert_eq!(append(&places, "{1}").expect("the second takes it"), places[1].join(NAME));
        append(&places, "{2}").expect("again");
        let path = places[1].join(NAME);
        assert_eq!(std::fs::read_to_string(&path).expect("readable"), "{1}\n{2}\n");
        assert_eq!(path.metadata().expect("there").permissions().mode() & 0o777, 0o600);
        let error = append(&places[..1], "{3}").expect_err("no place");
        assert!(error.contains("file/no/queue-emergency.jsonl"), "{error}");
    }

    #[test]
    fn half_a_line_of_a_killed_writer_does_not_spoil_the_next() {
        let dir = TestDir::new();
        std::fs::write(dir.path().join(NAME), "{1}\n{\"half").expect("written");
        append(&[dir.path().to_owned()], "{2}").expect("taken");
        assert_eq!(std::fs::read_to_string(dir.path().join(NAME)).expect("readable"), "{1}\n{\"half\n{2}\n");
    }

    #[test]
    fn a_writer_whose_file_is_moved_away_before_it_has_the_lock_writes_into_a_new_one() {
        let dir = TestDir::new();
        let (path, taken) = (dir.path().join(NAME), dir.path().join("taken"));
        append(&[dir.path().to_owned()], "{1}").expect("taken");
        let held = File::open(&path).expect("open");
        files::lock(&held).expect("locked");
        let place = dir.path().to_owned();
        let writer = crate::ports::spawn("test-writer", move || append(&[place], "{2}")).expect("a thread");
        std::fs::rename(&path, &taken).expect("moved");
        drop(held);
        writer.join().expect("no panic").expect("written");
        assert_eq!(std::fs::read_to_string(&taken).expect("readable"), "{1}\n");
        assert_eq!(std::fs::read_to_string(&path).expect("readable"), "{2}\n");
    }
}
