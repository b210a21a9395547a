//! What a running engine has counted, and a window over its threads.
//!
//! The one place where an engine's counters get the names under which they are reported, and where
//! its threads' own account of their time meets the operating system's. `bench` and `serve` both
//! measure with this. What the application counts, and how anything is shown, is not here.

use std::collections::BTreeMap;
use std::io;
use std::sync::Arc;

use napkin_core::{Counts, CpuId};
use napkin_engine::{Activity, Engine, Role};
use napkin_nic::QueueCounts;
use napkin_policy::NEVER;

use super::window::{CpuWindow, WindowUsage};
use napkin_os::meter::ThreadMeter;
use napkin_os::usage::ThreadUsage;

/// What an engine has counted: since its start, or over a window.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct EngineTotals {
    /// Counts of all instances together.
    pub counts: Counts,
    /// Counts of all queues together.
    pub queues: QueueCounts,
    /// Every drop by the name of its counter, of devices and stacks; no zeros.
    pub drops: BTreeMap<&'static str, u64>,
    /// Rounds of the receive softirq that ended for lack of time or budget, whether or not work was left
    /// (`time_squeeze`), on all CPUs.
    pub squeezes: u64,
}

impl EngineTotals {
    /// Reads everything, one after the other: the counts need not be of the same moment.
    pub fn read(engine: &Engine) -> EngineTotals {
        let mut counts = Counts { idle_gap_min: NEVER, ..Counts::default() };
        let mut queues = QueueCounts::default();
        for napi in engine.napis() {
            counts.add(&napi.counts);
            queues.add(&napi.queue_counts);
        }
        let mut drops: BTreeMap<&'static str, u64> = device_drops(&queues).into_iter().collect();
        for stack in engine.devices().iter().filter_map(|device| engine.stack(device).ok()) {
            for (name, count) in stack.counters().drops() {
                *drops.entry(name).or_default() += count;
            }
        }
        drops.retain(|_, count| *count != 0);
        let squeezes = |cpu: usize| engine.cpu_counts(CpuId(cpu as u16)).time_squeeze;
        let squeezes = (0..engine.cpus().len()).map(squeezes).sum();
        EngineTotals { counts, queues, drops, squeezes }
    }

    /// What was counted since an earlier reading of the same engine. The shortest idle gap is no
    /// count: see [`Engine::restart_idle_gaps`].
    #[must_use]
    pub fn since(&self, earlier: &EngineTotals) -> EngineTotals {
        EngineTotals {
            counts: self.counts.since(&earlier.counts),
            queues: self.queues.since(&earlier.queues),
            drops: grown(&self.drops, &earlier.drops),
            squeezes: self.squeezes.saturating_sub(earlier.squeezes),
        }
    }
}

/// The drops of a device, named as its counters are.
fn device_drops(counts: &QueueCounts) -> [(&'static str, u64); 6] {
    [
        (RING_DROPS, counts.rx_dropped_ring),
        ("rx_oversized", counts.rx_oversized),
        ("rx_truncated", counts.rx_truncated),
        ("rx_malformed", counts.rx_malformed),
        ("rx_no_buffer", counts.rx_no_buffer),
        ("tx_dropped", counts.tx_dropped),
    ]
}

/// The name of the drops that cost the CPU nothing: frames that found the receive ring full.
pub const RING_DROPS: &str = "rx_dropped_ring";

/// The counts that grew, by as much as they did.
pub fn grown(
    now: &BTreeMap<&'static str, u64>,
    then: &BTreeMap<&'static str, u64>,
) -> BTreeMap<&'static str, u64> {
    let growth = now
        .iter()
        .map(|(name, count)| (*name, count.saturating_sub(then.get(name).copied().unwrap_or(0))));
    growth.filter(|(_, count)| *count != 0).collect()
}

/// A window over the threads that serve an engine's traffic, those of the application included, and
/// over the CPUs that they run on.
#[derive(Debug)]
pub struct EngineWindow {
    cpus: CpuWindow,
    threads: Vec<Served>,
}

/// A thread, with its own account of its time as it was at the beginning.
#[derive(Debug)]
struct Served {
    activity: Arc<Activity>,
    tid: u32,
    work: u64,
    poll: u64,
}

impl Served {
    /// What it did since, by the wall clock: work, and polls that found nothing.
    fn since(&self, now: u64) -> (u64, u64) {
        let work = self.activity.work_until(now).saturating_sub(self.work);
        (work, self.activity.poll().saturating_sub(self.poll))
    }
}

impl EngineWindow {
    /// Begins one. Threads that register later, as an application's does with its first wait, are
    /// part of it from its beginning, or from their start.
    ///
    /// # Errors
    /// If `/proc` cannot be read.
    pub fn begin(engine: &Engine, cpus: Vec<usize>) -> io::Result<EngineWindow> {
        // Every thread of the process: which of them serve is only known at the end.
        let mut cpus = CpuWindow::new(ThreadMeter::of_self(|_, _| true)?, cpus)?;
        let now = napkin_engine::now();
        let threads = engine.activities().into_iter().map(|activity| Served {
            tid: tid(&activity),
            work: activity.work_until(now),
            poll: activity.poll(),
            activity,
        });
        let threads = threads.collect();
        cpus.begin()?;
        Ok(EngineWindow { cpus, threads })
    }

    /// Ends it. `looking` is the time that an application's own looks at its sockets took and found
    /// nothing, in nanoseconds.
    ///
    /// # Errors
    /// If `/proc` cannot be read.
    pub fn end(mut self, engine: &Engine, looking: u64) -> io::Result<WindowUsage> {
        for activity in engine.activities() {
            match self.threads.iter_mut().find(|it| Arc::ptr_eq(&it.activity, &activity)) {
                // Where it has ended by now the id that it had.
                Some(known) if known.tid != 0 => {}
                Some(known) => known.tid = tid(&activity),
                None => {
                    let tid = tid(&activity);
                    self.threads.push(Served { activity, tid, work: 0, poll: 0 });
                }
            }
        }
        let threads = &self.threads;
        let serves = |tid: u32| tid != 0 && threads.iter().any(|it| it.tid == tid);
        let polls = |used: &[ThreadUsage]| {
            let now = napkin_engine::now();
            used.iter()
                .map(|thread| Account::of(threads, thread, now))
                .sum::<Account>()
                .poll(looking)
        };
        self.cpus.end_of(serves, polls)
    }
}

fn tid(activity: &Activity) -> u32 {
    u32::try_from(activity.tid()).unwrap_or(0)
}

/// What threads say that they did, by the wall clock, against the CPU time that they had for it.
///
/// A thread that is preempted, or whose CPU the hypervisor takes, goes on by the wall clock. Whether
/// that fell into a poll or into work nobody counts, so both are shortened alike.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
struct Account {
    /// CPU time of polls that found nothing.
    poll: u64,
    /// Of the application's threads: wall time in all, and their CPU time.
    application: u64,
    application_cpu: u64,
}

impl Account {
    fn of(threads: &[Served], used: &ThreadUsage, now: u64) -> Account {
        let (mut wall, mut poll, mut application) = (u64::MAX, 0u64, false);
        // An application's thread that waits in two places has an account for each; for either, a
        // sleep in the other is work.
        for it in threads.iter().filter(|it| it.tid == used.tid) {
            let (its_work, its_poll) = it.since(now);
            wall = wall.min(its_work.saturating_add(its_poll));
            poll = poll.saturating_add(its_poll);
            application |= it.activity.role == Role::Application;
        }
        let mut account = Account { poll: share(used.cpu_ns, poll, wall), ..Account::default() };
        if application {
            (account.application, account.application_cpu) = (wall, used.cpu_ns);
        }
        account
    }

    /// CPU time of all polls that found nothing, with the looks of an application's own, which took
    /// so long by the wall clock and are in its work.
    fn poll(self, looking: u64) -> u64 {
        self.poll.saturating_add(share(self.application_cpu, looking, self.application))
    }
}

impl std::iter::Sum for Account {
    fn sum<I: Iterator<Item = Account>>(all: I) -> Account {
        all.fold(Account::default(), |a, b| Account {
            poll: a.poll.saturating_add(b.poll),
            application: a.application.saturating_add(b.application),
            application_cpu: a.application_cpu.saturating_add(b.application_cpu),
        })
    }
}

/// The CPU time of a part of the wall time, at most all of it.
fn share(cpu_ns: u64, part: u64, wall: u64) -> u64 {
    match wall {
        0 => 0,
        _ => (u128::from(cpu_ns) * u128::from(part.min(wall)) / u128::from(wall)) as u64,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_grew_is_named() {
        let then = BTreeMap::from([("socket_full", 1), ("tx_dropped", 1)]);
        let now = BTreeMap::from([("socket_full", 1), ("tx_dropped", 3), ("rx_oversized", 2)]);
        let grown = grown(&now, &then);
        assert_eq!(grown, BTreeMap::from([("tx_dropped", 2), ("rx_oversized", 2)]));
    }

    #[test]
    fn every_drop_of_a_device_is_there_under_its_counter_s_name() {
        let counts = QueueCounts {
            rx_dropped_ring: 1,
            rx_truncated: 2,
            tx_dropped: 3,
            ..Default::default()
        };
        let drops = BTreeMap::from(device_drops(&counts));
        assert_eq!((drops[RING_DROPS], drops["rx_truncated"], drops["tx_dropped"]), (1, 2, 3));
        assert_eq!(drops.values().sum::<u64>(), 6);
    }

    #[test]
    fn wall_time_becomes_cpu_time() {
        // Of 100 ns by the wall clock, 40 in vain; preempted for half of them.
        assert_eq!(share(50, 40, 100), 20);
        assert_eq!(share(50, 0, 0), 0);
        assert_eq!(share(50, 40, 40), 50, "all that it did");
        assert_eq!(share(50, 60, 40), 50, "never more than there was");
    }

    #[test]
    fn an_application_s_own_looks_are_scaled_as_its_polls_are() {
        let one = Account { poll: 10, application: 100, application_cpu: 50 };
        let context = Account { poll: 5, ..Account::default() };
        let all: Account = [one, context].into_iter().sum();
        assert_eq!(all.poll(40), 15 + 20, "preempted half of the time");
        assert_eq!(all.poll(0), 15);
    }
}
