//! What is asked on one connection, and what it makes of the answers.

use std::sync::atomic::{AtomicUsize, Ordering};

use napkin_os::clock;
use napkin_traffic::Rng;

use super::answer::{Answer, Asked, Parser};
use super::config::{Asks, Config};
use super::disk::{Question, Replies};
use super::figures::Trouble;
use super::records::Records;

/// What all threads of a client share.
#[derive(Debug)]
pub(super) struct Common {
    pub(super) config: Config,
    pub(super) records: Records,
    /// The next record of a store that is filled.
    pub(super) turn: AtomicUsize,
}

impl Common {
    pub(super) fn new(config: Config) -> Common {
        let records = Records::new(config.records, config.seed);
        Common { config, records, turn: AtomicUsize::new(0) }
    }
}

/// Bytes of a request that are made up at a time, where it need not be whole.
const PIECE: usize = 64 * 1_024;

/// A request that was made up.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(super) struct Request {
    /// Of a disk the place.
    pub(super) record: usize,
    /// Of a disk, it writes.
    pub(super) set: bool,
    /// It is a disk's handshake, which is in no count.
    pub(super) hello: bool,
    /// The time that its latency counts from.
    pub(super) intended: u64,
    /// When its first byte was given to the socket.
    pub(super) sent: u64,
}

impl Request {
    /// The same of a disk.
    fn question(&self) -> Question {
        match (self.hello, self.set) {
            (true, _) => Question::Hello,
            (_, true) => Question::Write { place: self.record as u64 },
            (_, false) => Question::Read { place: self.record as u64 },
        }
    }
}

/// What a connection is at.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Phase {
    /// It can send.
    Free,
    /// The socket has taken so many bytes of the request and is full.
    Sending(usize),
    /// The request is sent.
    Waiting,
    /// It was lost, and is being made again.
    Connecting,
}

/// One connection's requests, one at a time, and its answers.
#[derive(Debug)]
pub(super) struct Talk {
    parser: Parser,
    replies: Replies,
    pub(super) phase: Phase,
    /// The request outstanding, in the phases that have one.
    pub(super) request: Request,
    /// Draws what to ask.
    choice: Rng,
}

impl Talk {
    /// On a free connection.
    pub(super) fn new(choice: Rng) -> Talk {
        let (parser, replies) = (Parser::default(), Replies::default());
        Talk { parser, replies, phase: Phase::Free, request: Request::default(), choice }
    }

    /// Makes up a request, which is to be sent. Whether there is one: not once a store is filled.
    pub(super) fn ask(&mut self, common: &Common, intended: u64) -> bool {
        let Common { config, records, turn } = common;
        let drawn = |choice: &mut Rng, among: u64| {
            let set = choice.unit() < config.update;
            (choice.below(among) as usize, set)
        };
        let (record, set) = match config.asks {
            Asks::Records | Asks::Echo(_) => drawn(&mut self.choice, records.len() as u64),
            Asks::Disk(disk) => drawn(&mut self.choice, disk.places()),
            Asks::Fill => (turn.fetch_add(1, Ordering::Relaxed), true),
        };
        if config.asks == Asks::Fill && record >= records.len() {
            return false;
        }
        self.request = Request { record, set, hello: false, intended, sent: clock::now() };
        self.phase = Phase::Sending(0);
        true
    }

    /// The same for the connection's handshake.
    pub(super) fn greet(&mut self) {
        self.request.hello = true;
        self.phase = Phase::Sending(0);
    }

    /// What is next to be sent of the request, in `into`; nothing else is in it then. Whether there is
    /// anything.
    pub(super) fn put(&self, common: &Common, into: &mut Vec<u8>) -> bool {
        into.clear();
        let Talk { phase: Phase::Sending(sent), request, .. } = *self else { return false };
        let Common { config, records, .. } = common;
        match config.asks {
            Asks::Disk(disk) => disk.put(request.question(), sent, PIECE, into),
            Asks::Echo(bytes) => into.resize((bytes as usize - sent).min(PIECE), b'.'),
            Asks::Records | Asks::Fill => {
                match request.set {
                    true => records.put_set(request.record, true, into),
                    false => records.put_get(request.record, into),
                }
                into.drain(..sent);
            }
        }
        true
    }

    /// So many bytes of the request were taken, of as many as were put. Whether the rest is to follow when
    /// there is room.
    pub(super) fn sent(&mut self, asks: Asks, bytes: usize, put: usize) -> bool {
        let length = self.length(asks);
        if let Phase::Sending(sent) = &mut self.phase {
            *sent += bytes;
            // Of records all was put.
            if length.map_or(bytes == put, |length| *sent >= length) {
                self.phase = Phase::Waiting;
            }
        }
        bytes < put
    }

    /// Bytes of the request; `None` of records, whose requests are put whole.
    fn length(&self, asks: Asks) -> Option<usize> {
        match asks {
            Asks::Records | Asks::Fill => None,
            Asks::Echo(bytes) => Some(bytes as usize),
            Asks::Disk(disk) => Some(disk.length(self.request.question())),
        }
    }

    /// Takes what has come: the answer, once it is there.
    ///
    /// # Errors
    /// What makes the connection useless.
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
            Asks::Disk(disk) => self.replies.feed(&disk, request.question(), bytes),
            Asks::Echo(length) => parser.feed(Asked::Bytes(length), bytes),
            Asks::Records | Asks::Fill => {
                parser.feed(records.asked(request.record, request.set), bytes)
            }
        };
        match fed {
            Ok((_, None)) => Ok(None),
            Ok((taken, Some(answer))) if taken == bytes.len() && self.phase == Phase::Waiting => {
                Ok(Some(answer))
            }
            // There is more, or it is the answer to a request that is not all sent.
            Ok(_) => Err(Trouble::NotAsked),
            Err(fault) => Err(Trouble::Fault(fault)),
        }
    }

    /// Whether it waits for an answer.
    pub(super) fn is_outstanding(&self) -> bool {
        matches!(self.phase, Phase::Sending(_) | Phase::Waiting)
    }

    /// The connection is of no use any more.
    pub(super) fn lost(&mut self) {
        self.phase = Phase::Connecting;
        (self.parser, self.replies) = (Parser::default(), Replies::default());
    }
}
