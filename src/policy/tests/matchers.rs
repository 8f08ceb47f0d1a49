//! One table of every matcher: what it takes, what it does not, and what it cannot judge.

use serde_json::{Value, json};

use super::*;
use crate::policy::REGEX_INPUT_BYTES_MAX;

#[derive(Clone, Copy, Debug, PartialEq)]
enum Expect {
    /// Allow and deny rules match.
    Match,
    /// Neither matches.
    No,
    /// In doubt: only the deny rule matches.
    Doubt,
}
use Expect::{Doubt, Match, No};

/// Asks the rule in its allow and in its deny form, each with the opposite default, so that the action tells.
fn ask(matcher: &str, value: &Value, arguments: &str) -> Expect {
    let allow = compile(Action::Deny, &[rule_on_a(Action::Allow, matcher, value.clone())]);
    let deny = compile(Action::Allow, &[rule_on_a(Action::Deny, matcher, value.clone())]);
    match (decide(&allow, "t", arguments).action, decide(&deny, "t", arguments).action) {
        (Action::Allow, Action::Deny) => Match,
        (Action::Deny, Action::Allow) => No,
        (Action::Deny, Action::Deny) => Doubt,
        (Action::Allow, Action::Allow) => panic!("{matcher} {value} let {arguments} through in both forms"),
    }
}

fn check(matcher: &str, value: Value, rows: &[(&str, Expect)]) {
    for (argument, expected) in rows {
        let arguments = format!(r#"{{"b":1,"a":{argument}}}"#);
        assert_eq!(ask(matcher, &value, &arguments), *expected, "{matcher}: {value} on {argument}");
    }
}

/// `text` as a JSON string.
fn quoted(text: &str) -> String {
    Value::from(text).to_string()
}

const LONE_SURROGATE: &str = r#""x\ud800""#;

#[test]
fn a_missing_path_never_matches() {
    let all = [
        ("equals", json!(null)),
        ("in", json!([null])),
        ("prefix", json!("x")),
        ("path_under", json!("/x")),
        ("regex", json!(".*")),
        ("max_length", json!(9)),
        ("min", json!(0)),
        ("max", json!(0)),
    ];
    for (matcher, value) in all {
        for arguments in ["{}", r#"{"b":"x"}"#, r#"{"aa":null}"#, "[]", "null", r#""a""#] {
            assert_eq!(ask(matcher, &value, arguments), No, "{matcher} on {arguments}");
        }
        let deny = compile(Action::Allow, &[rule_on_a(Action::Deny, matcher, value)]);
        assert_eq!(deny.decide("t", "local", None).action, Action::Allow, "{matcher} without arguments");
    }
}

#[test]
fn equals_compares_deeply_and_is_never_in_doubt() {
    check(
        "equals",
        json!("x"),
        &[
            (r#""x""#, Match),
            (r#""\u0078""#, Match),
            (r#""X""#, No),
            (r#""x ""#, No),
            (r#"["x"]"#, No),
            ("1", No),
            ("null", No),
            ("{}", No),
            (LONE_SURROGATE, No),
        ],
    );
    check("equals", json!(null), &[("null", Match), ("false", No), ("0", No), (r#""""#, No)]);
    check("equals", json!(true), &[("true", Match), ("false", No), ("1", No), (r#""true""#, No)]);
    check("equals", json!(false), &[("false", Match), ("true", No), ("null", No)]);
    check(
        "equals",
        json!({"k": [1, {"x": null}], "l": {}}),
        &[
            (r#"{"k":[1,{"x":null}],"l":{}}"#, Match),
            (r#"{ "l" : {} , "\u006b" : [ 1.0 , {"x":null} ] }"#, Match),
            (r#"{"k":[1,{"x":null}]}"#, No),
            (r#"{"k":[1,{"x":null}],"l":{},"m":1}"#, No),
            (r#"{"k":[{"x":null},1],"l":{}}"#, No),
            (r#"{"k":[1,{"x":null},2],"l":{}}"#, No),
            (r#"{"k":[1],"l":{}}"#, No),
            (r#"{"k":[1,{"x":null}],"k":[1,{"x":null}]}"#, No),
            (r#"{"k":[1,{"x":null}],"\ud800":{}}"#, No),
            ("[]", No),
        ],
    );
    check("equals", json!([]), &[("[]", Match), ("[ ]", Match), ("[null]", No), ("{}", No)]);
    check("equals", json!({}), &[("{}", Match), (r#"{"a":1}"#, No), ("[]", No)]);
}

#[test]
fn jsn_2_numbers_are_equal_whatever_their_spelling() {
    check(
        "equals",
        json!(100),
        &[
            ("100", Match),
            ("100.0", Match),
            ("1e2", Match),
            ("1E+2", Match),
            ("10000e-2", Match),
            ("100.00000000000000000000000001", No),
            ("-100", No),
            (r#""100""#, No),
        ],
    );
    check("equals", json!(0.1), &[("0.1", Match), ("1e-1", Match), ("0.10000000000000000555", No)]);
    check("equals", json!(0), &[("0", Match), ("-0", Match), ("0.0e99", Match), ("1e-400", No)]);
}

#[test]
fn jsn_1_whole_numbers_above_2_to_the_53_are_not_rounded() {
    check(
        "equals",
        json!(9_007_199_254_740_993_u64),
        &[("9007199254740993", Match), ("9007199254740992", No), ("9007199254740994", No)],
    );
    check("max", json!(9_007_199_254_740_992_u64), &[("9007199254740992", Match), ("9007199254740993", No)]);
    check("min", json!(u64::MAX), &[("18446744073709551615", Match), ("18446744073709551614.9", No)]);
}

#[test]
fn in_takes_any_of_its_values() {
    check(
        "in",
        json!(["x", 1, null, [2]]),
        &[
            (r#""x""#, Match),
            ("1.0", Match),
            ("null", Match),
            ("[2]", Match),
            ("[\"x\"]", No),
            ("2", No),
            ("{}", No),
            (LONE_SURROGATE, No),
        ],
    );
}

#[test]
fn prefix_takes_strings_of_any_length() {
    check(
        "prefix",
        json!("/data"),
        &[
            (r#""/data""#, Match),
            (r#""/database""#, Match),
            (r#""\/d\u0061ta/x""#, Match),
            (r#""/dat""#, No),
            (r#"" /data""#, No),
            (r#""""#, No),
            (r#""/data\udc00""#, Doubt),
            (LONE_SURROGATE, Doubt),
            (r#"["/data"]"#, Doubt),
            ("7", Doubt),
            ("null", Doubt),
            ("true", Doubt),
            ("{}", Doubt),
            (&quoted(&format!("/data{}", "x".repeat(200_000))), Match),
            (&quoted(&"x".repeat(200_000)), No),
        ],
    );
}

#[test]
fn path_under_understands_paths() {
    check(
        "path_under",
        json!("/projects"),
        &[
            (r#""/projects/a""#, Match),
            (r#""\/projects/./a/../b""#, Match),
            (r#""/projects-evil""#, No),
            (r#""/projects/../etc""#, No),
            (r#""/projects/\u002e\u002e/etc""#, No),
            (r#""relative""#, Doubt),
            (r#""""#, Doubt),
            (r#""/projects/a\u0000b""#, Doubt),
            (r#""/projects\\a""#, Doubt),
            (r#""/projects/\ud800""#, Doubt),
            (r#"["/projects/a"]"#, Doubt),
            ("null", Doubt),
            ("1", Doubt),
            ("false", Doubt),
            ("{}", Doubt),
            (&quoted(&format!("/projects{}", "/x".repeat(100_000))), Match),
            (&quoted(&format!("/projects{}{}", "/x".repeat(100_000), "/..".repeat(100_001))), No),
        ],
    );
    check(
        "path_under",
        json!(["/a", "/b", "c"]),
        &[(r#""/a/x""#, Match), (r#""/b""#, Match), (r#""c/x""#, Match), (r#""/c/x""#, Doubt), (r#""d""#, Doubt)],
    );
}

#[test]
fn regex_is_unanchored_and_capped() {
    let at_cap = "x".repeat(REGEX_INPUT_BYTES_MAX - 1) + "7";
    check(
        "regex",
        json!("[0-9]$"),
        &[
            (r#""abc7""#, Match),
            (r#""\u0037""#, Match),
            (r#""abc""#, No),
            (r#""7\n""#, No),
            (r#""""#, No),
            ("7", Doubt),
            ("[7]", Doubt),
            ("null", Doubt),
            ("true", Doubt),
            ("{}", Doubt),
            (LONE_SURROGATE, Doubt),
            (&quoted(&at_cap), Match),
            (&quoted(&format!("x{at_cap}")), Doubt),
            (&quoted(&"é".repeat(REGEX_INPUT_BYTES_MAX / 2)), No),
            (&quoted(&"é".repeat(REGEX_INPUT_BYTES_MAX / 2 + 1)), Doubt),
        ],
    );
}

#[test]
fn max_length_counts_utf_16_units_and_elements() {
    check(
        "max_length",
        json!(3),
        &[
            (r#""abc""#, Match),
            (r#""abcd""#, No),
            (r#""\u0061bc""#, Match),
            (r#""ééé""#, Match),
            (r#""😀x""#, Match),
            (r#""\ud83d\ude00x""#, Match),
            (r#""😀😀""#, No),
            (r#""""#, Match),
            ("[]", Match),
            ("[[1,2,3,4],2,3]", Match),
            ("[1,2,3,4]", No),
            ("{}", Doubt),
            ("3", Doubt),
            ("null", Doubt),
            ("true", Doubt),
            (LONE_SURROGATE, Doubt),
            (&quoted(&"x".repeat(200_000)), No),
        ],
    );
}

#[test]
fn min_and_max_compare_exactly() {
    check(
        "min",
        json!(10),
        &[
            ("10", Match),
            ("1e400", Match),
            ("10.000000000000000000001", Match),
            ("9.999999999999999999999", No),
            ("-1e400", No),
            (r#""10""#, Doubt),
            ("[10]", Doubt),
            ("null", Doubt),
            ("true", Doubt),
            ("{}", Doubt),
        ],
    );
    check(
        "max",
        json!(-0.5),
        &[
            ("-0.5", Match),
            ("-5e-1", Match),
            ("-1e400", Match),
            ("-0.4999999999999999999999", No),
            ("0", No),
            (r#""-1""#, Doubt),
            ("null", Doubt),
        ],
    );
}

#[test]
fn jsn_3_a_name_in_another_case_is_in_doubt() {
    for arguments in [r#"{"A":"x"}"#, r#"{"a":"x","A":"y"}"#, r#"{"\u0041":"y","a":"x"}"#] {
        assert_eq!(ask("equals", &json!("x"), arguments), Doubt, "{arguments}");
    }
    assert_eq!(ask("equals", &json!("x"), r#"{"a":"x","B":1,"b":{"A":1}}"#), Match);
}

#[test]
fn all_conditions_must_hold_and_one_that_fails_outweighs_a_doubt() {
    let conditions = vec![
        ("a".to_owned(), vec![("prefix".to_owned(), json!("x")), ("max_length".to_owned(), json!(3))]),
        ("n.0".to_owned(), vec![("min".to_owned(), json!(5))]),
    ];
    let with = |action| RuleSource { tool: "*".into(), caller: None, action, args: conditions.clone() };
    let allow = compile(Action::Deny, &[with(Action::Allow)]);
    let deny = compile(Action::Allow, &[with(Action::Deny)]);
    let rows = [
        (r#"{"a":"xy","n":[5]}"#, Match),
        (r#"{"a":"xyzw","n":[5]}"#, No),
        (r#"{"a":"y","n":[5]}"#, No),
        (r#"{"a":"xy","n":[4]}"#, No),
        (r#"{"a":"xy"}"#, No),
        (r#"{"a":"xy","n":["5"]}"#, Doubt),
        (r#"{"a":7,"n":["5"]}"#, Doubt),
        (r#"{"a":7,"n":[4]}"#, No),
        (r#"{"a":7}"#, No),
    ];
    for (arguments, expected) in rows {
        assert_eq!(decide(&allow, "t", arguments).action == Action::Allow, expected == Match, "allow {arguments}");
        assert_eq!(decide(&deny, "t", arguments).action == Action::Deny, expected != No, "deny {arguments}");
    }
}

#[test]
fn jsn_5_deeply_nested_arguments_are_judged() {
    let deep = |levels: usize| format!(r#"{{"a":{}1{}}}"#, "[".repeat(levels), "]".repeat(levels));
    let mut expected = json!(1);
    for _ in 0..100 {
        expected = json!([expected]);
    }
    assert_eq!(ask("equals", &expected, &deep(100)), Match);
    assert_eq!(ask("equals", &expected, &deep(101)), No);
    assert_eq!(ask("equals", &expected, &deep(100_000)), No);
    assert_eq!(ask("max_length", &json!(1), &deep(100_000)), Match);
    assert_eq!(ask("prefix", &json!("x"), &deep(100_000)), Doubt);
}

#[test]
fn the_reason_names_rule_and_doubt_but_no_argument() {
    let policy = compile(Action::Allow, &[rule_on_a(Action::Deny, "regex", json!("s3cret"))]);
    let verdict = decide(&policy, "t", r#"{"a":"s3cret"}"#);
    assert_eq!(verdict.reason, r#"rule #1 (tool "*") denies the call"#);
    let verdict = decide(&policy, "t", r#"{"a":["s3cret"]}"#);
    assert_eq!(
        verdict.reason,
        r#"rule #1 (tool "*") denies the call; args.a by regex cannot be judged: it is not a string"#
    );
}
