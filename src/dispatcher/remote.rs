//! Requests that fail one by one: a remote server is asked in many exchanges, and one that breaks ends no other.

use super::Dispatcher;
use super::answer::OurError;
use super::event::{AttemptId, RequestFailure, UpstreamId};

impl Dispatcher {
    /// A request will get no answer, and its upstream goes on.
    pub(super) fn request_failed(&mut self, id: UpstreamId, attempt: AttemptId, failure: RequestFailure) {
        if self.opening_failed(id, attempt, &failure.message) {
            return;
        }
        // A request that was given up, or one of ours whose answer has its own time limit: nobody waits for this.
        let Some(found) = self.upstreams.get(&id).and_then(|upstream| upstream.wire.get(&attempt)).copied() else {
            return;
        };
        let Some(open) = self.open.get(&found.open) else { return };
        if open.is_call() {
            self.call_request_failed(found.open, attempt, failure);
        } else {
            let error = OurError::upstream_closed(&failure.message, failure.executed);
            self.fail_pass_with(found.open, OurError { class: failure.class.as_str(), ..error });
        }
    }
}
