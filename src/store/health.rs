//! What the report tells of the queue: how many records wait, since when, and how many came in. Read from one index,
//! whatever the size of the records.

use super::error::StoreError;
use super::{db, schema};
use crate::clock::Wall;
use rusqlite::{Connection, OptionalExtension};
use std::path::{Path, PathBuf};
use std::time::Duration;

/// Records that have all of this in common.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HealthRow {
    /// The tool's name.
    pub tool: String,
    /// The failure's class.
    pub class: String,
    /// The records' status; a word of [`Status`](crate::record::Status), or of a newer version.
    pub status: String,
    /// The server's name.
    pub server: String,
    /// The caller's identity.
    pub caller: String,
    /// How many there are.
    pub records: u64,
    /// When the oldest of them was captured.
    pub oldest: Wall,
    /// How many of them were captured in the asked time.
    pub arrivals: u64,
}

/// An open queue, for reading only.
#[derive(Debug)]
pub struct QueueHealth {
    conn: Connection,
    path: PathBuf,
}

impl QueueHealth {
    /// Opens a queue that exists, also on a read-only mount. Nothing is created or brought up to date.
    ///
    /// # Errors
    /// What is wrong with the file, also that there is none.
    pub fn open_existing(path: &Path, busy: Duration) -> Result<QueueHealth, StoreError> {
        let (conn, _) = db::open_existing(path, &schema::QUEUE, busy)?;
        let reads_only = conn.execute_batch("PRAGMA query_only = ON");
        reads_only.map_err(|error| StoreError::sqlite(path, "open", &error))?;
        Ok(QueueHealth { conn, path: path.to_owned() })
    }

    /// Hands over all records, grouped; arrivals are counted from `since` to `until`, both included.
    ///
    /// # Errors
    /// If the file cannot be read.
    pub fn rows(&self, since: Wall, until: Wall, take: &mut dyn FnMut(HealthRow)) -> Result<(), StoreError> {
        let mut run = || -> rusqlite::Result<()> {
            // The columns of the index in its order, so that nothing is sorted.
            let mut statement = self.conn.prepare(
                "SELECT tool_name, failure_class, replay_status, server_name, caller_identity, count(*),
                    min(captured_at), sum(captured_at >= ?1 AND captured_at <= ?2)
                FROM failures GROUP BY tool_name, failure_class, replay_status, server_name, caller_identity",
            )?;
            let mut rows = statement.query([since.0, until.0])?;
            while let Some(row) = rows.next()? {
                let count = |column| row.get::<_, i64>(column).map(|count| u64::try_from(count).unwrap_or(0));
                take(HealthRow {
                    tool: row.get(0)?,
                    class: row.get(1)?,
                    status: row.get(2)?,
                    server: row.get(3)?,
                    caller: row.get(4)?,
                    records: count(5)?,
                    oldest: Wall(row.get(6)?),
                    arrivals: count(7)?,
                });
            }
            Ok(())
        };
        run().map_err(|error| StoreError::sqlite(&self.path, "read", &error))
    }

    /// The server of a record; `None` if the record is not there.
    ///
    /// # Errors
    /// If the file cannot be read.
    pub fn server_of(&self, record_id: &str) -> Result<Option<String>, StoreError> {
        let run = || {
            let mut statement = self.conn.prepare_cached("SELECT server_name FROM failures WHERE id = ?1")?;
            statement.query_row([record_id], |row| row.get(0)).optional()
        };
        run().map_err(|error: rusqlite::Error| StoreError::sqlite(&self.path, "read", &error))
    }
}
