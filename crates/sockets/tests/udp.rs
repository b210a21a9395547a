//! Datagram services on the operating system's UDP, over loopback. No times are asserted: what does not arrive
//! within a minute is a failure.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, TcpListener, UdpSocket};
use std::thread;
use std::time::Duration;

use napkin_service::memcached::{Limits, Memcached, MemcachedUdp};
use napkin_service::{Echo, Service, Sink};
use napkin_sockets::{OsDatagram, OsUdp, Protocol, check_free};
use napkin_stack::{Exchange, Message};

const MINUTE: Duration = Duration::from_secs(60);
const ANY: SocketAddr = SocketAddr::new(IpAddr::V4(Ipv4Addr::LOCALHOST), 0);

fn bind() -> (OsUdp, SocketAddr) {
    let socket = OsUdp::bind(ANY).expect("it binds");
    let at = SocketAddr::new(ANY.ip(), socket.port());
    (socket, at)
}

fn client(server: SocketAddr) -> UdpSocket {
    let any = if server.is_ipv4() { ANY.ip() } else { Ipv6Addr::LOCALHOST.into() };
    let client = UdpSocket::bind((any, 0)).expect("it binds");
    client.set_read_timeout(Some(MINUTE)).expect("a timeout");
    client.connect(server).expect("an address");
    client
}

fn hear(client: &UdpSocket) -> Vec<u8> {
    let mut bytes = vec![0; 70_000];
    let length = client.recv(&mut bytes).expect("an answer");
    bytes.truncate(length);
    bytes
}

/// Serves this many messages, each of which must arrive within a minute.
fn serve<S: Service<Socket = OsUdp>>(service: &mut S, messages: usize) {
    let mut served = 0;
    while served < messages {
        assert!(service.socket().wait(Some(MINUTE)).expect("it waits"), "{served} came");
        served += service.serve_ready(0, 8);
    }
}

#[test]
fn every_datagram_goes_back_also_an_empty_and_a_long_one() {
    let (socket, at) = bind();
    let (mut echo, client) = (Echo::new(socket), client(at));
    for length in [0, 1, 1_400, 9_000, 65_507] {
        let sent: Vec<u8> = (0..length).map(|at| (at % 251) as u8).collect();
        client.send(&sent).expect("it goes");
        serve(&mut echo, 1);
        assert!(hear(&client) == sent, "{length}");
    }
    assert_eq!((echo.answered(), echo.failed(), echo.refused()), (5, 0, 0));
}

#[test]
fn ipv6_is_answered_as_well() {
    // The host may have no IPv6.
    let Ok(socket) = OsUdp::bind((Ipv6Addr::LOCALHOST, 0).into()) else { return };
    let at = SocketAddr::from((Ipv6Addr::LOCALHOST, socket.port()));
    let (mut echo, client) = (Echo::new(socket), client(at));
    client.send(b"hi").expect("it goes");
    serve(&mut echo, 1);
    assert_eq!(hear(&client), b"hi");
}

#[test]
fn threads_that_share_a_port_have_each_datagram_once() {
    let (one, at) = bind();
    let two = OsUdp::bind(at).expect("it is shared");
    let clients: Vec<UdpSocket> = (0..32).map(|_| client(at)).collect();
    clients.iter().for_each(|client| assert_eq!(client.send(b"hi").expect("it goes"), 2));
    // Over loopback all datagrams have arrived by now.
    for socket in [&one, &two] {
        while let Some(message) = socket.try_recv() {
            assert_eq!(message.ports(), Some((message.source().port(), at.port())));
            socket.reply(message, b"ho", 0).expect("it goes");
        }
    }
    for client in &clients {
        assert_eq!(hear(client), b"ho");
        client.set_nonblocking(true).expect("it may be");
        assert!(client.recv(&mut [0; 8]).is_err(), "once");
    }
}

#[test]
fn a_sink_sees_the_bytes_and_answers_nothing() {
    let (socket, at) = bind();
    let mut lengths = Vec::new();
    let mut sink = Sink::new(socket, |message: &OsDatagram| lengths.push(message.payload().len()));
    let client = client(at);
    for length in [3, 5] {
        client.send(&vec![7; length]).expect("it goes");
    }
    serve(&mut sink, 2);
    assert_eq!((sink.messages(), sink.bytes()), (2, 8));
    drop(sink);
    assert_eq!(lengths, [3, 5]);
}

#[test]
fn memcached_answers_in_as_many_datagrams_as_it_takes() {
    let (socket, at) = bind();
    let memcached = Memcached::new(Limits::default(), 0).expect("a store");
    let (mut memcached, client) = (MemcachedUdp::new(socket, memcached), client(at));
    let mut say = |request: &str| {
        client
            .send(&[&[0, 7, 0, 0, 0, 1, 0, 0][..], request.as_bytes()].concat())
            .expect("it goes");
        serve(&mut memcached, 1);
        hear(&client)
    };
    let value = "x".repeat(1_300);
    for key in ["a", "b", "c"] {
        let stored = say(&format!("set {key} 0 0 1300\r\n{value}\r\n"));
        assert_eq!(stored, b"\0\x07\0\0\0\x01\0\0STORED\r\n");
    }
    let first = say("get a b c\r\n");
    assert_eq!(first[..8], [0, 7, 0, 0, 0, 3, 0, 0]);
    let mut answer = first[8..].to_vec();
    for number in 1..3 {
        let part = hear(&client);
        assert_eq!(part[..8], [0, 7, 0, number, 0, 3, 0, 0]);
        answer.extend_from_slice(&part[8..]);
    }
    assert!(answer.ends_with(b"END\r\n"), "{}", answer.len());
    assert_eq!((memcached.served(), memcached.failed(), memcached.refused()), (4, 0, 0));
}

#[test]
fn a_wait_ends_by_its_waker_and_by_its_time() {
    let (socket, _) = bind();
    assert!(!socket.wait(Some(Duration::from_nanos(1))).expect("it waits"));
    let waker = socket.waker();
    let other = thread::spawn(move || waker.wake());
    assert!(!socket.wait(None).expect("it waits"), "nothing came");
    other.join().expect("it ends");
}

#[test]
fn a_port_that_somebody_has_is_not_free_though_it_may_be_shared() {
    let (socket, at) = bind();
    let taken = check_free(Protocol::Udp, at).expect_err("it is taken");
    assert_eq!(taken.kind(), std::io::ErrorKind::AddrInUse);
    check_free(Protocol::Tcp, at).expect("TCP's is another");
    drop(socket);
    check_free(Protocol::Udp, at).expect("it is free");
    let listener = TcpListener::bind(ANY).expect("it listens");
    let at = listener.local_addr().expect("it listens");
    let taken = check_free(Protocol::Tcp, at).expect_err("it is taken");
    assert_eq!(taken.kind(), std::io::ErrorKind::AddrInUse);
    let elsewhere = SocketAddr::from(([192, 0, 2, 1], 0));
    let error = check_free(Protocol::Tcp, elsewhere).expect_err("it is nobody's here");
    assert_eq!(error.kind(), std::io::ErrorKind::AddrNotAvailable);
}
