//! What a server does, second by second: rates, drops by name, and where the CPUs' time went.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Instant;

use napkin_engine::Engine;
use napkin_nic::faulty::FaultCounters;
use napkin_stack::Fate;

use super::application::Progress;
use napkin_measure::engine::grown;
use napkin_measure::report::text::percent;
use napkin_measure::{CpuSplit, EngineTotals, EngineWindow};

/// What has happened since the start.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Totals {
    /// Frames that came in.
    pub packets: u64,
    /// Datagrams, or requests over TCP, that the application took.
    pub received: u64,
    /// Those that it answered.
    pub replies: u64,
    /// ARP requests that the stack answered.
    pub arps: u64,
    /// Neighbour solicitations answered, IPv6's ARP requests.
    pub ndisc: u64,
    /// Pings (ICMP echo requests) that the stack answered.
    pub pings: u64,
    /// Interrupts taken, of all instances.
    pub interrupts: u64,
    /// Polls, empty ones included.
    pub polls: u64,
    /// Polls that found nothing.
    pub empty_polls: u64,
    /// Every drop by the name of its counter, of devices, stacks and applications; no zeros.
    pub drops: BTreeMap<&'static str, u64>,
}

impl Totals {
    fn read(engine: &Engine, sources: &Sources) -> Totals {
        let EngineTotals { counts, queues, drops, .. } = EngineTotals::read(engine);
        let mut totals = Totals {
            packets: queues.rx_packets,
            interrupts: counts.interrupts,
            polls: counts.all_polls(),
            empty_polls: counts.all_empty_polls(),
            drops,
            ..Totals::default()
        };
        for stack in engine.devices().iter().filter_map(|device| engine.stack(device).ok()) {
            let counters = stack.counters();
            totals.arps += counters.of(Fate::AnsweredArp);
            totals.ndisc += counters.of(Fate::AnsweredNdisc);
            totals.pings += counters.of(Fate::AnsweredPing);
        }
        for progress in &sources.progress {
            totals.received += progress.received.load(Ordering::Relaxed);
            totals.replies += progress.replied.load(Ordering::Relaxed);
            for (name, count) in [
                ("reply_failed", &progress.failed),
                ("from_service", &progress.refused),
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
        totals
    }

    /// What has happened since an earlier reading.
    fn since(&self, earlier: &Totals) -> Totals {
        Totals {
            packets: self.packets.saturating_sub(earlier.packets),
            received: self.received.saturating_sub(earlier.received),
            replies: self.replies.saturating_sub(earlier.replies),
            arps: self.arps.saturating_sub(earlier.arps),
            ndisc: self.ndisc.saturating_sub(earlier.ndisc),
            pings: self.pings.saturating_sub(earlier.pings),
            interrupts: self.interrupts.saturating_sub(earlier.interrupts),
            polls: self.polls.saturating_sub(earlier.polls),
            empty_polls: self.empty_polls.saturating_sub(earlier.empty_polls),
            drops: grown(&self.drops, &earlier.drops),
        }
    }
}

impl fmt::Display for Totals {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Totals { packets, received, replies, arps, ndisc, pings, drops, .. } = self;
        let Totals { interrupts, polls, empty_polls, .. } = self;
        write!(f, "{packets} packets, {received} received, {replies} replies, ")?;
        write!(
            f,
            "{pings} pings and {arps} ARP requests answered, and {ndisc} neighbour solicitations, "
        )?;
        write!(f, "{interrupts} interrupts, {polls} polls ({empty_polls} empty), drops:")?;
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

/// What has happened in one window of about a second.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Status {
    /// Seconds since the start.
    pub at: f64,
    /// The length of the window in seconds.
    pub seconds: f64,
    /// What was counted in it.
    pub counts: Totals,
    /// Where the CPUs' time went; `None` if the operating system does not say.
    pub cpu: Option<CpuSplit>,
}

impl Status {
    fn per_second(&self, count: u64) -> u64 {
        if self.seconds > 0.0 { (count as f64 / self.seconds).round() as u64 } else { 0 }
    }
}

impl fmt::Display for Status {
    /// On one line, in rates per second.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let rate = |count| self.per_second(count);
        let counts = &self.counts;
        write!(f, "{:.0} s: {} packets/s, ", self.at, rate(counts.packets))?;
        write!(f, "{} received/s, {} replies/s, ", rate(counts.received), rate(counts.replies))?;
        write!(f, "{} pings/s, {} ARP/s, ", rate(counts.pings), rate(counts.arps))?;
        write!(f, "{} NDISC/s, ", rate(counts.ndisc))?;
        write!(f, "{} interrupts/s, {} polls/s ", rate(counts.interrupts), rate(counts.polls))?;
        write!(f, "({} empty), drops/s:", rate(counts.empty_polls))?;
        list(f, counts.drops.iter().map(|(name, count)| (*name, rate(*count))))?;
        match self.cpu {
            None => f.write_str(", CPU times unknown"),
            Some(CpuSplit { work, poll, waiting, asleep }) => {
                let [work, poll, waiting, asleep] = [work, poll, waiting, asleep].map(percent);
                write!(f, ", work {work}, poll {poll}, waiting {waiting}, asleep {asleep}")
            }
        }
    }
}

/// What is read beside the engine.
#[derive(Debug, Default)]
struct Sources {
    progress: Vec<Arc<Progress>>,
    faults: Vec<Arc<FaultCounters>>,
}

/// Takes one window after the other.
#[derive(Debug, Default)]
pub(super) struct Meter {
    start: Option<Instant>,
    sources: Sources,
    window: Option<Window>,
}

#[derive(Debug)]
struct Window {
    begun: Instant,
    before: Totals,
    cpu: Option<EngineWindow>,
}

impl Meter {
    pub(super) fn new(
        engine: &Engine,
        progress: Vec<Arc<Progress>>,
        faults: Vec<Arc<FaultCounters>>,
    ) -> Meter {
        let sources = Sources { progress, faults };
        let window = Some(Window::begin(engine, &sources));
        Meter { start: Some(Instant::now()), sources, window }
    }

    pub(super) fn totals(&self, engine: &Engine) -> Totals {
        Totals::read(engine, &self.sources)
    }

    pub(super) fn status(&mut self, engine: &Engine) -> Status {
        // Threads come and go with the settings, so every window has its own.
        let next = Window::begin(engine, &self.sources);
        let window = self.window.replace(next);
        let (Some(window), Some(next)) = (window, &self.window) else { return Status::default() };
        Status {
            at: self.start.map_or(0.0, |start| start.elapsed().as_secs_f64()),
            seconds: next.begun.duration_since(window.begun).as_secs_f64(),
            counts: next.before.since(&window.before),
            cpu: window.cpu.and_then(|cpu| cpu.end(engine, 0).ok()?.split),
        }
    }
}

impl Window {
    fn begin(engine: &Engine, sources: &Sources) -> Window {
        Window {
            begun: Instant::now(),
            before: Totals::read(engine, sources),
            cpu: EngineWindow::begin(engine, engine.cpus()).ok(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_status_is_one_line_of_rates() {
        let counts = Totals {
            packets: 20,
            received: 18,
            replies: 18,
            arps: 0,
            ndisc: 0,
            pings: 4,
            interrupts: 6,
            polls: 10,
            empty_polls: 2,
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
        assert!(Totals::default().to_string().ends_with("drops: none"));
    }

    #[test]
    fn a_window_is_a_difference_and_names_only_what_grew() {
        let before =
            Totals { packets: 5, drops: BTreeMap::from([("a", 1), ("b", 1)]), ..Totals::default() };
        let after =
            Totals { packets: 7, drops: BTreeMap::from([("a", 1), ("b", 3)]), ..Totals::default() };
        let since = after.since(&before);
        assert_eq!((since.packets, since.drops), (2, BTreeMap::from([("b", 2)])));
    }
}
