//! Suspension: contexts, their owners' threads, and everything that stores the timer's deadline.

use std::sync::Arc;

use loom::thread::spawn;
use napkin_core::race::Race;
use napkin_core::*;

use crate::scene::*;
use crate::world::{Actor, ID, LATE, SUSPENSION, World, join};

/// A served instance, and a context that suspends it.
fn suspended() -> (Arc<World>, Actor, Arc<EpollContext>) {
    let world = World::new(&SUSPEND, false);
    let mut main = Actor::new(&world);
    main.enable();
    main.packet();
    let context = Arc::new(context(true));
    main.events = Some([1].into());
    main.wait(&context);
    (world, main, context)
}

/// Checks that the timer of a masked instance without suspensions fires within its period: the last context to
/// leave has had it polled, and no thread has extended the timer since. (A suspension is twenty periods, and no
/// actor's steps take as long as one.)
fn not_put_off(world: &World) {
    let instance = world.host.instance(ID);
    let suspended = instance.suspending_contexts() > 0;
    let soon = instance.polled_at() + SUSPENSION / 2;
    assert!(
        suspended || !world.line(ID).masked() || instance.deadline() <= soon,
        "put off for nobody: polled at {}, and then at {}",
        instance.polled_at(),
        instance.deadline()
    );
}

/// Closes the context: its suspension ends at once, and nothing is left.
fn close(world: &World, main: Actor, context: &EpollContext) {
    world.still();
    not_put_off(world);
    lets_go(world, main, context);
}

/// The same for a context whose registration was voided while it was prolonged: its thread, which had the right to,
/// may have extended the timer once (`docs/races.md`), until the context closes.
fn lets_go(world: &World, mut main: Actor, context: &EpollContext) {
    world.still();
    main.close(context);
    not_put_off(world);
    assert_eq!(
        world.host.instance(ID).suspending_contexts(),
        0,
        "a suspension outlives its context"
    );
    main.settle();
    main.packet();
    main.settle();
}

/// A wait on another thread and one here, both on a context whose instance is suspended, or (`fresh`) not yet.
fn two_waits(first: u32, second: u32, fresh: bool) {
    let (world, mut main, context) = suspended();
    if fresh {
        main.close(&context);
        context.follow(ID);
    }
    let (mut other, shared) = (Actor::new(&world), context.clone());
    let mut others = vec![spawn(move || {
        other.events = Some([first, 0].into());
        other.wait(&shared);
    })];
    main.events = Some([second, 0].into());
    main.wait(&context);
    join(&mut others);
    close(&world, main, &context);
}

#[test]
fn two_threads_of_one_context_find_events() {
    explore(|| two_waits(1, 1, false));
    explore(|| two_waits(1, 1, true));
}

#[test]
fn one_thread_of_a_context_finds_events_and_another_nothing() {
    explore(|| two_waits(1, 0, false));
    explore(|| two_waits(1, 0, true));
}

#[test]
fn a_timer_that_is_put_off_last_is_put_off_for_nobody() {
    let why = fails_with(Race::TimerMovedLast, || two_waits(1, 0, false));
    assert!(why.contains("put off for nobody"), "{why}");
}

#[test]
fn a_context_keeps_its_napi_id_while_one_of_its_threads_finds_nothing() {
    explore(|| {
        let (world, mut main, context) = suspended();
        context.set(napkin_policy::EpollPolicy { keep_napi_id: true, ..context.params() });
        let (mut other, shared) = (Actor::new(&world), context.clone());
        let mut others = vec![spawn(move || {
            other.events = Some([1, 0].into());
            other.wait(&shared);
        })];
        main.events = Some([0, 0].into());
        main.wait(&context);
        join(&mut others);
        assert_eq!(context.follows(), Some(ID));
        close(&world, main, &context);
    });
}

#[test]
fn a_context_lets_go_while_a_thread_waits() {
    explore(|| {
        let (world, mut main, context) = suspended();
        let (mut other, shared) = (Actor::new(&world), context.clone());
        let mut others = vec![spawn(move || {
            other.events = Some([1].into());
            other.wait(&shared);
        })];
        main.close(&context);
        join(&mut others);
        close(&world, main, &context);
    });
}

/// Runs `act` while a context prolongs its suspension.
fn beside_a_prolonging(act: fn(&mut Actor), end: fn(&World, Actor, &EpollContext)) {
    explore(move || {
        let (world, mut main, context) = suspended();
        let (mut other, shared) = (Actor::new(&world), context.clone());
        let mut others = vec![spawn(move || {
            other.events = Some([1].into());
            other.wait(&shared);
        })];
        act(&mut main);
        join(&mut others);
        end(&world, main, &context);
    });
}

#[test]
fn the_safety_timeout_expires_while_a_context_prolongs() {
    beside_a_prolonging(|main| main.timer(LATE), lets_go);
}

#[test]
fn an_owner_arms_or_unmasks_while_a_context_prolongs() {
    beside_a_prolonging(|main| main.schedule(RaisedFrom::Application), close);
    let twice: fn(&mut Actor) = |main| {
        main.schedule(RaisedFrom::Application);
        main.schedule(RaisedFrom::Application);
    };
    beside_a_prolonging(twice, close);
}

#[test]
fn a_disable_cancels_the_timer_while_a_context_prolongs() {
    explore(|| {
        let (world, mut main, context) = suspended();
        let (mut other, shared) = (Actor::new(&world), context.clone());
        let mut others = vec![spawn(move || {
            other.events = Some([1].into());
            other.wait(&shared);
        })];
        main.disable(&mut others);
        main.enable();
        join(&mut others);
        close(&world, main, &context);
    });
}
