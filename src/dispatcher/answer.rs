//! The errors we make, and the way every answer takes to its asker.

use super::circuit::CircuitNote;
use super::event::{Action, ClientId};
use super::{BatchId, Dispatcher, Open, OpenId};
use crate::record::Executed;
use crate::wire::message::{AnswerTo, INTERNAL_ERROR, Refusal};
use crate::wire::request_id::RequestId;
use crate::wire::splice::quote;

/// A call or request that policy does not let through.
pub(super) const DENIED: i64 = -32001;

/// A credential that is not known.
pub(super) const CREDENTIAL_REJECTED: i64 = -32003;

/// An error of ours, before it has an id.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct OurError {
    pub(super) code: i64,
    pub(super) message: String,
    /// `data.mcprelay.class`: the mark by which an agent tells our errors from the upstream's.
    pub(super) class: &'static str,
    pub(super) executed: Executed,
    pub(super) attempts: u32,
    pub(super) correlation_id: Option<String>,
    pub(super) dead_letter_id: Option<String>,
    pub(super) circuit: Option<CircuitNote>,
}

impl OurError {
    /// An error about something that never became a call.
    pub(super) fn refused(code: i64, class: &'static str, message: impl Into<String>) -> OurError {
        OurError {
            code,
            message: message.into(),
            class,
            executed: Executed::No,
            attempts: 0,
            correlation_id: None,
            dead_letter_id: None,
            circuit: None,
        }
    }

    /// A passed-on request that the upstream can no longer answer.
    pub(super) fn upstream_closed(message: &str, executed: Executed) -> OurError {
        OurError { executed, attempts: 1, ..OurError::refused(INTERNAL_ERROR, "upstream_closed", message) }
    }

    /// The whole response; `id` is JSON text.
    pub(super) fn frame(&self, id: &[u8]) -> Vec<u8> {
        let mut out = b"{\"jsonrpc\":\"2.0\",\"id\":".to_vec();
        out.extend_from_slice(id);
        out.extend_from_slice(format!(",\"error\":{{\"code\":{},\"message\":", self.code).as_bytes());
        out.extend_from_slice(&quote(&self.message));
        out.extend_from_slice(
            format!(
                ",\"data\":{{\"mcprelay\":{{\"class\":\"{}\",\"attempts\":{},\"executed\":\"{}\"",
                self.class,
                self.attempts,
                self.executed.as_str()
            )
            .as_bytes(),
        );
        for (name, value) in [("correlation_id", &self.correlation_id), ("dead_letter_id", &self.dead_letter_id)] {
            if let Some(value) = value {
                out.extend_from_slice(format!(",\"{name}\":").as_bytes());
                out.extend_from_slice(&quote(value));
            }
        }
        if let Some(circuit) = &self.circuit {
            let (scope, until, wait) = (circuit.scope, circuit.until.to_rfc3339(), circuit.wait.as_millis());
            out.extend_from_slice(
                format!(",\"circuit\":{{\"scope\":\"{scope}\",\"until\":\"{until}\",\"retry_after_ms\":{wait}}}")
                    .as_bytes(),
            );
        }
        out.extend_from_slice(b"}}}}");
        out
    }
}

impl Dispatcher {
    /// Gives `client` an answer, alone or as a member of its batch.
    pub(super) fn answer_client(&mut self, client: ClientId, batch: Option<BatchId>, bytes: Vec<u8>) {
        match batch {
            Some(batch) => self.batch_answered(batch, Some(bytes)),
            None => self.actions.push(Action::ToClient { client, bytes }),
        }
    }

    /// Refuses a message of `client`.
    pub(super) fn refuse(&mut self, client: ClientId, batch: Option<BatchId>, refusal: Refusal) {
        self.counters.refused_frames += 1;
        let class = if refusal.code == crate::wire::message::PARSE_ERROR { "parse_error" } else { "invalid_request" };
        let error = OurError::refused(refusal.code, class, refusal.message);
        self.diagnose(format!("refused a frame of the client: {}", error.message));
        match refusal.to {
            AnswerTo::Nobody => {}
            AnswerTo::Unknown => self.refuse_with(client, batch, &error, b"null"),
            AnswerTo::Request(id) => self.refuse_with(client, batch, &error, id.raw()),
        }
        if let Some(id) = refusal.response_to {
            let text = format!("the client's answer is invalid: {}", error.message);
            self.fail_upstream_request(client, &id, &text);
        }
    }

    /// Answers a message that never became an open request.
    pub(super) fn refuse_with(&mut self, client: ClientId, batch: Option<BatchId>, error: &OurError, id: &[u8]) {
        if let Some(batch) = batch {
            self.batch_member(batch);
        }
        self.answer_client(client, batch, error.frame(id));
    }

    /// Ends an open request: with an answer, or without one if it was withdrawn.
    pub(super) fn close(&mut self, id: OpenId, answer: Option<Vec<u8>>) {
        if let Some(open) = self.take_open(id) {
            self.answer_taken(&open, answer);
        }
    }

    /// Takes an open request out of every place that knows it. Its asker still waits.
    pub(super) fn take_open(&mut self, id: OpenId) -> Option<Open> {
        let open = self.open.remove(&id)?;
        if let Some(client) = self.clients.get_mut(&open.client)
            && client.open.get(open.id.key()) == Some(&id)
        {
            client.open.remove(open.id.key());
        }
        if let Some(upstream) = self.upstreams.get_mut(&open.upstream) {
            upstream.waiting.leave(id);
        }
        Some(open)
    }

    /// The last word to whoever asked: an answer, or none if the request was withdrawn.
    pub(super) fn answer_taken(&mut self, open: &Open, answer: Option<Vec<u8>>) {
        match (open.batch, answer) {
            (Some(batch), answer) => self.batch_answered(batch, answer),
            (None, Some(bytes)) => self.actions.push(Action::ToClient { client: open.client, bytes }),
            (None, None) => {}
        }
    }

    /// The bytes by which the client knows an open request.
    pub(super) fn id_of(&self, id: OpenId) -> Option<&RequestId> {
        self.open.get(&id).map(|open| &open.id)
    }
}
