//! What people decide about records: settled, discarded, opened again, purged; and records that come from elsewhere.

use super::{Filter, Queue, QueueError, appended, find, unknown_attempt};
use crate::clock::Wall;
use crate::record::json_out::object;
use crate::record::stored::Record;
use crate::record::{Executed, Status};
use crate::store::rows::{self, ExecutionRow, Source};
use rusqlite::{Connection, params};

/// Records deleted in one transaction; captures of other processes wait behind it.
const PURGE_STEP: u64 = 1_000;

/// A decision of a person about one record.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Action {
    /// It has run, or it has not: somebody looked.
    Settle {
        /// What was found.
        ran: bool,
    },
    /// Nobody wants it replayed any more.
    Discard,
    /// It may be replayed again, as if nobody had tried. With force also one that has succeeded or is known to have run,
    /// and one whose last replay has an unknown outcome.
    Reopen {
        /// See above.
        force: bool,
    },
}

impl Action {
    /// The word in the record's notes.
    fn word(self) -> &'static str {
        match self {
            Action::Settle { .. } => "settle",
            Action::Discard => "discard",
            Action::Reopen { .. } => "reopen",
        }
    }

    /// Where it leads from a status; `None` if it is refused there. A claim that ran out is not looked at here.
    fn leads(self, from: Status) -> Option<Status> {
        match (self, from) {
            (Action::Settle { ran: true }, Status::Replayed | Status::Discarded) => None,
            (Action::Settle { ran: true }, _) => Some(Status::Settled),
            // That it failed often is not changed by its not having run.
            (Action::Settle { ran: false }, Status::Parked) => Some(Status::Parked),
            (Action::Settle { ran: false }, Status::Replayed | Status::Discarded) => None,
            (Action::Settle { ran: false }, _) => Some(Status::Pending),
            (Action::Discard, Status::Replayed | Status::Discarded) => None,
            (Action::Discard, _) => Some(Status::Discarded),
            (Action::Reopen { .. }, Status::Pending) => None,
            (Action::Reopen { force: false }, Status::Replayed | Status::Settled) => None,
            (Action::Reopen { .. }, _) => Some(Status::Pending),
        }
    }
}

/// Who decided, when, and why.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Note {
    /// Who.
    pub by: String,
    /// When.
    pub at: Wall,
    /// Why, in the person's words, redacted.
    pub text: Option<String>,
}

/// What an import did.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Imported {
    /// Records that are new.
    pub new: u64,
    /// Records that were there already and were left as they are.
    pub known: u64,
}

/// What became of one sealed original.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Resealed {
    /// Sealed anew.
    Done,
    /// The record was changed or purged meanwhile.
    Gone,
}

impl Queue {
    /// Does what a person decided and gives the record as it then is.
    ///
    /// # Errors
    /// [`QueueError::NotFound`]; [`QueueError::AlreadyResolved`] if the decision means nothing for its status;
    /// [`QueueError::ClaimedBy`] while somebody replays it; [`QueueError::OutcomeUnknown`] for a reopening without force of
    /// one whose last replay has an unknown outcome; or if the file cannot be written.
    pub fn decide(&mut self, id: &str, action: Action, note: &Note) -> Result<Record, QueueError> {
        self.in_transaction(|conn| {
            let Some(record) = find(conn, id)? else { return Ok(Err(QueueError::NotFound(id.to_owned()))) };
            decide(conn, &record, action, note)
        })
    }

    /// Deletes one record for good. One that somebody replays right now stays.
    ///
    /// # Errors
    /// [`QueueError::NotFound`], [`QueueError::ClaimedBy`], or if the file cannot be written.
    pub fn purge(&mut self, id: &str, now: Wall) -> Result<(), QueueError> {
        self.in_transaction(|conn| {
            let Some(record) = find(conn, id)? else { return Ok(Err(QueueError::NotFound(id.to_owned()))) };
            if let Some(claim) = record.claim.filter(|claim| claim.expires_at >= now) {
                return Ok(Err(QueueError::ClaimedBy { id: id.to_owned(), claim }));
            }
            conn.prepare_cached("DELETE FROM failures WHERE id = ?1")?.execute([id])?;
            Ok(Ok(()))
        })
    }

    /// Deletes some of the records that the filter takes, those that somebody replays right now aside, and gives their
    /// number. Zero means that none is left; until then call it again.
    ///
    /// # Errors
    /// If the file cannot be written.
    pub fn purge_step(&mut self, filter: &Filter, now: Wall) -> Result<u64, QueueError> {
        let (wheres, mut values) = super::select::conditions(filter);
        values.push(rusqlite::types::Value::Integer(now.0));
        let and = if wheres.is_empty() { "WHERE" } else { "AND" };
        let sql = format!(
            "DELETE FROM failures WHERE id IN (SELECT id FROM failures {wheres}
                {and} (replay_status <> 'replaying' OR claim_expires_at < ?{}) LIMIT {PURGE_STEP})",
            values.len()
        );
        self.in_transaction(|conn| {
            let deleted = conn.prepare_cached(&sql)?.execute(rusqlite::params_from_iter(values))?;
            Ok(Ok(deleted as u64))
        })
    }

    /// Takes in records from elsewhere, all or none. `next` gives them; its error ends the import and undoes it.
    ///
    /// # Errors
    /// What `next` said, or, in the second form, that the file cannot be written.
    pub fn import<E>(
        &mut self,
        mut next: impl FnMut() -> Option<Result<Record, E>>,
    ) -> Result<Result<Imported, E>, QueueError> {
        let mut refused = None;
        let imported = self.in_transaction(|conn| {
            let mut imported = Imported::default();
            while let Some(record) = next() {
                match record {
                    Ok(record) if rows::insert(conn, &record)? => imported.new += 1,
                    Ok(_) => imported.known += 1,
                    Err(error) => {
                        refused = Some(error);
                        // Any error of the queue undoes the transaction; this one is not shown.
                        return Ok(Err(QueueError::NotFound(String::new())));
                    }
                }
            }
            Ok(Ok(imported))
        });
        match (refused, imported) {
            (Some(error), _) => Ok(Err(error)),
            (None, imported) => imported.map(Ok),
        }
    }

    /// Puts another seal in the place of the one that was read.
    ///
    /// # Errors
    /// If the file cannot be written.
    pub fn reseal(&mut self, id: &str, old: &str, new: &str) -> Result<Resealed, QueueError> {
        self.in_transaction(|conn| {
            let changed = conn
                .prepare_cached("UPDATE failures SET sealed = ?3 WHERE id = ?1 AND sealed = ?2")?
                .execute(params![id, old, new])?;
            Ok(Ok(if changed > 0 { Resealed::Done } else { Resealed::Gone }))
        })
    }
}

fn decide(
    conn: &Connection,
    record: &Record,
    action: Action,
    note: &Note,
) -> rusqlite::Result<Result<Record, QueueError>> {
    let id = || record.id.clone();
    let mut replays = record.replays.clone();
    if let Some(claim) = record.claim.as_ref().filter(|_| record.status == Status::Replaying) {
        if claim.expires_at >= note.at {
            return Ok(Err(QueueError::ClaimedBy { id: id(), claim: claim.clone() }));
        }
        if claim.sent_at.is_some() {
            if action == (Action::Reopen { force: false }) {
                return Ok(Err(QueueError::OutcomeUnknown { id: id(), claim: claim.clone() }));
            }
            replays = appended(&replays, &unknown_attempt(claim));
        }
    }
    let Some(status) = action.leads(record.status) else {
        return Ok(Err(QueueError::AlreadyResolved { id: id(), status: record.status }));
    };
    let executed = match action {
        Action::Settle { ran: true } => Executed::Yes,
        Action::Settle { ran: false } => Executed::No,
        Action::Discard | Action::Reopen { .. } => record.executed,
    };
    let redrives = if matches!(action, Action::Reopen { .. }) { 0 } else { record.redrives };
    let resolved_at = (status != Status::Pending).then_some(note.at.0);
    let told = object(|out| {
        out.text("at", &note.at.to_rfc3339()).text("by", &note.by).text("action", action.word());
        if let Action::Settle { .. } = action {
            out.text("executed", executed.as_str());
        }
        match &note.text {
            Some(text) => out.text("note", text),
            None => out.null("note"),
        };
    });
    conn.prepare_cached(
        "UPDATE failures SET replay_status = ?2, failure_executed = ?3, replay_failures = ?4, resolved_at = ?5, notes = ?6,
            replay_attempts = ?7, claim_owner = NULL, claimed_at = NULL, claim_expires_at = NULL, claim_sent_at = NULL,
            claim_status = NULL
        WHERE id = ?1",
    )?
    .execute(params![
        record.id,
        status.as_str(),
        executed.as_str(),
        redrives,
        resolved_at,
        appended(&record.notes, &told),
        replays
    ])?;
    if let (Action::Settle { ran: true }, Some(key)) = (action, &record.idempotency_key) {
        // Another record of the same call must not run it a second time unasked.
        let row = ExecutionRow {
            server: record.server.name.clone(),
            tool: record.tool.clone(),
            key: Some(key.clone()),
            arguments_hash: record.arguments_hash.clone(),
            at: note.at,
            source: Source::Live,
        };
        rows::record_execution(conn, &row)?;
    }
    Ok(find(conn, &record.id)?.ok_or_else(|| QueueError::NotFound(id())))
}
