//! The time to wake a CPU, which is accounted as idle.

use napkin_core::{MICROSECOND, MILLISECOND, Ns};
use napkin_machine::profile::{Profile, Schema};
use napkin_machine::*;
use napkin_policy::Policy;

/// Sleeps ten times until the next full millisecond, then exits.
#[derive(Debug)]
struct Sleeper(u64);

impl Program for Sleeper {
    fn resume(&mut self, _: &mut Machine<'_>, _: ThreadId) -> Act {
        self.0 += 1;
        if self.0 > 10 { Act::Exit } else { Act::Sleep(self.0 * MILLISECOND) }
    }
}

/// A client that sends nothing.
#[derive(Debug)]
struct SilentClient;

impl Client for SilentClient {
    fn start(&mut self, _: &mut Machine<'_>) {}

    fn timer(&mut self, _: &mut Machine<'_>, _: u64) {}

    fn receive(&mut self, _: &mut Machine<'_>, _: Packet) {}
}

/// Returns the use of CPU 0 in 20 ms, with the given latency of leaving idleness.
fn used(exit: Ns) -> CpuUse {
    let profile =
        Profile::named(Schema::host(), "emulator-7.2").unwrap_or_else(|error| panic!("{error}"));
    let mut config = Config::of(&profile);
    config.processor.shared_clock = false;
    config.processor.idle_exit = exit;
    config.processor.idle_exit_deep = exit;
    let placement = Placement::aligned(1, config.processor.cpus);
    let host = placement.host(config.processor.cpus);
    let mut machine =
        Machine::new(config, Policy::BASE, &placement, &host, &[], Box::new(SilentClient), 1);
    let thread =
        machine.add_thread("sleeper", Affinity::pinned(0), Class::Fair, Box::new(Sleeper(0)));
    machine.wake_thread(thread);
    machine.run(20 * MILLISECOND);
    machine.snapshot().cpus[0]
}

#[test]
fn a_slow_exit_from_idleness_costs_no_cpu() {
    let (fast, slow) = (used(0), used(50 * MICROSECOND));
    assert!(fast.interrupts >= 10, "it was woken: {}", fast.interrupts);
    assert_eq!(fast.interrupts, slow.interrupts);
    assert_eq!(fast.used, slow.used);
}
