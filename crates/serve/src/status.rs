//! A server's activity, second by second: rates, drops by name, and the split of CPU time.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Instant;

use napkin_engine::Engine;
use napkin_nic::faulty::FaultCounters;
use napkin_stack::FrameOutcome;

use super::application::{APPLICATION, Progress};
use napkin_measure::engine::grown;
use napkin_measure::report::text::percent;
use napkin_measure::{CpuSplit, CpuWindow, EngineTotals, EngineWindow};
use napkin_os::meter::ThreadMeter;

/// Counts since the start.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Totals {
    /// Counts of the devices; `None` on the operating system's sockets, which provide none.
    pub devices: Option<DeviceTotals>,
    /// Datagrams, or requests over TCP, that the application received.
    pub received: u64,
    /// Requests that the application answered; in memcached, requests that want no answer are not counted.
    pub replies: u64,
    /// Drops by counter name, of devices, stacks and applications; without zeros.
    pub drops: BTreeMap<&'static str, u64>,
}

/// Counts of the engine's devices and stacks.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct DeviceTotals {
    /// Frames received.
    pub packets: u64,
    /// ARP requests that the stacks answered.
    pub arps: u64,
    /// Neighbour solicitations (IPv6's ARP requests) that the stacks answered.
    pub ndisc: u64,
    /// Pings (ICMP echo requests) that the stacks answered.
    pub pings: u64,
    /// Interrupts taken by all instances.
    pub interrupts: u64,
    /// Polls, including empty ones.
    pub polls: u64,
    /// Polls that found nothing.
    pub empty_polls: u64,
}

impl Totals {
    /// Adds the counts of the application and of the injected faults.
    fn and(mut self, sources: &Sources) -> Totals {
        let totals = &mut self;
        for progress in &sources.progress {
            totals.received += progress.received.load(Ordering::Relaxed);
            totals.replies += progress.replied.load(Ordering::Relaxed);
            for (name, count) in [
                ("reply_failed", &progress.failed),
                ("from_service", &progress.refused),
                ("no_request", &progress.no_request),
                ("no_listener", &progress.no_listener),
                ("no_place", &progress.no_place),
            ] {
                let count = count.load(Ordering::Relaxed);
                if count != 0 {
                    *totals.drops.entry(name).or_default() += count;
                }
            }
        }
        let lost = sources.faults.iter().map(|faults| faults.read().lost).sum();
        if lost != 0 {
            totals.drops.insert("fault_lost", lost);
        }
        self
    }

    /// The counts of the engine's devices and stacks, without those of the application.
    pub(super) fn of_engine(engine: &Engine) -> Totals {
        let EngineTotals { counts, queues, drops, .. } = EngineTotals::read(engine);
        let mut devices = DeviceTotals {
            packets: queues.rx_packets,
            interrupts: counts.interrupts,
            polls: counts.all_polls(),
            empty_polls: counts.all_empty_polls(),
            ..DeviceTotals::default()
        };
        for stack in engine.devices().iter().filter_map(|device| engine.stack(device).ok()) {
            let counters = stack.counters();
            devices.arps += counters.of(FrameOutcome::AnsweredArp);
            devices.ndisc += counters.of(FrameOutcome::AnsweredNdisc);
            devices.pings += counters.of(FrameOutcome::AnsweredPing);
        }
        Totals { devices: Some(devices), drops, ..Totals::default() }
    }

    /// The difference to an earlier reading.
    fn since(&self, earlier: &Totals) -> Totals {
        Totals {
            devices: self.devices.map(|it| it.since(earlier.devices.unwrap_or_default())),
            received: self.received.saturating_sub(earlier.received),
            replies: self.replies.saturating_sub(earlier.replies),
            drops: grown(&self.drops, &earlier.drops),
        }
    }
}

impl DeviceTotals {
    fn since(self, earlier: DeviceTotals) -> DeviceTotals {
        DeviceTotals {
            packets: self.packets.saturating_sub(earlier.packets),
            arps: self.arps.saturating_sub(earlier.arps),
            ndisc: self.ndisc.saturating_sub(earlier.ndisc),
            pings: self.pings.saturating_sub(earlier.pings),
            interrupts: self.interrupts.saturating_sub(earlier.interrupts),
            polls: self.polls.saturating_sub(earlier.polls),
            empty_polls: self.empty_polls.saturating_sub(earlier.empty_polls),
        }
    }
}

impl fmt::Display for Totals {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Totals { devices, received, replies, drops } = self;
        if let Some(DeviceTotals { packets, .. }) = devices {
            write!(f, "{packets} packets, ")?;
        }
        write!(f, "{received} received, {replies} replies, ")?;
        if let Some(DeviceTotals { arps, ndisc, pings, .. }) = devices {
            write!(f, "{pings} pings and {arps} ARP requests answered, ")?;
            write!(f, "and {ndisc} neighbour solicitations, ")?;
        }
        if let Some(DeviceTotals { interrupts, polls, empty_polls, .. }) = devices {
            write!(f, "{interrupts} interrupts, {polls} polls ({empty_polls} empty), ")?;
        }
        f.write_str("drops:")?;
        list(f, drops.iter().map(|(name, count)| (*name, *count)))
    }
}

fn list<'a>(
    f: &mut fmt::Formatter<'_>,
    drops: impl Iterator<Item = (&'a str, u64)>,
) -> fmt::Result {
    let mut none = true;
    for (name, count) in drops {
        write!(f, " {name} {count}")?;
        none = false;
    }
    if none { f.write_str(" none") } else { Ok(()) }
}

/// Counts of one window of about a second.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Status {
    /// Seconds since the start, at the end of the window.
    pub at: f64,
    /// Length of the window in seconds.
    pub seconds: f64,
    /// Counts within the window.
    pub counts: Totals,
    /// Split of CPU time; `None` if the operating system does not provide it.
    pub cpu: Option<CpuSplit>,
}

impl Status {
    fn per_second(&self, count: u64) -> u64 {
        if self.seconds > 0.0 { (count as f64 / self.seconds).round() as u64 } else { 0 }
    }
}

impl fmt::Display for Status {
    /// One line, in rates per second.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let rate = |count| self.per_second(count);
        let counts = &self.counts;
        write!(f, "{:.0} s: ", self.at)?;
        if let Some(devices) = counts.devices {
            write!(f, "{} packets/s, ", rate(devices.packets))?;
        }
        write!(f, "{} received/s, {} replies/s, ", rate(counts.received), rate(counts.replies))?;
        if let Some(DeviceTotals { pings, arps, ndisc, .. }) = counts.devices {
            write!(f, "{} pings/s, {} ARP/s, {} NDISC/s, ", rate(pings), rate(arps), rate(ndisc))?;
        }
        if let Some(DeviceTotals { interrupts, polls, empty_polls, .. }) = counts.devices {
            write!(f, "{} interrupts/s, {} polls/s ", rate(interrupts), rate(polls))?;
            write!(f, "({} empty), ", rate(empty_polls))?;
        }
        f.write_str("drops/s:")?;
        list(f, counts.drops.iter().map(|(name, count)| (*name, rate(*count))))?;
        let Some(CpuSplit { work, poll, waiting, asleep }) = self.cpu else {
            return f.write_str(", CPU times unknown");
        };
        let [work, poll, waiting, asleep] = [work, poll, waiting, asleep].map(percent);
        write!(f, ", work {work}, ")?;
        // The kernel does not tell which of its polls were empty.
        if counts.devices.is_some() {
            write!(f, "poll {poll}, ")?;
        }
        write!(f, "waiting {waiting}, asleep {asleep}")
    }
}

/// Counters outside the engine.
#[derive(Debug, Default)]
struct Sources {
    progress: Vec<Arc<Progress>>,
    faults: Vec<Arc<FaultCounters>>,
}

/// Measures consecutive windows.
#[derive(Debug, Default)]
pub(super) struct Meter {
    start: Option<Instant>,
    sources: Sources,
    /// CPUs of the threads on the operating system's sockets.
    cpus: Vec<usize>,
    window: Option<Window>,
}

#[derive(Debug)]
struct Window {
    begun: Instant,
    before: Totals,
    cpu: Option<Cpu>,
}

/// The CPU time measurement of a window.
#[derive(Debug)]
enum Cpu {
    Engine(EngineWindow),
    /// Of the application's threads.
    Threads(CpuWindow),
}

impl Meter {
    pub(super) fn new(
        engine: &Engine,
        progress: Vec<Arc<Progress>>,
        faults: Vec<Arc<FaultCounters>>,
    ) -> Meter {
        let sources = Sources { progress, faults };
        Meter { sources, ..Meter::default() }.begin(Some(engine))
    }

    /// A meter for threads on the operating system's sockets, which run on these CPUs.
    pub(super) fn of_sockets(progress: Vec<Arc<Progress>>, cpus: &[usize]) -> Meter {
        let sources = Sources { progress, faults: Vec::new() };
        Meter { sources, cpus: cpus.to_vec(), ..Meter::default() }.begin(None)
    }

    fn begin(mut self, engine: Option<&Engine>) -> Meter {
        self.start = Some(Instant::now());
        self.window = Some(self.window(engine));
        self
    }

    fn window(&self, engine: Option<&Engine>) -> Window {
        let cpu = match engine {
            Some(engine) => EngineWindow::begin(engine, engine.cpus()).ok().map(Cpu::Engine),
            None => {
                let threads = ThreadMeter::of_self(|_, name| name.starts_with(APPLICATION));
                let window = threads.and_then(|threads| CpuWindow::new(threads, self.cpus.clone()));
                window.ok().map(Cpu::Threads)
            }
        };
        Window { begun: Instant::now(), before: self.totals(engine), cpu }
    }

    /// The totals now; without an engine, those of the operating system's sockets.
    pub(super) fn totals(&self, engine: Option<&Engine>) -> Totals {
        self.ended(engine.map(Totals::of_engine).unwrap_or_default())
    }

    /// The totals with earlier counts of an engine, which may have stopped, and the current ones of the
    /// application.
    pub(super) fn ended(&self, engine: Totals) -> Totals {
        engine.and(&self.sources)
    }

    pub(super) fn status(&mut self, engine: Option<&Engine>) -> Status {
        // Threads come and go with the settings, so each window lists them anew.
        let next = self.window(engine);
        let window = self.window.replace(next);
        let (Some(window), Some(next)) = (window, &self.window) else { return Status::default() };
        let split = |cpu: Cpu| match (cpu, engine) {
            (Cpu::Engine(window), Some(engine)) => window.end(engine, 0).ok()?.split,
            (Cpu::Threads(mut window), _) => window.end(0).ok()?.split,
            (Cpu::Engine(_), None) => None,
        };
        Status {
            at: self.start.map_or(0.0, |start| start.elapsed().as_secs_f64()),
            seconds: next.begun.duration_since(window.begun).as_secs_f64(),
            counts: next.before.since(&window.before),
            cpu: window.cpu.and_then(split),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_status_is_one_line_of_rates() {
        let devices = DeviceTotals {
            packets: 20,
            arps: 0,
            ndisc: 0,
            pings: 4,
            interrupts: 6,
            polls: 10,
            empty_polls: 2,
        };
        let counts = Totals {
            devices: Some(devices),
            received: 18,
            replies: 18,
            drops: BTreeMap::from([("socket_full", 2)]),
        };
        let cpu = Some(CpuSplit { work: 0.25, poll: 0.0, waiting: 0.05, asleep: 0.7 });
        let status = Status { at: 4.0, seconds: 2.0, counts: counts.clone(), cpu };
        assert_eq!(
            status.to_string(),
            "4 s: 10 packets/s, 9 received/s, 9 replies/s, 2 pings/s, 0 ARP/s, 0 NDISC/s, \
             3 interrupts/s, 5 polls/s (1 empty), drops/s: socket_full 1, work 25.0 %, poll 0.0 %, waiting 5.0 %, asleep 70.0 %"
        );
        assert!(counts.to_string().ends_with("drops: socket_full 2"));
        let counts = Totals { devices: None, ..counts };
        let status = Status { counts: counts.clone(), ..status };
        assert_eq!(
            status.to_string(),
            "4 s: 9 received/s, 9 replies/s, drops/s: socket_full 1, work 25.0 %, waiting 5.0 %, \
             asleep 70.0 %"
        );
        assert_eq!(counts.to_string(), "18 received, 18 replies, drops: socket_full 2");
        assert!(Totals::default().to_string().ends_with("drops: none"));
    }

    #[test]
    fn a_window_is_a_difference_and_names_only_what_grew() {
        let totals = |packets: u64, b: u64| Totals {
            devices: Some(DeviceTotals { packets, ..DeviceTotals::default() }),
            drops: BTreeMap::from([("a", 1), ("b", b)]),
            ..Totals::default()
        };
        let since = totals(7, 3).since(&totals(5, 1));
        assert_eq!(since, Totals { drops: BTreeMap::from([("b", 2)]), ..totals(2, 0) });
    }
}
