//! Patterns for names: `*` is any run of characters, `?` exactly one, everything else itself.

use std::str::Chars;

/// A compiled pattern. It must match the whole text; case counts; a newline and `/` are characters like any other.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Glob {
    pattern: Vec<char>,
}

impl Glob {
    /// Compiles `pattern`; every text is a valid one.
    pub(super) fn new(pattern: &str) -> Glob {
        Glob { pattern: pattern.chars().collect() }
    }

    /// Whether the pattern has no `*` and no `?`, and so matches one text only.
    pub(super) fn is_exact(&self) -> bool {
        !self.pattern.iter().any(|&c| c == '*' || c == '?')
    }

    /// Whether `text` as a whole matches.
    ///
    /// Only the last `*` is ever tried again, one character further each time: whatever an earlier `*` could take
    /// instead, the last one can take too. At most pattern length × text length steps.
    pub(super) fn matches(&self, text: &str) -> bool {
        let mut at = 0;
        let mut rest = text.chars();
        let mut last_star: Option<(usize, Chars<'_>)> = None;
        loop {
            if self.pattern.get(at) == Some(&'*') {
                at += 1;
                last_star = Some((at, rest.clone()));
                continue;
            }
            let mut ahead = rest.clone();
            match (self.pattern.get(at), ahead.next()) {
                (None, None) => return true,
                (Some(&wanted), Some(found)) if wanted == '?' || wanted == found => {
                    at += 1;
                    rest = ahead;
                }
                _ => {
                    let Some((after_star, taken_to)) = &mut last_star else { return false };
                    if taken_to.next().is_none() {
                        return false;
                    }
                    at = *after_star;
                    rest = taken_to.clone();
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn stars_and_question_marks_take_any_character() {
        let cases = [
            ("read_file", "read_file", true),
            ("read_file", "Read_file", false),
            ("read_file", "read_files", false),
            ("*", "", true),
            ("*", "a\nb/c", true),
            ("delete_*", "delete_\nall", true),
            ("delete_*", "undelete_all", false),
            ("?", "é", true),
            ("?", "", false),
            ("?", "ab", false),
            ("a?c", "a\nc", true),
            ("*_file", "write_file", true),
            ("*ab*ab", "abxabab", true),
            ("*ab*ab", "ab", false),
            ("a.c", "abc", false),
            ("[a]", "a", false),
            ("", "", true),
            ("", "a", false),
        ];
        for (pattern, text, expected) in cases {
            assert_eq!(Glob::new(pattern).matches(text), expected, "{pattern:?} against {text:?}");
        }
    }

    #[test]
    fn many_stars_do_not_blow_up() {
        let pattern = "*a".repeat(40) + "b";
        assert!(!Glob::new(&pattern).matches(&"a".repeat(20_000)));
    }

    #[test]
    fn exact_means_without_wildcards() {
        assert!(Glob::new("read.file").is_exact());
        assert!(!Glob::new("read*").is_exact());
        assert!(!Glob::new("rea?").is_exact());
    }
}
