//! Counts of latencies, for percentiles that are exact as long as memory allows.

use std::mem::take;

/// How many values are kept of each latency. Percentiles are exact until the latencies were rounded.
///
/// Most latencies are like others, so they are kept as counts, in a sorted list. New ones wait for company: merging many
/// into the list costs little more than merging one.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Latencies {
    /// Value and count, by value.
    counts: Vec<(u64, u64)>,
    waiting: Vec<u64>,
    total: u64,
}

/// At least so many wait; more where the list is long.
const WAITING_MIN: usize = 64;

/// How many leading bits of a latency are kept.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Precision(u32);

impl Precision {
    /// All of them.
    pub(crate) const EXACT: Precision = Precision(64);

    /// The next coarser one. The first is within a thousandth.
    pub(crate) fn coarser(self) -> Precision {
        Precision(if self == Precision::EXACT { 11 } else { (self.0 - 1).max(1) })
    }

    /// The largest error of a value that was rounded down, as a fraction of it; 0 if none is.
    pub(crate) fn error_max(self) -> f64 {
        if self == Precision::EXACT { 0.0 } else { 0.5_f64.powi(i32::try_from(self.0).unwrap_or(i32::MAX) - 1) }
    }

    fn round(self, value: u64) -> u64 {
        let bits = u64::BITS - value.leading_zeros();
        match bits.checked_sub(self.0) {
            Some(dropped) if dropped > 0 => value >> dropped << dropped,
            _ => value,
        }
    }
}

impl Latencies {
    /// Counts a latency in milliseconds. Gives how many more values take memory than before.
    pub(crate) fn add(&mut self, millis: u64, precision: Precision) -> usize {
        self.total += 1;
        self.waiting.push(precision.round(millis));
        if self.waiting.len() < WAITING_MIN.max(self.counts.len() / 4) {
            return 0;
        }
        let before = self.counts.len();
        self.settle();
        self.counts.len() - before
    }

    /// Brings what waits into the list.
    pub(crate) fn settle(&mut self) {
        let mut new = take(&mut self.waiting);
        new.sort_unstable();
        self.take_in(new.iter().map(|value| (*value, 1)));
        new.clear();
        self.waiting = new;
    }

    /// Merges values and counts that are sorted by value, among which a value may be there more than once.
    fn take_in(&mut self, new: impl Iterator<Item = (u64, u64)>) {
        let old = take(&mut self.counts);
        let mut merged: Vec<(u64, u64)> = Vec::with_capacity(old.len() + WAITING_MIN);
        let mut push = |(value, count): (u64, u64)| match merged.last_mut() {
            Some(last) if last.0 == value => last.1 += count,
            _ => merged.push((value, count)),
        };
        let mut old = old.into_iter().peekable();
        for entry in new {
            while let Some(earlier) = old.next_if(|(value, _)| *value <= entry.0) {
                push(earlier);
            }
            push(entry);
        }
        old.for_each(push);
        self.counts = merged;
    }

    /// How many values take memory.
    pub(crate) fn distinct(&self) -> usize {
        self.counts.len()
    }

    /// How many latencies were counted.
    pub(crate) fn total(&self) -> u64 {
        self.total
    }

    /// Rounds what is counted.
    pub(crate) fn coarsen(&mut self, precision: Precision) {
        self.settle();
        let rounded: Vec<(u64, u64)> =
            take(&mut self.counts).into_iter().map(|(value, count)| (precision.round(value), count)).collect();
        self.take_in(rounded.into_iter());
        self.counts.shrink_to_fit();
    }

    /// Adds what another one counted, which must be settled.
    pub(crate) fn merge(&mut self, other: &Latencies) {
        debug_assert!(other.waiting.is_empty(), "what waits would not be merged");
        self.total += other.total;
        self.take_in(other.counts.iter().copied());
    }

    /// The nearest-rank percentiles, in the order they are asked for, which must be ascending: the smallest value that
    /// at least so many percent of all are not greater than. `None` of nothing. Everything must be settled.
    pub(crate) fn percentiles<const N: usize>(&self, percents: [u64; N]) -> Option<[u64; N]> {
        debug_assert!(self.waiting.is_empty(), "what waits would not be counted");
        if self.total == 0 {
            return None;
        }
        let mut counts = self.counts.iter();
        let (mut value, mut reached) = (0, 0);
        Some(percents.map(|percent| {
            let rank = u64::try_from((u128::from(self.total) * u128::from(percent)).div_ceil(100)).unwrap_or(u64::MAX);
            while reached < rank
                && let Some((next, count)) = counts.next()
            {
                value = *next;
                reached += count;
            }
            value
        }))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::retry::Rng;

    fn of(values: &[u64]) -> Latencies {
        let mut latencies = Latencies::default();
        for value in values {
            latencies.add(*value, Precision::EXACT);
        }
        latencies.settle();
        latencies
    }

    #[test]
    fn percentiles_are_those_of_the_nearest_rank() {
        assert_eq!(of(&[]).percentiles([50]), None);
        assert_eq!(of(&[7]).percentiles([50, 95, 99]), Some([7, 7, 7]));
        assert_eq!(of(&[1, 2]).percentiles([50, 51]), Some([1, 2]));
        let hundred: Vec<u64> = (1..=100).collect();
        assert_eq!(of(&hundred).percentiles([1, 50, 95, 99, 100]), Some([1, 50, 95, 99, 100]));
        assert_eq!(of(&[3, 1, 4, 1, 5, 9, 2, 6, 5, 3]).percentiles([50, 95]), Some([3, 9]));
    }

    #[test]
    fn percentiles_agree_with_a_sorted_list_also_after_a_merge() {
        let mut rng = Rng::seeded(11);
        for _ in 0..200 {
            let count = 1 + rng.below(300);
            let mut values: Vec<u64> = (0..count).map(|_| rng.below(500)).collect();
            let (left, right) = values.split_at(usize::try_from(rng.below(count)).expect("small"));
            let mut latencies = of(left);
            latencies.merge(&of(right));
            values.sort_unstable();
            let expected = [50, 95, 99].map(|p| values[(values.len() * p).div_ceil(100) - 1]);
            assert_eq!(latencies.percentiles([50, 95, 99]), Some(expected));
        }
    }

    #[test]
    fn rounding_stays_within_the_stated_error_and_keeps_every_count() {
        let precision = Precision::EXACT.coarser();
        assert!(precision.error_max() > 0.0 && precision.error_max() < 0.001);
        let mut latencies = of(&(0..100_000).collect::<Vec<_>>());
        latencies.coarsen(precision);
        assert!(latencies.distinct() < 10_000);
        let [p50, p99] = latencies.percentiles([50, 99]).expect("there are some");
        for (found, exact) in [(p50, 49_999), (p99, 98_999)] {
            assert!(found <= exact && (exact - found) as f64 <= exact as f64 * precision.error_max(), "{found}");
        }
        assert_eq!(latencies.percentiles([100]), Some([precision.round(99_999)]));
        assert_eq!((latencies.total(), precision.round(2_047), precision.round(u64::MAX) > 0), (100_000, 2_047, true));
        let coarsest = (0..100).fold(Precision::EXACT, |precision, _| precision.coarser());
        assert_eq!((coarsest.round(1_000), coarsest.round(0)), (512, 0));
    }
}
