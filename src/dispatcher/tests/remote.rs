//! Requests that fail one by one, as exchanges with a remote server do.

use std::time::Duration;

use super::super::event::RequestFailure;
use super::super::sim::Sim;
use crate::record::{Executed, FailureClass};

fn failure(class: FailureClass, executed: Executed) -> RequestFailure {
    RequestFailure {
        class,
        executed,
        retry_after: None,
        message: "it broke".into(),
        detail: Some(b"{\"status\":1}".to_vec()),
    }
}

/// How often a call that always fails like this is sent, and the class and `executed` of what is left of it.
fn course(tool: &str, class: FailureClass, executed: Executed) -> (usize, FailureClass, Executed) {
    let mut sim = Sim::new();
    sim.call(7, tool);
    while sim.to_client.is_empty() {
        let attempt = sim.last_sent();
        sim.request_fails(attempt, failure(class, executed));
        sim.run_for(1_000);
    }
    sim.assert_at_rest();
    let [letter] = &sim.letters[..] else { panic!("one dead letter") };
    assert_eq!(letter.detail.as_deref(), Some(&b"{\"status\":1}"[..]));
    assert_eq!(sim.last_mark()["class"], letter.class.as_str());
    (sim.sent().len(), letter.class, letter.executed)
}

#[test]
fn a_failed_exchange_is_made_again_where_that_is_safe() {
    use Executed::{Maybe, No, Yes};
    use FailureClass::{NonRetryable, Transport};
    assert_eq!(course("pay", Transport, No), (3, Transport, No));
    assert_eq!(course("pay", Transport, Maybe), (1, Transport, Maybe));
    assert_eq!(course("safe", Transport, Maybe), (3, Transport, Maybe));
    for executed in [No, Maybe, Yes] {
        assert_eq!(course("safe", NonRetryable, executed), (1, NonRetryable, executed));
    }
}

#[test]
fn one_exchange_that_fails_ends_no_other_and_its_late_word_counts_for_nothing() {
    let mut sim = Sim::new();
    sim.call(1, "pay");
    sim.call(2, "pay");
    let sent = sim.sent();
    sim.request_fails(sent[0], failure(FailureClass::Transport, Executed::Maybe));
    sim.run_for(10);
    assert_eq!(sim.last_answer()["id"], 1);
    sim.request_fails(sent[0], failure(FailureClass::Transport, Executed::Maybe));
    sim.result(sent[1], "{}");
    assert_eq!(sim.last_answer()["id"], 2);
    sim.request_fails(sent[1], failure(FailureClass::Transport, Executed::Maybe));
    sim.request_fails(999, failure(FailureClass::Transport, Executed::Maybe));
    assert_eq!(sim.to_client.len(), 2);
    sim.assert_at_rest();
}

#[test]
fn a_passed_on_request_that_fails_is_answered_with_its_class() {
    let mut sim = Sim::new();
    sim.client(r#"{"jsonrpc":"2.0","id":"x","method":"tools/list"}"#);
    let attempt = sim.last_sent();
    sim.request_fails(attempt, failure(FailureClass::NonRetryable, Executed::No));
    assert_eq!(sim.last_answer()["error"]["message"], "it broke");
    let mark = sim.last_mark();
    assert_eq!((mark["class"].as_str(), mark["executed"].as_str()), (Some("non_retryable"), Some("no")));
    sim.assert_at_rest();
}

#[test]
fn a_wait_that_is_asked_for_is_a_floor_and_too_long_a_one_is_the_end() {
    let wait = |millis| RequestFailure {
        retry_after: Some(Duration::from_millis(millis)),
        ..failure(FailureClass::Transport, Executed::Maybe)
    };
    let mut sim = Sim::new();
    sim.call(1, "safe");
    let attempt = sim.last_sent();
    sim.request_fails(attempt, wait(5_000));
    sim.run_for(4_999);
    assert_eq!(sim.sent().len(), 1);
    sim.run_for(1);
    assert_eq!(sim.sent().len(), 2);
    // A shorter one than the plan's own delay changes nothing.
    let attempt = sim.last_sent();
    sim.request_fails(attempt, wait(1));
    sim.run_for(199);
    assert_eq!(sim.sent().len(), 2);
    sim.run_for(1);
    assert_eq!(sim.sent().len(), 3);

    let mut sim = Sim::new();
    sim.call(1, "safe");
    let attempt = sim.last_sent();
    sim.request_fails(attempt, wait(120_001));
    sim.run_for(10);
    let text = sim.last_answer()["error"]["message"].to_string();
    assert!(text.contains("wants 120001 ms to pass first"), "{text}");
    sim.assert_at_rest();
}
