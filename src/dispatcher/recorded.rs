//! What a new process must hear to stand where the old one stood: the client's own frames, as it sent them.
//!
//! A legacy process is one session (MCP 2025-11-25, stdio), so this belongs to the upstream; a modern one has none, and
//! nothing is recorded but the client's word about itself.

use std::collections::BTreeMap;

use crate::wire::capabilities::missing;
use crate::wire::json::{Json, Kind, Span};
use crate::wire::message::Message;

/// How many resource subscriptions are kept.
const SUBSCRIPTIONS_MAX: usize = 10_000;

/// `_meta` members by which a modern request says who asks, and in which revision.
const CLAIM: [&str; 3] = [
    "io.modelcontextprotocol/protocolVersion",
    "io.modelcontextprotocol/clientInfo",
    "io.modelcontextprotocol/clientCapabilities",
];

/// A request as it was sent, and where its id stands.
pub(super) type Frame = (Vec<u8>, Option<Span>);

/// Why a request is kept once it was answered with success.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Keep {
    Initialize,
    LogLevel,
    Subscribe(String),
    Unsubscribe(String),
}

impl Keep {
    /// Whether and why this request is kept.
    pub(super) fn of(message: &Message) -> Option<Keep> {
        let uri = || Some(message.params()?.member("uri")?.as_str()?.into_owned());
        match &*message.method_name()? {
            "initialize" => Some(Keep::Initialize),
            "logging/setLevel" => Some(Keep::LogLevel),
            "resources/subscribe" => Some(Keep::Subscribe(uri()?)),
            "resources/unsubscribe" => Some(Keep::Unsubscribe(uri()?)),
            _ => None,
        }
    }
}

#[derive(Clone, Debug)]
struct Handshake {
    frame: Frame,
    /// What the client was told.
    version: Option<String>,
    capabilities: Option<Vec<u8>>,
}

/// The session of an upstream's client.
#[derive(Clone, Debug, Default)]
pub(super) struct Recorded {
    handshake: Option<Handshake>,
    initialized: Option<Vec<u8>>,
    log_level: Option<Frame>,
    subscriptions: BTreeMap<String, Frame>,
    /// `_meta` of a modern request, as JSON text, with nothing in it but [`CLAIM`].
    claim: Option<Vec<u8>>,
}

impl Recorded {
    /// A kept request was answered with `result`.
    pub(super) fn answered(&mut self, keep: Keep, frame: Frame, result: Option<Json<'_>>) {
        match keep {
            Keep::Initialize => {
                let version = result.and_then(|result| result.member("protocolVersion")).and_then(Json::as_str);
                let capabilities = result.and_then(|result| result.member("capabilities"));
                self.handshake = Some(Handshake {
                    frame,
                    version: version.map(std::borrow::Cow::into_owned),
                    capabilities: capabilities.map(|json| json.text().to_vec()),
                });
                // A session that begins anew knows nothing of what was before.
                self.log_level = None;
                self.subscriptions.clear();
            }
            Keep::LogLevel => self.log_level = Some(frame),
            Keep::Subscribe(uri) => {
                if self.subscriptions.len() < SUBSCRIPTIONS_MAX || self.subscriptions.contains_key(&uri) {
                    self.subscriptions.insert(uri, frame);
                }
            }
            Keep::Unsubscribe(uri) => {
                self.subscriptions.remove(&uri);
            }
        }
    }

    /// The client said that it is ready.
    pub(super) fn note_initialized(&mut self, bytes: Vec<u8>) {
        self.initialized = Some(bytes);
    }

    /// Remembers the client's word about itself, if `meta` is that of a modern request.
    pub(super) fn note_claim(&mut self, meta: Option<Json<'_>>) {
        if self.claim.is_some() || meta.is_none_or(|meta| meta.member(CLAIM[0]).is_none()) {
            return;
        }
        let said = CLAIM.iter().filter_map(|name| {
            let value = meta?.member(name)?;
            Some([format!("\"{name}\":").as_bytes(), value.text()].concat())
        });
        let said: Vec<Vec<u8>> = said.collect();
        self.claim = Some([&b"{"[..], &said.join(&b','), b"}"].concat());
    }

    /// The client's `initialize`, if the old process had taken it.
    pub(super) fn opening(&self) -> Option<Frame> {
        self.handshake.as_ref().map(|handshake| handshake.frame.clone())
    }

    pub(super) fn initialized(&self) -> Option<Vec<u8>> {
        self.handshake.as_ref().and(self.initialized.clone())
    }

    /// What is to be asked again, each with its method.
    pub(super) fn requests(&self) -> Vec<(String, Vec<u8>, Option<Span>)> {
        let of = |method: &str, (bytes, span): &Frame| (method.to_owned(), bytes.clone(), *span);
        let level = self.log_level.iter().map(|frame| of("logging/setLevel", frame));
        level.chain(self.subscriptions.values().map(|frame| of("resources/subscribe", frame))).collect()
    }

    /// The question that shows whether the process lives: method, and `params` as JSON text if it takes some.
    pub(super) fn health_question(&self) -> (&'static str, Option<Vec<u8>>) {
        match (&self.handshake, &self.claim) {
            (None, Some(claim)) => ("server/discover", Some([b"{\"_meta\":", &claim[..], b"}"].concat())),
            (Some(_), _) | (None, None) => ("ping", None),
        }
    }

    /// What keeps a new process that answered `initialize` with `result` from being taken for the old one, in words.
    pub(super) fn difference(&self, result: Option<Json<'_>>) -> Option<String> {
        let told = self.handshake.as_ref()?;
        let version = result.and_then(|result| result.member("protocolVersion")).and_then(Json::as_str);
        if version.as_deref() != told.version.as_deref() {
            let name = |version: Option<&str>| version.unwrap_or("none").to_owned();
            return Some(format!(
                "protocolVersion {}, was {}",
                name(version.as_deref()),
                name(told.version.as_deref())
            ));
        }
        let before = Json::parse(told.capabilities.as_deref()?).ok()?;
        let now = result.and_then(|result| result.member("capabilities"));
        missing(before, now).map(|path| format!("it lacks the capability {}", path.join(".")))
    }

    /// The lists (`tools`, `prompts`, `resources`) whose changes were advertised to the client.
    pub(super) fn list_changes(&self) -> Vec<&'static str> {
        let told = self.handshake.as_ref().and_then(|handshake| handshake.capabilities.as_deref());
        let Some(told) = told.and_then(|text| Json::parse(text).ok()) else { return Vec::new() };
        let announced = |kind: &&str| {
            let flag = told.member(kind).and_then(|kind| kind.member("listChanged"));
            flag.is_some_and(|flag| flag.kind() == Kind::True)
        };
        ["tools", "prompts", "resources"].into_iter().filter(announced).collect()
    }
}

/// The lists whose changes a `subscriptions/listen` asks for.
pub(super) fn lists_asked_for(params: Option<Json<'_>>) -> Vec<&'static str> {
    let filter = params.and_then(|params| params.member("notifications"));
    let wants =
        |name: &str| filter.and_then(|filter| filter.member(name)).is_some_and(|flag| flag.kind() == Kind::True);
    let all = [("toolsListChanged", "tools"), ("promptsListChanged", "prompts"), ("resourcesListChanged", "resources")];
    all.into_iter().filter(|(name, _)| wants(name)).map(|(_, kind)| kind).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_claim_holds_nothing_but_who_asks_and_how() {
        let mut recorded = Recorded::default();
        let meta = br#"{"progressToken":7,"io.modelcontextprotocol/protocolVersion":"2026-07-28","traceparent":"t","io.modelcontextprotocol/clientCapabilities":{}}"#;
        recorded.note_claim(Some(Json::parse(meta).expect("JSON")));
        let (method, params) = recorded.health_question();
        assert_eq!(method, "server/discover");
        assert_eq!(
            String::from_utf8(params.expect("params")).expect("text"),
            r#"{"_meta":{"io.modelcontextprotocol/protocolVersion":"2026-07-28","io.modelcontextprotocol/clientCapabilities":{}}}"#
        );
    }
}
