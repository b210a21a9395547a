//! The event queue: pending events in order of time, and in order of scheduling where times are equal.

mod segment_ends;
mod wheel;

use napkin_core::{NEVER, Ns};

use segment_ends::SegmentEnds;
use wheel::Wheel;

/// A pending event. It is kept small, because the queue copies events.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Event {
    /// The present segment of a CPU ends. Stale if the CPU's `ends_by` is not this event's order.
    SegmentEnd { cpu: u16 },
    /// A frame reaches a queue of the host's NIC; its index in the link's store.
    Arrive { packet: u32 },
    /// A frame from the host reaches the peer.
    ReachPeer { packet: u32 },
    /// A transmission has completed.
    Transmitted { queue: u16 },
    /// The NIC's moderation timer expires. Stale if the generation differs: an interrupt has been raised meanwhile.
    ModerationTimer { queue: u16, generation: u32 },
    /// The same for the moderation of transmit completions.
    TxModerationTimer { queue: u16, generation: u32 },
    /// A queue's interrupt reaches its CPU.
    InterruptLine { queue: u16 },
    /// An instance's timer may have expired; its deadline may have moved since.
    Timer { queue: u16 },
    /// The periodic tick of a CPU.
    Tick { cpu: u16 },
    /// The end of a time slice, where the scheduler uses a timer for it (hrtick).
    SliceEnd { cpu: u16, generation: u32 },
    /// The IPI that makes a CPU reschedule or run a raised softirq.
    Reschedule { cpu: u16 },
    /// The timeout of a thread's sleep. Stale if the thread has been woken or has slept again since (generation).
    Wake { thread: u32, generation: u32 },
    /// A timer of the client.
    Client { token: u64 },
    /// A CPU's slice of the shared clock ends. Stale if it has ended already (generation).
    SharedSliceEnd { generation: u32 },
    /// A disable in progress continues, or a disabled instance is enabled again.
    Control { queue: u16 },
    /// The driver's watchdog timer, which looks for lost interrupts.
    Watchdog,
    /// A fault that was scheduled with `fault_at`.
    Fault { token: u64 },
}

/// A segment that ends within this many nanoseconds goes into the short queue. Most steps of a pass do, a program's
/// computations may not.
const SHORT_HORIZON: Ns = 10_000;

/// The sort key of an event: its time and its sequence number.
type Key = (Ns, u64);

const LAST: Key = (NEVER, u64::MAX >> 16);

/// All pending events.
#[derive(Debug)]
pub(crate) struct Events {
    wheel: Wheel<Event>,
    /// Key of the first event in the wheel.
    wheel_next: Key,
    /// The ends of segments that are within [`SHORT_HORIZON`].
    segment_ends: SegmentEnds,
    /// Time of the next event; [`NEVER`] without one.
    next: Ns,
    scheduled: u64,
    /// The value of `scheduled` when virtual time reached `time`, and the order of the event being handled.
    before_now: u64,
    handling: u64,
    time: Ns,
}

impl Events {
    /// Creates an empty queue.
    pub(crate) fn new() -> Self {
        Events {
            wheel: Wheel::new(),
            wheel_next: LAST,
            segment_ends: SegmentEnds::new(),
            next: NEVER,
            scheduled: 0,
            before_now: 0,
            handling: 0,
            time: 0,
        }
    }

    /// Schedules an event. Returns its order, which is its sequence number.
    #[inline]
    pub(crate) fn schedule(&mut self, time: Ns, event: Event) -> u64 {
        self.scheduled += 1;
        self.wheel.push(time, self.scheduled, event);
        // Of two events at one time the one scheduled first comes first.
        if time < self.wheel_next.0 {
            self.wheel_next = (time, self.scheduled);
            self.next = self.next.min(time);
        }
        self.scheduled
    }

    /// Schedules the end of a CPU's segment. Returns its order.
    pub(crate) fn schedule_segment_end(&mut self, time: Ns, cpu: u16) -> u64 {
        self.schedule_soon(time, cpu)
            .unwrap_or_else(|| self.schedule(time, Event::SegmentEnd { cpu }))
    }

    /// Schedules the end of a CPU's segment in the short queue. Returns its order, or `None` if the end is beyond
    /// [`SHORT_HORIZON`] or the queue is full.
    #[inline]
    pub(crate) fn schedule_soon(&mut self, time: Ns, cpu: u16) -> Option<u64> {
        let order = self.scheduled + 1;
        if time > self.time + SHORT_HORIZON || !self.segment_ends.push(time, order, cpu) {
            return None;
        }
        self.scheduled = order;
        self.next = self.next.min(time);
        Some(order)
    }

    /// Returns the time of the next event; [`NEVER`] without one.
    #[inline]
    pub(crate) fn next_time(&self) -> Ns {
        self.next
    }

    /// Takes the next event if it is an end from the short queue: its time, its order, and the CPU.
    #[inline]
    pub(crate) fn pop_segment_end(&mut self) -> Option<(Ns, u64, u16)> {
        let (time, order) = self.segment_ends.next();
        let (first, order_in_wheel) = self.wheel_next;
        if time > first || time == first && order >= order_in_wheel {
            return None;
        }
        let cpu = self.segment_ends.pop();
        self.advance_to(time, order);
        Some((time, order, cpu))
    }

    /// Takes the next event of the wheel, which the caller knows to come first: its time, its order, and the event.
    #[inline]
    pub(crate) fn pop(&mut self) -> Option<(Ns, u64, Event)> {
        let (time, order, event) = self.wheel.pop()?;
        self.wheel_next = self.wheel.next().map_or(LAST, |it| (it.0, it.1));
        self.advance_to(time, order);
        Some((time, order, event))
    }

    #[inline]
    fn advance_to(&mut self, time: Ns, order: u64) {
        self.next = self.wheel_next.0.min(self.segment_ends.next().0);
        if time != self.time {
            (self.time, self.before_now) = (time, self.scheduled);
        }
        self.handling = order;
    }

    /// Ends the run: from now on every segment that ends at the present time counts as ended.
    pub(crate) fn finish(&mut self) {
        self.handling = u64::MAX;
    }

    /// Returns whether the event being handled was scheduled at the present virtual time, and not before.
    pub(crate) fn scheduled_now(&self) -> bool {
        self.handling > self.before_now
    }

    /// Returns the number of pending events. It must not grow with virtual time.
    pub(crate) fn len(&self) -> usize {
        self.wheel.len() + self.segment_ends.len()
    }
}
