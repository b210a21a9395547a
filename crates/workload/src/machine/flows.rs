//! Flows that are hashed to random queues, and threads without CPU affinity, as in the experiments of 2020.

use napkin_machine::{Affinity, Class, Machine, Placement, ThreadId};
use napkin_traffic::Rng;

/// The placement of the 2020 experiments: queue N interrupts CPU N; polling threads may run on any CPU of
/// `polling`.
pub(crate) fn unpinned(queues: u16, polling: Affinity) -> Placement {
    Placement {
        queue_cpus: (0..queues).collect(),
        napi_threads: vec![polling; usize::from(queues)],
        napi_class: Class::Fair,
        workers: polling,
    }
}

/// Adds flows on random queues, as an RSS hash spreads them. Distributes their sockets, of `packets` packets each,
/// over the program's threads, each with its own epoll context, and starts the threads.
pub(crate) fn distribute_flows(
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
