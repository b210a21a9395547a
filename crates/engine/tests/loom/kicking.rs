//! Kicks: nothing that was raised before a kick waits for ever.

use std::sync::Arc;

use loom::sync::atomic::{AtomicBool, Ordering::Relaxed};
use loom::thread::spawn;

use crate::explore;
use crate::kick::Kick;
use crate::os::Event;
use crate::sync::{self, Ordering};

/// The protocol, in its present and its former version.
trait Kicks: Send + Sync + 'static {
    fn new() -> Self;
    fn kick(&self);
    /// The interrupt thread sleeps until it is kicked, and records that it will look.
    fn take(&self);
}

impl Kicks for Kick {
    fn new() -> Kick {
        Kick::new(Event::default())
    }

    fn kick(&self) {
        Kick::kick(self);
    }

    fn take(&self) {
        self.event().wait();
        self.seen();
    }
}

/// The former version: a store does not see what was raised by threads that found it kicked already.
struct Stored {
    event: Event,
    kicked: sync::AtomicBool,
}

impl Kicks for Stored {
    fn new() -> Stored {
        Stored { event: Event::default(), kicked: sync::AtomicBool::new(false) }
    }

    fn kick(&self) {
        if !self.kicked.swap(true, Ordering::AcqRel) {
            self.event.signal();
        }
    }

    fn take(&self) {
        self.event.wait();
        self.kicked.store(false, Ordering::Release);
    }
}

/// Two threads raise something and kick; the interrupt thread sleeps until it has found both.
fn two_raise<K: Kicks>() {
    // Relaxed: it is the kick that hands over what was raised.
    let kick = Arc::new(K::new());
    let raised = Arc::new([AtomicBool::new(false), AtomicBool::new(false)]);
    for index in 0..2 {
        let (kick, raised) = (kick.clone(), raised.clone());
        spawn(move || {
            raised[index].store(true, Relaxed);
            kick.kick();
        });
    }
    while !raised.iter().all(|it| it.load(Relaxed)) {
        kick.take();
    }
}

/// One thread raises something twice.
fn one_raises_twice<K: Kicks>() {
    let kick = Arc::new(K::new());
    let raised = Arc::new([AtomicBool::new(false), AtomicBool::new(false)]);
    let (kicker, flags) = (kick.clone(), raised.clone());
    spawn(move || {
        for it in flags.iter() {
            it.store(true, Relaxed);
            kicker.kick();
        }
    });
    while !raised.iter().all(|it| it.load(Relaxed)) {
        kick.take();
    }
}

#[test]
fn nothing_that_two_threads_raise_is_lost() {
    explore(two_raise::<Kick>);
}

#[test]
fn nothing_that_one_thread_raises_twice_is_lost() {
    explore(one_raises_twice::<Kick>);
}

#[test]
#[should_panic(expected = "deadlock")]
fn with_a_store_what_two_threads_raise_is_lost() {
    explore(two_raise::<Stored>);
}

#[test]
#[should_panic(expected = "deadlock")]
fn with_a_store_what_one_thread_raises_twice_is_lost() {
    explore(one_raises_twice::<Stored>);
}
