//! Every pair of concurrent acts, in every mode and every situation.

use napkin_policy::{InstancePolicy, Threaded};

use crate::scene::*;

/// The acts that run beside a whole turn of the owner.
const ANYTHING: [Act; 12] = [
    Act::Packet,
    Act::Stray,
    Act::Busy(false),
    Act::Busy(true),
    Act::Timer,
    Act::TxPoll,
    Act::Schedule,
    Act::Set(Threaded::Disabled),
    Act::Set(Threaded::Enabled),
    Act::Set(Threaded::Workqueue),
    Act::Move,
    Act::Disable,
];

/// The acts that run in pairs.
const PAIRED: [Act; 6] = [
    Act::Packet,
    Act::Busy(true),
    Act::Timer,
    Act::Schedule,
    Act::Set(Threaded::Disabled),
    Act::Set(Threaded::Enabled),
];

/// Explores all scenes, then reports which failed.
fn all(scenes: impl IntoIterator<Item = Scene>) {
    let failed: Vec<_> = scenes
        .into_iter()
        .filter_map(|scene| scene.outcome().err().map(|why| format!("{scene}: {why}")))
        .collect();
    assert!(failed.is_empty(), "{} scenes failed:\n{}", failed.len(), failed.join("\n"));
}

/// Every pair, and every act beside a disable.
fn pairs(policy: InstancePolicy, start: Start) {
    let mut scenes = vec![];
    for (i, &first) in PAIRED.iter().enumerate() {
        for &second in &PAIRED[i..] {
            match (first, second) {
                (Act::Set(first), Act::Set(second)) if first == second => {}
                (Act::Set(_), Act::Set(_)) => {
                    scenes.push(Scene::new(policy, start, &[first, second]).shallow());
                }
                _ => scenes.push(Scene::new(policy, start, &[first, second])),
            }
        }
        scenes.push(Scene::new(policy, start, &[first, Act::Disable]));
    }
    all(scenes);
}

/// The owner's whole turn beside every act; where the line matters, also as a one-shot.
fn owner(policy: InstancePolicy) {
    let mut scenes = vec![];
    for act in ANYTHING {
        let scene = Scene::new(policy, Start::Taken, &[Act::Owner, act]);
        if matches!(act, Act::Packet | Act::Stray | Act::Disable) {
            scenes.push(scene.clone().one_shot());
        }
        scenes.push(scene);
    }
    all(scenes);
}

/// Enable beside every act.
fn enable(policy: InstancePolicy) {
    let acts = PAIRED.into_iter().chain([Act::Disable, Act::Enable]);
    all(acts.map(|act| Scene::new(policy, Start::Disabled, &[Act::Enable, act])));
}

#[test]
fn softirq_idle() {
    pairs(SOFTIRQ, Start::Idle);
}

#[test]
fn softirq_owned() {
    owner(SOFTIRQ);
}

#[test]
fn softirq_enabled() {
    enable(SOFTIRQ);
}

#[test]
fn deferral_between_two_timers() {
    pairs(DEFER, Start::Served);
}

#[test]
fn deferral_owned() {
    owner(DEFER);
}

#[test]
fn suspension_between_two_timers() {
    pairs(SUSPEND, Start::Served);
}

#[test]
fn thread_idle() {
    pairs(THREAD, Start::Idle);
}

#[test]
fn thread_owned() {
    owner(THREAD);
}

#[test]
fn thread_with_deferral() {
    pairs(THREAD_DEFER, Start::Served);
}

#[test]
fn thread_enabled() {
    enable(THREAD);
}

#[test]
fn worker_owned() {
    owner(WORKER);
}

#[test]
fn hold_owned() {
    let acts = [Act::Packet, Act::Busy(true), Act::Schedule, Act::Set(Threaded::Enabled)];
    let scene = |act| Scene::new(HOLD, Start::Taken, &[Act::Owner, act]);
    all(acts.into_iter().chain([Act::Disable]).map(scene));
}

#[test]
fn a_disable_that_is_given_up_leaves_the_instance_in_service() {
    let given_up = |policy, act| Scene::new(policy, Start::Taken, &[Act::Owner, act]);
    all([
        Scene::new(SOFTIRQ, Start::Idle, &[Act::Packet, Act::AbandonAtOnce]),
        Scene::new(SOFTIRQ, Start::Idle, &[Act::Packet, Act::AbandonAtOnce]).one_shot().shallow(),
        Scene::new(DEFER, Start::Served, &[Act::Timer, Act::AbandonAtOnce]),
        given_up(SOFTIRQ, Act::Abandon).one_shot().shallow(),
        given_up(DEFER, Act::AbandonAtOnce).shallow(),
        given_up(THREAD, Act::Abandon).shallow(),
        given_up(WORKER, Act::AbandonAtOnce).shallow(),
    ]);
}

/// Softirqs that hand over to ksoftirqd, interrupts and applications that run them inline.
#[test]
fn ksoftirqd_and_inline_softirqs_leave_nothing_pending() {
    let mut scenes = vec![];
    for rules in [Rules::Squeezed, Rules::SqueezedOld, Rules::Ksoftirqd] {
        for act in [Act::Packet, Act::Schedule, Act::Move] {
            scenes.push(Scene::new(SOFTIRQ, Start::Taken, &[Act::Owner, act]).rules(rules));
        }
        let both = [Act::Packet, Act::Schedule];
        scenes.push(Scene::new(SOFTIRQ, Start::Idle, &both).rules(rules));
    }
    all(scenes);
}

#[test]
fn the_interrupt_moves_while_it_is_served() {
    let scene = |acts: &[Act]| Scene::new(SOFTIRQ, Start::Taken, acts).shallow();
    all([
        scene(&[Act::Owner, Act::Packet, Act::Move]),
        scene(&[Act::Owner, Act::Schedule, Act::Move]),
    ]);
}

#[test]
fn threaded_busy_poll_is_left_beside_anything() {
    let scene = |acts: &[Act]| Scene::new(BUSY_THREAD, Start::Taken, acts);
    let out = Act::Set(Threaded::Disabled);
    all([
        scene(&[Act::Owner, out]),
        scene(&[Act::Owner, Act::Set(Threaded::Enabled)]),
        scene(&[Act::Owner, Act::Set(Threaded::Workqueue)]),
        scene(&[Act::Owner, Act::Disable]),
        scene(&[Act::Owner, Act::Packet, out]).shallow(),
        scene(&[Act::Owner, Act::Busy(true), out]).shallow(),
        scene(&[Act::Owner, Act::Timer, out]).shallow(),
        scene(&[Act::Owner, Act::Packet, Act::Disable]).shallow(),
        scene(&[Act::Owner, Act::Busy(true), Act::Disable]).shallow(),
    ]);
}

#[test]
fn three_at_once() {
    let scene = |policy, start, acts: &[Act]| Scene::new(policy, start, acts).shallow();
    let (taken, served) = (Start::Taken, Start::Served);
    let out = Act::Set(Threaded::Disabled);
    all([
        scene(SOFTIRQ, taken, &[Act::Owner, Act::Packet, Act::Disable]),
        scene(SOFTIRQ, taken, &[Act::Owner, Act::Packet, Act::Busy(true)]),
        scene(SOFTIRQ, taken, &[Act::Owner, Act::Packet, Act::Set(Threaded::Enabled)]),
        scene(DEFER, taken, &[Act::Owner, Act::Busy(true), Act::Timer]),
        scene(DEFER, served, &[Act::Busy(true), Act::Timer, Act::Packet]),
        scene(DEFER, served, &[Act::Busy(true), Act::Timer, Act::Disable]),
        scene(DEFER, served, &[Act::Busy(true), Act::Timer, Act::Set(Threaded::Enabled)]),
        scene(THREAD, taken, &[Act::Owner, Act::Busy(true), out]),
        scene(THREAD, taken, &[Act::Owner, Act::Packet, Act::Disable]),
        scene(THREAD, taken, &[Act::Owner, Act::Packet, out]),
        scene(WORKER, taken, &[Act::Owner, Act::Packet, out]),
    ]);
}

/// The owner's turn under a driver that unmasks before it delivers, beside every act that can fall into the window;
/// every outcome that masks again is among them.
#[test]
fn unmasked_first_owned() {
    let scene = |policy, act| Scene::new(policy, Start::Taken, &[Act::Owner, act]).unmask_first();
    let mut scenes = vec![];
    for policy in [SOFTIRQ, DEFER, THREAD, WORKER] {
        for act in [Act::Packet, Act::Stray, Act::Schedule, Act::Disable] {
            scenes.push(scene(policy, act));
        }
        scenes.push(scene(policy, Act::Packet).one_shot());
    }
    scenes.extend([
        scene(SOFTIRQ, Act::Busy(false)),
        scene(DEFER, Act::Busy(true)),
        scene(DEFER, Act::Timer),
        scene(SOFTIRQ, Act::Set(Threaded::Enabled)),
        scene(THREAD, Act::Set(Threaded::Disabled)),
        scene(DEFER, Act::Set(Threaded::Workqueue)),
        scene(HOLD, Act::Packet),
        scene(HOLD, Act::Disable),
        scene(SOFTIRQ, Act::Packet).rules(Rules::Squeezed),
        scene(SOFTIRQ, Act::Abandon).shallow(),
    ]);
    all(scenes);
}

/// A session's passes and its last poll under such a driver, a busy thread that is left, and three
/// at once.
#[test]
fn unmasked_first_in_sessions_and_busy_threads() {
    let scene = |policy, start, acts: &[Act]| Scene::new(policy, start, acts).unmask_first();
    let (idle, taken, served) = (Start::Idle, Start::Taken, Start::Served);
    all([
        scene(SOFTIRQ, idle, &[Act::Busy(false), Act::Packet]),
        scene(SOFTIRQ, idle, &[Act::Busy(true), Act::Packet]).one_shot(),
        scene(DEFER, served, &[Act::Busy(true), Act::Packet]),
        scene(DEFER, served, &[Act::Busy(true), Act::Timer]),
        scene(DEFER, served, &[Act::Busy(true), Act::Disable]),
        scene(THREAD, idle, &[Act::Busy(true), Act::Packet]),
        scene(BUSY_THREAD, taken, &[Act::Owner, Act::Set(Threaded::Disabled)]),
        scene(BUSY_THREAD, taken, &[Act::Owner, Act::Disable]),
        scene(SOFTIRQ, taken, &[Act::Owner, Act::Packet, Act::Disable]).shallow(),
        scene(DEFER, taken, &[Act::Owner, Act::Packet, Act::Timer]).shallow(),
        scene(DEFER, served, &[Act::Busy(true), Act::Timer, Act::Packet]).shallow(),
    ]);
}

/// The smallest scenes, with any number of preemptions.
#[test]
fn the_smallest_exhaustively() {
    let scene = |policy, start, acts: &[Act]| Scene::new(policy, start, acts).unbounded();
    all([
        scene(SOFTIRQ, Start::Idle, &[Act::TxPoll, Act::TxPoll]),
        scene(SOFTIRQ, Start::Idle, &[Act::TxPoll, Act::Disable]),
        scene(SOFTIRQ, Start::Disabled, &[Act::TxPoll, Act::Enable]),
        scene(THREAD, Start::Taken, &[Act::Owner, Act::TxPoll]),
        scene(THREAD, Start::Taken, &[Act::Owner, Act::Timer]),
    ]);
}
