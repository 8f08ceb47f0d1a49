//! The queue as commands use it: list, look at, claim, resolve. Each call is one short transaction.
//!
//! A claim is a lease with an owner: while it lives nobody else gets the record, and only its owner can end it. A claim
//! that ran out before the call was handed to the server is free to take; one that ran out after it is an execution
//! whose outcome nobody knows, and is only taken by force.

use super::db;
use super::error::StoreError;
use super::rows::{self, ExecutionRow, Source};
use super::schema;
use crate::clock::Wall;
use crate::record::stored::{Claim, Record};
use crate::record::{Executed, FailureClass, Status};
use rusqlite::types::Value;
use rusqlite::{Connection, OptionalExtension, TransactionBehavior, params, params_from_iter};
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

/// Which records to list; every field narrows, the empty filter takes all.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Filter {
    /// Any of these statuses; empty means all.
    pub statuses: Vec<Status>,
    /// The tool's exact name.
    pub tool: Option<String>,
    /// The failure's class.
    pub class: Option<FailureClass>,
    /// The server's exact name.
    pub server: Option<String>,
    /// The caller's identity.
    pub caller: Option<String>,
    /// The call's UUID.
    pub correlation_id: Option<String>,
    /// Captured at this moment or later.
    pub since: Option<Wall>,
    /// Captured at this moment or earlier.
    pub until: Option<Wall>,
    /// Oldest first; newest first otherwise.
    pub oldest_first: bool,
    /// At most so many.
    pub limit: Option<u64>,
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
        let (conn, _) = db::open_existing(path, &schema::QUEUE, busy)?;
        Ok(Queue { conn, path: path.to_owned() })
    }

    /// The file.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.path
    }

    fn read_error(&self, error: &rusqlite::Error) -> QueueError {
        StoreError::sqlite(&self.path, "read", error).into()
    }

    /// The records that the filter takes.
    ///
    /// # Errors
    /// If the file cannot be read.
    pub fn list(&self, filter: &Filter) -> Result<Vec<Record>, QueueError> {
        let (wheres, values) = conditions(filter);
        let order = if filter.oldest_first { "ASC" } else { "DESC" };
        let limit = filter.limit.and_then(|limit| i64::try_from(limit).ok()).unwrap_or(-1);
        let sql = format!("SELECT * FROM failures {wheres} ORDER BY id {order} LIMIT {limit}");
        let run = || -> rusqlite::Result<Vec<Record>> {
            self.conn.prepare(&sql)?.query_map(params_from_iter(values), rows::read)?.collect()
        };
        run().map_err(|error| self.read_error(&error))
    }

    /// How many records the filter takes; its limit is not looked at.
    ///
    /// # Errors
    /// If the file cannot be read.
    pub fn count(&self, filter: &Filter) -> Result<u64, QueueError> {
        let (wheres, values) = conditions(filter);
        let sql = format!("SELECT count(*) FROM failures {wheres}");
        let count: rusqlite::Result<i64> = self.conn.query_row(&sql, params_from_iter(values), |row| row.get(0));
        count.map(|count| u64::try_from(count).unwrap_or(0)).map_err(|error| self.read_error(&error))
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

    /// Notes that the call is about to be handed to the server. From here on a lost claim means an unknown outcome.
    ///
    /// # Errors
    /// [`QueueError::LostClaim`], or if the file cannot be written; the call must not be sent then.
    pub fn mark_sent(&mut self, id: &str, owner: &str, now: Wall) -> Result<(), QueueError> {
        self.update_claim(
            id,
            "UPDATE failures SET claim_sent_at = ?3 WHERE id = ?1 AND claim_owner = ?2 AND replay_status = 'replaying'",
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

    /// Ends a claim with the outcome of the replay. A late owner, whose record somebody else has taken since, changes
    /// nothing. A success enters the index of executions, keyed or not.
    ///
    /// # Errors
    /// [`QueueError::NotFound`], [`QueueError::LostClaim`], or if the file cannot be written.
    pub fn resolve(&mut self, id: &str, owner: &str, resolution: &Resolution) -> Result<(), QueueError> {
        self.in_transaction(|conn| {
            let Some(record) = find(conn, id)? else { return Ok(Err(QueueError::NotFound(id.to_owned()))) };
            let is_owner = record.claim.as_ref().is_some_and(|claim| claim.owner == owner);
            if !is_owner || record.status != Status::Replaying {
                return Ok(Err(QueueError::LostClaim(id.to_owned())));
            }
            let executed = resolution.executed.unwrap_or(record.executed);
            let is_final = !matches!(resolution.status, Status::Pending | Status::FailedReplay | Status::Replaying);
            let failed = matches!(resolution.status, Status::FailedReplay | Status::Parked);
            conn.prepare_cached(
                "UPDATE failures SET replay_status = ?2, failure_executed = ?3, last_outcome = ?4, replay_attempts = ?5,
                    resolved_at = ?6, replay_failures = replay_failures + ?7, claim_owner = NULL, claimed_at = NULL,
                    claim_expires_at = NULL, claim_sent_at = NULL, claim_status = NULL
                WHERE id = ?1",
            )?
            .execute(params![
                id,
                resolution.status.as_str(),
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
            Ok(Ok(()))
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

    /// Runs `work` in one immediate transaction and commits it if it agreed.
    /// Gives some of the space of purged records back to the file system, a mebibyte at most, so that writers in other
    /// processes wait for milliseconds only; `false` once there is no more worth giving.
    ///
    /// # Errors
    /// If the file cannot be written.
    pub fn shrink_step(&mut self) -> Result<bool, QueueError> {
        self.in_transaction(|conn| Ok(Ok(db::shrink_step(conn)?)))
    }

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

fn conditions(filter: &Filter) -> (String, Vec<Value>) {
    let mut wheres: Vec<String> = Vec::new();
    let mut values = Vec::new();
    if !filter.statuses.is_empty() {
        // Words of our own, so they need no binding.
        let words: Vec<String> = filter.statuses.iter().map(|status| format!("'{status}'")).collect();
        wheres.push(format!("replay_status IN ({})", words.join(", ")));
    }
    let mut add = |condition: &str, value: Option<Value>| {
        if let Some(value) = value {
            values.push(value);
            wheres.push(format!("{condition} ?{}", values.len()));
        }
    };
    let text = |value: &Option<String>| value.clone().map(Value::Text);
    add("tool_name =", text(&filter.tool));
    add("failure_class =", filter.class.map(|class| Value::Text(class.as_str().to_owned())));
    add("server_name =", text(&filter.server));
    add("caller_identity =", text(&filter.caller));
    add("correlation_id =", text(&filter.correlation_id));
    add("captured_at >=", filter.since.map(|at| Value::Integer(at.0)));
    add("captured_at <=", filter.until.map(|at| Value::Integer(at.0)));
    if wheres.is_empty() {
        return (String::new(), values);
    }
    (format!("WHERE {}", wheres.join(" AND ")), values)
}

#[cfg(test)]
mod tests;
