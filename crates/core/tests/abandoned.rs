//! A context that is dropped between any two steps, as by a panic, strands no queue: once the world has run every
//! CPU's softirqs and restarted its loops, every queue is free, unmasked and empty.

use crate::world::Any;
use crate::world::talk::{CPU, ID, Talk};
use napkin_core::*;
use napkin_policy::{ApplicationPolicy, Threaded};

/// Runs everything that a world has to run after a context was lost.
fn recover(talk: &Talk, case: &str) {
    if talk.host.instance(ID).state().disabled() {
        talk.enable(ID);
    }
    for _ in 0..400 {
        if std::mem::take(&mut talk.device(ID).line) {
            talk.hear(Interrupt::new(&talk.host, ID)).run();
        }
        talk.softirq();
        talk.dispatch(Context::Ksoftirqd);
        talk.hear(Kthread::new(&talk.host, ID)).run_at_most(40);
        talk.hear(Worker::new(&talk.host)).run();
        let state = talk.host.instance(ID).state();
        if state.mode() == Threaded::BusyPoll && talk.device(ID).waiting() == 0 {
            talk.set(|policy| policy.threaded = Threaded::Disabled);
        }
        if !state.has(state::SCHED) && !talk.masked() && talk.device(ID).waiting() == 0 {
            assert!(!state.has(state::IN_BUSY_POLL | state::SCHED_THREADED), "{case}: {state:?}");
            return;
        }
        let deadline = talk.host.instance(ID).deadline();
        if deadline != NEVER {
            talk.at(talk.now.get().max(deadline));
            talk.timer();
        }
        talk.pass(20 * MICROSECOND);
    }
    let state = talk.host.instance(ID).state();
    panic!("{case}: stranded: {state:?}, masked: {}", talk.masked());
}

/// Drops a context after each number of its steps, and also after it has decided the next one.
fn lose(
    name: &str,
    policy: &str,
    prepare: impl Fn(&Talk),
    pass: impl for<'t> Fn(&'t Talk, &'t EpollContext) -> Any<'t>,
) {
    for steps in 0..24 {
        for half in [false, true] {
            if name == "interrupt" && steps == 0 && !half {
                // The line was taken and the core never called: the interrupt is the world's own loss.
                continue;
            }
            let case = format!("{name} under {policy}, after {steps} steps, half: {half}");
            let talk = Talk::new(policy);
            talk.device(ID).tolerates_abandonment = true;
            let context = talk.context(20, 8, true);
            context.follow(ID);
            prepare(&talk);
            let mut lost = talk.hear(pass(&talk, &context));
            let (_, ended) = lost.run_at_most(steps);
            if half && !ended {
                // A step that was decided and not taken. A wake-up or a raise is taken all the same: that is the
                // world's duty.
                let op = lost.decides();
                if let Op::Wake(_) | Op::Raise(_) | Op::RunHere(_) = op {
                    lost.does(op);
                }
            }
            drop(lost);
            if let Some(op) = context.close(&talk.host, RaisedFrom::Thread) {
                talk.word(op);
            }
            recover(&talk, &case);
            // Traffic goes on.
            talk.arrive(2);
            recover(&talk, &case);
            let device = talk.device(ID);
            assert!(device.conserves(), "{case}");
            assert_eq!(device.waiting() + device.in_batch(), 0, "{case}");
            assert_eq!(talk.host.cpu(CPU).pending(), 0, "{case}");
            drop(device);
            assert_eq!(talk.host.instance(ID).suspending_contexts(), 0, "{case}");
        }
    }
}

fn interrupted(talk: &Talk) {
    talk.arrive(150);
    talk.interrupt(ID);
    let others = Vector::Timer.bit() | Vector::Rcu.bit();
    let _ = talk.host.raise_vectors(CPU, others, RaisedFrom::Interrupt);
}

const POLICIES: [&str; 5] =
    ["base", "hold20", "defer20,defer-hard-irqs=2", "suspend20,defer-hard-irqs=2", "feedback"];

#[test]
fn an_interrupt() {
    for policy in ["base", "threaded", "workqueue", "threaded-busy-poll"] {
        let prepare = |talk: &Talk| {
            talk.arrive(5);
            talk.device(ID).line = false;
        };
        lose("interrupt", policy, prepare, |talk, _| {
            Any::Interrupt(Interrupt::new(&talk.host, ID))
        });
    }
}

#[test]
fn a_softirq() {
    for policy in POLICIES {
        for context in
            [Context::Interrupt { competition: false }, Context::Application, Context::Ksoftirqd]
        {
            lose("softirq", policy, interrupted, |talk, _| {
                Any::Softirq(Softirq::new(&talk.host, CPU, context), CPU)
            });
        }
    }
}

#[test]
fn a_thread() {
    for policy in
        ["threaded", "threaded-busy-poll", "threaded,hold=20us", "defer20,threaded=enabled"]
    {
        lose("thread", policy, interrupted, |talk, _| Any::Kthread(Kthread::new(&talk.host, ID)));
    }
}

#[test]
fn a_worker() {
    for policy in ["workqueue", "workqueue,hold=20us", "defer20,threaded=workqueue"] {
        lose("worker", policy, interrupted, |talk, _| Any::Worker(Worker::new(&talk.host)));
    }
}

#[test]
fn a_wait_that_busy_polls() {
    for policy in POLICIES {
        let ready = |talk: &Talk| talk.device(ID).kicks = true;
        lose("wait", policy, ready, |talk, context| {
            Any::Epoll(EpollWait::new(&talk.host, context, None, false))
        });
        // With the ring full, and with events to suspend for.
        lose(
            "wait",
            policy,
            |talk| talk.arrive(100),
            |talk, context| Any::Epoll(EpollWait::new(&talk.host, context, None, false)),
        );
        let events = |talk: &Talk| {
            interrupted(talk);
            talk.softirq();
        };
        lose("wait", policy, events, |talk, context| {
            Any::Epoll(EpollWait::new(&talk.host, context, None, false))
        });
    }
}

#[test]
fn a_receive_call() {
    let socket = ApplicationPolicy {
        socket_busy_poll_usecs: 20,
        socket_prefer_busy_poll: true,
        ..ApplicationPolicy::default()
    };
    for policy in POLICIES {
        lose(
            "receive call",
            policy,
            |talk| talk.arrive(20),
            |talk, _| Any::Socket(SocketWait::new(&talk.host, socket, Some(ID), None)),
        );
    }
}

#[test]
fn a_disable_that_found_nobody() {
    lose(
        "disable",
        "base",
        |_| {},
        |talk, _| Any::Disable(Disable::new(&talk.host, ID).expect("it is enabled")),
    );
}

#[test]
fn a_disable_that_waited_for_an_owner_who_left_for_it() {
    // The owner releases for the disable, with the interrupt masked and no timer. Then the disable is dropped,
    // which was the last context responsible for the queue.
    let talk = Talk::new("base");
    interrupted(&talk);
    let mut softirq = talk.hear(Softirq::new(&talk.host, CPU, Context::Ksoftirqd));
    assert_eq!(softirq.run_next(2), "TIMER, poll 64 -> 64");
    let mut disable = talk.hear(Disable::new(&talk.host, ID).expect("it is enabled"));
    disable.run();
    assert_eq!(softirq.run(), "deliver, RCU, sleep");
    assert!(!talk.host.instance(ID).state().has(state::SCHED));
    drop(disable);
    recover(&talk, "a lost disable");
    assert_eq!(talk.read(), 150);
}

#[test]
fn an_enable() {
    let disabled = |talk: &Talk| {
        talk.hear(Disable::new(&talk.host, ID).expect("it is enabled")).run();
        talk.arrive(5);
    };
    for policy in ["base", "threaded", "workqueue"] {
        lose("enable", policy, disabled, |talk, _| {
            Any::Enable(Enable::new(&talk.host, ID).expect("it is disabled"))
        });
    }
}

#[test]
fn a_poll_with_budget_0() {
    lose("reaping", "base", |_| {}, |talk, _| Any::TxPoll(TxPoll::new(&talk.host, ID)));
}

#[test]
fn a_lost_softirq_leaves_its_other_vectors_pending() {
    let talk = Talk::new("base");
    talk.device(ID).tolerates_abandonment = true;
    interrupted(&talk);
    let mut softirq =
        talk.hear(Softirq::new(&talk.host, CPU, Context::Interrupt { competition: false }));
    assert_eq!(softirq.run_next(2), "TIMER, poll 64 -> 64");
    drop(softirq);
    let steps = talk.softirq();
    assert!(steps.starts_with("poll 64 -> 64") && steps.ends_with("unmask"), "{steps}");
    assert!(steps.contains("RCU"), "{steps}");
}

#[test]
fn a_lost_softirq_puts_back_everybody_it_had_taken() {
    // The first waits for its next round, the second is polled, the third was not reached.
    let talk = Talk::of("base", 1, 3);
    for id in talk.host.ids() {
        talk.device(id).tolerates_abandonment = true;
        talk.arrive_at(id, 65);
        talk.interrupt(id);
    }
    let mut softirq =
        talk.hear(Softirq::new(&talk.host, CPU, Context::Interrupt { competition: false }));
    assert_eq!(softirq.run_next(3), "#0 poll 64 -> 64, #0 deliver, #1 poll 64 -> 64");
    drop(softirq);
    talk.softirq();
    for id in talk.host.ids() {
        let state = talk.host.instance(id).state();
        assert!(!state.has(state::SCHED), "{id:?}: {state:?}");
        assert_eq!(talk.device(id).waiting(), 0, "{id:?}");
        assert!(!talk.device(id).masked, "{id:?}");
    }
}
