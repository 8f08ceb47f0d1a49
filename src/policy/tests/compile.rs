//! What is refused when the configuration is read, and patterns that burn time elsewhere.

use serde_json::{Value, json};

use super::*;

fn message_of(matcher: &str, value: Value) -> String {
    let problems = problems(&[rule_on_a(Action::Deny, matcher, value)]);
    assert_eq!(problems.len(), 1, "{problems:?}");
    assert_eq!(problems[0].field, format!("args.a.{matcher}"));
    problems[0].message.clone()
}

#[test]
fn wrong_matcher_values_say_what_is_allowed() {
    let rows = [
        ("in", json!([]), "must be a list of at least one value, found an empty list"),
        ("in", json!("x"), "must be a list of at least one value, found a string"),
        ("prefix", json!(""), "must not be empty"),
        ("prefix", json!(5), "must be a string, found 5"),
        ("regex", json!(""), "must not be empty"),
        ("regex", json!(["x"]), "must be a string, found a list"),
        ("path_under", json!([]), "must be a path or a list of paths, found an empty list"),
        ("path_under", json!(["/a", 1]), "must be a path or a list of paths, found a list"),
        ("path_under", json!({}), "must be a path or a list of paths, found a mapping"),
        ("max_length", json!(-1), "must be a whole number of at least 0, found -1"),
        ("max_length", json!(1.5), "must be a whole number of at least 0, found 1.5"),
        ("max_length", json!("3"), "must be a whole number of at least 0, found a string"),
        ("min", json!("3"), "must be a number, found a string"),
        ("max", json!(null), "must be a number, found null"),
    ];
    for (matcher, value, expected) in rows {
        assert_eq!(message_of(matcher, value.clone()), expected, "{matcher}: {value}");
    }
}

#[test]
fn cfg_1_a_mistyped_matcher_is_refused() {
    let message = message_of("prefx", json!("/ok"));
    assert!(message.starts_with("is not a matcher; did you mean prefix? the matchers are equals, in, "), "{message}");
    let message = message_of("glob", json!("*"));
    assert!(message.starts_with("is not a matcher; the matchers are equals, in, "), "{message}");
}

#[test]
fn every_problem_of_every_rule_is_told() {
    let mut bad = rule(Action::Deny, "", Some(""));
    bad.args = vec![
        ("a..b".into(), vec![("regex".into(), json!("("))]),
        ("c".into(), vec![]),
        ("d".into(), vec![("min".into(), json!([])), ("max".into(), json!(1))]),
    ];
    let found = problems(&[rule(Action::Allow, "ok", None), bad, rule_on_a(Action::Deny, "in", json!([]))]);
    let places: Vec<(usize, &str)> = found.iter().map(|problem| (problem.rule, problem.field.as_str())).collect();
    let expected = [
        (1, "tool"),
        (1, "caller"),
        (1, "args.a..b"),
        (1, "args.a..b.regex"),
        (1, "args.c"),
        (1, "args.d.min"),
        (2, "args.a.in"),
    ];
    assert_eq!(places, expected);
}

#[test]
fn numbers_that_the_configuration_rounded_are_refused_where_equality_counts() {
    let rounded: Value = serde_json::from_str("123456789012345678901234567890").expect("a number");
    for (matcher, value) in [("equals", rounded.clone()), ("in", json!([1, rounded])), ("equals", json!([-1e300]))] {
        let message = message_of(matcher, value);
        assert!(message.ends_with("is too large to be compared exactly; use min and max"), "{message}");
    }
    compile(Action::Allow, &[rule_on_a(Action::Deny, "max", json!(1e300))]);
    compile(Action::Allow, &[rule_on_a(Action::Deny, "equals", json!(u64::MAX))]);
    compile(Action::Allow, &[rule_on_a(Action::Deny, "equals", json!(i64::MIN))]);
}

#[test]
fn a_configured_value_nested_too_deep_is_refused() {
    let nested = |levels: usize| (1..levels).fold(json!([]), |value, _| json!([value]));
    compile(Action::Allow, &[rule_on_a(Action::Deny, "equals", nested(128))]);
    assert_eq!(message_of("equals", nested(129)), "is nested deeper than 128 levels");
}

#[test]
fn look_around_and_back_references_are_refused_with_the_reason() {
    for pattern in ["(?=x)", "(?!x)y", "(?<=x)y", "(?<!x)y"] {
        let message = message_of("regex", json!(pattern));
        assert!(message.starts_with("look-around is not supported; patterns run in linear time"), "{message}");
    }
    for pattern in [r"(a)\1", r"(x)y\2"] {
        let message = message_of("regex", json!(pattern));
        assert!(message.starts_with("back-references are not supported; patterns run in linear time"), "{message}");
    }
    for pattern in ["(", "[a", "a{2", "*", r"\p{L}", r"\q"] {
        let message = message_of("regex", json!(pattern));
        assert!(message.starts_with("is not a valid pattern: "), "{pattern}: {message}");
    }
}

#[test]
fn cfg_2_patterns_that_would_burn_cpu_are_bounded_before_they_run() {
    let message = message_of("regex", json!("(?:a{0,500}){500}"));
    assert!(message.starts_with("is too large once its counted repetitions are written out"), "{message}");
    for pattern in ["a{4000000000}", "a{2000}", "(?:a{0,40}){40}"] {
        let message = message_of("regex", json!(pattern));
        assert!(message.starts_with("is too large"), "{pattern}: {message}");
    }
    let message = message_of("regex", json!("x".repeat(100 * 1024)));
    assert_eq!(message, "has 102400 characters, at most 200 are allowed; split the rule");
    assert_eq!(
        message_of("regex", json!("é".repeat(201))),
        "has 201 characters, at most 200 are allowed; split the rule"
    );
    compile(Action::Allow, &[rule_on_a(Action::Deny, "regex", json!("é".repeat(200)))]);
    compile(Action::Allow, &[rule_on_a(Action::Deny, "regex", json!("()".repeat(100)))]);
    compile(Action::Allow, &[rule_on_a(Action::Deny, "regex", json!("^[A-Za-z0-9_-]{1,256}$"))]);
}

#[test]
fn cfg_2_patterns_that_make_others_backtrack_for_ever_finish() {
    // A backtracking engine needs more than 2^4096 steps for some of these; that the test ends is the assertion.
    let rows = [
        (r"([^/]+(?:,[^/]+)*)$", "a,", "/"),
        ("^(a|aa)+$", "a", "b"),
        ("(x+x+)+y", "x", "z"),
        ("^((a+))+$", "a", "b"),
        ("a*a*a*a*a*b", "a", "c"),
        ("^(ab?)+$", "ab", "c"),
    ];
    for (pattern, repeated, bad_end) in rows {
        let policy = compile(Action::Allow, &[rule_on_a(Action::Deny, "regex", json!(pattern))]);
        for length in [4_096, 60 * 1024] {
            let text = repeated.repeat(length / repeated.len()) + bad_end;
            assert_eq!(decide(&policy, "t", &json!({ "a": text }).to_string()).rule, None, "{pattern} on {length}");
        }
    }
}
