//! The settings a session runs with: the file's values over the defaults, with every error found.

use std::fmt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use super::place::{Place, Step};
use super::problem::{Problem, Warning};
use super::reader::{Findings, Section, Show, describe, text};
use super::resilience;
use super::tree::{FILE_BYTES_MAX, SyntaxError, Tree};
use crate::breaker::CircuitSettings;
use crate::faults::Faults;
use crate::glob::Glob;
use crate::policy::{Action, MATCHERS, Policy, RuleProblem, RuleSource, startup_warnings};
use crate::ports::http::settings::HttpSettings;
use crate::restart::{HealthSettings, RestartSettings};
use crate::retry::{Effects, Reliability, RetryPlan, ToolSettings};
use crate::suggest::nearest;

/// The longest time in milliseconds that can be configured: a year.
pub const MILLIS_MAX: u64 = 31_536_000_000;

/// The most attempts that can be configured.
pub const ATTEMPTS_MAX: u64 = 1_000_000;

/// What is redacted unless `redaction.patterns` says otherwise.
pub const REDACTION_DEFAULT: [&str; 6] = ["api_key", "token", "password", "authorization", "secret", "credential"];

/// All settings. Plain data, checked.
#[derive(Clone, Debug)]
pub struct Settings {
    /// Timeouts, retries, what is idempotent.
    pub reliability: Reliability,
    /// The compiled rules.
    pub policy: Policy,
    /// Judge calls, never refuse one (`--policy-dry-run`).
    pub policy_dry_run: bool,
    /// Who the callers are.
    pub identity: IdentitySettings,
    /// Where dead letters go.
    pub queue: QueueSettings,
    /// Where the history goes.
    pub store: StoreSettings,
    /// The flight recorder.
    pub recorder: RecorderSettings,
    /// Names whose values are not stored or logged.
    pub redaction: Vec<String>,
    /// Frames above this many bytes are refused.
    pub frame_max_bytes: usize,
    /// Whether and how a server that ended is started again.
    pub restart: RestartSettings,
    /// How a hang is found out; `None` if it is not.
    pub health: Option<HealthSettings>,
    /// How remote servers are reached.
    pub http: HttpSettings,
    /// Faults on purpose; `None` almost always.
    pub faults: Option<Faults>,
    /// How the session ends.
    pub shutdown: ShutdownSettings,
    /// The file that was read; `None` if there was none.
    pub source: Option<PathBuf>,
}

/// `identity`.
#[derive(Clone, PartialEq, Eq)]
pub struct IdentitySettings {
    /// The caller of a call without a credential.
    pub profile: String,
    /// Key and identity. No key is empty and no two are equal.
    pub keys: Vec<(String, String)>,
}

impl fmt::Debug for IdentitySettings {
    /// Without the keys.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let identities: Vec<&String> = self.keys.iter().map(|(_, identity)| identity).collect();
        f.debug_struct("IdentitySettings").field("profile", &self.profile).field("keys_of", &identities).finish()
    }
}

/// `queue`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct QueueSettings {
    /// The database, relative to the working directory.
    pub path: PathBuf,
    /// How long a client's error waits for its dead letter to be on disk.
    pub capture_timeout: Duration,
    /// After so many failed replays a record is parked; 0 parks none.
    pub max_redrives: u32,
    /// Whether a bulk redrive takes calls that may have run and whose tool is not idempotent.
    pub redrive_unknown: bool,
    /// Where the keys are that seal and open originals.
    pub seal: SealSettings,
}

/// `queue.seal`: places of keys, not keys.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SealSettings {
    /// The key that seals; `None` seals nothing.
    pub current: Option<KeyPlace>,
    /// Keys that only open.
    pub previous: Vec<KeyPlace>,
}

/// Where a key is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum KeyPlace {
    /// In this environment variable.
    Env(String),
    /// In this file, relative to the working directory.
    File(PathBuf),
}

impl fmt::Display for KeyPlace {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            KeyPlace::Env(name) => write!(f, "the environment variable {name}"),
            KeyPlace::File(path) => write!(f, "the file {}", path.display()),
        }
    }
}

/// `store`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StoreSettings {
    /// The database, relative to the working directory.
    pub path: PathBuf,
    /// Call events older than this are removed; 0 keeps all.
    pub retention_days: u32,
}

/// `recorder`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RecorderSettings {
    /// A flight file of this many bytes is written anew with the open calls alone.
    pub bytes_max: u64,
}

/// `shutdown`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ShutdownSettings {
    /// From closing the upstream's standard input to SIGTERM.
    pub stdin_grace: Duration,
    /// From SIGTERM to SIGKILL.
    pub term_grace: Duration,
    /// How long calls may go on after a signal.
    pub signal_drain: Duration,
}

impl Default for Settings {
    fn default() -> Settings {
        Settings {
            reliability: Reliability::default(),
            policy: Policy::without_rules(Action::Allow),
            policy_dry_run: false,
            identity: IdentitySettings { profile: "local".to_owned(), keys: Vec::new() },
            queue: QueueSettings {
                path: PathBuf::from("./.mcprelay/queue.db"),
                capture_timeout: Duration::from_millis(2_000),
                max_redrives: 5,
                redrive_unknown: true,
                seal: SealSettings::default(),
            },
            store: StoreSettings { path: PathBuf::from("./.mcprelay/history.db"), retention_days: 30 },
            recorder: RecorderSettings { bytes_max: 16 * 1024 * 1024 },
            redaction: REDACTION_DEFAULT.map(str::to_owned).to_vec(),
            frame_max_bytes: 64 * 1024 * 1024,
            restart: RestartSettings::default(),
            health: None,
            http: HttpSettings::default(),
            faults: None,
            shutdown: ShutdownSettings {
                stdin_grace: Duration::from_millis(2_000),
                term_grace: Duration::from_millis(2_000),
                signal_drain: Duration::from_millis(1_000),
            },
            source: None,
        }
    }
}

/// What the command line sets over the file.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Overrides {
    /// `--timeout-ms`: for every tool, also those in `per_tool`.
    pub timeout: Option<Duration>,
    /// `--max-attempts`: for every tool, also those in `per_tool`.
    pub attempts_max: Option<u32>,
    /// `--identity`: instead of `identity.profile`.
    pub identity: Option<String>,
    /// `--policy-dry-run`.
    pub policy_dry_run: bool,
}

/// Settings that can be used, with what the user should hear about them.
#[derive(Clone, Debug)]
pub struct Loaded {
    /// The settings.
    pub settings: Settings,
    /// In the order of the file, then the general ones.
    pub warnings: Vec<Warning>,
}

/// A configuration that cannot be used.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Refused {
    /// Every error, in the order of the file. Never empty.
    pub problems: Vec<Problem>,
    /// Warnings about the same file.
    pub warnings: Vec<Warning>,
}

/// Looks up an environment variable; `None` if it is not set or not valid Unicode.
pub type Env<'e> = &'e dyn Fn(&str) -> Option<String>;

const SECTIONS: [&str; 11] = [
    "reliability",
    "queue",
    "store",
    "recorder",
    "redaction",
    "policy",
    "upstream",
    "identity",
    "wire",
    "shutdown",
    "faults",
];

/// The settings of a session without a file.
#[must_use]
pub fn without_file(overrides: &Overrides) -> Loaded {
    let mut settings = Settings::default();
    apply(overrides, &mut settings);
    let warnings = general_warnings(&settings.policy);
    Loaded { settings, warnings }
}

/// Reads `text`, the content of `file`.
///
/// # Errors
///
/// Everything that is wrong with it.
pub fn resolve(text: &str, file: &Path, overrides: &Overrides, env: Env<'_>) -> Result<Loaded, Refused> {
    let text = text.strip_prefix('\u{feff}').unwrap_or(text);
    let mut locator = Locator { text, file, bytes_left: 16 * FILE_BYTES_MAX };
    let tree = match Tree::parse(text) {
        Ok(tree) => tree,
        Err(error) => return Err(Refused { problems: vec![syntax_problem(error, file)], warnings: Vec::new() }),
    };
    let mut findings = Findings::default();
    findings.duplicates(&tree, &Place::default());
    let root = Section::of(&tree, Place::default(), &mut findings);
    let mut warnings = unknown_sections(&root, &mut locator);

    let mut settings = Settings { source: Some(file.to_owned()), ..Settings::default() };
    settings.reliability = reliability(&root, overrides, &mut findings, &mut |place, text| {
        let problem = locator.problem(&place, false, text, String::new());
        warnings.push(Warning { text: problem.to_string(), loud: false });
    });
    queue(&root, &mut settings.queue, &mut findings);
    store(&root, &mut settings.store, &mut findings);
    one_database_each(&root, &settings, &mut findings);
    recorder(&root, &mut settings.recorder, &mut findings);
    redaction(&root, &mut settings.redaction, &mut findings);
    let policy = policy(&root, &mut findings);
    upstream(&root, &mut settings, env, &mut findings);
    identity(&root, &mut settings.identity, env, &mut findings);
    wire(&root, &mut settings.frame_max_bytes, &mut findings);
    shutdown(&root, &mut settings.shutdown, &mut findings);
    if let Some(tree) = root.get("faults") {
        let section = Section::of(tree, root.place.key("faults"), &mut findings);
        settings.faults = Some(resilience::faults(&section, &mut findings));
    }
    apply(overrides, &mut settings);

    let (Some(policy), true) = (policy, findings.list.is_empty()) else {
        return Err(Refused { problems: locator.problems(findings), warnings });
    };
    settings.policy = policy;
    warnings.extend(general_warnings(&settings.policy));
    Ok(Loaded { settings, warnings })
}

/// Reads `text`, the content of `file`, which holds what else stands below `faults`.
///
/// # Errors
///
/// Everything that is wrong with it.
pub fn resolve_faults(text: &str, file: &Path) -> Result<Faults, Refused> {
    let text = text.strip_prefix('\u{feff}').unwrap_or(text);
    let mut locator = Locator { text, file, bytes_left: 16 * FILE_BYTES_MAX };
    let refused = |problems| Refused { problems, warnings: Vec::new() };
    let tree = Tree::parse(text).map_err(|error| refused(vec![syntax_problem(error, file)]))?;
    let mut findings = Findings::default();
    findings.duplicates(&tree, &Place::default());
    let root = Section::of(&tree, Place::default(), &mut findings);
    let faults = resilience::faults(&root, &mut findings);
    if findings.list.is_empty() { Ok(faults) } else { Err(refused(locator.problems(findings))) }
}

fn syntax_problem(error: SyntaxError, file: &Path) -> Problem {
    let SyntaxError { at, found, remedy } = error;
    let (line, column) = at.unzip();
    Problem { file: file.to_owned(), line, column, path: String::new(), found, remedy }
}

fn general_warnings(policy: &Policy) -> Vec<Warning> {
    startup_warnings(policy).into_iter().map(|text| Warning { text, loud: false }).collect()
}

/// Turns places into lines. Each costs a pass over the text, so a large file with many faults gets only so many.
struct Locator<'t> {
    text: &'t str,
    file: &'t Path,
    bytes_left: usize,
}

impl Locator<'_> {
    fn problem(&mut self, place: &Place, on_key: bool, found: String, remedy: String) -> Problem {
        let at = match self.bytes_left.checked_sub(self.text.len()) {
            Some(left) => {
                self.bytes_left = left;
                Tree::locate(self.text, place, on_key)
            }
            None => None,
        };
        let (line, column) = at.unzip();
        Problem { file: self.file.to_owned(), line, column, path: place.show(), found, remedy }
    }
}

impl Locator<'_> {
    /// All findings, in the order of the file.
    fn problems(&mut self, findings: Findings) -> Vec<Problem> {
        let mut problems: Vec<Problem> = findings
            .list
            .into_iter()
            .map(|finding| self.problem(&finding.place, finding.on_key, finding.found, finding.remedy))
            .collect();
        // Stable: those without a place stay behind the others, in the order they were found.
        problems.sort_by_key(|problem| (problem.line.is_none(), problem.line, problem.column));
        problems
    }
}

/// A section we do not know may belong to a later version, so it is a warning; but one that is a known name
/// mistyped would silently switch off what the user wrote below it.
fn unknown_sections(root: &Section<'_>, locator: &mut Locator<'_>) -> Vec<Warning> {
    let mut warnings = Vec::new();
    for (key, _) in root.entries.iter().filter(|(key, _)| !SECTIONS.contains(&key.as_str())) {
        let meant = nearest(key, SECTIONS);
        let remedy = match meant {
            Some(meant) => format!("did you mean {meant}? Nothing below it is in force"),
            None => format!("it is ignored; known sections: {}", SECTIONS.join(", ")),
        };
        let problem = locator.problem(&root.place.key(key), true, "unknown section".to_owned(), remedy);
        warnings.push(Warning { text: problem.to_string(), loud: meant.is_some() });
    }
    warnings
}

fn apply(overrides: &Overrides, settings: &mut Settings) {
    let reliability = &mut settings.reliability;
    let tools = reliability.per_tool.iter_mut().map(|(_, tool)| tool);
    for tool in tools.chain([&mut reliability.defaults]) {
        override_tool(overrides, tool);
    }
    if let Some(identity) = &overrides.identity {
        settings.identity.profile.clone_from(identity);
    }
    settings.policy_dry_run = overrides.policy_dry_run;
}

fn override_tool(overrides: &Overrides, tool: &mut ToolSettings) {
    tool.timeout = overrides.timeout.unwrap_or(tool.timeout);
    tool.retry.attempts_max = overrides.attempts_max.unwrap_or(tool.retry.attempts_max);
}

pub(super) fn millis(section: &Section<'_>, key: &str, least: u64, findings: &mut Findings) -> Option<Duration> {
    section.whole(key, least..=MILLIS_MAX, findings).map(Duration::from_millis)
}

fn reliability(
    root: &Section<'_>,
    overrides: &Overrides,
    findings: &mut Findings,
    warn: &mut dyn FnMut(Place, String),
) -> Reliability {
    const KNOWN: [&str; 10] = [
        "timeout_ms",
        "idempotent_default",
        "retry",
        "replay",
        "per_tool",
        "extend_on_progress",
        "max_total_ms",
        "client_wait_max_ms",
        "trust_annotations",
        "circuit",
    ];
    let section = root.section("reliability", &KNOWN, findings);
    let default = Reliability::default();
    let budget_too = [&RETRY_KEYS[..], &["budget"]].concat();
    let retry_section = section.section("retry", &budget_too, findings);
    let circuit = resilience::circuit(&section, CircuitSettings::default(), findings);
    let defaults = ToolSettings {
        timeout: millis(&section, "timeout_ms", 1, findings).unwrap_or(default.defaults.timeout),
        retry: retry(&retry_section, default.defaults.retry, findings),
        // The upstream's circuit is on by default, those of tools are not.
        circuit: circuit.flatten(),
        ..default.defaults
    };
    let replay = section.section("replay", &["dedup_window"], findings);
    let mut result = Reliability {
        defaults,
        per_tool: Vec::new(),
        extend_on_progress: section.boolean("extend_on_progress", findings).unwrap_or(default.extend_on_progress),
        max_total: millis(&section, "max_total_ms", 1, findings),
        client_wait_max: millis(&section, "client_wait_max_ms", 0, findings).unwrap_or(default.client_wait_max),
        trust_annotations: section.boolean("trust_annotations", findings).unwrap_or(default.trust_annotations),
        idempotent_default: section.boolean("idempotent_default", findings).unwrap_or(default.idempotent_default),
        dedup_window: duration(&replay, "dedup_window", findings).unwrap_or(default.dedup_window),
        circuit: circuit.unwrap_or(default.circuit),
        budget: resilience::budget(&retry_section, findings),
    };
    let per_tool = match section.get("per_tool") {
        Some(tree) => Section::of(tree, section.place.key("per_tool"), findings),
        None => Section { place: section.place.key("per_tool"), entries: &[] },
    };
    for (pattern, tree) in per_tool.entries {
        if pattern.is_empty() {
            findings.key(per_tool.place.key(pattern), "found an empty tool name", "* stands for every tool");
        }
        let tool = Section::of(tree, per_tool.place.key(pattern), findings);
        result.per_tool.push((Glob::new(pattern), per_tool_entry(&tool, &defaults, findings)));
    }

    let max_total_place = section.place.key("max_total_ms");
    if let Some(limit) = result.max_total {
        let all = [("the default timeout_ms", &result.defaults)];
        let tools = result.per_tool.iter().map(|(glob, tool)| (glob.as_str(), tool));
        for (name, tool) in all.into_iter().chain(tools) {
            let mut tool = *tool;
            override_tool(overrides, &mut tool);
            if limit < tool.needed() {
                let needed = tool.needed().as_millis();
                let text = format!(
                    "{} is less than all attempts and delays of {name} may take ({needed}), so later attempts may be \
                     cut short",
                    limit.as_millis()
                );
                warn(max_total_place.clone(), text);
            }
        }
    }
    result
}

fn per_tool_entry(tool: &Section<'_>, defaults: &ToolSettings, findings: &mut Findings) -> ToolSettings {
    tool.only(&["timeout_ms", "idempotent", "effects", "retry", "capture_tool_errors", "circuit"], findings);
    let retry_section = tool.section("retry", &RETRY_KEYS, findings);
    let inherited = defaults.circuit.unwrap_or_default();
    ToolSettings {
        timeout: millis(tool, "timeout_ms", 1, findings).unwrap_or(defaults.timeout),
        retry: retry(&retry_section, defaults.retry, findings),
        circuit: resilience::circuit(tool, inherited, findings).unwrap_or(defaults.circuit),
        idempotent: tool.boolean("idempotent", findings),
        effects: tool.choice("effects", &[("read", Effects::Read), ("write", Effects::Write)], findings),
        capture_tool_errors: tool.boolean("capture_tool_errors", findings).unwrap_or(defaults.capture_tool_errors),
    }
}

const RETRY_KEYS: [&str; 4] = ["max_attempts", "backoff", "base_ms", "jitter"];

fn retry(section: &Section<'_>, inherited: RetryPlan, findings: &mut Findings) -> RetryPlan {
    section.choice("backoff", &[("exponential", ())], findings);
    let attempts_max = section.whole("max_attempts", 1..=ATTEMPTS_MAX, findings);
    RetryPlan {
        attempts_max: attempts_max.and_then(|n| u32::try_from(n).ok()).unwrap_or(inherited.attempts_max),
        base: millis(section, "base_ms", 0, findings).unwrap_or(inherited.base),
        jitter: section.boolean("jitter", findings).unwrap_or(inherited.jitter),
    }
}

fn duration(section: &Section<'_>, key: &str, findings: &mut Findings) -> Option<Duration> {
    let tree = section.get(key)?;
    let parsed = match tree {
        Tree::String(text) => parse_duration(text),
        _ => None,
    };
    if parsed.is_none() {
        let remedy = "write digits and one of ms, s, m, h, d, like \"24h\"; at most 365 days";
        findings.value(section.place.key(key), describe(tree, Show::Value), remedy);
    }
    parsed
}

/// Digits immediately followed by `ms`, `s`, `m`, `h` or `d`; at most [`MILLIS_MAX`].
fn parse_duration(text: &str) -> Option<Duration> {
    let unit_at = text.find(|c: char| !c.is_ascii_digit())?;
    let (digits, unit) = text.split_at(unit_at);
    let unit_ms = match unit {
        "ms" => 1,
        "s" => 1_000,
        "m" => 60_000,
        "h" => 3_600_000,
        "d" => 86_400_000,
        _ => return None,
    };
    let millis = digits.parse::<u64>().ok()?.checked_mul(unit_ms)?;
    (millis <= MILLIS_MAX).then(|| Duration::from_millis(millis))
}

fn queue(root: &Section<'_>, settings: &mut QueueSettings, findings: &mut Findings) {
    const KNOWN: [&str; 7] =
        ["provider", "sqlite", "rabbitmq", "capture_timeout_ms", "max_redrives", "redrive_unknown", "seal"];
    let section = root.section("queue", &KNOWN, findings);
    let provider = section.choice("provider", &[("sqlite", false), ("rabbitmq", true)], findings);
    if provider == Some(true) {
        findings.value(
            section.place.key("provider"),
            "rabbitmq is not yet available in this version",
            "write sqlite or remove the key",
        );
    }
    if let Some(path) = sqlite_path(&section, findings) {
        settings.path = path;
    }
    if let Some(timeout) = millis(&section, "capture_timeout_ms", 1, findings) {
        settings.capture_timeout = timeout;
    }
    if let Some(count) = section.whole("max_redrives", 0..=1_000_000, findings) {
        settings.max_redrives = u32::try_from(count).expect("at most 1,000,000");
    }
    if let Some(include) = section.choice("redrive_unknown", &[("include", true), ("exclude", false)], findings) {
        settings.redrive_unknown = include;
    }
    seal(&section, &mut settings.seal, findings);
    let broker = section.section("rabbitmq", &["url", "exchange", "queue"], findings);
    if let Some(url) = broker.text("url", Show::Kind, findings)
        && url_authority(url, &["amqp", "amqps"]).is_none()
    {
        let remedy = "write amqp://user:password@host:port/vhost or amqps://…";
        findings.value(broker.place.key("url"), "found a text that is no AMQP URL (not shown)", remedy);
    }
    broker.text("exchange", Show::Value, findings);
    broker.text("queue", Show::Value, findings);
}

fn seal(parent: &Section<'_>, settings: &mut SealSettings, findings: &mut Findings) {
    let section = parent.section("seal", &["key_env", "key_file", "previous"], findings);
    settings.current = key_place(&section, findings);
    for (place, tree) in section.list("previous", Show::Kind, findings).unwrap_or_default() {
        let item = Section::of(tree, place.clone(), findings);
        item.only(&["key_env", "key_file"], findings);
        match key_place(&item, findings) {
            Some(key) => settings.previous.push(key),
            None if item.entries.is_empty() => {
                findings.value(place, "no place of a key", "write key_env: NAME or key_file: path");
            }
            None => {}
        }
    }
}

fn key_place(section: &Section<'_>, findings: &mut Findings) -> Option<KeyPlace> {
    if section.get("key_env").is_some() && section.get("key_file").is_some() {
        findings.value(section.place.clone(), "both key_env and key_file are there", "keep one of them");
        return None;
    }
    if section.get("key_env").is_some() {
        // Shown by kind only: where a variable's name belongs, users paste the key itself.
        let name = section.text("key_env", Show::Kind, findings)?;
        return variable_name(name, section.place.key("key_env"), findings).map(|name| KeyPlace::Env(name.to_owned()));
    }
    section.text("key_file", Show::Value, findings).map(|path| KeyPlace::File(PathBuf::from(path)))
}

/// `name` if an environment variable can be called so.
fn variable_name<'t>(name: &'t str, place: Place, findings: &mut Findings) -> Option<&'t str> {
    let fits = name.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'_') && !name.as_bytes()[0].is_ascii_digit();
    if !fits {
        findings.value(
            place,
            "found a text that no environment variable is named (not shown)",
            "write the name of a variable, not the key itself",
        );
    }
    fits.then_some(name)
}

fn sqlite_path(parent: &Section<'_>, findings: &mut Findings) -> Option<PathBuf> {
    parent.section("sqlite", &["path"], findings).text("path", Show::Value, findings).map(PathBuf::from)
}

fn store(root: &Section<'_>, settings: &mut StoreSettings, findings: &mut Findings) {
    let section = root.section("store", &["provider", "sqlite", "retention_days"], findings);
    section.choice("provider", &[("sqlite", ())], findings);
    if let Some(path) = sqlite_path(&section, findings) {
        settings.path = path;
    }
    if let Some(days) = section.whole("retention_days", 0..=36_500, findings) {
        settings.retention_days = u32::try_from(days).expect("at most 36,500");
    }
}

/// Whichever of the two is opened first would keep the other from its records.
fn one_database_each(root: &Section<'_>, settings: &Settings, findings: &mut Findings) {
    let plain =
        |path: &Path| -> PathBuf { path.components().filter(|part| *part != std::path::Component::CurDir).collect() };
    if plain(&settings.queue.path) == plain(&settings.store.path) {
        let section = if settings.store.path == Settings::default().store.path { "queue" } else { "store" };
        findings.value(
            root.place.key(section).key("sqlite").key("path"),
            "queue and store have the same file",
            "give each a file of its own",
        );
    }
}

fn recorder(root: &Section<'_>, settings: &mut RecorderSettings, findings: &mut Findings) {
    let section = root.section("recorder", &["max_bytes"], findings);
    if let Some(bytes) = section.whole("max_bytes", 4_096..=1 << 40, findings) {
        settings.bytes_max = bytes;
    }
}

fn redaction(root: &Section<'_>, patterns: &mut Vec<String>, findings: &mut Findings) {
    let section = root.section("redaction", &["patterns"], findings);
    if let Some(list) = section.list("patterns", Show::Value, findings) {
        *patterns = list
            .into_iter()
            .filter_map(|(place, tree)| text(tree, place, Show::Value, findings))
            .map(str::to_owned)
            .collect();
    }
}

/// `None` if the rules are not usable; everything wrong with them is then among the findings.
fn policy(root: &Section<'_>, findings: &mut Findings) -> Option<Policy> {
    const ACTIONS: [(&str, Action); 2] = [("allow", Action::Allow), ("deny", Action::Deny)];
    let section = root.section("policy", &["default", "rules"], findings);
    let default = section.choice("default", &ACTIONS, findings).unwrap_or(Action::Allow);
    let mut sources = Vec::new();
    // An empty item is not compiled, so the compiler's count differs from the file's.
    let mut places = Vec::new();
    for (place, tree) in section.list("rules", Show::Value, findings).unwrap_or_default() {
        let rule = Section::of(tree, place.clone(), findings);
        if matches!(tree, Tree::Null) {
            findings.value(place, "found nothing", "write a rule with tool and action, or remove the dash");
            continue;
        }
        rule.only(&["tool", "caller", "args", "action"], findings);
        for key in ["tool", "action"] {
            if rule.get(key).is_none() && matches!(tree, Tree::Map(_)) {
                findings.value(
                    rule.place.clone(),
                    format!("the key {key} is missing"),
                    "every rule needs tool and action",
                );
            }
        }
        let tool = rule.text("tool", Show::Value, findings);
        let caller = rule.text("caller", Show::Value, findings);
        let action = rule.choice("action", &ACTIONS, findings);
        let args = rule_args(&rule, findings);
        // A rule in which something is wrong already is compiled without it, or with something else in its place, so
        // that the rest is checked in the same run; the finding keeps the result from being used.
        let (tool, caller) = (tool.unwrap_or("*").to_owned(), caller.map(str::to_owned));
        sources.push(RuleSource { tool, caller, action: action.unwrap_or(Action::Deny), args });
        places.push(rule.place);
    }
    let shapes = sources.clone();
    match Policy::compile(default, sources) {
        Ok(policy) => Some(policy),
        Err(problems) => {
            for problem in problems {
                let (place, on_key) = rule_problem_place(&problem, &places, &shapes);
                let remedy = String::new();
                findings.list.push(super::reader::Finding { place, on_key, found: problem.message, remedy });
            }
            None
        }
    }
}

fn rule_args(rule: &Section<'_>, findings: &mut Findings) -> Vec<(String, Vec<(String, serde_json::Value)>)> {
    const FORM: &str = "write a mapping of argument paths to matchers, like {path: {prefix: /srv/}}";
    const MATCHERS_FORM: &str = "write a mapping of matchers here, like {prefix: /srv/}";
    let place = rule.place.key("args");
    let paths = match rule.get("args") {
        None => return Vec::new(),
        Some(Tree::Map(paths)) => paths,
        Some(other) => {
            findings.value(place, describe(other, Show::Value), FORM);
            return Vec::new();
        }
    };
    let mut args = Vec::new();
    for (path, tree) in paths {
        let place = place.key(path);
        let Tree::Map(entries) = tree else {
            findings.value(place, describe(tree, Show::Value), MATCHERS_FORM);
            continue;
        };
        let mut matchers = Vec::new();
        for (name, value) in entries {
            if let Some(value) = to_json(value, place.key(name), findings) {
                matchers.push((name.clone(), value));
            }
        }
        // Without its only matcher a path would be reported once more, as one that has none.
        if entries.is_empty() || !matchers.is_empty() {
            args.push((path.clone(), matchers));
        }
    }
    args
}

/// Where the compiler's problem stands, and whether in a key. The remedy is part of the compiler's words.
fn rule_problem_place(problem: &RuleProblem, places: &[Place], rules: &[RuleSource]) -> (Place, bool) {
    let (Some(place), Some(rule)) = (places.get(problem.rule), rules.get(problem.rule)) else {
        return (Place(vec![Step::Key("policy".to_owned(), 0)]), false);
    };
    // Paths may contain dots themselves, so the field is compared with what it can be rather than taken apart.
    for (path, matchers) in &rule.args {
        let at_path = place.key("args").key(path);
        if problem.field == format!("args.{path}") {
            return (at_path, true);
        }
        for (name, _) in matchers {
            if problem.field == format!("args.{path}.{name}") {
                return (at_path.key(name), !MATCHERS.contains(&name.as_str()));
            }
        }
    }
    (place.key(&problem.field), false)
}

/// The value as JSON. What JSON cannot hold exactly is reported.
fn to_json(tree: &Tree, place: Place, findings: &mut Findings) -> Option<serde_json::Value> {
    use serde_json::{Number, Value};
    Some(match tree {
        Tree::Null => Value::Null,
        Tree::Bool(value) => Value::Bool(*value),
        Tree::Int(value) => {
            let number = u64::try_from(*value).map(Number::from).or_else(|_| i64::try_from(*value).map(Number::from));
            let Ok(number) = number else {
                findings.value(place, format!("found {value}"), "whole numbers of more than 64 bits are not supported");
                return None;
            };
            Value::Number(number)
        }
        Tree::Float(value) => {
            let Some(number) = Number::from_f64(*value) else {
                findings.value(place, format!("found {value}"), "write a finite number");
                return None;
            };
            Value::Number(number)
        }
        Tree::String(value) => Value::String(value.clone()),
        Tree::Seq(elements) => Value::Array(
            elements
                .iter()
                .enumerate()
                .map(|(index, element)| to_json(element, place.index(index), findings))
                .collect::<Option<_>>()?,
        ),
        Tree::Map(entries) => Value::Object(
            entries
                .iter()
                .map(|(key, value)| Some((key.clone(), to_json(value, place.key(key), findings)?)))
                .collect::<Option<_>>()?,
        ),
    })
}

fn upstream(root: &Section<'_>, settings: &mut Settings, env: Env<'_>, findings: &mut Findings) {
    let section = root.section("upstream", &["http", "restart", "health"], findings);
    settings.restart = resilience::restart(&section, findings);
    settings.health = resilience::health(&section, findings);
    settings.http = super::http::http(&section, env, findings);
}

fn identity(root: &Section<'_>, settings: &mut IdentitySettings, env: Env<'_>, findings: &mut Findings) {
    let section = root.section("identity", &["profile", "keys"], findings);
    if let Some(profile) = section.text("profile", Show::Kind, findings) {
        profile.clone_into(&mut settings.profile);
    }
    for (place, tree) in section.list("keys", Show::Kind, findings).unwrap_or_default() {
        let item = Section::of(tree, place.clone(), findings);
        item.only(&["key", "key_env", "identity"], findings);
        if !matches!(tree, Tree::Map(_) | Tree::Null) {
            continue;
        }
        if item.get("identity").is_none() {
            findings.value(place.clone(), "the key identity is missing", "say whose key it is");
        }
        let name = item.text("identity", Show::Kind, findings);
        let (key_place, key) = match (item.get("key"), item.get("key_env")) {
            (Some(_), None) => (place.key("key"), item.text("key", Show::Kind, findings).map(str::to_owned)),
            (None, Some(_)) => (place.key("key_env"), key_from_env(&item, env, findings)),
            (Some(_), Some(_)) => {
                findings.value(place.clone(), "both key and key_env are there", "keep one of them");
                continue;
            }
            (None, None) => {
                findings.value(
                    place.clone(),
                    "the key key or key_env is missing",
                    "name an environment variable in key_env",
                );
                continue;
            }
        };
        let Some(key) = key else { continue };
        if key.trim() != key {
            // Clients' credentials are trimmed, so such a key could never be met.
            findings.value(key_place, "the key begins or ends with a blank or newline", "remove it");
            continue;
        }
        if settings.keys.iter().any(|(known, _)| *known == key) {
            findings.value(key_place, "the key is equal to an earlier one", "give each identity a key of its own");
            continue;
        }
        settings.keys.push((key, name.unwrap_or_default().to_owned()));
    }
}

fn key_from_env(item: &Section<'_>, env: Env<'_>, findings: &mut Findings) -> Option<String> {
    // Shown by kind only: where a variable's name belongs, users paste the key itself.
    let name = item.text("key_env", Show::Kind, findings)?;
    let place = item.place.key("key_env");
    let is_name = name.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'_') && !name.as_bytes()[0].is_ascii_digit();
    if !is_name {
        findings.value(
            place,
            "found a text that no environment variable is named (not shown)",
            "write the name of a variable; a key itself belongs in key",
        );
        return None;
    }
    match env(name) {
        Some(key) if !key.is_empty() => Some(key),
        Some(_) => {
            findings.value(place, format!("the environment variable {name} is empty"), "put the key there");
            None
        }
        None => {
            findings.value(
                place,
                format!("the environment variable {name} is not set"),
                "set it before mcprelay starts",
            );
            None
        }
    }
}

fn wire(root: &Section<'_>, frame_max_bytes: &mut usize, findings: &mut Findings) {
    let section = root.section("wire", &["frame_max_bytes"], findings);
    if let Some(bytes) = section.whole("frame_max_bytes", 4_096..=u64::from(u32::MAX), findings) {
        *frame_max_bytes = usize::try_from(bytes).unwrap_or(usize::MAX);
    }
}

fn shutdown(root: &Section<'_>, settings: &mut ShutdownSettings, findings: &mut Findings) {
    let section = root.section("shutdown", &["stdin_grace_ms", "term_grace_ms", "signal_drain_ms"], findings);
    for (key, target) in [
        ("stdin_grace_ms", &mut settings.stdin_grace),
        ("term_grace_ms", &mut settings.term_grace),
        ("signal_drain_ms", &mut settings.signal_drain),
    ] {
        if let Some(time) = millis(&section, key, 0, findings) {
            *target = time;
        }
    }
}

/// The authority of an absolute URL with one of `schemes` (lower case), `None` if `url` is not one with a host.
fn url_authority<'u>(url: &'u str, schemes: &[&str]) -> Option<&'u str> {
    let (scheme, rest) = url.split_once("://")?;
    if !schemes.contains(&scheme.to_ascii_lowercase().as_str()) || url.contains(|c: char| c.is_control() || c == ' ') {
        return None;
    }
    let authority = rest.split(['/', '?', '#']).next().unwrap_or_default();
    let host_port = authority.rsplit_once('@').map_or(authority, |(_, host_port)| host_port);
    let (host, port) = match host_port.strip_prefix('[') {
        Some(bracketed) => {
            let (host, after) = bracketed.split_once(']')?;
            host.parse::<std::net::Ipv6Addr>().ok()?;
            (host, if after.is_empty() { None } else { Some(after.strip_prefix(':')?) })
        }
        None => match host_port.split_once(':') {
            Some((host, port)) => (host, Some(port)),
            None => (host_port, None),
        },
    };
    let port_fits = port.is_none_or(|port| port.bytes().all(|b| b.is_ascii_digit()) && port.parse::<u16>().is_ok());
    (!host.is_empty() && port_fits).then_some(authority)
}
