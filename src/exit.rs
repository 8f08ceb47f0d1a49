//! How the program ends: the four exit codes and what each of them means.

use std::process::ExitCode;

/// The exit status of every command. Scripts may rely on the numbers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum ExitStatus {
    /// 0: done, or the client ended the session.
    Success,
    /// 1: the command ran and failed: record not found, refused, tool failed, database cannot be opened.
    Failure,
    /// 2: the command line or the configuration is wrong; nothing was started.
    Usage,
    /// 3: the server could not be started or reached, or it ended the session first.
    Upstream,
}

impl ExitStatus {
    /// The number the operating system sees.
    #[must_use]
    pub const fn code(self) -> u8 {
        match self {
            ExitStatus::Success => 0,
            ExitStatus::Failure => 1,
            ExitStatus::Usage => 2,
            ExitStatus::Upstream => 3,
        }
    }
}

impl From<ExitStatus> for ExitCode {
    fn from(status: ExitStatus) -> ExitCode {
        ExitCode::from(status.code())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_numbers_scripts_rely_on() {
        let all = [ExitStatus::Success, ExitStatus::Failure, ExitStatus::Usage, ExitStatus::Upstream];
        assert_eq!(all.map(ExitStatus::code), [0, 1, 2, 3]);
    }
}
