//! What the tests of real processes share: starting peers, waiting for frames, comparing conversations.
//!
//! Nothing sleeps: every wait ends with what it waits for, or fails at a deadline with what was seen instead.
#![allow(clippy::disallowed_methods, reason = "tests watch real processes in real time")]
#![allow(dead_code, reason = "each test uses a part")]

pub(crate) mod conversation;
pub(crate) mod http;
#[path = "../testpeer/json.rs"]
pub(crate) mod json;
pub(crate) mod peers;
pub(crate) mod process;
pub(crate) mod records;
pub(crate) mod session;
pub(crate) mod temp;

#[allow(unused_imports, reason = "each test uses a part")]
pub(crate) use process::{Frame, Process, Start};
pub(crate) use temp::TempDir;

use std::path::Path;

/// The program under test.
pub(crate) fn mcprelay() -> &'static Path {
    Path::new(env!("CARGO_BIN_EXE_mcprelay"))
}

/// The stand-in peers.
pub(crate) fn testpeer() -> &'static Path {
    Path::new(env!("CARGO_BIN_EXE_testpeer"))
}
