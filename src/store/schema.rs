//! The tables. Times are milliseconds since 1970, so that ranges compare as numbers; JSON is kept as text.

/// One kind of database file.
#[derive(Debug)]
pub(super) struct Schema {
    /// What people call it.
    pub(super) name: &'static str,
    /// `PRAGMA application_id`: keeps a queue from being opened as a history, and both apart from other programs' files.
    pub(super) application_id: i32,
    /// What leads from each version to the next; the number of entries is the version this program knows.
    pub(super) migrations: &'static [&'static str],
    /// Whether every commit must survive a power loss.
    pub(super) durable: bool,
}

/// Dead letters and the index of executions.
pub(super) const QUEUE: Schema = Schema {
    name: "queue",
    application_id: 0x6D63_7271,
    migrations: &[
        "
CREATE TABLE failures (
    id                TEXT PRIMARY KEY,
    schema_version    INTEGER NOT NULL,
    correlation_id    TEXT NOT NULL,
    captured_at       INTEGER NOT NULL,
    caller_type       TEXT NOT NULL,
    caller_identity   TEXT NOT NULL,
    client_name       TEXT,
    client_version    TEXT,
    server_name       TEXT NOT NULL,
    server_transport  TEXT NOT NULL,
    server_argv       TEXT NOT NULL,
    server_cwd        TEXT,
    tool_name         TEXT NOT NULL,
    arguments_hash    TEXT NOT NULL,
    arguments         TEXT,
    idempotency_key   TEXT,
    idempotent        INTEGER NOT NULL,
    mid_conversation  INTEGER NOT NULL,
    failure_class     TEXT NOT NULL,
    failure_executed  TEXT NOT NULL,
    failure_code      INTEGER,
    failure_message   TEXT NOT NULL,
    failure_detail    TEXT,
    failure_attempts  INTEGER NOT NULL,
    failure_tries     TEXT NOT NULL,
    policy_allowed    INTEGER NOT NULL,
    policy_rule       INTEGER,
    policy_reason     TEXT NOT NULL,
    late_result       TEXT,
    replay_status     TEXT NOT NULL DEFAULT 'pending',
    replay_attempts   TEXT NOT NULL DEFAULT '[]',
    replay_failures   INTEGER NOT NULL DEFAULT 0,
    last_outcome      TEXT,
    resolved_at       INTEGER,
    claim_owner       TEXT,
    claimed_at        INTEGER,
    claim_expires_at  INTEGER,
    claim_sent_at     INTEGER,
    claim_status      TEXT
);
CREATE INDEX failures_tool ON failures (tool_name);
CREATE INDEX failures_correlation ON failures (correlation_id);
CREATE INDEX failures_captured_at ON failures (captured_at);
CREATE INDEX failures_replay_status ON failures (replay_status, id);
CREATE TABLE executions (
    server_name     TEXT NOT NULL,
    tool_name       TEXT NOT NULL,
    key             TEXT,
    arguments_hash  TEXT NOT NULL,
    executed_at     INTEGER NOT NULL,
    source          TEXT NOT NULL
);
CREATE UNIQUE INDEX executions_key ON executions (server_name, tool_name, key) WHERE key IS NOT NULL;
CREATE UNIQUE INDEX executions_unkeyed ON executions (server_name, tool_name, arguments_hash) WHERE key IS NULL;
CREATE INDEX executions_hash ON executions (server_name, tool_name, arguments_hash);
",
        "
-- What the report tells of the queue, without a look at the records themselves, which can be large.
DROP INDEX failures_tool;
CREATE INDEX failures_health ON failures
    (tool_name, failure_class, replay_status, server_name, caller_identity, captured_at);
",
        "
ALTER TABLE failures ADD COLUMN notes TEXT NOT NULL DEFAULT '[]';
ALTER TABLE failures ADD COLUMN sealed TEXT;
-- Each gives the records of one filter in the order of lists and redrives, so that a page of millions needs no sorting.
CREATE INDEX failures_by_tool ON failures (tool_name, id);
CREATE INDEX failures_by_server ON failures (server_name, id);
CREATE INDEX failures_by_caller ON failures (caller_identity, id);
CREATE INDEX failures_by_class ON failures (failure_class, id);
CREATE INDEX failures_sealed ON failures (id) WHERE sealed IS NOT NULL;
",
    ],
    durable: true,
};

/// The audit trail and the call events.
pub(super) const HISTORY: Schema = Schema {
    name: "history",
    application_id: 0x6D63_7268,
    migrations: &[
        "
CREATE TABLE audit (
    seq             INTEGER PRIMARY KEY AUTOINCREMENT,
    id              TEXT NOT NULL UNIQUE,
    at              INTEGER NOT NULL,
    kind            TEXT NOT NULL,
    correlation_id  TEXT NOT NULL,
    failure_id      TEXT,
    caller          TEXT NOT NULL,
    tool_name       TEXT NOT NULL,
    detail          TEXT,
    previous_hash   TEXT NOT NULL
);
CREATE INDEX audit_correlation ON audit (correlation_id);
CREATE INDEX audit_failure ON audit (failure_id);
CREATE TABLE call_events (
    id               TEXT PRIMARY KEY,
    at               INTEGER NOT NULL,
    correlation_id   TEXT NOT NULL,
    caller_type      TEXT NOT NULL,
    caller_identity  TEXT NOT NULL,
    server           TEXT NOT NULL,
    tool             TEXT NOT NULL,
    decision         TEXT NOT NULL,
    class            TEXT,
    executed         TEXT,
    latency_ms       INTEGER NOT NULL,
    request_bytes    INTEGER NOT NULL,
    response_bytes   INTEGER NOT NULL,
    attempt          INTEGER NOT NULL,
    dead_letter_id   TEXT
) WITHOUT ROWID;
CREATE INDEX call_events_at ON call_events (at);
",
        "
-- Events are kept in the order of their time: a report reads one stretch of the file, pruning deletes one, and no index
-- is needed beside the table. What the report reads stands first.
DROP INDEX call_events_at;
ALTER TABLE call_events RENAME TO call_events_by_id;
CREATE TABLE call_events (
    at               INTEGER NOT NULL,
    id               TEXT NOT NULL,
    caller_identity  TEXT NOT NULL,
    server           TEXT NOT NULL,
    tool             TEXT NOT NULL,
    decision         TEXT NOT NULL,
    class            TEXT,
    executed         TEXT,
    latency_ms       INTEGER NOT NULL,
    request_bytes    INTEGER NOT NULL,
    response_bytes   INTEGER NOT NULL,
    attempt          INTEGER NOT NULL,
    caller_type      TEXT NOT NULL,
    correlation_id   TEXT NOT NULL,
    dead_letter_id   TEXT,
    PRIMARY KEY (at, id)
) WITHOUT ROWID;
INSERT INTO call_events
    SELECT at, id, caller_identity, server, tool, decision, class, executed, latency_ms, request_bytes, response_bytes,
        attempt, caller_type, correlation_id, dead_letter_id
    FROM call_events_by_id ORDER BY at, id;
DROP TABLE call_events_by_id;
CREATE INDEX audit_kind ON audit (kind, at);
",
    ],
    durable: false,
};
