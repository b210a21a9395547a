//! The policy to which all fixes of one report lead.
//!
//! Each check sees one thing that is wrong with a policy: a timeout too short for its program, a
//! program that cannot busy poll. If each named a policy of its own, one fix would undo another's,
//! and whoever followed them would go round in circles. So there is one: the policy that was asked
//! for, or that the settings mean, with all of that put right.

use napkin_policy::{
    DEFER_HARD_IRQS, EpollPolicy, MICROSECOND, MILLISECOND, Ns, Policy, SUSPEND_TIMEOUT, Threaded,
};

use super::checks::starvation::starves;
use super::facts::{Facts, Program, Support};
use super::fix::Fix;
use crate::apply::can_delay;
use napkin_kernel::device::Napi;
use napkin_kernel::settings::{Setting, Settings};

/// Below it a timer costs more than the packets that it gathers: an expiry with an empty poll is
/// 0.8 to 1.4 us of CPU (2024's runs), and timers overshoot.
pub(super) const SHORT_PERIOD: Ns = 5 * MICROSECOND;

/// From here on whoever shares the queue without busy polling waits noticeably.
pub(super) const LONG_PERIOD: Ns = MILLISECOND;

/// The period of 2024's low-latency configurations.
const PERIOD: Ns = 20 * MICROSECOND;

/// The longest period behind which a packet that follows a busy poll in vain does not wait long.
const VAIN_PERIOD: Ns = 200 * MICROSECOND;

/// Times that the suspension should be longer than a period, so that the program keeps control
/// from the timer: a batch of ten requests.
pub(super) const PROPORTION: u64 = 10;

/// From here on a program that hangs makes others wait noticeably (every published set-up: 20 ms).
pub(super) const LONG_SUSPENSION: Ns = 100 * MILLISECOND;

impl Facts {
    /// The policy to which all fixes lead.
    pub(super) fn target(&self) -> Policy {
        of(self)
    }

    /// The [target](Self::target) is applied to the device, unless it is already.
    pub(super) fn apply(&self) -> Option<Fix> {
        let policy = self.target();
        let wanted = Settings::of(&policy.instance);
        let differs = |napi: &&Napi| {
            let known =
                Setting::ALL.into_iter().filter_map(|it| Some((it, napi.settings.get(it)?)));
            known.into_iter().any(|(setting, have)| wanted.get(setting) != Some(have))
        };
        let ifname = self.device.ifname.clone();
        let yes = self.held.lifeline && can_delay(&policy);
        self.instances().iter().any(differs).then_some(Fix::Apply { policy, ifname, yes })
    }

    /// A program is put under the target. Where that leaves the application out, what the program
    /// was set to is taken back with it.
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
        && !facts.somebody_can_poll()
    {
        policy = without_application(policy);
    }
    // Whoever asked for suspension means to fix its program.
    if !facts.asked && policy.instance.irq_suspend_timeout != 0 && starves(facts) {
        policy.instance.irq_suspend_timeout = 0;
    }
    if policy.application.spin && facts.nobody_spins() {
        policy.application.spin = false;
    }
    if policy.instance.threaded == Threaded::BusyPoll && too_many_spinners(facts) {
        policy.instance.threaded = Threaded::Enabled;
    }
    numbers(facts, &mut policy);
    policy
}

/// What is left of a policy if no program takes part: its device polls by timer, or by threads.
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

/// Whether threads that poll without end would leave no CPU to anybody else.
pub(super) fn too_many_spinners(facts: &Facts) -> bool {
    let receiving = facts.device.napis.iter().filter(|it| !it.transmits_only()).count();
    facts.poll_threads.len().max(receiving) >= facts.host.cpus.len()
}

/// The times, in proportion to each other and to what was seen.
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
        // A count alone does nothing.
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
    if policy.waits_after_vain_poll().is_some() {
        policy.instance.gro_flush_timeout = VAIN_PERIOD;
    }
    if suspends {
        policy.instance.irq_suspend_timeout = suspension(facts, policy);
    }
}

/// 2024's rule: the time of a request times the largest batch. It is not shorter than the one with
/// which suspensions were seen to end too early, and no longer than others can wait.
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
    /// Whether a program can busy poll, or suspend: nothing known speaks against it.
    pub(super) fn somebody_can_poll(&self) -> bool {
        self.programs.iter().any(|it| it.can_poll(self))
    }

    /// Whether it is known of every program that none of its threads spins.
    pub(super) fn nobody_spins(&self) -> bool {
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

    /// Whether suspensions ended by their timeout while the programs polled. If none did, they
    /// would end so whatever the timeout.
    pub(super) fn suspension_too_short(&self) -> bool {
        let polls = self.measured.polls.as_ref();
        polls.is_ok_and(|it| it.suspend_expiries.is_some_and(|it| it > 0) && it.application > 0)
    }
}
