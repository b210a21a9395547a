//! Adaptive interrupt moderation, after Linux's dynamic interrupt moderation library (DIM).
//!
//! A driver samples its queue at each unmask. Every 64 interrupts it compares the rates of bytes, packets and
//! interrupts with the previous ones, and moves along a table of five pairs of a time and a number of frames: onward
//! while the rates improve, back when they do not; it stops when it has found an optimum or has made too many steps.
//! Rates within 10 % of each other count as equal. The algorithm does not know the policy: where interrupts are
//! deferred, samples are few and it seldom adapts.

use napkin_core::Ns;

/// Interrupts per decision.
const EVENTS: u64 = 64;

/// Number of steps after which a search pauses.
const MAX_STEPS: u8 = 10;

/// Microseconds and frames for receive, where each frame restarts the timer (DIM's CQE mode).
const FROM_FRAME: [(Ns, u32); 5] = [(2, 256), (8, 128), (16, 64), (32, 64), (64, 64)];

/// The same, where the timer starts with an event (DIM's EQE mode).
const FROM_EVENT: [(Ns, u32); 5] = [(1, 256), (8, 256), (64, 256), (128, 256), (256, 256)];

/// The same for transmit completions, from the last interrupt.
const TRANSMIT: [(Ns, u32); 5] = [(1, 128), (8, 128), (32, 128), (64, 128), (128, 128)];

/// Counts of a queue at one moment.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Sample {
    pub(super) at: Ns,
    pub(super) packets: u64,
    pub(super) bytes: u64,
    pub(super) events: u64,
}

/// Rates per millisecond.
#[derive(Debug, Clone, Copy, Default)]
struct Rates {
    bytes: u64,
    packets: u64,
    events: u64,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Comparison {
    Worse,
    Same,
    Better,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum TuneState {
    OnTop,
    Tired,
    Right,
    Left,
}

/// The state of one queue's search.
#[derive(Debug)]
pub(crate) struct Adaptive {
    steps: &'static [(Ns, u32); 5],
    at: usize,
    state: TuneState,
    left: u8,
    right: u8,
    tired: u8,
    /// The beginning of the present sample; `None` after a change, until the next sample begins.
    start: Option<Sample>,
    before: Rates,
}

impl Adaptive {
    /// Creates the state for a receive queue, at the library's start value; `restarts`: each frame restarts the
    /// timer.
    pub(crate) fn receive(restarts: bool) -> Self {
        Adaptive::new(if restarts { &FROM_FRAME } else { &FROM_EVENT })
    }

    fn new(steps: &'static [(Ns, u32); 5]) -> Self {
        Adaptive {
            steps,
            at: 1,
            state: TuneState::OnTop,
            left: 0,
            right: 0,
            tired: 0,
            start: None,
            before: Rates::default(),
        }
    }

    /// Takes a sample at an unmask. Returns the new time in nanoseconds and number of frames if they change.
    pub(super) fn sample(&mut self, now: Sample) -> Option<(Ns, u32)> {
        let Some(start) = self.start else {
            self.start = Some(now);
            return None;
        };
        if now.events - start.events < EVENTS {
            return None;
        }
        let microseconds = (now.at - start.at) / 1000;
        if microseconds == 0 {
            return None;
        }
        let rate = |count: u64| (count * 1000).div_ceil(microseconds);
        let rates = Rates {
            bytes: rate(now.bytes - start.bytes),
            packets: rate(now.packets - start.packets),
            events: rate(EVENTS),
        };
        let was = self.at;
        self.decide(rates);
        if self.at == was {
            self.start = Some(now);
            return None;
        }
        self.start = None;
        let (microseconds, frames) = self.steps[self.at];
        Some((microseconds * 1000, frames))
    }

    fn decide(&mut self, rates: Rates) {
        let parked = self.state == TuneState::OnTop;
        match self.state {
            TuneState::OnTop => {
                if compare(rates, self.before) != Comparison::Same {
                    self.exit_parking();
                }
            }
            TuneState::Tired => {
                self.tired = self.tired.saturating_sub(1);
                if self.tired == 0 {
                    self.exit_parking();
                }
            }
            TuneState::Right | TuneState::Left => {
                if compare(rates, self.before) != Comparison::Better {
                    self.turn();
                }
                if self.on_top() {
                    self.park();
                } else if self.tired == MAX_STEPS {
                    (self.left, self.right) = (0, 0);
                    self.state = TuneState::Tired;
                } else if !self.step() {
                    self.park();
                }
            }
        }
        if !parked || self.state != TuneState::OnTop {
            self.before = rates;
        }
    }

    fn exit_parking(&mut self) {
        self.state = if self.at == 0 { TuneState::Right } else { TuneState::Left };
        if self.tired < MAX_STEPS {
            self.step();
        }
    }

    fn turn(&mut self) {
        if self.state == TuneState::Right {
            self.state = TuneState::Left;
            self.left = 0;
        } else {
            self.state = TuneState::Right;
            self.right = 0;
        }
    }

    /// Returns whether the search has gone one step past the optimum and back.
    fn on_top(&self) -> bool {
        match self.state {
            TuneState::Right => self.left > 1 && self.right == 1,
            _ => self.right > 1 && self.left == 1,
        }
    }

    fn park(&mut self) {
        (self.left, self.right, self.tired) = (0, 0, 0);
        self.state = TuneState::OnTop;
    }

    /// Makes a step; returns `false` at the end of the table.
    fn step(&mut self) -> bool {
        if self.state == TuneState::Right {
            if self.at + 1 == self.steps.len() {
                return false;
            }
            self.at += 1;
            self.right += 1;
        } else {
            if self.at == 0 {
                return false;
            }
            self.at -= 1;
            self.left += 1;
        }
        self.tired += 1;
        true
    }
}

fn compare(now: Rates, before: Rates) -> Comparison {
    let differs = |a: u64, b: u64| b > 0 && a.abs_diff(b) * 100 / b > 10;
    let more = |yes: bool| if yes { Comparison::Better } else { Comparison::Worse };
    for (now, before) in [(now.bytes, before.bytes), (now.packets, before.packets)] {
        if before == 0 {
            return if now > 0 { Comparison::Better } else { Comparison::Same };
        }
        if differs(now, before) {
            return more(now > before);
        }
    }
    if differs(now.events, before.events) {
        more(now.events < before.events)
    } else {
        Comparison::Same
    }
}

/// Adaptive moderation of a queue's transmit completions: the interrupt is raised at once, unless the previous one
/// for completions was less than `time` ago.
#[derive(Debug)]
pub(crate) struct TxModeration {
    adaptive: Adaptive,
    time: Ns,
    frames: u32,
    /// Completions since the last interrupt for them.
    coalesced: u32,
    last: Ns,
    /// Whether a timer event is pending.
    pub(super) pending: bool,
    pub(super) packets: u64,
    pub(super) bytes: u64,
    events: u64,
}

impl TxModeration {
    pub(crate) fn new() -> Self {
        let (time, frames) = TRANSMIT[1];
        TxModeration {
            adaptive: Adaptive::new(&TRANSMIT),
            time: time * 1000,
            frames,
            coalesced: 0,
            last: 0,
            pending: false,
            packets: 0,
            bytes: 0,
            events: 0,
        }
    }

    /// Counts a completion. Returns when its interrupt is due.
    pub(crate) fn finished(&mut self, now: Ns) -> Ns {
        self.coalesced += 1;
        if self.coalesced >= self.frames { now } else { now.max(self.last + self.time) }
    }

    /// Records that the interrupt for completions is raised.
    pub(crate) fn raised(&mut self, now: Ns) {
        (self.coalesced, self.last) = (0, now);
        self.events += 1;
    }

    /// Takes a sample at an unmask.
    pub(super) fn sample(&mut self, now: Ns) {
        let (packets, bytes, events) = (self.packets, self.bytes, self.events);
        if let Some(step) = self.adaptive.sample(Sample { at: now, packets, bytes, events }) {
            (self.time, self.frames) = step;
        }
        self.coalesced = 0;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Feeds one sample of 64 interrupts for each pair of its length in microseconds and its packets.
    fn feed(adaptive: &mut Adaptive, rounds: &[(Ns, u64)]) -> Vec<usize> {
        let mut now = Sample::default();
        adaptive.sample(now);
        let mut places = Vec::new();
        for &(microseconds, packets) in rounds {
            now.at += microseconds * 1000;
            now.packets += packets;
            now.bytes += packets * 100;
            now.events += EVENTS;
            adaptive.sample(now);
            places.push(adaptive.at);
            if adaptive.start.is_none() {
                adaptive.sample(now);
            }
        }
        places
    }

    #[test]
    fn where_nothing_makes_a_difference_it_goes_to_and_fro_and_then_rests() {
        let mut adaptive = Adaptive::receive(true);
        let places = feed(&mut adaptive, &[(4000, 200); 30]);
        let steps = |places: &[usize]| places.windows(2).filter(|pair| pair[0] != pair[1]).count();
        assert_eq!(steps(&places[..10]), 9, "{places:?}");
        assert_eq!(steps(&places[10..20]), 0, "tired: {places:?}");
        assert!(steps(&places[20..]) > 5 && places.iter().all(|&place| place <= 1), "{places:?}");
    }

    #[test]
    fn fewer_interrupts_for_the_same_packets_are_better() {
        let mut adaptive = Adaptive::receive(true);
        // Each step up the table doubles the time that 64 interrupts take.
        let mut now = Sample::default();
        let mut most = 0;
        for _ in 0..40 {
            adaptive.sample(now);
            let length = 500 << adaptive.at;
            now.at += length * 1000;
            now.packets += length / 10;
            now.bytes += length * 10;
            now.events += EVENTS;
            adaptive.sample(now);
            most = most.max(adaptive.at);
        }
        assert!(most >= 3, "{most}");
    }

    #[test]
    fn less_than_64_interrupts_decide_nothing() {
        let mut adaptive = Adaptive::receive(false);
        for i in 0..EVENTS {
            let sample = Sample { at: i * 1_000_000, packets: i * i, bytes: i * i * i, events: i };
            assert_eq!(adaptive.sample(sample), None);
        }
    }
}
