//! What a program hears without the network: a device of the host has finished something.

use crate::machine::Machine;
use crate::net::packet::Packet;

impl Machine<'_> {
    /// A device of the host (a disk) has finished what a thread waits for: the thread finds this packet
    /// in its socket, however full that is, and wakes if it sleeps in the epoll context that watches the
    /// socket. Nothing is charged for it, and no instance learns of it.
    pub fn complete(&mut self, socket: u32, packet: Packet) {
        self.sockets.put(socket, packet);
        if let (Some(_), Some(thread)) = self.sockets.becomes_ready(socket) {
            self.wake_thread(thread);
        }
    }
}
