//! Tests that run the real binary against real processes.

mod framing;
mod peers_work;
mod real_servers;
mod support;
