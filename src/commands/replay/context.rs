//! The surroundings of every replay: settings, keys, clock, the user's wish to stop, and what is written down.

use std::ffi::OsString;
use std::io::Write;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use crossbeam_channel::{Receiver, Sender, unbounded};

use super::guards::Refusal;
use super::outcome::Outcome;
use super::plan::Plan;
use super::values::Change;
use crate::cli::Remote;
use crate::clock::{Clock, Now};
use crate::commands::records;
use crate::commands::run::store_settings;
use crate::commands::seal::keyring;
use crate::config::Settings;
use crate::exit::ExitStatus;
use crate::ports::log::{Line, Log};
use crate::ports::signals;
use crate::record::ids::Ulids;
use crate::record::json_out::object;
use crate::record::redact::Redactor;
use crate::record::render::log_line;
use crate::record::seal::Keyring;
use crate::record::stored::Record;
use crate::record::{AuditKind, AuditRow, CallError, CallEvent, Decision};
use crate::session::Limits;
use crate::store::{Command, Report, Store};

/// How long our last lines may take to leave.
const LOG_WAIT: Duration = Duration::from_millis(500);

/// What the user wants of every replay of a run.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Options {
    pub(super) force: bool,
    pub(super) force_policy: bool,
    pub(super) timeout: Option<Duration>,
    /// The server to start instead of the stored one.
    pub(super) server: Option<Vec<OsString>>,
    /// The remote server instead of the stored one.
    pub(super) remote: Option<Remote>,
    /// What is put into the arguments, in order.
    pub(super) changes: Vec<Change>,
}

/// The command's surroundings.
pub(super) struct Context {
    pub(super) options: Options,
    pub(super) settings: Settings,
    pub(super) redactor: Redactor,
    pub(super) keys: Arc<Keyring>,
    pub(super) clock: Clock,
}

impl Context {
    /// Reads the configuration and fetches the keys; warnings and errors go to `err`.
    ///
    /// # Errors
    /// The exit status.
    pub(super) fn load(config: Option<&Path>, options: Options, err: &mut dyn Write) -> Result<Context, ExitStatus> {
        let settings = records::load(config, err)?;
        let keys = keys(&settings, err)?;
        let redactor = Redactor::new(&settings.redaction);
        Ok(Context { options, settings, redactor, keys, clock: Clock::start() })
    }

    pub(super) fn now(&self) -> Now {
        self.clock.now()
    }

    pub(super) fn limits(&self) -> Limits {
        let shutdown = &self.settings.shutdown;
        Limits {
            frame_bytes_max: self.settings.frame_max_bytes,
            stdin_grace: shutdown.stdin_grace,
            term_grace: shutdown.term_grace,
            ..Limits::default()
        }
    }

    /// Starts the log on standard error.
    ///
    /// # Errors
    /// If the system gives no thread.
    pub(super) fn log(&self) -> Result<Log, Refusal> {
        let format = self.redactor.clone();
        Log::start(std::io::stderr(), move |event| log_line(event, &format)).map_err(|error| no_thread(&error))
    }
}

/// The keys of `queue.seal`; what is wrong with them goes to `err`.
///
/// # Errors
/// The exit status.
pub(super) fn keys(settings: &Settings, err: &mut dyn Write) -> Result<Arc<Keyring>, ExitStatus> {
    // With standard error closed there is nobody left to tell.
    match keyring(&settings.queue.seal, &|name| std::env::var(name).ok()) {
        Ok((keys, warnings)) => {
            for warning in warnings {
                let _ = writeln!(err, "mcprelay: WARNING: {warning}");
            }
            Ok(keys)
        }
        Err(errors) => {
            for error in errors {
                let _ = writeln!(err, "mcprelay: {error}");
            }
            Err(ExitStatus::Usage)
        }
    }
}

fn no_thread(error: &std::io::Error) -> Refusal {
    Refusal::new("system", format!("cannot start a thread: {error}"))
}

/// Who works on a record: told to others who want it, and the token that ends the claim.
pub(super) fn owner() -> String {
    format!("{}, process {}, {:016x}", person(), std::process::id(), crate::random::u64())
}

/// Who decides something.
pub(super) fn person() -> String {
    let user = std::env::var("USER").or_else(|_| std::env::var("LOGNAME"));
    user.unwrap_or_else(|_| format!("user {}", rustix::process::getuid().as_raw()))
}

/// Whether the user wants to stop. The first signal is for after the call in hand, the second for now.
pub(super) struct Stop {
    asked: Arc<AtomicBool>,
    /// A message for the first signal.
    soon: Receiver<()>,
    /// A message for each later one.
    now: Receiver<()>,
    _keep: [Sender<()>; 2],
}

impl Stop {
    /// Watches TERM, INT and HUP from now on. `say` is called at the first.
    ///
    /// # Errors
    /// If the system does not let us.
    pub(super) fn watch(say: impl Fn() + Send + 'static) -> Result<Stop, Refusal> {
        let asked = Arc::new(AtomicBool::new(false));
        let ((soon_tx, soon), (now_tx, now)) = (unbounded(), unbounded());
        let keep = [soon_tx.clone(), now_tx.clone()];
        let flag = Arc::clone(&asked);
        let heard = move || match flag.swap(true, Ordering::SeqCst) {
            false => {
                say();
                let _ = soon_tx.send(());
            }
            true => {
                let _ = now_tx.send(());
            }
        };
        signals::watch(heard).map_err(|error| no_thread(&error))?;
        Ok(Stop { asked, soon, now, _keep: keep })
    }

    /// Whether it was asked for.
    pub(super) fn asked(&self) -> bool {
        self.asked.load(Ordering::SeqCst)
    }

    /// What ends the call in hand.
    pub(super) fn now(&self) -> Receiver<()> {
        self.now.clone()
    }

    /// Waits for `time`, or until it is asked for.
    pub(super) fn pause(&self, time: Duration) {
        if !self.asked() {
            // Either end of the wait is told by `asked`.
            let _ = self.soon.recv_timeout(time);
        }
    }
}

/// The audit trail, the call events and the log lines.
pub(super) struct Books {
    store: Store,
    ulids: Ulids,
}

/// A call that was made, for the books.
pub(super) struct Call<'a> {
    pub(super) record: &'a Record,
    pub(super) plan: &'a Plan,
    pub(super) outcome: &'a Outcome,
    /// The outcome as it is stored.
    pub(super) outcome_json: &'a str,
    pub(super) ended: Now,
    pub(super) millis: u64,
    pub(super) request_bytes: u64,
}

impl Books {
    /// Opens them; `trouble` is told what cannot be written.
    ///
    /// # Errors
    /// If the system gives no thread.
    pub(super) fn open(
        settings: &Settings,
        redactor: &Redactor,
        trouble: impl Fn(String) + Send + 'static,
    ) -> Result<Books, Refusal> {
        let settings = store_settings(settings, redactor.clone(), Arc::default());
        let report = move |said| {
            if let Report::Trouble(text) = said {
                trouble(text);
            }
        };
        let store = Store::start(settings, Box::new(report)).map_err(|error| no_thread(&error))?;
        Ok(Books { store, ulids: Ulids::new() })
    }

    fn ulid(&mut self, now: Now) -> String {
        self.ulids.next(now.wall, crate::random::u64)
    }

    /// Something happened to a record.
    pub(super) fn audit(&mut self, record: &Record, kind: AuditKind, detail: String, now: Now) {
        let row = AuditRow {
            id: self.ulid(now),
            at: now.wall,
            kind,
            correlation_id: record.correlation_id.clone(),
            record_id: Some(record.id.clone()),
            caller: record.caller.identity.clone(),
            tool: record.tool.clone(),
            detail: Some(detail),
        };
        // Its trouble is reported by the store itself.
        drop(self.store.submit(Command::Audit(row)));
    }

    /// Something happened to many records at once.
    pub(super) fn audit_many(&mut self, kind: AuditKind, detail: String, now: Now) {
        let row = AuditRow {
            id: self.ulid(now),
            at: now.wall,
            kind,
            correlation_id: String::new(),
            record_id: None,
            caller: String::new(),
            tool: String::new(),
            detail: Some(detail),
        };
        drop(self.store.submit(Command::Audit(row)));
    }

    /// The policy refused the replay.
    pub(super) fn denied(&mut self, context: &Context, record: &Record, plan: &Plan) {
        let reason = context.redactor.redact_text(&plan.verdict.reason, &plan.masked);
        let detail = object(|out| {
            out.text("source", "replay").text("action", "deny");
            match plan.verdict.rule {
                Some(rule) => out.plain("rule", rule),
                None => out.null("rule"),
            };
            out.text("reason", &reason);
        });
        self.audit(record, AuditKind::Denied, detail, context.now());
    }

    /// The call was made.
    pub(super) fn replayed(&mut self, call: &Call<'_>, log: &Log) {
        let Call { record, plan, outcome, ended, .. } = *call;
        self.audit(record, AuditKind::Replayed, call.outcome_json.to_owned(), ended);
        let error = outcome.failure.as_ref().map(|failed| CallError {
            message: failed.message.clone(),
            code: failed.code,
            class: Some(failed.class),
            executed: outcome.executed,
            arguments: plan.arguments.clone(),
        });
        let event = CallEvent {
            id: self.ulid(ended),
            at: ended.wall,
            correlation_id: record.correlation_id.clone(),
            trace: Vec::new(),
            caller: record.caller.clone(),
            server: record.server.name.clone(),
            tool: record.tool.clone(),
            decision: if outcome.ok() { Decision::Allowed } else { Decision::Failed },
            latency_ms: call.millis,
            request_bytes: call.request_bytes,
            response_bytes: outcome.result.as_ref().map_or(0, |result| result.len() as u64),
            attempts: 1,
            error,
            dead_letter_id: Some(record.id.clone()),
            enforced: true,
        };
        let event = Arc::new(event);
        log.line(Line::Call(Arc::clone(&event)));
        drop(self.store.submit(Command::Event(event)));
    }

    /// Writes everything and ends.
    pub(super) fn close(self) {
        self.store.finish();
    }
}

/// Lets our last lines leave.
pub(super) fn flush(log: &Log) {
    log.flush(LOG_WAIT);
}
