//! Circuits: calls are kept from an upstream that keeps dying, and from tools that keep failing.

use std::collections::BTreeMap;
use std::time::Duration;

use super::event::UpstreamId;
use super::{Dispatcher, OpenId, OpenKind};
use crate::breaker::{Breaker, CircuitSettings};
use crate::clock::{Time, Wall};
use crate::record::{Executed, FailureClass};

/// How many tools' circuits are kept; beyond it those that would be forgotten soon are.
const TOOLS_MAX: usize = 1_024;

/// The circuits of one upstream.
#[derive(Clone, Debug)]
pub(super) struct Circuits {
    upstream: Option<Breaker>,
    tools: BTreeMap<String, Breaker>,
}

/// Whose circuit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Scope {
    Upstream,
    Tool,
}

/// In which circuits an attempt decides whether they close.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Probes {
    upstream: bool,
    tool: bool,
}

/// An open circuit, as the error tells it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct CircuitNote {
    /// `upstream` or `tool`.
    pub(super) scope: &'static str,
    /// When another try is worth while.
    pub(super) until: Wall,
    /// The same from now.
    pub(super) wait: Duration,
    /// In words.
    pub(super) text: String,
}

impl Circuits {
    pub(super) fn new(upstream: Option<CircuitSettings>) -> Circuits {
        Circuits { upstream: upstream.map(Breaker::new), tools: BTreeMap::new() }
    }

    fn refuses(&self, tool: &str, now: Time) -> Option<(Scope, Time, CircuitSettings)> {
        let refuses = |scope, breaker: Option<&Breaker>| {
            breaker.and_then(|breaker| Some((scope, breaker.refuses(now)?, breaker.settings())))
        };
        refuses(Scope::Upstream, self.upstream.as_ref()).or_else(|| refuses(Scope::Tool, self.tools.get(tool)))
    }

    fn admit(&mut self, tool: &str, now: Time) -> Probes {
        Probes {
            upstream: self.upstream.as_mut().is_some_and(|breaker| breaker.admit(now)),
            tool: self.tools.get_mut(tool).is_some_and(|breaker| breaker.admit(now)),
        }
    }

    /// A tool failed; until when its circuit is open, if that opened it.
    fn tool_failed(&mut self, tool: &str, settings: CircuitSettings, now: Time) -> Option<Time> {
        if self.tools.len() >= TOOLS_MAX && !self.tools.contains_key(tool) {
            self.tools.retain(|_, breaker| !breaker.is_idle(now));
            if self.tools.len() >= TOOLS_MAX {
                self.tools.pop_first();
            }
        }
        self.tools.entry(tool.to_owned()).or_insert_with(|| Breaker::new(settings)).failed(now)
    }
}

impl Dispatcher {
    /// The circuit that keeps this call from being tried at the moment `at`.
    pub(super) fn circuit_refuses(&self, id: OpenId, at: Time) -> Option<CircuitNote> {
        let open = self.open.get(&id)?;
        let OpenKind::Call(call) = &open.kind else { return None };
        if call.probes != Probes::default() {
            return None;
        }
        let (scope, until, settings) = self.upstreams[&open.upstream].circuits.refuses(&call.tool, at)?;
        let wait = until.saturating_since(self.now.mono);
        let wall = self.now.wall.0.saturating_add(i64::try_from(wait.as_millis()).unwrap_or(i64::MAX));
        let (scope, whose) = match scope {
            Scope::Upstream => ("upstream", "the server's circuit"),
            Scope::Tool => ("tool", "its circuit"),
        };
        let until = Wall(wall);
        let text = format!(
            "{whose} is open until {} after {} failures within {} s",
            until.to_rfc3339(),
            settings.failures,
            settings.window.as_secs()
        );
        Some(CircuitNote { scope, until, wait, text })
    }

    /// An attempt is about to be made.
    pub(super) fn circuit_admits(&mut self, id: OpenId) {
        let now = self.now.mono;
        let Some(open) = self.open.get_mut(&id) else { return };
        let OpenKind::Call(call) = &mut open.kind else { return };
        if call.probes == Probes::default()
            && let Some(upstream) = self.upstreams.get_mut(&open.upstream)
        {
            call.probes = upstream.circuits.admit(&call.tool, now);
        }
    }

    /// An attempt failed.
    pub(super) fn circuit_hears_failure(&mut self, id: OpenId, class: FailureClass, executed: Executed) {
        let sick = match class {
            // What never reached the tool says nothing about it.
            FailureClass::Transport | FailureClass::Timeout => executed != Executed::No,
            FailureClass::UpstreamError => true,
            FailureClass::NonRetryable | FailureClass::ToolError => {
                self.circuit_hears_success(id);
                return;
            }
            FailureClass::Interrupted | FailureClass::CircuitOpen => false,
        };
        if !sick {
            self.circuit_hears_nothing(id);
            return;
        }
        let now = self.now.mono;
        let Some(open) = self.open.get_mut(&id) else { return };
        let OpenKind::Call(call) = &mut open.kind else { return };
        let probes = std::mem::take(&mut call.probes);
        let Some(upstream) = self.upstreams.get_mut(&open.upstream) else { return };
        let mut closed = false;
        if let Some(breaker) = &mut upstream.circuits.upstream {
            match class {
                // An error is an answer: the server lives.
                FailureClass::UpstreamError => closed = breaker.is_half_open() && breaker.succeeded(),
                FailureClass::Transport
                | FailureClass::Timeout
                | FailureClass::NonRetryable
                | FailureClass::ToolError
                | FailureClass::Interrupted
                | FailureClass::CircuitOpen => {
                    if probes.upstream {
                        breaker.probe_withdrawn();
                    }
                }
            }
        }
        let Some(settings) = call.settings.circuit else {
            self.tell_closed(closed.then_some("of the server".to_owned()));
            return;
        };
        let tool = call.tool.clone();
        let opened = upstream.circuits.tool_failed(&tool, settings, now);
        self.tell_closed(closed.then_some("of the server".to_owned()));
        if opened.is_some() {
            let seconds = settings.open.as_secs();
            self.diagnose(format!("the circuit of tool {tool:?} is open for {seconds} s: it keeps failing"));
        }
    }

    /// An attempt was answered.
    pub(super) fn circuit_hears_success(&mut self, id: OpenId) {
        let Some(open) = self.open.get_mut(&id) else { return };
        let OpenKind::Call(call) = &mut open.kind else { return };
        call.probes = Probes::default();
        let Some(upstream) = self.upstreams.get_mut(&open.upstream) else { return };
        let mut closed = Vec::new();
        // Only a probe speaks for the server's circuit: its failures are deaths, and a dying server may answer in between.
        if let Some(breaker) = &mut upstream.circuits.upstream
            && breaker.is_half_open()
            && breaker.succeeded()
        {
            closed.push("of the server".to_owned());
        }
        if let Some(breaker) = upstream.circuits.tools.get_mut(&call.tool)
            && breaker.succeeded()
        {
            closed.push(format!("of tool {:?}", call.tool));
        }
        for whose in closed {
            self.tell_closed(Some(whose));
        }
    }

    /// An attempt ended in a way that tells nothing.
    pub(super) fn circuit_hears_nothing(&mut self, id: OpenId) {
        let Some(open) = self.open.get_mut(&id) else { return };
        let OpenKind::Call(call) = &mut open.kind else { return };
        let probes = std::mem::take(&mut call.probes);
        let Some(upstream) = self.upstreams.get_mut(&open.upstream) else { return };
        if let Some(breaker) = upstream.circuits.upstream.as_mut().filter(|_| probes.upstream) {
            breaker.probe_withdrawn();
        }
        if let Some(breaker) = upstream.circuits.tools.get_mut(&call.tool).filter(|_| probes.tool) {
            breaker.probe_withdrawn();
        }
    }

    /// A life of the upstream ended. If that opens its circuit, what waits in line is not sent either.
    pub(super) fn circuit_meets_death(&mut self, id: UpstreamId) {
        let now = self.now.mono;
        let Some(upstream) = self.upstreams.get_mut(&id) else { return };
        let Some(breaker) = &mut upstream.circuits.upstream else { return };
        let settings = breaker.settings();
        if breaker.failed(now).is_none() {
            return;
        }
        let waiting: Vec<OpenId> = upstream.waiting.ids().collect();
        let (failures, seconds) = (settings.failures, settings.open.as_secs());
        self.diagnose(format!("the circuit of the server is open for {seconds} s: it ended {failures} times"));
        for open in waiting {
            if let Some(OpenKind::Call(call)) = self.open.get_mut(&open).map(|open| &mut open.kind) {
                call.probes = Probes::default();
                if let Some(note) = self.circuit_refuses(open, now) {
                    self.call_refused_by_circuit(open, note);
                }
            }
        }
    }

    fn tell_closed(&mut self, whose: Option<String>) {
        if let Some(whose) = whose {
            self.diagnose(format!("the circuit {whose} is closed again"));
        }
    }
}
