//! The configuration: found, read, checked as a whole, and turned into plain settings.
//!
//! [`Tree`](tree::Tree) is the document as written, [`Settings`] what a session runs with. Every error is found on
//! the way between the two and reported with file, place, what was found and the remedy. Secrets (keys, the broker's
//! URL, header values) are in no message and in no `Debug` output.

mod http;
mod place;
pub mod problem;
mod reader;
mod resilience;
pub mod settings;
#[cfg(test)]
mod tests;
pub mod tree;

use std::fs::File;
use std::io::{ErrorKind, Read as _};
use std::path::{Path, PathBuf};

use crate::faults::Faults;
pub use crate::wire::url::Url;
pub use problem::{Problem, Warning};
pub use settings::{
    ATTEMPTS_MAX, Env, IdentitySettings, KeyPlace, Loaded, MILLIS_MAX, Overrides, QueueSettings, Refused, SealSettings,
    Settings, ShutdownSettings, StoreSettings,
};

/// The file that is read from the working directory if `--config` names none.
pub const DEFAULT_FILE: &str = "mcprelay.config.yaml";

/// Reads the configuration: the file `explicit`, which must exist, else [`DEFAULT_FILE`] in `directory` if there is
/// one, else the defaults. No other place is searched.
///
/// # Errors
///
/// Everything that is wrong with the file, also that it cannot be read.
pub fn load(explicit: Option<&Path>, directory: &Path, overrides: &Overrides, env: Env<'_>) -> Result<Loaded, Refused> {
    let file: PathBuf = match explicit {
        Some(file) => file.to_owned(),
        None => {
            let file = directory.join(DEFAULT_FILE);
            // A link that leads nowhere is there, and must not pass for "no file".
            if file.symlink_metadata().is_err_and(|error| error.kind() == ErrorKind::NotFound) {
                return Ok(settings::without_file(overrides));
            }
            file
        }
    };
    let text = read(&file)?;
    settings::resolve(&text, &file, overrides, env)
}

/// Reads faults on purpose from a file of their own (`run --faults`): what else stands below `faults`.
///
/// # Errors
///
/// Everything that is wrong with the file, also that it cannot be read.
pub fn load_faults(file: &Path) -> Result<Faults, Refused> {
    settings::resolve_faults(&read(file)?, file)
}

fn read(file: &Path) -> Result<String, Refused> {
    let problem = |found: String, remedy: &str| Problem {
        file: file.to_owned(),
        line: None,
        column: None,
        path: String::new(),
        found,
        remedy: remedy.to_owned(),
    };
    let refuse = |problem: Problem| Refused { problems: vec![problem], warnings: Vec::new() };
    let mut bytes = Vec::new();
    // One byte more than allowed, so that a larger file is noticed and an endless one is not read for ever.
    let limit = tree::FILE_BYTES_MAX as u64 + 1;
    let result = File::open(file).and_then(|file| file.take(limit).read_to_end(&mut bytes));
    if let Err(error) = result {
        return Err(refuse(match error.kind() {
            ErrorKind::NotFound => problem("there is no such file".to_owned(), "check the path"),
            ErrorKind::IsADirectory => problem("this is a directory".to_owned(), "name the file in it"),
            ErrorKind::PermissionDenied => problem("no permission to read it".to_owned(), "make it readable"),
            _ => problem(format!("cannot be read: {error}"), ""),
        }));
    }
    if bytes.len() > tree::FILE_BYTES_MAX {
        let found = format!("the file is larger than {} bytes", tree::FILE_BYTES_MAX);
        return Err(refuse(problem(found, "split off what does not belong here")));
    }
    String::from_utf8(bytes).map_err(|error| {
        let valid = &error.as_bytes()[..error.utf8_error().valid_up_to()];
        let line = valid.iter().filter(|&&b| b == b'\n').count() + 1;
        refuse(Problem { line: Some(line), ..problem("the file is not UTF-8".to_owned(), "save it as UTF-8") })
    })
}
