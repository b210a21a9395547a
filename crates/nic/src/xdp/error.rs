//! The errors of opening an AF_XDP device.

use std::io;

use thiserror::Error;

use super::limits::{MAX_PORTS, MAX_RING, MAX_XDP_ADDRESSES, MAX_XDP_QUEUES};

/// Why an AF_XDP device could not be opened. After any of them nothing is left changed.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum XdpError {
    /// The size of a ring is out of range or not a power of two.
    #[error("a {which} ring of {size} frames: give a power of two up to {MAX_RING}")]
    Ring {
        /// The ring: receive or transmit.
        which: &'static str,
        /// The size that was given, in frames.
        size: u32,
    },
    /// No ports, too many, or port 0.
    #[error("{given} ports: give 1 to {MAX_PORTS} ports, each from 1 to 65535")]
    Ports {
        /// How many were given.
        given: usize,
    },
    /// No addresses, or too many.
    #[error("{given} addresses: give 1 to {MAX_XDP_ADDRESSES}")]
    Addresses {
        /// How many were given.
        given: usize,
    },
    /// More queues than supported.
    #[error("{given} queues: give at most {MAX_XDP_QUEUES}")]
    TooManyQueues {
        /// How many were given.
        given: usize,
    },
    /// A queue is given twice.
    #[error("queue {queue} is given twice")]
    Twice {
        /// Its number on the interface, from 0.
        queue: u32,
    },
    /// Zero-copy was requested in generic mode.
    #[error("zero-copy needs native mode: the card's driver has to know of the program")]
    GenericCopies,
    /// A busy polling time or budget of 0.
    #[error("busy polling takes at least 1 us and a budget of at least 1 frame")]
    BusyPoll,
    /// No interface has this name.
    #[error("there is no interface {name} here (ip link shows those there are)")]
    NoInterface {
        /// The name that was given.
        name: String,
    },
    /// The interface is not an Ethernet interface.
    #[error("{name} is not an Ethernet interface: AF_XDP here takes Ethernet frames")]
    NotEthernet {
        /// The interface's name.
        name: String,
    },
    /// The interface is down.
    #[error("{name} is down: bring it up with `ip link set {name} up`")]
    Down {
        /// The interface's name.
        name: String,
    },
    /// The interface has no such queue.
    #[error(
        "{name} has no queue {queue}: it receives and sends on {queues} (from 0 on); `ethtool -L \
         {name}` changes that"
    )]
    NoQueue {
        /// The interface's name.
        name: String,
        /// The queue that was asked for.
        queue: u32,
        /// The number of queues of the interface.
        queues: u32,
    },
    /// The kernel was built without AF_XDP.
    #[error("this kernel has no AF_XDP (CONFIG_XDP_SOCKETS)")]
    NoXdp,
    /// The kernel does not support BPF links for XDP.
    #[error(
        "this kernel cannot attach an XDP program by a link (it takes Linux 5.9), and one that \
         would outlive this process is not attached"
    )]
    NoLink,
    /// The process lacks a capability.
    #[error(
        "no permission to {action}: it takes {right} (run as root, or give it with `setcap \
         cap_net_raw,cap_net_admin,cap_bpf+ep` to the program)"
    )]
    Permission {
        /// What was tried.
        action: &'static str,
        /// The capability, as `CAP_NET_RAW`.
        right: &'static str,
    },
    /// `RLIMIT_MEMLOCK` is too low.
    #[error(
        "the buffers take {needed} KiB of memory that is locked, and this process may lock {limit} \
         KiB: `ulimit -l {needed}` (LimitMEMLOCK= of a unit), or CAP_IPC_LOCK"
    )]
    Memlock {
        /// KiB that are needed.
        needed: u64,
        /// KiB that are allowed.
        limit: u64,
    },
    /// The pool is too small.
    #[error("{queues} queues keep {needed} buffers with the kernel, and the pool has {given}")]
    Buffers {
        /// How many queues.
        queues: usize,
        /// Buffers that they need.
        needed: usize,
        /// Buffers that are free.
        given: usize,
    },
    /// Another XDP program is attached.
    #[error(
        "an XDP program is attached to {name} already, of another napkin or another program: end \
         that first (`ip link show {name}` tells the program's id)"
    )]
    Attached {
        /// The interface's name.
        name: String,
    },
    /// Another socket is bound to the queue.
    #[error("queue {queue} of {name} is in use by another AF_XDP socket")]
    QueueInUse {
        /// The interface's name.
        name: String,
        /// Its number on the interface, from 0.
        queue: u32,
    },
    /// The driver does not support native XDP.
    #[error("the driver of {name} ({driver}) has no native XDP: leave the mode to generic")]
    NotNative {
        /// The interface's name.
        name: String,
        /// Its driver, as `ethtool -i` names it.
        driver: String,
    },
    /// The driver does not support zero-copy.
    #[error("the driver of {name} ({driver}) has no zero-copy: let the kernel copy")]
    NotZeroCopy {
        /// The interface's name.
        name: String,
        /// Its driver, as `ethtool -i` names it.
        driver: String,
    },
    /// The kernel refused the program.
    #[error("the kernel refused the XDP program: {source}{}{log}", if log.is_empty() { "" } else { ": " })]
    Program {
        /// The operating system's error.
        source: io::Error,
        /// The verifier's log.
        log: String,
    },
    /// The operating system refused a step for another reason.
    #[error("cannot {action} of {name}: {source}")]
    System {
        /// What was tried.
        action: &'static str,
        /// The interface's name.
        name: String,
        /// The operating system's error.
        source: io::Error,
    },
}

impl XdpError {
    pub(super) fn system(
        action: &'static str,
        name: &str,
        source: impl Into<io::Error>,
    ) -> XdpError {
        XdpError::System { action, name: name.to_owned(), source: source.into() }
    }
}
