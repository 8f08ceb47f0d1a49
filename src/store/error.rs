//! What goes wrong with a database file, in words that name the file and the reason.

use rusqlite::ErrorCode;
use std::path::{Path, PathBuf};

/// Why a file could not be opened, read or written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    /// Another process holds it; the same may work in a moment.
    Locked,
    /// No space left.
    Full,
    /// The file or its file system is read-only, or the right to write is missing.
    ReadOnly,
    /// Not a database, or a damaged one.
    Corrupt,
    /// Written by a newer version, or by another program.
    Foreign,
    /// One row was refused; others may be fine.
    Row,
    /// Anything else.
    Other,
}

/// A failed access to a database file. It fits "failed to …": `write /x/queue.db: the disk is full`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StoreError {
    /// The file, or the directory that could not be made.
    pub path: PathBuf,
    /// What was tried: `open`, `read`, `write`.
    pub doing: &'static str,
    /// The kind of fault.
    pub fault: Fault,
    /// The reason in words, with the remedy where there is one.
    pub reason: String,
}

impl std::fmt::Display for StoreError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} {}: {}", self.doing, self.path.display(), self.reason)
    }
}

impl std::error::Error for StoreError {}

impl StoreError {
    pub(crate) fn new(path: &Path, doing: &'static str, fault: Fault, reason: impl Into<String>) -> StoreError {
        StoreError { path: path.to_owned(), doing, fault, reason: reason.into() }
    }

    pub(crate) fn io(path: &Path, doing: &'static str, error: &std::io::Error) -> StoreError {
        let fault = match error.kind() {
            std::io::ErrorKind::PermissionDenied | std::io::ErrorKind::ReadOnlyFilesystem => Fault::ReadOnly,
            std::io::ErrorKind::StorageFull | std::io::ErrorKind::QuotaExceeded => Fault::Full,
            _ => Fault::Other,
        };
        StoreError::new(path, doing, fault, error.to_string())
    }

    pub(crate) fn sqlite(path: &Path, doing: &'static str, error: &rusqlite::Error) -> StoreError {
        let (fault, reason) = match error.sqlite_error_code() {
            Some(ErrorCode::DatabaseBusy | ErrorCode::DatabaseLocked) => (Fault::Locked, "locked by another process"),
            Some(ErrorCode::DiskFull) => (Fault::Full, "the disk is full"),
            Some(ErrorCode::ReadOnly) => (Fault::ReadOnly, "the file or its directory is read-only"),
            Some(ErrorCode::PermissionDenied) => (Fault::ReadOnly, "permission denied"),
            Some(ErrorCode::NotADatabase) => (Fault::Corrupt, "not a SQLite database"),
            Some(ErrorCode::DatabaseCorrupt) => (Fault::Corrupt, "the database is damaged"),
            Some(ErrorCode::CannotOpen) if path.is_dir() => (Fault::Other, "it is a directory"),
            Some(ErrorCode::ConstraintViolation | ErrorCode::TooBig | ErrorCode::TypeMismatch) => {
                return StoreError::new(path, doing, Fault::Row, error.to_string());
            }
            _ => return StoreError::new(path, doing, Fault::Other, error.to_string()),
        };
        StoreError::new(path, doing, fault, format!("{reason} ({error})"))
    }
}
