//! The queue of what is going to happen, in order of time and, at one time, of asking.

use napkin_core::{NEVER, Ns};

use crate::wheel::Wheel;

/// What happens. Small, because the queue moves it about.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Event {
    /// The piece of work that a CPU is at ends; void if the CPU has moved on (generation).
    Segment { cpu: u16, generation: u32 },
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
    /// An instance's timer.
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

/// Near ends that are kept apart; further ones go to the wheel.
const FEW: usize = 32;

/// A time, and a place among all that was asked for.
type Key = (Ns, u64);

const LAST: Key = (NEVER, u64::MAX);

/// The queue.
#[derive(Debug)]
pub(crate) struct Events {
    wheel: Wheel<Event>,
    /// The wheel's next.
    wheel_next: Key,
    /// The near ends of the CPUs' pieces of work, the next one last: apart, because they are most of
    /// the events, and few at a time. The CPU stands above its generation.
    segments: [(Ns, u64, u64); FEW],
    /// How many they are.
    near: usize,
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
            segments: [(0, 0, 0); FEW],
            near: 0,
            next: NEVER,
            asked: 0,
            before_now: 0,
            happening: 0,
            time: 0,
        }
    }

    /// Something will happen.
    #[inline]
    pub(crate) fn at(&mut self, time: Ns, event: Event) {
        self.asked += 1;
        self.wheel.push(time, self.asked, event);
        // Of two at one time the one that was asked for first is first.
        if time < self.wheel_next.0 {
            self.wheel_next = (time, self.asked);
            self.next = self.next.min(time);
        }
    }

    /// The piece of work that a CPU is at will end.
    #[inline]
    pub(crate) fn segment_ends(&mut self, time: Ns, cpu: u16, generation: u32) {
        let mut place = self.near;
        if time > self.time + NEAR || place >= FEW {
            return self.at(time, Event::Segment { cpu, generation });
        }
        self.asked += 1;
        self.near += 1;
        // It goes before those that end sooner.
        while let Some(before) = place.checked_sub(1)
            && self.segments[before].0 <= time
        {
            self.segments[place] = self.segments[before];
            place = before;
        }
        self.segments[place] = (time, self.asked, u64::from(cpu) << 32 | u64::from(generation));
        self.next = self.next.min(time);
    }

    /// When the next thing happens; [`NEVER`] if nothing will.
    #[inline]
    pub(crate) fn next_time(&self) -> Ns {
        self.next
    }

    /// The next thing.
    #[inline]
    pub(crate) fn pop(&mut self) -> Option<(Ns, Event)> {
        let (time, happening, event) = match self.segments[..self.near].last() {
            Some(&(time, asked, which)) if (time, asked) < self.wheel_next => {
                self.near -= 1;
                let (cpu, generation) = ((which >> 32) as u16, which as u32);
                (time, asked, Event::Segment { cpu, generation })
            }
            _ => {
                let next = self.wheel.pop()?;
                self.wheel_next = self.wheel.next().map_or(LAST, |it| (it.0, it.1));
                next
            }
        };
        let segment = self.segments[..self.near].last().map_or(NEVER, |it| it.0);
        self.next = self.wheel_next.0.min(segment);
        if time != self.time {
            (self.time, self.before_now) = (time, self.asked);
        }
        self.happening = happening;
        Some((time, event))
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
        self.wheel.len() + self.near
    }
}
