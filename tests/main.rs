//! Tests that run the real binary against real processes.

mod peers_work;
mod real_servers;
mod replay;
mod support;
