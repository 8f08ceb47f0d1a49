//! The conversation with a scripted server: what is sent when, without any I/O.

use super::*;
use crate::record::{Executed, FailureClass};

const INITIALIZE: &str = r#"{"jsonrpc":"2.0","id":1,"method":"initialize","params":{"protocolVersion":"2025-11-25"}}"#;
const INITIALIZED: &str = r#"{"jsonrpc":"2.0","method":"notifications/initialized"}"#;

/// A conversation and what it wants done.
struct Talk {
    conversation: Conversation,
    out: VecDeque<Out>,
}

impl Talk {
    fn new() -> Talk {
        Talk { conversation: Conversation::streamable(), out: VecDeque::new() }
    }

    /// A conversation whose handshake is done, under the session `s1`; its listening stream was refused.
    fn opened() -> Talk {
        let mut talk = Talk::new();
        talk.ask(1, INITIALIZE);
        let first = talk.started();
        talk.answer(&first, Some("s1"), r#"{"protocolVersion":"2025-11-25","capabilities":{"tools":{}}}"#);
        talk.tell(INITIALIZED);
        let second = talk.started();
        talk.done(&second, End::Done);
        let listen = talk.started();
        assert_eq!(listen.what, What::Listen);
        talk.done(&listen, End::Done);
        talk.nothing();
        talk
    }

    fn ask(&mut self, attempt: u64, frame: &str) {
        let out = self.conversation.send(frame.as_bytes().to_vec(), Some(AttemptId(attempt)));
        self.out.extend(out);
    }

    fn call(&mut self, id: u64) {
        self.ask(id, &format!(r#"{{"jsonrpc":"2.0","id":{id},"method":"tools/call","params":{{"name":"t"}}}}"#));
    }

    fn tell(&mut self, frame: &str) {
        let out = self.conversation.send(frame.as_bytes().to_vec(), None);
        self.out.extend(out);
    }

    fn cancel(&mut self, id: u64) {
        self.tell(&format!(r#"{{"jsonrpc":"2.0","method":"notifications/cancelled","params":{{"requestId":{id}}}}}"#));
    }

    fn done(&mut self, exchange: &Exchange, end: End) {
        let out = self.conversation.done(exchange.id, end);
        self.out.extend(out);
    }

    /// The server answers with a result; gives what the client sees of it.
    fn answer(&mut self, exchange: &Exchange, session: Option<&str>, result: &str) -> Option<String> {
        self.answer_with(exchange, session, &format!("\"result\":{result}"))
    }

    fn answer_with(&mut self, exchange: &Exchange, session: Option<&str>, body: &str) -> Option<String> {
        let What::Ask { id, .. } = &exchange.what else { panic!("{exchange:?} is no request") };
        let id = String::from_utf8_lossy(id.raw()).into_owned();
        let frame = format!(r#"{{"jsonrpc":"2.0","id":{id},{body}}}"#);
        let FromUpstream::Message(message) = from_upstream(frame.into_bytes()) else { panic!("no message") };
        let (shown, out) = self.conversation.answering(exchange.id, session.map(str::to_owned), message);
        self.out.extend(out);
        self.done(exchange, End::Done);
        shown.map(|shown| String::from_utf8(shown).expect("text"))
    }

    fn next(&mut self) -> Out {
        self.out.pop_front().expect("something to do")
    }

    /// The next thing to do is an exchange; what is only said is skipped.
    fn started(&mut self) -> Exchange {
        loop {
            match self.next() {
                Out::Start(exchange) => return exchange,
                Out::Diagnose(_) | Out::Shut(_) => {}
                other => panic!("{other:?}"),
            }
        }
    }

    fn failed(&mut self) -> (u64, RequestFailure) {
        loop {
            match self.next() {
                Out::Fail(attempt, failure) => return (attempt.0, failure),
                Out::Diagnose(_) => {}
                other => panic!("{other:?}"),
            }
        }
    }

    fn nothing(&mut self) {
        self.out.retain(|out| !matches!(out, Out::Diagnose(_)));
        assert_eq!(self.out, [], "nothing is to be done");
    }
}

fn refused(status: u16) -> End {
    End::Failed(Failed::refused(status, "refused"))
}

fn header<'a>(exchange: &'a Exchange, name: &str) -> Option<&'a str> {
    exchange.headers.iter().find(|(known, _)| known == name).map(|(_, value)| value.as_str())
}

fn method(exchange: &Exchange) -> String {
    let (What::Ask { bytes, .. } | What::Tell { bytes }) = &exchange.what else {
        return format!("{:?}", exchange.what);
    };
    let FromUpstream::Message(message) = from_upstream(bytes.clone()) else { panic!("no message") };
    message.method_name().unwrap_or_default().into_owned()
}

/// Carries out the repeated handshake under a new session.
fn renew(talk: &mut Talk, session: &str) {
    let again = talk.started();
    assert_eq!((method(&again).as_str(), header(&again, "Mcp-Session-Id")), ("initialize", None));
    let result = r#"{"protocolVersion":"2025-11-25","capabilities":{"tools":{},"more":{}}}"#;
    assert_eq!(talk.answer(&again, Some(session), result), None, "the client does not see it");
    let told = talk.started();
    assert_eq!((method(&told).as_str(), header(&told, "Mcp-Session-Id")), ("notifications/initialized", Some(session)));
    talk.done(&told, End::Done);
}

#[test]
fn everything_waits_for_the_handshake_but_nothing_for_anything_else() {
    let mut talk = Talk::new();
    talk.ask(1, INITIALIZE);
    talk.call(2);
    let first = talk.started();
    talk.nothing();
    talk.answer(&first, Some("s1"), r#"{"protocolVersion":"2025-11-25"}"#);
    assert_eq!(method(&talk.started()), "tools/call");
    talk.tell(INITIALIZED);
    talk.call(3);
    talk.tell(r#"{"jsonrpc":"2.0","method":"notifications/a"}"#);
    talk.tell(r#"{"jsonrpc":"2.0","method":"notifications/b"}"#);
    let second = talk.started();
    talk.nothing();
    talk.done(&second, End::Done);
    // Notifications one after the other, everything else side by side.
    let begun: Vec<Exchange> = (0..3).map(|_| talk.started()).collect();
    let mut names: Vec<String> = begun.iter().map(method).collect();
    names.sort();
    assert_eq!(names, ["Listen", "notifications/a", "tools/call"]);
    let told = begun.iter().find(|exchange| method(exchange) == "notifications/a").expect("a notification");
    talk.done(told, End::Done);
    assert_eq!(method(&talk.started()), "notifications/b");
}

#[test]
fn a_session_that_is_gone_is_renewed_once_and_what_met_it_is_sent_again_once() {
    let mut talk = Talk::opened();
    talk.ask(2, r#"{"jsonrpc":"2.0","id":2,"method":"resources/subscribe","params":{"uri":"a:b"}}"#);
    let subscribed = talk.started();
    talk.answer(&subscribed, None, "{}");
    for id in [3, 4, 5] {
        talk.call(id);
    }
    let calls: Vec<Exchange> = (0..3).map(|_| talk.started()).collect();
    talk.done(&calls[0], refused(404));
    talk.call(6);
    talk.done(&calls[1], refused(404));
    renew(&mut talk, "s2");
    let mut again: Vec<Exchange> = (0..5).map(|_| talk.started()).collect();
    again.retain(|exchange| exchange.what != What::Listen);
    assert_eq!(
        again.iter().map(method).collect::<Vec<_>>(),
        ["resources/subscribe", "tools/call", "tools/call", "tools/call"]
    );
    assert!(again.iter().all(|exchange| header(exchange, "Mcp-Session-Id") == Some("s2")));
    assert_eq!(talk.answer(&again[0], None, "{}"), None, "the repeated subscription is ours");
    // The last one meets the old session late: it is sent again without another handshake.
    talk.done(&calls[2], refused(404));
    let late = talk.started();
    assert_eq!((method(&late).as_str(), header(&late, "Mcp-Session-Id")), ("tools/call", Some("s2")));
    // A second 404 is the answer, and still says that nothing ran.
    talk.done(&late, refused(404));
    let (attempt, failure) = talk.failed();
    assert_eq!((attempt, failure.class, failure.executed), (5, FailureClass::Transport, Executed::No));
    talk.nothing();
}

#[test]
fn a_new_session_that_is_another_does_not_stand_in_for_the_old() {
    for (answer, text) in [
        (r#""result":{"protocolVersion":"2025-06-18","capabilities":{"tools":{}}}"#, "protocolVersion 2025-06-18"),
        (r#""result":{"protocolVersion":"2025-11-25","capabilities":{}}"#, "lacks the capability tools"),
        (r#""error":{"code":-32000,"message":"no"}"#, "initialize was refused"),
    ] {
        let mut talk = Talk::opened();
        talk.call(2);
        let call = talk.started();
        talk.done(&call, refused(404));
        talk.call(3);
        let again = talk.started();
        talk.answer_with(&again, Some("s2"), answer);
        for expected in [2, 3] {
            let (attempt, failure) = talk.failed();
            assert_eq!((attempt, failure.executed), (expected, Executed::No), "{text}");
            assert!(failure.message.contains(text), "{}", failure.message);
        }
        talk.nothing();
        // The next request finds the old session gone again.
        talk.call(4);
        assert_eq!(header(&talk.started(), "Mcp-Session-Id"), Some("s1"));
    }
}

#[test]
fn what_waits_for_a_new_session_can_be_withdrawn_and_nobody_hears_of_it() {
    let mut talk = Talk::opened();
    talk.call(2);
    let call = talk.started();
    talk.done(&call, refused(404));
    talk.call(3);
    talk.cancel(2);
    talk.cancel(3);
    renew(&mut talk, "s2");
    assert_eq!(talk.started().what, What::Listen);
    talk.nothing();
}

#[test]
fn a_404_without_a_session_is_an_answer() {
    let mut talk = Talk::new();
    talk.call(1);
    let call = talk.started();
    talk.done(&call, refused(404));
    let (attempt, failure) = talk.failed();
    assert_eq!((attempt, failure.class, failure.executed), (1, FailureClass::NonRetryable, Executed::Maybe));
    talk.nothing();
    // A stream that a server without sessions does not know either.
    let mut talk = Talk::new();
    talk.ask(1, INITIALIZE);
    let first = talk.started();
    talk.answer(&first, None, r#"{"protocolVersion":"2025-11-25"}"#);
    talk.tell(INITIALIZED);
    let second = talk.started();
    talk.done(&second, End::Done);
    let listen = talk.started();
    talk.done(&listen, refused(404));
    talk.nothing();
}

#[test]
fn the_end_closes_streams_delivers_what_was_told_and_ends_the_session() {
    let mut talk = Talk::opened();
    talk.call(2);
    let call = talk.started();
    talk.cancel(2);
    let cancel = talk.started();
    talk.tell(r#"{"jsonrpc":"2.0","method":"notifications/roots/list_changed"}"#);
    let out = talk.conversation.close();
    talk.out.extend(out);
    assert_eq!(talk.next(), Out::Shut(call.id));
    talk.done(&call, End::Cut);
    talk.nothing();
    talk.done(&cancel, End::Done);
    let last = talk.started();
    assert_eq!(method(&last), "notifications/roots/list_changed");
    talk.done(&last, End::Done);
    let delete = talk.started();
    assert_eq!((&delete.what, header(&delete, "Mcp-Session-Id")), (&What::Delete, Some("s1")));
    talk.done(&delete, End::Done);
    assert_eq!(talk.next(), Out::Ended);
    let out = talk.conversation.abort();
    talk.out.extend(out);
    talk.nothing();
}

#[test]
fn so_many_requests_run_side_by_side_and_then_the_engine_waits() {
    let mut talk = Talk::opened();
    let mut running = Vec::new();
    for id in 0..REQUESTS_MAX as u64 {
        assert_eq!(talk.conversation.level(), Level::Low);
        talk.call(10 + id);
        running.push(talk.started());
    }
    assert_eq!(talk.next(), Out::Level(Level::High));
    talk.done(&running[0], End::Done);
    assert_eq!(talk.next(), Out::Level(Level::Low));
}

#[test]
fn an_older_server_is_spoken_to_over_its_stream() {
    let mut talk = Talk::new();
    talk.ask(1, INITIALIZE);
    let first = talk.started();
    talk.done(&first, refused(405));
    let stream = talk.started();
    assert_eq!(stream.what, What::Stream { lost: 0 });
    let out = talk.conversation.endpoint_named(stream.id, "http://h/m?s=1".to_owned());
    talk.out.extend(out);
    assert_eq!(talk.conversation.endpoint(), Some("http://h/m?s=1"));
    let post = talk.started();
    assert_eq!(method(&post), "initialize");
    // Accepted; a later request waits for the answer, which comes over the stream.
    talk.done(&post, End::Done);
    talk.call(2);
    talk.nothing();
    let over_stream = |talk: &mut Talk, id: &str| {
        let frame = format!(r#"{{"jsonrpc":"2.0","id":{id},"result":{{"protocolVersion":"2024-11-05"}}}}"#);
        let FromUpstream::Message(message) = from_upstream(frame.into_bytes()) else { panic!("no message") };
        let (shown, out) = talk.conversation.answering(stream.id, None, message);
        talk.out.extend(out);
        shown
    };
    assert!(over_stream(&mut talk, "1").is_some());
    let call = talk.started();
    // This answer overtakes the word that its request was accepted.
    assert!(over_stream(&mut talk, "2").is_some());
    talk.done(&call, End::Done);
    talk.nothing();
    // The end of the stream leaves what it did not answer unknown, and begins another.
    talk.call(3);
    let call = talk.started();
    talk.done(&call, End::Done);
    talk.done(&stream, End::Failed(Failed::broken("gone")));
    let (attempt, failure) = talk.failed();
    assert_eq!((attempt, failure.executed), (3, Executed::Maybe));
    assert_eq!(talk.started().what, What::Stream { lost: 1 });
}
