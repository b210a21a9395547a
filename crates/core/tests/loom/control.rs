//! Concurrent disable, enable and change of the queue: one at a time has the instance.

use std::mem::ManuallyDrop;
use std::sync::atomic::Ordering::SeqCst;

use loom::thread::spawn;
use napkin_core::*;

use crate::scene::{SOFTIRQ, THREAD, explore};
use crate::world::{Actor, ID, Stop, World, join};

/// What a thread does to an instance; it may be refused.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Control {
    Enable,
    Disable,
    /// Touches the queue, as re-creating its device does.
    Change,
}

impl Control {
    fn act(self, actor: &mut Actor, others: &mut Vec<loom::thread::JoinHandle<()>>) {
        let world = actor.world.clone();
        match self {
            Control::Enable => {
                if let Ok(enable) = Enable::new(&world.host, ID) {
                    actor.finish(enable);
                }
            }
            Control::Disable => {
                let Ok(disable) = Disable::new(&world.host, ID) else { return };
                let mut disable = ManuallyDrop::new(disable);
                if actor.drive(&mut *disable, Did::Start) == Stop::Slept {
                    // Sleep until all other threads have ended.
                    join(others);
                    let stop = actor.drive(&mut *disable, Did::Ok);
                    assert_eq!(stop, Stop::Done, "a disable that never ends");
                }
                drop(ManuallyDrop::into_inner(disable));
            }
            Control::Change => {
                let _ = world.host.change_queue(ID, |nic| nic.mask());
            }
        }
        actor.way_out();
    }
}

/// Runs two of them concurrently on an enabled or a disabled instance; afterwards it is enabled, and traffic flows.
fn at_once(policy: &napkin_policy::InstancePolicy, enabled: bool, acts: (Control, Control)) {
    let world = World::new(policy, false);
    let mut main = Actor::new(&world);
    if enabled {
        main.enable();
    }
    // This model does not know whether the instance is disabled at the moment of a poll.
    world.line(ID).disabled.store(false, SeqCst);
    let mut other = Actor::new(&world);
    let mut others = vec![spawn(move || acts.0.act(&mut other, &mut vec![]))];
    acts.1.act(&mut main, &mut others);
    join(&mut others);
    main.settle();
    main.enable();
    main.packet();
    main.settle();
}

fn all(enabled: bool, acts: &[(Control, Control)]) {
    for policy in [&SOFTIRQ, &THREAD] {
        for &acts in acts {
            let policy = *policy;
            let runs = explore(move || at_once(&policy, enabled, acts));
            println!("{runs:>9} schedules: {acts:?}");
        }
    }
}

#[test]
fn one_disables_and_another_enables() {
    all(true, &[(Control::Enable, Control::Disable)]);
    all(false, &[(Control::Enable, Control::Disable)]);
}

#[test]
fn one_changes_the_queue_and_another_enables() {
    all(false, &[(Control::Change, Control::Enable), (Control::Enable, Control::Change)]);
}

#[test]
fn one_changes_the_queue_and_another_disables() {
    all(true, &[(Control::Change, Control::Disable)]);
}

#[test]
fn two_change_the_queue() {
    all(false, &[(Control::Change, Control::Change)]);
}

#[test]
fn two_disable_or_enable() {
    all(true, &[(Control::Disable, Control::Disable)]);
    all(false, &[(Control::Enable, Control::Enable)]);
}
