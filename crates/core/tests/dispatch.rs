//! Softirq dispatch: the rules of Linux up to 6.4, since 6.5 and of the 2018 proposal, and the limits of a dispatch
//! and of a round.

use crate::world::talk::{CPU, ID, Talk};
use napkin_core::*;
use napkin_policy::{CpuPolicy, NetSoftirq, Policy};

const INTERRUPT: Context = Context::Interrupt { competition: false };
const CROWDED: Context = Context::Interrupt { competition: true };

/// Makes the network vector and these other vectors pending.
fn pending(talk: &Talk, vectors: &[Vector]) {
    talk.arrive(1);
    talk.interrupt(ID);
    for vector in vectors {
        let _ = talk.host.raise_vectors(CPU, vector.bit(), RaisedFrom::Interrupt);
    }
}

/// Makes ksoftirqd runnable for another vector, without running it.
fn wake_ksoftirqd(talk: &Talk) {
    let woken = talk.host.raise_vectors(CPU, Vector::Rcu.bit(), RaisedFrom::Thread);
    assert_eq!(woken, Some(Op::Wake(Task::Ksoftirqd(CPU))));
}

#[test]
fn vectors_run_in_the_order_of_their_numbers() {
    let talk = Talk::new("base");
    pending(&talk, &[Vector::Rcu, Vector::Tasklet, Vector::Timer]);
    assert_eq!(talk.softirq(), "TIMER, poll 64 -> 1, deliver, unmask, TASKLET, RCU");
}

#[test]
fn the_network_s_vectors_are_the_core_s_to_raise() {
    let talk = Talk::new("base");
    let net = Vector::NetRx.bit() | Vector::NetTx.bit();
    let _ = talk.host.raise_vectors(CPU, net, RaisedFrom::Interrupt);
    assert_eq!(talk.host.cpu(CPU).pending(), 0);
}

#[test]
fn since_6_5_softirqs_run_inline_while_ksoftirqd_is_runnable() {
    let talk = Talk::new("base");
    wake_ksoftirqd(&talk);
    pending(&talk, &[]);
    assert_eq!(talk.dispatch(CROWDED), "poll 64 -> 1, deliver, unmask, RCU");
}

#[test]
fn from_4_9_to_6_4_they_were_left_to_ksoftirqd() {
    let talk = Talk::new("base-6.4");
    wake_ksoftirqd(&talk);
    pending(&talk, &[Vector::Timer]);
    assert_eq!(talk.dispatch(INTERRUPT), "");
    assert_eq!(talk.dispatch(Context::Application), "");
    let mut ksoftirqd = talk.hear(Softirq::new(&talk.host, CPU, Context::Ksoftirqd));
    assert_eq!(ksoftirqd.run(), "TIMER, poll 64 -> 1, deliver, unmask, RCU, sleep");
    // ksoftirqd sleeps again, so vectors run inline again.
    pending(&talk, &[]);
    assert_eq!(talk.dispatch(INTERRUPT), "poll 64 -> 1, deliver, unmask");
}

#[test]
fn in_2018_as_posted_the_network_alone_still_ran_inline() {
    let talk = Talk::new("ksoftirqd-as-posted");
    pending(&talk, &[]);
    assert_eq!(talk.dispatch(CROWDED), "poll 64 -> 1, deliver, unmask");
    // Nor did anything above the two lowest bits matter.
    pending(&talk, &[Vector::Tasklet, Vector::Rcu]);
    assert_eq!(talk.dispatch(CROWDED), "poll 64 -> 1, deliver, unmask, TASKLET, RCU");
}

#[test]
fn in_2018_as_posted_a_timer_pushed_everything_to_ksoftirqd() {
    let talk = Talk::new("ksoftirqd-as-posted");
    pending(&talk, &[Vector::Timer, Vector::Tasklet]);
    assert_eq!(talk.dispatch(INTERRUPT), "wake ksoftirqd");
    // While ksoftirqd was runnable it absorbed the rest.
    assert_eq!(talk.dispatch(INTERRUPT), "");
    assert_eq!(
        talk.dispatch(Context::Ksoftirqd),
        "TIMER, poll 64 -> 1, deliver, unmask, TASKLET, sleep"
    );
}

#[test]
fn in_2018_as_posted_a_tasklet_of_high_priority_did_so_too() {
    let talk = Talk::new("ksoftirqd-as-posted");
    pending(&talk, &[Vector::Hi]);
    assert_eq!(talk.dispatch(INTERRUPT), "wake ksoftirqd");
}

#[test]
fn in_2018_as_posted_a_runnable_ksoftirqd_had_everything_whatever_the_kernel_s_rule() {
    let talk = Talk::new("ksoftirqd-as-posted");
    let cpu = talk.host.cpu(CPU);
    cpu.set_policy(CpuPolicy { inline_while_ksoftirqd: true, ..cpu.policy() });
    wake_ksoftirqd(&talk);
    pending(&talk, &[]);
    assert_eq!(talk.dispatch(INTERRUPT), "");
    assert_eq!(talk.dispatch(Context::Ksoftirqd), "poll 64 -> 1, deliver, unmask, RCU, sleep");
}

#[test]
fn the_rules_of_a_cpu_are_those_that_were_set() {
    let talk = Talk::new("base");
    let cpu = talk.host.cpu(CPU);
    for net_softirq in [NetSoftirq::Inline, NetSoftirq::Ksoftirqd, NetSoftirq::KsoftirqdAsPosted] {
        for inline_while_ksoftirqd in [false, true] {
            let rules = CpuPolicy { net_softirq, inline_while_ksoftirqd };
            cpu.set_policy(rules);
            assert_eq!(cpu.policy(), rules);
        }
    }
}

#[test]
fn in_2018_as_meant_only_the_network_is_deferred() {
    let talk = Talk::new("ksoftirqd");
    pending(&talk, &[Vector::Timer, Vector::Tasklet]);
    assert_eq!(talk.dispatch(CROWDED), "wake ksoftirqd, TIMER, TASKLET");
    assert_eq!(talk.dispatch(Context::Ksoftirqd), "poll 64 -> 1, deliver, unmask, sleep");
}

#[test]
fn in_2018_as_meant_a_pass_that_restarts_leaves_the_network_pending() {
    let talk = Talk::new("ksoftirqd");
    let _ = talk.host.raise_vectors(CPU, Vector::Tasklet.bit(), RaisedFrom::Interrupt);
    let mut softirq = talk.hear(Softirq::new(&talk.host, CPU, CROWDED));
    // The network is not pending: ksoftirqd is not woken.
    assert_eq!(softirq.run_next(1), "TASKLET");
    pending(&talk, &[Vector::Timer]);
    assert_eq!(softirq.run(), "TIMER, wake ksoftirqd");
    assert_eq!(talk.dispatch(Context::Ksoftirqd), "poll 64 -> 1, deliver, unmask, sleep");
}

#[test]
fn in_2018_as_meant_nothing_is_deferred_without_competition() {
    let talk = Talk::new("ksoftirqd");
    pending(&talk, &[Vector::Timer]);
    assert_eq!(talk.dispatch(INTERRUPT), "TIMER, poll 64 -> 1, deliver, unmask");
    assert_eq!(talk.host.cpu(CPU).counts().ksoftirqd_wakes, 0);
    // A runnable ksoftirqd is competition, and the network vectors are left to it.
    wake_ksoftirqd(&talk);
    pending(&talk, &[Vector::Timer]);
    assert_eq!(talk.dispatch(INTERRUPT), "TIMER, RCU");
    assert_eq!(talk.dispatch(Context::Ksoftirqd), "poll 64 -> 1, deliver, unmask, sleep");
}

#[test]
fn an_application_that_enables_softirqs_runs_its_own() {
    let talk = Talk::new("ksoftirqd");
    talk.arrive(1);
    let _ = talk.interrupt(ID);
    assert_eq!(talk.dispatch(Context::Application), "poll 64 -> 1, deliver, unmask");
}

#[test]
fn one_dispatch_makes_ten_passes() {
    let talk = Talk::new("base");
    talk.arrive(64 * 100);
    talk.interrupt(ID);
    let steps = talk.softirq();
    assert_eq!(steps.matches("poll").count(), 10);
    assert!(steps.ends_with("deliver, wake ksoftirqd"), "{steps}");
    assert_eq!(talk.host.cpu(CPU).counts().net_rx, 10);
}

#[test]
fn one_dispatch_goes_on_for_two_milliseconds() {
    let talk = Talk::new("base");
    talk.poll_cost.set(700 * MICROSECOND);
    talk.arrive(64 * 100);
    talk.interrupt(ID);
    // After 0.7, 1.4 and 2.1 ms: the third pass is the last.
    assert_eq!(talk.softirq().matches("poll").count(), 3);
}

#[test]
fn one_dispatch_ends_when_somebody_wants_the_cpu() {
    let talk = Talk::new("base");
    talk.arrive(64 * 100);
    talk.interrupt(ID);
    let _ = talk.host.raise_vectors(CPU, Vector::Timer.bit(), RaisedFrom::Interrupt);
    talk.need_resched.set(true);
    assert_eq!(talk.softirq(), "TIMER, poll 64 -> 64, deliver, wake ksoftirqd");
}

#[test]
fn one_dispatch_ends_when_it_is_told_between_two_steps_that_somebody_wants_the_cpu() {
    let talk = Talk::new("base");
    talk.arrive(64 * 100);
    talk.interrupt(ID);
    let mut softirq = talk.hear(Softirq::new(&talk.host, CPU, INTERRUPT));
    assert_eq!(softirq.run_next(1), "poll 64 -> 64");
    softirq.pass.need_resched();
    assert_eq!(softirq.run(), "deliver, wake ksoftirqd");
}

#[test]
fn a_dispatch_that_is_told_before_it_begins_is_one_pass() {
    let talk = Talk::new("base");
    talk.arrive(64 * 100);
    talk.interrupt(ID);
    let mut softirq = talk.hear(Softirq::new(&talk.host, CPU, INTERRUPT));
    softirq.pass.need_resched();
    assert_eq!(softirq.run(), "poll 64 -> 64, deliver, wake ksoftirqd");
    // ksoftirqd yields once, and not again for the same request.
    let mut ksoftirqd = talk.hear(Softirq::new(&talk.host, CPU, Context::Ksoftirqd));
    ksoftirqd.pass.need_resched();
    assert_eq!(
        ksoftirqd.run_next(6),
        "poll 64 -> 64, deliver, resched, poll 64 -> 64, deliver, poll 64 -> 64"
    );
}

#[test]
fn ksoftirqd_makes_a_dispatch_a_loop_and_offers_the_cpu_in_between() {
    let talk = Talk::new("base");
    talk.arrive(64 * 12);
    talk.interrupt(ID);
    talk.softirq();
    let mut ksoftirqd = talk.hear(Softirq::new(&talk.host, CPU, Context::Ksoftirqd));
    assert_eq!(
        ksoftirqd.run(),
        "poll 64 -> 64, deliver, poll 64 -> 64, deliver, poll 64 -> 0, unmask, sleep"
    );
    talk.arrive(64 * 11);
    talk.interrupt(ID);
    let steps = ksoftirqd.run();
    assert!(steps.contains("deliver, resched, poll 64 -> 64"), "{steps}");
    ksoftirqd.pass.stop();
    assert_eq!(ksoftirqd.run(), "");
}

#[test]
fn a_round_takes_its_budget_and_no_more_than_one_weight_beyond() {
    let talk = Talk::of("base", 1, 8);
    for id in talk.host.ids() {
        talk.arrive_at(id, 64);
        talk.interrupt(id);
    }
    let limits = Limits { dispatch_passes: 1, ..Limits::default() };
    talk.host.cpu(CPU).set_limits(limits);
    // The budget of 300 frames is exceeded after the fifth poll of 64.
    let steps = talk.softirq();
    assert_eq!(steps.matches("-> 64").count(), 5, "{steps}");
    assert_eq!(talk.host.cpu(CPU).counts().time_squeeze, 1);
    // The instances that were not reached come first in the next round.
    let steps = talk.softirq();
    assert!(steps.starts_with("#5 poll 64 -> 64, #5 deliver, #6 poll 64 -> 64"), "{steps}");
}

#[test]
fn frames_of_a_queue_that_is_left_to_its_timer_are_in_the_budget_too() {
    let talk = Talk::of("defer20", 1, 8);
    for id in talk.host.ids() {
        talk.arrive_at(id, 60);
        talk.interrupt(id);
    }
    talk.host.cpu(CPU).set_limits(Limits { dispatch_passes: 1, ..Limits::default() });
    let steps = talk.softirq();
    assert_eq!(steps.matches("-> 60").count(), 5, "{steps}");
    assert_eq!(steps.matches("timer").count(), 5, "{steps}");
    assert_eq!(talk.host.cpu(CPU).counts().time_squeeze, 1);
}

#[test]
fn a_round_that_used_up_its_budget_on_the_last_queue_raises_nothing() {
    let talk = Talk::new("base");
    talk.arrive(64);
    talk.interrupt(ID);
    talk.host.cpu(CPU).set_limits(Limits { budget: 1, ..Limits::default() });
    assert_eq!(talk.softirq(), "poll 64 -> 64, deliver, poll 64 -> 0, unmask");
    let counts = talk.host.cpu(CPU).counts();
    assert_eq!((counts.net_rx, counts.time_squeeze), (2, 1));
    talk.arrive(1);
    talk.interrupt(ID);
    assert_eq!(talk.softirq(), "poll 64 -> 1, deliver, unmask");
    let counts = talk.host.cpu(CPU).counts();
    assert_eq!((counts.net_rx, counts.time_squeeze), (3, 2), "nothing was left");
}

#[test]
fn a_round_takes_its_time_and_no_more_than_one_poll_beyond() {
    let talk = Talk::of("base", 1, 8);
    for id in talk.host.ids() {
        talk.arrive_at(id, 1);
        talk.interrupt(id);
    }
    talk.poll_cost.set(900 * MICROSECOND);
    let limits = Limits { dispatch_passes: 1, budget_time: 2 * MILLISECOND, ..Limits::default() };
    talk.host.cpu(CPU).set_limits(limits);
    assert_eq!(talk.softirq().matches("poll").count(), 3);
    assert_eq!(talk.host.cpu(CPU).counts().time_squeeze, 1);
}

#[test]
fn a_round_of_handed_over_instances_has_its_limits_too() {
    let talk = Talk::of("base", 1, 8);
    for id in talk.host.ids() {
        talk.arrive_at(id, 64);
        talk.interrupt(id);
        let policy: Policy = "threaded".parse().expect("a preset");
        talk.host.set(id, &policy.instance).expect("within its limits");
    }
    talk.host.cpu(CPU).set_limits(Limits { dispatch_passes: 1, ..Limits::default() });
    let steps = talk.softirq();
    assert_eq!(steps.matches("poll").count(), 5, "{steps}");
    assert_eq!(steps.matches("wake napi").count(), 5, "{steps}");
}

#[test]
fn several_instances_go_round() {
    let talk = Talk::of("base", 1, 3);
    for id in talk.host.ids() {
        talk.arrive_at(id, 65);
        talk.interrupt(id);
    }
    let steps = talk.softirq();
    let polled: Vec<&str> = steps.split(", ").filter(|word| word.contains("poll")).collect();
    assert_eq!(
        polled,
        [
            "#0 poll 64 -> 64",
            "#1 poll 64 -> 64",
            "#2 poll 64 -> 64",
            "#0 poll 64 -> 1",
            "#1 poll 64 -> 1",
            "#2 poll 64 -> 1"
        ]
    );
}

#[test]
fn an_instance_scheduled_while_the_network_runs_is_found_without_a_raise() {
    let talk = Talk::of("base", 1, 2);
    talk.arrive_at(Id(0), 1);
    talk.interrupt(Id(0));
    let mut softirq = talk.hear(Softirq::new(&talk.host, CPU, INTERRUPT));
    assert_eq!(softirq.run_next(2), "#0 poll 64 -> 1, #0 deliver");
    talk.arrive_at(Id(1), 1);
    // Nothing is raised: the runner checks its list again before it ends.
    assert_eq!(talk.interrupt(Id(1)), "#1 mask");
    assert_eq!(talk.host.cpu(CPU).pending(), 0);
    assert_eq!(softirq.run(), "#0 unmask, #1 poll 64 -> 1, #1 deliver, #1 unmask");
}

#[test]
fn a_nested_dispatch_leaves_everything_to_the_outer_one() {
    let talk = Talk::new("base");
    talk.arrive(1);
    talk.interrupt(ID);
    let mut outer = talk.hear(Softirq::new(&talk.host, CPU, INTERRUPT));
    outer.run_next(1);
    let raised = talk.host.raise_vectors(CPU, Vector::Tasklet.bit(), RaisedFrom::Interrupt);
    assert_eq!(raised, None);
    assert_eq!(talk.softirq(), "");
    assert!(talk.host.cpu(CPU).running());
    assert_eq!(outer.run(), "deliver, unmask, TASKLET");
    assert!(!talk.host.cpu(CPU).running());
}

#[test]
fn a_dispatch_of_holders_alone_is_one_pass() {
    let talk = Talk::of("hold100", 1, 4);
    for id in talk.host.ids() {
        talk.arrive_at(id, 1);
        talk.interrupt(id);
    }
    talk.softirq();
    let before = talk.host.cpu(CPU).counts().net_rx;
    for context in [INTERRUPT, CROWDED, Context::Application] {
        assert_eq!(talk.dispatch(context).matches("poll").count(), 4);
    }
    assert_eq!(talk.host.cpu(CPU).counts().net_rx, before + 3);
    // ksoftirqd goes on with them, and yields after each pass.
    let mut ksoftirqd = talk.hear(Softirq::new(&talk.host, CPU, Context::Ksoftirqd));
    assert!(ksoftirqd.run_next(5).ends_with("yield"));
}

#[test]
fn a_round_that_found_work_beside_a_holder_is_followed_by_another() {
    let talk = Talk::of("hold100", 1, 2);
    talk.arrive_at(Id(0), 1);
    talk.interrupt(Id(0));
    talk.softirq();
    let mut policy = talk.host.instance(Id(1)).settings();
    policy.hold = 0;
    talk.host.set(Id(1), &policy).expect("within its limits");
    talk.arrive_at(Id(1), 1);
    talk.interrupt(Id(1));
    assert_eq!(
        talk.softirq(),
        "#0 poll 64 -> 0, #1 poll 64 -> 1, #1 deliver, #1 unmask, #0 poll 64 -> 0"
    );
}

#[test]
fn a_poll_takes_the_weight_that_was_set() {
    let talk = Talk::new("base");
    talk.host.set_weight(ID, 8).expect("not 0");
    assert_eq!(talk.host.set_weight(ID, 0), Err(SettingError::Weight));
    assert_eq!(talk.host.instance(ID).weight(), 8);
    talk.arrive(10);
    talk.interrupt(ID);
    assert_eq!(talk.softirq(), "poll 8 -> 8, deliver, poll 8 -> 2, deliver, unmask");
}

#[test]
fn a_thread_that_polls_on_takes_the_weight_that_was_set_meanwhile() {
    let talk = Talk::new("threaded");
    talk.arrive(100);
    talk.interrupt(ID);
    let mut thread = talk.hear(Kthread::new(&talk.host, ID));
    assert_eq!(thread.run_next(3), "poll 64 -> 64, deliver, resched");
    // The thread has kept the instance since.
    talk.host.set_weight(ID, 8).expect("not 0");
    assert_eq!(thread.run_next(4), "poll 8 -> 8, deliver, resched, poll 8 -> 8");

    let talk = Talk::new("threaded-busy-poll");
    talk.arrive(1);
    talk.interrupt(ID);
    let mut thread = talk.hear(Kthread::new(&talk.host, ID));
    assert_eq!(thread.run_next(5), "poll 64 -> 1, deliver, resched, poll 64 -> 0, pause");
    talk.host.set_weight(ID, 8).expect("not 0");
    assert_eq!(thread.run_next(2), "poll 8 -> 0, pause");
    talk.arrive(9);
    assert_eq!(thread.run_next(4), "poll 8 -> 8, deliver, resched, poll 8 -> 1");
}

#[test]
fn an_instance_that_was_moved_is_scheduled_on_its_new_cpu() {
    let talk = Talk::of("base", 2, 1);
    assert_eq!(talk.host.set_cpu(ID, CpuId(1)), None);
    assert_eq!(talk.host.instance(ID).cpu(), CpuId(1));
    talk.arrive(1);
    talk.interrupt(ID);
    let pending = [CpuId(0), CpuId(1)].map(|cpu| talk.host.cpu(cpu).pending());
    assert_eq!(pending, [0, Vector::NetRx.bit()]);
    let context = Context::Interrupt { competition: false };
    let mut softirq = talk.hear(Softirq::new(&talk.host, CpuId(1), context));
    assert_eq!(softirq.run(), "poll 64 -> 1, deliver, unmask");

    // The timer moves with the instance.
    let talk = Talk::of("defer20", 2, 1);
    talk.arrive(1);
    talk.interrupt(ID);
    assert_eq!(talk.softirq(), "poll 64 -> 1, deliver, timer +20us");
    let at = 20 * MICROSECOND;
    assert_eq!(talk.host.set_cpu(ID, CpuId(1)), Some(Op::Arm { id: ID, at }));
    assert_eq!([CpuId(0), CpuId(1)].map(|cpu| talk.host.next_deadline(cpu)), [NEVER, at]);
}
