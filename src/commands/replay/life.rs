//! `mcprelay replay settle | discard | reopen | purge`: what people decide about stored calls.

use std::io::Write;

use super::context::{Books, person};
use super::guards::{Refusal, of_queue};
use super::select::{can_ask, confirmed, count, filter_or, heads, open_all};
use crate::cli::{Decision, ReplayDecideArgs, ReplaySettleArgs, Selection};
use crate::clock::{Clock, Now};
use crate::commands::records::{self, find, queue_place};
use crate::commands::text::{one_line, written};
use crate::config::Settings;
use crate::exit::ExitStatus;
use crate::record::json_out::{array, object};
use crate::record::redact::{Masked, Redactor};
use crate::record::stored::Record;
use crate::record::{AuditKind, Status};
use crate::store::queue::{Action, Filter, Note, Queue};

/// Where decisions are made and written down.
struct Desk {
    settings: Settings,
    redactor: Redactor,
    books: Books,
    clock: Clock,
}

impl Desk {
    fn open(settings: Settings) -> Result<Desk, Refusal> {
        let redactor = Redactor::new(&settings.redaction);
        // A history that cannot be written says so on standard error itself.
        let books = Books::open(&settings, &redactor, |text| {
            let _ = writeln!(std::io::stderr(), "mcprelay: WARNING: {text}");
        })?;
        Ok(Desk { settings, redactor, books, clock: Clock::start() })
    }

    fn now(&self) -> Now {
        self.clock.now()
    }

    fn note(&self, text: Option<&str>) -> Note {
        // People paste all kinds of things into a note.
        let text = text.map(|text| self.redactor.redact_text(text, &Masked::none()));
        Note { by: person(), at: self.now().wall, text }
    }

    /// Makes one decision and enters it into the audit trail.
    fn decide(&mut self, queue: &mut Queue, id: &str, action: Action, note: &Note) -> Result<Record, Refusal> {
        let record = queue.decide(id, action, note).map_err(|error| of_queue(&error))?;
        let kind = match action {
            Action::Settle { .. } => AuditKind::Settled,
            Action::Discard => AuditKind::Discarded,
            Action::Reopen { .. } => AuditKind::Reopened,
        };
        let detail = object(|out| {
            out.text("by", &note.by).text("status", record.status.as_str()).text("executed", record.executed.as_str());
            match &note.text {
                Some(text) => out.text("note", text),
                None => out.null("note"),
            };
        });
        let now = self.now();
        self.books.audit(&record, kind, detail, now);
        Ok(record)
    }

    fn purge(&mut self, queue: &mut Queue, id: &str) -> Result<(), Refusal> {
        let now = self.now();
        let record = queue.get(id).and_then(|record| queue.purge(id, now.wall).map(|()| record));
        let record = record.map_err(|error| of_queue(&error))?;
        let detail = object(|out| _ = out.text("by", &person()).text("status", record.status.as_str()));
        self.books.audit(&record, AuditKind::Purged, detail, now);
        Ok(())
    }
}

pub(super) fn settle(args: &ReplaySettleArgs, out: &mut dyn Write, err: &mut dyn Write) -> ExitStatus {
    let settings = match records::load(args.config.as_deref(), err) {
        Ok(settings) => settings,
        Err(status) => return status,
    };
    let mut found = match find(&queue_place(&settings), &args.id) {
        Ok(found) => found,
        Err(error) => return super::fail(args.json, error.kind(), &error.to_string(), out, err),
    };
    let settled = Desk::open(settings).and_then(|mut desk| {
        let note = desk.note(args.note.as_deref());
        let record = desk.decide(&mut found.queue, &args.id, Action::Settle { ran: args.executed }, &note);
        desk.books.close();
        record
    });
    match settled {
        Ok(record) => {
            let (status, executed) = (record.status.as_str(), record.executed.as_str());
            let text = match args.json {
                true => object(|out| {
                    out.text("id", &args.id).text("status", status).text("executed", executed);
                }),
                false => format!("settled: {} (executed {executed}, {status})", args.id),
            };
            written(writeln!(out, "{text}").and_then(|()| out.flush()), err)
        }
        Err(refusal) => super::fail(args.json, refusal.kind, &refusal.message, out, err),
    }
}

/// What a decision is called, and what it means unless the user names a status.
fn words(decision: Decision) -> (&'static str, &'static str, &'static [Status]) {
    match decision {
        Decision::Discard => ("discard", "discarded", &[Status::Pending, Status::FailedReplay, Status::Parked]),
        Decision::Reopen => ("reopen", "reopened", &[Status::Discarded, Status::Parked]),
        Decision::Purge => ("purge", "purged", &[Status::Replayed, Status::Discarded, Status::Settled]),
    }
}

pub(super) fn decide(args: &ReplayDecideArgs, out: &mut dyn Write, err: &mut dyn Write) -> ExitStatus {
    let settings = match records::load(args.config.as_deref(), err) {
        Ok(settings) => settings,
        Err(status) => return status,
    };
    let result = Desk::open(settings).and_then(|mut desk| {
        let outcome = match args.ids.is_empty() {
            true => of_filters(args, &mut desk, err),
            false => of_ids(args, &mut desk, err),
        };
        desk.books.close();
        outcome
    });
    let (_, done_word, _) = words(args.decision);
    match result {
        Ok(Outcome { done, refused }) => {
            let failed = !refused.is_empty();
            let text = match args.json {
                true => {
                    let refused = refused.iter().map(|(id, refusal)| {
                        object(|out| {
                            out.text("id", id).text("kind", refusal.kind).text("message", &refusal.message);
                        })
                    });
                    let refused = array(refused);
                    object(|out| _ = out.plain(done_word, done).raw("refused", &refused))
                }
                false => {
                    for (id, refusal) in &refused {
                        let _ = writeln!(err, "mcprelay: refused: {id}: {}", one_line(&refusal.message));
                    }
                    format!("{done_word}: {done}")
                }
            };
            let status = written(writeln!(out, "{text}").and_then(|()| out.flush()), err);
            if failed { ExitStatus::Failure } else { status }
        }
        Err(refusal) => super::fail(args.json, refusal.kind, &refusal.message, out, err),
    }
}

/// What came of a decision.
struct Outcome {
    done: u64,
    refused: Vec<(String, Refusal)>,
}

fn of_ids(args: &ReplayDecideArgs, desk: &mut Desk, err: &mut dyn Write) -> Result<Outcome, Refusal> {
    if args.decision == Decision::Purge {
        ask(args, &format!("delete {} stored calls for good?", args.ids.len()), err)?;
    }
    let place = queue_place(&desk.settings);
    let note = desk.note(args.note.as_deref());
    let mut outcome = Outcome { done: 0, refused: Vec::new() };
    for id in &args.ids {
        let result = match find(&place, id) {
            Ok(mut found) => one(args, desk, &mut found.queue, id, &note),
            Err(error) => Err(Refusal::new(error.kind(), error.to_string())),
        };
        match result {
            Ok(()) => outcome.done += 1,
            Err(refusal) => outcome.refused.push((id.clone(), refusal)),
        }
    }
    Ok(outcome)
}

fn one(args: &ReplayDecideArgs, desk: &mut Desk, queue: &mut Queue, id: &str, note: &Note) -> Result<(), Refusal> {
    match args.decision {
        Decision::Discard => desk.decide(queue, id, Action::Discard, note).map(drop),
        Decision::Reopen => desk.decide(queue, id, Action::Reopen { force: args.force }, note).map(drop),
        Decision::Purge => desk.purge(queue, id),
    }
}

fn of_filters(args: &ReplayDecideArgs, desk: &mut Desk, err: &mut dyn Write) -> Result<Outcome, Refusal> {
    let (word, _, usual) = words(args.decision);
    let filter = filter_or(&args.selection, usual);
    let mut queues = open_all(&queue_place(&desk.settings)).map_err(|error| of_queue(&error))?;
    let found = count(&queues, &filter).map_err(|error| of_queue(&error))?;
    let mut outcome = Outcome { done: 0, refused: Vec::new() };
    if found == 0 {
        return Ok(outcome);
    }
    let statuses = filter.statuses.iter().map(|status| status.as_str()).collect::<Vec<_>>().join(", ");
    let end = if args.decision == Decision::Purge { " for good" } else { "" };
    ask(args, &format!("{word} {found} stored calls ({statuses}){end}?"), err)?;
    if args.decision == Decision::Purge {
        return purge(args, desk, &mut queues, &filter);
    }
    let note = desk.note(args.note.as_deref());
    for (at, head) in heads(&queues, &filter).map_err(|error| of_queue(&error))? {
        match one(args, desk, &mut queues[at], &head.id, &note) {
            Ok(()) => outcome.done += 1,
            Err(refusal) => outcome.refused.push((head.id, refusal)),
        }
    }
    Ok(outcome)
}

/// Deletes in steps, so that captures of running wraps wait for one of them at most.
fn purge(args: &ReplayDecideArgs, desk: &mut Desk, queues: &mut [Queue], filter: &Filter) -> Result<Outcome, Refusal> {
    let now = desk.now();
    let mut done = 0;
    let mut failed = None;
    for queue in queues {
        loop {
            match queue.purge_step(filter, now.wall) {
                Ok(0) => break,
                Ok(deleted) => done += deleted,
                Err(error) => {
                    failed = Some(of_queue(&error));
                    break;
                }
            }
        }
        // What cannot be given back now is used again later.
        while queue.shrink_step().is_ok_and(|more| more) {}
    }
    if done > 0 {
        let detail = object(|out| {
            out.text("by", &person()).plain("records", done).raw("filter", &selection_json(&args.selection, filter));
        });
        desk.books.audit_many(AuditKind::Purged, detail, now);
    }
    match failed {
        Some(refusal) => Err(Refusal::new(refusal.kind, format!("{} ({done} were purged before)", refusal.message))),
        None => Ok(Outcome { done, refused: Vec::new() }),
    }
}

/// The filters as they were given.
fn selection_json(selection: &Selection, filter: &Filter) -> String {
    object(|out| {
        let statuses = array(filter.statuses.iter().map(|status| format!("\"{status}\"")));
        out.raw("status", &statuses);
        let mut text = |name: &str, value: Option<&str>| {
            if let Some(value) = value {
                out.text(name, value);
            }
        };
        text("tool", selection.tool.as_deref());
        text("class", selection.class.map(|class| class.as_str()));
        text("server", selection.server.as_deref());
        text("caller", selection.caller.as_deref());
        text("correlation_id", selection.correlation_id.as_deref());
        text("since", selection.since.map(|at| at.to_rfc3339()).as_deref());
        text("until", selection.until.map(|at| at.to_rfc3339()).as_deref());
    })
}

/// Asks unless `--yes` was given; without anybody to ask nothing is done.
fn ask(args: &ReplayDecideArgs, question: &str, err: &mut dyn Write) -> Result<(), Refusal> {
    if args.yes || (can_ask() && confirmed(question, err)) {
        return Ok(());
    }
    let text = match can_ask() {
        true => "nothing was done".to_owned(),
        false => format!("nothing was done: {question} --yes says so where nobody can be asked"),
    };
    Err(Refusal::new("not_confirmed", text))
}
