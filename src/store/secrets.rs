//! The values masked in recent dead letters, kept in memory only, so that a late answer can be masked by them too.

use crate::record::redact::Masked;
use std::collections::{BTreeMap, VecDeque};

/// As many late answers as the dispatcher remembers attempts for.
const LETTERS_MAX: usize = 1_024;
const BYTES_MAX: usize = 16 * 1024 * 1024;

/// Masked values by record.
#[derive(Debug, Default)]
pub(super) struct Secrets {
    of: BTreeMap<String, Masked>,
    order: VecDeque<String>,
    bytes: usize,
}

impl Secrets {
    /// Remembers what was masked in a record; the oldest are forgotten.
    pub(super) fn remember(&mut self, id: &str, masked: Masked) {
        self.bytes += masked.bytes();
        if let Some(old) = self.of.insert(id.to_owned(), masked) {
            self.bytes = self.bytes.saturating_sub(old.bytes());
        } else {
            self.order.push_back(id.to_owned());
        }
        while self.order.len() > LETTERS_MAX || self.bytes > BYTES_MAX {
            let Some(oldest) = self.order.pop_front() else { break };
            if let Some(old) = self.of.remove(&oldest) {
                self.bytes = self.bytes.saturating_sub(old.bytes());
            }
        }
    }

    /// What was masked in a record; `None` if it is not known any more.
    pub(super) fn of(&self, id: &str) -> Option<&Masked> {
        self.of.get(id)
    }
}
