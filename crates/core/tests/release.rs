//! A context that gives up an instance leaves nothing behind: no timer beside a new owner, no suspension of an
//! instance that it no longer follows, no mark that no owner will see.

use crate::world::Port;
use crate::world::talk::{CPU, ID, Speaker, Talk};
use napkin_core::*;
use napkin_policy::Threaded;

const OTHER: Id = Id(1);

fn wait<'t>(talk: &'t Talk, context: &'t EpollContext) -> Speaker<'t, EpollWait<'t, Port>> {
    talk.hear(EpollWait::new(&talk.host, context, None, false))
}

fn suspensions(talk: &Talk, id: Id) -> u32 {
    talk.host.instance(id).suspending_contexts()
}

/// A session that prefers busy polling, with deferral, has found a packet and is about to leave the
/// ring to the timer.
fn about_to_leave<'t>(
    talk: &'t Talk,
    context: &'t EpollContext,
) -> Speaker<'t, EpollWait<'t, Port>> {
    context.follow(ID);
    let mut waiting = wait(talk, context);
    assert_eq!(waiting.run_next(1), "look -> 0");
    talk.arrive(1);
    assert_eq!(waiting.run_next(3), "poll 8 -> 1, deliver, look -> 1");
    waiting
}

#[test]
fn a_session_leaves_to_a_thread_that_never_stops_polling_and_not_to_the_timer() {
    let talk = Talk::new("defer20");
    let context = talk.context(50, 8, true);
    let mut waiting = about_to_leave(&talk, &context);
    talk.set(|policy| policy.threaded = Threaded::BusyPoll);
    assert_eq!(waiting.run(), "wake napi, look -> 1");
    assert_eq!(talk.host.instance(ID).deadline(), NEVER);
    let mut thread = talk.hear(Kthread::new(&talk.host, ID));
    assert_eq!(thread.run_next(2), "poll 64 -> 0, pause");
}

#[test]
fn a_session_leaves_a_disabled_instance_without_a_timer() {
    let talk = Talk::new("defer20");
    let context = talk.context(50, 8, true);
    let mut waiting = about_to_leave(&talk, &context);
    let mut disable = talk.hear(Disable::new(&talk.host, ID).expect("in service"));
    assert_eq!(disable.run_next(1), "sleep 50us");
    assert_eq!(waiting.run(), "look -> 1");
    assert_eq!(disable.run(), "mask");
    assert_eq!(talk.host.instance(ID).deadline(), NEVER);
}

/// Two queues; a context suspends the first, and follows the second from now on.
fn moved_on(timeout: Ns) -> (Talk, EpollContext) {
    let talk = Talk::of("suspend20", 1, 2);
    let context = talk.context(0, 8, true);
    context.follow(ID);
    talk.arrive(1);
    talk.interrupt(ID);
    talk.softirq();
    assert_eq!(wait(&talk, &context).run(), "look -> 1, timer +20ms");
    assert_eq!(suspensions(&talk, ID), 1);
    let mut policy = talk.host.instance(OTHER).settings();
    policy.irq_suspend_timeout = timeout;
    talk.host.set(OTHER, &policy).expect("within its limits");
    context.follow(OTHER);
    (talk, context)
}

#[test]
fn a_context_that_moves_on_to_a_queue_without_suspension_ends_its_own() {
    let (talk, context) = moved_on(0);
    // No other context suspends the first instance: it is polled at once.
    assert_eq!(wait(&talk, &context).run(), "look -> 1, run here (#0 poll 64 -> 0, timer +20us)");
    assert_eq!((suspensions(&talk, ID), suspensions(&talk, OTHER)), (0, 0));
}

#[test]
fn a_context_that_moves_on_to_a_queue_that_is_not_polled_ends_its_suspension() {
    let (talk, context) = moved_on(20 * MILLISECOND);
    // The first instance's timer has not fired yet when the wait comes.
    talk.at(21 * MILLISECOND);
    assert_eq!(wait(&talk, &context).run(), "look -> 1, run here (#0 poll 64 -> 0, timer +20us)");
    assert_eq!((suspensions(&talk, ID), suspensions(&talk, OTHER)), (0, 0));
}

#[test]
fn a_context_that_stays_where_suspension_is_switched_off_lets_the_timer_end_it() {
    let talk = Talk::new("suspend20");
    let context = talk.context(0, 8, true);
    context.follow(ID);
    talk.arrive(1);
    talk.interrupt(ID);
    talk.softirq();
    assert_eq!(wait(&talk, &context).run(), "look -> 1, timer +20ms");
    talk.set(|policy| policy.irq_suspend_timeout = 0);
    assert_eq!(wait(&talk, &context).run(), "look -> 1");
    assert_eq!(suspensions(&talk, ID), 1);
    talk.at(20 * MILLISECOND);
    assert_eq!(talk.timer(), "raise");
    assert_eq!(suspensions(&talk, ID), 0);
}

#[test]
fn a_disable_ends_every_suspension() {
    let talk = Talk::new("suspend20");
    let contexts = [talk.context(0, 8, true), talk.context(0, 8, true)];
    talk.arrive(1);
    talk.interrupt(ID);
    talk.softirq();
    for context in &contexts {
        context.follow(ID);
        assert_eq!(wait(&talk, context).run(), "look -> 1, timer +20ms");
    }
    assert_eq!(suspensions(&talk, ID), 2);
    assert_eq!(talk.hear(Disable::new(&talk.host, ID).expect("in service")).run(), "mask");
    assert_eq!((suspensions(&talk, ID), talk.host.instance(ID).deadline()), (0, NEVER));
    // Enabled again, deferral uses its own period, not the former suspension.
    talk.enable(ID);
    talk.arrive(1);
    talk.interrupt(ID);
    assert_eq!(talk.softirq(), "poll 64 -> 1, deliver, timer +20us");
}

#[test]
fn a_disable_that_is_given_up_after_it_masked_ends_every_suspension() {
    let talk = Talk::new("suspend20");
    let context = talk.context(0, 8, true);
    context.follow(ID);
    talk.arrive(1);
    talk.interrupt(ID);
    talk.softirq();
    wait(&talk, &context).run();
    assert_eq!(suspensions(&talk, ID), 1);
    let mut disable = talk.hear(Disable::new(&talk.host, ID).expect("in service"));
    assert_eq!(disable.run_next(1), "mask");
    drop(disable);
    assert!(talk.host.instance(ID).state().disabled());
    assert_eq!((suspensions(&talk, ID), talk.host.instance(ID).deadline()), (0, NEVER));
}

#[test]
fn a_full_receiver_parks_no_queue_that_was_interrupted_meanwhile() {
    let talk = Talk::new("feedback");
    talk.host.set_order(ID, Order::UnmaskFirst);
    talk.sockets.borrow_mut()[0].capacity = 4;
    talk.arrive(3);
    talk.interrupt(ID);
    let mut softirq =
        talk.hear(Softirq::new(&talk.host, CPU, Context::Interrupt { competition: false }));
    assert_eq!(softirq.run_next(2), "poll 64 -> 3, unmask");
    talk.arrive(1);
    assert_eq!(talk.interrupt(ID), "");
    // The release would find the mark, so no timer is set for the time after it.
    assert_eq!(softirq.run_next(2), "deliver: full, mask");
    assert_eq!((talk.counts().parks, talk.host.instance(ID).deadline()), (0, NEVER));
    assert_eq!(softirq.run(), "poll 64 -> 1, unmask, deliver: full, timer +20ms, mask");
    assert_eq!(talk.counts().parks, 1);
}
