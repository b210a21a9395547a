//! The counters of one instance.
//!
//! Most counts are written only by the instance's owner. A reader sees each count as of a moment ago, and the
//! counts of one snapshot need not be of the same moment.

use crate::sync::{Count, Ordering};
use crate::{NEVER, Ns, Work};

/// The kind of context that owned a poll.
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

/// A count with one writer at a time, the owner of what is counted, so that it needs no locked instruction.
#[derive(Debug, Default)]
pub(crate) struct OwnerCount(Count);

impl OwnerCount {
    #[inline]
    pub(crate) fn add(&self, n: u64) {
        self.0.store(self.get().wrapping_add(n), Ordering::Relaxed);
    }

    #[inline]
    pub(crate) fn get(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }
}

/// A count that any context adds to.
#[derive(Debug, Default)]
pub(crate) struct SharedCount(Count);

impl SharedCount {
    #[inline]
    pub(crate) fn add(&self, n: u64) {
        self.0.fetch_add(n, Ordering::Relaxed);
    }

    #[inline]
    pub(crate) fn get(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }
}

macro_rules! counts {
    ($($(#[$doc:meta])* $name:ident: $kind:ty,)*) => {
        /// The counts of one instance at one moment, or their growth over a window.
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
        pub struct Counts {
            /// Polls that received frames, by owner.
            pub polls: [u64; OWNERS],
            /// Polls that received none, by owner, whether or not transmit completions were reaped: what
            /// Linux's trace point `napi_poll` shows as work 0.
            pub empty_polls: [u64; OWNERS],
            $($(#[$doc])* pub $name: u64,)*
            /// The shortest time between the last work of a poll and an interrupt that won the instance, in
            /// nanoseconds; [`NEVER`] if there was no such interrupt. It is not a sum, so [`since`](Counts::since)
            /// cannot limit it to a window: it covers the time since
            /// [`Instance::restart_idle_gap`](crate::Instance::restart_idle_gap), or all time.
            pub idle_gap_min: Ns,
        }

        /// The counters of one instance.
        #[derive(Debug)]
        pub(crate) struct Counters {
            polls: [OwnerCount; OWNERS],
            empty_polls: [OwnerCount; OWNERS],
            $(pub(crate) $name: $kind,)*
            idle_gap_min: Count,
        }

        impl Counters {
            pub(crate) fn new() -> Self {
                Counters {
                    polls: Default::default(),
                    empty_polls: Default::default(),
                    $($name: Default::default(),)*
                    idle_gap_min: Count::new(NEVER),
                }
            }

            pub(crate) fn snapshot(&self) -> Counts {
                Counts {
                    polls: self.polls.each_ref().map(OwnerCount::get),
                    empty_polls: self.empty_polls.each_ref().map(OwnerCount::get),
                    $($name: self.$name.get(),)*
                    idle_gap_min: self.idle_gap_min.load(Ordering::Relaxed),
                }
            }
        }

        impl Counts {
            /// Adds another instance's counts.
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
    /// Frames that polls have received.
    packets: OwnerCount,
    /// Transmit completions reaped.
    completions: OwnerCount,
    /// Interrupts, including those that found the instance owned.
    interrupts: SharedCount,
    /// Interrupts that won the instance at least its hold time after the last work. With *hold* these are all of
    /// them, unless an application busy polls without deferral, because its release does not hold.
    interrupts_after_hold: OwnerCount,
    /// Interrupts that found the instance owned and left [`MISSED`](crate::state::MISSED).
    interrupts_missed: SharedCount,
    /// Releases that found [`MISSED`](crate::state::MISSED), so that the owner polled once more.
    repolls: OwnerCount,
    /// Completions that left the interrupt masked and a timer armed (deferral, suspension).
    deferrals: OwnerCount,
    /// Completions that left the interrupt masked because every active receiver was full.
    parks: OwnerCount,
    /// Timer expiries that scheduled the instance.
    timer_polls: OwnerCount,
    /// Timer expiries that found the instance owned.
    timer_missed: SharedCount,
    /// Times the instance was handed to a new owner by a mode change.
    handovers: OwnerCount,
    /// Busy-poll sessions that claimed the instance.
    busy_claims: OwnerCount,
}

impl Counters {
    /// Counts a poll; called by the instance's owner.
    #[inline]
    pub(crate) fn poll(&self, owner: Owner, work: Work) {
        if work.rx != 0 {
            self.polls[owner as usize].add(1);
            self.packets.add(u64::from(work.rx));
        } else {
            self.empty_polls[owner as usize].add(1);
        }
        if work.tx != 0 {
            self.completions.add(u64::from(work.tx));
        }
    }

    /// Counts `n` polls that received nothing, in one step; called on behalf of the instance's owner.
    #[inline]
    pub(crate) fn empty_polls(&self, owner: Owner, n: u64) {
        self.empty_polls[owner as usize].add(n);
    }

    /// Records the idle gap that an interrupt ended; called by the new owner.
    #[inline]
    pub(crate) fn idle_gap(&self, gap: Ns) {
        if gap < self.idle_gap_min.load(Ordering::Relaxed) {
            self.idle_gap_min.store(gap, Ordering::Relaxed);
        }
    }

    /// Resets the shortest idle gap; called from any context.
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

    /// Timer expiries, whether or not the instance was owned: the runs of Linux's `napi_watchdog`.
    pub fn watchdogs(&self) -> u64 {
        self.timer_polls + self.timer_missed
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
            // A poll that only reaps completions has received nothing.
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
