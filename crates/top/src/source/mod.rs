//! Where samples come from.

mod engine;
mod linux;

pub use engine::EngineSource;
pub use linux::LinuxSource;

/// The longest name that is taken over, in characters.
const LONGEST_NAME: usize = 64;

/// Where each CPU's time went and how often its softirqs were cut short, as the kernel says; nothing,
/// with a note, without procfs.
fn cpus(notes: &mut Vec<String>) -> Vec<crate::CpuSample> {
    let times = napkin_os::procfs::CpuTimes::read().unwrap_or_else(|error| {
        notes.push(format!("CPUs: /proc/stat cannot be read: {error}"));
        std::collections::BTreeMap::new()
    });
    // Its lines are of the CPUs that are on; before Linux 5.10 they had no number.
    let softnet = napkin_os::procfs::Softnet::read().unwrap_or_default();
    let squeezes = |cpu: usize| {
        let of_it = softnet.iter().find(|line| line.cpu == Some(cpu));
        of_it.map(|line| u64::from(line.time_squeeze))
    };
    let sample = |(cpu, times): (usize, napkin_os::procfs::CpuTimes)| crate::CpuSample {
        cpu,
        hard_irq_ns: times.irq_ns,
        softirq_ns: times.softirq_ns,
        thread_ns: times.threads_ns(),
        idle_ns: times.all_idle_ns(),
        steal_ns: times.steal_ns,
        time_squeezes: squeezes(cpu),
    };
    times.into_iter().map(sample).collect()
}
