//! The document as written: a tree that keeps duplicate keys, and the way back from a place to its line.
//!
//! A deserialiser that fills structs or maps drops duplicate keys or stops at the first fault. This tree keeps all
//! of the document, so that everything wrong with it can be reported at once.

use std::cell::Cell;
use std::fmt;

use serde::de::{self, DeserializeSeed, Deserializer, IgnoredAny, MapAccess, SeqAccess, Visitor};

use super::place::{Place, Step};

/// Larger files are refused before they are parsed.
pub const FILE_BYTES_MAX: usize = 1024 * 1024;

/// What the tree may cost: one per value and one per byte of text. A file of [`FILE_BYTES_MAX`] without aliases
/// stays below it, so only aliases that multiply the document exceed it.
const COST_MAX: usize = 4 * FILE_BYTES_MAX;

const TOO_MANY_ALIASES: &str = "the aliases in this file multiply it beyond measure";

/// A YAML value.
#[derive(Clone, Debug, PartialEq)]
pub enum Tree {
    /// `null`, `~` or nothing.
    Null,
    /// `true` or `false`; `yes` and `on` are text.
    Bool(bool),
    /// A whole number.
    Int(i128),
    /// A number with a fraction or an exponent, a whole number of more than 38 digits, or `.inf`, `.nan`.
    Float(f64),
    /// Text.
    String(String),
    /// A list.
    Seq(Vec<Tree>),
    /// A mapping in file order; keys may repeat. Keys that are numbers or the like are kept as written.
    Map(Vec<(String, Tree)>),
}

/// Why a text is no tree.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SyntaxError {
    /// 1-based line and column, where known.
    pub at: Option<(usize, usize)>,
    /// What is wrong.
    pub found: String,
    /// What to do about it; may be empty.
    pub remedy: String,
}

impl Tree {
    /// Parses one YAML document. A text without a document is [`Tree::Null`].
    ///
    /// # Errors
    ///
    /// The first syntax error: YAML cannot be read on behind one. Also more than one document, a tag, aliases that
    /// multiply the document, nesting deeper than 128, and a text above [`FILE_BYTES_MAX`].
    pub fn parse(text: &str) -> Result<Tree, SyntaxError> {
        if text.len() > FILE_BYTES_MAX {
            return Err(SyntaxError {
                at: None,
                found: format!("the file is larger than {FILE_BYTES_MAX} bytes"),
                remedy: "split off what does not belong here".to_owned(),
            });
        }
        let cost = Cell::new(0);
        Build { cost: &cost }
            .deserialize(serde_yaml::Deserializer::from_str(text))
            .map_err(|error| explain(&error, text))
    }

    /// The line and column (1-based) of the value at `place`, or of its key if `on_key`; `None` if there is none.
    ///
    /// The parser tells places only with its errors. So the text is parsed once more by a reader that goes to the
    /// wanted place and fails there.
    #[must_use]
    pub fn locate(text: &str, place: &Place, on_key: bool) -> Option<(usize, usize)> {
        let seek = Seek { steps: &place.0, on_key };
        let error = seek.deserialize(serde_yaml::Deserializer::from_str(text)).err()?;
        // Other errors tell the place of something else: the way to `place` does not exist.
        let arrived = error.to_string().contains(HERE);
        error.location().filter(|_| arrived).map(|location| (location.line(), location.column()))
    }
}

/// The parser's error in our words where it would be unclear, or could quote a value from the file.
fn explain(error: &serde_yaml::Error, text: &str) -> SyntaxError {
    let at = error.location().map(|location| (location.line(), location.column()));
    let message = error.to_string();
    let says = |part: &str| message.contains(part);
    let line = at.and_then(|(line, _)| text.lines().nth(line - 1)).unwrap_or_default();
    let (found, remedy) = if says(TOO_MANY_ALIASES) || says("repetition limit exceeded") {
        (TOO_MANY_ALIASES.to_owned(), "write the values out instead of referring to them")
    } else if says("recursion limit exceeded") {
        ("values are nested deeper than 128 levels, or an alias contains itself".to_owned(), "")
    } else if says("more than one document") {
        ("the file holds more than one YAML document".to_owned(), "remove everything from the second --- on")
    } else if says(TAGGED) || says("invalid value") {
        ("a value carries a YAML tag (!…), which is not supported".to_owned(), "remove the tag")
    } else if says("unknown anchor") {
        ("an alias (*…) names an anchor that does not stand before it".to_owned(), "quote texts that begin with *")
    } else if says("invalid type") {
        ("a key is neither text nor a number".to_owned(), "write the key as text")
    } else if line.trim_start_matches(' ').starts_with('\t') {
        ("the line is indented with a tab, which YAML does not allow".to_owned(), "indent with spaces")
    } else {
        (format!("not valid YAML: {message}"), "")
    };
    SyntaxError { at, found, remedy: remedy.to_owned() }
}

const TAGGED: &str = "unsupported tag";

/// Builds a [`Tree`] and counts what it costs.
#[derive(Clone, Copy)]
struct Build<'c> {
    cost: &'c Cell<usize>,
}

impl Build<'_> {
    fn pay<E: de::Error>(self, price: usize) -> Result<(), E> {
        self.cost.set(self.cost.get().saturating_add(price));
        if self.cost.get() > COST_MAX { Err(E::custom(TOO_MANY_ALIASES)) } else { Ok(()) }
    }
}

impl<'de> DeserializeSeed<'de> for Build<'_> {
    type Value = Tree;

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<Tree, D::Error> {
        self.pay(1)?;
        deserializer.deserialize_any(self)
    }
}

impl<'de> Visitor<'de> for Build<'_> {
    type Value = Tree;

    fn expecting(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str("a YAML value")
    }

    fn visit_unit<E: de::Error>(self) -> Result<Tree, E> {
        Ok(Tree::Null)
    }

    fn visit_none<E: de::Error>(self) -> Result<Tree, E> {
        Ok(Tree::Null)
    }

    fn visit_bool<E: de::Error>(self, value: bool) -> Result<Tree, E> {
        Ok(Tree::Bool(value))
    }

    fn visit_i64<E: de::Error>(self, value: i64) -> Result<Tree, E> {
        Ok(Tree::Int(value.into()))
    }

    fn visit_u64<E: de::Error>(self, value: u64) -> Result<Tree, E> {
        Ok(Tree::Int(value.into()))
    }

    fn visit_i128<E: de::Error>(self, value: i128) -> Result<Tree, E> {
        Ok(Tree::Int(value))
    }

    fn visit_u128<E: de::Error>(self, value: u128) -> Result<Tree, E> {
        Ok(i128::try_from(value).map_or(Tree::Float(value as f64), Tree::Int))
    }

    fn visit_f64<E: de::Error>(self, value: f64) -> Result<Tree, E> {
        Ok(Tree::Float(value))
    }

    fn visit_str<E: de::Error>(self, value: &str) -> Result<Tree, E> {
        self.pay(value.len())?;
        Ok(Tree::String(value.to_owned()))
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut seq: A) -> Result<Tree, A::Error> {
        let mut elements = Vec::new();
        while let Some(element) = seq.next_element_seed(self)? {
            elements.push(element);
        }
        Ok(Tree::Seq(elements))
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Tree, A::Error> {
        let mut entries = Vec::new();
        while let Some(RawKey(key)) = map.next_key()? {
            self.pay(key.len())?;
            entries.push((key, map.next_value_seed(self)?));
        }
        Ok(Tree::Map(entries))
    }

    fn visit_enum<A: de::EnumAccess<'de>>(self, _: A) -> Result<Tree, A::Error> {
        Err(de::Error::custom(TAGGED))
    }
}

/// A key as written: `1` and `true` stay text.
struct RawKey(String);

impl<'de> de::Deserialize<'de> for RawKey {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<RawKey, D::Error> {
        <String as de::Deserialize>::deserialize(deserializer).map(RawKey)
    }
}

/// Goes along `steps` and fails at their end, which makes the parser tell where that is.
struct Seek<'s> {
    steps: &'s [Step],
    on_key: bool,
}

/// No message of the parser and no key that YAML allows unescaped contains this.
const HERE: &str = "\u{1}here";

impl<'de> DeserializeSeed<'de> for Seek<'_> {
    type Value = ();

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<(), D::Error> {
        if self.steps.is_empty() {
            deserializer.deserialize_any(Fail { when: |_: &str| true }).map(drop)
        } else {
            deserializer.deserialize_any(self)
        }
    }
}

impl<'de> Visitor<'de> for Seek<'_> {
    type Value = ();

    fn expecting(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str("a list or a mapping")
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut seq: A) -> Result<(), A::Error> {
        let Some((Step::Index(wanted), rest)) = self.steps.split_first() else {
            return Ok(());
        };
        for _ in 0..*wanted {
            if seq.next_element::<IgnoredAny>()?.is_none() {
                return Ok(());
            }
        }
        seq.next_element_seed(Seek { steps: rest, on_key: self.on_key })?;
        while seq.next_element::<IgnoredAny>()?.is_some() {}
        Ok(())
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<(), A::Error> {
        let Some((Step::Key(wanted, earlier), rest)) = self.steps.split_first() else {
            return Ok(());
        };
        let mut namesakes = 0;
        loop {
            let is_here = |key: &str| key == wanted && namesakes == *earlier;
            let fail_here = self.on_key && rest.is_empty();
            let Some(key) = map.next_key_seed(Fail { when: |key: &str| fail_here && is_here(key) })? else {
                return Ok(());
            };
            if is_here(&key) {
                map.next_value_seed(Seek { steps: rest, on_key: self.on_key })?;
            } else {
                map.next_value::<IgnoredAny>()?;
            }
            namesakes += usize::from(key == *wanted);
        }
    }
}

/// Reads a text or fails on it; on every other kind of value it always fails.
struct Fail<F> {
    when: F,
}

impl<'de, F: Fn(&str) -> bool> DeserializeSeed<'de> for Fail<F> {
    type Value = String;

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<String, D::Error> {
        deserializer.deserialize_str(self)
    }
}

impl<F: Fn(&str) -> bool> Visitor<'_> for Fail<F> {
    type Value = String;

    fn expecting(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(HERE)
    }

    fn visit_str<E: de::Error>(self, value: &str) -> Result<String, E> {
        if (self.when)(value) { Err(E::custom(HERE)) } else { Ok(value.to_owned()) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn text(value: &str) -> Tree {
        Tree::String(value.to_owned())
    }

    #[test]
    fn every_kind_of_value_is_kept() {
        let tree =
            Tree::parse("a: 1\nb: [x, -2, 1.5, true, ~, yes, '7']\n1: {}\na: 340282366920938463463374607431768211455");
        let list =
            vec![text("x"), Tree::Int(-2), Tree::Float(1.5), Tree::Bool(true), Tree::Null, text("yes"), text("7")];
        let expected = Tree::Map(vec![
            ("a".to_owned(), Tree::Int(1)),
            ("b".to_owned(), Tree::Seq(list)),
            ("1".to_owned(), Tree::Map(vec![])),
            ("a".to_owned(), Tree::Float(340_282_366_920_938_463_463_374_607_431_768_211_455.0)),
        ]);
        assert_eq!(tree, Ok(expected));
    }

    #[test]
    fn a_text_without_a_document_is_null() {
        for empty in ["", "\n\n", "# only a comment\n", "---\n", "~"] {
            assert_eq!(Tree::parse(empty), Ok(Tree::Null), "{empty:?}");
        }
    }

    #[test]
    fn aliases_repeat_their_value() {
        let tree = Tree::parse("a: &x [1]\nb: *x");
        let one = Tree::Seq(vec![Tree::Int(1)]);
        assert_eq!(tree, Ok(Tree::Map(vec![("a".to_owned(), one.clone()), ("b".to_owned(), one)])));
    }

    #[test]
    fn syntax_errors_tell_line_and_column() {
        let at = |text| Tree::parse(text).expect_err("not YAML").at;
        // The parser notices behind the key that cannot stand there.
        assert_eq!(at("a: 1\nb: [1, 2\nc: 3\n"), Some((3, 2)));
        assert_eq!(at("a: b: c"), Some((1, 5)));
        assert_eq!(at("ok: 1\nbad: *nowhere\n"), Some((2, 6)));
        assert_eq!(at("ok: 1\nbad: !env SECRET\n"), Some((2, 6)));
        assert_eq!(at("ok: 1\n? [a]\n: 1\n"), Some((2, 3)));
    }

    #[test]
    fn cfg_1_a_tab_is_named_as_such() {
        let error = Tree::parse("policy:\n\tdefault: deny\n").expect_err("tabs do not indent");
        assert_eq!(error.at.map(|(line, _)| line), Some(2));
        assert!(error.found.contains("tab"), "{error:?}");
        assert_eq!(error.remedy, "indent with spaces");
    }

    #[test]
    fn a_tagged_secret_is_not_quoted() {
        for source in ["key: !!int sk-123", "key: !secret sk-123", "key: !!bool sk-123"] {
            let error = Tree::parse(source).expect_err("tags are refused");
            assert!(!format!("{error:?}").contains("sk-123"), "{error:?}");
            assert!(error.found.contains("tag"), "{error:?}");
        }
    }

    #[test]
    fn alias_bombs_are_refused() {
        // Many small values.
        let mut many = "a0: &a0 [x, x, x, x, x, x, x, x, x]\n".to_owned();
        for level in 1..12 {
            let before = format!("*a{}, ", level - 1).repeat(9);
            many.push_str(&format!("a{level}: &a{level} [{before}]\n"));
        }
        // One large text, referred to often: few values, much memory.
        let large = format!("a: &a {}\nb: [{}]\n", "x".repeat(100_000), "*a, ".repeat(100));
        for bomb in [many, large] {
            let error = Tree::parse(&bomb).expect_err("a bomb");
            assert_eq!(error.found, TOO_MANY_ALIASES);
        }
        let endless = Tree::parse("a: &a [*a]").expect_err("contains itself");
        assert!(endless.found.contains("contains itself"), "{endless:?}");
    }

    #[test]
    fn the_largest_file_is_read_and_one_byte_more_is_not() {
        let line = "- x\n";
        let largest = line.repeat(FILE_BYTES_MAX / line.len());
        assert_eq!(largest.len(), FILE_BYTES_MAX);
        assert!(matches!(Tree::parse(&largest), Ok(Tree::Seq(list)) if list.len() == FILE_BYTES_MAX / 4));
        let error = Tree::parse(&(largest + "\n")).expect_err("too large");
        assert!(error.found.contains("1048576 bytes"), "{error:?}");
        let dense = format!("[{}]", "1,".repeat(FILE_BYTES_MAX / 2 - 1));
        assert!(Tree::parse(&dense).is_ok());
    }

    #[test]
    fn deep_nesting_and_second_documents_are_refused() {
        let deep = Tree::parse(&"[".repeat(5_000)).expect_err("too deep");
        assert!(deep.at.is_some(), "{deep:?}");
        let two = Tree::parse("a: 1\n---\nb: 2\n").expect_err("two documents");
        assert!(two.found.contains("more than one"), "{two:?}");
    }

    #[test]
    fn places_are_found_again() {
        let source = "a: 1\nb:\n  - x\n  - c: 2\n    \"d\":\n      {e: [1, 22]}\nb: again\n";
        let root = Place::default();
        let inner = root.key("b").index(1);
        for (place, on_key, expected) in [
            (root.clone(), false, Some((1, 1))),
            (root.key("a"), false, Some((1, 4))),
            (root.key("a"), true, Some((1, 1))),
            (root.nth_key("b", 1), true, Some((7, 1))),
            (root.nth_key("b", 1), false, Some((7, 4))),
            (root.nth_key("b", 2), true, None),
            (inner.clone(), false, Some((4, 5))),
            (inner.key("c"), true, Some((4, 5))),
            (inner.key("d"), true, Some((5, 5))),
            (inner.key("d").key("e").index(1), false, Some((6, 15))),
            (inner.key("d").key("e").index(2), false, None),
            (root.key("a").key("x"), true, None),
            (root.index(0), false, None),
        ] {
            assert_eq!(Tree::locate(source, &place, on_key), expected, "{} {on_key}", place.show());
        }
    }
}
