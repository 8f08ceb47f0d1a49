//! The proof of a row of the audit trail, as people keep it.

use std::fmt;

/// The hash that stands for "no row before".
pub const CHAIN_START: &str = "0000000000000000000000000000000000000000000000000000000000000000";

/// A row's number and hash, written down somewhere else: proof of that row and, with the chain, of every row before it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Anchor {
    /// The row's number; 0 for a trail without rows.
    pub seq: i64,
    /// The row's hash, 64 lower-case hex digits; [`CHAIN_START`] for a trail without rows.
    pub hash: String,
}

impl Anchor {
    /// The anchor of a trail without rows.
    #[must_use]
    pub fn empty() -> Anchor {
        Anchor { seq: 0, hash: CHAIN_START.to_owned() }
    }

    /// Reads `<number>:<hash>`.
    #[must_use]
    pub fn parse(text: &str) -> Option<Anchor> {
        let (seq, hash) = text.split_once(':')?;
        let digits = !seq.is_empty() && seq.bytes().all(|b| b.is_ascii_digit());
        let hex = hash.len() == 64 && hash.bytes().all(|b| matches!(b, b'0'..=b'9' | b'a'..=b'f'));
        let seq = seq.parse().ok()?;
        (digits && hex).then(|| Anchor { seq, hash: hash.to_owned() })
    }
}

impl fmt::Display for Anchor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}", self.seq, self.hash)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_anchor_is_a_number_and_a_hash() {
        let anchor = Anchor { seq: 17, hash: "ab".repeat(32) };
        assert_eq!(Anchor::parse(&anchor.to_string()), Some(anchor));
        let hash = "0".repeat(64);
        for text in ["", "17", &hash, &format!("x:{hash}"), &format!("-1:{hash}"), &format!("1:{}", &hash[1..])] {
            assert_eq!(Anchor::parse(text), None, "{text}");
        }
    }
}
