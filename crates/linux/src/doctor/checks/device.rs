//! Checks of the device: its instances, and how packets reach them.

use super::{cpus, listed};
use crate::doctor::{Facts, Finding, Fix};

/// A device without instances has nothing to set, and nothing to poll.
pub(super) fn napi(facts: &Facts) -> Vec<Finding> {
    let device = &facts.device;
    let name = &device.ifname;
    if !device.napis.is_empty() {
        let ids = listed(device.napis.iter().map(|napi| napi.id));
        return vec![Finding::ok(
            format!("{name} has {} NAPI instances", device.napis.len()),
            format!("napi-get: {ids}"),
        )];
    }
    let seen = format!("napi-get has none for ifindex {}", device.ifindex);
    let driver = device.driver.as_deref();
    let (why, fix) = if name == "lo" {
        ("loopback has none, and never will: its packets go straight to the sockets", None)
    } else if !device.up {
        ("it is down", Some(Fix::LinkUp { ifname: name.clone() }))
    } else if driver == Some("veth") {
        ("a veth has them only while GRO is on", Some(Fix::Gro { ifname: name.clone() }))
    } else {
        ("its driver registers none, or does not say which queues they poll", None)
    };
    vec![Finding::fault(format!("{name} has no NAPI instance: {why}"), seen, fix)]
}

/// An operator who keeps a wish believes that it is in force.
pub(super) fn wishes(facts: &Facts) -> Vec<Finding> {
    let finding = |wish: &crate::doctor::Wish| {
        let name = &wish.name;
        match (wish.why.as_slice(), &wish.ifname) {
            ([], _) => Finding::ok(format!("the wish {name} is in force"), "each of its settings"),
            (why, Some(_)) => Finding::fault(
                format!(
                    "the wish {name} is not in force; systemctl status napkin says who holds it"
                ),
                why.join("; "),
                None,
            ),
            (why, None) => {
                Finding::fault(format!("{name} is wrong, and not held"), why.join("; "), None)
            }
        }
    };
    facts.wishes.iter().map(finding).collect()
}

/// RPS moves a packet to another CPU's backlog. A busy poll does not poll that backlog: it finds the packet
/// gone, and the wake-up comes from another CPU.
pub(super) fn rps(facts: &Facts) -> Vec<Finding> {
    if facts.device.napis.is_empty() {
        return vec![];
    }
    let polls = facts.application_polls() || facts.policy.application.socket_busy_polls();
    if !polls && !facts.polled_by_threads() {
        return vec![];
    }
    let queues = match &facts.receive.rps {
        Err(missing) => {
            return vec![Finding::unknown("whether RPS is on cannot be seen", missing)];
        }
        Ok(queues) => queues,
    };
    let on: Vec<_> = queues.iter().filter(|(_, cpus)| !cpus.is_empty()).collect();
    if on.is_empty() {
        let seen = "rps_cpus of every receive queue is 0";
        return vec![Finding::ok("packets stay on the CPU that polls them", seen)];
    }
    let seen = listed(on.iter().map(|(queue, to)| format!("rx-{queue}: rps_cpus {}", cpus(to))));
    let queue = if let [(queue, _)] = on[..] { Some(*queue) } else { None };
    let fix = Some(Fix::NoRps { ifname: facts.device.ifname.clone(), queue });
    let what = "RPS hands packets to other CPUs after the poll";
    vec![if polls {
        Finding::fault(format!("{what}: a busy poll does not get them"), seen, fix)
    } else {
        Finding::advice(format!("{what}: the instance's thread does half of the work"), seen, fix)
    }]
}

/// RFS is RPS to the CPU where the program last ran. It needs both of its settings.
pub(super) fn rfs(facts: &Facts) -> Vec<Finding> {
    if facts.device.napis.is_empty() || !facts.application_polls() {
        return vec![];
    }
    let queues = match &facts.receive.rps_flows {
        Ok(queues) => queues,
        Err(missing) => {
            return vec![Finding::unknown("whether RFS is on cannot be seen", missing)];
        }
    };
    let on: Vec<_> = queues.iter().filter(|(_, flows)| *flows != 0).collect();
    if on.is_empty() {
        return vec![Finding::ok("RFS is off", "rps_flow_cnt of every receive queue is 0")];
    }
    let (entries, total) = match &facts.host.rps_sock_flow_entries {
        Ok(entries) => (*entries, format!("net.core.rps_sock_flow_entries {entries}")),
        Err(missing) => (0, missing.clone()),
    };
    let seen = listed(on.iter().map(|(queue, flows)| format!("rx-{queue}: rps_flow_cnt {flows}")));
    let seen = format!("{seen}; {total}");
    let queue = if let [(queue, _)] = on[..] { Some(*queue) } else { None };
    let fix = Some(Fix::NoRfs { ifname: facts.device.ifname.clone(), queue });
    vec![if entries == 0 {
        let what = "RFS is half set: it begins when net.core.rps_sock_flow_entries is set, too";
        Finding::advice(what, seen, fix)
    } else {
        Finding::fault("RFS hands packets to the CPU where the program ran last", seen, fix)
    }]
}

/// Below this many entries, the packets of a suspension may not fit: 2025 was measured with 1024, and 2024's
/// batches were of up to 560 connections.
const SMALL_RING: u32 = 512;

/// Packets wait in the ring while interrupts are deferred or suspended.
pub(super) fn ring(facts: &Facts) -> Vec<Finding> {
    let waits = facts.policy.instance.defers() || facts.means_to_suspend();
    if facts.device.napis.is_empty() || !waits {
        return vec![];
    }
    match &facts.receive.ring {
        Err(missing) => vec![Finding::unknown("the receive ring cannot be seen", missing)],
        Ok(None) => vec![],
        Ok(Some(ring)) => {
            let seen = format!("ring: {} receive entries of at most {}", ring.entries, ring.most);
            let better = ring.most.min(1_024);
            vec![if ring.entries >= SMALL_RING || better <= ring.entries {
                Finding::ok("the receive ring is large enough", seen)
            } else {
                Finding::advice(
                    "the receive ring is small for packets that wait while interrupts are off",
                    seen,
                    Some(Fix::Ring { ifname: facts.device.ifname.clone(), entries: better }),
                )
            }]
        }
    }
}

/// Both mechanisms delay interrupts: the device's moderation adds its delay to the policy's. 2025 was
/// measured with moderation off; it causes most of 2024's `base` latency at low load.
pub(super) fn coalescing(facts: &Facts) -> Vec<Finding> {
    let matters = facts.policy.instance.defers() || facts.means_to_suspend();
    if facts.device.napis.is_empty() || !matters {
        return vec![];
    }
    match &facts.receive.adaptive {
        Err(missing) => vec![Finding::unknown("interrupt moderation cannot be seen", missing)],
        Ok(None) => vec![],
        Ok(Some(false)) => {
            vec![Finding::ok("the device does not moderate by itself", "adaptive-rx off")]
        }
        Ok(Some(true)) => vec![Finding::advice(
            "the device moderates its interrupts by itself, on top of deferral",
            "adaptive-rx on",
            Some(Fix::FixedModeration { ifname: facts.device.ifname.clone() }),
        )],
    }
}
