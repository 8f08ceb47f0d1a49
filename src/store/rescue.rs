//! A thread for dead letters that the queue did not take: it is where a slow disk may be waited for.

use super::{emergency, fresh_nonce};
use crate::dispatcher::event::CallId;
use crate::record::DeadLetter;
use crate::record::redact::Redactor;
use crate::record::seal::Keyring;
use crate::record::stored::Record;
use crossbeam_channel::Sender;
use std::path::PathBuf;
use std::sync::Arc;
use std::thread::JoinHandle;

/// Dead letters that may wait; beyond it the disk hangs, and they go to standard error at once.
const WAITING_MAX: usize = 10_000;

/// A dead letter that is in no queue.
#[derive(Clone, Debug)]
pub struct Rescue {
    /// The call it is of.
    pub call: CallId,
    /// The dead letter.
    pub letter: Arc<DeadLetter>,
    /// Why it is not in the queue.
    pub error: String,
}

/// Where a dead letter went.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Rescued {
    /// It is on the disk, in this file.
    InFile(PathBuf),
    /// No file took it: this is the record, whole and redacted, and why.
    InNone {
        /// One line of JSON.
        record: String,
        /// What happened to each file.
        error: String,
    },
}

/// The thread.
#[derive(Debug)]
pub struct Rescuer {
    // Above the handle: the channel closes before the thread is waited for.
    to: Sender<Rescue>,
    redactor: Redactor,
    seal: Arc<Keyring>,
    thread: JoinHandle<()>,
}

impl Rescuer {
    /// Starts the thread. `done` is called on it for each dead letter.
    ///
    /// # Errors
    /// If the system gives no thread.
    pub fn start(
        directories: Vec<PathBuf>,
        redactor: Redactor,
        seal: Arc<Keyring>,
        done: impl Fn(Rescue, Rescued) + Send + 'static,
    ) -> std::io::Result<Rescuer> {
        let (own, own_seal) = (redactor.clone(), Arc::clone(&seal));
        let (to, inbox) = crossbeam_channel::unbounded::<Rescue>();
        let thread = crate::ports::spawn("rescue", move || {
            for rescue in inbox {
                let record = Record::sealed_of(&rescue.letter, &own, &own_seal, fresh_nonce).0.to_json();
                let rescued = match emergency::append(&directories, &record) {
                    Ok(path) => Rescued::InFile(path),
                    Err(error) => Rescued::InNone { record, error },
                };
                done(rescue, rescued);
            }
        })?;
        Ok(Rescuer { to, redactor, seal, thread })
    }

    /// A dead letter as one redacted line of JSON.
    #[must_use]
    pub fn record(&self, letter: &DeadLetter) -> String {
        Record::sealed_of(letter, &self.redactor, &self.seal, fresh_nonce).0.to_json()
    }

    /// Hands a dead letter over; gives it back if too many wait.
    ///
    /// # Errors
    /// The dead letter.
    pub fn submit(&self, rescue: Rescue) -> Result<(), Box<Rescue>> {
        if self.to.len() >= WAITING_MAX {
            return Err(Box::new(rescue));
        }
        self.to.send(rescue).map_err(|error| Box::new(error.into_inner()))
    }

    /// Writes what was handed over and ends the thread.
    pub fn finish(self) {
        drop(self.to);
        // It has nothing to give back, and a panic in it was printed when it happened.
        let _ = self.thread.join();
    }
}
