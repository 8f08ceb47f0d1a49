//! The values that were masked, and the search for them in other texts.

use std::cmp::Ordering;

/// Shorter values are masked in their own place only: they would be found everywhere.
const CHARS_MIN: usize = 4;

/// So much of a long value is enough to recognise it: error texts quote the beginning of a key.
const ENOUGH: usize = 256;

/// Values found so far, not yet in order.
#[derive(Default)]
pub(super) struct Needles {
    found: Vec<Needle>,
}

#[derive(Clone, PartialEq, Eq, PartialOrd, Ord)]
struct Needle {
    text: String,
    /// A number is only found where no digit stands beside it. Strings sort first.
    number: bool,
}

impl Needles {
    pub(super) fn is_empty(&self) -> bool {
        self.found.is_empty()
    }

    pub(super) fn append(&mut self, mut other: Needles) {
        self.found.append(&mut other.found);
    }

    /// Remembers a string, and the forms in which other texts would repeat it.
    pub(super) fn string(&mut self, value: &str) {
        let value = value.trim();
        if value.chars().nth(CHARS_MIN - 1).is_none() || value == super::MARKER {
            return;
        }
        self.found.push(Needle { text: value.to_owned(), number: false });
        if let Some(credential) = super::text::after_scheme(value) {
            self.string(credential);
        }
        let quoted = crate::wire::splice::quote(value);
        let in_json = String::from_utf8_lossy(&quoted[1..quoted.len() - 1]).into_owned();
        let in_url = percent_encoded(value);
        for form in [in_json, in_url] {
            if form != value {
                self.found.push(Needle { text: form, number: false });
            }
        }
    }

    pub(super) fn number(&mut self, text: &str) {
        if text.len() >= CHARS_MIN {
            self.found.push(Needle { text: text.to_owned(), number: true });
        }
    }
}

fn percent_encoded(value: &str) -> String {
    let mut out = String::with_capacity(value.len());
    for byte in value.bytes() {
        if byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'.' | b'_' | b'~') {
            out.push(char::from(byte));
        } else {
            out.push_str(&format!("%{byte:02X}"));
        }
    }
    out
}

/// Values that were masked once and are masked wherever they occur again. It never prints them.
#[derive(Clone, Default, PartialEq, Eq)]
pub struct Masked {
    /// In order, each text once.
    needles: Vec<Needle>,
}

impl std::fmt::Debug for Masked {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Masked({})", self.needles.len())
    }
}

impl From<Needles> for Masked {
    fn from(needles: Needles) -> Masked {
        let mut needles = needles.found;
        needles.sort();
        needles.dedup_by(|next, kept| next.text == kept.text);
        Masked { needles }
    }
}

impl Masked {
    /// No value.
    #[must_use]
    pub fn none() -> Masked {
        Masked::default()
    }

    /// Whether no value is known.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.needles.is_empty()
    }

    /// Roughly how many bytes this keeps in memory.
    #[must_use]
    pub fn bytes(&self) -> usize {
        self.needles.iter().map(|needle| needle.text.len() + size_of::<Needle>()).sum()
    }

    /// Adds what `other` knows.
    pub fn merge(&mut self, other: &Masked) {
        if !other.is_empty() {
            let found = [std::mem::take(&mut self.needles), other.needles.clone()].concat();
            *self = Masked::from(Needles { found });
        }
    }

    /// Whether `text` is one of the values from end to end.
    #[must_use]
    pub fn is_whole(&self, text: &[u8]) -> bool {
        self.needles.binary_search_by(|needle| needle.text.as_bytes().cmp(text)).is_ok()
    }

    /// Gives every place of a value in `text`, from left to right, the longest value at each place.
    ///
    /// At each place the ordered values are narrowed down byte by byte: no tree, at most [`ENOUGH`] steps for a place
    /// that does not match, and a match is skipped as a whole.
    pub(super) fn find_all(&self, text: &str, mut found: impl FnMut(usize, usize)) {
        if self.needles.is_empty() {
            return;
        }
        let mut starts = [false; 256];
        for needle in &self.needles {
            if let Some(first) = needle.text.as_bytes().first() {
                starts[usize::from(*first)] = true;
            }
        }
        let bytes = text.as_bytes();
        let mut at = 0;
        while at < bytes.len() {
            let end = if starts[usize::from(bytes[at])] { self.longest_at(text, at) } else { None };
            match end {
                Some(end) => {
                    found(at, end);
                    at = end;
                }
                None => at += 1,
            }
        }
    }

    fn longest_at(&self, text: &str, at: usize) -> Option<usize> {
        let bytes = text.as_bytes();
        let mut candidates = self.needles.as_slice();
        let mut best = None;
        for (depth, &byte) in bytes[at..].iter().enumerate() {
            let order =
                |needle: &Needle| needle.text.as_bytes().get(depth).map_or(Ordering::Less, |own| own.cmp(&byte));
            let from = candidates.partition_point(|needle| order(needle) == Ordering::Less);
            let to = from + candidates[from..].partition_point(|needle| order(needle) == Ordering::Equal);
            candidates = &candidates[from..to];
            let Some(first) = candidates.first() else { break };
            let end = at + depth + 1;
            let whole = first.text.len() == depth + 1 && (!first.number || stands_alone(bytes, at, end));
            if (whole || depth + 1 >= ENOUGH) && text.is_char_boundary(end) {
                best = Some(end);
            }
        }
        best
    }
}

fn stands_alone(bytes: &[u8], start: usize, end: usize) -> bool {
    let is_digit = |byte: Option<&u8>| byte.is_some_and(u8::is_ascii_digit);
    !is_digit(start.checked_sub(1).and_then(|before| bytes.get(before))) && !is_digit(bytes.get(end))
}
