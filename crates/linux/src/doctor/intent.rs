//! Derives the policy that the settings imply, if none was requested.
//!
//! This is not the policy that the settings literally are (`show` prints that): a broken set-up has to be
//! compared with its intent. A suspend timeout implies suspension, whatever else is missing.

use napkin_policy::{EpollPolicy, InstancePolicy, MICROSECOND, Ns, Policy};

use super::facts::Program;
use super::target::{LONG_SUSPENSION, PROPORTION};
use napkin_kernel::device::Napi;

/// The period of the published configurations, used where none is set.
const PERIOD: Ns = 20 * MICROSECOND;

/// The policy that the settings of instances and programs imply.
pub(super) fn of(napis: &[&Napi], programs: &[Program]) -> Policy {
    let instances: Vec<InstancePolicy> = napis.iter().map(|it| it.settings.policy()).collect();
    // A setting that only some instances have expresses the intent for those.
    let first = |wanted: fn(&InstancePolicy) -> bool| instances.iter().copied().find(wanted);
    let suspends = first(|it| it.irq_suspend_timeout != 0);
    let defers = first(|it| it.defers()).or(first(|it| it.defer_hard_irqs != 0));
    let instance = suspends.or(defers).or(instances.first().copied()).unwrap_or_default();
    let epoll = epoll(programs);
    let period = match instance.gro_flush_timeout {
        0 => PERIOD,
        period => period,
    };
    let mut policy = if suspends.is_some() {
        Policy::suspend(period)
    } else if epoll.is_some() || instance.defer_hard_irqs != 0 {
        Policy::defer(period)
    } else {
        Policy::BASE
    };
    policy.instance.threaded = instance.threaded;
    // A working value is taken as intended.
    if policy.instance.defers() && instance.defer_hard_irqs != 0 {
        policy.instance.defer_hard_irqs = instance.defer_hard_irqs;
    }
    let suspension = instance.irq_suspend_timeout;
    if suspends.is_some()
        && (period.saturating_mul(PROPORTION)..=LONG_SUSPENSION).contains(&suspension)
    {
        policy.instance.irq_suspend_timeout = suspension;
    }
    match epoll {
        // The flag that suspension needs is checked, so the intended value stays.
        Some(epoll) if suspends.is_some() => {
            policy.epoll.busy_poll_usecs = epoll.busy_poll_usecs;
        }
        Some(epoll) => policy.epoll = epoll,
        None => {}
    }
    policy
}

/// The parameters of the first epoll that busy polls.
fn epoll(programs: &[Program]) -> Option<EpollPolicy> {
    let epolls = programs.iter().filter_map(|program| program.epolls.as_ref().ok()).flatten();
    let mut params = epolls.filter_map(|epoll| epoll.params.as_ref().ok());
    params.find(|params| params.enabled()).copied()
}

#[cfg(test)]
mod tests {
    use super::*;
    use napkin_kernel::settings::Settings;

    fn implied(text: &str) -> String {
        let policy: Policy = text.parse().expect(text);
        let napi = Napi {
            id: 1,
            rx_queues: vec![0],
            tx_queues: vec![0],
            irq: None,
            irq_cpus: None,
            pid: None,
            thread_cpus: None,
            thread_class: None,
            settings: Settings::of(&policy.instance),
        };
        of(&[&napi], &[]).to_string()
    }

    #[test]
    fn what_is_whole_is_what_it_is() {
        for name in ["base", "defer20", "defer200", "suspend20", "suspend200", "threaded"] {
            assert_eq!(implied(name), name);
        }
    }

    #[test]
    fn what_is_broken_is_what_it_was_meant_to_be() {
        assert_eq!(implied("suspend20,defer-hard-irqs=0"), "suspend20");
        assert_eq!(implied("suspend20,gro-flush-timeout=0"), "suspend20");
        assert_eq!(implied("suspend200,irq-suspend-timeout=1us"), "suspend200");
        assert_eq!(implied("defer50,gro-flush-timeout=0"), "defer20");
        assert_eq!(implied("gro-flush-timeout=20us"), "base");
        let longer: Policy = "suspend20,irq-suspend-timeout=80ms".parse().expect("a policy");
        assert_eq!(implied("suspend20,irq-suspend-timeout=80ms"), longer.to_string());
        let threaded = "threaded=enabled,defer-hard-irqs=100,gro-flush-timeout=20us";
        assert_eq!(implied("defer20,threaded=enabled"), threaded);
    }
}
