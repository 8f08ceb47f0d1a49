//! Where something stands in the configuration file, and how that is shown without showing secrets.

use std::fmt::Write as _;

/// One step down from the top of the document.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Step {
    /// Into the value of a key; the number counts earlier keys of the same name in the same mapping.
    Key(String, usize),
    /// Into an element of a list, 0-based.
    Index(usize),
}

/// A value's place: the steps from the top of the document. Empty is the document itself.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Place(pub Vec<Step>);

impl Place {
    /// The place of the value of `key` in the mapping here.
    #[must_use]
    pub fn key(&self, key: &str) -> Place {
        self.nth_key(key, 0)
    }

    /// The place of the value of the key `key` that has `earlier` namesakes before it.
    #[must_use]
    pub fn nth_key(&self, key: &str, earlier: usize) -> Place {
        let mut steps = self.0.clone();
        steps.push(Step::Key(key.to_owned(), earlier));
        Place(steps)
    }

    /// The place of an element of the list here.
    #[must_use]
    pub fn index(&self, index: usize) -> Place {
        let mut steps = self.0.clone();
        steps.push(Step::Index(index));
        Place(steps)
    }

    /// `policy.rules[0].args`; names that are not plain words are quoted: `per_tool["fs.*"]`. Keys that may be a
    /// misplaced secret are shown as `(hidden)`.
    #[must_use]
    pub fn show(&self) -> String {
        let mut text = String::new();
        for (depth, step) in self.0.iter().enumerate() {
            match step {
                Step::Index(index) => _ = write!(text, "[{index}]"),
                Step::Key(key, _) if !may_show(&self.0[..depth], key) => {
                    text.push_str(if depth == 0 { "(hidden)" } else { ".(hidden)" });
                }
                Step::Key(key, _) if is_plain(key) => {
                    if depth > 0 {
                        text.push('.');
                    }
                    text.push_str(key);
                }
                Step::Key(key, _) => _ = write!(text, "[{}]", quoted(key)),
            }
        }
        text
    }
}

fn is_plain(key: &str) -> bool {
    !key.is_empty() && key.chars().all(|c| c.is_ascii_alphanumeric() || matches!(c, '_' | '-' | '*' | '?' | '/'))
}

/// Whether the key `key` of the mapping at `parent` may be printed. Where secrets are configured, a user who gets the
/// form wrong easily writes one as a key (`keys: {sk-123: alice}`), so there only words without digits are shown.
pub(super) fn may_show(parent: &[Step], key: &str) -> bool {
    let word = key.chars().all(|c| c.is_ascii_lowercase() || c == '_');
    let names: Vec<&str> = parent
        .iter()
        .map(|step| match step {
            Step::Key(name, _) => name.as_str(),
            Step::Index(_) => "[]",
        })
        .collect();
    match names.as_slice() {
        ["identity", "keys", ..] => matches!(key, "key" | "key_env" | "identity"),
        ["identity", ..] | ["queue", "rabbitmq", ..] => word,
        ["upstream", "http", "headers", ..] | ["upstream", "http", "origins", _, "headers", ..] => is_header_name(key),
        ["upstream", "http", "oauth", ..] | ["upstream", "http", "origins", _, "oauth", ..] => word,
        ["upstream", "http", "origins"] => crate::wire::url::Url::parse(key).is_ok(),
        _ => true,
    }
}

/// Whether `name` is a token as RFC 9110 section 5.6.2 allows for header names.
pub(super) fn is_header_name(name: &str) -> bool {
    !name.is_empty() && name.bytes().all(|b| b.is_ascii_alphanumeric() || b"!#$%&'*+-.^_`|~".contains(&b))
}

/// `text` in double quotes on one line, control characters escaped, cut after 60 characters.
pub(super) fn quoted(text: &str) -> String {
    const CHARS_MAX: usize = 60;
    let mut shown: String = text.chars().take(CHARS_MAX).flat_map(char::escape_debug).collect();
    if text.chars().nth(CHARS_MAX).is_some() {
        shown.push('…');
    }
    format!("\"{shown}\"")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn places_read_like_the_file() {
        let rule = Place::default().key("policy").key("rules").index(2);
        assert_eq!(rule.key("args").key("path").key("regex").show(), "policy.rules[2].args.path.regex");
        let tool = Place::default().key("reliability").key("per_tool").key("fs.re\nad");
        assert_eq!(tool.key("timeout_ms").show(), "reliability.per_tool[\"fs.re\\nad\"].timeout_ms");
    }

    #[test]
    fn misplaced_secrets_are_hidden() {
        let identity = Place::default().key("identity");
        assert_eq!(identity.key("keyz").show(), "identity.keyz");
        assert_eq!(identity.key("sk-12").show(), "identity.(hidden)");
        assert_eq!(identity.key("keys").key("hunter").key("x").show(), "identity.keys.(hidden).(hidden)");
        assert_eq!(identity.key("keys").index(1).key("key").show(), "identity.keys[1].key");
        let broker = Place::default().key("queue").key("rabbitmq");
        assert_eq!(broker.key("amqp://u:p@h").show(), "queue.rabbitmq.(hidden)");
        assert_eq!(broker.key("exchange").show(), "queue.rabbitmq.exchange");
    }
}
