//! The stand-in peers that tests and benchmarks run as real processes.

fn main() {}
