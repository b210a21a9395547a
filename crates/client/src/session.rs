//! The requests and answers of one connection.

use std::sync::atomic::{AtomicUsize, Ordering};

use napkin_os::clock;
use napkin_traffic::Rng;

use super::answer::{Answer, Parser, PendingRequest};
use super::config::{Config, RequestKind};
use super::disk::{NbdRequest, Replies};
use super::figures::Trouble;
use super::records::Records;

/// The state shared by all threads of a client.
#[derive(Debug)]
pub(super) struct Common {
    pub(super) config: Config,
    pub(super) records: Records,
    /// The next record to set while a store is filled.
    pub(super) turn: AtomicUsize,
}

impl Common {
    pub(super) fn new(config: Config) -> Common {
        let records = Records::new(config.records, config.seed);
        Common { config, records, turn: AtomicUsize::new(0) }
    }
}

/// Most bytes of a request that are generated at a time, where it need not be whole.
const PIECE: usize = 64 * 1_024;

/// A prepared request.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(super) struct Request {
    /// The record; for a disk, the place.
    pub(super) record: usize,
    /// Whether it is a set; for a disk, a write.
    pub(super) set: bool,
    /// Whether it is a disk's handshake, which is not counted.
    pub(super) hello: bool,
    /// The time from which its latency counts.
    pub(super) intended: u64,
    /// When its first byte was offered to the socket.
    pub(super) sent: u64,
}

impl Request {
    /// The request in terms of a disk.
    fn nbd_request(&self) -> NbdRequest {
        match (self.hello, self.set) {
            (true, _) => NbdRequest::Hello,
            (_, true) => NbdRequest::Write { place: self.record as u64 },
            (_, false) => NbdRequest::Read { place: self.record as u64 },
        }
    }
}

/// The phase of a connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Phase {
    /// No request is outstanding.
    Free,
    /// The socket has taken this many bytes of the request.
    Sending(usize),
    /// The request was sent.
    Waiting,
    /// The connection was lost and is being re-established.
    Connecting,
}

/// One connection's requests, one at a time, and the parser of its answers.
#[derive(Debug)]
pub(super) struct Session {
    parser: Parser,
    replies: Replies,
    pub(super) phase: Phase,
    /// The outstanding request, in the phases that have one.
    pub(super) request: Request,
    /// Draws the requests.
    choice: Rng,
}

impl Session {
    /// The state of a free connection.
    pub(super) fn new(choice: Rng) -> Session {
        let (parser, replies) = (Parser::default(), Replies::default());
        Session { parser, replies, phase: Phase::Free, request: Request::default(), choice }
    }

    /// Prepares a request. Returns whether there is one; there is none once a store is filled.
    pub(super) fn ask(&mut self, common: &Common, intended: u64) -> bool {
        let Common { config, records, turn } = common;
        let drawn = |choice: &mut Rng, count: u64| {
            let set = choice.unit() < config.update;
            (choice.below(count) as usize, set)
        };
        let (record, set) = match config.asks {
            RequestKind::Records | RequestKind::Echo(_) => {
                drawn(&mut self.choice, records.len() as u64)
            }
            RequestKind::Disk(disk) => drawn(&mut self.choice, disk.places()),
            RequestKind::Fill => (turn.fetch_add(1, Ordering::Relaxed), true),
        };
        if config.asks == RequestKind::Fill && record >= records.len() {
            return false;
        }
        self.request = Request { record, set, hello: false, intended, sent: clock::now() };
        self.phase = Phase::Sending(0);
        true
    }

    /// Prepares the connection's handshake.
    pub(super) fn greet(&mut self) {
        self.request.hello = true;
        self.phase = Phase::Sending(0);
    }

    /// Replaces `into` with the next bytes of the request. Returns whether there are any.
    pub(super) fn put(&self, common: &Common, into: &mut Vec<u8>) -> bool {
        into.clear();
        let Session { phase: Phase::Sending(sent), request, .. } = *self else { return false };
        let Common { config, records, .. } = common;
        match config.asks {
            RequestKind::Disk(disk) => disk.put(request.nbd_request(), sent, PIECE, into),
            RequestKind::Echo(bytes) => into.resize((bytes as usize - sent).min(PIECE), b'.'),
            RequestKind::Records | RequestKind::Fill => {
                match request.set {
                    true => records.put_set(request.record, true, into),
                    false => records.put_get(request.record, into),
                }
                into.drain(..sent);
            }
        }
        true
    }

    /// Records that the socket took `bytes` of the `put` bytes offered. Returns whether the rest must wait until
    /// the socket has room.
    pub(super) fn sent(&mut self, asks: RequestKind, bytes: usize, put: usize) -> bool {
        let length = self.length(asks);
        if let Phase::Sending(sent) = &mut self.phase {
            *sent += bytes;
            // A request to memcached is offered whole.
            if length.map_or(bytes == put, |length| *sent >= length) {
                self.phase = Phase::Waiting;
            }
        }
        bytes < put
    }

    /// Length of the request in bytes; `None` for memcached, whose requests are offered whole.
    fn length(&self, asks: RequestKind) -> Option<usize> {
        match asks {
            RequestKind::Records | RequestKind::Fill => None,
            RequestKind::Echo(bytes) => Some(bytes as usize),
            RequestKind::Disk(disk) => Some(disk.length(self.request.nbd_request())),
        }
    }

    /// Processes received bytes; returns the answer once it is complete.
    ///
    /// # Errors
    /// A fault that makes the connection unusable.
    pub(super) fn read(
        &mut self,
        common: &Common,
        bytes: &[u8],
    ) -> Result<Option<Answer>, Trouble> {
        if !self.is_outstanding() {
            return Err(Trouble::NotAsked);
        }
        let Common { config, records, .. } = common;
        let (parser, request) = (&mut self.parser, self.request);
        let fed = match config.asks {
            RequestKind::Disk(disk) => self.replies.feed(&disk, request.nbd_request(), bytes),
            RequestKind::Echo(length) => parser.feed(PendingRequest::Bytes(length), bytes),
            RequestKind::Records | RequestKind::Fill => {
                parser.feed(records.asked(request.record, request.set), bytes)
            }
        };
        match fed {
            Ok((_, None)) => Ok(None),
            Ok((taken, Some(answer))) if taken == bytes.len() && self.phase == Phase::Waiting => {
                Ok(Some(answer))
            }
            // Surplus bytes, or an answer before the request was sent completely.
            Ok(_) => Err(Trouble::NotAsked),
            Err(fault) => Err(Trouble::Fault(fault)),
        }
    }

    /// Whether a request is outstanding.
    pub(super) fn is_outstanding(&self) -> bool {
        matches!(self.phase, Phase::Sending(_) | Phase::Waiting)
    }

    /// Marks the connection as lost.
    pub(super) fn lost(&mut self) {
        self.phase = Phase::Connecting;
        (self.parser, self.replies) = (Parser::default(), Replies::default());
    }
}
