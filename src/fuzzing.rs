//! Properties that hold for any input, as plain functions: the fuzz targets call them, and tests replay the corpora.
//!
//! Each takes whatever bytes a fuzzer invents and panics if a promise is broken. A new target is a function here, one
//! line in `fuzz/fuzz_targets/`, an entry in `fuzz/Cargo.toml` and a few seeds in `fuzz/corpus/<name>/`, which the test
//! at the end of this file then replays. With a nightly compiler: `cargo +nightly fuzz run policy_matcher`.

use crate::policy::{Action, Policy, RuleSource, Verdict};
use crate::wire::framer::{Framed, Framer, OVERSIZED_HEAD_BYTES, OVERSIZED_TAIL_BYTES};
use crate::wire::json::{Json, RawStr, Token, Walker};
use crate::wire::sse::{OVERSIZED_HEAD_BYTES as SSE_HEAD_BYTES, Sse, SseParser};

/// Any split of a stream gives the frames that one push gives, and memory stays bounded.
///
/// The first byte and three make the frame limit, the second is the seed of the split, the rest the stream. (Below three
/// bytes half a byte order mark would count as a frame that is too long; the configuration allows no such limit.)
///
/// # Panics
///
/// If a promise is broken.
pub fn framer(data: &[u8]) {
    let [limit, seed, stream @ ..] = data else { return };
    let limit = usize::from(*limit) + 3;
    let whole = frames(limit, std::iter::once(stream));
    let bytes = frames(limit, stream.chunks(1));
    assert_eq!(whole, bytes, "byte by byte");
    assert_eq!(whole, frames(limit, pieces(stream, *seed)), "split by seed {seed}");
    for frame in &whole {
        match frame {
            Framed::Frame(line) => {
                assert!(line.len() <= limit, "a frame of {} bytes passed the limit of {limit}", line.len());
                assert!(!line.contains(&b'\n'), "a frame holds a line end");
            }
            Framed::Oversized { head } => assert!(head.len() <= OVERSIZED_HEAD_BYTES, "an oversized head"),
            Framed::OversizedEnd { tail } => assert!(tail.len() <= OVERSIZED_TAIL_BYTES, "an oversized tail"),
        }
    }
}

/// The frames of a stream that arrives in `pieces`.
fn frames<'a>(limit: usize, pieces: impl Iterator<Item = &'a [u8]>) -> Vec<Framed> {
    // A byte order mark and a carriage return do not count.
    let held_max = (limit + 4).max(OVERSIZED_TAIL_BYTES + 1);
    let mut framer = Framer::new(limit);
    let mut out = Vec::new();
    for piece in pieces {
        framer.push(piece, &mut out);
        assert!(framer.pending_bytes() <= held_max, "{} bytes held for a limit of {limit}", framer.pending_bytes());
    }
    framer.finish(&mut out);
    for frame in &mut out {
        // How much of a frame over the limit had arrived when that was noticed depends on the split. The configuration
        // allows no limit below the length of a head, so that this shows only here.
        if let Framed::Oversized { head } = frame {
            assert!(head.len() > limit.min(OVERSIZED_HEAD_BYTES - 1), "a head of {} bytes", head.len());
            head.truncate(limit + 1);
        }
    }
    out
}

/// Any split of a stream gives the events that one push gives, and memory stays bounded.
///
/// The first byte is the limit of an event's data, the second the seed of the split, the rest the stream.
///
/// # Panics
///
/// If a promise is broken.
pub fn sse(data: &[u8]) {
    let [limit, seed, stream @ ..] = data else { return };
    let limit = usize::from(*limit);
    let whole = sse_events(limit, std::iter::once(stream));
    assert_eq!(whole, sse_events(limit, stream.chunks(1)), "byte by byte");
    assert_eq!(whole, sse_events(limit, pieces(stream, *seed)), "split by seed {seed}");
    for event in &whole.0 {
        match event {
            Sse::Event(event) => {
                assert!(event.data.len() <= limit && !event.data.is_empty(), "{} bytes of data", event.data.len());
                assert!(!event.data.contains(&b'\r') && !event.name.contains(&b'\n'), "a line end in a value");
            }
            Sse::Oversized { head } => assert!(head.len() <= SSE_HEAD_BYTES, "an oversized head"),
            Sse::Mark | Sse::Retry(_) => {}
        }
    }
}

/// The events of a stream that arrives in `pieces`, and the id to resume from.
fn sse_events<'a>(limit: usize, pieces: impl Iterator<Item = &'a [u8]>) -> (Vec<Sse>, Vec<u8>) {
    let mut parser = SseParser::new(limit);
    let mut out = Vec::new();
    let mut taken = 0;
    for piece in pieces {
        parser.push(piece, &mut out);
        taken += piece.len();
        // Data, and lines of other fields, each of which is cut.
        let held_max = limit.max(SSE_HEAD_BYTES) + 4 * 8192;
        assert!(parser.pending_bytes() <= held_max.min(taken + 8), "{} bytes held", parser.pending_bytes());
    }
    for event in &mut out {
        // How much of an event over the limit had arrived when that was noticed depends on the split.
        if let Sse::Oversized { head } = event {
            head.truncate(limit.min(SSE_HEAD_BYTES));
        }
    }
    (out, parser.last_id().to_vec())
}

/// A stream cut into pieces of 0 to 7 bytes, as the seed has it.
fn pieces(stream: &[u8], seed: u8) -> impl Iterator<Item = &[u8]> {
    let mut rest = stream;
    let mut state = u32::from(seed);
    std::iter::from_fn(move || {
        state = state.wrapping_mul(1_103_515_245).wrapping_add(12_345);
        let length = rest.len().min((state >> 16) as usize % 8);
        let (piece, after) = rest.split_at(length);
        rest = after;
        // An empty piece is a read like any other, but not for ever.
        (length > 0 || !rest.is_empty()).then_some(piece)
    })
}

/// What a rule says of a call does not depend on how the arguments are spelled, and whatever passes an allow rule for
/// certain would be stopped by the same rule as a deny rule.
///
/// The input is text: the rule's tool pattern, the call's tool, an argument path, a matcher and its value as JSON, a
/// line each; then the arguments as JSON. Input that is no such thing is skipped.
///
/// # Panics
///
/// If a promise is broken.
pub fn policy_matcher(data: &[u8]) {
    let Some(case) = PolicyCase::read(data) else { return };
    let Some(allow) = case.policy(Action::Allow) else { return };
    let deny = case.policy(Action::Deny).expect("what may be said of an allow rule may be said of a deny rule");

    let allowed = decide(&allow, &case, case.arguments);
    let denied = decide(&deny, &case, case.arguments);
    assert!(allowed.rule.is_none() || denied.rule.is_some(), "matched to allow, but not to deny");
    for verdict in [&allowed, &denied] {
        assert_eq!(verdict.rule.is_none(), verdict.reason.starts_with("no rule matches"), "{verdict:?}");
    }
    let respelled = respell(case.arguments.text());
    let respelled = Json::parse(&respelled).expect("another spelling of JSON is JSON");
    assert_eq!(allowed, decide(&allow, &case, respelled), "the spelling of the arguments counted");
    assert_eq!(denied, decide(&deny, &case, respelled), "the spelling of the arguments counted");
}

/// One rule and one call.
struct PolicyCase<'a> {
    pattern: &'a str,
    tool: &'a str,
    path: &'a str,
    matcher: &'a str,
    value: serde_json::Value,
    arguments: Json<'a>,
}

impl<'a> PolicyCase<'a> {
    fn read(data: &'a [u8]) -> Option<PolicyCase<'a>> {
        let mut parts = data.splitn(6, |byte| *byte == b'\n');
        let mut text = || std::str::from_utf8(parts.next()?).ok();
        let (pattern, tool, path, matcher, value) = (text()?, text()?, text()?, text()?, text()?);
        Some(PolicyCase {
            pattern,
            tool,
            path,
            matcher,
            value: serde_json::from_str(value).ok()?,
            arguments: Json::parse(parts.next()?).ok()?,
        })
    }

    /// The rule alone, with the opposite default; `None` if it is not a valid rule.
    fn policy(&self, action: Action) -> Option<Policy> {
        let default = match action {
            Action::Allow => Action::Deny,
            Action::Deny => Action::Allow,
        };
        let matchers = vec![(self.matcher.to_owned(), self.value.clone())];
        let args = vec![(self.path.to_owned(), matchers)];
        let rule = RuleSource { tool: self.pattern.to_owned(), caller: None, action, args };
        Policy::compile(default, vec![rule]).ok()
    }
}

fn decide(policy: &Policy, case: &PolicyCase<'_>, arguments: Json<'_>) -> Verdict {
    policy.decide(case.tool, "local", Some(arguments))
}

/// The same value with every character of a string escaped and a blank after every token. Strings with a lone surrogate
/// stay as they are: they have no characters.
fn respell(text: &[u8]) -> Vec<u8> {
    let mut out = Vec::new();
    let mut copied = 0;
    let mut walker = Walker::new(text);
    while let Ok(Some((token, span))) = walker.next_token() {
        // Colons and commas are no tokens.
        out.extend_from_slice(&text[copied..span.start]);
        copied = span.end;
        match token {
            Token::Key | Token::String => match RawStr::checked(span.of(text)).unescape() {
                Some(characters) => {
                    out.push(b'"');
                    out.extend(characters.encode_utf16().flat_map(|unit| format!("\\u{unit:04X}").into_bytes()));
                    out.push(b'"');
                }
                None => out.extend_from_slice(span.of(text)),
            },
            Token::ObjectStart
            | Token::ObjectEnd
            | Token::ArrayStart
            | Token::ArrayEnd
            | Token::Number
            | Token::True
            | Token::False
            | Token::Null => out.extend_from_slice(span.of(text)),
        }
        out.push(b' ');
    }
    out
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;
    use crate::retry::Rng;

    /// Every file of a target's corpus, with its name.
    fn corpus(target: &str) -> Vec<(String, Vec<u8>)> {
        let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("fuzz/corpus").join(target);
        let files = std::fs::read_dir(&folder).expect("the corpus is part of the repository");
        let files: Vec<_> = files.map(|file| file.expect("a readable folder").path()).collect();
        assert!(files.len() >= 5, "{target} has only {} seeds", files.len());
        files
            .into_iter()
            .map(|file| (file.display().to_string(), std::fs::read(file).expect("a readable file")))
            .collect()
    }

    /// Runs `target` on `data` and names the input if it panics.
    fn holds(target: fn(&[u8]), name: &str, data: &[u8]) {
        let outcome = std::panic::catch_unwind(|| target(data));
        assert!(outcome.is_ok(), "{name} breaks a promise: {:?}", String::from_utf8_lossy(data));
    }

    /// Bytes that mean something to a target.
    const SPICE: &[u8] = b"\n\r\"\\*?./{}[],:0\xef";

    /// The corpus itself, then inputs made from it: bytes changed, cut, repeated and joined to those of another seed.
    fn replay(name: &str, target: fn(&[u8])) {
        let corpus = corpus(name);
        for (file, data) in &corpus {
            holds(target, file, data);
        }
        let mut rng = Rng::seeded(7);
        let mut below = |end: usize| rng.below(end.max(1) as u64) as usize;
        for round in 0..5_000 {
            let (file, seed) = &corpus[below(corpus.len())];
            let mut data = seed.clone();
            for _ in 0..1 + below(3) {
                let at = below(data.len() + 1);
                match below(5) {
                    0 => data.truncate(at),
                    1 => data.insert(at, SPICE[below(SPICE.len())]),
                    2 if at < data.len() => data[at] ^= 1 << below(8),
                    3 => {
                        let (_, other) = &corpus[below(corpus.len())];
                        data.truncate(at);
                        data.extend_from_slice(&other[below(other.len())..]);
                    }
                    _ => {
                        let copy = data[at..data.len().min(at + 1 + below(8))].to_vec();
                        data.splice(at..at, copy);
                    }
                }
            }
            holds(target, &format!("round {round} from {file}"), &data);
        }
    }

    #[test]
    fn the_framer_corpus_and_its_neighbours_break_no_promise() {
        replay("framer", framer);
    }

    #[test]
    fn the_sse_corpus_and_its_neighbours_break_no_promise() {
        replay("sse", sse);
    }

    #[test]
    fn the_policy_corpus_and_its_neighbours_break_no_promise() {
        replay("policy_matcher", policy_matcher);
    }

    #[test]
    fn the_policy_corpus_reaches_every_matcher() {
        let corpus = corpus("policy_matcher");
        let valid = corpus.iter().filter_map(|(_, data)| PolicyCase::read(data));
        let reached: Vec<&str> =
            valid.filter(|case| case.policy(Action::Deny).is_some()).map(|case| case.matcher).collect();
        for matcher in crate::policy::MATCHERS {
            assert!(reached.contains(&matcher), "no seed for {matcher}");
        }
    }

    #[test]
    fn a_respelled_text_has_the_same_value_in_other_bytes() {
        let text = br#"{"a":[1.0,"x\n\ud83d\ude00",null],"b":{"c":"\ud800"}}"#;
        let respelled = respell(text);
        let expected = br#"{ "\u0061" :[ 1.0 ,"\u0078\u000A\uD83D\uDE00" ,null ] ,"\u0062" :{ "\u0063" :"\ud800" } } "#;
        assert_eq!(String::from_utf8_lossy(&respelled), String::from_utf8_lossy(expected));
    }
}
