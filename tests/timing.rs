//! Progress, cancellation, timeouts and order (hazards TIM-1 to TIM-5 and TIM-7), through the real binary.
//!
//! TIM-6 is about HTTP. Every timing rule is also tested on virtual time in `dispatcher::tests`; here it is seen that
//! real clocks, real peers and the real store obey them.

use std::time::{Duration, Instant};

use crate::support::Frame;
use crate::support::session::{Session, call, cancel, ping, session};

fn class(frame: &Frame) -> &str {
    frame.at("error.data.mcprelay.class")
}

fn with_token(id: &str, tool: &str, arguments: &str) -> String {
    call(id, tool, &format!("{arguments},\"_meta\":{{\"progressToken\":\"t\"}}"))
}

/// The progress notifications before the answer to `id`, and that answer.
fn until_answer(session: &mut Session, id: &str) -> (Vec<Frame>, Frame) {
    let mut progress = Vec::new();
    loop {
        let frame = session.relay.next();
        if frame.answers(id) {
            return (progress, frame);
        }
        assert!(frame.is("notifications/progress"), "{frame:?}");
        progress.push(frame);
    }
}

#[test]
fn tim_1_progress_of_the_call_gives_it_more_time() {
    let mut session = session("tim-1").options("--timeout-ms 500").start();
    session.send(&with_token("1", "progress", r#"{"steps":10,"interval_ms":100}"#));
    let (progress, answer) = until_answer(&mut session, "1");
    assert_eq!(progress.len(), 10);
    assert!(answer.at("result").contains("done"), "{answer:?}");
    session.finish();
}

#[test]
fn tim_1_progress_under_another_token_gives_no_time() {
    let mut session = session("tim-1-other").options("--timeout-ms 400 --max-attempts 1").start();
    session.send(&with_token("1", "progress", r#"{"steps":1000,"interval_ms":50,"token":"other"}"#));
    let (progress, error) = until_answer(&mut session, "1");
    assert_eq!(class(&error), "\"timeout\"", "{error:?}");
    assert!(progress.iter().all(|frame| frame.at("params.progressToken") == "\"other\""));
    // What was on its way when the call was given up.
    session.relay.close_stdin();
    while let Some(late) = session.relay.next_or_end() {
        assert_eq!(late.at("params.progressToken"), "\"other\"", "{late:?}");
    }
    session.finish();
}

#[test]
fn tim_1_progress_for_ever_ends_at_the_limit_of_the_whole_call() {
    let config = "reliability: {timeout_ms: 400, max_total_ms: 900, idempotent_default: true}";
    let mut session = session("tim-1-total").config(config).start();
    let started = Instant::now();
    session.send(&with_token("1", "progress", r#"{"steps":10000,"interval_ms":50}"#));
    let (progress, error) = until_answer(&mut session, "1");
    let took = started.elapsed();
    assert!(took >= Duration::from_millis(900) && took < Duration::from_secs(3), "{took:?}");
    assert!(progress.len() > 5, "{} notifications", progress.len());
    assert_eq!(class(&error), "\"timeout\"", "{error:?}");
    assert!(error.at("error.message").contains("within 900 ms"), "{error:?}");
    session.finish();
}

#[test]
fn tim_1_progress_gives_no_time_where_that_is_switched_off() {
    let config = "reliability: {timeout_ms: 400, extend_on_progress: false}";
    let mut session = session("tim-1-off").config(config).start();
    session.send(&with_token("1", "progress", r#"{"steps":10000,"interval_ms":50}"#));
    let (_, error) = until_answer(&mut session, "1");
    assert!(error.at("error.message").contains("within 400 ms"), "{error:?}");
    session.finish();
}

#[test]
fn tim_2_time_in_which_a_human_answers_does_not_count() {
    for (tool, method) in [("ask-elicitation", "elicitation/create"), ("ask-client", "sampling/createMessage")] {
        let mut session = session("tim-2").options("--timeout-ms 300").start();
        session.relay.initialize();
        session.send(&call("1", tool, r#"{"then_ms":50}"#));
        let asked = session.relay.message(method);
        // Twice the timeout passes, measured by another call, whose time stands still too.
        let started = Instant::now();
        assert!(session.call("2", "sleep", r#"{"ms":600}"#).at("result").contains("slept"));
        assert!(started.elapsed() >= Duration::from_millis(600));
        session.send(&format!(r#"{{"jsonrpc":"2.0","id":{},"result":{{"action":"accept"}}}}"#, asked.at("id")));
        let answer = session.answer("1");
        assert!(answer.at("result").contains("accept"), "{answer:?}");
        assert_eq!(session.got("tools/call").len(), 2, "one attempt each");
        assert_eq!(session.finish().queued("tool_name"), Vec::<String>::new(), "a dead letter");
    }
}

#[test]
fn tim_2_a_client_that_never_answers_holds_the_time_only_so_long() {
    let config = "reliability: {timeout_ms: 200, client_wait_max_ms: 300}";
    let mut session = session("tim-2-limit").config(config).start();
    session.relay.initialize();
    let started = Instant::now();
    session.send(&call("1", "ask-elicitation", "{}"));
    session.relay.message("elicitation/create");
    let error = session.answer("1");
    assert_eq!(class(&error), "\"timeout\"", "{error:?}");
    let took = started.elapsed();
    assert!(took >= Duration::from_millis(500) && took < Duration::from_secs(3), "{took:?}");
    session.finish();
}

#[test]
fn tim_3_requests_of_the_server_pass_while_its_call_is_open() {
    let mut session = session("tim-3").start();
    session.relay.initialize();
    session.send(&call("1", "ask-many", "{}"));
    let roots = session.relay.message("roots/list").at("id").to_owned();
    let form = session.relay.message("elicitation/create").at("id").to_owned();
    // Answered in the other order, and an error is an answer too.
    session.send(&format!(r#"{{"jsonrpc":"2.0","id":{form},"error":{{"code":-1,"message":"no form"}}}}"#));
    session.send(&format!(r#"{{"jsonrpc":"2.0","id":{roots},"result":{{"roots":[1.0]}}}}"#));
    let answer = session.answer("1");
    let answers = answer.at("result.structuredContent.answers");
    assert!(answers.contains(r#""result":{"roots":[1.0]}"#) && answers.contains("no form"), "{answer:?}");
    session.finish();
}

/// The call was cancelled: one such log line, no dead letter.
fn ended_as_cancelled(mut session: Session, tool: &str, attempts: &str) -> crate::support::session::Ended {
    session.settle();
    let ended = session.finish();
    let [line] = &ended.logged(tool)[..] else { panic!("{}", ended.stderr) };
    assert_eq!((line.at("decision"), line.at("attempt")), ("\"cancelled\"", attempts), "{line:?}");
    assert_eq!(ended.queued("tool_name"), Vec::<String>::new(), "a dead letter");
    ended
}

#[test]
fn tim_4_a_cancel_reaches_the_server_with_the_id_that_it_knows() {
    let mut session = session("tim-4-a").config("reliability: {idempotent_default: true}").start();
    session.send(&call("\"c-1\"", "hang", "{}"));
    session.send(concat!(
        r#"{"jsonrpc":"2.0","method":"notifications/cancelled","#,
        r#""params":{ "reason":"no l\u006fnger", "requestId":"c-1","x":1.0}}"#
    ));
    let ended = ended_as_cancelled(session, "hang", "1");
    let [call] = &ended.got("tools/call")[..] else { panic!("{:?}", ended.seen) };
    let [cancel] = &ended.got("notifications/cancelled")[..] else { panic!("{:?}", ended.seen) };
    assert_eq!(
        cancel.at("params"),
        format!(r#"{{ "reason":"no l\u006fnger", "requestId":{},"x":1.0}}"#, call.at("id"))
    );
}

#[test]
fn tim_4_a_cancel_in_the_back_off_ends_the_call_in_silence() {
    let config = "reliability: {idempotent_default: true, retry: {base_ms: 30000, jitter: false}}";
    let mut session = session("tim-4-b").config(config).start();
    session.send(&call("1", "rpc-error", "{}"));
    // The ping's answer comes behind the failure, so the call is in its back-off now.
    session.settle();
    session.send(&cancel("1"));
    let ended = ended_as_cancelled(session, "rpc-error", "1");
    assert_eq!(ended.got("tools/call").len(), 1);
    assert_eq!(ended.got("notifications/cancelled"), []);
}

#[test]
fn tim_4_a_cancel_of_a_call_in_line_takes_it_out() {
    let mut session = session("tim-4-c").server("--slow-start 300").start();
    // Fills the outbox, so that the next one waits in line.
    session.send(&call("1", "echo-length", &format!("{{\"t\":\"{}\"}}", "x".repeat(10 << 20))));
    session.send(&call("2", "echo", "{}"));
    session.send(&cancel("2"));
    session.answer("1");
    session.settle();
    let ended = session.finish();
    assert_eq!(ended.queued("tool_name"), Vec::<String>::new(), "a dead letter");
    assert_eq!(ended.got("tools/call").len(), 1, "only the first was sent");
    assert_eq!(ended.got("notifications/cancelled"), []);
    assert_eq!(ended.logged("echo")[0].at("decision"), "\"cancelled\"");
}

#[test]
fn tim_4_a_cancel_while_the_dead_letter_is_written_leaves_out_the_answer_alone() {
    let mut session = session("tim-4-d").config("queue: {capture_timeout_ms: 30000}").start();
    session.call("1", "rpc-error", "{}");
    let lock = session.lock_queue();
    session.send(&call("2", "rpc-error", "{}"));
    session.settle();
    session.send(&cancel("2"));
    session.settle();
    drop(lock);
    let ended = session.finish();
    assert_eq!(ended.queued("tool_name"), ["rpc-error", "rpc-error"], "{}", ended.stderr);
    assert_eq!(ended.got("notifications/cancelled"), [], "the attempt was answered");
}

#[test]
fn tim_4_initialize_is_never_cancelled() {
    let mut session = session("tim-4-initialize").server("--slow-start 200").start();
    session.send(r#"{"jsonrpc":"2.0","id":0,"method":"initialize","params":{"protocolVersion":"2025-11-25"}}"#);
    session.send(&cancel("0"));
    session.answer("0");
    session.settle();
    assert_eq!(session.finish().got("notifications/cancelled"), []);
}

/// The ids of calls, each followed by the cancel that names it.
fn calls_and_cancels(seen: &[String]) -> Vec<(String, String)> {
    let frames: Vec<Frame> =
        seen.iter().filter(|note| note.starts_with('{')).map(|note| Frame(note.as_bytes().to_vec())).collect();
    let told = |frame: &Frame| match frame.is("tools/call") {
        true => ("call".to_owned(), frame.at("id").to_owned()),
        false => ("cancel".to_owned(), frame.get("params.requestId").unwrap_or("?").to_owned()),
    };
    frames.iter().map(told).collect()
}

#[test]
fn tim_5_each_attempt_is_cancelled_before_the_next_one_starts() {
    let config = "reliability: {timeout_ms: 200, retry: {base_ms: 10}, per_tool: {sleep: {idempotent: true}}}";
    let mut session = session("tim-5").config(config).start();
    let error = session.call("1", "sleep", r#"{"ms":3000}"#);
    assert_eq!((class(&error), error.at("error.data.mcprelay.attempts")), ("\"timeout\"", "3"), "{error:?}");
    let ended = session.finish();
    let told = calls_and_cancels(&ended.seen);
    let kinds: Vec<&str> = told.iter().map(|(kind, _)| kind.as_str()).collect();
    assert_eq!(kinds, ["call", "cancel", "call", "cancel", "call", "cancel"]);
    for pair in told.chunks(2) {
        assert_eq!(pair[0].1, pair[1].1, "{told:?}");
    }
}

#[test]
fn tim_5_a_tool_that_may_not_be_repeated_sees_one_attempt() {
    let mut session = session("tim-5-once").options("--timeout-ms 200").start();
    let error = session.call("1", "sleep", r#"{"ms":3000}"#);
    assert_eq!((class(&error), error.at("error.data.mcprelay.attempts")), ("\"timeout\"", "1"), "{error:?}");
    assert_eq!(error.at("error.data.mcprelay.executed"), "\"maybe\"");
    let told = calls_and_cancels(&session.finish().seen);
    assert!(told.len() == 2 && told[0].1 == told[1].1, "{told:?}");
}

#[test]
fn tim_5_all_attempts_and_pauses_together_have_a_limit() {
    let config = "reliability: {timeout_ms: 300, max_total_ms: 700, idempotent_default: true, \
                  retry: {max_attempts: 50, base_ms: 1, jitter: false}}";
    let mut session = session("tim-5-total").config(config).start();
    let started = Instant::now();
    let error = session.call("1", "hang", "{}");
    let took = started.elapsed();
    assert!(took >= Duration::from_millis(700) && took < Duration::from_secs(3), "{took:?}");
    assert!(error.at("error.message").contains("700 ms"), "{error:?}");
    session.finish();
}

#[test]
fn tim_7_a_slow_call_holds_up_nothing_else() {
    let mut session = session("tim-7").config("policy: {rules: [{tool: boom, action: deny}]}").start();
    session.send(&call("1", "hang", "{}"));
    session.send(&ping("2"));
    session.send(&call("3", "sleep", r#"{"ms":10}"#));
    session.send(&call("4", "boom", "{}"));
    let mut ids: Vec<String> = (0..3).map(|_| session.relay.next().at("id").to_owned()).collect();
    ids.sort();
    assert_eq!(ids, ["2", "3", "4"]);
    session.send(&cancel("1"));
    session.finish();
}

#[test]
fn tim_7_only_the_failed_call_waits_for_the_store() {
    let config = "queue: {capture_timeout_ms: 30000}\npolicy: {rules: [{tool: boom, action: deny}]}";
    let mut session = session("tim-7-store").config(config).start();
    session.call("0", "rpc-error", "{}");
    let lock = session.lock_queue();
    session.send(&call("1", "rpc-error", "{}"));
    for round in 0..5 {
        assert_eq!(session.ask(&ping("2")).at("result"), "{}", "round {round}");
        assert_eq!(session.call("3", "echo", "{}").at("result.structuredContent"), "{}");
        assert_eq!(session.call("4", "boom", "{}").at("error.code"), "-32001");
    }
    session.relay.nothing_unread();
    drop(lock);
    let error = session.answer("1");
    assert_eq!(error.at("error.code"), "-32000", "the server's own error: {error:?}");
    session.finish();
}
