//! Fidelity of the JSON text (hazards JSN-1 to JSN-8), through the real binary.

use crate::support::session::{Setup, call, same_but_id, session};
use crate::support::{Frame, Start, TempDir};

/// Numbers above 2^53, and spellings that a parser would change.
const NUMBERS: [&str; 2] = [
    r#"{"a":9007199254740993,"b":-7108510333361982070,"c":18446744073709551616,"d":123456789012345678901234567890}"#,
    r#"{"a":1e5,"b":1.10,"c":-0,"d":1e400,"e":0.1e-7,"f":1E2,"g":1.5777777777770001,"h":1.0,"i":-0.0e-0}"#,
];

fn nested(levels: usize) -> String {
    // Objects and arrays in turn; the outermost is an object, as arguments must be.
    let (mut open, mut close) = (String::new(), Vec::new());
    for level in 0..levels {
        let (start, end) = if level % 2 == 0 { ("{\"a\":", "}") } else { ("[", "]") };
        open += start;
        close.push(end);
    }
    close.reverse();
    format!("{open}1{}", close.concat())
}

fn echoed_unchanged(name: &str, texts: &[&str]) {
    let mut session = session(name).start();
    for text in texts {
        assert_eq!(session.call("1", "echo", text).at("result.structuredContent"), *text);
    }
    let ended = session.finish();
    let got: Vec<String> = ended.got("tools/call").iter().map(|frame| frame.at("params.arguments").into()).collect();
    assert_eq!(got, texts, "what the server got");
}

#[test]
fn jsn_1_integers_above_2_to_the_53_keep_their_digits() {
    echoed_unchanged("jsn-1", &NUMBERS[..1]);
}

#[test]
fn jsn_2_numbers_keep_their_spelling() {
    echoed_unchanged("jsn-2", &NUMBERS[1..]);
}

#[test]
fn jsn_2_blanks_escapes_and_order_are_kept() {
    echoed_unchanged("jsn-2-text", &[r#"{ "z" : "\u0041\/\ud83c\udf89" ,  "a":[ ] , "\u0062":{ } }"#, "{\t}"]);
}

#[test]
fn jsn_1_and_2_a_dead_letter_and_its_replay_keep_digits_and_spelling() {
    for numbers in NUMBERS {
        let mut session = session("jsn-stored").start();
        session.call("1", "rpc-error", numbers);
        let ended = session.finish();
        let [id] = &ended.queued("id")[..] else { panic!("{}", ended.stderr) };
        let shown = ended.command(&format!("replay inspect {id} --json"));
        assert!(shown.stdout.contains(&format!("\"arguments\":{numbers}")), "{shown:?}");
        let replayed = ended.command(&format!("replay run {id} --force"));
        let calls = ended.got_by_now("tools/call");
        assert_eq!(calls.len(), 2, "{replayed:?}");
        assert_eq!(calls[1].at("params.arguments"), numbers, "{replayed:?}");
    }
}

#[test]
fn jsn_3_a_call_that_repeats_a_member_is_refused_and_not_forwarded() {
    let call = |members: &str| format!(r#"{{"jsonrpc":"2.0",{members}}}"#);
    let refused = [
        (call(r#""id":1,"method":"ping","method":"tools/call","params":{"name":"echo"}"#), "1"),
        (call(r#""id":1,"method":"tools/call","params":{"name":"read_file","name":"delete_file"}"#), "1"),
        (call(r#""id":1,"method":"tools/call","params":{"name":"x","n\u0061me":"y"}"#), "1"),
        (call(r#""id":1,"method":"tools/call","params":{"name":"x","arguments":{"path":"/ok","path":"/etc"}}"#), "1"),
        (call(r#""id":1,"method":"tools/call","params":{"name":"x","arguments":{"a":[{"b":1,"b":1}]}}"#), "1"),
        (call(r#""id":1,"method":"tools/call","params":{"name":"x"},"params":{"name":"y"}"#), "1"),
        (call(r#""id":1,"method":"tools/call","params":{"name":"x","_meta":{"a":1,"a":2}}"#), "1"),
        (call(r#""id":1,"id":2,"method":"tools/call","params":{"name":"x"}"#), "null"),
    ];
    let other_case = [
        (call(r#""id":1,"method":"ping","Method":"tools/call","params":{"name":"echo"}"#), "1"),
        (call(r#""id":1,"method":"tools/call","params":{"name":"read_file","Name":"delete_file"}"#), "1"),
    ];
    let mut session = session("jsn-3").start();
    for (line, id) in &refused {
        session.send(line);
        let error = session.relay.next();
        assert_eq!((error.at("id"), error.at("error.code")), (*id, "-32600"), "{line}: {error:?}");
        assert!(error.at("error.message").contains("occurs twice"), "{error:?}");
    }
    for (line, id) in &other_case {
        session.send(line);
        let error = session.relay.next();
        assert_eq!((error.at("id"), error.at("error.code")), (*id, "-32600"), "{line}: {error:?}");
    }
    // A notification is refused in silence.
    session.send(r#"{"jsonrpc":"2.0","method":"tools/call","params":{"name":"x","name":"y"}}"#);
    // Nothing depends on these: they pass as they are.
    let passed = r#"{"jsonrpc":"2.0","id":1,"method":"x/echo","params":{"a":{"b":1,"b":2}}}"#;
    assert_eq!(session.ask(passed).at("result"), r#"{"a":{"b":1,"b":2}}"#);
    let ended = session.finish();
    let frames: Vec<String> =
        ended.seen.iter().filter(|note| note.starts_with('{')).map(|note| same_but_id(note, "1")).collect();
    assert_eq!(frames, [passed]);
}

#[test]
fn jsn_3_no_reader_of_lines_finds_a_call_inside_a_notification() {
    let mut session = session("jsn-3-lines").start();
    session.send("{\"jsonrpc\":\"2.0\",\"method\":\"x/y\",\"params\":{\"a\":[\r{\"method\":\"tools/call\"}\r]}}");
    session.call("1", "echo", "{}");
    let ended = session.finish();
    let told: Vec<&String> = ended.seen.iter().filter(|note| note.contains("x/y")).collect();
    assert_eq!(told, [r#"{"jsonrpc":"2.0","method":"x/y","params":{"a":[ {"method":"tools/call"} ]}}"#]);
}

#[test]
fn jsn_4_results_are_not_cleaned_up() {
    let deep = nested(40);
    let result = format!(
        r#"{{ "z":1, "toJSON":"x" ,"__proto__":{{"a":1}},"stackTrace":[ ],"stack":"at x","password":"p\u0061ss","cause":{deep}, "b" : 2,"a":3 }}"#
    );
    let frame = format!(r#"{{"result":{result} , "id":$ID,  "jsonrpc":"2.0"}}"#);
    let mut session = session("jsn-4").start();
    let arguments = format!("{{\"frames\":[{}]}}", serde_json::Value::from(frame.as_str()));
    assert_eq!(session.call("7", "raw", &arguments).text(), frame.replace("$ID", "7"));
    // The same for a request that is no call, and for arguments.
    let answer = session.ask(&format!(r#"{{"jsonrpc":"2.0","id":8,"method":"x/echo","params":{result}}}"#));
    assert_eq!(answer.at("result"), result);
    assert_eq!(session.call("9", "echo", &result).at("result.structuredContent"), result);
    session.finish();
}

#[test]
fn jsn_5_deep_nesting_is_forwarded_or_refused_and_never_ends_the_session() {
    let mut session = session("jsn-5").start();
    for levels in [100, 127, 128, 200, 900] {
        let arguments = nested(levels);
        assert_eq!(session.call("1", "echo", &arguments).at("result.structuredContent"), arguments, "{levels}");
    }
    for levels in [1_100, 100_000] {
        let error = session.call("2", "echo", &nested(levels));
        assert_eq!(error.at("error.code"), "-32600", "{levels}: {error:?}");
    }
    assert_eq!(session.call("3", "echo", "{}").at("result.structuredContent"), "{}");
    assert_eq!(session.finish().code, Some(0));
}

#[test]
fn jsn_5_deep_nesting_of_a_server_is_relayed() {
    let deep = nested(100_000);
    let frame = format!(r#"{{"jsonrpc":"2.0","id":$ID,"result":{{"structuredContent":{deep}}}}}"#);
    let mut session = session("jsn-5-server").start();
    let answer = session.call("1", "raw", &format!("{{\"frames\":[{}]}}", serde_json::Value::from(frame.as_str())));
    assert!(answer.text() == frame.replace("$ID", "1"), "{answer:?}");
    session.settle();
    session.finish();
}

#[test]
fn jsn_6_a_number_of_5000_digits_is_no_obstacle() {
    let digits = "1".repeat(5_000);
    let mut session = session("jsn-6").start();
    let line = format!(r#"{{"jsonrpc":"2.0","id":1,"method":"ping","x":{digits}}}"#);
    session.ask(&line);
    let arguments = format!("{{\"x\":{digits}}}");
    assert_eq!(session.call("2", "echo", &arguments).at("result.structuredContent"), arguments);
    // As an id and as a progress value, where we look at it.
    session.ask(&format!(r#"{{"jsonrpc":"2.0","id":{digits},"method":"ping"}}"#));
    let ended = session.finish();
    assert_eq!(same_but_id(ended.got("ping")[0].text(), "1"), line);
}

/// A server that gives the lines of the file `answers`, one for each line it gets, `@ID@` being the id of that line.
const CANNED: &str = r#"
exec 3< answers
while IFS= read -r line; do
  id=$(printf '%s\n' "$line" | sed -n 's/.*"id":\([0-9]*\).*/\1/p')
  IFS= read -r answer <&3 && printf '%s\n' "$answer" | sed "s/@ID@/$id/"
done
"#;

#[test]
fn jsn_7_no_member_is_lost_in_transit() {
    let icons = r#"[{"src":"data:,","mimeType":"image/png","sizes":["48x48"],"theme":"dark"}]"#;
    let annotations = r#"{"audience":["user"],"priority":0.50,"lastModified":"2025-01-12T15:00:58Z","x":1}"#;
    let answers = [
        (
            "initialize",
            format!(
                r#"{{"protocolVersion":"2025-11-25","capabilities":{{"logging":{{}},"completions":{{}},"prompts":{{"listChanged":true}},"resources":{{"subscribe":true,"listChanged":true}},"tools":{{"listChanged":true}},"tasks":{{"list":{{}},"cancel":{{}},"requests":{{"tools":{{"call":{{}}}}}}}},"experimental":{{"x":{{}}}}}},"serverInfo":{{"name":"n","title":"t","version":"1.2.3","description":"d","websiteUrl":"https://x","icons":{icons}}},"instructions":"do\nthis","_meta":{{"a":1}},"x-new":[1.0]}}"#
            ),
        ),
        (
            "tools/list",
            format!(
                r#"{{"tools":[{{"name":"a","title":"A","description":"d","icons":{icons},"inputSchema":{{"$schema":"x","type":"object","properties":{{}},"required":[]}},"outputSchema":{{"type":"object"}},"annotations":{{"title":"t","readOnlyHint":true,"destructiveHint":false,"idempotentHint":true,"openWorldHint":false}},"execution":{{"taskSupport":"optional"}},"_meta":{{"m":1}},"x-new":null}}],"nextCursor":"c==","_meta":{{}},"x-new":1}}"#
            ),
        ),
        (
            "resources/read",
            r#"{"contents":[{"uri":"file:///a","mimeType":"text/plain","text":"t","_meta":{"m":1},"x-new":1},{"uri":"b","blob":"AA=="}],"_meta":{"b":2}}"#.to_owned(),
        ),
        (
            "tools/call",
            format!(
                r#"{{"content":[{{"type":"text","text":"t","annotations":{annotations},"_meta":{{"m":1}},"x-new":1}},{{"type":"resource_link","uri":"u","name":"n","title":"t","description":"d","mimeType":"m","size":1e2,"icons":{icons}}}],"structuredContent":{{"a":[1.0]}},"isError":false,"_meta":{{"k":1}},"x-new":{{}}}}"#
            ),
        ),
    ];
    let dir = TempDir::new("jsn-7");
    let frame = |id: &str, result: &str| format!(r#"{{"jsonrpc":"2.0","id":{id},"result":{result},"x-top":0}}"#);
    let lines: Vec<String> = answers.iter().map(|(_, result)| frame("@ID@", result) + "\n").collect();
    // The backslash of an escape is one for sed's input; `read -r` and printf leave it alone.
    dir.write("answers", &lines.concat());
    let mut relay = Start::relay("", &Start::new("sh").args(["-c", CANNED])).cwd(dir.path()).start();
    for (method, result) in &answers {
        let line = format!(r#"{{"jsonrpc":"2.0","id":"i-1","method":"{method}","params":{{"name":"a","uri":"u"}}}}"#);
        assert_eq!(relay.ask(&line).text(), frame("\"i-1\"", result), "{method}");
    }
    relay.finish();
}

fn with_meta(id: &str, tool: &str, arguments: &str, meta: &str) -> String {
    call(id, tool, &format!("{arguments},\"_meta\":{meta}"))
}

fn meta_got(frame: &Frame) -> &str {
    frame.at("params._meta")
}

#[test]
fn jsn_8_the_clients_token_comes_back_as_it_was_and_the_rest_of_meta_is_untouched() {
    let mut session = session("jsn-8").start();
    for token in ["\"tök-1\"", "0", "\"t\\u00f6k\"", "1.0", "\"0\""] {
        let meta = format!(r#"{{"progressToken":{token},"vendor/x":{{"n":1.0}},  "traceparent":"00-1"}}"#);
        session.send(&with_meta("1", "progress", r#"{"steps":2}"#, &meta));
        for step in ["1", "2"] {
            let progress = session.relay.next();
            assert_eq!(
                progress.text(),
                format!(
                    r#"{{"jsonrpc":"2.0","method":"notifications/progress","params":{{"progressToken":{token},"progress":{step},"total":2}}}}"#
                )
            );
        }
        session.answer("1");
        let got = session.got("tools/call").pop().expect("the call");
        let ours = got.at("params._meta.progressToken").to_owned();
        assert!(ours.starts_with("\"mcprelay-"), "a token of ours: {got:?}");
        let mark = got.at("params._meta.mcprelay").to_owned();
        let back = meta_got(&got).replace(&ours, token);
        let back = back.replace(&format!(",\"mcprelay\":{mark}"), "").replace(&format!("\"mcprelay\":{mark},"), "");
        assert_eq!(back, meta, "the rest of _meta");
    }
    session.finish();
}

#[test]
fn jsn_8_no_token_is_added() {
    let mut session = session("jsn-8-none").start();
    session.send(&call("1", "echo", "{}"));
    session.answer("1");
    session.send(&with_meta("2", "echo", "{}", "{\"a\":1}"));
    session.answer("2");
    let got = session.got("tools/call");
    assert_eq!(got[0].get("params._meta.progressToken"), None, "{:?}", got[0]);
    assert_eq!(got[1].get("params._meta.progressToken"), None, "{:?}", got[1]);
    assert_eq!(got[1].at("params._meta.a"), "1");
    session.finish();
}

#[test]
fn jsn_8_each_attempt_has_a_token_of_its_own_and_one_correlation_id() {
    let config = "reliability: {retry: {base_ms: 0}, per_tool: {flaky: {idempotent: true}}}";
    let mut session = session("jsn-8-retry").config(config).start();
    session.send(&with_meta("1", "flaky", "{}", r#"{"progressToken":"t"}"#));
    assert!(session.answer("1").at("result").contains("attempt 3"));
    let got = session.got("tools/call");
    let members = |path: &str| -> std::collections::BTreeSet<String> {
        got.iter().map(|frame| frame.at(path).to_owned()).collect()
    };
    assert_eq!(got.len(), 3);
    assert_eq!(members("params._meta.progressToken").len(), 3);
    assert_eq!(members("params._meta.mcprelay.correlation_id").len(), 1);
    session.finish();
}

#[test]
fn jsn_8_progress_of_other_requests_passes_unchanged() {
    let mut session = session("jsn-8-other").start();
    let line = r#"{"jsonrpc":"2.0","id":1,"method":"x/echo","params":{"_meta":{"progressToken":"tök"}}}"#;
    session.ask(line);
    let progress =
        r#"{"jsonrpc":"2.0","method":"notifications/progress","params":{"progressToken":"tök","progress":1}}"#;
    session.send(&format!(r#"{{"jsonrpc":"2.0","id":2,"method":"x/notify","params":{{"frames":[{progress}]}}}}"#));
    assert_eq!(session.relay.next().text(), progress);
    session.answer("2");
    let ended = session.finish();
    assert_eq!(same_but_id(ended.got("x/echo")[0].text(), "1"), line);
}

#[test]
fn jsn_8_only_the_credential_is_removed() {
    let setup: Setup = session("jsn-8-credential").config("identity: {keys: [{key: k-1, identity: alice}]}");
    let mut session = setup.start();
    let line = r#"{"jsonrpc":"2.0","id":1,"method":"x/echo","params":{ "b":1 , "_meta":{"authorization":"Bearer k-1","x" : 2.0} }}"#;
    session.ask(line);
    session.send(&with_meta("2", "echo", "{}", r#"{"a":1,"authorization":"Bearer k-1","x" : 2.0}"#));
    session.answer("2");
    let ended = session.finish();
    let echoed = same_but_id(ended.got("x/echo")[0].text(), "1");
    assert_eq!(echoed, line.replace(r#""authorization":"Bearer k-1","#, ""));
    let got = &ended.got("tools/call")[0];
    assert_eq!(got.get("params._meta.authorization"), None, "{got:?}");
    assert!(meta_got(got).contains("\"x\" : 2.0"), "{got:?}");
    assert!(!ended.stderr.contains("k-1"), "the key is on stderr: {}", ended.stderr);
}
