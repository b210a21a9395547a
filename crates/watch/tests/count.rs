//! Counting in the kernel, against the kernel's own trace of the same polls.
//!
//! Each test has a pair of veth between two namespaces without names, and sends over it a known
//! number of datagrams. What the counting programs say is compared with an independent count: the
//! lines that the trace point writes into a trace buffer of the test's own, whose flags say in which
//! context each was written.
//!
//! On the machine where this was written a loaded run may count fewer softirqs' polls than the trace
//! has. Where that was looked at closely, the missing ones were those that had interrupted one and
//! the same foreign program; why is not known. A test takes such a difference only if one foreign
//! program's softirqs make it up exactly, and prints it; it cannot tell that from another program
//! with as many.

#[path = "../../kernel/tests/harness/namespace.rs"]
mod namespace;

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::io::{BufRead, BufReader, Read};
use std::net::{Ipv4Addr, UdpSocket};
use std::os::fd::{AsFd, FromRawFd, OwnedFd};
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::time::Duration;

use namespace::{fresh, needs_rights};
use napkin_kernel::count::btf::{Btf, Kind};
use napkin_kernel::count::{CountError, Counter, Counts, Key, Options, Polled, verifier};
use napkin_kernel::namespace::Namespace;
use napkin_kernel::netlink::{self, Ethtool, Netdev, Route, VethConfig};
use napkin_kernel::process::Params;
use napkin_kernel::settings::Setting;
use napkin_os::rights::Right;
use napkin_testing::{needs, test};
use napkin_watch::sampler::{self, Sampler};

/// What counting takes.
const COUNTS: [Right; 2] = [Right::Bpf, Right::Perfmon];

const HERE: Ipv4Addr = Ipv4Addr::new(10, 77, 0, 1);
const THERE: Ipv4Addr = Ipv4Addr::new(10, 77, 0, 2);

/// Two namespaces and a veth pair: `ifname` here, polled by NAPI, and the other end there.
struct Backend {
    here: Namespace,
    there: Namespace,
    ifname: String,
    key: Key,
}

impl Backend {
    fn new() -> Backend {
        static NUMBER: AtomicU32 = AtomicU32::new(0);
        needs_rights(&COUNTS);
        // A name that no other test's device has: trace buffers are filtered by it.
        let ifname = format!("nk{}-{}", std::process::id(), NUMBER.fetch_add(1, Ordering::Relaxed));
        let (here, there) = (fresh(), fresh());
        // Neighbour and router discovery would be packets that nobody sent.
        let quiet = || fs::write("/proc/sys/net/ipv6/conf/default/disable_ipv6", "1");
        let key = here
            .run(|| {
                let _ = quiet();
                let mut route = Route::open().expect("rtnetlink");
                let config = VethConfig {
                    name: &ifname,
                    peer: "vb",
                    peer_namespace: Some(there.as_fd()),
                    rx_queues: 1,
                    tx_queues: 1,
                };
                there.run(|| drop(quiet())).expect("a thread there");
                let ifindex = route.add_veth(&config).expect("a veth pair");
                Ethtool::open()
                    .expect("ethtool")
                    .set_features(&ifname, &[(netlink::GRO[0], true)])
                    .expect("gro on");
                route.add_address(ifindex, HERE, 24).expect("an address");
                route.set_up(ifindex).expect("up");
                ifindex
            })
            .expect("a thread here");
        there
            .run(|| {
                let mut route = Route::open().expect("rtnetlink");
                let ifindex = route.link("vb").expect("the other end").ifindex;
                // Or else veth hands packets over without NAPI.
                let off: Vec<_> =
                    netlink::TSO.iter().chain(netlink::GSO).map(|name| (*name, false)).collect();
                Ethtool::open().expect("ethtool").set_features("vb", &off).expect("no tso, no gso");
                route.add_address(ifindex, THERE, 24).expect("an address");
                route.set_up(ifindex).expect("up");
            })
            .expect("a thread there");
        let ifindex = key;
        let netns = u32::try_from(here.inode().expect("an inode")).expect("32 bits");
        let napi_id = here
            .run(|| {
                let mut netdev = Netdev::open().expect("netdev");
                let napis = netdev.napis(Some(ifindex)).expect("napi-get");
                assert_eq!(napis.len(), 1, "{napis:?}");
                napis[0].id
            })
            .expect("a thread here");
        Backend { here, there, ifname, key: Key { netns, ifindex, napi_id } }
    }

    fn set(&self, settings: &[(Setting, u64)]) {
        self.here
            .run(|| {
                let mut netdev = Netdev::open().expect("netdev");
                for (setting, value) in settings {
                    netdev.set_napi(self.key.napi_id, *setting, *value).expect("napi-set");
                }
            })
            .expect("a thread here");
    }

    /// What the device says that it received; to be asked by a thread here.
    fn rx_packets(&self) -> u64 {
        let file = format!("/sys/class/net/{}/statistics/rx_packets", self.ifname);
        fs::read_to_string(file).expect("statistics").trim().parse().expect("a number")
    }
}

/// The two ends of a conversation: `there` sends to `here`, which answers.
struct Talk {
    here: UdpSocket,
    there: UdpSocket,
}

impl Talk {
    fn new(world: &Backend) -> Talk {
        let socket = |address| {
            let socket = UdpSocket::bind((address, 0)).expect("a socket");
            socket.set_read_timeout(Some(Duration::from_secs(10))).expect("a timeout");
            socket
        };
        let here = world.here.run(|| socket(HERE)).expect("a thread here");
        let there = world.there.run(|| socket(THERE)).expect("a thread there");
        there.connect(here.local_addr().expect("an address")).expect("connected");
        here.connect(there.local_addr().expect("an address")).expect("connected");
        let talk = Talk { here, there };
        // Address resolution is done with afterwards.
        talk.rounds(3, 1);
        talk
    }

    /// So many times `burst` datagrams there, all of them read, and one back. The burst is below
    /// the veth's ring of 256. Returns how many were received.
    fn rounds(&self, rounds: u32, burst: u32) -> u64 {
        let mut received = 0;
        let mut bytes = [0; 64];
        for _ in 0..rounds {
            for _ in 0..burst {
                self.there.send(b"a datagram").expect("sent");
            }
            for _ in 0..burst {
                self.here.recv(&mut bytes).expect("received");
                received += 1;
            }
            self.here.send(b"an answer").expect("sent");
            self.there.recv(&mut bytes).expect("received");
        }
        received
    }
}

/// A trace buffer of this test's own, with the device's polls.
struct Trace(PathBuf);

/// One poll as the trace point wrote it.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Line {
    /// The program that runs, or that the softirq interrupted.
    comm: String,
    in_softirq: bool,
    by_napi_thread: bool,
    work: u64,
    budget: u64,
}

impl Trace {
    /// In the calling thread's private mounts.
    fn new(ifname: &str) -> Trace {
        let at = "/sys/kernel/tracing";
        rustix::mount::mount("tracefs", at, "tracefs", rustix::mount::MountFlags::empty(), None)
            .expect("tracefs");
        let trace = Trace(PathBuf::from(format!("{at}/instances/{ifname}")));
        fs::create_dir(&trace.0).expect("a trace buffer");
        trace.write("buffer_size_kb", "16384");
        trace.write("events/napi/napi_poll/filter", &format!("dev_name == \"{ifname}\""));
        trace.write("events/napi/napi_poll/enable", "1");
        trace
    }

    fn write(&self, file: &str, text: &str) {
        fs::write(self.0.join(file), text).unwrap_or_else(|error| panic!("{file}: {error}"));
    }

    fn clear(&self) {
        self.write("trace", "");
    }

    fn lines(&self) -> Vec<Line> {
        for cpu in fs::read_dir(self.0.join("per_cpu")).expect("CPUs").flatten() {
            let stats = fs::read_to_string(cpu.path().join("stats")).expect("stats");
            assert!(stats.contains("\noverrun: 0\n"), "the trace buffer was too small: {stats}");
        }
        let text = fs::read_to_string(self.0.join("trace")).expect("the trace");
        text.lines().filter(|line| !line.starts_with('#')).map(Line::read).collect()
    }
}

impl Drop for Trace {
    fn drop(&mut self) {
        let _ = fs::remove_dir(&self.0);
    }
}

impl Line {
    /// Whether a softirq interrupted that program.
    fn is_of(&self, comm: &str) -> bool {
        self.in_softirq && self.comm == comm
    }

    /// `  napi/va-7-812     [001] b.s1.   12.345: napi_poll: napi poll on ... work 1 budget 64`
    fn read(line: &str) -> Line {
        let (task, rest) = line.rsplit_once(" [").unwrap_or_else(|| panic!("{line}"));
        let comm = task.trim().rsplit_once('-').expect(line).0.to_owned();
        let flags = rest.split_once("] ").expect(line).1.as_bytes();
        let number = |word: &str| {
            let rest = line.rsplit_once(word).expect(line).1;
            rest.split_whitespace().next().expect(line).parse().expect(line)
        };
        Line {
            // The third flag: `s` in a softirq, `b` with bottom halves only off.
            in_softirq: matches!(flags[2], b's' | b'H'),
            by_napi_thread: comm.starts_with("napi/"),
            comm,
            work: number(" work "),
            budget: number(" budget "),
        }
    }
}

/// The same numbers, from the trace.
fn counted<'a>(lines: impl IntoIterator<Item = &'a Line>) -> Counts {
    let lines: Vec<&Line> = lines.into_iter().filter(|line| line.budget != 0).collect();
    let polled = |which: &dyn Fn(&Line) -> bool| {
        let lines: Vec<_> = lines.iter().filter(|line| which(line)).collect();
        let count = |which: fn(&Line) -> bool| lines.iter().filter(|it| which(it)).count() as u64;
        Polled {
            polls: lines.len() as u64,
            empty: count(|line| line.work == 0),
            full: count(|line| line.work == line.budget),
            packets: lines.iter().map(|line| line.work).sum(),
        }
    };
    Counts {
        softirq: polled(&|line| line.in_softirq),
        thread: polled(&|line| !line.in_softirq && line.by_napi_thread),
        application: polled(&|line| !line.in_softirq && !line.by_napi_thread),
        ..Counts::default()
    }
}

/// Only what the trace has as well.
fn of_polls(counts: Counts) -> Counts {
    let Counts { softirq, thread, application, .. } = counts;
    Counts { softirq, thread, application, ..Counts::default() }
}

/// Reads until nothing changes any more: deferral goes on for a while after the last packet.
fn settled(counter: &Counter, key: &Key) -> Counts {
    let mut last = None;
    for _ in 0..200 {
        let now = counter.read().expect("counts").remove(key);
        if last == Some(now) {
            return now.unwrap_or_default();
        }
        last = Some(now);
        std::thread::sleep(Duration::from_millis(50));
    }
    panic!("the instance never came to rest: {last:?}");
}

/// What was counted during some traffic.
struct Told {
    counts: Counts,
    /// The trace's lines, without those of `hidden`.
    trace: Counts,
    /// Of which foreign program no softirq is counted, and what these would have been.
    hidden: Option<(String, Counts)>,
    received: u64,
    rx_packets: u64,
}

/// Counts during some traffic, by the programs and by the trace.
fn tell(world: &Backend, traffic: impl FnOnce(&Talk) -> u64 + Send) -> Told {
    let counter = Counter::start(&Options::default()).expect("it counts");
    assert_eq!(counter.notes(), &[] as &[String]);
    let talk = Talk::new(world);
    let told = world.here.run(|| {
        let trace = Trace::new(&world.ifname);
        let before = settled(&counter, &world.key);
        trace.clear();
        let rx_before = world.rx_packets();
        let received = traffic(&talk);
        let after = settled(&counter, &world.key);
        assert_eq!(counter.lost().expect("counts"), Default::default());
        let rx_packets = world.rx_packets() - rx_before;
        let counts = after.since(&before);
        let lines = trace.lines();
        let hidden = hidden(&lines, &counts);
        let seen = |line: &&Line| hidden.as_ref().is_none_or(|(comm, _)| !line.is_of(comm));
        let trace = counted(lines.iter().filter(seen));
        Told { counts, trace, hidden, received, rx_packets }
    });
    let told = told.expect("a thread here");
    eprintln!("{:?}, received {}", told.counts, told.received);
    if let Some((comm, counts)) = &told.hidden {
        eprintln!("not counted, as many as interrupted {comm}: {counts:?}");
    }
    told
}

/// The foreign program without whose softirqs the trace says what was counted, if there has to be
/// one and there is.
fn hidden(lines: &[Line], counts: &Counts) -> Option<(String, Counts)> {
    if counted(lines) == of_polls(*counts) {
        return None;
    }
    let own = fs::read_dir("/proc/self/task").expect("procfs").flatten();
    let own: Vec<String> = own
        .filter_map(|task| fs::read_to_string(task.path().join("comm")).ok())
        .map(|comm| comm.trim_end().to_owned())
        .collect();
    let kernel_s =
        |comm: &str| ["<idle>", "ksoftirqd/", "napi/"].iter().any(|name| comm.starts_with(name));
    let foreign: BTreeSet<&str> = lines
        .iter()
        .map(|line| line.comm.as_str())
        .filter(|comm| !kernel_s(comm) && !own.iter().any(|own| own == comm))
        .collect();
    foreign.into_iter().find_map(|comm| {
        let rest = counted(lines.iter().filter(|line| !line.is_of(comm)));
        let all = counted(lines.iter().filter(|line| line.is_of(comm)));
        (rest == of_polls(*counts)).then(|| (comm.to_owned(), all))
    })
}

impl Told {
    /// What holds whoever polls.
    fn agrees(&self) {
        assert_eq!(of_polls(self.counts), self.trace, "the trace point says the same");
        let hidden = self.hidden.as_ref().map_or(0, |(_, counts)| counts.all().packets);
        let packets = self.counts.all().packets + hidden;
        assert_eq!(packets, self.received, "each datagram is one packet");
        assert_eq!(packets, self.rx_packets, "the device says the same");
    }
}

#[test]
fn base_is_polled_by_softirqs_and_every_packet_is_counted() {
    let world = Backend::new();
    let told = tell(&world, |talk| talk.rounds(500, 4));
    told.agrees();
    assert_eq!(told.received, 2000);
    let Counts { softirq, thread, application, .. } = told.counts;
    let none = Polled::default();
    assert!(softirq.polls > 0 && thread == none && application == none, "{:?}", told.counts);
    assert_eq!((told.counts.deferrals, told.counts.watchdogs), (Some(0), Some(0)));
    // A veth makes its instances anew at every up, and registers no place for their settings.
    assert_eq!(told.counts.keeps_settings, Some(false));
}

#[test]
fn threaded_is_polled_by_the_thread_alone() {
    let world = Backend::new();
    world.set(&[(Setting::Threaded, 1)]);
    let told = tell(&world, |talk| talk.rounds(500, 4));
    told.agrees();
    let Counts { softirq, thread, application, .. } = told.counts;
    let none = Polled::default();
    assert!(softirq == none && thread.polls > 0 && application == none, "{:?}", told.counts);
}

#[test]
fn deferral_is_seen_as_the_timer_armed_and_fired_and_as_empty_polls() {
    let world = Backend::new();
    world.set(&[(Setting::DeferHardIrqs, 100), (Setting::GroFlushTimeout, 20_000)]);
    let told = tell(&world, |talk| talk.rounds(200, 4));
    told.agrees();
    let counts = told.counts;
    let (deferrals, watchdogs) = (counts.deferrals.expect("some"), counts.watchdogs.expect("some"));
    assert!(deferrals >= 100 && watchdogs >= 100, "{counts:?}");
    // A timer that is armed again before it fires does not fire for the first time.
    assert!(watchdogs <= deferrals || told.hidden.is_some(), "{counts:?}");
    // After the last packet it is armed for each of 100 polls, and the last of them lets go.
    assert!(counts.all().empty >= 100, "{counts:?}");
    assert_eq!((counts.suspensions, counts.expiries, counts.flushes), (Some(0), Some(0), Some(0)));
}

/// An epoll context with these parameters, on a socket that no longer blocks.
fn epoll_on(socket: &UdpSocket, params: Params) -> OwnedFd {
    // SAFETY: it takes flags only.
    let epoll = unsafe { libc::epoll_create1(libc::EPOLL_CLOEXEC) };
    assert!(epoll >= 0);
    // SAFETY: a new descriptor.
    let epoll = unsafe { OwnedFd::from_raw_fd(epoll) };
    params.set(&epoll).expect("Linux 6.9").then_some(()).expect("an epoll context");
    rustix::event::epoll::add(
        &epoll,
        socket,
        rustix::event::epoll::EventData::new_u64(0),
        rustix::event::epoll::EventFlags::IN,
    )
    .expect("added");
    socket.set_nonblocking(true).expect("set");
    epoll
}

/// Waits in an epoll context with these parameters for datagrams, until told to stop; how many came.
fn busy_poller(socket: &UdpSocket, params: Params, timeout_ms: i32, stop: &AtomicBool) -> u64 {
    let epoll = epoll_on(socket, params);
    let mut received = 0;
    let mut bytes = [0; 64];
    let timeout = rustix::event::Timespec { tv_sec: 0, tv_nsec: i64::from(timeout_ms) * 1_000_000 };
    while !stop.load(Ordering::Relaxed) {
        let mut events = Vec::with_capacity(8);
        let _ = rustix::event::epoll::wait(
            &epoll,
            rustix::buffer::spare_capacity(&mut events),
            Some(&timeout),
        );
        while socket.recv(&mut bytes).is_ok() {
            received += 1;
            if received % 4 == 0 {
                socket.send(b"an answer").expect("sent");
            }
        }
    }
    socket.set_nonblocking(false).expect("set");
    received
}

/// Sends rounds of four datagrams to a busy poller on another thread.
fn to_busy_poller(talk: &Talk, params: Params, rounds: u32) -> u64 {
    let stop = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let poller = scope.spawn(|| busy_poller(&talk.here, params, 20, &stop));
        let mut bytes = [0; 64];
        for _ in 0..rounds {
            for _ in 0..4 {
                talk.there.send(b"a datagram").expect("sent");
            }
            talk.there.recv(&mut bytes).expect("an answer");
        }
        stop.store(true, Ordering::Relaxed);
        poller.join().expect("the poller")
    })
}

#[test]
fn a_busy_polling_application_s_polls_are_its_own_the_last_of_a_session_too() {
    let world = Backend::new();
    world.set(&[(Setting::DeferHardIrqs, 100), (Setting::GroFlushTimeout, 5_000_000)]);
    let params = Params { busy_poll_usecs: 200, busy_poll_budget: 64, prefer_busy_poll: true };
    let told = tell(&world, |talk| to_busy_poller(talk, params, 200));
    told.agrees();
    assert!(
        told.counts.application.polls > 0 && told.counts.thread.polls == 0,
        "{:?}",
        told.counts
    );
}

#[test]
fn without_prefer_softirqs_and_the_application_compete_and_each_poll_is_given_to_who_made_it() {
    let world = Backend::new();
    let params = Params { busy_poll_usecs: 200, busy_poll_budget: 8, prefer_busy_poll: false };
    let told = tell(&world, |talk| to_busy_poller(talk, params, 500));
    told.agrees();
    assert!(
        told.counts.application.polls > 0 && told.counts.softirq.polls > 0,
        "{:?}",
        told.counts
    );
}

#[test]
fn suspension_is_told_from_deferral() {
    let world = Backend::new();
    world.set(&[
        (Setting::DeferHardIrqs, 100),
        (Setting::GroFlushTimeout, 20_000),
        (Setting::IrqSuspendTimeout, 20_000_000),
    ]);
    let params = Params { busy_poll_usecs: 0, busy_poll_budget: 64, prefer_busy_poll: true };
    let told = tell(&world, |talk| to_busy_poller(talk, params, 200));
    told.agrees();
    let counts = told.counts;
    assert!(counts.suspensions > Some(0) && counts.deferrals > Some(0), "{counts:?}");
    assert!(counts.application.polls > 0, "{counts:?}");
}

#[test]
fn a_suspension_whose_application_does_not_come_back_ends_by_its_timer() {
    let world = Backend::new();
    world.set(&[
        (Setting::DeferHardIrqs, 100),
        (Setting::GroFlushTimeout, 20_000),
        (Setting::IrqSuspendTimeout, 5_000_000),
    ]);
    let params = Params { busy_poll_usecs: 0, busy_poll_budget: 64, prefer_busy_poll: true };
    let told = tell(&world, |talk| {
        let epoll = epoll_on(&talk.here, params);
        let mut received = 0;
        for _ in 0..10 {
            talk.there.send(b"a datagram").expect("sent");
            // It finds an event, which suspends, and does not wait again for ten times as long.
            let mut events = Vec::with_capacity(8);
            let spare = rustix::buffer::spare_capacity(&mut events);
            rustix::event::epoll::wait(&epoll, spare, None).expect("an event");
            received += u64::from(talk.here.recv(&mut [0; 64]).is_ok());
            std::thread::sleep(Duration::from_millis(50));
        }
        talk.here.set_nonblocking(false).expect("set");
        received
    });
    told.agrees();
    let counts = told.counts;
    assert!(counts.expiries > Some(0), "{counts:?}");
    assert!(counts.expiries <= counts.suspensions || told.hidden.is_some(), "{counts:?}");
}

#[test]
fn instances_beyond_the_room_are_lost_and_said_to_be_and_forgetting_one_makes_room() {
    let worlds = [Backend::new(), Backend::new()];
    let counter = Counter::start(&Options { instances: 1, timers: false }).expect("it counts");
    let talks: Vec<Talk> = worlds.iter().map(Talk::new).collect();
    for talk in &talks {
        talk.rounds(5, 1);
    }
    // Whoever polled first on this machine has the only row.
    let rows = counter.read().expect("counts");
    assert_eq!(rows.len(), 1, "{rows:?}");
    assert!(counter.lost().expect("counts").no_room >= 5);
    let (key, counts) = rows.into_iter().next().expect("a row");
    assert_eq!((counts.deferrals, counts.watchdogs), (None, None), "not asked for");
    assert!(counter.forget(&key).expect("counts"));
}

#[test]
fn a_device_that_goes_away_leaves_its_counts_until_they_are_forgotten() {
    let world = Backend::new();
    let counter = Counter::start(&Options::default()).expect("it counts");
    Talk::new(&world).rounds(5, 1);
    let before = settled(&counter, &world.key);
    world
        .here
        .run(|| Route::open().expect("rtnetlink").delete(world.key.ifindex).expect("deleted"))
        .expect("a thread here");
    assert_eq!(counter.read().expect("counts").get(&world.key), Some(&before));
    assert!(counter.forget(&world.key).expect("counts"));
    assert!(!counter.forget(&world.key).expect("counts"), "only once");
    assert_eq!(counter.read().expect("counts").get(&world.key), None);
}

#[test]
fn a_sampler_puts_counts_thread_mode_and_owner_together_and_leaves_other_namespaces_out() {
    let world = Backend::new();
    let other = Backend::new();
    world.set(&[(Setting::Threaded, 1)]);
    let mut sampler = world
        .here
        .run(|| Sampler::start(&sampler::Options::default()).expect("it samples"))
        .expect("a thread here");
    let talk = Talk::new(&world);
    let elsewhere = Talk::new(&other);
    let first = world.here.run(|| sampler.sample().expect("a sample")).expect("a thread here");
    talk.rounds(100, 4);
    elsewhere.rounds(10, 4);
    let second = world.here.run(|| sampler.sample().expect("a sample")).expect("a thread here");
    assert!(second.at_ns > first.at_ns);
    let [napi] = second.napis.as_slice() else { panic!("{:?}", second.napis) };
    let [earlier] = first.napis.as_slice() else { panic!("{:?}", first.napis) };
    assert_eq!((napi.id, napi.ifname.as_str()), (world.key.napi_id, world.ifname.as_str()));
    assert_eq!(napi.mode, "threaded");
    let counts = |napi: &sampler::NapiSnapshot| napi.counts.expect("counts");
    assert_eq!(counts(napi).since(&counts(earlier)).all().packets, 400);
    assert!(napi.thread_cpu_ns > earlier.thread_cpu_ns, "the thread worked");
    let timers = (counts(earlier).deferrals, counts(earlier).watchdogs);
    assert_eq!(timers, (Some(0), Some(0)), "nothing is armed, polled before or not");
    assert_eq!(napi.rx_queues, [0], "a veth's are numbered as everywhere");
    assert!(napi.pid.is_some() && napi.cpu.is_some() && napi.irq.is_none());
    assert_eq!(napi.interrupts, None, "a veth has none, which is not 0");
    let me = format!("[{}]", std::process::id());
    assert!(napi.owners.iter().any(|owner| owner.ends_with(&me)), "{:?}", napi.owners);
    assert!(!second.cpus.is_empty() && second.cpus.iter().all(|cpu| cpu.time_squeezes.is_some()));

    world
        .here
        .run(|| Route::open().expect("rtnetlink").delete(world.key.ifindex).expect("deleted"))
        .expect("a thread here");
    let third = world.here.run(|| sampler.sample().expect("a sample")).expect("a thread here");
    assert!(third.napis.is_empty());
}

#[test]
fn a_sampler_without_rights_samples_the_rest_and_says_which_right_it_lacks() {
    let snapshot = std::thread::spawn(|| {
        use rustix::thread::{CapabilitySet, CapabilitySets, set_capabilities};
        let none = CapabilitySet::empty();
        let none = CapabilitySets { effective: none, permitted: none, inheritable: none };
        set_capabilities(None, none).expect("rights can always be given up");
        let mut sampler = Sampler::start(&sampler::Options::default()).expect("it samples");
        sampler.sample().expect("a sample")
    })
    .join()
    .expect("a thread");
    assert!(snapshot.notes.iter().any(|note| note.contains("CAP_BPF")), "{:?}", snapshot.notes);
    assert!(snapshot.napis.iter().all(|napi| napi.counts.is_none()), "not 0");
    assert!(!snapshot.cpus.is_empty());
}

/// What the test below kills.
fn counts_until_it_is_killed() -> bool {
    if std::env::var_os("NAPKIN_COUNT_CHILD").is_none() {
        return false;
    }
    let _counter = Counter::start(&Options::default()).expect("it counts");
    println!("counting");
    std::thread::sleep(Duration::from_secs(60));
    true
}

struct Killed(Child);

impl Drop for Killed {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

#[test]
fn kill_9_leaves_no_program_no_map_and_no_link() {
    needs_rights(&COUNTS);
    let child = Command::new(std::env::current_exe().expect("this test"))
        .env("NAPKIN_COUNT_CHILD", "1")
        .stdout(Stdio::piped())
        .spawn()
        .expect("a child");
    let mut child = Killed(child);
    let mut output = BufReader::new(child.0.stdout.take().expect("a pipe").take(10_000));
    let mut line = String::new();
    while !line.contains("counting") {
        line.clear();
        assert!(output.read_line(&mut line).expect("output") > 0, "the child counts");
    }
    let pid = child.0.id();
    let held = objects_of(pid);
    let kinds = |of: &str| held.iter().filter(|(kind, _)| kind == of).count();
    assert_eq!((kinds("prog_id"), kinds("map_id"), kinds("link_id")), (5, 3, 5), "{held:?}");
    assert!(held.iter().all(|(kind, id)| exists(kind, *id)), "they are found by id");
    drop(child);
    // The kernel frees them some time after the descriptors are closed.
    let mut left = held;
    for _ in 0..100 {
        left.retain(|(kind, id)| exists(kind, *id));
        if left.is_empty() {
            return;
        }
        std::thread::sleep(Duration::from_millis(50));
    }
    panic!("left behind: {left:?}");
}

/// The kernel's numbers of what a process holds of bpf's, from `/proc/PID/fdinfo`.
fn objects_of(pid: u32) -> Vec<(String, u32)> {
    let mut found = BTreeMap::new();
    for file in fs::read_dir(format!("/proc/{pid}/fdinfo")).expect("its descriptors").flatten() {
        let text = fs::read_to_string(file.path()).unwrap_or_default();
        let link = text.contains("link_id:");
        for line in text.lines() {
            let Some((name, id)) = line.split_once(':') else { continue };
            // A link's text also names its program.
            let own = if link { name == "link_id" } else { matches!(name, "prog_id" | "map_id") };
            if own {
                found.insert((name.to_owned(), id.trim().parse().expect(line)), ());
            }
        }
    }
    found.into_keys().collect()
}

fn exists(kind: &str, id: u32) -> bool {
    // BPF_PROG_GET_FD_BY_ID, BPF_MAP_GET_FD_BY_ID, BPF_LINK_GET_FD_BY_ID
    let command = match kind {
        "prog_id" => 13,
        "map_id" => 14,
        _ => 30,
    };
    bpf(command, [id, 0, 0]).is_some()
}

/// A command that opens a descriptor.
fn bpf(command: i32, mut attributes: [u32; 3]) -> Option<OwnedFd> {
    // SAFETY: the commands used here take up to three numbers and follow no address.
    let answer = unsafe {
        libc::syscall(libc::SYS_bpf, command, attributes.as_mut_ptr(), size_of_val(&attributes))
    };
    let descriptor = i32::try_from(answer).ok().filter(|answer| *answer >= 0)?;
    // SAFETY: it succeeded, and answers with a new descriptor.
    Some(unsafe { OwnedFd::from_raw_fd(descriptor) })
}

#[test]
fn the_programs_are_short_and_what_a_run_takes_is_printed() {
    let world = Backend::new();
    world.set(&[(Setting::DeferHardIrqs, 100), (Setting::GroFlushTimeout, 20_000)]);
    let counter = Counter::start(&Options::default()).expect("it counts");
    // BPF_ENABLE_STATS, of run times, until the descriptor is closed.
    let stats = bpf(32, [0, 0, 0]).expect("the kernel counts run times");
    Talk::new(&world).rounds(2000, 4);
    drop(stats);
    for program in counter.programs().expect("statistics") {
        let runs = program.runs;
        eprintln!(
            "{}: {} instructions, {} bytes of machine code, {} runs of {} ns",
            program.name,
            program.instructions,
            runs.machine_code,
            runs.runs,
            runs.run_ns / runs.runs.max(1)
        );
        assert!(runs.runs > 0, "{program:?}");
        assert!(program.instructions <= 120, "{program:?}");
    }
}

#[test]
fn without_the_right_it_says_which() {
    let answer = std::thread::spawn(|| {
        use rustix::thread::{CapabilitySet, CapabilitySets, set_capabilities};
        let none = CapabilitySet::empty();
        // Of this thread only.
        let none = CapabilitySets { effective: none, permitted: none, inheritable: none };
        set_capabilities(None, none).expect("rights can always be given up");
        Counter::start(&Options::default()).map(drop)
    })
    .join()
    .expect("a thread");
    let error = answer.expect_err("no right, no counts");
    assert!(matches!(error, CountError::Right { right: Right::Bpf }), "{error}");
    assert!(error.to_string().contains("CAP_BPF"), "{error}");
}

#[test]
fn the_running_kernel_s_types_are_read_to_their_end() {
    needs(fs::exists("/sys/kernel/btf/vmlinux").is_ok_and(|it| it), "a kernel with BTF");
    let btf = Btf::kernel().expect("it is whole");
    assert!(btf.len() > 10_000, "{}", btf.len());
    let task = btf.find(Kind::Struct, "task_struct").expect("every kernel has tasks");
    assert!(btf.member(task, "pid").is_some());
    // `struct list_head { next, prev }` is as it always was.
    let list = btf.find(Kind::Struct, "list_head").expect("and lists");
    let prev = btf.member(list, "prev").expect("with a prev");
    assert_eq!(prev.offset as usize, size_of::<usize>());
}

/// What the kernel's verifier would not see otherwise: without marks, and for Linux before 6.13.
#[test]
fn the_kernel_takes_the_programs_that_go_by_the_instance_s_state_alone() {
    needs_rights(&COUNTS);
    verifier::takes_older_programs().expect("they are accepted");
}

#[test]
fn a_program_that_the_verifier_refuses_comes_with_its_words() {
    needs_rights(&COUNTS);
    let error = verifier::refuses_a_wrong_program().expect_err("R0 was never set");
    assert!(error.to_string().contains("napkin_bad"), "{error}");
    assert!(error.to_string().contains("R0"), "{error}");
}

napkin_testing::main!(counts_until_it_is_killed);
