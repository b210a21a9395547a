//! A description of the machine that a measurement ran on, with which a reader can judge its figures.
//!
//! It is gathered from `/proc` and `/sys`; the overshoot of timers is measured once. Unreadable values are `None`.
//! `realtime_priority`, and the stolen time ([`Host::note_steal`]), are known only after a run and added then.

use std::collections::BTreeMap;
use std::fs;
use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};

use super::latency::Latency;
use napkin_os::procfs::CpuTimes;

/// The host block of a report.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Host {
    /// Kernel release, as `uname -r` prints it.
    pub kernel: Option<String>,
    /// Instruction set, as Rust calls it.
    pub arch: String,
    /// Processor model, as in `/proc/cpuinfo`.
    pub cpu_model: Option<String>,
    /// CPUs online, whether or not this process may use them.
    pub cpus: Option<u32>,
    /// CPUs that this process may use.
    pub cpus_allowed: Option<u32>,
    /// Whether SMT is active.
    pub smt: Option<bool>,
    /// Whether the processor reports a hypervisor.
    pub virtual_machine: Option<bool>,
    /// Clock source of the kernel.
    pub clocksource: Option<String>,
    /// Whether this process may raise interrupt threads to real-time priority, and does so.
    pub realtime_priority: Option<bool>,
    /// Share of the tested CPUs' time that the hypervisor stole during the run, 0 to 1.
    pub steal: Option<f64>,
    /// The overshoot of sleeps.
    pub timer: Option<TimerOvershoot>,
    /// The modelled testbed, in the machine.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub profile: Option<Testbed>,
}

/// By how much sleeps exceed the time asked for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct TimerOvershoot {
    /// The sleep asked for, ns.
    pub asked_ns: u64,
    /// Timer slack of the measuring thread, ns; the kernel may delay a wake-up by as much on purpose.
    pub slack_ns: Option<u64>,
    /// Number of sleeps measured.
    pub sleeps: u64,
    /// Median time past the deadline, ns.
    pub p50_ns: u64,
    /// 99th percentile of the time past the deadline, ns.
    pub p99_ns: u64,
    /// The longest time past the deadline, ns.
    pub max_ns: u64,
}

/// The modelled testbed, the field `profile` of the host block.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Testbed {
    /// The profile's name.
    pub name: String,
    /// A description.
    pub about: String,
    /// Origin of the profile: `built-in`, or the file's path.
    pub source: String,
    /// CPUs of the modelled host.
    pub cpus: u64,
    /// Receive queues of its NIC.
    pub queues: u64,
    /// The processor's frequency.
    pub frequency_hz: f64,
    /// Number of its constants that were fitted to published figures.
    pub fitted: usize,
    /// Constants overridden in this run (`--set`), in base units.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub set: BTreeMap<String, f64>,
}

impl Host {
    /// Gathers everything that is known before a run. Takes about 10 ms, to measure the timers.
    pub fn gather() -> Host {
        Host { timer: timer_overshoot(Duration::from_micros(20), 100), ..Host::known() }
    }

    /// The part that is known without measuring, for comparing whether two runs used the same host.
    pub fn known() -> Host {
        let cpuinfo = fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
        let status = fs::read_to_string("/proc/self/status").unwrap_or_default();
        Host {
            kernel: line_of("/proc/sys/kernel/osrelease"),
            arch: std::env::consts::ARCH.to_owned(),
            cpu_model: value_of(&cpuinfo, "model name").map(str::to_owned),
            cpus: line_of("/sys/devices/system/cpu/online").and_then(|list| count_cpus(&list)),
            cpus_allowed: value_of(&status, "Cpus_allowed_list").and_then(count_cpus),
            smt: line_of("/sys/devices/system/cpu/smt/active").map(|active| active == "1"),
            virtual_machine: value_of(&cpuinfo, "flags")
                .map(|flags| flags.split_whitespace().any(|flag| flag == "hypervisor")),
            clocksource: line_of(
                "/sys/devices/system/clocksource/clocksource0/current_clocksource",
            ),
            realtime_priority: None,
            steal: None,
            timer: None,
            profile: None,
        }
    }

    /// Sets the share that the hypervisor stole, from the difference of two readings.
    pub fn note_steal(&mut self, window: CpuTimes) {
        let total = window.total_ns();
        self.steal = (total != 0).then(|| window.steal_ns as f64 / total as f64);
    }
}

/// Measures by how much `sleeps` sleeps of `asked` overshoot, with this thread's timer slack: a thread with a
/// lowered slack should call this itself.
pub fn timer_overshoot(asked: Duration, sleeps: u32) -> Option<TimerOvershoot> {
    let mut overshoot = Latency::new();
    for _ in 0..sleeps {
        let start = Instant::now();
        std::thread::sleep(asked);
        let late = start.elapsed().saturating_sub(asked);
        overshoot.record(u64::try_from(late.as_nanos()).unwrap_or(u64::MAX));
    }
    let summary = overshoot.summary(0)?;
    Some(TimerOvershoot {
        asked_ns: u64::try_from(asked.as_nanos()).unwrap_or(u64::MAX),
        slack_ns: rustix::thread::current_timer_slack().ok(),
        sleeps: summary.count,
        p50_ns: summary.at.p50?,
        p99_ns: summary.at.p99?,
        max_ns: summary.max,
    })
}

/// The content of a one-line file, trimmed.
fn line_of(path: &str) -> Option<String> {
    fs::read_to_string(path).ok().map(|text| text.trim().to_owned()).filter(|text| !text.is_empty())
}

/// The value of the first `key :` line.
fn value_of<'a>(text: &'a str, key: &str) -> Option<&'a str> {
    text.lines().find_map(|line| {
        let (found, value) = line.split_once(':')?;
        (found.trim() == key).then(|| value.trim())
    })
}

/// The number of CPUs in a kernel list such as `0-3,8`.
fn count_cpus(list: &str) -> Option<u32> {
    list.trim().split(',').try_fold(0_u32, |sum, part| {
        let (first, last) = part.split_once('-').unwrap_or((part, part));
        let (first, last): (u32, u32) = (first.parse().ok()?, last.parse().ok()?);
        sum.checked_add(last.checked_sub(first)?.checked_add(1)?)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lists_of_cpus_are_counted() {
        assert_eq!(count_cpus("0-3\n"), Some(4));
        assert_eq!(count_cpus("0"), Some(1));
        assert_eq!(count_cpus("0-1,4,6-7"), Some(5));
        for nonsense in ["", "a", "3-1", "0-4294967295"] {
            assert_eq!(count_cpus(nonsense), None, "{nonsense:?}");
        }
    }

    #[test]
    fn values_are_found_by_their_whole_key() {
        let text = "model\t\t: 1\nmodel name\t: AMD EPYC\nflags : fpu hypervisor\n";
        assert_eq!(value_of(text, "model name"), Some("AMD EPYC"));
        assert_eq!(value_of(text, "name"), None);
    }

    #[test]
    fn this_host_has_a_kernel_and_late_timers() {
        let mut host = Host::gather();
        assert!(host.kernel.is_some());
        assert!(host.cpus_allowed.is_some_and(|cpus| cpus >= 1));
        let timer = host.timer.unwrap();
        assert_eq!((timer.asked_ns, timer.sleeps), (20_000, 100));
        assert!(timer.p50_ns <= timer.p99_ns && timer.p99_ns <= timer.max_ns);

        host.note_steal(CpuTimes { steal_ns: 1, idle_ns: 3, ..CpuTimes::default() });
        assert_eq!(host.steal, Some(0.25));
        host.note_steal(CpuTimes::default());
        assert_eq!(host.steal, None);

        let json = serde_json::to_string(&host).unwrap();
        assert_eq!(serde_json::from_str::<Host>(&json).unwrap(), host);
    }
}
