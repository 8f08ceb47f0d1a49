//! The edges: threads that move bytes and report what happened. They do not retry, drop, reorder or decide.

pub mod client_stdio;
pub mod http;
pub mod link;
pub mod log;
pub mod outbox;
pub mod reader;
pub mod signals;
pub mod upstream_stdio;

use std::thread::JoinHandle;

/// Starts a thread with a name. Every thread of the crate starts here.
///
/// # Errors
/// If the operating system has no thread to give.
#[expect(clippy::disallowed_methods, reason = "the one place that starts threads")]
pub fn spawn<T: Send + 'static>(
    name: &str,
    body: impl FnOnce() -> T + Send + 'static,
) -> std::io::Result<JoinHandle<T>> {
    std::thread::Builder::new().name(name.to_owned()).spawn(body)
}
