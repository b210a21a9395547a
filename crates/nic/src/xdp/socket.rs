//! An AF_XDP socket: created, given its rings, bound to one queue, and used for the wakeup calls to the kernel.

use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec};
use rustix::io::Errno;
use rustix::net::sockopt;
use rustix::net::xdp::{
    SocketAddrXdp, SocketAddrXdpFlags, SocketAddrXdpWithSharedUmem, XDP_PGOFF_RX_RING,
    XDP_PGOFF_TX_RING, XDP_UMEM_PGOFF_COMPLETION_RING, XDP_UMEM_PGOFF_FILL_RING, XdpOptionsFlags,
    XdpUmemReg, XdpUmemRegFlags,
};
use rustix::net::{AddressFamily, RecvFlags, SendFlags, SocketFlags, SocketType, socket_with};
use rustix::process::{Resource, getrlimit};

use super::config::{BusyPoll, Copying, XdpConfig};
use super::error::XdpError;
use super::interface::Interface;
use super::ring::{Consumer, Descriptor, Producer};
use crate::{FRAME_CAPACITY, Pool};

/// Bytes of socket memory per frame to be sent: more than any frame takes.
const SEND_MEMORY: u32 = 4096;

/// How often `bind` is retried, at 10 ms, while the queue is in use.
const BIND_RETRIES: u32 = 50;

/// The bound socket of one queue.
#[derive(Debug)]
pub(super) struct XdpSocket {
    socket: OwnedFd,
    /// Zero-copy with preferred busy polling: calls poll the NAPI instance instead of waking it.
    polled: bool,
    /// A model of the kernel that is called instead.
    #[cfg(test)]
    pub(super) kernel: Option<super::hostile::Kernel>,
}

/// The four rings of a queue.
#[derive(Debug)]
pub(super) struct Rings {
    /// Buffers for the kernel to receive into.
    pub(super) fill: Producer<u64>,
    pub(super) receive: Consumer<Descriptor>,
    pub(super) transmit: Producer<Descriptor>,
    /// Buffers of frames that have been sent.
    pub(super) complete: Consumer<u64>,
}

/// Counts of frames that were dropped before they reached the receive ring, since the socket was made.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(super) struct Dropped {
    /// Frames for which there was no room in the ring, or no buffer.
    pub(super) ring: u64,
    /// Frames dropped for another reason: mostly too long for a buffer.
    pub(super) other: u64,
}

impl Dropped {
    /// Computes the counts from the kernel's: `dropped` frames, frames that found the ring full, and attempts to
    /// take a buffer from an empty fill ring.
    fn of(zero_copy: bool, dropped: u64, ring_full: u64, no_buffer: u64) -> Dropped {
        match zero_copy {
            // A zero-copy driver that finds no buffer tries again later; no frame is lost by that.
            true => Dropped { ring: ring_full, other: dropped },
            // In copy mode there is one attempt for each frame, which the kernel also counts as dropped.
            false => Dropped {
                ring: ring_full.saturating_add(no_buffer),
                other: dropped.saturating_sub(no_buffer),
            },
        }
    }
}

/// The result of a wakeup call.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum CallResult {
    /// The kernel did what it could.
    Done,
    /// The kernel has more to do, or no room: call again.
    Again,
    /// The interface is down for the moment.
    Down,
    /// The interface has gone.
    Gone,
}

impl XdpSocket {
    /// Wraps any socket. One of another kind than AF_XDP, in a test, refuses the calls for AF_XDP.
    pub(super) fn other(socket: OwnedFd) -> XdpSocket {
        XdpSocket {
            socket,
            polled: false,
            #[cfg(test)]
            kernel: None,
        }
    }

    /// Creates and binds the socket of one queue. The first socket of a device registers the pool's memory; the
    /// others share it and pass that socket as `first`.
    pub(super) fn bind(
        config: &XdpConfig,
        interface: &Interface,
        queue: u32,
        pool: &Pool,
        copying: Copying,
        first: Option<BorrowedFd<'_>>,
    ) -> Result<(XdpSocket, Rings), XdpError> {
        let name = &config.interface;
        let wrong = |action| move |errno: Errno| XdpError::system(action, name, errno);
        let mut socket = XdpSocket::other(XdpSocket::open(name)?);
        if first.is_none() {
            socket.register(pool, name)?;
        }
        let action = "make the rings";
        let sizes = || {
            sockopt::set_xdp_umem_fill_ring_size(&socket.socket, config.rx_ring)?;
            // Twice the transmit ring, so that every sent frame has a place and the kernel never lacks one.
            let complete = config.tx_ring.saturating_mul(2);
            sockopt::set_xdp_umem_completion_ring_size(&socket.socket, complete)?;
            sockopt::set_xdp_rx_ring_size(&socket.socket, config.rx_ring)?;
            sockopt::set_xdp_tx_ring_size(&socket.socket, config.tx_ring)
        };
        sizes().map_err(wrong(action))?;
        let rings = socket.map(config).map_err(|error| XdpError::system(action, name, error))?;
        let flags = SocketAddrXdpFlags::XDP_USE_NEED_WAKEUP
            | match copying {
                Copying::Auto => SocketAddrXdpFlags::empty(),
                Copying::Copy => SocketAddrXdpFlags::XDP_COPY,
                Copying::Zero => SocketAddrXdpFlags::XDP_ZEROCOPY,
            };
        let bind = || match first {
            None => {
                let address = SocketAddrXdp::new(flags, interface.index, queue);
                rustix::net::bind(&socket.socket, &address)
            }
            // The flags of the first socket apply to all.
            Some(shared_umem_fd) => {
                let flags = SocketAddrXdpFlags::XDP_SHARED_UMEM;
                let addr = SocketAddrXdp::new(flags, interface.index, queue);
                let address = SocketAddrXdpWithSharedUmem { addr, shared_umem_fd };
                rustix::net::bind(&socket.socket, &address)
            }
        };
        // The kernel releases a socket's queue some time after the socket was closed.
        let mut bound = bind();
        for _ in 0..BIND_RETRIES {
            if bound != Err(Errno::BUSY) {
                break;
            }
            std::thread::sleep(Duration::from_millis(10));
            bound = bind();
        }
        bound.map_err(|errno| match errno {
            Errno::BUSY => XdpError::QueueInUse { name: name.clone(), queue },
            Errno::NETDOWN => XdpError::Down { name: name.clone() },
            Errno::INVAL if interface.queues.is_none_or(|queues| queue >= queues) => {
                XdpError::NoQueue {
                    name: name.clone(),
                    queue,
                    queues: interface.queues.unwrap_or(1),
                }
            }
            Errno::OPNOTSUPP | Errno::PROTONOSUPPORT if copying == Copying::Zero => {
                XdpError::NotZeroCopy { name: name.clone(), driver: interface.driver.clone() }
            }
            Errno::PERM | Errno::ACCESS => {
                XdpError::Permission { action: "bind an AF_XDP socket", right: "CAP_NET_RAW" }
            }
            errno => XdpError::system("bind to a queue", name, errno),
        })?;
        // Without CAP_NET_ADMIN the system's default remains, and fewer frames can be in flight.
        let _ = sockopt_u32(
            &socket.socket,
            libc::SO_SNDBUFFORCE,
            config.tx_ring.saturating_mul(SEND_MEMORY).min(i32::MAX as u32),
        );
        if let Some(poll) = config.busy_poll {
            socket.busy_poll(poll).map_err(|error| match error.raw_os_error() {
                Some(libc::EPERM) => {
                    XdpError::Permission { action: "busy poll", right: "CAP_NET_ADMIN" }
                }
                _ => XdpError::system("set busy polling", name, error),
            })?;
            socket.polled = poll.prefer && socket.zero_copy();
        }
        Ok((socket, rings))
    }

    fn open(name: &str) -> Result<OwnedFd, XdpError> {
        socket_with(AddressFamily::XDP, SocketType::RAW, SocketFlags::CLOEXEC, None).map_err(
            |errno| match errno {
                Errno::AFNOSUPPORT => XdpError::NoXdp,
                Errno::PERM => {
                    XdpError::Permission { action: "make an AF_XDP socket", right: "CAP_NET_RAW" }
                }
                errno => XdpError::system("make an AF_XDP socket", name, errno),
            },
        )
    }

    /// Registers the pool's memory as the UMEM.
    fn register(&self, pool: &Pool, name: &str) -> Result<(), XdpError> {
        let (base, bytes) = pool.shared();
        let memory = XdpUmemReg {
            addr: base.as_ptr().expose_provenance() as u64,
            len: bytes as u64,
            chunk_size: FRAME_CAPACITY as u32,
            headroom: 0,
            flags: XdpUmemRegFlags::empty(),
            tx_metadata_len: 0,
        };
        sockopt::set_xdp_umem_reg(&self.socket, memory).map_err(|errno| match errno {
            Errno::NOBUFS | Errno::PERM => {
                let limit = getrlimit(Resource::Memlock).current.unwrap_or(u64::MAX) / 1024;
                XdpError::Memlock { needed: (bytes as u64).div_ceil(1024), limit }
            }
            errno => XdpError::system("share the buffers", name, errno),
        })
    }

    fn map(&self, config: &XdpConfig) -> io::Result<Rings> {
        let offsets = sockopt::xdp_mmap_offsets(&self.socket)?;
        let (rx, tx) = (config.rx_ring, config.tx_ring);
        Ok(Rings {
            fill: Producer::map(&self.socket, XDP_UMEM_PGOFF_FILL_RING, &offsets.fr, rx)?,
            receive: Consumer::map(&self.socket, XDP_PGOFF_RX_RING, &offsets.rx, rx)?,
            transmit: Producer::map(&self.socket, XDP_PGOFF_TX_RING, &offsets.tx, tx)?,
            complete: Consumer::map(
                &self.socket,
                XDP_UMEM_PGOFF_COMPLETION_RING,
                &offsets.cr,
                tx.saturating_mul(2),
            )?,
        })
    }

    fn busy_poll(&self, poll: BusyPoll) -> io::Result<()> {
        sockopt_u32(&self.socket, libc::SO_PREFER_BUSY_POLL, poll.prefer.into())?;
        sockopt_u32(&self.socket, libc::SO_BUSY_POLL, poll.usecs)?;
        sockopt_u32(&self.socket, libc::SO_BUSY_POLL_BUDGET, poll.budget.into())
    }

    /// The NAPI id of the last received frames; 0 where the kernel knows none.
    pub(super) fn napi_id(&self) -> u32 {
        let mut id = 0_u32;
        let mut length = size_of::<u32>() as libc::socklen_t;
        let fd = self.socket.as_raw_fd();
        // SAFETY: the descriptor is open; the option's value is a 4-byte number, for which there is room.
        let answer = unsafe {
            libc::getsockopt(
                fd,
                libc::SOL_SOCKET,
                libc::SO_INCOMING_NAPI_ID,
                std::ptr::from_mut(&mut id).cast(),
                &raw mut length,
            )
        };
        if answer == 0 { id } else { 0 }
    }

    /// Whether the socket is in zero-copy mode.
    pub(super) fn zero_copy(&self) -> bool {
        sockopt::xdp_options(&self.socket)
            .is_ok_and(|options| options.contains(XdpOptionsFlags::XDP_OPTIONS_ZEROCOPY))
    }

    /// Reads the kernel's counts of dropped frames, for a socket that is [`zero_copy`](Self::zero_copy) or not.
    pub(super) fn dropped(&self, zero_copy: bool) -> Option<Dropped> {
        #[cfg(test)]
        if let Some(kernel) = &self.kernel {
            let ring = kernel.dropped.load(std::sync::atomic::Ordering::Relaxed).into();
            return Some(Dropped { ring, other: 0 });
        }
        let counts = sockopt::xdp_statistics(&self.socket).ok()?;
        let (full, no_buffer) = (counts.rx_ring_full, counts.rx_fill_ring_empty_descs);
        let (full, no_buffer) = (full.unwrap_or(0), no_buffer.unwrap_or(0));
        Some(Dropped::of(zero_copy, counts.rx_dropped, full, no_buffer))
    }

    /// Wakes the kernel's receive side: there are new buffers to fill, or its NAPI instance is to be polled.
    pub(super) fn receive(&self) -> CallResult {
        #[cfg(test)]
        if let Some(kernel) = &self.kernel {
            kernel.received.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
            return CallResult::Done;
        }
        let none: &mut [u8] = &mut [];
        CallResult::from(rustix::net::recv(&self.socket, none, RecvFlags::DONTWAIT).map(drop))
    }

    /// Has the kernel send the frames in the ring, or some of them.
    pub(super) fn send(&self) -> CallResult {
        #[cfg(test)]
        if let Some(kernel) = &self.kernel {
            return kernel.send();
        }
        CallResult::from(rustix::net::send(&self.socket, &[], SendFlags::DONTWAIT).map(drop))
    }

    /// Wakes the transmit side after a call to send made no progress: with preferred busy polling, the call polls
    /// the instance that receives, and wakes none. Where a NIC transmits from another instance (igb), that one
    /// would otherwise never run.
    pub(super) fn wake(&self) {
        if self.polled {
            let mut fds = [PollFd::new(&self.socket, PollFlags::OUT)];
            let _ = rustix::event::poll(&mut fds, Some(&Timespec::default()));
        }
    }
}

impl From<Result<(), Errno>> for CallResult {
    fn from(answer: Result<(), Errno>) -> CallResult {
        match answer {
            Ok(()) => CallResult::Done,
            Err(Errno::NETDOWN) => CallResult::Down,
            Err(Errno::NXIO | Errno::BADF | Errno::NODEV) => CallResult::Gone,
            // EBUSY means that the peer of a veth had no room for a frame: the frame is lost, and the rest waits.
            // The other errors mean that memory or room is short.
            Err(_) => CallResult::Again,
        }
    }
}

impl AsFd for XdpSocket {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

/// Sets a socket option whose value is a number.
fn sockopt_u32(socket: &OwnedFd, option: libc::c_int, value: u32) -> io::Result<()> {
    let fd = socket.as_raw_fd();
    let length = size_of::<u32>() as libc::socklen_t;
    // SAFETY: the descriptor is open, and the value has the stated length.
    let answer = unsafe {
        libc::setsockopt(fd, libc::SOL_SOCKET, option, std::ptr::from_ref(&value).cast(), length)
    };
    if answer < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_empty_fill_ring_loses_a_frame_where_the_kernel_copies_and_none_where_the_card_writes() {
        let (dropped, full, no_buffer) = (7, 2, 5);
        let copied = Dropped::of(false, dropped, full, no_buffer);
        assert_eq!(copied, Dropped { ring: 7, other: 2 });
        let written = Dropped::of(true, dropped, full, no_buffer);
        assert_eq!(written, Dropped { ring: 2, other: 7 });
    }
}
