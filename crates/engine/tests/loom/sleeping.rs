//! Parking: a thread that looks, finds nothing and sleeps is woken by the thread that brings something.

use std::sync::Arc;

use loom::sync::atomic::{AtomicBool, Ordering::Relaxed};
use loom::thread::{JoinHandle, spawn};
use napkin_core::{NEVER, Ns};

use crate::parker::Parker;
use crate::sync::{AtomicU32, Ordering};
use crate::{explore, os};

/// The protocol, in its present version and in a wrong one.
trait Parks: Default + Send + Sync + 'static {
    fn park(&self, deadline: Ns);
    fn forget(&self);
    fn unpark(&self);
}

impl Parks for Parker {
    fn park(&self, deadline: Ns) {
        Parker::park(self, deadline, || {});
    }

    fn forget(&self) {
        Parker::forget(self);
    }

    fn unpark(&self) {
        Parker::unpark(self);
    }
}

/// Discards wake-ups by a store, which does not see what they were for.
#[derive(Default)]
struct Stored(AtomicU32);

impl Parks for Stored {
    fn park(&self, deadline: Ns) {
        if self.0.compare_exchange(0, 2, Ordering::AcqRel, Ordering::Relaxed).is_ok() {
            os::sleep(&self.0, 2, deadline);
        }
        self.0.store(0, Ordering::Release);
    }

    fn forget(&self) {
        self.0.store(0, Ordering::Release);
    }

    fn unpark(&self) {
        if self.0.swap(1, Ordering::AcqRel) == 2 {
            os::wake(&self.0);
        }
    }
}

struct Scene<P> {
    parker: P,
    /// Relaxed: it is the wake-up that hands over what was brought.
    brought: [AtomicBool; 2],
}

impl<P: Parks> Scene<P> {
    fn new() -> Arc<Self> {
        let brought = [AtomicBool::new(false), AtomicBool::new(false)];
        Arc::new(Scene { parker: P::default(), brought })
    }

    fn bring(&self, index: usize) {
        self.brought[index].store(true, Relaxed);
        self.parker.unpark();
    }

    fn has(&self, index: usize) -> bool {
        self.brought[index].load(Relaxed)
    }

    /// Another thread brings one of the two.
    fn bringer(self: &Arc<Self>, index: usize) -> JoinHandle<()> {
        let scene = self.clone();
        spawn(move || scene.bring(index))
    }
}

/// Two threads bring something each.
fn two_bring<P: Parks>() {
    let scene = Scene::<P>::new();
    let threads = [scene.bringer(0), scene.bringer(1)];
    while !(scene.has(0) && scene.has(1)) {
        scene.parker.park(NEVER);
    }
    threads.into_iter().for_each(|thread| thread.join().expect("a bringer"));
}

/// One thread brings one thing after the other, and the sleeper takes one after the other; before each it discards
/// wake-ups, as a wait of the application does.
fn waits_forget_wake_ups<P: Parks>() {
    let scene = Scene::<P>::new();
    let shared = scene.clone();
    let thread = spawn(move || (0..2).for_each(|index| shared.bring(index)));
    for index in 0..2 {
        scene.parker.forget();
        while !scene.has(index) {
            scene.parker.park(NEVER);
        }
    }
    thread.join().expect("a bringer");
}

/// Sleeps that end because their time is up, then one that does not.
fn after_sleeps_that_time_out<P: Parks>() {
    let scene = Scene::<P>::new();
    let threads = [scene.bringer(0), scene.bringer(1)];
    scene.parker.park(0);
    while !(scene.has(0) && scene.has(1)) {
        scene.parker.park(NEVER);
    }
    threads.into_iter().for_each(|thread| thread.join().expect("a bringer"));
}

#[test]
fn a_sleeper_finds_what_two_threads_bring() {
    explore(two_bring::<Parker>);
}

#[test]
fn a_wake_up_that_a_wait_forgets_is_not_missed() {
    explore(waits_forget_wake_ups::<Parker>);
}

#[test]
fn a_sleep_that_timed_out_takes_no_wake_up_with_it() {
    explore(after_sleeps_that_time_out::<Parker>);
}

#[test]
#[should_panic(expected = "deadlock")]
fn with_a_store_what_two_threads_bring_is_missed() {
    explore(two_bring::<Stored>);
}

#[test]
#[should_panic(expected = "deadlock")]
fn with_a_store_a_wait_forgets_more_than_the_wake_up() {
    explore(waits_forget_wake_ups::<Stored>);
}

#[test]
#[should_panic(expected = "deadlock")]
fn with_a_store_a_sleep_that_timed_out_takes_a_wake_up_with_it() {
    explore(after_sleeps_that_time_out::<Stored>);
}
