//! The keys of `queue.seal`, fetched from where the configuration says they are.
//!
//! A key that is not there is a warning: without it everything works as if nothing were configured, only that nothing is
//! sealed or opened. A key that is there and is none is an error, because it would lose originals unseen.

use std::fs::File;
use std::io::{ErrorKind, Read as _};
use std::os::unix::fs::MetadataExt as _;
use std::path::Path;
use std::sync::Arc;

use crate::config::{Env, KeyPlace, SealSettings};
use crate::record::seal::{Keyring, SealKey};

/// A file with more than this is no file of one key.
const FILE_BYTES_MAX: u64 = 4_096;

/// Others may read the file.
const OTHERS: u32 = 0o077;

/// The keys that are there, and what the user should know.
///
/// # Errors
/// The place of each key that is no key, and what is wrong with it; the key itself is never named.
pub(crate) fn keyring(settings: &SealSettings, env: Env<'_>) -> Result<(Arc<Keyring>, Vec<String>), Vec<String>> {
    let (mut warnings, mut errors) = (Vec::new(), Vec::new());
    let mut fetch = |name: &str, place: &KeyPlace| match text(place, env, &mut warnings) {
        Ok(text) => match SealKey::parse(&text) {
            Ok(key) => Some(key),
            Err(error) => {
                errors.push(format!("{name}: {place}: {error}; make one with: openssl rand -base64 32"));
                None
            }
        },
        Err(missing) => {
            let effect = if name == "queue.seal" { "originals are not sealed" } else { "what it sealed does not open" };
            warnings.push(format!("{name}: {missing}; {effect}"));
            None
        }
    };
    let current = settings.current.as_ref().and_then(|place| fetch("queue.seal", place));
    let named = |index: usize| format!("queue.seal.previous[{index}]");
    let previous = settings.previous.iter().enumerate().filter_map(|(at, place)| fetch(&named(at), place)).collect();
    if errors.is_empty() { Ok((Arc::new(Keyring::new(current, previous)), warnings)) } else { Err(errors) }
}

/// The text at the place; the error is that there is none.
fn text(place: &KeyPlace, env: Env<'_>, warnings: &mut Vec<String>) -> Result<String, String> {
    match place {
        KeyPlace::Env(name) => match env(name) {
            Some(text) if !text.trim().is_empty() => Ok(text),
            Some(_) => Err(format!("{place} is empty")),
            None => Err(format!("{place} is not set")),
        },
        KeyPlace::File(path) => read(path, warnings).map_err(|error| match error.kind() {
            ErrorKind::NotFound => format!("{place} does not exist"),
            ErrorKind::PermissionDenied => format!("{place} may not be read"),
            _ => format!("{place} cannot be read: {error}"),
        }),
    }
}

fn read(path: &Path, warnings: &mut Vec<String>) -> std::io::Result<String> {
    let file = File::open(path)?;
    let mode = file.metadata()?.mode() & 0o777;
    if mode & OTHERS != 0 {
        warnings.push(format!(
            "queue.seal: {} can be read by others (mode {mode:04o}); run: chmod 600 on it",
            path.display()
        ));
    }
    let mut text = Vec::new();
    file.take(FILE_BYTES_MAX).read_to_end(&mut text)?;
    // What is no text is no key, and the reader of keys says so.
    Ok(String::from_utf8_lossy(&text).into_owned())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::store::test_dir::TestDir;
    use std::os::unix::fs::PermissionsExt as _;

    const KEY: &str = "AQEBAQEBAQEBAQEBAQEBAQEBAQEBAQEBAQEBAQEBAQE=";
    const OLD: &str = "AgICAgICAgICAgICAgICAgICAgICAgICAgICAgICAgI=";

    fn env(name: &str) -> Option<String> {
        match name {
            "KEY" => Some(KEY.to_owned()),
            "OLD" => Some(format!("{OLD}\n")),
            "SHORT" => Some("c2hvcnQ=".to_owned()),
            "EMPTY" => Some(" ".to_owned()),
            _ => None,
        }
    }

    fn settings(current: &str, previous: &[&str]) -> SealSettings {
        let place = |name: &str| KeyPlace::Env(name.to_owned());
        SealSettings { current: Some(place(current)), previous: previous.iter().map(|name| place(name)).collect() }
    }

    #[test]
    fn a_missing_key_is_a_warning_and_a_wrong_one_an_error_that_does_not_show_it() {
        let (keys, warnings) = keyring(&settings("KEY", &["OLD"]), &env).expect("keys");
        assert_eq!((keys.can_seal(), warnings.len()), (true, 0));
        let (keys, warnings) = keyring(&settings("NONE", &["EMPTY", "OLD"]), &env).expect("keys");
        assert_eq!((keys.can_seal(), keys.is_empty()), (false, false));
        assert_eq!(
            warnings,
            [
                "queue.seal: the environment variable NONE is not set; originals are not sealed",
                "queue.seal.previous[0]: the environment variable EMPTY is empty; what it sealed does not open"
            ]
        );
        let errors = keyring(&settings("SHORT", &["KEY", "SHORT"]), &env).expect_err("no keys");
        assert_eq!(errors.len(), 2);
        assert!(errors[0].starts_with("queue.seal: the environment variable SHORT: the key has 5 bytes"), "{errors:?}");
        assert!(errors[1].starts_with("queue.seal.previous[1]: ") && !errors[1].contains("c2hvcnQ"), "{errors:?}");
        let (keys, warnings) = keyring(&SealSettings::default(), &env).expect("nothing configured");
        assert!(keys.is_empty() && warnings.is_empty());
    }

    #[test]
    fn a_key_file_that_others_can_read_is_named() {
        let dir = TestDir::new();
        let path = dir.path().join("key");
        let settings = SealSettings { current: Some(KeyPlace::File(path.clone())), previous: Vec::new() };
        let (_, warnings) = keyring(&settings, &env).expect("no key");
        assert!(warnings[0].contains("key does not exist; originals are not sealed"), "{warnings:?}");
        std::fs::write(&path, format!("{KEY}\n")).expect("written");
        let mode = |mode| std::fs::set_permissions(&path, std::fs::Permissions::from_mode(mode)).expect("set");
        mode(0o644);
        let (keys, warnings) = keyring(&settings, &env).expect("a key");
        assert!(keys.can_seal() && warnings[0].contains("mode 0644"), "{warnings:?}");
        mode(0o600);
        assert_eq!(keyring(&settings, &env).expect("a key").1, [""; 0]);
    }
}
