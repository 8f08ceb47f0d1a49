//! The retry budget: retries are a share of calls, so that a sick server is not hammered. Pure: time is an argument.

use std::time::Duration;

use crate::clock::Time;

/// How many retries may be made.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BudgetSettings {
    /// Retries per hundred calls,
    pub percent: u32,
    /// but at least this many,
    pub floor: u32,
    /// within this time.
    pub window: Duration,
}

impl Default for BudgetSettings {
    fn default() -> BudgetSettings {
        BudgetSettings { percent: 20, floor: 10, window: Duration::from_secs(60) }
    }
}

/// The window is counted in this many parts; the oldest is forgotten whole.
const PARTS: usize = 60;

#[derive(Clone, Copy, Debug, Default)]
struct Part {
    /// Which part of time it counts, since the start.
    number: u128,
    calls: u64,
    retries: u64,
}

/// Calls and retries of the last while.
#[derive(Clone, Debug)]
pub struct RetryBudget {
    settings: BudgetSettings,
    parts: [Part; PARTS],
}

impl RetryBudget {
    /// Nothing used yet.
    #[must_use]
    pub fn new(settings: BudgetSettings) -> RetryBudget {
        RetryBudget { settings, parts: [Part::default(); PARTS] }
    }

    /// Its settings.
    #[must_use]
    pub fn settings(&self) -> BudgetSettings {
        self.settings
    }

    /// A call was accepted.
    pub fn called(&mut self, now: Time) {
        self.part(now).calls += 1;
    }

    /// Takes one retry out of the budget; `false` if none is left.
    pub fn take(&mut self, now: Time) -> bool {
        let newest = self.number(now);
        let counted = self.parts.iter().filter(|part| newest.saturating_sub(part.number) < PARTS as u128);
        let (calls, retries) =
            counted.fold((0_u64, 0_u64), |(calls, retries), part| (calls + part.calls, retries + part.retries));
        let share = calls.saturating_mul(u64::from(self.settings.percent)) / 100;
        let left = retries < share.max(u64::from(self.settings.floor));
        if left {
            self.part(now).retries += 1;
        }
        left
    }

    fn number(&self, now: Time) -> u128 {
        let length = (self.settings.window.as_nanos() / PARTS as u128).max(1);
        now.since_start().as_nanos() / length
    }

    fn part(&mut self, now: Time) -> &mut Part {
        let number = self.number(now);
        let part = &mut self.parts[usize::try_from(number % PARTS as u128).unwrap_or(0)];
        if part.number != number {
            *part = Part { number, calls: 0, retries: 0 };
        }
        part
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(millis: u64) -> Time {
        Time::at_millis(millis)
    }

    fn taken(budget: &mut RetryBudget, now: Time) -> usize {
        (0..1_000).take_while(|_| budget.take(now)).count()
    }

    #[test]
    fn a_few_retries_are_always_there() {
        let mut budget = RetryBudget::new(BudgetSettings::default());
        budget.called(at(0));
        assert_eq!(taken(&mut budget, at(0)), 10);
        assert!(!budget.take(at(59_000)));
    }

    #[test]
    fn many_calls_allow_their_share() {
        let mut budget = RetryBudget::new(BudgetSettings::default());
        for call in 0..500 {
            budget.called(at(call * 100));
        }
        assert_eq!(taken(&mut budget, at(50_000)), 100);
    }

    #[test]
    fn what_lies_before_the_window_does_not_count() {
        let mut budget = RetryBudget::new(BudgetSettings::default());
        for _ in 0..500 {
            budget.called(at(0));
        }
        assert_eq!(taken(&mut budget, at(0)), 100);
        assert_eq!(taken(&mut budget, at(61_000)), 10, "neither the calls nor the retries");
        assert_eq!(taken(&mut budget, at(61_000)), 0);
        assert_eq!(taken(&mut budget, at(10_000_000)), 10);
    }

    #[test]
    fn without_floor_and_share_nothing_is_tried_again() {
        let mut budget = RetryBudget::new(BudgetSettings { percent: 0, floor: 0, window: Duration::from_secs(60) });
        budget.called(at(0));
        assert!(!budget.take(at(0)));
    }
}
