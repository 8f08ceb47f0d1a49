//! Faults on purpose, put where a real one would come from: between a call and its upstream.
//!
//! What follows is what follows from a real one: the engine does not know the difference, save that it says so loudly.

use super::event::{Action, AttemptId, StopSignal, UpstreamId};
use super::upstream::OnWire;
use super::{Dispatcher, OpenId, OpenKind, Timer};
use crate::clock::Time;
use crate::faults::{Fault, FaultRule, MILLION, When};
use crate::wire::message::{FromUpstream, Message, from_upstream};
use crate::wire::splice::quote;

/// Answers that are held back.
#[derive(Clone, Debug, Default)]
pub(super) struct Held(Vec<(Time, UpstreamId, AttemptId, Message)>);

impl Held {
    pub(super) fn deadline(&self) -> Option<(Time, Timer)> {
        self.0.iter().map(|(until, ..)| *until).min().map(|until| (until, Timer::HeldAnswer))
    }
}

impl Dispatcher {
    /// Nobody is to learn of this from a surprise.
    pub(super) fn warn_of_faults(&mut self) {
        let Some(plan) = &self.faults else { return };
        let mut lines = vec![format!("WARNING: calls fail on purpose in this session (faults, seed {})", plan.seed())];
        lines.extend(plan.rules().iter().map(|rule| {
            let percent = f64::from(rule.rate) * 100.0 / f64::from(MILLION);
            format!("WARNING: fault on purpose for {percent} % of attempts: {}", rule.describe())
        }));
        for line in lines {
            self.diagnose(line);
        }
    }

    /// Draws the fault of an attempt that is about to be sent; whether it was not sent because of it.
    pub(super) fn attempt_meets_fault(&mut self, id: OpenId) -> bool {
        let Some(plan) = &mut self.faults else { return false };
        let Some(open) = self.open.get_mut(&id) else { return false };
        let OpenKind::Call(call) = &mut open.kind else { return false };
        if std::mem::replace(&mut call.fault_drawn, true) {
            return false;
        }
        let Some(rule) = plan.draw(&call.tool).cloned() else { return false };
        if rule.when == When::After {
            call.fault = Some(rule);
            return false;
        }
        self.tell_fault(&rule);
        match rule.fault {
            Fault::Delay(by) => self.call_delayed(id, by),
            Fault::Error { code, message } => {
                if let Some((upstream, attempt)) = self.unsent_attempt(id, true)
                    && let Some(message) = made_error(attempt, code, &message)
                {
                    self.deliver_answer(upstream, Some(attempt), message);
                }
            }
            Fault::DropAnswer | Fault::DuplicateAnswer => drop(self.unsent_attempt(id, true)),
            Fault::KillUpstream => {
                if let Some((upstream, _)) = self.unsent_attempt(id, false) {
                    self.kill_on_purpose(upstream);
                }
            }
        }
        true
    }

    /// An attempt of which nothing is sent. `left`: it is to look as if it had been.
    fn unsent_attempt(&mut self, id: OpenId, left: bool) -> Option<(UpstreamId, AttemptId)> {
        let (upstream_id, attempt) = self.await_attempt(id)?;
        let upstream = self.upstreams.get_mut(&upstream_id)?;
        upstream.wire.insert(attempt, OnWire { open: id, left });
        Some((upstream_id, attempt))
    }

    /// The answer to an attempt as it passes on, if it does.
    pub(super) fn answer_meets_fault(
        &mut self,
        id: UpstreamId,
        attempt: AttemptId,
        message: Message,
    ) -> Option<Message> {
        if self.faults.is_none() {
            return Some(message);
        }
        let open = self.upstreams.get(&id).and_then(|upstream| upstream.wire.get(&attempt)).map(|request| request.open);
        let call = match open.and_then(|open| self.open.get_mut(&open)).map(|open| &mut open.kind) {
            Some(OpenKind::Call(call)) => call,
            Some(OpenKind::Pass(_)) | None => return Some(message),
        };
        let Some(rule) = call.fault.take() else { return Some(message) };
        self.tell_fault(&rule);
        match rule.fault {
            Fault::Delay(by) => {
                let until = self.now.mono.plus(by);
                self.held.0.push((until, id, attempt, message));
                self.arm(until);
                None
            }
            Fault::Error { code, message } => made_error(attempt, code, &message),
            Fault::DropAnswer => None,
            Fault::DuplicateAnswer => {
                self.deliver_answer(id, Some(attempt), message.clone());
                Some(message)
            }
            Fault::KillUpstream => {
                self.kill_on_purpose(id);
                None
            }
        }
    }

    pub(super) fn held_answers_due(&mut self) {
        let now = self.now.mono;
        let (due, held) = std::mem::take(&mut self.held.0).into_iter().partition(|(until, ..)| *until <= now);
        self.held.0 = held;
        for (_, upstream, attempt, message) in due {
            self.deliver_answer(upstream, Some(attempt), message);
        }
    }

    fn kill_on_purpose(&mut self, id: UpstreamId) {
        let Some(upstream) = self.upstreams.get_mut(&id) else { return };
        // Nothing more is sent to it: what was must not run after this.
        upstream.revival.killed = true;
        let incarnation = upstream.incarnation;
        self.actions.push(Action::SignalUpstream { upstream: id, incarnation, signal: StopSignal::Kill });
    }

    fn tell_fault(&mut self, rule: &FaultRule) {
        self.diagnose(format!("fault on purpose: {}", rule.describe()));
    }
}

/// An error answer as an upstream would write it.
fn made_error(attempt: AttemptId, code: i64, text: &str) -> Option<Message> {
    let text = String::from_utf8_lossy(&quote(text)).into_owned();
    let frame =
        format!("{{\"jsonrpc\":\"2.0\",\"id\":{},\"error\":{{\"code\":{code},\"message\":{text}}}}}", attempt.0);
    match from_upstream(frame.into_bytes()) {
        FromUpstream::Message(message) => Some(message),
        FromUpstream::Batch(_) | FromUpstream::Noise(_) => None,
    }
}
