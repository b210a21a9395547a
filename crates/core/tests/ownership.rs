//! One owner at a time, whatever safe code does: a second loop of a thread, a change of the queue that panics.

use std::panic::{AssertUnwindSafe, catch_unwind};

use crate::world::talk::{CPU, ID, Talk};
use napkin_core::*;

#[test]
fn of_two_loops_of_one_thread_one_owns_the_instance() {
    let talk = Talk::new("threaded");
    talk.arrive(1);
    talk.interrupt(ID);
    let mut one = talk.hear(Kthread::new(&talk.host, ID));
    let mut other = talk.hear(Kthread::new(&talk.host, ID));
    assert_eq!(one.run_next(1), "poll 64 -> 1");
    assert_eq!(other.run(), "sleep");
    let touches = AssertUnwindSafe(|| {
        other.pass.queue();
    });
    let touched = catch_unwind(touches);
    assert!(touched.is_err(), "the queue of an instance that another owns");
    assert_eq!(one.run(), "deliver, unmask, sleep");
}

#[test]
fn what_one_loop_of_a_thread_lost_another_finds() {
    let talk = Talk::new("threaded");
    talk.arrive(1);
    talk.interrupt(ID);
    let mut lost = talk.hear(Kthread::new(&talk.host, ID));
    lost.run_next(1);
    drop(lost);
    // The softirq finds the instance, and hands it to its thread.
    assert_eq!(talk.softirq(), "poll 64 -> 0, wake napi");
    assert_eq!(talk.hear(Kthread::new(&talk.host, ID)).run(), "poll 64 -> 0, unmask, sleep");
}

#[test]
fn a_change_of_the_queue_that_panics_leaves_the_instance_disabled() {
    let talk = Talk::new("base");
    talk.hear(Disable::new(&talk.host, ID).expect("it is enabled")).run();
    let panics = || talk.host.change_queue(ID, |_| panic!("the queue's drop panics"));
    assert!(catch_unwind(AssertUnwindSafe(panics)).is_err());
    let state = talk.host.instance(ID).state();
    assert!(state.disabled() && !state.has(state::DISABLE), "{state:?}");
    assert_eq!(talk.host.cpu(CPU).pending(), 0);
    assert_eq!(talk.softirq(), "", "nobody polls a disabled queue");
    // It can be changed, and enabled, as before.
    talk.host.change_queue(ID, |_| ()).expect("it is disabled");
    assert_eq!(talk.enable(ID), "unmask");
}

#[test]
fn a_poll_with_budget_0_masks_before_it_hands_over() {
    let talk = Talk::new("threaded");
    let mut reap = talk.hear(TxPoll::new(&talk.host, ID));
    assert_eq!(reap.run_next(1), "poll 0 -> 0");
    talk.arrive(1);
    assert_eq!(talk.interrupt(ID), "");
    // The interrupt found an owner and did not mask; the poll with budget 0 masks before it hands over.
    assert_eq!(reap.run(), "mask, wake napi");
    assert!(talk.masked());
    assert_eq!(
        talk.hear(Kthread::new(&talk.host, ID)).run(),
        "poll 64 -> 1, deliver, unmask, sleep"
    );
}
