//! See `mcprelay::fuzzing::policy_matcher`.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| mcprelay::fuzzing::policy_matcher(data));
