//! The stand-in peers that tests and benchmarks run as real processes.
//!
//! `server` is a scriptable MCP server, `echo` the fastest possible one, `pump` a bare relay, `tap` a relay that writes
//! down every line, `bench-client` a client that measures. None of them uses the code under test.
#![allow(
    clippy::disallowed_methods,
    reason = "a peer keeps its own time and threads: it must not share code under test"
)]

mod bench_client;
mod echo;
mod json;
mod output;
mod pump;
mod server;
mod settings;
mod tap;
mod tools;

use std::ffi::OsString;
use std::io::Write;
use std::process::ExitCode;

const USAGE: &str = "\
usage: testpeer server [options]                  a scriptable MCP server (testpeer server --help)
       testpeer echo [--result-bytes N]           answers every request, by byte scan
       testpeer pump -- COMMAND...                copies bytes both ways in front of COMMAND
       testpeer tap --log FILE -- COMMAND...      the same, and appends every line to FILE
       testpeer bench-client [options] -- COMMAND...
           --calls N --in-flight K --payload BYTES --warmup N   prints one JSON line
";

fn main() -> ExitCode {
    let mut args = std::env::args_os().skip(1);
    let mode = args.next().unwrap_or_default();
    let args: Vec<OsString> = args.collect();
    let ended = match mode.to_str() {
        Some("server") => server::run(args),
        Some("echo") => echo::run(args),
        Some("pump") => pump::run(args),
        Some("tap") => tap::run(args),
        Some("bench-client") => bench_client::run(args),
        _ => Err(USAGE.into()),
    };
    ended.unwrap_or_else(|error| {
        let _ = writeln!(std::io::stderr(), "testpeer: {error}");
        ExitCode::from(2)
    })
}

/// What a mode ends with; an error is a wrong use or a broken environment, never something a test provokes.
pub(crate) type Ended = Result<ExitCode, Box<dyn std::error::Error + Send + Sync>>;

/// The exit code of a child, with the shell's convention for one that a signal ended.
pub(crate) fn exit_code(status: std::process::ExitStatus) -> u8 {
    use std::os::unix::process::ExitStatusExt;
    let code = status.code().unwrap_or_else(|| 128 + status.signal().unwrap_or(0));
    u8::try_from(code).unwrap_or(255)
}

/// Starts `argv` with piped stdin and stdout; stderr stays ours.
pub(crate) fn start(argv: &[OsString]) -> Result<std::process::Child, Box<dyn std::error::Error + Send + Sync>> {
    use std::process::{Command, Stdio};
    let (program, args) = argv.split_first().ok_or("a command is missing after --")?;
    Command::new(program)
        .args(args)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .map_err(|error| format!("cannot start {}: {error}", program.to_string_lossy()).into())
}

/// The remaining arguments of `parser`: the command, without the `--` before it.
pub(crate) fn command_after(parser: &mut lexopt::Parser) -> Result<Vec<OsString>, lexopt::Error> {
    let mut rest: Vec<OsString> = parser.raw_args()?.collect();
    if rest.first().is_some_and(|first| first == "--") {
        rest.remove(0);
    }
    Ok(rest)
}

/// Our stdout without the line buffer: one write call is one write.
pub(crate) fn raw_stdout() -> std::io::Result<std::fs::File> {
    use std::os::fd::AsFd;
    Ok(std::fs::File::from(std::io::stdout().as_fd().try_clone_to_owned()?))
}
