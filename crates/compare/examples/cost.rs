//! The cost of timing the requests of a saturated memcached: its rate with and without the BPF programs,
//! alternating, over a veth; and the run time of each program (with kernel.bpf_stats_enabled).
//!
//! `cargo run -p napkin-compare --example cost [PAIRS] [SECONDS] [ONE_IN] [OFF]`, as root, with two CPUs. With OFF,
//! in seconds, the programs alternate between 0.05 s attached and OFF detached, as `napkin compare` runs them at
//! such rates (0.8).

#[path = "../tests/harness/mod.rs"]
mod harness;

use std::time::{Duration, Instant};

use harness::{Bed, PORT};
use napkin_client::{Client, Load};
use napkin_kernel::count::latency::{Options, Part, Probe};
use napkin_measure::paired::Ratio;

fn main() {
    let mut arguments = std::env::args().skip(1);
    let mut next = |or: f64| arguments.next().map_or(or, |it| it.parse().expect("a number"));
    let (pairs, seconds, one_in) = (next(20.0) as usize, next(1.0), next(1.0) as u32);
    let off = Duration::from_secs_f64(next(0.0));
    let bed = Bed::new();
    let mut client = bed.client(Load::Closed);
    let window = Duration::from_secs_f64(seconds);
    Bed::window(&mut client, window);
    let (processes, ports) = (vec![bed.pid()], vec![PORT]);
    let options = Options { processes, ports, namespace: None, one_in };
    let mut rates = Vec::new();
    for pair in 0..pairs {
        let with = |client: &mut Client| {
            let mut probe = Probe::start(&options).expect("it starts");
            std::thread::sleep(Duration::from_millis(50));
            client.begin_window().expect("it runs");
            let began = Instant::now();
            while began.elapsed() < window {
                std::thread::sleep(Duration::from_millis(50));
                if !off.is_zero() {
                    probe.pause().expect("away");
                    std::thread::sleep(off);
                    probe.resume().expect("it goes on");
                }
            }
            let rate = client.end_window().expect("it runs").achieved_per_s;
            (rate, probe.read(&[]).expect("read"), probe.programs().expect("told"))
        };
        // In the order with, without, without, with: a drift affects both equally.
        let (measured, without) = match pair % 2 {
            0 => {
                let measured = with(&mut client);
                (measured, Bed::window(&mut client, window).achieved_per_s)
            }
            _ => {
                let without = Bed::window(&mut client, window).achieved_per_s;
                (with(&mut client), without)
            }
        };
        let (rate, reading, programs) = measured;
        println!("with {rate:.0}, without {without:.0}: {:.4}", rate / without);
        rates.push((rate, without));
        if pair + 1 == pairs {
            println!("sends {}, seen {}", reading.sends, reading.sends_seen);
            println!("timed {}", reading.all().of(Part::Service).count());
            for it in programs {
                let each = it.runs.run_ns as f64 / it.runs.runs.max(1) as f64;
                println!(
                    "{}: {} instructions, {} runs of {each:.0} ns",
                    it.name, it.instructions, it.runs.runs
                );
            }
        }
    }
    let ratio = Ratio::of(rates).expect("some");
    println!(
        "rate with / without: {:.4} ({:.0} %: {:.4} to {:.4})",
        ratio.median,
        ratio.confidence * 100.0,
        ratio.low,
        ratio.high
    );
    client.stop().expect("it stops");
}
