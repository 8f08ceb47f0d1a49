//! What one handshake's capabilities lack of another's.

use super::json::{Json, Kind};

/// Where `now` lacks something that `before` has: a member, or `true` in a member. Other values do not count.
#[must_use]
pub fn missing(before: Json<'_>, now: Option<Json<'_>>) -> Option<Vec<String>> {
    let Some(now) = now else { return Some(Vec::new()) };
    match before.kind() {
        Kind::True if now.kind() != Kind::True => Some(Vec::new()),
        Kind::Object => before.members().find_map(|member| {
            let name = member.key.unescape_lossy();
            let mut path = missing(member.value, now.member(&name))?;
            path.insert(0, name.into_owned());
            Some(path)
        }),
        Kind::True | Kind::False | Kind::Null | Kind::Number | Kind::String | Kind::Array => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn lacks(before: &str, now: &str) -> Option<String> {
        let json = |text: &'static str| Json::parse(text.as_bytes()).expect("JSON");
        let (before, now) = (before.to_owned().leak(), now.to_owned().leak());
        missing(json(before), Some(json(now))).map(|path| path.join("."))
    }

    #[test]
    fn fewer_capabilities_are_found_and_more_are_welcome() {
        let before = r#"{"tools":{"listChanged":true},"resources":{"subscribe":false},"x":{"y":[1]}}"#;
        assert_eq!(lacks(before, before), None);
        assert_eq!(
            lacks(before, r#"{"x":{"y":2},"tools":{"listChanged":true,"z":1},"resources":{"subscribe":true},"n":{}}"#),
            None
        );
        assert_eq!(lacks(before, r#"{"tools":{"listChanged":true},"x":{"y":1}}"#).as_deref(), Some("resources"));
        assert_eq!(lacks(before, r#"{"tools":{},"resources":{},"x":{"y":1}}"#).as_deref(), Some("tools.listChanged"));
        let off = r#"{"tools":{"listChanged":false},"resources":{"subscribe":false},"x":{"y":1}}"#;
        assert_eq!(lacks(before, off).as_deref(), Some("tools.listChanged"));
    }
}
