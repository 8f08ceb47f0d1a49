//! The words that stand for classes, decisions and states in records, log lines and tables. They never change meaning.

use super::{AuditKind, Decision, Executed, FailureClass, Status, Transport};

/// Gives a type its words: `as_str` one way, `parse` back, `ALL` for help texts and errors.
macro_rules! names {
    ($type:ident { $($variant:ident => $name:literal,)+ }) => {
        impl $type {
            /// Every value, in the order of help texts.
            pub const ALL: &'static [$type] = &[$($type::$variant),+];

            /// The word in records, log lines and tables.
            #[must_use]
            pub const fn as_str(self) -> &'static str {
                match self { $($type::$variant => $name),+ }
            }

            /// The value that a word stands for; `None` for any other word.
            #[must_use]
            pub fn parse(word: &str) -> Option<$type> {
                match word { $($name => Some($type::$variant),)+ _ => None }
            }
        }

        impl std::fmt::Display for $type {
            fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                f.write_str(self.as_str())
            }
        }
    };
}

names!(FailureClass {
    Transport => "transport",
    Timeout => "timeout",
    UpstreamError => "upstream_error",
    NonRetryable => "non_retryable",
    ToolError => "tool_error",
    Interrupted => "interrupted",
    CircuitOpen => "circuit_open",
});

names!(Executed {
    No => "no",
    Maybe => "maybe",
    Yes => "yes",
});

names!(Transport {
    Stdio => "stdio",
    Http => "http",
});

names!(Decision {
    Allowed => "allowed",
    Denied => "denied",
    Failed => "failed",
    Cancelled => "cancelled",
});

names!(AuditKind {
    Captured => "captured",
    Denied => "denied",
    Replayed => "replayed",
    Settled => "settled",
    Discarded => "discarded",
    Reopened => "reopened",
    Purged => "purged",
});

names!(Status {
    Pending => "pending",
    Replaying => "replaying",
    Replayed => "replayed",
    FailedReplay => "failed_replay",
    Discarded => "discarded",
    Settled => "settled",
    Parked => "parked",
});
