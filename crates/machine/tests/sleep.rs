//! Sleeps of programs: each ends on time, however the previous one ended.

use std::cell::RefCell;
use std::rc::Rc;

use napkin_core::{MILLISECOND, Ns};
use napkin_machine::profile::{Profile, Schema};
use napkin_machine::*;
use napkin_policy::Policy;

/// Performs these acts, and records when it is asked for each.
#[derive(Debug)]
struct Acts {
    acts: Vec<Act>,
    asked: Rc<RefCell<Vec<Ns>>>,
}

impl Program for Acts {
    fn resume(&mut self, machine: &mut Machine<'_>, _: ThreadId) -> Act {
        self.asked.borrow_mut().push(machine.now());
        if self.acts.is_empty() { Act::Exit } else { self.acts.remove(0) }
    }
}

/// Wakes a thread at these times.
#[derive(Debug)]
struct Waker(Vec<Ns>);

impl Client for Waker {
    fn start(&mut self, machine: &mut Machine<'_>) {
        self.0.iter().for_each(|&at| machine.client_timer(at, 0));
    }

    fn timer(&mut self, machine: &mut Machine<'_>, _: u64) {
        // The kernel's threads come first: a ksoftirqd and a worker for each CPU, and one NAPI thread per queue.
        let cpus = u32::from(machine.config().processor.cpus);
        machine.wake_thread(ThreadId(2 * cpus + 1));
    }

    fn receive(&mut self, _: &mut Machine<'_>, _: Packet) {}
}

/// Returns the millisecond in which each act was asked for.
fn asked(acts: Vec<Act>, wakes: Vec<Ns>) -> Vec<Ns> {
    let profile =
        Profile::named(Schema::host(), "emulator-7.2").unwrap_or_else(|error| panic!("{error}"));
    let mut config = Config::of(&profile);
    config.processor.shared_clock = false;
    let placement = Placement::aligned(1, config.processor.cpus);
    let host = placement.host(config.processor.cpus);
    let client = Box::new(Waker(wakes));
    let mut machine = Machine::new(config, Policy::BASE, &placement, &host, &[], client, 1);
    let asked = Rc::new(RefCell::new(Vec::new()));
    let program = Acts { acts, asked: Rc::clone(&asked) };
    let thread = machine.add_thread("acts", Affinity::pinned(0), Class::Fair, Box::new(program));
    machine.wake_thread(thread);
    machine.run(100 * MILLISECOND);
    let asked = asked.borrow();
    asked.iter().map(|at| at / MILLISECOND).collect()
}

#[test]
fn a_sleep_that_a_timer_ended_does_not_end_the_next() {
    let sleeps = [10, 20, 30].map(|at| Act::Sleep(at * MILLISECOND));
    assert_eq!(asked(sleeps.to_vec(), vec![]), [0, 10, 20, 30]);
}

#[test]
fn a_timer_of_a_sleep_that_ended_early_does_not_end_a_later_one() {
    let acts = vec![
        Act::Sleep(10 * MILLISECOND),
        // Computes until after that time.
        Act::User(7 * MILLISECOND),
        Act::Sleep(30 * MILLISECOND),
    ];
    assert_eq!(asked(acts, vec![5 * MILLISECOND]), [0, 5, 12, 30]);
}

#[test]
fn a_wake_up_that_comes_while_the_thread_runs_ends_its_next_sleep_at_once() {
    let acts = vec![Act::User(10 * MILLISECOND), Act::Sleep(50 * MILLISECOND)];
    assert_eq!(asked(acts, vec![5 * MILLISECOND]), [0, 10, 10]);
}
