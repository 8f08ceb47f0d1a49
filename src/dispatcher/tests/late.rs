//! Answers that come after their attempt was given up: never to the client, always to the record.

use super::super::sim::{Sim, Store};
use crate::record::Executed;

#[test]
fn a_late_answer_is_attached_to_the_dead_letter() {
    for (answer, line) in [
        (r#""result":{"content":[1.0]}"#, r#"!late R1 success executed=Yes {"content":[1.0]}"#),
        (r#""result":{"isError":true}"#, r#"!late R1 failure executed=Yes {"isError":true}"#),
        (r#""error":{"code":-32602,"message":"no"}"#, r#"!late R1 failure executed=No {"code":-32602,"message":"no"}"#),
        (
            r#""error":{"code":-32000,"message":"no"}"#,
            r#"!late R1 failure executed=Maybe {"code":-32000,"message":"no"}"#,
        ),
    ] {
        let mut sim = Sim::new();
        sim.call(1, "pay");
        sim.run_until(1_000);
        assert_eq!(sim.last_mark()["dead_letter_id"], sim.letters[0].id);
        sim.run_until(5_000);
        sim.skip();
        sim.upstream(format!(r#"{{"jsonrpc":"2.0","id":2,{answer}}}"#));
        sim.expect(&format!("@5000\n{line}"));
        // Only once.
        sim.upstream(format!(r#"{{"jsonrpc":"2.0","id":2,{answer}}}"#));
        sim.expect("");
        assert_eq!((sim.engine.counters.late_answers, sim.engine.counters.unknown_answers), (1, 1));
    }
}

#[test]
fn a_late_answer_while_the_letter_is_being_stored_is_attached_too() {
    let mut sim = Sim::new();
    sim.store = Store::After(700);
    sim.call(1, "pay");
    sim.run_until(1_200);
    sim.skip();
    sim.result(2, "{}");
    sim.expect("@1200\n!late R1 success executed=Yes {}");
    sim.run_until(1_700);
    assert_eq!(sim.to_client.len(), 1);
}

#[test]
fn an_answer_during_a_later_attempt_settles_that_the_tool_ran() {
    let mut sim = Sim::new();
    sim.call(1, "safe_echo");
    sim.run_until(1_000);
    sim.run_until(1_500);
    assert_eq!(sim.sent(), [2, 3]);
    sim.skip();
    sim.result(2, "{}");
    sim.expect("");
    sim.run_until(60_000);
    assert_eq!(sim.sent(), [2, 3, 4]);
    let executed: Vec<Executed> = sim.letters[0].attempts.iter().map(|attempt| attempt.executed).collect();
    assert_eq!(executed, [Executed::Yes, Executed::Maybe, Executed::Maybe]);
    assert_eq!(sim.letters[0].executed, Executed::Yes);
    assert_eq!(sim.last_mark()["executed"], "yes");
}

#[test]
fn an_answer_settles_the_attempt_it_belongs_to() {
    let mut sim = Sim::new();
    sim.call(1, "safe_echo");
    sim.run_until(2_200);
    assert_eq!(sim.sent(), [2, 3]);
    sim.error(3, -32602, "no");
    sim.run_until(60_000);
    let executed: Vec<Executed> = sim.letters[0].attempts.iter().map(|attempt| attempt.executed).collect();
    assert_eq!(executed, [Executed::Maybe, Executed::No, Executed::Maybe]);
    // The first attempt may still be answered, and that is news for the letter.
    sim.result(2, "{}");
    assert_eq!(sim.lates.len(), 1);
}

#[test]
fn after_a_success_a_late_answer_is_only_counted() {
    let mut sim = Sim::new();
    sim.call(1, "safe_echo");
    sim.run_until(1_500);
    sim.result(3, "{}");
    sim.skip();
    sim.result(2, r#"{"again":true}"#);
    sim.expect("");
    assert_eq!(sim.engine.counters.late_answers, 1);
    sim.assert_at_rest();
}

#[test]
fn given_up_attempts_are_forgotten_after_ten_minutes() {
    let mut sim = Sim::new();
    sim.call(1, "pay");
    sim.run_until(601_000);
    sim.skip();
    sim.result(2, "{}");
    sim.expect("");
    assert_eq!((sim.engine.counters.late_answers, sim.engine.counters.unknown_answers), (0, 1));
}
