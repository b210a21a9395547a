//! Parses the keys that a terminal sends.
//!
//! Recognises only keys that the view uses; other sequences are read to their end and dropped. Reading bytes,
//! and how long to wait after a lone escape, is up to the screen.

/// The maximum length of a sequence in bytes; no terminal sends a longer key.
const LONGEST: usize = 32;

/// A pressed key.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Key {
    /// A printable character.
    Char(char),
    /// Return, or Ctrl-M.
    Enter,
    /// Escape alone, without a sequence after it.
    Escape,
    /// The key that deletes to the left.
    Backspace,
    /// The arrow up, of either cursor mode.
    Up,
    /// The arrow down, of either cursor mode.
    Down,
    /// A page up.
    PageUp,
    /// A page down.
    PageDown,
    /// To the beginning.
    Home,
    /// To the end.
    End,
    /// Ctrl-C, as a key.
    Interrupt,
    /// Ctrl-Z, as a key.
    Suspend,
    /// Ctrl-L: redraws everything.
    Redraw,
    /// Ctrl-U: empties the line.
    Erase,
}

/// Parses keys from bytes, wherever a read cuts them.
#[derive(Debug, Default)]
pub(crate) struct Keys {
    pending: Vec<u8>,
}

enum Step {
    Key(Key, usize),
    Skip(usize),
    Partial,
}

impl Keys {
    /// Returns the keys that are complete with these bytes.
    pub(crate) fn read(&mut self, bytes: &[u8]) -> Vec<Key> {
        self.pending.extend_from_slice(bytes);
        self.drain(false)
    }

    /// Whether the last bytes may be the beginning of a key.
    pub(crate) fn waits(&self) -> bool {
        !self.pending.is_empty()
    }

    /// Ends the wait for more bytes: a lone escape was the Escape key.
    pub(crate) fn end(&mut self) -> Vec<Key> {
        self.drain(true)
    }

    fn drain(&mut self, end: bool) -> Vec<Key> {
        let (mut keys, mut rest) = (Vec::new(), self.pending.as_slice());
        while !rest.is_empty() {
            let used = match step(rest) {
                Step::Key(key, used) => {
                    keys.push(key);
                    used
                }
                Step::Skip(used) => used,
                Step::Partial if rest.len() >= LONGEST => rest.len(),
                Step::Partial if !end => break,
                Step::Partial if rest[0] == ESC => {
                    keys.push(Key::Escape);
                    // With more bytes behind it, it began an unterminated sequence.
                    rest.len()
                }
                Step::Partial => rest.len(),
            };
            rest = rest.get(used..).unwrap_or_default();
        }
        self.pending = rest.to_vec();
        keys
    }
}

const ESC: u8 = 0x1b;

fn step(bytes: &[u8]) -> Step {
    match bytes {
        [ESC] => Step::Partial,
        [ESC, b'[', rest @ ..] => csi(rest),
        [ESC, b'O', rest @ ..] => match rest.first() {
            None => Step::Partial,
            Some(last) => named(&[], *last, 3),
        },
        // The next byte begins a key of its own: Alt sends an escape before a key.
        [ESC, ..] => Step::Key(Key::Escape, 1),
        [b'\r' | b'\n', ..] => Step::Key(Key::Enter, 1),
        [0x7f | 0x08, ..] => Step::Key(Key::Backspace, 1),
        [0x03, ..] => Step::Key(Key::Interrupt, 1),
        [0x1a, ..] => Step::Key(Key::Suspend, 1),
        [0x0c, ..] => Step::Key(Key::Redraw, 1),
        [0x15, ..] => Step::Key(Key::Erase, 1),
        [0x00..=0x1f, ..] => Step::Skip(1),
        [_, ..] => character(bytes),
        [] => Step::Partial,
    }
}

/// Parses a control sequence after its introducer.
fn csi(rest: &[u8]) -> Step {
    let end = rest.iter().position(|byte| !(0x20..=0x3f).contains(byte));
    match end.map(|end| (end, rest[end])) {
        None => Step::Partial,
        Some((end, last @ 0x40..=0x7e)) => named(&rest[..end], last, end + 3),
        // An interrupted sequence: what follows is another key.
        Some((end, _)) => Step::Skip(end + 2),
    }
}

fn named(parameters: &[u8], last: u8, used: usize) -> Step {
    let first = parameters.split(|byte| *byte == b';').next().unwrap_or_default();
    let key = match (last, first) {
        (b'A', _) => Key::Up,
        (b'B', _) => Key::Down,
        (b'H', _) | (b'~', b"1" | b"7") => Key::Home,
        (b'F', _) | (b'~', b"4" | b"8") => Key::End,
        (b'~', b"5") => Key::PageUp,
        (b'~', b"6") => Key::PageDown,
        (b'M', b"") => Key::Enter,
        _ => return Step::Skip(used),
    };
    Step::Key(key, used)
}

fn character(bytes: &[u8]) -> Step {
    let length = match bytes[0] {
        0x00..=0x7f => 1,
        0xc2..=0xdf => 2,
        0xe0..=0xef => 3,
        0xf0..=0xf4 => 4,
        _ => return Step::Skip(1),
    };
    let Some(whole) = bytes.get(..length) else {
        let begun = bytes[1..].iter().all(|byte| byte & 0xc0 == 0x80);
        return if begun { Step::Partial } else { Step::Skip(1) };
    };
    match std::str::from_utf8(whole).ok().and_then(|text| text.chars().next()) {
        Some(c) if !c.is_control() => Step::Key(Key::Char(c), length),
        Some(_) => Step::Skip(length),
        None => Step::Skip(1),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn keys(bytes: &[u8]) -> Vec<Key> {
        let mut reader = Keys::default();
        let mut keys = reader.read(bytes);
        keys.extend(reader.end());
        assert!(!reader.waits());
        keys
    }

    #[test]
    fn what_terminals_send_is_understood() {
        for (sent, key) in [
            ("q", Key::Char('q')),
            ("é", Key::Char('é')),
            ("\r", Key::Enter),
            ("\x1b", Key::Escape),
            ("\x7f", Key::Backspace),
            ("\x1b[A", Key::Up),
            ("\x1bOA", Key::Up),
            ("\x1b[1;5B", Key::Down),
            ("\x1b[5~", Key::PageUp),
            ("\x1b[6~", Key::PageDown),
            ("\x1b[H", Key::Home),
            ("\x1b[1~", Key::Home),
            ("\x1bOF", Key::End),
            ("\x1b[4~", Key::End),
            ("\x03", Key::Interrupt),
        ] {
            assert_eq!(keys(sent.as_bytes()), [key], "{sent:?}");
        }
    }

    #[test]
    fn what_is_not_known_is_dropped_to_its_end() {
        for sent in ["\x1b[200~", "\x1b[<0;10;10M", "\x1b[15;2~", "\x01", "\x1bOP"] {
            assert_eq!(keys(format!("{sent}x").as_bytes()), [Key::Char('x')], "{sent:?}");
        }
        assert_eq!(keys(b"\x1b\x1b[A"), [Key::Escape, Key::Up]);
        assert_eq!(keys(b"\xff\xc3x"), [Key::Char('x')]);
    }

    #[test]
    fn an_escape_waits_for_what_may_follow() {
        let mut reader = Keys::default();
        assert_eq!(reader.read(b"\x1b"), []);
        assert!(reader.waits());
        assert_eq!(reader.read(b"[A"), [Key::Up]);
        assert_eq!(reader.read(b"\x1b"), []);
        assert_eq!(reader.end(), [Key::Escape]);
    }

    proptest! {
        #[test]
        fn no_bytes_panic_and_where_a_read_ends_makes_no_difference(
            bytes in prop::collection::vec(
                prop_oneof![any::<u8>(), Just(ESC), Just(b'['), Just(b'1'), Just(b'~')], 0..24),
            cut in 0_usize..24,
        ) {
            let at = cut.min(bytes.len());
            let mut reader = Keys::default();
            let mut cut = reader.read(&bytes[..at]);
            cut.extend(reader.read(&bytes[at..]));
            cut.extend(reader.end());
            prop_assert_eq!(cut, keys(&bytes));
        }

        #[test]
        fn a_sequence_without_an_end_is_not_kept(length in 0_usize..200) {
            let mut reader = Keys::default();
            reader.read(b"\x1b[");
            for _ in 0..length {
                reader.read(b"1");
                prop_assert!(reader.pending.len() <= LONGEST);
            }
        }
    }
}
