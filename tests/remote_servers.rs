//! Official servers over HTTP behind the relay, driven by official clients on stdio: the session that a client holds with
//! the server's own stdio transport is the one that it holds through the relay with the same server over HTTP, byte for
//! byte but for what a test lists.

use std::net::TcpListener;

use super::support::conversation::{Account, Conversation, Volatile};
use super::support::peers::Peers;
use super::support::session::eventually;
use super::support::{Process, Start, TempDir, mcprelay, testpeer};

/// What a server says differently over HTTP.
struct Differs {
    members: &'static [Volatile],
    /// The messages that belong to no request.
    streams: bool,
}

const NOTHING: Differs = Differs { members: &[], streams: false };

/// Over HTTP the Python SDK writes characters beyond ASCII as escapes, on stdio as they are. And a `requestState` is sealed
/// with a key of its process, and echoed by the client.
const PYTHON_MODERN: Differs = Differs {
    streams: false,
    members: &[
        Volatile { method: "tools/call", name: Some("ask"), path: &["result", "requestState"] },
        Volatile { method: "tools/call", name: Some("ask"), path: &["params", "requestState"] },
        Volatile { method: "tools/call", name: Some("ask"), path: &["result", "content"] },
        Volatile { method: "tools/call", name: Some("ask"), path: &["result", "structuredContent"] },
        Volatile { method: "tools/call", name: Some("echo"), path: &["result", "content"] },
        Volatile { method: "tools/call", name: Some("echo"), path: &["result", "structuredContent"] },
        Volatile { method: "resources/read", name: Some("note://readme"), path: &["result", "contents"] },
        Volatile { method: "server/discover", name: None, path: &["result", "instructions"] },
    ],
};

/// Times and random values of server-everything, whose transports also differ in what they say by themselves, and when.
const EVERYTHING: Differs = Differs {
    streams: true,
    members: &[
        Volatile { method: "tools/call", name: Some("get-resource-reference"), path: &["result", "content"] },
        Volatile { method: "resources/read", name: None, path: &["result", "contents"] },
        Volatile { method: "prompts/get", name: Some("resource-prompt"), path: &["result", "messages"] },
    ],
};

/// A port that nobody uses. Another program could take it before the server does; then the test fails and says so.
fn free_port() -> u16 {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
    listener.local_addr().expect("an address").port()
}

/// A server over HTTP, which ends with the test.
fn serve(server: Start, port: u16, dir: &TempDir) -> Process {
    let process = server.cwd(dir.path()).stdout_to(&dir.join("server.out")).start();
    eventually("the server's port", || {
        std::net::TcpStream::connect(("127.0.0.1", port)).map(drop).map_err(|error| error.to_string())
    });
    process
}

/// What the client exchanged with `end`.
fn account(client: Start, end: &[std::ffi::OsString], dir: &TempDir, name: &str) -> Account {
    let log = dir.join(name);
    let tap = Start::new(testpeer()).args(["tap", "--log"]).arg(&log).arg("--").args(end);
    let output = client.arg("--").args(tap.argv()).cwd(dir.path()).start().finish();
    assert!(output.status.success(), "the client failed in the {name} session:\n{output:#?}");
    Account::read(&log)
}

fn same_over_http(
    name: &str,
    differs: &Differs,
    client: &dyn Fn() -> Start,
    on_stdio: &Start,
    over_http: impl Fn(u16) -> Start,
    (option, path): (&str, &str),
) {
    let dir = TempDir::new(name);
    let direct = account(client(), on_stdio.argv(), &dir, "direct");
    let port = free_port();
    let _server = serve(over_http(port), port, &dir);
    let url = format!("http://127.0.0.1:{port}{path}");
    let relay = Start::new(mcprelay()).args(["run", option, &url]);
    let remote = account(client(), relay.argv(), &dir, "remote");
    assert!(direct.len() > 30, "the session is too short to tell anything: {} lines", direct.len());
    let loose = |account: &Account| {
        let whole = Conversation::of(account, differs.members);
        if differs.streams { whole.requests_only() } else { whole }
    };
    let difference = loose(&direct).difference(&loose(&remote), ["direct", "over HTTP"]);
    assert_eq!(difference.as_deref(), None, "{name}: not the same bytes\n{}", difference.clone().unwrap_or_default());
    assert_eq!(remote.exits.last().map(String::as_str), Some("0"), "the relay did not end in order");
}

/// One test for each session.
macro_rules! sessions {
    ($($name:ident: $differs:expr, $at:expr, |$peers:ident| $client:expr, $stdio:expr, |$port:ident| $http:expr;)*) => {
        $(#[test]
        fn $name() {
            let Some($peers) = Peers::find() else { return };
            let name = concat!("remote-", stringify!($name));
            same_over_http(name, &$differs, &|| $client, &$stdio, |$port| $http, $at);
        })*
    };
}

const HTTP: (&str, &str) = ("--http", "/mcp");

/// The same server over HTTP.
fn http(server: Start, port: u16) -> Start {
    server.args(["http", &port.to_string()])
}

sessions! {
    typescript_client_legacy_typescript_server: NOTHING, HTTP, |peers|
        peers.typescript_client("full-legacy"), peers.typescript_server("legacy"),
        |port| http(peers.typescript_server("legacy"), port);
    typescript_client_modern_typescript_server: NOTHING, HTTP, |peers|
        peers.typescript_client("full-modern"), peers.typescript_server("modern"),
        |port| http(peers.typescript_server("modern"), port);
    typescript_client_legacy_python_server: NOTHING, HTTP, |peers|
        peers.typescript_client("full-legacy"), peers.python_server(), |port| http(peers.python_server(), port);
    typescript_client_modern_python_server: PYTHON_MODERN, HTTP, |peers|
        peers.typescript_client("full-modern"), peers.python_server(), |port| http(peers.python_server(), port);
    typescript_client_legacy_fastmcp_server: NOTHING, HTTP, |peers|
        peers.typescript_client("full-legacy"), peers.fastmcp_server(), |port| http(peers.fastmcp_server(), port);
    python_client_modern_fastmcp_server: PYTHON_MODERN, HTTP, |peers|
        peers.python_client("full-modern"), peers.fastmcp_server(), |port| http(peers.fastmcp_server(), port);
    python_client_legacy_typescript_server: NOTHING, HTTP, |peers|
        peers.python_client("full-legacy"), peers.typescript_server("legacy"),
        |port| http(peers.typescript_server("legacy"), port);
    python_client_modern_typescript_server: NOTHING, HTTP, |peers|
        peers.python_client("full-modern"), peers.typescript_server("modern"),
        |port| http(peers.typescript_server("modern"), port);
    server_everything: EVERYTHING, HTTP, |peers|
        peers.typescript_client("everything"), peers.everything_server("stdio"),
        |port| peers.everything_server("streamableHttp").env("PORT", port.to_string());
    server_everything_over_the_older_transport: EVERYTHING, ("--sse", "/sse"), |peers|
        peers.typescript_client("everything"), peers.everything_server("stdio"),
        |port| peers.everything_server("sse").env("PORT", port.to_string());
    server_everything_over_the_older_transport_found_out: EVERYTHING, ("--http", "/sse"), |peers|
        peers.typescript_client("everything"), peers.everything_server("stdio"),
        |port| peers.everything_server("sse").env("PORT", port.to_string());
}
