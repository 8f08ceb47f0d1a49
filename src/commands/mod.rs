//! What a user types: one file for each command, with the rendering of its output.

pub mod policy_test;
pub mod run;
pub mod validate;
