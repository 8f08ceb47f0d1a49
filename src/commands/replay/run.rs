//! `mcprelay replay run <id>`: one stored call again, once.

use std::io::Write;

use super::call::{Done, Means, make};
use super::context::{Books, Context, Options, Stop, flush, owner};
use super::dry::{self, Tried};
use super::guards::Refusal;
use super::plan::{Plan, against, look_back, plan};
use super::pool::Pool;
use super::values::changes;
use crate::cli::ReplayRunArgs;
use crate::commands::records::{self, Found, queue_place};
use crate::commands::text::{one_line, written};
use crate::exit::ExitStatus;
use crate::ports::log::Log;
use crate::record::Status;
use crate::record::json_out::object;

pub(super) fn run(args: &ReplayRunArgs, out: &mut dyn Write, err: &mut dyn Write) -> ExitStatus {
    let changes = match changes(&args.set, &|name| std::env::var(name)) {
        Ok(changes) => changes,
        Err(error) => {
            let _ = writeln!(err, "mcprelay: {error}\nmcprelay: see mcprelay replay run --help");
            return ExitStatus::Usage;
        }
    };
    let options = Options {
        force: args.force,
        force_policy: args.force_policy,
        timeout: args.timeout,
        server: args.server.clone(),
        remote: args.remote.clone(),
        changes,
    };
    let context = match Context::load(args.config.as_deref(), options, err) {
        Ok(context) => context,
        Err(status) => return status,
    };
    let found = match records::find(&queue_place(&context.settings), &args.id) {
        Ok(found) => found,
        Err(error) => return super::fail(args.json, error.kind(), &error.to_string(), out, err),
    };
    match replay(args, &context, found, out, err) {
        Ok(status) => status,
        Err(refusal) => refused(args, &refusal, out, err),
    }
}

/// A refusal is told to people on `err`, and with `--json` on `out` as `{id, error}`.
fn refused(args: &ReplayRunArgs, refusal: &Refusal, out: &mut dyn Write, err: &mut dyn Write) -> ExitStatus {
    let id = &args.id;
    let _ = writeln!(err, "mcprelay: replay refused: {id}: {}", one_line(&refusal.message));
    if args.json {
        let document = object(|out| {
            out.text("id", id).object("error", |out| {
                out.text("kind", refusal.kind).text("message", &refusal.message);
            });
        });
        let _ = written(writeln!(out, "{document}"), err);
    }
    ExitStatus::Failure
}

fn replay(
    args: &ReplayRunArgs,
    context: &Context,
    mut found: Found,
    out: &mut dyn Write,
    err: &mut dyn Write,
) -> Result<ExitStatus, Refusal> {
    let plan = plan(context, &found.record)?;
    let seen = look_back(context, &found.queue, &found.record, &plan)?;
    let mut against = against(context, &found.record, &plan, seen.as_ref());
    let log = context.log()?;
    let stop = stop(&log)?;
    let mut pool = Pool::new(context.limits(), context.clock, log.clone(), stop.now());
    if args.dry_run {
        let tried = Tried::new(context, &found.record, &plan, against, &mut pool);
        pool.end();
        flush(&log);
        return Ok(dry::print(&tried, args.json, out, err));
    }
    let troubles = log.clone();
    let mut books = Books::open(&context.settings, &context.redactor, move |text| {
        troubles.diagnose(format!("WARNING: {text}"));
    })?;
    let server = match (against.is_empty(), plan.server.clone()) {
        (true, Ok(server)) => server,
        (_, server) => {
            against.extend(server.err());
            if against[0].kind == "policy" {
                books.denied(context, &found.record, &plan);
            }
            books.close();
            flush(&log);
            return Err(against.swap_remove(0));
        }
    };
    let owner = owner();
    let mut means = Means { context, pool: &mut pool, books: &mut books, log: &log, owner: &owner };
    let done = make(&mut means, &mut found.queue, &found.record, &plan, &server, false);
    pool.end();
    books.close();
    flush(&log);
    Ok(report(args, context, &plan, &done?, out, err))
}

/// Watches for the user's wish to stop, and says what the first signal does.
pub(super) fn stop(log: &Log) -> Result<Stop, Refusal> {
    let log = log.clone();
    Stop::watch(move || log.diagnose("stopping after the call in hand; once more to stop at once"))
}

/// Tells the user what came of it.
fn report(
    args: &ReplayRunArgs,
    context: &Context,
    plan: &Plan,
    done: &Done,
    out: &mut dyn Write,
    err: &mut dyn Write,
) -> ExitStatus {
    let id = &args.id;
    let Done { outcome, unrecorded, status, .. } = done;
    let (redactor, masked) = (&context.redactor, &plan.masked);
    if let Some(error) = unrecorded {
        let _ = writeln!(err, "mcprelay: WARNING: the call was made, but its outcome is not in the queue: {error}");
    }
    if let Some(failed) = &outcome.failure {
        let message = one_line(&redactor.redact_text(&failed.message, masked));
        let _ = writeln!(err, "mcprelay: replay failed: {id}: {message}");
    }
    if *status == Status::Parked {
        let times = context.settings.queue.max_redrives;
        let _ = writeln!(err, "mcprelay: {id} is parked: {times} replays of it failed (queue.max_redrives)");
    }
    let text = if args.json {
        object(|out| {
            out.text("id", id).text("status", status.as_str()).raw("outcome", &done.outcome_json);
            match unrecorded {
                None => out.null("error"),
                Some(error) => out.object("error", |out| {
                    out.text("kind", "not_recorded").text("message", &error.to_string());
                }),
            };
        }) + "\n"
    } else if outcome.ok() {
        let result = outcome.result.as_deref().map(|result| redactor.redact_json_with(result, masked));
        let result = one_line(&String::from_utf8_lossy(&result.unwrap_or_default()));
        format!("replay ok: {id}\nresult: {result}\n")
    } else {
        String::new()
    };
    let status = written(out.write_all(text.as_bytes()).and_then(|()| out.flush()), err);
    if outcome.ok() && unrecorded.is_none() { status } else { ExitStatus::Failure }
}
