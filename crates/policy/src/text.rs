//! Text of somebody else's, made harmless.
//!
//! An interface, a program or a peer may call itself whatever it likes. Printed as it is, such a name
//! can move a terminal's cursor, set its title, or make a line read as another one. Here such
//! characters become visible: `\u{1b}`, `\n`, `\u{202e}`.
//!
//! What is harmless is what `char::escape_debug` leaves alone: everything but control and format
//! characters (bidirectional, zero-width), separators, combining and unassigned ones. Quotes and
//! backslashes stay, so that text which went through here twice is the same.

use alloc::string::String;
use core::fmt::Write;

fn harmless(c: char) -> bool {
    matches!(c, ' '..='~') || c.escape_debug().len() == 1
}

/// A name or a word: nothing in it does anything to a terminal, or ends its line.
pub fn escaped(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for c in text.chars() {
        if harmless(c) { out.push(c) } else { out.extend(c.escape_debug()) }
    }
    out
}

/// A text of several lines: as [`escaped`], but its line ends stay.
pub fn escaped_lines(text: &str) -> String {
    text.split('\n').map(escaped).collect::<alloc::vec::Vec<_>>().join("\n")
}

/// Finished JSON: the same values, but what is not [harmless](self) is escaped as JSON does it. In
/// finished JSON such characters stand in strings alone.
pub fn escaped_json(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for c in text.chars() {
        if c == '\n' || harmless(c) {
            out.push(c);
            continue;
        }
        for unit in c.encode_utf16(&mut [0; 2]) {
            // Writing to a string cannot fail.
            let _ = write!(out, "\\u{unit:04x}");
        }
    }
    out
}

/// Characters of an input that an error repeats.
const QUOTED: usize = 40;

/// The beginning of an input, as far as an error repeats it between quotes: quotes and backslashes
/// are escaped as well.
pub fn quoted(text: &str) -> String {
    let mut quoted: String = text.chars().take(QUOTED).flat_map(char::escape_debug).collect();
    if text.chars().nth(QUOTED).is_some() {
        quoted.push_str("...");
    }
    quoted
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn what_acts_on_a_terminal_becomes_visible() {
        for (text, shown) in [
            ("eth0", "eth0"),
            ("\u{1b}[31mred", "\\u{1b}[31mred"),
            ("a\u{9b}2Jb", "a\\u{9b}2Jb"),
            ("two\nlines\r", "two\\nlines\\r"),
            ("abc\u{202e}fed", "abc\\u{202e}fed"),
            ("zero\u{200b}width", "zero\\u{200b}width"),
            ("it's a \\ and a \"", "it's a \\ and a \""),
            ("漢字, é, … and │", "漢字, é, … and │"),
        ] {
            assert_eq!(escaped(text), shown);
        }
        assert_eq!(escaped_lines("one\ntwo\u{7f}\n"), "one\ntwo\\u{7f}\n");
    }

    #[test]
    fn json_keeps_its_values() {
        let json = "{\n  \"name\": \"a\u{9b}b\u{202e}\u{e0041}\"\n}";
        let shown = "{\n  \"name\": \"a\\u009bb\\u202e\\udb40\\udc41\"\n}";
        assert_eq!(escaped_json(json), shown);
    }

    #[test]
    fn an_error_repeats_little() {
        assert_eq!(quoted("a\n'b'"), "a\\n\\'b\\'");
        assert_eq!(quoted(&"x".repeat(QUOTED)).len(), QUOTED);
        assert_eq!(quoted(&"x".repeat(QUOTED + 1)).len(), QUOTED + 3);
    }

    proptest! {
        #[test]
        fn once_is_enough(text in any::<String>()) {
            let once = escaped(&text);
            prop_assert!(once.chars().all(|c| harmless(c) && !c.is_control()));
            prop_assert_eq!(escaped(&once), once);
        }
    }
}
