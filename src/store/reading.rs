//! The history as commands read it: call events for the report, and the audit trail.
//!
//! Everything is read in stretches, each in a transaction of its own: a long read would keep the writers' log from being
//! cut back for as long as it lasts.

use super::chain::{Chain, Link, Verified};
use super::error::StoreError;
use super::history::{AUDIT_COLUMNS, StoredAudit, read_audit};
use super::{db, schema};
use crate::clock::Wall;
use crate::record::anchor::Anchor;
use rusqlite::types::{FromSqlError, Value, ValueRef};
use rusqlite::{Connection, OptionalExtension, Row, params, params_from_iter};
use std::ops::ControlFlow;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// Call events that are read in one transaction.
const EVENTS_STRETCH: usize = 100_000;
/// Audit rows that are read in one transaction; they are larger.
const AUDIT_STRETCH: u64 = 10_000;

/// A call event as the report reads it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StoredEvent<'r> {
    /// When the call ended.
    pub at: Wall,
    /// The caller's identity.
    pub caller: &'r str,
    /// The server's name.
    pub server: &'r str,
    /// The tool's name.
    pub tool: &'r str,
    /// How it ended; a word of [`Decision`](crate::record::Decision), or of a newer version.
    pub decision: &'r str,
    /// The failure's class, if it failed.
    pub class: Option<&'r str>,
    /// Whether a call that failed had run.
    pub executed: Option<&'r str>,
    /// From arrival to answer, in milliseconds.
    pub latency_ms: u64,
    /// Bytes of the request's `params`.
    pub request_bytes: u64,
    /// Bytes of the result.
    pub response_bytes: u64,
    /// Attempts made.
    pub attempts: u64,
}

/// A replay as the audit trail tells of it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Replay {
    /// When it ended.
    pub at: Wall,
    /// Who had made the call.
    pub caller: String,
    /// The tool's name.
    pub tool: String,
    /// The dead letter.
    pub record_id: Option<String>,
    /// The row's JSON object with more.
    pub detail: Option<String>,
}

/// Which audit rows to list; every field narrows.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct AuditFilter {
    /// The word of the kind.
    pub kind: Option<String>,
    /// The tool's exact name.
    pub tool: Option<String>,
    /// The caller's identity.
    pub caller: Option<String>,
    /// The call's UUID.
    pub correlation_id: Option<String>,
    /// The dead letter.
    pub record_id: Option<String>,
    /// At this moment or later.
    pub since: Option<Wall>,
    /// At this moment or earlier.
    pub until: Option<Wall>,
}

/// An open history.
#[derive(Debug)]
pub struct History {
    conn: Connection,
    path: PathBuf,
}

impl History {
    /// Opens a history that exists. It also opens on a read-only mount. Nothing is created or brought up to date.
    ///
    /// # Errors
    /// What is wrong with the file, also that there is none.
    pub fn open_existing(path: &Path, busy: Duration) -> Result<History, StoreError> {
        let (conn, _) = db::open_existing(path, &schema::HISTORY, busy)?;
        let reads_only = conn.execute_batch("PRAGMA query_only = ON");
        reads_only.map_err(|error| StoreError::sqlite(path, "open", &error))?;
        Ok(History { conn, path: path.to_owned() })
    }

    /// The file.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.path
    }

    fn failed(&self, error: &rusqlite::Error) -> StoreError {
        StoreError::sqlite(&self.path, "read", error)
    }

    /// The times of the first and the last event from `since` to `until`, both included.
    ///
    /// # Errors
    /// If the file cannot be read.
    pub fn range(&self, since: Wall, until: Wall) -> Result<Option<(Wall, Wall)>, StoreError> {
        let edge = |order: &str| {
            let sql = format!("SELECT at FROM call_events WHERE at >= ?1 AND at <= ?2 ORDER BY at {order} LIMIT 1");
            self.conn.query_row(&sql, [since.0, until.0], |row| row.get(0).map(Wall)).optional()
        };
        let both = edge("ASC").and_then(|first| Ok(first.zip(edge("DESC")?)));
        both.map_err(|error| self.failed(&error))
    }

    /// Hands over every event from `since` to `until`, both included, in the order of their times.
    ///
    /// # Errors
    /// If the file cannot be read.
    pub fn events(&self, since: Wall, until: Wall, take: &mut dyn FnMut(&StoredEvent<'_>)) -> Result<(), StoreError> {
        let mut after = (since.0, String::new());
        loop {
            let next = self.events_stretch(&after, until, take).map_err(|error| self.failed(&error))?;
            match next {
                Some(next) => after = next,
                None => return Ok(()),
            }
        }
    }

    /// One stretch of events behind `after`; gives the last of them if there may be more.
    fn events_stretch(
        &self,
        after: &(i64, String),
        until: Wall,
        take: &mut dyn FnMut(&StoredEvent<'_>),
    ) -> rusqlite::Result<Option<(i64, String)>> {
        // An id is never empty, so the first stretch begins with the first event of its moment.
        let mut statement = self.conn.prepare_cached(
            "SELECT at, caller_identity, server, tool, decision, class, executed, latency_ms, request_bytes,
                response_bytes, attempt, id
            FROM call_events WHERE (at, id) > (?1, ?2) AND at <= ?3 ORDER BY at, id LIMIT ?4",
        )?;
        let mut rows = statement.query(params![after.0, after.1, until.0, EVENTS_STRETCH as i64])?;
        let mut count = 0;
        let mut last = (after.0, after.1.clone());
        while let Some(row) = rows.next()? {
            count += 1;
            let at = row.get(0)?;
            take(&StoredEvent {
                at: Wall(at),
                caller: text(row, 1)?,
                server: text(row, 2)?,
                tool: text(row, 3)?,
                decision: text(row, 4)?,
                class: text_or_null(row, 5)?,
                executed: text_or_null(row, 6)?,
                latency_ms: number(row, 7)?,
                request_bytes: number(row, 8)?,
                response_bytes: number(row, 9)?,
                attempts: number(row, 10)?,
            });
            if count == EVENTS_STRETCH {
                last = (at, row.get(11)?);
            }
        }
        Ok((count == EVENTS_STRETCH).then_some(last))
    }

    /// The replays from `since` to `until`, both included.
    ///
    /// # Errors
    /// If the file cannot be read.
    pub fn replays(&self, since: Wall, until: Wall, take: &mut dyn FnMut(Replay)) -> Result<(), StoreError> {
        let mut run = || -> rusqlite::Result<()> {
            let mut statement = self.conn.prepare(
                "SELECT at, caller, tool_name, failure_id, detail FROM audit
                WHERE kind = 'replayed' AND at >= ?1 AND at <= ?2",
            )?;
            let mut rows = statement.query([since.0, until.0])?;
            while let Some(row) = rows.next()? {
                take(Replay {
                    at: Wall(row.get(0)?),
                    caller: row.get(1)?,
                    tool: row.get(2)?,
                    record_id: row.get(3)?,
                    detail: row.get(4)?,
                });
            }
            Ok(())
        };
        run().map_err(|error| self.failed(&error))
    }

    /// Hands over the audit rows that the filter takes, newest first, until `take` breaks.
    ///
    /// # Errors
    /// If the file cannot be read.
    pub fn audit(
        &self,
        filter: &AuditFilter,
        take: &mut dyn FnMut(StoredAudit) -> ControlFlow<()>,
    ) -> Result<(), StoreError> {
        let mut below = i64::MAX;
        while let Some(next) = self.audit_stretch(filter, below, take).map_err(|error| self.failed(&error))? {
            below = next;
        }
        Ok(())
    }

    /// One stretch of audit rows; gives the number of the last of them if there may be more to hand over.
    fn audit_stretch(
        &self,
        filter: &AuditFilter,
        below: i64,
        take: &mut dyn FnMut(StoredAudit) -> ControlFlow<()>,
    ) -> rusqlite::Result<Option<i64>> {
        let mut wheres = vec!["seq < ?1".to_owned()];
        let mut values = vec![Value::Integer(below)];
        let mut add = |condition: &str, value: Option<Value>| {
            if let Some(value) = value {
                values.push(value);
                wheres.push(format!("{condition} ?{}", values.len()));
            }
        };
        let text = |value: &Option<String>| value.clone().map(Value::Text);
        // The sign keeps SQLite from this index: it would sort all rows of a kind for each stretch.
        add("+kind =", text(&filter.kind));
        add("tool_name =", text(&filter.tool));
        add("caller =", text(&filter.caller));
        add("correlation_id =", text(&filter.correlation_id));
        add("failure_id =", text(&filter.record_id));
        add("at >=", filter.since.map(|at| Value::Integer(at.0)));
        add("at <=", filter.until.map(|at| Value::Integer(at.0)));
        let wheres = wheres.join(" AND ");
        let sql = format!("SELECT {AUDIT_COLUMNS} FROM audit WHERE {wheres} ORDER BY seq DESC LIMIT {AUDIT_STRETCH}");
        let mut statement = self.conn.prepare_cached(&sql)?;
        let mut rows = statement.query(params_from_iter(values))?;
        let mut count = 0;
        let mut last = below;
        while let Some(row) = rows.next()? {
            let row = read_audit(row)?;
            count += 1;
            last = row.seq;
            if take(row).is_break() {
                return Ok(None);
            }
        }
        Ok((count == AUDIT_STRETCH).then_some(last))
    }

    /// Follows the chain of the whole audit trail; `seen` is told of every row that was read.
    ///
    /// # Errors
    /// If the file cannot be read. A broken chain is no error.
    pub fn verify(&self, seen: &mut dyn FnMut(&Link)) -> Result<Verified, StoreError> {
        let mut run = || -> rusqlite::Result<Verified> {
            let mut chain = Chain::default();
            let mut above = i64::MIN;
            loop {
                let sql =
                    format!("SELECT {AUDIT_COLUMNS} FROM audit WHERE seq > ?1 ORDER BY seq LIMIT {AUDIT_STRETCH}");
                // One transaction for both, so that the trail does not grow in between.
                let tx = self.conn.unchecked_transaction()?;
                let mut count = 0;
                let mut statement = tx.prepare_cached(&sql)?;
                let mut rows = statement.query([above])?;
                while let Some(row) = rows.next()? {
                    let link = link(row)?;
                    count += 1;
                    above = link.seq;
                    seen(&link);
                    chain.push(&link);
                }
                if count < AUDIT_STRETCH {
                    let given = "SELECT seq FROM sqlite_sequence WHERE name = 'audit'";
                    // It has no row before the first insert, and whatever else is in it is no number of ours.
                    let given = tx.query_row(given, [], |row| row.get(0)).optional().unwrap_or_default();
                    return Ok(chain.finish(given.unwrap_or(0)));
                }
            }
        };
        run().map_err(|error| self.failed(&error))
    }

    /// The newest row of the audit trail.
    ///
    /// # Errors
    /// If the file or the row cannot be read.
    pub fn head(&self) -> Result<Anchor, StoreError> {
        let sql = format!("SELECT {AUDIT_COLUMNS} FROM audit ORDER BY seq DESC LIMIT 1");
        let newest = self.conn.query_row(&sql, [], read_audit).optional().map_err(|error| self.failed(&error))?;
        Ok(newest.map_or_else(Anchor::empty, |row| Anchor { seq: row.seq, hash: row.hash() }))
    }
}

/// A row for the chain; columns of a wrong type are no error but a row that cannot be right.
fn link(row: &Row<'_>) -> rusqlite::Result<Link> {
    let seq = row.get(0)?;
    Ok(match read_audit(row) {
        Ok(stored) => Link { seq, hashes: Some((stored.hash(), stored.previous_hash)) },
        Err(_) => Link { seq, hashes: None },
    })
}

fn text<'r>(row: &'r Row<'_>, column: usize) -> rusqlite::Result<&'r str> {
    row.get_ref(column)?.as_str().map_err(|error| mistyped(column, error))
}

fn text_or_null<'r>(row: &'r Row<'_>, column: usize) -> rusqlite::Result<Option<&'r str>> {
    row.get_ref(column)?.as_str_or_null().map_err(|error| mistyped(column, error))
}

/// A number that is never negative; one that is counts as 0.
fn number(row: &Row<'_>, column: usize) -> rusqlite::Result<u64> {
    match row.get_ref(column)? {
        ValueRef::Integer(value) => Ok(u64::try_from(value).unwrap_or(0)),
        _ => Err(mistyped(column, FromSqlError::InvalidType)),
    }
}

fn mistyped(column: usize, error: FromSqlError) -> rusqlite::Error {
    rusqlite::Error::FromSqlConversionFailure(column, rusqlite::types::Type::Null, Box::new(error))
}
