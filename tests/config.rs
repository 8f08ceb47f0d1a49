//! Configuration and bad input (hazards CFG-1 and CFG-2, and what users get wrong), through the real binary.
//!
//! Every check has its own unit tests in `config`, `cli`, `policy` and `store`; here it is seen that each of them reaches
//! the user: the exit code, an exact message on standard error, nothing on standard output, nothing started.
//! Server commands that cannot be started are in `processes` (PRC-5, PRC-6).

use std::path::Path;
use std::time::{Duration, Instant};

use crate::support::session::{QUEUE, Session, Setup, call, ping, proc, session};
use crate::support::{Start, TempDir, mcprelay};

/// A server that leaves a mark when it is started.
const MARKING: [&str; 4] = ["--", "sh", "-c", "touch started; cat"];

/// Runs a command line that is refused; gives what it says on stderr.
fn refused(dir: &TempDir, args: &[&str]) -> String {
    let output = Start::new(mcprelay()).args(args).cwd(dir.path()).run(&[ping("1").as_bytes(), b"\n"].concat());
    assert_eq!(output.code(), 2, "{args:?}: {output:?}");
    assert_eq!(output.stdout, "", "{args:?}");
    assert!(!dir.join("started").exists(), "{args:?}: a server was started");
    assert!(!dir.join(".mcprelay").exists(), "{args:?}: a database was made");
    output.stderr
}

/// The same for `run` and `validate` with a configuration, which must say the same.
fn config_refused(text: &str) -> String {
    let dir = TempDir::new("config");
    dir.write("c.yaml", text);
    let said = refused(&dir, &[&["run", "--config", "c.yaml"][..], &MARKING].concat());
    assert_eq!(refused(&dir, &["validate", "--config", "c.yaml"]), said);
    said
}

#[test]
fn a_command_line_that_is_wrong_is_refused_with_what_and_where() {
    let dir = TempDir::new("usage");
    let cases: &[(&[&str], &str)] = &[
        (&["run", "--bogus"], "unknown option --bogus"),
        (&["run", "--timeout"], "--timeout-ms"),
        (&["--bogus"], "unknown option --bogus"),
        (&["frobnicate"], "unknown command frobnicate"),
        (&["run", "server", "arg"], "unexpected argument server; the server's command stands behind --"),
        (&["run", "--config"], "--config needs a value"),
        (&["run", "--timeout-ms"], "--timeout-ms needs a value"),
        (&["run", "--max-attempts"], "--max-attempts needs a value"),
        (&["run", "--identity"], "--identity needs a value"),
        (&["run", "--policy-dry-run=1"], "--policy-dry-run"),
        (&["run", "--timeout-ms", "0"], "--timeout-ms: 0 is not a whole number from 1 to"),
        (&["run", "--timeout-ms", "-5"], "--timeout-ms"),
        (&["run", "--timeout-ms", "1.5"], "1.5 is not a whole number"),
        (&["run", "--timeout-ms", "1e3"], "1e3 is not a whole number"),
        (&["run", "--timeout-ms", "99999999999999999999"], "99999999999999999999 is not a whole number"),
        (&["run", "--max-attempts", "0"], "--max-attempts: 0 is not a whole number from 1 to"),
        (&["run", "--max-attempts", "abc"], "--max-attempts: abc is not a whole number"),
        (&["run", "--http", "not a url"], "--http"),
        (&["run", "--http", "https://x/mcp"], "exclude each other"),
        (&["validate", "x"], "unexpected argument x"),
        (&["version", "x"], "unexpected argument x"),
        (&["help", "nope"], "there is no command nope"),
        (&["replay"], "replay needs one of: list, inspect, run"),
        (&["replay", "inspect"], "the record's id is missing"),
        (&["replay", "inspect", "a", "b"], "unexpected argument b"),
        (&["replay", "run"], "the record's id is missing"),
        (&["replay", "run", "a", "--set", "x"], "there is no = in the value"),
        (&["replay", "list", "--limit", "0"], "--limit: 0 is not a whole number from 1"),
        (&["replay", "list", "--limit"], "--limit needs a value"),
        (&["replay", "list", "--status", "odd"], "--status"),
        (&["replay", "list", "--since", "yesterday"], "--since"),
        (&["policy"], "policy needs one of: test"),
        (&["policy", "test"], "--tool or --id is missing"),
        (&["policy", "test", "--tool", "x", "--args", "{"], "--args is not valid JSON"),
    ];
    for (args, words) in cases {
        let runs = args[0] == "run" && args.get(1) != Some(&"server");
        let args = if runs { [args, &MARKING[..]].concat() } else { args.to_vec() };
        let said = refused(&dir, &args);
        assert!(said.contains("mcprelay: ") && said.contains(words), "{args:?}: {said}");
        assert!(said.contains("--help"), "{args:?} does not say where help is: {said}");
    }
    for args in [&["run"][..], &["run", "--"], &["run", "--timeout-ms", "5", "--"], &["--"]] {
        let said = refused(&dir, args);
        assert!(said.contains("server"), "{args:?}: {said}");
    }
}

#[test]
fn what_is_asked_for_goes_to_stdout_with_exit_0() {
    for args in [&["--help"][..], &["help"], &["run", "--help"], &["help", "replay", "run"], &["version"], &["-v"], &[]]
    {
        let output = Start::new(mcprelay()).args(args).run(b"");
        assert_eq!((output.code(), output.stderr.as_str()), (0, ""), "{args:?}");
        assert!(!output.stdout.is_empty(), "{args:?}");
    }
}

#[test]
fn a_configuration_that_cannot_be_read_stops_the_start() {
    let dir = TempDir::new("config-file");
    let with = |path: &str| refused(&dir, &[&["run", "--config", path][..], &MARKING].concat());
    let said = with("missing.yaml");
    assert!(said.contains("missing.yaml: there is no such file"), "{said}");
    std::fs::create_dir(dir.join("folder")).expect("ours");
    let said = with("folder");
    assert!(said.contains("folder: "), "{said}");
    std::fs::write(dir.join("latin1.yaml"), b"store: {path: \"caf\xe9\"}\n").expect("ours");
    let said = with("latin1.yaml");
    assert!(said.contains("latin1.yaml") && said.contains("UTF-8"), "{said}");
    std::fs::write(dir.join("large.yaml"), vec![b'#'; (1 << 20) + 1]).expect("ours");
    let said = with("large.yaml");
    assert!(said.contains("large.yaml") && said.contains("larger than"), "{said}");
    // The default file is no different.
    std::fs::create_dir(dir.join("mcprelay.config.yaml")).expect("ours");
    let said = refused(&dir, &[&["run"][..], &MARKING].concat());
    assert!(said.contains("mcprelay.config.yaml"), "{said}");
}

#[test]
fn a_configuration_without_the_right_to_read_it_stops_the_start() {
    use std::os::unix::fs::PermissionsExt;
    let dir = TempDir::new("config-unreadable");
    let file = dir.write("c.yaml", "{}");
    std::fs::set_permissions(&file, std::fs::Permissions::from_mode(0o000)).expect("ours");
    if std::fs::read(&file).is_ok() {
        // The superuser reads everything; the reason would be another one.
        return;
    }
    let said = refused(&dir, &[&["run", "--config", "c.yaml"][..], &MARKING].concat());
    assert!(said.contains("c.yaml") && said.contains("no permission to read it"), "{said}");
}

#[test]
fn a_configuration_that_is_not_yaml_or_no_mapping_is_refused_with_its_place() {
    for (text, words) in [
        ("policy: [\n", "c.yaml:2:1"),
        ("policy: {default: deny}}\n", "c.yaml:1:"),
        ("a: 'b\n", "c.yaml:"),
        ("reliability:\n\ttimeout_ms: 5\n", "c.yaml:2:1: the line is indented with a tab"),
        ("- a\n- b\n", "found a list"),
        ("just text\n", "found"),
        ("a: 1\n---\nb: 2\n", "more than one YAML document"),
        ("a: !tag 1\n", "tag"),
        ("a: *nothing\n", "an alias"),
        ("\0", "c.yaml"),
    ] {
        let said = config_refused(text);
        assert!(said.contains(words), "{text:?}: {said}");
    }
}

#[test]
fn an_alias_bomb_is_refused_quickly_and_in_little_memory() {
    let mut bomb = "a0: &a0 [x,x,x,x,x,x,x,x,x]\n".to_owned();
    for level in 1..30 {
        let before = format!("*a{}", level - 1);
        bomb += &format!("a{level}: &a{level} [{}]\n", [before.as_str(); 9].join(","));
    }
    let started = Instant::now();
    let said = config_refused(&bomb);
    assert!(said.contains("the aliases in this file multiply it"), "{said}");
    let said = config_refused("a: &a [*a]\n");
    assert!(said.contains("c.yaml"), "{said}");
    assert!(started.elapsed() < Duration::from_secs(10), "it took {:?}", started.elapsed());
}

#[test]
fn cfg_1_a_mistyped_key_stops_the_start_and_its_path_is_named() {
    for (text, path) in [
        ("policy: {rules: [{toool: x, action: deny}]}", "policy.rules[0].toool"),
        ("policy: {rules: [{tool: x, actoin: deny}]}", "policy.rules[0].actoin"),
        ("policy: {rules: [{tool: x, action: allow, args: {path: {prefx: /ok}}}]}", "policy.rules[0].args.path.prefx"),
        ("policy: {defalt: deny}", "policy.defalt"),
        ("identity: {keyz: []}", "identity.keyz"),
        ("reliability: {retry: {max_atempts: 3}}", "reliability.retry.max_atempts"),
        ("reliability: {per_tool: {x: {idempotant: true}}}", "reliability.per_tool.x.idempotant"),
        ("wire: {frame_max: 1}", "wire.frame_max"),
        ("queue: {sqlite: {file: x}}", "queue.sqlite.file"),
    ] {
        let said = config_refused(text);
        assert!(said.contains("c.yaml:1:") && said.contains(path), "{text}: {said}");
    }
}

#[test]
fn cfg_1_duplicate_keys_are_refused_at_any_depth() {
    for (text, path) in [
        ("policy: {default: deny}\npolicy: {default: allow}\n", "policy"),
        ("policy:\n  default: deny\n  default: allow\n", "policy.default"),
        ("policy: {rules: [{tool: a, tool: b, action: deny}]}\n", "policy.rules[0].tool"),
        ("reliability: {per_tool: {a: {timeout_ms: 1}, a: {timeout_ms: 2}}}\n", "reliability.per_tool.a"),
    ] {
        let said = config_refused(text);
        assert!(said.contains(path) && said.contains("duplicate key"), "{text}: {said}");
    }
}

#[test]
fn cfg_1_wrong_types_and_numbers_out_of_range_are_refused_all_at_once() {
    let said = config_refused(concat!(
        "reliability:\n  timeout_ms: 0\n  idempotent_default: \"yes\"\n  retry: {max_attempts: 1.5, base_ms: -1}\n",
        "policy: {default: maybe, rules: {}}\n",
        "store: {retention_days: 99999999}\n",
        "queue: {provider: kafka, capture_timeout_ms: soon}\n",
        "redaction: {patterns: [1, \"\"]}\n",
        "wire: {frame_max_bytes: 5}\n",
    ));
    for path in [
        "reliability.timeout_ms",
        "reliability.idempotent_default",
        "reliability.retry.max_attempts",
        "reliability.retry.base_ms",
        "policy.default",
        "policy.rules",
        "store.retention_days",
        "queue.provider",
        "queue.capture_timeout_ms",
        "redaction.patterns[0]",
        "redaction.patterns[1]",
        "wire.frame_max_bytes",
    ] {
        assert!(said.lines().any(|line| line.contains(&format!(": {path}: "))), "{path}: {said}");
    }
    assert!(said.contains("12 errors in the configuration"), "{said}");
}

#[test]
fn cfg_1_a_mistyped_section_is_a_loud_warning() {
    let mut session = session("cfg-1-section").config("polcy: {default: deny}\nvendor: {a: 1}\n").start();
    session.settle();
    let ended = session.finish();
    let line = |part: &str| ended.stderr.lines().find(|line| line.contains(part)).unwrap_or("").to_owned();
    assert!(line("polcy").starts_with("mcprelay: WARNING: "), "{}", ended.stderr);
    assert!(line("polcy").contains("did you mean policy"), "{}", ended.stderr);
    assert!(line("vendor").starts_with("mcprelay: warning: "), "{}", ended.stderr);
}

#[test]
fn cfg_1_keys_are_never_shown() {
    for text in [
        "identity: {keys: [{key: s3cr3t, identity: a}, {key: s3cr3t, identity: b}]}",
        "identity: {keys: [{key: s3cr3t, identity: a, extra: 1}]}",
        "identity: {keys: [{key: [s3cr3t], identity: a}]}",
        "identity: {keys: [s3cr3t]}",
        "identity: {keys: s3cr3t}",
        "identity: {keys: [{key: s3cr3t}]}",
    ] {
        let said = config_refused(text);
        assert!(said.contains("identity.keys"), "{text}: {said}");
        assert!(!said.contains("s3cr3t"), "{text}: {said}");
    }
    let said = config_refused("identity: {keys: [{key_env: MCPRELAY_TEST_NOT_SET, identity: a}]}");
    assert!(said.contains("MCPRELAY_TEST_NOT_SET"), "{said}");
}

#[test]
fn cfg_1_the_policy_is_in_force_exactly_as_written() {
    let config =
        "policy:\n  default: deny\n  rules:\n    - {tool: echo, args: {path: {path_under: /ok}}, action: allow}\n";
    let mut session = session("cfg-1-policy").config(config).start();
    for (path, allowed) in [("/ok/a", true), ("/ok/../etc", false), ("/okay", false), ("/etc", false)] {
        let answer = session.call("1", "echo", &format!("{{\"path\":\"{path}\"}}"));
        assert_eq!(answer.get("result").is_some(), allowed, "{path}: {answer:?}");
        assert_eq!(answer.get("error.code") == Some("-32001"), !allowed, "{path}: {answer:?}");
    }
    assert_eq!(session.call("2", "echo", "{}").at("error.code"), "-32001", "without the argument");
    session.finish();
}

#[test]
fn cfg_2_patterns_that_burn_cpu_elsewhere_cost_little_here() {
    let patterns = ["([^/]+(?:,[^/]+)*)$", "^(a|aa)+$", "(x+x+)+y", "(a*)*b", "^(([a-z])+.)+[A-Z]([a-z])+$"];
    let rule = |pattern: &&str| format!("    - {{tool: echo, args: {{t: {{regex: '{pattern}'}}}}, action: deny}}\n");
    let config = format!("policy:\n  rules:\n{}", patterns.iter().map(rule).collect::<String>());
    let mut session = session("cfg-2").config(&config).start();
    session.settle();
    let before = proc::cpu(session.relay.pid());
    for bad in ["a".repeat(4_096) + "!/", "x".repeat(4_096) + "/", "a,".repeat(2_048) + "/"] {
        session.send(&call("1", "echo", &format!("{{\"t\":\"{bad}\"}}")));
        session.ask(&ping("2"));
        session.answer("1");
    }
    let used = proc::cpu(session.relay.pid()) - before;
    // Unoptimised and on a busy machine; a pattern that backtracks would take years.
    assert!(used < Duration::from_secs(3), "it used {used:?}");
    session.finish();
}

#[test]
fn cfg_2_patterns_too_large_or_not_linear_are_refused() {
    let long = "a".repeat(100_000);
    for (pattern, words) in [
        ("(?:a{0,500}){500}", "regex"),
        (long.as_str(), "regex"),
        ("(?=a)b", "look"),
        ("(?<!a)b", "look"),
        (r"(a)\\1", "back-reference"),
        ("(", "regex"),
    ] {
        let said = config_refused(&format!(
            "policy: {{rules: [{{tool: x, args: {{t: {{regex: \"{pattern}\"}}}}, action: deny}}]}}"
        ));
        assert!(said.contains("policy.rules[0].args.t.regex"), "{said}");
        assert!(said.to_lowercase().contains(words), "{words} is not named: {said}");
        assert!(said.len() < 2_000, "the whole pattern is shown");
    }
}

#[test]
fn an_unknown_record_is_named_and_exit_1() {
    let mut session = session("unknown-record").start();
    session.call("1", "rpc-error", "{}");
    let ended = session.finish();
    let unknown = "01AAAAAAAAAAAAAAAAAAAAAAAA";
    for args in ["replay inspect", "replay run", "policy test --id"] {
        let output = ended.command(&format!("{args} {unknown}"));
        assert_eq!((output.code(), output.stdout.as_str()), (1, ""), "{args}: {output:?}");
        assert!(output.stderr.contains(&format!("record {unknown} not found")), "{args}: {output:?}");
    }
    assert_eq!(ended.got_by_now("tools/call").len(), 1, "nothing was called");
}

// --- databases ---

/// A failing call and others beside it in a session whose queue has a fault: every answer comes as if there were none,
/// and standard error says loudly what is wrong, and where the dead letter is that would else be lost.
fn goes_through_loudly(setup: Setup, file: &str, reason: &str) -> Session {
    let mut session = setup.start();
    let error = session.call("1", "rpc-error", r#"{"n":1.0}"#);
    assert_eq!(error.text(), r#"{"jsonrpc":"2.0","id":1,"error":{"code":-32000,"message":"rpc-error failed"}}"#);
    assert_eq!(session.call("2", "echo", "{}").at("result.structuredContent"), "{}");
    session.ask(&ping("3"));
    let said = session.relay.stderr_with("until the next start");
    let warning = said.lines().find(|line| line.contains("is not in the queue")).unwrap_or_default();
    assert!(warning.starts_with("mcprelay: WARNING: ") && warning.contains(file), "{said}");
    assert!(warning.contains(reason), "the reason is not told: {said}");
    assert!(warning.contains(".mcprelay/queue-emergency.jsonl"), "the place is not told: {said}");
    let letter: serde_json::Value =
        serde_json::from_str(&session.dir.read(".mcprelay/queue-emergency.jsonl")).expect("the dead letter as JSON");
    assert_eq!(letter["tool"]["arguments"].to_string(), r#"{"n":1.0}"#, "{letter}");
    session
}

/// The same in a session that puts a damaged queue aside and begins a new one.
fn begins_anew(setup: Setup, reason: &str, before: &[u8]) {
    let mut session = setup.start();
    session.call("1", "rpc-error", r#"{"n":1.0}"#);
    session.call("2", "rpc-error", r#"{"n":2}"#);
    let ended = session.finish();
    assert_eq!(ended.queued("arguments"), [r#"{"n":1.0}"#, r#"{"n":2}"#], "{}", ended.stderr);
    let told: Vec<&str> = ended.stderr.lines().filter(|line| line.contains("IS DAMAGED")).collect();
    assert!(told.len() == 1 && told[0].contains(reason), "said once: {}", ended.stderr);
    let entries = std::fs::read_dir(ended.dir.join(".mcprelay")).expect("ours").flatten();
    let aside: Vec<_> = entries
        .filter(|entry| {
            let name = entry.file_name().to_string_lossy().into_owned();
            name.starts_with("queue.db.corrupt-") && !name.ends_with("-wal") && !name.ends_with("-shm")
        })
        .collect();
    assert_eq!(aside.len(), 1, "{aside:?}");
    assert!(told[0].contains(&*aside[0].file_name().to_string_lossy()), "{told:?}");
    assert!(std::fs::read(aside[0].path()).expect("kept") == before, "the file was changed");
}

fn prepared(name: &str, make: impl FnOnce(&Path)) -> (Setup, Vec<u8>) {
    let setup = session(name).config("queue: {capture_timeout_ms: 20000}");
    std::fs::create_dir(setup.dir().join(".mcprelay")).expect("ours");
    let file = setup.dir().join(QUEUE);
    make(&file);
    let before = std::fs::read(&file).unwrap_or_default();
    (setup, before)
}

fn unharmed(session: Session, before: &[u8]) {
    let ended = session.finish();
    assert_eq!(ended.code, Some(0), "{}", ended.stderr);
    assert!(std::fs::read(ended.dir.join(QUEUE)).unwrap_or_default() == before, "the file was changed");
}

#[test]
fn a_queue_that_is_no_database_is_put_aside_and_begun_anew() {
    let (setup, before) = prepared("db-garbage", |file| {
        std::fs::write(file, "this is not a database, but somebody's notes\n".repeat(100)).expect("ours");
    });
    begins_anew(setup, "not a SQLite database", &before);
}

#[test]
fn a_queue_that_is_damaged_is_put_aside_and_begun_anew() {
    // A good queue with one dead letter, whose pages are then overwritten.
    let mut first = session("db-damaged").start();
    first.call("1", "rpc-error", "{}");
    let good = first.finish();
    let checkpoint = rusqlite::Connection::open(good.dir.join(QUEUE)).expect("a database");
    checkpoint.query_row("PRAGMA wal_checkpoint(TRUNCATE)", [], |_| Ok(())).expect("a checkpoint");
    drop(checkpoint);
    let mut bytes = std::fs::read(good.dir.join(QUEUE)).expect("a file");
    bytes[100..].fill(0xA5);
    let (setup, before) = prepared("db-damaged", |file| std::fs::write(file, &bytes).expect("ours"));
    begins_anew(setup, "damaged", &before);
}

#[test]
fn a_queue_of_a_newer_version_is_left_alone() {
    let (setup, before) = prepared("db-newer", |file| {
        let queue = rusqlite::Connection::open(file).expect("a database");
        let made = "PRAGMA application_id = 0x6D637271; PRAGMA user_version = 99; CREATE TABLE failures (x);";
        queue.execute_batch(made).expect("made");
    });
    unharmed(goes_through_loudly(setup, QUEUE, "newer mcprelay"), &before);
}

#[test]
fn another_programs_database_is_left_alone() {
    let (setup, before) = prepared("db-foreign", |file| {
        let other = rusqlite::Connection::open(file).expect("a database");
        other.execute_batch("CREATE TABLE bookmarks (x); INSERT INTO bookmarks VALUES (1);").expect("made");
    });
    unharmed(goes_through_loudly(setup, QUEUE, "another program's database"), &before);
}

#[test]
fn a_read_only_queue_costs_the_record_alone() {
    use std::os::unix::fs::PermissionsExt;
    let allow = |path: &Path, mode| {
        std::fs::set_permissions(path, std::fs::Permissions::from_mode(mode)).expect("ours");
    };
    let mut first = session("db-read-only-first").start();
    first.call("1", "rpc-error", "{}");
    let good = first.finish();
    let (setup, before) = prepared("db-read-only", |file| {
        std::fs::copy(good.dir.join(QUEUE), file).expect("ours");
        allow(file, 0o444);
        allow(&file.with_file_name(""), 0o555);
    });
    let file = setup.dir().join(QUEUE);
    if std::fs::OpenOptions::new().append(true).open(&file).is_ok() {
        // The superuser writes everything: there is no fault to look at.
        return;
    }
    let session = goes_through_loudly(setup, QUEUE, "read-only");
    allow(&file.with_file_name(""), 0o755);
    unharmed(session, &before);
}

#[test]
fn a_queue_that_is_a_directory_costs_the_record_alone() {
    let (setup, _) = prepared("db-directory", |file| std::fs::create_dir(file).expect("ours"));
    goes_through_loudly(setup, QUEUE, "directory").finish();
}

#[test]
fn a_queue_that_stays_locked_costs_the_record_alone_and_works_again_later() {
    let setup = session("db-locked").config("queue: {capture_timeout_ms: 200}");
    let mut session = setup.start();
    session.call("0", "rpc-error", "{}");
    let lock = session.lock_queue();
    let started = Instant::now();
    let error = session.call("1", "rpc-error", "{}");
    assert!(started.elapsed() < Duration::from_secs(3), "it took {:?}", started.elapsed());
    assert_eq!(error.at("error.code"), "-32000");
    session.relay.stderr_with("the queue did not confirm within 200 ms");
    drop(lock);
    session.settle();
    session.call("2", "rpc-error", "{}");
    let ended = session.finish();
    // What was late is stored after all: twice told is better than lost.
    assert_eq!(ended.queued("tool_name").len(), 3, "{}", ended.stderr);
}

#[test]
fn a_full_disk_costs_the_record_alone() {
    // A limit on file sizes is the nearest thing to a full disk that needs no rights. The server is free of it.
    let limited = Start::new("sh").args(["-c", "trap '' XFSZ; ulimit -S -f 8; exec \"$@\"", "sh"]);
    let setup = session("db-full").behind("ulimit -S -f unlimited; exec \"$@\"").wrapped(limited);
    goes_through_loudly(setup, QUEUE, "").finish();
}

#[test]
fn a_place_that_cannot_be_made_is_replaced_by_the_state_directory_with_one_warning() {
    let config = "queue: {sqlite: {path: /proc/none/queue.db}}\nstore: {sqlite: {path: /proc/none/history.db}}";
    let mut session = session("db-place").config(config).start();
    session.call("1", "rpc-error", "{}");
    session.call("2", "rpc-error", "{}");
    let ended = session.finish();
    assert!(ended.dir.join("state/mcprelay/queue.db").exists(), "{}", ended.stderr);
    let warnings: Vec<&str> = ended.stderr.lines().filter(|line| line.contains("/proc/none")).collect();
    assert_eq!(warnings.len(), 2, "one for each file: {}", ended.stderr);
    assert!(warnings[0].contains("state/mcprelay/queue.db instead"), "{}", ended.stderr);
}
