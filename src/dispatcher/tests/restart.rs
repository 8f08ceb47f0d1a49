//! An upstream that ends is started again, and the client's session goes on.

use std::time::Duration;

use super::super::event::{Level, ProcessEnd};
use super::super::sim::Sim;
use crate::exit::ExitStatus;
use crate::record::{Executed, FailureClass};
use crate::restart::RestartSettings;

const INITIALIZE: &str = r#"{"jsonrpc":"2.0","id":"one","method":"initialize","params":{"protocolVersion":"2025-11-25","capabilities":{"roots":{}},"_meta":{"authorization":"Bearer k-alice"}}}"#;
const INITIALIZED: &str = r#"{"jsonrpc":"2.0","method":"notifications/initialized"}"#;
const TOLD: &str = r#"{"protocolVersion":"2025-11-25","capabilities":{"tools":{"listChanged":true},"prompts":{},"logging":{}},"serverInfo":{"name":"fake"}}"#;

/// Restarts with the default limits and, but for the jitter, known delays.
fn sim() -> Sim {
    Sim::with(|settings| settings.restart = RestartSettings { enabled: true, ..RestartSettings::default() })
}

/// After a legacy opening.
fn legacy() -> Sim {
    let mut sim = sim();
    sim.client(INITIALIZE);
    sim.result(sim.last_sent(), TOLD);
    sim.client(INITIALIZED);
    sim.skip();
    sim
}

/// After any first answer, without a legacy opening.
fn modern() -> Sim {
    let mut sim = sim();
    sim.client(r#"{"jsonrpc":"2.0","id":"one","method":"tools/list"}"#);
    sim.result(sim.last_sent(), "{}");
    sim.skip();
    sim
}

/// Runs until the next process is started.
fn next_start(sim: &mut Sim) {
    let count = |sim: &Sim| sim.log.iter().filter(|line| line.contains(" !start ")).count();
    let before = count(sim);
    for _ in 0..100_000 {
        if count(sim) > before {
            return;
        }
        sim.run_for(1);
    }
    panic!("no start:\n{}", sim.log.join("\n"));
}

fn frames(sim: &Sim, from: usize) -> Vec<String> {
    sim.to_upstream[from..].iter().map(|(_, bytes)| String::from_utf8_lossy(bytes).into_owned()).collect()
}

#[test]
fn the_old_group_is_ended_before_the_new_process_begins() {
    let mut sim = modern();
    sim.upstream_dies(1);
    next_start(&mut sim);
    let steps: Vec<String> = sim.take_lines().into_iter().filter(|line| !line.starts_with("!diag")).collect();
    assert_eq!(steps, ["!close", "!term", "!kill", "!start 2"]);
}

#[test]
fn what_comes_between_two_lives_waits_and_uses_up_no_try() {
    let mut sim = legacy();
    sim.upstream_dies(1);
    sim.call(1, "pay");
    sim.client(r#"{"jsonrpc":"2.0","id":2,"method":"tools/list"}"#);
    sim.call(3, "pay");
    sim.client(super::super::sim::cancel(3));
    next_start(&mut sim);
    // Much longer than an attempt may take: this wait is not the attempt's.
    sim.run_for(30_000);
    let sent = sim.to_upstream.len();
    sim.result(sim.last_sent(), TOLD);
    let methods: Vec<String> = frames(&sim, sent);
    assert_eq!(methods.len(), 3, "{methods:?}");
    assert!(methods[1].contains("tools/call") && methods[2].contains("tools/list"), "{methods:?}");
    let call = sim.sent()[sim.sent().len() - 2];
    sim.run_for(999);
    sim.result(call, "{}");
    assert_eq!(sim.events.last().map(|event| event.attempts), Some(1));
    sim.result(sim.last_sent(), "{}");
    sim.assert_at_rest();
    assert!(sim.letters.is_empty());
}

#[test]
fn the_attempts_own_time_begins_when_the_new_process_is_ready() {
    let mut sim = modern();
    sim.upstream_dies(1);
    sim.upstream_outbox(Level::Low);
    sim.call(1, "pay");
    next_start(&mut sim);
    let ready = sim.now();
    sim.run_until(ready + 999);
    assert!(sim.letters.is_empty());
    sim.run_until(ready + 1_000);
    assert_eq!(sim.letters[0].class, FailureClass::Timeout);
}

#[test]
fn the_whole_calls_time_goes_on_between_two_lives() {
    let mut sim = Sim::with(|settings| {
        settings.restart =
            RestartSettings { base: Duration::from_secs(20), enabled: true, ..RestartSettings::default() };
        settings.reliability.max_total = Some(Duration::from_millis(5_000));
    });
    sim.client(INITIALIZE);
    sim.result(sim.last_sent(), TOLD);
    sim.upstream_dies(1);
    sim.call(1, "pay");
    sim.run_until(4_999);
    assert!(sim.letters.is_empty());
    sim.run_until(5_000);
    assert_eq!((sim.letters[0].class, sim.letters[0].executed), (FailureClass::Timeout, Executed::No));
}

#[test]
fn before_the_first_answer_an_end_is_the_end() {
    let mut sim = sim();
    sim.client(INITIALIZE);
    sim.upstream_dies(1);
    assert_eq!(sim.run_to_exit(), ExitStatus::Upstream);
}

#[test]
fn another_version_ends_the_session() {
    let mut sim = legacy();
    sim.upstream_dies(1);
    sim.call(1, "pay");
    next_start(&mut sim);
    sim.skip();
    sim.result(sim.last_sent(), r#"{"protocolVersion":"2025-06-18","capabilities":{}}"#);
    let lines = sim.take_lines();
    assert_eq!(
        lines[0],
        "!diag the server, started again, is another than the client knows: protocolVersion 2025-06-18, was 2025-11-25; ending the session"
    );
    assert_eq!(sim.letters[0].executed, Executed::No);
    assert_eq!(sim.run_to_exit(), ExitStatus::Upstream);
}

#[test]
fn fewer_capabilities_end_the_session() {
    let mut sim = legacy();
    sim.upstream_dies(1);
    next_start(&mut sim);
    let fewer = r#"{"protocolVersion":"2025-11-25","capabilities":{"tools":{"listChanged":true},"prompts":{}}}"#;
    sim.result(sim.last_sent(), fewer);
    assert!(sim.log.iter().any(|line| line.contains("it lacks the capability logging; ending the session")));
    assert_eq!(sim.run_to_exit(), ExitStatus::Upstream);
}

#[test]
fn a_new_process_that_refuses_or_forgets_initialize_is_replaced_too() {
    let mut sim = legacy();
    sim.upstream_dies(1);
    next_start(&mut sim);
    sim.error(sim.last_sent(), -32603, "not today");
    sim.upstream_dies(0);
    next_start(&mut sim);
    let asked = sim.now();
    sim.run_until(asked + 60_000);
    let last = sim.log.last().expect("a line");
    assert!(last.ends_with("!close"), "it has its time to end: {last}");
    sim.upstream_dies(0);
    next_start(&mut sim);
    sim.result(sim.last_sent(), TOLD);
    sim.call(1, "pay");
    sim.result(sim.last_sent(), "{}");
    assert_eq!(sim.last_answer()["id"], 1);
}

#[test]
fn prc_8_a_crash_after_a_long_life_is_the_first_again() {
    let mut sim = modern();
    for _ in 0..4 {
        sim.upstream_dies(1);
        next_start(&mut sim);
    }
    for _ in 0..10 {
        sim.run_for(61_000);
        let ended = sim.now();
        sim.upstream_dies(1);
        next_start(&mut sim);
        assert!(sim.now() - ended <= 250, "{} ms", sim.now() - ended);
    }
}

#[test]
fn a_process_that_cannot_be_started_again_counts_as_one_that_ended() {
    let mut sim = modern();
    sim.upstream_dies(1);
    for _ in 0..4 {
        next_start(&mut sim);
        sim.upstream_start_fails("no such file");
    }
    next_start(&mut sim);
    sim.call(1, "pay");
    sim.upstream_start_fails("no such file");
    assert_eq!(sim.run_to_exit(), ExitStatus::Upstream);
    assert_eq!(sim.letters[0].executed, Executed::No);
}

#[test]
fn prc_4_a_server_that_closed_its_output_is_ended_and_replaced() {
    let mut sim = modern();
    sim.call(1, "pay");
    sim.upstream_closes(&[]);
    sim.skip();
    sim.run_for(250);
    assert_eq!(sim.letters.len(), 1, "open calls do not wait for its end");
    let lines = sim.take_lines();
    assert!(lines[0].starts_with("!diag the server closed its output; starting it again in"), "{lines:?}");
    sim.run_for(1_999);
    sim.expect("");
    sim.run_for(1);
    assert_eq!(sim.take_lines(), ["!term"]);
    sim.upstream_exits(ProcessEnd::Signal(15), &[]);
    next_start(&mut sim);
}

#[test]
fn a_server_that_closed_its_input_still_answers_while_it_ends() {
    let mut sim = modern();
    sim.call(1, "pay");
    let read = sim.last_sent();
    sim.call(2, "pay");
    let unread = sim.last_sent();
    sim.upstream_deaf(&[unread]);
    sim.run_for(250);
    sim.result(read, "{}");
    assert_eq!(sim.last_answer()["id"], 1);
    sim.upstream_dies(0);
    next_start(&mut sim);
    sim.run_for(500);
    assert!(sim.sent().len() == 4, "what never left is tried again: {:?}", sim.sent());
    sim.result(sim.last_sent(), "{}");
    assert_eq!(sim.last_answer()["id"], 2);
    sim.assert_at_rest();
}

#[test]
fn questions_of_the_old_process_are_withdrawn_and_their_answers_reach_nobody() {
    let mut sim = modern();
    sim.upstream(r#"{"jsonrpc":"2.0","id":"q","method":"elicitation/create"}"#);
    sim.upstream_dies(1);
    let notice = String::from_utf8_lossy(&sim.to_client[2]).into_owned();
    assert!(notice.starts_with(r#"{"jsonrpc":"2.0","method":"notifications/cancelled","params":{"requestId":"#));
    next_start(&mut sim);
    let sent = sim.to_upstream.len();
    let asked: serde_json::Value = serde_json::from_slice(&sim.to_client[1]).expect("JSON");
    sim.client(format!(r#"{{"jsonrpc":"2.0","id":{},"result":{{}}}}"#, asked["id"]));
    assert_eq!(sim.to_upstream.len(), sent);
    // A new process may use the old one's ids.
    sim.upstream(r#"{"jsonrpc":"2.0","id":"q","method":"elicitation/create"}"#);
    let again: serde_json::Value = serde_json::from_slice(sim.to_client.last().expect("asked")).expect("JSON");
    assert_ne!(again["id"], asked["id"]);
}

#[test]
fn a_question_during_the_opening_is_answered() {
    let mut sim = legacy();
    sim.upstream_dies(1);
    next_start(&mut sim);
    sim.upstream(r#"{"jsonrpc":"2.0","id":7,"method":"ping"}"#);
    let asked: serde_json::Value = serde_json::from_slice(sim.to_client.last().expect("asked")).expect("JSON");
    sim.client(format!(r#"{{"jsonrpc":"2.0","id":{},"result":{{}}}}"#, asked["id"]));
    assert_eq!(frames(&sim, sim.to_upstream.len() - 1), [r#"{"jsonrpc":"2.0","id":7,"result":{}}"#]);
}

#[test]
fn log_level_and_subscriptions_in_force_are_asked_for_again() {
    let mut sim = legacy();
    let ask = |sim: &mut Sim, id: u64, method: &str, params: &str, works: bool| {
        sim.client(format!(r#"{{"jsonrpc":"2.0","id":{id},"method":"{method}","params":{params}}}"#));
        if works { sim.result(sim.last_sent(), "{}") } else { sim.error(sim.last_sent(), -32002, "no") }
    };
    ask(&mut sim, 1, "logging/setLevel", r#"{"level":"debug"}"#, true);
    ask(&mut sim, 2, "logging/setLevel", r#"{ "level":"info" }"#, true);
    ask(&mut sim, 3, "resources/subscribe", r#"{"uri":"file:///a"}"#, true);
    ask(&mut sim, 4, "resources/subscribe", r#"{"uri":"file:///b"}"#, true);
    ask(&mut sim, 5, "resources/subscribe", r#"{"uri":"file:///c"}"#, false);
    ask(&mut sim, 6, "resources/unsubscribe", r#"{"uri":"file:///a"}"#, true);
    sim.upstream_dies(1);
    next_start(&mut sim);
    let sent = sim.to_upstream.len();
    sim.result(sim.last_sent(), TOLD);
    let heard = sim.to_client.len();
    let frames = frames(&sim, sent);
    assert_eq!(frames.len(), 3, "{frames:?}");
    assert!(frames[1].ends_with(r#""method":"logging/setLevel","params":{ "level":"info" }}"#), "{frames:?}");
    assert!(frames[2].ends_with(r#""method":"resources/subscribe","params":{"uri":"file:///b"}}"#), "{frames:?}");
    let asked = sim.sent();
    sim.result(asked[asked.len() - 2], "{}");
    sim.error(asked[asked.len() - 1], -32002, "no such resource");
    assert_eq!(sim.to_client.len(), heard, "the answers are nobody's");
    assert!(sim.log.iter().any(|line| line.contains("refused resources/subscribe, which it had taken before")));
}

#[test]
fn a_subscription_goes_on_in_the_new_process_and_its_second_acknowledgement_is_swallowed() {
    let mut sim = modern();
    sim.client(r#"{"jsonrpc":"2.0","id":"L","method":"subscriptions/listen","params":{"notifications":{"toolsListChanged":true,"promptsListChanged":false}}}"#);
    let notify = |method: &str, attempt: u64| {
        format!(
            r#"{{"jsonrpc":"2.0","method":"notifications/{method}","params":{{"_meta":{{"io.modelcontextprotocol/subscriptionId":{attempt}}}}}}}"#
        )
    };
    let first = sim.last_sent();
    sim.upstream(notify("subscriptions/acknowledged", first));
    sim.skip();
    sim.upstream_dies(1);
    next_start(&mut sim);
    let second = sim.last_sent();
    assert!(second > first);
    let told = sim.take_lines().pop();
    assert_eq!(
        told.as_deref(),
        Some(
            r#">c {"jsonrpc":"2.0","method":"notifications/tools/list_changed","params":{"_meta":{"io.modelcontextprotocol/subscriptionId":"L"}}}"#
        )
    );
    sim.upstream(notify("subscriptions/acknowledged", second));
    sim.expect("");
    sim.upstream(notify("subscriptions/acknowledged", second));
    sim.upstream(notify("tools/list_changed", second));
    assert_eq!(sim.take_lines().len(), 2, "anything after that is the client's");
    sim.upstream(notify("tools/list_changed", first));
    sim.expect("");
    sim.result(second, &format!(r#"{{"_meta":{{"io.modelcontextprotocol/subscriptionId":{second}}}}}"#));
    assert_eq!(sim.last_answer()["result"]["_meta"]["io.modelcontextprotocol/subscriptionId"], "L");
    sim.assert_at_rest();
}

#[test]
fn a_subscription_that_was_withdrawn_meanwhile_is_not_opened_again() {
    let mut sim = modern();
    sim.client(r#"{"jsonrpc":"2.0","id":"L","method":"subscriptions/listen","params":{"notifications":{}}}"#);
    sim.upstream_dies(1);
    sim.client(super::super::sim::cancel("\"L\""));
    let sent = sim.sent().len();
    next_start(&mut sim);
    assert_eq!(sim.sent().len(), sent);
    sim.assert_at_rest();
}

#[test]
fn nobody_is_told_of_changed_lists_who_did_not_want_to_be() {
    let mut sim = sim();
    sim.client(INITIALIZE);
    sim.result(sim.last_sent(), r#"{"protocolVersion":"x","capabilities":{"tools":{}}}"#);
    sim.upstream_dies(1);
    next_start(&mut sim);
    sim.skip();
    sim.result(sim.last_sent(), r#"{"protocolVersion":"x","capabilities":{"tools":{"listChanged":true}}}"#);
    // Nor was the client ready, so the new process is not told that it is.
    sim.expect("");
    sim.client(INITIALIZED);
    sim.expect(r#">u {"jsonrpc":"2.0","method":"notifications/initialized"}"#);
}

#[test]
fn a_client_that_becomes_ready_between_two_lives_is_heard_by_the_second() {
    let mut sim = sim();
    sim.client(INITIALIZE);
    sim.result(sim.last_sent(), TOLD);
    sim.upstream_dies(1);
    sim.client(INITIALIZED);
    sim.client(r#"{"jsonrpc":"2.0","method":"notifications/roots/list_changed"}"#);
    next_start(&mut sim);
    let sent = sim.to_upstream.len();
    sim.result(sim.last_sent(), TOLD);
    assert_eq!(frames(&sim, sent), [INITIALIZED]);
    sim.client_closes();
    sim.upstream_dies(0);
    sim.run_to_exit();
    assert!(sim.log.iter().any(|line| line.contains("1 notifications while the server was down")));
}

#[test]
fn a_call_without_id_between_two_lives_is_logged_as_failed() {
    let mut sim = modern();
    sim.upstream_dies(1);
    sim.client(r#"{"jsonrpc":"2.0","method":"tools/call","params":{"name":"pay"}}"#);
    let event = sim.events.last().expect("a log line");
    assert_eq!(event.error.as_ref().map(|error| error.executed), Some(Executed::No));
}

#[test]
fn an_answer_of_the_old_process_that_comes_with_its_end_counts() {
    let mut sim = modern();
    sim.call(1, "pay");
    sim.upstream_exits(ProcessEnd::Code(0), &[]);
    sim.result(sim.last_sent(), "{}");
    sim.upstream_closes(&[]);
    assert_eq!(sim.last_answer()["id"], 1);
    assert!(sim.letters.is_empty());
    next_start(&mut sim);
}

#[test]
fn a_process_group_that_never_ends_does_not_stop_the_next_life() {
    let mut sim = modern();
    sim.upstream_exits(ProcessEnd::Code(0), &[]);
    // Its output stays open for good.
    sim.run_for(250 + 3_000);
    let starts = sim.log.iter().filter(|line| line.contains(" !start ")).count();
    assert_eq!(starts, 2, "{:#?}", sim.log);
}

#[test]
fn a_signal_or_the_clients_end_leaves_no_new_process_behind() {
    for signal in [true, false] {
        let mut sim = modern();
        sim.upstream_dies(1);
        if signal {
            sim.terminate()
        } else {
            sim.client_closes()
        }
        assert_eq!(sim.run_to_exit(), ExitStatus::Success);
        assert_eq!(sim.log.iter().filter(|line| line.contains(" !start ")).count(), 1, "{:#?}", sim.log);
    }
}

#[test]
fn what_was_asked_before_the_clients_end_is_still_worth_a_start() {
    let mut sim = modern();
    sim.call(1, "safe_echo");
    sim.client_closes();
    sim.upstream_dies(1);
    next_start(&mut sim);
    sim.run_for(500);
    sim.result(sim.last_sent(), "{}");
    assert_eq!(sim.last_answer()["id"], 1);
    sim.upstream_dies(0);
    assert_eq!(sim.run_to_exit(), ExitStatus::Success);
}

#[test]
fn a_signal_while_a_call_waits_for_a_start_interrupts_it() {
    let mut sim = legacy();
    sim.upstream_dies(1);
    sim.call(1, "pay");
    sim.terminate();
    assert_eq!(sim.run_to_exit(), ExitStatus::Success);
    assert_eq!((sim.letters[0].class, sim.letters[0].executed), (FailureClass::Interrupted, Executed::No));
}

#[test]
fn without_restarts_the_end_is_the_end() {
    let mut sim = Sim::new();
    sim.client(INITIALIZE);
    sim.result(sim.last_sent(), TOLD);
    sim.upstream_dies(1);
    assert_eq!(sim.run_to_exit(), ExitStatus::Upstream);
}
