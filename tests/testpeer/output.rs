//! The scriptable server's stdout, with all the ways in which it may be odd.

use std::fs::File;
use std::io::Write;
use std::sync::{Mutex, MutexGuard, PoisonError};

use crate::settings::Settings;

const NOISE_BEFORE: &[&str] = &["Server started on stdio", "\u{1b}[32m[db] Connected\u{1b}[0m", "{}", "[]", "42"];
const NOISE_AFTER: &[&str] = &["(node:1) Warning: x", "\"ready\"", "null", r#"{"level":"info","msg":"x"}"#, "", "  \t"];

/// Where frames go.
pub(crate) struct Output {
    state: Mutex<State>,
    crlf: bool,
    chunk: Option<usize>,
    noise: bool,
    no_final_newline: bool,
    stderr_flood: usize,
    close_after: Option<usize>,
    exit_after: Option<usize>,
}

struct State {
    /// `None` once stdout was closed.
    stdout: Option<File>,
    answers: usize,
}

impl Output {
    pub(crate) fn new(settings: &Settings) -> std::io::Result<Output> {
        Ok(Output {
            state: Mutex::new(State { stdout: Some(crate::raw_stdout()?), answers: 0 }),
            crlf: settings.crlf,
            chunk: settings.chunk,
            noise: settings.noise,
            no_final_newline: settings.no_final_newline,
            stderr_flood: settings.stderr_flood,
            close_after: settings.close_stdout_after,
            exit_after: settings.exit_after,
        })
    }

    /// Writes one frame that answers nothing.
    pub(crate) fn frame(&self, frame: &[u8]) {
        self.put(&mut self.lock(), frame, true);
    }

    /// Writes one answer, with what the options hang on answers.
    pub(crate) fn answer(&self, frame: &[u8]) {
        if self.stderr_flood > 0 {
            flood(self.stderr_flood);
        }
        let mut state = self.lock();
        state.answers += 1;
        let last = self.exit_after == Some(state.answers);
        self.put(&mut state, frame, !(last && self.no_final_newline));
        if last {
            std::process::exit(0);
        }
        if self.close_after == Some(state.answers) {
            close(&mut state);
        }
    }

    /// Writes text to stdout as it is, no newline added.
    pub(crate) fn raw(&self, text: &[u8]) {
        write(&mut self.lock(), text, self.chunk);
    }

    /// Writes one frame and then `bytes` without a line end before the next one.
    pub(crate) fn flood(&self, frame: &[u8], bytes: u64) {
        let mut state = self.lock();
        let mut text = [frame, b"\n"].concat();
        text.resize(64 * 1024, b'x');
        write(&mut state, &text, self.chunk);
        text.fill(b'x');
        for _ in 0..bytes / text.len() as u64 {
            write(&mut state, &text, self.chunk);
        }
        write(&mut state, b"\n", self.chunk);
    }

    /// Closes stdout while the process stays.
    pub(crate) fn close(&self) {
        close(&mut self.lock());
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn put(&self, state: &mut State, frame: &[u8], newline: bool) {
        let mut text = Vec::with_capacity(frame.len() + 2);
        if self.noise {
            text.extend(NOISE_BEFORE.iter().flat_map(|line| [line.as_bytes(), b"\n"].concat()));
        }
        text.extend_from_slice(frame);
        if newline {
            text.extend_from_slice(if self.crlf { b"\r\n" } else { b"\n" });
        }
        if self.noise && newline {
            text.extend(NOISE_AFTER.iter().flat_map(|line| [line.as_bytes(), b"\n"].concat()));
        }
        write(state, &text, self.chunk);
    }
}

fn write(state: &mut State, text: &[u8], chunk: Option<usize>) {
    let Some(stdout) = &mut state.stdout else { return };
    // A reader that went away ends this peer at its next read of stdin, not here.
    for piece in text.chunks(chunk.unwrap_or(text.len()).max(1)) {
        if stdout.write_all(piece).is_err() {
            return;
        }
    }
}

fn close(state: &mut State) {
    state.stdout = None;
    // File descriptor 1 cannot be closed safely; pointing it elsewhere lets go of the pipe just the same.
    if let Ok(null) = File::options().write(true).open("/dev/null") {
        let _ = rustix::stdio::dup2_stdout(&null);
    }
}

fn flood(bytes: usize) {
    let line = [b"flood ".repeat(15).as_slice(), b"end of line\n"].concat();
    let mut left = bytes;
    let mut stderr = std::io::stderr().lock();
    while left > 0 {
        let piece = &line[..line.len().min(left)];
        if stderr.write_all(piece).is_err() {
            return;
        }
        left -= piece.len();
    }
}
