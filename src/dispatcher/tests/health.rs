//! Health checks: a silent hang is found out and ended.

use std::time::Duration;

use super::super::event::Level;
use super::super::sim::Sim;
use crate::exit::ExitStatus;
use crate::restart::{HealthSettings, RestartSettings};

fn sim(restart: bool) -> Sim {
    Sim::with(|settings| {
        settings.restart = RestartSettings { enabled: restart, ..RestartSettings::default() };
        settings.health =
            Some(HealthSettings { interval: Duration::from_secs(30), timeout: Duration::from_millis(5_000) });
    })
}

fn legacy(restart: bool) -> Sim {
    let mut sim = sim(restart);
    sim.client(r#"{"jsonrpc":"2.0","id":0,"method":"initialize","params":{}}"#);
    sim.result(sim.last_sent(), r#"{"protocolVersion":"x","capabilities":{}}"#);
    sim.skip();
    sim
}

#[test]
fn a_legacy_server_is_pinged_and_its_answer_is_nobodys() {
    let mut sim = legacy(true);
    sim.run_until(30_000);
    sim.expect("@30000\n>u {\"jsonrpc\":\"2.0\",\"id\":3,\"method\":\"ping\"}");
    sim.run_until(31_000);
    sim.error(3, -32601, "any answer is a sign of life");
    sim.expect("");
    sim.run_until(60_999);
    sim.expect("");
    sim.run_until(61_000);
    sim.expect("@61000\n>u {\"jsonrpc\":\"2.0\",\"id\":4,\"method\":\"ping\"}");
}

#[test]
fn a_modern_server_is_asked_what_it_knows() {
    let mut sim = sim(true);
    sim.client(r#"{"jsonrpc":"2.0","id":0,"method":"tools/list","params":{"_meta":{"io.modelcontextprotocol/protocolVersion":"2026-07-28","io.modelcontextprotocol/clientCapabilities":{},"x":1}}}"#);
    sim.result(sim.last_sent(), "{}");
    sim.skip();
    sim.run_until(30_000);
    sim.expect(
        r#"
        @30000
        >u {"jsonrpc":"2.0","id":3,"method":"server/discover","params":{"_meta":{"io.modelcontextprotocol/protocolVersion":"2026-07-28","io.modelcontextprotocol/clientCapabilities":{}}}}
    "#,
    );
}

#[test]
fn without_restarts_a_hang_ends_the_session() {
    let mut sim = legacy(false);
    sim.run_until(35_000);
    sim.upstream_dies(0);
    assert_eq!(sim.run_to_exit(), ExitStatus::Upstream);
}

#[test]
fn nothing_is_asked_before_the_first_answer_nor_of_a_server_that_is_not_read() {
    let mut sim = sim(true);
    sim.run_until(100_000);
    assert!(sim.to_upstream.is_empty());
    let mut sim = legacy(true);
    sim.run_until(30_000);
    sim.client_outbox(Level::Full);
    sim.run_until(300_000);
    assert!(!sim.log.iter().any(|line| line.contains("!close")), "its answer may wait in the pipe");
    sim.client_outbox(Level::Low);
    sim.run_until(304_999);
    sim.result(3, "{}");
    assert!(!sim.log.iter().any(|line| line.contains("!close")));
}
