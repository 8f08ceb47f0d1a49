//! One life of an upstream, whether it is a process or runs elsewhere.

use std::ffi::OsString;
use std::path::PathBuf;

use super::http::{HttpUpstream, RemoteServer};
use super::outbox::Report;
use super::upstream_stdio::{UpstreamProcess, Wiring};
use crate::clock::Clock;
use crate::dispatcher::event::{AttemptId, Incarnation, Level, StopSignal, UpstreamId};

/// How a server is reached.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Reach {
    /// It is started.
    Command {
        /// The command and its arguments; not empty.
        argv: Vec<OsString>,
        /// The working directory; `None` is our own.
        cwd: Option<PathBuf>,
    },
    /// It runs elsewhere.
    Remote(Box<RemoteServer>),
}

/// One life of an upstream.
pub enum Link {
    /// A process.
    Process(UpstreamProcess),
    /// A conversation over HTTP.
    Remote(HttpUpstream),
}

impl Link {
    /// Starts the server, or the conversation with it.
    ///
    /// # Errors
    /// A text that names what is at fault.
    pub fn start(
        reach: &Reach,
        upstream: UpstreamId,
        incarnation: Incarnation,
        frame_bytes_max: usize,
        clock: Clock,
        wiring: &Wiring,
    ) -> Result<Link, String> {
        match reach {
            Reach::Command { argv, cwd } => {
                UpstreamProcess::start(argv, cwd.as_deref(), upstream, incarnation, frame_bytes_max, wiring)
                    .map(Link::Process)
            }
            Reach::Remote(server) => {
                HttpUpstream::start(server, upstream, incarnation, clock, wiring).map(Link::Remote)
            }
        }
    }

    /// Sends one frame; `attempt` if it is a request. What must be reported at once comes back.
    #[must_use]
    pub fn send(&self, bytes: Vec<u8>, attempt: Option<AttemptId>) -> Option<Report> {
        match self {
            Link::Process(process) => process.outbox.send(bytes, attempt),
            Link::Remote(remote) => {
                let before = remote.level();
                remote.send(bytes, attempt);
                // What is known at once must not wait behind what else happened.
                let level = remote.level();
                (level != before).then_some(Report::Level(level))
            }
        }
    }

    /// How full it is now.
    #[must_use]
    pub fn level(&self) -> Level {
        match self {
            Link::Process(process) => process.outbox.level(),
            Link::Remote(remote) => remote.level(),
        }
    }

    /// Gives up what waits: of these attempts not one byte left. A remote server's requests report that themselves.
    pub fn abandon(&self) -> Vec<AttemptId> {
        match self {
            Link::Process(process) => process.outbox.abandon(),
            Link::Remote(_) => Vec::new(),
        }
    }

    /// Takes nothing more, and ends politely.
    pub fn close(&self) {
        match self {
            Link::Process(process) => process.outbox.close(),
            Link::Remote(remote) => remote.close(),
        }
    }

    /// Ends it less politely: signals the process group, or closes every connection.
    pub fn signal(&self, signal: StopSignal) {
        match self {
            Link::Process(process) => process.signal(signal),
            Link::Remote(remote) => remote.abort(),
        }
    }

    /// Lets go of what has ended.
    pub fn reap(self) {
        match self {
            Link::Process(process) => process.reap(),
            Link::Remote(remote) => remote.abort(),
        }
    }
}
