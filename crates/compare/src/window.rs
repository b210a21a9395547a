//! The figures of one slice, between two moments: the server's own latency, answers, CPU and interrupts.

use std::collections::BTreeMap;
use std::time::Instant;

use napkin_kernel::count::latency::{Part, Percentiles, Reading};
use napkin_kernel::device::Device;
use napkin_os::procfs::{CpuTimes, Interrupts, ThreadStat, Time, counter_increase};
use serde::Serialize;

use crate::error::CompareError;
use crate::guard::Reference;
use crate::service::Service;
use crate::silence::Answered;

/// CPU use, in CPUs: 0.25 is a quarter of one.
#[derive(Debug, Clone, Copy, PartialEq, Default, Serialize)]
pub struct Cpu {
    /// Softirqs and interrupts, on all CPUs.
    pub softirq: f64,
    /// The threads of the device's instances.
    pub threads: f64,
    /// The service's processes; on a kernel without `CONFIG_IRQ_TIME_ACCOUNTING` including the softirqs that
    /// interrupted them.
    pub application: f64,
}

impl Cpu {
    /// The sum.
    pub fn all(&self) -> f64 {
        self.softirq + self.threads + self.application
    }
}

/// The figures of one slice.
#[derive(Debug, Clone, PartialEq, Default, Serialize)]
pub struct Slice {
    /// Its round, from 0.
    pub round: usize,
    /// Its index in the order of all slices, from 0.
    pub step: usize,
    /// Measured time in seconds, without the time to settle.
    pub seconds: f64,
    /// Answers per second, counted by sends.
    pub answers_per_s: Option<f64>,
    /// The server's own latency, by part (`ring`, `socket`, `service`) and as a `whole`.
    pub latency_ns: BTreeMap<&'static str, Percentiles>,
    /// CPU use.
    pub cpu: Cpu,
    /// Interrupts of the device per second; `None` if it has none.
    pub interrupts_per_s: Option<f64>,
    /// The number that the user's own command printed.
    pub measured: Option<f64>,
    /// Why the guard ended the slice; its figures do not count then.
    pub broken: Option<String>,
}

impl Slice {
    /// Percentiles of the whole latency.
    pub fn whole(&self) -> Percentiles {
        self.latency_ns.get(Part::Whole.name()).copied().unwrap_or_default()
    }
}

/// A window that has begun.
#[derive(Debug)]
pub(crate) struct Window {
    began: Instant,
    reading: Option<Reading>,
    stats: Stats,
}

/// Cumulative counters: nanoseconds and counts.
#[derive(Debug, Clone, Default)]
struct Stats {
    softirq: u64,
    /// By thread or process id, so that a new or an ended one does not count.
    threads: BTreeMap<i32, u64>,
    application: BTreeMap<i32, u64>,
    /// By interrupt number and CPU: the kernel's counters have 32 bits.
    interrupts: Option<BTreeMap<(u32, usize), u32>>,
}

impl Stats {
    /// `device` must be read under the policy in force, since its threads are part of that.
    fn read(service: &Service, device: &Device) -> Result<Stats, CompareError> {
        let failed = |error| CompareError::System { what: "/proc/stat cannot be read", error };
        let cpus = CpuTimes::read().map_err(failed)?;
        let thread = |pid: i32| Some((pid, Time::read(pid, pid)?.run_ns));
        let process = |pid: &i32| Some((*pid, ThreadStat::of_process(*pid)?.cpu_ns));
        let irqs: Vec<u32> = device.napis.iter().filter_map(|napi| napi.irq).collect();
        let of = |all: &Interrupts, irq: u32| -> Vec<_> {
            all.by_cpu(irq).map(|(cpu, count)| ((irq, cpu), count)).collect()
        };
        let counts = |all: Interrupts| irqs.iter().flat_map(|irq| of(&all, *irq)).collect();
        let interrupts = (!irqs.is_empty()).then(|| Interrupts::read().ok().map(counts)).flatten();
        Ok(Stats {
            softirq: cpus.values().map(|times| times.softirq_ns + times.irq_ns).sum(),
            threads: device.napis.iter().filter_map(|napi| thread(napi.pid?)).collect(),
            application: service.processes.iter().filter_map(process).collect(),
            interrupts,
        })
    }
}

fn cpu_ns(now: &BTreeMap<i32, u64>, then: &BTreeMap<i32, u64>) -> u64 {
    now.iter().filter_map(|(id, now)| Some(now.saturating_sub(*then.get(id)?))).sum()
}

/// Number of interrupts, over the CPUs that are online at both times.
fn interrupt_count(now: &BTreeMap<(u32, usize), u32>, then: &BTreeMap<(u32, usize), u32>) -> u64 {
    now.iter().filter_map(|(of, now)| Some(u64::from(counter_increase(*now, *then.get(of)?)))).sum()
}

impl Window {
    pub(crate) fn begin(service: &Service, device: &Device) -> Result<Window, CompareError> {
        let stats = Stats::read(service, device)?;
        Ok(Window { began: Instant::now(), reading: None, stats })
    }

    /// Restarts the window's clock, with the request counts at this moment, if requests are timed.
    pub(crate) fn counting(self, reading: Option<Reading>) -> Window {
        Window { began: Instant::now(), reading, ..self }
    }

    pub(crate) fn seconds(&self) -> f64 {
        self.began.elapsed().as_secs_f64()
    }

    /// Ends the window: the slice, and what others are compared with if it is the reference's. `timed` is the
    /// number of seconds in which requests were timed.
    pub(crate) fn end(
        self,
        service: &Service,
        device: &Device,
        reading: Option<Reading>,
        timed: f64,
    ) -> Result<(Slice, Reference), CompareError> {
        let seconds = self.seconds();
        let now = Stats::read(service, device)?;
        let cpus = |ns: u64| ns as f64 / 1e9 / seconds;
        let mut slice = Slice {
            seconds,
            cpu: Cpu {
                softirq: cpus(now.softirq.saturating_sub(self.stats.softirq)),
                threads: cpus(cpu_ns(&now.threads, &self.stats.threads)),
                application: cpus(cpu_ns(&now.application, &self.stats.application)),
            },
            interrupts_per_s: now
                .interrupts
                .zip(self.stats.interrupts)
                .map(|(now, then)| interrupt_count(&now, &then) as f64 / seconds),
            ..Slice::default()
        };
        let mut as_reference = Reference::default();
        if let Some((now, then)) = reading.zip(self.reading) {
            let reading = now.since(&then);
            let parts = reading.all();
            let percentiles = |part: Part| (part.name(), Percentiles::of(parts.of(part)));
            slice.latency_ns = Part::ALL.into_iter().map(percentiles).collect();
            slice.answers_per_s = reading.answers().map(|answers| answers / timed);
            as_reference.whole = parts.of(Part::Whole).clone();
            as_reference.answers_per_s = slice.answers_per_s.unwrap_or(0.0);
            [as_reference.device_per_s, as_reference.others_per_s] =
                Answered::of(&reading).rates(timed);
        }
        Ok((slice, as_reference))
    }
}
