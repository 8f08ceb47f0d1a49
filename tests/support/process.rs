//! A real process with a conversation on its stdin and stdout.

use std::collections::{BTreeMap, VecDeque};
use std::ffi::{OsStr, OsString};
use std::io::{BufRead, BufReader, Read, Write};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, Command, ExitStatus, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::time::{Duration, Instant};

use super::json;

/// How long a wait may take before the test fails. Generous: it is only ever reached by a fault.
pub(crate) const DEADLINE: Duration = Duration::from_secs(60);

/// Writes a line to the terminal even where the test harness keeps output back.
pub(crate) fn say(text: &str) {
    let _ = writeln!(std::io::stderr(), "{text}");
}

/// One line that a process wrote on stdout, without its newline.
#[derive(Clone, PartialEq, Eq)]
pub(crate) struct Frame(pub(crate) Vec<u8>);

impl Frame {
    /// The text; a frame that is not UTF-8 fails the test.
    pub(crate) fn text(&self) -> &str {
        std::str::from_utf8(&self.0).expect("frames are UTF-8")
    }

    /// The text of the value at `path`, e.g. `"result.content"`; panics with the frame if it is not there.
    pub(crate) fn at(&self, path: &str) -> &str {
        self.get(path).unwrap_or_else(|| panic!("no {path} in {self:?}"))
    }

    /// The same, `None` if it is not there.
    pub(crate) fn get(&self, path: &str) -> Option<&str> {
        let names: Vec<&str> = path.split('.').collect();
        json::get(&self.0, &names).and_then(|text| std::str::from_utf8(text).ok())
    }

    /// Whether it answers the request with this id text.
    pub(crate) fn answers(&self, id: &str) -> bool {
        self.get("id") == Some(id) && self.get("method").is_none()
    }

    /// Whether it is a request or notification of this method.
    pub(crate) fn is(&self, method: &str) -> bool {
        json::get_str(&self.0, &["method"]).as_deref() == Some(method)
    }
}

impl std::fmt::Debug for Frame {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let text = String::from_utf8_lossy(&self.0);
        match text.char_indices().nth(2000) {
            Some((cut, _)) => write!(f, "{}… ({} bytes)", &text[..cut], self.0.len()),
            None => f.write_str(&text),
        }
    }
}

/// What to start and how.
pub(crate) struct Start {
    argv: Vec<OsString>,
    cwd: Option<PathBuf>,
    env: BTreeMap<OsString, Option<OsString>>,
    frames_read: Option<usize>,
    stderr_closed: bool,
    stderr_unread: bool,
    paused: bool,
}

impl Start {
    /// `program` with no arguments yet.
    pub(crate) fn new(program: impl AsRef<OsStr>) -> Start {
        Start {
            argv: vec![program.as_ref().into()],
            cwd: None,
            env: BTreeMap::new(),
            frames_read: None,
            stderr_closed: false,
            stderr_unread: false,
            paused: false,
        }
    }

    /// `testpeer server` with `options`, split at blanks.
    pub(crate) fn server(options: &str) -> Start {
        Start::new(super::testpeer()).arg("server").args(options.split_whitespace())
    }

    /// `mcprelay run OPTIONS -- UPSTREAM`, with `options` split at blanks.
    pub(crate) fn relay(options: &str, upstream: &Start) -> Start {
        let start = Start::new(super::mcprelay()).arg("run").args(options.split_whitespace()).arg("--");
        start.args(&upstream.argv)
    }

    pub(crate) fn arg(mut self, arg: impl AsRef<OsStr>) -> Start {
        self.argv.push(arg.as_ref().into());
        self
    }

    pub(crate) fn args<A: AsRef<OsStr>>(mut self, args: impl IntoIterator<Item = A>) -> Start {
        self.argv.extend(args.into_iter().map(|arg| arg.as_ref().into()));
        self
    }

    /// Starts it in this directory.
    pub(crate) fn cwd(mut self, dir: impl Into<PathBuf>) -> Start {
        self.cwd = Some(dir.into());
        self
    }

    /// Sends its stdout to a file.
    pub(crate) fn stdout_to(mut self, file: &Path) -> Start {
        let shell: [&OsStr; 4] = ["sh".as_ref(), "-c".as_ref(), r#"exec "$@" > "$0""#.as_ref(), file.as_os_str()];
        self.argv.splice(0..0, shell.map(OsStr::to_owned));
        self
    }

    /// Sets an environment variable.
    pub(crate) fn env(mut self, name: &str, value: impl AsRef<OsStr>) -> Start {
        self.env.insert(name.into(), Some(value.as_ref().into()));
        self
    }

    /// Takes an environment variable away.
    pub(crate) fn no_env(mut self, name: &str) -> Start {
        self.env.insert(name.into(), None);
        self
    }

    /// Closes our end of its stdout after so many frames.
    pub(crate) fn frames_read(mut self, count: usize) -> Start {
        self.frames_read = Some(count);
        self
    }

    /// Gives it a stderr that nobody reads: the other end is closed.
    pub(crate) fn stderr_closed(mut self) -> Start {
        self.stderr_closed = true;
        self
    }

    /// Reads nothing from its stderr before its end.
    pub(crate) fn stderr_unread(mut self) -> Start {
        self.stderr_unread = true;
        self
    }

    /// Reads nothing from its stdout before [`Process::resume`].
    pub(crate) fn paused(mut self) -> Start {
        self.paused = true;
        self
    }

    pub(crate) fn argv(&self) -> &[OsString] {
        &self.argv
    }

    /// Starts it.
    pub(crate) fn start(self) -> Process {
        Process::start(self)
    }

    /// Starts it, gives it `input` and its end, and waits for its own end.
    pub(crate) fn run(self, input: &[u8]) -> Output {
        let mut process = self.start();
        process.send_raw(input);
        process.close_stdin();
        let status = process.wait();
        let mut stdout = Vec::new();
        while let Some(frame) = process.next_or_end() {
            stdout.extend_from_slice(&frame.0);
            stdout.push(b'\n');
        }
        let stderr = process.stderr_at_end();
        Output { status, stdout: String::from_utf8_lossy(&stdout).into_owned(), stderr }
    }
}

/// What a process that ran to its end left.
#[derive(Debug)]
pub(crate) struct Output {
    pub(crate) status: ExitStatus,
    /// A newline is added to a last line without one.
    pub(crate) stdout: String,
    pub(crate) stderr: String,
}

impl Output {
    /// The exit code; panics if a signal ended it.
    pub(crate) fn code(&self) -> i32 {
        self.status.code().unwrap_or_else(|| panic!("ended by a signal: {self:?}"))
    }
}

/// A running process. Dropped, it is killed with its process group; frames that no test step took fail the test.
pub(crate) struct Process {
    name: String,
    child: Child,
    stdin: Option<ChildStdin>,
    frames: Receiver<Frame>,
    /// Frames that came while another was waited for, oldest first.
    passed_over: VecDeque<Frame>,
    stderr: Arc<(Mutex<Stderr>, Condvar)>,
    /// Dropped to let a paused reader go on.
    gate: Option<Sender<()>>,
    /// The same for its stderr; opened at its end.
    stderr_gate: Option<Sender<()>>,
    /// The last line had no line end.
    cut_off: Arc<AtomicBool>,
    exit: Option<ExitStatus>,
}

#[derive(Default)]
struct Stderr {
    text: Vec<u8>,
    ended: bool,
}

impl Process {
    fn start(start: Start) -> Process {
        let mut command = Command::new(&start.argv[0]);
        command.args(&start.argv[1..]).stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        // A group of its own, so that what is left of it can be ended at once.
        command.process_group(0);
        if let Some(dir) = start.cwd {
            command.current_dir(dir);
        }
        for (name, value) in start.env {
            match value {
                Some(value) => command.env(name, value),
                None => command.env_remove(name),
            };
        }
        let name = start.argv.iter().map(|arg| arg.to_string_lossy()).collect::<Vec<_>>().join(" ");
        let mut child = command.spawn().unwrap_or_else(|error| panic!("cannot start {name}: {error}"));
        let stdin = child.stdin.take();
        let stdout = child.stdout.take().expect("stdout is piped");
        let child_stderr = child.stderr.take().expect("stderr is piped");
        // The thread below ends at once where nothing is to be read, and the pipe with it.
        let mut child_stderr = (!start.stderr_closed).then_some(child_stderr);

        let (sender, frames) = channel();
        let (gate, opened) = channel::<()>();
        let gate = start.paused.then_some(gate);
        let cut_off = Arc::new(AtomicBool::new(false));
        let cut_off_here = Arc::clone(&cut_off);
        std::thread::spawn(move || {
            let _ = opened.recv();
            let mut stdout = BufReader::with_capacity(64 * 1024, stdout);
            for _ in 0..start.frames_read.unwrap_or(usize::MAX) {
                let mut line = Vec::new();
                if stdout.read_until(b'\n', &mut line).is_ok_and(|count| count > 0) {
                    if line.pop_if(|last| *last == b'\n').is_none() {
                        cut_off_here.store(true, Ordering::SeqCst);
                    }
                    if sender.send(Frame(line)).is_ok() {
                        continue;
                    }
                }
                return;
            }
        });
        let (stderr_gate, opened_stderr) = channel::<()>();
        let stderr_gate = start.stderr_unread.then_some(stderr_gate);
        let stderr = Arc::new((Mutex::new(Stderr::default()), Condvar::new()));
        let shared = Arc::clone(&stderr);
        std::thread::spawn(move || {
            let mut buffer = [0; 16 * 1024];
            let _ = opened_stderr.recv();
            loop {
                let count = child_stderr.as_mut().map_or(0, |stderr| stderr.read(&mut buffer).unwrap_or(0));
                let mut state = shared.0.lock().unwrap_or_else(PoisonError::into_inner);
                state.text.extend_from_slice(&buffer[..count]);
                state.ended = count == 0;
                shared.1.notify_all();
                if count == 0 {
                    return;
                }
            }
        });
        Process {
            name,
            child,
            stdin,
            frames,
            passed_over: VecDeque::new(),
            stderr,
            gate,
            stderr_gate,
            cut_off,
            exit: None,
        }
    }

    /// The process id.
    pub(crate) fn pid(&self) -> i32 {
        i32::try_from(self.child.id()).expect("process ids fit")
    }

    /// Sends one line.
    pub(crate) fn send(&mut self, line: &str) {
        self.send_raw(&[line.as_bytes(), b"\n"].concat());
    }

    /// Sends bytes as they are. A process that closed its stdin is no failure here: its end is what tests look at.
    pub(crate) fn send_raw(&mut self, bytes: &[u8]) {
        let stdin = self.stdin.as_mut().expect("stdin was closed by the test before");
        let _ = stdin.write_all(bytes).and_then(|()| stdin.flush());
    }

    /// Begins to read the stdout of a process that was started paused.
    pub(crate) fn resume(&mut self) {
        self.gate = None;
    }

    /// Waits for its exit and gives the processor time that it used in its whole life.
    pub(crate) fn cpu_at_end(&mut self) -> Duration {
        use rustix::process::{Pid, WaitId, WaitIdOptions, waitid};
        let pid = Pid::from_raw(self.pid()).expect("a process id is not 0");
        let options = WaitIdOptions::EXITED | WaitIdOptions::NOWAIT | WaitIdOptions::NOHANG;
        super::session::eventually("its end", || match waitid(WaitId::Pid(pid), options) {
            Ok(Some(_)) => Ok(()),
            other => Err(format!("{other:?}")),
        });
        let cpu = super::session::proc::cpu(self.pid());
        self.wait();
        cpu
    }

    /// Lets go of its stdin.
    pub(crate) fn close_stdin(&mut self) {
        self.stdin = None;
    }

    /// The stdin, for a writer of the test's own.
    pub(crate) fn take_stdin(&mut self) -> ChildStdin {
        self.stdin.take().expect("stdin was closed by the test before")
    }

    /// The oldest frame that was not taken yet.
    pub(crate) fn next(&mut self) -> Frame {
        self.next_or_end().unwrap_or_else(|| self.fail("its stdout ended, but a frame was waited for"))
    }

    /// The same, or `None` at the end of its stdout.
    pub(crate) fn next_or_end(&mut self) -> Option<Frame> {
        if let Some(frame) = self.passed_over.pop_front() {
            return Some(frame);
        }
        self.receive(Instant::now() + DEADLINE, "a frame or the end of stdout")
    }

    /// The oldest frame that `wanted` accepts; others stay for later.
    pub(crate) fn next_where(&mut self, what: &str, wanted: impl Fn(&Frame) -> bool) -> Frame {
        if let Some(at) = self.passed_over.iter().position(&wanted) {
            return self.passed_over.remove(at).expect("the position is valid");
        }
        let until = Instant::now() + DEADLINE;
        loop {
            match self.receive(until, what) {
                Some(frame) if wanted(&frame) => return frame,
                Some(frame) => self.passed_over.push_back(frame),
                None => self.fail(&format!("its stdout ended, but {what} was waited for")),
            }
        }
    }

    /// The answer to the request with this id text.
    pub(crate) fn answer(&mut self, id: &str) -> Frame {
        self.next_where(&format!("the answer to {id}"), |frame| frame.answers(id))
    }

    /// Sends a request line and gives its answer.
    pub(crate) fn ask(&mut self, line: &str) -> Frame {
        let id = Frame(line.as_bytes().to_vec()).at("id").to_string();
        self.send(line);
        self.answer(&id)
    }

    /// The next request or notification of `method`.
    pub(crate) fn message(&mut self, method: &str) -> Frame {
        self.next_where(method, |frame| frame.is(method))
    }

    /// A legacy opening; gives the answer to `initialize`, whose id is 0.
    pub(crate) fn initialize(&mut self) -> Frame {
        let answer = self.ask(concat!(
            r#"{"jsonrpc":"2.0","id":0,"method":"initialize","params":{"protocolVersion":"2025-11-25","#,
            r#""capabilities":{"roots":{},"sampling":{},"elicitation":{}},"clientInfo":{"name":"test","version":"1"}}}"#
        ));
        self.send(r#"{"jsonrpc":"2.0","method":"notifications/initialized"}"#);
        answer
    }

    /// Fails if a frame was written that no step took. What comes later is seen by `finish`.
    pub(crate) fn nothing_unread(&mut self) {
        while let Ok(frame) = self.frames.try_recv() {
            self.passed_over.push_back(frame);
        }
        if !self.passed_over.is_empty() {
            self.fail("frames were left unread");
        }
    }

    /// What it has written on stderr so far.
    pub(crate) fn stderr(&self) -> String {
        let state = self.stderr.0.lock().unwrap_or_else(PoisonError::into_inner);
        String::from_utf8_lossy(&state.text).into_owned()
    }

    /// Waits until its stderr holds `text`.
    pub(crate) fn stderr_with(&mut self, text: &str) -> String {
        self.wait_stderr(&format!("{text:?} on stderr"), |state| String::from_utf8_lossy(&state.text).contains(text))
    }

    /// Waits for the end of its stderr and gives all of it.
    pub(crate) fn stderr_at_end(&mut self) -> String {
        self.wait_stderr("the end of stderr", |state| state.ended)
    }

    /// Sends a signal to the process alone.
    pub(crate) fn signal(&self, signal: rustix::process::Signal) {
        let pid = rustix::process::Pid::from_raw(self.pid()).expect("a process id is not 0");
        // A process that has ended already is no failure here: its exit is what tests look at.
        let _ = rustix::process::kill_process(pid, signal);
    }

    /// Waits for its exit.
    pub(crate) fn wait(&mut self) -> ExitStatus {
        let until = Instant::now() + DEADLINE;
        loop {
            if let Some(status) = self.exit.or_else(|| self.child.try_wait().ok().flatten()) {
                self.exit = Some(status);
                self.stderr_gate = None;
                return status;
            }
            if Instant::now() > until {
                self.fail("it does not end");
            }
            // An exit cannot be waited for with a deadline; looking again this soon costs nothing.
            std::thread::park_timeout(Duration::from_millis(2));
        }
    }

    /// Ends the conversation: closes stdin, waits for the exit, and fails if a frame was left unread.
    pub(crate) fn finish(mut self) -> Output {
        self.close_stdin();
        let status = self.wait();
        while let Some(frame) = self.receive(Instant::now() + DEADLINE, "the end of stdout") {
            self.passed_over.push_back(frame);
        }
        if !self.passed_over.is_empty() {
            self.fail("frames were left unread");
        }
        if self.cut_off.load(Ordering::SeqCst) {
            self.fail("its last line has no line end");
        }
        Output { status, stdout: String::new(), stderr: self.stderr_at_end() }
    }

    fn receive(&mut self, until: Instant, what: &str) -> Option<Frame> {
        match self.frames.recv_timeout(until.saturating_duration_since(Instant::now())) {
            Ok(frame) => Some(frame),
            Err(RecvTimeoutError::Disconnected) => None,
            Err(RecvTimeoutError::Timeout) => self.fail(&format!("{what} did not come")),
        }
    }

    fn wait_stderr(&mut self, what: &str, enough: impl Fn(&Stderr) -> bool) -> String {
        let until = Instant::now() + DEADLINE;
        {
            let mut state = self.stderr.0.lock().unwrap_or_else(PoisonError::into_inner);
            loop {
                if enough(&state) {
                    return String::from_utf8_lossy(&state.text).into_owned();
                }
                let left = until.saturating_duration_since(Instant::now());
                if state.ended || left.is_zero() {
                    break;
                }
                state = self.stderr.1.wait_timeout(state, left).unwrap_or_else(PoisonError::into_inner).0;
            }
        }
        self.fail(&format!("{what} did not come"))
    }

    fn fail(&self, what: &str) -> ! {
        let unread: String = self.passed_over.iter().map(|frame| format!("\n    {frame:?}")).collect();
        panic!("{what}\n  process: {}\n  unread frames:{unread}\n  stderr:\n{}", self.name, self.stderr());
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        if self.exit.is_none() {
            if let Some(pid) = rustix::process::Pid::from_raw(self.pid()) {
                // Not reaped yet, so the number is still this process's and its group's.
                let _ = rustix::process::kill_process_group(pid, rustix::process::Signal::KILL);
            }
            let _ = self.child.wait();
        }
        if !std::thread::panicking() {
            self.nothing_unread();
        }
    }
}
