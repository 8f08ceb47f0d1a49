//! Faults on purpose: what follows is what follows from real ones.

use std::time::Duration;

use super::super::event::ProcessEnd;
use super::super::sim::Sim;
use crate::faults::{Fault, FaultRule, Faults, MILLION, When};
use crate::glob::Glob;
use crate::record::{Executed, FailureClass};
use crate::restart::RestartSettings;

fn sim(fault: Fault, when: When) -> Sim {
    sim_at(MILLION, fault, when)
}

/// With this fault for tools with `bad` in their name.
fn sim_at(rate: u32, fault: Fault, when: When) -> Sim {
    let rule = FaultRule { tool: Glob::new("*bad*"), rate, fault, when };
    let mut sim = Sim::with(|settings| {
        settings.faults = Some(Faults { seed: Some(11), rules: vec![rule] });
        settings.restart = RestartSettings { enabled: true, ..RestartSettings::default() };
    });
    sim.client(r#"{"jsonrpc":"2.0","id":"one","method":"tools/list"}"#);
    sim.result(sim.last_sent(), "{}");
    sim.skip();
    sim
}

fn error() -> Fault {
    Fault::Error { code: -32099, message: "made up".into() }
}

#[test]
fn they_are_announced_loudly_and_each_is_told() {
    let mut sim = sim(Fault::DropAnswer, When::After);
    let announced: Vec<&String> = sim.log.iter().filter(|line| line.contains("WARNING")).collect();
    assert_eq!(
        announced,
        [
            "@0 !diag WARNING: calls fail on purpose in this session (faults, seed 11)",
            "@0 !diag WARNING: fault on purpose for 100 % of attempts: tool \"*bad*\": answer dropped",
        ]
    );
    sim.call(1, "bad");
    sim.skip();
    sim.result(sim.last_sent(), "{}");
    sim.expect("!diag fault on purpose: tool \"*bad*\": answer dropped");
}

#[test]
fn a_delay_before_holds_the_request_back() {
    let mut sim = sim(Fault::Delay(Duration::from_millis(700)), When::Before);
    sim.call(1, "bad");
    let sent = sim.sent().len();
    sim.run_until(699);
    assert_eq!(sim.sent().len(), sent);
    sim.run_until(700);
    assert_eq!(sim.sent().len(), sent + 1);
    sim.run_until(1_650);
    sim.result(sim.last_sent(), "{}");
    assert_eq!(sim.last_answer()["id"], 1, "the attempt's time begins when it is sent");
    sim.assert_at_rest();
}

#[test]
fn a_delay_after_holds_the_answer_back_and_may_be_too_long() {
    let mut sim = sim(Fault::Delay(Duration::from_millis(700)), When::After);
    sim.call(1, "bad");
    sim.result(sim.last_sent(), "{}");
    sim.run_until(699);
    assert_eq!(sim.to_client.len(), 1);
    sim.run_until(700);
    assert_eq!(sim.last_answer()["id"], 1);
    sim.call(2, "bad");
    sim.run_until(1_500);
    sim.result(sim.last_sent(), "{}");
    sim.run_until(2_500);
    assert_eq!(sim.last_mark()["class"], "timeout");
    // It settles what happened, as any late answer does.
    assert_eq!(sim.lates.len(), 1);
    assert_eq!(sim.lates[0].executed, Executed::Yes);
}

#[test]
fn an_error_before_keeps_the_tool_from_running() {
    let mut sim = sim(error(), When::Before);
    let sent = sim.to_upstream.len();
    sim.call(1, "bad");
    assert_eq!(sim.to_upstream.len(), sent);
    let answer = sim.last_answer();
    assert_eq!((&answer["id"], &answer["error"]["code"]), (&1.into(), &(-32099).into()));
    assert_eq!(answer["error"]["message"], "made up");
    sim.call(2, "good");
    assert_eq!(sim.to_upstream.len(), sent + 1);
}

#[test]
fn an_error_after_takes_the_place_of_the_answer() {
    let mut sim = sim(error(), When::After);
    sim.call("\"x\"", "bad");
    sim.result(sim.last_sent(), "{}");
    let answer = sim.last_answer();
    assert_eq!((&answer["id"], &answer["error"]["code"]), (&"x".into(), &(-32099).into()));
    assert_eq!(sim.letters.len(), 1);
    sim.assert_at_rest();
}

#[test]
fn a_dropped_request_or_answer_is_a_timeout() {
    for when in [When::Before, When::After] {
        let mut sim = sim(Fault::DropAnswer, when);
        let sent = sim.sent().len();
        sim.call(1, "bad");
        assert_eq!(sim.sent().len() - sent, usize::from(when == When::After));
        if when == When::After {
            sim.result(sim.last_sent(), "{}");
        }
        sim.run_until(1_000);
        assert_eq!((sim.letters[0].class, sim.letters[0].executed), (FailureClass::Timeout, Executed::Maybe));
        sim.assert_at_rest();
    }
}

#[test]
fn a_doubled_answer_reaches_the_client_once() {
    let mut sim = sim(Fault::DuplicateAnswer, When::After);
    sim.call(1, "bad");
    sim.result(sim.last_sent(), "{}");
    assert_eq!(sim.to_client.len(), 2);
    sim.client_closes();
    sim.upstream_dies(0);
    sim.run_to_exit();
    assert!(sim.log.iter().any(|line| line.contains("1 answers to unknown ids")));
}

#[test]
fn a_server_killed_before_has_not_run_the_tool() {
    let mut sim = sim_at(MILLION / 2, Fault::KillUpstream, When::Before);
    let sent = sim.to_upstream.len();
    // The seed leaves some alone.
    for id in 1.. {
        sim.call(id, "bad");
        if sim.to_upstream.len() == sent + usize::try_from(id).expect("small") {
            sim.result(sim.last_sent(), "{}");
            continue;
        }
        break;
    }
    assert!(sim.log.last().is_some_and(|line| line.ends_with("!kill")));
    // Others wait for the next process.
    let sent = sim.to_upstream.len();
    sim.call(100, "good");
    assert_eq!(sim.to_upstream.len(), sent);
    sim.upstream_exits(ProcessEnd::Signal(9), &[]);
    sim.upstream_closes(&[]);
    sim.run_for(300);
    assert!(sim.to_upstream.len() > sent);
    assert!(sim.letters.is_empty(), "what was not sent is tried again, whatever the tool: {:?}", sim.letters);
}

#[test]
fn a_server_killed_after_has_run_the_tool() {
    let mut sim = sim(Fault::KillUpstream, When::After);
    sim.call(1, "bad");
    sim.result(sim.last_sent(), "{}");
    assert_eq!(sim.to_client.len(), 1, "its answer did not pass");
    sim.upstream_exits(ProcessEnd::Signal(9), &[]);
    sim.upstream_closes(&[]);
    assert_eq!((sim.letters[0].class, sim.letters[0].executed), (FailureClass::Transport, Executed::Maybe));
}

#[test]
fn a_retry_meets_its_own_draw() {
    let mut sim = sim_at(MILLION / 2, Fault::Error { code: -32000, message: "x".into() }, When::Before);
    for id in 1..=10 {
        sim.call(id, "safe_bad");
        for _ in 0..3 {
            sim.run_for(500);
            let last = sim.last_sent();
            sim.result(last, "{}");
        }
    }
    let retried = sim.events.iter().filter(|event| event.attempts > 1 && event.error.is_none()).count();
    assert!(retried > 0, "{:#?}", sim.log);
}

#[test]
fn the_same_seed_gives_the_same_faults_whatever_else_is_random() {
    let hits = |session: u64| -> Vec<bool> {
        let rule = FaultRule { tool: Glob::new("*"), rate: MILLION / 2, fault: error(), when: When::Before };
        let mut sim = Sim::seeded(session, |settings| {
            settings.faults = Some(Faults { seed: Some(5), rules: vec![rule] });
        });
        let hit = |id: u64| {
            let sent = sim.to_upstream.len();
            sim.call(id, "any");
            sim.to_upstream.len() == sent
        };
        (1..50).map(hit).collect()
    };
    assert_eq!(hits(1), hits(2));
}
