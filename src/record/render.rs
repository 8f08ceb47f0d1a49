//! The log line of a call.

use super::CallEvent;
use super::json_out::object;
use super::redact::{Masked, Redactor};

/// Longer messages are cut in the log line; the dead letter has the whole text.
const MESSAGE_BYTES_MAX: usize = 8 * 1024;

/// One call as one line of JSON without its line end. It holds no argument values; the error's message is redacted.
///
/// `error.code` is an integer or absent; `error.class` is absent for a denial.
#[must_use]
pub fn log_line(event: &CallEvent, redactor: &Redactor) -> String {
    object(|out| {
        out.text("timestamp", &event.at.to_rfc3339()).text("correlation_id", &event.correlation_id);
        if !event.trace.is_empty() {
            out.object("trace", |out| {
                for (name, value) in &event.trace {
                    out.text(name, &redactor.redact_text(value, &Masked::none()));
                }
            });
        }
        out.object("caller", |out| {
            out.text("type", event.caller.transport.as_str()).text("identity", &event.caller.identity);
        });
        out.text("server", &event.server)
            .text("tool", &event.tool)
            .text("decision", event.decision.as_str())
            .plain("latency_ms", event.latency_ms)
            .plain("request_bytes", event.request_bytes)
            .plain("response_bytes", event.response_bytes)
            .plain("attempt", event.attempts);
        if let Some(error) = &event.error {
            out.object("error", |out| {
                let masked = error.arguments.as_deref().map(|text| redactor.collect_json(text));
                let message = redactor.redact_text(&error.message, &masked.unwrap_or_default());
                out.text("message", &cut(message));
                if let Some(code) = error.code {
                    out.plain("code", code);
                }
                if let Some(class) = error.class {
                    out.text("class", class.as_str());
                }
                out.text("executed", error.executed.as_str());
            });
        }
        if let Some(id) = &event.dead_letter_id {
            out.text("dead_letter_id", id);
        }
        if !event.enforced {
            out.plain("enforced", false);
        }
    })
}

fn cut(mut message: String) -> String {
    if message.len() > MESSAGE_BYTES_MAX {
        message.truncate(message.floor_char_boundary(MESSAGE_BYTES_MAX));
        message.push('…');
    }
    message
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::record::test_values::{call_error, event};
    use crate::record::{Decision, Executed};

    fn line(event: &CallEvent) -> String {
        let line = log_line(event, &Redactor::new(&["token".to_owned()]));
        serde_json::from_str::<serde_json::Value>(&line).expect("valid JSON");
        line
    }

    #[test]
    fn a_log_line_has_the_documented_members_in_their_order() {
        assert_eq!(
            line(&event("01E")),
            concat!(
                r#"{"timestamp":"1970-01-01T00:00:05.000Z","correlation_id":"c-01E","caller":{"type":"stdio","identity":"local"},"#,
                r#""server":"files","tool":"write_file","decision":"allowed","latency_ms":812,"request_bytes":203,"response_bytes":7,"#,
                r#""attempt":1}"#
            )
        );
        let mut failed = event("01E");
        failed.decision = Decision::Failed;
        failed.trace = vec![("traceparent", "00-1".to_owned()), ("baggage", "a=1,token=abc".to_owned())];
        failed.error = Some(call_error("disk unavailable"));
        failed.dead_letter_id = Some("01D".to_owned());
        failed.enforced = false;
        assert_eq!(
            line(&failed),
            concat!(
                r#"{"timestamp":"1970-01-01T00:00:05.000Z","correlation_id":"c-01E","trace":{"traceparent":"00-1","baggage":"a=1,token=[REDACTED]"},"#,
                r#""caller":{"type":"stdio","identity":"local"},"#,
                r#""server":"files","tool":"write_file","decision":"failed","latency_ms":812,"request_bytes":203,"response_bytes":7,"#,
                r#""attempt":1,"error":{"message":"disk unavailable","code":-32000,"class":"upstream_error","executed":"maybe"},"#,
                r#""dead_letter_id":"01D","enforced":false}"#
            )
        );
    }

    #[test]
    fn a_denial_has_neither_code_nor_class_unless_there_is_one() {
        let mut denied = event("01E");
        denied.error =
            Some(crate::record::CallError { code: None, class: None, executed: Executed::No, ..call_error("no") });
        assert!(line(&denied).contains(r#""error":{"message":"no","executed":"no"}"#));
    }

    #[test]
    fn dlq_1_the_log_line_masks_what_the_arguments_masked() {
        let mut failed = event("01E");
        let mut error = call_error("invalid s3cr3t-S; token=other");
        error.arguments = Some(br#"{"token":"s3cr3t-S"}"#.to_vec());
        failed.error = Some(error);
        assert!(line(&failed).contains("\"invalid [REDACTED]; token=[REDACTED]\""));
    }

    #[test]
    fn a_huge_message_is_cut_between_characters() {
        let mut failed = event("01E");
        failed.error = Some(call_error(&format!("a{}", "é".repeat(20_000))));
        assert!(line(&failed).len() < MESSAGE_BYTES_MAX + 1_000);
    }
}
