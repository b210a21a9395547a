//! Measures for how long this host kept a run from the CPUs that it needed.
//!
//! A policy that spins answers within a microsecond, or within milliseconds if another program has the CPU for a
//! time slice: its figures then describe that program. So each window is watched, per CPU:
//!
//! | part | is | from |
//! |---|---|---|
//! | stolen | the hypervisor had the CPU | `steal` in `/proc/stat` |
//! | waited | threads of the run were runnable and did not run | run-queue delay in `/proc/<pid>/task/*/schedstat` |
//! | foreign | threads of other programs ran | user, nice and system time in `/proc/stat`, less the run's |
//!
//! Threads of the run also wait for each other, which is no interruption, and foreign threads do no harm while the
//! run sleeps. So a CPU was interrupted for the stolen time plus the smaller of waited and foreign. A request
//! passes through several CPUs: the most interrupted one counts.
//!
//! Limits: `/proc/stat` counts in ticks (10 ms), so a window of a second is precise to 1 %. Only threads that are
//! pinned to one CPU, as a run's are, can be attributed. A hypervisor that does not report stolen time shows only
//! in the spread of the repetitions.

use std::collections::BTreeMap;
use std::io;
use std::time::Instant;

use napkin_os::meter::ThreadMeter;
use napkin_os::procfs::CpuTimes;
use napkin_os::usage::ThreadUsage;

/// A watch over one measurement window.
#[derive(Debug)]
pub struct Interruption {
    /// The threads of each process, with their usage at the start.
    processes: Vec<(ThreadMeter, Vec<ThreadUsage>)>,
    cpus: BTreeMap<usize, CpuTimes>,
    begun: Instant,
}

/// The use of a CPU's time, in nanoseconds.
#[derive(Debug, Clone, Copy, Default)]
struct OnCpu {
    /// Threads of the run ran.
    ran: u64,
    /// Threads of the run were runnable and did not run.
    waited: u64,
    /// Threads of any program ran.
    threads: u64,
    /// The hypervisor had the CPU.
    stolen: u64,
}

impl Interruption {
    /// Starts to watch the CPUs `watched`. The run consists of this process's threads and those of the processes
    /// `others`, by id.
    ///
    /// # Errors
    /// If `/proc` cannot be read.
    pub fn begin(watched: &[usize], others: &[u32]) -> io::Result<Interruption> {
        let mut meters = vec![ThreadMeter::of_self(|_, _| true)?];
        for process in others {
            meters.push(ThreadMeter::of_process(*process)?);
        }
        let mut processes = Vec::new();
        for mut meter in meters {
            let mut used = Vec::new();
            meter.read(&mut used)?;
            processes.push((meter, used));
        }
        let mut cpus = CpuTimes::read()?;
        cpus.retain(|cpu, _| watched.contains(cpu));
        Ok(Interruption { processes, cpus, begun: Instant::now() })
    }

    /// The share of the window, from 0 to 1, for which the most interrupted CPU was interrupted. `None` if this
    /// kernel does not report run-queue delays.
    ///
    /// # Errors
    /// If `/proc` cannot be read.
    pub fn end(self) -> io::Result<Option<f64>> {
        let Interruption { processes, cpus, begun } = self;
        let wall = u64::try_from(begun.elapsed().as_nanos()).unwrap_or(u64::MAX);
        let mut used = Vec::new();
        for (mut meter, before) in processes {
            let mut now = Vec::new();
            meter.admit(|_, _| true)?;
            meter.read(&mut now)?;
            used.extend(ThreadMeter::between(&before, &now));
        }
        let (mut all, now) = (Vec::new(), CpuTimes::read()?);
        for (cpu, before) in cpus {
            let times = now.get(&cpu).map_or_else(CpuTimes::default, |it| it.since(before));
            match on_cpu(cpu as u32, times, &used, wall) {
                Some(on_cpu) => all.push(on_cpu),
                None => return Ok(None),
            }
        }
        Ok(share(wall, &all))
    }
}

/// The use of one CPU's time; `None` if the run-queue delay of a thread is unknown.
fn on_cpu(cpu: u32, times: CpuTimes, used: &[ThreadUsage], wall: u64) -> Option<OnCpu> {
    let none = OnCpu { threads: times.threads_ns(), stolen: times.steal_ns, ..OnCpu::default() };
    let threads = used.iter().filter(|thread| thread.cpu == Some(cpu));
    threads.map(|thread| Some((thread.cpu_ns, thread.waited(wall)?))).try_fold(
        none,
        |sum, thread| {
            let (ran, waited) = thread?;
            Some(OnCpu {
                ran: sum.ran.saturating_add(ran),
                waited: sum.waited.saturating_add(waited),
                ..sum
            })
        },
    )
}

/// The share of the most interrupted CPU, to four digits; `None` without a CPU or time.
fn share(wall: u64, cpus: &[OnCpu]) -> Option<f64> {
    let lost = |cpu: &OnCpu| {
        let foreign = cpu.threads.saturating_sub(cpu.ran);
        cpu.stolen.saturating_add(cpu.waited.min(foreign)).min(wall)
    };
    let worst = cpus.iter().map(lost).max()?;
    (wall != 0).then(|| (worst as f64 / wall as f64 * 10_000.0).round() / 10_000.0)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(ran: u64, waited: u64, threads: u64, stolen: u64) -> Option<f64> {
        share(100, &[OnCpu { ran, waited, threads, stolen }])
    }

    #[test]
    fn another_program_interrupts_while_the_run_waits() {
        assert_eq!(of(60, 40, 100, 0), Some(0.4), "a spinning thread, for 40 % of the time");
        assert_eq!(of(10, 0, 90, 0), Some(0.0), "the run slept meanwhile");
        assert_eq!(of(10, 5, 90, 0), Some(0.05));
        assert_eq!(of(100, 0, 100, 7), Some(0.07), "the hypervisor");
        assert_eq!(of(60, 40, 100, 90), Some(1.0), "never more than all of it");
    }

    #[test]
    fn threads_of_the_run_that_wait_for_each_other_are_not_interrupted() {
        assert_eq!(of(100, 95, 100, 0), Some(0.0), "livelock is the policy's own");
        assert_eq!(of(100, 95, 97, 0), Some(0.0), "ticks may count less than there was");
    }

    #[test]
    fn the_cpu_that_was_interrupted_most_counts() {
        let quiet = OnCpu { ran: 100, threads: 100, ..OnCpu::default() };
        let other = OnCpu { ran: 75, waited: 25, threads: 100, ..OnCpu::default() };
        assert_eq!(share(100, &[quiet, other, quiet]), Some(0.25));
        assert_eq!((share(100, &[]), share(0, &[quiet])), (None, None));
    }

    #[test]
    fn only_threads_of_the_cpu_count_and_an_unknown_wait_is_unknown() {
        let thread = |cpu, run_delay_ns| ThreadUsage {
            tid: 1,
            name: "spins".into(),
            cpu,
            cpu_ns: 60,
            run_delay_ns,
            voluntary_switches: 0,
            involuntary_switches: 0,
            runnable: true,
            ended: false,
        };
        let used = [thread(Some(1), Some(40)), thread(Some(2), Some(40)), thread(None, Some(40))];
        let on_cpu = |used: &[ThreadUsage]| on_cpu(1, CpuTimes::default(), used, 100);
        assert!(on_cpu(&used).is_some_and(|it| (it.ran, it.waited) == (60, 40)));
        assert!(on_cpu(&[thread(Some(1), None)]).is_none());
    }

    #[test]
    fn a_thread_that_shares_its_cpu_with_another_process_is_interrupted() {
        let cpu = napkin_os::sched::usable_cpus()[0];
        let mut other = std::process::Command::new("sh");
        // It ends by itself, even if the test fails.
        let spin = "end=$(($(date +%s) + 20)); while [ $(date +%s) -lt $end ]; do :; done";
        let mut other = other.args(["-c", spin]).spawn().expect("a shell");
        let pid = i32::try_from(other.id()).expect("an id");
        napkin_os::sched::pin(Some(pid), &[cpu]).expect("our own child");
        let spin = move || {
            napkin_os::sched::pin(None, &[cpu]).expect("our own thread");
            let watch = Interruption::begin(&[cpu], &[]).expect("/proc");
            while watch.begun.elapsed().as_millis() < 500 {
                std::hint::spin_loop();
            }
            watch.end().expect("/proc")
        };
        let interrupted = std::thread::spawn(spin).join().expect("no panic");
        other.kill().expect("our own child");
        other.wait().expect("our own child");
        // The amount depends on the scheduler and other programs. Without schedstat there is no figure.
        assert!(interrupted.is_none_or(|share| share > 0.0), "{interrupted:?}");
    }
}
