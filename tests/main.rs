//! Tests that run the real binary against real processes.
#![allow(clippy::disallowed_methods, reason = "tests watch real processes in real time")]

mod audit;
mod chroot;
mod cli_texts;
mod config;
mod disk_faults;
mod features;
mod framing;
mod http;
mod http_faults;
mod http_oauth;
mod http_tls;
mod ids;
mod json_text;
mod peers_work;
mod pipes;
mod processes;
mod queue;
mod real_servers;
mod recorder;
mod remote_servers;
mod replay;
mod report;
mod retries;
mod shells;
mod support;
mod timing;
