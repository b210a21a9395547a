//! The remote end of a wire: sends datagrams on a fixed schedule, regardless of the answers, and times the answers.
//!
//! Each datagram carries its due time, so its latency includes any delay of the sender itself.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};

use napkin_engine::sched;
use napkin_measure::{Latency, PublishedEstimator};
use napkin_nic::PacketQueue;
use napkin_policy::{MILLISECOND, Ns};
use napkin_stack::FrameBuilder;

use crate::client_end::{ClientCpu, ClientEnd};
use crate::error::BenchError;
use crate::options::{Options, Placement};
use crate::serving::{PEER, US};

/// Delay before the first frame, so that the answering side is running by then.
const START_DELAY: Ns = 50 * MILLISECOND;
/// How late the scheduler of this host may make a sender. A sender that is later cannot keep up with its schedule.
const MAX_LAG: Ns = 10 * MILLISECOND;
/// Offset of the payload: behind Ethernet, IPv4 without options, and UDP.
const PAYLOAD_OFFSET: usize = 14 + 20 + 8;
/// Longest payload, in bytes.
const MAX_PAYLOAD: usize = 400;

/// The sending end of the wire: its queue, its datagrams and their period, and its CPU.
pub(crate) struct Sender {
    pub(crate) queue: Box<dyn PacketQueue>,
    /// Time from one datagram to the next.
    pub(crate) period: Ns,
    /// The UDP port of both ends.
    pub(crate) port: u16,
    /// Payload in bytes: from 8, the size of the due time, to [`MAX_PAYLOAD`].
    pub(crate) payload: usize,
    /// The CPU it runs on.
    pub(crate) cpu: ClientCpu,
}

/// State shared by the sender's thread and the thread that measures.
#[derive(Debug, Default)]
pub(crate) struct Shared {
    /// Whether answers that arrive now are recorded.
    pub(crate) measure: AtomicBool,
    /// When the first frame was due, and when the next unsent frame is due; 0 before the sender begins.
    first: AtomicU64,
    next: AtomicU64,
    pub(crate) stop: AtomicBool,
}

impl Shared {
    /// Returns how many frames were due by a time, at one per period, whether or not the sender kept up.
    pub(crate) fn due(&self, period: Ns, now: Ns) -> u64 {
        match self.first.load(Relaxed) {
            0 => 0,
            first => now.checked_sub(first).map_or(0, |since| since / period.max(1) + 1),
        }
    }

    /// Whether the sender is later at this time than scheduling noise explains.
    pub(crate) fn is_behind(&self, now: Ns) -> bool {
        let next = self.next.load(Relaxed);
        next != 0 && now.saturating_sub(next) > MAX_LAG
    }
}

/// Returns a CPU besides those of the queue, of the application and, with `has_poller`, of its poller.
pub(crate) fn own_cpu(options: &Options, has_poller: bool) -> Option<usize> {
    let Placement { queue, other, poller } = options.placement();
    let taken = [Some(queue), Some(other), has_poller.then_some(poller)];
    let usable = sched::usable_cpus();
    let cpus = if options.cpus.is_empty() { &usable } else { &options.cpus };
    cpus.iter().copied().find(|cpu| !taken.contains(&Some(*cpu)))
}

/// Where such a sender runs: on a CPU of its own if there is one, otherwise on any of the given CPUs.
pub(crate) fn client_cpu(options: &Options, has_poller: bool) -> ClientCpu {
    match own_cpu(options, has_poller) {
        Some(cpu) => ClientCpu::Own(cpu),
        None => ClientCpu::Shared(options.cpus.clone()),
    }
}

impl Sender {
    /// Sends until [`Shared`] says stop, and returns the latencies of the answers.
    ///
    /// # Errors
    /// If its device disappears.
    pub(crate) fn run(self, shared: &Shared) -> Result<(Latency, PublishedEstimator), BenchError> {
        let Sender { queue, period, port, payload, cpu } = self;
        let mut end = ClientEnd::new(queue, &cpu)?;
        let builder = FrameBuilder::new(PEER, US);
        let (mut frame, mut bytes) = ([0; PAYLOAD_OFFSET + MAX_PAYLOAD], [0; MAX_PAYLOAD]);
        let (mut latency, mut published) = (Latency::new(), PublishedEstimator::new());
        let mut due = napkin_engine::now() + START_DELAY;
        shared.first.store(due, Relaxed);
        shared.next.store(due, Relaxed);
        while !shared.stop.load(Relaxed) {
            let now = napkin_engine::now();
            let measured = shared.measure.load(Relaxed);
            for was_due in end.poll(now)?.filter_map(|frame| due_time(&frame, port)) {
                if let Some(took) = now.checked_sub(was_due).filter(|_| measured) {
                    latency.record(took);
                    published.record(took);
                }
            }
            if due <= now {
                bytes[..8].copy_from_slice(&due.to_be_bytes());
                let length = builder.udp(&mut frame, port, port, &bytes[..payload]);
                let length = length.map_err(|error| BenchError::Usage(error.to_string()))?;
                end.send(&frame[..length], now);
                due += period;
                shared.next.store(due, Relaxed);
            } else {
                end.pause(now, due);
            }
        }
        Ok((latency, published))
    }
}

/// Returns the due time that a request or its answer carries; `None` for any other frame.
fn due_time(frame: &[u8], port: u16) -> Option<Ns> {
    let is_udp = frame.get(12..14)? == [8, 0] && *frame.get(23)? == 17;
    let ports = frame.get(34..38)?.as_chunks::<2>().0;
    let answers = is_udp && ports.iter().all(|it| *it == port.to_be_bytes());
    let stamp = frame.get(PAYLOAD_OFFSET..)?.first_chunk()?;
    answers.then(|| Ns::from_be_bytes(*stamp))
}

/// Turns a request into its answer in place, and returns whether it was a request. It swaps the addresses; both
/// ports are equal, so no checksum changes.
pub(crate) fn turn_into_answer(frame: &mut [u8], port: u16) -> bool {
    if due_time(frame, port).is_none() {
        return false;
    }
    let (first, second) = frame.split_at_mut(6);
    first.swap_with_slice(&mut second[..6]);
    let (first, second) = frame.split_at_mut(30);
    first[26..].swap_with_slice(&mut second[..4]);
    true
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_third_cpu_is_the_sender_s_where_nobody_polls_there() {
        let own = |cpus: &[usize], has_poller| {
            own_cpu(&Options { cpus: cpus.to_vec(), ..Options::default() }, has_poller)
        };
        assert_eq!((own(&[5, 3, 9], true), own(&[5, 3, 9], false)), (None, Some(9)));
        assert_eq!((own(&[5, 3, 9, 1], true), own(&[5, 3, 9, 1], false)), (Some(1), Some(9)));
        assert_eq!((own(&[5, 3], false), own(&[5], false)), (None, None));
        let few = Options { cpus: vec![5, 3], ..Options::default() };
        assert_eq!(client_cpu(&few, false), ClientCpu::Shared(vec![5, 3]));
    }

    #[test]
    fn what_falls_due_is_the_schedule_s_and_a_sender_that_does_not_keep_it_is_behind() {
        let shared = Shared::default();
        assert_eq!((shared.due(10, 1_000), shared.is_behind(Ns::MAX)), (0, false), "not begun");
        shared.first.store(1_000, Relaxed);
        shared.next.store(1_000, Relaxed);
        assert_eq!([999, 1_000, 1_009, 1_010].map(|now| shared.due(10, now)), [0, 1, 1, 2]);
        assert!(!shared.is_behind(1_000 + MAX_LAG) && shared.is_behind(1_001 + MAX_LAG));
        shared.next.store(1_010, Relaxed);
        assert!(!shared.is_behind(1_001 + MAX_LAG));
    }

    #[test]
    fn an_answer_says_when_its_request_was_due_and_anything_else_is_none() {
        let mut bytes = [0; 512];
        const PORT: u16 = 54_321;
        let mut payload = [0; MAX_PAYLOAD];
        payload[..8].copy_from_slice(&77_u64.to_be_bytes());
        let length = FrameBuilder::new(US, PEER).udp(&mut bytes, PORT, PORT, &payload);
        let length = length.expect("it fits");
        assert_eq!(due_time(&bytes[..length], PORT), Some(77));
        (0..PAYLOAD_OFFSET + 8)
            .for_each(|length| assert_eq!(due_time(&bytes[..length], PORT), None));
        assert!(turn_into_answer(&mut bytes[..length], PORT));
        let (mut back, end) = ([0; 512], length);
        let length = FrameBuilder::new(PEER, US).udp(&mut back, PORT, PORT, &payload);
        assert_eq!(bytes[..end], back[..length.expect("it fits")], "what the other end would send");
        let length = FrameBuilder::new(US, PEER).udp(&mut bytes, PORT, 9, &payload);
        assert_eq!(due_time(&bytes[..length.expect("it fits")], PORT), None);
    }
}
