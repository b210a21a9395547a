//! Escapes untrusted text for printing.
//!
//! The name of an interface, a program or a peer is arbitrary. Printed unchanged, it could move a terminal's
//! cursor, set its title, or make a line read as another one. Such characters are replaced by visible escapes:
//! `\u{1b}`, `\n`, `\u{202e}`.
//!
//! A character is harmless if `char::escape_debug` leaves it alone: all but control and format characters
//! (bidirectional, zero-width), separators, combining and unassigned ones. Quotes and backslashes stay, so that
//! escaping is idempotent.

use alloc::string::String;
use core::fmt::Write;

fn harmless(c: char) -> bool {
    matches!(c, ' '..='~') || c.escape_debug().len() == 1
}

/// Escapes a name or a word, so that it neither controls a terminal nor ends its line.
pub fn escaped(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for c in text.chars() {
        if harmless(c) { out.push(c) } else { out.extend(c.escape_debug()) }
    }
    out
}

/// Escapes a text of several lines as [`escaped`], but keeps its line ends.
pub fn escaped_lines(text: &str) -> String {
    text.split('\n').map(escaped).collect::<alloc::vec::Vec<_>>().join("\n")
}

/// Escapes finished JSON without changing its values: characters that are not [harmless](self) get JSON
/// escapes. In finished JSON they occur in strings only.
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

/// The maximum number of characters of an input that an error quotes.
const MAX_QUOTED: usize = 40;

/// Returns the beginning of an input, for quoting in an error: quotes and backslashes are escaped as well.
pub fn quoted(text: &str) -> String {
    let mut quoted: String = text.chars().take(MAX_QUOTED).flat_map(char::escape_debug).collect();
    if text.chars().nth(MAX_QUOTED).is_some() {
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
        assert_eq!(quoted(&"x".repeat(MAX_QUOTED)).len(), MAX_QUOTED);
        assert_eq!(quoted(&"x".repeat(MAX_QUOTED + 1)).len(), MAX_QUOTED + 3);
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
