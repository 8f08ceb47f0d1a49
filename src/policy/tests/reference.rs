//! The compiled policy against a naive one, on random policies and calls.
//!
//! The naive matcher knows no JSON text: it sees the values the text was written from. It tries every rule, has its own
//! glob, path and number code, and is as slow as it likes.

use serde_json::{Value, json};

use super::*;
use crate::retry::Rng;

/// Random choices; the seed is the test's, so a failure repeats.
struct Random(Rng);

impl Random {
    fn seeded(seed: u64) -> Random {
        Random(Rng::seeded(seed))
    }

    fn below(&mut self, end: usize) -> usize {
        usize::try_from(self.0.below(end as u64)).expect("it is below a usize")
    }

    fn pick<T: Clone>(&mut self, choices: &[T]) -> T {
        choices[self.below(choices.len())].clone()
    }

    fn one_in(&mut self, n: usize) -> bool {
        self.below(n) == 0
    }
}

/// An argument before it is written as text.
#[derive(Clone, Debug, PartialEq)]
enum Arg {
    Null,
    Bool(bool),
    /// In tenths, so that equality needs no rounding.
    Number(i64),
    Text(String),
    /// A string with a lone surrogate in it.
    Broken,
    List(Vec<Arg>),
    /// Sorted by name, names once each.
    Object(Vec<(String, Arg)>),
}

const NAMES: [&str; 4] = ["a", "b", "0", "x.y"];

fn random_text(random: &mut Random) -> String {
    let pieces = ["a", "b", "/", "/a", "..", ".", "é", "😀", "\n", "\"", "\\", "\0", "~", ":"];
    // Mostly the first ones, so that paths and prefixes meet often.
    (0..random.below(6))
        .map(|_| if random.one_in(4) { random.pick(&pieces) } else { random.pick(&pieces[..6]) })
        .collect()
}

fn random_arg(random: &mut Random, depth: usize) -> Arg {
    match random.below(if depth == 0 { 8 } else { 12 }) {
        0 => Arg::Null,
        1 => Arg::Bool(random.one_in(2)),
        2..4 => Arg::Number(random.pick(&[-15, -10, 0, 1, 5, 10, 10, 15, 20, 9990])),
        4..7 => Arg::Text(random_text(random)),
        7 => Arg::Broken,
        8..10 => Arg::List((0..random.below(4)).map(|_| random_arg(random, depth - 1)).collect()),
        _ => random_object(random, depth - 1),
    }
}

fn random_object(random: &mut Random, depth: usize) -> Arg {
    let mut members: Vec<(String, Arg)> = Vec::new();
    for name in ["0", "a", "b", "x.y"] {
        if random.one_in(2) {
            members.push((name.to_owned(), random_arg(random, depth)));
        }
    }
    Arg::Object(members)
}

/// A value that a configuration can hold.
fn without_broken(arg: Arg) -> Arg {
    match arg {
        Arg::Broken => Arg::Null,
        Arg::List(list) => Arg::List(list.into_iter().map(without_broken).collect()),
        Arg::Object(members) => {
            Arg::Object(members.into_iter().map(|(name, arg)| (name, without_broken(arg))).collect())
        }
        other @ (Arg::Null | Arg::Bool(_) | Arg::Number(_) | Arg::Text(_)) => other,
    }
}

fn to_value(arg: &Arg) -> Value {
    match arg {
        Arg::Null | Arg::Broken => Value::Null,
        Arg::Bool(bool) => json!(bool),
        Arg::Number(tenths) if tenths % 10 == 0 => json!(tenths / 10),
        Arg::Number(tenths) => json!(*tenths as f64 / 10.0),
        Arg::Text(text) => json!(text),
        Arg::List(list) => list.iter().map(to_value).collect(),
        Arg::Object(members) => members.iter().map(|(name, arg)| (name.clone(), to_value(arg))).collect(),
    }
}

/// Writes `arg` as JSON in one of its many spellings.
fn spell(random: &mut Random, arg: &Arg, out: &mut String) {
    out.push_str(random.pick(&["", "", " ", "\t\r\n "]));
    match arg {
        Arg::Null => out.push_str("null"),
        Arg::Bool(bool) => out.push_str(if *bool { "true" } else { "false" }),
        Arg::Number(tenths) => {
            let (sign, size) = (if *tenths < 0 { "-" } else { "" }, tenths.abs());
            let (whole, tenth) = (size / 10, size % 10);
            out.push_str(&match random.below(4) {
                0 if tenth == 0 => format!("{sign}{whole}"),
                1 => format!("{sign}{size}e-1"),
                2 => format!("{sign}{whole}.{tenth}00E+0"),
                _ => format!("{sign}{whole}.{tenth}"),
            });
        }
        Arg::Text(text) => spell_text(random, text, out),
        Arg::Broken => out.push_str(random.pick(&[r#""\ud800""#, r#""a\udfffb""#, r#""\ud83d\ud83d""#])),
        Arg::List(list) => {
            out.push('[');
            for (index, arg) in list.iter().enumerate() {
                out.push_str(if index == 0 { "" } else { "," });
                spell(random, arg, out);
            }
            out.push(']');
        }
        Arg::Object(members) => {
            out.push('{');
            let first = random.below(members.len().max(1));
            for index in 0..members.len() {
                let (name, arg) = &members[(first + index) % members.len()];
                out.push_str(if index == 0 { "" } else { "," });
                spell_text(random, name, out);
                out.push_str(random.pick(&[":", " : "]));
                spell(random, arg, out);
            }
            out.push('}');
        }
    }
    out.push_str(random.pick(&["", " "]));
}

fn spell_text(random: &mut Random, text: &str, out: &mut String) {
    out.push('"');
    for c in text.chars() {
        if random.one_in(4) || c.is_control() || c == '"' || c == '\\' {
            for unit in c.encode_utf16(&mut [0; 2]) {
                out.push_str(&format!("\\u{unit:04x}"));
            }
        } else {
            out.push(c);
        }
    }
    out.push('"');
}

/// A rule beside what the naive matcher needs of it.
#[derive(Clone, Debug)]
struct NaiveRule {
    tool: String,
    caller: Option<String>,
    action: Action,
    /// Names on the way, the path as configured, matcher, value.
    conditions: Vec<(Vec<&'static str>, String, &'static str, Arg)>,
}

const PATTERNS: [&str; 5] = ["^a", "b$", "a.*b", "^[/.]+$", "^(a|aa)+$"];

fn random_pattern(random: &mut Random, names: &[&str]) -> String {
    let mut pattern: Vec<char> = random.pick(names).chars().collect();
    for _ in 0..random.below(3) {
        let at = random.below(pattern.len());
        pattern[at] = random.pick(&['*', '?']);
    }
    pattern.into_iter().collect()
}

fn random_rule(random: &mut Random) -> NaiveRule {
    let conditions = (0..random.below(3)).map(|_| {
        let names: Vec<&str> = (0..1 + random.below(2)).map(|_| random.pick(&NAMES)).collect();
        let path = names.iter().map(|name| name.replace('.', r"\.")).collect::<Vec<_>>().join(".");
        let matcher = random.pick(&crate::policy::MATCHERS);
        let value = match matcher {
            "equals" => without_broken(random_arg(random, 2)),
            "in" => Arg::List((0..1 + random.below(3)).map(|_| without_broken(random_arg(random, 1))).collect()),
            "prefix" => Arg::Text(random.pick(&["a", "/", "/a", "é"]).to_owned()),
            "path_under" => {
                let bases = [".", "/", "/a", "/a/", "a", "/b/../a/b", "./a/b"];
                let mut list: Vec<Arg> =
                    (0..1 + random.below(2)).map(|_| Arg::Text(random.pick(&bases).to_owned())).collect();
                if list.len() == 1 { list.remove(0) } else { Arg::List(list) }
            }
            "regex" => Arg::Text(random.pick(&PATTERNS).to_owned()),
            "max_length" => Arg::Number(random.pick(&[0, 10, 20, 30])),
            _ => Arg::Number(random.pick(&[-15, -1, 0, 10, 15])),
        };
        (names, path, matcher, value)
    });
    let conditions = conditions.collect();
    NaiveRule {
        tool: random_pattern(random, &["read", "write", "re\nd"]),
        caller: if random.one_in(3) { Some(random_pattern(random, &["local", "ci"])) } else { None },
        action: random.pick(&[Action::Allow, Action::Deny]),
        conditions,
    }
}

fn to_source(rule: &NaiveRule) -> RuleSource {
    let args = rule
        .conditions
        .iter()
        .map(|(_, path, matcher, value)| (path.clone(), vec![((*matcher).to_owned(), to_value(value))]));
    RuleSource { tool: rule.tool.clone(), caller: rule.caller.clone(), action: rule.action, args: args.collect() }
}

fn naive_glob(pattern: &[char], text: &[char]) -> bool {
    match (pattern.first(), text.first()) {
        (None, None) => true,
        (Some('*'), _) if naive_glob(&pattern[1..], text) => true,
        (Some('*'), Some(_)) => naive_glob(pattern, &text[1..]),
        (Some(p), Some(t)) if *p == '?' || p == t => naive_glob(&pattern[1..], &text[1..]),
        _ => false,
    }
}

fn glob(pattern: &str, text: &str) -> bool {
    naive_glob(&pattern.chars().collect::<Vec<_>>(), &text.chars().collect::<Vec<_>>())
}

fn naive_find<'a>(arg: &'a Arg, names: &[&str]) -> Option<&'a Arg> {
    let Some((name, rest)) = names.split_first() else { return Some(arg) };
    match arg {
        Arg::Object(members) => naive_find(&members.iter().find(|(known, _)| known == name)?.1, rest),
        Arg::List(list) => naive_find(list.get(name.parse::<usize>().ok()?)?, rest),
        Arg::Null | Arg::Bool(_) | Arg::Number(_) | Arg::Text(_) | Arg::Broken => None,
    }
}

/// The components after `.` and `..` are gone; `None` if a relative path climbs out.
fn naive_normal(path: &str) -> Option<Vec<&str>> {
    let mut stack = Vec::new();
    for part in path.split('/') {
        match part {
            "" | "." => {}
            ".." if !stack.is_empty() => {
                stack.pop();
            }
            ".." if path.starts_with('/') => {}
            ".." => return None,
            part => stack.push(part),
        }
    }
    Some(stack)
}

fn naive_under(base: &str, path: &str) -> Option<bool> {
    let odd = path.is_empty() || path.contains('\\') || path.contains('\0') || path.starts_with('~');
    if odd || path.split('/').next()?.contains(':') || path.starts_with('/') != base.starts_with('/') {
        return None;
    }
    Some(naive_normal(path)?.starts_with(&naive_normal(base)?))
}

/// `None` is doubt.
fn naive_judge(matcher: &str, value: &Arg, arg: &Arg) -> Option<bool> {
    match (matcher, value, arg) {
        ("equals", value, arg) => Some(value == arg && *arg != Arg::Broken),
        ("in", Arg::List(values), arg) => Some(values.contains(arg)),
        ("prefix", Arg::Text(prefix), Arg::Text(text)) => Some(text.find(prefix.as_str()) == Some(0)),
        ("path_under", Arg::Text(base), Arg::Text(text)) => naive_under(base, text),
        ("path_under", Arg::List(bases), Arg::Text(_)) => {
            let outcomes: Vec<_> = bases.iter().map(|base| naive_judge("path_under", base, arg)).collect();
            if outcomes.contains(&Some(true)) {
                Some(true)
            } else if outcomes.contains(&None) {
                None
            } else {
                Some(false)
            }
        }
        ("regex", Arg::Text(pattern), Arg::Text(text)) => Some(match pattern.as_str() {
            "^a" => text.starts_with('a'),
            "b$" => text.ends_with('b'),
            "a.*b" => text.split('\n').any(|line| line.find('a').is_some_and(|at| line[at..].contains('b'))),
            "^[/.]+$" => !text.is_empty() && text.chars().all(|c| c == '/' || c == '.'),
            _ => !text.is_empty() && text.chars().all(|c| c == 'a'),
        }),
        ("max_length", Arg::Number(max), Arg::Text(text)) => Some(text.encode_utf16().count() as i64 * 10 <= *max),
        ("max_length", Arg::Number(max), Arg::List(list)) => Some(list.len() as i64 * 10 <= *max),
        ("min", Arg::Number(min), Arg::Number(number)) => Some(number >= min),
        ("max", Arg::Number(max), Arg::Number(number)) => Some(number <= max),
        _ => None,
    }
}

fn naive_matches(rule: &NaiveRule, tool: &str, caller: &str, arguments: Option<&Arg>) -> bool {
    glob(&rule.tool, tool)
        && rule.caller.as_ref().is_none_or(|pattern| glob(pattern, caller))
        && rule.conditions.iter().all(|(names, _, matcher, value)| {
            arguments
                .and_then(|arguments| naive_find(arguments, names))
                .is_some_and(|arg| naive_judge(matcher, value, arg).unwrap_or(rule.action == Action::Deny))
        })
}

fn naive_decide(rules: &[NaiveRule], tool: &str, caller: &str, arguments: Option<&Arg>) -> Option<usize> {
    let score = |rule: &NaiveRule| {
        let exact = !rule.tool.contains('*') && !rule.tool.contains('?');
        1 + usize::from(exact) + usize::from(rule.caller.is_some()) + rule.conditions.len()
    };
    let mut best: Option<usize> = None;
    for (index, rule) in rules.iter().enumerate() {
        if !naive_matches(rule, tool, caller, arguments) {
            continue;
        }
        let better = best.is_none_or(|best| {
            let best = &rules[best];
            score(rule) > score(best)
                || (score(rule) == score(best) && rule.action == Action::Deny && best.action == Action::Allow)
        });
        if better {
            best = Some(index);
        }
    }
    best
}

#[test]
fn the_compiled_policy_agrees_with_the_naive_one() {
    let mut random = Random::seeded(20_261_130);
    let mut decided = [0_usize; 3];
    let mut in_doubt = 0;
    for round in 0..6_000 {
        let rules: Vec<NaiveRule> = (0..random.below(6)).map(|_| random_rule(&mut random)).collect();
        let default = random.pick(&[Action::Allow, Action::Deny]);
        let policy = compile(default, &rules.iter().map(to_source).collect::<Vec<_>>());
        for _ in 0..4 {
            let arguments = if random.one_in(10) { None } else { Some(random_object(&mut random, 2)) };
            let (tool, caller) = (random.pick(&["read", "write", "re\nd", "red"]), random.pick(&["local", "ci"]));
            let mut text = String::new();
            if let Some(arguments) = &arguments {
                spell(&mut random, arguments, &mut text);
            }
            let json = arguments.is_some().then(|| Json::parse(text.as_bytes()).expect("the spelling is JSON"));
            let verdict = policy.decide(tool, caller, json);
            let naive = naive_decide(&rules, tool, caller, arguments.as_ref());
            assert_eq!(
                verdict.rule,
                naive.map(|index| index + 1),
                "round {round}: {tool:?} by {caller} with {text}\nrules: {rules:#?}"
            );
            let action = naive.map_or(default, |index| rules[index].action);
            assert_eq!(verdict.action, action, "round {round}");
            decided[naive.map_or(2, |index| rules[index].action as usize)] += 1;
            in_doubt += usize::from(verdict.reason.contains("cannot be judged"));
        }
    }
    assert!(decided.iter().all(|count| *count > 2_000), "the generator has become one-sided: {decided:?}");
    assert!(in_doubt > 200, "the generator has become one-sided: {in_doubt} in doubt");
}

#[test]
fn every_matcher_agrees_with_the_naive_one_on_its_own() {
    let mut random = Random::seeded(7);
    for matcher in crate::policy::MATCHERS {
        let mut seen = [0_usize; 3];
        for round in 0..3_000 {
            let value = loop {
                let rule = random_rule(&mut random);
                if let Some((_, _, _, value)) = rule.conditions.into_iter().find(|(_, _, name, _)| *name == matcher) {
                    break value;
                }
            };
            let arg = if random.one_in(4) { without_broken(value.clone()) } else { random_arg(&mut random, 2) };
            let mut text = String::from("{\"a\":");
            spell(&mut random, &arg, &mut text);
            text.push('}');
            let naive = naive_judge(matcher, &value, &arg);
            let matched = |action, default| {
                let policy = compile(default, &[rule_on_a(action, matcher, to_value(&value))]);
                decide(&policy, "t", &text).rule.is_some()
            };
            assert_eq!(
                matched(Action::Allow, Action::Deny),
                naive == Some(true),
                "round {round}: {matcher} {value:?} {text}"
            );
            assert_eq!(
                matched(Action::Deny, Action::Allow),
                naive != Some(false),
                "round {round}: {matcher} {value:?} {text}"
            );
            seen[naive.map_or(2, usize::from)] += 1;
        }
        let never_in_doubt = matcher == "equals" || matcher == "in";
        assert!(seen[0] > 50 && seen[1] > 50, "{matcher}: {seen:?}");
        assert_eq!(seen[2] == 0, never_in_doubt, "{matcher}: {seen:?}");
    }
}
