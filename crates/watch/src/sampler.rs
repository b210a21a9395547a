//! Samples the NAPI instances and CPUs of this namespace repeatedly, for a live view.
//!
//! Combines netlink, the [counting programs](napkin_kernel::count) and `/proc` with a scan of every process's
//! sockets and of the devices' properties, which is done less often as it costs more. All counts are
//! cumulative; readers take differences. An unknown value is `None`, never 0, and a note gives the reason.

mod devices;
mod snapshot;
mod sums;

use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant};

use thiserror::Error;

use self::devices::Devices;
use self::snapshot::unknown;
pub use self::snapshot::{NapiSnapshot, Snapshot};
use self::sums::Sums;
use crate::sample::CpuSample;
use crate::timing::{Often, Timing};
use napkin_kernel::count::{self, CountError, Counter, Counts, Key};
use napkin_kernel::device::{DeviceError, Napi};
use napkin_kernel::namespace::{Namespace, NamespaceError};
use napkin_kernel::netlink::{NapiRecord, Netdev, NetlinkError};
use napkin_kernel::settings::{Setting, Settings};
use napkin_linux::show::{self, Programs};
use napkin_os::clock;
use napkin_os::procfs::thread::{ThreadStat, Time};
use napkin_os::procfs::{CpuTimes, Interrupts, Softnet};
use napkin_os::rights::Right;

/// Options of a sampler.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Options {
    /// Options of the counting programs; `None` for no counting.
    pub count: Option<count::Options>,
    /// How often a sample of requests is timed, from the receive ring to the answer; `None` for never.
    pub latency: Option<Often>,
    /// The interval of scans for owners and their epoll parameters, which take some microseconds for each
    /// socket. It also bounds the delay of a device's new name.
    pub owners_every: Duration,
}

impl Default for Options {
    fn default() -> Options {
        Options {
            count: Some(count::Options::default()),
            latency: None,
            owners_every: Duration::from_secs(5),
        }
    }
}

/// Why sampling failed.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum SampleError {
    /// Instances could not be listed.
    #[error(transparent)]
    Netlink(#[from] NetlinkError),
    /// Devices could not be listed.
    #[error(transparent)]
    Device(#[from] DeviceError),
    /// The calling thread's network namespace could not be identified.
    #[error(transparent)]
    Namespace(#[from] NamespaceError),
    /// Requests were to be timed, and cannot be.
    #[error("requests cannot be timed: {0}")]
    Latency(CountError),
}

/// Samples the network namespace in which it was started.
#[derive(Debug)]
pub struct Sampler {
    netdev: Netdev,
    devices: Devices,
    /// The namespace's inode, as in [`Key`].
    netns: u32,
    counter: Option<Counter>,
    /// Why there is no counter, or what it does not count.
    counter_notes: Vec<String>,
    timing: Option<Timing>,
    owners_every: Duration,
    programs: Programs,
    /// A test replaces it by one that takes long.
    find_programs: fn() -> Programs,
    looked_at: Option<Instant>,
    /// Time squeezes by CPU.
    squeezes: Sums<usize>,
    /// Interrupts by number and CPU: the count of an offline CPU is kept.
    interrupts: Sums<(u32, usize)>,
}

impl Sampler {
    /// Starts to count. Without the privilege to count, the rest is sampled.
    ///
    /// # Errors
    /// If the kernel has no netlink family `netdev`, or there is no procfs; if requests are to be timed and a
    /// privilege is missing, or this kernel lacks what timing needs.
    pub fn start(options: &Options) -> Result<Sampler, SampleError> {
        // A namespace's inode has 32 bits, even where inode numbers have 64.
        let netns = u32::try_from(Namespace::identity()?.inode).unwrap_or(0);
        let mut counter_notes = Vec::new();
        let in_namespace = |count| count::Options { namespace: Some(netns), ..count };
        let started = options.count.map(|count| Counter::start(&in_namespace(count)));
        let counter = match started {
            Some(Ok(counter)) => {
                counter_notes.extend_from_slice(counter.notes());
                Some(counter)
            }
            Some(Err(error)) => {
                counter_notes.push(format!("polls, packets and timers are not counted: {error}"));
                None
            }
            None => {
                counter_notes
                    .push("polls, packets and timers: not counted (--no-poll-count)".into());
                None
            }
        };
        Ok(Sampler {
            netdev: Netdev::open()?,
            devices: Devices::default(),
            netns,
            counter,
            counter_notes,
            timing: options
                .latency
                .map(|often| Timing::start(often, netns))
                .transpose()
                .map_err(SampleError::Latency)?,
            owners_every: options.owners_every,
            programs: Programs::default(),
            find_programs: Programs::find,
            looked_at: None,
            squeezes: Sums::default(),
            interrupts: Sums::default(),
        })
    }

    /// Takes a sample. The first one includes the polls since the start.
    ///
    /// # Errors
    /// If the kernel does not list the instances; whatever else fails is left out, with a note.
    pub fn sample(&mut self) -> Result<Snapshot, SampleError> {
        let mut notes = self.counter_notes.clone();
        // Slow reads come first: the counts, the threads' CPU time and the timestamp have to be from the same moment.
        let records = self.netdev.napis(None)?;
        if self.devices.outdated(&records, self.owners_every) {
            self.devices = Devices::read(&mut self.netdev)?;
        }
        self.look_at_programs(&mut notes);
        // Before the instances are listed: what was counted and is not listed has gone.
        let counted = self.counted(&mut notes);
        let at_ns = clock::now();
        let records = self.netdev.napis(None)?;
        let mut timed = self.timing.as_ref().map_or_else(BTreeMap::new, |timing| {
            let ids: Vec<u32> = records.iter().map(|record| record.id).collect();
            timing.read(&ids, &self.devices.steered, &mut notes)
        });
        if let Some(counted) = &counted {
            self.forget(counted, &records);
        }
        if let Err(error) = self.count_interrupts(&records) {
            notes.push(format!("interrupts are not counted: /proc/interrupts: {error}"));
        }
        let mut napis: Vec<NapiSnapshot> = records
            .iter()
            .filter_map(|record| {
                // Leave out instances that went between the two lists.
                let known = self.devices.get(record)?;
                let napi = self.napi(record, known, counted.as_ref());
                Some(NapiSnapshot { latency: timed.remove(&record.id), ..napi })
            })
            .collect();
        napis.sort_by_key(|napi| (napi.ifindex, napi.id));
        notes.extend(unknown(&napis, &self.devices.no_irq));
        let cpus = self.cpus(&mut notes);
        Ok(Snapshot { at_ns, napis, cpus, notes })
    }

    fn counted(&self, notes: &mut Vec<String>) -> Option<BTreeMap<Key, Counts>> {
        let counter = self.counter.as_ref()?;
        match counter.lost() {
            Ok(lost) => {
                if lost.no_room != 0 || lost.nested != 0 {
                    notes.push(format!(
                        "{} polls and timers of instances beyond the table's room, and {} that fell \
                         into another's count, are counted nowhere",
                        lost.no_room, lost.nested
                    ));
                }
            }
            Err(error) => notes.push(format!("whether any poll is counted nowhere: {error}")),
        }
        Some(counter.read())
    }

    /// The counts of an instance; zeros if it has no row, as it was never polled.
    fn of(&self, key: &Key, counted: &BTreeMap<Key, Counts>) -> Counts {
        let never = || self.counter.as_ref().map(Counter::none_yet).unwrap_or_default();
        counted.get(key).copied().unwrap_or_else(never)
    }

    /// Removes rows of instances that have gone from the counter's table.
    fn forget(&self, counted: &BTreeMap<Key, Counts>, records: &[NapiRecord]) {
        let Some(counter) = &self.counter else { return };
        let present: BTreeSet<u32> = records.iter().map(|record| record.id).collect();
        for key in counted.keys() {
            // Only this namespace is counted. Instances without an ID are rows of their device (vxlan, TAP).
            let stays = match key.napi_id {
                0 => key.ifindex == 0 || self.devices.ifindexes.contains(&key.ifindex),
                id => present.contains(&id),
            };
            if !stays {
                counter.forget(key);
            }
        }
    }

    /// Adds the interrupt counts of the instances. If they cannot be read, all become unknown.
    fn count_interrupts(&mut self, records: &[NapiRecord]) -> std::io::Result<()> {
        let devices = &self.devices;
        let of = |record| irq(record, devices.get(record)?.1);
        let irqs: BTreeSet<u32> = records.iter().filter_map(of).collect();
        let read = if irqs.is_empty() { Ok(Interrupts::default()) } else { Interrupts::read() };
        let all = read.inspect_err(|_| self.interrupts = Sums::default())?;
        self.interrupts.retain(|(irq, _)| irqs.contains(irq) && all.get(*irq).is_some());
        for irq in irqs {
            all.by_cpu(irq).for_each(|(cpu, count)| self.interrupts.step((irq, cpu), count));
        }
        Ok(())
    }

    fn look_at_programs(&mut self, notes: &mut Vec<String>) {
        if self.looked_at.is_none_or(|at| at.elapsed() >= self.owners_every) {
            self.programs = (self.find_programs)();
            self.looked_at = Some(Instant::now());
        }
        let unseen = &self.programs.unseen;
        if !unseen.is_empty() {
            // Access may fail even with the capability: because of a security module, or a process with more
            // capabilities.
            let without = if Right::SysPtrace.held() { "even with" } else { "without" };
            notes.push(format!(
                "owners: {unseen} could not be looked at {without} {}",
                Right::SysPtrace
            ));
        }
        notes.extend(self.programs.cut_note().map(|note| format!("owners: {note}")));
    }

    fn napi(
        &self,
        record: &NapiRecord,
        (ifname, known): (&str, &Napi),
        counted: Option<&BTreeMap<Key, Counts>>,
    ) -> NapiSnapshot {
        let key = Key { netns: self.netns, ifindex: record.ifindex, napi_id: record.id };
        let counts = counted.map(|all| self.of(&key, all));
        let settings = completed(record.settings, &known.settings);
        let irq = irq(record, known);
        // In a container with its own process IDs, the kernel's IDs belong to other processes, or to none.
        let thread = record.pid.and_then(|pid| ThreadStat::read(pid, pid));
        let thread = thread.filter(|it| it.kernel && it.comm.starts_with("napi/"));
        let ran = thread
            .as_ref()
            .map(|it| Time::read(it.tid, it.tid).map_or(it.cpu_ns, |time| time.run_ns));
        let polled_on = counts.and_then(|counts| usize::try_from(counts.cpu?).ok());
        let behind = self.programs.behind(record.id);
        let owners = self.programs.by_napi_id.get(&record.id).map_or(&[][..], Vec::as_slice);
        NapiSnapshot {
            ifindex: record.ifindex,
            ifname: ifname.to_owned(),
            id: record.id,
            rx_queues: known.rx_queues.clone(),
            tx_queues: known.tx_queues.clone(),
            irq,
            pid: record.pid,
            settings,
            mode: show::mode(&settings, &behind).to_string(),
            cpu: polled_on.or(thread.map(|it| it.cpu)),
            counts,
            interrupts: irq.and_then(|irq| self.interrupts.total((irq, 0)..=(irq, usize::MAX))),
            thread_cpu_ns: ran,
            latency: None,
            owners: owners
                .iter()
                .map(|program| format!("{}[{}]", program.owner.comm, program.owner.pid))
                .collect(),
        }
    }

    fn cpus(&mut self, notes: &mut Vec<String>) -> Vec<CpuSample> {
        let times = CpuTimes::read().unwrap_or_else(|error| {
            notes.push(format!("the CPUs' times are not known: /proc/stat: {error}"));
            BTreeMap::new()
        });
        match Softnet::read() {
            Ok(all) => {
                // Before Linux 5.10 the lines are not numbered; they are for the online CPUs.
                let unnumbered = times.keys().copied();
                let numbered = all.iter().zip(unnumbered.map(Some).chain(std::iter::repeat(None)));
                for (softnet, place) in numbered {
                    if let Some(cpu) = softnet.cpu.or(place) {
                        self.squeezes.step(cpu, softnet.time_squeeze);
                    }
                }
            }
            Err(error) => {
                self.squeezes = Sums::default();
                notes.push(format!("time squeezes are not known: softnet_stat: {error}"));
            }
        }
        times
            .iter()
            .map(|(&cpu, times)| CpuSample::of(cpu, times, self.squeezes.get(&cpu)))
            .collect()
    }
}

/// The number of an instance's interrupt.
fn irq(record: &NapiRecord, known: &Napi) -> Option<u32> {
    record.irq.or(known.irq)
}

/// Settings from netlink; those that an older kernel does not report, from sysfs.
fn completed(mut settings: Settings, known: &Settings) -> Settings {
    for setting in Setting::ALL {
        if settings.get(setting).is_none()
            && let Some(value) = known.get(setting)
        {
            settings.set(setting, value);
        }
    }
    settings
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_sample_is_of_the_moment_after_what_takes_long() {
        static LOOKED_AT: std::sync::atomic::AtomicU64 = std::sync::atomic::AtomicU64::new(0);
        fn find() -> Programs {
            std::thread::sleep(Duration::from_millis(5));
            LOOKED_AT.store(clock::now(), std::sync::atomic::Ordering::SeqCst);
            Programs::default()
        }
        let options = Options { count: None, ..Options::default() };
        // A kernel without the netlink family cannot be sampled.
        let Ok(mut sampler) = Sampler::start(&options) else { return };
        sampler.find_programs = find;
        let sample = sampler.sample().expect("listed");
        let looked_at = LOOKED_AT.load(std::sync::atomic::Ordering::SeqCst);
        assert!(looked_at > 0 && sample.at_ns >= looked_at, "{} {looked_at}", sample.at_ns);
    }

    #[test]
    fn that_not_all_sockets_are_counted_is_noted() {
        fn find() -> Programs {
            Programs { cut: 2, ..Programs::default() }
        }
        let options = Options { count: None, ..Options::default() };
        let Ok(mut sampler) = Sampler::start(&options) else { return };
        sampler.find_programs = find;
        let notes = sampler.sample().expect("listed").notes;
        assert!(notes.iter().any(|it| it.contains("not all sockets of 2 processes")), "{notes:?}");
    }

    #[test]
    fn what_netlink_does_not_tell_is_taken_from_sysfs_and_the_rest_is_not() {
        let mut reported = Settings::default();
        reported.set(Setting::DeferHardIrqs, 7);
        let mut known = Settings::default();
        known.set(Setting::DeferHardIrqs, 1);
        known.set(Setting::Threaded, 1);
        let settings = completed(reported, &known);
        assert_eq!(settings.get(Setting::DeferHardIrqs), Some(7), "it may have changed since");
        assert_eq!(settings.get(Setting::Threaded), Some(1));
        assert_eq!(settings.get(Setting::GroFlushTimeout), None);
    }
}
