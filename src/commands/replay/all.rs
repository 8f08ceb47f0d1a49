//! `mcprelay replay run --all`: every call that waits, oldest first, each at most once.

use std::collections::BTreeSet;
use std::io::{IsTerminal, Write};
use std::time::Duration;

use super::call::{Done, Means, make, replayed_meanwhile};
use super::context::{Books, Context, Options, Stop, flush, owner};
use super::dry::Tried;
use super::forecast;
use super::guards::{Refusal, of_queue};
use super::plan::{Plan, against, is_unknown, look_back, plan};
use super::pool::Pool;
use super::run::stop;
use super::select::{can_ask, confirmed, count, filter, heads, open_all};
use crate::cli::ReplayRunAllArgs;
use crate::clock::Time;
use crate::commands::records::queue_place;
use crate::commands::text::{one_line, written};
use crate::exit::ExitStatus;
use crate::ports::log::{Line, Log};
use crate::record::Status;
use crate::record::json_out::{array, object};
use crate::record::stored::Record;
use crate::store::queue::{Filter, Head, Queue, QueueError};

/// On a terminal the progress line changes no more often than this.
const PROGRESS_EVERY: Duration = Duration::from_millis(250);

/// What a run has chosen, and what it has left out.
#[derive(Clone, Debug, Default)]
pub(super) struct Chosen {
    /// Each with its queue's place in the list, the oldest first.
    pub(super) heads: Vec<(usize, Head)>,
    /// How many of them may have run although their tool is not idempotent.
    pub(super) unknown: u64,
    /// How many such calls were left out, as asked for.
    pub(super) unknown_excluded: u64,
    /// How many parked calls the filters take.
    pub(super) parked: u64,
    /// How many calls were handed to a server by a run that died.
    pub(super) lost: u64,
}

impl Chosen {
    fn new(args: &ReplayRunAllArgs, context: &Context, queues: &[Queue]) -> Result<Chosen, QueueError> {
        let exclude = args.exclude_unknown || !context.settings.queue.redrive_unknown;
        let now = context.now().wall;
        let base = filter(&args.selection);
        // By force also those whose outcome is unknown, which only their status tells.
        let by_status = args.force && base.statuses.contains(&Status::Replaying);
        let free = Filter { free_at: (!by_status).then_some(now), ..base.clone() };
        let limit = args.limit.unwrap_or(u64::MAX);
        let narrowed = Filter { limit: if exclude { None } else { args.limit }, ..free };
        let mut chosen = Chosen { heads: heads(queues, &narrowed)?, ..Chosen::default() };
        let unknown = |head: &Head| is_unknown(context, &head.tool, head.executed, head.idempotent);
        if exclude {
            let before = chosen.heads.len();
            chosen.heads.retain(|(_, head)| !unknown(head));
            chosen.unknown_excluded = (before - chosen.heads.len()) as u64;
        }
        chosen.heads.truncate(usize::try_from(limit).unwrap_or(usize::MAX));
        chosen.unknown = chosen.heads.iter().filter(|(_, head)| unknown(head)).count() as u64;
        if !base.statuses.contains(&Status::Parked) {
            chosen.parked = count(queues, &Filter { statuses: vec![Status::Parked], ..base.clone() })?;
        }
        if !by_status {
            chosen.lost = count(queues, &Filter { statuses: Vec::new(), lost_at: Some(now), ..base })?;
        }
        Ok(chosen)
    }

    /// `{unknown, parked, lost}`: how many were left out and why.
    pub(super) fn left_out_json(&self) -> String {
        object(|out| {
            out.plain("unknown", self.unknown_excluded).plain("parked", self.parked).plain("lost", self.lost);
        })
    }

    /// The same for people, one line each.
    pub(super) fn left_out_text(&self) -> Vec<String> {
        let lines = [
            (self.unknown_excluded, "that may have run"),
            (self.parked, "parked, after too many failed replays (mcprelay replay list --status parked)"),
            (
                self.lost,
                "sent by a run that died, with an unknown outcome (mcprelay replay list --status replaying, then replay \
                 settle)",
            ),
        ];
        let told = lines.into_iter().filter(|(count, _)| *count > 0);
        told.map(|(count, text)| format!("left out: {count} {text}")).collect()
    }
}

pub(super) fn run(args: &ReplayRunAllArgs, out: &mut dyn Write, err: &mut dyn Write) -> ExitStatus {
    let options = Options {
        force: args.force,
        force_policy: args.force_policy,
        timeout: args.timeout,
        server: args.server.clone(),
        remote: args.remote.clone(),
        changes: Vec::new(),
    };
    let context = match Context::load(args.config.as_deref(), options, err) {
        Ok(context) => context,
        Err(status) => return status,
    };
    let opened = open_all(&queue_place(&context.settings))
        .and_then(|queues| Ok((Chosen::new(args, &context, &queues)?, queues)));
    let (chosen, mut queues) = match opened {
        Ok(opened) => opened,
        Err(error) => return super::fail(args.json, "store", &error.to_string(), out, err),
    };
    let servers: BTreeSet<&str> = chosen.heads.iter().map(|(_, head)| head.server.as_str()).collect();
    if args.server.is_some() && servers.len() > 1 {
        let names = servers.into_iter().collect::<Vec<_>>().join(", ");
        let text = format!(
            "these calls are of several servers ({names}), so one cannot stand for all; narrow them with --server"
        );
        return super::fail(args.json, "several_servers", &text, out, err);
    }
    if args.plan {
        return forecast::run(args, &context, &queues, &chosen, out, err);
    }
    if chosen.unknown > 0 && !args.yes && !args.dry_run && can_ask() {
        let (unknown, all) = (chosen.unknown, chosen.heads.len());
        let question = format!(
            "{unknown} of {all} calls may have run already, and their tools are not idempotent; make them again?"
        );
        if !confirmed(&question, err) {
            return super::fail(args.json, "not_confirmed", "nothing was replayed", out, err);
        }
    }
    match replay(args, &context, &mut queues, &chosen, out, err) {
        Ok(status) => status,
        Err(refusal) => super::fail(args.json, refusal.kind, &refusal.message, out, err),
    }
}

/// How one record fared.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Fate {
    Ok,
    Failed,
    Skipped,
}

impl Fate {
    /// A refusal that is nobody's wish is a failure.
    fn of(refusal: &Refusal) -> Fate {
        match refusal.kind {
            "unreachable" | "store" | "system" | "tool_missing" | "schema" => Fate::Failed,
            _ => Fate::Skipped,
        }
    }

    fn word(self) -> &'static str {
        match self {
            Fate::Ok => "ok",
            Fate::Failed => "failed",
            Fate::Skipped => "skipped",
        }
    }
}

/// The sums of a run, and its documents.
#[derive(Default)]
struct Tally {
    ok: u64,
    failed: u64,
    skipped: u64,
    parked: u64,
    /// JSON texts, one for each record; only with `--json`.
    records: Vec<String>,
    /// Why it ended early.
    stopped: Option<&'static str>,
}

impl Tally {
    fn count(&mut self, fate: Fate) {
        match fate {
            Fate::Ok => self.ok += 1,
            Fate::Failed => self.failed += 1,
            Fate::Skipped => self.skipped += 1,
        }
    }

    fn done(&self) -> u64 {
        self.ok + self.failed + self.skipped
    }
}

/// Everything that one record's turn needs.
struct Turn<'a, 'w> {
    args: &'a ReplayRunAllArgs,
    means: Means<'a>,
    stop: &'a Stop,
    /// When the last call was made, for `--rate`.
    last_call: Option<Time>,
    out: &'w mut dyn Write,
    err: &'w mut dyn Write,
    /// What empties the line of the progress before ours, on standard output and on standard error.
    clear: [&'static str; 2],
}

fn replay(
    args: &ReplayRunAllArgs,
    context: &Context,
    queues: &mut [Queue],
    chosen: &Chosen,
    out: &mut dyn Write,
    err: &mut dyn Write,
) -> Result<ExitStatus, Refusal> {
    let log = context.log()?;
    let stop = stop(&log)?;
    let mut pool = Pool::new(context.limits(), context.clock, log.clone(), stop.now());
    let troubles = log.clone();
    let trouble = move |text| troubles.diagnose(format!("WARNING: {text}"));
    let mut books = Books::open(&context.settings, &context.redactor, trouble)?;
    let mut tally = Tally::default();
    let mut progress = Progress::new(context, &log, chosen.heads.len());
    let owner = owner();
    let means = Means { context, pool: &mut pool, books: &mut books, log: &log, owner: &owner };
    let mut turn = Turn { args, means, stop: &stop, last_call: None, out, err, clear: clears() };
    for (at, head) in &chosen.heads {
        if stop.asked() {
            tally.stopped = Some("interrupted");
            break;
        }
        if args.max_failures.is_some_and(|most| tally.failed >= most) {
            tally.stopped = Some("max_failures");
            break;
        }
        let record = queues[*at].get(&head.id).map_err(|error| of_queue(&error));
        match record {
            Ok(record) if record.redrives != head.redrives => turn.refused(&head.id, &replayed_meanwhile(), &mut tally),
            Ok(record) if args.dry_run => turn.try_dry(&queues[*at], &record, &mut tally),
            Ok(record) => match turn.call(&mut queues[*at], &record) {
                Ok((plan, done)) => turn.made(&record, &plan, &done, &mut tally),
                // It was waited for with no call made: the next look ends the run.
                Err(refusal) if refusal.kind == "interrupted" => {}
                Err(refusal) => turn.refused(&head.id, &refusal, &mut tally),
            },
            Err(refusal) => turn.refused(&head.id, &refusal, &mut tally),
        }
        progress.tell(&tally);
    }
    if stop.asked() && tally.done() < chosen.heads.len() as u64 {
        tally.stopped = Some("interrupted");
    }
    let Turn { out, err, .. } = turn;
    progress.end();
    pool.end();
    books.close();
    flush(&log);
    Ok(summary(args, chosen, &tally, out, err))
}

fn clears() -> [&'static str; 2] {
    let terminals = (std::io::stdout().is_terminal(), std::io::stderr().is_terminal());
    let clear = |yes| if yes { "\x1b[K" } else { "" };
    // Progress is on standard error; both are the same terminal as a rule.
    [clear(terminals.0 && terminals.1), clear(terminals.1)]
}

impl Turn<'_, '_> {
    fn tell(&mut self, text: &str) {
        // Whoever reads it may have gone away; the calls are what matters.
        let _ = writeln!(self.err, "{}mcprelay: {text}", self.clear[1]);
    }

    fn tell_ok(&mut self, text: &str) {
        if !self.args.json {
            let _ = writeln!(self.out, "{}{text}", self.clear[0]).and_then(|()| self.out.flush());
        }
    }

    /// Makes one call, if nothing speaks against it.
    fn call(&mut self, queue: &mut Queue, record: &Record) -> Result<(Plan, Done), Refusal> {
        let context = self.means.context;
        let plan = plan(context, record)?;
        let seen = look_back(context, queue, record, &plan)?;
        if let Some(refusal) = against(context, record, &plan, seen.as_ref()).into_iter().next() {
            if refusal.kind == "policy" {
                self.means.books.denied(context, record, &plan);
            }
            return Err(refusal);
        }
        let server = plan.server.clone()?;
        self.keep_pace();
        if self.stop.asked() {
            return Err(Refusal::new("interrupted", "interrupted"));
        }
        let done = make(&mut self.means, queue, record, &plan, &server, true)?;
        Ok((plan, done))
    }

    /// Waits until the next call may begin.
    fn keep_pace(&mut self) {
        let Some(pause) = self.args.pause else { return };
        if let Some(last) = self.last_call {
            let next = last.plus(pause);
            let mut now = self.means.context.now().mono;
            while now < next && !self.stop.asked() {
                self.stop.pause(next.saturating_since(now));
                now = self.means.context.now().mono;
            }
        }
        self.last_call = Some(self.means.context.now().mono);
    }

    fn made(&mut self, record: &Record, plan: &Plan, done: &Done, tally: &mut Tally) {
        let id = &record.id;
        let (redactor, masked) = (&self.means.context.redactor, &plan.masked);
        let message = match (&done.outcome.failure, &done.unrecorded) {
            (Some(failed), _) => Some(redactor.redact_text(&failed.message, masked)),
            (None, Some(error)) => Some(format!("the call was made, but its outcome is not in the queue: {error}")),
            (None, None) => None,
        };
        let fate = if message.is_some() { Fate::Failed } else { Fate::Ok };
        tally.count(fate);
        tally.parked += u64::from(done.status == Status::Parked);
        match &message {
            Some(message) => {
                let parked = if done.status == Status::Parked { " (parked now)" } else { "" };
                self.tell(&format!("replay failed: {id}: {}{parked}", one_line(message)));
            }
            None => self.tell_ok(&format!("replay ok: {id}")),
        }
        if self.args.json {
            let kind = match (&done.outcome.failure, done.stopped) {
                (_, true) => "outcome_unknown",
                (Some(failed), false) => failed.class.as_str(),
                (None, false) => "not_recorded",
            };
            tally.records.push(entry(id, fate, Some(done.status), message.as_deref().map(|text| (kind, text))));
        }
    }

    fn refused(&mut self, id: &str, refusal: &Refusal, tally: &mut Tally) {
        let fate = Fate::of(refusal);
        tally.count(fate);
        self.tell(&format!("replay {}: {id}: {}", fate.word(), one_line(&refusal.message)));
        if self.args.json {
            tally.records.push(entry(id, fate, None, Some((refusal.kind, &refusal.message))));
        }
    }

    fn try_dry(&mut self, queue: &Queue, record: &Record, tally: &mut Tally) {
        let context = self.means.context;
        let tried = plan(context, record).and_then(|plan| {
            let seen = look_back(context, queue, record, &plan)?;
            let against = against(context, record, &plan, seen.as_ref());
            Ok(Tried::new(context, record, &plan, against, self.means.pool))
        });
        let tried = match tried {
            Ok(tried) => tried,
            Err(refusal) => return self.refused(&record.id, &refusal, tally),
        };
        let fate = tried.against.first().map_or(Fate::Ok, Fate::of);
        tally.count(fate);
        match tried.against.first() {
            Some(refusal) => {
                self.tell(&format!("would be refused: {}: {}", record.id, one_line(&refusal.message)));
            }
            None => self.tell_ok(&format!("would replay: {}", record.id)),
        }
        if self.args.json {
            tally.records.push(tried.to_json());
        }
    }
}

/// `{id, status, record_status, error}`.
fn entry(id: &str, fate: Fate, status: Option<Status>, error: Option<(&str, &str)>) -> String {
    object(|out| {
        out.text("id", id).text("status", fate.word());
        match status {
            Some(status) => out.text("record_status", status.as_str()),
            None => out.null("record_status"),
        };
        match error {
            Some((kind, message)) => out.object("error", |out| _ = out.text("kind", kind).text("message", message)),
            None => out.null("error"),
        };
    })
}

fn summary(
    args: &ReplayRunAllArgs,
    chosen: &Chosen,
    tally: &Tally,
    out: &mut dyn Write,
    err: &mut dyn Write,
) -> ExitStatus {
    let selected = chosen.heads.len() as u64;
    let Tally { ok, failed, skipped, .. } = *tally;
    let not_run = selected - tally.done();
    let text = if args.json {
        object(|out| {
            out.plain("all", true).plain("dry_run", args.dry_run).plain("selected", selected);
            out.plain("ok", ok).plain("failed", failed).plain("skipped", skipped).plain("not_run", not_run);
            out.plain("unknown", chosen.unknown).plain("parked", tally.parked);
            match tally.stopped {
                Some(why) => out.text("stopped", why),
                None => out.null("stopped"),
            };
            out.raw("left_out", &chosen.left_out_json()).raw("records", &array(tally.records.iter().cloned()));
        }) + "\n"
    } else {
        let why = match tally.stopped {
            Some("max_failures") => ", stopped by --max-failures",
            Some(_) => ", interrupted",
            None => "",
        };
        let not_run = if not_run > 0 { format!(", {not_run} not run") } else { String::new() };
        format!("replay --all: {selected} selected, {ok} ok, {failed} failed, {skipped} skipped{not_run}{why}\n")
    };
    if chosen.unknown > 0 && !args.dry_run {
        let _ = writeln!(err, "mcprelay: {} of the selected calls may have run before", chosen.unknown);
    }
    for line in chosen.left_out_text() {
        let _ = writeln!(err, "mcprelay: {line}");
    }
    let status = written(out.write_all(text.as_bytes()).and_then(|()| out.flush()), err);
    if failed + skipped > 0 || tally.stopped.is_some() { ExitStatus::Failure } else { status }
}

/// One line on a terminal that the next line writes over.
struct Progress<'a> {
    context: &'a Context,
    log: &'a Log,
    total: usize,
    /// `None` without a terminal.
    due: Option<Time>,
}

impl<'a> Progress<'a> {
    fn new(context: &'a Context, log: &'a Log, total: usize) -> Progress<'a> {
        let due = std::io::stderr().is_terminal().then(|| context.now().mono);
        Progress { context, log, total, due }
    }

    fn tell(&mut self, tally: &Tally) {
        let now = self.context.now().mono;
        if let Some(due) = self.due.filter(|due| *due <= now) {
            self.due = Some(due.max(now).plus(PROGRESS_EVERY));
            let Tally { ok, failed, skipped, .. } = tally;
            let (done, total) = (tally.done(), self.total);
            let text = format!("{done} of {total}: {ok} ok, {failed} failed, {skipped} skipped");
            self.log.line(Line::Status(text));
        }
    }

    fn end(&self) {
        if self.due.is_some() {
            self.log.line(Line::Status(String::new()));
        }
    }
}
