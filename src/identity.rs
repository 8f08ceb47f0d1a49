//! Who calls: the credential in `_meta.authorization`, or the profile of this wrapper.

use std::fmt;
use std::hint::black_box;

use sha2::{Digest, Sha256};

use crate::wire::json::Json;

/// The identities that callers can have.
///
/// Keys are kept as their SHA-256 only.
#[derive(Clone)]
pub struct Identities {
    profile: String,
    keys: Vec<Key>,
}

/// A known key.
#[derive(Clone)]
struct Key {
    digest: [u8; 32],
    identity: String,
}

/// Something wrong with the `identity` section. It never contains a key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct IdentityProblem {
    /// The place in the section: `profile`, `keys[2].key`.
    pub field: String,
    /// What was wrong and what is allowed; it continues the sentence that the field begins.
    pub message: String,
}

/// A credential that is not a known Bearer string; the caller gets error -32003.
///
/// It does not say what was wrong: whoever guesses keys learns only that this was none.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Rejected;

impl fmt::Debug for Identities {
    /// The digests stay out: the digest of a guessable key gives the key away.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let identities: Vec<&str> = self.keys.iter().map(|key| key.identity.as_str()).collect();
        f.debug_struct("Identities").field("profile", &self.profile).field("keys_of", &identities).finish()
    }
}

impl Identities {
    /// `profile` names callers without a credential; each of `keys` is a key and the identity it stands for. Several
    /// keys may stand for one identity, so that a key can be replaced without a gap.
    ///
    /// # Errors
    ///
    /// Everything that is wrong: an empty name, an empty key, a key that no credential can spell, and a key that
    /// stands twice (which of its identities would be meant?).
    pub fn new(profile: String, keys: Vec<(String, String)>) -> Result<Identities, Vec<IdentityProblem>> {
        let mut problems = Vec::new();
        let mut problem = |field: String, message: String| problems.push(IdentityProblem { field, message });
        if profile.is_empty() {
            problem("profile".to_owned(), "must not be empty".to_owned());
        }
        let mut known: Vec<Key> = Vec::with_capacity(keys.len());
        for (index, (key, identity)) in keys.into_iter().enumerate() {
            let digest = digest(&key);
            if key.is_empty() {
                problem(format!("keys[{index}].key"), "must not be empty".to_owned());
            } else if trim(&key) != key {
                problem(format!("keys[{index}].key"), "must not begin or end with a blank".to_owned());
            } else if let Some(first) = known.iter().position(|other| other.digest == digest) {
                problem(format!("keys[{index}].key"), format!("is the same key as in keys[{first}]; remove one"));
            }
            if identity.is_empty() {
                problem(format!("keys[{index}].identity"), "must not be empty".to_owned());
            }
            known.push(Key { digest, identity });
        }
        if problems.is_empty() { Ok(Identities { profile, keys: known }) } else { Err(problems) }
    }

    /// The identity of callers without a credential.
    #[must_use]
    pub fn profile(&self) -> &str {
        &self.profile
    }

    /// Whose call carries this `_meta.authorization`.
    ///
    /// Absent is the profile: credentials are never required, so that a wrapper without configuration works. Present
    /// must be the string `Bearer <key>` with a known key: the scheme in any case (RFC 9110 section 11.1), one or more
    /// blanks between, blanks around ignored.
    ///
    /// The presented key is compared with every known one, by digest and without an early exit, so that the time taken
    /// tells neither which key was hit nor how much of it was right.
    ///
    /// # Errors
    ///
    /// [`Rejected`] for anything else, also when no keys are configured: a client that sends a credential means
    /// somebody, and quietly taking it for the profile would give it the profile's rights.
    pub fn resolve(&self, authorization: Option<Json<'_>>) -> Result<&str, Rejected> {
        let Some(authorization) = authorization else { return Ok(&self.profile) };
        let text = authorization.as_str().ok_or(Rejected)?;
        let presented = digest(bearer(&text).ok_or(Rejected)?);
        let mut hit = None;
        for key in &self.keys {
            if equal(&key.digest, &presented) {
                hit = Some(key);
            }
        }
        hit.map(|key| key.identity.as_str()).ok_or(Rejected)
    }
}

/// The key in `Bearer <key>`; never empty.
fn bearer(text: &str) -> Option<&str> {
    let (scheme, key) = trim(text).split_once([' ', '\t'])?;
    let key = trim(key);
    (scheme.eq_ignore_ascii_case("bearer") && !key.is_empty()).then_some(key)
}

fn trim(text: &str) -> &str {
    text.trim_matches([' ', '\t', '\r', '\n'])
}

fn digest(key: &str) -> [u8; 32] {
    Sha256::digest(key.as_bytes()).into()
}

/// Looks at all bytes whatever the first ones are; `black_box` keeps the compiler from finding a shorter way.
fn equal(a: &[u8; 32], b: &[u8; 32]) -> bool {
    let difference = a.iter().zip(b).fold(0_u8, |difference, (a, b)| black_box(difference | (a ^ b)));
    black_box(difference) == 0
}

#[cfg(test)]
mod tests {
    use super::*;

    fn identities() -> Identities {
        let keys = [("k-alice", "alice"), ("k-bob", "bob"), ("k-bob-new", "bob"), ("two words", "ci")];
        let keys = keys.map(|(key, identity)| (key.to_owned(), identity.to_owned())).to_vec();
        Identities::new("laptop".to_owned(), keys).expect("the keys are fine")
    }

    fn resolve(identities: &Identities, authorization: &str) -> Result<String, Rejected> {
        let value = Json::parse(authorization.as_bytes()).expect("valid JSON");
        identities.resolve(Some(value)).map(str::to_owned)
    }

    #[test]
    fn no_credential_is_the_profile() {
        assert_eq!(identities().resolve(None), Ok("laptop"));
    }

    #[test]
    fn a_known_bearer_key_is_its_identity() {
        let cases = [
            (r#""Bearer k-alice""#, "alice"),
            (r#""bearer k-bob""#, "bob"),
            (r#""BEARER   k-bob-new""#, "bob"),
            (r#""  Bearer k-alice \n""#, "alice"),
            (r#""Bearer\tk-alice""#, "alice"),
            (r#""Bearer two words""#, "ci"),
            (r#""\u0042earer k-\u0061lice""#, "alice"),
        ];
        for (authorization, expected) in cases {
            assert_eq!(resolve(&identities(), authorization).as_deref(), Ok(expected), "{authorization}");
        }
    }

    #[test]
    fn anything_else_is_rejected() {
        let cases = [
            r#""Bearer k-eve""#,
            r#""Bearer K-ALICE""#,
            r#""Bearer k-alice2""#,
            r#""Bearer k-alic""#,
            r#""k-alice""#,
            r#""Bearerk-alice""#,
            r#""Basic k-alice""#,
            r#""Bearer""#,
            r#""Bearer ""#,
            r#""""#,
            r#""Bearer two  words""#,
            r#""Bearer k-alice\ud800""#,
            r#""Bearer laptop""#,
            "null",
            "true",
            "7",
            r#"{"Bearer":"k-alice"}"#,
            r#"["Bearer k-alice"]"#,
        ];
        for authorization in cases {
            assert_eq!(resolve(&identities(), authorization), Err(Rejected), "{authorization}");
        }
    }

    #[test]
    fn a_credential_is_rejected_when_no_keys_are_configured() {
        let identities = Identities::new("local".to_owned(), Vec::new()).expect("a profile alone is fine");
        assert_eq!(resolve(&identities, r#""Bearer k-alice""#), Err(Rejected));
        assert_eq!(resolve(&identities, r#""Bearer ""#), Err(Rejected));
    }

    #[test]
    fn every_problem_is_told_and_no_key() {
        let keys = [("s3cret", "a"), ("", "b"), ("s3cret", "c"), (" padded-s3cret", ""), ("other", "d")];
        let keys = keys.map(|(key, identity)| (key.to_owned(), identity.to_owned())).to_vec();
        let problems = Identities::new(String::new(), keys).expect_err("nearly all of it is wrong");
        let fields: Vec<&str> = problems.iter().map(|problem| problem.field.as_str()).collect();
        assert_eq!(fields, ["profile", "keys[1].key", "keys[2].key", "keys[3].key", "keys[3].identity"]);
        assert!(problems[2].message.contains("keys[0]"), "{}", problems[2].message);
        assert!(!format!("{problems:?}").contains("s3cret"));
    }

    #[test]
    fn the_debug_form_shows_neither_key_nor_digest() {
        let shown = format!("{:?}", identities());
        assert_eq!(shown, r#"Identities { profile: "laptop", keys_of: ["alice", "bob", "bob", "ci"] }"#);
    }

    #[test]
    fn digests_differ_wherever_they_differ() {
        let zero = [0_u8; 32];
        assert!(equal(&zero, &zero));
        for at in 0..32 {
            let mut other = zero;
            other[at] = 1;
            assert!(!equal(&zero, &other), "byte {at}");
        }
    }
}
