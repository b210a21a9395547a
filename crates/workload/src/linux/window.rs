//! The kernel's activity in a window: polls by context, timers, and the serving CPU's time.

use std::time::Instant;

use napkin_kernel::count::Counts;
use napkin_os::procfs::{CpuTimes, Softnet};
use serde_json::Value;

use super::testbed::Testbed;
use crate::error::BenchError;
use crate::options::Placement;
use crate::serving::set_ratio;
use napkin_measure::Interruption;
use napkin_measure::report::Measurement;

/// A window in progress.
#[derive(Debug)]
pub struct Window<'a> {
    testbed: &'a Testbed,
    cpu: usize,
    /// `None` if interruptions cannot be observed here.
    interruption: Option<Interruption>,
    began: Instant,
    counts: Counts,
    received: u64,
    times: Option<CpuTimes>,
    squeezes: Option<u32>,
}

/// All counters at one moment; `None` for what `/proc` does not show of the CPU.
type Moment = (Counts, Option<CpuTimes>, Option<u32>);

fn read(testbed: &Testbed, cpu: usize) -> Result<Moment, BenchError> {
    let counts = testbed.counter.of(&testbed.key);
    let times = CpuTimes::read().map_err(BenchError::Proc)?.get(&cpu).copied();
    let softnet = Softnet::read().map_err(BenchError::Proc)?;
    let softnet = softnet.iter().find(|it| it.cpu == Some(cpu));
    // An instance that was never polled has no entry yet: its counts are 0.
    Ok((
        counts.unwrap_or_else(|| testbed.counter.none_yet()),
        times,
        softnet.map(|it| it.time_squeeze),
    ))
}

impl<'a> Window<'a> {
    /// Begins a window over the device's only instance and the serving CPU, and, for interruptions, the client's
    /// CPU as well. `programs` are the processes that take part besides this one and the instance's thread.
    ///
    /// # Errors
    /// If the counts or `/proc` cannot be read.
    pub fn begin(
        testbed: &'a Testbed,
        placement: Placement,
        programs: &[u32],
    ) -> Result<Window<'a>, BenchError> {
        let cpu = placement.queue;
        let processes: Vec<u32> = programs.iter().copied().chain(testbed.thread).collect();
        let interruption = Interruption::begin(&[cpu, placement.other], &processes).ok();
        let (counts, times, squeezes) = read(testbed, cpu)?;
        let received = testbed.received()?;
        let began = Instant::now();
        Ok(Window { testbed, cpu, interruption, began, counts, received, times, squeezes })
    }

    /// Ends the window.
    ///
    /// # Errors
    /// Those of [`Window::begin`].
    pub fn end(self) -> Result<Measurement, BenchError> {
        let (counts, times, squeezes) = read(self.testbed, self.cpu)?;
        let received = self.testbed.received()?.saturating_sub(self.received);
        let window_ns = u64::try_from(self.began.elapsed().as_nanos()).unwrap_or(u64::MAX);
        let interrupted = self.interruption.and_then(|it| it.end().ok().flatten());
        let counts = counts.since(&self.counts);
        let all = counts.all();
        let mut figures = Measurement {
            interrupted,
            window_ns: Some(window_ns),
            polls: Some(all.polls),
            empty_polls: Some(all.empty),
            polled_packets: Some(all.packets),
            ..Measurement::default()
        };
        let extra = &mut figures.extra;
        let mut put = |name: &str, count: u64| {
            extra.insert(name.to_owned(), Value::from(count));
        };
        put("rx_packets", received);
        // Polls by context and by outcome.
        let contexts = [
            ("softirq", counts.softirq),
            ("thread", counts.thread),
            ("application", counts.application),
        ];
        for (who, polled) in contexts {
            put(&format!("polls_{who}"), polled.polls);
            put(&format!("empty_polls_{who}"), polled.empty);
            put(&format!("full_polls_{who}"), polled.full);
            put(&format!("packets_{who}"), polled.packets);
        }
        // Left out if the kernel's timers could not be traced.
        let timers = [
            ("deferrals", counts.deferrals),
            ("watchdogs", counts.watchdogs),
            ("suspensions", counts.suspensions),
            ("suspend_expiries", counts.expiries),
        ];
        for (name, count) in timers {
            if let Some(count) = count {
                put(name, count);
            }
        }
        if let (Some(now), Some(then)) = (squeezes, self.squeezes) {
            put("time_squeeze", now.wrapping_sub(then).into());
        }
        if let (Some(now), Some(then)) = (times, self.times) {
            let passed = now.since(then);
            // Derived from the idle time, which the kernel measures exactly; includes every thread on the CPU.
            set_ratio(extra, "server_busy", passed.busy_ns(window_ns), window_ns);
            let all = passed.total_ns();
            set_ratio(extra, "server_softirq", passed.softirq_ns, all);
            set_ratio(extra, "server_threads", passed.threads_ns(), all);
        }
        extra.insert("serving_cpus".into(), vec![self.cpu].into());
        Ok(figures)
    }
}
