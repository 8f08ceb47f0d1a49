//! What earlier processes left behind: flight files of those that died, and the emergency file. One file at a time.
//!
//! A file is read under its lock, taken into the queue, and only then removed. Two processes that find the same file
//! cannot both hold its lock; and if one dies between the two steps, the next finds the records in the queue already.

use super::flight::{self, Fault, Flight};
use super::recorder::{NEW_SUFFIX, PREFIX, SUFFIX, UNSURE_SUFFIX};
use super::{emergency, files};
use crate::clock::Wall;
use crate::record::ids::Ulids;
use crate::record::json_out::{array, object};
use crate::record::stored::Record;
use crate::record::{Executed, FailureClass};
use std::collections::VecDeque;
use std::fs::File;
use std::io::Read;
use std::path::{Path, PathBuf};

/// What kind of file it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Kind {
    /// Before flight files: what it holds says more about a call than they do.
    Emergency,
    /// An emergency file that another process began to take in.
    Taken,
    Flight,
    /// A flight file that was never finished.
    Unfinished,
}

/// A file that was found, or an error in looking.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Found {
    kind: Kind,
    path: PathBuf,
}

impl Found {
    /// The file.
    pub(super) fn path(&self) -> &Path {
        &self.path
    }
}

/// Everything that may have to be taken in, in its order.
pub(super) fn find(directories: &[PathBuf]) -> VecDeque<Found> {
    let mut found: Vec<Found> = Vec::new();
    for directory in directories {
        // A directory that is not there holds nothing.
        let Ok(entries) = std::fs::read_dir(directory) else { continue };
        for entry in entries.flatten() {
            let name = entry.file_name();
            let Some(name) = name.to_str() else { continue };
            let kind = match name {
                emergency::NAME => Kind::Emergency,
                _ if name.starts_with(emergency::TAKEN_PREFIX) && name.ends_with(emergency::TAKEN_SUFFIX) => {
                    Kind::Taken
                }
                _ if name.starts_with(PREFIX) && name.ends_with(SUFFIX) => Kind::Flight,
                _ if name.starts_with(PREFIX) && name.ends_with(NEW_SUFFIX) => Kind::Unfinished,
                _ => continue,
            };
            found.push(Found { kind, path: entry.path() });
        }
    }
    found.sort_by(|a, b| (a.kind, &a.path).cmp(&(b.kind, &b.path)));
    found.into()
}

/// A file under its lock, with what must be in the queue before it may go.
#[derive(Debug)]
pub(super) struct Held {
    /// Holds the lock.
    _file: File,
    path: PathBuf,
    /// The records; those of a flight file have no id yet.
    pub(super) records: Vec<Record>,
    /// A record is also one that is in the queue already if its call is.
    pub(super) once_per_call: bool,
    /// Why it is kept under another name, and what is added to the name.
    keep: Option<(&'static str, String)>,
}

/// Opens a file and reads it. `None` if it is in use, or gone, or needs nothing.
///
/// # Errors
/// If it cannot be read or moved.
pub(super) fn take(found: &Found, ulids: &mut Ulids, now: Wall) -> std::io::Result<Option<Held>> {
    let file = match File::open(&found.path) {
        Ok(file) => file,
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(error),
    };
    if !files::try_lock(&file)? || !files::is_at(&file, &found.path) {
        return Ok(None);
    }
    match found.kind {
        Kind::Unfinished => {
            std::fs::remove_file(&found.path)?;
            Ok(None)
        }
        Kind::Flight => take_flight(file, &found.path, ulids).map(Some),
        Kind::Emergency => {
            let name = ulids.next(now, crate::random::u64);
            let directory = files::parent_of(&found.path);
            let path = directory.join(format!("{}{name}{}", emergency::TAKEN_PREFIX, emergency::TAKEN_SUFFIX));
            std::fs::rename(&found.path, &path)?;
            take_lines(file, path).map(Some)
        }
        Kind::Taken => take_lines(file, found.path.clone()).map(Some),
    }
}

fn take_flight(mut file: File, path: &Path, ulids: &mut Ulids) -> std::io::Result<Held> {
    let mut bytes = Vec::new();
    file.read_to_end(&mut bytes)?;
    let unsure = path.to_str().is_some_and(|path| path.ends_with(UNSURE_SUFFIX));
    let Flight { open, pid, fault } = flight::read(&bytes);
    let mut keep = fault.map(|fault| match fault {
        Fault::Damaged { at } => {
            (".corrupt", format!("it is damaged at byte {at}; the calls that it still shows were taken over"))
        }
        Fault::Newer { version } => (
            ".newer",
            format!("a newer mcprelay wrote it (form {version}); start that one with the file under its old name"),
        ),
    });
    // A damaged file may have lost the mark that a call was sent.
    let unsure = unsure || keep.is_some();
    let mut records = Vec::new();
    for call in open.into_values() {
        match Record::from_json(&call.record) {
            Ok(mut record) => {
                record.complete();
                records.push(interrupted(record, &call, unsure, pid, ulids));
            }
            Err(problem) => keep = Some((".corrupt", format!("a record in it cannot be read: {problem}"))),
        }
    }
    Ok(Held { _file: file, path: path.to_owned(), records, once_per_call: true, keep })
}

/// The dead letter of a call that was open when its process died.
fn interrupted(
    mut record: Record,
    call: &flight::OpenCall,
    unsure: bool,
    pid: Option<u32>,
    ulids: &mut Ulids,
) -> Record {
    let sent = unsure || !call.begun.is_empty();
    let process = pid.map_or_else(String::new, |pid| format!(" (process {pid})"));
    let tool = &record.tool;
    record.message = match sent {
        true => format!("tool {tool:?}: mcprelay{process} was killed while the call was open; the call may have run"),
        false => format!("tool {tool:?}: mcprelay{process} was killed before the call was sent"),
    };
    record.executed = if sent { Executed::Maybe } else { Executed::No };
    record.class = FailureClass::Interrupted;
    record.id = ulids.next(record.captured_at, crate::random::u64);
    record.attempts = u32::try_from(call.begun.len()).unwrap_or(u32::MAX);
    record.tries = array(call.begun.iter().zip(1_u64..).map(|((_, at), number)| {
        object(|out| {
            out.plain("number", number).text("started_at", &at.to_rfc3339());
            // Nobody was there to see it end.
            out.null("ended_at").text("class", record.class.as_str()).text("executed", record.executed.as_str());
            out.null("code").text("message", "mcprelay was killed before it ended");
        })
    }));
    record
}

fn take_lines(mut file: File, path: PathBuf) -> std::io::Result<Held> {
    let mut bytes = Vec::new();
    file.read_to_end(&mut bytes)?;
    let (mut records, mut bad, mut first) = (Vec::new(), 0, None);
    let lines = bytes.split(|byte| *byte == b'\n').zip(1..).filter(|(line, _)| !line.trim_ascii().is_empty());
    for (line, number) in lines {
        match Record::from_json(line) {
            Ok(record) => records.push(record),
            Err(problem) => {
                bad += 1;
                first.get_or_insert_with(|| format!("line {number}: {problem}"));
            }
        }
    }
    let keep = first.map(|first| {
        (
            ".damaged",
            format!("{bad} of its {} lines cannot be read ({first}); the others were taken over", bad + records.len()),
        )
    });
    Ok(Held { _file: file, path, records, once_per_call: false, keep })
}

impl Held {
    /// The file.
    pub(super) fn path(&self) -> &Path {
        &self.path
    }

    /// The same file, for another time.
    pub(super) fn again(self) -> Found {
        Found { kind: if self.once_per_call { Kind::Flight } else { Kind::Taken }, path: self.path }
    }

    /// Its records are in the queue: it goes, or is put aside under a name that says why. Gives what to say about that.
    ///
    /// # Errors
    /// If it cannot be removed or renamed.
    pub(super) fn finish(self) -> std::io::Result<Option<String>> {
        let Some((suffix, reason)) = &self.keep else {
            return std::fs::remove_file(&self.path).map(|()| None);
        };
        let aside = files::free_name(&self.path, suffix);
        std::fs::rename(&self.path, &aside)?;
        Ok(Some(format!("{} is kept as {}: {reason}", self.path.display(), aside.display())))
    }
}

#[cfg(test)]
mod tests;
