//! What the chain of hashes tells of the audit trail: which rows were changed, removed or put elsewhere. Pure.
//!
//! Each row keeps the hash of the row before it, and the rows are numbered without a gap. The newest row is vouched for
//! by nobody but an [`Anchor`] that was taken before.

use crate::record::anchor::{Anchor, CHAIN_START};
use std::fmt;

/// What the chain needs of one row.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Link {
    /// The row's number.
    pub seq: i64,
    /// The row's own hash and the one it keeps of the row before it; `None` if a column has a wrong type, which no row
    /// of ours has.
    pub hashes: Option<(String, String)>,
}

/// How rows were tampered with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BreakKind {
    /// The row is not what it was when the next one was written.
    Changed,
    /// The row before the newest and the newest do not fit together: one of the two was changed.
    ChangedOrNext,
    /// The rows were changed, or put in another order.
    Reordered,
    /// The rows are not there.
    Removed,
    /// A row with a number that none of ours has.
    Inserted,
}

impl BreakKind {
    /// The word in JSON.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            BreakKind::Changed | BreakKind::ChangedOrNext => "changed",
            BreakKind::Reordered => "reordered",
            BreakKind::Removed => "removed",
            BreakKind::Inserted => "inserted",
        }
    }
}

/// One place where the chain does not hold.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Break {
    /// What was done.
    pub kind: BreakKind,
    /// The first row it was done to.
    pub first: i64,
    /// The last row it was done to.
    pub last: i64,
}

impl fmt::Display for Break {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Break { kind, first, last } = *self;
        let rows = if first == last { format!("row {first}") } else { format!("rows {first} to {last}") };
        match kind {
            BreakKind::Changed => write!(f, "{rows} was changed"),
            BreakKind::ChangedOrNext => {
                write!(f, "row {first} is not what row {last} says of it: one of the two was changed")
            }
            BreakKind::Reordered => write!(f, "{rows} were changed or put in another order"),
            BreakKind::Removed if first == last => write!(f, "{rows} was removed"),
            BreakKind::Removed => write!(f, "{rows} were removed"),
            BreakKind::Inserted => write!(f, "{rows} was put in: numbers begin with 1"),
        }
    }
}

/// Breaks that are kept; a trail with more of them is known to be bad.
const BREAKS_MAX: usize = 100;

/// Follows the chain row by row, in the order of their numbers.
#[derive(Clone, Debug)]
pub struct Chain {
    newest: Anchor,
    /// The newest row's hash could not be computed.
    unreadable: bool,
    /// Links in a row that do not hold, by the number of the row that keeps them.
    run: Option<(i64, i64)>,
    breaks: Vec<Break>,
    rows: u64,
}

/// What the chain came to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Verified {
    /// Rows read.
    pub rows: u64,
    /// What does not hold, at most the first hundred.
    pub breaks: Vec<Break>,
    /// The newest row; `None` if its hash cannot be computed.
    pub head: Option<Anchor>,
}

impl Default for Chain {
    fn default() -> Chain {
        Chain { newest: Anchor::empty(), unreadable: false, run: None, breaks: Vec::new(), rows: 0 }
    }
}

impl Chain {
    /// Takes the next row.
    pub fn push(&mut self, row: &Link) {
        self.rows += 1;
        if row.seq <= self.newest.seq {
            self.found(BreakKind::Inserted, row.seq, row.seq);
            return;
        }
        if row.seq > self.newest.seq + 1 {
            self.end_run(false);
            self.found(BreakKind::Removed, self.newest.seq + 1, row.seq - 1);
        } else {
            let holds = !self.unreadable && row.hashes.as_ref().is_some_and(|(_, before)| *before == self.newest.hash);
            match (holds, self.run) {
                (true, _) => self.end_run(false),
                (false, Some((first, _))) => self.run = Some((first, row.seq)),
                (false, None) => self.run = Some((row.seq, row.seq)),
            }
        }
        self.unreadable = row.hashes.is_none();
        let hash = row.hashes.as_ref().map_or(CHAIN_START, |(own, _)| own).to_owned();
        self.newest = Anchor { seq: row.seq, hash };
    }

    /// Ends the trail. `given` is the highest number that was ever given to a row.
    #[must_use]
    pub fn finish(mut self, given: i64) -> Verified {
        let last = self.newest.seq;
        if self.unreadable && self.run.is_none() {
            self.found(BreakKind::Changed, last, last);
        }
        self.end_run(true);
        if given > last {
            self.found(BreakKind::Removed, last + 1, given);
        }
        let head = (!self.unreadable).then_some(self.newest);
        Verified { rows: self.rows, breaks: self.breaks, head }
    }

    /// The links `first` to `last` do not hold, those around them do: it is the rows between that are not what they were.
    fn end_run(&mut self, at_end: bool) {
        let Some((first, last)) = self.run.take() else { return };
        match (first, last) {
            // Nothing stands before the first row, so it is that row itself that is wrong.
            (1, 1) => self.found(BreakKind::Changed, 1, 1),
            (first, last) if first == last && at_end => self.found(BreakKind::ChangedOrNext, first - 1, first),
            (first, last) if first == last || first + 1 == last => self.found(BreakKind::Changed, last - 1, last - 1),
            (first, last) => self.found(BreakKind::Reordered, first, last - 1),
        }
    }

    fn found(&mut self, kind: BreakKind, first: i64, last: i64) {
        if self.breaks.len() < BREAKS_MAX {
            self.breaks.push(Break { kind, first, last });
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A trail of `n` rows whose hashes are easy to read: row 3 with content `c` after `h` hashes to `3c(h)`.
    #[derive(Clone)]
    struct Row {
        seq: i64,
        content: char,
        before: String,
    }

    impl Row {
        fn hash(&self) -> String {
            crate::record::hash::sha256_hex(format!("{}{}({})", self.seq, self.content, self.before).as_bytes())
        }
    }

    fn trail(n: i64) -> Vec<Row> {
        let mut rows: Vec<Row> = Vec::new();
        for seq in 1..=n {
            let before = rows.last().map_or(CHAIN_START.to_owned(), Row::hash);
            rows.push(Row { seq, content: 'a', before });
        }
        rows
    }

    fn verify(rows: &[Row], given: i64) -> Vec<String> {
        let mut chain = Chain::default();
        for row in rows {
            chain.push(&Link { seq: row.seq, hashes: Some((row.hash(), row.before.clone())) });
        }
        chain.finish(given).breaks.iter().map(Break::to_string).collect()
    }

    #[test]
    fn an_untouched_trail_holds_and_gives_its_newest_row() {
        assert_eq!(verify(&trail(5), 5), [""; 0]);
        assert_eq!(verify(&[], 0), [""; 0]);
        let mut chain = Chain::default();
        let row = &trail(1)[0];
        chain.push(&Link { seq: 1, hashes: Some((row.hash(), row.before.clone())) });
        assert_eq!(chain.finish(1).head, Some(Anchor { seq: 1, hash: row.hash() }));
        assert_eq!(Chain::default().finish(0).head, Some(Anchor::empty()));
    }

    #[test]
    fn a_changed_row_is_named() {
        for n in 1..=4 {
            let mut rows = trail(6);
            rows[n - 1].content = 'b';
            assert_eq!(verify(&rows, 6), [format!("row {n} was changed")]);
        }
        let mut rows = trail(6);
        rows[4].content = 'b';
        assert_eq!(verify(&rows, 6), ["row 5 is not what row 6 says of it: one of the two was changed"]);
        // The newest row is vouched for by nobody.
        rows = trail(6);
        rows[5].content = 'b';
        assert_eq!(verify(&rows, 6), [""; 0]);
    }

    #[test]
    fn a_row_that_was_chained_anew_is_named_too() {
        let mut rows = trail(6);
        rows[2].before = "f".repeat(64);
        assert_eq!(verify(&rows, 6), ["row 3 was changed"]);
        let mut rows = trail(6);
        rows[0].before = "f".repeat(64);
        assert_eq!(verify(&rows, 6), ["row 1 was changed"]);
    }

    #[test]
    fn removed_rows_are_named_wherever_they_were() {
        let without = |gone: std::ops::Range<usize>| {
            let mut rows = trail(6);
            rows.drain(gone);
            rows
        };
        assert_eq!(verify(&without(0..1), 6), ["row 1 was removed"]);
        assert_eq!(verify(&without(1..4), 6), ["rows 2 to 4 were removed"]);
        assert_eq!(verify(&without(5..6), 6), ["row 6 was removed"]);
        assert_eq!(verify(&without(0..6), 6), ["rows 1 to 6 were removed"]);
        // Chained anew over the gap, which the numbers betray.
        let mut rows = without(2..3);
        rows[2].before = rows[1].hash();
        assert_eq!(verify(&rows, 6), ["row 3 was removed", "row 4 was changed"]);
    }

    #[test]
    fn rows_in_another_order_are_named() {
        let mut rows = trail(8);
        rows.swap(2, 4);
        (rows[2].seq, rows[4].seq) = (3, 5);
        rows[2].content = 'x';
        assert_eq!(verify(&rows, 8), ["rows 3 to 5 were changed or put in another order"]);
    }

    #[test]
    fn a_row_of_wrong_types_and_one_with_an_impossible_number_are_named() {
        let rows = trail(3);
        let link = |row: &Row| Link { seq: row.seq, hashes: Some((row.hash(), row.before.clone())) };
        let mut chain = Chain::default();
        chain.push(&Link { seq: -4, hashes: None });
        chain.push(&link(&rows[0]));
        chain.push(&Link { seq: 2, hashes: None });
        chain.push(&link(&rows[2]));
        let breaks: Vec<String> = chain.finish(3).breaks.iter().map(Break::to_string).collect();
        assert_eq!(breaks, ["row -4 was put in: numbers begin with 1", "row 2 was changed"]);
        let mut chain = Chain::default();
        chain.push(&Link { seq: 1, hashes: None });
        let verified = chain.finish(1);
        assert_eq!((verified.breaks.len(), verified.head), (1, None));
    }
}
