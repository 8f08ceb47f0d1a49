//! When a server that ended is started again, and when no more. Pure: time and randomness are arguments.

use std::collections::VecDeque;
use std::time::Duration;

use crate::clock::Time;
use crate::retry::{DELAY_MAX, Rng};

/// `upstream.restart`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RestartSettings {
    /// Whether an upstream that ended is started again at all.
    pub enabled: bool,
    /// At most this many starts,
    pub max: u32,
    /// within this time. A life as long as this is a sound one: the delay begins anew after it.
    pub window: Duration,
    /// The delay before the first start; it doubles from start to start, up to [`DELAY_MAX`].
    pub base: Duration,
    /// How long a new process may take to answer `initialize`.
    pub ready_timeout: Duration,
}

impl Default for RestartSettings {
    fn default() -> RestartSettings {
        RestartSettings {
            enabled: false,
            max: 5,
            window: Duration::from_secs(60),
            base: Duration::from_millis(250),
            ready_timeout: Duration::from_secs(60),
        }
    }
}

/// `upstream.health`: questions that show a silent hang.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HealthSettings {
    /// From one answer to the next question.
    pub interval: Duration,
    /// How long an answer may take.
    pub timeout: Duration,
}

/// The starts of one upstream after its first.
#[derive(Clone, Debug, Default)]
pub struct Restarts {
    recent: VecDeque<Time>,
    /// Starts since the last sound life.
    in_a_row: u32,
}

impl Restarts {
    /// A life that began at `since` ended at `now`: how long to wait before the next; `None` if there is to be none.
    ///
    /// The wait lies between half and the whole of the doubled base, so that it grows for certain.
    pub fn after_end(&mut self, settings: &RestartSettings, since: Time, now: Time, rng: &mut Rng) -> Option<Duration> {
        while self.recent.front().is_some_and(|first| now.saturating_since(*first) > settings.window) {
            self.recent.pop_front();
        }
        if self.recent() >= settings.max {
            return None;
        }
        if now.saturating_since(since) >= settings.window {
            self.in_a_row = 0;
        }
        self.recent.push_back(now);
        let doubled = 1_u32.checked_shl(self.in_a_row).unwrap_or(u32::MAX);
        self.in_a_row = self.in_a_row.saturating_add(1);
        let longest = settings.base.saturating_mul(doubled).min(DELAY_MAX);
        let millis = u64::try_from(longest.as_millis()).expect("at most 30,000");
        Some(Duration::from_millis(millis - rng.below(millis / 2 + 1)))
    }

    /// How many starts count at the moment, the last one included.
    #[must_use]
    pub fn recent(&self) -> u32 {
        u32::try_from(self.recent.len()).unwrap_or(u32::MAX)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(millis: u64) -> Time {
        Time::at_millis(millis)
    }

    #[test]
    fn prc_8_a_server_that_dies_at_once_is_started_with_growing_delays_and_then_no_more() {
        let settings = RestartSettings::default();
        for seed in 0..50 {
            let (mut restarts, mut rng, mut now, mut delays) = (Restarts::default(), Rng::seeded(seed), 0, Vec::new());
            while let Some(delay) = restarts.after_end(&settings, at(now), at(now + 5), &mut rng) {
                let delay = u64::try_from(delay.as_millis()).expect("short");
                now += 5 + delay;
                delays.push(delay);
            }
            assert_eq!(delays.len(), 5);
            for (index, delay) in delays.iter().enumerate() {
                let longest = 250 << index;
                assert!((longest / 2..=longest).contains(delay), "{delays:?}");
            }
        }
    }

    #[test]
    fn prc_8_the_delay_begins_anew_after_a_long_life_only() {
        let settings = RestartSettings { max: 100, ..RestartSettings::default() };
        let (mut restarts, mut rng) = (Restarts::default(), Rng::seeded(1));
        for _ in 0..10 {
            restarts.after_end(&settings, at(0), at(5), &mut rng);
        }
        let short = restarts.after_end(&settings, at(0), at(59_999), &mut rng).expect("another");
        assert!(short >= DELAY_MAX / 2, "{short:?}");
        let sound = restarts.after_end(&settings, at(100_000), at(160_000), &mut rng).expect("another");
        assert!(sound <= settings.base, "{sound:?}");
    }

    #[test]
    fn starts_before_the_window_do_not_count() {
        let settings = RestartSettings::default();
        let (mut restarts, mut rng) = (Restarts::default(), Rng::seeded(1));
        for end in 0..50 {
            let now = at(end * 12_001);
            assert!(restarts.after_end(&settings, now, now, &mut rng).is_some(), "{end}");
        }
        assert_eq!(restarts.recent(), 5);
    }

    #[test]
    fn none_at_all_can_be_asked_for() {
        let settings = RestartSettings { max: 0, ..RestartSettings::default() };
        assert_eq!(Restarts::default().after_end(&settings, at(0), at(0), &mut Rng::seeded(1)), None);
    }
}
