//! What speaks against replaying a record: one list, in the order in which a user should hear it.

use std::time::Duration;

use super::arguments::Marked;
use crate::clock::Wall;
use crate::policy::{Action, Verdict};
use crate::record::Status;
use crate::record::stored::Record;
use crate::store::ExecutionRow;
use crate::store::queue::QueueError;

/// A reason not to replay.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Refusal {
    /// One word for scripts; it never changes meaning.
    pub(crate) kind: &'static str,
    /// For people, with the remedy.
    pub(crate) message: String,
}

impl Refusal {
    pub(crate) fn new(kind: &'static str, message: impl Into<String>) -> Refusal {
        Refusal { kind, message: message.into() }
    }
}

/// How an earlier execution relates to the record.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Earlier {
    /// The same call: by its key and arguments or, without a key, by its arguments.
    Same(ExecutionRow),
    /// The record's key, with other arguments.
    OtherArguments(ExecutionRow),
}

/// Whether the execution found for a record counts: it lies at most `window` back. One that is dated in the future
/// (the clock was set back since) counts.
pub(crate) fn earlier(found: Option<ExecutionRow>, hashes: &[&str], window: Duration, now: Wall) -> Option<Earlier> {
    let found = found?;
    let window = i64::try_from(window.as_millis()).unwrap_or(i64::MAX);
    if now.0.saturating_sub(found.at.0) > window {
        return None;
    }
    let same = hashes.contains(&found.arguments_hash.as_str());
    Some(if same { Earlier::Same(found) } else { Earlier::OtherArguments(found) })
}

/// Everything the guards look at.
pub(crate) struct Facts<'a> {
    pub(crate) record: &'a Record,
    /// Redaction markers that no `--set` replaced.
    pub(crate) marked: &'a [Marked],
    /// Why a sealed original is not used.
    pub(crate) seal_problem: Option<&'a str>,
    pub(crate) earlier: Option<&'a Earlier>,
    pub(crate) verdict: &'a Verdict,
    pub(crate) now: Wall,
    pub(crate) force: bool,
    pub(crate) force_policy: bool,
}

/// How many places a message names.
const PLACES_MAX: usize = 10;

/// Every reason not to replay, the first first.
pub(crate) fn refusals(facts: &Facts<'_>) -> Vec<Refusal> {
    let status = status(facts);
    if let Some(status) = &status
        && matches!(facts.record.status, Status::Replayed | Status::Discarded)
    {
        // Nothing opens these again, so no advice about the rest would help.
        return vec![status.clone()];
    }
    let found = [marks(facts), duplicate(facts), policy(facts), conversation(facts), status];
    found.into_iter().flatten().collect()
}

fn marks(facts: &Facts<'_>) -> Option<Refusal> {
    let marked = facts.marked;
    let first = marked.iter().find(|marked| !marked.in_name).or(marked.first())?;
    let mut places: Vec<&str> = marked.iter().map(|marked| marked.path.as_str()).collect();
    let more = places.len().saturating_sub(PLACES_MAX);
    places.truncate(PLACES_MAX);
    let more = if more > 0 { format!(" and {more} more") } else { String::new() };
    let remedy = match first.in_name {
        true => "the name of a member was redacted, so the call cannot be made again from here".to_owned(),
        false => format!("give each its value: --set {}=…", first.path),
    };
    let seal = facts.seal_problem.map(|problem| format!("; the sealed original does not open: {problem}"));
    let (places, seal) = (places.join(", "), seal.unwrap_or_default());
    Some(Refusal::new("redacted", format!("these arguments were redacted: {places}{more}; {remedy}{seal}")))
}

fn duplicate(facts: &Facts<'_>) -> Option<Refusal> {
    if facts.force {
        return None;
    }
    let told = |row: &ExecutionRow| {
        let by = match (&row.key, &facts.record.idempotency_key) {
            (Some(key), Some(_)) => format!("the same idempotency key {key:?}"),
            _ => "the same arguments".to_owned(),
        };
        format!("by {by}, {} ({})", row.at.to_rfc3339(), row.source.as_str())
    };
    Some(match facts.earlier? {
        Earlier::Same(row) => {
            Refusal::new("duplicate", format!("this call has already succeeded: {}; --force repeats it", told(row)))
        }
        Earlier::OtherArguments(row) => Refusal::new(
            "key_reused",
            format!("its idempotency key was used with other arguments: {}; --force calls all the same", told(row)),
        ),
    })
}

fn policy(facts: &Facts<'_>) -> Option<Refusal> {
    if facts.force_policy || facts.verdict.action == Action::Allow {
        return None;
    }
    let caller = &facts.record.caller.identity;
    let text =
        format!("the policy denies it for caller {caller:?}: {}; --force-policy overrides", facts.verdict.reason);
    Some(Refusal::new("policy", text))
}

fn conversation(facts: &Facts<'_>) -> Option<Refusal> {
    let text = "the call carried answers or state of a conversation that is over; --force sends it without them";
    (facts.record.mid_conversation && !facts.force).then(|| Refusal::new("mid_conversation", text))
}

/// What the queue would say to a claim.
fn status(facts: &Facts<'_>) -> Option<Refusal> {
    let record = facts.record;
    let id = || record.id.clone();
    let error = match (record.status, &record.claim) {
        (Status::Replayed | Status::Discarded, _) => QueueError::AlreadyResolved { id: id(), status: record.status },
        (Status::Settled | Status::Parked, _) if !facts.force => {
            QueueError::AlreadyResolved { id: id(), status: record.status }
        }
        (Status::Replaying, Some(claim)) if claim.expires_at >= facts.now => {
            QueueError::ClaimedBy { id: id(), claim: claim.clone() }
        }
        (Status::Replaying, Some(claim)) if claim.sent_at.is_some() && !facts.force => {
            QueueError::OutcomeUnknown { id: id(), claim: claim.clone() }
        }
        (Status::Pending | Status::FailedReplay | Status::Replaying | Status::Settled | Status::Parked, _) => {
            return None;
        }
    };
    let at = record.resolved_at.map(|at| format!(" ({})", at.to_rfc3339())).unwrap_or_default();
    let refusal = of_queue(&error);
    Some(Refusal { message: refusal.message + &at, ..refusal })
}

/// A refusal of the queue.
pub(crate) fn of_queue(error: &QueueError) -> Refusal {
    let kind = match error {
        QueueError::NoFile(_) | QueueError::NotFound(_) => "not_found",
        QueueError::AlreadyResolved { .. } => "resolved",
        QueueError::ClaimedBy { .. } => "claimed",
        QueueError::OutcomeUnknown { .. } => "outcome_unknown",
        QueueError::LostClaim(_) => "lost_claim",
        QueueError::Store(_) => "store",
    };
    let remedy = match error {
        QueueError::AlreadyResolved { status: Status::Settled, .. } => " (it is known to have run); --force repeats it",
        QueueError::AlreadyResolved { status: Status::Parked, .. } => {
            " (too many replays failed); --force tries again, or reopen it"
        }
        _ => "",
    };
    Refusal::new(kind, format!("{error}{remedy}"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::record::redact::Redactor;
    use crate::record::stored::Claim;
    use crate::record::test_values::letter;
    use crate::store::Source;

    fn record(status: Status) -> Record {
        Record { status, ..Record::of(&letter("01A"), &Redactor::new(&[])).0 }
    }

    fn verdict(action: Action) -> Verdict {
        Verdict { action, rule: Some(1), reason: "rule #1 says so".to_owned() }
    }

    fn execution(key: Option<&str>, at: i64) -> ExecutionRow {
        ExecutionRow {
            server: "files".to_owned(),
            tool: "write_file".to_owned(),
            key: key.map(str::to_owned),
            arguments_hash: "h1".to_owned(),
            at: Wall(at),
            source: Source::Live,
        }
    }

    fn kinds(
        record: &Record,
        earlier: Option<Earlier>,
        action: Action,
        force: bool,
        force_policy: bool,
    ) -> Vec<&'static str> {
        let marked =
            if record.message == "marked" { vec![Marked { path: "a.0".to_owned(), in_name: false }] } else { vec![] };
        let facts = Facts {
            record,
            marked: &marked,
            seal_problem: None,
            earlier: earlier.as_ref(),
            verdict: &verdict(action),
            now: Wall(1_000),
            force,
            force_policy,
        };
        refusals(&facts).into_iter().map(|refusal| refusal.kind).collect()
    }

    #[test]
    fn the_guards_stand_in_their_order_and_each_has_its_own_key() {
        let record = Record { message: "marked".to_owned(), mid_conversation: true, ..record(Status::Settled) };
        let earlier = || Some(Earlier::Same(execution(None, 1)));
        let all = ["redacted", "duplicate", "policy", "mid_conversation", "resolved"];
        assert_eq!(kinds(&record, earlier(), Action::Deny, false, false), all);
        assert_eq!(kinds(&record, earlier(), Action::Deny, true, false), ["redacted", "policy"]);
        assert_eq!(kinds(&record, earlier(), Action::Deny, true, true), ["redacted"]);
        assert_eq!(kinds(&record, None, Action::Allow, false, true), ["redacted", "mid_conversation", "resolved"]);
    }

    #[test]
    fn sql_4_a_claim_that_ran_out_after_the_call_was_sent_needs_force() {
        let claimed = |expires_at, sent_at: Option<i64>| Record {
            claim: Some(Claim {
                owner: "me".to_owned(),
                since: Wall(1),
                expires_at: Wall(expires_at),
                sent_at: sent_at.map(Wall),
            }),
            ..record(Status::Replaying)
        };
        let kinds = |record: &Record, force| kinds(record, None, Action::Allow, force, false);
        assert_eq!(kinds(&claimed(1_000, None), true), ["claimed"]);
        assert_eq!(kinds(&claimed(999, None), false), [""; 0]);
        assert_eq!(kinds(&claimed(999, Some(5)), false), ["outcome_unknown"]);
        assert_eq!(kinds(&claimed(999, Some(5)), true), [""; 0]);
        for status in [Status::Replayed, Status::Discarded] {
            let record = Record { message: "marked".to_owned(), ..record(status) };
            assert_eq!(kinds(&record, true), ["resolved"], "{status}: nothing else is worth saying");
        }
        for status in [Status::Pending, Status::FailedReplay] {
            assert_eq!(kinds(&record(status), false), [""; 0], "{status}");
        }
    }

    #[test]
    fn ret_3_an_execution_counts_within_the_window_and_by_its_arguments() {
        let window = Duration::from_millis(100);
        let at = |at| earlier(Some(execution(Some("k"), at)), &["h1"], window, Wall(1_000)).is_some();
        assert_eq!([899, 900, 1_000, 9_999].map(at), [false, true, true, true]);
        let other = earlier(Some(execution(Some("k"), 1_000)), &["h0", "h2"], window, Wall(1_000));
        assert_eq!(other, Some(Earlier::OtherArguments(execution(Some("k"), 1_000))));
        assert_eq!(kinds(&record(Status::Pending), other, Action::Allow, false, false), ["key_reused"]);
    }
}
