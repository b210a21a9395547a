//! Virtio network devices over vhost-user: rings in memory that two processes share, negotiated over a Unix socket.
//!
//! As a **backend** ([`Vhost::backend`]) our device is the NIC of a peer that drives it: of a virtual machine
//! (QEMU, cloud-hypervisor), or of a program (DPDK's `virtio_user`). It listens at a path, serves one peer at a
//! time, and listens again when the peer is gone. As a **frontend** ([`Vhost::frontend`]) it drives a peer's device
//! (DPDK's `net_vhost`, VPP, another napkin): it connects to a path, and reconnects when the peer is gone.
//!
//! Virtio can switch notifications off completely: masking writes a word in shared memory, without a system call;
//! unmasking writes another and checks the ring once more. A poll copies each frame once, makes no system call and
//! allocates nothing; the peer is notified only if it has asked for it.
//!
//! Rings are split or packed, with event indices; a frame may span several of a peer's buffers (mergeable receive
//! buffers); checksums that a peer leaves open are completed. TCP packets of up to 64 KiB that it leaves to be
//! segmented (TSO) are segmented on receipt, by a backend and, in rings of at least 64 entries with mergeable
//! buffers, by a frontend. A peer that drives may use indirect descriptors. Buffers are used in order
//! (`VIRTIO_F_IN_ORDER`) where both sides negotiate it; a backend then need not mark each as used, and on packed
//! rings ours marks a burst with one descriptor. It does not do so where the next backend has to find its position
//! in the ring itself; after another implementation's backend that does, our device may start at the wrong
//! position. Large packets towards a driver are not offered: a frame has at most
//! [`FRAME_CAPACITY`](crate::FRAME_CAPACITY) bytes here. There are no control queues, no migration (logging), no
//! virtio before 1.0, and no IOMMU.
//!
//! # Restarts
//!
//! The chains that a backend has taken and not yet returned are recorded in memory that outlives it, if a frontend
//! has negotiated that (`VHOST_USER_PROTOCOL_F_INFLIGHT_SHMFD`): the next backend continues at the descriptor at
//! which the last one was killed, with split and packed rings alike. Our frontend then keeps its rings, with their
//! contents, for the next backend. Without such a record, a split ring's used index tells where to continue, and so
//! do a packed ring's descriptors, if its driver was offered indirect ones (it then chains none): a virtual machine
//! of QEMU's continues with either.
//!
//! # Hostile peers
//!
//! A hostile peer can stop its own traffic, delay the end of this process, and have memory charged to this process
//! (both below), but nothing else. Its messages are checked before they take effect ([`Peers`] counts the refused
//! ones), descriptors are read once and checked against the shared memory with each access, chains are followed for
//! at most 1024 steps per frame, and an invalid frame is counted in
//! [`rx_malformed`](crate::QueueCounters::rx_malformed). An invalid ring (an index that jumps) is ignored until the
//! peer sets it up again; a frontend closes the connection instead and makes a new one. A peer may also truncate
//! the file of its memory: the SIGBUS is caught (from the first peer on, for the whole process; any other SIGBUS
//! has the effect it would have had before), and the memory reads as zeros from then on.
//!
//! A page of its memory that holds nothing yet is charged to the control group of the process that touches it
//! first: to ours, if a frame or a descriptor table is said to lie there. A memory limit of ours (`MemoryMax=`) has
//! to leave room for all of a peer's memory; a peer that shares more memory than this host has is refused.
//!
//! Its memory must be in a memfd, /dev/shm or hugetlbfs, and its notification descriptors must be eventfds: a file
//! of any other kind may belong to a file system that the peer itself serves (FUSE), which could block any access.
//! Such a file is refused and closed; if its file system blocks even the close, the control thread blocks, and with
//! it the end of the device or of the process. Notifying a peer never blocks, whatever the peer does to its
//! eventfd, if the kernel has asynchronous I/O (`CONFIG_AIO`); otherwise a peer that drives an eventfd's count to
//! its maximum and then makes it blocking again stops the thread that notifies it.

mod backend;
mod control;
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
mod packed_ring;
mod port;
mod queue;
mod resume;
mod ring;
mod segments;
mod session;
mod setup;
mod sigbus;
mod slots;
mod socket;
mod split_device;
mod split_driver;
mod tracking;
mod transmitter;

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

/// The most ring pairs of a device.
pub const MAX_VHOST_QUEUES: u16 = 64;

/// Why a device could not be made.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum VhostError {
    /// The number of queues is out of range.
    #[error("a vhost-user device has 1 to {MAX_VHOST_QUEUES} queues, not {queues}")]
    Queues {
        /// The number that was given.
        queues: u16,
    },
    /// Another program listens at the path.
    #[error(
        "{} is in use: another program listens there (ss -lxp names it); end it, or give another path",
        path.display()
    )]
    InUse {
        /// The path that was given.
        path: PathBuf,
    },
    /// A file that is not a socket is at the path.
    #[error("{} exists and is no socket: remove it, or give another path", path.display())]
    NoSocket {
        /// The path that was given.
        path: PathBuf,
    },
    /// The operating system refused the path.
    #[error("cannot listen at {}: {source}", path.display())]
    Listen {
        /// The path that was given.
        path: PathBuf,
        /// The operating system's error.
        source: io::Error,
    },
    /// The size of the rings is out of range, or not a power of two.
    #[error("a ring has 16 to {MAX_RING} entries, a power of two, not {ring}")]
    Ring {
        /// The size that was given, in entries.
        ring: u16,
    },
    /// The operating system refused descriptors or a thread.
    #[error("cannot make a vhost-user device: {0}")]
    System(#[from] io::Error),
}

/// The configuration of a frontend: the path of its backend, and its rings.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FrontendConfig {
    /// The path that the backend listens at.
    pub path: PathBuf,
    /// Number of ring pairs, from 1 to [`MAX_VHOST_QUEUES`].
    pub queues: u16,
    /// Whether the rings are packed.
    pub packed: bool,
    /// Entries of each ring, a power of two from 16 to [`MAX_RING`]. There is a buffer for each.
    pub ring: u16,
}

impl FrontendConfig {
    /// One pair of split rings of 256 entries.
    pub fn new(path: impl Into<PathBuf>) -> FrontendConfig {
        FrontendConfig { path: path.into(), queues: 1, packed: false, ring: 256 }
    }
}

/// A virtio network device.
#[derive(Debug)]
pub struct Vhost {
    /// One queue for each ring pair, in order. The device is closed with the last of them.
    pub queues: Vec<VhostQueue>,
    /// Counters of the device's peers.
    pub peers: Arc<Peers>,
}

impl Vhost {
    /// Makes a device with `queues` queues that listens at `path`. Received frames are in buffers of `pool`. A
    /// stale socket at the path, without a listener, is replaced.
    ///
    /// # Errors
    /// The number of queues is out of range, or the path cannot be used.
    pub fn backend(path: &Path, queues: u16, pool: &Pool) -> Result<Vhost, VhostError> {
        let ports = ports(queues, pool)?;
        let listener = Listener::bind(path)?;
        let peers = Arc::<Peers>::default();
        let (thread_ports, counts) = (Arc::clone(&ports), Arc::clone(&peers));
        let control = Control::start("vhost", &peers, move |stop| {
            backend::run(&listener, &thread_ports, &counts, stop);
        })?;
        Ok(Vhost::new(&ports, peers, control))
    }

    /// Makes a device that drives the backend at a path. The backend need not be there yet: connecting is retried,
    /// also after the backend has gone.
    ///
    /// # Errors
    /// A number is out of range, or the operating system refuses descriptors or a thread.
    pub fn frontend(config: &FrontendConfig, pool: &Pool) -> Result<Vhost, VhostError> {
        let FrontendConfig { ring, queues, .. } = *config;
        if !ring.is_power_of_two() || !(16..=MAX_RING).contains(&ring) {
            return Err(VhostError::Ring { ring });
        }
        let ports = ports(queues, pool)?;
        let peers = Arc::<Peers>::default();
        let (thread_ports, counts, config) =
            (Arc::clone(&ports), Arc::clone(&peers), config.clone());
        let control = Control::start("virtio-user", &peers, move |stop| {
            frontend::run(&config, &thread_ports, &counts, stop);
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
