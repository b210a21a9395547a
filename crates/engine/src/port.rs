//! A device's queue as the core sees it: frames in from the device, out to the stack.
//!
//! The core decides when to poll and when to mask; the contents of a frame are left to the stack.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use napkin_core::{Id, Ns, Pressure, Queue, Work};
use napkin_nic::{Frame, PacketQueue};
use napkin_stack::Input;

use crate::config::EngineError;
use crate::cpu::EngineCpu;
use crate::line::Line;
use crate::spin::Spin;

/// The most frames that a poll may take.
const BATCH: usize = u16::MAX as usize;
/// Frames reserved at first; a larger budget reserves more, once.
const USUAL_BATCH: usize = 256;

/// Counts that the port itself keeps.
#[derive(Debug, Default)]
pub(crate) struct PortCounts {
    /// System calls made to mask and unmask.
    pub(crate) line_calls: AtomicU64,
}

/// State that a port shares with readers outside; a port that replaces another takes it over.
#[derive(Debug, Clone, Default)]
pub(crate) struct PortShares {
    pub(crate) counts: Arc<PortCounts>,
    #[cfg(debug_assertions)]
    pub(crate) watched: Arc<crate::invariant::Watched>,
}

/// What a port serves: a queue, and its way into the stack.
struct Device {
    nic: Box<dyn PacketQueue>,
    line: Option<Line>,
    input: Input,
}

/// One queue, its interrupt line and its way into the stack.
pub(crate) struct Port {
    /// `None` after the engine's stop: a handle that the application keeps must not keep the device.
    device: Option<Device>,
    batch: Vec<Frame>,
    single: Vec<Frame>,
    /// The extra cost of delivering one frame.
    cost: Spin,
    /// Whether the line is armed; a one-shot that fired may not have been noticed yet.
    armed: bool,
    shares: PortShares,
}

impl std::fmt::Debug for Port {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Port").field("armed", &self.armed).finish_non_exhaustive()
    }
}

impl Port {
    /// A port without a line; [`Port::attach`] it before its instance is enabled.
    pub(crate) fn new(
        nic: Box<dyn PacketQueue>,
        input: Input,
        cost: Spin,
        shares: PortShares,
    ) -> Port {
        Port {
            device: Some(Device { nic, line: None, input }),
            batch: Vec::with_capacity(USUAL_BATCH),
            single: Vec::with_capacity(1),
            cost,
            armed: false,
            shares,
        }
    }

    /// Puts the queue's interrupt on a CPU, masked.
    pub(crate) fn attach(&mut self, cpu: &EngineCpu, id: Id) -> Result<(), EngineError> {
        let Some(device) = &mut self.device else { return Ok(()) };
        let epoll = Arc::clone(&cpu.epoll);
        let line = Line::attach(epoll, device.nic.interrupt(), u64::from(id.0));
        device.line = Some(line.map_err(|e| EngineError::os("a queue's interrupt", e.into()))?);
        Ok(())
    }

    /// Drops the device, and the frames of the last poll.
    pub(crate) fn close(&mut self) {
        self.device = None;
        self.batch.clear();
    }

    /// Masks for an interrupt that has won the instance: the one-shot line has fired, and so is masked already.
    pub(crate) fn interrupted(&mut self) {
        self.armed = false;
        if let Some(device) = &mut self.device {
            device.nic.acknowledge();
            device.nic.mask();
        }
    }
}

impl Queue for Port {
    #[inline]
    fn poll(&mut self, budget: u16, now: Ns) -> Work {
        if !self.batch.is_empty() {
            // A context unwound between its poll and the delivery. Whether its receivers are full
            // shows at the next delivery.
            self.deliver(now);
        }
        let Some(device) = &mut self.device else { return Work::NONE };
        let budget_frames = usize::from(budget).min(BATCH);
        if self.batch.capacity() < budget_frames {
            // Once, for the first poll with a budget beyond the usual.
            self.batch.reserve(budget_frames);
        }
        let work = device.nic.poll(budget, now, &mut self.batch);
        #[cfg(debug_assertions)]
        self.shares.watched.polled(budget, work, self.batch.len());
        work
    }

    fn deliver(&mut self, now: Ns) -> Pressure {
        let Some(device) = &mut self.device else { return Pressure::Room };
        if self.cost.is_none() {
            return device.input.deliver(&mut self.batch, now);
        }
        let mut pressed = false;
        for frame in self.batch.drain(..) {
            self.cost.run();
            self.single.push(frame);
            pressed |= device.input.deliver(&mut self.single, now) == Pressure::Full;
        }
        if pressed { device.input.pressure(now) } else { Pressure::Room }
    }

    fn mask(&mut self) {
        let Some(device) = &mut self.device else { return };
        device.nic.mask();
        if std::mem::take(&mut self.armed)
            && let Some(line) = &device.line
        {
            line.mask(device.nic.interrupt());
            self.shares.counts.line_calls.fetch_add(1, Ordering::Relaxed);
        }
    }

    fn unmask(&mut self, now: Ns) -> bool {
        let Some(device) = &mut self.device else { return false };
        if device.nic.unmask(now) {
            return true;
        }
        if device.nic.gone() {
            // The descriptor of a device that has gone is readable for ever.
            device.nic.counters().set_gone();
            return false;
        }
        self.armed = true;
        if let Some(line) = &device.line {
            line.unmask(device.nic.interrupt());
            self.shares.counts.line_calls.fetch_add(1, Ordering::Relaxed);
        }
        false
    }
}

#[cfg(test)]
mod tests {
    use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
    use std::sync::atomic::{AtomicBool, AtomicU32};

    use napkin_nic::{Pool, QueueCounters, SendError, Transmitter};
    use napkin_stack::{Address, FrameBuilder, Stack};
    use rustix::event::{EventfdFlags, epoll, eventfd};
    use rustix::time::Timespec;

    use super::*;

    /// A device whose descriptor is readable for ever, like that of a TAP interface that was removed.
    #[derive(Debug)]
    struct Readable {
        descriptor: OwnedFd,
        gone: AtomicBool,
        masked: AtomicU32,
        acknowledged: AtomicU32,
        counters: Arc<QueueCounters>,
    }

    #[derive(Debug, Clone)]
    struct Handle(Arc<Readable>);

    impl Transmitter for Handle {
        fn send(&self, _: &[u8], _: Ns) -> Result<(), SendError> {
            Err(SendError::Down)
        }
    }

    impl PacketQueue for Handle {
        fn poll(&mut self, _: u16, _: Ns, _: &mut Vec<Frame>) -> Work {
            Work::NONE
        }
        fn mask(&mut self) {
            self.0.masked.fetch_add(1, Ordering::Relaxed);
        }
        fn unmask(&mut self, _: Ns) -> bool {
            false
        }
        fn interrupt(&self) -> BorrowedFd<'_> {
            self.0.descriptor.as_fd()
        }
        fn acknowledge(&mut self) {
            self.0.acknowledged.fetch_add(1, Ordering::Relaxed);
        }
        fn gone(&self) -> bool {
            self.0.gone.load(Ordering::Relaxed)
        }
        fn transmitter(&self) -> Arc<dyn Transmitter> {
            Arc::new(self.clone())
        }
        fn counters(&self) -> Arc<QueueCounters> {
            Arc::clone(&self.0.counters)
        }
    }

    /// Whether an interrupt is due.
    fn interrupts(cpu: &OwnedFd) -> bool {
        let mut events = Vec::with_capacity(4);
        let now = Timespec { tv_sec: 0, tv_nsec: 0 };
        let spare = rustix::buffer::spare_capacity(&mut events);
        epoll::wait(cpu, spare, Some(&now)).expect("a look") > 0
    }

    const US: Address = Address::v4([2; 6], [10, 0, 0, 1], 24);

    /// A port with its device, masked, and the CPU's descriptor.
    fn port(stack: Arc<Stack>, cost: Spin) -> (Port, Handle, Arc<OwnedFd>) {
        let cpu = Arc::new(epoll::create(epoll::CreateFlags::CLOEXEC).expect("a descriptor"));
        let device = Handle(Arc::new(Readable {
            descriptor: eventfd(1, EventfdFlags::CLOEXEC).expect("a descriptor"),
            gone: AtomicBool::new(false),
            masked: AtomicU32::new(0),
            acknowledged: AtomicU32::new(0),
            counters: Arc::default(),
        }));
        let input = Input::new(stack, 1, device.transmitter());
        let mut port = Port::new(Box::new(device.clone()), input, cost, PortShares::default());
        let line = Line::attach(Arc::clone(&cpu), device.interrupt(), 0).expect("a line");
        port.device.as_mut().expect("a device").line = Some(line);
        assert!(!interrupts(&cpu), "masked at first");
        (port, device, cpu)
    }

    /// A datagram to port 7.
    fn datagram() -> Frame {
        let peer = Address::v4([4; 6], [10, 0, 0, 2], 24);
        let mut frame = Pool::new(1).take().expect("a frame");
        let length = FrameBuilder::new(peer, US).udp(frame.buffer(), 9, 7, b"x").expect("it fits");
        frame.set_len(length);
        frame
    }

    #[test]
    fn masking_and_unmasking_reach_the_device_and_its_line_once() {
        let (mut port, device, cpu) = port(Stack::new(US), Spin::default());
        let calls = |port: &Port| port.shares.counts.line_calls.load(Ordering::Relaxed);
        let counts = || {
            let counts = [&device.0.masked, &device.0.acknowledged];
            counts.map(|count| count.load(Ordering::Relaxed))
        };
        port.unmask(0);
        assert!(interrupts(&cpu));
        port.mask();
        assert!(!interrupts(&cpu));
        assert_eq!((counts(), calls(&port)), ([1, 0], 2));
        port.mask();
        assert_eq!((counts(), calls(&port)), ([2, 0], 2), "the line is masked already");
        port.unmask(0);
        assert!(interrupts(&cpu));
        port.interrupted();
        port.mask();
        assert_eq!((counts(), calls(&port)), ([4, 1], 3), "the line masked itself when it fired");
    }

    #[test]
    fn what_a_context_left_between_its_poll_and_the_delivery_is_delivered_by_the_next_poll() {
        let stack = Stack::new(US);
        let socket = stack.bind_udp(7, 8).expect("a free port");
        let (mut port, ..) = port(stack, Spin::default());
        port.batch.push(datagram());
        port.poll(8, 0);
        assert!(socket.try_recv().is_some());
    }

    #[test]
    fn full_receivers_are_told_of_whether_or_not_a_frame_costs_time() {
        for cost in [Spin::default(), Spin::new(100)] {
            let stack = Stack::new(US);
            let _socket = stack.bind_udp(7, 8).expect("a free port");
            let (mut port, ..) = port(stack, cost);
            port.batch.push(datagram());
            assert_eq!(port.deliver(0), Pressure::Room, "{cost:?}");
            port.batch.extend((1..8).map(|_| datagram()));
            assert_eq!(port.deliver(0), Pressure::Full, "{cost:?}");
        }
    }

    #[test]
    fn a_device_that_has_gone_interrupts_no_more() {
        let (mut port, device, cpu) = port(Stack::new(US), Spin::default());

        assert!(!port.unmask(0));
        assert!(interrupts(&cpu), "its descriptor is readable");
        port.interrupted();

        assert!(!port.unmask(0));
        assert!(interrupts(&cpu), "and stays so");
        port.interrupted();

        assert!(!device.0.counters.gone());

        device.0.gone.store(true, Ordering::Relaxed);
        assert!(!port.unmask(0), "no work waits in a device that has gone");
        assert!(!interrupts(&cpu), "an interrupt of a device that has gone");
        assert!(device.0.counters.gone(), "who asks the engine is told");
    }
}
