//! Standard error: diagnostics, call lines and the upstream's own lines, never in the way of a call.
//!
//! Lines wait in a queue of bounded size for a thread that formats and writes them. When nobody reads, the oldest are
//! dropped and counted; when the descriptor is closed, all are.

use std::collections::VecDeque;
use std::io::Write;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use crate::record::CallEvent;

/// Bytes of lines that may wait; beyond, the oldest are dropped.
pub const WAITING_BYTES_MAX: usize = 1 << 20;

/// A line of the upstream's standard error is passed on in pieces of at most this many bytes.
pub const STDERR_LINE_MAX: usize = 64 << 10;

/// How much of a stray line of the upstream's standard output is shown.
pub const NOISE_BYTES_MAX: usize = 1024;

/// After a first line, how long others are waited for, so that the thread wakes once for many calls.
const GATHER: Duration = Duration::from_millis(5);

/// So much is written without waiting for more.
const GATHERED_BYTES_MAX: usize = 64 << 10;

/// What a formatted call event costs in the queue, besides its texts.
const EVENT_BYTES: usize = 512;

/// Empties the terminal's line from the cursor on, which a status leaves at its beginning.
pub const CLEAR: &[u8] = b"\x1b[K";

/// One thing to write.
#[derive(Clone, Debug, PartialEq)]
pub enum Line {
    /// As it is; a line end is added if it has none.
    Raw(Vec<u8>),
    /// A message of ours, marked as such.
    Diagnostic(String),
    /// A line of the upstream's standard output that is no message.
    Noise(Vec<u8>),
    /// An ended call.
    Call(Arc<CallEvent>),
    /// How far a long command has come, for a terminal: it stands until the next line is written over it. An empty one
    /// takes it away.
    Status(String),
}

impl Line {
    fn cost(&self) -> usize {
        match self {
            Line::Raw(bytes) => bytes.len(),
            Line::Diagnostic(text) | Line::Status(text) => text.len(),
            Line::Noise(bytes) => bytes.len().min(NOISE_BYTES_MAX),
            Line::Call(event) => {
                EVENT_BYTES + event.tool.len() + event.error.as_ref().map_or(0, |error| error.message.len())
            }
        }
    }
}

#[derive(Default)]
struct State {
    lines: VecDeque<Line>,
    bytes: usize,
    dropped: u64,
    closed: bool,
    thread: Thread,
    /// Somebody waits for what is queued.
    hurry: bool,
}

/// What the thread is at.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Thread {
    /// Waits for a first line.
    #[default]
    Idle,
    /// Has a first line and waits for more.
    Gathering,
    /// Writes outside of the lock.
    Writing,
}

struct Shared {
    state: Mutex<State>,
    changed: Condvar,
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Where lines are handed over. Copies share one queue.
#[derive(Clone)]
pub struct Log {
    shared: Arc<Shared>,
}

impl Log {
    /// Starts the thread; `format` makes a call's line.
    ///
    /// # Errors
    /// If the thread cannot be started.
    pub fn start(
        mut to: impl Write + Send + 'static,
        format: impl Fn(&CallEvent) -> String + Send + 'static,
    ) -> std::io::Result<Log> {
        let shared = Arc::new(Shared { state: Mutex::new(State::default()), changed: Condvar::new() });
        let own = Arc::clone(&shared);
        super::spawn("log", move || write_lines(&own, &mut to, &format))?;
        Ok(Log { shared })
    }

    /// Hands over a line; never blocks.
    pub fn line(&self, line: Line) {
        let mut state = self.shared.lock();
        if state.closed {
            return;
        }
        state.bytes += line.cost();
        state.lines.push_back(line);
        while state.bytes > WAITING_BYTES_MAX && state.lines.len() > 1 {
            if let Some(oldest) = state.lines.pop_front() {
                state.bytes -= oldest.cost();
                state.dropped += 1;
            }
        }
        // A wake-up costs more than a line; a thread that gathers or writes comes by itself.
        let wake = match state.thread {
            Thread::Idle => true,
            Thread::Gathering => state.bytes >= GATHERED_BYTES_MAX,
            Thread::Writing => false,
        };
        if wake {
            self.shared.changed.notify_all();
        }
    }

    /// A message of ours.
    pub fn diagnose(&self, text: impl Into<String>) {
        self.line(Line::Diagnostic(text.into()));
    }

    /// Waits until everything handed over is written, but not longer than `limit`.
    pub fn flush(&self, limit: Duration) {
        let mut state = self.shared.lock();
        state.hurry = true;
        self.shared.changed.notify_all();
        let busy = |state: &mut State| !state.closed && (state.thread == Thread::Writing || !state.lines.is_empty());
        drop(self.shared.changed.wait_timeout_while(state, limit, busy));
    }
}

fn write_lines(shared: &Shared, to: &mut impl Write, format: &impl Fn(&CallEvent) -> String) {
    let mut out = Vec::new();
    let mut status_stands = false;
    loop {
        let mut state = shared.lock();
        state =
            shared.changed.wait_while(state, |state| state.lines.is_empty()).unwrap_or_else(PoisonError::into_inner);
        state.thread = Thread::Gathering;
        let gathering = |state: &mut State| !state.hurry && state.bytes < GATHERED_BYTES_MAX;
        (state, _) =
            shared.changed.wait_timeout_while(state, GATHER, gathering).unwrap_or_else(PoisonError::into_inner);
        let lines = std::mem::take(&mut state.lines);
        let dropped = std::mem::take(&mut state.dropped);
        state.bytes = 0;
        state.thread = Thread::Writing;
        drop(state);
        out.clear();
        if dropped > 0 {
            out.extend_from_slice(
                format!("mcprelay: {dropped} older lines dropped: standard error was not read\n").as_bytes(),
            );
        }
        for line in lines {
            if status_stands {
                out.extend_from_slice(CLEAR);
            }
            status_stands = matches!(&line, Line::Status(text) if !text.is_empty());
            add_line(&mut out, &line, format);
        }
        // Logging that fails is lost, and nothing else.
        let failed = to.write_all(&out).and_then(|()| to.flush()).is_err();
        let mut state = shared.lock();
        state.thread = Thread::Idle;
        state.closed = failed;
        shared.changed.notify_all();
        if failed {
            state.lines.clear();
            return;
        }
    }
}

fn add_line(out: &mut Vec<u8>, line: &Line, format: &impl Fn(&CallEvent) -> String) {
    match line {
        Line::Raw(bytes) => out.extend_from_slice(bytes),
        Line::Diagnostic(text) => {
            out.extend_from_slice(b"mcprelay: ");
            out.extend_from_slice(text.as_bytes());
        }
        Line::Noise(bytes) => {
            out.extend_from_slice(b"mcprelay: not a message, from the server's stdout: ");
            let shown = &bytes[..bytes.len().min(NOISE_BYTES_MAX)];
            // Control characters of a coloured log line would change the terminal of whoever reads this.
            out.extend_from_slice(
                String::from_utf8_lossy(shown).replace(|c: char| c.is_control(), "\u{fffd}").as_bytes(),
            );
            if bytes.len() > NOISE_BYTES_MAX {
                out.extend_from_slice(format!("… ({} bytes)", bytes.len()).as_bytes());
            }
        }
        Line::Call(event) => out.extend_from_slice(format(event).as_bytes()),
        Line::Status(text) => {
            out.extend_from_slice(text.as_bytes());
            out.push(b'\r');
            return;
        }
    }
    if out.last() != Some(&b'\n') {
        out.push(b'\n');
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crossbeam_channel::{Receiver, Sender, bounded, unbounded};

    /// Says that it has something to write, and writes nothing before it is let to.
    struct Gate {
        entered: Sender<()>,
        open: Receiver<()>,
        out: Sender<Vec<u8>>,
    }

    impl Write for Gate {
        fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
            let _ = self.entered.try_send(());
            let _ = self.open.recv();
            self.out.send(bytes.to_vec()).map_err(|_| std::io::ErrorKind::BrokenPipe)?;
            Ok(bytes.len())
        }

        fn flush(&mut self) -> std::io::Result<()> {
            Ok(())
        }
    }

    #[test]
    fn a_status_stands_until_the_next_line_is_written_over_it() {
        let (out, written) = unbounded();
        let (entered, _) = unbounded();
        let (open, gate) = bounded::<()>(0);
        drop(open);
        let log = Log::start(Gate { entered, open: gate, out }, |_| String::new()).expect("a thread");
        for status in ["1 of 2", "2 of 2"] {
            log.line(Line::Status(status.to_owned()));
        }
        log.diagnose("said");
        log.line(Line::Status(String::new()));
        log.diagnose("end");
        log.flush(Duration::from_secs(10));
        let all: Vec<u8> = written.try_iter().flatten().collect();
        let text = String::from_utf8(all).expect("text");
        assert_eq!(text, "1 of 2\r\x1b[K2 of 2\r\x1b[Kmcprelay: said\n\rmcprelay: end\n");
    }

    #[test]
    fn a_blocked_reader_costs_the_oldest_lines_and_their_number_is_told() {
        let (entered, has_entered) = unbounded();
        let (open, gate) = bounded(0);
        let (out, written) = unbounded();
        let log = Log::start(Gate { entered, open: gate, out }, |_| String::new()).expect("a thread");
        log.diagnose("first");
        // The thread has the first line in hand; from now on lines pile up behind it.
        has_entered.recv().expect("the thread writes");
        let line = vec![b'x'; 1 << 10];
        for _ in 0..3_000 {
            log.line(Line::Raw(line.clone()));
        }
        log.diagnose("last");
        drop(open);
        let all: Vec<u8> = {
            log.flush(Duration::from_secs(10));
            written.try_iter().flatten().collect()
        };
        let text = String::from_utf8(all).expect("text");
        assert!(text.contains(" older lines dropped: standard error was not read\n"), "{}", &text[..200]);
        assert!(text.ends_with("mcprelay: last\n"));
        assert!(text.len() <= WAITING_BYTES_MAX + (8 << 10), "{}", text.len());
    }

    #[test]
    fn a_closed_reader_costs_the_lines_alone() {
        let (out, written) = unbounded();
        let (entered, _has_entered) = unbounded();
        let (open, gate) = bounded::<()>(0);
        drop((open, written));
        let log = Log::start(Gate { entered, open: gate, out }, |_| String::new()).expect("a thread");
        for _ in 0..10 {
            log.diagnose("x");
        }
        log.flush(Duration::from_secs(10));
    }

    #[test]
    fn noise_is_marked_bounded_and_harmless() {
        let mut out = Vec::new();
        add_line(&mut out, &Line::Noise(b"\x1b[32mConnected\x1b[0m".to_vec()), &|_| String::new());
        let text = String::from_utf8(out).expect("text");
        assert_eq!(text, "mcprelay: not a message, from the server's stdout: \u{fffd}[32mConnected\u{fffd}[0m\n");
        let mut out = Vec::new();
        add_line(&mut out, &Line::Noise(vec![b'x'; 5_000]), &|_| String::new());
        assert!(out.len() < NOISE_BYTES_MAX + 100 && out.ends_with("… (5000 bytes)\n".as_bytes()));
    }
}
