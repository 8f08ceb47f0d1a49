//! "Did you mean …": finds the known word that a mistyped one resembles.

/// The known word nearest to `word`, if it is near enough to be a typing error.
///
/// Near enough is one edit for words of up to four characters, two up to nine, three from ten on. An edit inserts,
/// removes or replaces one character, or swaps two neighbours; case does not count, nor does `-` against `_`.
/// Of equally near words the first one wins.
#[must_use]
pub fn nearest<'k>(word: &str, known: impl IntoIterator<Item = &'k str>) -> Option<&'k str> {
    // Longer than any word we know by more than the largest tolerated distance: no need to compute anything.
    const WORD_CHARS_MAX: usize = 64;
    let word = folded(word);
    if word.len() > WORD_CHARS_MAX {
        return None;
    }
    let mut best: Option<(usize, &str)> = None;
    for candidate in known {
        let target = folded(candidate);
        let allowed = match word.len().max(target.len()) {
            0..=4 => 1,
            5..=9 => 2,
            _ => 3,
        };
        let distance = edits(&word, &target);
        if distance <= allowed && best.is_none_or(|(shortest, _)| distance < shortest) {
            best = Some((distance, candidate));
        }
    }
    best.map(|(_, candidate)| candidate)
}

fn folded(word: &str) -> Vec<char> {
    word.chars().map(|c| if c == '-' { '_' } else { c.to_ascii_lowercase() }).collect()
}

/// The optimal string alignment distance, row by row.
fn edits(a: &[char], b: &[char]) -> usize {
    let mut before_last: Vec<usize> = Vec::new();
    let mut last: Vec<usize> = (0..=b.len()).collect();
    for (i, &x) in a.iter().enumerate() {
        let mut row = vec![i + 1];
        for (j, &y) in b.iter().enumerate() {
            let mut cost = (last[j + 1] + 1).min(row[j] + 1).min(last[j] + usize::from(x != y));
            if i > 0 && j > 0 && x == b[j - 1] && a[i - 1] == y {
                cost = cost.min(before_last[j - 1] + 1);
            }
            row.push(cost);
        }
        before_last = std::mem::replace(&mut last, row);
    }
    last[b.len()]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn typing_errors_find_their_word() {
        let known = ["policy", "queue", "store", "identity", "max_attempts", "tool"];
        for (typed, meant) in [
            ("polcy", "policy"),
            ("Policy", "policy"),
            ("qeue", "queue"),
            ("toool", "tool"),
            ("tolo", "tool"),
            ("max-attempt", "max_attempts"),
            ("identiyt", "identity"),
        ] {
            assert_eq!(nearest(typed, known), Some(meant), "{typed}");
        }
    }

    #[test]
    fn other_words_find_nothing() {
        for typed in ["telemetry", "x", "", "quantum", "p"] {
            assert_eq!(nearest(typed, ["policy", "queue", "store", "tool"]), None, "{typed}");
        }
        assert_eq!(nearest(&"a".repeat(100_000), ["policy"]), None);
    }

    #[test]
    fn the_nearest_word_wins_over_an_earlier_one() {
        assert_eq!(nearest("--tools", ["--to", "--tool"]), Some("--tool"));
    }
}
