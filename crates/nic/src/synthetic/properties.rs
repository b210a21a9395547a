//! Properties of the synthetic queue, for any configuration and any sequence of calls.

use napkin_core::Work;
use napkin_policy::Ns;
use proptest::prelude::*;

use super::*;
use crate::{Frame, PacketQueue, Pool, Transmitter};

/// A queue and the frames of its last poll.
struct Bench {
    queue: SyntheticQueue,
    frames: Vec<Frame>,
}

impl Bench {
    fn new(config: SyntheticConfig, buffers: usize) -> Bench {
        let template = |flow: u32, seq: u64, buf: &mut [u8]| {
            buf[..4].copy_from_slice(&flow.to_be_bytes());
            buf[4..12].copy_from_slice(&seq.to_be_bytes());
            14
        };
        let queue = SyntheticQueue::new(&config, Box::new(template), Pool::new(buffers), None);
        Bench { queue: queue.expect("a valid configuration"), frames: Vec::with_capacity(128) }
    }

    fn poll(&mut self, budget: u16, now: Ns) -> Work {
        self.frames.clear();
        self.queue.poll(budget, now, &mut self.frames)
    }
}

/// Any kind of arrivals except silence.
fn any_arrivals() -> impl Strategy<Value = Arrivals> {
    prop_oneof![
        (1e3..1e7).prop_map(|per_second| Arrivals::Fixed { per_second }),
        (1e3..1e7).prop_map(|per_second| Arrivals::Poisson { per_second }),
        (1e3..1e6, 1u32..32).prop_map(|(per_second, size)| Arrivals::Bursts {
            per_second,
            size,
            within: 20
        }),
        (1u64..5_000).prop_map(|gap| Arrivals::AfterUnmask { gap }),
        (0u64..5_000, 1u16..8)
            .prop_map(|(turnaround, outstanding)| Arrivals::Flood { turnaround, outstanding }),
    ]
}

#[derive(Debug, Clone, Copy)]
enum Call {
    Poll(u16),
    Mask,
    Unmask,
    Acknowledge,
    Send,
    Stop,
    Resume,
}

fn any_call() -> impl Strategy<Value = (Call, Ns)> {
    let call = prop_oneof![
        4 => (0u16..70).prop_map(Call::Poll),
        2 => Just(Call::Mask),
        2 => Just(Call::Unmask),
        1 => Just(Call::Acknowledge),
        3 => Just(Call::Send),
        1 => Just(Call::Stop),
        1 => Just(Call::Resume),
    ];
    (call, 0u64..200_000)
}

/// Makes the calls and returns the queue with a log of all answers and frames.
fn run(config: SyntheticConfig, buffers: usize, calls: &[(Call, Ns)]) -> (Bench, Vec<String>) {
    let mut bench = Bench::new(config, buffers);
    let control = bench.queue.control();
    let mut log = Vec::new();
    let mut now = 0;
    for &(call, later) in calls {
        now += later;
        match call {
            Call::Poll(budget) => {
                let work = bench.poll(budget, now);
                assert!(work.rx <= budget && bench.frames.len() <= usize::from(work.rx));
                assert!(work.rx == budget || bench.queue.pending() == 0);
                assert!(bench.frames.iter().all(|frame| frame.arrived() <= now));
                log.extend(bench.frames.iter().map(|f| format!("{} {:?}", f.arrived(), &**f)));
                log.push(format!("{work:?}"));
            }
            Call::Mask => bench.queue.mask(),
            Call::Unmask => {
                let waits = bench.queue.unmask(now);
                // Invariant 2: for all work that is pending or will come, there is an interrupt.
                let due = bench.queue.rx_interrupt().min(bench.queue.tx_interrupt());
                assert_eq!(waits, due <= now);
                assert!(waits || bench.queue.wire.alarm.wanted() <= due);
                log.push(format!("{waits}"));
            }
            Call::Acknowledge => bench.queue.acknowledge(),
            Call::Send => log.push(format!("{:?}", bench.queue.wire.send(&[0; 60], now))),
            Call::Stop => control.stop_at(now),
            Call::Resume => control.resume_at(now),
        }
    }
    (bench, log)
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn every_frame_ends_in_one_place(
        seed: u64, arrivals in any_arrivals(), rx_ring in 1u32..128, buffers in 0usize..80,
        usecs in 0u32..20, calls in prop::collection::vec(any_call(), 0..60),
    ) {
        let moderation = Moderation { usecs, frames: rx_ring / 2 };
        let config = SyntheticConfig { seed, arrivals, rx_ring, moderation, tx_ring: 4, ..SyntheticConfig::default() };
        let (bench, _) = run(config, buffers, &calls);
        let counts = bench.queue.counters().read();
        let ended = counts.rx_packets + counts.rx_dropped() + bench.queue.pending() as u64;
        prop_assert_eq!(bench.queue.control().offered(), ended);
        let sends = calls.iter().filter(|(call, _)| matches!(call, Call::Send)).count() as u64;
        prop_assert_eq!(counts.tx_packets + counts.tx_dropped, sends);
        prop_assert!(counts.tx_completions <= counts.tx_packets);
    }

    #[test]
    fn the_same_seed_and_calls_give_the_same_frames(
        seed: u64, arrivals in any_arrivals(), calls in prop::collection::vec(any_call(), 0..40),
    ) {
        let flows = Flows { count: 100, choice: FlowChoice::Uniform, ..Flows::default() };
        let config = SyntheticConfig { seed, arrivals, flows, ..SyntheticConfig::default() };
        let first = run(config, 256, &calls).1;
        prop_assert_eq!(first, run(config, 256, &calls).1);
    }
}
