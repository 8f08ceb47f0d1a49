//! The queue as commands use it: list, look at, claim, resolve. Each call is one short transaction.
//!
//! A claim is a lease with an owner: while it lives nobody else gets the record, and only its owner can end it. A claim
//! that ran out before the call was handed to the server is free to take; one that ran out after it is an execution
//! whose outcome nobody knows, and is only taken by force.

#[cfg(test)]
pub(crate) mod contract;
mod life;
mod select;

pub use life::{Action, Imported, Note, Resealed};
pub use select::{Filter, Head, StatsRow};

use super::db;
use super::error::StoreError;
use super::place::Place;
use super::rows::{self, ExecutionRow, Source};
use super::schema;
use crate::clock::Wall;
use crate::record::stored::{Claim, Record};
use crate::record::{Executed, Status};
use rusqlite::{Connection, OptionalExtension, TransactionBehavior, params};
use std::path::{Path, PathBuf};
use std::time::Duration;

/// Why the queue did not do what it was asked.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum QueueError {
    /// There is no such file: nothing was ever captured there.
    NoFile(PathBuf),
    /// No record has this id.
    NotFound(String),
    /// The record is in a final status.
    AlreadyResolved {
        /// The record.
        id: String,
        /// Its status.
        status: Status,
    },
    /// Somebody else works on the record.
    ClaimedBy {
        /// The record.
        id: String,
        /// Who, since when, until when.
        claim: Claim,
    },
    /// A replay was handed to the server and its end was never recorded; only force takes the record.
    OutcomeUnknown {
        /// The record.
        id: String,
        /// Who did it, and when.
        claim: Claim,
    },
    /// The claim is not, or no longer, the caller's: it ran out and somebody else took the record.
    LostClaim(String),
    /// The file failed.
    Store(StoreError),
}

impl std::fmt::Display for QueueError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            QueueError::NoFile(path) => write!(f, "there is no queue at {}", path.display()),
            QueueError::NotFound(id) => write!(f, "record {id} not found"),
            QueueError::AlreadyResolved { id, status } => write!(f, "record {id} is already {status}"),
            QueueError::ClaimedBy { id, claim } => {
                let until = claim.expires_at.to_rfc3339();
                write!(f, "record {id} is being replayed by {} (until {until} at the latest)", claim.owner)
            }
            QueueError::OutcomeUnknown { id, claim } => {
                let since = claim.sent_at.unwrap_or(claim.since).to_rfc3339();
                write!(
                    f,
                    "record {id} was replayed at {since} by {}, which ended before the outcome was known; --force replays it again",
                    claim.owner
                )
            }
            QueueError::LostClaim(id) => write!(f, "the claim on record {id} ran out and is lost"),
            QueueError::Store(error) => write!(f, "cannot {error}"),
        }
    }
}

impl std::error::Error for QueueError {}

impl From<StoreError> for QueueError {
    fn from(error: StoreError) -> QueueError {
        QueueError::Store(error)
    }
}

/// How a replay ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Resolution {
    /// The record's new status.
    pub status: Status,
    /// What is now known about the tool having run; `None` leaves it as it is.
    pub executed: Option<Executed>,
    /// The JSON text of the outcome, redacted.
    pub outcome: String,
    /// The JSON text of the entry for the list of replays, redacted.
    pub attempt: String,
    /// When it ended.
    pub at: Wall,
    /// The call succeeded, so that it enters the index of executions.
    pub success: bool,
    /// A record is parked when so many replays of it have failed; 0 parks none.
    pub park_after: u32,
}

/// An open queue.
#[derive(Debug)]
pub struct Queue {
    conn: Connection,
    path: PathBuf,
}

impl Queue {
    /// Opens a queue that exists, for writing if possible. It also opens on a read-only mount, for reading.
    ///
    /// # Errors
    /// [`QueueError::NoFile`], or what is wrong with the file. Nothing is ever created.
    pub fn open_existing(path: &Path, busy: Duration) -> Result<Queue, QueueError> {
        if !path.exists() {
            return Err(QueueError::NoFile(path.to_owned()));
        }
        let (conn, version) = db::open_existing(path, &schema::QUEUE, busy)?;
        db::catch_up(&conn, path, &schema::QUEUE, version)?;
        Ok(Queue { conn, path: path.to_owned() })
    }

    /// Opens the queue of a place for writing and makes it if it is missing. The texts are warnings.
    ///
    /// # Errors
    /// What is wrong with the file, or why it cannot be made.
    pub fn open_or_make(place: &Place, busy: Duration) -> Result<(Queue, Vec<String>), QueueError> {
        let (db, warnings) = db::open(place, &schema::QUEUE, busy)?;
        Ok((Queue { conn: db.conn, path: db.path }, warnings))
    }

    /// The file.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.path
    }

    fn read_error(&self, error: &rusqlite::Error) -> QueueError {
        StoreError::sqlite(&self.path, "read", error).into()
    }

    /// One record.
    ///
    /// # Errors
    /// [`QueueError::NotFound`], or if the file cannot be read.
    pub fn get(&self, id: &str) -> Result<Record, QueueError> {
        let found = find(&self.conn, id).map_err(|error| self.read_error(&error))?;
        found.ok_or_else(|| QueueError::NotFound(id.to_owned()))
    }

    /// Takes a record for `owner` until `now + lease`. With `force` also one that is settled or parked, or whose last
    /// replay has an unknown outcome; never one that is replayed or discarded, nor one with a living claim.
    ///
    /// # Errors
    /// [`QueueError::NotFound`], [`QueueError::AlreadyResolved`], [`QueueError::ClaimedBy`],
    /// [`QueueError::OutcomeUnknown`], or if the file cannot be written.
    pub fn claim(
        &mut self,
        id: &str,
        owner: &str,
        lease: Duration,
        now: Wall,
        force: bool,
    ) -> Result<Record, QueueError> {
        self.in_transaction(|conn| {
            let Some(record) = find(conn, id)? else { return Ok(Err(QueueError::NotFound(id.to_owned()))) };
            let id = || id.to_owned();
            let resolved = || Ok(Err(QueueError::AlreadyResolved { id: id(), status: record.status }));
            match (record.status, &record.claim) {
                (Status::Replayed | Status::Discarded, _) => return resolved(),
                (Status::Settled | Status::Parked, _) if !force => return resolved(),
                (Status::Replaying, Some(claim)) if claim.expires_at >= now => {
                    return Ok(Err(QueueError::ClaimedBy { id: id(), claim: claim.clone() }));
                }
                (Status::Replaying, Some(claim)) if claim.sent_at.is_some() && !force => {
                    return Ok(Err(QueueError::OutcomeUnknown { id: id(), claim: claim.clone() }));
                }
                (Status::Pending | Status::FailedReplay | Status::Replaying | Status::Settled | Status::Parked, _) => {}
            }
            // The attempt of an owner that vanished is kept: somebody will ask what became of it.
            let replays = match &record.claim {
                Some(claim) if record.status == Status::Replaying && claim.sent_at.is_some() => {
                    appended(&record.replays, &unknown_attempt(claim))
                }
                _ => record.replays.clone(),
            };
            conn.prepare_cached(
                "UPDATE failures SET
                    claim_status = CASE WHEN replay_status = 'replaying' THEN coalesce(claim_status, 'pending') ELSE replay_status END,
                    replay_status = 'replaying', claim_owner = ?2, claimed_at = ?3, claim_expires_at = ?4,
                    claim_sent_at = NULL, replay_attempts = ?5
                WHERE id = ?1",
            )?
            .execute(params![record.id, owner, now.0, later(now, lease), replays])?;
            match find(conn, &record.id)? {
                Some(record) => Ok(Ok(record)),
                None => Ok(Err(QueueError::NotFound(id()))),
            }
        })
    }

    /// Notes that the call is about to be handed to the server, and renews the claim. From here on a lost claim means an
    /// unknown outcome.
    ///
    /// # Errors
    /// [`QueueError::LostClaim`], or if the file cannot be written; the call must not be sent then.
    pub fn mark_sent(&mut self, id: &str, owner: &str, lease: Duration, now: Wall) -> Result<(), QueueError> {
        self.update_claim(
            id,
            "UPDATE failures SET claim_sent_at = ?3, claim_expires_at = ?4
            WHERE id = ?1 AND claim_owner = ?2 AND replay_status = 'replaying'",
            params![id, owner, now.0, later(now, lease)],
        )
    }

    /// Ends a claim whose call was handed to the server and whose outcome its owner will never know: nobody needs to wait
    /// for the claim to run out, and only force takes the record again.
    ///
    /// # Errors
    /// [`QueueError::LostClaim`], or if the file cannot be written; the claim then runs out by itself, to the same effect.
    pub fn abandon(&mut self, id: &str, owner: &str, now: Wall) -> Result<(), QueueError> {
        self.update_claim(
            id,
            "UPDATE failures SET claim_expires_at = min(claim_expires_at, ?3 - 1)
            WHERE id = ?1 AND claim_owner = ?2 AND replay_status = 'replaying'",
            params![id, owner, now.0],
        )
    }

    /// Moves the end of a claim to `now + lease`.
    ///
    /// # Errors
    /// [`QueueError::LostClaim`], or if the file cannot be written.
    pub fn renew(&mut self, id: &str, owner: &str, lease: Duration, now: Wall) -> Result<(), QueueError> {
        self.update_claim(id, "UPDATE failures SET claim_expires_at = ?3 WHERE id = ?1 AND claim_owner = ?2 AND replay_status = 'replaying'", params![id, owner, later(now, lease)])
    }

    /// Gives a claimed record back as it was, because nothing was sent.
    ///
    /// # Errors
    /// [`QueueError::LostClaim`], or if the file cannot be written; the claim then ends by itself.
    pub fn release(&mut self, id: &str, owner: &str) -> Result<(), QueueError> {
        self.update_claim(
            id,
            "UPDATE failures SET replay_status = coalesce(claim_status, 'pending'), claim_owner = NULL, claimed_at = NULL,
                claim_expires_at = NULL, claim_sent_at = NULL, claim_status = NULL
            WHERE id = ?1 AND claim_owner = ?2 AND replay_status = 'replaying'",
            params![id, owner],
        )
    }

    /// Ends a claim with the outcome of the replay and gives the record's status, which is [`Status::Parked`] if too many
    /// replays have failed. A late owner, whose record somebody else has taken since, changes nothing. A success enters
    /// the index of executions, keyed or not.
    ///
    /// # Errors
    /// [`QueueError::NotFound`], [`QueueError::LostClaim`], or if the file cannot be written.
    pub fn resolve(&mut self, id: &str, owner: &str, resolution: &Resolution) -> Result<Status, QueueError> {
        self.in_transaction(|conn| {
            let Some(record) = find(conn, id)? else { return Ok(Err(QueueError::NotFound(id.to_owned()))) };
            let is_owner = record.claim.as_ref().is_some_and(|claim| claim.owner == owner);
            if !is_owner || record.status != Status::Replaying {
                return Ok(Err(QueueError::LostClaim(id.to_owned())));
            }
            let executed = resolution.executed.unwrap_or(record.executed);
            let failed = matches!(resolution.status, Status::FailedReplay | Status::Parked);
            let spent = resolution.park_after > 0 && record.redrives.saturating_add(1) >= resolution.park_after;
            let status = if failed && spent { Status::Parked } else { resolution.status };
            let is_final = !matches!(status, Status::Pending | Status::FailedReplay | Status::Replaying);
            conn.prepare_cached(
                "UPDATE failures SET replay_status = ?2, failure_executed = ?3, last_outcome = ?4, replay_attempts = ?5,
                    resolved_at = ?6, replay_failures = replay_failures + ?7, claim_owner = NULL, claimed_at = NULL,
                    claim_expires_at = NULL, claim_sent_at = NULL, claim_status = NULL
                WHERE id = ?1",
            )?
            .execute(params![
                id,
                status.as_str(),
                executed.as_str(),
                resolution.outcome,
                appended(&record.replays, &resolution.attempt),
                is_final.then_some(resolution.at.0),
                i64::from(failed)
            ])?;
            if resolution.success {
                let row = ExecutionRow {
                    server: record.server.name,
                    tool: record.tool,
                    key: record.idempotency_key,
                    arguments_hash: record.arguments_hash,
                    at: resolution.at,
                    source: Source::Replay,
                };
                rows::record_execution(conn, &row)?;
            }
            Ok(Ok(status))
        })
    }

    /// The last success of a call with this idempotency key (in its stored form) of this tool of this server. Compare
    /// its hash: the same key with other arguments is another call.
    ///
    /// # Errors
    /// If the file cannot be read.
    pub fn last_execution(&self, server: &str, tool: &str, key: &str) -> Result<Option<ExecutionRow>, QueueError> {
        self.execution("key = ?3", params![server, tool, key])
    }

    /// The last success of a call with these arguments of this tool of this server, whatever its key.
    ///
    /// # Errors
    /// If the file cannot be read.
    pub fn last_execution_by_hash(
        &self,
        server: &str,
        tool: &str,
        hash: &str,
    ) -> Result<Option<ExecutionRow>, QueueError> {
        self.execution("arguments_hash = ?3", params![server, tool, hash])
    }

    fn execution(&self, condition: &str, params: &[&dyn rusqlite::ToSql]) -> Result<Option<ExecutionRow>, QueueError> {
        let sql = format!(
            "SELECT server_name, tool_name, key, arguments_hash, executed_at, source FROM executions
            WHERE server_name = ?1 AND tool_name = ?2 AND {condition} ORDER BY executed_at DESC LIMIT 1"
        );
        let row = self.conn.query_row(&sql, params, rows::read_execution).optional();
        row.map_err(|error| self.read_error(&error))
    }

    fn update_claim(&mut self, id: &str, sql: &str, params: &[&dyn rusqlite::ToSql]) -> Result<(), QueueError> {
        self.in_transaction(|conn| match conn.prepare_cached(sql)?.execute(params)? {
            0 => Ok(Err(QueueError::LostClaim(id.to_owned()))),
            _ => Ok(Ok(())),
        })
    }

    /// Gives some of the space of purged records back to the file system, a mebibyte at most, so that writers in other
    /// processes wait for milliseconds only; `false` once there is no more worth giving.
    ///
    /// # Errors
    /// If the file cannot be written.
    pub fn shrink_step(&mut self) -> Result<bool, QueueError> {
        self.in_transaction(|conn| Ok(Ok(db::shrink_step(conn)?)))
    }

    /// Runs `work` in one immediate transaction and commits it if it agreed.
    fn in_transaction<T>(
        &mut self,
        work: impl FnOnce(&Connection) -> rusqlite::Result<Result<T, QueueError>>,
    ) -> Result<T, QueueError> {
        let run = |conn: &mut Connection| -> rusqlite::Result<Result<T, QueueError>> {
            let tx = conn.transaction_with_behavior(TransactionBehavior::Immediate)?;
            let result = work(&tx)?;
            if result.is_ok() {
                tx.commit()?;
            }
            Ok(result)
        };
        run(&mut self.conn).map_err(|error| StoreError::sqlite(&self.path, "write", &error))?
    }
}

fn find(conn: &Connection, id: &str) -> rusqlite::Result<Option<Record>> {
    conn.prepare_cached("SELECT * FROM failures WHERE id = ?1")?.query_row([id], rows::read).optional()
}

fn later(now: Wall, lease: Duration) -> i64 {
    now.0.saturating_add(i64::try_from(lease.as_millis()).unwrap_or(i64::MAX))
}

/// A JSON array's text with one more element.
fn appended(array: &str, element: &str) -> String {
    match array.trim_end().strip_suffix(']') {
        Some(open) if open.trim_end().ends_with('[') => format!("[{element}]"),
        Some(open) => format!("{open},{element}]"),
        None => format!("[{element}]"),
    }
}

fn unknown_attempt(claim: &Claim) -> String {
    let at = claim.sent_at.unwrap_or(claim.since).to_rfc3339();
    serde_json::json!({"at": at, "source": "replay", "by": claim.owner, "outcome": "unknown"}).to_string()
}

#[cfg(test)]
mod tests;
