//! The walker against `str::from_utf8` and serde_json, and the views against `serde_json::Value`.

use super::*;
use serde::de::IgnoredAny;

fn accepts(text: &[u8]) -> bool {
    Walker::new(text).finish().is_ok()
}

/// serde_json with its own depth limit off is the oracle of the grammar; encoding is checked apart.
fn oracle(text: &[u8]) -> bool {
    let Ok(text) = std::str::from_utf8(text) else { return false };
    serde_json::from_str::<IgnoredAny>(text).is_ok()
}

/// Rebuilds a value through the views alone.
fn rebuild(json: Json<'_>) -> Option<serde_json::Value> {
    use serde_json::Value;
    Some(match json.kind() {
        Kind::Object => {
            let mut map = serde_json::Map::new();
            for member in json.members() {
                map.insert(member.key.unescape()?.into_owned(), rebuild(member.value)?);
            }
            Value::Object(map)
        }
        Kind::Array => Value::Array(json.elements().map(rebuild).collect::<Option<_>>()?),
        Kind::String => Value::String(json.as_str()?.into_owned()),
        Kind::Number => serde_json::from_slice(json.text()).ok()?,
        Kind::True => Value::Bool(true),
        Kind::False => Value::Bool(false),
        Kind::Null => Value::Null,
    })
}

const TEXTS: &[&str] = &[
    "{}",
    "[]",
    "42",
    "-0",
    "-",
    "01",
    "1.",
    ".5",
    "1e",
    "1e+",
    "1E-2",
    "0.1e-7",
    "1e400",
    "tru",
    "true",
    "false",
    "null",
    "nul",
    "nullx",
    "\"\"",
    "\"a",
    "\"\\",
    "\"\\u12\"",
    "\"\\ud800\"",
    "\"\\ud83d\\ude00\"",
    "\"\\x\"",
    "\"\\/\"",
    "{\"a\":1}",
    "{\"a\":1,}",
    "{,}",
    "[1,]",
    "[,1]",
    "[1 2]",
    "{\"a\" 1}",
    "{\"a\":}",
    "{a:1}",
    "{\"a\":1}}",
    "[[]",
    "]",
    "}",
    "",
    " ",
    " { \"a\" : [ 1 , { } , \"x\" ] } ",
    "1 2",
    "[1]\n",
    "{\"a\":{\"b\":[{}]}}",
    "\"\u{2028}\u{85}\"",
    "\u{feff}{}",
    "[\"\t\"]",
    "{\"id\":1,\"id\":2}",
    "1.5777777777770001",
    "123456789012345678901234567890",
    "--1",
    "+1",
    "Infinity",
    "{\"a\":1 \"b\":2}",
    "{1:2}",
    "[}",
    "{]",
    "[{]}",
    "\"\\ud83d\"",
    "\"\\ude00\\ud83d\"",
    "\"é\\u00e9\\n\"",
    "// x\n1",
    "{\"\":\"\"}",
];

#[test]
fn accepts_exactly_what_the_oracle_accepts() {
    for text in TEXTS {
        // The oracle refuses the number 1e400 in no ignoring mode, so every listed text can be compared.
        assert_eq!(accepts(text.as_bytes()), oracle(text.as_bytes()), "{text:?}");
    }
}

#[test]
fn accepts_exactly_what_the_oracle_accepts_after_random_damage() {
    let mut seed = 0x9e37_79b9_7f4a_7c15_u64;
    let mut next = move |below: usize| {
        seed ^= seed << 13;
        seed ^= seed >> 7;
        seed ^= seed << 17;
        usize::try_from(seed % below as u64).unwrap_or(0)
    };
    let alphabet = b"{}[]\",:\\u0129ef-+.Etrunls \n\xff\xc3\xa9\x00";
    let mut rejected = 0;
    for round in 0..60_000 {
        let mut text = TEXTS[next(TEXTS.len())].as_bytes().to_vec();
        for _ in 0..=next(3) {
            let byte = alphabet[next(alphabet.len())];
            match next(3) {
                0 if !text.is_empty() => {
                    let at = next(text.len());
                    text[at] = byte;
                }
                1 if !text.is_empty() => {
                    text.remove(next(text.len()));
                }
                _ => text.insert(next(text.len() + 1), byte),
            }
        }
        let expected = oracle(&text);
        rejected += usize::from(!expected);
        assert_eq!(accepts(&text), expected, "round {round}: {:?}", String::from_utf8_lossy(&text));
        if let Ok(value) = serde_json::from_slice::<serde_json::Value>(&text) {
            let json = Json::parse(&text).expect("accepted above");
            assert_eq!(rebuild(json), Some(value), "round {round}: {:?}", String::from_utf8_lossy(&text));
        }
    }
    assert!((5_000..55_000).contains(&rejected), "both outcomes are exercised: {rejected} rejected");
}

#[test]
fn jsn_5_a_hundred_thousand_levels_are_walked_without_recursion() {
    for (open, close) in [("[", "]"), ("{\"a\":", "}")] {
        let text = format!("{}1{}", open.repeat(100_000), close.repeat(100_000));
        assert_eq!(Walker::new(text.as_bytes()).finish(), Ok(100_000));
        let json = Json::parse(text.as_bytes()).expect("valid");
        assert_eq!(json.members().count() + json.elements().count(), 1);
        assert!(!accepts(&text.as_bytes()[..text.len() - 1]));
    }
}

#[test]
fn mixed_nesting_keeps_track_of_every_container_across_word_borders() {
    let mut text = String::new();
    let mut closers = Vec::new();
    for level in 0..300 {
        if level % 3 == 0 {
            text.push_str("{\"k\":");
            closers.push('}');
        } else {
            text.push('[');
            closers.push(']');
        }
    }
    text.push('0');
    closers.reverse();
    for (index, closer) in closers.iter().enumerate() {
        let mut wrong = text.clone();
        wrong.push(if *closer == '}' { ']' } else { '}' });
        assert!(!accepts(wrong.as_bytes()), "closer {index}");
        text.push(*closer);
    }
    assert!(accepts(text.as_bytes()));
}

#[test]
fn names_are_compared_without_escapes() {
    let text = br#"{"\u0069d":1,"a\\b":2,"\ud800":3,"na\"me":4}"#;
    let json = Json::parse(text).expect("valid");
    assert_eq!(json.member("id").map(Json::text), Some(&b"1"[..]));
    assert_eq!(json.member(r"a\b").map(Json::text), Some(&b"2"[..]));
    assert_eq!(json.member(r"a\\b").map(Json::text), None);
    assert_eq!(json.member(r#"na"me"#).map(Json::text), Some(&b"4"[..]));
    let lone = json.members().nth(2).expect("third member");
    assert_eq!(lone.key.unescape(), None);
    assert_eq!(lone.key.unescape_lossy(), "\u{fffd}");
}

#[test]
fn a_span_names_the_place_in_the_frame() {
    let text = br#" {"a": [10, {"b":"x"}] } "#;
    let json = Json::parse(text).expect("valid");
    let b = json.member("a").and_then(|a| a.element(1)).and_then(|o| o.member("b")).expect("there");
    assert_eq!(b.span_in(text).of(text), b"\"x\"");
    assert_eq!(b.as_str().as_deref(), Some("x"));
}

#[test]
fn an_error_names_the_byte() {
    assert_eq!(Walker::new(b"{\"a\":01}").finish(), Err(JsonError { at: 6, what: "expected ',' or '}'" }));
    assert_eq!(Walker::new(b"[\"a\xff\"]").finish(), Err(JsonError { at: 3, what: "invalid UTF-8" }));
    assert_eq!(Walker::new(b"[1").finish(), Err(JsonError { at: 2, what: "unexpected end of text" }));
}

#[test]
fn a_name_in_another_case_resembles_and_is_not() {
    let resembles = |key: &str, name: &str| RawStr::checked(key.as_bytes()).resembles(name);
    for key in [r#""Params""#, r#""PARAMS""#, r#""\u0050arams""#, "\"param\u{17f}\"", r#""PARAM\u017F""#] {
        assert!(resembles(key, "params"), "{key}");
    }
    assert!(resembles("\"to\u{212a}en\"", "token"));
    assert!(resembles("\"\u{c9}\"", "\u{e9}"));
    for key in [r#""params""#, r#""param\u0073""#, r#""param""#, r#""paramss""#, r#""""#, r#""\ud800arams""#] {
        assert!(!resembles(key, "params"), "{key}");
    }
}
