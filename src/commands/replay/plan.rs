//! One call ready to be made: its arguments, its server, and what speaks against it.

use std::ffi::OsString;
use std::path::PathBuf;
use std::time::Duration;

use super::arguments::{Marked, marked, set};
use super::context::{Context, Options};
use super::guards::{Earlier, Facts, Refusal, earlier, of_queue, refusals};
use crate::cli::Remote;
use crate::config::Url;
use crate::policy::Verdict;
use crate::ports::http::RemoteServer;
use crate::ports::link::Reach;
use crate::record::hash::arguments_hash;
use crate::record::redact::{MARKER, Masked};
use crate::record::stored::{Record, stored_key};
use crate::record::{Executed, Transport};
use crate::retry::Reliability;
use crate::store::queue::Queue;
use crate::wire::json::{Json, Kind};

/// One call ready to be made, or the reasons not to.
pub(super) struct Plan {
    /// With every `--set` in it.
    pub(super) arguments: Option<Vec<u8>>,
    /// What is secret in the arguments.
    pub(super) masked: Masked,
    pub(super) marked: Vec<Marked>,
    /// In the form that is stored.
    key: Option<String>,
    /// Sent again in `_meta`; `None` also if only the key's hash is known.
    pub(super) key_to_send: Option<String>,
    hash: String,
    pub(super) verdict: Verdict,
    /// What to start or reach; `Err` if the stored one cannot be.
    pub(super) server: Result<Reach, Refusal>,
    pub(super) timeout: Duration,
    /// The arguments are the sealed original.
    pub(super) unsealed: bool,
    /// Why the sealed original, if there is one, is not used.
    pub(super) seal_problem: Option<String>,
}

/// Makes the plan.
///
/// # Errors
/// If a `--set` does not fit, or the stored arguments are damaged.
pub(super) fn plan(context: &Context, record: &Record) -> Result<Plan, Refusal> {
    let (mut unsealed, mut seal_problem) = (false, None);
    let mut arguments = record.arguments.as_ref().map(|text| text.clone().into_bytes());
    if let Some(sealed) = &record.sealed {
        match context.keys.open(&record.id, sealed) {
            Ok(original) => (arguments, unsealed) = (Some(original), true),
            Err(error) if context.keys.is_empty() => seal_problem = Some(format!("no key is at hand ({error})")),
            Err(error) => seal_problem = Some(error.to_string()),
        }
    }
    let changes = &context.options.changes;
    for change in changes {
        let text = arguments.get_or_insert_with(|| b"{}".to_vec());
        set(text, &change.path, &change.value)
            .map_err(|error| Refusal::new("set", format!("{}: {error}", change.name)))?;
    }
    let text = arguments.as_deref().unwrap_or(b"{}");
    let paths: Vec<Vec<String>> = changes.iter().map(|change| change.path.clone()).collect();
    // In an original a marker is what the client sent.
    let marked = if unsealed { Vec::new() } else { marked(text, &paths) };
    let masked = context.redactor.collect_json(text);
    let given_key = (unsealed || !paths.is_empty()).then(|| argument_key(text)).flatten();
    let key = match &given_key {
        // The key in the arguments is second to the one in `_meta`, which is stored as it was.
        Some(key) if !unsealed || record.idempotency_key.as_deref().is_none_or(is_hashed) => {
            Some(stored_key(key, &context.redactor, &masked))
        }
        _ => record.idempotency_key.clone(),
    };
    let stored_to_send = record.idempotency_key.clone().filter(|key| !is_hashed(key));
    let key_to_send = if unsealed { stored_to_send.or(given_key) } else { given_key.or(stored_to_send) };
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
        server: server(context, record),
        timeout: context.options.timeout.unwrap_or(tool.timeout),
        arguments,
        unsealed,
        seal_problem,
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

/// What to start or reach for the record.
fn server(context: &Context, record: &Record) -> Result<Reach, Refusal> {
    if let Some(argv) = &context.options.server {
        return Ok(Reach::Command { argv: argv.clone(), cwd: None });
    }
    let remote = |url, sse, is_own| {
        let settings = context.settings.http.clone();
        Reach::Remote(Box::new(RemoteServer { url, sse, settings, is_own }))
    };
    if let Some(Remote { url, sse }) = &context.options.remote {
        return Ok(remote(url.clone(), *sse, true));
    }
    let stored = record.command();
    let is_remote = record.server.transport == Transport::Http;
    let form = if is_remote { "--http <url>" } else { "-- <command> [args…]" };
    let advice = format!("name the server: mcprelay replay run {} {form}", record.id);
    let refuse = |kind, text: String| Err(Refusal::new(kind, format!("{text}; {advice}")));
    if record.server.argv.iter().any(|arg| arg.contains(MARKER)) {
        return refuse("server_redacted", format!("its server's command was redacted ({stored})"));
    }
    if record.server.argv.is_empty() {
        return refuse("server_unknown", "its server's command is not known".to_owned());
    }
    if is_remote {
        return match record.server.argv.first().map(|url| Url::parse(url)) {
            // Whose URL the flat form of the settings belongs to is known of `--http` alone.
            Some(Ok(url)) => Ok(remote(url, false, false)),
            Some(Err(_)) | None => refuse("server_unknown", format!("its server's URL is not one ({stored})")),
        };
    }
    let cwd = record.server.cwd.as_ref().map(PathBuf::from);
    if let Some(cwd) = cwd.as_ref().filter(|cwd| !cwd.is_dir()) {
        let text = format!("its server ran in {}, which is no directory any more", cwd.display());
        return refuse("server_directory", text);
    }
    Ok(Reach::Command { argv: record.server.argv.iter().map(OsString::from).collect(), cwd })
}

/// The earlier execution that the record repeats.
///
/// # Errors
/// If the queue cannot be read.
pub(super) fn look_back(
    context: &Context,
    queue: &Queue,
    record: &Record,
    plan: &Plan,
) -> Result<Option<Earlier>, Refusal> {
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

/// What speaks against the call, the first first.
pub(super) fn against(context: &Context, record: &Record, plan: &Plan, earlier: Option<&Earlier>) -> Vec<Refusal> {
    let Plan { marked, verdict, seal_problem, .. } = plan;
    let Options { force, force_policy, .. } = context.options;
    let facts = Facts {
        record,
        marked,
        seal_problem: seal_problem.as_deref(),
        earlier,
        verdict,
        now: context.now().wall,
        force,
        force_policy,
    };
    refusals(&facts)
}

/// Whether the call may have run and a repetition may do harm.
pub(super) fn is_unknown(context: &Context, tool: &str, executed: Executed, idempotent: bool) -> bool {
    executed == Executed::Maybe && may_harm(&context.settings.reliability, tool, idempotent)
}

/// Whether a repetition may do harm: neither the configuration of then nor that of today calls the tool idempotent.
pub(super) fn may_harm(reliability: &Reliability, tool: &str, idempotent: bool) -> bool {
    !idempotent && !reliability.idempotent(&reliability.for_tool(tool), false)
}
