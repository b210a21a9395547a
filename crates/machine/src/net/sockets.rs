//! All sockets, the ready lists of the epoll contexts that watch them, and the flows that lead to them.
//!
//! Who is woken, what is charged and what the core is told is the machine's (`nic.rs`, `receive.rs`).

use std::collections::BTreeSet;

use napkin_core::{Id, Ns};

use crate::counts::EpollUse;
use crate::net::packet::Packet;
use crate::net::socket::{Flow, Ready, Socket};
use crate::sched::id::ThreadId;

/// Where those are who read a queue's frames.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Readers {
    /// To be looked for.
    Unknown,
    Nobody,
    /// All are pinned to that CPU.
    On(u16),
    Anywhere,
}

/// Sockets, ready lists and flows, each by its place.
#[derive(Debug)]
pub(crate) struct Sockets {
    /// By queue, as far as they were looked for since a socket, a reader or a flow was last added.
    readers: Vec<Readers>,
    all: Vec<Socket>,
    ready: Vec<Ready>,
    flows: Vec<Flow>,
}

impl Sockets {
    /// None yet, with empty ready lists of so many epoll contexts.
    pub(crate) fn new(epolls: usize) -> Self {
        Sockets {
            readers: Vec::new(),
            all: Vec::new(),
            ready: (0..epolls).map(|_| Ready::default()).collect(),
            flows: Vec::new(),
        }
    }

    /// Adds a socket that holds so many frames; its place.
    pub(super) fn add(&mut self, capacity: u32) -> u32 {
        self.all.push(Socket::new(capacity));
        self.all.len() as u32 - 1
    }

    /// Adds a flow that arrives at a queue, for a socket or for none; its place.
    pub(super) fn add_flow(&mut self, queue: u16, socket: Option<u32>) -> u32 {
        self.readers.clear();
        self.flows.push(Flow { queue, socket });
        self.flows.len() as u32 - 1
    }

    /// A thread waits for a socket through an epoll context.
    pub(super) fn watch(&mut self, thread: ThreadId, epoll: u32, socket: u32) {
        self.readers.clear();
        self.ready[epoll as usize].waiter = Some(thread);
        self.all[socket as usize].epoll = Some(epoll);
    }

    /// A thread waits for a socket by a receive call.
    pub(super) fn own(&mut self, thread: ThreadId, socket: u32) {
        self.readers.clear();
        self.all[socket as usize].waiter = Some(thread);
    }

    /// A socket is bound to an instance before anything was delivered to it.
    pub(super) fn bind(&mut self, socket: u32, id: Id) {
        self.readers.clear();
        self.all[socket as usize].napi = Some(id);
    }

    /// Where a queue's readers are.
    pub(crate) fn readers(&self, queue: u16) -> Readers {
        self.readers.get(usize::from(queue)).copied().unwrap_or(Readers::Unknown)
    }

    /// Looks for the readers of an instance's queue: of the sockets that its flows lead to, and of those that
    /// it delivers to or that are bound to it. `threads` are all that wait: in which epoll context, or on which
    /// socket, and on which CPU if it is one.
    pub(crate) fn find_readers(
        &mut self,
        id: Id,
        threads: impl Iterator<Item = (Option<u32>, Option<u32>, Option<u16>)>,
    ) -> Readers {
        let led = self.flows.iter().filter(|flow| flow.queue == id.0).filter_map(|it| it.socket);
        let bound =
            (0..).zip(&self.all).filter(|(_, it)| it.napi == Some(id)).map(|(place, _)| place);
        let sockets: BTreeSet<u32> = led.chain(bound).collect();
        let epolls: BTreeSet<u32> =
            sockets.iter().filter_map(|&place| self.all[place as usize].epoll).collect();
        let reads = |(epoll, socket, cpu): (Option<u32>, Option<u32>, Option<u16>)| {
            let watches = epoll.is_some_and(|it| epolls.contains(&it));
            let owns = socket.is_some_and(|it| sockets.contains(&it));
            (watches || owns).then_some(cpu)
        };
        let mut found = Readers::Nobody;
        for cpu in threads.filter_map(reads) {
            found = match (found, cpu) {
                (Readers::Nobody, Some(cpu)) => Readers::On(cpu),
                (Readers::On(other), Some(cpu)) if other == cpu => found,
                _ => Readers::Anywhere,
            };
        }
        let queue = usize::from(id.0);
        self.readers.resize(self.readers.len().max(queue + 1), Readers::Unknown);
        self.readers[queue] = found;
        found
    }

    /// The queue at which a flow arrives.
    #[inline]
    pub(super) fn queue_of(&self, flow: u32) -> u16 {
        self.flows[flow as usize].queue
    }

    /// The socket that gets a flow's frames; `None`: they are dropped.
    #[inline]
    pub(super) fn of_flow(&self, flow: u32) -> Option<u32> {
        self.flows[flow as usize].socket
    }

    /// A flow's socket gets its next frame on a CPU: whether the last one came on another.
    #[inline]
    pub(super) fn moves_to(&mut self, flow: u32, cpu: u16) -> bool {
        let Some(place) = self.of_flow(flow) else { return false };
        let last = self.all[place as usize].delivered_on.replace(cpu);
        last.is_some_and(|last| last != cpu)
    }

    /// An instance delivers a frame: `false` if the socket is full, or closed.
    #[inline]
    pub(super) fn take_in(&mut self, socket: u32, id: Id, packet: Packet) -> bool {
        let socket = &mut self.all[socket as usize];
        if socket.frames.len() >= socket.capacity as usize || !socket.open {
            socket.dropped += 1;
            return false;
        }
        socket.frames.push_back(packet);
        socket.napi = Some(id);
        true
    }

    /// A frame reaches a socket without an instance, however full that is.
    pub(super) fn put(&mut self, socket: u32, packet: Packet) {
        self.all[socket as usize].frames.push_back(packet);
    }

    /// A socket stands on its epoll context's ready list from now on, if it has one. The context, and who
    /// waits for the socket.
    #[inline]
    pub(super) fn becomes_ready(&mut self, place: u32) -> (Option<u32>, Option<ThreadId>) {
        let socket = &mut self.all[place as usize];
        let Some(epoll) = socket.epoll else { return (None, socket.waiter) };
        let ready = &mut self.ready[epoll as usize];
        if !std::mem::replace(&mut socket.ready, true) {
            ready.list.push_back(place);
        }
        (Some(epoll), ready.waiter)
    }

    /// Takes the next socket off an epoll context's ready list.
    pub(super) fn next_ready(&mut self, epoll: u32) -> Option<u32> {
        let socket = self.ready[epoll as usize].list.pop_front()?;
        self.all[socket as usize].ready = false;
        Some(socket)
    }

    /// How many events a wait in an epoll context finds now.
    #[inline]
    pub(crate) fn events(&self, epoll: u32, now: Ns) -> u32 {
        let ready = &self.ready[epoll as usize];
        ready.list.len() as u32 + u32::from(now < ready.always_until)
    }

    /// Until then an epoll context has an event at any time: who waits on it.
    pub(super) fn always_ready(&mut self, epoll: u32, until: Ns) -> Option<ThreadId> {
        let ready = &mut self.ready[epoll as usize];
        ready.always_until = until;
        ready.waiter
    }

    /// A wait in an epoll context has returned so many events.
    pub(crate) fn returned(&mut self, epoll: u32, events: u32) {
        let ready = &mut self.ready[epoll as usize];
        ready.returns += 1;
        ready.events += u64::from(events);
    }

    /// A frame is read.
    #[inline]
    pub(super) fn read(&mut self, socket: u32) -> Option<Packet> {
        self.all[socket as usize].frames.pop_front()
    }

    /// Frames that wait in a socket.
    #[inline]
    pub(super) fn waiting(&self, socket: u32) -> u32 {
        self.all[socket as usize].frames.len() as u32
    }

    /// Frames that a socket had no room for.
    pub(super) fn dropped(&self, socket: u32) -> u64 {
        self.all[socket as usize].dropped
    }

    /// The instance that last delivered to a socket.
    pub(super) fn napi(&self, socket: u32) -> Option<Id> {
        self.all[socket as usize].napi
    }

    /// Whether a socket takes frames.
    pub(super) fn is_open(&self, socket: u32) -> bool {
        self.all[socket as usize].open
    }

    /// Whether a socket is nearly full: three quarters of what it holds.
    pub(super) fn is_full(&self, socket: u32) -> bool {
        self.all[socket as usize].full()
    }

    /// A queue is parked because of a socket.
    pub(super) fn park(&mut self, socket: u32) {
        self.all[socket as usize].parked = true;
    }

    /// Whether queues that were parked because of a socket are to be polled again: it was read until it was
    /// nearly empty. Once.
    #[inline]
    pub(super) fn resumes(&mut self, socket: u32) -> bool {
        let socket = &mut self.all[socket as usize];
        let drained = socket.parked && socket.drained();
        socket.parked &= !drained;
        drained
    }

    /// An epoll context goes away, and the sockets that it watches with it.
    pub(crate) fn close(&mut self, epoll: u32) {
        self.ready[epoll as usize].waiter = None;
        self.all.iter_mut().filter(|it| it.epoll == Some(epoll)).for_each(|it| it.open = false);
    }

    /// What the waits in each epoll context have returned.
    pub(crate) fn uses(&self) -> impl Iterator<Item = EpollUse> {
        self.ready.iter().map(|it| EpollUse { returns: it.returns, events: it.events })
    }

    /// A socket that is open and not empty, and how many frames are in it.
    pub(crate) fn unread(&self) -> Option<(usize, usize)> {
        let here = |(place, it): (usize, &Socket)| {
            (it.open && !it.frames.is_empty()).then_some((place, it.frames.len()))
        };
        self.all.iter().enumerate().find_map(here)
    }

    /// What they keep room for, in frames: it must not grow with virtual time.
    pub(crate) fn kept(&self) -> usize {
        self.all.iter().map(|it| it.frames.capacity()).sum()
    }
}
