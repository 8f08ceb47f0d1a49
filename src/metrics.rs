//! Plain counters of what a session dropped or refused, and their text form.

/// Things that were not relayed; each is a fact worth knowing when a session misbehaves.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Counters {
    /// Answers that came after their request was given up, cancelled or answered.
    pub late_answers: u64,
    /// Answers to ids that were never used.
    pub unknown_answers: u64,
    /// Cancels of requests that are not open.
    pub unknown_cancels: u64,
    /// Progress of requests that are not open, or that did not advance.
    pub stale_progress: u64,
    /// Notifications for subscriptions that are not open.
    pub stale_subscriptions: u64,
    /// Client frames that were no valid messages.
    pub refused_frames: u64,
    /// Client notifications dropped for their credential.
    pub rejected_notifications: u64,
    /// Client notifications that came while the upstream was being started again.
    pub unheard_notifications: u64,
    /// Upstream lines that were no messages.
    pub noise_lines: u64,
}

impl Counters {
    /// One line that names every counter above zero; `None` if all are zero.
    #[must_use]
    pub fn summary(&self) -> Option<String> {
        let parts: Vec<String> = [
            (self.late_answers, "late answers"),
            (self.unknown_answers, "answers to unknown ids"),
            (self.unknown_cancels, "cancels of unknown ids"),
            (self.stale_progress, "stale progress notifications"),
            (self.stale_subscriptions, "notifications of closed subscriptions"),
            (self.refused_frames, "invalid client frames"),
            (self.rejected_notifications, "notifications with a rejected credential"),
            (self.unheard_notifications, "notifications while the server was down"),
            (self.noise_lines, "server lines that are no messages"),
        ]
        .iter()
        .filter(|(count, _)| *count > 0)
        .map(|(count, what)| format!("{count} {what}"))
        .collect();
        (!parts.is_empty()).then(|| format!("not relayed in this session: {}", parts.join(", ")))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_summary_names_what_happened_and_nothing_else() {
        assert_eq!(Counters::default().summary(), None);
        let counters = Counters { late_answers: 2, noise_lines: 1, ..Counters::default() };
        let expected = "not relayed in this session: 2 late answers, 1 server lines that are no messages";
        assert_eq!(counters.summary().as_deref(), Some(expected));
    }
}
