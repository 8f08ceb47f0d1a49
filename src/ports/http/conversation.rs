//! What is sent to a remote server in which order, and with which headers: the transport's own state, without I/O.
//!
//! A message becomes an [`Exchange`], which a thread carries out. Requests run side by side; notifications go one after
//! the other; a handshake is over before anything else is sent (MCP lifecycle). The session of a legacy server lives
//! here: a request that the server refused because the session is gone was not executed, so the handshake is repeated
//! once for all of them and each is sent once more.

use std::collections::{BTreeMap, VecDeque};

use super::failure::Failed;
use super::memory::Memory;
use super::tools::Tools;
use crate::dispatcher::event::{AttemptId, Level, OUTBOX_FULL_BYTES, OUTBOX_HIGH_BYTES, RequestFailure};
use crate::wire::message::{FromUpstream, Message, Method, Role, from_upstream};
use crate::wire::mirror::{claimed_version, mirrored};
use crate::wire::request_id::{IdKey, RequestId};

/// So many requests run side by side; above, new ones wait in the engine, where they can be withdrawn.
pub(super) const REQUESTS_MAX: usize = 512;

/// Requests of a legacy server that were withdrawn, and whose answer may still come, are read on up to this number.
const WITHDRAWN_MAX: usize = 64;

/// The first revision that wants `MCP-Protocol-Version` on every HTTP request.
const VERSION_HEADER_SINCE: &str = "2025-06-18";

/// One exchange over HTTP.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Exchange {
    /// Never used twice.
    pub(super) id: u64,
    pub(super) what: What,
    /// The headers that the protocol wants, besides those that never change.
    pub(super) headers: Vec<(String, String)>,
    /// The attempt whose first byte is to be noted.
    pub(super) attempt: Option<AttemptId>,
}

/// What an exchange is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum What {
    /// A request is posted and its answer read.
    Ask {
        bytes: Vec<u8>,
        id: RequestId,
        /// A stream that broke can be resumed; modern ones cannot.
        resumable: bool,
    },
    /// A message is posted that has no answer.
    Tell { bytes: Vec<u8> },
    /// What the server has to say by itself is listened to (legacy).
    Listen,
    /// The stream of the older HTTP+SSE transport, over which all answers come.
    Stream {
        /// How many streams ended before this one without an answer in between.
        lost: u32,
    },
    /// The session is ended.
    Delete,
}

/// Something to do.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Out {
    /// Carry out an exchange.
    Start(Exchange),
    /// Close the stream of an exchange that runs.
    Shut(u64),
    /// Tell the engine that a request gets no answer.
    Fail(AttemptId, RequestFailure),
    /// Tell the engine how full the outbox is.
    Level(Level),
    /// Tell the operator.
    Diagnose(String),
    /// Nothing runs any more.
    Ended,
}

/// How an exchange ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum End {
    /// Answered or accepted.
    Done,
    /// Closed because we said so.
    Cut,
    /// Neither.
    Failed(Failed),
}

/// A message on its way.
#[derive(Clone, Debug)]
struct Sent {
    message: Message,
    attempt: Option<AttemptId>,
    /// It was sent again after the session was gone.
    sent_again: bool,
    /// It was sent again after the tools were listed anew.
    listed_again: bool,
}

/// Why an exchange runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Why {
    /// The engine's message.
    Theirs,
    /// The client's `notifications/initialized`, which others wait for.
    Initialized,
    /// A notification, which later ones wait for.
    Lane,
    /// Our repetition of the client's `initialize`.
    OurInitialize,
    /// Our repetition of `notifications/initialized`.
    OurInitialized,
    /// Our repetition of another request of the client.
    OurReplay,
    /// Our `tools/list`.
    OurList,
    Listen,
    Stream,
    Delete,
}

#[derive(Clone, Debug)]
struct Running {
    why: Why,
    sent: Option<Sent>,
    /// The session that it named.
    session: Option<String>,
    /// Nobody waits for its answer.
    withdrawn: bool,
    /// The server said that headers and body differ.
    mismatched: bool,
    answered: bool,
}

/// A session that is being replaced.
#[derive(Clone, Debug, Default)]
struct Renewal {
    /// What is sent when the new one stands.
    waiting: Vec<Sent>,
    /// The old one: if no new one comes, the next request finds it gone again.
    old: Option<String>,
}

/// How the server is reached.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Mode {
    /// Streamable HTTP; whether HTTP+SSE is tried if `initialize` is refused.
    Streamable { fall_back: bool },
    /// The older HTTP+SSE transport: the stream that runs, and where to post, once it said so.
    Sse { stream: Option<u64>, endpoint: Option<String> },
}

/// The state of the conversation with one server.
#[derive(Clone, Debug)]
pub(super) struct Conversation {
    mode: Mode,
    last_exchange: u64,
    running: BTreeMap<u64, Running>,
    /// Requests posted to an HTTP+SSE server, whose answers come over its stream.
    pending: Vec<(IdKey, Running)>,
    /// Nothing is sent until the handshake is over.
    gate_closed: bool,
    held: VecDeque<Sent>,
    /// Notifications, one at a time.
    lane: VecDeque<Sent>,
    lane_busy: bool,
    /// Requests that are sent again when the session is renewed.
    renewing: Option<Renewal>,
    session: Option<String>,
    /// The revision that `initialize` agreed on.
    version: Option<String>,
    /// The revision that the last modern request claimed.
    modern_version: Option<String>,
    memory: Memory,
    tools: Tools<Sent>,
    listening: Option<u64>,
    /// Streams of an HTTP+SSE server that ended since the last answer.
    streams_lost: u32,
    level: Level,
    closing: bool,
    ended: bool,
    out: Vec<Out>,
}

impl Conversation {
    /// A conversation over Streamable HTTP, which falls back to HTTP+SSE where a server knows nothing else.
    pub(super) fn streamable() -> Conversation {
        Conversation::new(Mode::Streamable { fall_back: true })
    }

    /// A conversation over HTTP+SSE, and what opens it.
    pub(super) fn sse() -> (Conversation, Vec<Out>) {
        let mut conversation = Conversation::new(Mode::Sse { stream: None, endpoint: None });
        conversation.open_stream();
        let out = std::mem::take(&mut conversation.out);
        (conversation, out)
    }

    fn new(mode: Mode) -> Conversation {
        Conversation {
            mode,
            last_exchange: 0,
            running: BTreeMap::new(),
            pending: Vec::new(),
            gate_closed: false,
            held: VecDeque::new(),
            lane: VecDeque::new(),
            lane_busy: false,
            renewing: None,
            session: None,
            version: None,
            modern_version: None,
            memory: Memory::default(),
            tools: Tools::default(),
            listening: None,
            streams_lost: 0,
            level: Level::Low,
            closing: false,
            ended: false,
            out: Vec::new(),
        }
    }

    /// How full it is.
    pub(super) fn level(&self) -> Level {
        self.level
    }

    /// Where messages are posted, if not to the server's own address.
    pub(super) fn endpoint(&self) -> Option<&str> {
        match &self.mode {
            Mode::Sse { endpoint, .. } => endpoint.as_deref(),
            Mode::Streamable { .. } => None,
        }
    }

    // --- what the engine says ---

    /// A frame of the engine; `attempt` if it is a request.
    pub(super) fn send(&mut self, bytes: Vec<u8>, attempt: Option<AttemptId>) -> Vec<Out> {
        let FromUpstream::Message(message) = from_upstream(bytes) else {
            // The engine takes batches apart and sends nothing that is no message.
            return self.turn_over();
        };
        let sent = Sent { message, attempt, sent_again: false, listed_again: false };
        if self.closing {
            self.fail(&sent, Failed::not_sent("the session is ending"));
        } else if matches!(sent.message.role, Role::Notification { method: Method::Cancelled }) {
            self.cancel(sent);
        } else if self.must_hold() {
            self.held.push_back(sent);
        } else {
            self.launch(sent);
        }
        self.turn_over()
    }

    /// Ends the conversation politely: streams are closed, what was told is still delivered, then the session is ended.
    pub(super) fn close(&mut self) -> Vec<Out> {
        if !std::mem::replace(&mut self.closing, true) {
            let told = |running: &Running| {
                matches!(running.why, Why::Lane | Why::Initialized)
                    || running.sent.as_ref().is_some_and(|sent| matches!(sent.message.role, Role::Response { .. }))
            };
            let open = self.running.iter().filter(|(_, running)| !told(running)).map(|(id, _)| *id);
            self.out.extend(open.map(Out::Shut));
            self.held.retain(|sent| !matches!(sent.message.role, Role::Request { .. }));
            if !matches!(self.mode, Mode::Sse { endpoint: None, .. }) {
                self.move_lane();
            }
        }
        self.turn_over()
    }

    /// Ends the conversation at once.
    pub(super) fn abort(&mut self) -> Vec<Out> {
        self.closing = true;
        let running: Vec<u64> = self.running.keys().copied().collect();
        self.out.extend(running.into_iter().map(Out::Shut));
        if !std::mem::replace(&mut self.ended, true) {
            self.out.push(Out::Ended);
        }
        std::mem::take(&mut self.out)
    }

    // --- what exchanges say ---

    /// A message answers a request of ours. What the client is to see of it comes back, and what else is to be done.
    /// `exchange` is where it came from, `session` the session that its HTTP response named.
    pub(super) fn answering(
        &mut self,
        exchange: u64,
        session: Option<String>,
        message: Message,
    ) -> (Option<Vec<u8>>, Vec<Out>) {
        let shown = self.answered_by(exchange, session, message);
        (shown, self.turn_over())
    }

    /// An exchange is over.
    pub(super) fn done(&mut self, exchange: u64, end: End) -> Vec<Out> {
        if let Some(running) = self.running.remove(&exchange) {
            self.over(running, end);
        }
        self.turn_over()
    }

    /// The stream of an HTTP+SSE server says where to post.
    pub(super) fn endpoint_named(&mut self, exchange: u64, url: String) -> Vec<Out> {
        if let Mode::Sse { stream: Some(stream), endpoint } = &mut self.mode
            && *stream == exchange
        {
            *endpoint = Some(url);
            if self.memory.handshake_done() && !self.held.iter().any(is_initialize) {
                // The session ended with the stream before.
                self.renew();
            } else {
                self.flush_held();
            }
        }
        self.turn_over()
    }

    // --- sending ---

    fn must_hold(&mut self) -> bool {
        if let Mode::Sse { stream: None, .. } = self.mode
            && !self.closing
        {
            self.open_stream();
        }
        let no_endpoint = matches!(self.mode, Mode::Sse { endpoint: None, .. });
        self.gate_closed || self.renewing.is_some() || no_endpoint
    }

    fn flush_held(&mut self) {
        while !self.must_hold() {
            let Some(next) = self.held.pop_front() else { break };
            self.launch(next);
        }
    }

    /// Sends a message that nothing stands against.
    fn launch(&mut self, sent: Sent) {
        match &sent.message.role {
            Role::Request { method: Method::Initialize, .. } if claimed_version(&sent.message).is_none() => {
                self.gate_closed = true;
                self.session = None;
                self.version = None;
                self.memory.initialize_sent(&sent.message);
                self.ask(Why::Theirs, sent);
            }
            Role::Request { method: Method::ToolsCall, .. } if self.wants_listing(&sent) => self.list_tools(sent),
            Role::Request { .. } => self.ask_unless_faulty(sent),
            Role::Notification { .. } if is_initialized(&sent.message) => {
                self.gate_closed = true;
                self.memory.initialized_sent(&sent.message);
                self.tell(Why::Initialized, sent);
            }
            Role::Notification { .. } => {
                self.lane.push_back(sent);
                self.move_lane();
            }
            Role::Response { .. } => self.tell(Why::Theirs, sent),
        }
    }

    /// The next notification, if none is on its way.
    fn move_lane(&mut self) {
        if self.lane_busy || self.lane.is_empty() || self.must_hold() {
            return;
        }
        if let Some(next) = self.lane.pop_front() {
            self.lane_busy = true;
            self.tell(Why::Lane, next);
        }
    }

    fn ask(&mut self, why: Why, sent: Sent) {
        let Role::Request { id, method } = &sent.message.role else { return };
        let claim = claimed_version(&sent.message);
        let headers = match &claim {
            Some(version) => {
                self.modern_version = Some(version.clone());
                let mut headers = vec![("MCP-Protocol-Version".to_owned(), version.clone())];
                headers.extend(mirrored(&sent.message, self.tools.headers_of(&sent.message)));
                headers
            }
            None if *method == Method::Initialize => Vec::new(),
            None => self.session_headers(),
        };
        let session = self.session.clone().filter(|_| claim.is_none() && *method != Method::Initialize);
        let (bytes, id, resumable) = (sent.message.bytes.clone(), id.clone(), claim.is_none());
        self.start(why, Some(sent), session, What::Ask { bytes, id, resumable }, headers);
    }

    fn tell(&mut self, why: Why, sent: Sent) {
        let headers = match claimed_version(&sent.message).or_else(|| self.modern_without_session()) {
            Some(version) => vec![("MCP-Protocol-Version".to_owned(), version)],
            None => self.session_headers(),
        };
        let what = What::Tell { bytes: sent.message.bytes.clone() };
        self.start(why, Some(sent), self.session.clone(), what, headers);
    }

    /// The revision of a conversation that has no handshake.
    fn modern_without_session(&self) -> Option<String> {
        self.modern_version.clone().filter(|_| self.version.is_none())
    }

    fn session_headers(&self) -> Vec<(String, String)> {
        let session = self.session.as_ref().map(|session| ("Mcp-Session-Id".to_owned(), session.clone()));
        let version = self.version.as_ref().filter(|version| version.as_str() >= VERSION_HEADER_SINCE);
        let version = version.map(|version| ("MCP-Protocol-Version".to_owned(), version.clone()));
        session.into_iter().chain(version).collect()
    }

    fn start(
        &mut self,
        why: Why,
        sent: Option<Sent>,
        session: Option<String>,
        what: What,
        headers: Vec<(String, String)>,
    ) -> u64 {
        self.last_exchange += 1;
        let id = self.last_exchange;
        let attempt = sent.as_ref().and_then(|sent| sent.attempt);
        let running = Running { why, sent, session, withdrawn: false, mismatched: false, answered: false };
        self.running.insert(id, running);
        self.out.push(Out::Start(Exchange { id, what, headers, attempt }));
        id
    }

    fn open_stream(&mut self) {
        let lost = self.streams_lost;
        let id = self.start(Why::Stream, None, None, What::Stream { lost }, Vec::new());
        self.mode = Mode::Sse { stream: Some(id), endpoint: None };
    }

    // --- withdrawing ---

    /// `notifications/cancelled`: closing the stream cancels in the modern era, the notification in the legacy one.
    fn cancel(&mut self, sent: Sent) {
        let id = sent.message.params().and_then(|params| params.member("requestId"));
        let Some(key) = id.and_then(IdKey::from_json) else { return };
        let is_it = |sent: &Sent| key_of(&sent.message).as_ref() == Some(&key);
        // What waits was not sent: nobody needs to hear of it.
        let before = self.waiting();
        self.held.retain(|sent| !is_it(sent));
        if let Some(renewing) = &mut self.renewing {
            renewing.waiting.retain(|sent| !is_it(sent));
        }
        self.tools.waiting.retain(|sent| !is_it(sent));
        if self.waiting() < before {
            return;
        }
        let mut on_stream = self.pending.iter_mut().map(|(_, running)| (0, running));
        let found = self
            .running
            .iter_mut()
            .map(|(id, running)| (*id, running))
            .chain(&mut on_stream)
            .find(|(_, running)| running.sent.as_ref().is_some_and(is_it));
        let Some((exchange, running)) = found else { return };
        running.withdrawn = true;
        if running.sent.as_ref().is_some_and(|sent| claimed_version(&sent.message).is_some()) {
            self.out.push(Out::Shut(exchange));
            return;
        }
        let withdrawn = self.running.iter().filter(|(_, running)| running.withdrawn).map(|(id, _)| *id);
        let withdrawn: Vec<u64> = withdrawn.collect();
        if withdrawn.len() > WITHDRAWN_MAX {
            self.out.push(Out::Shut(withdrawn[0]));
        }
        self.lane.push_back(sent);
        self.move_lane();
    }

    fn waiting(&self) -> usize {
        self.held.len() + self.renewing.as_ref().map_or(0, |renewing| renewing.waiting.len()) + self.tools.waiting.len()
    }

    // --- answers ---

    fn answered_by(&mut self, exchange: u64, session: Option<String>, message: Message) -> Option<Vec<u8>> {
        let Role::Response { id: Some(id) } = &message.role else { return Some(message.bytes) };
        let key = id.key().clone();
        let mut from_pending = None;
        if let Some(place) = self.pending.iter().position(|(pending, _)| *pending == key) {
            from_pending = Some(self.pending.remove(place).1);
        }
        let of_stream = from_pending.is_some();
        // Over the stream of an HTTP+SSE server the answer may come before the post is accepted.
        let asks =
            |running: &Running| running.sent.as_ref().and_then(|sent| key_of(&sent.message)) == Some(key.clone());
        let posted = self.running.iter().find(|(_, running)| asks(running)).map(|(id, _)| *id);
        let exchange = posted.unwrap_or(exchange);
        let running = match from_pending {
            Some(running) => running,
            None => self.running.get(&exchange).cloned()?,
        };
        self.streams_lost = 0;
        let shown = self.take_answer(&running, exchange, session, message);
        if of_stream {
            // An HTTP+SSE server's answer ends the request; its exchange was over when it was accepted.
            self.over(Running { answered: true, ..running }, End::Done);
        } else if let Some(running) = self.running.get_mut(&exchange) {
            running.answered = true;
        }
        shown
    }

    /// Learns from an answer; what of it the client is to see.
    fn take_answer(
        &mut self,
        running: &Running,
        exchange: u64,
        session: Option<String>,
        message: Message,
    ) -> Option<Vec<u8>> {
        let sent = running.sent.as_ref();
        let asked = sent.map(|sent| &sent.message);
        let method = match asked.map(|asked| &asked.role) {
            Some(Role::Request { method, .. }) => *method,
            _ => return Some(message.bytes),
        };
        match running.why {
            Why::OurInitialize => {
                match self.memory.difference(&message) {
                    None => self.session = session,
                    Some(text) => {
                        self.give_up_renewal(&format!("the server's new session differs from the old: {text}"));
                        return None;
                    }
                }
                return None;
            }
            Why::OurReplay => {
                if message.error().is_some() {
                    let name = asked.and_then(Message::method_name).unwrap_or_default();
                    self.out.push(Out::Diagnose(format!("the server's new session refused {name}")));
                }
                return None;
            }
            Why::OurList => {
                self.tools.page(message.result());
                return None;
            }
            Why::Theirs
            | Why::Initialized
            | Why::Lane
            | Why::OurInitialized
            | Why::Listen
            | Why::Stream
            | Why::Delete => {}
        }
        let modern = asked.and_then(claimed_version).is_some();
        if method == Method::Initialize && !modern && message.result().is_some() {
            self.session = session;
            self.version = self.memory.opened(&message);
        } else if let (Some(asked), true) = (asked, message.result().is_some()) {
            self.memory.answered(asked);
        }
        if method == Method::ToolsCall && modern && is_mismatch(&message) {
            let again = sent.is_some_and(|sent| !sent.listed_again) && !running.withdrawn;
            if again && let Some(running) = self.running.get_mut(&exchange) {
                running.mismatched = true;
                return None;
            }
        }
        if method == Method::ToolsList && modern {
            self.tools.listed(message.result());
            return Some(self.tools.offered(message, &mut |text| self.out.push(Out::Diagnose(text))));
        }
        Some(message.bytes)
    }

    // --- ends ---

    fn over(&mut self, running: Running, end: End) {
        let Running { why, sent, session, withdrawn, mismatched, answered } = running;
        match why {
            Why::Listen => {
                self.listening = None;
                if let End::Failed(failed) = end
                    && failed.session_is_gone()
                    && session.is_some()
                    && session == self.session
                {
                    self.renew();
                }
            }
            Why::Stream => self.stream_over(end),
            Why::Delete => {}
            Why::OurList => self.list_over(end),
            Why::OurReplay => {
                if let End::Failed(failed) = end {
                    self.out
                        .push(Out::Diagnose(format!("the server's new session lacks something: {}", failed.message)));
                }
            }
            Why::OurInitialize => match end {
                End::Done if self.renewing.is_some() => {
                    if matches!(self.mode, Mode::Sse { .. }) && !answered {
                        self.await_on_stream(Running { why, sent, session, withdrawn, mismatched, answered });
                    } else {
                        self.confirm_renewal();
                    }
                }
                End::Done | End::Cut => {}
                End::Failed(failed) => self.give_up_renewal(&failed.message),
            },
            Why::OurInitialized => match end {
                End::Done => self.renewed(),
                End::Cut => {}
                End::Failed(failed) => self.give_up_renewal(&failed.message),
            },
            Why::Initialized => {
                if let End::Failed(failed) = &end {
                    self.out.push(Out::Diagnose(format!("notifications/initialized: {}", failed.message)));
                }
                self.open_gate();
                self.listen();
            }
            Why::Lane => {
                self.lane_busy = false;
                if let (End::Failed(failed), Some(sent)) = (end, sent) {
                    self.untold(sent, session, failed);
                }
                self.move_lane();
            }
            Why::Theirs => {
                let Some(sent) = sent else { return };
                let initialize = is_initialize(&sent);
                match end {
                    _ if mismatched => {
                        self.tools.forget();
                        self.list_tools(Sent { listed_again: true, ..sent });
                    }
                    End::Done if matches!(self.mode, Mode::Sse { .. }) && !answered && sent.attempt.is_some() => {
                        // Accepted; the gate of a handshake stays closed until the answer comes over the stream.
                        let sent = Some(sent);
                        self.await_on_stream(Running { why, sent, session, withdrawn, mismatched, answered });
                        return;
                    }
                    End::Failed(failed) if initialize && self.falls_back(&failed) => {
                        self.out
                            .push(Out::Diagnose(format!("{}; trying the older HTTP+SSE transport", failed.message)));
                        self.held.push_front(sent);
                        self.gate_closed = false;
                        self.open_stream();
                        return;
                    }
                    End::Failed(failed) if !withdrawn => self.not_done(sent, session, failed),
                    End::Done | End::Cut | End::Failed(_) => {}
                }
                if initialize {
                    self.open_gate();
                }
            }
        }
    }

    fn await_on_stream(&mut self, running: Running) {
        if let Some(key) = running.sent.as_ref().and_then(|sent| key_of(&sent.message)) {
            self.pending.push((key, running));
        }
    }

    fn open_gate(&mut self) {
        self.gate_closed = false;
        self.flush_held();
        self.move_lane();
    }

    /// A message of the engine was not answered, or not accepted.
    fn not_done(&mut self, sent: Sent, session: Option<String>, failed: Failed) {
        if !failed.session_is_gone() || session.is_none() {
            self.fail(&sent, failed);
        } else if sent.attempt.is_none() {
            // An answer to something that the old session asked.
            self.out.push(Out::Diagnose(failed.message));
        } else if sent.sent_again || !self.memory.handshake_done() {
            self.fail(&sent, failed.without_session());
        } else if session != self.session && self.renewing.is_none() {
            // Another request has found out before this one did.
            self.launch(Sent { sent_again: true, ..sent });
        } else {
            self.renew();
            if let Some(renewing) = &mut self.renewing {
                renewing.waiting.push(Sent { sent_again: true, ..sent });
            }
        }
    }

    fn untold(&mut self, sent: Sent, session: Option<String>, failed: Failed) {
        let name = sent.message.method_name().unwrap_or_default().into_owned();
        let about_old_session = matches!(sent.message.role, Role::Notification { method: Method::Cancelled });
        if failed.session_is_gone() && session.is_some() && !sent.sent_again && !about_old_session {
            if session == self.session && self.memory.handshake_done() {
                self.renew();
            }
            self.lane.push_front(Sent { sent_again: true, ..sent });
        } else {
            self.out.push(Out::Diagnose(format!("the notification {name:?} was not taken: {}", failed.message)));
        }
    }

    fn fail(&mut self, sent: &Sent, failed: Failed) {
        if let Some(attempt) = sent.attempt {
            self.out.push(Out::Fail(attempt, failed.into_failure()));
        } else if !matches!(sent.message.role, Role::Notification { .. }) && !self.closing {
            self.out.push(Out::Diagnose(failed.message));
        }
    }

    // --- a new session ---

    /// Repeats the handshake for whoever was refused because the session is gone.
    fn renew(&mut self) {
        if self.renewing.is_some() || self.closing {
            return;
        }
        let Some(initialize) = self.memory.initialize() else { return };
        self.renewing = Some(Renewal { waiting: Vec::new(), old: self.session.take() });
        self.out.push(Out::Diagnose("the server has forgotten the session; opening another".to_owned()));
        if let Some(listening) = self.listening.take() {
            self.out.push(Out::Shut(listening));
        }
        self.ask(Why::OurInitialize, ours(initialize));
    }

    fn confirm_renewal(&mut self) {
        match self.memory.initialized() {
            Some(initialized) => self.tell(Why::OurInitialized, ours(initialized)),
            None => self.renewed(),
        }
    }

    /// The new session stands: what the old one knew is told, and what waited is sent.
    fn renewed(&mut self) {
        let waiting = self.renewing.take().unwrap_or_default().waiting;
        for message in self.memory.replays() {
            self.ask(Why::OurReplay, ours(message));
        }
        self.listen();
        for sent in waiting {
            self.launch(sent);
        }
        self.flush_held();
        self.move_lane();
    }

    fn give_up_renewal(&mut self, text: &str) {
        let Some(Renewal { waiting, old }) = self.renewing.take() else { return };
        self.session = old;
        let message = format!("the server has forgotten the session and gives no other: {text}");
        self.out.push(Out::Diagnose(message.clone()));
        for sent in waiting.into_iter().chain(std::mem::take(&mut self.held)) {
            self.fail(&sent, Failed::not_sent(&message));
        }
        self.move_lane();
    }

    /// Listens to what the server has to say by itself. Some say nothing, which is no fault.
    fn listen(&mut self) {
        if self.listening.is_none()
            && matches!(self.mode, Mode::Streamable { .. })
            && self.version.is_some()
            && !self.closing
        {
            let headers = self.session_headers();
            self.listening = Some(self.start(Why::Listen, None, self.session.clone(), What::Listen, headers));
        }
    }

    // --- HTTP+SSE ---

    /// Whether a refused `initialize` says that the server speaks the older transport only (MCP 2025-11-25, transports).
    fn falls_back(&self, failed: &Failed) -> bool {
        self.mode == Mode::Streamable { fall_back: true }
            && self.pending.is_empty()
            && !self.memory.handshake_done()
            && matches!(failed.status, Some(400 | 404 | 405))
            && !failed.modern_error
    }

    fn stream_over(&mut self, end: End) {
        let named = matches!(self.mode, Mode::Sse { endpoint: Some(_), .. });
        self.mode = Mode::Sse { stream: None, endpoint: None };
        let text = match end {
            End::Failed(failed) => failed.message,
            End::Done | End::Cut => "the server closed its event stream".to_owned(),
        };
        for (_, running) in std::mem::take(&mut self.pending) {
            if running.why == Why::OurInitialize {
                self.give_up_renewal(&text);
            } else if let Some(sent) = running.sent.filter(|_| !running.withdrawn) {
                if is_initialize(&sent) {
                    self.gate_closed = false;
                }
                self.fail(&sent, Failed::broken(&text));
            }
        }
        for sent in std::mem::take(&mut self.held) {
            self.fail(&sent, Failed::not_sent(&text));
        }
        if named && !self.closing {
            self.out.push(Out::Diagnose(text));
            self.streams_lost = self.streams_lost.saturating_add(1);
            if self.memory.handshake_done() {
                self.open_stream();
            }
        }
    }

    // --- the tools' headers ---

    /// Whether the tools must be listed before this call, because nobody did.
    fn wants_listing(&self, sent: &Sent) -> bool {
        claimed_version(&sent.message).is_some() && self.tools.unknown(&sent.message)
    }

    fn list_tools(&mut self, sent: Sent) {
        let claim = sent.message.params_meta().map(|meta| meta.text().to_vec());
        self.tools.waiting.push(sent);
        if !self.tools.listing {
            self.tools.begin();
            self.ask_for_page(claim.as_deref());
        }
    }

    fn ask_for_page(&mut self, claim: Option<&[u8]>) {
        match self.tools.question(claim) {
            Some(question) => self.ask(Why::OurList, ours(question)),
            None => self.release_calls(),
        }
    }

    fn list_over(&mut self, end: End) {
        match end {
            End::Done if self.tools.more() => self.ask_for_page(None),
            End::Done | End::Cut => self.release_calls(),
            End::Failed(failed) => {
                self.out.push(Out::Diagnose(format!("cannot list the server's tools: {}", failed.message)));
                self.release_calls();
            }
        }
    }

    fn release_calls(&mut self) {
        for sent in self.tools.finish() {
            self.ask_unless_faulty(sent);
        }
    }

    /// A tool whose annotations are invalid is not offered over HTTP, and not called (MCP 2026-07-28, tools).
    fn ask_unless_faulty(&mut self, sent: Sent) {
        let call = matches!(sent.message.role, Role::Request { method: Method::ToolsCall, .. });
        let fault = call.then(|| self.tools.fault_of(&sent.message)).flatten();
        match fault.filter(|_| claimed_version(&sent.message).is_some()) {
            Some(fault) => {
                let message = format!("the tool cannot be called over HTTP: {fault}");
                self.fail(&sent, Failed { final_word: true, ..Failed::not_sent(&message) });
            }
            None => self.ask(Why::Theirs, sent),
        }
    }

    // --- the end of a turn ---

    fn turn_over(&mut self) -> Vec<Out> {
        let requests = self.running.values().chain(self.pending.iter().map(|(_, running)| running));
        let requests = requests.filter(|running| !running.withdrawn && running.sent.is_some()).count() + self.waiting();
        let waiting = self.held.iter().chain(&self.lane).chain(&self.tools.waiting);
        let waiting = waiting.chain(self.renewing.iter().flat_map(|renewing| &renewing.waiting));
        let bytes: usize = waiting.map(|sent| sent.message.bytes.len()).sum();
        let level = match bytes {
            bytes if bytes > OUTBOX_FULL_BYTES => Level::Full,
            bytes if bytes > OUTBOX_HIGH_BYTES || requests >= REQUESTS_MAX => Level::High,
            _ => Level::Low,
        };
        if level != self.level {
            self.level = level;
            self.out.push(Out::Level(level));
        }
        if self.closing && !self.ended && self.running.is_empty() {
            match self.session.take() {
                Some(session) => {
                    let mut headers = vec![("Mcp-Session-Id".to_owned(), session.clone())];
                    headers.extend(self.session_headers());
                    self.start(Why::Delete, None, Some(session), What::Delete, headers);
                }
                None => {
                    self.ended = true;
                    self.out.push(Out::Ended);
                }
            }
        }
        std::mem::take(&mut self.out)
    }
}

fn key_of(message: &Message) -> Option<IdKey> {
    match &message.role {
        Role::Request { id, .. } => Some(id.key().clone()),
        Role::Notification { .. } | Role::Response { .. } => None,
    }
}

fn ours(message: Message) -> Sent {
    Sent { message, attempt: None, sent_again: false, listed_again: false }
}

fn is_initialize(sent: &Sent) -> bool {
    matches!(sent.message.role, Role::Request { method: Method::Initialize, .. })
}

fn is_initialized(message: &Message) -> bool {
    message.method_name().as_deref() == Some("notifications/initialized")
}

/// MCP 2026-07-28: headers and body differ.
fn is_mismatch(message: &Message) -> bool {
    let code = message.error().and_then(|error| error.member("code"));
    code.is_some_and(|code| code.text() == b"-32020")
}

#[cfg(test)]
mod tests;
