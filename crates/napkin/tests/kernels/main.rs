//! napkin on Debian's kernels, from 6.1 to 7.3 and PREEMPT_RT, with cards that interrupt: virtio with
//! several queues, igb, e1000e, and a veth. Each runs in a virtual machine of its own.
//!
//! It needs root (for taps, in a temporary network namespace), a Debian mirror, some 600 MB in `~/.cache/napkin-vm`,
//! and minutes. So it runs only if `NAPKIN_KERNELS` names the kernels: `7.2`, a list as in `6.1,7.3-rt`, or `all`.
//! `NAPKIN_CASE=run,top` selects cases, `NAPKIN_HISTORIES=500` sets the number of random histories, `NAPKIN_SEED` the
//! first seed. One kernel is also booted from a disk, under systemd, and rebooted (`reboot`), and with cards that
//! napkin serves by vhost-user (`vhost`).

mod cases;
mod disk;
mod guest;
mod history;
mod kept;
mod programs;
mod reboot;
mod vhost;
mod vm;
mod xdp;

use std::num::NonZero;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::thread;
use std::time::Instant;

use napkin_os::rights::Right;
use napkin_testing::{is_ignored, needs, needs_program, test};

use cases::{CASES, Outcome};
use guest::{CARDS, Guest};
use history::Seeds;

/// Skips the test unless the environment names this kernel.
fn wanted(version: &str) {
    let named = std::env::var("NAPKIN_KERNELS").unwrap_or_default();
    let named = named == "all" || named.split(',').any(|it| it == version);
    needs(named, format_args!("NAPKIN_KERNELS={version} (or all): it boots this kernel"));
    for right in [Right::SysAdmin, Right::NetAdmin] {
        needs(right.held(), right);
    }
    for program in ["apt-get", "dpkg-deb", "ip", "python3", "ethtool"] {
        needs_program(program);
    }
}

/// Whether the environment selects this case.
fn case_wanted(name: &str) -> bool {
    std::env::var("NAPKIN_CASE").map_or(true, |only| only.split(',').any(|it| it == name))
}

/// The cards that each of two parallel machines tests, as indices into [`CARDS`]: an emulator uses little more than
/// one CPU. Both halves take about the same time.
const HALVES: [&[usize]; 2] = [&[0, 3], &[1, 2]];

/// Runs every case on every card, then random histories.
fn kernel(version: &str) {
    wanted(version);
    let begun = Instant::now();
    let parts = match thread::available_parallelism().map_or(1, NonZero::get) {
        1 => &[&[0, 1, 2, 3][..]][..],
        _ => &HALVES,
    };
    let seeds = &Seeds::asked();
    let ends: Vec<thread::Result<()>> = thread::scope(|scope| {
        let machines: Vec<_> =
            parts.iter().map(|cards| scope.spawn(move || machine(version, cards, seeds))).collect();
        machines.into_iter().map(|it| it.join()).collect()
    });
    println!("{version}: {:.0?}", begun.elapsed());
    // A failure takes precedence over a machine that could not be started.
    let why = ends.into_iter().filter_map(Result::err).min_by_key(|why| is_ignored(&**why));
    if let Some(why) = why {
        resume_unwind(why);
    }
}

/// Runs the cases, and, if none failed, histories, on one machine. Panics while the machine exists, so that its
/// console is kept.
fn machine(version: &str, cards: &[usize], seeds: &Seeds) {
    let begun = Instant::now();
    let mut guest = Guest::boot(version);
    println!("{version}: {} is up after {:.0?}", guest.vm.release, begun.elapsed());
    let mut failures = Vec::new();
    'cards: for (dev, driver) in cards.iter().map(|place| CARDS[*place]) {
        for (name, case) in CASES {
            if !case_wanted(name) {
                continue;
            }
            let boot = || Guest::boot(version);
            let outcome = attempt(&mut guest, version, boot, |guest| case(guest, dev));
            let text = match &outcome {
                Ok(text) => text,
                Err(_) => "FAILED",
            };
            println!("{version} | {driver} | {name} | {text}");
            if let Err(what) = outcome {
                println!("  {what}");
                failures.push(format!("{driver} {name}"));
                if guest.vm.hung {
                    println!("{version}: it is gone, and with it what was to come");
                    break 'cards;
                }
                // Clean up, so that the next case does not fail for this one.
                guest.napkin("restore --force --forget");
            }
        }
    }
    assert!(failures.is_empty(), "failed: {failures:?}");
    history::many(&mut guest, version, seeds);
}

/// Runs a case, and again on a new machine if the guest hung, which emulated ones do, but not three times at the same
/// place. If no new machine starts the case has failed: ignoring it would lose the failures before it.
fn attempt(
    guest: &mut Guest,
    version: &str,
    boot: impl Fn() -> Guest,
    mut case: impl FnMut(&mut Guest) -> Outcome,
) -> Outcome {
    for _ in 0..2 {
        let outcome = catch_panic(|| case(guest));
        if !guest.vm.hung {
            return outcome;
        }
        println!("{version}: once more, in a new machine: {}", outcome.unwrap_or_else(|what| what));
        match catch_unwind(AssertUnwindSafe(&boot)) {
            Ok(another) => *guest = another,
            Err(_) => return Err(format!("{version}: no new machine after a hang")),
        }
    }
    catch_panic(|| case(guest))
}

/// Turns a panic of a case into a failure.
fn catch_panic(case: impl FnOnce() -> Outcome) -> Outcome {
    catch_unwind(AssertUnwindSafe(case)).unwrap_or_else(|panic| {
        let text = panic.downcast_ref::<String>().map(String::as_str);
        Err(text.or(panic.downcast_ref::<&str>().copied()).unwrap_or("a panic").to_owned())
    })
}

macro_rules! kernels {
    ($($name:ident $version:literal)*) => {
        $(
            #[test]
            fn $name() {
                kernel($version);
            }
        )*
    };
}

kernels! {
    debian_6_1 "6.1"
    debian_6_12 "6.12"
    debian_6_18 "6.18"
    debian_7_2 "7.2"
    debian_7_3 "7.3"
    debian_7_3_rt "7.3-rt"
}

napkin_testing::main!();
