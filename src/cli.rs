//! The command line: one table of commands and options, the parser that follows it, and the help made from it.

use std::ffi::{OsStr, OsString};
use std::fmt::{self, Write as _};
use std::path::PathBuf;
use std::time::Duration;

use crate::clock::Wall;
use crate::config::{ATTEMPTS_MAX, MILLIS_MAX, Overrides, Url};
use crate::record::anchor::Anchor;
use crate::record::{AuditKind, FailureClass, Status};
use crate::suggest::nearest;

/// An option of a command.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Opt {
    /// The name without its dashes.
    pub name: &'static str,
    /// What its value is called in the help; `None` if it takes none.
    pub value: Option<&'static str>,
    /// One sentence.
    pub help: &'static str,
}

/// Whether a command takes `-- <command> [args…]`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ServerPart {
    /// It does not.
    None,
    /// It may.
    Optional,
    /// It must.
    Required,
}

/// A command with all that its help, completions and manual page need.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CommandSpec {
    /// Its words: `replay list`. Empty for the program as a whole.
    pub words: &'static str,
    /// What follows the words in the usage line.
    pub usage: &'static str,
    /// One line for the overview.
    pub about: &'static str,
    /// What a user needs to know beyond that; may be empty.
    pub detail: &'static str,
    /// Its options, without `--help`, which every command has.
    pub options: &'static [Opt],
    /// Whether a server command may follow.
    pub server: ServerPart,
    /// Its exit codes and what they mean here.
    pub exits: &'static [(u8, &'static str)],
    /// A command that works as it stands.
    pub example: &'static str,
}

const fn opt(name: &'static str, value: &'static str, help: &'static str) -> Opt {
    Opt { name, value: Some(value), help }
}

const fn flag(name: &'static str, help: &'static str) -> Opt {
    Opt { name, value: None, help }
}

const CONFIG: Opt = opt("config", "path", "Read this file; without it ./mcprelay.config.yaml if there is one.");
const JSON: Opt = flag("json", "Print one JSON document instead of text.");

const USAGE_EXIT: (u8, &str) = (2, "wrong usage or configuration");

/// The statuses of a stored record, as `--status` takes them.
pub const STATUSES: [&str; 7] = ["pending", "replaying", "replayed", "failed_replay", "discarded", "settled", "parked"];

/// The failure classes, as `--class` takes them.
const CLASSES: [(&str, FailureClass); 7] = [
    ("transport", FailureClass::Transport),
    ("timeout", FailureClass::Timeout),
    ("upstream_error", FailureClass::UpstreamError),
    ("non_retryable", FailureClass::NonRetryable),
    ("tool_error", FailureClass::ToolError),
    ("interrupted", FailureClass::Interrupted),
    ("circuit_open", FailureClass::CircuitOpen),
];

/// How many rows `audit list` shows unless told otherwise.
pub const AUDIT_LIMIT_DEFAULT: u64 = 100;

// What narrows a selection of records, the same for every command.
const STATUS: Opt = opt(
    "status",
    "words",
    "pending, replaying, replayed, failed_replay, discarded, settled or parked; several joined by commas.",
);
const TOOL: Opt = opt("tool", "glob", "Only tools whose name fits: * is any text, ? one character.");
const CLASS: Opt =
    opt("class", "word", "transport, timeout, upstream_error, non_retryable, tool_error, interrupted or circuit_open.");
const SERVER: Opt = opt("server", "name", "Exactly this server.");
const CALLER: Opt = opt("caller", "name", "Exactly this caller.");
const CORRELATION: Opt = opt("correlation-id", "id", "Exactly this call.");
const SINCE: Opt = opt("since", "time", "Captured then or later.");
const UNTIL: Opt = opt("until", "time", "Captured then or earlier.");
const OLDER: Opt = opt("older-than", "age", "Captured longer ago than this: 30d.");
const NOTE: Opt = opt("note", "text", "Why; it is kept with the record.");
const YES: Opt = flag("yes", "Do not ask; scripts need it.");

const FILTERS_EXPLAINED: &str =
    "A time is RFC 3339 (2026-11-30T10:00:00+01:00) or an age (2h, 30m, 7d). Both ends are included.";

/// How many records `replay list` shows unless told otherwise.
pub const LIMIT_DEFAULT: u32 = 50;

/// How many records `replay list` shows at most; a larger `--limit` means this.
pub const LIMIT_MAX: u32 = 500;

/// Every command. The parser knows no other option or word than these; the first entry is the program as a whole.
pub const COMMANDS: &[CommandSpec] = &[
    CommandSpec {
        words: "",
        usage: "<command> [options]",
        about: "A reliability layer for MCP tool calls: policy, timeouts, safe retries and a dead-letter queue.",
        detail: "mcprelay [run options] -- <command> [args…] is short for mcprelay run.",
        options: &[],
        server: ServerPart::None,
        exits: &[
            (0, "done, or the client ended the session"),
            (1, "the command ran and failed"),
            USAGE_EXIT,
            (3, "the server could not be started, or ended the session first"),
        ],
        example: "mcprelay run -- npx -y @modelcontextprotocol/server-filesystem /tmp",
    },
    CommandSpec {
        words: "run",
        usage: "[options] -- <command> [args…] | --http <url>",
        about: "Start an MCP server, or reach a remote one, and relay between it and the client on stdin and stdout.",
        detail: "Options stand before --; everything after it belongs to the server. An option given twice: the last \
                 one counts. --timeout-ms and --max-attempts beat the file, also its per_tool entries.",
        options: &[
            CONFIG,
            opt("timeout-ms", "n", "Time limit of one attempt in milliseconds, for every tool."),
            opt("max-attempts", "n", "Attempts per call, the first included, for every tool."),
            opt("identity", "name", "The caller of calls without a credential, instead of identity.profile."),
            flag("policy-dry-run", "Judge every call and log the verdict, but refuse none."),
            opt("faults", "path", "Make calls fail on purpose as this file says, instead of the section faults."),
            opt("http", "url", "Relay to this remote server instead of starting one (Streamable HTTP)."),
            opt("sse", "url", "The same, for a server that knows only the older HTTP+SSE transport."),
        ],
        server: ServerPart::Required,
        exits: &[
            (0, "the client ended the session"),
            USAGE_EXIT,
            (3, "the server could not be started, or ended the session first"),
        ],
        example: "mcprelay run --timeout-ms 10000 -- npx -y @modelcontextprotocol/server-everything",
    },
    CommandSpec {
        words: "replay",
        usage: "<command>",
        about: "Look at calls that finally failed, make them again, or decide what becomes of them.",
        detail: "",
        options: &[],
        server: ServerPart::None,
        exits: &[(0, "done"), (1, "the command ran and failed"), USAGE_EXIT],
        example: "mcprelay replay list --status pending",
    },
    CommandSpec {
        words: "replay list",
        usage: "[options]",
        about: "List stored calls, newest first.",
        detail: FILTERS_EXPLAINED,
        options: &[
            CONFIG,
            STATUS,
            TOOL,
            CORRELATION,
            CLASS,
            SERVER,
            CALLER,
            SINCE,
            UNTIL,
            opt("limit", "n", "At most so many: 50 unless given, never more than 500."),
            JSON,
        ],
        server: ServerPart::None,
        exits: &[(0, "listed, also if nothing was found"), (1, "the database cannot be read"), USAGE_EXIT],
        example: "mcprelay replay list --tool write_file --since 2h",
    },
    CommandSpec {
        words: "replay inspect",
        usage: "<id> [options]",
        about: "Show everything known about one stored call.",
        detail: "",
        options: &[CONFIG, JSON],
        server: ServerPart::None,
        exits: &[(0, "shown"), (1, "no such record, or the database cannot be read"), USAGE_EXIT],
        example: "mcprelay replay inspect 01KAB4Q7Z3M5N8P0R2T4V6X8Y0",
    },
    CommandSpec {
        words: "replay run",
        usage: "(<id> | --all) [options] [-- <command> [args…]]",
        about: "Make one stored call again, once; or all that wait, oldest first.",
        detail: "The server is started or reached as it was then, or as given after --. With --all the filters narrow what is made \
                 again: all pending and failed calls unless --status says otherwise, each at most once, and one server \
                 process for all calls of a server. Ctrl-C ends after the call in hand, a second one at once.",
        options: &[
            CONFIG,
            flag("dry-run", "Check that the server has the tool and show what would be sent; call nothing."),
            opt("set", "path=value", "Give an argument this text: a.b.0=value reaches inside. May be given again."),
            opt("set-json", "path=json", "Give an argument this JSON value."),
            opt("set-env", "path=variable", "Give an argument the text of this environment variable."),
            opt("set-file", "path=file", "Give an argument the text of this file, without a newline at its end."),
            flag("force", "Call although an earlier execution is known or the call is not replayable."),
            flag("force-policy", "Call although the policy denies it."),
            opt("timeout-ms", "n", "Time limit in milliseconds instead of the tool's own."),
            opt("http", "url", "This remote server instead of the stored one; upstream.http.headers belong to it."),
            opt("sse", "url", "The same, for a server that knows only the older HTTP+SSE transport."),
            flag("all", "All calls that the filters take."),
            opt(
                "status",
                "words",
                "pending, failed_replay, replaying, parked or settled; several joined by commas; with --all.",
            ),
            TOOL,
            CLASS,
            SERVER,
            CALLER,
            CORRELATION,
            SINCE,
            UNTIL,
            opt("limit", "n", "At most so many, the oldest; all unless given."),
            flag("exclude-unknown", "Leave out calls that may have run and whose tool is not idempotent."),
            flag("plan", "Show what would run, by server and tool, and how long it may take; start nothing."),
            opt("max-failures", "n", "Stop after so many failures."),
            opt("rate", "n/s", "At most so many calls in a second (n/s), minute (n/m) or hour (n/h)."),
            flag("yes", "Do not ask before calls that may have run are made again."),
            JSON,
        ],
        server: ServerPart::Optional,
        exits: &[
            (0, "the tool answered without an error; with --all: every call did, also if there was none"),
            (1, "refused, failed or skipped, or stopped early; stderr says why"),
            USAGE_EXIT,
        ],
        example: "mcprelay replay run --all --tool write_* --since 12h --plan",
    },
    CommandSpec {
        words: "replay stats",
        usage: "[options]",
        about: "Count stored calls by tool and class: how many wait, since when, how many may have run.",
        detail: FILTERS_EXPLAINED,
        options: &[CONFIG, STATUS, TOOL, CORRELATION, CLASS, SERVER, CALLER, SINCE, UNTIL, JSON],
        server: ServerPart::None,
        exits: &[(0, "counted"), (1, "the database cannot be read"), USAGE_EXIT],
        example: "mcprelay replay stats --since 12h",
    },
    CommandSpec {
        words: "replay settle",
        usage: "<id> --executed yes|no [options]",
        about: "Record whether a call has run, which somebody found out.",
        detail: "yes: the call is done and a replay needs --force. no: it has not run and waits again.",
        options: &[CONFIG, opt("executed", "word", "yes or no."), NOTE, JSON],
        server: ServerPart::None,
        exits: &[(0, "recorded"), (1, "no such record, or it is being replayed or already decided"), USAGE_EXIT],
        example: "mcprelay replay settle 01KAB4Q7Z3M5N8P0R2T4V6X8Y0 --executed yes --note order-77-exists",
    },
    CommandSpec {
        words: "replay discard",
        usage: "(<id>… | filters | --all) [options]",
        about: "Give up calls: nothing replays them any more, and they stay in the queue.",
        detail: "With filters: pending, failed and parked calls unless --status says otherwise. They can be opened again.",
        options: &[
            CONFIG,
            STATUS,
            TOOL,
            CLASS,
            SERVER,
            CALLER,
            CORRELATION,
            SINCE,
            UNTIL,
            OLDER,
            flag("all", "Without filters: all of them."),
            NOTE,
            YES,
            JSON,
        ],
        server: ServerPart::None,
        exits: &[(0, "done, also if nothing was found"), (1, "a record is refused, or nobody said yes"), USAGE_EXIT],
        example: "mcprelay replay discard --tool search --older-than 7d --yes",
    },
    CommandSpec {
        words: "replay reopen",
        usage: "(<id>… | filters | --all) [options]",
        about: "Let calls be replayed again that were discarded, parked or failed.",
        detail: "Their failed replays no longer count. With filters: discarded and parked calls unless --status says otherwise.",
        options: &[
            CONFIG,
            STATUS,
            TOOL,
            CLASS,
            SERVER,
            CALLER,
            CORRELATION,
            SINCE,
            UNTIL,
            OLDER,
            flag("all", "Without filters: all of them."),
            flag("force", "Also a call that has succeeded or has run, or whose replay has an unknown outcome."),
            NOTE,
            YES,
            JSON,
        ],
        server: ServerPart::None,
        exits: &[(0, "done, also if nothing was found"), (1, "a record is refused, or nobody said yes"), USAGE_EXIT],
        example: "mcprelay replay reopen 01KAB4Q7Z3M5N8P0R2T4V6X8Y0 --note disk-replaced",
    },
    CommandSpec {
        words: "replay purge",
        usage: "(<id>… | filters | --all) [options]",
        about: "Delete calls from the queue for good.",
        detail: "With filters: replayed, discarded and settled calls unless --status says otherwise. What is being replayed \
                 stays.",
        options: &[
            CONFIG,
            STATUS,
            TOOL,
            CLASS,
            SERVER,
            CALLER,
            CORRELATION,
            SINCE,
            UNTIL,
            OLDER,
            flag("all", "Without filters: all of them."),
            YES,
            JSON,
        ],
        server: ServerPart::None,
        exits: &[(0, "done, also if nothing was found"), (1, "a record is refused, or nobody said yes"), USAGE_EXIT],
        example: "mcprelay replay purge --older-than 30d --yes",
    },
    CommandSpec {
        words: "replay export",
        usage: "[options]",
        about: "Write stored calls as lines of JSON, oldest first, for replay import elsewhere.",
        detail: "Everything in them is redacted or sealed. Without --output they go to standard output.",
        options: &[
            CONFIG,
            STATUS,
            TOOL,
            CLASS,
            SERVER,
            CALLER,
            CORRELATION,
            SINCE,
            UNTIL,
            opt("output", "file", "Write to this file, which must not exist, readable by you alone."),
            opt("limit", "n", "At most so many, the oldest; all unless given."),
        ],
        server: ServerPart::None,
        exits: &[(0, "written"), (1, "the database cannot be read, or the file cannot be written"), USAGE_EXIT],
        example: "mcprelay replay export --status pending,failed_replay --output queue.jsonl",
    },
    CommandSpec {
        words: "replay import",
        usage: "<file> [options]",
        about: "Take in the calls of an export, all or none; - reads standard input.",
        detail: "Calls that are in the queue already stay as they are there.",
        options: &[CONFIG, JSON],
        server: ServerPart::None,
        exits: &[(0, "taken in"), (1, "a line is wrong and is named, or the database cannot be written"), USAGE_EXIT],
        example: "mcprelay replay import queue.jsonl",
    },
    CommandSpec {
        words: "replay reseal",
        usage: "[options]",
        about: "Seal all originals anew with the current key of queue.seal.",
        detail: "Afterwards the keys under queue.seal.previous are no longer needed.",
        options: &[CONFIG, JSON],
        server: ServerPart::None,
        exits: &[
            (0, "all originals are sealed with the current key"),
            (1, "some are not; stderr says why"),
            USAGE_EXIT,
        ],
        example: "mcprelay replay reseal",
    },
    CommandSpec {
        words: "policy",
        usage: "test",
        about: "Ask what the policy says of a call.",
        detail: "",
        options: &[],
        server: ServerPart::None,
        exits: &[(0, "evaluated"), (1, "the command ran and failed"), USAGE_EXIT],
        example: "mcprelay policy test --tool write_file",
    },
    CommandSpec {
        words: "policy test",
        usage: "(--tool <name> | --id <id>) [options]",
        about: "Tell whether a call would be allowed, and by which rule.",
        detail: "--id takes tool, arguments (redacted as stored) and caller from a stored call and beats --tool.",
        options: &[
            CONFIG,
            opt("tool", "name", "The tool's name."),
            opt("args", "json", "The call's arguments; {} unless given."),
            opt("caller", "name", "The caller; unless given, local or the stored one."),
            opt("id", "id", "A stored call."),
            JSON,
        ],
        server: ServerPart::None,
        exits: &[
            (0, "evaluated, allowed or denied"),
            (1, "no such record, or the database cannot be read"),
            USAGE_EXIT,
        ],
        example: "mcprelay policy test --tool write_file --args '{\"path\": \"/etc/passwd\"}'",
    },
    CommandSpec {
        words: "report",
        usage: "[options]",
        about: "Sum up the calls of a time and the state of the queue.",
        detail: "A time is RFC 3339 (2026-11-30T10:00:00+01:00) or an age (2h, 30m, 7d). Both ends are included. Latencies \
                 are those of calls that ran or may have run. With --html or --openmetrics nothing is printed unless \
                 --json or --csv is given as well.",
        options: &[
            CONFIG,
            opt("since", "time", "Calls that ended then or later; 24h unless given."),
            opt("until", "time", "Calls that ended then or earlier; now unless given."),
            opt("tool", "glob", "Only tools whose name fits: * is any text, ? one character."),
            opt("caller", "name", "Exactly this caller."),
            opt("server", "name", "Exactly this server."),
            opt(
                "group-by",
                "list",
                "What makes a row: caller, server, tool, class, decision, hour or day, joined by commas; \
                 caller,server,tool unless given.",
            ),
            flag("no-header", "Leave out the titles of the columns, in text and with --csv."),
            flag("csv", "Print the rows as comma-separated values."),
            opt("html", "file", "Write a page with charts to this file; it needs no network."),
            opt("openmetrics", "file", "Write metrics to this file, for a node exporter's textfile collector."),
            JSON,
        ],
        server: ServerPart::None,
        exits: &[
            (0, "reported, also if there were no calls"),
            (1, "a database cannot be read, or a file cannot be written"),
            USAGE_EXIT,
        ],
        example: "mcprelay report --since 7d --group-by server,tool",
    },
    CommandSpec {
        words: "audit",
        usage: "list | verify | head",
        about: "Look at the audit trail, and check that nobody changed it.",
        detail: "",
        options: &[],
        server: ServerPart::None,
        exits: &[(0, "done"), (1, "the command ran and failed"), USAGE_EXIT],
        example: "mcprelay audit verify",
    },
    CommandSpec {
        words: "audit list",
        usage: "[options]",
        about: "List what was captured, denied and replayed, newest first.",
        detail: "A time is RFC 3339 (2026-11-30T10:00:00+01:00) or an age (2h, 30m, 7d). Both ends are included.",
        options: &[
            CONFIG,
            opt("kind", "word", "captured, denied, replayed, settled, discarded, reopened or purged."),
            opt("tool", "name", "Exactly this tool."),
            opt("caller", "name", "Exactly this caller."),
            opt("correlation-id", "id", "Exactly this call."),
            opt("record", "id", "Exactly this stored call."),
            opt("since", "time", "Then or later."),
            opt("until", "time", "Then or earlier."),
            opt("limit", "n", "At most so many; 100 unless given."),
            flag("no-header", "Leave out the titles of the columns."),
            JSON,
        ],
        server: ServerPart::None,
        exits: &[(0, "listed, also if nothing was found"), (1, "the database cannot be read"), USAGE_EXIT],
        example: "mcprelay audit list --kind denied --since 2h",
    },
    CommandSpec {
        words: "audit verify",
        usage: "[options]",
        about: "Check that no row of the audit trail was changed, removed or put elsewhere.",
        detail: "The newest row is proven only by an anchor that mcprelay audit head printed when it was there.",
        options: &[
            CONFIG,
            opt("anchor", "anchor", "The trail must still hold this row, as it was. May be given again."),
            JSON,
        ],
        server: ServerPart::None,
        exits: &[
            (0, "nothing is wrong"),
            (1, "something is, and it is named; or the database cannot be read"),
            USAGE_EXIT,
        ],
        example: "mcprelay audit verify --config mcprelay.config.yaml",
    },
    CommandSpec {
        words: "audit head",
        usage: "[options]",
        about: "Print the anchor of the newest row, to be kept somewhere else.",
        detail: "",
        options: &[CONFIG, JSON],
        server: ServerPart::None,
        exits: &[(0, "printed"), (1, "the database cannot be read"), USAGE_EXIT],
        example: "mcprelay audit head",
    },
    CommandSpec {
        words: "validate",
        usage: "[options]",
        about: "Check the configuration and report every error in it.",
        detail: "Opens no database and starts no server.",
        options: &[CONFIG],
        server: ServerPart::None,
        exits: &[(0, "the configuration can be used"), (2, "it cannot; stderr names each place and remedy")],
        example: "mcprelay validate --config mcprelay.config.yaml",
    },
    CommandSpec {
        words: "demo",
        usage: "",
        about: "Show a failing call, its retries, the queue and the replay, on a built-in example server.",
        detail: "Needs no network and leaves nothing behind.",
        options: &[],
        server: ServerPart::None,
        exits: &[(0, "the story went as told"), (1, "it did not"), (2, "wrong usage")],
        example: "mcprelay demo",
    },
    CommandSpec {
        words: "completions",
        usage: "bash | zsh | fish",
        about: "Print the completions for a shell.",
        detail: "bash: source <(mcprelay completions bash). zsh: mcprelay completions zsh > _mcprelay in a directory of \
                 $fpath. fish: mcprelay completions fish > ~/.config/fish/completions/mcprelay.fish.",
        options: &[],
        server: ServerPart::None,
        exits: &[(0, "printed"), (2, "wrong usage")],
        example: "mcprelay completions bash",
    },
    CommandSpec {
        words: "man",
        usage: "",
        about: "Print the manual page.",
        detail: "To read it: mcprelay man | man -l -",
        options: &[],
        server: ServerPart::None,
        exits: &[(0, "printed"), (2, "wrong usage")],
        example: "mcprelay man",
    },
    CommandSpec {
        words: "version",
        usage: "",
        about: "Print the version.",
        detail: "-v and --version do the same.",
        options: &[],
        server: ServerPart::None,
        exits: &[(0, "printed"), (2, "wrong usage")],
        example: "mcprelay version",
    },
    CommandSpec {
        words: "help",
        usage: "[<command>]",
        about: "Explain a command; every command also takes --help.",
        detail: "",
        options: &[],
        server: ServerPart::None,
        exits: &[(0, "printed"), (2, "there is no such command")],
        example: "mcprelay help replay run",
    },
];

/// What the user asked for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Command {
    /// `run` and its shorthand.
    Run(RunArgs),
    /// `validate`.
    Validate(ValidateArgs),
    /// `replay …`.
    Replay(ReplayCommand),
    /// `policy test`.
    PolicyTest(PolicyTestArgs),
    /// `report`.
    Report(ReportArgs),
    /// `audit …`.
    Audit(AuditCommand),
    /// `demo`.
    Demo,
    /// `example-server <directory>`, which only `demo` starts and no help names.
    ExampleServer(PathBuf),
    /// `completions`.
    Completions(Shell),
    /// `man`.
    Man,
    /// `version`.
    Version,
    /// Help on these words of [`COMMANDS`]; give them to [`help`].
    Help(&'static str),
}

/// The arguments of `run`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RunArgs {
    /// `--config`.
    pub config: Option<PathBuf>,
    /// What beats the file.
    pub overrides: Overrides,
    /// `--faults`.
    pub faults: Option<PathBuf>,
    /// The server's command and arguments, exactly as given. Empty if there is a `remote`.
    pub server: Vec<OsString>,
    /// `--http` or `--sse`.
    pub remote: Option<Remote>,
}

/// A server that runs elsewhere.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Remote {
    /// Its address.
    pub url: Url,
    /// It speaks the older HTTP+SSE transport only.
    pub sse: bool,
}

/// The arguments of `validate`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ValidateArgs {
    /// `--config`.
    pub config: Option<PathBuf>,
}

/// The `replay` commands.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ReplayCommand {
    /// `replay list`.
    List(ReplayListArgs),
    /// `replay inspect`.
    Inspect(ReplayInspectArgs),
    /// `replay run <id>`.
    Run(ReplayRunArgs),
    /// `replay run --all`.
    RunAll(ReplayRunAllArgs),
    /// `replay stats`.
    Stats(ReplayStatsArgs),
    /// `replay settle`.
    Settle(ReplaySettleArgs),
    /// `replay discard`, `replay reopen` or `replay purge`.
    Decide(ReplayDecideArgs),
    /// `replay export`.
    Export(ReplayExportArgs),
    /// `replay import`.
    Import(ReplayImportArgs),
    /// `replay reseal`.
    Reseal(ReplayResealArgs),
}

/// What narrows a selection of records. The empty one takes all.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Selection {
    /// `--status`; empty if not given.
    pub statuses: Vec<Status>,
    /// `--tool`, a glob.
    pub tool: Option<String>,
    /// `--class`.
    pub class: Option<FailureClass>,
    /// `--server`, exact.
    pub server: Option<String>,
    /// `--caller`, exact.
    pub caller: Option<String>,
    /// `--correlation-id`, exact.
    pub correlation_id: Option<String>,
    /// `--since`, included.
    pub since: Option<Wall>,
    /// `--until` or `--older-than`, included.
    pub until: Option<Wall>,
}

/// The arguments of `replay list`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ReplayListArgs {
    /// `--config`.
    pub config: Option<PathBuf>,
    /// The filters.
    pub selection: Selection,
    /// `--limit`, from 1 to [`LIMIT_MAX`].
    pub limit: u32,
    /// `--json`.
    pub json: bool,
}

/// The arguments of `replay inspect`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ReplayInspectArgs {
    /// The record.
    pub id: String,
    /// `--config`.
    pub config: Option<PathBuf>,
    /// `--json`.
    pub json: bool,
}

/// The arguments of `replay run`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ReplayRunArgs {
    /// The record.
    pub id: String,
    /// `--config`.
    pub config: Option<PathBuf>,
    /// `--dry-run`.
    pub dry_run: bool,
    /// Each `--set…` in order.
    pub set: Vec<SetArg>,
    /// `--force`.
    pub force: bool,
    /// `--force-policy`.
    pub force_policy: bool,
    /// `--timeout-ms`.
    pub timeout: Option<Duration>,
    /// `--json`.
    pub json: bool,
    /// The server to start instead of the stored one; if given, not empty.
    pub server: Option<Vec<OsString>>,
    /// `--http` or `--sse`: the remote server instead of the stored one.
    pub remote: Option<Remote>,
}

/// One `--set…` option.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SetArg {
    /// Which of the options.
    pub source: SetSource,
    /// The argument's path; not empty.
    pub path: String,
    /// What stands behind `=`.
    pub value: String,
}

/// Where the value of a `--set…` option comes from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SetSource {
    /// `--set`: it is the text itself.
    Text,
    /// `--set-json`: it is a JSON text.
    Json,
    /// `--set-env`: it is the name of an environment variable.
    Env,
    /// `--set-file`: it is the path of a file.
    File,
}

impl SetSource {
    /// Every source with its option.
    const ALL: [(&'static str, SetSource); 4] = [
        ("set", SetSource::Text),
        ("set-json", SetSource::Json),
        ("set-env", SetSource::Env),
        ("set-file", SetSource::File),
    ];

    /// The option's name without its dashes.
    #[must_use]
    pub fn option(self) -> &'static str {
        SetSource::ALL.iter().find(|(_, source)| *source == self).map_or("set", |(name, _)| name)
    }
}

/// The arguments of `replay run --all`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ReplayRunAllArgs {
    /// `--config`.
    pub config: Option<PathBuf>,
    /// The filters.
    pub selection: Selection,
    /// `--limit`.
    pub limit: Option<u64>,
    /// `--dry-run`; never with `plan`.
    pub dry_run: bool,
    /// `--plan`.
    pub plan: bool,
    /// `--force`.
    pub force: bool,
    /// `--force-policy`.
    pub force_policy: bool,
    /// `--timeout-ms`.
    pub timeout: Option<Duration>,
    /// `--exclude-unknown`.
    pub exclude_unknown: bool,
    /// `--max-failures`.
    pub max_failures: Option<u64>,
    /// `--rate`: the least time between two calls.
    pub pause: Option<Duration>,
    /// `--yes`.
    pub yes: bool,
    /// `--json`.
    pub json: bool,
    /// The server to start instead of the stored ones; if given, not empty.
    pub server: Option<Vec<OsString>>,
    /// `--http` or `--sse`: the remote server instead of the stored ones.
    pub remote: Option<Remote>,
}

/// The arguments of `replay stats`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ReplayStatsArgs {
    /// `--config`.
    pub config: Option<PathBuf>,
    /// The filters.
    pub selection: Selection,
    /// `--json`.
    pub json: bool,
}

/// The arguments of `replay settle`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ReplaySettleArgs {
    /// The record.
    pub id: String,
    /// `--config`.
    pub config: Option<PathBuf>,
    /// `--executed`.
    pub executed: bool,
    /// `--note`.
    pub note: Option<String>,
    /// `--json`.
    pub json: bool,
}

/// What `replay discard`, `replay reopen` and `replay purge` do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Decision {
    /// Give up.
    Discard,
    /// Let be replayed again.
    Reopen,
    /// Delete.
    Purge,
}

/// The arguments of `replay discard`, `replay reopen` and `replay purge`. Either ids or a selection.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ReplayDecideArgs {
    /// What to do.
    pub decision: Decision,
    /// `--config`.
    pub config: Option<PathBuf>,
    /// The records; empty with a selection.
    pub ids: Vec<String>,
    /// The filters; empty with ids, or with `--all`.
    pub selection: Selection,
    /// `--force`, of `replay reopen` only.
    pub force: bool,
    /// `--note`; never with a purge.
    pub note: Option<String>,
    /// `--yes`.
    pub yes: bool,
    /// `--json`.
    pub json: bool,
}

/// The arguments of `replay export`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ReplayExportArgs {
    /// `--config`.
    pub config: Option<PathBuf>,
    /// The filters.
    pub selection: Selection,
    /// `--output`; standard output if not given.
    pub output: Option<PathBuf>,
    /// `--limit`.
    pub limit: Option<u64>,
}

/// The arguments of `replay import`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ReplayImportArgs {
    /// `--config`.
    pub config: Option<PathBuf>,
    /// The file; `None` is standard input.
    pub file: Option<PathBuf>,
    /// `--json`.
    pub json: bool,
}

/// The arguments of `replay reseal`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ReplayResealArgs {
    /// `--config`.
    pub config: Option<PathBuf>,
    /// `--json`.
    pub json: bool,
}

/// The arguments of `policy test`. `tool` or `id` is there.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PolicyTestArgs {
    /// `--config`.
    pub config: Option<PathBuf>,
    /// `--tool`.
    pub tool: Option<String>,
    /// `--args`, unchecked; `{}` if not given.
    pub args: String,
    /// `--caller`.
    pub caller: Option<String>,
    /// `--id`.
    pub id: Option<String>,
    /// `--json`.
    pub json: bool,
}

/// The arguments of `report`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ReportArgs {
    /// `--config`.
    pub config: Option<PathBuf>,
    /// `--since`, included; a day before `until` if not given.
    pub since: Wall,
    /// `--until`, included; now if not given.
    pub until: Wall,
    /// `--tool`, a glob.
    pub tool: Option<String>,
    /// `--caller`, exact.
    pub caller: Option<String>,
    /// `--server`, exact.
    pub server: Option<String>,
    /// `--group-by`; each at most once, at least one.
    pub group_by: Vec<Dimension>,
    /// Not `--no-header`.
    pub header: bool,
    /// `--csv`; never with `json`.
    pub csv: bool,
    /// `--html`.
    pub html: Option<PathBuf>,
    /// `--openmetrics`.
    pub openmetrics: Option<PathBuf>,
    /// `--json`.
    pub json: bool,
}

/// What rows of the report can be told apart by.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Dimension {
    /// The caller's identity.
    Caller,
    /// The server's name.
    Server,
    /// The tool's name.
    Tool,
    /// The failure's class.
    Class,
    /// How the call ended.
    Decision,
    /// The hour it ended in, in UTC.
    Hour,
    /// The day it ended on, in UTC.
    Day,
}

impl Dimension {
    /// Every dimension with its word, in the order of the help.
    pub const ALL: [(&'static str, Dimension); 7] = [
        ("caller", Dimension::Caller),
        ("server", Dimension::Server),
        ("tool", Dimension::Tool),
        ("class", Dimension::Class),
        ("decision", Dimension::Decision),
        ("hour", Dimension::Hour),
        ("day", Dimension::Day),
    ];

    /// The word in options and documents.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        Dimension::ALL.iter().find(|(_, dimension)| *dimension == self).map_or("", |(word, _)| word)
    }
}

/// The `audit` commands.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum AuditCommand {
    /// `audit list`.
    List(AuditListArgs),
    /// `audit verify`.
    Verify(AuditVerifyArgs),
    /// `audit head`.
    Head(AuditHeadArgs),
}

/// The arguments of `audit list`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AuditListArgs {
    /// `--config`.
    pub config: Option<PathBuf>,
    /// `--kind`, the word of one.
    pub kind: Option<&'static str>,
    /// `--tool`, exact.
    pub tool: Option<String>,
    /// `--caller`, exact.
    pub caller: Option<String>,
    /// `--correlation-id`, exact.
    pub correlation_id: Option<String>,
    /// `--record`, exact.
    pub record_id: Option<String>,
    /// `--since`, included.
    pub since: Option<Wall>,
    /// `--until`, included.
    pub until: Option<Wall>,
    /// `--limit`.
    pub limit: u64,
    /// Not `--no-header`.
    pub header: bool,
    /// `--json`.
    pub json: bool,
}

/// The arguments of `audit verify`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AuditVerifyArgs {
    /// `--config`.
    pub config: Option<PathBuf>,
    /// Each `--anchor`.
    pub anchors: Vec<Anchor>,
    /// `--json`.
    pub json: bool,
}

/// The arguments of `audit head`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AuditHeadArgs {
    /// `--config`.
    pub config: Option<PathBuf>,
    /// `--json`.
    pub json: bool,
}

/// A shell that completions can be made for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Shell {
    /// Bash 4 or later.
    Bash,
    /// Zsh.
    Zsh,
    /// Fish 3 or later.
    Fish,
}

const SHELLS: [(&str, Shell); 3] = [("bash", Shell::Bash), ("zsh", Shell::Zsh), ("fish", Shell::Fish)];

/// A command line that means nothing; the exit status is 2.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UsageError {
    /// What is wrong; names the token.
    pub message: String,
    /// The words of [`COMMANDS`] whose help explains it.
    pub topic: &'static str,
}

impl fmt::Display for UsageError {
    /// Two lines: the message, and which help to read.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let space = if self.topic.is_empty() { "" } else { " " };
        write!(f, "mcprelay: {}\nmcprelay: see mcprelay{space}{} --help", self.message, self.topic)
    }
}

/// Reads the command line `args` (the program's own name left out). `now` is what ages like `2h` are counted from.
///
/// # Errors
///
/// The first token that makes no sense, or what is missing.
pub fn parse(args: &[OsString], now: Wall) -> Result<Command, UsageError> {
    let Some((first, rest)) = args.split_first() else { return Ok(Command::Help("")) };
    let word = first.to_string_lossy();
    match word.as_ref() {
        "--help" | "-h" => Ok(Command::Help("")),
        "--version" | "-v" => Ok(Command::Version),
        "help" => parse_help(rest),
        "version" => parse_bare("version", rest, Command::Version),
        "demo" => parse_bare("demo", rest, Command::Demo),
        "example-server" if rest.len() == 1 => Ok(Command::ExampleServer(PathBuf::from(&rest[0]))),
        "man" => parse_bare("man", rest, Command::Man),
        "run" => parse_run(rest),
        "validate" => parse_validate(rest),
        "report" => parse_report(rest, now),
        "completions" => parse_completions(rest),
        "audit" => match subcommand("audit", rest)? {
            (Some("list"), rest) => parse_audit_list(rest, now),
            (Some("verify"), rest) => parse_audit_verify(rest),
            (Some(_), rest) => parse_audit_head(rest),
            (None, _) => Ok(Command::Help("audit")),
        },
        "replay" => match subcommand("replay", rest)? {
            (Some("list"), rest) => parse_replay_list(rest, now),
            (Some("inspect"), rest) => parse_replay_inspect(rest),
            (Some("stats"), rest) => parse_replay_stats(rest, now),
            (Some("settle"), rest) => parse_replay_settle(rest),
            (Some("discard"), rest) => parse_replay_decide("replay discard", Decision::Discard, rest, now),
            (Some("reopen"), rest) => parse_replay_decide("replay reopen", Decision::Reopen, rest, now),
            (Some("purge"), rest) => parse_replay_decide("replay purge", Decision::Purge, rest, now),
            (Some("export"), rest) => parse_replay_export(rest, now),
            (Some("import"), rest) => parse_replay_import(rest),
            (Some("reseal"), rest) => parse_replay_reseal(rest),
            (Some(_), rest) => parse_replay_run(rest, now),
            (None, _) => Ok(Command::Help("replay")),
        },
        "policy" => match subcommand("policy", rest)? {
            (Some(_), rest) => parse_policy_test(rest),
            (None, _) => Ok(Command::Help("policy")),
        },
        option if option.starts_with('-') && option != "-" => {
            let name = option.split('=').next().unwrap_or_default();
            let known = spec("run").options.iter().any(|known| name.strip_prefix("--") == Some(known.name));
            if option == "--" || known { parse_run(args) } else { Err(unknown_option(spec("run"), name, "")) }
        }
        other => {
            let known =
                COMMANDS.iter().map(|spec| spec.words).filter(|words| !words.contains(' ') && !words.is_empty());
            let hint = did_you_mean(nearest(other, known));
            Err(UsageError { message: format!("unknown command {}{hint}", shown(first)), topic: "" })
        }
    }
}

/// The help on a command of [`COMMANDS`], ready to print.
#[must_use]
pub fn help(topic: &str) -> String {
    let spec = spec(topic);
    let mut text = String::new();
    let space = if spec.words.is_empty() { "" } else { " " };
    let _ = writeln!(text, "{}\n", spec.about);
    let usage = format!("Usage: mcprelay{space}{} {}", spec.words, spec.usage);
    let _ = writeln!(text, "{}", usage.trim_end());
    if !spec.detail.is_empty() {
        let _ = writeln!(text, "\n{}", wrapped(spec.detail, 0));
    }
    let below: Vec<&CommandSpec> = COMMANDS
        .iter()
        .filter(|other| match spec.words {
            "" => !other.words.is_empty() && !is_group(other),
            words => other.words.strip_prefix(words).is_some_and(|rest| rest.starts_with(' ')),
        })
        .collect();
    if !below.is_empty() {
        let rows: Vec<(String, &str)> = below.iter().map(|other| (other.words.to_owned(), other.about)).collect();
        let _ = write!(text, "\nCommands:\n{}", table(&rows));
    }
    let mut rows: Vec<(String, &str)> = spec
        .options
        .iter()
        .map(|option| match option.value {
            Some(value) => (format!("--{} <{value}>", option.name), option.help),
            None => (format!("--{}", option.name), option.help),
        })
        .collect();
    rows.push(("-h, --help".to_owned(), "Print this help."));
    if spec.words.is_empty() {
        rows.push(("-v, --version".to_owned(), "Print the version."));
    }
    let _ = write!(text, "\nOptions:\n{}", table(&rows));
    let rows: Vec<(String, &str)> = spec.exits.iter().map(|(code, meaning)| (code.to_string(), *meaning)).collect();
    let _ = write!(text, "\nExit codes:\n{}", table(&rows));
    let _ = writeln!(text, "\nExample:\n  {}", spec.example);
    text
}

/// Whether the command is only the first word of others.
#[must_use]
pub fn is_group(spec: &CommandSpec) -> bool {
    let rest = |other: &CommandSpec| other.words.strip_prefix(spec.words).is_some_and(|rest| rest.starts_with(' '));
    !spec.words.is_empty() && COMMANDS.iter().any(rest)
}

/// Two columns, the second wrapped.
fn table(rows: &[(String, &str)]) -> String {
    let width = rows.iter().map(|(left, _)| left.chars().count()).max().unwrap_or_default();
    let mut text = String::new();
    for (left, right) in rows {
        let _ = writeln!(text, "  {left:width$}  {}", wrapped(right, width + 4));
    }
    text
}

/// `text` in lines of at most 100 characters, all but the first indented.
fn wrapped(text: &str, indent: usize) -> String {
    const COLUMNS: usize = 100;
    let mut result = String::new();
    let mut column = indent;
    for word in text.split_whitespace() {
        let length = word.chars().count();
        if column > indent && column + 1 + length > COLUMNS {
            let _ = write!(result, "\n{:indent$}", "");
            column = indent;
        } else if column > indent {
            result.push(' ');
            column += 1;
        }
        result.push_str(word);
        column += length;
    }
    result
}

/// The command of these words; of unknown ones the program as a whole.
fn spec(words: &str) -> &'static CommandSpec {
    COMMANDS.iter().find(|spec| spec.words == words).unwrap_or(&COMMANDS[0])
}

/// What stood on a command line, sorted by the command's table entry; values not looked at yet.
struct Given {
    spec: &'static CommandSpec,
    options: Vec<(&'static str, OsString)>,
    positionals: Vec<OsString>,
    server: Option<Vec<OsString>>,
}

/// Sorts `args` by the table entry of `words`. `None` if help was asked for.
fn scan(words: &str, args: &[OsString]) -> Result<Option<Given>, UsageError> {
    let spec = spec(words);
    let error = |message: String| Err(UsageError { message, topic: spec.words });
    // What stands behind the first -- is the server's business, so the option parser never sees it.
    let (own, server) = match args.iter().position(|arg| arg == "--") {
        Some(at) => (&args[..at], Some(args[at + 1..].to_vec())),
        None => (args, None),
    };
    let mut given = Given { spec, options: Vec::new(), positionals: Vec::new(), server: None };
    let mut parser = lexopt::Parser::from_args(own);
    loop {
        let name = match parser.next() {
            Ok(None) => break,
            Ok(Some(lexopt::Arg::Long("help") | lexopt::Arg::Short('h'))) => return Ok(None),
            Ok(Some(lexopt::Arg::Value(value))) => {
                given.positionals.push(value);
                continue;
            }
            Ok(Some(lexopt::Arg::Short(letter))) => {
                return Err(unknown_option(spec, &format!("-{letter}"), spec.words));
            }
            Ok(Some(lexopt::Arg::Long(name))) => name.to_owned(),
            Err(other) => return error(other.to_string()),
        };
        let Some(option) = spec.options.iter().find(|option| option.name == name) else {
            return Err(unknown_option(spec, &format!("--{name}"), spec.words));
        };
        let attached = parser.optional_value();
        let value = match (option.value, attached) {
            (None, None) => OsString::new(),
            (None, Some(value)) => return error(format!("--{name} takes no value, found {}", shown(&value))),
            (Some(_), Some(value)) => value,
            (Some(what), None) => match parser.value() {
                Ok(value) if !is_option_of(spec, &value) => value,
                Ok(_) | Err(_) => return error(format!("--{name} needs a value: --{name} <{what}>")),
            },
        };
        given.options.push((option.name, value));
    }
    match (spec.server, server) {
        (_, None) => {}
        (ServerPart::None, Some(_)) => return error(format!("unexpected --: {} takes no command", spec.words)),
        (ServerPart::Optional | ServerPart::Required, Some(server)) => match server.first() {
            None => return error("nothing stands behind --: the server's command is missing".to_owned()),
            Some(command) if command.is_empty() => {
                return error("the server's command behind -- is an empty text".to_owned());
            }
            Some(_) => given.server = Some(server),
        },
    }
    Ok(Some(given))
}

/// Whether `token` is one of the command's own options, so that it is no value of the option before it.
fn is_option_of(spec: &CommandSpec, token: &OsStr) -> bool {
    let token = token.to_string_lossy();
    let name = token.split('=').next().unwrap_or_default();
    name == "--help" || spec.options.iter().any(|option| name.strip_prefix("--") == Some(option.name))
}

fn unknown_option(spec: &CommandSpec, token: &str, topic: &'static str) -> UsageError {
    let near = token.strip_prefix("--").and_then(|name| nearest(name, spec.options.iter().map(|option| option.name)));
    let hint = near.map(|name| format!("; did you mean --{name}?")).unwrap_or_default();
    UsageError { message: format!("unknown option {}{hint}", shown(OsStr::new(token))), topic }
}

fn did_you_mean(word: Option<&str>) -> String {
    word.map(|word| format!("; did you mean {word}?")).unwrap_or_default()
}

/// A token as it is named in a message: quoted if it would not read as one word; control characters escaped.
fn shown(token: &OsStr) -> String {
    let text = token.to_string_lossy();
    let plain = !text.is_empty() && text.chars().all(|c| !c.is_whitespace() && !c.is_control() && c != '"');
    if plain { text.into_owned() } else { format!("{text:?}") }
}

impl Given {
    /// `--http` or `--sse`.
    fn remote(&self) -> Result<Option<Remote>, UsageError> {
        let http = self.text("http")?.map(|url| ("http", url));
        let given = match (http, self.text("sse")?.map(|url| ("sse", url))) {
            (Some(_), Some(_)) => return self.error("--http and --sse exclude each other".to_owned()),
            (http, sse) => http.or(sse),
        };
        match given {
            None => Ok(None),
            Some((option, _)) if self.server.is_some() => {
                self.error(format!("--{option} and -- <command> exclude each other"))
            }
            Some((option, url)) => match Url::parse(&url) {
                Ok(url) => Ok(Some(Remote { url, sse: option == "sse" })),
                // A URL may hold a secret, so only its fault is told.
                Err(fault) => self.error(format!("--{option}: not a URL like https://host/mcp: {fault}")),
            },
        }
    }

    fn error<T>(&self, message: String) -> Result<T, UsageError> {
        Err(UsageError { message, topic: self.spec.words })
    }

    fn has(&self, name: &str) -> bool {
        self.options.iter().any(|(given, _)| *given == name)
    }

    /// The last value of the option, which must not be empty.
    fn last(&self, name: &str) -> Result<Option<&OsString>, UsageError> {
        match self.options.iter().rev().find(|(given, _)| *given == name) {
            Some((_, value)) if value.is_empty() => self.error(format!("--{name} needs a value that is not empty")),
            other => Ok(other.map(|(_, value)| value)),
        }
    }

    fn path(&self, name: &str) -> Result<Option<PathBuf>, UsageError> {
        Ok(self.last(name)?.map(PathBuf::from))
    }

    fn text(&self, name: &str) -> Result<Option<String>, UsageError> {
        let Some(value) = self.last(name)? else { return Ok(None) };
        match value.to_str() {
            Some(text) => Ok(Some(text.to_owned())),
            None => self.error(format!("--{name}: {} is not valid Unicode", shown(value))),
        }
    }

    /// A whole number in plain decimal digits, from 1 to `most`.
    fn count(&self, name: &str, most: u64) -> Result<Option<u64>, UsageError> {
        let Some(text) = self.text(name)? else { return Ok(None) };
        let digits = text.bytes().all(|b| b.is_ascii_digit());
        match text.parse::<u64>() {
            Ok(number) if digits && (1..=most).contains(&number) => Ok(Some(number)),
            Ok(_) | Err(_) => {
                self.error(format!("--{name}: {} is not a whole number from 1 to {most}", shown(OsStr::new(&text))))
            }
        }
    }

    fn millis(&self, name: &str) -> Result<Option<Duration>, UsageError> {
        Ok(self.count(name, MILLIS_MAX)?.map(Duration::from_millis))
    }

    fn word<T: Copy>(&self, name: &str, words: &[(&'static str, T)]) -> Result<Option<T>, UsageError> {
        let Some(text) = self.text(name)? else { return Ok(None) };
        if let Some((_, value)) = words.iter().find(|(word, _)| *word == text) {
            return Ok(Some(*value));
        }
        let known: Vec<&str> = words.iter().map(|(word, _)| *word).collect();
        self.error(format!("--{name}: {} is not one of {}", shown(OsStr::new(&text)), known.join(", ")))
    }

    fn time(&self, name: &str, now: Wall) -> Result<Option<Wall>, UsageError> {
        let Some(text) = self.text(name)? else { return Ok(None) };
        match parse_time(&text, now) {
            Some(time) => Ok(Some(time)),
            None => self.error(format!(
                "--{name}: {} is neither a time like 2026-11-30T10:00:00Z nor an age like 2h",
                shown(OsStr::new(&text))
            )),
        }
    }

    /// A time that ends before it begins is a mistake, not an empty result.
    fn ordered(&self, since: Wall, until: Wall) -> Result<(), UsageError> {
        if since <= until {
            return Ok(());
        }
        let (since, until) = (since.to_rfc3339(), until.to_rfc3339());
        self.error(format!("--since ({since}) lies after --until ({until})"))
    }

    /// The filters on records that were given.
    fn selection(&self, now: Wall) -> Result<Selection, UsageError> {
        let (since, mut until) = (self.time("since", now)?, self.time("until", now)?);
        if let Some(age) = self.text("older-than")? {
            if until.is_some() {
                return self.error("--until and --older-than exclude each other".to_owned());
            }
            let Ok(age) = humantime::parse_duration(&age) else {
                return self.error(format!("--older-than: {} is no age like 30d", shown(OsStr::new(&age))));
            };
            let millis = i64::try_from(age.as_millis()).unwrap_or(i64::MAX);
            until = Some(Wall(now.0.saturating_sub(millis).max(0)));
        }
        if let (Some(since), Some(until)) = (since, until) {
            self.ordered(since, until)?;
        }
        let mut statuses = Vec::new();
        for word in self.text("status")?.as_deref().map(|words| words.split(',')).into_iter().flatten() {
            let word = word.trim();
            match Status::parse(word) {
                Some(status) if !statuses.contains(&status) => statuses.push(status),
                Some(_) => {}
                None => {
                    let (known, word) = (STATUSES.join(", "), shown(OsStr::new(word)));
                    return self.error(format!("--status: {word} is not one of {known}"));
                }
            }
        }
        Ok(Selection {
            statuses,
            tool: self.text("tool")?,
            class: self.word("class", &CLASSES)?,
            server: self.text("server")?,
            caller: self.text("caller")?,
            correlation_id: self.text("correlation-id")?,
            since,
            until,
        })
    }

    /// Each `--set…` in the order given.
    fn sets(&self) -> Result<Vec<SetArg>, UsageError> {
        let mut sets = Vec::new();
        for (name, value) in &self.options {
            let Some((_, source)) = SetSource::ALL.iter().find(|(known, _)| known == name) else { continue };
            // The value may be a secret that was redacted, so it is not repeated.
            let Some(text) = value.to_str() else {
                return self.error(format!("--{name}: the value is not valid Unicode"));
            };
            match text.split_once('=') {
                Some((path, value)) if !path.is_empty() => {
                    sets.push(SetArg { source: *source, path: path.to_owned(), value: value.to_owned() });
                }
                Some(_) => return self.error(format!("--{name}: nothing stands before =; write --{name} path=value")),
                None => return self.error(format!("--{name}: there is no = in the value; write --{name} path=value")),
            }
        }
        Ok(sets)
    }

    /// `10/s` as the time between two.
    fn rate(&self, name: &str) -> Result<Option<Duration>, UsageError> {
        let Some(text) = self.text(name)? else { return Ok(None) };
        let parsed = text.split_once('/').and_then(|(count, unit)| {
            let unit = match unit {
                "s" => Duration::from_secs(1),
                "m" => Duration::from_secs(60),
                "h" => Duration::from_secs(3_600),
                _ => return None,
            };
            let digits = !count.is_empty() && count.bytes().all(|b| b.is_ascii_digit());
            let count: u32 = count.parse().ok().filter(|count| digits && (1..=1_000_000).contains(count))?;
            Some(unit / count)
        });
        match parsed {
            Some(pause) => Ok(Some(pause)),
            None => self.error(format!(
                "--{name}: {} is no rate like 10/s, 100/m or 1000/h (from 1 to 1000000)",
                shown(OsStr::new(&text))
            )),
        }
    }

    /// No word without dashes is left over.
    fn no_positionals(&self) -> Result<(), UsageError> {
        let Some(first) = self.positionals.first() else { return Ok(()) };
        let hint = match self.spec.server {
            ServerPart::Required => "; the server's command stands behind --",
            ServerPart::None | ServerPart::Optional => "",
        };
        self.error(format!("unexpected argument {}{hint}", shown(first)))
    }

    /// The one word without dashes that must be there.
    fn id(&self) -> Result<String, UsageError> {
        match self.positionals.as_slice() {
            [] => self.error("the record's id is missing".to_owned()),
            [id] if id.is_empty() => self.error("the record's id is an empty text".to_owned()),
            [id] => match id.to_str() {
                Some(id) => Ok(id.to_owned()),
                None => self.error(format!("the id {} is not valid Unicode", shown(id))),
            },
            [_, second, ..] => self.error(format!("unexpected argument {}", shown(second))),
        }
    }
}

fn parse_help(args: &[OsString]) -> Result<Command, UsageError> {
    let words: Vec<_> = args.iter().map(|arg| arg.to_string_lossy()).collect();
    if matches!(words.first().map(AsRef::as_ref), Some("--help" | "-h")) {
        return Ok(Command::Help("help"));
    }
    let topic = words.join(" ");
    match COMMANDS.iter().find(|spec| spec.words == topic) {
        Some(spec) => Ok(Command::Help(spec.words)),
        None => {
            let hint = did_you_mean(nearest(&topic, COMMANDS.iter().map(|spec| spec.words)));
            let topic = shown(OsStr::new(&topic));
            Err(UsageError { message: format!("there is no command {topic}{hint}"), topic: "" })
        }
    }
}

/// A command that takes nothing but `--help`.
fn parse_bare(words: &'static str, args: &[OsString], command: Command) -> Result<Command, UsageError> {
    let Some(given) = scan(words, args)? else { return Ok(Command::Help(words)) };
    given.no_positionals()?;
    Ok(command)
}

/// The second word of a command of two; `None` if help was asked for instead.
fn subcommand<'a>(
    first: &'static str,
    args: &'a [OsString],
) -> Result<(Option<&'static str>, &'a [OsString]), UsageError> {
    let known = || COMMANDS.iter().filter_map(|spec| spec.words.strip_prefix(first)?.strip_prefix(' '));
    let list = known().collect::<Vec<_>>().join(", ");
    let Some((second, rest)) = args.split_first() else {
        return Err(UsageError { message: format!("{first} needs one of: {list}"), topic: first });
    };
    let word = second.to_string_lossy();
    if matches!(word.as_ref(), "--help" | "-h") {
        return Ok((None, rest));
    }
    if let Some(word) = known().find(|known| *known == word) {
        return Ok((Some(word), rest));
    }
    if word.starts_with('-') {
        return Err(UsageError {
            message: format!("{first} needs one of {list} before {}", shown(second)),
            topic: first,
        });
    }
    let hint = did_you_mean(nearest(&word, known()));
    Err(UsageError { message: format!("unknown command {first} {}{hint}", shown(second)), topic: first })
}

fn parse_run(args: &[OsString]) -> Result<Command, UsageError> {
    let Some(given) = scan("run", args)? else { return Ok(Command::Help("run")) };
    given.no_positionals()?;
    let overrides = Overrides {
        timeout: given.millis("timeout-ms")?,
        attempts_max: given.count("max-attempts", ATTEMPTS_MAX)?.and_then(|count| u32::try_from(count).ok()),
        identity: given.text("identity")?,
        policy_dry_run: given.has("policy-dry-run"),
    };
    let config = given.path("config")?;
    let faults = given.path("faults")?;
    let remote = given.remote()?;
    if given.server.is_none() && remote.is_none() {
        let usage = "mcprelay run [options] -- <command> [args…], or mcprelay run [options] --http <url>";
        return given.error(format!("the server is missing: {usage}"));
    }
    let server = given.server.unwrap_or_default();
    Ok(Command::Run(RunArgs { config, overrides, faults, server, remote }))
}

fn parse_validate(args: &[OsString]) -> Result<Command, UsageError> {
    let Some(given) = scan("validate", args)? else { return Ok(Command::Help("validate")) };
    given.no_positionals()?;
    Ok(Command::Validate(ValidateArgs { config: given.path("config")? }))
}

fn parse_replay_list(args: &[OsString], now: Wall) -> Result<Command, UsageError> {
    let Some(given) = scan("replay list", args)? else { return Ok(Command::Help("replay list")) };
    given.no_positionals()?;
    // A limit beyond u32 is beyond LIMIT_MAX as well.
    let limit = given.count("limit", u64::MAX)?.map(|limit| u32::try_from(limit).unwrap_or(u32::MAX));
    Ok(Command::Replay(ReplayCommand::List(ReplayListArgs {
        config: given.path("config")?,
        selection: given.selection(now)?,
        limit: limit.unwrap_or(LIMIT_DEFAULT).min(LIMIT_MAX),
        json: given.has("json"),
    })))
}

fn parse_replay_inspect(args: &[OsString]) -> Result<Command, UsageError> {
    let Some(given) = scan("replay inspect", args)? else { return Ok(Command::Help("replay inspect")) };
    let (id, config, json) = (given.id()?, given.path("config")?, given.has("json"));
    Ok(Command::Replay(ReplayCommand::Inspect(ReplayInspectArgs { id, config, json })))
}

/// Options of `replay run` that mean something with `--all` only.
const ONLY_WITH_ALL: [&str; 14] = [
    "status",
    "tool",
    "class",
    "server",
    "caller",
    "correlation-id",
    "since",
    "until",
    "limit",
    "exclude-unknown",
    "plan",
    "max-failures",
    "rate",
    "yes",
];

fn parse_replay_run(args: &[OsString], now: Wall) -> Result<Command, UsageError> {
    let Some(given) = scan("replay run", args)? else { return Ok(Command::Help("replay run")) };
    if given.has("all") {
        return parse_replay_run_all(given, now);
    }
    if let Some(name) = ONLY_WITH_ALL.into_iter().find(|name| given.has(name)) {
        return given.error(format!("--{name} goes with --all only"));
    }
    let id = match given.positionals.as_slice() {
        [] => return given.error("the record's id is missing; --all takes all that wait".to_owned()),
        _ => given.id()?,
    };
    Ok(Command::Replay(ReplayCommand::Run(ReplayRunArgs {
        id,
        config: given.path("config")?,
        dry_run: given.has("dry-run"),
        set: given.sets()?,
        force: given.has("force"),
        force_policy: given.has("force-policy"),
        timeout: given.millis("timeout-ms")?,
        json: given.has("json"),
        remote: given.remote()?,
        server: given.server,
    })))
}

fn parse_replay_run_all(given: Given, now: Wall) -> Result<Command, UsageError> {
    if let Some(id) = given.positionals.first() {
        return given.error(format!("--all and the id {} exclude each other", shown(id)));
    }
    if let Some((name, _)) = SetSource::ALL.iter().find(|(name, _)| given.has(name)) {
        return given.error(format!("--{name} and --all exclude each other: it changes one call"));
    }
    if given.has("plan") && given.has("dry-run") {
        return given.error("--plan and --dry-run exclude each other".to_owned());
    }
    let selection = given.selection(now)?;
    if let Some(status) = selection.statuses.iter().find(|s| matches!(s, Status::Replayed | Status::Discarded)) {
        return given.error(format!("--status: {status} is final; open such calls again with mcprelay replay reopen"));
    }
    Ok(Command::Replay(ReplayCommand::RunAll(ReplayRunAllArgs {
        config: given.path("config")?,
        selection,
        limit: given.count("limit", u64::MAX)?,
        dry_run: given.has("dry-run"),
        plan: given.has("plan"),
        force: given.has("force"),
        force_policy: given.has("force-policy"),
        timeout: given.millis("timeout-ms")?,
        exclude_unknown: given.has("exclude-unknown"),
        max_failures: given.count("max-failures", u64::MAX)?,
        pause: given.rate("rate")?,
        yes: given.has("yes"),
        json: given.has("json"),
        remote: given.remote()?,
        server: given.server,
    })))
}

fn parse_replay_stats(args: &[OsString], now: Wall) -> Result<Command, UsageError> {
    let Some(given) = scan("replay stats", args)? else { return Ok(Command::Help("replay stats")) };
    given.no_positionals()?;
    let (config, selection, json) = (given.path("config")?, given.selection(now)?, given.has("json"));
    Ok(Command::Replay(ReplayCommand::Stats(ReplayStatsArgs { config, selection, json })))
}

fn parse_replay_settle(args: &[OsString]) -> Result<Command, UsageError> {
    let Some(given) = scan("replay settle", args)? else { return Ok(Command::Help("replay settle")) };
    let id = given.id()?;
    let Some(executed) = given.word("executed", &[("yes", true), ("no", false)])? else {
        return given.error("--executed is missing: has the call run, yes or no?".to_owned());
    };
    let (config, note, json) = (given.path("config")?, given.text("note")?, given.has("json"));
    Ok(Command::Replay(ReplayCommand::Settle(ReplaySettleArgs { id, config, executed, note, json })))
}

fn parse_replay_decide(
    words: &'static str,
    decision: Decision,
    args: &[OsString],
    now: Wall,
) -> Result<Command, UsageError> {
    let Some(given) = scan(words, args)? else { return Ok(Command::Help(words)) };
    let selection = given.selection(now)?;
    let mut ids = Vec::new();
    for id in &given.positionals {
        match id.to_str() {
            Some(text) if !text.is_empty() => ids.push(text.to_owned()),
            _ => return given.error(format!("the id {} is empty or not valid Unicode", shown(id))),
        }
    }
    let filtered = selection != Selection::default();
    match (ids.is_empty(), filtered || given.has("all")) {
        (true, false) => return given.error("name records, or filters, or --all".to_owned()),
        (false, true) => return given.error("ids exclude filters and --all".to_owned()),
        (true, true) | (false, false) => {}
    }
    if given.has("all") && (Selection { statuses: Vec::new(), ..selection.clone() }) != Selection::default() {
        return given.error("--all and filters exclude each other, but for --status".to_owned());
    }
    Ok(Command::Replay(ReplayCommand::Decide(ReplayDecideArgs {
        decision,
        config: given.path("config")?,
        ids,
        selection,
        force: given.has("force"),
        note: given.text("note")?,
        yes: given.has("yes"),
        json: given.has("json"),
    })))
}

fn parse_replay_export(args: &[OsString], now: Wall) -> Result<Command, UsageError> {
    let Some(given) = scan("replay export", args)? else { return Ok(Command::Help("replay export")) };
    given.no_positionals()?;
    Ok(Command::Replay(ReplayCommand::Export(ReplayExportArgs {
        config: given.path("config")?,
        selection: given.selection(now)?,
        output: given.path("output")?,
        limit: given.count("limit", u64::MAX)?,
    })))
}

fn parse_replay_import(args: &[OsString]) -> Result<Command, UsageError> {
    let Some(given) = scan("replay import", args)? else { return Ok(Command::Help("replay import")) };
    let file = match given.positionals.as_slice() {
        [] => return given.error("the file is missing; - is standard input".to_owned()),
        [file] if file.is_empty() => return given.error("the file's name is an empty text".to_owned()),
        [file] => (file != "-").then(|| PathBuf::from(file)),
        [_, second, ..] => return given.error(format!("unexpected argument {}", shown(second))),
    };
    let (config, json) = (given.path("config")?, given.has("json"));
    Ok(Command::Replay(ReplayCommand::Import(ReplayImportArgs { config, file, json })))
}

fn parse_replay_reseal(args: &[OsString]) -> Result<Command, UsageError> {
    let Some(given) = scan("replay reseal", args)? else { return Ok(Command::Help("replay reseal")) };
    given.no_positionals()?;
    let (config, json) = (given.path("config")?, given.has("json"));
    Ok(Command::Replay(ReplayCommand::Reseal(ReplayResealArgs { config, json })))
}

fn parse_policy_test(args: &[OsString]) -> Result<Command, UsageError> {
    let Some(given) = scan("policy test", args)? else { return Ok(Command::Help("policy test")) };
    given.no_positionals()?;
    let (tool, id) = (given.text("tool")?, given.text("id")?);
    if tool.is_none() && id.is_none() {
        return given.error("--tool or --id is missing".to_owned());
    }
    Ok(Command::PolicyTest(PolicyTestArgs {
        config: given.path("config")?,
        tool,
        args: given.text("args")?.unwrap_or_else(|| "{}".to_owned()),
        caller: given.text("caller")?,
        id,
        json: given.has("json"),
    }))
}

fn parse_report(args: &[OsString], now: Wall) -> Result<Command, UsageError> {
    const DAY_MS: i64 = 86_400_000;
    let Some(given) = scan("report", args)? else { return Ok(Command::Help("report")) };
    given.no_positionals()?;
    let until = given.time("until", now)?.unwrap_or(now);
    let since = given.time("since", now)?.unwrap_or(Wall(until.0.saturating_sub(DAY_MS)));
    given.ordered(since, until)?;
    let (json, csv) = (given.has("json"), given.has("csv"));
    if json && csv {
        return given.error("--json and --csv exclude each other".to_owned());
    }
    let (html, openmetrics) = (given.path("html")?, given.path("openmetrics")?);
    if html.is_some() && html == openmetrics {
        return given.error("--html and --openmetrics name the same file".to_owned());
    }
    let printed = csv || (!json && html.is_none() && openmetrics.is_none());
    if given.has("no-header") && !printed {
        return given.error("--no-header without a table: give it with --csv or with none of the others".to_owned());
    }
    let mut group_by = Vec::new();
    for word in given.text("group-by")?.as_deref().unwrap_or("caller,server,tool").split(',') {
        let word = word.trim();
        let Some((_, dimension)) = Dimension::ALL.iter().find(|(known, _)| *known == word) else {
            let known = Dimension::ALL.map(|(word, _)| word);
            let hint = did_you_mean(nearest(word, known));
            let known = known.join(", ");
            return given.error(format!("--group-by: {} is not one of {known}{hint}", shown(OsStr::new(word))));
        };
        if group_by.contains(dimension) {
            return given.error(format!("--group-by: {word} is there twice"));
        }
        group_by.push(*dimension);
    }
    Ok(Command::Report(ReportArgs {
        config: given.path("config")?,
        since,
        until,
        tool: given.text("tool")?,
        caller: given.text("caller")?,
        server: given.text("server")?,
        group_by,
        header: !given.has("no-header"),
        csv,
        html,
        openmetrics,
        json,
    }))
}

fn parse_audit_list(args: &[OsString], now: Wall) -> Result<Command, UsageError> {
    let Some(given) = scan("audit list", args)? else { return Ok(Command::Help("audit list")) };
    given.no_positionals()?;
    let words: Vec<(&'static str, &'static str)> =
        AuditKind::ALL.iter().map(|kind| (kind.as_str(), kind.as_str())).collect();
    let (since, until) = (given.time("since", now)?, given.time("until", now)?);
    if let (Some(since), Some(until)) = (since, until) {
        given.ordered(since, until)?;
    }
    let (json, header) = (given.has("json"), !given.has("no-header"));
    if json && !header {
        return given.error("--json has no header that --no-header could leave out".to_owned());
    }
    Ok(Command::Audit(AuditCommand::List(AuditListArgs {
        config: given.path("config")?,
        kind: given.word("kind", &words)?,
        tool: given.text("tool")?,
        caller: given.text("caller")?,
        correlation_id: given.text("correlation-id")?,
        record_id: given.text("record")?,
        since,
        until,
        limit: given.count("limit", u64::MAX)?.unwrap_or(AUDIT_LIMIT_DEFAULT),
        header,
        json,
    })))
}

fn parse_audit_verify(args: &[OsString]) -> Result<Command, UsageError> {
    let Some(given) = scan("audit verify", args)? else { return Ok(Command::Help("audit verify")) };
    given.no_positionals()?;
    let mut anchors = Vec::new();
    for (_, value) in given.options.iter().filter(|(name, _)| *name == "anchor") {
        match value.to_str().and_then(|text| Anchor::parse(text.trim())) {
            Some(anchor) => anchors.push(anchor),
            None => {
                return given.error(format!(
                    "--anchor: {} is not what mcprelay audit head prints: a number, a colon and 64 hex digits",
                    shown(value)
                ));
            }
        }
    }
    let (config, json) = (given.path("config")?, given.has("json"));
    Ok(Command::Audit(AuditCommand::Verify(AuditVerifyArgs { config, anchors, json })))
}

fn parse_audit_head(args: &[OsString]) -> Result<Command, UsageError> {
    let Some(given) = scan("audit head", args)? else { return Ok(Command::Help("audit head")) };
    given.no_positionals()?;
    let (config, json) = (given.path("config")?, given.has("json"));
    Ok(Command::Audit(AuditCommand::Head(AuditHeadArgs { config, json })))
}

fn parse_completions(args: &[OsString]) -> Result<Command, UsageError> {
    let Some(given) = scan("completions", args)? else { return Ok(Command::Help("completions")) };
    let known = SHELLS.map(|(word, _)| word).join(", ");
    match given.positionals.as_slice() {
        [] => given.error(format!("completions needs one of: {known}")),
        [word] => match SHELLS.iter().find(|(shell, _)| word == shell) {
            Some((_, shell)) => Ok(Command::Completions(*shell)),
            None => given.error(format!("there are no completions for {}; there are for {known}", shown(word))),
        },
        [_, second, ..] => given.error(format!("unexpected argument {}", shown(second))),
    }
}

/// A time in RFC 3339 with any offset, or an age counted back from `now`.
fn parse_time(text: &str, now: Wall) -> Option<Wall> {
    if let Ok(age) = humantime::parse_duration(text) {
        let millis = i64::try_from(age.as_millis()).unwrap_or(i64::MAX);
        return Some(Wall(now.0.saturating_sub(millis).max(0)));
    }
    if !text.is_ascii() {
        return None;
    }
    let upper = text.to_ascii_uppercase();
    let (local, offset_min) = match upper.strip_suffix('Z') {
        Some(local) => (local, 0),
        None => {
            let (local, offset) = upper.split_at(upper.len().checked_sub(6)?);
            (local, parse_offset(offset)?)
        }
    };
    let time = humantime::parse_rfc3339(&format!("{local}Z")).ok()?;
    let since_epoch = time.duration_since(std::time::UNIX_EPOCH).ok()?;
    Some(Wall(i64::try_from(since_epoch.as_millis()).ok()? - offset_min * 60_000))
}

/// `+01:30` in minutes.
fn parse_offset(text: &str) -> Option<i64> {
    let sign = match text.as_bytes().first()? {
        b'+' => 1,
        b'-' => -1,
        _ => return None,
    };
    let (hours, minutes) = text[1..].split_once(':')?;
    let part = |digits: &str, most: i64| -> Option<i64> {
        let fits = digits.len() == 2 && digits.bytes().all(|b| b.is_ascii_digit());
        digits.parse().ok().filter(|number| fits && *number <= most)
    };
    Some(sign * (part(hours, 23)? * 60 + part(minutes, 59)?))
}

#[cfg(test)]
mod tests;
