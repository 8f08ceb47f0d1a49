//! Opening one database file: private, in WAL mode, at a version that this program knows.

use super::error::{Fault, StoreError};
use super::files;
use super::place::{Place, Prepared};
use super::schema::Schema;
use crate::clock::Clock;
use rusqlite::config::DbConfig;
use rusqlite::{Connection, OpenFlags, TransactionBehavior};
use std::path::{Path, PathBuf};
use std::time::Duration;

/// Beyond this size the log is cut back when it is reset.
const LOG_BYTES_MAX: i64 = 8 * 1024 * 1024;

/// An open database.
#[derive(Debug)]
pub(super) struct Db {
    pub(super) conn: Connection,
    pub(super) path: PathBuf,
    identity: Option<(u64, u64)>,
}

impl Db {
    /// Whether the path still leads to the open file. Rows written into a file that was moved or deleted are lost.
    pub(super) fn is_current(&self) -> bool {
        self.identity.is_some() && files::identity(&self.path) == self.identity
    }
}

/// Opens a database for writing, makes it if it is missing, and brings its tables up to date. `busy` is how long to
/// wait for other processes. The texts are warnings, each one line.
pub(super) fn open(place: &Place, schema: &Schema, busy: Duration) -> Result<(Db, Vec<String>), StoreError> {
    let Prepared { path, created, mut warnings } = place.prepare()?;
    let opened = |error| StoreError::sqlite(&path, "open", &error);
    let conn = connect(&path, OpenFlags::SQLITE_OPEN_READ_WRITE, busy).map_err(opened)?;
    keep_log(&conn, true);
    if check(&conn, &path, schema)? == 0 {
        // Heeded only before the first page is written. Space that pruning frees can then be given back in small steps.
        conn.execute_batch("PRAGMA auto_vacuum = INCREMENTAL").map_err(opened)?;
    }
    if let Some(warning) = use_wal(&conn, &path, busy)? {
        warnings.push(warning);
    }
    let pragmas = match schema.durable {
        // `fullfsync` is what makes an fsync reach the disk on macOS; other systems ignore it.
        true => "PRAGMA synchronous = FULL; PRAGMA fullfsync = ON; PRAGMA checkpoint_fullfsync = ON;",
        false => "PRAGMA synchronous = NORMAL;",
    };
    conn.execute_batch(pragmas).map_err(opened)?;
    conn.pragma_update_and_check(None, "journal_size_limit", LOG_BYTES_MAX, |_| Ok(())).map_err(opened)?;
    migrate(&conn, &path, schema)?;
    if created {
        let dir = files::parent_of(&path);
        files::sync_directory(dir).map_err(|error| StoreError::io(dir, "sync directory", &error))?;
    }
    let identity = files::identity(&path);
    keep_log(&conn, false);
    Ok((Db { conn, path, identity }, warnings))
}

/// Opens a database that exists, for writing if possible and else for reading, also on a read-only mount. Its tables are
/// as old as its version, which is given too; it is never 0.
pub(super) fn open_existing(path: &Path, schema: &Schema, busy: Duration) -> Result<(Connection, i64), StoreError> {
    let open = |place: &Path, mode| -> Result<(Connection, i64), StoreError> {
        let conn = connect(place, mode, busy).map_err(|error| StoreError::sqlite(path, "open", &error))?;
        let version = check(&conn, path, schema)?;
        if version == 0 {
            // Made by a process that ended before its first commit.
            return Err(StoreError::new(path, "open", Fault::Other, "it holds no tables yet"));
        }
        conn.execute_batch("PRAGMA synchronous = FULL; PRAGMA fullfsync = ON;")
            .map_err(|error| StoreError::sqlite(path, "open", &error))?;
        Ok((conn, version))
    };
    match open(path, OpenFlags::SQLITE_OPEN_READ_WRITE) {
        // Without the right to make the side files SQLite reads only what it is told nobody changes.
        Err(error) if matches!(error.fault, Fault::ReadOnly | Fault::Other) && !path.is_dir() => {
            let uri = immutable(path, &error)?;
            open(&uri, OpenFlags::SQLITE_OPEN_READ_ONLY | OpenFlags::SQLITE_OPEN_URI).map_err(|_| error)
        }
        opened => opened,
    }
}

/// The name under which SQLite reads a file that it may not write beside. That hides rows in a `-wal` file, so it is
/// refused while there are any.
pub(super) fn immutable(path: &Path, error: &StoreError) -> Result<PathBuf, StoreError> {
    let mut wal = path.as_os_str().to_owned();
    wal.push("-wal");
    if std::fs::metadata(&wal).is_ok_and(|metadata| metadata.len() > 0) {
        let advice = "its -wal file holds rows that cannot be read here; copy all its files to a writable directory";
        return Err(StoreError { reason: format!("{}; {advice}", error.reason), ..error.clone() });
    }
    let absolute = std::path::absolute(path).map_err(|error| StoreError::io(path, "open", &error))?;
    let mut uri = "file:".to_owned();
    for byte in absolute.as_os_str().as_encoded_bytes() {
        match byte {
            b'/' | b'.' | b'-' | b'_' => uri.push(char::from(*byte)),
            byte if byte.is_ascii_alphanumeric() => uri.push(char::from(*byte)),
            byte => uri.push_str(&format!("%{byte:02X}")),
        }
    }
    uri.push_str("?immutable=1");
    Ok(PathBuf::from(uri))
}

/// Pages that one step of [`shrink_step`] gives back: a mebibyte, which takes a few milliseconds.
const SHRINK_PAGES: i64 = 256;

/// Gives some free pages back to the file system; `false` once there is no more worth giving. A file that was made
/// before pages could be given back keeps them and fills them again.
pub(super) fn shrink_step(conn: &Connection) -> rusqlite::Result<bool> {
    const INCREMENTAL: i64 = 2;
    let number = |pragma: &str| conn.pragma_query_value(None, pragma, |row| row.get::<_, i64>(0));
    let free = number("freelist_count")?;
    if free <= SHRINK_PAGES || number("auto_vacuum")? != INCREMENTAL {
        return Ok(false);
    }
    // The pragma frees one page for each row that is asked of it.
    let mut statement = conn.prepare(&format!("PRAGMA incremental_vacuum({SHRINK_PAGES})"))?;
    let mut rows = statement.query([])?;
    while rows.next()?.is_some() {}
    let left = number("freelist_count")?;
    Ok(left < free && left > SHRINK_PAGES)
}

/// Whether the end of the connection leaves the log (`-wal`) as it is. It must while the database may be damaged: all
/// that is left of it is put aside together.
pub(super) fn keep_log(conn: &Connection, keep: bool) {
    // It fails on no connection that is open.
    let _ = conn.set_db_config(DbConfig::SQLITE_DBCONFIG_NO_CKPT_ON_CLOSE, keep);
}

/// A connection with its busy timeout set before anything else.
pub(super) fn connect(path: &Path, mode: OpenFlags, busy: Duration) -> rusqlite::Result<Connection> {
    let conn = Connection::open_with_flags(path, mode | OpenFlags::SQLITE_OPEN_NO_MUTEX)?;
    conn.busy_timeout(busy)?;
    Ok(conn)
}

/// What a file says of itself.
struct Header {
    application: i32,
    version: i64,
    tables: i64,
}

/// Reads all of it at one moment: another process may be making the tables right now.
fn header(conn: &Connection) -> rusqlite::Result<Header> {
    let tx = conn.unchecked_transaction()?;
    Ok(Header {
        application: tx.pragma_query_value(None, "application_id", |row| row.get(0))?,
        version: tx.pragma_query_value(None, "user_version", |row| row.get(0))?,
        tables: tx.query_row("SELECT count(*) FROM sqlite_master", [], |row| row.get(0))?,
    })
}

/// Refuses a file that this program must not touch. Nothing has been written to it yet.
pub(super) fn check(conn: &Connection, path: &Path, schema: &Schema) -> Result<i64, StoreError> {
    let read = |error| StoreError::sqlite(path, "open", &error);
    let Header { application, version, tables } = header(conn).map_err(read)?;
    let known = i64::try_from(schema.migrations.len()).unwrap_or(i64::MAX);
    let foreign = |reason: String| Err(StoreError::new(path, "open", Fault::Foreign, reason));
    if application == 0 && version == 0 {
        if tables > 0 {
            return foreign(format!(
                "it is another program's database, not a {} of mcprelay; choose another path",
                schema.name
            ));
        }
        return Ok(0);
    }
    if application != schema.application_id {
        return foreign(format!("it is not a {} of mcprelay; choose another path", schema.name));
    }
    if version > known {
        return foreign(format!(
            "it was written by a newer mcprelay (schema {version}, this one knows {known}); use that version or choose another path"
        ));
    }
    Ok(version)
}

/// Switches to WAL. The switch needs the file for itself and fails at once while others use it, whatever the busy
/// timeout says, so it is tried again for as long; without it everything works, only slower.
fn use_wal(conn: &Connection, path: &Path, busy: Duration) -> Result<Option<String>, StoreError> {
    let clock = Clock::start();
    loop {
        let mode = conn
            .pragma_query_value(None, "journal_mode", |row| row.get::<_, String>(0))
            .and_then(|mode| match mode.as_str() {
                "wal" => Ok(mode),
                _ => conn.pragma_update_and_check(None, "journal_mode", "WAL", |row| row.get(0)),
            })
            .map_err(|error| StoreError::sqlite(path, "open", &error));
        let reason = match mode {
            Ok(mode) if mode == "wal" => return Ok(None),
            Ok(mode) => format!("the file system allows only journal mode {mode}"),
            Err(error) if error.fault == Fault::Locked => {
                if clock.now().mono.since_start() < busy {
                    pause();
                    continue;
                }
                error.reason
            }
            Err(error) => return Err(error),
        };
        return Ok(Some(format!("{}: not in WAL mode ({reason}); writes are slower", path.display())));
    }
}

/// 1 to 16 milliseconds, at random, so that processes that started together do not stay in step.
fn pause() {
    let jitter = crate::random::u64() & 15;
    let _ = crossbeam_channel::never::<()>().recv_timeout(Duration::from_millis(jitter + 1));
}

/// Brings the tables of an open file up to date, if it may be written. One that may not is read as it is.
pub(super) fn catch_up(conn: &Connection, path: &Path, schema: &Schema, version: i64) -> Result<(), StoreError> {
    let known = i64::try_from(schema.migrations.len()).unwrap_or(i64::MAX);
    let read_only = || conn.is_readonly(rusqlite::MAIN_DB).unwrap_or(true);
    if version >= known || read_only() {
        return Ok(());
    }
    migrate(conn, path, schema).or_else(|error| if error.fault == Fault::ReadOnly { Ok(()) } else { Err(error) })
}

/// Brings the tables up to date in one transaction; a second process that waited for it finds nothing to do.
fn migrate(conn: &Connection, path: &Path, schema: &Schema) -> Result<(), StoreError> {
    let known = schema.migrations.len();
    let run = || -> rusqlite::Result<()> {
        let version = header(conn)?.version;
        if usize::try_from(version).is_ok_and(|version| version >= known) {
            return Ok(());
        }
        let tx = rusqlite::Transaction::new_unchecked(conn, TransactionBehavior::Immediate)?;
        let version: i64 = tx.pragma_query_value(None, "user_version", |row| row.get(0))?;
        for migration in schema.migrations.iter().skip(usize::try_from(version).unwrap_or(0)) {
            tx.execute_batch(migration)?;
        }
        tx.pragma_update(None, "application_id", schema.application_id)?;
        tx.pragma_update(None, "user_version", i64::try_from(known).unwrap_or(i64::MAX))?;
        tx.commit()
    };
    run().map_err(|error| StoreError::sqlite(path, "open", &error))
}
