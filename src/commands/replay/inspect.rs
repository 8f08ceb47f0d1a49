//! One stored call in full, as text.

use std::fmt::Write as _;

use serde_json::Value;

use crate::commands::text::one_line;
use crate::record::Transport;
use crate::record::seal::key_id;
use crate::record::stored::Record;

/// One `label: value` a line, everything that is known of the record.
pub(super) fn render(record: &Record) -> String {
    let mut out = String::new();
    let mut line = |label: &str, value: &str| {
        let label = if label.is_empty() { String::new() } else { format!("{label}:") };
        // A String takes everything.
        let _ = writeln!(out, "{label:<17} {}", one_line(value));
    };
    let or_none = |value: Option<&str>| value.unwrap_or("none").to_owned();
    line("id", &record.id);
    line("correlation_id", &record.correlation_id);
    line("captured_at", &record.captured_at.to_rfc3339());
    line("caller", &format!("{} ({})", record.caller.identity, record.caller.transport));
    let client = record.client.as_ref().map(|client| format!("{} {}", client.name, client.version));
    line("client", &or_none(client.as_deref()));
    line("server", &format!("{} ({})", record.server.name, record.command()));
    line("transport", record.server.transport.as_str());
    if record.server.transport == Transport::Stdio {
        line("cwd", &or_none(record.server.cwd.as_deref()));
    }
    line("tool", &record.tool);
    line("idempotent", yes_no(record.idempotent));
    line("idempotency_key", &or_none(record.idempotency_key.as_deref()));
    line("mid_conversation", yes_no(record.mid_conversation));
    line("arguments_hash", &record.arguments_hash);
    line("arguments", &or_none(record.arguments.as_deref()));
    line("policy", &format!("{} ({})", if record.policy.allowed { "allow" } else { "deny" }, record.policy.reason));
    line("failure.class", record.class.as_str());
    line("failure.message", &record.message);
    line("failure.code", &record.code.map_or("none".to_owned(), |code| code.to_string()));
    line("failure.executed", record.executed.as_str());
    line("failure.detail", &or_none(record.detail.as_deref()));
    line("failure.attempts", &record.attempts.to_string());
    for attempt in elements(&record.tries) {
        line("", &attempt_text(&attempt));
    }
    line("late_result", &or_none(record.late_result.as_deref()));
    line("replay.status", record.status.as_str());
    let claim = record.claim.as_ref().map(|claim| {
        let sent = claim.sent_at.map_or("not sent".to_owned(), |at| format!("sent {}", at.to_rfc3339()));
        let (since, until) = (claim.since.to_rfc3339(), claim.expires_at.to_rfc3339());
        format!("{} since {since} until {until}, {sent}", claim.owner)
    });
    line("replay.claim", &or_none(claim.as_deref()));
    let replays = elements(&record.replays);
    line("replay.attempts", &replays.len().to_string());
    for replay in replays {
        line("", &replay_text(&replay));
    }
    line("replay.outcome", record.last_outcome.as_deref().unwrap_or("null"));
    line("replay.resolved", &or_none(record.resolved_at.map(|at| at.to_rfc3339()).as_deref()));
    line("replay.failures", &record.redrives.to_string());
    let notes = elements(&record.notes);
    line("replay.notes", &notes.len().to_string());
    for note in notes {
        line("", &note_text(&note));
    }
    let original = record.sealed.as_deref().map(|sealed| match key_id(sealed) {
        Some(key) => format!("sealed with the key {key}"),
        None => "sealed in a form that this version does not know".to_owned(),
    });
    line("original", &or_none(original.as_deref()));
    out
}

fn yes_no(yes: bool) -> &'static str {
    if yes { "yes" } else { "no" }
}

/// The elements of a list that we wrote ourselves.
fn elements(json: &str) -> Vec<Value> {
    match serde_json::from_str(json) {
        Ok(Value::Array(elements)) => elements,
        _ => Vec::new(),
    }
}

fn text<'a>(object: &'a Value, name: &str) -> &'a str {
    object[name].as_str().unwrap_or_default()
}

fn attempt_text(attempt: &Value) -> String {
    let code = attempt["code"].as_i64().map(|code| format!(" ({code})")).unwrap_or_default();
    let (from, to) = (text(attempt, "started_at"), text(attempt, "ended_at"));
    let (class, executed, message) = (text(attempt, "class"), text(attempt, "executed"), text(attempt, "message"));
    format!("#{} {from} to {to}: {class}, executed {executed}: {message}{code}", attempt["number"])
}

fn replay_text(replay: &Value) -> String {
    let mut parts = vec![format!("{} by {}: {}", text(replay, "at"), text(replay, "by"), text(replay, "outcome"))];
    if let Some(executed) = replay["executed"].as_str() {
        parts.push(format!("executed {executed}"));
    }
    if let Some(millis) = replay["duration_ms"].as_u64() {
        parts.push(format!("{millis} ms"));
    }
    let message = replay["message"].as_str().map(|message| format!(": {message}")).unwrap_or_default();
    parts.join(", ") + &message
}

fn note_text(note: &Value) -> String {
    let executed = note["executed"].as_str().map(|executed| format!(" (executed {executed})")).unwrap_or_default();
    let said = note["note"].as_str().map(|said| format!(": {said}")).unwrap_or_default();
    format!("{} by {}: {}{executed}{said}", text(note, "at"), text(note, "by"), text(note, "action"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::clock::Wall;
    use crate::record::redact::Redactor;
    use crate::record::stored::Claim;
    use crate::record::test_values::letter;

    fn record() -> Record {
        Record::of(&letter("01A"), &Redactor::new(&["token".to_owned()])).0
    }

    #[test]
    fn everything_known_of_a_record_is_shown() {
        let claim = Claim { owner: "me".to_owned(), since: Wall(1), expires_at: Wall(2), sent_at: Some(Wall(1)) };
        let record = Record {
            claim: Some(claim),
            late_result: Some(r#"{"at":"x"}"#.to_owned()),
            redrives: 1,
            notes: r#"[{"at":"N","by":"me","action":"settle","executed":"yes","note":"because"}]"#.to_owned(),
            sealed: Some("v1.0123456789abcdef.AAAA".to_owned()),
            replays: r#"[{"at":"T","source":"replay","by":"me","outcome":"failed","executed":"maybe","duration_ms":7,"message":"late"}]"#
                .to_owned(),
            ..record()
        };
        let expected = "\
id:               01A
correlation_id:   c-01A
captured_at:      1970-01-01T00:00:05.000Z
caller:           local (stdio)
client:           editor 1
server:           files (npx '/my data' --token '[REDACTED]')
transport:        stdio
cwd:              /work
tool:             write_file
idempotent:       no
idempotency_key:  none
mid_conversation: no
arguments_hash:   800b857aac2a47be45cbf966aef063034ca49dacadccf943dac2b70ef26f27ea
arguments:        {\"path\":\"/srv/a\",\"n\":1.10,\"token\":\"[REDACTED]\"}
policy:           allow (default)
failure.class:    upstream_error
failure.message:  disk unavailable
failure.code:     -32000
failure.executed: maybe
failure.detail:   none
failure.attempts: 1
:                 #1 1970-01-01T00:00:01.000Z to 1970-01-01T00:00:04.000Z: upstream_error, executed maybe: disk unavailable (-32000)
late_result:      {\"at\":\"x\"}
replay.status:    pending
replay.claim:     me since 1970-01-01T00:00:00.001Z until 1970-01-01T00:00:00.002Z, sent 1970-01-01T00:00:00.001Z
replay.attempts:  1
:                 T by me: failed, executed maybe, 7 ms: late
replay.outcome:   null
replay.resolved:  none
replay.failures:  1
replay.notes:     1
:                 N by me: settle (executed yes): because
original:         sealed with the key 0123456789abcdef
";
        assert_eq!(render(&record), expected.replace("\n: ", "\n  "));
    }

    #[test]
    fn no_value_of_a_peer_breaks_out_of_its_line() {
        let record = Record { tool: "a\nreplay.status: replayed\u{1b}[2J".to_owned(), ..record() };
        assert!(render(&record).contains("\ntool:             a\\nreplay.status: replayed\\u{1b}[2J\n"));
    }
}
