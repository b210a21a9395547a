//! *Hold* as a dialogue: a queue stays in polled mode for a while after its last packet.

use crate::world::talk::{CPU, ID, Talk};
use napkin_core::*;
use napkin_policy::Policy;

const US: Ns = MICROSECOND;

#[test]
fn hold_stays_in_polled_mode_until_the_gap_is_long_enough() {
    let talk = Talk::new("hold100");
    talk.arrive(1);
    assert_eq!(talk.interrupt(ID), "mask, raise");
    // The hold begins with the first empty poll after work, and ksoftirqd continues it.
    assert_eq!(talk.softirq(), "poll 64 -> 1, deliver, poll 64 -> 0, wake ksoftirqd");
    let mut ksoftirqd = talk.hear(Softirq::new(&talk.host, CPU, Context::Ksoftirqd));
    assert_eq!(ksoftirqd.run_next(2), "poll 64 -> 0, yield");
    talk.at(60 * US);
    // A packet within the hold needs no interrupt and restarts it.
    talk.arrive(1);
    assert_eq!(talk.interrupt(ID), "no interrupt");
    assert_eq!(ksoftirqd.run_next(4), "poll 64 -> 1, deliver, poll 64 -> 0, yield");
    talk.at(160 * US - 1);
    assert_eq!(ksoftirqd.run_next(2), "poll 64 -> 0, yield");
    talk.at(160 * US);
    assert_eq!(ksoftirqd.run(), "poll 64 -> 0, unmask, sleep");
    talk.arrive(1);
    assert_eq!(talk.interrupt(ID), "mask, raise");
    assert_eq!(talk.counts().idle_gap_min, 100 * US);
    // A window that begins now has seen no gap.
    talk.host.instance(ID).restart_idle_gap();
    assert_eq!(talk.counts().idle_gap_min, napkin_core::NEVER);
}

#[test]
fn hold_by_ticks_ends_two_to_three_jiffies_after_the_first_idle_poll() {
    // 2007 as posted, at HZ=250: the deadline is two jiffies from now, and the hold lasts to the end of that jiffy.
    let policy = Policy::hold_ticks(250);
    for (first_idle, end) in [(0, 12), (1, 12), (3, 12), (4, 16), (7, 16), (8, 20)] {
        let talk = Talk::new(&policy.to_string());
        let ms = |n: Ns| n * MILLISECOND;
        talk.at(ms(first_idle));
        talk.arrive(1);
        talk.interrupt(ID);
        assert_eq!(talk.softirq(), "poll 64 -> 1, deliver, poll 64 -> 0, wake ksoftirqd");
        let mut ksoftirqd = talk.hear(Softirq::new(&talk.host, CPU, Context::Ksoftirqd));
        talk.at(ms(end) - 1);
        assert_eq!(ksoftirqd.run_next(2), "poll 64 -> 0, yield", "idle since {first_idle} ms");
        talk.at(ms(end));
        assert_eq!(ksoftirqd.run(), "poll 64 -> 0, unmask, sleep", "idle since {first_idle} ms");
    }
}

#[test]
fn hold_that_is_shortened_ends_sooner_and_one_that_is_lengthened_as_it_was() {
    let talk = Talk::new("hold100");
    talk.arrive(1);
    talk.interrupt(ID);
    talk.softirq();
    let mut ksoftirqd = talk.hear(Softirq::new(&talk.host, CPU, Context::Ksoftirqd));
    talk.set(|policy| policy.hold = 500 * US);
    talk.at(10 * US);
    assert_eq!(ksoftirqd.run_next(2), "poll 64 -> 0, yield");
    talk.set(|policy| policy.hold = 20 * US);
    assert_eq!(ksoftirqd.run_next(2), "poll 64 -> 0, yield");
    talk.at(30 * US);
    assert_eq!(ksoftirqd.run(), "poll 64 -> 0, unmask, sleep");
}

#[test]
fn hold_that_has_ended_leaves_deferred_polls_alone() {
    let talk = Talk::new("hold50,defer-hard-irqs=2,gro-flush-timeout=20us");
    talk.arrive(1);
    talk.interrupt(ID);
    assert_eq!(talk.softirq(), "poll 64 -> 1, deliver, poll 64 -> 0, wake ksoftirqd");
    talk.at(50 * US);
    assert_eq!(talk.dispatch(Context::Ksoftirqd), "poll 64 -> 0, timer +20us, sleep");
    talk.at(70 * US);
    assert_eq!(talk.timer(), "raise");
    // There was no work since: the next deferral period begins, not a new hold.
    assert_eq!(talk.softirq(), "poll 64 -> 0, timer +20us");
    talk.at(90 * US);
    assert_eq!(talk.timer(), "raise");
    assert_eq!(talk.softirq(), "poll 64 -> 0, unmask");
}

#[test]
fn hold_of_three_goes_on_when_the_first_holder_leaves() {
    // The defect of 2007: the softirq remembered the first holder in order to stop at it again; once that had left,
    // nothing stopped the softirq, and the other two kept it spinning.
    let talk = Talk::of("hold100", 1, 3);
    for id in 0..3 {
        talk.at(Ns::from(id) * 10 * US);
        talk.arrive_at(Id(id), 1);
        assert_eq!(talk.interrupt(Id(id)), format!("#{id} mask, raise"));
        let steps = talk.softirq();
        assert!(steps.contains(&format!("#{id} poll 64 -> 1, #{id} deliver")), "{steps}");
    }
    let one_pass = "#0 poll 64 -> 0, #1 poll 64 -> 0, #2 poll 64 -> 0";
    assert_eq!(talk.softirq(), one_pass);
    talk.at(100 * US);
    // The first leaves; the pass still ends after one poll of each of the others.
    assert_eq!(talk.softirq(), "#0 poll 64 -> 0, #0 unmask, #1 poll 64 -> 0, #2 poll 64 -> 0");
    assert_eq!(talk.softirq(), "#1 poll 64 -> 0, #2 poll 64 -> 0");
    talk.at(110 * US);
    assert_eq!(talk.softirq(), "#1 poll 64 -> 0, #1 unmask, #2 poll 64 -> 0");
    assert_eq!(talk.softirq(), "#2 poll 64 -> 0");
    talk.at(120 * US);
    assert_eq!(talk.softirq(), "#2 poll 64 -> 0, #2 unmask");
}

#[test]
fn hold_of_two_is_one_pass_at_a_time_too() {
    let talk = Talk::of("hold100", 1, 2);
    for id in [Id(0), Id(1)] {
        talk.arrive_at(id, 1);
        talk.interrupt(id);
    }
    talk.softirq();
    assert_eq!(talk.softirq(), "#0 poll 64 -> 0, #1 poll 64 -> 0");
    // Work of one of them leads to another round of both, and then they hold again.
    talk.arrive_at(Id(1), 1);
    assert_eq!(
        talk.softirq(),
        "#0 poll 64 -> 0, #1 poll 64 -> 1, #1 deliver, #0 poll 64 -> 0, #1 poll 64 -> 0"
    );
}
