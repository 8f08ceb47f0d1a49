//! Carries out one exchange: posts, reads the answer however it comes, resumes a stream that broke.

use std::io::Read;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use crossbeam_channel::{Receiver, Sender, bounded};
use ureq::http::{Method, Request, Response, StatusCode};
use ureq::{Agent, Body};

use super::conversation::{End, Exchange, What};
use super::failure::{Failed, retry_after};
use super::line::Line;
use super::refusal::{Said, describe, refusal};
use super::{Delivered, Shared};
use crate::wire::message::{FromUpstream, Message, Role, from_upstream};
use crate::wire::request_id::RequestId;
use crate::wire::sse::{Sse, SseParser};
use crate::wire::url::Url;

/// The body of a response that is no success is read up to this length: an error message is shorter, a page is not wanted.
const REFUSAL_BYTES_MAX: u64 = 64 << 10;

/// Redirects within the server's origin are followed so often.
const REDIRECTS_MAX: usize = 3;

/// From the end of a stream to the next try, unless the server names a time.
const RECONNECT: Duration = Duration::from_secs(1);

/// The longest wait between two tries, whatever the server says.
const RECONNECT_MAX: Duration = Duration::from_secs(30);

/// A stream that lives shorter and says nothing makes the wait grow.
const YOUNG: Duration = Duration::from_secs(5);

/// How often in a row resuming an answer may fail before the answer is given up.
const RESUMES_MAX: u32 = 5;

/// Bytes asked for at once.
const READ_BYTES: usize = 64 << 10;

/// The means to end an exchange from another thread.
pub(super) struct Control {
    cut: AtomicBool,
    agent: Mutex<Option<Agent>>,
    stop: Sender<()>,
    stopped: Receiver<()>,
}

impl Control {
    pub(super) fn new() -> Control {
        let (stop, stopped) = bounded(1);
        Control { cut: AtomicBool::new(false), agent: Mutex::new(None), stop, stopped }
    }

    /// Closes its connections, now and those to come.
    pub(super) fn shut(&self) {
        self.cut.store(true, Ordering::SeqCst);
        // A full channel has told it already.
        let _ = self.stop.try_send(());
        let agent = self.agent.lock().unwrap_or_else(PoisonError::into_inner).take();
        if let Some(agent) = agent {
            agent.shutdown();
        }
    }

    pub(super) fn is_cut(&self) -> bool {
        self.cut.load(Ordering::SeqCst)
    }

    pub(super) fn attach(&self, agent: Agent) {
        *self.agent.lock().unwrap_or_else(PoisonError::into_inner) = Some(agent);
    }

    /// Its connections belong to another exchange from here on.
    pub(super) fn detach(&self) {
        self.agent.lock().unwrap_or_else(PoisonError::into_inner).take();
    }

    /// Waits; whether it was not shut meanwhile.
    fn wait(&self, time: Duration) -> bool {
        self.stopped.recv_timeout(time).is_err() && !self.is_cut()
    }
}

/// One exchange on one line.
pub(super) struct Run<'a> {
    pub(super) shared: &'a std::sync::Arc<Shared>,
    pub(super) line: &'a Line,
    pub(super) control: &'a std::sync::Arc<Control>,
    pub(super) exchange: &'a Exchange,
}

/// Why reading a stream ended.
enum Ended {
    /// Its end, or a fault of the connection, in words.
    Stream(Option<String>),
    /// The answer came.
    Answered,
    /// What came is longer than allowed.
    TooLong,
    /// Nobody takes messages any more.
    Unwanted,
}

/// What reading a stream found besides messages.
#[derive(Default)]
struct Progress {
    last_id: Vec<u8>,
    retry: Option<Duration>,
    /// Something came: the server is alive.
    messages: bool,
}

impl Run<'_> {
    pub(super) fn run(&self) -> End {
        let result = match &self.exchange.what {
            What::Ask { bytes, id, resumable } => self.ask(bytes, id, *resumable),
            What::Tell { bytes } => self.tell(bytes),
            What::Listen => self.listen(),
            What::Stream { lost } => self.stream(*lost),
            What::Delete => self.delete(),
        };
        match result {
            Ok(()) => End::Done,
            Err(_) if self.control.is_cut() => End::Cut,
            Err(failed) => End::Failed(failed),
        }
    }

    // --- single exchanges ---

    fn ask(&self, bytes: &[u8], id: &RequestId, resumable: bool) -> Result<(), Failed> {
        let response = self.request(Method::POST, bytes, None)?;
        let status = response.status();
        if !status.is_success() {
            return self.refused(response, Some(id));
        }
        let session = header(&response, "mcp-session-id");
        let accepted = self.shared.answers_come_elsewhere();
        if status == StatusCode::ACCEPTED || status == StatusCode::NO_CONTENT || accepted {
            drain(response);
            return if accepted { Ok(()) } else { Err(self.broken("accepted the request without an answer")) };
        }
        match content_type(&response).as_str() {
            "text/event-stream" => self.read_answer(response, session, id, resumable),
            "application/json" => {
                let body = self.whole_body(response)?;
                if self.deliver(body, session.as_deref(), Some(id)) {
                    return Ok(());
                }
                Err(self.broken("answered with JSON that is no answer to the request"))
            }
            other => Err(self.broken(&format!("answered with {other:?}, which is no answer"))),
        }
    }

    fn tell(&self, bytes: &[u8]) -> Result<(), Failed> {
        let response = self.request(Method::POST, bytes, None)?;
        if !response.status().is_success() {
            return self.refused(response, None);
        }
        // Any success will do: servers say it in many ways, and none of them means more.
        drain(response);
        Ok(())
    }

    fn delete(&self) -> Result<(), Failed> {
        let response = self.request(Method::DELETE, b"", None)?;
        drain(response);
        Ok(())
    }

    // --- answers in a stream ---

    fn read_answer(
        &self,
        response: Response<Body>,
        session: Option<String>,
        id: &RequestId,
        resumable: bool,
    ) -> Result<(), Failed> {
        let mut progress = Progress::default();
        let mut failures = 0;
        let mut delay = RECONNECT;
        let mut response = Some(response);
        loop {
            if let Some(response) = response.take() {
                let started = self.shared.clock.now().mono;
                let last_id = progress.last_id.clone();
                let ended = self.read_stream(response, &mut progress, session.as_deref(), Some(id));
                match ended {
                    Ended::Answered => return Ok(()),
                    Ended::Unwanted => return Err(self.broken("nobody waits for the answer")),
                    Ended::TooLong => return Err(self.too_long()),
                    Ended::Stream(_) if self.control.is_cut() => return Err(self.broken("the stream was closed")),
                    Ended::Stream(fault) if !resumable || progress.last_id.is_empty() => {
                        return Err(self.broken(&match fault {
                            Some(fault) => format!("the stream broke before the answer: {fault}"),
                            None => "ended the stream before the answer".to_owned(),
                        }));
                    }
                    Ended::Stream(_) => {
                        let old = self.shared.clock.now().mono.saturating_since(started) >= YOUNG;
                        if progress.last_id != last_id || old {
                            (failures, delay) = (0, RECONNECT);
                        }
                    }
                }
            }
            if !self.control.wait(jittered(progress.retry.unwrap_or(delay).min(RECONNECT_MAX), self.exchange.id)) {
                return Err(self.broken("the stream was closed"));
            }
            delay = delay.mul_f64(1.5).min(RECONNECT_MAX);
            failures += 1;
            if failures > RESUMES_MAX {
                return Err(self.broken("the stream broke before the answer and could not be resumed"));
            }
            match self.request(Method::GET, b"", Some(&progress.last_id)) {
                Ok(resumed) if resumed.status().is_success() && content_type(&resumed) == "text/event-stream" => {
                    response = Some(resumed);
                }
                Ok(refused) if refused.status().is_server_error() => drain(refused),
                Ok(refused) => {
                    let status = refused.status().as_u16();
                    let text = format!("the stream broke before the answer and cannot be resumed (status {status})");
                    return Err(self.broken(&text));
                }
                Err(_) => {}
            }
        }
    }

    /// What the server says by itself, for as long as the session lasts.
    fn listen(&self) -> Result<(), Failed> {
        let mut progress = Progress::default();
        let mut delay = RECONNECT;
        let mut opened = false;
        loop {
            let last_id = (!progress.last_id.is_empty()).then_some(&progress.last_id[..]);
            match self.request(Method::GET, b"", last_id) {
                Ok(response) if response.status().is_success() => {
                    if content_type(&response) != "text/event-stream" {
                        // There is no stream, and asking again would not make one.
                        return Ok(());
                    }
                    opened = true;
                    let started = self.shared.clock.now().mono;
                    progress.messages = false;
                    if matches!(self.read_stream(response, &mut progress, None, None), Ended::Unwanted) {
                        return Ok(());
                    }
                    let old = self.shared.clock.now().mono.saturating_since(started) >= YOUNG;
                    if progress.messages || old {
                        delay = RECONNECT;
                    }
                }
                Ok(response) => match response.status().as_u16() {
                    // A session that had a stream is gone; without that it may be the way in which it says "no stream".
                    404 if opened => return self.refused(response, None),
                    // Its last stream still counts as open, or it has no time: later.
                    409 | 429 | 500..=599 => drain(response),
                    _ => return Ok(()),
                },
                Err(_) if self.control.is_cut() => return Ok(()),
                Err(_) => {}
            }
            let wanted = progress.retry.unwrap_or_default().max(delay).min(RECONNECT_MAX);
            if !self.control.wait(jittered(wanted, self.exchange.id)) {
                return Ok(());
            }
            delay = delay.mul_f64(1.5).min(RECONNECT_MAX);
        }
    }

    /// The stream of the older transport.
    fn stream(&self, lost: u32) -> Result<(), Failed> {
        if lost > 0 {
            let delay = RECONNECT.mul_f64(1.5_f64.powi(i32::try_from(lost - 1).unwrap_or(i32::MAX).min(20)));
            if !self.control.wait(jittered(delay.min(RECONNECT_MAX), self.exchange.id)) {
                return Err(self.not_there("the stream was closed"));
            }
        }
        let response = self.request(Method::GET, b"", None)?;
        if !response.status().is_success() {
            return self.refused(response, None);
        }
        if content_type(&response) != "text/event-stream" {
            return Err(self.not_there("is no event stream"));
        }
        match self.read_stream(response, &mut Progress::default(), None, None) {
            Ended::Stream(Some(fault)) => Err(self.broken(&format!("the event stream broke: {fault}"))),
            Ended::Stream(None) | Ended::Answered | Ended::Unwanted => Err(self.broken("closed its event stream")),
            Ended::TooLong => Err(self.too_long()),
        }
    }

    /// Reads a stream to its end; the answer to `id` ends the exchange before.
    fn read_stream(
        &self,
        response: Response<Body>,
        progress: &mut Progress,
        session: Option<&str>,
        id: Option<&RequestId>,
    ) -> Ended {
        let base = self.shared.url();
        let mut reader = response.into_body().into_reader();
        let mut parser = SseParser::resumed(self.shared.response_bytes_max(), &progress.last_id);
        let mut chunk = vec![0; READ_BYTES];
        let mut events = Vec::new();
        let mut answered = false;
        loop {
            let fault = match reader.read(&mut chunk) {
                Ok(0) => None,
                Ok(count) => {
                    parser.push(&chunk[..count], &mut events);
                    Some(String::new())
                }
                Err(error) => Some(describe(&ureq::Error::from(error))),
            };
            for event in events.drain(..) {
                match event {
                    Sse::Retry(millis) => progress.retry = Some(Duration::from_millis(millis)),
                    Sse::Mark => {}
                    Sse::Oversized { .. } if id.is_some() => return Ended::TooLong,
                    Sse::Oversized { .. } => self.shared.diagnose("dropped a message of the server: it is too long"),
                    Sse::Event(event) if matches!(event.name.as_slice(), b"" | b"message") => {
                        progress.messages = true;
                        match self.deliver_event(event.data, session, id) {
                            Delivered::Answer if !answered => {
                                answered = true;
                                // What follows is no part of the answer; the connection is kept if the stream ends soon.
                                self.shared.linger(self.exchange.id, self.control);
                            }
                            Delivered::Answer | Delivered::Message => {}
                            Delivered::Nobody => return Ended::Unwanted,
                        }
                    }
                    Sse::Event(event) if event.name == b"endpoint" => {
                        let reference = String::from_utf8_lossy(&event.data).trim().to_owned();
                        self.endpoint(&base, &reference);
                    }
                    Sse::Event(_) => {}
                }
            }
            progress.last_id = parser.last_id().to_vec();
            match fault {
                Some(text) if text.is_empty() => {}
                _ if answered => return Ended::Answered,
                other => return Ended::Stream(other),
            }
        }
    }

    /// The older transport says where to post. Another origin is not trusted with our headers.
    fn endpoint(&self, base: &Url, reference: &str) {
        match base.join(reference) {
            Ok(url) if url.origin() == base.origin() => self.shared.endpoint_named(self.exchange.id, url.text()),
            Ok(url) => {
                let origin = url.origin();
                self.shared.diagnose(&format!("the server wants messages at another origin ({origin}): refused"));
                self.control.shut();
            }
            Err(fault) => {
                self.shared.diagnose(&format!("the server's endpoint is no URL: {fault}"));
                self.control.shut();
            }
        }
    }

    // --- delivery ---

    /// Delivers the messages in `body`; whether the answer to `id` was among them.
    fn deliver(&self, body: Vec<u8>, session: Option<&str>, id: Option<&RequestId>) -> bool {
        matches!(self.deliver_event(body, session, id), Delivered::Answer)
    }

    fn deliver_event(&self, data: Vec<u8>, session: Option<&str>, id: Option<&RequestId>) -> Delivered {
        match from_upstream(one_line(data)) {
            FromUpstream::Message(message) => self.deliver_message(message, session, id),
            FromUpstream::Batch(members) => {
                let mut best = Delivered::Message;
                for member in members {
                    match self.deliver_message(member, session, id) {
                        Delivered::Message => {}
                        other => best = other,
                    }
                }
                best
            }
            FromUpstream::Noise(line) => {
                self.shared.noise(line);
                Delivered::Message
            }
        }
    }

    fn deliver_message(&self, message: Message, session: Option<&str>, id: Option<&RequestId>) -> Delivered {
        let answers =
            matches!((&message.role, id), (Role::Response { id: Some(theirs) }, Some(ours)) if same(theirs, ours));
        let of_stream = id.is_none() && matches!(self.exchange.what, What::Stream { .. });
        let shown = if answers || (of_stream && matches!(message.role, Role::Response { .. })) {
            self.shared.answering(self.exchange.id, session.map(str::to_owned), message)
        } else {
            Some(FromUpstream::Message(message))
        };
        if let Some(shown) = shown
            && !self.shared.hand_over(shown)
        {
            return Delivered::Nobody;
        }
        if answers { Delivered::Answer } else { Delivered::Message }
    }

    // --- HTTP ---

    /// Sends a request and reads the head of its response. A refused access token is replaced once: such a response says
    /// that nothing was done (RFC 9110 section 15.5.2).
    fn request(&self, method: Method, body: &[u8], last_id: Option<&[u8]>) -> Result<Response<Body>, Failed> {
        let Some(tokens) = &self.shared.tokens else { return self.request_as(&method, body, last_id, None) };
        let token = tokens.token()?;
        let response = self.request_as(&method, body, last_id, Some(&token))?;
        if response.status() != StatusCode::UNAUTHORIZED {
            return Ok(response);
        }
        drain(response);
        tokens.refused(&token);
        let token = tokens.token()?;
        self.request_as(&method, body, last_id, Some(&token))
    }

    /// Sends a request with this access token. Redirects inside the origin are followed: such a response says
    /// that nothing was done yet.
    fn request_as(
        &self,
        method: &Method,
        body: &[u8],
        last_id: Option<&[u8]>,
        token: Option<&str>,
    ) -> Result<Response<Body>, Failed> {
        let mut url = self.shared.target(&self.exchange.what);
        for _ in 0..=REDIRECTS_MAX {
            let response = self.request_at(&url, method, body, last_id, token)?;
            if !matches!(response.status().as_u16(), 307 | 308) {
                return Ok(response);
            }
            let location = header(&response, "location").unwrap_or_default();
            let next = url.join(&location).ok().filter(|next| next.origin() == url.origin() && !location.is_empty());
            let Some(next) = next else {
                let elsewhere = url.join(&location).map(|next| next.shown()).unwrap_or_default();
                let text = format!("{}: moved to {elsewhere}, which is not followed; use that URL", url.shown());
                return Err(Failed::refused(response.status().as_u16(), &text));
            };
            drain(response);
            self.shared.moved(&self.exchange.what, &next);
            url = next;
        }
        Err(Failed::refused(308, &format!("{}: redirects in a circle", url.shown())))
    }

    fn request_at(
        &self,
        url: &Url,
        method: &Method,
        body: &[u8],
        last_id: Option<&[u8]>,
        token: Option<&str>,
    ) -> Result<Response<Body>, Failed> {
        let own = self.shared.secret_headers().map_err(|error| Failed::not_sent(&error))?;
        let mut request = Request::builder().method(method.clone()).uri(url.text());
        let accept = if *method == Method::POST { "application/json, text/event-stream" } else { "text/event-stream" };
        let fixed = [("Accept", accept), ("Content-Type", "application/json")];
        let fixed = fixed.iter().take(if body.is_empty() { 1 } else { 2 });
        let last_id = last_id.and_then(|id| std::str::from_utf8(id).ok());
        let protocol = self.exchange.headers.iter().map(|(name, value)| (name.as_str(), value.as_str()));
        let all = fixed.copied().chain(protocol).chain(last_id.map(|id| ("Last-Event-ID", id)));
        for (name, value) in all {
            // What the configuration says wins.
            if !own.iter().any(|(own, _)| own.eq_ignore_ascii_case(name)) {
                request = request.header(name, value);
            }
        }
        for (name, value) in &own {
            request = request.header(name, value);
        }
        if let Some(token) = token {
            request = request.header("Authorization", format!("Bearer {token}"));
        }
        self.line.begin(self.exchange.attempt);
        if self.control.is_cut() {
            return Err(Failed::not_sent("withdrawn"));
        }
        let fail = |error: &ureq::Error| {
            let sent = self.line.has_sent() && !super::refusal::is_handshake_alert(error);
            let text = format!("{}: {}", url.shown(), describe(error));
            if sent { Failed::broken(&text) } else { Failed::not_sent(&text) }
        };
        let result = if body.is_empty() {
            request.body(()).map_err(ureq::Error::from).and_then(|request| self.line.agent.run(request))
        } else {
            request.body(body).map_err(ureq::Error::from).and_then(|request| self.line.agent.run(request))
        };
        result.map_err(|error| fail(&error))
    }

    /// A response that is no success: the answer if it holds one, else a failure.
    fn refused(&self, response: Response<Body>, id: Option<&RequestId>) -> Result<(), Failed> {
        let status = response.status().as_u16();
        let challenge = header(&response, "www-authenticate");
        let now = u64::try_from(self.shared.clock.now().wall.0 / 1000).unwrap_or(0);
        let wait = header(&response, "retry-after").and_then(|value| retry_after(&value, now));
        let session = header(&response, "mcp-session-id");
        let mut body = Vec::new();
        let read = response.into_body().into_reader().take(REFUSAL_BYTES_MAX).read_to_end(&mut body);
        if read.is_err() {
            body.clear();
        }
        let names_session = self.exchange.headers.iter().any(|(name, _)| name == "Mcp-Session-Id");
        // These say something about the way to the server, not about the request, whatever the body holds.
        let about_the_way = matches!(status, 401 | 403 | 408 | 425 | 429 | 502..=504) || status == 404 && names_session;
        if !about_the_way
            && id.is_some()
            && matches!(from_upstream(body.clone()), FromUpstream::Message(_))
            && self.holds_answer(&body, id)
        {
            return if self.deliver(body, session.as_deref(), id) {
                Ok(())
            } else {
                Err(self.broken("nobody waits for the answer"))
            };
        }
        let said = Said { status, challenge, body: &body };
        Err(Failed { retry_after: wait, ..refusal(&self.shared.url().shown(), &said) })
    }

    fn holds_answer(&self, body: &[u8], id: Option<&RequestId>) -> bool {
        match (from_upstream(body.to_vec()), id) {
            (FromUpstream::Message(message), Some(ours)) => {
                matches!(&message.role, Role::Response { id: Some(theirs) } if same(theirs, ours))
            }
            _ => false,
        }
    }

    fn whole_body(&self, response: Response<Body>) -> Result<Vec<u8>, Failed> {
        let max = self.shared.response_bytes_max();
        let mut body = Vec::new();
        let read = response.into_body().into_reader().take(max as u64 + 1).read_to_end(&mut body);
        match read {
            Err(error) => {
                let fault = describe(&ureq::Error::from(error));
                Err(self.broken(&format!("the answer broke off: {fault}")))
            }
            Ok(_) if body.len() > max => Err(self.too_long()),
            Ok(_) => Ok(body),
        }
    }

    fn broken(&self, text: &str) -> Failed {
        Failed::broken(&format!("{}: {text}", self.shared.url().shown()))
    }

    fn not_there(&self, text: &str) -> Failed {
        Failed::not_sent(&format!("{}: {text}", self.shared.url().shown()))
    }

    fn too_long(&self) -> Failed {
        let max = self.shared.response_bytes_max();
        Failed::useless(&format!("the server's answer is longer than {max} bytes (upstream.http.max_response_bytes)"))
    }
}

/// Some peers turn a number into a string; it is still ours and nobody else's.
fn same(theirs: &RequestId, ours: &RequestId) -> bool {
    theirs == ours || theirs.raw().strip_prefix(b"\"").and_then(|id| id.strip_suffix(b"\"")) == Some(ours.raw())
}

/// The message on one line, as the client's transport wants it. In JSON a line end can only be a blank between tokens.
fn one_line(mut data: Vec<u8>) -> Vec<u8> {
    for byte in &mut data {
        if matches!(byte, b'\n' | b'\r') {
            *byte = b' ';
        }
    }
    match data.trim_ascii().len() {
        length if length == data.len() => data,
        _ => data.trim_ascii().to_vec(),
    }
}

/// Up to a twentieth more, so that many clients of one server do not come back together.
fn jittered(wait: Duration, seed: u64) -> Duration {
    let share = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 56;
    wait + wait.mul_f64(share as f64 / 256.0 / 20.0)
}

fn header(response: &Response<Body>, name: &str) -> Option<String> {
    let value = response.headers().get(name)?;
    Some(String::from_utf8_lossy(value.as_bytes()).into_owned())
}

/// The media type, without parameters.
fn content_type(response: &Response<Body>) -> String {
    let value = header(response, "content-type").unwrap_or_default();
    value.split(';').next().unwrap_or_default().trim().to_ascii_lowercase()
}

/// Reads what is left of a short body, so that the connection can be used again.
fn drain(response: Response<Body>) {
    // An endless body or a broken one ends the connection, which is as good.
    let _ = std::io::copy(&mut response.into_body().into_reader().take(REFUSAL_BYTES_MAX), &mut std::io::sink());
}
