//! The form of a flight file: marks about the calls of one process, each with its own length and checksum. No I/O.
//!
//! ```text
//! 8d1f03a2 00000022 flight 1 4711 1796032800000 0.1.0
//! 0c33a1f7 000003b1 accepted 12 {"id":"",…}
//! 5b2e90cc 0000001e begun 12 13 1796032800123
//! 91d0f6aa 00000008 ended 12
//! ```
//!
//! Checksum (CRC-32) and length of the text behind them, in hexadecimal. A process that is killed while it writes
//! leaves a last mark that is too short, which is ignored: what it was to say had not happened yet. Anything else that
//! does not check is damage.

use crate::clock::Wall;
use std::collections::BTreeMap;
use std::io::Write;

/// The form that this program writes and reads; it goes up when an older program would misread a file.
pub(super) const VERSION: u32 = 1;

/// Checksum, blank, length, blank.
const HEAD_BYTES: usize = 18;

/// One mark.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Entry<'a> {
    /// The first of each file.
    Begin { version: u32, pid: u32, at: Wall },
    /// A call is open from here on. Its record is a dead letter that says so, redacted, as JSON, without an id.
    Accepted { call: u64, record: &'a [u8] },
    /// The first byte of an attempt is about to leave.
    Begun { call: u64, attempt: u64, at: Wall },
    /// It did not leave after all.
    Stayed { call: u64, attempt: u64 },
    /// The call is over: its answer has left, it was withdrawn, or it is in the queue.
    Ended { call: u64 },
}

/// Appends one mark.
pub(super) fn append(out: &mut Vec<u8>, entry: Entry<'_>) {
    let start = out.len();
    out.extend_from_slice(&[b' '; HEAD_BYTES]);
    // A vector takes every write.
    let _ = match entry {
        Entry::Begin { version, pid, at } => {
            write!(out, "flight {version} {pid} {} {}", at.0, env!("CARGO_PKG_VERSION"))
        }
        Entry::Accepted { call, record } => write!(out, "accepted {call} ").and_then(|()| out.write_all(record)),
        Entry::Begun { call, attempt, at } => write!(out, "begun {call} {attempt} {}", at.0),
        Entry::Stayed { call, attempt } => write!(out, "stayed {call} {attempt}"),
        Entry::Ended { call } => write!(out, "ended {call}"),
    };
    let text = &out[start + HEAD_BYTES..];
    let (checksum, length) = (crc32(text), u32::try_from(text.len()).unwrap_or(u32::MAX));
    hex(checksum, &mut out[start..start + 8]);
    hex(length, &mut out[start + 9..start + 17]);
    out.push(b'\n');
}

fn hex(number: u32, out: &mut [u8]) {
    for (place, byte) in out.iter_mut().enumerate() {
        *byte = b"0123456789abcdef"[(number >> (28 - 4 * place) & 15) as usize];
    }
}

/// A call that a file says is open.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct OpenCall {
    /// The record's JSON.
    pub(super) record: Vec<u8>,
    /// Attempts of which bytes may have left, and when.
    pub(super) begun: Vec<(u64, Wall)>,
}

/// What a file says.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Flight {
    /// Calls without an end, by their number.
    pub(super) open: BTreeMap<u64, OpenCall>,
    /// The process that wrote it, if its first mark can be read.
    pub(super) pid: Option<u32>,
    /// What is wrong with it.
    pub(super) fault: Option<Fault>,
}

/// What is wrong with a file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Fault {
    /// Bytes from here on are no mark, and were not simply cut off.
    Damaged { at: usize },
    /// A newer program wrote it; nothing of it was read.
    Newer { version: u32 },
}

/// Reads a whole file.
pub(super) fn read(bytes: &[u8]) -> Flight {
    let mut flight = Flight::default();
    let mut at = 0;
    let mut damaged = None;
    while at < bytes.len() {
        let problem = match mark_at(bytes, at) {
            Mark::Whole { text, end, ended } => {
                match parse(text) {
                    Some(Entry::Begin { version, .. }) if version > VERSION => {
                        return Flight { fault: Some(Fault::Newer { version }), ..Flight::default() };
                    }
                    Some(entry) if ended && (at == 0) == matches!(entry, Entry::Begin { .. }) => flight.take(entry),
                    Some(entry) => {
                        damaged = damaged.or(Some(at));
                        flight.take(entry);
                    }
                    None => damaged = damaged.or(Some(at)),
                }
                at = end;
                continue;
            }
            Mark::Cut => None,
            Mark::Bad => Some(at),
        };
        match next_mark(bytes, at + 1) {
            // Whole marks behind it: this was no end of the file.
            Some(next) => {
                damaged = damaged.or(Some(at));
                at = next;
            }
            None => {
                damaged = damaged.or(problem);
                break;
            }
        }
    }
    flight.fault = damaged.map(|at| Fault::Damaged { at });
    flight
}

impl Flight {
    fn take(&mut self, entry: Entry<'_>) {
        match entry {
            Entry::Begin { pid, .. } => self.pid = Some(pid),
            Entry::Accepted { call, record } => {
                self.open.insert(call, OpenCall { record: record.to_vec(), begun: Vec::new() });
            }
            Entry::Begun { call, attempt, at } => {
                if let Some(call) = self.open.get_mut(&call) {
                    call.begun.push((attempt, at));
                }
            }
            Entry::Stayed { call, attempt } => {
                if let Some(call) = self.open.get_mut(&call) {
                    call.begun.retain(|(begun, _)| *begun != attempt);
                }
            }
            Entry::Ended { call } => {
                self.open.remove(&call);
            }
        }
    }
}

enum Mark<'a> {
    Whole {
        text: &'a [u8],
        end: usize,
        /// It has its length, and the line end behind it.
        ended: bool,
    },
    /// The file ends before the mark does.
    Cut,
    Bad,
}

fn mark_at(bytes: &[u8], at: usize) -> Mark<'_> {
    let rest = &bytes[at..];
    let digits = |range: std::ops::Range<usize>| rest.get(range).and_then(from_hex);
    if rest.len() < HEAD_BYTES {
        let fits = rest.iter().enumerate().all(|(place, byte)| match place {
            8 | 17 => *byte == b' ',
            _ => byte.is_ascii_hexdigit(),
        });
        return if fits { Mark::Cut } else { Mark::Bad };
    }
    let (Some(checksum), b' ', Some(length), b' ') = (digits(0..8), rest[8], digits(9..17), rest[17]) else {
        return Mark::Bad;
    };
    let end = HEAD_BYTES.saturating_add(length as usize);
    match (rest.get(HEAD_BYTES..end), rest.get(end)) {
        (Some(text), Some(last)) if crc32(text) == checksum => {
            Mark::Whole { text, end: at + end + 1, ended: *last == b'\n' }
        }
        (Some(_), Some(_)) => Mark::Bad,
        // Too short for its length; but if the text checks as it is, then it is the length that is wrong.
        _ => match rest[HEAD_BYTES..].strip_suffix(b"\n") {
            Some(text) if crc32(text) == checksum => Mark::Whole { text, end: bytes.len(), ended: false },
            _ => Mark::Cut,
        },
    }
}

/// Where the next whole mark begins, at `from` or later. Marks begin behind a line end, which no argument of a call can
/// hold, so that no call can pretend to be one.
fn next_mark(bytes: &[u8], from: usize) -> Option<usize> {
    let rest = bytes.get(from..)?;
    memchr::memchr_iter(b'\n', rest)
        .map(|line_end| from + line_end + 1)
        .find(|at| matches!(mark_at(bytes, *at), Mark::Whole { .. }))
}

fn from_hex(digits: &[u8]) -> Option<u32> {
    // Only what `append` writes: a sign or a capital letter is damage.
    let plain = digits.iter().all(|byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f'));
    plain.then(|| u32::from_str_radix(std::str::from_utf8(digits).ok()?, 16).ok()).flatten()
}

fn parse(text: &[u8]) -> Option<Entry<'_>> {
    if let Some(rest) = text.strip_prefix(b"accepted ") {
        let blank = memchr::memchr(b' ', rest)?;
        let call = std::str::from_utf8(&rest[..blank]).ok()?.parse().ok()?;
        return Some(Entry::Accepted { call, record: &rest[blank + 1..] });
    }
    let mut words = std::str::from_utf8(text).ok()?.split(' ');
    let kind = words.next()?;
    let mut number = || words.next()?.parse::<u64>().ok();
    Some(match kind {
        "flight" => {
            let version = u32::try_from(number()?).ok()?;
            // Of a newer form only the version is sure to be where it is.
            let pid = number().and_then(|pid| u32::try_from(pid).ok()).unwrap_or(0);
            Entry::Begin { version, pid, at: wall(number().unwrap_or(0)) }
        }
        "begun" => Entry::Begun { call: number()?, attempt: number()?, at: wall(number()?) },
        "stayed" => Entry::Stayed { call: number()?, attempt: number()? },
        "ended" => Entry::Ended { call: number()? },
        _ => return None,
    })
}

fn wall(millis: u64) -> Wall {
    Wall(i64::try_from(millis).unwrap_or(i64::MAX))
}

/// Eight tables, so that eight bytes are taken at a time: marks carry whole calls.
static TABLES: [[u32; 256]; 8] = tables();

const fn tables() -> [[u32; 256]; 8] {
    let mut tables = [[0; 256]; 8];
    let mut byte = 0;
    while byte < 256 {
        let mut crc = byte as u32;
        let mut bit = 0;
        while bit < 8 {
            crc = if crc & 1 == 1 { crc >> 1 ^ 0xEDB8_8320 } else { crc >> 1 };
            bit += 1;
        }
        tables[0][byte] = crc;
        byte += 1;
    }
    let mut table = 1;
    while table < 8 {
        let mut byte = 0;
        while byte < 256 {
            let before: u32 = tables[table - 1][byte];
            tables[table][byte] = before >> 8 ^ tables[0][(before & 255) as usize];
            byte += 1;
        }
        table += 1;
    }
    tables
}

/// CRC-32 as in zip and Ethernet.
fn crc32(bytes: &[u8]) -> u32 {
    let mut crc = !0_u32;
    let (words, rest) = bytes.as_chunks::<8>();
    for word in words {
        let word = u64::from_le_bytes(*word) ^ u64::from(crc);
        crc = 0;
        let mut place = 0;
        while place < 8 {
            crc ^= TABLES[7 - place][(word >> (8 * place) & 255) as usize];
            place += 1;
        }
    }
    for byte in rest {
        crc = crc >> 8 ^ TABLES[0][((crc ^ u32::from(*byte)) & 255) as usize];
    }
    !crc
}

#[cfg(test)]
mod tests {
    use super::*;

    const RECORD: &[u8] = br#"{"arguments":{"text":"two
lines"}}"#;

    fn file(entries: &[Entry<'_>]) -> Vec<u8> {
        let mut out = Vec::new();
        append(&mut out, Entry::Begin { version: VERSION, pid: 7, at: Wall(1) });
        for entry in entries {
            append(&mut out, *entry);
        }
        out
    }

    fn open(bytes: &[u8]) -> Vec<(u64, usize)> {
        read(bytes).open.into_iter().map(|(call, open)| (call, open.begun.len())).collect()
    }

    const ALL: [Entry<'static>; 7] = [
        Entry::Accepted { call: 1, record: RECORD },
        Entry::Accepted { call: 2, record: RECORD },
        Entry::Begun { call: 1, attempt: 3, at: Wall(5) },
        Entry::Begun { call: 2, attempt: 4, at: Wall(6) },
        Entry::Stayed { call: 2, attempt: 4 },
        Entry::Ended { call: 1 },
        Entry::Accepted { call: 5, record: RECORD },
    ];

    #[test]
    fn the_checksum_is_the_well_known_one_at_every_length() {
        assert_eq!(crc32(b"123456789"), 0xCBF4_3926);
        assert_eq!(crc32(b""), 0);
        let slow = |bytes: &[u8]| {
            !bytes.iter().fold(!0_u32, |crc, byte| {
                (0..8).fold(crc ^ u32::from(*byte), |crc, _| crc >> 1 ^ (0xEDB8_8320 & (crc & 1).wrapping_neg()))
            })
        };
        let bytes: Vec<u8> = (0..100_u32).map(|n| (n * n % 251) as u8).collect();
        for end in 0..bytes.len() {
            assert_eq!(crc32(&bytes[..end]), slow(&bytes[..end]), "{end}");
        }
    }

    #[test]
    fn open_calls_are_those_without_an_end_with_what_may_have_left() {
        let flight = read(&file(&ALL));
        assert_eq!(flight.fault, None);
        assert_eq!(flight.pid, Some(7));
        assert_eq!(flight.open.keys().collect::<Vec<_>>(), [&2, &5]);
        assert_eq!(flight.open[&2], OpenCall { record: RECORD.to_vec(), begun: Vec::new() });
        assert_eq!(open(&file(&ALL[..5])), [(1, 1), (2, 0)]);
        assert_eq!(read(b""), Flight::default());
    }

    #[test]
    fn a_file_cut_at_any_byte_is_read_up_to_its_last_whole_mark() {
        let whole = file(&ALL);
        // Where each mark ends, and what is open there.
        let mut ends: Vec<(usize, Vec<(u64, usize)>)> = vec![(0, Vec::new())];
        ends.extend((0..=ALL.len()).map(|count| {
            let part = file(&ALL[..count]);
            (part.len(), open(&part))
        }));
        for cut in 0..=whole.len() {
            let flight = read(&whole[..cut]);
            assert_eq!(flight.fault, None, "cut at {cut}");
            let (_, expected) = ends.iter().rfind(|(end, _)| *end <= cut).expect("the start is an end");
            assert_eq!(open(&whole[..cut]), *expected, "cut at {cut}");
        }
    }

    #[test]
    fn every_flipped_byte_is_noticed_and_the_marks_behind_it_are_read() {
        let whole = file(&ALL);
        let mut damaged = 0;
        for at in 0..whole.len() {
            for flip in [0x01, 0x20, 0x80] {
                let mut bytes = whole.clone();
                bytes[at] ^= flip;
                let flight = read(&bytes);
                assert!(flight.fault.is_some(), "byte {at} flipped by {flip:x}");
                damaged += usize::from(matches!(flight.fault, Some(Fault::Damaged { .. })));
                if at < file(&ALL[..6]).len() {
                    assert!(flight.open.contains_key(&5), "the last mark is whole: byte {at}");
                }
            }
        }
        assert!(damaged > whole.len(), "{damaged}");
    }

    #[test]
    fn a_tail_of_zeros_as_a_power_loss_leaves_it_is_damage_and_hides_nothing() {
        let mut bytes = file(&ALL);
        let end = bytes.len();
        bytes.extend_from_slice(&[0; 4096]);
        let flight = read(&bytes);
        assert_eq!(flight.fault, Some(Fault::Damaged { at: end }));
        assert_eq!(flight.open.len(), 2);
    }

    #[test]
    fn a_file_of_a_newer_form_is_not_read() {
        let mut bytes = Vec::new();
        append(&mut bytes, Entry::Begin { version: VERSION + 1, pid: 7, at: Wall(1) });
        bytes.extend_from_slice(b"anything");
        assert_eq!(read(&bytes).fault, Some(Fault::Newer { version: VERSION + 1 }));
    }

    #[test]
    fn marks_before_the_first_or_unknown_marks_are_damage() {
        let mut bytes = Vec::new();
        append(&mut bytes, ALL[0]);
        assert_eq!(read(&bytes).fault, Some(Fault::Damaged { at: 0 }));
    }
}
