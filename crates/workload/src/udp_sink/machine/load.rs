//! pktgen: frames of one flow at a fixed rate, regardless of losses.
//!
//! The kernel's generator keeps a schedule: the next frame is due one period after the last one was due, so a delay
//! does not lower the rate. The profile adds a random delay to each frame between its due time and the host's ring.
//! Frames do not overtake each other, so a late one delays those behind it.

use napkin_core::Ns;
use napkin_machine::{Client, Kind, Machine, Packet};

use crate::machine::frame::FRAME;
use napkin_traffic::Rng;

/// A packet generator with a fixed rate, regardless of losses.
#[derive(Debug)]
pub struct Pktgen {
    flow: u32,
    /// Time from one frame to the next, in nanoseconds.
    period: f64,
    /// Mean of the random delay of a frame, in nanoseconds.
    jitter: f64,
    /// When the next frame is due.
    due: f64,
    rng: Rng,
}

impl Pktgen {
    /// Returns a generator of `per_s` frames per second, which must be above 0. `jitter` is the mean of each
    /// frame's exponentially distributed delay; 0 for none.
    pub fn new(flow: u32, per_s: f64, jitter: Ns, rng: Rng) -> Self {
        Pktgen { flow, period: 1e9 / per_s, jitter: jitter as f64, due: 0.0, rng }
    }
}

impl Client for Pktgen {
    fn start(&mut self, machine: &mut Machine<'_>) {
        // The phase relative to the host's ticks is random.
        self.due = self.period * self.rng.unit();
        machine.client_timer(self.due as Ns, 0);
    }

    fn timer(&mut self, machine: &mut Machine<'_>, _: u64) {
        let now = machine.now();
        machine.request_due();
        let late = if self.jitter > 0.0 { self.rng.exponential(self.jitter) as Ns } else { 0 };
        machine.send_to_host_at(now + late, Packet::new(self.flow, Kind::Data, FRAME, 0, now));
        self.due += self.period;
        machine.client_timer(self.due as Ns, 0);
    }

    fn receive(&mut self, _: &mut Machine<'_>, _: Packet) {}
}
