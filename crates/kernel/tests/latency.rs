//! How long requests take, told from the server's side, of a program whose requests are counted one by
//! one and that takes its time where it is told to.

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

/// A server at 10.9.0.1, of which each connection is `c`.
struct Bed {
    link: Link,
    server: Program,
    napi_id: u32,
    port: u16,
}

impl Bed {
    fn new() -> Bed {
        needs_rights(&[Right::Bpf, Right::Perfmon]);
        let link = Link::new();
        let mut server = link.here.run(Program::start).expect("entered");
        let port =
            server.number("l = socket.create_server(('10.9.0.1', 0)); answer = l.getsockname()[1]");
        let napis = || Netdev::open().expect("netdev").napis(None).expect("instances");
        let napi_id = link.here.run(napis).expect("entered")[0].id;
        Bed { link, server, napi_id, port: u16::try_from(port).expect("a port") }
    }

    fn connect(&mut self) -> TcpStream {
        let address = ("10.9.0.1", self.port);
        let client = self.link.there.run(|| TcpStream::connect(address)).expect("entered");
        self.accept(client)
    }

    /// The same from the server's own namespace, over loopback.
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

    /// One request, answered after the server has slept before and after it read.
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
    let mut bed = Bed::new();
    let mut client = bed.connect();
    let probe = start(&bed.options()).expect("it starts");
    assert_eq!(probe.notes(), [""; 0]);
    // The first read of a connection is where it comes to be known.
    bed.request(&mut client, 0.0, 0.0);
    let before = bed.read(&probe);
    assert_eq!(before.sends, 1);
    for _ in 0..20 {
        bed.request(&mut client, 0.03, 0.06);
    }
    let reading = bed.read(&probe).since(&before);
    assert_eq!((reading.sends, reading.sends_seen), (20, 20));
    assert_eq!(reading.answers(), Some(20.0));
    let parts = &reading.instances[&bed.napi_id];
    assert_eq!(counts(parts), [20; 4]);
    assert_eq!(reading.instances[&0], Parts::default());
    // A sleep is never shorter than asked; a bucket begins up to a sixteenth below.
    let least = |part| parts.of(part).quantile(0.0).expect("some") / 1e6;
    assert!(least(Part::Socket) >= 28.0, "{}", least(Part::Socket));
    assert!(least(Part::Service) >= 56.0, "{}", least(Part::Service));
    assert!(least(Part::Whole) >= 84.0, "{}", least(Part::Whole));
    // It was woken by each packet, so that none waited as long as from one to the next.
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
        // Some hosts keep everybody off their functions.
        Err(CountError::Forbidden { what }) => needs(false, format_args!("{what} of a function")),
        _ => each_request_has_its_parts(Probe::start_at_functions),
    }
}

#[test]
fn other_processes_other_ports_and_other_namespaces_count_for_nothing() {
    let mut bed = Bed::new();
    let mut client = bed.connect();
    let pid = bed.server.pid();
    for options in [
        Options { processes: vec![1, pid + 1], ..bed.options() },
        Options { ports: vec![1, bed.port ^ 1], ..bed.options() },
        Options { namespace: Some(inode(&bed.link.there)), ..bed.options() },
    ] {
        let probe = Probe::start(&options).expect("it starts");
        (0..3).for_each(|_| bed.request(&mut client, 0.0, 0.0));
        let reading = bed.read(&probe);
        assert_eq!((reading.sends, counts(&reading.all())), (0, [0; 4]), "{options:?}");
    }
}

#[test]
fn what_comes_over_loopback_is_no_instance_s() {
    let mut bed = Bed::new();
    let mut client = bed.connect_here();
    let probe = Probe::start(&bed.options()).expect("it starts");
    (0..5).for_each(|_| bed.request(&mut client, 0.0, 0.0));
    let reading = bed.read(&probe);
    assert_eq!(reading.sends, 5);
    // Of the first it is not known when it came, and a ring there is none.
    assert_eq!(counts(&reading.instances[&0]), [0, 4, 5, 4]);
    assert_eq!(counts(&reading.all()), [0, 4, 5, 4]);
}

#[test]
fn a_connection_takes_nothing_over_from_one_that_had_its_socket_s_address() {
    let mut bed = Bed::new();
    let probe = Probe::start(&bed.options()).expect("it starts");
    for _ in 0..50 {
        let mut client = bed.connect();
        bed.request(&mut client, 0.0, 0.0);
        bed.server.ask("c.close()");
    }
    let reading = bed.read(&probe);
    assert_eq!(reading.sends, 50);
    // Of the first request of a connection it is not known when it came.
    assert_eq!(counts(&reading.all()), [0, 0, 50, 0]);
}

#[test]
fn datagrams_have_parts_too_and_what_is_only_looked_at_is_not_read() {
    let mut bed = Bed::new();
    let port = bed.server.number(
        "u = keep(socket.socket(socket.AF_INET, socket.SOCK_DGRAM)); u.bind(('10.9.0.1', 0)); \
         answer = u.getsockname()[1]",
    );
    let client = || UdpSocket::bind("10.9.0.2:0").expect("a socket");
    let client = bed.link.there.run(client).expect("entered");
    let port = u16::try_from(port).expect("a port");
    client.connect(("10.9.0.1", port)).expect("a port");
    let probe = Probe::start(&Options { ports: vec![port], ..bed.options() }).expect("it starts");
    for _ in 0..5 {
        client.send(b"ask").expect("sent");
        bed.server.ask("u.recv(10, socket.MSG_PEEK); d, a = u.recvfrom(10); u.sendto(b'yes', a)");
        client.recv(&mut [0; 8]).expect("an answer");
    }
    let reading = bed.read(&probe);
    assert_eq!(reading.sends, 5);
    // Of the first it is not known when it came.
    assert_eq!(counts(&reading.all()), [4, 4, 5, 4]);
}

#[test]
fn of_many_connections_a_share_is_looked_at_and_another_one_later() {
    let mut bed = Bed::new();
    let mut probe = Probe::start(&Options { one_in: 8, ..bed.options() }).expect("it starts");
    let mut clients: Vec<TcpStream> = (0..32).map(|_| bed.connect()).collect();
    let mut asked = 0;
    for _ in 0..8 {
        let before = bed.read(&probe);
        for (place, client) in clients.iter_mut().enumerate() {
            for _ in 0..2 {
                client.write_all(b"ask").expect("sent");
                bed.server.ask(&format!("c = kept[{place}]; c.recv(10); c.send(b'yes')"));
                client.read_exact(&mut [0; 3]).expect("an answer");
            }
            asked += 2;
        }
        let reading = bed.read(&probe).since(&before);
        assert_eq!(reading.sends, 64);
        assert!(reading.sends_seen < 64, "{}", reading.sends_seen);
        probe.rotate(8).expect("another choice");
    }
    // Eight choices of one in eight are each connection once.
    let reading = bed.read(&probe);
    assert_eq!((reading.sends, reading.sends_seen), (asked, 64));
    assert_eq!(counts(&reading.all()), [32, 32, 64, 32]);
}

/// Between a request's answer and the next request, and as long again before a server that polls looks.
const PAUSE: Duration = Duration::from_millis(10);
/// Requests of a test of the ring.
const ROUNDS: usize = 40;
/// Requests that may be made for that many: what a softirq does that has interrupted the first process is not always
/// seen (see [`Softirqs`]), so that the request during which one did so is left out, and the one after it.
const MOST: usize = 10 * ROUNDS;

/// What is known of one request.
struct Asked {
    ring: Histogram,
    /// Nanoseconds from its sending to its answer: nobody was woken for it before.
    own: f64,
    /// From the sending of the one before: the poll that took that one was the last before its own, or a later one was.
    gap: f64,
    /// Whether a softirq that was asked for before its sending, for another device, only began after it: that one may
    /// have taken it.
    late: bool,
    /// What the server's program said at the one before, and at this one.
    said: [String; 2],
}

impl Bed {
    /// Sets the instance.
    fn set(&self, settings: &[(Setting, u64)]) {
        let set = || {
            let mut netdev = Netdev::open().expect("netdev");
            settings.iter().try_for_each(|(it, value)| netdev.set_napi(self.napi_id, *it, *value))
        };
        let set = self.link.here.run(set).expect("entered");
        needs(set.is_ok(), "settings of an instance of its own (Linux 6.17)");
    }

    /// Has another softirq deliver what the device receives, that of the first CPU.
    fn hand_over(&self, probe: &mut Probe) {
        let file = "/sys/class/net/va/queues/rx-0/rps_cpus";
        let written = self.link.here.run(|| std::fs::write(file, "1")).expect("entered");
        needs(written.is_ok(), "a kernel with RPS");
        probe.handed_over(&[self.napi_id]).expect("told");
    }

    /// Waits until the instance's thread, if it has one, sleeps: one that is on its way there is woken by nobody.
    fn rested(&self) {
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

    /// One request after the other, each answered as the server is told to `wait` before.
    fn rounds(&mut self, client: &mut TcpStream, probe: &Probe, wait: &str) -> Vec<Asked> {
        let mut softirqs = Softirqs::new();
        let mut before = self.read(probe);
        // Of the first it is not known since when it can have waited.
        let (mut last, mut told_apart) = (None::<Instant>, true);
        let mut said_last = String::new();
        let mut asked = Vec::new();
        for _ in 0..MOST {
            std::thread::sleep(PAUSE);
            self.rested();
            let (sent, at) = (Instant::now(), Softirqs::now());
            client.write_all(b"ask").expect("sent");
            let said = self.server.ask(&format!("{wait}; c.recv(10); c.send(b'yes')"));
            client.read_exact(&mut [0; 3]).expect("an answer");
            let since = |time: Instant| time.elapsed().as_nanos() as f64;
            let (own, gap) = (since(sent), last.map_or(0.0, since));
            let reading = self.read(probe);
            let ring = reading.since(&before).instances[&self.napi_id].of(Part::Ring).clone();
            (before, last) = (reading, Some(sent));
            let seen = softirqs.look();
            let one_before = std::mem::replace(&mut told_apart, seen.in_first_process);
            let said = [std::mem::replace(&mut said_last, said.clone()), said];
            if !told_apart && !one_before {
                asked.push(Asked { ring, own, gap, late: seen.late_at(at), said });
            }
            if asked.len() == ROUNDS {
                return asked;
            }
        }
        panic!("only {} of {MOST} requests are seen by all programs", asked.len());
    }
}

/// Each was counted once, and none waited for longer than since the poll before it, as far as that can be seen from
/// here.
fn each_is_bounded(asked: &[Asked]) {
    assert_eq!(asked.len(), ROUNDS);
    for (nth, Asked { ring, gap, .. }) in asked.iter().enumerate() {
        let longest = ring.quantile(1.0);
        assert_eq!((ring.count(), ring.above(*gap)), (1, 0), "{nth}: {longest:?} of {gap}");
    }
}

/// Times are drawn from all of the gaps between polls: some from the first third of theirs, some from the second and
/// some from the last. A gap is no shorter than the first of so many nanoseconds, and taken to be no longer than the
/// second. That 40 draws miss a third happens once in ten million times.
fn drawn_from_all_of<'a>(asked: impl Iterator<Item = (&'a Asked, [f64; 2])>) {
    let mut thirds = [0; 3];
    for (Asked { ring, .. }, [shortest, longest]) in asked {
        let beyond = |part: f64, gap: f64| ring.above(part / 3.0 * gap) > 0;
        let within = |part: f64| !beyond(part, shortest);
        thirds[0] += usize::from(within(1.0));
        thirds[1] += usize::from(beyond(1.0, longest) && within(2.0));
        thirds[2] += usize::from(beyond(2.0, longest));
    }
    assert!(thirds.iter().all(|it| *it > 0), "of the thirds of their gaps: {thirds:?}");
}

fn each_wakes(settings: &[(Setting, u64)], handed_over: bool) {
    let mut bed = Bed::new();
    let mut client = bed.connect();
    bed.set(settings);
    let mut probe = Probe::start(&bed.options()).expect("it starts");
    if handed_over {
        bed.hand_over(&mut probe);
    }
    let asked = bed.rounds(&mut client, &probe, "pass");
    each_is_bounded(&asked);
    for Asked { ring, own, late, .. } in &asked {
        let longest = ring.quantile(1.0);
        assert!(*late || ring.above(*own) == 0, "{longest:?} of {own}, since it was sent");
    }
    let late = asked.iter().filter(|it| it.late).count();
    assert!(late < ROUNDS, "some are taken by the softirq that they asked for");
}

#[test]
fn where_each_frame_wakes_the_softirq_it_waits_in_the_ring_since_then_and_not_since_the_last_poll()
{
    each_wakes(&[], false);
}

#[test]
fn where_each_frame_wakes_the_instance_s_thread_it_waits_in_the_ring_since_then() {
    each_wakes(&[(Setting::Threaded, 1)], false);
}

#[test]
fn where_each_frame_wakes_the_softirq_and_another_delivers_it_it_waits_since_the_first_was_woken() {
    each_wakes(&[], true);
}

/// Nanoseconds that nobody looks into the ring for, but for a timer.
const DEFERRED: u64 = 30_000_000;

#[test]
fn where_only_a_timer_polls_waits_in_the_ring_are_drawn_from_the_time_that_polls_are_deferred_for()
{
    let mut bed = Bed::new();
    let mut client = bed.connect();
    // The interrupt does not come on again before the test has ended.
    bed.set(&[(Setting::DeferHardIrqs, 1_000_000), (Setting::GroFlushTimeout, DEFERRED)]);
    let probe = Probe::start(&bed.options()).expect("it starts");
    // The interrupt that is on still is the first one's.
    bed.request(&mut client, 0.0, 0.0);
    let asked = bed.rounds(&mut client, &probe, "pass");
    each_is_bounded(&asked);
    // The timer is set after a poll, and never early; how late it is nobody knows.
    drawn_from_all_of(asked.iter().map(|it| (it, [DEFERRED as f64; 2])));
}

#[test]
fn where_only_the_application_polls_waits_in_the_ring_are_drawn_from_the_gap_between_its_polls() {
    let mut bed = Bed::new();
    let mut client = bed.connect();
    // A connection is known to be its instance's once something came through it.
    bed.request(&mut client, 0.0, 0.0);
    bed.server.ask("e = select.epoll(); e.register(c.fileno(), 1); set_params(e, 1000000, 64, 1)");
    // The timer is there to keep the interrupt away, and does not fire.
    bed.set(&[(Setting::DeferHardIrqs, 1_000_000), (Setting::GroFlushTimeout, 10_000_000_000)]);
    let counted =
        count::Options { namespace: Some(inode(&bed.link.here)), ..count::Options::default() };
    let counter = Counter::start(&counted).expect("it counts");
    let probe = Probe::start(&bed.options()).expect("it starts");
    // Its poll was between these two.
    let wait = format!(
        "time.sleep({}); a = time.monotonic_ns(); e.poll(30); b = time.monotonic_ns(); \
         answer = f'{{a}} {{b}}'",
        PAUSE.as_secs_f64()
    );
    // The interrupt that is on still is the first one's.
    bed.request(&mut client, 0.0, 0.0);
    let polls = || {
        counter.read().into_values().fold((0, 0), |(softirq, application), it| {
            (softirq + it.softirq.polls, application + it.application.polls)
        })
    };
    let before = polls();
    let asked = bed.rounds(&mut client, &probe, &wait);
    let after = polls();
    assert_eq!(after.0, before.0, "no softirq polled");
    assert!(after.1 - before.1 >= ROUNDS as u64, "the application did: {before:?} {after:?}");
    each_is_bounded(&asked);
    drawn_from_all_of(asked.iter().map(|it| {
        let [[from, to], [begun, ended]] = [0, 1].map(|which: usize| {
            let (first, second) = it.said[which].split_once(' ').expect("two times");
            [first, second].map(|it| it.parse::<f64>().expect("a time"))
        });
        (it, [begun - to, ended - from])
    }));
}

napkin_testing::main!();
