//! When a call is tried again and how long it may take: the plan per tool, computed without a clock.

use std::time::Duration;

use crate::breaker::CircuitSettings;
use crate::budget::BudgetSettings;
use crate::glob::Glob;

/// No back-off is longer than this, before jitter.
pub const DELAY_MAX: Duration = Duration::from_secs(30);

/// The whole-call limit when the file names none: at least this long.
pub const MAX_TOTAL_DEFAULT: Duration = Duration::from_millis(600_000);

/// A small seeded generator (xoshiro256++): the same seed gives the same numbers on every machine.
///
/// It spreads retries; it is no source of secrets.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Rng([u64; 4]);

impl Rng {
    /// A generator whose numbers depend on `seed` alone.
    #[must_use]
    pub fn seeded(seed: u64) -> Rng {
        // splitmix64 fills the state, so that neighbouring seeds have nothing in common and the state is never zero.
        let mut mixer = seed;
        Rng(std::array::from_fn(|_| {
            mixer = mixer.wrapping_add(0x9e37_79b9_7f4a_7c15);
            let mut mixed = mixer;
            mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
            mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
            mixed ^ (mixed >> 31)
        }))
    }

    /// The next number, any of the 2^64 equally likely.
    pub fn next_u64(&mut self) -> u64 {
        let state = &mut self.0;
        let number = state[0].wrapping_add(state[3]).rotate_left(23).wrapping_add(state[0]);
        let shifted = state[1] << 17;
        state[2] ^= state[0];
        state[3] ^= state[1];
        state[1] ^= state[2];
        state[0] ^= state[3];
        state[2] ^= shifted;
        state[3] = state[3].rotate_left(45);
        number
    }

    /// A number from 0 to `n - 1`, each equally likely; 0 if `n` is 0.
    pub fn below(&mut self, n: u64) -> u64 {
        if n == 0 {
            return 0;
        }
        // Numbers from the last, incomplete run of `n` are thrown away: they would favour small results.
        let complete = u64::MAX - (u64::MAX % n + 1) % n;
        loop {
            let number = self.next_u64();
            if number <= complete {
                return number % n;
            }
        }
    }
}

/// How often and how fast a failed call is tried again. Which failures may be is decided elsewhere, by their class.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RetryPlan {
    /// Tries in total, the first included; at least 1.
    pub attempts_max: u32,
    /// The delay after the first failure, in whole milliseconds; it doubles from try to try, up to [`DELAY_MAX`].
    pub base: Duration,
    /// Full jitter: the delay is drawn from zero to the computed one.
    pub jitter: bool,
}

impl RetryPlan {
    /// How long to wait after `failed_attempts` tries have failed: `base * 2^(failed_attempts - 1)`, at most
    /// [`DELAY_MAX`]; with jitter a whole number of milliseconds from zero to that, ends included.
    pub fn delay(&self, failed_attempts: u32, rng: &mut Rng) -> Duration {
        let longest = self.delay_longest(failed_attempts);
        if !self.jitter {
            return longest;
        }
        let millis = u64::try_from(longest.as_millis()).expect("at most 30,000");
        Duration::from_millis(rng.below(millis + 1))
    }

    /// The delay without jitter, which is also the longest one with it.
    #[must_use]
    pub fn delay_longest(&self, failed_attempts: u32) -> Duration {
        let doubled = 1_u32.checked_shl(failed_attempts.saturating_sub(1)).unwrap_or(u32::MAX);
        self.base.saturating_mul(doubled).min(DELAY_MAX)
    }

    /// The sum of the longest delays when every try fails.
    #[must_use]
    pub fn delays_longest(&self) -> Duration {
        let delays = self.attempts_max.saturating_sub(1);
        if self.base.is_zero() {
            return Duration::ZERO;
        }
        // After 32 doublings every base is above the cap, so the rest of a huge plan need not be added one by one.
        let counted = delays.min(32);
        let sum: Duration = (1..=counted).map(|failed| self.delay_longest(failed)).sum();
        sum.saturating_add(DELAY_MAX.saturating_mul(delays - counted))
    }
}

/// What a tool does to the world, as the file says; a hint shown before a replay.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Effects {
    /// It only reads.
    Read,
    /// It changes something.
    Write,
}

/// The settings of one tool.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ToolSettings {
    /// How long one attempt may take without an answer or progress.
    pub timeout: Duration,
    /// How it is tried again.
    pub retry: RetryPlan,
    /// Whether `per_tool` calls the tool idempotent; `None` if it says nothing. Ask [`Reliability::idempotent`].
    pub idempotent: Option<bool>,
    /// What the file says of its effects.
    pub effects: Option<Effects>,
    /// Whether a result with `isError: true` is captured.
    pub capture_tool_errors: bool,
    /// The circuit breaker of each such tool; `None` if it has none.
    pub circuit: Option<CircuitSettings>,
}

impl ToolSettings {
    /// The time every try and every longest delay take together, if nothing extends an attempt.
    #[must_use]
    pub fn needed(&self) -> Duration {
        self.timeout.saturating_mul(self.retry.attempts_max).saturating_add(self.retry.delays_longest())
    }
}

/// The `reliability` section, resolved.
#[derive(Clone, Debug, PartialEq)]
pub struct Reliability {
    /// For every tool that no pattern of `per_tool` matches.
    pub defaults: ToolSettings,
    /// The patterns of `per_tool` in file order, each with complete settings: what it does not name is taken from
    /// `defaults`, never from another pattern.
    pub per_tool: Vec<(Glob, ToolSettings)>,
    /// Progress of an attempt starts its timeout again.
    pub extend_on_progress: bool,
    /// The limit for a whole call, if the file names one. Ask [`Reliability::max_total_for`].
    pub max_total: Option<Duration>,
    /// How long one request of the upstream to the client may hold back the attempts' timeouts.
    pub client_wait_max: Duration,
    /// Believe `readOnlyHint` and `idempotentHint` of the upstream's `tools/list` where the file says nothing.
    pub trust_annotations: bool,
    /// Whether tools are idempotent that `per_tool` says nothing about.
    pub idempotent_default: bool,
    /// How long an earlier execution counts as a duplicate when a dead letter is replayed.
    pub dedup_window: Duration,
    /// The circuit breaker of each upstream; `None` if it has none.
    pub circuit: Option<CircuitSettings>,
    /// How many retries may be made.
    pub budget: BudgetSettings,
}

impl Default for Reliability {
    fn default() -> Reliability {
        Reliability {
            defaults: ToolSettings {
                timeout: Duration::from_millis(30_000),
                retry: RetryPlan { attempts_max: 3, base: Duration::from_millis(250), jitter: true },
                idempotent: None,
                effects: None,
                capture_tool_errors: false,
                circuit: None,
            },
            per_tool: Vec::new(),
            extend_on_progress: true,
            max_total: None,
            client_wait_max: Duration::from_millis(600_000),
            trust_annotations: false,
            idempotent_default: false,
            dedup_window: Duration::from_secs(24 * 60 * 60),
            circuit: Some(CircuitSettings::default()),
            budget: BudgetSettings::default(),
        }
    }
}

impl Reliability {
    /// The settings of the tool `name`: those of the most specific pattern that matches it, else the defaults.
    ///
    /// An exact name beats every glob; of two globs the one with more literal characters wins, of equals the first
    /// in the file. One pattern decides: settings of several matching patterns are not mixed.
    #[must_use]
    pub fn for_tool(&self, name: &str) -> ToolSettings {
        let mut best: Option<&(Glob, ToolSettings)> = None;
        for entry in &self.per_tool {
            let rank = |glob: &Glob| (glob.is_exact(), glob.literal_chars());
            if entry.0.matches(name) && best.is_none_or(|found| rank(&entry.0) > rank(&found.0)) {
                best = Some(entry);
            }
        }
        best.map_or(self.defaults, |(_, settings)| *settings)
    }

    /// The limit for a whole call to a tool with these settings: `reliability.max_total_ms`, else the larger of
    /// [`MAX_TOTAL_DEFAULT`] and what all tries and delays need.
    #[must_use]
    pub fn max_total_for(&self, tool: &ToolSettings) -> Duration {
        self.max_total.unwrap_or_else(|| MAX_TOTAL_DEFAULT.max(tool.needed()))
    }

    /// Whether a call to the tool may be repeated although it may have run. `annotated`: the upstream's `tools/list`
    /// calls the tool read-only or idempotent; it counts only with `trust_annotations` and where `per_tool` is silent.
    #[must_use]
    pub fn idempotent(&self, tool: &ToolSettings, annotated: bool) -> bool {
        tool.idempotent.unwrap_or(self.idempotent_default || (self.trust_annotations && annotated))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const fn ms(millis: u64) -> Duration {
        Duration::from_millis(millis)
    }

    fn plan(attempts_max: u32, base_ms: u64, jitter: bool) -> RetryPlan {
        RetryPlan { attempts_max, base: ms(base_ms), jitter }
    }

    #[test]
    fn back_off_doubles_up_to_thirty_seconds() {
        let plan = plan(10, 250, false);
        let delays: Vec<_> = (1..=9).map(|failed| plan.delay(failed, &mut Rng::seeded(1)).as_millis()).collect();
        assert_eq!(delays, [250, 500, 1_000, 2_000, 4_000, 8_000, 16_000, 30_000, 30_000]);
        assert_eq!(plan.delay(u32::MAX, &mut Rng::seeded(1)), DELAY_MAX);
    }

    #[test]
    fn a_base_of_zero_never_waits() {
        for jitter in [false, true] {
            assert_eq!(plan(5, 0, jitter).delay(40, &mut Rng::seeded(1)), Duration::ZERO);
        }
        assert_eq!(plan(u32::MAX, 0, true).delays_longest(), Duration::ZERO);
    }

    #[test]
    fn jitter_fills_the_whole_range_and_stays_inside() {
        let plan = plan(3, 4, true);
        let mut seen = [0_u32; 5];
        let mut rng = Rng::seeded(42);
        for _ in 0..5_000 {
            seen[usize::try_from(plan.delay(1, &mut rng).as_millis()).expect("at most 4")] += 1;
        }
        assert!(seen.iter().all(|&count| (800..1_200).contains(&count)), "not uniform: {seen:?}");
    }

    #[test]
    fn the_same_seed_gives_the_same_delays() {
        let draw = |seed| {
            let mut rng = Rng::seeded(seed);
            (1..20).map(|failed| plan(20, 250, true).delay(failed, &mut rng)).collect::<Vec<_>>()
        };
        assert_eq!(draw(9), draw(9));
        assert_ne!(draw(9), draw(10));
    }

    #[test]
    fn below_reaches_its_ends_and_never_its_bound() {
        let mut rng = Rng::seeded(3);
        assert_eq!(rng.below(0), 0);
        assert_eq!(rng.below(1), 0);
        assert!((0..1_000).all(|_| rng.below(u64::MAX) < u64::MAX));
        // With plain remainders two thirds of the numbers would fall into the lower half.
        let bound = u64::MAX / 4 * 3;
        let low = (0..3_000).filter(|_| rng.below(bound) < bound / 2).count();
        assert!((1_350..1_650).contains(&low), "{low} of 3000 in the lower half");
    }

    #[test]
    fn the_sum_of_delays_is_that_of_the_single_ones_at_any_size() {
        for attempts in [1, 2, 3, 12, 33, 34, 90] {
            let plan = plan(attempts, 1, false);
            let one_by_one: Duration = (1..attempts).map(|failed| plan.delay_longest(failed)).sum();
            assert_eq!(plan.delays_longest(), one_by_one, "{attempts}");
        }
        assert_eq!(plan(u32::MAX, 30_000, true).delays_longest(), DELAY_MAX * (u32::MAX - 1));
    }

    fn with(patterns: &[(&str, u64)]) -> Reliability {
        let mut reliability = Reliability::default();
        for &(pattern, timeout_ms) in patterns {
            let settings = ToolSettings { timeout: ms(timeout_ms), ..reliability.defaults };
            reliability.per_tool.push((Glob::new(pattern), settings));
        }
        reliability
    }

    #[test]
    fn the_most_specific_pattern_decides() {
        let reliability =
            with(&[("*", 1), ("read_*", 2), ("read_?ile", 3), ("read_file", 4), ("*_file", 5), ("file_*", 6)]);
        for (tool, timeout) in
            [("x", 1), ("read_", 2), ("read_mile", 3), ("read_file", 4), ("file_file", 5), ("read_files", 2)]
        {
            assert_eq!(reliability.for_tool(tool).timeout, ms(timeout), "{tool}");
        }
        assert_eq!(with(&[("a*", 1)]).for_tool("b").timeout, ms(30_000));
    }

    #[test]
    fn an_exact_name_beats_a_longer_glob() {
        assert_eq!(with(&[("ab*", 1), ("ab", 2)]).for_tool("ab").timeout, ms(2));
        assert_eq!(with(&[("*", 1), ("", 2)]).for_tool("").timeout, ms(2));
    }

    #[test]
    fn the_whole_call_limit_has_room_for_every_try() {
        let mut reliability = Reliability::default();
        let short = reliability.defaults;
        assert_eq!(reliability.max_total_for(&short), ms(600_000));
        let long = ToolSettings { timeout: ms(300_000), ..short };
        assert_eq!(reliability.max_total_for(&long), ms(3 * 300_000 + 250 + 500));
        reliability.max_total = Some(ms(5));
        assert_eq!(reliability.max_total_for(&long), ms(5));
    }

    #[test]
    fn ret_2_hints_count_only_when_trusted_and_where_the_file_is_silent() {
        let mut reliability = Reliability::default();
        let silent = reliability.defaults;
        let refused = ToolSettings { idempotent: Some(false), ..silent };
        assert!(!reliability.idempotent(&silent, true));
        reliability.trust_annotations = true;
        assert!(reliability.idempotent(&silent, true));
        assert!(!reliability.idempotent(&silent, false));
        assert!(!reliability.idempotent(&refused, true));
        reliability.idempotent_default = true;
        assert!(reliability.idempotent(&silent, false));
        assert!(!reliability.idempotent(&refused, false));
    }
}
