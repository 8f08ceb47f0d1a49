//! mcprelay: the reliability layer for MCP tool calls.
//!
//! Modules in reading order: `clock` and `wire` know nothing of the rest; `policy`, `retry` and `record` decide and
//! describe; `dispatcher` is the engine; `store` and `ports` touch the world; `config` reads what the user wrote;
//! `runtime` joins the parts; `commands` is what a user types.

pub mod breaker;
pub mod budget;
pub mod cli;
pub mod clock;
pub mod commands;
pub mod config;
pub mod dispatcher;
pub mod exit;
pub mod faults;
pub mod fuzzing;
pub mod glob;
pub mod identity;
pub mod metrics;
pub mod policy;
pub mod ports;
pub mod random;
pub mod record;
pub mod restart;
pub mod retry;
pub mod runtime;
pub mod session;
pub mod store;
pub mod suggest;
pub mod wire;

use std::ffi::OsString;
use std::io::Write;
use std::process::ExitCode;

use cli::Command;
use exit::ExitStatus;

/// Runs the program with `args` (the program's own name left out) and gives its exit code.
pub fn run(args: impl IntoIterator<Item = OsString>) -> ExitCode {
    let args: Vec<OsString> = args.into_iter().collect();
    let (mut out, mut err) = (std::io::stdout().lock(), std::io::stderr());
    let status = match cli::parse(&args, clock::Clock::start().now().wall) {
        Ok(Command::Run(args)) => commands::run::run(&args, &mut err),
        Ok(Command::Validate(args)) => commands::validate::run(&args, &mut out, &mut err),
        Ok(Command::Version) => printed(writeln!(out, "{}", env!("CARGO_PKG_VERSION"))),
        Ok(Command::Help(topic)) => printed(write!(out, "{}", cli::help(topic))),
        Ok(Command::Replay(command)) => commands::replay::run(&command, &mut out, &mut err),
        Ok(Command::PolicyTest(args)) => commands::policy_test::command(&args, &mut out, &mut err),
        Ok(Command::Demo) => commands::demo::run(&mut out),
        Ok(Command::ExampleServer(state)) => {
            printed(commands::example_server::run(&state, &mut std::io::stdin().lock(), &mut out))
        }
        Ok(Command::Report(args)) => commands::report::run(&args, &mut out, &mut err),
        Ok(Command::Audit(command)) => commands::audit::run(&command, &mut out, &mut err),
        Ok(Command::Completions(shell)) => printed(write!(out, "{}", commands::completions::script(shell))),
        Ok(Command::Man) => printed(write!(out, "{}", commands::man::page())),
        Err(usage) => {
            // With standard error closed there is nobody left to tell.
            let _ = writeln!(err, "{usage}");
            ExitStatus::Usage
        }
    };
    ExitCode::from(status)
}

/// A reader that has seen enough (`| head`) is no failure.
fn printed(result: std::io::Result<()>) -> ExitStatus {
    match result {
        Err(error) if error.kind() != std::io::ErrorKind::BrokenPipe => ExitStatus::Failure,
        _ => ExitStatus::Success,
    }
}
