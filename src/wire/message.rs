//! JSON-RPC messages as they came: the frame's bytes and the spans of what a relay looks at.
//!
//! A client's frames are judged strictly, since policy depends on them ([`from_client`]); an upstream's are taken as
//! loosely as clients take them, and what is no message is noise ([`from_upstream`]).

use super::inspect::inspect;
use super::json::{Json, Kind, Span, Walker};
use super::request_id::RequestId;

/// Client frames nested deeper than this are refused. No tool's arguments come near it; parsers elsewhere stop at 128.
pub const CLIENT_DEPTH_MAX: usize = 1000;

/// A batch with more members than this is refused whole.
pub const BATCH_MEMBERS_MAX: usize = 1000;

/// JSON-RPC 2.0 section 5.1.
pub const PARSE_ERROR: i64 = -32700;
/// JSON-RPC 2.0 section 5.1.
pub const INVALID_REQUEST: i64 = -32600;
/// JSON-RPC 2.0 section 5.1.
pub const METHOD_NOT_FOUND: i64 = -32601;
/// JSON-RPC 2.0 section 5.1.
pub const INVALID_PARAMS: i64 = -32602;
/// JSON-RPC 2.0 section 5.1.
pub const INTERNAL_ERROR: i64 = -32603;

/// The methods a relay treats apart; every other one passes as [`Method::Other`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Method {
    /// `tools/call`
    ToolsCall,
    /// `tools/list`
    ToolsList,
    /// `initialize` (legacy)
    Initialize,
    /// `server/discover` (modern)
    Discover,
    /// `subscriptions/listen` (modern)
    Listen,
    /// `notifications/cancelled`
    Cancelled,
    /// `notifications/progress`
    Progress,
    /// Anything else.
    Other,
}

impl Method {
    fn of(name: &str) -> Method {
        match name {
            "tools/call" => Method::ToolsCall,
            "tools/list" => Method::ToolsList,
            "initialize" => Method::Initialize,
            "server/discover" => Method::Discover,
            "subscriptions/listen" => Method::Listen,
            "notifications/cancelled" => Method::Cancelled,
            "notifications/progress" => Method::Progress,
            _ => Method::Other,
        }
    }
}

/// What a message is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Role {
    /// Has a method and an id: wants one answer.
    Request {
        /// What is asked.
        method: Method,
        /// By what name the answer is awaited.
        id: RequestId,
    },
    /// Has a method and no id: wants none.
    Notification {
        /// What is told.
        method: Method,
    },
    /// Has a result or an error.
    Response {
        /// Whose answer it is; `None` where the peer could not tell (`null` or absent).
        id: Option<RequestId>,
    },
}

/// One message with the bytes it came in.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Message {
    /// The frame, without its line end.
    pub bytes: Vec<u8>,
    /// What it is.
    pub role: Role,
    /// The value of `id`, where there is one.
    pub id_span: Option<Span>,
    method_span: Option<Span>,
    params_span: Option<Span>,
    result_span: Option<Span>,
    error_span: Option<Span>,
}

impl Message {
    /// The value of `method`, where there is one.
    #[must_use]
    pub fn method_name(&self) -> Option<std::borrow::Cow<'_, str>> {
        self.view(self.method_span)?.as_str()
    }

    /// The value of `params`.
    #[must_use]
    pub fn params(&self) -> Option<Json<'_>> {
        self.view(self.params_span)
    }

    /// `params._meta`, where it is an object.
    #[must_use]
    pub fn params_meta(&self) -> Option<Json<'_>> {
        self.params()?.member("_meta").filter(|meta| meta.kind() == Kind::Object)
    }

    /// The value of `result`.
    #[must_use]
    pub fn result(&self) -> Option<Json<'_>> {
        self.view(self.result_span)
    }

    /// The value of `error`, unless it is `null`, which some peers write beside a result.
    #[must_use]
    pub fn error(&self) -> Option<Json<'_>> {
        self.view(self.error_span).filter(|error| error.kind() != Kind::Null)
    }

    fn view(&self, span: Option<Span>) -> Option<Json<'_>> {
        span.map(|span| Json::checked(span.of(&self.bytes)))
    }
}

/// To whom a refused message is answered.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum AnswerTo {
    /// To nobody: it was a notification or a response.
    Nobody,
    /// With `"id":null`: its id could not be read (JSON-RPC 2.0 section 5).
    Unknown,
    /// To this request.
    Request(RequestId),
}

/// A client's message that is not let through.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Refusal {
    /// The JSON-RPC error code.
    pub code: i64,
    /// What is wrong, and where.
    pub message: String,
    /// Who hears of it.
    pub to: AnswerTo,
    /// If it was a response: the request of the upstream that it would have answered.
    pub response_to: Option<RequestId>,
}

impl Refusal {
    fn new(code: i64, message: impl Into<String>, to: AnswerTo) -> Refusal {
        Refusal { code, message: message.into(), to, response_to: None }
    }
}

/// What one frame of the client holds.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum FromClient {
    /// A message to relay.
    Message(Message),
    /// Several (JSON-RPC 2.0 section 6; MCP 2025-03-26 only).
    Batch(Vec<Result<Message, Refusal>>),
    /// Nothing to relay.
    Refused(Refusal),
}

/// What one frame of the upstream holds.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum FromUpstream {
    /// A message to relay.
    Message(Message),
    /// Several; members that are no messages are left out.
    Batch(Vec<Message>),
    /// No message: a banner, a log line, half a message.
    Noise(Vec<u8>),
}

/// The members of a message that decide what it is.
const ENVELOPE: [&str; 6] = ["jsonrpc", "id", "method", "params", "result", "error"];

/// The members of a tool call's `params` that policy and identity look at.
const CALL_PARAMS: [&str; 3] = ["name", "arguments", "_meta"];

struct Head {
    id: Option<Span>,
    method: Option<Span>,
    params: Option<Span>,
    result: Option<Span>,
    error: Option<Span>,
    jsonrpc: bool,
    /// `id` or `method` occurs twice.
    repeated: bool,
    /// A name that some readers take for one of those above.
    lookalike: Option<Span>,
}

fn head(bytes: &[u8], object: Json<'_>) -> Head {
    let mut head = Head {
        id: None,
        method: None,
        params: None,
        result: None,
        error: None,
        jsonrpc: false,
        repeated: false,
        lookalike: None,
    };
    for member in object.members() {
        let key = member.key;
        let slot = if key.is("id") {
            head.repeated |= head.id.is_some();
            &mut head.id
        } else if key.is("method") {
            head.repeated |= head.method.is_some();
            &mut head.method
        } else if key.is("params") {
            &mut head.params
        } else if key.is("result") {
            &mut head.result
        } else if key.is("error") {
            &mut head.error
        } else {
            head.jsonrpc |= key.is("jsonrpc");
            if ENVELOPE.iter().any(|name| key.resembles(name)) {
                head.lookalike.get_or_insert(key.span_in(bytes));
            }
            continue;
        };
        *slot = Some(member.value.span_in(bytes));
    }
    head
}

impl Head {
    fn into_message(self, bytes: Vec<u8>, role: Role) -> Message {
        Message {
            bytes,
            role,
            id_span: self.id,
            method_span: self.method,
            params_span: self.params,
            result_span: self.result,
            error_span: self.error,
        }
    }

    fn id_json<'a>(&self, bytes: &'a [u8]) -> Option<Json<'a>> {
        self.id.map(|span| Json::checked(span.of(bytes)))
    }

    fn method(&self, bytes: &[u8]) -> Option<Method> {
        let name = Json::checked(self.method?.of(bytes)).raw_str()?;
        Some(name.unescape().map_or(Method::Other, |name| Method::of(&name)))
    }
}

/// Reads a frame of the client.
#[must_use]
pub fn from_client(bytes: Vec<u8>) -> FromClient {
    if bytes.trim_ascii_start().first() != Some(&b'[') {
        return match client_message(bytes) {
            Ok(message) => FromClient::Message(message),
            Err(refusal) => FromClient::Refused(refusal),
        };
    }
    let json = match Json::parse(&bytes) {
        Ok(json) => json,
        Err(error) => return FromClient::Refused(parse_refusal(&error)),
    };
    let count = json.elements().count();
    if count == 0 {
        return FromClient::Refused(Refusal::new(INVALID_REQUEST, "empty batch", AnswerTo::Unknown));
    }
    if count > BATCH_MEMBERS_MAX {
        let message = format!("batch of {count} members; the limit is {BATCH_MEMBERS_MAX}");
        return FromClient::Refused(Refusal::new(INVALID_REQUEST, message, AnswerTo::Unknown));
    }
    let members = json.elements().map(|member| {
        let message = client_message(member.text().to_vec())?;
        match &message.role {
            Role::Request { method: Method::Initialize, id } => {
                let to = AnswerTo::Request(id.clone());
                Err(Refusal::new(INVALID_REQUEST, "initialize is not allowed in a batch", to))
            }
            Role::Request { .. } | Role::Notification { .. } | Role::Response { .. } => Ok(message),
        }
    });
    FromClient::Batch(members.collect())
}

fn parse_refusal(error: &super::json::JsonError) -> Refusal {
    Refusal::new(PARSE_ERROR, format!("not JSON: {error}"), AnswerTo::Unknown)
}

fn client_message(mut bytes: Vec<u8>) -> Result<Message, Refusal> {
    let found = inspect(&bytes).map_err(|error| parse_refusal(&error))?;
    no_carriage_returns(&mut bytes);
    let object = Json::checked(&bytes);
    if object.kind() != Kind::Object {
        return Err(Refusal::new(INVALID_REQUEST, "not a JSON-RPC message: not an object", AnswerTo::Unknown));
    }
    let head = head(&bytes, object);
    let id = head.id_json(&bytes).and_then(RequestId::from_json);
    let answers = head.result.is_some() || head.error.is_some();
    let (role, to, response_to) = match (head.method, head.id) {
        (Some(_), Some(_)) => {
            let Some(id) = id else {
                let message = "the id of a request must be a string or a number";
                return Err(Refusal::new(INVALID_REQUEST, message, AnswerTo::Unknown));
            };
            let to = AnswerTo::Request(id.clone());
            let Some(method) = head.method(&bytes) else {
                return Err(Refusal::new(INVALID_REQUEST, "method is not a string", to));
            };
            (Role::Request { method, id }, to, None)
        }
        (Some(_), None) => {
            let Some(method) = head.method(&bytes) else {
                return Err(Refusal::new(INVALID_REQUEST, "method is not a string", AnswerTo::Unknown));
            };
            (Role::Notification { method }, AnswerTo::Nobody, None)
        }
        (None, _) if answers => (Role::Response { id: id.clone() }, AnswerTo::Nobody, id),
        (None, _) => {
            let to = id.map_or(AnswerTo::Unknown, AnswerTo::Request);
            return Err(Refusal::new(INVALID_REQUEST, "not a JSON-RPC message: no method, result or error", to));
        }
    };
    let calls_tool = matches!(
        role,
        Role::Request { method: Method::ToolsCall, .. } | Role::Notification { method: Method::ToolsCall }
    );
    let problem = if let Some(repeated) = found.repeated_shallow {
        // Of two ids neither is the right one.
        let to = if repeated.name == "id" && head.repeated && to != AnswerTo::Nobody { AnswerTo::Unknown } else { to };
        Some((format!("member {:?} occurs twice {}", repeated.name, repeated.place), to))
    } else if let Some(repeated) = found.repeated_deep.filter(|_| calls_tool) {
        Some((format!("member {:?} occurs twice {}", repeated.name, repeated.place), to))
    } else if let Some(name) = head.lookalike.or_else(|| lookalike_in_call(&head, &bytes).filter(|_| calls_tool)) {
        let name = String::from_utf8_lossy(name.of(&bytes));
        Some((format!("member {name} is spelled in another case than the protocol's"), to))
    } else if found.depth_max > CLIENT_DEPTH_MAX {
        Some((format!("nested {} levels deep; the limit is {CLIENT_DEPTH_MAX}", found.depth_max), to))
    } else {
        None
    };
    if let Some((message, to)) = problem {
        return Err(Refusal { code: INVALID_REQUEST, message, to, response_to });
    }
    Ok(head.into_message(bytes, role))
}

/// Some readers, Python's text mode among them, end a line at every carriage return, and would find other messages in
/// the frame than we do. In checked JSON it can only be a blank between tokens.
fn no_carriage_returns(checked: &mut [u8]) {
    let mut from = 0;
    while let Some(at) = memchr::memchr(b'\r', &checked[from..]) {
        checked[from + at] = b' ';
        from += at + 1;
    }
}

/// A name in `params` of a tool call that some readers, Go's among them, take for one that policy looks at.
fn lookalike_in_call(head: &Head, bytes: &[u8]) -> Option<Span> {
    let params = Json::checked(head.params?.of(bytes));
    let mut keys = params.members().map(|member| member.key);
    keys.find(|key| CALL_PARAMS.iter().any(|name| key.resembles(name))).map(|key| key.span_in(bytes))
}

/// Reads a frame of the upstream.
#[must_use]
pub fn from_upstream(bytes: Vec<u8>) -> FromUpstream {
    let Ok(json) = Json::parse(&bytes) else { return FromUpstream::Noise(bytes) };
    if json.kind() == Kind::Array {
        let members: Vec<Message> =
            json.elements().filter_map(|member| upstream_message(member.text().to_vec()).ok()).collect();
        return if members.is_empty() { FromUpstream::Noise(bytes) } else { FromUpstream::Batch(members) };
    }
    match upstream_message(bytes) {
        Ok(message) => FromUpstream::Message(message),
        Err(bytes) => FromUpstream::Noise(bytes),
    }
}

/// The message in a checked frame of the upstream, or the frame back if it holds none.
fn upstream_message(bytes: Vec<u8>) -> Result<Message, Vec<u8>> {
    let object = Json::checked(&bytes);
    if object.kind() != Kind::Object {
        return Err(bytes);
    }
    let head = head(&bytes, object);
    let id = head.id_json(&bytes).and_then(RequestId::from_json);
    let role = match (head.method(&bytes), id) {
        _ if head.repeated => return Err(bytes),
        (Some(method), Some(id)) => Role::Request { method, id },
        (Some(method), None) => Role::Notification { method },
        (None, _) if head.method.is_some() => return Err(bytes),
        (None, Some(id)) if head.result.is_some() || head.error.is_some() => Role::Response { id: Some(id) },
        // An error that names no request is relayed; a log line that happens to have a member "error" is not one.
        (None, None) if head.jsonrpc && head.error.is_some_and(|span| span.of(&bytes).starts_with(b"{")) => {
            Role::Response { id: None }
        }
        (None, _) => return Err(bytes),
    };
    Ok(head.into_message(bytes, role))
}

/// What can be told of a frame from its first bytes alone.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Sniffed {
    /// Its id, if one stands among them.
    pub id: Option<RequestId>,
    /// Whether a method stands among them, so that it is no response.
    pub has_method: bool,
}

/// Looks for the id and the method at top level in the first bytes of a frame.
#[must_use]
pub fn sniff(head: &[u8]) -> Sniffed {
    let mut sniffed = Sniffed { id: None, has_method: false };
    let mut walker = Walker::new(head);
    let mut key: Option<Span> = None;
    while let Ok(Some((token, span))) = walker.next_token() {
        if token == super::json::Token::Key {
            key = (walker.depth() == 1).then_some(span);
            continue;
        }
        // A number may go on where the bytes stop; a string that was read to its end cannot.
        let whole = span.end < head.len();
        if let Some(name) = key.take().map(|span| super::json::RawStr::checked(span.of(head))) {
            if name.is("id") && whole {
                sniffed.id = RequestId::from_json(Json::checked(span.of(head)));
            }
            sniffed.has_method |= name.is("method");
        }
    }
    sniffed
}

/// The id in the last bytes of a frame, where it is the last member at top level, as some writers put it.
#[must_use]
pub fn sniff_tail(tail: &[u8]) -> Option<RequestId> {
    // What stands between the name and the one closing brace at the very end is a member of the outermost object: an
    // inner object would need a brace of its own.
    let inside = tail.trim_ascii_end().strip_suffix(b"}")?;
    let name = memchr::memmem::rfind(inside, b"\"id\"")?;
    let before = inside[..name].trim_ascii_end().last()?;
    let value = inside[name + 4..].trim_ascii_start().strip_prefix(b":")?;
    if !matches!(before, b',' | b'{') {
        return None;
    }
    RequestId::from_json(Json::parse(value).ok()?)
}

#[cfg(test)]
mod tests;
