//! The types of `crate::policy` that the configuration fills, until that module is part of the crate.

use serde_json::Value;

/// What becomes of a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Action {
    /// It goes to the upstream.
    Allow,
    /// It is refused.
    Deny,
}

/// A rule as written.
#[derive(Clone, Debug, PartialEq)]
pub struct RuleSource {
    /// Glob for the tool's name.
    pub tool: String,
    /// Glob for the caller's identity; `None` is any caller.
    pub caller: Option<String>,
    /// What the rule does.
    pub action: Action,
    /// Dot path → matcher name → configured value.
    pub args: Vec<(String, Vec<(String, Value)>)>,
}

/// Something wrong with a rule.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RuleProblem {
    /// 0-based.
    pub rule: usize,
    /// `tool`, `args.path.regex`.
    pub field: String,
    /// What is wrong.
    pub message: String,
}

/// The compiled rules.
#[derive(Clone, Debug)]
pub struct Policy {
    /// What holds where no rule matches.
    pub default: Action,
    /// The rules.
    pub rules: Vec<RuleSource>,
}

/// The names of the matchers.
pub(super) const MATCHERS: [&str; 8] = ["equals", "in", "prefix", "path_under", "regex", "max_length", "min", "max"];

impl Policy {
    /// Stands in for the compiler: an unknown matcher and an empty tool are all it finds.
    ///
    /// # Errors
    ///
    /// Every such problem.
    pub fn compile(default: Action, rules: Vec<RuleSource>) -> Result<Policy, Vec<RuleProblem>> {
        let mut problems = Vec::new();
        for (rule, source) in rules.iter().enumerate() {
            if source.tool.is_empty() {
                problems.push(RuleProblem { rule, field: "tool".into(), message: "must not be empty".into() });
            }
            for (path, matchers) in &source.args {
                for (name, _) in matchers.iter().filter(|(name, _)| !MATCHERS.contains(&name.as_str())) {
                    let field = format!("args.{path}.{name}");
                    problems.push(RuleProblem { rule, field, message: "is not a matcher".into() });
                }
            }
        }
        if problems.is_empty() { Ok(Policy { default, rules }) } else { Err(problems) }
    }
}

/// What a user should hear at start-up.
#[must_use]
pub(super) fn startup_warnings(policy: &Policy) -> Vec<String> {
    match (policy.rules.is_empty(), policy.default) {
        (false, _) => Vec::new(),
        (true, Action::Allow) => vec!["no policy rules: every tool is allowed".into()],
        (true, Action::Deny) => vec!["no policy rules and policy.default is deny: every tools/call is denied".into()],
    }
}
