//! The servers of a run: one process for each server, however many calls go to it.

use std::time::Duration;

use crossbeam_channel::Receiver;

use crate::clock::Clock;
use crate::ports::link::Reach;
use crate::ports::log::Log;
use crate::session::{Aside, Limits, Session, SessionError, ToolList};

/// Servers that run at the same time; beyond it the one that was idle for longest ends.
const RUNNING_MAX: usize = 16;

/// The time limit of one page of `tools/list`.
const LIST_TIMEOUT: Duration = Duration::from_secs(30);

/// Work to do at intervals while a server is waited for.
pub(super) type Beat = (Duration, Box<dyn FnMut()>);

/// Running servers, and those that would not start.
pub(super) struct Pool {
    limits: Limits,
    clock: Clock,
    log: Log,
    stop: Receiver<()>,
    /// The one that was used last stands last.
    idle: Vec<(Reach, Session)>,
    /// A server that did not start is not tried again for every call of a long run.
    failed: Vec<(Reach, String)>,
    /// What servers offer, once it was asked for.
    tools: Vec<(Reach, Result<ToolList, String>)>,
}

impl Pool {
    pub(super) fn new(limits: Limits, clock: Clock, log: Log, stop: Receiver<()>) -> Pool {
        Pool { limits, clock, log, stop, idle: Vec::new(), failed: Vec::new(), tools: Vec::new() }
    }

    /// A conversation with the server: one that is there, or a new one; whether it is new. Give it back with
    /// [`Pool::put`], or end it.
    ///
    /// # Errors
    /// Why the server does not start, now or earlier.
    pub(super) fn take(&mut self, server: &Reach, beat: Option<Beat>) -> Result<(Session, bool), String> {
        if let Some(at) = self.idle.iter().position(|(known, _)| known == server) {
            let (_, mut session) = self.idle.remove(at);
            session.mind(beat);
            return Ok((session, false));
        }
        if let Some((_, error)) = self.failed.iter().find(|(known, _)| known == server) {
            return Err(error.clone());
        }
        if let Reach::Remote(remote) = server
            && let Some(note) = remote.withheld()
        {
            self.log.diagnose(note);
        }
        let aside = Aside { stop: self.stop.clone(), beat };
        match Session::start_minding(server.clone(), self.limits, self.clock, &self.log, aside) {
            Ok(session) => Ok((session, true)),
            Err(error) => {
                self.failed.push((server.clone(), error.to_string()));
                Err(error.to_string())
            }
        }
    }

    /// Keeps a conversation for the next call.
    pub(super) fn put(&mut self, server: Reach, mut session: Session) {
        session.mind(None);
        if self.idle.len() >= RUNNING_MAX {
            let (_, oldest) = self.idle.remove(0);
            oldest.end();
        }
        self.idle.push((server, session));
    }

    /// Every tool of the server.
    ///
    /// # Errors
    /// Why they are not known.
    pub(super) fn tools(&mut self, server: &Reach) -> Result<ToolList, String> {
        if let Some((_, list)) = self.tools.iter().find(|(known, _)| known == server) {
            return list.clone();
        }
        let list = self.take(server, None).and_then(|(mut session, _)| match session.tools(LIST_TIMEOUT) {
            Ok(list) => {
                self.put(server.clone(), session);
                Ok(list)
            }
            Err(error) => {
                session.end();
                Err(error.to_string())
            }
        });
        self.tools.push((server.clone(), list.clone()));
        list
    }

    /// Ends every server.
    pub(super) fn end(self) {
        for (_, session) in self.idle {
            session.end();
        }
    }
}

/// Whether a conversation is still good for another call after this answer.
pub(super) fn is_good_after<T>(answer: &Result<T, SessionError>) -> bool {
    match answer {
        Ok(_) | Err(SessionError::Oversized(_) | SessionError::Failed(_)) => true,
        // A server that works on a call that was given up may keep the next one waiting.
        Err(SessionError::Timeout(_) | SessionError::Stopped { .. }) => false,
        Err(SessionError::Closed { .. } | SessionError::Unreachable(_)) => false,
    }
}
