//! The test setup: two network namespaces with a veth between them, a device on one end, and helpers for the other.

use std::net::{Ipv4Addr, Ipv6Addr, UdpSocket};
use std::os::fd::{AsFd, OwnedFd};
use std::time::Duration;

use napkin_kernel::namespace::Namespace;
use napkin_kernel::netlink::{Route, VethConfig};
use napkin_nic::xdp::{Traffic, Xdp, XdpConfig, XdpError, XdpQueue};
use napkin_nic::{Frame, PacketQueue, Pool};
use napkin_os::rights::Right;
use napkin_testing::{ignore, needs};
use rustix::event::{Timespec, epoll};

pub(crate) const OURS: Ipv4Addr = Ipv4Addr::new(198, 18, 0, 1);
/// Only in frames of tests; the kernel does not have this address.
pub(crate) const OURS6: Ipv6Addr = Ipv6Addr::new(0xfd00, 0, 0, 0, 0, 0, 0, 0x8001);
pub(crate) const THEIRS: Ipv4Addr = Ipv4Addr::new(198, 18, 0, 2);

/// Our end and the peer's end of the veth.
pub(crate) const DEVICE: &str = "nk-xdp";
pub(crate) const PEER: &str = "nk-peer";

/// Two namespaces and a veth; the test's thread is in the first namespace.
pub(crate) struct Lab {
    pub(crate) peer: Namespace,
    pub(crate) ifindex: u32,
}

impl Lab {
    pub(crate) fn new(queues: u32) -> Lab {
        for right in [Right::NetAdmin, Right::NetRaw, Right::Bpf, Right::SysAdmin] {
            needs(right.held(), right.name());
        }
        let own = Namespace::new().expect("a namespace");
        let peer = Namespace::new().expect("a namespace");
        own.enter_thread().expect("it is entered");
        let mut route = Route::open().expect("netlink");
        let config = VethConfig {
            name: DEVICE,
            peer: PEER,
            peer_namespace: Some(peer.as_fd()),
            rx_queues: queues,
            tx_queues: queues,
        };
        let ifindex = match route.add_veth(&config) {
            Ok(ifindex) => ifindex,
            Err(error) => ignore(error),
        };
        route.add_address(ifindex, OURS, 24).expect("an address");
        route.set_up(ifindex).expect("up");
        let set_up_peer = || {
            let mut route = Route::open().expect("netlink");
            let ifindex = route.link(PEER).expect("the other end").ifindex;
            route.add_address(ifindex, THEIRS, 24).expect("an address");
            route.set_up(ifindex).expect("up");
        };
        peer.run(set_up_peer).expect("the other namespace");
        Lab { peer, ifindex }
    }

    /// A kernel socket on the other side.
    pub(crate) fn socket(&self) -> UdpSocket {
        let bound = || {
            let socket = UdpSocket::bind((THEIRS, 0)).expect("the address is there");
            socket.set_read_timeout(Some(Duration::from_secs(10))).expect("it may");
            socket
        };
        self.peer.run(bound).expect("the other namespace")
    }

    /// An AF_XDP device at the other end, for a test that sends and receives its own frames.
    pub(crate) fn peer_device(&self) -> Engine {
        let config = XdpConfig { interface: PEER.into(), ..small(Traffic::All) };
        let mut device = self
            .peer
            .run(|| open(&config, &Pool::new(512)))
            .expect("the namespace")
            .expect("a device");
        Engine::new(device.queues.remove(0))
    }

    pub(crate) fn peer_device_of_all(&self) -> Vec<XdpQueue> {
        let config = XdpConfig { interface: PEER.into(), ..small(Traffic::All) };
        self.peer
            .run(|| open(&config, &Pool::new(1024)))
            .expect("the namespace")
            .expect("a device")
            .queues
    }
}

pub(crate) fn open(config: &XdpConfig, pool: &Pool) -> Result<Xdp, XdpError> {
    match Xdp::open(config, pool) {
        Err(error @ (XdpError::NoXdp | XdpError::NoLink)) => ignore(error),
        other => other,
    }
}

/// Small rings, which wrap often in a test.
pub(crate) fn small(traffic: Traffic) -> XdpConfig {
    XdpConfig { rx_ring: 64, tx_ring: 64, traffic, ..XdpConfig::new(DEVICE) }
}

/// The traffic to these ports of our addresses.
pub(crate) fn ports(ports: &[u16]) -> Traffic {
    let addresses = vec![OURS.into(), OURS6.into()];
    Traffic::Ports { ports: ports.to_vec(), addresses }
}

/// A minimal engine: sleeps, acknowledges and masks, polls, arms again.
pub(crate) struct Engine {
    epoll: OwnedFd,
    pub(crate) queue: XdpQueue,
    pub(crate) frames: Vec<Frame>,
}

impl Engine {
    pub(crate) fn new(queue: XdpQueue) -> Engine {
        let epoll = epoll::create(epoll::CreateFlags::CLOEXEC).expect("an epoll");
        let data = epoll::EventData::new_u64(0);
        epoll::add(&epoll, queue.interrupt(), data, epoll::EventFlags::empty()).expect("added");
        Engine { epoll, queue, frames: Vec::with_capacity(64) }
    }

    /// Whether an interrupt comes within `milliseconds`.
    pub(crate) fn sleeps(&mut self, milliseconds: i64) -> bool {
        let mut events = Vec::with_capacity(1);
        let timeout =
            Timespec { tv_sec: milliseconds / 1000, tv_nsec: milliseconds % 1000 * 1_000_000 };
        epoll::wait(&self.epoll, rustix::buffer::spare_capacity(&mut events), Some(&timeout))
            .expect("waited");
        if !events.is_empty() {
            self.queue.acknowledge();
            self.queue.mask();
        }
        !events.is_empty()
    }

    pub(crate) fn unmask(&mut self) {
        assert!(!self.queue.unmask(0), "nothing waits to be sent");
        let (data, flags) =
            (epoll::EventData::new_u64(0), epoll::EventFlags::IN | epoll::EventFlags::ONESHOT);
        epoll::modify(&self.epoll, self.queue.interrupt(), data, flags).expect("armed");
    }

    /// The next frame that is `wanted`, after any number of interrupts.
    pub(crate) fn next(&mut self, wanted: impl Fn(&Frame) -> bool) -> Frame {
        loop {
            while self.queue.poll(1, 7, &mut self.frames).rx == 1 {
                match self.frames.pop() {
                    Some(frame) if wanted(&frame) => return frame,
                    _ => {}
                }
            }
            self.unmask();
            assert!(self.sleeps(10_000), "nothing came: {:?}", self.queue);
        }
    }
}

/// Writes a numbered frame with a checksum, so that a changed frame is detected; returns its length.
pub(crate) fn numbered(number: u64, frame: &mut [u8]) -> usize {
    let length = 60 + (number % 1400) as usize;
    frame[..14].copy_from_slice(&[2, 0, 0, 0, 0, 1, 2, 0, 0, 0, 0, 2, 0x88, 0xb5]);
    frame[14..22].copy_from_slice(&number.to_be_bytes());
    let mut sum = number;
    for (at, byte) in frame[30..length].iter_mut().enumerate() {
        *byte = (number.wrapping_mul(31) >> (at % 8)) as u8;
        sum = sum.wrapping_mul(31).wrapping_add((*byte).into());
    }
    frame[22..30].copy_from_slice(&sum.to_be_bytes());
    length
}

pub(crate) fn checked(frame: &[u8]) -> Option<u64> {
    let word = |at: usize| Some(u64::from_be_bytes(*frame.get(at..at + 8)?.first_chunk()?));
    let number = word(14)?;
    let mut same = [0; 2048];
    let length = numbered(number, &mut same);
    (frame == &same[..length]).then_some(number)
}
