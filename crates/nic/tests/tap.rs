//! Tests of a TAP interface between this process and the kernel: a datagram out and one back.
//!
//! Ignored without /dev/net/tun and CAP_NET_ADMIN.

use std::io::ErrorKind;
use std::net::{Ipv4Addr, UdpSocket};
use std::time::Duration;

use napkin_nic::tap::{Tap, TapConfig, TapError};
use napkin_nic::{Frame, PacketQueue, Pool, SendError};
use napkin_testing::{ignore, test};
use rustix::event::{PollFd, PollFlags, Timespec, poll};

const OURS: [u8; 6] = [2, 0, 0, 0, 0, 2];
const KERNELS: [u8; 6] = [2, 0, 0, 0, 0, 1];

/// Opens an interface. Skips the test without the driver or the privileges.
fn open(config: &TapConfig, pool: &Pool) -> Result<Tap, TapError> {
    match Tap::open(config, pool) {
        Err(error @ (TapError::NoDriver | TapError::Permission { .. })) => ignore(error),
        other => other,
    }
}

/// The kernel's address and ours, in a subnet of the benchmark network 198.18.0.0/15 (RFC 2544) that depends on the
/// process id and `part` (0 or 1).
fn addresses(part: u8) -> (Ipv4Addr, Ipv4Addr) {
    let net = (std::process::id() % 128) as u8 + 128 * part;
    (Ipv4Addr::new(198, 18, net, 1), Ipv4Addr::new(198, 18, net, 2))
}

/// The next frame of any queue that `wanted` accepts.
fn next(tap: &mut Tap, wanted: impl Fn(&Frame) -> bool) -> Frame {
    loop {
        let mut fds: Vec<_> = tap
            .queues
            .iter()
            .map(|q| PollFd::from_borrowed_fd(q.interrupt(), PollFlags::IN))
            .collect();
        // A kernel that does not send within ten seconds never will.
        let timeout = Timespec { tv_sec: 10, tv_nsec: 0 };
        assert_ne!(poll(&mut fds, Some(&timeout)).expect("poll"), 0, "the kernel sent nothing");
        drop(fds);
        for queue in &mut tap.queues {
            let mut frames = Vec::with_capacity(1);
            while queue.poll(1, 7, &mut frames).rx == 1 {
                match frames.pop() {
                    Some(frame) if wanted(&frame) => return frame,
                    _ => {}
                }
            }
        }
    }
}

/// The ARP reply that tells the kernel that `address` is here.
fn arp_reply(kernel: Ipv4Addr, address: Ipv4Addr) -> Vec<u8> {
    let mut frame = [KERNELS, OURS].concat();
    frame.extend([0x08, 0x06, 0, 1, 8, 0, 6, 4, 0, 2]);
    frame.extend(OURS);
    frame.extend(address.octets());
    frame.extend(KERNELS);
    frame.extend(kernel.octets());
    frame
}

#[test]
fn a_datagram_goes_out_through_the_queue_and_another_comes_in() {
    let (kernel, engine_address) = addresses(0);
    let config = TapConfig {
        name: format!("nk{}", std::process::id()),
        queues: 2,
        mac: Some(KERNELS),
        address: Some((kernel, 30)),
        mtu: Some(1400),
        ..TapConfig::default()
    };
    let mut tap = open(&config, &Pool::new(64)).expect("a device");
    let sys = format!("/sys/class/net/{}", tap.name);
    assert_eq!(std::fs::read_to_string(format!("{sys}/mtu")).expect("there").trim(), "1400");
    let socket = UdpSocket::bind((kernel, 0)).expect("the address is there");
    socket.send_to(b"out", (engine_address, 9)).expect("a route is there");

    let asked = next(&mut tap, |frame| frame[12..14] == [0x08, 0x06]);
    assert_eq!(asked[6..12], KERNELS);
    let wire = tap.queues[0].transmitter();
    wire.send(&arp_reply(kernel, engine_address), 7).expect("the interface is up");

    let datagram = next(&mut tap, |frame| frame.len() >= 45 && frame[42..45] == *b"out");
    assert_eq!(datagram[..12], [OURS, KERNELS].concat());
    assert_eq!(datagram.arrived(), 7);

    // The datagram sent back: addresses and ports swapped; a UDP checksum of 0 means none.
    let mut back = datagram.to_vec();
    back[..6].copy_from_slice(&KERNELS);
    back[6..12].copy_from_slice(&OURS);
    back[26..30].copy_from_slice(&engine_address.octets());
    back[30..34].copy_from_slice(&kernel.octets());
    let (from, to) = (datagram[34..36].to_vec(), datagram[36..38].to_vec());
    back[34..36].copy_from_slice(&to);
    back[36..38].copy_from_slice(&from);
    back[40..42].fill(0);
    back[42..45].copy_from_slice(b"in!");
    wire.send(&back, 8).expect("the interface is up");
    socket.set_read_timeout(Some(Duration::from_secs(10))).expect("it may");
    let mut read = [0; 8];
    let (len, from) = socket.recv_from(&mut read).expect("the datagram came");
    assert_eq!((&read[..len], from.ip()), (&b"in!"[..], engine_address.into()));

    let sent = tap.queues[0].counters().read();
    assert_eq!((sent.tx_packets, sent.tx_dropped), (2, 0));
    assert_eq!(wire.send(&[0; 13], 9), Err(SendError::TooShort));
    // The interface goes with its last descriptor; a transmitter holds one too.
    drop((tap, wire));
    assert_eq!(std::fs::metadata(sys).map_err(|e| e.kind()).err(), Some(ErrorKind::NotFound));
}

#[test]
fn an_interface_of_another_kind_is_refused_by_name() {
    let config = TapConfig { name: "lo".into(), up: false, ..TapConfig::default() };
    match open(&config, &Pool::new(1)) {
        Err(TapError::NotTap { name }) => assert_eq!(name, "lo"),
        Err(error) => panic!("{error}"),
        Ok(_) => panic!("the loopback interface is not a TAP interface"),
    }
}

const RTM_NEWLINK: u16 = 16;
const RTM_DELLINK: u16 = 17;
const IFLA_MTU: u16 = 4;

/// Sends one rtnetlink message about an interface: to remove it, as `ip link delete`, or to change an attribute, as
/// `ip link set`.
fn send_rtnetlink(kind: u16, name: &str, attribute: &[u8]) {
    let index = std::fs::read_to_string(format!("/sys/class/net/{name}/ifindex")).expect("there");
    let index: i32 = index.trim().parse().expect("a number");
    let mut message = Vec::new();
    message.extend((32 + attribute.len() as u32).to_ne_bytes()); // length, header included
    message.extend(kind.to_ne_bytes());
    message.extend(5u16.to_ne_bytes()); // a request, to be acknowledged
    message.extend([0; 12]); // sequence, port; address family and kind of interface
    message.extend(index.to_ne_bytes());
    message.extend([0; 8]); // flags, and which of them change
    message.extend(attribute);
    let family = rustix::net::AddressFamily::NETLINK;
    let kind = rustix::net::SocketType::RAW;
    let socket = rustix::net::socket(family, kind, None).expect("a netlink socket");
    let flags = rustix::net::SendFlags::empty();
    rustix::net::send(&socket, &message, flags).expect("the kernel takes it");
}

#[test]
fn a_queue_whose_interface_was_removed_says_that_it_has_gone() {
    let mut tap = open(&TapConfig::default(), &Pool::new(64)).expect("a device");
    let wire = tap.queues[0].transmitter();
    let mut frames = Vec::with_capacity(64);
    tap.queues[0].poll(64, 0, &mut frames);
    let counters = tap.queues[0].counters();
    assert!(!tap.queues[0].gone() && !counters.gone());
    send_rtnetlink(RTM_DELLINK, &tap.name, &[]);
    assert_eq!(tap.queues[0].poll(64, 0, &mut frames).rx, 0);
    assert!(tap.queues[0].gone() && counters.gone());
    assert_eq!(wire.send(&[0; 60], 0), Err(SendError::Down));
    assert_eq!(tap.queues[0].counters().read().tx_dropped, 1);
}

#[test]
fn frames_that_do_not_fit_or_find_no_buffer_are_read_and_counted() {
    let (kernel, _) = addresses(1);
    let pool = Pool::new(1);
    let config = TapConfig { address: Some((kernel, 30)), ..TapConfig::default() };
    let mut tap = open(&config, &pool).expect("a device");
    // An MTU that the configuration refuses, but that another program may set.
    let mtu = [&8u16.to_ne_bytes()[..], &IFLA_MTU.to_ne_bytes(), &4_000u32.to_ne_bytes()].concat();
    send_rtnetlink(RTM_NEWLINK, &tap.name, &mtu);
    let _only = pool.take();
    let socket = UdpSocket::bind((kernel, 0)).expect("the address is there");
    socket.set_broadcast(true).expect("it may");
    let all = Ipv4Addr::from(u32::from(kernel) + 2);
    socket.send_to(&[0; 3000], (all, 9)).expect("the interface is up");
    socket.send_to(&[0; 100], (all, 9)).expect("the interface is up");
    // The kernel may send a few frames of its own.
    let mut into = Vec::with_capacity(64);
    tap.queues[0].poll(64, 1, &mut into);
    let counts = tap.queues[0].counters().read();
    assert_eq!((counts.rx_oversized, counts.rx_packets), (1, 0));
    assert!(counts.rx_no_buffer >= 1 && into.is_empty());
}

napkin_testing::main!();
