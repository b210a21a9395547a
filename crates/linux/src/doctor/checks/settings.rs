//! Checks of the instances' settings: against the policy, and against each other.

use napkin_policy::Threaded;

use super::{listed, time};
use crate::doctor::target::{LONG_PERIOD, LONG_SUSPENSION, PROPORTION, SHORT_PERIOD};
use crate::doctor::{Facts, Finding, Status, Support};
use napkin_kernel::settings::{Setting, Settings};

/// A mode that the kernel lacks cannot be fixed by a setting.
pub(super) fn support(facts: &Facts) -> Vec<Finding> {
    let policy = facts.policy;
    vec![match &facts.support {
        Ok(Support::Yes) => {
            Finding::ok(format!("this kernel can do {policy}"), "probed part by part")
        }
        Ok(Support::No { lacks, nearest }) => Finding::fault(
            format!("this kernel cannot do {policy}"),
            lacks,
            nearest.and(facts.apply()),
        ),
        Err(missing) => Finding::unknown(format!("whether this kernel can do {policy}"), missing),
    }]
}

/// Whether another check reports a setting: it says what is wrong with the value, and not only that it
/// differs.
fn named_elsewhere(facts: &Facts, setting: Setting) -> bool {
    let wrong = |findings: Vec<Finding>| findings.iter().any(|it| it.status == Status::Fault);
    match setting {
        Setting::Threaded => true,
        Setting::IrqSuspendTimeout => wrong(suspend_timeout(facts)),
        Setting::DeferHardIrqs | Setting::GroFlushTimeout => wrong(deferral(facts)),
    }
}

/// Compares the requested policy with the settings. Without a requested policy there is nothing to compare.
pub(super) fn settings(facts: &Facts) -> Vec<Finding> {
    if !facts.asked || facts.device.napis.is_empty() {
        return vec![];
    }
    let wanted = Settings::of(&facts.policy.instance);
    // A value that the target policy prefers over the requested one is not wrong.
    let better = Settings::of(&facts.target().instance);
    let (mut other, mut differ) = (Vec::new(), Vec::new());
    let mut elsewhere = false;
    for setting in Setting::ALL {
        let Some(want) = wanted.get(setting) else { continue };
        for napi in facts.instances() {
            let Some(have) = napi.settings.get(setting) else { continue };
            if have == want || better.get(setting) == Some(have) {
                continue;
            }
            if named_elsewhere(facts, setting) {
                elsewhere = true;
                continue;
            }
            let text = format!(
                "NAPI {}: {setting} {}, not {}",
                napi.id,
                setting.show(have),
                setting.show(want)
            );
            // On instead of off is another mode; a different number is the same mode with another value.
            if (have == 0) == (want == 0) { differ.push(text) } else { other.push(text) }
        }
    }
    if elsewhere && other.is_empty() && differ.is_empty() {
        return vec![];
    }
    vec![if !other.is_empty() {
        other.append(&mut differ);
        let what = format!("the instances are not set to {}", facts.policy);
        Finding::fault(what, listed(other), facts.apply())
    } else if !differ.is_empty() {
        let what = format!("the instances are set much like {}, but not to it", facts.policy);
        Finding::advice(what, listed(differ), facts.apply())
    } else {
        let ids = listed(facts.instances().iter().map(|napi| napi.id));
        Finding::ok(format!("the instances are set to {}", facts.policy), format!("NAPI {ids}"))
    }]
}

/// Whether the policy's poller polls.
pub(super) fn threaded(facts: &Facts) -> Vec<Finding> {
    if facts.device.napis.is_empty() {
        return vec![];
    }
    let wanted = match facts.policy.instance.threaded {
        Threaded::Disabled => 0,
        Threaded::Enabled => 1,
        Threaded::BusyPoll => 2,
        // The kernel has no such mode, as `kernel-support` reports.
        Threaded::Workqueue => return vec![],
    };
    let show = |value: u32| Setting::Threaded.show(u64::from(value));
    let known: Vec<_> = facts
        .instances()
        .into_iter()
        .filter_map(|napi| Some((napi.id, napi.settings.threaded?)))
        .collect();
    if known.is_empty() {
        let missing = "napi-get has no attribute threaded (Linux 6.17 has it), nor has sysfs";
        return vec![Finding::unknown("who polls cannot be seen", missing)];
    }
    let wrong: Vec<_> = known.iter().filter(|(_, have)| *have != wanted).collect();
    vec![if wrong.is_empty() {
        Finding::ok("who polls is as the policy says", format!("threaded {}", show(wanted)))
    } else {
        let seen =
            listed(wrong.iter().map(|(id, it)| format!("NAPI {id}: threaded {}", show(*it))));
        let what = match wanted {
            0 => "threads poll, where the policy leaves it to the softirqs",
            1 => "the instances have no threads that sleep when there is nothing to do",
            _ => "the instances' threads do not busy poll",
        };
        Finding::fault(what, seen, facts.apply())
    }]
}

/// Deferral needs both of its settings, and suspension inherits its masking from it: without deferral, each
/// packet raises an interrupt whatever the program does (semantics of `complete_done`).
pub(super) fn deferral(facts: &Facts) -> Vec<Finding> {
    if facts.device.napis.is_empty() || facts.policy.instance.threaded == Threaded::BusyPoll {
        return vec![];
    }
    let wanted = facts.policy.instance.defers() || facts.means_to_suspend();
    let mut wrong = Vec::new();
    for napi in facts.instances() {
        let Settings { defer_hard_irqs, gro_flush_timeout, .. } = napi.settings;
        match (defer_hard_irqs, gro_flush_timeout) {
            (Some(0), Some(0)) if wanted => wrong.push((napi.id, "defer-hard-irqs 0")),
            (Some(0), Some(1..)) if wanted || !facts.asked => {
                wrong.push((napi.id, "defer-hard-irqs 0"));
            }
            (Some(1..), Some(0)) => wrong.push((napi.id, "gro-flush-timeout 0")),
            _ => {}
        }
    }
    if wrong.is_empty() {
        if !wanted {
            return vec![];
        }
        let example = facts.instances().first().map(|napi| napi.settings.policy());
        let seen = example.map_or_else(String::new, |it| {
            format!(
                "defer-hard-irqs {}, gro-flush-timeout {}",
                it.defer_hard_irqs,
                time(it.gro_flush_timeout)
            )
        });
        return vec![Finding::ok("interrupts stay masked between polls", seen)];
    }
    let seen = listed(wrong.iter().map(|(id, what)| format!("NAPI {id}: {what}")));
    vec![if wanted {
        let what = if facts.means_to_suspend() {
            "deferral is off, and without it nothing keeps interrupts suspended"
        } else {
            "deferral is off: an interrupt comes as soon as the queue is empty"
        };
        Finding::fault(what, seen, facts.apply())
    } else {
        let what = "deferral is half set, which does nothing: it takes a count and a timeout";
        Finding::advice(what, seen, facts.apply())
    }]
}

/// 2024's rule: the timeout is about the time of a request.
pub(super) fn flush_timeout(facts: &Facts) -> Vec<Finding> {
    if facts.policy.instance.threaded == Threaded::BusyPoll {
        return vec![];
    }
    let periods = facts.instances().into_iter().filter_map(|napi| {
        let instance = napi.settings.policy();
        instance.defers().then_some((instance.gro_flush_timeout, napi.id))
    });
    let periods: Vec<_> = periods.collect();
    let (Some(shortest), Some(longest)) = (periods.iter().min(), periods.iter().max()) else {
        return vec![];
    };
    let seen =
        |(period, id): &(u64, u32)| format!("NAPI {id}: gro-flush-timeout {}", time(*period));
    // `fullbusy` never reaches its 5 ms: its program polls without end.
    let program_polls = facts.policy.application.spin && !facts.programs.is_empty();
    vec![if longest.0 >= LONG_PERIOD && !program_polls {
        let what = "packets for a program that does not busy poll wait this long for the next poll; the \
                    time of a request is enough";
        Finding::advice(what, seen(longest), facts.apply())
    } else if shortest.0 < SHORT_PERIOD {
        let what = "the timer fires more often than packets can gather";
        Finding::advice(what, seen(shortest), facts.apply())
    } else {
        Finding::ok("the deferred polls are about a request apart", seen(longest))
    }]
}

/// 2024's rule: the timeout is the time of a request times the largest batch.
pub(super) fn suspend_timeout(facts: &Facts) -> Vec<Finding> {
    if facts.device.napis.is_empty() || !facts.means_to_suspend() {
        return vec![];
    }
    let mut findings = Vec::new();
    let mut seen_one = None;
    for napi in facts.instances() {
        let Some(suspension) = napi.settings.irq_suspend_timeout else { continue };
        let period = napi.settings.gro_flush_timeout.unwrap_or(0);
        let seen = format!(
            "NAPI {}: irq-suspend-timeout {}, gro-flush-timeout {}",
            napi.id,
            time(suspension),
            time(period)
        );
        let finding = if suspension == 0 {
            Finding::fault("interrupts cannot be suspended: the timeout is 0", seen, facts.apply())
        } else if suspension < period {
            Finding::fault(
                "suspending brings the next poll nearer instead of putting it off: \
                 irq-suspend-timeout is shorter than gro-flush-timeout",
                seen,
                facts.apply(),
            )
        } else if suspension < period.saturating_mul(PROPORTION) {
            Finding::advice(
                "irq-suspend-timeout is hardly longer than gro-flush-timeout: a batch of a few \
                 requests outlasts it",
                seen,
                facts.apply(),
            )
        } else if suspension > LONG_SUSPENSION {
            Finding::advice(
                "a program that hangs leaves its queue unpolled for this long",
                seen,
                facts.apply(),
            )
        } else {
            seen_one = Some(seen);
            continue;
        };
        findings.push(finding);
    }
    if findings.is_empty() {
        findings.push(match seen_one {
            Some(seen) => Finding::ok("the suspension lasts for a batch of requests", seen),
            None => Finding::unknown(
                "irq-suspend-timeout cannot be seen",
                "napi-get has no such attribute (Linux 6.13 has it)",
            ),
        });
    }
    // Report only the worst.
    findings.sort_by_key(|finding| finding.status);
    findings.truncate(1);
    findings
}
