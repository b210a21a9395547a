//! The transmission phase of a connection: its requests in flight, and their replies.
//!
//! A request is split into operations of at most [`PIECE`] bytes, and [`WINDOW`] bounds the bytes in flight, so
//! that the memory of a connection does not depend on the size of its requests.

use std::collections::HashMap;
use std::sync::Arc;

use super::operations::{Inbox, Operations};
use super::store::{Action, BlockStore, Ended, StoreError};
use super::wire::{self, Header, chunk, command};
use super::{Export, PAYLOAD_LIMIT};
use crate::Served;

/// Largest read or write operation in bytes.
pub(super) const PIECE: usize = 256 * 1_024;
/// Limit of the bytes of a connection's operations in flight plus its unsent replies.
pub(super) const WINDOW: usize = 1_024 * 1_024;
/// Most requests of a connection in flight.
pub(super) const REQUESTS: usize = 128;

/// An error number of the protocol, with a message for people.
type Refusal = (u32, &'static str);

const NOT_PERMITTED: u32 = 1;
const INPUT_OUTPUT: u32 = 5;
const INVALID: u32 = 22;
const NO_SPACE: u32 = 28;
const OVERFLOW: u32 = 75;

fn refusal(error: StoreError) -> Refusal {
    match error {
        StoreError::Io => (INPUT_OUTPUT, "the device could not do it"),
        StoreError::NoSpace => (NO_SPACE, "no room is left on the device"),
        StoreError::NotPermitted => (NOT_PERMITTED, "the device does not permit it"),
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Kind {
    Read,
    Write,
    Flush,
    Trim,
    Zero { hole: bool },
}

/// A request that has not been answered.
#[derive(Debug)]
struct Request {
    cookie: u64,
    kind: Kind,
    /// Whether a flush must precede the reply (force unit access).
    durable: bool,
    /// The part that has not begun: offset, and bytes (`left`).
    offset: u64,
    left: u64,
    /// Operations in flight.
    under_way: u32,
    failed: Option<StoreError>,
    /// Whether it is a read of several pieces with simple replies, which cannot be interleaved with others.
    exclusive: bool,
    /// Whether data was sent. After the header of a simple reply, an error can no longer be reported.
    sent: bool,
}

/// A connection in the transmission phase.
#[derive(Debug)]
pub(super) struct Transmission {
    structured: bool,
    inbox: Arc<Inbox>,
    requests: HashMap<u64, Request>,
    next: u64,
    /// The request that has not begun completely; later ones wait for it.
    current: Option<u64>,
    /// Payload of a write, up to one piece.
    payload: Vec<u8>,
    /// Bytes of a refused write's payload still to be discarded, the request's cookie, and the error.
    discard: Option<(u32, u64, Refusal)>,
    /// Bytes of operations in flight.
    held: usize,
    /// Whether an error occurred that no reply can report.
    broken: bool,
}

impl Transmission {
    pub(super) fn new(inbox: Arc<Inbox>, structured: bool) -> Transmission {
        Transmission {
            structured,
            inbox,
            requests: HashMap::new(),
            next: 0,
            current: None,
            payload: Vec::new(),
            discard: None,
            held: 0,
            broken: false,
        }
    }

    /// Whether nothing more may be sent.
    pub(super) fn is_broken(&self) -> bool {
        self.broken
    }

    /// Whether a completely received request still awaits its reply.
    pub(super) fn has_pending(&self) -> bool {
        !self.broken && self.requests.iter().any(|(key, _)| !self.is_incoming(*key))
    }

    /// Whether the request is a write whose payload is incomplete.
    fn is_incoming(&self, key: u64) -> bool {
        self.current == Some(key)
            && self.requests.get(&key).is_some_and(|request| request.kind == Kind::Write)
    }

    /// Answers completed operations, and begins as many as there is room for.
    pub(super) fn proceed<S: BlockStore>(
        &mut self,
        operations: &mut Operations<S>,
        output: &mut Vec<u8>,
    ) {
        for (key, ended) in self.inbox.take() {
            self.settle(key, ended, operations, output);
        }
        self.advance(operations, output);
    }

    /// Serves the request or payload at the start of `input`.
    pub(super) fn serve<S: BlockStore>(
        &mut self,
        export: &Export,
        input: &[u8],
        operations: &mut Operations<S>,
        output: &mut Vec<u8>,
    ) -> Served {
        if self.broken {
            return Served::Close;
        }
        if let Some((left, cookie, refusal)) = self.discard {
            let bytes = left.min(u32::try_from(input.len()).unwrap_or(u32::MAX));
            self.discard = Some((left - bytes, cookie, refusal)).filter(|_| bytes < left);
            if self.discard.is_none() {
                self.refuse(cookie, refusal, output);
            }
            return Served::Continued(bytes as usize);
        }
        match self.current {
            Some(key) if self.is_incoming(key) => {
                return self.take_payload(key, input, operations, output);
            }
            Some(_) => return Served::Wait,
            None => {}
        }
        if wire::u32_of(input).is_some_and(|(magic, _)| magic != wire::REQUEST) {
            return Served::Close;
        }
        let Some(header) = Header::of(input) else { return Served::More };
        if header.command == command::DISCONNECT {
            // Requests in flight are answered first.
            return if self.requests.is_empty() { Served::Close } else { Served::Wait };
        }
        if header.command == command::WRITE && header.length > PAYLOAD_LIMIT {
            return Served::Close;
        }
        // Nothing may be sent between the pieces of a large simple read, including the last.
        let exclusive = self.requests.len() == 1 && self.requests.values().any(|it| it.exclusive);
        if exclusive || self.requests.len() >= REQUESTS {
            return Served::Wait;
        }
        match self.check(export, &header) {
            Ok(kind) => self.begin(kind, &header, operations, output),
            Err(refusal) if header.command == command::WRITE && header.length > 0 => {
                self.discard = Some((header.length, header.cookie, refusal));
            }
            Err(refusal) => self.refuse(header.cookie, refusal, output),
        }
        Served::Request(wire::REQUEST_HEADER)
    }

    /// Returns what a request asks for, or the error to refuse it with.
    fn check(&self, export: &Export, header: &Header) -> Result<Kind, Refusal> {
        let (kind, flags) = match header.command {
            command::READ => (Kind::Read, 0),
            command::WRITE => (Kind::Write, 0),
            command::FLUSH => (Kind::Flush, 0),
            command::TRIM => (Kind::Trim, 0),
            command::WRITE_ZEROES => {
                let hole = header.flags & command::NO_HOLE == 0;
                (Kind::Zero { hole }, command::NO_HOLE)
            }
            _ => return Err((INVALID, "this command is not known")),
        };
        // Force unit access is accepted on any request, and matters only for writes.
        if header.flags & !(flags | command::FUA) != 0 {
            return Err((INVALID, "this command has no such flag"));
        }
        if kind == Kind::Flush {
            return match (header.offset, header.length) {
                (0, 0) => Ok(kind),
                _ => Err((INVALID, "a flush has neither offset nor length")),
            };
        }
        if export.read_only && kind != Kind::Read {
            return Err((NOT_PERMITTED, "the export is read-only"));
        }
        let end = header.offset.checked_add(u64::from(header.length));
        if end.is_none_or(|end| end > export.size) {
            let error = match kind {
                Kind::Write | Kind::Zero { .. } => NO_SPACE,
                _ => INVALID,
            };
            return Err((error, "the range ends beyond the export"));
        }
        if kind == Kind::Read && header.length > PAYLOAD_LIMIT {
            let error = if self.structured { OVERFLOW } else { INVALID };
            return Err((error, "more than 32 MiB are read at a time"));
        }
        Ok(kind)
    }

    /// Begins a request as far as there is room.
    fn begin<S: BlockStore>(
        &mut self,
        kind: Kind,
        header: &Header,
        operations: &mut Operations<S>,
        output: &mut Vec<u8>,
    ) {
        let key = self.next;
        self.next += 1;
        let request = Request {
            cookie: header.cookie,
            kind,
            durable: header.flags & command::FUA != 0 && kind != Kind::Read && kind != Kind::Flush,
            offset: header.offset,
            left: u64::from(header.length),
            under_way: 0,
            failed: None,
            exclusive: kind == Kind::Read && !self.structured && header.length as usize > PIECE,
            sent: false,
        };
        let empty = request.left == 0;
        self.requests.insert(key, request);
        match kind {
            Kind::Flush => self.operate(key, 0, Action::Flush, operations, output),
            _ if empty => self.conclude(key, operations, output),
            _ => {
                self.current = Some(key);
                self.advance(operations, output);
            }
        }
    }

    /// Begins as much of the current request as there is room for; a write waits for its payload.
    fn advance<S: BlockStore>(&mut self, operations: &mut Operations<S>, output: &mut Vec<u8>) {
        while let Some(key) = self.current
            && !self.broken
        {
            let Some(request) = self.requests.get_mut(&key) else { return };
            let (offset, left) = (request.offset, request.left);
            let action = match request.kind {
                Kind::Read => {
                    let piece = left.min(PIECE as u64) as usize;
                    let others = request.under_way > 0 || self.requests.len() > 1;
                    let exclusive =
                        self.requests.get(&key).is_some_and(|request| request.exclusive);
                    let full = self.held + output.len() + piece > WINDOW;
                    if (exclusive && others) || (full && self.held + output.len() > 0) {
                        return;
                    }
                    Action::Read(vec![0; piece])
                }
                Kind::Trim => Action::Trim(left),
                Kind::Zero { hole } => Action::Zero { length: left, hole },
                Kind::Write | Kind::Flush => return,
            };
            let bytes = match &action {
                Action::Read(bytes) => bytes.len() as u64,
                _ => left,
            };
            if self.mark_begun(key, bytes) {
                self.current = None;
            }
            self.operate(key, offset, action, operations, output);
        }
    }

    /// Marks `bytes` of a request as begun. Returns whether these were the last.
    fn mark_begun(&mut self, key: u64, bytes: u64) -> bool {
        let Some(request) = self.requests.get_mut(&key) else { return true };
        request.offset += bytes;
        request.left -= bytes;
        request.left == 0
    }

    /// Takes the payload of a write, and begins the write of each complete piece.
    fn take_payload<S: BlockStore>(
        &mut self,
        key: u64,
        input: &[u8],
        operations: &mut Operations<S>,
        output: &mut Vec<u8>,
    ) -> Served {
        let Some(request) = self.requests.get(&key) else { return Served::Close };
        let (offset, piece) = (request.offset, request.left.min(PIECE as u64) as usize);
        if self.payload.is_empty() {
            if self.held > 0 && self.held + piece > WINDOW {
                return Served::Wait;
            }
            self.payload.reserve_exact(piece);
        }
        let taken = input.len().min(piece - self.payload.len());
        self.payload.extend_from_slice(&input[..taken]);
        if self.payload.len() == piece {
            let payload = std::mem::take(&mut self.payload);
            if self.mark_begun(key, piece as u64) {
                self.current = None;
            }
            // After a failure, the rest of the payload is taken but not written.
            match self.requests.get(&key).is_some_and(|request| request.failed.is_some()) {
                true => self.conclude(key, operations, output),
                false => self.operate(key, offset, Action::Write(payload), operations, output),
            }
        }
        Served::Continued(taken)
    }

    /// Begins an operation of a request.
    fn operate<S: BlockStore>(
        &mut self,
        key: u64,
        offset: u64,
        action: Action,
        operations: &mut Operations<S>,
        output: &mut Vec<u8>,
    ) {
        let Some(request) = self.requests.get_mut(&key) else { return };
        request.under_way += 1;
        self.held += bytes_of(&action);
        if let Some(ended) = operations.begin(offset, action, &self.inbox, key) {
            self.settle(key, ended, operations, output);
        }
    }

    /// Handles a completed operation: sends data read, and the reply after the last operation.
    fn settle<S: BlockStore>(
        &mut self,
        key: u64,
        (operation, result): Ended,
        operations: &mut Operations<S>,
        output: &mut Vec<u8>,
    ) {
        self.held -= bytes_of(&operation.action);
        let Some(request) = self.requests.get_mut(&key) else { return };
        request.under_way -= 1;
        if let Err(error) = result {
            request.failed.get_or_insert(error);
            self.broken |= request.sent && !self.structured;
            if request.kind == Kind::Read {
                // The rest of a failed read is not needed.
                request.left = 0;
                self.current = self.current.filter(|current| *current != key);
            }
        }
        if let Action::Read(bytes) = &operation.action
            && request.failed.is_none()
        {
            let (cookie, sent) = (request.cookie, std::mem::replace(&mut request.sent, true));
            if self.structured {
                let last = request.left == 0 && request.under_way == 0;
                let flags = if last { chunk::DONE } else { 0 };
                let offset = operation.offset.to_be_bytes();
                wire::chunk(output, (flags, chunk::OFFSET_DATA), cookie, &[&offset, bytes]);
            } else {
                if !sent {
                    wire::simple_reply(output, cookie, 0);
                }
                output.extend_from_slice(bytes);
            }
        }
        self.conclude(key, operations, output);
    }

    /// Replies to a request if nothing of it is left to do.
    fn conclude<S: BlockStore>(
        &mut self,
        key: u64,
        operations: &mut Operations<S>,
        output: &mut Vec<u8>,
    ) {
        let Some(request) = self.requests.get_mut(&key) else { return };
        if request.left > 0 || request.under_way > 0 {
            return;
        }
        if request.failed.is_none() && std::mem::take(&mut request.durable) {
            return self.operate(key, 0, Action::Flush, operations, output);
        }
        let Some(request) = self.requests.remove(&key) else { return };
        let Request { cookie, kind, failed, sent, .. } = request;
        match (failed, kind) {
            // The connection is broken: nothing more may be sent.
            (Some(_), _) if sent && !self.structured => {}
            (Some(error), _) => self.refuse(cookie, refusal(error), output),
            (None, Kind::Read) if sent => {}
            (None, _) if self.structured => {
                wire::chunk(output, (chunk::DONE, chunk::NONE), cookie, &[]);
            }
            (None, _) => wire::simple_reply(output, cookie, 0),
        }
    }

    fn refuse(&self, cookie: u64, (error, why): Refusal, output: &mut Vec<u8>) {
        if self.structured {
            let (error, length) = (error.to_be_bytes(), (why.len() as u16).to_be_bytes());
            let payload: [&[u8]; 3] = [&error, &length, why.as_bytes()];
            wire::chunk(output, (chunk::DONE, chunk::ERROR), cookie, &payload);
        } else {
            wire::simple_reply(output, cookie, error);
        }
    }
}

/// Buffer bytes that an operation holds.
fn bytes_of(action: &Action) -> usize {
    match action {
        Action::Read(bytes) | Action::Write(bytes) => bytes.len(),
        Action::Flush | Action::Trim(_) | Action::Zero { .. } => 0,
    }
}
