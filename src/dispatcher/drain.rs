//! The end of a session: what is open is finished, then upstreams are ended, then the process.

use std::time::Duration;

use super::event::{Action, ClientId, StopSignal, UpstreamId};
use super::upstream::Stage;
use super::{Dispatcher, OpenId, Timer};
use crate::clock::Time;
use crate::record::Executed;

/// From SIGTERM to SIGKILL for what is left of a group whose leader has ended and whose output is closed.
const LEFTOVER_GRACE: Duration = Duration::from_millis(50);

/// From SIGKILL to not waiting any longer.
const KILL_WAIT: Duration = Duration::from_millis(1000);

/// How far the session is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Phase {
    /// Requests are taken.
    Running,
    /// No new requests; the open ones go on.
    Draining {
        /// Until when requests without a timeout of ours are waited for.
        passes_until: Time,
        /// Until when calls may go on; `None`: each until its own end.
        calls_until: Option<Time>,
    },
    /// Upstreams are being ended.
    Stopping,
    /// Nothing happens any more.
    Done,
}

impl Phase {
    pub(super) fn takes_requests(&self) -> bool {
        *self == Phase::Running
    }

    pub(super) fn deadlines(&self) -> Vec<(Time, Timer)> {
        let Phase::Draining { passes_until, calls_until } = self else { return Vec::new() };
        let calls = calls_until.map(|until| (until, Timer::Interrupt));
        std::iter::once((*passes_until, Timer::Drain)).chain(calls).filter(|(until, _)| *until < NEVER).collect()
    }

    pub(super) fn interrupted(&mut self) {
        if let Phase::Draining { calls_until, .. } = self {
            *calls_until = None;
        }
    }
}

/// A moment that does not come: the deadline that stood here has passed and was seen to.
const NEVER: Time = Time::from_start(Duration::MAX);

/// How far an upstream's end is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Stop {
    /// Its input is closed.
    InputClosed { until: Time },
    /// Its group was asked to end.
    Asked { until: Time },
    /// Its group was killed.
    Killed { until: Time },
    /// Nothing is left to wait for.
    Done,
}

impl Stop {
    pub(super) fn until(&self) -> Option<Time> {
        match self {
            Stop::InputClosed { until } | Stop::Asked { until } | Stop::Killed { until } => Some(*until),
            Stop::Done => None,
        }
    }
}

impl Dispatcher {
    /// The client sends nothing more: what it asked is answered, then the session ends.
    pub(super) fn client_closed(&mut self, client: ClientId) {
        if let Some(client) = self.clients.get_mut(&client) {
            client.closed = true;
        }
        let upstream = self.clients[&client].upstream;
        self.fail_upstream_requests(upstream, "the client has closed the session");
        if self.phase == Phase::Running {
            let passes_until = self.now.mono.plus(self.settings.reliability.defaults.timeout);
            self.phase = Phase::Draining { passes_until, calls_until: None };
            self.arm(passes_until);
        }
    }

    /// The client takes nothing more: nobody waits for what is open.
    pub(super) fn client_gone(&mut self, client: ClientId) {
        self.last_lives = true;
        self.client_closed(client);
        self.limit_drain();
    }

    /// The operating system asks us to end. The second time it means at once.
    pub(super) fn terminate(&mut self) {
        self.last_lives = true;
        let ids: Vec<UpstreamId> = self.upstreams.keys().copied().collect();
        if std::mem::replace(&mut self.asked_to_end, true) {
            self.interrupt_calls();
            self.drain_over();
            for id in ids {
                self.begin_stop(id);
                self.kill(id);
            }
            return;
        }
        for id in &ids {
            self.fail_upstream_requests(*id, "mcprelay is ending");
        }
        if self.phase == Phase::Stopping {
            // Closing its input was the polite way; what is left of its grace is not waited for.
            for id in ids {
                if matches!(self.upstreams[&id].stop, Some(Stop::InputClosed { .. })) {
                    self.stop_step(id);
                }
            }
        } else {
            self.limit_drain();
        }
    }

    fn limit_drain(&mut self) {
        if matches!(self.phase, Phase::Stopping | Phase::Done) {
            return;
        }
        let until = self.now.mono.plus(self.settings.signal_drain);
        self.phase = Phase::Draining { passes_until: until, calls_until: Some(until) };
        self.arm(until);
    }

    /// The session cannot go on: finish what is open.
    pub(super) fn begin_failing(&mut self) {
        self.last_lives = true;
        if self.phase == Phase::Running {
            self.phase = Phase::Draining { passes_until: NEVER, calls_until: None };
        }
    }

    /// Open requests without a timeout of ours have had their time.
    pub(super) fn drain_over(&mut self) {
        let open: Vec<OpenId> = self.open.iter().filter(|(_, open)| !open.is_call()).map(|(id, _)| *id).collect();
        for id in open {
            self.fail_pass(id, "the session ended before the server answered", Executed::Maybe);
        }
        if let Phase::Draining { passes_until, .. } = &mut self.phase {
            *passes_until = NEVER;
        }
    }

    /// Takes the steps of the session's end that nothing stands against.
    pub(super) fn settle(&mut self) {
        if matches!(self.phase, Phase::Draining { .. }) && self.open.values().all(super::Open::is_listen) {
            self.drain_over();
            self.phase = Phase::Stopping;
            let ids: Vec<UpstreamId> = self.upstreams.keys().copied().collect();
            for id in ids {
                self.begin_stop(id);
            }
        }
        if self.phase == Phase::Stopping
            && self.open.is_empty()
            && self.upstreams.values().all(|upstream| upstream.stop == Some(Stop::Done))
        {
            if let Some(summary) = self.counters.summary() {
                self.diagnose(summary);
            }
            self.phase = Phase::Done;
            self.wake = None;
            self.actions.push(Action::Exit(self.status));
        }
    }

    fn begin_stop(&mut self, id: UpstreamId) {
        let Some(upstream) = self.upstreams.get_mut(&id) else { return };
        upstream.leaving = true;
        if matches!(upstream.stage, Stage::Down { .. }) {
            upstream.stage = Stage::Gone;
        }
        self.end_process(id);
    }

    /// Begins to end an upstream's process and its group, unless that has begun already.
    pub(super) fn end_process(&mut self, id: UpstreamId) {
        let until = self.now.mono.plus(self.settings.stdin_grace);
        let Some(upstream) = self.upstreams.get_mut(&id).filter(|upstream| upstream.stop.is_none()) else { return };
        upstream.stop = Some(Stop::InputClosed { until });
        let incarnation = upstream.incarnation;
        self.actions.push(Action::CloseUpstream { upstream: id, incarnation });
        self.arm(until);
        self.stop_progressed(id);
    }

    /// The process ended, or its output did: the next step may be due at once.
    pub(super) fn stop_progressed(&mut self, id: UpstreamId) {
        let now = self.now.mono;
        let Some(upstream) = self.upstreams.get_mut(&id) else { return };
        let (ended, over) = (upstream.process_ended(), upstream.is_over());
        match upstream.stop {
            Some(Stop::InputClosed { .. }) if ended => self.stop_step(id),
            Some(Stop::Asked { until }) if over => {
                let until = until.min(now.plus(LEFTOVER_GRACE));
                upstream.stop = Some(Stop::Asked { until });
                self.arm(until);
            }
            Some(Stop::Killed { .. }) if ended => self.process_over(id),
            Some(Stop::InputClosed { .. } | Stop::Asked { .. } | Stop::Killed { .. } | Stop::Done) | None => {}
        }
    }

    /// The next step: ask the group to end, kill it, give up waiting.
    pub(super) fn stop_step(&mut self, id: UpstreamId) {
        let now = self.now.mono;
        let Some(upstream) = self.upstreams.get_mut(&id) else { return };
        let incarnation = upstream.incarnation;
        match upstream.stop {
            Some(Stop::InputClosed { .. }) => {
                let grace = if upstream.is_over() { LEFTOVER_GRACE } else { self.settings.term_grace };
                let until = now.plus(grace);
                upstream.stop = Some(Stop::Asked { until });
                let signal = StopSignal::Term;
                self.actions.push(Action::SignalUpstream { upstream: id, incarnation, signal });
                self.arm(until);
            }
            Some(Stop::Asked { .. }) => self.kill(id),
            Some(Stop::Killed { .. }) => self.process_over(id),
            Some(Stop::Done) | None => {}
        }
    }

    /// Nothing of the process is waited for any more: a new one may take its place.
    fn process_over(&mut self, id: UpstreamId) {
        let Some(upstream) = self.upstreams.get_mut(&id) else { return };
        upstream.stop = Some(Stop::Done);
        if matches!(upstream.stage, Stage::Retiring | Stage::Ending { .. }) && !upstream.leaving {
            // Its output may be held by something outside of its group: nobody reads that any more.
            upstream.output_closed = true;
            self.upstream_end_due(id);
        }
        self.rearm();
    }

    fn kill(&mut self, id: UpstreamId) {
        let until = self.now.mono.plus(KILL_WAIT);
        let Some(upstream) = self.upstreams.get_mut(&id) else { return };
        if matches!(upstream.stop, Some(Stop::Killed { .. } | Stop::Done)) {
            return;
        }
        upstream.stop = Some(Stop::Killed { until });
        let incarnation = upstream.incarnation;
        self.actions.push(Action::SignalUpstream { upstream: id, incarnation, signal: StopSignal::Kill });
        self.arm(until);
        self.stop_progressed(id);
    }
}
