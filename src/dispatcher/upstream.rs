//! What upstreams send, and their lives.

use std::collections::BTreeMap;
use std::time::Duration;

use super::answer::OurError;
use super::batch::BatchOwner;
use super::call::TaskToken;
use super::circuit::Circuits;
use super::drain::Stop;
use super::event::{Action, AttemptId, ClientId, Incarnation, Level, OUTBOX_FULL_BYTES, ProcessEnd, UpstreamId};
use super::health::Health;
use super::late::LateOwner;
use super::pass::SUBSCRIPTION_ID;
use super::pause::PausableClock;
use super::recorded::Recorded;
use super::restart::Revival;
use super::{BatchId, Dispatcher, OpenId, OpenKind, Timer};
use crate::budget::RetryBudget;
use crate::clock::Time;
use crate::exit::ExitStatus;
use crate::record::{Executed, Server};
use crate::retry::Reliability;
use crate::wire::json::Json;
use crate::wire::message::{
    FromUpstream, INTERNAL_ERROR, INVALID_REQUEST, METHOD_NOT_FOUND, Message, Method, Role, Sniffed, sniff, sniff_tail,
};
use crate::wire::request_id::{IdKey, RequestId};
use crate::wire::splice::{quote, replace};

/// After one part of an upstream's end (its input or output closed, or its process gone), how long the others are waited
/// for: for the exit status to be named, or for the last answers in the pipe.
const END_WAIT: Duration = Duration::from_millis(250);

/// How many finished calls keep their progress token because their answer was a task.
const TASK_TOKENS_MAX: usize = 1024;

/// How many tools' annotations are kept.
const ANNOTATED_MAX: usize = 10_000;

/// A request of the upstream that waits for the client.
#[derive(Clone, Debug)]
pub(super) struct UpstreamRequest {
    /// The upstream's own id.
    pub(super) id: RequestId,
    pub(super) batch: Option<BatchId>,
    since: Time,
    /// It still makes the calls' time stand still.
    holds: bool,
}

/// Where an upstream is in its life.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Stage {
    /// Sends and takes.
    Up,
    /// It is being ended to be started again. What it still answers counts; new requests wait in line.
    Retiring,
    /// One part of its end is known. New requests wait in line until the rest is.
    Ending { until: Time },
    /// It sends nothing more, and will be started again then, or when all of its group is ended. Requests wait in line.
    Down { until: Time },
    /// It sends nothing more.
    Gone,
}

/// A request on the wire.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct OnWire {
    pub(super) open: OpenId,
    /// It may have left this process.
    pub(super) left: bool,
}

impl OnWire {
    /// Whether it ran, as far as its sending tells.
    pub(super) fn executed(self) -> Executed {
        if self.left { Executed::Maybe } else { Executed::No }
    }
}

/// Requests that wait to be sent; whoever asked first is first.
#[derive(Clone, Debug, Default)]
pub(super) struct Line {
    requests: BTreeMap<OpenId, usize>,
    bytes: usize,
}

impl Line {
    pub(super) fn ids(&self) -> impl Iterator<Item = OpenId> {
        self.requests.keys().copied()
    }

    fn join(&mut self, id: OpenId, bytes: usize) {
        self.leave(id);
        self.requests.insert(id, bytes);
        self.bytes += bytes;
    }

    pub(super) fn leave(&mut self, id: OpenId) {
        self.bytes -= self.requests.remove(&id).unwrap_or(0);
    }
}

#[derive(Clone, Debug)]
pub(super) struct Upstream {
    pub(super) server: Server,
    pub(super) incarnation: Incarnation,
    pub(super) stage: Stage,
    /// It takes nothing more.
    deaf: bool,
    pub(super) output_closed: bool,
    pub(super) end: Option<ProcessEnd>,
    /// It has answered a request in this life.
    answered: bool,
    /// It was started again because it did not survive `server/discover`.
    started_again: bool,
    /// What its lives have to do with each other.
    pub(super) revival: Revival,
    /// What a new process must hear.
    pub(super) recorded: Recorded,
    pub(super) health: Health,
    pub(super) circuits: Circuits,
    pub(super) budget: RetryBudget,
    outbox: Level,
    /// Time that counts against calls.
    pub(super) clock: PausableClock,
    /// A frame over the limit whose end may tell whose it is.
    oversized: Option<Sniffed>,
    pub(super) unread: bool,
    /// Requests on its wire.
    pub(super) wire: BTreeMap<AttemptId, OnWire>,
    pub(super) waiting: Line,
    /// Its own requests, by the id that the client sees.
    requests: BTreeMap<u64, UpstreamRequest>,
    tasks: BTreeMap<AttemptId, TaskToken>,
    annotated: BTreeMap<String, bool>,
    /// How far the end of its process is, if it is being ended.
    pub(super) stop: Option<Stop>,
    /// The session is over for it: nothing more is sent, and it is not started again.
    pub(super) leaving: bool,
}

impl Upstream {
    pub(super) fn new(server: Server, reliability: &Reliability) -> Upstream {
        Upstream {
            server,
            incarnation: Incarnation(0),
            stage: Stage::Gone,
            deaf: false,
            output_closed: false,
            end: None,
            answered: false,
            started_again: false,
            revival: Revival::default(),
            recorded: Recorded::default(),
            health: Health::Off,
            circuits: Circuits::new(reliability.circuit),
            budget: RetryBudget::new(reliability.budget),
            outbox: Level::Low,
            clock: PausableClock::default(),
            oversized: None,
            unread: false,
            wire: BTreeMap::new(),
            waiting: Line::default(),
            requests: BTreeMap::new(),
            tasks: BTreeMap::new(),
            annotated: BTreeMap::new(),
            stop: None,
            leaving: false,
        }
    }

    /// Whether requests can be sent to it, or may be once its end turns out not to be one or its next life has begun.
    pub(super) fn accepts(&self) -> bool {
        let takes = match self.stage {
            Stage::Up => !self.deaf,
            Stage::Retiring | Stage::Ending { .. } | Stage::Down { .. } => true,
            Stage::Gone => false,
        };
        takes && !self.leaving
    }

    /// Whether its process may still read what is sent.
    fn is_there(&self) -> bool {
        self.accepts() && !matches!(self.stage, Stage::Down { .. })
    }

    /// Whether it has the client's session: not before a new process has been told of it.
    pub(super) fn is_ready(&self) -> bool {
        self.stage == Stage::Up && self.revival.is_open()
    }

    /// Whether it is between two lives, so that waiting for it is nobody's delay.
    pub(super) fn is_between_lives(&self) -> bool {
        match self.stage {
            Stage::Retiring | Stage::Down { .. } => true,
            Stage::Up => !self.revival.is_open(),
            Stage::Ending { .. } | Stage::Gone => false,
        }
    }

    /// Whether its clients may be read: there is room for what they send.
    pub(super) fn takes_more(&self) -> bool {
        self.outbox < Level::Full && self.waiting.bytes < OUTBOX_FULL_BYTES
    }

    /// Whether what it sends still counts.
    fn is_heard(&self) -> bool {
        !matches!(self.stage, Stage::Down { .. } | Stage::Gone)
    }

    /// Its process has ended, and so has its output.
    pub(super) fn is_over(&self) -> bool {
        self.end.is_some() && self.output_closed
    }

    pub(super) fn process_ended(&self) -> bool {
        self.end.is_some()
    }

    /// Why nothing can be asked of it, in words.
    pub(super) fn end_text(&self) -> String {
        match (&self.revival.reason, self.end) {
            (Some(reason), _) => reason.clone(),
            (None, Some(end)) => format!("the server {end}"),
            (None, None) if self.deaf && !self.output_closed => "the server closed its input".to_owned(),
            (None, None) => "the server closed its output".to_owned(),
        }
    }

    /// Makes the calls' time stand still while the upstream is not read; whether that changed anything.
    pub(super) fn set_unread(&mut self, unread: bool, now: Time) -> bool {
        self.unread = unread;
        if let Stage::Ending { until } = &mut self.stage {
            // Its last answers may still be in the pipe: the wait for them begins when they can be read.
            *until = now.plus(END_WAIT);
        }
        self.health.postpone(now);
        self.pause_or_run(now)
    }

    fn pause_or_run(&mut self, now: Time) -> bool {
        let paused = self.unread || self.requests.values().any(|request| request.holds);
        self.clock.set_paused(paused, now)
    }

    pub(super) fn deadlines(&self, id: UpstreamId, client_wait_max: Duration) -> Vec<(Time, Timer)> {
        let mut found = Vec::new();
        for (number, request) in &self.requests {
            if request.holds {
                found.push((request.since.plus(client_wait_max), Timer::ClientWait(id, *number)));
            }
        }
        if let Stage::Ending { until } = self.stage
            && !self.unread
        {
            found.push((until, Timer::UpstreamEnd(id)));
        }
        if let Stage::Down { until } = self.stage
            && self.stop == Some(Stop::Done)
        {
            found.push((until, Timer::Restart(id)));
        }
        found.extend(self.revival.handshake_until().map(|until| (until, Timer::Handshake(id))));
        if self.stage == Stage::Up && !self.unread {
            found.extend(self.health.until().map(|until| (until, Timer::Health(id))));
        }
        if let Some(until) = self.stop.as_ref().and_then(Stop::until) {
            found.push((until, Timer::StopGrace(id)));
        }
        found
    }

    pub(super) fn annotate(&mut self, tool: String, safe: bool) {
        if self.annotated.len() < ANNOTATED_MAX || self.annotated.contains_key(&tool) {
            self.annotated.insert(tool, safe);
        }
    }

    pub(super) fn is_annotated_safe(&self, tool: &str) -> bool {
        self.annotated.get(tool).copied().unwrap_or(false)
    }

    /// Keeps a progress token alive for the task that the call became.
    pub(super) fn keep_for_task(&mut self, attempt: AttemptId, token: TaskToken) {
        self.tasks.insert(attempt, token);
        while self.tasks.len() > TASK_TOKENS_MAX {
            self.tasks.pop_first();
        }
    }

    pub(super) fn task_ended(&mut self, task_id: &str) {
        self.tasks.retain(|_, token| token.task_id.as_deref() != Some(task_id));
    }
}

impl Dispatcher {
    // --- sending ---

    /// Sends a frame that is no request.
    pub(super) fn tell_upstream(&mut self, id: UpstreamId, bytes: Vec<u8>) {
        let Some(upstream) = self.upstreams.get(&id).filter(|upstream| upstream.is_there()) else { return };
        let incarnation = upstream.incarnation;
        self.actions.push(Action::ToUpstream { upstream: id, incarnation, bytes, attempt: None });
    }

    /// Sends a request that is then awaited.
    pub(super) fn send_request(&mut self, id: UpstreamId, attempt: AttemptId, open: OpenId, bytes: Vec<u8>) {
        let Some(upstream) = self.upstreams.get_mut(&id) else { return };
        upstream.wire.insert(attempt, OnWire { open, left: true });
        self.ask_upstream(id, attempt, bytes);
    }

    /// Sends a request; whoever calls this knows what to do with its answer.
    pub(super) fn ask_upstream(&mut self, id: UpstreamId, attempt: AttemptId, bytes: Vec<u8>) {
        let incarnation = self.upstreams[&id].incarnation;
        self.actions.push(Action::ToUpstream { upstream: id, incarnation, bytes, attempt: Some(attempt) });
    }

    /// Whether a new request must stand in line.
    pub(super) fn must_wait(&self, upstream: UpstreamId) -> bool {
        !self.has_room(upstream) || self.upstreams[&upstream].waiting.ids().next().is_some()
    }

    /// Whether the upstream can take a request, and its clients the answer.
    fn has_room(&self, upstream: UpstreamId) -> bool {
        let found = &self.upstreams[&upstream];
        found.is_ready()
            && found.outbox < Level::High
            && self.clients.values().all(|client| client.upstream != upstream || client.outbox < Level::High)
    }

    /// Puts a request in line.
    pub(super) fn wait_in_line(&mut self, id: OpenId) {
        let open = &self.open[&id];
        let bytes = match &open.kind {
            OpenKind::Call(call) => call.frame_bytes(),
            OpenKind::Pass(pass) => pass.frame_bytes(),
        };
        if let Some(upstream) = self.upstreams.get_mut(&open.upstream) {
            upstream.waiting.join(id, bytes);
        }
    }

    /// Sends what waits in line, as far as there is room.
    pub(super) fn send_waiting(&mut self) {
        let ids: Vec<UpstreamId> = self.upstreams.keys().copied().collect();
        for id in ids {
            while self.has_room(id) {
                let Some(upstream) = self.upstreams.get_mut(&id) else { break };
                let Some(next) = upstream.waiting.ids().next() else { break };
                upstream.waiting.leave(next);
                match &self.open[&next].kind {
                    OpenKind::Call(_) => self.send_attempt(next),
                    OpenKind::Pass(_) => self.send_pass(next),
                }
            }
        }
    }

    pub(super) fn upstream_outbox(&mut self, id: UpstreamId, level: Level) {
        if let Some(upstream) = self.upstreams.get_mut(&id) {
            upstream.outbox = level;
        }
        if level == Level::Low {
            self.send_waiting();
        }
    }

    /// Takes a request off the upstream's wire; whether it ran, as far as its sending tells.
    pub(super) fn off_wire(&mut self, id: OpenId, attempt: AttemptId) -> Executed {
        let upstream = self.open.get(&id).and_then(|open| self.upstreams.get_mut(&open.upstream));
        upstream.and_then(|upstream| upstream.wire.remove(&attempt)).map_or(Executed::Maybe, OnWire::executed)
    }

    /// Gives the upstream an answer to a request of its own, alone or as a member of its batch.
    pub(super) fn answer_upstream(&mut self, id: UpstreamId, batch: Option<BatchId>, bytes: Vec<u8>) {
        match batch {
            Some(batch) => self.batch_answered(batch, Some(bytes)),
            None => self.tell_upstream(id, bytes),
        }
    }

    // --- reading ---

    pub(super) fn upstream_frame(&mut self, id: UpstreamId, frame: FromUpstream) {
        if self.upstreams.get(&id).is_none_or(|upstream| !upstream.is_heard()) {
            return;
        }
        match frame {
            FromUpstream::Message(message) => self.upstream_message(id, None, message),
            FromUpstream::Batch(members) => {
                let batch = self.batch_begun(BatchOwner::Upstream(id));
                for member in members {
                    self.upstream_message(id, Some(batch), member);
                }
                self.batch_read(batch);
            }
            FromUpstream::Noise(line) => {
                self.counters.noise_lines += 1;
                self.actions.push(Action::Noise(line));
            }
        }
    }

    fn upstream_message(&mut self, id: UpstreamId, batch: Option<BatchId>, message: Message) {
        match message.role.clone() {
            Role::Response { id: Some(response_id) } => self.upstream_answers(id, &response_id, message),
            // An error that names no request is the client's to read; no state changes.
            Role::Response { id: None } => self.tell_clients_of(id, message.bytes),
            Role::Request { id: request_id, .. } => self.upstream_asks(id, batch, message, request_id),
            Role::Notification { method } => match method {
                Method::Progress => self.upstream_progress(id, message),
                Method::Cancelled => self.upstream_cancels(id, &message),
                Method::ToolsCall
                | Method::ToolsList
                | Method::Initialize
                | Method::Discover
                | Method::Listen
                | Method::Other => self.upstream_tells(id, message),
            },
        }
    }

    /// The clients whose requests go to this upstream.
    fn clients_of(&self, upstream: UpstreamId) -> Vec<ClientId> {
        self.clients.iter().filter(|(_, client)| client.upstream == upstream).map(|(id, _)| *id).collect()
    }

    pub(super) fn tell_clients_of(&mut self, upstream: UpstreamId, bytes: Vec<u8>) {
        let mut clients = self.clients_of(upstream);
        let last = clients.pop();
        for client in clients {
            self.actions.push(Action::ToClient { client, bytes: bytes.clone() });
        }
        if let Some(client) = last {
            self.actions.push(Action::ToClient { client, bytes });
        }
    }

    fn upstream_answers(&mut self, id: UpstreamId, response_id: &RequestId, message: Message) {
        let attempt = number_in(response_id.key()).map(AttemptId);
        let Some(upstream) = self.upstreams.get_mut(&id) else { return };
        upstream.answered = true;
        upstream.revival.ever_answered = true;
        self.health_wanted(id);
        if let Some(attempt) = attempt
            && (self.opening_answered(id, attempt, &message) || self.health_answered(id, attempt))
        {
            return;
        }
        let message = match attempt {
            Some(attempt) => match self.answer_meets_fault(id, attempt, message) {
                Some(message) => message,
                None => return,
            },
            None => message,
        };
        self.deliver_answer(id, attempt, message);
    }

    /// Gives an answer to whoever waits for it.
    pub(super) fn deliver_answer(&mut self, id: UpstreamId, attempt: Option<AttemptId>, message: Message) {
        let Some(upstream) = self.upstreams.get_mut(&id) else { return };
        let owner = attempt.and_then(|attempt| Some((attempt, upstream.wire.remove(&attempt)?.open)));
        let Some((attempt, open)) = owner else {
            self.late_answer(attempt, &message);
            return;
        };
        if self.open[&open].is_call() {
            self.call_answered(open, attempt, message);
        } else {
            self.pass_answered(open, message);
        }
    }

    fn late_answer(&mut self, attempt: Option<AttemptId>, message: &Message) {
        let owner = attempt.and_then(|attempt| self.late.take(attempt, self.now.mono));
        match owner {
            None => self.counters.unknown_answers += 1,
            Some(owner) => {
                self.counters.late_answers += 1;
                match owner {
                    LateOwner::Nobody => {}
                    LateOwner::Call { open, attempt } => self.call_answered_late(open, attempt, message),
                    LateOwner::DeadLetter(record_id) => self.dead_letter_answered(record_id, message),
                }
            }
        }
    }

    fn upstream_tells(&mut self, id: UpstreamId, message: Message) {
        if message.method_name().as_deref() == Some("notifications/tasks/status") {
            self.note_task_status(id, message.params());
        }
        let subscription = message.params_meta().and_then(|meta| meta.member(SUBSCRIPTION_ID));
        let Some(subscription) = subscription else {
            self.tell_clients_of(id, message.bytes);
            return;
        };
        let span = subscription.span_in(&message.bytes);
        let listen = attempt_in(subscription).and_then(|attempt| self.upstreams[&id].wire.get(&attempt)).copied();
        let Some(open) = listen.and_then(|found| self.open.get(&found.open)).filter(|open| open.is_listen()) else {
            self.counters.stale_subscriptions += 1;
            return;
        };
        let (client, raw, open) = (open.client, open.id.raw().to_vec(), listen.map(|found| found.open));
        if message.method_name().as_deref() == Some("notifications/subscriptions/acknowledged")
            && open.is_some_and(|open| self.listen_acknowledged(open))
        {
            return;
        }
        let mut bytes = message.bytes;
        replace(&mut bytes, span, &raw);
        self.actions.push(Action::ToClient { client, bytes });
    }

    fn note_task_status(&mut self, id: UpstreamId, params: Option<Json<'_>>) {
        let text = |name| params.and_then(|params| params.member(name)).and_then(Json::as_str);
        let (Some(task), Some(status)) = (text("taskId"), text("status")) else { return };
        if matches!(&*status, "completed" | "failed" | "cancelled")
            && let Some(upstream) = self.upstreams.get_mut(&id)
        {
            upstream.task_ended(&task);
        }
    }

    fn upstream_progress(&mut self, id: UpstreamId, message: Message) {
        let token = message.params().and_then(|params| params.member("progressToken"));
        let text = token.and_then(Json::as_str);
        let ours = text.as_deref().and_then(|text| text.strip_prefix(&*self.token_prefix));
        let (Some(token), Some(number)) = (token, ours) else {
            // The client's own token of a request that is no tool call passes as it is.
            self.tell_clients_of(id, message.bytes);
            return;
        };
        let span = token.span_in(&message.bytes);
        let progress = message
            .params()
            .and_then(|params| params.member("progress"))
            .and_then(|progress| crate::wire::number::Decimal::parse(progress.text()));
        let Some(attempt) = number.parse().ok().map(AttemptId) else { return };
        let now = self.now.mono;
        let Some((client, raw)) = self.advance_progress(id, attempt, progress, now) else {
            self.counters.stale_progress += 1;
            return;
        };
        let mut bytes = message.bytes;
        replace(&mut bytes, span, &raw);
        self.actions.push(Action::ToClient { client, bytes });
    }

    /// Notes the progress of an attempt; the client and its own token if it is to be told.
    fn advance_progress(
        &mut self,
        id: UpstreamId,
        attempt: AttemptId,
        progress: Option<crate::wire::number::Decimal>,
        now: Time,
    ) -> Option<(ClientId, Vec<u8>)> {
        let upstream = self.upstreams.get_mut(&id)?;
        if let Some(OnWire { open, .. }) = upstream.wire.get(&attempt).copied() {
            let shown = upstream.clock.read(now);
            let extend = self.settings.reliability.extend_on_progress;
            let open = self.open.get_mut(&open)?;
            let OpenKind::Call(call) = &mut open.kind else { return None };
            if extend {
                call.extend(shown);
            }
            return Some((open.client, call.progress.advance(progress)?));
        }
        let token = upstream.tasks.get_mut(&attempt)?;
        Some((token.client, token.progress.advance(progress)?))
    }

    /// `notifications/cancelled` of the upstream: of one of its own requests, or of a subscription.
    fn upstream_cancels(&mut self, id: UpstreamId, message: &Message) {
        let request_id = message.params().and_then(|params| params.member("requestId"));
        let Some((request_id, key)) = request_id.and_then(|json| Some((json, IdKey::from_json(json)?))) else {
            self.counters.unknown_cancels += 1;
            return;
        };
        let span = request_id.span_in(&message.bytes);
        let upstream = &self.upstreams[&id];
        let own = upstream.requests.iter().find(|(_, request)| *request.id.key() == key).map(|(number, _)| *number);
        let mut bytes = message.bytes.clone();
        if let Some(number) = own {
            replace(&mut bytes, span, number.to_string().as_bytes());
            if let Some(request) = self.upstream_request_over(id, number)
                && let Some(batch) = request.batch
            {
                self.batch_answered(batch, None);
            }
            self.tell_clients_of(id, bytes);
            return;
        }
        let listen = attempt_in(request_id).and_then(|attempt| Some((attempt, upstream.wire.get(&attempt)?.open)));
        let Some((attempt, open_id)) = listen.filter(|(_, open)| self.open[open].is_listen()) else {
            self.counters.unknown_cancels += 1;
            return;
        };
        let open = &self.open[&open_id];
        let (client, raw) = (open.client, open.id.raw().to_vec());
        replace(&mut bytes, span, &raw);
        self.actions.push(Action::ToClient { client, bytes });
        self.off_wire(open_id, attempt);
        self.late.remember(attempt, LateOwner::Nobody, self.now.mono);
        self.close(open_id, None);
    }

    pub(super) fn upstream_oversized(&mut self, id: UpstreamId, head: &[u8]) {
        let sniffed = sniff(head);
        if sniffed.id.is_some() {
            self.end_oversized(id, sniffed);
        } else if let Some(upstream) = self.upstreams.get_mut(&id) {
            upstream.oversized = Some(sniffed);
        }
    }

    pub(super) fn upstream_oversized_end(&mut self, id: UpstreamId, tail: &[u8]) {
        let pending = self.upstreams.get_mut(&id).and_then(|upstream| upstream.oversized.take());
        if let Some(sniffed) = pending {
            self.end_oversized(id, Sniffed { id: sniff_tail(tail), ..sniffed });
        }
    }

    fn end_oversized(&mut self, id: UpstreamId, sniffed: Sniffed) {
        let limit = self.settings.frame_bytes_max;
        if let Some(request) = sniffed.id.as_ref().filter(|_| sniffed.has_method) {
            let text = format!("request longer than {limit} bytes (wire.frame_max_bytes)");
            self.diagnose(format!("refused a request of the server: {text}"));
            let error = OurError::refused(INVALID_REQUEST, "invalid_request", text);
            self.answer_upstream(id, None, error.frame(request.raw()));
            return;
        }
        let attempt = sniffed.id.filter(|_| !sniffed.has_method).and_then(|id| number_in(id.key())).map(AttemptId);
        let upstream = self.upstreams.get_mut(&id);
        let found = upstream.zip(attempt).and_then(|(upstream, attempt)| upstream.wire.remove(&attempt));
        let text = format!("the server's answer is longer than {limit} bytes (wire.frame_max_bytes)");
        match found {
            Some(OnWire { open, .. }) if self.open[&open].is_call() => self.call_answer_too_long(open, &text),
            Some(OnWire { open, .. }) => self.fail_pass(open, &text, Executed::Yes),
            None => self
                .diagnose(format!("dropped a frame of the server: longer than {limit} bytes (wire.frame_max_bytes)")),
        }
    }

    // --- requests of the upstream ---

    fn upstream_asks(&mut self, id: UpstreamId, batch: Option<BatchId>, message: Message, request_id: RequestId) {
        if let Some(batch) = batch {
            self.batch_member(batch);
        }
        // At the session's end clients are not read any more, whoever ended it.
        let client = self.clients_of(id).into_iter().find(|client| !self.clients[client].closed);
        let Some(client) = client.filter(|_| self.phase.takes_requests()) else {
            let error = OurError::refused(INTERNAL_ERROR, "client_closed", "the session is ending");
            self.answer_upstream(id, batch, error.frame(request_id.raw()));
            return;
        };
        let number = self.fresh_id();
        let now = self.now.mono;
        let mut bytes = message.bytes;
        if let Some(span) = message.id_span {
            replace(&mut bytes, span, number.to_string().as_bytes());
        }
        if let Some(upstream) = self.upstreams.get_mut(&id) {
            upstream.requests.insert(number, UpstreamRequest { id: request_id, batch, since: now, holds: true });
            upstream.pause_or_run(now);
        }
        self.arm(now.plus(self.settings.reliability.client_wait_max));
        self.actions.push(Action::ToClient { client, bytes });
    }

    /// The request of the upstream that the client's answer with this id belongs to; it is over with this.
    pub(super) fn upstream_request_answered(&mut self, id: UpstreamId, answer: &RequestId) -> Option<UpstreamRequest> {
        self.upstream_request_over(id, number_in(answer.key())?)
    }

    fn upstream_request_over(&mut self, id: UpstreamId, number: u64) -> Option<UpstreamRequest> {
        let now = self.now.mono;
        let upstream = self.upstreams.get_mut(&id)?;
        let request = upstream.requests.remove(&number)?;
        if upstream.pause_or_run(now) {
            self.rearm();
        }
        Some(request)
    }

    /// Ends a request of the upstream that the client answered with something that cannot be passed on.
    pub(super) fn fail_upstream_request(&mut self, client: ClientId, answer: &RequestId, text: &str) {
        let id = self.clients[&client].upstream;
        if let Some(request) = self.upstream_request_answered(id, answer) {
            let error = OurError::refused(INTERNAL_ERROR, "invalid_answer", text);
            self.answer_upstream(id, request.batch, error.frame(request.id.raw()));
        }
    }

    /// Ends every request of the upstream because no client will answer.
    pub(super) fn fail_upstream_requests(&mut self, id: UpstreamId, text: &str) {
        let numbers: Vec<u64> = self.upstreams[&id].requests.keys().copied().collect();
        for number in numbers {
            if let Some(request) = self.upstream_request_over(id, number) {
                let error = OurError::refused(INTERNAL_ERROR, "client_closed", text);
                self.answer_upstream(id, request.batch, error.frame(request.id.raw()));
            }
        }
    }

    /// The client has had its time for a request of the upstream: the calls' time goes on.
    pub(super) fn client_wait_over(&mut self, id: UpstreamId, number: u64) {
        let now = self.now.mono;
        let Some(upstream) = self.upstreams.get_mut(&id) else { return };
        if let Some(request) = upstream.requests.get_mut(&number) {
            request.holds = false;
        }
        if upstream.pause_or_run(now) {
            self.rearm();
        }
    }

    // --- the life of an upstream ---

    pub(super) fn start_upstream(&mut self, id: UpstreamId) {
        let now = self.now.mono;
        let Some(upstream) = self.upstreams.get_mut(&id) else { return };
        upstream.incarnation = Incarnation(upstream.incarnation.0 + 1);
        upstream.stage = Stage::Up;
        upstream.deaf = false;
        upstream.output_closed = false;
        upstream.end = None;
        upstream.stop = None;
        upstream.oversized = None;
        upstream.answered = false;
        upstream.outbox = Level::Low;
        upstream.health = Health::Off;
        upstream.revival.begun(now);
        // What the old process said of itself is not the new one's word.
        upstream.tasks.clear();
        upstream.annotated.clear();
        let incarnation = upstream.incarnation;
        self.actions.push(Action::StartUpstream { upstream: id, incarnation });
    }

    pub(super) fn upstream_start_failed(&mut self, id: UpstreamId, error: &str) {
        self.diagnose(error);
        if let Some(upstream) = self.upstreams.get_mut(&id) {
            upstream.stage = Stage::Gone;
            upstream.output_closed = true;
            upstream.end = None;
            upstream.stop = Some(Stop::Done);
            // There was no process that could have read them.
            upstream.wire.values_mut().for_each(|request| request.left = false);
        }
        let text = format!("the server could not be started: {error}");
        if self.may_restart(id) { self.upstream_fell(id, &text) } else { self.upstream_lost(id, &text) }
    }

    pub(super) fn upstream_introduces_itself(&mut self, id: UpstreamId, info: Option<Json<'_>>) {
        let name = info.and_then(|info| info.member("name")).and_then(Json::as_str);
        if let (Some(name), Some(upstream)) = (name, self.upstreams.get_mut(&id)) {
            upstream.server.name = name.into_owned();
        }
    }

    pub(super) fn upstream_closed(&mut self, id: UpstreamId, unsent: &[AttemptId]) {
        self.mark_unsent(id, unsent);
        if let Some(upstream) = self.upstreams.get_mut(&id) {
            upstream.output_closed = true;
        }
        self.upstream_partly_ended(id);
    }

    pub(super) fn upstream_exited(&mut self, id: UpstreamId, end: ProcessEnd, unsent: &[AttemptId]) {
        self.mark_unsent(id, unsent);
        if let Some(upstream) = self.upstreams.get_mut(&id) {
            upstream.end = Some(end);
        }
        self.upstream_partly_ended(id);
    }

    /// The upstream takes nothing more. Mostly that is the first sign of its end, which then has a better name.
    pub(super) fn upstream_deaf(&mut self, id: UpstreamId, unsent: &[AttemptId]) {
        self.mark_unsent(id, unsent);
        if let Some(upstream) = self.upstreams.get_mut(&id) {
            upstream.deaf = true;
        }
        self.upstream_partly_ended(id);
    }

    fn mark_unsent(&mut self, id: UpstreamId, unsent: &[AttemptId]) {
        let Some(upstream) = self.upstreams.get_mut(&id) else { return };
        for attempt in unsent {
            if let Some(request) = upstream.wire.get_mut(attempt) {
                request.left = false;
            }
        }
    }

    fn upstream_partly_ended(&mut self, id: UpstreamId) {
        let until = self.now.mono.plus(END_WAIT);
        let Some(upstream) = self.upstreams.get_mut(&id) else { return };
        let only_deaf = upstream.end.is_none() && !upstream.output_closed;
        match upstream.stage {
            // The news is that of an end that was seen to already.
            Stage::Down { .. } | Stage::Gone => {}
            Stage::Retiring if only_deaf => {}
            Stage::Up | Stage::Ending { .. } | Stage::Retiring if upstream.is_over() => self.upstream_end_due(id),
            Stage::Up | Stage::Ending { .. } | Stage::Retiring => {
                upstream.stage = Stage::Ending { until };
                self.arm(until);
            }
        }
        self.stop_progressed(id);
    }

    /// The whole end is known, or the rest of it was waited for long enough.
    pub(super) fn upstream_end_due(&mut self, id: UpstreamId) {
        let Some(upstream) = self.upstreams.get_mut(&id) else { return };
        if matches!(upstream.stage, Stage::Down { .. } | Stage::Gone) {
            return;
        }
        if upstream.end.is_none() && !upstream.output_closed {
            upstream.stage = Stage::Up;
            self.upstream_stays_deaf(id);
            return;
        }
        upstream.stage = Stage::Gone;
        let expected = upstream.leaving;
        let text = upstream.end_text();
        if !expected && self.restart_after_discover(id, &text) {
            return;
        }
        if self.may_restart(id) {
            self.upstream_fell(id, &text);
            return;
        }
        if !expected {
            self.diagnose(text.clone());
        }
        self.upstream_lost(id, &text);
    }

    /// Servers that exit on a request they do not know must be probed once and then used (mcp-wire: era negotiation).
    /// The probe gets the answer that such a server should have given, and the server a second life.
    fn restart_after_discover(&mut self, id: UpstreamId, text: &str) -> bool {
        let upstream = &self.upstreams[&id];
        let probes: Vec<OpenId> = upstream.wire.values().map(|request| request.open).collect();
        let is_probe = |open| matches!(&self.open[open].kind, OpenKind::Pass(pass) if pass.method == Method::Discover);
        let only_probes = !probes.is_empty() && probes.iter().all(is_probe);
        if upstream.answered || upstream.started_again || !only_probes || !self.phase.takes_requests() {
            return false;
        }
        self.diagnose(format!("{text} when asked server/discover; starting it once more without that question"));
        for probe in probes {
            if let OpenKind::Pass(pass) = &self.open[&probe].kind
                && let Some(attempt) = pass.sent
            {
                self.off_wire(probe, attempt);
            }
            let error = OurError {
                attempts: 1,
                ..OurError::refused(METHOD_NOT_FOUND, "upstream_closed", "the server does not know server/discover")
            };
            let frame = error.frame(self.open[&probe].id.raw());
            self.close(probe, Some(frame));
        }
        self.withdraw_upstream_requests(id, text);
        let until = self.now.mono;
        if let Some(upstream) = self.upstreams.get_mut(&id) {
            upstream.started_again = true;
            upstream.stage = Stage::Down { until };
        }
        self.calls_wait_for_start(id);
        self.arm(until);
        self.end_process(id);
        true
    }

    /// Nothing more comes from this upstream: everything open there ends, each by its class.
    pub(super) fn upstream_lost(&mut self, id: UpstreamId, text: &str) {
        self.life_over(id, text);
        let open: Vec<OpenId> = self.open.iter().filter(|(_, open)| open.upstream == id).map(|(id, _)| *id).collect();
        for open in open {
            self.fail_unreachable(open, text);
        }
        if self.clients.values().all(|client| !client.closed) && self.phase.takes_requests() {
            self.status = ExitStatus::Upstream;
        }
        self.begin_failing();
    }

    /// Nothing of this life holds anything up any more.
    pub(super) fn life_over(&mut self, id: UpstreamId, text: &str) {
        let now = self.now.mono;
        self.withdraw_upstream_requests(id, text);
        if let Some(upstream) = self.upstreams.get_mut(&id) {
            upstream.outbox = Level::Low;
            upstream.unread = false;
            upstream.oversized = None;
            upstream.health = Health::Off;
            upstream.pause_or_run(now);
        }
        self.rearm();
    }

    /// The client need not answer what an upstream asked that has ended.
    fn withdraw_upstream_requests(&mut self, id: UpstreamId, text: &str) {
        let withdrawn: Vec<u64> = self.upstreams[&id].requests.keys().copied().collect();
        for number in withdrawn {
            if let Some(request) = self.upstream_request_over(id, number)
                && let Some(batch) = request.batch
            {
                self.batch_answered(batch, None);
            }
            let reason = String::from_utf8_lossy(&quote(text)).into_owned();
            let notice = format!(
                "{{\"jsonrpc\":\"2.0\",\"method\":\"notifications/cancelled\",\"params\":{{\"requestId\":{number},\"reason\":{reason}}}}}"
            );
            self.tell_clients_of(id, notice.into_bytes());
        }
    }

    /// It closed its input and nothing else: what it has read may still be answered, and the rest never.
    fn upstream_stays_deaf(&mut self, id: UpstreamId) {
        let upstream = &self.upstreams[&id];
        let unsent = upstream.wire.values().filter(|request| !request.left).map(|request| request.open);
        if self.may_restart(id) {
            let unsent: Vec<OpenId> = unsent.collect();
            let text = upstream.end_text();
            self.retire(id, &text);
            for open in unsent {
                self.fail_unreachable(open, &text);
            }
            return;
        }
        let unreachable: Vec<OpenId> = unsent.chain(upstream.waiting.ids()).collect();
        let text = upstream.end_text();
        self.diagnose(text.clone());
        for open in unreachable {
            self.fail_unreachable(open, &text);
        }
    }

    /// Ends what is open at an upstream that cannot answer it.
    pub(super) fn fail_unreachable(&mut self, open: OpenId, text: &str) {
        match self.open.get(&open).map(|open| &open.kind) {
            Some(OpenKind::Call(_)) => self.call_unreachable(open, text),
            Some(OpenKind::Pass(pass)) => {
                let executed = pass.sent.map_or(Executed::No, |attempt| self.off_wire(open, attempt));
                self.fail_pass(open, text, executed);
            }
            None => {}
        }
    }
}

/// The attempt whose number stands in a peer's copy of its id.
fn attempt_in(json: Json<'_>) -> Option<AttemptId> {
    number_in(&IdKey::from_json(json)?).map(AttemptId)
}

/// Our number in a peer's copy of it. Some peers turn it into a string; it is still ours and nobody else's.
fn number_in(key: &IdKey) -> Option<u64> {
    match key {
        IdKey::Integer(number) => u64::try_from(*number).ok(),
        IdKey::Text(text) => text.parse().ok(),
        IdKey::Decimal(_) => None,
    }
}
