//! AF_XDP devices: an interface's own queues, with frames in memory that is shared with the kernel.
//!
//! A small XDP program, assembled here and attached to the interface, redirects the frames of each queue to that
//! queue's socket: all of them, or those to some of our ports ([`Traffic`]). All other frames go on to the kernel
//! untouched. The program is attached by a BPF link, which is a descriptor: the kernel detaches it when the last
//! queue and transmitter are dropped, or when the process ends in any way.
//!
//! The pool's memory is the UMEM that all queues of a device share: a received frame is returned where the kernel
//! put it. Bytes are copied only by the kernel, where the NIC cannot write to that memory itself
//! ([`Xdp::zero_copy`]), and once when a frame is sent by reference, since the sender keeps it.
//!
//! The rings' contents are not trusted: an index that no correct kernel writes is ignored, and a descriptor with such
//! an address is counted and dropped.
//!
//! Not supported: frames in several buffers (an MTU beyond some 1770 bytes), checksum offload and hardware
//! timestamps, one queue in two programs, and other XDP programs beside this one: an interface has one, so any
//! other program, or another napkin, has to be ended first.
//!
//! Needs Linux 5.11, `CAP_NET_RAW`, `CAP_NET_ADMIN` and `CAP_BPF`.

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
mod retry;
mod ring;
mod socket;
mod transmitter;
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

/// An open AF_XDP device.
#[derive(Debug)]
pub struct Xdp {
    /// The interface's own Ethernet address.
    pub mac: [u8; 6],
    /// The name of its driver.
    pub driver: String,
    /// Whether the program runs in the driver (native mode), not in the kernel's generic path.
    pub native: bool,
    /// Whether the NIC itself moves the bytes, not the kernel.
    pub zero_copy: bool,
    /// Whether the kernel's NAPI instance of each queue is known, so that it can be busy-polled from here. Since
    /// Linux 6.13 only zero-copy sockets have one; before, it is known once a frame has arrived.
    pub polled: bool,
    /// The number of queues of the interface; `None` where the driver does not report it.
    pub total: Option<u32>,
    /// The number of each open queue on the interface.
    pub numbers: Vec<u32>,
    /// The open queues, in the same order.
    pub queues: Vec<XdpQueue>,
}

impl Xdp {
    /// Opens the queues and then starts the redirection of their frames. The pool's memory is shared with the
    /// kernel; each queue keeps [`buffers_of_a_queue`](XdpConfig::buffers_of_a_queue) of its buffers, and the rest
    /// is for frames that the application holds.
    ///
    /// # Errors
    /// Those of [`XdpError`]; after an error nothing is left changed.
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
        // The redirection starts here.
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

/// The numbers of the queues to open. Fails if one does not exist.
fn numbers(config: &XdpConfig, interface: &Interface) -> Result<Vec<u32>, XdpError> {
    let queues = interface.queues.unwrap_or(1);
    if config.queues.is_empty() {
        return Ok((0..queues.min(MAX_XDP_QUEUES as u32)).collect());
    }
    // Where the driver does not report how many it has, `bind` fails for a missing one.
    let missing = |queue: &&u32| interface.queues.is_some_and(|queues| **queue >= queues);
    match config.queues.iter().find(missing) {
        Some(&queue) => Err(XdpError::NoQueue { name: config.interface.clone(), queue, queues }),
        None => Ok(config.queues.clone()),
    }
}

/// Checks the capabilities that are needed.
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
