//! A device that was made, with what is to be known of it.

use std::sync::Arc;

use napkin_nic::faulty::FaultCounters;
use napkin_nic::vhost::Peers;
use napkin_nic::{PacketQueue, Pool};
use napkin_stack::Addresses;

/// A device, not yet served.
pub(super) struct Made {
    pub(super) name: String,
    pub(super) addresses: Addresses,
    pub(super) queues: Vec<Box<dyn PacketQueue>>,
    pub(super) note: String,
    pub(super) faults: Vec<Arc<FaultCounters>>,
    /// How it goes with who is at the other side of a socket.
    pub(super) peers: Option<Arc<Peers>>,
    /// Its buffers, if they are its own.
    pub(super) pool: Option<Pool>,
}
