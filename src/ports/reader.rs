//! Reads a byte stream, cuts it into frames and hands over what one read completed.

use std::os::fd::BorrowedFd;

use crate::wire::framer::{Framed, Framer};

/// Bytes asked for at once: what a pipe holds by default on Linux.
const READ_BYTES: usize = 64 << 10;

/// Reads `fd` to its end; each read's frames go to `deliver`, which says whether to go on. A read error is an end.
pub fn read_frames(fd: BorrowedFd<'_>, frame_bytes_max: usize, mut deliver: impl FnMut(Vec<Framed>) -> bool) {
    let mut framer = Framer::new(frame_bytes_max);
    let mut chunk = vec![0; READ_BYTES];
    let mut frames = Vec::new();
    loop {
        match rustix::io::read(fd, &mut chunk[..]) {
            Ok(0) => break,
            Ok(count) => framer.push(&chunk[..count], &mut frames),
            Err(rustix::io::Errno::INTR) => continue,
            // Somebody else may have made an inherited descriptor non-blocking.
            Err(rustix::io::Errno::AGAIN) => {
                wait_readable(fd);
                continue;
            }
            Err(_) => break,
        }
        if !frames.is_empty() && !deliver(std::mem::take(&mut frames)) {
            return;
        }
    }
    framer.finish(&mut frames);
    if !frames.is_empty() {
        deliver(frames);
    }
}

/// Waits until `fd` has bytes or has ended.
pub(crate) fn wait_readable(fd: BorrowedFd<'_>) {
    use rustix::event::{PollFd, PollFlags, poll};
    // An interrupted wait is over early; the caller reads and waits again.
    let _ = poll(&mut [PollFd::from_borrowed_fd(fd, PollFlags::IN)], None);
}
