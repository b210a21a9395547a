//! Checks of how the programs wait.

use std::collections::BTreeMap;

use napkin_policy::MICROSECOND;

use super::{listed, time};
use crate::doctor::{Facts, Finding, Program, Wait};

/// Formats the observed waits, one item for each epoll, with the range of timeouts: a program that counts
/// down to its next timer uses another timeout each time.
fn show(waits: &[&Wait]) -> String {
    // An infinite timeout sorts as the longest.
    const ENDLESS: u64 = u64::MAX;
    let mut by_epoll: BTreeMap<i32, (u64, u64, u64)> = BTreeMap::new();
    for wait in waits {
        let timeout = wait.timeout.unwrap_or(ENDLESS);
        let (least, most, times) = by_epoll.entry(wait.epoll).or_insert((timeout, timeout, 0));
        *least = timeout.min(*least);
        *most = timeout.max(*most);
        *times = times.saturating_add(wait.times);
    }
    let timeout = |timeout: u64| if timeout == ENDLESS { "-1".into() } else { time(timeout) };
    listed(by_epoll.into_iter().map(|(epoll, (least, most, times))| {
        let least_to_most = if least == most {
            timeout(least)
        } else {
            format!("{} to {}", timeout(least), timeout(most))
        };
        format!("epoll {epoll}: timeout {least_to_most} ({times} times)")
    }))
}

/// A timeout, in nanoseconds, from which empty wake-ups are too rare to matter: one a second ends at most one
/// suspension.
const SELDOM: u64 = 1_000_000_000;

/// By the kernel's rule a wait with a zero timeout never busy polls. A finite timeout wakes a program that
/// has nothing to do, and ends its instance's suspension each time.
pub(super) fn timeout(facts: &Facts) -> Vec<Finding> {
    if facts.device.napis.is_empty() || !facts.application_polls() {
        return vec![];
    }
    let mut findings = Vec::new();
    for program in &facts.programs {
        let name = program.name();
        if program.epolls.as_ref().is_ok_and(Vec::is_empty) {
            continue;
        }
        if let Err(missing) = &program.waits {
            findings.push(Finding::unknown(format!("{name}: its waits cannot be seen"), missing));
            continue;
        }
        let waits = program.serving_waits(facts);
        if waits.is_empty() {
            findings.push(not_seen(facts, program));
            continue;
        }
        let some = |kind: fn(&Wait) -> bool| -> Vec<&Wait> {
            waits.iter().filter(|wait| kind(wait)).copied().collect()
        };
        let zero = some(|wait| wait.timeout == Some(0));
        let finite = some(|wait| matches!(wait.timeout, Some(1..)));
        findings.push(if program.mostly_zero_timeouts(facts) {
            let what =
                format!("{name} waits with a zero timeout, and such a wait never busy polls");
            if facts.is_bystander(program) {
                Finding::advice(what, show(&zero), None)
            } else {
                Finding::fault(what, show(&zero), facts.attach(program))
            }
        } else if !finite.is_empty() && facts.policy.application.spin {
            Finding::ok(format!("{name} never sleeps for long"), show(&finite))
        } else if finite.iter().any(|wait| wait.timeout < Some(SELDOM)) {
            Finding::advice(
                format!("{name} wakes up though nothing has come, which ends the suspension"),
                show(&finite),
                None,
            )
        } else if facts.policy.application.spin {
            Finding::advice(
                format!("{name} sleeps until something comes; the policy's program never sleeps"),
                show(&waits),
                None,
            )
        } else {
            Finding::ok(format!("{name} waits without end, or for long"), show(&waits))
        });
    }
    findings
}

/// Explains why no wait was observed on the epolls that matter.
fn not_seen(facts: &Facts, program: &Program) -> Finding {
    let what = format!("{}: how it waits", program.name());
    if program.serving(facts).is_empty() {
        return Finding::unknown(what, format!("a connection to it over {}", facts.device.ifname));
    }
    let looks = program.looks;
    let missing = match &program.uncounted {
        Some(uncounted) => format!("it slept in none of {looks} looks, and {uncounted}"),
        None => format!("a wait: it slept in none of {looks} looks, and called none"),
    };
    Finding::unknown(what, missing)
}

/// A wait that takes fewer events than this costs a system call for almost every request.
const SMALL_BATCH: u32 = 8;

/// 2024's rule: the suspension lasts for a batch, whose size `maxevents` bounds. The time of a request is
/// unknown here; `gro-flush-timeout` stands for it, by the same rule.
pub(super) fn maxevents(facts: &Facts) -> Vec<Finding> {
    if facts.device.napis.is_empty() || !facts.means_to_suspend() {
        return vec![];
    }
    let mut findings = Vec::new();
    for program in &facts.programs {
        let name = program.name();
        let Some((largest, batch)) = program.largest_batch(facts) else { continue };
        let serving = program.serving(facts);
        let sockets = serving.iter().find(|(epoll, _)| epoll.fd == largest.epoll);
        let sockets = sockets.map_or(0, |(_, sockets)| sockets.len() as u64);
        let settings = facts.instances().first().map(|napi| napi.settings).unwrap_or_default();
        let period = settings.gro_flush_timeout.unwrap_or(0).max(MICROSECOND);
        let suspension = settings.irq_suspend_timeout.unwrap_or(0);
        if suspension < period {
            // `suspend-timeout` reports what has to be fixed first.
            continue;
        }
        let lasts = batch.saturating_mul(period);
        let seen = format!(
            "epoll {}: maxevents {}, {sockets} connections; irq-suspend-timeout {}",
            largest.epoll,
            largest.maxevents,
            time(suspension)
        );
        findings.push(if lasts > suspension {
            Finding::advice(
                format!(
                    "{name}: a full batch of {batch} requests of {} lasts {}, longer than the \
                     suspension",
                    time(period),
                    time(lasts)
                ),
                seen,
                facts.apply(),
            )
        } else if largest.maxevents < SMALL_BATCH && sockets > u64::from(largest.maxevents) {
            Finding::advice(
                format!("{name}: its waits take few events, so each pays for few requests"),
                seen,
                None,
            )
        } else {
            Finding::ok(format!("{name}: a full batch fits into the suspension"), seen)
        });
    }
    findings
}

/// A program that spins takes the CPU from the softirqs without busy polling.
pub(super) fn spinning(facts: &Facts) -> Vec<Finding> {
    if facts.device.napis.is_empty() {
        return vec![];
    }
    let wanted = facts.policy.application.spin;
    let mut findings = Vec::new();
    for program in &facts.programs {
        if program.threads.iter().all(|thread| thread.slept.is_none()) {
            let missing = match &program.waits {
                Err(missing) => missing.clone(),
                Ok(_) => "its threads' states".into(),
            };
            let what = format!("{}: whether it spins", program.name());
            findings.push(Finding::unknown(what, missing));
            continue;
        }
        let spins = program.spinning();
        let name = program.name();
        let seen = listed(spins.iter().map(|it| {
            let (tid, part, looks) = (it.tid, it.permille / 10, program.looks);
            format!("thread {tid}: {part} % of a CPU, asleep in none of {looks} looks")
        }));
        findings.push(match (spins.is_empty(), wanted) {
            (true, false) => Finding::ok(format!("{name} sleeps"), "its threads' system calls"),
            (false, true) => Finding::ok(format!("{name} spins, as the policy says"), seen),
            (true, true) => Finding::advice(
                format!("{name} sleeps, and the policy's program never does"),
                "its threads' system calls",
                if facts.none_spins() { facts.attach(program) } else { None },
            ),
            (false, false) => Finding::advice(
                format!("{name} is busy all the time: it spins, or has more to do than it can"),
                seen,
                None,
            ),
        });
    }
    findings
}

/// Go's runtime has one epoll for all sockets, and polls it with a zero timeout while any goroutine runs;
/// only an idle process waits on it.
pub(super) fn go_runtime(facts: &Facts) -> Vec<Finding> {
    if facts.device.napis.is_empty() || !facts.application_polls() {
        return vec![];
    }
    let mut findings = Vec::new();
    for program in &facts.programs {
        let name = program.name();
        match &program.go {
            Ok(true) => findings.push(Finding::advice(
                format!(
                    "{name} cannot profit: Go's runtime puts all sockets on one epoll, which any \
                     of its threads looks at, mostly with a zero timeout that never busy polls"
                ),
                "its program has a note of Go's linker",
                if facts.is_bystander(program) { None } else { facts.attach(program) },
            )),
            Ok(false) => {
                let seen = "no note of Go's linker in its program";
                findings.push(Finding::ok(format!("{name} is not Go's"), seen));
            }
            Err(missing) => {
                findings.push(Finding::unknown(format!("{name}: whether it is Go's"), missing));
            }
        }
    }
    findings
}
