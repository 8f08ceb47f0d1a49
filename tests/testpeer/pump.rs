//! A bare relay: one thread per direction copies bytes. It is the floor that any relay's cost is compared with.

use std::ffi::OsString;
use std::io::{Read, Write};
use std::process::ExitCode;

use crate::Ended;

const BUFFER_BYTES: usize = 64 * 1024;

/// Runs `pump -- COMMAND...` until COMMAND has closed its output and ended; gives its exit code.
pub(crate) fn run(args: Vec<OsString>) -> Ended {
    let mut parser = lexopt::Parser::from_args(args);
    let mut child = crate::start(&crate::command_after(&mut parser)?)?;
    let to_child = child.stdin.take().ok_or("the child has no stdin")?;
    let from_child = child.stdout.take().ok_or("the child has no stdout")?;
    // Left behind at the end: it may wait on our own stdin for ever.
    std::thread::spawn(move || copy(std::io::stdin().lock(), to_child));
    copy(from_child, crate::raw_stdout()?);
    Ok(ExitCode::from(crate::exit_code(child.wait()?)))
}

fn copy(mut from: impl Read, mut to: impl Write) {
    let mut buffer = vec![0; BUFFER_BYTES];
    while let Ok(count) = from.read(&mut buffer) {
        if count == 0 || to.write_all(&buffer[..count]).and_then(|()| to.flush()).is_err() {
            return;
        }
    }
}
