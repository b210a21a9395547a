//! Checks of what was counted in a short window, and of other programs on the same instances.

use napkin_policy::{MILLISECOND, Threaded};

use super::host::NETDEV_BUDGET;
use super::{listed, time, window};
use crate::doctor::{Facts, Finding, Fix, Host, Known};
use napkin_kernel::device::Napi;
use napkin_kernel::settings::Setting;
use napkin_os::procfs::Sysctl;

/// The largest packet budget to advise. Beyond it a larger limit does not help: the CPU cannot keep up.
const MOST_PACKETS: i64 = 1_200;

/// The largest time budget to advise, in microseconds: every other softirq of the CPU, and the thread that
/// the softirq interrupted, wait for it.
const MOST_USECS: i64 = 16_000;

/// A softirq that stopped at its packet or time budget; the kernel does not count which.
pub(super) fn squeezes(facts: &Facts) -> Vec<Finding> {
    let window = window(facts);
    vec![match facts.measured.squeezes {
        Ok(0) => Finding::ok("softirqs get through", format!("time_squeeze +0 in {window}")),
        Ok(more) => {
            let Host { netdev_budget, netdev_budget_usecs, .. } = &facts.host;
            let show = |name: Sysctl, value: &Known<i64>| {
                value.as_ref().map_or_else(Clone::clone, |value| format!("{name} {value}"))
            };
            let seen = format!(
                "time_squeeze +{more} in {window}; {}; {}",
                show(Sysctl::NetdevBudget, netdev_budget),
                show(Sysctl::NetdevBudgetUsecs, netdev_budget_usecs)
            );
            let what =
                "softirqs stop before they are through: there is more to do than they may take";
            let packets =
                larger(Sysctl::NetdevBudget, netdev_budget, 2 * NETDEV_BUDGET, MOST_PACKETS);
            let usecs =
                || larger(Sysctl::NetdevBudgetUsecs, netdev_budget_usecs, 4_000, MOST_USECS);
            Finding::advice(what, seen, packets.or_else(usecs))
        }
        Err(ref missing) => Finding::unknown("whether softirqs get through", missing),
    }]
}

/// Doubles the present value, within `least` and `most`; `None` if it is that large already, or unknown.
fn larger(name: Sysctl, present: &Known<i64>, least: i64, most: i64) -> Option<Fix> {
    let present = *present.as_ref().ok()?;
    let value = present.saturating_mul(2).clamp(least, most);
    (value > present).then_some(Fix::Sysctl { name, value })
}

/// The largest backlog to advise, in packets: at a million a second the last one is 100 ms late.
const MOST_BACKLOG: i64 = 100_000;

/// Packets of devices without NAPI, and of RPS, wait in a CPU's backlog.
pub(super) fn drops(facts: &Facts) -> Vec<Finding> {
    let window = window(facts);
    vec![match facts.measured.drops {
        Ok(0) => Finding::ok("no backlog drops packets", format!("dropped +0 in {window}")),
        Ok(more) => {
            let name = Sysctl::NetdevMaxBacklog;
            let backlog = &facts.host.netdev_max_backlog;
            let has = backlog.as_ref().map_or_else(Clone::clone, |it| format!("{name} {it}"));
            Finding::advice(
                "a CPU's backlog is full and drops packets",
                format!("softnet_stat: dropped +{more} in {window}; {has}"),
                larger(name, backlog, 10_000, MOST_BACKLOG),
            )
        }
        Err(ref missing) => Finding::unknown("whether backlogs drop packets", missing),
    }]
}

/// Whether the mode is active, and not only set, as counted in the kernel.
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
    let (taken, poller_name) = if facts.polled_by_threads() && !busy {
        (polls.thread, "the instances' threads")
    } else {
        (polls.application, "the program")
    };
    vec![if taken != 0 {
        Finding::ok(format!("{poller_name} poll"), seen)
    } else {
        Finding::advice(
            format!("packets come, and {poller_name} never polled: the mode is not active"),
            seen,
            None,
        )
    }]
}

/// Whether the settings last. If a driver registers its instances with a config (`napi_struct.config`), the
/// settings outlive the instance. Otherwise each new instance begins with the device's defaults. Some drivers
/// recreate instances at down and up, and most at a change of channels.
pub(super) fn lasting(facts: &Facts) -> Vec<Finding> {
    let receiving = facts.receiving();
    // Before Linux 6.13 the settings belong to the device, and stay with it.
    let of_instance = |napi: &&Napi| napi.settings.irq_suspend_timeout.is_some();
    let set = |napi: &Napi| Setting::ALL.iter().any(|it| napi.settings.get(*it).unwrap_or(0) != 0);
    if !receiving.iter().all(of_instance) || !receiving.iter().any(|napi| set(napi)) {
        return vec![];
    }
    let what = "whether the settings last when the driver makes its instances anew";
    let name = &facts.device.ifname;
    vec![match &facts.measured.keeps_settings {
        Err(missing) => Finding::unknown(what, missing),
        Ok(None) => {
            Finding::unknown(what, format!("traffic: no instance was polled in {}", window(facts)))
        }
        Ok(Some(true)) => Finding::ok(
            "the settings last: an instance that is made anew gets them back",
            format!("{name}'s driver has a place for them (napi_struct.config)"),
        ),
        Ok(Some(false)) => Finding::advice(
            format!(
                "nothing keeps the settings: when {name}'s driver makes its instances anew, as by ip \
                 link set down and up or a change of channels, they are back at the device's \
                 defaults; napkin apply again then, and napkin diff shows whether it is due"
            ),
            format!("{name}'s driver has no place for them (napi_struct.config is null)"),
            None,
        ),
    }]
}

/// The safety timeout is for a program that hangs. If it fires while the program works, a batch takes longer
/// than the suspension, and interrupts come back in the middle of it.
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
            // No timeout would be long enough: no application polls before it ends.
            Some(fired) if polls.application == 0 => Finding::advice(
                "suspensions end by their safety timeout, and the program does not poll: it hangs, or \
                 something in its epoll is always ready",
                format!("{fired} expiries in {window}, 0 polls by applications"),
                None,
            ),
            Some(fired) => Finding::advice(
                "suspensions end by their safety timeout: the program takes longer for a batch",
                format!(
                    "{fired} expiries in {window}, {} polls by applications; irq-suspend-timeout {}",
                    polls.application,
                    time(facts.longest_suspension())
                ),
                facts.apply(),
            ),
        },
    }]
}

/// The total deferral, in nanoseconds, from which other programs notice it.
const NOTICED: u64 = MILLISECOND;

/// A program that shares the queue and does not busy poll waits for its timers.
pub(super) fn shared_interface(facts: &Facts) -> Vec<Finding> {
    let waits = |napi: &Napi| {
        let instance = napi.settings.policy();
        let suspends = if instance.suspends() { instance.irq_suspend_timeout } else { 0 };
        if instance.defers() { instance.gro_flush_timeout.max(suspends) } else { 0 }
    };
    let long = facts.device.napis.iter().filter(|napi| waits(napi) >= NOTICED);
    let long: Vec<&Napi> = long.collect();
    if long.is_empty() || facts.policy.instance.threaded == Threaded::BusyPoll {
        return vec![];
    }
    let others = match &facts.others {
        Ok(others) => others,
        Err(missing) => {
            return vec![Finding::unknown("who else has sockets on these instances", missing)];
        }
    };
    let on = |napi: &Napi| others.iter().filter(|it| it.napi_ids.contains(&napi.id)).count();
    let shared: Vec<&Napi> = long.into_iter().filter(|napi| on(napi) > 0).collect();
    let Some(longest) = shared.iter().map(|napi| waits(napi)).max() else {
        return vec![Finding::ok(
            "no other program has sockets on these instances",
            match &facts.unseen {
                none if none.is_empty() => "SO_INCOMING_NAPI_ID of all processes' sockets".into(),
                some => format!(
                    "SO_INCOMING_NAPI_ID of the sockets of all processes but {some} refusing to be \
                     looked at"
                ),
            },
        )];
    };
    // Queues that the program does not use need no settings. A kernel that sets single instances also has the
    // suspend timeout.
    let used: Vec<u32> = facts.instances().iter().map(|napi| napi.id).collect();
    let free =
        |napi: &&&Napi| !used.contains(&napi.id) && napi.settings.irq_suspend_timeout.is_some();
    let release = |napi: &&Napi| {
        let queue = *napi.rx_queues.first()?;
        Some(Fix::Release { ifname: facts.device.ifname.clone(), queue })
    };
    let waiting =
        others.iter().filter(|it| shared.iter().any(|napi| it.napi_ids.contains(&napi.id)));
    vec![Finding::advice(
        format!(
            "other programs may wait up to {} for their packets (ethtool -N steers flows to other \
             queues)",
            time(longest)
        ),
        listed(waiting.map(|it| format!("{}[{}]", it.comm, it.pid))),
        shared.iter().filter(free).filter_map(release),
    )]
}
