//! Tests that run the real binary against real processes.
