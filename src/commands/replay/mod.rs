//! `mcprelay replay …`: looks at calls that finally failed, and makes them again.
//!
//! With `--json` every run that gets past its configuration prints exactly one JSON document on standard output, also
//! when it fails; words for people go to standard error.

mod all;
mod arguments;
mod call;
mod context;
mod dry;
mod forecast;
mod guards;
mod inspect;
mod life;
mod outcome;
mod plan;
mod pool;
mod reseal;
mod run;
mod schema;
mod select;
mod stats;
mod transfer;
mod values;

use std::io::Write;

use super::records;
use super::text::{one_line, written};
use crate::cli::{ReplayCommand, ReplayInspectArgs, ReplayListArgs};
use crate::exit::ExitStatus;
use crate::record::json_out::{array, object};
use crate::record::stored::Record;
use crate::store::queue::Filter;

/// Runs one of the commands.
pub fn run(command: &ReplayCommand, out: &mut dyn Write, err: &mut dyn Write) -> ExitStatus {
    match command {
        ReplayCommand::List(args) => list(args, out, err),
        ReplayCommand::Inspect(args) => inspect(args, out, err),
        ReplayCommand::Run(args) => run::run(args, out, err),
        ReplayCommand::RunAll(args) => all::run(args, out, err),
        ReplayCommand::Stats(args) => stats::run(args, out, err),
        ReplayCommand::Settle(args) => life::settle(args, out, err),
        ReplayCommand::Decide(args) => life::decide(args, out, err),
        ReplayCommand::Export(args) => transfer::export(args, out, err),
        ReplayCommand::Import(args) => transfer::import(args, out, err),
        ReplayCommand::Reseal(args) => reseal::run(args, out, err),
    }
}

/// Prints a failure: for people on `err` and, with `json`, as the one document on `out`.
pub(super) fn fail(json: bool, kind: &str, message: &str, out: &mut dyn Write, err: &mut dyn Write) -> ExitStatus {
    // With standard error closed there is nobody left to tell.
    let _ = writeln!(err, "mcprelay: {message}");
    if json {
        let _ = written(writeln!(out, "{}", error_json(kind, message)), err);
    }
    ExitStatus::Failure
}

/// `{"error": {"kind", "message"}}`.
fn error_json(kind: &str, message: &str) -> String {
    object(|out| {
        out.object("error", |out| {
            out.text("kind", kind).text("message", message);
        });
    })
}

fn list(args: &ReplayListArgs, out: &mut dyn Write, err: &mut dyn Write) -> ExitStatus {
    let settings = match records::load(args.config.as_deref(), err) {
        Ok(settings) => settings,
        Err(status) => return status,
    };
    let filter = Filter { limit: Some(args.limit.into()), ..select::filter(&args.selection) };
    let records = match records::list(&records::queue_place(&settings), &filter) {
        Ok(records) => records,
        Err(error) => return fail(args.json, "store", &error.to_string(), out, err),
    };
    let text = if args.json {
        array(records.iter().map(Record::to_json)) + "\n"
    } else {
        records.iter().map(list_line).collect()
    };
    written(out.write_all(text.as_bytes()).and_then(|()| out.flush()), err)
}

/// The fields of one record, joined by tabs, which no field contains.
fn list_line(record: &Record) -> String {
    let fields = [
        &record.id,
        &record.captured_at.to_rfc3339(),
        &one_line(&record.tool),
        record.class.as_str(),
        &format!("attempts={}", record.attempts),
        record.status.as_str(),
        &record.correlation_id,
    ];
    fields.join("\t") + "\n"
}

fn inspect(args: &ReplayInspectArgs, out: &mut dyn Write, err: &mut dyn Write) -> ExitStatus {
    let settings = match records::load(args.config.as_deref(), err) {
        Ok(settings) => settings,
        Err(status) => return status,
    };
    match records::find(&records::queue_place(&settings), &args.id) {
        Ok(found) => {
            let text = if args.json { found.record.to_json() + "\n" } else { inspect::render(&found.record) };
            written(out.write_all(text.as_bytes()).and_then(|()| out.flush()), err)
        }
        Err(error) => fail(args.json, error.kind(), &error.to_string(), out, err),
    }
}
