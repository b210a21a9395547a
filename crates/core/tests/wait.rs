//! The rules of an application's wait: epoll contexts, receive calls, and what they leave behind.

use crate::world::Port;
use crate::world::talk::{ID, Speaker, Talk};
use napkin_core::*;
use napkin_policy::ApplicationPolicy;

const US: Ns = MICROSECOND;

fn wait<'t>(
    talk: &'t Talk,
    context: &'t EpollContext,
    timeout: Option<Ns>,
) -> Speaker<'t, EpollWait<'t, Port>> {
    talk.hear(EpollWait::new(&talk.host, context, timeout, false))
}

fn socket(usecs: u32, budget: u16, prefer: bool) -> ApplicationPolicy {
    ApplicationPolicy {
        socket_busy_poll_usecs: usecs,
        socket_busy_poll_budget: budget,
        socket_prefer_busy_poll: prefer,
        ..ApplicationPolicy::default()
    }
}

#[test]
fn a_zero_timeout_never_busy_polls() {
    let talk = Talk::new("base");
    let context = talk.context(50, 64, true);
    context.follow(ID);
    assert_eq!(wait(&talk, &context, Some(0)).run(), "look -> 0");
}

#[test]
fn without_microseconds_there_is_exactly_one_pass() {
    let talk = Talk::new("base");
    let context = talk.context(0, 64, true);
    context.follow(ID);
    assert_eq!(
        wait(&talk, &context, None).run(),
        "look -> 0, poll 64 -> 0, look -> 0, poll 64 -> 0, unmask, look -> 0, sleep"
    );
}

#[test]
fn a_busy_poll_ends_when_its_time_is_up_and_a_microsecond_is_the_kernel_s() {
    let talk = Talk::new("base");
    let context = talk.context(10, 8, false);
    context.follow(ID);
    let mut waiting = wait(&talk, &context, None);
    assert_eq!(waiting.run_next(3), "look -> 0, poll 8 -> 0, look -> 0");
    talk.at(10 * 1024 - 1);
    assert_eq!(waiting.run_next(2), "poll 8 -> 0, look -> 0");
    talk.at(10 * 1024);
    assert_eq!(waiting.run(), "poll 8 -> 0, unmask, look -> 0, sleep");
}

#[test]
fn a_busy_poll_does_not_outlast_the_wait() {
    let talk = Talk::new("base");
    let context = talk.context(1_000, 8, false);
    context.follow(ID);
    let mut waiting = wait(&talk, &context, Some(5 * US));
    assert_eq!(waiting.run_next(3), "look -> 0, poll 8 -> 0, look -> 0");
    talk.at(5 * US);
    assert_eq!(waiting.run(), "poll 8 -> 0, unmask, look -> 0, sleep 0");
    assert_eq!(waiting.run(), "look -> 0");
    assert_eq!(waiting.pass.events(), 0);
}

#[test]
fn a_context_that_keeps_its_napi_id_polls_the_same_instance_again() {
    let talk = Talk::new("defer20");
    for (keep, expected) in
        [(false, "look -> 0, sleep"), (true, "look -> 0, poll 64 -> 0, look -> 0, ")]
    {
        let context = talk.context(0, 64, true);
        let params = context.params();
        context.set(napkin_policy::EpollPolicy { keep_napi_id: keep, ..params });
        assert_eq!(context.params().keep_napi_id, keep);
        context.follow(ID);
        wait(&talk, &context, None).run();
        assert_eq!(context.follows(), keep.then_some(ID));
        let steps = wait(&talk, &context, None).run();
        assert!(steps.starts_with(expected), "{keep}: {steps}");
    }
}

#[test]
fn an_instance_is_forgotten_after_an_empty_busy_poll_and_learnt_at_the_next_wake_up() {
    let talk = Talk::new("base");
    let context = talk.context(0, 8, true);
    context.follow(ID);
    wait(&talk, &context, None).run();
    assert_eq!(context.follows(), None);
    assert_eq!(wait(&talk, &context, None).run(), "look -> 0, sleep");
    context.follow(ID);
    assert!(wait(&talk, &context, None).run().contains("poll 8"));
}

#[test]
fn one_instance_a_context_and_the_last_wins() {
    let talk = Talk::of("base", 1, 2);
    let context = talk.context(0, 8, true);
    context.follow(Id(0));
    context.follow(Id(1));
    assert_eq!(context.follows(), Some(Id(1)));
    assert_eq!(
        wait(&talk, &context, None).run(),
        "look -> 0, #1 poll 8 -> 0, look -> 0, #1 poll 8 -> 0, #1 unmask, look -> 0, sleep"
    );
}

#[test]
fn a_context_that_does_not_busy_poll_follows_nobody() {
    let talk = Talk::new("base");
    let context = talk.context(0, 8, false);
    context.follow(ID);
    assert_eq!(context.follows(), None);
    // The system-wide default switches it on.
    let context = EpollContext::new(napkin_policy::EpollPolicy::default(), 20);
    context.follow(ID);
    assert_eq!(context.follows(), Some(ID));
}

#[test]
fn the_default_budget_is_eight() {
    let talk = Talk::new("base");
    let context = talk.context(0, 0, true);
    context.follow(ID);
    assert!(wait(&talk, &context, None).run().starts_with("look -> 0, poll 8 -> 0"));
}

#[test]
fn an_application_that_spins_returns_where_others_sleep() {
    let talk = Talk::new("base");
    let context = talk.context(0, 8, true);
    context.follow(ID);
    let mut spin = talk.hear(EpollWait::new(&talk.host, &context, None, true));
    assert_eq!(spin.run(), "look -> 0, poll 8 -> 0, look -> 0, poll 8 -> 0, unmask, look -> 0");
}

#[test]
fn a_signal_does_not_suspend() {
    let talk = Talk::new("suspend20");
    let context = talk.context(0, 8, true);
    context.follow(ID);
    talk.signal.set(true);
    assert_eq!(wait(&talk, &context, None).run(), "look: signal");
    assert_eq!(talk.host.instance(ID).suspending_contexts(), 0);
    // Nor does one that ends a sleep.
    let mut waiting = wait(&talk, &context, None);
    assert!(waiting.run().ends_with("sleep"));
    waiting.signal();
    assert_eq!(waiting.run(), "");
    assert_eq!(talk.host.instance(ID).suspending_contexts(), 0);
}

#[test]
fn a_signal_in_a_busy_poll_lets_go_and_ends_the_suspension() {
    let talk = Talk::new("suspend20");
    let context = talk.context(50, 8, true);
    context.follow(ID);
    talk.arrive(1);
    talk.interrupt(ID);
    talk.softirq();
    wait(&talk, &context, None).run();
    assert_eq!(talk.host.instance(ID).suspending_contexts(), 1);
    talk.read();
    let mut waiting = wait(&talk, &context, None);
    assert_eq!(waiting.run_next(2), "look -> 0, poll 8 -> 0");
    talk.signal.set(true);
    // Nothing was found: deferral has the ring polled while the signal handler runs.
    assert_eq!(waiting.run(), "look: signal, timer +20ms, run here (poll 64 -> 0, timer +20us)");
    assert_eq!(talk.host.instance(ID).suspending_contexts(), 0);
}

#[test]
fn two_contexts_suspend_and_one_that_idles_does_not_end_it_for_the_other() {
    let talk = Talk::new("suspend20");
    let (busy, idle) = (talk.context(0, 64, true), talk.context(0, 64, true));
    busy.follow(ID);
    idle.follow(ID);
    talk.arrive(1);
    talk.interrupt(ID);
    talk.softirq();
    // Both find the event: both suspend.
    wait(&talk, &idle, None).run();
    talk.at(US);
    assert_eq!(wait(&talk, &busy, None).run(), "look -> 1, timer +19999us");
    assert_eq!(talk.host.instance(ID).suspending_contexts(), 2);
    talk.read();
    // One finds nothing: it leaves, and the instance is not polled for it.
    let steps = wait(&talk, &idle, None).run();
    assert!(steps.ends_with("timer +19999us, look -> 0, sleep"), "{steps}");
    assert_eq!(talk.host.instance(ID).suspending_contexts(), 1);
    assert_eq!(talk.host.instance(ID).deadline(), 20 * MILLISECOND);
    // The last to leave has it polled at once.
    let steps = wait(&talk, &busy, None).run();
    assert!(steps.ends_with("run here (poll 64 -> 0, timer +20us), sleep"), "{steps}");
}

#[test]
fn a_closed_context_suspends_no_longer() {
    let talk = Talk::new("suspend20");
    let (one, other) = (talk.context(0, 64, true), talk.context(0, 64, true));
    one.follow(ID);
    other.follow(ID);
    talk.arrive(1);
    talk.interrupt(ID);
    talk.softirq();
    wait(&talk, &one, None).run();
    wait(&talk, &other, None).run();
    assert_eq!(one.close(&talk.host, RaisedFrom::Thread), None);
    assert_eq!(talk.host.instance(ID).suspending_contexts(), 1);
    let closes = other.close(&talk.host, RaisedFrom::Thread).map(|op| talk.word(op));
    assert_eq!(closes.as_deref(), Some("wake ksoftirqd"));
    assert_eq!(talk.dispatch(Context::Ksoftirqd), "poll 64 -> 0, timer +20us, sleep");
    // Closing again has no effect.
    assert_eq!(other.close(&talk.host, RaisedFrom::Thread), None);
}

#[test]
fn a_context_that_follows_another_instance_lets_go_of_the_first() {
    let talk = Talk::of("suspend20", 1, 2);
    let context = talk.context(0, 64, true);
    context.follow(Id(0));
    talk.arrive_at(Id(0), 1);
    talk.interrupt(Id(0));
    talk.softirq();
    wait(&talk, &context, None).run();
    context.follow(Id(1));
    let steps = wait(&talk, &context, None).run();
    assert_eq!(steps, "look -> 1, run here (#0 poll 64 -> 0, timer +20us)");
    assert_eq!(talk.host.instance(Id(0)).suspending_contexts(), 0);
}

#[test]
fn suspension_off_makes_resume_nothing_and_leaves_the_timer() {
    let talk = Talk::new("suspend20");
    let context = talk.context(0, 64, true);
    context.follow(ID);
    talk.arrive(1);
    talk.interrupt(ID);
    talk.softirq();
    wait(&talk, &context, None).run();
    talk.set(|policy| policy.irq_suspend_timeout = 0);
    // The timer stays armed as the safety net.
    assert_eq!(talk.host.instance(ID).deadline(), 20 * MILLISECOND);
    assert_eq!(wait(&talk, &context, None).run(), "look -> 1");
    assert_eq!(talk.host.instance(ID).deadline(), 20 * MILLISECOND);
    talk.at(20 * MILLISECOND);
    assert_eq!(talk.timer(), "raise");
}

#[test]
fn a_busy_poll_of_an_owned_instance_looks_and_asks_for_room() {
    let talk = Talk::new("defer20");
    talk.arrive(200);
    talk.interrupt(ID);
    let context = talk.context(50, 8, true);
    context.follow(ID);
    let mut waiting = wait(&talk, &context, None);
    // The softirq owns it: the session only looks, and sets `PREFER_BUSY_POLL`.
    assert_eq!(waiting.run_next(3), "look -> 0, look -> 0, look -> 0");
    assert!(talk.host.instance(ID).state().has(state::PREFER_BUSY_POLL));
    // The ring does not drain, so the softirq makes room with a timer to fall back on.
    assert_eq!(talk.softirq(), "poll 64 -> 64, deliver, timer +20us");
    talk.read();
    assert_eq!(waiting.run_next(3), "poll 8 -> 8, deliver, look -> 8");
}

#[test]
fn a_ring_that_does_not_drain_is_looked_after_by_a_timer_or_by_the_softirq() {
    for (policy, last) in [
        ("defer20", "timer +20us, look -> 8"),
        ("base", "poll 8 -> 8, deliver, run here (poll 64 -> 4, deliver, unmask), look -> 20"),
    ] {
        let talk = Talk::new(policy);
        let context = talk.context(50, 8, true);
        context.follow(ID);
        let mut waiting = wait(&talk, &context, None);
        waiting.run_next(2);
        talk.arrive(20);
        assert_eq!(talk.interrupt(ID), "");
        assert_eq!(waiting.run_next(4), "look -> 0, poll 8 -> 8, deliver, look -> 8", "{policy}");
        let steps = waiting.run();
        assert!(steps.starts_with(last), "{policy}: {steps}");
    }
}

#[test]
fn busy_polling_can_be_forbidden() {
    let talk = Talk::new("base");
    talk.host.allow_busy_poll(ID, false);
    // The session ends at once, whatever its time limit: time stands still here, and a loop would not end.
    for usecs in [0, 50] {
        let context = talk.context(usecs, 8, true);
        context.follow(ID);
        assert_eq!(wait(&talk, &context, None).run(), "look -> 0, look -> 0, sleep");
        assert_eq!(context.follows(), None);
    }
    let call = talk.hear(SocketWait::new(&talk.host, socket(50, 8, false), Some(ID), None)).run();
    assert_eq!(call, "look -> 0, look -> 0, sleep");
    let context = talk.context(0, 8, true);
    talk.host.allow_busy_poll(ID, true);
    context.follow(ID);
    assert!(wait(&talk, &context, None).run().contains("poll 8"));
}

#[test]
fn a_nonblocking_receive_call_polls_once() {
    let talk = Talk::new("base");
    let call = || SocketWait::new(&talk.host, socket(50, 0, false), Some(ID), Some(0));
    assert_eq!(
        talk.hear(call()).run(),
        "look -> 0, poll 8 -> 0, look -> 0, poll 8 -> 0, unmask, look -> 0"
    );
    // Frames that the session's last poll delivers count for the call, too.
    let mut called = talk.hear(call());
    assert_eq!(called.run_next(3), "look -> 0, poll 8 -> 0, look -> 0");
    talk.arrive(3);
    talk.interrupt(ID);
    assert_eq!(called.run(), "poll 8 -> 3, deliver, unmask, look -> 3");
    assert_eq!(called.pass.frames(), 3);
}

#[test]
fn a_blocking_receive_call_busy_polls_and_then_sleeps() {
    let talk = Talk::new("base");
    let mut call = talk.hear(SocketWait::new(&talk.host, socket(10, 64, false), Some(ID), None));
    assert_eq!(call.run_next(3), "look -> 0, poll 64 -> 0, look -> 0");
    talk.at(20 * US);
    assert_eq!(call.run(), "poll 64 -> 0, unmask, look -> 0, sleep");
    talk.arrive(2);
    assert_eq!(talk.interrupt(ID), "mask, raise");
    talk.softirq();
    assert_eq!(call.run(), "look -> 2");
    assert_eq!(call.pass.frames(), 2);
}

#[test]
fn a_receive_call_without_busy_poll_or_without_instance_only_sleeps() {
    let talk = Talk::new("base");
    let mut call = talk.hear(SocketWait::new(&talk.host, socket(0, 0, true), Some(ID), None));
    assert_eq!(call.run(), "look -> 0, sleep");
    let mut call = talk.hear(SocketWait::new(&talk.host, socket(50, 0, true), None, None));
    assert_eq!(call.run(), "look -> 0, sleep");
    call.signal();
    assert_eq!(call.run(), "");
    assert_eq!(call.pass.frames(), 0);
}

#[test]
fn a_receive_call_never_suspends() {
    let talk = Talk::new("suspend20");
    talk.arrive(1);
    talk.interrupt(ID);
    talk.softirq();
    let mut call = talk.hear(SocketWait::new(&talk.host, socket(50, 64, true), Some(ID), None));
    assert_eq!(call.run(), "look -> 1");
    assert_eq!(talk.host.instance(ID).suspending_contexts(), 0);
    assert_eq!(talk.host.instance(ID).deadline(), 20 * US);
}

#[test]
fn what_the_last_poll_of_a_busy_poll_delivers_counts_as_found() {
    let talk = Talk::new("suspend20,defer-hard-irqs=0");
    let context = talk.context(0, 64, true);
    context.follow(ID);
    let mut waiting = wait(&talk, &context, None);
    assert_eq!(waiting.run_next(3), "look -> 0, poll 64 -> 0, look -> 0");
    // The time is up, and only now a packet comes: the session's last poll takes it.
    talk.arrive(1);
    let steps = waiting.run();
    assert!(steps.ends_with("look -> 1, timer +20ms"), "{steps}");
    assert_eq!((waiting.pass.events(), context.follows()), (1, Some(ID)));
}
