//! Timing of polls, softirqs and timers inside the kernel, by trace points.
//!
//! The server's end of the veth defers interrupts. The first request of a burst is polled at once by the sender's
//! softirq, here on the same CPU. The others wait for the instance's timer, which polls all of them, and then, a
//! few times, nothing. This produces timer interrupts, empty polls, and polls of any number of frames, each of
//! another connection, one after another on one CPU. The thread reads the clock meanwhile, and so sees the whole
//! duration of each interrupt.

use std::time::Duration;

use napkin_kernel::Setting;
use napkin_kernel::count::stopwatch::{KernelTypes, Point, Record};
use napkin_kernel::netlink::{Netdev, Route};

use super::connections::{ANSWER, CONNECTIONS, Connections, REQUEST, receive_soon, send};
use super::estimate::line;
use super::round::{Round, Samples};
use super::threads::gaps;
use super::timing::Budget;
use napkin_measure::interleave::median;
use napkin_workload::error::BenchError;
use napkin_workload::interrupt::Interrupt;
use napkin_workload::linux::failed;
use napkin_workload::linux::pair::{DEVICE, Pair};

/// The instance's deferral timer (`gro_flush_timeout`).
const TIMEOUT: Duration = Duration::from_micros(100);
/// Empty polls by that timer before the interrupt is unmasked (`napi_defer_hard_irqs`).
const EMPTY_POLLS: u64 = 4;
/// Sizes of the bursts of requests; the first request of each is polled at once.
const BURSTS: [usize; 7] = [1, 2, 3, 5, 9, 17, 32];
/// Index of the NET_RX softirq.
const NET_RX: u32 = 3;

/// The veth's instance, configured to defer.
#[derive(Debug)]
pub(super) struct Deferring<'a> {
    pair: &'a Pair,
    id: u32,
}

impl<'a> Deferring<'a> {
    pub(super) fn new(pair: &'a Pair) -> Result<Self, BenchError> {
        let id = pair.server.run(|| -> Result<u32, BenchError> {
            let ifindex = Route::open().and_then(|mut it| it.link(DEVICE)).map_err(failed)?.ifindex;
            let napis =
                Netdev::open().and_then(|mut it| it.napis(Some(ifindex))).map_err(failed)?;
            match napis.as_slice() {
                [napi] => Ok(napi.id),
                other => {
                    Err(BenchError::Linux(format!("{DEVICE} has {} NAPI instances", other.len())))
                }
            }
        });
        let deferring = Deferring { pair, id: id.map_err(failed)?? };
        deferring.set(TIMEOUT.as_nanos() as u64, EMPTY_POLLS)?;
        Ok(deferring)
    }

    fn set(&self, timeout: u64, polls: u64) -> Result<(), BenchError> {
        let set = || -> Result<(), BenchError> {
            let mut netdev = Netdev::open().map_err(failed)?;
            for (setting, value) in
                [(Setting::GroFlushTimeout, timeout), (Setting::DeferHardIrqs, polls)]
            {
                netdev.set_napi(self.id, setting, value).map_err(failed)?;
            }
            Ok(())
        };
        self.pair.server.run(set).map_err(failed)?
    }

    /// The instance's id as it appears in recorded polls.
    fn recorded(&self) -> u32 {
        self.id << 16
    }
}

impl Drop for Deferring<'_> {
    fn drop(&mut self) {
        // A failure does not matter: the device is removed at the end of the run.
        let _ = self.set(0, 0);
    }
}

/// What the measurement uses.
#[derive(Debug, Clone, Copy)]
pub(super) struct Place<'a> {
    pub(super) maker: &'a KernelTypes,
    pub(super) deferring: &'a Deferring<'a>,
    pub(super) connections: &'a Connections,
    /// This thread's CPU.
    pub(super) cpu: usize,
}

/// Records trace points on this thread's CPU for `time`, and adds the times between them to the round.
pub(super) fn polls(
    place: &Place<'_>,
    clock: f64,
    time: Duration,
    interrupt: &Interrupt,
    round: &mut Round,
) -> Result<(), BenchError> {
    let whole = [
        Point::SoftirqEntry,
        Point::SoftirqExit,
        Point::NapiPoll,
        Point::NapiPollAgain,
        Point::TimerInterrupt,
        Point::TimerExpire,
        Point::TimerInterruptExit,
    ];
    let Place { maker, deferring, connections, cpu } = *place;
    let cpu = u32::try_from(cpu).map_err(failed)?;
    let load = |points: &[Point], time: Duration| -> Result<Recorded, BenchError> {
        let watch = maker.start(points).map_err(failed)?;
        watch.clear().map_err(failed)?;
        let gaps = bursts(connections, clock, Budget::new(time, interrupt))?;
        Ok(Recorded { records: watch.take(cpu).map_err(failed)?, gaps })
    };
    let recorded = load(&whole, time * 3 / 4)?;
    analyse(&recorded, deferring.recorded(), clock, round);
    let frames = [Point::SoftirqEntry, Point::GroReceive, Point::TimerStart, Point::NapiPoll];
    let recorded = load(&frames, time / 4)?;
    analyse_parts(&recorded.records, deferring.recorded(), round);
    Ok(())
}

/// The recorded trace points, and the times in which the thread did not run.
#[derive(Debug, Clone, Default)]
pub struct Recorded {
    /// The CPU's records, in order.
    pub records: Vec<Record>,
    /// Beginning and end of each interruption.
    pub gaps: Vec<(u64, u64)>,
}

fn bursts(
    connections: &Connections,
    clock: f64,
    budget: Budget<'_>,
) -> Result<Vec<(u64, u64)>, BenchError> {
    let mut all = Vec::new();
    let mut buffer = [0_u8; 4096];
    let mut turn = 0_usize;
    while budget.left()? {
        let burst = BURSTS[turn % BURSTS.len()].min(CONNECTIONS);
        turn += 1;
        for client in connections.client.iter().take(burst) {
            send(client, &[b'q'; REQUEST])?;
        }
        let wait = TIMEOUT * (EMPTY_POLLS as u32 + 3);
        all.extend(gaps(budget.within(wait), clock)?);
        for (server, client) in connections.server.iter().zip(&connections.client).take(burst) {
            receive_soon(server, &mut buffer)?;
            send(server, &[b'a'; ANSWER])?;
            receive_soon(client, &mut buffer)?;
        }
    }
    Ok(all)
}

/// Derives raw figures from the records of a load of this module; `instance` is the upper half of the value of its
/// polls.
pub fn analyse(recorded: &Recorded, instance: u32, clock: f64, round: &mut Round) {
    let records = &recorded.records;
    let of = |first: &Record, second: &Record| second.at.saturating_sub(first.at) as f64;
    let is_ours =
        |record: &Record| record.point == Point::NapiPoll && record.value & 0xffff_0000 == instance;
    let probes = records
        .windows(2)
        .filter(|it| it[0].point == Point::NapiPoll && it[1].point == Point::NapiPollAgain)
        .map(|it| of(&it[0], &it[1]));
    let Some(probe) = median(probes) else { return };
    round.put("trace.record", probe);
    let mut samples = Samples::default();
    let mut polls = Vec::new();
    for pair in records.windows(2) {
        let [first, second] = pair else { continue };
        let time = of(first, second) - probe;
        match (first.point, second.point) {
            (Point::SoftirqEntry, Point::NapiPoll) if first.value == NET_RX && is_ours(second) => {
                polls.push((second.value & 0xffff, time));
            }
            (Point::NapiPollAgain, Point::SoftirqExit) => samples.add("trace.softirq-exit", time),
            (Point::SoftirqEntry, Point::SoftirqExit) if first.value != NET_RX => {
                samples.add("trace.vector", time);
            }
            (Point::TimerInterruptExit, Point::SoftirqEntry) => {
                samples.add("trace.softirq-entry", time);
            }
            _ => {}
        }
    }
    let ticks: Vec<&Record> =
        records.iter().filter(|it| it.point == Point::TimerExpire && it.value == 2).collect();
    for pair in ticks.windows(2) {
        samples.add("trace.tick-period", of(pair[0], pair[1]));
    }
    for three in records.windows(3) {
        let [first, expires, last] = three else { continue };
        let points = (first.point, expires.point, last.point);
        if points == (Point::TimerInterrupt, Point::TimerExpire, Point::TimerInterruptExit) {
            let time = of(first, last) - 2.0 * probe;
            match expires.value {
                1 => samples.add("trace.timer", time),
                2 => samples.add("trace.tick", time),
                _ => {}
            }
        }
    }
    if let Some(empty) = median(polls.iter().filter(|it| it.0 == 0).map(|it| it.1)) {
        round.put("trace.poll-empty", empty);
    }
    let taking: Vec<(u32, f64)> = polls.into_iter().filter(|it| it.0 > 0).collect();
    if let Some(line) = line(&taking, 3) {
        round.put("trace.poll-base", line.base);
        round.put("trace.poll-each", line.each);
    }
    outside(recorded, probe, clock, &mut samples);
    samples.into_round(round);
}

/// Derives the part of an interrupt outside its first and last record: entry and exit.
fn outside(recorded: &Recorded, probe: f64, clock: f64, samples: &mut Samples) {
    let mut records = recorded.records.as_slice();
    for &(from, to) in &recorded.gaps {
        let first = records.partition_point(|it| it.at < from);
        let inside = &records[first..];
        let (inside, rest) = inside.split_at(inside.partition_point(|it| it.at <= to));
        records = rest;
        let (Some(first), Some(last)) = (inside.first(), inside.last()) else { continue };
        let interrupts = inside.iter().filter(|it| it.point == Point::TimerInterrupt).count();
        let whole = first.point == Point::TimerInterrupt
            && matches!(last.point, Point::SoftirqExit | Point::TimerInterruptExit);
        if interrupts == 1 && whole {
            let time = (to - from) as f64 - last.at.saturating_sub(first.at) as f64;
            samples.add("trace.interrupt-outside", time - probe - clock);
        }
    }
}

/// Derives the parts of a poll: GRO's time per frame, from one frame to the next, and for an empty poll, the time
/// before its timer is armed and that of the arming.
pub fn analyse_parts(records: &[Record], instance: u32, round: &mut Round) {
    let Some(probe) = round.get("trace.record") else { return };
    let mut samples = Samples::default();
    let of = |first: &Record, second: &Record| second.at.saturating_sub(first.at) as f64 - probe;
    for pair in records.windows(2) {
        if let [first, second] = pair
            && (first.point, second.point) == (Point::GroReceive, Point::GroReceive)
        {
            samples.add("trace.frame", of(first, second));
        }
    }
    for three in records.windows(3) {
        let [entry, start, poll] = three else { continue };
        let points = (entry.point, start.point, poll.point);
        let empty = poll.value == instance && start.value == 1 && entry.value == NET_RX;
        if points == (Point::SoftirqEntry, Point::TimerStart, Point::NapiPoll) && empty {
            samples.add("trace.poll", of(entry, start));
            samples.add("trace.timer-arm", of(start, poll));
        }
    }
    samples.into_round(round);
}

#[cfg(test)]
mod tests {
    use super::*;

    const ID: u32 = 8193 << 16;
    const PROBE: u64 = 50;

    /// A synthetic CPU, whose clock advances by each step's cost and by the cost of a record.
    #[derive(Default)]
    struct Cpu {
        now: u64,
        recorded: Recorded,
    }

    impl Cpu {
        fn passes(&mut self, after: u64, point: Point, value: u32) {
            self.now += after + PROBE;
            self.recorded.records.push(Record { at: self.now, point, value });
        }

        /// The instance's timer interrupts the thread, and its softirq polls this many frames.
        fn timer(&mut self, frames: u32) {
            self.now += 100_000;
            let from = self.now;
            self.passes(200, Point::TimerInterrupt, 0);
            self.passes(90, Point::TimerExpire, 1);
            self.passes(110, Point::TimerInterruptExit, 0);
            self.passes(80, Point::SoftirqEntry, NET_RX);
            self.passes(300 + 1000 * u64::from(frames), Point::NapiPoll, ID | frames);
            self.passes(0, Point::NapiPollAgain, ID | frames);
            self.passes(70, Point::SoftirqExit, NET_RX);
            // The exit includes the rest of the last record.
            self.now += 160;
            self.recorded.gaps.push((from, self.now));
        }
    }

    #[test]
    fn costs_are_what_lies_between_two_records_less_what_a_record_costs() {
        let mut cpu = Cpu::default();
        for _ in 0..10 {
            [0, 0, 0, 1, 4, 16, 31].into_iter().for_each(|frames| cpu.timer(frames));
        }
        let mut round = Round::default();
        analyse(&cpu.recorded, ID, 0.0, &mut round);
        for (name, cost) in [
            ("trace.record", PROBE as f64),
            ("trace.timer", 200.0),
            ("trace.softirq-entry", 80.0),
            ("trace.poll-empty", 300.0),
            ("trace.poll-base", 300.0),
            ("trace.poll-each", 1000.0),
            ("trace.softirq-exit", 70.0),
            ("trace.interrupt-outside", 360.0),
        ] {
            let found = round.get(name).unwrap_or_else(|| panic!("{name}"));
            assert!((found - cost).abs() < 0.5, "{name}: {found}");
        }
        assert_eq!(round.get("trace.tick"), None, "there was none");
    }

    #[test]
    fn another_instance_s_polls_are_not_ours_and_an_interrupted_interrupt_is_no_sample() {
        let mut cpu = Cpu::default();
        (0..10).for_each(|_| cpu.timer(0));
        let mut other = Round::default();
        analyse(&cpu.recorded, 9999 << 16, 0.0, &mut other);
        assert_eq!(other.get("trace.poll-empty"), None);
        assert!(other.get("trace.softirq-exit").is_some());
        // Two interrupts per gap.
        let gaps: Vec<_> = cpu.recorded.gaps.chunks(2).map(|two| (two[0].0, two[1].1)).collect();
        let mut round = Round::default();
        analyse(&Recorded { gaps, ..cpu.recorded }, ID, 0.0, &mut round);
        assert_eq!(round.get("trace.interrupt-outside"), None);
    }

    #[test]
    fn the_arming_of_its_timer_is_told_from_an_empty_poll() {
        let mut cpu = Cpu::default();
        for _ in 0..10 {
            cpu.passes(1_000, Point::SoftirqEntry, NET_RX);
            cpu.passes(250, Point::TimerStart, 1);
            cpu.passes(4_000, Point::NapiPoll, ID);
            // For a poll with frames, both intervals mean something else.
            cpu.passes(1_000, Point::SoftirqEntry, NET_RX);
            cpu.passes(400, Point::GroReceive, 0);
            cpu.passes(120, Point::GroReceive, 0);
            cpu.passes(900, Point::TimerStart, 1);
            cpu.passes(4_000, Point::NapiPoll, ID | 2);
        }
        let mut round = Round::default();
        round.put("trace.record", PROBE as f64);
        analyse_parts(&cpu.recorded.records, ID, &mut round);
        let found = ["trace.poll", "trace.timer-arm", "trace.frame"].map(|it| round.get(it));
        assert_eq!(found, [Some(250.0), Some(4_000.0), Some(120.0)]);
    }

    #[test]
    fn nothing_recorded_gives_no_figures() {
        let mut round = Round::default();
        analyse(&Recorded::default(), ID, 0.0, &mut round);
        analyse_parts(&[], ID, &mut round);
        assert_eq!(round, Round::default());
    }
}
