//! Changes of owner: every change of mode, disable and enable, under load; polls with budget 0.

use crate::world;
use crate::world::Any;
use crate::world::talk::{CPU, ID, Speaker, Talk};
use napkin_core::*;
use napkin_policy::Threaded;

/// The owners that a mode can give an instance to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Delivery {
    Softirq,
    Ksoftirqd,
    Thread,
    BusyThread,
    Worker,
}

const DELIVERIES: [Delivery; 5] = [
    Delivery::Softirq,
    Delivery::Ksoftirqd,
    Delivery::Thread,
    Delivery::BusyThread,
    Delivery::Worker,
];

impl Delivery {
    fn mode(self) -> Threaded {
        match self {
            Delivery::Softirq | Delivery::Ksoftirqd => Threaded::Disabled,
            Delivery::Thread => Threaded::Enabled,
            Delivery::BusyThread => Threaded::BusyPoll,
            Delivery::Worker => Threaded::Workqueue,
        }
    }

    fn owner(self) -> Owner {
        match self {
            Delivery::Softirq => Owner::Softirq,
            Delivery::Ksoftirqd => Owner::Ksoftirqd,
            Delivery::Thread | Delivery::BusyThread => Owner::Thread,
            Delivery::Worker => Owner::Worker,
        }
    }

    fn pass(self, talk: &Talk) -> Speaker<'_, Any<'_>> {
        let host = &talk.host;
        let inline = Context::Interrupt { competition: false };
        talk.hear(match self {
            Delivery::Softirq => Any::Softirq(Softirq::new(host, CPU, inline), CPU),
            Delivery::Ksoftirqd => Any::Softirq(Softirq::new(host, CPU, Context::Ksoftirqd), CPU),
            Delivery::Thread | Delivery::BusyThread => Any::Kthread(Kthread::new(host, ID)),
            Delivery::Worker => Any::Worker(Worker::new(host)),
        })
    }
}

#[test]
fn settings_are_those_that_were_set() {
    let talk = Talk::new("base");
    let mut policy = talk.host.instance(ID).settings();
    for delivery in DELIVERIES {
        policy.threaded = delivery.mode();
        policy.hold += MICROSECOND;
        talk.host.set(ID, &policy).expect("within its limits");
        assert_eq!(talk.host.instance(ID).settings(), policy);
    }
    let beyond = napkin_policy::InstancePolicy { hold: NEVER, ..policy };
    assert!(matches!(talk.host.set(ID, &beyond), Err(SettingError::Limit(_))));
    assert_eq!(talk.host.instance(ID).settings(), policy);
}

#[test]
fn an_interrupt_within_the_hold_s_time_after_the_last_work_is_told_apart() {
    let talk = Talk::new("base");
    for (since, after_hold) in [(10, 1), (10, 1), (50, 2), (60, 3)] {
        talk.pass(since * MICROSECOND);
        talk.arrive(1);
        assert_eq!(talk.interrupt(ID), "mask, raise");
        assert_eq!(talk.counts().interrupts_after_hold, after_hold, "{since} us");
        talk.set(|policy| policy.hold = 0);
        talk.softirq();
        talk.set(|policy| policy.hold = 50 * MICROSECOND);
    }
}

/// Keeps a queue from draining: replaces the frames that the last poll took.
fn saturate(talk: &Talk) {
    let waiting = talk.device(ID).waiting();
    talk.arrive(512usize.saturating_sub(waiting));
}

/// Takes the next step of the owner of a queue that never drains.
fn step(talk: &Talk, owner: &mut Speaker<'_, Any<'_>>) -> String {
    saturate(talk);
    owner.run_next(1)
}

fn polls(talk: &Talk, delivery: Delivery) -> u64 {
    let counts = talk.counts();
    counts.polls[delivery.owner() as usize] + counts.empty_polls[delivery.owner() as usize]
}

/// A saturated queue in the hands of an owner that has taken some steps.
fn owned<'t>(talk: &'t Talk, delivery: Delivery, steps: usize) -> Speaker<'t, Any<'t>> {
    talk.set(|policy| policy.threaded = delivery.mode());
    saturate(talk);
    talk.interrupt(ID);
    let mut owner = delivery.pass(talk);
    for _ in 0..steps {
        let text = step(talk, &mut owner);
        assert!(!text.contains("sleep") && !text.is_empty(), "{delivery:?}: {text}");
    }
    assert!(polls(talk, delivery) > 0);
    owner
}

#[test]
fn every_change_of_mode_on_a_saturated_queue_takes_two_polls_at_the_most() {
    for from in DELIVERIES {
        for to in DELIVERIES.into_iter().filter(|to| to.mode() != from.mode()) {
            for steps in 6..13 {
                let talk = Talk::new("base");
                // The new owner begins here while the old one's last step is under way.
                talk.host.contexts_share_a_thread();
                let mut old = owned(&talk, from, steps);
                let before = polls(&talk, from);
                talk.set(|policy| policy.threaded = to.mode());
                // Thread and busy thread are the same thread: there is nothing to hand over.
                let same = from.owner() == to.owner();
                let mut words = Vec::new();
                while words.len() < 8 && !same {
                    let text = step(&talk, &mut old);
                    let done = text.starts_with("wake");
                    words.push(text);
                    if done {
                        break;
                    }
                }
                let case = format!("{from:?} to {to:?} after {steps}: {words:?}");
                let late = polls(&talk, from) - before;
                assert!(late <= 2, "{case}");
                if same {
                    continue;
                }
                let last = words.last().map_or("", String::as_str);
                assert!(last.starts_with("wake"), "{case}");
                // The new owner polls, and the old one no more.
                let taken = polls(&talk, to);
                let mut new = to.pass(&talk);
                let text: Vec<String> = (0..4).map(|_| step(&talk, &mut new)).collect();
                assert!(polls(&talk, to) > taken, "{case}: {text:?}");
                let before = polls(&talk, from);
                old.run_next(4);
                assert_eq!(polls(&talk, from), before, "{case}");
            }
        }
    }
}

#[test]
fn a_thread_that_begins_to_spin_or_stops_to_keeps_its_queue() {
    let talk = Talk::new("threaded");
    let mut thread = owned(&talk, Delivery::Thread, 6);
    talk.set(|policy| policy.threaded = Threaded::BusyPoll);
    while talk.device(ID).waiting() > 0 {
        thread.run_next(1);
    }
    assert!(thread.run_next(6).ends_with("poll 64 -> 0, pause, poll 64 -> 0, pause"));
    talk.set(|policy| policy.threaded = Threaded::Enabled);
    assert_eq!(thread.run(), "poll 64 -> 0, unmask, sleep");
}

#[test]
fn a_session_is_everybody_s_guest_but_not_a_spinning_thread_s() {
    for to in DELIVERIES {
        let talk = Talk::new("base");
        let context = talk.context(1_000, 8, false);
        context.follow(ID);
        let wait = EpollWait::new(&talk.host, &context, None, false);
        let mut session = talk.hear(Any::Epoll(wait));
        assert_eq!(session.run_next(3), "look -> 0, poll 8 -> 0, look -> 0");
        talk.set(|policy| policy.threaded = to.mode());
        let text = session.run_next(2);
        match to {
            Delivery::BusyThread => assert_eq!(text, "poll 8 -> 0, wake napi"),
            _ => assert_eq!(text, "poll 8 -> 0, look -> 0", "{to:?}"),
        }
    }
}

/// A wait whose session prefers busy polling, and goes on as long as there is nothing to read.
fn session<'t>(talk: &'t Talk, context: &'t EpollContext) -> Speaker<'t, Any<'t>> {
    context.follow(ID);
    talk.hear(Any::Epoll(EpollWait::new(&talk.host, context, None, false)))
}

/// Takes the session's next step; what it delivered is read first, so that its looks find nothing.
fn session_step(talk: &Talk, session: &mut Speaker<'_, Any<'_>>) -> String {
    talk.read();
    step(talk, session)
}

fn session_polls(talk: &Talk) -> u64 {
    let counts = talk.counts();
    counts.polls[Owner::Application as usize] + counts.empty_polls[Owner::Application as usize]
}

#[test]
fn a_session_outlives_every_change_of_mode_but_to_a_spinning_thread_and_then_the_mode_decides() {
    for from in DELIVERIES.into_iter().filter(|from| *from != Delivery::BusyThread) {
        for to in DELIVERIES.into_iter().filter(|to| to.mode() != from.mode()) {
            for steps in 4..12 {
                let talk = Talk::new("base");
                talk.set(|policy| policy.threaded = from.mode());
                let context = talk.context(1_000, 8, true);
                let mut session = session(&talk, &context);
                (0..steps).for_each(|_| drop(session_step(&talk, &mut session)));
                let before = session_polls(&talk);
                assert!(before > 0);
                talk.set(|policy| policy.threaded = to.mode());
                let words: Vec<_> = (0..12).map(|_| session_step(&talk, &mut session)).collect();
                let case = format!("{from:?} to {to:?} after {steps}: {words:?}");
                let late = session_polls(&talk) - before;
                if to == Delivery::BusyThread {
                    assert!(late <= 2 && words.iter().any(|word| word == "wake napi"), "{case}");
                } else {
                    assert!(late >= 3 && words.iter().all(|word| !word.contains("wake")), "{case}");
                    // An event: the session releases, and the queue, which is not empty, goes to the owner of its
                    // mode.
                    let text = session.run();
                    let next = match to {
                        Delivery::Softirq | Delivery::Ksoftirqd => "run here",
                        Delivery::Thread | Delivery::BusyThread => "wake napi",
                        Delivery::Worker => "wake worker",
                    };
                    assert!(text.contains(next), "{case}: {text}");
                }
                let (taken, left) = (polls(&talk, to), session_polls(&talk));
                saturate(&talk);
                talk.interrupt(ID);
                let mut new = to.pass(&talk);
                let text: Vec<String> = (0..4).map(|_| step(&talk, &mut new)).collect();
                assert!(polls(&talk, to) > taken, "{case}: {text:?}");
                assert_eq!(session_polls(&talk), left, "{case}");
            }
        }
    }
}

#[test]
fn a_session_gets_a_saturated_queue_from_every_owner_but_a_spinning_thread() {
    for from in DELIVERIES {
        for steps in 6..13 {
            let talk = Talk::new("defer20");
            let context = talk.context(1_000, 8, true);
            let mut old = owned(&talk, from, steps);
            talk.read();
            let mut session = session(&talk, &context);
            // The session finds the queue owned, and sets `PREFER_BUSY_POLL`.
            assert_eq!(session_step(&talk, &mut session), "look -> 0", "{from:?}");
            assert_eq!(session_step(&talk, &mut session), "look -> 0", "{from:?}");
            let before = polls(&talk, from);
            let words: Vec<String> = (0..12).map(|_| step(&talk, &mut old)).collect();
            let case = format!("{from:?} after {steps}: {words:?}");
            let late = polls(&talk, from) - before;
            let taken = session_polls(&talk);
            (0..6).for_each(|_| drop(session_step(&talk, &mut session)));
            if from == Delivery::BusyThread {
                assert!(late >= 3 && session_polls(&talk) == taken, "{case}");
                continue;
            }
            assert!(late <= 2, "{case}");
            assert!(session_polls(&talk) >= taken + 2, "{case}");
            let before = polls(&talk, from);
            old.run_next(4);
            assert_eq!(polls(&talk, from), before, "{case}");
        }
    }
}

#[test]
fn an_idle_instance_changes_hands_at_its_next_schedule() {
    let talk = Talk::new("base");
    talk.set(|policy| policy.threaded = Threaded::Enabled);
    talk.arrive(1);
    assert_eq!(talk.interrupt(ID), "mask, wake napi");
    assert_eq!(Delivery::Thread.pass(&talk).run(), "poll 64 -> 1, deliver, unmask, sleep");
    // A thread whose mode is gone ends.
    talk.set(|policy| policy.threaded = Threaded::Disabled);
    assert_eq!(Delivery::Thread.pass(&talk).run(), "");
}

#[test]
fn a_thread_with_a_token_polls_before_it_ends() {
    let talk = Talk::new("threaded");
    talk.arrive(1);
    talk.interrupt(ID);
    talk.set(|policy| policy.threaded = Threaded::Disabled);
    assert_eq!(Delivery::Thread.pass(&talk).run(), "poll 64 -> 1, deliver, wake ksoftirqd");
    assert_eq!(talk.softirq(), "poll 64 -> 0, unmask");
}

#[test]
fn disable_takes_a_saturated_queue_within_two_polls_of_any_owner() {
    for delivery in DELIVERIES {
        for steps in 6..13 {
            let talk = Talk::new("base");
            let mut owner = owned(&talk, delivery, steps);
            let before = polls(&talk, delivery);
            let mut disable = talk.hear(Disable::new(&talk.host, ID).expect("it is enabled"));
            assert_eq!(disable.run(), "sleep 50us", "{delivery:?}");
            while talk.host.instance(ID).state().has(state::SCHED) {
                step(&talk, &mut owner);
                assert!(polls(&talk, delivery) <= before + 2, "{delivery:?} after {steps}");
            }
            assert_eq!(disable.run(), "mask", "{delivery:?}");
            assert!(talk.host.instance(ID).state().disabled());
            let polled = talk.counts().all_polls();
            owner.run_next(6);
            assert_eq!(talk.counts().all_polls(), polled, "{delivery:?}: nobody polls it now");
            // Enabled with frames waiting: they are left to the owner of the mode.
            let text = talk.enable(ID);
            assert!(text.starts_with("unmask: work waits, mask, wake"), "{delivery:?}: {text}");
        }
    }
}

#[test]
fn disable_takes_a_queue_from_a_session_within_two_polls() {
    let talk = Talk::new("base");
    let context = talk.context(1_000, 8, false);
    context.follow(ID);
    let mut session = talk.hear(EpollWait::new(&talk.host, &context, None, false));
    session.run_next(3);
    let mut disable = talk.hear(Disable::new(&talk.host, ID).expect("it is enabled"));
    disable.run();
    assert_eq!(session.run(), "poll 8 -> 0, look -> 0, sleep");
    assert_eq!(disable.run(), "mask");
}

#[test]
fn a_disabled_instance_is_left_alone_by_everything() {
    let talk = Talk::new("suspend20");
    talk.hear(Disable::new(&talk.host, ID).expect("it is enabled")).run();
    talk.arrive(5);
    assert_eq!(talk.interrupt(ID), "no interrupt");
    assert_eq!(talk.host.schedule(ID, RaisedFrom::Interrupt), None);
    assert_eq!(talk.timer(), "nothing");
    assert_eq!(talk.softirq(), "");
    assert_eq!(talk.hear(TxPoll::new(&talk.host, ID)).run(), "");
    let context = talk.context(50, 8, true);
    context.follow(ID);
    let mut wait = talk.hear(EpollWait::new(&talk.host, &context, None, false));
    assert_eq!(wait.run(), "look -> 0, look -> 0, sleep");
    assert_eq!(talk.enable(ID), "unmask: work waits, mask, wake ksoftirqd");
    assert_eq!(talk.softirq(), "poll 64 -> 5, deliver, timer +20us");
}

#[test]
fn disable_and_enable_refuse_what_makes_no_sense() {
    let talk = Talk::new("base");
    let enabled = Enable::new(&talk.host, ID).map(drop);
    assert_eq!(enabled, Err(ControlError::NotDisabled(ID)));
    assert!(
        talk.host.change_queue(ID, |queue| *queue = world::Port(talk.devices[0].clone())).is_err()
    );
    let mut disable = talk.hear(Disable::new(&talk.host, ID).expect("it is enabled"));
    let twice = Disable::new(&talk.host, ID).map(drop);
    assert_eq!(twice, Err(ControlError::AlreadyDisabled(ID)));
    disable.run();
    let twice = Disable::new(&talk.host, ID).map(drop);
    assert_eq!(twice, Err(ControlError::AlreadyDisabled(ID)));
    assert!(
        talk.host.change_queue(ID, |queue| *queue = world::Port(talk.devices[0].clone())).is_ok()
    );
    assert_eq!(talk.enable(ID), "unmask");
}

#[test]
fn settings_survive_a_disable() {
    let talk = Talk::new("defer20");
    talk.hear(Disable::new(&talk.host, ID).expect("it is enabled")).run();
    talk.set(|policy| policy.defer_hard_irqs = 3);
    talk.enable(ID);
    let settings = talk.host.instance(ID).settings();
    assert_eq!((settings.defer_hard_irqs, settings.gro_flush_timeout), (3, 20 * MICROSECOND));
}

#[test]
fn a_poll_with_budget_0_reaps_and_completes_nothing() {
    let talk = Talk::new("defer20");
    talk.arrive(1);
    talk.interrupt(ID);
    talk.softirq();
    let deadline = talk.host.instance(ID).deadline();
    talk.arrive(3);
    talk.device(ID).completions = 9;
    let mut reap = talk.hear(TxPoll::new(&talk.host, ID));
    assert_eq!(reap.run(), "poll 0 -> 0 tx 9");
    assert_eq!((reap.pass.reaped(), talk.counts().completions), (9, 9));
    // The interrupt is as it was, and so are the timer and the frames.
    assert!(talk.masked());
    assert_eq!(talk.host.instance(ID).deadline(), deadline);
    assert_eq!(talk.device(ID).waiting(), 3);
}

#[test]
fn a_poll_with_budget_0_leaves_an_owned_instance_to_its_owner() {
    let talk = Talk::new("base");
    talk.arrive(1);
    talk.interrupt(ID);
    assert_eq!(talk.hear(TxPoll::new(&talk.host, ID)).run(), "");
}

#[test]
fn an_interrupt_during_a_poll_with_budget_0_is_not_lost() {
    let talk = Talk::new("base");
    let mut reap = talk.hear(TxPoll::new(&talk.host, ID));
    let op = reap.decides();
    talk.arrive(1);
    assert_eq!(talk.interrupt(ID), "");
    assert_eq!(reap.does(op), "poll 0 -> 0");
    assert_eq!(reap.run(), "mask, wake ksoftirqd");
    assert_eq!(talk.dispatch(Context::Ksoftirqd), "poll 64 -> 1, deliver, unmask, sleep");
}
