//! Joins the engine to the world: one thread that waits for events, asks the engine, and does what it says.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use crossbeam_channel::{Receiver, Sender, bounded, never, select, unbounded};

use crate::clock::{Clock, Time};
use crate::dispatcher::event::{
    Action, AttemptId, CallId, ClientId, Event, Incarnation, Mark, StopSignal, Ticket, UpstreamId,
};
use crate::dispatcher::{Dispatcher, Settings};
use crate::exit::ExitStatus;
use crate::ports::link::{Link, Reach};
use crate::ports::log::{Line, Log};
use crate::ports::outbox::{Outbox, Report, Watch};
use crate::ports::upstream_stdio::{Wiring, outbox_event};
use crate::ports::{client_stdio, signals};
use crate::record::{AuditRow, CallEvent, DeadLetter, Execution, LateResult, Server};

/// What one read of a peer completed waits in a queue of this many reads.
const READS_WAITING_MAX: usize = 4;

/// At the end, how long a client that is still there is given to read its last answers.
const LAST_ANSWERS_WAIT: Duration = Duration::from_secs(5);

/// At the end, how long standard error is given.
const LAST_LINES_WAIT: Duration = Duration::from_millis(500);

/// How long to wait when nothing is due; any time would do.
const IDLE: Duration = Duration::from_secs(3600);

const CLIENT: ClientId = ClientId(0);
const UPSTREAM: UpstreamId = UpstreamId(0);

/// Where records go. Nothing here may block for longer than a queue takes.
pub trait Keeper {
    /// Stores a dead letter with its audit row and reports [`Event::Stored`] or [`Event::StoreFailed`].
    fn capture(&self, ticket: Ticket, letter: Arc<DeadLetter>, audit: AuditRow);
    /// Stores an audit row.
    fn audit(&self, row: AuditRow);
    /// Stores a call event.
    fn event(&self, event: Arc<CallEvent>);
    /// Stores a keyed success.
    fn executed(&self, execution: Execution);
    /// Attaches a late answer to its dead letter.
    fn late(&self, late: LateResult);
    /// Writes a dead letter that could not be stored, for this reason, where it is not lost, and says so loudly.
    fn rescue(&self, call: CallId, letter: Arc<DeadLetter>, error: String);
    /// A call is open from here on; see [`Mark::Accepted`].
    fn accepted(&self, call: CallId, letter: &DeadLetter);
    /// An attempt of a call follows; see [`Mark::Attempt`].
    fn attempting(&self, call: CallId, attempt: AttemptId);
    /// Who hears what outboxes do with attempts, and that the answer of a call has left.
    fn watch(&self) -> Arc<dyn Watch>;
    /// Nothing else will happen for a while: what was said of calls is handed to the kernel.
    fn pause(&self);
    /// Writes everything that was handed over and ends.
    fn close(self);
}

/// What a session runs with.
pub struct Session<K> {
    /// For the engine.
    pub settings: Settings,
    /// How the server is reached.
    pub reach: Reach,
    /// The same, as records keep it.
    pub server: Server,
    /// Decides delays, ids and tokens.
    pub seed: u64,
    /// The clock that everything is timed by.
    pub clock: Clock,
    /// Standard error.
    pub log: Log,
    /// Starts the record keeper, which reports to the given channel.
    pub keeper: Box<dyn FnOnce(Sender<Event>) -> std::io::Result<K>>,
}

struct Runtime<K> {
    clock: Clock,
    log: Log,
    reach: Reach,
    frame_bytes_max: usize,
    keeper: K,
    wiring: Wiring,
    client: Outbox,
    link: Option<(Incarnation, Link)>,
    /// Events found while actions were done. They come before what was read meanwhile: a frame must not be judged by a
    /// fill or a start that is no longer true.
    said: VecDeque<Event>,
    /// Events of one read; they come next.
    found: VecDeque<Event>,
    exit: Option<ExitStatus>,
}

/// Wraps one server for the client on standard input and output, until either ends.
///
/// # Errors
/// If the operating system denies a thread or a descriptor at the start.
pub fn run<K: Keeper>(session: Session<K>) -> std::io::Result<ExitStatus> {
    let Session { settings, reach, server, seed, clock, log, keeper } = session;
    let frame_bytes_max = settings.frame_bytes_max;
    let (control_tx, control) = unbounded();
    let (clients_tx, mut clients) = bounded(READS_WAITING_MAX);
    let (upstreams_tx, upstreams) = bounded(READS_WAITING_MAX);
    let on_signal = control_tx.clone();
    signals::watch(move || drop(on_signal.send(Event::Terminate)))?;
    let keeper = keeper(control_tx.clone())?;
    let mut runtime = Runtime {
        clock,
        reach,
        frame_bytes_max,
        wiring: Wiring {
            frames: upstreams_tx,
            control: control_tx.clone(),
            log: log.clone(),
            watch: Some(keeper.watch()),
        },
        client: client_stdio::start_writing(CLIENT, Some(keeper.watch()), control_tx)?,
        keeper,
        log,
        link: None,
        said: VecDeque::new(),
        found: VecDeque::new(),
        exit: None,
    };
    let (mut dispatcher, actions) = Dispatcher::new(settings, CLIENT, UPSTREAM, server, seed);
    runtime.perform(actions);
    client_stdio::start_reading(CLIENT, frame_bytes_max, clients_tx)?;
    while runtime.exit.is_none() {
        if let Some(event) = runtime.said.pop_front().or_else(|| runtime.found.pop_front()) {
            let event = runtime.current(event);
            let actions = dispatcher.handle(runtime.clock.now(), event);
            runtime.perform(actions);
            continue;
        }
        runtime.keeper.pause();
        let intake = dispatcher.intake();
        let wait = wait_for(dispatcher.next_deadline(), runtime.clock.now().mono);
        match next(&control, &mut clients, intake.clients, &upstreams, intake.upstreams, wait) {
            Some(events) => runtime.found.extend(events),
            None => {
                let actions = dispatcher.tick(runtime.clock.now());
                runtime.perform(actions);
            }
        }
    }
    Ok(runtime.finish())
}

fn wait_for(deadline: Option<Time>, now: Time) -> Duration {
    deadline.map_or(IDLE, |deadline| deadline.saturating_since(now))
}

/// The next events of any source that may be read, or `None` when `wait` is over. A ready source wins over time.
fn next(
    control: &Receiver<Event>,
    clients: &mut Receiver<Vec<Event>>,
    read_clients: bool,
    upstreams: &Receiver<Vec<Event>>,
    read_upstreams: bool,
    wait: Duration,
) -> Option<Vec<Event>> {
    let blocked = never();
    let from_clients = if read_clients { &*clients } else { &blocked };
    let from_upstreams = if read_upstreams { upstreams } else { &blocked };
    select! {
        recv(control) -> event => event.ok().map(|event| vec![event]),
        recv(from_upstreams) -> events => events.ok(),
        recv(from_clients) -> events => {
            if events.is_err() {
                // Left in the selection, a closed channel would always be ready.
                *clients = never();
            }
            Some(events.unwrap_or_default())
        },
        default(wait) => None,
    }
}

impl<K: Keeper> Runtime<K> {
    /// An event as it is true now: an outbox may have moved on since it reported, and what an ended process never got
    /// is known only here.
    fn current(&self, event: Event) -> Event {
        match event {
            Event::ClientOutbox { client, .. } => Event::ClientOutbox { client, level: self.client.level() },
            Event::UpstreamOutbox { upstream, incarnation, level } => {
                let level = self.of(incarnation).map_or(level, Link::level);
                Event::UpstreamOutbox { upstream, incarnation, level }
            }
            Event::UpstreamClosed { upstream, incarnation, mut unsent } => {
                unsent.extend(self.of(incarnation).map(Link::abandon).unwrap_or_default());
                Event::UpstreamClosed { upstream, incarnation, unsent }
            }
            Event::UpstreamExited { upstream, incarnation, end, mut unsent } => {
                unsent.extend(self.of(incarnation).map(Link::abandon).unwrap_or_default());
                Event::UpstreamExited { upstream, incarnation, end, unsent }
            }
            other => other,
        }
    }

    fn perform(&mut self, actions: Vec<Action>) {
        for action in actions {
            self.perform_one(action);
        }
    }

    fn perform_one(&mut self, action: Action) {
        match action {
            Action::StartUpstream { upstream, incarnation } => self.start(upstream, incarnation),
            Action::ToClient { client, bytes } => {
                let said = self.client.send(bytes, None);
                self.said.extend(said.map(|said| client_stdio::event(client, said)));
            }
            Action::ToUpstream { upstream, incarnation, bytes, attempt } => {
                let said = match self.of(incarnation) {
                    Some(link) => link.send(bytes, attempt),
                    None => Some(Report::Gone { unsent: attempt.into_iter().collect() }),
                };
                self.said.extend(said.map(|said| outbox_event(upstream, incarnation, said)));
            }
            Action::Capture { ticket, letter, audit } => self.keeper.capture(ticket, letter, *audit),
            Action::Record(Mark::Accepted { call, letter }) => self.keeper.accepted(call, &letter),
            Action::Record(Mark::Attempt { call, attempt }) => self.keeper.attempting(call, attempt),
            Action::Record(Mark::Ended { call, .. }) => self.client.when_left(call),
            Action::Rescue { call, letter, error } => self.keeper.rescue(call, letter, error),
            Action::Audit(row) => self.keeper.audit(*row),
            Action::Report(event) => {
                let event: Arc<CallEvent> = Arc::from(event);
                self.log.line(Line::Call(Arc::clone(&event)));
                // The extra line of a policy dry run is no call of its own.
                if event.enforced {
                    self.keeper.event(event);
                }
            }
            Action::Executed(execution) => self.keeper.executed(*execution),
            Action::Late(late) => self.keeper.late(*late),
            Action::Diagnose(text) => self.log.diagnose(text),
            Action::Noise(line) => self.log.line(Line::Noise(line)),
            Action::CloseUpstream { incarnation, .. } => {
                if let Some(link) = self.of(incarnation) {
                    link.close();
                }
            }
            Action::SignalUpstream { incarnation, signal, .. } => {
                if let Some(link) = self.of(incarnation) {
                    link.signal(signal);
                }
            }
            Action::Exit(status) => self.exit = Some(status),
        }
    }

    fn of(&self, incarnation: Incarnation) -> Option<&Link> {
        self.link.as_ref().filter(|(current, _)| *current == incarnation).map(|(_, link)| link)
    }

    fn start(&mut self, upstream: UpstreamId, incarnation: Incarnation) {
        if let Some((_, old)) = self.link.take() {
            // It has ended, or has closed its output: whatever is left of its group goes with it.
            old.signal(StopSignal::Term);
            old.signal(StopSignal::Kill);
            old.reap();
        }
        let started = Link::start(&self.reach, upstream, incarnation, self.frame_bytes_max, self.clock, &self.wiring);
        match started {
            Ok(link) => self.link = Some((incarnation, link)),
            Err(error) => self.said.push_back(Event::UpstreamStartFailed { upstream, incarnation, error }),
        }
    }

    fn finish(self) -> ExitStatus {
        self.client.close();
        if !self.client.flush(LAST_ANSWERS_WAIT) {
            self.log.diagnose("the client did not read its last answers");
        }
        if let Some((_, link)) = self.link {
            link.reap();
        }
        self.keeper.close();
        self.log.flush(LAST_LINES_WAIT);
        self.exit.unwrap_or(ExitStatus::Success)
    }
}
