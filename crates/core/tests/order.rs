//! Drivers that unmask before they deliver ([`Order::UnmaskFirst`], as virtio_net does), as dialogues: the steps
//! they take, and the effect of an interrupt in between.

use crate::world::Port;
use crate::world::talk::{CPU, ID, Speaker, Talk};
use napkin_core::*;
use napkin_policy::Threaded;

const US: Ns = MICROSECOND;

/// A host whose drivers unmask first.
fn talk(policy: &str) -> Talk {
    let talk = Talk::new(policy);
    talk.host.set_order(ID, Order::UnmaskFirst);
    talk
}

/// One dispatch after an interrupt, step by step.
fn softirq(talk: &Talk) -> Speaker<'_, Softirq<'_, Port>> {
    talk.hear(Softirq::new(&talk.host, CPU, Context::Interrupt { competition: false }))
}

#[test]
fn the_order_is_deliver_first_unless_told() {
    let talk = Talk::new("base");
    assert_eq!(talk.host.instance(ID).order(), Order::DeliverFirst);
    talk.host.set_order(ID, Order::UnmaskFirst);
    assert_eq!(talk.host.instance(ID).order(), Order::UnmaskFirst);
}

#[test]
fn a_packet_is_polled_unmasked_delivered_and_released() {
    let talk = talk("base");
    talk.arrive(1);
    assert_eq!(talk.interrupt(ID), "mask, raise");
    assert_eq!(talk.softirq(), "poll 64 -> 1, unmask, deliver");
    assert!(!talk.masked());
    assert_eq!(talk.read(), 1);
}

#[test]
fn a_full_poll_allows_nothing() {
    let talk = talk("base");
    talk.arrive(70);
    talk.interrupt(ID);
    assert_eq!(talk.softirq(), "poll 64 -> 64, deliver, poll 64 -> 6, unmask, deliver");
}

#[test]
fn an_interrupt_while_the_poll_is_delivered_is_one_poll_more_in_the_same_softirq() {
    let talk = talk("base");
    talk.arrive(1);
    talk.interrupt(ID);
    let mut softirq = softirq(&talk);
    assert_eq!(softirq.run_next(2), "poll 64 -> 1, unmask");
    talk.arrive(1);
    // It finds the instance owned, and leaves `MISSED`.
    assert_eq!(talk.interrupt(ID), "");
    assert_eq!(softirq.run(), "deliver, mask, poll 64 -> 1, unmask, deliver");
    let counts = talk.counts();
    assert_eq!((counts.interrupts, counts.interrupts_missed, counts.repolls), (2, 1, 1));
    assert_eq!(counts.polls[Owner::Softirq as usize], 2);
    let cpu = talk.host.cpu(CPU).counts();
    assert_eq!((cpu.net_rx, cpu.time_squeeze), (1, 0));
}

#[test]
fn with_the_usual_order_nothing_comes_while_a_poll_is_delivered() {
    // With this order a long delivery opens no window for interrupts.
    let talk = Talk::new("base");
    talk.arrive(1);
    talk.interrupt(ID);
    let mut softirq = softirq(&talk);
    assert_eq!(softirq.run_next(2), "poll 64 -> 1, deliver");
    talk.arrive(1);
    assert_eq!(talk.interrupt(ID), "no interrupt");
}

#[test]
fn work_that_waited_at_the_unmasking_is_polled_before_anything_is_released() {
    let talk = talk("base");
    talk.arrive(1);
    talk.interrupt(ID);
    let mut softirq = softirq(&talk);
    assert_eq!(softirq.run_next(1), "poll 64 -> 1");
    // Between the last look at the ring and the unmasking: no edge.
    talk.arrive(1);
    assert_eq!(talk.interrupt(ID), "no interrupt");
    assert_eq!(softirq.run(), "unmask: work waits, deliver, mask, poll 64 -> 1, unmask, deliver");
    assert_eq!(talk.counts().repolls, 0);
    assert_eq!(talk.host.cpu(CPU).counts().net_rx, 1);
}

#[test]
fn deferral_masks_again_before_it_lets_go() {
    let talk = talk("defer20,defer-hard-irqs=2");
    talk.arrive(1);
    talk.interrupt(ID);
    assert_eq!(talk.softirq(), "poll 64 -> 1, unmask, deliver, timer +20us, mask");
    assert!(talk.masked());
    talk.at(20 * US);
    assert_eq!(talk.timer(), "raise");
    assert_eq!(talk.softirq(), "poll 64 -> 0, unmask, timer +20us, mask");
    talk.at(40 * US);
    talk.timer();
    assert_eq!(talk.softirq(), "poll 64 -> 0, unmask");
    assert!(!talk.masked());
    assert_eq!(talk.counts().deferrals, 2);
}

#[test]
fn deferral_that_an_interrupt_has_spoilt_starts_no_timer() {
    let talk = talk("defer20");
    talk.arrive(1);
    talk.interrupt(ID);
    let mut softirq = softirq(&talk);
    assert_eq!(softirq.run_next(2), "poll 64 -> 1, unmask");
    talk.arrive(1);
    assert_eq!(talk.interrupt(ID), "");
    assert_eq!(softirq.run(), "deliver, mask, poll 64 -> 1, unmask, deliver, timer +20us, mask");
    let counts = talk.counts();
    assert_eq!((counts.deferrals, counts.repolls), (1, 1));
    assert_eq!(talk.host.cpu(CPU).counts().net_rx, 1);
}

#[test]
fn an_interrupt_after_the_timer_was_armed_takes_it_back() {
    let talk = talk("defer20");
    talk.arrive(1);
    talk.interrupt(ID);
    let mut softirq = softirq(&talk);
    assert_eq!(softirq.run_next(4), "poll 64 -> 1, unmask, deliver, timer +20us");
    talk.arrive(1);
    assert_eq!(talk.interrupt(ID), "");
    assert_eq!(softirq.run_next(2), "mask, poll 64 -> 1");
    assert_eq!(talk.host.instance(ID).deadline(), NEVER);
    assert_eq!(softirq.run(), "unmask, deliver, timer +20us, mask");
}

#[test]
fn deferral_does_not_mind_work_that_waited() {
    // The kernel looks at the ring only after an unmasked release; the timer finds the packet.
    let talk = talk("defer20");
    talk.arrive(1);
    talk.interrupt(ID);
    let mut softirq = softirq(&talk);
    assert_eq!(softirq.run_next(1), "poll 64 -> 1");
    talk.arrive(1);
    assert_eq!(softirq.run(), "unmask: work waits, deliver, timer +20us, mask");
    talk.at(20 * US);
    talk.timer();
    assert_eq!(talk.softirq(), "poll 64 -> 1, unmask, deliver, timer +20us, mask");
}

#[test]
fn a_session_s_passes_unmask_and_mask_and_it_lets_go_to_the_timer() {
    let talk = talk("defer20");
    let context = talk.context(50, 8, true);
    context.follow(ID);
    let mut wait = talk.hear(EpollWait::new(&talk.host, &context, None, false));
    assert_eq!(wait.run_next(5), "look -> 0, poll 8 -> 0, unmask, mask, look -> 0");
    talk.arrive(1);
    assert_eq!(talk.interrupt(ID), "no interrupt");
    // The frames of a pass that polls on are delivered after its driver has returned.
    assert_eq!(wait.run_next(5), "poll 8 -> 1, unmask, mask, deliver, look -> 1");
    assert_eq!(wait.run(), "timer +20us, look -> 1");
}

#[test]
fn a_mark_that_a_pass_got_is_forgotten_with_the_last_poll() {
    let talk = talk("base");
    let context = talk.context(50, 8, false);
    context.follow(ID);
    let mut wait = talk.hear(EpollWait::new(&talk.host, &context, None, false));
    assert_eq!(wait.run_next(3), "look -> 0, poll 8 -> 0, unmask");
    talk.arrive(1);
    assert_eq!(talk.interrupt(ID), "");
    assert_eq!(
        wait.run(),
        "mask, look -> 0, poll 8 -> 1, unmask, mask, deliver, look -> 1, poll 8 -> 0, unmask, \
         look -> 1"
    );
    assert_eq!(talk.counts().repolls, 0);
}

#[test]
fn a_session_s_last_poll_that_was_interrupted_leaves_the_rest_to_the_softirq() {
    let talk = talk("base");
    let context = talk.context(0, 8, true);
    context.follow(ID);
    let mut wait = talk.hear(EpollWait::new(&talk.host, &context, None, false));
    assert_eq!(
        wait.run_next(7),
        "look -> 0, poll 8 -> 0, unmask, mask, look -> 0, poll 8 -> 0, unmask"
    );
    talk.arrive(1);
    assert_eq!(talk.interrupt(ID), "");
    assert_eq!(wait.run(), "mask, run here (poll 64 -> 1, unmask, deliver), look -> 1");
}

#[test]
fn a_busy_thread_s_passes_unmask_and_mask_until_the_mode_is_left() {
    let talk = talk("threaded-busy-poll");
    let mut thread = talk.hear(Kthread::new(&talk.host, ID));
    talk.arrive(1);
    assert_eq!(talk.interrupt(ID), "mask, wake napi");
    assert_eq!(thread.run_next(5), "poll 64 -> 1, unmask, mask, deliver, resched");
    assert_eq!(thread.run_next(4), "poll 64 -> 0, unmask, mask, pause");
    // The mode changes between the masking and the decision: the poll completes, in the usual order.
    assert_eq!(thread.run_next(3), "poll 64 -> 0, unmask, mask");
    talk.set(|policy| policy.threaded = Threaded::Enabled);
    assert_eq!(thread.run(), "unmask, sleep");
    assert!(!talk.masked());
}

#[test]
fn work_that_waited_when_a_busy_thread_left_its_mode_is_polled() {
    let talk = talk("threaded-busy-poll");
    let mut thread = talk.hear(Kthread::new(&talk.host, ID));
    talk.arrive(1);
    assert_eq!(talk.interrupt(ID), "mask, wake napi");
    assert_eq!(thread.run_next(5), "poll 64 -> 1, unmask, mask, deliver, resched");
    assert_eq!(thread.run_next(3), "poll 64 -> 0, unmask, mask");
    talk.set(|policy| policy.threaded = Threaded::Enabled);
    // Masked, and so no edge: only the unmasking can find it.
    talk.arrive(1);
    assert_eq!(talk.interrupt(ID), "no interrupt");
    assert_eq!(
        thread.run(),
        "unmask: work waits, mask, resched, poll 64 -> 1, unmask, deliver, timer +15us, mask, sleep"
    );
}

#[test]
fn an_interrupt_when_a_busy_thread_has_left_its_mode_finds_the_line_masked_again() {
    let talk = talk("threaded-busy-poll");
    let mut thread = talk.hear(Kthread::new(&talk.host, ID));
    talk.arrive(1);
    talk.interrupt(ID);
    thread.run_next(5);
    assert_eq!(thread.run_next(3), "poll 64 -> 0, unmask, mask");
    talk.set(|policy| policy.threaded = Threaded::Enabled);
    assert_eq!(thread.run_next(1), "unmask");
    talk.arrive(1);
    assert_eq!(talk.interrupt(ID), "");
    assert_eq!(thread.run_next(3), "mask, resched, poll 64 -> 1");
}

#[test]
fn a_thread_s_turn_that_was_interrupted_is_taken_again() {
    let talk = talk("threaded");
    let mut thread = talk.hear(Kthread::new(&talk.host, ID));
    talk.arrive(1);
    talk.interrupt(ID);
    assert_eq!(thread.run_next(2), "poll 64 -> 1, unmask");
    talk.arrive(1);
    assert_eq!(talk.interrupt(ID), "");
    assert_eq!(thread.run(), "deliver, mask, resched, poll 64 -> 1, unmask, deliver, sleep");
}

#[test]
fn a_holder_masks_again_in_each_turn() {
    let talk = talk("hold100");
    talk.arrive(1);
    talk.interrupt(ID);
    assert_eq!(
        talk.softirq(),
        "poll 64 -> 1, unmask, deliver, mask, poll 64 -> 0, unmask, mask, wake ksoftirqd"
    );
    talk.at(100 * US);
    assert_eq!(talk.dispatch(Context::Ksoftirqd), "poll 64 -> 0, unmask, sleep");
}

#[test]
fn a_parked_queue_is_masked_again() {
    let talk = talk("feedback");
    talk.sockets.borrow_mut()[0].capacity = 4;
    talk.arrive(3);
    talk.interrupt(ID);
    assert_eq!(talk.softirq(), "poll 64 -> 3, unmask, deliver: full, timer +20ms, mask");
    talk.arrive(1);
    assert_eq!(talk.interrupt(ID), "no interrupt");
}

#[test]
fn a_mode_that_goes_while_the_line_is_open_is_handed_over_masked() {
    let talk = talk("base");
    talk.arrive(1);
    talk.interrupt(ID);
    let mut softirq = softirq(&talk);
    assert_eq!(softirq.run_next(2), "poll 64 -> 1, unmask");
    talk.set(|policy| policy.threaded = Threaded::Enabled);
    assert_eq!(softirq.run(), "deliver, mask, wake napi");
    assert_eq!(talk.hear(Kthread::new(&talk.host, ID)).run(), "poll 64 -> 0, unmask, sleep");
}

#[test]
fn a_disable_while_the_line_is_open_finds_it_masked() {
    let talk = talk("base");
    talk.arrive(1);
    talk.interrupt(ID);
    let mut softirq = softirq(&talk);
    assert_eq!(softirq.run_next(2), "poll 64 -> 1, unmask");
    let mut disable = talk.hear(Disable::new(&talk.host, ID).expect("in service"));
    assert_eq!(disable.run_next(1), "sleep 50us");
    assert_eq!(softirq.run(), "deliver, mask");
    assert_eq!(disable.run(), "mask");
    assert!(talk.host.instance(ID).state().disabled());
}

#[test]
fn the_order_may_change_while_the_line_is_open() {
    let talk = talk("defer20");
    talk.arrive(1);
    talk.interrupt(ID);
    let mut softirq = softirq(&talk);
    assert_eq!(softirq.run_next(2), "poll 64 -> 1, unmask");
    talk.host.set_order(ID, Order::DeliverFirst);
    assert_eq!(softirq.run(), "deliver, timer +20us, mask");
}
