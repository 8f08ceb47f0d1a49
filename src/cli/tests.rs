//! Command lines as users type them, right and wrong.

use std::os::unix::ffi::OsStringExt as _;

use super::*;

/// 2026-11-30T10:00:00Z.
const NOW: Wall = Wall(1_796_032_800_000);

fn parse_line(args: &[&str]) -> Result<Command, UsageError> {
    let args: Vec<OsString> = args.iter().map(OsString::from).collect();
    parse(&args, NOW)
}

fn words(line: &str) -> Result<Command, UsageError> {
    parse_line(&line.split_whitespace().collect::<Vec<_>>())
}

fn ran(line: &str) -> RunArgs {
    match words(line) {
        Ok(Command::Run(args)) => args,
        other => panic!("{line}: {other:?}"),
    }
}

fn listed(line: &str) -> ReplayListArgs {
    match words(line) {
        Ok(Command::Replay(ReplayCommand::List(args))) => args,
        other => panic!("{line}: {other:?}"),
    }
}

/// The message and the help it points at.
fn refused(line: &str) -> (String, &'static str) {
    let error = words(line).expect_err(line);
    (error.message, error.topic)
}

#[test]
fn version_and_help_have_several_spellings() {
    for line in ["version", "--version", "-v", "--version extra"] {
        assert_eq!(words(line), Ok(Command::Version), "{line}");
    }
    for line in ["", "help", "--help", "-h", "--help run"] {
        assert_eq!(words(line), Ok(Command::Help("")), "{line}");
    }
    assert_eq!(words("help replay run"), Ok(Command::Help("replay run")));
    assert_eq!(words("help help"), Ok(Command::Help("help")));
    assert_eq!(refused("version now"), ("unexpected argument now".to_owned(), "version"));
    assert_eq!(refused("help replai").0, "there is no command replai; did you mean replay?");
}

#[test]
fn every_command_takes_help() {
    for spec in &COMMANDS[1..] {
        for flag in ["--help", "-h"] {
            assert_eq!(words(&format!("{} {flag}", spec.words)), Ok(Command::Help(spec.words)));
        }
    }
    assert_eq!(words("run --timeout-ms 5 --help -- cat"), Ok(Command::Help("run")));
    assert_eq!(words("--config x --help"), Ok(Command::Help("run")));
    assert_eq!(ran("run -- cat --help").server, ["cat", "--help"]);
}

#[test]
fn run_takes_its_options_and_leaves_the_rest_to_the_server() {
    let args = ran(
        "run --config c.yaml --timeout-ms=5 --max-attempts 2 --identity ci --policy-dry-run -- npx -y --config x --",
    );
    assert_eq!(args.config.as_deref(), Some(std::path::Path::new("c.yaml")));
    assert_eq!(args.overrides.timeout, Some(Duration::from_millis(5)));
    assert_eq!(args.overrides.attempts_max, Some(2));
    assert_eq!(args.overrides.identity.as_deref(), Some("ci"));
    assert!(args.overrides.policy_dry_run);
    assert_eq!(args.server, ["npx", "-y", "--config", "x", "--"]);
}

#[test]
fn run_may_be_left_out() {
    for options in
        ["", "--config x", "--config=x", "--timeout-ms 1", "--max-attempts 1", "--policy-dry-run", "--identity i"]
    {
        assert_eq!(words(&format!("{options} -- cat")), words(&format!("run {options} -- cat")), "{options}");
        assert!(words(&format!("{options} -- cat")).is_ok(), "{options}");
    }
}

#[test]
fn the_last_of_a_repeated_option_counts() {
    assert_eq!(ran("run --timeout-ms 1 --timeout-ms 2 -- cat").overrides.timeout, Some(Duration::from_millis(2)));
}

#[test]
fn prc_6_server_arguments_arrive_exactly_as_given() {
    let given = ["npx -y pkg /tmp", "", "*", "$HOME", "a\"b'c", "\n"];
    let line: Vec<&str> = ["run", "--"].into_iter().chain(given).collect();
    let Ok(Command::Run(args)) = parse_line(&line) else { panic!("refused") };
    assert_eq!(args.server, given);
    let raw = OsString::from_vec(vec![b'/', 0xff]);
    let Ok(Command::Run(args)) = parse(&["--".into(), raw.clone()], NOW) else { panic!("refused") };
    assert_eq!(args.server, [raw]);
}

#[test]
fn usage_errors_name_the_token_and_the_help_to_read() {
    for (line, message, topic) in [
        ("rum", "unknown command rum; did you mean run?", ""),
        ("report now", "unexpected argument now", "report"),
        ("report --json --csv", "--json and --csv exclude each other", "report"),
        ("report --html a --openmetrics a", "--html and --openmetrics name the same file", "report"),
        ("report --group-by tool,tool", "--group-by: tool is there twice", "report"),
        (
            "report --group-by toll",
            "--group-by: toll is not one of caller, server, tool, class, decision, hour, day; did you mean tool?",
            "report",
        ),
        (
            "report --json --no-header",
            "--no-header without a table: give it with --csv or with none of the others",
            "report",
        ),
        (
            "report --since 1h --until 2h",
            "--since (2026-11-30T09:00:00.000Z) lies after --until (2026-11-30T08:00:00.000Z)",
            "report",
        ),
        ("audit", "audit needs one of: list, verify, head", "audit"),
        (
            "audit list --kind lost",
            "--kind: lost is not one of captured, denied, replayed, settled, discarded, reopened, purged",
            "audit list",
        ),
        ("audit list --json --no-header", "--json has no header that --no-header could leave out", "audit list"),
        (
            "audit list --since 2030-01-01T00:00:00Z --until 1h",
            "--since (2030-01-01T00:00:00.000Z) lies after --until (2026-11-30T09:00:00.000Z)",
            "audit list",
        ),
        (
            "audit verify --anchor 7",
            "--anchor: 7 is not what mcprelay audit head prints: a number, a colon and 64 hex digits",
            "audit verify",
        ),
        ("completions", "completions needs one of: bash, zsh, fish", "completions"),
        ("completions tcsh", "there are no completions for tcsh; there are for bash, zsh, fish", "completions"),
        ("man bash", "unexpected argument bash", "man"),
        ("serve", "unknown command serve", ""),
        ("--bogus", "unknown option --bogus", ""),
        ("--tim-ms 5 -- cat", "unknown option --tim-ms", ""),
        ("--confg x -- cat", "unknown option --confg; did you mean --config?", ""),
        ("-x", "unknown option -x", ""),
        ("run --bogus -- cat", "unknown option --bogus", "run"),
        ("run -x -- cat", "unknown option -x", "run"),
        ("run --config -- cat", "--config needs a value: --config <path>", "run"),
        ("run --config --timeout-ms 5 -- cat", "--config needs a value: --config <path>", "run"),
        ("run --timeout-ms", "--timeout-ms needs a value: --timeout-ms <n>", "run"),
        ("run --config= -- cat", "--config needs a value that is not empty", "run"),
        ("run --policy-dry-run=yes -- cat", "--policy-dry-run takes no value, found yes", "run"),
        (
            "run",
            "the server is missing: mcprelay run [options] -- <command> [args…], or mcprelay run [options] --http <url>",
            "run",
        ),
        (
            "run --timeout-ms 5",
            "the server is missing: mcprelay run [options] -- <command> [args…], or mcprelay run [options] --http <url>",
            "run",
        ),
        ("run --", "nothing stands behind --: the server's command is missing", "run"),
        ("run npx pkg", "unexpected argument npx; the server's command stands behind --", "run"),
        ("validate x", "unexpected argument x", "validate"),
        ("validate -- x", "unexpected --: validate takes no command", "validate"),
        ("demo now", "unexpected argument now", "demo"),
        (
            "replay",
            "replay needs one of: list, inspect, run, stats, settle, discard, reopen, purge, export, import, reseal",
            "replay",
        ),
        ("replay lst", "unknown command replay lst; did you mean list?", "replay"),
        (
            "replay --json list",
            "replay needs one of list, inspect, run, stats, settle, discard, reopen, purge, export, import, reseal before --json",
            "replay",
        ),
        ("policy", "policy needs one of: test", "policy"),
        ("policy check", "unknown command policy check", "policy"),
        ("policy test", "--tool or --id is missing", "policy test"),
        ("replay inspect", "the record's id is missing", "replay inspect"),
        ("replay inspect a b", "unexpected argument b", "replay inspect"),
        ("replay run", "the record's id is missing; --all takes all that wait", "replay run"),
        ("replay run x --status pending", "--status goes with --all only", "replay run"),
        ("replay run x --", "nothing stands behind --: the server's command is missing", "replay run"),
    ] {
        assert_eq!(refused(line), (message.to_owned(), topic), "{line}");
    }
    assert_eq!(
        parse_line(&["run", "--", ""]).expect_err("empty").message,
        "the server's command behind -- is an empty text"
    );
    let error = words("replay list --bogus").expect_err("unknown");
    assert_eq!(error.to_string(), "mcprelay: unknown option --bogus\nmcprelay: see mcprelay replay list --help");
    assert_eq!(words("rum").expect_err("unknown").to_string().lines().last(), Some("mcprelay: see mcprelay --help"));
}

#[test]
fn a_token_cannot_forge_terminal_output() {
    let error = parse_line(&["a\u{1b}[2Jb\nc"]).expect_err("unknown");
    assert_eq!(error.message, "unknown command \"a\\u{1b}[2Jb\\nc\"");
}

#[test]
fn numbers_are_plain_decimal_and_in_range() {
    for text in ["0", "-1", "+1", "1.5", "1e3", "0x10", "abc", "1_000", "١", "31536000001", "99999999999999999999"] {
        let (message, _) = refused(&format!("run --timeout-ms {text} -- cat"));
        assert_eq!(message, format!("--timeout-ms: {text} is not a whole number from 1 to 31536000000"));
    }
    assert!(refused("run --max-attempts 1000001 -- cat").0.ends_with("from 1 to 1000000"));
    assert_eq!(ran("run --timeout-ms 31536000000 -- cat").overrides.timeout, Some(Duration::from_millis(MILLIS_MAX)));
    assert!(refused("replay list --limit -1").0.starts_with("--limit: -1 is not"));
    assert!(refused("replay list --limit 0").0.starts_with("--limit: 0 is not"));
}

#[test]
fn a_remote_server_takes_the_place_of_a_command() {
    for (line, sse, url) in [
        ("run --http https://Host:443/mcp", false, "https://host/mcp"),
        ("--http http://[::1]:8080", false, "http://[::1]:8080/"),
        ("run --sse http://h/sse?x=1", true, "http://h/sse?x=1"),
    ] {
        let remote = ran(line).remote.expect(line);
        assert_eq!((remote.sse, remote.url.text().as_str()), (sse, url));
    }
    assert_eq!(ran("run -- cat").remote, None);
    assert!(refused("run --http https://h -- cat").0.contains("exclude each other"));
    assert!(refused("run --sse https://h -- cat").0.contains("--sse and -- <command> exclude each other"));
    assert!(refused("run --sse https://h --http https://h").0.contains("exclude each other"));
    for url in ["host", "ftp://h", "http://", "https://h:x", "https://u:s3cret@h"] {
        let (message, _) = refused(&format!("run --http {url}"));
        assert!(message.starts_with("--http: not a URL like https://host/mcp: "), "{message}");
        assert!(!message.contains("s3cret"), "{message}");
    }
}

#[test]
fn replay_list_takes_its_filters() {
    let args =
        listed("replay list --status failed_replay --tool t --correlation-id c --class timeout --limit 7 --json");
    let selection = &args.selection;
    assert_eq!((selection.class, args.limit, args.json), (Some(FailureClass::Timeout), 7, true));
    assert_eq!(selection.statuses, [Status::FailedReplay]);
    assert_eq!((selection.tool.as_deref(), selection.correlation_id.as_deref()), (Some("t"), Some("c")));
    let plain = listed("replay list");
    assert_eq!((plain.limit, plain.selection, plain.json), (50, Selection::default(), false));
    let several = listed("replay list --status pending,parked,pending --server s --caller c").selection;
    assert_eq!(several.statuses, [Status::Pending, Status::Parked]);
    assert_eq!((several.server.as_deref(), several.caller.as_deref()), (Some("s"), Some("c")));
    assert!(refused("replay list --since 1h --until 2h").0.contains("lies after"));
    assert_eq!(listed("replay list --limit 501").limit, 500);
    assert_eq!(listed("replay list --limit 99999999999").limit, 500);
    assert!(refused("replay list --status done").0.starts_with("--status: done is not one of pending, replaying"));
    assert!(refused("replay list --class Timeout").0.starts_with("--class: Timeout is not one of transport"));
}

#[test]
fn times_are_normalised_whatever_their_spelling() {
    let since = |text: &str| listed(&format!("replay list --since {text}")).selection.since;
    for text in [
        "2026-11-30T10:00:00Z",
        "2026-11-30T10:00:00.000Z",
        "2026-11-30t10:00:00z",
        "2026-11-30T11:30:00+01:30",
        "2026-11-29T23:00:00-11:00",
        "0s",
    ] {
        assert_eq!(since(text), Some(NOW), "{text}");
    }
    assert_eq!(since("2026-11-30T10:00:00.123456Z"), Some(Wall(NOW.0 + 123)));
    assert_eq!(since("2h"), Some(Wall(NOW.0 - 7_200_000)));
    assert_eq!(since("7d"), Some(Wall(NOW.0 - 604_800_000)));
    assert_eq!(since("1970-01-01T00:00:00+01:00"), Some(Wall(-3_600_000)));
    assert_eq!(since("900years"), Some(Wall(0)));
    assert_eq!(listed("replay list --until 1m").selection.until, Some(Wall(NOW.0 - 60_000)));
    for text in [
        "yesterday",
        "2026-11-30",
        "2026-11-30T10:00:00",
        "2026-13-01T00:00:00Z",
        "2026-02-30T00:00:00Z",
        "2026-11-30T10:00:00+1:00",
        "2026-11-30T10:00:00+1:000",
        "2026-11-30T10:00:00+24:00",
        "2026-11-30T10:00:00+01:60",
        "+01:00",
        "Z",
        "5",
        "-2h",
        "é",
    ] {
        assert!(refused(&format!("replay list --since {text}")).0.starts_with("--since: "), "{text}");
    }
}

#[test]
fn replay_run_takes_overrides_and_a_server() {
    let line = [
        "replay",
        "run",
        "01X",
        "--set",
        "a.b=c=d",
        "--set=n=",
        "--set-json",
        "o={}",
        "--set-env=s=VAR",
        "--set-file",
        "f=/a=b",
        "--force",
        "--force-policy",
        "--timeout-ms",
        "9",
        "--",
        "srv",
        "--set",
    ];
    let Ok(Command::Replay(ReplayCommand::Run(args))) = parse_line(&line) else { panic!("refused") };
    assert_eq!(args.id, "01X");
    let set = |source, path: &str, value: &str| SetArg { source, path: path.to_owned(), value: value.to_owned() };
    let expected = [
        set(SetSource::Text, "a.b", "c=d"),
        set(SetSource::Text, "n", ""),
        set(SetSource::Json, "o", "{}"),
        set(SetSource::Env, "s", "VAR"),
        set(SetSource::File, "f", "/a=b"),
    ];
    assert_eq!(args.set, expected);
    assert!(args.force && args.force_policy && !args.dry_run && !args.json);
    assert_eq!(args.timeout, Some(Duration::from_millis(9)));
    assert_eq!(args.server, Some(vec!["srv".into(), "--set".into()]));
    for (value, expected) in [("hunter2", "there is no ="), ("=hunter2", "nothing stands before =")] {
        for option in ["set", "set-json", "set-env", "set-file"] {
            let (message, _) = refused(&format!("replay run x --{option} {value}"));
            assert!(message.contains(expected) && !message.contains("hunter2"), "{message}");
        }
    }
}

fn all(line: &str) -> ReplayRunAllArgs {
    match words(line) {
        Ok(Command::Replay(ReplayCommand::RunAll(args))) => args,
        other => panic!("{line}: {other:?}"),
    }
}

#[test]
fn replay_run_all_takes_filters_and_limits() {
    let args =
        all("replay run --all --tool write_* --status failed_replay --limit 100000 --max-failures 3 --rate 10/s \
                    --exclude-unknown --yes --dry-run --force -- srv");
    assert_eq!(args.selection.tool.as_deref(), Some("write_*"));
    assert_eq!((args.limit, args.max_failures, args.pause), (Some(100_000), Some(3), Some(Duration::from_millis(100))));
    assert!(args.exclude_unknown && args.yes && args.dry_run && args.force && !args.plan);
    assert_eq!(args.server, Some(vec!["srv".into()]));
    assert_eq!(all("replay run --all").limit, None, "no hidden cap");
    assert_eq!(all("replay run --all --rate 60/m").pause, Some(Duration::from_secs(1)));
    for rate in ["10", "0/s", "1.5/s", "-1/s", "10/d", "/s", "+1/s", "1000001/s"] {
        assert!(refused(&format!("replay run --all --rate {rate}")).0.contains("is no rate like 10/s"), "{rate}");
    }
}

#[test]
fn contradictory_replays_are_refused() {
    for (line, text) in [
        ("replay run", "the record's id is missing; --all takes all that wait"),
        ("replay run 01X --all", "--all and the id 01X exclude each other"),
        ("replay run --all --set a=hunter2", "--set and --all exclude each other"),
        ("replay run --all --set-env a=B", "--set-env and --all exclude each other"),
        ("replay run --all --plan --dry-run", "--plan and --dry-run exclude each other"),
        ("replay run --all --status replayed", "replayed is final"),
        ("replay run 01X --limit 3", "--limit goes with --all only"),
        ("replay run 01X --yes", "--yes goes with --all only"),
        ("replay run 01X --http https://u:hunter2@h/", "it holds a user name or password"),
        ("replay run 01X --http https://h -- cat", "--http and -- <command> exclude each other"),
        ("replay settle 01X", "--executed is missing"),
        ("replay settle 01X --executed maybe", "--executed: maybe is not one of yes, no"),
        ("replay discard", "name records, or filters, or --all"),
        ("replay purge 01X --older-than 30d", "ids exclude filters and --all"),
        ("replay purge --all --tool x", "--all and filters exclude each other"),
        ("replay purge --older-than soon", "--older-than: soon is no age like 30d"),
        ("replay purge --older-than 1d --until 2d", "--until and --older-than exclude each other"),
        ("replay purge 01X --note why", "unknown option --note"),
        ("replay import", "the file is missing"),
        ("replay import a b", "unexpected argument b"),
    ] {
        let (message, _) = refused(line);
        assert!(message.contains(text) && !message.contains("hunter2"), "{line}: {message}");
    }
}

#[test]
fn decisions_take_ids_or_filters() {
    let decided = |line: &str| match words(line) {
        Ok(Command::Replay(ReplayCommand::Decide(args))) => args,
        other => panic!("{line}: {other:?}"),
    };
    let args = decided("replay purge --older-than 30d --status replayed,settled --yes --json");
    assert_eq!((args.decision, args.yes, args.json), (Decision::Purge, true, true));
    assert_eq!(args.selection.until, Some(Wall(NOW.0 - 30 * 86_400_000)));
    assert_eq!(args.selection.statuses, [Status::Replayed, Status::Settled]);
    let args = decided("replay reopen 01A 01B --force --note why");
    assert_eq!((args.ids.len(), args.force, args.note.as_deref()), (2, true, Some("why")));
    assert_eq!(decided("replay discard --all").selection, Selection::default());
    assert_eq!(decided("replay discard --all --status parked").selection.statuses, [Status::Parked]);
}

#[test]
fn replay_inspect_takes_an_id() {
    let Ok(Command::Replay(ReplayCommand::Inspect(args))) = words("replay inspect --json 01X --config c") else {
        panic!("refused")
    };
    assert_eq!((args.id.as_str(), args.json, args.config), ("01X", true, Some(PathBuf::from("c"))));
}

#[test]
fn policy_test_takes_a_call() {
    let Ok(Command::PolicyTest(args)) = words("policy test --tool t --args [1] --caller ci") else { panic!("refused") };
    assert_eq!((args.tool.as_deref(), args.args.as_str(), args.caller.as_deref()), (Some("t"), "[1]", Some("ci")));
    let Ok(Command::PolicyTest(args)) = words("policy test --id 01X --json") else { panic!("refused") };
    assert_eq!((args.id.as_deref(), args.args.as_str(), args.json), (Some("01X"), "{}", true));
}

#[test]
fn every_help_names_its_options_exit_codes_and_a_working_example() {
    for spec in COMMANDS {
        let text = help(spec.words);
        for option in spec.options {
            assert!(text.contains(&format!("--{}", option.name)), "{}", spec.words);
        }
        for (code, meaning) in spec.exits {
            assert!(text.contains(&format!("  {code}  {meaning}\n")), "{}", spec.words);
        }
        for line in text.lines() {
            assert!(line.chars().count() <= 100 && line.trim_end() == line, "{}: {line:?}", spec.words);
        }
        // The examples hold no blanks inside quotes but those of a JSON argument, which does not matter here.
        let example = spec.example.strip_prefix("mcprelay ").expect("starts with the program");
        let tokens: Vec<&str> = example.splitn(if example.contains('\'') { 6 } else { usize::MAX }, ' ').collect();
        assert!(parse_line(&tokens).is_ok(), "{}", spec.example);
        assert!(text.ends_with(&format!("Example:\n  {}\n", spec.example)));
    }
}

#[test]
fn the_overview_lists_every_command() {
    let text = help("");
    for spec in COMMANDS.iter().filter(|spec| !matches!(spec.words, "" | "replay" | "policy" | "audit")) {
        assert!(text.contains(&format!("\n  {}  ", spec.words)), "{} is not in\n{text}", spec.words);
    }
    assert!(help("replay").contains("\n  replay inspect  "));
    assert!(!help("replay").contains("policy test"));
}

#[test]
fn report_takes_its_filters_and_a_day_unless_told_otherwise() {
    let report = |line: &str| match words(line) {
        Ok(Command::Report(args)) => args,
        other => panic!("{line}: {other:?}"),
    };
    let plain = report("report");
    assert_eq!((plain.since, plain.until), (Wall(NOW.0 - 86_400_000), NOW));
    assert_eq!(plain.group_by, [Dimension::Caller, Dimension::Server, Dimension::Tool]);
    assert!(plain.header && !plain.csv && !plain.json);
    // A day before the end, not before now.
    assert_eq!(report("report --until 7d").since, Wall(NOW.0 - 8 * 86_400_000));
    let args = report("report --since 2h --tool r* --caller c --server s --group-by class,hour --csv --no-header");
    assert_eq!((args.since, args.until), (Wall(NOW.0 - 7_200_000), NOW));
    assert_eq!(args.tool.as_deref(), Some("r*"));
    assert_eq!((args.caller.as_deref(), args.server.as_deref()), (Some("c"), Some("s")));
    assert_eq!(args.group_by, [Dimension::Class, Dimension::Hour]);
    assert!(args.csv && !args.header);
    let files = report("report --html a --openmetrics b --json");
    assert_eq!((files.html, files.openmetrics, files.json), (Some("a".into()), Some("b".into()), true));
    for (word, dimension) in Dimension::ALL {
        assert_eq!(dimension.as_str(), word);
    }
}

#[test]
fn audit_commands_take_their_filters_and_anchors() {
    let Ok(Command::Audit(AuditCommand::List(args))) =
        words("audit list --kind denied --tool t --caller c --correlation-id i --record r --since 1h --limit 7 --json")
    else {
        panic!("refused")
    };
    let text = |text: &str| Some(text.to_owned());
    assert_eq!((args.kind, args.tool, args.caller), (Some("denied"), text("t"), text("c")));
    assert_eq!((args.correlation_id, args.record_id), (text("i"), text("r")));
    assert_eq!((args.since, args.until, args.limit, args.json), (Some(Wall(NOW.0 - 3_600_000)), None, 7, true));
    let hash = "a".repeat(64);
    let Ok(Command::Audit(AuditCommand::Verify(args))) =
        words(&format!("audit verify --anchor 1:{hash} --anchor=2:{hash}"))
    else {
        panic!("refused")
    };
    assert_eq!(args.anchors.iter().map(|anchor| anchor.seq).collect::<Vec<_>>(), [1, 2]);
}

#[test]
fn the_help_names_every_word_that_an_option_takes() {
    let named = |words: &str, option: &str, known: &[&str]| {
        let option = spec(words).options.iter().find(|known| known.name == option).expect("there is one");
        for word in known {
            assert!(option.help.contains(word), "mcprelay {words} --{}: {word} is missing", option.name);
        }
    };
    named("audit list", "kind", &AuditKind::ALL.iter().map(|kind| kind.as_str()).collect::<Vec<_>>());
    named("report", "group-by", &Dimension::ALL.map(|(word, _)| word));
    named("replay list", "status", &STATUSES);
    named("replay list", "class", &CLASSES.map(|(word, _)| word));
}
