//! Checks of CPU placement: interrupts, the instances' threads, and the programs' threads.

use napkin_policy::{Policy, Threaded};

use super::{cpus, listed};
use crate::doctor::home::{Homes, Pair, one, stop_irqbalance};
use crate::doctor::target::too_many_spinners;
use crate::doctor::{Facts, Finding, Fix};

/// If the program polls or suspends, it takes turns on the same packets with its instance's interrupt or
/// thread: they belong on the same CPU (2024: queue, interrupt and worker share one). A thread that polls
/// without end needs a CPU to itself, and so does a thread that never sleeps.
pub(super) fn cpu_match(facts: &Facts) -> Vec<Finding> {
    if facts.device.napis.is_empty() || facts.programs.is_empty() {
        return vec![];
    }
    let spins = facts.policy.instance.threaded == Threaded::BusyPoll;
    if !facts.application_polls() && !facts.polled_by_threads() {
        return vec![];
    }
    let homes = Homes::of(facts);
    if homes.pairs.is_empty() {
        let missing = "a thread that waits on an epoll whose sockets know their instance";
        let what = "whether program, interrupt and thread are on the right CPUs";
        return vec![Finding::unknown(what, missing)];
    }
    let (mut on_other_cpus, mut together, mut loose, mut fine) = (vec![], vec![], vec![], vec![]);
    let mut fix: Vec<Fix> = Vec::new();
    for pair in &homes.pairs {
        let Pair { id, name, thread, alone } = pair;
        let poller = facts.poll_threads.get(id);
        let irq = facts.device.napi(*id).and_then(|it| Some((it.irq?, it.irq_cpus.as_ref()?)));
        // Where this instance's packets are polled, and how the report names the poller.
        let (place, poller_name) = match (poller, irq) {
            (Some(poller), _) => (&poller.cpus, format!("thread {}", poller.tid)),
            (None, Some((irq, cpus))) => (cpus, format!("interrupt {irq}")),
            // A virtual device's softirq runs on its sender's CPU.
            (None, None) => continue,
        };
        let text = format!(
            "NAPI {id}: {poller_name} on CPU {}, {name} on CPU {}",
            cpus(place),
            cpus(&thread.cpus)
        );
        if Homes::separate(facts) {
            let own = one(&thread.cpus);
            let taken =
                if spins { own.is_some_and(|it| homes.spins_on(it)) } else { one(place) == own };
            if own.is_some() && taken {
                fix.extend(homes.away(pair));
                together.push(text);
            } else {
                fine.push(text);
            }
            continue;
        }
        if !alone {
            // The thread waits for packets of several instances, as `epoll-instance` reports: any of their
            // CPUs is right.
            if one(place).is_none_or(|cpu| thread.cpus.contains(&cpu)) {
                fine.push(text);
            } else {
                on_other_cpus.push(text);
            }
            continue;
        }
        // If the interrupt or the instance's thread may move elsewhere, its own check reports that.
        if one(&thread.cpus).is_some_and(|cpu| place.contains(&cpu)) {
            fine.push(text);
            continue;
        }
        fix.extend(homes.join(facts, pair));
        if place.iter().any(|cpu| thread.cpus.contains(cpu)) {
            &mut loose
        } else {
            &mut on_other_cpus
        }
        .push(text);
    }
    // Keep the first of equal fixes: several pairs may share an instance, a thread, or a fix.
    let mut named: Vec<Fix> = Vec::new();
    fix.retain(|it| {
        !named.contains(it) && {
            named.push(it.clone());
            true
        }
    });
    if !on_other_cpus.is_empty() {
        let what = "the program runs on another CPU than its queue, and neither helps the other";
        return vec![Finding::fault(what, listed(on_other_cpus), fix)];
    }
    if !together.is_empty() {
        let seen = listed(together);
        return vec![if spins {
            let what = "a thread that polls without end has the program's only CPU";
            Finding::fault(what, seen, fix)
        } else {
            let what = "the instance's thread and the program share one CPU; two would do more";
            Finding::advice(what, seen, fix)
        }];
    }
    if !loose.is_empty() {
        let what = "the program's threads and their queues are not pinned to the same CPUs";
        return vec![Finding::advice(what, listed(loose), fix)];
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

/// 2020: the point of a thread is that the scheduler, or the operator, can choose its CPU. A thread that may
/// run on several CPUs is not pinned, even if these are fewer than are online, as some may be isolated.
pub(super) fn poll_thread(facts: &Facts) -> Vec<Finding> {
    if facts.device.napis.is_empty() || !facts.polled_by_threads() {
        return vec![];
    }
    let spins = facts.policy.instance.threaded == Threaded::BusyPoll;
    if spins && too_many_spinners(facts) {
        let what = "threads that poll without end leave no CPU to anybody else";
        let seen = format!(
            "{} threads; CPUs {}",
            facts.poll_threads.len().max(facts.receiving().len()),
            cpus(&facts.host.cpus)
        );
        return vec![Finding::fault(what, seen, facts.apply())];
    }
    let threads: Vec<_> = facts.poll_threads.iter().collect();
    if threads.is_empty() {
        // `threaded` reports that there are none.
        return vec![];
    }
    let homes = Homes::of(facts);
    let show = |(id, it): &(&u32, &crate::doctor::PollThread)| {
        let class = it.fifo.map_or_else(|| "fair".into(), |priority| format!("FIFO {priority}"));
        format!("NAPI {id}: thread {} on CPU {}, {class}", it.tid, cpus(&it.cpus))
    };
    let to_its_home = |(id, thread): &(&u32, &crate::doctor::PollThread)| {
        let cpus = vec![homes.of_instance(**id)?];
        (thread.cpus != cpus).then_some(Fix::ThreadCpus { tid: thread.tid, cpus })
    };
    let fixes: Vec<Fix> = threads.iter().filter_map(to_its_home).collect();
    let same = |(place, (_, thread)): (usize, &(&u32, &crate::doctor::PollThread))| {
        let before = threads[..place].iter().any(|(_, other)| other.cpus == thread.cpus);
        one(&thread.cpus).is_some() && before
    };
    let sharing: Vec<_> =
        threads.iter().enumerate().filter(|it| same(*it)).map(|(_, it)| it).collect();
    if spins && !sharing.is_empty() {
        let what = "threads that poll without end share a CPU: each waits for the others' turns";
        return vec![Finding::fault(what, listed(threads.iter().map(show)), fixes)];
    }
    let free: Vec<_> = threads.iter().filter(|(_, it)| one(&it.cpus).is_none()).collect();
    if !free.is_empty() {
        let what = if spins {
            "threads that poll without end are not pinned: the scheduler moves them onto others"
        } else {
            "the instances' threads are not pinned"
        };
        return vec![Finding::advice(what, listed(free.into_iter().map(show)), fixes)];
    }
    vec![Finding::ok("the instances' threads are pinned", listed(threads.iter().map(show)))]
}

/// Every published set-up pins the interrupts; one that moves takes its softirq with it.
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
    if wide.is_empty() {
        let seen = listed(several.iter().map(show));
        return vec![Finding::ok("each interrupt goes to one CPU", seen)];
    }
    let homes = Homes::of(facts);
    let to_its_home = |(id, irq, to): &&(&u32, &u32, &Vec<usize>)| {
        let cpu = homes.of_instance(**id).or(to.first().copied())?;
        Some(Fix::IrqCpus { irq: **irq, cpus: vec![cpu] })
    };
    let moves = wide.iter().copied().filter_map(|it| to_its_home(&it));
    let mut fixes: Vec<Fix> = stop_irqbalance(facts).into_iter().chain(moves).collect();
    fixes.dedup();
    let seen = listed(wide.iter().map(|it| show(it)));
    vec![Finding::advice("an interrupt may go to several CPUs", seen, fixes)]
}

/// irqbalance moves interrupts, and undoes a placement within seconds.
pub(super) fn irqbalance(facts: &Facts) -> Vec<Finding> {
    // A device without interrupts is not affected.
    if facts.policy == Policy::BASE || !facts.device.napis.iter().any(|napi| napi.irq.is_some()) {
        return vec![];
    }
    vec![match &facts.host.irqbalance {
        Ok(None) => Finding::ok("irqbalance does not run", "/proc/PID/comm of all processes"),
        Ok(Some(pid)) => Finding::advice(
            "irqbalance moves the interrupts away from where they were put",
            format!("irqbalance[{pid}]"),
            Some(Fix::StopIrqbalance),
        ),
        Err(missing) => Finding::unknown("whether irqbalance runs", missing),
    }]
}
