//! What clients send.

use super::answer::{CREDENTIAL_REJECTED, OurError};
use super::batch::BatchOwner;
use super::event::{ClientId, Level};
use super::{BatchId, Dispatcher};
use crate::wire::json::{Json, Kind};
use crate::wire::message::{
    AnswerTo, FromClient, INVALID_REQUEST, Message, Method, Refusal, Role, Sniffed, sniff, sniff_tail,
};
use crate::wire::request_id::{IdKey, RequestId};
use crate::wire::splice::Edits;

/// The member of `_meta` that carries a client's credential; it ends here.
pub(super) const AUTHORIZATION: &str = "authorization";

impl Dispatcher {
    pub(super) fn client_frame(&mut self, client: ClientId, frame: FromClient) {
        match frame {
            FromClient::Message(message) => self.client_message(client, None, message),
            FromClient::Refused(refusal) => self.refuse(client, None, refusal),
            FromClient::Batch(members) => {
                let batch = self.batch_begun(BatchOwner::Client(client));
                for member in members {
                    match member {
                        Ok(message) => self.client_message(client, Some(batch), message),
                        Err(refusal) => self.refuse(client, Some(batch), refusal),
                    }
                }
                self.batch_read(batch);
            }
        }
    }

    pub(super) fn client_oversized(&mut self, client: ClientId, head: &[u8]) {
        let sniffed = sniff(head);
        if sniffed.id.is_some() {
            self.refuse_oversized(client, sniffed);
        } else if let Some(client) = self.clients.get_mut(&client) {
            client.oversized = Some(sniffed);
        }
    }

    pub(super) fn client_oversized_end(&mut self, client: ClientId, tail: &[u8]) {
        let pending = self.clients.get_mut(&client).and_then(|client| client.oversized.take());
        if let Some(sniffed) = pending {
            self.refuse_oversized(client, Sniffed { id: sniff_tail(tail), ..sniffed });
        }
    }

    fn refuse_oversized(&mut self, client: ClientId, sniffed: Sniffed) {
        let message = format!("frame longer than {} bytes (wire.frame_max_bytes)", self.settings.frame_bytes_max);
        let (to, response_to) = match sniffed.id {
            Some(id) if sniffed.has_method => (AnswerTo::Request(id), None),
            // A long request shows its method in its first bytes, as every writer puts it.
            Some(id) => (AnswerTo::Nobody, Some(id)),
            None => (AnswerTo::Unknown, None),
        };
        self.refuse(client, None, Refusal { code: INVALID_REQUEST, message, to, response_to });
    }

    fn client_message(&mut self, client: ClientId, batch: Option<BatchId>, message: Message) {
        match message.role.clone() {
            Role::Request { method, id } => self.client_request(client, batch, message, method, id),
            Role::Notification { method } => self.client_notification(client, message, method),
            Role::Response { id } => self.client_response(client, message, id.as_ref()),
        }
    }

    fn client_request(
        &mut self,
        client: ClientId,
        batch: Option<BatchId>,
        message: Message,
        method: Method,
        id: RequestId,
    ) {
        let identity = match self.settings.identities.resolve(authorization(message.params())) {
            Ok(identity) => identity.to_owned(),
            Err(_) if method == Method::ToolsCall => {
                self.call_rejected(client, batch, &message, &id);
                return;
            }
            Err(_) => {
                let text = "the credential in _meta.authorization is not known";
                self.refuse_with(
                    client,
                    batch,
                    &OurError::refused(CREDENTIAL_REJECTED, "unauthenticated", text),
                    id.raw(),
                );
                return;
            }
        };
        if self.settings.health.is_some()
            && let Some(upstream) = self.upstreams.get_mut(&self.clients[&client].upstream)
        {
            upstream.recorded.note_claim(message.params_meta());
        }
        match method {
            Method::ToolsCall => self.call_arrived(client, batch, message, id, identity),
            Method::ToolsList
            | Method::Initialize
            | Method::Discover
            | Method::Listen
            | Method::Cancelled
            | Method::Progress
            | Method::Other => self.pass_arrived(client, batch, message, id, method),
        }
    }

    fn client_notification(&mut self, client: ClientId, message: Message, method: Method) {
        let identity = match self.settings.identities.resolve(authorization(message.params())) {
            Ok(identity) => identity.to_owned(),
            Err(_) => {
                self.counters.rejected_notifications += 1;
                let name = message.method_name().unwrap_or_default().into_owned();
                self.diagnose(format!("dropped the notification {name:?}: its credential is not known"));
                return;
            }
        };
        match method {
            Method::Cancelled => self.client_cancels(client, &message),
            Method::ToolsCall => self.call_told(client, &message, identity),
            Method::ToolsList
            | Method::Initialize
            | Method::Discover
            | Method::Listen
            | Method::Progress
            | Method::Other => {
                let upstream = self.clients[&client].upstream;
                let is_initialized = message.method_name().as_deref() == Some("notifications/initialized");
                let bytes = stripped(message);
                let Some(found) = self.upstreams.get_mut(&upstream) else { return };
                if is_initialized {
                    found.recorded.note_initialized(bytes.clone());
                }
                // Between two lives nobody hears it; the next one hears what is recorded.
                if !found.is_between_lives() {
                    self.tell_upstream(upstream, bytes);
                } else if !is_initialized {
                    self.counters.unheard_notifications += 1;
                }
            }
        }
    }

    /// `notifications/cancelled`: withdraws an open request wherever it is, and tells the upstream by the id it knows.
    fn client_cancels(&mut self, client: ClientId, message: &Message) {
        let request_id = message.params().and_then(|params| params.member("requestId"));
        let key = request_id.and_then(IdKey::from_json);
        let found = key.and_then(|key| self.clients[&client].open.get(&key).copied());
        let (Some(request_id), Some(id)) = (request_id, found) else {
            self.counters.unknown_cancels += 1;
            return;
        };
        let open = &self.open[&id];
        let upstream = open.upstream;
        let on_wire = match &open.kind {
            super::OpenKind::Call(call) => call.attempt_on_wire(),
            // MCP lifecycle: a client must not cancel its initialize.
            super::OpenKind::Pass(pass) if pass.method == Method::Initialize => {
                self.counters.unknown_cancels += 1;
                return;
            }
            super::OpenKind::Pass(pass) => pass.sent,
        };
        if let Some(attempt) = on_wire {
            let mut edits = Edits::new();
            edits.replace(request_id.span_in(&message.bytes), attempt.0.to_string().into_bytes());
            strip_authorization(&mut edits, &message.bytes, message.params());
            let bytes = edits.apply(&message.bytes);
            self.tell_upstream(upstream, bytes);
        }
        if self.open[&id].is_call() { self.call_cancelled(id) } else { self.pass_cancelled(id) }
    }

    fn client_response(&mut self, client: ClientId, message: Message, id: Option<&RequestId>) {
        let upstream = self.clients[&client].upstream;
        let Some(id) = id else {
            // An error that names no request, such as a parse error of the client's: not ours to swallow.
            self.tell_upstream(upstream, stripped(message));
            return;
        };
        let Some(request) = self.upstream_request_answered(upstream, id) else {
            self.counters.unknown_answers += 1;
            return;
        };
        let mut edits = Edits::new();
        if let Some(span) = message.id_span {
            edits.replace(span, request.id.raw().to_vec());
        }
        strip_authorization(&mut edits, &message.bytes, message.result());
        let bytes = edits.apply(&message.bytes);
        self.answer_upstream(upstream, request.batch, bytes);
    }

    pub(super) fn client_outbox(&mut self, client: ClientId, level: Level) {
        if let Some(client) = self.clients.get_mut(&client) {
            client.outbox = level;
        }
        // Calls cannot be answered by an upstream that is not read: that time is not theirs.
        let unread = !self.intake().upstreams;
        let now = self.now.mono;
        let mut moved = false;
        for upstream in self.upstreams.values_mut() {
            moved |= upstream.set_unread(unread, now);
        }
        if moved {
            self.rearm();
        }
        if level == Level::Low {
            self.send_waiting();
        }
    }
}

/// `_meta.authorization` of `params` (or of a `result`).
pub(super) fn authorization(params: Option<Json<'_>>) -> Option<Json<'_>> {
    params?.member("_meta")?.member(AUTHORIZATION)
}

/// Takes the credential out of the `_meta` of `holder`, which is `params` or a `result`.
pub(super) fn strip_authorization(edits: &mut Edits<'_>, bytes: &[u8], holder: Option<Json<'_>>) {
    let meta = holder.and_then(|holder| holder.member("_meta")).filter(|meta| meta.kind() == Kind::Object);
    if let Some(meta) = meta
        && meta.member(AUTHORIZATION).is_some()
    {
        edits.edit_members(bytes, meta, &[AUTHORIZATION], &[]);
    }
}

/// The message as it goes on: its own bytes, without the credential.
pub(super) fn stripped(message: Message) -> Vec<u8> {
    let mut edits = Edits::new();
    strip_authorization(&mut edits, &message.bytes, message.params());
    strip_authorization(&mut edits, &message.bytes, message.result());
    if edits.is_empty() { message.bytes } else { edits.apply(&message.bytes) }
}
