//! Where a condition looks: dot paths into the arguments of a call.

use crate::wire::json::{Json, Kind};

/// A parsed dot path, such as `options.paths.0`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct ArgPath {
    segments: Vec<Segment>,
}

/// One step down.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Segment {
    /// The name looked up in an object.
    key: String,
    /// The position looked up in an array, if the key is a plain whole number.
    index: Option<usize>,
}

impl ArgPath {
    /// Parses a path, see [`split_path`].
    ///
    /// # Errors
    ///
    /// In words: such a path would find nothing, and a deny rule that can never match is an open gate.
    pub(super) fn parse(text: &str) -> Result<ArgPath, String> {
        let keys = split_path(text)?;
        let segments = keys.into_iter().map(|key| Segment { index: array_index(&key), key }).collect();
        Ok(ArgPath { segments })
    }

    /// What stands at this path; nothing also when something on the way is neither object nor array.
    pub(super) fn find<'a>(&self, arguments: Json<'a>) -> Found<'a> {
        let mut value = arguments;
        for segment in &self.segments {
            let next = match value.kind() {
                Kind::Object if value.members().any(|member| member.key.resembles(&segment.key)) => {
                    return Found::InDoubt;
                }
                Kind::Object => value.member(&segment.key),
                Kind::Array => segment.index.and_then(|index| value.element(index)),
                Kind::String | Kind::Number | Kind::True | Kind::False | Kind::Null => None,
            };
            let Some(next) = next else { return Found::Nothing };
            value = next;
        }
        Found::Value(value)
    }
}

/// What a path leads to.
#[derive(Clone, Copy, Debug)]
pub(super) enum Found<'a> {
    Value(Json<'a>),
    Nothing,
    /// A name on the way is there in another case, which some servers take for the same.
    InDoubt,
}

/// Splits a path into its names. `.` separates; `\.` is a dot and `\\` a backslash inside a name.
///
/// # Errors
///
/// In words, for an empty path or name and for a backslash before anything else.
pub(crate) fn split_path(text: &str) -> Result<Vec<String>, String> {
    let mut keys = vec![String::new()];
    let mut chars = text.chars();
    while let Some(c) = chars.next() {
        let key = keys.last_mut().expect("there is one key from the start and none is taken away");
        match c {
            '.' => keys.push(String::new()),
            '\\' => match chars.next() {
                Some(escaped @ ('.' | '\\')) => key.push(escaped),
                Some(_) | None => return Err("a backslash may only stand before a dot or a backslash".into()),
            },
            _ => key.push(c),
        }
    }
    if keys.iter().any(String::is_empty) {
        return Err("an argument path must not be empty, nor begin or end with a dot, nor have two dots in a row; \
                    write a dot that belongs to a name as \\."
            .into());
    }
    Ok(keys)
}

/// A name as [`split_path`] reads it back.
pub(crate) fn path_name(name: &str) -> String {
    name.replace('\\', "\\\\").replace('.', "\\.")
}

/// `0`, `7`, `12`, but not `07`, `+7` or `-0`: each element has one name only.
pub(crate) fn array_index(key: &str) -> Option<usize> {
    let plain = key.bytes().all(|b| b.is_ascii_digit()) && (key == "0" || !key.starts_with('0'));
    if plain { key.parse().ok() } else { None }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn find(path: &str, arguments: &str) -> Option<String> {
        let path = ArgPath::parse(path).expect("the path is valid");
        let arguments = Json::parse(arguments.as_bytes()).expect("the arguments are valid");
        match path.find(arguments) {
            Found::Value(value) => Some(String::from_utf8_lossy(value.text()).into_owned()),
            Found::Nothing => None,
            Found::InDoubt => Some("in doubt".to_owned()),
        }
    }

    #[test]
    fn a_path_walks_objects_by_key_and_arrays_by_index() {
        let arguments = r#"{"a":{"b":[10,{"c":"x"}]},"0":"zero","p\u0061th":true,"a.b":1,"a\\":{"d":2}}"#;
        let cases = [
            ("a.b.0", Some("10")),
            ("a.b.1.c", Some(r#""x""#)),
            ("a.b.2", None),
            ("a.b.01", None),
            ("a.b.+1", None),
            ("a.b.-1", None),
            ("a.b.length", None),
            ("a.b.99999999999999999999999", None),
            ("0", Some(r#""zero""#)),
            ("path", Some("true")),
            ("path.x", None),
            (r"a\.b", Some("1")),
            (r"a\\.d", Some("2")),
            ("A", Some("in doubt")),
            ("Path", Some("in doubt")),
            ("a.B", Some("in doubt")),
            ("b", None),
        ];
        for (path, expected) in cases {
            assert_eq!(find(path, arguments).as_deref(), expected, "{path}");
        }
        assert_eq!(find("0", "[5]").as_deref(), Some("5"), "the arguments may be an array in `policy test`");
        assert_eq!(find("a", "7"), None);
    }

    #[test]
    fn a_path_that_could_find_nothing_is_refused() {
        for path in ["", ".", "a.", ".a", "a..b", r"a\", r"a\b"] {
            assert!(ArgPath::parse(path).is_err(), "{path:?}");
        }
    }
}
