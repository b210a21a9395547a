//! What a view is drawn from: cumulative counts of each instance and each CPU at one moment.
//!
//! A source knows nothing of rates, screens or sorting; whoever draws takes the difference of two
//! samples. What a source cannot know is `None`, with the reason among the sample's notes: it is
//! never shown as 0.

use napkin_kernel::count::latency::Parts;
use napkin_os::procfs::CpuTimes;
use napkin_policy::text::escaped;
use serde::Serialize;
use thiserror::Error;

/// The longest name that is taken over, in characters.
pub(crate) const LONGEST_NAME: usize = 64;

/// A name of somebody else's: harmless, and at most `limit` characters.
pub(crate) fn plain(text: &str, limit: usize) -> String {
    escaped(text).chars().take(limit).collect()
}

/// Where samples come from: the kernel, or an engine's control socket.
pub trait Source {
    /// What is watched, for the view's first line: `Linux 6.18 on host`, `engine eth0.sock`.
    fn title(&self) -> String;

    /// The counts now.
    ///
    /// # Errors
    /// If what is watched has gone; a part that cannot be read is `None` instead.
    fn sample(&mut self) -> Result<Sample, SourceError>;
}

/// Why there is no sample.
#[derive(Debug, Error)]
#[error("{0}")]
pub struct SourceError(pub String);

/// Everything at one moment.
#[derive(Debug, Clone, PartialEq, Default, Serialize)]
pub struct Sample {
    /// Nanoseconds of the monotonic clock.
    pub at_ns: u64,
    /// The process that counts its instances; `None` where the kernel does, and where it is not known.
    pub process: Option<i32>,
    /// The instances, in the source's order.
    pub napis: Vec<NapiSample>,
    /// The CPUs, by number.
    pub cpus: Vec<CpuSample>,
    /// What could not be known, and why.
    pub notes: Vec<String>,
}

/// Counts by who polled; each counts from whenever the source began to count.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize)]
pub struct Polls {
    /// By a softirq.
    pub softirq: u64,
    /// By the instance's thread.
    pub thread: u64,
    /// By an application's busy poll.
    pub application: u64,
    /// Of all of them: those that found nothing.
    pub empty: u64,
}

/// Softirq rounds that ended for lack of time or budget (`time_squeeze`). They are a CPU's: all its
/// instances show the same.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize)]
pub enum Squeezes {
    /// Nothing counts them here.
    #[default]
    Unknown,
    /// So many, of the CPU in [`NapiSample::cpu`] as the source runs it.
    Counted(u64),
    /// Those of the CPU in [`NapiSample::cpu`], among [`Sample::cpus`].
    OfCpu,
}

/// What was read of one instance.
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
    /// Its CPU: where it last polled, or that of its thread; an engine's, to which it belongs.
    pub cpu: Option<usize>,
    /// Its mode: the policy in force by name, or as spelled out.
    pub mode: String,
    /// Packets that polls found.
    pub packets: Option<u64>,
    /// Its polls since it came to be, where they are counted.
    pub polls: Option<Polls>,
    /// Its interrupts since it came to be, or was first looked at, where they are counted.
    pub interrupts: Option<u64>,
    /// Polls that used their whole budget.
    pub full_polls: Option<u64>,
    /// Polls after which the timer was armed in the place of the interrupt.
    pub deferrals: Option<u64>,
    /// Times that its timer fired.
    pub watchdogs: Option<u64>,
    /// Times that an application's wait suspended its interrupt.
    pub suspensions: Option<u64>,
    /// Softirq rounds of its CPU that ended for lack of time or budget.
    pub time_squeezes: Squeezes,
    /// Its thread's id.
    pub pid: Option<i32>,
    /// Nanoseconds of CPU that its thread has used.
    pub thread_cpu_ns: Option<u64>,
    /// How long the requests took that were timed, by part, where they are.
    #[serde(skip)]
    pub latency: Option<Parts>,
    /// The programs whose sockets it serves: `memcached[812]`.
    pub owners: Vec<String>,
}

/// One CPU: nanoseconds since some beginning, and counts.
#[derive(Debug, Clone, PartialEq, Default, Serialize)]
pub struct CpuSample {
    /// The CPU's number.
    pub cpu: usize,
    /// In hard interrupts.
    pub hard_irq_ns: u64,
    /// Time in softirqs since boot, ns.
    pub softirq_ns: u64,
    /// In threads: user and system time.
    pub thread_ns: u64,
    /// Time without work since boot, ns.
    pub idle_ns: u64,
    /// Stolen by a hypervisor.
    pub steal_ns: u64,
    /// Softirq rounds that ended for lack of time or budget (`time_squeeze`).
    pub time_squeezes: Option<u64>,
}

impl CpuSample {
    /// A CPU whose time went as the kernel says.
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
