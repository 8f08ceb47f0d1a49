//! What can happen and what can be done: the plain data between the engine and the world.

use std::sync::Arc;
use std::time::Duration;

use crate::exit::ExitStatus;
use crate::record::{AuditRow, CallEvent, DeadLetter, Executed, Execution, FailureClass, LateResult};
use crate::wire::message::{FromClient, FromUpstream};

/// One client of this process. The wrapper has one; the gateway will have many.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct ClientId(pub u32);

/// One upstream of this process.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct UpstreamId(pub u32);

/// One life of an upstream: each start is a new one, so that nothing of an old process is taken for the new one's.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Incarnation(pub u32);

/// One request on an upstream's wire; the number is its JSON-RPC id there. Never used twice.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct AttemptId(pub u64);

/// One accepted `tools/call`, for the flight recorder. Never used twice.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct CallId(pub u64);

/// Joins a question to the store with its answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Ticket(pub u64);

/// How full an outbox is. The port says so whenever it changes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub enum Level {
    /// Below [`OUTBOX_HIGH_BYTES`].
    #[default]
    Low,
    /// Above it: new requests wait, while cancels, answers and notifications still go.
    High,
    /// Above [`OUTBOX_FULL_BYTES`]: what fills it is not read.
    Full,
}

/// Above this many waiting bytes an outbox takes no new requests.
pub const OUTBOX_HIGH_BYTES: usize = 8 << 20;

/// Above this many waiting bytes nothing that fills the outbox is read; one more frame may be on its way.
pub const OUTBOX_FULL_BYTES: usize = 16 << 20;

/// How an upstream process ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ProcessEnd {
    /// It exited with this status.
    Code(i32),
    /// This signal ended it.
    Signal(i32),
}

impl std::fmt::Display for ProcessEnd {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            ProcessEnd::Code(code) => write!(f, "exited with status {code}"),
            ProcessEnd::Signal(signal) => write!(f, "was ended by signal {signal}"),
        }
    }
}

/// Why a request gets no answer although its upstream goes on.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RequestFailure {
    /// [`FailureClass::NonRetryable`] is final; every other class may be tried again where that is safe.
    pub class: FailureClass,
    /// Whether the request may have reached the tool.
    pub executed: Executed,
    /// No other attempt is wanted before this time has passed.
    pub retry_after: Option<Duration>,
    /// What went wrong, in words.
    pub message: String,
    /// JSON text with more, for the record.
    pub detail: Option<Vec<u8>>,
}

/// Something that happened.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Event {
    /// A frame of the client.
    ClientFrame {
        /// Whose.
        client: ClientId,
        /// What it holds.
        frame: FromClient,
    },
    /// A frame of the client passed the limit; the rest of it is dropped.
    ClientOversized {
        /// Whose.
        client: ClientId,
        /// Its first bytes.
        head: Vec<u8>,
    },
    /// The end of that frame.
    ClientOversizedEnd {
        /// Whose.
        client: ClientId,
        /// Its last bytes.
        tail: Vec<u8>,
    },
    /// The client will send nothing more.
    ClientClosed {
        /// Which.
        client: ClientId,
    },
    /// The client takes nothing more.
    ClientGone {
        /// Which.
        client: ClientId,
    },
    /// The fill of the outbox to the client changed.
    ClientOutbox {
        /// Whose.
        client: ClientId,
        /// To this.
        level: Level,
    },
    /// The upstream could not be started.
    UpstreamStartFailed {
        /// Which.
        upstream: UpstreamId,
        /// Which life.
        incarnation: Incarnation,
        /// Why, in words.
        error: String,
    },
    /// A frame of the upstream.
    UpstreamFrame {
        /// Whose.
        upstream: UpstreamId,
        /// Of which life.
        incarnation: Incarnation,
        /// What it holds.
        frame: FromUpstream,
    },
    /// A frame of the upstream passed the limit; the rest of it is dropped.
    UpstreamOversized {
        /// Whose.
        upstream: UpstreamId,
        /// Of which life.
        incarnation: Incarnation,
        /// Its first bytes.
        head: Vec<u8>,
    },
    /// The end of that frame.
    UpstreamOversizedEnd {
        /// Whose.
        upstream: UpstreamId,
        /// Of which life.
        incarnation: Incarnation,
        /// Its last bytes.
        tail: Vec<u8>,
    },
    /// The upstream will send nothing more.
    UpstreamClosed {
        /// Which.
        upstream: UpstreamId,
        /// Which life.
        incarnation: Incarnation,
        /// Attempts of which not one byte left this process.
        unsent: Vec<AttemptId>,
    },
    /// The upstream takes nothing more.
    UpstreamDeaf {
        /// Which.
        upstream: UpstreamId,
        /// Which life.
        incarnation: Incarnation,
        /// Attempts of which not one byte left this process.
        unsent: Vec<AttemptId>,
    },
    /// The upstream's process ended.
    UpstreamExited {
        /// Which.
        upstream: UpstreamId,
        /// Which life.
        incarnation: Incarnation,
        /// How.
        end: ProcessEnd,
        /// Attempts of which not one byte left this process.
        unsent: Vec<AttemptId>,
    },
    /// The fill of the outbox to the upstream changed.
    UpstreamOutbox {
        /// Whose.
        upstream: UpstreamId,
        /// Of which life.
        incarnation: Incarnation,
        /// To this.
        level: Level,
    },
    /// A request will get no answer, while its upstream goes on.
    RequestFailed {
        /// Whose.
        upstream: UpstreamId,
        /// Of which life.
        incarnation: Incarnation,
        /// Which.
        attempt: AttemptId,
        /// How.
        failure: Box<RequestFailure>,
    },
    /// A dead letter is on disk.
    Stored {
        /// Which question this answers.
        ticket: Ticket,
    },
    /// A dead letter could not be stored.
    StoreFailed {
        /// Which question this answers.
        ticket: Ticket,
        /// Why, in words.
        error: String,
    },
    /// The operating system asks us to end (TERM, INT, HUP).
    Terminate,
}

/// How an upstream's process group is told to end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StopSignal {
    /// SIGTERM
    Term,
    /// SIGKILL
    Kill,
}

/// What the flight recorder is told, so that a call is not lost when this process is killed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Mark {
    /// A call was accepted; comes before anything is sent for it.
    Accepted {
        /// Which.
        call: CallId,
        /// What it becomes if this process dies; its id is empty.
        letter: Arc<DeadLetter>,
    },
    /// The next attempt of a call follows. Whether a byte of it left, the outbox says.
    Attempt {
        /// Of which call.
        call: CallId,
        /// Its number on the wire.
        attempt: AttemptId,
    },
    /// A call is over. What was sent to the client before this must have left before it counts.
    Ended {
        /// Whose call.
        client: ClientId,
        /// Which.
        call: CallId,
    },
}

/// Something to do. The order of actions is part of the meaning.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Action {
    /// Start the upstream.
    StartUpstream {
        /// Which.
        upstream: UpstreamId,
        /// The life that begins.
        incarnation: Incarnation,
    },
    /// Write a frame to the client.
    ToClient {
        /// To whom.
        client: ClientId,
        /// The frame, without its line end.
        bytes: Vec<u8>,
    },
    /// Write a frame to the upstream.
    ToUpstream {
        /// To whom.
        upstream: UpstreamId,
        /// To which life.
        incarnation: Incarnation,
        /// The frame, without its line end.
        bytes: Vec<u8>,
        /// The request it is, if it is one.
        attempt: Option<AttemptId>,
    },
    /// Store a dead letter and its audit row, and answer with [`Event::Stored`] or [`Event::StoreFailed`].
    Capture {
        /// The question.
        ticket: Ticket,
        /// The record.
        letter: Arc<DeadLetter>,
        /// Its row in the audit trail.
        audit: Box<AuditRow>,
    },
    /// Tell the flight recorder.
    Record(Mark),
    /// Write a dead letter that could not be stored where it is not lost, and say so loudly.
    Rescue {
        /// The call it is of.
        call: CallId,
        /// The record.
        letter: Arc<DeadLetter>,
        /// Why it is not stored.
        error: String,
    },
    /// Add a row to the audit trail.
    Audit(Box<AuditRow>),
    /// Log an ended call and count it.
    Report(Box<CallEvent>),
    /// Remember that a keyed call succeeded.
    Executed(Box<Execution>),
    /// Attach an answer to the dead letter of the call that gave it up.
    Late(Box<LateResult>),
    /// Tell the operator something; one line without line end.
    Diagnose(String),
    /// Pass on a line of the upstream that is no message.
    Noise(Vec<u8>),
    /// Close the upstream's standard input.
    CloseUpstream {
        /// Whose.
        upstream: UpstreamId,
        /// Of which life.
        incarnation: Incarnation,
    },
    /// Signal the upstream's process group.
    SignalUpstream {
        /// Whose.
        upstream: UpstreamId,
        /// Of which life.
        incarnation: Incarnation,
        /// How.
        signal: StopSignal,
    },
    /// End the process; always the last action.
    Exit(ExitStatus),
}

/// Which sources may be read now.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Intake {
    /// Frames of clients.
    pub clients: bool,
    /// Frames of upstreams.
    pub upstreams: bool,
}
