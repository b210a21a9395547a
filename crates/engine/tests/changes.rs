//! Settings change at random while traffic flows over several queues on two CPUs: at the end every
//! datagram that was offered is accounted for.

mod common;

use std::time::Duration;

use common::app::App;
use common::{PORT, Setup, alone, eventually, policy, start};
use napkin_core::{MICROSECOND, MILLISECOND};
use napkin_policy::{CpuPolicy, InstancePolicy, NetSoftirq, Threaded};
use napkin_traffic::SplitMix as Rng;

fn one_of<T: Copy>(rng: &mut Rng, choice: &[T]) -> T {
    choice[rng.below(choice.len() as u64) as usize]
}

fn any_settings(rng: &mut Rng) -> InstancePolicy {
    InstancePolicy {
        threaded: one_of(
            rng,
            &[Threaded::Disabled, Threaded::Enabled, Threaded::BusyPoll, Threaded::Workqueue],
        ),
        defer_hard_irqs: one_of(rng, &[0, 0, 1, 100]),
        gro_flush_timeout: one_of(rng, &[0, 20 * MICROSECOND, 200 * MICROSECOND]),
        irq_suspend_timeout: one_of(rng, &[0, MILLISECOND, 20 * MILLISECOND]),
        hold: one_of(rng, &[0, 0, 50 * MICROSECOND, MILLISECOND]),
        hold_tick: one_of(rng, &[0, 0, 200 * MICROSECOND]),
        feedback: one_of(rng, &[false, true]),
    }
}

fn any_cpu_policy(rng: &mut Rng) -> CpuPolicy {
    CpuPolicy {
        net_softirq: one_of(
            rng,
            &[NetSoftirq::Inline, NetSoftirq::Ksoftirqd, NetSoftirq::KsoftirqdAsPosted],
        ),
        inline_while_ksoftirqd: one_of(rng, &[false, true]),
    }
}

/// Offers `count` datagrams, changes settings until all have been due, and checks the balance.
fn balances(seed: u64, name: &str, per_second: f64, count: u64) {
    let policy = policy(name);
    let setup = Setup { seed, per_second, count, queues: 4, cpus: 2, ports: 2, ..Setup::default() };
    let (engine, source) = start(&policy, &setup);
    let apps = [PORT, PORT + 1]
        .map(|port| App::start(&engine, port, &policy, Some(Duration::from_millis(5))));
    let mut rng = Rng::new(seed);
    let mut changes = 0;
    while source.offered() < count {
        let settings = any_settings(&mut rng);
        if rng.below(8) == 0 {
            engine.change_device("syn0", &settings.into()).expect("sound settings");
            common::set_cpu_policy(&engine, any_cpu_policy(&mut rng));
        } else {
            engine.change(1 + rng.below(4) as u32, &settings.into()).expect("sound settings");
        }
        changes += 1;
        // A queue that has died would never see its last arrivals, and so never offer them.
        assert!(changes < 100_000, "seed {seed}: a queue stands still: {:?}", engine.napis());
        std::thread::sleep(Duration::from_micros(rng.below(2_000)));
    }
    let stack = engine.stack("syn0").expect("the device");
    let received = || apps.iter().map(App::received).sum::<u64>();
    let device = || {
        let all = engine.napis().into_iter().map(|napi| napi.queue_counts);
        all.fold((0, 0), |(taken, lost), it| (taken + it.rx_packets, lost + it.rx_dropped()))
    };
    eventually(&format!("seed {seed}: the last datagram"), || {
        let (taken, lost) = device();
        taken + lost == count && received() == stack.counters().delivered()
    });
    let (taken, lost) = device();
    engine.stop();
    let counted = stack.counters();
    assert_eq!(source.offered(), count, "seed {seed}");
    assert_eq!(counted.frames, taken, "seed {seed}");
    assert_eq!(counted.delivered() + counted.dropped(), taken, "seed {seed}");
    eprintln!(
        "seed {seed}, {name}: {changes} changes; {count} offered = {} received + {} dropped by \
         sockets + {lost} by the device",
        received(),
        counted.dropped(),
    );
    apps.into_iter().for_each(|app| assert!(app.join(), "its wait was to fail"));
}

#[test]
fn under_moderate_traffic() {
    let _alone = alone();
    balances(1, "base", 20_000.0, 20_000);
    balances(2, "suspend20", 20_000.0, 20_000);
    balances(3, "napibusy", 20_000.0, 20_000);
}

#[test]
fn under_more_traffic_than_can_be_taken() {
    let _alone = alone();
    balances(4, "base", 5e6, 5_000_000);
    balances(5, "suspend20", 5e6, 5_000_000);
}
