//! Configuration files as users write them, right and wrong.

use std::path::Path;
use std::time::Duration;

use super::settings::{resolve, without_file};
use super::*;
use crate::retry::Effects;

const FILE: &str = "test.yaml";

fn no_env(_: &str) -> Option<String> {
    None
}

fn with(text: &str, overrides: &Overrides) -> Result<Loaded, Refused> {
    resolve(text, Path::new(FILE), overrides, &no_env)
}

fn good(text: &str) -> Settings {
    match with(text, &Overrides::default()) {
        Ok(loaded) => loaded.settings,
        Err(refused) => panic!("{text}\nwas refused: {:#?}", lines(&refused)),
    }
}

fn lines(refused: &Refused) -> Vec<String> {
    refused.problems.iter().map(ToString::to_string).collect()
}

fn bad(text: &str) -> Vec<String> {
    match with(text, &Overrides::default()) {
        Ok(_) => panic!("{text}\nwas accepted"),
        Err(refused) => lines(&refused),
    }
}

fn warnings(text: &str) -> Vec<String> {
    let loaded = with(text, &Overrides::default()).expect("usable");
    loaded.warnings.iter().map(ToString::to_string).collect()
}

const fn ms(millis: u64) -> Duration {
    Duration::from_millis(millis)
}

#[test]
fn an_empty_file_gives_the_documented_defaults() {
    for empty in ["", "# nothing\n", "reliability:\npolicy:\nqueue:\n", "{}"] {
        let settings = good(empty);
        assert_eq!(settings.reliability, crate::retry::Reliability::default(), "{empty:?}");
        assert_eq!(settings.queue.path, Path::new("./.mcprelay/queue.db"));
        assert_eq!(settings.queue.capture_timeout, ms(2_000));
        assert_eq!(settings.store.path, Path::new("./.mcprelay/history.db"));
        assert_eq!(settings.store.retention_days, 30);
        assert_eq!(settings.redaction.join(" "), "api_key token password authorization secret credential");
        assert_eq!((settings.identity.profile.as_str(), settings.identity.keys.len()), ("local", 0));
        assert_eq!(settings.frame_max_bytes, 67_108_864);
        assert_eq!(settings.recorder.bytes_max, 16_777_216);
        let shutdown = settings.shutdown;
        assert_eq!(
            [shutdown.stdin_grace, shutdown.term_grace, shutdown.signal_drain],
            [ms(2_000), ms(2_000), ms(1_000)]
        );
        assert_eq!(settings.source.as_deref(), Some(Path::new(FILE)));
        assert!(!settings.policy_dry_run);
    }
    let tool = good("").reliability.defaults;
    assert_eq!(
        (tool.timeout, tool.retry.attempts_max, tool.retry.base, tool.retry.jitter),
        (ms(30_000), 3, ms(250), true)
    );
}

#[test]
fn every_documented_key_arrives() {
    let settings = good(
        r#"
reliability:
  timeout_ms: 10
  idempotent_default: true
  extend_on_progress: false
  max_total_ms: 999999
  client_wait_max_ms: 0
  trust_annotations: true
  retry: {max_attempts: 5, backoff: exponential, base_ms: 7, jitter: false}
  replay: {dedup_window: 90m}
  per_tool:
    read_*:
      timeout_ms: 20
      idempotent: false
      effects: read
      capture_tool_errors: true
      retry: {base_ms: 0}
    "1": {}
queue:
  provider: sqlite
  capture_timeout_ms: 3
  sqlite: {path: /q.db}
  rabbitmq: {url: "amqps://u:p@[::1]:5671/v", exchange: e, queue: q}
store: {provider: sqlite, sqlite: {path: h.db}, retention_days: 0}
redaction: {patterns: [pin]}
policy:
  default: deny
  rules:
    - {tool: "a*", caller: ci, action: allow, args: {path: {prefix: /x, max_length: 9}, n: {in: [1, -2, 1.5, null]}}}
upstream: {http: {headers: {Authorization: "Bearer x"}}}
identity: {profile: desk, keys: [{key: k1, identity: ci}]}
recorder: {max_bytes: 8192}
wire: {frame_max_bytes: 4096}
shutdown: {stdin_grace_ms: 1, term_grace_ms: 2, signal_drain_ms: 3}
"#,
    );
    let reliability = &settings.reliability;
    assert_eq!(reliability.max_total, Some(ms(999_999)));
    assert_eq!(reliability.client_wait_max, Duration::ZERO);
    assert_eq!(reliability.dedup_window, Duration::from_secs(5_400));
    assert!(!reliability.extend_on_progress && reliability.trust_annotations && reliability.idempotent_default);
    let tool = reliability.for_tool("read_x");
    assert_eq!((tool.timeout, tool.idempotent, tool.effects), (ms(20), Some(false), Some(Effects::Read)));
    assert!(tool.capture_tool_errors);
    assert_eq!((tool.retry.attempts_max, tool.retry.base, tool.retry.jitter), (5, Duration::ZERO, false));
    assert_eq!(reliability.for_tool("1"), reliability.defaults);
    assert_eq!(settings.queue.path, Path::new("/q.db"));
    assert_eq!(settings.queue.capture_timeout, ms(3));
    assert_eq!((settings.store.path.as_path(), settings.store.retention_days), (Path::new("h.db"), 0));
    assert_eq!(settings.redaction, ["pin"]);
    assert_eq!(settings.identity.profile, "desk");
    assert_eq!(settings.identity.keys, [("k1".to_owned(), "ci".to_owned())]);
    assert_eq!(settings.recorder.bytes_max, 8_192);
    assert_eq!(settings.frame_max_bytes, 4_096);
    assert_eq!(settings.shutdown.term_grace, ms(2));
}

#[test]
fn every_error_is_reported_with_line_and_remedy() {
    let text = "\
reliability:
  timeout_ms: 0
  retry:
    base_ms: fast
  replay: {dedup_window: 24}
queue:
  capture_timeout_ms: 1.5
store:
  retention_days: -1
policy:
  default: maybe
  rules:
    - action: deny
wire: {frame_max_bytes: 4095}
recorder: {max_bytes: 100}
";
    assert_eq!(
        bad(text),
        [
            "test.yaml:2:15: reliability.timeout_ms: found 0; write a whole number from 1 to 31536000000",
            "test.yaml:4:14: reliability.retry.base_ms: found the text \"fast\"; write a whole number from 0 to 31536000000",
            "test.yaml:5:26: reliability.replay.dedup_window: found 24; write digits and one of ms, s, m, h, d, like \"24h\"; at most 365 days",
            "test.yaml:7:23: queue.capture_timeout_ms: found 1.5; write a whole number from 1 to 31536000000",
            "test.yaml:9:19: store.retention_days: found -1; write a whole number from 0 to 36500",
            "test.yaml:11:12: policy.default: found the text \"maybe\"; write allow or deny",
            "test.yaml:13:7: policy.rules[0]: the key tool is missing; every rule needs tool and action",
            "test.yaml:14:25: wire.frame_max_bytes: found 4095; write a whole number from 4096 to 4294967295",
            "test.yaml:15:23: recorder.max_bytes: found 100; write a whole number from 4096 to 1099511627776",
        ]
    );
}

#[test]
fn a_wrong_action_does_not_hide_what_is_wrong_with_the_matchers() {
    let found = bad("policy: {rules: [{tool: x, action: maybe, args: {path: {prefx: /a, regex: \"(?=a)\"}}}]}");
    assert_eq!(found.len(), 3, "{found:#?}");
    for part in ["rules[0].action", "args.path.prefx", "args.path.regex"] {
        assert!(found.iter().any(|line| line.contains(part)), "{part}: {found:#?}");
    }
}

#[test]
fn errors_come_in_the_order_of_the_file() {
    let found = bad("wire: {x: 1}\nstore: {y: 1}\nreliability: {z: 1}\nstore: {}\n");
    let places: Vec<&str> = found.iter().filter_map(|line| line.split(": ").nth(1)).collect();
    assert_eq!(places, ["wire.x", "store.y", "reliability.z", "store"]);
}

#[test]
fn cfg_1_a_mistyped_key_stops_the_start_and_is_named() {
    for (text, expected) in [
        ("policy: {defalt: deny}", "test.yaml:1:10: policy.defalt: unknown key; did you mean default?"),
        ("policy: {rules: [{toool: x, action: deny}]}", "policy.rules[0].toool: unknown key; did you mean tool?"),
        ("policy: {rules: [{tool: x, actoin: deny}]}", "policy.rules[0].actoin: unknown key; did you mean action?"),
        (
            "policy: {rules: [{tool: x, action: deny, args: {path: {prefx: /ok}}}]}",
            "test.yaml:1:56: policy.rules[0].args.path.prefx: is not a matcher;",
        ),
        ("identity: {keyz: []}", "identity.keyz: unknown key; did you mean keys?"),
        ("reliability: {retry: {max_attemps: 2}}", "retry.max_attemps: unknown key; did you mean max_attempts?"),
        ("reliability: {per_tool: {a.b: {timeout: 2}}}", "per_tool[\"a.b\"].timeout: unknown key"),
        ("queue: {path: x}", "queue.path: unknown key; allowed here: provider, sqlite, rabbitmq, capture_timeout_ms"),
        ("store: {rabbitmq: {}}", "store.rabbitmq: unknown key"),
        ("upstream: {htp: {}}", "upstream.htp: unknown key; did you mean http?"),
        ("wire: {<<: {}}", "merge keys are not supported"),
        ("shutdown: {grace_ms: 1}", "shutdown.grace_ms: unknown key"),
        ("redaction: {pattern: []}", "redaction.pattern: unknown key; did you mean patterns?"),
    ] {
        let found = bad(text);
        assert!(found.iter().any(|line| line.contains(expected)), "{text}: {found:#?}");
    }
}

#[test]
fn cfg_1_duplicate_keys_are_errors_at_any_depth() {
    let text = "policy:\n  default: deny\n  rules:\n  - tool: a\n    action: deny\n    tool: b\npolicy:\n  default: allow\nextra: {a: 1, a: 2}\n";
    let expected = [
        "test.yaml:6:5: policy.rules[0].tool: duplicate key",
        "test.yaml:7:1: policy: duplicate key",
        "test.yaml:9:15: extra.a: duplicate key",
    ];
    let found = bad(text);
    assert_eq!(found.len(), 3, "{found:#?}");
    for (line, expected) in found.iter().zip(expected) {
        assert!(line.starts_with(expected), "{line}");
    }
}

#[test]
fn cfg_1_an_unknown_section_is_a_warning_and_a_mistyped_one_a_loud_one() {
    let found = warnings("telemetry: {}\npolcy: {default: deny}\n");
    assert_eq!(found[0].split(';').next(), Some("warning: test.yaml:1:1: telemetry: unknown section"));
    assert_eq!(
        found[1],
        "WARNING: test.yaml:2:1: polcy: unknown section; did you mean policy? Nothing below it is in force"
    );
    assert!(found[2].contains("every tool"), "{found:?}");
}

#[test]
fn start_up_warnings_tell_that_no_rule_is_there() {
    let texts = |loaded: Loaded| loaded.warnings.into_iter().map(|warning| warning.text).collect::<Vec<_>>();
    assert_eq!(texts(without_file(&Overrides::default())).len(), 1);
    assert!(warnings("policy: {default: deny}")[0].contains("denied"));
    assert!(warnings("policy: {rules: [{tool: x, action: deny}]}").is_empty());
}

#[test]
fn syntax_errors_carry_line_and_column() {
    let found = bad("policy:\n  rules: [\n  default: {");
    assert!(found[0].starts_with("test.yaml:") && found[0].contains("not valid YAML"), "{found:?}");
    assert!(bad("policy:\n\tdefault: deny")[0].starts_with("test.yaml:2:1: the line is indented with a tab"));
    assert!(bad("- a")[0].starts_with("test.yaml:1:1: found a list"));
    assert!(bad("just text")[0].contains("write a mapping"));
}

#[test]
fn the_command_line_beats_the_file_and_per_tool() {
    let text = "\
reliability:
  timeout_ms: 10
  per_tool: {slow: {timeout_ms: 20, retry: {max_attempts: 9}}}
identity: {profile: file}";
    let overrides = Overrides {
        timeout: Some(ms(77)),
        attempts_max: Some(2),
        identity: Some("flag".to_owned()),
        policy_dry_run: true,
    };
    let settings = with(text, &overrides).expect("usable").settings;
    for tool in ["slow", "other"] {
        let tool = settings.reliability.for_tool(tool);
        assert_eq!((tool.timeout, tool.retry.attempts_max), (ms(77), 2));
    }
    assert_eq!(settings.identity.profile, "flag");
    assert!(settings.policy_dry_run);
    let without = without_file(&overrides).settings;
    assert_eq!(without.reliability.for_tool("x").timeout, ms(77));
    assert_eq!(without.source, None);
}

#[test]
fn a_total_shorter_than_the_tries_is_a_warning() {
    let text = "reliability: {max_total_ms: 90749, per_tool: {fast: {timeout_ms: 1}}}";
    let found = warnings(text);
    assert!(found[0].starts_with("warning: test.yaml:1:29: reliability.max_total_ms: 90749 is less"), "{found:?}");
    assert!(found[0].contains("(90750)"), "{found:?}");
    // The policy's own warning is always there; no other one is.
    assert_eq!(found.len(), 2);
    assert_eq!(warnings("reliability: {max_total_ms: 90750}").len(), 1);
    let by_flag = Overrides { timeout: Some(ms(1)), ..Overrides::default() };
    assert_eq!(with(text, &by_flag).expect("usable").warnings.len(), 1);
}

#[test]
fn keys_come_from_the_file_or_the_environment() {
    let env = |name: &str| match name {
        "CI_KEY" => Some("from-env".to_owned()),
        "EMPTY" => Some(String::new()),
        "NEWLINE" => Some("k\n".to_owned()),
        _ => None,
    };
    let load = |item: &str| {
        let text = format!("identity: {{keys: [{{key: first, identity: a}}, {item}]}}");
        resolve(&text, Path::new(FILE), &Overrides::default(), &env).map(|loaded| loaded.settings.identity.keys)
    };
    let keys = load("{key_env: CI_KEY, identity: ci}").expect("usable");
    assert_eq!(keys[1], ("from-env".to_owned(), "ci".to_owned()));
    for (item, expected) in [
        ("{key_env: NO_SUCH, identity: b}", "keys[1].key_env: the environment variable NO_SUCH is not set"),
        ("{key_env: EMPTY, identity: b}", "keys[1].key_env: the environment variable EMPTY is empty"),
        ("{key_env: NEWLINE, identity: b}", "keys[1].key_env: the key begins or ends with a blank"),
        ("{key: '', identity: b}", "keys[1].key: found an empty text"),
        ("{key: first, identity: b}", "keys[1].key: the key is equal to an earlier one"),
        ("{key: x, key_env: CI_KEY, identity: b}", "keys[1]: both key and key_env"),
        ("{identity: b}", "keys[1]: the key key or key_env is missing"),
        ("{key: x}", "keys[1]: the key identity is missing"),
        ("{key: x, identity: ''}", "keys[1].identity: found an empty text"),
        ("text", "keys[1]: found a text (not shown)"),
    ] {
        let found = lines(&load(item).expect_err(item));
        assert_eq!(found.len(), 1, "{item}: {found:#?}");
        assert!(found[0].contains(expected), "{item}: {found:#?}");
    }
}

#[test]
fn secrets_are_never_echoed() {
    for text in [
        "identity: {keys: [{key: 's3cret', identity: a}, {key: 's3cret', identity: b}]}",
        "identity: {keys: {s3cret: alice}}",
        "identity: {keys: [{s3cret: alice}, s3cret]}",
        "identity: {keys: [{key: [s3cret], identity: x}]}",
        "identity: {keys: [{key: x, identity: {s3cret: 1}}]}",
        "identity: {keys: [{key_env: s3cret-x, identity: x}]}",
        "identity: {keys: s3cret}",
        "identity: s3cret",
        "identity: {s3cret: alice, s3cret: bob}",
        "identity: {profile: [s3cret]}",
        "queue: {rabbitmq: {url: 'http://u:s3cret@h'}}",
        "queue: {rabbitmq: {url: ['amqp://u:s3cret@h']}}",
        "queue: {rabbitmq: 'amqp://u:s3cret@h'}",
        "queue: {rabbitmq: {'amqp://u:s3cret@h': 1}}",
        "upstream: {http: {headers: {Authorization: [s3cret]}}}",
        "upstream: {http: {headers: {'Authorization: s3cret': x}}}",
        "upstream: {http: {headers: {X: \"s3cret\\n\"}}}",
        "upstream: {http: {headers: s3cret}}",
    ] {
        for line in bad(text) {
            assert!(!line.contains("s3cret"), "{text}: {line}");
            assert!(line.starts_with("test.yaml:1:"), "without its place: {line}");
        }
    }
    for number in ["identity: {keys: [{key: 271828, identity: x}]}", "queue: {rabbitmq: {url: 271828}}"] {
        assert!(!bad(number).concat().contains("271828"));
    }
    let settings = good("identity: {keys: [{key: s3cret, identity: a}]}");
    assert!(!format!("{settings:?}").contains("s3cret"));
}

#[test]
fn what_a_later_version_brings_is_refused_as_such() {
    let found = bad("queue: {provider: rabbitmq}");
    assert!(found[0].contains("queue.provider: rabbitmq is not yet available in this version"), "{found:?}");
    assert!(bad("queue: {provider: redis}")[0].contains("write sqlite or rabbitmq"));
    assert!(bad("store: {provider: postgres}")[0].contains("write sqlite"));
}

#[test]
fn values_of_the_wrong_kind_are_refused() {
    for (text, expected) in [
        ("reliability: {timeout_ms: '5'}", "found the text \"5\""),
        ("reliability: {timeout_ms: }", "found nothing"),
        ("reliability: {timeout_ms: 31536000001}", "found 31536000001"),
        ("reliability: {retry: {max_attempts: 0}}", "whole number from 1 to 1000000"),
        ("reliability: {retry: {backoff: linear}}", "write exponential"),
        ("reliability: {retry: {jitter: yes}}", "found the text \"yes\"; write true or false"),
        ("reliability: {retry: 3}", "write a mapping"),
        ("reliability: {per_tool: [a]}", "reliability.per_tool: found a list"),
        ("reliability: {per_tool: {'': {}}}", "empty tool name"),
        ("reliability: {per_tool: {a: {effects: delete}}}", "write read or write"),
        ("queue: {sqlite: {path: ''}}", "found an empty text"),
        ("queue: {sqlite: {path: 7}}", "put it in quotes"),
        ("queue: {sqlite: {path: \"a\\0b\"}}", "NUL"),
        ("redaction: {patterns: [x, '']}", "redaction.patterns[1]: found an empty text"),
        ("redaction: {patterns: }", "write a list"),
        ("policy: {rules: }", "policy.rules: found nothing; write a list; [] is the empty one"),
        ("policy: {rules: {tool: x}}", "policy.rules: found a mapping"),
        ("policy: {rules: [~]}", "policy.rules[0]: found nothing"),
        ("policy: {rules: [x]}", "policy.rules[0]: found a text"),
        ("policy: {rules: [{tool: '', action: deny}]}", "policy.rules[0].tool: found an empty text"),
        ("policy: {rules: [{tool: 5, action: deny}]}", "policy.rules[0].tool: found 5; write a text: put it in quotes"),
        ("policy: {rules: [{tool: x, action: deny, caller: [a]}]}", "policy.rules[0].caller: found a list"),
        ("policy: {rules: [{tool: x, action: allow, args: }]}", "policy.rules[0].args: found nothing"),
        ("policy: {rules: [{tool: x, action: allow, args: {p: /x}}]}", "policy.rules[0].args.p: found the text \"/x\""),
        ("policy: {rules: [{tool: x, action: allow, args: {p: {max: .nan}}}]}", "args.p.max: found NaN"),
        (
            "policy: {rules: [{tool: x, action: allow, args: {p: {equals: {a: [18446744073709551616]}}}}]}",
            "equals.a[0]: found 18446744073709551616",
        ),
        ("upstream: {http: {headers: {'a b': x}}}", "no header can have"),
    ] {
        let found = bad(text);
        assert_eq!(found.len(), 1, "{text}: {found:#?}");
        assert!(found[0].contains(expected), "{text}: {found:#?}");
    }
}

#[test]
fn durations_have_one_number_and_one_unit() {
    let window = |text: &str| format!("reliability: {{replay: {{dedup_window: \"{text}\"}}}}");
    for (text, millis) in [("0s", 0), ("5ms", 5), ("2m", 120_000), ("1h", 3_600_000), ("365d", 31_536_000_000)] {
        assert_eq!(good(&window(text)).reliability.dedup_window, ms(millis), "{text}");
    }
    for text in ["", "24", "h", "-1h", "1.5h", "1 h", "1h30m", "366d", "1w", "99999999999999999999d", "1H"] {
        assert_eq!(bad(&window(text)).len(), 1, "{text}");
    }
}

#[test]
fn urls_of_the_broker_are_checked() {
    let broker = |url: &str| format!("queue: {{rabbitmq: {{url: \"{url}\"}}}}");
    for url in ["amqp://localhost", "AMQP://h:1/v", "amqps://u:p%40@h", "amqp://[::1]:5672"] {
        good(&broker(url));
    }
    for url in
        ["localhost", "http://h", "amqp://", "amqp://u@", "amqp://h:x", "amqp://h:99999", "amqp://[::1", "amqp://a b"]
    {
        assert_eq!(bad(&broker(url)).len(), 1, "{url}");
    }
}

#[test]
fn a_rule_behind_a_broken_one_is_reported_at_its_own_place() {
    let text = "policy:\n  rules:\n  - {tool: x}\n  - {tool: x, action: deny, args: {a.b: {regx: 1}}}\n";
    let found = bad(text);
    assert!(found[0].starts_with("test.yaml:3:5: policy.rules[0]: the key action is missing"), "{found:#?}");
    assert!(
        found[1].starts_with("test.yaml:4:42: policy.rules[1].args[\"a.b\"].regx: is not a matcher;"),
        "{found:#?}"
    );
}

#[test]
fn faults_inside_rules_are_reported_at_their_own_place() {
    let rule = |args: &str| format!("policy:\n  rules:\n  - tool: x\n    action: deny\n    args:\n      {args}\n");
    for (args, expected) in [
        ("p: {regex: '(?=a)'}", "test.yaml:6:18: policy.rules[0].args.p.regex: "),
        ("p: {prefx: a}", "did you mean prefix?"),
        ("p: {}", "test.yaml:6:7: policy.rules[0].args.p: "),
        ("p: {max_length: -1}", "test.yaml:6:23: policy.rules[0].args.p.max_length: "),
        ("a.regex: {regex: '('}", "test.yaml:6:24: policy.rules[0].args[\"a.regex\"].regex: "),
        ("a..b: {min: 1}", "test.yaml:6:7: policy.rules[0].args[\"a..b\"]: "),
    ] {
        let found = bad(&rule(args));
        assert_eq!(found.len(), 1, "{args}: {found:#?}");
        assert!(found[0].contains(expected), "{args}: {found:#?}");
    }
    let suggestion = bad(&rule("p: {prefx: a}")).concat();
    assert_eq!(suggestion.matches("did you mean").count(), 1, "{suggestion}");
    let in_one_rule = bad(&rule("p: {min: '5', max: .inf, max_length: -1, in: []}"));
    assert_eq!(in_one_rule.len(), 4, "{in_one_rule:#?}");
    assert_eq!(bad(&rule("p: {max: .inf}")).len(), 1);
    // All of them, from every rule.
    let both = "policy: {rules: [{tool: x, action: deny, args: {p: {regex: '('}}}, {tool: y, action: deny, args: {p: {in: []}}}]}";
    assert_eq!(bad(both).len(), 2);
}

#[test]
fn queue_and_store_need_a_file_each() {
    for text in [
        "queue: {sqlite: {path: ./x.db}}\nstore: {sqlite: {path: x.db}}",
        "store: {sqlite: {path: .mcprelay/queue.db}}",
        "queue: {sqlite: {path: ./.mcprelay/history.db}}",
    ] {
        let found = bad(text);
        assert!(found[0].contains("sqlite.path: queue and store have the same file"), "{text}: {found:#?}");
        assert!(found[0].starts_with("test.yaml:"), "{found:#?}");
    }
    good("queue: {sqlite: {path: a/x.db}}\nstore: {sqlite: {path: b/x.db}}");
}

#[test]
fn many_errors_in_a_large_file_are_all_reported_in_bounded_time() {
    let rules = "  - {tool: x, action: maybe}\n".repeat(20_000);
    let found = bad(&format!("policy:\n  rules:\n{rules}"));
    assert_eq!(found.len(), 20_000);
    assert!(found[0].starts_with("test.yaml:3:23: policy.rules[0].action"), "{}", found[0]);
    assert!(found[19_999].starts_with("test.yaml: policy.rules[19999].action"), "{}", found[19_999]);
}

#[test]
fn a_byte_order_mark_is_no_content() {
    assert_eq!(good("\u{feff}store: {retention_days: 1}").store.retention_days, 1);
}

#[test]
fn broken_documents_never_panic() {
    let seeds = [
        "a: &x [1, {b: *x}]\n? k\n: |\n  text\n",
        "policy: {rules: [{tool: \"x\", action: deny}]}\n# c\nb:\n- !t 'q'\n- >\n  folded\n",
        "--- &d\nidentity:\n  keys:\n  - {key: k, identity: i}\n...\n",
    ];
    let mut rng = crate::retry::Rng::seeded(11);
    let pick = |rng: &mut crate::retry::Rng, n: usize| usize::try_from(rng.below(n as u64)).expect("small");
    let mut accepted = 0;
    for _ in 0..4_000 {
        let mut chars: Vec<char> = seeds[pick(&mut rng, seeds.len())].chars().collect();
        for _ in 0..=pick(&mut rng, 6) {
            let at = pick(&mut rng, chars.len());
            let inserted = ['\n', ' ', '*', '&', '!', ':', '-', '\t', '\0', '\u{85}', '{', ']'][pick(&mut rng, 12)];
            match pick(&mut rng, 3) {
                0 if chars.len() > 1 => drop(chars.remove(at)),
                1 => chars.insert(at, inserted),
                _ => chars.truncate(at.max(1)),
            }
        }
        let text: String = chars.into_iter().collect();
        accepted += u32::from(with(&text, &Overrides::default()).is_ok());
    }
    assert!(accepted > 0, "the generator must produce usable files as well");
}

#[test]
fn the_file_is_found_where_documented_and_nowhere_else() {
    let directory = scratch("config_discovery");
    let load_in = |explicit: Option<&Path>| load(explicit, &directory, &Overrides::default(), &no_env);
    let source = |loaded: Result<Loaded, Refused>| loaded.expect("usable").settings.source;
    assert_eq!(source(load_in(None)), None);
    let missing = lines(&load_in(Some(Path::new("/no/such.yaml"))).expect_err("must exist"));
    assert_eq!(missing, ["/no/such.yaml: there is no such file; check the path after --config"]);
    assert!(lines(&load_in(Some(&directory)).expect_err("a directory"))[0].contains("directory"));

    let file = directory.join(DEFAULT_FILE);
    std::fs::write(&file, "store: {retention_days: 3}").expect("written");
    assert_eq!(source(load_in(None)), Some(file.clone()));
    let other = directory.join("other.yaml");
    std::fs::write(&other, b"a: 1\nb: \xff\n").expect("written");
    assert!(
        lines(&load_in(Some(&other)).expect_err("not UTF-8"))[0]
            .ends_with("other.yaml:2: the file is not UTF-8; save it as UTF-8")
    );
    std::fs::write(&other, vec![b'#'; tree::FILE_BYTES_MAX + 1]).expect("written");
    assert!(lines(&load_in(Some(&other)).expect_err("too large"))[0].contains("larger than 1048576 bytes"));

    std::fs::remove_file(&file).expect("removed");
    std::os::unix::fs::symlink("nowhere", &file).expect("linked");
    assert!(load_in(None).is_err(), "a link that leads nowhere is no missing file");
}

/// An empty directory of this test's own.
fn scratch(name: &str) -> PathBuf {
    let directory = std::env::temp_dir().join(format!("mcprelay-{name}-{}", std::process::id()));
    let _ = std::fs::remove_dir_all(&directory);
    std::fs::create_dir_all(&directory).expect("a temporary directory");
    directory
}
