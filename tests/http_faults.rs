//! What breaks on the way to a remote server: the connection is cut at every byte of the answer, answers have wrong lengths
//! or stall, and each time it is certain what the client is told and how often the tool ran.

use std::net::TcpStream;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

use crate::http::{FAST, INITIALIZE, INITIALIZED, opened, outcome};
use crate::support::http::{HttpServer, STREAM, Seen, json, legacy, ok, put, reply, reset};
use crate::support::session::session;

/// Ends the connection after some bytes of the answer, by a reset or in order.
#[derive(Clone, Copy, Debug)]
enum Cut {
    Reset,
    End,
}

/// Cuts every answer at every byte; what comes of each cut is either the whole answer or an unknown outcome, after one
/// execution.
fn cut_everywhere(name: &str, cut: Cut, answer: fn(&Seen) -> Vec<u8>, whole_from: fn(usize) -> usize) {
    let place = Arc::new(AtomicUsize::new(0));
    let own = Arc::clone(&place);
    let (mut session, server) = opened(name, FAST, move |seen, stream| {
        let bytes = answer(seen);
        let end = own.load(Ordering::SeqCst).min(bytes.len());
        put(stream, &bytes[..end]);
        if matches!(cut, Cut::Reset) {
            reset(stream);
        }
        false
    });
    // The length of an answer depends on that of its id alone.
    let mut number = 0_usize;
    loop {
        place.store(number, Ordering::SeqCst);
        let got = session.call(&number.to_string(), "write", "{}");
        let calls = server.got("tools/call");
        assert_eq!(calls.len(), number + 1, "cut at {number}: the call ran once");
        let length = answer(calls.last().expect("a call")).len();
        if got.get("result.ok") == Some("true") {
            // A reset may overtake the last bytes, so that what was whole is cut; never the other way round.
            assert!(number >= whole_from(length), "cut at {number} of {length}: half an answer passed for a whole");
        } else {
            assert_eq!(outcome(&got), "transport maybe 1", "cut at {number} of {length}: {got:?}");
            if matches!(cut, Cut::End) {
                assert!(number < length, "cut at {number} of {length}: a whole answer was lost");
            }
        }
        if number > length {
            break;
        }
        number += 1;
    }
    session.finish();
}

fn plain(seen: &Seen) -> Vec<u8> {
    json(&ok(seen))
}

fn chunked(seen: &Seen) -> Vec<u8> {
    let body = ok(seen);
    let (first, second) = body.split_at(9);
    let head = "HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nTransfer-Encoding: chunked\r\n\r\n";
    format!("{head}{:x}\r\n{first}\r\n{:x}\r\n{second}\r\n0\r\n\r\n", first.len(), second.len()).into_bytes()
}

fn streamed(seen: &Seen) -> Vec<u8> {
    [STREAM, format!(": hello\n\ndata: {}\n\n", ok(seen)).as_bytes()].concat()
}

#[test]
fn an_answer_that_ends_at_any_byte_is_whole_or_of_unknown_outcome() {
    cut_everywhere("cut-json", Cut::End, plain, |length| length);
    // The last line end of the chunks may be missing: everything that was promised has come by then.
    cut_everywhere("cut-chunked", Cut::End, chunked, |length| length - 4);
    cut_everywhere("cut-stream", Cut::End, streamed, |length| length);
}

#[test]
fn an_answer_that_is_reset_at_any_byte_is_whole_or_of_unknown_outcome() {
    cut_everywhere("reset-json", Cut::Reset, plain, |length| length);
    cut_everywhere("reset-chunked", Cut::Reset, chunked, |length| length - 4);
    cut_everywhere("reset-stream", Cut::Reset, streamed, |length| length);
}

#[test]
fn answers_that_are_none_are_of_unknown_outcome_and_asked_for_once() {
    type Answer = fn(&Seen) -> Vec<u8>;
    let cases: [(&str, Answer); 8] = [
        ("too short a length", |seen| {
            let body = ok(seen);
            let head = "HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: 9\r\n\r\n";
            format!("{head}{body}").into_bytes()
        }),
        ("too long a length", |seen| {
            let body = ok(seen);
            let head = "HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: 9999\r\n\r\n";
            format!("{head}{body}").into_bytes()
        }),
        ("a bad chunk", |_| {
            let head = "HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nTransfer-Encoding: chunked\r\n\r\n";
            format!("{head}zz\r\n{{}}\r\n0\r\n\r\n").into_bytes()
        }),
        ("no HTTP", |_| b"SSH-2.0-OpenSSH_9\r\n\r\n".to_vec()),
        ("another's answer", |_| json(r#"{"jsonrpc":"2.0","id":424242,"result":{}}"#)),
        ("no message", |_| json("[1,2]")),
        ("no answer", |_| reply(202, "", "")),
        ("no body", |_| reply(200, "Content-Type: application/json", "")),
    ];
    for (name, answer) in cases {
        let (mut session, server) = opened("no-answer", FAST, move |seen, stream| {
            put(stream, answer(seen));
            false
        });
        let got = session.call("1", "write", "{}");
        assert_eq!(outcome(&got), "transport maybe 1", "{name}: {got:?}");
        session.finish();
        assert_eq!(server.got("tools/call").len(), 1, "{name}");
    }
}

#[test]
fn a_tool_that_may_be_repeated_is_asked_again_after_a_fault() {
    let calls = Arc::new(AtomicUsize::new(0));
    let config = "reliability: {idempotent_default: true, retry: {max_attempts: 3, base_ms: 1}}";
    let (mut session, server) = opened("fault-idempotent", config, move |seen, stream| {
        if calls.fetch_add(1, Ordering::SeqCst) < 2 {
            reset(stream);
            return false;
        }
        put(stream, json(&ok(seen)))
    });
    assert_eq!(session.call("1", "read", "{}").at("result.ok"), "true");
    session.finish();
    assert_eq!(server.got("tools/call").len(), 3);
}

#[test]
fn a_server_that_stalls_anywhere_is_given_up_after_the_call_s_own_time() {
    let parts: [&[u8]; 4] = [
        b"",
        b"HTTP/1.1 200 OK\r\nConte",
        b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: 99\r\n\r\n{\"j",
        STREAM,
    ];
    for part in parts {
        let held: Arc<Mutex<Vec<TcpStream>>> = Arc::default();
        let (mut session, server) = opened("stall", "reliability: {timeout_ms: 300}", move |_, stream| {
            put(stream, part);
            held.lock().expect("no panic").push(stream.try_clone().expect("a handle"));
            true
        });
        let got = session.call("1", "write", "{}");
        assert_eq!(outcome(&got), "timeout maybe 1", "{got:?}");
        let ended = session.finish();
        assert_eq!(ended.code, Some(0), "{}", ended.stderr);
        assert_eq!(server.got("tools/call").len(), 1);
        // A legacy server is told that nobody waits any more.
        assert_eq!(server.got("notifications/cancelled").len(), 1);
    }
}

#[test]
fn an_answer_above_the_limit_is_refused_and_has_run() {
    for streamed in [false, true] {
        let config = "upstream: {http: {max_response_bytes: 4096}}\nreliability: {idempotent_default: true}";
        let (mut session, server) = opened("too-long", config, move |seen, stream| {
            let body = ok(seen).replace("true", &format!("\"{}\"", "x".repeat(5000)));
            let bytes = if streamed { [STREAM, format!("data: {body}\n\n").as_bytes()].concat() } else { json(&body) };
            put(stream, bytes);
            false
        });
        let got = session.call("1", "t", "{}");
        assert_eq!(outcome(&got), "non_retryable yes 1", "{got:?}");
        assert!(got.at("error.message").contains("max_response_bytes"), "{got:?}");
        session.finish();
        assert_eq!(server.got("tools/call").len(), 1);
    }
}

#[test]
fn htt_4_a_listening_stream_that_closes_at_once_is_not_hammered() {
    let server = HttpServer::start(|seen, stream| {
        if seen.method == "GET" {
            put(stream, STREAM);
            return false;
        }
        put(stream, legacy(seen, "s1").unwrap_or_else(|| json(&ok(seen))))
    });
    let mut session = session("htt-4").remote("http", &server.url()).start();
    session.ask(INITIALIZE);
    session.send(INITIALIZED);
    server.wait("three streams", |seen| seen.iter().filter(|seen| seen.method == "GET").count() >= 3);
    let begun = std::time::Instant::now();
    server.wait("a fourth", |seen| seen.iter().filter(|seen| seen.method == "GET").count() >= 4);
    assert!(begun.elapsed().as_millis() > 1500, "the waits grow: {:?}", begun.elapsed());
    session.finish();
}

#[test]
fn messages_of_the_server_s_own_arrive_and_their_stream_is_resumed_where_it_broke() {
    let streams = Arc::new(AtomicUsize::new(0));
    let server = HttpServer::start(move |seen, stream| {
        if seen.method != "GET" {
            return put(stream, legacy(seen, "s1").unwrap_or_else(|| json(&ok(seen))));
        }
        let event = |number: usize| {
            format!(
                "id: e{number}\nretry: 20\ndata: {{\"jsonrpc\":\"2.0\",\"method\":\"notifications/n{number}\"}}\n\n"
            )
        };
        match streams.fetch_add(1, Ordering::SeqCst) {
            0 => put(stream, STREAM) && put(stream, event(1)),
            1 if seen.header("last-event-id") == Some("e1") => put(stream, STREAM) && put(stream, event(2)),
            _ => put(stream, reply(405, "", "")),
        };
        false
    });
    let mut session = session("own-stream").remote("http", &server.url()).start();
    session.ask(INITIALIZE);
    session.send(INITIALIZED);
    for number in [1, 2] {
        assert_eq!(session.relay.next().at("method"), format!("\"notifications/n{number}\""));
    }
    session.finish();
}
