//! Whether arguments still fit a tool's `inputSchema`: the everyday part of JSON Schema, and what it left unchecked.
//!
//! It complains only where it is sure. Words of the schema that it does not know, and everything that they could permit or
//! forbid, are left to the server; their names are given.

use std::collections::BTreeSet;

use crate::record::hash::arguments_hash;
use crate::wire::json::{Json, Kind};
use crate::wire::number::Decimal;

/// Deeper values are not looked at.
const DEPTH_MAX: usize = 200;

/// More complaints help nobody.
const PROBLEMS_MAX: usize = 100;

/// A value quoted in a complaint is cut behind so many characters.
const QUOTED_MAX: usize = 60;

/// What a check found.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Checked {
    /// What does not fit, each naming its place.
    pub(super) problems: Vec<String>,
    /// Words of the schema that were not looked at, each once.
    pub(super) unchecked: Vec<String>,
}

/// Words that permit and forbid nothing.
const NOTES: [&str; 13] = [
    "$schema",
    "$id",
    "$comment",
    "$defs",
    "definitions",
    "title",
    "description",
    "default",
    "examples",
    "deprecated",
    "readOnly",
    "writeOnly",
    "$anchor",
];

/// Words that are looked at.
const CHECKED: [&str; 17] = [
    "type",
    "enum",
    "const",
    "required",
    "properties",
    "additionalProperties",
    "items",
    "minimum",
    "maximum",
    "exclusiveMinimum",
    "exclusiveMaximum",
    "minLength",
    "maxLength",
    "minItems",
    "maxItems",
    "minProperties",
    "maxProperties",
];

/// Looks whether `value` fits `schema`. A text that holds `unknown` stands for a value that is not known here.
pub(super) fn check(schema: Json<'_>, value: Json<'_>, unknown: Option<&str>) -> Checked {
    let mut check = Check { unknown, problems: Vec::new(), unchecked: BTreeSet::new(), path: Vec::new() };
    check.value(schema, value);
    Checked { problems: check.problems, unchecked: check.unchecked.into_iter().collect() }
}

/// Whether a number, the first, keeps within a bound, the second.
type Fits = fn(&Decimal, &Decimal) -> bool;

struct Check<'u> {
    unknown: Option<&'u str>,
    problems: Vec<String>,
    unchecked: BTreeSet<String>,
    path: Vec<String>,
}

impl Check<'_> {
    fn complain(&mut self, text: &str) {
        if self.problems.len() < PROBLEMS_MAX {
            let place = if self.path.is_empty() { "the argument list".to_owned() } else { self.path.join(".") };
            self.problems.push(format!("{place} {text}"));
        }
    }

    fn value(&mut self, schema: Json<'_>, value: Json<'_>) {
        match schema.kind() {
            Kind::True => return,
            Kind::False => return self.complain("is not allowed"),
            Kind::Object => {}
            // No schema.
            Kind::Array | Kind::String | Kind::Number | Kind::Null => return,
        }
        if self.path.len() > DEPTH_MAX {
            self.unchecked.insert("(what is nested deeper)".to_owned());
            return;
        }
        let hidden = |unknown: &str| value.as_str().is_some_and(|text| text.contains(unknown));
        if self.unknown.is_some_and(hidden) {
            return;
        }
        for member in schema.members() {
            let word = member.key.unescape_lossy();
            if !NOTES.contains(&word.as_ref()) && !CHECKED.contains(&word.as_ref()) {
                self.unchecked.insert(word.into_owned());
            }
        }
        self.kind(schema, value);
        self.equal(schema, value);
        match value.kind() {
            Kind::Object => self.object(schema, value),
            Kind::Array => self.array(schema, value),
            Kind::String => self.text(schema, value),
            Kind::Number => self.number(schema, value),
            Kind::True | Kind::False | Kind::Null => {}
        }
    }

    fn kind(&mut self, schema: Json<'_>, value: Json<'_>) {
        let Some(types) = schema.member("type") else { return };
        let known = |name: &str| ["object", "array", "string", "number", "integer", "boolean", "null"].contains(&name);
        let names: Vec<String> = match types.kind() {
            Kind::String => types.as_str().map(Into::into).into_iter().collect(),
            Kind::Array => types.elements().filter_map(|name| name.as_str().map(Into::into)).collect(),
            Kind::Object | Kind::Number | Kind::True | Kind::False | Kind::Null => Vec::new(),
        };
        if names.is_empty() || names.iter().any(|name| !known(name)) {
            self.unchecked.insert("type".to_owned());
            return;
        }
        let fits = |name: &String| match (name.as_str(), value.kind()) {
            ("object", Kind::Object)
            | ("array", Kind::Array)
            | ("string", Kind::String)
            | ("number", Kind::Number)
            | ("boolean", Kind::True | Kind::False)
            | ("null", Kind::Null) => true,
            ("integer", Kind::Number) => Decimal::parse(value.text()).is_some_and(|number| number.is_whole()),
            _ => false,
        };
        if !names.iter().any(fits) {
            self.complain(&format!("must be of type {}, it is {}", names.join(" or "), kind_name(value)));
        }
    }

    fn equal(&mut self, schema: Json<'_>, value: Json<'_>) {
        if let Some(wanted) = schema.member("const")
            && !same(wanted, value)
        {
            self.complain(&format!("must be {}", quoted(wanted)));
        }
        if let Some(list) = schema.member("enum").filter(|list| list.kind() == Kind::Array)
            && !list.elements().any(|wanted| same(wanted, value))
        {
            let names: Vec<String> = list.elements().take(10).map(quoted).collect();
            let more = if list.elements().count() > names.len() { ", …" } else { "" };
            self.complain(&format!("must be one of {}{more}", names.join(", ")));
        }
    }

    fn object(&mut self, schema: Json<'_>, value: Json<'_>) {
        for name in schema.member("required").into_iter().flat_map(Json::elements).filter_map(Json::as_str) {
            if value.member(&name).is_none() {
                self.complain(&format!("lacks the member {name:?}"));
            }
        }
        self.bounds(schema, "Properties", value.members().count(), "members");
        let properties = schema.member("properties");
        let rest = schema.member("additionalProperties");
        // Another word may permit what `properties` does not name.
        let decided = schema.member("patternProperties").is_none();
        for member in value.members() {
            let Some(name) = member.key.unescape() else { continue };
            self.path.push(name.clone().into_owned());
            match (properties.and_then(|properties| properties.member(&name)), rest) {
                (Some(schema), _) => self.value(schema, member.value),
                (None, Some(rest)) if decided => match rest.kind() {
                    Kind::False => self.complain("is a member that the tool does not know"),
                    _ => self.value(rest, member.value),
                },
                (None, Some(_)) => _ = self.unchecked.insert("additionalProperties".to_owned()),
                (None, None) => {}
            }
            self.path.pop();
        }
    }

    fn array(&mut self, schema: Json<'_>, value: Json<'_>) {
        self.bounds(schema, "Items", value.elements().count(), "elements");
        let Some(items) = schema.member("items") else { return };
        // A list of schemas, or other words for the first elements: left to the server.
        if items.kind() == Kind::Array || schema.member("prefixItems").is_some() {
            self.unchecked.insert("items".to_owned());
            return;
        }
        for (index, element) in value.elements().enumerate() {
            self.path.push(index.to_string());
            self.value(items, element);
            self.path.pop();
        }
    }

    fn text(&mut self, schema: Json<'_>, value: Json<'_>) {
        // A lone surrogate has no length that all agree on.
        if let Some(text) = value.as_str() {
            self.bounds(schema, "Length", text.chars().count(), "characters");
        }
    }

    fn bounds(&mut self, schema: Json<'_>, what: &str, count: usize, unit: &str) {
        let count_is = Decimal::from_i64(i64::try_from(count).unwrap_or(i64::MAX));
        let bound = |word: String| schema.member(&word).and_then(|bound| Decimal::parse(bound.text()));
        if let Some(least) = bound(format!("min{what}"))
            && count_is < least
        {
            self.complain(&format!("has {count} {unit}, at least {} are needed", least.canonical()));
        }
        if let Some(most) = bound(format!("max{what}"))
            && count_is > most
        {
            self.complain(&format!("has {count} {unit}, at most {} are allowed", most.canonical()));
        }
    }

    fn number(&mut self, schema: Json<'_>, value: Json<'_>) {
        let Some(number) = Decimal::parse(value.text()) else { return };
        let bound = |word: &str| schema.member(word).filter(|bound| bound.kind() == Kind::Number);
        let tests: [(&str, &str, Fits); 4] = [
            ("minimum", "at least", |number, bound| number >= bound),
            ("maximum", "at most", |number, bound| number <= bound),
            ("exclusiveMinimum", "more than", |number, bound| number > bound),
            ("exclusiveMaximum", "less than", |number, bound| number < bound),
        ];
        for (word, text, fits) in tests {
            if let Some(bound) = bound(word)
                && let Some(limit) = Decimal::parse(bound.text())
                && !fits(&number, &limit)
            {
                self.complain(&format!("must be {text} {}", quoted(bound)));
            }
        }
    }
}

/// Equal as JSON values, whatever their spelling.
fn same(a: Json<'_>, b: Json<'_>) -> bool {
    arguments_hash(Some(a.text())) == arguments_hash(Some(b.text()))
}

fn quoted(value: Json<'_>) -> String {
    let text = String::from_utf8_lossy(value.text());
    match text.char_indices().nth(QUOTED_MAX) {
        Some((cut, _)) => format!("{}…", &text[..cut]),
        None => text.into_owned(),
    }
}

fn kind_name(value: Json<'_>) -> &'static str {
    match value.kind() {
        Kind::Object => "an object",
        Kind::Array => "an array",
        Kind::String => "a string",
        Kind::Number => "a number",
        Kind::True | Kind::False => "a boolean",
        Kind::Null => "null",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn checked(schema: &str, value: &str) -> Checked {
        let json = |text| Json::parse(str::as_bytes(text)).expect("JSON");
        check(json(schema), json(value), Some("[REDACTED]"))
    }

    #[track_caller]
    fn fits(schema: &str, value: &str) {
        assert_eq!(checked(schema, value), Checked::default(), "{schema} {value}");
    }

    #[track_caller]
    fn fails(schema: &str, value: &str, problem: &str) {
        assert_eq!(checked(schema, value).problems, [problem], "{schema} {value}");
    }

    #[test]
    fn types_are_told_apart_and_whole_numbers_by_their_value() {
        let number = r#"{"type":"integer"}"#;
        for whole in ["1", "-0", "1.0", "10e-1", "1e400", "1.5e1", "12345678901234567890123456789012345678901234567890"]
        {
            fits(number, whole);
        }
        for broken in ["1.5", "1e-1", "1.25e1", "1e-400"] {
            fails(number, broken, "the argument list must be of type integer, it is a number");
        }
        fits(r#"{"type":["string","null"]}"#, "null");
        fails(r#"{"type":["string","null"]}"#, "1", "the argument list must be of type string or null, it is a number");
        for (name, value) in [
            ("object", "{}"),
            ("array", "[]"),
            ("string", "\"\""),
            ("number", "1.5"),
            ("boolean", "false"),
            ("null", "null"),
        ] {
            fits(&format!(r#"{{"type":{name:?}}}"#), value);
            assert_eq!(
                checked(&format!(r#"{{"type":{name:?}}}"#), "[[]]").problems.len(),
                usize::from(name != "array")
            );
        }
    }

    #[test]
    fn members_and_elements_are_named_by_their_path() {
        let schema = r#"{"type":"object","required":["path","mode"],"additionalProperties":false,"properties":{
            "path":{"type":"string","minLength":2},"list":{"items":{"type":"number","maximum":3}},"mode":{"enum":["r","w"]}}}"#;
        fits(schema, r#"{"path":"/a","mode":"w","list":[1,3.0]}"#);
        fails(schema, r#"{"path":"/a"}"#, r#"the argument list lacks the member "mode""#);
        fails(schema, r#"{"path":"é","mode":"r"}"#, "path has 1 characters, at least 2 are needed");
        fails(schema, r#"{"path":"/a","mode":"x"}"#, r#"mode must be one of "r", "w""#);
        fails(schema, r#"{"path":"/a","mode":"r","list":[1,2,4]}"#, "list.2 must be at most 3");
        fails(schema, r#"{"path":"/a","mode":"r","new":1}"#, "new is a member that the tool does not know");
        fails(r#"{"additionalProperties":{"type":"null"}}"#, r#"{"a":1}"#, "a must be of type null, it is a number");
    }

    #[test]
    fn bounds_and_constants_compare_values_exactly() {
        fits(r#"{"const":{"a":1.0,"b":[]}}"#, r#"{"b":[],"a":1}"#);
        fails(r#"{"const":1}"#, "2", "the argument list must be 1");
        fails(
            r#"{"minimum":9007199254740993}"#,
            "9007199254740992",
            "the argument list must be at least 9007199254740993",
        );
        fails(r#"{"exclusiveMinimum":0}"#, "-0.0", "the argument list must be more than 0");
        fails(r#"{"exclusiveMaximum":1e400}"#, "1e400", "the argument list must be less than 1e400");
        fails(r#"{"maxItems":1}"#, "[1,2]", "the argument list has 2 elements, at most 1 are allowed");
        fails(r#"{"minProperties":1}"#, "{}", "the argument list has 0 members, at least 1 are needed");
        fails("false", "1", "the argument list is not allowed");
        fits("true", "1");
    }

    #[test]
    fn what_is_not_known_here_is_named_and_never_complained_about() {
        let found = checked(
            r##"{"$ref":"#/x","pattern":"^a","format":"uri","patternProperties":{"^x":{}},"additionalProperties":false,"title":"t"}"##,
            r#"{"x":1}"#,
        );
        assert_eq!(found.problems, [""; 0]);
        assert_eq!(found.unchecked, ["$ref", "additionalProperties", "format", "pattern", "patternProperties"]);
        assert_eq!(checked(r#"{"items":[{"type":"null"}]}"#, "[1]").unchecked, ["items"]);
        assert_eq!(checked(r#"{"type":"any"}"#, "1").unchecked, ["type"]);
        fits(r#"{"properties":{"n":{"type":"number"}}}"#, r#"{"n":"[REDACTED]"}"#);
        fits("[]", "1");
    }

    #[test]
    fn jsn_5_deep_nesting_and_many_faults_end() {
        let levels = 1_000;
        let schema = format!("{}{{}}{}", r#"{"items":"#.repeat(levels), "}".repeat(levels));
        let value = format!("{}1{}", "[".repeat(levels), "]".repeat(levels));
        assert_eq!(checked(&schema, &value).unchecked, ["(what is nested deeper)"]);
        let many = format!("[{}1]", "1,".repeat(1_000));
        assert_eq!(checked(r#"{"items":{"type":"null"}}"#, &many).problems.len(), PROBLEMS_MAX);
    }
}
