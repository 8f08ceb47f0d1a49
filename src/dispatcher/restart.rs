//! An upstream that ended is started again, and the new process is told what the old one knew.
//!
//! Requests that were on the wire end with the old process: calls by their class, so that what may have run is repeated
//! only if that is safe; others with an error. Requests in line wait for the new process, in time that counts against
//! the whole call alone. The old process group is ended, step by step, before the new one begins.

use super::event::{Action, AttemptId, UpstreamId};
use super::upstream::Stage;
use super::{Dispatcher, OpenId, OpenKind};
use crate::clock::Time;
use crate::restart::Restarts;
use crate::wire::message::Message;
use crate::wire::splice::replace;

/// What one life of an upstream has to do with the next.
#[derive(Clone, Debug, Default)]
pub(super) struct Revival {
    restarts: Restarts,
    /// When this life began.
    since: Time,
    /// It has answered a request, in whichever life. What never worked is not started again.
    pub(super) ever_answered: bool,
    /// Why it is being ended, in words; `None` if it ended by itself.
    pub(super) reason: Option<String>,
    /// It is sure to end at once.
    pub(super) killed: bool,
    /// The `initialize` that a new process has not answered, and how long it may take.
    opening: Option<(AttemptId, Time)>,
    /// Requests of ours whose answers nobody waits for, and what they ask.
    quiet: Vec<(AttemptId, String)>,
}

impl Revival {
    /// A life begins.
    pub(super) fn begun(&mut self, now: Time) {
        self.since = now;
        self.reason = None;
        self.killed = false;
        self.opening = None;
        self.quiet.clear();
    }

    /// Whether requests may pass.
    pub(super) fn is_open(&self) -> bool {
        self.opening.is_none() && !self.killed
    }

    pub(super) fn handshake_until(&self) -> Option<Time> {
        self.opening.map(|(_, until)| until)
    }
}

impl Dispatcher {
    /// Whether this upstream is started again if it ends now.
    pub(super) fn may_restart(&self, id: UpstreamId) -> bool {
        let upstream = &self.upstreams[&id];
        self.settings.restart.enabled && upstream.revival.ever_answered && !upstream.leaving && !self.last_lives
    }

    /// Ends the process of an upstream that is of no use any more, so that another can take its place.
    pub(super) fn retire(&mut self, id: UpstreamId, reason: &str) {
        let Some(upstream) = self.upstreams.get_mut(&id) else { return };
        upstream.stage = Stage::Retiring;
        upstream.revival.reason = Some(reason.to_owned());
        upstream.revival.opening = None;
        self.calls_wait_for_start(id);
        self.end_process(id);
        self.rearm();
    }

    /// A life of the upstream is over: begins the wait for the next, or ends the session.
    pub(super) fn upstream_fell(&mut self, id: UpstreamId, text: &str) {
        let now = self.now.mono;
        let settings = self.settings.restart;
        let Some(upstream) = self.upstreams.get_mut(&id) else { return };
        upstream.stage = Stage::Gone;
        let since = upstream.revival.since;
        let delay = upstream.revival.restarts.after_end(&settings, since, now, &mut self.rng);
        let (count, max, window) = (upstream.revival.restarts.recent(), settings.max, settings.window.as_secs());
        let Some(delay) = delay else {
            let text = format!("{text}; it was started again {count} times within {window} s and is given up");
            self.diagnose(format!("{text} (upstream.restart.max is {max})"));
            self.upstream_lost(id, &text);
            return;
        };
        let delay_ms = delay.as_millis();
        self.diagnose(format!("{text}; starting it again in {delay_ms} ms (start {count} of {max} within {window} s)"));
        let until = now.plus(delay);
        upstream_down(self.upstreams.get_mut(&id), until);
        self.life_over(id, text);
        self.calls_wait_for_start(id);
        self.arm(until);
        self.end_process(id);
        self.fail_on_wire(id, text);
        self.circuit_meets_death(id);
    }

    /// Ends what was on the wire of a process that has ended. Subscriptions go on in the next one.
    fn fail_on_wire(&mut self, id: UpstreamId, text: &str) {
        let on_wire: Vec<(AttemptId, OpenId)> =
            self.upstreams[&id].wire.iter().map(|(attempt, request)| (*attempt, request.open)).collect();
        for (attempt, open) in on_wire {
            if self.open.get(&open).is_some_and(super::Open::is_listen) {
                self.off_wire(open, attempt);
                if let Some(OpenKind::Pass(pass)) = self.open.get_mut(&open).map(|open| &mut open.kind) {
                    pass.sent = None;
                }
            } else {
                self.fail_unreachable(open, text);
            }
        }
    }

    /// The time of attempts in line is not theirs: only the whole call's limit goes on.
    pub(super) fn calls_wait_for_start(&mut self, id: UpstreamId) {
        self.each_waiting_call(id, |call, _| call.wait_without_timeout());
    }

    /// From now on attempts in line have their own time again.
    fn calls_wait_no_more(&mut self, id: UpstreamId) {
        self.each_waiting_call(id, |call, shown| call.wait_with_timeout(shown));
    }

    fn each_waiting_call(&mut self, id: UpstreamId, mut change: impl FnMut(&mut super::Call, Time)) {
        let upstream = &self.upstreams[&id];
        let shown = upstream.clock.read(self.now.mono);
        let waiting: Vec<OpenId> = upstream.waiting.ids().collect();
        for open in waiting {
            if let Some(OpenKind::Call(call)) = self.open.get_mut(&open).map(|open| &mut open.kind) {
                change(call, shown);
            }
        }
        self.rearm();
    }

    /// The wait is over and the old process is gone: begins the next life.
    pub(super) fn restart_due(&mut self, id: UpstreamId) {
        let now = self.now.mono;
        if !matches!(self.upstreams[&id].stage, Stage::Down { until } if until <= now) {
            return;
        }
        self.start_upstream(id);
        let Some((mut bytes, id_span)) = self.upstreams[&id].recorded.opening() else {
            self.upstream_ready(id);
            return;
        };
        let attempt = self.fresh_attempt();
        if let Some(span) = id_span {
            replace(&mut bytes, span, attempt.0.to_string().as_bytes());
        }
        let until = now.plus(self.settings.restart.ready_timeout);
        if let Some(upstream) = self.upstreams.get_mut(&id) {
            upstream.revival.opening = Some((attempt, until));
        }
        self.arm(until);
        self.ask_upstream(id, attempt, bytes);
    }

    pub(super) fn handshake_timed_out(&mut self, id: UpstreamId) {
        let now = self.now.mono;
        if self.upstreams[&id].revival.handshake_until().is_some_and(|until| until <= now) {
            let limit = self.settings.restart.ready_timeout.as_millis();
            self.retire(id, &format!("the server, started again, did not answer initialize within {limit} ms"));
        }
    }

    /// Takes the answers to what we asked a new process in the client's name; whether this is one.
    pub(super) fn opening_answered(&mut self, id: UpstreamId, attempt: AttemptId, message: &Message) -> bool {
        let Some(upstream) = self.upstreams.get_mut(&id) else { return false };
        let revival = &mut upstream.revival;
        if let Some(place) = revival.quiet.iter().position(|(quiet, _)| *quiet == attempt) {
            let (_, method) = revival.quiet.remove(place);
            if message.error().is_some() {
                self.diagnose(format!("the server, started again, refused {method}, which it had taken before"));
            }
            return true;
        }
        if revival.opening.is_none_or(|(opening, _)| opening != attempt) {
            return false;
        }
        revival.opening = None;
        if message.error().is_some() {
            self.retire(id, "the server, started again, refused initialize");
            return true;
        }
        if let Some(difference) = upstream.recorded.difference(message.result()) {
            let text = format!("the server, started again, is another than the client knows: {difference}");
            self.diagnose(format!("{text}; ending the session"));
            self.last_lives = true;
            upstream_gone(self.upstreams.get_mut(&id));
            self.upstream_lost(id, &text);
            return true;
        }
        self.upstream_ready(id);
        true
    }

    /// What we asked a new process in the client's name will not be answered; whether this was it.
    pub(super) fn opening_failed(&mut self, id: UpstreamId, attempt: AttemptId, text: &str) -> bool {
        let Some(upstream) = self.upstreams.get_mut(&id) else { return false };
        let revival = &mut upstream.revival;
        if let Some(place) = revival.quiet.iter().position(|(quiet, _)| *quiet == attempt) {
            let (_, method) = revival.quiet.remove(place);
            self.diagnose(format!("the server, started again, did not take {method}: {text}"));
            return true;
        }
        let is_it = revival.opening.is_some_and(|(opening, _)| opening == attempt);
        if is_it {
            self.retire(id, &format!("the server, started again, did not answer initialize: {text}"));
        }
        is_it
    }

    /// The new process has the client's session, or needs none: tells it the rest and lets requests pass.
    fn upstream_ready(&mut self, id: UpstreamId) {
        self.calls_wait_no_more(id);
        let recorded = &self.upstreams[&id].recorded;
        let (initialized, requests) = (recorded.initialized(), recorded.requests());
        if let Some(bytes) = initialized {
            self.tell_upstream(id, bytes);
        }
        for (method, mut bytes, id_span) in requests {
            let attempt = self.fresh_attempt();
            if let Some(span) = id_span {
                replace(&mut bytes, span, attempt.0.to_string().as_bytes());
            }
            if let Some(upstream) = self.upstreams.get_mut(&id) {
                upstream.revival.quiet.push((attempt, method));
            }
            self.ask_upstream(id, attempt, bytes);
        }
        self.listen_again(id);
        // The client's lists may be out of date: the new process may be another version. It is told wherever it asked to
        // be, whether they differ or not, which only it can find out.
        for kind in self.upstreams[&id].recorded.list_changes() {
            let notice = format!("{{\"jsonrpc\":\"2.0\",\"method\":\"notifications/{kind}/list_changed\"}}");
            self.tell_clients_of(id, notice.into_bytes());
        }
        self.send_waiting();
    }

    /// Opens the subscriptions that were open at the old process.
    fn listen_again(&mut self, id: UpstreamId) {
        let waiting: Vec<OpenId> = self.upstreams[&id].waiting.ids().collect();
        let listens = self.open.iter().filter(|(open_id, open)| {
            let unsent = matches!(&open.kind, OpenKind::Pass(pass) if pass.sent.is_none());
            open.upstream == id && open.is_listen() && unsent && !waiting.contains(open_id)
        });
        let listens: Vec<OpenId> = listens.map(|(id, _)| *id).collect();
        for open_id in listens {
            self.send_pass(open_id);
            let Some(open) = self.open.get_mut(&open_id) else { continue };
            let OpenKind::Pass(pass) = &mut open.kind else { continue };
            if !pass.acknowledged {
                // The client has heard of nothing yet that it could have missed.
                continue;
            }
            pass.acknowledged_again = true;
            let (client, raw) = (open.client, open.id.raw().to_vec());
            for kind in pass.list_changes.clone() {
                let head = format!(
                    "{{\"jsonrpc\":\"2.0\",\"method\":\"notifications/{kind}/list_changed\",\"params\":{{\"_meta\":{{\"{}\":",
                    super::pass::SUBSCRIPTION_ID
                );
                let bytes = [head.as_bytes(), &raw, b"}}}"].concat();
                self.actions.push(Action::ToClient { client, bytes });
            }
        }
    }

    /// A subscription was acknowledged; whether the client has heard that of the process before.
    pub(super) fn listen_acknowledged(&mut self, open: OpenId) -> bool {
        match self.open.get_mut(&open).map(|open| &mut open.kind) {
            Some(OpenKind::Pass(pass)) => {
                pass.acknowledged = true;
                std::mem::take(&mut pass.acknowledged_again)
            }
            Some(OpenKind::Call(_)) | None => false,
        }
    }
}

fn upstream_down(upstream: Option<&mut super::Upstream>, until: Time) {
    if let Some(upstream) = upstream {
        upstream.stage = Stage::Down { until };
        upstream.revival.opening = None;
    }
}

fn upstream_gone(upstream: Option<&mut super::Upstream>) {
    if let Some(upstream) = upstream {
        upstream.stage = Stage::Gone;
    }
}
