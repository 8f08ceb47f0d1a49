//! Which arguments of which tool are mirrored into headers: learned from the client's own listings, or from one of ours.

use std::collections::{BTreeMap, BTreeSet};

use crate::wire::json::Json;
use crate::wire::message::{FromUpstream, Message, from_upstream};
use crate::wire::mirror::{ParamHeader, listed_tools, without_invalid_tools};

/// Our own listing is followed over this many pages.
const PAGES_MAX: usize = 1_000;

/// How many tools are remembered.
const TOOLS_MAX: usize = 100_000;

/// `_meta` members by which a modern request says who asks, and in which revision.
const CLAIM: [&str; 3] = [
    "io.modelcontextprotocol/protocolVersion",
    "io.modelcontextprotocol/clientInfo",
    "io.modelcontextprotocol/clientCapabilities",
];

/// The tools of a modern server, and the calls that wait until they are known.
#[derive(Clone, Debug)]
pub(super) struct Tools<W> {
    known: BTreeMap<String, Result<Vec<ParamHeader>, String>>,
    /// A whole listing of ours was read, so that a tool it does not name is not there.
    complete: bool,
    /// A listing of ours is on its way.
    pub(super) listing: bool,
    pub(super) waiting: Vec<W>,
    claim: Vec<u8>,
    /// JSON text.
    cursor: Option<Vec<u8>>,
    pages: usize,
    last_own_id: u64,
    /// Faults that the operator has heard of.
    warned: BTreeSet<(String, String)>,
}

impl<W> Default for Tools<W> {
    fn default() -> Tools<W> {
        Tools {
            known: BTreeMap::new(),
            complete: false,
            listing: false,
            waiting: Vec::new(),
            claim: Vec::new(),
            cursor: None,
            pages: 0,
            last_own_id: 0,
            warned: BTreeSet::new(),
        }
    }
}

impl<W> Tools<W> {
    /// Whether nothing is known of the tool that this call names.
    pub(super) fn unknown(&self, call: &Message) -> bool {
        !self.complete && name_of(call).is_none_or(|name| !self.known.contains_key(&name))
    }

    /// The arguments to mirror.
    pub(super) fn headers_of(&self, call: &Message) -> &[ParamHeader] {
        let found = name_of(call).and_then(|name| self.known.get(&name));
        found.and_then(|headers| headers.as_ref().ok()).map_or(&[], Vec::as_slice)
    }

    /// Why the tool must not be called over HTTP.
    pub(super) fn fault_of(&self, call: &Message) -> Option<String> {
        name_of(call).and_then(|name| self.known.get(&name)?.clone().err())
    }

    /// A listing, of the client or of ours, was answered.
    pub(super) fn listed(&mut self, result: Option<Json<'_>>) {
        for (name, headers) in result.map(listed_tools).unwrap_or_default() {
            if self.known.len() < TOOLS_MAX || self.known.contains_key(&name) {
                self.known.insert(name, headers);
            }
        }
    }

    /// The listing as the client is to see it: without the tools that must not be called over HTTP (MCP 2026-07-28).
    pub(super) fn offered(&mut self, answer: Message, warn: &mut dyn FnMut(String)) -> Vec<u8> {
        let Some((bytes, dropped)) = without_invalid_tools(&answer) else { return answer.bytes };
        for (name, fault) in dropped {
            if self.warned.insert((name.clone(), fault.clone())) {
                warn(format!("WARNING: tool {name:?} is left out of the listing: {fault}"));
            }
        }
        bytes
    }

    /// What was known is out of date.
    pub(super) fn forget(&mut self) {
        self.known.clear();
        self.complete = false;
    }

    /// Begins a listing of ours.
    pub(super) fn begin(&mut self) {
        self.listing = true;
        self.cursor = None;
        self.pages = 0;
    }

    /// The request for the next page, under the claim of a call's `_meta` if one is given, else under the last one.
    pub(super) fn question(&mut self, meta: Option<&[u8]>) -> Option<Message> {
        if let Some(meta) = meta.and_then(|meta| Json::parse(meta).ok()) {
            let said = CLAIM.iter().filter_map(|name| {
                let value = meta.member(name)?;
                Some([format!("\"{name}\":").as_bytes(), value.text()].concat())
            });
            self.claim = said.collect::<Vec<_>>().join(&b',');
        }
        if self.pages >= PAGES_MAX {
            return None;
        }
        self.last_own_id += 1;
        let head = format!(
            "{{\"jsonrpc\":\"2.0\",\"id\":\"mcprelay-list-{}\",\"method\":\"tools/list\",\"params\":{{",
            self.last_own_id
        );
        let cursor = self.cursor.take().map(|cursor| [b"\"cursor\":", &cursor[..], b","].concat()).unwrap_or_default();
        let bytes = [head.as_bytes(), &cursor, b"\"_meta\":{", &self.claim, b"}}}"].concat();
        match from_upstream(bytes) {
            FromUpstream::Message(message) => Some(message),
            FromUpstream::Batch(_) | FromUpstream::Noise(_) => None,
        }
    }

    /// A page of our listing.
    pub(super) fn page(&mut self, result: Option<Json<'_>>) {
        self.pages += 1;
        let cursor = result.and_then(|result| result.member("nextCursor"));
        self.cursor = cursor.filter(|cursor| cursor.raw_str().is_some()).map(|cursor| cursor.text().to_vec());
        self.listed(result);
    }

    /// Whether our listing has another page.
    pub(super) fn more(&self) -> bool {
        self.cursor.is_some()
    }

    /// Our listing is over, however it went: the calls that waited for it.
    pub(super) fn finish(&mut self) -> Vec<W> {
        self.listing = false;
        self.complete = true;
        std::mem::take(&mut self.waiting)
    }
}

fn name_of(call: &Message) -> Option<String> {
    Some(call.params()?.member("name")?.raw_str()?.unescape_lossy().into_owned())
}
