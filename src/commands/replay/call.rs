//! One stored call made again. The order is the promise: nothing is sent before the record is claimed and the claim says
//! so; the outcome is on disk before the user hears of it; whoever dies in between leaves a claim that tells how far it
//! came.

use std::path::PathBuf;
use std::time::Duration;

use super::context::{Books, Call, Context};
use super::guards::{Refusal, of_queue};
use super::outcome::Outcome;
use super::plan::{Plan, against, look_back};
use super::pool::{Beat, Pool, is_good_after};
use crate::clock::Clock;
use crate::ports::link::Reach;
use crate::ports::log::Log;
use crate::record::Status;
use crate::record::json_out::object;
use crate::record::stored::Record;
use crate::session::SessionError;
use crate::store::QUEUE_BUSY;
use crate::store::queue::{Queue, QueueError, Resolution};
use crate::wire::splice::quote;

/// A claim lives this long after its owner has vanished.
const LEASE: Duration = Duration::from_secs(60);

/// How often a claim is renewed while its owner waits for the server.
const RENEW_EVERY: Duration = Duration::from_secs(15);

/// What came of a call that was sent.
pub(super) struct Done {
    pub(super) outcome: Outcome,
    /// As it is stored.
    pub(super) outcome_json: String,
    /// The record's status after it.
    pub(super) status: Status,
    /// Why it is not in the queue.
    pub(super) unrecorded: Option<QueueError>,
    /// The user did not want to wait for its end.
    pub(super) stopped: bool,
}

/// What a call is made with.
pub(super) struct Means<'a> {
    pub(super) context: &'a Context,
    pub(super) pool: &'a mut Pool,
    pub(super) books: &'a mut Books,
    pub(super) log: &'a Log,
    /// Ends claims; the same for a whole run.
    pub(super) owner: &'a str,
}

/// Claims the record, calls, and writes the outcome down. With `unless_replayed` the record is refused if anybody has
/// replayed it since it was read.
///
/// # Errors
/// Why nothing was sent; the record is then as it was.
pub(super) fn make(
    means: &mut Means<'_>,
    queue: &mut Queue,
    record: &Record,
    plan: &Plan,
    server: &Reach,
    unless_replayed: bool,
) -> Result<Done, Refusal> {
    let Context { clock, .. } = *means.context;
    let (context, owner, id) = (means.context, means.owner, record.id.as_str());
    let force = context.options.force;
    let claimed = queue.claim(id, owner, LEASE, clock.now().wall, force).map_err(|error| of_queue(&error))?;
    let release = |queue: &mut Queue, refusal: Refusal| {
        // A claim that cannot be given back ends by itself.
        let stuck = queue.release(id, owner).err().map(|error| format!(" ({error}; it is free again in a minute)"));
        Err(Refusal { message: refusal.message + &stuck.unwrap_or_default(), ..refusal })
    };
    if unless_replayed && claimed.redrives != record.redrives {
        return release(queue, replayed_meanwhile());
    }
    // Somebody may have replayed another record of the same call since the first look.
    let seen = match look_back(context, queue, &claimed, plan) {
        Ok(seen) => seen,
        Err(refusal) => return release(queue, refusal),
    };
    let again = against(context, &Record { claim: None, ..claimed.clone() }, plan, seen.as_ref());
    if let Some(refusal) = again.into_iter().find(|refusal| matches!(refusal.kind, "duplicate" | "key_reused")) {
        return release(queue, refusal);
    }

    let mut meta =
        vec![("mcprelay", object(|out| _ = out.text("correlation_id", &claimed.correlation_id)).into_bytes())];
    meta.extend(plan.key_to_send.as_ref().map(|key| ("idempotencyKey", quote(key))));
    let nothing_sent = |text: String| Refusal::new("unreachable", format!("{text}; nothing was sent"));
    let (mut session, called, began) = loop {
        let beat = keep_claim(queue.path().to_owned(), id.to_owned(), owner.to_owned(), clock);
        let (mut session, fresh) = match means.pool.take(server, Some(beat)) {
            Ok(taken) => taken,
            Err(error) => return release(queue, nothing_sent(error)),
        };
        if let Err(error) = queue.mark_sent(id, owner, LEASE, clock.now().wall) {
            means.pool.put(server.clone(), session);
            return release(queue, of_queue(&error));
        }
        let began = clock.now();
        let called = session.call(&record.tool, plan.arguments.as_deref(), &meta, plan.timeout);
        // A server that ended while it had nothing to do is started once more.
        if !fresh && matches!(called, Err(SessionError::Closed { sent: false, .. })) {
            session.end();
            continue;
        }
        break (session, called, began);
    };
    let request_bytes = session.request_bytes();
    let ended = clock.now();
    let millis = u64::try_from(ended.mono.saturating_since(began.mono).as_millis()).unwrap_or(u64::MAX);
    let good = is_good_after(&called);
    let stopped = matches!(called, Err(SessionError::Stopped { .. }));
    session.mind(None);
    let outcome = match Outcome::of(called) {
        Ok(outcome) => outcome,
        Err(text) => {
            session.end();
            return release(queue, nothing_sent(text));
        }
    };
    let (redactor, masked) = (&context.redactor, &plan.masked);
    let outcome_json = outcome.to_json(redactor, masked);
    let recorded = match stopped {
        true => queue.abandon(id, owner, ended.wall).map(|()| Status::Replaying),
        false => {
            let resolution = Resolution {
                status: outcome.status(),
                executed: Some(outcome.executed.max(claimed.executed)),
                outcome: outcome_json.clone(),
                attempt: outcome.attempt_json(&began.wall.to_rfc3339(), owner, millis, redactor, masked),
                at: ended.wall,
                success: outcome.ok(),
                park_after: context.settings.queue.max_redrives,
            };
            queue.resolve(id, owner, &resolution)
        }
    };
    let call =
        Call { record: &claimed, plan, outcome: &outcome, outcome_json: &outcome_json, ended, millis, request_bytes };
    means.books.replayed(&call, means.log);
    // Only now: a server that is slow to end must not keep the outcome from the disk.
    match good {
        true => means.pool.put(server.clone(), session),
        false => drop(session.end()),
    }
    let (status, unrecorded) = match recorded {
        Ok(status) => (status, None),
        Err(error) => (outcome.status(), Some(error)),
    };
    Ok(Done { outcome, outcome_json, status, unrecorded, stopped })
}

/// The record is not what the run has chosen any more.
pub(super) fn replayed_meanwhile() -> Refusal {
    Refusal::new("replayed_meanwhile", "somebody else has replayed it since this run began")
}

/// Renews the claim while the server is waited for. If that fails, resolving the record will say so.
fn keep_claim(path: PathBuf, id: String, owner: String, clock: Clock) -> Beat {
    let work = move || {
        let renewed = Queue::open_existing(&path, QUEUE_BUSY)
            .and_then(|mut queue| queue.renew(&id, &owner, LEASE, clock.now().wall));
        drop(renewed);
    };
    (RENEW_EVERY, Box::new(work))
}
