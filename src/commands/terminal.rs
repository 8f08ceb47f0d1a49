//! What standard output and standard error are connected to: how wide, whether colour and progress make sense.

use std::ffi::OsStr;
use std::io::{IsTerminal, Write};
use std::time::Duration;

use crate::clock::{Clock, Time};

/// How text is laid out.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Layout {
    /// The columns that a line may have; `None` if any width will do, as in a file.
    pub(crate) width: Option<usize>,
    /// Whether escape sequences for colours may be used.
    pub(crate) colour: bool,
}

impl Layout {
    /// The layout for standard output as it is.
    pub(crate) fn of_stdout() -> Layout {
        let stdout = std::io::stdout();
        let terminal = stdout.is_terminal();
        let columns = || rustix::termios::tcgetwinsize(&stdout).ok().map(|size| usize::from(size.ws_col));
        let env = |name: &str| std::env::var_os(name);
        Layout::decide(
            terminal,
            if terminal { columns() } else { None },
            env("COLUMNS").as_deref(),
            env("NO_COLOR").as_deref(),
            env("TERM").as_deref(),
        )
    }

    /// `COLUMNS`, which only a user exports, beats the terminal's own word; `NO_COLOR` with any text turns colours off.
    fn decide(
        terminal: bool,
        columns: Option<usize>,
        wanted: Option<&OsStr>,
        no_color: Option<&OsStr>,
        term: Option<&OsStr>,
    ) -> Layout {
        let wanted = wanted.and_then(OsStr::to_str).and_then(|text| text.parse().ok());
        let colour = terminal && no_color.is_none_or(OsStr::is_empty) && term.is_none_or(|term| term != "dumb");
        Layout { width: wanted.or(columns).filter(|width| *width > 0), colour }
    }

    /// `text` in this style, if colours may be used.
    pub(crate) fn styled(&self, style: Style, text: &str) -> String {
        if self.colour && !text.is_empty() { format!("\x1b[{}m{text}\x1b[0m", style as u8) } else { text.to_owned() }
    }
}

/// The styles in use, with their numbers in escape sequences.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Style {
    Bold = 1,
    Dim = 2,
    Red = 31,
}

/// One line on standard error that tells how far a long command has come. It is written over and over, on a terminal
/// only, and is gone at the end.
pub(crate) struct Progress<'e> {
    err: &'e mut dyn Write,
    shown: bool,
    clock: Option<(Clock, Time)>,
}

/// A command that ends sooner shows nothing; a line changes no more often than this.
const PROGRESS_EVERY: Duration = Duration::from_millis(250);

impl<'e> Progress<'e> {
    /// Shows nothing unless standard error is a terminal.
    pub(crate) fn on(err: &'e mut dyn Write) -> Progress<'e> {
        let terminal = std::io::stderr().is_terminal();
        let clock = terminal.then(|| (Clock::start(), Time::ZERO.plus(PROGRESS_EVERY)));
        Progress { err, shown: false, clock }
    }

    /// Shows `text`, if it is time to.
    pub(crate) fn tell(&mut self, text: impl FnOnce() -> String) {
        let Some((clock, due)) = &mut self.clock else { return };
        let now = clock.now().mono;
        if now >= *due {
            *due = now.plus(PROGRESS_EVERY);
            self.shown = true;
            // Progress that nobody can see is no failure.
            let _ = write!(self.err, "\r\x1b[K{}", text()).and_then(|()| self.err.flush());
        }
    }
}

impl Drop for Progress<'_> {
    fn drop(&mut self) {
        if self.shown {
            let _ = write!(self.err, "\r\x1b[K").and_then(|()| self.err.flush());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn decide(terminal: bool, columns: Option<usize>, env: [&str; 3]) -> (Option<usize>, bool) {
        let [wanted, no_color, term] = env.map(|text| (text != "-").then(|| OsStr::new(text)));
        let layout = Layout::decide(terminal, columns, wanted, no_color, term);
        (layout.width, layout.colour)
    }

    #[test]
    fn width_and_colour_follow_the_terminal_and_the_user() {
        for (terminal, columns, env, expected) in [
            (true, Some(80), ["-", "-", "xterm"], (Some(80), true)),
            (true, Some(80), ["100", "-", "xterm"], (Some(100), true)),
            (true, Some(80), ["wide", "-", "-"], (Some(80), true)),
            (true, Some(80), ["0", "", "xterm"], (None, true)),
            (true, Some(0), ["-", "1", "xterm"], (None, false)),
            (true, None, ["-", "-", "dumb"], (None, false)),
            (false, None, ["-", "-", "xterm"], (None, false)),
            (false, None, ["60", "-", "xterm"], (Some(60), false)),
        ] {
            assert_eq!(decide(terminal, columns, env), expected, "{terminal} {columns:?} {env:?}");
        }
    }

    #[test]
    fn styles_are_escape_sequences_only_where_colours_may_be() {
        let layout = Layout { width: None, colour: true };
        assert_eq!(layout.styled(Style::Red, "x"), "\x1b[31mx\x1b[0m");
        assert_eq!(layout.styled(Style::Red, ""), "");
        assert_eq!(Layout::default().styled(Style::Red, "x"), "x");
    }

    #[test]
    fn progress_is_silent_where_nobody_sees_it_and_leaves_nothing_behind() {
        let mut err = Vec::new();
        let mut progress = Progress { err: &mut err, shown: false, clock: None };
        progress.tell(|| "1 of 2".to_owned());
        drop(progress);
        assert_eq!(err, b"");
        let mut progress = Progress { err: &mut err, shown: false, clock: Some((Clock::start(), Time::ZERO)) };
        progress.tell(|| "1 of 2".to_owned());
        progress.tell(|| "too soon".to_owned());
        drop(progress);
        assert_eq!(String::from_utf8_lossy(&err), "\r\x1b[K1 of 2\r\x1b[K");
    }
}
