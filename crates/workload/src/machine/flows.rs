//! Flows that hash to queues as they happen to, and threads that nobody pins: how the experiments of
//! 2020 were set up.

use napkin_machine::{Affinity, Class, Machine, Placement, ThreadId};
use napkin_traffic::Rng;

/// Where queues and threads are in the 2020 experiments: an interrupt a CPU, polling threads anywhere
/// among `polling`.
pub(crate) fn unpinned(queues: u16, polling: Affinity) -> Placement {
    Placement {
        queue_cpus: (0..queues).collect(),
        napi_threads: vec![polling; usize::from(queues)],
        napi_class: Class::Fair,
        workers: polling,
    }
}

/// Adds flows, on queues as they happen to hash, deals their sockets of so many packets out to the
/// program's threads, each with an epoll context of its own number, and lets these begin.
pub(crate) fn deal_out(
    machine: &mut Machine<'_>,
    threads: &[ThreadId],
    (flows, packets): (u32, u32),
    queues: u16,
    rng: &mut Rng,
) {
    for flow in 0..flows {
        let socket = machine.add_socket(packets);
        machine.add_flow(rng.below(u64::from(queues)) as u16, Some(socket));
        let thread = flow % threads.len() as u32;
        machine.watch(threads[thread as usize], thread, socket);
    }
    for &thread in threads {
        machine.wake_thread(thread);
    }
}
