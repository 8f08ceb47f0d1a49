//! The life of dead letters through the real binary: redrives in bulk, decisions of people, sealed originals, transfers.

use std::collections::BTreeSet;

use mcprelay::clock::Wall;
use mcprelay::record::{DeadLetter, Executed, FailureClass, Server, Transport};
use rustix::process::Signal;

use super::replay::{Place, document, refused};
use super::support::process::Output;
use super::support::{Process, records, testpeer};

/// 32 bytes each, in base64.
const KEY: &str = "AQEBAQEBAQEBAQEBAQEBAQEBAQEBAQEBAQEBAQEBAQE=";
const NEWER_KEY: &str = "AgICAgICAgICAgICAgICAgICAgICAgICAgICAgICAgI=";

/// A dead letter of a server that runs in the place's directory and logs what it is sent.
fn letter(place: &Place, number: u32, tool: &str, arguments: &str) -> DeadLetter {
    let server = [&testpeer().display().to_string(), "server", "--log", "log"];
    DeadLetter {
        // The store's own letters lie in the future, where no age reaches them.
        captured_at: Wall(1_700_000_000_000 + i64::from(number) * 1_000),
        server: Server {
            name: "fake".to_owned(),
            transport: Transport::Stdio,
            argv: server.map(str::to_owned).to_vec(),
            cwd: Some(place.dir.path().display().to_string()),
        },
        arguments: Some(arguments.as_bytes().to_vec()),
        ..records::letter(number, tool, FailureClass::Timeout)
    }
}

/// One that appends its number to the file `effects`.
fn effect(place: &Place, number: u32, then: &str) -> DeadLetter {
    let file = place.dir.join("effects").display().to_string();
    letter(place, number, "side-effect", &format!(r#"{{"file":{file:?},"line":"{number}","then":"{then}"}}"#))
}

fn filled(name: &str, config: &str, letters: impl FnOnce(&Place) -> Vec<DeadLetter>) -> Place {
    let place = Place::new(name, config);
    records::store(place.dir.path(), letters(&place), Vec::new(), Vec::new());
    place
}

impl Place {
    fn effects(&self) -> Vec<String> {
        self.dir.read("effects").lines().map(str::to_owned).collect()
    }

    /// The processes that servers with a log ran in.
    fn servers(&self) -> BTreeSet<String> {
        self.dir.read("log").lines().filter_map(|line| line.split_once('\t').map(|(pid, _)| pid.to_owned())).collect()
    }

    fn json(&self, args: &[&str]) -> (i32, serde_json::Value) {
        let output = self.run(args);
        (output.code(), document(&output))
    }
}

fn id(number: u32) -> String {
    format!("01LETTER{number:018}")
}

#[test]
fn a_redrive_takes_all_that_wait_the_oldest_first_with_one_process_for_a_server() {
    let place = filled("all-story", "", |place| {
        let mut letters: Vec<_> = (0..60).map(|number| effect(place, number, "answer")).collect();
        letters[7] = effect(place, 7, "error");
        letters[9] = letter(place, 9, "echo", r#"{"token":"hidden"}"#);
        letters
    });
    let output = place.run(&["replay", "run", "--all"]);
    assert_eq!(output.code(), 1, "{output:#?}");
    assert_eq!(output.stdout.lines().last(), Some("replay --all: 60 selected, 58 ok, 1 failed, 1 skipped"));
    assert_eq!(output.stdout.lines().next(), Some(format!("replay ok: {}", id(0)).as_str()));
    assert!(output.stderr.contains(&format!("mcprelay: replay failed: {}: ", id(7))), "{output:#?}");
    let skipped = format!("mcprelay: replay skipped: {}: these arguments were redacted: token; give", id(9));
    assert!(output.stderr.contains(&skipped), "{output:#?}");
    assert!(output.stderr.contains("60 of the selected calls may have run before"), "{output:#?}");
    let expected: Vec<String> = (0..60).filter(|number| *number != 9).map(|number| number.to_string()).collect();
    assert_eq!(place.effects(), expected, "more than 50, in their order");
    assert_eq!(place.servers().len(), 1);
    // Each left its log line, its event and its audit row.
    assert_eq!(output.stderr.matches("\"tool\":\"side-effect\"").count(), 59);
    let (_, report) = place.json(&["report", "--json"]);
    assert_eq!((&report["totals"]["calls"], &report["totals"]["replayed"]), (&59.into(), &59.into()), "{report}");

    // What failed is tried again, and what was skipped stays as it was.
    let (code, told) = place.json(&["replay", "run", "--all", "--json"]);
    assert_eq!((code, &told["selected"], &told["failed"], &told["skipped"]), (1, &2.into(), &1.into(), &1.into()));
    assert_eq!(told["records"][0]["record_status"], "failed_replay");
    assert_eq!(told["records"][0]["error"]["kind"], "upstream_error");
    assert_eq!(told["records"][1]["error"]["kind"], "redacted");
    assert_eq!(place.run(&["replay", "run", "--all", "--tool", "none*"]).code(), 0, "nothing is no failure");
}

#[test]
fn filters_narrow_a_redrive_and_a_limit_takes_the_oldest() {
    let place = filled("all-filters", "", |place| (0..6).map(|number| effect(place, number, "answer")).collect());
    let run = |args: &[&str]| {
        let output = place.run(&[&["replay", "run", "--all"], args].concat());
        assert_eq!(output.code(), 0, "{output:#?}");
        place.effects().join("")
    };
    assert_eq!(run(&["--tool", "side-*", "--limit", "2"]), "01");
    assert_eq!(run(&["--correlation-id", "c-4"]), "014");
    assert_eq!(run(&["--until", "2023-11-14T22:13:22Z"]), "0142");
    assert_eq!(run(&["--server", "other"]), "0142");
    assert_eq!(run(&["--class", "transport"]), "0142");
    assert_eq!(run(&["--status", "failed_replay"]), "0142");
    assert_eq!(run(&["--caller", "local"]), "014235");
}

#[test]
fn a_redrive_stops_after_so_many_failures_and_parks_what_fails_too_often() {
    let config = "queue: {max_redrives: 2}\n";
    let place = filled("all-failures", config, |place| (0..5).map(|number| effect(place, number, "error")).collect());
    let (code, told) = place.json(&["replay", "run", "--all", "--max-failures", "2", "--json"]);
    assert_eq!(
        (code, &told["failed"], &told["not_run"], &told["stopped"]),
        (1, &2.into(), &3.into(), &"max_failures".into())
    );
    let output = place.run(&["replay", "run", "--all", "--limit", "1"]);
    assert!(output.stderr.contains("(parked now)"), "{output:#?}");
    assert_eq!(place.status(&id(0)), "parked");
    let output = place.run(&["replay", "run", "--all"]);
    assert!(output.stdout.contains("4 selected"), "a parked call is left out: {output:#?}");
    assert!(output.stderr.contains("left out: 1 parked, after"), "{output:#?}");
    let (_, stats) = place.json(&["replay", "stats", "--json"]);
    assert_eq!((&stats["total"]["parked"], &stats["total"]["waiting"]), (&2.into(), &5.into()), "{stats}");
    refused(&place.run(&["replay", "run", &id(0), "--json"]), "resolved", "parked");
    assert_eq!(place.run(&["replay", "reopen", &id(0), "--note", "fixed"]).code(), 0);
    assert_eq!(place.status(&id(0)), "pending");
    let forced = place.run(&["replay", "run", &id(1), "--force"]);
    assert!(forced.stderr.contains("replay failed") && forced.stderr.contains("is parked: 2 replays"), "{forced:#?}");
}

#[test]
fn calls_that_may_have_run_are_counted_apart_and_left_out_when_asked() {
    let config = "reliability: {per_tool: {echo: {idempotent: true}}}\n";
    let place = filled("all-unknown", config, |place| {
        let mut letters: Vec<_> = (0..3).map(|number| effect(place, number, "answer")).collect();
        letters[1].executed = Executed::No;
        // Today's configuration calls it idempotent.
        letters.push(letter(place, 3, "echo", "{}"));
        letters
    });
    let (code, plan) = place.json(&["replay", "run", "--all", "--plan", "--json"]);
    assert_eq!((code, &plan["selected"], &plan["unknown"]), (0, &4.into(), &2.into()), "{plan}");
    let (_, first) = place.json(&["replay", "run", "--all", "--exclude-unknown", "--limit", "1", "--plan", "--json"]);
    assert_eq!(
        (&first["selected"], &first["unknown"]),
        (&1.into(), &0.into()),
        "what is left out does not count: {first}"
    );
    let (code, told) = place.json(&["replay", "run", "--all", "--exclude-unknown", "--json"]);
    assert_eq!((code, &told["ok"], &told["left_out"]["unknown"]), (0, &2.into(), &2.into()), "{told}");
    assert_eq!(place.effects(), ["1"]);
    place.dir.write(
        "mcprelay.config.yaml",
        "queue: {redrive_unknown: exclude}\npolicy: {rules: [{tool: x, action: deny}]}\n",
    );
    let output = place.run(&["replay", "run", "--all"]);
    assert!(output.stderr.contains("left out: 2 that may have run"), "{output:#?}");
    let (_, stats) = place.json(&["replay", "stats", "--json"]);
    assert_eq!((&stats["total"]["unknown"], &stats["total"]["waiting"]), (&2.into(), &2.into()), "{stats}");
    // One by one a person may still decide.
    assert_eq!(place.run(&["replay", "run", &id(0)]).code(), 0);
}

#[test]
fn a_plan_tells_what_would_run_and_starts_nothing() {
    let place = Place::new("all-plan", "policy: {rules: [{tool: echo, args: {n: {equals: 1}}, action: deny}]}\n");
    let letters = vec![
        effect(&place, 0, "answer"),
        effect(&place, 1, "answer"),
        letter(&place, 2, "echo", r#"{"n":1}"#),
        letter(&place, 3, "echo", r#"{"token":"hidden"}"#),
    ];
    let mut events: Vec<_> = (0..10).map(|number| records::event(number, "side-effect")).collect();
    for event in &mut events {
        (event.server, event.at) = ("fake".to_owned(), Wall(now_millis() - 60_000));
    }
    records::store(place.dir.path(), letters, Vec::new(), events);
    let (code, plan) = place.json(&["replay", "run", "--all", "--plan", "--json"]);
    assert_eq!((code, &plan["selected"], &plan["runnable"]), (0, &4.into(), &2.into()), "{plan}");
    let [echo, effect] = plan["groups"].as_array().expect("groups").as_slice() else { panic!("{plan}") };
    assert_eq!(echo["refused"], serde_json::json!({"policy": 1, "redacted": 1}));
    assert_eq!((&echo["p50_ms"], &effect["runnable"]), (&serde_json::Value::Null, &2.into()));
    assert_eq!(effect["estimate_ms"].as_u64(), effect["p50_ms"].as_u64().map(|p50| 2 * p50), "{plan}");
    let text = place.run(&["replay", "run", "--all", "--plan"]);
    assert!(text.stdout.contains("plan: 4 selected, 2 would run, 4 may have run before"), "{text:#?}");
    assert_eq!(place.calls(), [""; 0]);

    // A dry run of all asks the server and ends as the real run would.
    let output = place.run(&["replay", "run", "--all", "--dry-run"]);
    assert_eq!(output.code(), 1, "{output:#?}");
    assert_eq!(output.stdout.lines().last(), Some("replay --all: 4 selected, 2 ok, 0 failed, 2 skipped"));
    let (_, told) = place.json(&["replay", "run", "--all", "--dry-run", "--json"]);
    assert_eq!(
        (&told["records"][0]["dry_run"], &told["records"][2]["refusals"][0]["kind"]),
        (&true.into(), &"policy".into())
    );
    assert_eq!(place.calls(), [""; 0]);
    assert_eq!(place.status(&id(0)), "pending");
}

fn now_millis() -> i64 {
    let since = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).expect("after 1970");
    i64::try_from(since.as_millis()).expect("before the end of time")
}

#[test]
fn a_server_that_ends_is_started_again_and_one_that_does_not_start_is_not_tried_for_every_call() {
    let place = filled("all-crash", "", |place| {
        let mut letters: Vec<_> = (0..4).map(|number| effect(place, number, "answer")).collect();
        letters[1] = effect(place, 1, "crash");
        letters
    });
    let output = place.run(&["replay", "run", "--all"]);
    assert!(output.stdout.ends_with("4 selected, 3 ok, 1 failed, 0 skipped\n"), "{output:#?}");
    assert_eq!((place.effects().join(""), place.servers().len()), ("0123".to_owned(), 2));

    let place = filled("all-unreachable", "", |place| (0..5).map(|number| effect(place, number, "answer")).collect());
    let starts = place.dir.join("starts");
    let script = format!("echo x >> {}; exit 7", starts.display());
    let output = place.run(&["replay", "run", "--all", "--", "sh", "-c", &script]);
    assert!(output.stdout.ends_with("5 selected, 0 ok, 5 failed, 0 skipped\n"), "{output:#?}");
    // The opening itself may start it twice: once for the probe, once without.
    assert!(place.dir.read("starts").lines().count() <= 2, "{}", place.dir.read("starts"));
    assert_eq!(place.status(&id(4)), "pending");
    let replays = &place.record(&id(0))["replay"];
    assert_eq!((&replays["attempts"], &replays["failures"]), (&serde_json::json!([]), &0.into()), "nothing was sent");
}

#[test]
fn one_server_cannot_stand_for_several() {
    let place = filled("all-several", "", |place| {
        let mut letters = vec![effect(place, 0, "answer"), effect(place, 1, "answer")];
        letters[1].server.name = "other".to_owned();
        letters
    });
    let server = testpeer().display().to_string();
    let output = place.run(&["replay", "run", "--all", "--json", "--", &server, "server"]);
    refused(&output, "several_servers", "narrow them with --server");
    assert_eq!(place.effects(), [""; 0]);
    let output = place.run(&["replay", "run", "--all", "--server", "other", "--", &server, "server"]);
    assert_eq!((output.code(), place.effects()), (0, vec!["1".to_owned()]), "{output:#?}");
}

#[test]
fn a_rate_is_kept() {
    let place = filled("all-rate", "", |place| (0..4).map(|number| effect(place, number, "answer")).collect());
    let began = std::time::Instant::now();
    assert_eq!(place.run(&["replay", "run", "--all", "--rate", "10/s"]).code(), 0);
    // Three pauses of 100 ms lie between four calls.
    assert!(began.elapsed() >= std::time::Duration::from_millis(300), "{:?}", began.elapsed());
    assert_eq!(place.effects().len(), 4);
}

/// Waits until the servers with a log have received so many calls.
fn until_calls(place: &Place, count: usize, process: &Process) {
    while place.calls().len() < count {
        assert!(!process.stderr().contains("replay --all:"), "it ended: {}", process.stderr());
        std::thread::yield_now();
    }
}

#[test]
fn a_signal_ends_a_redrive_after_the_call_in_hand() {
    let place = filled("all-signal", "", |place| {
        vec![letter(place, 0, "sleep", r#"{"ms":700}"#), effect(place, 1, "answer"), effect(place, 2, "answer")]
    });
    let mut process = place.start(&["replay", "run", "--all", "--json"]).start();
    process.close_stdin();
    until_calls(&place, 1, &process);
    process.signal(Signal::INT);
    assert_eq!(process.wait().code(), Some(1));
    let told: serde_json::Value = serde_json::from_slice(&process.next().0).expect("a document");
    assert_eq!(
        (&told["ok"], &told["not_run"], &told["stopped"]),
        (&1.into(), &2.into(), &"interrupted".into()),
        "{told}"
    );
    assert!(process.stderr_at_end().contains("stopping after the call in hand"));
    assert_eq!((place.status(&id(0)), place.effects()), ("replayed".to_owned(), Vec::<String>::new()));
}

#[test]
fn sql_4_a_second_signal_ends_at_once_and_the_outcome_stays_unknown() {
    let place = filled("all-signals", "", |place| vec![letter(place, 0, "hang", "{}"), effect(place, 1, "answer")]);
    let mut process = place.start(&["replay", "run", "--all"]).start();
    process.close_stdin();
    until_calls(&place, 1, &process);
    process.signal(Signal::INT);
    while !process.stderr().contains("once more to stop at once") {
        std::thread::yield_now();
    }
    process.signal(Signal::INT);
    assert_eq!(process.wait().code(), Some(1));
    let summary = process.next();
    assert_eq!(summary.text(), "replay --all: 2 selected, 0 ok, 1 failed, 0 skipped, 1 not run, interrupted");
    assert!(process.stderr_at_end().contains("interrupted before the answer came; the call may have run"));
    // Nobody knows, so nobody repeats it unasked.
    refused(&place.run(&["replay", "run", &id(0), "--json"]), "outcome_unknown", "--force");
    let output = place.run(&["replay", "run", "--all"]);
    assert!(output.stderr.contains("left out: 1 sent by a run that died"), "{output:#?}");
    assert_eq!(place.effects(), ["1"]);
    let output = place.run(&["replay", "reopen", &id(0)]);
    assert!(output.code() == 1 && output.stderr.contains("--force"), "{output:#?}");
    assert_eq!(place.run(&["replay", "settle", &id(0), "--executed", "no"]).code(), 0);
    assert_eq!(place.record(&id(0))["replay"]["attempts"][0]["outcome"], "unknown");
    assert_eq!(place.status(&id(0)), "pending");
}

#[test]
fn sql_4_twenty_shells_replay_the_same_200_records_and_each_runs_once() {
    let place = filled("all-race", "", |place| (0..200).map(|number| effect(place, number, "answer")).collect());
    let shells: Vec<Process> = (0..20).map(|_| place.start(&["replay", "run", "--all", "--json"]).start()).collect();
    let mut ok = 0;
    for mut process in shells {
        process.close_stdin();
        let told: serde_json::Value = serde_json::from_slice(&process.next().0).expect("a document");
        process.wait();
        assert_eq!(told["failed"], 0, "{told}");
        ok += told["ok"].as_u64().expect("a number");
    }
    let effects = place.effects();
    assert_eq!((effects.len(), effects.iter().collect::<BTreeSet<_>>().len(), ok), (200, 200, 200));
    let (_, stats) = place.json(&["replay", "stats", "--json"]);
    assert_eq!(stats["total"]["statuses"]["replayed"], 200);
}

#[test]
fn sql_4_a_redrive_leaves_alone_what_somebody_else_has_replayed_since_it_began() {
    let place = filled("all-meanwhile", "", |place| {
        vec![letter(place, 0, "sleep", r#"{"ms":2500}"#), effect(place, 1, "error"), effect(place, 2, "answer")]
    });
    let mut process = place.start(&["replay", "run", "--all", "--json"]).start();
    process.close_stdin();
    until_calls(&place, 1, &process);
    // It fails, so that it could be tried again; but the other one has not decided that.
    assert_eq!(place.run(&["replay", "run", &id(1)]).code(), 1);
    let told: serde_json::Value = serde_json::from_slice(&process.next().0).expect("a document");
    process.wait();
    assert_eq!((&told["ok"], &told["skipped"]), (&2.into(), &1.into()), "{told}");
    assert_eq!(told["records"][1]["error"]["kind"], "replayed_meanwhile");
    assert_eq!(place.effects(), ["1", "2"]);
}

#[test]
fn people_settle_discard_reopen_and_purge() {
    let place = filled("decisions", "", |place| (0..5).map(|number| effect(place, number, "answer")).collect());
    let (code, told) =
        place.json(&["replay", "settle", &id(0), "--executed", "yes", "--note", "token=abc in the shop", "--json"]);
    assert_eq!((code, &told["status"], &told["executed"]), (0, &"settled".into(), &"yes".into()));
    let record = place.record(&id(0));
    assert_eq!(record["replay"]["notes"][0]["note"], "token=[REDACTED] in the shop");
    let text = place.run(&["replay", "inspect", &id(0)]).stdout;
    assert!(text.contains("settle (executed yes): token=[REDACTED] in the shop"), "{text}");
    refused(&place.run(&["replay", "run", &id(0), "--json"]), "resolved", "--force repeats it");
    assert_eq!(place.run(&["replay", "run", &id(0), "--force"]).code(), 0);

    // A list of records goes on behind one that is refused.
    let (code, told) = place.json(&["replay", "discard", &id(0), "nope", &id(1), "--json"]);
    assert_eq!((code, &told["discarded"]), (1, &1.into()), "{told}");
    assert_eq!((&told["refused"][0]["kind"], &told["refused"][1]["kind"]), (&"resolved".into(), &"not_found".into()));
    refused(&place.run(&["replay", "run", &id(1), "--force"]), "", "already discarded");

    // Filters ask, and nobody is there to answer.
    refused(&place.run(&["replay", "discard", "--tool", "side-*", "--json"]), "not_confirmed", "--yes");
    assert_eq!(place.status(&id(2)), "pending");
    let output = place.run(&["replay", "discard", "--tool", "side-*", "--yes", "--note", "too late"]);
    assert_eq!((output.code(), output.stdout.as_str()), (0, "discarded: 3\n"), "{output:#?}");
    assert_eq!(place.run(&["replay", "reopen", &id(3)]).code(), 0);
    assert_eq!(
        place.run(&["replay", "run", "--all"]).stdout.lines().last(),
        Some("replay --all: 1 selected, 1 ok, 0 failed, 0 skipped")
    );

    refused(&place.run(&["replay", "purge", &id(4), "--json"]), "not_confirmed", "--yes");
    assert_eq!(place.run(&["replay", "purge", "--older-than", "3650d", "--yes"]).stdout, "purged: 0\n");
    let (code, told) =
        place.json(&["replay", "purge", "--older-than", "1d", "--status", "replayed", "--yes", "--json"]);
    assert_eq!((code, &told["purged"]), (0, &2.into()), "{told}");
    assert_eq!(place.run(&["replay", "purge", &id(4), "--yes"]).stdout, "purged: 1\n");
    assert_eq!(place.ids(), [id(2), id(1)]);
    // Everything that people did is in the audit trail, which holds.
    let (_, audit) = place.json(&["audit", "list", "--json"]);
    let text = audit.to_string();
    for kind in ["settled", "discarded", "reopened", "purged"] {
        assert!(text.contains(&format!("\"kind\":\"{kind}\"")), "no {kind} in {text}");
    }
    assert!(!text.contains("token=abc"), "{text}");
    assert_eq!(place.run(&["audit", "verify"]).code(), 0);
}

#[test]
fn a_purge_gives_its_space_back() {
    let place = filled("purge-space", "", |place| {
        let text = "x".repeat(20_000);
        (0..400).map(|number| letter(place, number, "echo", &format!(r#"{{"text":"{text}"}}"#))).collect()
    });
    let size = || {
        let names = ["queue.db", "queue.db-wal"].map(|name| place.dir.join(".mcprelay").join(name));
        names.iter().filter_map(|path| path.metadata().ok()).map(|metadata| metadata.len()).sum::<u64>()
    };
    let before = size();
    let output = place.run(&["replay", "purge", "--all", "--status", "pending", "--yes"]);
    assert_eq!(output.stdout, "purged: 400\n", "{output:#?}");
    assert!(size() < before / 3, "{before} bytes before, {} after", size());
}

#[test]
fn a_queue_moves_to_another_machine_as_a_whole_or_not_at_all() {
    let place = filled("export", "", |place| (0..30).map(|number| effect(place, number, "answer")).collect());
    assert_eq!(place.run(&["replay", "settle", &id(3), "--executed", "yes"]).code(), 0);
    assert_eq!(place.run(&["replay", "run", &id(4)]).code(), 0);
    let output = place.run(&["replay", "export", "--output", "out.jsonl"]);
    assert_eq!(output.code(), 0, "{output:#?}");
    let mode = std::os::unix::fs::MetadataExt::mode(&place.dir.join("out.jsonl").metadata().expect("there"));
    assert_eq!(mode & 0o777, 0o600);
    refused(&place.run(&["replay", "export", "--output", "out.jsonl"]), "", "File exists");
    let exported = place.dir.read("out.jsonl");
    assert_eq!(place.run(&["replay", "export"]).stdout, exported, "on standard output too");
    assert_eq!(place.run(&["replay", "export", "--status", "settled"]).stdout.lines().count(), 1);

    let other = Place::new("import", "");
    let import = |text: &str| {
        other.dir.write("in.jsonl", text);
        other.run(&["replay", "import", "in.jsonl", "--json"])
    };
    let cut = import(&exported[..exported.len() - 40]);
    refused(&cut, "input", "in.jsonl, line 30: ");
    assert!(cut.stderr.contains("the line is cut off; nothing was imported"), "{cut:#?}");
    assert!(!other.dir.join(".mcprelay").exists(), "nothing is left of it");
    let lines: Vec<&str> = exported.lines().collect();
    let broken = [&lines[..10], &["{\"id\":1}"], &lines[10..]].concat().join("\n");
    refused(&import(&broken), "input", "line 11: the member schema_version is missing");
    refused(&other.run(&["replay", "import", "none"]), "", "cannot read none");

    let output = import(&exported);
    assert_eq!((output.code(), document(&output)), (0, serde_json::json!({"imported": 30, "known": 0})), "{output:#?}");
    assert_eq!(other.run(&["replay", "export"]).stdout, exported, "byte for byte");
    // A second time nothing changes, also from a pipe and over what was done since.
    assert_eq!(other.run(&["replay", "discard", &id(0)]).code(), 0);
    let piped = other.start(&["replay", "import", "-"]).run(exported.as_bytes());
    assert_eq!(piped.stdout, "imported: 0 (30 were there already and stay as they are)\n", "{piped:#?}");
    assert_eq!(other.status(&id(0)), "discarded");
    let (code, told) = other.json(&["replay", "run", "--all", "--json"]);
    assert_eq!((code, &told["ok"]), (0, &27.into()), "{told}");
    assert_eq!(place.effects().len(), 28, "the stored server ran where it ran");
}

fn keyed(place: &Place, args: &[&str], key: Option<&str>, old: Option<&str>) -> Output {
    let start = place.start(args);
    let start = match key {
        Some(key) => start.env("SEAL", key),
        None => start.no_env("SEAL"),
    };
    let start = match old {
        Some(old) => start.env("OLD", old),
        None => start.no_env("OLD"),
    };
    start.run(b"")
}

#[test]
fn a_sealed_original_is_sent_exactly_as_it_failed() {
    let place = Place::new("seal", "queue: {seal: {key_env: SEAL, previous: [{key_env: OLD}]}}\n");
    // The note is what the client wrote itself.
    let arguments = r#"{ "token":"s3cr3t-A", "n":1.10,"list":[{"password":"s3cr3t-B"}],"note":"was [REDACTED]" }"#;
    let call = format!(
        r#"{{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{{"name":"echo","arguments":{arguments}}}}}"#
    );
    let lose = |key: Option<&str>| {
        let before = place.ids();
        let start =
            place.start(&["run", "--timeout-ms", "50", "--max-attempts", "1", "--", "sh", "-c", "cat >/dev/null"]);
        let start = if let Some(key) = key { start.env("SEAL", key) } else { start.no_env("SEAL") };
        let output = start.run(format!("{call}\n").as_bytes());
        let new = place.ids().into_iter().find(|id| !before.contains(id));
        (new.unwrap_or_else(|| panic!("no dead letter: {output:#?}")), output)
    };
    let (sealed, _) = lose(Some(KEY));
    let (open, output) = lose(None);
    assert!(
        output.stderr.contains("the environment variable SEAL is not set; originals are not sealed"),
        "{output:#?}"
    );
    assert!(place.record(&sealed)["sealed"].as_str().is_some_and(|text| text.starts_with("v1.")));
    assert_eq!(place.record(&open)["sealed"], serde_json::Value::Null);
    for name in ["queue.db", "queue.db-wal", "history.db", "history.db-wal"] {
        let bytes = std::fs::read(place.dir.join(".mcprelay").join(name)).unwrap_or_default();
        assert!(!bytes.windows(6).any(|window| window == b"s3cr3t"), "in clear in {name}");
    }
    let peer = testpeer().display().to_string();
    let run = |id: &str, args: &[&str], key, old| {
        let server = ["--", &peer, "server", "--log", "log"];
        keyed(&place, &[&["replay", "run", id], args, &server].concat(), key, old)
    };
    // Without the key, or with another one, everything is as before.
    refused(&run(&sealed, &["--json"], None, None), "redacted", "no key is at hand");
    refused(&run(&sealed, &["--json"], Some(NEWER_KEY), None), "redacted", "is not among queue.seal");
    let usage = run(&sealed, &[], Some("hunter2"), None);
    assert!(usage.code() == 2 && !usage.stderr.contains("hunter2"), "{usage:#?}");
    let dry = run(&sealed, &["--dry-run", "--json"], Some(KEY), None);
    assert_eq!((dry.code(), &document(&dry)["original"]), (0, &true.into()), "{dry:#?}");
    assert!(!dry.stdout.contains("s3cr3t"), "{dry:#?}");

    // A new key: the old one opens until everything is sealed anew.
    refused(&keyed(&place, &["replay", "reseal", "--json"], None, Some(KEY)), "no_key", "queue.seal.key_env");
    let lost = keyed(&place, &["replay", "reseal", "--json"], Some(NEWER_KEY), None);
    assert_eq!((lost.code(), document(&lost)["failed"][0]["id"].as_str()), (1, Some(sealed.as_str())), "{lost:#?}");
    let done = keyed(&place, &["replay", "reseal"], Some(NEWER_KEY), Some(KEY));
    assert_eq!(
        (done.code(), done.stdout.as_str()),
        (0, "resealed: 1 (0 were sealed with the current key, 0 failed)\n")
    );
    let again = keyed(&place, &["replay", "reseal"], Some(NEWER_KEY), None);
    assert_eq!(again.stdout, "resealed: 0 (1 were sealed with the current key, 0 failed)\n", "{again:#?}");

    let output = run(&sealed, &[], Some(NEWER_KEY), None);
    assert_eq!(output.code(), 0, "{output:#?}");
    let call = &place.calls()[0];
    assert!(call.contains(&format!("\"arguments\":{arguments}")), "{call}");
    // The tool echoed it; nothing of it is shown or kept.
    let kept = place.run(&["replay", "inspect", &sealed, "--json"]).stdout;
    assert!(!output.stdout.contains("s3cr3t") && !output.stderr.contains("s3cr3t") && !kept.contains("s3cr3t"));
    // The seal travels with the record, and is worth nothing on another one.
    let exported = place.run(&["replay", "export"]).stdout;
    assert!(exported.contains(place.record(&sealed)["sealed"].as_str().expect("a seal")));
}

#[test]
fn a_bulk_redrive_opens_seals_too() {
    let place = Place::new("seal-all", "queue: {seal: {key_file: key}}\n");
    place.dir.write("key", &format!("{KEY}\n"));
    for number in 0..3 {
        let call = format!(r#"{{"name":"echo","arguments":{{"token":"s3cr3t-{number}"}}}}"#);
        place.lose(&call);
    }
    let peer = testpeer().display().to_string();
    let output = place.run(&["replay", "run", "--all", "--", &peer, "server", "--log", "log"]);
    assert_eq!(output.code(), 0, "{output:#?}");
    assert!(output.stderr.contains("can be read by others"), "{output:#?}");
    let calls = place.calls().join("\n");
    assert!((0..3).all(|number| calls.contains(&format!("s3cr3t-{number}"))), "{calls}");
    place.dir.write("key", "no key");
    let validated = place.run(&["validate"]);
    assert!(validated.code() == 2 && validated.stderr.contains("openssl rand -base64 32"), "{validated:#?}");
}

#[test]
fn a_dry_run_shows_what_the_tool_s_schema_says_today() {
    let place = Place::new("schema", "");
    let id = place.lose(r#"{"name":"write","arguments":{"path":7,"mode":"x"}}"#);
    let tools = r#"[{"name":"write","inputSchema":{"type":"object","required":["text"],"properties":{"path":{"type":"string","pattern":"^/"},"mode":{"enum":["r","w"]}}}}]"#;
    let peer = testpeer().display().to_string();
    let run = |args: &[&str]| {
        let server = ["--", &peer, "server", "--tools", tools];
        place.run(&[&["replay", "run", &id, "--dry-run"], args, &server].concat())
    };
    let output = run(&["--json"]);
    refused(&Output { stdout: String::new(), ..run(&[]) }, "", "lacks the member \"text\"");
    let told = document(&output);
    assert_eq!((output.code(), &told["refusals"][0]["kind"]), (1, &"schema".into()), "{told}");
    let message = told["refusals"][0]["message"].as_str().expect("text");
    for part in ["path must be of type string, it is a number", "mode must be one of \"r\", \"w\""] {
        assert!(message.contains(part), "no {part} in {message}");
    }
    assert_eq!(told["unchecked"], serde_json::json!(["pattern"]));
    let mended = ["--set", "path=/a", "--set", "mode=r", "--set", "text=t"];
    let output = run(&mended);
    assert_eq!(output.code(), 0, "{output:#?}");
    assert!(output.stdout.contains("unchecked:   pattern of the tool's schema\n"), "{output:#?}");
}

#[test]
fn values_come_as_text_json_from_the_environment_or_a_file() {
    let place = Place::new("set", "");
    let id = place.lose(r#"{"name":"echo","arguments":{"token":"hidden","n":1,"password":"hidden"}}"#);
    place.dir.write("secret", "s3cr3t-F\n");
    let args = [
        "--set-env",
        "token=NEW_TOKEN",
        "--set-file",
        "password=secret",
        "--set-json",
        "n={\"a\": [1.10]}",
        "--set",
        "n.b=2",
    ];
    let missing = place.replay(&id, &args, "");
    assert_eq!(missing.code(), 2, "{missing:#?}");
    assert!(missing.stderr.contains("--set-env token: the environment variable NEW_TOKEN is not set"), "{missing:#?}");
    let start = place.start(&["replay", "run", &id]).args(args).env("NEW_TOKEN", "s3cr3t-E").arg("--").arg(testpeer());
    let output = start.args(["server", "--log"]).arg(place.dir.join("log")).run(b"");
    assert_eq!(output.code(), 0, "{output:#?}");
    let expected = r#""arguments":{"token":"s3cr3t-E","n":{"b":"2","a": [1.10]},"password":"s3cr3t-F"}"#;
    assert!(place.calls()[0].contains(expected), "{:?}", place.calls());
    assert!(!output.stdout.contains("s3cr3t") && !output.stderr.contains("s3cr3t"), "{output:#?}");
    let usage = place.replay(&id, &["--set-json", "n=hunter2"], "");
    assert!(usage.code() == 2 && !usage.stderr.contains("hunter2"), "{usage:#?}");
}

#[test]
fn sql_2_a_read_only_queue_is_listed_counted_and_exported() {
    let place = filled("read-only", "", |place| vec![effect(place, 0, "answer")]);
    use std::os::unix::fs::PermissionsExt as _;
    let folder = place.dir.join(".mcprelay");
    let mode = |path: &std::path::Path, mode| {
        std::fs::set_permissions(path, std::fs::Permissions::from_mode(mode)).expect("set");
    };
    mode(&folder.join("queue.db"), 0o444);
    mode(&folder, 0o555);
    // root may write all the same; then everything works.
    for args in
        [&["replay", "list"][..], &["replay", "stats"], &["replay", "export"], &["replay", "run", "--all", "--plan"]]
    {
        let output = place.run(args);
        assert_eq!(output.code(), 0, "{args:?}: {output:#?}");
    }
    mode(&folder, 0o755);
}
