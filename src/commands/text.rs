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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pip_4_a_reader_that_went_away_is_a_quiet_success_and_a_full_disk_is_not() {
        let status = |kind: io::ErrorKind| {
            let mut err = Vec::new();
            (written(Err(kind.into()), &mut err), err.is_empty())
        };
        assert_eq!(status(io::ErrorKind::BrokenPipe), (ExitStatus::Success, true));
        assert_eq!(status(io::ErrorKind::StorageFull), (ExitStatus::Failure, false));
    }

    #[test]
    fn no_control_character_reaches_the_terminal() {
        assert_eq!(one_line("a\tb\n\u{1b}[2J\u{9b}é"), "a\\tb\\n\\u{1b}[2J\\u{9b}é");
    }
}
