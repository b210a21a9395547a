//! Crashes at every point, and random sequences of events.

use super::*;
use crate::place::{Place, Value};

/// A host with earlier settings: one queue threaded and placed by another program, another one deferred.
fn configured_host() -> Fake {
    let mut backend = Fake::new(2);
    backend.somebody_sets(&napi(0, Setting::Threaded), &Value::Number(1));
    backend.somebody_sets(&Place::ThreadCpus(queue(0)), &Value::Cpus(vec![2]));
    backend.somebody_sets(&Place::ThreadClass(queue(0)), &Value::Class(Class::Fifo(5)));
    backend.somebody_sets(&napi(1, Setting::GroFlushTimeout), &Value::Number(50_000));
    backend.somebody_sets(&napi(1, Setting::DeferHardIrqs), &Value::Number(2));
    backend.somebody_sets(&Place::IrqCpus(queue(1)), &Value::Cpus(vec![0]));
    backend
}

#[test]
fn a_crash_at_any_point_of_apply_and_of_restore_loses_nothing() {
    let mut points = 0;
    for (name, options) in [("suspend20", plain()), ("threaded", placed()), ("base", placed())] {
        let options = if name == "base" { Options { rt: None, ..options } } else { options };
        for at in 0.. {
            let (mut backend, place) = (configured_host(), Home::new());
            let original = backend.everything();
            let store = place.store();
            let ended =
                crash::at(Some(at), || applied(&mut backend, &store, name, &options).is_ok());
            for then in 0.. {
                points += 1;
                let restored =
                    crash::at(Some(then), || all_back(&mut backend, &store).is_complete());
                if let Some(complete) = restored {
                    assert!(complete, "{name}, apply died at {at}");
                    break;
                }
            }
            assert_eq!(backend.everything(), original, "{name}, apply died at {at}");
            assert_eq!(journals(&place), 0, "{name}, apply died at {at}");
            if ended == Some(true) {
                assert!(at > 8, "no point was come to");
                break;
            }
        }
    }
    assert!(points > 200, "{points} points");
}

#[test]
fn a_crash_of_a_hold_s_end_loses_nothing() {
    for at in 0.. {
        let (mut backend, place) = (configured_host(), Home::new());
        let original = backend.everything();
        let store = place.store();
        applied(&mut backend, &store, "defer20", &plain()).expect("applied");
        let (policy, options) = (policy("threaded"), placed());
        let request = Request { policy: &policy, ifname: "va", options: &options, force: false };
        // Not dropped, as after kill -9: unwinding would restore.
        let ended = {
            let hold = Temporary::apply(&mut backend, &store, &request).expect("applied");
            crash::at(Some(at), || hold.restore().is_ok())
        };
        assert!(all_back(&mut backend, &store).is_complete());
        assert_eq!(backend.everything(), original, "died at {at}");
        assert_eq!(journals(&place), 0, "died at {at}");
        if ended == Some(true) {
            assert!(at > 8);
            break;
        }
    }
}

fn journals(place: &Home) -> usize {
    place.files().iter().filter(|name| name.ends_with(".journal")).count()
}

/// An event of a random sequence.
#[derive(Debug, Clone)]
enum Event {
    Apply {
        policy: usize,
        queue: Option<u32>,
        cpus: Vec<usize>,
        rt: bool,
        force: bool,
        crash: Option<u64>,
    },
    Foreign {
        queue: u32,
        setting: usize,
        value: u64,
    },
    Restore {
        crash: Option<u64>,
    },
    Recreate,
}

const POLICIES: [&str; 8] = [
    "base",
    "defer20",
    "defer200",
    "threaded",
    "suspend20",
    "suspend200",
    "interrupts",
    "fullbusy",
];

fn event() -> impl Strategy<Value = Event> {
    let crash = || prop_oneof![2 => Just(None), 1 => (0..60_u64).prop_map(Some)];
    let queue = prop_oneof![2 => Just(None), 1 => (0..2_u32).prop_map(Some)];
    let cpus = prop_oneof![2 => Just(vec![]), 1 => prop::collection::vec(0..CPUS, 1..3)];
    let apply = (0..POLICIES.len(), queue, cpus, any::<bool>(), any::<bool>(), crash());
    let apply = apply.prop_map(|(policy, queue, cpus, rt, force, crash)| Event::Apply {
        policy,
        queue,
        cpus,
        rt,
        force,
        crash,
    });
    let foreign = (0..2_u32, 0..4_usize, prop_oneof![Just(0), Just(1), Just(20_000), 2..9_u64]);
    let foreign =
        foreign.prop_map(|(queue, setting, value)| Event::Foreign { queue, setting, value });
    prop_oneof![
        5 => apply,
        1 => foreign,
        2 => crash().prop_map(|crash| Event::Restore { crash }),
        1 => Just(Event::Recreate),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 400, ..ProptestConfig::default() })]

    #[test]
    fn whatever_happens_everything_is_as_it_was_but_what_others_did(
        events in prop::collection::vec(event(), 1..14),
        lived in any::<bool>(),
    ) {
        let (mut backend, place) = (if lived { configured_host() } else { Fake::new(2) }, Home::new());
        let store = place.store();
        let original = backend.everything();
        let mut foreign_places: BTreeSet<Place> = BTreeSet::new();
        let mut values: BTreeSet<(Place, u64)> = BTreeSet::new();
        for event in events {
            match event {
                Event::Apply { policy: name, queue, cpus, rt, force, crash } => {
                    let policy = policy(POLICIES[name]);
                    let rt = (rt && POLICIES[name] == "threaded").then_some(3);
                    let mut cpus = cpus;
                    cpus.dedup();
                    let options = Options { queue, cpus, rt, ..plain() };
                    let request = Request { policy: &policy, ifname: "va", options: &options, force };
                    match crash::at(crash, || apply(&mut backend, &store, &request)) {
                        None | Some(Ok(_)) => {}
                        Some(Err(ApplyError::Foreign { foreign })) => {
                            prop_assert!(!force);
                            prop_assert!(!foreign_places.is_empty(), "{foreign:?}");
                        }
                        Some(Err(error)) => prop_assert!(false, "{error}"),
                    }
                }
                Event::Foreign { queue: number, setting, value } => {
                    let setting = Setting::ALL[setting];
                    let value = if setting == Setting::Threaded { value % 2 } else { value };
                    backend.somebody_sets(&napi(number, setting), &Value::Number(value));
                    foreign_places.insert(napi(number, setting));
                    values.insert((napi(number, setting), value));
                    if setting == Setting::Threaded {
                        foreign_places.insert(Place::ThreadCpus(queue(number)));
                        foreign_places.insert(Place::ThreadClass(queue(number)));
                    }
                }
                Event::Restore { crash } => {
                    crash::at(crash, || restore(&mut backend, &store, &RestoreOptions::default()));
                }
                Event::Recreate => backend.recreate(),
            }
        }
        let restored = all_back(&mut backend, &store);
        prop_assert!(restored.is_complete() || !foreign_places.is_empty());
        let now = backend.everything();
        for ((ifindex, place), value) in &original {
            if *ifindex == 7 && foreign_places.contains(place) {
                continue;
            }
            prop_assert_eq!(now.get(&(*ifindex, place.clone())), Some(value), "{:?}", place);
        }
        for place in foreign_places.iter().filter(|place| matches!(place, Place::Napi(..))) {
            let Some(Value::Number(now)) = now.get(&(7, place.clone())) else { continue };
            let was = original[&(7, place.clone())] == Value::Number(*now);
            prop_assert!(was || values.contains(&(place.clone(), *now)), "{:?} is {}", place, now);
        }
        let force = RestoreOptions { force: true, ..RestoreOptions::default() };
        prop_assert!(restore(&mut backend, &store, &force).expect("readable").is_complete());
        prop_assert_eq!(journals(&place), 0);
    }
}
