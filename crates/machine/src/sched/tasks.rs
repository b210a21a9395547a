//! The core's tasks as threads: the kernel's own are made here, and found again.

use napkin_core::Task;

use crate::machine::{Machine, Placement};
use crate::sched::id::{Affinity, Class, Role, State, ThreadId};
use crate::sched::thread::Thread;

impl Machine<'_> {
    /// Makes them all, asleep.
    pub(crate) fn add_kernel_threads(&mut self, placement: &Placement, cpus: u16) {
        for cpu in 0..cpus {
            let name = format!("ksoftirqd/{cpu}");
            let role = Role::Ksoftirqd(cpu);
            let id = self.kernel_thread(name, role, Class::Fair, Affinity::pinned(cpu));
            self.kernel_threads.ksoftirqds.push(id);
        }
        let everywhere = Affinity { first: 0, last: cpus - 1 };
        for queue in 0..placement.queue_cpus.len() {
            let affinity = placement.napi_threads.get(queue).copied().unwrap_or(everywhere);
            let role = Role::Napi(queue as u16);
            let name = format!("napi/{queue}");
            let id = self.kernel_thread(name, role, placement.napi_class, affinity);
            self.kernel_threads.napi.push(id);
        }
        for worker in 0..cpus {
            let mut affinity = placement.workers;
            affinity.last = affinity.last.min(cpus - 1);
            let name = format!("kworker/u:{worker}");
            let id = self.kernel_thread(name, Role::Worker, Class::Fair, affinity);
            self.kernel_threads.workers.push(id);
        }
    }

    fn kernel_thread(
        &mut self,
        name: String,
        role: Role,
        class: Class,
        affinity: Affinity,
    ) -> ThreadId {
        let mut thread = Thread::new(name, role, class, affinity);
        thread.pass = Thread::loops(role, self.host);
        self.threads.push(thread);
        ThreadId(self.threads.len() as u32 - 1)
    }

    /// The thread that a task of the core's is.
    pub(crate) fn thread_of(&self, near: usize, task: Task) -> Option<ThreadId> {
        match task {
            Task::Napi(id) => self.kernel_threads.napi.get(usize::from(id.0)).copied(),
            Task::Ksoftirqd(cpu) => Some(self.kernel_threads.ksoftirqd(usize::from(cpu.0))),
            Task::Worker => self.idle_worker(near),
        }
    }

    /// A worker that sleeps, best one that last ran here; without one the item waits for the next
    /// that goes round.
    fn idle_worker(&self, by: usize) -> Option<ThreadId> {
        let asleep = |id: &&ThreadId| {
            let thread = &self.threads[id.0 as usize];
            thread.state == State::Sleeping && !thread.woken
        };
        let here = |id: &&ThreadId| usize::from(self.threads[id.0 as usize].cpu) == by;
        let workers = &self.kernel_threads.workers;
        workers.iter().filter(asleep).find(here).or_else(|| workers.iter().find(asleep)).copied()
    }

    /// The thread of a CPU's ksoftirqd.
    pub fn ksoftirqd(&self, cpu: u16) -> ThreadId {
        self.kernel_threads.ksoftirqd(usize::from(cpu))
    }

    /// An instance's own thread.
    pub fn napi_thread(&self, queue: u16) -> Option<ThreadId> {
        self.kernel_threads.napi.get(usize::from(queue)).copied()
    }
}
