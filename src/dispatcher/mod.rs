//! The engine (placeholder while the merge is sorted out).
