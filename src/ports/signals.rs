//! Signals that ask the process to end.

use std::io::Read;
use std::os::unix::net::UnixStream;

use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};

/// Calls `report` once for each TERM, INT or HUP from now on, on a thread of its own.
///
/// # Errors
/// If the handlers cannot be set or the thread cannot be started.
pub fn watch(report: impl Fn() + Send + 'static) -> std::io::Result<()> {
    let (mut read, write) = UnixStream::pair()?;
    for signal in [SIGTERM, SIGINT, SIGHUP] {
        signal_hook::low_level::pipe::register(signal, write.try_clone()?)?;
    }
    super::spawn("signals", move || {
        let mut byte = [0];
        while read.read_exact(&mut byte).is_ok() {
            report();
        }
    })?;
    Ok(())
}
