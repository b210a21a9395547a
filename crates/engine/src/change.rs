//! Some of an instance's settings: what `napi-set` names, and nothing else.
//!
//! Limits are checked before anything is changed; the engine applies the rest under its lock.

use napkin_core::{Ns, SettingError, check};
use napkin_policy::Policy;
use napkin_policy::{InstancePolicy, Threaded, Warning};

/// Settings to change on a running instance; what is `None` stays as it is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct NapiChange {
    /// Who polls.
    pub threaded: Option<Threaded>,
    /// Empty polls before interrupts are allowed again.
    pub defer_hard_irqs: Option<u32>,
    /// Nanoseconds between deferred polls.
    pub gro_flush_timeout: Option<Ns>,
    /// Longest suspension in nanoseconds.
    pub irq_suspend_timeout: Option<Ns>,
    /// Nanoseconds in polled mode after the last work.
    pub hold: Option<Ns>,
    /// The tick at which alone a hold ends, in nanoseconds; 0: to the nanosecond.
    pub hold_tick: Option<Ns>,
    /// Whether a full receiver stops its queue's polling.
    pub feedback: Option<bool>,
    /// Frames that a poll outside busy polling may take.
    pub weight: Option<u16>,
}

impl NapiChange {
    /// Whether nothing is to be changed.
    pub fn is_empty(&self) -> bool {
        *self == NapiChange::default()
    }

    /// Refuses values that the kernel would refuse, too.
    ///
    /// # Errors
    /// The first value that is out of its limits.
    pub fn check(&self) -> Result<(), SettingError> {
        if self.weight == Some(0) {
            return Err(SettingError::Weight);
        }
        // What stays as it is was checked when it was set.
        check(&self.applied(InstancePolicy::default()))
    }

    /// The settings with the change applied.
    pub fn applied(&self, settings: InstancePolicy) -> InstancePolicy {
        InstancePolicy {
            threaded: self.threaded.unwrap_or(settings.threaded),
            defer_hard_irqs: self.defer_hard_irqs.unwrap_or(settings.defer_hard_irqs),
            gro_flush_timeout: self.gro_flush_timeout.unwrap_or(settings.gro_flush_timeout),
            irq_suspend_timeout: self.irq_suspend_timeout.unwrap_or(settings.irq_suspend_timeout),
            hold: self.hold.unwrap_or(settings.hold),
            hold_tick: self.hold_tick.unwrap_or(settings.hold_tick),
            feedback: self.feedback.unwrap_or(settings.feedback),
        }
    }
}

impl From<InstancePolicy> for NapiChange {
    /// All of a policy's settings; the weight, which is in none, stays.
    fn from(settings: InstancePolicy) -> NapiChange {
        NapiChange {
            threaded: Some(settings.threaded),
            defer_hard_irqs: Some(settings.defer_hard_irqs),
            gro_flush_timeout: Some(settings.gro_flush_timeout),
            irq_suspend_timeout: Some(settings.irq_suspend_timeout),
            hold: Some(settings.hold),
            hold_tick: Some(settings.hold_tick),
            feedback: Some(settings.feedback),
            weight: None,
        }
    }
}

/// What of an instance's settings does not do what it seems to say, whatever the application does:
/// how that waits, and so whether it ever suspends, an instance does not know.
pub(crate) fn warnings(settings: InstancePolicy) -> Vec<Warning> {
    let mut warnings = Policy { instance: settings, ..Policy::BASE }.warnings();
    warnings.retain(|warning| {
        matches!(
            warning,
            Warning::BelowMicrosecond { .. }
                | Warning::DeferralWithoutPeriod
                | Warning::PeriodWithoutDeferral
                | Warning::SuspensionWithoutDeferral
                | Warning::SuspensionShorterThanPeriod { .. }
                | Warning::HoldBeforeDeferral { .. }
                | Warning::TickWithoutHold
                | Warning::OverruledByThreadedBusyPoll
                | Warning::ParkTimeoutCapped { .. }
        )
    });
    warnings
}

#[cfg(test)]
mod tests {
    use super::*;
    use napkin_policy::MAX_TIMEOUT;

    #[test]
    fn a_whole_policy_is_a_change_of_everything() {
        let before = InstancePolicy { hold: 1, feedback: true, ..InstancePolicy::default() };
        let after = InstancePolicy { threaded: Threaded::Enabled, ..InstancePolicy::default() };
        assert_eq!(NapiChange::from(after).applied(before), after);
    }

    #[test]
    fn only_what_an_instance_can_know_is_warned_of() {
        let suspension = InstancePolicy { irq_suspend_timeout: 1_000, ..InstancePolicy::default() };
        assert_eq!(warnings(suspension), [Warning::SuspensionWithoutDeferral]);
        // It may be used or not: that is the application's affair.
        let deferral =
            InstancePolicy { defer_hard_irqs: 1, gro_flush_timeout: 1_000, ..suspension };
        assert_eq!(warnings(deferral), []);
        assert_eq!(warnings(InstancePolicy::default()), []);
        let hold = InstancePolicy { hold: 50, ..InstancePolicy::default() };
        assert_eq!(warnings(hold), [Warning::BelowMicrosecond { key: "hold", time: 50 }]);
    }

    #[test]
    fn what_is_not_named_stays() {
        let before = InstancePolicy { defer_hard_irqs: 100, hold: 5, ..InstancePolicy::default() };
        let change = NapiChange { hold: Some(7), ..NapiChange::default() };
        assert_eq!(change.applied(before), InstancePolicy { hold: 7, ..before });
        assert!(NapiChange::default().is_empty() && !change.is_empty());
    }

    #[test]
    fn a_value_out_of_its_limits_is_refused_before_anything_changes() {
        let change = NapiChange { defer_hard_irqs: Some(1 << 31), ..NapiChange::default() };
        assert!(matches!(change.check(), Err(SettingError::Limit(_))));
        let change = NapiChange { hold: Some(MAX_TIMEOUT + 1), ..NapiChange::default() };
        assert!(matches!(change.check(), Err(SettingError::Limit(_))));
        let change = NapiChange { weight: Some(0), ..NapiChange::default() };
        assert_eq!(change.check(), Err(SettingError::Weight));
        assert_eq!(NapiChange::default().check(), Ok(()));
    }
}
