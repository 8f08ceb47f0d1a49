//! Checks that the source keeps the module rules of `docs/architecture.md`.
