//! `mcprelay validate`: everything that is wrong with the configuration, at once.

use std::io::{self, Write};
use std::path::Path;

use crate::cli::ValidateArgs;
use crate::config::{self, Env, Overrides};
use crate::exit::ExitStatus;

/// Checks the configuration that `run` would use and reports on it: `config ok: …` to `out`, problems and warnings
/// to `err`. Opens no database and starts nothing.
pub fn run(args: &ValidateArgs, out: &mut dyn Write, err: &mut dyn Write) -> ExitStatus {
    run_in(args, Path::new("."), &|name| std::env::var(name).ok(), out, err)
}

/// [`run`] with the working directory and the environment as arguments.
pub fn run_in(
    args: &ValidateArgs,
    directory: &Path,
    env: Env<'_>,
    out: &mut dyn Write,
    err: &mut dyn Write,
) -> ExitStatus {
    let loaded = config::load(args.config.as_deref(), directory, &Overrides::default(), env);
    // A closed pipe at the other end is no fault of the configuration: the status is what counts.
    if let Ok(loaded) = &loaded {
        match super::seal::keyring(&loaded.settings.queue.seal, env) {
            Ok((_, warnings)) => print_lines("WARNING: ", &warnings, err).unwrap_or(()),
            Err(errors) => {
                print_warnings(&loaded.warnings, err).unwrap_or(());
                print_lines("", &errors, err).unwrap_or(());
                return ExitStatus::Usage;
            }
        }
    }
    report(&loaded, out, err).unwrap_or(());
    match loaded {
        Ok(_) => ExitStatus::Success,
        Err(_) => ExitStatus::Usage,
    }
}

fn print_lines(before: &str, lines: &[String], err: &mut dyn Write) -> io::Result<()> {
    lines.iter().try_for_each(|line| writeln!(err, "mcprelay: {before}{line}"))
}

fn report(
    loaded: &Result<config::Loaded, config::Refused>,
    out: &mut dyn Write,
    err: &mut dyn Write,
) -> io::Result<()> {
    match loaded {
        Ok(loaded) => {
            print_warnings(&loaded.warnings, err)?;
            match &loaded.settings.source {
                Some(file) => writeln!(out, "config ok: {}", file.display())?,
                None => writeln!(out, "config ok: there is no ./{}; defaults are used", config::DEFAULT_FILE)?,
            }
        }
        Err(refused) => print_refused(refused, err)?,
    }
    out.flush()?;
    err.flush()
}

/// Warnings as every command that reads the configuration prints them.
///
/// # Errors
///
/// Those of `err`.
pub fn print_warnings(warnings: &[config::Warning], err: &mut dyn Write) -> io::Result<()> {
    warnings.iter().try_for_each(|warning| writeln!(err, "mcprelay: {warning}"))
}

/// All warnings and problems of a configuration that cannot be used, and how many problems they are.
///
/// # Errors
///
/// Those of `err`.
pub fn print_refused(refused: &config::Refused, err: &mut dyn Write) -> io::Result<()> {
    print_warnings(&refused.warnings, err)?;
    for problem in &refused.problems {
        writeln!(err, "mcprelay: {problem}")?;
    }
    match refused.problems.len() {
        0 | 1 => Ok(()),
        count => writeln!(err, "mcprelay: {count} errors in the configuration"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn validate(directory: &Path, config: Option<&str>) -> (ExitStatus, String, String) {
        let args = ValidateArgs { config: config.map(|name| directory.join(name)) };
        let (mut out, mut err) = (Vec::new(), Vec::new());
        let env = |name: &str| (name == "KEY").then(|| "from-env".to_owned());
        let status = run_in(&args, directory, &env, &mut out, &mut err);
        let text =
            |bytes: Vec<u8>| String::from_utf8(bytes).expect("text").replace(&format!("{}/", directory.display()), "");
        (status, text(out), text(err))
    }

    #[test]
    fn it_names_the_file_it_used_and_every_problem() {
        let directory = std::env::temp_dir().join(format!("mcprelay-validate-{}", std::process::id()));
        let _ = std::fs::remove_dir_all(&directory);
        std::fs::create_dir_all(&directory).expect("a temporary directory");
        let write = |name: &str, text: &str| std::fs::write(directory.join(name), text).expect("written");

        let (status, out, err) = validate(&directory, None);
        assert_eq!(
            (status, out.as_str()),
            (ExitStatus::Success, "config ok: there is no ./mcprelay.config.yaml; defaults are used\n")
        );
        assert!(err.starts_with("mcprelay: warning: "), "{err}");

        write("mcprelay.config.yaml", "policy: {rules: [{tool: x, action: deny}]}");
        assert_eq!(
            validate(&directory, None),
            (ExitStatus::Success, "config ok: mcprelay.config.yaml\n".into(), "".into())
        );

        write("ok.yaml", "identity: {keys: [{key_env: KEY, identity: a}]}\npolicy: {rules: [{tool: x, action: deny}]}");
        assert_eq!(
            validate(&directory, Some("ok.yaml")),
            (ExitStatus::Success, "config ok: ok.yaml\n".into(), "".into())
        );

        write("bad.yaml", "polcy: {}\nstore: {retention_days: -1}\nwire: {frame: 1}\n");
        let (status, out, err) = validate(&directory, Some("bad.yaml"));
        assert_eq!((status, out.as_str()), (ExitStatus::Usage, ""));
        let lines: Vec<&str> = err.lines().collect();
        assert!(lines[0].starts_with("mcprelay: WARNING: bad.yaml:1:1: polcy"), "{err}");
        assert!(lines[1].starts_with("mcprelay: bad.yaml:2:25: store.retention_days: found -1"), "{err}");
        assert!(lines[2].starts_with("mcprelay: bad.yaml:3:8: wire.frame: unknown key"), "{err}");
        assert_eq!(lines[3], "mcprelay: 2 errors in the configuration");

        let entries: Vec<_> = std::fs::read_dir(&directory).expect("readable").collect();
        assert_eq!(entries.len(), 3, "validate must create nothing");
    }
}
