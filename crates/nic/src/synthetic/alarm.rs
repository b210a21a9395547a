//! The interrupt of a synthetic queue: one timer, set by two sides without a lock.
//!
//! The queue's owner computes when the next interrupt is due and sets the timer when it unmasks. From then on a
//! sender on any other thread may have to bring the timer forward, since its transmission completes earlier than
//! anything the owner knew of. Three races must not lose that interrupt:
//!
//! 1. *Sender against unmask.* The owner publishes "unmasked" and then looks at the rings; the sender fills its
//!    ring and then checks whether the queue is unmasked. Between the two steps each has a sequentially consistent
//!    fence, so at least one of them sees the other: either the owner counts the transmission in, or the sender
//!    brings the timer forward. (Both may; that is harmless.)
//! 2. *Setting against setting.* The word `wanted` holds the time that the timer is to be set to; the system call
//!    that sets it follows some time later, and two such calls may overtake each other. A thread that has changed
//!    `wanted` therefore sets the timer to the value of `wanted` and reads it again afterwards, until both agree.
//!    The last call of all was thus followed by a read that found it right, and a change after that read is
//!    followed by a call of its own. A thread repeats the loop only because another one has made progress.
//! 3. *Old times against new ones.* A sender that finds an earlier time in `wanted` does nothing, so `wanted` must
//!    never hold a time for which no thread will set the timer. The owner therefore resets `wanted` *before* it
//!    publishes "unmasked", and afterwards stores its own time with a compare-and-swap that keeps a sender's
//!    earlier one. A sender that relied on the time from before the reset had filled its ring before it, so the
//!    owner sees that transmission.
//!
//! A sender that comes after a mask causes at most one spurious interrupt, never a lost one.
//!
//! Times are those of `CLOCK_MONOTONIC`, in nanoseconds.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::SeqCst, fence};

use napkin_os::clock;
use napkin_policy::{NEVER, Ns};
use rustix::time::{
    Itimerspec, TimerfdClockId, TimerfdFlags, TimerfdTimerFlags, timerfd_create, timerfd_settime,
};

/// A timer descriptor and the protocol for setting it.
#[derive(Debug)]
pub(super) struct Alarm {
    timer: OwnedFd,
    /// The time that the timer is set to, or is about to be; [`NEVER`] is off. A time in the past means that the
    /// timer has fired and has not been acknowledged.
    wanted: AtomicU64,
    unmasked: AtomicBool,
}

impl Alarm {
    /// A timer that is off and masked.
    pub(super) fn new() -> std::io::Result<Alarm> {
        let flags = TimerfdFlags::NONBLOCK | TimerfdFlags::CLOEXEC;
        Ok(Alarm {
            timer: timerfd_create(TimerfdClockId::Monotonic, flags)?,
            wanted: AtomicU64::new(NEVER),
            unmasked: AtomicBool::new(false),
        })
    }

    /// Owner: allows interrupts, and returns the time that the timer was set to until now. Everything that senders
    /// queued before this call is visible after it. [`Alarm::set`] or [`Alarm::withdraw`] must follow.
    pub(super) fn unmask(&self) -> Ns {
        let prior = self.wanted.swap(NEVER, SeqCst);
        self.unmasked.store(true, SeqCst);
        fence(SeqCst);
        prior
    }

    /// Owner: forbids interrupts. Makes no system call; [`Alarm::quiet`] switches off a timer that is still set.
    pub(super) fn mask(&self) {
        self.unmasked.store(false, SeqCst);
    }

    /// Owner, instead of [`Alarm::set`], if work is pending: masks again and leaves the timer as it was. Restores
    /// `wanted` to `prior`, so that [`Alarm::quiet`] can switch the timer off.
    pub(super) fn withdraw(&self, prior: Ns) {
        self.mask();
        // If a sender has set the timer meanwhile, its time stays.
        let _ = self.wanted.compare_exchange(NEVER, prior, SeqCst, SeqCst);
    }

    /// Sender: interrupts at `due` if interrupts are allowed. Everything queued before this call is visible to an
    /// owner that unmasks after it.
    pub(super) fn bring_forward(&self, due: Ns) {
        fence(SeqCst);
        if self.unmasked.load(SeqCst) && self.wanted.fetch_min(due, SeqCst) > due {
            self.program();
        }
    }

    /// The time that the timer is set to.
    pub(super) fn wanted(&self) -> Ns {
        self.wanted.load(SeqCst)
    }

    /// Owner, after [`Alarm::unmask`]: sets the timer for the next interrupt that the owner knows of, at `due`.
    /// `prior` is the value that `unmask` returned.
    pub(super) fn set(&self, due: Ns, prior: Ns) {
        let (mut seen, mut to) = (NEVER, due);
        while let Err(other) = self.wanted.compare_exchange(seen, to, SeqCst, SeqCst) {
            seen = other;
            to = due.min(other);
        }
        // If a sender's time stays, that sender sets the timer; and a timer that was off may stay off. A timer to be
        // switched off is programmed even so if it was set before. A timer that was set to the same time is
        // programmed again: a late sender may have read `wanted` while it was reset, and have switched the timer off.
        if to != seen || (to == NEVER && prior != NEVER) {
            self.program();
        }
    }

    /// Owner, masked, at `now`: switches off a timer that is set and has not yet fired, so that a masked queue does
    /// not interrupt. Makes a system call only in that case.
    pub(super) fn quiet(&self, now: Ns) {
        let wanted = self.wanted();
        if wanted > now
            && wanted != NEVER
            && self.wanted.compare_exchange(wanted, NEVER, SeqCst, SeqCst).is_ok()
        {
            self.program();
        }
    }

    /// Owner: clears an expiry from the descriptor. Returns the time that the timer was set to, or `None` if it has
    /// not fired.
    pub(super) fn acknowledge(&self) -> Option<Ns> {
        let fired = self.wanted();
        let mut expirations = [0; 8];
        rustix::io::read(&self.timer, &mut expirations).ok()?;
        // If a sender has brought the timer forward meanwhile, its time stays.
        let _ = self.wanted.compare_exchange(fired, NEVER, SeqCst, SeqCst);
        Some(fired)
    }

    fn program(&self) {
        loop {
            let wanted = self.wanted.load(SeqCst);
            // The call fails only for values out of range, which `spec` never makes.
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

/// The timer's setting for `at`. Zero would switch the timer off, so time 0 becomes 1 ns.
fn spec(at: Ns) -> Itimerspec {
    let at = if at == NEVER { 0 } else { at.max(1) };
    let [it_interval, it_value] = [0, at].map(clock::timespec);
    Itimerspec { it_interval, it_value }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// An hour: far enough ahead that a timer set to it does not fire during a test.
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
        // Another owner polled the queue, without acknowledging the interrupt.
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
            // The timer is set to the wanted time; the tolerance is less than the hour between two senders.
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
