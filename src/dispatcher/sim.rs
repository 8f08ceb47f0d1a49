//! Runs the engine on virtual time, for tests: frames go in and come out as text, time jumps from deadline to deadline.
//!
//! What comes out is a transcript. `>u` and `>c` are frames to the upstream and the client, `!` lines are everything
//! else, and `@1500` says that the next lines happen at 1500 ms. Random parts have names: `C1` is the first correlation
//! id seen, `R1` the first record id, and progress tokens lose their random middle (`mcprelay-7`).
//!
//! Every run is also held against two rules that have no exceptions: each request is answered exactly once, or never if
//! it was withdrawn, and nobody gets an answer that it does not wait for.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use super::event::{
    Action, AttemptId, CallId, ClientId, Event, Incarnation, Level, Mark, ProcessEnd, RequestFailure, StopSignal,
    Ticket, UpstreamId,
};
use super::{Dispatcher, Settings};
use crate::clock::{Now, Time, Wall};
use crate::exit::ExitStatus;
use crate::glob::Glob;
use crate::identity::Identities;
use crate::policy::{Action as Verb, Policy, RuleSource};
use crate::record::{
    AuditKind, AuditRow, CallEvent, DeadLetter, Decision, Executed, Execution, FailureClass, LateResult, Server,
    Transport,
};
use crate::restart::RestartSettings;
use crate::retry::{Reliability, RetryPlan, ToolSettings};
use crate::wire::message::{
    AnswerTo, FromClient, FromUpstream, Message, Method, Refusal, Role, from_client, from_upstream, sniff, sniff_tail,
};
use crate::wire::request_id::IdKey;

const CLIENT: ClientId = ClientId(0);
const UPSTREAM: UpstreamId = UpstreamId(0);

/// A run that takes more steps than this does not end.
const STEPS_MAX: usize = 100_000;

/// What the store does with a capture.
#[derive(Clone, Copy, Debug)]
pub(super) enum Store {
    /// Confirms it after so many milliseconds.
    After(u64),
    /// Refuses it after so many milliseconds.
    Fails(u64),
    /// Says nothing.
    Silent,
}

/// Attempts of one second, three of them 100 ms and 200 ms apart; tools called `safe…` are idempotent, errors of
/// `noted…` are captured, `denied…` is denied, and `Bearer k-alice` is alice.
pub(super) fn settings() -> Settings {
    let defaults = ToolSettings {
        timeout: Duration::from_millis(1_000),
        retry: RetryPlan { attempts_max: 3, base: Duration::from_millis(100), jitter: false },
        idempotent: None,
        effects: None,
        capture_tool_errors: false,
        circuit: None,
    };
    let deny = RuleSource { tool: "denied*".into(), caller: None, action: Verb::Deny, args: Vec::new() };
    Settings {
        reliability: Reliability {
            defaults,
            per_tool: vec![
                (Glob::new("safe*"), ToolSettings { idempotent: Some(true), ..defaults }),
                (Glob::new("noted*"), ToolSettings { capture_tool_errors: true, ..defaults }),
            ],
            ..Reliability::default()
        },
        policy: Policy::compile(Verb::Allow, vec![deny]).expect("the rule is valid"),
        policy_dry_run: false,
        identities: Identities::new("local".into(), vec![("k-alice".into(), "alice".into())]).expect("valid"),
        capture_timeout: Duration::from_millis(2_000),
        stdin_grace: Duration::from_millis(2_000),
        term_grace: Duration::from_millis(3_000),
        signal_drain: Duration::from_millis(1_000),
        frame_bytes_max: 10_000,
        restart: RestartSettings { enabled: false, ..RestartSettings::default() },
        health: None,
        faults: None,
    }
}

/// The engine, a clock that tests move, and everything that came out.
pub(super) struct Sim {
    pub(super) engine: Dispatcher,
    now: u64,
    /// How far the calendar's clock was moved, in milliseconds.
    wall_moved: i64,
    pub(super) store: Store,
    /// What the store will say, and when.
    store_says: Vec<(u64, Event)>,
    incarnation: Incarnation,
    pub(super) letters: Vec<Arc<DeadLetter>>,
    pub(super) audits: Vec<AuditRow>,
    pub(super) events: Vec<CallEvent>,
    pub(super) lates: Vec<LateResult>,
    pub(super) executions: Vec<Execution>,
    /// Frames as they left.
    pub(super) to_client: Vec<Vec<u8>>,
    pub(super) to_upstream: Vec<(Option<AttemptId>, Vec<u8>)>,
    pub(super) exit: Option<ExitStatus>,
    /// The frames' grammar and the answers' owners, checked all along.
    ledger: Ledger,
    /// What the flight recorder was told, checked all along.
    recorder: Recorder,
    /// A client frame over the limit is under way that did not tell its id yet.
    headless: bool,
    names: Names,
    /// Lines not yet compared.
    fresh: Vec<String>,
    fresh_at: u64,
    /// All lines, inputs included.
    pub(super) log: Vec<String>,
}

impl Sim {
    /// With [`settings`].
    pub(super) fn new() -> Sim {
        Sim::with(|_| {})
    }

    /// With [`settings`] after `change`.
    pub(super) fn with(change: impl FnOnce(&mut Settings)) -> Sim {
        Sim::seeded(1, change)
    }

    /// The same with a seed.
    pub(super) fn seeded(seed: u64, change: impl FnOnce(&mut Settings)) -> Sim {
        let mut settings = settings();
        change(&mut settings);
        let server = Server {
            name: "fake".into(),
            transport: Transport::Stdio,
            argv: vec!["fake".into(), "--serve".into()],
            cwd: Some("/srv".into()),
        };
        let (engine, actions) = Dispatcher::new(settings, CLIENT, UPSTREAM, server, seed);
        let names = Names { token_prefix: engine.token_prefix.clone(), ..Names::default() };
        let mut sim = Sim {
            engine,
            now: 0,
            wall_moved: 0,
            store: Store::After(0),
            store_says: Vec::new(),
            incarnation: Incarnation(0),
            letters: Vec::new(),
            audits: Vec::new(),
            events: Vec::new(),
            lates: Vec::new(),
            executions: Vec::new(),
            to_client: Vec::new(),
            to_upstream: Vec::new(),
            exit: None,
            ledger: Ledger::default(),
            recorder: Recorder::default(),
            headless: false,
            names,
            fresh: Vec::new(),
            fresh_at: 0,
            log: Vec::new(),
        };
        sim.perform(actions);
        let lines = sim.take_lines();
        assert!(lines.iter().all(|line| line == "!start 1" || line.starts_with("!diag WARNING:")), "{lines:?}");
        sim
    }

    // --- what goes in ---

    /// A line of the client.
    pub(super) fn client(&mut self, frame: impl AsRef<[u8]>) {
        let bytes = frame.as_ref().to_vec();
        self.note(format!("c> {}", text(&bytes)));
        let frame = from_client(bytes);
        self.ledger.client_sends(&frame);
        self.event(Event::ClientFrame { client: CLIENT, frame });
    }

    /// A `tools/call` of the client without arguments; `id` is JSON text.
    pub(super) fn call(&mut self, id: impl std::fmt::Display, tool: &str) {
        self.client(call(id, tool));
    }

    /// A line of the upstream; its life is the current one.
    pub(super) fn upstream(&mut self, frame: impl AsRef<[u8]>) {
        let shown = text(frame.as_ref());
        let bytes = self.names.unnamed(&shown).map_or_else(|| frame.as_ref().to_vec(), String::into_bytes);
        self.note(format!("u> {shown}"));
        let frame = from_upstream(bytes);
        self.ledger.upstream_sends(&frame);
        self.upstream_event(|upstream, incarnation| Event::UpstreamFrame { upstream, incarnation, frame });
    }

    /// The upstream's result for the request with this id on its wire; `result` is JSON text.
    pub(super) fn result(&mut self, attempt: u64, result: &str) {
        self.upstream(format!(r#"{{"jsonrpc":"2.0","id":{attempt},"result":{result}}}"#));
    }

    /// The upstream's error for the request with this id on its wire.
    pub(super) fn error(&mut self, attempt: u64, code: i64, message: &str) {
        self.upstream(format!(r#"{{"jsonrpc":"2.0","id":{attempt},"error":{{"code":{code},"message":"{message}"}}}}"#));
    }

    /// The client sends nothing more.
    pub(super) fn client_closes(&mut self) {
        self.note("c> (end)");
        self.event(Event::ClientClosed { client: CLIENT });
    }

    /// The client takes nothing more.
    pub(super) fn client_gone(&mut self) {
        self.note("c> (gone)");
        self.event(Event::ClientGone { client: CLIENT });
    }

    /// The fill of the outbox to the client.
    pub(super) fn client_outbox(&mut self, level: Level) {
        self.note(format!("outbox to client: {level:?}"));
        self.event(Event::ClientOutbox { client: CLIENT, level });
    }

    /// The fill of the outbox to the upstream.
    pub(super) fn upstream_outbox(&mut self, level: Level) {
        self.note(format!("outbox to upstream: {level:?}"));
        self.upstream_event(|upstream, incarnation| Event::UpstreamOutbox { upstream, incarnation, level });
    }

    /// The upstream's output ends.
    pub(super) fn upstream_closes(&mut self, unsent: &[u64]) {
        self.note(format!("u> (end) unsent {unsent:?}"));
        let unsent = attempts(unsent);
        self.upstream_event(|upstream, incarnation| Event::UpstreamClosed { upstream, incarnation, unsent });
    }

    /// The upstream's process ends.
    pub(super) fn upstream_exits(&mut self, end: ProcessEnd, unsent: &[u64]) {
        self.note(format!("u> ({end}) unsent {unsent:?}"));
        let unsent = attempts(unsent);
        self.upstream_event(|upstream, incarnation| Event::UpstreamExited { upstream, incarnation, end, unsent });
    }

    /// A request gets no answer, while its upstream goes on.
    pub(super) fn request_fails(&mut self, attempt: u64, failure: RequestFailure) {
        self.note(format!("u> (#{attempt} fails) {:?} {:?}", failure.class, failure.executed));
        let (attempt, failure) = (AttemptId(attempt), Box::new(failure));
        self.upstream_event(|upstream, incarnation| Event::RequestFailed { upstream, incarnation, attempt, failure });
    }

    /// The upstream takes nothing more.
    pub(super) fn upstream_deaf(&mut self, unsent: &[u64]) {
        self.note(format!("u> (deaf) unsent {unsent:?}"));
        let unsent = attempts(unsent);
        self.upstream_event(|upstream, incarnation| Event::UpstreamDeaf { upstream, incarnation, unsent });
    }

    /// Both halves of the upstream's end.
    pub(super) fn upstream_dies(&mut self, code: i32) {
        self.upstream_exits(ProcessEnd::Code(code), &[]);
        self.upstream_closes(&[]);
    }

    pub(super) fn upstream_start_fails(&mut self, error: &str) {
        let error = error.to_owned();
        self.upstream_event(|upstream, incarnation| Event::UpstreamStartFailed { upstream, incarnation, error });
    }

    /// A client frame over the limit that begins with `head`.
    pub(super) fn client_oversized(&mut self, head: &str) {
        self.note(format!("c> {head}… (oversized)"));
        let sniffed = sniff(head.as_bytes());
        match sniffed.id {
            Some(id) if sniffed.has_method => self.ledger.client_owes(&AnswerTo::Request(id)),
            Some(_) => {}
            None => self.headless = true,
        }
        self.event(Event::ClientOversized { client: CLIENT, head: head.as_bytes().to_vec() });
    }

    /// An upstream frame over the limit that begins with `head`.
    pub(super) fn client_oversized_end(&mut self, tail: &str) {
        self.note(format!("c> …{tail} (end of oversized)"));
        if std::mem::take(&mut self.headless) {
            self.ledger.client_owes(&sniff_tail(tail.as_bytes()).map_or(AnswerTo::Unknown, AnswerTo::Request));
        }
        self.event(Event::ClientOversizedEnd { client: CLIENT, tail: tail.as_bytes().to_vec() });
    }

    pub(super) fn upstream_oversized_end(&mut self, tail: &str) {
        self.note(format!("u> …{tail} (end of oversized)"));
        let incarnation = self.incarnation;
        self.event(Event::UpstreamOversizedEnd { upstream: UPSTREAM, incarnation, tail: tail.as_bytes().to_vec() });
    }

    pub(super) fn upstream_oversized(&mut self, head: &str) {
        self.note(format!("u> {head}… (oversized)"));
        let sniffed = sniff(head.as_bytes());
        if let Some(id) = sniffed.id.filter(|_| sniffed.has_method) {
            self.ledger.upstream_asked(&id);
        }
        let head = head.as_bytes().to_vec();
        self.upstream_event(|upstream, incarnation| Event::UpstreamOversized { upstream, incarnation, head });
    }

    /// A signal that asks us to end.
    pub(super) fn terminate(&mut self) {
        self.note("(signal)");
        self.event(Event::Terminate);
    }

    pub(super) fn event(&mut self, event: Event) {
        let actions = self.engine.handle(self.clock(), event);
        self.perform(actions);
        self.deliver_store(self.now);
    }

    fn upstream_event(&mut self, event: impl FnOnce(UpstreamId, Incarnation) -> Event) {
        let event = event(UPSTREAM, self.incarnation);
        self.event(event);
    }

    // --- time ---

    pub(super) fn now(&self) -> u64 {
        self.now
    }

    fn clock(&self) -> Now {
        // The calendar's clock has its own start, so that nothing can take one for the other.
        let wall = 1_700_000_000_000 + i64::try_from(self.now).expect("a short test");
        Now { mono: Time::at_millis(self.now), wall: Wall(wall + self.wall_moved) }
    }

    /// Lets time pass up to the moment `at` (milliseconds), with everything that falls due on the way.
    pub(super) fn run_until(&mut self, at: u64) {
        for _ in 0..STEPS_MAX {
            let engine = self.engine.next_deadline().map(millis_up);
            let store = self.store_says.iter().map(|(at, _)| *at).min();
            let Some(next) = engine.into_iter().chain(store).min().filter(|next| *next <= at) else {
                self.now = self.now.max(at);
                return;
            };
            self.now = self.now.max(next);
            if store.is_some_and(|store| store <= self.now) {
                self.deliver_store(self.now);
            } else {
                let actions = self.engine.tick(self.clock());
                self.perform(actions);
                self.deliver_store(self.now);
            }
        }
        panic!("time does not move on at {} ms:\n{}", self.now, self.log.join("\n"));
    }

    /// Lets so many milliseconds pass.
    pub(super) fn run_for(&mut self, millis: u64) {
        self.run_until(self.now + millis);
    }

    /// Somebody sets the calendar's clock.
    pub(super) fn wall_jumps(&mut self, by_millis: i64) {
        self.wall_moved += by_millis;
    }

    /// Moves the clock to `at` and tells nobody: the next event brings the news.
    pub(super) fn jump(&mut self, at: u64) {
        self.now = at;
    }

    /// Moves the clock to `at` and lets the engine see it only then, as after a suspended laptop.
    pub(super) fn sleep_until(&mut self, at: u64) {
        self.now = at;
        let actions = self.engine.tick(self.clock());
        self.perform(actions);
        self.deliver_store(at);
    }

    /// Runs until the session has ended.
    ///
    /// # Panics
    /// If it does not end by itself.
    pub(super) fn run_to_exit(&mut self) -> ExitStatus {
        for _ in 0..STEPS_MAX {
            if let Some(status) = self.exit {
                return status;
            }
            let store = self.store_says.iter().map(|(at, _)| *at).min();
            let next = self.engine.next_deadline().map(millis_up).into_iter().chain(store).min();
            let next = next.unwrap_or_else(|| panic!("nothing more happens:\n{}", self.log.join("\n")));
            self.run_until(next);
        }
        panic!("no exit:\n{}", self.log.join("\n"));
    }

    fn deliver_store(&mut self, now: u64) {
        while let Some(index) = self.store_says.iter().position(|(at, _)| *at <= now) {
            let (_, event) = self.store_says.remove(index);
            self.note(format!("{event:?}"));
            let actions = self.engine.handle(self.clock(), event);
            self.perform(actions);
        }
    }

    // --- what comes out ---

    /// Compares what came out since the last comparison, line by line; indentation and blank lines do not count.
    ///
    /// # Panics
    /// If it differs.
    #[track_caller]
    pub(super) fn expect(&mut self, expected: &str) {
        let lines: Vec<&str> = expected.lines().map(str::trim).filter(|line| !line.is_empty()).collect();
        let fresh = std::mem::take(&mut self.fresh);
        let first = fresh.iter().zip(&lines).position(|(found, wanted)| found != wanted);
        let first = first.unwrap_or(fresh.len().min(lines.len()));
        assert!(
            fresh == lines,
            "differs from line {}:\n{}\n\nexpected:\n{}\n",
            first + 1,
            fresh.join("\n"),
            lines.join("\n")
        );
    }

    /// What came out since the last comparison, without the times.
    pub(super) fn take_lines(&mut self) -> Vec<String> {
        let mut lines = std::mem::take(&mut self.fresh);
        lines.retain(|line| !line.starts_with('@'));
        lines
    }

    /// Forgets what came out since the last comparison.
    pub(super) fn skip(&mut self) {
        self.fresh.clear();
    }

    /// The frame that went to the client last.
    #[track_caller]
    pub(super) fn last_answer(&self) -> serde_json::Value {
        let last = self.to_client.last().expect("something went to the client");
        serde_json::from_slice(last).expect("it is JSON")
    }

    /// `data.mcprelay` of the error that went to the client last.
    #[track_caller]
    pub(super) fn last_mark(&self) -> serde_json::Value {
        self.last_answer()["error"]["data"]["mcprelay"].clone()
    }

    /// The request ids on the upstream's wire, in the order they were sent, answered ones included.
    pub(super) fn sent(&self) -> Vec<u64> {
        self.to_upstream.iter().filter_map(|(attempt, _)| Some((*attempt)?.0)).collect()
    }

    /// The request that was sent last.
    #[track_caller]
    pub(super) fn last_sent(&self) -> u64 {
        *self.sent().last().expect("something was sent")
    }

    /// Nothing is open and nothing is waited for.
    ///
    /// # Panics
    /// If something is.
    #[track_caller]
    pub(super) fn assert_at_rest(&mut self) {
        // The engine may wake once for a deadline that is no more.
        for _ in 0..3 {
            if let Some(wake) = self.engine.next_deadline() {
                self.run_until(millis_up(wake));
            }
        }
        assert_eq!(self.engine.next_deadline(), None, "a deadline is left: {:?}", self.engine.deadlines());
        assert!(self.engine.open.is_empty(), "left open: {:?}", self.engine.open);
        assert!(self.engine.batches.is_empty(), "left open: {:?}", self.engine.batches);
        self.ledger.assert_settled(&self.log);
    }

    fn note(&mut self, line: impl Into<String>) {
        self.log.push(format!("@{} {}", self.now, line.into()));
    }

    fn out(&mut self, line: String) {
        let line = self.names.named(&line);
        self.note(line.clone());
        if self.now != self.fresh_at {
            self.fresh_at = self.now;
            self.fresh.push(format!("@{}", self.now));
        }
        self.fresh.push(line);
    }

    fn perform(&mut self, actions: Vec<Action>) {
        for action in actions {
            assert_eq!(self.exit, None, "exit is the last action, not followed by {action:?}");
            self.perform_one(action);
        }
    }

    fn perform_one(&mut self, action: Action) {
        let line = match action {
            Action::StartUpstream { incarnation, .. } => {
                assert!(incarnation > self.incarnation, "each start is a new life");
                self.incarnation = incarnation;
                self.ledger.upstream_started();
                format!("!start {}", incarnation.0)
            }
            Action::ToClient { bytes, .. } => {
                self.ledger.client_gets(&bytes, &self.log);
                let line = format!(">c {}", text(&bytes));
                self.to_client.push(bytes);
                line
            }
            Action::ToUpstream { bytes, attempt, incarnation, .. } => {
                assert_eq!(incarnation, self.incarnation, "frames go to the current life");
                self.ledger.upstream_gets(&bytes, attempt, &self.log);
                let line = format!(">u {}", text(&bytes));
                self.to_upstream.push((attempt, bytes));
                line
            }
            Action::Capture { ticket, letter, audit } => self.capture(ticket, letter, *audit),
            Action::Record(mark) => return self.recorder.take(mark, &self.log),
            Action::Rescue { letter, error, .. } => format!("!rescue {} {error}", letter.id),
            Action::Audit(row) => {
                assert_eq!(row.kind, AuditKind::Denied, "captures are audited with their letter");
                let line = format!("!audit denied {} by {}", row.tool, row.caller);
                self.audits.push(*row);
                line
            }
            Action::Report(event) => self.report(*event),
            Action::Executed(execution) => {
                let line = format!("!executed {} {}", execution.tool, execution.key);
                self.executions.push(*execution);
                line
            }
            Action::Late(late) => {
                let kind = if late.success { "success" } else { "failure" };
                let line = format!("!late {} {kind} executed={:?} {}", late.record_id, late.executed, text(&late.body));
                self.lates.push(*late);
                line
            }
            Action::Diagnose(text) => {
                assert!(!text.contains('\n'), "one line: {text:?}");
                format!("!diag {text}")
            }
            Action::Noise(line) => format!("!noise {}", text(&line)),
            Action::CloseUpstream { .. } => "!close".into(),
            Action::SignalUpstream { signal: StopSignal::Term, .. } => "!term".into(),
            Action::SignalUpstream { signal: StopSignal::Kill, .. } => "!kill".into(),
            Action::Exit(status) => {
                self.exit = Some(status);
                self.ledger.assert_settled(&self.log);
                assert!(self.recorder.open.is_empty(), "never ended: {:?}", self.recorder.open);
                format!("!exit {}", status.code())
            }
        };
        self.out(line);
    }

    fn capture(&mut self, ticket: Ticket, letter: Arc<DeadLetter>, audit: AuditRow) -> String {
        assert_eq!(audit.kind, AuditKind::Captured);
        assert_eq!(audit.record_id.as_ref(), Some(&letter.id));
        assert_eq!(audit.correlation_id, letter.correlation_id);
        let line = format!(
            "!capture {} {:?} executed={:?} attempts={}",
            letter.id,
            letter.class,
            letter.executed,
            letter.attempts.len()
        );
        self.letters.push(letter);
        match self.store {
            Store::After(wait) => self.store_says.push((self.now + wait, Event::Stored { ticket })),
            Store::Fails(wait) => {
                self.store_says.push((self.now + wait, Event::StoreFailed { ticket, error: "disk full".into() }));
            }
            Store::Silent => {}
        }
        line
    }

    fn report(&mut self, event: CallEvent) -> String {
        let decision = match event.decision {
            Decision::Allowed => "allowed",
            Decision::Denied => "denied",
            Decision::Failed => "failed",
            Decision::Cancelled => "cancelled",
        };
        let mut line = format!("!log {decision} {} attempts={}", event.tool, event.attempts);
        if let Some(error) = &event.error {
            if let Some(class) = error.class {
                line.push_str(&format!(" {class:?} executed={:?}", error.executed));
            }
            if let Some(code) = error.code {
                line.push_str(&format!(" code={code}"));
            }
        }
        if let Some(id) = &event.dead_letter_id {
            line.push_str(&format!(" {id}"));
        }
        if !event.enforced {
            line.push_str(" (dry run)");
        }
        if event.enforced {
            assert!(self.ledger.ended.insert(event.correlation_id.clone()), "one line a call: {event:?}");
        }
        self.events.push(event);
        line
    }
}

/// A `tools/call` without arguments; `id` is JSON text.
pub(super) fn call(id: impl std::fmt::Display, tool: &str) -> String {
    format!(r#"{{"jsonrpc":"2.0","id":{id},"method":"tools/call","params":{{"name":"{tool}"}}}}"#)
}

/// A `notifications/cancelled`; `id` is JSON text.
pub(super) fn cancel(id: impl std::fmt::Display) -> String {
    format!(r#"{{"jsonrpc":"2.0","method":"notifications/cancelled","params":{{"requestId":{id}}}}}"#)
}

fn attempts(numbers: &[u64]) -> Vec<AttemptId> {
    numbers.iter().map(|number| AttemptId(*number)).collect()
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

/// The end of a long log.
fn tail(log: &[String]) -> String {
    log[log.len().saturating_sub(60)..].join("\n")
}

/// The first whole millisecond that is not before `time`.
fn millis_up(time: Time) -> u64 {
    u64::try_from(time.since_start().as_nanos().div_ceil(1_000_000)).expect("a short test")
}

/// Names for random parts, in the order of their first appearance.
#[derive(Default)]
struct Names {
    token_prefix: String,
    names: BTreeMap<String, String>,
    correlations: usize,
    records: usize,
}

impl Names {
    fn named(&mut self, line: &str) -> String {
        let line = line.replace(&self.token_prefix, "mcprelay-");
        let mut out = String::with_capacity(line.len());
        let word = |c: char| c.is_ascii_alphanumeric() || c == '-';
        let mut rest = &*line;
        while let Some(start) = rest.find(word) {
            let (before, from) = rest.split_at(start);
            let (token, after) = from.split_at(from.find(|c| !word(c)).unwrap_or(from.len()));
            out.push_str(before);
            out.push_str(&self.name(token));
            rest = after;
        }
        out + rest
    }

    fn name(&mut self, token: &str) -> String {
        if let Some(name) = self.names.get(token) {
            return name.clone();
        }
        let is_uuid = token.len() == 36
            && token.bytes().enumerate().all(|(at, byte)| match at {
                8 | 13 | 18 | 23 => byte == b'-',
                _ => matches!(byte, b'0'..=b'9' | b'a'..=b'f'),
            });
        let is_ulid = token.len() == 26
            && token.starts_with('0')
            && token.bytes().all(|byte| byte.is_ascii_digit() || byte.is_ascii_uppercase());
        let name = if is_uuid {
            self.correlations += 1;
            format!("C{}", self.correlations)
        } else if is_ulid {
            self.records += 1;
            format!("R{}", self.records)
        } else {
            return token.to_owned();
        };
        self.names.insert(token.to_owned(), name.clone());
        name
    }

    /// A line with real tokens in the place of named ones; `None` if it has none.
    fn unnamed(&self, line: &str) -> Option<String> {
        let named = "\"mcprelay-";
        line.contains(named).then(|| line.replace(named, &format!("\"{}", self.token_prefix)))
    }
}

/// What the flight recorder knows: a call is accepted before anything else is said of it, and ends once.
#[derive(Default)]
struct Recorder {
    open: BTreeSet<CallId>,
    attempts: BTreeSet<AttemptId>,
    last: Option<CallId>,
}

impl Recorder {
    fn take(&mut self, mark: Mark, log: &[String]) {
        match mark {
            Mark::Accepted { call, letter } => {
                assert!(self.last < Some(call), "no number is used twice: {call:?}\n{}", log.join("\n"));
                self.last = Some(call);
                self.open.insert(call);
                assert_eq!((letter.class, letter.executed), (FailureClass::Interrupted, Executed::No));
            }
            Mark::Attempt { call, attempt } => {
                assert!(self.open.contains(&call), "accepted before it is sent: {call:?}\n{}", log.join("\n"));
                assert!(self.attempts.insert(attempt), "no number is used twice: {attempt:?}");
            }
            Mark::Ended { call, .. } => {
                assert!(self.open.remove(&call), "accepted and not over: {call:?}\n{}", log.join("\n"));
            }
        }
    }
}

/// Who waits for an answer. It reads the same frames as the engine and shares none of its state.
#[derive(Default)]
struct Ledger {
    /// Requests of the client, by id; the bytes of the id, and whether it can be withdrawn.
    client: Vec<(Option<IdKey>, Vec<u8>, bool)>,
    /// Requests of the upstream in its current life, by the bytes of the id.
    upstream: Vec<(IdKey, Vec<u8>)>,
    /// Requests of the client that stood in a batch, and those of them that were withdrawn.
    members: BTreeSet<Vec<u8>>,
    excused: BTreeSet<Vec<u8>>,
    /// The numbers by which the client was asked.
    asked: BTreeSet<Vec<u8>>,
    last_request: u64,
    /// Calls that were logged as ended, by correlation id.
    ended: BTreeSet<String>,
}

/// The correlation id that we put into a forwarded call.
pub(super) fn correlation_of(message: &Message) -> Option<String> {
    Some(message.params_meta()?.member("mcprelay")?.member("correlation_id")?.as_str()?.into_owned())
}

impl Ledger {
    fn client_sends(&mut self, frame: &FromClient) {
        match frame {
            FromClient::Message(message) => self.client_message(message, false),
            FromClient::Refused(refusal) => self.client_owes(&refusal.to),
            FromClient::Batch(members) => {
                for member in members {
                    match member {
                        Ok(message) => self.client_message(message, true),
                        Err(Refusal { to, .. }) => self.client_owes(to),
                    }
                }
            }
        }
    }

    fn client_owes(&mut self, to: &AnswerTo) {
        match to {
            AnswerTo::Nobody => {}
            AnswerTo::Unknown => self.client.push((None, b"null".to_vec(), false)),
            AnswerTo::Request(id) => self.client.push((Some(id.key().clone()), id.raw().to_vec(), false)),
        }
    }

    fn client_message(&mut self, message: &Message, in_batch: bool) {
        match &message.role {
            Role::Request { method, id } => {
                self.client.push((Some(id.key().clone()), id.raw().to_vec(), *method != Method::Initialize));
                if in_batch {
                    self.members.insert(id.raw().to_vec());
                }
            }
            Role::Notification { method: Method::Cancelled } => {
                let has_credential = message.params_meta().is_some_and(|meta| meta.member("authorization").is_some());
                let key = message.params().and_then(|params| IdKey::from_json(params.member("requestId")?));
                let found = self.client.iter().rposition(|(other, _, open)| *open && key.is_some() && *other == key);
                if let Some(found) = found.filter(|_| !has_credential) {
                    let (_, raw, _) = self.client.remove(found);
                    // The answer of a member may be in an array that waits for the others.
                    if self.members.contains(&raw) {
                        self.excused.insert(raw);
                    }
                }
            }
            Role::Notification { .. } | Role::Response { .. } => {}
        }
    }

    fn client_gets(&mut self, bytes: &[u8], log: &[String]) {
        assert!(!bytes.contains(&b'\n'), "one line: {}", text(bytes));
        let messages = match from_upstream(bytes.to_vec()) {
            FromUpstream::Message(message) => vec![message],
            FromUpstream::Batch(messages) => messages,
            FromUpstream::Noise(bytes) => panic!("the client gets a line that is no message: {}", text(&bytes)),
        };
        for message in messages {
            let raw = match &message.role {
                Role::Response { id: Some(id) } => id.raw().to_vec(),
                Role::Response { id: None } => b"null".to_vec(),
                // A subscription that the upstream ends is not answered any more.
                Role::Notification { method: Method::Cancelled } => {
                    let params = message.params().expect("it has params");
                    let raw = params.member("requestId").expect("it has an id").text();
                    if !self.asked.remove(raw) {
                        self.client.retain(|(_, other, _)| other != raw);
                    }
                    continue;
                }
                Role::Request { id, .. } => {
                    assert!(self.asked.insert(id.raw().to_vec()), "no number is used twice");
                    continue;
                }
                Role::Notification { .. } => continue,
            };
            match self.client.iter().position(|(_, other, _)| *other == raw) {
                Some(found) => {
                    self.client.remove(found);
                }
                // The upstream's own error without an id.
                None if raw == b"null" => {}
                None if self.excused.remove(&raw) => {}
                None => panic!("nobody waits for {}\n{}", text(bytes), tail(log)),
            }
        }
    }

    fn upstream_started(&mut self) {
        self.upstream.clear();
    }

    fn upstream_asked(&mut self, id: &crate::wire::request_id::RequestId) {
        self.upstream.push((id.key().clone(), id.raw().to_vec()));
    }

    fn upstream_sends(&mut self, frame: &FromUpstream) {
        let messages = match frame {
            FromUpstream::Message(message) => std::slice::from_ref(message),
            FromUpstream::Batch(messages) => messages,
            FromUpstream::Noise(_) => return,
        };
        for message in messages {
            match &message.role {
                Role::Request { id, .. } => self.upstream_asked(id),
                Role::Notification { method: Method::Cancelled } => {
                    let key = message.params().and_then(|params| IdKey::from_json(params.member("requestId")?));
                    if let Some(found) = self.upstream.iter().position(|(other, _)| Some(other) == key.as_ref()) {
                        self.upstream.remove(found);
                    }
                }
                Role::Notification { .. } | Role::Response { .. } => {}
            }
        }
    }

    fn upstream_gets(&mut self, bytes: &[u8], attempt: Option<AttemptId>, log: &[String]) {
        assert!(!bytes.contains(&b'\n'), "one line: {}", text(bytes));
        let messages = match from_upstream(bytes.to_vec()) {
            FromUpstream::Message(message) => vec![message],
            FromUpstream::Batch(messages) => messages,
            FromUpstream::Noise(bytes) => panic!("the upstream gets a line that is no message: {}", text(&bytes)),
        };
        for message in &messages {
            match &message.role {
                Role::Request { id, .. } => {
                    let number = attempt.expect("a request has a number").0;
                    assert_eq!(id.raw(), number.to_string().as_bytes(), "a request carries its number");
                    assert!(number > self.last_request, "no number is used twice");
                    self.last_request = number;
                    let ended = correlation_of(message).is_some_and(|id| self.ended.contains(&id));
                    assert!(!ended, "forwarded after its end: {}\n{}", text(bytes), tail(log));
                }
                Role::Response { id: Some(id) } => {
                    let found = self.upstream.iter().position(|(_, raw)| raw == id.raw());
                    let found = found.unwrap_or_else(|| panic!("not asked: {}\n{}", text(bytes), tail(log)));
                    self.upstream.remove(found);
                }
                Role::Response { id: None } | Role::Notification { .. } => assert_eq!(attempt, None),
            }
        }
    }

    #[track_caller]
    fn assert_settled(&self, log: &[String]) {
        let left: Vec<String> = self.client.iter().map(|(_, raw, _)| text(raw)).collect();
        assert!(left.is_empty(), "never answered: {left:?}\n{}", tail(log));
    }
}
