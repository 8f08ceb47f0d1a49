//! The official servers and clients under `tests/peers`, and what to do where they are not installed.

use std::path::{Path, PathBuf};

use super::Start;

/// The official packages, installed.
pub(crate) struct Peers {
    dir: PathBuf,
    python: PathBuf,
}

impl Peers {
    /// Finds the packages that `scripts/test` installs. Where they are missing, `None`, and the terminal says so;
    /// with `MCPRELAY_REQUIRE_PEERS=1` that is a failure.
    pub(crate) fn find() -> Option<Peers> {
        let root = Path::new(env!("CARGO_MANIFEST_DIR"));
        let dir = root.join("tests/peers");
        let venv = std::env::var_os("MCPRELAY_TEST_PEERS").map_or_else(|| root.join("target/peers"), PathBuf::from);
        let python = venv.join("venv/bin/python");
        let missing = [dir.join("node_modules/@modelcontextprotocol/client"), python.clone()];
        let missing: Vec<String> =
            missing.iter().filter(|path| !path.exists()).map(|path| path.display().to_string()).collect();
        if missing.is_empty() {
            return Some(Peers { dir, python });
        }
        let name = std::thread::current().name().unwrap_or("a test").to_string();
        let why =
            format!("{name}: official peers are not installed (scripts/test does it): no {}", missing.join(", no "));
        assert!(std::env::var_os("MCPRELAY_REQUIRE_PEERS").is_none_or(|value| value != "1"), "{why}");
        super::process::say(&format!("SKIPPED {why}"));
        None
    }

    /// The official TypeScript client driving `session`; what it talks to is appended after `--`.
    pub(crate) fn typescript_client(&self, session: &str) -> Start {
        Start::new("node").arg(self.dir.join("client.mjs")).args(session.split(' '))
    }

    /// The official Python client.
    pub(crate) fn python_client(&self, session: &str) -> Start {
        Start::new(&self.python).arg(self.dir.join("client.py")).args(session.split(' '))
    }

    /// Our server on the TypeScript SDK v2: `legacy`, `modern` or `both`.
    pub(crate) fn typescript_server(&self, era: &str) -> Start {
        Start::new("node").arg(self.dir.join("server-ts.mjs")).arg(era)
    }

    /// Our server on the Python SDK 2.x.
    pub(crate) fn python_server(&self) -> Start {
        Start::new(&self.python).arg(self.dir.join("server_mcp.py"))
    }

    /// Our server on FastMCP.
    pub(crate) fn fastmcp_server(&self) -> Start {
        Start::new(&self.python).arg(self.dir.join("server_fastmcp.py"))
    }

    /// server-everything, on the legacy SDK: `stdio`, `streamableHttp` or `sse`, the last two at `PORT`.
    pub(crate) fn everything_server(&self, transport: &str) -> Start {
        let entry = "node_modules/@modelcontextprotocol/server-everything/dist/index.js";
        Start::new("node").arg(self.dir.join(entry)).arg(transport)
    }

    /// server-filesystem, on the legacy SDK, serving `root`.
    pub(crate) fn filesystem_server(&self, root: &Path) -> Start {
        let entry = "node_modules/@modelcontextprotocol/server-filesystem/dist/index.js";
        Start::new("node").arg(self.dir.join(entry)).arg(root)
    }
}
