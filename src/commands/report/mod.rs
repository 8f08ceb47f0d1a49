//! `mcprelay report`: what the calls of a time came to, and how the queue is.

mod chart;
mod csv;
mod gather;
mod html;
mod json;
mod latency;
mod openmetrics;
mod queue;
mod text;

use std::collections::BTreeMap;
use std::io::{BufWriter, Write};

use super::file::{Audience, replace};
use super::records;
use super::replay::fail;
use super::terminal::{Layout, Progress};
use super::text::written;
use crate::cli::{Dimension, ReportArgs};
use crate::clock::{Clock, Wall};
use crate::config::Settings;
use crate::exit::ExitStatus;
use crate::glob::Glob;
use crate::store::QUEUE_BUSY;
use crate::store::error::StoreError;
use crate::store::health::QueueHealth;
use crate::store::reading::{History, Replay};
use gather::{Filter, Gather, Gathered, Member};
use queue::QueueState;

/// All that a report tells; each form of it is made from this alone.
#[derive(Clone, Debug)]
struct Report {
    since: Wall,
    until: Wall,
    /// When it was made.
    at: Wall,
    tool: Option<String>,
    caller: Option<String>,
    server: Option<String>,
    group_by: Vec<Dimension>,
    calls: Gathered,
    /// `None` if there is no queue.
    queue: Option<QueueState>,
}

/// Makes the report.
pub fn run(args: &ReportArgs, out: &mut dyn Write, err: &mut dyn Write) -> ExitStatus {
    let settings = match records::load(args.config.as_deref(), err) {
        Ok(settings) => settings,
        Err(status) => return status,
    };
    let report = read(args, &settings, &mut Progress::on(err));
    let report = match report {
        Ok(report) => report,
        Err(error) => return fail(args.json, "store", &format!("cannot {error}"), out, err),
    };
    let files = [
        (&args.html, Audience::Owner, html::page as fn(&Report) -> String),
        (&args.openmetrics, Audience::Everybody, openmetrics::text),
    ];
    for (path, audience, render) in files {
        let Some(path) = path else { continue };
        if let Err(error) = replace(path, audience, render(&report).as_bytes()) {
            return fail(args.json, "output", &format!("cannot {error}"), out, err);
        }
    }
    let mut buffered = BufWriter::new(&mut *out);
    let result = match (args.json, args.csv) {
        (true, _) => writeln!(buffered, "{}", json::document(&report)),
        (false, true) => csv::write(&report, args.header, &mut buffered),
        (false, false) if args.html.is_some() || args.openmetrics.is_some() => Ok(()),
        (false, false) => text::write(&report, args.header, Layout::of_stdout(), &mut buffered),
    };
    let result = result.and_then(|()| buffered.flush());
    drop(buffered);
    written(result, err)
}

fn read(args: &ReportArgs, settings: &Settings, progress: &mut Progress<'_>) -> Result<Report, StoreError> {
    let (since, until) = (args.since, args.until);
    let histories = records::history_place(settings).existing();
    let histories: Vec<History> =
        histories.iter().map(|path| History::open_existing(path, QUEUE_BUSY)).collect::<Result<_, _>>()?;
    let queues = records::queue_place(settings).existing();
    let queues: Vec<QueueHealth> =
        queues.iter().map(|path| QueueHealth::open_existing(path, QUEUE_BUSY)).collect::<Result<_, _>>()?;
    let filter =
        Filter { tool: args.tool.as_deref().map(Glob::new), caller: args.caller.clone(), server: args.server.clone() };

    // Charts show the time that there are calls of, not the years before the first.
    let mut charted = None;
    if args.html.is_some() {
        for history in &histories {
            let range = history.range(since, until)?;
            charted = match (charted, range) {
                (Some((a, b)), Some((first, last))) => Some((Wall::min(a, first), Wall::max(b, last))),
                (charted, range) => charted.or(range),
            };
        }
    }
    let mut gather = Gather::new(filter.clone(), &args.group_by, charted);
    let mut count = 0_u64;
    for history in &histories {
        history.events(since, until, &mut |event| {
            gather.event(event);
            count += 1;
            // Asking the clock for every event would take longer than the event.
            if count.is_multiple_of(65_536) {
                progress.tell(|| format!("{count} events read"));
            }
        })?;
        let mut replays = Vec::new();
        history.replays(since, until, &mut |replay| replays.push(replay))?;
        for replay in &replays {
            let server = server_of(replay, &queues)?;
            gather.replay(replay, server.as_deref());
        }
    }
    let at = Clock::start().now().wall;
    let queue = match queues.is_empty() {
        true => None,
        false => Some(queue::read(&queues, &filter, since, until, at)?),
    };
    Ok(Report {
        since,
        until,
        at,
        tool: args.tool.clone(),
        caller: args.caller.clone(),
        server: args.server.clone(),
        group_by: args.group_by.clone(),
        calls: gather.finish(),
        queue,
    })
}

/// What calls of a time took, by server and tool: p50, p95 and p99 in milliseconds of those that ran or may have run.
///
/// # Errors
/// If a history that exists cannot be read.
pub(crate) fn latencies(
    settings: &Settings,
    since: Wall,
    until: Wall,
) -> Result<BTreeMap<(String, String), [u64; 3]>, StoreError> {
    let mut gather = Gather::new(Filter::default(), &[Dimension::Server, Dimension::Tool], None);
    for path in records::history_place(settings).existing() {
        History::open_existing(&path, QUEUE_BUSY)?.events(since, until, &mut |event| gather.event(event))?;
    }
    let named = |group: gather::Group| match group.members.as_slice() {
        [Member::Text(server), Member::Text(tool)] => Some(((server.clone(), tool.clone()), group.sums.percentiles()?)),
        _ => None,
    };
    Ok(gather.finish().groups.into_iter().filter_map(named).collect())
}

/// The server of a replay: the audit row names the record, which knows it.
fn server_of(replay: &Replay, queues: &[QueueHealth]) -> Result<Option<String>, StoreError> {
    if let Some(id) = &replay.record_id {
        for queue in queues {
            if let Some(server) = queue.server_of(id)? {
                return Ok(Some(server));
            }
        }
    }
    Ok(None)
}

impl Report {
    /// The hours that the report is about; never 0.
    fn hours(&self) -> f64 {
        ((self.until.0 - self.since.0) as f64 / 3_600_000.0).max(1.0 / 3_600_000.0)
    }
}

/// A member as people read it.
fn member_text(member: &Member) -> String {
    match member {
        Member::Text(text) => text.clone(),
        Member::Time(at) => at.to_rfc3339().replace(":00.000Z", "Z"),
        Member::None => "-".to_owned(),
        Member::Other => "(other)".to_owned(),
    }
}

/// A length of time as people read it, in its two largest units.
pub(crate) fn age_text(millis: i64) -> String {
    let seconds = millis.max(0) / 1_000;
    let (days, hours, minutes) = (seconds / 86_400, seconds / 3_600 % 24, seconds / 60 % 60);
    match (days, hours, minutes) {
        (0, 0, 0) => format!("{seconds}s"),
        (0, 0, minutes) => format!("{minutes}m {}s", seconds % 60),
        (0, hours, minutes) => format!("{hours}h {minutes}m"),
        (days, hours, _) => format!("{days}d {hours}h"),
    }
}

#[cfg(test)]
mod tests;
