//! A relay that appends every line it passes on to a file: the same bytes a client or a server sees, whatever it is
//! written in.
//!
//! Each line of the file is a direction and the line itself: `> ` towards the server, `< ` from it. `>.` and `<.` mark
//! the end of that stream, `= N` the exit code. A line is written down before it is passed on, so a request always
//! stands before its answer. A last line without newline is marked `>! ` or `<! `.

use std::ffi::OsString;
use std::fs::File;
use std::io::{BufRead, BufReader, Read, Write};
use std::process::ExitCode;
use std::sync::{Arc, Mutex, PoisonError};

use crate::Ended;

/// Runs `tap --log FILE -- COMMAND...`; gives COMMAND's exit code.
pub(crate) fn run(args: Vec<OsString>) -> Ended {
    let mut parser = lexopt::Parser::from_args(args);
    let mut path = None;
    while path.is_none() {
        match parser.next()? {
            Some(lexopt::Arg::Long("log")) => path = Some(parser.value()?),
            Some(other) => return Err(other.unexpected().into()),
            None => return Err("tap needs --log FILE".into()),
        }
    }
    let path = path.ok_or("tap needs --log FILE")?;
    let log = Arc::new(Mutex::new(File::options().append(true).create(true).open(path)?));
    let command = crate::command_after(&mut parser)?;
    let mut child = crate::start(&command)?;
    let to_child = child.stdin.take().ok_or("the child has no stdin")?;
    let from_child = child.stdout.take().ok_or("the child has no stdout")?;
    let their_log = Arc::clone(&log);
    // Left behind at the end: it may wait on our own stdin for ever.
    std::thread::spawn(move || pass(std::io::stdin().lock(), to_child, &their_log, b'>'));
    pass(from_child, crate::raw_stdout()?, &log, b'<');
    let code = crate::exit_code(child.wait()?);
    note(&log, format!("= {code}\n").as_bytes());
    Ok(ExitCode::from(code))
}

fn pass(from: impl Read, mut to: impl Write, log: &Mutex<File>, mark: u8) {
    let mut from = BufReader::with_capacity(64 * 1024, from);
    let mut line = Vec::new();
    loop {
        line.clear();
        match from.read_until(b'\n', &mut line) {
            Ok(0) | Err(_) => break,
            Ok(_) => {}
        }
        let whole = line.last() == Some(&b'\n');
        let mut entry = vec![mark];
        entry.extend_from_slice(if whole { b" " } else { b"! " });
        entry.extend_from_slice(&line);
        if !whole {
            entry.push(b'\n');
        }
        note(log, &entry);
        if to.write_all(&line).and_then(|()| to.flush()).is_err() {
            break;
        }
    }
    note(log, &[mark, b'.', b'\n']);
}

fn note(log: &Mutex<File>, entry: &[u8]) {
    // One write per entry: whoever reads the file meanwhile sees whole lines.
    let _ = log.lock().unwrap_or_else(PoisonError::into_inner).write_all(entry);
}
