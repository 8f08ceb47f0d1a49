//! The flight recorder: what is open in this process, in a file that outlives it.
//!
//! Each process has one file beside the queue, `flight-<ulid>.log`, and holds its lock. Marks are plain writes without
//! any synchronisation: they survive the death of the process, not of the machine. Whoever starts next makes dead letters
//! of the calls that an unlocked file says are open (`recovery`).
//!
//! Order is what counts. A call's mark is in the kernel before its first byte leaves, and its end is marked after its
//! answer has left. Marks in between wait for each other, so that a call costs two writes.

use super::files;
use super::flight::{self, Entry};
use crate::clock::{Clock, Time, Wall};
use crate::dispatcher::event::{AttemptId, CallId};
use crate::record::DeadLetter;
use crate::record::ids::Ulids;
use crate::record::redact::Redactor;
use crate::record::stored::{KnownCommand, Record};
use std::collections::{BTreeMap, BTreeSet};
use std::fs::File;
use std::io::Write;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

/// Names of flight files.
pub(super) const PREFIX: &str = "flight-";
/// A file in use, or left by a process that died.
pub(super) const SUFFIX: &str = ".log";
/// A file of a process that could not write all its marks: whatever is open in it may have been sent.
pub(super) const UNSURE_SUFFIX: &str = ".unsure.log";
/// A file that is being made; nobody's only copy of anything.
pub(super) const NEW_SUFFIX: &str = ".new";

/// Marks that wait because the disk is full; beyond it they are dropped, and the file is written anew when it can be.
const WAITING_BYTES_MAX: usize = 4 * 1024 * 1024;

/// So many bytes are worth a write of their own; memory for more is given back.
const BUFFER_BYTES: usize = 256 * 1024;

/// After a file could not be made, calls go unrecorded for this long before it is tried again.
const RETRY_WAIT: Duration = Duration::from_secs(1);

/// How often a name that somebody else took is replaced.
const CREATE_TRIES: usize = 8;

/// What the recorder must know.
#[derive(Clone, Debug)]
pub struct RecorderSettings {
    /// Where the file may be: the first that can be written is used.
    pub directories: Vec<PathBuf>,
    /// A file of this many bytes is written anew with the open calls alone.
    pub bytes_max: u64,
    /// Masks what is written.
    pub redactor: Redactor,
    /// The clock that marks are dated by.
    pub clock: Clock,
}

type ReportTo = Box<dyn Fn(String) + Send>;

/// The recorder of this process. Any thread may use it; nothing in it waits for more than a write to a file.
pub struct Recorder {
    inner: Mutex<Inner>,
}

struct Inner {
    settings: RecorderSettings,
    report: ReportTo,
    file: Option<Live>,
    /// After a failure no other file is tried for before this moment.
    retry_at: Time,
    /// Marks that are not in the file yet; they follow directly on what is.
    waiting: Vec<u8>,
    calls: BTreeMap<CallId, Call>,
    attempts: BTreeMap<AttemptId, CallId>,
    /// Calls whose end is not marked before their dead letter is in the emergency file.
    held: BTreeSet<CallId>,
    /// The server's command line as records have it.
    command: Option<KnownCommand>,
    /// The trouble that was told last and is not over.
    trouble: Option<String>,
}

/// The file as far as it was written.
struct Live {
    file: File,
    /// The name it has when all is well.
    name: String,
    path: PathBuf,
    bytes: u64,
    /// It is written anew when it has grown to this size.
    rewrite_at: u64,
    /// Marks were dropped: nothing can be added before it is written anew.
    stale: bool,
}

/// A call that is open.
struct Call {
    /// Where its first mark is, in the file or in what waits for it, and how long it is.
    accepted: (u64, usize),
    /// Attempts that may leave.
    attempts: Vec<AttemptId>,
    /// Those that have begun to, and when.
    begun: Vec<(AttemptId, Wall)>,
    /// It ended while it was held.
    ended: bool,
}

impl Recorder {
    /// A recorder that touches nothing before the first call. `report` gets one line when it cannot write, and one when
    /// it can again.
    #[must_use]
    pub fn new(settings: RecorderSettings, report: impl Fn(String) + Send + 'static) -> Recorder {
        Recorder {
            inner: Mutex::new(Inner {
                settings,
                report: Box::new(report),
                file: None,
                retry_at: Time::ZERO,
                waiting: Vec::new(),
                calls: BTreeMap::new(),
                attempts: BTreeMap::new(),
                held: BTreeSet::new(),
                command: None,
                trouble: None,
            }),
        }
    }

    fn lock(&self) -> MutexGuard<'_, Inner> {
        // A panic elsewhere leaves plain data behind, which is still right.
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A call was accepted. `letter` is what it becomes if this process dies. The mark waits for
    /// [`Recorder::begins`] or [`Recorder::flush`].
    pub fn accepted(&self, call: CallId, letter: &DeadLetter) {
        self.lock().accepted(call, letter);
    }

    /// The next attempt of a call has this number on the wire.
    pub fn attempting(&self, call: CallId, attempt: AttemptId) {
        let inner = &mut *self.lock();
        if let Some(found) = inner.calls.get_mut(&call) {
            found.attempts.push(attempt);
            inner.attempts.insert(attempt, call);
        }
    }

    /// The first byte of an attempt is about to leave: this and everything before it is handed to the kernel now.
    pub fn begins(&self, attempt: AttemptId) {
        let inner = &mut *self.lock();
        let Some(id) = inner.attempts.get(&attempt).copied() else { return };
        let Some(call) = inner.calls.get_mut(&id) else { return };
        let at = inner.settings.clock.now().wall;
        call.begun.push((attempt, at));
        inner.mark(Entry::Begun { call: id.0, attempt: attempt.0, at });
        inner.write();
    }

    /// Not one byte of an attempt left after [`Recorder::begins`].
    pub fn stayed(&self, attempt: AttemptId) {
        let inner = &mut *self.lock();
        let Some(id) = inner.attempts.get(&attempt).copied() else { return };
        let Some(call) = inner.calls.get_mut(&id) else { return };
        call.begun.retain(|(begun, _)| *begun != attempt);
        inner.mark(Entry::Stayed { call: id.0, attempt: attempt.0 });
    }

    /// A call is over: its answer has left, it was withdrawn, or it is in the queue.
    pub fn ended(&self, call: CallId) {
        self.lock().ended(call);
    }

    /// Keeps the call with this correlation id open until [`Recorder::release`], because its dead letter is on its way to
    /// the emergency file.
    pub fn hold(&self, call: CallId) {
        let inner = &mut *self.lock();
        if inner.calls.contains_key(&call) {
            inner.held.insert(call);
        }
    }

    /// Ends what [`Recorder::hold`] began.
    pub fn release(&self, call: CallId) {
        let inner = &mut *self.lock();
        inner.held.remove(&call);
        if inner.calls.get(&call).is_some_and(|call| call.ended) {
            inner.ended(call);
        }
        inner.write();
    }

    /// Hands everything to the kernel, and writes the file anew if it has grown too long.
    pub fn flush(&self) {
        let inner = &mut *self.lock();
        inner.write();
        inner.rewrite_if_due();
    }

    /// The end of the process: the file goes if nothing is open. Calls that are, because the client never took their
    /// answers, are found in it by the next start.
    pub fn close(&self) {
        let inner = &mut *self.lock();
        inner.write();
        if let Some(live) = inner.file.take_if(|_| inner.calls.is_empty())
            && files::is_at(&live.file, &live.path)
        {
            // If it stays, the next start finds nothing in it and removes it.
            let _ = std::fs::remove_file(&live.path);
        }
    }
}

impl Inner {
    fn accepted(&mut self, call: CallId, letter: &DeadLetter) {
        if !self.has_file() {
            return;
        }
        let record = Record::of_open(letter, &self.settings.redactor, &mut self.command).to_json();
        let before = self.waiting.len();
        self.mark(Entry::Accepted { call: call.0, record: record.as_bytes() });
        drop(record);
        let Some(live) = &self.file else { return };
        let accepted = (live.bytes + before as u64, self.waiting.len() - before);
        self.calls.insert(call, Call { accepted, attempts: Vec::new(), begun: Vec::new(), ended: false });
        if self.waiting.len() >= BUFFER_BYTES {
            self.write();
        }
    }

    /// Adds a mark to what waits. While the file is stale there is no need: what is open is known here.
    fn mark(&mut self, entry: Entry<'_>) {
        if self.file.as_ref().is_some_and(|live| !live.stale) {
            flight::append(&mut self.waiting, entry);
        }
    }

    fn ended(&mut self, id: CallId) {
        if self.held.contains(&id) {
            if let Some(call) = self.calls.get_mut(&id) {
                call.ended = true;
            }
            return;
        }
        let Some(found) = self.calls.remove(&id) else { return };
        for attempt in found.attempts {
            self.attempts.remove(&attempt);
        }
        self.mark(Entry::Ended { call: id.0 });
    }

    /// Makes the file if there is none; whether there is one that takes marks.
    fn has_file(&mut self) -> bool {
        if let Some(live) = &self.file {
            return !live.stale;
        }
        let now = self.settings.clock.now().mono;
        if now < self.retry_at {
            return false;
        }
        let mut problem = "there is no directory for it".to_owned();
        for directory in self.settings.directories.clone() {
            match self.move_to(&directory) {
                Ok(()) => {
                    self.works();
                    return true;
                }
                Err(error) => problem = format!("cannot make a file in {}: {error}", directory.display()),
            }
        }
        self.retry_at = now.plus(RETRY_WAIT);
        self.fails(problem);
        false
    }

    /// Writes what waits. What could not be written stays and is tried again with the next marks.
    fn write(&mut self) {
        let Some(live) = &mut self.file else { return };
        if self.waiting.is_empty() || live.stale {
            return;
        }
        let mut written = 0;
        let result = loop {
            match live.file.write(&self.waiting[written..]) {
                Ok(0) => break Err(std::io::ErrorKind::WriteZero.into()),
                Ok(count) => written += count,
                Err(error) if error.kind() == std::io::ErrorKind::Interrupted => {}
                Err(error) => break Err(error),
            }
            if written == self.waiting.len() {
                break Ok(());
            }
        };
        live.bytes += written as u64;
        match result {
            Ok(()) => {
                self.waiting.clear();
                self.waiting.shrink_to(BUFFER_BYTES);
                if self.trouble.is_some() {
                    // The name says that marks may be missing; a new file has them all.
                    live.rewrite_at = 0;
                    self.works();
                }
            }
            Err(error) => {
                self.waiting.drain(..written);
                self.not_written(&error);
            }
        }
    }

    /// Goes on in another directory, or says in the file's name that marks are missing: without that, a call whose
    /// bytes leave now would be taken for one that certainly was not sent.
    fn not_written(&mut self, error: &std::io::Error) {
        let Some(live) = &self.file else { return };
        let path = live.path.clone();
        let now = self.settings.clock.now().mono;
        if now >= self.retry_at {
            self.retry_at = now.plus(RETRY_WAIT);
            for directory in self.settings.directories.clone() {
                if directory != files::parent_of(&path) && self.move_to(&directory).is_ok() {
                    let text = format!("cannot write {}: {error}; goes on in {}", path.display(), directory.display());
                    (self.report)(format!("flight recorder: {text}"));
                    return;
                }
            }
        }
        let Some(live) = &mut self.file else { return };
        let unsure = path.with_file_name(format!("{}{UNSURE_SUFFIX}", live.name));
        if live.path != unsure && std::fs::rename(&live.path, &unsure).is_ok() {
            live.path = unsure;
        }
        if self.waiting.len() > WAITING_BYTES_MAX {
            self.waiting = Vec::new();
            live.stale = true;
            let bytes = live.bytes;
            self.calls.retain(|_, call| call.accepted.0 + call.accepted.1 as u64 <= bytes);
            let calls = &self.calls;
            self.attempts.retain(|_, call| calls.contains_key(call));
        }
        let path = path.with_file_name(format!("{}{SUFFIX}", live.name));
        self.fails(format!("cannot write {}: {error}", path.display()));
    }

    fn rewrite_if_due(&mut self) {
        let Some(live) = &self.file else { return };
        let now = self.settings.clock.now().mono;
        let due = match live.stale {
            true => now >= self.retry_at,
            false => live.bytes >= live.rewrite_at && self.waiting.is_empty(),
        };
        if !due {
            return;
        }
        let directory = files::parent_of(&live.path).to_owned();
        if let Err(error) = self.move_to(&directory) {
            self.retry_at = now.plus(RETRY_WAIT);
            let Some(live) = &mut self.file else { return };
            // Not before it has grown as much again.
            live.rewrite_at = live.bytes + self.settings.bytes_max;
            let text = format!("cannot write {} anew: {error}", live.path.display());
            self.fails(text);
        } else {
            self.works();
        }
    }

    /// Goes on with a new file in this directory, with the marks of the open calls. It is locked before it gets its
    /// name, and the old one is ours until then, so nobody ever finds an open call in an unlocked file.
    fn move_to(&mut self, directory: &Path) -> std::io::Result<()> {
        files::make_directory(directory)?;
        let at = self.settings.clock.now().wall;
        let (calls, waiting) = (&self.calls, &self.waiting);
        let mut old = self.file.as_mut();
        let mut moved = BTreeMap::new();
        let (file, new, bytes) = create(directory, at, &mut |file| {
            moved.clear();
            let mut written = 0;
            let mut out = Vec::new();
            flight::append(&mut out, Entry::Begin { version: flight::VERSION, pid: std::process::id(), at });
            for (id, call) in calls {
                let Some(old) = old.as_deref_mut() else { continue };
                moved.insert(*id, written + out.len() as u64);
                old.copy(call.accepted, waiting, &mut out)?;
                for (attempt, at) in &call.begun {
                    flight::append(&mut out, Entry::Begun { call: id.0, attempt: attempt.0, at: *at });
                }
                if out.len() >= BUFFER_BYTES {
                    file.write_all(&out)?;
                    written += out.len() as u64;
                    out.clear();
                }
            }
            file.write_all(&out)?;
            Ok(written + out.len() as u64)
        })?;
        let name = match &self.file {
            Some(live) => live.name.clone(),
            None => new.file_stem().map(|stem| stem.to_string_lossy().into_owned()).unwrap_or_default(),
        };
        let path = directory.join(format!("{name}{SUFFIX}"));
        if let Err(error) = std::fs::rename(&new, &path) {
            let _ = std::fs::remove_file(&new);
            return Err(error);
        }
        let rewrite_at = self.settings.bytes_max.max(2 * bytes);
        let old = self.file.replace(Live { file, name, path: path.clone(), bytes, rewrite_at, stale: false });
        if let Some(old) = old.filter(|old| old.path != path && files::is_at(&old.file, &old.path)) {
            // If it stays, the calls in it that end from now on are found open by the next start.
            let _ = std::fs::remove_file(&old.path);
        }
        self.waiting.clear();
        for (id, at) in moved {
            if let Some(call) = self.calls.get_mut(&id) {
                call.accepted.0 = at;
            }
        }
        Ok(())
    }

    fn fails(&mut self, text: String) {
        if self.trouble.as_ref() != Some(&text) {
            (self.report)(format!(
                "flight recorder: {text}; calls go on, but those that are open when mcprelay is killed may leave no record"
            ));
            self.trouble = Some(text);
        }
    }

    fn works(&mut self) {
        if self.trouble.take().is_some() {
            (self.report)("flight recorder: works again".to_owned());
        }
    }
}

impl Live {
    /// Copies a mark that is in the file, or in what waits behind it, or begins here and ends there.
    fn copy(&mut self, (at, length): (u64, usize), waiting: &[u8], out: &mut Vec<u8>) -> std::io::Result<()> {
        let in_file = usize::try_from(self.bytes.saturating_sub(at)).unwrap_or(usize::MAX).min(length);
        let start = out.len();
        out.resize(start + in_file, 0);
        self.file.read_exact_at(&mut out[start..], at)?;
        if in_file < length {
            let from = usize::try_from((at + in_file as u64).saturating_sub(self.bytes)).unwrap_or(usize::MAX);
            let rest = waiting.get(from..from.saturating_add(length - in_file));
            out.extend_from_slice(rest.ok_or(std::io::ErrorKind::UnexpectedEof)?);
        }
        Ok(())
    }
}

/// Makes a private, locked file under a name that recovery takes for unfinished, and fills it. Recovery may have removed
/// it before it was locked; then another is made.
fn create(
    directory: &Path,
    now: Wall,
    fill: &mut dyn FnMut(&mut File) -> std::io::Result<u64>,
) -> std::io::Result<(File, PathBuf, u64)> {
    let mut ulids = Ulids::new();
    for _ in 0..CREATE_TRIES {
        let name = ulids.next(now, crate::random::u64);
        let path = directory.join(format!("{PREFIX}{name}{NEW_SUFFIX}"));
        let mut file = files::create_private(&path)?;
        if !files::try_lock(&file)? || !files::is_at(&file, &path) {
            continue;
        }
        match fill(&mut file) {
            Ok(bytes) => return Ok((file, path, bytes)),
            Err(error) => {
                let _ = std::fs::remove_file(&path);
                return Err(error);
            }
        }
    }
    Err(std::io::Error::other("others remove the file again and again"))
}

#[cfg(test)]
mod tests;
