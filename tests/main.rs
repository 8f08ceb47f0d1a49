//! Tests that run the real binary against real processes.
#![allow(clippy::disallowed_methods, reason = "tests watch real processes in real time")]

mod chroot;
mod config;
mod features;
mod framing;
mod ids;
mod json_text;
mod peers_work;
mod pipes;
mod processes;
mod real_servers;
mod replay;
mod retries;
mod support;
mod timing;
