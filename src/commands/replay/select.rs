//! From filters on the command line to records of every place of the queue.

use std::io::{IsTerminal, Write};

use crate::cli::Selection;
use crate::record::Status;
use crate::store::QUEUE_BUSY;
use crate::store::place::Place;
use crate::store::queue::{Filter, Head, Queue, QueueError};

/// The filter for a selection.
pub(super) fn filter(selection: &Selection) -> Filter {
    Filter {
        statuses: selection.statuses.clone(),
        tool: selection.tool.clone(),
        class: selection.class,
        server: selection.server.clone(),
        caller: selection.caller.clone(),
        correlation_id: selection.correlation_id.clone(),
        since: selection.since,
        until: selection.until,
        ..Filter::default()
    }
}

/// The filter for a selection that means these statuses unless it names others.
pub(super) fn filter_or(selection: &Selection, usual: &[Status]) -> Filter {
    let mut filter = filter(selection);
    if filter.statuses.is_empty() {
        filter.statuses = usual.to_vec();
    }
    filter
}

/// Every queue that exists.
///
/// # Errors
/// If one cannot be opened.
pub(super) fn open_all(place: &Place) -> Result<Vec<Queue>, QueueError> {
    let mut queues = Vec::new();
    for file in place.existing() {
        match Queue::open_existing(&file, QUEUE_BUSY) {
            Ok(queue) => queues.push(queue),
            Err(QueueError::NoFile(_)) => {}
            Err(error) => return Err(error),
        }
    }
    Ok(queues)
}

/// The heads of the records that the filter takes, each with its queue's place in the list, the oldest first.
///
/// # Errors
/// If a queue cannot be read.
pub(super) fn heads(queues: &[Queue], filter: &Filter) -> Result<Vec<(usize, Head)>, QueueError> {
    let filter = Filter { oldest_first: true, ..filter.clone() };
    let mut heads = Vec::new();
    for (at, queue) in queues.iter().enumerate() {
        heads.extend(queue.heads(&filter)?.into_iter().map(|head| (at, head)));
    }
    if queues.len() > 1 {
        heads.sort_by(|a, b| a.1.id.cmp(&b.1.id));
    }
    Ok(heads)
}

/// How many records of all queues the filter takes.
///
/// # Errors
/// If a queue cannot be read.
pub(super) fn count(queues: &[Queue], filter: &Filter) -> Result<u64, QueueError> {
    queues.iter().map(|queue| queue.count(filter)).sum()
}

/// Whether there is somebody to ask.
pub(super) fn can_ask() -> bool {
    std::io::stdin().is_terminal() && std::io::stderr().is_terminal()
}

/// Asks on `err` and reads the answer from standard input; anything but yes is no.
pub(super) fn confirmed(question: &str, err: &mut dyn Write) -> bool {
    let mut answer = String::new();
    let asked = write!(err, "mcprelay: {question} [y/N] ").and_then(|()| err.flush());
    asked.is_ok()
        && std::io::stdin().read_line(&mut answer).is_ok()
        && matches!(answer.trim().to_ascii_lowercase().as_str(), "y" | "yes")
}
