//! Threads that the kernel disables with the device, and keeps for later.

use super::*;
use crate::place::{Place, Value};

/// Another program enables threads: returns the CPUs and class that they have.
fn woken(backend: &mut Fake) -> Vec<(Value, Value)> {
    let of = |backend: &mut Fake, place: Place| backend.everything()[&(7, place)].clone();
    (0..2)
        .map(|number| {
            backend.somebody_sets(&napi(number, Setting::Threaded), &Value::Number(1));
            let cpus = of(backend, Place::ThreadCpus(queue(number)));
            (cpus, of(backend, Place::ThreadClass(queue(number))))
        })
        .collect()
}

fn nobody_s() -> (Value, Value) {
    (Value::Cpus((0..CPUS).collect()), Value::Class(Class::Fair))
}

#[test]
fn a_thread_that_was_kept_is_nobody_s_after_restore() {
    for at in 0.. {
        let (mut backend, place) = (Fake::new(2), Home::new());
        let store = place.store();
        applied(&mut backend, &store, "threaded", &placed()).expect("applied");
        backend.down_and_up();
        let ended = crash::at(Some(at), || all_back(&mut backend, &store).is_complete());
        assert!(all_back(&mut backend, &store).is_complete());
        assert_eq!(woken(&mut backend), [nobody_s(), nobody_s()], "died at {at}");
        assert_eq!(place.files(), [""; 0]);
        if ended == Some(true) {
            assert!(at > 4, "no point was come to");
            break;
        }
    }
}

#[test]
fn a_thread_that_was_kept_is_nobody_s_after_a_hold() {
    let (backend, place) = (Fake::new(2), Home::new());
    let (policy, options) = (policy("threaded"), placed());
    let request = Request { policy: &policy, ifname: "va", options: &options, force: false };
    let mut hold = Temporary::apply(backend, &place.store(), &request).expect("applied");
    hold.backend().down_and_up();
    assert!(hold.put_back().expect("it is there").is_complete());
    assert_eq!(woken(hold.backend()), [nobody_s(), nobody_s()]);
}

#[test]
fn a_thread_that_ends_with_its_mode_needs_nothing() {
    let (mut backend, place) = (Fake::new(2), Home::new());
    applied(&mut backend, &place.store(), "threaded", &placed()).expect("applied");
    let dry = RestoreOptions { dry_run: true, ..RestoreOptions::default() };
    for options in [dry, RestoreOptions::default()] {
        let outcome = restore(&mut backend, &place.store(), &options).expect("readable");
        assert!(outcome.devices[0].changes.iter().all(|it| !it.place.of_thread()), "{outcome:?}");
        assert!(outcome.is_complete());
    }
}

#[test]
fn a_kept_thread_that_somebody_has_placed_since_is_left_and_told() {
    let (mut backend, place) = (Fake::new(2), Home::new());
    applied(&mut backend, &place.store(), "threaded", &placed()).expect("applied");
    backend.somebody_sets(&Place::ThreadCpus(queue(1)), &Value::Cpus(vec![0]));
    backend.down_and_up();
    let restored = all_back(&mut backend, &place.store());
    let [foreign] = &restored.devices[0].foreign[..] else { panic!("{restored:?}") };
    assert!(foreign.to_string().starts_with("thread-cpus of va queue 1 is 0;"), "{foreign}");
    let fair = Value::Class(Class::Fair);
    assert_eq!(woken(&mut backend), [nobody_s(), (Value::Cpus(vec![0]), fair)]);
}

#[test]
fn a_thread_that_is_made_again_is_as_nice_as_the_one_before() {
    let (mut backend, place) = (Fake::new(2), Home::new());
    backend.somebody_sets(&napi(0, Setting::Threaded), &Value::Number(1));
    backend.somebody_sets(&Place::ThreadClass(queue(0)), &Value::Class(Class::Nice(-20)));
    let original = backend.everything();
    applied(&mut backend, &place.store(), "suspend20", &plain()).expect("applied");
    assert_ne!(backend.everything(), original);
    assert!(all_back(&mut backend, &place.store()).is_complete());
    assert_eq!(backend.everything(), original);
}

#[test]
fn a_thread_that_spun_and_was_nice_gives_up_real_time_before_it_spins_again() {
    let (mut backend, place) = (Fake::of(linux(6, 19), 1), Home::new());
    backend.somebody_sets(&napi(0, Setting::Threaded), &Value::Number(1));
    backend.somebody_sets(&Place::ThreadClass(queue(0)), &Value::Class(Class::Nice(-20)));
    backend.somebody_sets(&napi(0, Setting::Threaded), &Value::Number(2));
    let original = backend.everything();
    applied(&mut backend, &place.store(), "threaded", &placed()).expect("applied");
    let class = &backend.everything()[&(7, Place::ThreadClass(queue(0)))];
    assert_eq!(*class, Value::Class(Class::Fifo(10)));
    // The fake panics if a real-time thread is made to spin.
    assert!(all_back(&mut backend, &place.store()).is_complete());
    assert_eq!(backend.everything(), original);
}

#[test]
fn a_thread_in_use_that_somebody_has_placed_since_is_told_once() {
    let (mut backend, place) = (Fake::new(1), Home::new());
    backend.somebody_sets(&napi(0, Setting::Threaded), &Value::Number(1));
    applied(&mut backend, &place.store(), "threaded", &placed()).expect("applied");
    backend.somebody_sets(&Place::ThreadCpus(queue(0)), &Value::Cpus(vec![0]));
    let restored = all_back(&mut backend, &place.store());
    assert_eq!(restored.devices[0].foreign.len(), 1, "{restored:?}");
}

#[test]
fn a_thread_that_somebody_made_real_time_is_not_set_spinning_again() {
    let (mode, class) = (napi(0, Setting::Threaded), Place::ThreadClass(queue(0)));
    let spinning = || {
        let mut backend = Fake::of(linux(6, 19), 1);
        backend.somebody_sets(&mode, &Value::Number(2));
        backend
    };
    // The fake panics if a real-time thread is made to spin.
    let (mut backend, place) = (spinning(), Home::new());
    let original = backend.everything();
    applied(&mut backend, &place.store(), "threaded", &plain()).expect("applied");
    backend.somebody_sets(&class, &Value::Class(Class::Fifo(50)));
    let restored = all_back(&mut backend, &place.store());
    let [failed] = &restored.devices[0].failed[..] else { panic!("{restored:?}") };
    assert!(failed.why.contains("fifo 50") && failed.why.contains("chrt -o"), "{failed:?}");
    assert_eq!(backend.everything()[&(7, mode.clone())], Value::Number(1));
    backend.somebody_sets(&class, &Value::Class(Class::Fair));
    assert!(all_back(&mut backend, &place.store()).is_complete());
    assert_eq!((backend.everything(), place.files()), (original, vec![]));
    // The same at the end of a hold.
    let (policy, options) = (policy("threaded"), plain());
    let request = Request { policy: &policy, ifname: "va", options: &options, force: false };
    let mut hold =
        Temporary::apply(spinning(), &place.store(), &request).expect("it can be applied");
    hold.backend().somebody_sets(&class, &Value::Class(Class::Rr(1)));
    let outcome = hold.put_back().expect("it is there");
    assert_eq!(outcome.failed.len(), 1, "{outcome:?}");
}

#[test]
fn a_class_that_is_taken_from_somebody_is_so_before_the_thread_spins() {
    let (mut backend, place) = (Fake::of(linux(6, 19), 1), Home::new());
    let class = Place::ThreadClass(queue(0));
    backend.somebody_sets(&napi(0, Setting::Threaded), &Value::Number(1));
    backend.somebody_sets(&class, &Value::Class(Class::Nice(-20)));
    backend.somebody_sets(&napi(0, Setting::Threaded), &Value::Number(2));
    let original = backend.everything();
    applied(&mut backend, &place.store(), "suspend20", &plain()).expect("applied");
    backend.somebody_sets(&napi(0, Setting::Threaded), &Value::Number(1));
    backend.somebody_sets(&class, &Value::Class(Class::Fifo(5)));
    let force = RestoreOptions { force: true, ..RestoreOptions::default() };
    assert!(restore(&mut backend, &place.store(), &force).expect("readable").is_complete());
    assert_eq!(backend.everything(), original);
}

#[test]
fn a_real_time_thread_that_somebody_lets_spin_spins_again() {
    let (mode, class) = (napi(0, Setting::Threaded), Place::ThreadClass(queue(0)));
    let spinning = || {
        let mut backend = Fake::of(linux(6, 19), 1);
        backend.real_time_may_spin = true;
        backend.somebody_sets(&mode, &Value::Number(2));
        backend.somebody_sets(&class, &Value::Class(Class::Fifo(50)));
        backend
    };
    let original = spinning().everything();
    for (name, options) in [("threaded", plain()), ("threaded", placed()), ("base", plain())] {
        let (mut backend, place) = (spinning(), Home::new());
        applied(&mut backend, &place.store(), name, &options).expect("applied");
        assert_ne!(backend.everything(), original);
        let dry = RestoreOptions { dry_run: true, ..RestoreOptions::default() };
        for options in [dry, RestoreOptions::default()] {
            let outcome = restore(&mut backend, &place.store(), &options).expect("readable");
            assert!(outcome.is_complete(), "{name}: {outcome:?}");
        }
        assert_eq!((backend.everything(), place.files()), (original.clone(), vec![]), "{name}");

        let policy = policy(name);
        let request = Request { policy: &policy, ifname: "va", options: &options, force: false };
        let mut hold = Temporary::apply(spinning(), &place.store(), &request).expect("applied");
        assert!(hold.put_back().expect("it is there").is_complete(), "{name}");
        assert_eq!(hold.backend().everything(), original, "{name}");
        drop(hold);
        assert_eq!(place.files(), [""; 0]);
    }
    let (mut backend, place) = (spinning(), Home::new());
    let at = backend.look(Target::Name("va")).expect("it is there");
    let held = HeldDevice::take(&backend, &place.store(), &at).expect("nobody else has it");
    let wanted = std::collections::BTreeMap::from([(mode.clone(), Value::Number(1))]);
    for changes in [1, 0] {
        let kept = held.keep(&mut backend, &wanted).expect("it can be had");
        assert_eq!(kept.changes.len(), changes, "{kept:?}");
    }
    assert!(held.restore(&mut backend).expect("it is there").is_complete());
    assert_eq!(backend.everything(), original);
}

#[test]
fn that_a_real_time_thread_spun_is_known_until_its_mode_is_back() {
    let (mode, class) = (napi(0, Setting::Threaded), Place::ThreadClass(queue(0)));
    let fifo = |priority| Options { rt: Some(priority), ..plain() };
    let (mut backend, place) = (Fake::of(linux(6, 19), 1), Home::new());
    backend.real_time_may_spin = true;
    backend.somebody_sets(&mode, &Value::Number(2));
    backend.somebody_sets(&class, &Value::Class(Class::Fifo(50)));
    let original = backend.everything();
    // However often its class is set, even to its original one.
    for priority in [60, 50, 60] {
        applied(&mut backend, &place.store(), "threaded", &fifo(priority)).expect("applied");
    }
    // The mode is put back first, which fails; the class is not put back then.
    backend.refuses_after = Some(backend.writes);
    let restored = all_back(&mut backend, &place.store());
    assert_eq!(restored.devices[0].failed.len(), 1, "{restored:?}");
    assert!(all_back(&mut backend, &place.store()).is_complete());
    assert_eq!((backend.everything(), place.files()), (original, vec![]));
}

#[test]
fn a_thread_that_never_spun_as_real_time_does_not_for_what_was_set_since() {
    let (mode, class) = (napi(0, Setting::Threaded), Place::ThreadClass(queue(0)));
    let (mut backend, place) = (Fake::of(linux(6, 19), 1), Home::new());
    backend.somebody_sets(&mode, &Value::Number(2));
    applied(&mut backend, &place.store(), "threaded", &plain()).expect("applied");
    backend.somebody_sets(&class, &Value::Class(Class::Fifo(50)));
    for priority in [60, 50, 60, 50] {
        let options = Options { rt: Some(priority), ..plain() };
        applied(&mut backend, &place.store(), "threaded", &options).expect("applied");
    }
    // Otherwise the fake would panic.
    let restored = all_back(&mut backend, &place.store());
    assert_eq!(restored.devices[0].failed.len(), 1, "{restored:?}");
}

#[test]
fn a_dry_run_tells_of_a_thread_that_would_not_be_set_spinning_again() {
    let (mut backend, place) = (Fake::of(linux(6, 19), 1), Home::new());
    backend.somebody_sets(&napi(0, Setting::Threaded), &Value::Number(2));
    applied(&mut backend, &place.store(), "threaded", &plain()).expect("applied");
    let class = Place::ThreadClass(queue(0));
    backend.somebody_sets(&class, &Value::Class(Class::Fifo(50)));
    let dry = RestoreOptions { dry_run: true, ..RestoreOptions::default() };
    let outcome = restore(&mut backend, &place.store(), &dry).expect("readable");
    assert_eq!(outcome.devices[0].failed.len(), 1, "{outcome:?}");
}
