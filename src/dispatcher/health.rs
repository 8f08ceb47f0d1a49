//! Questions that show a silent hang: `ping` to a legacy process, `server/discover` to a modern one.

use std::time::Duration;

use super::Dispatcher;
use super::event::{AttemptId, UpstreamId};
use super::upstream::Stage;
use crate::clock::Time;

/// How far the questions are.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Health {
    /// Nothing is asked: not wanted, or the process has not answered its first request yet.
    Off,
    /// The next question is due.
    Next { at: Time },
    /// A question was asked.
    Asked { attempt: AttemptId, until: Time, timeout: Duration },
}

impl Health {
    pub(super) fn until(&self) -> Option<Time> {
        match self {
            Health::Off => None,
            Health::Next { at } => Some(*at),
            Health::Asked { until, .. } => Some(*until),
        }
    }

    /// The upstream is or was not read: its answer may be waiting in the pipe.
    pub(super) fn postpone(&mut self, now: Time) {
        if let Health::Asked { until, timeout, .. } = self {
            *until = now.plus(*timeout);
        }
    }
}

impl Dispatcher {
    /// The process has answered something: from now on it may be asked.
    pub(super) fn health_wanted(&mut self, id: UpstreamId) {
        let Some(settings) = self.settings.health else { return };
        let at = self.now.mono.plus(settings.interval);
        if let Some(upstream) = self.upstreams.get_mut(&id)
            && upstream.health == Health::Off
        {
            upstream.health = Health::Next { at };
            self.arm(at);
        }
    }

    pub(super) fn health_due(&mut self, id: UpstreamId) {
        let now = self.now.mono;
        let Some(settings) = self.settings.health else { return };
        let upstream = &self.upstreams[&id];
        if upstream.unread || upstream.health.until().is_none_or(|until| until > now) {
            return;
        }
        if !upstream.is_ready() || upstream.stop.is_some() {
            self.set_health(id, Health::Off);
            return;
        }
        if matches!(upstream.health, Health::Asked { .. }) {
            self.set_health(id, Health::Off);
            let limit = settings.timeout.as_millis();
            self.retire(id, &format!("the server did not answer a health check within {limit} ms (upstream.health)"));
            return;
        }
        let (method, params) = upstream.recorded.health_question();
        let attempt = self.fresh_attempt();
        let mut bytes = format!("{{\"jsonrpc\":\"2.0\",\"id\":{},\"method\":\"{method}\"", attempt.0).into_bytes();
        if let Some(params) = params {
            bytes.extend_from_slice(b",\"params\":");
            bytes.extend_from_slice(&params);
        }
        bytes.push(b'}');
        let until = now.plus(settings.timeout);
        self.set_health(id, Health::Asked { attempt, until, timeout: settings.timeout });
        self.ask_upstream(id, attempt, bytes);
    }

    /// Takes the answer to our question, whatever it says; whether this is it.
    pub(super) fn health_answered(&mut self, id: UpstreamId, attempt: AttemptId) -> bool {
        let is_it = matches!(self.upstreams[&id].health, Health::Asked { attempt: asked, .. } if asked == attempt);
        if is_it {
            self.set_health(id, Health::Off);
            if self.upstreams[&id].stage == Stage::Up {
                self.health_wanted(id);
            }
        }
        is_it
    }

    fn set_health(&mut self, id: UpstreamId, health: Health) {
        if let Some(until) = health.until() {
            self.arm(until);
        }
        if let Some(upstream) = self.upstreams.get_mut(&id) {
            upstream.health = health;
        }
    }
}
