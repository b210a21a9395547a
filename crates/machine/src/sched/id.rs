//! Which thread, who it is, where it may run, and how it competes.

/// A thread's place in its machine.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ThreadId(pub u32);

/// Where a thread may run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Affinity {
    /// The first CPU on which it may run.
    pub first: u16,
    /// The last one, itself allowed.
    pub last: u16,
}

impl Affinity {
    /// On that CPU and on no other.
    pub const fn pinned(cpu: u16) -> Self {
        Affinity { first: cpu, last: cpu }
    }

    pub(super) fn allows(self, cpu: u16) -> bool {
        (self.first..=self.last).contains(&cpu)
    }

    pub(crate) fn one(self) -> bool {
        self.first == self.last
    }
}

/// How a thread competes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Class {
    /// `SCHED_FIFO` at a priority.
    Fifo(u8),
    /// `SCHED_OTHER` at nice 0, by the profile's scheduler ([`Fair`](crate::Fair)).
    Fair,
}

/// Who a thread is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Role {
    /// ksoftirqd of a CPU.
    Ksoftirqd(u16),
    /// An instance's own thread.
    Napi(u16),
    /// A worker of the shared pool.
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
