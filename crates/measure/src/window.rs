//! A measurement window: usage of threads, CPUs and wall time, read together at both ends.
//!
//! Combines [`ThreadMeter`], [`CpuTimes`] and [`CpuSplit`], so that every workload counts the same things over the
//! same time. Only the engine knows the time of empty polls: the caller passes it at the end.

use std::io;
use std::time::Instant;

use super::split::{CpuSplit, SplitInputs};
use napkin_os::meter::ThreadMeter;
use napkin_os::procfs::CpuTimes;
use napkin_os::usage::{ThreadUsage, UsageTotals};

/// Measures consecutive windows over the same threads and CPUs.
#[derive(Debug)]
pub struct CpuWindow {
    threads: ThreadMeter,
    cpus: Vec<usize>,
    before: Vec<ThreadUsage>,
    after: Vec<ThreadUsage>,
    times: CpuTimes,
    start: Instant,
}

/// Usage within a window.
#[derive(Debug, Clone, PartialEq)]
pub struct WindowUsage {
    /// Length, ns on the monotonic clock.
    pub wall_ns: u64,
    /// Split of the CPUs' time; `None` if there are no CPUs or the window has no length.
    pub split: Option<CpuSplit>,
    /// Sum over the threads.
    pub totals: UsageTotals,
    /// Threads, by ascending id.
    pub threads: Vec<ThreadUsage>,
    /// Sum over the CPUs, including steal.
    pub cpus: CpuTimes,
    /// Number of CPUs in that sum.
    pub of_cpus: u64,
    /// Missing parts of these figures, with reasons.
    pub notes: Vec<String>,
}

impl WindowUsage {
    /// CPU time that the traffic took: that of these threads, and of the CPUs' interrupts and softirqs.
    ///
    /// The kernel measures idle time, so that busy time is precise to a tick (10 ms), but includes other programs.
    /// It samples the time of interrupts and softirqs, and also charges that to the interrupted thread. Both sums
    /// are thus too large; the smaller one is returned.
    pub fn busy_ns(&self) -> u64 {
        let cpus = self.wall_ns.saturating_mul(self.of_cpus);
        let interrupts = self.cpus.irq_ns.saturating_add(self.cpus.softirq_ns);
        self.cpus.busy_ns(cpus).min(self.totals.cpu_ns.saturating_add(interrupts))
    }
}

impl CpuWindow {
    /// A window over the threads that serve the traffic, and the CPUs that they run on. It starts at once; call
    /// [`Self::begin`] to restart it.
    ///
    /// # Errors
    /// If `/proc` cannot be read.
    pub fn new(threads: ThreadMeter, mut cpus: Vec<usize>) -> io::Result<CpuWindow> {
        cpus.sort_unstable();
        cpus.dedup();
        let mut window = CpuWindow {
            threads,
            cpus,
            before: Vec::new(),
            after: Vec::new(),
            times: CpuTimes::default(),
            start: Instant::now(),
        };
        window.begin()?;
        Ok(window)
    }

    /// Restarts the window, for example after the warm-up.
    ///
    /// # Errors
    /// If `/proc` cannot be read.
    pub fn begin(&mut self) -> io::Result<()> {
        self.times = CpuTimes::of(&self.cpus)?;
        self.threads.read(&mut self.before)?;
        self.start = Instant::now();
        Ok(())
    }

    /// Returns the usage since the start; `poll_ns` is the time of empty polls.
    ///
    /// # Errors
    /// If `/proc` cannot be read.
    pub fn end(&mut self, poll_ns: u64) -> io::Result<WindowUsage> {
        self.finish(|_| true, |_| poll_ns)
    }

    /// As [`end`](Self::end), for threads whose id is `wanted`, including those that started within the window;
    /// `poll_ns` gets the usage of each.
    ///
    /// # Errors
    /// If `/proc` cannot be read.
    pub fn end_of(
        &mut self,
        wanted: impl Fn(u32) -> bool,
        poll_ns: impl FnOnce(&[ThreadUsage]) -> u64,
    ) -> io::Result<WindowUsage> {
        // Before the clock is read, because it takes a while.
        self.threads.admit(|tid, _| wanted(tid))?;
        self.finish(wanted, poll_ns)
    }

    fn finish(
        &mut self,
        wanted: impl Fn(u32) -> bool,
        poll_ns: impl FnOnce(&[ThreadUsage]) -> u64,
    ) -> io::Result<WindowUsage> {
        let wall_ns = u64::try_from(self.start.elapsed().as_nanos()).unwrap_or(u64::MAX);
        self.threads.read(&mut self.after)?;
        let cpus = CpuTimes::of(&self.cpus)?.since(self.times);
        let mut threads = ThreadMeter::between(&self.before, &self.after);
        threads.retain(|thread| wanted(thread.tid));
        for thread in &mut threads {
            thread.run_delay_ns = thread.waited(wall_ns);
        }
        let totals = UsageTotals::of(&threads);
        let mut notes: Vec<String> =
            self.threads.source().caveat().map(str::to_owned).into_iter().collect();
        for thread in threads.iter().filter(|thread| thread.ended) {
            notes.push(format!(
                "cpu: thread {} ({}) ended during the window; what it used since its last reading \
                 is missing",
                thread.tid, thread.name
            ));
        }
        let split = CpuSplit::of(SplitInputs {
            wall_ns,
            cpus: u32::try_from(self.cpus.len()).unwrap_or(u32::MAX),
            cpu_ns: totals.cpu_ns,
            poll_ns: poll_ns(&threads),
            // If the delay is unknown, a note says that `waiting` is steal alone.
            run_delay_ns: totals.run_delay_ns.unwrap_or(0),
            steal_ns: cpus.steal_ns,
        });
        let of_cpus = self.cpus.len() as u64;
        Ok(WindowUsage { wall_ns, split, totals, threads, cpus, of_cpus, notes })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_parts_of_a_real_window_add_up_to_one() {
        let meter = ThreadMeter::of_self(|_, _| true).unwrap();
        let mut window = CpuWindow::new(meter, vec![0, 1, 0]).unwrap();
        assert_eq!(window.cpus, [0, 1], "a CPU named twice counts once");
        let usage = window.end(u64::MAX).unwrap();
        let split = usage.split.unwrap();
        assert!((split.sum() - 1.0).abs() < 1e-9, "{split:?}");
        assert_eq!(split.work, 0.0, "all CPU time was claimed to be polls that found nothing");
        window.begin().unwrap();
        assert!(window.end(0).unwrap().split.is_some(), "it can be used again");
    }

    #[test]
    fn a_sleep_in_the_window_is_a_wake_up_in_it() {
        let own = u32::try_from(rustix::thread::gettid().as_raw_nonzero().get()).unwrap();
        let meter = ThreadMeter::of_self(|tid, _| tid == own).unwrap();
        let mut window = CpuWindow::new(meter, vec![0]).unwrap();
        // Several sleeps, because one may end before the thread has left its CPU.
        for _ in 0..20 {
            std::thread::sleep(std::time::Duration::from_millis(1));
        }
        let usage = window.end(0).unwrap();
        assert!(usage.totals.wakeups >= 1 && usage.wall_ns != 0, "{usage:?}");
        assert_eq!(usage.threads.len(), 1);
    }

    #[test]
    fn a_thread_that_started_in_the_window_is_part_of_it_and_the_unwanted_are_not() {
        let own = u32::try_from(rustix::thread::gettid().as_raw_nonzero().get()).unwrap();
        let meter = ThreadMeter::of_self(|tid, _| tid != own).unwrap();
        let mut window = CpuWindow::new(meter, vec![0]).unwrap();
        let usage = window.end_of(|tid| tid == own, |threads| threads.len() as u64).unwrap();
        assert_eq!(usage.threads.iter().map(|thread| thread.tid).collect::<Vec<_>>(), [own]);
    }

    #[test]
    fn the_traffic_s_time_is_what_is_not_idle_and_no_more_than_its_threads_and_interrupts() {
        let usage = |threads_ms: u64, idle_ms: u64| {
            let meter = ThreadMeter::of_self(|_, _| false).unwrap();
            let mut usage = CpuWindow::new(meter, vec![0]).unwrap().end(0).unwrap();
            usage.wall_ns = 1_000_000_000;
            usage.totals.cpu_ns = threads_ms * 1_000_000;
            usage.cpus = CpuTimes {
                idle_ns: idle_ms * 1_000_000,
                softirq_ns: 100_000_000,
                steal_ns: 50_000_000,
                ..CpuTimes::default()
            };
            usage.busy_ns() / 1_000_000
        };
        // Half of the softirq time is also charged to a thread.
        assert_eq!(usage(300, 600), 350);
        // Another program ran for 300 ms.
        assert_eq!(usage(300, 250), 400);
        assert_eq!(usage(0, 1_000), 0, "steal and ticks may add up to more than there was");
    }

    #[test]
    fn a_window_without_cpus_has_no_split() {
        let meter = ThreadMeter::of_self(|_, _| false).unwrap();
        let usage = CpuWindow::new(meter, Vec::new()).unwrap().end(0).unwrap();
        assert_eq!((usage.split, usage.threads.len()), (None, 0));
    }
}
