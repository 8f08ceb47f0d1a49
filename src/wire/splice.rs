//! Changes to a frame: new bytes for chosen spans, every other byte untouched.

use super::json::{Json, Kind, Span};
use std::borrow::Cow;

/// Replaces one span in place.
///
/// # Panics
/// If the span does not lie in `text`.
pub fn replace(text: &mut Vec<u8>, span: Span, with: &[u8]) {
    let old = span.end - span.start;
    if old == with.len() {
        text[span.start..span.end].copy_from_slice(with);
        return;
    }
    text.splice(span.start..span.end, with.iter().copied());
}

/// Several changes to one text, made at once.
#[derive(Clone, Debug, Default)]
pub struct Edits<'a> {
    edits: Vec<(Span, Cow<'a, [u8]>)>,
}

impl<'a> Edits<'a> {
    /// No change yet.
    #[must_use]
    pub fn new() -> Edits<'a> {
        Edits::default()
    }

    /// Whether there is nothing to change.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.edits.is_empty()
    }

    /// Puts `with` in the place of `span`; an empty span inserts.
    pub fn replace(&mut self, span: Span, with: impl Into<Cow<'a, [u8]>>) {
        self.edits.push((span, with.into()));
    }

    /// Takes the members of `object` named in `remove` out of `text`, with the commas that joined them, and gives each
    /// member named in `set` its new value (JSON text): in its place if it is there, in front of the others if not.
    pub fn edit_members(&mut self, text: &[u8], object: Json<'_>, remove: &[&str], set: &[(&str, &[u8])]) {
        debug_assert_eq!(object.kind(), Kind::Object);
        let open = object.span_in(text).start + 1;
        // The end of what stays in front of the member at hand: the last kept member, or the opening brace.
        let mut kept_end = open;
        let mut kept_any = false;
        let first_edit = self.edits.len();
        let mut members = object.members().peekable();
        while let Some(member) = members.next() {
            let start = member.key.span_in(text).start;
            let span = member.value.span_in(text);
            if !remove.iter().any(|name| member.key.is(name)) {
                if let Some((_, value)) = set.iter().find(|(name, _)| member.key.is(name)) {
                    self.replace(span, value.to_vec());
                }
                kept_end = span.end;
                kept_any = true;
                continue;
            }
            match members.peek() {
                // Up to the next name, so that the blanks before this member stay with its successor.
                Some(next) => self.replace(Span { start, end: next.key.span_in(text).start }, &b""[..]),
                None if kept_any => {
                    // The comma in front goes too, and with it every removed member between.
                    let mut index = 0;
                    self.edits.retain(|(edit, _)| {
                        index += 1;
                        index <= first_edit || edit.start < kept_end
                    });
                    self.replace(Span { start: kept_end, end: span.end }, &b""[..]);
                }
                None => self.replace(Span { start, end: span.end }, &b""[..]),
            }
        }
        let mut added = Vec::new();
        for (name, value) in set {
            if object.member(name).is_none() {
                if !added.is_empty() {
                    added.push(b',');
                }
                added.extend_from_slice(&quote(name));
                added.push(b':');
                added.extend_from_slice(value);
            }
        }
        if !added.is_empty() {
            if kept_any {
                added.push(b',');
            }
            self.replace(Span { start: open, end: open }, added);
        }
    }

    /// The text with every change made.
    ///
    /// # Panics
    /// If two changes overlap or one lies outside of `text`.
    #[must_use]
    pub fn apply(mut self, text: &[u8]) -> Vec<u8> {
        self.edits.sort_by_key(|(span, _)| (span.start, span.end));
        let added: usize = self.edits.iter().map(|(_, with)| with.len()).sum();
        let mut out = Vec::with_capacity(text.len() + added);
        let mut done = 0;
        for (span, with) in &self.edits {
            assert!(span.start >= done, "edits of one text do not overlap");
            out.extend_from_slice(&text[done..span.start]);
            out.extend_from_slice(with);
            done = span.end;
        }
        out.extend_from_slice(&text[done..]);
        out
    }
}

/// The JSON string literal for `text`.
#[must_use]
pub fn quote(text: &str) -> Vec<u8> {
    serde_json::to_vec(text).expect("a string can always be written")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn without(text: &str, names: &[&str]) -> String {
        let mut edits = Edits::new();
        edits.edit_members(text.as_bytes(), Json::parse(text.as_bytes()).expect("valid"), names, &[]);
        String::from_utf8(edits.apply(text.as_bytes())).expect("text")
    }

    fn with(text: &str, name: &str, value: &str) -> String {
        let mut edits = Edits::new();
        let set = [(name, value.as_bytes())];
        edits.edit_members(text.as_bytes(), Json::parse(text.as_bytes()).expect("valid"), &[], &set);
        String::from_utf8(edits.apply(text.as_bytes())).expect("text")
    }

    #[test]
    fn a_removed_member_takes_one_comma_with_it() {
        assert_eq!(without(r#"{"a":1}"#, &["a"]), "{}");
        assert_eq!(without(r#"{ "a" : 1 , "b":2 }"#, &["a"]), r#"{ "b":2 }"#);
        assert_eq!(without(r#"{"a":1 , "b":2 }"#, &["b"]), r#"{"a":1 }"#);
        assert_eq!(without(r#"{"a":1,"b":2,"c":3}"#, &["b"]), r#"{"a":1,"c":3}"#);
        assert_eq!(without(r#"{"a":1,"b":2,"c":3}"#, &["x"]), r#"{"a":1,"b":2,"c":3}"#);
        assert_eq!(without(r#"{"\u0061":1.0e5,"b":2}"#, &["a"]), r#"{"b":2}"#);
    }

    #[test]
    fn every_choice_of_removed_members_leaves_the_others_as_they_were() {
        let parts = [r#""a":{"x":[1,2]}"#, r#" "b" : "2,}" "#, r#""c":3"#, r#""d":null"#];
        for present in 0..16_u32 {
            for removed in 0..16_u32 {
                let pick = |bits: u32| (0..4).filter(move |bit| bits >> bit & 1 == 1);
                let text = format!("{{{}}}", pick(present).map(|i| parts[i]).collect::<Vec<_>>().join(","));
                let names: Vec<&str> = pick(removed).map(|i| ["a", "b", "c", "d"][i]).collect();
                let mut value: serde_json::Value = serde_json::from_str(&text).expect("valid");
                for name in &names {
                    value.as_object_mut().expect("object").remove(*name);
                }
                let out = without(&text, &names);
                assert_eq!(serde_json::from_str::<serde_json::Value>(&out).expect(&out), value, "{text} {names:?}");
            }
        }
    }

    #[test]
    fn a_member_is_replaced_in_place_or_added_in_front() {
        assert_eq!(with(r#"{"a": 1, "b":2}"#, "b", "[3]"), r#"{"a": 1, "b":[3]}"#);
        assert_eq!(with(r#"{"a": 1}"#, "b", "3"), r#"{"b":3,"a": 1}"#);
        assert_eq!(with("{ }", "b", "3"), r#"{"b":3 }"#);
    }

    #[test]
    fn members_go_and_come_in_one_edit() {
        let text = r#"{"authorization":"Bearer k","t":1}"#;
        for (text, expected) in [
            (text, r#"{"m":{},"t":2}"#),
            (r#"{"authorization":"Bearer k"}"#, r#"{"m":{},"t":2}"#),
            (r#"{"t":1,"authorization":"Bearer k","m":0}"#, r#"{"t":2,"m":{}}"#),
            (r#"{"t":1,"authorization":"Bearer k"}"#, r#"{"m":{},"t":2}"#),
        ] {
            let object = Json::parse(text.as_bytes()).expect("valid");
            let mut edits = Edits::new();
            edits.edit_members(text.as_bytes(), object, &["authorization"], &[("m", b"{}"), ("t", b"2")]);
            let out = edits.apply(text.as_bytes());
            let order = |text: &str| serde_json::from_str::<serde_json::Value>(text).expect("valid");
            assert_eq!(order(std::str::from_utf8(&out).expect("text")), order(expected), "{text}");
        }
    }

    #[test]
    fn one_span_is_replaced_whatever_the_lengths() {
        for (new, expected) in [("7", "a7c"), ("", "ac"), ("1234", "a1234c")] {
            let mut text = b"aBc".to_vec();
            replace(&mut text, Span { start: 1, end: 2 }, new.as_bytes());
            assert_eq!(text, expected.as_bytes());
        }
    }
}
