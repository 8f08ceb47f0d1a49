//! A circuit breaker: after enough failures nothing is tried for a while, then a few tries decide. Pure: time is an
//! argument.

use std::collections::VecDeque;
use std::time::Duration;

use crate::clock::Time;

/// When a circuit opens and for how long.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CircuitSettings {
    /// It opens at this many failures, at least 1,
    pub failures: u32,
    /// all within this time.
    pub window: Duration,
    /// How long nothing is tried then.
    pub open: Duration,
    /// How many calls are let through after that, at least 1, to see whether it may close.
    pub half_open_calls: u32,
}

impl Default for CircuitSettings {
    fn default() -> CircuitSettings {
        CircuitSettings {
            failures: 5,
            window: Duration::from_secs(30),
            open: Duration::from_secs(10),
            half_open_calls: 1,
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    Closed,
    Open {
        until: Time,
    },
    /// Probes decide. One that never tells is not waited for longer than the circuit was open.
    HalfOpen {
        left: u32,
        until: Time,
    },
}

/// One circuit. What is a failure or a success, its owner decides.
#[derive(Clone, Debug)]
pub struct Breaker {
    settings: CircuitSettings,
    failures: VecDeque<Time>,
    state: State,
}

impl Breaker {
    /// A closed circuit without a history.
    #[must_use]
    pub fn new(settings: CircuitSettings) -> Breaker {
        Breaker { settings, failures: VecDeque::new(), state: State::Closed }
    }

    /// Its settings.
    #[must_use]
    pub fn settings(&self) -> CircuitSettings {
        self.settings
    }

    /// Until when nothing may be tried; `None` if something may be at `now`.
    #[must_use]
    pub fn refuses(&self, now: Time) -> Option<Time> {
        match self.state {
            State::Open { until } | State::HalfOpen { left: 0, until } if now < until => Some(until),
            State::Closed | State::Open { .. } | State::HalfOpen { .. } => None,
        }
    }

    /// Lets one call through; whether it is a probe. Ask [`Breaker::refuses`] first.
    pub fn admit(&mut self, now: Time) -> bool {
        match &mut self.state {
            State::Closed => false,
            State::HalfOpen { left, .. } if *left > 0 => {
                *left -= 1;
                true
            }
            State::Open { .. } | State::HalfOpen { .. } => {
                let left = self.settings.half_open_calls.saturating_sub(1);
                self.state = State::HalfOpen { left, until: now.plus(self.settings.open) };
                true
            }
        }
    }

    /// Something succeeded; whether that closed the circuit.
    pub fn succeeded(&mut self) -> bool {
        match self.state {
            // What was sent before the circuit opened says nothing about now.
            State::Open { .. } => false,
            State::HalfOpen { .. } => {
                self.state = State::Closed;
                self.failures.clear();
                true
            }
            State::Closed => {
                self.failures.clear();
                false
            }
        }
    }

    /// Something failed; until when the circuit is open, if that opened it.
    pub fn failed(&mut self, now: Time) -> Option<Time> {
        let opens = match self.state {
            State::Open { .. } => false,
            State::HalfOpen { .. } => true,
            State::Closed => {
                self.failures.push_back(now);
                self.forget(now);
                self.failures.len() >= usize::try_from(self.settings.failures).unwrap_or(usize::MAX)
            }
        };
        if !opens {
            return None;
        }
        let until = now.plus(self.settings.open);
        self.state = State::Open { until };
        self.failures.clear();
        Some(until)
    }

    /// A probe ended without telling anything: another may take its place.
    pub fn probe_withdrawn(&mut self) {
        if let State::HalfOpen { left, .. } = &mut self.state {
            *left = left.saturating_add(1).min(self.settings.half_open_calls);
        }
    }

    /// Whether probes decide at the moment.
    #[must_use]
    pub fn is_half_open(&self) -> bool {
        matches!(self.state, State::HalfOpen { .. })
    }

    /// Whether it could be forgotten: it is closed, and no failure counts any more.
    pub fn is_idle(&mut self, now: Time) -> bool {
        self.forget(now);
        self.state == State::Closed && self.failures.is_empty()
    }

    fn forget(&mut self, now: Time) {
        let window = self.settings.window;
        while self.failures.front().is_some_and(|first| now.saturating_since(*first) > window) {
            self.failures.pop_front();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(millis: u64) -> Time {
        Time::at_millis(millis)
    }

    fn breaker() -> Breaker {
        Breaker::new(CircuitSettings { failures: 3, half_open_calls: 2, ..CircuitSettings::default() })
    }

    /// Three failures at once, so that it is open for ten seconds.
    fn open_at(millis: u64) -> Breaker {
        let mut breaker = breaker();
        assert_eq!(breaker.failed(at(millis)), None);
        assert_eq!(breaker.failed(at(millis)), None);
        assert_eq!(breaker.failed(at(millis)), Some(at(millis + 10_000)));
        breaker
    }

    #[test]
    fn enough_failures_within_the_window_open_it() {
        let breaker = open_at(0);
        assert_eq!(breaker.refuses(at(0)), Some(at(10_000)));
        assert_eq!(breaker.refuses(at(9_999)), Some(at(10_000)));
        assert_eq!(breaker.refuses(at(10_000)), None);
    }

    #[test]
    fn failures_far_apart_do_not() {
        let mut breaker = breaker();
        for failure in 0..20 {
            assert_eq!(breaker.failed(at(failure * 15_001)), None);
        }
        assert_eq!(breaker.failed(at(19 * 15_001)), Some(at(19 * 15_001 + 10_000)), "the third in 30 s");
    }

    #[test]
    fn a_success_between_failures_begins_the_count_anew() {
        let mut breaker = breaker();
        for _ in 0..10 {
            assert_eq!(breaker.failed(at(1)), None);
            assert_eq!(breaker.failed(at(1)), None);
            assert!(!breaker.succeeded());
        }
    }

    #[test]
    fn only_so_many_probes_pass_and_one_success_closes_it() {
        let mut breaker = open_at(0);
        assert!(breaker.admit(at(10_000)) && breaker.refuses(at(10_000)).is_none());
        assert!(breaker.admit(at(10_000)));
        assert_eq!(breaker.refuses(at(10_001)), Some(at(20_000)));
        assert!(breaker.succeeded());
        assert_eq!(breaker.refuses(at(10_002)), None);
        assert!(!breaker.admit(at(10_002)), "no probe: it is closed");
        assert!(breaker.is_idle(at(10_002)));
    }

    #[test]
    fn a_failed_probe_opens_it_again_at_once() {
        let mut breaker = open_at(0);
        breaker.admit(at(12_000));
        assert_eq!(breaker.failed(at(12_500)), Some(at(22_500)));
        assert_eq!(breaker.refuses(at(12_500)), Some(at(22_500)));
    }

    #[test]
    fn a_probe_that_never_tells_does_not_block_for_ever() {
        let mut breaker = open_at(0);
        breaker.admit(at(10_000));
        breaker.admit(at(10_000));
        assert_eq!(breaker.refuses(at(19_999)), Some(at(20_000)));
        assert_eq!(breaker.refuses(at(20_000)), None);
        assert!(breaker.admit(at(20_000)));
    }

    #[test]
    fn a_withdrawn_probe_gives_its_place_to_another() {
        let mut breaker = open_at(0);
        breaker.admit(at(10_000));
        breaker.admit(at(10_000));
        breaker.probe_withdrawn();
        assert_eq!(breaker.refuses(at(10_001)), None);
        breaker.admit(at(10_001));
        assert!(breaker.refuses(at(10_001)).is_some());
    }

    #[test]
    fn what_was_under_way_when_it_opened_neither_closes_nor_prolongs_it() {
        let mut breaker = open_at(0);
        assert!(!breaker.succeeded());
        assert_eq!(breaker.failed(at(5_000)), None);
        assert_eq!(breaker.refuses(at(5_000)), Some(at(10_000)));
    }
}
