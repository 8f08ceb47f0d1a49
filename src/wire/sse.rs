//! Cuts a byte stream into server-sent events (WHATWG HTML, "Server-sent events"), as MCP's HTTP transports use them.

/// What a server sends.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Sse {
    /// An event with data.
    Event(SseEvent),
    /// An event whose data is over the limit. Its bytes are dropped as they come; it is reported at its end.
    Oversized {
        /// The first bytes of the data, at most [`OVERSIZED_HEAD_BYTES`].
        head: Vec<u8>,
    },
    /// An event with an id and no data: a point to resume from and nothing else (MCP 2025-11-25, "priming event").
    Mark,
    /// How long the server wants to be left alone before a reconnect, in milliseconds.
    Retry(u64),
}

/// One event with data.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SseEvent {
    /// The value of `event`; empty if there was none, which means `message`.
    pub name: Vec<u8>,
    /// The values of `data`, joined by `\n`.
    pub data: Vec<u8>,
}

/// How much of an event that is too long is kept, so that the request it answers can be named.
pub const OVERSIZED_HEAD_BYTES: usize = 4096;

/// A line other than `data` is cut off after this many bytes: no name, id or delay comes near it.
const FIELD_BYTES_MAX: usize = 8192;

const BOM: &[u8] = b"\xef\xbb\xbf";

/// How an event's data was read so far.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct Pending {
    name: Vec<u8>,
    data: Vec<u8>,
    /// At least one `data` line, which may be empty.
    has_data: bool,
    /// The limit was passed; `data` holds the head.
    oversized: bool,
    id: Option<Vec<u8>>,
}

/// Where in the stream the parser is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum At {
    /// In a line whose field is not known yet; its bytes are in `line`.
    Field,
    /// In the value of `data`, after the optional blank.
    Data,
    /// In the value of `data`, before the optional blank.
    DataStart,
    /// In a line that means nothing: a comment, or an unknown field.
    Skipped,
}

/// Collects bytes, in whatever pieces they arrive, into events.
///
/// Any split of the same bytes gives the same events. Memory is bounded by the limit plus one piece; data goes straight
/// into the event, so a long one is copied once.
#[derive(Clone, Debug)]
pub struct SseParser {
    data_bytes_max: usize,
    at: At,
    line: Vec<u8>,
    pending: Pending,
    /// The last byte was `\r`: a `\n` now belongs to it.
    after_cr: bool,
    /// Nothing but (part of) a byte order mark was read.
    at_start: bool,
    last_id: Vec<u8>,
}

impl SseParser {
    /// A parser for events with at most `data_bytes_max` bytes of data.
    #[must_use]
    pub fn new(data_bytes_max: usize) -> SseParser {
        SseParser {
            data_bytes_max,
            at: At::Field,
            line: Vec::new(),
            pending: Pending::default(),
            after_cr: false,
            at_start: true,
            last_id: Vec::new(),
        }
    }

    /// A parser for a stream that goes on where another broke off.
    #[must_use]
    pub fn resumed(data_bytes_max: usize, last_id: &[u8]) -> SseParser {
        SseParser { last_id: last_id.to_vec(), ..SseParser::new(data_bytes_max) }
    }

    /// The id to resume from: that of the last event that ended. Empty if there was none, or the server took it back.
    #[must_use]
    pub fn last_id(&self) -> &[u8] {
        &self.last_id
    }

    /// How many bytes of an unfinished event are held.
    #[must_use]
    pub fn pending_bytes(&self) -> usize {
        let Pending { name, data, id, .. } = &self.pending;
        self.line.len() + name.len() + data.len() + id.as_ref().map_or(0, Vec::len)
    }

    /// Takes the next bytes of the stream and adds what they complete to `out`. What the end of the stream leaves
    /// unfinished is no event and is dropped with the parser.
    pub fn push(&mut self, mut chunk: &[u8], out: &mut Vec<Sse>) {
        while !chunk.is_empty() {
            if std::mem::take(&mut self.after_cr) && chunk[0] == b'\n' {
                chunk = &chunk[1..];
                continue;
            }
            match memchr::memchr2(b'\r', b'\n', chunk) {
                Some(end) => {
                    self.take(&chunk[..end]);
                    self.after_cr = chunk[end] == b'\r';
                    self.end_line(out);
                    chunk = &chunk[end + 1..];
                }
                None => {
                    self.take(chunk);
                    return;
                }
            }
        }
    }

    /// Takes bytes of the current line.
    fn take(&mut self, bytes: &[u8]) {
        match self.at {
            At::Skipped => {}
            At::Data => self.take_data(bytes),
            At::DataStart => {
                if !bytes.is_empty() {
                    self.at = At::Data;
                    self.take_data(bytes.strip_prefix(b" ").unwrap_or(bytes));
                }
            }
            At::Field => {
                // Long data must not pass through `line`: only as much as may tell the field goes there.
                let wanted = bytes.len().min(FIELD_BYTES_MAX - self.line.len());
                let known = self.line.len();
                self.line.extend_from_slice(&bytes[..wanted]);
                self.drop_bom();
                let Some(colon) = self.line.iter().position(|byte| *byte == b':') else {
                    if self.line.len() == FIELD_BYTES_MAX {
                        self.at = At::Skipped;
                    }
                    return;
                };
                match &self.line[..colon] {
                    b"data" => {
                        let bom = (known + wanted) - self.line.len();
                        let from = (colon + 1 + bom).saturating_sub(known);
                        self.line.clear();
                        self.begin_data();
                        self.at = At::DataStart;
                        self.take(&bytes[from..]);
                    }
                    b"event" | b"id" | b"retry" => {
                        if self.line.len() == FIELD_BYTES_MAX {
                            self.at = At::Skipped;
                        }
                    }
                    _ => self.at = At::Skipped,
                }
            }
        }
    }

    /// A byte order mark counts only as the very first bytes of the stream.
    fn drop_bom(&mut self) {
        if !self.at_start {
            return;
        }
        if self.line.starts_with(BOM) {
            self.line.drain(..BOM.len());
            self.at_start = false;
        } else if !BOM.starts_with(&self.line) {
            self.at_start = false;
        }
    }

    fn begin_data(&mut self) {
        if std::mem::replace(&mut self.pending.has_data, true) {
            self.take_data(b"\n");
        }
    }

    fn take_data(&mut self, bytes: &[u8]) {
        let pending = &mut self.pending;
        if pending.oversized {
            return;
        }
        pending.data.extend_from_slice(bytes);
        if pending.data.len() > self.data_bytes_max {
            pending.oversized = true;
            // What may be gigabytes from here on must not keep the room of what was.
            pending.data = pending.data[..pending.data.len().min(OVERSIZED_HEAD_BYTES)].to_vec();
        }
    }

    fn end_line(&mut self, out: &mut Vec<Sse>) {
        self.at_start = false;
        let at = std::mem::replace(&mut self.at, At::Field);
        let line = std::mem::take(&mut self.line);
        match at {
            At::Data | At::DataStart | At::Skipped => {}
            At::Field if line.is_empty() => self.end_event(out),
            At::Field => {
                let (name, value) = match line.iter().position(|byte| *byte == b':') {
                    Some(colon) => (&line[..colon], &line[colon + 1..]),
                    None => (&line[..], &b""[..]),
                };
                self.field(name, value.strip_prefix(b" ").unwrap_or(value), out);
            }
        }
    }

    fn field(&mut self, name: &[u8], value: &[u8], out: &mut Vec<Sse>) {
        match name {
            b"data" => self.begin_data(),
            b"event" => self.pending.name = value.to_vec(),
            b"id" if !value.contains(&0) => self.pending.id = Some(value.to_vec()),
            b"retry" if !value.is_empty() && value.iter().all(u8::is_ascii_digit) => {
                let millis = std::str::from_utf8(value).ok().and_then(|digits| digits.parse().ok());
                out.push(Sse::Retry(millis.unwrap_or(u64::MAX)));
            }
            _ => {}
        }
    }

    fn end_event(&mut self, out: &mut Vec<Sse>) {
        let Pending { name, data, has_data, oversized, id } = std::mem::take(&mut self.pending);
        let marked = id.is_some();
        if let Some(id) = id {
            self.last_id = id;
        }
        if oversized {
            out.push(Sse::Oversized { head: data });
        } else if has_data && !data.is_empty() {
            out.push(Sse::Event(SseEvent { name, data }));
        } else if marked {
            out.push(Sse::Mark);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parsed(limit: usize, pieces: impl IntoIterator<Item = impl AsRef<[u8]>>) -> (Vec<Sse>, String) {
        let mut parser = SseParser::new(limit);
        let mut out = Vec::new();
        for piece in pieces {
            parser.push(piece.as_ref(), &mut out);
        }
        (out, String::from_utf8_lossy(parser.last_id()).into_owned())
    }

    fn events(text: &str) -> Vec<Sse> {
        let whole = parsed(1000, [text]);
        assert_eq!(whole, parsed(1000, text.as_bytes().chunks(1)), "byte by byte: {text:?}");
        for cut in 0..text.len() {
            let (first, second) = text.as_bytes().split_at(cut);
            assert_eq!(whole, parsed(1000, [first, second]), "cut at {cut}: {text:?}");
        }
        whole.0
    }

    fn event(data: &str) -> Sse {
        named("", data)
    }

    fn named(name: &str, data: &str) -> Sse {
        Sse::Event(SseEvent { name: name.into(), data: data.into() })
    }

    #[test]
    fn htt_1_every_line_end_gives_the_same_events_wherever_it_is_cut() {
        let lines = ["event: message", "data: {\"a\":1}", "", "data: x", "data: y", "", ""];
        let expected = [named("message", "{\"a\":1}"), event("x\ny")];
        for end in ["\n", "\r\n", "\r"] {
            assert_eq!(events(&lines.join(end)), expected, "{end:?}");
        }
        let ends = ["\n", "\r\n", "\r", "\r\n", "\n", "\r", "\n"];
        let mixed: String = lines.iter().zip(ends).map(|(line, end)| format!("{line}{end}")).collect();
        assert_eq!(events(&mixed), expected);
    }

    #[test]
    fn htt_2_fields_comments_and_characters_are_read_as_the_standard_says() {
        assert_eq!(events(": ping\n\n"), []);
        assert_eq!(
            events("data:{\"jsonrpc\":\"2.0\",\ndata: \"id\":2,\"result\":{}}\n\n"),
            [event("{\"jsonrpc\":\"2.0\",\n\"id\":2,\"result\":{}}")]
        );
        assert_eq!(events("event: message\nfoo: bar\nid\ndata:  two blanks\n\n"), [named("message", " two blanks")]);
        assert_eq!(events("data: 读🎉é\n\n"), [event("读🎉é")]);
        assert_eq!(events(": c\ndata: a\n: c\n: data: no\ndata: b\n\n"), [event("a\nb")]);
        // The unfinished last event is not delivered.
        assert_eq!(events("data: a\n\ndata: b\n"), [event("a")]);
        assert_eq!(events("data: a\n\ndata: b"), [event("a")]);
        // A colon in the value, a field name that only begins alike.
        assert_eq!(events("data: a:b\ndatas: c\ndat: d\n data: e\n\n"), [event("a:b")]);
    }

    #[test]
    fn empty_data_is_no_message() {
        assert_eq!(events("data\n\ndata:\n\nevent: x\n\n"), []);
        assert_eq!(events("data\ndata\n\n"), [event("\n")]);
        // The priming event of MCP 2025-11-25.
        assert_eq!(parsed(9, ["id: s3-1\ndata: \n\n"]), (vec![Sse::Mark], "s3-1".into()));
    }

    #[test]
    fn an_id_counts_when_its_event_is_whole() {
        assert_eq!(parsed(9, ["id: 1\ndata: a\n\nid: 2\ndata: b\n"]).1, "1");
        assert_eq!(parsed(9, ["id: 1\ndata: a\n\ndata: b\n\n"]).1, "1");
        assert_eq!(parsed(9, ["id: 1\ndata: a\n\nid: 2\x00\ndata: b\n\n"]).1, "1");
        assert_eq!(parsed(9, ["id: 1\ndata: a\n\nid\ndata: b\n\n"]).1, "");
    }

    #[test]
    fn a_delay_is_digits_only() {
        assert_eq!(events("retry: 500\n\n"), [Sse::Retry(500)]);
        assert_eq!(events("retry: 5s\nretry:\nretry: -1\nretry: +1\n\n"), []);
        assert_eq!(events("retry: 99999999999999999999999\n"), [Sse::Retry(u64::MAX)]);
    }

    #[test]
    fn a_byte_order_mark_counts_in_front_only() {
        assert_eq!(events("\u{feff}data: a\n\n"), [event("a")]);
        assert_eq!(events("\u{feff}\u{feff}data: a\n\n"), []);
        assert_eq!(events("\n\u{feff}data: a\n\n"), []);
    }

    #[test]
    fn data_over_the_limit_is_reported_once_and_not_kept() {
        let fits = "x".repeat(50);
        let (out, _) = parsed(50, [format!("data: {fits}\n\ndata: {fits}y\n\ndata: {fits}\ndata: z\n\ndata: a\n\n")]);
        let oversized = |tail: &str| Sse::Oversized { head: format!("{fits}{tail}").into() };
        // The head of the third ends where the limit was noticed, which depends on the pieces.
        assert_eq!(out, [event(&fits), oversized("y"), oversized("\n"), event("a")]);
        let mut parser = SseParser::new(1 << 20);
        let mut out = Vec::new();
        parser.push(b"id: 1\ndata: ", &mut out);
        for _ in 0..64 {
            parser.push(&[b'x'; 1 << 16], &mut out);
            assert!(parser.pending_bytes() <= (1 << 20) + (1 << 16));
        }
        parser.push(b"\n\n", &mut out);
        assert_eq!(out, [Sse::Oversized { head: vec![b'x'; OVERSIZED_HEAD_BYTES] }]);
        assert_eq!(parser.last_id(), b"1");
    }

    #[test]
    fn endless_lines_that_are_no_data_take_no_room() {
        for start in [": ", "id: ", "event: ", "nothing", ""] {
            let mut parser = SseParser::new(100);
            let mut out = Vec::new();
            parser.push(start.as_bytes(), &mut out);
            for _ in 0..100 {
                parser.push(&[b'x'; 1000], &mut out);
            }
            assert!(parser.pending_bytes() <= FIELD_BYTES_MAX, "{start:?}");
            parser.push(b"\ndata: a\n\n", &mut out);
            assert_eq!(out, [event("a")], "{start:?}");
            assert_eq!(parser.last_id(), b"", "{start:?}");
        }
    }
}
