//! Reads typed values out of the tree and collects everything that does not fit.

use std::ops::RangeInclusive;

use super::place::{Place, may_show, quoted};
use super::tree::Tree;
use crate::suggest::nearest;

/// One fault, before it is known where in the text it stands.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Finding {
    pub(super) place: Place,
    /// The key is at fault, not its value.
    pub(super) on_key: bool,
    pub(super) found: String,
    pub(super) remedy: String,
}

/// Everything found so far.
#[derive(Debug, Default)]
pub(super) struct Findings {
    pub(super) list: Vec<Finding>,
}

impl Findings {
    /// A fault of the value at `place`.
    pub(super) fn value(&mut self, place: Place, found: impl Into<String>, remedy: impl Into<String>) {
        self.list.push(Finding { place, on_key: false, found: found.into(), remedy: remedy.into() });
    }

    /// A fault of the key at the end of `place`.
    pub(super) fn key(&mut self, place: Place, found: impl Into<String>, remedy: impl Into<String>) {
        self.list.push(Finding { place, on_key: true, found: found.into(), remedy: remedy.into() });
    }

    /// Reports each repeated key of every mapping in `tree`.
    pub(super) fn duplicates(&mut self, tree: &Tree, place: &Place) {
        match tree {
            Tree::Map(entries) => {
                let mut seen = std::collections::BTreeMap::new();
                for (key, value) in entries {
                    let earlier: &mut usize = seen.entry(key.as_str()).or_default();
                    let here = place.nth_key(key, *earlier);
                    if *earlier > 0 {
                        self.key(
                            here.clone(),
                            "duplicate key",
                            "keep one: the same key stands earlier in this mapping",
                        );
                    }
                    *earlier += 1;
                    self.duplicates(value, &here);
                }
            }
            Tree::Seq(elements) => {
                for (index, element) in elements.iter().enumerate() {
                    self.duplicates(element, &place.index(index));
                }
            }
            Tree::Null | Tree::Bool(_) | Tree::Int(_) | Tree::Float(_) | Tree::String(_) => {}
        }
    }
}

/// Whether a wrong value may be quoted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Show {
    Value,
    /// It may be a secret: tell its kind only.
    Kind,
}

/// What stands there, for "found …".
pub(super) fn describe(tree: &Tree, show: Show) -> String {
    match (tree, show) {
        (Tree::Null, _) => "found nothing".to_owned(),
        (Tree::Seq(_), _) => "found a list".to_owned(),
        (Tree::Map(_), _) => "found a mapping".to_owned(),
        (Tree::String(_), Show::Kind) => "found a text (not shown)".to_owned(),
        (_, Show::Kind) => "found a value that is no text (not shown)".to_owned(),
        (Tree::Bool(value), Show::Value) => format!("found {value}"),
        (Tree::Int(value), Show::Value) => format!("found {value}"),
        (Tree::Float(value), Show::Value) => format!("found {value:?}"),
        (Tree::String(value), Show::Value) => format!("found the text {}", quoted(value)),
    }
}

/// A mapping of the document with its place.
#[derive(Clone, Debug)]
pub(super) struct Section<'t> {
    pub(super) place: Place,
    pub(super) entries: &'t [(String, Tree)],
}

impl<'t> Section<'t> {
    /// `tree` as a section. Nothing (`policy:` with all lines below commented out) is an empty one; anything but a
    /// mapping is reported, by its kind only, and read as empty.
    pub(super) fn of(tree: &'t Tree, place: Place, findings: &mut Findings) -> Section<'t> {
        let entries: &[(String, Tree)] = match tree {
            Tree::Map(entries) => entries,
            Tree::Null => &[],
            other => {
                findings.value(place.clone(), describe(other, Show::Kind), "write a mapping of keys and values here");
                &[]
            }
        };
        Section { place, entries }
    }

    /// The section under `key`, empty if there is none; every key of it that is not in `known` is reported.
    pub(super) fn section(&self, key: &str, known: &[&str], findings: &mut Findings) -> Section<'t> {
        let section = match self.get(key) {
            Some(tree) => Section::of(tree, self.place.key(key), findings),
            None => Section { place: self.place.key(key), entries: &[] },
        };
        section.only(known, findings);
        section
    }

    /// Reports every key that is not in `known`.
    pub(super) fn only(&self, known: &[&str], findings: &mut Findings) {
        for (key, _) in self.entries.iter().filter(|(key, _)| !known.contains(&key.as_str())) {
            let allowed = known.join(", ");
            let remedy = match nearest(key, known.iter().copied()) {
                Some(meant) => format!("did you mean {meant}? Allowed here: {allowed}"),
                None if key == "<<" => format!("merge keys are not supported; allowed here: {allowed}"),
                None => format!("allowed here: {allowed}"),
            };
            let shown = may_show(&self.place.0, key);
            findings.key(self.place.key(key), if shown { "unknown key" } else { "unknown key (not shown)" }, remedy);
        }
    }

    /// The value of `key`; the first if it is repeated, which is an error anyway.
    pub(super) fn get(&self, key: &str) -> Option<&'t Tree> {
        self.entries.iter().find(|(name, _)| name == key).map(|(_, value)| value)
    }

    /// A whole number within `allowed`.
    pub(super) fn whole(&self, key: &str, allowed: RangeInclusive<u64>, findings: &mut Findings) -> Option<u64> {
        let tree = self.get(key)?;
        if let Tree::Int(value) = tree
            && let Ok(value) = u64::try_from(*value)
            && allowed.contains(&value)
        {
            return Some(value);
        }
        let remedy = format!("write a whole number from {} to {}", allowed.start(), allowed.end());
        findings.value(self.place.key(key), describe(tree, Show::Value), remedy);
        None
    }

    /// `true` or `false`.
    pub(super) fn boolean(&self, key: &str, findings: &mut Findings) -> Option<bool> {
        match self.get(key)? {
            Tree::Bool(value) => Some(*value),
            other => {
                findings.value(self.place.key(key), describe(other, Show::Value), "write true or false");
                None
            }
        }
    }

    /// A text that is not empty and holds no NUL.
    pub(super) fn text(&self, key: &str, show: Show, findings: &mut Findings) -> Option<&'t str> {
        text(self.get(key)?, self.place.key(key), show, findings)
    }

    /// One of the given words.
    pub(super) fn choice<T: Copy>(&self, key: &str, words: &[(&str, T)], findings: &mut Findings) -> Option<T> {
        let tree = self.get(key)?;
        if let Tree::String(text) = tree
            && let Some((_, value)) = words.iter().find(|(word, _)| word == text)
        {
            return Some(*value);
        }
        let names: Vec<&str> = words.iter().map(|(word, _)| *word).collect();
        findings.value(self.place.key(key), describe(tree, Show::Value), format!("write {}", names.join(" or ")));
        None
    }

    /// The elements of a list with their places. Anything but a list is reported, nothing too: a list that is left
    /// without elements by mistake must not pass for an empty one.
    pub(super) fn list(&self, key: &str, show: Show, findings: &mut Findings) -> Option<Vec<(Place, &'t Tree)>> {
        let place = self.place.key(key);
        match self.get(key)? {
            Tree::Seq(elements) => {
                Some(elements.iter().enumerate().map(|(index, tree)| (place.index(index), tree)).collect())
            }
            other => {
                findings.value(place, describe(other, show), "write a list; [] is the empty one");
                None
            }
        }
    }
}

/// `tree` as a text that is not empty and holds no NUL.
pub(super) fn text<'t>(tree: &'t Tree, place: Place, show: Show, findings: &mut Findings) -> Option<&'t str> {
    match tree {
        Tree::String(text) if text.is_empty() => {
            findings.value(place, "found an empty text", "write something or remove the key");
        }
        Tree::String(text) if text.contains('\0') => {
            findings.value(place, "found a text with a NUL character", "remove it");
        }
        Tree::String(text) => return Some(text),
        Tree::Null => findings.value(place, "found nothing", "write a text or remove the key"),
        Tree::Seq(_) | Tree::Map(_) => findings.value(place, describe(tree, show), "write a text"),
        Tree::Bool(_) | Tree::Int(_) | Tree::Float(_) => {
            findings.value(place, describe(tree, show), "write a text: put it in quotes");
        }
    }
    None
}
