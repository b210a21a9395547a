//! Sockets, what waits on them, and the flows that lead to them.

use std::collections::VecDeque;

use napkin_core::{Id, Ns};

use crate::net::packet::Packet;
use crate::sched::id::ThreadId;

/// A socket: what it has received and nobody has read.
#[derive(Debug)]
pub(crate) struct Socket {
    pub(crate) frames: VecDeque<Packet>,
    /// Frames that it holds at most.
    pub(super) capacity: u32,
    /// The epoll context that watches it, by its place.
    pub(crate) epoll: Option<u32>,
    /// It stands on its context's ready list.
    pub(super) ready: bool,
    /// The thread that waits on it without epoll.
    pub(super) waiter: Option<ThreadId>,
    /// The CPU on which something was last delivered to it.
    pub(super) delivered_on: Option<u16>,
    /// The instance that last delivered to it.
    pub(super) napi: Option<Id>,
    pub(crate) open: bool,
    pub(super) dropped: u64,
    pub(super) received: u64,
    /// Its queue was parked when it was full.
    pub(super) parked: bool,
}

impl Socket {
    pub(crate) fn new(capacity: u32, epoll: Option<u32>, waiter: Option<ThreadId>) -> Self {
        Socket {
            // Room for a few from the first on, as it would get with its first frame.
            frames: VecDeque::with_capacity(4),
            capacity,
            epoll,
            ready: false,
            waiter,
            delivered_on: None,
            napi: None,
            open: true,
            dropped: 0,
            received: 0,
            parked: false,
        }
    }

    pub(crate) fn full(&self) -> bool {
        self.frames.len() * 4 >= self.capacity as usize * 3
    }

    pub(crate) fn drained(&self) -> bool {
        self.frames.len() * 4 <= self.capacity as usize
    }
}

/// The world's part of an epoll context: its ready list and who waits. The part that decides is
/// the core's `EpollContext` of the same place.
#[derive(Debug, Default)]
pub(crate) struct Ready {
    pub(crate) list: VecDeque<u32>,
    pub(crate) waiter: Option<ThreadId>,
    pub(crate) returns: u64,
    pub(crate) events: u64,
    /// Until then a descriptor that is always ready is on the list, too.
    pub(crate) always_until: Ns,
}

/// A flow: where its frames arrive and which socket gets them.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Flow {
    pub(super) queue: u16,
    pub(super) socket: Option<u32>,
}
