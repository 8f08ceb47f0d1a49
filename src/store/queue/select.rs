//! Which records a command means, and what can be told of many at once.

use super::{Queue, QueueError};
use crate::clock::Wall;
use crate::record::stored::Record;
use crate::record::{Executed, FailureClass, Status};
use crate::store::rows;
use rusqlite::params_from_iter;
use rusqlite::types::Value;

/// Which records to list; every field narrows, the empty filter takes all.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Filter {
    /// Any of these statuses; empty means all.
    pub statuses: Vec<Status>,
    /// The tool's name, or a glob of it: `*` is any text, `?` one character.
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
    /// Only what may be taken without force at this moment, by its status: of the statuses asked for (pending and failed
    /// ones if none are), and claims that ran out before anything was sent.
    pub free_at: Option<Wall>,
    /// Only those whose replay was handed to the server by somebody who has vanished: their outcome is not known.
    pub lost_at: Option<Wall>,
    /// Only records with a sealed original.
    pub sealed: bool,
    /// Behind this record in the order of the list.
    pub after: Option<String>,
    /// Oldest first; newest first otherwise.
    pub oldest_first: bool,
    /// At most so many.
    pub limit: Option<u64>,
}

impl Filter {
    /// Whether nothing but the status narrows it.
    #[must_use]
    pub fn takes_everything(&self) -> bool {
        let status_only =
            Filter { statuses: self.statuses.clone(), oldest_first: self.oldest_first, ..Filter::default() };
        *self == status_only
    }
}

/// As much of a record as a long selection keeps in memory.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Head {
    /// The record.
    pub id: String,
    /// The server's name.
    pub server: String,
    /// The tool's name.
    pub tool: String,
    /// Whether it may have run.
    pub executed: Executed,
    /// Whether its tool was called idempotent when it failed.
    pub idempotent: bool,
    /// Replays that failed: another number tells that somebody has replayed it since.
    pub redrives: u32,
}

/// The records of one tool that failed in one way.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StatsRow {
    /// The tool's name.
    pub tool: String,
    /// The failure's class.
    pub class: FailureClass,
    /// Whether the tool was called idempotent then.
    pub idempotent: bool,
    /// How many records are in each status; those without any are left out.
    pub statuses: Vec<(Status, u64)>,
    /// When the oldest record that still waits (pending, replaying, failed or parked) was captured.
    pub oldest: Option<Wall>,
    /// When the newest one that still waits was captured.
    pub newest: Option<Wall>,
    /// How many of those that wait may have run.
    pub maybe: u64,
}

impl StatsRow {
    /// How many records are in this status.
    #[must_use]
    pub fn of(&self, status: Status) -> u64 {
        self.statuses.iter().find(|(known, _)| *known == status).map_or(0, |(_, count)| *count)
    }
}

impl Queue {
    /// The records that the filter takes.
    ///
    /// # Errors
    /// If the file cannot be read.
    pub fn list(&self, filter: &Filter) -> Result<Vec<Record>, QueueError> {
        let mut records = Vec::new();
        let mut keep = |record| {
            records.push(record);
            true
        };
        self.each(filter, &mut keep)?;
        Ok(records)
    }

    /// Gives the records that the filter takes to `take`, one by one, until that says `false`. The file is being read
    /// meanwhile, so `take` should not be slow.
    ///
    /// # Errors
    /// If the file cannot be read.
    pub fn each(&self, filter: &Filter, take: &mut dyn FnMut(Record) -> bool) -> Result<(), QueueError> {
        let (sql, values) = select("*", filter);
        let run = || -> rusqlite::Result<()> {
            let mut statement = self.conn.prepare(&sql)?;
            let mut found = statement.query(params_from_iter(values))?;
            while let Some(row) = found.next()? {
                if !take(rows::read(row)?) {
                    break;
                }
            }
            Ok(())
        };
        run().map_err(|error| self.read_error(&error))
    }

    /// The heads of the records that the filter takes.
    ///
    /// # Errors
    /// If the file cannot be read.
    pub fn heads(&self, filter: &Filter) -> Result<Vec<Head>, QueueError> {
        let columns = "id, server_name, tool_name, failure_executed, idempotent, replay_failures";
        let (sql, values) = select(columns, filter);
        let read = |row: &rusqlite::Row<'_>| {
            let executed: String = row.get(3)?;
            Ok(Head {
                id: row.get(0)?,
                server: row.get(1)?,
                tool: row.get(2)?,
                executed: Executed::parse(&executed).unwrap_or(Executed::Maybe),
                idempotent: row.get(4)?,
                redrives: row.get(5)?,
            })
        };
        let run = || -> rusqlite::Result<Vec<Head>> {
            self.conn.prepare(&sql)?.query_map(params_from_iter(values), read)?.collect()
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

    /// What the queue holds of each tool and class, in the order of their names.
    ///
    /// # Errors
    /// If the file cannot be read.
    pub fn stats(&self, filter: &Filter) -> Result<Vec<StatsRow>, QueueError> {
        let (wheres, values) = conditions(filter);
        let sql = format!(
            "SELECT tool_name, failure_class, idempotent, replay_status, count(*), min(captured_at), max(captured_at),
                sum(failure_executed = 'maybe' OR (replay_status = 'replaying' AND claim_sent_at IS NOT NULL))
            FROM failures {wheres} GROUP BY 1, 2, 3, 4 ORDER BY 1, 2, 3"
        );
        let run = || -> rusqlite::Result<Vec<StatsRow>> {
            let mut stats: Vec<StatsRow> = Vec::new();
            let mut statement = self.conn.prepare(&sql)?;
            let mut found = statement.query(params_from_iter(values))?;
            while let Some(row) = found.next()? {
                let (class, status): (String, String) = (row.get(1)?, row.get(3)?);
                let (Some(class), Some(status)) = (FailureClass::parse(&class), Status::parse(&status)) else {
                    continue;
                };
                let (tool, idempotent): (String, bool) = (row.get(0)?, row.get(2)?);
                let same =
                    |last: &&mut StatsRow| last.tool == tool && last.class == class && last.idempotent == idempotent;
                if stats.last_mut().filter(same).is_none() {
                    let (statuses, oldest, newest) = (Vec::new(), None, None);
                    stats.push(StatsRow { tool, class, idempotent, statuses, oldest, newest, maybe: 0 });
                }
                let Some(entry) = stats.last_mut() else { continue };
                let number = |at: usize| row.get::<_, i64>(at).map(|count| u64::try_from(count).unwrap_or(0));
                entry.statuses.push((status, number(4)?));
                if !matches!(status, Status::Replayed | Status::Discarded | Status::Settled) {
                    let (oldest, newest) = (Wall(row.get(5)?), Wall(row.get(6)?));
                    entry.oldest = Some(entry.oldest.map_or(oldest, |known| known.min(oldest)));
                    entry.newest = Some(entry.newest.map_or(newest, |known| known.max(newest)));
                    entry.maybe += number(7)?;
                }
            }
            Ok(stats)
        };
        run().map_err(|error| self.read_error(&error))
    }
}

pub(super) fn select(columns: &str, filter: &Filter) -> (String, Vec<Value>) {
    let (wheres, values) = conditions(filter);
    let order = if filter.oldest_first { "ASC" } else { "DESC" };
    let limit = filter.limit.and_then(|limit| i64::try_from(limit).ok()).unwrap_or(-1);
    (format!("SELECT {columns} FROM failures {wheres} ORDER BY id {order} LIMIT {limit}"), values)
}

/// The words are our own, so they need no binding.
fn status_in(statuses: &[Status]) -> String {
    let words: Vec<String> = statuses.iter().map(|status| format!("'{status}'")).collect();
    format!("replay_status IN ({})", words.join(", "))
}

/// A pattern of ours as SQLite's GLOB reads it, which has sets in brackets besides.
fn sqlite_glob(pattern: &str) -> String {
    pattern.replace('[', "[[]")
}

pub(super) fn conditions(filter: &Filter) -> (String, Vec<Value>) {
    let mut wheres: Vec<String> = Vec::new();
    let mut values = Vec::new();
    if let Some(now) = filter.free_at {
        let usual = [Status::Pending, Status::FailedReplay];
        let asked = if filter.statuses.is_empty() { &usual[..] } else { &filter.statuses[..] };
        let others: Vec<Status> = asked.iter().copied().filter(|status| *status != Status::Replaying).collect();
        if asked.contains(&Status::Pending) || asked.contains(&Status::Replaying) {
            values.push(Value::Integer(now.0));
            let unsent = "replay_status = 'replaying' AND claim_expires_at < ?1 AND claim_sent_at IS NULL";
            wheres.push(format!("({} OR ({unsent}))", status_in(&others)));
        } else {
            wheres.push(status_in(&others));
        }
    } else if !filter.statuses.is_empty() {
        wheres.push(status_in(&filter.statuses));
    }
    let mut add = |condition: &str, value: Option<Value>| {
        if let Some(value) = value {
            values.push(value);
            wheres.push(format!("{condition} ?{}", values.len()));
        }
    };
    let text = |value: &Option<String>| value.clone().map(Value::Text);
    match &filter.tool {
        Some(glob) if glob.contains(['*', '?']) => add("tool_name GLOB", Some(Value::Text(sqlite_glob(glob)))),
        name => add("tool_name =", text(name)),
    }
    add("failure_class =", filter.class.map(|class| Value::Text(class.as_str().to_owned())));
    add("server_name =", text(&filter.server));
    add("caller_identity =", text(&filter.caller));
    add("correlation_id =", text(&filter.correlation_id));
    add("captured_at >=", filter.since.map(|at| Value::Integer(at.0)));
    add("captured_at <=", filter.until.map(|at| Value::Integer(at.0)));
    let lost = "replay_status = 'replaying' AND claim_sent_at IS NOT NULL AND claim_expires_at <";
    add(lost, filter.lost_at.map(|at| Value::Integer(at.0)));
    add(if filter.oldest_first { "id >" } else { "id <" }, text(&filter.after));
    if filter.sealed {
        wheres.push("sealed IS NOT NULL".to_owned());
    }
    if wheres.is_empty() {
        return (String::new(), values);
    }
    (format!("WHERE {}", wheres.join(" AND ")), values)
}
