//! The engine: pure decisions on virtual time. [`Dispatcher::handle`] takes an event and gives actions; it touches
//! nothing.
//!
//! A client's request is *open* from its arrival to its one answer. A `tools/call` is a [`call`] with attempts; every
//! other request is passed on ([`pass`]). [`upstream`] reads what upstreams send and follows their lives, [`restart`]
//! starts them again and [`health`] finds out whether they hang; [`circuit`] keeps calls from sick ones, [`fault`] makes
//! them sick on purpose; [`drain`] ends the session.

#![warn(clippy::wildcard_enum_match_arm)]

mod answer;
mod batch;
mod call;
mod circuit;
mod client;
mod drain;
pub mod event;
mod fault;
mod health;
mod late;
mod pass;
mod pause;
mod recorded;
mod remote;
mod restart;
#[cfg(test)]
#[allow(clippy::wildcard_enum_match_arm, reason = "a test names what it wants and fails on the rest")]
mod sim;
#[cfg(test)]
#[allow(clippy::wildcard_enum_match_arm, reason = "a test names what it wants and fails on the rest")]
mod tests;
mod upstream;

use std::collections::BTreeMap;
use std::time::Duration;

use crate::clock::{Now, Time};
use crate::exit::ExitStatus;
use crate::faults::{FaultPlan, Faults};
use crate::identity::Identities;
use crate::metrics::Counters;
use crate::policy::Policy;
use crate::record::Server;
use crate::record::ids::{Ulids, uuid_v4};
use crate::restart::{HealthSettings, RestartSettings};
use crate::retry::{Reliability, Rng};
use crate::wire::message::{Method, Sniffed};
use crate::wire::request_id::{IdKey, RequestId};

use batch::{Batch, BatchId};
use call::Call;
pub(crate) use call::{error_class, error_code, executed_by, tool_text};
use drain::Phase;
use event::{Action, AttemptId, ClientId, Event, Intake, Level, UpstreamId};
use late::LateAnswers;
use pass::Pass;
use upstream::Upstream;

/// What the engine must know of the configuration.
#[derive(Clone, Debug)]
pub struct Settings {
    /// Timeouts, retries and what is idempotent.
    pub reliability: Reliability,
    /// Which calls are allowed.
    pub policy: Policy,
    /// Judge, log, and let everything through.
    pub policy_dry_run: bool,
    /// Who callers are.
    pub identities: Identities,
    /// How long a client's error waits for its dead letter to be on disk.
    pub capture_timeout: Duration,
    /// From closing an upstream's input to SIGTERM.
    pub stdin_grace: Duration,
    /// From SIGTERM to SIGKILL.
    pub term_grace: Duration,
    /// How long open calls may go on after the operating system asked us to end.
    pub signal_drain: Duration,
    /// The frame limit, for error texts.
    pub frame_bytes_max: usize,
    /// Whether and how an upstream that ended is started again.
    pub restart: RestartSettings,
    /// How a hang is found out; `None` if it is not.
    pub health: Option<HealthSettings>,
    /// Faults on purpose.
    pub faults: Option<Faults>,
}

/// How often one turn may find deadlines due.
const ROUNDS_MAX: usize = 100_000;

/// One request of a client, from arrival to answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct OpenId(u64);

#[derive(Clone, Debug)]
struct Open {
    client: ClientId,
    upstream: UpstreamId,
    id: RequestId,
    batch: Option<BatchId>,
    kind: OpenKind,
}

#[derive(Clone, Debug)]
enum OpenKind {
    Call(Box<Call>),
    Pass(Pass),
}

impl Open {
    fn is_listen(&self) -> bool {
        matches!(&self.kind, OpenKind::Pass(pass) if pass.method == Method::Listen)
    }

    fn is_call(&self) -> bool {
        matches!(self.kind, OpenKind::Call(_))
    }
}

#[derive(Clone, Debug)]
struct Client {
    /// Where its requests go. The gateway will choose by name.
    upstream: UpstreamId,
    /// Open requests by the client's id; of two with one id, the newer.
    open: BTreeMap<IdKey, OpenId>,
    info: Option<crate::record::ClientInfo>,
    outbox: Level,
    /// A frame over the limit whose end may tell whose it is.
    oversized: Option<Sniffed>,
    /// It sends nothing more.
    closed: bool,
}

/// Why the engine must be woken, found when the time has come.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Timer {
    /// The attempt, or its wait in the queue, or the whole call took too long.
    AttemptTimeout(OpenId),
    /// The back-off is over.
    Retry(OpenId),
    /// The store has not answered.
    StoreConfirm(OpenId),
    /// The client has had its time for a request of the upstream.
    ClientWait(UpstreamId, u64),
    /// The other half of an upstream's end did not come.
    UpstreamEnd(UpstreamId),
    /// The next step of ending an upstream.
    StopGrace(UpstreamId),
    /// The wait before an upstream's next start is over.
    Restart(UpstreamId),
    /// A new process did not answer `initialize`.
    Handshake(UpstreamId),
    /// An upstream is to be asked whether it lives, or did not answer that.
    Health(UpstreamId),
    /// An answer that was held back on purpose may pass.
    HeldAnswer,
    /// Open calls have had their time after a signal.
    Interrupt,
    /// Open passed-on requests have had their time after the client's end.
    Drain,
}

/// The engine of one process.
#[derive(Clone, Debug)]
pub struct Dispatcher {
    settings: Settings,
    rng: Rng,
    ulids: Ulids,
    /// Marks our progress tokens, so that no peer's own token is taken for one.
    token_prefix: String,
    now: Now,
    clients: BTreeMap<ClientId, Client>,
    upstreams: BTreeMap<UpstreamId, Upstream>,
    open: BTreeMap<OpenId, Open>,
    batches: BTreeMap<BatchId, Batch>,
    late: LateAnswers,
    phase: Phase,
    /// The operating system has asked us to end.
    asked_to_end: bool,
    /// No upstream is started again.
    last_lives: bool,
    faults: Option<FaultPlan>,
    held: fault::Held,
    status: ExitStatus,
    counters: Counters,
    last_id: u64,
    /// No deadline lies before this; a lower bound, made exact by every look at the deadlines. Deadlines themselves live
    /// in the states that wait for them, so none can be left armed.
    wake: Option<Time>,
    actions: Vec<Action>,
}

impl Dispatcher {
    /// An engine with one client in front of one upstream, and the actions that start it.
    ///
    /// `seed` decides delays, record ids and tokens: equal seeds and events give equal actions.
    #[must_use]
    pub fn new(
        settings: Settings,
        client: ClientId,
        upstream: UpstreamId,
        server: Server,
        seed: u64,
    ) -> (Dispatcher, Vec<Action>) {
        let mut rng = Rng::seeded(seed);
        let token_prefix = format!("mcprelay-{:016x}-", rng.next_u64());
        let connected =
            Client { upstream, open: BTreeMap::new(), info: None, outbox: Level::Low, oversized: None, closed: false };
        let faults = settings.faults.as_ref().map(|faults| FaultPlan::new(faults, seed));
        let upstreams = BTreeMap::from([(upstream, Upstream::new(server, &settings.reliability))]);
        let mut dispatcher = Dispatcher {
            settings,
            rng,
            ulids: Ulids::new(),
            token_prefix,
            now: Now::default(),
            clients: BTreeMap::from([(client, connected)]),
            upstreams,
            open: BTreeMap::new(),
            batches: BTreeMap::new(),
            late: LateAnswers::default(),
            phase: Phase::Running,
            asked_to_end: false,
            last_lives: false,
            faults,
            held: fault::Held::default(),
            status: ExitStatus::Success,
            counters: Counters::default(),
            last_id: 0,
            wake: None,
            actions: Vec::new(),
        };
        dispatcher.warn_of_faults();
        dispatcher.start_upstream(upstream);
        let actions = std::mem::take(&mut dispatcher.actions);
        (dispatcher, actions)
    }

    /// Takes one event at the moment `now`, then everything that was due by then, and gives what is to be done, in
    /// order. The event comes first: an answer that has arrived beats its own timeout.
    ///
    /// # Panics
    /// If `now` lies before the moment of an earlier event.
    #[must_use]
    pub fn handle(&mut self, now: Now, event: Event) -> Vec<Action> {
        self.turn(now, Some(event))
    }

    /// Does what is due at `now`, when nothing happened but time.
    ///
    /// # Panics
    /// If `now` lies before the moment of an earlier event.
    #[must_use]
    pub fn tick(&mut self, now: Now) -> Vec<Action> {
        self.turn(now, None)
    }

    /// When the engine must be woken if nothing happens before. It may be early; then waking it gives a later moment.
    #[must_use]
    pub fn next_deadline(&self) -> Option<Time> {
        self.wake
    }

    /// Which sources may be read now.
    #[must_use]
    pub fn intake(&self) -> Intake {
        Intake {
            clients: self.phase.takes_requests() && self.upstreams.values().all(Upstream::takes_more),
            upstreams: self.clients.values().all(|client| client.outbox < Level::Full),
        }
    }

    fn turn(&mut self, now: Now, event: Option<Event>) -> Vec<Action> {
        assert!(now.mono >= self.now.mono, "time goes forward");
        if matches!(self.phase, Phase::Done) {
            return Vec::new();
        }
        self.now = now;
        if let Some(event) = event {
            self.take(event);
        }
        self.fire_due();
        self.settle();
        if cfg!(debug_assertions) {
            self.check_invariants();
        }
        std::mem::take(&mut self.actions)
    }

    fn take(&mut self, event: Event) {
        match event {
            Event::ClientFrame { client, frame } => self.client_frame(client, frame),
            Event::ClientOversized { client, head } => self.client_oversized(client, &head),
            Event::ClientOversizedEnd { client, tail } => self.client_oversized_end(client, &tail),
            Event::ClientClosed { client } => self.client_closed(client),
            Event::ClientGone { client } => self.client_gone(client),
            Event::ClientOutbox { client, level } => self.client_outbox(client, level),
            Event::UpstreamStartFailed { upstream, incarnation, error } => {
                if self.is_current(upstream, incarnation) {
                    self.upstream_start_failed(upstream, &error);
                }
            }
            Event::UpstreamFrame { upstream, incarnation, frame } => {
                if self.is_current(upstream, incarnation) {
                    self.upstream_frame(upstream, frame);
                }
            }
            Event::UpstreamOversized { upstream, incarnation, head } => {
                if self.is_current(upstream, incarnation) {
                    self.upstream_oversized(upstream, &head);
                }
            }
            Event::UpstreamOversizedEnd { upstream, incarnation, tail } => {
                if self.is_current(upstream, incarnation) {
                    self.upstream_oversized_end(upstream, &tail);
                }
            }
            Event::UpstreamClosed { upstream, incarnation, unsent } => {
                if self.is_current(upstream, incarnation) {
                    self.upstream_closed(upstream, &unsent);
                }
            }
            Event::UpstreamDeaf { upstream, incarnation, unsent } => {
                if self.is_current(upstream, incarnation) {
                    self.upstream_deaf(upstream, &unsent);
                }
            }
            Event::UpstreamExited { upstream, incarnation, end, unsent } => {
                if self.is_current(upstream, incarnation) {
                    self.upstream_exited(upstream, end, &unsent);
                }
            }
            Event::UpstreamOutbox { upstream, incarnation, level } => {
                if self.is_current(upstream, incarnation) {
                    self.upstream_outbox(upstream, level);
                }
            }
            Event::RequestFailed { upstream, incarnation, attempt, failure } => {
                if self.is_current(upstream, incarnation) {
                    self.request_failed(upstream, attempt, *failure);
                }
            }
            Event::Stored { ticket } => self.stored(ticket),
            Event::StoreFailed { ticket, error } => self.store_failed(ticket, error),
            Event::Terminate => self.terminate(),
        }
    }

    /// Every deadline there is, from the states that hold them.
    fn deadlines(&self) -> Vec<(Time, Timer)> {
        let mut found = Vec::new();
        for (id, open) in &self.open {
            if let OpenKind::Call(call) = &open.kind {
                found.extend(call.deadline(*id, &self.upstreams[&open.upstream].clock));
            }
        }
        for (id, upstream) in &self.upstreams {
            found.extend(upstream.deadlines(*id, self.settings.reliability.client_wait_max));
        }
        found.extend(self.phase.deadlines());
        found.extend(self.held.deadline());
        found
    }

    fn fire_due(&mut self) {
        // A state that waits zero time is due again at once; a chain of those is short.
        for _ in 0..ROUNDS_MAX {
            if self.wake.is_none_or(|wake| wake > self.now.mono) {
                return;
            }
            let mut due = self.deadlines();
            due.retain(|(until, _)| *until <= self.now.mono);
            due.sort_unstable();
            for (_, timer) in due {
                self.fire(timer);
            }
            self.wake = self.deadlines().into_iter().map(|(until, _)| until).min();
        }
        panic!("a deadline that is due does not move on: {:?}", self.deadlines());
    }

    fn fire(&mut self, timer: Timer) {
        // An earlier timer of the same turn may have ended what this one waited for: each handler looks again.
        match timer {
            Timer::AttemptTimeout(id) => self.attempt_timed_out(id),
            Timer::Retry(id) => self.retry(id),
            Timer::StoreConfirm(id) => self.store_timed_out(id),
            Timer::ClientWait(upstream, request) => self.client_wait_over(upstream, request),
            Timer::UpstreamEnd(upstream) => self.upstream_end_due(upstream),
            Timer::StopGrace(upstream) => self.stop_step(upstream),
            Timer::Restart(upstream) => self.restart_due(upstream),
            Timer::Handshake(upstream) => self.handshake_timed_out(upstream),
            Timer::Health(upstream) => self.health_due(upstream),
            Timer::HeldAnswer => self.held_answers_due(),
            Timer::Interrupt => self.interrupt_calls(),
            Timer::Drain => self.drain_over(),
        }
    }

    /// Notes that a deadline was set.
    fn arm(&mut self, until: Time) {
        self.wake = Some(self.wake.map_or(until, |wake| wake.min(until)));
    }

    /// Notes that deadlines moved in a way not worth following: look at all of them now.
    fn rearm(&mut self) {
        self.wake = Some(self.now.mono);
    }

    fn fresh_id(&mut self) -> u64 {
        self.last_id += 1;
        self.last_id
    }

    fn fresh_attempt(&mut self) -> AttemptId {
        AttemptId(self.fresh_id())
    }

    fn fresh_ulid(&mut self) -> String {
        let rng = &mut self.rng;
        self.ulids.next(self.now.wall, || rng.next_u64())
    }

    fn fresh_uuid(&mut self) -> String {
        uuid_v4(self.rng.next_u64(), self.rng.next_u64())
    }

    /// Tells the operator something.
    fn diagnose(&mut self, line: impl Into<String>) {
        self.actions.push(Action::Diagnose(line.into()));
    }

    fn is_current(&self, upstream: UpstreamId, incarnation: event::Incarnation) -> bool {
        self.upstreams.get(&upstream).is_some_and(|found| found.incarnation == incarnation)
    }

    /// What must hold between turns.
    fn check_invariants(&self) {
        for (upstream_id, upstream) in &self.upstreams {
            for (attempt, request) in &upstream.wire {
                let open = self.open.get(&request.open).expect("a request on the wire is open");
                assert_eq!(open.upstream, *upstream_id);
                let awaited = match &open.kind {
                    OpenKind::Call(call) => call.awaits(*attempt),
                    OpenKind::Pass(pass) => pass.sent == Some(*attempt),
                };
                assert!(awaited, "a request on the wire is awaited");
            }
            for id in upstream.waiting.ids() {
                let open = self.open.get(&id).expect("a waiting request is open");
                let queued = match &open.kind {
                    OpenKind::Call(call) => call.is_queued(),
                    OpenKind::Pass(pass) => pass.sent.is_none(),
                };
                assert!(queued, "a waiting request is not on the wire");
            }
        }
        for client in self.clients.values() {
            for id in client.open.values() {
                assert!(self.open.contains_key(id), "an id that can be cancelled is open");
            }
        }
        for open in self.open.values() {
            if let Some(batch) = &open.batch {
                assert!(self.batches.contains_key(batch), "a member's batch waits for it");
            }
        }
    }
}
