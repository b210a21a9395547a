//! A client on its own network, connected by a cable to a minimal server.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

use napkin_client::{
    Client, ClientError, ClientFigures, ClientWait, Config, Host, Load, RequestKind,
};
use napkin_nic::{CableQueue, EndConfig, PacketQueue, Pool, cable};
use napkin_os::clock;
use napkin_stack::{
    Address, Addresses, ByteStream, Flow, Input, Stack, TcpApplication, TcpLimits, TcpWorker,
};

const SERVER: Address = Address::v4([2, 0, 0, 0, 0, 1], [10, 0, 0, 1], 24);
const CLIENT: Address = Address::v4([2, 0, 0, 0, 0, 2], [10, 0, 0, 2], 24);
const SERVER6: Address = Address::v6(SERVER.mac, [0xfd00, 0, 0, 0, 0, 0, 0, 1], 64);
const CLIENT6: Address = Address::v6(CLIENT.mac, [0xfd00, 0, 0, 0, 0, 0, 0, 2], 64);
const PORT: u16 = 7;

/// The behaviour of the server.
#[derive(Debug, Clone, Copy, PartialEq)]
enum Behaviour {
    Echoes,
    Silent,
    Closes,
}

impl TcpApplication for Behaviour {
    type State = ();

    fn opened(&mut self, _: Flow) {}

    fn ready(&mut self, (): &mut (), stream: &mut impl ByteStream, _: u64) {
        let mut bytes = Vec::new();
        while stream.receive(&mut bytes, 65_536) > 0 {}
        match self {
            // A connection that the client has reset takes nothing.
            Behaviour::Echoes => assert!(stream.send(&bytes) == bytes.len() || !stream.writable()),
            Behaviour::Silent => {}
            Behaviour::Closes if !bytes.is_empty() => stream.close(),
            Behaviour::Closes => {}
        }
    }
}

/// A server's thread. Dropping it ends the thread.
struct Server {
    stop: Arc<AtomicBool>,
    thread: Option<JoinHandle<(u64, usize)>>,
}

impl Server {
    /// Starts a server, and creates the network of its client.
    fn start(behaviour: Behaviour) -> (Server, Host) {
        Server::start_as(behaviour, SERVER.into(), CLIENT.into())
    }

    /// The same with given addresses.
    fn start_as(behaviour: Behaviour, server: Addresses, addresses: Addresses) -> (Server, Host) {
        let end = || EndConfig { queues: 1, ring: 512, pool: Pool::new(2_048) };
        let (mut near, mut far) = cable(end(), end()).expect("a cable");
        let stop = Arc::<AtomicBool>::default();
        let (queue, stopped) = (near.remove(0), Arc::clone(&stop));
        let thread = std::thread::spawn(move || serve(queue, server, behaviour, &stopped));
        let host = Host { queue: Box::new(far.remove(0)), addresses, first_port: None };
        (Server { stop, thread: Some(thread) }, host)
    }

    /// Stops the server: returns the number of connections opened, and of those that remain.
    fn stop(mut self) -> (u64, usize) {
        self.stop.store(true, Ordering::Release);
        self.thread.take().expect("it runs").join().expect("it does not panic")
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Release);
    }
}

fn serve(
    mut queue: CableQueue,
    addresses: Addresses,
    mut behaviour: Behaviour,
    stop: &AtomicBool,
) -> (u64, usize) {
    let stack = Stack::new(addresses);
    let mut input = Input::new(Arc::clone(&stack), 1, queue.transmitter());
    let mut tcp: TcpWorker<()> = stack.open_tcp(None, TcpLimits::default()).expect("a worker");
    tcp.listen(PORT).expect("a port");
    let mut frames = Vec::with_capacity(64);
    loop {
        let stops = stop.load(Ordering::Acquire);
        let now = clock::now();
        let received = queue.poll(64, now, &mut frames).any();
        input.deliver(&mut frames, now);
        if tcp.step(now, 64, &mut behaviour) == 0 && !received {
            // All that the client sent before it was stopped has arrived.
            if stops {
                break;
            }
            std::thread::yield_now();
        }
    }
    (tcp.counters().opened, tcp.connections())
}

fn config(port: u16) -> Config {
    Config {
        connections: 50,
        asks: RequestKind::Echo(5),
        records: 1,
        ..Config::new((SERVER.ip, port).into())
    }
}

/// The figures of a window in which there was at least one answer.
fn window(client: &mut Client) -> ClientFigures {
    loop {
        client.begin_window().expect("it runs");
        std::thread::sleep(Duration::from_millis(50));
        let figures = client.end_window().expect("it runs");
        if figures.requests > 0 {
            return figures;
        }
    }
}

#[test]
fn all_connections_ask_in_a_closed_loop_whether_it_sleeps_or_spins() {
    for wait in [ClientWait::Sleep, ClientWait::Spin] {
        let (server, host) = Server::start(Behaviour::Echoes);
        let config = Config { wait, ..config(PORT) };
        let mut client = Client::embedded(&config, host).expect("it connects");
        let figures = window(&mut client);
        assert_eq!((figures.due, figures.offered_per_s), (0, None));
        assert_eq!((figures.outstanding, figures.reconnects), (50, 0));
        assert!(figures.errors.is_empty() && figures.gets == 0, "{figures:?}");
        client.stop().expect("it ends well");
        assert_eq!(server.stop(), (50, 0), "opened, and left: a client that ends resets them");
    }
}

#[test]
fn a_server_is_found_and_asked_over_ipv6_and_in_a_vlan_as_well() {
    let tagged = |of: Address| Addresses::from(of).in_vlan(100).expect("a VLAN");
    for (local, remote, to) in
        [(SERVER6.into(), CLIENT6.into(), SERVER6), (tagged(SERVER), tagged(CLIENT), SERVER)]
    {
        let (server, host) = Server::start_as(Behaviour::Echoes, local, remote);
        let config = Config { address: (to.ip, PORT).into(), ..config(PORT) };
        let mut client = Client::embedded(&config, host).expect("it connects");
        assert!(window(&mut client).errors.is_empty());
        client.stop().expect("it ends well");
        assert_eq!(server.stop(), (50, 0), "opened, and left: a client that ends resets them");
    }
}

#[test]
fn with_a_schedule_what_is_due_is_asked_and_nothing_else() {
    for wait in [ClientWait::Sleep, ClientWait::Spin] {
        let (server, host) = Server::start(Behaviour::Echoes);
        let load = Load::Open { per_second: 2_000.0 };
        let mut client =
            Client::embedded(&Config { wait, load, ..config(PORT) }, host).expect("it connects");
        let figures = window(&mut client);
        assert_eq!(figures.asked_per_s, Some(2_000.0));
        assert!(figures.due > 0 && figures.abandoned == 0, "{figures:?}");
        client.stop().expect("it ends well");
        server.stop();
    }
}

#[test]
fn a_request_of_many_segments_is_echoed_whole() {
    let (server, host) = Server::start(Behaviour::Echoes);
    let config = Config { connections: 2, asks: RequestKind::Echo(16_000), ..config(PORT) };
    let mut client = Client::embedded(&config, host).expect("it connects");
    assert!(window(&mut client).errors.is_empty());
    client.stop().expect("it ends well");
    server.stop();
}

#[test]
fn a_port_without_a_server_a_server_without_words_and_one_that_closes_have_their_errors() {
    let (server, host) = Server::start(Behaviour::Echoes);
    let error = Client::embedded(&config(PORT + 1), host).expect_err("nobody listens");
    assert!(matches!(error, ClientError::Connect { number: 1, .. }), "{error}");
    server.stop();

    let (server, host) = Server::start(Behaviour::Silent);
    let short = Duration::from_millis(300);
    let mut client = Client::embedded(&Config { answer_timeout: short, ..config(PORT) }, host)
        .expect("it connects");
    while client.is_running() {
        std::thread::sleep(Duration::from_millis(10));
    }
    let error = client.end_window().expect_err("it has ended");
    assert!(matches!(error, ClientError::Silent { outstanding: 50, .. }), "{error}");
    assert_eq!(server.stop(), (50, 0), "one that gives up resets them, too");

    let (server, host) = Server::start(Behaviour::Closes);
    let mut client = Client::embedded(&config(PORT), host).expect("it connects");
    while client.is_running() {
        std::thread::sleep(Duration::from_millis(10));
    }
    let error = client.end_window().expect_err("it has ended");
    assert!(matches!(error, ClientError::Unstable { last: "closed", .. }), "{error}");
    assert_eq!(server.stop(), (50, 0));
}

#[test]
fn a_server_that_is_not_there_and_two_threads_are_refused() {
    let end = || EndConfig { queues: 1, ring: 8, pool: Pool::new(8) };
    let host = || {
        let (mut queues, _) = cable(end(), end()).expect("a cable");
        Host { queue: Box::new(queues.remove(0)), addresses: CLIENT.into(), first_port: None }
    };
    let short = Duration::from_millis(100);
    let error = Client::embedded(&Config { answer_timeout: short, ..config(PORT) }, host())
        .expect_err("nobody is there");
    assert!(matches!(error, ClientError::Connect { .. }), "{error}");
    let error = Client::embedded(&Config { threads: 2, ..config(PORT) }, host()).unwrap_err();
    assert!(error.to_string().contains("one thread, not 2"), "{error}");
    let error = Client::embedded(&Config { connections: 16_385, ..config(PORT) }, host());
    let error = error.expect_err("there are no more ports").to_string();
    assert!(error.contains("1 to 16384, not 16385"), "{error}");
}

#[test]
fn who_is_told_to_gives_up_while_nobody_is_there() {
    let end = || EndConfig { queues: 1, ring: 8, pool: Pool::new(8) };
    let (mut queues, _there) = cable(end(), end()).expect("a cable");
    let queue = Box::new(queues.remove(0));
    let host = Host { queue, addresses: CLIENT.into(), first_port: None };
    let mut asked = 0;
    let mut stopped = || {
        asked += 1;
        asked == 2
    };
    let long = Config { answer_timeout: Duration::from_secs(3_600), ..config(PORT) };
    let error = Client::embedded_unless(&long, host, &mut stopped).expect_err("it gave up");
    assert!(matches!(error, ClientError::Ended), "{error}");
}
