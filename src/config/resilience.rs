//! The settings by which a session survives a sick server, and those that make it sick on purpose.

use std::time::Duration;

use super::reader::{Findings, Section, Show, describe, text};
use super::settings::{MILLIS_MAX, millis};
use super::tree::Tree;
use crate::breaker::CircuitSettings;
use crate::budget::BudgetSettings;
use crate::faults::{FAULT_CODE, Fault, FaultRule, Faults, MILLION, When};
use crate::glob::Glob;
use crate::restart::{HealthSettings, RestartSettings};

/// The longest time in seconds that can be configured.
const SECONDS_MAX: u64 = MILLIS_MAX / 1_000;

fn seconds(section: &Section<'_>, key: &str, findings: &mut Findings) -> Option<Duration> {
    section.whole(key, 1..=SECONDS_MAX, findings).map(Duration::from_secs)
}

fn count(section: &Section<'_>, key: &str, least: u32, findings: &mut Findings) -> Option<u32> {
    let count = section.whole(key, u64::from(least)..=1_000_000, findings)?;
    u32::try_from(count).ok()
}

/// A `circuit` section of `parent`: `None` if there is none, `Some(None)` if it is switched off.
pub(super) fn circuit(
    parent: &Section<'_>,
    inherited: CircuitSettings,
    findings: &mut Findings,
) -> Option<Option<CircuitSettings>> {
    const KNOWN: [&str; 5] = ["enabled", "failures", "window_s", "open_s", "half_open_calls"];
    parent.get("circuit")?;
    let section = parent.section("circuit", &KNOWN, findings);
    let settings = CircuitSettings {
        failures: count(&section, "failures", 1, findings).unwrap_or(inherited.failures),
        window: seconds(&section, "window_s", findings).unwrap_or(inherited.window),
        open: seconds(&section, "open_s", findings).unwrap_or(inherited.open),
        half_open_calls: count(&section, "half_open_calls", 1, findings).unwrap_or(inherited.half_open_calls),
    };
    Some(section.boolean("enabled", findings).unwrap_or(true).then_some(settings))
}

/// `budget` of the section `retry`.
pub(super) fn budget(retry: &Section<'_>, findings: &mut Findings) -> BudgetSettings {
    let default = BudgetSettings::default();
    let section = retry.section("budget", &["percent", "floor", "window_s"], findings);
    BudgetSettings {
        percent: count(&section, "percent", 0, findings).unwrap_or(default.percent),
        floor: count(&section, "floor", 0, findings).unwrap_or(default.floor),
        window: seconds(&section, "window_s", findings).unwrap_or(default.window),
    }
}

/// `upstream.restart`.
pub(super) fn restart(upstream: &Section<'_>, findings: &mut Findings) -> RestartSettings {
    let default = RestartSettings::default();
    let section = upstream.section("restart", &["enabled", "max", "window_s", "base_ms", "ready_timeout_ms"], findings);
    RestartSettings {
        enabled: section.boolean("enabled", findings).unwrap_or(default.enabled),
        max: count(&section, "max", 0, findings).unwrap_or(default.max),
        window: seconds(&section, "window_s", findings).unwrap_or(default.window),
        base: millis(&section, "base_ms", 0, findings).unwrap_or(default.base),
        ready_timeout: millis(&section, "ready_timeout_ms", 1, findings).unwrap_or(default.ready_timeout),
    }
}

/// `upstream.health`: the questions are asked only if `interval_s` says how often.
pub(super) fn health(upstream: &Section<'_>, findings: &mut Findings) -> Option<HealthSettings> {
    let section = upstream.section("health", &["interval_s", "timeout_ms"], findings);
    let timeout = millis(&section, "timeout_ms", 1, findings).unwrap_or(Duration::from_secs(10));
    let interval = seconds(&section, "interval_s", findings);
    if interval.is_none() && section.get("interval_s").is_none() && section.get("timeout_ms").is_some() {
        findings.value(section.place.clone(), "interval_s is missing", "say how often the server is asked");
    }
    Some(HealthSettings { interval: interval?, timeout })
}

/// `seed` and `rules`, in the section `faults` or at the top of a file of their own.
pub(super) fn faults(section: &Section<'_>, findings: &mut Findings) -> Faults {
    section.only(&["seed", "rules"], findings);
    let seed = section.whole("seed", 0..=u64::MAX, findings);
    let mut rules = Vec::new();
    if section.get("rules").is_none() {
        findings.value(section.place.clone(), "the key rules is missing", "list the faults, or remove the section");
    }
    for (place, tree) in section.list("rules", Show::Value, findings).unwrap_or_default() {
        let rule = Section::of(tree, place, findings);
        rules.extend(fault_rule(&rule, findings));
    }
    Faults { seed, rules }
}

/// What a rule does, as it is written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    Delay,
    Error,
    DropAnswer,
    DuplicateAnswer,
    KillUpstream,
}

const KINDS: [(&str, Kind); 5] = [
    ("delay", Kind::Delay),
    ("error", Kind::Error),
    ("drop_answer", Kind::DropAnswer),
    ("duplicate_answer", Kind::DuplicateAnswer),
    ("kill_upstream", Kind::KillUpstream),
];

fn fault_rule(rule: &Section<'_>, findings: &mut Findings) -> Option<FaultRule> {
    rule.only(&["tool", "rate", "fault", "when", "delay_ms", "code", "message"], findings);
    let tool = match rule.get("tool") {
        Some(tree) => text(tree, rule.place.key("tool"), Show::Value, findings)?,
        None => "*",
    };
    let rate = rate(rule, findings);
    if rule.get("fault").is_none() {
        findings.value(rule.place.clone(), "the key fault is missing", format!("write {}", words(&KINDS)));
    }
    let kind = rule.choice("fault", &KINDS, findings)?;
    let when = rule.choice("when", &[("before", When::Before), ("after", When::After)], findings);
    let when = when.unwrap_or(When::After);
    let only_for = |key: &str, wanted: Kind, findings: &mut Findings| {
        if rule.get(key).is_some() && kind != wanted {
            findings.key(rule.place.key(key), "this fault has no such key", "remove it");
        }
    };
    only_for("delay_ms", Kind::Delay, findings);
    only_for("code", Kind::Error, findings);
    only_for("message", Kind::Error, findings);
    let fault = match kind {
        Kind::Delay => {
            if rule.get("delay_ms").is_none() {
                findings.value(rule.place.clone(), "the key delay_ms is missing", "say how long");
            }
            Fault::Delay(millis(rule, "delay_ms", 0, findings)?)
        }
        Kind::Error => Fault::Error {
            code: code(rule, findings),
            message: rule.text("message", Show::Value, findings).unwrap_or("fault on purpose").to_owned(),
        },
        Kind::DropAnswer => Fault::DropAnswer,
        Kind::DuplicateAnswer => {
            if when == When::Before {
                findings.value(rule.place.key("when"), "found before", "an answer is doubled after the tool ran");
            }
            Fault::DuplicateAnswer
        }
        Kind::KillUpstream => Fault::KillUpstream,
    };
    Some(FaultRule { tool: Glob::new(tool), rate: rate?, fault, when })
}

fn words<T>(all: &[(&str, T)]) -> String {
    all.iter().map(|(word, _)| *word).collect::<Vec<_>>().join(" or ")
}

/// A share from 0 to 1; 1 if none is named.
fn rate(rule: &Section<'_>, findings: &mut Findings) -> Option<u32> {
    let tree = match rule.get("rate") {
        None => return Some(MILLION),
        Some(tree) => tree,
    };
    let share = match tree {
        Tree::Int(0) => Some(0.0),
        Tree::Int(1) => Some(1.0),
        Tree::Float(share) if (0.0..=1.0).contains(share) => Some(*share),
        Tree::Null | Tree::Bool(_) | Tree::Int(_) | Tree::Float(_) | Tree::String(_) | Tree::Seq(_) | Tree::Map(_) => {
            None
        }
    };
    let Some(share) = share else {
        findings.value(rule.place.key("rate"), describe(tree, Show::Value), "write a share from 0 to 1, like 0.1");
        return None;
    };
    // From 0 to a million, so nothing is lost.
    Some((share * f64::from(MILLION)).round() as u32)
}

fn code(rule: &Section<'_>, findings: &mut Findings) -> i64 {
    match rule.get("code") {
        None => FAULT_CODE,
        Some(Tree::Int(code)) if i64::try_from(*code).is_ok() => i64::try_from(*code).unwrap_or(FAULT_CODE),
        Some(other) => {
            findings.value(rule.place.key("code"), describe(other, Show::Value), "write a JSON-RPC error code");
            FAULT_CODE
        }
    }
}
