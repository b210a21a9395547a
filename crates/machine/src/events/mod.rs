//! The queue of what is going to happen, in order of time and, at one time, of asking.

mod near;
mod wheel;

use napkin_core::{NEVER, Ns};

use near::Near;
use wheel::Wheel;

/// What happens. Small, because the queue moves it about.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Event {
    /// The piece of work that a CPU is at ends; void if the CPU waits for another end (by its order).
    Segment { cpu: u16 },
    /// A frame reaches a queue of the host's NIC; a place in the store.
    Arrive { packet: u32 },
    /// A frame of the host reaches the other side.
    Leave { packet: u32 },
    /// A transmission has finished.
    Transmitted { queue: u16 },
    /// The NIC's moderation lets an interrupt go; void if another went first (generation).
    Moderated { queue: u16, generation: u32 },
    /// The same for finished transmissions.
    ModeratedTx { queue: u16, generation: u32 },
    /// A queue's interrupt reaches its CPU.
    Line { queue: u16 },
    /// An instance's deadline is to be looked at; it may have moved.
    Timer { queue: u16 },
    /// The periodic tick of a CPU.
    Tick { cpu: u16 },
    /// The end of a slice, where the scheduler has a timer for it.
    SliceEnd { cpu: u16, generation: u32 },
    /// One CPU tells another to look at its run queue.
    Reschedule { cpu: u16 },
    /// A thread's own timer; void if it slept again since (generation).
    Wake { thread: u32, generation: u32 },
    /// A timer of the other side.
    Client { token: u64 },
    /// A CPU's slice of the shared clock ends; void if it has ended already (generation).
    Turn { generation: u32 },
    /// Who disables an instance looks again, or enables it.
    Control { queue: u16 },
    /// A timer of the driver that looks for lost interrupts.
    Watchdog,
    /// Something a test or a swarm asked for.
    Fault { token: u64 },
}

/// A piece of work that ends within this time is near: a step's mostly is, a program's may not be.
const NEAR: Ns = 10_000;

/// A time, and a place among all that was asked for.
type Key = (Ns, u64);

const LAST: Key = (NEVER, u64::MAX >> 16);

/// All events that are due, the next one first.
#[derive(Debug)]
pub(crate) struct Events {
    wheel: Wheel<Event>,
    /// Time and order of the first of those in the wheel.
    wheel_next: Key,
    /// The near ends of the CPUs' pieces of work.
    near: Near,
    /// When the next thing happens.
    next: Ns,
    asked: u64,
    /// How many had been asked for when time came to where it is, and which of them happens.
    before_now: u64,
    happening: u64,
    time: Ns,
}

impl Events {
    /// Nothing will happen yet.
    pub(crate) fn new() -> Self {
        Events {
            wheel: Wheel::new(),
            wheel_next: LAST,
            near: Near::new(),
            next: NEVER,
            asked: 0,
            before_now: 0,
            happening: 0,
            time: 0,
        }
    }

    /// Something will happen: its place among all that was asked for.
    #[inline]
    pub(crate) fn at(&mut self, time: Ns, event: Event) -> u64 {
        self.asked += 1;
        self.wheel.push(time, self.asked, event);
        // Of two at one time the one that was asked for first is first.
        if time < self.wheel_next.0 {
            self.wheel_next = (time, self.asked);
            self.next = self.next.min(time);
        }
        self.asked
    }

    /// The piece of work that a CPU is at will end: the end's place among all that was asked for.
    pub(crate) fn segment_ends(&mut self, time: Ns, cpu: u16) -> u64 {
        self.ends_soon(time, cpu).unwrap_or_else(|| self.at(time, Event::Segment { cpu }))
    }

    /// The same, where that is near; `None` where it is not, or too much is.
    #[inline]
    pub(crate) fn ends_soon(&mut self, time: Ns, cpu: u16) -> Option<u64> {
        let order = self.asked + 1;
        if time > self.time + NEAR || !self.near.push(time, order, cpu) {
            return None;
        }
        self.asked = order;
        self.next = self.next.min(time);
        Some(order)
    }

    /// When the next thing happens; [`NEVER`] if nothing will.
    #[inline]
    pub(crate) fn next_time(&self) -> Ns {
        self.next
    }

    /// The next thing, if it is a near end of a piece of work: its time, its order, and the CPU.
    #[inline]
    pub(crate) fn pop_near(&mut self) -> Option<(Ns, u64, u16)> {
        let (time, order) = self.near.next();
        let (first, asked) = self.wheel_next;
        if time > first || time == first && order >= asked {
            return None;
        }
        let cpu = self.near.pop();
        self.come_to(time, order);
        Some((time, order, cpu))
    }

    /// The next thing, if it is none of those: its time, its order, and what it is.
    #[inline]
    pub(crate) fn pop(&mut self) -> Option<(Ns, u64, Event)> {
        let (time, order, event) = self.wheel.pop()?;
        self.wheel_next = self.wheel.next().map_or(LAST, |it| (it.0, it.1));
        self.come_to(time, order);
        Some((time, order, event))
    }

    #[inline]
    fn come_to(&mut self, time: Ns, order: u64) {
        self.next = self.wheel_next.0.min(self.near.next().0);
        if time != self.time {
            (self.time, self.before_now) = (time, self.asked);
        }
        self.happening = order;
    }

    /// Time goes on to where nothing more happens: all that ends there has ended.
    pub(crate) fn all_over(&mut self) {
        self.happening = u64::MAX;
    }

    /// Whether what happens now was asked for at this very moment, and not before.
    pub(crate) fn asked_now(&self) -> bool {
        self.happening > self.before_now
    }

    /// How many things are to happen: it must not grow with virtual time.
    pub(crate) fn len(&self) -> usize {
        self.wheel.len() + self.near.len()
    }
}
