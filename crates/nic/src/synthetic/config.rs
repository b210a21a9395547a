//! The configuration of a synthetic queue, its split over several queues, and its checks.

use napkin_policy::{NEVER, Ns};

use super::arrivals::Arrivals;
use super::error::{ConfigError, MAX_RING};
use super::moderation::Moderation;
use napkin_traffic::splitmix;

/// How frames are spread over flows.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum FlowChoice {
    /// Frames go to the flows in turn.
    #[default]
    RoundRobin,
    /// Each frame's flow is drawn from the seed. Dropped frames do not change the flows of the others.
    Uniform,
}

/// The flows of a queue: `count` numbers from `first` on, `stride` apart.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Flows {
    /// The first flow's number.
    pub first: u32,
    /// Number of flows; at least 1.
    pub count: u32,
    /// Distance from one number to the next. The queues of a device interleave their flows by it.
    pub stride: u32,
    /// How frames are spread over the flows.
    pub choice: FlowChoice,
}

impl Default for Flows {
    fn default() -> Self {
        Flows { first: 0, count: 1, stride: 1, choice: FlowChoice::RoundRobin }
    }
}

impl Flows {
    /// The flow of frame `seq`. Depends on nothing else, so that dropped frames do not matter.
    pub(super) fn of(&self, seed: u64, seq: u64) -> u32 {
        let n = match self.choice {
            FlowChoice::RoundRobin => seq % u64::from(self.count.max(1)),
            FlowChoice::Uniform => splitmix::scale(splitmix::at(seed, seq), u64::from(self.count)),
        };
        self.first.wrapping_add(self.stride.wrapping_mul(n as u32))
    }
}

/// A synthetic queue's configuration.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct SyntheticConfig {
    /// The seed of all randomness. The same seed and the same calls give the same frames.
    pub seed: u64,
    /// Number of the random stream: tells the queues of one device, which share a seed, apart.
    pub stream: u32,
    /// When frames arrive.
    pub arrivals: Arrivals,
    /// When arrivals begin, on the clock of the polls, ns. Frames that fell due between the start and the first
    /// poll are in the ring or dropped by then.
    pub start: Ns,
    /// When arrivals end, ns: none comes at or after this time. [`NEVER`] for no end.
    pub until: Ns,
    /// The total number of scheduled frames, including those that are dropped or fall into a time in which the
    /// source is stopped; `u64::MAX` for no end.
    pub count: u64,
    /// The flows of the frames.
    pub flows: Flows,
    /// Size of the receive ring in frames, from 1 to [`MAX_RING`]; frames that find it full are dropped.
    pub rx_ring: u32,
    /// Size of the transmit ring in frames, from 1 to [`MAX_RING`]; a completed transmission occupies its place
    /// until it is reaped.
    pub tx_ring: u32,
    /// Time a transmission takes to complete, ns.
    pub tx_ns: Ns,
    /// Whether completed transmissions raise interrupts. Without them, completions are reaped only by polls that
    /// have another cause, and a full ring stays full until then.
    pub tx_interrupts: bool,
    /// When received frames raise interrupts.
    pub moderation: Moderation,
}

impl Default for SyntheticConfig {
    /// A silent queue with rings of 512 frames, transmissions of 1 us and no moderation.
    fn default() -> Self {
        SyntheticConfig {
            seed: 0,
            stream: 0,
            arrivals: Arrivals::Silent,
            start: 0,
            until: NEVER,
            count: u64::MAX,
            flows: Flows::default(),
            rx_ring: 512,
            tx_ring: 512,
            tx_ns: 1_000,
            tx_interrupts: true,
            moderation: Moderation::default(),
        }
    }
}

impl SyntheticConfig {
    /// Spreads one device's traffic over `queues` queues by flow, as receive-side scaling does. Queue *i* gets the
    /// flows *i*, *i + queues* and so on, their share of the rate, and a stream of its own; with fewer flows than
    /// queues some queues stay silent. Evenly spaced arrivals interleave. Every queue of [`Arrivals::AfterUnmask`]
    /// has its own loop.
    pub fn split(&self, queues: u32) -> Vec<SyntheticConfig> {
        // The requests of a flood cannot be divided further; a queue without a request is silent.
        let active = match self.arrivals {
            Arrivals::Flood { outstanding, .. } => {
                queues.min(self.flows.count).min(u32::from(outstanding))
            }
            _ => queues.min(self.flows.count),
        };
        (0..queues).map(|queue| self.share(queue, active)).collect()
    }

    fn share(&self, queue: u32, active: u32) -> SyntheticConfig {
        let mut config = SyntheticConfig { stream: queue, ..*self };
        if queue >= active {
            config.arrivals = Arrivals::Silent;
            return config;
        }
        config.flows.first = self.flows.first.wrapping_add(self.flows.stride.wrapping_mul(queue));
        config.flows.stride = self.flows.stride.wrapping_mul(active);
        config.flows.count = part(self.flows.count.into(), queue, active) as u32;
        if self.count != u64::MAX {
            config.count = part(self.count, queue, active);
        }
        let share = f64::from(config.flows.count) / f64::from(self.flows.count);
        let after = |per_second: f64, size: u32| {
            (1e9 / per_second * f64::from(size) * f64::from(queue)) as Ns
        };
        match &mut config.arrivals {
            Arrivals::Fixed { per_second } => {
                config.start = self.start.saturating_add(after(*per_second, 1));
                *per_second *= share;
            }
            Arrivals::Bursts { per_second, size, .. } => {
                config.start = self.start.saturating_add(after(*per_second, *size));
                *per_second *= share;
            }
            Arrivals::Poisson { per_second } => *per_second *= share,
            Arrivals::Flood { outstanding, .. } => {
                *outstanding = part((*outstanding).into(), queue, active) as u16;
            }
            Arrivals::AfterUnmask { .. } | Arrivals::Silent => {}
        }
        config
    }

    pub(super) fn check(&self) -> Result<(), ConfigError> {
        for (name, size) in [("receive", self.rx_ring), ("transmit", self.tx_ring)] {
            if !(1..=MAX_RING).contains(&size) {
                return Err(ConfigError::Ring { name, size });
            }
        }
        if self.flows.count == 0 {
            return Err(ConfigError::NoFlows);
        }
        if self.moderation.frames > self.rx_ring {
            let (frames, ring) = (self.moderation.frames, self.rx_ring);
            return Err(ConfigError::FramesBeyondRing { frames, ring });
        }
        Ok(())
    }
}

/// The share of part `index` when `whole` is divided into `parts` as evenly as possible.
fn part(whole: u64, index: u32, parts: u32) -> u64 {
    let parts = u64::from(parts.max(1));
    whole / parts + u64::from(u64::from(index) < whole % parts)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_device_is_split_by_flows_and_nothing_is_lost() {
        let device = SyntheticConfig {
            arrivals: Arrivals::Fixed { per_second: 1e6 },
            count: 10,
            flows: Flows { count: 5, ..Flows::default() },
            ..SyntheticConfig::default()
        };
        let queues = device.split(3);
        assert_eq!(queues.iter().map(|q| q.count).sum::<u64>(), 10);
        let mut flows: Vec<u32> = Vec::new();
        for queue in &queues {
            flows.extend((0..u64::from(queue.flows.count)).map(|seq| queue.flows.of(0, seq)));
        }
        flows.sort_unstable();
        assert_eq!(flows, [0, 1, 2, 3, 4]);
        assert_eq!(queues[0].arrivals, Arrivals::Fixed { per_second: 0.4e6 });
        assert_eq!(queues[2].start, 2_000);
    }

    #[test]
    fn queues_without_a_flow_or_a_request_are_silent() {
        let device = SyntheticConfig {
            arrivals: Arrivals::Flood { turnaround: 1, outstanding: 3 },
            flows: Flows { count: 2, ..Flows::default() },
            ..SyntheticConfig::default()
        };
        let arrivals: Vec<Arrivals> = device.split(3).iter().map(|q| q.arrivals).collect();
        let flood = |outstanding| Arrivals::Flood { turnaround: 1, outstanding };
        assert_eq!(arrivals, [flood(2), flood(1), Arrivals::Silent]);
    }

    #[test]
    fn flows_are_a_function_of_the_sequence_number() {
        let flows = Flows { first: 10, count: 3, stride: 2, choice: FlowChoice::RoundRobin };
        assert_eq!([0, 1, 2, 3].map(|seq| flows.of(7, seq)), [10, 12, 14, 10]);
        let uniform = Flows { choice: FlowChoice::Uniform, ..flows };
        let seen: Vec<u32> = (0..100).map(|seq| uniform.of(7, seq)).collect();
        assert!(seen.iter().all(|flow| [10, 12, 14].contains(flow)));
        assert!([10, 12, 14].iter().all(|flow| seen.contains(flow)));
    }
}
