//! Several queues of a device as one, for a client that polls a single queue. It sends each frame to the queue of
//! its flow, as a card spreads received frames, and receives from all queues in turn.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;

use napkin_core::Work;
use napkin_nic::{Frame, PacketQueue, QueueCounters, SendError, Toeplitz, Transmitter};
use napkin_policy::Ns;
use rustix::event::epoll;

/// The queues as one. Each queue also keeps its own counters.
pub(crate) struct MultiQueue {
    queues: Vec<Box<dyn PacketQueue>>,
    /// Index of the queue that is polled first.
    next: usize,
    /// An epoll descriptor that is readable while the interrupt of any queue is.
    interrupt: OwnedFd,
    wire: Arc<FlowTransmitter>,
}

impl MultiQueue {
    /// Joins at least one queue.
    ///
    /// # Errors
    /// If the operating system cannot create the epoll descriptor.
    pub(crate) fn new(queues: Vec<Box<dyn PacketQueue>>) -> io::Result<MultiQueue> {
        let interrupt = epoll::create(epoll::CreateFlags::CLOEXEC)?;
        for (number, queue) in queues.iter().enumerate() {
            let data = epoll::EventData::new_u64(number as u64);
            epoll::add(&interrupt, queue.interrupt(), data, epoll::EventFlags::IN)?;
        }
        let wires = queues.iter().map(|it| it.transmitter()).collect();
        let wire = FlowTransmitter { wires, hash: Toeplitz::random(), counters: Arc::default() };
        Ok(MultiQueue { queues, next: 0, interrupt, wire: Arc::new(wire) })
    }
}

impl PacketQueue for MultiQueue {
    fn poll(&mut self, budget: u16, now: Ns, into: &mut Vec<Frame>) -> Work {
        let (mut work, before) = (Work { rx: 0, tx: 0 }, into.len());
        let count = self.queues.len();
        for place in self.next..self.next + count {
            let one = self.queues[place % count].poll(budget - work.rx, now, into);
            work = Work { rx: work.rx + one.rx, tx: work.tx.saturating_add(one.tx) };
        }
        // Rotate the first queue, so that one that is always full cannot take the whole of every budget.
        self.next = (self.next + 1) % count;
        let frames = &into[before..];
        let counters = &self.wire.counters;
        counters.rx_packets.fetch_add(frames.len() as u64, Relaxed);
        counters.rx_bytes.fetch_add(frames.iter().map(|it| it.len() as u64).sum(), Relaxed);
        work
    }

    fn mask(&mut self) {
        self.queues.iter_mut().for_each(|queue| queue.mask());
    }

    fn unmask(&mut self, now: Ns) -> bool {
        let waits = self.queues.iter_mut().any(|queue| queue.unmask(now));
        if waits {
            self.mask();
        }
        waits
    }

    fn interrupt(&self) -> BorrowedFd<'_> {
        self.interrupt.as_fd()
    }

    fn acknowledge(&mut self) {
        self.queues.iter_mut().for_each(|queue| queue.acknowledge());
        self.wire.counters.interrupts_rx.fetch_add(1, Relaxed);
    }

    fn gone(&self) -> bool {
        self.queues.iter().any(|queue| queue.gone())
    }

    fn transmitter(&self) -> Arc<dyn Transmitter> {
        Arc::clone(&self.wire) as Arc<dyn Transmitter>
    }

    fn counters(&self) -> Arc<QueueCounters> {
        Arc::clone(&self.wire.counters)
    }
}

/// The transmit side: selects the queue by the hash of a frame's flow.
struct FlowTransmitter {
    wires: Vec<Arc<dyn Transmitter>>,
    hash: Toeplitz,
    counters: Arc<QueueCounters>,
}

impl FlowTransmitter {
    fn count(&self, frame: &[u8], sent: Result<(), SendError>) -> Result<(), SendError> {
        let (packets, bytes) = (u64::from(sent.is_ok()), frame.len() as u64);
        self.counters.tx_packets.fetch_add(packets, Relaxed);
        self.counters.tx_bytes.fetch_add(packets * bytes, Relaxed);
        self.counters.tx_dropped.fetch_add(1 - packets, Relaxed);
        sent
    }

    fn transmitter_of(&self, frame: &[u8]) -> &dyn Transmitter {
        &*self.wires[self.hash.queue_of(frame, self.wires.len())]
    }
}

impl Transmitter for FlowTransmitter {
    fn send(&self, frame: &[u8], now: Ns) -> Result<(), SendError> {
        self.count(frame, self.transmitter_of(frame).send(frame, now))
    }

    fn post(&self, frame: &[u8], now: Ns) -> Result<(), SendError> {
        self.count(frame, self.transmitter_of(frame).post(frame, now))
    }

    fn flush(&self) {
        self.wires.iter().for_each(|wire| wire.flush());
    }

    fn in_flight(&self) -> usize {
        self.wires.iter().map(|wire| wire.in_flight()).sum()
    }
}

#[cfg(test)]
mod tests {
    use napkin_nic::{CableQueue, EndConfig, Pool, cable};
    use rustix::event::{PollFd, PollFlags, Timespec, poll};

    use super::*;

    /// The outline of a datagram; each port is a separate flow.
    fn frame(port: u16) -> [u8; 60] {
        let mut frame = [0; 60];
        frame[12..15].copy_from_slice(&[8, 0, 0x45]);
        frame[23] = 17;
        frame[26..34].copy_from_slice(&[10, 0, 0, 1, 10, 0, 0, 2]);
        frame[34..36].copy_from_slice(&port.to_be_bytes());
        frame
    }

    /// Three cables as one, and their other ends.
    fn multi() -> (MultiQueue, Vec<CableQueue>) {
        let end = || EndConfig { queues: 1, ring: 64, pool: Pool::new(256) };
        let cables = (0..3).map(|_| cable(end(), end()).expect("a cable"));
        let (near, far): (Vec<_>, Vec<_>) = cables.unzip();
        let boxed = |queue| Box::new(queue) as Box<dyn PacketQueue>;
        let multi = MultiQueue::new(near.into_iter().flatten().map(boxed).collect());
        (multi.expect("a descriptor"), far.into_iter().flatten().collect())
    }

    fn rings(queue: &MultiQueue) -> bool {
        let mut fds = [PollFd::from_borrowed_fd(queue.interrupt(), PollFlags::IN)];
        poll(&mut fds, Some(&Timespec::default())).expect("it can be asked") > 0
    }

    #[test]
    fn a_flow_has_one_queue_and_flows_have_several() {
        let (multi, mut far) = multi();
        let wire = multi.transmitter();
        for port in (0..32).chain(0..32) {
            wire.send(&frame(port), 0).expect("room");
        }
        let mut seen = Vec::new();
        for queue in &mut far {
            let mut frames = Vec::new();
            queue.poll(64, 0, &mut frames);
            let ports: Vec<u8> = frames.iter().map(|it| it[35]).collect();
            let (first, second) = ports.split_at(ports.len() / 2);
            assert_eq!(first, second, "each flow twice, in its order");
            seen.extend_from_slice(first);
        }
        seen.sort_unstable();
        assert_eq!(seen, (0..32).collect::<Vec<u8>>());
        let counts = multi.counters().read();
        assert_eq!((counts.tx_packets, counts.tx_bytes, counts.tx_dropped), (64, 64 * 60, 0));
    }

    #[test]
    fn packet_in_interrupt_poll_of_all_unmask() {
        let (mut multi, far) = multi();
        assert!(!multi.unmask(0) && !rings(&multi));
        for queue in &far {
            (0..3).for_each(|at| queue.transmitter().send(&frame(at), 0).expect("room"));
        }
        assert!(rings(&multi), "whichever of them it is");
        multi.acknowledge();
        multi.mask();
        assert!(!rings(&multi));
        let mut frames = Vec::new();
        assert_eq!(multi.poll(4, 0, &mut frames).rx, 4);
        assert!(multi.unmask(0), "five are left");
        assert_eq!(multi.poll(4, 0, &mut frames).rx, 4);
        assert_eq!(multi.poll(4, 0, &mut frames).rx, 1);
        assert!(!multi.unmask(0));
        assert!(!multi.gone());
        assert_eq!(multi.counters().read().rx_packets, 9);
    }

    #[test]
    fn no_queue_has_all_of_every_budget() {
        let (mut multi, far) = multi();
        for queue in &far {
            (0..30).for_each(|at| queue.transmitter().send(&frame(at), 0).expect("room"));
        }
        let mut frames = Vec::new();
        (0..3).for_each(|_| assert_eq!(multi.poll(10, 0, &mut frames).rx, 10));
        assert!(far.iter().all(|it| it.counters().read().tx_packets == 30));
        let left: Vec<u16> =
            multi.queues.iter_mut().map(|it| it.poll(64, 0, &mut frames).rx).collect();
        assert_eq!(left, [20, 20, 20]);
    }
}
