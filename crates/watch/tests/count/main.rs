//! Tests of counting in the kernel, against the kernel's own trace of the same polls.
//!
//! Each test has a veth pair between two anonymous namespaces, and sends a known number of datagrams over it.
//! The counting programs are compared with an independent count: the lines that the trace point writes into a
//! trace buffer of the test's own, whose flags give the context of each poll.
//!
//! On the development machine no tracing program runs while process 1 is the current one, as the trace's
//! lines show; Linux itself has no such rule. Polls of softirqs that interrupted process 1 are not counted
//! there. A test accepts exactly these as missing, or none.

mod busy_polling;
#[path = "../../../kernel/tests/harness/namespace.rs"]
mod namespace;
mod polls;
mod programs;
mod samples;

use std::collections::BTreeMap;
use std::fs;
use std::io::{BufRead, BufReader, Read};
use std::net::{Ipv4Addr, UdpSocket};
use std::os::fd::{AsFd, FromRawFd, OwnedFd};
use std::path::PathBuf;
use std::process::{Command, Stdio};
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
use napkin_testing::needs;
use napkin_watch::sampler::{self, Sampler};

/// The capabilities that counting needs.
const COUNTS: [Right; 2] = [Right::Bpf, Right::Perfmon];

const HERE: Ipv4Addr = Ipv4Addr::new(10, 77, 0, 1);
const THERE: Ipv4Addr = Ipv4Addr::new(10, 77, 0, 2);

/// Two namespaces and a veth pair: `ifname` here, polled by NAPI, and its peer there.
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
        // A unique name, as trace buffers are filtered by it.
        let ifname = format!("nk{}-{}", std::process::id(), NUMBER.fetch_add(1, Ordering::Relaxed));
        let (here, there) = (fresh(), fresh());
        // Neighbour and router discovery would add packets that the test did not send.
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
                // With these offloads on, veth passes packets on without NAPI.
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

    /// The device's own count of received packets; has to run in a thread of its namespace.
    fn rx_packets(&self) -> u64 {
        let file = format!("/sys/class/net/{}/statistics/rx_packets", self.ifname);
        fs::read_to_string(file).expect("statistics").trim().parse().expect("a number")
    }
}

/// Two connected sockets: `there` sends to `here`, which answers.
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
        // Completes address resolution.
        talk.rounds(3, 1);
        talk
    }

    /// Sends `burst` datagrams from there, reads them all, and sends one back, `rounds` times. The burst is
    /// smaller than the veth's ring of 256. Returns how many were received.
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

/// A trace buffer of this test's own, for the device's polls.
struct Trace(PathBuf);

/// One poll, as written by the trace point.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Line {
    in_softirq: bool,
    /// Whether process 1 is the current one; for a softirq, whether it interrupted that.
    in_first_process: bool,
    by_napi_thread: bool,
    work: u64,
    budget: u64,
}

impl Trace {
    /// Creates the buffer, in the calling thread's private mounts.
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
        let threads = fs::read_dir("/proc/1/task").expect("procfs").flatten();
        let threads: Vec<String> =
            threads.map(|it| it.file_name().to_string_lossy().into_owned()).collect();
        let lines = text.lines().filter(|line| !line.starts_with('#'));
        lines.map(|line| Line::read(line, &threads)).collect()
    }
}

impl Drop for Trace {
    fn drop(&mut self) {
        let _ = fs::remove_dir(&self.0);
    }
}

impl Line {
    /// Whether a kernel may hide this poll from tracing programs.
    fn may_be_hidden(&self) -> bool {
        self.in_softirq && self.in_first_process
    }

    /// Parses a line, as in
    /// `  napi/va-7-812     [001] b.s1.   12.345: napi_poll: napi poll on ... work 1 budget 64`.
    ///
    /// `first_process` has the thread IDs of process 1.
    fn read(line: &str, first_process: &[String]) -> Line {
        let (task, rest) = line.rsplit_once(" [").unwrap_or_else(|| panic!("{line}"));
        let (comm, thread) = task.trim().rsplit_once('-').expect(line);
        let flags = rest.split_once("] ").expect(line).1.as_bytes();
        let number = |word: &str| {
            let rest = line.rsplit_once(word).expect(line).1;
            rest.split_whitespace().next().expect(line).parse().expect(line)
        };
        Line {
            // The third flag: `s` for a softirq, `b` for disabled bottom halves only.
            in_softirq: matches!(flags[2], b's' | b'H'),
            in_first_process: first_process.iter().any(|it| it == thread),
            by_napi_thread: comm.starts_with("napi/"),
            work: number(" work "),
            budget: number(" budget "),
        }
    }
}

/// The counts, computed from the trace.
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

/// Only the counts that the trace has as well.
fn of_polls(counts: Counts) -> Counts {
    let Counts { softirq, thread, application, .. } = counts;
    Counts { softirq, thread, application, ..Counts::default() }
}

/// Reads until the counts stay the same: deferral continues for a while after the last packet.
fn settled(counter: &Counter, key: &Key) -> Counts {
    let mut last = None;
    for _ in 0..200 {
        let now = counter.read().remove(key);
        if last == Some(now) {
            return now.unwrap_or_default();
        }
        last = Some(now);
        std::thread::sleep(Duration::from_millis(50));
    }
    panic!("the instance never came to rest: {last:?}");
}

/// The counts of some traffic.
struct Told {
    counts: Counts,
    /// Counts from the trace, without `hidden`.
    trace: Counts,
    /// Polls of softirqs that interrupted process 1, if the programs do not count them.
    hidden: Option<Counts>,
    received: u64,
    rx_packets: u64,
}

/// Counts some traffic, by the programs and by the trace.
fn count_during(world: &Backend, traffic: impl FnOnce(&Talk) -> u64 + Send) -> Told {
    let counter = Counter::start(&Options::default()).expect("it counts");
    assert_eq!(counter.notes(), &[] as &[String]);
    let talk = Talk::new(world);
    let outcome = world.here.run(|| {
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
        let all = counted(&lines) == of_polls(counts);
        let hidden = (!all).then(|| counted(lines.iter().filter(|it| it.may_be_hidden())));
        let trace = counted(lines.iter().filter(|it| all || !it.may_be_hidden()));
        Told { counts, trace, hidden, received, rx_packets }
    });
    let outcome = outcome.expect("a thread here");
    eprintln!("{:?}, received {}", outcome.counts, outcome.received);
    if let Some(counts) = &outcome.hidden {
        eprintln!("not counted, having interrupted the first process: {counts:?}");
    }
    outcome
}

impl Told {
    /// Asserts what holds for every poller.
    fn agrees(&self) {
        assert_eq!(of_polls(self.counts), self.trace, "the trace point says the same");
        let hidden = self.hidden.map_or(0, |counts| counts.all().packets);
        let packets = self.counts.all().packets + hidden;
        assert_eq!(packets, self.received, "each datagram is one packet");
        assert_eq!(packets, self.rx_packets, "the device says the same");
    }
}

napkin_testing::main!(programs::counts_until_it_is_killed);
