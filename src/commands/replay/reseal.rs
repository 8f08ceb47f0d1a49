//! `mcprelay replay reseal`: every sealed original under the current key, so that old keys can go.

use std::io::Write;

use super::context::keys;
use super::select::open_all;
use crate::cli::ReplayResealArgs;
use crate::commands::records::{self, queue_place};
use crate::commands::text::{one_line, written};
use crate::exit::ExitStatus;
use crate::record::json_out::{array, object};
use crate::record::seal::Keyring;
use crate::record::stored::Record;
use crate::store::fresh_nonce;
use crate::store::queue::{Filter, Queue, QueueError, Resealed};

/// Records looked at at once.
const PAGE: u64 = 500;

#[derive(Debug, Default)]
struct Tally {
    resealed: u64,
    current: u64,
    /// Record and reason.
    failed: Vec<(String, String)>,
}

pub(super) fn run(args: &ReplayResealArgs, out: &mut dyn Write, err: &mut dyn Write) -> ExitStatus {
    let settings = match records::load(args.config.as_deref(), err) {
        Ok(settings) => settings,
        Err(status) => return status,
    };
    let keys = match keys(&settings, err) {
        Ok(keys) => keys,
        Err(status) => return status,
    };
    if !keys.can_seal() {
        let text = "there is no current key: set queue.seal.key_env or queue.seal.key_file";
        return super::fail(args.json, "no_key", text, out, err);
    }
    let mut tally = Tally::default();
    let done = open_all(&queue_place(&settings))
        .and_then(|mut queues| queues.iter_mut().try_for_each(|queue| reseal_all(queue, &keys, &mut tally)));
    if let Err(error) = done {
        return super::fail(args.json, "store", &error.to_string(), out, err);
    }
    for (id, reason) in &tally.failed {
        let _ = writeln!(err, "mcprelay: not resealed: {id}: {}", one_line(reason));
    }
    let Tally { resealed, current, failed } = &tally;
    let text = match args.json {
        true => {
            let failed =
                array(failed.iter().map(|(id, reason)| object(|out| _ = out.text("id", id).text("message", reason))));
            object(|out| _ = out.plain("resealed", resealed).plain("current", current).raw("failed", &failed))
        }
        false => format!("resealed: {resealed} ({current} were sealed with the current key, {} failed)", failed.len()),
    };
    let status = written(writeln!(out, "{text}").and_then(|()| out.flush()), err);
    if failed.is_empty() { status } else { ExitStatus::Failure }
}

fn reseal_all(queue: &mut Queue, keys: &Keyring, tally: &mut Tally) -> Result<(), QueueError> {
    let mut after = None;
    loop {
        let page =
            Filter { sealed: true, oldest_first: true, after: after.take(), limit: Some(PAGE), ..Filter::default() };
        let records = queue.list(&page)?;
        for record in &records {
            reseal(queue, record, keys, tally)?;
        }
        match records.last() {
            Some(last) => after = Some(last.id.clone()),
            None => return Ok(()),
        }
    }
}

fn reseal(queue: &mut Queue, record: &Record, keys: &Keyring, tally: &mut Tally) -> Result<(), QueueError> {
    let Some(old) = &record.sealed else { return Ok(()) };
    if keys.is_current(old) {
        tally.current += 1;
        return Ok(());
    }
    let mut failed = |reason: String| tally.failed.push((record.id.clone(), reason));
    let original = match keys.open(&record.id, old) {
        Ok(original) => original,
        Err(error) => {
            failed(error.to_string());
            return Ok(());
        }
    };
    match fresh_nonce().and_then(|nonce| keys.seal(&record.id, &original, nonce)) {
        None => failed("the system gives no random numbers".to_owned()),
        Some(new) => match queue.reseal(&record.id, old, &new)? {
            Resealed::Done => tally.resealed += 1,
            // Somebody else resealed or purged it.
            Resealed::Gone => {}
        },
    }
    Ok(())
}
