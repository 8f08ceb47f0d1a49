//! Where the databases are: as configured, or in the user's state directory when that place cannot be made.

use super::error::{Fault, StoreError};
use super::files;
use std::ffi::OsString;
use std::path::{Path, PathBuf};

/// The two places of one database file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Place {
    configured: PathBuf,
    fallback: Option<PathBuf>,
}

/// `$XDG_STATE_HOME/mcprelay`, else `~/.local/state/mcprelay`; `None` if neither variable holds an absolute path.
#[must_use]
pub fn state_dir(xdg_state_home: Option<OsString>, home: Option<OsString>) -> Option<PathBuf> {
    let absolute = |value: Option<OsString>| value.map(PathBuf::from).filter(|path| path.is_absolute());
    let state = absolute(xdg_state_home).or_else(|| absolute(home).map(|home| home.join(".local/state")))?;
    Some(state.join("mcprelay"))
}

impl Place {
    /// The configured path, and a file of the same name in `state_dir` behind it.
    #[must_use]
    pub fn new(configured: impl Into<PathBuf>, state_dir: Option<&Path>) -> Place {
        let configured = configured.into();
        let fallback = state_dir.zip(configured.file_name()).map(|(dir, name)| dir.join(name));
        let fallback = fallback.filter(|path| *path != configured);
        Place { configured, fallback }
    }

    /// The path as configured.
    #[must_use]
    pub fn configured(&self) -> &Path {
        &self.configured
    }

    /// The files that exist, the configured one first. Commands look into all of them.
    #[must_use]
    pub fn existing(&self) -> Vec<PathBuf> {
        [Some(&self.configured), self.fallback.as_ref()]
            .into_iter()
            .flatten()
            .filter(|path| path.exists())
            .cloned()
            .collect()
    }

    /// The directories of both places, the configured one first.
    #[must_use]
    pub fn directories(&self) -> Vec<PathBuf> {
        let files = [Some(&self.configured), self.fallback.as_ref()].into_iter().flatten();
        files.map(|file| files::parent_of(file).to_owned()).collect()
    }

    /// Which files are at the two places right now.
    pub(super) fn identities(&self) -> [Option<(u64, u64)>; 2] {
        [files::identity(&self.configured), self.fallback.as_deref().and_then(files::identity)]
    }

    /// Makes sure that the file exists, private to its user, and gives its path with what a user should know: that it
    /// is not the configured one, or that others can read it.
    ///
    /// # Errors
    /// If neither place can be made. A configured file that exists is never passed over, whatever is wrong with it.
    pub fn prepare(&self) -> Result<Prepared, StoreError> {
        let error = match files::prepare(&self.configured) {
            Ok(prepared) => return Ok(prepared),
            Err(error) => error,
        };
        let Some(fallback) = self.fallback.as_ref().filter(|_| !self.configured.exists()) else {
            return Err(error);
        };
        let mut prepared = files::prepare(fallback).map_err(|second| {
            StoreError::new(
                &self.configured,
                "create",
                Fault::Other,
                format!("{}; nor {}: {}", error.reason, fallback.display(), second.reason),
            )
        })?;
        prepared.warnings.insert(
            0,
            format!(
                "cannot {error}; using {} instead (set the path in the configuration to choose another place)",
                fallback.display()
            ),
        );
        Ok(prepared)
    }
}

/// A database file that exists.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Prepared {
    /// Where it is.
    pub path: PathBuf,
    /// It was made just now.
    pub created: bool,
    /// What a user should know, each one line.
    pub warnings: Vec<String>,
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::store::test_dir::TestDir;

    #[test]
    fn the_state_directory_follows_the_environment() {
        let some = |text: &str| Some(OsString::from(text));
        assert_eq!(state_dir(some("/s"), some("/h")), Some("/s/mcprelay".into()));
        assert_eq!(state_dir(None, some("/h")), Some("/h/.local/state/mcprelay".into()));
        assert_eq!(state_dir(some("relative"), some("/h")), Some("/h/.local/state/mcprelay".into()));
        assert_eq!(state_dir(some(""), None), None);
    }

    #[test]
    fn a_place_that_cannot_be_made_is_replaced_with_one_warning_and_both_are_looked_into() {
        let dir = TestDir::new();
        std::fs::write(dir.path().join("file"), "").expect("written");
        let state = dir.path().join("state/mcprelay");
        let place = Place::new(dir.path().join("file/.mcprelay/queue.db"), Some(&state));
        let prepared = place.prepare().expect("the fallback works");
        assert_eq!(prepared.path, state.join("queue.db"));
        assert_eq!(prepared.warnings.len(), 1);
        assert!(
            prepared.warnings[0].contains("file/.mcprelay") && prepared.warnings[0].contains("state/mcprelay/queue.db")
        );
        assert_eq!(place.existing(), [state.join("queue.db")]);
    }

    #[test]
    fn a_configured_place_that_works_is_used_without_a_word() {
        let dir = TestDir::new();
        let place = Place::new(dir.path().join("a/b/queue.db"), Some(&dir.path().join("state")));
        let prepared = place.prepare().expect("works");
        assert_eq!((prepared.path.as_path(), prepared.created, prepared.warnings.len()), (place.configured(), true, 0));
        assert!(!place.prepare().expect("again").created);
        assert!(!dir.path().join("state").exists());
    }

    #[test]
    fn without_any_place_the_error_names_both() {
        let dir = TestDir::new();
        std::fs::write(dir.path().join("file"), "").expect("written");
        let place = Place::new(dir.path().join("file/a/queue.db"), Some(&dir.path().join("file/b")));
        let error = place.prepare().expect_err("no place").to_string();
        assert!(error.contains("file/a/queue.db") && error.contains("file/b/queue.db"), "{error}");
    }
}
