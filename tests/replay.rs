//! `replay`, `policy test --id` and `demo`: the real binary, real dead letters, real servers.

use super::support::process::Output;
use super::support::{Process, Start, TempDir, mcprelay, testpeer};

/// A server that takes every call and answers none: whatever is called becomes a dead letter.
const SILENT: [&str; 3] = ["sh", "-c", "cat >/dev/null"];

/// A directory with a queue in it.
pub(crate) struct Place {
    pub(crate) dir: TempDir,
}

impl Place {
    pub(crate) fn new(name: &str, config: &str) -> Place {
        let dir = TempDir::new(name);
        // One rule, so that no warning about a missing policy stands in the way.
        let policy =
            if config.contains("policy:") { "" } else { "policy: {rules: [{tool: delete_*, action: deny}]}\n" };
        dir.write("mcprelay.config.yaml", &format!("{config}{policy}"));
        Place { dir }
    }

    pub(crate) fn start(&self, args: &[&str]) -> Start {
        Start::new(mcprelay()).args(args).cwd(self.dir.path()).env("XDG_STATE_HOME", self.dir.join("state"))
    }

    pub(crate) fn run(&self, args: &[&str]) -> Output {
        self.start(args).run(b"")
    }

    /// Calls a tool through `mcprelay run OPTIONS -- SERVER` and gives the new dead letter's id.
    pub(crate) fn fail(&self, options: &[&str], server: &[&str], params: &str) -> String {
        let before = self.ids();
        let call = format!(r#"{{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{params}}}"#) + "\n";
        let start = self.start(&["run"]).args(options).arg("--").args(server);
        let output = start.run(call.as_bytes());
        let new: Vec<String> = self.ids().into_iter().filter(|id| !before.contains(id)).collect();
        let [id] = new.as_slice() else { panic!("{} dead letters instead of one: {output:#?}", new.len()) };
        id.clone()
    }

    /// The same with the silent server.
    pub(crate) fn lose(&self, params: &str) -> String {
        self.fail(&["--timeout-ms", "50", "--max-attempts", "1"], &SILENT, params)
    }

    pub(crate) fn ids(&self) -> Vec<String> {
        let output = self.run(&["replay", "list"]);
        assert_eq!(output.code(), 0, "{output:#?}");
        output.stdout.lines().filter_map(|line| line.split('\t').next().map(str::to_owned)).collect()
    }

    /// Replays `id` against `testpeer server OPTIONS`.
    pub(crate) fn replay(&self, id: &str, args: &[&str], server: &str) -> Output {
        let start = self.start(&["replay", "run", id]).args(args).arg("--").arg(testpeer()).arg("server");
        start.args(["--log"]).arg(self.dir.join("log")).args(server.split_whitespace()).run(b"")
    }

    /// The record as JSON.
    pub(crate) fn record(&self, id: &str) -> serde_json::Value {
        let output = self.run(&["replay", "inspect", id, "--json"]);
        assert_eq!(output.code(), 0, "{output:#?}");
        document(&output)
    }

    pub(crate) fn status(&self, id: &str) -> String {
        self.record(id)["replay"]["status"].as_str().unwrap_or_default().to_owned()
    }

    /// The `tools/call` frames that servers with a log have received.
    pub(crate) fn calls(&self) -> Vec<String> {
        let log = self.dir.read("log");
        let frames = log.lines().filter_map(|line| line.split_once('\t').map(|(_, frame)| frame));
        frames.filter(|frame| frame.contains("\"tools/call\"")).map(str::to_owned).collect()
    }
}

/// The one JSON document on stdout.
pub(crate) fn document(output: &Output) -> serde_json::Value {
    assert_eq!(output.stdout.lines().count(), 1, "not one line: {output:#?}");
    serde_json::from_str(&output.stdout).unwrap_or_else(|error| panic!("{error}: {output:#?}"))
}

#[track_caller]
pub(crate) fn refused(output: &Output, kind: &str, text: &str) {
    assert_eq!(output.code(), 1, "{output:#?}");
    assert!(output.stderr.contains(text), "no {text:?}: {output:#?}");
    if !output.stdout.is_empty() {
        assert_eq!(document(output)["error"]["kind"], kind);
    }
}

const KEYED: &str =
    r#"{"name":"echo","arguments":{ "b":1e5,"a": 1.10,"s":"\u00e9" },"_meta":{"idempotencyKey":"k-1"}}"#;

#[test]
fn a_dead_letter_is_listed_inspected_and_replayed_byte_for_byte() {
    let place = Place::new("replay-story", "");
    let id = place.lose(KEYED);
    let list = place.run(&["replay", "list"]).stdout;
    let fields: Vec<&str> = list.trim_end().split('\t').collect();
    assert_eq!(fields[0], id);
    assert_eq!(fields[2..6], ["echo", "timeout", "attempts=1", "pending"]);
    let text = place.run(&["replay", "inspect", &id]).stdout;
    for line in ["caller:           local (stdio)\n", "idempotency_key:  k-1\n", "failure.executed: maybe\n"] {
        assert!(text.contains(line), "no {line:?} in {text}");
    }

    let output = place.replay(&id, &[], "");
    assert_eq!(output.code(), 0, "{output:#?}");
    assert!(output.stdout.starts_with(&format!("replay ok: {id}\nresult: {{")), "{output:#?}");
    let [call] = &place.calls()[..] else { panic!("not one call: {:?}", place.calls()) };
    assert!(call.contains(r#""arguments":{ "b":1e5,"a": 1.10,"s":"\u00e9" }"#), "{call}");
    assert!(call.contains(r#""idempotencyKey":"k-1""#), "{call}");
    let record = place.record(&id);
    let correlation_id = record["correlation_id"].as_str().expect("an id");
    assert!(call.contains(&format!(r#""mcprelay":{{"correlation_id":"{correlation_id}"}}"#)), "{call}");
    assert!(output.stderr.contains(&format!(r#""correlation_id":"{correlation_id}""#)), "no log line: {output:#?}");
    assert_eq!(record["replay"]["status"], "replayed");
    assert_eq!(record["failure"]["executed"], "yes");
    assert_eq!(record["replay"]["attempts"][0]["outcome"], "ok");
    assert_eq!(record["replay"]["last_outcome"]["result"]["structuredContent"]["b"], 1e5);

    refused(&place.replay(&id, &["--force", "--json"], ""), "resolved", "already replayed");
    assert_eq!(place.calls().len(), 1);
}

#[test]
fn every_json_run_is_one_document() {
    let place = Place::new("replay-json", "");
    assert_eq!(document(&place.run(&["replay", "list", "--json"])), serde_json::json!([]));
    for args in [&["replay", "inspect", "01X", "--json"][..], &["replay", "run", "01X", "--json"]] {
        refused(&place.run(args), "not_found", "record 01X not found");
    }
    let id = place.lose(r#"{"name":"boom","arguments":{"text":"no"}}"#);
    assert_eq!(document(&place.run(&["replay", "list", "--json"]))[0]["id"], id.as_str());

    let dry = place.replay(&id, &["--dry-run", "--json"], "");
    assert_eq!((dry.code(), &document(&dry)["tool_present"]), (0, &serde_json::json!(true)), "{dry:#?}");
    let output = place.replay(&id, &["--json"], "");
    let told = document(&output);
    assert_eq!(output.code(), 1);
    assert_eq!(told["status"], "failed_replay");
    assert_eq!(told["outcome"]["error"], "no");
    assert_eq!(told["outcome"]["executed"], "yes");
    refused(&place.run(&["policy", "test", "--id", "01X", "--json"]), "not_found", "01X not found");
}

#[test]
fn a_failed_replay_can_be_tried_again_with_other_arguments() {
    let place = Place::new("replay-again", "");
    let file = place.dir.join("effects");
    let params =
        format!(r#"{{"name":"side-effect","arguments":{{"file":{:?},"then":"error"}}}}"#, file.display().to_string());
    let id = place.lose(&params);
    let output = place.replay(&id, &[], "");
    assert_eq!(output.code(), 1, "{output:#?}");
    assert_eq!(place.status(&id), "failed_replay");
    let output = place.replay(&id, &["--set", "then=answer"], "");
    assert_eq!(output.code(), 0, "{output:#?}");
    assert_eq!(place.status(&id), "replayed");
    assert_eq!(place.record(&id)["replay"]["attempts"].as_array().map(Vec::len), Some(2));
    assert_eq!(place.dir.read("effects").lines().count(), 2);
}

#[test]
fn redacted_arguments_are_never_sent_and_named_as_set_takes_them() {
    let place = Place::new("replay-redacted", "");
    let id = place.lose(r#"{"name":"echo","arguments":{"token":"s3cr3t-A","list":[{"password":"s3cr3t-B"}],"n":1}}"#);
    let output = place.replay(&id, &["--set", "token=new-secret"], "");
    refused(&output, "redacted", "list.0.password");
    assert!(!output.stderr.contains("token"), "a path that was set is named: {output:#?}");
    assert_eq!(place.calls(), [""; 0]);
    let dry = place.replay(&id, &["--set", "token=new-secret", "--dry-run"], "");
    refused(&Output { stdout: String::new(), ..dry }, "redacted", "list.0.password");

    let sets = ["--set", "token=new-secret", "--set", "list.0.password=newer-secret"];
    let output = place.replay(&id, &sets, "");
    assert_eq!(output.code(), 0, "{output:#?}");
    assert!(
        place.calls()[0].contains(r#""arguments":{"token":"new-secret","list":[{"password":"newer-secret"}],"n":1}"#)
    );
    // The tool echoed them.
    let kept = place.run(&["replay", "inspect", &id, "--json"]).stdout;
    for secret in ["new-secret", "newer-secret", "s3cr3t"] {
        assert!(!output.stdout.contains(secret) && !output.stderr.contains(secret), "{secret} shown: {output:#?}");
        assert!(!kept.contains(secret), "{secret} stored: {kept}");
    }
    let usage = place.replay(&id, &["--set", "a..b=1"], "");
    assert_eq!(usage.code(), 2, "{usage:#?}");
}

#[test]
fn ret_3_a_repetition_needs_force_and_a_key_with_other_arguments_too() {
    let place = Place::new("replay-duplicates", "");
    let (first, same) = (place.lose(KEYED), place.lose(KEYED));
    let other = place.lose(r#"{"name":"echo","arguments":{"b":2},"_meta":{"idempotencyKey":"k-1"}}"#);
    let spelled =
        place.lose(r#"{"name":"echo","arguments":{"s":"é","b":100000,"a":1.1},"_meta":{"idempotencyKey":"k-1"}}"#);
    assert_eq!(place.replay(&first, &[], "").code(), 0);
    refused(&place.replay(&same, &["--json"], ""), "duplicate", "the same idempotency key \"k-1\"");
    refused(&place.replay(&spelled, &["--json"], ""), "duplicate", "already succeeded");
    refused(&place.replay(&other, &["--json"], ""), "key_reused", "used with other arguments");
    assert_eq!(place.calls().len(), 1);
    assert_eq!(place.status(&same), "pending");
    assert_eq!(place.replay(&same, &["--force"], "").code(), 0);

    // Without a key the arguments decide, and a failure is not remembered as done.
    let unkeyed = r#"{"name":"boom","arguments":{}}"#;
    let (one, two) = (place.lose(unkeyed), place.lose(unkeyed));
    assert_eq!(place.replay(&one, &[], "").code(), 1);
    assert!(place.replay(&two, &[], "").stderr.contains("replay failed"));
}

#[test]
fn the_policy_of_today_judges_a_replay_by_the_stored_caller() {
    let place = Place::new(
        "replay-policy",
        "policy: {rules: [{tool: echo, caller: ci-*, args: {b: {equals: 1}}, action: deny}]}\n",
    );
    let options = ["--timeout-ms", "50", "--max-attempts", "1", "--policy-dry-run", "--identity", "ci-bot"];
    let id = place.fail(&options, &SILENT, r#"{"name":"echo","arguments":{"b":1}}"#);
    let asked = place.run(&["policy", "test", "--id", &id]).stdout;
    assert!(asked.contains("caller:   ci-bot\ndecision: deny\n"), "{asked}");
    let asked = place.run(&["policy", "test", "--id", &id, "--caller", "me"]).stdout;
    assert!(asked.contains("caller:   me\ndecision: allow\n"), "{asked}");

    refused(&place.replay(&id, &["--json"], ""), "policy", "--force-policy");
    refused(&place.replay(&id, &["--force", "--json"], ""), "policy", "rule #1");
    // It is the arguments that go out which are judged: the text "1" is not the number 1.
    assert_eq!(place.replay(&id, &["--set", "b=1", "--dry-run"], "").code(), 0);
    assert_eq!(place.replay(&id, &["--force-policy"], "").code(), 0);
    let audit = rusqlite::Connection::open(place.dir.join(".mcprelay/history.db")).expect("a history");
    let mut rows = audit
        .prepare("SELECT kind, failure_id FROM audit WHERE detail LIKE '%replay%' OR kind = 'replayed'")
        .expect("a table");
    let rows: Vec<(String, String)> = rows
        .query_map([], |row| Ok((row.get(0)?, row.get(1)?)))
        .expect("rows")
        .map(|row| row.expect("a row"))
        .collect();
    let kinds: Vec<&str> = rows.iter().map(|(kind, _)| kind.as_str()).collect();
    assert_eq!(kinds, ["denied", "denied", "replayed"]);
    assert!(rows.iter().all(|(_, of)| *of == id));
}

#[test]
fn an_unreachable_server_leaves_the_record_as_it_was() {
    let place = Place::new("replay-unreachable", "");
    let id = place.lose(r#"{"name":"echo"}"#);
    let gone = place.run(&["replay", "run", &id, "--json", "--", "/no/such/server"]);
    refused(&gone, "unreachable", "/no/such/server");
    for server in ["--crash-on-start 7", "--era modern --discover-error -32022"] {
        let output = place.replay(&id, &["--json"], server);
        refused(&output, "unreachable", "nothing was sent");
    }
    let record = place.record(&id);
    assert_eq!(
        (&record["replay"]["status"], &record["replay"]["claim"]),
        (&"pending".into(), &serde_json::Value::Null)
    );
    assert_eq!(record["replay"]["attempts"], serde_json::json!([]));
}

#[test]
fn the_stored_server_runs_where_it_ran_and_is_refused_when_it_cannot() {
    let place = Place::new("replay-server", "");
    // The log is named relative to the directory that the server runs in.
    let server = [&testpeer().display().to_string(), "server", "--log", "log"];
    let options = ["--max-attempts", "1"];
    let id = place.fail(&options, &server, r#"{"name":"rpc-error"}"#);
    // From elsewhere the same server is started again, in its own directory.
    let elsewhere = place.dir.join("elsewhere");
    std::fs::create_dir(&elsewhere).expect("a directory");
    let config = place.dir.join("mcprelay.config.yaml");
    let absolute = format!("queue: {{sqlite: {{path: {:?}}}}}\n", place.dir.join(".mcprelay/queue.db"));
    std::fs::write(&config, absolute + "policy: {rules: [{tool: x, action: deny}]}\n").expect("written");
    let output = place.start(&["replay", "run", &id, "--config"]).arg(&config).cwd(&elsewhere).run(b"");
    assert!(output.stderr.contains("replay failed"), "{output:#?}");
    assert_eq!(place.calls().len(), 2);

    let moved = TempDir::new("replay-server-moved");
    let gone = moved.join("gone");
    std::fs::create_dir(&gone).expect("a directory");
    let lost = place
        .start(&["run", "--timeout-ms", "50", "--config"])
        .arg(&config)
        .arg("--")
        .args(SILENT)
        .args(["--token", "abc"]);
    let call = "{\"jsonrpc\":\"2.0\",\"id\":1,\"method\":\"tools/call\",\"params\":{\"name\":\"echo\"}}\n";
    lost.cwd(&gone).run(call.as_bytes());
    let id = place.ids().remove(0);
    let refuse = |kind: &str, text: &str| {
        refused(&place.run(&["replay", "run", &id, "--json"]), kind, text);
        refused(&place.run(&["replay", "run", &id, "--json"]), kind, &format!("replay run {id} -- <command>"));
    };
    refuse("server_redacted", "[REDACTED]");
    assert_eq!(place.replay(&id, &[], "").code(), 0);
}

#[test]
fn a_server_whose_directory_is_gone_is_not_started_elsewhere() {
    let place = Place::new("replay-directory", "");
    let gone = place.dir.join("gone");
    std::fs::create_dir(&gone).expect("a directory");
    let config = place.dir.join("mcprelay.config.yaml");
    let text = format!("queue: {{sqlite: {{path: {:?}}}}}\n", place.dir.join(".mcprelay/queue.db"));
    std::fs::write(&config, text + "policy: {rules: [{tool: x, action: deny}]}\n").expect("written");
    let call = "{\"jsonrpc\":\"2.0\",\"id\":1,\"method\":\"tools/call\",\"params\":{\"name\":\"echo\"}}\n";
    let start = place.start(&["run", "--timeout-ms", "50", "--config"]).arg(&config).arg("--").args(SILENT);
    start.cwd(&gone).run(call.as_bytes());
    std::fs::remove_dir_all(&gone).expect("removed");
    let id = place.ids().remove(0);
    refused(&place.run(&["replay", "run", &id, "--json"]), "server_directory", "/gone, which is no directory any more");
    refused(&place.run(&["replay", "run", &id, "--dry-run"]).without_stdout(), "", "which is no directory any more");
    assert_eq!(place.replay(&id, &[], "").code(), 0);
}

impl Output {
    fn without_stdout(self) -> Output {
        Output { stdout: String::new(), ..self }
    }
}

#[test]
fn pro_1_servers_of_every_kind_are_talked_to() {
    let place = Place::new("replay-eras", "");
    let id = place.lose(r#"{"name":"echo-meta","arguments":{}}"#);
    let modern = "io.modelcontextprotocol/protocolVersion";
    for (server, is_modern) in [
        ("--era legacy", false),
        ("--era modern", true),
        ("--era both", true),
        ("--era legacy --silent-discover", false),
        ("--era legacy --exit-on-discover", false),
        ("--era legacy --discover-error -32602", false),
        ("--era legacy --noise --crlf --chunk 3 --stderr-flood 100000", false),
    ] {
        let before = place.calls().len();
        let output = place.replay(&id, &["--dry-run", "--force"], server);
        assert_eq!(output.code(), 0, "{server}: {output:#?}");
        assert_eq!(place.calls().len(), before, "{server}: a dry run called the tool");
        // The record is spent by a success, so each era gets its own.
        let id = place.lose(r#"{"name":"echo-meta","arguments":{}}"#);
        let output = place.replay(&id, &["--force"], server);
        assert_eq!(output.code(), 0, "{server}: {output:#?}");
        assert_eq!(place.calls().last().map(|call| call.contains(modern)), Some(is_modern), "{server}");
    }
    assert_eq!(place.status(&id), "pending");
}

#[test]
fn pro_2_a_dry_run_looks_through_all_pages() {
    let place = Place::new("replay-pages", "");
    let id = place.lose(r#"{"name":"slow-drain"}"#);
    let present = |server: &str| {
        let output = place.replay(&id, &["--dry-run", "--json"], server);
        let told = document(&output);
        (output.code(), told["tool_present"].as_bool(), told["refusals"].clone())
    };
    let none = serde_json::json!([]);
    assert_eq!(present("--page-size 3"), (0, Some(true), none.clone()));
    assert_eq!(present("--page-size 12 --empty-cursor"), (0, Some(true), none));
    let (code, there, refusals) = present("--page-size 3 --repeat-cursor");
    assert_eq!((code, there, &refusals[0]["kind"]), (1, Some(false), &serde_json::json!("tool_missing")));
    assert!(refusals[0]["message"].as_str().is_some_and(|text| text.contains("same cursor twice")), "{refusals}");
}

#[test]
fn tim_5_a_replay_that_times_out_tells_the_server_and_may_have_run() {
    let place = Place::new("replay-timeout", "");
    let id = place.lose(r#"{"name":"hang"}"#);
    let output = place.replay(&id, &["--timeout-ms", "100"], "");
    assert_eq!(output.code(), 1);
    assert!(output.stderr.contains("no answer within 100 ms; the call may have run"), "{output:#?}");
    assert!(place.dir.read("log").contains("notifications/cancelled"));
    let record = place.record(&id);
    assert_eq!(
        (&record["replay"]["status"], &record["failure"]["executed"]),
        (&"failed_replay".into(), &"maybe".into())
    );
}

#[test]
fn a_server_s_own_questions_are_answered_and_input_is_not_given() {
    let place = Place::new("replay-questions", "");
    let ask = place.lose(r#"{"name":"ask-many"}"#);
    let output = place.replay(&ask, &[], "--era legacy");
    assert_eq!(output.code(), 0, "{output:#?}");
    assert_eq!(output.stdout.matches("-32601").count(), 2, "{output:#?}");
    let input = place.lose(r#"{"name":"input-required"}"#);
    let output = place.replay(&input, &["--json"], "--era modern");
    let told = document(&output);
    assert_eq!(
        (output.code(), &told["status"], &told["outcome"]["executed"]),
        (1, &"failed_replay".into(), &"no".into())
    );
}

#[test]
fn sql_4_of_many_replays_at_once_one_calls_the_tool() {
    let place = Place::new("replay-race", "");
    let file = place.dir.join("effects");
    let id =
        place.lose(&format!(r#"{{"name":"side-effect","arguments":{{"file":{:?}}}}}"#, file.display().to_string()));
    let started: Vec<Process> =
        (0..8).map(|_| place.start(&["replay", "run", &id, "--"]).arg(testpeer()).arg("server").start()).collect();
    let mut winners = 0;
    for mut process in started {
        process.close_stdin();
        winners += i32::from(process.wait().success());
        while process.next_or_end().is_some() {}
    }
    assert_eq!((winners, place.dir.read("effects").lines().count()), (1, 1));
    assert_eq!(place.status(&id), "replayed");
}

#[test]
fn sql_4_a_killed_replay_keeps_its_claim_and_says_that_it_was_sent() {
    let place = Place::new("replay-killed", "");
    let id = place.lose(r#"{"name":"ask-roots","arguments":{"then_ms":60000}}"#);
    let started = place.start(&["replay", "run", &id, "--"]).arg(testpeer()).args([
        "server",
        "--era",
        "legacy",
        "--stderr-flood",
        "1",
    ]);
    let mut process = started.start();
    // One byte before each answer: to the probe and to initialize. Then the call is on its way.
    while place.record(&id)["replay"]["claim"]["sent_at"].is_null() {
        assert!(process.stderr().len() < 3, "it ended");
    }
    process.signal(rustix::process::Signal::KILL);
    process.wait();
    refused(&place.replay(&id, &["--force", "--json"], ""), "claimed", "is being replayed by");
    assert_eq!(place.status(&id), "replaying");
}

#[test]
fn a_queue_in_the_state_directory_is_found_too() {
    let place = Place::new("replay-fallback", "queue: {sqlite: {path: ./blocked/queue.db}}\n");
    place.dir.write("blocked", "a file");
    let id = place.lose(r#"{"name":"echo"}"#);
    assert!(place.dir.join("state/mcprelay/queue.db").exists());
    assert_eq!(place.replay(&id, &[], "").code(), 0);
    assert_eq!(place.status(&id), "replayed");
}

#[test]
fn a_queue_that_cannot_be_read_is_a_clear_error() {
    let place = Place::new("replay-corrupt", "");
    std::fs::create_dir(place.dir.join(".mcprelay")).expect("a directory");
    place
        .dir
        .write(".mcprelay/queue.db", "no database, but long enough to be looked at as one by anybody who opens it");
    for args in [
        &["replay", "list", "--json"][..],
        &["replay", "inspect", "01X", "--json"],
        &["replay", "run", "01X", "--json"],
    ] {
        refused(&place.run(args), "store", ".mcprelay/queue.db");
    }
}

#[test]
fn the_demo_tells_its_story_and_leaves_nothing_behind() {
    let dir = TempDir::new("demo");
    let demo = || Start::new(mcprelay()).arg("demo").cwd(dir.path());
    for start in [demo().env("TMPDIR", dir.path()), demo().env("TMPDIR", dir.join("none"))] {
        let output = start.run(b"");
        assert_eq!((output.code(), output.stdout.ends_with("demo: OK\n")), (0, true), "{output:#?}");
        assert_eq!(output.stderr, "");
        assert!(output.stdout.contains("\"attempt\":3") && output.stdout.contains("\nreplay ok: "), "{output:#?}");
        assert_eq!(std::fs::read_dir(dir.path()).expect("readable").count(), 0);
    }
}
