//! Samples: cumulative counts of each instance and each CPU at one time.
//!
//! A source does not compute rates; a reader takes the difference of two samples. An unknown value is `None`,
//! with the reason among the sample's notes, and is never shown as 0.

use napkin_kernel::count::latency::Parts;
use napkin_os::procfs::CpuTimes;
use napkin_policy::text::escaped;
use serde::Serialize;
use thiserror::Error;

/// The maximum length of a name, in characters.
pub(crate) const LONGEST_NAME: usize = 64;

/// Makes a foreign name safe to print, and cuts it to `limit` characters.
pub(crate) fn plain(text: &str, limit: usize) -> String {
    escaped(text).chars().take(limit).collect()
}

/// A source of samples: the kernel, or an engine's control socket.
pub trait Source {
    /// The title, for the view's first line: `Linux 6.18 on host`, `engine eth0.sock`.
    fn title(&self) -> String;

    /// Returns the current counts.
    ///
    /// # Errors
    /// If the source is gone; a part that cannot be read is `None` instead.
    fn sample(&mut self) -> Result<Sample, SourceError>;
}

/// Why there is no sample.
#[derive(Debug, Error)]
#[error("{0}")]
pub struct SourceError(pub String);

/// All counts at one time.
#[derive(Debug, Clone, PartialEq, Default, Serialize)]
pub struct Sample {
    /// Nanoseconds of the monotonic clock.
    pub at_ns: u64,
    /// The process that counts; `None` for the kernel, or if unknown.
    pub process: Option<i32>,
    /// The instances, in the source's order.
    pub napis: Vec<NapiSample>,
    /// The CPUs, by number.
    pub cpus: Vec<CpuSample>,
    /// What could not be known, and why.
    pub notes: Vec<String>,
}

/// Polls by poller, since the source began to count.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize)]
pub struct Polls {
    /// By a softirq.
    pub softirq: u64,
    /// By the instance's thread.
    pub thread: u64,
    /// By an application's busy poll.
    pub application: u64,
    /// Those of all polls that found nothing.
    pub empty: u64,
}

/// Softirq rounds that ended for lack of time or budget (`time_squeeze`). They are counted for each CPU: all
/// its instances show the same.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize)]
pub enum Squeezes {
    /// Not counted here.
    #[default]
    Unknown,
    /// This number, for the CPU in [`NapiSample::cpu`] as this source runs it.
    Counted(u64),
    /// The count of the CPU in [`NapiSample::cpu`], in [`Sample::cpus`].
    OfCpu,
}

/// The counts of one instance.
#[derive(Debug, Clone, PartialEq, Default, Serialize)]
pub struct NapiSample {
    /// Its device's name.
    pub ifname: String,
    /// NAPI ID, as the kernel or the engine numbers it.
    pub id: u32,
    /// The receive queues that it polls.
    pub rx_queues: Vec<u32>,
    /// Its interrupt's number.
    pub irq: Option<u32>,
    /// Its CPU: where it last polled, or that of its thread; for an engine, the one it belongs to.
    pub cpu: Option<usize>,
    /// The policy in force, by name or spelled out.
    pub mode: String,
    /// Packets found by polls.
    pub packets: Option<u64>,
    /// Its polls since its creation, if counted.
    pub polls: Option<Polls>,
    /// Its interrupts since its creation or the first sample, if counted.
    pub interrupts: Option<u64>,
    /// Polls that used their whole budget.
    pub full_polls: Option<u64>,
    /// Polls after which the timer was armed in place of the interrupt.
    pub deferrals: Option<u64>,
    /// Expiries of its timer.
    pub watchdogs: Option<u64>,
    /// Waits of applications that suspended its interrupt.
    pub suspensions: Option<u64>,
    /// Softirq rounds of its CPU that ended for lack of time or budget.
    pub time_squeezes: Squeezes,
    /// Its thread's ID.
    pub pid: Option<i32>,
    /// CPU time of its thread, in nanoseconds.
    pub thread_cpu_ns: Option<u64>,
    /// Durations of timed requests, by part, if they are timed.
    #[serde(skip)]
    pub latency: Option<Parts>,
    /// The programs whose sockets it serves: `memcached[812]`.
    pub owners: Vec<String>,
}

/// One CPU: cumulative times in nanoseconds, and counts.
#[derive(Debug, Clone, PartialEq, Default, Serialize)]
pub struct CpuSample {
    /// The CPU's number.
    pub cpu: usize,
    /// Time in hard interrupts since boot, ns.
    pub hard_irq_ns: u64,
    /// Time in softirqs since boot, ns.
    pub softirq_ns: u64,
    /// Time in threads since boot, ns: user and system time.
    pub thread_ns: u64,
    /// Idle time since boot, ns.
    pub idle_ns: u64,
    /// Time stolen by a hypervisor since boot, ns.
    pub steal_ns: u64,
    /// Softirq rounds that ended for lack of time or budget (`time_squeeze`).
    pub time_squeezes: Option<u64>,
}

impl CpuSample {
    /// Converts the kernel's times of a CPU.
    pub(crate) fn of(cpu: usize, times: &CpuTimes, time_squeezes: Option<u64>) -> CpuSample {
        CpuSample {
            cpu,
            hard_irq_ns: times.irq_ns,
            softirq_ns: times.softirq_ns,
            thread_ns: times.threads_ns(),
            idle_ns: times.all_idle_ns(),
            steal_ns: times.steal_ns,
            time_squeezes,
        }
    }
}
