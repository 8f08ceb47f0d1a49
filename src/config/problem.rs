//! What is wrong with a configuration, in a form that names the place and the remedy.

use std::fmt;
use std::path::PathBuf;

/// One error in a configuration file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Problem {
    /// The file, as it was named.
    pub file: PathBuf,
    /// 1-based, where known.
    pub line: Option<usize>,
    /// 1-based, in characters, where known.
    pub column: Option<usize>,
    /// The place in the document: `policy.rules[0].args`. Empty for the file as a whole.
    pub path: String,
    /// What was found, as a clause; secrets are never in it.
    pub found: String,
    /// What to do about it, as a clause; empty if `found` says it.
    pub remedy: String,
}

impl fmt::Display for Problem {
    /// `file:line:column: path: found; remedy`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:", self.file.display())?;
        if let Some(line) = self.line {
            write!(f, "{line}:")?;
            if let Some(column) = self.column {
                write!(f, "{column}:")?;
            }
        }
        if !self.path.is_empty() {
            write!(f, " {}:", self.path)?;
        }
        write!(f, " {}", self.found)?;
        if !self.remedy.is_empty() {
            write!(f, "; {}", self.remedy)?;
        }
        Ok(())
    }
}

/// Something a user should hear although the configuration can be used.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Warning {
    /// What it is about, ready to print: for a place in a file it has the form of a [`Problem`].
    pub text: String,
    /// It probably switches off something the user believes to be on, so it must not be overlooked.
    pub loud: bool,
}

impl fmt::Display for Warning {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", if self.loud { "WARNING" } else { "warning" }, self.text)
    }
}
