//! Tests of whole policies: rows for every matcher, precedence, hostile patterns, and a naive matcher to agree with.

mod compile;
mod matchers;
mod precedence;
mod reference;

use serde_json::Value;

use super::{Action, Policy, RuleProblem, RuleSource, Verdict};
use crate::wire::json::Json;

/// A rule for every tool with one matcher on the argument `a`.
fn rule_on_a(action: Action, matcher: &str, value: Value) -> RuleSource {
    RuleSource { tool: "*".into(), caller: None, action, args: vec![("a".into(), vec![(matcher.into(), value)])] }
}

/// A rule without conditions.
fn rule(action: Action, tool: &str, caller: Option<&str>) -> RuleSource {
    RuleSource { tool: tool.into(), caller: caller.map(str::to_owned), action, args: Vec::new() }
}

fn compile(default: Action, rules: &[RuleSource]) -> Policy {
    Policy::compile(default, rules.to_vec()).expect("the rules are valid")
}

fn problems(rules: &[RuleSource]) -> Vec<RuleProblem> {
    Policy::compile(Action::Allow, rules.to_vec()).expect_err("the rules are wrong")
}

fn decide(policy: &Policy, tool: &str, arguments: &str) -> Verdict {
    policy.decide(tool, "local", Some(Json::parse(arguments.as_bytes()).expect("the arguments are JSON")))
}
