//! What being scraped once a second costs a saturated memcached: its rate with a running exporter and without
//! one, in turns, over a veth.
//!
//! `cargo run --release -p napkin-export --example scrape [PAIRS] [SECONDS] [latency|plain|no-count]`, as root, with two
//! CPUs. `latency` (the default) is `napkin export --latency`. With `sysctl kernel.bpf_stats_enabled=1`, which itself
//! costs, it tells what each run of each program took; the exporter's own CPU it tells in any case.

#[path = "../../compare/tests/harness/mod.rs"]
mod harness;

use std::sync::mpsc::{RecvTimeoutError, channel};
use std::time::{Duration, Instant};

use harness::Bed;
use napkin_client::{Client, Load};
use napkin_export::{Exporter, Format};
use napkin_measure::paired::Ratio;
use napkin_os::clock;
use napkin_os::procfs::Time;
use napkin_watch::{LinuxSource, Often};

fn main() {
    let mut arguments = std::env::args().skip(1);
    let pairs = arguments.next().map_or(20, |it| it.parse().expect("a number"));
    let seconds = arguments.next().map_or(2.0, |it| it.parse().expect("seconds"));
    let what = arguments.next().unwrap_or_else(|| "latency".into());
    let window = Duration::from_secs_f64(seconds);
    let bed = Bed::new();
    let mut client = bed.client(Load::Closed);
    Bed::window(&mut client, window);
    let mut rates = Vec::new();
    for pair in 0..pairs {
        let scraped = |client: &mut Client| scraped(&bed, client, window, &what);
        // In the order with, without, without, with: what drifts disturbs both.
        let (with, without) = if matches!(pair % 4, 0 | 3) {
            let with = scraped(&mut client);
            (with, Bed::window(&mut client, window).achieved_per_s)
        } else {
            let without = Bed::window(&mut client, window).achieved_per_s;
            (scraped(&mut client), without)
        };
        println!("with {with:.0}, without {without:.0}: {:.4}", with / without);
        rates.push((with, without));
    }
    let ratio = Ratio::of(rates).expect("some");
    println!(
        "{what}: rate with / without: {:.4} ({:.0} %: {:.4} to {:.4})",
        ratio.median,
        ratio.confidence * 100.0,
        ratio.low,
        ratio.high
    );
    client.stop().expect("it stops");
}

/// The rate while an exporter in the server's namespace is scraped each second.
fn scraped(bed: &Bed, client: &mut Client, window: Duration, what: &str) -> f64 {
    std::thread::scope(|scope| {
        let (stop, stopped) = channel::<()>();
        let (tell, ready) = channel();
        scope.spawn(move || {
            bed.pair.server.enter_thread().expect("entered");
            let source = LinuxSource::open(
                what != "no-count",
                (what == "latency").then_some(Often::FiveSeconds),
            );
            let mut exporter = Exporter::new(Box::new(source.expect("it can be sampled")), None);
            exporter.text(Format::OpenMetrics, clock::now()).expect("sampled");
            tell.send(()).expect("somebody waits");
            let (began, before) = (Instant::now(), own_cpu());
            while stopped.recv_timeout(Duration::from_secs(1)) == Err(RecvTimeoutError::Timeout) {
                exporter.text(Format::OpenMetrics, clock::now()).expect("sampled");
            }
            tell_costs(began.elapsed(), own_cpu().saturating_sub(before));
        });
        ready.recv().expect("it begins");
        // What it starts once is over.
        std::thread::sleep(Duration::from_millis(100));
        let rate = Bed::window(client, window).achieved_per_s;
        drop(stop);
        rate
    })
}

/// CPU time of the exporter's threads so far: this one, and the one that takes turns.
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

/// What it used of a CPU, and each program's runs, if the kernel counts them.
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
