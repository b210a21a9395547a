//! Assigns a CPU to each queue of a device: for its interrupt, its thread, and the program's worker that
//! waits for it.
//!
//! [`Placement::of`] plans from the [facts](crate::doctor::Facts) that `doctor` reads, and changes nothing.
//! The CPUs are then passed to [`apply`](crate::apply) (its `cpus`) and to an [attachment](crate::attach)
//! that pins. [`Irqbalance`] would move interrupts away again, unless it is told to leave them alone.

mod carry_out;
mod choose;
mod irqbalance;
mod service_manager;

use napkin_kernel::device::Napi;
use napkin_kernel::topology::Topology;
use serde::Serialize;

pub use carry_out::{Carried, PlaceError, carry_out, carry_workers};
pub use choose::{Wanted, choose};
pub use irqbalance::Irqbalance;

use crate::doctor::{Facts, Worker, workers};

/// The planned CPUs of a device.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub struct Placement {
    /// The device's name.
    pub ifname: String,
    /// The NUMA node of the device, if it has one.
    pub node: Option<usize>,
    /// One row for each receiving instance, in the order of their first queue.
    pub rows: Vec<Row>,
    /// Notes for the operator.
    pub notes: Vec<String>,
}

/// An instance with its interrupt, thread and workers.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub struct Row {
    /// Its receive queues.
    pub rx_queues: Vec<u32>,
    /// The NAPI instance's id.
    pub napi: u32,
    /// Its interrupt's number, and the CPUs to which that may go now.
    pub irq: Option<Now<u32>>,
    /// Its thread's id, and the CPUs on which that may run now.
    pub thread: Option<Now<i32>>,
    /// The program's threads that wait for it alone: thread ids, and the CPUs on which they may run now.
    pub workers: Vec<Now<i32>>,
    /// The CPU where all of them belong.
    pub cpu: usize,
}

/// The current CPUs of an interrupt or a thread.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub struct Now<N> {
    /// The interrupt's number, or the thread's id.
    pub id: N,
    /// The CPUs that it may use now; empty if unknown.
    pub cpus: Vec<usize>,
}

impl Placement {
    /// Plans for a device and the programs on it. `within`: the CPUs to choose from; without it, those on
    /// which the programs may run.
    pub fn of(
        facts: &Facts,
        topology: &Topology,
        node: Option<usize>,
        within: Option<&[usize]>,
    ) -> Placement {
        let mut napis: Vec<&Napi> =
            facts.device.napis.iter().filter(|it| !it.rx_queues.is_empty()).collect();
        napis.sort_by_key(|it| it.rx_queues.iter().min().copied());
        let workers = workers(facts);
        let allowed = allowed(facts);
        let within = within.or(allowed.as_deref());
        let now: Vec<Option<usize>> = napis.iter().map(|napi| home(napi)).collect();
        let cpus = choose(topology, &Wanted { node, within, now: &now });
        let mut notes = Vec::new();
        let different: std::collections::BTreeSet<usize> = cpus.iter().copied().collect();
        if different.len() < cpus.len() {
            let count = different.len();
            let shared = if count == 1 { "one CPU".to_owned() } else { format!("{count} CPUs") };
            notes.push(format!(
                "{} queues share {shared}: ethtool -L {} combined {} gives each one of its own, if the \
                 driver can",
                cpus.len(),
                facts.device.ifname,
                count
            ));
        }
        if workers.iter().any(|worker| !worker.alone) {
            notes.push(
                "a thread that waits for several instances has no CPU of its own: a worker for each \
                 queue (memcached -N, SO_INCOMING_NAPI_ID) has"
                    .to_owned(),
            );
        }
        let rows = napis.iter().zip(&cpus).map(|(napi, cpu)| row(napi, *cpu, &workers)).collect();
        let mut placement = Placement { ifname: facts.device.ifname.clone(), node, rows, notes };
        let contradicted = service_manager::notes(facts, &placement);
        placement.notes.extend(contradicted);
        placement
    }

    /// For [`apply`](crate::apply): the CPU of each queue, indexed by queue number.
    pub fn cpus(&self) -> Vec<usize> {
        let last = self.rows.iter().flat_map(|row| &row.rx_queues).max().copied().unwrap_or(0);
        let of = |queue: u32| self.rows.iter().find(|row| row.rx_queues.contains(&queue));
        // A queue number without an instance is unused: any CPU will do.
        let first = self.rows.first().map(|row| row.cpu);
        (0..=last).filter_map(|queue| of(queue).map(|row| row.cpu).or(first)).collect()
    }

    /// The interrupts that are given a CPU.
    pub fn irqs(&self) -> Vec<u32> {
        self.rows.iter().filter_map(|row| Some(row.irq.as_ref()?.id)).collect()
    }

    /// Whether everything is on its CPU already.
    pub fn done(&self) -> bool {
        self.rows.iter().all(|row| {
            let home = [row.cpu];
            let at_home = |cpus: &[usize]| cpus == home;
            row.irq.iter().all(|it| at_home(&it.cpus))
                && row.thread.iter().all(|it| at_home(&it.cpus))
                && row.workers.iter().all(|it| at_home(&it.cpus))
        })
    }
}

fn row(napi: &Napi, cpu: usize, workers: &[Worker]) -> Row {
    let cpus = |cpus: &Option<Vec<usize>>| cpus.clone().unwrap_or_default();
    let mine = workers.iter().filter(|worker| worker.alone && worker.napi == napi.id);
    Row {
        rx_queues: napi.rx_queues.clone(),
        napi: napi.id,
        irq: napi.irq.map(|id| Now { id, cpus: cpus(&napi.irq_cpus) }),
        thread: napi.pid.map(|id| Now { id, cpus: cpus(&napi.thread_cpus) }),
        workers: mine.map(|it| Now { id: it.tid, cpus: it.cpus.clone() }).collect(),
        cpu,
    }
}

/// The CPU where an instance is polled now, if that is exactly one.
fn home(napi: &Napi) -> Option<usize> {
    match napi.thread_cpus.as_deref().or(napi.irq_cpus.as_deref()) {
        Some([cpu]) => Some(*cpu),
        _ => None,
    }
}

/// The CPUs on which every program may run; `None` if there is no program, or no cpuset is known.
fn allowed(facts: &Facts) -> Option<Vec<usize>> {
    let mut sets = facts.programs.iter().filter_map(|program| program.cpuset.clone());
    let first = sets.next()?;
    Some(sets.fold(first, |mut all, set| {
        all.retain(|cpu| set.contains(cpu));
        all
    }))
}
