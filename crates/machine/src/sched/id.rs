//! The identity of a thread: its id, role, affinity, class and state.

/// The index of a thread in its machine.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ThreadId(pub u32);

/// The range of CPUs on which a thread may run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Affinity {
    /// The first CPU of the range.
    pub first: u16,
    /// The last CPU of the range, inclusive.
    pub last: u16,
}

impl Affinity {
    /// Returns the affinity to a single CPU.
    pub const fn pinned(cpu: u16) -> Self {
        Affinity { first: cpu, last: cpu }
    }

    pub(super) fn allows(self, cpu: u16) -> bool {
        (self.first..=self.last).contains(&cpu)
    }

    pub(crate) fn is_single(self) -> bool {
        self.first == self.last
    }
}

/// The scheduling class of a thread.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Class {
    /// `SCHED_FIFO` at a priority.
    Fifo(u8),
    /// `SCHED_OTHER` at nice 0, by the profile's scheduler ([`Fair`](crate::Fair)).
    Fair,
}

/// The role of a thread.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Role {
    /// ksoftirqd of this CPU.
    Ksoftirqd(u16),
    /// The NAPI thread of the instance with this queue.
    Napi(u16),
    /// A worker of the workqueue pool.
    Worker,
    /// A thread of an application, whose [`Program`](crate::Program) it runs.
    Application,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum State {
    Sleeping,
    Queued,
    Running,
    Ended,
}
