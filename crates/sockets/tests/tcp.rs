//! A service on the operating system's TCP, over loopback. No times are asserted: what does not arrive within a
//! minute is a failure.

use std::io::{Read, Write};
use std::net::{Ipv4Addr, Shutdown, SocketAddr, TcpStream};
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::SeqCst};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use napkin_service::{EchoStream, Pump};
use napkin_sockets::{OsTcp, OsTcpCounters, Waker};
use napkin_stack::{ByteStream, Flow, TcpApplication};
use rustix::event::{EventfdFlags, eventfd};

const MINUTE: Duration = Duration::from_secs(60);

/// An echo service in a thread of its own.
struct Server {
    at: SocketAddr,
    ends: Arc<AtomicBool>,
    open: Arc<AtomicUsize>,
    waker: Waker,
    thread: Option<JoinHandle<OsTcpCounters>>,
}

impl Server {
    fn start(most: usize) -> Server {
        Server::at(SocketAddr::from((Ipv4Addr::LOCALHOST, 0)), most)
    }

    fn at(address: SocketAddr, most: usize) -> Server {
        let mut tcp = OsTcp::listen(address, most).expect("it listens");
        let (at, waker) = (tcp.address().expect("its address"), tcp.waker());
        let (ends, open) = (Arc::<AtomicBool>::default(), Arc::<AtomicUsize>::default());
        let (own, count) = (Arc::clone(&ends), Arc::clone(&open));
        let thread = thread::spawn(move || {
            let (mut echo, begun) = (Pump::new(EchoStream), Instant::now());
            while !own.load(SeqCst) {
                tcp.wait(None).expect("it waits");
                tcp.step(begun.elapsed().as_nanos() as u64, &mut echo);
                count.store(tcp.connections(), SeqCst);
            }
            tcp.counters()
        });
        Server { at, ends, open, waker, thread: Some(thread) }
    }

    fn connect(&self) -> TcpStream {
        let stream = TcpStream::connect_timeout(&self.at, MINUTE).expect("it answers");
        stream.set_read_timeout(Some(MINUTE)).expect("a timeout");
        stream
    }

    /// Waits until this many connections are open.
    fn open(&self, expected: usize) {
        let begun = Instant::now();
        while self.open.load(SeqCst) != expected {
            assert!(begun.elapsed() < MINUTE, "{} are open", self.open.load(SeqCst));
            thread::sleep(Duration::from_millis(1));
        }
    }

    fn end(mut self) -> OsTcpCounters {
        self.ends.store(true, SeqCst);
        self.waker.wake();
        self.thread.take().expect("it runs").join().expect("it ends")
    }
}

fn say(stream: &mut TcpStream, bytes: &[u8]) {
    stream.write_all(bytes).expect("it takes them");
    let mut back = vec![0; bytes.len()];
    stream.read_exact(&mut back).expect("all of it");
    assert!(back == bytes, "other bytes came back");
}

#[test]
fn connections_are_told_apart_and_end_when_their_peers_do() {
    let server = Server::start(1_000);
    let mut clients: Vec<TcpStream> = (0..100).map(|_| server.connect()).collect();
    for (place, client) in clients.iter_mut().enumerate() {
        say(client, format!("hello {place}").as_bytes());
    }
    server.open(100);
    drop(clients);
    server.open(0);
    assert_eq!(server.end(), OsTcpCounters { opened: 100, refused: 0 });
}

#[test]
fn more_than_one_turn_s_bytes_come_back_whole_while_nobody_reads_and_after_a_half_close() {
    let server = Server::start(10);
    let stream = server.connect();
    let bytes: Vec<u8> = (0..8_000_000u32).map(|place| (place % 251) as u8).collect();
    let mut other = server.connect();
    thread::scope(|scope| {
        scope.spawn(|| {
            (&stream).write_all(&bytes).expect("it takes them");
            stream.shutdown(Shutdown::Write).expect("a half close");
        });
        // The first connection's buffers are full by now or soon; the other one is served all the same.
        say(&mut other, b"still there");
        let mut back = Vec::new();
        (&stream).read_to_end(&mut back).expect("all of it, and its end");
        assert!(back == bytes, "{} bytes", back.len());
    });
    drop(other);
    server.open(0);
    server.end();
}

#[test]
fn a_peer_that_breaks_off_leaves_nothing_behind() {
    let server = Server::start(10);
    for _ in 0..5 {
        let mut stream = server.connect();
        // Because of the unread replies, the close sends a RST.
        stream.write_all(&[1; 100_000]).expect("it takes them");
        stream.read_exact(&mut [0; 1]).expect("the first of them");
    }
    server.open(0);
    assert_eq!(server.end().opened, 5);
}

#[test]
fn beyond_the_limit_a_connection_is_closed_at_once_and_the_others_stay() {
    let server = Server::start(2);
    let mut two = [server.connect(), server.connect()];
    two.iter_mut().for_each(|stream| say(stream, b"in"));
    let mut third = server.connect();
    assert!(!matches!(third.read(&mut [0; 1]), Ok(1..)), "it is closed");
    two.iter_mut().for_each(|stream| say(stream, b"still in"));
    assert_eq!(server.end(), OsTcpCounters { opened: 2, refused: 1 });
}

/// An echo service whose reply is only ready in a step after the one that took the request.
#[derive(Default)]
struct Later {
    begun: Vec<Flow>,
    ended: Vec<Flow>,
}

impl TcpApplication for Later {
    type State = Vec<u8>;

    fn opened(&mut self, _: Flow) -> Vec<u8> {
        Vec::new()
    }

    fn ready(&mut self, waiting: &mut Vec<u8>, stream: &mut impl ByteStream, _: u64) {
        let sent = stream.send(waiting);
        waiting.drain(..sent);
        if stream.receive(waiting, 1_000) > 0 {
            self.begun.push(stream.flow());
        }
        if stream.ended() {
            stream.close();
        }
    }

    fn collect(&mut self, look_at: &mut dyn FnMut(Flow)) {
        self.ended.drain(..).for_each(look_at);
    }

    fn submit(&mut self) {
        self.ended.append(&mut self.begun);
    }
}

#[test]
fn an_answer_that_is_ready_later_is_sent_then() {
    let mut tcp = OsTcp::listen(SocketAddr::from((Ipv4Addr::LOCALHOST, 0)), 4).expect("it listens");
    let mut client = TcpStream::connect(tcp.address().expect("its address")).expect("it answers");
    client.set_nonblocking(true).expect("an option");
    let (mut later, mut back, begun) = (Later::default(), [0; 5], Instant::now());
    client.write_all(b"later").expect("it takes them");
    while client.read_exact(&mut back).is_err() {
        assert!(begun.elapsed() < MINUTE);
        tcp.wait(Some(Duration::from_millis(1))).expect("it waits");
        tcp.step(begun.elapsed().as_nanos() as u64, &mut later);
    }
    assert_eq!(&back, b"later");
}

/// A disk that finishes the first half of an operation right after the step's first `collect`, so that the last
/// `collect` of that step finds it, and the second half is still to be submitted.
struct Halves {
    event: Arc<OwnedFd>,
    flow: Option<Flow>,
    at: Half,
}

/// The progress of the operation.
#[derive(Debug, Clone, Copy, PartialEq)]
enum Half {
    Nothing,
    /// Submitted to the kernel, which signals the end of another operation.
    Begun,
    /// The next `collect` is too early.
    First,
    /// The first half is finished, and not collected yet.
    Done,
    /// The second half is to be submitted.
    Waiting,
    Ended,
}

impl Halves {
    fn signal(&self) {
        rustix::io::write(&self.event, &1u64.to_ne_bytes()).expect("it is signalled");
    }
}

impl TcpApplication for Halves {
    type State = ();

    fn opened(&mut self, _: Flow) {}

    fn ready(&mut self, (): &mut (), stream: &mut impl ByteStream, _: u64) {
        if stream.receive(&mut Vec::new(), 1_000) > 0 {
            self.flow = Some(stream.flow());
        }
        if self.at == Half::Ended {
            stream.send(b"whole");
        }
    }

    fn collect(&mut self, look_at: &mut dyn FnMut(Flow)) {
        match (self.at, self.flow) {
            (Half::Begun, _) => self.at = Half::First,
            (Half::First, _) => {
                self.at = Half::Done;
                self.signal();
            }
            (Half::Done, _) => self.at = Half::Waiting,
            (Half::Ended, Some(flow)) => look_at(flow),
            _ => {}
        }
    }

    fn submit(&mut self) {
        match self.at {
            Half::Nothing if self.flow.is_some() => {
                self.at = Half::Begun;
                self.signal();
            }
            Half::Waiting => self.at = Half::Ended,
            _ => {}
        }
    }
}

#[test]
fn what_is_begun_again_after_the_last_look_is_handed_over_without_anybody_else() {
    let mut tcp = OsTcp::listen(SocketAddr::from((Ipv4Addr::LOCALHOST, 0)), 4).expect("it listens");
    let event = Arc::new(eventfd(0, EventfdFlags::CLOEXEC).expect("a descriptor"));
    tcp.watch(Arc::clone(&event)).expect("it watches");
    let mut client = TcpStream::connect(tcp.address().expect("its address")).expect("it answers");
    client.set_nonblocking(true).expect("an option");
    client.write_all(b"both").expect("it takes them");
    let mut halves = Halves { event, flow: None, at: Half::Nothing };
    let (mut back, begun) = ([0; 5], Instant::now());
    while client.read_exact(&mut back).is_err() {
        tcp.wait(Some(MINUTE)).expect("it waits");
        assert!(begun.elapsed() < MINUTE, "{:?}", halves.at);
        tcp.step(begun.elapsed().as_nanos() as u64, &mut halves);
    }
    assert_eq!(&back, b"whole");
}

/// Answers the first request with as many bytes as the kernel accepts, then closes.
#[derive(Default)]
struct Parting(usize);

impl TcpApplication for Parting {
    type State = ();

    fn opened(&mut self, _: Flow) {}

    fn ready(&mut self, _: &mut (), stream: &mut impl ByteStream, _: u64) {
        if self.0 == 0 && stream.receive(&mut Vec::new(), 1_000) > 0 {
            self.0 = stream.send(&vec![7; 16_000_000]);
            stream.close();
        }
    }
}

#[test]
fn a_peer_that_still_reads_its_answer_a_minute_after_our_end_gets_all_of_it() {
    let mut tcp = OsTcp::listen(SocketAddr::from((Ipv4Addr::LOCALHOST, 0)), 4).expect("it listens");
    let mut client = TcpStream::connect(tcp.address().expect("its address")).expect("it answers");
    client.set_read_timeout(Some(MINUTE)).expect("a timeout");
    client.write_all(b"all of it").expect("it takes them");
    let (mut parting, begun) = (Parting::default(), Instant::now());
    let mut step = |seconds: u64, parting: &mut Parting| {
        tcp.wait(Some(Duration::from_millis(1))).expect("it waits");
        tcp.step(seconds * 1_000_000_000, parting);
        tcp.connections()
    };
    while parting.0 == 0 {
        assert!(begun.elapsed() < MINUTE);
        step(1, &mut parting);
    }
    assert_eq!(step(61, &mut parting), 1, "it may still read");
    let mut back = Vec::new();
    client.read_to_end(&mut back).expect("all of it, and its end");
    assert_eq!(back.len(), parting.0);
    // This client never closes its side.
    assert_eq!(step(71, &mut parting), 0);
}

#[test]
fn another_event_descriptor_takes_the_place_of_the_one_before() {
    let mut tcp =
        OsTcp::<()>::listen(SocketAddr::from((Ipv4Addr::LOCALHOST, 0)), 1).expect("it listens");
    let event = || Arc::new(eventfd(0, EventfdFlags::CLOEXEC).expect("a descriptor"));
    let (one, other) = (event(), event());
    for event in [&one, &other, &one] {
        tcp.watch(Arc::clone(event)).expect("it is not watched yet, or no more");
    }
}

#[test]
fn threads_share_a_port_and_another_program_s_is_refused() {
    let first = Server::start(100);
    let second = Server::at(first.at, 100);
    let mut clients: Vec<TcpStream> = (0..64).map(|_| first.connect()).collect();
    clients.iter_mut().for_each(|client| say(client, b"whoever"));
    let opened = [first.end().opened, second.end().opened];
    assert_eq!(opened.iter().sum::<u64>(), 64);
    assert!(opened.iter().all(|opened| *opened > 0), "the kernel's hash spreads them: {opened:?}");
    // A listener without `SO_REUSEPORT`.
    let alone = std::net::TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).expect("a port");
    let taken = alone.local_addr().expect("its address");
    let error = OsTcp::<()>::listen(taken, 1).expect_err("it is taken");
    assert_eq!(error.kind(), std::io::ErrorKind::AddrInUse);
}
