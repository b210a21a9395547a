//! An incremental parser for answers of the memcached text protocol.
//!
//! It is total and uses fixed memory: for any bytes in any pieces, each call consumes some, completes an answer, or
//! reports a fault. Values are counted, not stored.

/// Longest line of an answer, in bytes. A `VALUE` line has fewer than 300; an error's text may be longer.
pub const LONGEST_LINE: usize = 512;
/// Largest value that is accepted, in bytes: memcached's default item size limit.
pub const LONGEST_VALUE: u32 = 1 << 20;

/// The request that an answer belongs to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PendingRequest<'a> {
    /// A get of one key.
    Get {
        /// The key of the record.
        key: &'a [u8],
    },
    /// A `set`, answered by `STORED` or a refusal.
    Set,
    /// A request for the server's version.
    Version,
    /// A message to an echo server, of this many bytes, at least one.
    Bytes(u32),
}

/// A well-formed answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Answer {
    /// A get found its record.
    Hit {
        /// Size of the value.
        bytes: u32,
    },
    /// A get found nothing.
    Miss,
    /// A set took place.
    Stored,
    /// The server returned its version.
    Version,
    /// All echoed bytes arrived; their content is not compared.
    Bytes,
    /// The server refused the request.
    Refused(Refusal),
}

/// The kinds of refusal.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Refusal {
    /// The server did not store the item.
    NotStored,
    /// `ERROR`: unknown command.
    Error,
    /// `CLIENT_ERROR`: invalid request.
    ClientError,
    /// `SERVER_ERROR`: the server failed, for example for lack of memory.
    ServerError,
}

/// Why bytes are not a valid answer. The connection cannot be resynchronised afterwards.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fault {
    /// A line longer than [`LONGEST_LINE`].
    LongLine,
    /// A line that is not a valid answer to the request.
    UnknownLine,
    /// A value for a key that was not requested.
    OtherKey,
    /// A value whose size is not a number or exceeds [`LONGEST_VALUE`]; an NBD export that is too small.
    BadSize,
    /// A value without a line end behind it.
    NoLineEnd,
    /// Bytes from an NBD server that are no reply, or a reply to another request.
    OtherReply,
}

/// The parser's position within an answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Place {
    /// In a line; with the size of the value if that was read already.
    Line { value: Option<u32> },
    /// In a value, with `left` bytes to come.
    Value { bytes: u32, left: u32 },
    /// Behind a value, with `seen` bytes of the line end read.
    LineEnd { bytes: u32, seen: u8 },
}

/// Parses one answer after another.
#[derive(Debug, Clone)]
pub struct Parser {
    place: Place,
    line: [u8; LONGEST_LINE],
    len: usize,
}

impl Default for Parser {
    fn default() -> Parser {
        Parser { place: Place::Line { value: None }, line: [0; LONGEST_LINE], len: 0 }
    }
}

impl Parser {
    /// Consumes bytes up to the end of an answer. Returns how many, which is all of them unless the answer ended,
    /// and the answer if it is complete.
    ///
    /// # Errors
    /// The fault in the bytes. The connection cannot be used any further.
    pub fn feed(
        &mut self,
        asked: PendingRequest<'_>,
        bytes: &[u8],
    ) -> Result<(usize, Option<Answer>), Fault> {
        let mut rest = bytes;
        while !rest.is_empty() {
            let (taken, answer) = self.step(asked, rest)?;
            rest = &rest[taken..];
            if answer.is_some() {
                self.place = Place::Line { value: None };
                self.len = 0;
                return Ok((bytes.len() - rest.len(), answer));
            }
        }
        Ok((bytes.len(), None))
    }

    /// Consumes at least one byte, or changes the state.
    fn step(
        &mut self,
        asked: PendingRequest<'_>,
        rest: &[u8],
    ) -> Result<(usize, Option<Answer>), Fault> {
        match self.place {
            Place::Line { value } => {
                if let PendingRequest::Bytes(bytes) = asked {
                    self.place = Place::Value { bytes, left: bytes };
                    return Ok((0, None));
                }
                let end = rest.iter().position(|byte| *byte == b'\n');
                let part = &rest[..end.map_or(rest.len(), |end| end + 1)];
                let room = self.line.get_mut(self.len..self.len + part.len());
                room.ok_or(Fault::LongLine)?.copy_from_slice(part);
                self.len += part.len();
                if end.is_none() {
                    return Ok((part.len(), None));
                }
                let line = &self.line[..self.len];
                let line = line.strip_suffix(b"\r\n").ok_or(Fault::UnknownLine)?;
                let read = read_line(asked, value, line)?;
                self.len = 0;
                match read {
                    Line::Ends(answer) => Ok((part.len(), Some(answer))),
                    Line::Value(bytes) => {
                        self.place = Place::Value { bytes, left: bytes };
                        Ok((part.len(), None))
                    }
                }
            }
            Place::Value { bytes, left } if left != 0 => {
                let taken = rest.len().min(left as usize);
                // No truncation: at most `left`, which has 32 bits.
                let left = left - taken as u32;
                self.place = Place::Value { bytes, left };
                let whole = left == 0 && matches!(asked, PendingRequest::Bytes(_));
                Ok((taken, whole.then_some(Answer::Bytes)))
            }
            Place::Value { bytes, .. } => {
                self.place = Place::LineEnd { bytes, seen: 0 };
                Ok((0, None))
            }
            Place::LineEnd { bytes, seen } => {
                if rest[0] != b"\r\n"[usize::from(seen)] {
                    return Err(Fault::NoLineEnd);
                }
                self.place = match seen {
                    0 => Place::LineEnd { bytes, seen: 1 },
                    _ => Place::Line { value: Some(bytes) },
                };
                Ok((1, None))
            }
        }
    }
}

enum Line {
    Ends(Answer),
    Value(u32),
}

fn read_line(asked: PendingRequest<'_>, value: Option<u32>, line: &[u8]) -> Result<Line, Fault> {
    if let Some(bytes) = value {
        // One key was requested, so there is at most one value.
        return match line {
            b"END" => Ok(Line::Ends(Answer::Hit { bytes })),
            _ => Err(Fault::UnknownLine),
        };
    }
    let answer = match (asked, line) {
        (PendingRequest::Get { .. }, b"END") => Answer::Miss,
        (PendingRequest::Set, b"STORED") => Answer::Stored,
        (PendingRequest::Set, b"NOT_STORED") => Answer::Refused(Refusal::NotStored),
        (PendingRequest::Get { key }, _) if line.starts_with(b"VALUE ") => {
            return value_line(key, line).map(Line::Value);
        }
        (PendingRequest::Version, _) if line.starts_with(b"VERSION ") => Answer::Version,
        (_, b"ERROR") => Answer::Refused(Refusal::Error),
        _ if line.starts_with(b"CLIENT_ERROR") => Answer::Refused(Refusal::ClientError),
        _ if line.starts_with(b"SERVER_ERROR") => Answer::Refused(Refusal::ServerError),
        _ => return Err(Fault::UnknownLine),
    };
    Ok(Line::Ends(answer))
}

/// The size in `VALUE <key> <flags> <bytes>`.
fn value_line(asked: &[u8], line: &[u8]) -> Result<u32, Fault> {
    let mut words = line.split(|byte| *byte == b' ').skip(1);
    let (Some(key), Some(_flags), Some(bytes), None) =
        (words.next(), words.next(), words.next(), words.next())
    else {
        return Err(Fault::UnknownLine);
    };
    if key != asked {
        return Err(Fault::OtherKey);
    }
    let digits = !bytes.is_empty() && bytes.iter().all(u8::is_ascii_digit);
    let number = std::str::from_utf8(bytes).ok().filter(|_| digits);
    let size = number.and_then(|number| number.parse().ok());
    size.filter(|size| *size <= LONGEST_VALUE).ok_or(Fault::BadSize)
}

#[cfg(test)]
mod tests {
    use napkin_traffic::Rng;

    use super::*;

    const KEY: PendingRequest<'static> = PendingRequest::Get { key: b"0000042" };

    /// All answers to requests of one kind, and the fault that ended them.
    fn read(asked: PendingRequest<'_>, pieces: &[&[u8]]) -> (Vec<Answer>, Option<Fault>) {
        let (mut parser, mut answers) = (Parser::default(), Vec::new());
        for piece in pieces {
            let mut rest = *piece;
            while !rest.is_empty() {
                match parser.feed(asked, rest) {
                    Ok((taken, answer)) => {
                        assert!(taken > 0 && taken <= rest.len(), "it gets on, and within bounds");
                        assert!(answer.is_some() || taken == rest.len());
                        answers.extend(answer);
                        rest = &rest[taken..];
                    }
                    Err(fault) => return (answers, Some(fault)),
                }
            }
        }
        (answers, None)
    }

    fn one(asked: PendingRequest<'_>, text: &[u8]) -> Result<Answer, Fault> {
        let (answers, fault) = read(asked, &[text]);
        match (&answers[..], fault) {
            ([answer], None) => Ok(*answer),
            ([], Some(fault)) => Err(fault),
            other => panic!("{other:?} for {text:?}"),
        }
    }

    #[test]
    fn what_a_server_says_is_understood() {
        assert_eq!(one(KEY, b"END\r\n"), Ok(Answer::Miss));
        let hit = |bytes| Ok(Answer::Hit { bytes });
        assert_eq!(
            one(KEY, b"VALUE 0000042 0 5\r\nab\r\nc\r\nEND\r\n"),
            hit(5),
            "lines in a value"
        );
        assert_eq!(one(KEY, b"VALUE 0000042 7 0\r\n\r\nEND\r\n"), hit(0));
        assert_eq!(one(PendingRequest::Set, b"STORED\r\n"), Ok(Answer::Stored));
        assert_eq!(one(PendingRequest::Version, b"VERSION 1.6.18\r\n"), Ok(Answer::Version));
        let (echoed, fault) = read(PendingRequest::Bytes(3), &[b"\r\nE", b"N", b"D\r\n"]);
        assert_eq!((echoed, fault), (vec![Answer::Bytes; 2], None), "whatever they are");
        for (text, refusal) in [
            (&b"NOT_STORED\r\n"[..], Refusal::NotStored),
            (b"ERROR\r\n", Refusal::Error),
            (b"CLIENT_ERROR bad data chunk\r\n", Refusal::ClientError),
            (b"SERVER_ERROR out of memory storing object\r\n", Refusal::ServerError),
        ] {
            assert_eq!(one(PendingRequest::Set, text), Ok(Answer::Refused(refusal)));
        }
    }

    #[test]
    fn what_is_no_answer_has_a_name() {
        for (text, fault) in [
            (&b"VALUE 0000043 0 1\r\na\r\nEND\r\n"[..], Fault::OtherKey),
            (b"VALUE 0000042 0 -1\r\n", Fault::BadSize),
            (b"VALUE 0000042 0 +1\r\n", Fault::BadSize),
            (b"VALUE 0000042 0 \r\n", Fault::BadSize),
            (b"VALUE 0000042 0 1048577\r\n", Fault::BadSize),
            (b"VALUE 0000042 0 99999999999999999999\r\n", Fault::BadSize),
            (b"VALUE 0000042 0\r\n", Fault::UnknownLine),
            (b"VALUE 0000042 0 1\r\nab\r\nEND\r\n", Fault::NoLineEnd),
            (b"VALUE 0000042 0 1\r\na\r\nVALUE 0000042 0 1\r\n", Fault::UnknownLine),
            (b"STORED\r\n", Fault::UnknownLine),
            (b"END\n", Fault::UnknownLine),
            (b"\r\n", Fault::UnknownLine),
            (b"HTTP/1.1 400 Bad Request\r\n", Fault::UnknownLine),
        ] {
            assert_eq!(one(KEY, text), Err(fault), "{:?}", String::from_utf8_lossy(text));
        }
        assert_eq!(one(PendingRequest::Set, b"END\r\n"), Err(Fault::UnknownLine));
        assert_eq!(read(KEY, &[&[b'x'; LONGEST_LINE]]), (Vec::new(), None));
        assert_eq!(read(KEY, &[&[b'x'; LONGEST_LINE + 1]]).1, Some(Fault::LongLine));
        let drip: Vec<_> = std::iter::repeat_n(&b"x"[..], LONGEST_LINE + 1).collect();
        assert_eq!(read(KEY, &drip).1, Some(Fault::LongLine));
    }

    /// A random sequence of answers, sometimes corrupted.
    fn stream(rng: &mut Rng) -> Vec<u8> {
        let mut text = Vec::new();
        for _ in 0..=rng.below(6) {
            match rng.below(8) {
                0 | 1 => text.extend_from_slice(b"END\r\n"),
                2..=5 => {
                    let size = rng.below(40) as usize;
                    text.extend_from_slice(format!("VALUE 0000042 0 {size}\r\n").as_bytes());
                    let bytes = b"\r\nEND\r\nVALUE ab";
                    text.extend((0..size).map(|_| bytes[rng.below(15) as usize]));
                    text.extend_from_slice(b"\r\nEND\r\n");
                }
                6 => text.extend_from_slice(b"SERVER_ERROR busy\r\n"),
                _ => text.extend_from_slice(b"ERROR\r\n"),
            }
        }
        if rng.below(4) == 0 {
            let place = rng.below(text.len() as u64) as usize;
            match rng.below(3) {
                0 => text[place] = rng.bits() as u8,
                1 => text.truncate(place),
                _ => text.insert(place, b"\r\n 9"[rng.below(4) as usize]),
            }
        }
        text
    }

    #[test]
    fn it_does_not_matter_where_the_stream_is_cut() {
        let mut rng = Rng::new(21);
        let (mut good, mut bad) = (0, 0);
        for _ in 0..20_000 {
            let text = stream(&mut rng);
            let whole = read(KEY, &[&text]);
            let bytes: Vec<_> = text.chunks(1).collect();
            assert_eq!(read(KEY, &bytes), whole, "{:?}", String::from_utf8_lossy(&text));
            let (mut pieces, mut rest) = (Vec::new(), &text[..]);
            while !rest.is_empty() {
                let (piece, others) = rest.split_at(1 + rng.below(rest.len() as u64) as usize);
                pieces.push(piece);
                rest = others;
            }
            assert_eq!(read(KEY, &pieces), whole, "{:?}", String::from_utf8_lossy(&text));
            good += u32::from(whole.1.is_none());
            bad += u32::from(whole.1.is_some());
        }
        assert!(good > 1_000 && bad > 1_000, "both were tried: {good}, {bad}");
    }

    #[test]
    fn garbage_never_panics_and_is_never_kept() {
        let mut rng = Rng::new(22);
        for round in 0..20_000 {
            let asked =
                [KEY, PendingRequest::Set, PendingRequest::Version, PendingRequest::Bytes(7)]
                    [round % 4];
            let text: Vec<_> = (0..rng.below(80)).map(|_| rng.bits() as u8).collect();
            let _ = read(asked, &[&text]);
            let words: [&[u8]; 6] = [b"VALUE ", b"0000042 ", b"0 ", b"3", b"\r\n", b"END"];
            let soup: Vec<_> = (0..rng.below(20)).map(|_| words[rng.below(6) as usize]).collect();
            let _ = read(asked, &soup);
        }
    }
}
