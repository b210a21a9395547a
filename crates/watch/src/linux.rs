//! A source for the kernel's own instances, in the network namespace of this process.
//!
//! The [sampler](crate::sampler) collects the values; here they are converted into a sample.

use napkin_kernel::count;

use crate::sampler::{NapiSnapshot, Options, Sampler, Snapshot};
use crate::timing::Often;

use crate::sample::plain;
use crate::sample::{LONGEST_NAME, NapiSample, Polls, Sample, Source, SourceError, Squeezes};

/// The maximum length of a mode in characters: a policy and its differences.
const LONGEST_MODE: usize = 128;

/// The maximum number of programs of one instance, those with the most sockets.
const MOST_OWNERS: usize = 32;

/// Samples the kernel of this host.
#[derive(Debug)]
pub struct LinuxSource {
    sampler: Sampler,
    title: String,
}

impl LinuxSource {
    /// Starts to watch. With `count` also counts polls, which costs some time in each poll of the machine;
    /// without the privilege for that, counts are left out and a note says so. With `latency` also times a
    /// sample of the requests to any server in this namespace, at that frequency.
    ///
    /// # Errors
    /// If the kernel cannot list its instances (Linux 6.8 can), or requests are to be timed and cannot be.
    pub fn open(
        count: Option<count::Options>,
        latency: Option<Often>,
    ) -> Result<LinuxSource, SourceError> {
        let options = Options { count, latency, ..Options::default() };
        let sampler = Sampler::start(&options);
        let sampler = sampler.map_err(|error| SourceError(error.to_string()))?;
        let system = rustix::system::uname();
        let release = plain(&system.release().to_string_lossy(), LONGEST_NAME);
        let host = plain(&system.nodename().to_string_lossy(), LONGEST_NAME);
        Ok(LinuxSource { sampler, title: format!("Linux {release} on {host}") })
    }
}

impl Source for LinuxSource {
    fn title(&self) -> String {
        self.title.clone()
    }

    fn sample(&mut self) -> Result<Sample, SourceError> {
        let snapshot = self.sampler.sample().map_err(|error| SourceError(error.to_string()))?;
        Ok(to_sample(snapshot))
    }
}

fn to_sample(snapshot: Snapshot) -> Sample {
    let napis: Vec<NapiSample> = snapshot.napis.iter().map(napi).collect();
    let Snapshot { at_ns, cpus, notes, .. } = snapshot;
    Sample { at_ns, process: None, napis, cpus, notes }
}

fn napi(napi: &NapiSnapshot) -> NapiSample {
    let counts = napi.counts.as_ref();
    NapiSample {
        ifname: plain(&napi.ifname, LONGEST_NAME),
        id: napi.id,
        rx_queues: napi.rx_queues.clone(),
        irq: napi.irq,
        cpu: napi.cpu,
        mode: plain(&napi.mode, LONGEST_MODE),
        packets: counts.map(|counts| counts.all().packets),
        polls: counts.map(|counts| Polls {
            softirq: counts.softirq.polls,
            thread: counts.thread.polls,
            application: counts.application.polls,
            empty: counts.all().empty,
        }),
        interrupts: napi.interrupts,
        full_polls: counts.map(|counts| counts.all().full),
        deferrals: counts.and_then(|counts| counts.deferrals),
        watchdogs: counts.and_then(|counts| counts.watchdogs),
        suspensions: counts.and_then(|counts| counts.suspensions),
        time_squeezes: Squeezes::OfCpu,
        pid: napi.pid,
        thread_cpu_ns: napi.thread_cpu_ns,
        latency: napi.latency.clone(),
        owners: napi.owners.iter().take(MOST_OWNERS).map(|it| plain(it, LONGEST_NAME)).collect(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sample::CpuSample;
    use napkin_kernel::Settings;
    use napkin_kernel::count::{Counts, Polled};

    fn instance(counts: Option<Counts>) -> NapiSnapshot {
        NapiSnapshot {
            ifindex: 2,
            ifname: "eth0".into(),
            id: 513,
            rx_queues: vec![0],
            tx_queues: vec![0],
            irq: Some(44),
            pid: Some(99),
            settings: Settings::default(),
            mode: "suspend20".into(),
            cpu: Some(3),
            counts,
            interrupts: Some(7),
            thread_cpu_ns: Some(8),
            latency: None,
            owners: vec!["mem\x1bcached[812]".into()],
        }
    }

    fn snapshot(napi: NapiSnapshot) -> Snapshot {
        let cpu = CpuSample {
            cpu: 3,
            hard_irq_ns: 1,
            softirq_ns: 2,
            thread_ns: 3,
            idle_ns: 4,
            steal_ns: 5,
            time_squeezes: Some(6),
        };
        Snapshot { at_ns: 9, napis: vec![napi], cpus: vec![cpu], ..Snapshot::default() }
    }

    #[test]
    fn every_count_has_its_place() {
        let counts = Counts {
            softirq: Polled { polls: 1, empty: 1, full: 2, packets: 3 },
            thread: Polled { polls: 2, empty: 1, full: 1, packets: 2 },
            application: Polled { polls: 3, empty: 2, full: 2, packets: 1 },
            deferrals: Some(7),
            suspensions: Some(8),
            watchdogs: Some(9),
            ..Counts::default()
        };
        let sample = to_sample(snapshot(instance(Some(counts))));
        let napi = &sample.napis[0];
        let polls = Polls { softirq: 1, thread: 2, application: 3, empty: 4 };
        assert_eq!((napi.polls, napi.full_polls, napi.packets), (Some(polls), Some(5), Some(6)));
        let timers = (napi.deferrals, napi.suspensions, napi.watchdogs);
        assert_eq!(timers, (Some(7), Some(8), Some(9)));
        assert_eq!((napi.irq, napi.interrupts, napi.thread_cpu_ns), (Some(44), Some(7), Some(8)));
        assert_eq!((napi.cpu, napi.time_squeezes), (Some(3), Squeezes::OfCpu));
        assert_eq!((sample.cpus[0].cpu, sample.cpus[0].time_squeezes), (3, Some(6)));
        assert_eq!(napi.owners, ["mem\\u{1b}cached[812]"]);
        assert_eq!((sample.cpus[0].softirq_ns, sample.cpus[0].steal_ns), (2, 5));
        assert_eq!((sample.at_ns, sample.notes.len()), (9, 0));
    }

    #[test]
    fn what_the_kernel_does_not_say_is_unknown() {
        let mut bare = instance(None);
        (bare.irq, bare.interrupts, bare.cpu, bare.rx_queues) = (None, None, None, Vec::new());
        let sample = to_sample(snapshot(bare));
        let napi = &sample.napis[0];
        assert_eq!((napi.polls, napi.packets, napi.cpu), (None, None, None));
    }
}
