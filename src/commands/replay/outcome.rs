//! What a replayed call came to, and what is written down about it.

use crate::dispatcher::{error_class, error_code, executed_by, tool_text};
use crate::record::json_out::{object, string};
use crate::record::redact::{Masked, Redactor};
use crate::record::{Executed, FailureClass, Status};
use crate::session::SessionError;
use crate::wire::json::{Json, Kind};
use crate::wire::message::Message;

/// The end of one replay. Nothing in it is redacted.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Outcome {
    /// Whether the tool ran, as far as can be known.
    pub(crate) executed: Executed,
    /// Why it is no success; `None` for a success.
    pub(crate) failure: Option<Failed>,
    /// The JSON text of `result`, if the server gave one.
    pub(crate) result: Option<Vec<u8>>,
}

/// Why a replay is no success.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Failed {
    pub(crate) class: FailureClass,
    pub(crate) code: Option<i64>,
    pub(crate) message: String,
}

impl Outcome {
    /// The outcome of a call; the error is that nothing was sent, so that nothing has happened.
    pub(crate) fn of(called: Result<Message, SessionError>) -> Result<Outcome, String> {
        let failed = |executed, class, message| {
            let failure = Some(Failed { class, code: None, message });
            Ok(Outcome { executed, failure, result: None })
        };
        match called {
            Ok(message) => Ok(Outcome::of_answer(&message)),
            Err(SessionError::Unreachable(text)) => Err(text),
            Err(error @ (SessionError::Closed { sent: false, .. } | SessionError::Stopped { sent: false })) => {
                Err(error.to_string())
            }
            Err(error @ SessionError::Stopped { sent: true }) => {
                failed(Executed::Maybe, FailureClass::Interrupted, format!("{error}; the call may have run"))
            }
            Err(error @ SessionError::Closed { .. }) => {
                failed(Executed::Maybe, FailureClass::Transport, format!("{error}; the call may have run"))
            }
            Err(error @ SessionError::Timeout(_)) => {
                failed(Executed::Maybe, FailureClass::Timeout, format!("{error}; the call may have run"))
            }
            Err(SessionError::Failed(failure)) => match (failure.class, failure.executed) {
                (FailureClass::Transport, Executed::No) => Err(failure.message),
                (class, Executed::Maybe) => {
                    failed(Executed::Maybe, class, format!("{}; the call may have run", failure.message))
                }
                (class, executed) => failed(executed, class, failure.message),
            },
            Err(error @ SessionError::Oversized(_)) => {
                failed(Executed::Yes, FailureClass::NonRetryable, error.to_string())
            }
        }
    }

    fn of_answer(message: &Message) -> Outcome {
        let result = message.result();
        let is = |name: &str| result.and_then(|result| result.member(name));
        let kind = is("resultType").and_then(Json::as_str);
        let is_task = kind.as_deref() == Some("task") || is("task").is_some_and(|task| task.member("taskId").is_some());
        let (executed, failure) = if let Some(error) = message.error() {
            let code = error_code(message);
            let message_text = error.member("message").and_then(Json::as_str);
            let text = message_text.map_or_else(|| "error without a message".to_owned(), Into::into);
            (executed_by(message), Some(Failed { class: error_class(code), code, message: text }))
        } else if is("isError").is_some_and(|value| value.kind() == Kind::True) {
            let failure = Failed { class: FailureClass::ToolError, code: None, message: tool_text(result) };
            (Executed::Yes, Some(failure))
        } else if kind.as_deref() == Some("input_required") {
            let text = "the tool asks for input, which a replay cannot give; make the call in a client";
            let failure = Failed { class: FailureClass::NonRetryable, code: None, message: text.to_owned() };
            (Executed::No, Some(failure))
        } else if is_task {
            let text = "the tool answered with a task, whose end a replay cannot see";
            let failure = Failed { class: FailureClass::NonRetryable, code: None, message: text.to_owned() };
            (Executed::Maybe, Some(failure))
        } else {
            (Executed::Yes, None)
        };
        Outcome { executed, failure, result: result.map(|result| result.text().to_vec()) }
    }

    pub(crate) fn ok(&self) -> bool {
        self.failure.is_none()
    }

    /// The record's status after it.
    pub(crate) fn status(&self) -> Status {
        if self.ok() { Status::Replayed } else { Status::FailedReplay }
    }

    /// `{ok, executed, class?, code?, error?, result?}`, redacted.
    pub(crate) fn to_json(&self, redactor: &Redactor, masked: &Masked) -> String {
        object(|out| {
            out.plain("ok", self.ok()).text("executed", self.executed.as_str());
            if let Some(failed) = &self.failure {
                failed.members(out, "error", redactor, masked);
            }
            if let Some(result) = &self.result {
                let result = redactor.redact_json_with(result, masked);
                out.raw("result", &String::from_utf8_lossy(&result));
            }
        })
    }

    /// The entry for the record's list of replays: `{at, source, by, outcome, executed, duration_ms, class?, code?,
    /// message?}`, redacted.
    pub(crate) fn attempt_json(
        &self,
        at: &str,
        by: &str,
        duration_ms: u64,
        redactor: &Redactor,
        masked: &Masked,
    ) -> String {
        object(|out| {
            out.text("at", at)
                .text("source", "replay")
                .text("by", by)
                .text("outcome", if self.ok() { "ok" } else { "failed" })
                .text("executed", self.executed.as_str())
                .plain("duration_ms", duration_ms);
            if let Some(failed) = &self.failure {
                failed.members(out, "message", redactor, masked);
            }
        })
    }
}

impl Failed {
    fn members(&self, out: &mut crate::record::json_out::Object, text: &str, redactor: &Redactor, masked: &Masked) {
        out.text("class", self.class.as_str());
        if let Some(code) = self.code {
            out.plain("code", code);
        }
        out.raw(text, &string(&redactor.redact_text(&self.message, masked)));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::wire::message::{FromUpstream, from_upstream};

    fn outcome(body: &str) -> Outcome {
        let frame = format!(r#"{{"jsonrpc":"2.0","id":1,{body}}}"#);
        let FromUpstream::Message(message) = from_upstream(frame.into_bytes()) else { panic!("{body} is a message") };
        Outcome::of(Ok(message)).expect("an answer came")
    }

    fn fate(outcome: &Outcome) -> (Status, Executed, Option<FailureClass>) {
        (outcome.status(), outcome.executed, outcome.failure.as_ref().map(|failed| failed.class))
    }

    #[test]
    fn each_answer_has_its_status_and_tells_whether_the_tool_ran() {
        use FailureClass::{NonRetryable, ToolError, UpstreamError};
        let failed = |executed, class| (Status::FailedReplay, executed, Some(class));
        for (body, expected) in [
            (r#""result":{"content":[]}"#, (Status::Replayed, Executed::Yes, None)),
            (r#""result":{"content":[],"isError":false}"#, (Status::Replayed, Executed::Yes, None)),
            (r#""result":{"content":[],"isError":true}"#, failed(Executed::Yes, ToolError)),
            (r#""result":{"resultType":"input_required"}"#, failed(Executed::No, NonRetryable)),
            (r#""result":{"task":{"taskId":"t"}}"#, failed(Executed::Maybe, NonRetryable)),
            (r#""error":{"code":-32000,"message":"x"}"#, failed(Executed::Maybe, UpstreamError)),
            (r#""error":{"code":-32602,"message":"x"}"#, failed(Executed::No, NonRetryable)),
        ] {
            assert_eq!(fate(&outcome(body)), expected, "{body}");
        }
    }

    #[test]
    fn only_a_call_that_certainly_was_not_sent_leaves_the_record_as_it_was() {
        let closed = |sent| Outcome::of(Err(SessionError::Closed { how: "it exited".to_owned(), sent }));
        assert_eq!(closed(false), Err("it exited before anything was sent to it".to_owned()));
        assert_eq!(closed(true).map(|outcome| outcome.executed), Ok(Executed::Maybe));
        let late = Outcome::of(Err(SessionError::Timeout(std::time::Duration::from_millis(50)))).expect("sent");
        assert_eq!(fate(&late), (Status::FailedReplay, Executed::Maybe, Some(FailureClass::Timeout)));
    }

    #[test]
    fn dlq_1_what_was_masked_in_the_arguments_is_masked_in_the_outcome() {
        let redactor = Redactor::new(&["token".to_owned()]);
        let masked = redactor.collect_json(br#"{"token":"s3cr3t-S"}"#);
        let outcome =
            outcome(r#""result":{"content":[{"type":"text","text":"bad s3cr3t-S"}],"isError":true,"n":1.10}"#);
        assert_eq!(
            outcome.to_json(&redactor, &masked),
            r#"{"ok":false,"executed":"yes","class":"tool_error","error":"bad [REDACTED]","result":{"content":[{"type":"text","text":"bad [REDACTED]"}],"isError":true,"n":1.10}}"#
        );
        assert_eq!(
            outcome.attempt_json("T", "me", 7, &redactor, &masked),
            r#"{"at":"T","source":"replay","by":"me","outcome":"failed","executed":"yes","duration_ms":7,"class":"tool_error","message":"bad [REDACTED]"}"#
        );
    }
}
