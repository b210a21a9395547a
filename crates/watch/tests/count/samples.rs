//! Tests of a sampler on top of the counts.

use napkin_testing::test;

use super::*;

#[test]
fn a_sampler_puts_counts_thread_mode_and_owner_together_and_leaves_other_namespaces_out() {
    let world = Backend::new();
    let other = Backend::new();
    world.set(&[(Setting::Threaded, 1)]);
    let mut sampler = world
        .here
        .run(|| Sampler::start(&sampler::Options::default()).expect("it samples"))
        .expect("a thread here");
    let talk = Talk::new(&world);
    let elsewhere = Talk::new(&other);
    let first = world.here.run(|| sampler.sample().expect("a sample")).expect("a thread here");
    talk.rounds(100, 4);
    elsewhere.rounds(10, 4);
    let second = world.here.run(|| sampler.sample().expect("a sample")).expect("a thread here");
    assert!(second.at_ns > first.at_ns);
    let [napi] = second.napis.as_slice() else { panic!("{:?}", second.napis) };
    let [earlier] = first.napis.as_slice() else { panic!("{:?}", first.napis) };
    assert_eq!((napi.id, napi.ifname.as_str()), (world.key.napi_id, world.ifname.as_str()));
    assert_eq!(napi.mode, "threaded");
    let counts = |napi: &sampler::NapiSnapshot| napi.counts.expect("counts");
    assert_eq!(counts(napi).since(&counts(earlier)).all().packets, 400);
    assert!(napi.thread_cpu_ns > earlier.thread_cpu_ns, "the thread worked");
    let timers = (counts(earlier).deferrals, counts(earlier).watchdogs);
    assert_eq!(timers, (Some(0), Some(0)), "nothing is armed, polled before or not");
    assert_eq!(napi.rx_queues, [0], "a veth's are numbered as everywhere");
    assert!(napi.pid.is_some() && napi.cpu.is_some() && napi.irq.is_none());
    assert_eq!(napi.interrupts, None, "a veth has none, which is not 0");
    let me = format!("[{}]", std::process::id());
    assert!(napi.owners.iter().any(|owner| owner.ends_with(&me)), "{:?}", napi.owners);
    assert!(!second.cpus.is_empty() && second.cpus.iter().all(|cpu| cpu.time_squeezes.is_some()));

    world
        .here
        .run(|| Route::open().expect("rtnetlink").delete(world.key.ifindex).expect("deleted"))
        .expect("a thread here");
    let third = world.here.run(|| sampler.sample().expect("a sample")).expect("a thread here");
    assert!(third.napis.is_empty());
}

#[test]
fn a_sampler_without_rights_samples_the_rest_and_says_which_right_it_lacks() {
    let snapshot = std::thread::spawn(|| {
        use rustix::thread::{CapabilitySet, CapabilitySets, set_capabilities};
        let none = CapabilitySet::empty();
        let none = CapabilitySets { effective: none, permitted: none, inheritable: none };
        set_capabilities(None, none).expect("rights can always be given up");
        let mut sampler = Sampler::start(&sampler::Options::default()).expect("it samples");
        sampler.sample().expect("a sample")
    })
    .join()
    .expect("a thread");
    assert!(snapshot.notes.iter().any(|note| note.contains("CAP_BPF")), "{:?}", snapshot.notes);
    assert!(snapshot.napis.iter().all(|napi| napi.counts.is_none()), "not 0");
    assert!(!snapshot.cpus.is_empty());
}
