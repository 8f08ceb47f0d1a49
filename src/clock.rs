//! Time as the rest of the crate sees it: the one place that reads a real clock.

use std::time::Duration;

/// A moment on the monotonic clock: the time since this process's clock was made.
///
/// It never goes back and has no relation to the calendar; deadlines and waits are computed from it alone.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Time(Duration);

impl Time {
    /// The moment the clock was made.
    pub const ZERO: Time = Time(Duration::ZERO);

    /// The moment `since_start` after the clock was made.
    #[must_use]
    pub const fn from_start(since_start: Duration) -> Time {
        Time(since_start)
    }

    /// The moment `millis` milliseconds after the clock was made; the form tests write.
    #[must_use]
    pub const fn at_millis(millis: u64) -> Time {
        Time(Duration::from_millis(millis))
    }

    /// How long after the clock's start this moment lies.
    #[must_use]
    pub const fn since_start(self) -> Duration {
        self.0
    }

    /// How long this moment lies after `earlier`, zero if it does not.
    #[must_use]
    pub const fn saturating_since(self, earlier: Time) -> Duration {
        self.0.saturating_sub(earlier.0)
    }

    /// This moment moved later by `wait`, at most to the end of time.
    #[must_use]
    pub const fn plus(self, wait: Duration) -> Time {
        Time(self.0.saturating_add(wait))
    }
}

/// A moment on the calendar, in milliseconds since 1970-01-01T00:00:00Z. It may jump; it is only copied into records.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Wall(pub i64);

impl Wall {
    /// RFC 3339 in UTC with milliseconds, as every record and log line prints it: `2026-11-30T10:00:00.000Z`.
    #[must_use]
    pub fn to_rfc3339(self) -> String {
        // The calendar form covers 1970 to 9999; a clock outside it is wrong, and a clamped record beats none.
        let millis = u64::try_from(self.0).unwrap_or(0).min(253_402_300_799_999);
        humantime::format_rfc3339_millis(std::time::UNIX_EPOCH + Duration::from_millis(millis)).to_string()
    }

    /// The moment that [`Wall::to_rfc3339`] wrote.
    #[must_use]
    pub fn from_rfc3339(text: &str) -> Option<Wall> {
        let since = humantime::parse_rfc3339(text).ok()?.duration_since(std::time::UNIX_EPOCH).ok()?;
        i64::try_from(since.as_millis()).ok().map(Wall)
    }
}

/// Both clocks read at once; the argument of every decision that depends on time.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Now {
    /// For deadlines and durations.
    pub mono: Time,
    /// For records only.
    pub wall: Wall,
}

/// Reads the real clocks.
#[derive(Clone, Copy, Debug)]
pub struct Clock {
    start: std::time::Instant,
}

impl Clock {
    /// A clock that starts now.
    #[must_use]
    #[expect(clippy::disallowed_methods, reason = "the one place that reads the monotonic clock")]
    pub fn start() -> Clock {
        Clock { start: std::time::Instant::now() }
    }

    /// Both clocks, read now.
    #[must_use]
    #[expect(clippy::disallowed_methods, reason = "the one place that reads the calendar clock")]
    pub fn now(&self) -> Now {
        let wall = std::time::SystemTime::now()
            .duration_since(std::time::UNIX_EPOCH)
            .map_or(0, |since| i64::try_from(since.as_millis()).unwrap_or(i64::MAX));
        Now { mono: Time(self.start.elapsed()), wall: Wall(wall) }
    }
}
