//! Checks of the programs' epoll descriptors: their parameters, and which sockets they contain.

use std::collections::{BTreeMap, BTreeSet};

use super::{ids, listed};
use crate::doctor::{Epoll, Facts, Finding, Fix, Program, Socket};
use napkin_policy::EpollPolicy;

/// Formats parameters for the report.
fn read(params: EpollPolicy) -> String {
    format!(
        "busy poll {} us, budget {}, {}",
        params.busy_poll_usecs,
        params.busy_poll_budget,
        if params.prefer_busy_poll { "prefer" } else { "no prefer" }
    )
}

/// Returns the epoll descriptors to judge, with their parameters: those with connections of the device, or
/// all of them while there are none.
fn judged<'a>(facts: &Facts, program: &'a Program) -> Vec<(&'a Epoll, EpollPolicy)> {
    if facts.is_bystander(program) {
        // Another check explains why this program cannot busy poll.
        return vec![];
    }
    let serving: Vec<i32> = program.serving(facts).iter().map(|(epoll, _)| epoll.fd).collect();
    let matters = |epoll: &&Epoll| serving.is_empty() || serving.contains(&epoll.fd);
    let epolls = program.epolls.as_deref().unwrap_or_default();
    let with_params = |epoll: &'a Epoll| Some((epoll, *epoll.params.as_ref().ok()?));
    epolls.iter().filter(matters).filter_map(with_params).collect()
}

fn seen(epolls: &[(&Epoll, EpollPolicy)]) -> String {
    listed(epolls.iter().map(|(epoll, it)| format!("epoll {}: {}", epoll.fd, read(*it))))
}

/// Whether the checks of epoll parameters apply.
fn matters(facts: &Facts) -> bool {
    !facts.device.napis.is_empty() && facts.application_polls()
}

/// The suspend timeout has no effect by itself: a suspension begins with a wait on an epoll that prefers busy
/// polling.
pub(super) fn suspend_program(facts: &Facts) -> Vec<Finding> {
    if facts.device.napis.is_empty() || !facts.means_to_suspend() || !facts.programs.is_empty() {
        return vec![];
    }
    let name = &facts.device.ifname;
    if let Err(missing) = &facts.others {
        let what = format!("which programs have sockets on {name}");
        return vec![Finding::unknown(what, missing)];
    }
    vec![Finding::advice(
        "interrupts are never suspended: no program with sockets on the device asks for it",
        format!("no process has a socket with a NAPI id of {name}"),
        Some(Fix::Run { policy: facts.target(), ifname: name.clone() }),
    )]
}

/// Only a wait by epoll suspends interrupts.
pub(super) fn epoll(facts: &Facts) -> Vec<Finding> {
    if !matters(facts) {
        return vec![];
    }
    let mut findings = Vec::new();
    for program in &facts.programs {
        let name = program.name();
        let epolls = match &program.epolls {
            Ok(epolls) => epolls,
            Err(missing) => {
                let what = format!("{name}: its epoll descriptors cannot be seen");
                findings.push(Finding::unknown(what, missing));
                continue;
            }
        };
        let served = program.served(facts).len();
        let serving = program.serving(facts);
        if epolls.is_empty() && served == 0 && facts.programs.iter().any(waits_by_epoll) {
            // A server's parent process, which only starts and watches the serving ones.
            continue;
        }
        let bystander = facts.is_bystander(program);
        let bad = if bystander { Finding::advice } else { Finding::fault };
        let fix = if bystander { None } else { facts.attach(program) };
        findings.push(if epolls.is_empty() {
            bad(
                format!("{name} has no epoll: only epoll_wait busy polls for many sockets"),
                "no anon_inode:[eventpoll] among its descriptors".into(),
                fix,
            )
        } else if served != 0 && serving.is_empty() {
            bad(
                format!("{name} does not wait for its connections by epoll"),
                format!(
                    "none of its {served} connections is in one of its {} epolls",
                    epolls.len()
                ),
                fix,
            )
        } else if let Some((epoll, missing)) =
            epolls.iter().find_map(|it| Some((it, it.params.as_ref().err()?)))
        {
            Finding::unknown(format!("{name}: the parameters of epoll {}", epoll.fd), missing)
        } else {
            let serving = listed(serving.iter().map(|(epoll, sockets)| {
                format!("epoll {} with {} connections", epoll.fd, sockets.len())
            }));
            let seen = if serving.is_empty() { "no connection yet".into() } else { serving };
            Finding::ok(format!("{name} waits by epoll"), seen)
        });
    }
    findings
}

fn waits_by_epoll(program: &Program) -> bool {
    program.epolls.as_ref().is_ok_and(|epolls| !epolls.is_empty())
}

/// Whether the policy needs epolls that prefer busy polling.
fn prefers(facts: &Facts) -> bool {
    matters(facts) && (facts.means_to_suspend() || facts.policy.epoll.prefer_busy_poll)
}

/// Without the flag no wait suspends interrupts, and softirqs take the packets first.
pub(super) fn prefer(facts: &Facts) -> Vec<Finding> {
    if !prefers(facts) {
        return vec![];
    }
    let mut findings = Vec::new();
    for program in &facts.programs {
        let judged = judged(facts, program);
        let Ok(all) = &program.epolls else { continue };
        if judged.is_empty() {
            continue;
        }
        let name = program.name();
        let any = all.iter().any(|it| it.params.as_ref().is_ok_and(|it| it.prefer_busy_poll));
        findings.push(if any {
            Finding::ok(format!("{name} prefers busy polling"), seen(&judged))
        } else {
            let what = if facts.means_to_suspend() {
                "never suspends interrupts: none of its epolls prefers busy polling"
            } else {
                "leaves packets to the softirqs: none of its epolls prefers busy polling"
            };
            Finding::fault(format!("{name} {what}"), seen(&judged), facts.attach(program))
        });
    }
    findings
}

/// The flag belongs to an epoll context, not to the program.
pub(super) fn prefer_epoll(facts: &Facts) -> Vec<Finding> {
    if !prefers(facts) {
        return vec![];
    }
    let mut findings = Vec::new();
    for program in &facts.programs {
        let Ok(all) = &program.epolls else { continue };
        let preferring: Vec<_> = all
            .iter()
            .filter_map(|epoll| Some((epoll, *epoll.params.as_ref().ok()?)))
            .filter(|(_, params)| params.prefer_busy_poll)
            .collect();
        if preferring.is_empty() || program.serving(facts).is_empty() {
            // `prefer` has reported it, or no connection tells which epoll is the right one.
            continue;
        }
        let mut wrong = judged(facts, program);
        wrong.retain(|(_, params)| !params.prefer_busy_poll);
        let name = program.name();
        findings.push(if wrong.is_empty() {
            let right = listed(preferring.iter().map(|(epoll, _)| epoll.fd));
            Finding::ok(format!("{name} prefers on the right epolls"), format!("epoll {right}"))
        } else {
            Finding::fault(
                format!("{name} prefers busy polling on an epoll without these connections"),
                format!("{}; with connections {}", seen(&preferring), seen(&wrong)),
                facts.attach(program),
            )
        });
    }
    findings
}

/// For `napibusy` and `fullbusy`: how long a wait busy polls before it sleeps.
pub(super) fn usecs(facts: &Facts) -> Vec<Finding> {
    let wanted = facts.policy.epoll.busy_poll_usecs;
    if facts.device.napis.is_empty() || wanted == 0 {
        return vec![];
    }
    let what = |program: &Program| format!("{} busy polls before it sleeps", program.name());
    compare(facts, what, |have| {
        let EpollPolicy { busy_poll_usecs, .. } = have;
        match busy_poll_usecs {
            // With prefer a wait polls once; without it, the system-wide sysctl decides.
            0 => Some((true, "sleeps at once: its waits have no time to busy poll")),
            other if other != wanted => {
                Some((false, "busy polls for another time than the policy"))
            }
            _ => None,
        }
    })
}

/// A busy poll that finds nothing drops the epoll's NAPI ID (`ep_busy_loop`): the next packet waits for the
/// instance's timer, however long the program spins.
pub(super) fn in_vain(facts: &Facts) -> Vec<Finding> {
    let epoll = facts.policy.epoll;
    // Take the period in force: it may differ by now from that of the requested policy.
    let as_set = |napi: &&napkin_kernel::device::Napi| {
        let mut policy = facts.policy;
        policy.instance = napi.settings.policy();
        policy
    };
    let policies = facts.instances();
    let policies = policies.iter().map(as_set).filter(|it| it.instance.defers());
    let Some(policy) = policies.max_by_key(|it| it.instance.gro_flush_timeout) else {
        return vec![];
    };
    if !epoll.enabled() {
        return vec![];
    }
    let waits = napkin_policy::Time(policy.instance.gro_flush_timeout);
    let polls = match epoll.busy_poll_usecs {
        0 => "one pass a wait".to_owned(),
        usecs => format!("busy polls of {usecs} us"),
    };
    let seen = format!("{polls}, gro-flush-timeout {waits}");
    vec![if policy.timer_wait_after_empty_busy_poll().is_none() {
        Finding::ok(format!("a packet after an empty busy poll waits {waits} at the most"), seen)
    } else {
        Finding::advice(
            format!(
                "at low load a packet waits up to {waits}: after a busy poll that finds nothing epoll \
                 drops its NAPI id, and only the timer polls"
            ),
            seen,
            facts.apply(),
        )
    }]
}

/// The kernel's default takes 8 packets a poll; every published set-up has 64, the most that needs no privilege.
pub(super) fn budget(facts: &Facts) -> Vec<Finding> {
    let wanted = facts.policy.epoll.effective_budget();
    if !matters(facts) || !facts.policy.epoll.enabled() {
        return vec![];
    }
    let asked = facts.asked;
    let what = |program: &Program| format!("{} takes {wanted} packets a pass", program.name());
    compare(facts, what, |have| {
        let fewer = have.effective_budget() < wanted;
        // If the policy was derived from the settings, its budget was not requested: only advise.
        fewer.then_some((asked, "takes fewer packets a pass than the policy says"))
    })
}

/// Compares each program's epolls with the policy. `wrong` returns whether a deviation is a fault, and its
/// description.
fn compare(
    facts: &Facts,
    fine: impl Fn(&Program) -> String,
    wrong: impl Fn(EpollPolicy) -> Option<(bool, &'static str)>,
) -> Vec<Finding> {
    let mut findings = Vec::new();
    for program in &facts.programs {
        let judged = judged(facts, program);
        // `prefer` has reported epolls that do not busy poll at all.
        let polling: Vec<_> = judged.into_iter().filter(|(_, it)| it.enabled()).collect();
        if polling.is_empty() {
            continue;
        }
        let bad: Vec<_> = polling.iter().filter(|(_, it)| wrong(*it).is_some()).copied().collect();
        let worst = bad.iter().filter_map(|(_, it)| wrong(*it)).max_by_key(|(fault, _)| *fault);
        findings.push(match worst {
            None => Finding::ok(fine(program), seen(&polling)),
            Some((fault, what)) => {
                let what = format!("{} {what}", program.name());
                let make = if fault { Finding::fault } else { Finding::advice };
                make(what, seen(&bad), facts.attach(program))
            }
        });
    }
    findings
}

/// An epoll context has one NAPI ID, that of the last socket woken: it polls only that instance.
pub(super) fn one_instance(facts: &Facts) -> Vec<Finding> {
    if !matters(facts) {
        return vec![];
    }
    let mut findings = Vec::new();
    for program in &facts.programs {
        let (name, serving) = (program.name(), program.serving(facts));
        // Sockets of other devices count: they set the context's NAPI ID as well.
        let of = |epoll: &Epoll| {
            let all = program.sockets.as_deref().unwrap_or_default().iter();
            let members: BTreeSet<i32> = epoll.members.iter().copied().collect();
            ids(all.filter(|it: &&Socket| members.contains(&it.fd) && carries(it)))
        };
        let known: Vec<_> = serving.iter().map(|(epoll, _)| (epoll.fd, of(epoll))).collect();
        if known.iter().all(|(_, ids)| ids.is_empty()) {
            continue;
        }
        let several: Vec<_> = known.iter().filter(|(_, ids)| ids.len() > 1).collect();
        let show = |(fd, ids): &(i32, BTreeSet<u32>)| format!("epoll {fd}: NAPI {}", listed(ids));
        findings.push(if several.is_empty() {
            let seen = listed(known.iter().map(show));
            Finding::ok(format!("{name}: each epoll has the sockets of one instance"), seen)
        } else {
            // No queue of this device is the cause of other devices' sockets in the same epoll.
            let of_device = |ids: &BTreeSet<u32>| {
                ids.iter().filter(|id| facts.device.napi(**id).is_some()).count()
            };
            let fix = if several.iter().any(|(_, ids)| of_device(ids) > 1) {
                let ifname = facts.device.ifname.clone();
                // If the driver does not say: a veth has no combined channels.
                let veth = facts.device.driver.as_deref() == Some("veth");
                let per_direction = facts.receive.per_direction.unwrap_or(veth);
                let one = Fix::OneChannel { ifname, per_direction };
                program.restart(facts).or(Some(one))
            } else {
                None
            };
            Finding::fault(
                format!(
                    "{name}: an epoll polls one instance, and has sockets of several: the \
                         others wait for their timers"
                ),
                listed(several.into_iter().map(show)),
                fix,
            )
        });
    }
    findings
}

fn carries(socket: &Socket) -> bool {
    socket.kind != crate::doctor::SocketKind::Listener
}

/// Threads that share an epoll share its suspension: the first that finds nothing ends it for all.
pub(super) fn shared(facts: &Facts) -> Vec<Finding> {
    if !matters(facts) {
        return vec![];
    }
    let mut findings = Vec::new();
    for program in &facts.programs {
        let waiters = program.waiters(facts);
        if waiters.is_empty() {
            // `wait-timeout` reports what is missing.
            continue;
        }
        let name = program.name();
        let show = |(epoll, tids): (&i32, &BTreeSet<i32>)| {
            format!("epoll {epoll}: threads {}", listed(tids))
        };
        let several: Vec<_> = waiters.iter().filter(|(_, tids)| tids.len() > 1).collect();
        findings.push(if several.is_empty() {
            let seen = listed(waiters.iter().map(show));
            Finding::ok(format!("{name}: each epoll is one thread's"), seen)
        } else {
            let what = "several threads wait on one epoll";
            let seen = listed(several.into_iter().map(show));
            if facts.means_to_suspend() {
                let what =
                    format!("{name}: {what}: the first that finds nothing ends the suspension");
                if facts.is_bystander(program) {
                    Finding::advice(what, seen, None)
                } else {
                    Finding::fault(what, seen, facts.attach(program))
                }
            } else {
                Finding::advice(format!("{name}: {what}, and poll for each other"), seen, None)
            }
        });
    }
    findings
}

/// The kernel has one suspension timer for each instance: an idle context ends a busy one's suspension.
pub(super) fn instance_shared(facts: &Facts) -> Vec<Finding> {
    if facts.device.napis.is_empty() || !facts.means_to_suspend() {
        return vec![];
    }
    let mut contexts: BTreeMap<u32, Vec<String>> = BTreeMap::new();
    for program in &facts.programs {
        for (epoll, sockets) in program.serving(facts) {
            if !epoll.params.as_ref().is_ok_and(|it| it.prefer_busy_poll) {
                continue;
            }
            for id in ids(sockets) {
                let who = format!("{} epoll {}", program.name(), epoll.fd);
                contexts.entry(id).or_default().push(who);
            }
        }
    }
    if contexts.is_empty() {
        return vec![];
    }
    let show = |(id, who): (&u32, &Vec<String>)| format!("NAPI {id}: {}", listed(who));
    let several: Vec<_> = contexts.iter().filter(|(_, who)| who.len() > 1).collect();
    vec![if several.is_empty() {
        Finding::ok("each instance is one epoll's", listed(contexts.iter().map(show)))
    } else {
        Finding::advice(
            "several epolls suspend one instance: whichever is idle ends it for all; give each \
             instance one thread (nginx: worker_processes with reuseport)",
            listed(several.into_iter().map(show)),
            facts.programs.iter().find_map(|it| it.restart(facts)),
        )
    }]
}
