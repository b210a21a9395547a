//! How a busy-poll session stops: who takes over, after how many polls, and when another thread wants the CPU.

use crate::world::Port;
use crate::world::talk::{ID, Speaker, Talk};
use napkin_core::*;
use napkin_policy::ApplicationPolicy;

fn wait<'t>(talk: &'t Talk, context: &'t EpollContext) -> Speaker<'t, EpollWait<'t, Port>> {
    talk.hear(EpollWait::new(&talk.host, context, None, false))
}

/// The steps of a session with a budget of 8 whose time is up while 30 frames are in the ring.
fn lets_go_of_a_full_ring(talk: &Talk, prefer: bool) -> String {
    let context = talk.context(50, 8, prefer);
    context.follow(ID);
    let mut waiting = wait(talk, &context);
    assert_eq!(waiting.run_next(1), "look -> 0");
    talk.arrive(30);
    assert_eq!(waiting.run_next(3), "poll 8 -> 8, deliver, look -> 8");
    waiting.run()
}

#[test]
fn without_prefer_a_full_last_poll_hands_the_ring_to_the_softirq() {
    // Deferral or not: only sessions that prefer busy polling leave to the timer.
    for policy in ["base", "defer20", "suspend20"] {
        let talk = Talk::new(policy);
        let steps = lets_go_of_a_full_ring(&talk, false);
        assert!(steps.starts_with("poll 8 -> 8, deliver, run here (poll 64 -> 14, "), "{steps}");
        assert_eq!(talk.device(ID).waiting(), 0);
    }
}

#[test]
fn without_prefer_another_s_wish_for_room_changes_nothing() {
    let talk = Talk::new("defer20");
    let context = talk.context(50, 8, false);
    context.follow(ID);
    let mut waiting = wait(&talk, &context);
    waiting.run_next(1);
    talk.arrive(30);
    waiting.run_next(3);
    // A session that prefers busy polling loses the claim, and leaves its mark.
    let other = talk.context(0, 8, true);
    other.follow(ID);
    talk.read();
    assert!(wait(&talk, &other).run().ends_with("sleep"));
    assert!(talk.host.instance(ID).state().has(state::PREFER_BUSY_POLL));
    talk.at(60 * MICROSECOND);
    assert!(waiting.run().contains("poll 8 -> 8, deliver, run here (poll 64 -> 14"));
}

#[test]
fn making_room_for_a_session_is_one_of_the_deferrals() {
    let talk = Talk::new("defer20,defer-hard-irqs=3");
    talk.arrive(64);
    talk.interrupt(ID);
    let context = talk.context(0, 8, true);
    context.follow(ID);
    assert!(wait(&talk, &context).run().ends_with("sleep"));
    assert_eq!(talk.softirq(), "poll 64 -> 64, deliver, timer +20us");
    for outcome in ["timer +20us", "timer +20us", "unmask"] {
        talk.pass(20 * MICROSECOND);
        assert_eq!(talk.timer(), "raise");
        assert_eq!(talk.softirq(), format!("poll 64 -> 0, {outcome}"));
    }
    assert_eq!(talk.counts().deferrals, 3);
}

#[test]
fn with_prefer_and_deferral_the_timer_has_the_ring_at_once() {
    let talk = Talk::new("defer20");
    assert_eq!(lets_go_of_a_full_ring(&talk, true), "timer +20us, look -> 8");
    assert_eq!(talk.device(ID).waiting(), 22);
}

#[test]
fn a_kernel_before_may_2026_polls_once_more_before_the_timer_has_the_ring() {
    let talk = Talk::new("defer20");
    talk.host.set_rules(KernelRules { session_polls_once_more: true, ..KernelRules::default() });
    let steps = lets_go_of_a_full_ring(&talk, true);
    assert_eq!(steps, "poll 8 -> 8, deliver, timer +20us, look -> 16");
    // If the ring is drained, that poll completes like any other.
    let context = talk.context(0, 8, true);
    context.follow(ID);
    talk.read();
    talk.at(20 * MICROSECOND);
    assert_eq!(talk.timer(), "raise");
    talk.softirq();
    talk.read();
    assert_eq!(
        wait(&talk, &context).run(),
        "look -> 0, poll 8 -> 0, look -> 0, poll 8 -> 0, timer +20us, look -> 0, sleep"
    );
    assert_eq!(
        talk.host.rules(),
        KernelRules { session_polls_once_more: true, ..KernelRules::default() }
    );
}

#[test]
fn a_session_lets_go_and_yields_when_another_thread_wants_the_cpu_and_then_goes_on() {
    let talk = Talk::new("base");
    let context = talk.context(50, 8, false);
    context.follow(ID);
    let mut waiting = wait(&talk, &context);
    assert_eq!(waiting.run_next(3), "look -> 0, poll 8 -> 0, look -> 0");
    talk.need_resched.set(true);
    assert_eq!(waiting.run_next(2), "poll 8 -> 0, look -> 0");
    // Released, not only paused: the interrupt is unmasked while the other thread runs.
    assert_eq!(waiting.run_next(3), "poll 8 -> 0, unmask, look -> 0");
    assert!(!talk.host.instance(ID).state().has(state::SCHED) && !talk.masked());
    assert_eq!(waiting.run_next(1), "resched");
    talk.need_resched.set(false);
    assert_eq!(waiting.run_next(3), "look -> 0, poll 8 -> 0, look -> 0");
    assert_eq!(talk.counts().busy_claims, 2);
    talk.at(60 * MICROSECOND);
    assert_eq!(waiting.run(), "poll 8 -> 0, unmask, look -> 0, sleep");
}

#[test]
fn with_prefer_and_deferral_the_timer_has_the_ring_while_another_thread_runs() {
    let talk = Talk::new("defer20");
    talk.arrive(1);
    talk.interrupt(ID);
    talk.softirq();
    talk.read();
    let context = talk.context(50, 8, true);
    context.follow(ID);
    let mut waiting = wait(&talk, &context);
    waiting.run_next(2);
    talk.need_resched.set(true);
    assert_eq!(waiting.run_next(4), "look -> 0, timer +20us, look -> 0, resched");
    assert!(talk.masked());
    // What the timer's softirq delivered meanwhile is found before anything is polled.
    talk.need_resched.set(false);
    talk.arrive(3);
    talk.at(20 * MICROSECOND);
    assert_eq!(talk.timer(), "raise");
    talk.softirq();
    assert_eq!(waiting.run(), "look -> 3, look -> 3");
}

#[test]
fn a_driver_that_unmasks_first_is_told_of_the_other_thread_at_its_masking() {
    let talk = Talk::new("base");
    talk.host.set_order(ID, Order::UnmaskFirst);
    let context = talk.context(1_000, 8, false);
    context.follow(ID);
    let mut waiting = wait(&talk, &context);
    assert_eq!(waiting.run_next(3), "look -> 0, poll 8 -> 0, unmask");
    talk.need_resched.set(true);
    assert_eq!(waiting.run_next(1), "mask");
    talk.need_resched.set(false);
    assert_eq!(waiting.run_next(5), "look -> 0, poll 8 -> 0, unmask, look -> 0, resched");
}

#[test]
fn what_the_poll_that_let_go_brought_is_returned_without_yielding() {
    let talk = Talk::new("base");
    let context = talk.context(50, 8, false);
    context.follow(ID);
    let mut waiting = wait(&talk, &context);
    waiting.run_next(2);
    talk.need_resched.set(true);
    assert_eq!(waiting.run_next(1), "look -> 0");
    talk.arrive(1);
    assert_eq!(waiting.run(), "poll 8 -> 1, deliver, unmask, look -> 1, look -> 1");
    assert_eq!(waiting.pass.events(), 1);
}

#[test]
fn a_signal_before_or_after_the_other_thread_ran_ends_the_wait() {
    for steps in [4, 5] {
        let talk = Talk::new("suspend20");
        let context = talk.context(50, 8, true);
        context.follow(ID);
        let mut waiting = wait(&talk, &context);
        talk.need_resched.set(true);
        // look, poll, look, timer[, look, resched]
        waiting.run_next(if steps == 4 { 4 } else { 6 });
        talk.signal.set(true);
        assert_eq!(waiting.run(), "look: signal");
        assert_eq!((waiting.pass.events(), context.follows()), (0, None));
    }
}

#[test]
fn a_receive_call_that_busy_polls_gives_way_too() {
    let talk = Talk::new("base");
    let policy = ApplicationPolicy { socket_busy_poll_usecs: 50, ..ApplicationPolicy::default() };
    let mut call = talk.hear(SocketWait::new(&talk.host, policy, Some(ID), None));
    talk.need_resched.set(true);
    assert_eq!(
        call.run_next(6),
        "look -> 0, poll 8 -> 0, look -> 0, poll 8 -> 0, unmask, look -> 0"
    );
    assert_eq!(call.run_next(1), "resched");
    talk.need_resched.set(false);
    assert_eq!(call.run_next(2), "look -> 0, poll 8 -> 0");
}
