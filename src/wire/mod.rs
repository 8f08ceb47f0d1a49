//! Bytes to values and back: framing, JSON text, message heads and splices. No reader, writer or clock.

pub mod json;
pub mod number;
pub mod splice;
