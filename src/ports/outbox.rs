//! Writes frames to a descriptor without ever blocking the caller.
//!
//! The caller writes a frame itself when that cannot block and nothing waits in front of it; everything else goes
//! through a queue to a thread. Once a frame goes to the thread, all later ones do until the thread has caught up, so
//! the order is the order of [`Outbox::send`].

use std::collections::VecDeque;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;

use crate::dispatcher::event::{AttemptId, CallId, Level, OUTBOX_FULL_BYTES, OUTBOX_HIGH_BYTES};

/// A write of this many bytes to a pipe that polls writable does not block (POSIX: PIPE_BUF is at least 512; Linux has
/// 4096, and a pipe is writable when a page is free).
const PIPE_BUF: usize = if cfg!(target_os = "linux") { 4096 } else { 512 };

/// How often a thread that waits for room looks whether it is still wanted.
const ABANDONED_CHECK: Duration = Duration::from_millis(100);

/// What an outbox reports, from its thread or from the call that found it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Report {
    /// The fill crossed a mark.
    Level(Level),
    /// The reader at the other end is gone. Of these attempts not one byte left.
    Gone {
        /// In the order they were sent.
        unsent: Vec<AttemptId>,
    },
}

/// Hears what becomes of frames, on the thread that writes them, before anything else happens there.
pub trait Watch: Send + Sync {
    /// The first byte of an attempt is about to leave.
    fn begins(&self, attempt: AttemptId);
    /// Not one byte of an attempt left after all.
    fn stayed(&self, attempt: AttemptId);
    /// Everything that was sent before this call ended has left.
    fn left(&self, call: CallId);
}

/// How a descriptor may be written by the caller.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Direct {
    /// It is in non-blocking mode, which nobody else sees: a pipe that we made.
    NonBlocking,
    /// It is inherited and may block: only after a poll, and only as much as then goes in for certain.
    Polled,
}

#[derive(Default)]
struct Item {
    bytes: Vec<u8>,
    attempt: Option<AttemptId>,
    /// Has no bytes: whose turn it is to be told that all before has left.
    ended: Option<CallId>,
    /// Bytes that have left.
    written: usize,
}

#[derive(Default)]
struct State {
    items: VecDeque<Item>,
    /// Bytes in `items` that have not left.
    waiting: usize,
    /// The thread is writing the first item, outside of the lock.
    busy: bool,
    /// Nothing more is taken; the thread ends when it has caught up.
    closed: bool,
    /// The reader is gone, or nobody waits for the rest: the thread ends at once.
    abandoned: bool,
    level: Level,
}

struct Shared {
    state: Mutex<State>,
    changed: Condvar,
    fd: Mutex<Option<Arc<OwnedFd>>>,
    watch: Option<Arc<dyn Watch>>,
}

impl Shared {
    fn begins(&self, attempt: Option<AttemptId>) {
        if let (Some(watch), Some(attempt)) = (&self.watch, attempt) {
            watch.begins(attempt);
        }
    }

    fn stayed(&self, attempt: Option<AttemptId>) {
        if let (Some(watch), Some(attempt)) = (&self.watch, attempt) {
            watch.stayed(attempt);
        }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        // A panic elsewhere leaves plain data behind, which is still right.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn fd(&self) -> Option<Arc<OwnedFd>> {
        self.fd.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }
}

/// The sending side of one descriptor.
pub struct Outbox {
    shared: Arc<Shared>,
    direct: Direct,
}

impl Outbox {
    /// An outbox for `fd` and its thread called `name`, which reports to `report`. `watch` hears of attempts and ends.
    ///
    /// # Errors
    /// If the thread cannot be started.
    pub fn start(
        name: &str,
        fd: OwnedFd,
        direct: Direct,
        watch: Option<Arc<dyn Watch>>,
        report: impl Fn(Report) + Send + 'static,
    ) -> std::io::Result<Outbox> {
        let shared = Arc::new(Shared {
            state: Mutex::new(State::default()),
            changed: Condvar::new(),
            fd: Mutex::new(Some(Arc::new(fd))),
            watch,
        });
        let own = Arc::clone(&shared);
        super::spawn(name, move || write_queued(&own, direct, &report))?;
        Ok(Outbox { shared, direct })
    }

    /// Sends one frame; its line end is added. What must be reported at once comes back.
    #[must_use]
    pub fn send(&self, mut bytes: Vec<u8>, attempt: Option<AttemptId>) -> Option<Report> {
        bytes.push(b'\n');
        let mut state = self.shared.lock();
        if state.closed || state.abandoned {
            return Some(Report::Gone { unsent: attempt.into_iter().collect() });
        }
        let mut written = 0;
        if state.items.is_empty() && !state.busy {
            let Some(fd) = self.shared.fd() else {
                return Some(Report::Gone { unsent: attempt.into_iter().collect() });
            };
            self.shared.begins(attempt);
            match write_now(fd.as_fd(), self.direct, &bytes) {
                Ok(count) if count == bytes.len() => return None,
                Ok(0) => self.shared.stayed(attempt),
                Ok(count) => written = count,
                Err(_) => {
                    self.shared.stayed(attempt);
                    state.abandoned = true;
                    self.shared.changed.notify_all();
                    return Some(Report::Gone { unsent: attempt.into_iter().collect() });
                }
            }
        }
        state.waiting += bytes.len() - written;
        state.items.push_back(Item { bytes, attempt, written, ..Item::default() });
        self.shared.changed.notify_one();
        new_level(&mut state).map(Report::Level)
    }

    /// Has [`Watch::left`] called when everything sent so far has left: now, or by the thread. Never, if the reader is
    /// gone before.
    pub fn when_left(&self, call: CallId) {
        let mut state = self.shared.lock();
        if state.abandoned {
            return;
        }
        if state.items.is_empty() && !state.busy {
            if let Some(watch) = &self.shared.watch {
                watch.left(call);
            }
        } else {
            state.items.push_back(Item { ended: Some(call), ..Item::default() });
            self.shared.changed.notify_one();
        }
    }

    /// How full it is now.
    #[must_use]
    pub fn level(&self) -> Level {
        self.shared.lock().level
    }

    /// Takes nothing more; the descriptor is closed when everything sent has left.
    pub fn close(&self) {
        self.shared.lock().closed = true;
        self.shared.changed.notify_all();
    }

    /// Gives up what waits: of these attempts not one byte left.
    pub fn abandon(&self) -> Vec<AttemptId> {
        let mut state = self.shared.lock();
        state.abandoned = true;
        let unsent = unsent(&mut state);
        self.shared.changed.notify_all();
        unsent
    }

    /// Waits until everything sent has left, or the reader is gone, or `limit` has passed; whether all has left.
    #[must_use]
    pub fn flush(&self, limit: Duration) -> bool {
        let state = self.shared.lock();
        let busy = |state: &mut State| !state.abandoned && (state.busy || !state.items.is_empty());
        let (state, _) =
            self.shared.changed.wait_timeout_while(state, limit, busy).unwrap_or_else(PoisonError::into_inner);
        !state.busy && state.items.is_empty()
    }
}

fn unsent(state: &mut State) -> Vec<AttemptId> {
    // The item that the thread has in hand is not in the queue; what the thread finds out about it, it reports itself.
    state.waiting = 0;
    state.items.drain(..).filter(|item| item.written == 0).filter_map(|item| item.attempt).collect()
}

fn new_level(state: &mut State) -> Option<Level> {
    let level = match state.waiting {
        waiting if waiting > OUTBOX_FULL_BYTES => Level::Full,
        waiting if waiting > OUTBOX_HIGH_BYTES => Level::High,
        _ => Level::Low,
    };
    (level != state.level).then(|| {
        state.level = level;
        level
    })
}

/// Writes as much as goes in without blocking.
fn write_now(fd: BorrowedFd<'_>, direct: Direct, bytes: &[u8]) -> Result<usize, Errno> {
    let result = match direct {
        Direct::NonBlocking => rustix::io::write(fd, bytes),
        Direct::Polled if bytes.len() <= PIPE_BUF && is_writable(fd) => rustix::io::write(fd, bytes),
        Direct::Polled => return Ok(0),
    };
    match result {
        Err(Errno::AGAIN | Errno::INTR) => Ok(0),
        other => other,
    }
}

fn is_writable(fd: BorrowedFd<'_>) -> bool {
    let mut fds = [PollFd::from_borrowed_fd(fd, PollFlags::OUT)];
    // An error flag is no room either; the thread's write finds out what it is.
    matches!(poll(&mut fds, Some(&Timespec::default())), Ok(1)) && fds[0].revents() == PollFlags::OUT
}

fn write_queued(shared: &Shared, direct: Direct, report: &impl Fn(Report)) {
    loop {
        let mut state = shared.lock();
        state = shared
            .changed
            .wait_while(state, |state| state.items.is_empty() && !state.closed && !state.abandoned)
            .unwrap_or_else(PoisonError::into_inner);
        if state.abandoned {
            break;
        }
        let (Some(mut item), Some(fd)) = (state.items.pop_front(), shared.fd()) else { break };
        state.busy = true;
        drop(state);
        let result = write_item(shared, fd.as_fd(), direct, &mut item, report);
        let mut state = shared.lock();
        state.busy = false;
        match result {
            Ok(()) => {
                let level = new_level(&mut state);
                shared.changed.notify_all();
                drop(state);
                if let Some(level) = level {
                    report(Report::Level(level));
                }
            }
            Err(_) => {
                let first = (item.written == 0).then_some(item.attempt).flatten();
                state.abandoned = true;
                shared.stayed(first);
                let unsent: Vec<AttemptId> = first.into_iter().chain(unsent(&mut state)).collect();
                shared.changed.notify_all();
                drop(state);
                report(Report::Gone { unsent });
                break;
            }
        }
    }
    // The last reference: the other end sees the end of the stream.
    shared.fd.lock().unwrap_or_else(PoisonError::into_inner).take();
}

fn write_item(
    shared: &Shared,
    fd: BorrowedFd<'_>,
    direct: Direct,
    item: &mut Item,
    report: &impl Fn(Report),
) -> Result<(), Errno> {
    if let (Some(watch), Some(call)) = (&shared.watch, item.ended) {
        watch.left(call);
    }
    if item.written == 0 && item.attempt.is_some() {
        wait_for_room(shared, fd)?;
        shared.begins(item.attempt);
    }
    while item.written < item.bytes.len() {
        match rustix::io::write(fd, &item.bytes[item.written..]) {
            Ok(count) => {
                item.written += count;
                let level = {
                    let mut state = shared.lock();
                    state.waiting = state.waiting.saturating_sub(count);
                    new_level(&mut state)
                };
                if let Some(level) = level {
                    report(Report::Level(level));
                }
            }
            Err(Errno::INTR) => {}
            Err(Errno::AGAIN) => wait_for_room(shared, fd)?,
            Err(error) => return Err(error),
        }
        debug_assert!(direct == Direct::Polled || direct == Direct::NonBlocking);
    }
    Ok(())
}

/// Waits until a write would do something; an error if nobody wants it any more.
fn wait_for_room(shared: &Shared, fd: BorrowedFd<'_>) -> Result<(), Errno> {
    let wait = Timespec::try_from(ABANDONED_CHECK).unwrap_or_default();
    while !shared.lock().abandoned {
        // An error flag is an answer too; the write finds out what it is.
        if let Ok(1..) = poll(&mut [PollFd::from_borrowed_fd(fd, PollFlags::OUT)], Some(&wait)) {
            return Ok(());
        }
    }
    Err(Errno::PIPE)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crossbeam_channel::{Receiver, unbounded};
    use std::io::Read;

    const LONG: Duration = Duration::from_secs(10);

    fn pipe_outbox(direct: Direct) -> (Outbox, std::fs::File, Receiver<Report>) {
        let (read, write) = rustix::pipe::pipe().expect("a pipe");
        if direct == Direct::NonBlocking {
            rustix::io::ioctl_fionbio(&write, true).expect("non-blocking");
        }
        let (tx, rx) = unbounded();
        let outbox =
            Outbox::start("test-out", write, direct, None, move |report| drop(tx.send(report))).expect("a thread");
        (outbox, std::fs::File::from(read), rx)
    }

    #[test]
    fn frames_arrive_in_order_whichever_way_they_go() {
        for direct in [Direct::NonBlocking, Direct::Polled] {
            let (outbox, mut read, _reports) = pipe_outbox(direct);
            let mut expected = Vec::new();
            // Sizes below and above a page and the pipe's buffer, so that both ways are taken.
            let frames: Vec<Vec<u8>> =
                (0..400_usize).map(|n| vec![b'a' + (n % 26) as u8; 1 + n * 37 % 9_000]).collect();
            for frame in &frames {
                expected.extend_from_slice(frame);
                expected.push(b'\n');
            }
            let reader = crate::ports::spawn("test-read", move || {
                let mut all = Vec::new();
                read.read_to_end(&mut all).expect("bytes");
                all
            })
            .expect("a thread");
            for frame in frames {
                assert!(!matches!(outbox.send(frame, None), Some(Report::Gone { .. })));
            }
            outbox.close();
            assert!(outbox.flush(LONG));
            assert_eq!(reader.join().expect("no panic"), expected);
        }
    }

    #[test]
    fn a_reader_that_does_not_read_fills_the_outbox_and_never_blocks_the_sender() {
        let (outbox, mut read, reports) = pipe_outbox(Direct::NonBlocking);
        let mut seen = Vec::new();
        for _ in 0..20 {
            seen.extend(outbox.send(vec![b'x'; 1 << 20], None));
        }
        seen.extend(reports.try_iter());
        assert_eq!(seen, [Report::Level(Level::High), Report::Level(Level::Full)]);
        let mut buffer = vec![0; 1 << 20];
        let mut left = 20 * ((1 << 20) + 1);
        while left > 0 {
            left -= read.read(&mut buffer).expect("bytes");
        }
        assert!(outbox.flush(LONG));
        let after: Vec<Report> = reports.try_iter().collect();
        assert_eq!(after, [Report::Level(Level::High), Report::Level(Level::Low)]);
    }

    #[test]
    fn pip_3_a_reader_that_is_gone_is_reported_with_what_never_left() {
        let (outbox, read, _reports) = pipe_outbox(Direct::NonBlocking);
        drop(read);
        let report = outbox.send(b"{}".to_vec(), Some(AttemptId(7)));
        assert_eq!(report, Some(Report::Gone { unsent: vec![AttemptId(7)] }));
        let report = outbox.send(b"{}".to_vec(), Some(AttemptId(8)));
        assert_eq!(report, Some(Report::Gone { unsent: vec![AttemptId(8)] }));
    }

    #[test]
    fn what_was_begun_is_not_called_unsent() {
        let (outbox, read, reports) = pipe_outbox(Direct::NonBlocking);
        // More than a pipe holds: its first bytes leave, the rest and the next frame wait.
        assert_eq!(outbox.send(vec![b'x'; 1 << 20], Some(AttemptId(1))), None);
        assert_eq!(outbox.send(b"{}".to_vec(), Some(AttemptId(2))), None);
        drop(read);
        assert_eq!(reports.recv_timeout(LONG), Ok(Report::Gone { unsent: vec![AttemptId(2)] }));
    }
}
