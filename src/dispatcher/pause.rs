//! A clock that can stand still: the time that counts against calls on one upstream.

use std::time::Duration;

use crate::clock::Time;

/// Time without the pauses.
///
/// Deadlines of attempts are moments of this clock, so that a pause moves all of them without touching any.
#[derive(Clone, Debug, Default)]
pub(super) struct PausableClock {
    stopped: Duration,
    since: Option<Time>,
}

impl PausableClock {
    /// What this clock shows at `now`.
    pub(super) fn read(&self, now: Time) -> Time {
        let shown = self.since.unwrap_or(now);
        Time::from_start(shown.since_start().saturating_sub(self.stopped))
    }

    /// When this clock will show `until`; `None` while it stands still.
    pub(super) fn when(&self, until: Time) -> Option<Time> {
        self.since.is_none().then(|| until.plus(self.stopped))
    }

    /// Makes the clock stand still or run; whether that changed anything.
    pub(super) fn set_paused(&mut self, paused: bool, now: Time) -> bool {
        match (paused, self.since) {
            (true, None) => self.since = Some(now),
            (false, Some(since)) => {
                self.stopped += now.saturating_since(since);
                self.since = None;
            }
            (true, Some(_)) | (false, None) => return false,
        }
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn time_in_a_pause_does_not_count() {
        let at = Time::at_millis;
        let mut clock = PausableClock::default();
        let until = clock.read(at(1_000)).plus(Duration::from_millis(500));
        assert_eq!(clock.when(until), Some(at(1_500)));
        assert!(clock.set_paused(true, at(1_200)));
        assert!(!clock.set_paused(true, at(1_300)));
        assert_eq!(clock.when(until), None);
        assert_eq!(clock.read(at(9_000)), clock.read(at(1_200)));
        assert!(clock.set_paused(false, at(6_200)));
        assert_eq!(clock.when(until), Some(at(6_500)));
        assert_eq!(clock.read(at(6_500)), until);
    }
}
