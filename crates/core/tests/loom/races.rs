//! Each known race: a model that passes, and fails once the race is switched on.
//!
//! The catalogue is `docs/races.md`. A liveness race shows as a token, a packet or a masked line that is left over
//! when all actors have ended, or as a poll too many, never as an endless loop.

use loom::thread::spawn;
use napkin_core::race::{self, Race};
use napkin_core::*;
use napkin_policy::Threaded;

use crate::scene::*;
use crate::world::{Actor, ID, SUSPENSION, World, join};

/// Checks that the scene passes, and that with the race it fails with an expected message.
fn detects(race: Race, scene: &Scene, expected: &[&str]) {
    scene.check();
    let why = scene.fails_with(race);
    assert!(
        expected.iter().any(|part| why.contains(part)),
        "{race:?} failed in its own way: {why}"
    );
}

/// The same for a model that is not a scene.
fn model_detects(race: Race, model: impl Fn() + Send + Sync + Copy + 'static, expected: &str) {
    explore(model);
    let why = fails_with(race, model);
    assert!(why.contains(expected), "{race:?} failed in its own way: {why}");
}

const LEFT: [&str; 2] = ["that nobody will find", "packets left"];

#[test]
fn r1_an_interrupt_before_the_release_is_remembered() {
    let scene = Scene::new(SOFTIRQ, Start::Taken, &[Act::Owner, Act::Packet]);
    detects(Race::LostInterrupt, &scene, &LEFT);
}

#[test]
fn r1_an_interrupt_while_a_poll_is_delivered_is_remembered() {
    let scene = Scene::new(SOFTIRQ, Start::Taken, &[Act::Owner, Act::Packet]).unmask_first();
    detects(Race::LostInterrupt, &scene, &LEFT);
}

#[test]
fn r2_a_timer_that_finds_the_instance_owned_leaves_a_mark() {
    let scene = Scene::new(DEFER, Start::Served, &[Act::Busy(true), Act::Timer]);
    detects(Race::EarlyTimer, &scene, &["without a timer"]);
}

#[test]
fn r3_the_thread_leaves_a_session_alone() {
    let scene = Scene::new(THREAD, Start::Idle, &[Act::Busy(true), Act::Set(Threaded::Enabled)]);
    detects(Race::ThreadTestsSched, &scene, &[""]);
}

#[test]
fn r3_the_thread_leaves_a_disabled_instance_alone() {
    let scene = Scene::new(THREAD, Start::Disabled, &[Act::Set(Threaded::Enabled)]);
    detects(Race::ThreadTestsSched, &scene, &["polled while disabled"]);
}

/// A disable while the thread is about to take its token.
fn disable_beside_the_thread() {
    let world = World::new(&THREAD, false);
    let mut main = Actor::new(&world);
    main.enable();
    main.packet_only();
    let mut thread = main.hand_over();
    let mut others = vec![spawn(move || thread.way_out())];
    main.disable(&mut others);
    join(&mut others);
}

#[test]
fn r4_the_thread_releases_before_it_ends() {
    model_detects(
        Race::ThreadQuitsOnDisable,
        disable_beside_the_thread,
        "a disable that never ends",
    );
}

#[test]
fn r5_enable_is_one_step() {
    let scene = Scene::new(SOFTIRQ, Start::Disabled, &[Act::Enable, Act::Schedule]);
    detects(Race::EnableInTwoSteps, &scene, &["a token that nobody holds"]);
    // The two steps do no harm by themselves: another context has to come in between.
    race::set(Some(Race::EnableInTwoSteps));
    Scene::new(SOFTIRQ, Start::Disabled, &[Act::Enable]).check();
    race::set(None);
}

#[test]
fn r6_disable_takes_only_what_is_free() {
    let scene = Scene::new(SOFTIRQ, Start::Taken, &[Act::Owner, Act::Disable]);
    detects(Race::DisableRetry, &scene, &[""]);
}

#[test]
fn r7_the_thread_of_a_disabled_instance_can_be_stopped() {
    let scene = Scene::new(THREAD, Start::Disabled, &[Act::Set(Threaded::Disabled)]);
    detects(Race::StopWaitsForSched, &scene, &["the thread's state"]);
}

/// Threaded busy poll is left while the thread spins: it stops, and traffic goes on.
fn leave_busy_poll() {
    let world = World::leaving(&BUSY_THREAD, false, Some(Owner::Thread));
    let mut main = Actor::new(&world);
    main.enable();
    main.packet_only();
    let mut thread = main.hand_over();
    let mut others = vec![spawn(move || thread.way_out())];
    main.change(&SOFTIRQ);
    join(&mut others);
    main.settle();
    main.packet();
    main.settle();
}

#[test]
fn r8_leaving_threaded_busy_poll_leaves_all_of_it() {
    model_detects(Race::BusyBitStays, leave_busy_poll, "polls on after the mode has changed");
}

#[test]
fn r11_unmasking_looks_at_the_ring_again() {
    let scene = Scene::new(SOFTIRQ, Start::Taken, &[Act::Owner, Act::Packet]);
    detects(Race::UnmaskWithoutLook, &scene, &LEFT);
}

#[test]
fn r11_unmasking_before_the_delivery_looks_at_the_ring_again() {
    let scene = Scene::new(SOFTIRQ, Start::Taken, &[Act::Owner, Act::Packet]).unmask_first();
    detects(Race::UnmaskWithoutLook, &scene, &LEFT);
}

#[test]
fn r12_the_softirq_looks_at_its_list_again() {
    let scene = Scene::new(SOFTIRQ, Start::Taken, &[Act::Owner, Act::Packet]);
    detects(Race::ListNotRechecked, &scene, &["a token that nobody holds"]);
}

/// The mode changes while the ring is full.
fn change_under_load() {
    let world = World::leaving(&SOFTIRQ, false, Some(Owner::Softirq));
    let mut main = Actor::new(&world);
    main.enable();
    for _ in 0..4 {
        main.packet_only();
    }
    let mut softirq = main.hand_over();
    let mut others = vec![spawn(move || softirq.way_out())];
    main.change(&THREAD);
    join(&mut others);
    main.settle();
}

#[test]
fn r13_a_mode_change_does_not_wait_for_the_ring_to_drain() {
    model_detects(
        Race::ModeWaitsForDrain,
        change_under_load,
        "polls on after the mode has changed",
    );
}

/// Two contexts suspend one instance; one of them finds nothing and resumes, while the other goes on.
fn one_of_two_resumes() {
    let world = World::new(&SUSPEND, false);
    let mut main = Actor::new(&world);
    main.enable();
    main.packet();
    let (idle, busy) = (context(true), context(true));
    main.events = Some([1, 1].into());
    main.wait(&idle);
    main.wait(&busy);
    let instance = world.host.instance(ID);
    let until = instance.deadline();
    assert_eq!(instance.suspending_contexts(), 2, "both suspend");
    let mut other = Actor::new(&world);
    let mut others = vec![spawn(move || {
        other.events = Some([0, 0].into());
        other.wait(&idle);
    })];
    main.events = Some([1].into());
    main.wait(&busy);
    join(&mut others);
    assert_eq!(instance.suspending_contexts(), 1, "the busy context still suspends");
    assert!(instance.deadline() >= until, "its suspension was cut short");
    world.still();
    main.close(&busy);
    assert_eq!(instance.suspending_contexts(), 0, "nobody suspends any more");
    assert!(instance.deadline() < until + SUSPENSION / 2, "the suspension ended at once");
    main.settle();
}

/// A context whose ready list never runs empty waits again and again, with or without another context that polls;
/// time passes between its waits.
fn a_list_that_never_runs_empty(polled: bool) {
    let world = World::new(&SUSPEND, false);
    let mut main = Actor::new(&world);
    main.enable();
    main.packet();
    let context = context(true);
    let mut others = vec![];
    if polled {
        let mut other = Actor::new(&world);
        others.push(spawn(move || other.schedule(napkin_core::RaisedFrom::Application)));
    }
    for _ in 0..2 {
        main.events = Some([1].into());
        main.wait(&context);
        world.pass(SUSPENSION / 2);
    }
    join(&mut others);
    world.still();
    main.close(&context);
    main.settle();
}

#[test]
fn r18_a_list_that_never_runs_empty_does_not_put_the_timer_off() {
    explore(|| a_list_that_never_runs_empty(true));
    let model = || a_list_that_never_runs_empty(false);
    model_detects(Race::ProlongWithoutPoll, model, "suspended beyond the timeout");
}

#[test]
fn r14_one_contexts_resume_is_its_own() {
    model_detects(Race::ResumeCancelsAll, one_of_two_resumes, "the busy context still suspends");
}
