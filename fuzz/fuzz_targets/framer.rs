//! See `mcprelay::fuzzing::framer`.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| mcprelay::fuzzing::framer(data));
