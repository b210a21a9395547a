//! The target policy, to which all fixes of one report lead.
//!
//! Each check sees one problem of a policy: a timeout too short for its program, a program that cannot busy
//! poll. If each proposed a policy of its own, one fix would undo another, and following them would never
//! end. So there is one target: the requested or implied policy, with all problems corrected.

use napkin_policy::{
    DEFER_HARD_IRQS, EpollPolicy, MICROSECOND, MILLISECOND, Ns, Policy, SUSPEND_TIMEOUT, Threaded,
};

use super::checks::starvation::starves;
use super::facts::{Facts, Program, Support};
use super::fix::Fix;
use crate::apply::can_delay;
use napkin_kernel::device::Napi;
use napkin_kernel::settings::{Setting, Settings};

/// The shortest period. Below it a timer costs more than the packets that it gathers: an expiry with an empty
/// poll costs 0.8 to 1.4 us of CPU (2024's runs), and timers overshoot.
pub(super) const SHORT_PERIOD: Ns = 5 * MICROSECOND;

/// The period from which programs that share the queue without busy polling wait noticeably.
pub(super) const LONG_PERIOD: Ns = MILLISECOND;

/// The period of 2024's low-latency configurations.
const PERIOD: Ns = 20 * MICROSECOND;

/// The longest period that does not delay a packet for long after a busy poll that found nothing.
const VAIN_PERIOD: Ns = 200 * MICROSECOND;

/// How many periods a suspension should last at least, so that the program, not the timer, keeps control: a
/// batch of ten requests.
pub(super) const PROPORTION: u64 = 10;

/// The suspension from which a program that hangs makes others wait noticeably (every published set-up: 20 ms).
pub(super) const LONG_SUSPENSION: Ns = 100 * MILLISECOND;

impl Facts {
    /// The policy to which all fixes lead.
    pub(super) fn target(&self) -> Policy {
        of(self)
    }

    /// The fix that applies the [target](Self::target) to the device, unless it is in force already.
    pub(super) fn apply(&self) -> Option<Fix> {
        let policy = self.target();
        let wanted = Settings::of(&policy.instance);
        let differs = |napi: &&Napi| {
            let known =
                Setting::ALL.into_iter().filter_map(|it| Some((it, napi.settings.get(it)?)));
            known.into_iter().any(|(setting, have)| wanted.get(setting) != Some(have))
        };
        let ifname = self.device.ifname.clone();
        let yes = self.locks.lifeline && can_delay(&policy);
        self.instances().iter().any(differs).then_some(Fix::Apply { policy, ifname, yes })
    }

    /// The fix that puts a program under the target. If the target has no application part, it also reverts
    /// what the program was set to.
    pub(super) fn attach(&self, program: &Program) -> Option<Fix> {
        let policy = self.target();
        let pid = program.pid;
        if policy.epoll.enabled() || policy.application.socket_busy_polls() {
            return Some(Fix::Attach { pid, policy, ifname: None });
        }
        let epolls = program.epolls.as_deref().unwrap_or_default();
        if epolls.iter().any(|epoll| epoll.params.as_ref().is_ok_and(EpollPolicy::enabled)) {
            let ifname = Some(self.device.ifname.clone());
            return Some(Fix::Attach { pid, policy, ifname });
        }
        self.apply()
    }
}

fn of(facts: &Facts) -> Policy {
    let mut policy = facts.policy;
    if let Ok(Support::No { nearest: Some(nearest), .. }) = &facts.support {
        policy = *nearest;
    }
    if (policy.epoll.enabled() || policy.instance.irq_suspend_timeout != 0)
        && !facts.programs.is_empty()
        && !facts.any_can_poll()
    {
        policy = without_application(policy);
    }
    // A user who requests suspension intends to fix its program.
    if !facts.asked && policy.instance.irq_suspend_timeout != 0 && starves(facts) {
        policy.instance.irq_suspend_timeout = 0;
    }
    if policy.application.spin && facts.none_spins() {
        policy.application.spin = false;
    }
    if policy.instance.threaded == Threaded::BusyPoll && too_many_spinners(facts) {
        policy.instance.threaded = Threaded::Enabled;
    }
    numbers(facts, &mut policy);
    policy
}

/// Reduces a policy to what remains if no program takes part: the device polls by timer, or by threads.
fn without_application(mut policy: Policy) -> Policy {
    policy.instance.irq_suspend_timeout = 0;
    policy.epoll = EpollPolicy::default();
    policy.application.spin = false;
    if !policy.instance.defers() && policy.instance.threaded == Threaded::Disabled {
        policy.instance.defer_hard_irqs = DEFER_HARD_IRQS;
        policy.instance.gro_flush_timeout = PERIOD;
    }
    policy
}

/// Whether threads that poll without end would leave no CPU for anything else.
pub(super) fn too_many_spinners(facts: &Facts) -> bool {
    let receiving = facts.device.napis.iter().filter(|it| !it.transmits_only()).count();
    facts.poll_threads.len().max(receiving) >= facts.host.cpus.len()
}

/// Adjusts the times to each other and to the observations.
fn numbers(facts: &Facts, policy: &mut Policy) {
    if policy.instance.threaded == Threaded::BusyPoll {
        // A thread that never sleeps arms no timer.
        return;
    }
    let spins = policy.application.spin && !facts.programs.is_empty();
    let suspends = policy.instance.irq_suspend_timeout != 0;
    let instance = &mut policy.instance;
    if suspends && !instance.defers() {
        instance.defer_hard_irqs = instance.defer_hard_irqs.max(DEFER_HARD_IRQS);
        instance.gro_flush_timeout = instance.gro_flush_timeout.max(PERIOD);
    }
    if instance.gro_flush_timeout == 0 {
        // A count alone has no effect.
        instance.defer_hard_irqs = 0;
    }
    if instance.defers() {
        let period = &mut instance.gro_flush_timeout;
        if *period < SHORT_PERIOD || (*period >= LONG_PERIOD && !spins) {
            *period = PERIOD;
        }
        if suspends {
            *period = (*period).min(LONG_SUSPENSION / PROPORTION);
        }
    }
    if policy.timer_wait_after_empty_busy_poll().is_some() {
        policy.instance.gro_flush_timeout = VAIN_PERIOD;
    }
    if suspends {
        policy.instance.irq_suspend_timeout = suspension(facts, policy);
    }
}

/// 2024's rule: the time of a request times the largest batch. At least twice the timeout with which
/// suspensions were observed to end too early, and at most what others can wait.
fn suspension(facts: &Facts, policy: &Policy) -> Ns {
    let period = policy.instance.gro_flush_timeout;
    let mut suspension = policy.instance.irq_suspend_timeout;
    if suspension < period.saturating_mul(PROPORTION) || suspension > LONG_SUSPENSION {
        suspension = SUSPEND_TIMEOUT.max(period.saturating_mul(PROPORTION));
    }
    let batches = facts.programs.iter().filter_map(|it| it.largest_batch(facts));
    for (_, batch) in batches {
        suspension = suspension.max(batch.saturating_mul(period).next_multiple_of(MILLISECOND));
    }
    if facts.suspension_too_short() {
        let present = facts.longest_suspension();
        suspension = suspension.max(present.saturating_mul(2)).max(SUSPEND_TIMEOUT);
    }
    suspension.min(LONG_SUSPENSION)
}

impl Facts {
    /// Whether a program can busy poll, or suspend, as far as known.
    pub(super) fn any_can_poll(&self) -> bool {
        self.programs.iter().any(|it| it.can_poll(self))
    }

    /// Whether every program is known to have no spinning thread.
    pub(super) fn none_spins(&self) -> bool {
        let sleeps = |program: &Program| {
            let known = program.threads.iter().any(|thread| thread.slept.is_some());
            known && program.spinning().is_empty()
        };
        !self.programs.is_empty() && self.programs.iter().all(sleeps)
    }

    /// The longest `irq-suspend-timeout` of the instances in use.
    pub(super) fn longest_suspension(&self) -> Ns {
        let set = |napi: &&napkin_kernel::device::Napi| napi.settings.irq_suspend_timeout;
        self.instances().iter().filter_map(set).max().unwrap_or(0)
    }

    /// Whether suspensions ended by their timeout while programs polled. If no program polled, a longer
    /// timeout would not help.
    pub(super) fn suspension_too_short(&self) -> bool {
        let polls = self.measured.polls.as_ref();
        polls.is_ok_and(|it| it.suspend_expiries.is_some_and(|it| it > 0) && it.application > 0)
    }
}
