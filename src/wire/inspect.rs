//! One walk over a client's message that checks its grammar, its depth and that no name repeats where it matters.

use super::json::{JsonError, RawStr, Span, Token, Walker};

/// What one walk over a message found.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Inspection {
    /// The greatest depth of open containers.
    pub depth_max: usize,
    /// A name that repeats at top level, in `params`, in `result` or in the `_meta` of either, and where.
    pub repeated_shallow: Option<Repeated>,
    /// A name that repeats anywhere else.
    pub repeated_deep: Option<Repeated>,
}

/// A member name that occurs twice in one object.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Repeated {
    /// The name, without escapes.
    pub name: String,
    /// The object, in words.
    pub place: &'static str,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Scope {
    Top,
    Params,
    Result,
    Meta,
    Deep,
}

impl Scope {
    /// The scope of an object that is the value of `key` in this scope.
    fn inner(self, key: RawStr<'_>) -> Scope {
        match self {
            Scope::Top if key.is("params") => Scope::Params,
            Scope::Top if key.is("result") => Scope::Result,
            Scope::Params | Scope::Result if key.is("_meta") => Scope::Meta,
            Scope::Top | Scope::Params | Scope::Result | Scope::Meta | Scope::Deep => Scope::Deep,
        }
    }

    fn place(self) -> &'static str {
        match self {
            Scope::Top => "at top level",
            Scope::Params => "in params",
            Scope::Result => "in result",
            Scope::Meta => "in _meta",
            Scope::Deep => "in a nested object",
        }
    }
}

/// Walks over `text`.
///
/// # Errors
/// Where it is not JSON.
pub fn inspect(text: &[u8]) -> Result<Inspection, JsonError> {
    let mut walker = Walker::new(text);
    let mut found = Inspection::default();
    // Names of all open objects, innermost last; each open object owns those from its mark on.
    let mut names: Vec<Span> = Vec::new();
    let mut objects: Vec<(usize, Scope)> = Vec::new();
    let mut next_scope = Scope::Top;
    while let Some((token, span)) = walker.next_token()? {
        found.depth_max = found.depth_max.max(walker.depth());
        match token {
            Token::Key => {
                names.push(span);
                let scope = objects.last().map_or(Scope::Deep, |(_, scope)| *scope);
                next_scope = scope.inner(RawStr::checked(span.of(text)));
                continue;
            }
            Token::ObjectStart => objects.push((names.len(), next_scope)),
            Token::ObjectEnd => {
                let (first, scope) = objects.pop().unwrap_or((0, Scope::Deep));
                let slot = if scope == Scope::Deep { &mut found.repeated_deep } else { &mut found.repeated_shallow };
                if slot.is_none() {
                    *slot = repeated(text, &names[first..]).map(|name| Repeated { name, place: scope.place() });
                }
                names.truncate(first);
            }
            Token::ArrayStart
            | Token::ArrayEnd
            | Token::String
            | Token::Number
            | Token::True
            | Token::False
            | Token::Null => {}
        }
        next_scope = Scope::Deep;
    }
    Ok(found)
}

/// Objects up to this many members are compared pair by pair; larger ones are sorted.
const PAIRWISE_MAX: usize = 12;

fn repeated(text: &[u8], names: &[Span]) -> Option<String> {
    let escaped = names.iter().any(|span| span.of(text).contains(&b'\\'));
    if names.len() <= PAIRWISE_MAX && !escaped {
        let found = names
            .iter()
            .enumerate()
            .find(|(index, span)| names[..*index].iter().any(|earlier| earlier.of(text) == span.of(text)));
        return found.map(|(_, span)| name_of(text, *span));
    }
    let mut sorted: Vec<std::borrow::Cow<'_, [u8]>> = names.iter().map(|span| comparable(text, *span)).collect();
    sorted.sort_unstable();
    sorted.windows(2).find(|pair| pair[0] == pair[1]).map(|pair| String::from_utf8_lossy(&pair[0]).into_owned())
}

/// The characters of a name; for a name with a lone surrogate, which has none, its own text.
fn comparable(text: &[u8], span: Span) -> std::borrow::Cow<'_, [u8]> {
    use std::borrow::Cow;
    match RawStr::checked(span.of(text)).unescape() {
        Some(Cow::Borrowed(name)) => Cow::Borrowed(name.as_bytes()),
        Some(Cow::Owned(name)) => Cow::Owned(name.into_bytes()),
        None => Cow::Borrowed(span.of(text)),
    }
}

fn name_of(text: &[u8], span: Span) -> String {
    RawStr::checked(span.of(text)).unescape_lossy().into_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shallow(text: &str) -> Option<(String, &'static str)> {
        let found = inspect(text.as_bytes()).expect("valid");
        found.repeated_shallow.map(|repeated| (repeated.name, repeated.place))
    }

    fn deep(text: &str) -> Option<String> {
        inspect(text.as_bytes()).expect("valid").repeated_deep.map(|repeated| repeated.name)
    }

    #[test]
    fn jsn_3_a_repeated_name_is_found_and_placed() {
        assert_eq!(shallow(r#"{"id":1,"method":"a","id":2}"#), Some(("id".into(), "at top level")));
        assert_eq!(shallow(r#"{"params":{"name":1,"name":2}}"#), Some(("name".into(), "in params")));
        assert_eq!(shallow(r#"{"params":{"_meta":{"a":1,"b":2,"a":3}}}"#), Some(("a".into(), "in _meta")));
        assert_eq!(shallow(r#"{"result":{"_meta":{"a":1,"a":3}}}"#), Some(("a".into(), "in _meta")));
        assert_eq!(deep(r#"{"params":{"arguments":{"path":1,"path":2}}}"#), Some("path".into()));
        assert_eq!(deep(r#"{"params":[{"x":[{"y":1,"y":1}]}]}"#), Some("y".into()));
    }

    #[test]
    fn names_are_compared_without_escapes() {
        assert_eq!(shallow(r#"{"id":1,"\u0069d":2}"#), Some(("id".into(), "at top level")));
        assert_eq!(deep(r#"{"a":{"\ud800":1,"\ud801":2}}"#), None);
        assert_eq!(deep(r#"{"a":{"\ud800":1,"\ud800":2}}"#), Some(r#""\ud800""#.into()));
    }

    #[test]
    fn equal_names_in_different_objects_are_no_repetition() {
        let text = r#"{"id":1,"params":{"id":1,"a":{"id":1},"b":[{"id":1},{"id":2}],"_meta":{"id":{"id":0}}}}"#;
        assert_eq!((shallow(text), deep(text)), (None, None));
    }

    #[test]
    fn large_objects_are_searched_too() {
        let members: Vec<String> = (0..50_000).map(|n| format!("\"k{n}\":{n}")).collect();
        let text = format!("{{\"params\":{{{}}}}}", members.join(","));
        assert_eq!(shallow(&text), None);
        let text = format!("{{\"params\":{{{},\"k777\":0}}}}", members.join(","));
        assert_eq!(shallow(&text), Some(("k777".into(), "in params")));
    }

    #[test]
    fn depth_counts_open_containers() {
        assert_eq!(inspect(b"1").map(|found| found.depth_max), Ok(0));
        assert_eq!(inspect(b"{\"a\":[[]],\"b\":{}}").map(|found| found.depth_max), Ok(3));
    }
}
