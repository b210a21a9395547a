//! How long a suspension lasts: never longer than its timeout after the last poll, whichever context waits.

use crate::world::talk::{ID, Talk};
use napkin_core::*;

const US: Ns = MICROSECOND;
const TIMEOUT: Ns = 20 * MILLISECOND;

/// Serves one packet at the present time: interrupt, poll, delivery.
fn serve_one(talk: &Talk) {
    talk.arrive(1);
    talk.interrupt(ID);
    assert!(talk.softirq().starts_with("poll 64 -> 1, deliver, timer"));
}

fn wait(talk: &Talk, context: &EpollContext) -> String {
    talk.hear(EpollWait::new(&talk.host, context, Some(0), false)).run()
}

#[test]
fn a_list_that_never_runs_empty_delays_a_packet_by_the_timeout_at_the_most() {
    let talk = Talk::new("suspend20");
    let context = talk.context(0, 64, true);
    context.follow(ID);
    serve_one(&talk);
    assert_eq!(wait(&talk, &context), "look -> 1, timer +20ms");
    // The event stays (level-triggered, never read): each wait returns at once, and polls nothing.
    talk.arrive(1);
    for ms in 1..20 {
        talk.at(ms * MILLISECOND);
        assert_eq!(wait(&talk, &context), format!("look -> 1, timer +{}ms", 20 - ms));
        assert_eq!(talk.timer(), "nothing");
    }
    talk.at(TIMEOUT);
    // The suspension is over now: there is nothing to prolong, and the timer has the ring polled.
    assert_eq!(wait(&talk, &context), "look -> 1");
    assert_eq!(talk.timer(), "raise");
    assert_eq!(talk.softirq(), "poll 64 -> 1, deliver, timer +20us");
    // That was a poll: the next wait suspends anew.
    assert_eq!(wait(&talk, &context), "look -> 2, timer +20ms");
}

#[test]
fn linux_puts_the_timer_off_at_every_wait() {
    let talk = Talk::new("suspend20");
    talk.host.set_rules(KernelRules { prolongs_without_poll: true, ..KernelRules::default() });
    let context = talk.context(0, 64, true);
    context.follow(ID);
    serve_one(&talk);
    talk.arrive(1);
    for ms in 0..200 {
        talk.at(ms * MILLISECOND);
        assert_eq!(talk.timer(), "nothing");
        assert_eq!(wait(&talk, &context), "look -> 1, timer +20ms");
    }
    assert_eq!(talk.device(ID).waiting(), 1, "for a fifth of a second, ten times the timeout");
}

#[test]
fn whoever_polls_prolongs() {
    let talk = Talk::new("suspend20");
    let context = talk.context(0, 64, true);
    context.follow(ID);
    serve_one(&talk);
    wait(&talk, &context);
    talk.read();
    // A busy application: each wait finds its list empty, polls, and suspends by that poll.
    for n in 1..=100 {
        talk.at(n * 10 * MILLISECOND);
        talk.arrive(1);
        let steps = talk.hear(EpollWait::new(&talk.host, &context, None, false)).run();
        assert!(steps.ends_with("look -> 1, timer +20ms"), "{steps}");
        assert_eq!(talk.timer(), "nothing");
        talk.read();
    }
    assert_eq!(talk.counts().timer_polls, 0);
}

#[test]
fn a_batch_that_takes_several_waits_stays_suspended_until_it_is_done() {
    let talk = Talk::new("suspend20");
    let context = talk.context(0, 64, true);
    context.follow(ID);
    serve_one(&talk);
    for us in [0, 500, 1_000, 5_000] {
        talk.at(us * US);
        wait(&talk, &context);
        assert_eq!(talk.host.instance(ID).deadline(), TIMEOUT);
    }
    assert_eq!(talk.host.instance(ID).suspending_contexts(), 1);
}

#[test]
fn other_contexts_cannot_put_it_off_by_turns() {
    let talk = Talk::new("suspend20");
    let contexts = [(); 4].map(|()| talk.context(0, 64, true));
    serve_one(&talk);
    for (n, context) in (0..).zip(&contexts) {
        context.follow(ID);
        talk.at(n * 5 * MILLISECOND);
        wait(&talk, context);
        assert_eq!(talk.host.instance(ID).deadline(), TIMEOUT);
    }
    assert_eq!(talk.host.instance(ID).suspending_contexts(), 4);
    talk.at(TIMEOUT);
    assert_eq!(talk.timer(), "raise");
    assert_eq!(talk.host.instance(ID).suspending_contexts(), 0);
}

#[test]
fn an_idle_instance_is_not_suspended_by_events_of_something_else() {
    let talk = Talk::new("suspend20");
    let context = talk.context(0, 64, true);
    serve_one(&talk);
    while talk.masked() {
        talk.at(talk.host.instance(ID).deadline());
        talk.timer();
        talk.softirq();
    }
    context.follow(ID);
    talk.pass(1_000 * MILLISECOND);
    // The context's list is not empty; nothing was polled for a second. The interrupt is unmasked, and stays so.
    assert_eq!(wait(&talk, &context), "look -> 1");
    assert_eq!(talk.host.instance(ID).deadline(), NEVER);
    talk.arrive(1);
    assert_eq!(talk.interrupt(ID), "mask, raise");
}

#[test]
fn a_suspension_ends_where_the_interrupt_returns() {
    let talk = Talk::new("suspend20");
    let (stalled, other) = (talk.context(0, 64, true), talk.context(0, 64, true));
    stalled.follow(ID);
    other.follow(ID);
    serve_one(&talk);
    wait(&talk, &stalled);
    assert_eq!(talk.host.instance(ID).suspending_contexts(), 1);
    // Deferral is switched off for a moment: the next poll unmasks, and cancels the timer.
    talk.set(|policy| policy.defer_hard_irqs = 0);
    talk.host.schedule(ID, RaisedFrom::Interrupt).map(|op| talk.word(op));
    assert_eq!(talk.softirq(), "poll 64 -> 0, unmask");
    assert_eq!(talk.host.instance(ID).suspending_contexts(), 0);
    talk.set(|policy| policy.defer_hard_irqs = 100);
    // A second later, fifty times the timeout, the stalled context no longer delays the queue.
    talk.pass(1_000 * MILLISECOND);
    serve_one(&talk);
    assert_eq!(wait(&talk, &other), "look -> 2, timer +20ms");
    talk.read();
    let steps = talk.hear(EpollWait::new(&talk.host, &other, None, false)).run();
    assert!(steps.ends_with("run here (poll 64 -> 0, timer +20us), sleep"), "{steps}");
}

#[test]
fn a_park_ends_when_it_would_have_however_long_a_suspension_may_last() {
    let talk = Talk::new("suspend20,feedback=on,irq-suspend-timeout=5s");
    talk.sockets.borrow_mut()[0].capacity = 4;
    let context = talk.context(0, 64, true);
    context.follow(ID);
    talk.arrive(3);
    talk.interrupt(ID);
    assert_eq!(talk.softirq(), "poll 64 -> 3, deliver: full, timer +20ms");
    // The wait finds events, and the application does not read them.
    assert_eq!(wait(&talk, &context), "look -> 3");
    assert_eq!(talk.host.instance(ID).suspending_contexts(), 1);
    assert_eq!(talk.host.instance(ID).deadline(), TIMEOUT);
    talk.arrive(2);
    talk.at(TIMEOUT);
    assert_eq!(talk.timer(), "raise");
    assert_eq!(talk.softirq(), "poll 64 -> 2, deliver: full, timer +20ms");
    // Drained, and polled again: no longer parked, but suspended for as long as was requested.
    talk.read();
    talk.arrive(1);
    let polls = talk.host.schedule(ID, RaisedFrom::Application).map(|op| talk.word(op));
    assert_eq!(polls.as_deref(), Some("run here (poll 64 -> 1, deliver, timer +4980ms)"));
    assert_eq!(wait(&talk, &context), "look -> 1, timer +5000ms");
}

#[test]
fn a_context_that_prefers_no_longer_ends_its_part_when_it_finds_nothing() {
    // With a busy-poll time the wait polls in vain; without one it sleeps at once.
    for usecs in [10, 0] {
        let talk = Talk::new("suspend20");
        let context = talk.context(usecs, 64, true);
        context.follow(ID);
        serve_one(&talk);
        wait(&talk, &context);
        assert_eq!(talk.host.instance(ID).suspending_contexts(), 1);
        talk.read();
        let params = context.params();
        context.set(napkin_policy::EpollPolicy { prefer_busy_poll: false, ..params });
        talk.poll_cost.set(20 * US);
        let steps = talk.hear(EpollWait::new(&talk.host, &context, None, false)).run();
        assert!(steps.ends_with("run here (poll 64 -> 0, timer +20us), sleep"), "{usecs}: {steps}");
        assert_eq!(steps.matches("poll").count(), if usecs > 0 { 3 } else { 1 }, "{steps}");
        assert_eq!(talk.host.instance(ID).suspending_contexts(), 0);
    }
}
