//! Messages of the vhost-user protocol, and their transport over a Unix socket.
//!
//! A message is a header of three 32-bit words (request, flags, size), a payload of that size, and up to eight
//! descriptors that come with the header. The peer is not trusted: a message that is too long, has another version
//! or too many descriptors, or is not complete in time ends the connection, and unclaimed descriptors are closed.
//!
//! Why not the crate `vhost`: it adds fifteen other crates for what are two hundred lines, cannot abandon an
//! incomplete message, has no lap of a packed ring in a base, and its state machine covers thirty requests that a
//! NIC does not need.

use std::io::{self, IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, ReturnFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags,
};
use thiserror::Error;

use super::inflight::InflightAt;
use super::memory::RegionAt;
use super::sigbus::MAX_REGIONS;

/// Request numbers of the protocol.
#[allow(missing_docs)]
pub(super) mod request {
    pub(in super::super) const GET_FEATURES: u32 = 1;
    pub(in super::super) const SET_FEATURES: u32 = 2;
    pub(in super::super) const SET_OWNER: u32 = 3;
    pub(in super::super) const RESET_OWNER: u32 = 4;
    pub(in super::super) const SET_MEM_TABLE: u32 = 5;
    pub(in super::super) const SET_VRING_NUM: u32 = 8;
    pub(in super::super) const SET_VRING_ADDR: u32 = 9;
    pub(in super::super) const SET_VRING_BASE: u32 = 10;
    pub(in super::super) const GET_VRING_BASE: u32 = 11;
    pub(in super::super) const SET_VRING_KICK: u32 = 12;
    pub(in super::super) const SET_VRING_CALL: u32 = 13;
    pub(in super::super) const SET_VRING_ERR: u32 = 14;
    pub(in super::super) const GET_PROTOCOL_FEATURES: u32 = 15;
    pub(in super::super) const SET_PROTOCOL_FEATURES: u32 = 16;
    pub(in super::super) const GET_QUEUE_NUM: u32 = 17;
    pub(in super::super) const SET_VRING_ENABLE: u32 = 18;
    pub(in super::super) const GET_INFLIGHT_FD: u32 = 31;
    pub(in super::super) const SET_INFLIGHT_FD: u32 = 32;
}

const VERSION: u32 = 1;
const VERSION_MASK: u32 = 3;
const REPLY: u32 = 1 << 2;
const NEED_REPLY: u32 = 1 << 3;

/// Set in the payload of a kick, call or error request that comes without a descriptor.
pub(super) const NO_DESCRIPTOR: u64 = 1 << 8;

const HEADER: usize = 12;

/// The longest payload in bytes. A memory table has at most 264.
pub(super) const MAX_PAYLOAD: usize = 4096;

/// The most time from a message's first byte to its last, and from a request to the start of its answer.
const MESSAGE_TIME: Duration = Duration::from_secs(1);

/// A message in either direction.
#[derive(Debug)]
pub(super) struct Message {
    pub(super) request: u32,
    pub(super) flags: u32,
    pub(super) payload: Vec<u8>,
    pub(super) files: Vec<OwnedFd>,
}

impl Message {
    /// Makes a request.
    pub(super) fn ask(request: u32, payload: Vec<u8>, files: Vec<OwnedFd>) -> Message {
        Message { request, flags: VERSION, payload, files }
    }

    /// Makes the answer to a request.
    pub(super) fn reply(request: u32, payload: Vec<u8>) -> Message {
        Message { request, flags: VERSION | REPLY, payload, files: Vec::new() }
    }

    /// Whether the sender requests an acknowledgement.
    pub(super) fn needs_reply(&self) -> bool {
        self.flags & NEED_REPLY != 0
    }

    /// Whether it is an answer.
    pub(super) fn is_reply(&self) -> bool {
        self.flags & REPLY != 0
    }

    /// The payload as one 64-bit number; `None` for any other length.
    pub(super) fn number(&self) -> Option<u64> {
        self.payload[..].try_into().map(u64::from_ne_bytes).ok()
    }

    /// The payload as a ring index and a number.
    pub(super) fn ring_number(&self) -> Option<(u32, u32)> {
        let [index, number] = words(&self.payload)?;
        Some((index, number))
    }

    /// The payload as a memory table.
    pub(super) fn regions(&self) -> Option<Vec<RegionAt>> {
        let (head, rest) = self.payload.split_at_checked(8)?;
        let [count, _padding] = words(head)?;
        let count = usize::try_from(count).ok().filter(|it| (1..=MAX_REGIONS).contains(it))?;
        let (entries, none) = rest.as_chunks::<32>();
        if entries.len() != count || !none.is_empty() {
            return None;
        }
        let region = |entry: &[u8; 32]| {
            let (fields, _) = entry.as_chunks::<8>();
            let field = |at: usize| u64::from_ne_bytes(fields[at]);
            RegionAt { guest: field(0), len: field(1), user: field(2), offset: field(3) }
        };
        Some(entries.iter().map(region).collect())
    }

    /// The payload as a ring index, its flags, and four addresses: descriptors, used, available, log.
    pub(super) fn ring_addresses(&self) -> Option<(u32, u32, [u64; 4])> {
        let (head, rest) = self.payload.split_at_checked(8)?;
        let [index, flags] = words(head)?;
        let (fields, none) = rest.as_chunks::<8>();
        let fields: &[[u8; 8]; 4] = fields.try_into().ok().filter(|_| none.is_empty())?;
        Some((index, flags, fields.map(u64::from_ne_bytes)))
    }

    /// The payload as a description of in-flight memory, with or without the padding of the C structure.
    pub(super) fn inflight(&self) -> Option<InflightAt> {
        let (fields, rest) = self.payload.split_at_checked(16)?;
        let (fields, _) = fields.as_chunks::<8>();
        let (rest, odd) = rest.as_chunks::<2>();
        if !odd.is_empty() || !matches!(rest.len(), 2 | 4) {
            return None;
        }
        Some(InflightAt {
            len: u64::from_ne_bytes(fields[0]),
            offset: u64::from_ne_bytes(fields[1]),
            rings: u16::from_ne_bytes(rest[0]),
            size: u16::from_ne_bytes(rest[1]),
        })
    }
}

/// The bytes of a description of in-flight memory, with the padding of the C structure.
pub(super) fn inflight(at: InflightAt) -> Vec<u8> {
    let InflightAt { len, offset, rings, size } = at;
    let counts = [rings, size, 0, 0].map(u16::to_ne_bytes).concat();
    [[len, offset].map(u64::to_ne_bytes).concat(), counts].concat()
}

/// The base of a ring as in messages: for a packed ring, the position of the next available descriptor, and in the
/// upper half that of the next used one. Here both are the same.
pub(super) fn base_word(packed: bool, base: u16) -> u32 {
    let base = u32::from(base);
    if packed { base | base << 16 } else { base }
}

/// Parses two 32-bit words; `None` for any other length.
fn words(bytes: &[u8]) -> Option<[u32; 2]> {
    let number = u64::from_ne_bytes(bytes.try_into().ok()?);
    let bytes = number.to_ne_bytes();
    let (words, _) = bytes.as_chunks::<4>();
    Some([u32::from_ne_bytes(words[0]), u32::from_ne_bytes(words[1])])
}

/// The bytes of two 32-bit words.
pub(super) fn two(first: u32, second: u32) -> Vec<u8> {
    [first.to_ne_bytes(), second.to_ne_bytes()].concat()
}

/// Why a connection ended.
#[derive(Debug, Error)]
pub(super) enum Ended {
    /// The owner of this end has stopped it.
    #[error("stopped")]
    Stopped,
    /// The peer has closed it.
    #[error("the peer has closed the connection")]
    Closed,
    /// An invalid message.
    #[error("a message {0}")]
    Malformed(&'static str),
    /// The peer did not answer in time.
    #[error("the peer did not answer within {} s", MESSAGE_TIME.as_secs())]
    Silent,
    /// The operating system refused a call.
    #[error("the socket: {0}")]
    System(#[from] io::Error),
}

impl From<rustix::io::Errno> for Ended {
    fn from(errno: rustix::io::Errno) -> Ended {
        Ended::System(errno.into())
    }
}

/// A connection, and the descriptor by which its owner stops it.
#[derive(Debug)]
pub(super) struct Connection<'a> {
    socket: &'a UnixStream,
    stop: BorrowedFd<'a>,
}

impl<'a> Connection<'a> {
    pub(super) fn new(socket: &'a UnixStream, stop: BorrowedFd<'a>) -> io::Result<Connection<'a>> {
        socket.set_write_timeout(Some(MESSAGE_TIME))?;
        Ok(Connection { socket, stop })
    }

    /// Waits for the next message.
    pub(super) fn receive(&self) -> Result<Message, Ended> {
        self.wait(None)?;
        self.read(Instant::now() + MESSAGE_TIME)
    }

    /// Sends a request and waits for its answer, which must come without descriptors. With `late`, waits without
    /// limit, since a backend that serves another frontend answers once that is gone; `late` is called after the
    /// usual time limit.
    pub(super) fn ask(&self, request: u32, late: Option<&dyn Fn()>) -> Result<Message, Ended> {
        self.send(&Message::ask(request, Vec::new(), Vec::new()))?;
        let began = self.wait(Some(Instant::now() + MESSAGE_TIME));
        match (began, late) {
            (Err(Ended::Silent), Some(late)) => {
                late();
                self.wait(None)?;
            }
            (began, _) => began?,
        }
        let answer = self.answer(request)?;
        match answer.files.is_empty() {
            true => Ok(answer),
            false => Err(Ended::Malformed("is not the answer to what was asked")),
        }
    }

    /// Sends a request and waits for its answer, which may come with descriptors.
    pub(super) fn ask_files(&self, request: u32, payload: Vec<u8>) -> Result<Message, Ended> {
        self.send(&Message::ask(request, payload, Vec::new()))?;
        self.wait(Some(Instant::now() + MESSAGE_TIME))?;
        self.answer(request)
    }

    /// Reads an answer whose first byte has arrived.
    fn answer(&self, request: u32) -> Result<Message, Ended> {
        let answer = self.read(Instant::now() + MESSAGE_TIME)?;
        if answer.request != request || !answer.is_reply() {
            return Err(Ended::Malformed("is not the answer to what was asked"));
        }
        Ok(answer)
    }

    /// Sends a message. Waits up to [`MESSAGE_TIME`] for a peer that does not read.
    pub(super) fn send(&self, message: &Message) -> Result<(), Ended> {
        let mut bytes = Vec::with_capacity(HEADER + message.payload.len());
        for word in [message.request, message.flags, message.payload.len() as u32] {
            bytes.extend(word.to_ne_bytes());
        }
        bytes.extend(&message.payload);
        let files: Vec<BorrowedFd<'_>> = message.files.iter().map(AsFd::as_fd).collect();
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(MAX_REGIONS))];
        let mut ancillary = SendAncillaryBuffer::new(&mut space);
        if !files.is_empty() {
            ancillary.push(SendAncillaryMessage::ScmRights(&files));
        }
        let flags = SendFlags::NOSIGNAL;
        match rustix::net::sendmsg(self.socket, &[IoSlice::new(&bytes)], &mut ancillary, flags) {
            Ok(sent) if sent == bytes.len() => Ok(()),
            Ok(_) | Err(rustix::io::Errno::AGAIN) => Err(Ended::Silent),
            Err(rustix::io::Errno::PIPE | rustix::io::Errno::CONNRESET) => Err(Ended::Closed),
            Err(errno) => Err(errno.into()),
        }
    }

    /// Waits until the peer has sent something, or until `until`.
    fn wait(&self, until: Option<Instant>) -> Result<(), Ended> {
        loop {
            let mut watched = [
                PollFd::new(self.socket, PollFlags::IN),
                PollFd::from_borrowed_fd(self.stop, PollFlags::IN),
            ];
            let left = until.map(|until| until.saturating_duration_since(Instant::now()));
            let left = left.and_then(|left| Timespec::try_from(left).ok());
            match poll(&mut watched, left.as_ref()) {
                Ok(0) => return Err(Ended::Silent),
                Err(rustix::io::Errno::INTR) => continue,
                Err(errno) => return Err(errno.into()),
                Ok(_) if !watched[1].revents().is_empty() => return Err(Ended::Stopped),
                Ok(_) => return Ok(()),
            }
        }
    }

    /// Reads a message whose first byte has arrived.
    fn read(&self, until: Instant) -> Result<Message, Ended> {
        let (mut header, mut files) = ([0; HEADER], Vec::new());
        self.fill(&mut header, &mut files, until)?;
        let (words, _) = header.as_chunks::<4>();
        let word = |at: usize| u32::from_ne_bytes(words[at]);
        let (request, flags, size) = (word(0), word(1), word(2) as usize);
        if flags & VERSION_MASK != VERSION {
            return Err(Ended::Malformed("is of another version than 1"));
        }
        if size > MAX_PAYLOAD {
            return Err(Ended::Malformed("is longer than 4096 bytes"));
        }
        let mut payload = vec![0; size];
        self.fill(&mut payload, &mut files, until)?;
        Ok(Message { request, flags, payload, files })
    }

    fn fill(
        &self,
        mut rest: &mut [u8],
        files: &mut Vec<OwnedFd>,
        until: Instant,
    ) -> Result<(), Ended> {
        while !rest.is_empty() {
            let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(MAX_REGIONS))];
            let mut ancillary = RecvAncillaryBuffer::new(&mut space);
            let flags = RecvFlags::CMSG_CLOEXEC | RecvFlags::DONTWAIT;
            let received = rustix::net::recvmsg(
                self.socket,
                &mut [IoSliceMut::new(rest)],
                &mut ancillary,
                flags,
            );
            let received = match received {
                Ok(received) => received,
                Err(rustix::io::Errno::AGAIN | rustix::io::Errno::INTR) => {
                    self.wait(Some(until))?;
                    continue;
                }
                Err(rustix::io::Errno::CONNRESET) => return Err(Ended::Closed),
                Err(errno) => return Err(errno.into()),
            };
            for message in ancillary.drain() {
                if let RecvAncillaryMessage::ScmRights(these) = message {
                    files.extend(these);
                }
            }
            if received.flags.contains(ReturnFlags::CTRUNC) || files.len() > MAX_REGIONS {
                // The kernel reports both causes in the same way.
                return Err(Ended::Malformed(
                    "comes with more descriptors than can be had here: eight, or the limit of open files",
                ));
            }
            if received.bytes == 0 {
                return Err(Ended::Closed);
            }
            rest = &mut rest[received.bytes..];
        }
        Ok(())
    }
}
