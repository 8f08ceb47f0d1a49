//! Runs the engine on virtual time, for tests.
