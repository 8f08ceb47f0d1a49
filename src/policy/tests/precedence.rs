//! Which of several matching rules decides.

use serde_json::json;

use super::*;
use crate::policy::startup_warnings;

fn deciding_rule(rules: &[RuleSource], tool: &str, caller: &str) -> Option<usize> {
    compile(Action::Allow, rules).decide(tool, caller, None).rule
}

#[test]
fn without_a_matching_rule_the_default_decides() {
    for (default, word) in [(Action::Allow, "allow"), (Action::Deny, "deny")] {
        let policy = compile(default, &[rule(Action::Deny, "write_*", None), rule(Action::Allow, "write_*", None)]);
        let verdict = decide(&policy, "read", "{}");
        let reason = format!("no rule matches; policy.default is {word}");
        assert_eq!(verdict, Verdict { action: default, rule: None, reason });
    }
}

#[test]
fn an_exact_tool_beats_a_glob() {
    let rules = [rule(Action::Deny, "*", None), rule(Action::Allow, "read", None)];
    assert_eq!(deciding_rule(&rules, "read", "local"), Some(2));
    assert_eq!(deciding_rule(&rules, "write", "local"), Some(1));
}

#[test]
fn a_caller_counts_as_one_and_is_a_glob() {
    let rules = [rule(Action::Deny, "*", None), rule(Action::Allow, "*", Some("ci-*"))];
    assert_eq!(deciding_rule(&rules, "read", "ci-7"), Some(2));
    assert_eq!(deciding_rule(&rules, "read", "ci"), Some(1));
    assert_eq!(deciding_rule(&rules, "read", "local"), Some(1));
    let exact = [rule(Action::Deny, "*", Some("ci.7"))];
    assert_eq!(deciding_rule(&exact, "read", "ci.7"), Some(1));
    assert_eq!(deciding_rule(&exact, "read", "cix7"), None);
}

#[test]
fn each_matcher_counts_as_one() {
    let mut narrow = rule_on_a(Action::Allow, "prefix", json!("x"));
    narrow.args[0].1.push(("max_length".into(), json!(5)));
    let policy = compile(Action::Allow, &[rule(Action::Deny, "t", None), narrow]);
    assert_eq!(decide(&policy, "t", r#"{"a":"xy"}"#).rule, Some(2), "glob 1 + 2 matchers beat exact 2");
    assert_eq!(decide(&policy, "t", r#"{"a":"xyxyxy"}"#).rule, Some(1));
}

#[test]
fn among_equally_specific_rules_deny_wins_and_then_the_order_of_the_file() {
    let allow = rule(Action::Allow, "re*", None);
    let deny = rule(Action::Deny, "*ad", None);
    assert_eq!(deciding_rule(&[allow.clone(), deny.clone()], "read", "local"), Some(2));
    assert_eq!(deciding_rule(&[deny.clone(), allow.clone()], "read", "local"), Some(1));
    assert_eq!(deciding_rule(&[allow.clone(), deny.clone(), deny], "read", "local"), Some(2));
    assert_eq!(deciding_rule(&[allow.clone(), allow], "read", "local"), Some(1));
}

#[test]
fn a_more_specific_allow_beats_a_deny() {
    let rules = [rule(Action::Deny, "*", None), rule(Action::Deny, "re*", None), rule(Action::Allow, "read", None)];
    assert_eq!(deciding_rule(&rules, "read", "local"), Some(3));
}

#[test]
fn a_tool_name_with_a_newline_does_not_escape_a_deny_rule() {
    let rules = [rule(Action::Deny, "delete_*", None)];
    assert_eq!(deciding_rule(&rules, "delete_\nall", "local"), Some(1));
    assert_eq!(deciding_rule(&[rule(Action::Deny, "delete?all", None)], "delete\nall", "local"), Some(1));
}

#[test]
fn only_a_policy_without_rules_warns() {
    let warnings = |default, rules: &[RuleSource]| startup_warnings(&compile(default, rules));
    assert_eq!(warnings(Action::Allow, &[]).len(), 1);
    assert!(warnings(Action::Allow, &[])[0].ends_with("every tool is allowed"));
    assert!(warnings(Action::Deny, &[])[0].ends_with("every tools/call is denied"));
    assert!(warnings(Action::Allow, &[rule(Action::Allow, "*", None)]).is_empty());
}
