//! What is decided before anything is forwarded: policy, callers and their credentials.

use super::super::sim::{Sim, call};
use crate::record::Decision;

#[test]
fn a_denied_call_is_audited_logged_and_answered_in_this_order() {
    let mut sim = Sim::new();
    sim.call(1, "denied_tool");
    sim.expect(
        r#"
        !audit denied denied_tool by local
        !log denied denied_tool attempts=0 code=-32001
        >c {"jsonrpc":"2.0","id":1,"error":{"code":-32001,"message":"tool \"denied_tool\" is denied: rule #1 (tool \"denied*\") denies the call","data":{"mcprelay":{"class":"denied","attempts":0,"executed":"no","correlation_id":"C1"}}}}
    "#,
    );
    assert_eq!(sim.audits[0].correlation_id, sim.events[0].correlation_id);
    assert!(sim.audits[0].detail.as_deref().is_some_and(|detail| detail.contains("\"rule\":1")), "{:?}", sim.audits);
    assert!(sim.letters.is_empty() && sim.to_upstream.is_empty());
    sim.assert_at_rest();
}

#[test]
fn pro_4_a_denied_call_without_id_is_judged_and_never_answered() {
    let mut sim = Sim::new();
    sim.client(r#"{"jsonrpc":"2.0","method":"tools/call","params":{"name":"denied_tool"}}"#);
    sim.expect("!audit denied denied_tool by local\n!log denied denied_tool attempts=0 code=-32001");
    sim.client(r#"{"jsonrpc":"2.0","method":"tools/call","params":{"name":"echo","_meta":{"progressToken":1}}}"#);
    sim.expect(
        r#"
        >u {"jsonrpc":"2.0","method":"tools/call","params":{"name":"echo","_meta":{"mcprelay":{"correlation_id":"C1"},"progressToken":1}}}
        !log allowed echo attempts=1
    "#,
    );
    sim.assert_at_rest();
}

#[test]
fn a_dry_run_tells_and_lets_through() {
    let mut sim = Sim::with(|settings| settings.policy_dry_run = true);
    sim.call(1, "denied_tool");
    sim.expect(
        r#"
        !diag policy dry run: would deny tool "denied_tool": rule #1 (tool "denied*") denies the call
        !log denied denied_tool attempts=0 code=-32001 (dry run)
        >u {"jsonrpc":"2.0","id":2,"method":"tools/call","params":{"_meta":{"mcprelay":{"correlation_id":"C1"}},"name":"denied_tool"}}
    "#,
    );
    sim.result(2, "{}");
    assert_eq!((sim.events[1].decision, sim.events[1].enforced), (Decision::Allowed, true));
    assert!(sim.audits.is_empty());
}

#[test]
fn the_caller_is_who_its_credential_says_and_the_credential_stays_here() {
    let mut sim = Sim::new();
    sim.client(
        r#"{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"pay","_meta":{"a":1 , "authorization":"Bearer k-alice" , "b":2}}}"#,
    );
    sim.expect(
        r#">u {"jsonrpc":"2.0","id":2,"method":"tools/call","params":{"name":"pay","_meta":{"mcprelay":{"correlation_id":"C1"},"a":1 , "b":2}}}"#,
    );
    sim.run_until(2_000);
    assert_eq!(sim.events[0].caller.identity, "alice");
    assert_eq!(sim.letters[0].caller.identity, "alice");
    assert!(!sim.log.iter().any(|line| !line.contains("c> ") && line.contains("k-alice")));
}

#[test]
fn an_unknown_credential_is_answered_at_the_edge_on_any_request() {
    let with = |method: &str, params: &str| {
        format!(
            r#"{{"jsonrpc":"2.0","id":1,"method":"{method}","params":{{{params}"_meta":{{"authorization":"Bearer nobody"}}}}}}"#
        )
    };
    for line in [
        with("ping", ""),
        with("initialize", ""),
        with("tools/call", r#""name":"echo","#),
        with("tools/call", ""),
        r#"{"jsonrpc":"2.0","id":1,"method":"ping","params":{"_meta":{"authorization":null}}}"#.to_owned(),
        r#"{"jsonrpc":"2.0","id":1,"method":"ping","params":{"_meta":{"\u0061uthorization":"k-alice"}}}"#.to_owned(),
    ] {
        let mut sim = Sim::new();
        sim.client(&line);
        assert_eq!(
            (sim.last_answer()["error"]["code"].as_i64(), sim.last_answer()["id"].as_i64()),
            (Some(-32003), Some(1))
        );
        assert_eq!(sim.last_mark()["class"], "unauthenticated");
        assert_eq!(sim.last_mark()["executed"], "no");
        assert!(sim.to_upstream.is_empty(), "{line}");
        let is_call = line.contains("tools/call");
        assert_eq!((sim.audits.len(), sim.events.len()), (usize::from(is_call), usize::from(is_call)));
        if is_call {
            assert_eq!(sim.events[0].caller.identity, "local", "an unknown caller is nobody we know");
            assert_eq!(sim.last_mark()["correlation_id"], sim.events[0].correlation_id);
        }
        sim.assert_at_rest();
    }
}

#[test]
fn a_notification_with_an_unknown_credential_is_dropped() {
    let mut sim = Sim::new();
    sim.call(1, "echo");
    sim.skip();
    for method in ["notifications/initialized", "notifications/cancelled", "tools/call"] {
        sim.client(format!(
            r#"{{"jsonrpc":"2.0","method":"{method}","params":{{"name":"echo","requestId":1,"_meta":{{"authorization":"Bearer nobody"}}}}}}"#
        ));
        sim.expect(&format!("!diag dropped the notification \"{method}\": its credential is not known"));
    }
    sim.result(2, "{}");
    sim.assert_at_rest();
}

#[test]
fn credentials_are_stripped_from_everything_and_nothing_else_moves() {
    let meta = r#""_meta" : {"x":[1.0] , "authorization" : "Bearer k-alice"}"#;
    let bare = r#""_meta" : {"x":[1.0]}"#;
    let mut sim = Sim::new();
    for (id, head, tail) in [
        (Some(2), r#"{"jsonrpc":"2.0","method":"ping", "params" :{"#, r#"}, "id" : "é" }"#),
        (Some(4), r#"{"id":1e0,"params":{"a":"\u00e9","#, r#", "z":-0},"method":"x/y"}"#),
        (None, r#"{"method":"notifications/x","params":{"#, "}}"),
    ] {
        sim.skip();
        sim.client(format!("{head}{meta}{tail}"));
        let sent = format!("{head}{bare}{tail}");
        let sent = match id {
            Some(id) => sent
                .replace(r#""id" : "é""#, &format!(r#""id" : {id}"#))
                .replace(r#""id":1e0"#, &format!(r#""id":{id}"#)),
            None => sent,
        };
        sim.expect(&format!(">u {sent}"));
    }
    // In a batch.
    sim.client(format!(r#"[{{"jsonrpc":"2.0","id":5,"method":"ping","params":{{{meta}}}}}]"#));
    sim.expect(&format!(r#">u {{"jsonrpc":"2.0","id":7,"method":"ping","params":{{{bare}}}}}"#));
    // In an answer, whoever it is of.
    sim.upstream(r#"{"jsonrpc":"2.0","id":"q","method":"roots/list"}"#);
    sim.skip();
    sim.client(r#"{"jsonrpc":"2.0","id":8,"result":{"roots":[],"_meta":{"authorization":"Bearer nobody"}}}"#);
    sim.expect(r#">u {"jsonrpc":"2.0","id":"q","result":{"roots":[],"_meta":{}}}"#);
    // In a cancel.
    sim.client(format!(r#"{{"method":"notifications/cancelled","params":{{{meta},"requestId":5}}}}"#));
    sim.expect(&format!(r#">u {{"method":"notifications/cancelled","params":{{{bare},"requestId":7}}}}"#));
}

#[test]
fn an_authorization_member_elsewhere_is_not_ours() {
    let mut sim = Sim::new();
    let line = r#"{"jsonrpc":"2.0","method":"notifications/x","params":{"authorization":"a","b":{"_meta":{"authorization":"c"}}}}"#;
    sim.client(line);
    sim.expect(&format!(">u {line}"));
    sim.upstream(r#"{"jsonrpc":"2.0","method":"notifications/x","params":{"_meta":{"authorization":"d"}}}"#);
    sim.expect(r#">c {"jsonrpc":"2.0","method":"notifications/x","params":{"_meta":{"authorization":"d"}}}"#);
}

#[test]
fn denials_in_a_row_leave_nothing_behind() {
    let mut sim = Sim::new();
    for id in 0..100 {
        sim.client(call(id, "denied"));
    }
    assert_eq!(sim.to_client.len(), 100);
    sim.assert_at_rest();
}
