//! See `mcprelay::fuzzing::sse`.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| mcprelay::fuzzing::sse(data));
