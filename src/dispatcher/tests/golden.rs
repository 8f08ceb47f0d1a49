//! The transcripts of `tests/transcripts/`: from bytes to bytes, on virtual time.
//!
//! `c>` and `u>` are what client and upstream write, `@+30s` lets time pass, `#` is a comment. `>u` and `>c` are what
//! they read, `!` lines everything else that is done, all with the settings of the simulation. A test that fails shows
//! the whole transcript as it is now.

use std::path::Path;

use super::super::event::ProcessEnd;
use super::super::sim::Sim;
use crate::wire::framer::{Framed, Framer};

/// Plays the inputs of a transcript and writes down everything, inputs included.
fn play(transcript: &str) -> String {
    let mut sim = Sim::new();
    let mut client = Framer::new(10_000);
    let mut upstream = Framer::new(10_000);
    let mut out = String::new();
    for line in transcript.lines().filter(|line| !line.starts_with(['>', '!'])) {
        out.push_str(line);
        out.push('\n');
        if let Some(wait) = line.strip_prefix("@+") {
            sim.run_for(millis(wait));
        } else if line == "c> (end)" {
            sim.client_closes();
        } else if line == "u> (end)" {
            sim.upstream_closes(&[]);
        } else if let Some(exit) = line.strip_prefix("u> (exit ") {
            let exit = exit.strip_suffix(')').expect("closed");
            let (code, unsent) = exit.split_once(", never read ").unwrap_or((exit, ""));
            let unsent: Vec<u64> = unsent.split(' ').filter_map(|number| number.parse().ok()).collect();
            sim.upstream_exits(ProcessEnd::Code(code.parse().expect("a status")), &unsent);
        } else if let Some(written) = line.strip_prefix("c> ") {
            frames(&mut client, written).into_iter().for_each(|frame| sim.client(frame));
        } else if let Some(written) = line.strip_prefix("u> ") {
            frames(&mut upstream, written).into_iter().for_each(|frame| sim.upstream(frame));
        } else {
            assert!(line.starts_with('#'), "not understood: {line}");
        }
        for line in sim.take_lines() {
            out.push_str(&line);
            out.push('\n');
        }
    }
    out
}

/// What a line gives when it is read in small pieces and ends as it does on another system.
fn frames(framer: &mut Framer, line: &str) -> Vec<Vec<u8>> {
    let mut found = Vec::new();
    for piece in format!("{line}\r\n\n").as_bytes().chunks(7) {
        framer.push(piece, &mut found);
    }
    let frame = |framed| match framed {
        Framed::Frame(frame) => frame,
        Framed::Oversized { .. } | Framed::OversizedEnd { .. } => panic!("too long for a transcript: {line}"),
    };
    found.into_iter().map(frame).collect()
}

fn millis(wait: &str) -> u64 {
    match wait.strip_suffix("ms") {
        Some(number) => number.parse().expect("milliseconds"),
        None => 1_000 * wait.strip_suffix('s').expect("s or ms").parse::<u64>().expect("seconds"),
    }
}

#[test]
fn every_transcript_plays_as_it_is_written() {
    let directory = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/transcripts");
    let mut played = 0;
    for entry in std::fs::read_dir(&directory).expect("the transcripts are there") {
        let path = entry.expect("readable").path();
        let written = std::fs::read_to_string(&path).expect("readable");
        let found = play(&written);
        assert!(found == written, "{} plays differently now:\n{found}", path.display());
        played += 1;
    }
    assert!(played >= 10, "{played} transcripts");
}
