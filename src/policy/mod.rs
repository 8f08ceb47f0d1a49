//! Which tool calls may pass: the user's rules, compiled once, and the verdict on each call.
//!
//! The user's view, with examples, is `docs/policy.md`. The ideas in short:
//!
//! - A rule names a tool (a glob), perhaps a caller (a glob), and conditions on arguments. All of them must hold.
//! - Of the rules that match a call the most specific decides; among equally specific ones deny wins, then the order
//!   of the file. No match: `policy.default`.
//! - **What was judged is what is forwarded.** Arguments are read in the text of the frame itself, through
//!   [`crate::wire::json`], so that no second parser can see another value, and numbers are compared exactly.
//! - **Doubt never opens the gate.** A value that a matcher cannot judge (wrong type, too long for a regex, not valid
//!   Unicode, a path that depends on where the server runs) makes a deny rule match and an allow rule not match.
//!   See [`Doubt`]. A member that is not there is no doubt: a condition on it never holds.
//! - Deciding takes time linear in the size of the arguments for every rule, whatever the patterns are.

#![warn(clippy::wildcard_enum_match_arm)]

mod argument;
mod matcher;
mod path;
mod rule;
mod verdict;

#[cfg(test)]
mod tests;

pub(crate) use argument::{array_index, path_name, split_path};
pub use matcher::{Doubt, MATCHERS, REGEX_INPUT_BYTES_MAX, REGEX_PATTERN_CHARS_MAX};
pub use rule::{RuleProblem, RuleSource};
pub use verdict::{Action, Policy, Verdict, startup_warnings};
