//! What mcprelay writes down about calls: the dead letter, the audit row, the call event and the log line.
//!
//! These are plain values. The dispatcher fills them with what it saw, unredacted; [`redact`] is applied where they
//! leave the process, so that there is one place to check.

pub mod anchor;
pub mod hash;
pub mod ids;
pub(crate) mod json_out;
mod names;
mod parse;
pub mod redact;
pub mod render;
pub mod seal;
pub mod shell;
pub mod stored;
#[cfg(test)]
pub(crate) mod test_values;

use crate::clock::Wall;

/// Why a call failed, as stored and as clients read it in `data.mcprelay.class`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum FailureClass {
    /// The upstream could not be reached, or went away.
    Transport,
    /// No answer within the attempt's timeout.
    Timeout,
    /// The upstream answered with a JSON-RPC error that another try may cure.
    UpstreamError,
    /// The upstream answered with a JSON-RPC error that no other try will cure.
    NonRetryable,
    /// The tool ran and reported an error itself (`isError: true`).
    ToolError,
    /// mcprelay was ended while the call was open.
    Interrupted,
    /// The circuit breaker was open, so nothing was sent.
    CircuitOpen,
}

/// Whether the tool ran, as far as can be known.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Executed {
    /// Certainly not.
    No,
    /// The request may have reached the tool; no answer says so.
    Maybe,
    /// The tool answered.
    Yes,
}

/// How a client or a server is reached.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Transport {
    /// Standard input and output of a process.
    Stdio,
    /// Streamable HTTP.
    Http,
}

/// Who made a call.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Caller {
    /// How the client is connected.
    pub transport: Transport,
    /// The name from `identity.profile` or `identity.keys`.
    pub identity: String,
}

/// The wrapped server, with what a replay needs to start it again.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Server {
    /// The name the server gives itself; before it told one, the base name of its command.
    pub name: String,
    /// How it is reached.
    pub transport: Transport,
    /// The command and its arguments; for HTTP the URL alone. Environment values are never kept.
    pub argv: Vec<String>,
    /// The working directory the command was started in, if it is valid Unicode.
    pub cwd: Option<String>,
}

/// What the client said of itself (`clientInfo`).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ClientInfo {
    /// `clientInfo.name`.
    pub name: String,
    /// `clientInfo.version`.
    pub version: String,
}

/// One try of a call.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Attempt {
    /// 1 for the first.
    pub number: u32,
    /// When it was handed to the upstream's outbox.
    pub started_at: Wall,
    /// When it ended.
    pub ended_at: Wall,
    /// How it failed.
    pub class: FailureClass,
    /// Whether it may have run.
    pub executed: Executed,
    /// The JSON-RPC error code, if the upstream answered with one.
    pub code: Option<i64>,
    /// What went wrong, in words (the upstream's own where it gave any).
    pub message: String,
}

/// What the policy said of a call.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PolicyNote {
    /// `allow` or `deny`.
    pub allowed: bool,
    /// The rule that decided, 1-based in file order; `None` for `policy.default`.
    pub rule: Option<usize>,
    /// The decision in words.
    pub reason: String,
}

/// A call that finally failed, as the dispatcher saw it: nothing redacted yet.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DeadLetter {
    /// ULID of the record.
    pub id: String,
    /// UUID of the call; the same in the log line and in `_meta.mcprelay` upstream.
    pub correlation_id: String,
    /// When the call was given up.
    pub captured_at: Wall,
    /// Who called.
    pub caller: Caller,
    /// Which server.
    pub server: Server,
    /// Which client, if it told.
    pub client: Option<ClientInfo>,
    /// The tool's name.
    pub tool: String,
    /// The JSON text of `params.arguments` exactly as the client sent it; `None` if it sent none.
    pub arguments: Option<Vec<u8>>,
    /// `_meta.idempotencyKey`, or the argument `idempotency_key` or `idempotencyKey`, as text.
    pub idempotency_key: Option<String>,
    /// The call carried `inputResponses` or `requestState`, so it means nothing outside its conversation.
    pub mid_conversation: bool,
    /// Whether the configuration calls the tool idempotent.
    pub idempotent: bool,
    /// Why it failed.
    pub class: FailureClass,
    /// Whether it may have run, over all attempts.
    pub executed: Executed,
    /// The JSON-RPC error code the client got.
    pub code: Option<i64>,
    /// What went wrong, in words.
    pub message: String,
    /// The JSON text of the upstream's `error.data`, or of the tool's own `content` for [`FailureClass::ToolError`].
    pub detail: Option<Vec<u8>>,
    /// Every try, in order.
    pub attempts: Vec<Attempt>,
    /// What the policy said.
    pub policy: PolicyNote,
}

/// Where a stored dead letter is in its life.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Status {
    /// Nobody worked on it yet.
    Pending,
    /// Somebody works on it, or died doing so (see its claim).
    Replaying,
    /// A replay succeeded.
    Replayed,
    /// The last replay failed; it can be tried again.
    FailedReplay,
    /// A person gave it up.
    Discarded,
    /// It is known to have run: by a late answer, or because a person said so.
    Settled,
    /// It failed too many replays.
    Parked,
}

/// An answer that arrived after its call was given up.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LateResult {
    /// The dead letter it belongs to.
    pub record_id: String,
    /// When it arrived.
    pub at: Wall,
    /// What it settles about the call.
    pub executed: Executed,
    /// Whether it is a success: a result without `isError`.
    pub success: bool,
    /// The JSON text of the answer's `result` or `error` member.
    pub body: Vec<u8>,
}

/// How a call ended, as logged and counted.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Decision {
    /// Answered by the upstream with a result that is no error.
    Allowed,
    /// Refused by policy, or for its credential.
    Denied,
    /// Ended with an error.
    Failed,
    /// Withdrawn by the client.
    Cancelled,
}

/// The error part of a log line.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CallError {
    /// What went wrong, in words; not yet redacted.
    pub message: String,
    /// The JSON-RPC code, if there is one.
    pub code: Option<i64>,
    /// The class; absent for a denial.
    pub class: Option<FailureClass>,
    /// Whether the tool ran.
    pub executed: Executed,
    /// The JSON text of `params.arguments`, so that values masked there are masked in `message` too. Never written.
    pub arguments: Option<Vec<u8>>,
}

/// One ended call: the source of the log line and of the stored call event.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CallEvent {
    /// ULID of the event.
    pub id: String,
    /// When the call ended.
    pub at: Wall,
    /// UUID of the call.
    pub correlation_id: String,
    /// String members of `_meta` named `traceparent`, `tracestate` and `baggage`, in that order, present ones only.
    pub trace: Vec<(&'static str, String)>,
    /// Who called.
    pub caller: Caller,
    /// The server's name.
    pub server: String,
    /// The tool's name.
    pub tool: String,
    /// How it ended.
    pub decision: Decision,
    /// From arrival to answer, back-off included.
    pub latency_ms: u64,
    /// Bytes of `params` as sent upstream (as received, if nothing was sent).
    pub request_bytes: u64,
    /// Bytes of `result`; 0 when there is none.
    pub response_bytes: u64,
    /// Attempts made; 0 for a denied call.
    pub attempts: u32,
    /// The failure, if it was one.
    pub error: Option<CallError>,
    /// The dead letter, if the call left one.
    pub dead_letter_id: Option<String>,
    /// `false` marks the extra line of a policy dry run; such an event is logged, never stored.
    pub enforced: bool,
}

/// What happened, for the audit trail.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum AuditKind {
    /// A dead letter was written.
    Captured,
    /// A call was refused.
    Denied,
    /// A dead letter was replayed.
    Replayed,
    /// A person said whether a call has run.
    Settled,
    /// A person gave a dead letter up.
    Discarded,
    /// A person let a dead letter be replayed again.
    Reopened,
    /// A person deleted dead letters.
    Purged,
}

/// One row of the audit trail.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AuditRow {
    /// ULID of the row.
    pub id: String,
    /// When it happened.
    pub at: Wall,
    /// What happened.
    pub kind: AuditKind,
    /// The call's UUID.
    pub correlation_id: String,
    /// The dead letter, if one is concerned.
    pub record_id: Option<String>,
    /// Who called.
    pub caller: String,
    /// The tool's name.
    pub tool: String,
    /// A JSON object with more, kept as text; redacted before it is stored.
    pub detail: Option<String>,
}

/// A keyed call that succeeded, for the duplicate guard of replay. Keys are scoped by server and tool.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Execution {
    /// The idempotency key.
    pub key: String,
    /// The server's name.
    pub server: String,
    /// The tool's name.
    pub tool: String,
    /// The JSON text of `params.arguments`, for the hash.
    pub arguments: Option<Vec<u8>>,
    /// When it succeeded.
    pub at: Wall,
}
