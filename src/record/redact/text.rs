//! Secrets in free text: found in one pass from left to right, each byte looked at a bounded number of times.

use super::MARKER;
use super::keys::{KeyMatch, KeyRule};

/// Words that name how a credential is given and stand before it: `authorization: Bearer abc`.
const ONE_WORD_SCHEMES: &[&str] = &["apikey", "api-key", "basic", "bearer", "key", "negotiate", "ntlm", "token"];
/// Schemes whose credential is a list of parameters up to the end of the line.
const PARAMETER_SCHEMES: &[&str] = &["aws4-hmac-sha256", "digest", "hawk", "hmac", "oauth", "signature"];

/// What people write after "Bearer" or a flag's name when no secret follows.
const PLAIN_WORDS: &[&str] = &[
    "a",
    "an",
    "and",
    "are",
    "argument",
    "auth",
    "authentication",
    "authorization",
    "cannot",
    "challenge",
    "credential",
    "credentials",
    "error",
    "flag",
    "for",
    "format",
    "from",
    "has",
    "header",
    "headers",
    "in",
    "invalid",
    "is",
    "missing",
    "must",
    "needs",
    "not",
    "of",
    "option",
    "or",
    "parameter",
    "realm",
    "required",
    "requires",
    "scheme",
    "scope",
    "the",
    "to",
    "token",
    "tokens",
    "value",
    "was",
    "with",
];

fn is_plain_word(text: &str) -> bool {
    PLAIN_WORDS.contains(&text.to_ascii_lowercase().as_str())
}

/// The credential in `Bearer abc`; `None` if the text does not begin with the name of a scheme.
pub(super) fn after_scheme(value: &str) -> Option<&str> {
    let (scheme, rest) = value.split_once([' ', '\t'])?;
    let scheme = scheme.to_ascii_lowercase();
    ONE_WORD_SCHEMES.contains(&scheme.as_str()).then(|| rest.trim_start())
}

/// A place in a text that is replaced by the marker.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Region {
    pub(super) start: usize,
    pub(super) end: usize,
    /// The value had no quotes but its name had: the marker gets quotes with this many backslashes before each.
    quotes: Option<(usize, u8)>,
    /// The value is a secret beyond doubt and is masked wherever it occurs again. Behind a bare `password:` may stand
    /// the next word of a sentence.
    pub(super) certain: bool,
}

impl Region {
    pub(super) fn plain(start: usize, end: usize) -> Region {
        Region { start, end, quotes: None, certain: true }
    }

    fn doubtful(self, text: &str) -> Region {
        Region { certain: looks_secret(&text[self.start..self.end]), ..self }
    }
}

/// The text with the marker in each region; `None` if there is none.
pub(super) fn replace(text: &str, mut regions: Vec<Region>) -> Option<String> {
    regions.retain(|region| region.start < region.end && &text[region.start..region.end] != MARKER);
    if regions.is_empty() {
        return None;
    }
    regions.sort_by_key(|region| (region.start, std::cmp::Reverse(region.end)));
    let mut out = String::with_capacity(text.len());
    let mut done = 0;
    let mut regions = regions.into_iter().peekable();
    while let Some(region) = regions.next() {
        let mut end = region.end;
        while let Some(next) = regions.next_if(|next| next.start < end) {
            end = end.max(next.end);
        }
        out.push_str(&text[done..region.start]);
        let quote = region.quotes.map(|(slashes, quote)| format!("{}{}", "\\".repeat(slashes), char::from(quote)));
        let quote = quote.unwrap_or_default();
        out.push_str(&quote);
        out.push_str(MARKER);
        out.push_str(&quote);
        done = end;
    }
    out.push_str(&text[done..]);
    Some(out)
}

/// Whether a text may be a JSON object or array.
pub(super) fn may_be_json(text: &str) -> bool {
    let text = text.trim_ascii();
    (text.starts_with('{') && text.ends_with('}')) || (text.starts_with('[') && text.ends_with(']'))
}

/// Whether a text is digits with what numbers are written with.
pub(super) fn is_number(text: &str) -> bool {
    text.bytes().any(|byte| byte.is_ascii_digit())
        && text.bytes().all(|byte| byte.is_ascii_digit() || matches!(byte, b'.' | b'-' | b'+' | b'e' | b'E' | b'_'))
}

/// Whether an argument can be the value of the flag before it. A flag cannot, unless it looks like a secret that happens
/// to begin with a hyphen.
pub(super) fn may_follow_flag(value: &str) -> bool {
    !value.starts_with('-') || looks_secret(value.trim_start_matches('-')) && !value.contains('=')
}

/// Long enough, with letters and digits: no word of a sentence.
fn looks_secret(value: &str) -> bool {
    value.len() >= 8
        && value.bytes().any(|byte| byte.is_ascii_digit())
        && value.bytes().any(|byte| byte.is_ascii_alphabetic())
}

fn is_word_byte(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || matches!(byte, b'_' | b'-' | b'.') || byte >= 0x80
}

/// Whether a text can be a name: one word.
pub(super) fn is_word(text: &str) -> bool {
    !text.is_empty() && text.bytes().all(is_word_byte)
}

fn is_quote(byte: u8) -> bool {
    matches!(byte, b'"' | b'\'' | b'`')
}

fn is_blank(byte: u8) -> bool {
    byte.is_ascii_whitespace()
}

/// One search through one text.
pub(super) struct Scan<'t> {
    rule: &'t KeyRule,
    text: &'t str,
    bytes: &'t [u8],
    regions: Vec<Region>,
    /// Up to here no `@` follows: keeps the search for URL credentials linear.
    no_at_before: usize,
}

impl<'t> Scan<'t> {
    pub(super) fn new(rule: &'t KeyRule, text: &'t str) -> Scan<'t> {
        Scan { rule, text, bytes: text.as_bytes(), regions: Vec::new(), no_at_before: 0 }
    }

    /// Every place to mask, from left to right.
    pub(super) fn regions(mut self) -> Vec<Region> {
        // Where the words before the one at hand begin, nearest last, as long as single blanks join them.
        let mut before: Vec<usize> = Vec::new();
        let mut at = 0;
        while let Some(&byte) = self.bytes.get(at) {
            if !is_word_byte(byte) {
                if !(byte == b' ' && at > 0 && is_word_byte(self.bytes[at - 1])) {
                    before.clear();
                }
                at += 1;
                continue;
            }
            let end = self.skip(at, is_word_byte);
            let next = self.word(at, end, &before);
            before.push(at);
            if before.len() >= self.rule.words_max().max(1) {
                before.remove(0);
            }
            if next > end {
                before.clear();
            }
            at = next;
        }
        self.regions
    }

    fn get(&self, at: usize) -> u8 {
        // Zero is no byte that any rule below looks for.
        self.bytes.get(at).copied().unwrap_or(0)
    }

    fn skip(&self, from: usize, mut pass: impl FnMut(u8) -> bool) -> usize {
        self.bytes[from..].iter().position(|byte| !pass(*byte)).map_or(self.bytes.len(), |length| from + length)
    }

    /// Looks at the word from `start` to `end` and what follows; gives where to go on.
    fn word(&mut self, start: usize, end: usize, before: &[usize]) -> usize {
        if self.bytes[end..].starts_with(b"://") {
            return self.url(end + 3).unwrap_or(end);
        }
        if let Some(next) = self.scheme(start, end) {
            return next;
        }
        // `"key"`, `\"key\"`, `user[key]`
        let slashes = self.skip(end, |byte| byte == b'\\') - end;
        let mut after = end;
        let mut name_quote = None;
        if is_quote(self.get(end + slashes)) {
            name_quote = Some((slashes, self.get(end + slashes)));
            after = end + slashes + 1;
        }
        if self.get(after) == b']' {
            after += 1;
        }
        let blanks = self.skip(after, is_blank);
        if let Some(value) = self.after_separator(blanks) {
            return match self.check(start, end, before) {
                KeyMatch::Open => end,
                found => self.value(start, value, name_quote, found).unwrap_or(end),
            };
        }
        if blanks == end {
            return end;
        }
        self.value_after_blank(start, end, blanks, before).unwrap_or(end)
    }

    fn check(&self, start: usize, end: usize, before: &[usize]) -> KeyMatch {
        let found = self.rule.check(&self.text[start..end]);
        if found == KeyMatch::Open && before.iter().any(|from| self.rule.is_phrase(&self.text[*from..end])) {
            return KeyMatch::Secret;
        }
        found
    }

    /// Where the value begins after `=`, `:`, `==`, `=>` or `:=`; `None` if none of them stands here.
    fn after_separator(&self, at: usize) -> Option<usize> {
        let next = self.get(at + 1);
        let length = match self.get(at) {
            b'=' if matches!(next, b'=' | b'>') => 2,
            b'=' => 1,
            b':' if next == b'=' => 2,
            b':' if next == b':' || self.bytes[at..].starts_with(b"://") => return None,
            b':' => 1,
            _ => return None,
        };
        let value = self.skip(at + length, is_blank);
        (value < self.bytes.len()).then_some(value)
    }

    /// `--flag value`, and `token "value"` or `token value` where the value can be nothing else.
    fn value_after_blank(&mut self, start: usize, end: usize, value: usize, before: &[usize]) -> Option<usize> {
        let is_flag = self.bytes[start] == b'-';
        let stop = match is_quote(self.get(value)) {
            true => self.closing_quote(value, 0)?,
            false => self.skip(value, |byte| !is_blank(byte)),
        };
        let inner = self.text[value..stop].trim_matches(|c: char| c.is_ascii_punctuation());
        let plausible = match is_flag {
            true => may_follow_flag(&self.text[value..stop]) && !is_plain_word(inner),
            false => looks_secret(inner),
        };
        if !plausible || value >= stop {
            return None;
        }
        match self.check(start, end, before) {
            KeyMatch::Open => None,
            found => self.value(start, value, None, found),
        }
    }

    /// Masks the value that begins at `at`; gives where it ends.
    fn value(&mut self, key: usize, at: usize, name_quote: Option<(usize, u8)>, found: KeyMatch) -> Option<usize> {
        let slashes = self.skip(at, |byte| byte == b'\\') - at;
        // Python writes bytes and raw strings with a letter in front.
        let letters =
            if slashes == 0 { self.skip(at, |byte| matches!(byte, b'b' | b'B' | b'r' | b'R' | b'u')) - at } else { 0 };
        let open = at + slashes + if letters <= 2 { letters } else { 0 };
        if is_quote(self.get(open)) {
            let end = self.closing_quote(open, slashes).unwrap_or(self.bytes.len());
            self.regions.push(Region::plain(open + 1, end));
            return Some(end);
        }
        if matches!(self.get(at), b'{' | b'[') {
            let end = self.closing_bracket(at);
            self.regions.push(Region { certain: false, quotes: name_quote, ..Region::plain(at, end) });
            return Some(end);
        }
        let in_query = matches!(self.get(key.wrapping_sub(1)), b'?' | b'&');
        let end = self.bare_value(at, name_quote.is_some(), in_query);
        if end == at || (found == KeyMatch::Counter && is_number(&self.text[at..end])) {
            return None;
        }
        if let Some(credential) = after_scheme(&self.text[at..end]) {
            self.regions.push(Region::plain(end - credential.len(), end));
        }
        let region = Region { quotes: name_quote, ..Region::plain(at, end) };
        self.regions.push(if in_query { region } else { region.doubtful(self.text) });
        Some(end)
    }

    fn bare_value(&self, at: usize, in_json: bool, in_query: bool) -> usize {
        if in_json {
            return self.skip(at, |byte| !is_blank(byte) && !matches!(byte, b',' | b'}' | b']'));
        }
        if in_query {
            return self.skip(at, |byte| !is_blank(byte) && !matches!(byte, b'&' | b'#' | b'"' | b'\'' | b'<' | b'>'));
        }
        let end = self.skip(at, |byte| !is_blank(byte));
        let word = self.text[at..end].to_ascii_lowercase();
        let next = self.skip(end, |byte| matches!(byte, b' ' | b'\t'));
        if PARAMETER_SCHEMES.contains(&word.as_str()) {
            return self.skip(end, |byte| !matches!(byte, b'\r' | b'\n'));
        }
        if ONE_WORD_SCHEMES.contains(&word.as_str()) && next > end {
            return self.trimmed(next, self.skip(next, |byte| !is_blank(byte)));
        }
        self.trimmed(at, end)
    }

    /// Closing marks at the end belong to the text around the value.
    fn trimmed(&self, start: usize, end: usize) -> usize {
        let value = self.text[start..end].trim_end_matches([',', ';', ')', ']', '}', '>', '"', '\'', '`', '\\']);
        if value.is_empty() { end } else { start + value.len() }
    }

    /// The closing quote to the one at `open`, which has `slashes` backslashes before it: where the backslashes of the
    /// closing one begin.
    ///
    /// Quotes that were escaped along with their string carry 1, 3, 7 … backslashes. A quote closes the string if, each
    /// escape undone, an even number of backslashes is left before it.
    fn closing_quote(&self, open: usize, slashes: usize) -> Option<usize> {
        let quote = self.get(open);
        let mut at = open + 1;
        loop {
            let found = at + memchr::memchr2(quote, b'\\', self.bytes.get(at..)?)?;
            let end = self.skip(found, |byte| byte == b'\\');
            if self.get(end) != quote {
                at = end.max(found + 1);
                continue;
            }
            let (mut left, mut level) = (end - found, slashes);
            loop {
                if left.is_multiple_of(2) {
                    return Some(if slashes == 0 { end } else { end - slashes.min(end - found) });
                }
                if level == 0 {
                    break;
                }
                (left, level) = ((left - 1) / 2, (level - 1) / 2);
            }
            at = end + 1;
        }
    }

    /// One past the bracket that closes the one at `open`, or the end of the text.
    fn closing_bracket(&self, open: usize) -> usize {
        let mut depth = 0_usize;
        let mut at = open;
        while let Some(&byte) = self.bytes.get(at) {
            match byte {
                b'{' | b'[' => depth += 1,
                b'}' | b']' => depth -= 1,
                b'"' => {
                    let slashes = self.bytes[open..at].iter().rev().take_while(|byte| **byte == b'\\').count();
                    match self.closing_quote(at, slashes) {
                        Some(close) => at = self.skip(close, |byte| byte == b'\\'),
                        None => return self.bytes.len(),
                    }
                }
                b'\'' if matches!(self.get(at - 1), b'{' | b'[' | b',' | b':' | b'=' | b' ') => {
                    match self.closing_quote(at, 0) {
                        Some(close) => at = close,
                        None => return self.bytes.len(),
                    }
                }
                _ => {}
            }
            at += 1;
            if depth == 0 {
                return at;
            }
        }
        self.bytes.len()
    }

    /// `Bearer abc` and `Basic abc` without a name before them.
    fn scheme(&mut self, start: usize, end: usize) -> Option<usize> {
        let word = &self.text[start..end];
        let bearer = word.eq_ignore_ascii_case("bearer");
        if !bearer && !word.eq_ignore_ascii_case("basic") {
            return None;
        }
        let from = self.skip(end, |byte| matches!(byte, b' ' | b'\t'));
        let to = self.skip(from, |byte| {
            byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'.' | b'_' | b'~' | b'+' | b'/' | b'=')
        });
        if from == end || from == to {
            return None;
        }
        let token = self.text[from..to].trim_end_matches('.');
        let secret = match bearer {
            true => !is_plain_word(token.trim_end_matches('=')),
            false => looks_base64(token),
        };
        if !secret {
            return None;
        }
        let end = from + token.len();
        self.regions.push(Region::plain(from, end));
        Some(end)
    }

    /// The credentials of the URL whose authority begins at `start`; gives where they end.
    fn url(&mut self, start: usize) -> Option<usize> {
        let ends = |byte: u8| is_blank(byte) || is_quote(byte) || matches!(byte, b'<' | b'>');
        let authority = self.skip(start, |byte| !ends(byte) && !matches!(byte, b'/' | b'?' | b'#'));
        let at = match memchr::memrchr(b'@', &self.bytes[start..authority]) {
            Some(at) => start + at,
            None => {
                // A password with an unescaped slash ends the authority early, and makes a port that is no number.
                let port = self.bytes[start..authority].split(|byte| *byte == b':').nth(1).unwrap_or_default();
                if port.iter().all(u8::is_ascii_digit) || start < self.no_at_before {
                    return None;
                }
                let stop = self.skip(start, |byte| !ends(byte) && byte != b'@');
                if self.get(stop) != b'@' {
                    self.no_at_before = stop;
                    return None;
                }
                stop
            }
        };
        let secret = match memchr::memchr(b':', &self.bytes[start..at]) {
            Some(colon) => start + colon + 1,
            None if looks_secret(&self.text[start..at]) => start,
            None => return Some(at),
        };
        self.regions.push(Region::plain(secret, at));
        Some(at)
    }
}

/// Letters of both cases or digits in the alphabet of base 64, four at least: no English word.
fn looks_base64(token: &str) -> bool {
    let inside = token.get(1..).unwrap_or_default();
    token.len() >= 4
        && token.bytes().all(|byte| byte.is_ascii_alphanumeric() || matches!(byte, b'+' | b'/' | b'=' | b'-' | b'_'))
        && inside.bytes().any(|byte| byte.is_ascii_uppercase() || byte.is_ascii_digit() || matches!(byte, b'=' | b'+'))
}
