//! What went on in a short window, and who else is concerned.

use napkin_core::MILLISECOND;
use napkin_core::policy::Threaded;

use super::{listed, time, window};
use crate::doctor::{Facts, Finding};

/// A softirq that stopped at its budget or its time.
pub(super) fn squeezes(facts: &Facts) -> Vec<Finding> {
    let window = window(facts);
    vec![match facts.measured.squeezes {
        Ok(0) => Finding::ok("softirqs get through", format!("time_squeeze +0 in {window}")),
        Ok(more) => Finding::advice(
            "softirqs stop before they are through: there is more to do than they may take",
            format!("time_squeeze +{more} in {window}"),
            Some("sysctl -w net.core.netdev_budget=600".into()),
        ),
        Err(ref missing) => Finding::unknown("whether softirqs get through", missing),
    }]
}

/// Packets of devices without NAPI, and of RPS, wait at a CPU's backlog.
pub(super) fn drops(facts: &Facts) -> Vec<Finding> {
    let window = window(facts);
    vec![match facts.measured.drops {
        Ok(0) => Finding::ok("no backlog drops packets", format!("dropped +0 in {window}")),
        Ok(more) => Finding::advice(
            "a CPU's backlog is full and drops packets",
            format!("softnet_stat: dropped +{more} in {window}"),
            Some("sysctl -w net.core.netdev_max_backlog=10000".into()),
        ),
        Err(ref missing) => Finding::unknown("whether backlogs drop packets", missing),
    }]
}

/// Whether the mode is active, and not only set: counted in the kernel.
pub(super) fn poller(facts: &Facts) -> Vec<Finding> {
    if facts.device.napis.is_empty() {
        return vec![];
    }
    let policy = facts.policy;
    let busy = policy.epoll.enabled() || policy.application.socket_busy_polls();
    if !facts.application_polls() && !busy && !facts.polled_by_threads() {
        return vec![];
    }
    let what = "who takes the packets";
    let polls = match &facts.measured.polls {
        Ok(polls) => polls,
        Err(missing) => return vec![Finding::unknown(what, missing)],
    };
    let window = window(facts);
    if polls.packets == 0 {
        let missing = format!("traffic: no packet came in {window}");
        return vec![Finding::unknown(what, missing)];
    }
    let seen = format!(
        "{} packets in {window}; polls: {} by softirqs, {} by threads, {} by applications",
        polls.packets, polls.softirq, polls.thread, polls.application
    );
    let (taken, whose) = if facts.polled_by_threads() && !busy {
        (polls.thread, "the instances' threads")
    } else {
        (polls.application, "the program")
    };
    vec![if taken != 0 {
        Finding::ok(format!("{whose} poll"), seen)
    } else {
        Finding::advice(
            format!("packets come, and {whose} never polled: the mode is not active"),
            seen,
            None,
        )
    }]
}

/// The safety timeout is for a program that hangs. If it fires while the program works, a batch
/// takes longer than the suspension, and interrupts come back in the middle of it.
pub(super) fn suspend_expiry(facts: &Facts) -> Vec<Finding> {
    if facts.device.napis.is_empty() || !facts.means_to_suspend() {
        return vec![];
    }
    let what = "whether suspensions end by their safety timeout";
    let window = window(facts);
    vec![match &facts.measured.polls {
        Err(missing) => Finding::unknown(what, missing),
        Ok(polls) => match polls.suspend_expiries {
            None => Finding::unknown(
                what,
                format!(
                    "a count of suspensions' timers alone: timers fired in {window}, and deferral's \
                     are among them"
                ),
            ),
            Some(0) if polls.application == 0 => {
                Finding::unknown(what, format!("a program that polls: none did in {window}"))
            }
            Some(0) => Finding::ok(
                "no suspension ended by its safety timeout",
                format!("0 expiries in {window}, {} polls by applications", polls.application),
            ),
            Some(fired) => Finding::advice(
                "suspensions end by their safety timeout: the program takes longer for a batch",
                format!("{fired} expiries in {window}"),
                Some(format!(
                    "napkin apply {},irq-suspend-timeout={} --dev {}",
                    facts.policy,
                    time(facts.policy.instance.irq_suspend_timeout.saturating_mul(2)),
                    facts.device.ifname
                )),
            ),
        },
    }]
}

/// Deferral in all from which on others notice.
const NOTICED: u64 = MILLISECOND;

/// Whoever shares the queue and does not busy poll waits for its timers.
pub(super) fn shared_interface(facts: &Facts) -> Vec<Finding> {
    let longest = facts.device.napis.iter().map(|napi| {
        let instance = napi.settings.policy();
        let suspends = if instance.suspends() { instance.irq_suspend_timeout } else { 0 };
        if instance.defers() { instance.gro_flush_timeout.max(suspends) } else { 0 }
    });
    let longest = longest.max().unwrap_or(0);
    if longest < NOTICED || facts.policy.instance.threaded == Threaded::BusyPoll {
        return vec![];
    }
    vec![match &facts.others {
        Err(missing) => Finding::unknown("who else has sockets on these instances", missing),
        Ok(others) if others.is_empty() => Finding::ok(
            "no other program has sockets on these instances",
            match &facts.unseen {
                none if none.is_empty() => "SO_INCOMING_NAPI_ID of all processes' sockets".into(),
                some => format!(
                    "SO_INCOMING_NAPI_ID of the sockets of all processes but {some} refusing to be \
                     looked at"
                ),
            },
        ),
        Ok(others) => {
            let queue = facts.instances().first().and_then(|it| it.rx_queues.first()).copied();
            let mend = format!(
                "napkin apply {} --dev {} --queue {}    (and steer the others' flows to another: \
                 ethtool -N)",
                facts.policy,
                facts.device.ifname,
                queue.unwrap_or(0)
            );
            Finding::advice(
                format!("other programs may wait up to {} for their packets", time(longest)),
                listed(others.iter().map(|it| format!("{}[{}]", it.comm, it.pid))),
                (facts.device.napis.len() > 1).then_some(mend),
            )
        }
    }]
}
