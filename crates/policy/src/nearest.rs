//! Finds the known word nearest to a misspelt one, for error messages.
//!
//! Counts single-character edits. Long words are not compared: a suggestion is optional, and must cost nothing
//! when the input is garbage.

/// The length, in bytes, above which a word is not taken for a misspelling.
const MAX_WORD: usize = 32;

/// Returns the candidate with the fewest edits from `word`, if at most a third of the word is wrong.
pub fn nearest<'a>(word: &str, candidates: impl IntoIterator<Item = &'a str>) -> Option<&'a str> {
    if word.is_empty() || word.len() > MAX_WORD {
        return None;
    }
    let allowed = (word.len() / 3).max(1);
    candidates
        .into_iter()
        .filter_map(|candidate| Some((distance(word.as_bytes(), candidate.as_bytes())?, candidate)))
        .filter(|(edits, _)| *edits <= allowed)
        .min_by_key(|(edits, _)| *edits)
        .map(|(_, candidate)| candidate)
}

/// The Levenshtein distance, ignoring ASCII case; `None` if `word` is too long.
fn distance(word: &[u8], candidate: &[u8]) -> Option<usize> {
    // `row[i]`: edits from the candidate's bytes so far to the first `i` bytes of the word.
    let mut row = [0_usize; MAX_WORD + 1];
    let row = row.get_mut(..=word.len())?;
    for (place, edits) in row.iter_mut().enumerate() {
        *edits = place;
    }
    for (line, candidate_byte) in candidate.iter().enumerate() {
        let mut diagonal = line;
        let mut left = line + 1;
        for (edits, word_byte) in row.iter_mut().skip(1).zip(word) {
            let above = *edits;
            let changed = usize::from(!word_byte.eq_ignore_ascii_case(candidate_byte));
            *edits = (diagonal + changed).min(above + 1).min(left + 1);
            diagonal = above;
            left = *edits;
        }
        if let Some(first) = row.first_mut() {
            *first = line + 1;
        }
    }
    row.last().copied()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn edits_are_counted() {
        let edits = |a: &str, b: &str| distance(a.as_bytes(), b.as_bytes());
        assert_eq!(edits("suspend20", "suspend20"), Some(0));
        assert_eq!(edits("supend20", "suspend20"), Some(1));
        assert_eq!(edits("Threaded", "threaded"), Some(0));
        assert_eq!(edits("kitten", "sitting"), Some(3));
        assert_eq!(edits("", "abc"), Some(3));
        assert_eq!(edits("abc", ""), Some(3));
        assert_eq!(edits("abc", "a"), Some(2));
    }

    #[test]
    fn a_slip_is_recognised_and_nonsense_is_not() {
        let names = ["base", "fullbusy", "napibusy", "ksoftirqd"];
        assert_eq!(nearest("fulbusy", names), Some("fullbusy"));
        assert_eq!(nearest("ksoftirq", names), Some("ksoftirqd"));
        assert_eq!(nearest("ksxxxirqd", names), Some("ksoftirqd"), "a third is wrong");
        assert_eq!(nearest("ksxxxxrqd", names), None);
        assert_eq!(nearest("xyzzy", names), None);
        assert_eq!(nearest("", names), None);
        assert_eq!(nearest(&"b".repeat(1_000), names), None);
    }
}
