//! Servers and clients that nobody here wrote, talking directly and through the relay: the same bytes, modulo what
//! `support::conversation` lists.
//!
//! Each session runs twice, directly and wrapped, with a tap at the client and, wrapped, another at the server:
//!
//! ```text
//! client ─ tap ─ server                    client ─ tap ─ mcprelay ─ tap ─ server
//! ```
//!
//! The two taps of the wrapped run must tell the same without any volatile member, for they saw the same run; each of
//! them must tell the same as the direct run but for the members that a test lists.

use std::ffi::OsString;
use std::path::Path;

use super::support::conversation::{Account, Conversation, Sender, Volatile};
use super::support::peers::Peers;
use super::support::{Start, TempDir, json, mcprelay, testpeer};

/// A `requestState` that the Python SDK seals with a key of its process, and the client echoes.
const SEALED_STATE: &[Volatile] = &[
    Volatile { method: "tools/call", name: Some("ask"), path: &["result", "requestState"] },
    Volatile { method: "tools/call", name: Some("ask"), path: &["params", "requestState"] },
];

/// Times and random values of server-everything.
const EVERYTHING: &[Volatile] = &[
    Volatile { method: "tools/call", name: Some("get-resource-reference"), path: &["result", "content"] },
    Volatile { method: "resources/read", name: None, path: &["result", "contents"] },
    Volatile { method: "prompts/get", name: Some("resource-prompt"), path: &["result", "messages"] },
];

/// File times.
const FILESYSTEM: &[Volatile] = &[
    Volatile { method: "tools/call", name: Some("get_file_info"), path: &["result", "content"] },
    Volatile { method: "tools/call", name: Some("get_file_info"), path: &["result", "structuredContent"] },
];

/// Runs `client` against `server`, with `relay` between them if it is not empty, and gives what the tap at the client
/// and the one at the server saw.
fn run(client: Start, server: &Start, relay: &[OsString], dir: &TempDir, name: &str) -> (Account, Option<Account>) {
    let tap =
        |end: &str| Start::new(testpeer()).args(["tap", "--log"]).arg(dir.join(&format!("{name}-{end}"))).arg("--");
    let mut start = client.arg("--").args(tap("client").argv());
    if !relay.is_empty() {
        start = start.args(relay).args(tap("server").argv());
    }
    let output = start.args(server.argv()).cwd(dir.path()).start().finish();
    let client_side = Account::read(&dir.join(&format!("{name}-client")));
    assert!(output.status.success(), "the client failed in the {name} session:\n{output:#?}");
    let server_side = (!relay.is_empty()).then(|| Account::read(&dir.join(&format!("{name}-server"))));
    (client_side, server_side)
}

/// Drives a session directly and through `relay`, and requires the same of both. `session` gives the client and the
/// server; its argument is a directory, fresh for each run and with the same path, that they may change.
fn same_through(relay: &[OsString], session: impl Fn(&Path) -> (Start, Start), volatile: &[Volatile], name: &str) {
    let dir = TempDir::new(name);
    let fresh = || {
        let root = dir.join("root");
        let _ = std::fs::remove_dir_all(&root);
        std::fs::create_dir(&root).expect("the temporary directory can be written");
        session(&root)
    };
    let (client, server) = fresh();
    let (direct, _) = run(client, &server, &[], &dir, "direct");
    let (client, server) = fresh();
    let (at_client, at_server) = run(client, &server, relay, &dir, "wrapped");
    let at_server = at_server.expect("a relay has a server side");
    assert!(direct.len() > 30, "the session is too short to tell anything: {} lines", direct.len());

    let exact = |account: &Account| Conversation::of(account, &[]);
    let loose = |account: &Account| Conversation::of(account, volatile);
    let compared = [
        exact(&at_client).difference(&exact(&at_server), ["at the client", "at the server"]),
        loose(&direct).difference(&loose(&at_client), ["direct", "wrapped, at the client"]),
        loose(&direct).difference(&loose(&at_server), ["direct", "wrapped, at the server"]),
    ];
    let differences: Vec<String> = compared.into_iter().flatten().collect();
    assert!(differences.is_empty(), "{name}: not the same bytes\n{}", differences.join("\n----\n"));
    // A client may end a process that it only probed with by a signal, before that could say how it ended.
    for account in [&direct, &at_server] {
        assert!(account.exits.last().is_some(), "the server did not end");
        assert!(account.exits.iter().all(|code| code == "0"), "the server did not end in order: {:?}", account.exits);
    }
    if relay.first().is_some_and(|program| program.as_os_str() == mcprelay()) {
        marks_stay_inside(&at_client, &at_server);
    }
}

/// Every call that reaches the server carries its own correlation id, and the client sees nothing of it.
fn marks_stay_inside(at_client: &Account, at_server: &Account) {
    let calls = at_server.sent_by(Sender::Client);
    let calls = calls.filter(|line| json::get_str(line, &["method"]).as_deref() == Some("tools/call"));
    let mut marks: Vec<Option<String>> =
        calls.map(|line| json::get_str(line, &["params", "_meta", "mcprelay", "correlation_id"])).collect();
    assert!(!marks.is_empty() && marks.iter().all(Option::is_some), "a call without correlation id: {marks:?}");
    let count = marks.len();
    marks.sort();
    marks.dedup();
    assert_eq!(marks.len(), count, "correlation ids repeat");
    let leaked = at_client.sent_by(Sender::Server).find(|line| memchr::memmem::find(line, b"correlation_id").is_some());
    assert_eq!(leaked.map(String::from_utf8_lossy), None, "the client sees what is ours");
}

/// The relay under test.
fn wrapper() -> Vec<OsString> {
    vec![mcprelay().into(), "run".into(), "--".into()]
}

/// A relay that surely changes nothing: it shows that the sessions can be repeated and the lists are complete.
fn pump() -> Vec<OsString> {
    vec![testpeer().into(), "pump".into(), "--".into()]
}

/// One test for each session, through the given relay.
macro_rules! sessions {
    (#[$attribute:meta] $module:ident through $relay:expr; $($name:ident: $volatile:expr, |$peers:ident, $root:ident| $session:expr;)*) => {
        mod $module {
            use super::*;
            $(#[test]
            #[$attribute]
            fn $name() {
                let Some($peers) = Peers::find() else { return };
                let name = concat!(stringify!($module), "-", stringify!($name));
                same_through(&$relay, |$root| $session, $volatile, name);
            })*
        }
    };
}

// Shows that these sessions can be repeated, that the lists of volatile members are complete, and that what differs
// below is the work of mcprelay.
sessions! { #[cfg(unix)] pump through pump();
    typescript_client_legacy_typescript_server: &[], |peers, _root|
        (peers.typescript_client("full-legacy"), peers.typescript_server("legacy"));
    python_client_probes_a_dual_python_server: SEALED_STATE, |peers, _root|
        (peers.python_client("full-auto"), peers.python_server());
    server_everything: EVERYTHING, |peers, _root|
        (peers.typescript_client("everything"), peers.everything_server("stdio"));
    server_filesystem: FILESYSTEM, |peers, root|
        (peers.typescript_client(&format!("filesystem {}", root.display())), peers.filesystem_server(root));
}

sessions! { #[cfg(unix)] wrapped through wrapper();
    typescript_client_legacy_typescript_server: &[], |peers, _root|
        (peers.typescript_client("full-legacy"), peers.typescript_server("legacy"));
    typescript_client_modern_typescript_server: &[], |peers, _root|
        (peers.typescript_client("full-modern"), peers.typescript_server("modern"));
    typescript_client_probes_a_legacy_server: &[], |peers, _root|
        (peers.typescript_client("full-auto"), peers.typescript_server("legacy"));
    typescript_client_legacy_python_server: &[], |peers, _root|
        (peers.typescript_client("full-legacy"), peers.python_server());
    typescript_client_modern_python_server: SEALED_STATE, |peers, _root|
        (peers.typescript_client("full-modern"), peers.python_server());
    typescript_client_legacy_fastmcp_server: &[], |peers, _root|
        (peers.typescript_client("full-legacy"), peers.fastmcp_server());
    typescript_client_modern_fastmcp_server: SEALED_STATE, |peers, _root|
        (peers.typescript_client("full-modern"), peers.fastmcp_server());
    python_client_legacy_typescript_server: &[], |peers, _root|
        (peers.python_client("full-legacy"), peers.typescript_server("legacy"));
    python_client_modern_typescript_server: &[], |peers, _root|
        (peers.python_client("full-modern"), peers.typescript_server("modern"));
    python_client_legacy_python_server: &[], |peers, _root|
        (peers.python_client("full-legacy"), peers.python_server());
    python_client_probes_a_dual_python_server: SEALED_STATE, |peers, _root|
        (peers.python_client("full-auto"), peers.python_server());
    python_client_modern_fastmcp_server: SEALED_STATE, |peers, _root|
        (peers.python_client("full-modern"), peers.fastmcp_server());
    server_everything: EVERYTHING, |peers, _root|
        (peers.typescript_client("everything"), peers.everything_server("stdio"));
    server_filesystem: FILESYSTEM, |peers, root|
        (peers.typescript_client(&format!("filesystem {}", root.display())), peers.filesystem_server(root));
}
