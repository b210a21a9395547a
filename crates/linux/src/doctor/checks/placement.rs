//! Who runs where: interrupts, the instances' threads, the programs' threads.

use std::collections::BTreeMap;

use napkin_core::Policy;
use napkin_core::policy::Threaded;

use super::{cpus, ids, listed};
use crate::doctor::{Facts, Finding, Thread};

/// A program's thread that waits for an instance's packets.
struct Pair<'a> {
    id: u32,
    name: String,
    thread: &'a Thread,
}

/// The threads that were seen to wait on an epoll with an instance's sockets; of an epoll on which
/// none was seen, the only thread that its program has.
fn pairs(facts: &Facts) -> Vec<Pair<'_>> {
    let mut pairs: BTreeMap<(u32, i32), Pair<'_>> = BTreeMap::new();
    for program in &facts.programs {
        let waits = program.waits.as_deref().unwrap_or_default();
        for (epoll, sockets) in program.serving(facts) {
            let mut tids: Vec<i32> =
                waits.iter().filter(|it| it.epoll == epoll.fd).map(|it| it.tid).collect();
            if let ([], [only]) = (&tids[..], &program.threads[..]) {
                tids.push(only.tid);
            }
            for (id, tid) in
                ids(sockets).into_iter().flat_map(|id| tids.iter().map(move |tid| (id, *tid)))
            {
                if let Some(thread) = program.thread(tid) {
                    let name = format!("{} thread {tid}", program.name());
                    pairs.insert((id, tid), Pair { id, name, thread });
                }
            }
        }
    }
    pairs.into_values().collect()
}

fn meet(one: &[usize], other: &[usize]) -> bool {
    one.iter().any(|cpu| other.contains(cpu))
}

/// Where the program polls, or suspends, it and its instance's interrupt and thread take turns on
/// the same packets: the same CPU is right (2024: queue, interrupt and worker share one). A thread
/// that polls without end has to have a CPU to itself, and so has a thread that never sleeps.
pub(super) fn cpu_match(facts: &Facts) -> Vec<Finding> {
    if facts.device.napis.is_empty() || facts.programs.is_empty() {
        return vec![];
    }
    let spins = facts.policy.instance.threaded == Threaded::BusyPoll;
    if !facts.application_polls() && !facts.polled_by_threads() {
        return vec![];
    }
    let pairs = pairs(facts);
    if pairs.is_empty() {
        let missing = "a thread that waits on an epoll whose sockets know their instance";
        let what = "whether program, interrupt and thread are on the right CPUs";
        return vec![Finding::unknown(what, missing)];
    }
    let (mut apart, mut together, mut loose, mut fine) = (vec![], vec![], vec![], vec![]);
    let mut mend = None;
    for Pair { id, name, thread } in &pairs {
        let free = thread.cpus.len() >= facts.host.cpus.len();
        let napi = facts.device.napi(*id);
        let poller = facts.poll_threads.get(id);
        let irq = napi.and_then(|napi| Some((napi.irq?, napi.irq_cpus.as_ref()?)));
        // Who else has this instance's packets, where, and how that is named.
        let (place, whose) = match (poller, irq) {
            (Some(poller), _) => (&poller.cpus, format!("thread {}", poller.tid)),
            (None, Some((irq, cpus))) => (cpus, format!("interrupt {irq}")),
            // A virtual device's softirq runs wherever its sender does.
            (None, None) => continue,
        };
        let unplaced = place.len() >= facts.host.cpus.len();
        let text = format!(
            "NAPI {id}: {whose} on CPU {}, {name} on CPU {}",
            cpus(place),
            cpus(&thread.cpus)
        );
        let separate = spins || (facts.polled_by_threads() && !facts.application_polls());
        if separate {
            let one_cpu = place.len() == 1 && thread.cpus == *place;
            if one_cpu {
                let elsewhere = facts.host.cpus.iter().find(|cpu| !place.contains(cpu));
                mend = elsewhere.map(|cpu| format!("taskset -pc {cpu} {}", thread.tid));
                together.push(text);
            } else {
                fine.push(text);
            }
        } else if free || unplaced {
            if !unplaced {
                mend.get_or_insert(format!("taskset -pc {} {}", cpus(place), thread.tid));
            }
            loose.push(text);
        } else if meet(place, &thread.cpus) {
            fine.push(text);
        } else {
            mend = Some(format!("taskset -pc {} {}", cpus(place), thread.tid));
            apart.push(text);
        }
    }
    if !apart.is_empty() {
        let what = "the program runs on another CPU than its queue, and neither helps the other";
        return vec![Finding::fault(what, listed(apart), mend)];
    }
    if !together.is_empty() {
        let seen = listed(together);
        return vec![if spins {
            let what = "a thread that polls without end has the program's only CPU";
            Finding::fault(what, seen, mend)
        } else {
            let what = "the instance's thread and the program share one CPU; two would do more";
            Finding::advice(what, seen, mend)
        }];
    }
    if !loose.is_empty() {
        let what = "the program's threads are not pinned to their queues' CPUs";
        let first = facts.programs.first();
        let pin =
            || first.map(|it| format!("napkin attach {} --policy {} --pin", it.pid, facts.policy));
        return vec![Finding::advice(what, listed(loose), mend.or_else(pin))];
    }
    if fine.is_empty() {
        let pids = facts.instances().into_iter().filter_map(|napi| napi.pid);
        let pids: Vec<i32> = pids.collect();
        if !pids.is_empty() {
            let what = "whether program and thread are on the right CPUs";
            let missing = format!(
                "the threads of the instances ({}), in this process's view \
                of process ids",
                listed(pids)
            );
            return vec![Finding::unknown(what, missing)];
        }
        let what = "there is no interrupt or thread to be matched with";
        return vec![Finding::ok(what, "the instances have neither irq nor pid in napi-get")];
    }
    vec![Finding::ok("program, interrupt and thread are on the right CPUs", listed(fine))]
}

/// 2020: the point of a thread is that the scheduler, or the operator, can say where it runs.
pub(super) fn poll_thread(facts: &Facts) -> Vec<Finding> {
    if facts.device.napis.is_empty() || !facts.polled_by_threads() {
        return vec![];
    }
    let spins = facts.policy.instance.threaded == Threaded::BusyPoll;
    let threads: Vec<_> = facts.poll_threads.iter().collect();
    if threads.is_empty() {
        // `threaded` says that there are none.
        return vec![];
    }
    let all = facts.host.cpus.len();
    let free: Vec<_> = threads.iter().filter(|(_, it)| it.cpus.len() >= all && all > 1).collect();
    if let Some((id, thread)) = free.first() {
        let what = if spins {
            "threads that poll without end are not pinned: the scheduler moves them onto others"
        } else {
            "the instances' threads are not pinned"
        };
        let seen = listed(free.iter().map(|(id, it)| format!("NAPI {id}: thread {}", it.tid)));
        let queue = facts.device.napi(**id).and_then(|napi| napi.rx_queues.first()).copied();
        let cpu = facts.host.cpus.get(queue.unwrap_or(0) as usize % all.max(1)).copied();
        let mend = cpu.map(|cpu| format!("taskset -pc {cpu} {}", thread.tid));
        return vec![Finding::advice(what, seen, mend)];
    }
    let seen = listed(threads.iter().map(|(id, it)| {
        let class = it.fifo.map_or_else(|| "fair".into(), |priority| format!("FIFO {priority}"));
        format!("NAPI {id}: thread {} on CPU {}, {class}", it.tid, cpus(&it.cpus))
    }));
    vec![Finding::ok("the instances' threads are pinned", seen)]
}

/// Every published set-up pins the interrupts; one that wanders takes its softirq with it.
pub(super) fn irq_affinity(facts: &Facts) -> Vec<Finding> {
    if facts.policy == Policy::BASE {
        return vec![];
    }
    let irqs: Vec<_> = facts
        .instances()
        .into_iter()
        .filter_map(|napi| Some((napi.id, napi.irq?, &napi.irq_cpus)))
        .collect();
    if irqs.is_empty() {
        return vec![];
    }
    if irqs.iter().all(|(_, _, cpus)| cpus.is_none()) {
        let what = "where the interrupts go cannot be seen";
        return vec![Finding::unknown(what, "/proc/irq/N/smp_affinity_list")];
    }
    let several: Vec<_> =
        irqs.iter().filter_map(|(id, irq, to)| Some((id, irq, to.as_ref()?))).collect();
    let wide: Vec<_> = several.iter().filter(|(_, _, to)| to.len() > 1).collect();
    let show = |(id, irq, to): &(&u32, &u32, &Vec<usize>)| {
        format!("NAPI {id}: interrupt {irq} on CPU {}", cpus(to))
    };
    let Some((_, irq, to)) = wide.first() else {
        let seen = listed(several.iter().map(show));
        return vec![Finding::ok("each interrupt goes to one CPU", seen)];
    };
    let cpu = to.first().copied().unwrap_or(0);
    vec![Finding::advice(
        "an interrupt may go to several CPUs",
        listed(wide.iter().map(|it| show(it))),
        Some(format!("echo {cpu} > /proc/irq/{irq}/smp_affinity_list")),
    )]
}

/// It moves interrupts, and undoes a placement within seconds.
pub(super) fn irqbalance(facts: &Facts) -> Vec<Finding> {
    // A device without interrupts has none that could be moved.
    if facts.policy == Policy::BASE || !facts.device.napis.iter().any(|napi| napi.irq.is_some()) {
        return vec![];
    }
    vec![match &facts.host.irqbalance {
        Ok(None) => Finding::ok("irqbalance does not run", "/proc/PID/comm of all processes"),
        Ok(Some(pid)) => Finding::advice(
            "irqbalance moves the interrupts away from where they were put",
            format!("irqbalance[{pid}]"),
            Some("systemctl stop irqbalance".into()),
        ),
        Err(missing) => Finding::unknown("whether irqbalance runs", missing),
    }]
}
