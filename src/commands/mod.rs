//! What a user types: one file for each command, with the rendering of its output.

pub mod audit;
pub mod completions;
pub mod demo;
pub mod example_server;
pub(crate) mod file;
pub mod man;
pub mod policy_test;
mod records;
pub mod replay;
pub mod report;
pub mod run;
pub(crate) mod seal;
pub(crate) mod table;
pub(crate) mod terminal;
pub(crate) mod text;
pub mod validate;
