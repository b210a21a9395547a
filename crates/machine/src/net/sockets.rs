//! All sockets, the ready lists of the epoll contexts that watch them, and the flows that lead to them.
//!
//! Wake-ups, costs and calls of the core are in `nic.rs` and `receive.rs`.

use std::collections::BTreeSet;

use napkin_core::{Id, Ns};

use crate::counts::EpollUse;
use crate::net::packet::Packet;
use crate::net::socket::{Flow, Ready, Socket};
use crate::sched::id::ThreadId;

/// The CPUs of the threads that read a queue's frames.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Readers {
    /// Not determined yet.
    Unknown,
    None,
    /// All are pinned to this CPU.
    On(u16),
    Anywhere,
}

/// Sockets, ready lists and flows, each by its index.
#[derive(Debug)]
pub(crate) struct Sockets {
    /// Cache by queue, cleared when a reader, a binding or a flow is added.
    readers: Vec<Readers>,
    all: Vec<Socket>,
    ready: Vec<Ready>,
    flows: Vec<Flow>,
}

impl Sockets {
    /// Creates the empty ready lists of `epolls` epoll contexts, without sockets.
    pub(crate) fn new(epolls: usize) -> Self {
        Sockets {
            readers: Vec::new(),
            all: Vec::new(),
            ready: (0..epolls).map(|_| Ready::default()).collect(),
            flows: Vec::new(),
        }
    }

    /// Adds a socket with room for `capacity` frames. Returns its index.
    pub(super) fn add(&mut self, capacity: u32) -> u32 {
        self.all.push(Socket::new(capacity));
        self.all.len() as u32 - 1
    }

    /// Adds a flow that arrives at a queue, with or without a socket. Returns its index.
    pub(super) fn add_flow(&mut self, queue: u16, socket: Option<u32>) -> u32 {
        self.readers.clear();
        self.flows.push(Flow { queue, socket });
        self.flows.len() as u32 - 1
    }

    /// Makes a thread wait for a socket through an epoll context.
    pub(super) fn watch(&mut self, thread: ThreadId, epoll: u32, socket: u32) {
        self.readers.clear();
        self.ready[epoll as usize].waiter = Some(thread);
        self.all[socket as usize].epoll = Some(epoll);
    }

    /// Makes a thread wait for a socket in a receive call.
    pub(super) fn own(&mut self, thread: ThreadId, socket: u32) {
        self.readers.clear();
        self.all[socket as usize].waiter = Some(thread);
    }

    /// Binds a socket to an instance before its first delivery.
    pub(super) fn bind(&mut self, socket: u32, id: Id) {
        self.readers.clear();
        self.all[socket as usize].napi = Some(id);
    }

    /// Returns the cached readers of a queue.
    pub(crate) fn readers(&self, queue: u16) -> Readers {
        self.readers.get(usize::from(queue)).copied().unwrap_or(Readers::Unknown)
    }

    /// Determines the readers of an instance's queue: those of the sockets that its flows lead to, that it delivers
    /// to, or that are bound to it. `threads` are all that wait: their epoll context, or their socket, and their CPU
    /// if they are pinned to one.
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
        let mut found = Readers::None;
        for cpu in threads.filter_map(reads) {
            found = match (found, cpu) {
                (Readers::None, Some(cpu)) => Readers::On(cpu),
                (Readers::On(other), Some(cpu)) if other == cpu => found,
                _ => Readers::Anywhere,
            };
        }
        let queue = usize::from(id.0);
        self.readers.resize(self.readers.len().max(queue + 1), Readers::Unknown);
        self.readers[queue] = found;
        found
    }

    /// Returns the queue at which a flow arrives.
    #[inline]
    pub(super) fn queue_of(&self, flow: u32) -> u16 {
        self.flows[flow as usize].queue
    }

    /// Returns the socket that gets a flow's frames; `None`: they are dropped.
    #[inline]
    pub(super) fn socket_of_flow(&self, flow: u32) -> Option<u32> {
        self.flows[flow as usize].socket
    }

    /// Records a delivery to a flow's socket on a CPU. Returns whether the last one was on another CPU.
    #[inline]
    pub(super) fn record_delivery_cpu(&mut self, flow: u32, cpu: u16) -> bool {
        let Some(place) = self.socket_of_flow(flow) else { return false };
        let last = self.all[place as usize].delivered_on.replace(cpu);
        last.is_some_and(|last| last != cpu)
    }

    /// Delivers a frame of an instance to a socket. Returns `false` if the socket is full or closed.
    #[inline]
    pub(super) fn deliver(&mut self, socket: u32, id: Id, packet: Packet) -> bool {
        let socket = &mut self.all[socket as usize];
        if socket.frames.len() >= socket.capacity as usize || !socket.open {
            socket.dropped += 1;
            return false;
        }
        socket.frames.push_back(packet);
        socket.napi = Some(id);
        true
    }

    /// Puts a frame into a socket without an instance, even if the socket is full.
    pub(super) fn put(&mut self, socket: u32, packet: Packet) {
        self.all[socket as usize].frames.push_back(packet);
    }

    /// Puts a socket on its epoll context's ready list, if it has one. Returns the context, and the thread that waits
    /// for the socket.
    #[inline]
    pub(super) fn mark_ready(&mut self, place: u32) -> (Option<u32>, Option<ThreadId>) {
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

    /// Returns the number of events that a wait in an epoll context finds now.
    #[inline]
    pub(crate) fn events(&self, epoll: u32, now: Ns) -> u32 {
        let ready = &self.ready[epoll as usize];
        ready.list.len() as u32 + u32::from(now < ready.always_until)
    }

    /// Makes an epoll context have an event at any time until `until`. Returns its waiter.
    pub(super) fn always_ready(&mut self, epoll: u32, until: Ns) -> Option<ThreadId> {
        let ready = &mut self.ready[epoll as usize];
        ready.always_until = until;
        ready.waiter
    }

    /// Counts a wait in an epoll context that has returned `events` events.
    pub(crate) fn returned(&mut self, epoll: u32, events: u32) {
        let ready = &mut self.ready[epoll as usize];
        ready.returns += 1;
        ready.events += u64::from(events);
    }

    /// Reads a frame.
    #[inline]
    pub(super) fn read(&mut self, socket: u32) -> Option<Packet> {
        self.all[socket as usize].frames.pop_front()
    }

    /// Returns the number of frames in a socket.
    #[inline]
    pub(super) fn waiting(&self, socket: u32) -> u32 {
        self.all[socket as usize].frames.len() as u32
    }

    /// Returns the frames dropped because a socket was full or closed.
    pub(super) fn dropped(&self, socket: u32) -> u64 {
        self.all[socket as usize].dropped
    }

    /// Returns the instance that last delivered to a socket.
    pub(super) fn napi(&self, socket: u32) -> Option<Id> {
        self.all[socket as usize].napi
    }

    /// Returns whether a socket is open.
    pub(super) fn is_open(&self, socket: u32) -> bool {
        self.all[socket as usize].open
    }

    /// Returns whether a socket is nearly full: at least three quarters of its capacity.
    pub(super) fn is_full(&self, socket: u32) -> bool {
        self.all[socket as usize].full()
    }

    /// Records that a queue is parked because of a socket.
    pub(super) fn park(&mut self, socket: u32) {
        self.all[socket as usize].parked = true;
    }

    /// Returns whether queues parked because of a socket are to be polled again, since it is down to a quarter of its
    /// capacity. Returns `true` once.
    #[inline]
    pub(super) fn take_resumption(&mut self, socket: u32) -> bool {
        let socket = &mut self.all[socket as usize];
        let drained = socket.parked && socket.drained();
        socket.parked &= !drained;
        drained
    }

    /// Closes an epoll context and the sockets that it watches.
    pub(crate) fn close(&mut self, epoll: u32) {
        self.ready[epoll as usize].waiter = None;
        self.all.iter_mut().filter(|it| it.epoll == Some(epoll)).for_each(|it| it.open = false);
    }

    /// Returns the counts of each epoll context.
    pub(crate) fn uses(&self) -> impl Iterator<Item = EpollUse> {
        self.ready.iter().map(|it| EpollUse { returns: it.returns, events: it.events })
    }

    /// Returns an open socket that is not empty, and its number of frames.
    pub(crate) fn unread(&self) -> Option<(usize, usize)> {
        let unread_in = |(place, it): (usize, &Socket)| {
            (it.open && !it.frames.is_empty()).then_some((place, it.frames.len()))
        };
        self.all.iter().enumerate().find_map(unread_in)
    }

    /// Returns the room for frames in all sockets. It must not grow with virtual time.
    pub(crate) fn kept(&self) -> usize {
        self.all.iter().map(|it| it.frames.capacity()).sum()
    }
}
