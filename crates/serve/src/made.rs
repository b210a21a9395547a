//! A device that was made, with what is to be known of it.

use std::fmt;
use std::sync::Arc;

use napkin_linux::apply::Temporary;
use napkin_nic::faulty::FaultCounters;
use napkin_nic::vhost::Peers;
use napkin_nic::xdp::BusyVerdict;
use napkin_nic::{PacketQueue, Pool};
use napkin_stack::Addresses;

/// A device, open and not yet served.
pub struct Made {
    /// As it was given, with its number where the operating system chose one.
    pub name: String,
    /// Our addresses on it.
    pub addresses: Addresses,
    /// What the policy has set of the kernel's below it, until this is dropped: before the queues, with whose
    /// program the kernel's instances may go.
    pub deferral: Option<Temporary>,
    /// Its queues, in the order of their numbers.
    pub queues: Vec<Box<dyn PacketQueue>>,
    /// What it is, in a line for whoever uses it.
    pub note: String,
    /// What was done to frames, of each queue around which there is an injector.
    pub faults: Vec<Arc<FaultCounters>>,
    /// What is seen of each queue's busy polling of the kernel's NAPI, where there is any.
    pub busy: Vec<BusyVerdict>,
    /// How it goes with who is at the other side of a socket.
    pub peers: Option<Arc<Peers>>,
    /// Its buffers, if they are its own.
    pub pool: Option<Pool>,
}

impl fmt::Debug for Made {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Made").field("name", &self.name).finish_non_exhaustive()
    }
}
