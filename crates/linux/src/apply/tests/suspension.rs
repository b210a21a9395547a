//! A guard takes a suspension away under a policy, and gives it back.

use super::*;
use crate::place::{Place, Value};

const DEVICE: u32 = 7;

fn timeout() -> Place {
    napi(0, Setting::IrqSuspendTimeout)
}

fn now(world: &mut Fake, place: &Place) -> Value {
    world.everything().remove(&(DEVICE, place.clone())).expect("it is there")
}

/// The NAPI id of `va`'s first queue.
fn id(world: &Fake) -> u32 {
    world.devices[0].napis[0].id
}

fn end(world: &mut Fake, store: &Store, held: Option<u32>) -> Option<Suspension> {
    let instance = (DEVICE, id(world));
    end_suspension(world, store, instance, held).expect("it can be written")
}

#[test]
fn it_is_taken_away_and_given_back_under_any_policies_before() {
    let (short, long) = ("suspend20,irq-suspend-timeout=5ms", "suspend20");
    for before in [vec![], vec!["defer20"], vec![short], vec![short, long], vec![long, short]] {
        let (mut world, place) = (Fake::new(2), Home::new());
        let store = place.store();
        let original = world.everything();
        for policy in &before {
            applied(&mut world, &store, policy, &plain()).expect("applied");
        }
        let set = world.everything();
        let known = store.device(DEVICE, "va").expect("readable").records().to_vec();
        let (policy, options) = (policy("suspend20,irq-suspend-timeout=30ms"), plain());
        let request = Request { policy: &policy, ifname: "va", options: &options, force: false };
        let mut hold = Hold::apply(&mut world, &store, &request).expect("applied");
        let held = Some(DEVICE);
        for _ in 0..3 {
            let ended = end(hold.world(), &store, held).expect("it was on");
            assert_eq!((ended.timeout, ended.subject.as_str()), (30_000_000, "queue 0"));
            assert_eq!(now(hold.world(), &timeout()), Value::Number(0));
            let other = now(hold.world(), &napi(1, Setting::IrqSuspendTimeout));
            assert_eq!(other, Value::Number(30_000_000), "another instance's");
            assert_eq!(end(hold.world(), &store, held), None, "it is off");
            assert!(give_back(hold.world(), &store, &ended, held).expect("given back"));
            assert_eq!(now(hold.world(), &timeout()), Value::Number(30_000_000));
            assert!(!give_back(hold.world(), &store, &ended, held).expect("it has it already"));
        }
        let restored = hold.restore().expect("it is there");
        assert!(restored.is_complete(), "{restored:?}");
        assert_eq!(world.everything(), set, "{before:?}");
        let kept = store.device(DEVICE, "va").expect("readable");
        for (then, now) in known.iter().zip(kept.records()) {
            assert_eq!((&then.spot, &then.before, &then.set), (&now.spot, &now.before, &now.set));
        }
        assert_eq!(known.len(), kept.records().len());
        assert!(all_back(&mut world, &store).is_complete());
        assert_eq!((world.everything(), place.files()), (original, vec![]), "{before:?}");
    }
}

#[test]
fn what_a_hold_finds_taken_away_at_its_end_is_told_and_napkin_s_own() {
    for (before, left) in [(None, true), (Some("suspend20,irq-suspend-timeout=5ms"), false)] {
        let (mut world, place) = (Fake::new(2), Home::new());
        let store = place.store();
        if before.is_some() {
            world.somebody_sets(&timeout(), &Value::Number(3_000_000));
        }
        let original = world.everything();
        if let Some(policy) = before {
            applied(&mut world, &store, policy, &plain()).expect("applied");
        }
        let (policy, options) = (policy("suspend20"), plain());
        let request = Request { policy: &policy, ifname: "va", options: &options, force: false };
        let mut hold = Hold::apply(&mut world, &store, &request).expect("applied");
        end(hold.world(), &store, Some(DEVICE)).expect("it was on");
        let restored = hold.restore().expect("it is there");
        assert_eq!(restored.is_complete(), left, "{restored:?}");
        // It is in the journal, and so nobody else's.
        assert!(all_back(&mut world, &store).is_complete(), "{before:?}");
        assert_eq!((world.everything(), place.files()), (original, vec![]), "{before:?}");
    }
}

#[test]
fn a_crash_at_any_point_loses_nothing() {
    for somebodys in [0, 5_000_000, 20_000_000] {
        for at in 0.. {
            let (mut world, place) = (Fake::new(2), Home::new());
            world.somebody_sets(&timeout(), &Value::Number(somebodys));
            let original = world.everything();
            let store = place.store();
            applied(&mut world, &store, "suspend20", &plain()).expect("applied");
            let done = crash::at(Some(at), || {
                let ended = end(&mut world, &store, None).expect("it was on");
                give_back(&mut world, &store, &ended, None).expect("given back")
            });
            assert!(all_back(&mut world, &store).is_complete(), "died at {at}");
            assert_eq!((world.everything(), place.files()), (original, vec![]), "died at {at}");
            if done == Some(true) {
                assert!(at > 6, "{at} points");
                break;
            }
        }
    }
}

#[test]
fn what_somebody_else_did_meanwhile_stays() {
    let off = |world: &mut Fake, store: &Store| end(world, store, None).expect("it was on");
    let back = |world: &mut Fake, store: &Store, ended: &Suspension| {
        give_back(world, store, ended, None).expect("it is there")
    };
    // Set again by hand.
    let (mut world, place) = (Fake::new(1), Home::new());
    let store = place.store();
    applied(&mut world, &store, "suspend20", &plain()).expect("applied");
    let ended = off(&mut world, &store);
    world.somebody_sets(&timeout(), &Value::Number(9_000));
    assert!(!back(&mut world, &store, &ended));
    assert_eq!(now(&mut world, &timeout()), Value::Number(9_000));
    // Restored by another napkin, to the same 0 that the guard had set.
    let (mut world, place) = (Fake::new(1), Home::new());
    let store = place.store();
    let original = world.everything();
    applied(&mut world, &store, "suspend20", &plain()).expect("applied");
    let ended = off(&mut world, &store);
    assert!(all_back(&mut world, &store).is_complete());
    assert!(!back(&mut world, &store, &ended));
    assert_eq!((world.everything(), place.files()), (original, vec![]));
    // Applied anew by another napkin.
    applied(&mut world, &store, "suspend20", &plain()).expect("applied");
    let ended = off(&mut world, &store);
    applied(&mut world, &store, "suspend200", &plain()).expect("napkin's own");
    assert!(!back(&mut world, &store, &ended));
    assert_eq!(now(&mut world, &timeout()), Value::Number(20_000_000));
}

#[test]
fn it_is_given_back_where_its_instance_is_by_then() {
    let (mut world, place) = (Fake::new(2), Home::new());
    let store = place.store();
    let first = id(&world);
    applied(&mut world, &store, "suspend20", &plain()).expect("applied");
    let ended = end(&mut world, &store, None).expect("it was on");
    // The first instance polls what the second did.
    world.channels(&[(vec![1], vec![1]), (vec![0], vec![0])]);
    assert!(give_back(&mut world, &store, &ended, None).expect("given back"));
    assert_eq!(world.by_id()[&first].irq_suspend_timeout, Some(20_000_000));
    assert!(all_back(&mut world, &store).is_complete());
    assert!(world.by_id().values().all(|it| it.irq_suspend_timeout == Some(0)));
    assert_eq!(place.files(), [""; 0]);
    // And one that is gone with its device needs nothing.
    applied(&mut world, &store, "suspend20", &plain()).expect("applied");
    let ended = end(&mut world, &store, None).expect("it was on");
    world.devices.remove(0);
    world.identities.remove(&DEVICE);
    assert!(!give_back(&mut world, &store, &ended, None).expect("told"));
}

#[test]
fn nothing_is_changed_that_cannot_be_written_down_or_is_another_napkin_s() {
    let (mut world, place) = (Fake::new(1), Home::new());
    let store = place.store();
    applied(&mut world, &store, "suspend20", &plain()).expect("applied");
    let instance = (DEVICE, id(&world));
    let lock = store.lock(DEVICE, "va").expect("free");
    let error = end_suspension(&mut world, &store, instance, None).expect_err("locked");
    assert!(matches!(error, ApplyError::Journal(JournalError::Locked { .. })), "{error}");
    assert_eq!(now(&mut world, &timeout()), Value::Number(20_000_000));
    // By the one that holds it itself it can.
    assert!(end(&mut world, &store, Some(DEVICE)).is_some());
    drop(lock);
    let absent = end_suspension(&mut world, &store, (DEVICE, 9), None).expect("told");
    assert_eq!(absent, None);
}
