//! A machine's memory does not grow with the number of events handled.

use napkin_core::{EpollContext, MILLISECOND};
use napkin_machine::profile::{Profile, Schema};
use napkin_machine::*;
use napkin_policy::Policy;

/// Sends frames on two queues to one socket, in turn.
#[derive(Debug)]
struct InTurn {
    left: u64,
}

impl Client for InTurn {
    fn start(&mut self, machine: &mut Machine<'_>) {
        machine.client_timer(MILLISECOND, 0);
    }

    fn timer(&mut self, machine: &mut Machine<'_>, token: u64) {
        let now = machine.now();
        machine.send_to_host(Packet::new(token as u32, Kind::Data, 64, 0, now));
        self.left -= 1;
        if self.left > 0 {
            machine.client_timer(now + MILLISECOND / 10, 1 - token);
        }
    }

    fn receive(&mut self, _: &mut Machine<'_>, _: Packet) {}
}

/// Returns the machine's [`Machine::kept`] after half a second and after a whole one.
fn kept(shared_clock: bool) -> (usize, usize) {
    let profile =
        Profile::named(Schema::host(), "emulator-7.2").unwrap_or_else(|error| panic!("{error}"));
    let mut config = Config::of(&profile);
    config.nic.queues = 2;
    config.processor.shared_clock = shared_clock;
    let policy: Policy = "feedback".parse().expect("a preset");
    let placement = Placement::aligned(2, config.processor.cpus);
    let host = placement.host(config.processor.cpus);
    let contexts = [EpollContext::new(policy.epoll, 0)];
    let client = Box::new(InTurn { left: 10_000 });
    let mut machine = Machine::new(config, policy, &placement, &host, &contexts, client, 1);
    let socket = machine.add_socket(100);
    machine.add_flow(0, Some(socket));
    machine.add_flow(1, Some(socket));
    let sink = Box::new(UdpSink::new(0, false));
    let app = machine.add_thread("sink", Affinity::pinned(0), Class::Fair, sink);
    machine.watch(app, 0, socket);
    machine.wake_thread(app);
    machine.run(500 * MILLISECOND);
    let then = machine.items_kept();
    machine.run(1000 * MILLISECOND);
    assert_eq!(machine.latency().count(), 9_990, "every frame so far was read");
    (then, machine.items_kept())
}

#[test]
fn a_socket_that_two_queues_feed_in_turn_is_remembered_once_by_each() {
    let (then, now) = kept(false);
    assert!(now <= then + 16, "{then} things kept, then {now}");
}

#[test]
fn a_cpu_that_waits_for_a_shared_clock_leaves_no_events_behind() {
    let (then, now) = kept(true);
    assert!(now <= then + 16, "{then} things kept, then {now}");
}
