//! Random numbers of the operating system, for seeds, ids and jitter; not for keys.

use std::hash::{BuildHasher, Hasher, RandomState};

/// A number that nobody can guess and that hardly ever comes twice.
///
/// The standard library seeds its hash tables from the system, by a system call that needs no `/dev` however the
/// program is linked. What comes out is SipHash under such a key.
#[must_use]
pub fn u64() -> u64 {
    RandomState::new().build_hasher().finish()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_differ_in_every_bit_and_between_threads() {
        let mut numbers: Vec<u64> = (0..1_000).map(|_| u64()).collect();
        let elsewhere = crate::ports::spawn("random", || (0..1_000).map(|_| u64()).collect::<Vec<_>>());
        numbers.extend(elsewhere.expect("a thread").join().expect("numbers"));
        let ones = |bit: u32| numbers.iter().filter(|number| *number >> bit & 1 == 1).count();
        assert!((0..64).all(|bit| (800..1_200).contains(&ones(bit))));
        numbers.sort_unstable();
        numbers.dedup();
        assert_eq!(numbers.len(), 2_000);
    }
}
