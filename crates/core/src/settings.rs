//! What can be set on an instance, while traffic flows.
//!
//! Each value is an atomic of its own: an owner that reads half of a change makes one decision with
//! the old half, and the next with the new one; no combination of old and new can strand a queue,
//! because an owner either arms a timer or unmasks, whatever it reads.

use core::fmt;

use crate::Ns;
use crate::order::Order;
use crate::policy::{InstancePolicy, Threaded};
use crate::sync::{AtomicBool, AtomicU32, AtomicU64, Ordering};

/// Frames a poll may take outside busy polling (`NAPI_POLL_WEIGHT`).
pub const WEIGHT: u16 = 64;

/// The largest value of `defer_hard_irqs` (`S32_MAX`).
pub const DEFER_HARD_IRQS_MAX: u32 = i32::MAX as u32;

/// The longest timeout that can be set: about 11 days, far below where sums would overflow.
pub const TIMEOUT_MAX: Ns = 1_000_000 * 1_000_000_000;

/// A value that the kernel would refuse, too.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SettingError {
    /// `defer-hard-irqs` above `S32_MAX`.
    DeferHardIrqs(u32),
    /// A timeout (named) above [`TIMEOUT_MAX`].
    Timeout(&'static str, Ns),
    /// A weight of 0.
    Weight,
}

impl fmt::Display for SettingError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            SettingError::DeferHardIrqs(n) => {
                write!(f, "defer-hard-irqs {n} is out of range: give 0 to {DEFER_HARD_IRQS_MAX}")
            }
            SettingError::Timeout(name, ns) => {
                write!(f, "{name} {ns} ns is out of range: give 0 to {TIMEOUT_MAX} ns")
            }
            SettingError::Weight => {
                write!(f, "weight 0 would never receive anything: give 1 to 65535")
            }
        }
    }
}

impl core::error::Error for SettingError {}

/// Refuses what the kernel would refuse.
///
/// # Errors
/// The first value that is out of its limits.
pub fn check(policy: &InstancePolicy) -> Result<(), SettingError> {
    if policy.defer_hard_irqs > DEFER_HARD_IRQS_MAX {
        return Err(SettingError::DeferHardIrqs(policy.defer_hard_irqs));
    }
    for (name, value) in [
        ("gro-flush-timeout", policy.gro_flush_timeout),
        ("irq-suspend-timeout", policy.irq_suspend_timeout),
        ("hold", policy.hold),
        ("hold-tick", policy.hold_tick),
    ] {
        if value > TIMEOUT_MAX {
            return Err(SettingError::Timeout(name, value));
        }
    }
    Ok(())
}

/// The settings of one instance, shared between its owner and whoever changes them.
#[derive(Debug)]
pub(crate) struct Settings {
    threaded: AtomicU32,
    defer_hard_irqs: AtomicU32,
    gro_flush_timeout: AtomicU64,
    irq_suspend_timeout: AtomicU64,
    hold: AtomicU64,
    hold_tick: AtomicU64,
    feedback: AtomicBool,
    weight: AtomicU32,
    unmask_first: AtomicBool,
}

impl Settings {
    pub(crate) fn new() -> Self {
        Settings {
            threaded: AtomicU32::new(0),
            defer_hard_irqs: AtomicU32::new(0),
            gro_flush_timeout: AtomicU64::new(0),
            irq_suspend_timeout: AtomicU64::new(0),
            hold: AtomicU64::new(0),
            hold_tick: AtomicU64::new(0),
            feedback: AtomicBool::new(false),
            weight: AtomicU32::new(u32::from(WEIGHT)),
            unmask_first: AtomicBool::new(false),
        }
    }

    /// Stores everything; the caller has checked it.
    pub(crate) fn store(&self, policy: &InstancePolicy) {
        self.threaded.store(policy.threaded as u32, Ordering::Relaxed);
        self.defer_hard_irqs.store(policy.defer_hard_irqs, Ordering::Relaxed);
        self.gro_flush_timeout.store(policy.gro_flush_timeout, Ordering::Relaxed);
        self.irq_suspend_timeout.store(policy.irq_suspend_timeout, Ordering::Relaxed);
        self.hold.store(policy.hold, Ordering::Relaxed);
        self.hold_tick.store(policy.hold_tick, Ordering::Relaxed);
        self.feedback.store(policy.feedback, Ordering::Relaxed);
    }

    pub(crate) fn load(&self) -> InstancePolicy {
        InstancePolicy {
            threaded: match self.threaded.load(Ordering::Relaxed) {
                1 => Threaded::Enabled,
                2 => Threaded::BusyPoll,
                3 => Threaded::Workqueue,
                _ => Threaded::Disabled,
            },
            defer_hard_irqs: self.defer_hard_irqs(),
            gro_flush_timeout: self.gro_flush_timeout(),
            irq_suspend_timeout: self.irq_suspend_timeout(),
            hold: self.hold(),
            hold_tick: self.hold_tick.load(Ordering::Relaxed),
            feedback: self.feedback(),
        }
    }

    #[inline]
    pub(crate) fn defer_hard_irqs(&self) -> u32 {
        self.defer_hard_irqs.load(Ordering::Relaxed)
    }

    #[inline]
    pub(crate) fn gro_flush_timeout(&self) -> Ns {
        self.gro_flush_timeout.load(Ordering::Relaxed)
    }

    #[inline]
    pub(crate) fn irq_suspend_timeout(&self) -> Ns {
        self.irq_suspend_timeout.load(Ordering::Relaxed)
    }

    #[inline]
    pub(crate) fn hold(&self) -> Ns {
        self.hold.load(Ordering::Relaxed)
    }

    /// When a hold of `hold` ends that begins now: after it, or at the first tick after it.
    pub(crate) fn hold_end(&self, now: Ns, hold: Ns) -> Ns {
        let end = now + hold;
        match self.hold_tick.load(Ordering::Relaxed) {
            0 => end,
            tick => (end / tick + 1).saturating_mul(tick),
        }
    }

    #[inline]
    pub(crate) fn feedback(&self) -> bool {
        self.feedback.load(Ordering::Relaxed)
    }

    #[inline]
    pub(crate) fn weight(&self) -> u16 {
        self.weight.load(Ordering::Relaxed) as u16
    }

    /// Whether the driver's order is [`Order::UnmaskFirst`].
    #[inline]
    pub(crate) fn unmasks_first(&self) -> bool {
        self.unmask_first.load(Ordering::Relaxed)
    }

    pub(crate) fn order(&self) -> Order {
        if self.unmasks_first() { Order::UnmaskFirst } else { Order::DeliverFirst }
    }

    pub(crate) fn set_order(&self, order: Order) {
        self.unmask_first.store(order == Order::UnmaskFirst, Ordering::Relaxed);
    }

    pub(crate) fn set_weight(&self, weight: u16) -> Result<(), SettingError> {
        if weight == 0 {
            return Err(SettingError::Weight);
        }
        self.weight.store(u32::from(weight), Ordering::Relaxed);
        Ok(())
    }
}
