//! One CPU: its pending softirqs, its poll list, its policy and its limits.
//!
//! The pending vectors and three flags are bits of one word: a context runs the softirqs (`RUNNING`), the network
//! softirq is at its poll list (`IN_NET_RX`), ksoftirqd was woken (`KSOFTIRQD`). So raising and ending are single
//! steps, and no wake-up is lost between them.

use crate::counters::{Owner, OwnerCount, SharedCount};
use crate::instance::CpuId;
use crate::list::PollList;
use crate::raised_from::RaisedFrom;
use crate::step::{Op, Task};
use crate::sync::{AtomicU32, Count, Ordering, Word32};
use crate::vector::Vector;
use crate::{MILLISECOND, Ns};
use napkin_policy::{CpuPolicy, NetSoftirq};

/// Every vector; the bits above are flags.
pub(crate) const VECTORS: u32 = (1 << 10) - 1;
/// The network vectors: what the 2018 proposal meant to defer.
pub(crate) const NET: u32 = Vector::NetTx.bit() | Vector::NetRx.bit();
/// The vectors that its posted mask, `NET_RX_SOFTIRQ | NET_TX_SOFTIRQ` = 3, names: HI and TIMER.
pub(crate) const NET_AS_POSTED: u32 = Vector::NetRx as u32 | Vector::NetTx as u32;

/// The packed [`CpuPolicy`] under which everything runs inline, also while ksoftirqd is runnable.
const ALL_INLINE: u32 = 1 << 8;

const RUNNING: u32 = 1 << 16;
const IN_NET_RX: u32 = 1 << 17;
const KSOFTIRQD: u32 = 1 << 18;

/// Whether the caller has to act after a raise.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Raised {
    /// A context is running this CPU's softirqs and will see it.
    Seen,
    Idle,
}

/// The limits of one CPU's softirqs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Limits {
    /// Frames a network softirq may take (`netdev_budget`).
    pub budget: u16,
    /// Time a network softirq may take (`netdev_budget_usecs`: two jiffies).
    pub budget_time: Ns,
    /// Time one dispatch may go on restarting (`MAX_SOFTIRQ_TIME`).
    pub dispatch_time: Ns,
    /// Passes of one dispatch (`MAX_SOFTIRQ_RESTART`).
    pub dispatch_passes: u8,
}

impl Default for Limits {
    /// The kernel's, at HZ = 1000.
    fn default() -> Self {
        Limits {
            budget: 300,
            budget_time: 2 * MILLISECOND,
            dispatch_time: 2 * MILLISECOND,
            dispatch_passes: 10,
        }
    }
}

/// The counts of one CPU at one moment.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct CpuCounts {
    /// Network softirqs run.
    pub net_rx: u64,
    /// Network softirqs that stopped at a limit (`time_squeeze`), even if nothing was left: like the kernel, the
    /// core counts it before it checks.
    pub time_squeeze: u64,
    /// Dispatches that found something to run.
    pub dispatches: u64,
    /// Times ksoftirqd was woken.
    pub ksoftirqd_wakes: u64,
}

/// The softirqs of one CPU: what is pending, who runs it, and the list of instances to poll. No two CPUs share a
/// cache line, nor a pair of lines that are prefetched together.
#[derive(Debug)]
#[repr(align(128))]
pub struct Cpu {
    pub(crate) id: CpuId,
    word: Word32,
    pub(crate) list: PollList,
    policy: AtomicU32,
    budget: AtomicU32,
    budget_time: Count,
    dispatch_time: Count,
    dispatch_passes: AtomicU32,
    net_rx: OwnerCount,
    time_squeeze: OwnerCount,
    dispatches: OwnerCount,
    ksoftirqd_wakes: SharedCount,
}

impl Cpu {
    pub(crate) fn new(id: CpuId) -> Self {
        let cpu = Cpu {
            id,
            word: Word32::new(0),
            list: PollList::new(),
            policy: AtomicU32::new(0),
            budget: AtomicU32::new(0),
            budget_time: Count::new(0),
            dispatch_time: Count::new(0),
            dispatch_passes: AtomicU32::new(0),
            net_rx: OwnerCount::default(),
            time_squeeze: OwnerCount::default(),
            dispatches: OwnerCount::default(),
            ksoftirqd_wakes: SharedCount::default(),
        };
        cpu.set_limits(Limits::default());
        cpu.set_policy(CpuPolicy::default());
        cpu
    }

    /// Changes the limits, from the next pass of a dispatch and the next round on.
    pub fn set_limits(&self, limits: Limits) {
        self.budget.store(u32::from(limits.budget), Ordering::Relaxed);
        self.budget_time.store(limits.budget_time, Ordering::Relaxed);
        self.dispatch_time.store(limits.dispatch_time, Ordering::Relaxed);
        self.dispatch_passes.store(u32::from(limits.dispatch_passes), Ordering::Relaxed);
    }

    /// The limits in force.
    #[inline]
    pub fn limits(&self) -> Limits {
        Limits {
            budget: self.budget.load(Ordering::Relaxed) as u16,
            budget_time: self.budget_time.load(Ordering::Relaxed),
            dispatch_time: self.dispatch_time.load(Ordering::Relaxed),
            dispatch_passes: self.dispatch_passes.load(Ordering::Relaxed) as u8,
        }
    }

    /// The limits of a round of the network softirq: frames, and nanoseconds.
    #[inline]
    pub(crate) fn net_rx_limits(&self) -> (i32, Ns) {
        (self.budget.load(Ordering::Relaxed) as i32, self.budget_time.load(Ordering::Relaxed))
    }

    /// Changes the policy, from the next dispatch on.
    pub fn set_policy(&self, policy: CpuPolicy) {
        let net = match policy.net_softirq {
            NetSoftirq::Inline => 0,
            NetSoftirq::Ksoftirqd => 1,
            NetSoftirq::KsoftirqdAsPosted => 2,
        };
        self.policy.store(net | u32::from(policy.inline_while_ksoftirqd) << 8, Ordering::Relaxed);
    }

    /// The policy in force.
    #[inline]
    pub fn policy(&self) -> CpuPolicy {
        let bits = self.policy.load(Ordering::Relaxed);
        CpuPolicy {
            net_softirq: match bits & 0xff {
                0 => NetSoftirq::Inline,
                1 => NetSoftirq::Ksoftirqd,
                _ => NetSoftirq::KsoftirqdAsPosted,
            },
            inline_while_ksoftirqd: bits >> 8 != 0,
        }
    }

    /// Whether everything runs inline, also while ksoftirqd is runnable.
    #[inline]
    pub(crate) fn runs_all_inline(&self) -> bool {
        self.policy.load(Ordering::Relaxed) == ALL_INLINE
    }

    /// A snapshot of the counts.
    pub fn counts(&self) -> CpuCounts {
        CpuCounts {
            net_rx: self.net_rx.get(),
            time_squeeze: self.time_squeeze.get(),
            dispatches: self.dispatches.get(),
            ksoftirqd_wakes: self.ksoftirqd_wakes.get(),
        }
    }

    /// Whether nothing is pending, listed or running, and a raised network softirq would run inline and poll.
    pub(crate) fn is_idle(&self) -> bool {
        let inline = self.policy().net_softirq == NetSoftirq::Inline;
        let budget = self.budget.load(Ordering::Relaxed) > 0;
        self.word.load(Ordering::Acquire) == 0 && self.list.is_empty() && inline && budget
    }

    /// Counts `n` skipped dispatches of one round each, in place of their runner.
    pub(crate) fn count_rounds(&self, n: u64) {
        self.dispatches.add(n);
        self.net_rx.add(n);
    }

    /// The pending vectors, as a mask.
    #[inline]
    pub fn pending(&self) -> u32 {
        self.word.load(Ordering::Acquire) & VECTORS
    }

    /// Whether ksoftirqd was woken and has not gone back to sleep.
    #[inline]
    pub fn ksoftirqd_runnable(&self) -> bool {
        self.word.load(Ordering::Acquire) & KSOFTIRQD != 0
    }

    /// Whether some context is running this CPU's softirqs.
    pub fn running(&self) -> bool {
        self.word.load(Ordering::Acquire) & RUNNING != 0
    }

    /// Marks vectors pending. While the network softirq is at its list, its own vector need not be raised: it
    /// checks the list again before it ends.
    #[inline]
    pub(crate) fn raise(&self, vectors: u32) -> Raised {
        let mut old = self.word.load(Ordering::Relaxed);
        loop {
            let mut add = vectors;
            if old & IN_NET_RX != 0 {
                add &= !Vector::NetRx.bit();
            }
            match self.word.compare_exchange(old, old | add, Ordering::AcqRel, Ordering::Relaxed) {
                Ok(_) if old & RUNNING != 0 => return Raised::Seen,
                Ok(_) => return Raised::Idle,
                Err(now) => old = now,
            }
        }
    }

    /// Marks vectors pending, and returns the step by which they get run.
    #[inline]
    pub(crate) fn raise_from(&self, vectors: u32, from: RaisedFrom) -> Option<Op> {
        match (self.raise(vectors), from) {
            (Raised::Seen, _) => None,
            (Raised::Idle, RaisedFrom::Interrupt) => Some(Op::Raise(self.id)),
            (Raised::Idle, RaisedFrom::Application) => Some(Op::RunHere(self.id)),
            (Raised::Idle, RaisedFrom::Thread) => {
                self.wake_ksoftirqd().then_some(Op::Wake(Task::Ksoftirqd(self.id)))
            }
        }
    }

    /// Becomes this CPU's runner and takes the pending vectors in `allowed`; 0 if another context runs already or
    /// none of them is pending.
    #[inline]
    pub(crate) fn begin(&self, allowed: u32) -> u32 {
        let mut old = self.word.load(Ordering::Acquire);
        loop {
            let take = old & VECTORS & allowed;
            if old & RUNNING != 0 || take == 0 {
                return 0;
            }
            let new = old & !take | RUNNING;
            match self.word.compare_exchange(old, new, Ordering::AcqRel, Ordering::Acquire) {
                Ok(_) => {
                    self.dispatches.add(1);
                    return take;
                }
                Err(now) => old = now,
            }
        }
    }

    /// Takes the vectors in `allowed` that became pending meanwhile; called by the runner.
    #[inline]
    pub(crate) fn take_pending(&self, allowed: u32) -> u32 {
        if self.word.load(Ordering::Relaxed) & allowed & VECTORS == 0 {
            return 0;
        }
        self.word.fetch_and(!(allowed & VECTORS), Ordering::AcqRel) & allowed & VECTORS
    }

    /// Stops being the runner if no vector in `allowed` is pending, and returns the other pending vectors, which
    /// are ksoftirqd's to run.
    ///
    /// # Errors
    /// The pending vectors in `allowed`; the caller stays the runner.
    #[inline]
    pub(crate) fn end(&self, allowed: u32) -> Result<u32, u32> {
        let mut old = self.word.load(Ordering::Acquire);
        loop {
            let picked = old & allowed;
            if picked != 0 {
                return Err(picked);
            }
            let new = old & !RUNNING;
            match self.word.compare_exchange(old, new, Ordering::AcqRel, Ordering::Acquire) {
                Ok(_) => return Ok(old & VECTORS),
                Err(now) => old = now,
            }
        }
    }

    /// Stops being the runner whatever is pending, and leaves it to ksoftirqd. Returns whether that has to be
    /// woken.
    #[inline]
    pub(crate) fn end_to_ksoftirqd(&self) -> bool {
        self.wake_ksoftirqd_and(RUNNING)
    }

    /// Marks ksoftirqd runnable; returns whether it has to be woken.
    #[inline]
    pub(crate) fn wake_ksoftirqd(&self) -> bool {
        self.wake_ksoftirqd_and(0)
    }

    fn wake_ksoftirqd_and(&self, clear: u32) -> bool {
        let mut old = self.word.load(Ordering::Acquire);
        loop {
            let new = old & !clear | KSOFTIRQD;
            match self.word.compare_exchange(old, new, Ordering::AcqRel, Ordering::Acquire) {
                Ok(_) => {
                    let wake = old & KSOFTIRQD == 0;
                    if wake {
                        self.ksoftirqd_wakes.add(1);
                    }
                    return wake;
                }
                Err(now) => old = now,
            }
        }
    }

    /// Clears `KSOFTIRQD` and returns `true` if nothing is pending or another runner will see it.
    #[inline]
    pub(crate) fn ksoftirqd_sleeps(&self) -> bool {
        let mut old = self.word.load(Ordering::Acquire);
        loop {
            if old & VECTORS != 0 && old & RUNNING == 0 {
                return false;
            }
            let new = old & !KSOFTIRQD;
            match self.word.compare_exchange(old, new, Ordering::AcqRel, Ordering::Acquire) {
                Ok(_) => return true,
                Err(now) => old = now,
            }
        }
    }

    /// Marks the network softirq as being at its poll list, and counts it.
    #[inline]
    pub(crate) fn enter_net_rx(&self) {
        self.word.fetch_or(IN_NET_RX, Ordering::AcqRel);
        self.net_rx.add(1);
    }

    /// Clears the mark: from now on a schedule raises the vector.
    #[inline]
    pub(crate) fn leave_net_rx(&self) {
        self.word.fetch_and(!IN_NET_RX, Ordering::AcqRel);
    }

    /// Sets the mark again, for another look at the list.
    #[inline]
    pub(crate) fn reenter_net_rx(&self) {
        self.word.fetch_or(IN_NET_RX, Ordering::AcqRel);
    }

    /// Cleans up after a runner that unwound, with `vectors` taken and not run.
    pub(crate) fn abandon(&self, vectors: u32) {
        self.word.fetch_or(Vector::NetRx.bit() | vectors, Ordering::AcqRel);
        self.word.fetch_and(!(RUNNING | IN_NET_RX), Ordering::AcqRel);
    }

    #[inline]
    pub(crate) fn squeezed(&self) {
        self.time_squeeze.add(1);
    }
}

/// The context in which a CPU's softirqs run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Context {
    /// On the way out of an interrupt.
    Interrupt {
        /// Whether another thread wants this CPU.
        competition: bool,
    },
    /// In an application that enables bottom halves (`local_bh_enable`).
    Application,
    /// In the CPU's ksoftirqd.
    Ksoftirqd,
}

impl Context {
    pub(crate) const fn owner(self) -> Owner {
        match self {
            Context::Interrupt { .. } | Context::Application => Owner::Softirq,
            Context::Ksoftirqd => Owner::Ksoftirqd,
        }
    }

    /// The origin of a schedule from this context.
    pub(crate) const fn from(self) -> RaisedFrom {
        match self {
            Context::Interrupt { .. } => RaisedFrom::Interrupt,
            Context::Application => RaisedFrom::Application,
            Context::Ksoftirqd => RaisedFrom::Thread,
        }
    }
}
