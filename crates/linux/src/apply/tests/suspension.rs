//! A guard ends a suspension while a policy is in force, and restores it.

use std::sync::Mutex;
use std::thread::JoinHandle;

use super::holds::held;
use super::*;
use crate::place::{Place, Value};

const DEVICE: u32 = 7;

fn timeout() -> Place {
    napi(0, Setting::IrqSuspendTimeout)
}

fn now(backend: &mut Fake, place: &Place) -> Value {
    backend.everything().remove(&(DEVICE, place.clone())).expect("it is there")
}

/// Returns the NAPI id of `va`'s first queue.
fn id(backend: &Fake) -> u32 {
    backend.devices[0].napis[0].id
}

fn end(backend: &mut Fake, store: &Store, held: Option<u32>) -> Option<Suspension> {
    let instance = (DEVICE, id(backend));
    end_suspension(backend, store, instance, held).expect("it can be written")
}

#[test]
fn it_is_taken_away_and_given_back_under_any_policies_before() {
    let (short, long) = ("suspend20,irq-suspend-timeout=5ms", "suspend20");
    for before in [vec![], vec!["defer20"], vec![short], vec![short, long], vec![long, short]] {
        let (mut backend, place) = (Fake::new(2), Home::new());
        let store = place.store();
        let original = backend.everything();
        for policy in &before {
            applied(&mut backend, &store, policy, &plain()).expect("applied");
        }
        let set = backend.everything();
        let known = store.device(DEVICE, "va", Some(700)).expect("readable").records().to_vec();
        let (policy, options) = (policy("suspend20,irq-suspend-timeout=30ms"), plain());
        let request = Request { policy: &policy, ifname: "va", options: &options, force: false };
        let mut hold = Temporary::apply(&mut backend, &store, &request).expect("applied");
        let held = Some(DEVICE);
        for _ in 0..3 {
            let ended = end(hold.backend(), &store, held).expect("it was on");
            assert_eq!((ended.timeout, ended.subject.as_str()), (30_000_000, "queue 0"));
            assert_eq!(now(hold.backend(), &timeout()), Value::Number(0));
            let other = now(hold.backend(), &napi(1, Setting::IrqSuspendTimeout));
            assert_eq!(other, Value::Number(30_000_000), "another instance's");
            assert_eq!(end(hold.backend(), &store, held), None, "it is off");
            assert!(give_back(hold.backend(), &store, &ended, held).expect("given back"));
            assert_eq!(now(hold.backend(), &timeout()), Value::Number(30_000_000));
            assert!(!give_back(hold.backend(), &store, &ended, held).expect("it has it already"));
        }
        let restored = hold.restore().expect("it is there");
        assert!(restored.is_complete(), "{restored:?}");
        assert_eq!(backend.everything(), set, "{before:?}");
        let kept = store.device(DEVICE, "va", Some(700)).expect("readable");
        for (then, now) in known.iter().zip(kept.records()) {
            assert_eq!((&then.spot, &then.before, &then.set), (&now.spot, &now.before, &now.set));
        }
        assert_eq!(known.len(), kept.records().len());
        assert!(all_back(&mut backend, &store).is_complete());
        assert_eq!((backend.everything(), place.files()), (original, vec![]), "{before:?}");
    }
}

#[test]
fn what_a_hold_finds_taken_away_at_its_end_is_told_and_napkin_s_own() {
    for (before, left) in [(None, true), (Some("suspend20,irq-suspend-timeout=5ms"), false)] {
        let (mut backend, place) = (Fake::new(2), Home::new());
        let store = place.store();
        if before.is_some() {
            backend.somebody_sets(&timeout(), &Value::Number(3_000_000));
        }
        let original = backend.everything();
        if let Some(policy) = before {
            applied(&mut backend, &store, policy, &plain()).expect("applied");
        }
        let (policy, options) = (policy("suspend20"), plain());
        let request = Request { policy: &policy, ifname: "va", options: &options, force: false };
        let mut hold = Temporary::apply(&mut backend, &store, &request).expect("applied");
        end(hold.backend(), &store, Some(DEVICE)).expect("it was on");
        let restored = hold.restore().expect("it is there");
        assert_eq!(restored.is_complete(), left, "{restored:?}");
        // It is in the journal, and therefore not taken for another program's.
        assert!(all_back(&mut backend, &store).is_complete(), "{before:?}");
        assert_eq!((backend.everything(), place.files()), (original, vec![]), "{before:?}");
    }
}

#[test]
fn a_crash_at_any_point_loses_nothing() {
    for somebodys in [0, 5_000_000, 20_000_000] {
        for at in 0.. {
            let (mut backend, place) = (Fake::new(2), Home::new());
            backend.somebody_sets(&timeout(), &Value::Number(somebodys));
            let original = backend.everything();
            let store = place.store();
            applied(&mut backend, &store, "suspend20", &plain()).expect("applied");
            let done = crash::at(Some(at), || {
                let ended = end(&mut backend, &store, None).expect("it was on");
                give_back(&mut backend, &store, &ended, None).expect("given back")
            });
            assert!(all_back(&mut backend, &store).is_complete(), "died at {at}");
            assert_eq!((backend.everything(), place.files()), (original, vec![]), "died at {at}");
            if done == Some(true) {
                assert!(at > 6, "{at} points");
                break;
            }
        }
    }
}

#[test]
fn what_somebody_else_did_meanwhile_stays() {
    let off = |backend: &mut Fake, store: &Store| end(backend, store, None).expect("it was on");
    let back = |backend: &mut Fake, store: &Store, ended: &Suspension| {
        give_back(backend, store, ended, None).expect("it is there")
    };
    // Set again by hand.
    let (mut backend, place) = (Fake::new(1), Home::new());
    let store = place.store();
    applied(&mut backend, &store, "suspend20", &plain()).expect("applied");
    let ended = off(&mut backend, &store);
    backend.somebody_sets(&timeout(), &Value::Number(9_000));
    assert!(!back(&mut backend, &store, &ended));
    assert_eq!(now(&mut backend, &timeout()), Value::Number(9_000));
    // Restored by another napkin, to the same 0 that the guard had set.
    let (mut backend, place) = (Fake::new(1), Home::new());
    let store = place.store();
    let original = backend.everything();
    applied(&mut backend, &store, "suspend20", &plain()).expect("applied");
    let ended = off(&mut backend, &store);
    assert!(all_back(&mut backend, &store).is_complete());
    assert!(!back(&mut backend, &store, &ended));
    assert_eq!((backend.everything(), place.files()), (original, vec![]));
    // Applied anew by another napkin.
    applied(&mut backend, &store, "suspend20", &plain()).expect("applied");
    let ended = off(&mut backend, &store);
    applied(&mut backend, &store, "suspend200", &plain()).expect("napkin's own");
    assert!(!back(&mut backend, &store, &ended));
    assert_eq!(now(&mut backend, &timeout()), Value::Number(20_000_000));
}

#[test]
fn what_is_wanted_off_since_is_not_given_back() {
    for compacted in [false, true] {
        let (mut backend, place) = (Fake::new(1), Home::new());
        let store = place.store();
        let original = backend.everything();
        applied(&mut backend, &store, "suspend20", &plain()).expect("applied");
        let ended = end(&mut backend, &store, None).expect("it was on");
        // The policy wants no suspension, and finds none.
        applied(&mut backend, &store, "defer20", &plain()).expect("applied");
        if compacted {
            let mut journal = store.device(DEVICE, "va", Some(700)).expect("readable");
            let mut all = vec![true; journal.records().len()];
            all.push(false);
            journal.keep(&all).expect("written");
        }
        assert!(!give_back(&mut backend, &store, &ended, None).expect("told"));
        assert_eq!(now(&mut backend, &timeout()), Value::Number(0));
        // A suspension of the next policy is restored again.
        applied(&mut backend, &store, "suspend20", &plain()).expect("applied");
        let ended = end(&mut backend, &store, None).expect("it was on");
        assert!(give_back(&mut backend, &store, &ended, None).expect("given back"));
        assert!(all_back(&mut backend, &store).is_complete());
        assert_eq!((backend.everything(), place.files()), (original, vec![]));
    }
}

#[test]
fn what_is_wanted_off_for_as_long_as_a_hold_lasts_is_given_back_after_it_and_what_is_left_so_is_not()
 {
    for left in [false, true] {
        let (mut backend, place) = (Fake::new(1), Home::new());
        let store = place.store();
        applied(&mut backend, &store, "suspend20", &plain()).expect("applied");
        let ended = end(&mut backend, &store, None).expect("it was on");
        let (policy, options) = (policy("defer20"), plain());
        let request = Request { policy: &policy, ifname: "va", options: &options, force: false };
        let hold = Temporary::apply(&mut backend, &store, &request).expect("applied");
        if left {
            hold.leave();
        } else {
            assert!(hold.restore().expect("it is there").is_complete());
        }
        assert_eq!(give_back(&mut backend, &store, &ended, None).expect("told"), !left);
    }
}

#[test]
fn a_policy_that_ends_it_itself_keeps_it_ended() {
    let (mut backend, place) = (Fake::new(1), Home::new());
    let store = place.store();
    applied(&mut backend, &store, "suspend20", &plain()).expect("applied");
    let ended = end(&mut backend, &store, None).expect("it was on");
    for later in ["suspend20", "defer20"] {
        applied(&mut backend, &store, later, &plain()).expect("applied");
    }
    assert!(!give_back(&mut backend, &store, &ended, None).expect("told"));
}

#[test]
fn one_that_wants_none_is_known_after_another_was_there_for_a_while() {
    let (mut backend, place) = (Fake::new(1), Home::new());
    let store = place.store();
    // The journal then has a record of 0 before.
    backend.somebody_sets(&timeout(), &Value::Number(7_000_000));
    applied(&mut backend, &store, "suspend20", &plain()).expect("applied");
    let ended = end(&mut backend, &store, None).expect("it was on");
    applied(&mut backend, &store, "defer20", &plain()).expect("it is so");
    let (policy, options) = (policy("suspend20"), plain());
    let request = Request { policy: &policy, ifname: "va", options: &options, force: false };
    let hold = Temporary::apply(&mut backend, &store, &request).expect("applied");
    assert!(hold.restore().expect("it is there").is_complete());
    assert_eq!(now(&mut backend, &timeout()), Value::Number(0));
    assert!(!give_back(&mut backend, &store, &ended, None).expect("told"));
}

#[test]
fn a_keeper_whose_wish_is_another_by_now_has_its_guard_give_nothing_back() {
    let (mut backend, place) = (Fake::new(1), Home::new());
    let store = place.store();
    let held = held(&mut backend, &store);
    let wanted = |value| [(timeout(), Value::Number(value))].into();
    held.keep(&mut backend, &wanted(20_000_000)).expect("set");
    let ended = end(&mut backend, &store, Some(DEVICE)).expect("it was on");
    held.keep(&mut backend, &wanted(0)).expect("it is so");
    let at = backend.look(Target::Index(DEVICE)).expect("it is there");
    held.confirm_off(&at, std::iter::once(&timeout())).expect("written");
    assert!(!give_back(&mut backend, &store, &ended, Some(DEVICE)).expect("told"));
}

#[test]
fn it_is_given_back_where_its_instance_is_by_then() {
    let (mut backend, place) = (Fake::new(2), Home::new());
    let store = place.store();
    let first = id(&backend);
    applied(&mut backend, &store, "suspend20", &plain()).expect("applied");
    let ended = end(&mut backend, &store, None).expect("it was on");
    // The first instance polls the second one's queue now.
    backend.channels(&[(vec![1], vec![1]), (vec![0], vec![0])]);
    assert!(give_back(&mut backend, &store, &ended, None).expect("given back"));
    assert_eq!(backend.by_id()[&first].irq_suspend_timeout, Some(20_000_000));
    assert!(all_back(&mut backend, &store).is_complete());
    assert!(backend.by_id().values().all(|it| it.irq_suspend_timeout == Some(0)));
    assert_eq!(place.files(), [""; 0]);
    // A suspension whose device is gone needs nothing.
    applied(&mut backend, &store, "suspend20", &plain()).expect("applied");
    let ended = end(&mut backend, &store, None).expect("it was on");
    backend.devices.remove(0);
    backend.identities.remove(&DEVICE);
    assert!(!give_back(&mut backend, &store, &ended, None).expect("told"));
}

#[test]
fn nothing_is_changed_that_cannot_be_written_down_or_is_another_napkin_s() {
    let (mut backend, place) = (Fake::new(1), Home::new());
    let store = place.store();
    applied(&mut backend, &store, "suspend20", &plain()).expect("applied");
    let instance = (DEVICE, id(&backend));
    let lock = store.lock(DEVICE, "va", Some(700)).expect("free");
    let error = end_suspension(&mut backend, &store, instance, None).expect_err("locked");
    assert!(matches!(error, ApplyError::Journal(JournalError::Locked { .. })), "{error}");
    assert_eq!(now(&mut backend, &timeout()), Value::Number(20_000_000));
    // The process that holds the device can.
    assert!(end(&mut backend, &store, Some(DEVICE)).is_some());
    drop(lock);
    let absent = end_suspension(&mut backend, &store, (DEVICE, 9), None).expect("told");
    assert_eq!(absent, None);
}

#[test]
fn whose_suspensions_cannot_be_ended_is_known_before_they_have_to_be() {
    let (mut backend, place) = (Fake::new(1), Home::new());
    let store = place.store();
    let asked = |backend: &mut Fake, held| {
        let all = held_by_others(backend, &store, &[DEVICE, 8, 9].into(), held);
        all.into_iter().map(|(ifname, holder)| (ifname, holder.pid)).collect::<Vec<_>>()
    };
    assert_eq!(asked(&mut backend, None), []);
    let _lock = store.lock(DEVICE, "va", Some(700)).expect("free");
    assert_eq!(asked(&mut backend, None), [("va".to_owned(), std::process::id())]);
    assert_eq!(asked(&mut backend, Some(DEVICE)), [], "it is its own");
}

/// The journal that a guard's thread writes to, and its result.
static GUARD: Mutex<Option<Store>> = Mutex::new(None);
static ENDED: Mutex<Option<JoinHandle<Option<Suspension>>>> = Mutex::new(None);

/// Ends a suspension in another thread of this process, and waits a while for it.
fn guard_ends_it(keeper: &mut Fake) {
    let store = GUARD.lock().expect("no panic").clone().expect("a journal");
    // A copy of the same kernel state, for the other thread.
    let mut backend = Fake::new(2);
    backend.somebody_sets(&timeout(), &now(keeper, &timeout()));
    let (done_sender, done) = std::sync::mpsc::channel();
    let ends = move || {
        let ended = end(&mut backend, &store, Some(DEVICE));
        let _ = done_sender.send(());
        ended
    };
    *ENDED.lock().expect("no panic") = Some(std::thread::spawn(ends));
    let _ = done.recv_timeout(std::time::Duration::from_millis(200));
}

#[test]
fn a_keeper_that_rewrites_the_journal_loses_no_line_of_a_guard_s() {
    let (mut backend, place) = (Fake::new(2), Home::new());
    let store = place.store();
    *GUARD.lock().expect("no panic") = Some(store.clone());
    let held = held(&mut backend, &store);
    let suspends = (timeout(), Value::Number(20_000_000));
    let defers = (napi(1, Setting::DeferHardIrqs), Value::Number(100));
    let both = [suspends.clone(), defers].into();
    held.keep(&mut backend, &both).expect("set");
    // One place is not wanted any more: it is put back, then its records are dropped.
    backend.after_write = Some((backend.writes + 1, guard_ends_it));
    held.keep(&mut backend, &[suspends].into()).expect("set");
    let ended = ENDED.lock().expect("no panic").take().expect("it was started").join();
    let ended = ended.expect("no panic").expect("it was on");
    backend.somebody_sets(&timeout(), &Value::Number(0));
    let known = store.device(DEVICE, "va", Some(700)).expect("readable");
    assert_eq!(known.records().len(), 1, "{known:?}");
    assert_eq!(known.records()[0].set, Value::Number(0), "{known:?}");
    assert!(give_back(&mut backend, &store, &ended, Some(DEVICE)).expect("given back"));
    assert!(held.restore(&mut backend).expect("put back").is_complete());
    drop(held);
    assert_eq!(place.files(), [""; 0]);
}
