//! Named races of the kernel's history, each run twice: with the core as it is, and with the race re-introduced,
//! which must show. (Races of two threads are modelled in `loom/`.)
#![cfg(all(feature = "races", not(loom)))]

mod world;

use napkin_core::race::{self, Race};
use napkin_core::*;
use napkin_policy::Threaded;
use world::Plan;
use world::talk::{CPU, ID, Talk};

/// Re-introduces a race until it is dropped.
struct LetIn;

impl LetIn {
    fn new(race: Race) -> Self {
        race::set(Some(race));
        LetIn
    }
}

impl Drop for LetIn {
    fn drop(&mut self) {
        race::set(None);
    }
}

/// The results of a scenario without the race, and with it.
fn both<T>(race: Race, scenario: impl Fn() -> T) -> (T, T) {
    let without = scenario();
    let _race = LetIn::new(race);
    (without, scenario())
}

/// Whether the queue is dead: masked, without an owner and without a timer.
fn dead(talk: &Talk) -> bool {
    let instance = talk.host.instance(ID);
    talk.masked() && !instance.state().has(state::SCHED) && instance.deadline() == NEVER
}

#[test]
fn r2_a_timer_that_fires_during_the_last_poll() {
    let scenario = || {
        let talk = Talk::new("suspend20");
        talk.arrive(1);
        talk.interrupt(ID);
        talk.softirq();
        talk.read();
        let context = talk.context(0, 64, true);
        context.follow(ID);
        let mut wait = talk.hear(EpollWait::new(&talk.host, &context, None, false));
        assert_eq!(wait.run_next(3), "look -> 0, poll 64 -> 0, look -> 0");
        // The last poll is long, and the period short: the timer fires during the poll.
        let last = wait.decides();
        talk.pass(30 * MICROSECOND);
        talk.timer();
        wait.does(last);
        wait.run();
        dead(&talk)
    };
    assert_eq!(both(Race::EarlyTimer, scenario), (false, true));
}

#[test]
fn r8_a_thread_that_is_told_to_stop_spinning() {
    let scenario = || {
        let talk = Talk::new("threaded-busy-poll");
        talk.arrive(1);
        talk.interrupt(ID);
        let mut thread = talk.hear(Kthread::new(&talk.host, ID));
        thread.run_next(5);
        talk.set(|policy| policy.threaded = Threaded::Disabled);
        let (steps, left) = thread.run_at_most(20);
        (left, steps.matches("poll").count() <= 2)
    };
    // With the race, the thread spins for ever although its mode is gone.
    assert_eq!(both(Race::BusyBitStays, scenario), ((true, true), (false, false)));
}

#[test]
fn r13_a_mode_change_on_a_queue_that_never_drains() {
    let scenario = || {
        let talk = Talk::new("threaded");
        talk.arrive(10_000);
        talk.interrupt(ID);
        let mut thread = talk.hear(Kthread::new(&talk.host, ID));
        thread.run_next(5);
        talk.set(|policy| policy.threaded = Threaded::Disabled);
        let before = talk.counts().all_polls();
        thread.run_next(60);
        talk.counts().all_polls() - before <= 2
    };
    assert_eq!(both(Race::ModeWaitsForDrain, scenario), (true, false));
}

#[test]
fn r14_an_idle_context_s_resume_while_another_suspends() {
    let scenario = || {
        let talk = Talk::new("suspend20");
        let (busy, idle) = (talk.context(0, 64, true), talk.context(0, 64, true));
        busy.follow(ID);
        idle.follow(ID);
        talk.arrive(1);
        talk.interrupt(ID);
        talk.softirq();
        for context in [&idle, &busy] {
            talk.hear(EpollWait::new(&talk.host, context, None, false)).run();
        }
        talk.read();
        // One context's application works on what it found; the other context comes back and finds nothing.
        let steps = talk.hear(EpollWait::new(&talk.host, &idle, None, false)).run();
        let polled_for_it = steps.contains("run here");
        (polled_for_it, talk.host.instance(ID).deadline())
    };
    let (without, with) = both(Race::ResumeCancelsAll, scenario);
    assert_eq!(without, (false, 20 * MILLISECOND));
    assert_eq!(with, (true, 20 * MICROSECOND));
}

#[test]
fn r1_an_interrupt_between_the_unmask_and_the_release() {
    let scenario = || {
        let talk = Talk::new("base");
        talk.arrive(1);
        talk.interrupt(ID);
        let context = Context::Interrupt { competition: false };
        let mut softirq = talk.hear(Softirq::new(&talk.host, CPU, context));
        assert_eq!(softirq.run_next(3), "poll 64 -> 1, deliver, unmask");
        talk.arrive(1);
        talk.interrupt(ID);
        softirq.run();
        dead(&talk)
    };
    assert_eq!(both(Race::LostInterrupt, scenario), (false, true));
}

#[test]
fn r10_a_signal_while_a_wait_looks_for_events() {
    let scenario = || {
        let talk = Talk::new("suspend20");
        let context = talk.context(0, 64, true);
        context.follow(ID);
        talk.signal.set(true);
        let steps = talk.hear(EpollWait::new(&talk.host, &context, None, false)).run();
        (steps, talk.host.instance(ID).suspending_contexts())
    };
    let (without, with) = both(Race::SuspendOnSignal, scenario);
    assert_eq!(without, ("look: signal".into(), 0));
    // With the race, the interrupts of a queue without events stay suspended while the signal handler runs.
    assert_eq!(with, ("look: signal, timer +20ms".into(), 1));
}

#[test]
fn r11_frames_that_came_while_masked() {
    let scenario = || {
        let talk = Talk::new("base");
        talk.arrive(1);
        talk.interrupt(ID);
        let context = Context::Interrupt { competition: false };
        let mut softirq = talk.hear(Softirq::new(&talk.host, CPU, context));
        assert_eq!(softirq.run_next(2), "poll 64 -> 1, deliver");
        talk.arrive(1);
        softirq.run();
        talk.device(ID).waiting()
    };
    assert_eq!(both(Race::UnmaskWithoutLook, scenario), (0, 1));
}

#[test]
fn r12_an_instance_scheduled_while_the_network_softirq_runs() {
    let scenario = || {
        let talk = Talk::of("base", 1, 2);
        talk.arrive_at(Id(0), 1);
        talk.interrupt(Id(0));
        let context = Context::Interrupt { competition: false };
        let mut softirq = talk.hear(Softirq::new(&talk.host, CPU, context));
        softirq.run_next(2);
        talk.arrive_at(Id(1), 1);
        talk.interrupt(Id(1));
        softirq.run();
        (talk.device(Id(1)).waiting(), talk.host.cpu(CPU).pending())
    };
    assert_eq!(both(Race::ListNotRechecked, scenario), ((0, 0), (1, 0)));
}

/// The random world's checks find these races by themselves, which shows that the checks can fail.
#[test]
fn the_random_world_notices_every_race_that_its_steps_can_show() {
    let races = [
        Race::LostInterrupt,
        Race::EarlyTimer,
        Race::ThreadTestsSched,
        Race::ThreadQuitsOnDisable,
        Race::EnableInTwoSteps,
        Race::DisableRetry,
        Race::UnmaskWithoutLook,
        Race::ListNotRechecked,
        Race::ModeWaitsForDrain,
    ];
    for race in races {
        let _race = LetIn::new(race);
        let noticed = (0..3_000u64).any(|seed| {
            let plan = Plan { abandons: false, ..Plan::random(seed, 4_000) };
            // Two owners may also trip each other's debug assertions.
            !matches!(std::panic::catch_unwind(|| world::run(plan).is_ok()), Ok(true))
        });
        assert!(noticed, "{race:?} went unnoticed");
    }
}
