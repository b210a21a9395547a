//! AF_XDP on one end of a veth, in two network namespaces that the test makes: frames in and out, what
//! stays the kernel's, and what is left when the process or the interface goes.
//!
//! Ignored without CAP_NET_ADMIN, CAP_NET_RAW, CAP_BPF and CAP_SYS_ADMIN.

use std::io::{BufRead, BufReader, ErrorKind};
use std::net::{Ipv4Addr, UdpSocket};
use std::os::fd::{AsFd, FromRawFd, OwnedFd};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;

use napkin_kernel::namespace::Namespace;
use napkin_kernel::netlink::{Ethtool, GRO, Netdev, Route, VethConfig};
use napkin_kernel::settings::Setting;
use napkin_nic::xdp::{
    BusyPoll, BusyPolling, Copying, Mode, Traffic, Xdp, XdpConfig, XdpError, XdpQueue,
};
use napkin_nic::{Frame, PacketQueue, Pool, SendError};
use napkin_os::rights::{Right, keep_only};
use napkin_testing::{ignore, needs, test};
use rustix::event::{Timespec, epoll};
use rustix::net::xdp::{SocketAddrXdp, SocketAddrXdpFlags, XdpUmemReg, XdpUmemRegFlags};
use rustix::net::{AddressFamily, SocketFlags, SocketType, socket_with, sockopt};
use rustix::process::{Resource, Rlimit, setrlimit};

const OURS: Ipv4Addr = Ipv4Addr::new(198, 18, 0, 1);
const THEIRS: Ipv4Addr = Ipv4Addr::new(198, 18, 0, 2);

/// Our end, and theirs.
const DEVICE: &str = "nk-xdp";
const PEER: &str = "nk-peer";

/// Two namespaces and a veth; the test's thread is in ours.
struct Lab {
    peer: Namespace,
    ifindex: u32,
}

impl Lab {
    fn new(queues: u32) -> Lab {
        for right in [Right::NetAdmin, Right::NetRaw, Right::Bpf, Right::SysAdmin] {
            needs(right.held(), right.name());
        }
        let ours = Namespace::new().expect("a namespace");
        let peer = Namespace::new().expect("a namespace");
        ours.enter_thread().expect("it is entered");
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
        let there = || {
            let mut route = Route::open().expect("netlink");
            let ifindex = route.link(PEER).expect("the other end").ifindex;
            route.add_address(ifindex, THEIRS, 24).expect("an address");
            route.set_up(ifindex).expect("up");
        };
        peer.run(there).expect("the other namespace");
        Lab { peer, ifindex }
    }

    /// A socket of the kernel's on the other side.
    fn socket(&self) -> UdpSocket {
        let bound = || {
            let socket = UdpSocket::bind((THEIRS, 0)).expect("the address is there");
            socket.set_read_timeout(Some(Duration::from_secs(10))).expect("it may");
            socket
        };
        self.peer.run(bound).expect("the other namespace")
    }
}

fn open(config: &XdpConfig, pool: &Pool) -> Result<Xdp, XdpError> {
    match Xdp::open(config, pool) {
        Err(error @ (XdpError::NoXdp | XdpError::NoLink)) => ignore(error),
        other => other,
    }
}

/// Small rings, so that a test goes round them often.
fn small(traffic: Traffic) -> XdpConfig {
    XdpConfig { rx_ring: 64, tx_ring: 64, traffic, ..XdpConfig::new(DEVICE) }
}

/// The smallest engine: sleeps, wins, polls, arms again.
struct Engine {
    epoll: OwnedFd,
    queue: XdpQueue,
    frames: Vec<Frame>,
}

impl Engine {
    fn new(queue: XdpQueue) -> Engine {
        let epoll = epoll::create(epoll::CreateFlags::CLOEXEC).expect("an epoll");
        let data = epoll::EventData::new_u64(0);
        epoll::add(&epoll, queue.interrupt(), data, epoll::EventFlags::empty()).expect("added");
        Engine { epoll, queue, frames: Vec::with_capacity(64) }
    }

    /// Whether an interrupt comes within so many milliseconds.
    fn sleeps(&mut self, milliseconds: i64) -> bool {
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

    fn unmask(&mut self) {
        assert!(!self.queue.unmask(0), "nothing waits to be sent");
        let (data, flags) =
            (epoll::EventData::new_u64(0), epoll::EventFlags::IN | epoll::EventFlags::ONESHOT);
        epoll::modify(&self.epoll, self.queue.interrupt(), data, flags).expect("armed");
    }

    /// The next frame that is wanted, after as many interrupts as it takes.
    fn next(&mut self, wanted: impl Fn(&Frame) -> bool) -> Frame {
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

/// The same datagram back to where it came from, with other bytes.
fn answer(frame: &Frame, text: &[u8; 3]) -> Vec<u8> {
    let mut back = frame.to_vec();
    back[..6].copy_from_slice(&frame[6..12]);
    back[6..12].copy_from_slice(&frame[..6]);
    back[26..30].copy_from_slice(&frame[30..34]);
    back[30..34].copy_from_slice(&frame[26..30]);
    back[34..36].copy_from_slice(&frame[36..38]);
    back[36..38].copy_from_slice(&frame[34..36]);
    // A checksum of 0 is none.
    back[40..42].fill(0);
    back[42..45].copy_from_slice(text);
    back
}

fn echo_over(mode: Mode) {
    let lab = Lab::new(1);
    // The kernel's own, beside the program.
    let kernels = UdpSocket::bind((OURS, 9)).expect("the address is there");
    kernels.set_read_timeout(Some(Duration::from_secs(10))).expect("it may");
    let config = XdpConfig { mode, ..small(Traffic::Ports(vec![7, 22_122])) };
    let mut xdp = open(&config, &Pool::new(512)).expect("a device");
    assert_eq!((xdp.native, xdp.zero_copy), (mode != Mode::Generic, false));
    assert_eq!((xdp.driver.as_str(), &xdp.numbers[..]), ("veth", &[0][..]));
    let mut engine = Engine::new(xdp.queues.remove(0));
    engine.unmask();

    let client = lab.socket();
    for round in 0..200 {
        client.send_to(b"out", (OURS, 7)).expect("the kernel answers its ARP");
        assert!(engine.sleeps(10_000), "an interrupt in round {round}");
        // Masked: another one does not come, whatever arrives.
        client.send_to(b"two", (OURS, 7)).expect("sent");
        assert!(!engine.sleeps(0), "it is masked");
        for text in [b"out", b"two"] {
            let frame = engine.next(|_| true);
            assert_eq!((&frame[42..45], frame.arrived()), (&text[..], 7), "round {round}");
            let back = answer(&frame, b"in!");
            engine.queue.transmitter().send(&back, 8).expect("room");
            let mut read = [0; 8];
            let (length, from) = client.recv_from(&mut read).expect("the answer came");
            assert_eq!((&read[..length], from), (&b"in!"[..], (OURS, 7).into()));
        }
        engine.unmask();
        // The kernel may have had news of the interface, and then there is no frame.
        for _ in 0..10 {
            if !engine.sleeps(0) {
                break;
            }
            assert_eq!(engine.queue.poll(64, 0, &mut engine.frames).rx, 0, "nothing is left");
            engine.unmask();
        }
    }
    client.send_to(b"ssh", (OURS, 9)).expect("sent");
    let mut read = [0; 8];
    let (length, from) = kernels.recv_from(&mut read).expect("the kernel has its own");
    assert_eq!((&read[..length], from.ip()), (&b"ssh"[..], THEIRS.into()));
    kernels.send_to(b"yes", from).expect("sent");
    assert_eq!(client.recv_from(&mut read).expect("and answers").0, 3);

    let counts = engine.queue.counters().read();
    assert_eq!((counts.rx_packets, counts.tx_packets, counts.rx_dropped()), (400, 400, 0));
    assert!(counts.interrupts_rx >= 200);
    assert_eq!(engine.queue.transmitter().send(&[0; 13], 9), Err(SendError::TooShort));
}

#[test]
fn datagrams_to_a_port_are_ours_in_the_driver_and_all_else_is_the_kernel_s() {
    echo_over(Mode::Auto);
}

#[test]
fn datagrams_to_a_port_are_ours_behind_the_driver_and_all_else_is_the_kernel_s() {
    echo_over(Mode::Generic);
}

#[test]
fn ports_are_found_over_ipv4_and_ipv6_with_a_tag_and_without_and_fragments_are_not_ours() {
    let lab = Lab::new(1);
    let there = lab.peer_device();
    let wire = there.queue.transmitter();
    let mut xdp = open(&small(Traffic::Ports(vec![7])), &Pool::new(512)).expect("a device");
    let mut ours = Engine::new(xdp.queues.remove(0));
    let tag = [0x81, 0, 0, 5];
    let four = |protocol: u8, fragment: u16, options: usize, port: u16| {
        let mut packet = vec![0x45 + options as u8, 0, 0, 60, 0, 0];
        packet.extend(fragment.to_be_bytes());
        packet.extend([64, protocol, 0, 0, 198, 18, 0, 2, 198, 18, 0, 1]);
        packet.extend(vec![1; 4 * options]);
        packet.extend([0x30, 0x39]);
        packet.extend(port.to_be_bytes());
        (vec![8, 0], packet)
    };
    let six = |protocol: u8, port: u16| {
        let mut packet = vec![0x60, 0, 0, 0, 0, 20, protocol, 64];
        packet.extend([0xfe; 32]);
        packet.extend([0x30, 0x39]);
        packet.extend(port.to_be_bytes());
        (vec![0x86, 0xdd], packet)
    };
    let cases = [
        (four(17, 0, 0, 7), true),
        (four(6, 0, 0, 7), true),
        (four(17, 0x4000, 10, 7), true),
        (six(17, 7), true),
        (six(6, 7), true),
        (four(17, 0, 0, 8), false),
        (four(1, 0, 0, 7), false),
        (four(17, 0x2000, 0, 7), false),
        (four(17, 0x0001, 0, 7), false),
        (six(17, 8), false),
        (six(58, 7), false),
        ((vec![8, 6], vec![0; 40]), false),
    ];
    for (number, ((kind, packet), _)) in (0..).zip(&cases) {
        for tags in [&[][..], &tag] {
            // Who is asked for nothing is answered by nobody: the address is a group's.
            let mut frame = vec![1, 0, 0, 0, 0, 9, 2, 0, 0, 0, 0, number];
            frame.extend(tags.iter().chain(kind).chain(packet));
            frame.resize(frame.len().max(60), 0);
            wire.post(&frame, 0).expect("room");
        }
    }
    wire.flush();
    let wanted: Vec<u8> =
        (0..).zip(&cases).filter(|case| case.1.1).flat_map(|(it, _)| [it; 2]).collect();
    let found: Vec<u8> = wanted.iter().map(|_| ours.next(|_| true)[11]).collect();
    assert_eq!(found, wanted);
    // Cut off in the middle of a header: the kernel's as well.
    for length in 14..34 {
        wire.send(
            &[&[1, 0, 0, 0, 0, 9, 2, 0, 0, 0, 0, 0, 8, 0], &[0x45; 20][..length - 14]].concat(),
            0,
        )
        .expect("room");
    }
    let mut more = Vec::with_capacity(64);
    assert_eq!(ours.queue.poll(64, 0, &mut more).rx, 0);
    drop(there.frames);
}

impl Lab {
    /// An AF_XDP device at the other end, for a test that sends and receives frames of its own.
    fn peer_device(&self) -> Engine {
        let config = XdpConfig { interface: PEER.into(), ..small(Traffic::All) };
        let mut there = self
            .peer
            .run(|| open(&config, &Pool::new(512)))
            .expect("the namespace")
            .expect("a device");
        Engine::new(there.queues.remove(0))
    }
}

/// A frame of a test, numbered, with its sum: what comes must be what was sent.
fn numbered(number: u64, frame: &mut [u8]) -> usize {
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

fn checked(frame: &[u8]) -> Option<u64> {
    let word = |at: usize| Some(u64::from_be_bytes(*frame.get(at..at + 8)?.first_chunk()?));
    let number = word(14)?;
    let mut same = [0; 2048];
    let length = numbered(number, &mut same);
    (frame == &same[..length]).then_some(number)
}

/// Every frame that was sent arrives once, with its bytes, also where three threads send at once and
/// the rings go round many times. `NAPKIN_LONG=1` makes it ten million.
#[test]
fn every_frame_arrives_once_with_all_its_bytes() {
    let lab = Lab::new(1);
    let there = lab.peer_device();
    let mut xdp = open(&small(Traffic::All), &Pool::new(512)).expect("a device");
    let mut ours = Engine::new(xdp.queues.remove(0));
    ours.unmask();
    let long = std::env::var_os("NAPKIN_LONG").is_some();
    let (senders, each) = (3, if long { 10_000_000 / 3 } else { 4_000 });
    let received = Arc::new(std::sync::atomic::AtomicU64::new(0));
    let wire = there.queue.transmitter();
    let sending: Vec<_> = (0..senders)
        .map(|sender| {
            let (wire, received) = (Arc::clone(&wire), Arc::clone(&received));
            std::thread::spawn(move || {
                let mut frame = [0; 2048];
                for number in 0..each {
                    // No more on their way than the other side has room for.
                    while number * senders
                        >= received.load(std::sync::atomic::Ordering::SeqCst) + 48
                    {
                        wire.flush();
                        std::thread::yield_now();
                    }
                    let length = numbered(number * senders + sender, &mut frame);
                    while let Err(error) = wire.post(&frame[..length], 0) {
                        assert_eq!(error, SendError::RingFull);
                        std::thread::yield_now();
                    }
                }
                wire.flush();
            })
        })
        .collect();
    let mut seen = vec![false; (senders * each) as usize];
    let mut count = 0;
    let mut frames = Vec::with_capacity(64);
    while count < senders * each {
        if ours.queue.poll(64, 0, &mut frames).rx == 0 {
            ours.unmask();
            assert!(ours.sleeps(10_000), "{count} of {} came", senders * each);
        }
        for frame in frames.drain(..) {
            // The kernel has a few words of its own.
            if frame[12..14] != [0x88, 0xb5] {
                continue;
            }
            let number = checked(&frame).expect("its bytes are those that were sent");
            assert!(!std::mem::replace(&mut seen[number as usize], true), "{number} came twice");
            count += 1;
            received.fetch_add(1, std::sync::atomic::Ordering::SeqCst);
        }
    }
    sending.into_iter().for_each(|sender| sender.join().expect("ends"));
    let sent = there.queue.counters().read();
    assert_eq!(sent.tx_packets, senders * each);
    assert_eq!(ours.queue.counters().read().rx_dropped(), 0);
}

#[test]
fn a_card_takes_frames_to_any_address_as_long_as_that_is_wanted() {
    let _lab = Lab::new(1);
    // IFF_PROMISC does not show what a socket asks for; the count that the kernel keeps does.
    let promiscuity = || {
        let output = Command::new("ip").args(["-d", "link", "show", DEVICE]).output();
        let said = String::from_utf8(output.expect("ip runs").stdout).expect("text");
        let (_, rest) = said.split_once("promiscuity ").expect("it is told");
        rest.split_whitespace().next().and_then(|count| count.parse::<u32>().ok())
    };
    assert_eq!(promiscuity(), Some(0));
    let config = XdpConfig { promiscuous: true, ..small(Traffic::All) };
    let xdp = open(&config, &Pool::new(512)).expect("a device");
    assert_eq!(promiscuity(), Some(1));
    drop(xdp);
    assert_eq!(promiscuity(), Some(0));
}

#[test]
fn frames_without_a_buffer_are_dropped_and_counted_and_the_next_ones_come() {
    let lab = Lab::new(1);
    let there = lab.peer_device();
    let pool = Pool::new(128);
    let mut xdp = open(&small(Traffic::All), &pool).expect("a device");
    assert_eq!(pool.available(), 0);
    let mut ours = Engine::new(xdp.queues.remove(0));
    ours.unmask();
    let wire = there.queue.transmitter();
    let mut bytes = [0; 2048];
    for number in 0..1000 {
        let length = numbered(number, &mut bytes);
        wire.send(&bytes[..length], 0).expect("room");
        let mut none = Vec::with_capacity(64);
        ours.queue.poll(64, 0, &mut none);
        assert!(none.is_empty(), "there is no buffer for it");
    }
    assert!(ours.queue.counters().read().rx_no_buffer >= 1000);
}

#[test]
fn all_queues_of_a_device_share_its_memory_and_each_has_its_own_frames() {
    let lab = Lab::new(2);
    let there = lab.peer_device_of_all();
    let mut xdp = open(&small(Traffic::All), &Pool::new(1024)).expect("a device");
    assert_eq!(xdp.numbers, [0, 1]);
    let mut bytes = [0; 2048];
    // A veth has as many queues for what comes as the other side has for what goes, in their order.
    for (number, from) in (0..).zip(&there) {
        let length = numbered(number, &mut bytes);
        from.transmitter().send(&bytes[..length], 0).expect("room");
    }
    for (number, queue) in (0..).zip(xdp.queues.drain(..)) {
        let frame = Engine::new(queue).next(|frame| frame[12..14] == [0x88, 0xb5]);
        assert_eq!(checked(&frame), Some(number));
    }
}

impl Lab {
    fn peer_device_of_all(&self) -> Vec<XdpQueue> {
        let config = XdpConfig { interface: PEER.into(), ..small(Traffic::All) };
        self.peer
            .run(|| open(&config, &Pool::new(1024)))
            .expect("the namespace")
            .expect("a device")
            .queues
    }
}

#[test]
fn an_interface_that_goes_down_comes_up_changes_its_mtu_and_goes_is_survived_and_said() {
    let lab = Lab::new(1);
    let there = lab.peer_device();
    let mut xdp = open(&small(Traffic::All), &Pool::new(512)).expect("a device");
    let mut ours = Engine::new(xdp.queues.remove(0));
    let wire = there.queue.transmitter();
    let mut bytes = [0; 2048];
    let mut route = Route::open().expect("netlink");
    let mut arrives = |number: u64, ours: &mut Engine| {
        let length = numbered(number, &mut bytes);
        wire.send(&bytes[..length], 0).expect("room");
        assert_eq!(ours.next(|frame| checked(frame) == Some(number))[12..14], [0x88, 0xb5]);
    };
    arrives(1, &mut ours);
    route.set_down(lab.ifindex).expect("down");
    let mut none = Vec::with_capacity(64);
    ours.queue.poll(64, 0, &mut none);
    let _ = ours.queue.transmitter().send(&[0; 60], 0);
    assert!(!ours.queue.gone() && !ours.queue.unmask(0));
    route.set_up(lab.ifindex).expect("up");
    arrives(2, &mut ours);
    let mtu = |mtu: &str| {
        let ip = Command::new("ip").args(["link", "set", DEVICE, "mtu", mtu]).status();
        assert!(ip.expect("ip runs").success());
    };
    mtu("900");
    arrives(3, &mut ours);
    mtu("1500");
    arrives(4, &mut ours);
    ours.unmask();
    while ours.sleeps(0) {
        ours.queue.poll(64, 0, &mut none);
        ours.unmask();
    }
    route.delete(lab.ifindex).expect("away");
    // Who sleeps is woken, and finds out.
    assert!(ours.sleeps(10_000), "the news came");
    none.clear();
    ours.queue.poll(64, 0, &mut none);
    assert!(ours.queue.gone() && ours.queue.counters().gone());
    assert_eq!(ours.queue.transmitter().send(&[0; 60], 0), Err(SendError::Down));
}

/// Says that it has the device, and keeps it until it is killed; or, with little memory to be locked, why not.
fn child() -> bool {
    let Some(what) = std::env::var_os("NAPKIN_XDP_CHILD") else { return false };
    if what == "memlock" {
        let little = Rlimit { current: Some(64 << 10), maximum: Some(64 << 10) };
        setrlimit(Resource::Memlock, little).expect("it may be less");
        // Not CAP_IPC_LOCK, which knows no limit.
        keep_only(&[Right::NetAdmin, Right::NetRaw, Right::Bpf]).expect("rights can be given up");
    }
    let device = Xdp::open(&small(Traffic::All), &Pool::new(512));
    println!("{}", device.as_ref().err().map_or("ready".to_owned(), ToString::to_string));
    if device.is_ok() {
        std::thread::sleep(Duration::from_secs(60));
    }
    true
}

/// A process of its own that opens the device, and what it says of that. A child of this thread is in its
/// namespace.
fn another(what: &str) -> (Child, String) {
    let mut other = Command::new(std::env::current_exe().expect("this program"))
        .env("NAPKIN_XDP_CHILD", what)
        .stdout(Stdio::piped())
        .spawn()
        .expect("started");
    let mut said = String::new();
    let out = other.stdout.take().expect("piped");
    BufReader::new(out).read_line(&mut said).expect("it speaks");
    (other, said.trim().to_owned())
}

/// Opens the device as soon as the sockets of one that has ended are closed, in the background.
fn opened_again(config: &XdpConfig) -> Xdp {
    let again = (0..500).find_map(|_| {
        let again = open(config, &Pool::new(512)).ok();
        if again.is_none() {
            std::thread::sleep(Duration::from_millis(10));
        }
        again
    });
    again.expect("nothing was left")
}

#[test]
fn two_on_one_device_is_a_clear_error_and_a_kill_leaves_no_program() {
    let lab = Lab::new(1);
    for round in 0..3 {
        let (mut other, said) = another("ready");
        assert_eq!(said, "ready", "round {round}");
        match open(&small(Traffic::All), &Pool::new(512)) {
            Err(error @ XdpError::Attached { .. }) => {
                assert!(error.to_string().contains("another napkin"), "{error}");
            }
            other => panic!("{other:?}"),
        }
        other.kill().expect("killed");
        other.wait().expect("ended");
        drop(opened_again(&small(Traffic::All)));
    }
    // And the kernel has the interface for itself again.
    let kernels = UdpSocket::bind((OURS, 7)).expect("the address is there");
    kernels.set_read_timeout(Some(Duration::from_millis(100))).expect("it may");
    let client = lab.socket();
    let mut read = [0; 8];
    let came = (0..100).any(|_| {
        client.send_to(b"you", (OURS, 7)).expect("sent");
        match kernels.recv_from(&mut read) {
            Ok(_) => true,
            Err(error) => {
                assert!(matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut));
                false
            }
        }
    });
    assert!(came, "no program takes it");
}

/// What of BPF a process holds: the numbers of its programs and of its maps.
fn programs_and_maps(process: u32) -> [Vec<u32>; 2] {
    let mut found = [Vec::new(), Vec::new()];
    for file in std::fs::read_dir(format!("/proc/{process}/fdinfo")).expect("it lives") {
        // One that was closed meanwhile has nothing to say.
        let Ok(info) = std::fs::read_to_string(file.expect("a name").path()) else { continue };
        for (kind, list) in ["prog_id:", "map_id:"].iter().zip(&mut found) {
            let number: Option<u32> =
                info.lines().find_map(|line| line.strip_prefix(*kind)?.trim().parse().ok());
            list.extend(number);
        }
    }
    found
}

/// Whether the kernel still has a program or a map of this number.
fn is_there(program: bool, number: u32) -> bool {
    // BPF_PROG_GET_FD_BY_ID and BPF_MAP_GET_FD_BY_ID.
    let command = if program { 13 } else { 14 };
    let attributes = [number, 0, 0];
    // SAFETY: both commands read a number and two more of 4 bytes, which live until it returns.
    let file = unsafe { libc::syscall(libc::SYS_bpf, command, attributes.as_ptr(), 12) };
    if file < 0 {
        let error = std::io::Error::last_os_error();
        assert_eq!(error.kind(), ErrorKind::NotFound, "{error}");
        return false;
    }
    // SAFETY: a descriptor that was made for us a moment ago.
    drop(unsafe { OwnedFd::from_raw_fd(file as i32) });
    true
}

/// The device is opened and closed, or killed, again and again under traffic that goes on: each finds frames, and
/// nothing is left of any. `NAPKIN_XDP_LIVES=1000` makes it as many.
#[test]
fn a_device_may_be_restarted_and_killed_under_traffic_and_nothing_is_left() {
    let lab = Lab::new(1);
    let lives = std::env::var("NAPKIN_XDP_LIVES").ok().and_then(|it| it.parse().ok()).unwrap_or(8);
    let there = lab.peer_device();
    let (wire, ends) = (there.queue.transmitter(), Arc::new(AtomicBool::new(false)));
    let ending = Arc::clone(&ends);
    let traffic = std::thread::spawn(move || {
        let mut bytes = [0; 2048];
        for number in 0.. {
            if ending.load(Relaxed) {
                return;
            }
            let length = numbered(number, &mut bytes);
            // Nobody is there half of the time.
            let _ = wire.send(&bytes[..length], 0);
            std::thread::sleep(Duration::from_micros(50));
        }
    });
    for life in 0..lives {
        let mode = if life % 4 < 2 { Mode::Auto } else { Mode::Generic };
        if life % 2 == 0 {
            let mut xdp = opened_again(&XdpConfig { mode, ..small(Traffic::All) });
            let mut ours = Engine::new(xdp.queues.remove(0));
            let kept = ours.next(|frame| frame[12..14] == [0x88, 0xb5]);
            // Its frame outlives it, and its memory with it.
            drop(ours);
            assert!(checked(&kept).is_some(), "life {life}");
        } else {
            let mut other = loop {
                let (mut other, said) = another("ready");
                if said == "ready" {
                    break other;
                }
                // The queue of one that has just ended may not be free yet.
                other.wait().expect("ended");
                assert!(said.contains("in use") || said.contains("attached"), "{said}");
            };
            let [programs, maps] = programs_and_maps(other.id());
            assert!(!programs.is_empty() || !maps.is_empty(), "it has a map, at least");
            other.kill().expect("killed");
            other.wait().expect("ended");
            left(life, &programs, &maps);
        }
    }
    ends.store(true, Relaxed);
    traffic.join().expect("ends");
    drop(opened_again(&small(Traffic::All)));
}

/// None of these is there any more, or soon.
fn left(life: u32, programs: &[u32], maps: &[u32]) {
    for (program, numbers) in [(true, programs), (false, maps)] {
        for number in numbers {
            let gone = (0..1_000).any(|_| {
                let gone = !is_there(program, *number);
                if !gone {
                    std::thread::sleep(Duration::from_millis(10));
                }
                gone
            });
            assert!(gone, "life {life} has left {number}, program: {program}");
        }
    }
}

#[test]
fn too_little_memory_that_may_be_locked_is_told_with_how_much_it_takes() {
    let _lab = Lab::new(1);
    let (mut other, said) = another("memlock");
    other.wait().expect("ended");
    // 512 buffers of 2 KiB each.
    assert!(said.contains("take 1024 KiB") && said.contains("may lock 64 KiB"), "{said}");
    assert!(said.contains("ulimit -l 1024") && said.contains("CAP_IPC_LOCK"), "{said}");
    // Nothing was attached for it.
    drop(open(&small(Traffic::All), &Pool::new(512)).expect("a device"));
}

/// A socket of another program, which has the queue and no program attached.
fn stranger(ifindex: u32) -> OwnedFd {
    let socket = socket_with(AddressFamily::XDP, SocketType::RAW, SocketFlags::CLOEXEC, None)
        .expect("a socket");
    let memory = Box::leak(Box::new(Page([0; 16 << 10])));
    let umem = XdpUmemReg {
        addr: memory.0.as_ptr().expose_provenance() as u64,
        len: memory.0.len() as u64,
        chunk_size: 2048,
        headroom: 0,
        flags: XdpUmemRegFlags::empty(),
        tx_metadata_len: 0,
    };
    sockopt::set_xdp_umem_reg(&socket, umem).expect("memory");
    sockopt::set_xdp_umem_fill_ring_size(&socket, 8).expect("a ring");
    sockopt::set_xdp_umem_completion_ring_size(&socket, 8).expect("a ring");
    sockopt::set_xdp_rx_ring_size(&socket, 8).expect("a ring");
    let address = SocketAddrXdp::new(SocketAddrXdpFlags::XDP_COPY, ifindex, 0);
    rustix::net::bind(&socket, &address).expect("nobody has the queue");
    socket
}

/// Memory as the kernel takes it.
#[repr(align(4096))]
struct Page([u8; 16 << 10]);

#[test]
fn a_queue_that_another_program_has_is_a_clear_error_and_the_next_one_is_free() {
    let lab = Lab::new(2);
    let taken = stranger(lab.ifindex);
    let config = |queue| XdpConfig { queues: vec![queue], ..small(Traffic::All) };
    match open(&config(0), &Pool::new(512)) {
        Err(error @ XdpError::QueueInUse { .. }) => {
            let told = error.to_string();
            assert!(told.contains("queue 0 of nk-xdp is in use"), "{told}");
        }
        other => panic!("{other:?}"),
    }
    drop(open(&config(1), &Pool::new(512)).expect("nobody has it"));
    drop(taken);
}

#[test]
fn what_is_not_there_or_not_allowed_is_said_before_anything_is_changed() {
    let lab = Lab::new(1);
    let pool = Pool::new(512);
    let told = |change: &dyn Fn(&mut XdpConfig)| {
        let mut config = small(Traffic::All);
        change(&mut config);
        open(&config, &pool).expect_err("refused").to_string()
    };
    assert!(told(&|it| it.interface = "nk-none".into()).contains("no interface nk-none"));
    assert!(told(&|it| it.interface = "a-name-far-too-long".into()).contains("no interface"));
    assert!(told(&|it| it.interface = "lo".into()).contains("not an Ethernet"));
    assert!(told(&|it| it.queues = vec![5]).contains("no queue 5: it receives and sends on 1"));
    assert!(told(&|it| it.rx_ring = 100).contains("power of two"));
    assert!(told(&|it| it.rx_ring = 1024).contains("1088 buffers"));
    assert!(told(&|it| it.copying = Copying::Zero).contains("(veth) has no zero-copy"));
    let mut route = Route::open().expect("netlink");
    route.set_down(lab.ifindex).expect("down");
    assert!(told(&|_| {}).contains("is down: bring it up"));
    route.set_up(lab.ifindex).expect("up");
    // After all this nothing is attached, and nothing is in use.
    drop(open(&small(Traffic::All), &pool).expect("a device"));
    for (kept, missing) in [
        (&[Right::NetRaw, Right::Bpf][..], "CAP_NET_ADMIN"),
        (&[Right::NetAdmin, Right::Bpf], "CAP_NET_RAW"),
        (&[Right::NetAdmin, Right::NetRaw], "CAP_BPF"),
    ] {
        let pool = Pool::new(512);
        let refused = std::thread::spawn(move || {
            keep_only(kept).expect("rights can be given up");
            Xdp::open(&small(Traffic::All), &pool).expect_err("refused").to_string()
        });
        let refused = refused.join().expect("ends");
        assert!(refused.contains(missing), "{refused}");
    }
}

#[test]
fn busy_polling_brings_the_frames_or_is_said_to_do_nothing_and_then_interrupts_bring_them() {
    let lab = Lab::new(1);
    let mut ethtool = Ethtool::open().expect("netlink");
    let on: Vec<_> = GRO.iter().map(|name| (*name, true)).collect();
    ethtool.set_features(DEVICE, &on).expect("a veth has GRO");
    let there = lab.peer_device();
    let config = XdpConfig { busy_poll: Some(BusyPoll::default()), ..small(Traffic::All) };
    let mut xdp = open(&config, &Pool::new(512)).expect("a device");
    let mut ours = Engine::new(xdp.queues.remove(0));
    let wire = there.queue.transmitter();
    let mut netdev = Netdev::open().expect("netlink");
    let napis = netdev.napis(Some(lab.ifindex)).expect("its instances");
    let Some(napi) = napis.first() else { ignore("this kernel lists no NAPI instances") };
    for (setting, value) in [(Setting::DeferHardIrqs, 100), (Setting::GroFlushTimeout, 1_000_000)] {
        if let Err(error) = netdev.set_napi(napi.id, setting, value) {
            ignore(format_args!("a NAPI instance's own settings cannot be changed: {error}"));
        }
    }
    let mut bytes = [0; 2048];
    for number in 0..1_000 {
        let length = numbered(number, &mut bytes);
        wire.send(&bytes[..length], 0).expect("room");
        ours.next(|frame| checked(frame) == Some(number));
    }
    // Linux polls the NAPI of a copying socket up to 6.12 only.
    let verdict = ours.queue.busy_polling().expect("it was asked for");
    match verdict {
        BusyPolling::Honoured => {}
        BusyPolling::NoNapi => assert!(verdict.to_string().contains("no NAPI")),
        other => panic!("{other:?}"),
    }
}

napkin_testing::main!(child);
