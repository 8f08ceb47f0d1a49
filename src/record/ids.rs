//! Identifiers: ULIDs for records, UUIDs for calls. Pure: the time and the randomness are arguments.

use crate::clock::Wall;

/// Crockford's base 32: no I, L, O or U.
const ALPHABET: &[u8; 32] = b"0123456789ABCDEFGHJKMNPQRSTVWXYZ";
const RANDOM_BITS: u32 = 80;
const RANDOM_MAX: u128 = (1 << RANDOM_BITS) - 1;
/// The greatest time a ULID can hold, in milliseconds since 1970: the year 10889.
const MILLIS_MAX: u64 = (1 << 48) - 1;

/// Makes ULIDs that sort in the order they were made, also when the clock stands still or goes back.
#[derive(Clone, Debug, Default)]
pub struct Ulids {
    millis: u64,
    random: u128,
    any: bool,
}

impl Ulids {
    /// None made yet.
    #[must_use]
    pub fn new() -> Ulids {
        Ulids::default()
    }

    /// The next ULID: 26 characters, greater than every one this value gave before. `random` is asked at most twice.
    pub fn next(&mut self, wall: Wall, mut random: impl FnMut() -> u64) -> String {
        let millis = u64::try_from(wall.0).unwrap_or(0).min(MILLIS_MAX);
        if !self.any || millis > self.millis {
            self.millis = millis;
            self.random = fresh(&mut random);
        } else if self.random < RANDOM_MAX {
            self.random += 1;
        } else {
            // All randomness of this millisecond is used up: order matters more than a millisecond.
            self.millis = (self.millis + 1).min(MILLIS_MAX);
            self.random = fresh(&mut random);
        }
        self.any = true;
        encode(u128::from(self.millis) << RANDOM_BITS | self.random)
    }
}

fn fresh(random: &mut impl FnMut() -> u64) -> u128 {
    (u128::from(random()) << 64 | u128::from(random())) & RANDOM_MAX
}

fn encode(value: u128) -> String {
    (0..26).rev().map(|place| char::from(ALPHABET[(value >> (place * 5) & 31) as usize])).collect()
}

/// The text of a random UUID (version 4) made of the 122 bits it needs out of two random numbers.
#[must_use]
pub fn uuid_v4(high: u64, low: u64) -> String {
    let high = high & !0xF000 | 0x4000;
    let low = low & !(0b11 << 62) | 0b10 << 62;
    format!(
        "{:08x}-{:04x}-{:04x}-{:04x}-{:012x}",
        high >> 32,
        high >> 16 & 0xFFFF,
        high & 0xFFFF,
        low >> 48,
        low & 0xFFFF_FFFF_FFFF
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_ulid_is_the_time_and_the_randomness_in_crockford_base_32() {
        // The example of the ULID specification: 1469918176385 is 01ARYZ6S41.
        let id = Ulids::new().next(Wall(1_469_918_176_385), || 0);
        assert_eq!(id, "01ARYZ6S410000000000000000");
        let id = Ulids::new().next(Wall(0), || u64::MAX);
        assert_eq!(id, "0000000000ZZZZZZZZZZZZZZZZ");
    }

    #[test]
    fn sql_5_ulids_sort_in_the_order_they_were_made_while_the_clock_jumps() {
        let mut seed = 7_u64;
        let mut random = move || {
            seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            seed
        };
        let mut ulids = Ulids::new();
        let mut last = String::new();
        for millis in [1_000, 1_000, 1_001, 5, -7, 1_001, i64::MAX, 3, i64::MAX, 2_000] {
            let id = ulids.next(Wall(millis), &mut random);
            assert_eq!(id.len(), 26);
            assert!(id > last, "{id} after {last}");
            last = id;
        }
    }

    #[test]
    fn used_up_randomness_borrows_the_next_millisecond() {
        let mut ulids = Ulids::new();
        let first = ulids.next(Wall(1), || u64::MAX);
        let second = ulids.next(Wall(1), || 0);
        assert_eq!(first, "0000000001ZZZZZZZZZZZZZZZZ");
        assert_eq!(second, "00000000020000000000000000");
    }

    #[test]
    fn a_uuid_carries_version_and_variant() {
        assert_eq!(uuid_v4(0, 0), "00000000-0000-4000-8000-000000000000");
        assert_eq!(uuid_v4(u64::MAX, u64::MAX), "ffffffff-ffff-4fff-bfff-ffffffffffff");
        assert_eq!(uuid_v4(0x0123_4567_89ab_cdef, 0x0123_4567_89ab_cdef), "01234567-89ab-4def-8123-456789abcdef");
    }
}
