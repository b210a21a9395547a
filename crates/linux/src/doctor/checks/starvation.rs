//! Checks whether suspended instances are polled at all, and whether programs will starve them.
//!
//! Linux prolongs a suspension at each wait that finds anything, and polls only when a wait finds nothing: a
//! program that always finds something leaves its queue unpolled (docs/suspension-starves.md). A running
//! `guard` ends such a suspension.

use std::time::Duration;

use napkin_policy::Ns;

use super::{listed, time, window};
use crate::doctor::facts::{Epoll, Facts, Program, Unpolled};
use crate::doctor::finding::Finding;
use crate::doctor::fix::Fix;
use napkin_kernel::device::Napi;
use napkin_kernel::process::Ready;

/// How much longer than its timeout an instance may go without a poll: its timer and the softirq behind it
/// may be late by a kernel tick, at most 10 ms, each.
const LATE: Duration = Duration::from_millis(20);

/// Instances that starve now, as counted in the kernel.
pub(super) fn starvation(facts: &Facts) -> Vec<Finding> {
    let suspended: Vec<_> =
        facts.device.napis.iter().filter(|napi| napi.settings.policy().suspends()).collect();
    if suspended.is_empty() {
        return vec![];
    }
    let window = window(facts);
    let unpolled = match &facts.measured.unpolled {
        Err(missing) => return vec![Finding::unknown("whether an instance starves", missing)],
        Ok(unpolled) => unpolled,
    };
    let findings = unpolled.iter().filter_map(|Unpolled { napi_id, suspensions }| {
        let napi = suspended.iter().find(|napi| napi.id == *napi_id)?;
        let timeout = napi.settings.policy().irq_suspend_timeout;
        let seen = format!("0 polls, {suspensions} suspensions in {window}");
        if facts.measured.window <= longest_without(timeout) {
            let longer = format!("more than {} of looking: {seen}", time(timeout));
            return Some(Finding::unknown(format!("whether NAPI {napi_id} starves"), longer));
        }
        let what = format!(
            "NAPI {napi_id} starves: each wait of a program finds something else that is ready, and \
             nothing is received from its queue"
        );
        Some(Finding::fault(what, seen, without_suspension(facts)))
    });
    let findings: Vec<Finding> = findings.collect();
    if findings.is_empty() {
        let seen = format!("polls and suspensions of each in {window}");
        return vec![Finding::ok("no suspended instance starves", seen)];
    }
    findings
}

/// Programs that starve their instances, or will.
pub(super) fn always_ready(facts: &Facts) -> Vec<Finding> {
    if !facts.means_to_suspend() {
        return vec![];
    }
    let mut findings = Vec::new();
    let mut looked = false;
    for program in &facts.programs {
        for (epoll, _) in program.serving(facts) {
            looked = true;
            let what = format!("epoll {} of {}", epoll.fd, program.name());
            let ready = match others(epoll) {
                Ok(ready) if ready.is_empty() => continue,
                Ok(ready) => ready,
                Err(missing) => {
                    let what = format!("whether something is always ready in {what}");
                    findings.push(Finding::unknown(what, missing));
                    continue;
                }
            };
            let fix = if ready.iter().any(|it| it.writable) {
                "register it with EPOLLET, or for EPOLLOUT only while there is something to send"
            } else {
                "read it, or take it out of the epoll"
            };
            findings.push(Finding::fault(
                format!(
                    "{what} always has something ready: under suspension its instance is not polled. \
                     In the program: {fix}"
                ),
                format!("ready at each of several looks: {}", listed(ready)),
                without_suspension(facts),
            ));
        }
    }
    if looked && findings.is_empty() {
        let seen = "poll of the epolls and of what is in them";
        return vec![Finding::ok("no epoll always has something ready", seen)];
    }
    findings
}

/// What is always ready in an epoll, except sockets with packets to read: the program waits for those, and
/// under load some may always be ready.
fn others(epoll: &Epoll) -> Result<Vec<&Ready>, &String> {
    let other = |ready: &&Ready| ready.writable || !epoll.members.contains(&ready.fd);
    Ok(epoll.always_ready.as_ref()?.iter().filter(other).collect())
}

/// Whether an instance starves, or will.
pub(in crate::doctor) fn starves(facts: &Facts) -> bool {
    let now = facts.measured.unpolled.as_ref().is_ok_and(|unpolled| {
        let napi = |it: &Unpolled| facts.device.napi(it.napi_id);
        let long = |timeout| facts.measured.window > longest_without(timeout);
        let starves = |napi: &Napi| {
            let instance = napi.settings.policy();
            instance.suspends() && long(instance.irq_suspend_timeout)
        };
        unpolled.iter().filter_map(napi).any(starves)
    });
    let will = |program: &Program| {
        let serving = program.serving(facts);
        serving.iter().any(|(epoll, _)| others(epoll).is_ok_and(|ready| !ready.is_empty()))
    };
    now || facts.programs.iter().any(will)
}

/// The longest time, in nanoseconds, that an instance which does not starve goes without a poll.
fn longest_without(timeout: Ns) -> Ns {
    timeout.saturating_add(u64::try_from(LATE.as_nanos()).unwrap_or(u64::MAX))
}

/// The fix that applies the policy without suspension; none if the policy was requested.
fn without_suspension(facts: &Facts) -> Option<Fix> {
    if facts.asked { None } else { facts.apply() }
}
