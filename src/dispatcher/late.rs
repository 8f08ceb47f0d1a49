//! Answers that come after their attempt was given up.

use std::collections::BTreeMap;
use std::time::Duration;

use super::OpenId;
use super::event::AttemptId;
use crate::clock::Time;

/// How many given-up attempts are remembered.
const REMEMBERED_MAX: usize = 1024;

/// For how long.
const REMEMBERED_FOR: Duration = Duration::from_secs(600);

/// What a late answer belongs to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum LateOwner {
    /// A call that is still being tried.
    Call {
        /// Which.
        open: OpenId,
        /// Where the attempt stands in its list.
        attempt: usize,
    },
    /// A dead letter.
    DeadLetter(String),
    /// Nothing that could use it: a cancelled request, or a call that succeeded by another attempt.
    Nobody,
}

/// The attempts that were given up and may still be answered.
#[derive(Clone, Debug, Default)]
pub(super) struct LateAnswers {
    entries: BTreeMap<AttemptId, (LateOwner, Time)>,
}

impl LateAnswers {
    /// Remembers a given-up attempt, or changes what its answer belongs to.
    pub(super) fn remember(&mut self, attempt: AttemptId, owner: LateOwner, now: Time) {
        self.entries.insert(attempt, (owner, now.plus(REMEMBERED_FOR)));
        while self.entries.len() > REMEMBERED_MAX {
            self.entries.pop_first();
        }
    }

    /// Whose answer this is; forgotten with this.
    pub(super) fn take(&mut self, attempt: AttemptId, now: Time) -> Option<LateOwner> {
        let (owner, until) = self.entries.remove(&attempt)?;
        (now < until).then_some(owner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_attempt_is_remembered_once_and_for_a_bounded_time_and_number() {
        let mut late = LateAnswers::default();
        late.remember(AttemptId(1), LateOwner::Nobody, Time::ZERO);
        assert_eq!(late.take(AttemptId(1), Time::at_millis(599_999)), Some(LateOwner::Nobody));
        assert_eq!(late.take(AttemptId(1), Time::ZERO), None);
        late.remember(AttemptId(2), LateOwner::Nobody, Time::ZERO);
        assert_eq!(late.take(AttemptId(2), Time::at_millis(600_000)), None);
        for attempt in 0..2_000 {
            late.remember(AttemptId(attempt), LateOwner::Nobody, Time::ZERO);
        }
        assert_eq!(late.entries.len(), REMEMBERED_MAX);
        assert_eq!(late.take(AttemptId(1_999), Time::ZERO), Some(LateOwner::Nobody));
    }
}
