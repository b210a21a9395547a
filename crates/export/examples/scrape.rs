//! Measures the cost to a saturated memcached of being scraped once a second: its rate with and without a
//! running exporter, alternately, over a veth, and the instructions and cycles of its threads for each
//! answer, in the kernel too. On a shared machine rates scatter by far more than the difference; instructions
//! for each answer do not, and a saturated program loses as much rate as each answer costs more.
//!
//! `cargo run --release -p napkin-export --example scrape [PAIRS] [SECONDS] [latency|plain|no-count] [veth|outside]`,
//! as root, with two CPUs. `latency` (the default) is `napkin export --latency`. Over a veth
//! (the default) the client's end is polled on this host too. `outside` models clients elsewhere: the client
//! has a network stack of its own behind a TAP device, its packets are received on the server's CPU (RPS),
//! and a request is one poll. With `sysctl kernel.bpf_stats_enabled=1`, which itself costs time, it prints
//! the run time of each BPF program; it always prints the exporter's own CPU use.

#[path = "../../compare/tests/harness/mod.rs"]
mod harness;

use std::net::Ipv4Addr;
use std::sync::mpsc::{RecvTimeoutError, channel};
use std::time::{Duration, Instant};

use harness::Bed;
use napkin_client::{Client, Host, Load};
use napkin_export::{Exporter, Format};
use napkin_measure::paired::Ratio;
use napkin_nic::Pool;
use napkin_nic::tap::{Tap, TapConfig};
use napkin_os::clock;
use napkin_os::procfs::Time;
use napkin_stack::Address;
use napkin_watch::{CountOptions, LinuxSource, Often};
use napkin_workload::linux::pair;
use perf_event::events::Hardware;
use perf_event::{Builder, Counter};

fn main() {
    let mut arguments = std::env::args().skip(1);
    let pairs = arguments.next().map_or(20, |it| it.parse().expect("a number"));
    let seconds = arguments.next().map_or(2.0, |it| it.parse().expect("seconds"));
    let what = arguments.next().unwrap_or_else(|| "latency".into());
    let window = Duration::from_secs_f64(seconds);
    let bed = Bed::new();
    let mut client = match arguments.next().as_deref() {
        None | Some("veth") => bed.client(Load::Closed),
        Some("outside") => outside(&bed),
        Some(other) => panic!("{other} is neither veth nor outside"),
    };
    Bed::window(&mut client, window);
    let mut counters = Counters::of(&bed);
    let counted = if counters.0.is_empty() { 1 } else { NAMES.len() };
    let mut taken = vec![vec![]; counted];
    for pair in 0..pairs {
        let mut window = |scraped_too: bool| {
            let mut taken = None;
            let mut alone = || taken = Some(counters.window(&mut client, window));
            if scraped_too {
                scraped(&bed, &what, alone);
            } else {
                alone();
            }
            taken.expect("it ran")
        };
        // In the order with, without, without, with: a drift disturbs both alike.
        let with_first = matches!(pair % 4, 0 | 3);
        let [first, second] = [window(with_first), window(!with_first)];
        let (with, without) = if with_first { (first, second) } else { (second, first) };
        print!("with / without:");
        for (at, taken) in taken.iter_mut().enumerate() {
            print!(
                "  {} {:.0} / {:.0} ({:.4})",
                NAMES[at],
                with[at],
                without[at],
                with[at] / without[at]
            );
            taken.push((with[at], without[at]));
        }
        println!();
    }
    for (name, taken) in NAMES.iter().zip(taken) {
        let Ratio { median, confidence, low, high, .. } = Ratio::of(taken).expect("some");
        let percent = confidence * 100.0;
        println!(
            "{what}: {name}, with / without: {median:.4} ({percent:.0} %: {low:.4} to {high:.4})"
        );
    }
    client.stop().expect("it stops");
}

/// A client without kernel polling, at a TAP device of the server's namespace.
fn outside(bed: &Bed) -> Client {
    let (device, cpu) = ("nk-outside", bed.cpus[0]);
    let host = Address::v4([2, 0, 0, 0, 0x78, 2], [10, 78, 0, 2], 8);
    let open = move || {
        let address = Some((Ipv4Addr::new(10, 78, 0, 1), 24));
        let config = TapConfig { name: device.into(), address, ..TapConfig::default() };
        let tap = Tap::open(&config, &Pool::new(4_096)).expect("a TAP device");
        pair::receive_on(device, &[cpu]).expect("RPS");
        tap.queues.into_iter().next().expect("a queue")
    };
    let queue = Box::new(bed.pair.server.run(open).expect("entered"));
    let host = Host { queue, addresses: host.into(), first_port: None };
    Client::embedded(&bed.config(Load::Closed), host).expect("connected")
}

/// The values printed for each window.
const NAMES: [&str; 3] = ["answers a second", "instructions an answer", "cycles an answer"];

/// Instructions and cycles of the server's threads, including the kernel and softirqs that run on top of
/// them. Empty where the processor's counters are unavailable, as in many virtual machines.
struct Counters(Vec<[Counter; 2]>);

impl Counters {
    fn of(bed: &Bed) -> Counters {
        let tasks =
            std::fs::read_dir(format!("/proc/{}/task", bed.pid())).expect("it runs").flatten();
        let counter =
            |tid, of| Builder::new(of).observe_pid(tid).any_cpu().exclude_kernel(false).build();
        let of_task = |task: std::fs::DirEntry| {
            let tid = task.file_name().to_string_lossy().parse().expect("a number");
            let mut pair =
                [counter(tid, Hardware::INSTRUCTIONS)?, counter(tid, Hardware::CPU_CYCLES)?];
            pair.iter_mut().try_for_each(Counter::enable)?;
            Ok(pair)
        };
        let counters: std::io::Result<_> = tasks.map(of_task).collect();
        Counters(counters.unwrap_or_else(|error| {
            println!("no processor's counters here ({error}): rates alone");
            Vec::new()
        }))
    }

    fn read(&mut self) -> [u64; 2] {
        [0, 1].map(|at| self.0.iter_mut().map(|it| it[at].read().expect("counted")).sum())
    }

    /// Measures a window of this length: values in the order of [`NAMES`].
    fn window(&mut self, client: &mut Client, time: Duration) -> [f64; 3] {
        let before = self.read();
        let figures = Bed::window(client, time);
        let after = self.read();
        let answers = figures.requests as f64;
        let each = |at: usize| (after[at] - before[at]) as f64 / answers;
        [figures.achieved_per_s, each(0), each(1)]
    }
}

/// Runs a window while an exporter in the server's namespace is scraped each second.
fn scraped(bed: &Bed, what: &str, window: impl FnOnce()) {
    std::thread::scope(|scope| {
        let (stop, stopped) = channel::<()>();
        let (ready_sender, ready) = channel();
        scope.spawn(move || {
            bed.pair.server.enter_thread().expect("entered");
            let source = LinuxSource::open(
                (what != "no-count")
                    .then(|| CountOptions { exact: false, ..CountOptions::default() }),
                (what == "latency").then_some(Often::FiveSeconds),
            );
            let mut exporter = Exporter::new(Box::new(source.expect("it can be sampled")), None);
            exporter.text(Format::OpenMetrics, clock::now()).expect("sampled");
            ready_sender.send(()).expect("somebody waits");
            let (began, before) = (Instant::now(), own_cpu());
            while stopped.recv_timeout(Duration::from_secs(1)) == Err(RecvTimeoutError::Timeout) {
                exporter.text(Format::OpenMetrics, clock::now()).expect("sampled");
            }
            tell_costs(began.elapsed(), own_cpu().saturating_sub(before));
        });
        ready.recv().expect("it begins");
        // Its start-up work is over then.
        std::thread::sleep(Duration::from_millis(100));
        window();
        drop(stop);
    });
}

/// CPU time so far of the exporter's threads: this one, and the one that times requests.
fn own_cpu() -> Duration {
    let tasks = std::fs::read_dir("/proc/self/task").expect("its own").flatten();
    let of = |task: std::fs::DirEntry| {
        let tid: i32 = task.file_name().to_string_lossy().parse().ok()?;
        let own = tid == rustix::thread::gettid().as_raw_nonzero().get();
        let comm = std::fs::read_to_string(task.path().join("comm")).ok()?;
        let time = Time::read(std::process::id().cast_signed(), tid)?;
        (own || comm.trim() == "timing").then_some(time.run_ns)
    };
    Duration::from_nanos(tasks.filter_map(of).sum())
}

/// Prints the exporter's share of a CPU, and each BPF program's runs if the kernel counts them.
fn tell_costs(window: Duration, own: Duration) {
    println!("  exporter: {:.2} % of a CPU", own.as_secs_f64() / window.as_secs_f64() * 100.0);
    let files = std::fs::read_dir("/proc/self/fdinfo").expect("its own").flatten();
    for text in files.filter_map(|file| std::fs::read_to_string(file.path()).ok()) {
        let number = |name: &str| {
            let line = text.lines().find_map(|line| line.strip_prefix(name))?;
            line.trim_start_matches(':').trim().parse::<u64>().ok()
        };
        let (Some(id), Some(ns), Some(runs)) =
            (number("prog_id"), number("run_time_ns"), number("run_cnt"))
        else {
            continue;
        };
        if runs > 0 {
            let each = ns as f64 / runs as f64;
            let part = ns as f64 / window.as_nanos() as f64 * 100.0;
            println!("  program {id}: {runs} runs of {each:.0} ns, {part:.2} % of a CPU");
        }
    }
}
