//! Puts a damaged database aside: by name, with everything that belongs to it, never deleted.

use super::db;
use super::error::{Fault, StoreError};
use super::files;
use crate::clock::Wall;
use rusqlite::OpenFlags;
use std::fs::File;
use std::io::Read;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// How a SQLite file begins.
const MAGIC: &[u8] = b"SQLite format 3\0";

/// What belongs to a database besides its file.
const SIDE_FILES: [&str; 2] = ["-wal", "-shm"];

/// Renames a damaged database to `<name>.corrupt-<time>` and gives the new name; `None` if the file that is there now is
/// sound, because another process was faster or a new connection sees no damage. Processes that still have it open
/// notice the change before their next write.
///
/// # Errors
/// In words: why it stays where it is. A file that never was a database is only moved if its name says that it is one.
pub(super) fn set_aside(path: &Path, busy: Duration, now: Wall) -> Result<Option<PathBuf>, String> {
    let parent = files::parent_of(path);
    // One at a time: what is moved below must be what was found damaged here.
    let directory = File::open(parent).map_err(|error| format!("cannot open {}: {error}", parent.display()))?;
    files::lock(&directory).map_err(|error| format!("cannot lock {}: {error}", parent.display()))?;
    if !is_damaged(path, busy) {
        return Ok(None);
    }
    if !is_named_as_database(path) && !has_magic(path) {
        return Err("it was left alone, because neither its name nor its content says that it is one".to_owned());
    }
    let suffix = format!(".corrupt-{}", now.to_rfc3339().replace(':', "-"));
    let aside = files::free_name(path, &suffix);
    // The side files first: a new database must never be found beside an old log.
    for side in SIDE_FILES {
        rename(&files::with_suffix(path, side), &files::with_suffix(&aside, side))?;
    }
    rename(path, &aside)?;
    files::sync_directory(parent).map_err(|error| format!("cannot sync {}: {error}", parent.display()))?;
    Ok(Some(aside))
}

fn rename(from: &Path, to: &Path) -> Result<(), String> {
    match std::fs::rename(from, to) {
        Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
            Err(format!("cannot move it to {}: {error}", to.display()))
        }
        _ => Ok(()),
    }
}

/// Whether a fresh look finds damage. Faults that say nothing about the content, like a lock, are none.
fn is_damaged(path: &Path, busy: Duration) -> bool {
    let check = || -> rusqlite::Result<String> {
        let conn = db::connect(path, OpenFlags::SQLITE_OPEN_READ_WRITE, busy)?;
        db::keep_log(&conn, true);
        conn.query_row("PRAGMA quick_check(1)", [], |row| row.get(0))
    };
    match check() {
        Ok(verdict) => verdict != "ok",
        Err(error) => StoreError::sqlite(path, "check", &error).fault == Fault::Corrupt,
    }
}

fn is_named_as_database(path: &Path) -> bool {
    path.extension()
        .is_some_and(|name| ["db", "sqlite", "sqlite3"].iter().any(|known| name.eq_ignore_ascii_case(known)))
}

fn has_magic(path: &Path) -> bool {
    let mut start = [0; 16];
    File::open(path).and_then(|mut file| file.read_exact(&mut start)).is_ok_and(|()| start == *MAGIC)
}
