//! An opened device, before the engine takes it over.

use std::fmt;
use std::sync::Arc;

use napkin_linux::apply::Temporary;
use napkin_nic::faulty::FaultCounters;
use napkin_nic::vhost::Peers;
use napkin_nic::xdp::BusyVerdict;
use napkin_nic::{PacketQueue, Pool};
use napkin_stack::Addresses;

/// An open device that is not served yet.
pub struct OpenDevice {
    /// Its name, with the number that the operating system chose, if it did.
    pub name: String,
    /// Our addresses on it.
    pub addresses: Addresses,
    /// The kernel's settings below it, restored when this is dropped. Declared before `queues`, so that it is
    /// dropped first: when they detach the XDP program, the driver may delete its NAPI instances.
    pub deferral: Option<Temporary>,
    /// Its queues, by number.
    pub queues: Vec<Box<dyn PacketQueue>>,
    /// A one-line description for the user.
    pub note: String,
    /// Counters of the fault injectors, one per queue that has one.
    pub faults: Vec<Arc<FaultCounters>>,
    /// Findings about the busy polling of the kernel's NAPI, one per queue that busy polls.
    pub busy: Vec<BusyVerdict>,
    /// State of the vhost-user peers, for a virtio device.
    pub peers: Option<Arc<Peers>>,
    /// Its buffer pool, if it brings its own.
    pub pool: Option<Pool>,
}

impl fmt::Debug for OpenDevice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("OpenDevice").field("name", &self.name).finish_non_exhaustive()
    }
}
