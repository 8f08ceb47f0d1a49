//! Private files and directories, whatever the umask says, that survive a power loss.

use super::error::{Fault, StoreError};
use super::place::Prepared;
use rustix::fs::{FlockOperation, flock};
use rustix::io::Errno;
use std::fs::{DirBuilder, File, OpenOptions, Permissions};
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};

const FILE_MODE: u32 = 0o600;
const DIR_MODE: u32 = 0o700;
const OTHERS: u32 = 0o077;

/// Makes the file's directory and the file, if they are missing, and reports modes that let others in. SQLite gives
/// `-wal` and `-shm` the mode of the file itself.
pub(super) fn prepare(path: &Path) -> Result<Prepared, StoreError> {
    if path.is_dir() {
        return Err(StoreError::new(path, "open", Fault::Other, "it is a directory"));
    }
    let parent = parent_of(path);
    make_directory(parent).map_err(|error| StoreError::io(parent, "create directory", &error))?;
    let mut warnings = Vec::new();
    let created = match OpenOptions::new().write(true).create_new(true).mode(FILE_MODE).open(path) {
        Ok(file) => {
            file.set_permissions(Permissions::from_mode(FILE_MODE))
                .map_err(|error| StoreError::io(path, "protect", &error))?;
            true
        }
        Err(error) if error.kind() == std::io::ErrorKind::AlreadyExists => {
            let mode = path.metadata().map_or(0, |metadata| metadata.mode());
            if mode & OTHERS != 0 {
                let mode = mode & 0o777;
                warnings
                    .push(format!("{} can be read by others (mode {mode:04o}); run: chmod 600 on it", path.display()));
            }
            false
        }
        Err(error) => return Err(StoreError::io(path, "create", &error)),
    };
    Ok(Prepared { path: path.to_owned(), created, warnings })
}

/// The directory of a file; the current one for a bare name.
pub(super) fn parent_of(path: &Path) -> &Path {
    path.parent().filter(|parent| !parent.as_os_str().is_empty()).unwrap_or(Path::new("."))
}

/// Makes sure that the directory's entries are on the disk.
pub(super) fn sync_directory(path: &Path) -> std::io::Result<()> {
    File::open(path)?.sync_all()
}

/// Makes a new private file, to be read and appended to.
pub(super) fn create_private(path: &Path) -> std::io::Result<File> {
    let file = OpenOptions::new().read(true).append(true).create_new(true).mode(FILE_MODE).open(path)?;
    file.set_permissions(Permissions::from_mode(FILE_MODE))?;
    Ok(file)
}

/// Takes the lock of a file, which lives as long as this value or until the process dies; `false` if another holds it.
pub(super) fn try_lock(file: &File) -> std::io::Result<bool> {
    match flock(file, FlockOperation::NonBlockingLockExclusive) {
        Ok(()) => Ok(true),
        Err(Errno::WOULDBLOCK) => Ok(false),
        Err(error) => Err(error.into()),
    }
}

/// Waits for the lock of a file.
pub(super) fn lock(file: &File) -> std::io::Result<()> {
    loop {
        match flock(file, FlockOperation::LockExclusive) {
            Err(Errno::INTR) => {}
            other => return Ok(other?),
        }
    }
}

/// Whether the path leads to this open file. It may have been moved or removed before the lock was ours.
pub(super) fn is_at(file: &File, path: &Path) -> bool {
    let own = file.metadata().ok().map(|metadata| (metadata.dev(), metadata.ino()));
    own.is_some() && own == identity(path)
}

/// The path with more at the end of its name.
pub(super) fn with_suffix(path: &Path, suffix: &str) -> PathBuf {
    let mut name = path.as_os_str().to_owned();
    name.push(suffix);
    PathBuf::from(name)
}

/// A name that begins with `path` and `suffix` and that nothing has.
pub(super) fn free_name(path: &Path, suffix: &str) -> PathBuf {
    let wanted = with_suffix(path, suffix);
    let mut free = wanted.clone();
    let mut number = 1_u64;
    while free.symlink_metadata().is_ok() {
        number += 1;
        free = with_suffix(&wanted, &format!(".{number}"));
    }
    free
}

/// Makes a directory and those above it, private and on the disk.
pub(super) fn make_directory(path: &Path) -> std::io::Result<()> {
    let missing: Vec<PathBuf> = path
        .ancestors()
        .filter(|part| !part.as_os_str().is_empty())
        .take_while(|part| !part.is_dir())
        .map(Path::to_owned)
        .collect();
    for part in missing.into_iter().rev() {
        match DirBuilder::new().mode(DIR_MODE).create(&part) {
            Ok(()) => {
                std::fs::set_permissions(&part, Permissions::from_mode(DIR_MODE))?;
                sync_directory(parent_of(&part))?;
            }
            // Another process was faster.
            Err(_) if part.is_dir() => {}
            Err(error) => return Err(error),
        }
    }
    Ok(())
}

/// Which file a path leads to right now: device and number.
pub(super) fn identity(path: &Path) -> Option<(u64, u64)> {
    path.metadata().ok().map(|metadata| (metadata.dev(), metadata.ino()))
}
