//! The settings of one NAPI instance in the kernel.
//!
//! Names and units are those of the kernel's `netdev` specification. [`Settings::of`] copies them from a policy;
//! how they are written is in `apply`.

use std::fmt;

use napkin_policy::{InstancePolicy, Threaded};
use serde::{Deserialize, Serialize};

/// The settings of one instance. A setting that this kernel does not report is `None`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub struct Settings {
    /// The threaded mode: 0 `disabled`, 1 `enabled`, 2 `busy-poll` (netlink's numbers).
    pub threaded: Option<u32>,
    /// Consecutive empty polls before the interrupt is unmasked.
    pub defer_hard_irqs: Option<u32>,
    /// The interval of deferred polls in nanoseconds.
    pub gro_flush_timeout: Option<u64>,
    /// The longest suspension of the interrupt in nanoseconds.
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
    /// All settings, in the order in which they are displayed.
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

    /// Formats a value as in a policy: `busy-poll`, `100`, `20us`.
    pub fn show(self, value: u64) -> String {
        match (self, value) {
            // Values above busy-poll belong to later kernels.
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
    /// Returns the settings that a policy requests for an instance. `workqueue` has no kernel value: `support`
    /// refuses it before anything is written.
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

    /// Returns the value of one setting.
    pub fn get(&self, setting: Setting) -> Option<u64> {
        match setting {
            Setting::Threaded => self.threaded.map(u64::from),
            Setting::DeferHardIrqs => self.defer_hard_irqs.map(u64::from),
            Setting::GroFlushTimeout => self.gro_flush_timeout,
            Setting::IrqSuspendTimeout => self.irq_suspend_timeout,
        }
    }

    /// Sets one setting; a value above the range of its type is clamped.
    pub fn set(&mut self, setting: Setting, value: u64) {
        let count = u32::try_from(value).unwrap_or(u32::MAX);
        match setting {
            Setting::Threaded => self.threaded = Some(count),
            Setting::DeferHardIrqs => self.defer_hard_irqs = Some(count),
            Setting::GroFlushTimeout => self.gro_flush_timeout = Some(value),
            Setting::IrqSuspendTimeout => self.irq_suspend_timeout = Some(value),
        }
    }

    /// Returns the policy that corresponds to these settings; unknown settings count as off.
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
