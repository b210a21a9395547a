//! The receive side of an AF_XDP queue: takes frames off the receive ring, and puts buffers for the next ones into
//! the fill ring.
//!
//! A frame stays where the kernel put it: a poll returns the buffer itself, and another one takes its place in the
//! fill ring. If no other one is free, the frame is dropped and its buffer is reused, so that the kernel always has
//! as many buffers as at first and never runs out.
//!
//! The interrupt is the socket, readable while frames wait. The engine's one-shot readiness masks it, and arming it
//! again checks it by itself. The socket is watched by an epoll instance, together with netlink's link
//! notifications: a socket whose interface has gone never becomes readable again and reports nothing. While the
//! queue is masked and polls find frames, the socket is removed from that epoll instance, because the kernel wakes
//! a watched socket's waiters for each batch that arrives, masked or not; that costs it some percent of a frame.
//!
//! With [busy polling](super::BusyPoll), a poll that finds the ring empty has the kernel's NAPI instance polled once
//! and checks the ring again; that is the only system call of a poll, and there is none while there is work. (Every
//! 10 ms a poll also asks what was dropped and whether the interface has gone, whether or not it found frames.)

use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;

use napkin_core::Work;
use napkin_policy::{MILLISECOND, Ns};

use super::busy::{Busy, BusyVerdict};
use super::ring::{Consumer, Descriptor, Producer};
use super::socket::{CallResult, Dropped};
use super::transmitter::Wire;
use super::watch::Watch;
use crate::counters::add;
use crate::{
    ETHERNET_HEADER, FRAME_CAPACITY, Frame, PacketQueue, Pool, QueueCounters, Transmitter,
};

/// The interval at which the kernel is asked what it dropped and whether interfaces have changed, ns.
const CHECK_INTERVAL: Ns = 10 * MILLISECOND;

/// One queue of an AF_XDP device.
#[derive(Debug)]
pub struct XdpQueue {
    receive: Consumer<Descriptor>,
    fill: Fill,
    pool: Pool,
    watch: Watch,
    busy: Option<Busy>,
    /// Whether an interrupt came and no poll has found a frame since.
    interrupted: bool,
    last_check: Ns,
    dropped: Dropped,
    /// Whether the NIC writes into the buffers itself.
    zero_copy: bool,
    /// After the rings, whose mappings keep the socket open: once the wire is dropped, too, the kernel writes into
    /// no buffer.
    wire: Arc<Wire>,
}

/// The fill ring, and the buffers that the kernel has to receive into.
#[derive(Debug)]
struct Fill {
    ring: Producer<u64>,
    /// For each buffer of the pool, by number, whether it is lent to the kernel. A descriptor with another number
    /// is invalid.
    lent: Vec<bool>,
}

impl Fill {
    /// Lends the kernel a buffer. The ring has room, since it is as long as the number of lent buffers.
    fn lend(&mut self, buffer: u32) {
        if let Some(lent) = self.lent.get_mut(buffer as usize) {
            *lent = true;
        }
        self.ring.push(u64::from(buffer) * FRAME_CAPACITY as u64);
    }

    /// Takes back a descriptor's buffer: returns its number, the frame's offset in it and the frame's length.
    /// `None` if the buffer was not lent to the kernel.
    fn take_back(&mut self, descriptor: Descriptor) -> Option<(u32, usize, usize)> {
        let capacity = FRAME_CAPACITY as u64;
        let buffer = usize::try_from(descriptor.address / capacity).ok()?;
        let lent = self.lent.get_mut(buffer).filter(|lent| **lent)?;
        *lent = false;
        let start = (descriptor.address % capacity) as usize;
        Some((buffer as u32, start, descriptor.length as usize))
    }

    /// The numbers of all lent buffers.
    fn buffers(&self) -> impl Iterator<Item = u32> {
        (0..).zip(&self.lent).filter(|(_, lent)| **lent).map(|(buffer, _)| buffer)
    }
}

impl XdpQueue {
    pub(super) fn new(
        wire: Arc<Wire>,
        receive: Consumer<Descriptor>,
        fill: Producer<u64>,
        pool: &Pool,
        buffers: u32,
        busy: bool,
    ) -> std::io::Result<XdpQueue> {
        let watch = Watch::new(wire.socket.as_fd(), wire.retry.timer())?;
        let zero_copy = wire.socket.zero_copy();
        let mut queue = XdpQueue {
            receive,
            fill: Fill { ring: fill, lent: vec![false; pool.shared().1 / FRAME_CAPACITY] },
            pool: pool.clone(),
            watch,
            busy: busy.then(Busy::default),
            interrupted: false,
            last_check: 0,
            dropped: Dropped::default(),
            zero_copy,
            wire,
        };
        for _ in 0..buffers {
            match queue.pool.lend() {
                Some(buffer) if queue.fill.ring.room(1) > 0 => queue.fill.lend(buffer),
                Some(buffer) => {
                    queue.pool.put_back(buffer);
                    break;
                }
                None => break,
            }
        }
        // A driver that started with the socket has found no buffer, and looks again only when it is called.
        if queue.fill.ring.publish_and_check_wakeup() {
            queue.wake_receive();
        }
        Ok(queue)
    }

    /// Whether the driver honours busy polling, as far as observed; `None` without busy polling.
    pub fn busy_polling(&self) -> Option<BusyVerdict> {
        self.busy.as_ref().map(|busy| busy.verdict.clone())
    }

    /// The number of buffers lent to the kernel.
    pub(super) fn buffers(&self) -> usize {
        self.fill.buffers().count()
    }

    /// Takes up to `budget` frames off the ring; returns how many.
    fn take(&mut self, budget: u16, now: Ns, into: &mut Vec<Frame>) -> u16 {
        let ready = self.receive.ready(budget.into()).min(budget.into());
        if ready == 0 {
            return 0;
        }
        let (mut packets, mut bytes, mut truncated, mut oversized, mut none) = (0, 0, 0, 0, 0);
        let (fill, mut next) = (&mut self.fill, self.pool.stash(ready as usize));
        for _ in 0..ready {
            let descriptor = self.receive.pop();
            let Some((buffer, start, length)) = fill.take_back(descriptor) else {
                // The buffer was not lent, so it cannot be returned.
                truncated += 1;
                continue;
            };
            let fits = start + length <= FRAME_CAPACITY && descriptor.options == 0;
            if !fits || length < ETHERNET_HEADER {
                *(if fits { &mut truncated } else { &mut oversized }) += 1;
                fill.lend(buffer);
                continue;
            }
            match next.lend().or_else(|| self.pool.lend()) {
                Some(next) => {
                    packets += 1;
                    bytes += length as u64;
                    into.push(self.pool.frame(buffer, start, length, now));
                    fill.lend(next);
                }
                None => {
                    none += 1;
                    fill.lend(buffer);
                }
            }
        }
        self.receive.release();
        if fill.ring.publish_and_check_wakeup() {
            self.wire.socket.receive();
        }
        let counters = &self.wire.counters;
        add(&counters.rx_packets, packets);
        add(&counters.rx_bytes, bytes);
        add(&counters.rx_truncated, truncated);
        add(&counters.rx_oversized, oversized);
        add(&counters.rx_no_buffer, none);
        ready as u16
    }

    /// Has the kernel's NAPI instance polled, then polls the ring again.
    fn call(&mut self, budget: u16, now: Ns, into: &mut Vec<Frame>) -> u16 {
        let sent = self.wire.calls();
        self.wake_receive();
        let rx = self.take(budget, now, into);
        if let Some(busy) = &mut self.busy {
            busy.called(rx > 0, (now, sent));
        }
        rx
    }

    /// Calls the kernel if it asks for it: without buffers it receives nothing, and polls would never find a frame.
    fn kick(&self) {
        if self.fill.ring.needs_wakeup() {
            self.wake_receive();
        }
    }

    /// Reads link notifications after an interrupt without frames, and every [`CHECK_INTERVAL`] for the sake of pollers
    /// without interrupts. At that interval it also asks the kernel what it dropped, even while every poll finds
    /// frames, for then it drops the most.
    fn check_kernel(&mut self, found: bool, now: Ns) {
        let for_nothing = std::mem::take(&mut self.interrupted) && !found;
        let due = now.wrapping_sub(self.last_check) >= CHECK_INTERVAL;
        if (for_nothing || due) && self.watch.links_changed() {
            self.wake_receive();
        }
        if due {
            self.last_check = now;
            self.count_dropped();
        }
    }

    fn wake_receive(&self) {
        if self.wire.socket.receive() == CallResult::Gone {
            self.wire.counters.set_gone();
        }
    }

    /// Updates the counters of frames that the kernel dropped.
    fn count_dropped(&mut self) {
        let Some(dropped) = self.wire.socket.dropped(self.zero_copy) else { return };
        let before = std::mem::replace(&mut self.dropped, dropped);
        let counters = &self.wire.counters;
        add(&counters.rx_dropped_ring, dropped.ring.saturating_sub(before.ring));
        add(&counters.rx_oversized, dropped.other.saturating_sub(before.other));
    }
}

impl PacketQueue for XdpQueue {
    fn poll(&mut self, budget: u16, now: Ns, into: &mut Vec<Frame>) -> Work {
        let tx = self.wire.poll().min(u16::MAX.into()) as u16;
        if budget == 0 {
            return Work { rx: 0, tx };
        }
        let mut rx = self.take(budget, now, into);
        match &mut self.busy {
            Some(busy) if !busy.no_napi && rx > 0 => {
                let at = (now, self.wire.calls());
                busy.found_without_call(at, || self.wire.socket.napi_id());
            }
            Some(busy) if !busy.no_napi => rx = self.call(budget, now, into),
            _ if rx == 0 => self.kick(),
            _ => {}
        }
        if rx > 0 {
            self.watch.found(self.wire.socket.as_fd());
        }
        self.check_kernel(rx > 0, now);
        Work { rx, tx }
    }

    /// The engine's one-shot readiness masks; from here on the socket may be left unwatched. (The need-wakeup flag
    /// in the rings is independent of this.)
    fn mask(&mut self) {
        self.watch.mask();
    }

    /// `true` if frames to be sent wait for another call to the kernel, unless the last calls made no progress; or
    /// if the socket could not be watched again. Received frames are found by arming the descriptor again.
    fn unmask(&mut self, _now: Ns) -> bool {
        self.wire.flush_and_recheck();
        self.kick();
        let retries = self.wire.retry.retry_now(self.wire.counters.gone());
        !self.watch.unmask(self.wire.socket.as_fd()) || retries
    }

    fn interrupt(&self) -> BorrowedFd<'_> {
        self.watch.epoll.as_fd()
    }

    fn acknowledge(&mut self) {
        self.interrupted = true;
        if let Some(busy) = &mut self.busy {
            busy.interrupted();
        }
        add(&self.wire.counters.interrupts_rx, 1);
    }

    fn gone(&self) -> bool {
        self.wire.counters.gone()
    }

    fn transmitter(&self) -> Arc<dyn Transmitter> {
        Arc::clone(&self.wire) as Arc<dyn Transmitter>
    }

    fn counters(&self) -> Arc<QueueCounters> {
        Arc::clone(&self.wire.counters)
    }
}

impl Drop for XdpQueue {
    fn drop(&mut self) {
        // Count the frames dropped since the last time.
        self.count_dropped();
        self.wire.retire(self.fill.buffers());
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::Ordering::Relaxed;

    use rustix::event::{PollFd, PollFlags, poll};
    use rustix::net::{AddressFamily, SocketFlags, SocketType, socket_with};
    use rustix::time::timerfd_gettime;

    use super::super::hostile::Kernel;
    use super::super::retry::IMMEDIATE_RETRIES;
    use super::super::ring::OwnRing;
    use super::super::socket::XdpSocket;
    use super::*;

    const SIZE: u32 = 8;

    /// The rings of a queue, and a model of the kernel.
    struct Scene {
        fill: OwnRing,
        receive: OwnRing,
        wire: Arc<Wire>,
        pool: Pool,
    }

    impl Scene {
        fn new() -> Scene {
            let [fill, receive, transmit] = [(); 3].map(|()| OwnRing::new(SIZE));
            let complete = OwnRing::new(2 * SIZE);
            let out = (Producer::over(&transmit), Consumer::over(&complete));
            let socket =
                socket_with(AddressFamily::INET, SocketType::DGRAM, SocketFlags::CLOEXEC, None);
            let mut socket = XdpSocket::other(socket.expect("a socket of any kind"));
            socket.kernel = Some(Kernel::new(transmit, complete, 0));
            let pool = Pool::new(32);
            let wire = Wire::new(socket, out, &pool, SIZE as usize, Arc::new(()));
            let wire = Arc::new(wire.expect("a timer"));
            Scene { fill, receive, wire, pool }
        }

        fn queue(&self) -> XdpQueue {
            let rings = (Consumer::over(&self.receive), Producer::over(&self.fill));
            let wire = Arc::clone(&self.wire);
            XdpQueue::new(wire, rings.0, rings.1, &self.pool, SIZE, false).expect("it can be")
        }

        fn kernel(&self) -> &Kernel {
            self.wire.socket.kernel.as_ref().expect("it was put there")
        }

        /// The number of calls to receive since the last time.
        fn calls(&self) -> u32 {
            self.kernel().received.swap(0, Relaxed)
        }

        fn asks_to_be_called(&self, it: bool) {
            self.fill.words[2].store(it.into(), Relaxed);
        }

        /// Has the kernel receive `count` frames.
        fn come(&self, count: u64) {
            let end = self.receive.words[0].load(Relaxed);
            for place in (end..end + count).map(|place| (place % u64::from(SIZE)) as usize) {
                // 60-byte frames, in the buffers at the same places of the fill ring.
                let at = OwnRing::ENTRIES + 2 * place;
                let buffer = self.fill.words[OwnRing::ENTRIES + place].load(Relaxed);
                self.receive.words[at].store(buffer, Relaxed);
                self.receive.words[at + 1].store(60, Relaxed);
            }
            self.fill.words[1].store(end + count, Relaxed);
            self.receive.words[0].store(end + count, Relaxed);
        }
    }

    #[test]
    fn a_kernel_that_asks_for_it_is_called_also_while_nothing_comes_and_no_other() {
        let scene = Scene::new();
        scene.asks_to_be_called(true);
        let mut queue = scene.queue();
        assert_eq!(scene.calls(), 1, "there are buffers now");
        let mut frames = Vec::new();
        assert_eq!((queue.poll(8, 0, &mut frames).rx, scene.calls()), (0, 1));
        assert_eq!((queue.unmask(0), scene.calls()), (false, 1));
        scene.asks_to_be_called(false);
        assert_eq!((queue.poll(8, 0, &mut frames).rx, scene.calls()), (0, 0));
        assert_eq!((queue.unmask(0), scene.calls()), (false, 0));
        scene.come(3);
        assert_eq!((queue.poll(8, 0, &mut frames).rx, scene.calls()), (3, 0), "there was work");
    }

    #[test]
    fn a_card_that_does_not_send_is_called_at_once_a_few_times_and_then_now_and_then() {
        let scene = Scene::new();
        let mut queue = scene.queue();
        let kernel = scene.kernel();
        // In copy mode the kernel always asks to be called.
        kernel.transmit.words[2].store(1, Relaxed);
        scene.wire.send(&[1; 60], 0).expect("there is room");
        let round = |queue: &mut XdpQueue| {
            assert_eq!(queue.poll(8, 0, &mut Vec::new()).rx, 0);
            queue.unmask(0)
        };
        let at_once = (0..1_000).take_while(|_| round(&mut queue)).count();
        assert_eq!(at_once, IMMEDIATE_RETRIES.into());
        for _ in 0..3 {
            let before = kernel.calls.load(Relaxed);
            poll(&mut [PollFd::new(&queue.interrupt(), PollFlags::IN)], None).expect("the timer");
            assert!(!round(&mut queue));
            assert!(kernel.calls.load(Relaxed) > before, "it is called");
        }
        kernel.frames_a_call.store(1, Relaxed);
        assert!(!round(&mut queue));
        assert_eq!(scene.wire.in_flight(), 0);
        let left = timerfd_gettime(&queue.wire.retry.timer).expect("a setting").it_value;
        assert_eq!((left.tv_sec, left.tv_nsec), (0, 0), "nothing waits any more");
    }

    #[test]
    fn another_s_frames_for_which_the_card_has_no_room_interrupt_an_owner_who_sleeps() {
        let scene = Scene::new();
        let mut queue = scene.queue();
        let kernel = scene.kernel();
        kernel.transmit.words[2].store(1, Relaxed);
        assert!(!queue.unmask(0), "nothing waits");
        scene.wire.send(&[1; 60], 0).expect("there is room");
        kernel.frames_a_call.store(1, Relaxed);
        poll(&mut [PollFd::new(&queue.interrupt(), PollFlags::IN)], None).expect("the timer");
        queue.poll(8, 0, &mut Vec::new());
        assert_eq!(scene.wire.in_flight(), 0);
    }

    #[test]
    fn a_card_that_takes_some_at_each_call_is_called_again_at_once() {
        let scene = Scene::new();
        let mut queue = scene.queue();
        let kernel = scene.kernel();
        kernel.transmit.words[2].store(1, Relaxed);
        for _ in 0..3 * IMMEDIATE_RETRIES {
            kernel.frames_a_call.store(0, Relaxed);
            (0..2).for_each(|_| scene.wire.send(&[1; 60], 0).expect("there is room"));
            kernel.frames_a_call.store(1, Relaxed);
            queue.poll(8, 0, &mut Vec::new());
            kernel.frames_a_call.store(0, Relaxed);
            scene.wire.send(&[1; 60], 0).expect("there is room");
            assert!(queue.unmask(0));
        }
    }

    #[test]
    fn news_of_interfaces_reach_also_a_queue_that_is_never_interrupted() {
        let scene = Scene::new();
        let mut queue = scene.queue();
        let flags = SocketFlags::CLOEXEC;
        let pair = rustix::net::socketpair(AddressFamily::UNIX, SocketType::DGRAM, flags, None);
        let (links, peer) = pair.expect("two sockets");
        queue.watch.links = links;
        rustix::io::write(&peer, b"it has gone").expect("there is room");
        let mut frames = Vec::new();
        queue.poll(8, CHECK_INTERVAL - 1, &mut frames);
        assert_eq!(scene.calls(), 0, "not yet");
        queue.poll(8, CHECK_INTERVAL, &mut frames);
        assert_eq!(scene.calls(), 1, "it is asked whether the queue is there");
        queue.poll(8, 2 * CHECK_INTERVAL, &mut frames);
        assert_eq!(scene.calls(), 0, "nothing new");
    }

    #[test]
    fn what_the_kernel_dropped_is_counted_also_while_every_poll_finds_frames_and_at_the_end() {
        let scene = Scene::new();
        let mut queue = scene.queue();
        let counted = || scene.wire.counters.read().rx_dropped_ring;
        let mut frames = Vec::new();
        scene.kernel().dropped.store(5, Relaxed);
        scene.come(1);
        assert_eq!((queue.poll(8, CHECK_INTERVAL - 1, &mut frames).rx, counted()), (1, 0));
        scene.come(1);
        assert_eq!((queue.poll(8, CHECK_INTERVAL, &mut frames).rx, counted()), (1, 5));
        scene.kernel().dropped.store(7, Relaxed);
        drop(queue);
        assert_eq!(counted(), 7);
    }
}
