//! A client of the NBD protocol that knows nothing of napkin.

use std::io::{Read, Write};
use std::net::TcpStream;

pub(super) const READ: u16 = 0;
pub(super) const WRITE: u16 = 1;
pub(super) const FLUSH: u16 = 3;
pub(super) const TRIM: u16 = 4;
pub(super) const WRITE_ZEROES: u16 = 6;
pub(super) const FUA: u16 = 1;
pub(super) const NO_HOLE: u16 = 2;

/// A connection that uses simple replies.
pub(super) struct Client(pub(super) TcpStream);

impl Client {
    #[track_caller]
    pub(super) fn send(&mut self, bytes: &[u8]) {
        self.0.write_all(bytes).expect("it takes it");
    }

    #[track_caller]
    pub(super) fn take(&mut self, bytes: usize) -> Vec<u8> {
        let mut taken = vec![0; bytes];
        self.0.read_exact(&mut taken).expect("an answer");
        taken
    }

    /// Sends a request, whose reply must be without an error.
    #[track_caller]
    pub(super) fn ask(
        &mut self,
        command: u16,
        flags: u16,
        at: u64,
        length: usize,
        payload: &[u8],
    ) -> Vec<u8> {
        self.send(&[&request(command, flags, at, length)[..], payload].concat());
        let head = self.take(16);
        assert_eq!(head[..8], *b"\x67\x44\x66\x98\0\0\0\0", "the reply's head");
        self.take(if command == READ { length } else { 0 })
    }

    #[track_caller]
    pub(super) fn write(&mut self, flags: u16, at: u64, bytes: &[u8]) {
        self.ask(WRITE, flags, at, bytes.len(), bytes);
    }

    #[track_caller]
    pub(super) fn read(&mut self, at: u64, length: usize) -> Vec<u8> {
        self.ask(READ, 0, at, length, b"")
    }
}

pub(super) fn request(command: u16, flags: u16, at: u64, length: usize) -> Vec<u8> {
    let (flags, command) = (flags.to_be_bytes(), command.to_be_bytes());
    let head = [&0x2560_9513u32.to_be_bytes()[..], &flags, &command, &[7; 8]].concat();
    [&head[..], &at.to_be_bytes(), &(length as u32).to_be_bytes()].concat()
}
