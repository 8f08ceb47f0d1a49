//! An upstream that is a child process: its start, its three streams, its end.

use std::ffi::{OsStr, OsString};
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;

use crossbeam_channel::Sender;
use rustix::process::{Pid, Signal, WaitIdOptions};

use super::log::{Line, Log, STDERR_LINE_MAX};
use super::outbox::{Direct, Outbox, Report, Watch};
use super::reader::read_frames;
use crate::dispatcher::event::{Event, Incarnation, ProcessEnd, StopSignal, UpstreamId};
use crate::wire::framer::Framed;
use crate::wire::message::from_upstream;

/// A running upstream process.
pub struct UpstreamProcess {
    /// Frames to it.
    pub outbox: Outbox,
    child: Child,
}

/// Where an upstream's events go.
#[derive(Clone)]
pub struct Wiring {
    /// Frames and the end of its output, in order.
    pub frames: Sender<Vec<Event>>,
    /// Everything else.
    pub control: Sender<Event>,
    /// Its standard error.
    pub log: Log,
    /// Hears what becomes of attempts.
    pub watch: Option<Arc<dyn Watch>>,
}

impl UpstreamProcess {
    /// Starts `argv` in a process group of its own, with our environment, in `cwd` or else our working directory.
    ///
    /// # Errors
    /// A text that names the command, the reason and the remedy.
    pub fn start(
        argv: &[OsString],
        cwd: Option<&Path>,
        upstream: UpstreamId,
        incarnation: Incarnation,
        frame_bytes_max: usize,
        wiring: &Wiring,
    ) -> Result<UpstreamProcess, String> {
        let (program, args) = argv.split_first().ok_or("no server command was given")?;
        let mut command = Command::new(program);
        if let Some(cwd) = cwd {
            command.current_dir(cwd);
        }
        let mut child = command
            .args(args)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .process_group(0)
            .spawn()
            .map_err(|error| start_error(program, args, &error, std::env::var_os("PATH").as_deref()))?;
        let threads = |error: io::Error| format!("cannot start a thread for the server: {error}");
        let (Some(stdin), Some(stdout), Some(stderr)) = (child.stdin.take(), child.stdout.take(), child.stderr.take())
        else {
            return Err("the server was started without pipes".to_owned());
        };
        let stdin = OwnedFd::from(stdin);
        // Only our end of this pipe is concerned: the server's end keeps its own mode.
        rustix::io::ioctl_fionbio(&stdin, true).map_err(|error| threads(error.into()))?;
        let control = wiring.control.clone();
        let outbox = Outbox::start("up-in", stdin, Direct::NonBlocking, wiring.watch.clone(), move |said| {
            let _ = control.send(outbox_event(upstream, incarnation, said));
        })
        .map_err(threads)?;
        read_stdout(stdout.into(), upstream, incarnation, frame_bytes_max, wiring).map_err(threads)?;
        read_stderr(stderr.into(), wiring.log.clone()).map_err(threads)?;
        wait_for_end(&child, upstream, incarnation, wiring.control.clone()).map_err(threads)?;
        Ok(UpstreamProcess { outbox, child })
    }

    /// Signals the process group. The leader is not reaped before [`UpstreamProcess::reap`], so its number still means
    /// this group.
    pub fn signal(&self, signal: StopSignal) {
        let signal = match signal {
            StopSignal::Term => Signal::TERM,
            StopSignal::Kill => Signal::KILL,
        };
        if let Some(group) = i32::try_from(self.child.id()).ok().and_then(Pid::from_raw) {
            // No such group: all of it has ended, as wanted.
            let _ = rustix::process::kill_process_group(group, signal);
        }
    }

    /// Takes the ended process out of the process table. No signal may follow.
    pub fn reap(mut self) {
        let _ = self.child.try_wait();
    }
}

/// What an outbox to an upstream says, as an event.
#[must_use]
pub fn outbox_event(upstream: UpstreamId, incarnation: Incarnation, said: Report) -> Event {
    match said {
        Report::Level(level) => Event::UpstreamOutbox { upstream, incarnation, level },
        Report::Gone { unsent } => Event::UpstreamDeaf { upstream, incarnation, unsent },
    }
}

fn read_stdout(
    stdout: OwnedFd,
    upstream: UpstreamId,
    incarnation: Incarnation,
    frame_bytes_max: usize,
    wiring: &Wiring,
) -> io::Result<()> {
    let to = wiring.frames.clone();
    super::spawn("up-out", move || {
        read_frames(stdout.as_fd(), frame_bytes_max, |frames| {
            let events = frames.into_iter().map(|framed| match framed {
                Framed::Frame(bytes) => Event::UpstreamFrame { upstream, incarnation, frame: from_upstream(bytes) },
                Framed::Oversized { head } => Event::UpstreamOversized { upstream, incarnation, head },
                Framed::OversizedEnd { tail } => Event::UpstreamOversizedEnd { upstream, incarnation, tail },
            });
            to.send(events.collect()).is_ok()
        });
        let _ = to.send(vec![Event::UpstreamClosed { upstream, incarnation, unsent: Vec::new() }]);
    })?;
    Ok(())
}

/// Passes the server's standard error on, line by line, so that our own lines never stand inside one of its.
fn read_stderr(stderr: OwnedFd, log: Log) -> io::Result<()> {
    super::spawn("up-err", move || {
        let mut chunk = vec![0; STDERR_LINE_MAX];
        let mut partial: Vec<u8> = Vec::new();
        loop {
            let count = match rustix::io::read(&stderr, &mut chunk[..]) {
                Ok(0) => break,
                Ok(count) => count,
                Err(rustix::io::Errno::INTR) => continue,
                Err(_) => break,
            };
            let mut rest = &chunk[..count];
            while !rest.is_empty() {
                let line_end = memchr::memchr(b'\n', rest).map_or(rest.len(), |at| at + 1);
                let take = line_end.min(STDERR_LINE_MAX - partial.len());
                partial.extend_from_slice(&rest[..take]);
                rest = &rest[take..];
                if partial.last() == Some(&b'\n') || partial.len() >= STDERR_LINE_MAX {
                    log.line(Line::Raw(std::mem::take(&mut partial)));
                }
            }
        }
        if !partial.is_empty() {
            log.line(Line::Raw(partial));
        }
    })?;
    Ok(())
}

/// Reports the end of the process without reaping it.
fn wait_for_end(
    child: &Child,
    upstream: UpstreamId,
    incarnation: Incarnation,
    control: Sender<Event>,
) -> io::Result<()> {
    let Some(pid) = i32::try_from(child.id()).ok().and_then(Pid::from_raw) else { return Ok(()) };
    super::spawn("up-wait", move || {
        let options = WaitIdOptions::EXITED | WaitIdOptions::NOWAIT;
        let end = loop {
            match rustix::process::waitid(rustix::process::WaitId::Pid(pid), options) {
                Ok(Some(status)) => {
                    let signal = status.terminating_signal().map(ProcessEnd::Signal);
                    break signal.unwrap_or(ProcessEnd::Code(status.exit_status().unwrap_or(-1)));
                }
                Ok(None) | Err(rustix::io::Errno::INTR) => {}
                Err(_) => return,
            }
        };
        let _ = control.send(Event::UpstreamExited { upstream, incarnation, end, unsent: Vec::new() });
    })?;
    Ok(())
}

/// Why a command could not be started, with the remedy. Names no environment value but the search path.
fn start_error(program: &OsStr, args: &[OsString], error: &io::Error, path: Option<&OsStr>) -> String {
    let shown = program.to_string_lossy();
    let found = find_program(program, path);
    let reason = match (error.kind(), found) {
        (_, Some(found)) if found.is_dir() => format!("{} is a directory", found.display()),
        (io::ErrorKind::NotFound, Some(found)) => match interpreter(&found) {
            Some(interpreter) => {
                format!("{} names the interpreter {interpreter:?}, which does not exist", found.display())
            }
            None => format!("{} exists, but what it needs to run does not", found.display()),
        },
        (io::ErrorKind::NotFound, None) if program.as_encoded_bytes().contains(&b'/') => "no such file".to_owned(),
        (io::ErrorKind::NotFound, None) => {
            let searched = path.map_or("PATH is not set".into(), |path| format!("PATH is {}", path.to_string_lossy()));
            format!("not found; {searched}")
        }
        (io::ErrorKind::PermissionDenied, Some(found)) => {
            format!("{} is not executable (chmod +x?)", found.display())
        }
        _ => error.to_string(),
    };
    let mut text = format!("cannot start the server {shown:?}: {reason}");
    if args.is_empty() && shown.contains(char::is_whitespace) {
        let advice = format!("the whole command is one argument; write it as several: mcprelay run -- {shown}");
        text = format!("{text}; {advice}");
    }
    text
}

/// The file that a command name means, executable or not.
fn find_program(program: &OsStr, path: Option<&OsStr>) -> Option<PathBuf> {
    if program.as_encoded_bytes().contains(&b'/') {
        let file = Path::new(program);
        return file.exists().then(|| file.to_path_buf());
    }
    std::env::split_paths(path?).map(|folder| folder.join(program)).find(|file| file.is_file())
}

/// The program behind `#!` in a script's first line.
fn interpreter(file: &Path) -> Option<String> {
    use std::io::Read;
    let mut head = [0; 256];
    let count = std::fs::File::open(file).ok()?.read(&mut head).ok()?;
    let line = head[..count].strip_prefix(b"#!")?.split(|byte| *byte == b'\n').next()?;
    String::from_utf8_lossy(line).split_whitespace().next().map(str::to_owned)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn error_of(program: &str, args: &[&str], path: &str) -> String {
        let args: Vec<OsString> = args.iter().map(OsString::from).collect();
        let program = OsStr::new(program);
        let error = Command::new(program).args(&args).env("PATH", path).spawn().expect_err("cannot start");
        start_error(program, &args, &error, Some(OsStr::new(path)))
    }

    #[test]
    fn prc_5_a_command_that_is_not_there_is_named_with_the_path_searched() {
        let text = error_of("no-such-server", &["x"], "/usr/bin:/bin");
        assert_eq!(text, "cannot start the server \"no-such-server\": not found; PATH is /usr/bin:/bin");
        assert_eq!(error_of("/no/such", &[], "/bin"), "cannot start the server \"/no/such\": no such file");
        assert_eq!(error_of("/usr", &[], "/bin"), "cannot start the server \"/usr\": /usr is a directory");
    }

    #[test]
    fn prc_6_a_whole_command_in_one_argument_gets_advice() {
        let text = error_of("npx -y pkg /tmp", &[], "/bin");
        assert!(text.ends_with("write it as several: mcprelay run -- npx -y pkg /tmp"), "{text}");
    }
}
