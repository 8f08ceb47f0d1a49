//! Bytes to values and back: framing, JSON text, message heads and splices. No reader, writer or clock.

#![warn(clippy::wildcard_enum_match_arm)]

pub mod capabilities;
pub mod framer;
pub mod inspect;
pub mod json;
pub mod message;
pub mod mirror;
pub mod number;
pub mod request_id;
pub mod splice;
pub mod sse;
pub mod url;
