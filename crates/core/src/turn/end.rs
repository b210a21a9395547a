//! The ends of a turn, the state of its interrupt line, and the rules by which an owner keeps polling.

use crate::counters::Owner;
use crate::instance::Instance;
use crate::state::State;
use crate::step::Op;
use napkin_policy::Threaded;

/// The next step of a turn, or its end.
#[derive(Debug)]
pub(crate) enum Next {
    Op(Op),
    End(End),
}

/// How a turn ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum End {
    /// The instance was released; the claim is gone.
    Released,
    /// Still owned, and there may be more work.
    Again,
    /// Still owned and scheduled anew, as by an interrupt: to be polled once more in the same round of the softirq.
    Scheduled,
    /// Still owned, without work, in *hold*.
    Held,
    /// Still owned, but another owner is to poll from now on.
    HandOver,
}

/// The interrupt line of an instance whose poll is over.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Line {
    Masked,
    Open,
    /// Open, and work was waiting at the unmasking: no interrupt may come for it.
    Waiting,
}

/// The end of a turn whose release found `MISSED`, or whose unmasking found work. The kernel adds the instance to
/// the list of the running softirq. With drivers that unmask late this is rare, and the instance waits for the next
/// round instead.
#[inline(always)]
pub(super) fn missed<Q>(instance: &Instance<Q>) -> End {
    if instance.settings.unmasks_first() { End::Scheduled } else { End::Again }
}

/// Whether the owner polls on, so that its poll does not complete (the kernel's `IN_BUSY_POLL`). `last` marks a
/// session's last poll.
#[inline(always)]
pub(super) fn keeps_polling(owner: Owner, last: bool, state: State) -> bool {
    match owner {
        Owner::Application => !last,
        Owner::Thread => state.mode() == Threaded::BusyPoll,
        _ => false,
    }
}

/// Whether the mode lets this owner keep the instance. A busy-poll session may own an instance in any mode but
/// threaded busy poll.
#[inline(always)]
pub(super) fn may_keep(owner: Owner, state: State) -> bool {
    let mode = state.mode();
    match owner {
        Owner::Softirq | Owner::Ksoftirqd => mode == Threaded::Disabled,
        Owner::Thread => matches!(mode, Threaded::Enabled | Threaded::BusyPoll),
        Owner::Worker => mode == Threaded::Workqueue,
        Owner::Application => mode != Threaded::BusyPoll,
    }
}
