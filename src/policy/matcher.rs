//! One condition on one argument: `equals`, `in`, `prefix`, `path_under`, `regex`, `max_length`, `min` and `max`.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::fmt;

use regex_lite::{Regex, RegexBuilder};
use serde_json::Value;

use super::path::BasePath;
use crate::suggest::nearest;
use crate::wire::json::{Json, Kind};
use crate::wire::number::Decimal;

/// The names of all matchers, as messages list them.
pub const MATCHERS: [&str; 8] = ["equals", "in", "prefix", "path_under", "regex", "max_length", "min", "max"];

/// The longest regex pattern, in characters.
pub const REGEX_PATTERN_CHARS_MAX: usize = 200;

/// The longest text a regex is tried on, in bytes of UTF-8 after unescaping. Time per call is this times the steps of
/// the compiled pattern; a longer text is in doubt.
pub const REGEX_INPUT_BYTES_MAX: usize = 64 * 1024;

/// The largest compiled regex, in bytes as regex-lite counts them: about a thousand steps. Every pattern of 200
/// characters without counted repetition fits; `(?:a{0,500}){500}` does not.
const REGEX_COMPILED_BYTES_MAX: usize = 32 * 1024;

/// How deep a value in the configuration may be nested. Comparing goes no deeper than the configured value, so this
/// also bounds the recursion over whatever a client sends.
const EXPECTED_DEPTH_MAX: usize = 128;

/// Why a matcher could not judge a value. A deny rule then counts the condition as met, an allow rule as not met.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Doubt {
    /// The matcher needs a string.
    NotAString,
    /// The matcher needs a number.
    NotANumber,
    /// The matcher needs a string or an array.
    NoLength,
    /// The string holds half of a surrogate pair, which readers replace, drop or refuse as they like.
    NotUnicode,
    /// The string is longer than [`REGEX_INPUT_BYTES_MAX`].
    TooLong,
    /// An empty path names nothing.
    PathEmpty,
    /// A relative path against an absolute base.
    PathRelative,
    /// An absolute path against a relative base.
    PathAbsolute,
    /// A relative path that climbs above its start.
    PathClimbs,
    /// A path with a NUL, a backslash, a leading `~` or a leading `x:`.
    PathAmbiguous,
    /// A member on the way is spelled in another case, and there are servers that do not care.
    NameInAnotherCase,
}

impl fmt::Display for Doubt {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Doubt::NotAString => "it is not a string",
            Doubt::NotANumber => "it is not a number",
            Doubt::NoLength => "it is neither a string nor an array",
            Doubt::NotUnicode => "it is not valid Unicode",
            Doubt::TooLong => "it is longer than 64 KiB",
            Doubt::PathEmpty => "an empty path names nothing",
            Doubt::PathRelative => "a relative path depends on the server's working directory",
            Doubt::PathAbsolute => "an absolute path cannot be compared with a relative base",
            Doubt::PathClimbs => "a relative path that climbs with .. depends on the server's working directory",
            Doubt::PathAmbiguous => "servers differ on a NUL, a backslash, a leading ~ or a leading scheme or drive",
            Doubt::NameInAnotherCase => "its name is there in another case, which some servers take for the same",
        })
    }
}

/// A compiled matcher.
#[derive(Clone, Debug)]
pub(super) enum Matcher {
    /// `equals`, and `in` with several.
    OneOf(Vec<Expected>),
    /// `prefix`.
    Prefix(String),
    /// `path_under`.
    PathUnder(Vec<BasePath>),
    /// `regex`.
    Regex(Regex),
    /// `max_length`.
    MaxLength(u64),
    /// `min`.
    Min(Decimal),
    /// `max`.
    Max(Decimal),
}

impl Matcher {
    /// Compiles the matcher called `name` with its configured value.
    ///
    /// # Errors
    ///
    /// In words: what was wrong and what is allowed.
    pub(super) fn compile(name: &str, value: &Value) -> Result<Matcher, String> {
        match name {
            "equals" => Ok(Matcher::OneOf(vec![Expected::compile(value, EXPECTED_DEPTH_MAX)?])),
            "in" => one_of(value),
            "prefix" => Ok(Matcher::Prefix(non_empty_string(value)?.to_owned())),
            "path_under" => path_under(value),
            "regex" => regex(non_empty_string(value)?),
            "max_length" => match value.as_u64() {
                Some(length) => Ok(Matcher::MaxLength(length)),
                None => Err(format!("must be a whole number of at least 0, found {}", found(value))),
            },
            "min" => Ok(Matcher::Min(bound(value)?)),
            "max" => Ok(Matcher::Max(bound(value)?)),
            _ => {
                let meant = nearest(name, MATCHERS).map_or_else(String::new, |near| format!("did you mean {near}? "));
                Err(format!("is not a matcher; {meant}the matchers are {}", MATCHERS.join(", ")))
            }
        }
    }

    /// Whether `value` meets this condition.
    ///
    /// # Errors
    ///
    /// The doubt, if it cannot be judged. `equals` and `in` are never in doubt: a value of another type is not equal.
    pub(super) fn judge(&self, value: Json<'_>) -> Result<bool, Doubt> {
        match self {
            Matcher::OneOf(expected) => Ok(expected.iter().any(|expected| expected.equals(value))),
            Matcher::Prefix(prefix) => Ok(text(value)?.starts_with(prefix.as_str())),
            Matcher::PathUnder(bases) => under_any(bases, &text(value)?),
            Matcher::Regex(regex) => {
                let text = text(value)?;
                if text.len() > REGEX_INPUT_BYTES_MAX { Err(Doubt::TooLong) } else { Ok(regex.is_match(&text)) }
            }
            Matcher::MaxLength(max) => Ok(length(value)? <= *max),
            Matcher::Min(min) => Ok(number(value)? >= *min),
            Matcher::Max(max) => Ok(number(value)? <= *max),
        }
    }
}

/// A value from the configuration that arguments are compared with.
#[derive(Clone, Debug)]
pub(super) enum Expected {
    Null,
    Bool(bool),
    Number(Decimal),
    String(String),
    Array(Vec<Expected>),
    Object(BTreeMap<String, Expected>),
}

impl Expected {
    fn compile(value: &Value, depth_left: usize) -> Result<Expected, String> {
        let Some(depth_left) = depth_left.checked_sub(1) else {
            return Err(format!("is nested deeper than {EXPECTED_DEPTH_MAX} levels"));
        };
        Ok(match value {
            Value::Null => Expected::Null,
            Value::Bool(bool) => Expected::Bool(*bool),
            Value::Number(number) => Expected::Number(exact(number)?),
            Value::String(string) => Expected::String(string.clone()),
            Value::Array(values) => {
                Expected::Array(values.iter().map(|v| Expected::compile(v, depth_left)).collect::<Result<_, _>>()?)
            }
            Value::Object(members) => Expected::Object(
                members
                    .iter()
                    .map(|(key, v)| Ok((key.clone(), Expected::compile(v, depth_left)?)))
                    .collect::<Result<_, String>>()?,
            ),
        })
    }

    /// Deep equality: numbers by value, objects without regard to order.
    fn equals(&self, value: Json<'_>) -> bool {
        match (self, value.kind()) {
            (Expected::Null, Kind::Null)
            | (Expected::Bool(true), Kind::True)
            | (Expected::Bool(false), Kind::False) => true,
            (Expected::Number(expected), Kind::Number) => Decimal::parse(value.text()).as_ref() == Some(expected),
            (Expected::String(expected), Kind::String) => value.as_str().as_deref() == Some(expected.as_str()),
            (Expected::Array(expected), Kind::Array) => {
                let mut elements = value.elements();
                expected.iter().all(|expected| elements.next().is_some_and(|element| expected.equals(element)))
                    && elements.next().is_none()
            }
            (Expected::Object(expected), Kind::Object) => object_equals(expected, value),
            _ => false,
        }
    }
}

/// Every member is expected, equal and there once, and none is missing.
fn object_equals(expected: &BTreeMap<String, Expected>, value: Json<'_>) -> bool {
    let mut missing: BTreeMap<&str, &Expected> = expected.iter().map(|(key, value)| (key.as_str(), value)).collect();
    value.members().all(|member| {
        let Some(key) = member.key.unescape() else { return false };
        missing.remove(key.as_ref()).is_some_and(|expected| expected.equals(member.value))
    }) && missing.is_empty()
}

/// The string that `value` is, unescaped.
fn text(value: Json<'_>) -> Result<Cow<'_, str>, Doubt> {
    if value.kind() == Kind::String { value.as_str().ok_or(Doubt::NotUnicode) } else { Err(Doubt::NotAString) }
}

/// The number that `value` is, exactly. A string that looks like one is not.
fn number(value: Json<'_>) -> Result<Decimal, Doubt> {
    if value.kind() == Kind::Number {
        Decimal::parse(value.text()).ok_or(Doubt::NotANumber)
    } else {
        Err(Doubt::NotANumber)
    }
}

/// UTF-16 units of a string, as JSON Schema validators in JavaScript count them, or elements of an array.
fn length(value: Json<'_>) -> Result<u64, Doubt> {
    match value.kind() {
        Kind::String => {
            let text = value.as_str().ok_or(Doubt::NotUnicode)?;
            Ok(text.chars().map(|c| c.len_utf16() as u64).sum())
        }
        Kind::Array => Ok(value.elements().map(|_| 1).sum()),
        Kind::Object | Kind::Number | Kind::True | Kind::False | Kind::Null => Err(Doubt::NoLength),
    }
}

/// Under one base for certain is under; otherwise a doubt about one of them is a doubt about all.
fn under_any(bases: &[BasePath], candidate: &str) -> Result<bool, Doubt> {
    let mut outcome = Ok(false);
    for base in bases {
        match base.holds(candidate) {
            Ok(true) => return Ok(true),
            Ok(false) => {}
            Err(doubt) => outcome = Err(doubt),
        }
    }
    outcome
}

fn one_of(value: &Value) -> Result<Matcher, String> {
    let Some(values) = value.as_array().filter(|values| !values.is_empty()) else {
        return Err(format!("must be a list of at least one value, found {}", found(value)));
    };
    let values = values.iter().map(|value| Expected::compile(value, EXPECTED_DEPTH_MAX));
    Ok(Matcher::OneOf(values.collect::<Result<_, _>>()?))
}

fn path_under(value: &Value) -> Result<Matcher, String> {
    let values = value.as_array().map_or(std::slice::from_ref(value), Vec::as_slice);
    let texts: Option<Vec<&str>> = values.iter().map(Value::as_str).collect();
    let Some(texts) = texts.filter(|texts| !texts.is_empty()) else {
        return Err(format!("must be a path or a list of paths, found {}", found(value)));
    };
    Ok(Matcher::PathUnder(texts.into_iter().map(BasePath::parse).collect::<Result<_, _>>()?))
}

fn regex(pattern: &str) -> Result<Matcher, String> {
    let chars = pattern.chars().count();
    if chars > REGEX_PATTERN_CHARS_MAX {
        return Err(format!("has {chars} characters, at most {REGEX_PATTERN_CHARS_MAX} are allowed; split the rule"));
    }
    RegexBuilder::new(pattern).size_limit(REGEX_COMPILED_BYTES_MAX).build().map(Matcher::Regex).map_err(|error| {
        // The library's error is a plain sentence; these are the ones that deserve a remedy of ours.
        let error = error.to_string();
        if error.contains("look-around") {
            "look-around is not supported; patterns run in linear time: use two conditions, or a deny rule".to_owned()
        } else if error.contains("backreference") {
            "back-references are not supported; patterns run in linear time: write the repeated part out".to_owned()
        } else if error.contains("size") {
            "is too large once its counted repetitions are written out; use smaller counts, or max_length".to_owned()
        } else {
            format!("is not a valid pattern: {error}")
        }
    })
}

fn bound(value: &Value) -> Result<Decimal, String> {
    let Some(number) = value.as_number() else { return Err(format!("must be a number, found {}", found(value))) };
    Decimal::parse(number.to_string().as_bytes()).ok_or_else(|| inexact(number))
}

/// A number to be compared for equality. The configuration keeps whole numbers beyond 64 bits as binary fractions that
/// no longer are what the user wrote, and a deny rule that compares with another number is an open gate.
fn exact(number: &serde_json::Number) -> Result<Decimal, String> {
    const EXACT_BELOW: f64 = 9_007_199_254_740_992.0;
    let is_rounded = number.is_f64() && number.as_f64().is_none_or(|float| float.abs() >= EXACT_BELOW);
    let decimal = if is_rounded { None } else { Decimal::parse(number.to_string().as_bytes()) };
    decimal.ok_or_else(|| inexact(number))
}

fn inexact(number: &serde_json::Number) -> String {
    format!("{number} is too large to be compared exactly; use min and max")
}

fn non_empty_string(value: &Value) -> Result<&str, String> {
    match value.as_str() {
        Some("") => Err("must not be empty".to_owned()),
        Some(text) => Ok(text),
        None => Err(format!("must be a string, found {}", found(value))),
    }
}

/// A value as a message names it.
fn found(value: &Value) -> String {
    match value {
        Value::Null | Value::Bool(_) | Value::Number(_) => value.to_string(),
        Value::String(_) => "a string".to_owned(),
        Value::Array(values) if values.is_empty() => "an empty list".to_owned(),
        Value::Array(_) => "a list".to_owned(),
        Value::Object(_) => "a mapping".to_owned(),
    }
}
