//! One HTTP connection: reads a request, sends an answer, and closes; each within a bound of bytes and time.

use std::io::{self, ErrorKind};
use std::os::fd::{AsFd, BorrowedFd};

use rustix::event::PollFlags;

use crate::listener::Stream;
use crate::request::{self, LONGEST, Refusal, Request};

/// The maximum duration of a connection, in nanoseconds.
const PATIENCE: u64 = 5_000_000_000;

/// The time before that limit, in nanoseconds, at which an incomplete request is answered as too slow.
const LAST_WORD: u64 = 1_000_000_000;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum At {
    /// Receiving the request.
    Asking,
    /// Sending the answer.
    Answering,
    /// The answer is sent. Further input is read and dropped, as closing with unread bytes would reset the
    /// connection and discard the answer.
    Leaving,
    /// Closed or failed.
    Gone,
}

/// A scraper's connection, from its request to the end of the answer.
#[derive(Debug)]
pub(crate) struct Client {
    stream: Box<dyn Stream>,
    at: At,
    input: Vec<u8>,
    output: Vec<u8>,
    sent: usize,
    ends_ns: u64,
}

impl Client {
    pub(crate) fn new(stream: Box<dyn Stream>, now: u64) -> Client {
        let (input, output) = (Vec::new(), Vec::new());
        Client { stream, at: At::Asking, input, output, sent: 0, ends_ns: now + PATIENCE }
    }

    pub(crate) fn fd(&self) -> BorrowedFd<'_> {
        self.stream.as_fd()
    }

    /// The poll events that it waits for.
    pub(crate) fn interest(&self) -> PollFlags {
        if self.at == At::Answering { PollFlags::OUT } else { PollFlags::IN }
    }

    /// Its next deadline, in nanoseconds of the monotonic clock.
    pub(crate) fn due_ns(&self) -> u64 {
        if self.at == At::Asking { self.ends_ns - LAST_WORD } else { self.ends_ns }
    }

    pub(crate) fn gone(&self) -> bool {
        self.at == At::Gone
    }

    /// Advances as far as the socket allows; `metrics` produces the answer to a valid request. A connection
    /// that fails or times out is gone.
    pub(crate) fn advance(&mut self, now: u64, metrics: &mut dyn FnMut(Request) -> Vec<u8>) {
        if now >= self.ends_ns {
            self.at = At::Gone;
        } else if self.at == At::Asking && now >= self.due_ns() {
            self.refuse(Refusal::TooSlow);
        }
        loop {
            let before = self.at;
            let done = match before {
                At::Asking => self.ask(metrics),
                At::Answering => self.answer(),
                At::Leaving => self.leave(),
                At::Gone => return,
            };
            match done {
                Ok(()) if self.at != before => {}
                Ok(()) => return,
                Err(error) if error.kind() == ErrorKind::WouldBlock => return,
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(_) => self.at = At::Gone,
            }
        }
    }

    fn refuse(&mut self, refusal: Refusal) {
        let reason = refusal.reason();
        self.reply(request::answer(refusal.status(), "text/plain; charset=utf-8", reason, true));
    }

    fn reply(&mut self, answer: Vec<u8>) {
        (self.output, self.at) = (answer, At::Answering);
    }

    fn ask(&mut self, metrics: &mut dyn FnMut(Request) -> Vec<u8>) -> io::Result<()> {
        let mut part = [0; 1_024];
        while self.at == At::Asking {
            let room = part.len().min(LONGEST - self.input.len());
            let read = self.stream.read(&mut part[..room])?;
            self.input.extend_from_slice(&part[..read]);
            match request::parse(&self.input) {
                // The peer has closed its side without a complete request.
                Request::More if read == 0 => self.at = At::Gone,
                Request::More => {}
                Request::Refused(refusal) => self.refuse(refusal),
                wanted => self.reply(metrics(wanted)),
            }
        }
        Ok(())
    }

    fn answer(&mut self) -> io::Result<()> {
        while let Some(rest) = self.output.get(self.sent..).filter(|rest| !rest.is_empty()) {
            match self.stream.write(rest)? {
                0 => return Err(ErrorKind::WriteZero.into()),
                sent => self.sent += sent,
            }
        }
        self.output = Vec::new();
        self.stream.finish()?;
        self.at = At::Leaving;
        Ok(())
    }

    fn leave(&mut self) -> io::Result<()> {
        let mut rest = [0; 1_024];
        // Bounded for each call, as other clients wait.
        for _ in 0..16 {
            if self.stream.read(&mut rest)? == 0 {
                self.at = At::Gone;
                break;
            }
        }
        Ok(())
    }
}
