//! The life of one `tools/call`: judged, tried, retried where that is safe, captured when it finally fails.

use std::sync::Arc;
use std::time::Duration;

use super::answer::{CREDENTIAL_REJECTED, DENIED, OurError};
use super::circuit::{CircuitNote, Probes};
use super::client::AUTHORIZATION;
use super::event::{Action, AttemptId, CallId, ClientId, Mark, RequestFailure, Ticket, UpstreamId};
use super::late::LateOwner;
use super::pause::PausableClock;
use super::{BatchId, Dispatcher, Open, OpenId, OpenKind, Timer};
use crate::clock::{Now, Time};
use crate::faults::FaultRule;
use crate::policy::Action as Verb;
use crate::record::{
    Attempt, AuditKind, AuditRow, CallError, CallEvent, Caller, DeadLetter, Decision, Executed, Execution,
    FailureClass, LateResult, PolicyNote, Transport,
};
use crate::retry::ToolSettings;
use crate::wire::json::{Json, Kind};
use crate::wire::message::{INTERNAL_ERROR, INVALID_PARAMS, INVALID_REQUEST, Message, PARSE_ERROR};
use crate::wire::number::Decimal;
use crate::wire::request_id::RequestId;
use crate::wire::splice::{Edits, quote};

/// MCP 2026-07-28: the request lacks a client capability.
const MISSING_CLIENT_CAPABILITY: i64 = -32021;
/// MCP 2026-07-28: the revision is not served.
const UNSUPPORTED_PROTOCOL_VERSION: i64 = -32022;
/// MCP 2026-07-28: a mirrored header differs from the body.
const HEADER_MISMATCH: i64 = -32020;

/// A server that wants to be left alone for longer than this is not asked again for the same call.
const RETRY_AFTER_MAX: Duration = Duration::from_secs(120);

/// How much of a tool's own error text becomes a record's message; all of it is in the record's detail.
const TOOL_TEXT_MAX: usize = 4096;

/// What the client hears of an attempt's progress.
#[derive(Clone, Debug, Default)]
pub(super) struct Progress {
    /// The client's own token, as JSON text; `None` if it asked for no progress.
    token: Option<Vec<u8>>,
    last: Option<Decimal>,
}

impl Progress {
    /// The client's token if it is to be told of `progress`: it must be above all before (MCP: progress increases),
    /// which a second attempt that starts again is not.
    pub(super) fn advance(&mut self, progress: Option<Decimal>) -> Option<Vec<u8>> {
        let token = self.token.as_ref()?;
        if let Some(progress) = progress {
            if self.last.as_ref().is_some_and(|last| progress <= *last) {
                return None;
            }
            self.last = Some(progress);
        }
        Some(token.clone())
    }
}

/// The progress of a call that goes on as a task.
#[derive(Clone, Debug)]
pub(super) struct TaskToken {
    pub(super) client: ClientId,
    pub(super) task_id: Option<String>,
    pub(super) progress: Progress,
}

#[derive(Clone, Debug)]
enum State {
    /// In line for the upstream.
    Queued { since: Now, until: Time },
    /// Sent. `until` is a moment of the upstream's own clock.
    Awaiting { attempt: AttemptId, started: Now, until: Time },
    /// Between attempts, or after the last.
    BackingOff { until: Time },
    /// Given up; the client is told when the dead letter is on disk.
    Capturing { until: Time, letter: Arc<DeadLetter>, ending: Box<Ending> },
}

/// How a call ends once its dead letter is on disk.
#[derive(Clone, Debug)]
struct Ending {
    answer: Vec<u8>,
    response_bytes: u64,
    error: CallError,
    withdrawn: bool,
}

/// When a failed attempt may be followed by another.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Again {
    Always,
    IfIdempotent,
    Never,
}

/// How an attempt failed.
#[derive(Clone, Debug)]
struct Failure {
    class: FailureClass,
    executed: Executed,
    again: Again,
    code: Option<i64>,
    message: String,
    detail: Option<Vec<u8>>,
    /// The upstream's own answer, which the client gets as it is; `None` where we must make one.
    answer: Option<Vec<u8>>,
    response_bytes: u64,
    circuit: Option<CircuitNote>,
    /// No other attempt is wanted before this has passed.
    wait: Duration,
}

impl Failure {
    fn ours(class: FailureClass, executed: Executed, again: Again, message: String) -> Failure {
        let (code, detail, answer, circuit) = (None, None, None, None);
        Failure {
            class,
            executed,
            again,
            code,
            message,
            detail,
            answer,
            response_bytes: 0,
            circuit,
            wait: Duration::ZERO,
        }
    }
}

/// A `tools/call` from its arrival to its answer.
#[derive(Clone, Debug)]
pub(super) struct Call {
    arrived: Now,
    frame: Message,
    correlation_id: String,
    identity: String,
    pub(super) tool: String,
    pub(super) settings: ToolSettings,
    idempotent: bool,
    policy: PolicyNote,
    /// The end of the whole call, on the upstream's own clock.
    total_until: Time,
    total: Duration,
    pub(super) progress: Progress,
    request_bytes: u64,
    /// Failed attempts.
    attempts: Vec<Attempt>,
    /// Attempts that were given up and may still be answered.
    abandoned: Vec<AttemptId>,
    /// The circuits that this attempt decides about.
    pub(super) probes: Probes,
    /// Whether chance has spoken about this attempt.
    pub(super) fault_drawn: bool,
    /// What the answer to this attempt is to meet.
    pub(super) fault: Option<FaultRule>,
    state: State,
}

impl Call {
    pub(super) fn frame_bytes(&self) -> usize {
        self.frame.bytes.len()
    }

    pub(super) fn is_queued(&self) -> bool {
        matches!(self.state, State::Queued { .. })
    }

    pub(super) fn awaits(&self, id: AttemptId) -> bool {
        self.attempt_on_wire() == Some(id)
    }

    /// The request on the upstream's wire, if there is one.
    pub(super) fn attempt_on_wire(&self) -> Option<AttemptId> {
        match self.state {
            State::Awaiting { attempt, .. } => Some(attempt),
            State::Queued { .. } | State::BackingOff { .. } | State::Capturing { .. } => None,
        }
    }

    /// In line for an upstream that is being started again: that is nobody's delay but the whole call's.
    pub(super) fn wait_without_timeout(&mut self) {
        if let State::Queued { until, .. } = &mut self.state {
            *until = self.total_until;
        }
    }

    /// In line for an upstream that takes requests.
    pub(super) fn wait_with_timeout(&mut self, shown: Time) {
        if let State::Queued { until, .. } = &mut self.state {
            *until = shown.plus(self.settings.timeout).min(self.total_until);
        }
    }

    /// Progress was made: the attempt's time starts again, within the call's.
    pub(super) fn extend(&mut self, shown: Time) {
        let limit = self.total_until;
        if let State::Awaiting { until, .. } = &mut self.state {
            *until = shown.plus(self.settings.timeout).min(limit);
        }
    }

    pub(super) fn deadline(&self, id: OpenId, clock: &PausableClock) -> Option<(Time, Timer)> {
        match &self.state {
            State::Queued { until, .. } | State::Awaiting { until, .. } => {
                Some((clock.when(*until)?, Timer::AttemptTimeout(id)))
            }
            State::BackingOff { until } => Some((*until, Timer::Retry(id))),
            State::Capturing { until, .. } => Some((*until, Timer::StoreConfirm(id))),
        }
    }

    fn params(&self) -> Option<Json<'_>> {
        self.frame.params()
    }

    fn arguments(&self) -> Option<Json<'_>> {
        self.params()?.member("arguments")
    }

    fn arguments_text(&self) -> Option<Vec<u8>> {
        self.arguments().map(|arguments| arguments.text().to_vec())
    }

    fn executed(&self) -> Executed {
        self.attempts.iter().map(|attempt| attempt.executed).max().unwrap_or(Executed::No)
    }

    fn idempotency_key(&self) -> Option<String> {
        let arguments = self.arguments();
        let candidates = [
            self.frame.params_meta().and_then(|meta| meta.member("idempotencyKey")),
            arguments.and_then(|arguments| arguments.member("idempotency_key")),
            arguments.and_then(|arguments| arguments.member("idempotencyKey")),
        ];
        candidates.into_iter().flatten().find_map(|json| match json.kind() {
            Kind::String => json.as_str().map(Into::into),
            Kind::Number => Some(String::from_utf8_lossy(json.text()).into_owned()),
            Kind::Object | Kind::Array | Kind::True | Kind::False | Kind::Null => None,
        })
    }

    /// The call carries answers or state of a conversation (MRTR), so that its bytes alone mean nothing.
    fn mid_conversation(&self) -> bool {
        let has = |name| self.params().is_some_and(|params| params.member(name).is_some());
        has("inputResponses") || has("requestState")
    }
}

/// String members of `_meta` that tie a call to a trace (W3C Trace Context and Baggage).
fn trace(params: Option<Json<'_>>) -> Vec<(&'static str, String)> {
    let meta = params.and_then(|params| params.member("_meta"));
    let value = |name| Some((name, meta?.member(name)?.as_str()?.into_owned()));
    ["traceparent", "tracestate", "baggage"].into_iter().filter_map(value).collect()
}

/// What makes a `tools/call` impossible to judge.
fn invalid_params(params: Option<Json<'_>>) -> Option<&'static str> {
    let Some(params) = params.filter(|params| params.kind() == Kind::Object) else {
        return Some("params of tools/call must be an object");
    };
    let wrong = |name| params.member(name).is_some_and(|value| value.kind() != Kind::Object);
    if params.member("name").and_then(Json::as_str).is_none() {
        Some("params.name of tools/call must be a string of Unicode characters")
    } else if wrong("_meta") {
        Some("params._meta of tools/call must be an object")
    } else if wrong("arguments") {
        Some("params.arguments of tools/call must be an object")
    } else {
        None
    }
}

impl Dispatcher {
    // --- arrival ---

    pub(super) fn call_arrived(
        &mut self,
        client: ClientId,
        batch: Option<BatchId>,
        message: Message,
        id: RequestId,
        identity: String,
    ) {
        if let Some(problem) = invalid_params(message.params()) {
            self.counters.refused_frames += 1;
            self.refuse_with(client, batch, &OurError::refused(INVALID_PARAMS, "invalid_params", problem), id.raw());
            return;
        }
        let upstream = self.clients[&client].upstream;
        let call = self.judged(upstream, message, identity);
        if !call.policy.allowed && !self.settings.policy_dry_run {
            let error = OurError {
                correlation_id: Some(call.correlation_id.clone()),
                ..OurError::refused(DENIED, "denied", format!("tool {:?} is denied: {}", call.tool, call.policy.reason))
            };
            self.report_denied(upstream, &call);
            self.refuse_with(client, batch, &error, id.raw());
            return;
        }
        self.note_dry_run(upstream, &call);
        let open_id = OpenId(self.fresh_id());
        if let Some(batch) = batch {
            self.batch_member(batch);
        }
        if let Some(client) = self.clients.get_mut(&client) {
            client.open.insert(id.key().clone(), open_id);
        }
        self.open.insert(open_id, Open { client, upstream, id, batch, kind: OpenKind::Call(Box::new(call)) });
        if let Some(upstream) = self.upstreams.get_mut(&upstream) {
            upstream.budget.called(self.now.mono);
        }
        self.mark_accepted(open_id);
        self.attempt(open_id);
    }

    /// A call with everything that is decided before the first attempt.
    fn judged(&mut self, upstream: UpstreamId, message: Message, identity: String) -> Call {
        let params = message.params();
        let tool = params
            .and_then(|params| params.member("name"))
            .and_then(Json::as_str)
            .map_or_else(String::new, std::borrow::Cow::into_owned);
        let arguments = params.and_then(|params| params.member("arguments"));
        let verdict = self.settings.policy.decide(&tool, &identity, arguments);
        let reliability = &self.settings.reliability;
        let settings = reliability.for_tool(&tool);
        let found = &self.upstreams[&upstream];
        let idempotent = reliability.idempotent(&settings, found.is_annotated_safe(&tool));
        let total = reliability.max_total_for(&settings);
        let token =
            message.params_meta().and_then(|meta| meta.member("progressToken")).map(|token| token.text().to_vec());
        let shown = found.clock.read(self.now.mono);
        Call {
            arrived: self.now,
            correlation_id: self.fresh_uuid(),
            identity,
            tool,
            settings,
            idempotent,
            policy: PolicyNote { allowed: verdict.action == Verb::Allow, rule: verdict.rule, reason: verdict.reason },
            total_until: shown.plus(total),
            total,
            progress: Progress { token, last: None },
            request_bytes: params.map_or(0, |params| params.text().len() as u64),
            attempts: Vec::new(),
            abandoned: Vec::new(),
            probes: Probes::default(),
            fault_drawn: false,
            fault: None,
            state: State::Queued { since: self.now, until: shown.plus(settings.timeout) },
            frame: message,
        }
    }

    /// A `tools/call` without id: judged and logged like any other, never answered.
    pub(super) fn call_told(&mut self, client: ClientId, message: &Message, identity: String) {
        if let Some(problem) = invalid_params(message.params()) {
            self.counters.refused_frames += 1;
            self.diagnose(format!("dropped a tools/call without id: {problem}"));
            return;
        }
        let upstream = self.clients[&client].upstream;
        let call = self.judged(upstream, message.clone(), identity);
        if !call.policy.allowed && !self.settings.policy_dry_run {
            self.report_denied(upstream, &call);
            return;
        }
        self.note_dry_run(upstream, &call);
        if self.upstreams[&upstream].is_between_lives() {
            self.counters.unheard_notifications += 1;
            let message = "the server is being started again, and nobody waits for an answer".to_owned();
            let (class, arguments) = (Some(FailureClass::Transport), call.arguments_text());
            let error = CallError { message, code: None, class, executed: Executed::No, arguments };
            let event = CallEvent { error: Some(error), ..self.event_of(upstream, &call, Decision::Failed, 0) };
            self.actions.push(Action::Report(Box::new(event)));
            return;
        }
        let (bytes, request_bytes) = self.attempt_frame(&call, None);
        self.tell_upstream(upstream, bytes);
        let event = self.event_of(upstream, &Call { request_bytes, ..call }, Decision::Allowed, 1);
        self.actions.push(Action::Report(Box::new(event)));
    }

    /// A call whose credential is not known: logged and audited under the profile, since its caller is nobody we know.
    pub(super) fn call_rejected(
        &mut self,
        client: ClientId,
        batch: Option<BatchId>,
        message: &Message,
        id: &RequestId,
    ) {
        let upstream = self.clients[&client].upstream;
        let text = "the credential in _meta.authorization is not known";
        let profile = self.settings.identities.profile().to_owned();
        let mut call = self.judged(upstream, message.clone(), profile);
        call.policy = PolicyNote { allowed: false, rule: None, reason: text.to_owned() };
        self.report_denied(upstream, &call);
        let error = OurError {
            correlation_id: Some(call.correlation_id),
            ..OurError::refused(CREDENTIAL_REJECTED, "unauthenticated", text)
        };
        self.refuse_with(client, batch, &error, id.raw());
    }

    // --- the flight recorder ---

    /// Says what the call becomes if this process dies with it. Nothing of it was sent yet.
    fn mark_accepted(&mut self, id: OpenId) {
        let Some(open) = self.open.get(&id) else { return };
        let OpenKind::Call(call) = &open.kind else { return };
        let letter = DeadLetter {
            id: String::new(),
            correlation_id: call.correlation_id.clone(),
            captured_at: call.arrived.wall,
            caller: Caller { transport: Transport::Stdio, identity: call.identity.clone() },
            server: self.upstreams[&open.upstream].server.clone(),
            client: self.client_info(open.client, call.frame.params_meta()),
            tool: call.tool.clone(),
            arguments: call.arguments_text(),
            idempotency_key: call.idempotency_key(),
            mid_conversation: call.mid_conversation(),
            idempotent: call.idempotent,
            class: FailureClass::Interrupted,
            executed: Executed::No,
            code: None,
            message: String::new(),
            detail: None,
            attempts: Vec::new(),
            policy: call.policy.clone(),
        };
        self.actions.push(Action::Record(Mark::Accepted { call: CallId(id.0), letter: Arc::new(letter) }));
    }

    /// The call is over, and what its client gets was said before; a member of a batch gets it with the whole batch.
    fn mark_ended(&mut self, id: OpenId, open: &Open) {
        let call = CallId(id.0);
        match open.batch.and_then(|batch| self.batches.get_mut(&batch)) {
            Some(batch) => batch.ended.push(call),
            None => self.actions.push(Action::Record(Mark::Ended { client: open.client, call })),
        }
    }

    fn report_denied(&mut self, upstream: UpstreamId, call: &Call) {
        let rule = call.policy.rule.map_or_else(|| "null".to_owned(), |rule| rule.to_string());
        let reason = String::from_utf8_lossy(&quote(&call.policy.reason)).into_owned();
        let audit = AuditRow {
            id: self.fresh_ulid(),
            at: self.now.wall,
            kind: AuditKind::Denied,
            correlation_id: call.correlation_id.clone(),
            record_id: None,
            caller: call.identity.clone(),
            tool: call.tool.clone(),
            detail: Some(format!("{{\"action\":\"deny\",\"rule\":{rule},\"reason\":{reason}}}")),
        };
        self.actions.push(Action::Audit(Box::new(audit)));
        let event = CallEvent { error: Some(denial(call)), ..self.event_of(upstream, call, Decision::Denied, 0) };
        self.actions.push(Action::Report(Box::new(event)));
    }

    /// In a dry run, a call that would be denied leaves one more log line and goes on.
    fn note_dry_run(&mut self, upstream: UpstreamId, call: &Call) {
        if call.policy.allowed {
            return;
        }
        self.diagnose(format!("policy dry run: would deny tool {:?}: {}", call.tool, call.policy.reason));
        let event = CallEvent {
            error: Some(denial(call)),
            enforced: false,
            ..self.event_of(upstream, call, Decision::Denied, 0)
        };
        self.actions.push(Action::Report(Box::new(event)));
    }

    // --- attempts ---

    /// Makes the next attempt, or puts it in line.
    fn attempt(&mut self, id: OpenId) {
        if let Some(note) = self.circuit_refuses(id, self.now.mono) {
            self.call_refused_by_circuit(id, note);
            return;
        }
        let Some(open) = self.open.get_mut(&id) else { return };
        let OpenKind::Call(call) = &mut open.kind else { return };
        let upstream = &self.upstreams[&open.upstream];
        if !upstream.accepts() {
            let text = upstream.end_text();
            self.call_unreachable(id, &text);
            return;
        }
        call.state = State::Queued { since: self.now, until: call.total_until };
        if !upstream.is_between_lives() {
            call.wait_with_timeout(upstream.clock.read(self.now.mono));
        }
        let upstream_id = open.upstream;
        self.circuit_admits(id);
        if self.must_wait(upstream_id) {
            self.wait_in_line(id);
            self.arm_call(id);
        } else {
            self.send_attempt(id);
        }
    }

    fn arm_call(&mut self, id: OpenId) {
        let Some(open) = self.open.get(&id) else { return };
        let OpenKind::Call(call) = &open.kind else { return };
        if let Some((until, _)) = call.deadline(id, &self.upstreams[&open.upstream].clock) {
            self.arm(until);
        }
    }

    /// Sends an attempt that was judged and has room.
    pub(super) fn send_attempt(&mut self, id: OpenId) {
        if self.attempt_meets_fault(id) {
            return;
        }
        let Some((upstream, attempt)) = self.await_attempt(id) else { return };
        let Some(open) = self.open.get(&id) else { return };
        let OpenKind::Call(call) = &open.kind else { return };
        let (bytes, request_bytes) = self.attempt_frame(call, Some(attempt));
        if let Some(OpenKind::Call(call)) = self.open.get_mut(&id).map(|open| &mut open.kind) {
            call.request_bytes = request_bytes;
        }
        self.actions.push(Action::Record(Mark::Attempt { call: CallId(id.0), attempt }));
        self.send_request(upstream, attempt, id, bytes);
    }

    /// From now on an answer to a new attempt is awaited; which, and whose.
    pub(super) fn await_attempt(&mut self, id: OpenId) -> Option<(UpstreamId, AttemptId)> {
        let attempt = self.fresh_attempt();
        let started = self.now;
        let open = self.open.get_mut(&id)?;
        let OpenKind::Call(call) = &mut open.kind else { return None };
        let upstream = open.upstream;
        let shown = self.upstreams[&upstream].clock.read(started.mono);
        let until = shown.plus(call.settings.timeout).min(call.total_until);
        call.state = State::Awaiting { attempt, started, until };
        self.arm_call(id);
        Some((upstream, attempt))
    }

    /// Holds an attempt back before it is sent.
    pub(super) fn call_delayed(&mut self, id: OpenId, by: Duration) {
        let until = self.now.mono.plus(by);
        if let Some(OpenKind::Call(call)) = self.open.get_mut(&id).map(|open| &mut open.kind) {
            call.state = State::BackingOff { until };
            self.arm(until);
        }
    }

    /// The frame of an attempt and the length of its `params`: the client's bytes with our id, our progress token in
    /// the place of its own, our correlation id, and without its credential.
    fn attempt_frame(&self, call: &Call, attempt: Option<AttemptId>) -> (Vec<u8>, u64) {
        let bytes = &call.frame.bytes;
        let ours = format!("{{\"correlation_id\":\"{}\"}}", call.correlation_id).into_bytes();
        let number = attempt.map(|attempt| attempt.0.to_string()).unwrap_or_default();
        let token = quote(&format!("{}{number}", self.token_prefix));
        let mut edits = Edits::new();
        if let Some(params) = call.params() {
            match params.member("_meta") {
                Some(meta) => {
                    let mut set: Vec<(&str, &[u8])> = vec![("mcprelay", &ours)];
                    if attempt.is_some() && meta.member("progressToken").is_some() {
                        set.push(("progressToken", &token));
                    }
                    edits.edit_members(bytes, meta, &[AUTHORIZATION], &set);
                }
                None => {
                    let meta = [b"{\"mcprelay\":", &ours[..], b"}"].concat();
                    edits.edit_members(bytes, params, &[], &[("_meta", &meta)]);
                }
            }
        }
        let params_before = call.params().map_or(0, |params| params.text().len());
        let mut grown_by_id = 0;
        if let (Some(span), Some(_)) = (call.frame.id_span, attempt) {
            grown_by_id = number.len() as i64 - (span.end - span.start) as i64;
            edits.replace(span, number.into_bytes());
        }
        let out = edits.apply(bytes);
        let params_after = out.len() as i64 - bytes.len() as i64 - grown_by_id + params_before as i64;
        (out, u64::try_from(params_after).unwrap_or(0))
    }

    pub(super) fn attempt_timed_out(&mut self, id: OpenId) {
        let Some(open) = self.open.get(&id) else { return };
        let OpenKind::Call(call) = &open.kind else { return };
        let shown = self.upstreams[&open.upstream].clock.read(self.now.mono);
        match call.state {
            State::Awaiting { until, .. } | State::Queued { until, .. } if until <= shown => {}
            State::Awaiting { .. } | State::Queued { .. } | State::BackingOff { .. } | State::Capturing { .. } => {
                return;
            }
        }
        let tool = &call.tool;
        let (in_time, message) = if shown >= call.total_until {
            let total = call.total.as_millis();
            (false, format!("tool {tool:?} was not finished within {total} ms, all attempts and waits included"))
        } else {
            (true, format!("tool {tool:?} did not answer within {} ms", call.settings.timeout.as_millis()))
        };
        let executed = self.abandon(id, "timed out");
        let again = match executed {
            Executed::No if in_time => Again::Always,
            Executed::Maybe | Executed::Yes if in_time => Again::IfIdempotent,
            Executed::No | Executed::Maybe | Executed::Yes => Again::Never,
        };
        self.attempt_failed(id, Failure::ours(FailureClass::Timeout, executed, again, message));
    }

    /// Gives up the attempt on the wire, if there is one, and tells the upstream so before anything else is sent for this
    /// call. Whether it may have run.
    fn abandon(&mut self, id: OpenId, reason: &str) -> Executed {
        let Some(open) = self.open.get_mut(&id) else { return Executed::No };
        let OpenKind::Call(call) = &mut open.kind else { return Executed::No };
        let State::Awaiting { attempt, .. } = call.state else { return Executed::No };
        call.abandoned.push(attempt);
        let owner = LateOwner::Call { open: id, attempt: call.attempts.len() };
        let upstream = open.upstream;
        let executed = self.off_wire(id, attempt);
        self.late.remember(attempt, owner, self.now.mono);
        let notice = format!(
            "{{\"jsonrpc\":\"2.0\",\"method\":\"notifications/cancelled\",\"params\":{{\"requestId\":{},\"reason\":\"{reason}\"}}}}",
            attempt.0
        );
        self.tell_upstream(upstream, notice.into_bytes());
        executed
    }

    /// An attempt is over without success: what follows, and when.
    fn attempt_failed(&mut self, id: OpenId, mut failure: Failure) {
        let now = self.now;
        self.circuit_hears_failure(id, failure.class, failure.executed);
        let Some(open) = self.open.get_mut(&id) else { return };
        let OpenKind::Call(call) = &mut open.kind else { return };
        if let Some(upstream) = self.upstreams.get_mut(&open.upstream) {
            upstream.waiting.leave(id);
        }
        let started = match call.state {
            State::Awaiting { started, .. } => started,
            State::Queued { since, .. } => since,
            State::BackingOff { .. } | State::Capturing { .. } => now,
        };
        call.state = State::BackingOff { until: now.mono };
        (call.fault_drawn, call.fault) = (false, None);
        let number = u32::try_from(call.attempts.len()).unwrap_or(u32::MAX).saturating_add(1);
        call.attempts.push(Attempt {
            number,
            started_at: started.wall,
            ended_at: now.wall,
            class: failure.class,
            executed: failure.executed,
            code: failure.code,
            message: failure.message.clone(),
        });
        let safe = match failure.again {
            Again::Always => true,
            Again::IfIdempotent => call.idempotent,
            Again::Never => false,
        };
        if safe && number < call.settings.retry.attempts_max && self.upstreams[&open.upstream].accepts() {
            let delay = call.settings.retry.delay(number, &mut self.rng).max(failure.wait);
            let shown = self.upstreams[&open.upstream].clock.read(now.mono);
            let wait = failure.wait;
            if wait > RETRY_AFTER_MAX || !wait.is_zero() && shown.plus(wait) >= call.total_until {
                let (message, wait_ms) = (&failure.message, wait.as_millis());
                failure.message = format!("{message}; not tried again: the server wants {wait_ms} ms to pass first");
            } else if shown.plus(delay) < call.total_until {
                match self.retry_refused(id, delay) {
                    None => {
                        self.back_off(id, delay);
                        return;
                    }
                    Some(reason) => failure.message = format!("{}; not tried again: {reason}", failure.message),
                }
            }
        }
        self.give_up(id, failure);
    }

    fn back_off(&mut self, id: OpenId, delay: Duration) {
        let until = self.now.mono.plus(delay);
        if let Some(OpenKind::Call(call)) = self.open.get_mut(&id).map(|open| &mut open.kind) {
            call.state = State::BackingOff { until };
            self.arm(until);
        }
    }

    /// Why a retry after `delay` is not to be made, although the plan and the tool allow it. Charges the budget if it is.
    fn retry_refused(&mut self, id: OpenId, delay: Duration) -> Option<String> {
        let now = self.now.mono;
        if let Some(note) = self.circuit_refuses(id, now.plus(delay)) {
            return Some(note.text);
        }
        let upstream = self.open.get(&id).and_then(|open| self.upstreams.get_mut(&open.upstream))?;
        let budget = upstream.budget.settings();
        let (percent, floor, window) = (budget.percent, budget.floor, budget.window.as_secs());
        let left = upstream.budget.take(now);
        (!left).then(|| {
            format!(
                "the retry budget is used up (reliability.retry.budget: {percent} % of calls, at least {floor}, within \
                 {window} s)"
            )
        })
    }

    /// An open circuit keeps the call from being tried, or from being tried again.
    pub(super) fn call_refused_by_circuit(&mut self, id: OpenId, note: CircuitNote) {
        let Some(open) = self.open.get(&id) else { return };
        let OpenKind::Call(call) = &open.kind else { return };
        if !call.attempts.is_empty() {
            self.give_up_waiting(id, &note.text);
            return;
        }
        let text = format!("tool {:?}: {}; nothing was sent", call.tool, note.text);
        let failure = Failure::ours(FailureClass::CircuitOpen, Executed::No, Again::Never, text);
        self.give_up(id, Failure { circuit: Some(note), ..failure });
    }

    pub(super) fn retry(&mut self, id: OpenId) {
        let Some(OpenKind::Call(call)) = self.open.get(&id).map(|open| &open.kind) else { return };
        if matches!(call.state, State::BackingOff { until } if until <= self.now.mono) {
            self.attempt(id);
        }
    }

    /// The upstream can take nothing (more) of this call.
    pub(super) fn call_unreachable(&mut self, id: OpenId, text: &str) {
        let Some(OpenKind::Call(call)) = self.open.get(&id).map(|open| &open.kind) else { return };
        let tool = call.tool.clone();
        let executed = match call.state {
            State::Awaiting { attempt, .. } => self.off_wire(id, attempt),
            State::Queued { .. } => Executed::No,
            State::BackingOff { .. } => {
                self.give_up_waiting(id, text);
                return;
            }
            State::Capturing { .. } => return,
        };
        let (again, may) = match executed {
            Executed::No => (Again::Always, ""),
            Executed::Maybe | Executed::Yes => (Again::IfIdempotent, "; the call may have run"),
        };
        let message = format!("tool {tool:?}: {text}{may}");
        self.attempt_failed(id, Failure::ours(FailureClass::Transport, executed, again, message));
    }

    /// The attempt on the wire will get no answer, while the upstream goes on.
    pub(super) fn call_request_failed(&mut self, id: OpenId, attempt: AttemptId, failure: RequestFailure) {
        self.off_wire(id, attempt);
        let Some(OpenKind::Call(call)) = self.open.get(&id).map(|open| &open.kind) else { return };
        let RequestFailure { class, executed, retry_after, message, detail } = failure;
        let (again, may) = match (class, executed) {
            (FailureClass::NonRetryable, _) => (Again::Never, ""),
            (_, Executed::No) => (Again::Always, ""),
            (_, Executed::Maybe) => (Again::IfIdempotent, "; the call may have run"),
            (_, Executed::Yes) => (Again::IfIdempotent, ""),
        };
        let message = format!("tool {:?}: {message}{may}", call.tool);
        let failure = Failure::ours(class, executed, again, message);
        self.attempt_failed(id, Failure { detail, wait: retry_after.unwrap_or_default(), ..failure });
    }

    /// The attempts that a call waits for cannot be made: it ends as the last one did.
    fn give_up_waiting(&mut self, id: OpenId, text: &str) {
        let Some(OpenKind::Call(call)) = self.open.get(&id).map(|open| &open.kind) else { return };
        let Some(last) = call.attempts.last() else {
            // It was held back before its first attempt.
            let message = format!("tool {:?}: {text}", call.tool);
            self.give_up(id, Failure::ours(FailureClass::Transport, Executed::No, Again::Never, message));
            return;
        };
        let message = format!("{}; no other attempt is possible: {text}", last.message);
        let failure = Failure::ours(last.class, last.executed, Again::Never, message);
        self.give_up(id, failure);
    }

    // --- answers ---

    /// The upstream answered the attempt that is awaited.
    pub(super) fn call_answered(&mut self, id: OpenId, attempt: AttemptId, message: Message) {
        if message.error().is_some() {
            let failure = error_failure(&message);
            let answer = self.with_client_id(id, message);
            self.attempt_failed(id, Failure { answer: Some(answer), ..failure });
            return;
        }
        self.circuit_hears_success(id);
        let result = message.result();
        let response_bytes = result.map_or(0, |result| result.text().len() as u64);
        let is = |name| result.and_then(|result| result.member(name));
        if is("isError").is_some_and(|value| value.kind() == Kind::True) {
            let text = tool_text(result);
            let detail = is("content").map(|content| content.text().to_vec());
            let answer = self.with_client_id(id, message);
            self.tool_failed(id, text, detail, answer, response_bytes);
            return;
        }
        let result_type = is("resultType").and_then(Json::as_str);
        let task = is("task").filter(|task| task.member("taskId").is_some());
        let is_task = task.is_some() || result_type.as_deref() == Some("task");
        let finished = !is_task && result_type.as_deref() != Some("input_required");
        let task_id = task.or(result).and_then(|task| task.member("taskId")).and_then(Json::as_str).map(Into::into);
        if is_task {
            self.keep_token_for_task(id, attempt, task_id);
        }
        if finished {
            self.note_execution(id);
        }
        let answer = self.with_client_id(id, message);
        self.finish(id, Decision::Allowed, Some(answer), response_bytes, None, None);
    }

    fn keep_token_for_task(&mut self, id: OpenId, attempt: AttemptId, task_id: Option<String>) {
        let Some(open) = self.open.get(&id) else { return };
        let OpenKind::Call(call) = &open.kind else { return };
        if call.progress.token.is_none() {
            return;
        }
        let token = TaskToken { client: open.client, task_id, progress: call.progress.clone() };
        if let Some(upstream) = self.upstreams.get_mut(&open.upstream) {
            upstream.keep_for_task(attempt, token);
        }
    }

    /// Remembers a keyed success, so that a replay can tell that it would be a repetition.
    fn note_execution(&mut self, id: OpenId) {
        let Some(open) = self.open.get(&id) else { return };
        let OpenKind::Call(call) = &open.kind else { return };
        let Some(key) = call.idempotency_key() else { return };
        let execution = Execution {
            key,
            server: self.upstreams[&open.upstream].server.name.clone(),
            tool: call.tool.clone(),
            arguments: call.arguments().map(|arguments| arguments.text().to_vec()),
            at: self.now.wall,
        };
        self.actions.push(Action::Executed(Box::new(execution)));
    }

    /// The tool ran and says that it failed: never tried again, captured only on request.
    fn tool_failed(&mut self, id: OpenId, text: String, detail: Option<Vec<u8>>, answer: Vec<u8>, response_bytes: u64) {
        let Some(OpenKind::Call(call)) = self.open.get(&id).map(|open| &open.kind) else { return };
        if call.settings.capture_tool_errors {
            let failure = Failure {
                detail,
                answer: Some(answer),
                response_bytes,
                ..Failure::ours(FailureClass::ToolError, Executed::Yes, Again::Never, text)
            };
            self.attempt_failed(id, failure);
            return;
        }
        let error = CallError {
            message: text,
            code: None,
            class: Some(FailureClass::ToolError),
            executed: Executed::Yes,
            arguments: call.arguments_text(),
        };
        self.finish(id, Decision::Failed, Some(answer), response_bytes, Some(error), None);
    }

    /// The answer came and is too long to pass on: the tool has run, and another try would say as much.
    pub(super) fn call_answer_too_long(&mut self, id: OpenId, text: &str) {
        let failure = Failure::ours(FailureClass::NonRetryable, Executed::Yes, Again::Never, text.to_owned());
        self.attempt_failed(id, failure);
    }

    /// An answer to an attempt that was given up, while the call goes on: the tool has run, or certainly not.
    pub(super) fn call_answered_late(&mut self, id: OpenId, attempt: usize, message: &Message) {
        let Some(OpenKind::Call(call)) = self.open.get_mut(&id).map(|open| &mut open.kind) else { return };
        if let Some(attempt) = call.attempts.get_mut(attempt) {
            attempt.executed = executed_by(message);
        }
    }

    /// An answer to a call that is a dead letter.
    pub(super) fn dead_letter_answered(&mut self, record_id: String, message: &Message) {
        let success = message.error().is_none()
            && message.result().and_then(|result| result.member("isError")).is_none_or(|is| is.kind() != Kind::True);
        let body = message.error().or(message.result()).map(|body| body.text().to_vec()).unwrap_or_default();
        let late = LateResult { record_id, at: self.now.wall, executed: executed_by(message), success, body };
        self.actions.push(Action::Late(Box::new(late)));
    }

    // --- endings ---

    /// The client withdrew the call; the upstream was told if it knows of it.
    pub(super) fn call_cancelled(&mut self, id: OpenId) {
        self.circuit_hears_nothing(id);
        let Some(OpenKind::Call(call)) = self.open.get_mut(&id).map(|open| &mut open.kind) else { return };
        match &mut call.state {
            // The dead letter is on its way to the disk and stays: only the answer is left out.
            State::Capturing { ending, .. } => {
                ending.withdrawn = true;
                return;
            }
            State::Awaiting { attempt, .. } => {
                let attempt = *attempt;
                call.abandoned.push(attempt);
                self.off_wire(id, attempt);
            }
            State::Queued { .. } | State::BackingOff { .. } => {}
        }
        self.finish(id, Decision::Cancelled, None, 0, None, None);
    }

    /// A signal ended the drain, or a second one came: what is still open becomes a dead letter.
    pub(super) fn interrupt_calls(&mut self) {
        let open: Vec<OpenId> = self.open.iter().filter(|(_, open)| open.is_call()).map(|(id, _)| *id).collect();
        for id in open {
            let Some(OpenKind::Call(call)) = self.open.get(&id).map(|open| &open.kind) else { continue };
            let text = format!("tool {:?}: mcprelay was told to end while the call was open", call.tool);
            let failure = |executed| Failure::ours(FailureClass::Interrupted, executed, Again::Never, text);
            match call.state {
                State::Awaiting { .. } | State::Queued { .. } => {
                    let executed = self.abandon(id, "mcprelay is ending");
                    self.attempt_failed(id, failure(executed));
                }
                State::BackingOff { .. } => self.give_up(id, failure(Executed::No)),
                State::Capturing { .. } => {}
            }
        }
        self.phase.interrupted();
    }

    /// The call has finally failed: write it down, then tell the client.
    fn give_up(&mut self, id: OpenId, failure: Failure) {
        let upstream = self.open.get(&id).and_then(|open| self.upstreams.get_mut(&open.upstream));
        if let Some(upstream) = upstream {
            upstream.waiting.leave(id);
        }
        let Some(open) = self.open.get(&id) else { return };
        let OpenKind::Call(call) = &open.kind else { return };
        let executed = call.executed();
        let attempts = u32::try_from(call.attempts.len()).unwrap_or(u32::MAX);
        let error = CallError {
            message: failure.message.clone(),
            code: None,
            class: Some(failure.class),
            executed,
            arguments: call.arguments_text(),
        };
        // These two say that client and server do not fit together: no replay would change that.
        if matches!(failure.code, Some(MISSING_CLIENT_CAPABILITY | UNSUPPORTED_PROTOCOL_VERSION)) {
            let error = CallError { code: failure.code, ..error };
            self.finish(id, Decision::Failed, failure.answer, failure.response_bytes, Some(error), None);
            return;
        }
        let record_id = self.fresh_ulid();
        let Some(open) = self.open.get(&id) else { return };
        let OpenKind::Call(call) = &open.kind else { return };
        let ours = OurError {
            code: INTERNAL_ERROR,
            message: failure.message.clone(),
            class: failure.class.as_str(),
            executed,
            attempts,
            correlation_id: Some(call.correlation_id.clone()),
            dead_letter_id: Some(record_id.clone()),
            circuit: failure.circuit,
        };
        let code = failure.code.or_else(|| failure.answer.is_none().then_some(INTERNAL_ERROR));
        let answer = failure.answer.unwrap_or_else(|| ours.frame(open.id.raw()));
        let letter = Arc::new(DeadLetter {
            id: record_id.clone(),
            correlation_id: call.correlation_id.clone(),
            captured_at: self.now.wall,
            caller: Caller { transport: Transport::Stdio, identity: call.identity.clone() },
            server: self.upstreams[&open.upstream].server.clone(),
            client: self.client_info(open.client, call.frame.params_meta()),
            tool: call.tool.clone(),
            arguments: call.arguments().map(|arguments| arguments.text().to_vec()),
            idempotency_key: call.idempotency_key(),
            mid_conversation: call.mid_conversation(),
            idempotent: call.idempotent,
            class: failure.class,
            executed,
            code,
            message: failure.message,
            detail: failure.detail,
            attempts: call.attempts.clone(),
            policy: call.policy.clone(),
        });
        let audit = AuditRow {
            id: self.fresh_ulid(),
            at: self.now.wall,
            kind: AuditKind::Captured,
            correlation_id: letter.correlation_id.clone(),
            record_id: Some(record_id.clone()),
            caller: letter.caller.identity.clone(),
            tool: letter.tool.clone(),
            detail: None,
        };
        let until = self.now.mono.plus(self.settings.capture_timeout);
        let now = self.now.mono;
        let Some(OpenKind::Call(call)) = self.open.get_mut(&id).map(|open| &mut open.kind) else { return };
        for attempt in std::mem::take(&mut call.abandoned) {
            self.late.remember(attempt, LateOwner::DeadLetter(record_id.clone()), now);
        }
        let ending = Ending {
            answer,
            response_bytes: failure.response_bytes,
            error: CallError { code, ..error },
            withdrawn: false,
        };
        call.state = State::Capturing { until, letter: Arc::clone(&letter), ending: Box::new(ending) };
        self.arm(until);
        self.actions.push(Action::Capture { ticket: Ticket(id.0), letter, audit: Box::new(audit) });
    }

    pub(super) fn stored(&mut self, ticket: Ticket) {
        self.captured(OpenId(ticket.0), None);
    }

    pub(super) fn store_failed(&mut self, ticket: Ticket, error: String) {
        self.captured(OpenId(ticket.0), Some(error));
    }

    pub(super) fn store_timed_out(&mut self, id: OpenId) {
        let timeout = self.settings.capture_timeout.as_millis();
        self.captured(id, Some(format!("the queue did not confirm within {timeout} ms (queue.capture_timeout_ms)")));
    }

    /// The dead letter is where it will be: the client may know.
    fn captured(&mut self, id: OpenId, trouble: Option<String>) {
        let Some(OpenKind::Call(call)) = self.open.get_mut(&id).map(|open| &mut open.kind) else { return };
        let State::Capturing { letter, ending, .. } = &call.state else { return };
        let (letter, ending) = (Arc::clone(letter), (**ending).clone());
        if let Some(error) = trouble {
            self.actions.push(Action::Rescue { call: CallId(id.0), letter: Arc::clone(&letter), error });
        }
        let record = Some(letter.id.clone());
        let (decision, answer) = match ending.withdrawn {
            true => (Decision::Cancelled, None),
            false => (Decision::Failed, Some(ending.answer)),
        };
        self.finish(id, decision, answer, ending.response_bytes, Some(ending.error), record);
    }

    /// Logs the call and answers it.
    fn finish(
        &mut self,
        id: OpenId,
        decision: Decision,
        answer: Option<Vec<u8>>,
        response_bytes: u64,
        error: Option<CallError>,
        dead_letter_id: Option<String>,
    ) {
        let Some(open) = self.take_open(id) else { return };
        let OpenKind::Call(call) = &open.kind else { return };
        for attempt in &call.abandoned {
            self.late.remember(*attempt, LateOwner::Nobody, self.now.mono);
        }
        let failed = u32::try_from(call.attempts.len()).unwrap_or(u32::MAX);
        let attempts = failed.saturating_add(u32::from(call.attempt_on_wire().is_some()));
        let event = CallEvent {
            response_bytes,
            error,
            dead_letter_id,
            ..self.event_of(open.upstream, call, decision, attempts)
        };
        self.actions.push(Action::Report(Box::new(event)));
        self.answer_taken(&open, answer);
        self.mark_ended(id, &open);
    }

    /// The event of a call that ends now, without an error.
    fn event_of(&mut self, upstream: UpstreamId, call: &Call, decision: Decision, attempts: u32) -> CallEvent {
        let latency = self.now.mono.saturating_since(call.arrived.mono);
        CallEvent {
            id: self.fresh_ulid(),
            at: self.now.wall,
            correlation_id: call.correlation_id.clone(),
            trace: trace(call.params()),
            caller: Caller { transport: Transport::Stdio, identity: call.identity.clone() },
            server: self.upstreams[&upstream].server.name.clone(),
            tool: call.tool.clone(),
            decision,
            latency_ms: u64::try_from(latency.as_millis()).unwrap_or(u64::MAX),
            request_bytes: call.request_bytes,
            response_bytes: 0,
            attempts,
            error: None,
            dead_letter_id: None,
            enforced: true,
        }
    }
}

fn denial(call: &Call) -> CallError {
    CallError {
        message: call.policy.reason.clone(),
        code: Some(DENIED),
        class: None,
        executed: Executed::No,
        arguments: None,
    }
}

/// What an error answer says about the tool and about another try.
fn error_failure(message: &Message) -> Failure {
    let error = message.error();
    let member = |name| error.and_then(|error| error.member(name));
    let code = error_code(message);
    let text = member("message").and_then(Json::raw_str).map(|text| text.unescape_lossy().into_owned());
    // Some servers answer with a bare text or an object of their own, which is then all there is to know.
    let detail = if text.is_some() { member("data") } else { error };
    let text = text.unwrap_or_else(|| "the server's error has no message".to_owned());
    let class = error_class(code);
    let again = if class == FailureClass::NonRetryable { Again::Never } else { Again::IfIdempotent };
    Failure {
        code,
        detail: detail.map(|detail| detail.text().to_vec()),
        ..Failure::ours(class, executed_by(message), again, text)
    }
}

/// The code of an error answer, if it is an integer.
pub(crate) fn error_code(message: &Message) -> Option<i64> {
    let code = message.error()?.member("code")?;
    std::str::from_utf8(code.text()).ok()?.parse().ok()
}

/// The class of an error answer with this code.
pub(crate) fn error_class(code: Option<i64>) -> FailureClass {
    match code {
        // -32020…-32099 belong to the MCP specification: none of them is cured by asking again.
        Some(-32099..=HEADER_MISMATCH) => FailureClass::NonRetryable,
        Some(INTERNAL_ERROR) => FailureClass::UpstreamError,
        Some(PARSE_ERROR..=INVALID_REQUEST) | None => FailureClass::NonRetryable,
        Some(_) => FailureClass::UpstreamError,
    }
}

/// What an answer says about whether the tool ran.
pub(crate) fn executed_by(message: &Message) -> Executed {
    if message.error().is_none() {
        return Executed::Yes;
    }
    match error_code(message) {
        // Refused before any tool was looked at. -32603 says nothing about when it went wrong.
        Some(INTERNAL_ERROR) => Executed::Maybe,
        Some(PARSE_ERROR..=INVALID_REQUEST | HEADER_MISMATCH | UNSUPPORTED_PROTOCOL_VERSION) => Executed::No,
        Some(_) | None => Executed::Maybe,
    }
}

/// The tool's own words about its error.
pub(crate) fn tool_text(result: Option<Json<'_>>) -> String {
    let mut text = String::new();
    let content = result.and_then(|result| result.member("content"));
    for part in content.iter().flat_map(|content| content.elements()) {
        let Some(words) = part.member("text").and_then(|text| text.raw_str()) else { continue };
        if !text.is_empty() {
            text.push('\n');
        }
        text.push_str(&words.unescape_lossy());
        if text.len() > TOOL_TEXT_MAX {
            let end = (0..=TOOL_TEXT_MAX).rev().find(|at| text.is_char_boundary(*at)).unwrap_or(0);
            text.truncate(end);
            text.push('…');
            break;
        }
    }
    if text.is_empty() { "the tool reported an error without text".to_owned() } else { text }
}
