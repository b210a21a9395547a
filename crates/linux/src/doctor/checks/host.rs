//! Checks of the whole machine, against the published set-ups.

use std::collections::BTreeSet;

use napkin_policy::Threaded;

use super::{cpus, listed};
use crate::doctor::{Facts, Finding, Fix, Known};
use napkin_os::procfs::Sysctl;

/// Whether the policy lets a thread occupy a CPU by design.
fn spins(facts: &Facts) -> bool {
    facts.policy.spins_by_design()
}

/// 2024 and 2025 were measured with one thread per core.
pub(super) fn smt(facts: &Facts) -> Vec<Finding> {
    if !facts.application_polls() && !spins(facts) {
        return vec![];
    }
    vec![match &facts.host.smt {
        Ok(false) => Finding::ok("CPUs do not share cores", "/sys/devices/system/cpu/smt/active 0"),
        Ok(true) => Finding::advice(
            "CPUs share cores: one that polls takes half of its sibling's",
            "/sys/devices/system/cpu/smt/active 1",
            Some(Fix::NoSmt),
        ),
        Err(missing) => Finding::unknown("whether CPUs share cores", missing),
    }]
}

/// From 2025's set-up: with timer migration on, timers of idle CPUs move to those that poll.
pub(super) fn timer_migration(facts: &Facts) -> Vec<Finding> {
    if !spins(facts) && !facts.policy.application.socket_busy_polls() {
        return vec![];
    }
    vec![match &facts.host.timer_migration {
        Ok(0) => Finding::ok("timers stay where they are", "kernel.timer_migration 0"),
        Ok(value) => Finding::advice(
            "timers of idle CPUs may go to one that polls",
            format!("kernel.timer_migration {value}"),
            Some(Fix::Sysctl { name: Sysctl::TimerMigration, value: 0 }),
        ),
        Err(missing) => Finding::unknown("where timers go", missing),
    }]
}

/// By default the kernel reserves 50 ms of each second from real-time threads. A thread that polls without
/// end loses them; one that sleeps never comes near the limit.
pub(super) fn rt_runtime(facts: &Facts) -> Vec<Finding> {
    let fifo: Vec<_> = facts
        .poll_threads
        .iter()
        .filter_map(|(id, thread)| Some((id, thread.tid, thread.fifo?)))
        .collect();
    if fifo.is_empty() {
        return vec![];
    }
    let seen =
        listed(fifo.iter().map(|(id, tid, it)| format!("NAPI {id}: thread {tid}, FIFO {it}")));
    let busy = facts.policy.instance.threaded == Threaded::BusyPoll;
    vec![match &facts.host.rt_runtime {
        Ok(-1) => Finding::ok(
            "real-time threads are not throttled",
            format!("{seen}; kernel.sched_rt_runtime_us -1"),
        ),
        Ok(value) if busy => Finding::fault(
            "a real-time thread that polls without end is stopped for a part of each second",
            format!("{seen}; kernel.sched_rt_runtime_us {value}"),
            fifo.iter().map(|(_, tid, _)| Fix::FairThread { tid: *tid }),
        ),
        Ok(value) => Finding::ok(
            "the real-time threads sleep when there is nothing to do, and are not throttled",
            format!("{seen}; kernel.sched_rt_runtime_us {value}"),
        ),
        Err(missing) => Finding::unknown("whether real-time threads are throttled", missing),
    }]
}

/// From 2025's set-up: unbound kernel work is kept off the CPUs that poll without end.
pub(super) fn workqueue(facts: &Facts) -> Vec<Finding> {
    if !spins(facts) {
        return vec![];
    }
    // Count only threads pinned to one CPU: where others run is unknown. Comparing with the number of online
    // CPUs does not tell them apart, as an unpinned thread may run on fewer where some are isolated.
    let pinned = |cpus: &Vec<usize>| cpus.len() == 1;
    let threads = facts.poll_threads.values().map(|thread| &thread.cpus);
    let programs = facts.programs.iter().flat_map(|it| it.threads.iter().map(|it| &it.cpus));
    let polling: BTreeSet<usize> = if facts.policy.application.spin {
        programs.filter(|it| pinned(it)).flatten().copied().collect()
    } else {
        threads.filter(|it| pinned(it)).flatten().copied().collect()
    };
    if polling.is_empty() {
        // No thread is pinned: there is no CPU to keep free.
        return vec![];
    }
    vec![match &facts.host.workqueue_cpus {
        Err(missing) => Finding::unknown("where kernel work runs", missing),
        Ok(work) => {
            let seen = format!("workqueue/cpumask: CPU {}", cpus(work));
            let polled: Vec<usize> = polling.iter().copied().collect();
            if !work.iter().any(|cpu| polling.contains(cpu)) {
                Finding::ok("kernel work keeps off the CPUs that poll", seen)
            } else {
                let without = |cpus: &[usize]| -> Vec<usize> {
                    cpus.iter().copied().filter(|cpu| !polling.contains(cpu)).collect()
                };
                let mut rest = without(work);
                if rest.is_empty() {
                    // Kernel work was confined to the CPUs that poll now.
                    rest = without(&facts.host.cpus);
                }
                Finding::advice(
                    format!("kernel work may run on CPU {}, which poll", cpus(&polled)),
                    seen,
                    (!rest.is_empty()).then_some(Fix::WorkqueueCpus { cpus: rest }),
                )
            }
        }
    }]
}

/// These two sysctls make every epoll, and every new socket, busy poll.
pub(super) fn busy_poll(facts: &Facts) -> Vec<Finding> {
    let mut missing = None;
    let mut on = Vec::new();
    let mut look = |name: Sysctl, value: &Known<i64>| match value {
        Ok(0) => {}
        Ok(value) => on.push((name, *value)),
        Err(why) => missing = Some(why.clone()),
    };
    look(Sysctl::BusyPoll, &facts.host.busy_poll);
    // The policy's sockets may have got their option from this sysctl, as in 2025.
    if !facts.policy.application.socket_busy_polls() {
        look(Sysctl::BusyRead, &facts.host.busy_read);
    }
    vec![if !on.is_empty() {
        Finding::advice(
            "busy polling is on for every program of this machine",
            listed(on.iter().map(|(name, value)| format!("{name} {value}"))),
            on.iter().map(|(name, _)| Fix::Sysctl { name: *name, value: 0 }),
        )
    } else if let Some(missing) = missing {
        Finding::unknown("whether busy polling is on for everyone", missing)
    } else {
        let seen = "net.core.busy_poll 0, net.core.busy_read 0";
        Finding::ok("only programs that ask for it busy poll", seen)
    }]
}

/// The kernel's default of `net.core.netdev_budget`, in packets.
pub(super) const NETDEV_BUDGET: i64 = 300;

/// A softirq that stops early leaves the rest to ksoftirqd.
pub(super) fn netdev_budget(facts: &Facts) -> Vec<Finding> {
    if facts.device.napis.is_empty() {
        return vec![];
    }
    vec![match &facts.host.netdev_budget {
        // `time-squeeze` advises a larger budget.
        Ok(_) if facts.measured.squeezes.as_ref().is_ok_and(|it| *it > 0) => return vec![],
        Ok(value) if *value < NETDEV_BUDGET => Finding::advice(
            "softirqs stop after fewer packets than the kernel's own limit",
            format!("net.core.netdev_budget {value}"),
            Some(Fix::Sysctl { name: Sysctl::NetdevBudget, value: NETDEV_BUDGET }),
        ),
        Ok(value) => Finding::ok(
            "softirqs may take enough packets",
            format!("net.core.netdev_budget {value}"),
        ),
        Err(missing) => Finding::unknown("how many packets a softirq may take", missing),
    }]
}
