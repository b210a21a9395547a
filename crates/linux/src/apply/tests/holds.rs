//! Devices that are held, for a program's run time or by a keeper.

use super::*;

#[test]
fn a_hold_gives_back_what_was_before_it_and_no_more() {
    let place = Home::new();
    let mut backend = Fake::new(2);
    let original = backend.everything();
    applied(&mut backend, &place.store(), "defer20", &plain()).expect("applied");
    let set = backend.everything();
    let (policy, options) = (policy("threaded"), placed());
    let request = Request { policy: &policy, ifname: "va", options: &options, force: false };
    let mut backend = {
        let hold = Temporary::apply(&mut backend, &place.store(), &request).expect("applied");
        let error = apply(&mut Fake::new(2), &place.store(), &request).expect_err("held");
        let ApplyError::Journal(JournalError::Locked { holder, .. }) = &error else {
            panic!("{error}")
        };
        assert_eq!(holder.pid, std::process::id());
        let restored = hold.restore().expect("it is there");
        assert!(restored.is_complete());
        assert!(restored.kept > 0, "the first policy is still known");
        backend
    };
    assert_eq!(backend.everything(), set);
    assert!(all_back(&mut backend, &place.store()).is_complete());
    assert_eq!(backend.everything(), original);
    assert_eq!(place.files(), [""; 0]);
}

/// Has a device brought to a policy's state; without a policy, to its original state.
fn kept(
    held: &HeldDevice,
    backend: &mut Fake,
    text: Option<&str>,
    options: &Options,
) -> Result<Kept, ApplyError> {
    let at = backend.look(Target::Name("va")).expect("it is there");
    let places = text.map(|text| {
        wanted(&policy(text), &at, &backend.kernel().clone(), options).expect(text).places
    });
    held.keep(backend, &places.unwrap_or_default().into_iter().collect())
}

pub(super) fn held(backend: &mut Fake, store: &Store) -> HeldDevice {
    let at = backend.look(Target::Name("va")).expect("it is there");
    HeldDevice::take(backend, store, &at).expect("nobody else has it")
}

#[test]
fn a_held_device_is_what_is_wanted_last_whatever_was_wanted_before() {
    let queue_1 = Options { queue: Some(1), ..plain() };
    let wishes: Vec<(Option<&str>, Options)> = vec![
        (None, plain()),
        (Some("suspend20"), plain()),
        (Some("threaded"), placed()),
        (Some("defer20"), queue_1),
        (Some("base"), plain()),
        (Some("threaded"), plain()),
    ];
    for (first, options) in &wishes {
        for (second, others) in &wishes {
            let place = Home::new();
            let mut backend = Fake::new(2);
            let original = backend.everything();
            // The result of the second policy alone.
            let mut alone = Fake::new(2);
            let other = Home::new();
            let only = held(&mut alone, &other.store());
            kept(&only, &mut alone, *second, others).expect("set");

            let keeper = held(&mut backend, &place.store());
            kept(&keeper, &mut backend, *first, options).expect("set");
            // Killed in between: the next one has the journal only.
            drop(keeper);
            let keeper = held(&mut backend, &place.store());
            kept(&keeper, &mut backend, *second, others).expect("set");
            let what = format!("{first:?} {options:?}, then {second:?} {others:?}");
            assert_eq!(backend.everything(), alone.everything(), "{what}");
            let kept_again = kept(&keeper, &mut backend, *second, others).expect("looked at");
            assert!(
                kept_again.changes.is_empty() && kept_again.put_back.changes.is_empty(),
                "{what}"
            );
            let restored = keeper.restore(&mut backend).expect("put back");
            assert!(restored.is_complete(), "{what}: {restored:?}");
            assert_eq!(backend.everything(), original, "{what}");
            drop(keeper);
            assert_eq!(place.files(), [""; 0], "{what}");
        }
    }
}

#[test]
fn a_held_device_is_set_again_and_what_was_first_is_still_known() {
    let place = Home::new();
    let mut backend = Fake::new(2);
    let original = backend.everything();
    let keeper = held(&mut backend, &place.store());
    kept(&keeper, &mut backend, Some("defer20"), &plain()).expect("set");
    let set = backend.everything();
    let at = backend.look(Target::Name("va")).expect("there");
    backend.write(&at, &napi(1, Setting::DeferHardIrqs), &Value::Number(7)).expect("by somebody");
    let outcome = kept(&keeper, &mut backend, Some("defer20"), &plain()).expect("set again");
    assert_eq!(outcome.foreign.len(), 1, "{:?}", outcome.foreign);
    assert_eq!((outcome.changes.len(), backend.everything()), (1, set));

    // If the kernel refuses a change, the changes of that iteration are undone, and no others.
    let before = backend.everything();
    backend.refuses_after = Some(backend.writes + 2);
    let error = kept(&keeper, &mut backend, Some("suspend200"), &plain()).expect_err("refused");
    assert!(matches!(error, ApplyError::Stopped { .. }), "{error}");
    assert_eq!(backend.everything(), before);
    assert!(keeper.restore(&mut backend).expect("put back").is_complete());
    assert_eq!(backend.everything(), original);
}

#[test]
fn a_thread_that_somebody_had_placed_is_so_again_after_a_wish_without_threads() {
    let (mut backend, place) = (Fake::of(linux(6, 19), 2), Home::new());
    let cpus = Place::ThreadCpus(queue(1));
    backend.somebody_sets(&napi(1, Setting::Threaded), &Value::Number(1));
    backend.somebody_sets(&cpus, &Value::Cpus(vec![2]));
    backend.somebody_sets(&Place::ThreadClass(queue(1)), &Value::Class(Class::Fifo(5)));
    let original = backend.everything();
    let keeper = held(&mut backend, &place.store());
    // The second iteration finds the thread gone.
    let no_threads = |backend: &mut Fake| {
        for _ in 0..2 {
            kept(&keeper, backend, Some("suspend20"), &plain()).expect("set");
        }
    };
    no_threads(&mut backend);
    let outcome = kept(&keeper, &mut backend, Some("threaded"), &plain()).expect("set");
    assert_eq!(outcome.put_back.changes.len(), 2, "{:?}", outcome.put_back);
    assert_eq!(backend.everything().remove(&(7, cpus)), Some(Value::Cpus(vec![2])));
    no_threads(&mut backend);
    // A spinning thread does not become real-time.
    for _ in 0..2 {
        kept(&keeper, &mut backend, Some("threaded-busy-poll"), &plain()).expect("set");
    }
    no_threads(&mut backend);
    assert!(keeper.restore(&mut backend).expect("put back").is_complete());
    assert_eq!(backend.everything(), original);
    drop(keeper);
    assert_eq!(place.files(), [""; 0]);
}

#[test]
fn a_thread_that_spins_at_once_is_where_somebody_had_placed_it_and_as_nice() {
    let begun = || {
        let (mut backend, place) = (Fake::of(linux(6, 19), 1), Home::new());
        backend.somebody_sets(&napi(0, Setting::Threaded), &Value::Number(1));
        backend.somebody_sets(&Place::ThreadCpus(queue(0)), &Value::Cpus(vec![2]));
        backend.somebody_sets(&Place::ThreadClass(queue(0)), &Value::Class(Class::Nice(-20)));
        let original = backend.everything();
        let keeper = held(&mut backend, &place.store());
        kept(&keeper, &mut backend, Some("suspend20"), &plain()).expect("set");
        (backend, place, keeper, original)
    };
    let as_it_was = |backend: &mut Fake| {
        let all = backend.everything();
        assert_eq!(all[&(7, Place::ThreadCpus(queue(0)))], Value::Cpus(vec![2]));
        let class = &all[&(7, Place::ThreadClass(queue(0)))];
        assert_eq!(*class, Value::Class(Class::Nice(-20)));
    };
    let (mut backend, _place, keeper, original) = begun();
    kept(&keeper, &mut backend, Some("threaded-busy-poll"), &plain()).expect("set");
    as_it_was(&mut backend);
    let kept_again = kept(&keeper, &mut backend, Some("threaded-busy-poll"), &plain()).expect("so");
    assert!(
        kept_again.changes.is_empty() && kept_again.put_back.changes.is_empty(),
        "{kept_again:?}"
    );
    assert!(keeper.restore(&mut backend).expect("put back").is_complete());
    assert_eq!(backend.everything(), original);
    // Killed once the thread existed: the next one finds a fair thread.
    let (mut backend, _place, keeper, _) = begun();
    backend.somebody_sets(&napi(0, Setting::Threaded), &Value::Number(2));
    kept(&keeper, &mut backend, Some("threaded-busy-poll"), &plain()).expect("set");
    as_it_was(&mut backend);
}

#[test]
fn what_the_kernel_does_not_take_back_is_tried_again() {
    let (mut backend, place) = (Fake::new(2), Home::new());
    let original = backend.everything();
    let keeper = held(&mut backend, &place.store());
    kept(&keeper, &mut backend, Some("defer20"), &plain()).expect("set");
    backend.refuses_after = Some(backend.writes + 1);
    let restored = keeper.restore(&mut backend).expect("it answers");
    assert_eq!((restored.failed.len(), restored.is_complete()), (1, false), "{restored:?}");
    assert!(keeper.restore(&mut backend).expect("put back").is_complete());
    assert_eq!(backend.everything(), original);
    drop(keeper);
    assert_eq!(place.files(), [""; 0]);
}

#[test]
fn who_would_restore_what_a_keeper_holds_is_told_how_to_come_to_it() {
    let (mut backend, place) = (Fake::new(1), Home::new());
    let keeper = held(&mut backend, &place.store());
    kept(&keeper, &mut backend, Some("defer20"), &plain()).expect("set");
    let refusal = |backend: &mut Fake| {
        let restoration = all_back(backend, &place.store());
        restoration.devices[0].refused.clone().expect("it is held")
    };
    let other = refusal(&mut backend);
    assert!(other.contains("wait for it, or end it"), "{other}");
    let wishes = place.store().lock_keeper().expect("nobody has it");
    let its = refusal(&mut backend);
    assert!(its.contains("systemctl stop napkin") && !its.contains("wait for it"), "{its}");
    drop((wishes, keeper));
    assert!(all_back(&mut backend, &place.store()).is_complete());
}

#[test]
fn what_went_with_a_deleted_device_is_forgotten_by_who_was_told() {
    let (mut backend, place) = (Fake::new(1), Home::new());
    let keeper = held(&mut backend, &place.store());
    kept(&keeper, &mut backend, Some("defer20"), &plain()).expect("set");
    backend.devices.remove(0);
    backend.identities.remove(&7);
    backend.elsewhere = Whereabouts::Unknown;
    assert!(!keeper.is_gone(&mut backend).expect("it answers"), "it may be elsewhere");
    assert!(place.files().iter().any(|file| file.ends_with(".journal")), "{:?}", place.files());
    keeper.forget().expect("removed");
    drop(keeper);
    assert_eq!(place.files(), [""; 0]);
}

#[test]
fn the_place_that_the_kernel_refuses_is_named() {
    let (mut backend, place) = (Fake::new(2), Home::new());
    let keeper = held(&mut backend, &place.store());
    let queue_1 = Options { queue: Some(1), ..plain() };
    backend.refuses_after = Some(0);
    let error = kept(&keeper, &mut backend, Some("defer20"), &queue_1).expect_err("refused");
    assert_eq!(error.refused(), Some(&napi(1, Setting::GroFlushTimeout)), "{error}");
}

#[test]
fn a_hold_that_is_dropped_restores() {
    let (mut backend, place) = (Fake::new(2), Home::new());
    let original = backend.everything();
    let (policy, options) = (policy("suspend20"), plain());
    let request = Request { policy: &policy, ifname: "va", options: &options, force: false };
    drop(Temporary::apply(&mut backend, &place.store(), &request).expect("applied"));
    assert_eq!(backend.everything(), original);
    assert_eq!(place.files(), [""; 0]);
}
