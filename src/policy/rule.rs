//! One rule: as the user wrote it, what can be wrong with it, and its compiled form.

use serde_json::Value;

use super::argument::{ArgPath, Found};
use super::matcher::{Doubt, Matcher};
use super::verdict::Action;
use crate::glob::Glob;
use crate::wire::json::Json;

/// A rule of `policy.rules` as written.
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
    /// The rule's place in the file, 0-based like `policy.rules[0]`.
    pub rule: usize,
    /// The place in the rule: `tool`, `args.path.regex`.
    pub field: String,
    /// What was wrong and what is allowed; it continues the sentence that the field begins.
    pub message: String,
}

/// A compiled rule.
#[derive(Clone, Debug)]
pub(super) struct Rule {
    /// 1-based, in file order.
    pub(super) number: usize,
    pub(super) action: Action,
    /// Exact tool 2 or glob 1, one for a caller, one for each matcher. The highest wins.
    pub(super) score: usize,
    pub(super) tool: Glob,
    caller: Option<Glob>,
    conditions: Vec<Condition>,
}

/// One matcher on one argument.
#[derive(Clone, Debug)]
struct Condition {
    /// Which of the policy's paths.
    path: usize,
    /// `args.path by regex`, for the reason.
    name: String,
    matcher: Matcher,
}

/// A condition of a deny rule that counted as met because it could not be judged.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Unjudged {
    /// Which condition, in words.
    pub(super) condition: String,
    pub(super) doubt: Doubt,
}

impl Rule {
    /// Compiles the rule at `index` (0-based). Its paths are added to `paths`, each once; what is wrong is added to
    /// `problems`, and then the result is not to be used.
    pub(super) fn compile(
        index: usize,
        source: RuleSource,
        paths: &mut Vec<ArgPath>,
        problems: &mut Vec<RuleProblem>,
    ) -> Rule {
        let mut problem = |field: String, message: String| problems.push(RuleProblem { rule: index, field, message });
        if source.tool.is_empty() {
            problem("tool".to_owned(), "must not be empty; * matches every tool".to_owned());
        }
        if source.caller.as_deref() == Some("") {
            problem("caller".to_owned(), "must not be empty; leave it out to match every caller".to_owned());
        }
        let mut conditions = Vec::new();
        for (path_text, matchers) in &source.args {
            let path = match ArgPath::parse(path_text) {
                Ok(path) => Some(intern(paths, path)),
                Err(message) => {
                    problem(format!("args.{path_text}"), message);
                    None
                }
            };
            if matchers.is_empty() {
                problem(format!("args.{path_text}"), "needs at least one matcher".to_owned());
            }
            for (name, value) in matchers {
                match (path, Matcher::compile(name, value)) {
                    (Some(path), Ok(matcher)) => {
                        conditions.push(Condition { path, name: format!("args.{path_text} by {name}"), matcher });
                    }
                    (None, Ok(_)) => {}
                    (_, Err(message)) => problem(format!("args.{path_text}.{name}"), message),
                }
            }
        }
        let tool = Glob::new(&source.tool);
        let tool_score = if tool.is_exact() { 2 } else { 1 };
        Rule {
            number: index + 1,
            score: tool_score + usize::from(source.caller.is_some()) + conditions.len(),
            tool,
            caller: source.caller.as_deref().map(Glob::new),
            action: source.action,
            conditions,
        }
    }

    /// Whether this rule matches the call; `Some` with the first condition in doubt that was counted as met, if any.
    pub(super) fn matches(
        &self,
        tool: &str,
        caller: &str,
        arguments: &mut Arguments<'_, '_>,
    ) -> Option<Option<Unjudged>> {
        if !self.tool.matches(tool) || !self.caller.as_ref().is_none_or(|glob| glob.matches(caller)) {
            return None;
        }
        let mut unjudged = None;
        for condition in &self.conditions {
            let judged = match arguments.at(condition.path) {
                Found::Value(value) => condition.matcher.judge(value),
                Found::Nothing => return None,
                Found::InDoubt => Err(Doubt::NameInAnotherCase),
            };
            match judged {
                Ok(true) => {}
                Ok(false) => return None,
                Err(doubt) => match self.action {
                    Action::Allow => return None,
                    Action::Deny => {
                        unjudged.get_or_insert(Unjudged { condition: condition.name.clone(), doubt });
                    }
                },
            }
        }
        Some(unjudged)
    }
}

/// The place of `path` in `paths`, added if it is new.
fn intern(paths: &mut Vec<ArgPath>, path: ArgPath) -> usize {
    paths.iter().position(|known| *known == path).unwrap_or_else(|| {
        paths.push(path);
        paths.len() - 1
    })
}

/// The arguments of one call; each path is looked up once, however many rules ask for it.
#[derive(Debug)]
pub(super) struct Arguments<'p, 'a> {
    paths: &'p [ArgPath],
    whole: Option<Json<'a>>,
    /// By path: not asked yet, or what was found.
    looked_up: Vec<Option<Found<'a>>>,
}

impl<'p, 'a> Arguments<'p, 'a> {
    pub(super) fn new(paths: &'p [ArgPath], whole: Option<Json<'a>>) -> Arguments<'p, 'a> {
        Arguments { paths, whole, looked_up: vec![None; paths.len()] }
    }

    /// What stands at one of the policy's paths.
    fn at(&mut self, path: usize) -> Found<'a> {
        let (paths, whole) = (self.paths, self.whole);
        *self.looked_up[path].get_or_insert_with(|| whole.map_or(Found::Nothing, |whole| paths[path].find(whole)))
    }
}
