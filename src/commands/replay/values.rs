//! What `--set`, `--set-json`, `--set-env` and `--set-file` put into the arguments.
//!
//! The last two keep a secret out of the process list, where everybody can read the others.

use std::fs::File;
use std::io::Read as _;
use std::path::Path;

use super::arguments::parse_path;
use crate::cli::{SetArg, SetSource};
use crate::wire::inspect::inspect;
use crate::wire::json::Json;
use crate::wire::splice::quote;

/// A file of `--set-file` above this many bytes is refused; no call can be longer.
const FILE_BYTES_MAX: u64 = 64 * 1024 * 1024;

/// A value for one place in the arguments.
#[derive(Clone, PartialEq, Eq)]
pub(super) struct Change {
    /// As the user gave it, for messages: `--set a.b`. It holds no value.
    pub(super) name: String,
    pub(super) path: Vec<String>,
    /// JSON text.
    pub(super) value: Vec<u8>,
}

impl std::fmt::Debug for Change {
    /// Without the value, which may be a secret.
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_tuple("Change").field(&self.name).finish()
    }
}

/// Fetches the values.
///
/// # Errors
/// In words, naming the option; no value is repeated.
pub(super) fn changes(
    args: &[SetArg],
    env: &dyn Fn(&str) -> Result<String, std::env::VarError>,
) -> Result<Vec<Change>, String> {
    args.iter().map(|arg| change(arg, env)).collect()
}

fn change(arg: &SetArg, env: &dyn Fn(&str) -> Result<String, std::env::VarError>) -> Result<Change, String> {
    let name = format!("--{} {}", arg.source.option(), arg.path);
    let wrong = |text: String| format!("{name}: {text}");
    let path = parse_path(&arg.path).map_err(wrong)?;
    let value = match arg.source {
        SetSource::Text => Ok(quote(&arg.value)),
        SetSource::Json => json(&arg.value),
        SetSource::Env => variable(&arg.value, env).map(|text| quote(&text)),
        SetSource::File => file(Path::new(&arg.value)).map(|text| quote(&text)),
    };
    Ok(Change { value: value.map_err(wrong)?, name, path })
}

fn json(text: &str) -> Result<Vec<u8>, String> {
    let value = Json::parse(text.as_bytes()).map_err(|error| format!("the value is no JSON: {error}"))?;
    let found = inspect(value.text()).map_err(|error| format!("the value is no JSON: {error}"))?;
    match found.repeated_shallow.or(found.repeated_deep) {
        // Two readers could understand it differently; the relay refuses such calls, too.
        Some(repeated) => Err(format!("the member {:?} is there twice", repeated.name)),
        None => Ok(value.text().to_vec()),
    }
}

fn variable(name: &str, env: &dyn Fn(&str) -> Result<String, std::env::VarError>) -> Result<String, String> {
    // The name is not repeated unless it is one: users put the secret itself there.
    let is_name = !name.is_empty() && name.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'_');
    let shown = if is_name { format!(" {name}") } else { String::new() };
    env(name).map_err(|error| match error {
        std::env::VarError::NotPresent => format!("the environment variable{shown} is not set"),
        std::env::VarError::NotUnicode(_) => format!("the environment variable{shown} is not valid Unicode"),
    })
}

/// The text of the file, without one newline at its end: editors add it, and no secret has one.
fn file(path: &Path) -> Result<String, String> {
    let cannot = |error: &dyn std::fmt::Display| format!("cannot read {}: {error}", path.display());
    let mut bytes = Vec::new();
    let file = File::open(path).map_err(|error| cannot(&error))?;
    file.take(FILE_BYTES_MAX + 1).read_to_end(&mut bytes).map_err(|error| cannot(&error))?;
    if bytes.len() as u64 > FILE_BYTES_MAX {
        return Err(cannot(&format!("it is larger than {FILE_BYTES_MAX} bytes")));
    }
    let mut text = String::from_utf8(bytes).map_err(|_| cannot(&"it is not UTF-8"))?;
    if text.ends_with('\n') {
        text.pop();
        if text.ends_with('\r') {
            text.pop();
        }
    }
    Ok(text)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::store::test_dir::TestDir;

    fn value(source: SetSource, value: &str) -> Result<String, String> {
        let env = |name: &str| match name {
            "SECRET" => Ok("s\"1".to_owned()),
            _ => Err(std::env::VarError::NotPresent),
        };
        let arg = SetArg { source, path: "a.0".to_owned(), value: value.to_owned() };
        let change = changes(&[arg], &env)?.remove(0);
        assert_eq!(change.path, ["a", "0"]);
        assert_eq!(format!("{change:?}"), format!("Change({:?})", change.name));
        Ok(String::from_utf8(change.value).expect("text"))
    }

    #[test]
    fn each_source_gives_a_json_text() {
        assert_eq!(value(SetSource::Text, "1").as_deref(), Ok("\"1\""));
        assert_eq!(value(SetSource::Json, " {\"n\": 1.10} ").as_deref(), Ok("{\"n\": 1.10}"));
        assert_eq!(value(SetSource::Env, "SECRET").as_deref(), Ok("\"s\\\"1\""));
        let dir = TestDir::new();
        let path = dir.path().join("secret");
        for (text, expected) in [("s3", "\"s3\""), ("s3\n", "\"s3\""), ("s3\r\n", "\"s3\""), ("s3\n\n", "\"s3\\n\"")] {
            std::fs::write(&path, text).expect("written");
            assert_eq!(value(SetSource::File, &path.display().to_string()).as_deref(), Ok(expected));
        }
    }

    #[test]
    fn what_is_wrong_is_named_by_its_option_and_never_by_its_value() {
        let error = |source, text| value(source, text).expect_err("refused");
        assert!(error(SetSource::Json, "hunter2").starts_with("--set-json a.0: the value is no JSON: "));
        assert_eq!(error(SetSource::Json, r#"{"a":1,"\u0061":2}"#), "--set-json a.0: the member \"a\" is there twice");
        assert_eq!(error(SetSource::Env, "NONE"), "--set-env a.0: the environment variable NONE is not set");
        assert_eq!(error(SetSource::Env, "hunter-2"), "--set-env a.0: the environment variable is not set");
        assert!(error(SetSource::File, "/no/such/file").starts_with("--set-file a.0: cannot read /no/such/file: "));
        for source in [SetSource::Json, SetSource::Env] {
            assert!(!error(source, "hunter-2").contains("hunter"), "{source:?}");
        }
    }
}
