//! Redaction: secrets out of everything that is stored or logged, never out of what is relayed.
//!
//! **Which names are secret.** A name and a pattern are split into words at separators and at changes of case, and
//! compared in lower case (`keys` has the rule word by word). `api_key` catches `apiKey`, `X-API-KEY` and `myapikey`;
//! `token` catches `accessToken`, `tokens` and `refreshtoken`, but not `tokenizer`. A *number* under a name that counts
//! (`max_tokens`, `token_count`) is kept: it is no secret, and masking it would only make a replay need `--set`.
//!
//! **What happens.** In JSON the whole value under a secret name becomes the string `[REDACTED]`, by splice, so that
//! all other bytes stay. Strings under other names, names themselves, and free text are searched for `key = value`,
//! `key: value`, `Bearer …`, `Basic …`, credentials in URLs, flags, and JSON inside strings (`text`). Every value masked
//! once is masked wherever it occurs again, if it has at least four characters (`masked`).

mod keys;
mod masked;
mod text;

#[cfg(test)]
mod tests;

use crate::wire::json::{JsonError, RawStr, Span, Token, Walker};
use crate::wire::splice::{Edits, quote};
use keys::{KeyMatch, KeyRule};
pub use masked::Masked;
use masked::Needles;
use text::Scan;

/// What stands in the place of a secret.
pub const MARKER: &str = "[REDACTED]";
const QUOTED_MARKER: &[u8] = b"\"[REDACTED]\"";

/// JSON inside a string inside JSON: each level doubles the escapes, so real text has two or three. Deeper text is
/// searched as free text.
const EMBEDDED_LEVELS_MAX: usize = 8;

/// Masks secrets by the configured patterns.
#[derive(Clone, Debug)]
pub struct Redactor {
    keys: KeyRule,
}

impl Redactor {
    /// A redactor for these patterns (`redaction.patterns`); with none, only values in [`Masked`], URL passwords and
    /// authorization schemes are masked. A pattern without letter or digit matches nothing.
    #[must_use]
    pub fn new(patterns: &[String]) -> Redactor {
        Redactor { keys: KeyRule::new(patterns) }
    }

    /// Whether values under this name are masked.
    #[must_use]
    pub fn is_secret_name(&self, name: &str) -> bool {
        self.keys.check(name) == KeyMatch::Secret
    }

    /// Masks one JSON text and gives the values that were masked in it. A text that is no JSON is masked as free text
    /// and comes back as a JSON string.
    #[must_use]
    pub fn redact_json(&self, text: &[u8]) -> (Vec<u8>, Masked) {
        let (masked, found) = self.search_json(text);
        let text = if found { self.apply_json(text, &masked) } else { text.to_vec() };
        (text, masked)
    }

    /// Masks one JSON text, and in it every value masked elsewhere.
    #[must_use]
    pub fn redact_json_with(&self, text: &[u8], masked: &Masked) -> Vec<u8> {
        let mut all = self.collect_json(text);
        all.merge(masked);
        self.apply_json(text, &all)
    }

    /// Masks free text, and in it every value masked elsewhere.
    #[must_use]
    pub fn redact_text(&self, text: &str, masked: &Masked) -> String {
        let mut needles = Needles::default();
        self.collect_text(text, 0, &mut needles);
        if needles.is_empty() {
            return self.apply_text(text, masked, 0).unwrap_or_else(|| text.to_owned());
        }
        let mut all = Masked::from(needles);
        all.merge(masked);
        self.apply_text(text, &all, 0).unwrap_or_else(|| text.to_owned())
    }

    /// Masks a command line: each argument as free text, and the argument after a flag with a secret name.
    #[must_use]
    pub fn redact_argv(&self, argv: &[String]) -> Vec<String> {
        self.redact_argv_with(argv, &self.collect_argv(argv))
    }

    /// As [`Redactor::redact_argv`], and every value masked elsewhere is masked too.
    #[must_use]
    pub fn redact_argv_with(&self, argv: &[String], masked: &Masked) -> Vec<String> {
        let mask = |(arg, secret): (&String, Option<usize>)| match secret {
            Some(from) => format!("{}{MARKER}", &arg[..from]),
            None => self.redact_text(arg, masked),
        };
        argv.iter().zip(self.secret_arguments(argv)).map(mask).collect()
    }

    /// The values that a command line gives away.
    #[must_use]
    pub fn collect_argv(&self, argv: &[String]) -> Masked {
        let mut needles = Needles::default();
        for (arg, secret) in argv.iter().zip(self.secret_arguments(argv)) {
            match secret {
                Some(from) => needles.string(&arg[from..]),
                None => {
                    self.collect_text(arg, 0, &mut needles);
                }
            }
        }
        Masked::from(needles)
    }

    /// For each argument where the secret in it begins: after `--token=`, or at its start when it follows `--token`.
    fn secret_arguments(&self, argv: &[String]) -> Vec<Option<usize>> {
        let mut secret: Vec<Option<usize>> = Vec::with_capacity(argv.len());
        let masks = |name: &str, value: &str| match self.keys.check(name) {
            KeyMatch::Secret => true,
            KeyMatch::Counter => !text::is_number(value),
            KeyMatch::Open => false,
        };
        let mut before: Option<&str> = None;
        for arg in argv {
            let from = match (before, arg.split_once('=')) {
                (Some(flag), _) if text::may_follow_flag(arg) && masks(flag, arg) => Some(0),
                (_, Some((name, value))) if text::is_word(name) && masks(name, value) => Some(name.len() + 1),
                _ => None,
            };
            before = (from.is_none() && arg.starts_with('-') && !arg.contains('=')).then_some(arg);
            secret.push(from);
        }
        secret
    }

    /// The values that [`Redactor::redact_json`] would mask.
    #[must_use]
    pub fn collect_json(&self, text: &[u8]) -> Masked {
        self.search_json(text).0
    }

    /// The values that are masked in a text, and whether it has to be changed: values too short to be looked for
    /// elsewhere are masked in their place all the same.
    fn search_json(&self, text: &[u8]) -> (Masked, bool) {
        let mut needles = Needles::default();
        let mut collect = Collect { needles: &mut needles, found: false };
        let found = match self.walk(text, 0, &mut collect) {
            Ok(()) => collect.found,
            Err(_) => {
                self.collect_text(&String::from_utf8_lossy(text), EMBEDDED_LEVELS_MAX, &mut needles);
                true
            }
        };
        (Masked::from(needles), found)
    }

    /// Collects the values that are masked in free text; whether there are any, collected or not.
    fn collect_text(&self, text: &str, level: usize, needles: &mut Needles) -> bool {
        if level < EMBEDDED_LEVELS_MAX && text::may_be_json(text) {
            let mut inner = Needles::default();
            let mut collect = Collect { needles: &mut inner, found: false };
            if self.walk(text.as_bytes(), level + 1, &mut collect).is_ok() {
                let found = collect.found;
                needles.append(inner);
                return found;
            }
        }
        let regions = Scan::new(&self.keys, text).regions();
        for region in &regions {
            if region.certain {
                needles.string(&text[region.start..region.end]);
            }
        }
        !regions.is_empty()
    }

    fn apply_json(&self, text: &[u8], masked: &Masked) -> Vec<u8> {
        let mut apply = Apply { edits: Edits::new(), masked };
        match self.walk(text, 0, &mut apply) {
            Ok(()) => apply.edits.apply(text),
            Err(_) => {
                let text = String::from_utf8_lossy(text);
                quote(&self.apply_text(&text, masked, EMBEDDED_LEVELS_MAX).unwrap_or_else(|| text.into_owned()))
            }
        }
    }

    /// The masked text; `None` if nothing had to be masked.
    fn apply_text(&self, text: &str, masked: &Masked, level: usize) -> Option<String> {
        if level < EMBEDDED_LEVELS_MAX && text::may_be_json(text) {
            let mut apply = Apply { edits: Edits::new(), masked };
            if self.walk(text.as_bytes(), level + 1, &mut apply).is_ok() {
                if apply.edits.is_empty() {
                    return None;
                }
                return String::from_utf8(apply.edits.apply(text.as_bytes())).ok();
            }
        }
        let mut regions = Scan::new(&self.keys, text).regions();
        masked.find_all(text, |start, end| regions.push(text::Region::plain(start, end)));
        text::replace(text, regions)
    }

    /// One walk over a JSON text: `visit` hears of each secret value and each string and number that is none.
    fn walk(&self, text: &[u8], level: usize, visit: &mut dyn Visit) -> Result<(), JsonError> {
        let mut walker = Walker::new(text);
        // The value to come stands under a secret name, or under one that counts.
        let mut key = KeyMatch::Open;
        // The value before was a flag with a secret name: `["--token", "abc"]`.
        let mut after_flag = false;
        while let Some((token, span)) = walker.next_token()? {
            match token {
                Token::Key => {
                    let name = RawStr::checked(span.of(text)).unescape_lossy();
                    key = self.keys.check(&name);
                    visit.string(self, &name, span, level);
                    after_flag = false;
                    continue;
                }
                Token::ObjectStart | Token::ArrayStart if key != KeyMatch::Open => {
                    let outside = walker.depth() - 1;
                    let mut end = span.end;
                    while walker.depth() > outside {
                        let Some((token, inner)) = walker.next_token()? else { break };
                        visit.inside(token, inner.of(text));
                        end = inner.end;
                    }
                    visit.secret(Span { start: span.start, end });
                }
                Token::Number if key == KeyMatch::Counter => visit.number(span.of(text), span),
                Token::String | Token::Number | Token::True | Token::False | Token::Null if key != KeyMatch::Open => {
                    visit.inside(token, span.of(text));
                    visit.secret(span);
                }
                Token::String => {
                    let value = RawStr::checked(span.of(text)).unescape_lossy();
                    let secret = after_flag && text::may_follow_flag(&value);
                    if secret {
                        visit.inside(token, span.of(text));
                        visit.secret(span);
                    } else {
                        visit.string(self, &value, span, level);
                    }
                    let is_flag = !secret && value.starts_with('-') && text::is_word(&value);
                    after_flag = is_flag && self.keys.check(&value) == KeyMatch::Secret;
                    continue;
                }
                Token::Number => visit.number(span.of(text), span),
                Token::ObjectStart
                | Token::ArrayStart
                | Token::ObjectEnd
                | Token::ArrayEnd
                | Token::True
                | Token::False
                | Token::Null => {}
            }
            key = KeyMatch::Open;
            after_flag = false;
        }
        Ok(())
    }
}

/// What the two walks over a JSON text do with what they meet.
trait Visit {
    /// A token inside a secret value.
    fn inside(&mut self, token: Token, raw: &[u8]);
    /// The whole of a secret value.
    fn secret(&mut self, span: Span);
    /// A string or a name that is not secret by its place.
    fn string(&mut self, redactor: &Redactor, value: &str, span: Span, level: usize);
    /// A number that is not secret by its place.
    fn number(&mut self, raw: &[u8], span: Span);
}

struct Collect<'a> {
    needles: &'a mut Needles,
    /// Something has to be masked.
    found: bool,
}

impl Visit for Collect<'_> {
    fn inside(&mut self, token: Token, raw: &[u8]) {
        match token {
            Token::String => self.needles.string(&RawStr::checked(raw).unescape_lossy()),
            Token::Number => self.needles.number(&String::from_utf8_lossy(raw)),
            Token::Key
            | Token::ObjectStart
            | Token::ObjectEnd
            | Token::ArrayStart
            | Token::ArrayEnd
            | Token::True
            | Token::False
            | Token::Null => {}
        }
    }

    fn secret(&mut self, _: Span) {
        self.found = true;
    }

    fn string(&mut self, redactor: &Redactor, value: &str, _: Span, level: usize) {
        self.found |= redactor.collect_text(value, level, self.needles);
    }

    fn number(&mut self, _: &[u8], _: Span) {}
}

struct Apply<'m> {
    edits: Edits<'static>,
    masked: &'m Masked,
}

impl Visit for Apply<'_> {
    fn inside(&mut self, _: Token, _: &[u8]) {}

    fn secret(&mut self, span: Span) {
        self.edits.replace(span, QUOTED_MARKER);
    }

    fn string(&mut self, redactor: &Redactor, value: &str, span: Span, level: usize) {
        if let Some(text) = redactor.apply_text(value, self.masked, level) {
            self.edits.replace(span, quote(&text));
        }
    }

    fn number(&mut self, raw: &[u8], span: Span) {
        if self.masked.is_whole(raw) {
            self.edits.replace(span, QUOTED_MARKER);
        }
    }
}
