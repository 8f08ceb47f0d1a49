//! JSON-RPC request ids: kept as the bytes the peer wrote, compared by what they mean.

use super::json::{Json, Kind};
use super::number::Decimal;

/// A peer's request id.
///
/// The answer carries `raw` byte for byte. Two ids are the same if they have the same JSON type and value: `"a"` and
/// `"\u0061"` are, `1` and `"1"` are not (JSON-RPC 2.0 section 4; MCP base protocol).
#[derive(Clone, Debug)]
pub struct RequestId {
    raw: Box<[u8]>,
    key: IdKey,
}

/// The value of an id, for look-ups.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum IdKey {
    /// An integer that fits.
    Integer(i64),
    /// Any other number, in its canonical spelling.
    Decimal(String),
    /// A string's characters.
    Text(String),
}

impl RequestId {
    /// The id in `json`; `None` if it is neither a string nor a number.
    #[must_use]
    pub fn from_json(json: Json<'_>) -> Option<RequestId> {
        Some(RequestId { key: IdKey::from_json(json)?, raw: json.text().into() })
    }

    /// An id of ours.
    #[must_use]
    pub fn from_u64(id: u64) -> RequestId {
        let key = i64::try_from(id).map_or_else(|_| IdKey::Decimal(id.to_string()), IdKey::Integer);
        RequestId { raw: id.to_string().into_bytes().into(), key }
    }

    /// The bytes as the peer wrote them.
    #[must_use]
    pub fn raw(&self) -> &[u8] {
        &self.raw
    }

    /// The value to look it up by.
    #[must_use]
    pub fn key(&self) -> &IdKey {
        &self.key
    }
}

impl IdKey {
    /// The value of the id in `json`; `None` if it is neither a string nor a number.
    #[must_use]
    pub fn from_json(json: Json<'_>) -> Option<IdKey> {
        match json.kind() {
            Kind::String => Some(IdKey::Text(json.raw_str()?.unescape_lossy().into_owned())),
            Kind::Number => {
                let text = std::str::from_utf8(json.text()).ok()?;
                match text.parse() {
                    // "-0" is the integer 0 too, as "0.0" is below.
                    Ok(integer) => Some(IdKey::Integer(integer)),
                    Err(_) => {
                        let canonical = Decimal::parse(json.text())?.canonical();
                        Some(canonical.parse().map_or(IdKey::Decimal(canonical), IdKey::Integer))
                    }
                }
            }
            Kind::Object | Kind::Array | Kind::True | Kind::False | Kind::Null => None,
        }
    }
}

impl PartialEq for RequestId {
    fn eq(&self, other: &RequestId) -> bool {
        self.key == other.key
    }
}

impl Eq for RequestId {}

#[cfg(test)]
mod tests {
    use super::*;

    fn id(text: &str) -> RequestId {
        RequestId::from_json(Json::parse(text.as_bytes()).expect("valid")).unwrap_or_else(|| panic!("{text} is an id"))
    }

    #[test]
    fn ids_1_the_bytes_are_kept_whatever_the_spelling() {
        for text in
            ["1774232524389", "9007199254740993", "18446744073709551616", "-1", "1.0", "1e3", "0.5", "\"\\u0061\""]
        {
            assert_eq!(id(text).raw(), text.as_bytes());
        }
    }

    #[test]
    fn ids_are_equal_by_type_and_value() {
        assert_eq!(id("1"), id("1.0"));
        assert_eq!(id("\"a\""), id("\"\\u0061\""));
        assert_eq!(id("0"), id("-0"));
        assert_eq!(id("7"), RequestId::from_u64(7));
        assert_eq!(id("18446744073709551615"), RequestId::from_u64(u64::MAX));
        assert_ne!(id("1"), id("\"1\""));
        assert_ne!(id("9007199254740993"), id("9007199254740992"));
    }

    #[test]
    fn only_strings_and_numbers_are_ids() {
        for text in ["null", "true", "{}", "[1]"] {
            assert!(RequestId::from_json(Json::parse(text.as_bytes()).expect("valid")).is_none(), "{text}");
        }
    }
}
