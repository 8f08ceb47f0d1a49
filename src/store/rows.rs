//! Records to rows and back, and the other single writes into the queue.

use crate::clock::Wall;
use crate::record::stored::{Claim, Record};
use crate::record::{Caller, ClientInfo, Executed, FailureClass, PolicyNote, Server, Status, Transport};
use rusqlite::types::Type;
use rusqlite::{Connection, Row, named_params, params};

/// Writes a new record; one whose id is there already was stored before and is left alone. Whether it was new.
pub(super) fn insert(conn: &Connection, record: &Record) -> rusqlite::Result<bool> {
    let argv = serde_json::to_string(&record.server.argv)
        .map_err(|error| rusqlite::Error::ToSqlConversionFailure(error.into()))?;
    let changed = conn
        .prepare_cached(
        "INSERT INTO failures (
            id, schema_version, correlation_id, captured_at, caller_type, caller_identity, client_name, client_version,
            server_name, server_transport, server_argv, server_cwd, tool_name, arguments_hash, arguments, idempotency_key,
            idempotent, mid_conversation, failure_class, failure_executed, failure_code, failure_message, failure_detail,
            failure_attempts, failure_tries, policy_allowed, policy_rule, policy_reason, late_result, replay_status,
            replay_attempts, replay_failures, last_outcome, resolved_at, notes, sealed, claim_owner, claimed_at,
            claim_expires_at, claim_sent_at)
        VALUES (
            :id, :version, :correlation_id, :captured_at, :caller_type, :caller_identity, :client_name, :client_version,
            :server_name, :server_transport, :server_argv, :server_cwd, :tool, :hash, :arguments, :key,
            :idempotent, :mid_conversation, :class, :executed, :code, :message, :detail,
            :attempts, :tries, :allowed, :rule, :reason, :late, :status,
            :replays, :redrives, :outcome, :resolved_at, :notes, :sealed, :owner, :since,
            :expires_at, :sent_at)
        ON CONFLICT (id) DO NOTHING",
    )?
    .execute(named_params! {
        ":id": record.id,
        ":version": record.version,
        ":correlation_id": record.correlation_id,
        ":captured_at": record.captured_at.0,
        ":caller_type": record.caller.transport.as_str(),
        ":caller_identity": record.caller.identity,
        ":client_name": record.client.as_ref().map(|client| &client.name),
        ":client_version": record.client.as_ref().map(|client| &client.version),
        ":server_name": record.server.name,
        ":server_transport": record.server.transport.as_str(),
        ":server_argv": argv,
        ":server_cwd": record.server.cwd,
        ":tool": record.tool,
        ":hash": record.arguments_hash,
        ":arguments": record.arguments,
        ":key": record.idempotency_key,
        ":idempotent": record.idempotent,
        ":mid_conversation": record.mid_conversation,
        ":class": record.class.as_str(),
        ":executed": record.executed.as_str(),
        ":code": record.code,
        ":message": record.message,
        ":detail": record.detail,
        ":attempts": record.attempts,
        ":tries": record.tries,
        ":allowed": record.policy.allowed,
        ":rule": record.policy.rule.and_then(|rule| i64::try_from(rule).ok()),
        ":reason": record.policy.reason,
        ":late": record.late_result,
        ":status": record.status.as_str(),
        ":replays": record.replays,
        ":redrives": record.redrives,
        ":outcome": record.last_outcome,
        ":resolved_at": record.resolved_at.map(|at| at.0),
        ":notes": record.notes,
        ":sealed": record.sealed,
        ":owner": record.claim.as_ref().map(|claim| &claim.owner),
        ":since": record.claim.as_ref().map(|claim| claim.since.0),
        ":expires_at": record.claim.as_ref().map(|claim| claim.expires_at.0),
        ":sent_at": record.claim.as_ref().and_then(|claim| claim.sent_at).map(|at| at.0),
    })?;
    Ok(changed > 0)
}

/// Whether a record of this call is there.
pub(super) fn has_call(conn: &Connection, correlation_id: &str) -> rusqlite::Result<bool> {
    conn.prepare_cached("SELECT 1 FROM failures WHERE correlation_id = ?1")?.exists([correlation_id])
}

/// Reads a row of `SELECT * FROM failures`.
pub(super) fn read(row: &Row<'_>) -> rusqlite::Result<Record> {
    let text = |name: &str| row.get::<_, String>(name);
    let wall = |name: &str| row.get::<_, Option<i64>>(name).map(|millis| millis.map(Wall));
    let client = match (row.get("client_name")?, row.get("client_version")?) {
        (Some(name), Some(version)) => Some(ClientInfo { name, version }),
        _ => None,
    };
    let claim = match (row.get::<_, Option<String>>("claim_owner")?, wall("claimed_at")?, wall("claim_expires_at")?) {
        (Some(owner), Some(since), Some(expires_at)) => {
            Some(Claim { owner, since, expires_at, sent_at: wall("claim_sent_at")? })
        }
        _ => None,
    };
    let argv = text("server_argv")?;
    Ok(Record {
        version: row.get("schema_version")?,
        id: text("id")?,
        correlation_id: text("correlation_id")?,
        captured_at: Wall(row.get("captured_at")?),
        caller: Caller {
            transport: word(&text("caller_type")?, Transport::parse)?,
            identity: text("caller_identity")?,
        },
        client,
        server: Server {
            name: text("server_name")?,
            transport: word(&text("server_transport")?, Transport::parse)?,
            argv: serde_json::from_str(&argv).map_err(|error| invalid(error.into()))?,
            cwd: row.get("server_cwd")?,
        },
        tool: text("tool_name")?,
        arguments_hash: text("arguments_hash")?,
        arguments: row.get("arguments")?,
        idempotency_key: row.get("idempotency_key")?,
        mid_conversation: row.get("mid_conversation")?,
        idempotent: row.get("idempotent")?,
        class: word(&text("failure_class")?, FailureClass::parse)?,
        executed: word(&text("failure_executed")?, Executed::parse)?,
        code: row.get("failure_code")?,
        message: text("failure_message")?,
        detail: row.get("failure_detail")?,
        attempts: row.get("failure_attempts")?,
        tries: text("failure_tries")?,
        policy: PolicyNote {
            allowed: row.get("policy_allowed")?,
            rule: row.get::<_, Option<i64>>("policy_rule")?.and_then(|rule| usize::try_from(rule).ok()),
            reason: text("policy_reason")?,
        },
        late_result: row.get("late_result")?,
        status: word(&text("replay_status")?, Status::parse)?,
        replays: text("replay_attempts")?,
        last_outcome: row.get("last_outcome")?,
        resolved_at: wall("resolved_at")?,
        redrives: row.get("replay_failures")?,
        notes: later(row.get("notes"))?.unwrap_or_else(|| "[]".to_owned()),
        sealed: later(row.get::<_, Option<String>>("sealed"))?.flatten(),
        claim,
    })
}

/// A column that came with a later version: a file that cannot be written to is read as it is.
fn later<T>(value: rusqlite::Result<T>) -> rusqlite::Result<Option<T>> {
    match value {
        Err(rusqlite::Error::InvalidColumnName(_)) => Ok(None),
        value => value.map(Some),
    }
}

fn word<T>(word: &str, parse: impl Fn(&str) -> Option<T>) -> rusqlite::Result<T> {
    parse(word).ok_or_else(|| invalid(format!("unknown word {word:?}").into()))
}

fn invalid(error: Box<dyn std::error::Error + Send + Sync>) -> rusqlite::Error {
    rusqlite::Error::FromSqlConversionFailure(0, Type::Text, error)
}

/// An answer that came late: attached to its record, which it settles if it is a success. A record that somebody is at
/// work on is settled when it is released. A keyed success also enters the index of executions. Gives whether the record was found.
pub(super) fn attach_late(conn: &Connection, late: &Late) -> rusqlite::Result<bool> {
    let settles = late.success && late.executed == Executed::Yes;
    let changed = conn
        .prepare_cached(
            "UPDATE failures SET late_result = ?2, failure_executed = ?3,
                resolved_at = CASE WHEN ?4 AND replay_status IN ('pending', 'failed_replay', 'parked') THEN ?5 ELSE resolved_at END,
                replay_status = CASE WHEN ?4 AND replay_status IN ('pending', 'failed_replay', 'parked') THEN 'settled' ELSE replay_status END,
                claim_status = CASE WHEN ?4 AND replay_status = 'replaying' THEN 'settled' ELSE claim_status END
            WHERE id = ?1",
        )?
        .execute(params![late.record_id, late.json, late.executed.as_str(), settles, late.at.0])?;
    if settles {
        let keyed = conn
            .prepare_cached(
                "SELECT server_name, tool_name, idempotency_key, arguments_hash FROM failures
                WHERE id = ?1 AND idempotency_key IS NOT NULL",
            )?
            .query_map([&late.record_id], |row| Ok((row.get(0)?, row.get(1)?, row.get(2)?, row.get(3)?)))?
            .next();
        if let Some(row) = keyed {
            let (server, tool, key, hash) = row?;
            let source = Source::Live;
            record_execution(
                conn,
                &ExecutionRow { server, tool, key: Some(key), arguments_hash: hash, at: late.at, source },
            )?;
        }
    }
    Ok(changed > 0)
}

/// A late answer, redacted.
#[derive(Clone, Debug)]
pub(super) struct Late {
    pub(super) record_id: String,
    pub(super) at: Wall,
    pub(super) executed: Executed,
    pub(super) success: bool,
    pub(super) json: String,
}

/// What made an execution.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Source {
    /// A call of the client.
    Live,
    /// A replay.
    Replay,
}

impl Source {
    /// The word in the table.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Source::Live => "live",
            Source::Replay => "replay",
        }
    }
}

/// A call that succeeded, as the index keeps it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ExecutionRow {
    /// The server's name.
    pub server: String,
    /// The tool's name.
    pub tool: String,
    /// The idempotency key in its stored form; `None` for a replay of a call without one.
    pub key: Option<String>,
    /// Hash of the arguments. The same key with another hash is another call.
    pub arguments_hash: String,
    /// When it succeeded. It may lie in the future if the clock was set back since.
    pub at: Wall,
    /// What made it.
    pub source: Source,
}

/// Enters an execution; the latest of one key (or, without a key, of the same arguments) wins.
pub(super) fn record_execution(conn: &Connection, row: &ExecutionRow) -> rusqlite::Result<()> {
    let sql = match row.key {
        Some(_) => {
            "INSERT INTO executions (server_name, tool_name, key, arguments_hash, executed_at, source)
            VALUES (?1, ?2, ?3, ?4, ?5, ?6)
            ON CONFLICT (server_name, tool_name, key) WHERE key IS NOT NULL
            DO UPDATE SET arguments_hash = excluded.arguments_hash, executed_at = excluded.executed_at, source = excluded.source"
        }
        None => {
            "INSERT INTO executions (server_name, tool_name, key, arguments_hash, executed_at, source)
            VALUES (?1, ?2, ?3, ?4, ?5, ?6)
            ON CONFLICT (server_name, tool_name, arguments_hash) WHERE key IS NULL
            DO UPDATE SET executed_at = excluded.executed_at, source = excluded.source"
        }
    };
    conn.prepare_cached(sql)?.execute(params![
        row.server,
        row.tool,
        row.key,
        row.arguments_hash,
        row.at.0,
        row.source.as_str()
    ])?;
    Ok(())
}

/// Reads `server_name, tool_name, key, arguments_hash, executed_at, source`.
pub(super) fn read_execution(row: &Row<'_>) -> rusqlite::Result<ExecutionRow> {
    let source: String = row.get(5)?;
    Ok(ExecutionRow {
        server: row.get(0)?,
        tool: row.get(1)?,
        key: row.get(2)?,
        arguments_hash: row.get(3)?,
        at: Wall(row.get(4)?),
        source: if source == "replay" { Source::Replay } else { Source::Live },
    })
}
