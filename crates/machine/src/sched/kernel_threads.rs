//! The kernel's own threads: ksoftirqd of each CPU, one for each instance, and the pool's workers.

use crate::sched::id::ThreadId;

/// Which threads they are.
#[derive(Debug, Default)]
pub(crate) struct KernelThreads {
    pub(super) ksoftirqds: Vec<ThreadId>,
    pub(super) napi: Vec<ThreadId>,
    pub(super) workers: Vec<ThreadId>,
}

impl KernelThreads {
    /// The one of a CPU's ksoftirqd.
    pub(crate) fn ksoftirqd(&self, cpu: usize) -> ThreadId {
        self.ksoftirqds[cpu]
    }
}
