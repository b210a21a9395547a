//! Skipping the cycles of a spinning pass equals stepping them: the same state, the same counts, and the same steps
//! afterwards.

use crate::world::Port;
use crate::world::talk::{CPU, ID, Speaker, Talk};
use napkin_core::*;
use napkin_policy::{ApplicationPolicy, Threaded};

/// The duration of each cycle, in nanoseconds.
const LENGTH: Ns = 300;

trait Spins: Pass<Port> + std::fmt::Debug {
    fn cycle(&self) -> Option<IdleCycle>;
}

impl Spins for EpollWait<'_, Port> {
    fn cycle(&self) -> Option<IdleCycle> {
        self.idle_cycle()
    }
}

impl Spins for SocketWait<'_, Port> {
    fn cycle(&self) -> Option<IdleCycle> {
        self.idle_cycle()
    }
}

impl Spins for Kthread<'_, Port> {
    fn cycle(&self) -> Option<IdleCycle> {
        self.idle_cycle()
    }
}

fn talk(policy: &str, order: Order) -> Talk {
    let talk = Talk::new(policy);
    talk.host.set_order(ID, order);
    talk.poll_cost.set(LENGTH);
    talk
}

/// Steps until the pass reports a cycle, whose poll is decided and not yet taken.
fn spin_up<P: Spins>(speaker: &mut Speaker<'_, P>) -> (Op, IdleCycle) {
    spin_up_after(speaker, 0)
}

/// The same, after some cycles.
fn spin_up_after<P: Spins>(speaker: &mut Speaker<'_, P>, mut cycles: u32) -> (Op, IdleCycle) {
    for _ in 0..20 {
        let op = speaker.decides();
        if let Some(cycle) = speaker.pass.cycle() {
            assert_eq!(cycle.steps().next(), Some(op), "the poll is the cycle's first step");
            if cycles == 0 {
                return (op, cycle);
            }
            cycles -= 1;
        }
        speaker.does(op);
    }
    panic!("it does not go round");
}

/// Steps `n` cycles in one world, skips them in the other, and compares the two; then goes on with both.
fn skipping_equals_stepping<P: Spins>(
    [stepped, skipped]: [&Talk; 2],
    [mut one, mut other]: [Speaker<'_, P>; 2],
    (first, n): (u32, u64),
) {
    let (mut op, cycle) = spin_up_after(&mut one, first);
    let (poll, same) = spin_up_after(&mut other, first);
    assert_eq!((op, cycle), (poll, same));
    for _ in 0..n {
        for step in cycle.steps() {
            assert_eq!(op, step);
            one.does(op);
            op = one.decides();
        }
        assert_eq!(one.pass.cycle(), Some(cycle), "the next cycle is like the last");
    }
    let last = skipped.now.get() + (n - 1) * LENGTH + skipped.poll_cost.get();
    skipped.pass(n * LENGTH);
    skipped.host.instance(ID).count_empty_polls(cycle.owner, n, last);
    // The device's own counts are the world's to keep.
    let unmasks = cycle.steps().filter(|step| matches!(step, Op::Unmask(_))).count() as u64;
    skipped.device(ID).unmasks += n * unmasks;

    assert_eq!(stepped.now, skipped.now);
    if first > 1 {
        // Compares everything: the pass with the host in it, states, counts, deadlines. (In its first cycle the
        // pass still holds the work of the poll before, which is not read again.)
        assert_eq!(format!("{:?}", one.pass), format!("{:?}", other.pass));
    }
    assert_eq!(stepped.counts(), skipped.counts());
    assert_eq!((op, one.does(op)), (poll, other.does(poll)));
    for talk in [stepped, skipped] {
        talk.arrive(3);
    }
    assert_eq!(one.run_next(12), other.run_next(12));
    assert_eq!(stepped.counts(), skipped.counts());
}

#[test]
fn an_epoll_wait_that_spins_may_be_skipped() {
    for order in [Order::DeliverFirst, Order::UnmaskFirst] {
        for policy in ["base", "defer20", "suspend20", "hold100"] {
            for n in [(0, 1), (0, 2), (2, 1), (2, 100)] {
                let talks = [(); 2].map(|()| talk(policy, order));
                let contexts = talks.each_ref().map(|talk| talk.context(1_000, 8, true));
                contexts.iter().for_each(|context| context.follow(ID));
                let wait = |i: usize| {
                    talks[i].hear(EpollWait::new(&talks[i].host, &contexts[i], None, false))
                };
                skipping_equals_stepping([&talks[0], &talks[1]], [wait(0), wait(1)], n);
            }
        }
    }
}

#[test]
fn a_receive_call_that_spins_may_be_skipped() {
    let params = ApplicationPolicy { socket_busy_poll_usecs: 500, ..ApplicationPolicy::default() };
    for order in [Order::DeliverFirst, Order::UnmaskFirst] {
        let talks = [(); 2].map(|()| talk("base", order));
        let call =
            |i: usize| talks[i].hear(SocketWait::new(&talks[i].host, params, Some(ID), None));
        skipping_equals_stepping([&talks[0], &talks[1]], [call(0), call(1)], (2, 700));
    }
}

#[test]
fn a_thread_that_polls_without_end_may_be_skipped() {
    let (one, other) = (Order::DeliverFirst, Order::UnmaskFirst);
    // The thread's very first poll finds the frame that woke it.
    for (order, first) in [(one, 1), (one, 2), (other, 1), (other, 2)] {
        let talks = [(); 2].map(|()| talk("threaded-busy-poll", order));
        let thread = |i: usize| {
            talks[i].arrive(1);
            talks[i].interrupt(ID);
            talks[i].hear(Kthread::new(&talks[i].host, ID))
        };
        let threads = [thread(0), thread(1)];
        assert_eq!(talks[0].counts().interrupts, 1);
        skipping_equals_stepping([&talks[0], &talks[1]], threads, (first, 1_000));
    }
}

#[test]
fn as_many_cycles_as_fit_are_followed_by_the_end_of_the_loop() {
    let talk = talk("base", Order::DeliverFirst);
    let context = talk.context(10, 8, false);
    context.follow(ID);
    let mut wait = talk.hear(EpollWait::new(&talk.host, &context, None, true));
    let (poll, cycle) = spin_up(&mut wait);
    assert_eq!((cycle.until, cycle.owner), (10 << 10, Owner::Application));
    assert!(cycle.steps().eq([Op::Poll { id: ID, budget: 8 }, Op::Look]));
    let n = cycle.most(talk.now.get(), LENGTH);
    assert_eq!(n, 34);
    let last = talk.now.get() + (n - 1) * LENGTH + talk.poll_cost.get();
    talk.pass(n * LENGTH);
    talk.host.instance(ID).count_empty_polls(cycle.owner, n, last);
    // The 35th cycle ends after the loop's end: the session stops.
    assert_eq!(wait.does(poll), "poll 8 -> 0");
    assert_eq!(wait.run(), "look -> 0, poll 8 -> 0, unmask, look -> 0");
    assert_eq!(talk.counts().empty_polls[Owner::Application as usize], n + 2);
}

#[test]
fn the_most_is_none_after_the_end_and_none_for_a_cycle_without_length() {
    let talk = talk("base", Order::DeliverFirst);
    let context = talk.context(10, 8, false);
    context.follow(ID);
    let mut wait = talk.hear(EpollWait::new(&talk.host, &context, None, true));
    let (_, cycle) = spin_up(&mut wait);
    let until = cycle.until;
    let most = |now, length| cycle.most(now, length);
    assert_eq!([most(until - 2, 1), most(until - 1, 1), most(until, 1)], [1, 0, 0]);
    assert_eq!([most(until + 1, 1), most(0, 0), most(0, until), most(0, until - 1)], [0, 0, 0, 1]);
}

#[test]
fn who_does_not_own_or_will_not_go_on_is_not_skipped() {
    let order = Order::DeliverFirst;
    // Another context owns the instance: the passes consist of looks alone.
    let owned = talk("base", order);
    let context = owned.context(1_000, 8, true);
    context.follow(ID);
    owned.arrive(1);
    owned.interrupt(ID);
    let mut wait = owned.hear(EpollWait::new(&owned.host, &context, None, false));
    for _ in 0..5 {
        let op = wait.decides();
        assert_eq!((op, wait.pass.cycle()), (Op::Look, None));
        owned.read();
        wait.does(op);
    }

    // A single pass does not repeat.
    let single = talk("base", order);
    let context = single.context(0, 8, true);
    context.follow(ID);
    let mut wait = single.hear(EpollWait::new(&single.host, &context, None, false));
    assert_eq!(wait.run_next(1), "look -> 0");
    assert_eq!(wait.decides(), Op::Poll { id: ID, budget: 8 });
    assert_eq!(wait.pass.cycle(), None);

    // Nor does a thread that sleeps when the ring is empty.
    let sleeps = talk("threaded", order);
    sleeps.arrive(1);
    sleeps.interrupt(ID);
    let mut thread = sleeps.hear(Kthread::new(&sleeps.host, ID));
    assert_eq!(thread.decides(), Op::Poll { id: ID, budget: 64 });
    assert_eq!(thread.pass.cycle(), None);
}

#[test]
fn what_is_asked_of_a_spinning_owner_ends_its_cycle() {
    let disabled = talk("threaded-busy-poll", Order::DeliverFirst);
    disabled.arrive(1);
    disabled.interrupt(ID);
    let mut thread = disabled.hear(Kthread::new(&disabled.host, ID));
    spin_up(&mut thread);
    let _disable = Disable::new(&disabled.host, ID).expect("in service");
    assert_eq!(thread.pass.cycle(), None);

    let left = talk("base", Order::UnmaskFirst);
    let context = left.context(1_000, 8, true);
    context.follow(ID);
    let mut wait = left.hear(EpollWait::new(&left.host, &context, None, false));
    let (_, cycle) = spin_up(&mut wait);
    let budget = 8;
    let steps = [Op::Poll { id: ID, budget }, Op::Unmask(ID), Op::Mask(ID), Op::Look];
    assert!(cycle.steps().eq(steps));
    left.set(|policy| policy.threaded = Threaded::BusyPoll);
    assert_eq!(wait.pass.cycle(), None);
}

#[test]
fn only_the_poll_is_the_beginning_of_a_cycle() {
    let talk = talk("base", Order::UnmaskFirst);
    let context = talk.context(1_000, 8, true);
    context.follow(ID);
    let mut wait = talk.hear(EpollWait::new(&talk.host, &context, None, false));
    for _ in 0..20 {
        let op = wait.decides();
        assert_eq!(wait.pass.cycle().is_some(), matches!(op, Op::Poll { .. }), "{op:?}");
        wait.does(op);
    }
}

#[test]
fn a_timer_that_expires_over_an_empty_ring_may_be_skipped() {
    for n in [1, 2, 7] {
        let talks = [(); 2].map(|()| talk("defer20", Order::DeliverFirst));
        let [stepped, skipped] = &talks;
        for talk in [stepped, skipped] {
            talk.arrive(1);
            talk.interrupt(ID);
            talk.softirq();
        }
        let timer = skipped.host.idle_timer(ID, CPU).expect("it defers, and nobody owns it");
        assert_eq!(stepped.host.idle_timer(ID, CPU), Some(timer), "asking changes nothing");
        let mut last = 0;
        for _ in 0..n {
            stepped.now.set(stepped.host.instance(ID).deadline());
            assert_eq!(stepped.timer(), "raise");
            stepped.softirq();
            last = stepped.host.instance(ID).polled_at();
        }
        skipped.host.count_expiries(&timer, n, last);
        skipped.now.set(stepped.now.get());
        assert_eq!(stepped.counts(), skipped.counts());
        assert_eq!(stepped.host.cpu(CPU).counts(), skipped.host.cpu(CPU).counts());
        let [one, other] = talks.each_ref().map(|talk| talk.host.idle_timer(ID, CPU));
        assert_eq!(one, other);
        assert_eq!(one.map_or(0, |it| it.expiries), timer.expiries - n);
        let [one, other] = talks.each_ref().map(|talk| talk.host.instance(ID).deadline());
        assert_eq!(one, other);
    }
}

#[test]
fn a_timer_is_not_foretold_where_more_follows_from_it_than_a_poll_and_its_next_start() {
    let foretold = |policy: &str, order: Order| {
        let talk = talk(policy, order);
        talk.arrive(1);
        talk.interrupt(ID);
        let owned = talk.host.idle_timer(ID, CPU);
        assert_eq!(owned, None, "{policy}: somebody owns it");
        talk.softirq();
        talk.host.idle_timer(ID, CPU).is_some()
    };
    assert!(foretold("defer20", Order::DeliverFirst));
    assert!(!foretold("defer20", Order::UnmaskFirst), "the driver unmasks, and masks again");
    assert!(!foretold("base", Order::DeliverFirst), "no timer is armed");
    assert!(!foretold("hold100", Order::DeliverFirst), "it stays in polled mode");
    assert!(!foretold("threaded", Order::DeliverFirst), "a thread polls");
}
