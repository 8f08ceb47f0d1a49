//! The client on our own standard input and output.

use std::os::fd::OwnedFd;
use std::sync::Arc;

use crossbeam_channel::Sender;

use super::outbox::{Direct, Outbox, Report, Watch};
use super::reader::read_frames;
use crate::dispatcher::event::{ClientId, Event};
use crate::wire::framer::Framed;
use crate::wire::message::from_client;

/// Reads standard input on a thread: each read's frames are one item, and the end is the last.
///
/// # Errors
/// If the thread cannot be started.
pub fn start_reading(client: ClientId, frame_bytes_max: usize, to: Sender<Vec<Event>>) -> std::io::Result<()> {
    super::spawn("client-in", move || {
        read_frames(rustix::stdio::stdin(), frame_bytes_max, |frames| {
            let events = frames.into_iter().map(|framed| match framed {
                Framed::Frame(bytes) => Event::ClientFrame { client, frame: from_client(bytes) },
                Framed::Oversized { head } => Event::ClientOversized { client, head },
                Framed::OversizedEnd { tail } => Event::ClientOversizedEnd { client, tail },
            });
            to.send(events.collect()).is_ok()
        });
        // Nobody listens any more if this fails, which is what it would have said.
        let _ = to.send(vec![Event::ClientClosed { client }]);
    })?;
    Ok(())
}

/// The outbox to standard output.
///
/// # Errors
/// If the descriptor cannot be copied or the thread cannot be started.
pub fn start_writing(
    client: ClientId,
    watch: Option<Arc<dyn Watch>>,
    report: Sender<Event>,
) -> std::io::Result<Outbox> {
    let stdout: OwnedFd = rustix::io::fcntl_dupfd_cloexec(rustix::stdio::stdout(), 3)?;
    Outbox::start("client-out", stdout, Direct::Polled, watch, move |said| {
        let _ = report.send(event(client, said));
    })
}

/// What an outbox to a client says, as an event.
#[must_use]
pub fn event(client: ClientId, said: Report) -> Event {
    match said {
        Report::Level(level) => Event::ClientOutbox { client, level },
        Report::Gone { .. } => Event::ClientGone { client },
    }
}
