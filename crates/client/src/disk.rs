//! An NBD client: the handshake, reads and writes of one size, and their replies.
//!
//! It uses the default export, simple replies, and one outstanding request per connection. The client's part of the
//! handshake does not depend on the server's, so it is sent at once; the server's part is checked when it arrives.

use super::answer::{Answer, Fault, Refusal};

/// The size of operations, and the part of the disk that they access.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Disk {
    /// Bytes that an operation reads or writes; its offset is a multiple of that.
    pub bytes: u32,
    /// Size of the accessed part from the start of the disk, in bytes; each place in it is equally likely.
    pub within: u64,
}

/// Maximum size of an operation in bytes, which every NBD server supports.
pub(super) const MOST_BYTES: u32 = 32 << 20;

impl Disk {
    /// Number of distinct operation offsets.
    pub(super) fn places(&self) -> u64 {
        self.within / u64::from(self.bytes.max(1))
    }

    /// Bytes of a request on the wire.
    pub(super) fn length(&self, what: NbdRequest) -> usize {
        match what {
            NbdRequest::Hello => HELLO.len(),
            NbdRequest::Read { .. } => HEADER,
            NbdRequest::Write { .. } => HEADER + self.bytes as usize,
        }
    }

    /// Appends at most `most` bytes of a request, starting behind its first `sent` bytes.
    pub(super) fn put(&self, what: NbdRequest, sent: usize, most: usize, to: &mut Vec<u8>) {
        let end = self.length(what).min(sent + most);
        let (command, place) = match what {
            NbdRequest::Hello => {
                to.extend_from_slice(HELLO.get(sent..end).unwrap_or_default());
                return;
            }
            NbdRequest::Read { place } => (READ, place),
            NbdRequest::Write { place } => (WRITE, place),
        };
        if sent < HEADER {
            let mut head = [0; HEADER];
            head[..4].copy_from_slice(&REQUEST.to_be_bytes());
            head[6..8].copy_from_slice(&command.to_be_bytes());
            head[8..16].copy_from_slice(&COOKIE);
            head[16..24].copy_from_slice(&(place * u64::from(self.bytes)).to_be_bytes());
            head[24..].copy_from_slice(&self.bytes.to_be_bytes());
            to.extend_from_slice(&head[sent..end.min(HEADER)]);
        }
        let payload = end.saturating_sub(sent.max(HEADER));
        to.resize(to.len() + payload, b'.');
    }
}

/// A request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum NbdRequest {
    /// The handshake.
    Hello,
    /// Reads at `place`, counted in operations.
    Read { place: u64 },
    /// Writes at `place`, counted in operations.
    Write { place: u64 },
}

/// Bytes of a request without its payload.
const HEADER: usize = 28;
/// Bytes of a reply without its payload.
const REPLY: usize = 16;
/// Bytes of the server's part of the handshake: magic numbers and flags, then size and flags of the export.
const GREETING: usize = 18 + 10;
const REQUEST: u32 = 0x2560_9513;
const SIMPLE_REPLY: u32 = 0x6744_6698;
const READ: u16 = 0;
const WRITE: u16 = 1;
/// The cookie of every request; a connection has only one outstanding.
const COOKIE: [u8; 8] = *b"napkin..";
/// Flags: fixed newstyle, no zeroes; then the option `EXPORT_NAME` with the empty name.
const HELLO: &[u8; 20] = b"\0\0\0\x03IHAVEOPT\0\0\0\x01\0\0\0\0";

/// Parses one reply after another.
#[derive(Debug, Clone, Default)]
pub(super) struct Replies {
    head: [u8; GREETING],
    /// Bytes of the head received so far.
    received: usize,
    /// Bytes of a read's data still to come behind the head.
    left: usize,
}

impl Replies {
    /// Consumes bytes up to the end of the reply to a request. Returns how many, which is all of them unless the
    /// reply ended, and the answer if it is complete.
    ///
    /// # Errors
    /// The fault in the bytes.
    pub(super) fn feed(
        &mut self,
        disk: &Disk,
        what: NbdRequest,
        bytes: &[u8],
    ) -> Result<(usize, Option<Answer>), Fault> {
        let length = if what == NbdRequest::Hello { GREETING } else { REPLY };
        let head = bytes.len().min(length - self.received.min(length));
        if head > 0 {
            self.head[self.received..self.received + head].copy_from_slice(&bytes[..head]);
            self.received += head;
            if self.received < length {
                return Ok((head, None));
            }
            match self.judge(disk, what)? {
                Answer::Bytes => {}
                refused => return Ok((head, Some(self.end(refused)))),
            }
            self.left = match what {
                NbdRequest::Read { .. } => disk.bytes as usize,
                NbdRequest::Hello | NbdRequest::Write { .. } => 0,
            };
        }
        let data = self.left.min(bytes.len() - head);
        self.left -= data;
        let whole = self.received == length && self.left == 0;
        Ok((head + data, whole.then(|| self.end(Answer::Bytes))))
    }

    fn end(&mut self, answer: Answer) -> Answer {
        (self.received, self.left) = (0, 0);
        answer
    }

    /// Evaluates a complete head: `Bytes` if the data follows, or a refusal.
    fn judge(&self, disk: &Disk, what: NbdRequest) -> Result<Answer, Fault> {
        let number =
            |at: usize| u32::from_be_bytes(std::array::from_fn(|byte| self.head[at + byte]));
        if what == NbdRequest::Hello {
            if self.head[..16] != *b"NBDMAGICIHAVEOPT" {
                return Err(Fault::OtherReply);
            }
            let size = u64::from(number(18)) << 32 | u64::from(number(22));
            return if size < disk.within { Err(Fault::BadSize) } else { Ok(Answer::Bytes) };
        }
        if number(0) != SIMPLE_REPLY || self.head[8..REPLY] != COOKIE {
            return Err(Fault::OtherReply);
        }
        let refused = Answer::Refused(Refusal::ServerError);
        Ok(if number(4) == 0 { Answer::Bytes } else { refused })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const DISK: Disk = Disk { bytes: 4_096, within: 1 << 20 };

    fn greeting(size: u64) -> Vec<u8> {
        [&b"NBDMAGICIHAVEOPT\0\x03"[..], &size.to_be_bytes(), &[0, 3]].concat()
    }

    fn reply(error: u32) -> Vec<u8> {
        [&SIMPLE_REPLY.to_be_bytes()[..], &error.to_be_bytes(), &COOKIE].concat()
    }

    #[test]
    fn a_question_may_be_sent_in_any_pieces() {
        let mut header = [&REQUEST.to_be_bytes()[..], &[0, 0, 0, 1], &COOKIE].concat();
        header.extend([0, 0, 0, 0, 0, 0, 0x30, 0, 0, 0, 0x10, 0]);
        let whole = [header, vec![b'.'; 4_096]].concat();
        let write = NbdRequest::Write { place: 3 };
        assert_eq!(DISK.length(write), whole.len());
        for most in [1, 7, 28, 29, 4_000, 10_000] {
            let mut put = Vec::new();
            while put.len() < whole.len() {
                DISK.put(write, put.len(), most, &mut put);
            }
            assert!(put == whole, "{most} at a time");
        }
        let mut read = Vec::new();
        DISK.put(NbdRequest::Read { place: 0 }, 0, 10_000, &mut read);
        assert_eq!((read.len(), read[7]), (28, 0));
    }

    #[test]
    fn answers_are_read_wherever_they_are_cut_and_nothing_beyond() {
        let read = NbdRequest::Read { place: 0 };
        for (what, answer, answered) in [
            (NbdRequest::Hello, greeting(1 << 20), Answer::Bytes),
            (read, [reply(0), vec![9; 4_096]].concat(), Answer::Bytes),
            (NbdRequest::Write { place: 0 }, reply(0), Answer::Bytes),
            (read, reply(5), Answer::Refused(Refusal::ServerError)),
        ] {
            for cut in 1..answer.len() {
                let mut replies = Replies::default();
                assert_eq!(replies.feed(&DISK, what, &answer[..cut]), Ok((cut, None)));
                // Bytes behind the reply are not consumed.
                let rest = [&answer[cut..], b"more"].concat();
                let end = replies.feed(&DISK, what, &rest);
                assert_eq!(end, Ok((answer.len() - cut, Some(answered))), "{what:?} cut at {cut}");
            }
        }
    }

    #[test]
    fn what_is_no_answer_is_named() {
        let feed = |what, bytes: &[u8]| Replies::default().feed(&DISK, what, bytes);
        let hello = NbdRequest::Hello;
        assert_eq!(feed(hello, &greeting((1 << 20) - 1)), Err(Fault::BadSize), "a smaller disk");
        assert_eq!(feed(hello, b"HTTP/1.1 400 Bad Request\r\nServer: x"), Err(Fault::OtherReply));
        let mut other = reply(0);
        other[8] ^= 1;
        assert_eq!(feed(NbdRequest::Write { place: 1 }, &other), Err(Fault::OtherReply));
    }
}
