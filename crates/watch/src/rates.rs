//! Computes from two samples what is shown: rates per second, and shares of CPU time.
//!
//! A value that is `None` in a sample is `None` here. So is one without an earlier count to compare with: of
//! a new instance, of one that was recreated under its old ID (one of its counts fell), of a replaced thread.
//! It is never shown as 0.

use std::collections::{BTreeMap, HashMap};

use napkin_kernel::count::latency::{Part, Parts, Percentiles};
use serde::Serialize;

use crate::sample::{CpuSample, NapiSample, Sample, Squeezes};

const SECOND_NS: f64 = 1e9;

/// The activity between two samples.
#[derive(Debug, Clone, PartialEq, Default, Serialize)]
pub struct Rates {
    /// The end of the window, in nanoseconds of the monotonic clock.
    pub at_ns: u64,
    /// The length of the window in nanoseconds; `None` for the first sample, which has nothing to compare with.
    pub window_ns: Option<u64>,
    /// The instances at the end of the window, in the source's order.
    pub napis: Vec<NapiRates>,
    /// The CPUs that are online at its end.
    pub cpus: Vec<CpuShares>,
    /// What could not be known, and why.
    pub notes: Vec<String>,
}

/// The activity of one instance. Rates are per second.
#[derive(Debug, Clone, PartialEq, Default, Serialize)]
pub struct NapiRates {
    /// Its device's name.
    pub ifname: String,
    /// NAPI ID, as the kernel or the engine numbers it.
    pub id: u32,
    /// The receive queues that it polls.
    pub rx_queues: Vec<u32>,
    /// Its interrupt's number.
    pub irq: Option<u32>,
    /// The CPU that polls it, where one is known.
    pub cpu: Option<usize>,
    /// The policy in force, by name or spelled out.
    pub policy: String,
    /// Packets received.
    pub packets_per_s: Option<f64>,
    /// Interrupts.
    pub interrupts_per_s: Option<f64>,
    /// All polls.
    pub polls_per_s: Option<f64>,
    /// Polls by a softirq.
    pub softirq_polls_per_s: Option<f64>,
    /// Polls by a thread of the kernel or of the engine.
    pub thread_polls_per_s: Option<f64>,
    /// Polls by an application's busy poll.
    pub application_polls_per_s: Option<f64>,
    /// The share of polls that found nothing, 0 to 1; `None` also if there was no poll.
    pub empty_polls: Option<f64>,
    /// Polls that used their whole budget.
    pub full_polls_per_s: Option<f64>,
    /// Polls after which the timer was armed in place of the interrupt.
    pub deferrals_per_s: Option<f64>,
    /// Expiries of its timer.
    pub watchdogs_per_s: Option<f64>,
    /// Waits of applications that suspended its interrupt.
    pub suspensions_per_s: Option<f64>,
    /// Softirq rounds of its CPU that ended for lack of time or budget.
    pub time_squeezes_per_s: Option<f64>,
    /// Its thread's ID.
    pub pid: Option<i32>,
    /// The CPU time of its thread, in CPUs: 1 is one whole CPU.
    pub thread_cpu: Option<f64>,
    /// Latency of timed requests, in nanoseconds: `ring`, `socket`, `service` and `whole`; empty if none was timed.
    pub latency_ns: BTreeMap<&'static str, Percentiles>,
    /// The programs whose sockets it serves.
    pub owners: Vec<String>,
}

/// The distribution of one CPU's time: shares that add up to 1.
#[derive(Debug, Clone, PartialEq, Default, Serialize)]
pub struct CpuShares {
    /// The CPU's number.
    pub cpu: usize,
    /// Share of the time in hard interrupts, 0 to 1.
    pub hard_irq: Option<f64>,
    /// Share of the time in softirqs, 0 to 1.
    pub softirq: Option<f64>,
    /// Share of the time in threads, 0 to 1.
    pub thread: Option<f64>,
    /// Share of idle time, 0 to 1.
    pub idle: Option<f64>,
    /// Share of the time stolen by a hypervisor, 0 to 1.
    pub steal: Option<f64>,
    /// Softirq rounds that ended for lack of time or budget, per second.
    pub time_squeezes_per_s: Option<f64>,
}

impl NapiRates {
    /// Whether nothing happened, as far as known. An instance without known rates is not idle.
    pub fn idle(&self) -> bool {
        let counts = [self.packets_per_s, self.interrupts_per_s, self.polls_per_s];
        counts.iter().any(Option::is_some) && counts.iter().flatten().all(|rate| *rate == 0.0)
    }
}

/// Computes rates, remembering the last sample.
#[derive(Debug, Default)]
pub struct Meter {
    before: Option<Sample>,
}

impl Meter {
    /// Returns the activity since the previous sample.
    pub fn take(&mut self, now: Sample) -> Rates {
        let rates = between(self.before.as_ref(), &now);
        self.before = Some(now);
        rates
    }

    /// Forgets earlier counts, so that the next window begins at `now`.
    pub fn restart(&mut self, now: Sample) {
        self.before = Some(now);
    }
}

/// Computes the activity between two samples; without an earlier one, only what exists.
pub fn between(before: Option<&Sample>, now: &Sample) -> Rates {
    let window = before.and_then(|before| now.at_ns.checked_sub(before.at_ns));
    let window_ns = window.filter(|window| *window != 0);
    let before = before.filter(|_| window_ns.is_some());
    let seconds = window_ns.map_or(1.0, |window| window as f64 / SECOND_NS);
    let napis: HashMap<(&str, u32), &NapiSample> = before
        // A restarted engine counts from 0 again.
        .filter(|before| before.process == now.process)
        .into_iter()
        .flat_map(|before| &before.napis)
        .map(|napi| ((napi.ifname.as_str(), napi.id), napi))
        .collect();
    let earlier: HashMap<usize, &CpuSample> =
        before.into_iter().flat_map(|before| &before.cpus).map(|cpu| (cpu.cpu, cpu)).collect();
    let cpus: Vec<CpuShares> = now
        .cpus
        .iter()
        .map(|cpu| self::cpu(earlier.get(&cpu.cpu).copied(), cpu, seconds))
        .collect();
    Rates {
        at_ns: now.at_ns,
        window_ns,
        napis: now
            .napis
            .iter()
            .map(|napi| {
                let before = napis.get(&(napi.ifname.as_str(), napi.id)).copied();
                self::napi(before.filter(|before| !recreated(before, napi)), napi, &cpus, seconds)
            })
            .collect(),
        cpus,
        notes: now.notes.clone(),
    }
}

/// Whether an instance was recreated: one of its counts fell.
fn recreated(before: &NapiSample, now: &NapiSample) -> bool {
    let polls =
        |of: fn(&crate::Polls) -> u64| (before.polls.as_ref().map(of), now.polls.as_ref().map(of));
    [
        (before.packets, now.packets),
        // The count of another interrupt may have any value.
        (before.interrupts.filter(|_| before.irq == now.irq), now.interrupts),
        (before.full_polls, now.full_polls),
        (before.deferrals, now.deferrals),
        (before.watchdogs, now.watchdogs),
        (before.suspensions, now.suspensions),
        polls(|polls| polls.softirq),
        polls(|polls| polls.thread),
        polls(|polls| polls.application),
        polls(|polls| polls.empty),
    ]
    .iter()
    .any(|counts| matches!(counts, (Some(before), Some(now)) if now < before))
}

/// The increase of a count; `None` if it fell.
fn grown(before: Option<u64>, now: Option<u64>) -> Option<f64> {
    now?.checked_sub(before?).map(|growth| growth as f64)
}

fn napi(
    before: Option<&NapiSample>,
    now: &NapiSample,
    cpus: &[CpuShares],
    seconds: f64,
) -> NapiRates {
    let growth = |of: fn(&NapiSample) -> Option<u64>| grown(before.and_then(of), of(now));
    let rate = |of| growth(of).map(|growth| growth / seconds);
    let softirq = growth(|napi| Some(napi.polls?.softirq));
    let thread = growth(|napi| Some(napi.polls?.thread));
    let application = growth(|napi| Some(napi.polls?.application));
    let empty = growth(|napi| Some(napi.polls?.empty));
    let polls = (|| Some(softirq? + thread? + application?))();
    let same_thread = before.is_some_and(|before| before.pid == now.pid);
    let same_irq = before.is_some_and(|before| before.irq == now.irq);
    NapiRates {
        ifname: now.ifname.clone(),
        id: now.id,
        rx_queues: now.rx_queues.clone(),
        irq: now.irq,
        cpu: now.cpu,
        policy: now.mode.clone(),
        packets_per_s: rate(|napi| napi.packets),
        interrupts_per_s: rate(|napi| napi.interrupts).filter(|_| same_irq),
        polls_per_s: polls.map(|polls| polls / seconds),
        softirq_polls_per_s: softirq.map(|polls| polls / seconds),
        thread_polls_per_s: thread.map(|polls| polls / seconds),
        application_polls_per_s: application.map(|polls| polls / seconds),
        // The counts of one sample may be from slightly different times, so that more polls are empty than there are.
        empty_polls: (|| {
            let polls = polls.filter(|polls| *polls > 0.0)?;
            Some((empty? / polls).min(1.0))
        })(),
        full_polls_per_s: rate(|napi| napi.full_polls),
        deferrals_per_s: rate(|napi| napi.deferrals),
        watchdogs_per_s: rate(|napi| napi.watchdogs),
        suspensions_per_s: rate(|napi| napi.suspensions),
        time_squeezes_per_s: before.and_then(|before| squeezes(before, now, cpus, seconds)),
        pid: now.pid,
        thread_cpu: growth(|napi| napi.thread_cpu_ns)
            .filter(|_| same_thread)
            .map(|used| used / SECOND_NS / seconds),
        latency_ns: before.map(|before| latency(before, now)).unwrap_or_default(),
        owners: now.owners.clone(),
    }
}

/// Percentiles of the requests that ended in the window.
fn latency(before: &NapiSample, now: &NapiSample) -> BTreeMap<&'static str, Percentiles> {
    let since = |(before, now): (&Parts, &Parts)| now.since(before);
    let parts = before.latency.as_ref().zip(now.latency.as_ref()).map(since).unwrap_or_default();
    let of = |part: Part| (part.name(), Percentiles::of(parts.of(part)));
    Part::ALL.into_iter().map(of).filter(|(_, it)| it.count > 0).collect()
}

/// The squeezes of the CPU where the instance is now, even if it moved there within the window.
fn squeezes(
    before: &NapiSample,
    now: &NapiSample,
    cpus: &[CpuShares],
    seconds: f64,
) -> Option<f64> {
    match (before.time_squeezes, now.time_squeezes) {
        (_, Squeezes::OfCpu) => {
            cpus.iter().find(|cpu| Some(cpu.cpu) == now.cpu)?.time_squeezes_per_s
        }
        (Squeezes::Counted(then), Squeezes::Counted(count)) if before.cpu == now.cpu => {
            grown(Some(then), Some(count)).map(|growth| growth / seconds)
        }
        _ => None,
    }
}

fn cpu(before: Option<&CpuSample>, now: &CpuSample, seconds: f64) -> CpuShares {
    // Idle time goes back at times, and a window may be shorter than the kernel's clock tick.
    let part =
        |of: fn(&CpuSample) -> u64| before.map(|before| of(now).saturating_sub(of(before)) as f64);
    let parts = [
        part(|cpu| cpu.hard_irq_ns),
        part(|cpu| cpu.softirq_ns),
        part(|cpu| cpu.thread_ns),
        part(|cpu| cpu.idle_ns),
        part(|cpu| cpu.steal_ns),
    ];
    let all: f64 = parts.iter().flatten().sum();
    let [hard_irq, softirq, thread, idle, steal] =
        parts.map(|part| part.filter(|_| all > 0.0).map(|part| part / all));
    let squeezes = grown(before.and_then(|before| before.time_squeezes), now.time_squeezes);
    CpuShares {
        cpu: now.cpu,
        hard_irq,
        softirq,
        thread,
        idle,
        steal,
        time_squeezes_per_s: squeezes.map(|squeezes| squeezes / seconds),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Polls;

    fn napi(id: u32, packets: u64) -> NapiSample {
        NapiSample {
            ifname: "eth0".into(),
            id,
            packets: Some(packets),
            polls: Some(Polls { softirq: packets, thread: 0, application: 0, empty: 0 }),
            ..NapiSample::default()
        }
    }

    fn sample(at_s: u64, napis: Vec<NapiSample>) -> Sample {
        Sample { at_ns: at_s * 1_000_000_000, napis, ..Sample::default() }
    }

    #[test]
    fn a_rate_is_by_the_second_however_long_the_window() {
        let mut meter = Meter::default();
        let first = meter.take(sample(10, vec![napi(1, 500)]));
        assert_eq!((first.window_ns, first.napis[0].packets_per_s), (None, None));
        let second = meter.take(sample(14, vec![napi(1, 900)]));
        assert_eq!(second.window_ns, Some(4_000_000_000));
        assert_eq!(second.napis[0].packets_per_s, Some(100.0));
        assert_eq!(second.napis[0].polls_per_s, Some(100.0));
    }

    #[test]
    fn what_a_source_does_not_know_stays_unknown() {
        let silent = || NapiSample { ifname: "eth0".into(), id: 1, ..NapiSample::default() };
        let rates = between(Some(&sample(1, vec![silent()])), &sample(2, vec![silent()]));
        let expected = NapiRates { ifname: "eth0".into(), id: 1, ..NapiRates::default() };
        assert_eq!(rates.napis, [expected]);
        assert!(!rates.napis[0].idle(), "nothing is known of it");
    }

    #[test]
    fn an_instance_that_comes_has_no_rates_yet_and_one_that_goes_is_gone() {
        let before = sample(1, vec![napi(1, 10), napi(2, 10)]);
        let rates = between(Some(&before), &sample(2, vec![napi(2, 10), napi(3, 1_000)]));
        let ids: Vec<u32> = rates.napis.iter().map(|napi| napi.id).collect();
        assert_eq!(ids, [2, 3]);
        assert_eq!(rates.napis[0].packets_per_s, Some(0.0));
        assert!(rates.napis[0].idle());
        assert_eq!(rates.napis[1].packets_per_s, None);
    }

    #[test]
    fn an_instance_made_anew_has_no_rates_though_some_of_its_counts_are_larger() {
        let mut before = napi(1, 500);
        before.deferrals = Some(3);
        let mut now = napi(1, 20);
        now.deferrals = Some(40);
        let rates = between(Some(&sample(1, vec![before])), &sample(2, vec![now]));
        assert_eq!(rates.napis[0].packets_per_s, None);
        assert_eq!(rates.napis[0].deferrals_per_s, None);
        // The same ID on another device is another instance.
        let mut other = napi(1, 900);
        other.ifname = "eth1".into();
        let rates = between(Some(&sample(1, vec![napi(1, 500)])), &sample(2, vec![other]));
        assert_eq!(rates.napis[0].packets_per_s, None);
    }

    #[test]
    fn an_engine_that_was_restarted_has_no_rates_whatever_it_has_counted() {
        let of =
            |pid, at, packets| Sample { process: Some(pid), ..sample(at, vec![napi(1, packets)]) };
        let rates = between(Some(&of(7, 1, 10)), &of(8, 2, 1_000));
        assert_eq!(rates.napis[0].packets_per_s, None);
        let rates = between(Some(&of(8, 2, 1_000)), &of(8, 3, 1_010));
        assert_eq!(rates.napis[0].packets_per_s, Some(10.0));
    }

    #[test]
    fn polls_are_told_apart_and_the_empty_ones_are_a_share() {
        let polls = |softirq, thread, application, empty| {
            let polls = Some(Polls { softirq, thread, application, empty });
            sample(softirq, vec![NapiSample { id: 1, polls, ..NapiSample::default() }])
        };
        let rates = between(Some(&polls(1, 0, 0, 0)), &polls(3, 4, 2, 6));
        let napi = &rates.napis[0];
        assert_eq!(napi.polls_per_s, Some(4.0));
        assert_eq!(napi.softirq_polls_per_s, Some(1.0));
        assert_eq!(napi.thread_polls_per_s, Some(2.0));
        assert_eq!(napi.application_polls_per_s, Some(1.0));
        assert_eq!(napi.empty_polls, Some(0.75));
        // Counts from different times: the share is at most 1.
        let rates = between(Some(&polls(1, 0, 0, 0)), &polls(2, 0, 0, 9));
        assert_eq!(rates.napis[0].empty_polls, Some(1.0));
        // No poll, no share.
        let mut later = polls(2, 0, 0, 9);
        later.at_ns += 1;
        let rates = between(Some(&polls(2, 0, 0, 9)), &later);
        assert_eq!((rates.napis[0].polls_per_s, rates.napis[0].empty_polls), (Some(0.0), None));
    }

    #[test]
    fn a_thread_s_time_is_of_one_thread_and_squeezes_are_of_one_cpu() {
        let with = |pid, cpu, used, squeezes| NapiSample {
            pid: Some(pid),
            cpu: Some(cpu),
            thread_cpu_ns: Some(used),
            time_squeezes: Squeezes::Counted(squeezes),
            ..NapiSample::default()
        };
        let after = |before, now| {
            let rates = between(Some(&sample(1, vec![before])), &sample(3, vec![now]));
            (rates.napis[0].thread_cpu, rates.napis[0].time_squeezes_per_s)
        };
        let before = || with(7, 0, 1_000_000_000, 4);
        assert_eq!(after(before(), with(7, 0, 2_000_000_000, 8)), (Some(0.5), Some(2.0)));
        assert_eq!(after(before(), with(8, 0, 2_000_000_000, 8)), (None, Some(2.0)));
        assert_eq!(after(before(), with(7, 1, 2_000_000_000, 8)), (Some(0.5), None));
    }

    #[test]
    fn an_instance_that_came_to_another_cpu_shows_the_squeezes_there() {
        let on = |at_s, cpu| {
            let cpus = [(0, 100), (1, 10)].map(|(cpu, squeezes)| CpuSample {
                cpu,
                time_squeezes: Some(squeezes * at_s),
                ..CpuSample::default()
            });
            let napi = NapiSample { cpu, time_squeezes: Squeezes::OfCpu, ..napi(1, at_s) };
            Sample { cpus: cpus.to_vec(), ..sample(at_s, vec![napi]) }
        };
        let shown =
            |before, now| between(Some(&on(1, before)), &on(2, now)).napis[0].time_squeezes_per_s;
        assert_eq!(shown(Some(0), Some(0)), Some(100.0));
        assert_eq!(shown(Some(0), Some(1)), Some(10.0));
        assert_eq!(shown(None, Some(1)), Some(10.0));
        assert_eq!(shown(Some(0), None), None, "it was never seen anywhere");
    }

    #[test]
    fn a_cpu_s_parts_add_up_to_one_though_idle_time_goes_back() {
        let cpu = |softirq, idle| CpuSample {
            cpu: 3,
            softirq_ns: softirq,
            thread_ns: softirq,
            idle_ns: idle,
            time_squeezes: Some(softirq),
            ..CpuSample::default()
        };
        let of = |before, now| {
            let before = Sample { at_ns: 1, cpus: vec![before], ..Sample::default() };
            let now = Sample { at_ns: 1_000_000_001, cpus: vec![now], ..Sample::default() };
            between(Some(&before), &now).cpus.remove(0)
        };
        let shares = of(cpu(10, 100), cpu(20, 120));
        assert_eq!(
            (shares.softirq, shares.thread, shares.idle),
            (Some(0.25), Some(0.25), Some(0.5))
        );
        assert_eq!((shares.hard_irq, shares.time_squeezes_per_s), (Some(0.0), Some(10.0)));
        let shares = of(cpu(10, 100), cpu(20, 90));
        assert_eq!((shares.softirq, shares.idle), (Some(0.5), Some(0.0)));
        assert_eq!(of(cpu(10, 100), cpu(10, 100)).idle, None, "too short to tell");
    }

    #[test]
    fn a_clock_that_stands_still_gives_no_rates() {
        let same = sample(5, vec![napi(1, 10)]);
        let rates = between(Some(&same), &same);
        assert_eq!((rates.window_ns, rates.napis[0].packets_per_s), (None, None));
        let rates = between(Some(&same), &sample(4, vec![napi(1, 20)]));
        assert_eq!((rates.window_ns, rates.napis[0].packets_per_s), (None, None));
    }
}
