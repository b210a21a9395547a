//! A reference model of one instance on one CPU, where one thing happens at a time, written from the rules
//! (state-machine reference, sections 4 to 7 and 11 to 14) and not from the core's code.
//!
//! Nothing is concurrent here, so there is no state word, no mark and no claim: a poll is a function, and only a
//! *hold* lasts longer than one. The model is meant to be obviously right, not fast.

use napkin_core::{NEVER, Ns, Order, WEIGHT};
use napkin_policy::{InstancePolicy, PARK_TIMEOUT};

/// Time of a look in a wait that does not prefer busy polling: longer than its microsecond.
pub(crate) const LOOK: Ns = 2_000;

/// The capacity of a socket, in frames.
pub(crate) const SOCKET: u32 = 100;

/// The externally visible state of an instance.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(crate) struct Seen {
    pub(crate) ring: usize,
    pub(crate) masked: bool,
    pub(crate) deadline: Ns,
    pub(crate) socket: u32,
    pub(crate) suspending: u32,
    pub(crate) follows: [bool; 2],
    pub(crate) interrupts: u64,
    pub(crate) polls: u64,
    pub(crate) empty_polls: u64,
    pub(crate) packets: u64,
    pub(crate) completions: u64,
    pub(crate) unmasks: u64,
    pub(crate) deferrals: u64,
    pub(crate) parks: u64,
    pub(crate) repolls: u64,
    pub(crate) timer_polls: u64,
    pub(crate) timer_missed: u64,
}

/// How a poll left the instance.
enum Left {
    /// Polled again at once, in the next round of the softirq.
    More,
    /// Polled again in this round, because a schedule was missed meanwhile.
    Wanted,
    /// Kept, without work, until the hold ends.
    Holding,
    /// Released.
    Free,
}

#[derive(Debug)]
pub(crate) struct Model {
    pub(crate) now: Ns,
    pub(crate) seen: Seen,
    pub(crate) settings: InstancePolicy,
    order: Order,
    /// Whether the interrupt was unmasked before the poll was delivered.
    open: bool,
    /// Transmissions that have completed.
    pub(crate) done: u16,
    /// Empty polls until the interrupt is unmasked.
    count: u32,
    hold_until: Option<Ns>,
    /// Whether ksoftirqd keeps the instance although it has no work.
    holding: bool,
    /// Whether a schedule was missed meanwhile.
    wanted: bool,
    /// Whether a session that prefers busy polling failed to claim it meanwhile.
    preferred: bool,
    /// Which contexts suspend; the latest end is `until`.
    suspends: [bool; 2],
    /// Which contexts are registered, though the timeout may have voided the suspension.
    registered: [bool; 2],
    until: Ns,
    /// When the last park ends.
    parked: Ns,
    /// When a poll last ended.
    polled_at: Ns,
}

impl Model {
    /// An instance that has just been enabled.
    pub(crate) fn new(settings: InstancePolicy, order: Order) -> Self {
        Model {
            now: 0,
            seen: Seen { deadline: NEVER, unmasks: 1, ..Seen::default() },
            settings,
            order,
            open: false,
            done: 0,
            count: 0,
            hold_until: None,
            holding: false,
            wanted: false,
            preferred: false,
            suspends: [false; 2],
            registered: [false; 2],
            until: 0,
            parked: 0,
            polled_at: 0,
        }
    }

    /// Frames arrive; an unmasked interrupt comes with the first.
    pub(crate) fn arrive(&mut self, frames: usize) {
        self.seen.ring += frames;
        if frames > 0 && !self.seen.masked {
            self.seen.masked = true;
            self.seen.interrupts += 1;
            self.ask();
        }
        self.settle();
    }

    /// Advances the time: timers fire, and a held instance is polled once a microsecond.
    pub(crate) fn advance(&mut self, ns: Ns) {
        let target = self.now + ns;
        while self.now < target {
            let tick = if self.holding { self.now + 1_000 } else { NEVER };
            self.now = target.min(tick).min(self.seen.deadline.max(self.now));
            if self.seen.deadline <= self.now {
                self.timer();
            }
            self.settle();
        }
    }

    fn timer(&mut self) {
        self.seen.deadline = NEVER;
        let longest = self.now + self.settings.irq_suspend_timeout;
        if self.until <= self.now || self.until > longest {
            self.suspends = [false; 2];
        }
        if self.holding {
            self.wanted = true;
            self.seen.timer_missed += 1;
        } else {
            self.seen.timer_polls += 1;
            self.preferred = false;
            self.softirq();
        }
    }

    /// Schedules the instance.
    pub(crate) fn schedule(&mut self) {
        self.ask();
        self.settle();
    }

    fn ask(&mut self) {
        if self.holding { self.wanted = true } else { self.softirq() }
    }

    /// An application waits, for one pass if it busy polls at all; it reads what it finds.
    pub(crate) fn wait(&mut self, who: usize, budget: u16, prefer: bool, keep: bool) {
        self.look(prefer);
        if self.seen.socket == 0 && self.seen.follows[who] {
            self.session(budget, prefer);
            self.look(prefer);
            self.seen.follows[who] = keep || self.seen.socket > 0;
        }
        if self.seen.socket == 0 {
            // Also a context that preferred busy polling when it began to suspend, and no longer does.
            self.resume(who);
        } else {
            self.seen.socket = 0;
            if prefer && self.seen.follows[who] {
                self.suspend(who);
            }
        }
        self.settle();
    }

    fn look(&mut self, prefer: bool) {
        if !prefer {
            self.now += LOOK;
        }
    }

    /// A suspension lasts for its timeout after the last poll, however often it is prolonged: a wait that finds
    /// events has not polled, and the ring must not wait any longer.
    fn suspend(&mut self, who: usize) {
        let timeout = self.settings.irq_suspend_timeout;
        let until = self.polled_at + timeout;
        if timeout > 0 && until > self.now {
            self.suspends[who] = true;
            self.registered[who] = true;
            self.until = self.until.max(until);
            // A suspension does not extend a park.
            let parked = self.settings.feedback && self.seen.deadline == self.parked;
            self.seen.deadline = if parked { until.min(self.parked) } else { until };
        }
    }

    fn resume(&mut self, who: usize) {
        if std::mem::take(&mut self.registered[who]) {
            self.suspends[who] = false;
            if self.suspends == [false; 2] {
                self.ask();
            }
        }
    }

    /// One pass of a session. One that prefers busy polling leaves to the timer; without deferral, or without that
    /// preference, it stops with another poll.
    fn session(&mut self, budget: u16, prefer: bool) {
        if self.holding {
            self.preferred |= prefer;
            self.look(prefer);
            return;
        }
        self.take(budget);
        self.look(prefer);
        if prefer {
            self.count = self.settings.defer_hard_irqs;
        }
        let left = if prefer && self.count > 0 && self.settings.gro_flush_timeout > 0 {
            self.defer()
        } else {
            let (frames, any, full) = self.take(budget);
            self.complete(frames, any, full, budget, true)
        };
        match left {
            Left::Free => {}
            Left::More | Left::Wanted | Left::Holding => self.softirq(),
        }
    }

    /// Polls as the softirq until the instance is released or only held.
    fn softirq(&mut self) {
        let mut worked = false;
        loop {
            let (frames, any, full) = self.take(WEIGHT);
            worked |= any;
            match self.complete(frames, any, full, WEIGHT, false) {
                Left::More => worked = false,
                Left::Wanted => {}
                // A round with work is followed by another.
                Left::Holding if worked => worked = false,
                Left::Holding => {
                    self.holding = true;
                    return;
                }
                Left::Free => {
                    self.holding = false;
                    return;
                }
            }
        }
    }

    /// ksoftirqd continues with a held instance.
    fn settle(&mut self) {
        if self.holding {
            self.softirq();
        }
    }

    /// A poll and its delivery: frames, whether there was anything, whether the receiver is full.
    fn take(&mut self, budget: u16) -> (usize, bool, bool) {
        let frames = self.seen.ring.min(usize::from(budget));
        let done = std::mem::take(&mut self.done);
        self.polled_at = self.now;
        self.open = self.order == Order::UnmaskFirst && frames < usize::from(budget);
        if self.open {
            // The driver unmasks whatever follows, and masks again where the interrupt is not to come.
            self.seen.unmasks += 1;
            self.seen.masked = true;
        }
        self.seen.ring -= frames;
        self.seen.packets += frames as u64;
        self.seen.completions += u64::from(done);
        let any = frames > 0 || done > 0;
        if frames > 0 {
            self.seen.polls += 1;
        } else {
            self.seen.empty_polls += 1;
        }
        if any {
            self.hold_until = None;
        }
        self.seen.socket = (self.seen.socket + frames as u32).min(SOCKET);
        (frames, any, frames > 0 && self.seen.socket >= SOCKET * 3 / 4)
    }

    /// Decides what follows from a poll that may be the last.
    fn complete(
        &mut self,
        frames: usize,
        any: bool,
        full: bool,
        budget: u16,
        session: bool,
    ) -> Left {
        let settings = self.settings;
        if full && settings.feedback {
            // With a schedule missed already, nothing is prepared for the time after the release.
            self.seen.parks += u64::from(!self.called_back());
            let park = match settings.irq_suspend_timeout {
                0 => PARK_TIMEOUT,
                timeout => timeout.min(PARK_TIMEOUT),
            };
            if !self.called_back() {
                self.parked = self.now + park;
            }
            return self.free(Some(self.now + park));
        }
        if frames > 0 {
            self.count = settings.defer_hard_irqs;
        }
        let drained = frames < usize::from(budget);
        let defers = settings.gro_flush_timeout > 0;
        if !drained {
            // Not drained: poll on, or make room, with a timer, for a session that prefers busy polling.
            if !session && self.preferred && defers && self.count > 0 {
                self.count -= 1;
                return self.defer();
            }
            return Left::More;
        }
        if settings.hold > 0 && !session {
            if any {
                return Left::More;
            }
            let mut end = self.now + settings.hold;
            if let Some(over) = end.checked_rem(settings.hold_tick) {
                // The next tick, also for a hold that ends at one.
                end += settings.hold_tick - over;
            }
            let until = end.min(self.hold_until.unwrap_or(NEVER));
            self.hold_until = Some(until);
            if self.now < until {
                return Left::Holding;
            }
        }
        let count = self.count.min(settings.defer_hard_irqs);
        if count > 0 {
            self.count = count - 1;
            if defers {
                return self.defer();
            }
        }
        self.seen.unmasks += u64::from(self.order == Order::DeliverFirst);
        // Unmasking ends every suspension.
        self.suspends = [false; 2];
        self.free(None)
    }

    fn defer(&mut self) -> Left {
        self.seen.deferrals += u64::from(!self.called_back());
        let period = self.now + self.settings.gro_flush_timeout;
        let suspended = if self.suspends == [false; 2] { 0 } else { self.until };
        let longest = self.now + self.settings.irq_suspend_timeout;
        self.free(Some(period.max(suspended.min(longest))))
    }

    /// Whether a missed schedule is known before the release, which then will not be one.
    fn called_back(&self) -> bool {
        self.open && self.wanted
    }

    /// Releases the instance: to a timer, or with its interrupt unmasked.
    fn free(&mut self, timer: Option<Ns>) -> Left {
        self.preferred = false;
        if std::mem::take(&mut self.wanted) {
            self.seen.repolls += 1;
            self.seen.masked |= timer.is_none();
            self.seen.deadline = NEVER;
            return if self.order == Order::UnmaskFirst { Left::Wanted } else { Left::More };
        }
        self.seen.masked &= timer.is_some();
        self.seen.deadline = timer.unwrap_or(NEVER);
        Left::Free
    }

    pub(crate) fn observe(&self) -> Seen {
        let suspending = self.suspends.iter().filter(|&&suspends| suspends).count() as u32;
        Seen { suspending, ..self.seen.clone() }
    }
}
