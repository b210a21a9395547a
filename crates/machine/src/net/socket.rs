//! The data of a socket, of an epoll context's ready list, and of a flow.

use std::collections::VecDeque;

use napkin_core::{Id, Ns};

use crate::net::packet::Packet;
use crate::sched::id::ThreadId;

/// A socket, with the frames that were received and not yet read.
#[derive(Debug)]
pub(super) struct Socket {
    pub(super) frames: VecDeque<Packet>,
    /// Most frames that it holds.
    pub(super) capacity: u32,
    /// Index of the epoll context that watches it.
    pub(super) epoll: Option<u32>,
    /// Whether it is on its context's ready list.
    pub(super) ready: bool,
    /// The thread that waits on it without epoll.
    pub(super) waiter: Option<ThreadId>,
    /// The CPU of the last delivery.
    pub(super) delivered_on: Option<u16>,
    /// The instance of the last delivery.
    pub(super) napi: Option<Id>,
    pub(super) open: bool,
    pub(super) dropped: u64,
    /// Whether a queue was parked because this socket was full.
    pub(super) parked: bool,
}

impl Socket {
    pub(super) fn new(capacity: u32) -> Self {
        Socket {
            // Room for as many frames as the first push would allocate.
            frames: VecDeque::with_capacity(4),
            capacity,
            epoll: None,
            ready: false,
            waiter: None,
            delivered_on: None,
            napi: None,
            open: true,
            dropped: 0,
            parked: false,
        }
    }

    pub(super) fn full(&self) -> bool {
        self.frames.len() * 4 >= self.capacity as usize * 3
    }

    pub(super) fn drained(&self) -> bool {
        self.frames.len() * 4 <= self.capacity as usize
    }
}

/// The machine's part of an epoll context: its ready list and its waiter. The part that makes decisions is the core's
/// `EpollContext` with the same index.
#[derive(Debug, Default)]
pub(super) struct Ready {
    pub(super) list: VecDeque<u32>,
    pub(super) waiter: Option<ThreadId>,
    pub(super) returns: u64,
    pub(super) events: u64,
    /// Until this time a descriptor that is always ready is on the list, too.
    pub(super) always_until: Ns,
}

/// A flow: the queue at which its frames arrive, and the socket that gets them.
#[derive(Debug, Clone, Copy)]
pub(super) struct Flow {
    pub(super) queue: u16,
    pub(super) socket: Option<u32>,
}
