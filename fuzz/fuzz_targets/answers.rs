//! What a server answers to the load generator: read in any pieces it is the same, and never more is
//! taken than came.
#![no_main]

use libfuzzer_sys::fuzz_target;
use napkin_client::{Answer, Asked, Fault, Parser};

/// The answers in these bytes, given `piece` at a time, and what ended them.
fn answers(asked: Asked<'_>, bytes: &[u8], piece: usize) -> (Vec<Answer>, Option<Fault>) {
    let (mut parser, mut answers) = (Parser::default(), Vec::new());
    for mut part in bytes.chunks(piece.max(1)) {
        while !part.is_empty() {
            match parser.feed(asked, part) {
                Ok((taken, answer)) => {
                    assert!(taken <= part.len() && (taken > 0 || answer.is_some()));
                    assert!(answer.is_some() || taken == part.len());
                    part = &part[taken..];
                    answers.extend(answer);
                }
                Err(fault) => return (answers, Some(fault)),
            }
        }
    }
    (answers, None)
}

fuzz_target!(|data: &[u8]| {
    let Some(([how, piece], bytes)) = data.split_first_chunk() else { return };
    let asked = match how % 4 {
        0 => Asked::Get { key: b"k" },
        1 => Asked::Set,
        2 => Asked::Version,
        _ => Asked::Bytes(u32::from(how / 4) + 1),
    };
    assert_eq!(answers(asked, bytes, usize::MAX), answers(asked, bytes, usize::from(*piece)));
});
