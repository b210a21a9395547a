//! Per-thread measurements from `/proc`: CPU time, run-queue delay, context switches.
//!
//! Counters are read before and after a window, and subtracted. Files are opened once and re-read from their start
//! into one buffer, so that a reading costs two reads a thread and no allocation. The thread that conducts a run
//! takes the readings, not the threads it measures.
//!
//! Limits of the source: the kernel updates a running thread's time at its tick (1 to 10 ms), and a waiting
//! thread's delay when it next runs, so a window should be much longer than that. A thread that was starved for a
//! whole window is recognised by its state: [`ThreadUsage::waited`](crate::usage::ThreadUsage::waited).
//! `/proc/<pid>/schedstat` needs `CONFIG_SCHED_INFO`. Without it, CPU time comes from `stat` in whole ticks (10 ms)
//! and run-queue delay is unknown; [`ThreadMeter::source`] tells which file is read.

use std::collections::BTreeSet;
use std::fs::{self, File};
use std::io;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use crate::procfs::{ThreadStat, Time};
use crate::usage::ThreadUsage;

/// The file that CPU times come from.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum CpuSource {
    /// `schedstat`: nanoseconds, with run-queue delay.
    Schedstat,
    /// `stat`: clock ticks, without run-queue delay.
    Stat,
}

impl CpuSource {
    /// Returns the warning that a report must print with values from this source, if any.
    pub fn caveat(self) -> Option<&'static str> {
        match self {
            CpuSource::Schedstat => None,
            CpuSource::Stat => Some(
                "this kernel has no /proc/<pid>/schedstat (CONFIG_SCHED_INFO): CPU time is in whole \
                 clock ticks and run-queue delay is not measured, so `waiting` holds steal alone",
            ),
        }
    }
}

/// Samples the counters of a set of threads of one process repeatedly.
#[derive(Debug)]
pub struct ThreadMeter {
    process: PathBuf,
    probes: Vec<Probe>,
    source: CpuSource,
    buffer: Vec<u8>,
}

#[derive(Debug)]
struct Probe {
    times: File,
    status: File,
    last: ThreadUsage,
}

impl ThreadMeter {
    /// Opens all present threads of this process whose id and name `wanted` accepts. Create the meter once the
    /// threads to be measured run and have their names; threads that start later have to be
    /// [admitted](Self::admit).
    ///
    /// # Errors
    /// If `/proc` is not mounted or cannot be read.
    pub fn of_self(wanted: impl Fn(u32, &str) -> bool) -> io::Result<ThreadMeter> {
        ThreadMeter::under(Path::new("/proc/self"), wanted)
    }

    /// Opens all present threads of another process.
    ///
    /// # Errors
    /// If it has ended, or `/proc` cannot be read.
    pub fn of_process(process: u32) -> io::Result<ThreadMeter> {
        ThreadMeter::under(&Path::new("/proc").join(process.to_string()), |_, _| true)
    }

    fn under(process: &Path, wanted: impl Fn(u32, &str) -> bool) -> io::Result<ThreadMeter> {
        let source =
            if process.join("schedstat").exists() { CpuSource::Schedstat } else { CpuSource::Stat };
        let mut meter = ThreadMeter {
            process: process.to_owned(),
            probes: Vec::new(),
            source,
            buffer: Vec::with_capacity(4096),
        };
        meter.admit(wanted)?;
        Ok(meter)
    }

    /// Adds the threads that have started since and whose id and name `wanted` accepts.
    ///
    /// # Errors
    /// If `/proc` cannot be read.
    pub fn admit(&mut self, wanted: impl Fn(u32, &str) -> bool) -> io::Result<()> {
        for tid in list_threads(&self.process)? {
            let Err(place) = self.probes.binary_search_by_key(&tid, |probe| probe.last.tid) else {
                continue;
            };
            let directory = self.process.join(format!("task/{tid}"));
            match Probe::open(&directory, tid, self.source, &wanted) {
                Ok(Some(probe)) => self.probes.insert(place, probe),
                Ok(None) => {}
                // It ended between the listing and the open: there is nothing to measure.
                Err(error) if is_gone(&error) => {}
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }

    /// The file that CPU times come from.
    pub fn source(&self) -> CpuSource {
        self.source
    }

    /// Reads every thread: values since each thread's start, in ascending order of thread id. `into` is
    /// overwritten; its memory and the names in it are reused.
    ///
    /// # Errors
    /// If a file cannot be read or does not have the kernel's format. A thread that has ended is no error: its last
    /// reading is returned again, marked as ended.
    pub fn read(&mut self, into: &mut Vec<ThreadUsage>) -> io::Result<()> {
        for probe in &mut self.probes {
            if let Err(error) = probe.update(self.source, &mut self.buffer) {
                if !is_gone(&error) {
                    return Err(error);
                }
                probe.last.ended = true;
            }
        }
        into.truncate(self.probes.len());
        for (place, probe) in into.iter_mut().zip(&self.probes) {
            place.copy_from(&probe.last);
        }
        into.extend(self.probes.iter().skip(into.len()).map(|probe| probe.last.clone()));
        Ok(())
    }

    /// Returns what each thread used between two readings of this meter. A thread that is missing in the earlier
    /// reading counts from its start.
    pub fn between(earlier: &[ThreadUsage], later: &[ThreadUsage]) -> Vec<ThreadUsage> {
        later
            .iter()
            .map(|now| match earlier.binary_search_by_key(&now.tid, |usage| usage.tid) {
                Ok(then) => now.since(&earlier[then]),
                Err(_) => now.clone(),
            })
            .collect()
    }
}

impl Probe {
    fn open(
        directory: &Path,
        tid: u32,
        source: CpuSource,
        wanted: impl Fn(u32, &str) -> bool,
    ) -> io::Result<Option<Probe>> {
        let comm = fs::read(directory.join("comm"))?;
        let name = String::from_utf8_lossy(comm.trim_ascii_end()).into_owned();
        if !wanted(tid, &name) {
            return Ok(None);
        }
        let times = match source {
            CpuSource::Schedstat => "schedstat",
            CpuSource::Stat => "stat",
        };
        Ok(Some(Probe {
            times: File::open(directory.join(times))?,
            status: File::open(directory.join("status"))?,
            last: ThreadUsage {
                tid,
                name,
                cpu: None,
                cpu_ns: 0,
                run_delay_ns: None,
                voluntary_switches: 0,
                involuntary_switches: 0,
                runnable: false,
                ended: false,
            },
        }))
    }

    fn update(&mut self, source: CpuSource, buffer: &mut Vec<u8>) -> io::Result<()> {
        reread(&self.times, buffer)?;
        let (cpu_ns, run_delay_ns) = match source {
            CpuSource::Schedstat => {
                let text = String::from_utf8_lossy(buffer);
                let time = Time::parse(&text).ok_or_else(|| malformed("schedstat"))?;
                (time.run_ns, Some(time.wait_ns))
            }
            CpuSource::Stat => {
                let ticks = rustix::param::clock_ticks_per_second();
                let text = String::from_utf8_lossy(buffer);
                let stat = ThreadStat::parse(&text, ticks).ok_or_else(|| malformed("stat"))?;
                (stat.cpu_ns, None)
            }
        };
        reread(&self.status, buffer)?;
        let (voluntary, involuntary) = parse_switches(buffer).ok_or_else(|| malformed("status"))?;
        self.last.cpu = parse_only_cpu(buffer);
        self.last.cpu_ns = cpu_ns;
        self.last.run_delay_ns = run_delay_ns;
        self.last.voluntary_switches = voluntary;
        self.last.involuntary_switches = involuntary;
        self.last.runnable = parse_runnable(buffer).ok_or_else(|| malformed("status"))?;
        Ok(())
    }
}

/// Lists the threads of a process in ascending order. If a thread exits while the kernel lists it, the listing ends
/// early or skips a neighbour, so this lists again until no new thread shows up.
fn list_threads(process: &Path) -> io::Result<BTreeSet<u32>> {
    /// Limit of listings, for a process that creates threads all the time.
    const PASSES: usize = 8;
    let mut tids = BTreeSet::new();
    for pass in 0..PASSES {
        let known = tids.len();
        for entry in fs::read_dir(process.join("task"))? {
            tids.extend(entry?.file_name().to_str().and_then(|name| name.parse::<u32>().ok()));
        }
        if pass > 0 && tids.len() == known {
            break;
        }
    }
    Ok(tids)
}

/// Whether an error means that the thread has ended.
fn is_gone(error: &io::Error) -> bool {
    const ESRCH: i32 = rustix::io::Errno::SRCH.raw_os_error();
    error.kind() == io::ErrorKind::NotFound || error.raw_os_error() == Some(ESRCH)
}

fn malformed(file: &str) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, format!("/proc thread file `{file}` is malformed"))
}

/// Reads a whole file from its start into the buffer, reusing its memory.
fn reread(file: &File, buffer: &mut Vec<u8>) -> io::Result<()> {
    /// Limit of a file's size. The longest file, /proc/stat, has about 100 bytes a CPU and 2 a vector.
    const LONGEST: usize = 1 << 22;
    buffer.resize(buffer.capacity().max(4096), 0);
    let mut length = 0;
    loop {
        match file.read_at(&mut buffer[length..], length as u64) {
            Ok(0) => break,
            Ok(read) => length += read,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
        if length == buffer.len() {
            if length >= LONGEST {
                break;
            }
            buffer.resize(length * 2, 0);
        }
    }
    buffer.truncate(length);
    Ok(())
}

/// Splits a text at white space.
fn words(text: &[u8]) -> impl Iterator<Item = &[u8]> {
    text.split(u8::is_ascii_whitespace).filter(|word| !word.is_empty())
}

/// Parses a word as a whole number.
fn number(word: &[u8]) -> Option<u64> {
    std::str::from_utf8(word).ok()?.parse().ok()
}

/// Parses the numbers of voluntary and involuntary context switches from `status`.
fn parse_switches(text: &[u8]) -> Option<(u64, u64)> {
    let after = |key: &[u8]| {
        let line = text.split(|&byte| byte == b'\n').find(|line| line.starts_with(key))?;
        number(words(&line[key.len()..]).next()?)
    };
    Some((after(b"voluntary_ctxt_switches:")?, after(b"nonvoluntary_ctxt_switches:")?))
}

/// Parses the CPU to which the thread is pinned; `None` if it may run on several.
fn parse_only_cpu(text: &[u8]) -> Option<u32> {
    const KEY: &[u8] = b"Cpus_allowed_list:";
    let line = text.split(|&byte| byte == b'\n').find(|line| line.starts_with(KEY))?;
    // A list such as 0-3 does not parse as a number.
    u32::try_from(number(words(&line[KEY.len()..]).next()?)?).ok()
}

/// Parses whether the thread is runnable: the kernel's state R.
fn parse_runnable(text: &[u8]) -> Option<bool> {
    let line = text.split(|&byte| byte == b'\n').find(|line| line.starts_with(b"State:"))?;
    Some(words(&line[b"State:".len()..]).next()? == b"R")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::usage::UsageTotals;

    #[test]
    fn the_kernel_s_files_are_understood() {
        let status = b"Name:\tx\nvoluntary_ctxt_switches:\t9\nnonvoluntary_ctxt_switches:\t4\n";
        assert_eq!(parse_switches(status), Some((9, 4)));
        assert_eq!(parse_switches(b"Name:\tx\n"), None);
        assert_eq!(parse_runnable(b"Name:\tx\nState:\tR (running)\n"), Some(true));
        assert_eq!(parse_runnable(b"Name:\tx\nState:\tS (sleeping)\n"), Some(false));
        assert_eq!(parse_runnable(b"Name:\tx\n"), None);

        let pinned = b"Cpus_allowed:\t8\nCpus_allowed_list:\t3\n";
        assert_eq!(parse_only_cpu(pinned), Some(3));
        assert_eq!(parse_only_cpu(b"Cpus_allowed_list:\t0-3\n"), None);
        assert_eq!(parse_only_cpu(b"Name:\tx\n"), None);
    }

    #[test]
    fn a_thread_that_starts_in_the_window_counts_from_its_start() {
        let own = u32::try_from(rustix::thread::gettid().as_raw_nonzero().get()).unwrap();
        let mut meter = ThreadMeter::of_self(|_, _| false).unwrap();
        let (mut before, mut after) = (Vec::new(), Vec::new());
        meter.read(&mut before).unwrap();
        meter.admit(|tid, _| tid == own).unwrap();
        meter.admit(|tid, _| tid == own).unwrap();
        meter.read(&mut after).unwrap();
        assert!(before.is_empty() && after.len() == 1, "admitted once: {after:?}");
        assert!(after[0].runnable, "it runs, since it is reading this");
        assert_eq!(ThreadMeter::between(&before, &after), after);
    }

    #[test]
    fn a_thread_that_works_is_seen_working_and_one_that_ended_is_marked() {
        let (go, wait) = std::sync::mpsc::channel::<()>();
        let worker = std::thread::Builder::new()
            .name("meter-test".into())
            .spawn(move || {
                let mut x = 1_u64;
                while matches!(wait.try_recv(), Err(std::sync::mpsc::TryRecvError::Empty)) {
                    x = std::hint::black_box(x.wrapping_mul(3));
                }
            })
            .unwrap();
        // The new thread sets its name itself, so the name may take a moment to appear.
        let mut meter = loop {
            let meter = ThreadMeter::of_self(|_, name| name == "meter-test").unwrap();
            if meter.probes.len() == 1 {
                break meter;
            }
            std::thread::yield_now();
        };
        let (mut before, mut after) = (Vec::new(), Vec::new());
        meter.read(&mut before).unwrap();
        assert_eq!(before[0].name, "meter-test");
        // It spins, so its CPU time grows at the next kernel tick, within a few milliseconds.
        loop {
            meter.read(&mut after).unwrap();
            if ThreadMeter::between(&before, &after)[0].cpu_ns > 0 {
                break;
            }
            std::thread::yield_now();
        }
        assert_eq!(after[0].run_delay_ns.is_some(), meter.source() == CpuSource::Schedstat);
        assert!(!after[0].ended);

        go.send(()).unwrap();
        worker.join().unwrap();
        // join returns a moment before the kernel removes the thread from /proc.
        loop {
            meter.read(&mut after).unwrap();
            if after[0].ended {
                break;
            }
            std::thread::yield_now();
        }
        assert!(after[0].cpu_ns >= before[0].cpu_ns, "the last reading stays");
    }

    #[test]
    fn a_sleep_is_a_voluntary_switch() {
        let own = u32::try_from(rustix::thread::gettid().as_raw_nonzero().get()).unwrap();
        let mut meter = ThreadMeter::of_self(|tid, _| tid == own).unwrap();
        let (mut before, mut after) = (Vec::new(), Vec::new());
        meter.read(&mut before).unwrap();
        assert_eq!(before.len(), 1);
        // If the host takes the CPU away, a sleep may end before the thread has left its CPU; then it is no switch.
        // A hundred such sleeps in a row would be a fault.
        let slept = (0..100).any(|_| {
            std::thread::sleep(std::time::Duration::from_millis(1));
            meter.read(&mut after).unwrap();
            UsageTotals::of(&ThreadMeter::between(&before, &after)).wakeups >= 1
        });
        assert!(slept, "{after:?}");
    }

    #[test]
    fn the_clock_tick_fallback_says_what_is_missing() {
        let own = u32::try_from(rustix::thread::gettid().as_raw_nonzero().get()).unwrap();
        let directory = PathBuf::from(format!("/proc/self/task/{own}"));
        let mut probe =
            Probe::open(&directory, own, CpuSource::Stat, |_, _| true).unwrap().unwrap();
        probe.update(CpuSource::Stat, &mut Vec::new()).unwrap();
        assert_eq!(probe.last.run_delay_ns, None);
        assert!(CpuSource::Stat.caveat().unwrap().contains("schedstat"));
        assert_eq!(CpuSource::Schedstat.caveat(), None);
    }

    #[test]
    fn a_file_longer_than_the_buffer_is_read_whole_and_the_memory_is_kept() {
        let file = File::open("/proc/self/smaps").unwrap();
        let mut buffer = Vec::new();
        reread(&file, &mut buffer).unwrap();
        assert!(buffer.len() > 4096, "smaps of any process is longer than a page");
        let capacity = buffer.capacity();
        let short = File::open("/proc/self/comm").unwrap();
        reread(&short, &mut buffer).unwrap();
        assert!(buffer.ends_with(b"\n") && buffer.capacity() == capacity);
    }

    #[test]
    fn words_and_numbers() {
        assert_eq!(words(b" a\t7 \n").collect::<Vec<_>>(), [&b"a"[..], b"7"]);
        assert_eq!((number(b"7"), number(b"-7"), number(b"\xff")), (Some(7), None, None));
    }
}
