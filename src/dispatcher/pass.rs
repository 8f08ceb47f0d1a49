//! Requests other than `tools/call`: passed on, answered once, without a timeout of ours.

use super::answer::OurError;
use super::event::{AttemptId, ClientId};
use super::late::LateOwner;
use super::recorded::{Frame, Keep, lists_asked_for};
use super::{BatchId, Dispatcher, Open, OpenId, OpenKind};
use crate::record::{ClientInfo, Executed};
use crate::wire::json::{Json, Kind, Span};
use crate::wire::message::{Message, Method};
use crate::wire::request_id::RequestId;
use crate::wire::splice::{Edits, replace};

/// `_meta` of a modern request: who the client is.
const CLIENT_INFO: &str = "io.modelcontextprotocol/clientInfo";
/// `_meta` of a modern result: who the server is.
const SERVER_INFO: &str = "io.modelcontextprotocol/serverInfo";
/// `_meta` of what a subscription sends: the id of its `subscriptions/listen` request.
pub(super) const SUBSCRIPTION_ID: &str = "io.modelcontextprotocol/subscriptionId";

/// A passed-on request.
#[derive(Clone, Debug)]
pub(super) struct Pass {
    pub(super) method: Method,
    /// Its id on the upstream's wire, once it was sent.
    pub(super) sent: Option<AttemptId>,
    /// The frame, while it waits; that of a subscription as long as it is open, so that it can be sent to a new process.
    frame: Option<Frame>,
    /// The frame of a request that a new process must hear of too, once it was answered.
    keep: Option<(Keep, Frame)>,
    /// A subscription was acknowledged to the client.
    pub(super) acknowledged: bool,
    /// A new process will acknowledge it again, which the client is not to hear.
    pub(super) acknowledged_again: bool,
    /// The lists of whose changes a subscription wants to hear.
    pub(super) list_changes: Vec<&'static str>,
    /// The legacy task that its answer ends (`tasks/result`, `tasks/cancel`).
    task_id: Option<String>,
}

impl Pass {
    pub(super) fn frame_bytes(&self) -> usize {
        self.frame.as_ref().map_or(0, |(bytes, _)| bytes.len())
    }
}

impl Dispatcher {
    pub(super) fn pass_arrived(
        &mut self,
        client: ClientId,
        batch: Option<BatchId>,
        message: Message,
        id: RequestId,
        method: Method,
    ) {
        let upstream = self.clients[&client].upstream;
        if method == Method::Initialize {
            let info = message.params().and_then(|params| params.member("clientInfo"));
            self.client_introduces_itself(client, info);
        }
        let task_id = match message.method_name().as_deref() {
            Some("tasks/result" | "tasks/cancel") => task_id_of(message.params()),
            _ => None,
        };
        let keep = Keep::of(&message);
        let list_changes = if method == Method::Listen { lists_asked_for(message.params()) } else { Vec::new() };
        let id_span = message.id_span;
        // The id's place does not move: a credential stands in `params`, and what is cut there may stand before it.
        let credential = super::client::authorization(message.params()).is_some();
        let (bytes, id_span) = if credential { without_credential(message) } else { (message.bytes, id_span) };
        let keep = keep.map(|keep| (keep, (bytes.clone(), id_span)));
        let frame = Some((bytes, id_span));
        let (acknowledged, acknowledged_again) = (false, false);
        let pass = Pass { method, sent: None, frame, keep, acknowledged, acknowledged_again, list_changes, task_id };
        let open_id = OpenId(self.fresh_id());
        if let Some(batch) = batch {
            self.batch_member(batch);
        }
        if let Some(client) = self.clients.get_mut(&client) {
            client.open.insert(id.key().clone(), open_id);
        }
        self.open.insert(open_id, Open { client, upstream, id, batch, kind: OpenKind::Pass(pass) });
        if !self.upstreams[&upstream].accepts() {
            let text = self.upstreams[&upstream].end_text();
            self.fail_pass(open_id, &text, Executed::No);
        } else if self.must_wait(upstream) {
            self.wait_in_line(open_id);
        } else {
            self.send_pass(open_id);
        }
    }

    /// Remembers who the client says it is, for records.
    pub(super) fn client_introduces_itself(&mut self, client: ClientId, info: Option<Json<'_>>) {
        let text = |name| info.and_then(|info| info.member(name)).and_then(|value| value.as_str().map(Into::into));
        if let (Some(name), Some(client)) = (text("name"), self.clients.get_mut(&client)) {
            client.info = Some(ClientInfo { name, version: text("version").unwrap_or_default() });
        }
    }

    /// The client's word about itself on one modern request, else what it said before.
    pub(super) fn client_info(&self, client: ClientId, meta: Option<Json<'_>>) -> Option<ClientInfo> {
        let info = meta.and_then(|meta| meta.member(CLIENT_INFO));
        let text = |name| info.and_then(|info| info.member(name)).and_then(|value| value.as_str().map(Into::into));
        match text("name") {
            Some(name) => Some(ClientInfo { name, version: text("version").unwrap_or_default() }),
            None => self.clients[&client].info.clone(),
        }
    }

    pub(super) fn send_pass(&mut self, id: OpenId) {
        let attempt = self.fresh_attempt();
        let Some(open) = self.open.get_mut(&id) else { return };
        let OpenKind::Pass(pass) = &mut open.kind else { return };
        let frame = if pass.method == Method::Listen { pass.frame.clone() } else { pass.frame.take() };
        let Some((mut bytes, id_span)) = frame else { return };
        pass.sent = Some(attempt);
        let upstream = open.upstream;
        if let Some(span) = id_span {
            replace(&mut bytes, span, attempt.0.to_string().as_bytes());
        }
        self.send_request(upstream, attempt, id, bytes);
    }

    /// The answer to a passed-on request.
    pub(super) fn pass_answered(&mut self, id: OpenId, message: Message) {
        let Some(open) = self.open.get_mut(&id) else { return };
        let OpenKind::Pass(pass) = &mut open.kind else { return };
        let (method, upstream, task_id) = (pass.method, open.upstream, pass.task_id.clone());
        if let Some((keep, frame)) = pass.keep.take()
            && message.error().is_none()
            && let Some(upstream) = self.upstreams.get_mut(&upstream)
        {
            upstream.recorded.answered(keep, frame, message.result());
        }
        match method {
            Method::Initialize => {
                self.upstream_introduces_itself(
                    upstream,
                    message.result().and_then(|result| result.member("serverInfo")),
                );
            }
            Method::Discover => {
                let meta = message.result().and_then(|result| result.member("_meta"));
                self.upstream_introduces_itself(upstream, meta.and_then(|meta| meta.member(SERVER_INFO)));
            }
            Method::ToolsList => self.tools_listed(upstream, message.result()),
            Method::ToolsCall | Method::Listen | Method::Cancelled | Method::Progress | Method::Other => {}
        }
        if let (Some(task_id), Some(upstream)) = (task_id, self.upstreams.get_mut(&upstream)) {
            upstream.task_ended(&task_id);
        }
        let bytes = self.with_client_id(id, message);
        self.close(id, Some(bytes));
    }

    /// The answer with the client's own id in it.
    pub(super) fn with_client_id(&self, id: OpenId, message: Message) -> Vec<u8> {
        let Some(open) = self.open.get(&id) else { return message.bytes };
        let subscription = message
            .result()
            .filter(|_| open.is_listen())
            .and_then(|result| result.member("_meta"))
            .and_then(|meta| meta.member(SUBSCRIPTION_ID))
            .map(|value| value.span_in(&message.bytes));
        let Some(id_span) = message.id_span else { return message.bytes };
        match subscription {
            None => {
                let mut bytes = message.bytes;
                replace(&mut bytes, id_span, open.id.raw());
                bytes
            }
            Some(span) => {
                let mut edits = Edits::new();
                edits.replace(id_span, open.id.raw().to_vec());
                edits.replace(span, open.id.raw().to_vec());
                edits.apply(&message.bytes)
            }
        }
    }

    /// The client withdrew a passed-on request; the upstream was told if it knows of it.
    pub(super) fn pass_cancelled(&mut self, id: OpenId) {
        let sent = match &self.open[&id].kind {
            OpenKind::Pass(pass) => pass.sent,
            OpenKind::Call(_) => None,
        };
        if let Some(attempt) = sent {
            self.off_wire(id, attempt);
            self.late.remember(attempt, LateOwner::Nobody, self.now.mono);
        }
        self.close(id, None);
    }

    /// Ends a passed-on request that will get no answer.
    pub(super) fn fail_pass(&mut self, id: OpenId, text: &str, executed: Executed) {
        self.fail_pass_with(id, OurError::upstream_closed(text, executed));
    }

    /// The same, with an error of its own.
    pub(super) fn fail_pass_with(&mut self, id: OpenId, error: OurError) {
        let Some(open) = self.open.get(&id) else { return };
        if let OpenKind::Pass(Pass { sent: Some(attempt), .. }) = open.kind {
            self.off_wire(id, attempt);
            self.late.remember(attempt, LateOwner::Nobody, self.now.mono);
        }
        let Some(request) = self.id_of(id) else { return };
        self.close(id, Some(error.frame(request.raw())));
    }

    /// Remembers which tools the upstream itself calls safe to repeat, where the configuration trusts it.
    fn tools_listed(&mut self, upstream: super::UpstreamId, result: Option<Json<'_>>) {
        if !self.settings.reliability.trust_annotations {
            return;
        }
        let Some(tools) = result.and_then(|result| result.member("tools")) else { return };
        let Some(upstream) = self.upstreams.get_mut(&upstream) else { return };
        for tool in tools.elements() {
            let Some(name) = tool.member("name").and_then(|name| name.as_str().map(Into::into)) else { continue };
            let hint = |hint| {
                let annotations = tool.member("annotations");
                annotations.and_then(|all| all.member(hint)).is_some_and(|value| value.kind() == Kind::True)
            };
            // "Read-only and destructive" is no hint at all.
            let safe = (hint("readOnlyHint") && !hint("destructiveHint")) || hint("idempotentHint");
            upstream.annotate(name, safe);
        }
    }
}

/// `params.taskId`, or `result.task.taskId`.
fn task_id_of(params: Option<Json<'_>>) -> Option<String> {
    Some(params?.member("taskId")?.as_str()?.into_owned())
}

/// The frame without the credential, and where its id stands then.
fn without_credential(message: Message) -> (Vec<u8>, Option<Span>) {
    use crate::wire::message::{FromClient, from_client};
    // The cut frame is read again rather than its spans moved by hand: it is rare, and one reading stays the rule.
    match from_client(super::client::stripped(message)) {
        FromClient::Message(message) => (message.bytes, message.id_span),
        FromClient::Refused(_) | FromClient::Batch(_) => unreachable!("cutting a member leaves a message a message"),
    }
}
