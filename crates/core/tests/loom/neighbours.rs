//! Two instances of one CPU: its poll list has two nodes, and the pool's queue two items.

use loom::thread::spawn;
use napkin_core::Id;
use napkin_policy::InstancePolicy;

use crate::scene::*;
use crate::world::{Actor, ID, World, join};

const OTHER: Id = Id(1);

/// Two concurrent acts, one on each instance.
#[derive(Debug, Clone, Copy)]
struct Neighbours {
    policy: InstancePolicy,
    rules: Rules,
    /// [`Start::Taken`] applies to the second instance alone.
    start: Start,
    acts: (Act, Act),
    depth: Depth,
}

impl Neighbours {
    fn play(self) {
        let world = World::of(2, &self.policy, false, None);
        self.rules.apply(&world);
        let mut one = Actor::new(&world);
        let mut other = Actor::of(&world, OTHER);
        one.enable();
        other.enable();
        match self.start {
            Start::Taken => other.packet_only(),
            Start::Served => {
                one.packet();
                other.packet();
            }
            Start::Idle | Start::Disabled => {}
        }
        let policy = self.policy;
        let mut others = vec![spawn(move || one.play(self.acts.0, policy, &mut vec![]))];
        other.play(self.acts.1, policy, &mut vec![]);
        join(&mut others);
        other.settle();
        // Traffic still flows on both.
        for id in [ID, OTHER] {
            Actor::of(&world, id).packet();
        }
        other.settle();
    }

    fn check(self) {
        let runs = explored(self.depth, move || self.play());
        let Neighbours { rules, start, acts, depth, .. } = self;
        println!("{runs:>9} schedules: {rules:?}, {depth:?}, {start:?}: {acts:?}");
    }
}

fn all(policy: InstancePolicy, start: Start, acts: &[(Act, Act)]) {
    let (rules, depth) = (Rules::Inline, Depth::Usual);
    for &acts in acts {
        Neighbours { policy, rules, start, acts, depth }.check();
    }
}

#[test]
fn both_are_scheduled_at_once() {
    all(SOFTIRQ, Start::Idle, &[(Act::Packet, Act::Packet), (Act::Schedule, Act::Packet)]);
}

#[test]
fn one_is_scheduled_while_the_other_is_served() {
    all(SOFTIRQ, Start::Taken, &[(Act::Packet, Act::Owner), (Act::Schedule, Act::Owner)]);
}

#[test]
fn ksoftirqd_goes_on_with_both() {
    for rules in [Rules::Squeezed, Rules::SqueezedOld, Rules::Ksoftirqd] {
        let (start, acts, depth) = (Start::Taken, (Act::Packet, Act::Owner), Depth::Shallow);
        Neighbours { policy: SOFTIRQ, rules, start, acts, depth }.check();
    }
}

#[test]
fn both_timers_fire() {
    all(DEFER, Start::Served, &[(Act::Timer, Act::Timer)]);
}

#[test]
fn the_pool_has_two_items() {
    all(WORKER, Start::Idle, &[(Act::Packet, Act::Packet)]);
    all(WORKER, Start::Taken, &[(Act::Packet, Act::Owner), (Act::Schedule, Act::Owner)]);
}
