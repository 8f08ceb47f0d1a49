//! The sealed original: what was redacted, encrypted beside the redacted view, so that a replay can send what failed.
//!
//! AES-256-GCM with a fresh random nonce of 96 bits for each seal. The record's id and the key's id are authenticated, so
//! that a seal moved to another record, or cut, or changed in a bit, does not open. Pure: nonces are arguments.

use ring::aead::{AES_256_GCM, Aad, LessSafeKey, NONCE_LEN, Nonce, UnboundKey};

use super::hash::sha256_hex;

/// The length of a key in bytes.
pub const KEY_BYTES: usize = 32;

/// The length of a nonce in bytes. Random ones stay unique with certainty enough for 2^32 seals under one key.
pub const NONCE_BYTES: usize = NONCE_LEN;

/// The form of the text; another form gets another word.
const FORM: &str = "v1";

/// Hex digits of a key's id.
const ID_DIGITS: usize = 16;

/// Why a sealed text cannot be opened.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum SealError {
    /// The text is no seal, or one of a later version.
    Form,
    /// It was sealed with a key that is not here; the id of that key.
    UnknownKey(String),
    /// The text was changed, or belongs to another record.
    Forged,
}

impl std::fmt::Display for SealError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            SealError::Form => f.write_str("it is not in a form that this version knows"),
            SealError::UnknownKey(id) => write!(f, "the key {id} is not among queue.seal"),
            SealError::Forged => f.write_str("it was changed, or it belongs to another record"),
        }
    }
}

impl std::error::Error for SealError {}

/// One key, known by an id that tells nothing about it.
pub struct SealKey {
    id: String,
    key: LessSafeKey,
}

impl std::fmt::Debug for SealKey {
    /// Without the key.
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("SealKey").field("id", &self.id).finish_non_exhaustive()
    }
}

impl SealKey {
    /// A key from its bytes.
    #[must_use]
    pub fn new(bytes: &[u8; KEY_BYTES]) -> SealKey {
        let mut id = sha256_hex(&[b"mcprelay seal key id\0", &bytes[..]].concat());
        id.truncate(ID_DIGITS);
        let key = UnboundKey::new(&AES_256_GCM, bytes).expect("AES-256 takes every key of 32 bytes");
        SealKey { id, key: LessSafeKey::new(key) }
    }

    /// A key from its text: 32 bytes in base64, blanks around it left aside.
    ///
    /// # Errors
    /// In words that do not repeat the text.
    pub fn parse(text: &str) -> Result<SealKey, String> {
        let bytes = decode(text.trim()).ok_or("the key is not base64")?;
        let bytes = <[u8; KEY_BYTES]>::try_from(bytes)
            .map_err(|bytes| format!("the key has {} bytes instead of {KEY_BYTES}", bytes.len()))?;
        Ok(SealKey::new(&bytes))
    }

    /// 16 hex digits that tell this key from others.
    #[must_use]
    pub fn id(&self) -> &str {
        &self.id
    }

    /// What a seal is bound to beside its text.
    fn bound_to(&self, record_id: &str) -> Vec<u8> {
        [FORM, &self.id, record_id].join("\n").into_bytes()
    }
}

/// The keys at hand: one to seal with, and all that open.
#[derive(Debug, Default)]
pub struct Keyring {
    current: Option<SealKey>,
    previous: Vec<SealKey>,
}

impl Keyring {
    /// Without a current key nothing is sealed any more, and what the previous ones sealed still opens.
    #[must_use]
    pub fn new(current: Option<SealKey>, previous: Vec<SealKey>) -> Keyring {
        Keyring { current, previous }
    }

    /// Whether there is any key at all.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.current.is_none() && self.previous.is_empty()
    }

    /// Whether texts can be sealed.
    #[must_use]
    pub fn can_seal(&self) -> bool {
        self.current.is_some()
    }

    /// Seals `original` for the record; `None` without a current key. `nonce` must be random and never used before.
    #[must_use]
    pub fn seal(&self, record_id: &str, original: &[u8], nonce: [u8; NONCE_BYTES]) -> Option<String> {
        let key = self.current.as_ref()?;
        let mut text = original.to_vec();
        let aad = Aad::from(key.bound_to(record_id));
        // It fails only for texts of more than 64 GiB.
        key.key.seal_in_place_append_tag(Nonce::assume_unique_for_key(nonce), aad, &mut text).ok()?;
        Some(format!("{FORM}.{}.{}", key.id, encode(&[&nonce[..], &text].concat())))
    }

    /// The original of the record.
    ///
    /// # Errors
    /// See [`SealError`].
    pub fn open(&self, record_id: &str, sealed: &str) -> Result<Vec<u8>, SealError> {
        let id = key_id(sealed).ok_or(SealError::Form)?;
        let key = self.current.iter().chain(&self.previous).find(|key| key.id == id);
        let key = key.ok_or_else(|| SealError::UnknownKey(id.to_owned()))?;
        let body = sealed.rsplit('.').next().filter(|body| body.len().is_multiple_of(4));
        let body = body.and_then(decode).ok_or(SealError::Form)?;
        let (nonce, text) = body.split_first_chunk::<NONCE_BYTES>().ok_or(SealError::Form)?;
        let mut text = text.to_vec();
        let aad = Aad::from(key.bound_to(record_id));
        let opened = key.key.open_in_place(Nonce::assume_unique_for_key(*nonce), aad, &mut text);
        opened.map(|original| original.to_vec()).map_err(|_| SealError::Forged)
    }

    /// Whether the text is sealed with the current key.
    #[must_use]
    pub fn is_current(&self, sealed: &str) -> bool {
        self.current.as_ref().is_some_and(|key| key_id(sealed) == Some(&key.id))
    }
}

/// The id of the key that a text was sealed with; `None` if it is no seal of ours.
#[must_use]
pub fn key_id(sealed: &str) -> Option<&str> {
    let mut parts = sealed.split('.');
    match (parts.next(), parts.next(), parts.next(), parts.next()) {
        (Some(FORM), Some(id), Some(_), None) if id.len() == ID_DIGITS => Some(id),
        _ => None,
    }
}

const ALPHABET: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";

/// Base64 with padding (RFC 4648 section 4).
fn encode(bytes: &[u8]) -> String {
    let mut out = String::with_capacity(bytes.len().div_ceil(3) * 4);
    for chunk in bytes.chunks(3) {
        let group = (0..3).fold(0_u32, |group, at| group << 8 | u32::from(chunk.get(at).copied().unwrap_or(0)));
        for place in 0..4 {
            let digit = ALPHABET[(group >> (18 - 6 * place) & 63) as usize];
            out.push(if place <= chunk.len() { char::from(digit) } else { '=' });
        }
    }
    out
}

/// Base64 or base64url, padded or not; `None` if it is neither, or has bits that no byte holds.
fn decode(text: &str) -> Option<Vec<u8>> {
    let digits = text.trim_end_matches('=');
    if text.len() - digits.len() > 2 || (text.len() != digits.len() && !text.len().is_multiple_of(4)) {
        return None;
    }
    let mut out = Vec::with_capacity(digits.len() * 3 / 4);
    for chunk in digits.as_bytes().chunks(4) {
        let mut group = 0_u32;
        for digit in chunk {
            let digit = match digit {
                b'-' => b'+',
                b'_' => b'/',
                other => *other,
            };
            group = group << 6 | u32::try_from(ALPHABET.iter().position(|known| *known == digit)?).ok()?;
        }
        let bytes = match chunk.len() {
            4 => 3,
            3 => 2,
            2 => 1,
            _ => return None,
        };
        let unused = chunk.len() * 6 - bytes * 8;
        if group & ((1 << unused) - 1) != 0 {
            return None;
        }
        let group = group >> unused << (24 - bytes * 8);
        out.extend_from_slice(&group.to_be_bytes()[1..=bytes]);
    }
    Some(out)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn key(byte: u8) -> SealKey {
        SealKey::new(&[byte; KEY_BYTES])
    }

    fn ring(current: u8, previous: &[u8]) -> Keyring {
        Keyring::new(Some(key(current)), previous.iter().map(|byte| key(*byte)).collect())
    }

    #[test]
    fn what_was_sealed_opens_for_its_record_only_and_shows_nothing() {
        let keys = ring(1, &[]);
        let original = br#"{"token":"s3cr3t-S","n":1.10}"#;
        let sealed = keys.seal("01A", original, [7; NONCE_BYTES]).expect("there is a key");
        assert!(!sealed.contains("s3cr3t") && sealed.is_ascii(), "{sealed}");
        assert_eq!(keys.open("01A", &sealed).as_deref(), Ok(&original[..]));
        assert_eq!(keys.open("01B", &sealed), Err(SealError::Forged));
        assert_ne!(keys.seal("01A", original, [8; NONCE_BYTES]), Some(sealed.clone()), "the nonce matters");
        // The same key, asked for by another name, opens nothing: the name is bound in as well.
        let other = ring(2, &[1]);
        assert_eq!(other.open("01A", &sealed).as_deref(), Ok(&original[..]));
        assert_eq!(other.open("01A", &sealed.replace(key(1).id(), key(2).id())), Err(SealError::Forged));
        assert_eq!(keys.open("01A", &keys.seal("01A", b"", [0; 12]).expect("sealed")), Ok(Vec::new()));
    }

    #[test]
    fn every_changed_or_missing_character_is_noticed() {
        let keys = ring(1, &[]);
        let sealed = keys.seal("01A", b"{\"a\":1}", [7; NONCE_BYTES]).expect("there is a key");
        for at in 0..sealed.len() {
            let mut changed = sealed.clone().into_bytes();
            changed[at] = if changed[at] == b'A' { b'B' } else { b'A' };
            let changed = String::from_utf8(changed).expect("ASCII");
            assert!(keys.open("01A", &changed).is_err(), "{changed}");
            assert!(keys.open("01A", &sealed[..at]).is_err(), "{at}");
        }
    }

    #[test]
    fn keys_rotate_and_are_told_apart_by_ids_that_are_no_secret() {
        let old = ring(1, &[]);
        let sealed = old.seal("01A", b"x", [7; NONCE_BYTES]).expect("there is a key");
        let new = ring(2, &[1]);
        assert_eq!(new.open("01A", &sealed), Ok(b"x".to_vec()));
        assert_eq!((old.is_current(&sealed), new.is_current(&sealed)), (true, false));
        assert_eq!(ring(2, &[]).open("01A", &sealed), Err(SealError::UnknownKey(key(1).id().to_owned())));
        let only_old = Keyring::new(None, vec![key(1)]);
        assert_eq!(only_old.open("01A", &sealed), Ok(b"x".to_vec()));
        assert_eq!(
            (only_old.seal("01A", b"x", [1; 12]), only_old.can_seal(), only_old.is_empty()),
            (None, false, false)
        );
        assert_eq!(key_id(&sealed), Some(key(1).id()));
        assert_eq!(key_id("v2.0123456789abcdef.AAAA"), None);
        assert!(!format!("{new:?}").contains("0101"), "{new:?}");
    }

    #[test]
    fn a_key_is_read_in_every_usual_spelling_and_a_wrong_one_is_not_repeated() {
        let text = encode(&[0xfb; KEY_BYTES]);
        assert!(text.contains('+') && text.ends_with('='));
        let url = text.replace('+', "-").replace('/', "_");
        for spelled in [&text, text.trim_end_matches('='), &url, &format!(" {text}\n")] {
            assert_eq!(SealKey::parse(spelled).expect(spelled).id(), key(0xfb).id());
        }
        for wrong in ["", "hunter2", "hunter2!", &encode(&[1; 31]), &encode(&[1; 33]), "AA=A", "====", "AB=="] {
            let error = SealKey::parse(wrong).expect_err(wrong);
            assert!(wrong.is_empty() || !error.contains(wrong), "{error}");
        }
        assert_eq!(SealKey::parse(&encode(&[1; 31])).expect_err("short"), "the key has 31 bytes instead of 32");
    }

    #[test]
    fn base64_is_that_of_the_rfc() {
        for (plain, text) in
            [("", ""), ("f", "Zg=="), ("fo", "Zm8="), ("foo", "Zm9v"), ("foob", "Zm9vYg=="), ("foobar", "Zm9vYmFy")]
        {
            assert_eq!(encode(plain.as_bytes()), text);
            assert_eq!(decode(text).as_deref(), Some(plain.as_bytes()));
        }
        assert_eq!((decode("Zh=="), decode("Z"), decode("Zg=")), (None, None, None), "not what we write");
    }
}
