//! Names the policy in force on an instance, from its settings and from the epoll contexts and sockets of its
//! programs.
//!
//! The core's tables define what each policy sets; this file finds the nearest. Whether the policy works is
//! checked by [`crate::doctor`].

use std::fmt;

use napkin_policy::{EpollPolicy, FAMILIES, INSTANCE_KEYS, PRESETS, Policy, Warning};
use serde::{Serialize, Serializer};

use napkin_kernel::process::Params;
use napkin_kernel::settings::{Setting, Settings};

const MICROSECOND: u64 = 1_000;

/// The observed settings of the programs that receive from an instance.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Behind {
    /// Parameters of their epoll contexts; default ones may be left out.
    pub epolls: Vec<Params>,
    /// `SO_BUSY_POLL` of their sockets, in microseconds; zeros may be left out.
    pub socket_busy_poll_usecs: Vec<u32>,
    /// The number of processes that could not be examined.
    pub unseen: usize,
}

/// The policy in force, or the nearest one.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub struct Mode {
    /// The policy's name.
    pub name: String,
    /// The settings that differ from the policy; empty if it is that policy.
    #[serde(serialize_with = "named")]
    pub differs: Vec<(Setting, u64)>,
    /// Notes for the operator.
    pub notes: Vec<String>,
}

impl Mode {
    /// Whether the instance's settings equal the policy's.
    pub fn exact(&self) -> bool {
        self.differs.is_empty()
    }
}

impl fmt::Display for Mode {
    /// `suspend20`, or `suspend20 but irq-suspend-timeout=10ms`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut text = self.name.clone();
        for (place, (setting, value)) in self.differs.iter().enumerate() {
            text.push_str(if place == 0 { " but " } else { ", " });
            text.push_str(&format!("{setting}={}", setting.show(*value)));
        }
        f.pad(&text)
    }
}

/// Names the policy in force.
pub fn mode(settings: &Settings, behind: &Behind) -> Mode {
    let candidates = candidates(settings);
    let exact = candidates.iter().filter(|(_, policy)| differences(settings, policy).is_empty());
    // If several policies have these settings, the programs decide between them; between equals, the first wins.
    let best_fit = exact
        .filter_map(|candidate| Some((fit(&candidate.1, behind)?, candidate)))
        .reduce(|best, next| if next.0 > best.0 { next } else { best });
    let (name, policy, differs) = match best_fit {
        Some((_, (name, policy))) => (name.clone(), *policy, Vec::new()),
        None => nearest(settings, &candidates),
    };
    let notes = notes(settings, &policy, differs.is_empty(), behind);
    Mode { name, differs, notes }
}

/// All named policies that a kernel can be set to: the presets first, then the families' members with this period.
fn candidates(settings: &Settings) -> Vec<(String, Policy)> {
    let possible = |policy: &Policy| {
        policy.cpu == Policy::BASE.cpu
            && INSTANCE_KEYS.iter().all(|key| key.in_linux(key.get(policy)))
    };
    let presets = PRESETS.iter().map(|preset| (preset.name.to_owned(), preset.policy));
    let mut all: Vec<(String, Policy)> = presets.filter(|(_, policy)| possible(policy)).collect();
    let period = settings.gro_flush_timeout.unwrap_or(0);
    let microseconds = period.saturating_add(MICROSECOND / 2) / MICROSECOND;
    let microseconds = u32::try_from(microseconds).unwrap_or(u32::MAX);
    for family in FAMILIES {
        let Some(policy) = family.policy(microseconds) else { continue };
        if possible(&policy) && !all.iter().any(|(_, known)| *known == policy) {
            all.push((policy.to_string(), policy));
        }
    }
    all
}

/// The settings that a policy would change; what the kernel does not report counts as equal.
fn differences(settings: &Settings, policy: &Policy) -> Vec<(Setting, u64)> {
    let wanted = Settings::of(&policy.instance);
    let differs = |setting: Setting| {
        let value = settings.get(setting)?;
        (wanted.get(setting) != Some(value)).then_some((setting, value))
    };
    // A kernel that does not report the suspend timeout has no suspension.
    let lacks = settings.irq_suspend_timeout.is_none() && policy.instance.irq_suspend_timeout != 0;
    let lacking = lacks.then_some((Setting::IrqSuspendTimeout, 0));
    Setting::ALL.into_iter().filter_map(differs).chain(lacking).collect()
}

/// Rates how well the programs' part of a policy fits the observations; `None` if it is absent.
fn fit(policy: &Policy, behind: &Behind) -> Option<u8> {
    let application = &policy.application;
    if application.socket_busy_polls() {
        // Which thread receives cannot be observed: the plainer of the two policies comes first in the table.
        let usecs = application.socket_busy_poll_usecs;
        return behind.socket_busy_poll_usecs.contains(&usecs).then_some(3);
    }
    if !policy.epoll.enabled() {
        return Some(2);
    }
    if behind.epolls.iter().any(|params| EpollPolicy::from(*params) == policy.epoll) {
        return Some(3);
    }
    // Only suspension has an instance setting that nothing else uses.
    policy.instance.suspends().then_some(1)
}

/// The policy with the fewest different settings; policies of the same kind come first, and between equals
/// the nearest period wins.
fn nearest(
    settings: &Settings,
    candidates: &[(String, Policy)],
) -> (String, Policy, Vec<(Setting, u64)>) {
    let instance = settings.policy();
    let kind = |policy: &Policy| {
        let it = policy.instance;
        [
            it.threaded != instance.threaded,
            it.suspends() != instance.suspends(),
            it.defers() != instance.defers(),
        ]
        .into_iter()
        .filter(|differs| *differs)
        .count()
    };
    // The programs' part alone does not make a policy.
    let plain = |policy: &Policy| {
        let programs = policy.epoll.enabled() || policy.application.socket_busy_polls();
        !programs || policy.instance.suspends()
    };
    candidates
        .iter()
        .filter(|(_, policy)| plain(policy))
        .map(|(name, policy)| (name.clone(), *policy, differences(settings, policy)))
        .min_by_key(|(_, policy, differs)| {
            // Without deferral the period does not matter.
            let period = policy.instance.gro_flush_timeout.abs_diff(instance.gro_flush_timeout);
            let period = if policy.instance.defers() { period } else { 0 };
            (kind(policy), differs.len(), period)
        })
        .unwrap_or_else(|| ("base".into(), Policy::BASE, differences(settings, &Policy::BASE)))
}

fn notes(settings: &Settings, policy: &Policy, exact: bool, behind: &Behind) -> Vec<String> {
    let instance = settings.policy();
    let polls = |params: &&Params| EpollPolicy::from(**params).enabled();
    let preferred = behind.epolls.iter().find(|params| params.prefer_busy_poll);
    let epoll = preferred.or_else(|| behind.epolls.iter().find(polls)).copied();
    let real = Policy { instance, epoll: epoll.unwrap_or_default().into(), ..Policy::BASE };
    let mut notes = Vec::new();
    for warning in real.warnings() {
        match warning {
            Warning::SuspensionWithoutPrefer => {
                let mut note =
                    "suspends only for programs that prefer busy polling: none seen".to_owned();
                if behind.unseen > 0 {
                    let them = if behind.unseen == 1 { "process" } else { "processes" };
                    note.push_str(&format!(
                        ", but {} {them} could not be looked at",
                        behind.unseen
                    ));
                }
                notes.push(note);
            }
            // The documentation of a preset covers these.
            Warning::PeriodWithoutDeferral | Warning::OverruledByThreadedBusyPoll if exact => {}
            warning => notes.push(warning.to_string()),
        }
    }
    if let Some(params) = epoll.filter(|params| EpollPolicy::from(*params) != policy.epoll) {
        notes.push(format!("a program's epoll is set otherwise: {params}"));
    }
    if exact && policy.application.spin {
        notes
            .push("whether the program never sleeps, as this policy asks, is not seen here".into());
    }
    notes
}

fn named<S: Serializer>(differs: &[(Setting, u64)], serializer: S) -> Result<S::Ok, S::Error> {
    serializer.collect_map(differs.iter().map(|(setting, value)| (setting.name(), value)))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn settings(text: &str) -> Settings {
        Settings::of(&text.parse::<Policy>().expect(text).instance)
    }

    fn alone(text: &str) -> Mode {
        mode(&settings(text), &Behind::default())
    }

    fn with_epoll(text: &str, busy_poll_usecs: u32, prefer_busy_poll: bool) -> Mode {
        let params = Params { busy_poll_usecs, busy_poll_budget: 64, prefer_busy_poll };
        let behind = Behind { epolls: vec![Params::default(), params], ..Behind::default() };
        mode(&settings(text), &behind)
    }

    #[test]
    fn settings_alone_tell_most_policies() {
        let names = "base threaded defer20 defer200 suspend20 suspend200 interrupts \
                     threaded-busy-poll defer37 suspend50";
        for name in names.split_whitespace() {
            let mode = alone(name);
            assert_eq!((mode.to_string().as_str(), mode.exact()), (name, true));
        }
    }

    #[test]
    fn the_programs_tell_policies_that_set_the_instance_alike() {
        assert_eq!(alone("napibusy").name, "defer200");
        assert_eq!(alone("fullbusy").name, "defer5000");
        assert_eq!(with_epoll("napibusy", 64, true).name, "napibusy");
        let fullbusy = with_epoll("fullbusy", 1_000, true);
        assert_eq!(fullbusy.name, "fullbusy");
        assert!(fullbusy.notes.iter().any(|note| note.contains("never sleeps")), "{fullbusy:?}");
        let socket = Behind { socket_busy_poll_usecs: vec![400], ..Behind::default() };
        assert_eq!(mode(&settings("busypoll"), &socket).name, "busypoll");
        assert_eq!(alone("busypoll").name, "defer15");
    }

    #[test]
    fn a_program_that_is_set_otherwise_is_said() {
        let mode = with_epoll("defer200", 50, true);
        assert_eq!(mode.name, "defer200");
        assert_eq!(
            mode.notes,
            ["a program's epoll is set otherwise: busy poll 50 us, budget 64, prefer"]
        );
    }

    #[test]
    fn a_suspension_without_a_program_that_prefers_is_said() {
        let note = "suspends only for programs that prefer busy polling: none seen";
        assert_eq!(alone("suspend20").notes, [note]);
        let unseen = Behind { unseen: 3, ..Behind::default() };
        let notes = mode(&settings("suspend20"), &unseen).notes;
        assert_eq!(notes, [format!("{note}, but 3 processes could not be looked at")]);
        assert_eq!(with_epoll("suspend20", 0, true).notes, Vec::<String>::new());
    }

    #[test]
    fn the_nearest_name_says_what_it_differs_in() {
        for (text, expected) in [
            ("suspend20,irq-suspend-timeout=10ms", "suspend20 but irq-suspend-timeout=10ms"),
            ("defer20,defer-hard-irqs=50", "defer20 but defer-hard-irqs=50"),
            ("defer20,threaded=enabled", "defer20 but threaded=enabled"),
            ("gro-flush-timeout=20us", "base but gro-flush-timeout=20us"),
            ("irq-suspend-timeout=20ms", "base but irq-suspend-timeout=20ms"),
            ("defer2,gro-flush-timeout=1500ns", "defer2 but gro-flush-timeout=1500ns"),
        ] {
            let mode = alone(text);
            assert_eq!(mode.to_string(), expected);
            assert!(!mode.exact());
        }
    }

    #[test]
    fn settings_without_an_effect_are_noted() {
        let notes = alone("suspend20,gro-flush-timeout=0").notes.join("; ");
        assert!(notes.contains("irq-suspend-timeout does nothing without deferral"), "{notes}");
        let notes = with_epoll("base", 64, true).notes.join("; ");
        assert!(notes.contains("without deferral"), "{notes}");
        assert_eq!(alone("interrupts").notes, Vec::<String>::new());
    }

    #[test]
    fn a_kernel_that_reports_nothing_is_at_base() {
        assert_eq!(mode(&Settings::default(), &Behind::default()).to_string(), "base");
        let older = Settings { irq_suspend_timeout: None, threaded: None, ..settings("defer20") };
        assert_eq!(mode(&older, &Behind::default()).to_string(), "defer20");
    }

    proptest::proptest! {
        #[test]
        fn any_settings_have_a_nearest_name_and_differ_as_said(
            threaded in proptest::option::of(0_u32..4),
            defer_hard_irqs in proptest::option::of(proptest::prelude::any::<u32>()),
            gro_flush_timeout in proptest::option::of(proptest::prelude::any::<u64>()),
            irq_suspend_timeout in proptest::option::of(proptest::prelude::any::<u64>()),
        ) {
            let settings =
                Settings { threaded, defer_hard_irqs, gro_flush_timeout, irq_suspend_timeout };
            let mode = mode(&settings, &Behind::default());
            let policy: Policy = mode.name.parse().expect("a name that is known");
            let mut same = Settings::of(&policy.instance);
            for (setting, value) in &mode.differs {
                same.set(*setting, *value);
            }
            for setting in Setting::ALL {
                if let Some(value) = settings.get(setting) {
                    proptest::prop_assert_eq!(same.get(setting), Some(value));
                }
            }
        }
    }
}
