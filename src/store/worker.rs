//! The thread's loop: take what waits, commit it as one group, report, then see to the history.

use super::aside;
use super::db::{self, Db};
use super::error::{Fault, StoreError};
use super::history::{self, Prune};
use super::place::Place;
use super::recovery::{self, Found, Held};
use super::rows::{self, ExecutionRow, Late, Source};
use super::schema::{self, Schema};
use super::secrets::Secrets;
use super::{Command, Report, StoreSettings, WaitingEvents, fresh_nonce, weight};
use crate::clock::{Clock, Now, Time, Wall};
use crate::record::hash::arguments_hash;
use crate::record::ids::Ulids;
use crate::record::redact::{MARKER, Masked};
use crate::record::stored::{Record, late_json, stored_key};
use crate::record::{AuditKind, AuditRow, CallEvent, DeadLetter, Executed, Execution, LateResult};
use crossbeam_channel::{Receiver, RecvTimeoutError};
use rusqlite::{Connection, TransactionBehavior};
use std::collections::{BTreeSet, VecDeque};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, PoisonError};
use std::time::Duration;

/// Commands taken into one group.
const GROUP_MAX: usize = 512;
/// Captures among them: a commit should not make the first of them wait for long.
const CAPTURES_MAX: usize = 64;
/// Call events wait this long for company.
const EVENTS_WAIT: Duration = Duration::from_millis(50);
pub(super) const EVENTS_BATCH: usize = 512;
/// How long the history waits for other processes. Captures wait behind it, so it is short; what it could not write
/// stays here and is tried again.
const HISTORY_BUSY: Duration = Duration::from_millis(200);
const RETRY_WAIT: Duration = Duration::from_millis(1_000);
/// How often a running process looks for events that have grown too old.
const PRUNE_EVERY: Duration = Duration::from_secs(3_600);
/// How much further than this process has run the calendar may have moved and still be believed. A laptop that slept
/// for longer prunes at its next start.
const JUMP_MAX: Duration = Duration::from_secs(86_400);
/// How often a write is tried again because the file was moved or made meanwhile.
const MOVED_TRIES: u32 = 8;
/// When the queue cannot take what earlier processes left behind, it is tried again after this time.
const RECOVER_WAIT: Duration = Duration::from_secs(10);
/// Rows of one kind that are kept while a file cannot be written; beyond it the oldest are dropped and counted.
const KEPT_MAX: usize = 8_192;

type ReportTo = Box<dyn Fn(Report) + Send>;

/// A write to the queue, redacted and ready.
enum Write {
    Capture { ticket: u64, record: Box<Record>, audit: AuditRow },
    Execution(ExecutionRow),
    Late(Late),
}

/// One database file, open or not, and how it fares.
struct Link {
    place: Place,
    schema: &'static Schema,
    busy: Duration,
    db: Option<Db>,
    /// The fault that was reported last and is not over.
    trouble: Option<String>,
    /// Warnings that were reported; each is told once.
    told: BTreeSet<String>,
    /// After a failure the file is left alone until then, unless somebody waits for it.
    retry_at: Option<Time>,
}

impl Link {
    fn new(place: Place, schema: &'static Schema, busy: Duration) -> Link {
        Link { place, schema, busy, db: None, trouble: None, told: BTreeSet::new(), retry_at: None }
    }

    /// Runs `work` in one immediate transaction, opening the file first if it is not open or is not the file that the
    /// path leads to.
    ///
    /// A damaged file is put aside, and the work done in a new one.
    fn write<T>(
        &mut self,
        report: &ReportTo,
        work: impl Fn(&Connection) -> rusqlite::Result<T>,
    ) -> Result<T, StoreError> {
        match self.write_unmoved(report, &work) {
            Err(error) if error.fault == Fault::Corrupt => {
                match aside::set_aside(&error.path, self.busy, Clock::start().now().wall) {
                    Ok(Some(aside)) => report(Report::Trouble(format!(
                        "THE {} IS DAMAGED: cannot {error}; it is kept as {}, and a new one was begun",
                        self.schema.name.to_uppercase(),
                        aside.display()
                    ))),
                    // Somebody else has put it aside, or it is fine after all.
                    Ok(None) => {}
                    Err(problem) => {
                        return Err(StoreError { reason: format!("{}; {problem}", error.reason), ..error });
                    }
                }
                self.write_unmoved(report, &work)
            }
            other => other,
        }
    }

    /// Tries again when the file was replaced meanwhile: what failed then may say nothing about the one that is there.
    fn write_unmoved<T>(
        &mut self,
        report: &ReportTo,
        work: &impl Fn(&Connection) -> rusqlite::Result<T>,
    ) -> Result<T, StoreError> {
        let mut tries = 0;
        loop {
            let before = self.place.identities();
            let result = self.try_write(report, work);
            tries += 1;
            if result.is_ok() || tries == MOVED_TRIES || before == self.place.identities() {
                return result;
            }
            self.db = None;
        }
    }

    fn try_write<T>(
        &mut self,
        report: &ReportTo,
        work: &impl Fn(&Connection) -> rusqlite::Result<T>,
    ) -> Result<T, StoreError> {
        if !self.db.as_ref().is_some_and(Db::is_current) {
            self.db = None;
            let (db, warnings) = db::open(&self.place, self.schema, self.busy)?;
            for warning in warnings {
                if self.told.insert(warning.clone()) {
                    report(Report::Trouble(warning));
                }
            }
            self.db = Some(db);
        }
        let db = self.db.as_mut().expect("it was opened above");
        let mut run = || {
            let tx = db.conn.transaction_with_behavior(TransactionBehavior::Immediate)?;
            let value = work(&tx)?;
            tx.commit()?;
            Ok(value)
        };
        let result = run().map_err(|error| StoreError::sqlite(&db.path, "write", &error));
        match &result {
            Ok(_) => {
                self.retry_at = None;
                if self.trouble.take().is_some() {
                    report(Report::Trouble(format!("{} {}: works again", self.schema.name, db.path.display())));
                }
            }
            // These say nothing against the connection; after all other faults only a new one is sure to see the file
            // as it is.
            Err(error) if matches!(error.fault, Fault::Locked | Fault::Row) => {}
            Err(error) => {
                db::keep_log(&db.conn, error.fault == Fault::Corrupt);
                self.db = None;
            }
        }
        result
    }

    /// Reports a fault unless it is the one that was reported last.
    fn failed(&mut self, error: &StoreError, now: Time, report: &ReportTo) {
        self.retry_at = Some(now.plus(RETRY_WAIT));
        let text = format!("{}: cannot {error}", self.schema.name);
        if self.trouble.as_ref() != Some(&text) {
            report(Report::Trouble(text.clone()));
            self.trouble = Some(text);
        }
    }

    fn may_try(&self, now: Time) -> bool {
        self.retry_at.is_none_or(|at| at <= now)
    }
}

/// The state of the thread.
pub(super) struct Worker {
    settings: StoreSettings,
    report: ReportTo,
    waiting_bytes: Arc<AtomicUsize>,
    clock: Clock,
    queue: Link,
    history: Link,
    secrets: Secrets,
    /// Executions and late answers that the queue could not take.
    kept: Vec<Write>,
    audits: Vec<AuditRow>,
    /// Events that the history could not take yet.
    events: Vec<Arc<CallEvent>>,
    waiting_events: WaitingEvents,
    /// When the waiting events are due.
    events_due: Option<Time>,
    /// Events before this moment are being deleted, and how many were.
    prune: Option<(Wall, u64)>,
    /// When to look next for events to delete; `None` if this run deletes none any more.
    plan_at: Option<Time>,
    /// Deleted events left free space in the file.
    shrink: bool,
    /// When this process started, for telling a jump of the calendar.
    started: Now,
    dropped: usize,
    /// Files of earlier processes that are still to be taken in, and not before when.
    left_behind: VecDeque<Found>,
    recover_at: Option<Time>,
    ulids: Ulids,
}

impl Worker {
    pub(super) fn new(
        settings: StoreSettings,
        report: ReportTo,
        waiting_bytes: Arc<AtomicUsize>,
        waiting_events: WaitingEvents,
    ) -> Worker {
        let clock = Clock::start();
        Worker {
            queue: Link::new(settings.queue.clone(), &schema::QUEUE, settings.queue_busy),
            history: Link::new(settings.history.clone(), &schema::HISTORY, HISTORY_BUSY.min(settings.queue_busy)),
            settings,
            report,
            waiting_bytes,
            started: clock.now(),
            clock,
            secrets: Secrets::default(),
            kept: Vec::new(),
            audits: Vec::new(),
            events: Vec::new(),
            waiting_events,
            events_due: None,
            prune: None,
            plan_at: Some(Time::ZERO),
            shrink: false,
            dropped: 0,
            left_behind: VecDeque::new(),
            recover_at: None,
            ulids: Ulids::new(),
        }
    }

    /// Works until the channel closes, then writes what is left.
    pub(super) fn run(mut self, inbox: &Receiver<Command>) {
        loop {
            let first = match self.next_deadline() {
                None => inbox.recv().map_err(|_| RecvTimeoutError::Disconnected),
                Some(at) => inbox.recv_timeout(at.saturating_since(self.clock.now().mono)),
            };
            let mut group = match first {
                Ok(command) => vec![command],
                Err(RecvTimeoutError::Timeout) => Vec::new(),
                Err(RecvTimeoutError::Disconnected) => break,
            };
            let mut captures = 0;
            while group.len() < GROUP_MAX && captures < CAPTURES_MAX {
                let Ok(command) = inbox.try_recv() else { break };
                captures += usize::from(matches!(command, Command::Capture { .. }));
                group.push(command);
            }
            self.turn(group);
            if inbox.is_empty() && self.recover_at.is_none_or(|at| at <= self.clock.now().mono) {
                self.recover_step();
            }
        }
        self.end();
    }

    fn next_deadline(&self) -> Option<Time> {
        let queue = if self.kept.is_empty() { None } else { self.queue.retry_at };
        let history = match self.audits.is_empty() && self.events.is_empty() && self.events_due.is_none() {
            true => None,
            // After a failure the events are due again, but not before the next try.
            false => self.history.retry_at.or(self.events_due),
        };
        let busy = self.prune.is_some() || self.shrink;
        let prune = busy.then(|| self.history.retry_at.unwrap_or(Time::ZERO));
        let plan = self.plan_at.filter(|_| self.history.db.is_some() && !busy);
        let plan = plan.map(|at| at.max(self.history.retry_at.unwrap_or(Time::ZERO)));
        let recovery = self.left_behind.front().map(|_| self.recover_at.unwrap_or(Time::ZERO));
        [queue, history, prune, plan, recovery].into_iter().flatten().min()
    }

    /// Whether it is time to look for old events. A history that nothing was written to yet is left alone.
    fn plan_due(&self, now: Time) -> bool {
        self.history.db.is_some() && self.prune.is_none() && self.plan_at.is_some_and(|at| at <= now)
    }

    /// The calendar as far as it can be believed: a wild jump while this process runs must not make everything old.
    fn believable(&self, now: Now) -> Wall {
        let most = now.mono.saturating_since(self.started.mono).saturating_add(JUMP_MAX);
        let most = self.started.wall.0.saturating_add(i64::try_from(most.as_millis()).unwrap_or(i64::MAX));
        Wall(now.wall.0.min(most))
    }

    fn turn(&mut self, group: Vec<Command>) {
        let mut writes = Vec::new();
        let (mut flush, mut events_wait, mut events_due) = (false, false, false);
        for command in group {
            self.waiting_bytes.fetch_sub(weight(&command), Ordering::Relaxed);
            match command {
                Command::Capture { ticket, letter, audit } => {
                    let (record, masked) = self.record(&letter);
                    let audit = self.redacted(audit, &masked);
                    self.secrets.remember(&record.id, masked);
                    writes.push(Write::Capture { ticket, record: Box::new(record), audit });
                }
                Command::Audit(audit) => {
                    let audit = self.redacted(audit, &Masked::none());
                    self.audits.push(audit);
                }
                Command::Event(event) => self.events.push(event),
                Command::EventsWait => events_wait = true,
                Command::EventsDue => events_due = true,
                Command::Executed(execution) => writes.push(Write::Execution(self.execution(&execution))),
                Command::Late(late) => writes.push(Write::Late(self.late(late))),
                Command::Flush => flush = true,
                Command::Recover => self.left_behind = recovery::find(&self.settings.queue.directories()),
            }
        }
        let now = self.clock.now().mono;
        let retry = !self.kept.is_empty() && (flush || self.queue.may_try(now));
        if !writes.is_empty() || retry {
            self.write_queue(writes);
        }
        if (events_wait || !self.events.is_empty()) && self.events_due.is_none() {
            self.events_due = Some(now.plus(EVENTS_WAIT));
        }
        let due = events_due || self.events.len() >= EVENTS_BATCH || self.events_due.is_some_and(|at| at <= now);
        if flush || ((due || !self.audits.is_empty() || self.plan_due(now)) && self.history.may_try(now)) {
            self.write_history();
        }
        // One step at a time: whatever came in meanwhile goes first.
        match self.history.may_try(now) {
            true if self.prune.is_some() => self.prune_step(),
            true if self.shrink => self.shrink_step(),
            _ => {}
        }
    }

    /// Takes in one file of what earlier processes left behind. It happens when nothing else waits.
    fn recover_step(&mut self) {
        let now = self.clock.now();
        let Some(found) = self.left_behind.pop_front() else { return };
        let held = match recovery::take(&found, &mut self.ulids, now.wall) {
            Ok(Some(held)) => held,
            // In use, or gone, or nothing.
            Ok(None) => return,
            Err(error) => {
                (self.report)(Report::Trouble(format!("cannot take over {}: {error}", found.path().display())));
                return;
            }
        };
        let insert = |conn: &Connection| -> rusqlite::Result<Vec<usize>> {
            let mut new = Vec::new();
            for (index, record) in held.records.iter().enumerate() {
                let known = held.once_per_call && rows::has_call(conn, &record.correlation_id)?;
                if !known && rows::insert(conn, record)? {
                    new.push(index);
                }
            }
            Ok(new)
        };
        // Without records there is no need for a queue.
        let written = if held.records.is_empty() { Ok(Vec::new()) } else { self.queue.write(&self.report, insert) };
        match written {
            Ok(new) => {
                self.recover_at = None;
                self.recovered(held, &new, now.wall);
            }
            Err(error) => {
                self.queue.failed(&error, now.mono, &self.report);
                self.left_behind.push_back(held.again());
                self.recover_at = Some(now.mono.plus(RECOVER_WAIT));
            }
        }
    }

    fn recovered(&mut self, held: Held, new: &[usize], now: Wall) {
        let maybe = new.iter().filter(|index| held.records[**index].executed != Executed::No).count();
        if !new.is_empty() {
            self.events_due.get_or_insert(Time::ZERO);
        }
        for record in new.iter().map(|index| &held.records[*index]) {
            self.audits.push(AuditRow {
                id: self.ulids.next(now, crate::random::u64),
                at: now,
                kind: AuditKind::Captured,
                correlation_id: record.correlation_id.clone(),
                record_id: Some(record.id.clone()),
                caller: record.caller.identity.clone(),
                tool: record.tool.clone(),
                detail: Some("{\"recovered\":true}".to_owned()),
            });
        }
        if !new.is_empty() {
            let count = new.len();
            (self.report)(Report::Trouble(match held.once_per_call {
                true => format!(
                    "{count} calls were open when an earlier mcprelay was killed, {maybe} of them may have run; they are in the queue (mcprelay replay list --class interrupted)"
                ),
                false => format!("{count} dead letters of {} are in the queue now", held.path().display()),
            }));
        }
        let path = held.path().to_owned();
        match held.finish() {
            Ok(None) => {}
            Ok(Some(text)) => (self.report)(Report::Trouble(text)),
            Err(error) => {
                (self.report)(Report::Trouble(format!(
                    "cannot remove {}, which was taken over: {error}",
                    path.display()
                )));
            }
        }
    }

    fn end(&mut self) {
        // Nobody waits behind the history any more.
        self.history.busy = self.settings.queue_busy;
        self.history.db = None;
        self.write_queue(Vec::new());
        while !self.left_behind.is_empty() && self.recover_at.is_none() {
            self.recover_step();
        }
        self.write_history();
        let lost = self.kept.len() + self.audits.len() + self.events.len() + self.dropped;
        if lost > 0 {
            (self.report)(Report::Trouble(format!(
                "{lost} audit rows, call events or executions could not be written"
            )));
        }
    }

    fn record(&self, letter: &DeadLetter) -> (Record, Masked) {
        Record::sealed_of(letter, &self.settings.redactor, &self.settings.seal, fresh_nonce)
    }

    fn redacted(&self, audit: AuditRow, masked: &Masked) -> AuditRow {
        let redact = |detail: String| {
            let text = self.settings.redactor.redact_json_with(detail.as_bytes(), masked);
            String::from_utf8_lossy(&text).into_owned()
        };
        AuditRow { detail: audit.detail.map(redact), ..audit }
    }

    fn execution(&self, execution: &Execution) -> ExecutionRow {
        let redactor = &self.settings.redactor;
        let masked = execution.arguments.as_deref().map(|text| redactor.collect_json(text)).unwrap_or_default();
        ExecutionRow {
            server: execution.server.clone(),
            tool: execution.tool.clone(),
            key: Some(stored_key(&execution.key, redactor, &masked)),
            arguments_hash: arguments_hash(execution.arguments.as_deref()),
            at: execution.at,
            source: Source::Live,
        }
    }

    fn late(&self, mut late: LateResult) -> Late {
        let masked = self.secrets.of(&late.record_id);
        if masked.is_none() {
            // Which values must be masked is not known any more. The fact counts; the text may hold any of them.
            late.body = format!("\"{MARKER}\"").into_bytes();
        }
        let json = late_json(&late, &self.settings.redactor, masked.unwrap_or(&Masked::none()));
        Late { record_id: late.record_id, at: late.at, executed: late.executed, success: late.success, json }
    }

    fn write_queue(&mut self, new: Vec<Write>) {
        let mut writes = std::mem::take(&mut self.kept);
        writes.extend(new);
        if writes.is_empty() {
            return;
        }
        match self.queue.write(&self.report, |conn| apply_all(conn, &writes)) {
            Ok(orphans) => self.stored(writes, &orphans),
            Err(error) if error.fault == Fault::Row && writes.len() > 1 => {
                // One row spoils the group; alone, the others are fine.
                for write in writes {
                    let one = [write];
                    let result = self.queue.write(&self.report, |conn| apply_all(conn, &one));
                    match result {
                        Ok(orphans) => self.stored(one.into(), &orphans),
                        Err(error) => self.not_stored(one.into(), &error),
                    }
                }
            }
            Err(error) => self.not_stored(writes, &error),
        }
    }

    fn stored(&mut self, writes: Vec<Write>, orphans: &[String]) {
        for write in writes {
            if let Write::Capture { ticket, audit, .. } = write {
                (self.report)(Report::Stored { ticket });
                self.audits.push(audit);
            }
        }
        for id in orphans {
            (self.report)(Report::Trouble(format!("a late answer found no record {id} to be attached to")));
        }
    }

    fn not_stored(&mut self, writes: Vec<Write>, error: &StoreError) {
        let mut kept = false;
        for write in writes {
            match write {
                Write::Capture { ticket, .. } => {
                    (self.report)(Report::StoreFailed { ticket, error: format!("cannot {error}") });
                }
                // A row that is refused once is refused always.
                Write::Execution(_) | Write::Late(_) if error.fault == Fault::Row => self.dropped += 1,
                write @ (Write::Execution(_) | Write::Late(_)) => {
                    kept = true;
                    self.kept.push(write);
                }
            }
        }
        self.dropped += shorten(&mut self.kept);
        let now = self.clock.now().mono;
        if kept {
            self.queue.failed(error, now, &self.report);
        }
    }

    /// Takes over the events that wait beside the channel. The extra line of a policy dry run is none: no call ended.
    fn collect_events(&mut self) {
        let waiting = std::mem::take(&mut *self.waiting_events.lock().unwrap_or_else(PoisonError::into_inner));
        self.events.extend(waiting.into_iter().filter(|event| event.enforced));
    }

    fn write_history(&mut self) {
        self.collect_events();
        let now = self.clock.now();
        if self.audits.is_empty() && self.events.is_empty() && !self.plan_due(now.mono) {
            self.events_due = None;
            return;
        }
        let (audits, events, days) = (&self.audits, &self.events, self.settings.retention_days);
        let due = self.prune.is_none() && self.plan_at.is_some_and(|at| at <= now.mono);
        let today = self.believable(now);
        let result = self.history.write(&self.report, |conn| {
            // Before the new events come in: they would hide that all others are old.
            let plan = if due { Some(history::plan_prune(conn, today, days)?) } else { None };
            history::append_audit(conn, audits)?;
            history::insert_events(conn, events)?;
            Ok(plan)
        });
        self.events_due = None;
        match result {
            Ok(plan) => {
                self.audits.clear();
                self.events.clear();
                if let Some(plan) = plan {
                    self.plan(plan, now.mono);
                }
            }
            Err(error) => {
                if error.fault == Fault::Row {
                    self.dropped += self.audits.len() + self.events.len();
                    self.audits.clear();
                    self.events.clear();
                }
                self.dropped += shorten(&mut self.audits) + shorten(&mut self.events);
                let now = self.clock.now().mono;
                self.history.failed(&error, now, &self.report);
            }
        }
    }

    fn plan(&mut self, plan: Prune, now: Time) {
        self.plan_at = Some(now.plus(PRUNE_EVERY));
        // Also what an earlier run did not come to give back.
        self.shrink = true;
        match plan {
            Prune::Nothing => {}
            Prune::Before(before) => self.prune = Some((before, 0)),
            Prune::Everything => {
                // An hour from now the events of this run would hide it.
                self.plan_at = None;
                (self.report)(Report::Trouble(format!(
                    "history: all call events are older than {} days; nothing was deleted in case the clock is wrong",
                    self.settings.retention_days
                )));
            }
        }
    }

    fn shrink_step(&mut self) {
        match self.history.write(&self.report, super::db::shrink_step) {
            Ok(more) => self.shrink = more,
            Err(error) => {
                let now = self.clock.now().mono;
                self.history.failed(&error, now, &self.report);
            }
        }
    }

    fn prune_step(&mut self) {
        let Some((before, deleted)) = self.prune else { return };
        let result = self.history.write(&self.report, |conn| {
            let step = history::prune_step(conn, before)?;
            let most = step.finished && history::fewer_events_than(conn, deleted + step.deleted)?;
            Ok((step, most))
        });
        match result {
            Ok((step, _)) if !step.finished => self.prune = Some((before, deleted + step.deleted)),
            Ok((step, most)) => {
                self.prune = None;
                if most {
                    let total = deleted + step.deleted;
                    let days = self.settings.retention_days;
                    let text = format!(
                        "history: deleted {total} call events, most of all, because they were older than {days} days"
                    );
                    (self.report)(Report::Trouble(text));
                }
            }
            Err(error) => {
                let now = self.clock.now().mono;
                self.history.failed(&error, now, &self.report);
            }
        }
    }
}

/// Drops the oldest beyond the bound and counts them.
fn shorten<T>(kept: &mut Vec<T>) -> usize {
    let over = kept.len().saturating_sub(KEPT_MAX);
    kept.drain(..over).count()
}

/// Applies the writes in their order; gives the records that late answers did not find.
fn apply_all(conn: &Connection, writes: &[Write]) -> rusqlite::Result<Vec<String>> {
    let mut orphans = Vec::new();
    for write in writes {
        match write {
            Write::Capture { record, .. } => {
                rows::insert(conn, record)?;
            }
            Write::Execution(row) => rows::record_execution(conn, row)?,
            Write::Late(late) => {
                if !rows::attach_late(conn, late)? {
                    orphans.push(late.record_id.clone());
                }
            }
        }
    }
    Ok(orphans)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::record::redact::Redactor;

    fn worker() -> Worker {
        let settings = StoreSettings {
            queue: Place::new("queue.db", None),
            history: Place::new("history.db", None),
            retention_days: 30,
            redactor: Redactor::new(&[]),
            seal: Arc::default(),
            queue_busy: Duration::ZERO,
        };
        let mut worker = Worker::new(settings, Box::new(drop), Arc::default(), WaitingEvents::default());
        worker.started = Now { mono: Time::at_millis(1_000), wall: Wall(1_000_000) };
        worker
    }

    #[test]
    fn sql_5_a_calendar_that_jumps_while_we_run_is_believed_for_a_day_only() {
        let worker = worker();
        let after = |mono: u64, wall: i64| {
            worker.believable(Now { mono: Time::at_millis(1_000 + mono), wall: Wall(1_000_000 + wall) }).0
        };
        assert_eq!(after(5_000, 5_000), 1_005_000);
        assert_eq!(after(5_000, -3_600_000), 1_000_000 - 3_600_000);
        assert_eq!(after(5_000, 86_400_000), 1_000_000 + 86_400_000);
        assert_eq!(after(5_000, 3_650 * 86_400_000), 1_000_000 + 86_400_000 + 5_000);
    }

    #[test]
    fn old_events_are_looked_for_every_hour_but_not_after_all_of_them_were_old() {
        let mut worker = worker();
        worker.plan(Prune::Nothing, Time::at_millis(500));
        assert_eq!((worker.plan_at, worker.prune), (Some(Time::at_millis(3_600_500)), None));
        worker.plan(Prune::Before(Wall(7)), Time::at_millis(500));
        assert_eq!((worker.plan_at, worker.prune), (Some(Time::at_millis(3_600_500)), Some((Wall(7), 0))));
        let mut worker = self::worker();
        worker.plan(Prune::Everything, Time::at_millis(500));
        assert_eq!((worker.plan_at, worker.prune), (None, None));
    }
}
