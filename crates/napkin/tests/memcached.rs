//! `napkin serve memcached` on a TAP device; the client is the operating system's own TCP.

mod common;

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{Ipv4Addr, Shutdown, SocketAddr, TcpStream, UdpSocket};
use std::process::Command;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::Duration;

use common::namespace::needs_rights;
use common::{Served, TempDir, within};
use napkin_os::rights::Right;
use napkin_testing::{needs, needs_program, test};
use rustix::process::Signal;

/// A server and its address.
struct Server {
    served: Served,
    at: SocketAddr,
    _place: TempDir,
}

/// Starts a server; `n` is unique in this process.
fn serve(n: u8, policy: &str, more: &[&str]) -> Server {
    needs_rights(&[Right::NetAdmin]);
    needs(std::fs::exists("/dev/net/tun").is_ok_and(|it| it), "/dev/net/tun");
    let (place, id) = (TempDir::new(&format!("memcached{n}")), std::process::id());
    let server_address = Ipv4Addr::new(198, 19, (id % 250) as u8, 1 + 4 * n);
    let device = format!("tap:nkm{}x{n}", id % 100_000);
    let address = format!("{server_address}/30");
    let args = ["memcached", "--device", &device, "--address", &address, "--policy", policy];
    let args = [&args, more].concat();
    let served = Served::start(&place.socket("a.sock"), &args).expect("it starts");
    Server { served, at: (server_address, 11_211).into(), _place: place }
}

/// A client's connection.
struct Client(BufReader<TcpStream>);

impl Server {
    fn connect(&self) -> Client {
        let stream = TcpStream::connect_timeout(&self.at, common::TIMEOUT).expect("it answers");
        stream.set_read_timeout(Some(common::TIMEOUT)).expect("a timeout");
        stream.set_nodelay(true).expect("an option");
        Client(BufReader::new(stream))
    }
}

impl Client {
    /// Sends lines, separated by `|`, and expects lines in the same form.
    #[track_caller]
    fn say(&mut self, lines: &str, heard: &str) {
        let lines = lines.split('|').map(|line| format!("{line}\r\n")).collect::<String>();
        self.0.get_mut().write_all(lines.as_bytes()).expect("it takes them");
        self.hear(heard);
    }

    /// Expects lines, separated by `|`.
    #[track_caller]
    fn hear(&mut self, heard: &str) {
        for expected in heard.split('|') {
            let mut line = String::new();
            self.0.read_line(&mut line).expect("an answer");
            assert_eq!(line.trim_end_matches("\r\n"), expected);
        }
    }
}

#[test]
fn the_operating_system_s_tcp_is_served_under_every_kind_of_policy() {
    for (n, policy) in (0..).zip(["base", "suspend20", "fullbusy", "threaded", "defer20"]) {
        let mut server = serve(n, policy, &["--queues", "2"]);
        let mut clients: Vec<Client> = (0..32).map(|_| server.connect()).collect();
        for (key, client) in clients.iter_mut().enumerate() {
            client.say(&format!("set k{key} 0 0 2|v{}", key % 10), "STORED");
        }
        // Each client finds the values of all others, whichever queue has its connection.
        clients.reverse();
        for (key, client) in clients.iter_mut().enumerate() {
            client.say(&format!("get k{key}"), &format!("VALUE k{key} 0 2|v{}|END", key % 10));
        }
        drop(clients);
        server.served.signal(Signal::TERM);
        assert!(server.served.end().success(), "{policy}");
    }
}

/// Stores a value of `len` bytes and reads it back.
fn there_and_back(client: &mut Client, len: u32) {
    let value: Vec<u8> = (0..len).map(|place| (place % 253) as u8).collect();
    let stream = client.0.get_mut();
    stream.write_all(format!("set big 0 0 {len}\r\n").as_bytes()).expect("it takes it");
    stream.write_all(&[&value[..], b"\r\n"].concat()).expect("it takes it");
    client.hear("STORED");
    client.say("get big", &format!("VALUE big 0 {len}"));
    let mut back = vec![0; value.len()];
    client.0.read_exact(&mut back).expect("all of it");
    assert!(back == value, "it is another");
    client.hear("|END");
}

#[test]
fn a_wire_that_loses_repeats_and_changes_frames_loses_no_byte_and_the_capture_shows_it() {
    let file = std::env::temp_dir().join(format!("napkin-lossy-{}.pcap", std::process::id()));
    let path = file.to_str().expect("plain text");
    let faults = "loss=3%,corruption=1%,duplication=2%,reordering=2%,truncation=1%";
    let mut server = serve(9, "suspend20", &["--faults", faults, "--capture", path]);
    let mut client = server.connect();
    there_and_back(&mut client, 200_000);
    server.served.signal(Signal::TERM);
    assert!(server.served.end().success());
    assert!(server.served.log().contains("fault_lost"), "{}", server.served.log());
    let capture = std::fs::read(&file).expect("the capture");
    std::fs::remove_file(&file).expect("it is ours");
    // At least the value, in both directions.
    assert!(capture.len() > 400_000, "{}", capture.len());
    assert_eq!(capture[..4], 0xa1b2_3c4d_u32.to_ne_bytes());
}

#[test]
fn a_large_value_comes_back_whole() {
    let server = serve(5, "suspend20", &[]);
    let mut client = server.connect();
    there_and_back(&mut client, 1_000_000);
    client.say(
        &format!("set big 0 0 1048577|{}", "x".repeat(1_048_577)),
        "SERVER_ERROR object too large for cache",
    );
    client.say("get big", "END");
}

#[test]
fn who_reads_nothing_or_goes_away_harms_nobody_else() {
    let server = serve(6, "base", &[]);
    let mut other = server.connect();
    other.say(&format!("set big 0 0 100000|{}", "x".repeat(100_000)), "STORED");
    // A client that sends requests and never reads: it is blocked, and then closed.
    let mut greedy = server.connect();
    let stream = greedy.0.get_mut();
    stream.set_write_timeout(Some(Duration::from_millis(200))).expect("a timeout");
    while stream.write_all(&b"get big\r\n".repeat(1_000)).is_ok() {}
    // A client that closes in the middle of a request, and one that shuts down its sending side only.
    let mut gone = server.connect();
    gone.0.get_mut().write_all(b"set half 0 0 100\r\nxxx").expect("it takes it");
    drop(gone);
    let mut half = server.connect();
    half.0.get_mut().write_all(b"version\r\n").expect("it takes it");
    half.0.get_mut().shutdown(Shutdown::Write).expect("a half close");
    let mut rest = String::new();
    half.0.read_to_string(&mut rest).expect("its answer, and the end");
    assert!(rest.starts_with("VERSION "), "{rest}");
    other.say("get half", "END");
    other.say("mn", "MN");
}

#[test]
fn modes_change_under_tcp_and_every_answer_comes() {
    // Applications that sleep, that suspend interrupts while they find work, and that busy poll.
    for (n, policy) in [(10, "base"), (13, "suspend20"), (14, "fullbusy")] {
        modes_change(n, policy);
    }
}

fn modes_change(n: u8, policy: &str) {
    let server = serve(n, policy, &[]);
    let ends = AtomicBool::new(false);
    std::thread::scope(|scope| {
        for client in 0..8 {
            let (mut own, ends) = (server.connect(), &ends);
            scope.spawn(move || {
                for round in 0.. {
                    let value = format!("{client}-{round}");
                    own.say(&format!("set k{client} 0 0 {}|{value}", value.len()), "STORED");
                    let heard = format!("VALUE k{client} 0 {}|{value}|END", value.len());
                    own.say(&format!("get k{client}"), &heard);
                    if ends.load(Relaxed) {
                        break;
                    }
                }
            });
        }
        for _ in 0..2 {
            for setting in [
                &["--threaded", "enabled"][..],
                &["--threaded", "busy-poll"],
                &["--threaded", "workqueue"],
                &["--threaded", "disabled"],
                &["--defer-hard-irqs", "100", "--gro-flush-timeout", "20us"],
                &["--irq-suspend-timeout", "20ms"],
                &[
                    "--defer-hard-irqs",
                    "0",
                    "--gro-flush-timeout",
                    "0",
                    "--irq-suspend-timeout",
                    "0",
                ],
                &["--hold", "1ms"],
                &["--hold", "0"],
            ] {
                server.served.set(setting);
            }
        }
        ends.store(true, Relaxed);
    });
}

#[test]
fn a_server_that_is_killed_leaves_nothing_and_another_takes_its_place() {
    let mut server = serve(11, "suspend20", &[]);
    let mut clients: Vec<Client> = (0..8).map(|_| server.connect()).collect();
    clients[0].say("set k 0 0 1|v", "STORED");
    server.served.signal(Signal::KILL);
    assert!(!server.served.end().success());
    drop(server);
    // The same device, address and control socket.
    let server = serve(11, "suspend20", &[]);
    server.connect().say("get k", "END");
    // A connection of the previous server is unknown to this one, which resets it.
    clients[1].0.get_mut().write_all(b"get k\r\n").expect("the kernel takes it");
    assert!(!matches!(clients[1].0.read(&mut [0; 1]), Ok(1..)), "a RST");
    server.connect().say("mn", "MN");
}

#[test]
fn a_port_that_is_not_served_is_refused() {
    let server = serve(7, "base", &[]);
    let nobody = SocketAddr::new(server.at.ip(), 7);
    let refused =
        within("a refusal", || TcpStream::connect_timeout(&nobody, common::TIMEOUT).err());
    assert_eq!(refused.kind(), std::io::ErrorKind::ConnectionRefused);
    within("its count", || server.served.log().contains("no_listener").then_some(()));
}

#[test]
fn what_is_stored_over_tcp_is_read_over_udp() {
    let server = serve(12, "suspend20", &["--udp"]);
    server.connect().say("set k 0 0 5|value", "STORED");
    let socket = UdpSocket::bind((Ipv4Addr::UNSPECIFIED, 0)).expect("a port");
    socket.set_read_timeout(Some(Duration::from_secs(1))).expect("a timeout");
    let answer = within("an answer", || {
        socket.send_to(b"\0\x07\0\0\0\x01\0\0get k\r\n", server.at).ok()?;
        let mut answer = [0; 1_500];
        let length = socket.recv(&mut answer).ok()?;
        Some(answer[..length].to_vec())
    });
    assert_eq!(answer, b"\0\x07\0\0\0\x01\0\0VALUE k 0 5\r\nvalue\r\nEND\r\n");
    let output = common::napkin(["serve", "echo", "--device", "synthetic", "--udp"]);
    assert!(common::text(&output.stderr).contains("leave --udp out"));
}

#[test]
fn libmemcached_s_conformance_test_passes() {
    needs_program("memccapable");
    let server = serve(8, "suspend20", &["--queues", "2"]);
    let (host, port) = (server.at.ip().to_string(), server.at.port().to_string());
    let output = Command::new("memccapable").args(["-h", &host, "-p", &port, "-a"]).output();
    let output = output.expect("it is installed");
    let printed = common::text(&output.stdout) + &common::text(&output.stderr);
    assert!(output.status.success() && printed.contains("All tests passed"), "{printed}");
}

#[test]
fn what_makes_no_sense_is_refused() {
    for (args, part) in [
        (&["--device", "synthetic"][..], "tap:NAME"),
        (&["--device", "tap:nkz", "--memory", "1"], "give more memory, or smaller items"),
        (&["--device", "tap:nkz", "--item-size", "0"], "give 1 byte to 128 MiB"),
    ] {
        let args = [&["serve", "memcached"], args].concat();
        let output = common::napkin(args.iter().copied());
        assert_eq!(output.status.code(), Some(2), "{args:?}");
        let error = common::text(&output.stderr);
        assert!(error.contains(part), "{args:?}: {error}");
    }
}

napkin_testing::main!();
