//! Writes into the history: the chained audit trail, call events, and the pruning of old events.

use crate::clock::Wall;
use crate::record::hash::sha256_hex;
use crate::record::{AuditRow, CallEvent};
use rusqlite::{Connection, OptionalExtension, params};

/// The hash that stands for "no row before".
pub const CHAIN_START: &str = "0000000000000000000000000000000000000000000000000000000000000000";

/// Rows that one step of pruning deletes; a step is short enough to stand between two writes.
const PRUNE_STEP: usize = 5_000;

/// The hash of one audit row with all its columns, the hash of the row before it among them.
#[must_use]
pub fn audit_hash(seq: i64, row: &AuditRow, previous: &str) -> String {
    let columns = serde_json::json!([
        seq,
        row.id,
        row.at.0,
        row.kind.as_str(),
        row.correlation_id,
        row.record_id,
        row.caller,
        row.tool,
        row.detail,
        previous
    ]);
    sha256_hex(columns.to_string().as_bytes())
}

/// Appends rows to the audit trail. Must run inside an immediate transaction, which is what keeps two processes from
/// chaining to the same row. A row whose id is there already is left out.
pub(super) fn append_audit(conn: &Connection, rows: &[AuditRow]) -> rusqlite::Result<()> {
    let mut newest = conn
        .prepare_cached(
            "SELECT seq, id, at, kind, correlation_id, failure_id, caller, tool_name, detail, previous_hash
            FROM audit ORDER BY seq DESC LIMIT 1",
        )?
        .query_row([], |row| {
            let (seq, audit, previous) = read_audit(row)?;
            Ok(audit_hash(seq, &audit, &previous))
        })
        .optional()?
        .unwrap_or_else(|| CHAIN_START.to_owned());
    let mut insert = conn.prepare_cached(
        "INSERT INTO audit (id, at, kind, correlation_id, failure_id, caller, tool_name, detail, previous_hash)
        VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9) ON CONFLICT (id) DO NOTHING",
    )?;
    for row in rows {
        let changed = insert.execute(params![
            row.id,
            row.at.0,
            row.kind.as_str(),
            row.correlation_id,
            row.record_id,
            row.caller,
            row.tool,
            row.detail,
            newest
        ])?;
        if changed > 0 {
            newest = audit_hash(conn.last_insert_rowid(), row, &newest);
        }
    }
    Ok(())
}

/// Reads `seq, id, at, kind, correlation_id, failure_id, caller, tool_name, detail, previous_hash`.
pub(super) fn read_audit(row: &rusqlite::Row<'_>) -> rusqlite::Result<(i64, AuditRow, String)> {
    let kind: String = row.get(3)?;
    let kind = crate::record::AuditKind::parse(&kind).ok_or_else(|| {
        rusqlite::Error::FromSqlConversionFailure(
            3,
            rusqlite::types::Type::Text,
            format!("unknown kind {kind:?}").into(),
        )
    })?;
    let audit = AuditRow {
        id: row.get(1)?,
        at: Wall(row.get(2)?),
        kind,
        correlation_id: row.get(4)?,
        record_id: row.get(5)?,
        caller: row.get(6)?,
        tool: row.get(7)?,
        detail: row.get(8)?,
    };
    Ok((row.get(0)?, audit, row.get(9)?))
}

/// Writes call events.
pub(super) fn insert_events(conn: &Connection, events: &[std::sync::Arc<CallEvent>]) -> rusqlite::Result<()> {
    let mut insert = conn.prepare_cached(
        "INSERT INTO call_events (id, at, correlation_id, caller_type, caller_identity, server, tool, decision, class,
            executed, latency_ms, request_bytes, response_bytes, attempt, dead_letter_id)
        VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10, ?11, ?12, ?13, ?14, ?15) ON CONFLICT (id) DO NOTHING",
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
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Prune {
    /// Nothing is old enough.
    Nothing,
    /// Events before this moment go.
    Before(Wall),
    /// Every event would go: the clock may be wrong, so nothing is touched.
    Everything(u64),
}

/// Decides what to prune at `now`; 0 days keep everything.
pub(super) fn plan_prune(conn: &Connection, now: Wall, retention_days: u32) -> rusqlite::Result<Prune> {
    if retention_days == 0 {
        return Ok(Prune::Nothing);
    }
    let cutoff = now.0.saturating_sub(i64::from(retention_days) * 86_400_000);
    let range = "SELECT min(at), max(at) FROM call_events";
    let (oldest, newest) =
        conn.query_row(range, [], |row| Ok((row.get::<_, Option<i64>>(0)?, row.get::<_, Option<i64>>(1)?)))?;
    match (oldest, newest) {
        (Some(oldest), Some(newest)) if oldest < cutoff && newest < cutoff => {
            let count: i64 = conn.query_row("SELECT count(*) FROM call_events", [], |row| row.get(0))?;
            Ok(Prune::Everything(u64::try_from(count).unwrap_or(0)))
        }
        (Some(oldest), _) if oldest < cutoff => Ok(Prune::Before(Wall(cutoff))),
        _ => Ok(Prune::Nothing),
    }
}

/// What one step of pruning did.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct PruneStep {
    pub(super) deleted: u64,
    pub(super) finished: bool,
}

/// One step of pruning.
pub(super) fn prune_step(conn: &Connection, before: Wall) -> rusqlite::Result<PruneStep> {
    let deleted = conn
        .prepare_cached(
            "DELETE FROM call_events WHERE id IN (SELECT id FROM call_events WHERE at < ?1 ORDER BY at LIMIT ?2)",
        )?
        .execute(params![before.0, i64::try_from(PRUNE_STEP).unwrap_or(i64::MAX)])?;
    Ok(PruneStep { deleted: u64::try_from(deleted).unwrap_or(0), finished: deleted < PRUNE_STEP })
}

/// Whether fewer than `count` events are left.
pub(super) fn fewer_events_than(conn: &Connection, count: u64) -> rusqlite::Result<bool> {
    let count = i64::try_from(count).unwrap_or(i64::MAX);
    let left: i64 =
        conn.query_row("SELECT count(*) FROM (SELECT 1 FROM call_events LIMIT ?1)", [count], |row| row.get(0))?;
    Ok(left < count)
}
