//! How a turn ends, how it leaves the interrupt, and for whom it need not end.

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
    /// The instance was given back; there is no claim any more.
    Released,
    /// Still owned, and there may be more work.
    Again,
    /// Still owned, and scheduled anew, as by an interrupt: polled once more, and still in the
    /// same round of the softirq.
    Scheduled,
    /// Still owned, in polled mode without work (*hold*).
    Held,
    /// Still owned, but somebody else is to poll from now on.
    HandOver,
}

/// The interrupt line of an instance whose poll is over.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Line {
    Masked,
    Open,
    /// Open, and work was waiting when it was unmasked: it may have no interrupt.
    Waiting,
}

/// How a turn ends whose release found a mark, or work that waits. The kernel puts the instance on the list of the softirq
/// that is running. Where drivers unmask late that hardly ever happens, and a new round does.
#[inline(always)]
pub(super) fn missed<Q>(instance: &Instance<Q>) -> End {
    if instance.settings.unmasks_first() { End::Scheduled } else { End::Again }
}

/// Whether a poll completes nothing, because its owner goes on polling anyway (the kernel's
/// `IN_BUSY_POLL`). `last` is a session's poll that lets go.
#[inline(always)]
pub(super) fn polls_on(owner: Owner, last: bool, state: State) -> bool {
    match owner {
        Owner::Application => !last,
        Owner::Thread => state.mode() == Threaded::BusyPoll,
        _ => false,
    }
}

/// Whether the state's mode leaves this owner in charge. A busy-poll session may own an instance in
/// any mode but threaded busy poll.
#[inline(always)]
pub(super) fn keeps(owner: Owner, state: State) -> bool {
    let mode = state.mode();
    match owner {
        Owner::Softirq | Owner::Ksoftirqd => mode == Threaded::Disabled,
        Owner::Thread => matches!(mode, Threaded::Enabled | Threaded::BusyPoll),
        Owner::Worker => mode == Threaded::Workqueue,
        Owner::Application => mode != Threaded::BusyPoll,
    }
}
