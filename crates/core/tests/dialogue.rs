//! Every delivery mode as a dialogue: each event, and the steps with which the core answers it.

use crate::world::talk::{CPU, ID, Talk};
use napkin_core::*;
use napkin_policy::{Policy, Threaded};

const US: Ns = MICROSECOND;

#[test]
fn softirq_packet_in_masked_polled_delivered_unmasked() {
    let talk = Talk::new("base");
    talk.arrive(3);
    assert_eq!(talk.interrupt(ID), "mask, raise");
    assert_eq!(talk.softirq(), "poll 64 -> 3, deliver, unmask");
    assert_eq!(talk.read(), 3);
    // The same again: nothing is left over.
    talk.arrive(1);
    assert_eq!(talk.interrupt(ID), "mask, raise");
    assert_eq!(talk.softirq(), "poll 64 -> 1, deliver, unmask");
    assert_eq!(talk.softirq(), "");
}

#[test]
fn softirq_full_polls_go_round_until_the_ring_is_drained() {
    let talk = Talk::new("base");
    talk.arrive(130);
    talk.interrupt(ID);
    assert_eq!(
        talk.softirq(),
        "poll 64 -> 64, deliver, poll 64 -> 64, deliver, poll 64 -> 2, deliver, unmask"
    );
}

#[test]
fn softirq_exactly_a_budget_takes_one_more_poll() {
    let talk = Talk::new("base");
    talk.arrive(64);
    talk.interrupt(ID);
    assert_eq!(talk.softirq(), "poll 64 -> 64, deliver, poll 64 -> 0, unmask");
}

#[test]
fn softirq_work_that_waits_at_the_unmask_is_polled_at_once() {
    let talk = Talk::new("base");
    talk.arrive(1);
    talk.interrupt(ID);
    let mut softirq =
        talk.hear(Softirq::new(&talk.host, CPU, Context::Interrupt { competition: false }));
    assert_eq!(softirq.run_next(2), "poll 64 -> 1, deliver");
    // Between the delivery and the unmasking: no interrupt comes, and unmasking sees it.
    talk.arrive(1);
    assert_eq!(talk.interrupt(ID), "no interrupt");
    assert_eq!(softirq.run(), "unmask: work waits, mask, poll 64 -> 1, deliver, unmask");
}

#[test]
fn softirq_an_interrupt_between_unmask_and_release_leaves_a_mark() {
    let talk = Talk::new("base");
    talk.arrive(1);
    talk.interrupt(ID);
    let mut softirq =
        talk.hear(Softirq::new(&talk.host, CPU, Context::Interrupt { competition: false }));
    assert_eq!(softirq.run_next(3), "poll 64 -> 1, deliver, unmask");
    talk.arrive(1);
    // The one-shot interrupt masks itself, and its handler touches nothing; the release honours the mark.
    assert_eq!(talk.interrupt(ID), "");
    assert_eq!(softirq.run(), "mask, poll 64 -> 1, deliver, unmask");
    let counts = talk.counts();
    assert_eq!((counts.interrupts, counts.interrupts_missed, counts.repolls), (2, 1, 1));
}

#[test]
fn transmit_completions_are_reaped_and_nothing_is_delivered_for_them() {
    let talk = Talk::new("base");
    talk.arrive(1);
    talk.device(ID).completions = 7;
    talk.interrupt(ID);
    assert_eq!(talk.softirq(), "poll 64 -> 1 tx 7, deliver, unmask");
    assert_eq!(talk.counts().completions, 7);
}

#[test]
fn ksoftirqd_takes_the_network_while_others_want_the_cpu() {
    let talk = Talk::new("ksoftirqd");
    talk.arrive(1);
    assert_eq!(talk.interrupt(ID), "mask, raise");
    assert_eq!(talk.dispatch(Context::Interrupt { competition: true }), "wake ksoftirqd");
    let mut ksoftirqd = talk.hear(Softirq::new(&talk.host, CPU, Context::Ksoftirqd));
    assert_eq!(ksoftirqd.run(), "poll 64 -> 1, deliver, unmask, sleep");
    assert_eq!(talk.counts().polls[Owner::Ksoftirqd as usize], 1);
}

#[test]
fn threaded_the_instance_s_own_thread_polls_and_sleeps() {
    let talk = Talk::new("threaded");
    let mut thread = talk.hear(Kthread::new(&talk.host, ID));
    assert_eq!(thread.run(), "sleep");
    talk.arrive(70);
    assert_eq!(talk.interrupt(ID), "mask, wake napi");
    assert_eq!(
        thread.run(),
        "poll 64 -> 64, deliver, resched, poll 64 -> 6, deliver, unmask, sleep"
    );
    assert_eq!(talk.softirq(), "");
}

#[test]
fn threaded_a_schedule_for_the_softirq_is_none_for_the_thread() {
    let talk = Talk::new("base");
    talk.arrive(1);
    assert_eq!(talk.interrupt(ID), "mask, raise");
    talk.set(|policy| policy.threaded = Threaded::Enabled);
    // It is scheduled, but not for the thread (race R3): the softirq polls, and hands over.
    let mut thread = talk.hear(Kthread::new(&talk.host, ID));
    assert_eq!(thread.run(), "sleep");
    assert_eq!(talk.softirq(), "poll 64 -> 1, deliver, wake napi");
    assert_eq!(thread.run(), "poll 64 -> 0, unmask, sleep");
}

#[test]
fn workqueue_items_go_round_among_the_workers() {
    let talk = Talk::of("workqueue", 2, 2);
    talk.arrive_at(Id(0), 65);
    talk.arrive_at(Id(1), 1);
    assert_eq!(talk.interrupt(Id(0)), "#0 mask, wake worker");
    assert_eq!(talk.interrupt(Id(1)), "#1 mask, wake worker");
    assert!(talk.host.work_waits());
    let mut worker = talk.hear(Worker::new(&talk.host));
    // The first used its budget and goes to the tail.
    assert_eq!(
        worker.run(),
        "#0 poll 64 -> 64, #0 deliver, resched, #1 poll 64 -> 1, #1 deliver, #1 unmask, \
         #0 poll 64 -> 1, #0 deliver, #0 unmask, sleep"
    );
    assert!(!talk.host.work_waits());
}

#[test]
fn busy_poll_the_application_takes_its_packets_itself() {
    let talk = Talk::new("base");
    let context = talk.context(50, 64, false);
    context.follow(ID);
    let mut wait = talk.hear(EpollWait::new(&talk.host, &context, None, false));
    assert_eq!(wait.run_next(3), "look -> 0, poll 64 -> 0, look -> 0");
    talk.arrive(2);
    // The interrupt stays unmasked for a session that does not prefer busy polling; it finds the instance owned.
    assert_eq!(talk.interrupt(ID), "");
    // A claim costs two polls: the one that finds the packets, and the one that releases.
    assert_eq!(wait.run(), "poll 64 -> 2, deliver, look -> 2, poll 64 -> 0, unmask, look -> 2");
    assert_eq!(wait.pass.events(), 2);
    assert_eq!(talk.counts().busy_claims, 1);
}

#[test]
fn threaded_busy_poll_never_lets_go_until_the_mode_is_left() {
    let talk = Talk::new("threaded-busy-poll");
    let mut thread = talk.hear(Kthread::new(&talk.host, ID));
    assert_eq!(thread.run(), "sleep");
    // The first packet wakes the thread; from then on no interrupt comes.
    talk.arrive(1);
    assert_eq!(talk.interrupt(ID), "mask, wake napi");
    assert_eq!(thread.run_next(3), "poll 64 -> 1, deliver, resched");
    assert_eq!(thread.run_next(4), "poll 64 -> 0, pause, poll 64 -> 0, pause");
    talk.arrive(1);
    assert_eq!(talk.interrupt(ID), "no interrupt");
    assert_eq!(thread.run_next(3), "poll 64 -> 1, deliver, resched");
    talk.set(|policy| policy.threaded = Threaded::Disabled);
    // One poll later the softirq owns it, with deferral as it is set: work reloads the count.
    assert_eq!(thread.run(), "poll 64 -> 0, wake ksoftirqd");
    talk.arrive(1);
    assert_eq!(talk.softirq(), "poll 64 -> 1, deliver, timer +15us");
}

#[test]
fn defer_the_interrupt_returns_n_periods_after_the_last_packet() {
    let talk = Talk::new("defer20");
    talk.arrive(1);
    assert_eq!(talk.interrupt(ID), "mask, raise");
    assert_eq!(talk.softirq(), "poll 64 -> 1, deliver, timer +20us");
    for period in 1..100 {
        talk.at(period * 20 * US);
        assert_eq!(talk.timer(), "raise");
        assert_eq!(talk.softirq(), "poll 64 -> 0, timer +20us");
    }
    // 100 * 20 us.
    talk.at(2 * MILLISECOND);
    assert_eq!(talk.timer(), "raise");
    assert_eq!(talk.softirq(), "poll 64 -> 0, unmask");
    assert_eq!((talk.counts().deferrals, talk.counts().timer_polls), (100, 100));
}

#[test]
fn defer_any_packet_starts_the_count_anew() {
    let talk = Talk::new("defer20,defer-hard-irqs=2");
    talk.arrive(1);
    talk.interrupt(ID);
    talk.softirq();
    talk.at(20 * US);
    talk.timer();
    talk.arrive(1);
    assert_eq!(talk.interrupt(ID), "no interrupt");
    assert_eq!(talk.softirq(), "poll 64 -> 1, deliver, timer +20us");
    talk.at(40 * US);
    talk.timer();
    assert_eq!(talk.softirq(), "poll 64 -> 0, timer +20us");
    talk.at(60 * US);
    talk.timer();
    assert_eq!(talk.softirq(), "poll 64 -> 0, unmask");
}

#[test]
fn defer_needs_both_numbers() {
    for policy in ["defer20,gro-flush-timeout=0", "defer20,defer-hard-irqs=0"] {
        let talk = Talk::new(policy);
        talk.arrive(1);
        talk.interrupt(ID);
        assert_eq!(talk.softirq(), "poll 64 -> 1, deliver, unmask", "{policy}");
    }
}

#[test]
fn suspend_the_application_keeps_the_queue_while_it_finds_events() {
    let talk = Talk::new("suspend20");
    let context = talk.context(0, 64, true);
    let mut wait = talk.hear(EpollWait::new(&talk.host, &context, None, false));
    assert_eq!(wait.run(), "look -> 0, sleep");
    talk.arrive(1);
    talk.interrupt(ID);
    assert_eq!(talk.softirq(), "poll 64 -> 1, deliver, timer +20us");
    context.follow(ID);
    // Events: the timer is extended to the safety timeout.
    assert_eq!(wait.run(), "look -> 1, timer +20ms");
    assert_eq!(talk.host.instance(ID).suspending_contexts(), 1);
    talk.read();
    talk.at(20 * US);
    assert_eq!(talk.timer(), "nothing");
    talk.arrive(3);
    assert_eq!(talk.interrupt(ID), "no interrupt");
    // The application comes back, polls by itself, and finds them: suspended again.
    let mut wait = talk.hear(EpollWait::new(&talk.host, &context, None, false));
    assert_eq!(
        wait.run(),
        "look -> 0, poll 64 -> 3, deliver, look -> 3, timer +19980us, look -> 3, timer +20ms"
    );
    talk.read();
    talk.at(40 * US);
    // The wait finds nothing: the suspension ends with a poll at once, and deferral takes over.
    let mut wait = talk.hear(EpollWait::new(&talk.host, &context, None, false));
    assert_eq!(
        wait.run(),
        "look -> 0, poll 64 -> 0, look -> 0, timer +19980us, look -> 0, \
         run here (poll 64 -> 0, timer +20us), sleep"
    );
    assert_eq!(talk.host.instance(ID).suspending_contexts(), 0);
}

#[test]
fn suspend_a_stalled_application_loses_the_queue_to_deferral() {
    let talk = Talk::new("suspend20");
    let context = talk.context(0, 64, true);
    context.follow(ID);
    talk.arrive(1);
    talk.interrupt(ID);
    talk.softirq();
    talk.hear(EpollWait::new(&talk.host, &context, None, false)).run();
    talk.arrive(5);
    talk.at(20 * MILLISECOND - 1);
    assert_eq!(talk.timer(), "nothing");
    talk.at(20 * MILLISECOND);
    assert_eq!(talk.timer(), "raise");
    assert_eq!(talk.softirq(), "poll 64 -> 5, deliver, timer +20us");
}

#[test]
fn suspend_without_deferral_masks_nothing() {
    let talk = Talk::new("suspend20,defer-hard-irqs=0");
    let context = talk.context(0, 64, true);
    context.follow(ID);
    talk.arrive(1);
    talk.interrupt(ID);
    assert_eq!(talk.softirq(), "poll 64 -> 1, deliver, unmask");
    talk.hear(EpollWait::new(&talk.host, &context, None, false)).run();
    talk.arrive(1);
    assert_eq!(talk.interrupt(ID), "mask, raise");
}

#[test]
fn suspend_for_a_shortened_timeout_is_not_suspended_for_the_old_one() {
    let talk = Talk::new("suspend20,irq-suspend-timeout=10s");
    let context = talk.context(0, 64, true);
    context.follow(ID);
    talk.arrive(1);
    talk.interrupt(ID);
    talk.softirq();
    let wait = || talk.hear(EpollWait::new(&talk.host, &context, Some(0), false)).run();
    assert_eq!(wait(), "look -> 1, timer +10000ms");
    talk.set(|policy| policy.irq_suspend_timeout = MILLISECOND);
    assert_eq!(wait(), "look -> 1, timer +1ms");
    // The application stalls: after the current timeout the others are served as usual.
    talk.at(MILLISECOND);
    assert_eq!(talk.timer(), "raise");
    assert_eq!(talk.softirq(), "poll 64 -> 0, timer +20us");
    assert_eq!(talk.host.instance(ID).suspending_contexts(), 0);
}

#[test]
fn feedback_parks_a_queue_whose_receivers_are_full_and_resumes_when_one_drains() {
    let talk = Talk::new("feedback");
    talk.sockets.borrow_mut()[0].capacity = 100;
    talk.arrive(80);
    talk.interrupt(ID);
    assert_eq!(talk.softirq(), "poll 64 -> 64, deliver, poll 64 -> 16, deliver: full, timer +20ms");
    // Frames that come now stay in the ring, or are dropped there.
    talk.arrive(10);
    assert_eq!(talk.interrupt(ID), "no interrupt");
    talk.read();
    let resumes = talk.host.schedule(ID, RaisedFrom::Application).map(|op| talk.word(op));
    assert_eq!(resumes.as_deref(), Some("run here (poll 64 -> 10, deliver, unmask)"));
    assert_eq!(talk.host.instance(ID).deadline(), NEVER);
    assert_eq!(talk.counts().parks, 1);
}

#[test]
fn feedback_resumes_at_the_timeout_when_nobody_drains() {
    let talk = Talk::new("feedback,irq-suspend-timeout=5ms");
    talk.sockets.borrow_mut()[0].capacity = 4;
    talk.arrive(3);
    talk.interrupt(ID);
    assert_eq!(talk.softirq(), "poll 64 -> 3, deliver: full, timer +5ms");
    talk.arrive(3);
    talk.at(5 * MILLISECOND);
    assert_eq!(talk.timer(), "raise");
    assert_eq!(talk.softirq(), "poll 64 -> 3, deliver: full, timer +5ms");
    // Two of them are dropped at the socket; the park goes on.
    assert_eq!(talk.sockets.borrow()[0].dropped, 2);
}

#[test]
fn the_presets_that_poll_deliver_a_packet_each_in_their_own_way() {
    // Every preset, from an interrupt to the application, with the owner of its mode.
    for preset in napkin_policy::PRESETS {
        let talk = Talk::new(preset.name);
        let Policy { instance, .. } = preset.policy;
        talk.arrive(1);
        let steps = talk.interrupt(ID);
        match instance.threaded {
            Threaded::Disabled => {
                assert_eq!(steps, "mask, raise", "{}", preset.name);
                talk.softirq();
            }
            Threaded::Enabled | Threaded::BusyPoll => {
                assert_eq!(steps, "mask, wake napi", "{}", preset.name);
                talk.hear(Kthread::new(&talk.host, ID)).run_next(3);
            }
            Threaded::Workqueue => {
                assert_eq!(steps, "mask, wake worker", "{}", preset.name);
                talk.hear(Worker::new(&talk.host)).run();
            }
        }
        assert_eq!(talk.read(), 1, "{}", preset.name);
    }
}

#[test]
fn driven_to_its_end_a_pass_hands_back_the_softirq_that_it_raised() {
    let talk = Talk::new("base");
    talk.arrive(1);
    let world = |op| panic!("{op:?} is the world's");
    let raised = Interrupt::new(&talk.host, ID).drive(|| 0, world);
    assert_eq!(raised, Some(Op::Raise(CPU)));
    let inline = Context::Interrupt { competition: false };
    assert_eq!(Softirq::new(&talk.host, CPU, inline).drive(|| 0, world), None);
    assert_eq!(talk.read(), 1);
    // A thread that is stopped leaves its pass while it sleeps.
    let mut slept = 0;
    let mut sleep_twice = |op| {
        assert_eq!(op, Op::Sleep(NEVER));
        slept += 1;
        (slept < 2).then_some(Did::Ok)
    };
    let mut ksoftirqd = Softirq::new(&talk.host, CPU, Context::Ksoftirqd);
    assert_eq!(ksoftirqd.drive(|| 0, &mut sleep_twice), None);
    assert_eq!(slept, 2);
}
