//! Which names hold secrets.

/// What a name says about its value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum KeyMatch {
    /// Nothing.
    Open,
    /// It is a secret.
    Secret,
    /// It is a secret unless it is a number: the name counts or measures something that is called like a secret.
    Counter,
}

/// Words that turn a name into a measure when they stand beside a pattern.
const MEASURES: &[&str] = &[
    "age",
    "avg",
    "average",
    "budget",
    "count",
    "counts",
    "estimate",
    "estimated",
    "expiration",
    "expires",
    "expiry",
    "len",
    "length",
    "lifetime",
    "limit",
    "limits",
    "max",
    "maximum",
    "min",
    "minimum",
    "per",
    "quota",
    "rate",
    "remaining",
    "size",
    "timeout",
    "total",
    "ttl",
    "usage",
    "version",
];

/// Words that do so only beside a plural: `prompt_tokens` counts, `cached_token` is one.
const PLURAL_MEASURES: &[&str] =
    &["cached", "completion", "input", "num", "number", "output", "prompt", "reasoning", "used"];

/// Patterns of this length are also found inside a longer word (`secretkey`); shorter ones only at its end, so that
/// `pin` does not catch `spinner`.
const INSIDE_MIN: usize = 5;

/// The configured patterns, in lower case and without separators.
#[derive(Clone, Debug)]
pub(super) struct KeyRule {
    patterns: Vec<String>,
    /// The most words a pattern was written in: how far free text is read backwards from `key: value`.
    words_max: usize,
}

impl KeyRule {
    pub(super) fn new(patterns: &[String]) -> KeyRule {
        let names: Vec<Name> = patterns.iter().map(|pattern| Name::new(pattern)).collect();
        let words_max = names.iter().map(|name| name.starts.len()).max().unwrap_or(0);
        let patterns = names.into_iter().map(|name| name.squeezed).filter(|text| !text.is_empty()).collect();
        KeyRule { patterns, words_max }
    }

    pub(super) fn words_max(&self) -> usize {
        self.words_max
    }

    /// The rule. A pattern matches a name if
    /// - some words of the name, joined, are the pattern (`x-api-key`, `max_tokens`), or
    /// - the name, joined, ends with it (`myapikey`), or
    /// - it has five letters or more and stands inside one word (`secretkey`), unless that word goes on as another
    ///   English word does (`tokenizer`, `secretary`).
    ///
    /// A plural `s` after the pattern is part of it.
    pub(super) fn check(&self, name: &str) -> KeyMatch {
        if self.patterns.is_empty() {
            return KeyMatch::Open;
        }
        let name = Name::new(name);
        let mut measures = None;
        for pattern in &self.patterns {
            for at in name.find(pattern) {
                let measures = measures.get_or_insert_with(|| name.measures());
                if !measures.stand_beside(&name, at, pattern.len()) {
                    return KeyMatch::Secret;
                }
            }
        }
        if measures.is_some() { KeyMatch::Counter } else { KeyMatch::Open }
    }

    /// Whether these words, joined, are just one pattern: `api key` before a colon.
    pub(super) fn is_phrase(&self, words: &str) -> bool {
        let name = Name::new(words);
        let squeezed = name.squeezed.as_str();
        self.patterns
            .iter()
            .any(|pattern| squeezed.strip_prefix(pattern.as_str()).is_some_and(|rest| matches!(rest, "" | "s")))
    }
}

/// A name in lower case without separators, and where its words begin.
struct Name {
    squeezed: String,
    starts: Vec<usize>,
}

impl Name {
    fn new(name: &str) -> Name {
        #[derive(PartialEq)]
        enum Class {
            Upper,
            Lower,
            Digit,
        }
        let mut squeezed = String::with_capacity(name.len());
        let mut starts = Vec::new();
        let mut last: Option<Class> = None;
        let mut chars = name.chars().peekable();
        while let Some(c) = chars.next() {
            if !c.is_alphanumeric() {
                last = None;
                continue;
            }
            let class = match c {
                _ if c.is_uppercase() => Class::Upper,
                _ if c.is_numeric() => Class::Digit,
                _ => Class::Lower,
            };
            let begins = match (&last, &class) {
                (None, _) | (Some(Class::Lower), Class::Upper) => true,
                // The last capital of a row begins the next word: `APIKey` is `API` and `Key`; but `APIs` is one.
                (Some(Class::Upper), Class::Upper) => {
                    chars.peek().is_some_and(|next| next.is_lowercase() && *next != 's')
                }
                (Some(before), class) => (*before == Class::Digit) != (*class == Class::Digit),
            };
            if begins {
                starts.push(squeezed.len());
            }
            squeezed.extend(c.to_lowercase());
            last = Some(class);
        }
        Name { squeezed, starts }
    }

    fn is_border(&self, at: usize) -> bool {
        at == self.squeezed.len() || self.starts.binary_search(&at).is_ok()
    }

    /// Where `pattern` stands in this name by the rule of [`KeyRule::check`].
    fn find<'n>(&'n self, pattern: &'n str) -> impl Iterator<Item = usize> + 'n {
        self.squeezed.match_indices(pattern).map(|(at, _)| at).filter(move |&at| {
            let end = at + pattern.len();
            let rest = &self.squeezed[end..];
            let plural = rest.starts_with('s') && self.is_border(end + 1);
            let ends_well = self.is_border(end) || plural;
            let whole_words = ends_well && self.is_border(at);
            let at_end = matches!(rest, "" | "s");
            whole_words || at_end || (pattern.len() >= INSIDE_MIN && self.is_inside_one_word(at, end))
        })
    }

    fn is_inside_one_word(&self, at: usize, end: usize) -> bool {
        // The first word that begins after the pattern does.
        let next = self.starts.partition_point(|start| *start <= at);
        let word_end = self.starts.get(next).copied().unwrap_or(self.squeezed.len());
        let another_word = ["iz", "is", "ar", "ial", "ed"];
        end <= word_end && !another_word.iter().any(|suffix| self.squeezed[end..word_end].starts_with(suffix))
    }

    fn measures(&self) -> Measures {
        let ends = self.starts.iter().skip(1).copied().chain([self.squeezed.len()]);
        let words = || self.starts.iter().zip(ends.clone()).map(|(&start, end)| &self.squeezed[start..end]);
        Measures {
            any: words().any(|word| MEASURES.contains(&word)),
            of_plural: words().any(|word| PLURAL_MEASURES.contains(&word)),
        }
    }
}

/// Which words of measure a name has.
struct Measures {
    any: bool,
    of_plural: bool,
}

impl Measures {
    /// Whether one of them, as a word or run together with it, belongs to the pattern at `at`.
    fn stand_beside(&self, name: &Name, at: usize, length: usize) -> bool {
        let (before, rest) = (&name.squeezed[..at], &name.squeezed[at + length..]);
        let after = rest.strip_prefix('s').unwrap_or(rest);
        let run_together = |list: &[&str]| list.contains(&before) || list.contains(&after);
        let plural = rest.starts_with('s');
        self.any || run_together(MEASURES) || (plural && (self.of_plural || run_together(PLURAL_MEASURES)))
    }
}
