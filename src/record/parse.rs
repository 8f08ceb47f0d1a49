//! A record read back from its one line of JSON: what the emergency file and the flight recorder hold.
//!
//! Texts that were JSON stay as they are written, so that numbers keep their spelling on the way into the queue.

use super::stored::{Claim, RECORD_VERSION, Record};
use super::{Caller, ClientInfo, Executed, FailureClass, PolicyNote, Server, Status, Transport};
use crate::clock::Wall;
use crate::wire::json::{Json, Kind};

impl Record {
    /// The record that [`Record::to_json`] wrote before anybody worked on it: its life begins at `pending`.
    ///
    /// # Errors
    /// In words: what is missing or wrong in the text, or that a newer version wrote it.
    pub fn from_json(line: &[u8]) -> Result<Record, String> {
        let json = Json::parse(line).map_err(|error| format!("{} at byte {}", error.what, error.at))?;
        let version = number::<u32>(at(json, "schema_version")?, "schema_version")?;
        if version > RECORD_VERSION {
            return Err(format!("a newer mcprelay wrote it (version {version}, this one knows {RECORD_VERSION})"));
        }
        let (caller, server, tool) = (at(json, "caller")?, at(json, "server")?, at(json, "tool")?);
        let (failure, policy) = (at(json, "failure")?, at(json, "policy")?);
        let captured_at = text(json, "captured_at")?;
        Ok(Record {
            version,
            id: text(json, "id")?,
            correlation_id: text(json, "correlation_id")?,
            captured_at: Wall::from_rfc3339(&captured_at).ok_or_else(|| wrong("captured_at"))?,
            caller: Caller { transport: word(caller, "type", Transport::parse)?, identity: text(caller, "identity")? },
            client: match optional(json, "client") {
                Some(client) => Some(ClientInfo { name: text(client, "name")?, version: text(client, "version")? }),
                None => None,
            },
            server: Server {
                name: text(server, "name")?,
                transport: word(server, "transport", Transport::parse)?,
                argv: at(server, "argv")?
                    .elements()
                    .map(|arg| arg.as_str().map(Into::into).ok_or_else(|| wrong("argv")))
                    .collect::<Result<_, _>>()?,
                cwd: optional_text(server, "cwd")?,
            },
            tool: text(tool, "name")?,
            arguments_hash: text(tool, "arguments_hash")?,
            arguments: optional(tool, "arguments").map(raw),
            idempotency_key: optional_text(json, "idempotency_key")?,
            mid_conversation: truth(tool, "mid_conversation")?,
            idempotent: truth(tool, "idempotent")?,
            class: word(failure, "class", FailureClass::parse)?,
            executed: word(failure, "executed", Executed::parse)?,
            code: optional(failure, "code").map(|code| number(code, "code")).transpose()?,
            message: text(failure, "message")?,
            detail: optional(failure, "detail").map(raw),
            attempts: number(at(failure, "attempts")?, "attempts")?,
            tries: raw(at(failure, "tries")?),
            policy: PolicyNote {
                allowed: text(policy, "decision")? == "allow",
                rule: optional(policy, "rule").map(|rule| number(rule, "rule")).transpose()?,
                reason: text(policy, "reason")?,
            },
            late_result: optional(json, "late_result").map(raw),
            status: Status::Pending,
            replays: "[]".to_owned(),
            last_outcome: None,
            resolved_at: None,
            redrives: 0,
            notes: "[]".to_owned(),
            sealed: optional_text(json, "sealed")?,
            claim: None,
        })
    }

    /// The record that [`Record::to_json`] wrote at any time of its life: what an export holds. Somebody's claim means
    /// nothing elsewhere, but that a replay was handed to the server and its outcome is not known stays so. What
    /// versions before wrote lacks members, which then are as in a new record.
    ///
    /// # Errors
    /// As [`Record::from_json`].
    pub fn from_export(line: &[u8]) -> Result<Record, String> {
        let mut record = Record::from_json(line)?;
        let json = Json::parse(line).map_err(|error| format!("{} at byte {}", error.what, error.at))?;
        let life = at(json, "replay")?;
        record.status = word(life, "status", Status::parse)?;
        record.replays = list(life, "attempts")?;
        record.last_outcome = optional(life, "last_outcome").map(raw);
        record.resolved_at = optional_time(life, "resolved_at")?;
        record.redrives = optional(life, "failures").map_or(Ok(0), |failures| number(failures, "failures"))?;
        if life.member("notes").is_some() {
            record.notes = list(life, "notes")?;
        }
        if record.status == Status::Replaying {
            record.claim = match optional(life, "claim") {
                Some(claim) => Some(Claim {
                    owner: text(claim, "owner")?,
                    since: optional_time(claim, "since")?.ok_or_else(|| wrong("since"))?,
                    expires_at: Wall(0),
                    sent_at: optional_time(claim, "sent_at")?,
                }),
                None => None,
            };
            if record.claim.as_ref().is_none_or(|claim| claim.sent_at.is_none()) {
                (record.status, record.claim) = (Status::Pending, None);
            }
        }
        Ok(record)
    }
}

fn wrong(name: &str) -> String {
    format!("the member {name} is missing or wrong")
}

fn at<'a>(json: Json<'a>, name: &str) -> Result<Json<'a>, String> {
    json.member(name).ok_or_else(|| wrong(name))
}

/// The member, unless it is absent or `null`.
fn optional<'a>(json: Json<'a>, name: &str) -> Option<Json<'a>> {
    json.member(name).filter(|value| value.kind() != Kind::Null)
}

fn text(json: Json<'_>, name: &str) -> Result<String, String> {
    at(json, name)?.as_str().map(Into::into).ok_or_else(|| wrong(name))
}

fn optional_text(json: Json<'_>, name: &str) -> Result<Option<String>, String> {
    optional(json, name).map(|value| value.as_str().map(Into::into).ok_or_else(|| wrong(name))).transpose()
}

fn optional_time(json: Json<'_>, name: &str) -> Result<Option<Wall>, String> {
    let text = optional_text(json, name)?;
    text.map(|text| Wall::from_rfc3339(&text).ok_or_else(|| wrong(name))).transpose()
}

fn list(json: Json<'_>, name: &str) -> Result<String, String> {
    let value = at(json, name)?;
    if value.kind() == Kind::Array { Ok(raw(value)) } else { Err(wrong(name)) }
}

fn word<T>(json: Json<'_>, name: &str, parse: impl Fn(&str) -> Option<T>) -> Result<T, String> {
    parse(&text(json, name)?).ok_or_else(|| wrong(name))
}

fn number<T: std::str::FromStr>(json: Json<'_>, name: &str) -> Result<T, String> {
    raw(json).parse().map_err(|_| wrong(name))
}

fn truth(json: Json<'_>, name: &str) -> Result<bool, String> {
    match at(json, name)?.kind() {
        Kind::True => Ok(true),
        Kind::False => Ok(false),
        Kind::Object | Kind::Array | Kind::String | Kind::Number | Kind::Null => Err(wrong(name)),
    }
}

fn raw(json: Json<'_>) -> String {
    // The walker has checked that it is UTF-8.
    String::from_utf8_lossy(json.text()).into_owned()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::record::redact::Redactor;
    use crate::record::test_values::letter;

    #[test]
    fn a_record_comes_back_as_it_was_written() {
        let redactor = Redactor::new(&["token".to_owned()]);
        let mut letter = letter("01A");
        letter.arguments = Some(r#"{"n":1.10,"big":1e400,"text":"\u00e4\n \ud800","token":"x"}"#.as_bytes().to_vec());
        letter.detail = Some(b"[1e5]".to_vec());
        letter.idempotency_key = Some("key \"1\"".to_owned());
        letter.policy.rule = Some(3);
        letter.message = "zwei\nZeilen".to_owned();
        let (record, _) = Record::of(&letter, &redactor);
        assert_eq!(Record::from_json(record.to_json().as_bytes()), Ok(record));

        (letter.arguments, letter.detail, letter.client, letter.code) = (None, None, None, None);
        (letter.server.cwd, letter.mid_conversation, letter.idempotent) = (None, true, true);
        letter.attempts.clear();
        let (record, _) = Record::of(&letter, &redactor);
        assert_eq!(Record::from_json(record.to_json().as_bytes()), Ok(record));
    }

    #[test]
    fn an_export_keeps_the_life_of_a_record_and_forgets_who_works_on_it() {
        let (record, _) = Record::of(&letter("01A"), &Redactor::new(&[]));
        let claim = |sent_at: Option<i64>| {
            let sent_at = sent_at.map(Wall);
            Some(Claim { owner: "me".to_owned(), since: Wall(1), expires_at: Wall(9), sent_at })
        };
        let lived = Record {
            status: Status::Parked,
            replays: r#"[{"at":"x","outcome":"failed"}]"#.to_owned(),
            last_outcome: Some(r#"{"ok":false,"n":1.10}"#.to_owned()),
            resolved_at: Some(Wall(7)),
            redrives: 5,
            notes: r#"[{"note":"ticket 7"}]"#.to_owned(),
            late_result: Some("{}".to_owned()),
            sealed: Some("v1.x".to_owned()),
            ..record.clone()
        };
        assert_eq!(Record::from_export(lived.to_json().as_bytes()), Ok(lived));
        let claimed = Record { status: Status::Replaying, claim: claim(None), ..record.clone() };
        assert_eq!(Record::from_export(claimed.to_json().as_bytes()), Ok(record.clone()), "nothing was sent");
        let unknown = Record { status: Status::Replaying, claim: claim(Some(5)), ..record.clone() };
        let read = Record::from_export(unknown.to_json().as_bytes()).expect("read");
        let kept = read.claim.expect("an outcome that nobody knows");
        assert_eq!((read.status, kept.sent_at, kept.expires_at), (Status::Replaying, Some(Wall(5)), Wall(0)));
        // As the first version wrote it.
        let first = record.to_json().replace(",\"failures\":0,\"notes\":[]", "").replace(",\"sealed\":null", "");
        assert!(!first.contains("notes"));
        assert_eq!(Record::from_export(first.as_bytes()), Ok(record));
    }

    #[test]
    fn a_line_cut_anywhere_is_refused_and_so_is_a_newer_form() {
        let line = Record::of(&letter("01A"), &Redactor::new(&[])).0.to_json();
        for end in 0..line.len() {
            assert!(Record::from_json(&line.as_bytes()[..end]).is_err(), "{}", &line[..end]);
        }
        let newer = line.replace("\"schema_version\":1,", "\"schema_version\":2,");
        assert!(Record::from_json(newer.as_bytes()).expect_err("refused").contains("newer"));
    }
}
