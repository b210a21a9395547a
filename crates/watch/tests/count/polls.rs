//! Tests of who polls, with only the device set, and of rows that come and go.

use napkin_testing::test;

use super::*;

#[test]
fn base_is_polled_by_softirqs_and_every_packet_is_counted() {
    let world = Backend::new();
    let outcome = count_during(&world, |talk| talk.rounds(500, 4));
    outcome.agrees();
    assert_eq!(outcome.received, 2000);
    let Counts { softirq, thread, application, .. } = outcome.counts;
    let none = Polled::default();
    assert!(softirq.polls > 0 && thread == none && application == none, "{:?}", outcome.counts);
    assert_eq!((outcome.counts.deferrals, outcome.counts.watchdogs), (Some(0), Some(0)));
    // A veth recreates its instances whenever it is set up, and registers no config for them.
    assert_eq!(outcome.counts.keeps_settings, Some(false));
}

#[test]
fn threaded_is_polled_by_the_thread_alone() {
    let world = Backend::new();
    world.set(&[(Setting::Threaded, 1)]);
    let outcome = count_during(&world, |talk| talk.rounds(500, 4));
    outcome.agrees();
    let Counts { softirq, thread, application, .. } = outcome.counts;
    let none = Polled::default();
    assert!(softirq == none && thread.polls > 0 && application == none, "{:?}", outcome.counts);
}

#[test]
fn deferral_is_seen_as_the_timer_armed_and_fired_and_as_empty_polls() {
    let world = Backend::new();
    world.set(&[(Setting::DeferHardIrqs, 100), (Setting::GroFlushTimeout, 20_000)]);
    let outcome = count_during(&world, |talk| talk.rounds(200, 4));
    outcome.agrees();
    let counts = outcome.counts;
    let (deferrals, watchdogs) = (counts.deferrals.expect("some"), counts.watchdogs.expect("some"));
    assert!(deferrals >= 100 && watchdogs >= 100, "{counts:?}");
    // A timer that is armed again before it expires does not expire for the first time.
    assert!(watchdogs <= deferrals || outcome.hidden.is_some(), "{counts:?}");
    // After the last packet the timer is armed for each of 100 polls, and the last poll completes.
    assert!(counts.all().empty >= 100, "{counts:?}");
    assert_eq!((counts.suspensions, counts.expiries, counts.flushes), (Some(0), Some(0), Some(0)));
}

#[test]
fn instances_beyond_the_room_are_lost_and_said_to_be_and_forgetting_one_makes_room() {
    let worlds = [Backend::new(), Backend::new()];
    let counter = Counter::start(&Options { instances: 1, timers: false, ..Options::default() })
        .expect("it counts");
    let talks: Vec<Talk> = worlds.iter().map(Talk::new).collect();
    for talk in &talks {
        talk.rounds(5, 1);
    }
    // The first instance polled on this machine has the only row.
    let rows = counter.read();
    assert_eq!(rows.len(), 1, "{rows:?}");
    assert!(counter.lost().expect("counts").no_room >= 5);
    let (key, counts) = rows.into_iter().next().expect("a row");
    assert_eq!((counts.deferrals, counts.watchdogs), (None, None), "not asked for");
    assert!(counter.forget(&key));
}

#[test]
fn a_device_that_goes_away_leaves_its_counts_until_they_are_forgotten() {
    let world = Backend::new();
    let counter = Counter::start(&Options::default()).expect("it counts");
    Talk::new(&world).rounds(5, 1);
    let before = settled(&counter, &world.key);
    world
        .here
        .run(|| Route::open().expect("rtnetlink").delete(world.key.ifindex).expect("deleted"))
        .expect("a thread here");
    assert_eq!(counter.read().get(&world.key), Some(&before));
    assert!(counter.forget(&world.key));
    assert!(!counter.forget(&world.key), "only once");
    assert_eq!(counter.read().get(&world.key), None);
}
