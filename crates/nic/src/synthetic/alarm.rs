//! The interrupt of a synthetic queue: one timer, set by two sides without a lock.
//!
//! The queue's owner works out when the next interrupt is due and sets the timer when it unmasks.
//! From then on a sender on any other thread may have to bring the timer forward, since its
//! transmission completes earlier than anything the owner knew of. Three races must not lose that
//! interrupt:
//!
//! 1. *Sender against unmask.* The owner publishes "unmasked" and then looks at the rings; the sender
//!    fills its ring and then looks whether the queue is unmasked. Between the two steps each has a
//!    sequentially consistent fence, so at least one of them sees the other: either the owner counts
//!    the transmission in, or the sender brings the timer forward. (Both may; that is harmless.)
//! 2. *Setting against setting.* What the timer is to be set to is the word `wanted`; the timer itself
//!    is set by a system call some time later, and two such calls may overtake each other. So whoever
//!    has changed `wanted` sets the timer to what `wanted` says and looks again afterwards, until both
//!    agree. Whichever call is the last one was therefore followed by a look that found it right, and
//!    a change after that look is followed by a call of its own. A thread goes round again only
//!    because another one has made progress.
//! 3. *Old times against new ones.* A sender that finds an earlier time in `wanted` does nothing, so no
//!    time may stand there that nobody is bound to any more. The owner therefore resets `wanted`
//!    *before* it publishes "unmasked", and afterwards puts its own time there with a
//!    compare-and-swap that keeps a sender's earlier one. A sender that relied on the time from
//!    before the reset had filled its ring before it, so the owner sees that transmission.
//!
//! Senders that come late, after a mask, make at most one spurious interrupt, never a lost one.
//!
//! Times are those of `CLOCK_MONOTONIC`.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::SeqCst, fence};

use napkin_os::clock;
use napkin_policy::{NEVER, Ns};
use rustix::time::{
    Itimerspec, TimerfdClockId, TimerfdFlags, TimerfdTimerFlags, timerfd_create, timerfd_settime,
};

/// A timer descriptor and the protocol around it.
#[derive(Debug)]
pub(super) struct Alarm {
    timer: OwnedFd,
    /// What the timer is, or is about to be, set to; [`NEVER`] is off. A time that has passed means
    /// that the timer has fired and nobody has acknowledged it.
    wanted: AtomicU64,
    unmasked: AtomicBool,
}

impl Alarm {
    /// A timer that is off, masked.
    pub(super) fn new() -> std::io::Result<Alarm> {
        let flags = TimerfdFlags::NONBLOCK | TimerfdFlags::CLOEXEC;
        Ok(Alarm {
            timer: timerfd_create(TimerfdClockId::Monotonic, flags)?,
            wanted: AtomicU64::new(NEVER),
            unmasked: AtomicBool::new(false),
        })
    }

    /// The owner: allows interrupts, and returns what the timer was set to until now. Everything
    /// that senders queued before this is visible after it; [`Alarm::set`] has to follow, or
    /// [`Alarm::withdraw`].
    pub(super) fn unmask(&self) -> Ns {
        let prior = self.wanted.swap(NEVER, SeqCst);
        self.unmasked.store(true, SeqCst);
        fence(SeqCst);
        prior
    }

    /// The owner: forbids interrupts. No system call: a timer that is still set is switched off by
    /// [`Alarm::quiet`].
    pub(super) fn mask(&self) {
        self.unmasked.store(false, SeqCst);
    }

    /// The owner, instead of [`Alarm::set`]: work waits already, so it masks again and the timer
    /// stays set as it was. Remembering that is what lets [`Alarm::quiet`] switch it off.
    pub(super) fn withdraw(&self, prior: Ns) {
        self.mask();
        // If a sender has set the timer meanwhile, its time is what counts.
        let _ = self.wanted.compare_exchange(NEVER, prior, SeqCst, SeqCst);
    }

    /// A sender: interrupts at `due` if interrupts are allowed. What was queued before this is
    /// visible to an owner that unmasks after it.
    pub(super) fn bring_forward(&self, due: Ns) {
        fence(SeqCst);
        if self.unmasked.load(SeqCst) && self.wanted.fetch_min(due, SeqCst) > due {
            self.program();
        }
    }

    /// What the timer is set to.
    pub(super) fn wanted(&self) -> Ns {
        self.wanted.load(SeqCst)
    }

    /// The owner, after [`Alarm::unmask`]: the next interrupt it knows of is due at `due`. `prior` is
    /// what `unmask` returned.
    pub(super) fn set(&self, due: Ns, prior: Ns) {
        let (mut seen, mut to) = (NEVER, due);
        while let Err(other) = self.wanted.compare_exchange(seen, to, SeqCst, SeqCst) {
            seen = other;
            to = due.min(other);
        }
        // A sender's time is set by that sender, and a timer that was off may stay so. One that was
        // set to the same time is set again nevertheless: a sender that came late may have seen
        // `wanted` while it was reset, and have switched the timer off.
        if to != seen || (to == NEVER && prior != NEVER) {
            self.program();
        }
    }

    /// The owner, masked, at `now`: switches off a timer that was set and has not yet fired, so
    /// that a masked queue does not interrupt. Costs a system call only in that case.
    pub(super) fn quiet(&self, now: Ns) {
        let wanted = self.wanted();
        if wanted > now
            && wanted != NEVER
            && self.wanted.compare_exchange(wanted, NEVER, SeqCst, SeqCst).is_ok()
        {
            self.program();
        }
    }

    /// The owner: takes the expiry off the descriptor. Returns the time for which the timer was set,
    /// or `None` if it has not fired.
    pub(super) fn acknowledge(&self) -> Option<Ns> {
        let fired = self.wanted();
        let mut expirations = [0; 8];
        rustix::io::read(&self.timer, &mut expirations).ok()?;
        // A sender that brings the timer forward just now keeps its time.
        let _ = self.wanted.compare_exchange(fired, NEVER, SeqCst, SeqCst);
        Some(fired)
    }

    fn program(&self) {
        loop {
            let wanted = self.wanted.load(SeqCst);
            // The call fails only for values out of range, which these are not.
            let _ = timerfd_settime(&self.timer, TimerfdTimerFlags::ABSTIME, &spec(wanted));
            if self.wanted.load(SeqCst) == wanted {
                return;
            }
        }
    }
}

impl AsFd for Alarm {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.timer.as_fd()
    }
}

/// The timer's setting for `at`. Zero switches a timer off, so the beginning of time is 1 ns late.
fn spec(at: Ns) -> Itimerspec {
    let at = if at == NEVER { 0 } else { at.max(1) };
    let [it_interval, it_value] = [0, at].map(clock::timespec);
    Itimerspec { it_interval, it_value }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// An hour of virtual time in which the real timer, which is set too, has long fired.
    const HOUR: Ns = 3_600_000_000_000;

    /// Whether the descriptor is readable.
    fn fired(alarm: &Alarm) -> bool {
        let mut fds = [rustix::event::PollFd::new(alarm, rustix::event::PollFlags::IN)];
        rustix::event::poll(&mut fds, Some(&clock::timespec(0))).expect("poll") == 1
    }

    fn far() -> Ns {
        let now = rustix::time::clock_gettime(rustix::time::ClockId::Monotonic);
        now.tv_sec as Ns * 1_000_000_000 + HOUR
    }

    #[test]
    fn a_time_in_the_past_interrupts_at_once_and_is_acknowledged_once() {
        let alarm = Alarm::new().expect("a timer");
        assert_eq!(alarm.acknowledge(), None);
        alarm.unmask();
        alarm.set(5, NEVER);
        assert!(fired(&alarm));
        assert_eq!(alarm.acknowledge(), Some(5));
        assert_eq!(alarm.acknowledge(), None);
        assert_eq!(alarm.wanted(), NEVER);
        assert!(!fired(&alarm));
    }

    #[test]
    fn a_stale_expiry_does_not_survive_the_next_unmask() {
        let alarm = Alarm::new().expect("a timer");
        alarm.unmask();
        alarm.set(5, NEVER);
        alarm.mask();
        // Another owner polled the queue; nobody acknowledged.
        let prior = alarm.unmask();
        assert_eq!(prior, 5);
        alarm.set(NEVER, prior);
        assert!(!fired(&alarm));
    }

    #[test]
    fn a_sender_brings_the_timer_forward_but_only_while_unmasked() {
        let alarm = Alarm::new().expect("a timer");
        alarm.bring_forward(1);
        assert_eq!(alarm.wanted(), NEVER);
        alarm.unmask();
        alarm.set(far(), NEVER);
        alarm.bring_forward(20);
        alarm.bring_forward(30);
        assert_eq!(alarm.wanted(), 20);
        assert!(fired(&alarm));
    }

    #[test]
    fn an_owner_that_sets_the_timer_keeps_an_earlier_time_of_a_sender() {
        let alarm = Alarm::new().expect("a timer");
        let prior = alarm.unmask();
        alarm.bring_forward(20);
        alarm.set(far(), prior);
        assert_eq!(alarm.wanted(), 20);
    }

    #[test]
    fn a_sender_does_not_rely_on_a_time_from_before_the_unmask() {
        let alarm = Alarm::new().expect("a timer");
        alarm.unmask();
        alarm.bring_forward(20);
        alarm.mask();
        let prior = alarm.unmask();
        // The owner looks at its ring, finds nothing, and then:
        alarm.bring_forward(30);
        alarm.set(NEVER, prior);
        assert_eq!(alarm.wanted(), 30);
    }

    #[test]
    fn a_masked_queue_switches_its_timer_off() {
        let alarm = Alarm::new().expect("a timer");
        alarm.unmask();
        alarm.set(far(), NEVER);
        alarm.mask();
        alarm.quiet(10);
        assert_eq!(alarm.wanted(), NEVER);
        let left = rustix::time::timerfd_gettime(&alarm.timer).expect("a setting");
        assert_eq!((left.it_value.tv_sec, left.it_value.tv_nsec), (0, 0));
    }

    #[test]
    fn settings_that_race_end_with_the_earliest() {
        let alarm = Alarm::new().expect("a timer");
        let far = far();
        for round in 0..200 {
            let prior = alarm.unmask();
            std::thread::scope(|scope| {
                for sender in 1..=3 {
                    let alarm = &alarm;
                    scope.spawn(move || alarm.bring_forward(far + sender * HOUR));
                }
                alarm.set(far + 2 * HOUR, prior);
            });
            assert!(alarm.wanted() <= far + 2 * HOUR, "round {round}");
            // The timer is set to what is wanted, give or take the hour between two senders.
            let left = rustix::time::timerfd_gettime(&alarm.timer).expect("a setting");
            let left = left.it_value.tv_sec as Ns * 1_000_000_000;
            let now = rustix::time::clock_gettime(rustix::time::ClockId::Monotonic);
            let set_to = now.tv_sec as Ns * 1_000_000_000 + left;
            assert!(set_to.abs_diff(alarm.wanted()) < HOUR / 2, "round {round}");
            alarm.mask();
            alarm.quiet(far);
            assert_eq!(alarm.wanted(), NEVER);
        }
    }
}
