//! Differences between drivers: how many transmissions a poll reaps, and on which CPU polling goes on.

use napkin_core::{MILLISECOND, Owner};
use napkin_machine::profile::{Profile, Schema};
use napkin_machine::*;
use napkin_policy::Policy;

/// Transmits `sent` frames at the start, then sends `received` frames to the host at once.
#[derive(Debug)]
struct Burst {
    sent: u16,
    received: u16,
}

impl Client for Burst {
    fn start(&mut self, machine: &mut Machine<'_>) {
        for tag in 0..self.sent {
            let now = machine.now();
            machine.transmit(0, Packet::new(0, Kind::Data, 64, u64::from(tag), now));
        }
        machine.client_timer(MILLISECOND, 0);
    }

    fn timer(&mut self, machine: &mut Machine<'_>, _: u64) {
        for tag in 0..self.received {
            let now = machine.now();
            machine.send_to_host(Packet::new(0, Kind::Data, 64, u64::from(tag), now));
        }
    }

    fn receive(&mut self, _: &mut Machine<'_>, _: Packet) {}
}

/// One queue of virtio_net, on the first of two CPUs, without the driver's check after the unmask.
fn config() -> Config {
    let profile =
        Profile::named(Schema::host(), "emulator-7.2").unwrap_or_else(|error| panic!("{error}"));
    let mut config = Config::of(&profile);
    config.processor.cpus = 2;
    config.processor.shared_clock = false;
    config.link = Link { bits_per_ns: 1e6, latency: 0 };
    config.nic = NicConfig { late_frames_interrupt: true, gro_batch: 0, ..config.nic };
    config
}

/// Returns the queue's final counts; `thread` is the CPU of its NAPI thread, if the policy has one.
fn counts(config: Config, policy: &str, thread: u16, burst: Burst) -> QueueUse {
    let policy: Policy = policy.parse().unwrap_or_else(|error| panic!("{error}"));
    let threads = vec![Affinity::pinned(thread)];
    let placement = Placement { napi_threads: threads, ..Placement::aligned(1, 2) };
    let host = placement.host(2);
    let mut machine = Machine::new(config, policy, &placement, &host, &[], Box::new(burst), 1);
    let socket = machine.add_socket(10_000);
    machine.add_flow(0, Some(socket));
    machine.check_everything();
    machine.run(100 * MILLISECOND);
    assert_eq!(machine.broken(), None);
    machine.snapshot().queues[0]
}

#[test]
fn a_poll_reaps_no_more_than_its_budget_of_transmissions_and_asks_for_another() {
    let burst = || Burst { sent: 300, received: 1 };
    let mut config = config();
    let all = counts(config, "base", 0, burst());
    // One interrupt, one poll: the frame and 300 completions.
    let softirq = Owner::Softirq as usize;
    assert_eq!((all.napi.interrupts, all.napi.polls[softirq], all.napi.completions), (1, 1, 300));
    config.nic.tx_budget = 128;
    let some = counts(config, "base", 0, burst());
    // 128, 128 and 44: two polls that report their budget, and one without a frame.
    let napi = some.napi;
    assert_eq!((napi.interrupts, napi.completions, some.nic.delivered), (1, 300, 1));
    assert_eq!((napi.polls[softirq], napi.empty_polls[softirq]), (2, 1));
}

#[test]
fn a_thread_away_from_the_interrupt_completes_with_work_left_if_the_driver_follows_it() {
    let burst = || Burst { sent: 0, received: 200 };
    let mut config = config();
    // On the interrupt's CPU, or with a driver that ignores the affinity: 64, 64, 64 and 8 after one interrupt.
    for (follows, thread) in [(false, 0), (false, 1), (true, 0)] {
        config.nic.follows_affinity = follows;
        let stays = counts(config, "threaded", thread, burst());
        assert_eq!((stays.napi.interrupts, stays.nic.delivered), (1, 200), "{follows} {thread}");
    }
    config.nic.follows_affinity = true;
    let leaves = counts(config, "threaded", 1, burst());
    // Each poll but the last leaves frames behind, for which the card interrupts.
    assert_eq!((leaves.napi.interrupts, leaves.nic.delivered), (4, 200));
}
