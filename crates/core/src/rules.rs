//! The rules that differ from one kernel to the next and are not part of a policy.
//!
//! The core's defaults are what it holds to be right, and what Linux does as of 7.2, except for the rules named
//! here. A world that models a given kernel sets in what that kernel differs
//! ([`Host::set_rules`](crate::Host::set_rules)). `docs/races.md` lists them all.

use crate::sync::{Count, Ordering};

/// Rules of a kernel that differ from the core's own; all off by default.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct KernelRules {
    /// Whether a busy-poll session that prefers busy polling polls once more before it leaves the ring to its
    /// timer, as Linux did before 7599c13dbe7a (May 2026; in 6.18 stable since September 2026).
    pub session_polls_once_more: bool,
    /// Whether a wait that finds events prolongs its suspension by the whole `irq_suspend_timeout` even if the
    /// instance was not polled since the last time, as Linux does (6.13 to 7.3 at least): a ready list that never
    /// runs empty then starves the queue (race R18).
    pub prolongs_without_poll: bool,
}

/// The rules of one host.
#[derive(Debug)]
pub(crate) struct Rules(Count);

const POLLS_ONCE_MORE: u64 = 1;
const PROLONGS_WITHOUT_POLL: u64 = 2;

impl Rules {
    pub(crate) fn new() -> Self {
        Rules(Count::new(0))
    }

    pub(crate) fn set(&self, rules: KernelRules) {
        let more = if rules.session_polls_once_more { POLLS_ONCE_MORE } else { 0 };
        let without = if rules.prolongs_without_poll { PROLONGS_WITHOUT_POLL } else { 0 };
        self.0.store(more | without, Ordering::Relaxed);
    }

    #[inline]
    pub(crate) fn load(&self) -> KernelRules {
        let bits = self.0.load(Ordering::Relaxed);
        KernelRules {
            session_polls_once_more: bits & POLLS_ONCE_MORE != 0,
            prolongs_without_poll: bits & PROLONGS_WITHOUT_POLL != 0,
        }
    }
}
