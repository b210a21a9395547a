//! How many instructions a simulated packet and a step take, counted by callgrind in the experiment
//! of 2024: the same number on every run and under any load, so that a change of a few is seen.
//!
//! `cargo bench -p napkin-workload --bench instructions` runs itself under valgrind, each policy with
//! a short and a long window, and prints the difference a packet; so what happens once (the
//! set-up of 4480 connections) is not counted. Packets are those that the host receives and sends.

use std::process::{Command, ExitCode};

use napkin_core::MILLISECOND;
use napkin_machine::profile::Profile;
use napkin_workload::machine::run::Run;
use napkin_workload::memcached::machine::{Rate, Setup, run as run_memcached};

const CHILD: &str = "--counted";
const POLICIES: [&str; 3] = ["base", "fullbusy", "suspend20"];
const LOADS: [f64; 2] = [200_000.0, 1_000_000.0];

/// Runs one cell for so many virtual milliseconds: packets and steps.
fn run(policy: &str, load: f64, window: u64) -> Result<(u64, u64), String> {
    let profile = Profile::named(napkin_workload::schema(), "epyc-7662")
        .map_err(|error| error.to_string())?;
    let policy = policy.parse().map_err(|error| format!("{policy}: {error}"))?;
    let run = Run { warm_up: 0, window: window * MILLISECOND, ..Run::new(&profile, policy) };
    let outcome = run_memcached(run, Setup::published(Rate::PerS(load)))?;
    let packets = outcome.counts.queues.iter().map(|it| it.nic.arrived + it.nic.sent).sum();
    Ok((packets, outcome.steps))
}

/// Instructions, packets and steps of a process that runs a cell.
fn collected(policy: &str, load: f64, window: u64) -> Result<[f64; 3], String> {
    let program = std::env::current_exe().map_err(|error| error.to_string())?;
    let output = Command::new("valgrind")
        .args(["--tool=callgrind", "--callgrind-out-file=/dev/null"])
        .arg(program)
        .args([CHILD, policy, &load.to_string(), &window.to_string()])
        .output()
        .map_err(|error| error.to_string())?;
    let said = String::from_utf8_lossy(&output.stderr);
    let number = said.lines().find_map(|line| line.split_once("Collected :"));
    let counted = String::from_utf8_lossy(&output.stdout);
    let counts: Vec<f64> = counted.split_whitespace().filter_map(|it| it.parse().ok()).collect();
    match (number.and_then(|(_, it)| it.trim().parse().ok()), &counts[..]) {
        (Some(instructions), [packets, steps]) if output.status.success() => {
            Ok([instructions, *packets, *steps])
        }
        _ => Err(format!("valgrind failed ({}):\n{said}", output.status)),
    }
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
    if Command::new("valgrind").arg("--version").output().is_err() {
        println!("skipped: valgrind is not installed");
        return ExitCode::SUCCESS;
    }
    println!(
        "{:<12}{:>10}{:>12}{:>10}{:>14}",
        "policy", "qps", "a packet", "a step", "steps/packet"
    );
    for policy in POLICIES {
        for load in LOADS {
            let short = collected(policy, load, 5);
            let long = collected(policy, load, 15);
            let (Ok(short), Ok(long)) = (&short, &long) else {
                eprintln!("{policy} at {load}: {:?}", short.err().or(long.err()));
                return ExitCode::FAILURE;
            };
            let [instructions, packets, steps] = [0, 1, 2].map(|it| long[it] - short[it]);
            println!(
                "{policy:<12}{load:>10}{:>12.0}{:>10.0}{:>14.1}",
                instructions / packets,
                instructions / steps,
                steps / packets
            );
        }
    }
    println!("aim: 3000 a packet");
    ExitCode::SUCCESS
}
