//! A command line: words with blanks between them, and numbers in words.

/// What is left of a line.
#[derive(Debug, Clone, Copy)]
pub(super) struct Line<'a>(&'a [u8]);

impl<'a> Line<'a> {
    pub(super) fn new(line: &'a [u8]) -> Line<'a> {
        Line(line)
    }

    /// The next word.
    pub(super) fn word(&mut self) -> Option<&'a [u8]> {
        let start = self.0.iter().position(|byte| *byte != b' ')?;
        let rest = &self.0[start..];
        let end = rest.iter().position(|byte| *byte == b' ').unwrap_or(rest.len());
        self.0 = &rest[end..];
        Some(&rest[..end])
    }

    /// Where in `bytes`, of which it is a part, what is left begins.
    pub(super) fn start(&self, bytes: &[u8]) -> usize {
        self.0.as_ptr().addr() - bytes.as_ptr().addr()
    }

    /// The words that are left.
    pub(super) fn rest(mut self) -> impl Iterator<Item = &'a [u8]> {
        std::iter::from_fn(move || self.word())
    }

    /// How many words are left.
    pub(super) fn words(self) -> usize {
        self.rest().count()
    }

    /// The next word as a number.
    pub(super) fn number<N: std::str::FromStr>(&mut self) -> Option<N> {
        number(self.word()?)
    }

    /// Whether the last word is `noreply`; nothing may follow it.
    pub(super) fn noreply(&mut self) -> bool {
        self.word() == Some(b"noreply")
    }
}

/// A word as a number.
pub(super) fn number<N: std::str::FromStr>(word: &[u8]) -> Option<N> {
    // `from_str` would take a plus sign.
    let word = std::str::from_utf8(word).ok().filter(|word| !word.starts_with('+'))?;
    // A value that `decr` made shorter has blanks behind it.
    word.trim_end_matches(' ').parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_are_what_is_between_blanks() {
        let mut line = Line::new(b"  set  key 1 ");
        assert_eq!((line.word(), line.word()), (Some(&b"set"[..]), Some(&b"key"[..])));
        assert_eq!((line.number::<u32>(), line.word()), (Some(1), None));
        assert_eq!(
            (number::<u32>(b"+1"), number::<u32>(b"-1"), number::<u32>(b"x")),
            (None, None, None)
        );
    }
}
