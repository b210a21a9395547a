//! A TAP interface between this process and the kernel: a datagram out and one back.
//!
//! Needs /dev/net/tun and CAP_NET_ADMIN, and says so where it has to skip.

use std::io::ErrorKind;
use std::net::{Ipv4Addr, UdpSocket};
use std::time::Duration;

use napkin_nic::tap::{Tap, TapConfig, TapError};
use napkin_nic::{Frame, PacketQueue, Pool, SendError};
use rustix::event::{PollFd, PollFlags, Timespec, poll};

const OURS: [u8; 6] = [2, 0, 0, 0, 0, 2];
const KERNELS: [u8; 6] = [2, 0, 0, 0, 0, 1];

/// Opens an interface, or says why it cannot.
fn open(config: &TapConfig) -> Option<Tap> {
    match Tap::open(config, &Pool::new(64)) {
        Ok(tap) => Some(tap),
        Err(error @ (TapError::NoDriver | TapError::Permission { .. })) => {
            eprintln!("skipped: {error}");
            None
        }
        Err(error) => panic!("{error}"),
    }
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

/// The reply that makes the kernel believe that `address` is here.
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
    // Of the range for benchmarks; a net and a name that a test run beside this one does not use.
    let run = std::process::id();
    let net = (run % 128) as u8;
    let (kernel, ours) = (Ipv4Addr::new(198, 18, net, 1), Ipv4Addr::new(198, 18, net, 2));
    let config = TapConfig {
        name: format!("nk{run}"),
        queues: 2,
        mac: Some(KERNELS),
        address: Some((kernel, 30)),
        mtu: Some(1400),
        ..TapConfig::default()
    };
    let Some(mut tap) = open(&config) else { return };
    let sys = format!("/sys/class/net/{}", tap.name);
    assert_eq!(std::fs::read_to_string(format!("{sys}/mtu")).expect("there").trim(), "1400");
    let socket = UdpSocket::bind((kernel, 0)).expect("the address is there");
    socket.send_to(b"out", (ours, 9)).expect("a route is there");

    let asked = next(&mut tap, |frame| frame[12..14] == [0x08, 0x06]);
    assert_eq!(asked[6..12], KERNELS);
    let wire = tap.queues[0].transmitter();
    wire.send(&arp_reply(kernel, ours), 7).expect("the interface is up");

    let datagram = next(&mut tap, |frame| frame.len() >= 45 && frame[42..45] == *b"out");
    assert_eq!(datagram[..12], [OURS, KERNELS].concat());
    assert_eq!(datagram.arrived(), 7);

    // The same way back: addresses and ports change places; a checksum of 0 is none.
    let mut back = datagram.to_vec();
    back[..6].copy_from_slice(&KERNELS);
    back[6..12].copy_from_slice(&OURS);
    back[26..30].copy_from_slice(&ours.octets());
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
    assert_eq!((&read[..len], from.ip()), (&b"in!"[..], ours.into()));

    let sent = tap.queues[0].counters().read();
    assert_eq!((sent.tx_packets, sent.tx_dropped), (2, 0));
    assert_eq!(wire.send(&[0; 13], 9), Err(SendError::TooShort));
    // The interface goes with its last descriptor; a transmitter is one too.
    drop((tap, wire));
    assert_eq!(std::fs::metadata(sys).map_err(|e| e.kind()).err(), Some(ErrorKind::NotFound));
}

#[test]
fn an_interface_of_another_kind_is_refused_by_name() {
    let config = TapConfig { name: "lo".into(), up: false, ..TapConfig::default() };
    match Tap::open(&config, &Pool::new(1)) {
        Err(TapError::NotTap { name }) => assert_eq!(name, "lo"),
        Err(error) => eprintln!("skipped: {error}"),
        Ok(_) => panic!("the loopback interface is not a TAP interface"),
    }
}

/// Removes an interface, as `ip link delete` does: one rtnetlink message.
fn remove(name: &str) {
    let index = std::fs::read_to_string(format!("/sys/class/net/{name}/ifindex")).expect("there");
    let index: i32 = index.trim().parse().expect("a number");
    let mut message = Vec::new();
    message.extend(32u32.to_ne_bytes()); // length, header included
    message.extend(17u16.to_ne_bytes()); // RTM_DELLINK
    message.extend(5u16.to_ne_bytes()); // a request, to be acknowledged
    message.extend([0; 12]); // sequence, port; address family and kind of interface
    message.extend(index.to_ne_bytes());
    message.extend([0; 8]); // flags, and which of them change
    let family = rustix::net::AddressFamily::NETLINK;
    let kind = rustix::net::SocketType::RAW;
    let socket = rustix::net::socket(family, kind, None).expect("a netlink socket");
    let flags = rustix::net::SendFlags::empty();
    rustix::net::send(&socket, &message, flags).expect("the kernel takes it");
}

#[test]
fn a_queue_whose_interface_was_removed_says_that_it_has_gone() {
    let Some(mut tap) = open(&TapConfig::default()) else { return };
    let wire = tap.queues[0].transmitter();
    let mut frames = Vec::with_capacity(64);
    tap.queues[0].poll(64, 0, &mut frames);
    let counters = tap.queues[0].counters();
    assert!(!tap.queues[0].gone() && !counters.gone());
    remove(&tap.name);
    assert_eq!(tap.queues[0].poll(64, 0, &mut frames).rx, 0);
    assert!(tap.queues[0].gone() && counters.gone());
    assert_eq!(wire.send(&[0; 60], 0), Err(SendError::Down));
    assert_eq!(tap.queues[0].counters().read().tx_dropped, 1);
}
