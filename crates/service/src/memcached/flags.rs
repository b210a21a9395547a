//! Parses the flags and the key of a meta command.

use std::borrow::Cow;
use std::io::Write;

use super::classic::is_key;
use super::line::{Line, number};
use super::store::Value;

/// The most flags of a command.
const FLAGS: usize = 32;
/// All known flags. `P` and `L` are meant for proxies, which may forward them; they are ignored.
const KNOWN: &[u8] = b"bcfhklqstuvxCDEFIJLMNOPRST";
/// Longest opaque token in bytes.
const OPAQUE: usize = 32;

/// The flags of a command: each letter with the token that follows it.
pub(super) struct Flags<'a>(pub(super) Vec<(u8, &'a [u8])>);

impl<'a> Flags<'a> {
    pub(super) fn read(line: &mut Line<'a>) -> Result<Flags<'a>, &'static str> {
        let mut flags = Vec::new();
        while let Some((letter, value)) = line.word().and_then(|word| word.split_first()) {
            if flags.len() == FLAGS {
                return Err("CLIENT_ERROR options flags are too long\r\n");
            }
            if flags.iter().any(|(other, _)| other == letter) {
                return Err("CLIENT_ERROR duplicate flag\r\n");
            }
            if !KNOWN.contains(letter) {
                return Err("CLIENT_ERROR invalid flag\r\n");
            }
            if *letter == b'O' && value.len() > OPAQUE {
                return Err("CLIENT_ERROR opaque token too long\r\n");
            }
            flags.push((*letter, value));
        }
        Ok(Flags(flags))
    }

    pub(super) fn has(&self, letter: u8) -> bool {
        self.0.iter().any(|(other, _)| *other == letter)
    }

    pub(super) fn value(&self, letter: u8) -> Option<&'a [u8]> {
        self.0.iter().find(|(other, _)| *other == letter).map(|(_, value)| *value)
    }

    /// Returns a flag's number: `None` without the flag, `Err` if its token is not a number.
    pub(super) fn number<N: std::str::FromStr>(
        &self,
        letter: u8,
    ) -> Result<Option<N>, &'static str> {
        let Some(value) = self.value(letter) else { return Ok(None) };
        number(value).map(Some).ok_or("CLIENT_ERROR bad token in command line format\r\n")
    }

    /// Appends the flags that every answer repeats: the key and the opaque and, with an item, its CAS number and
    /// size. As in memcached, `b` (a base64 key) is repeated only together with `k`.
    pub(super) fn echo(&self, word: &[u8], item: Option<&Value>, output: &mut Vec<u8>) {
        // Writing to a vector cannot fail.
        for (letter, given) in &self.0 {
            let _ = match (letter, item) {
                (b'O', _) => output.write_all(&[b" O", *given].concat()),
                (b'k', _) => output.write_all(&[b" k", word].concat()),
                (b'b', _) if self.has(b'k') => output.write_all(b" b"),
                (b'c', Some(item)) => write!(output, " c{}", item.cas),
                (b's', Some(item)) => write!(output, " s{}", item.data.len()),
                _ => Ok(()),
            };
        }
    }
}

/// Returns a command's key as stored, decoded from base64 if flag `b` is set. `None` if it is invalid.
pub(super) fn key<'a>(word: &'a [u8], flags: &Flags<'_>) -> Option<Cow<'a, [u8]>> {
    let key = if flags.has(b'b') { Cow::Owned(base64(word)?) } else { Cow::Borrowed(word) };
    (is_key(&key) && word.len() <= super::KEY_LIMIT).then_some(key)
}

fn base64(word: &[u8]) -> Option<Vec<u8>> {
    let digits = word.strip_suffix(b"==").or(word.strip_suffix(b"=")).unwrap_or(word);
    if !word.len().is_multiple_of(4) {
        return None;
    }
    let (mut bits, mut held, mut bytes) = (0u32, 0, Vec::with_capacity(word.len() / 4 * 3));
    for digit in digits {
        let value = match digit {
            b'A'..=b'Z' => digit - b'A',
            b'a'..=b'z' => digit - b'a' + 26,
            b'0'..=b'9' => digit - b'0' + 52,
            b'+' => 62,
            b'/' => 63,
            _ => return None,
        };
        bits = bits << 6 | u32::from(value);
        held += 6;
        if held >= 8 {
            held -= 8;
            bytes.push((bits >> held) as u8);
        }
    }
    Some(bytes)
}
