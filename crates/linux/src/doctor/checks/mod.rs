//! The checks: each verifies a condition that some mode needs.
//!
//! Each rule names its source: the kernel, or the set-ups with which the proposals were measured (2024, IRQ
//! suspension; 2025, threaded busy poll).

mod device;
mod epoll;
mod host;
mod measured;
mod placement;
mod settings;
mod sockets;
pub(super) mod starvation;
mod wait;

use std::collections::BTreeSet;
use std::fmt::Display;

use super::facts::Facts;
use super::finding::{Finding, Report};

/// A condition with the function that checks it.
#[derive(Clone, Copy)]
pub struct Check {
    /// Its name, as `napkin doctor` prints it.
    pub name: &'static str,
    /// The condition, in words.
    pub what: &'static str,
    /// Returns no finding if the policy does not need the condition, or if another check reports what has to
    /// be fixed first.
    run: fn(&Facts) -> Vec<Finding>,
}

impl std::fmt::Debug for Check {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Check").field("name", &self.name).finish_non_exhaustive()
    }
}

macro_rules! checks {
    ($($name:literal $run:path: $what:literal;)*) => {
        &[$(Check { name: $name, what: $what, run: $run }),*]
    };
}

/// All checks, from the kernel outwards.
pub const CHECKS: &[Check] = checks! {
    "kernel-support" settings::support: "this kernel can do the policy";
    "napi" device::napi: "the device has NAPI instances";
    "wishes" device::wishes: "what was written down with napkin keep is in force";
    "settings" settings::settings: "the instances are set as the policy says";
    "threaded" settings::threaded: "softirqs, or the instances' threads, poll as the policy says";
    "deferral" settings::deferral: "defer-hard-irqs and gro-flush-timeout are both set";
    "flush-timeout" settings::flush_timeout: "gro-flush-timeout is about the time of a request";
    "suspend-timeout" settings::suspend_timeout:
        "irq-suspend-timeout is set, and much longer than gro-flush-timeout";
    "lasting" measured::lasting: "the settings outlast what the device's driver makes anew";
    "suspend-program" epoll::suspend_program:
        "where interrupts can be suspended, a program asks for it";
    "napi-id" sockets::napi_id: "the sockets know which instance their packets come from";
    "socket-busy-poll" sockets::busy_poll: "receive calls busy poll where the policy says so";
    "epoll" epoll::epoll: "the program waits for its sockets by epoll";
    "prefer" epoll::prefer: "the program's epoll prefers busy polling";
    "prefer-epoll" epoll::prefer_epoll: "the epoll that prefers is the one with the sockets";
    "busy-poll-usecs" epoll::usecs: "the epoll's busy poll lasts as long as the policy says";
    "busy-poll-in-vain" epoll::in_vain:
        "a packet after a busy poll that found nothing does not wait long for the timer";
    "budget" epoll::budget: "a busy poll takes as many packets as the policy says";
    "always-ready" starvation::always_ready: "an epoll has nothing in it that is always ready";
    "epoll-instance" epoll::one_instance: "an epoll's sockets are of one instance";
    "epoll-shared" epoll::shared: "an epoll is waited on by one thread";
    "instance-shared" epoll::instance_shared: "an instance is polled for by one epoll";
    "wait-timeout" wait::timeout: "the program waits without end, or as the policy says";
    "maxevents" wait::maxevents: "a wait takes a batch that suits the timeouts";
    "spinning" wait::spinning: "the program spins only where the policy says so";
    "go-runtime" wait::go_runtime: "the program's runtime lets its waits busy poll";
    "cpu-match" placement::cpu_match: "interrupt, thread and program are on the CPUs that they need";
    "napi-thread" placement::poll_thread: "an instance's thread has a CPU";
    "irq-affinity" placement::irq_affinity: "an instance's interrupt goes to one CPU";
    "irqbalance" placement::irqbalance: "irqbalance is not running";
    "rps" device::rps: "packets are not passed on to other CPUs (RPS)";
    "rfs" device::rfs: "packets are not passed on to the program's last CPU (RFS)";
    "ring" device::ring: "the receive ring holds what comes in meanwhile";
    "coalescing" device::coalescing: "the device's own interrupt moderation is fixed";
    "smt" host::smt: "CPUs that poll do not share their cores";
    "timer-migration" host::timer_migration: "timers stay on their CPUs";
    "rt-runtime" host::rt_runtime: "real-time threads are not throttled";
    "workqueue-cpumask" host::workqueue: "kernel work keeps off the CPUs that poll";
    "system-busy-poll" host::busy_poll: "busy polling is not switched on for everyone";
    "netdev-budget" host::netdev_budget: "a softirq's budget is not smaller than the kernel's own";
    "time-squeeze" measured::squeezes: "softirqs get through their work";
    "softnet-drops" measured::drops: "no packet is dropped at a CPU's backlog";
    "poller" measured::poller: "packets are taken by who should, counted in the kernel";
    "suspend-expiry" measured::suspend_expiry: "no suspension ends by its safety timeout";
    "starvation" starvation::starvation: "a suspended instance is polled, counted in the kernel";
    "shared-interface" measured::shared_interface: "no other program waits for this one's timeouts";
};

/// Runs every check.
pub fn examine(facts: &Facts) -> Report {
    let named = |check: &Check| {
        let mut findings = (check.run)(facts);
        for finding in &mut findings {
            finding.check = check.name;
            finding.in_the_way = facts.in_the_way(&finding.fix);
        }
        findings
    };
    let mut findings: Vec<Finding> = CHECKS.iter().flat_map(named).collect();
    // The sort is stable: findings of equal status keep the order of the checks.
    findings.sort_by_key(|finding| finding.status);
    Report {
        ifname: facts.device.ifname.clone(),
        policy: facts.policy.to_string(),
        asked: facts.asked,
        programs: facts.programs.iter().map(|program| program.name()).collect(),
        findings,
    }
}

/// Joins up to six items, followed by the number of the rest.
fn listed<T: Display>(items: impl IntoIterator<Item = T>) -> String {
    const SHOWN: usize = 6;
    let items: Vec<T> = items.into_iter().collect();
    let mut text: Vec<String> = items.iter().take(SHOWN).map(ToString::to_string).collect();
    if items.len() > SHOWN {
        text.push(format!("{} more", items.len() - SHOWN));
    }
    text.join(", ")
}

/// Formats CPUs as the kernel lists them.
fn cpus(cpus: &[usize]) -> String {
    napkin_os::sched::CpuList(cpus.to_vec()).to_string()
}

/// Formats a time as a policy writes it.
fn time(nanoseconds: u64) -> String {
    napkin_policy::Time(nanoseconds).to_string()
}

/// Formats the length of the observation window.
fn window(facts: &Facts) -> String {
    format!("{} ms", facts.measured.window / napkin_policy::MILLISECOND)
}

/// The NAPI IDs of sockets, without 0.
fn ids<'a>(sockets: impl IntoIterator<Item = &'a super::Socket>) -> BTreeSet<u32> {
    sockets.into_iter().map(|socket| socket.napi_id).filter(|id| *id != 0).collect()
}

#[cfg(test)]
mod tests;
