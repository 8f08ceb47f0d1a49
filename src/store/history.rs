//! Writes into the history: the chained audit trail, call events, and the pruning of old events.

use crate::clock::Wall;
use crate::record::anchor::CHAIN_START;
use crate::record::hash::sha256_hex;
use crate::record::{AuditRow, CallEvent};
use rusqlite::{Connection, OptionalExtension, params};

/// Rows that one step of pruning deletes; a step is short enough to stand between two writes.
const PRUNE_STEP: usize = 5_000;

/// "Most of all events" is not counted beyond this many: counting would hold up what waits.
const MOST_MAX: u64 = 100_000;

/// The columns that [`read_audit`] reads, in its order.
pub(super) const AUDIT_COLUMNS: &str =
    "seq, id, at, kind, correlation_id, failure_id, caller, tool_name, detail, previous_hash";

/// One row of the audit trail as it is stored. Its kind is a word, for a newer version may know more of them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StoredAudit {
    /// Its number; 1 is the first row, and none is ever left out.
    pub seq: i64,
    /// ULID of the row.
    pub id: String,
    /// When it happened.
    pub at: Wall,
    /// What happened.
    pub kind: String,
    /// The call's UUID.
    pub correlation_id: String,
    /// The dead letter, if one is concerned.
    pub record_id: Option<String>,
    /// Who called.
    pub caller: String,
    /// The tool's name.
    pub tool: String,
    /// A JSON object with more, as text, redacted.
    pub detail: Option<String>,
    /// The hash of the row before it, [`CHAIN_START`] for the first.
    pub previous_hash: String,
}

impl StoredAudit {
    /// The hash of the row with all its columns, the hash of the row before it among them: lower-case hex of SHA-256.
    #[must_use]
    pub fn hash(&self) -> String {
        let columns = serde_json::json!([
            self.seq,
            self.id,
            self.at.0,
            self.kind,
            self.correlation_id,
            self.record_id,
            self.caller,
            self.tool,
            self.detail,
            self.previous_hash
        ]);
        sha256_hex(columns.to_string().as_bytes())
    }
}

/// Appends rows to the audit trail. Must run inside an immediate transaction, which is what keeps two processes from
/// chaining to the same row. A row whose id is there already is left out.
pub(super) fn append_audit(conn: &Connection, rows: &[AuditRow]) -> rusqlite::Result<()> {
    if rows.is_empty() {
        return Ok(());
    }
    let mut newest = conn
        .prepare_cached(&format!("SELECT {AUDIT_COLUMNS} FROM audit ORDER BY seq DESC LIMIT 1"))?
        .query_row([], |row| Ok(read_audit(row)?.hash()))
        .optional()?
        .unwrap_or_else(|| CHAIN_START.to_owned());
    // Asked first: an insert that meets a conflict uses up a number, and a gap in the numbers means a removed row.
    let mut known = conn.prepare_cached("SELECT 1 FROM audit WHERE id = ?1")?;
    let mut insert = conn.prepare_cached(
        "INSERT INTO audit (id, at, kind, correlation_id, failure_id, caller, tool_name, detail, previous_hash)
        VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9)",
    )?;
    for row in rows {
        if known.exists([&row.id])? {
            continue;
        }
        let mut stored = StoredAudit {
            seq: 0,
            id: row.id.clone(),
            at: row.at,
            kind: row.kind.as_str().to_owned(),
            correlation_id: row.correlation_id.clone(),
            record_id: row.record_id.clone(),
            caller: row.caller.clone(),
            tool: row.tool.clone(),
            detail: row.detail.clone(),
            previous_hash: newest,
        };
        insert.execute(params![
            stored.id,
            stored.at.0,
            stored.kind,
            stored.correlation_id,
            stored.record_id,
            stored.caller,
            stored.tool,
            stored.detail,
            stored.previous_hash
        ])?;
        stored.seq = conn.last_insert_rowid();
        newest = stored.hash();
    }
    Ok(())
}

/// Reads [`AUDIT_COLUMNS`].
pub(super) fn read_audit(row: &rusqlite::Row<'_>) -> rusqlite::Result<StoredAudit> {
    Ok(StoredAudit {
        seq: row.get(0)?,
        id: row.get(1)?,
        at: Wall(row.get(2)?),
        kind: row.get(3)?,
        correlation_id: row.get(4)?,
        record_id: row.get(5)?,
        caller: row.get(6)?,
        tool: row.get(7)?,
        detail: row.get(8)?,
        previous_hash: row.get(9)?,
    })
}

/// Writes call events.
pub(super) fn insert_events(conn: &Connection, events: &[std::sync::Arc<CallEvent>]) -> rusqlite::Result<()> {
    let mut insert = conn.prepare_cached(
        "INSERT INTO call_events (id, at, correlation_id, caller_type, caller_identity, server, tool, decision, class,
            executed, latency_ms, request_bytes, response_bytes, attempt, dead_letter_id)
        VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10, ?11, ?12, ?13, ?14, ?15) ON CONFLICT DO NOTHING",
    )?;
    let number = |value: u64| i64::try_from(value).unwrap_or(i64::MAX);
    for event in events {
        insert.execute(params![
            event.id,
            event.at.0,
            event.correlation_id,
            event.caller.transport.as_str(),
            event.caller.identity,
            event.server,
            event.tool,
            event.decision.as_str(),
            event.error.as_ref().and_then(|error| error.class).map(|class| class.as_str()),
            event.error.as_ref().map(|error| error.executed.as_str()),
            number(event.latency_ms),
            number(event.request_bytes),
            number(event.response_bytes),
            event.attempts,
            event.dead_letter_id
        ])?;
    }
    Ok(())
}

/// What pruning will do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Prune {
    /// Nothing is old enough.
    Nothing,
    /// Events before this moment go.
    Before(Wall),
    /// Every event would go: the clock may be wrong, so nothing is touched.
    Everything,
}

/// Decides what to prune at `now`; 0 days keep everything.
pub(super) fn plan_prune(conn: &Connection, now: Wall, retention_days: u32) -> rusqlite::Result<Prune> {
    if retention_days == 0 {
        return Ok(Prune::Nothing);
    }
    let cutoff = now.0.saturating_sub(i64::from(retention_days) * 86_400_000);
    // Each on its own: asked for both at once SQLite reads the whole table.
    let edge = |order: &str| -> rusqlite::Result<Option<i64>> {
        let sql = format!("SELECT at FROM call_events ORDER BY at {order} LIMIT 1");
        conn.query_row(&sql, [], |row| row.get(0)).optional()
    };
    Ok(match (edge("ASC")?, edge("DESC")?) {
        (_, Some(newest)) if newest < cutoff => Prune::Everything,
        (Some(oldest), _) if oldest < cutoff => Prune::Before(Wall(cutoff)),
        _ => Prune::Nothing,
    })
}

/// What one step of pruning did.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct PruneStep {
    pub(super) deleted: u64,
    pub(super) finished: bool,
}

/// One step of pruning.
pub(super) fn prune_step(conn: &Connection, before: Wall) -> rusqlite::Result<PruneStep> {
    let first_kept: Option<(i64, String)> = conn
        .prepare_cached("SELECT at, id FROM call_events WHERE at < ?1 ORDER BY at, id LIMIT 1 OFFSET ?2")?
        .query_row(params![before.0, PRUNE_STEP as i64], |row| Ok((row.get(0)?, row.get(1)?)))
        .optional()?;
    let deleted = match &first_kept {
        Some((at, id)) => {
            conn.prepare_cached("DELETE FROM call_events WHERE (at, id) < (?1, ?2)")?.execute(params![at, id])?
        }
        None => conn.prepare_cached("DELETE FROM call_events WHERE at < ?1")?.execute([before.0])?,
    };
    Ok(PruneStep { deleted: u64::try_from(deleted).unwrap_or(0), finished: first_kept.is_none() })
}

/// Whether fewer than `count` events are left. Many thousands are many, whatever the count.
pub(super) fn fewer_events_than(conn: &Connection, count: u64) -> rusqlite::Result<bool> {
    let count = i64::try_from(count.min(MOST_MAX)).unwrap_or(i64::MAX);
    let left: i64 =
        conn.query_row("SELECT count(*) FROM (SELECT 1 FROM call_events LIMIT ?1)", [count], |row| row.get(0))?;
    Ok(left < count)
}
