//! Plain example values for tests.

use super::*;

/// A dead letter with a secret in its arguments and its command line.
pub(crate) fn letter(id: &str) -> DeadLetter {
    DeadLetter {
        id: id.to_owned(),
        correlation_id: format!("c-{id}"),
        captured_at: Wall(5_000),
        caller: Caller { transport: Transport::Stdio, identity: "local".to_owned() },
        server: Server {
            name: "files".to_owned(),
            transport: Transport::Stdio,
            argv: ["npx", "/my data", "--token", "abc"].map(str::to_owned).to_vec(),
            cwd: Some("/work".to_owned()),
        },
        client: Some(ClientInfo { name: "editor".to_owned(), version: "1".to_owned() }),
        tool: "write_file".to_owned(),
        arguments: Some(br#"{"path":"/srv/a","n":1.10,"token":"t"}"#.to_vec()),
        idempotency_key: None,
        mid_conversation: false,
        idempotent: false,
        class: FailureClass::UpstreamError,
        executed: Executed::Maybe,
        code: Some(-32000),
        message: "disk unavailable".to_owned(),
        detail: None,
        attempts: vec![Attempt {
            number: 1,
            started_at: Wall(1_000),
            ended_at: Wall(4_000),
            class: FailureClass::UpstreamError,
            executed: Executed::Maybe,
            code: Some(-32000),
            message: "disk unavailable".to_owned(),
        }],
        policy: PolicyNote { allowed: true, rule: None, reason: "default".to_owned() },
    }
}

/// A call that went well.
pub(crate) fn event(id: &str) -> CallEvent {
    CallEvent {
        id: id.to_owned(),
        at: Wall(5_000),
        correlation_id: format!("c-{id}"),
        trace: Vec::new(),
        caller: Caller { transport: Transport::Stdio, identity: "local".to_owned() },
        server: "files".to_owned(),
        tool: "write_file".to_owned(),
        decision: Decision::Allowed,
        latency_ms: 812,
        request_bytes: 203,
        response_bytes: 7,
        attempts: 1,
        error: None,
        dead_letter_id: None,
        enforced: true,
    }
}

/// The error of a failed call.
pub(crate) fn call_error(message: &str) -> CallError {
    CallError {
        message: message.to_owned(),
        code: Some(-32000),
        class: Some(FailureClass::UpstreamError),
        executed: Executed::Maybe,
        arguments: None,
    }
}

/// The audit row of a capture.
pub(crate) fn audit(id: &str, record: &str) -> AuditRow {
    AuditRow {
        id: id.to_owned(),
        at: Wall(5_000),
        kind: AuditKind::Captured,
        correlation_id: format!("c-{record}"),
        record_id: Some(record.to_owned()),
        caller: "local".to_owned(),
        tool: "write_file".to_owned(),
        detail: None,
    }
}
