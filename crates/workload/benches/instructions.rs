//! Instructions per simulated packet and per step, counted by callgrind in the 2024 experiment. The count is the
//! same on every run and under any load, so a change of a few instructions is visible.
//!
//! `cargo bench -p napkin-workload --bench instructions` runs itself under valgrind, each policy with a short and a
//! long window, and prints the difference per packet. So what happens once (the setup of 4480 connections) is not
//! counted. Packets are those that the host receives and sends.
//!
//! Two periods of a run are counted: the beginning, from 5 to 15 ms, in which the card's interrupt moderation still
//! adapts (older results cover this one), and a later period, from 40 to 80 ms, which represents most of an
//! experiment.

use std::process::ExitCode;
use std::thread::ScopedJoinHandle;

use napkin_core::MILLISECOND;
use napkin_machine::profile::Profile;
use napkin_testing::{callgrind, has_valgrind};
use napkin_workload::machine::run::Run;
use napkin_workload::memcached::machine::{Rate, Setup, run as run_memcached};

const CHILD: &str = "--counted";
const POLICIES: [&str; 3] = ["base", "fullbusy", "suspend20"];
const LOADS: [f64; 2] = [200_000.0, 1_000_000.0];
/// The start and the end of a period in virtual milliseconds, and its name.
const TIMES: [(u64, u64, &str); 2] = [(5, 15, "beginning"), (40, 80, "steady")];

/// Runs one cell for so many virtual milliseconds, and returns packets and steps.
fn run(policy: &str, load: f64, window: u64) -> Result<(u64, u64), String> {
    let profile = Profile::named(napkin_workload::schema(), "epyc-7662")
        .map_err(|error| error.to_string())?;
    let policy = policy.parse().map_err(|error| format!("{policy}: {error}"))?;
    let run = Run { warm_up: 0, window: window * MILLISECOND, ..Run::new(&profile, policy) };
    let outcome = run_memcached(run, Setup::published(Rate::PerS(load)))?;
    let packets = outcome.counts.queues.iter().map(|it| it.nic.arrived + it.nic.sent).sum();
    Ok((packets, outcome.steps))
}

/// Returns the instructions, packets and steps of a process that runs a cell.
fn collected(policy: &str, load: f64, window: u64) -> Result<[f64; 3], String> {
    let arguments = [CHILD.into(), policy.into(), load.to_string(), window.to_string()];
    let (instructions, counted) = callgrind(&[], &arguments)?;
    let counts: Vec<f64> = counted.split_whitespace().filter_map(|it| it.parse().ok()).collect();
    match counts[..] {
        [packets, steps] => Ok([instructions, packets, steps]),
        _ => Err(format!("the program printed {counted:?}")),
    }
}

/// Returns the counts of each period of a cell. Its four runs are parallel, because their counts do not depend on
/// the number of CPUs.
fn differences(policy: &str, load: f64) -> Vec<Result<[f64; 3], String>> {
    std::thread::scope(|scope| {
        let run = |window| scope.spawn(move || collected(policy, load, window));
        let runs = TIMES.map(|(from, to, _)| (run(from), run(to)));
        let ended = |it: ScopedJoinHandle<'_, _>| it.join().expect("no panic");
        runs.into_iter()
            .map(|(short, long)| {
                let (short, long): (Result<[f64; 3], String>, _) = (ended(short), ended(long));
                let (short, long) = (short?, long?);
                Ok([0, 1, 2].map(|it| long[it] - short[it]))
            })
            .collect()
    })
}

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().collect();
    if let Some(at) = arguments.iter().position(|it| it == CHILD) {
        let [policy, load, window] = &arguments[at + 1..] else { return ExitCode::FAILURE };
        let (Ok(load), Ok(window)) = (load.parse(), window.parse()) else {
            return ExitCode::FAILURE;
        };
        return match run(policy, load, window) {
            Ok((packets, steps)) => {
                println!("{packets} {steps}");
                ExitCode::SUCCESS
            }
            Err(error) => {
                eprintln!("{error}");
                ExitCode::FAILURE
            }
        };
    }
    if cfg!(debug_assertions) {
        println!("skipped: instructions are counted in the optimised build, by `cargo bench`");
        return ExitCode::SUCCESS;
    }
    if !has_valgrind() {
        println!("skipped: valgrind is not installed");
        return ExitCode::SUCCESS;
    }
    println!(
        "{:<12}{:>10}{:>12}{:>12}{:>10}{:>14}",
        "policy", "qps", "time", "a packet", "a step", "steps/packet"
    );
    for (policy, load) in POLICIES.iter().flat_map(|&policy| LOADS.map(|load| (policy, load))) {
        for ((_, _, time), counted) in TIMES.iter().zip(differences(policy, load)) {
            let [instructions, packets, steps] = match counted {
                Ok(counted) => counted,
                Err(error) => {
                    eprintln!("{policy} at {load}: {error}");
                    return ExitCode::FAILURE;
                }
            };
            println!(
                "{policy:<12}{load:>10}{time:>12}{:>12.0}{:>10.0}{:>14.1}",
                instructions / packets,
                instructions / steps,
                steps / packets
            );
        }
    }
    println!("aim: 3000 a packet");
    ExitCode::SUCCESS
}
