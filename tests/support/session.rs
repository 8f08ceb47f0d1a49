//! A session through the relay with the scriptable server behind it, in a directory of its own.

use std::path::Path;
use std::time::{Duration, Instant};

use super::process::{DEADLINE, Frame, Process, Start};
use super::temp::TempDir;

/// Where the server writes down what it gets.
const LOG: &str = "server.log";
/// Where the relay keeps its records.
pub(crate) const QUEUE: &str = ".mcprelay/queue.db";
pub(crate) const HISTORY: &str = ".mcprelay/history.db";

/// A session before its start.
pub(crate) struct Setup {
    dir: TempDir,
    options: String,
    upstream: Start,
    change: fn(Start) -> Start,
    wrapper: Option<Start>,
    remote: Option<String>,
}

/// Prepares a session; `name` helps to recognise its directory.
pub(crate) fn session(name: &str) -> Setup {
    let dir = TempDir::new(name);
    let upstream = Start::server("--log").arg(dir.join(LOG));
    Setup { dir, options: String::new(), upstream, change: |start| start, wrapper: None, remote: None }
}

impl Setup {
    /// Options of `testpeer server`, split at blanks.
    pub(crate) fn server(mut self, options: &str) -> Setup {
        self.upstream = self.upstream.args(options.split_whitespace());
        self
    }

    /// One argument of the server, as it is.
    pub(crate) fn server_arg(mut self, arg: &str) -> Setup {
        self.upstream = self.upstream.arg(arg);
        self
    }

    /// The server behind a shell script, in which `"$@"` is its command.
    pub(crate) fn behind(mut self, script: &str) -> Setup {
        self.upstream = Start::new("sh").args(["-c", script, "sh"]).args(self.upstream.argv());
        self
    }

    /// Options of `mcprelay run`, split at blanks.
    pub(crate) fn options(mut self, options: &str) -> Setup {
        self.options = options.into();
        self
    }

    /// The configuration file.
    pub(crate) fn config(self, text: &str) -> Setup {
        self.dir.write("mcprelay.config.yaml", text);
        self
    }

    /// The relay behind another command, to which its own command line is given.
    pub(crate) fn wrapped(mut self, wrapper: Start) -> Setup {
        self.wrapper = Some(wrapper);
        self
    }

    /// A change to how the relay is started.
    pub(crate) fn started(mut self, change: fn(Start) -> Start) -> Setup {
        self.change = change;
        self
    }

    pub(crate) fn dir(&self) -> &TempDir {
        &self.dir
    }

    /// A server that runs elsewhere, as `--http` or `--sse` with its URL says.
    pub(crate) fn remote(mut self, option: &str, url: &str) -> Setup {
        self.remote = Some(format!("--{option} {url}"));
        self
    }

    pub(crate) fn start(self) -> Session {
        let relay = match &self.remote {
            Some(remote) => {
                let start = Start::new(super::mcprelay()).arg("run").args(self.options.split_whitespace());
                start.args(remote.split_whitespace())
            }
            None => Start::relay(&self.options, &self.upstream),
        };
        let relay = match self.wrapper {
            Some(wrapper) => wrapper.args(relay.argv()),
            None => relay,
        };
        // Whatever goes wrong, nothing is written outside of the directory.
        let relay = relay.cwd(self.dir.path()).env("XDG_STATE_HOME", self.dir.join("state"));
        Session { relay: (self.change)(relay).start(), dir: self.dir }
    }
}

/// A running session.
pub(crate) struct Session {
    pub(crate) relay: Process,
    pub(crate) dir: TempDir,
}

/// What a session left.
pub(crate) struct Ended {
    /// The relay's exit code; `None` if a signal ended it.
    pub(crate) code: Option<i32>,
    pub(crate) stderr: String,
    /// What the server noted, without process ids.
    pub(crate) seen: Vec<String>,
    pub(crate) dir: TempDir,
}

/// Holds the queue; let go when dropped.
pub(crate) struct Lock(#[expect(dead_code, reason = "held, not used")] rusqlite::Connection);

impl Session {
    pub(crate) fn send(&mut self, line: &str) {
        self.relay.send(line);
    }

    pub(crate) fn ask(&mut self, line: &str) -> Frame {
        self.relay.ask(line)
    }

    pub(crate) fn answer(&mut self, id: &str) -> Frame {
        self.relay.answer(id)
    }

    /// Makes a call and gives its answer.
    pub(crate) fn call(&mut self, id: &str, tool: &str, arguments: &str) -> Frame {
        self.ask(&call(id, tool, arguments))
    }

    /// Everything sent before this was dealt with by the relay and read by the server.
    pub(crate) fn settle(&mut self) {
        self.ask(r#"{"jsonrpc":"2.0","id":"settle","method":"ping"}"#);
    }

    /// What the server noted so far, without process ids.
    pub(crate) fn seen(&self) -> Vec<String> {
        notes(&self.dir).into_iter().map(|(_, note)| note).collect()
    }

    /// The process ids of the servers that were started.
    pub(crate) fn server_pids(&self) -> Vec<i32> {
        let mut pids: Vec<i32> = notes(&self.dir).into_iter().map(|(pid, _)| pid).collect();
        pids.dedup();
        pids
    }

    /// The frames with this method that the server got, in order.
    pub(crate) fn got(&self, method: &str) -> Vec<Frame> {
        frames(&self.seen(), method)
    }

    /// Waits until the server has noted something.
    pub(crate) fn wait_seen(&self, what: &str, enough: impl Fn(&[String]) -> bool) {
        eventually(what, || {
            let seen = self.seen();
            if enough(&seen) { Ok(()) } else { Err(format!("{seen:#?}\n  stderr: {}", self.relay.stderr())) }
        });
    }

    /// Keeps every other process from writing to the queue until the lock is dropped. The queue must be there.
    pub(crate) fn lock_queue(&self) -> Lock {
        let file = self.dir.join(QUEUE);
        let queue = rusqlite::Connection::open_with_flags(&file, rusqlite::OpenFlags::SQLITE_OPEN_READ_WRITE)
            .unwrap_or_else(|error| panic!("{}: {error}", file.display()));
        queue.busy_timeout(DEADLINE).expect("a timeout");
        queue.execute_batch("BEGIN IMMEDIATE").expect("the lock");
        Lock(queue)
    }

    /// Closes the relay's input, waits for its end, and fails if a frame was left unread.
    pub(crate) fn finish(self) -> Ended {
        let Session { relay, dir } = self;
        let output = relay.finish();
        let seen = notes(&dir).into_iter().map(|(_, note)| note).collect();
        Ended { code: output.status.code(), stderr: output.stderr, seen, dir }
    }
}

impl Ended {
    /// Runs another command of ours where the session ran; `args` are split at blanks.
    pub(crate) fn command(&self, args: &str) -> super::process::Output {
        let start = Start::new(super::mcprelay()).args(args.split_whitespace()).cwd(self.dir.path());
        start.env("XDG_STATE_HOME", self.dir.join("state")).run(b"")
    }

    /// The frames with this method that servers got until now, those of commands included.
    pub(crate) fn got_by_now(&self, method: &str) -> Vec<Frame> {
        let seen: Vec<String> = notes(&self.dir).into_iter().map(|(_, note)| note).collect();
        frames(&seen, method)
    }

    /// `columns` of each dead letter, oldest first, joined by `|`.
    pub(crate) fn queued(&self, columns: &str) -> Vec<String> {
        rows(&self.dir.join(QUEUE), &format!("SELECT {columns} FROM failures ORDER BY id"))
    }

    /// The rows of a query to the queue.
    pub(crate) fn query_queue(&self, query: &str) -> Vec<String> {
        rows(&self.dir.join(QUEUE), query)
    }

    /// The rows of a query to the history.
    pub(crate) fn query_history(&self, query: &str) -> Vec<String> {
        rows(&self.dir.join(HISTORY), query)
    }

    /// The log lines of calls of `tool`.
    pub(crate) fn logged(&self, tool: &str) -> Vec<Frame> {
        let lines = self.stderr.lines().filter(|line| line.starts_with('{'));
        let frames = lines.map(|line| Frame(line.as_bytes().to_vec()));
        frames.filter(|line| line.get("tool") == Some(&format!("\"{tool}\""))).collect()
    }

    /// The frames with this method that the server got, in order.
    pub(crate) fn got(&self, method: &str) -> Vec<Frame> {
        frames(&self.seen, method)
    }
}

/// The rows that `query` gives, the columns joined by `|`; none if there is no such file.
fn rows(file: &Path, query: &str) -> Vec<String> {
    if !file.exists() {
        return Vec::new();
    }
    let database = rusqlite::Connection::open(file).unwrap_or_else(|error| panic!("{}: {error}", file.display()));
    let mut statement = database.prepare(query).unwrap_or_else(|error| panic!("{query}: {error}"));
    let columns = statement.column_count();
    let text = |row: &rusqlite::Row<'_>| {
        let column = |number| match row.get::<_, rusqlite::types::Value>(number)? {
            rusqlite::types::Value::Null => Ok("null".to_owned()),
            rusqlite::types::Value::Integer(number) => Ok(number.to_string()),
            rusqlite::types::Value::Real(number) => Ok(number.to_string()),
            rusqlite::types::Value::Text(text) => Ok(text),
            rusqlite::types::Value::Blob(bytes) => Ok(String::from_utf8_lossy(&bytes).into_owned()),
        };
        Ok((0..columns).map(column).collect::<rusqlite::Result<Vec<String>>>()?.join("|"))
    };
    let rows = statement.query_map([], text).unwrap_or_else(|error| panic!("{query}: {error}"));
    rows.map(|row| row.unwrap_or_else(|error| panic!("{query}: {error}"))).collect()
}

fn notes(dir: &TempDir) -> Vec<(i32, String)> {
    let text = dir.read(LOG);
    // A last line without its end is still being written.
    let whole = text.rfind('\n').map_or("", |end| &text[..end]);
    let note = |line: &str| line.split_once('\t').map(|(pid, note)| (pid.parse().unwrap_or(0), note.to_owned()));
    whole.split('\n').filter_map(note).collect()
}

fn frames(seen: &[String], method: &str) -> Vec<Frame> {
    let frames = seen.iter().map(|note| Frame(note.as_bytes().to_vec()));
    frames.filter(|frame| !frame.0.starts_with(b"#") && frame.is(method)).collect()
}

/// A `tools/call` line.
pub(crate) fn call(id: &str, tool: &str, arguments: &str) -> String {
    format!(
        r#"{{"jsonrpc":"2.0","id":{id},"method":"tools/call","params":{{"name":"{tool}","arguments":{arguments}}}}}"#
    )
}

/// A ping line.
pub(crate) fn ping(id: &str) -> String {
    format!(r#"{{"jsonrpc":"2.0","id":{id},"method":"ping"}}"#)
}

/// A `notifications/cancelled` line.
pub(crate) fn cancel(id: &str) -> String {
    format!(r#"{{"jsonrpc":"2.0","method":"notifications/cancelled","params":{{"requestId":{id}}}}}"#)
}

/// Looks again and again until it is so; fails at the deadline with the last reason.
pub(crate) fn eventually(what: &str, mut look: impl FnMut() -> Result<(), String>) {
    let until = Instant::now() + DEADLINE;
    while let Err(reason) = look() {
        assert!(Instant::now() < until, "{what} did not come: {reason}");
        // A file or another process cannot be waited for with a deadline; looking again this soon costs nothing.
        std::thread::park_timeout(Duration::from_millis(2));
    }
}

/// What the kernel knows about a process.
pub(crate) mod proc {
    use std::time::Duration;

    /// Whether it runs: neither gone nor a zombie.
    pub(crate) fn is_alive(pid: i32) -> bool {
        state(pid).is_some_and(|state| state != 'Z' && state != 'X')
    }

    /// Its state letter; `None` if there is no such process.
    pub(crate) fn state(pid: i32) -> Option<char> {
        after_name(pid)?.chars().next()
    }

    /// The process ids of its children.
    pub(crate) fn children(pid: i32) -> Vec<i32> {
        let tasks = std::fs::read_dir(format!("/proc/{pid}/task")).into_iter().flatten().flatten();
        let text = tasks.filter_map(|task| std::fs::read_to_string(task.path().join("children")).ok());
        text.flat_map(|text| text.split_whitespace().filter_map(|pid| pid.parse().ok()).collect::<Vec<i32>>()).collect()
    }

    /// The processor time it has used; also of a zombie.
    pub(crate) fn cpu(pid: i32) -> Duration {
        let text = after_name(pid).expect("the process is there");
        let fields: Vec<&str> = text.split_whitespace().collect();
        // utime and stime are fields 14 and 15 of the whole line (proc_pid_stat), in ticks of 10 ms.
        let ticks: u64 = fields[11..13].iter().map(|ticks| ticks.parse::<u64>().expect("a number")).sum();
        Duration::from_millis(ticks * 10)
    }

    /// The most memory it ever held, in bytes.
    pub(crate) fn peak_memory(pid: i32) -> usize {
        memory(pid, "VmHWM:")
    }

    /// The memory it holds, in bytes.
    pub(crate) fn memory_now(pid: i32) -> usize {
        memory(pid, "VmRSS:")
    }

    fn memory(pid: i32, name: &str) -> usize {
        let text = std::fs::read_to_string(format!("/proc/{pid}/status")).expect("the process is there");
        let line = text.lines().find_map(|line| line.strip_prefix(name)).expect("the kernel tells its memory");
        let kib: usize = line.trim().trim_end_matches(" kB").parse().expect("a number of kB");
        kib * 1024
    }

    /// `/proc/PID/stat` behind the name, which may hold anything.
    fn after_name(pid: i32) -> Option<String> {
        let text = std::fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
        Some(text.rsplit_once(") ")?.1.to_owned())
    }
}

/// The frame with another id, all other bytes as they are.
pub(crate) fn same_but_id(frame: &str, id: &str) -> String {
    let place = super::json::find(frame.as_bytes(), &["id"]).unwrap_or_else(|| panic!("no id in {frame}"));
    [&frame[..place.start], id, &frame[place.end..]].concat()
}
