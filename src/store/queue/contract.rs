//! What every provider of the queue must keep to: one list of rules, run against each of them.
//!
//! A provider adds one module: `crate::store::queue::contract::keeps!(name, make)`, where `make` gives a fresh, empty one.

use super::*;
use crate::record::stored::Record;
use crate::record::test_values::letter;
use crate::record::{DeadLetter, FailureClass, LateResult};
use std::sync::Barrier;

/// A place to keep dead letters in, as the relay and the commands use it.
pub(crate) trait Provider: Sync {
    /// Captures the letters, as the relay does; they are stored when it returns.
    fn capture(&self, letters: &[DeadLetter]);
    /// Attaches an answer that came late, as the relay does.
    fn late(&self, late: LateResult);
    /// Opens it, as commands do.
    fn open(&self) -> Queue;
}

/// Makes a test of each rule.
macro_rules! keeps {
    ($provider:ident, $make:expr) => {
        crate::store::queue::contract::each_rule!($provider, $make, RULES);
    };
}

/// One test for each name.
macro_rules! each_rule {
    ($provider:ident, $make:expr, RULES) => {
        mod $provider {
            use super::*;
            $crate::store::queue::contract::each_rule!(@rules $make,
                the_filter_narrows_and_the_order_is_by_age,
                of_many_claims_at_once_one_wins,
                a_claim_blocks_others_until_it_is_released_or_runs_out,
                sql_4_a_replay_that_died_after_sending_is_unknown_and_not_repeated_without_force,
                a_failed_replay_can_be_tried_again_and_a_replayed_record_cannot,
                a_settled_record_needs_force_and_a_late_success_settles_one_that_is_given_back,
                a_glob_takes_names_as_everywhere_and_brackets_mean_themselves,
                what_is_free_to_take_is_told_from_what_somebody_has,
                an_owner_that_gives_up_leaves_an_unknown_outcome_at_once,
                a_record_is_parked_when_too_many_replays_of_it_failed,
                a_person_settles_what_somebody_found_out,
                what_is_discarded_can_be_opened_again_and_a_success_only_by_force,
                a_purge_deletes_all_but_what_is_being_replayed,
                an_import_takes_all_or_nothing_and_leaves_what_is_there_alone,
                stats_count_by_tool_and_class_what_waits_and_what_may_have_run,
                a_seal_is_replaced_only_by_who_has_seen_it,
            );
        }
    };
    (@rules $make:expr, $($rule:ident,)*) => {
        $(
            #[test]
            fn $rule() {
                crate::store::queue::contract::$rule(&$make);
            }
        )*
    };
}

pub(crate) use {each_rule, keeps};

const LEASE: Duration = Duration::from_secs(60);

fn open_with(provider: &dyn Provider, letters: &[DeadLetter]) -> Queue {
    provider.capture(letters);
    provider.open()
}

fn failed(at: i64) -> Resolution {
    Resolution {
        status: Status::FailedReplay,
        executed: None,
        outcome: r#"{"ok":false}"#.to_owned(),
        attempt: format!(r#"{{"at":{at}}}"#),
        at: Wall(at),
        success: false,
        park_after: 0,
    }
}

fn replayed(at: i64) -> Resolution {
    Resolution { status: Status::Replayed, executed: Some(Executed::Yes), success: true, ..failed(at) }
}

fn note(at: i64) -> Note {
    Note { by: "me".to_owned(), at: Wall(at), text: Some("because".to_owned()) }
}

pub(crate) fn the_filter_narrows_and_the_order_is_by_age(provider: &dyn Provider) {
    let mut letters: Vec<_> = (0..5).map(|n| letter(&format!("01{n}"))).collect();
    letters[1].tool = "other'; DROP TABLE failures; --".to_owned();
    letters[2].class = FailureClass::Timeout;
    letters[3].captured_at = Wall(9_000);
    letters[4].server.name = "s2".to_owned();
    letters[4].caller.identity = "ci".to_owned();
    let queue = open_with(provider, &letters);
    let ids = |filter: Filter| -> String {
        let records = queue.list(&filter).expect("listed");
        assert!(filter.limit.is_some() || queue.count(&filter).expect("counted") == records.len() as u64);
        records.iter().map(|record| &record.id[2..]).collect()
    };
    assert_eq!(ids(Filter::default()), "43210");
    assert_eq!(ids(Filter { oldest_first: true, limit: Some(2), ..Filter::default() }), "01");
    assert_eq!(ids(Filter { tool: Some(letters[1].tool.clone()), ..Filter::default() }), "1");
    assert_eq!(ids(Filter { class: Some(FailureClass::Timeout), ..Filter::default() }), "2");
    assert_eq!(ids(Filter { since: Some(Wall(9_000)), ..Filter::default() }), "3");
    assert_eq!(ids(Filter { until: Some(Wall(5_000)), ..Filter::default() }), "4210");
    assert_eq!(ids(Filter { server: Some("s2".to_owned()), caller: Some("ci".to_owned()), ..Filter::default() }), "4");
    assert_eq!(ids(Filter { correlation_id: Some("c-010".to_owned()), ..Filter::default() }), "0");
    assert_eq!(ids(Filter { statuses: vec![Status::Replayed], ..Filter::default() }), "");
    assert_eq!(ids(Filter { statuses: vec![Status::Replayed, Status::Pending], ..Filter::default() }), "43210");
}

pub(crate) fn of_many_claims_at_once_one_wins(provider: &dyn Provider) {
    let letters: Vec<_> = (0..20).map(|n| letter(&format!("01{n:02}"))).collect();
    drop(open_with(provider, &letters));
    let hands = 6;
    let barrier = Barrier::new(hands);
    let mut won: Vec<String> = std::thread::scope(|scope| {
        let claim_all = |owner: usize| {
            let mut queue = provider.open();
            barrier.wait();
            let owner = format!("hand {owner}");
            let claimed =
                |letter: &&crate::record::DeadLetter| match queue.claim(&letter.id, &owner, LEASE, Wall(0), false) {
                    Ok(record) => record.claim.is_some_and(|claim| claim.owner == owner),
                    Err(QueueError::ClaimedBy { .. }) => false,
                    Err(error) => panic!("{error}"),
                };
            letters.iter().filter(claimed).map(|letter| letter.id.clone()).collect::<Vec<_>>()
        };
        let threads: Vec<_> = (0..hands).map(|owner| scope.spawn(move || claim_all(owner))).collect();
        threads.into_iter().flat_map(|thread| thread.join().expect("no panic")).collect()
    });
    won.sort();
    assert_eq!(won, letters.iter().map(|letter| letter.id.clone()).collect::<Vec<_>>());
}

pub(crate) fn a_claim_blocks_others_until_it_is_released_or_runs_out(provider: &dyn Provider) {
    let mut queue = open_with(provider, &[letter("01A")]);
    let record = queue.claim("01A", "a", LEASE, Wall(1_000), false).expect("free");
    assert_eq!((record.status, record.claim.map(|claim| claim.expires_at)), (Status::Replaying, Some(Wall(61_000))));
    let error = queue.claim("01A", "b", LEASE, Wall(61_000), true).expect_err("claimed, even by force");
    assert!(matches!(&error, QueueError::ClaimedBy { claim, .. } if claim.owner == "a"), "{error}");
    queue.renew("01A", "a", LEASE, Wall(50_000)).expect("still ours");
    queue.claim("01A", "b", LEASE, Wall(61_001), false).expect_err("renewed");
    assert_eq!(queue.release("01A", "b"), Err(QueueError::LostClaim("01A".to_owned())));
    queue.release("01A", "a").expect("ours");
    let record = queue.get("01A").expect("there");
    assert_eq!((record.status, record.claim, record.replays.as_str()), (Status::Pending, None, "[]"));
    // One that ran out before anything was sent is free to take.
    queue.claim("01A", "a", LEASE, Wall(0), false).expect("free");
    queue.claim("01A", "b", LEASE, Wall(60_001), false).expect("ran out");
    assert_eq!(queue.mark_sent("01A", "a", LEASE, Wall(60_002)), Err(QueueError::LostClaim("01A".to_owned())));
    assert_eq!(queue.renew("01A", "a", LEASE, Wall(0)), Err(QueueError::LostClaim("01A".to_owned())));
}

pub(crate) fn sql_4_a_replay_that_died_after_sending_is_unknown_and_not_repeated_without_force(
    provider: &dyn Provider,
) {
    let mut queue = open_with(provider, &[letter("01A")]);
    let _ = queue.claim("01A", "dead", LEASE, Wall(0), false).expect("free");
    queue.mark_sent("01A", "dead", LEASE, Wall(10)).expect("ours");
    let error = queue.claim("01A", "b", LEASE, Wall(60_011), false).expect_err("unknown");
    assert!(matches!(&error, QueueError::OutcomeUnknown { .. }) && error.to_string().contains("--force"), "{error}");
    let record = queue.claim("01A", "b", LEASE, Wall(60_011), true).expect("forced");
    assert_eq!(
        record.replays,
        r#"[{"at":"1970-01-01T00:00:00.010Z","by":"dead","outcome":"unknown","source":"replay"}]"#
    );
    assert_eq!(record.claim.expect("claimed").sent_at, None, "the new owner has sent nothing yet");
    // The late owner wakes up: it cannot overwrite the new one's result.
    assert_eq!(queue.resolve("01A", "dead", &replayed(70_000)), Err(QueueError::LostClaim("01A".to_owned())));
    queue.resolve("01A", "b", &failed(70_000)).expect("ours");
    let record = queue.get("01A").expect("there");
    assert_eq!((record.status, record.redrives, record.claim.is_none()), (Status::FailedReplay, 1, true));
    assert!(record.replays.ends_with(r#",{"at":70000}]"#), "{}", record.replays);
    serde_json::from_str::<serde_json::Value>(&record.to_json()).expect("valid JSON");
}

pub(crate) fn a_failed_replay_can_be_tried_again_and_a_replayed_record_cannot(provider: &dyn Provider) {
    let mut keyed = letter("01A");
    keyed.idempotency_key = Some("k".to_owned());
    let mut queue = open_with(provider, &[keyed, letter("01B")]);
    for at in [1, 2] {
        let _ = queue.claim("01A", "a", LEASE, Wall(at), false).expect("free");
        queue.resolve("01A", "a", &failed(at)).expect("ours");
    }
    assert_eq!(queue.last_execution("files", "write_file", "k"), Ok(None), "failures are not indexed");
    // Given back, it is what it was before.
    let _ = queue.claim("01A", "a", LEASE, Wall(3), false).expect("free");
    queue.release("01A", "a").expect("ours");
    assert_eq!(queue.get("01A").expect("there").status, Status::FailedReplay);
    let _ = queue.claim("01A", "a", LEASE, Wall(4), false).expect("free");
    queue.resolve("01A", "a", &replayed(5)).expect("ours");
    let record = queue.get("01A").expect("there");
    assert_eq!((record.status, record.executed, record.redrives), (Status::Replayed, Executed::Yes, 2));
    assert_eq!((record.resolved_at, record.replays.as_str()), (Some(Wall(5)), r#"[{"at":1},{"at":2},{"at":5}]"#));
    let error = queue.claim("01A", "a", LEASE, Wall(6), true).expect_err("final, even by force");
    assert_eq!(error, QueueError::AlreadyResolved { id: "01A".to_owned(), status: Status::Replayed });
    let found = queue.last_execution("files", "write_file", "k").expect("read").expect("indexed");
    assert_eq!((found.at, found.source), (Wall(5), Source::Replay));
    // A success without a key is found by its arguments: the same call is seen as a duplicate.
    let _ = queue.claim("01B", "a", LEASE, Wall(6), false).expect("free");
    queue.resolve("01B", "a", &replayed(7)).expect("ours");
    let found = queue.last_execution_by_hash("files", "write_file", &record.arguments_hash).expect("read");
    assert_eq!(found.map(|row| (row.key, row.at)), Some((None, Wall(7))));
    assert_eq!(queue.get("nope"), Err(QueueError::NotFound("nope".to_owned())));
    assert_eq!(queue.claim("nope", "a", LEASE, Wall(0), true), Err(QueueError::NotFound("nope".to_owned())));
}

pub(crate) fn a_settled_record_needs_force_and_a_late_success_settles_one_that_is_given_back(provider: &dyn Provider) {
    let mut queue = open_with(provider, &[letter("01A")]);
    let _ = queue.claim("01A", "a", LEASE, Wall(0), false).expect("free");
    provider.late(LateResult {
        record_id: "01A".to_owned(),
        at: Wall(1),
        executed: Executed::Yes,
        success: true,
        body: b"{}".to_vec(),
    });
    assert_eq!(queue.get("01A").expect("there").status, Status::Replaying, "its owner is still at work");
    queue.release("01A", "a").expect("ours");
    let error = queue.claim("01A", "a", LEASE, Wall(2), false).expect_err("settled");
    assert_eq!(error, QueueError::AlreadyResolved { id: "01A".to_owned(), status: Status::Settled });
    let _ = queue.claim("01A", "a", LEASE, Wall(2), true).expect("forced");
    queue.release("01A", "a").expect("ours");
    assert_eq!(queue.get("01A").expect("there").status, Status::Settled);
}

pub(crate) fn a_glob_takes_names_as_everywhere_and_brackets_mean_themselves(provider: &dyn Provider) {
    let letters: Vec<_> = [("01A", "write_file"), ("01B", "write[x]"), ("01C", "Write_File"), ("01D", "a\nb")]
        .map(|(id, tool)| DeadLetter { tool: tool.to_owned(), ..letter(id) })
        .to_vec();
    let queue = open_with(provider, &letters);
    let ids = |glob: &str| -> Vec<String> {
        let filter = Filter { tool: Some(glob.to_owned()), oldest_first: true, ..Filter::default() };
        queue.list(&filter).expect("listed").into_iter().map(|record| record.id).collect()
    };
    assert_eq!(ids("write*"), ["01A", "01B"]);
    assert_eq!(ids("write[x]*"), ["01B"]);
    assert_eq!(ids("*[x]"), ["01B"]);
    assert_eq!(ids("a?b"), ["01D"]);
    assert_eq!(ids("write"), [""; 0], "a name without a star is the whole name");
}

pub(crate) fn what_is_free_to_take_is_told_from_what_somebody_has(provider: &dyn Provider) {
    let letters: Vec<_> = ["01A", "01B", "01C", "01D", "01E"].map(letter).to_vec();
    let mut queue = open_with(provider, &letters);
    let claim = |queue: &mut Queue, id: &str| queue.claim(id, "a", LEASE, Wall(0), false).map(drop).expect("free");
    claim(&mut queue, "01B");
    claim(&mut queue, "01C");
    queue.mark_sent("01C", "a", LEASE, Wall(0)).expect("ours");
    claim(&mut queue, "01D");
    queue.resolve("01D", "a", &failed(1)).expect("ours");
    claim(&mut queue, "01E");
    queue.resolve("01E", "a", &replayed(1)).expect("ours");
    let ids = |filter: Filter| -> String {
        let heads = queue.heads(&Filter { oldest_first: true, ..filter }).expect("listed");
        heads.iter().map(|head| &head.id[2..]).collect()
    };
    let free = |at: i64, statuses: &[Status]| {
        ids(Filter { free_at: Some(Wall(at)), statuses: statuses.to_vec(), ..Filter::default() })
    };
    assert_eq!(free(60_000, &[]), "AD");
    assert_eq!(free(60_001, &[]), "ABD", "the claim on B ran out before anything was sent; C was sent");
    assert_eq!((free(60_001, &[Status::FailedReplay]), free(60_001, &[Status::Replaying])), ("D".into(), "B".into()));
    let lost = |at: i64| ids(Filter { lost_at: Some(Wall(at)), ..Filter::default() });
    assert_eq!((lost(60_000), lost(60_001)), (String::new(), "C".to_owned()));
    let behind = Filter { after: Some("01B".to_owned()), ..Filter::default() };
    assert_eq!(ids(behind), "CDE");
    let heads = queue.heads(&Filter { statuses: vec![Status::FailedReplay], ..Filter::default() }).expect("listed");
    assert_eq!((heads[0].redrives, heads[0].executed, heads[0].tool.as_str()), (1, Executed::Maybe, "write_file"));
}

pub(crate) fn an_owner_that_gives_up_leaves_an_unknown_outcome_at_once(provider: &dyn Provider) {
    let mut queue = open_with(provider, &[letter("01A")]);
    let _ = queue.claim("01A", "a", LEASE, Wall(0), false).expect("free");
    queue.mark_sent("01A", "a", LEASE, Wall(10)).expect("ours");
    assert_eq!(queue.abandon("01A", "b", Wall(20)), Err(QueueError::LostClaim("01A".to_owned())));
    queue.abandon("01A", "a", Wall(20)).expect("ours");
    let error = queue.claim("01A", "b", LEASE, Wall(20), false).expect_err("unknown");
    assert!(matches!(error, QueueError::OutcomeUnknown { .. }), "{error}");
    let record = queue.claim("01A", "b", LEASE, Wall(20), true).expect("forced");
    assert!(record.replays.contains("\"outcome\":\"unknown\""), "{}", record.replays);
}

pub(crate) fn a_record_is_parked_when_too_many_replays_of_it_failed(provider: &dyn Provider) {
    let mut queue = open_with(provider, &[letter("01A")]);
    let fail = |queue: &mut Queue, at: i64, force: bool| {
        let _ = queue.claim("01A", "a", LEASE, Wall(at), force)?;
        queue.resolve("01A", "a", &Resolution { park_after: 2, ..failed(at) })
    };
    assert_eq!(fail(&mut queue, 1, false), Ok(Status::FailedReplay));
    assert_eq!(fail(&mut queue, 2, false), Ok(Status::Parked));
    let parked = QueueError::AlreadyResolved { id: "01A".to_owned(), status: Status::Parked };
    assert_eq!(fail(&mut queue, 3, false), Err(parked));
    assert_eq!(fail(&mut queue, 4, true), Ok(Status::Parked), "force tries, and it stays parked");
    let record = queue.decide("01A", Action::Reopen { force: false }, &note(5)).expect("reopened");
    assert_eq!((record.status, record.redrives, record.resolved_at), (Status::Pending, 0, None));
    assert_eq!(record.replays, r#"[{"at":1},{"at":2},{"at":4}]"#, "every attempt is kept");
    assert_eq!(fail(&mut queue, 6, false), Ok(Status::FailedReplay), "it counts from the start again");
}

pub(crate) fn a_person_settles_what_somebody_found_out(provider: &dyn Provider) {
    let mut keyed = letter("01A");
    keyed.idempotency_key = Some("k".to_owned());
    let mut queue = open_with(provider, &[keyed, letter("01B"), letter("01C")]);
    let record = queue.decide("01A", Action::Settle { ran: true }, &note(7)).expect("settled");
    assert_eq!((record.status, record.executed, record.resolved_at), (Status::Settled, Executed::Yes, Some(Wall(7))));
    assert_eq!(
        record.notes,
        r#"[{"at":"1970-01-01T00:00:00.007Z","by":"me","action":"settle","executed":"yes","note":"because"}]"#
    );
    let found =
        queue.last_execution("files", "write_file", "k").expect("read").expect("another record must not repeat it");
    assert_eq!((found.at, found.arguments_hash), (Wall(7), record.arguments_hash));
    let error = queue.claim("01A", "a", LEASE, Wall(8), false).expect_err("settled");
    assert!(matches!(error, QueueError::AlreadyResolved { status: Status::Settled, .. }), "{error}");
    // One whose replay died is settled too, and keeps what is known of that replay.
    let _ = queue.claim("01B", "dead", LEASE, Wall(0), false).expect("free");
    queue.mark_sent("01B", "dead", LEASE, Wall(1)).expect("ours");
    let error = queue.decide("01B", Action::Settle { ran: false }, &note(60_001)).expect_err("it may still run");
    assert!(matches!(error, QueueError::ClaimedBy { .. }), "{error}");
    let record = queue.decide("01B", Action::Settle { ran: false }, &note(60_002)).expect("settled");
    assert_eq!((record.status, record.executed, record.claim), (Status::Pending, Executed::No, None));
    assert!(record.replays.contains("\"outcome\":\"unknown\""), "{}", record.replays);
    let _ = queue.claim("01B", "a", LEASE, Wall(60_003), false).expect("free again");
    // What has succeeded needs no telling.
    let _ = queue.claim("01C", "a", LEASE, Wall(0), false).expect("free");
    queue.resolve("01C", "a", &replayed(1)).expect("ours");
    let error = queue.decide("01C", Action::Settle { ran: false }, &note(2)).expect_err("it is known");
    assert_eq!(error, QueueError::AlreadyResolved { id: "01C".to_owned(), status: Status::Replayed });
}

pub(crate) fn what_is_discarded_can_be_opened_again_and_a_success_only_by_force(provider: &dyn Provider) {
    let mut queue = open_with(provider, &[letter("01A"), letter("01B")]);
    let open = |force| Action::Reopen { force };
    assert_eq!(queue.decide("01A", Action::Discard, &note(1)).expect("discarded").status, Status::Discarded);
    assert!(queue.decide("01A", Action::Discard, &note(1)).is_err(), "only once");
    assert!(queue.claim("01A", "a", LEASE, Wall(2), true).is_err(), "not even by force");
    assert_eq!(queue.decide("01A", open(false), &note(2)).expect("opened").status, Status::Pending);
    assert!(queue.decide("01A", open(true), &note(2)).is_err(), "it is open");
    let _ = queue.claim("01A", "a", LEASE, Wall(3), false).expect("free");
    let error = queue.decide("01A", Action::Discard, &note(4)).expect_err("somebody replays it");
    assert!(matches!(error, QueueError::ClaimedBy { .. }), "{error}");
    queue.mark_sent("01A", "a", LEASE, Wall(3)).expect("ours");
    let error = queue.decide("01A", open(false), &note(60_004)).expect_err("its outcome is not known");
    assert!(matches!(error, QueueError::OutcomeUnknown { .. }), "{error}");
    assert_eq!(queue.decide("01A", open(true), &note(60_004)).expect("forced").status, Status::Pending);
    let _ = queue.claim("01B", "a", LEASE, Wall(0), false).expect("free");
    queue.resolve("01B", "a", &replayed(1)).expect("ours");
    assert!(queue.decide("01B", open(false), &note(2)).is_err());
    assert_eq!(queue.decide("01B", open(true), &note(2)).expect("forced").status, Status::Pending);
    assert_eq!(queue.decide("nope", open(true), &note(2)), Err(QueueError::NotFound("nope".to_owned())));
}

pub(crate) fn a_purge_deletes_all_but_what_is_being_replayed(provider: &dyn Provider) {
    let letters: Vec<_> = (0..2_500).map(|n| letter(&format!("01{n:04}"))).collect();
    let mut queue = open_with(provider, &letters);
    let _ = queue.claim("010007", "a", LEASE, Wall(0), false).expect("free");
    assert!(matches!(queue.purge("010007", Wall(1)), Err(QueueError::ClaimedBy { .. })));
    queue.purge("010008", Wall(1)).expect("deleted");
    assert_eq!(queue.purge("010008", Wall(1)), Err(QueueError::NotFound("010008".to_owned())));
    let everything = Filter::default();
    let mut steps = Vec::new();
    loop {
        match queue.purge_step(&everything, Wall(1)).expect("deleted") {
            0 => break,
            deleted => steps.push(deleted),
        }
    }
    assert_eq!(steps.iter().sum::<u64>(), 2_498);
    assert!(steps.len() > 1, "in steps, so that captures need not wait for all of it");
    assert_eq!(queue.count(&everything), Ok(1));
    assert_eq!(queue.purge_step(&everything, Wall(60_001)), Ok(1), "the claim ran out");
}

pub(crate) fn an_import_takes_all_or_nothing_and_leaves_what_is_there_alone(provider: &dyn Provider) {
    let mut queue = open_with(provider, &[letter("01A")]);
    queue.decide("01A", Action::Discard, &note(1)).map(drop).expect("discarded");
    let exported = queue.get("01A").expect("there").to_json();
    let read = |id: &str| Record::from_export(exported.replace("01A", id).as_bytes());
    let mut lines = ["01B", "01A", "01C"].into_iter();
    let imported = queue.import(|| lines.next().map(read)).expect("written").expect("taken in");
    assert_eq!(imported, Imported { new: 2, known: 1 });
    let record = queue.get("01B").expect("there");
    assert_eq!((record.status, record.resolved_at), (Status::Discarded, Some(Wall(1))));
    assert!(record.notes.contains("because"));
    let mut lines = [Ok("01D"), Err("cut off".to_owned())].into_iter();
    let imported = queue.import(|| lines.next().map(|line| line.and_then(read))).expect("no fault of the queue");
    assert_eq!(imported, Err("cut off".to_owned()));
    assert_eq!(queue.get("01D"), Err(QueueError::NotFound("01D".to_owned())), "half an import");
}

pub(crate) fn stats_count_by_tool_and_class_what_waits_and_what_may_have_run(provider: &dyn Provider) {
    let mut letters: Vec<_> = ["01A", "01B", "01C", "01D"].map(letter).to_vec();
    letters[1].captured_at = Wall(9_000);
    letters[2].executed = Executed::No;
    letters[3].class = FailureClass::Timeout;
    let mut queue = open_with(provider, &letters);
    queue.decide("01A", Action::Discard, &note(1)).map(drop).expect("discarded");
    let stats = queue.stats(&Filter::default()).expect("counted");
    let told: Vec<_> = stats.iter().map(|row| (row.class, row.maybe, row.of(Status::Pending))).collect();
    assert_eq!(told, [(FailureClass::Timeout, 1, 1), (FailureClass::UpstreamError, 1, 2)]);
    assert_eq!((stats[1].oldest, stats[1].newest), (Some(Wall(5_000)), Some(Wall(9_000))));
    assert_eq!(stats[1].of(Status::Discarded), 1);
    // Sent by somebody who vanished: nobody knows.
    let _ = queue.claim("01C", "a", LEASE, Wall(0), false).expect("free");
    queue.mark_sent("01C", "a", LEASE, Wall(0)).expect("ours");
    assert_eq!(queue.stats(&Filter::default()).expect("counted")[1].maybe, 2);
}

pub(crate) fn a_seal_is_replaced_only_by_who_has_seen_it(provider: &dyn Provider) {
    let mut queue = open_with(provider, &[]);
    let (mut record, _) = Record::of(&letter("01A"), &crate::record::redact::Redactor::new(&[]));
    record.sealed = Some("v1.old".to_owned());
    let mut one = [Ok::<_, ()>(record)].into_iter();
    queue.import(|| one.next()).expect("written").map(drop).expect("taken in");
    let sealed = Filter { sealed: true, ..Filter::default() };
    assert_eq!(queue.list(&sealed).expect("listed")[0].sealed.as_deref(), Some("v1.old"));
    assert_eq!(queue.reseal("01A", "v1.other", "v1.new"), Ok(Resealed::Gone));
    assert_eq!(queue.reseal("01A", "v1.old", "v1.new"), Ok(Resealed::Done));
    assert_eq!(queue.get("01A").expect("there").sealed.as_deref(), Some("v1.new"));
}
