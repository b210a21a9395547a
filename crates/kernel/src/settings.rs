//! What can be set on one NAPI instance of the kernel's.
//!
//! Names and units as in the kernel's `netdev` specification. Not which of them a policy sets
//! ([`Settings::of`] copies them from the policy's instance), nor how they are written (`apply`).

use std::fmt;

use napkin_policy::{InstancePolicy, Threaded};
use serde::{Deserialize, Serialize};

/// The settings of one instance. What this kernel does not report is `None`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub struct Settings {
    /// Who polls: 0 `disabled`, 1 `enabled`, 2 `busy-poll` (netlink's numbers).
    pub threaded: Option<u32>,
    /// Empty polls before interrupts are allowed again.
    pub defer_hard_irqs: Option<u32>,
    /// Nanoseconds between deferred polls.
    pub gro_flush_timeout: Option<u64>,
    /// Nanoseconds of the longest suspension.
    pub irq_suspend_timeout: Option<u64>,
}

/// One of the settings.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Setting {
    /// [`Settings::threaded`], set by netlink or sysfs.
    Threaded,
    /// [`Settings::defer_hard_irqs`]: empty polls.
    DeferHardIrqs,
    /// [`Settings::gro_flush_timeout`], in nanoseconds.
    GroFlushTimeout,
    /// [`Settings::irq_suspend_timeout`], in nanoseconds.
    IrqSuspendTimeout,
}

impl Setting {
    /// All, in the order in which they are shown.
    pub const ALL: [Setting; 4] = [
        Setting::Threaded,
        Setting::DeferHardIrqs,
        Setting::GroFlushTimeout,
        Setting::IrqSuspendTimeout,
    ];

    /// Its name in the kernel's specification.
    pub const fn name(self) -> &'static str {
        match self {
            Setting::Threaded => "threaded",
            Setting::DeferHardIrqs => "defer-hard-irqs",
            Setting::GroFlushTimeout => "gro-flush-timeout",
            Setting::IrqSuspendTimeout => "irq-suspend-timeout",
        }
    }

    /// A value as it is written in a policy: `busy-poll`, `100`, `20us`.
    pub fn show(self, value: u64) -> String {
        match (self, value) {
            // Above busy-poll a kernel of the future has something that nobody here knows.
            (Setting::Threaded, number @ 0..=2) => Threaded::NAMES[number as usize].into(),
            (Setting::Threaded | Setting::DeferHardIrqs, number) => number.to_string(),
            (_, time) => napkin_policy::Time(time).to_string(),
        }
    }
}

impl fmt::Display for Setting {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

impl Settings {
    /// What a policy wants of an instance. `workqueue` has no number here: `support` refuses it
    /// before anything is written.
    pub const fn of(policy: &InstancePolicy) -> Settings {
        Settings {
            threaded: Some(match policy.threaded {
                Threaded::Disabled | Threaded::Workqueue => 0,
                Threaded::Enabled => 1,
                Threaded::BusyPoll => 2,
            }),
            defer_hard_irqs: Some(policy.defer_hard_irqs),
            gro_flush_timeout: Some(policy.gro_flush_timeout),
            irq_suspend_timeout: Some(policy.irq_suspend_timeout),
        }
    }

    /// One of them.
    pub fn get(&self, setting: Setting) -> Option<u64> {
        match setting {
            Setting::Threaded => self.threaded.map(u64::from),
            Setting::DeferHardIrqs => self.defer_hard_irqs.map(u64::from),
            Setting::GroFlushTimeout => self.gro_flush_timeout,
            Setting::IrqSuspendTimeout => self.irq_suspend_timeout,
        }
    }

    /// Sets one of them; a number beyond what it takes becomes the largest that it takes.
    pub fn set(&mut self, setting: Setting, value: u64) {
        let count = u32::try_from(value).unwrap_or(u32::MAX);
        match setting {
            Setting::Threaded => self.threaded = Some(count),
            Setting::DeferHardIrqs => self.defer_hard_irqs = Some(count),
            Setting::GroFlushTimeout => self.gro_flush_timeout = Some(value),
            Setting::IrqSuspendTimeout => self.irq_suspend_timeout = Some(value),
        }
    }

    /// The instance's part of a policy that these settings are; what is not known counts as off.
    pub fn policy(&self) -> InstancePolicy {
        InstancePolicy {
            threaded: match self.threaded {
                Some(1) => Threaded::Enabled,
                Some(2) => Threaded::BusyPoll,
                _ => Threaded::Disabled,
            },
            defer_hard_irqs: self.defer_hard_irqs.unwrap_or(0),
            gro_flush_timeout: self.gro_flush_timeout.unwrap_or(0),
            irq_suspend_timeout: self.irq_suspend_timeout.unwrap_or(0),
            ..InstancePolicy::default()
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use napkin_policy::Policy;

    #[test]
    fn a_policy_s_settings_are_its_instance_s() {
        for name in ["base", "defer20", "suspend200", "threaded", "threaded-busy-poll"] {
            let policy: Policy = name.parse().expect(name);
            assert_eq!(Settings::of(&policy.instance).policy(), policy.instance, "{name}");
        }
    }

    #[test]
    fn each_setting_is_read_as_it_was_set_and_shown_as_a_policy_writes_it() {
        let mut settings = Settings::default();
        for (setting, value, shown) in [
            (Setting::Threaded, 2, "busy-poll"),
            (Setting::DeferHardIrqs, 100, "100"),
            (Setting::GroFlushTimeout, 20_000, "20us"),
            (Setting::IrqSuspendTimeout, 20_000_000, "20ms"),
        ] {
            assert_eq!(settings.get(setting), None);
            settings.set(setting, value);
            assert_eq!(settings.get(setting), Some(value));
            assert_eq!(setting.show(value), shown);
        }
    }
}
