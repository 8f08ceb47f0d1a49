//! The SQLite thread: it alone writes what the relay stores. Commands come over a channel, reports go back by a call.
//!
//! The queue (dead letters, executions) is committed in groups with full synchronisation: everything that waits goes
//! into one transaction, and only then is any of it reported as stored. The history (audit trail, call events) follows
//! behind and gates nothing. A fault of either file never stops the thread: the file is opened anew for the next try.

mod aside;
pub mod chain;
mod db;
pub mod emergency;
pub mod error;
mod files;
mod flight;
pub mod health;
pub mod history;
pub mod place;
pub mod queue;
pub mod reading;
pub mod recorder;
mod recovery;
pub mod rescue;
mod rows;
mod schema;
mod secrets;
mod worker;

#[cfg(test)]
pub(crate) mod test_dir;
#[cfg(test)]
mod tests;

use crate::record::redact::Redactor;
use crate::record::seal::{Keyring, NONCE_BYTES};
use crate::record::{AuditRow, CallEvent, DeadLetter, Execution, LateResult};
use crossbeam_channel::{Receiver, Sender};
use error::{Fault, StoreError};
use place::Place;
pub use rows::{ExecutionRow, Source};
use std::path::PathBuf;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;

/// Commands that may wait; beyond this the store is stuck, and memory is worth more than its backlog.
const WAITING_MAX: usize = 100_000;
/// Bytes of captures that may wait.
const WAITING_BYTES_MAX: usize = 256 * 1024 * 1024;

/// Call events that no transaction has taken yet.
type WaitingEvents = Arc<Mutex<Vec<Arc<CallEvent>>>>;

/// What the store must know.
#[derive(Clone, Debug)]
pub struct StoreSettings {
    /// Where the queue is.
    pub queue: Place,
    /// Where the history is.
    pub history: Place,
    /// Call events older than this many days are deleted; 0 keeps all.
    pub retention_days: u32,
    /// Masks what is stored.
    pub redactor: Redactor,
    /// Seals the originals of what was masked; empty by default.
    pub seal: Arc<Keyring>,
    /// How long a write to the queue waits for other processes ([`QUEUE_BUSY`]).
    pub queue_busy: Duration,
}

/// The usual wait for other processes that write to the queue.
pub const QUEUE_BUSY: Duration = Duration::from_millis(5_000);

/// What the store is asked to write. Everything in it is as the dispatcher saw it; the store redacts.
#[derive(Clone, Debug)]
pub enum Command {
    /// A dead letter, answered by [`Report::Stored`] or [`Report::StoreFailed`] with the ticket, and the audit row to
    /// write once it is stored.
    Capture {
        /// Comes back in the report.
        ticket: u64,
        /// The dead letter.
        letter: Arc<DeadLetter>,
        /// Written after the letter.
        audit: AuditRow,
    },
    /// An audit row of its own.
    Audit(AuditRow),
    /// A call event; batched.
    Event(Arc<CallEvent>),
    /// Call events wait beside the channel: the first of a batch sends this, so that the thread wakes once for many.
    EventsWait,
    /// So many call events wait that they are written now.
    EventsDue,
    /// A keyed call that succeeded.
    Executed(Execution),
    /// An answer that came after its call was given up.
    Late(LateResult),
    /// Write what is batched now.
    Flush,
    /// Take in what earlier processes left beside the queue, when nothing else waits.
    Recover,
}

/// What the store has to say.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Report {
    /// The dead letter is committed and survives a power loss.
    Stored {
        /// The capture's ticket.
        ticket: u64,
    },
    /// The dead letter is not stored.
    StoreFailed {
        /// The capture's ticket.
        ticket: u64,
        /// Names the file and the reason.
        error: String,
    },
    /// One line for the user. A lasting fault is reported once, and once more when it is over.
    Trouble(String),
}

/// The running store.
#[derive(Debug)]
pub struct Store {
    queue: PathBuf,
    waiting_bytes: Arc<AtomicUsize>,
    events: WaitingEvents,
    // Above the handle: the channel closes before the thread is waited for.
    commands: Sender<Command>,
    thread: JoinHandle<()>,
}

impl Store {
    /// Starts the thread. No file is touched before the first command needs it. `report` is called on that thread.
    ///
    /// # Errors
    /// If the system gives no thread.
    pub fn start(settings: StoreSettings, report: Box<dyn Fn(Report) + Send>) -> std::io::Result<Store> {
        let (commands, inbox): (Sender<Command>, Receiver<Command>) = crossbeam_channel::unbounded();
        let waiting_bytes = Arc::new(AtomicUsize::new(0));
        let queue = settings.queue.configured().to_owned();
        let events = WaitingEvents::default();
        let worker = worker::Worker::new(settings, report, Arc::clone(&waiting_bytes), Arc::clone(&events));
        let thread = crate::ports::spawn("store", move || worker.run(&inbox))?;
        Ok(Store { queue, waiting_bytes, events, commands, thread })
    }

    /// Hands a command to the thread; never blocks.
    ///
    /// # Errors
    /// If the store is hopelessly behind. A capture refused here is not stored and gets no report.
    pub fn submit(&self, command: Command) -> Result<(), StoreError> {
        let refuse = |reason: &str| Err(StoreError::new(&self.queue, "write", Fault::Other, reason));
        if self.commands.len() >= WAITING_MAX {
            return refuse("too many records wait to be written");
        }
        let command = match command {
            Command::Event(event) => {
                let mut events = self.events.lock().unwrap_or_else(PoisonError::into_inner);
                if events.len() >= WAITING_MAX {
                    return refuse("too many call events wait to be written");
                }
                events.push(event);
                match events.len() {
                    1 => Command::EventsWait,
                    worker::EVENTS_BATCH => Command::EventsDue,
                    _ => return Ok(()),
                }
            }
            other => other,
        };
        let bytes = weight(&command);
        if self.waiting_bytes.fetch_add(bytes, Ordering::Relaxed) > WAITING_BYTES_MAX {
            self.waiting_bytes.fetch_sub(bytes, Ordering::Relaxed);
            return refuse("too much waits to be written");
        }
        if self.commands.send(command).is_err() {
            return refuse("the store has ended");
        }
        Ok(())
    }

    /// Writes everything that was submitted, closes the files and ends the thread.
    pub fn finish(self) {
        drop(self.commands);
        // It has nothing to give back, and a panic in it was printed when it happened.
        let _ = self.thread.join();
    }
}

/// A nonce for a seal; `None` if the system gives no randomness.
#[must_use]
pub fn fresh_nonce() -> Option<[u8; NONCE_BYTES]> {
    use ring::rand::{SecureRandom, SystemRandom};
    let mut nonce = [0; NONCE_BYTES];
    SystemRandom::new().fill(&mut nonce).ok().map(|()| nonce)
}

/// The bytes of a command that can be large.
fn weight(command: &Command) -> usize {
    match command {
        Command::Capture { letter, .. } => {
            letter.arguments.as_ref().map_or(0, Vec::len)
                + letter.detail.as_ref().map_or(0, Vec::len)
                + letter.message.len()
        }
        Command::Late(late) => late.body.len(),
        Command::Executed(execution) => execution.arguments.as_ref().map_or(0, Vec::len),
        Command::Event(_)
        | Command::EventsWait
        | Command::EventsDue
        | Command::Audit(_)
        | Command::Flush
        | Command::Recover => 0,
    }
}
