//! A datagram sender on a CPU of the modelled machine: it sleeps until absolute times and sends bursts.
//!
//! On an emulator whose CPUs share one clock, the generator's own work slows the receiver down. So it is a thread
//! of the machine, not a client outside of its time. Its frames reach the receiving queue directly: the other side
//! of its card is not modelled. The card takes a little longer than the send call: within a burst, the next frame's
//! stamp precedes the arrival of the one before.

use napkin_core::Ns;
use napkin_machine::{Act, Kind, Machine, Packet, Program, ThreadId};

use napkin_traffic::Rng;

/// Bytes of a frame on the wire: 60 and its checksum.
const FRAME: u32 = 64;

/// The schedule of the frames: bursts at equal intervals, optionally in trains with silence in between.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Arrivals {
    /// Frames back to back; at least 1.
    pub burst: u64,
    /// Time from the start of a burst to the start of the next.
    pub gap: Ns,
    /// Bursts in a train; 0 for a train without an end.
    pub train_bursts: u64,
    /// Silence after a train, in addition to the last gap.
    pub off: Ns,
}

impl Arrivals {
    /// Returns when a frame is due, relative to the first one.
    pub fn due(&self, frame: u64) -> Ns {
        let burst = frame / self.burst.max(1);
        let trains = burst.checked_div(self.train_bursts).unwrap_or(0);
        burst * self.gap + trains * self.off
    }
}

#[derive(Debug, Clone, Copy)]
enum At {
    Due,
    GoingToSleep,
    Sleeping,
    Sending { stamp: Ns },
}

/// The sender's program. It sends the warm-up frames first, then those of the scenario.
#[derive(Debug)]
pub(super) struct Generator {
    flow: u32,
    /// Another flow, which gets the last warm-up frame and every n-th of the other frames; with 0, none of these.
    pub second: Option<(u32, u64)>,
    /// Time from a frame's stamp to its arrival.
    send: Ns,
    /// Time from there to the arrival of the next frame of a burst; at most `send`.
    next: Ns,
    /// Time to go to sleep.
    sleep: Ns,
    /// Time from waking up to the first stamp.
    wake: Ns,
    /// When the warm-up frames are sent.
    warm_up: Vec<Ns>,
    /// When the first of the other frames is sent.
    start: Ns,
    arrivals: Arrivals,
    /// Upper limit of each burst's random delay, and the seed of the draws.
    pub late: (Ns, u64),
    /// Upper limit of each send's random extra time, and the source of the draws.
    pub slower: (Ns, Rng),
    total: u64,
    sent: u64,
    at: At,
}

impl Generator {
    /// Returns a generator that sends a frame to `flow` at each time in `warm_up`, and `total` frames from `start`
    /// on.
    pub(super) fn new(
        flow: u32,
        [send, next, sleep, wake]: [Ns; 4],
        warm_up: Vec<Ns>,
        start: Ns,
        arrivals: Arrivals,
        total: u64,
    ) -> Self {
        let total = total + warm_up.len() as u64;
        Generator {
            flow,
            second: None,
            send,
            next: next.min(send),
            sleep,
            wake,
            warm_up,
            start,
            arrivals,
            late: (0, 0),
            slower: (0, Rng::new(0)),
            total,
            sent: 0,
            at: At::Due,
        }
    }

    /// Returns the flow of the next frame.
    fn flow(&self) -> u32 {
        let Some((second, every)) = self.second else { return self.flow };
        let warm_up = self.warm_up.len() as u64;
        let its = match (self.sent + 1).checked_sub(warm_up + 1) {
            None => self.sent + 1 == warm_up,
            Some(frame) => (frame + 1).checked_rem(every) == Some(0),
        };
        if its { second } else { self.flow }
    }

    /// Returns when the next frame is due.
    fn due(&self) -> Ns {
        match self.warm_up.get(self.sent as usize) {
            Some(time) => *time,
            None => {
                let frame = self.sent - self.warm_up.len() as u64;
                self.start + self.arrivals.due(frame) + self.late(frame)
            }
        }
    }
}

impl Generator {
    /// Returns the random delay of a frame, which is the same for its whole burst.
    fn late(&self, frame: u64) -> Ns {
        let (most, seed) = self.late;
        if most == 0 {
            return 0;
        }
        Rng::new(seed.wrapping_add(frame / self.arrivals.burst.max(1))).below(most + 1)
    }

    /// Returns the random extra time of the next send.
    fn slower(&mut self) -> Ns {
        let (most, rng) = &mut self.slower;
        if *most == 0 { 0 } else { rng.below(*most + 1) }
    }
}

impl Program for Generator {
    fn resume(&mut self, machine: &mut Machine<'_>, me: ThreadId) -> Act {
        let now = machine.now();
        match self.at {
            At::Due if self.sent == self.total => Act::Exit,
            At::Due if now < self.due() => {
                self.at = At::GoingToSleep;
                Act::Kernel(self.sleep)
            }
            // A sleeping thread may be woken early.
            At::GoingToSleep | At::Sleeping if now < self.due() => {
                self.at = At::Sleeping;
                Act::Sleep(self.due())
            }
            At::Sleeping => {
                self.at = At::Due;
                Act::Kernel(self.wake)
            }
            At::Due | At::GoingToSleep => {
                self.at = At::Sending { stamp: now };
                Act::Kernel(self.send + self.slower())
            }
            At::Sending { stamp } => {
                let frame = Packet::new(self.flow(), Kind::Data, FRAME, self.sent, stamp);
                machine.send_from(me, frame);
                self.sent += 1;
                if self.sent < self.total && now >= self.due() {
                    self.at = At::Sending { stamp: now - (self.send - self.next) };
                    return Act::Kernel(self.next + self.slower());
                }
                self.at = At::Due;
                Act::Kernel(0)
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_second_flow_has_the_last_frame_ahead_and_every_fiftieth_of_the_others() {
        let arrivals = Arrivals { burst: 1, gap: 1, train_bursts: 0, off: 0 };
        let flows = |every: u64| {
            let mut generator = Generator::new(7, [1; 4], vec![1, 2, 3], 10, arrivals, 100);
            generator.second = Some((8, every));
            let flow = |sent: u64| {
                generator.sent = sent;
                generator.flow()
            };
            let second = (0..103).map(flow).enumerate().filter(|(_, flow)| *flow == 8);
            second.map(|(sent, _)| sent).collect::<Vec<_>>()
        };
        assert_eq!(flows(50), [2, 52, 102]);
        assert_eq!(flows(0), [2]);
    }

    #[test]
    fn bursts_stand_a_gap_apart() {
        let arrivals = Arrivals { burst: 16, gap: 1_000_000, train_bursts: 0, off: 0 };
        let due: Vec<Ns> = [0, 15, 16, 47].map(|frame| arrivals.due(frame)).into();
        assert_eq!(due, [0, 0, 1_000_000, 2_000_000]);
    }

    #[test]
    fn a_train_is_followed_by_silence_after_its_last_gap() {
        let arrivals = Arrivals { burst: 1, gap: 50_000, train_bursts: 100, off: 19_950_000 };
        assert_eq!(arrivals.due(99), 4_950_000);
        assert_eq!(arrivals.due(100), 24_950_000, "20 ms after the last one");
    }
}
