//! JSON-RPC batches, both ways: taken apart on arrival, answered by one array when every member has its answer.

use super::Dispatcher;
use super::event::{Action, CallId, ClientId, Mark, UpstreamId};

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct BatchId(u64);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum BatchOwner {
    Client(ClientId),
    Upstream(UpstreamId),
}

/// A batch whose members are under way.
#[derive(Clone, Debug)]
pub(super) struct Batch {
    owner: BatchOwner,
    /// Members without an answer yet, and one more while members are still being read.
    pending: usize,
    answers: Vec<Vec<u8>>,
    /// Calls that are over when the answers have left.
    pub(super) ended: Vec<CallId>,
}

impl Dispatcher {
    /// Opens a batch that is not complete before [`Dispatcher::batch_read`].
    pub(super) fn batch_begun(&mut self, owner: BatchOwner) -> BatchId {
        let id = BatchId(self.fresh_id());
        self.batches.insert(id, Batch { owner, pending: 1, answers: Vec::new(), ended: Vec::new() });
        id
    }

    /// All members were read.
    pub(super) fn batch_read(&mut self, id: BatchId) {
        self.batch_answered(id, None);
    }

    /// One more member wants an answer.
    pub(super) fn batch_member(&mut self, id: BatchId) {
        if let Some(batch) = self.batches.get_mut(&id) {
            batch.pending += 1;
        }
    }

    /// A member has its answer, or will have none.
    pub(super) fn batch_answered(&mut self, id: BatchId, answer: Option<Vec<u8>>) {
        let Some(batch) = self.batches.get_mut(&id) else { return };
        batch.answers.extend(answer);
        batch.pending -= 1;
        if batch.pending > 0 {
            return;
        }
        let Some(batch) = self.batches.remove(&id) else { return };
        if !batch.answers.is_empty() {
            let mut bytes = vec![b'['];
            bytes.extend_from_slice(&batch.answers.join(&b','));
            bytes.push(b']');
            match batch.owner {
                BatchOwner::Client(client) => self.actions.push(Action::ToClient { client, bytes }),
                BatchOwner::Upstream(upstream) => self.tell_upstream(upstream, bytes),
            }
        }
        if let BatchOwner::Client(client) = batch.owner {
            let marks = batch.ended.into_iter().map(|call| Action::Record(Mark::Ended { client, call }));
            self.actions.extend(marks);
        }
    }
}
