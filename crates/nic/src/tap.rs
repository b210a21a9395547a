//! TAP devices: Ethernet frames to and from the operating system's network stack.
//!
//! The kernel treats a TAP interface as a network card: frames that it transmits are read here, and frames that are
//! written here it receives. One descriptor is one queue, and the kernel spreads flows over them. The interface is
//! not persistent: it is removed with the last of its queues, also if the process is killed.
//!
//! Its interrupt is the descriptor itself, readable while frames wait. It cannot be masked; the engine's one-shot
//! readiness does that, and arming it again checks the descriptor by itself. [`mask`](PacketQueue::mask) therefore
//! does nothing here, and [`unmask`](PacketQueue::unmask) has nothing to check. Transmissions complete within the
//! call that makes them: there are no completions and no interrupts for them.
//!
//! Not supported: offloads (frames carry no virtio header, so the kernel passes none that is longer than the MTU)
//! and routes.

use std::io::{self, IoSliceMut};
use std::net::Ipv4Addr;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::Path;
use std::sync::Arc;

use napkin_core::Work;
use napkin_policy::Ns;
use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;
use rustix::net::{AddressFamily, SocketFlags, SocketType, socket_with};
use thiserror::Error;

use crate::counters::add;
use crate::tun_ioctl::{NAME_MAX, Request, take_no_offloads};
use crate::{
    ETHERNET_HEADER, FRAME_CAPACITY, Frame, PacketQueue, Pool, QueueCounters, SendError,
    Transmitter,
};

const DEVICE: &str = "/dev/net/tun";

/// The most queues the kernel gives a TAP interface (`MAX_TAP_QUEUES`).
pub const MAX_TAP_QUEUES: u16 = 256;

/// The largest MTU whose frames fit a buffer, with an Ethernet header and one VLAN tag.
pub const MAX_TAP_MTU: u16 = (FRAME_CAPACITY - ETHERNET_HEADER - 4) as u16;

/// The settings of a TAP interface. Those that are `None` stay as they are.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TapConfig {
    /// The interface's name, at most 15 bytes; the kernel replaces a `%d` in it by the first free number. An
    /// existing multi-queue TAP interface of that name is used.
    pub name: String,
    /// Number of queues, from 1 to [`MAX_TAP_QUEUES`].
    pub queues: u16,
    /// The Ethernet address of the kernel's side.
    pub mac: Option<[u8; 6]>,
    /// The IPv4 address of the kernel's side, and its prefix length (at most 32).
    pub address: Option<(Ipv4Addr, u8)>,
    /// The MTU in bytes, from 68 to [`MAX_TAP_MTU`]; the kernel's default is 1500.
    pub mtu: Option<u16>,
    /// Whether to bring the kernel's side up.
    pub up: bool,
}

impl Default for TapConfig {
    /// One queue of an interface with a name from the kernel, up, without an address.
    fn default() -> Self {
        let name = String::from("napkin%d");
        TapConfig { name, queues: 1, mac: None, address: None, mtu: None, up: true }
    }
}

/// Why a TAP interface could not be opened.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum TapError {
    /// The tun driver is not loaded.
    #[error(
        "{DEVICE} does not exist: load the driver with `modprobe tun`; a container has to be \
             given the device"
    )]
    NoDriver,
    /// The process may not create interfaces.
    #[error(
        "no permission to {action}: it takes CAP_NET_ADMIN (run as root, or \
             `setcap cap_net_admin+ep` on the program) and access to {DEVICE}"
    )]
    Permission {
        /// What was tried.
        action: &'static str,
    },
    /// The name is not valid for an interface.
    #[error(
        "{name:?} cannot be the name of an interface: give 1 to {NAME_MAX} bytes without \
             spaces, `/` or `:`, and neither `.` nor `..`"
    )]
    Name {
        /// The name that was given.
        name: String,
    },
    /// The number of queues is out of range.
    #[error("a TAP interface has 1 to {MAX_TAP_QUEUES} queues, not {queues}")]
    Queues {
        /// The number that was given.
        queues: u16,
    },
    /// The MTU is out of range.
    #[error("an MTU of {mtu} is out of range: give 68 to {MAX_TAP_MTU}")]
    Mtu {
        /// The MTU that was given, in bytes.
        mtu: u16,
    },
    /// The prefix length is above 32.
    #[error("a prefix of {length} bits is out of range: give 0 to 32")]
    Prefix {
        /// The length that was given, in bits.
        length: u8,
    },
    /// An interface of that name exists and is not a multi-queue TAP interface.
    #[error(
        "the interface {name} exists and is not a TAP interface with several queues: choose \
             another name, or remove it with `ip link delete {name}`"
    )]
    NotTap {
        /// The interface's name.
        name: String,
    },
    /// Another process uses the interface, or all of its queues.
    #[error("the interface {name} is in use by another process: choose another name, or end it")]
    Busy {
        /// The interface's name.
        name: String,
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

/// An open TAP interface.
#[derive(Debug)]
pub struct Tap {
    /// The interface's actual name.
    pub name: String,
    /// The queues, as many as were asked for.
    pub queues: Vec<TapQueue>,
}

impl Tap {
    /// Creates or opens the interface, configures its kernel side and opens its queues. Frames are read into
    /// buffers of `pool`, which the queues share.
    pub fn open(config: &TapConfig, pool: &Pool) -> Result<Tap, TapError> {
        check(config)?;
        let mut name = config.name.clone();
        let mut queues = Vec::with_capacity(config.queues.into());
        for _ in 0..config.queues {
            let (descriptor, real) = attach(&name)?;
            name = real;
            queues.push(TapQueue::new(descriptor, pool.clone()));
        }
        configure(&name, config)?;
        Ok(Tap { name, queues })
    }
}

fn check(config: &TapConfig) -> Result<(), TapError> {
    let name = &config.name;
    let bad = |c: char| c.is_whitespace() || c.is_control() || c == '/' || c == ':';
    if name.is_empty()
        || name.len() > NAME_MAX
        || name.contains(bad)
        || name == "."
        || name == ".."
        || (name.contains('%') && name.matches('%').count() != name.matches("%d").count())
        || name.matches('%').count() > 1
    {
        return Err(TapError::Name { name: name.clone() });
    }
    if !(1..=MAX_TAP_QUEUES).contains(&config.queues) {
        return Err(TapError::Queues { queues: config.queues });
    }
    match (config.mtu, config.address) {
        (Some(mtu), _) if !(68..=MAX_TAP_MTU).contains(&mtu) => Err(TapError::Mtu { mtu }),
        (_, Some((_, length))) if length > 32 => Err(TapError::Prefix { length }),
        _ => Ok(()),
    }
}

/// Opens one queue of the interface `name`, which is created if it does not exist.
fn attach(name: &str) -> Result<(OwnedFd, String), TapError> {
    let action = "open a TAP queue";
    let flags = OFlags::RDWR | OFlags::NONBLOCK | OFlags::CLOEXEC;
    let descriptor =
        rustix::fs::open(Path::new(DEVICE), flags, Mode::empty()).map_err(|errno| match errno {
            Errno::NOENT | Errno::NXIO | Errno::NODEV => TapError::NoDriver,
            errno => system(action, name, errno.into()),
        })?;
    let mut request =
        Request::new(name).flags((libc::IFF_TAP | libc::IFF_NO_PI | libc::IFF_MULTI_QUEUE) as i16);
    match request.submit(&descriptor, libc::TUNSETIFF) {
        Ok(()) => {
            // A persistent interface keeps the offloads of its last user, and would pass GSO packets and packets
            // with incomplete checksums. A kernel that refuses the ioctl has no offloads to turn off.
            let _ = take_no_offloads(&descriptor);
            Ok((descriptor, request.name()))
        }
        Err(error) => Err(match error.raw_os_error() {
            Some(libc::EINVAL) => TapError::NotTap { name: name.into() },
            Some(libc::EBUSY | libc::E2BIG) => TapError::Busy { name: name.into() },
            _ => system(action, name, error),
        }),
    }
}

/// Applies `config` to the kernel's side.
fn configure(name: &str, config: &TapConfig) -> Result<(), TapError> {
    let mut steps: Vec<(&'static str, libc::Ioctl, Request)> = Vec::new();
    let request = Request::new(name);
    if let Some(mac) = config.mac {
        steps.push(("set the Ethernet address", libc::SIOCSIFHWADDR as _, request.ethernet(mac)));
    }
    if let Some(mtu) = config.mtu {
        steps.push(("set the MTU", libc::SIOCSIFMTU as _, request.number(mtu.into())));
    }
    if let Some((address, length)) = config.address {
        let mask = u32::MAX.checked_shl(32 - u32::from(length)).unwrap_or(0);
        let mask = Ipv4Addr::from_bits(mask);
        steps.push(("set the address", libc::SIOCSIFADDR as _, request.ipv4(address)));
        steps.push(("set the prefix", libc::SIOCSIFNETMASK as _, request.ipv4(mask)));
    }
    if steps.is_empty() && !config.up {
        return Ok(());
    }
    // Interface ioctls work on any socket.
    let action = "make a socket for the settings";
    let socket = socket_with(AddressFamily::INET, SocketType::DGRAM, SocketFlags::CLOEXEC, None)
        .map_err(|errno| system(action, name, errno.into()))?;
    for (action, code, mut request) in steps {
        request.submit(&socket, code).map_err(|error| system(action, name, error))?;
    }
    if config.up {
        let action = "bring up the kernel's side";
        let mut request = request;
        request
            .submit(&socket, libc::SIOCGIFFLAGS as _)
            .map_err(|error| system(action, name, error))?;
        request = request.flags(request.answered_flags() | libc::IFF_UP as i16);
        request
            .submit(&socket, libc::SIOCSIFFLAGS as _)
            .map_err(|error| system(action, name, error))?;
    }
    Ok(())
}

fn system(action: &'static str, name: &str, source: io::Error) -> TapError {
    match source.raw_os_error() {
        Some(libc::EPERM | libc::EACCES) => TapError::Permission { action },
        _ => TapError::System { action, name: name.into(), source },
    }
}

/// One queue of a TAP interface.
#[derive(Debug)]
pub struct TapQueue {
    wire: Arc<TapWire>,
    pool: Pool,
    /// Where frames are read to if no buffer is free: a frame has to be read to be dropped.
    spare: Box<[u8]>,
}

/// The descriptor and the counters, shared by the queue and its transmitters.
#[derive(Debug)]
struct TapWire {
    descriptor: OwnedFd,
    counters: Arc<QueueCounters>,
}

/// The result of one read.
enum Read {
    Frame(Frame),
    /// A frame that was counted and dropped.
    Dropped,
    Empty,
}

impl TapQueue {
    fn new(descriptor: OwnedFd, pool: Pool) -> TapQueue {
        let wire = Arc::new(TapWire { descriptor, counters: Arc::default() });
        TapQueue { wire, pool, spare: vec![0; FRAME_CAPACITY].into_boxed_slice() }
    }

    fn read(&mut self, now: Ns) -> Read {
        let counters = &self.wire.counters;
        let mut frame = self.pool.take();
        let buffer = frame.as_mut().map_or(&mut *self.spare, Frame::buffer);
        // The kernel silently truncates a frame that does not fit. One byte beyond the buffer tells such a frame
        // from one that fits exactly.
        let mut beyond = [0];
        let mut parts = [IoSliceMut::new(buffer), IoSliceMut::new(&mut beyond)];
        let len = match rustix::io::readv(&self.wire.descriptor, &mut parts) {
            Ok(len) => len,
            Err(errno) => {
                // The kernel returns EBADFD for a queue whose interface was removed. Any other error means that no
                // frame is available for the moment.
                if errno == Errno::BADFD {
                    counters.set_gone();
                }
                return Read::Empty;
            }
        };
        if len > FRAME_CAPACITY {
            add(&counters.rx_oversized, 1);
        } else if len < ETHERNET_HEADER {
            add(&counters.rx_truncated, 1);
        } else if let Some(mut frame) = frame {
            frame.set_len(len);
            frame.set_arrived(now);
            return Read::Frame(frame);
        } else {
            add(&counters.rx_no_buffer, 1);
        }
        Read::Dropped
    }
}

impl PacketQueue for TapQueue {
    fn poll(&mut self, budget: u16, now: Ns, into: &mut Vec<Frame>) -> Work {
        let (mut taken, mut packets, mut bytes) = (0, 0, 0);
        while taken < budget {
            match self.read(now) {
                Read::Frame(frame) => {
                    packets += 1;
                    bytes += frame.len() as u64;
                    into.push(frame);
                }
                Read::Dropped => {}
                Read::Empty => break,
            }
            taken += 1;
        }
        add(&self.wire.counters.rx_packets, packets);
        add(&self.wire.counters.rx_bytes, bytes);
        Work { rx: taken, tx: 0 }
    }

    /// Does nothing: the engine's one-shot readiness masks.
    fn mask(&mut self) {}

    /// Returns `false`: arming the descriptor again checks for frames by itself.
    fn unmask(&mut self, _now: Ns) -> bool {
        false
    }

    fn interrupt(&self) -> BorrowedFd<'_> {
        self.wire.descriptor.as_fd()
    }

    fn gone(&self) -> bool {
        self.wire.counters.gone()
    }

    /// Counts the interrupt. The descriptor stays readable until the frames are read.
    fn acknowledge(&mut self) {
        add(&self.wire.counters.interrupts_rx, 1);
    }

    fn transmitter(&self) -> Arc<dyn Transmitter> {
        Arc::clone(&self.wire) as Arc<dyn Transmitter>
    }

    fn counters(&self) -> Arc<QueueCounters> {
        Arc::clone(&self.wire.counters)
    }
}

impl TapWire {
    fn write(&self, frame: &[u8]) -> Result<(), SendError> {
        if frame.len() > FRAME_CAPACITY {
            return Err(SendError::TooLong);
        }
        if frame.len() < ETHERNET_HEADER {
            return Err(SendError::TooShort);
        }
        match rustix::io::write(&self.descriptor, frame) {
            Ok(_) => Ok(()),
            // The kernel's queue or memory is exhausted for the moment.
            Err(Errno::AGAIN | Errno::NOBUFS | Errno::NOMEM | Errno::INTR) => {
                Err(SendError::RingFull)
            }
            Err(errno) => {
                if errno == Errno::BADFD {
                    self.counters.set_gone();
                }
                Err(SendError::Down)
            }
        }
    }
}

impl Transmitter for TapWire {
    fn send(&self, frame: &[u8], _now: Ns) -> Result<(), SendError> {
        self.counters.sent(frame, self.write(frame))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn named(name: &str) -> TapConfig {
        TapConfig { name: name.into(), ..TapConfig::default() }
    }

    #[test]
    fn what_no_interface_can_be_is_refused_before_the_kernel_is_asked() {
        for name in ["", "sixteen-bytes-xx", "a b", "a/b", "a:b", ".", "..", "a%s", "%d%d"] {
            assert!(matches!(check(&named(name)), Err(TapError::Name { .. })), "{name:?}");
        }
        let queues = TapConfig { queues: 257, ..named("tap") };
        assert!(matches!(check(&queues), Err(TapError::Queues { queues: 257 })));
        let mtu = TapConfig { mtu: Some(9000), ..named("tap") };
        assert!(matches!(check(&mtu), Err(TapError::Mtu { mtu: 9000 })));
        let prefix = TapConfig { address: Some((Ipv4Addr::LOCALHOST, 33)), ..named("tap") };
        assert!(matches!(check(&prefix), Err(TapError::Prefix { length: 33 })));
        assert!(check(&named("napkin%d")).is_ok());
    }

    #[test]
    fn errors_say_what_to_do() {
        let denied = system("open a TAP queue", "tap0", io::Error::from_raw_os_error(libc::EPERM));
        assert!(denied.to_string().contains("CAP_NET_ADMIN"));
        assert!(TapError::NoDriver.to_string().contains("modprobe tun"));
    }
}
