//! The programs' interface to sockets: creating, watching, filling by a device of the host, and reading them.

use napkin_core::{Id, Ns};

use crate::machine::Machine;
use crate::net::packet::Packet;
use crate::sched::id::ThreadId;
use crate::trace::Station;

impl Machine<'_> {
    /// Adds a socket with room for `capacity` frames. Returns its index.
    pub fn add_socket(&mut self, capacity: u32) -> u32 {
        self.sockets.add(capacity)
    }

    /// Makes a thread wait for a socket through an epoll context.
    pub fn watch(&mut self, thread: ThreadId, epoll: u32, socket: u32) {
        self.catch_up_all();
        self.threads[thread].wait.watch(epoll);
        self.sockets.watch(thread, epoll, socket);
    }

    /// Makes a thread wait for a socket in a receive call.
    pub fn own(&mut self, thread: ThreadId, socket: u32) {
        self.catch_up_all();
        self.threads[thread].wait.own(socket);
        self.sockets.own(thread, socket);
    }

    /// Binds a socket to a queue (AF_XDP): its receive calls busy poll that queue from the first one on.
    pub fn bind(&mut self, socket: u32, queue: u16) {
        self.catch_up_all();
        self.sockets.bind(socket, Id(queue));
    }

    /// Adds a flow that arrives at a queue; without a socket its frames are counted and dropped. Returns its index.
    pub fn add_flow(&mut self, queue: u16, socket: Option<u32>) -> u32 {
        self.catch_up_all();
        self.sockets.add_flow(queue, socket)
    }

    /// Returns the queue at which a flow arrives.
    pub fn queue_of(&self, flow: u32) -> u16 {
        self.sockets.queue_of(flow)
    }

    /// Returns the number of events, or of frames, that the thread's last wait found.
    pub fn events(&self, me: ThreadId) -> u32 {
        self.threads[me].wait.found()
    }

    /// Keeps a descriptor on an epoll context's ready list until the given time (a level-triggered `EPOLLOUT` on a
    /// pipe that is never full): each wait finds an event at once. The descriptor is no socket, and
    /// [`Machine::next_ready`] does not return it.
    pub fn always_ready(&mut self, epoll: u32, until: Ns) {
        let Some(waiter) = self.sockets.always_ready(epoll, until) else { return };
        self.catch_up_thread(waiter);
        if self.threads[waiter].execution.in_pass() {
            self.wake_thread(waiter);
        }
    }

    /// Takes the next ready socket of a thread's epoll context. The thread must read it until it is empty, or put it
    /// back with [`Machine::still_ready`].
    pub fn next_ready(&mut self, me: ThreadId) -> Option<u32> {
        let epoll = self.threads[me].wait.epoll()?;
        self.sockets.next_ready(epoll)
    }

    /// Puts a socket that was not read until empty back on the ready list.
    pub fn still_ready(&mut self, socket: u32) {
        self.sockets.mark_ready(socket);
    }

    /// Receives one frame from a socket. Also returns the nanoseconds that fetching its state costs on top of the
    /// call.
    pub fn receive(&mut self, me: ThreadId, socket: u32) -> Option<(Packet, Ns)> {
        let packet = self.sockets.read(socket)?;
        self.threads[me].execution.found();
        let cpu = self.threads[me].cpu();
        let locality = &self.config.locality;
        let extra = if packet.cpu == cpu {
            let between = (self.cpus[usize::from(cpu)].delivered() - packet.delivered)
                .saturating_sub(1) as f64;
            locality.fetch(between) as Ns
        } else {
            locality.cross_cpu
        };
        self.trace.passed(&packet, self.now, Station::Read(cpu));
        self.resume_parked(socket);
        Some((packet, extra))
    }

    /// Completes an operation of a host device (a disk): puts the packet into the thread's socket, even if that is
    /// full, and wakes the thread if it sleeps in the epoll context that watches the socket. This costs no CPU time
    /// and involves no instance.
    pub fn complete(&mut self, socket: u32, packet: Packet) {
        self.sockets.put(socket, packet);
        if let (Some(epoll), Some(thread)) = self.sockets.mark_ready(socket) {
            self.contexts[epoll as usize].no_delivery();
            self.catch_up_thread(thread);
            self.wake_thread(thread);
        }
    }

    /// Returns the number of frames in a socket.
    pub fn waiting(&self, socket: u32) -> u32 {
        self.sockets.waiting(socket)
    }

    /// Returns the frames dropped because the socket was full or closed.
    pub fn socket_drops(&self, socket: u32) -> u64 {
        self.sockets.dropped(socket)
    }

    /// Returns the instance that last delivered to a socket (`SO_INCOMING_NAPI_ID`).
    pub fn incoming_napi(&self, socket: u32) -> Option<Id> {
        self.sockets.napi(socket)
    }
}
