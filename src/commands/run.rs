//! `mcprelay run`: wraps a server for the client on standard input and output.

use std::ffi::{OsStr, OsString};
use std::io::Write;
use std::path::Path;

use crossbeam_channel::Sender;

use crate::cli::RunArgs;
use crate::clock::Clock;
use crate::config::{self, Settings};
use crate::dispatcher;
use crate::dispatcher::event::Event;
use crate::exit::ExitStatus;
use crate::identity::Identities;
use crate::ports::log::Log;
use crate::record::{Server, Transport};
use crate::runtime::{self, Keeper, Session};

/// Runs the wrapper until the client or the server ends the session.
pub fn run(args: &RunArgs, err: &mut dyn Write) -> ExitStatus {
    let env = |name: &str| std::env::var(name).ok();
    let loaded = match config::load(args.config.as_deref(), Path::new("."), &args.overrides, &env) {
        Ok(loaded) => loaded,
        Err(refused) => {
            // With standard error closed there is nobody left to tell.
            let _ = super::validate::print_refused(&refused, err);
            return ExitStatus::Usage;
        }
    };
    match start(args, loaded) {
        Ok(status) => status,
        Err(error) => {
            let _ = writeln!(err, "mcprelay: cannot start: {error}");
            ExitStatus::Failure
        }
    }
}

fn start(args: &RunArgs, loaded: config::Loaded) -> std::io::Result<ExitStatus> {
    let settings = loaded.settings;
    let log = Log::start(std::io::stderr(), |event| format!("{event:?}"))?;
    for warning in &loaded.warnings {
        log.diagnose(warning.to_string());
    }
    let session = Session {
        server: server(&args.server),
        argv: args.server.clone(),
        seed: seed()?,
        clock: Clock::start(),
        log: log.clone(),
        keeper: Box::new(|to| Ok(Forgetful(to))),
        settings: engine_settings(settings)?,
    };
    runtime::run(session)
}

/// What the engine needs of the configuration.
fn engine_settings(settings: Settings) -> std::io::Result<dispatcher::Settings> {
    let identities = Identities::new(settings.identity.profile, settings.identity.keys)
        .map_err(|problems| std::io::Error::other(format!("identity: {problems:?}")))?;
    Ok(dispatcher::Settings {
        reliability: settings.reliability,
        policy: settings.policy,
        policy_dry_run: settings.policy_dry_run,
        identities,
        capture_timeout: settings.queue.capture_timeout,
        stdin_grace: settings.shutdown.stdin_grace,
        term_grace: settings.shutdown.term_grace,
        signal_drain: settings.shutdown.signal_drain,
        frame_bytes_max: settings.frame_max_bytes,
    })
}

/// The server as records keep it; it is named by its command until it tells its own name.
fn server(argv: &[OsString]) -> Server {
    let text = |word: &OsString| word.to_string_lossy().into_owned();
    let name = argv.first().and_then(|program| Path::new(program).file_name()).unwrap_or(OsStr::new("server"));
    Server {
        name: name.to_string_lossy().into_owned(),
        transport: Transport::Stdio,
        argv: argv.iter().map(text).collect(),
        cwd: std::env::current_dir().ok().and_then(|folder| folder.to_str().map(str::to_owned)),
    }
}

fn seed() -> std::io::Result<u64> {
    getrandom::u64().map_err(|error| std::io::Error::other(format!("no random numbers: {error}")))
}

struct Forgetful(Sender<Event>);
impl Keeper for Forgetful {
    fn capture(
        &self,
        ticket: dispatcher::event::Ticket,
        _l: std::sync::Arc<crate::record::DeadLetter>,
        _a: crate::record::AuditRow,
    ) {
        let _ = self.0.send(Event::Stored { ticket });
    }
    fn audit(&self, _: crate::record::AuditRow) {}
    fn event(&self, _: std::sync::Arc<crate::record::CallEvent>) {}
    fn executed(&self, _: crate::record::Execution) {}
    fn late(&self, _: crate::record::LateResult) {}
    fn rescue_line(&self, l: &crate::record::DeadLetter) -> String {
        format!("{l:?}")
    }
    fn close(self) {}
}
