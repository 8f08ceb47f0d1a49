//! `mcprelay replay run <id>`: one stored call again, once.
//!
//! The order is the promise: nothing is sent before the record is claimed and the claim says so; the outcome is on disk
//! before the user hears of it; whoever dies in between leaves a claim that tells how far it came.

use std::ffi::OsString;
use std::io::Write;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use super::arguments::{Marked, marked, parse_path, set};
use super::guards::{Earlier, Facts, Refusal, earlier, of_queue, refusals};
use super::outcome::Outcome;
use crate::cli::ReplayRunArgs;
use crate::clock::{Clock, Now};
use crate::commands::records::{self, Found, queue_place};
use crate::commands::run::store_settings;
use crate::commands::text::{one_line, written};
use crate::config::Settings;
use crate::exit::ExitStatus;
use crate::policy::Verdict;
use crate::ports::log::{Line, Log};
use crate::random;
use crate::record::hash::arguments_hash;
use crate::record::ids::Ulids;
use crate::record::json_out::{array, object};
use crate::record::redact::{MARKER, Masked, Redactor};
use crate::record::render::log_line;
use crate::record::stored::{Record, stored_key};
use crate::record::{AuditKind, AuditRow, CallError, CallEvent, Decision, Transport};
use crate::retry::Effects;
use crate::session::{Limits, ServerCommand, Session, SessionError, ToolList};
use crate::store::queue::{Queue, QueueError, Resolution};
use crate::store::{Command, QUEUE_BUSY, Report, Store};
use crate::wire::json::{Json, Kind};
use crate::wire::splice::quote;

/// A claim lives this long after its owner has vanished.
const LEASE: Duration = Duration::from_secs(60);

/// How often a claim is renewed while its owner waits for the server.
const RENEW_EVERY: Duration = Duration::from_secs(15);

/// How long our last lines may take to leave.
const LOG_WAIT: Duration = Duration::from_millis(500);

/// The time limit of one page of `tools/list`.
const LIST_TIMEOUT: Duration = Duration::from_secs(30);

/// One call ready to be made, or the reasons not to.
struct Plan {
    /// With every `--set` in it.
    arguments: Option<Vec<u8>>,
    /// What is secret in the arguments.
    masked: Masked,
    marked: Vec<Marked>,
    /// In the form that is stored.
    key: Option<String>,
    /// Sent again in `_meta`; `None` also if only the key's hash is known.
    key_to_send: Option<String>,
    hash: String,
    verdict: Verdict,
    /// What to start; `Err` if the stored one cannot be started.
    server: Result<ServerCommand, Refusal>,
    timeout: Duration,
}

/// The command's surroundings.
struct Context<'a> {
    args: &'a ReplayRunArgs,
    settings: Settings,
    redactor: Redactor,
    clock: Clock,
}

impl Context<'_> {
    fn now(&self) -> Now {
        self.clock.now()
    }

    fn limits(&self) -> Limits {
        let shutdown = &self.settings.shutdown;
        Limits {
            frame_bytes_max: self.settings.frame_max_bytes,
            stdin_grace: shutdown.stdin_grace,
            term_grace: shutdown.term_grace,
            ..Limits::default()
        }
    }
}

pub(super) fn run(args: &ReplayRunArgs, out: &mut dyn Write, err: &mut dyn Write) -> ExitStatus {
    let mut paths = Vec::new();
    for (path, _) in &args.set {
        match parse_path(path) {
            Ok(path) => paths.push(path),
            Err(error) => {
                let _ = writeln!(err, "mcprelay: --set {path}: {error}\nmcprelay: see mcprelay replay run --help");
                return ExitStatus::Usage;
            }
        }
    }
    let settings = match records::load(args.config.as_deref(), err) {
        Ok(settings) => settings,
        Err(status) => return status,
    };
    let redactor = Redactor::new(&settings.redaction);
    let context = Context { args, settings, redactor, clock: Clock::start() };
    let found = match records::find(&queue_place(&context.settings), &args.id) {
        Ok(found) => found,
        Err(error) => return super::fail(args.json, error.kind(), &error.to_string(), out, err),
    };
    match replay(&context, found, &paths, out, err) {
        Ok(status) => status,
        Err(refusal) => refused(&context, &refusal, out, err),
    }
}

/// A refusal is told to people on `err`, and with `--json` on `out` as `{id, error}`.
fn refused(context: &Context<'_>, refusal: &Refusal, out: &mut dyn Write, err: &mut dyn Write) -> ExitStatus {
    let id = &context.args.id;
    let _ = writeln!(err, "mcprelay: replay refused: {id}: {}", one_line(&refusal.message));
    if context.args.json {
        let document = object(|out| {
            out.text("id", id).object("error", |out| {
                out.text("kind", refusal.kind).text("message", &refusal.message);
            });
        });
        let _ = written(writeln!(out, "{document}"), err);
    }
    ExitStatus::Failure
}

fn replay(
    context: &Context<'_>,
    mut found: Found,
    paths: &[Vec<String>],
    out: &mut dyn Write,
    err: &mut dyn Write,
) -> Result<ExitStatus, Refusal> {
    let plan = plan(context, &found.record, paths)?;
    let seen = look_back(context, &found, &plan)?;
    let mut against = against(context, &found.record, &plan, seen.as_ref());
    let format = context.redactor.clone();
    let log = Log::start(std::io::stderr(), move |event| log_line(event, &format))
        .map_err(|error| Refusal::new("system", format!("cannot start a thread: {error}")))?;
    if context.args.dry_run {
        let status = dry_run(context, &found.record, &plan, &against, &log, out, err);
        log.flush(LOG_WAIT);
        return Ok(status);
    }
    let mut books = Books::open(context, &log)?;
    let server = match (against.is_empty(), plan.server.clone()) {
        (true, Ok(server)) => server,
        (_, server) => {
            against.extend(server.err());
            if against[0].kind == "policy" {
                books.denied(context, &found.record, &plan);
            }
            books.close(&log);
            return Err(against.swap_remove(0));
        }
    };
    let result = run_claimed(context, &mut found, &plan, server, &mut books, &log);
    books.close(&log);
    Ok(report(context, &plan, &result?, out, err))
}

/// What came of a call that was sent.
struct Done {
    outcome: Outcome,
    /// Why it is not in the queue.
    unrecorded: Option<QueueError>,
}

/// Claims the record, calls, and writes the outcome down.
fn run_claimed(
    context: &Context<'_>,
    found: &mut Found,
    plan: &Plan,
    server: ServerCommand,
    books: &mut Books,
    log: &Log,
) -> Result<Done, Refusal> {
    let owner = owner();
    let id = found.record.id.clone();
    let refuse = |error: QueueError| of_queue(&error);
    let force = context.args.force;
    found.record = found.queue.claim(&id, &owner, LEASE, context.now().wall, force).map_err(refuse)?;
    let release = |queue: &mut Queue, refusal: Refusal| {
        // A claim that cannot be given back ends by itself.
        let stuck = queue.release(&id, &owner).err().map(|error| format!(" ({error}; it is free again in a minute)"));
        Err(Refusal { message: refusal.message + &stuck.unwrap_or_default(), ..refusal })
    };
    // Somebody may have replayed another record of the same call since the first look.
    let seen = match look_back(context, found, plan) {
        Ok(seen) => seen,
        Err(refusal) => return release(&mut found.queue, refusal),
    };
    let again = against(context, &Record { claim: None, ..found.record.clone() }, plan, seen.as_ref());
    if let Some(refusal) = again.into_iter().find(|refusal| matches!(refusal.kind, "duplicate" | "key_reused")) {
        return release(&mut found.queue, refusal);
    }
    let mut session = match Session::start(server, context.limits(), context.clock, log) {
        Ok(session) => session,
        Err(error) => {
            return release(&mut found.queue, Refusal::new("unreachable", format!("{error}; nothing was sent")));
        }
    };
    if let Err(error) = found.queue.renew(&id, &owner, LEASE, context.now().wall).and_then(|()| {
        keep_claim(&mut session, found.queue.path().to_owned(), id.clone(), owner.clone(), context.clock);
        found.queue.mark_sent(&id, &owner, context.now().wall)
    }) {
        session.end();
        return release(&mut found.queue, of_queue(&error));
    }
    let began = context.now();
    let mut meta =
        vec![("mcprelay", object(|out| _ = out.text("correlation_id", &found.record.correlation_id)).into_bytes())];
    meta.extend(plan.key_to_send.as_ref().map(|key| ("idempotencyKey", quote(key))));
    let called = session.call(&found.record.tool, plan.arguments.as_deref(), &meta, plan.timeout);
    let request_bytes = session.request_bytes();
    let ended = context.now();
    let millis = u64::try_from(ended.mono.saturating_since(began.mono).as_millis()).unwrap_or(u64::MAX);
    let outcome = match Outcome::of(called) {
        Ok(outcome) => outcome,
        Err(text) => {
            session.end();
            return release(&mut found.queue, Refusal::new("unreachable", format!("{text}; nothing was sent")));
        }
    };
    let (redactor, masked) = (&context.redactor, &plan.masked);
    let outcome_json = outcome.to_json(redactor, masked);
    let resolution = Resolution {
        status: outcome.status(),
        executed: Some(outcome.executed.max(found.record.executed)),
        outcome: outcome_json.clone(),
        attempt: outcome.attempt_json(&began.wall.to_rfc3339(), &owner, millis, redactor, masked),
        at: ended.wall,
        success: outcome.ok(),
    };
    let unrecorded = found.queue.resolve(&id, &owner, &resolution).err();
    books.replayed(&found.record, &outcome, outcome_json, plan, ended, millis, request_bytes, log);
    // Only now: a server that is slow to end must not keep the outcome from the disk.
    session.end();
    Ok(Done { outcome, unrecorded })
}

/// Renews the claim while the session waits. If that fails, resolving the record will say so.
fn keep_claim(session: &mut Session, path: PathBuf, id: String, owner: String, clock: Clock) {
    let work = move || {
        let renewed = Queue::open_existing(&path, QUEUE_BUSY)
            .and_then(|mut queue| queue.renew(&id, &owner, LEASE, clock.now().wall));
        drop(renewed);
    };
    session.while_waiting(RENEW_EVERY, Box::new(work));
}

/// Who works on the record: told to others who want it, and the token that ends the claim.
fn owner() -> String {
    let user = std::env::var("USER").or_else(|_| std::env::var("LOGNAME"));
    let user = user.unwrap_or_else(|_| format!("user {}", rustix::process::getuid().as_raw()));
    let token = random::u64();
    format!("{user}, process {}, {token:016x}", std::process::id())
}

fn plan(context: &Context<'_>, record: &Record, paths: &[Vec<String>]) -> Result<Plan, Refusal> {
    let mut arguments = record.arguments.as_ref().map(|text| text.clone().into_bytes());
    for ((name, value), path) in context.args.set.iter().zip(paths) {
        let text = arguments.get_or_insert_with(|| b"{}".to_vec());
        set(text, path, &quote(value)).map_err(|error| Refusal::new("set", format!("--set {name}: {error}")))?;
    }
    let text = arguments.as_deref().unwrap_or(b"{}");
    let marked = marked(text, paths);
    let masked = context.redactor.collect_json(text);
    let given_key = (!paths.is_empty()).then(|| argument_key(text)).flatten();
    let key = match &given_key {
        Some(key) => Some(stored_key(key, &context.redactor, &masked)),
        None => record.idempotency_key.clone(),
    };
    let key_to_send = given_key.or_else(|| record.idempotency_key.clone().filter(|key| !is_hashed(key)));
    let json = arguments.as_deref().map(Json::parse).transpose();
    let json = json.map_err(|error| Refusal::new("store", format!("the stored arguments are no JSON: {error}")))?;
    let verdict = context.settings.policy.decide(&record.tool, &record.caller.identity, json);
    let tool = context.settings.reliability.for_tool(&record.tool);
    Ok(Plan {
        hash: arguments_hash(arguments.as_deref()),
        masked,
        marked,
        key,
        key_to_send,
        verdict,
        server: server(context.args.server.as_ref(), record),
        timeout: context.args.timeout.unwrap_or(tool.timeout),
        arguments,
    })
}

/// The key in the arguments, as the relay reads it.
fn argument_key(arguments: &[u8]) -> Option<String> {
    let arguments = Json::parse(arguments).ok()?;
    let keys = ["idempotency_key", "idempotencyKey"].into_iter().filter_map(|name| arguments.member(name));
    keys.into_iter().find_map(|key| match key.kind() {
        Kind::String => key.as_str().map(Into::into),
        Kind::Number => Some(String::from_utf8_lossy(key.text()).into_owned()),
        Kind::Object | Kind::Array | Kind::True | Kind::False | Kind::Null => None,
    })
}

/// Only the hash of the key was stored, see [`stored_key`].
fn is_hashed(key: &str) -> bool {
    let hex = key.strip_prefix("sha256:").unwrap_or_default();
    hex.len() == 64 && hex.bytes().all(|byte| byte.is_ascii_hexdigit())
}

/// What to start for the record.
fn server(given: Option<&Vec<OsString>>, record: &Record) -> Result<ServerCommand, Refusal> {
    if let Some(argv) = given {
        return Ok(ServerCommand { argv: argv.clone(), cwd: None });
    }
    let stored = record.command();
    let advice = format!("name the server: mcprelay replay run {} -- <command> [args…]", record.id);
    let refuse = |kind, text: String| Err(Refusal::new(kind, format!("{text}; {advice}")));
    if record.server.transport == Transport::Http {
        return refuse("server_http", format!("its server is remote ({stored}), which is not yet available"));
    }
    if record.server.argv.iter().any(|arg| arg.contains(MARKER)) {
        return refuse("server_redacted", format!("its server's command was redacted ({stored})"));
    }
    if record.server.argv.is_empty() {
        return refuse("server_unknown", "its server's command is not known".to_owned());
    }
    let cwd = record.server.cwd.as_ref().map(PathBuf::from);
    if let Some(cwd) = cwd.as_ref().filter(|cwd| !cwd.is_dir()) {
        let text = format!("its server ran in {}, which is no directory any more", cwd.display());
        return refuse("server_directory", text);
    }
    Ok(ServerCommand { argv: record.server.argv.iter().map(OsString::from).collect(), cwd })
}

/// The earlier execution that the record repeats.
fn look_back(context: &Context<'_>, found: &Found, plan: &Plan) -> Result<Option<Earlier>, Refusal> {
    let Found { queue, record } = found;
    let (server, tool) = (&record.server.name, &record.tool);
    // Those that were sent when it failed, and those with `--set`, which may restore what redaction took out.
    let hashes = [record.arguments_hash.as_str(), plan.hash.as_str()];
    let row = match &plan.key {
        Some(key) => queue.last_execution(server, tool, key),
        None => queue.last_execution_by_hash(server, tool, hashes[0]).and_then(|row| match row {
            None => queue.last_execution_by_hash(server, tool, hashes[1]),
            row => Ok(row),
        }),
    };
    let row = row.map_err(|error| of_queue(&error))?;
    Ok(earlier(row, &hashes, context.settings.reliability.dedup_window, context.now().wall))
}

fn against(context: &Context<'_>, record: &Record, plan: &Plan, earlier: Option<&Earlier>) -> Vec<Refusal> {
    let Plan { marked, verdict, .. } = plan;
    let ReplayRunArgs { force, force_policy, .. } = *context.args;
    refusals(&Facts { record, marked, earlier, verdict, now: context.now().wall, force, force_policy })
}

/// The audit trail, the call event and the log line.
struct Books {
    store: Store,
    ulids: Ulids,
}

impl Books {
    fn open(context: &Context<'_>, log: &Log) -> Result<Books, Refusal> {
        let settings = store_settings(&context.settings, context.redactor.clone());
        let log = log.clone();
        let report = move |said| {
            if let Report::Trouble(text) = said {
                log.diagnose(format!("WARNING: {text}"));
            }
        };
        let store = Store::start(settings, Box::new(report))
            .map_err(|error| Refusal::new("system", format!("cannot start a thread: {error}")))?;
        Ok(Books { store, ulids: Ulids::new() })
    }

    fn ulid(&mut self, now: Now) -> String {
        self.ulids.next(now.wall, random::u64)
    }

    fn audit(&mut self, record: &Record, kind: AuditKind, detail: String, now: Now) {
        let row = AuditRow {
            id: self.ulid(now),
            at: now.wall,
            kind,
            correlation_id: record.correlation_id.clone(),
            record_id: Some(record.id.clone()),
            caller: record.caller.identity.clone(),
            tool: record.tool.clone(),
            detail: Some(detail),
        };
        // Its trouble is reported by the store itself.
        drop(self.store.submit(Command::Audit(row)));
    }

    /// The policy refused the replay.
    fn denied(&mut self, context: &Context<'_>, record: &Record, plan: &Plan) {
        let reason = context.redactor.redact_text(&plan.verdict.reason, &plan.masked);
        let detail = object(|out| {
            out.text("source", "replay").text("action", "deny");
            match plan.verdict.rule {
                Some(rule) => out.plain("rule", rule),
                None => out.null("rule"),
            };
            out.text("reason", &reason);
        });
        self.audit(record, AuditKind::Denied, detail, context.now());
    }

    #[expect(clippy::too_many_arguments, reason = "one call, with all that is written down about it")]
    fn replayed(
        &mut self,
        record: &Record,
        outcome: &Outcome,
        outcome_json: String,
        plan: &Plan,
        ended: Now,
        millis: u64,
        request_bytes: u64,
        log: &Log,
    ) {
        self.audit(record, AuditKind::Replayed, outcome_json, ended);
        let error = outcome.failure.as_ref().map(|failed| CallError {
            message: failed.message.clone(),
            code: failed.code,
            class: Some(failed.class),
            executed: outcome.executed,
            arguments: plan.arguments.clone(),
        });
        let event = CallEvent {
            id: self.ulid(ended),
            at: ended.wall,
            correlation_id: record.correlation_id.clone(),
            trace: Vec::new(),
            caller: record.caller.clone(),
            server: record.server.name.clone(),
            tool: record.tool.clone(),
            decision: if outcome.ok() { Decision::Allowed } else { Decision::Failed },
            latency_ms: millis,
            request_bytes,
            response_bytes: outcome.result.as_ref().map_or(0, |result| result.len() as u64),
            attempts: 1,
            error,
            dead_letter_id: Some(record.id.clone()),
            enforced: true,
        };
        let event = Arc::new(event);
        log.line(Line::Call(Arc::clone(&event)));
        drop(self.store.submit(Command::Event(event)));
    }

    fn close(self, log: &Log) {
        self.store.finish();
        log.flush(LOG_WAIT);
    }
}

/// Tells the user what came of it.
fn report(context: &Context<'_>, plan: &Plan, done: &Done, out: &mut dyn Write, err: &mut dyn Write) -> ExitStatus {
    let id = &context.args.id;
    let Done { outcome, unrecorded } = done;
    let (redactor, masked) = (&context.redactor, &plan.masked);
    let outcome_json = outcome.to_json(redactor, masked);
    if let Some(error) = unrecorded {
        let _ = writeln!(err, "mcprelay: WARNING: the call was made, but its outcome is not in the queue: {error}");
    }
    if let Some(failed) = &outcome.failure {
        let message = one_line(&redactor.redact_text(&failed.message, masked));
        let _ = writeln!(err, "mcprelay: replay failed: {id}: {message}");
    }
    let text = if context.args.json {
        object(|out| {
            out.text("id", id).text("status", outcome.status().as_str()).raw("outcome", &outcome_json);
            match unrecorded {
                None => out.null("error"),
                Some(error) => out.object("error", |out| {
                    out.text("kind", "not_recorded").text("message", &error.to_string());
                }),
            };
        }) + "\n"
    } else if outcome.ok() {
        let result = outcome.result.as_deref().map(|result| redactor.redact_json_with(result, masked));
        let result = one_line(&String::from_utf8_lossy(&result.unwrap_or_default()));
        format!("replay ok: {id}\nresult: {result}\n")
    } else {
        String::new()
    };
    let status = written(out.write_all(text.as_bytes()).and_then(|()| out.flush()), err);
    if outcome.ok() && unrecorded.is_none() { status } else { ExitStatus::Failure }
}

/// Shows what would be sent, and whether the server has the tool; ends as the real run would.
fn dry_run(
    context: &Context<'_>,
    record: &Record,
    plan: &Plan,
    against: &[Refusal],
    log: &Log,
    out: &mut dyn Write,
    err: &mut dyn Write,
) -> ExitStatus {
    let mut against = against.to_vec();
    let mut listed: Option<ToolList> = None;
    match &plan.server {
        Err(refusal) => against.push(refusal.clone()),
        Ok(server) => match tools(context, server.clone(), log) {
            Err(error) => against.push(Refusal::new("unreachable", error.to_string())),
            Ok(list) => {
                if !list.tools.iter().any(|tool| tool.name == record.tool) {
                    let cut = list.cut.as_ref().map(|cut| format!(" (the list may lack some: {cut})"));
                    let text = format!("the server has no tool {:?}{}", record.tool, cut.unwrap_or_default());
                    against.push(Refusal::new("tool_missing", text));
                }
                listed = Some(list);
            }
        },
    }
    log.flush(LOG_WAIT);
    let present = listed.as_ref().map(|list| list.tools.iter().any(|tool| tool.name == record.tool));
    let count = listed.as_ref().map(|list| list.tools.len());
    let (redactor, masked) = (&context.redactor, &plan.masked);
    let arguments = plan.arguments.as_deref().map(|text| redactor.redact_json_with(text, masked));
    let arguments = arguments.map_or("null".to_owned(), |text| String::from_utf8_lossy(&text).into_owned());
    let command = match &context.args.server {
        Some(argv) => {
            let argv: Vec<String> = argv.iter().map(|arg| arg.to_string_lossy().into_owned()).collect();
            crate::record::shell::command_line(&redactor.redact_argv(&argv))
        }
        None => record.command(),
    };
    let effects = context.settings.reliability.for_tool(&record.tool).effects;
    let hint =
        (effects == Some(Effects::Read)).then_some("the tool only reads (effects: read); replaying it changes nothing");
    let status = if against.is_empty() { ExitStatus::Success } else { ExitStatus::Failure };
    for refusal in &against {
        let _ = writeln!(err, "mcprelay: would be refused: {}: {}", record.id, one_line(&refusal.message));
    }
    let text = if context.args.json {
        object(|out| {
            out.text("id", &record.id).plain("dry_run", true).text("tool", &record.tool).text("server", &command);
            match present {
                Some(present) => out.plain("tool_present", present),
                None => out.null("tool_present"),
            };
            out.raw("arguments", &arguments);
            let refusals = against
                .iter()
                .map(|refusal| object(|out| _ = out.text("kind", refusal.kind).text("message", &refusal.message)));
            out.raw("refusals", &array(refusals));
            match hint {
                Some(hint) => out.text("hint", hint),
                None => out.null("hint"),
            };
        }) + "\n"
    } else {
        let line = |label: &str, value: &str| format!("{label:<12} {}\n", one_line(value));
        let mut text = [
            line("record:", &record.id),
            line("tool:", &record.tool),
            line("class:", &format!("{} after {} attempts", record.class, record.attempts)),
            line("executed:", record.executed.as_str()),
            line("server:", &command),
            line("arguments:", &arguments),
            line("dry-run:", "no tools/call was made; the record is as it was"),
        ]
        .concat();
        if let (Some(true), Some(count)) = (present, count) {
            text += &line("tool check:", &format!("present, one of {count}"));
        }
        text += &against.iter().map(|refusal| line("refused:", &refusal.message)).collect::<String>();
        text += &hint.map(|hint| line("hint:", hint)).unwrap_or_default();
        text
    };
    match written(out.write_all(text.as_bytes()).and_then(|()| out.flush()), err) {
        ExitStatus::Success => status,
        failed => failed,
    }
}

fn tools(context: &Context<'_>, server: ServerCommand, log: &Log) -> Result<ToolList, SessionError> {
    let mut session = Session::start(server, context.limits(), context.clock, log)?;
    let list = session.tools(LIST_TIMEOUT);
    session.end();
    list
}
