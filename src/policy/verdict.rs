//! The whole policy and what it says of a call.

use std::cmp::Reverse;

use super::argument::ArgPath;
use super::rule::{Arguments, Rule, RuleProblem, RuleSource};
use crate::wire::json::Json;

/// What becomes of a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Action {
    /// It goes to the upstream.
    Allow,
    /// It is refused.
    Deny,
}

impl Action {
    /// The word of the configuration: `allow` or `deny`.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Action::Allow => "allow",
            Action::Deny => "deny",
        }
    }
}

/// The decision on one call.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Verdict {
    /// What becomes of the call.
    pub action: Action,
    /// The rule that decided, 1-based in file order; `None` is `policy.default`.
    pub rule: Option<usize>,
    /// The decision in words, for people. It quotes the rule, never an argument.
    pub reason: String,
}

/// A compiled policy.
#[derive(Clone, Debug)]
pub struct Policy {
    default: Action,
    /// In order of precedence: the first that matches decides.
    rules: Vec<Rule>,
    /// Every argument path that some rule asks for, once each.
    paths: Vec<ArgPath>,
}

impl Policy {
    /// The policy without rules, which does `default` with every call.
    #[must_use]
    pub const fn without_rules(default: Action) -> Policy {
        Policy { default, rules: Vec::new(), paths: Vec::new() }
    }

    /// Compiles the rules, given in file order.
    ///
    /// # Errors
    ///
    /// Everything that is wrong with any of them, in file order.
    pub fn compile(default: Action, sources: Vec<RuleSource>) -> Result<Policy, Vec<RuleProblem>> {
        let mut paths = Vec::new();
        let mut problems = Vec::new();
        let mut rules: Vec<Rule> = sources
            .into_iter()
            .enumerate()
            .map(|(index, source)| Rule::compile(index, source, &mut paths, &mut problems))
            .collect();
        if !problems.is_empty() {
            return Err(problems);
        }
        // Specific before general, so that an exception can be written as a narrower rule; deny before allow where
        // both are equally specific, because that order must not depend on who edited the file last.
        rules.sort_by_key(|rule| (Reverse(rule.score), Reverse(rule.action), rule.number));
        Ok(Policy { default, rules, paths })
    }

    /// What becomes of a call of `tool` by `caller`. `arguments` is the text of `params.arguments` in the very frame
    /// that would be forwarded, `None` if the call has none.
    #[must_use]
    pub fn decide(&self, tool: &str, caller: &str, arguments: Option<Json<'_>>) -> Verdict {
        let mut arguments = Arguments::new(&self.paths, arguments);
        for rule in &self.rules {
            let Some(unjudged) = rule.matches(tool, caller, &mut arguments) else { continue };
            let verb = match rule.action {
                Action::Allow => "allows",
                Action::Deny => "denies",
            };
            let mut reason = format!("rule #{} (tool {:?}) {verb} the call", rule.number, rule.tool.as_str());
            if let Some(unjudged) = unjudged {
                reason += &format!("; {} cannot be judged: {}", unjudged.condition, unjudged.doubt);
            }
            return Verdict { action: rule.action, rule: Some(rule.number), reason };
        }
        let reason = format!("no rule matches; policy.default is {}", self.default.as_str());
        Verdict { action: self.default, rule: None, reason }
    }
}

/// What a user should hear at start-up: a policy without rules is all or nothing, which may not be what was meant.
#[must_use]
pub fn startup_warnings(policy: &Policy) -> Vec<String> {
    if !policy.rules.is_empty() {
        return Vec::new();
    }
    vec![match policy.default {
        Action::Allow => "policy has no rules and policy.default is allow: every tool is allowed".to_owned(),
        Action::Deny => "policy has no rules and policy.default is deny: every tools/call is denied".to_owned(),
    }]
}
