//! `napkin serve` over AF_XDP on one end of a veth, in namespaces of the test's own: the client is the
//! operating system of the other end.
//!
//! Needs CAP_NET_ADMIN, CAP_NET_RAW, CAP_BPF and CAP_SYS_ADMIN.

mod common;

use std::io::{Read, Write};
use std::net::{Ipv4Addr, TcpListener, TcpStream, UdpSocket};
use std::os::fd::AsFd;
use std::time::Duration;

use common::namespace::{fresh, needs_rights};
use common::{Served, TempDir, command, text, within};
use napkin_kernel::namespace::Namespace;
use napkin_kernel::netlink::{Ethtool, GRO, Netdev, Route, VethConfig};
use napkin_kernel::settings::Setting;
use napkin_os::rights::Right;
use napkin_testing::{ignore, test};
use rustix::process::Signal;

const OURS: Ipv4Addr = Ipv4Addr::new(198, 18, 0, 1);
const THEIRS: Ipv4Addr = Ipv4Addr::new(198, 18, 0, 2);

/// The client's namespace; the thread is in the server's.
fn lab() -> Namespace {
    needs_rights(&[Right::NetRaw, Right::Bpf]);
    let (server, client) = (fresh(), fresh());
    server.enter_thread().expect("it is entered");
    let mut route = Route::open().expect("netlink");
    let veth = VethConfig {
        name: "nk-server",
        peer: "nk-client",
        peer_namespace: Some(client.as_fd()),
        rx_queues: 1,
        tx_queues: 1,
    };
    let ifindex = route.add_veth(&veth).expect("a veth");
    route.add_address(ifindex, OURS, 24).expect("an address");
    route.set_up(ifindex).expect("up");
    let set_up_client = || {
        // A veth has no hardware that would complete an offloaded checksum.
        let mut ethtool = Ethtool::open().expect("netlink");
        ethtool.set_features("nk-client", &[("tx-checksum-ip-generic", false)]).expect("a feature");
        let mut route = Route::open().expect("netlink");
        let ifindex = route.link("nk-client").expect("the other end").ifindex;
        route.add_address(ifindex, THEIRS, 24).expect("an address");
        route.set_up(ifindex).expect("up");
    };
    client.run(set_up_client).expect("the client's namespace");
    client
}

/// Sends a request over a kernel TCP connection and returns the answer.
fn asks(client: &Namespace, port: u16, text: &str, until: &str) -> String {
    let ask = || {
        let mut stream = within("a connection", || TcpStream::connect((OURS, port)).ok());
        stream.set_read_timeout(Some(Duration::from_secs(30))).expect("a timeout");
        stream.write_all(text.as_bytes()).expect("it is taken");
        let mut received = String::new();
        let mut bytes = [0; 4096];
        while !received.ends_with(until) {
            let length = stream.read(&mut bytes).expect("an answer");
            assert!(length > 0, "closed after {received:?}");
            received.push_str(&String::from_utf8_lossy(&bytes[..length]));
        }
        received
    };
    client.run(ask).expect("the client's namespace")
}

#[test]
fn memcached_is_served_by_port_and_all_else_goes_on_and_a_kill_leaves_nothing() {
    let client = lab();
    let place = TempDir::new("xdp");
    // Stands for any other service of the host, such as sshd.
    let other = TcpListener::bind((OURS, 2_222)).expect("the address is there");
    std::thread::spawn(move || {
        for stream in other.incoming().map_while(Result::ok) {
            let mut stream = stream;
            let _ = stream.write_all(b"SSH-2.0\r\n");
        }
    });
    for policy in ["base", "suspend20"] {
        let args = ["memcached", "--device", "xdp:nk-server:0", "--policy", policy];
        let served = Served::start(&place.socket("a.sock"), &args).expect("it starts");
        let log = served.log();
        assert!(log.contains("AF_XDP on queue 0, native, copied by the kernel"), "{log}");
        assert!(log.contains("port 11211 (UDP and TCP) is ours"), "{log}");
        let value = "x".repeat(5_000);
        let set = format!("set a 0 0 5000\r\n{value}\r\nget a\r\n");
        let answer = asks(&client, 11_211, &set, "END\r\n");
        assert_eq!(answer, format!("STORED\r\nVALUE a 0 5000\r\n{value}\r\nEND\r\n"));
        assert_eq!(asks(&client, 2_222, "", "\r\n"), "SSH-2.0\r\n");
        // A second server is refused with the reason, and does not disturb the first.
        let second = Served::start(&place.socket("b.sock"), &args).err().expect("refused");
        assert!(second.contains("an XDP program is attached to nk-server already"), "{second}");
        assert_eq!(asks(&client, 11_211, "get b\r\n", "END\r\n"), "END\r\n");
        served.signal(Signal::KILL);
        drop(served);
    }
    let mut served = Served::start(
        &place.socket("a.sock"),
        &["echo", "--device", "xdp:nk-server:0:all", "--address", "198.18.0.9/24"],
    )
    .expect("nothing was left");
    let echo = || {
        let socket = UdpSocket::bind((THEIRS, 0)).expect("the address is there");
        socket.set_read_timeout(Some(Duration::from_millis(500))).expect("a timeout");
        within("an echo", || {
            socket.send_to(b"hi", ("198.18.0.9", 7)).expect("a route is there");
            let mut bytes = [0; 8];
            let length = socket.recv(&mut bytes).ok()?;
            assert_eq!(&bytes[..length], b"hi");
            Some(())
        });
    };
    client.run(echo).expect("the client's namespace");
    served.signal(Signal::TERM);
    assert!(served.end().success(), "{}", served.log());
}

/// The deferral of the instance of the server's device: empty polls, and timeout in nanoseconds; `None` if no
/// instance is
/// listed.
fn deferral() -> Option<(u64, u64)> {
    let mut route = Route::open().expect("netlink");
    let ifindex = route.link("nk-server").expect("it is there").ifindex;
    let mut netdev = Netdev::open().expect("netlink");
    let napi = netdev.napis(Some(ifindex)).expect("its instances").into_iter().next()?;
    let of = |setting| napi.settings.get(setting).unwrap_or(0);
    Some((of(Setting::DeferHardIrqs), of(Setting::GroFlushTimeout)))
}

#[test]
fn a_policy_that_defers_does_so_below_as_well_until_the_end_whatever_that_is() {
    let client = lab();
    // With GRO the instance outlives the program, so that settings left behind would be seen.
    let on: Vec<_> = GRO.iter().map(|name| (*name, true)).collect();
    Ethtool::open().expect("netlink").set_features("nk-server", &on).expect("a veth has GRO");
    let Some(before) = deferral() else { ignore("this kernel lists no NAPI instances") };
    let place = TempDir::new("xdp-below");
    let serve = |policy: &str| {
        let args = ["echo", "--device", "xdp:nk-server:0", "--policy", policy];
        Served::start(&place.socket("a.sock"), &args).expect("it starts")
    };
    let mut served = serve("defer20");
    assert!(served.log().contains("interrupts are deferred until the end"), "{}", served.log());
    assert_eq!(deferral(), Some((100, 20_000)));
    served.signal(Signal::TERM);
    assert!(served.end().success(), "{}", served.log());
    assert_eq!(deferral(), Some(before));
    // Killed: restore works from the journal.
    let served = serve("defer20");
    served.signal(Signal::KILL);
    drop(served);
    assert_eq!(deferral(), Some((100, 20_000)));
    let restored = command().arg("restore").env("NAPKIN_STATE", place.socket("state")).output();
    let restored = restored.expect("the binary runs");
    assert!(restored.status.success(), "{}", text(&restored.stderr));
    assert_eq!(deferral(), Some(before));
    // If the queue cannot be polled in place of interrupts, they stay on, and the server says so.
    let mut served = serve("suspend20");
    let log = served.log();
    let polled = log.contains("the kernel's NAPI is polled from here");
    assert!(polled || log.contains("cannot be polled from here"), "{log}");
    assert_eq!(deferral() == Some(before), !polled, "{log}");
    served.signal(Signal::TERM);
    assert!(served.end().success(), "{}", served.log());
    assert_eq!(deferral(), Some(before));
    drop(client);
}

#[test]
fn what_cannot_be_served_is_said() {
    let _client = lab();
    let place = TempDir::new("xdp-not");
    let error_of = |device: &str| {
        Served::start(&place.socket("a.sock"), &["echo", "--device", device])
            .err()
            .expect("refused")
    };
    assert!(error_of("xdp:nk-none:0").contains("no interface nk-none"));
    assert!(error_of("xdp:nk-server:4").contains("no queue 4"));
    assert!(error_of("xdp:lo").contains("not an Ethernet interface"));
    assert!(error_of("xdp").contains("xdp:IF:FIRST-LAST"));
    let mut route = Route::open().expect("netlink");
    let ifindex = route.link("nk-server").expect("it is there").ifindex;
    route.set_down(ifindex).expect("down");
    assert!(error_of("xdp:nk-server").contains("is down"));
}

napkin_testing::main!();
