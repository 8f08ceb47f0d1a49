//! Text for people: one thing on one line, and a reader that may have gone away.

use std::io::{self, Write};

use crate::exit::ExitStatus;

/// Control characters escaped: a name with a newline must not look like a line of ours, nor move the cursor.
pub(crate) fn one_line(text: &str) -> String {
    text.chars().map(|c| if c.is_control() { c.escape_default().to_string() } else { c.to_string() }).collect()
}

/// What writing came to: a reader that has seen enough (`| head`) is no failure.
pub(crate) fn written(result: io::Result<()>, err: &mut dyn Write) -> ExitStatus {
    match result {
        Ok(()) => ExitStatus::Success,
        Err(error) if error.kind() == io::ErrorKind::BrokenPipe => ExitStatus::Success,
        Err(error) => {
            // With standard error closed there is nobody left to tell.
            let _ = writeln!(err, "mcprelay: cannot write to standard output: {error}");
            ExitStatus::Failure
        }
    }
}
