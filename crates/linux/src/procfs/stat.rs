//! `/proc/stat`: where each CPU's time went.

use std::io;

use super::read_text;

/// The lines of CPUs come first; a host of eight thousand has fewer bytes of them.
const LIMIT: usize = 4 << 20;

const SECOND_NS: u64 = 1_000_000_000;

/// One CPU's time since the start, in nanoseconds, as fine as the kernel writes it (10 ms). Where
/// the kernel samples by the tick, interrupts and softirqs shorter than a tick may not show at all.
/// `idle_ns` and `iowait_ns` may go back.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct CpuTimes {
    /// Its number.
    pub cpu: usize,
    /// In programs, guests included.
    pub user_ns: u64,
    /// In programs of lowered priority.
    pub nice_ns: u64,
    /// In the kernel on behalf of threads, its own threads included.
    pub system_ns: u64,
    /// Idle.
    pub idle_ns: u64,
    /// Idle, with a thread that waits for a disk.
    pub iowait_ns: u64,
    /// In hard interrupts.
    pub irq_ns: u64,
    /// In softirqs, those that ksoftirqd runs left out.
    pub softirq_ns: u64,
    /// Stolen by a hypervisor.
    pub steal_ns: u64,
}

impl CpuTimes {
    /// Reads all CPUs that are on, by rising number.
    ///
    /// # Errors
    /// Without procfs.
    pub fn read() -> io::Result<Vec<CpuTimes>> {
        Ok(CpuTimes::parse(&read_text("/proc/stat", LIMIT)?, ticks_per_second()))
    }

    /// Reads the file's text, in which times are in ticks. Lines that make no sense are left out.
    pub fn parse(text: &str, ticks_per_second: u64) -> Vec<CpuTimes> {
        let tick_ns = SECOND_NS / ticks_per_second.max(1);
        text.lines().filter_map(|text| line(text, tick_ns)).collect()
    }
}

fn line(text: &str, tick_ns: u64) -> Option<CpuTimes> {
    let mut words = text.split_ascii_whitespace();
    // The sum of all has no number.
    let cpu = words.next()?.strip_prefix("cpu")?.parse().ok()?;
    let mut next = || words.next()?.parse::<u64>().ok()?.checked_mul(tick_ns);
    Some(CpuTimes {
        cpu,
        user_ns: next()?,
        nice_ns: next()?,
        system_ns: next()?,
        idle_ns: next()?,
        iowait_ns: next()?,
        irq_ns: next()?,
        softirq_ns: next()?,
        steal_ns: next().unwrap_or(0),
    })
}

/// Ticks a second of the times in `/proc`, which is not the rate of the kernel's own tick.
pub(super) fn ticks_per_second() -> u64 {
    rustix::param::clock_ticks_per_second()
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const LINUX_6_18: &str = "cpu  3091511 1395607 578200 4212817 15936 0 4258 72898 0 0
cpu0 764999 339059 151252 1066156 2746 0 1061 18934 0 0
cpu3 7 6 5 4 3 2 1 0 0 0
intr 12345 0 0
";

    #[test]
    fn ticks_become_nanoseconds() {
        let all = CpuTimes::parse(LINUX_6_18, 100);
        assert_eq!(all.iter().map(|it| it.cpu).collect::<Vec<_>>(), [0, 3]);
        assert_eq!(all[0].user_ns, 7_649_990_000_000);
        assert_eq!(all[0].softirq_ns, 10_610_000_000);
        assert_eq!((all[1].irq_ns, all[1].steal_ns), (20_000_000, 0));
    }

    #[test]
    fn this_kernel_s_are_read() {
        let all = CpuTimes::read().expect("procfs");
        assert!(all.iter().any(|it| it.user_ns > 0), "{all:?}");
        assert!(all.is_sorted_by_key(|it| it.cpu));
    }

    proptest! {
        #[test]
        fn nothing_panics(text in "(cpu[0-9]{0,22}|[0-9]{0,25}| |\n|\\PC){0,60}", ticks: u64) {
            let _ = CpuTimes::parse(&text, ticks);
        }
    }
}
