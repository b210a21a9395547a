//! What happened on one instance, counted.
//!
//! Everything but the interrupts is written by whoever owns the instance, so a count is a load and
//! a store, not a locked instruction. Readers see each count as it stood a moment ago; the counts
//! of one snapshot need not be of the same moment.

use crate::sync::{Count, Ordering};
use crate::{NEVER, Ns, Work};

/// Who owned a poll.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum Owner {
    /// The softirq, inline after an interrupt or in an application's wait.
    Softirq = 0,
    /// The softirq in ksoftirqd.
    Ksoftirqd = 1,
    /// The instance's own thread.
    Thread = 2,
    /// A worker of the shared pool.
    Worker = 3,
    /// An application's busy-poll session.
    Application = 4,
}

/// The number of kinds of owners.
pub const OWNERS: usize = 5;

impl Owner {
    /// Every kind, in the order of [`Counts::polls`].
    pub const ALL: [Owner; OWNERS] =
        [Owner::Softirq, Owner::Ksoftirqd, Owner::Thread, Owner::Worker, Owner::Application];

    /// The name used in output.
    pub const fn name(self) -> &'static str {
        match self {
            Owner::Softirq => "softirq",
            Owner::Ksoftirqd => "ksoftirqd",
            Owner::Thread => "thread",
            Owner::Worker => "worker",
            Owner::Application => "application",
        }
    }
}

macro_rules! counts {
    ($($(#[$doc:meta])* $name:ident,)*) => {
        /// The counts of one instance at one moment, or their growth over a window.
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
        pub struct Counts {
            /// Polls that received frames, by owner.
            pub polls: [u64; OWNERS],
            /// Polls that received none, by owner, whether or not transmit completions were reaped: what
            /// Linux's trace point `napi_poll` shows as work 0.
            pub empty_polls: [u64; OWNERS],
            $($(#[$doc])* pub $name: u64,)*
            /// The shortest time between the last work of a poll and an interrupt that won the
            /// instance, in nanoseconds; [`NEVER`] if there was no such interrupt. It is no sum, so over a
            /// window too it is of the time since
            /// [`Instance::restart_idle_gap`](crate::Instance::restart_idle_gap), or of all time.
            pub idle_gap_min: Ns,
        }

        /// The counters of one instance.
        #[derive(Debug)]
        pub(crate) struct Counters {
            polls: [Count; OWNERS],
            empty_polls: [Count; OWNERS],
            $($name: Count,)*
            idle_gap_min: Count,
        }

        impl Counters {
            pub(crate) fn new() -> Self {
                Counters {
                    polls: core::array::from_fn(|_| Count::new(0)),
                    empty_polls: core::array::from_fn(|_| Count::new(0)),
                    $($name: Count::new(0),)*
                    idle_gap_min: Count::new(NEVER),
                }
            }

            pub(crate) fn snapshot(&self) -> Counts {
                Counts {
                    polls: core::array::from_fn(|i| self.polls[i].load(Ordering::Relaxed)),
                    empty_polls: core::array::from_fn(|i| {
                        self.empty_polls[i].load(Ordering::Relaxed)
                    }),
                    $($name: self.$name.load(Ordering::Relaxed),)*
                    idle_gap_min: self.idle_gap_min.load(Ordering::Relaxed),
                }
            }

            $(
                /// One more; from any context.
                #[inline]
                #[allow(dead_code, reason = "a count has one kind of writer, shared or owner")]
                pub(crate) fn $name(&self) {
                    self.$name.fetch_add(1, Ordering::Relaxed);
                }
            )*
        }

        impl Counts {
            /// Adds another instance's.
            pub fn add(&mut self, other: &Counts) {
                for owner in 0..OWNERS {
                    self.polls[owner] += other.polls[owner];
                    self.empty_polls[owner] += other.empty_polls[owner];
                }
                $(self.$name += other.$name;)*
                self.idle_gap_min = self.idle_gap_min.min(other.idle_gap_min);
            }

            /// The growth since `earlier`.
            #[must_use]
            pub fn since(&self, earlier: &Counts) -> Counts {
                Counts {
                    polls: core::array::from_fn(|i| self.polls[i] - earlier.polls[i]),
                    empty_polls: core::array::from_fn(|i| self.empty_polls[i] - earlier.empty_polls[i]),
                    $($name: self.$name - earlier.$name,)*
                    idle_gap_min: self.idle_gap_min,
                }
            }
        }
    };
}

counts! {
    /// Frames received.
    packets,
    /// Transmit completions reaped.
    completions,
    /// Interrupts, also those that found the instance owned.
    interrupts,
    /// Interrupts that won the instance at least its hold after the last work: with *hold*, all of
    /// them.
    interrupts_after_hold,
    /// Interrupts that found the instance owned and left [`MISSED`](crate::state::MISSED).
    interrupts_missed,
    /// Releases that found the mark, and polled once more.
    repolls,
    /// Completions that left the interrupt masked and a timer armed (deferral, suspension).
    deferrals,
    /// Completions that left the interrupt masked because every active receiver was full.
    parks,
    /// Timer expiries that scheduled the instance.
    timer_polls,
    /// Timer expiries that found the instance owned.
    timer_missed,
    /// Times the instance was handed to a new owner by a mode change.
    handovers,
    /// Busy-poll sessions that claimed the instance.
    busy_claims,
}

impl Counters {
    #[inline]
    fn own(counter: &Count, n: u64) {
        counter.store(counter.load(Ordering::Relaxed).wrapping_add(n), Ordering::Relaxed);
    }

    /// A poll by the instance's owner.
    #[inline]
    pub(crate) fn poll(&self, owner: Owner, work: Work) {
        let slot = owner as usize;
        if work.any() {
            if work.rx != 0 {
                Self::own(&self.polls[slot], 1);
                Self::own(&self.packets, u64::from(work.rx));
            } else {
                Self::own(&self.empty_polls[slot], 1);
            }
            if work.tx != 0 {
                Self::own(&self.completions, u64::from(work.tx));
            }
        } else {
            Self::own(&self.empty_polls[slot], 1);
        }
    }

    /// Polls that received nothing and that nobody made one by one, for the instance's owner.
    pub(crate) fn empty_polls(&self, owner: Owner, n: u64) {
        Self::own(&self.empty_polls[owner as usize], n);
    }

    /// A deferral, by the instance's owner.
    #[inline]
    pub(crate) fn own_deferral(&self) {
        Self::own(&self.deferrals, 1);
    }

    /// The idle time that an interrupt ended; by the new owner.
    #[inline]
    pub(crate) fn idle_gap(&self, gap: Ns) {
        if gap < self.idle_gap_min.load(Ordering::Relaxed) {
            self.idle_gap_min.store(gap, Ordering::Relaxed);
        }
    }

    /// Forgets the shortest idle time; from any context.
    pub(crate) fn restart_idle_gap(&self) {
        self.idle_gap_min.store(NEVER, Ordering::Relaxed);
    }
}

impl Counts {
    /// All polls, empty ones included.
    pub fn all_polls(&self) -> u64 {
        self.polls.iter().sum::<u64>() + self.all_empty_polls()
    }

    /// All polls that received nothing.
    pub fn all_empty_polls(&self) -> u64 {
        self.empty_polls.iter().sum()
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn all_polls_are_those_of_every_owner_with_those_that_received_nothing() {
        let counters = Counters::new();
        for (times, owner) in (1..).zip(Owner::ALL) {
            for _ in 0..times {
                counters.poll(owner, Work { rx: 3, tx: 0 });
            }
            counters.poll(owner, Work::NONE);
            // Whoever only reaps has received nothing.
            counters.poll(owner, Work { rx: 0, tx: 2 });
        }
        let counts = counters.snapshot();
        assert_eq!((counts.all_polls(), counts.all_empty_polls()), (15 + 10, 10));
        assert_eq!((counts.polls, counts.empty_polls), ([1, 2, 3, 4, 5], [2; 5]));
        assert_eq!((counts.packets, counts.completions), (45, 10));
        let names = Owner::ALL.map(Owner::name);
        assert_eq!(names, ["softirq", "ksoftirqd", "thread", "worker", "application"]);
    }
}
