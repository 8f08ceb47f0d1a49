//! The one reading of JSON text: a strict, iterative walker over one frame, and views into text it has checked.
//!
//! Nothing here builds a tree or copies a value. What policy judges and what is forwarded are the same bytes, read once
//! by the same grammar (RFC 8259, UTF-8 only).

use std::borrow::Cow;

/// A range of bytes in a frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Span {
    /// First byte.
    pub start: usize,
    /// One past the last byte.
    pub end: usize,
}

impl Span {
    /// The bytes of this range.
    ///
    /// # Panics
    /// If the range does not lie in `text`.
    #[must_use]
    pub fn of(self, text: &[u8]) -> &[u8] {
        &text[self.start..self.end]
    }
}

/// What the walker found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Token {
    /// `{`
    ObjectStart,
    /// `}`
    ObjectEnd,
    /// `[`
    ArrayStart,
    /// `]`
    ArrayEnd,
    /// A member's name, quotes included.
    Key,
    /// A string value, quotes included.
    String,
    /// A number.
    Number,
    /// `true`
    True,
    /// `false`
    False,
    /// `null`
    Null,
}

/// Where and why a text is not JSON.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct JsonError {
    /// Byte offset of the fault.
    pub at: usize,
    /// What is wrong there.
    pub what: &'static str,
}

impl std::fmt::Display for JsonError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} at byte {}", self.what, self.at)
    }
}

impl std::error::Error for JsonError {}

/// Remembers for each open container whether it is an object, one bit a level.
#[derive(Clone, Debug, Default)]
struct Levels {
    top: u64,
    below: Vec<u64>,
    depth: usize,
}

impl Levels {
    fn push(&mut self, object: bool) {
        if self.depth > 0 && self.depth.is_multiple_of(64) {
            self.below.push(self.top);
        }
        self.top = self.top << 1 | u64::from(object);
        self.depth += 1;
    }

    fn pop(&mut self) {
        self.depth -= 1;
        self.top >>= 1;
        if self.depth > 0 && self.depth.is_multiple_of(64) {
            self.top = self.below.pop().unwrap_or(0);
        }
    }

    fn in_object(&self) -> bool {
        self.top & 1 == 1
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Expect {
    Value,
    ValueOrEnd,
    Key,
    KeyOrEnd,
    CommaOrEnd,
    Nothing,
}

/// Walks over one JSON text token by token and checks its grammar on the way.
///
/// Depth costs one bit a level, so no nesting exhausts the stack.
#[derive(Clone, Debug)]
pub struct Walker<'a> {
    text: &'a [u8],
    at: usize,
    levels: Levels,
    expect: Expect,
    utf8: Option<JsonError>,
}

impl<'a> Walker<'a> {
    /// A walker at the start of `text`. Bytes that are not UTF-8 are reported when the walk reaches them.
    #[must_use]
    pub fn new(text: &'a [u8]) -> Walker<'a> {
        let (text, utf8) = match std::str::from_utf8(text) {
            Ok(_) => (text, None),
            Err(error) => {
                let at = error.valid_up_to();
                (&text[..at], Some(JsonError { at, what: "invalid UTF-8" }))
            }
        };
        Walker { text, at: 0, levels: Levels::default(), expect: Expect::Value, utf8 }
    }

    /// How many containers are open.
    #[must_use]
    pub fn depth(&self) -> usize {
        self.levels.depth
    }

    /// The next token, or `None` once one whole value (and blanks) was read.
    ///
    /// # Errors
    /// Where the text stops being JSON. A walker that failed once keeps failing.
    pub fn next_token(&mut self) -> Result<Option<(Token, Span)>, JsonError> {
        loop {
            while matches!(self.text.get(self.at), Some(b' ' | b'\t' | b'\n' | b'\r')) {
                self.at += 1;
            }
            let Some(&byte) = self.text.get(self.at) else {
                if let Some(error) = self.utf8 {
                    return Err(error);
                }
                return if self.expect == Expect::Nothing { Ok(None) } else { self.fail("unexpected end of text") };
            };
            match self.expect {
                Expect::Value => return self.value(byte).map(Some),
                Expect::ValueOrEnd if byte == b']' => return Ok(Some(self.close(Token::ArrayEnd))),
                Expect::ValueOrEnd => return self.value(byte).map(Some),
                Expect::KeyOrEnd if byte == b'}' => return Ok(Some(self.close(Token::ObjectEnd))),
                Expect::KeyOrEnd | Expect::Key => return self.key(byte).map(Some),
                Expect::CommaOrEnd => match (byte, self.levels.in_object()) {
                    (b',', object) => {
                        self.at += 1;
                        self.expect = if object { Expect::Key } else { Expect::Value };
                    }
                    (b'}', true) => return Ok(Some(self.close(Token::ObjectEnd))),
                    (b']', false) => return Ok(Some(self.close(Token::ArrayEnd))),
                    (_, true) => return self.fail("expected ',' or '}'"),
                    (_, false) => return self.fail("expected ',' or ']'"),
                },
                Expect::Nothing => return self.fail("text after the value"),
            }
        }
    }

    /// Reads to the end of the text and gives the greatest depth met.
    ///
    /// # Errors
    /// As [`Walker::next_token`].
    pub fn finish(mut self) -> Result<usize, JsonError> {
        let mut deepest = self.depth();
        while self.next_token()?.is_some() {
            deepest = deepest.max(self.depth());
        }
        Ok(deepest)
    }

    fn fail<T>(&self, what: &'static str) -> Result<T, JsonError> {
        match self.utf8 {
            Some(error) if self.at >= self.text.len() => Err(error),
            _ => Err(JsonError { at: self.at, what }),
        }
    }

    fn after_value(&mut self) {
        self.expect = if self.levels.depth == 0 { Expect::Nothing } else { Expect::CommaOrEnd };
    }

    fn open(&mut self, token: Token, object: bool) -> (Token, Span) {
        let span = Span { start: self.at, end: self.at + 1 };
        self.at += 1;
        self.levels.push(object);
        self.expect = if object { Expect::KeyOrEnd } else { Expect::ValueOrEnd };
        (token, span)
    }

    fn close(&mut self, token: Token) -> (Token, Span) {
        let span = Span { start: self.at, end: self.at + 1 };
        self.at += 1;
        self.levels.pop();
        self.after_value();
        (token, span)
    }

    fn key(&mut self, byte: u8) -> Result<(Token, Span), JsonError> {
        if byte != b'"' {
            return self.fail("expected a member name in quotes");
        }
        let span = self.string()?;
        while matches!(self.text.get(self.at), Some(b' ' | b'\t' | b'\n' | b'\r')) {
            self.at += 1;
        }
        if self.text.get(self.at) != Some(&b':') {
            return self.fail("expected ':'");
        }
        self.at += 1;
        self.expect = Expect::Value;
        Ok((Token::Key, span))
    }

    fn value(&mut self, byte: u8) -> Result<(Token, Span), JsonError> {
        let (token, span) = match byte {
            b'{' => return Ok(self.open(Token::ObjectStart, true)),
            b'[' => return Ok(self.open(Token::ArrayStart, false)),
            b'"' => (Token::String, self.string()?),
            b'-' | b'0'..=b'9' => (Token::Number, self.number()?),
            b't' => (Token::True, self.word(b"true")?),
            b'f' => (Token::False, self.word(b"false")?),
            b'n' => (Token::Null, self.word(b"null")?),
            _ => return self.fail("expected a value"),
        };
        self.after_value();
        Ok((token, span))
    }

    fn word(&mut self, word: &[u8]) -> Result<Span, JsonError> {
        let span = Span { start: self.at, end: self.at + word.len() };
        if self.text.get(span.start..span.end) != Some(word) {
            return self.fail("expected a value");
        }
        self.at = span.end;
        Ok(span)
    }

    fn string(&mut self) -> Result<Span, JsonError> {
        let start = self.at;
        self.at += 1;
        loop {
            let rest = &self.text[self.at..];
            let Some(plain) = memchr::memchr2(b'"', b'\\', rest) else {
                self.at = self.text.len();
                return self.fail("string without end");
            };
            // One pass without early exit: the compiler turns it into wide compares.
            if rest[..plain].iter().fold(false, |bad, byte| bad | (*byte < 0x20)) {
                self.at += rest[..plain].iter().position(|byte| *byte < 0x20).unwrap_or(0);
                return self.fail("control character in a string");
            }
            self.at += plain + 1;
            if rest[plain] == b'"' {
                return Ok(Span { start, end: self.at });
            }
            match self.text.get(self.at) {
                Some(b'"' | b'\\' | b'/' | b'b' | b'f' | b'n' | b'r' | b't') => self.at += 1,
                Some(b'u') => {
                    self.at += 1;
                    for _ in 0..4 {
                        if !self.text.get(self.at).is_some_and(u8::is_ascii_hexdigit) {
                            return self.fail("expected four hexadecimal digits after '\\u'");
                        }
                        self.at += 1;
                    }
                }
                _ => return self.fail("unknown escape in a string"),
            }
        }
    }

    fn digits(&mut self) -> Result<(), JsonError> {
        let start = self.at;
        while self.text.get(self.at).is_some_and(u8::is_ascii_digit) {
            self.at += 1;
        }
        if self.at == start { self.fail("expected a digit") } else { Ok(()) }
    }

    fn number(&mut self) -> Result<Span, JsonError> {
        let start = self.at;
        if self.text[self.at] == b'-' {
            self.at += 1;
        }
        if self.text.get(self.at) == Some(&b'0') {
            self.at += 1;
        } else {
            self.digits()?;
        }
        if self.text.get(self.at) == Some(&b'.') {
            self.at += 1;
            self.digits()?;
        }
        if matches!(self.text.get(self.at), Some(b'e' | b'E')) {
            self.at += 1;
            if matches!(self.text.get(self.at), Some(b'+' | b'-')) {
                self.at += 1;
            }
            self.digits()?;
        }
        Ok(Span { start, end: self.at })
    }
}

/// The type of a JSON value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// `{…}`
    Object,
    /// `[…]`
    Array,
    /// `"…"`
    String,
    /// A number of any size.
    Number,
    /// `true`
    True,
    /// `false`
    False,
    /// `null`
    Null,
}

/// A value inside a text that the walker has checked. Looking into it reads the same bytes and copies nothing.
#[derive(Clone, Copy, Debug)]
pub struct Json<'a> {
    text: &'a [u8],
}

impl<'a> Json<'a> {
    /// Checks that `text` is exactly one JSON value (blanks around it allowed).
    ///
    /// # Errors
    /// Where it is not.
    pub fn parse(text: &'a [u8]) -> Result<Json<'a>, JsonError> {
        Walker::new(text).finish()?;
        Ok(Json::checked(text))
    }

    /// A view of a text that was checked before; blanks around it are allowed.
    #[must_use]
    pub(crate) fn checked(text: &'a [u8]) -> Json<'a> {
        Json { text: text.trim_ascii() }
    }

    /// The value's bytes, without blanks around it.
    #[must_use]
    pub fn text(self) -> &'a [u8] {
        self.text
    }

    /// The value's type.
    #[must_use]
    pub fn kind(self) -> Kind {
        match self.text.first() {
            Some(b'{') => Kind::Object,
            Some(b'[') => Kind::Array,
            Some(b'"') => Kind::String,
            Some(b't') => Kind::True,
            Some(b'f') => Kind::False,
            Some(b'n') => Kind::Null,
            _ => Kind::Number,
        }
    }

    /// The members of an object in their order; nothing for any other type.
    #[must_use]
    pub fn members(self) -> Members<'a> {
        Members { text: self.text, at: if self.kind() == Kind::Object { 1 } else { self.text.len() } }
    }

    /// The elements of an array in their order; nothing for any other type.
    #[must_use]
    pub fn elements(self) -> Elements<'a> {
        Elements { text: self.text, at: if self.kind() == Kind::Array { 1 } else { self.text.len() } }
    }

    /// The first member called `name`, compared without escapes.
    #[must_use]
    pub fn member(self, name: &str) -> Option<Json<'a>> {
        self.members().find(|member| member.key.is(name)).map(|member| member.value)
    }

    /// The element at `index`, counted from 0.
    #[must_use]
    pub fn element(self, index: usize) -> Option<Json<'a>> {
        self.elements().nth(index)
    }

    /// The string's characters; `None` if this is no string or holds a lone surrogate, which no Unicode string can.
    #[must_use]
    pub fn as_str(self) -> Option<Cow<'a, str>> {
        self.raw_str()?.unescape()
    }

    /// The string's text; `None` for any other type.
    #[must_use]
    pub fn raw_str(self) -> Option<RawStr<'a>> {
        (self.kind() == Kind::String).then_some(RawStr { text: self.text })
    }

    /// Where this value stands in `outer`, the text it was taken from.
    ///
    /// # Panics
    /// If it was not taken from there.
    #[must_use]
    pub fn span_in(self, outer: &[u8]) -> Span {
        span_in(self.text, outer)
    }
}

fn span_in(inner: &[u8], outer: &[u8]) -> Span {
    let start = (inner.as_ptr() as usize).checked_sub(outer.as_ptr() as usize).expect("the value lies in this text");
    let end = start + inner.len();
    assert!(end <= outer.len(), "the value lies in this text");
    Span { start, end }
}

/// One member of an object.
#[derive(Clone, Copy, Debug)]
pub struct Member<'a> {
    /// Its name.
    pub key: RawStr<'a>,
    /// Its value.
    pub value: Json<'a>,
}

/// Iterates over the members of an object.
#[derive(Clone, Debug)]
pub struct Members<'a> {
    text: &'a [u8],
    at: usize,
}

/// Moves `at` over blanks, commas and colons to the next value, name or closing bracket of a checked text.
fn next_start(text: &[u8], mut at: usize) -> usize {
    while matches!(text.get(at), Some(b' ' | b'\t' | b'\n' | b'\r' | b',' | b':')) {
        at += 1;
    }
    at
}

/// The end of the string that starts at `at` in a checked text.
fn string_end(text: &[u8], at: usize) -> usize {
    let mut at = at + 1;
    loop {
        let Some(found) = memchr::memchr2(b'"', b'\\', &text[at..]) else { return text.len() };
        if text[at + found] == b'"' {
            return at + found + 1;
        }
        at += found + 2;
    }
}

/// The end of the value that starts at `at` in a checked text.
fn value_end(text: &[u8], at: usize) -> usize {
    match text[at] {
        b'"' => string_end(text, at),
        b'{' | b'[' => {
            let mut depth = 0_usize;
            let mut at = at;
            loop {
                match text[at] {
                    b'"' => {
                        at = string_end(text, at);
                        continue;
                    }
                    b'{' | b'[' => depth += 1,
                    b'}' | b']' => depth -= 1,
                    _ => {}
                }
                at += 1;
                if depth == 0 {
                    return at;
                }
            }
        }
        _ => {
            let length = text[at..]
                .iter()
                .position(|byte| matches!(byte, b',' | b'}' | b']' | b' ' | b'\t' | b'\n' | b'\r'))
                .unwrap_or(text.len() - at);
            at + length
        }
    }
}

impl<'a> Iterator for Members<'a> {
    type Item = Member<'a>;

    fn next(&mut self) -> Option<Member<'a>> {
        let key_start = next_start(self.text, self.at);
        if self.text.get(key_start) != Some(&b'"') {
            self.at = self.text.len();
            return None;
        }
        let key_end = string_end(self.text, key_start);
        let start = next_start(self.text, key_end);
        self.at = value_end(self.text, start);
        Some(Member {
            key: RawStr { text: &self.text[key_start..key_end] },
            value: Json { text: &self.text[start..self.at] },
        })
    }
}

/// Iterates over the elements of an array.
#[derive(Clone, Debug)]
pub struct Elements<'a> {
    text: &'a [u8],
    at: usize,
}

impl<'a> Iterator for Elements<'a> {
    type Item = Json<'a>;

    fn next(&mut self) -> Option<Json<'a>> {
        let start = next_start(self.text, self.at);
        if matches!(self.text.get(start), None | Some(b']')) {
            self.at = self.text.len();
            return None;
        }
        self.at = value_end(self.text, start);
        Some(Json { text: &self.text[start..self.at] })
    }
}

/// The text of a JSON string, quotes included.
#[derive(Clone, Copy, Debug)]
pub struct RawStr<'a> {
    text: &'a [u8],
}

impl<'a> RawStr<'a> {
    /// A view of a string token of a text that was checked before.
    #[must_use]
    pub(crate) fn checked(text: &'a [u8]) -> RawStr<'a> {
        RawStr { text }
    }

    /// The bytes, quotes included.
    #[must_use]
    pub fn text(self) -> &'a [u8] {
        self.text
    }

    /// Where this string stands in `outer`, the text it was taken from.
    ///
    /// # Panics
    /// If it was not taken from there.
    #[must_use]
    pub fn span_in(self, outer: &[u8]) -> Span {
        span_in(self.text, outer)
    }

    fn inner(self) -> &'a str {
        // The walker has checked the encoding; an empty string would only come from a caller's mistake.
        std::str::from_utf8(&self.text[1..self.text.len() - 1]).unwrap_or_default()
    }

    /// The characters; `None` if a lone surrogate is among them.
    #[must_use]
    pub fn unescape(self) -> Option<Cow<'a, str>> {
        let inner = self.inner();
        if memchr::memchr(b'\\', inner.as_bytes()).is_none() {
            return Some(Cow::Borrowed(inner));
        }
        let mut out = String::with_capacity(inner.len());
        unescape(inner, |c| c.map(|c| out.push(c)).is_ok()).then_some(Cow::Owned(out))
    }

    /// The characters, with U+FFFD in the place of each lone surrogate.
    #[must_use]
    pub fn unescape_lossy(self) -> Cow<'a, str> {
        let inner = self.inner();
        if memchr::memchr(b'\\', inner.as_bytes()).is_none() {
            return Cow::Borrowed(inner);
        }
        let mut out = String::with_capacity(inner.len());
        unescape(inner, |c| {
            out.push(c.unwrap_or(char::REPLACEMENT_CHARACTER));
            true
        });
        Cow::Owned(out)
    }

    /// Whether the characters are those of `name`.
    #[must_use]
    pub fn is(self, name: &str) -> bool {
        let inner = self.inner();
        if inner == name {
            // `\` never stands for itself, so a name with one cannot be equal by its bytes alone.
            return !name.contains('\\');
        }
        inner.len() > name.len() && inner.contains('\\') && self.unescape().is_some_and(|text| text == name)
    }

    /// Whether the characters differ from those of `name` by case alone, as some readers (Go's `encoding/json`) match
    /// names.
    #[must_use]
    pub fn resembles(self, name: &str) -> bool {
        let fold = |text: &str| -> String {
            // The long s is a lower case letter and yet folds to another.
            text.chars().flat_map(char::to_lowercase).map(|c| if c == '\u{17f}' { 's' } else { c }).collect()
        };
        // An escape has six bytes, a character of UTF-8 one to four: whatever is far longer or shorter is another name.
        let length = self.text.len().saturating_sub(2);
        length.saturating_mul(4) >= name.len()
            && length <= name.len().saturating_mul(6)
            && !self.is(name)
            && fold(&self.unescape_lossy()) == fold(name)
    }
}

/// A lone surrogate, found while unescaping.
struct LoneSurrogate;

/// Gives each character of a checked string's inside to `each` until it says stop; whether it never did.
fn unescape(inner: &str, mut each: impl FnMut(Result<char, LoneSurrogate>) -> bool) -> bool {
    let mut rest = inner;
    while let Some(slash) = rest.find('\\') {
        for c in rest[..slash].chars() {
            if !each(Ok(c)) {
                return false;
            }
        }
        let escape = rest.as_bytes().get(slash + 1).copied().unwrap_or(b'\\');
        rest = rest.get(slash + 2..).unwrap_or_default();
        let found = match escape {
            b'b' => Ok('\u{8}'),
            b'f' => Ok('\u{c}'),
            b'n' => Ok('\n'),
            b'r' => Ok('\r'),
            b't' => Ok('\t'),
            b'u' => {
                let high = hex4(rest);
                rest = rest.get(4..).unwrap_or_default();
                let low = rest.strip_prefix("\\u").map(hex4);
                match (high, low) {
                    (0xD800..=0xDBFF, Some(low @ 0xDC00..=0xDFFF)) => {
                        rest = rest.get(6..).unwrap_or_default();
                        char::from_u32(0x10000 + ((high - 0xD800) << 10) + (low - 0xDC00)).ok_or(LoneSurrogate)
                    }
                    _ => char::from_u32(high).ok_or(LoneSurrogate),
                }
            }
            other => Ok(char::from(other)),
        };
        if !each(found) {
            return false;
        }
    }
    rest.chars().all(|c| each(Ok(c)))
}

fn hex4(text: &str) -> u32 {
    text.get(..4).and_then(|digits| u32::from_str_radix(digits, 16).ok()).unwrap_or(0xD800)
}

#[cfg(test)]
mod tests;
