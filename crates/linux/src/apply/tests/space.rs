//! A full disk, or a file that cannot be removed: the existing records suffice to put everything back.

use super::*;
use crate::journal::fault::disk;
use crate::place::Value;

/// Makes the disk full until this is dropped.
struct Full;

impl Full {
    fn now() -> Full {
        disk::fill(true);
        Full
    }
}

impl Drop for Full {
    fn drop(&mut self) {
        disk::fill(false);
    }
}

fn hold<'a>(
    backend: &'a mut Fake,
    store: &Store,
    text: &str,
    options: &Options,
) -> Temporary<&'a mut Fake> {
    let policy = policy(text);
    let request = Request { policy: &policy, ifname: "va", options, force: true };
    Temporary::apply(backend, store, &request).expect("applied")
}

#[test]
fn a_hold_ends_as_if_there_were_room() {
    let (mut backend, place) = (Fake::new(4), Home::new());
    let original = backend.everything();
    let holds = hold(&mut backend, &place.store(), "suspend20", &plain());
    let full = Full::now();
    let restored = holds.restore().expect("it is there");
    assert!(restored.is_complete(), "{restored:?}");
    assert_eq!(backend.everything(), original);
    assert_eq!(place.files(), [""; 0], "a file can be removed");
    drop(full);
}

#[test]
fn a_hold_over_another_policy_gives_that_one_back_and_restore_the_first() {
    let (mut backend, place) = (Fake::new(2), Home::new());
    let original = backend.everything();
    applied(&mut backend, &place.store(), "defer20", &plain()).expect("applied");
    let set = backend.everything();
    let holds = hold(&mut backend, &place.store(), "threaded", &placed());
    let full = Full::now();
    let restored = holds.restore().expect("it is there");
    assert_eq!((restored.failed.len(), restored.foreign.len()), (0, 0), "{restored:?}");
    assert!(restored.journal.is_some(), "it knows more than it has to, which is said");
    assert_eq!(backend.everything(), set);
    assert!(all_back(&mut backend, &place.store()).is_complete());
    assert_eq!(backend.everything(), original);
    assert_eq!(place.files(), [""; 0]);
    drop(full);
}

#[test]
fn an_apply_that_comes_to_the_end_of_the_room_takes_back_what_it_did() {
    for after in 1..12 {
        let (mut backend, place) = (Fake::new(4), Home::new());
        let original = backend.everything();
        backend.after_write = Some((after, |_| disk::fill(true)));
        let error = applied(&mut backend, &place.store(), "suspend20", &plain());
        let _full = Full::now();
        let error = error.expect_err("no room for the next line").to_string();
        assert!(error.ends_with("that was put back"), "{after}: {error}");
        assert_eq!(backend.everything(), original, "{after}");
        assert_eq!(place.files(), [""; 0], "{after}");
    }
}

#[test]
fn restore_needs_no_room() {
    let (mut backend, place) = (Fake::new(2), Home::new());
    let original = backend.everything();
    applied(&mut backend, &place.store(), "suspend20", &plain()).expect("applied");
    let foreign = napi(1, Setting::GroFlushTimeout);
    backend.somebody_sets(&foreign, &Value::Number(7));
    let full = Full::now();
    let restored = all_back(&mut backend, &place.store());
    let device = &restored.devices[0];
    assert_eq!((device.refused.as_ref(), device.changes.len()), (None, 5), "{device:?}");
    assert!(!restored.is_complete(), "one is somebody else's");
    assert!(!place.files().iter().any(|name| name.ends_with(".new")), "{:?}", place.files());
    backend.somebody_sets(&foreign, &Value::Number(0));
    assert!(all_back(&mut backend, &place.store()).is_complete());
    assert_eq!(backend.everything(), original);
    assert_eq!(place.files(), [""; 0]);
    drop(full);
}

#[test]
fn restore_needs_no_lock_file_and_respects_one_that_is_there() {
    let (mut backend, place) = (Fake::new(1), Home::new());
    let store = place.store();
    let original = backend.everything();
    applied(&mut backend, &store, "suspend20", &plain()).expect("applied");
    let set = backend.everything();
    let refused = |backend: &mut Fake| {
        disk::no_inode(true);
        let restored = all_back(backend, &place.store());
        let another = applied(backend, &place.store(), "defer20", &plain());
        disk::no_inode(false);
        another.expect_err("it has no lock");
        restored.devices[0].refused.clone()
    };
    let lock = store.lock(7, "va", Some(700)).expect("nobody has it");
    let why = refused(&mut backend).expect("it is held");
    assert!(why.contains(&format!("process {}", std::process::id())), "{why}");
    assert_eq!(backend.everything(), set);
    drop(lock);
    // Another restore that could not create a lock file has locked the journal.
    let journal = std::fs::File::open(place.0.join("device-700.journal")).expect("it is there");
    journal.lock().expect("nobody has it");
    let why = refused(&mut backend).expect("it is held");
    assert!(why.contains("held by another napkin"), "{why}");
    assert_eq!(backend.everything(), set);
    // A process that can create a lock file by now is refused as well.
    let locked = applied(&mut backend, &store, "defer20", &plain()).expect_err("it is held");
    assert!(locked.to_string().contains("held by another napkin"), "{locked}");
    drop(journal);
    assert_eq!(refused(&mut backend), None);
    assert_eq!(backend.everything(), original);
    assert_eq!(place.files(), [""; 0]);
}

#[test]
fn what_a_forced_hold_gave_back_is_still_somebody_else_s() {
    let (mut backend, place) = (Fake::new(1), Home::new());
    let foreign = napi(0, Setting::GroFlushTimeout);
    applied(&mut backend, &place.store(), "defer20", &plain()).expect("applied");
    backend.somebody_sets(&foreign, &Value::Number(7));
    let set = backend.everything();
    let restored = hold(&mut backend, &place.store(), "defer200", &plain()).restore();
    assert!(restored.expect("it is there").is_complete());
    assert_eq!(backend.everything(), set);
    let restored = all_back(&mut backend, &place.store());
    let expected = "gro-flush-timeout of va queue 0 is 7ns; napkin had set 20us, before it was 0";
    assert_eq!(restored.devices[0].foreign[0].to_string(), expected);
    assert_eq!(
        backend.everything()[&(7, foreign)],
        Value::Number(7),
        "it is not napkin's to reset"
    );
}

#[test]
fn a_file_that_cannot_be_removed_keeps_no_device_from_being_put_back() {
    let (mut backend, place) = (Fake::new(1), Home::new());
    let original = backend.everything();
    applied(&mut backend, &place.store(), "defer20", &plain()).expect("applied");
    // It was changed last, so it is processed first; its lock file cannot be created.
    std::fs::write(place.0.join("device-1.journal"), "").expect("written");
    std::fs::create_dir(place.0.join("device-1.lock")).expect("made");
    let restored = all_back(&mut backend, &place.store());
    let [OtherJournal::Unreadable { why, forgotten: false, .. }] = &restored.also[..] else {
        panic!("{restored:?}")
    };
    assert!(why.contains("device-1.lock") && !restored.is_complete(), "{why}");
    assert_eq!(backend.everything(), original);
}
