//! The stored arguments of a call: what redaction took out of them, and what `--set` puts in, by splice.

use crate::policy::{array_index, path_name, split_path};
use crate::record::redact::MARKER;
use crate::wire::json::{Json, Kind, RawStr, Span, Token, Walker};
use crate::wire::splice::{Edits, quote, replace};

/// A place where something was redacted.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Marked {
    /// As `--set` takes it.
    pub(crate) path: String,
    /// It is the member's own name that holds the marker, which no `--set` can mend.
    pub(crate) in_name: bool,
}

/// One step down to where a walk is.
enum Step<'a> {
    Member(Option<RawStr<'a>>),
    Element(usize),
}

impl Step<'_> {
    fn name(&self) -> String {
        match self {
            Step::Member(name) => path_name(&name.map(RawStr::unescape_lossy).unwrap_or_default()),
            Step::Element(index) => index.to_string(),
        }
    }
}

/// Every place in `arguments` that holds the redaction marker, in order, but those under one of the paths `mended`.
pub(crate) fn marked(arguments: &[u8], mended: &[Vec<String>]) -> Vec<Marked> {
    let mended: Vec<String> =
        mended.iter().map(|path| path.iter().map(|name| path_name(name)).collect::<Vec<_>>().join(".")).collect();
    let is_mended = |path: &str| {
        mended
            .iter()
            .any(|done| path.strip_prefix(done.as_str()).is_some_and(|rest| rest.is_empty() || rest.starts_with('.')))
    };
    let holds = |span: Span| RawStr::checked(span.of(arguments)).unescape_lossy().contains(MARKER);
    let mut walker = Walker::new(arguments);
    let mut steps: Vec<Step<'_>> = Vec::new();
    let mut found = Vec::new();
    while let Ok(Some((token, span))) = walker.next_token() {
        let hit = matches!(token, Token::Key | Token::String) && holds(span);
        if token == Token::Key
            && let Some(Step::Member(name)) = steps.last_mut()
        {
            *name = Some(RawStr::checked(span.of(arguments)));
        }
        if hit {
            let path = steps.iter().map(Step::name).collect::<Vec<_>>().join(".");
            if !is_mended(&path) {
                found.push(Marked { path, in_name: token == Token::Key });
            }
        }
        match token {
            Token::ObjectStart => steps.push(Step::Member(None)),
            Token::ArrayStart => steps.push(Step::Element(0)),
            Token::ObjectEnd | Token::ArrayEnd => {
                steps.pop();
            }
            Token::Key | Token::String | Token::Number | Token::True | Token::False | Token::Null => {}
        }
        let value_ended = !matches!(token, Token::Key | Token::ObjectStart | Token::ArrayStart);
        if value_ended && let Some(Step::Element(index)) = steps.last_mut() {
            *index += 1;
        }
    }
    found
}

/// Reads a path of `--set`: names joined by dots, elements of arrays by their number from 0.
///
/// # Errors
/// In words.
pub(crate) fn parse_path(text: &str) -> Result<Vec<String>, String> {
    split_path(text)
}

/// Puts `value`, a JSON text, at `path`. A member that is not there is made, with the objects around it; an element
/// of an array must be there. Every other byte stays.
///
/// # Errors
/// In words, naming the place that does not fit.
pub(crate) fn set(arguments: &mut Vec<u8>, path: &[String], value: &[u8]) -> Result<(), String> {
    let root = Json::parse(arguments).map_err(|error| format!("the stored arguments are no JSON: {error}"))?;
    let mut here = root;
    for (depth, name) in path.iter().enumerate() {
        let misfit = |what: &str| {
            let place = path[..depth].iter().map(|name| path_name(name)).collect::<Vec<_>>().join(".");
            let place = if place.is_empty() { "the argument list".to_owned() } else { place };
            Err(format!("{place} is {what}"))
        };
        match here.kind() {
            Kind::Object => match here.member(name) {
                Some(member) => here = member,
                None => {
                    let new = nested(&path[depth + 1..], value);
                    let mut edits = Edits::new();
                    edits.edit_members(arguments, here, &[], &[(name.as_str(), &new)]);
                    *arguments = edits.apply(arguments);
                    return Ok(());
                }
            },
            Kind::Array => {
                let count = here.elements().count();
                let Some(index) = array_index(name) else {
                    return misfit(&format!("a list; {name:?} is no number of an element"));
                };
                match here.element(index) {
                    Some(element) => here = element,
                    None => return misfit(&format!("a list of {count}; it has no element {index} (counted from 0)")),
                }
            }
            // An object that was redacted as a whole is put together again, member by member.
            Kind::String if here.as_str().is_some_and(|text| text == MARKER) => {
                let (span, new) = (here.span_in(arguments), nested(&path[depth..], value));
                replace(arguments, span, &new);
                return Ok(());
            }
            Kind::String => return misfit("a text and has no members"),
            Kind::Number => return misfit("a number and has no members"),
            Kind::True | Kind::False => return misfit("a boolean and has no members"),
            Kind::Null => return misfit("null and has no members"),
        }
    }
    let span = here.span_in(arguments);
    replace(arguments, span, value);
    Ok(())
}

/// `value` inside one object for each name, the first outermost.
fn nested(names: &[String], value: &[u8]) -> Vec<u8> {
    let wrap = |inner: Vec<u8>, name: &String| [b"{", &quote(name)[..], b":", &inner, b"}"].concat();
    names.iter().rev().fold(value.to_vec(), wrap)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn with(arguments: &str, path: &str, value: &str) -> Result<String, String> {
        let mut text = arguments.as_bytes().to_vec();
        set(&mut text, &parse_path(path)?, value.as_bytes())?;
        Json::parse(&text).expect("still JSON");
        Ok(String::from_utf8(text).expect("still text"))
    }

    fn paths(arguments: &str) -> Vec<String> {
        marked(arguments.as_bytes(), &[]).into_iter().map(|marked| marked.path).collect()
    }

    #[test]
    fn jsn_2_set_changes_one_value_and_no_other_byte() {
        let text = r#"{ "n":1.10, "a":{"b":[{"c":"[REDACTED]"},1e400]}, "s":"\u00e9" }"#;
        assert_eq!(
            with(text, "a.b.0.c", "\"x\"").as_deref(),
            Ok(r#"{ "n":1.10, "a":{"b":[{"c":"x"},1e400]}, "s":"\u00e9" }"#)
        );
        assert_eq!(
            with(text, "a.b.1", "2").as_deref(),
            Ok(r#"{ "n":1.10, "a":{"b":[{"c":"[REDACTED]"},2]}, "s":"\u00e9" }"#)
        );
        assert_eq!(with(r#"{"a.b":1,"a":{"b":2}}"#, r"a\.b", "3").as_deref(), Ok(r#"{"a.b":3,"a":{"b":2}}"#));
    }

    #[test]
    fn set_makes_members_and_the_objects_around_them() {
        assert_eq!(with("{}", "a", "\"x\"").as_deref(), Ok(r#"{"a":"x"}"#));
        assert_eq!(with(r#"{"z":1}"#, "a.b.0", "\"x\"").as_deref(), Ok(r#"{"a":{"b":{"0":"x"}},"z":1}"#));
        let one = with(r#"{"login":"[REDACTED]"}"#, "login.user", "\"u\"").expect("it fits");
        assert_eq!(with(&one, "login.pass", "\"p\"").as_deref(), Ok(r#"{"login":{"pass":"p","user":"u"}}"#));
    }

    #[test]
    fn set_names_the_place_that_does_not_fit() {
        let text = r#"{"a":[1,2],"b":{"c":"text"}}"#;
        for (path, error) in [
            ("a.2", "a is a list of 2; it has no element 2 (counted from 0)"),
            ("a.x", "a is a list; \"x\" is no number of an element"),
            ("a.01", "a is a list; \"01\" is no number of an element"),
            ("a.0.x", "a.0 is a number and has no members"),
            ("b.c.d", "b.c is a text and has no members"),
        ] {
            assert_eq!(with(text, path, "1"), Err(error.to_owned()), "{path}");
        }
        assert!(with(text, "a..b", "1").is_err_and(|error| error.contains("two dots")));
    }

    #[test]
    fn every_marker_is_found_at_the_path_that_set_takes() {
        let text =
            r#"{"token":"[REDACTED]","list":[0,["x"],{"k":["a [REDACTED] b",{"p.q":"[REDACTED]"}]}],"ok":"REDACTED"}"#;
        assert_eq!(paths(text), ["token", "list.2.k.0", r"list.2.k.1.p\.q"]);
        let mut mended = text.as_bytes().to_vec();
        for path in paths(text) {
            set(&mut mended, &parse_path(&path).expect("a path"), b"1").expect("it fits");
        }
        assert_eq!(
            String::from_utf8(mended).as_deref(),
            Ok(r#"{"token":1,"list":[0,["x"],{"k":[1,{"p.q":1}]}],"ok":"REDACTED"}"#)
        );
    }

    #[test]
    fn a_marker_in_a_name_is_told_apart_and_a_value_that_was_set_counts_as_meant() {
        let found = marked(br#"{"a":{"x=[REDACTED]":1}}"#, &[]);
        assert_eq!(found, [Marked { path: "a.x=[REDACTED]".to_owned(), in_name: true }]);
        let text = br#"{"a":{"b":"[REDACTED]"},"ab":"[REDACTED]"}"#;
        assert_eq!(marked(text, &[vec!["a".to_owned()]]).len(), 1);
        assert_eq!(marked(text, &[vec!["ab".to_owned()], vec!["a".to_owned(), "b".to_owned()]]), []);
    }
}
