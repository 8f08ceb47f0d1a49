//! Circuits and the retry budget.

use std::time::Duration;

use super::super::sim::Sim;
use crate::breaker::CircuitSettings;
use crate::budget::BudgetSettings;
use crate::record::{Executed, FailureClass};
use crate::restart::RestartSettings;

fn with_tool_circuit() -> Sim {
    Sim::with(|settings| {
        let circuit = Some(CircuitSettings { failures: 3, ..CircuitSettings::default() });
        settings.reliability.defaults.circuit = circuit;
        for (_, tool) in &mut settings.reliability.per_tool {
            tool.circuit = circuit;
        }
    })
}

fn fail(sim: &mut Sim, id: u64, tool: &str) {
    sim.call(id, tool);
    sim.error(sim.last_sent(), -32000, "sick");
}

#[test]
fn a_tool_that_keeps_failing_is_left_alone_and_the_error_says_until_when() {
    let mut sim = with_tool_circuit();
    for id in 1..=3 {
        fail(&mut sim, id, "pay");
    }
    let sent = sim.sent().len();
    sim.run_until(4_000);
    sim.call(4, "pay");
    assert_eq!(sim.sent().len(), sent);
    let letter = sim.letters.last().expect("it is captured");
    assert_eq!((letter.class, letter.executed, letter.attempts.len()), (FailureClass::CircuitOpen, Executed::No, 0));
    let mark = sim.last_mark();
    assert_eq!(
        (&mark["class"], &mark["executed"], &mark["attempts"]),
        (&"circuit_open".into(), &"no".into(), &0.into())
    );
    assert_eq!(
        mark["circuit"],
        serde_json::json!({"scope": "tool", "until": "2023-11-14T22:13:30.000Z", "retry_after_ms": 6000})
    );
    assert_eq!(
        sim.last_answer()["error"]["message"],
        "tool \"pay\": its circuit is open until 2023-11-14T22:13:30.000Z after 3 failures within 30 s; nothing was sent"
    );
    // Others go on.
    sim.call(5, "other");
    assert_eq!(sim.sent().len(), sent + 1);
}

#[test]
fn one_probe_decides_after_that() {
    let mut sim = with_tool_circuit();
    for id in 1..=3 {
        fail(&mut sim, id, "pay");
    }
    sim.run_until(10_000);
    sim.call(4, "pay");
    let probe = sim.last_sent();
    sim.call(5, "pay");
    assert_eq!(sim.last_mark()["class"], "circuit_open");
    sim.error(probe, -32000, "still sick");
    sim.run_until(19_999);
    sim.call(6, "pay");
    assert_eq!(sim.last_mark()["class"], "circuit_open");
    sim.run_until(20_000);
    sim.call(7, "pay");
    sim.result(sim.last_sent(), "{}");
    sim.call(8, "pay");
    sim.result(sim.last_sent(), "{}");
    assert_eq!(sim.last_answer()["id"], 8);
    assert!(sim.log.iter().any(|line| line.ends_with("!diag the circuit of tool \"pay\" is closed again")));
}

#[test]
fn a_withdrawn_probe_makes_room_for_another() {
    let mut sim = with_tool_circuit();
    for id in 1..=3 {
        fail(&mut sim, id, "pay");
    }
    sim.run_until(10_000);
    sim.call(4, "pay");
    let sent = sim.sent().len();
    sim.client(super::super::sim::cancel(4));
    sim.call(5, "pay");
    assert_eq!(sim.sent().len(), sent + 1);
}

#[test]
fn a_tools_own_errors_and_refused_arguments_are_answers() {
    let mut sim = with_tool_circuit();
    for id in 1..=20 {
        sim.call(id, "pay");
        if id % 2 == 0 {
            sim.error(sim.last_sent(), -32602, "bad arguments");
        } else {
            sim.result(sim.last_sent(), r#"{"isError":true,"content":[]}"#);
        }
    }
    assert_eq!(sim.sent().len(), 20);
}

#[test]
fn a_call_that_was_tried_before_ends_as_its_last_attempt_did() {
    let mut sim = with_tool_circuit();
    fail(&mut sim, 1, "safe_echo");
    sim.run_until(100);
    sim.error(sim.last_sent(), -32000, "sick");
    sim.run_until(300);
    sim.call(2, "safe_echo");
    let second = sim.last_sent();
    sim.error(second - 1, -32000, "sick");
    sim.error(second, -32000, "sick");
    let letter = sim.letters.last().expect("captured");
    assert_eq!((letter.class, letter.executed), (FailureClass::UpstreamError, Executed::Maybe));
    assert!(letter.message.starts_with("sick; not tried again: its circuit is open until"), "{}", letter.message);
    // The client has the server's own error.
    assert_eq!(sim.last_answer()["error"]["message"], "sick");
}

#[test]
fn without_a_setting_tools_have_no_circuit() {
    let mut sim = Sim::new();
    for id in 1..=30 {
        fail(&mut sim, id, "pay");
    }
    assert_eq!(sim.sent().len(), 30);
}

/// A server that was started and answered once.
fn dying(change: impl FnOnce(&mut super::super::Settings)) -> Sim {
    let mut sim = Sim::with(|settings| {
        settings.restart =
            RestartSettings { max: 100, base: Duration::from_millis(10), enabled: true, ..RestartSettings::default() };
        change(settings);
    });
    sim.client(r#"{"jsonrpc":"2.0","id":"one","method":"tools/list"}"#);
    sim.result(sim.last_sent(), "{}");
    sim
}

#[test]
fn a_server_that_dies_again_and_again_gets_no_calls_for_a_while() {
    let mut sim = dying(|_| {});
    for _ in 0..4 {
        sim.upstream_dies(1);
        sim.run_for(500);
    }
    sim.call(1, "pay");
    sim.upstream_dies(1);
    assert_eq!(sim.last_mark()["class"], "transport", "what was sent may have run");
    let sent = sim.sent().len();
    sim.call(2, "pay");
    assert_eq!(sim.last_mark()["circuit"]["scope"], "upstream");
    sim.run_for(9_999);
    sim.call(3, "pay");
    assert_eq!(sim.last_mark()["class"], "circuit_open");
    sim.run_for(1);
    sim.call(4, "pay");
    assert_eq!(sim.sent().len(), sent + 1, "{:#?}", sim.log);
    sim.call(5, "pay");
    assert_eq!(sim.last_mark()["class"], "circuit_open", "one probe at a time");
    sim.result(sim.last_sent(), "{}");
    sim.call(6, "pay");
    assert_eq!(sim.sent().len(), sent + 2);
}

#[test]
fn what_waits_in_line_when_the_circuit_opens_is_not_sent() {
    let mut sim = dying(|settings| settings.restart.base = Duration::from_millis(1_000));
    for _ in 0..4 {
        sim.upstream_dies(1);
        sim.run_for(5_500);
    }
    sim.upstream_exits(crate::dispatcher::event::ProcessEnd::Code(1), &[]);
    sim.call(1, "pay");
    assert!(sim.letters.is_empty());
    sim.upstream_closes(&[]);
    assert_eq!(sim.last_mark()["class"], "circuit_open");
}

#[test]
fn many_calls_at_one_death_are_one_failure() {
    let mut sim = dying(|_| {});
    for id in 1..=20 {
        sim.call(id, "pay");
    }
    sim.upstream_dies(1);
    sim.run_for(500);
    sim.call(21, "pay");
    sim.result(sim.last_sent(), "{}");
    assert_eq!(sim.last_answer()["id"], 21);
}

#[test]
fn the_servers_circuit_can_be_switched_off() {
    let mut sim = dying(|settings| settings.reliability.circuit = None);
    for _ in 0..8 {
        sim.upstream_dies(1);
        sim.run_for(3_000);
    }
    sim.run_for(3_000);
    sim.call(1, "pay");
    sim.result(sim.last_sent(), "{}");
    assert_eq!(sim.last_answer()["id"], 1);
}

#[test]
fn retries_beyond_the_budget_are_not_made_and_the_failure_says_so() {
    let mut sim = Sim::with(|settings| {
        settings.reliability.budget = BudgetSettings { percent: 0, floor: 3, window: Duration::from_secs(60) };
    });
    for id in 1..=3 {
        fail(&mut sim, id, "safe_echo");
    }
    fail(&mut sim, 4, "safe_echo");
    let letter = sim.letters.last().expect("captured at once");
    assert_eq!(letter.attempts.len(), 1);
    assert_eq!(
        letter.message,
        "sick; not tried again: the retry budget is used up (reliability.retry.budget: 0 % of calls, at least 3, within 60 s)"
    );
    sim.run_until(150_000);
    let sent = sim.sent().len();
    fail(&mut sim, 5, "safe_echo");
    sim.run_for(100);
    assert_eq!(sim.sent().len(), sent + 2, "a minute later there is some again");
}
