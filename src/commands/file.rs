//! Files that a command writes for others to read: whole or not at all.

use std::fs::{File, OpenOptions, Permissions};
use std::io::{self, Write};
use std::os::unix::fs::{OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};

use crate::store::error::{Fault, StoreError};

/// Who may read the file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Audience {
    /// Its owner alone, whatever the umask.
    Owner,
    /// Everybody that the umask lets: a collector runs as another user.
    Everybody,
}

/// Puts `content` into the file at `path` in one step: whoever reads it sees the old or the new one, never a part, and
/// after a failure the old one is still there.
///
/// # Errors
/// What went wrong, naming the file.
pub(crate) fn replace(path: &Path, audience: Audience, content: &[u8]) -> Result<(), StoreError> {
    if path.is_dir() {
        return Err(StoreError::new(path, "write", Fault::Other, "it is a directory; name a file in it"));
    }
    let Some(name) = path.file_name() else {
        return Err(StoreError::new(path, "write", Fault::Other, "it is no name of a file"));
    };
    let random = crate::random::u64();
    // Beside it, because a file cannot be renamed into another file system; the dot hides it from collectors.
    let mut hidden = std::ffi::OsString::from(".");
    hidden.push(name);
    hidden.push(format!(".{random:016x}.tmp"));
    let temporary = path.with_file_name(hidden);
    let written = write(&temporary, audience, content).and_then(|()| std::fs::rename(&temporary, path));
    if written.is_err() {
        // It may never have been made.
        let _ = std::fs::remove_file(&temporary);
    }
    written.map_err(|error| StoreError::io(path, "write", &error))
}

fn write(path: &PathBuf, audience: Audience, content: &[u8]) -> io::Result<()> {
    let mode = match audience {
        Audience::Owner => 0o600,
        Audience::Everybody => 0o644,
    };
    let mut file: File = OpenOptions::new().write(true).create_new(true).mode(mode).open(path)?;
    if audience == Audience::Owner {
        file.set_permissions(Permissions::from_mode(mode))?;
    }
    file.write_all(content)?;
    file.sync_all()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::store::test_dir::TestDir;

    #[test]
    fn a_file_is_replaced_as_a_whole_and_its_mode_is_set() {
        let dir = TestDir::new();
        let path = dir.path().join("page.html");
        std::fs::write(&path, "old").expect("written");
        std::fs::set_permissions(&path, Permissions::from_mode(0o666)).expect("changed");
        let before = std::fs::File::open(&path).expect("opened");
        replace(&path, Audience::Owner, b"new").expect("replaced");
        assert_eq!(std::fs::read(&path).expect("read"), b"new");
        assert_eq!(path.metadata().expect("there").permissions().mode() & 0o777, 0o600);
        // Whoever had it open still has the whole old one.
        assert_eq!(io::read_to_string(before).expect("read"), "old");
        replace(&dir.path().join("metrics.prom"), Audience::Everybody, b"x").expect("written");
        assert_eq!(std::fs::read_dir(dir.path()).expect("read").count(), 2, "nothing else is left behind");
    }

    #[test]
    fn a_file_that_cannot_be_written_is_named_and_nothing_is_left_behind() {
        let dir = TestDir::new();
        for (path, reason) in
            [(dir.path().to_owned(), "it is a directory"), (dir.path().join("missing/page.html"), "No such file")]
        {
            let error = replace(&path, Audience::Owner, b"x").expect_err("refused").to_string();
            assert!(error.contains(&path.display().to_string()) && error.contains(reason), "{error}");
        }
        assert_eq!(std::fs::read_dir(dir.path()).expect("read").count(), 0);
    }
}
