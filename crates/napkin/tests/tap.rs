//! `napkin serve` on a TAP device: the operating system is the client.
//!
//! Needs /dev/net/tun and CAP_NET_ADMIN.

mod common;

use std::net::{Ipv4Addr, UdpSocket};
use std::os::fd::{AsRawFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

use common::namespace::needs_rights;
use common::{Served, TempDir, within};
use napkin_os::rights::Right;
use napkin_testing::{needs, needs_program, test};
use napkin_traffic::SplitMix as Rng;
use rustix::io::Errno;
use rustix::net::{AddressFamily, RecvFlags, SendFlags, SocketType, ipproto, sockopt};
use rustix::process::Signal;

/// A server on a TAP device of its own.
struct Tap {
    served: Served,
    name: String,
    own_address: Ipv4Addr,
    host: Ipv4Addr,
    _place: TempDir,
}

fn needs_tap() {
    needs_rights(&[Right::NetAdmin]);
    needs(std::fs::exists("/dev/net/tun").is_ok_and(|it| it), "/dev/net/tun");
}

/// Starts a server; `n` is unique in this process.
fn serve(n: u8, policy: &str) -> Tap {
    needs_tap();
    let place = TempDir::new(&format!("tap{n}"));
    let id = std::process::id();
    let name = format!("nkt{}x{n}", id % 100_000);
    let own_address = Ipv4Addr::new(198, 18 + n % 2, (id % 250) as u8, 1 + 4 * n);
    let [a, b, c, d] = own_address.octets();
    let (device, address) = (format!("tap:{name}"), format!("{own_address}/30"));
    let args = ["echo", "--device", &device, "--address", &address, "--policy", policy];
    let served = Served::start(&place.socket("a.sock"), &args).expect("it starts");
    Tap { served, name, own_address, host: Ipv4Addr::new(a, b, c, d + 1), _place: place }
}

impl Tap {
    /// Has a datagram echoed. Retries, as datagrams may be lost.
    fn echo(&self, text: &str) {
        let socket = UdpSocket::bind((self.host, 0)).expect("the host's address is there");
        socket.set_read_timeout(Some(Duration::from_millis(500))).expect("a timeout");
        let mut buffer = [0; 2_048];
        within("an echo", || {
            socket.send_to(text.as_bytes(), (self.own_address, 7)).expect("a route is there");
            let (length, from) = socket.recv_from(&mut buffer).ok()?;
            assert_eq!((&buffer[..length], from.ip()), (text.as_bytes(), self.own_address.into()));
            Some(())
        });
    }

    /// Sends an echo request and waits for its reply, by a raw socket.
    fn ping(&self) {
        let socket = rustix::net::socket(AddressFamily::INET, SocketType::RAW, Some(ipproto::ICMP));
        needs(!matches!(socket, Err(Errno::PERM)), "CAP_NET_RAW");
        let socket = socket.expect("a raw socket");
        let timeout = Some(Duration::from_millis(500));
        sockopt::set_socket_timeout(&socket, sockopt::Timeout::Recv, timeout).expect("a timeout");
        let mut request = [8, 0, 0, 0, 0x6e, 0x6b, 0, 1, b'p', b'i', b'n', b'g'];
        let sum: u32 =
            request.chunks(2).map(|it| u32::from(u16::from_be_bytes([it[0], it[1]]))).sum();
        let sum = !((sum & 0xffff) + (sum >> 16)) as u16;
        request[2..4].copy_from_slice(&sum.to_be_bytes());
        let to = std::net::SocketAddrV4::new(self.own_address, 0);
        within("an echo reply", || {
            rustix::net::sendto(&socket, &request, SendFlags::empty(), &to).expect("a route");
            let mut buffer = [0; 256];
            // The socket receives other replies as well.
            while let Ok((length, _)) = rustix::net::recv(&socket, &mut buffer, RecvFlags::empty())
            {
                let packet = &buffer[..length];
                let from_us = packet.get(12..16) == Some(&self.own_address.octets()[..]);
                if from_us && packet.get(20) == Some(&0) && packet.get(28..32) == Some(b"ping") {
                    return Some(());
                }
            }
            None
        });
    }

    fn exists(&self) -> bool {
        std::fs::exists(format!("/sys/class/net/{}", self.name)).expect("sysfs")
    }
}

#[test]
fn it_answers_datagrams_and_pings_and_goes_with_the_process() {
    let mut tap = serve(0, "base");
    tap.echo("hello");
    tap.ping();
    // With each kind of owner.
    for mode in ["enabled", "busy-poll", "workqueue", "disabled"] {
        tap.served.set(&["--threaded", mode]);
        tap.echo(mode);
    }
    assert!(tap.exists());
    tap.served.signal(Signal::TERM);
    assert!(tap.served.end().success());
    assert!(!tap.exists());
}

/// Floods a server with datagrams from the host's own sockets, until dropped.
struct Flood {
    over: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Flood {
    fn start(tap: &Tap) -> Flood {
        let flows = [(); 8].map(|()| {
            let socket = UdpSocket::bind((tap.host, 0)).expect("the host's address is there");
            socket.connect((tap.own_address, 7)).expect("a route is there");
            socket
        });
        let over = Arc::new(AtomicBool::new(false));
        let stop = Arc::clone(&over);
        let thread = std::thread::spawn(move || {
            while !stop.load(Ordering::Relaxed) {
                for flow in &flows {
                    // Fails once the device is gone: there is no route.
                    let _ = flow.send(&[0; 64]);
                }
            }
        });
        Flood { over, thread: Some(thread) }
    }
}

impl Drop for Flood {
    fn drop(&mut self) {
        self.over.store(true, Ordering::Relaxed);
        let _ = self.thread.take().map(JoinHandle::join);
    }
}

#[test]
fn no_device_remains_after_a_kill_under_traffic() {
    let policies = [
        "base",
        "hold",
        "ksoftirqd",
        "threaded",
        "workqueue",
        "defer20",
        "napibusy",
        "fullbusy",
        "threaded-busy-poll",
        "suspend20",
        "feedback",
    ];
    let mut rng = Rng::new(9);
    for (n, policy) in (10..).zip(policies) {
        let mut tap = serve(n, policy);
        tap.echo("there");
        let _flood = Flood::start(&tap);
        let delay = Duration::from_micros(1_000 + rng.below(59_000));
        std::thread::sleep(delay);
        tap.served.signal(Signal::KILL);
        assert!(!tap.served.end().success());
        within(&format!("{policy}, killed after {delay:?}: the device goes"), || {
            (!tap.exists()).then_some(())
        });
    }
}

/// Deletes the device while its server runs.
fn remove(name: &str) {
    needs_program("ip");
    let output = std::process::Command::new("ip").args(["link", "del", name]).output();
    let output = output.expect("it is installed");
    assert!(output.status.success(), "{}", common::text(&output.stderr));
}

#[test]
fn a_device_that_goes_is_missed_under_every_owner() {
    for (n, policy) in (30..).zip(["base", "threaded", "fullbusy", "suspend20", "hold"]) {
        let mut tap = serve(n, policy);
        tap.echo(policy);
        remove(&tap.name);
        assert_eq!(tap.served.end().code(), Some(1), "{policy}");
        let log = tap.served.log();
        assert!(log.contains(&format!("error: device {} has gone", tap.name)), "{policy}: {log}");
        assert!(!log.contains("panicked"), "{policy}: {log}");
    }
}

#[test]
fn without_one_device_the_others_go_on() {
    needs_tap();
    let place = TempDir::new("gone");
    let name = format!("nkg{}", std::process::id() % 100_000);
    let device = format!("tap:{name}");
    let address = format!("198.18.{}.225/30", std::process::id() % 250);
    let args = ["echo", "--device", "synthetic", "--device", &device, "--address", &address];
    let served = Served::start(&place.socket("a.sock"), &args).expect("it starts");
    let gone = || served.json(&["napi-get"])[1]["gone"] == true;
    assert!(!gone());
    assert!(!common::text(&served.ask(&["napi-get"]).stdout).contains("gone"));
    remove(&name);
    within("it is seen", || gone().then_some(()));
    within("it is told", || served.log().contains("the others go on").then_some(()));
    assert_eq!(served.json(&["queue-get", "--ifindex", "2"])[0]["gone"], true);
    assert!(common::text(&served.ask(&["napi-get"]).stdout).contains("gone"));
    // A second later it is not reported again.
    let lines = served.log().lines().count();
    within("the next status", || (served.log().lines().count() > lines).then_some(()));
    assert_eq!(served.log().matches("has gone").count(), 1, "{}", served.log());
    assert_eq!(served.napi()["gone"], false);
}

#[test]
fn a_device_that_is_in_use_is_refused() {
    let tap = serve(2, "base");
    let device = format!("tap:{}", tap.name);
    // The kernel would attach it as a second queue, and steer half of the flows to it.
    let second = Served::start(&tap._place.socket("b.sock"), &["echo", "--device", &device]);
    let message = second.err().expect("refused");
    assert!(message.contains("in use by another process"), "{message}");
    tap.echo("unharmed");
    let output = common::napkin(["serve", "echo", "--device", "tap:lo"]);
    assert_eq!(output.status.code(), Some(1));
    let error = common::text(&output.stderr);
    assert!(error.contains("not a TAP interface"), "{error}");
}

/// Sends raw frames.
struct Wire {
    socket: OwnedFd,
    to: libc::sockaddr_ll,
}

impl Wire {
    fn open(name: &str) -> Wire {
        let index =
            std::fs::read_to_string(format!("/sys/class/net/{name}/ifindex")).expect("there");
        // SAFETY: `sockaddr_ll` is plain data, for which all zeros are valid.
        let mut to: libc::sockaddr_ll = unsafe { std::mem::zeroed() };
        to.sll_family = libc::AF_PACKET as u16;
        to.sll_ifindex = index.trim().parse().expect("a number");
        to.sll_halen = 6;
        let socket = rustix::net::socket(AddressFamily::PACKET, SocketType::RAW, None);
        Wire { socket: socket.expect("a packet socket"), to }
    }

    fn send(&self, frame: &[u8]) -> bool {
        let size = size_of::<libc::sockaddr_ll>() as libc::socklen_t;
        // SAFETY: the descriptor is open; frame and address are live for the call, and their
        // lengths are given.
        let sent = unsafe {
            libc::sendto(
                self.socket.as_raw_fd(),
                frame.as_ptr().cast(),
                frame.len(),
                0,
                (&raw const self.to).cast(),
                size,
            )
        };
        sent == frame.len() as isize
    }

    /// Raises the host's MTU, so that it can send frames longer than a buffer.
    fn jumbo(&self, name: &str) {
        // SAFETY: `ifreq` is plain data, for which all zeros are valid.
        let mut request: libc::ifreq = unsafe { std::mem::zeroed() };
        for (to, from) in request.ifr_name.iter_mut().zip(name.bytes()) {
            *to = from as libc::c_char;
        }
        request.ifr_ifru.ifru_mtu = 9_000;
        let inet = rustix::net::socket(AddressFamily::INET, SocketType::DGRAM, None).expect("one");
        // SAFETY: the descriptor is open, and the argument is a live `ifreq`.
        let done = unsafe { libc::ioctl(inet.as_raw_fd(), libc::SIOCSIFMTU, &raw mut request) };
        assert_eq!(done, 0, "{}", std::io::Error::last_os_error());
    }
}

#[test]
fn malformed_frames_are_counted_and_the_echo_goes_on() {
    let tap = serve(3, "base");
    tap.echo("before");
    let wire = Wire::open(&tap.name);
    let device = tap.served.json(&["dev-get"])[0].clone();
    let mac = device["mac"].as_str().expect("text").split(':');
    let mac: Vec<u8> = mac.map(|byte| u8::from_str_radix(byte, 16).expect("hex")).collect();
    let header = |kind: [u8; 2]| [&mac[..], &[2, 0, 0, 0, 0, 9], &kind].concat();
    let ip = |rest: &[u8]| [header([8, 0]), rest.to_vec()].concat();
    let mut frames = vec![
        header([8, 0]),
        ip(&[0x45]),
        ip(&[0x45; 19]),
        ip(&[0x00; 40]),
        ip(&[0xff; 60]),
        ip(&[0x4f; 30]),
        [header([8, 6]), vec![0xff; 10]].concat(),
        header([0x81, 0]),
    ];
    // An IP length beyond the frame, and a wrong checksum.
    let mut long = vec![0x45, 0, 0xff, 0xff, 0, 0, 0, 0, 64, 17, 0, 0, 198, 18, 0, 9];
    long.extend(tap.own_address.octets());
    frames.push(ip(&long));
    let mut state = 0x2545_f491_4f6c_dd1d_u64;
    for round in 0..500_usize {
        let bytes = (0..round % 200).map(|_| {
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            state as u8
        });
        frames
            .push([header(if round % 2 == 0 { [8, 0] } else { [8, 6] }), bytes.collect()].concat());
    }
    let sent = frames.iter().filter(|frame| wire.send(frame)).count() as u64;
    assert!(sent > 400, "only {sent} frames were taken by the operating system");
    wire.jumbo(&tap.name);
    let oversized = [header([8, 0]), vec![0; 5_000]].concat();
    assert!(wire.send(&oversized) && wire.send(&oversized));

    let stats = || tap.served.json(&["qstats-get"])[0].clone();
    let count = |stats: &serde_json::Value, name: &str| stats["stack"][name].as_u64().unwrap_or(0);
    let names = [
        "truncated",
        "bad-length",
        "bad-header",
        "bad-checksum",
        "bad-source",
        "ipv6",
        "multicast",
        "not-for-us",
        "vlan",
        "ip-options",
        "fragment",
        "unknown-protocol",
        "no-port",
    ];
    let dropped = |stats: &serde_json::Value| names.iter().map(|it| count(stats, it)).sum::<u64>();
    within("every frame is accounted for", || (dropped(&stats()) >= sent).then_some(()));
    within("the oversized ones, too", || (stats()["rx-oversized"] == 2).then_some(()));
    // Retry while frames arrive, such as the host's own: the counters are not read atomically.
    within("all that came has one fate each", || {
        let after = stats();
        let fates = after["stack"].as_object()?.iter().filter(|(name, _)| *name != "frames");
        let accounted: u64 = fates.filter_map(|(_, count)| count.as_u64()).sum();
        (accounted == count(&after, "frames")).then_some(())
    });
    tap.echo("after");
    tap.ping();
    assert!(!tap.served.log().contains("panicked"), "{}", tap.served.log());
}

#[test]
fn what_the_stack_answers_is_counted_and_what_it_drops_has_a_name() {
    let mut tap = serve(20, "base");
    tap.ping();
    tap.served.signal(Signal::INT);
    assert!(tap.served.end().success());
    let log = tap.served.log();
    let total = log.lines().last().expect("a summary");
    // The host sends an ARP request before the ping.
    let words: Vec<&str> = total.split(' ').collect();
    let before = |word: &str| {
        let place = words.iter().position(|it| *it == word).expect(word);
        words[place - 1].parse::<u64>().expect("a number")
    };
    assert!(before("pings") >= 1 && before("ARP") >= 1, "{total}");
    // Frames that the host sends by itself are not counted as misdirected.
    assert!(!total.contains("not_for_us"), "{total}");
}

#[test]
fn two_servers_do_not_take_the_same_network() {
    let tap = serve(21, "base");
    let place = TempDir::new("second");
    let (name, address) = (format!("{}b", tap.name), format!("{}/30", tap.own_address));
    let device = format!("tap:{name}");
    let start = |address: &str| {
        let args = ["echo", "--device", &device, "--address", address];
        Served::start(&place.socket("a.sock"), &args)
    };
    let message = start(&address).err().expect("it is refused");
    let why = format!("{name} cannot be {address}: {} has {} in the same", tap.name, tap.host);
    assert!(message.contains(&why) && message.contains("--address, such as "), "{message}");
    assert!(!std::fs::exists(format!("/sys/class/net/{name}")).expect("sysfs"));
    let free = message.rsplit("such as ").next().expect("an address");
    start(free.trim()).map(drop).expect("what is advised works");
}

napkin_testing::main!();
