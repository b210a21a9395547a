//! Counters of a running engine, and a measurement window over its threads.
//!
//! This is the one place where an engine's counters get the names used in reports, and where its threads' own
//! accounting is combined with the operating system's. `bench` and `serve` both use it. Counters of applications
//! and output are elsewhere.

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

/// Counters of an engine, since its start or over a window.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct EngineTotals {
    /// Counters of all instances together.
    pub counts: Counts,
    /// Counters of all queues together.
    pub queues: QueueCounts,
    /// Drops by counter name, of devices and stacks; without zeros.
    pub drops: BTreeMap<&'static str, u64>,
    /// Rounds of the receive softirq that ended for lack of time or budget (`time_squeeze`), with or without work
    /// left, on all CPUs.
    pub squeezes: u64,
}

impl EngineTotals {
    /// Reads all counters, one after the other: they are not a snapshot of one moment.
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

    /// The difference to an earlier reading of the same engine. The shortest idle gap is a minimum, not a count:
    /// see [`Engine::restart_idle_gaps`].
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

/// The drops of a device, by counter name.
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

/// Name of the drops that cost no CPU time: frames that found the receive ring full.
pub const RING_DROPS: &str = "rx_dropped_ring";

/// The counts that grew, with their growth.
pub fn grown(
    now: &BTreeMap<&'static str, u64>,
    then: &BTreeMap<&'static str, u64>,
) -> BTreeMap<&'static str, u64> {
    let growth = now
        .iter()
        .map(|(name, count)| (*name, count.saturating_sub(then.get(name).copied().unwrap_or(0))));
    growth.filter(|(_, count)| *count != 0).collect()
}

/// A measurement window over the threads that serve an engine's traffic, including the application's, and the CPUs
/// that they run on.
#[derive(Debug)]
pub struct EngineWindow {
    cpus: CpuWindow,
    threads: Vec<Served>,
}

/// A thread, with the values of its own accounting at the start of the window.
#[derive(Debug)]
struct Served {
    activity: Arc<Activity>,
    tid: u32,
    work: u64,
    poll: u64,
}

impl Served {
    /// Wall-clock time since then: of work, and of empty polls.
    fn since(&self, now: u64) -> (u64, u64) {
        let work = self.activity.work_until(now).saturating_sub(self.work);
        (work, self.activity.poll().saturating_sub(self.poll))
    }
}

impl EngineWindow {
    /// Starts a window. Threads that register later, as an application's does on its first wait, are included from
    /// the start of the window, or from their own.
    ///
    /// # Errors
    /// If `/proc` cannot be read.
    pub fn begin(engine: &Engine, cpus: Vec<usize>) -> io::Result<EngineWindow> {
        // All threads of the process, because only at the end is it known which ones serve.
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

    /// Ends the window. `looking` is the time, in nanoseconds, of an application's own socket checks that found
    /// nothing.
    ///
    /// # Errors
    /// If `/proc` cannot be read.
    pub fn end(mut self, engine: &Engine, looking: u64) -> io::Result<WindowUsage> {
        for activity in engine.activities() {
            match self.threads.iter_mut().find(|it| Arc::ptr_eq(&it.activity, &activity)) {
                // The thread may have ended by now: keep the id that it had.
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

/// Scales what threads accounted by wall-clock time to the CPU time that they got.
///
/// While a thread is preempted, or the hypervisor has its CPU, its wall-clock time goes on. Whether that fell into
/// polls or into work is unknown, so both are scaled alike.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
struct Account {
    /// CPU time of empty polls, in nanoseconds.
    poll: u64,
    /// Wall-clock time, and below CPU time, of the application's threads.
    application: u64,
    application_cpu: u64,
}

impl Account {
    fn of(threads: &[Served], used: &ThreadUsage, now: u64) -> Account {
        let (mut wall, mut poll, mut application) = (u64::MAX, 0u64, false);
        // A thread that waits in two places has two accounts, each of which counts a sleep in the other as work.
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

    /// CPU time of all empty polls, including the application's own checks, which took `looking` by the wall clock
    /// and are part of its work.
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

/// CPU time of a part of the wall-clock time, at most all of it.
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
        // Of 100 ns of wall-clock time, 40 in empty polls; preempted for half of the time.
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
