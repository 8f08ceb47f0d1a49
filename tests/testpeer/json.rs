//! Finds values in a JSON text by their place, without a parser's opinion: what is found is the text as it came.
//!
//! It trusts that the text is JSON; on anything else it gives `None` or a wrong span, never a panic. It is no recursion,
//! so depth does not matter.
#![allow(dead_code, reason = "shared by the peers and the test support, each of which needs a part")]

use std::ops::Range;

/// One member of an object: its name as written between the quotes, and where its value stands in the outer text.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Member<'a> {
    pub(crate) name: &'a [u8],
    pub(crate) value: Range<usize>,
}

/// The members of the object that `text` is, in order; `None` if it is none.
pub(crate) fn members(text: &[u8]) -> Option<Vec<Member<'_>>> {
    let mut found = Vec::new();
    let mut at = skip_blanks(text, 0);
    if *text.get(at)? != b'{' {
        return None;
    }
    at = skip_blanks(text, at + 1);
    if *text.get(at)? == b'}' {
        return Some(found);
    }
    loop {
        let name_end = string_end(text, at)?;
        let colon = skip_blanks(text, name_end);
        if *text.get(colon)? != b':' {
            return None;
        }
        let start = skip_blanks(text, colon + 1);
        let end = value_end(text, start)?;
        found.push(Member { name: &text[at + 1..name_end - 1], value: start..end });
        at = skip_blanks(text, end);
        match *text.get(at)? {
            b',' => at = skip_blanks(text, at + 1),
            b'}' => return Some(found),
            _ => return None,
        }
    }
}

/// Where the elements of the array that `text` is stand; `None` if it is none.
pub(crate) fn elements(text: &[u8]) -> Option<Vec<Range<usize>>> {
    let mut found = Vec::new();
    let mut at = skip_blanks(text, 0);
    if *text.get(at)? != b'[' {
        return None;
    }
    at = skip_blanks(text, at + 1);
    if *text.get(at)? == b']' {
        return Some(found);
    }
    loop {
        let end = value_end(text, at)?;
        found.push(at..end);
        at = skip_blanks(text, end);
        match *text.get(at)? {
            b',' => at = skip_blanks(text, at + 1),
            b']' => return Some(found),
            _ => return None,
        }
    }
}

/// Where the value at `path` (member names from the outside in) stands in `text`.
pub(crate) fn find(text: &[u8], path: &[&str]) -> Option<Range<usize>> {
    let mut here = 0..text.len();
    for name in path {
        let inner = members(&text[here.clone()])?.into_iter().find(|member| member.name == name.as_bytes())?.value;
        here = here.start + inner.start..here.start + inner.end;
    }
    Some(here)
}

/// The text of the value at `path`.
pub(crate) fn get<'a>(text: &'a [u8], path: &[&str]) -> Option<&'a [u8]> {
    find(text, path).map(|range| &text[range])
}

/// The string at `path`, unescaped.
pub(crate) fn get_str(text: &[u8], path: &[&str]) -> Option<String> {
    serde_json::from_slice(get(text, path)?).ok()
}

/// The whole number at `path`.
pub(crate) fn get_u64(text: &[u8], path: &[&str]) -> Option<u64> {
    serde_json::from_slice(get(text, path)?).ok()
}

/// Whether the value at `path` is `true`.
pub(crate) fn is_true(text: &[u8], path: &[&str]) -> bool {
    get(text, path) == Some(b"true")
}

fn skip_blanks(text: &[u8], mut at: usize) -> usize {
    while matches!(text.get(at), Some(b' ' | b'\t' | b'\r' | b'\n')) {
        at += 1;
    }
    at
}

/// The place after the closing quote of the string that opens at `at`.
fn string_end(text: &[u8], at: usize) -> Option<usize> {
    if *text.get(at)? != b'"' {
        return None;
    }
    let mut at = at + 1;
    loop {
        let stop = at + memchr::memchr2(b'"', b'\\', text.get(at..)?)?;
        if text[stop] == b'"' {
            return Some(stop + 1);
        }
        at = stop + 2;
    }
}

/// The place after the value that starts at `at`.
fn value_end(text: &[u8], at: usize) -> Option<usize> {
    match *text.get(at)? {
        b'"' => string_end(text, at),
        b'{' | b'[' => {
            let mut depth = 0usize;
            let mut at = at;
            loop {
                match *text.get(at)? {
                    b'"' => at = string_end(text, at)?,
                    b'{' | b'[' => {
                        depth += 1;
                        at += 1;
                    }
                    b'}' | b']' => {
                        depth -= 1;
                        at += 1;
                        if depth == 0 {
                            return Some(at);
                        }
                    }
                    _ => at += 1,
                }
            }
        }
        b',' | b':' | b'}' | b']' => None,
        _ => {
            let rest = text.get(at..)?;
            let length = rest
                .iter()
                .position(|byte| matches!(byte, b',' | b'}' | b']' | b' ' | b'\t' | b'\r' | b'\n'))
                .unwrap_or(rest.len());
            Some(at + length)
        }
    }
}
