//! Tests of the latency probe on a server whose requests are sent one by one, with sleeps at known points.

mod harness;

use std::io::{Read, Write};
use std::net::{TcpStream, UdpSocket};
use std::time::{Duration, Instant};

use harness::namespace::needs_rights;
use harness::softirqs::Softirqs;
use harness::{Link, Program};
use napkin_kernel::count::latency::{Histogram, Options, Part, Parts, Probe, Reading};
use napkin_kernel::count::{self, CountError, Counter};
use napkin_kernel::namespace::Namespace;
use napkin_kernel::netlink::Netdev;
use napkin_kernel::settings::Setting;
use napkin_os::rights::Right;
use napkin_testing::{needs, test};

/// A server at 10.9.0.1, in which the current connection is `c`.
struct Setup {
    link: Link,
    server: Program,
    napi_id: u32,
    port: u16,
}

impl Setup {
    fn new() -> Setup {
        needs_rights(&[Right::Bpf, Right::Perfmon]);
        let link = Link::new();
        let mut server = link.here.run(Program::start).expect("entered");
        let port =
            server.number("l = socket.create_server(('10.9.0.1', 0)); answer = l.getsockname()[1]");
        let napis = || Netdev::open().expect("netdev").napis(None).expect("instances");
        let napi_id = link.here.run(napis).expect("entered")[0].id;
        Setup { link, server, napi_id, port: u16::try_from(port).expect("a port") }
    }

    fn connect(&mut self) -> TcpStream {
        let address = ("10.9.0.1", self.port);
        let client = self.link.there.run(|| TcpStream::connect(address)).expect("entered");
        self.accept(client)
    }

    /// Connects from the server's own namespace, over loopback.
    fn connect_here(&mut self) -> TcpStream {
        let address = ("10.9.0.1", self.port);
        let client = self.link.here.run(|| TcpStream::connect(address)).expect("entered");
        self.accept(client)
    }

    fn accept(&mut self, client: std::io::Result<TcpStream>) -> TcpStream {
        self.server.ask("c = keep(l.accept()[0])");
        let client = client.expect("it listens");
        client.set_read_timeout(Some(Duration::from_secs(30))).expect("a timeout");
        client
    }

    fn options(&self) -> Options {
        let (processes, ports) = (vec![self.server.pid()], vec![self.port]);
        Options { processes, ports, namespace: Some(inode(&self.link.here)), one_in: 1 }
    }

    /// Makes one request; the server sleeps before it reads and again before it answers.
    fn request(&mut self, client: &mut TcpStream, before: f64, after: f64) {
        client.write_all(b"ask").expect("sent");
        self.server
            .ask(&format!("time.sleep({before}); c.recv(10); time.sleep({after}); c.send(b'yes')"));
        client.read_exact(&mut [0; 3]).expect("an answer");
    }

    fn read(&self, probe: &Probe) -> Reading {
        probe.read(&[self.napi_id]).expect("read")
    }
}

fn inode(namespace: &Namespace) -> u32 {
    u32::try_from(namespace.inode().expect("an inode")).expect("32 bits")
}

fn counts(parts: &Parts) -> [u64; 4] {
    Part::ALL.map(|part| parts.of(part).count())
}

type Start = fn(&Options) -> Result<Probe, CountError>;

fn each_request_has_its_parts(start: Start) {
    let mut setup = Setup::new();
    let mut client = setup.connect();
    let probe = start(&setup.options()).expect("it starts");
    assert_eq!(probe.notes(), [""; 0]);
    // The probe knows a connection from its first read on.
    setup.request(&mut client, 0.0, 0.0);
    let before = setup.read(&probe);
    assert_eq!(before.sends, 1);
    for _ in 0..20 {
        setup.request(&mut client, 0.03, 0.06);
    }
    let reading = setup.read(&probe).since(&before);
    assert_eq!((reading.sends, reading.sends_seen), (20, 20));
    assert_eq!(reading.answers(), Some(20.0));
    let parts = &reading.instances[&setup.napi_id];
    assert_eq!(counts(parts), [20; 4]);
    assert_eq!(reading.instances[&0], Parts::default());
    // A sleep is never shorter than requested; a bucket begins up to a sixteenth below the value.
    let least = |part| parts.of(part).quantile(0.0).expect("some") / 1e6;
    assert!(least(Part::Socket) >= 28.0, "{}", least(Part::Socket));
    assert!(least(Part::Service) >= 56.0, "{}", least(Part::Service));
    assert!(least(Part::Whole) >= 84.0, "{}", least(Part::Whole));
    // Each packet caused a wake-up, so none waited as long as the interval between packets.
    let ring = parts.of(Part::Ring).quantile(0.5).expect("some") / 1e6;
    assert!(ring < 90.0, "{ring} ms");
}

#[test]
fn each_request_has_its_parts_at_trace_points() {
    each_request_has_its_parts(Probe::start);
}

#[test]
fn each_request_has_its_parts_at_functions() {
    let options = Options { processes: vec![1], ..Options::default() };
    match Probe::start_at_functions(&options) {
        // Some hosts do not allow programs at functions.
        Err(CountError::Forbidden { what }) => needs(false, format_args!("{what} of a function")),
        _ => each_request_has_its_parts(Probe::start_at_functions),
    }
}

#[test]
fn other_processes_other_ports_and_other_namespaces_count_for_nothing() {
    let mut setup = Setup::new();
    let mut client = setup.connect();
    let pid = setup.server.pid();
    for options in [
        Options { processes: vec![1, pid + 1], ..setup.options() },
        Options { ports: vec![1, setup.port ^ 1], ..setup.options() },
        Options { namespace: Some(inode(&setup.link.there)), ..setup.options() },
    ] {
        let probe = Probe::start(&options).expect("it starts");
        (0..3).for_each(|_| setup.request(&mut client, 0.0, 0.0));
        let reading = setup.read(&probe);
        assert_eq!((reading.sends, counts(&reading.all())), (0, [0; 4]), "{options:?}");
    }
}

#[test]
fn what_comes_over_loopback_is_no_instance_s() {
    let mut setup = Setup::new();
    let mut client = setup.connect_here();
    let probe = Probe::start(&setup.options()).expect("it starts");
    (0..5).for_each(|_| setup.request(&mut client, 0.0, 0.0));
    let reading = setup.read(&probe);
    assert_eq!(reading.sends, 5);
    // The arrival of the first request was not seen, and loopback has no ring.
    assert_eq!(counts(&reading.instances[&0]), [0, 4, 5, 4]);
    assert_eq!(counts(&reading.all()), [0, 4, 5, 4]);
}

#[test]
fn a_connection_takes_nothing_over_from_one_that_had_its_socket_s_address() {
    let mut setup = Setup::new();
    let probe = Probe::start(&setup.options()).expect("it starts");
    for _ in 0..50 {
        let mut client = setup.connect();
        setup.request(&mut client, 0.0, 0.0);
        setup.server.ask("c.close()");
    }
    let reading = setup.read(&probe);
    assert_eq!(reading.sends, 50);
    // The arrival of a connection's first request was not seen.
    assert_eq!(counts(&reading.all()), [0, 0, 50, 0]);
}

#[test]
fn datagrams_have_parts_too_and_what_is_only_looked_at_is_not_read() {
    let mut setup = Setup::new();
    let port = setup.server.number(
        "u = keep(socket.socket(socket.AF_INET, socket.SOCK_DGRAM)); u.bind(('10.9.0.1', 0)); \
         answer = u.getsockname()[1]",
    );
    let client = || UdpSocket::bind("10.9.0.2:0").expect("a socket");
    let client = setup.link.there.run(client).expect("entered");
    let port = u16::try_from(port).expect("a port");
    client.connect(("10.9.0.1", port)).expect("a port");
    let probe = Probe::start(&Options { ports: vec![port], ..setup.options() }).expect("it starts");
    for _ in 0..5 {
        client.send(b"ask").expect("sent");
        setup.server.ask("u.recv(10, socket.MSG_PEEK); d, a = u.recvfrom(10); u.sendto(b'yes', a)");
        client.recv(&mut [0; 8]).expect("an answer");
    }
    let reading = setup.read(&probe);
    assert_eq!(reading.sends, 5);
    // The arrival of the first one was not seen.
    assert_eq!(counts(&reading.all()), [4, 4, 5, 4]);
}

#[test]
fn of_many_connections_a_share_is_looked_at_and_another_one_later() {
    let mut setup = Setup::new();
    let mut probe = Probe::start(&Options { one_in: 8, ..setup.options() }).expect("it starts");
    let mut clients: Vec<TcpStream> = (0..32).map(|_| setup.connect()).collect();
    let mut requests = 0;
    for _ in 0..8 {
        let before = setup.read(&probe);
        for (place, client) in clients.iter_mut().enumerate() {
            for _ in 0..2 {
                client.write_all(b"ask").expect("sent");
                setup.server.ask(&format!("c = kept[{place}]; c.recv(10); c.send(b'yes')"));
                client.read_exact(&mut [0; 3]).expect("an answer");
            }
            requests += 2;
        }
        let reading = setup.read(&probe).since(&before);
        assert_eq!(reading.sends, 64);
        assert!(reading.sends_seen < 64, "{}", reading.sends_seen);
        probe.rotate(8).expect("another choice");
    }
    // Eight choices of one in eight cover each connection once.
    let reading = setup.read(&probe);
    assert_eq!((reading.sends, reading.sends_seen), (requests, 64));
    assert_eq!(counts(&reading.all()), [32, 32, 64, 32]);
}

/// The pause between an answer and the next request, and again before a polling server polls.
const PAUSE: Duration = Duration::from_millis(10);
/// Number of requests in a ring test.
const ROUNDS: usize = 40;
/// Limit of requests to get that many valid ones. Programs do not always see a softirq that has interrupted process 1
/// (see [`Softirqs`]), so the request during which one did so is dropped, and the one after it.
const MAX_REQUESTS: usize = 10 * ROUNDS;

/// The measurements of one request.
struct Sample {
    ring: Histogram,
    /// Nanoseconds from sending the request to its answer: its wake-up is no older.
    since_sent: f64,
    /// Nanoseconds since the previous request was sent: the last poll before this request's own is no older.
    gap: f64,
    /// Whether a softirq that was raised for another device before this request was sent started only after it: it
    /// may have polled this request.
    late: bool,
    /// The server's answers to the previous request and to this one.
    answers: [String; 2],
}

impl Setup {
    /// Changes settings of the instance.
    fn set(&self, settings: &[(Setting, u64)]) {
        let set = || {
            let mut netdev = Netdev::open().expect("netdev");
            settings.iter().try_for_each(|(it, value)| netdev.set_napi(self.napi_id, *it, *value))
        };
        let set = self.link.here.run(set).expect("entered");
        needs(set.is_ok(), "settings of an instance of its own (Linux 6.17)");
    }

    /// Turns RPS on: the softirq of the first CPU delivers the device's packets.
    fn enable_rps(&self, probe: &mut Probe) {
        let file = "/sys/class/net/va/queues/rx-0/rps_cpus";
        let written = self.link.here.run(|| std::fs::write(file, "1")).expect("entered");
        needs(written.is_ok(), "a kernel with RPS");
        probe.set_steered(&[self.napi_id]).expect("told");
    }

    /// Waits until the instance's thread, if it has one, sleeps: on its way to sleep it needs no wake-up.
    fn wait_until_thread_sleeps(&self) {
        let napis = || Netdev::open().expect("netdev").napis(None).expect("instances");
        let napis = self.link.here.run(napis).expect("entered");
        let Some(pid) = napis.iter().find(|it| it.id == self.napi_id).and_then(|it| it.pid) else {
            return;
        };
        let asleep = || {
            let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).expect("its thread");
            stat.contains(") S ") || stat.contains(") I ")
        };
        let begun = Instant::now();
        while !asleep() {
            assert!(
                begun.elapsed() < Duration::from_secs(30),
                "the instance's thread never sleeps"
            );
            std::thread::sleep(PAUSE / 10);
        }
    }

    /// Makes requests one after the other; the server executes `wait` before each answer.
    fn rounds(&mut self, client: &mut TcpStream, probe: &Probe, wait: &str) -> Vec<Sample> {
        let mut softirqs = Softirqs::new();
        let mut before = self.read(probe);
        // For the first request, the start of its possible wait is unknown.
        let (mut last, mut interrupted_init) = (None::<Instant>, true);
        let mut last_answer = String::new();
        let mut samples = Vec::new();
        for _ in 0..MAX_REQUESTS {
            std::thread::sleep(PAUSE);
            self.wait_until_thread_sleeps();
            let (sent, at) = (Instant::now(), Softirqs::now());
            client.write_all(b"ask").expect("sent");
            let answer = self.server.ask(&format!("{wait}; c.recv(10); c.send(b'yes')"));
            client.read_exact(&mut [0; 3]).expect("an answer");
            let since = |time: Instant| time.elapsed().as_nanos() as f64;
            let (since_sent, gap) = (since(sent), last.map_or(0.0, since));
            let reading = self.read(probe);
            let ring = reading.since(&before).instances[&self.napi_id].of(Part::Ring).clone();
            (before, last) = (reading, Some(sent));
            let seen = softirqs.look();
            let previous = std::mem::replace(&mut interrupted_init, seen.in_first_process);
            let answers = [std::mem::replace(&mut last_answer, answer.clone()), answer];
            if !interrupted_init && !previous {
                samples.push(Sample { ring, since_sent, gap, late: seen.late_at(at), answers });
            }
            if samples.len() == ROUNDS {
                return samples;
            }
        }
        panic!("only {} of {MAX_REQUESTS} requests are seen by all programs", samples.len());
    }
}

/// Checks that each request was counted once, and that none waited for longer than since the previous poll, as far
/// as that is known here.
fn assert_bounded(samples: &[Sample]) {
    assert_eq!(samples.len(), ROUNDS);
    for (nth, Sample { ring, gap, .. }) in samples.iter().enumerate() {
        let longest = ring.quantile(1.0);
        assert_eq!((ring.count(), ring.above(*gap)), (1, 0), "{nth}: {longest:?} of {gap}");
    }
}

/// Checks that times are drawn from the whole gap between polls: some from its first third, some from the second
/// and some from the last. A gap is between the two given bounds, in nanoseconds, long. The probability that 40
/// draws miss a third is one in ten million.
fn assert_drawn_from_all_thirds<'a>(samples: impl Iterator<Item = (&'a Sample, [f64; 2])>) {
    let mut thirds = [0; 3];
    for (Sample { ring, .. }, [shortest, longest]) in samples {
        let beyond = |part: f64, gap: f64| ring.above(part / 3.0 * gap) > 0;
        let within = |part: f64| !beyond(part, shortest);
        thirds[0] += usize::from(within(1.0));
        thirds[1] += usize::from(beyond(1.0, longest) && within(2.0));
        thirds[2] += usize::from(beyond(2.0, longest));
    }
    assert!(thirds.iter().all(|it| *it > 0), "of the thirds of their gaps: {thirds:?}");
}

fn ring_waits_from_wake_up(settings: &[(Setting, u64)], steered: bool) {
    let mut setup = Setup::new();
    let mut client = setup.connect();
    setup.set(settings);
    let mut probe = Probe::start(&setup.options()).expect("it starts");
    if steered {
        setup.enable_rps(&mut probe);
    }
    let samples = setup.rounds(&mut client, &probe, "pass");
    assert_bounded(&samples);
    for Sample { ring, since_sent, late, .. } in &samples {
        let longest = ring.quantile(1.0);
        assert!(
            *late || ring.above(*since_sent) == 0,
            "{longest:?} of {since_sent}, since it was sent"
        );
    }
    let late = samples.iter().filter(|it| it.late).count();
    assert!(late < ROUNDS, "some are taken by the softirq that they asked for");
}

#[test]
fn where_each_frame_wakes_the_softirq_it_waits_in_the_ring_since_then_and_not_since_the_last_poll()
{
    ring_waits_from_wake_up(&[], false);
}

#[test]
fn where_each_frame_wakes_the_instance_s_thread_it_waits_in_the_ring_since_then() {
    ring_waits_from_wake_up(&[(Setting::Threaded, 1)], false);
}

#[test]
fn where_each_frame_wakes_the_softirq_and_another_delivers_it_it_waits_since_the_first_was_woken() {
    ring_waits_from_wake_up(&[], true);
}

/// The interval in nanoseconds after which the timer polls the ring.
const DEFERRED: u64 = 30_000_000;

#[test]
fn where_only_a_timer_polls_waits_in_the_ring_are_drawn_from_the_time_that_polls_are_deferred_for()
{
    let mut setup = Setup::new();
    let mut client = setup.connect();
    // The interrupt stays masked until the end of the test.
    setup.set(&[(Setting::DeferHardIrqs, 1_000_000), (Setting::GroFlushTimeout, DEFERRED)]);
    let probe = Probe::start(&setup.options()).expect("it starts");
    // The first request still comes with the interrupt enabled.
    setup.request(&mut client, 0.0, 0.0);
    let samples = setup.rounds(&mut client, &probe, "pass");
    assert_bounded(&samples);
    // The timer is armed after a poll, and never fires early; how late it fires is unknown.
    assert_drawn_from_all_thirds(samples.iter().map(|it| (it, [DEFERRED as f64; 2])));
}

#[test]
fn where_only_the_application_polls_waits_in_the_ring_are_drawn_from_the_gap_between_its_polls() {
    let mut setup = Setup::new();
    let mut client = setup.connect();
    // The instance of a connection is known once it has received a packet.
    setup.request(&mut client, 0.0, 0.0);
    setup
        .server
        .ask("e = select.epoll(); e.register(c.fileno(), 1); set_params(e, 1000000, 64, 1)");
    // The timer keeps the interrupt masked, and does not expire.
    setup.set(&[(Setting::DeferHardIrqs, 1_000_000), (Setting::GroFlushTimeout, 10_000_000_000)]);
    let counted =
        count::Options { namespace: Some(inode(&setup.link.here)), ..count::Options::default() };
    let counter = Counter::start(&counted).expect("it counts");
    let probe = Probe::start(&setup.options()).expect("it starts");
    // The application's poll is between these two times.
    let wait = format!(
        "time.sleep({}); a = time.monotonic_ns(); e.poll(30); b = time.monotonic_ns(); \
         answer = f'{{a}} {{b}}'",
        PAUSE.as_secs_f64()
    );
    // The first request still comes with the interrupt enabled.
    setup.request(&mut client, 0.0, 0.0);
    let polls = || {
        counter.read().into_values().fold((0, 0), |(softirq, application), it| {
            (softirq + it.softirq.polls, application + it.application.polls)
        })
    };
    let before = polls();
    let samples = setup.rounds(&mut client, &probe, &wait);
    let after = polls();
    assert_eq!(after.0, before.0, "no softirq polled");
    assert!(after.1 - before.1 >= ROUNDS as u64, "the application did: {before:?} {after:?}");
    assert_bounded(&samples);
    assert_drawn_from_all_thirds(samples.iter().map(|it| {
        let [[from, to], [begun, ended]] = [0, 1].map(|which: usize| {
            let (first, second) = it.answers[which].split_once(' ').expect("two times");
            [first, second].map(|it| it.parse::<f64>().expect("a time"))
        });
        (it, [begun - to, ended - from])
    }));
}

napkin_testing::main!();
