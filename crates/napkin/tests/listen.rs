//! `napkin serve --listen`: the services on the operating system's own sockets, over loopback.

mod common;

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream, UdpSocket};
use std::process::Command;

use common::{Served, TIMEOUT, TempDir, napkin, text};
use napkin_testing::{needs, needs_program, test};
use rustix::process::Signal;

const LOOPBACK: &str = "127.0.0.1";

/// A port that is free for TCP and UDP; another program may take it before it is used.
fn free_port() -> String {
    loop {
        let listener = TcpListener::bind((LOOPBACK, 0)).expect("a port");
        let port = listener.local_addr().expect("it is bound").port();
        if UdpSocket::bind((LOOPBACK, port)).is_ok() {
            return port.to_string();
        }
    }
}

/// Starts a server on a port of its own.
fn listen(what: &str, more: &[&str]) -> (Served, SocketAddr) {
    try_listen(what, more).unwrap_or_else(|message| panic!("it does not listen: {message}"))
}

/// As [`listen`]; fails with the server's output.
fn try_listen(what: &str, more: &[&str]) -> Result<(Served, SocketAddr), String> {
    let mut last = String::new();
    for _ in 0..10 {
        let port = free_port();
        let args = [&[what, "--listen", LOOPBACK, "--port", &port], more].concat();
        match Served::listen(&args) {
            Ok(served) => {
                let at = (Ipv4Addr::LOCALHOST, port.parse().expect("a port")).into();
                return Ok((served, at));
            }
            Err(message) => last = message,
        }
    }
    Err(last)
}

fn connect(at: SocketAddr) -> BufReader<TcpStream> {
    let stream = TcpStream::connect_timeout(&at, TIMEOUT).expect("it answers");
    stream.set_read_timeout(Some(TIMEOUT)).expect("a timeout");
    BufReader::new(stream)
}

fn say(client: &mut BufReader<TcpStream>, line: &str) -> String {
    client.get_mut().write_all(format!("{line}\r\n").as_bytes()).expect("it takes them");
    let mut heard = String::new();
    client.read_line(&mut heard).expect("an answer");
    heard.trim_end().to_owned()
}

fn ask(at: SocketAddr, datagram: &[u8]) -> Vec<u8> {
    let client = UdpSocket::bind((LOOPBACK, 0)).expect("it binds");
    client.set_read_timeout(Some(TIMEOUT)).expect("a timeout");
    client.send_to(datagram, at).expect("it goes");
    let mut heard = vec![0; 2_000];
    let length = client.recv(&mut heard).expect("an answer");
    heard.truncate(length);
    heard
}

#[test]
fn memcached_s_threads_share_a_port_and_their_items_also_with_udp() {
    let (mut served, at) = listen("memcached", &["--threads", "3", "--udp"]);
    let mut clients: Vec<_> = (0..24).map(|_| connect(at)).collect();
    for (key, client) in clients.iter_mut().enumerate() {
        assert_eq!(say(client, &format!("set k{key} 0 0 2\r\nhi")), "STORED");
    }
    // Each client finds the values of all others, whichever thread has its connection.
    clients.reverse();
    for (key, client) in clients.iter_mut().enumerate() {
        assert_eq!(say(client, &format!("mg k{key} v")), "VA 2");
        assert_eq!(say(client, "mn"), "hi");
        let mut heard = String::new();
        client.read_line(&mut heard).expect("an answer");
        assert_eq!(heard, "MN\r\n");
    }
    let heard = ask(at, b"\0\x09\0\0\0\x01\0\0get k7\r\n");
    assert_eq!(text(&heard[8..]), "VALUE k7 0 2\r\nhi\r\nEND\r\n");
    // Connected clients do not delay its end.
    served.signal(Signal::TERM);
    assert!(served.end().success());
    let log = served.log();
    let wanted =
        format!("listening on {at} (TCP and UDP), the operating system's own sockets: 3 threads");
    assert!(log.contains(&wanted), "{log}");
    assert!(log.contains("served: 73 received, 73 replies, drops: none"), "{log}");
    let mut rest = Vec::new();
    let _ = clients[0].read_to_end(&mut rest);
    assert!(rest.is_empty(), "{}", text(&rest));
}

#[test]
fn echo_and_sink_take_datagrams_and_the_status_says_so() {
    let (mut served, at) = listen("echo", &["--threads", "2", "--for", "2s"]);
    for _ in 0..20 {
        assert_eq!(ask(at, b"hello"), b"hello");
    }
    assert!(served.end().success());
    let log = served.log();
    assert!(log.contains("served: 20 received, 20 replies, drops: none"), "{log}");
    assert!(log.contains(" replies/s, drops/s:") && log.contains(", work "), "{log}");
    assert!(!log.contains("polls"), "nobody knows them here: {log}");

    let (mut served, at) = listen("sink", &[]);
    let client = UdpSocket::bind((LOOPBACK, 0)).expect("it binds");
    client.send_to(b"hello", at).expect("it goes");
    served.signal(Signal::INT);
    assert!(served.end().success());
}

#[test]
fn a_remote_disk_is_served_from_memory_and_from_a_file() {
    needs_program("nbdinfo");
    needs_program("nbdcopy");
    let place = TempDir::new("listen-nbd");
    let (here, there) = (place.socket("here"), place.socket("there"));
    let bytes: Vec<u8> =
        (0..1u32 << 20).map(|at| (at.wrapping_mul(2_654_435_761) >> 24) as u8).collect();
    std::fs::write(&here, &bytes).expect("a file");
    let file = place.socket("disk");
    std::fs::write(&file, vec![0; 1 << 20]).expect("a file");
    let file = file.to_str().expect("a plain path");
    for store in [&["--size", "1M"], &["--file", file]] {
        let args = [&store[..], &["--threads", "2"]].concat();
        let (served, at) = try_listen("nbd", &args).unwrap_or_else(|message| {
            needs(!message.contains("io_uring"), "io_uring");
            panic!("it does not listen: {message}");
        });
        let uri = format!("nbd://{at}");
        let run = |program: &str, args: &[&str]| {
            let output = Command::new(program).args(args).output().expect("it is installed");
            assert!(output.status.success(), "{program}: {}", text(&output.stderr));
            text(&output.stdout)
        };
        assert_eq!(run("nbdinfo", &["--size", &uri]).trim(), "1048576");
        let [from, to] = [&here, &there].map(|path| path.to_str().expect("a plain path"));
        run("nbdcopy", &["--flush", from, &uri]);
        run("nbdcopy", &[&uri, to]);
        assert!(std::fs::read(&there).expect("a copy") == bytes, "{store:?}");
        drop(served);
    }
}

#[test]
fn a_port_that_somebody_has_is_refused_even_if_it_is_another_napkin() {
    let (served, at) = listen("memcached", &[]);
    let port = at.port().to_string();
    let error = Served::listen(&["memcached", "--listen", LOOPBACK, "--port", &port]);
    let error = error.err().expect("it is taken");
    assert!(
        error.contains(&at.to_string()) && error.contains("another program has the port"),
        "{error}"
    );
    drop(served);
    // Its old connections do not keep the port from being bound again.
    drop(
        Served::listen(&["memcached", "--listen", LOOPBACK, "--port", &port]).expect("it is free"),
    );
}

#[test]
fn what_cannot_be_had_is_named() {
    let refused = |args: &[&str], words: &str| {
        let output = napkin([&["serve"], args].concat());
        let error = text(&output.stderr);
        assert!(!output.status.success() && error.contains(words), "{args:?}: {error}");
    };
    refused(&["echo", "--listen", "192.0.2.1"], "no interface of this host has this address");
    refused(&["echo", "--listen", LOOPBACK, "--device", "synthetic"], "cannot be used with");
    refused(&["echo", "--listen", LOOPBACK, "--policy", "base"], "cannot be used with");
    refused(&["echo", "--listen", LOOPBACK, "--threads", "0"], "1 to 1024 threads serve, not 0");
    refused(&["echo", "--device", "synthetic", "--threads", "2"], "cannot be used with");
    refused(&["echo"], "--device");
    refused(&["echo", "--listen", "here"], "here");
    refused(&["echo", "--listen", LOOPBACK, "--udp"], "leave --udp out");
    refused(&["echo", "--listen", LOOPBACK, "--file", "x"], "--file is for nbd");
    refused(&["memcached", "--listen", LOOPBACK, "--read-only"], "--read-only is for nbd");
    refused(&["memcached", "--listen", LOOPBACK, "--size", "64M"], "--size is for nbd");
    refused(&["nbd", "--listen", LOOPBACK, "--memory", "64"], "--memory is for memcached");
}

#[test]
fn a_port_below_1024_needs_a_right() {
    needs(!rustix::process::geteuid().is_root(), "an ordinary user");
    let lowest = std::fs::read_to_string("/proc/sys/net/ipv4/ip_unprivileged_port_start");
    needs(lowest.is_ok_and(|it| it.trim() == "1024"), "ip_unprivileged_port_start 1024");
    let output = napkin(["serve", "echo", "--listen", LOOPBACK]);
    let error = text(&output.stderr);
    assert!(error.contains("127.0.0.1:7") && error.contains("CAP_NET_BIND_SERVICE"), "{error}");
}

napkin_testing::main!();
