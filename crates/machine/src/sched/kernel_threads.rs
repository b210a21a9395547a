//! The kernel's own threads: ksoftirqd of each CPU, a NAPI thread of each instance, and the workers of the pool. Maps
//! the core's tasks to threads.

use napkin_core::{Host, Id, Task};

use crate::host::execution::Execution;
use crate::machine::Placement;
use crate::sched::id::{Affinity, Class, Role, State, ThreadId};
use crate::sched::thread::Thread;
use crate::sched::threads::Threads;

/// The ids of the kernel's own threads.
#[derive(Debug, Default)]
pub(crate) struct KernelThreads {
    ksoftirqds: Vec<ThreadId>,
    napi: Vec<ThreadId>,
    workers: Vec<ThreadId>,
}

impl KernelThreads {
    /// Creates all of them, asleep, after the threads that exist already.
    pub(crate) fn new<'a>(
        placement: &Placement,
        cpus: u16,
        host: &'a Host<()>,
        threads: &mut Threads<'a>,
    ) -> Self {
        let mut add = |name: String, role, class, affinity| {
            let execution = Execution::of_kernel(role, host);
            threads.add(Thread::new(name, role, class, affinity, execution))
        };
        let everywhere = Affinity { first: 0, last: cpus - 1 };
        let mut workers = placement.workers;
        workers.last = workers.last.min(cpus - 1);
        let ksoftirqd = |cpu| {
            let affinity = Affinity::pinned(cpu);
            add(format!("ksoftirqd/{cpu}"), Role::Ksoftirqd(cpu), Class::Fair, affinity)
        };
        let ksoftirqds = (0..cpus).map(ksoftirqd).collect();
        let napi = |queue: u16| {
            let affinity = placement.napi_threads.get(usize::from(queue)).copied();
            let (role, class) = (Role::Napi(queue), placement.napi_class);
            add(format!("napi/{queue}"), role, class, affinity.unwrap_or(everywhere))
        };
        let napi = (0..placement.queue_cpus.len() as u16).map(napi).collect();
        let worker =
            |worker| add(format!("kworker/u:{worker}"), Role::Worker, Class::Fair, workers);
        let workers = (0..cpus).map(worker).collect();
        KernelThreads { ksoftirqds, napi, workers }
    }

    /// Returns the thread of a CPU's ksoftirqd.
    pub(crate) fn ksoftirqd(&self, cpu: usize) -> ThreadId {
        self.ksoftirqds[cpu]
    }

    /// Returns the NAPI thread of an instance.
    pub(super) fn napi(&self, id: Id) -> Option<ThreadId> {
        self.napi.get(usize::from(id.0)).copied()
    }

    /// Returns the thread for a task of the core's; for a worker best one that last ran on CPU `near`.
    pub(crate) fn of(&self, task: Task, near: usize, threads: &Threads<'_>) -> Option<ThreadId> {
        match task {
            Task::Napi(id) => self.napi(id),
            Task::Ksoftirqd(cpu) => Some(self.ksoftirqd(usize::from(cpu.0))),
            Task::Worker => self.idle_worker(near, threads),
        }
    }

    /// Returns a sleeping worker, best one that last ran on CPU `by`. Without one the item waits until a worker is
    /// done with its present one.
    fn idle_worker(&self, by: usize, threads: &Threads<'_>) -> Option<ThreadId> {
        let asleep = |id: &&ThreadId| {
            let thread = &threads[**id];
            thread.state == State::Sleeping && !thread.woken
        };
        let on_cpu = |id: &&ThreadId| usize::from(threads[**id].cpu) == by;
        let mut workers = self.workers.iter().filter(asleep);
        workers.clone().find(on_cpu).or_else(|| workers.next()).copied()
    }
}
