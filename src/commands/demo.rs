//! `mcprelay demo`: a failing call, its retries, the queue and the replay, told with real processes.
//!
//! Everything runs in a fresh directory that is removed at the end. The client is ours, the server is
//! [`super::example_server`], and between them stands the program itself, as a user would start it. It needs no network,
//! no `/proc` and no `/dev`: every descriptor of every process is a pipe.

use std::ffi::OsString;
use std::fs;
use std::io::{self, Write};
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

use crossbeam_channel::{Receiver, Sender, unbounded};

use super::example_server::BUSY_ANSWERS;
use crate::clock::{Clock, Time};
use crate::dispatcher::event::ProcessEnd;
use crate::exit::ExitStatus;
use crate::ports::link::Reach;
use crate::ports::log::Log;
use crate::session::{Limits, Session};

const CONFIG: &str = "\
reliability:
  retry: {max_attempts: 3, base_ms: 100, jitter: false}
  per_tool:
    get_rate: {idempotent: true}   # asking twice does no harm, so failures may be retried
policy:
  default: allow
  rules:
    - {tool: \"delete_*\", action: deny}
";

/// The note that is written once, in spite of all.
const NOTE: &str = "buy milk";

const CALL_TIMEOUT: Duration = Duration::from_secs(20);
const LOG_TIMEOUT: Duration = Duration::from_secs(5);

/// Why the story did not go as told.
#[derive(Debug)]
enum Trouble {
    /// At this step, with what happened instead.
    Step(&'static str, String),
    /// Nobody reads any more.
    Output(io::Error),
}

impl From<io::Error> for Trouble {
    fn from(error: io::Error) -> Trouble {
        Trouble::Output(error)
    }
}

fn step<T>(step: &'static str, result: Result<T, impl std::fmt::Display>) -> Result<T, Trouble> {
    result.map_err(|error| Trouble::Step(step, error.to_string()))
}

fn check(step: &'static str, holds: bool, seen: &str) -> Result<(), Trouble> {
    if holds { Ok(()) } else { Err(Trouble::Step(step, format!("unexpected: {seen}"))) }
}

/// Tells the story on `out`.
pub fn run(out: &mut dyn Write) -> ExitStatus {
    let told = Workshop::open().and_then(|workshop| tell(&workshop, out));
    let (text, status) = match told {
        Ok(()) => ("demo: OK\n".to_owned(), ExitStatus::Success),
        // A reader that has seen enough is no failure, but the end of the story.
        Err(Trouble::Output(error)) if error.kind() == io::ErrorKind::BrokenPipe => return ExitStatus::Success,
        Err(Trouble::Output(_)) => return ExitStatus::Failure,
        Err(Trouble::Step(step, text)) => (format!("demo: FAILED at {step}: {text}\n"), ExitStatus::Failure),
    };
    super::text::written(out.write_all(text.as_bytes()).and_then(|()| out.flush()), &mut io::sink());
    status
}

/// The directory of the story and the program in it.
struct Workshop {
    dir: PathBuf,
    program: PathBuf,
}

impl Drop for Workshop {
    fn drop(&mut self) {
        // What cannot be removed lies in a temporary directory.
        let _ = fs::remove_dir_all(&self.dir);
    }
}

impl Workshop {
    fn open() -> Result<Workshop, Trouble> {
        let program = step("finding the program itself", own_program())?;
        let name = format!("mcprelay-demo-{}-{:016x}", std::process::id(), crate::random::u64());
        let mut errors = Vec::new();
        for parent in [std::env::temp_dir(), PathBuf::from("/tmp"), PathBuf::from(".")] {
            let made = std::path::absolute(&parent).and_then(|parent| {
                let dir = parent.join(&name);
                fs::DirBuilder::new().mode(0o700).create(&dir)?;
                Ok(dir)
            });
            match made {
                Ok(dir) => return Ok(Workshop { dir, program }),
                Err(error) => errors.push(format!("{}: {error}", parent.display())),
            }
        }
        Err(Trouble::Step("making a directory", errors.join("; ")))
    }

    /// Runs the program as a user would, shows command and output, and gives the exit code and the output.
    fn run(&self, args: &[&str], out: &mut dyn Write) -> Result<(Option<i32>, String), Trouble> {
        writeln!(out, "\n$ mcprelay {}", args.join(" "))?;
        out.flush()?;
        let child = Command::new(&self.program)
            .args(args)
            .current_dir(&self.dir)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn();
        let output = step("starting the program", child.and_then(std::process::Child::wait_with_output))?;
        let stdout = String::from_utf8_lossy(&output.stdout).into_owned();
        out.write_all(stdout.as_bytes())?;
        out.write_all(&output.stderr)?;
        Ok((output.status.code(), stdout))
    }

    /// As [`Workshop::run`], for a command that must succeed.
    fn must_run(&self, name: &'static str, args: &[&str], out: &mut dyn Write) -> Result<String, Trouble> {
        let (code, stdout) = self.run(args, out)?;
        check(name, code == Some(0), &format!("exit code {code:?}"))?;
        Ok(stdout)
    }
}

/// The executable that runs right now: as the system tells, else as it was called.
fn own_program() -> Result<PathBuf, String> {
    if let Some(program) = std::env::current_exe().ok().filter(|program| program.is_file()) {
        return Ok(program);
    }
    let called = PathBuf::from(std::env::args_os().next().unwrap_or_default());
    let candidates: Vec<PathBuf> = match called.components().count() {
        0 => return Err("the name it was called by is empty".to_owned()),
        1 if !called.as_os_str().as_encoded_bytes().contains(&b'/') => {
            let path = std::env::var_os("PATH").unwrap_or_default();
            std::env::split_paths(&path).map(|folder| folder.join(&called)).collect()
        }
        _ => vec![called.clone()],
    };
    let found = candidates.into_iter().find(|program| program.is_file());
    let found = found.and_then(|program| std::path::absolute(program).ok());
    found.ok_or_else(|| format!("{} is not found", called.display()))
}

/// Hands every write on, so that the relay's log can be quoted.
struct Tee(Sender<Vec<u8>>);

impl Write for Tee {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        // Nobody quotes any more once the story is over.
        let _ = self.0.send(bytes.to_vec());
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// What the relay wrote on its standard error.
struct RelayLog {
    arriving: Receiver<Vec<u8>>,
    seen: Vec<u8>,
}

impl RelayLog {
    /// Everything that came so far.
    fn all(&mut self) -> String {
        self.seen.extend(self.arriving.try_iter().flatten());
        String::from_utf8_lossy(&self.seen).into_owned()
    }

    /// The line about the call of this tool, once it is there.
    fn line_of(&mut self, tool: &str, clock: Clock) -> Option<String> {
        let until: Time = clock.now().mono.plus(LOG_TIMEOUT);
        let mark = format!("\"tool\":\"{tool}\"");
        loop {
            let text = String::from_utf8_lossy(&self.seen);
            if let Some(line) = text.lines().find(|line| line.contains(&mark) && line.ends_with('}')) {
                return Some(line.to_owned());
            }
            let wait = until.saturating_since(clock.now().mono);
            self.seen.extend(self.arriving.recv_timeout(wait).ok()?);
        }
    }
}

fn tell(workshop: &Workshop, out: &mut dyn Write) -> Result<(), Trouble> {
    let clock = Clock::start();
    step("writing the configuration", fs::write(workshop.dir.join("mcprelay.config.yaml"), CONFIG))?;
    let state = workshop.dir.join("state");
    step("writing the server's state", fs::create_dir(&state).and_then(|()| fs::write(state.join("disk-full"), "")))?;

    writeln!(out, "# An MCP client starts its server through mcprelay. The configuration says what may be retried:")?;
    writeln!(out, "\n$ cat mcprelay.config.yaml\n{CONFIG}")?;
    writeln!(out, "$ mcprelay run -- mcprelay example-server ./state")?;
    out.flush()?;
    let (tee, arriving) = unbounded();
    let log = step("starting the log", Log::start(Tee(tee), |_| String::new()))?;
    let mut relay_log = RelayLog { arriving, seen: Vec::new() };
    let program = || OsString::from(&workshop.program);
    let argv = vec![program(), "run".into(), "--".into(), program(), "example-server".into(), OsString::from(&state)];
    let command = Reach::Command { argv, cwd: Some(workshop.dir.clone()) };
    let session = Session::start(command, Limits::default(), clock, &log).map_err(|error| {
        log.flush(LOG_TIMEOUT);
        Trouble::Step("starting the relay", format!("{error}; it said: {}", relay_log.all().trim_end()))
    })?;
    let mut story = Story { workshop, session, relay_log: &mut relay_log, clock };
    let told = story.tell(&state, out);
    let end = story.session.end();
    told?;
    writeln!(out, "\n# The client closes the session, and everything ends in order.")?;
    check("the end of the session", end == Some(ProcessEnd::Code(0)), &format!("{end:?}"))
}

struct Story<'a> {
    workshop: &'a Workshop,
    session: Session,
    relay_log: &'a mut RelayLog,
    clock: Clock,
}

impl Story<'_> {
    /// Makes a call as the client, shows request and answer, and gives the answer's frame.
    fn call(&mut self, tool: &str, arguments: &str, out: &mut dyn Write) -> Result<String, Trouble> {
        writeln!(out, "\nclient calls  {tool} {arguments}")?;
        out.flush()?;
        let answer = step("a call", self.session.call(tool, Some(arguments.as_bytes()), &[], CALL_TIMEOUT))?;
        let answer = String::from_utf8_lossy(&answer.bytes).into_owned();
        writeln!(out, "client gets   {answer}")?;
        Ok(answer)
    }

    fn show_log(&mut self, tool: &str, out: &mut dyn Write) -> Result<String, Trouble> {
        let line = self.relay_log.line_of(tool, self.clock);
        let line = line.ok_or_else(|| Trouble::Step("the relay's log", format!("it says nothing of {tool}")))?;
        writeln!(out, "relay logs    {line}")?;
        Ok(line)
    }

    fn tell(&mut self, state: &Path, out: &mut dyn Write) -> Result<(), Trouble> {
        writeln!(
            out,
            "\n# 1. The tool fails {BUSY_ANSWERS} times. It is idempotent, so mcprelay tries again and the client sees only success."
        )?;
        let answer = self.call("get_rate", r#"{"currency":"EUR"}"#, out)?;
        check("the retried call", answer.contains("1 EUR is 1.10 USD"), &answer)?;
        let line = self.show_log("get_rate", out)?;
        check("the retried call", line.contains("\"attempt\":3"), &line)?;

        writeln!(
            out,
            "\n# 2. Another tool fails and must not be repeated blindly: one attempt, then the call is in the queue."
        )?;
        let arguments = format!(r#"{{"text":"{NOTE}"}}"#);
        let answer = self.call("add_note", &arguments, out)?;
        check("the failing call", answer.contains("no space left for notes"), &answer)?;
        let line = self.show_log("add_note", out)?;
        check("the failing call", line.contains("\"attempt\":1") && line.contains("dead_letter_id"), &line)?;

        writeln!(out, "\n# 3. The queue keeps it, with everything that is known about it.")?;
        let workshop = self.workshop;
        let list = workshop.must_run("replay list", &["replay", "list"], out)?;
        let fields: Vec<&str> = list.trim_end().split('\t').collect();
        let [id, _, "add_note", "upstream_error", "attempts=1", "pending", _] = fields[..] else {
            return Err(Trouble::Step("replay list", format!("unexpected: {list}")));
        };
        let record = workshop.must_run("replay inspect", &["replay", "inspect", id], out)?;
        check("replay inspect", record.contains(NOTE) && record.contains("no space left for notes"), &record)?;

        writeln!(out, "\n# 4. As long as the cause is there, a replay fails too, and says so. The record stays.")?;
        let (code, _) = workshop.run(&["replay", "run", id], out)?;
        check("the failing replay", code == Some(1), &format!("exit code {code:?}"))?;

        writeln!(out, "\n# 5. Somebody frees the disk. First a look, then the replay.")?;
        writeln!(out, "\n$ rm ./state/disk-full")?;
        step("freeing the disk", fs::remove_file(state.join("disk-full")))?;
        let shown = workshop.must_run("the dry run", &["replay", "run", id, "--dry-run"], out)?;
        check("the dry run", shown.contains("tool check:  present"), &shown)?;
        check("the dry run", !state.join("notes").exists(), "the dry run called the tool")?;
        let replayed = workshop.must_run("replay run", &["replay", "run", id], out)?;
        check("replay run", replayed.starts_with(&format!("replay ok: {id}\n")), &replayed)?;
        let list = workshop.must_run("replay list", &["replay", "list", "--status", "replayed"], out)?;
        check("replay list", list.starts_with(id), &list)?;

        writeln!(out, "\n# 6. A call that has succeeded is not made twice.")?;
        let (code, _) = workshop.run(&["replay", "run", id], out)?;
        check("the second replay", code == Some(1), &format!("exit code {code:?}"))?;
        writeln!(out, "\n$ cat ./state/notes")?;
        let notes = step("reading the notes", fs::read_to_string(state.join("notes")))?;
        write!(out, "{notes}")?;
        check("the notes", notes == format!("{NOTE}\n"), &notes)
    }
}
