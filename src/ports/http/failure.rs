//! How an exchange with a remote server failed, by what is certain.

use std::time::Duration;

use crate::dispatcher::event::RequestFailure;
use crate::record::{Executed, FailureClass};

/// An exchange that was not answered, or not accepted.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Failed {
    /// Whether the server may have acted on it.
    pub(super) executed: Executed,
    /// No other try will do better.
    pub(super) final_word: bool,
    /// The status of the HTTP response, if there was one.
    pub(super) status: Option<u16>,
    /// The response is an error that only modern servers give, so that its meaning is not "I know no such thing".
    pub(super) modern_error: bool,
    /// The server wants to be left alone for this long.
    pub(super) retry_after: Option<Duration>,
    /// What went wrong, in words.
    pub(super) message: String,
    /// JSON text with more.
    pub(super) detail: Option<Vec<u8>>,
}

impl Failed {
    fn new(executed: Executed, message: &str) -> Failed {
        Failed {
            executed,
            final_word: false,
            status: None,
            modern_error: false,
            retry_after: None,
            message: message.to_owned(),
            detail: None,
        }
    }

    /// Not one byte of it left for certain.
    pub(super) fn not_sent(message: &str) -> Failed {
        Failed::new(Executed::No, message)
    }

    /// It may have reached the server, and nothing says what came of it.
    pub(super) fn broken(message: &str) -> Failed {
        Failed::new(Executed::Maybe, message)
    }

    /// The server answered, and what it said is of no use.
    pub(super) fn useless(message: &str) -> Failed {
        Failed { final_word: true, ..Failed::new(Executed::Yes, message) }
    }

    /// A response with a status that is no success.
    pub(super) fn refused(status: u16, message: &str) -> Failed {
        let failed = Failed { status: Some(status), ..Failed::new(Executed::Maybe, message) };
        match status {
            // "The request has not been applied" (RFC 9110 section 15.5.2); a refusal to fulfil it (15.5.4). Another try
            // with the same credential would only add to the noise.
            401 | 403 => Failed { executed: Executed::No, final_word: true, ..failed },
            // Too early, too slow, too many: the request itself may be good.
            408 | 425 | 429 => failed,
            // What is wrong with the request does not become right.
            300..=499 => Failed { final_word: true, ..failed },
            _ => failed,
        }
    }

    /// Of a request that named a session: the server does not know the session, so it did not look at the request
    /// (MCP 2025-11-25, session management).
    pub(super) fn session_is_gone(&self) -> bool {
        self.status == Some(404)
    }

    /// The same, about a request that named a session: it was not executed, and another try opens a new session.
    pub(super) fn without_session(self) -> Failed {
        Failed { executed: Executed::No, final_word: false, ..self }
    }

    pub(super) fn into_failure(self) -> RequestFailure {
        let class = if self.final_word { FailureClass::NonRetryable } else { FailureClass::Transport };
        let Failed { executed, retry_after, message, detail, .. } = self;
        RequestFailure { class, executed, retry_after, message, detail }
    }
}

/// The value of `Retry-After` as a wait: whole seconds, or a date after `now_s`, seconds since 1970 (RFC 9110 section
/// 10.2.3). Anything else is as good as nothing.
pub(super) fn retry_after(value: &str, now_s: u64) -> Option<Duration> {
    let value = value.trim();
    if !value.is_empty() && value.bytes().all(|byte| byte.is_ascii_digit()) {
        return Some(Duration::from_secs(value.parse().unwrap_or(u64::from(u32::MAX)).min(u64::from(u32::MAX))));
    }
    Some(Duration::from_secs(http_date(value)?.saturating_sub(now_s)))
}

/// `Sun, 06 Nov 1994 08:49:37 GMT` in seconds since 1970. The two obsolete forms are not worth their lines.
fn http_date(text: &str) -> Option<u64> {
    const MONTHS: [&str; 12] = ["Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec"];
    let rest = text.split_once(", ")?.1.strip_suffix(" GMT")?;
    let [day, month, year, time] = rest.split(' ').collect::<Vec<_>>().try_into().ok()?;
    let [hour, minute, second] = time.split(':').collect::<Vec<_>>().try_into().ok()?;
    let number = |text: &str, digits: usize, max: u64| -> Option<u64> {
        let fits = text.len() == digits && text.bytes().all(|byte| byte.is_ascii_digit());
        text.parse().ok().filter(|value| fits && *value <= max)
    };
    let month = MONTHS.iter().position(|name| *name == month)? + 1;
    let (day, year) = (number(day, 2, 31)?, number(year, 4, 9999)?);
    let (hour, minute, second) = (number(hour, 2, 23)?, number(minute, 2, 59)?, number(second, 2, 60)?);
    let rfc3339 = format!("{year:04}-{month:02}-{day:02}T{hour:02}:{minute:02}:{:02}Z", second.min(59));
    let at = humantime::parse_rfc3339(&rfc3339).ok()?;
    at.duration_since(std::time::UNIX_EPOCH).ok().map(|since| since.as_secs())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn htt_8_both_forms_of_retry_after_are_understood_and_others_ignored() {
        let now = 784_111_777; // Sun, 06 Nov 1994 08:49:37 GMT
        let wait = |value| retry_after(value, now).map(|wait| wait.as_secs());
        assert_eq!(wait("2"), Some(2));
        assert_eq!(wait(" 86400 "), Some(86_400));
        assert_eq!(wait("99999999999999999999"), Some(u64::from(u32::MAX)));
        assert_eq!(wait("Sun, 06 Nov 1994 08:49:47 GMT"), Some(10));
        assert_eq!(wait("Sun, 06 Nov 1994 08:49:30 GMT"), Some(0));
        for nonsense in [
            "abc",
            "",
            "-1",
            "1.5",
            "Sun, 06 Nov 1994",
            "Sun, 31 Foo 1994 08:49:37 GMT",
            "Sun, 99 Nov 1994 08:49:37 GMT",
        ] {
            assert_eq!(wait(nonsense), None, "{nonsense}");
        }
    }

    #[test]
    fn a_status_says_whether_another_try_can_help_and_whether_anything_ran() {
        let kind = |status| {
            let failure = Failed::refused(status, "m").into_failure();
            (failure.class, failure.executed)
        };
        for status in [401, 403] {
            assert_eq!(kind(status), (FailureClass::NonRetryable, Executed::No), "{status}");
        }
        for status in [302, 400, 404, 405, 406, 413, 415, 422] {
            assert_eq!(kind(status), (FailureClass::NonRetryable, Executed::Maybe), "{status}");
        }
        for status in [408, 425, 429, 500, 502, 503, 504] {
            assert_eq!(kind(status), (FailureClass::Transport, Executed::Maybe), "{status}");
        }
    }
}
