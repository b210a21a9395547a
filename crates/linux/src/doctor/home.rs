//! Chooses the CPU of each instance: where its interrupt, its thread and its program belong.
//!
//! Different commands move interrupt, thread and program, and different checks advise them. All take the CPU
//! from here, so that their fixes agree: it is the CPU where most of the three are already. Whether a
//! placement is wrong is decided in `checks::placement`.

use std::collections::{BTreeMap, BTreeSet};

use napkin_policy::Threaded;

use super::facts::{Facts, Program, Thread};
use super::fix::Fix;
use napkin_kernel::device::Napi;

/// The CPU, if there is exactly one.
pub(super) fn one(cpus: &[usize]) -> Option<usize> {
    if let [cpu] = cpus { Some(*cpu) } else { None }
}

/// A program's thread that waits for an instance's packets.
pub(super) struct Pair<'a> {
    /// The instance's id.
    pub(super) id: u32,
    /// The thread's name: `memcached[812] thread 813`.
    pub(super) name: String,
    pub(super) thread: &'a Thread,
    /// Whether it waits for no other instance's packets.
    pub(super) alone: bool,
}

/// A program's thread that waits for an instance's packets, and belongs on the CPU where that is polled.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Worker {
    /// The instance's id.
    pub napi: u32,
    /// The thread's id, as in `/proc/PID/task`.
    pub tid: i32,
    /// The CPUs on which it may run now.
    pub cpus: Vec<usize>,
    /// Whether it waits for no other instance's packets.
    pub alone: bool,
}

/// The workers of a device's instances; none if the policy wants them on other CPUs than the instances' threads.
pub fn workers(facts: &Facts) -> Vec<Worker> {
    if Homes::separate(facts) {
        return Vec::new();
    }
    let worker = |it: Pair<'_>| Worker {
        napi: it.id,
        tid: it.thread.tid,
        cpus: it.thread.cpus.clone(),
        alone: it.alone,
    };
    pairs(facts).into_iter().map(worker).collect()
}

/// The CPUs of all instances.
pub(super) struct Homes<'a> {
    /// The threads and the instances whose packets they wait for.
    pub(super) pairs: Vec<Pair<'a>>,
    homes: BTreeMap<u32, usize>,
    /// The CPUs on which a thread polls without end, or should.
    spinners: BTreeSet<usize>,
    /// The CPUs on which a program's thread can be put, by thread ID.
    allowed: BTreeMap<i32, Vec<usize>>,
}

impl<'a> Homes<'a> {
    pub(super) fn of(facts: &'a Facts) -> Homes<'a> {
        let pairs = pairs(facts);
        let allowed = facts.programs.iter().flat_map(|program| {
            let cpus = allowed(facts, program);
            program.threads.iter().map(move |thread| (thread.tid, cpus.clone()))
        });
        let allowed: BTreeMap<i32, Vec<usize>> = allowed.collect();
        let mut homes = Homes { pairs, homes: BTreeMap::new(), spinners: BTreeSet::new(), allowed };
        homes.settle(facts);
        homes
    }

    /// Whether a program's thread belongs on another CPU than its instance's thread.
    pub(super) fn separate(facts: &Facts) -> bool {
        facts.policy.instance.threaded == Threaded::BusyPoll
            || (facts.polled_by_threads() && !facts.application_polls())
    }

    /// An instance's CPU; `None` if there are too few.
    pub(super) fn of_instance(&self, id: u32) -> Option<usize> {
        self.homes.get(&id).copied()
    }

    /// Whether a thread polls without end on this CPU.
    pub(super) fn spins_on(&self, cpu: usize) -> bool {
        self.spinners.contains(&cpu)
    }

    /// The fixes that bring a pair onto the same CPU.
    pub(super) fn join(&self, facts: &Facts, pair: &Pair<'_>) -> Vec<Fix> {
        let Some(home) = self.of_instance(pair.id) else { return vec![] };
        let cpus = vec![home];
        let mut fixes = Vec::new();
        if !facts.poll_threads.contains_key(&pair.id) {
            fixes.extend(stop_irqbalance(facts));
        }
        let napi = facts.device.napi(pair.id);
        if let Some(poller) = facts.poll_threads.get(&pair.id) {
            if poller.cpus != cpus {
                fixes.push(Fix::ThreadCpus { tid: poller.tid, cpus: cpus.clone() });
            }
        } else if let Some(irq) = napi.and_then(|it| it.irq)
            && napi.is_some_and(|it| it.irq_cpus.as_ref() != Some(&cpus))
        {
            fixes.push(Fix::IrqCpus { irq, cpus: cpus.clone() });
        }
        let may = self.allowed.get(&pair.thread.tid).is_some_and(|it| it.contains(&home));
        if pair.thread.cpus != cpus && may {
            fixes.push(Fix::ThreadCpus { tid: pair.thread.tid, cpus });
        }
        fixes
    }

    /// The fix that moves a program's thread to a CPU without an instance's thread.
    pub(super) fn away(&self, pair: &Pair<'_>) -> Option<Fix> {
        let homes: BTreeSet<usize> = self.homes.values().copied().collect();
        let free = self.allowed.get(&pair.thread.tid)?.iter().find(|cpu| !homes.contains(cpu))?;
        Some(Fix::ThreadCpus { tid: pair.thread.tid, cpus: vec![*free] })
    }

    fn settle(&mut self, facts: &Facts) {
        let spins = facts.policy.instance.threaded == Threaded::BusyPoll;
        // Place first the instances that can stay where they are; the others make room.
        for staying in [true, false] {
            for napi in facts.receiving() {
                if self.homes.contains_key(&napi.id) {
                    continue;
                }
                let cpu = if staying {
                    self.stays(facts, napi)
                } else {
                    let cpus = self.candidates(facts, napi);
                    let unused = cpus.iter().find(|cpu| !self.homes.values().any(|it| it == *cpu));
                    // Two that sleep between polls can share one.
                    unused.or(cpus.first().filter(|_| !spins)).copied()
                };
                self.homes.extend(cpu.map(|cpu| (napi.id, cpu)));
            }
        }
        if spins {
            let pinned = facts.poll_threads.values().filter_map(|thread| one(&thread.cpus));
            self.spinners = pinned.chain(self.homes.values().copied()).collect();
        }
    }

    /// The CPU where an instance is polled now, if it can stay there.
    fn stays(&self, facts: &Facts, napi: &Napi) -> Option<usize> {
        let thread = facts.poll_threads.get(&napi.id).map(|it| it.cpus.as_slice());
        let cpu = one(thread.or(napi.irq_cpus.as_deref())?)?;
        let spins = facts.policy.instance.threaded == Threaded::BusyPoll;
        let taken = spins && self.homes.values().any(|it| *it == cpu);
        (!taken && self.will_do(facts, napi, cpu)).then_some(cpu)
    }

    /// Whether an instance can be polled on a CPU: the CPU is online and, if the two belong together, its
    /// program can run there too.
    fn will_do(&self, facts: &Facts, napi: &Napi, cpu: usize) -> bool {
        let mut of_instance = self.pairs.iter().filter(|it| it.id == napi.id && it.alone);
        let may = |pair: &Pair<'_>| {
            self.allowed.get(&pair.thread.tid).is_none_or(|cpus| cpus.contains(&cpu))
        };
        facts.host.cpus.contains(&cpu) && (Homes::separate(facts) || of_instance.all(may))
    }

    /// The CPUs where an instance can be polled, best first.
    fn candidates(&self, facts: &Facts, napi: &Napi) -> Vec<usize> {
        let all = &facts.host.cpus;
        let separate = Homes::separate(facts);
        // Prefer the CPU of the program's thread if the two belong together, otherwise one to which no thread
        // is pinned.
        let suits = |cpu: usize| {
            if separate {
                !self.pairs.iter().any(|it| one(&it.thread.cpus) == Some(cpu))
            } else {
                let mut mine = self.pairs.iter().filter(|it| it.id == napi.id && it.alone);
                mine.all(|it| it.thread.cpus.contains(&cpu))
            }
        };
        let within = napi.irq_cpus.as_deref().filter(|it| it.len() < all.len() && !separate);
        let first = napi.rx_queues.first().map_or(0, |queue| *queue as usize);
        let turned = (0..all.len()).map(|step| all[(first + step) % all.len()]);
        let mut cpus: Vec<usize> = turned.filter(|cpu| self.will_do(facts, napi, *cpu)).collect();
        // The sort is stable: between equal CPUs, each queue begins with the CPU of its number.
        cpus.sort_by_key(|cpu| {
            let allowed = within.is_none_or(|it| it.contains(cpu));
            (!suits(*cpu), !allowed)
        });
        cpus
    }
}

/// The fix to make before moving an interrupt, or something next to one: irqbalance would move the interrupt
/// away again.
pub(super) fn stop_irqbalance(facts: &Facts) -> Option<Fix> {
    matches!(facts.host.irqbalance, Ok(Some(_))).then_some(Fix::StopIrqbalance)
}

/// The online CPUs on which a program's threads can be put.
fn allowed(facts: &Facts, program: &Program) -> Vec<usize> {
    let on = facts.host.cpus.iter().copied();
    match &program.cpuset {
        Some(cpuset) => on.filter(|cpu| cpuset.contains(cpu)).collect(),
        None => on.collect(),
    }
}

/// Pairs each instance with the threads observed waiting on an epoll with its sockets. If none was observed
/// on an epoll, and its program has only one thread, takes that.
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
            let ids: BTreeSet<u32> =
                sockets.iter().map(|socket| socket.napi_id).filter(|id| *id != 0).collect();
            for (id, tid) in ids.into_iter().flat_map(|id| tids.iter().map(move |tid| (id, *tid))) {
                if let Some(thread) = program.thread(tid) {
                    let name = format!("{} thread {tid}", program.name());
                    pairs.insert((id, tid), Pair { id, name, thread, alone: true });
                }
            }
        }
    }
    let mut instances: BTreeMap<i32, usize> = BTreeMap::new();
    for (_, tid) in pairs.keys() {
        *instances.entry(*tid).or_default() += 1;
    }
    for ((_, tid), pair) in &mut pairs {
        pair.alone = instances[tid] == 1;
    }
    pairs.into_values().collect()
}
