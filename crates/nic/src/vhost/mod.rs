//! Virtio over vhost-user: rings in memory that two processes share, and a socket over which they agree on
//! them.
//!
//! As a **backend** ([`Vhost::backend`]) a device of ours is the NIC of a peer that drives it: a virtual
//! machine's (QEMU, cloud-hypervisor), or a program's (DPDK's `virtio_user`). It listens at a path, serves
//! one peer at a time, and listens again when that has gone. As a **frontend** ([`Vhost::frontend`]) it
//! drives a peer's device (DPDK's `net_vhost`, VPP, another napkin): it connects to a path, and does so
//! again when the peer has gone.
//!
//! Here notifications can be switched off for good: masking is a word in shared memory, and costs no system
//! call; unmasking writes another and looks at the ring once more. A poll copies each frame once, makes no
//! system call and allocates nothing; the peer is notified only if it has asked for it.
//!
//! Rings are split or packed, with event indices; a peer's buffers may be merged for one frame; checksums that
//! a peer leaves open are completed, and TCP packets of up to 64 KiB that it leaves to be cut (TSO) are cut where they come in, by
//! a backend and, in rings of at least 64 entries whose buffers are merged, by a frontend. A peer
//! that drives may use indirect descriptors. Buffers are used in order (`VIRTIO_F_IN_ORDER`) where both sides know of that; a
//! backend then need not tell of each, and ours tells of a burst at once on packed rings. It does not where the ring alone tells the next
//! backend where to go on; after another's, which does, a device of ours may begin at the wrong place there. Large packets towards a driver are not offered: a frame has at
//! most [`FRAME_CAPACITY`](crate::FRAME_CAPACITY) bytes here. There are no control queues, no migration (logging),
//! no virtio before 1.0, and no IOMMU.
//!
//! # Whoever is killed
//!
//! What a backend has taken and not given back is noted in memory that outlives it, where a frontend has agreed to that
//! (`VHOST_USER_PROTOCOL_F_INFLIGHT_SHMFD`): the next backend goes on at the descriptor at which the last one was killed, with split and
//! packed rings alike. A frontend of ours keeps its rings then, and what is in them, for the next backend. Without such notes a split
//! ring tells by its used index where to go on, and a packed one by its descriptors, if its driver was given indirect ones (it
//! chains none then): a virtual machine of QEMU's goes on with either.
//!
//! # A peer that means no good
//!
//! It can stop its own traffic, hold up the end of this process, and have memory counted as this process' (both below), and nothing
//! else: what it says is checked before it is done ([`Peers`] counts what is refused), descriptors are read once and checked against the
//! memory that it shares with each access, chains are followed for at most 1024 steps in all of a frame, and a frame that makes no sense is
//! counted in [`rx_malformed`](crate::QueueCounters::rx_malformed). A ring that makes none (an index that leaps) is not looked at
//! again until the peer sets it up anew; a frontend ends the connection for that, and makes it anew. Nor is one that cuts the file of its
//! memory short: a SIGBUS in it is caught (from the first peer on, for the whole process; of any other comes what would have come of it
//! before), and the memory is empty from then on.
//!
//! A page of its memory that holds nothing yet is counted as the memory of whoever touches it first, by control groups: as ours, where a
//! frame or a table of descriptors is said to lie there. A limit of ours (`MemoryMax=`) has to leave room for all of a peer's memory; one
//! that is to have more than this host has is refused.
//!
//! Its memory has to be in a memfd, /dev/shm or hugetlbfs, and what it notifies by an eventfd: a file of any other kind may be one of a
//! file system of its own (FUSE), and whoever touches that waits for it. Such a file is refused and closed;
//! where its file system has even the closing wait, the control thread waits, and with it whoever ends the device, or the process.
//! Whoever notifies a peer does not wait, whatever that does to its eventfd, where the kernel has asynchronous reads (`CONFIG_AIO`);
//! elsewhere a peer that has an eventfd count to its end, and then makes it waiting again, stops the one who notifies it.

mod backend;
mod control;
mod cut;
mod driver;
mod features;
mod frontend;
mod gate;
mod header;
#[doc(hidden)]
pub mod hostile;
mod inflight;
mod memory;
mod message;
mod notifier;
mod packed_device;
mod packed_driver;
mod port;
mod queue;
mod resume;
mod ring;
mod segments;
mod session;
mod setup;
mod slots;
mod socket;
mod split_device;
mod split_driver;
mod tracking;
mod transmitter;
mod turn;

#[cfg(test)]
mod descriptors;
#[cfg(test)]
mod in_order;
#[cfg(test)]
mod properties;

use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use thiserror::Error;

pub use control::Peers;
pub use queue::VhostQueue;
pub use ring::MAX_RING;

use crate::Pool;
use control::Control;
use port::Port;
use socket::Listener;

/// The most pairs of rings of a device.
pub const MAX_VHOST_QUEUES: u16 = 64;

/// Why there is no device.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum VhostError {
    /// The number of queues is out of range.
    #[error("a vhost-user device has 1 to {MAX_VHOST_QUEUES} queues, not {queues}")]
    Queues {
        /// What was given.
        queues: u16,
    },
    /// Somebody listens at the path.
    #[error(
        "{} is in use: another program listens there (ss -lxp names it); end it, or give another path",
        path.display()
    )]
    InUse {
        /// What was given.
        path: PathBuf,
    },
    /// Something else is at the path.
    #[error("{} exists and is no socket: remove it, or give another path", path.display())]
    NoSocket {
        /// What was given.
        path: PathBuf,
    },
    /// The operating system refused the path.
    #[error("cannot listen at {}: {source}", path.display())]
    Listen {
        /// What was given.
        path: PathBuf,
        /// What the operating system says.
        source: io::Error,
    },
    /// No ring has this size.
    #[error("a ring has 16 to {MAX_RING} entries, a power of two, not {ring}")]
    Ring {
        /// What was given.
        ring: u16,
    },
    /// The operating system refused descriptors or a thread.
    #[error("cannot make a vhost-user device: {0}")]
    System(#[from] io::Error),
}

/// Which backend a frontend drives, and with which rings.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FrontendConfig {
    /// Where its backend listens.
    pub path: PathBuf,
    /// Pairs of rings, from 1 to [`MAX_VHOST_QUEUES`].
    pub queues: u16,
    /// Whether they are packed.
    pub packed: bool,
    /// Entries of each, a power of two from 16 to [`MAX_RING`]. There is a buffer for each.
    pub ring: u16,
}

impl FrontendConfig {
    /// One pair of split rings of 256 entries.
    pub fn new(path: impl Into<PathBuf>) -> FrontendConfig {
        FrontendConfig { path: path.into(), queues: 1, packed: false, ring: 256 }
    }
}

/// A device's queues.
#[derive(Debug)]
pub struct Vhost {
    /// One for each pair of rings, in their order. The device goes with the last of them.
    pub queues: Vec<VhostQueue>,
    /// How it goes with its peers.
    pub peers: Arc<Peers>,
}

impl Vhost {
    /// A device that listens at `path`, with so many queues. Received frames are in buffers of `pool`.
    ///
    /// A socket at which nobody listens any more is replaced.
    ///
    /// # Errors
    /// What is out of range, or a path that cannot be had.
    pub fn backend(path: &Path, queues: u16, pool: &Pool) -> Result<Vhost, VhostError> {
        let ports = ports(queues, pool)?;
        let listener = Listener::bind(path)?;
        let peers = Arc::<Peers>::default();
        let (theirs, counts) = (Arc::clone(&ports), Arc::clone(&peers));
        let control = Control::start("vhost", &peers, move |stop| {
            backend::run(&listener, &theirs, &counts, stop);
        })?;
        Ok(Vhost::new(&ports, peers, control))
    }

    /// A device that drives the backend at a path. It need not be there yet: the path is tried again,
    /// and so it is when the backend has gone.
    ///
    /// # Errors
    /// What is out of range.
    pub fn frontend(config: &FrontendConfig, pool: &Pool) -> Result<Vhost, VhostError> {
        let FrontendConfig { ring, queues, .. } = *config;
        if !ring.is_power_of_two() || !(16..=MAX_RING).contains(&ring) {
            return Err(VhostError::Ring { ring });
        }
        let ports = ports(queues, pool)?;
        let peers = Arc::<Peers>::default();
        let (theirs, counts, config) = (Arc::clone(&ports), Arc::clone(&peers), config.clone());
        let control = Control::start("virtio-user", &peers, move |stop| {
            frontend::run(&config, &theirs, &counts, stop);
        })?;
        Ok(Vhost::new(&ports, peers, control))
    }

    fn new(ports: &Arc<[Arc<Port>]>, peers: Arc<Peers>, control: Control) -> Vhost {
        let control = Arc::new(control);
        let queue = |index| VhostQueue::new(ports, index, &peers, Some(&control));
        let queues = (0..ports.len()).map(queue).collect();
        Vhost { queues, peers }
    }
}

fn ports(queues: u16, pool: &Pool) -> Result<Arc<[Arc<Port>]>, VhostError> {
    if !(1..=MAX_VHOST_QUEUES).contains(&queues) {
        return Err(VhostError::Queues { queues });
    }
    let port = |_| Port::new(pool.clone()).map(Arc::new);
    Ok((0..queues).map(port).collect::<io::Result<Vec<_>>>()?.into())
}
