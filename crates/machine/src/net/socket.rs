//! A socket, the ready list of an epoll context, and a flow.

use std::collections::VecDeque;

use napkin_core::{Id, Ns};

use crate::net::packet::Packet;
use crate::sched::id::ThreadId;

/// A socket: what it has received and nobody has read.
#[derive(Debug)]
pub(super) struct Socket {
    pub(super) frames: VecDeque<Packet>,
    /// Frames that it holds at most.
    pub(super) capacity: u32,
    /// The epoll context that watches it, by its place.
    pub(super) epoll: Option<u32>,
    /// It stands on its context's ready list.
    pub(super) ready: bool,
    /// The thread that waits on it without epoll.
    pub(super) waiter: Option<ThreadId>,
    /// The CPU on which something was last delivered to it.
    pub(super) delivered_on: Option<u16>,
    /// The instance that last delivered to it.
    pub(super) napi: Option<Id>,
    pub(super) open: bool,
    pub(super) dropped: u64,
    /// Its queue was parked when it was full.
    pub(super) parked: bool,
}

impl Socket {
    pub(super) fn new(capacity: u32) -> Self {
        Socket {
            // Room for a few from the first on, as it would get with its first frame.
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

/// The world's part of an epoll context: its ready list and who waits. The part that decides is
/// the core's `EpollContext` of the same place.
#[derive(Debug, Default)]
pub(super) struct Ready {
    pub(super) list: VecDeque<u32>,
    pub(super) waiter: Option<ThreadId>,
    pub(super) returns: u64,
    pub(super) events: u64,
    /// Until then a descriptor that is always ready is on the list, too.
    pub(super) always_until: Ns,
}

/// A flow: where its frames arrive and which socket gets them.
#[derive(Debug, Clone, Copy)]
pub(super) struct Flow {
    pub(super) queue: u16,
    pub(super) socket: Option<u32>,
}
