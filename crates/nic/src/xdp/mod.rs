//! AF_XDP: an interface's own queues, their frames in memory that is shared with the kernel.
//!
//! A small program, assembled here and attached to the interface, redirects what arrives on a queue to
//! that queue's socket: all of it, or what goes to some ports of ours ([`Traffic`]). Everything else goes on to
//! the kernel untouched. The program is attached by a link, a descriptor: the kernel detaches it when
//! the last queue and transmitter are dropped or the process ends, however it ends.
//!
//! The pool's memory is the shared memory, for all queues of a device: a frame is handed out where the
//! kernel put it, and nothing is copied but by the kernel where the card cannot write there itself
//! ([`Xdp::zero_copy`] says which). What is sent is copied once, since its sender keeps it.
//!
//! The rings' contents are checked as a stranger's would be: an index or an address that the kernel
//! cannot have meant is counted and dropped.
//!
//! Not here: frames in several buffers (an MTU beyond some 1770 bytes), checksum offload and time
//! stamps of cards, the same queue for two programs, and programs other than this one: an interface
//! has one, so whoever has another attached, or another napkin, has to end it first.
//!
//! It takes Linux 5.11, `CAP_NET_RAW`, `CAP_NET_ADMIN` and `CAP_BPF`.

mod attachment;
mod busy;
mod config;
mod error;
#[doc(hidden)]
pub mod hostile;
mod interface;
mod limits;
mod program;
mod queue;
mod ring;
mod socket;
mod transmitter;
mod untaken;
mod watch;

use std::os::fd::AsFd;
use std::sync::Arc;

use napkin_os::rights::Right;

use self::attachment::attach;
pub use self::busy::{BusyPolling, BusyVerdict};
pub use self::config::{BusyPoll, Copying, Mode, Traffic, XdpConfig};
pub use self::error::XdpError;
use self::interface::{Interface, promiscuous};
pub use self::limits::{MAX_PORTS, MAX_RING, MAX_XDP_ADDRESSES, MAX_XDP_QUEUES};
pub use self::queue::XdpQueue;
use self::socket::XdpSocket;
use self::transmitter::Wire;
use crate::Pool;

/// An AF_XDP device's queues, fresh from the kernel.
#[derive(Debug)]
pub struct Xdp {
    /// The interface's own Ethernet address.
    pub mac: [u8; 6],
    /// The name of its driver.
    pub driver: String,
    /// Whether the program runs in the driver, and not behind it.
    pub native: bool,
    /// Whether the card itself moves the bytes, and not the kernel.
    pub zero_copy: bool,
    /// Whether the kernel's NAPI of each queue is known, so that it can be polled from here. Since Linux 6.13
    /// that of a zero-copy socket alone is; before, it is known once a frame has come.
    pub polled: bool,
    /// How many queues the interface has; `None` where the driver does not say.
    pub total: Option<u32>,
    /// The number of each queue on the interface.
    pub numbers: Vec<u32>,
    /// One for each, in the same order.
    pub queues: Vec<XdpQueue>,
}

impl Xdp {
    /// Opens the queues and then lets their frames come. The pool's memory is shared with the kernel;
    /// each queue keeps [`buffers_of_a_queue`](XdpConfig::buffers_of_a_queue) of its buffers, and the
    /// rest is for frames in the application's hands.
    ///
    /// # Errors
    /// As they say; nothing is left changed.
    pub fn open(config: &XdpConfig, pool: &Pool) -> Result<Xdp, XdpError> {
        config.check()?;
        let interface = Interface::find(&config.interface)?;
        let numbers = numbers(config, &interface)?;
        rights()?;
        let needed = numbers.len() * config.buffers_of_a_queue();
        if pool.available() < needed {
            let (queues, given) = (numbers.len(), pool.available());
            return Err(XdpError::Buffers { queues, needed, given });
        }
        let wrong =
            |error| XdpError::system("take frames to any address", &config.interface, error);
        let open_to_all = config.promiscuous.then(|| promiscuous(interface.index));
        let open_to_all = open_to_all.transpose().map_err(wrong)?.map(Arc::new);
        let (attachment, native) = attach(config, &interface, &numbers)?;
        let copying = match (native, config.copying) {
            (false, Copying::Auto) => Copying::Copy,
            (_, copying) => copying,
        };
        let mut queues: Vec<XdpQueue> = Vec::with_capacity(numbers.len());
        let mut wires: Vec<Arc<Wire>> = Vec::with_capacity(numbers.len());
        for &number in &numbers {
            let first = wires.first().map(|wire| wire.socket.as_fd());
            let (socket, rings) =
                XdpSocket::bind(config, &interface, number, pool, copying, first)?;
            let out = (rings.transmit, rings.complete);
            let buffers = config.tx_ring as usize;
            let attachment = Arc::new((Arc::clone(&attachment), open_to_all.clone()));
            let wire = Wire::new(socket, out, pool, buffers, attachment)
                .map_err(|error| XdpError::system("watch a queue", &config.interface, error))?;
            let wire = Arc::new(wire);
            let busy = config.busy_poll.is_some();
            let (receive, fill) = (rings.receive, rings.fill);
            let queue = XdpQueue::new(Arc::clone(&wire), receive, fill, pool, config.rx_ring, busy)
                .map_err(|error| XdpError::system("watch a queue", &config.interface, error))?;
            queues.push(queue);
            wires.push(wire);
        }
        // Frames come from here on.
        for (&number, wire) in numbers.iter().zip(&wires) {
            attachment.map.set(number, wire.socket.as_fd()).map_err(|error| {
                XdpError::system("redirect to the socket", &config.interface, error)
            })?;
        }
        let zero_copy = wires.iter().all(|wire| wire.socket.zero_copy());
        let polled = wires.iter().all(|wire| wire.socket.napi_id() != 0);
        let Interface { mac, driver, queues: total, .. } = interface;
        Ok(Xdp { mac, driver, native, zero_copy, polled, total, numbers, queues })
    }
}

/// The queues that are ours: each there.
fn numbers(config: &XdpConfig, interface: &Interface) -> Result<Vec<u32>, XdpError> {
    let queues = interface.queues.unwrap_or(1);
    if config.queues.is_empty() {
        return Ok((0..queues.min(MAX_XDP_QUEUES as u32)).collect());
    }
    // Where the driver does not say how many it has, binding tells.
    let missing = |queue: &&u32| interface.queues.is_some_and(|queues| **queue >= queues);
    match config.queues.iter().find(missing) {
        Some(&queue) => Err(XdpError::NoQueue { name: config.interface.clone(), queue, queues }),
        None => Ok(config.queues.clone()),
    }
}

/// What is needed and can be asked for beforehand.
fn rights() -> Result<(), XdpError> {
    let needed = [
        (Right::NetAdmin, "attach an XDP program"),
        (Right::NetRaw, "make an AF_XDP socket"),
        (Right::Bpf, "load an XDP program"),
    ];
    match needed.into_iter().find(|(right, _)| !right.held()) {
        Some((right, action)) => Err(XdpError::Permission { action, right: right.name() }),
        None => Ok(()),
    }
}
