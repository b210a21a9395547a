//! One HTTP connection: reads a request, sends an answer, and closes; each within a bound of bytes and time.

use std::io::{self, ErrorKind};
use std::os::fd::{AsFd, BorrowedFd};

use rustix::event::PollFlags;

use crate::listener::Stream;
use crate::request::{self, LONGEST, Refusal, Request};

/// The maximum duration of a connection, in nanoseconds.
const TIMEOUT: u64 = 5_000_000_000;

/// The time before that limit, in nanoseconds, at which an incomplete request is answered as too slow.
const REFUSAL_MARGIN: u64 = 1_000_000_000;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Phase {
    /// Receiving the request.
    Reading,
    /// Sending the answer.
    Writing,
    /// The answer is sent. Further input is read and dropped, as closing with unread bytes would reset the
    /// connection and discard the answer.
    Draining,
    /// Closed or failed.
    Closed,
}

/// A scraper's connection, from its request to the end of the answer.
#[derive(Debug)]
pub(crate) struct Client {
    stream: Box<dyn Stream>,
    phase: Phase,
    input: Vec<u8>,
    output: Vec<u8>,
    sent: usize,
    ends_ns: u64,
}

impl Client {
    pub(crate) fn new(stream: Box<dyn Stream>, now: u64) -> Client {
        let (input, output) = (Vec::new(), Vec::new());
        Client { stream, phase: Phase::Reading, input, output, sent: 0, ends_ns: now + TIMEOUT }
    }

    pub(crate) fn fd(&self) -> BorrowedFd<'_> {
        self.stream.as_fd()
    }

    /// The poll events that it waits for.
    pub(crate) fn interest(&self) -> PollFlags {
        if self.phase == Phase::Writing { PollFlags::OUT } else { PollFlags::IN }
    }

    /// Its next deadline, in nanoseconds of the monotonic clock.
    pub(crate) fn due_ns(&self) -> u64 {
        if self.phase == Phase::Reading { self.ends_ns - REFUSAL_MARGIN } else { self.ends_ns }
    }

    pub(crate) fn closed(&self) -> bool {
        self.phase == Phase::Closed
    }

    /// Advances as far as the socket allows; `metrics` produces the answer to a valid request. A connection
    /// that fails or times out is closed.
    pub(crate) fn advance(&mut self, now: u64, metrics: &mut dyn FnMut(Request) -> Vec<u8>) {
        if now >= self.ends_ns {
            self.phase = Phase::Closed;
        } else if self.phase == Phase::Reading && now >= self.due_ns() {
            self.refuse(Refusal::TooSlow);
        }
        loop {
            let before = self.phase;
            let done = match before {
                Phase::Reading => self.read(metrics),
                Phase::Writing => self.write(),
                Phase::Draining => self.drain(),
                Phase::Closed => return,
            };
            match done {
                Ok(()) if self.phase != before => {}
                Ok(()) => return,
                Err(error) if error.kind() == ErrorKind::WouldBlock => return,
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(_) => self.phase = Phase::Closed,
            }
        }
    }

    fn refuse(&mut self, refusal: Refusal) {
        let reason = refusal.reason();
        self.reply(request::answer(refusal.status(), "text/plain; charset=utf-8", reason, true));
    }

    fn reply(&mut self, answer: Vec<u8>) {
        (self.output, self.phase) = (answer, Phase::Writing);
    }

    fn read(&mut self, metrics: &mut dyn FnMut(Request) -> Vec<u8>) -> io::Result<()> {
        let mut part = [0; 1_024];
        while self.phase == Phase::Reading {
            let room = part.len().min(LONGEST - self.input.len());
            let read = self.stream.read(&mut part[..room])?;
            self.input.extend_from_slice(&part[..read]);
            match request::parse(&self.input) {
                // The peer has closed its side without a complete request.
                Request::More if read == 0 => self.phase = Phase::Closed,
                Request::More => {}
                Request::Refused(refusal) => self.refuse(refusal),
                wanted => self.reply(metrics(wanted)),
            }
        }
        Ok(())
    }

    fn write(&mut self) -> io::Result<()> {
        while let Some(rest) = self.output.get(self.sent..).filter(|rest| !rest.is_empty()) {
            match self.stream.write(rest)? {
                0 => return Err(ErrorKind::WriteZero.into()),
                sent => self.sent += sent,
            }
        }
        self.output = Vec::new();
        self.stream.finish()?;
        self.phase = Phase::Draining;
        Ok(())
    }

    fn drain(&mut self) -> io::Result<()> {
        let mut rest = [0; 1_024];
        // Bounded for each call, as other clients wait.
        for _ in 0..16 {
            if self.stream.read(&mut rest)? == 0 {
                self.phase = Phase::Closed;
                break;
            }
        }
        Ok(())
    }
}
