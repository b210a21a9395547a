//! What the kernel says about CPUs: idle time, and time stolen by the hypervisor.
//!
//! `/proc/stat` is opened once and read again into one buffer. Its unit is a clock tick (10 ms), so
//! a difference is only worth its window divided by that. What *threads* used is in [`super::cpu`].

use std::fs::File;
use std::io;

use super::procfs::{number, read_again, tick_ns, words};

/// Time of one CPU by kind, in nanoseconds since boot, in steps of a clock tick.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct CpuTimes {
    /// Idle, waiting for a disk included.
    pub idle_ns: u64,
    /// Taken by the hypervisor.
    pub steal_ns: u64,
    /// Running threads, the kernel's among them: user, nice and system.
    pub threads_ns: u64,
    /// Everything, idle and steal included.
    pub total_ns: u64,
}

/// Reads `/proc/stat` again and again.
#[derive(Debug)]
pub struct ProcStat {
    file: File,
    tick_ns: u64,
    buffer: Vec<u8>,
}

impl ProcStat {
    /// Opens it.
    ///
    /// # Errors
    /// If `/proc` is not mounted.
    pub fn open() -> io::Result<ProcStat> {
        Ok(ProcStat {
            file: File::open("/proc/stat")?,
            tick_ns: tick_ns(),
            buffer: Vec::with_capacity(8192),
        })
    }

    /// The times of the given CPUs added up; those that are offline count nothing.
    ///
    /// # Errors
    /// If the file cannot be read.
    pub fn read(&mut self, cpus: &[u32]) -> io::Result<CpuTimes> {
        read_again(&self.file, &mut self.buffer)?;
        let mut sum = CpuTimes::default();
        for (cpu, times) in parse_cpu_lines(&self.buffer, self.tick_ns) {
            if cpus.contains(&cpu) {
                sum.idle_ns = sum.idle_ns.saturating_add(times.idle_ns);
                sum.steal_ns = sum.steal_ns.saturating_add(times.steal_ns);
                sum.threads_ns = sum.threads_ns.saturating_add(times.threads_ns);
                sum.total_ns = sum.total_ns.saturating_add(times.total_ns);
            }
        }
        Ok(sum)
    }
}

impl CpuTimes {
    /// What passed since an earlier reading.
    pub fn since(self, earlier: CpuTimes) -> CpuTimes {
        CpuTimes {
            idle_ns: self.idle_ns.saturating_sub(earlier.idle_ns),
            steal_ns: self.steal_ns.saturating_sub(earlier.steal_ns),
            threads_ns: self.threads_ns.saturating_sub(earlier.threads_ns),
            total_ns: self.total_ns.saturating_sub(earlier.total_ns),
        }
    }
}

/// The `cpuN` lines: user nice system idle iowait irq softirq steal, and guest times, which user
/// and nice already include.
fn parse_cpu_lines(text: &[u8], tick_ns: u64) -> impl Iterator<Item = (u32, CpuTimes)> + '_ {
    text.split(|&byte| byte == b'\n').filter_map(move |line| {
        let mut fields = words(line.strip_prefix(b"cpu")?);
        let cpu = u32::try_from(number(fields.next()?)?).ok()?;
        // The sum line has a space after "cpu", so its first word is a time, not a number of a CPU.
        if !line[3].is_ascii_digit() {
            return None;
        }
        let mut ticks = [0; 8];
        for tick in &mut ticks {
            *tick = fields.next().and_then(number).unwrap_or(0);
        }
        let ns = |ticks: u64| ticks.saturating_mul(tick_ns);
        let total = ticks.iter().fold(0, |sum: u64, &t| sum.saturating_add(t));
        let idle = ticks[3].saturating_add(ticks[4]);
        let threads = ticks[..3].iter().fold(0, |sum: u64, &t| sum.saturating_add(t));
        let (idle_ns, steal_ns) = (ns(idle), ns(ticks[7]));
        let (threads_ns, total_ns) = (ns(threads), ns(total));
        Some((cpu, CpuTimes { idle_ns, steal_ns, threads_ns, total_ns }))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn steal_is_read_for_each_cpu_and_the_sum_line_is_no_cpu() {
        let text = b"cpu  3 0 0 0 0 0 0 9 0 0\ncpu0 1 2 3 4 5 6 7 8 100 100\ncpu11 0 0 0 1 0 0 0 1\nintr 5 0\n";
        let lines: Vec<_> = parse_cpu_lines(text, 10).collect();
        let first = CpuTimes { idle_ns: 90, steal_ns: 80, threads_ns: 60, total_ns: 360 };
        let other = CpuTimes { idle_ns: 10, steal_ns: 10, threads_ns: 0, total_ns: 20 };
        assert_eq!(lines, [(0, first), (11, other)]);
    }

    #[test]
    fn this_machine_s_cpus_have_times() {
        let mut stat = ProcStat::open().unwrap();
        let first = stat.read(&[0]).unwrap();
        assert!(first.total_ns >= first.idle_ns);
        let later = stat.read(&[0]).unwrap().since(first);
        assert!(later.steal_ns <= later.total_ns);
        assert_eq!(stat.read(&[u32::MAX]).unwrap(), CpuTimes::default());
    }
}
