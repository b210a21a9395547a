//! A change of some of an instance's settings: those that `napi-set` names.
//!
//! The settings and their limits come from the table of a policy's keys; only the weight, which is part of no
//! policy, is named here. The engine applies a change under its lock.

use napkin_core::SettingError;
use napkin_policy::{
    INSTANCE_KEYS, InstancePolicy, Policy, PolicyError, Threaded, Warning, nearest,
};

/// Settings to change on a running instance; those that are not named stay as they are.
///
/// ```
/// use napkin_engine::NapiChange;
///
/// let change = NapiChange::default().with("hold", 1_000_000)?;
/// assert!(NapiChange::default().with("hold", u64::MAX).is_err());
/// # Ok::<(), napkin_policy::PolicyError>(())
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct NapiChange {
    /// Indexed like the table of keys; each within its key's limits.
    values: [Option<u64>; INSTANCE_KEYS.len()],
    weight: Option<u16>,
}

impl NapiChange {
    /// Adds a key of the instance's part of a policy, set to a count, nanoseconds, or the index of a word among the
    /// key's choices.
    ///
    /// # Errors
    /// [`PolicyError::UnknownKey`], and [`PolicyError::TooLarge`] beyond the key's limit.
    pub fn with(mut self, name: &str, value: u64) -> Result<NapiChange, PolicyError> {
        let Some(place) = INSTANCE_KEYS.iter().position(|key| key.name == name) else {
            let nearest = nearest(name, INSTANCE_KEYS.iter().map(|key| key.name));
            return Err(PolicyError::UnknownKey { key: name.to_owned(), nearest });
        };
        self.values[place] = Some(INSTANCE_KEYS[place].check(value)?);
        Ok(self)
    }

    /// Adds the weight: the frames that a poll outside busy polling may take.
    ///
    /// # Errors
    /// [`SettingError::Weight`] for 0.
    pub fn with_weight(self, weight: u16) -> Result<NapiChange, SettingError> {
        let weight = Some(weight).filter(|weight| *weight != 0).ok_or(SettingError::Weight)?;
        Ok(NapiChange { weight: Some(weight), ..self })
    }

    /// Whether nothing is to be changed.
    pub fn is_empty(&self) -> bool {
        *self == NapiChange::default()
    }

    /// The settings with the change applied.
    pub fn applied(&self, settings: InstancePolicy) -> InstancePolicy {
        let mut policy = Policy { instance: settings, ..Policy::BASE };
        for (key, value) in INSTANCE_KEYS.iter().zip(self.values) {
            if let Some(value) = value {
                key.set(&mut policy, value);
            }
        }
        policy.instance
    }

    pub(crate) fn weight(&self) -> Option<u16> {
        self.weight
    }

    /// The mode (`threaded`), if it is named.
    pub(crate) fn threaded(&self) -> Option<Threaded> {
        let place = INSTANCE_KEYS.iter().position(|key| key.name == "threaded")?;
        self.values[place].and_then(Threaded::of)
    }
}

impl From<InstancePolicy> for NapiChange {
    /// A change of all of a policy's settings; the weight, which is part of no policy, stays.
    fn from(settings: InstancePolicy) -> NapiChange {
        let policy = Policy { instance: settings, ..Policy::BASE };
        let mut change = NapiChange::default();
        for (key, value) in INSTANCE_KEYS.iter().zip(&mut change.values) {
            *value = Some(key.get(&policy));
        }
        change
    }
}

/// Warns of settings that do not have the effect they seem to have, whatever the application does. An instance does
/// not know how the application waits, and so whether it ever suspends.
pub(crate) fn warnings(settings: InstancePolicy) -> Vec<Warning> {
    let mut warnings = Policy { instance: settings, ..Policy::BASE }.warnings();
    warnings.retain(Warning::concerns_instance);
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
        // Whether the application suspends is not known here.
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
        let change = NapiChange::default().with("hold", 7).expect("within its limit");
        assert_eq!(change.applied(before), InstancePolicy { hold: 7, ..before });
        assert!(NapiChange::default().is_empty() && !change.is_empty());
    }

    #[test]
    fn a_value_out_of_its_limits_is_refused_before_anything_changes() {
        let with = |name, value| NapiChange::default().with(name, value);
        assert!(matches!(with("defer-hard-irqs", 1 << 31), Err(PolicyError::TooLarge { .. })));
        assert!(matches!(with("hold-tick", MAX_TIMEOUT + 1), Err(PolicyError::TooLarge { .. })));
        assert!(matches!(with("application", 1), Err(PolicyError::UnknownKey { .. })));
        assert_eq!(NapiChange::default().with_weight(0), Err(SettingError::Weight));
    }
}
