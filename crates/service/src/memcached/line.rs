//! A command line: words separated by blanks, some of them numbers.

/// The unread rest of a line.
#[derive(Debug, Clone, Copy)]
pub(super) struct Line<'a>(&'a [u8]);

impl<'a> Line<'a> {
    pub(super) fn new(line: &'a [u8]) -> Line<'a> {
        Line(line)
    }

    /// Takes the next word.
    pub(super) fn word(&mut self) -> Option<&'a [u8]> {
        let start = self.0.iter().position(|byte| *byte != b' ')?;
        let rest = &self.0[start..];
        let end = rest.iter().position(|byte| *byte == b' ').unwrap_or(rest.len());
        self.0 = &rest[end..];
        Some(&rest[..end])
    }

    /// Returns the offset of the unread rest in `bytes`, which must contain the line.
    pub(super) fn start(&self, bytes: &[u8]) -> usize {
        self.0.as_ptr().addr() - bytes.as_ptr().addr()
    }

    /// The unread words.
    pub(super) fn rest(mut self) -> impl Iterator<Item = &'a [u8]> {
        std::iter::from_fn(move || self.word())
    }

    /// The number of unread words.
    pub(super) fn words(self) -> usize {
        self.rest().count()
    }

    /// Takes the next word and parses it as a number.
    pub(super) fn number<N: std::str::FromStr>(&mut self) -> Option<N> {
        number(self.word()?)
    }

    /// Takes the next word, and returns whether it is `noreply`.
    pub(super) fn noreply(&mut self) -> bool {
        self.word() == Some(b"noreply")
    }
}

/// Parses a word as a number.
pub(super) fn number<N: std::str::FromStr>(word: &[u8]) -> Option<N> {
    // `FromStr` would accept a plus sign.
    let word = std::str::from_utf8(word).ok().filter(|word| !word.starts_with('+'))?;
    // A value that `decr` shortened is padded with blanks.
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
