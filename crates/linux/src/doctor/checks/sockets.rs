//! Checks of the programs' sockets.

use napkin_policy::Policy;

use super::{ids, listed};
use crate::doctor::{Facts, Finding, Fix, SocketKind};

/// A socket learns its instance's NAPI ID from the packets that come in for it. Without it, neither epoll nor
/// a receive call knows what to poll. On a veth a missing ID also shows that packets bypass NAPI, where no
/// setting of an instance acts on them.
pub(super) fn napi_id(facts: &Facts) -> Vec<Finding> {
    let polls = facts.application_polls() || facts.policy.application.socket_busy_polls();
    let may_pass_by = is_veth(facts) && facts.policy.instance != Policy::BASE.instance;
    if facts.device.napis.is_empty() || !(polls || may_pass_by) {
        return vec![];
    }
    let mut findings = Vec::new();
    for program in &facts.programs {
        let name = program.name();
        if let Err(missing) = &program.sockets {
            findings.push(Finding::unknown(format!("{name}: its sockets cannot be seen"), missing));
            continue;
        }
        let served = program.served(facts);
        let streams = || served.iter().filter(|socket| socket.kind == SocketKind::Stream);
        let without: Vec<_> = streams().filter(|socket| socket.napi_id == 0).collect();
        let with = served.iter().filter(|socket| socket.napi_id != 0).count();
        // A known ID is not worth reporting if nothing busy polls.
        if !polls && without.is_empty() {
            continue;
        }
        // A program that busy polls needs an ID on each socket; otherwise a socket without one may be another
        // device's.
        findings.push(if !without.is_empty() && (polls || with == 0) {
            let seen = format!(
                "SO_INCOMING_NAPI_ID is 0 on {} of {} connections (descriptors {})",
                without.len(),
                streams().count(),
                listed(without.iter().map(|socket| socket.fd))
            );
            let (why, fix) = without_id(facts);
            if polls {
                let what = "sockets do not know their instance, and are never busy polled";
                Finding::fault(format!("{name}: {what}: {why}"), seen, fix)
            } else {
                // A connection that has been idle since then is no fault, and whether it was idle is unknown.
                let what = "whether its connections' packets pass no instance, so that what is set there does nothing";
                let unknown = Finding::unknown(
                    format!("{name}: {what}: {why}"),
                    format!("packets that came since: {seen}"),
                );
                Finding { fix: fix.into_iter().collect(), ..unknown }
            }
        } else if with == 0 {
            Finding::unknown(
                format!("{name}: whether its sockets know their instance"),
                format!("a connection to it over {}", facts.device.ifname),
            )
        } else {
            let ids = listed(ids(served.iter().copied()));
            Finding::ok(
                format!("{name}: {with} sockets know their instance"),
                format!("SO_INCOMING_NAPI_ID {ids}"),
            )
        });
    }
    findings
}

fn is_veth(facts: &Facts) -> bool {
    facts.device.driver.as_deref() == Some("veth")
}

/// Why a device's sockets have no NAPI ID, and the fix.
fn without_id(facts: &Facts) -> (&'static str, Option<Fix>) {
    if is_veth(facts) {
        // veth passes large packets of local senders on without NAPI.
        return (
            "the other end of the veth sends large packets past NAPI, or they came before NAPI was on",
            Some(Fix::PeerOffloads),
        );
    }
    let why = "their packets came in by another device (ip route get CLIENT says which), or before \
               NAPI was on";
    (why, None)
}

/// 2025's `busypoll`: a receive call polls if its socket has the option, or if `net.core.busy_read` was set
/// when the socket was created.
pub(super) fn busy_poll(facts: &Facts) -> Vec<Finding> {
    let wanted = facts.policy.application;
    if !wanted.socket_busy_polls() || facts.device.napis.is_empty() {
        return vec![];
    }
    let mut findings = Vec::new();
    for program in &facts.programs {
        let (name, served) = (program.name(), program.served(facts));
        if served.is_empty() {
            // `napi-id` reports what is missing.
            continue;
        }
        let off: Vec<_> = served.iter().filter(|socket| socket.busy_poll_usecs == 0).collect();
        findings.push(if off.is_empty() {
            let usecs = listed(served.iter().map(|socket| socket.busy_poll_usecs));
            Finding::ok(
                format!("{name}: its receive calls busy poll"),
                format!("SO_BUSY_POLL {usecs}"),
            )
        } else {
            Finding::fault(
                format!("{name}: its receive calls do not busy poll"),
                format!(
                    "SO_BUSY_POLL is 0 on {} of {} sockets (descriptors {})",
                    off.len(),
                    served.len(),
                    listed(off.iter().map(|socket| socket.fd))
                ),
                facts.attach(program),
            )
        });
    }
    findings
}
