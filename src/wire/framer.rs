//! Cuts a byte stream into frames: one JSON text a line, ended by `\n` (MCP stdio transport).

/// How much of a frame that is too long is kept, so that the request it belongs to can be ended.
pub const OVERSIZED_HEAD_BYTES: usize = 4096;

/// How much of the end of a frame that is too long is kept: some peers write the id last.
pub const OVERSIZED_TAIL_BYTES: usize = 256;

/// The frame limit where the configuration names none: 64 MiB.
pub const FRAME_BYTES_MAX_DEFAULT: usize = 64 << 20;

const BOM: &[u8] = b"\xef\xbb\xbf";

/// One line of the stream.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Framed {
    /// A line within the limit, without its end (`\n` or `\r\n`) and without a byte order mark; never blank.
    Frame(Vec<u8>),
    /// A line over the limit, reported when the limit is passed; the rest up to the next `\n` is dropped.
    Oversized {
        /// Its first bytes, at most [`OVERSIZED_HEAD_BYTES`].
        head: Vec<u8>,
    },
    /// The end of the line that was last reported as [`Framed::Oversized`].
    OversizedEnd {
        /// Its last bytes, at most [`OVERSIZED_TAIL_BYTES`], without the line end.
        tail: Vec<u8>,
    },
}

/// Collects bytes, in whatever pieces they arrive, into frames.
///
/// Any split of the same bytes gives the same frames. Memory is bounded by the frame limit plus one piece.
#[derive(Clone, Debug)]
pub struct Framer {
    frame_bytes_max: usize,
    /// The line begun so far; while skipping, its last bytes.
    partial: Vec<u8>,
    /// The limit was passed: everything up to the next `\n` belongs to a frame already reported.
    skipping: bool,
}

impl Framer {
    /// A framer for frames of at most `frame_bytes_max` bytes, line end not counted.
    #[must_use]
    pub fn new(frame_bytes_max: usize) -> Framer {
        Framer { frame_bytes_max, partial: Vec::new(), skipping: false }
    }

    /// Takes the next bytes of the stream and adds what they complete to `out`.
    pub fn push(&mut self, mut chunk: &[u8], out: &mut Vec<Framed>) {
        while let Some(newline) = memchr::memchr(b'\n', chunk) {
            let (line, rest) = (&chunk[..newline], &chunk[newline + 1..]);
            chunk = rest;
            if self.skipping {
                self.keep_tail(line);
                self.end_skipping(out);
            } else if self.partial.is_empty() {
                self.complete(line.to_vec(), out);
            } else {
                let mut whole = std::mem::take(&mut self.partial);
                whole.extend_from_slice(line);
                self.complete(whole, out);
            }
        }
        if self.skipping {
            self.keep_tail(chunk);
            return;
        }
        self.partial.extend_from_slice(chunk);
        // A mark in front and a `\r` that may turn out to be half of the line end do not count.
        let counted = strip_bom(&self.partial);
        let counted = counted.strip_suffix(b"\r").unwrap_or(counted);
        if counted.len() > self.frame_bytes_max {
            out.push(Framed::Oversized { head: head_of(counted) });
            self.skipping = true;
            // What may be gigabytes from here on must not keep the room of what was.
            self.partial = tail_of(strip_bom(&self.partial)).to_vec();
        }
    }

    /// Takes the end of the stream: a last line without `\n` counts as a line.
    pub fn finish(&mut self, out: &mut Vec<Framed>) {
        if self.skipping {
            self.end_skipping(out);
        } else {
            let last = std::mem::take(&mut self.partial);
            self.complete(last, out);
        }
    }

    /// How many bytes of an unfinished line are held.
    #[must_use]
    pub fn pending_bytes(&self) -> usize {
        self.partial.len()
    }

    /// Keeps the last bytes of a line that is being skipped.
    fn keep_tail(&mut self, more: &[u8]) {
        self.partial.extend_from_slice(tail_of(more));
        let surplus = self.partial.len().saturating_sub(TAIL_KEPT_BYTES);
        self.partial.drain(..surplus);
    }

    fn end_skipping(&mut self, out: &mut Vec<Framed>) {
        self.skipping = false;
        let line = std::mem::take(&mut self.partial);
        let line = line.strip_suffix(b"\r").unwrap_or(&line);
        out.push(Framed::OversizedEnd { tail: last_of(line) });
    }

    fn complete(&self, mut line: Vec<u8>, out: &mut Vec<Framed>) {
        if line.last() == Some(&b'\r') {
            line.pop();
        }
        if line.starts_with(BOM) {
            line.drain(..BOM.len());
        }
        if line.len() > self.frame_bytes_max {
            out.push(Framed::Oversized { head: head_of(&line) });
            out.push(Framed::OversizedEnd { tail: last_of(&line) });
        } else if !line.iter().all(|byte| matches!(byte, b' ' | b'\t' | b'\r')) {
            out.push(Framed::Frame(line));
        }
    }
}

fn strip_bom(line: &[u8]) -> &[u8] {
    line.strip_prefix(BOM).unwrap_or(line)
}

/// One byte more than is given out, for the `\r` of the line end.
const TAIL_KEPT_BYTES: usize = OVERSIZED_TAIL_BYTES + 1;

fn tail_of(line: &[u8]) -> &[u8] {
    &line[line.len().saturating_sub(TAIL_KEPT_BYTES)..]
}

fn last_of(line: &[u8]) -> Vec<u8> {
    line[line.len().saturating_sub(OVERSIZED_TAIL_BYTES)..].to_vec()
}

fn head_of(line: &[u8]) -> Vec<u8> {
    line[..line.len().min(OVERSIZED_HEAD_BYTES)].to_vec()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn frames(limit: usize, pieces: &[&[u8]]) -> Vec<Framed> {
        let mut framer = Framer::new(limit);
        let mut out = Vec::new();
        for piece in pieces {
            framer.push(piece, &mut out);
        }
        framer.finish(&mut out);
        out
    }

    fn frame(text: &str) -> Framed {
        Framed::Frame(text.as_bytes().to_vec())
    }

    #[test]
    fn frm_1_a_character_split_over_two_reads_survives() {
        let text = "{\"t\":\"读🎉é\"}\n".as_bytes();
        let bytes: Vec<&[u8]> = text.chunks(1).collect();
        assert_eq!(frames(100, &bytes), [frame("{\"t\":\"读🎉é\"}")]);
    }

    #[test]
    fn frm_2_crlf_ends_a_line_even_when_cut_between_its_bytes() {
        assert_eq!(frames(100, &[b"{}\r", b"\n[]\r\n"]), [frame("{}"), frame("[]")]);
    }

    #[test]
    fn frm_3_only_the_newline_byte_ends_a_frame() {
        let text = "{\"t\":\"\u{2028}\u{2029}\u{85}\u{b}\"}";
        assert_eq!(frames(100, &[text.as_bytes(), b"\n"]), [frame(text)]);
    }

    #[test]
    fn frm_7_an_endless_line_is_reported_once_and_held_in_bounded_memory() {
        let mut framer = Framer::new(10_000);
        let mut out = Vec::new();
        framer.push(b"{\"id\":1}\n", &mut out);
        for _ in 0..1_000 {
            framer.push(&[b'x'; 1_000], &mut out);
            assert!(framer.pending_bytes() <= 11_000);
        }
        framer.push(b"\n{\"id\":2}\n", &mut out);
        assert_eq!(out[0], frame("{\"id\":1}"));
        assert_eq!(out[1], Framed::Oversized { head: vec![b'x'; OVERSIZED_HEAD_BYTES] });
        assert_eq!(out[2], Framed::OversizedEnd { tail: vec![b'x'; OVERSIZED_TAIL_BYTES] });
        assert_eq!(out[3..], [frame("{\"id\":2}")]);
    }

    #[test]
    fn frm_8_a_last_line_without_newline_is_a_line() {
        assert_eq!(frames(100, &[b"{\"id\":7}"]), [frame("{\"id\":7}")]);
        assert_eq!(frames(100, &[b"{}\n"]), [frame("{}")]);
    }

    #[test]
    fn frm_9_blank_lines_are_no_frames() {
        assert_eq!(frames(100, &[b"\n\r\n   \t\n{}\n \r\n\n"]), [frame("{}")]);
    }

    #[test]
    fn a_byte_order_mark_is_dropped() {
        assert_eq!(frames(2, &[b"\xef\xbb", b"\xbf{}\r\n"]), [frame("{}")]);
        assert_eq!(frames(2, &[b"\xef\xbb\xbf\n"]), []);
    }

    #[test]
    fn the_limit_counts_the_line_without_its_end() {
        assert_eq!(frames(4, &[b"1234\r\n"]), [frame("1234")]);
        let end = Framed::OversizedEnd { tail: b"12345".to_vec() };
        assert_eq!(frames(4, &[b"12345\r\n12\n"]), [Framed::Oversized { head: b"12345".to_vec() }, end, frame("12")]);
    }

    #[test]
    fn the_end_of_an_oversized_line_is_kept_however_it_arrives() {
        let line = [&vec![b'x'; 2_000][..], b"\"id\":7}"].concat();
        let expected = line[line.len() - OVERSIZED_TAIL_BYTES..].to_vec();
        for size in [1, 7, 256, 257, 258, 3_000] {
            let mut pieces: Vec<&[u8]> = line.chunks(size).collect();
            pieces.push(b"\r\n");
            let out = frames(1_000, &pieces);
            assert_eq!(out[1..], [Framed::OversizedEnd { tail: expected.clone() }], "pieces of {size}");
        }
    }

    #[test]
    fn any_split_gives_the_same_frames() {
        let text = b"\xef\xbb\xbf{\"a\":1}\r\n\n  \n[1,2]\n123456789\r\n\r\n1234567\r\r\nab\r\ncd\rx\n{\"last\":1}";
        // Where a line is over the limit, its kept head depends on how much had arrived, up to the documented bound.
        let shape = |framed: &Framed| match framed {
            Framed::Frame(bytes) => Some(bytes.clone()),
            Framed::Oversized { .. } => None,
            Framed::OversizedEnd { tail } => Some([b"end of ", &tail[..]].concat()),
        };
        for limit in [3, 7, 8, 9, 100] {
            let whole: Vec<_> = frames(limit, &[text]).iter().map(shape).collect();
            for first in 0..text.len() {
                for second in first..text.len() {
                    let pieces = [&text[..first], &text[first..second], &text[second..]];
                    let split: Vec<_> = frames(limit, &pieces).iter().map(shape).collect();
                    assert_eq!(split, whole, "limit {limit}, cut at {first} and {second}");
                }
            }
        }
    }
}
