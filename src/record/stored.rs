//! The dead letter as it is stored: redacted, with its life after the capture.

use super::hash::{arguments_hash, sha256_hex};
use super::json_out::{Object, array, object, object_of, string};
use super::redact::{Masked, Redactor};
use super::seal::{Keyring, NONCE_BYTES};
use super::shell::command_line;
use super::{
    Attempt, Caller, ClientInfo, DeadLetter, Executed, FailureClass, LateResult, PolicyNote, Server, Status, Transport,
};
use crate::clock::Wall;

/// The version of the stored record's form; it goes up when a member changes its meaning.
pub const RECORD_VERSION: u32 = 1;

/// Who works on a record right now, or did so last without ending it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Claim {
    /// The token of the one who works on it.
    pub owner: String,
    /// Since when.
    pub since: Wall,
    /// When others may take it over.
    pub expires_at: Wall,
    /// When the call was handed to the server; `None` if it certainly was not yet.
    pub sent_at: Option<Wall>,
}

/// One record of the queue, as read from it or about to be written. Everything in it is redacted.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Record {
    /// The form this record was written in ([`RECORD_VERSION`]).
    pub version: u32,
    /// ULID.
    pub id: String,
    /// UUID of the call.
    pub correlation_id: String,
    /// When the call was given up.
    pub captured_at: Wall,
    /// Who called.
    pub caller: Caller,
    /// Which client, if it told.
    pub client: Option<ClientInfo>,
    /// Which server; secrets in `argv` are masked.
    pub server: Server,
    /// The tool's name.
    pub tool: String,
    /// Hash of the arguments as they were sent, before redaction.
    pub arguments_hash: String,
    /// The JSON text of the arguments, masked by splice; `None` if the call had none.
    pub arguments: Option<String>,
    /// The idempotency key in the form of [`stored_key`].
    pub idempotency_key: Option<String>,
    /// The call means nothing outside its conversation.
    pub mid_conversation: bool,
    /// Whether the configuration called the tool idempotent.
    pub idempotent: bool,
    /// Why it failed.
    pub class: FailureClass,
    /// Whether it ran; settled later by a late answer or a person.
    pub executed: Executed,
    /// The JSON-RPC error code the client got.
    pub code: Option<i64>,
    /// What went wrong.
    pub message: String,
    /// The JSON text of the upstream's `error.data` or the tool's own `content`.
    pub detail: Option<String>,
    /// How many tries were made.
    pub attempts: u32,
    /// The JSON text of the list of tries.
    pub tries: String,
    /// What the policy said.
    pub policy: PolicyNote,
    /// The JSON text of an answer that came after the call was given up.
    pub late_result: Option<String>,
    /// Where the record is in its life.
    pub status: Status,
    /// The JSON text of the list of replays.
    pub replays: String,
    /// The JSON text of the last replay's outcome.
    pub last_outcome: Option<String>,
    /// When the record reached a final status.
    pub resolved_at: Option<Wall>,
    /// Replays that failed since the record was captured or opened again.
    pub redrives: u32,
    /// The JSON text of the list of what people decided about it: `{at, by, action, …, note}`.
    pub notes: String,
    /// The arguments as they were sent, sealed ([`super::seal`]); `None` if nothing in them was masked, or without a key.
    pub sealed: Option<String>,
    /// Who works on it.
    pub claim: Option<Claim>,
}

impl Record {
    /// The record of a dead letter, and what was masked in its arguments and command line.
    #[must_use]
    pub fn of(letter: &DeadLetter, redactor: &Redactor) -> (Record, Masked) {
        let (arguments, mut masked) = redacted_arguments(letter, redactor);
        masked.merge(&redactor.collect_argv(&letter.server.argv));
        let argv = redactor.redact_argv_with(&letter.server.argv, &masked);
        let hash = arguments_hash(letter.arguments.as_deref());
        (Record::build(letter, redactor, arguments, &masked, argv, hash), masked)
    }

    /// The record of a call that may well end without one. It costs less: a command line that was masked before is not
    /// masked again, and the hash is left empty where it can be had later from the arguments that the record keeps
    /// ([`Record::complete`]).
    #[must_use]
    pub fn of_open(letter: &DeadLetter, redactor: &Redactor, known: &mut Option<KnownCommand>) -> Record {
        let (arguments, mut masked) = redacted_arguments(letter, redactor);
        let known = match known {
            Some(known) if known.argv == letter.server.argv => known,
            _ => known.insert(KnownCommand::of(&letter.server.argv, redactor)),
        };
        let argv = if masked.is_empty() {
            known.redacted.clone()
        } else {
            masked.merge(&known.masked);
            redactor.redact_argv_with(&letter.server.argv, &masked)
        };
        let masked = if masked.is_empty() { &known.masked } else { &masked };
        let whole = arguments.as_deref().map(str::as_bytes) == letter.arguments.as_deref();
        let hash = if whole { String::new() } else { arguments_hash(letter.arguments.as_deref()) };
        Record::build(letter, redactor, arguments, masked, argv, hash)
    }

    /// Adds what [`Record::of_open`] left out.
    pub fn complete(&mut self) {
        if self.arguments_hash.is_empty() {
            self.arguments_hash = arguments_hash(self.arguments.as_deref().map(str::as_bytes));
        }
    }

    fn build(
        letter: &DeadLetter,
        redactor: &Redactor,
        arguments: Option<String>,
        masked: &Masked,
        argv: Vec<String>,
        arguments_hash: String,
    ) -> Record {
        let idempotency_key = letter.idempotency_key.as_deref().map(|key| stored_key(key, redactor, masked));
        let detail = letter.detail.as_deref().map(|detail| utf8(redactor.redact_json_with(detail, masked)));
        let policy =
            PolicyNote { reason: redactor.redact_text(&letter.policy.reason, masked), ..letter.policy.clone() };
        let server = Server {
            name: letter.server.name.clone(),
            transport: letter.server.transport,
            argv,
            cwd: letter.server.cwd.clone(),
        };
        Record {
            version: RECORD_VERSION,
            id: letter.id.clone(),
            correlation_id: letter.correlation_id.clone(),
            captured_at: letter.captured_at,
            caller: letter.caller.clone(),
            client: letter.client.clone(),
            server,
            tool: letter.tool.clone(),
            arguments_hash,
            arguments,
            idempotency_key,
            mid_conversation: letter.mid_conversation,
            idempotent: letter.idempotent,
            class: letter.class,
            executed: letter.executed,
            code: letter.code,
            message: redactor.redact_text(&letter.message, masked),
            detail,
            attempts: u32::try_from(letter.attempts.len()).unwrap_or(u32::MAX),
            tries: array(letter.attempts.iter().map(|attempt| attempt_json(attempt, redactor, masked))),
            policy,
            late_result: None,
            status: Status::Pending,
            replays: "[]".to_owned(),
            last_outcome: None,
            resolved_at: None,
            redrives: 0,
            notes: "[]".to_owned(),
            sealed: None,
            claim: None,
        }
    }

    /// The record of a dead letter, and what was masked in it, with the original of the arguments sealed if they lost
    /// anything. `nonce` is asked for one only if it is needed; without one nothing is sealed.
    #[must_use]
    pub fn sealed_of(
        letter: &DeadLetter,
        redactor: &Redactor,
        keys: &Keyring,
        nonce: impl FnOnce() -> Option<[u8; NONCE_BYTES]>,
    ) -> (Record, Masked) {
        let (mut record, masked) = Record::of(letter, redactor);
        if let Some(original) = &letter.arguments
            && keys.can_seal()
            && record.arguments.as_ref().is_some_and(|kept| kept.as_bytes() != original.as_slice())
        {
            record.sealed = nonce().and_then(|nonce| keys.seal(&record.id, original, nonce));
        }
        (record, masked)
    }

    /// The server's command as one shell line, or its URL as it is.
    #[must_use]
    pub fn command(&self) -> String {
        match self.server.transport {
            Transport::Stdio => command_line(&self.server.argv),
            Transport::Http => self.server.argv.join(" "),
        }
    }

    /// The record as one line of JSON: the members and order of the failure record, then what later versions added.
    #[must_use]
    pub fn to_json(&self) -> String {
        let texts = [&self.arguments, &self.detail, &self.late_result];
        let bytes = 2_048 + texts.into_iter().flatten().map(String::len).sum::<usize>();
        object_of(bytes, |out| {
            out.text("id", &self.id)
                .text("correlation_id", &self.correlation_id)
                .text("captured_at", &self.captured_at.to_rfc3339())
                .object("caller", |out| {
                    out.text("type", self.caller.transport.as_str()).text("identity", &self.caller.identity);
                })
                .object("server", |out| {
                    out.text("name", &self.server.name)
                        .text("command", &self.command())
                        .text("transport", self.server.transport.as_str())
                        .raw("argv", &array(self.server.argv.iter().map(|arg| string(arg))));
                    opt(out, "cwd", self.server.cwd.as_deref().map(string));
                })
                .object("tool", |out| {
                    out.text("name", &self.tool).text("arguments_hash", &self.arguments_hash);
                    opt(out, "arguments", self.arguments.clone());
                    out.plain("idempotent", self.idempotent).plain("mid_conversation", self.mid_conversation);
                })
                .object("failure", |out| {
                    out.text("class", self.class.as_str())
                        .text("message", &self.message)
                        .plain("attempts", self.attempts)
                        .text("executed", self.executed.as_str());
                    opt(out, "code", self.code.map(|code| code.to_string()));
                    opt(out, "detail", self.detail.clone());
                    out.raw("tries", &self.tries);
                })
                .object("replay", |out| {
                    out.text("status", self.status.as_str()).raw("attempts", &self.replays);
                    opt(out, "last_outcome", self.last_outcome.clone());
                    opt(out, "resolved_at", self.resolved_at.map(|at| string(&at.to_rfc3339())));
                    opt(out, "claim", self.claim.as_ref().map(claim_json));
                    out.plain("failures", self.redrives).raw("notes", &self.notes);
                });
            opt(out, "client", self.client.as_ref().map(client_json));
            out.object("policy", |out| {
                out.text("decision", if self.policy.allowed { "allow" } else { "deny" });
                opt(out, "rule", self.policy.rule.map(|rule| rule.to_string()));
                out.text("reason", &self.policy.reason);
            });
            opt(out, "idempotency_key", self.idempotency_key.as_deref().map(string));
            opt(out, "late_result", self.late_result.clone());
            out.plain("schema_version", self.version);
            opt(out, "sealed", self.sealed.as_deref().map(string));
        })
    }
}

/// A command line that was masked before: it is the same from call to call.
#[derive(Clone, Debug)]
pub struct KnownCommand {
    argv: Vec<String>,
    masked: Masked,
    redacted: Vec<String>,
}

impl KnownCommand {
    fn of(argv: &[String], redactor: &Redactor) -> KnownCommand {
        let masked = redactor.collect_argv(argv);
        KnownCommand { argv: argv.to_vec(), redacted: redactor.redact_argv_with(argv, &masked), masked }
    }
}

fn redacted_arguments(letter: &DeadLetter, redactor: &Redactor) -> (Option<String>, Masked) {
    match &letter.arguments {
        Some(text) => {
            let (text, masked) = redactor.redact_json(text);
            (Some(utf8(text)), masked)
        }
        None => (None, Masked::none()),
    }
}

/// The form in which an idempotency key is stored and compared: the key itself, or `sha256:` and its hash if the key
/// is a secret by the patterns. A hash still tells equal keys from others; it cannot be sent again.
#[must_use]
pub fn stored_key(key: &str, redactor: &Redactor, masked: &Masked) -> String {
    if redactor.is_secret_name("idempotency_key") || masked.is_whole(key.as_bytes()) {
        return format!("sha256:{}", sha256_hex(key.as_bytes()));
    }
    key.to_owned()
}

/// The stored form of a late answer: `{at, success, executed, body}`.
#[must_use]
pub fn late_json(late: &LateResult, redactor: &Redactor, masked: &Masked) -> String {
    object(|out| {
        out.text("at", &late.at.to_rfc3339())
            .plain("success", late.success)
            .text("executed", late.executed.as_str())
            .raw("body", &utf8(redactor.redact_json_with(&late.body, masked)));
    })
}

fn attempt_json(attempt: &Attempt, redactor: &Redactor, masked: &Masked) -> String {
    object(|out| {
        out.plain("number", attempt.number)
            .text("started_at", &attempt.started_at.to_rfc3339())
            .text("ended_at", &attempt.ended_at.to_rfc3339())
            .text("class", attempt.class.as_str())
            .text("executed", attempt.executed.as_str());
        opt(out, "code", attempt.code.map(|code| code.to_string()));
        out.text("message", &redactor.redact_text(&attempt.message, masked));
    })
}

fn client_json(client: &ClientInfo) -> String {
    object(|out| {
        out.text("name", &client.name).text("version", &client.version);
    })
}

fn claim_json(claim: &Claim) -> String {
    object(|out| {
        out.text("owner", &claim.owner)
            .text("since", &claim.since.to_rfc3339())
            .text("expires_at", &claim.expires_at.to_rfc3339());
        opt(out, "sent_at", claim.sent_at.map(|at| string(&at.to_rfc3339())));
    })
}

fn opt(out: &mut Object, name: &str, json: Option<String>) {
    match json {
        Some(json) => out.raw(name, &json),
        None => out.null(name),
    };
}

fn utf8(text: Vec<u8>) -> String {
    String::from_utf8(text).unwrap_or_else(|error| String::from_utf8_lossy(error.as_bytes()).into_owned())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::record::test_values::letter;

    fn redactor() -> Redactor {
        Redactor::new(&["token".to_owned(), "password".to_owned()])
    }

    #[test]
    fn a_record_has_the_documented_members_in_their_order() {
        let (record, _) = Record::of(&letter("01A"), &redactor());
        assert_eq!(
            record.to_json(),
            concat!(
                r#"{"id":"01A","correlation_id":"c-01A","captured_at":"1970-01-01T00:00:05.000Z","#,
                r#""caller":{"type":"stdio","identity":"local"},"#,
                r#""server":{"name":"files","command":"npx '/my data' --token '[REDACTED]'","transport":"stdio","#,
                r#""argv":["npx","/my data","--token","[REDACTED]"],"cwd":"/work"},"#,
                r#""tool":{"name":"write_file","arguments_hash":"800b857aac2a47be45cbf966aef063034ca49dacadccf943dac2b70ef26f27ea","#,
                r#""arguments":{"path":"/srv/a","n":1.10,"token":"[REDACTED]"},"idempotent":false,"mid_conversation":false},"#,
                r#""failure":{"class":"upstream_error","message":"disk unavailable","attempts":1,"executed":"maybe","code":-32000,"#,
                r#""detail":null,"tries":[{"number":1,"started_at":"1970-01-01T00:00:01.000Z","ended_at":"1970-01-01T00:00:04.000Z","#,
                r#""class":"upstream_error","executed":"maybe","code":-32000,"message":"disk unavailable"}]},"#,
                r#""replay":{"status":"pending","attempts":[],"last_outcome":null,"resolved_at":null,"claim":null,"failures":0,"notes":[]},"#,
                r#""client":{"name":"editor","version":"1"},"policy":{"decision":"allow","rule":null,"reason":"default"},"#,
                r#""idempotency_key":null,"late_result":null,"schema_version":1,"sealed":null}"#
            )
        );
        serde_json::from_str::<serde_json::Value>(&record.to_json()).expect("valid JSON");
    }

    #[test]
    fn dlq_1_a_secret_of_the_arguments_or_the_command_line_is_masked_in_the_whole_record() {
        let mut letter = letter("01A");
        letter.arguments = Some(br#"{"password":"s3cr3t-S","pins":[1]}"#.to_vec());
        letter.server.argv.push("--token=argvSecret9".to_owned());
        letter.message = "invalid token s3cr3t-S for user".to_owned();
        letter.detail = Some(br#"{"echo":["s3cr3t-S","argvSecret9"],"n":1e5}"#.to_vec());
        letter.attempts[0].message = "first s3cr3t-S".to_owned();
        letter.policy.reason = "rule saw s3cr3t-S".to_owned();
        letter.idempotency_key = Some("s3cr3t-S".to_owned());
        let (record, masked) = Record::of(&letter, &redactor());
        let json = record.to_json();
        assert!(!json.contains("s3cr3t-S") && !json.contains("argvSecret9"), "{json}");
        assert!(json.contains(r#"{"echo":["[REDACTED]","[REDACTED]"],"n":1e5}"#), "{json}");
        let late = LateResult {
            record_id: "01A".to_owned(),
            at: Wall(0),
            executed: Executed::Yes,
            success: true,
            body: br#"{"content":[{"type":"text","text":"ok s3cr3t-S"}]}"#.to_vec(),
        };
        let late = late_json(&late, &redactor(), &masked);
        assert!(late.contains(r#""body":{"content":[{"type":"text","text":"ok [REDACTED]"}]}"#), "{late}");
    }

    #[test]
    fn a_secret_idempotency_key_is_stored_as_its_hash_and_still_tells_keys_apart() {
        let open = redactor();
        let closed = Redactor::new(&["idempotency".to_owned()]);
        assert_eq!(stored_key("order-1", &open, &Masked::none()), "order-1");
        let one = stored_key("order-1", &closed, &Masked::none());
        assert!(one.starts_with("sha256:") && one == stored_key("order-1", &closed, &Masked::none()));
        assert_ne!(one, stored_key("order-2", &closed, &Masked::none()));
    }

    #[test]
    fn the_record_of_an_open_call_is_the_same_once_it_is_complete() {
        let redactor = redactor();
        let mut known = None;
        let mut letter = letter("01A");
        let arguments = [
            Some(br#"{"path":"/srv/a","n":1.10}"#.to_vec()),
            Some(br#"{"token":"/my data","n":1}"#.to_vec()),
            Some(br#"{"pin":"x","token":"ab"}"#.to_vec()),
            None,
        ];
        for (arguments, words) in
            arguments.into_iter().zip([vec!["npx"], vec!["npx"], vec!["node", "/my data"], vec!["npx"]])
        {
            letter.arguments = arguments;
            letter.server.argv = words.into_iter().chain(["--token", "abcdef"]).map(str::to_owned).collect();
            letter.policy.reason = "abcdef".to_owned();
            let mut open = Record::of_open(&letter, &redactor, &mut known);
            open.complete();
            assert_eq!(open, Record::of(&letter, &redactor).0);
        }
    }

    #[test]
    fn only_what_redaction_took_something_from_is_sealed() {
        use crate::record::seal::{KEY_BYTES, SealKey};
        let keys = Keyring::new(Some(SealKey::new(&[1; KEY_BYTES])), Vec::new());
        let letter = letter("01A");
        let (record, _) = Record::sealed_of(&letter, &redactor(), &keys, || Some([7; NONCE_BYTES]));
        let sealed = record.sealed.as_deref().expect("the token was masked");
        assert_eq!(keys.open("01A", sealed).ok(), letter.arguments, "byte for byte");
        assert!(record.to_json().ends_with(&format!(",\"sealed\":\"{sealed}\"}}")));
        let unmasked = Redactor::new(&[]);
        let unused = || -> Option<[u8; NONCE_BYTES]> { panic!("no nonce is needed") };
        assert_eq!(Record::sealed_of(&letter, &unmasked, &keys, unused).0.sealed, None);
        assert_eq!(Record::sealed_of(&letter, &redactor(), &Keyring::default(), unused).0.sealed, None);
        assert_eq!(Record::sealed_of(&letter, &redactor(), &keys, || None).0.sealed, None, "no randomness");
    }

    #[test]
    fn absent_arguments_are_null() {
        let mut letter = letter("01A");
        letter.arguments = None;
        assert!(Record::of(&letter, &redactor()).0.to_json().contains(r#""arguments":null,"#));
    }
}
