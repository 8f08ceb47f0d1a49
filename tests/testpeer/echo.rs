//! The fastest server there can be: it answers every request by looking for its id in the bytes.

use std::ffi::OsString;
use std::io::{Read, Write};
use std::process::ExitCode;

use memchr::memmem::Finder;

use crate::Ended;

/// Runs `echo [--result-bytes N]` until stdin ends. Answers of one read leave in one write.
pub(crate) fn run(args: Vec<OsString>) -> Ended {
    let mut parser = lexopt::Parser::from_args(args);
    let mut result_bytes = 2usize;
    while let Some(arg) = parser.next()? {
        match arg {
            lexopt::Arg::Long("result-bytes") => result_bytes = parser.value()?.to_string_lossy().parse()?,
            other => return Err(other.unexpected().into()),
        }
    }
    let result = format!(r#"{{"content":[{{"type":"text","text":"{}"}}]}}"#, "x".repeat(result_bytes)).into_bytes();
    let hello =
        br#"{"protocolVersion":"2025-06-18","capabilities":{"tools":{}},"serverInfo":{"name":"echo","version":"1"}}"#;
    let id_finder = Finder::new(br#""id":"#);
    let initialize = Finder::new(br#""method":"initialize""#);

    let mut input = std::io::stdin().lock();
    let mut output = crate::raw_stdout()?;
    let mut pending: Vec<u8> = Vec::new();
    let mut answers = Vec::new();
    let mut buffer = vec![0; 256 * 1024];
    loop {
        let count = input.read(&mut buffer)?;
        if count == 0 {
            return Ok(ExitCode::SUCCESS);
        }
        let seen = pending.len();
        pending.extend_from_slice(&buffer[..count]);
        let mut start = 0;
        let mut search = seen;
        while let Some(length) = memchr::memchr(b'\n', &pending[search..]) {
            let end = search + length;
            let line = &pending[start..end];
            // Only the head is searched: a peer of ours writes the id first, and a big payload is not read twice.
            let head = &line[..line.len().min(512)];
            if let Some(at) = id_finder.find(head) {
                let id = &head[at + 5..];
                let id = &id[..memchr::memchr3(b',', b'}', b' ', id).unwrap_or(id.len())];
                answers.extend_from_slice(br#"{"jsonrpc":"2.0","id":"#);
                answers.extend_from_slice(id);
                answers.extend_from_slice(br#","result":"#);
                answers.extend_from_slice(if initialize.find(head).is_some() { hello } else { &result });
                answers.extend_from_slice(b"}\n");
            }
            start = end + 1;
            search = start;
        }
        pending.drain(..start);
        if !answers.is_empty() {
            output.write_all(&answers)?;
            answers.clear();
        }
    }
}
