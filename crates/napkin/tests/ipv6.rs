//! `napkin serve` over IPv6 and in a VLAN; the client is the operating system's own stack, over a TAP device.

mod common;

use std::io::{Read, Write};
use std::net::{Ipv6Addr, SocketAddr, TcpStream, UdpSocket};
use std::process::Command;
use std::time::Duration;

use common::namespace::needs_rights;
use common::{Served, TempDir, napkin, text, within};
use napkin_os::rights::Right;
use napkin_testing::{needs, needs_program, test};
use rustix::process::Signal;

/// A server on a TAP device, with its own IPv4 and IPv6 networks.
struct Server {
    served: Served,
    /// The interface of the operating system's side.
    side: String,
    address: Ipv6Addr,
    _place: TempDir,
}

/// Starts a server; `n` is unique in this process.
fn serve(what: &str, n: u8, vlan: Option<u16>, more: &[&str]) -> Server {
    needs_rights(&[Right::NetAdmin]);
    needs(std::fs::exists("/dev/net/tun").is_ok_and(|it| it), "/dev/net/tun");
    needs(std::fs::exists("/proc/net/if_inet6").is_ok_and(|it| it), "a kernel with IPv6");
    let (place, id) = (TempDir::new(&format!("ipv6{n}")), std::process::id());
    let [high, low] = [(id >> 16) as u16, id as u16];
    let address = Ipv6Addr::new(0xfd6e, 0x6b00 | u16::from(n), high, low, 0, 0, 0, 1);
    let vlan = vlan.map(|vlan| format!(".{vlan}")).unwrap_or_default();
    let side = format!("nk6{}x{n}{vlan}", id % 10_000);
    let v4 = format!("198.18.{}.{}/30", id % 250, 129 + 4 * n);
    let (device, addresses) = (format!("tap:{side}"), format!("{v4},{address}/64"));
    let args = [what, "--device", &device, "--address", &addresses];
    let served = match Served::start(&place.socket("a.sock"), &[&args, more].concat()) {
        Ok(served) => served,
        Err(message) => {
            needs(!message.contains("Unknown device type"), "a kernel with VLANs (8021q)");
            panic!("{message}");
        }
    };
    Server { served, side, address, _place: place }
}

impl Server {
    /// Has a datagram echoed. Retries, as datagrams may be lost.
    fn echo(&self, bytes: &[u8]) {
        let socket = UdpSocket::bind((Ipv6Addr::UNSPECIFIED, 0)).expect("a port");
        socket.set_read_timeout(Some(Duration::from_millis(500))).expect("a timeout");
        let mut buffer = [0; 2_048];
        within("an echo", || {
            socket.send_to(bytes, (self.address, 7)).expect("a route is there");
            let (length, from) = socket.recv_from(&mut buffer).ok()?;
            assert_eq!((&buffer[..length], from.ip()), (bytes, self.address.into()));
            Some(())
        });
    }

    fn ping(&self, address: &str) {
        needs_program("ping");
        within("an echo reply", || {
            let mut ping = Command::new("ping");
            ping.args(["-6", "-c", "1", "-W", "1", "-s", "1400", address]);
            ping.output().expect("it runs").status.success().then_some(())
        });
    }

    /// The fields of the only device.
    fn device(&self) -> serde_json::Value {
        self.served.json(&["dev-get"])[0].clone()
    }
}

#[test]
fn the_operating_system_finds_us_by_neighbour_discovery() {
    let mut server = serve("echo", 0, None, &[]);
    let device = server.device();
    let link_local = device["ipv6"].as_str().expect("text").split(", ").nth(1).expect("two");
    let link_local = link_local.strip_suffix("/64").expect("a prefix");
    assert!(link_local.starts_with("fe80::"), "{link_local}");
    server.echo(b"hello");
    server.echo(&[7; 1_452]);
    server.ping(&server.address.to_string());
    // The link-local address is usable after duplicate address detection.
    server.ping(&format!("{link_local}%{}", server.side));
    server.ping(&format!("ff02::1%{}", server.side));
    server.served.signal(Signal::TERM);
    assert!(server.served.end().success());
    assert!(!std::fs::exists(format!("/sys/class/net/{}", server.side)).expect("sysfs"));
}

#[test]
fn memcached_is_reached_over_ipv6() {
    let server = serve("memcached", 1, None, &["--queues", "2", "--udp"]);
    let value = "v".repeat(100_000);
    let mut streams: Vec<TcpStream> = (0..16)
        .map(|_| {
            let at = SocketAddr::from((server.address, 11_211));
            let stream = TcpStream::connect_timeout(&at, common::TIMEOUT).expect("it answers");
            stream.set_read_timeout(Some(common::TIMEOUT)).expect("a timeout");
            stream
        })
        .collect();
    for (key, stream) in streams.iter_mut().enumerate() {
        let set = format!("set k{key} 0 0 {}\r\n{value}\r\n", value.len());
        stream.write_all(set.as_bytes()).expect("it takes them");
        let mut stored = [0; 8];
        stream.read_exact(&mut stored).expect("an answer");
        assert_eq!(&stored, b"STORED\r\n");
    }
    streams.reverse();
    for (key, mut stream) in streams.into_iter().enumerate() {
        stream.write_all(format!("get k{key}\r\nquit\r\n").as_bytes()).expect("it takes them");
        let mut got = String::new();
        stream.read_to_string(&mut got).expect("an answer");
        let expected = format!("VALUE k{key} 0 {}\r\n{value}\r\nEND\r\n", value.len());
        assert!(got == expected, "{} bytes", got.len());
    }
    let socket = UdpSocket::bind((Ipv6Addr::UNSPECIFIED, 0)).expect("a port");
    socket.set_read_timeout(Some(Duration::from_millis(500))).expect("a timeout");
    let mut buffer = [0; 2_048];
    within("an answer", || {
        let ask = [&[0, 7, 0, 0, 0, 1, 0, 0], &b"get none\r\n"[..]].concat();
        socket.send_to(&ask, (server.address, 11_211)).expect("a route is there");
        let length = socket.recv(&mut buffer).ok()?;
        assert!(buffer[..length].ends_with(b"END\r\n"));
        Some(())
    });
}

#[test]
fn a_vlan_of_the_operating_system_s_reaches_us_and_its_untagged_frames_do_not() {
    let server = serve("echo", 2, Some(100), &[]);
    assert_eq!(server.device()["vlan"], 100);
    server.echo(b"hello");
    server.echo(&[7; 1_452]);
    server.ping(&server.address.to_string());
    // The kernel announces the untagged device, which is up, to its neighbours.
    within("untagged frames are counted", || {
        let stats = server.served.json(&["qstats-get"]);
        (stats[0]["stack"]["untagged"].as_u64()? > 0).then_some(())
    });
}

#[test]
fn what_no_device_can_have_is_refused_with_its_value() {
    let refused = |args: &[&str], what: &str| {
        let output = napkin(["serve", "echo"].into_iter().chain(args.iter().copied()));
        let stderr = text(&output.stderr);
        assert!(output.status.code() == Some(2) && stderr.contains(what), "{stderr}");
    };
    refused(&["--device", "tap:nk0.4095"], "a VLAN is 1 to 4094");
    refused(&["--device", "synthetic", "--address", "fd00::1"], "fd00:99::1/64");
    refused(&["--device", "synthetic", "--address", "fd00::/64"], "no host can have");
    refused(&["--device", "synthetic", "--address", "fd00::1/64,fd00::1/48"], "given twice");
    let many: Vec<String> = (1..9).map(|n| format!("fd00:0:0:{n}::1/64")).collect();
    refused(&["--device", "synthetic", "--address", &many.join(",")], "give 1 to 7 addresses");
}

napkin_testing::main!();
