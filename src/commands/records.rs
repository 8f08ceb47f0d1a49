//! What the commands that look into the queue share: the settings, the places, the search for a record.

use std::fmt;
use std::io::Write;
use std::path::Path;

use crate::config::{self, Overrides, Settings};
use crate::exit::ExitStatus;
use crate::record::stored::Record;
use crate::store::QUEUE_BUSY;
use crate::store::place::{Place, state_dir};
use crate::store::queue::{Filter, Queue, QueueError};

/// Reads the configuration and prints its warnings.
///
/// # Errors
/// The exit status, with everything that is wrong printed to `err`.
pub(crate) fn load(config: Option<&Path>, err: &mut dyn Write) -> Result<Settings, ExitStatus> {
    let env = |name: &str| std::env::var(name).ok();
    // With standard error closed there is nobody left to tell.
    match config::load(config, Path::new("."), &Overrides::default(), &env) {
        Ok(loaded) => {
            let _ = super::validate::print_warnings(&loaded.warnings, err);
            Ok(loaded.settings)
        }
        Err(refused) => {
            let _ = super::validate::print_refused(&refused, err);
            Err(ExitStatus::Usage)
        }
    }
}

/// The places of the queue.
pub(crate) fn queue_place(settings: &Settings) -> Place {
    place(&settings.queue.path)
}

/// The places of the history.
pub(crate) fn history_place(settings: &Settings) -> Place {
    place(&settings.store.path)
}

fn place(path: &Path) -> Place {
    let state = state_dir(std::env::var_os("XDG_STATE_HOME"), std::env::var_os("HOME"));
    Place::new(path, state.as_deref())
}

/// A record with the queue it is in.
#[derive(Debug)]
pub(crate) struct Found {
    pub(crate) queue: Queue,
    pub(crate) record: Record,
}

/// Why a record was not found.
#[derive(Debug)]
pub(crate) enum FindError {
    /// No queue has it; the text says where was looked.
    NotFound(String),
    /// A queue that may have it cannot be read.
    Queue(QueueError),
}

impl fmt::Display for FindError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            FindError::NotFound(text) => f.write_str(text),
            FindError::Queue(error) => error.fmt(f),
        }
    }
}

impl FindError {
    /// The word for it in JSON.
    pub(crate) fn kind(&self) -> &'static str {
        match self {
            FindError::NotFound(_) => "not_found",
            FindError::Queue(_) => "store",
        }
    }
}

/// Looks for a record in every place of the queue.
///
/// # Errors
/// See [`FindError`].
pub(crate) fn find(place: &Place, id: &str) -> Result<Found, FindError> {
    let files = place.existing();
    let mut unreadable = None;
    for file in &files {
        let found = Queue::open_existing(file, QUEUE_BUSY).and_then(|queue| {
            let record = queue.get(id)?;
            Ok(Found { queue, record })
        });
        match found {
            Ok(found) => return Ok(found),
            Err(QueueError::NotFound(_) | QueueError::NoFile(_)) => {}
            Err(error) => unreadable = unreadable.or(Some(error)),
        }
    }
    if let Some(error) = unreadable {
        return Err(FindError::Queue(error));
    }
    let id = super::text::one_line(id);
    Err(FindError::NotFound(match files.as_slice() {
        [] => format!("record {id} not found: there is no queue at {} yet", place.configured().display()),
        files => {
            let files: Vec<String> = files.iter().map(|file| file.display().to_string()).collect();
            format!("record {id} not found in {}", files.join(" nor in "))
        }
    }))
}

/// The records of every place that the filter takes, newest first, at most `filter.limit` of them.
///
/// # Errors
/// If a queue that exists cannot be read.
pub(crate) fn list(place: &Place, filter: &Filter) -> Result<Vec<Record>, QueueError> {
    let mut records = Vec::new();
    for file in place.existing() {
        match Queue::open_existing(&file, QUEUE_BUSY).and_then(|queue| queue.list(filter)) {
            Ok(found) => records.extend(found),
            Err(QueueError::NoFile(_)) => {}
            Err(error) => return Err(error),
        }
    }
    records.sort_by(|a, b| b.id.cmp(&a.id));
    if let Some(limit) = filter.limit {
        records.truncate(usize::try_from(limit).unwrap_or(usize::MAX));
    }
    Ok(records)
}
