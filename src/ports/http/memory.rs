//! What a new session of a legacy server must hear to stand where the old one stood.

use std::collections::BTreeMap;

use crate::wire::capabilities::missing;
use crate::wire::json::Json;
use crate::wire::message::{FromUpstream, Message, from_upstream};
use crate::wire::splice::replace;

/// How many resource subscriptions are kept.
const SUBSCRIPTIONS_MAX: usize = 10_000;

/// What the server was told and has told.
#[derive(Clone, Debug, Default)]
pub(super) struct Memory {
    initialize: Option<Message>,
    initialized: Option<Message>,
    told: Option<Told>,
    log_level: Option<Message>,
    subscriptions: BTreeMap<String, Message>,
    last_own_id: u64,
}

/// What `initialize` was answered with.
#[derive(Clone, Debug)]
struct Told {
    version: Option<String>,
    capabilities: Option<Vec<u8>>,
}

impl Memory {
    /// The client opens a session; what was before is over.
    pub(super) fn initialize_sent(&mut self, message: &Message) {
        *self = Memory { initialize: Some(message.clone()), last_own_id: self.last_own_id, ..Memory::default() };
    }

    /// The server took it; gives the revision they agreed on.
    pub(super) fn opened(&mut self, answer: &Message) -> Option<String> {
        let version = version_in(answer);
        let capabilities = answer.result().and_then(|result| result.member("capabilities"));
        self.told = Some(Told {
            version: version.clone(),
            capabilities: capabilities.map(|capabilities| capabilities.text().to_vec()),
        });
        version
    }

    pub(super) fn initialized_sent(&mut self, message: &Message) {
        self.initialized = Some(message.clone());
    }

    /// Whether there is a handshake to repeat.
    pub(super) fn handshake_done(&self) -> bool {
        self.told.is_some()
    }

    /// A request of the client was answered with success.
    pub(super) fn answered(&mut self, asked: &Message) {
        let uri = || asked.params()?.member("uri")?.as_str().map(std::borrow::Cow::into_owned);
        match asked.method_name().as_deref() {
            Some("logging/setLevel") => self.log_level = Some(asked.clone()),
            Some("resources/subscribe") => {
                if let Some(uri) = uri()
                    && self.subscriptions.len() < SUBSCRIPTIONS_MAX
                {
                    self.subscriptions.insert(uri, asked.clone());
                }
            }
            Some("resources/unsubscribe") => {
                uri().map(|uri| self.subscriptions.remove(&uri));
            }
            _ => {}
        }
    }

    /// The client's `initialize` with an id of ours.
    pub(super) fn initialize(&mut self) -> Option<Message> {
        self.told.as_ref()?;
        let message = self.initialize.clone()?;
        Some(self.with_own_id(message))
    }

    pub(super) fn initialized(&self) -> Option<Message> {
        self.initialized.clone()
    }

    /// What keeps a session that answered `initialize` like this from standing in for the old one.
    pub(super) fn difference(&self, answer: &Message) -> Option<String> {
        let told = self.told.as_ref()?;
        if answer.result().is_none() {
            return Some("initialize was refused".to_owned());
        }
        let version = version_in(answer);
        if version != told.version {
            let name = |version: &Option<String>| version.clone().unwrap_or_else(|| "none".to_owned());
            return Some(format!("protocolVersion {}, was {}", name(&version), name(&told.version)));
        }
        let before = Json::parse(told.capabilities.as_deref()?).ok()?;
        let now = answer.result().and_then(|result| result.member("capabilities"));
        missing(before, now).map(|path| format!("it lacks the capability {}", path.join(".")))
    }

    /// The requests that the new session must hear, with ids of ours.
    pub(super) fn replays(&mut self) -> Vec<Message> {
        let kept: Vec<Message> = self.log_level.iter().chain(self.subscriptions.values()).cloned().collect();
        kept.into_iter().map(|message| self.with_own_id(message)).collect()
    }

    fn with_own_id(&mut self, message: Message) -> Message {
        self.last_own_id += 1;
        let mut bytes = message.bytes.clone();
        if let Some(span) = message.id_span {
            replace(&mut bytes, span, format!("\"mcprelay-session-{}\"", self.last_own_id).as_bytes());
        }
        // The changed frame is read again rather than its spans moved by hand.
        match from_upstream(bytes) {
            FromUpstream::Message(message) => message,
            FromUpstream::Batch(_) | FromUpstream::Noise(_) => unreachable!("another id leaves a message a message"),
        }
    }
}

fn version_in(answer: &Message) -> Option<String> {
    Some(answer.result()?.member("protocolVersion")?.as_str()?.into_owned())
}
