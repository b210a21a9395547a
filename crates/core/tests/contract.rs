//! A world's duties towards the core: a debug build panics at each violation, with a message that names it.
#![cfg(debug_assertions)]

use crate::world::talk::{CPU, ID, Talk};
use napkin_core::*;

const INLINE: Context = Context::Interrupt { competition: false };

/// An interrupt pass that has returned its last step before the end, which is not answered yet.
fn given<'t>(talk: &'t Talk, step: Op) -> Interrupt<'t, crate::world::Port> {
    talk.arrive(1);
    let mut interrupt = Interrupt::new(&talk.host, ID);
    assert_eq!(interrupt.next(0, Did::Start), Op::Mask(ID));
    assert_eq!(interrupt.next(0, Did::Ok), step);
    interrupt
}

#[test]
#[should_panic(expected = "Op::Wake is another thread's business")]
fn a_thread_is_not_run_in_the_step_that_wakes_it() {
    let talk = Talk::new("threaded");
    let _interrupt = given(&talk, Op::Wake(Task::Napi(ID)));
    let _nested = Kthread::new(&talk.host, ID);
}

#[test]
#[should_panic(expected = "Op::Wake is another thread's business")]
fn nor_a_worker() {
    let talk = Talk::new("workqueue");
    let _interrupt = given(&talk, Op::Wake(Task::Worker));
    let _nested = Worker::new(&talk.host);
}

#[test]
#[should_panic(expected = "Op::Wake is another thread's business")]
fn nor_ksoftirqd() {
    let talk = Talk::new("ksoftirqd");
    talk.arrive(1);
    talk.interrupt(ID);
    let mut crowded = Softirq::new(&talk.host, CPU, Context::Interrupt { competition: true });
    assert_eq!(crowded.next(0, Did::Start), Op::Wake(Task::Ksoftirqd(CPU)));
    let _nested = Softirq::new(&talk.host, CPU, Context::Ksoftirqd);
}

#[test]
#[should_panic(expected = "Op::Raise runs after Op::Done")]
fn a_softirq_is_not_run_in_the_interrupt_that_raised_it() {
    let talk = Talk::new("base");
    let _interrupt = given(&talk, Op::Raise(CPU));
    let _nested = Softirq::new(&talk.host, CPU, INLINE);
}

#[test]
fn a_pass_that_went_on_or_is_gone_owes_nothing() {
    for policy in ["base", "threaded"] {
        let talk = Talk::new(policy);
        let op = if policy == "base" { Op::Raise(CPU) } else { Op::Wake(Task::Napi(ID)) };
        assert_eq!(given(&talk, op).next(0, Did::Ok), Op::Done);
        drop((Softirq::new(&talk.host, CPU, INLINE), Kthread::new(&talk.host, ID)));
        let talk = Talk::new(policy);
        drop(given(&talk, op));
        drop((Softirq::new(&talk.host, CPU, INLINE), Kthread::new(&talk.host, ID)));
    }
}

#[test]
fn another_thread_may_begin_and_in_a_simulation_this_one_too() {
    let talk = Talk::new("threaded");
    let _interrupt = given(&talk, Op::Wake(Task::Napi(ID)));
    let host = Host::new(1, [(Silent, CPU)]);
    std::thread::scope(|scope| {
        scope.spawn(|| drop(Kthread::new(&host, ID)));
    });
    talk.host.contexts_share_a_thread();
    drop(Kthread::new(&talk.host, ID));
}

/// A queue that other threads may see.
struct Silent;

impl Queue for Silent {
    fn poll(&mut self, _: u16, _: Ns) -> Work {
        Work::NONE
    }

    fn deliver(&mut self, _: Ns) -> Pressure {
        Pressure::Room
    }

    fn mask(&mut self) {}

    fn unmask(&mut self, _: Ns) -> bool {
        false
    }
}

/// Rounds of a frame that the timer or an interrupt delivers, a wait that finds it, and a wait with an empty busy
/// poll. With `follows`, `follow` is called at every delivery, otherwise only once at first.
fn rounds(rounds: u32, follows: bool) {
    let talk = Talk::new("suspend20");
    let context = talk.context(0, 64, true);
    context.follow(ID);
    for round in 0..rounds {
        talk.pass(MILLISECOND);
        talk.arrive(1);
        talk.interrupt(ID);
        talk.timer();
        assert!(talk.softirq().starts_with("poll 64 -> 1, deliver"), "round {round}");
        if follows {
            context.follow(ID);
        }
        talk.hear(EpollWait::new(&talk.host, &context, Some(0), false)).run();
        talk.read();
        talk.hear(EpollWait::new(&talk.host, &context, None, false)).run();
        assert_eq!(context.follows(), None, "a poll in vain forgets the instance");
    }
}

// Calls of `follow` count for the whole process, so that a context is not blamed while others are called. It takes
// as many rounds without a call by another test in between.
#[test]
#[should_panic(expected = "called once, `suspend20` silently becomes a timer policy")]
fn a_context_is_told_at_every_delivery() {
    rounds(150, true);
    rounds(1_000_000, false);
}

/// Delivers a frame without a call of `follow`.
fn deliver(talk: &Talk) {
    talk.pass(MILLISECOND);
    talk.arrive(1);
    talk.interrupt(ID);
    talk.timer();
    assert!(talk.softirq().starts_with("poll 64 -> 1, deliver"));
}

/// A context that has followed an instance once, and has forgotten it.
fn forgetful(talk: &Talk) -> EpollContext {
    let context = talk.context(0, 64, true);
    context.follow(ID);
    talk.hear(EpollWait::new(&talk.host, &context, None, false)).run();
    assert_eq!(context.follows(), None);
    context
}

// The frames of these two tests are for others: ARP, or a socket that no epoll watches.

#[test]
fn an_event_that_is_no_delivery_s_names_nobody_to_follow() {
    let talk = Talk::new("suspend20");
    let context = forgetful(&talk);
    for _ in 0..300 {
        talk.hear(EpollWait::new(&talk.host, &context, None, false)).run();
        deliver(&talk);
        context.no_delivery();
        let mut woken = talk.hear(EpollWait::new(&talk.host, &context, Some(0), false));
        woken.run();
        assert_eq!(woken.pass.events(), 1);
        talk.read();
    }
}

#[test]
fn an_event_that_is_left_over_is_no_new_delivery() {
    let talk = Talk::new("suspend20");
    let context = forgetful(&talk);
    for _ in 0..300 {
        deliver(&talk);
        let mut second = talk.hear(EpollWait::new(&talk.host, &context, Some(0), false));
        second.run();
        assert!(second.pass.events() > 0);
    }
}

#[test]
#[should_panic(expected = "nobody drives the timer")]
fn a_deadline_that_nobody_keeps_is_noticed() {
    let talk = Talk::new("defer20");
    let context = talk.context(0, 64, false);
    talk.arrive(1);
    talk.interrupt(ID);
    assert_eq!(talk.softirq(), "poll 64 -> 1, deliver, timer +20us");
    for _ in 0..20 {
        talk.pass(500 * MILLISECOND);
        talk.read();
        talk.hear(EpollWait::new(&talk.host, &context, Some(0), false)).run();
    }
}

#[test]
fn a_timer_that_is_late_is_none_that_nobody_keeps() {
    let talk = Talk::new("defer20");
    let context = talk.context(0, 64, false);
    talk.arrive(1);
    talk.interrupt(ID);
    talk.softirq();
    for _ in 0..20 {
        // All threads were stopped for an hour; for a while afterwards only a waiting thread runs.
        talk.pass(3_600_000 * MILLISECOND);
        for _ in 0..100 {
            talk.hear(EpollWait::new(&talk.host, &context, Some(0), false)).run();
            talk.pass(10 * MILLISECOND);
        }
        talk.timer();
        talk.softirq();
    }
}
