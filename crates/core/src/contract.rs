//! Checks, in debug builds, of a world's duties that the types cannot enforce.
//!
//! Each of these mistakes would hang, or silently turn one policy into another, instead of failing. So a debug
//! build on an operating system with threads panics with an explanation. In release builds, and under loom, the
//! types are empty and their calls do nothing.

#[cfg(not(all(debug_assertions, any(unix, windows), not(loom))))]
pub(crate) use absent::{FollowCheck, PendingStep, WorldCheck};
#[cfg(all(debug_assertions, any(unix, windows), not(loom)))]
pub(crate) use checked::{FollowCheck, PendingStep, WorldCheck};

#[cfg(all(debug_assertions, any(unix, windows), not(loom)))]
mod checked {
    extern crate std;

    use core::cell::Cell;
    use core::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering::Relaxed};

    use crate::{Context, CpuId, Host, MILLISECOND, NEVER, Ns, Op, Task};

    std::thread_local! {
        /// The last step that a pass returned on this thread and that is not answered yet. [`Pass`](crate::Pass)
        /// requires the answer on the same thread.
        static PENDING: Cell<Option<Op>> = const { Cell::new(None) };
    }

    /// Calls of `follow` on all contexts. While other contexts are reported, one that is not may have got nothing.
    static FOLLOW_CALLS: AtomicU64 = AtomicU64::new(0);

    /// The limit of waits that found new events after a delivery without any call of `follow`, less those that
    /// found some without a delivery. So many are no coincidence.
    const MAX_UNREPORTED: u32 = 100;

    const SECOND: Ns = 1_000 * MILLISECOND;

    /// A pass's part: whether the step in `PENDING` is its own, until it is answered or the pass is dropped.
    #[derive(Debug, Default)]
    pub(crate) struct PendingStep(bool);

    impl PendingStep {
        pub(crate) fn returned(&mut self, op: Op) -> Op {
            if let Op::Wake(_) | Op::Raise(_) = op {
                self.0 = true;
                PENDING.set(Some(op));
            }
            op
        }

        pub(crate) fn answered(&mut self) {
            if core::mem::take(&mut self.0) {
                // On a thread that is ending the thread-local is gone, and no step is pending.
                let _ = PENDING.try_with(|pending_step| pending_step.set(None));
            }
        }
    }

    impl Drop for PendingStep {
        fn drop(&mut self) {
            self.answered();
        }
    }

    /// A host's part: whether its contexts share a thread, and the deadline that was last found overdue.
    #[derive(Debug, Default)]
    pub(crate) struct WorldCheck {
        shared_thread: AtomicBool,
        overdue: AtomicU64,
        seen_at: AtomicU64,
        times: AtomicU32,
    }

    impl WorldCheck {
        pub(crate) fn share_a_thread(&self) {
            self.shared_thread.store(true, Relaxed);
        }

        /// Checks the creation of a task's pass.
        pub(crate) fn begin_task(&self, task: Task) {
            assert!(
                self.shared_thread.load(Relaxed) || PENDING.get() != Some(Op::Wake(task)),
                "Op::Wake is another thread's business: {task:?} begins inside the step that wakes \
                 it (run at once, nested, it hangs; Host::contexts_share_a_thread if this is a \
                 simulation)"
            );
        }

        /// Checks the creation of a dispatch.
        pub(crate) fn begin_softirq(&self, cpu: CpuId, context: Context) {
            match context {
                Context::Ksoftirqd => self.begin_task(Task::Ksoftirqd(cpu)),
                Context::Interrupt { .. } => assert!(
                    self.shared_thread.load(Relaxed) || PENDING.get() != Some(Op::Raise(cpu)),
                    "Op::Raise runs after Op::Done: the softirq of {cpu:?} begins inside the pass \
                     that raised it"
                ),
                Context::Application => {}
            }
        }

        /// Checks, as a wait begins, that the world drives the timers. The thread that does may be late, or stopped
        /// for a while together with all others, but not for four waits a second and more apart.
        pub(crate) fn check_timer_is_driven<Q>(&self, host: &Host<Q>, now: Ns) {
            let earliest = host.instances().iter().map(|it| it.deadline()).min().unwrap_or(NEVER);
            if earliest.saturating_add(SECOND) > now {
                return;
            }
            if self.overdue.swap(earliest, Relaxed) != earliest {
                self.times.store(0, Relaxed);
            } else if self.seen_at.load(Relaxed).saturating_add(SECOND) > now {
                return;
            }
            self.seen_at.store(now, Relaxed);
            let times = self.times.fetch_add(1, Relaxed);
            assert!(
                times < 3,
                "nobody drives the timer: Host::next_deadline has been {} ms ago, and \
                 Host::timer was not called",
                (now - earliest) / MILLISECOND
            );
        }
    }

    /// An epoll context's part: whether `follow` is called for its deliveries.
    #[derive(Debug, Default)]
    pub(crate) struct FollowCheck {
        /// Whether `follow` was ever called.
        followed: AtomicBool,
        /// Whether a look has found nothing since events were last found, so that the next ones are new.
        empty: AtomicBool,
        follows: AtomicU64,
        packets: AtomicU64,
        unreported: AtomicU32,
        /// Whether an event that no delivery caused is pending, or among those that the next look finds.
        other_event: AtomicBool,
    }

    impl FollowCheck {
        pub(crate) fn followed(&self) {
            self.followed.store(true, Relaxed);
            FOLLOW_CALLS.fetch_add(1, Relaxed);
        }

        /// Records an event that no delivery caused.
        pub(crate) fn no_delivery(&self) {
            self.other_event.store(true, Relaxed);
        }

        /// Records a look that found nothing.
        pub(crate) fn empty(&self) {
            self.empty.store(true, Relaxed);
        }

        /// Checks the events found by a wait of a context that busy polls and follows no instance.
        pub(crate) fn found<Q>(&self, host: &Host<Q>) {
            let other_event = self.other_event.swap(false, Relaxed);
            if !self.empty.swap(false, Relaxed) {
                // These events are left over; frames that came meanwhile were for others.
                return;
            }
            let packets = host.instances().iter().map(|it| it.counts().packets).sum();
            let delivered = self.packets.swap(packets, Relaxed) < packets;
            let follows = FOLLOW_CALLS.load(Relaxed);
            let silent = self.follows.swap(follows, Relaxed) == follows;
            if other_event {
                // Such an event proves nothing either way.
                return;
            }
            let unreported = match (self.followed.load(Relaxed) && silent, delivered) {
                (false, _) => 0,
                (true, true) => self.unreported.load(Relaxed) + 1,
                // No frame was delivered.
                (true, false) => self.unreported.load(Relaxed).saturating_sub(1),
            };
            self.unreported.store(unreported, Relaxed);
            assert!(
                unreported < MAX_UNREPORTED,
                "EpollContext::follow is called at every delivery: {unreported} waits have found what \
                 was delivered since the last call (called once, `suspend20` silently becomes a \
                 timer policy)"
            );
        }
    }
}

#[cfg(not(all(debug_assertions, any(unix, windows), not(loom))))]
mod absent {
    use crate::{Context, CpuId, Host, Ns, Op, Task};

    #[derive(Debug, Default)]
    pub(crate) struct PendingStep;

    impl PendingStep {
        #[inline(always)]
        pub(crate) fn returned(&mut self, op: Op) -> Op {
            op
        }

        #[inline(always)]
        pub(crate) fn answered(&mut self) {}
    }

    #[derive(Debug, Default)]
    pub(crate) struct WorldCheck;

    impl WorldCheck {
        #[inline(always)]
        pub(crate) fn share_a_thread(&self) {}

        #[inline(always)]
        pub(crate) fn begin_task(&self, _: Task) {}

        #[inline(always)]
        pub(crate) fn begin_softirq(&self, _: CpuId, _: Context) {}

        #[inline(always)]
        pub(crate) fn check_timer_is_driven<Q>(&self, _: &Host<Q>, _: Ns) {}
    }

    #[derive(Debug, Default)]
    pub(crate) struct FollowCheck;

    impl FollowCheck {
        #[inline(always)]
        pub(crate) fn followed(&self) {}

        #[inline(always)]
        pub(crate) fn no_delivery(&self) {}

        #[inline(always)]
        pub(crate) fn empty(&self) {}

        #[inline(always)]
        pub(crate) fn found<Q>(&self, _: &Host<Q>) {}
    }
}
