//! The hash of a call's arguments: equal for equal values, whatever their spelling and key order.

use crate::wire::json::{RawStr, Span, Token, Walker};
use crate::wire::number::Decimal;
use sha2::{Digest, Sha256};

/// Lower-case hexadecimal SHA-256 of `bytes`.
#[must_use]
pub fn sha256_hex(bytes: &[u8]) -> String {
    hex(&Sha256::digest(bytes))
}

/// Lower-case hexadecimal SHA-256 of the canonical JSON of `arguments`, the JSON text as the client sent it; absent
/// arguments hash as the text `null`.
///
/// Canonical means: members sorted by name (by code point, without escapes), no blanks, strings with the fewest
/// escapes, numbers as [`Decimal::canonical`], so that `{"a":1,"b":2}` and `{ "b": 2e0, "\u0061": 1.0 }` agree. A text
/// that is no JSON, which no caller passes, is hashed as it is.
#[must_use]
pub fn arguments_hash(arguments: Option<&[u8]>) -> String {
    let Some(text) = arguments else { return sha256_hex(b"null") };
    let Some(items) = items(text) else { return sha256_hex(text) };
    let mut hasher = Sha256::new();
    emit(text, &items, |bytes| hasher.update(bytes));
    hex(&hasher.finalize())
}

fn hex(bytes: &[u8]) -> String {
    let digit = |nibble: u8| char::from_digit(u32::from(nibble), 16).unwrap_or('0');
    bytes.iter().flat_map(|byte| [digit(byte >> 4), digit(byte & 15)]).collect()
}

/// A token, and for the start of a container the index of the token that ends it.
struct Item {
    token: Token,
    span: Span,
    last: usize,
}

fn items(text: &[u8]) -> Option<Vec<Item>> {
    let mut walker = Walker::new(text);
    let mut items: Vec<Item> = Vec::new();
    let mut open = Vec::new();
    while let Some((token, span)) = walker.next_token().ok()? {
        let index = items.len();
        match token {
            Token::ObjectStart | Token::ArrayStart => open.push(index),
            Token::ObjectEnd | Token::ArrayEnd => items[open.pop()?].last = index,
            Token::Key | Token::String | Token::Number | Token::True | Token::False | Token::Null => {}
        }
        items.push(Item { token, span, last: index });
    }
    Some(items)
}

/// What is still to be written; the stack of these takes the place of recursion.
enum Todo {
    Text(&'static [u8]),
    Name(Vec<u8>),
    Value(usize),
}

fn emit(text: &[u8], items: &[Item], mut write: impl FnMut(&[u8])) {
    let mut todo = vec![Todo::Value(0)];
    while let Some(next) = todo.pop() {
        let at = match next {
            Todo::Text(bytes) => {
                write(bytes);
                continue;
            }
            Todo::Name(name) => {
                write(&literal(&name));
                write(b":");
                continue;
            }
            Todo::Value(at) => at,
        };
        let item = &items[at];
        let raw = item.span.of(text);
        match item.token {
            Token::ObjectStart => {
                let mut members = Vec::new();
                let mut key = at + 1;
                while key < item.last {
                    members.push((plain(RawStr::checked(items[key].span.of(text))), key + 1));
                    key = items[key + 1].last + 1;
                }
                members.sort();
                write(b"{");
                todo.push(Todo::Text(b"}"));
                let count = members.len();
                for (index, (name, value)) in members.into_iter().rev().enumerate() {
                    todo.push(Todo::Value(value));
                    todo.push(Todo::Name(name));
                    if index + 1 < count {
                        todo.push(Todo::Text(b","));
                    }
                }
            }
            Token::ArrayStart => {
                write(b"[");
                todo.push(Todo::Text(b"]"));
                let first = todo.len();
                let mut element = at + 1;
                while element < item.last {
                    if todo.len() > first {
                        todo.push(Todo::Text(b","));
                    }
                    todo.push(Todo::Value(element));
                    element = items[element].last + 1;
                }
                todo[first..].reverse();
            }
            Token::String => write(&literal(&plain(RawStr::checked(raw)))),
            Token::Number => match Decimal::parse(raw) {
                Some(number) => write(number.canonical().as_bytes()),
                None => write(raw),
            },
            Token::True | Token::False | Token::Null | Token::Key | Token::ObjectEnd | Token::ArrayEnd => write(raw),
        }
    }
}

/// A string's characters as UTF-8, in which a lone surrogate takes the three bytes it would take if it were a
/// character; byte order is then code point order, and no two strings share their bytes.
fn plain(raw: RawStr<'_>) -> Vec<u8> {
    if let Some(text) = raw.unescape() {
        return text.into_owned().into_bytes();
    }
    let inner = raw.text().get(1..raw.text().len() - 1).unwrap_or_default();
    let mut out = Vec::with_capacity(inner.len());
    let mut at = 0;
    while let Some(&byte) = inner.get(at) {
        if byte != b'\\' {
            out.push(byte);
            at += 1;
            continue;
        }
        let unit = unit_at(inner, at);
        let one_escape = |bytes: &[u8]| {
            let quoted = [b"\"", bytes, b"\""].concat();
            RawStr::checked(&quoted).unescape().map(|text| text.into_owned().into_bytes())
        };
        let (length, lone) = match unit {
            None => (2, None),
            Some(0xD800..=0xDBFF) if matches!(unit_at(inner, at + 6), Some(0xDC00..=0xDFFF)) => (12, None),
            Some(unit @ 0xD800..=0xDFFF) => (6, Some(unit)),
            Some(_) => (6, None),
        };
        match lone {
            Some(unit) => out.extend_from_slice(&[0xED, 0x80 | (unit >> 6 & 0x3F) as u8, 0x80 | (unit & 0x3F) as u8]),
            None => out.extend(one_escape(inner.get(at..at + length).unwrap_or_default()).unwrap_or_default()),
        }
        at += length;
    }
    out
}

/// The UTF-16 unit that a `\u` escape at `at` stands for.
fn unit_at(inner: &[u8], at: usize) -> Option<u32> {
    let digits = inner.get(at..at + 6)?.strip_prefix(b"\\u")?;
    u32::from_str_radix(std::str::from_utf8(digits).ok()?, 16).ok()
}

/// The JSON string for the bytes that [`plain`] gives.
fn literal(plain: &[u8]) -> Vec<u8> {
    let mut out = Vec::with_capacity(plain.len() + 2);
    out.push(b'"');
    let mut at = 0;
    while let Some(&byte) = plain.get(at) {
        at += 1;
        match byte {
            b'"' | b'\\' => out.extend_from_slice(&[b'\\', byte]),
            0..=0x1F => out.extend_from_slice(format!("\\u{byte:04x}").as_bytes()),
            // UTF-8 proper never has a byte of A0 or more after ED.
            0xED if plain.get(at).is_some_and(|next| *next >= 0xA0) => {
                let low = |offset: usize| u32::from(plain.get(at + offset).copied().unwrap_or(0) & 0x3F);
                out.extend_from_slice(format!("\\u{:04x}", 0xD000 | low(0) << 6 | low(1)).as_bytes());
                at += 2;
            }
            _ => out.push(byte),
        }
    }
    out.push(b'"');
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    fn canonical(text: &str) -> String {
        let items = items(text.as_bytes()).expect("valid");
        let mut out = Vec::new();
        emit(text.as_bytes(), &items, |bytes| out.extend_from_slice(bytes));
        String::from_utf8(out).expect("UTF-8")
    }

    #[test]
    fn absent_arguments_hash_as_null() {
        let null = "74234e98afe7498fb5daf1f36ac2d78acc339464f950703b8c019892f982b90b";
        assert_eq!(arguments_hash(None), null);
        assert_eq!(arguments_hash(Some(b" null ")), null);
        assert_ne!(arguments_hash(Some(b"{}")), null);
    }

    #[test]
    fn the_canonical_form_is_sorted_bare_and_normal() {
        for (text, expected) in [
            (r#" { "b" : [ 1.0 , 2e0 ] , "a" : { } } "#, r#"{"a":{},"b":[1,2]}"#),
            (
                r#"{"z":{"b":1,"a":2},"\u0061":"\u00e9\/\n\u0000"}"#,
                "{\"a\":\"é/\\u000a\\u0000\",\"z\":{\"a\":2,\"b\":1}}",
            ),
            (r#"["\ud83d\ude00","\ud83d","\ude00\ud83d","\"\\"]"#, r#"["😀","\ud83d","\ude00\ud83d","\"\\"]"#),
            ("[]", "[]"),
            ("[[],[[]],{}]", "[[],[[]],{}]"),
            ("-0", "0"),
            ("true", "true"),
        ] {
            assert_eq!(canonical(text), expected);
            assert_eq!(arguments_hash(Some(text.as_bytes())), sha256_hex(expected.as_bytes()));
        }
    }

    #[test]
    fn names_are_sorted_by_code_point_without_escapes() {
        assert_eq!(
            canonical("{\"\u{1F600}\":1,\"\u{FFFD}\":2,\"\\u0062\":3,\"a\":4}"),
            "{\"a\":4,\"b\":3,\"\u{FFFD}\":2,\"\u{1F600}\":1}"
        );
    }

    #[test]
    fn ret_3_spelling_variants_of_the_same_arguments_hash_alike() {
        let hash = |text: &str| arguments_hash(Some(text.as_bytes()));
        let same = hash(r#"{"n":1,"s":"a"}"#);
        for variant in
            [r#"{"s":"a","n":1}"#, r#"{"n":1.0,"s":"a"}"#, r#"{ "n" : 1e0, "s":"\u0061" }"#, r#"{"n":10e-1,"s":"a"}"#]
        {
            assert_eq!(hash(variant), same, "{variant}");
        }
        for other in [r#"{"n":2,"s":"a"}"#, r#"{"n":"1","s":"a"}"#, r#"{"n":1}"#, r#"{"n":[1],"s":"a"}"#] {
            assert_ne!(hash(other), same, "{other}");
        }
    }

    #[test]
    fn jsn_1_numbers_above_two_to_the_53_stay_apart() {
        assert_ne!(arguments_hash(Some(b"9007199254740993")), arguments_hash(Some(b"9007199254740992")));
        assert_eq!(arguments_hash(Some(b"1e400")), arguments_hash(Some(b"10e399")));
    }

    #[test]
    fn jsn_5_deep_nesting_is_hashed_without_a_stack() {
        let levels = 100_000;
        let deep = format!("{}1{}", r#"{"b":0,"a":["#.repeat(levels), "]}".repeat(levels));
        let sorted = format!("{}1{}", r#"{"a":["#.repeat(levels), r#"],"b":0}"#.repeat(levels));
        assert_eq!(arguments_hash(Some(deep.as_bytes())), sha256_hex(sorted.as_bytes()));
    }
}
