//! The settings of an instance, which can change while traffic flows.
//!
//! Each value is a separate atomic: an owner that reads half of a change makes one decision with the old half, and
//! the next with the new one. No combination of old and new can strand a queue, because an owner either arms a
//! timer or unmasks, whatever it reads.

use core::fmt;

use crate::Ns;
use crate::order::Order;
use crate::sync::{AtomicBool, AtomicU32, AtomicU64, Count, Ordering};
use napkin_policy::{InstancePolicy, Policy, PolicyError, Threaded};

/// Frames a poll may take outside busy polling (`NAPI_POLL_WEIGHT`).
pub const WEIGHT: u16 = 64;

/// A value that is out of its limits.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum SettingError {
    /// A value outside the limits of its policy key.
    Limit(PolicyError),
    /// A weight of 0.
    Weight,
}

impl fmt::Display for SettingError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            SettingError::Limit(error) => error.fmt(f),
            SettingError::Weight => {
                f.write_str("weight 0 would never receive anything: give 1 to 65535")
            }
        }
    }
}

impl core::error::Error for SettingError {}

/// Checks an instance's policy against its limits.
///
/// # Errors
/// The first value that is out of its limits.
pub fn check(instance: &InstancePolicy) -> Result<(), SettingError> {
    Policy { instance: *instance, ..Policy::BASE }.validate().map_err(SettingError::Limit)
}

/// The settings of one instance, shared between its owner and the contexts that change them. The mode (`threaded`)
/// is not here but in the state word.
#[derive(Debug)]
pub(crate) struct Settings {
    defer_hard_irqs: AtomicU32,
    gro_flush_timeout: AtomicU64,
    irq_suspend_timeout: AtomicU64,
    hold: AtomicU64,
    hold_tick: AtomicU64,
    feedback: AtomicBool,
    weight: Count,
    unmask_first: AtomicBool,
}

impl Settings {
    pub(crate) fn new() -> Self {
        Settings {
            defer_hard_irqs: AtomicU32::new(0),
            gro_flush_timeout: AtomicU64::new(0),
            irq_suspend_timeout: AtomicU64::new(0),
            hold: AtomicU64::new(0),
            hold_tick: AtomicU64::new(0),
            feedback: AtomicBool::new(false),
            weight: Count::new(u64::from(WEIGHT)),
            unmask_first: AtomicBool::new(false),
        }
    }

    /// Stores everything but the mode; the caller has checked the values.
    pub(crate) fn store(&self, policy: &InstancePolicy) {
        self.defer_hard_irqs.store(policy.defer_hard_irqs, Ordering::Relaxed);
        self.gro_flush_timeout.store(policy.gro_flush_timeout, Ordering::Relaxed);
        self.irq_suspend_timeout.store(policy.irq_suspend_timeout, Ordering::Relaxed);
        self.hold.store(policy.hold, Ordering::Relaxed);
        self.hold_tick.store(policy.hold_tick, Ordering::Relaxed);
        self.feedback.store(policy.feedback, Ordering::Relaxed);
    }

    /// All settings, with the mode (`threaded`) from the state word.
    #[inline]
    pub(crate) fn load(&self, threaded: Threaded) -> InstancePolicy {
        InstancePolicy {
            threaded,
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

    /// The end of a hold that begins now: `hold` later, or at the first multiple of `hold_tick` after that.
    #[inline]
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
        self.weight.store(u64::from(weight), Ordering::Relaxed);
        Ok(())
    }
}
