//! How the queue is: what waits, since when, and how much came in.

use std::collections::BTreeMap;

use super::gather::Filter;
use crate::clock::Wall;
use crate::record::Status;
use crate::store::error::StoreError;
use crate::store::health::{HealthRow, QueueHealth};

/// Rows by tool and class; records of further ones are summed up in one row of their own.
const ROWS_MAX: usize = 5_000;

/// Some records.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Waiting {
    /// Records that nobody has settled yet: pending, replaying, or with a failed replay.
    pub(crate) depth: u64,
    /// When the oldest of them was captured.
    pub(crate) oldest: Option<Wall>,
    /// Records of any status captured in the time of the report.
    pub(crate) arrivals: u64,
}

/// The queue as a whole.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct QueueState {
    pub(crate) all: Waiting,
    /// Records by the word of their status; every status that there is, also with none.
    pub(crate) by_status: BTreeMap<String, u64>,
    /// By tool and class; `None` for those beyond the rows that are told apart.
    pub(crate) rows: Vec<(Option<(String, String)>, Waiting)>,
    /// When it was looked at.
    pub(crate) at: Wall,
}

impl Waiting {
    /// How long the oldest has waited at `now`, in milliseconds; never negative.
    pub(crate) fn age_ms(&self, now: Wall) -> Option<i64> {
        self.oldest.map(|oldest| now.0.saturating_sub(oldest.0).max(0))
    }

    fn add(&mut self, row: &HealthRow) {
        self.arrivals += row.arrivals;
        let open = [Status::Pending, Status::Replaying, Status::FailedReplay].map(Status::as_str);
        if open.contains(&row.status.as_str()) {
            self.depth += row.records;
            self.oldest = Some(self.oldest.map_or(row.oldest, |oldest| oldest.min(row.oldest)));
        }
    }
}

/// Looks at the queues, all of which are one to the user.
pub(crate) fn read(
    queues: &[QueueHealth],
    filter: &Filter,
    since: Wall,
    until: Wall,
    at: Wall,
) -> Result<QueueState, StoreError> {
    let mut state = QueueState { at, ..QueueState::default() };
    state.by_status = Status::ALL.iter().map(|status| (status.as_str().to_owned(), 0)).collect();
    let mut rows: BTreeMap<(String, String), Waiting> = BTreeMap::new();
    let mut others = Waiting::default();
    for queue in queues {
        queue.rows(since, until, &mut |row| {
            if !filter.takes(&row.caller, &row.server, &row.tool) {
                return;
            }
            state.all.add(&row);
            *state.by_status.entry(row.status.clone()).or_insert(0) += row.records;
            let key = (row.tool.clone(), row.class.clone());
            if rows.len() < ROWS_MAX || rows.contains_key(&key) {
                rows.entry(key).or_default().add(&row);
            } else {
                others.add(&row);
            }
        })?;
    }
    // What neither waits nor came in is no news.
    let news = |waiting: &Waiting| waiting.depth > 0 || waiting.arrivals > 0;
    state.rows = rows.into_iter().map(|(key, waiting)| (Some(key), waiting)).filter(|(_, one)| news(one)).collect();
    state.rows.sort_by(|a, b| b.1.depth.cmp(&a.1.depth).then_with(|| a.0.cmp(&b.0)));
    if news(&others) {
        state.rows.push((None, others));
    }
    Ok(state)
}
