//! `mcprelay run`: wraps a server for the client on standard input and output.

use std::ffi::{OsStr, OsString};
use std::io::Write;
use std::path::Path;
use std::sync::Arc;

use crossbeam_channel::Sender;

use crate::cli::{Remote, RunArgs};
use crate::clock::Clock;
use crate::config::{self, Settings};
use crate::dispatcher;
use crate::dispatcher::event::{AttemptId, CallId, Event, Ticket};
use crate::exit::ExitStatus;
use crate::identity::Identities;
use crate::ports::http::RemoteServer;
use crate::ports::link::Reach;
use crate::ports::log::{Line, Log};
use crate::ports::outbox::Watch;
use crate::record::redact::Redactor;
use crate::record::render::log_line;
use crate::record::seal::Keyring;
use crate::record::{AuditRow, CallEvent, DeadLetter, Execution, LateResult, Server, Transport};
use crate::runtime::{self, Keeper, Session};
use crate::store::place::{Place, state_dir};
use crate::store::recorder::{Recorder, RecorderSettings};
use crate::store::rescue::{Rescue, Rescued, Rescuer};
use crate::store::{Command, QUEUE_BUSY, Report, Store, StoreSettings};

/// Runs the wrapper until the client or the server ends the session.
pub fn run(args: &RunArgs, err: &mut dyn Write) -> ExitStatus {
    let env = |name: &str| std::env::var(name).ok();
    let mut loaded = config::load(args.config.as_deref(), Path::new("."), &args.overrides, &env);
    if let (Ok(loaded), Some(file)) = (&mut loaded, &args.faults) {
        loaded.settings.faults = match config::load_faults(file) {
            Ok(faults) => Some(faults),
            Err(refused) => {
                let _ = super::validate::print_refused(&refused, err);
                return ExitStatus::Usage;
            }
        };
    }
    let loaded = match loaded {
        Ok(loaded) => loaded,
        Err(refused) => {
            // With standard error closed there is nobody left to tell.
            let _ = super::validate::print_refused(&refused, err);
            return ExitStatus::Usage;
        }
    };
    let keys = match super::seal::keyring(&loaded.settings.queue.seal, &env) {
        Ok(keys) => keys,
        Err(errors) => {
            for error in errors {
                let _ = writeln!(err, "mcprelay: {error}");
            }
            return ExitStatus::Usage;
        }
    };
    match start(args, loaded, keys) {
        Ok(status) => status,
        Err(error) => {
            let _ = writeln!(err, "mcprelay: cannot start: {error}");
            ExitStatus::Failure
        }
    }
}

fn start(
    args: &RunArgs,
    loaded: config::Loaded,
    (keys, warnings): (Arc<Keyring>, Vec<String>),
) -> std::io::Result<ExitStatus> {
    let settings = loaded.settings;
    let redactor = Redactor::new(&settings.redaction);
    let for_lines = redactor.clone();
    let log = Log::start(std::io::stderr(), move |event| log_line(event, &for_lines))?;
    for warning in &loaded.warnings {
        log.diagnose(warning.to_string());
    }
    for warning in warnings {
        log.diagnose(format!("WARNING: {warning}"));
    }
    let clock = Clock::start();
    let store = store_settings(&settings, redactor.clone(), keys);
    let recorder = RecorderSettings {
        directories: store.queue.directories(),
        bytes_max: settings.recorder.bytes_max,
        redactor,
        clock,
    };
    let lines = log.clone();
    let session = Session {
        server: match &args.remote {
            Some(remote) => remote_server(remote),
            None => server(&args.server),
        },
        reach: match &args.remote {
            Some(remote) => Reach::Remote(Box::new(RemoteServer {
                url: remote.url.clone(),
                sse: remote.sse,
                settings: settings.http.clone(),
                is_own: true,
            })),
            None => Reach::Command { argv: args.server.clone(), cwd: None },
        },
        seed: crate::random::u64(),
        clock,
        log,
        keeper: Box::new(|to| StoreKeeper::start(store, recorder, to, lines)),
        settings: engine_settings(settings)?,
    };
    runtime::run(session)
}

/// What the engine needs of the configuration.
fn engine_settings(settings: Settings) -> std::io::Result<dispatcher::Settings> {
    let identities = Identities::new(settings.identity.profile, settings.identity.keys).map_err(|problems| {
        let texts: Vec<String> =
            problems.iter().map(|problem| format!("identity.{}: {}", problem.field, problem.message)).collect();
        std::io::Error::other(texts.join("; "))
    })?;
    Ok(dispatcher::Settings {
        reliability: settings.reliability,
        policy: settings.policy,
        policy_dry_run: settings.policy_dry_run,
        identities,
        capture_timeout: settings.queue.capture_timeout,
        stdin_grace: settings.shutdown.stdin_grace,
        term_grace: settings.shutdown.term_grace,
        signal_drain: settings.shutdown.signal_drain,
        restart: settings.restart,
        health: settings.health,
        faults: settings.faults,
        frame_bytes_max: settings.frame_max_bytes,
    })
}

/// Where this configuration keeps its records.
pub(super) fn store_settings(settings: &Settings, redactor: Redactor, seal: Arc<Keyring>) -> StoreSettings {
    let state = state_dir(std::env::var_os("XDG_STATE_HOME"), std::env::var_os("HOME"));
    StoreSettings {
        queue: Place::new(&settings.queue.path, state.as_deref()),
        history: Place::new(&settings.store.path, state.as_deref()),
        retention_days: settings.store.retention_days,
        redactor,
        seal,
        queue_busy: QUEUE_BUSY,
    }
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

/// A remote server as records keep it: its URL alone, never what is sent along with it.
fn remote_server(remote: &Remote) -> Server {
    Server { name: remote.url.host().to_owned(), transport: Transport::Http, argv: vec![remote.url.text()], cwd: None }
}

/// What is kept of calls, as the runtime sees it: the SQLite thread, the flight recorder, the emergency file.
struct StoreKeeper {
    store: Store,
    recorder: Arc<Recorder>,
    rescuer: Rescuer,
    to: Sender<Event>,
    log: Log,
}

impl StoreKeeper {
    fn start(
        settings: StoreSettings,
        recorder: RecorderSettings,
        to: Sender<Event>,
        log: Log,
    ) -> std::io::Result<StoreKeeper> {
        let (directories, redactor, seal) =
            (recorder.directories.clone(), recorder.redactor.clone(), Arc::clone(&settings.seal));
        let (reports, troubles) = (to.clone(), log.clone());
        let report = move |report| match report {
            // A closed channel means that the session is over and nobody waits for the answer.
            Report::Stored { ticket } => drop(reports.send(Event::Stored { ticket: Ticket(ticket) })),
            Report::StoreFailed { ticket, error } => {
                drop(reports.send(Event::StoreFailed { ticket: Ticket(ticket), error }));
            }
            Report::Trouble(text) => troubles.diagnose(format!("WARNING: {text}")),
        };
        let store = Store::start(settings, Box::new(report))?;
        let troubles = log.clone();
        let recorder = Arc::new(Recorder::new(recorder, move |text| troubles.diagnose(format!("WARNING: {text}"))));
        let (lines, releases) = (log.clone(), Arc::clone(&recorder));
        let rescuer = Rescuer::start(directories, redactor, seal, move |rescue, rescued| {
            if say_rescued(&lines, &rescue, rescued) {
                releases.release(rescue.call);
            }
        })?;
        let keeper = StoreKeeper { store, recorder, rescuer, to, log };
        keeper.submit(Command::Recover);
        Ok(keeper)
    }

    fn submit(&self, command: Command) {
        if let Err(error) = self.store.submit(command) {
            self.log.diagnose(format!("WARNING: a record is lost: cannot {error}"));
        }
    }
}

/// Says loudly where a dead letter went; whether that is a file. If it is none, the call stays open in the flight
/// recorder, so that the next start finds it there.
fn say_rescued(log: &Log, Rescue { letter, error, .. }: &Rescue, rescued: Rescued) -> bool {
    let lost = format!("WARNING: a failed call of tool {:?} is not in the queue: {error}", letter.tool);
    match rescued {
        Rescued::InFile(path) => {
            let path = path.display();
            log.diagnose(format!("{lost}; its dead letter {} is in {path} until the next start", letter.id));
            true
        }
        Rescued::InNone { record, error } => {
            log.diagnose(format!("{lost}; {error}; its dead letter follows"));
            log.line(Line::Raw(record.into_bytes()));
            false
        }
    }
}

/// The recorder as outboxes see it.
struct Watching(Arc<Recorder>);

impl Watch for Watching {
    fn begins(&self, attempt: AttemptId) {
        self.0.begins(attempt);
    }

    fn stayed(&self, attempt: AttemptId) {
        self.0.stayed(attempt);
    }

    fn left(&self, call: CallId) {
        self.0.ended(call);
    }
}

impl Keeper for StoreKeeper {
    fn capture(&self, ticket: Ticket, letter: Arc<DeadLetter>, audit: AuditRow) {
        if let Err(error) = self.store.submit(Command::Capture { ticket: ticket.0, letter, audit }) {
            let _ = self.to.send(Event::StoreFailed { ticket, error: format!("cannot {error}") });
        }
    }

    fn audit(&self, row: AuditRow) {
        self.submit(Command::Audit(row));
    }

    fn event(&self, event: Arc<CallEvent>) {
        self.submit(Command::Event(event));
    }

    fn executed(&self, execution: Execution) {
        self.submit(Command::Executed(execution));
    }

    fn late(&self, late: LateResult) {
        self.submit(Command::Late(late));
    }

    fn rescue(&self, call: CallId, letter: Arc<DeadLetter>, error: String) {
        self.recorder.hold(call);
        if let Err(rescue) = self.rescuer.submit(Rescue { call, letter, error }) {
            let record = self.rescuer.record(&rescue.letter);
            say_rescued(&self.log, &rescue, Rescued::InNone { record, error: "the disk hangs".to_owned() });
        }
    }

    fn accepted(&self, call: CallId, letter: &DeadLetter) {
        self.recorder.accepted(call, letter);
    }

    fn attempting(&self, call: CallId, attempt: AttemptId) {
        self.recorder.attempting(call, attempt);
    }

    fn watch(&self) -> Arc<dyn Watch> {
        Arc::new(Watching(Arc::clone(&self.recorder)))
    }

    fn pause(&self) {
        self.recorder.flush();
    }

    fn close(self) {
        self.store.finish();
        self.rescuer.finish();
        self.recorder.close();
    }
}
