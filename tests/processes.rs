//! Process lifecycle.
