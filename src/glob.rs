//! Globs over names: `*` is any run of characters, `?` exactly one; everything else is itself.

/// A compiled glob. It is anchored at both ends and case-sensitive; `*` and `?` match every character, also newline
/// and `/`. There is no escape: a name that holds `*` or `?` is matched by `?` in its place.
///
/// Matching is iterative and remembers one place to come back to, so the cost is at most the length of the pattern
/// times the length of the text.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Glob {
    source: String,
    parts: Vec<Part>,
    exact: bool,
    literal_chars: usize,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Part {
    /// Any run of characters, also none. Never two in a row.
    Run,
    /// One character.
    One,
    Literal(char),
}

impl Glob {
    /// Compiles `pattern`; every text is a valid one.
    #[must_use]
    pub fn new(pattern: &str) -> Glob {
        let mut parts = Vec::new();
        for c in pattern.chars() {
            match c {
                '*' if parts.last() == Some(&Part::Run) => {}
                '*' => parts.push(Part::Run),
                '?' => parts.push(Part::One),
                literal => parts.push(Part::Literal(literal)),
            }
        }
        let literal_chars = parts.iter().filter(|part| matches!(part, Part::Literal(_))).count();
        Glob { source: pattern.to_owned(), exact: literal_chars == parts.len(), parts, literal_chars }
    }

    /// The pattern as written.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.source
    }

    /// Whether the pattern has neither `*` nor `?`, so that it matches one name only.
    #[must_use]
    pub fn is_exact(&self) -> bool {
        self.exact
    }

    /// How many characters of the pattern stand for themselves; more of them make a glob more specific.
    #[must_use]
    pub fn literal_chars(&self) -> usize {
        self.literal_chars
    }

    /// Whether the whole of `text` fits the pattern.
    #[must_use]
    pub fn matches(&self, text: &str) -> bool {
        if self.exact {
            return self.source == text;
        }
        let mut rest = text.chars();
        let mut part = 0;
        // Where to go on after the last `*` when its run must take one character more. Earlier stars never need to
        // be tried again: whatever a longer run there could reach, a longer run here reaches too.
        let mut retry: Option<(usize, std::str::Chars<'_>)> = None;
        loop {
            let mut ahead = rest.clone();
            let fits = match (self.parts.get(part), ahead.next()) {
                (Some(Part::Run), _) => {
                    part += 1;
                    retry = Some((part, rest.clone()));
                    continue;
                }
                (None, None) => return true,
                (Some(Part::One), Some(_)) => true,
                (Some(Part::Literal(wanted)), Some(found)) => *wanted == found,
                (None, Some(_)) | (Some(_), None) => false,
            };
            if fits {
                part += 1;
                rest = ahead;
                continue;
            }
            let Some((after_run, taken)) = &mut retry else { return false };
            if taken.next().is_none() {
                return false;
            }
            part = *after_run;
            rest = taken.clone();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::retry::Rng;

    /// The definition, written down as it is thought; exponential.
    fn naive(pattern: &[char], text: &[char]) -> bool {
        match (pattern.split_first(), text.split_first()) {
            (None, None) => true,
            (Some(('*', after)), None) => naive(after, text),
            (Some(('*', after)), Some((_, rest))) => naive(after, text) || naive(pattern, rest),
            (Some(('?', after)), Some((_, rest))) => naive(after, rest),
            (Some((p, after)), Some((t, rest))) => p == t && naive(after, rest),
            _ => false,
        }
    }

    #[test]
    fn matches_what_the_definition_says() {
        for (pattern, text, expected) in [
            ("read_file", "read_file", true),
            ("read_file", "read_files", false),
            ("read_*", "read_", true),
            ("read_*", "xread_a", false),
            ("*", "", true),
            ("?", "", false),
            ("?", "é", true),
            ("?", "ab", false),
            ("a.c", "abc", false),
            ("*/x", "a/b/x", true),
            ("READ", "read", false),
            ("", "", true),
            ("", "a", false),
            ("*a", "aaab", false),
            ("a*b*c", "a-b-b-c", true),
        ] {
            assert_eq!(Glob::new(pattern).matches(text), expected, "{pattern} on {text}");
        }
    }

    #[test]
    fn a_newline_does_not_escape_a_star_or_question_mark() {
        assert!(Glob::new("delete_*").matches("delete_\nall"));
        assert!(Glob::new("delete?all").matches("delete\nall"));
    }

    #[test]
    fn agrees_with_a_naive_matcher() {
        let mut rng = Rng::seeded(7);
        let word = |rng: &mut Rng, letters: &[char], longest: u64| -> String {
            let length = rng.below(longest + 1);
            (0..length).map(|_| letters[rng.below(letters.len() as u64) as usize]).collect()
        };
        let mut hits = 0;
        for _ in 0..20_000 {
            let pattern = word(&mut rng, &['a', 'b', 'é', '*', '?'], 7);
            let text = word(&mut rng, &['a', 'b', 'é', '\n'], 8);
            let expected = naive(&pattern.chars().collect::<Vec<_>>(), &text.chars().collect::<Vec<_>>());
            assert_eq!(Glob::new(&pattern).matches(&text), expected, "{pattern:?} on {text:?}");
            hits += u32::from(expected);
        }
        assert!(hits > 1_000, "the generator must produce matches as well, it made {hits}");
    }

    #[test]
    fn cfg_2_many_stars_do_not_blow_up() {
        // A backtracking matcher needs more than 10^20 steps here.
        let glob = Glob::new(&"*a".repeat(60));
        assert!(!glob.matches(&format!("{}b", "a".repeat(4_096))));
        assert!(glob.matches(&"a".repeat(4_096)));
    }

    #[test]
    fn specificity_counts_literal_characters() {
        assert_eq!(Glob::new("read_*?é").literal_chars(), 6);
        assert!(Glob::new("read_file").is_exact());
        assert!(!Glob::new("read?file").is_exact());
        assert!(!Glob::new("*").is_exact());
        assert_eq!(Glob::new("a**b").as_str(), "a**b");
    }
}
