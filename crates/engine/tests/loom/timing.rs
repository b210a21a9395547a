//! Timers: for every deadline that is stored, the operating system's timer is set at the deadline (and its slack)
//! or before.

use std::sync::Arc;

use loom::sync::atomic::{AtomicU64, Ordering::Relaxed};
use loom::thread::{JoinHandle, spawn};
use napkin_core::{MILLISECOND, NEVER, Ns};

use crate::os::Alarm;
use crate::slack::{SLACK_MAX, Slack};
use crate::sync::{self, Ordering};
use crate::timer::Timer;
use crate::{explore, explore_within};

/// The protocol, in its present and its former version.
trait Timers: Send + Sync + 'static {
    fn new() -> Self;
    fn alarm(&self) -> &Alarm;
    fn bring_forward(&self, at: Ns);
    fn fired(&self);
}

impl Timers for Timer {
    fn new() -> Timer {
        Timer::new(Alarm::new())
    }

    fn alarm(&self) -> &Alarm {
        Timer::alarm(self)
    }

    fn bring_forward(&self, at: Ns) {
        Timer::bring_forward(self, at);
    }

    fn fired(&self) {
        Timer::fired(self);
    }
}

/// The former version: "store the deadline, then look at the timer" and "store the timer, then look at the
/// deadlines" without a fence, so that each may miss the other's store. `AGAIN`: whether it checks, after it has
/// set the alarm, that its time is still the one in `armed`.
struct Stored<const AGAIN: bool> {
    alarm: Alarm,
    armed: sync::AtomicU64,
}

impl<const AGAIN: bool> Timers for Stored<AGAIN> {
    fn new() -> Self {
        Stored { alarm: Alarm::new(), armed: sync::AtomicU64::new(NEVER) }
    }

    fn alarm(&self) -> &Alarm {
        &self.alarm
    }

    fn bring_forward(&self, at: Ns) {
        let mut armed = self.armed.load(Ordering::Acquire);
        loop {
            if at >= armed {
                return;
            }
            match self.armed.compare_exchange(armed, at, Ordering::AcqRel, Ordering::Acquire) {
                Ok(_) => break,
                Err(now) => armed = now,
            }
        }
        let mut set = at;
        loop {
            self.alarm.set(set);
            let entered = self.armed.load(Ordering::Acquire);
            if entered == set || entered == NEVER || !AGAIN {
                return;
            }
            set = entered;
        }
    }

    fn fired(&self) {
        self.armed.store(NEVER, Ordering::Release);
    }
}

/// A CPU with a timer and the deadlines of three instances.
struct Scene<T> {
    timer: T,
    /// Relaxed: the timer's protocol makes the interrupt thread see them.
    deadlines: [AtomicU64; 3],
    slacks: [Slack; 3],
}

impl<T: Timers> Scene<T> {
    /// The first instance has a deadline, and the timer is set for it.
    fn new(first: Ns) -> Arc<Self> {
        let deadlines = [(); 3].map(|()| AtomicU64::new(NEVER));
        let slacks = [(); 3].map(|()| Slack::default());
        let scene = Arc::new(Scene { timer: T::new(), deadlines, slacks });
        scene.arm(0, first);
        scene
    }

    /// Does what `Shared::arm` does, and the core before it.
    fn arm(&self, instance: usize, at: Ns) {
        self.deadlines[instance].store(at, Relaxed);
        self.timer.bring_forward(self.slacks[instance].armed(at));
    }

    /// Does what the interrupt thread does when the timer fires (`drive::expire`).
    fn expire(&self) {
        let Some(now) = self.timer.alarm().fire() else { return };
        self.timer.fired();
        let mut next = NEVER;
        for (deadline, slack) in self.deadlines.iter().zip(&self.slacks) {
            let at = deadline.load(Relaxed);
            if at <= now {
                slack.passed();
                let _ = deadline.compare_exchange(at, NEVER, Relaxed, Relaxed);
            }
            next = next.min(slack.looked(deadline.load(Relaxed), now));
        }
        self.timer.bring_forward(next);
    }

    /// Starts a thread that arms a deadline.
    fn armer(self: &Arc<Self>, instance: usize, at: Ns) -> JoinHandle<()> {
        let scene = self.clone();
        spawn(move || scene.arm(instance, at))
    }

    /// Checks, once all threads have ended, that each deadline will be noticed.
    fn check(&self) {
        let alarm = self.timer.alarm().at();
        for deadline in &self.deadlines {
            let at = deadline.load(Relaxed);
            assert!(
                at == NEVER || alarm <= at + SLACK_MAX,
                "nobody will notice {at}: the alarm is set for {alarm}"
            );
        }
    }
}

const MS: Ns = MILLISECOND;

/// Other threads arm deadlines while the timer fires, `expiries` times.
fn entered<T: Timers>(entered: &'static [(usize, Ns)], expiries: usize) -> impl Fn() {
    move || {
        let scene = Scene::<T>::new(MS);
        let threads: Vec<_> = entered.iter().map(|(of, at)| scene.armer(*of, *at)).collect();
        (0..expiries).for_each(|_| scene.expire());
        threads.into_iter().for_each(|thread| thread.join().expect("an armer"));
        scene.check();
        // Nor does anything keep a later deadline from being armed.
        scene.arm(1, 50 * MS);
        scene.check();
        // Each expiry is followed by the next until all have passed.
        for _ in 0..8 {
            scene.expire();
            scene.check();
        }
        let left = scene.deadlines.iter().filter(|it| it.load(Relaxed) != NEVER).count();
        assert_eq!(left, 0, "deadlines that never pass");
    }
}

#[test]
fn a_deadline_entered_while_the_timer_fires_is_noticed() {
    explore(entered::<Timer>(&[(1, 3 * MS)], 1));
    explore(entered::<Timer>(&[(1, 3 * MS)], 2));
}

#[test]
fn a_deadline_that_moves_while_the_timer_fires_for_it_is_noticed() {
    explore(entered::<Timer>(&[(0, 3 * MS)], 2));
}

#[test]
fn two_threads_that_enter_deadlines_leave_the_earlier_one_set() {
    explore(entered::<Timer>(&[(1, MS / 2), (2, MS / 4)], 0));
}

#[test]
fn two_deadlines_entered_while_the_timer_fires_are_noticed() {
    explore_within(2, entered::<Timer>(&[(1, 3 * MS), (2, 2 * MS)], 1));
}

#[test]
#[should_panic(expected = "nobody will notice")]
fn without_the_fences_a_deadline_is_lost() {
    explore(entered::<Stored<true>>(&[(1, 3 * MS)], 1));
}

#[test]
#[should_panic(expected = "nobody will notice")]
fn without_the_second_look_the_later_deadline_is_set_last() {
    explore(entered::<Stored<false>>(&[(1, MS / 2), (2, MS / 4)], 0));
}
