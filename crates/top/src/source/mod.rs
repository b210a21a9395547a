//! Where samples come from.

mod engine;
mod linux;

pub use engine::EngineSource;
pub use linux::LinuxSource;

/// The longest name that is taken over, in characters.
const LONGEST_NAME: usize = 64;

/// Nanoseconds of the monotonic clock.
fn now_ns() -> u64 {
    let now = rustix::time::clock_gettime(rustix::time::ClockId::Monotonic);
    let seconds = u64::try_from(now.tv_sec).unwrap_or(0);
    let nanoseconds = u64::try_from(now.tv_nsec).unwrap_or(0);
    seconds.saturating_mul(1_000_000_000).saturating_add(nanoseconds)
}

/// Where each CPU's time went and how often its softirqs were cut short, as the kernel says; nothing,
/// with a note, without procfs.
fn cpus(notes: &mut Vec<String>) -> Vec<crate::CpuSample> {
    let times = napkin_linux::procfs::CpuTimes::read().unwrap_or_else(|error| {
        notes.push(format!("CPUs: /proc/stat cannot be read: {error}"));
        Vec::new()
    });
    // Its lines are of the CPUs that are on; before Linux 5.10 they had no number.
    let softnet = napkin_linux::procfs::Softnet::read().unwrap_or_default();
    let squeezes = |cpu: usize| {
        let of_it = softnet.iter().find(|line| line.cpu == Some(cpu));
        of_it.map(|line| u64::from(line.time_squeeze))
    };
    let sample = |times: napkin_linux::procfs::CpuTimes| crate::CpuSample {
        cpu: times.cpu,
        hard_irq_ns: times.irq_ns,
        softirq_ns: times.softirq_ns,
        thread_ns: times.user_ns.saturating_add(times.nice_ns).saturating_add(times.system_ns),
        idle_ns: times.idle_ns.saturating_add(times.iowait_ns),
        steal_ns: times.steal_ns,
        time_squeezes: squeezes(times.cpu),
    };
    times.into_iter().map(sample).collect()
}
