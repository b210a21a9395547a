//! Devices that have been replaced or moved when they are to be put back.

use super::*;
use crate::place::{Place, Value};

const NUMBER: Value = Value::Number(0);

/// Another device with the index of `va` takes its place, with values of its own.
fn another(backend: &mut Fake) {
    backend.recreate();
    backend.identities.insert(7, 701);
    let of = backend.everything();
    for (_, place) in of.into_keys().filter(|(ifindex, _)| *ifindex == 7) {
        if matches!(place, Place::Napi(..)) {
            backend.somebody_sets(&place, &NUMBER);
        }
    }
    backend.somebody_sets(&napi(0, Setting::GroFlushTimeout), &Value::Number(20_000));
}

/// `va` moves to another namespace, with its settings.
fn leaves(backend: &mut Fake) -> (napkin_kernel::device::Device, u64) {
    let device = backend.devices.remove(0);
    let namespace = String::from("/proc/9/ns/net");
    backend.elsewhere = Whereabouts::Elsewhere { ifname: "eth0".into(), namespace };
    (device, backend.identities.remove(&7).expect("it was there"))
}

fn returns(
    backend: &mut Fake,
    (mut device, identity): (napkin_kernel::device::Device, u64),
    ifindex: u32,
) {
    device.ifindex = ifindex;
    backend.devices.insert(0, device);
    backend.identities.insert(ifindex, identity);
}

#[test]
fn a_device_of_the_same_number_keeps_what_it_has() {
    let (mut backend, place) = (Fake::new(2), Home::new());
    applied(&mut backend, &place.store(), "defer20", &plain()).expect("applied");
    another(&mut backend);
    let its = backend.everything();
    let restored = all_back(&mut backend, &place.store());
    assert!(restored.is_complete() && restored.devices[0].gone, "{restored:?}");
    assert_eq!((backend.everything(), place.files()), (its, vec![]));
}

#[test]
fn a_hold_leaves_a_device_alone_that_took_the_number_of_its_own() {
    let (mut backend, place) = (Fake::new(2), Home::new());
    let (policy, options) = (policy("defer20"), plain());
    let request = Request { policy: &policy, ifname: "va", options: &options, force: false };
    let mut hold = Temporary::apply(&mut backend, &place.store(), &request).expect("applied");
    another(hold.backend());
    let its = hold.backend().everything();
    assert!(hold.put_back().expect("told").gone);
    assert_eq!(hold.backend().everything(), its);
}

#[test]
fn a_device_in_another_namespace_is_told_and_kept_until_it_is_back() {
    let (mut backend, place) = (Fake::new(2), Home::new());
    let original: Vec<_> = backend.everything().into_values().collect();
    let (policy, options) = (policy("suspend20"), plain());
    let request = Request { policy: &policy, ifname: "va", options: &options, force: false };
    let mut hold = Temporary::apply(&mut backend, &place.store(), &request).expect("applied");
    let device = leaves(hold.backend());
    let outcome = hold.put_back().expect("told");
    drop(hold);
    assert!(!outcome.is_complete() && outcome.kept == 6, "{outcome:?}");
    assert!(
        outcome.away.expect("not here").contains("nsenter --net=/proc/9/ns/net napkin restore")
    );
    // Without the right to search other namespaces, a device is not taken for gone.
    for elsewhere in [backend.elsewhere.clone(), Whereabouts::Unknown] {
        backend.elsewhere = elsewhere;
        let restored = all_back(&mut backend, &place.store());
        assert!(restored.devices[0].away.is_some() && !restored.is_complete(), "{restored:?}");
        assert_eq!(place.files(), ["device-700.journal"]);
    }
    // With another index, as after a move there and back.
    returns(&mut backend, device, 9);
    assert!(all_back(&mut backend, &place.store()).is_complete());
    assert_eq!(backend.everything().into_values().collect::<Vec<_>>(), original);
    assert_eq!(place.files(), [""; 0]);
}

#[test]
fn restore_in_the_namespace_in_which_it_is_now_puts_it_back() {
    for named in [None, Some("va".to_owned())] {
        let (mut backend, place) = (Fake::new(2), Home::new());
        let original: Vec<_> = backend.everything().into_values().collect();
        applied(&mut backend, &place.store(), "suspend20", &plain()).expect("applied");
        let device = leaves(&mut backend);
        returns(&mut backend, device, 3);
        let namespace = Identity { cookie: Some(2), inode: 2 };
        let peer_store = Store::at(place.0.to_path_buf(), "this boot".into(), namespace);
        let options = RestoreOptions { ifname: named, ..RestoreOptions::default() };
        let restored = restore(&mut backend, &peer_store, &options).expect("readable");
        assert!(restored.is_complete() && !restored.is_empty(), "{restored:?}");
        assert_eq!(backend.everything().into_values().collect::<Vec<_>>(), original);
        assert_eq!(place.files(), [""; 0]);
    }
}

#[test]
fn the_end_of_its_namespace_is_not_the_end_of_a_device() {
    let (mut backend, place) = (Fake::new(1), Home::new());
    applied(&mut backend, &place.store(), "defer20", &plain()).expect("applied");
    leaves(&mut backend);
    // The original namespace, inode 1, has no process: with access to all processes it counts as ended.
    let namespace = Identity { cookie: Some(2), inode: 2 };
    let peer_store = Store::at(place.0.to_path_buf(), "this boot".into(), namespace);
    for elsewhere in [backend.elsewhere.clone(), Whereabouts::Unknown] {
        backend.elsewhere = elsewhere;
        let outcome = all_back(&mut backend, &peer_store);
        assert!(matches!(&outcome.also[..], [OtherJournal::OtherNamespace { .. }]), "{outcome:?}");
        assert_eq!(place.files(), ["device-700.journal"]);
    }
}

#[test]
fn a_device_that_goes_back_and_forth_has_one_file_and_each_change_of_it_is_napkin_s() {
    for changes in 1..6_u64 {
        let (mut backend, place) = (Fake::new(2), Home::new());
        let original = backend.everything();
        let store = |nth: u64| {
            let namespace = Identity { cookie: Some(nth % 2), inode: nth % 2 };
            Store::at(place.0.to_path_buf(), "this boot".into(), namespace)
        };
        for nth in 0..changes {
            let policy = ["suspend20", "defer200", "base"][nth as usize % 3];
            applied(&mut backend, &store(nth), policy, &plain()).expect("nobody else's");
            assert_eq!(place.files(), ["device-700.journal"]);
            assert_eq!(difference(&mut backend, &store(nth + 1), "va").expect("readable").len(), {
                let now = backend.everything();
                original.iter().filter(|(place, value)| now.get(place) != Some(value)).count()
            });
        }
        assert!(all_back(&mut backend, &store(changes)).is_complete(), "{changes}");
        assert_eq!((backend.everything(), place.files()), (original, vec![]), "{changes}");
    }
}

#[test]
fn two_devices_that_had_one_number_have_a_file_each() {
    for at in 0..40 {
        let (mut backend, place) = (Fake::new(1), Home::new());
        let original: Vec<_> = backend.everything().into_values().collect();
        applied(&mut backend, &place.store(), "suspend20", &plain()).expect("applied");
        let device = leaves(&mut backend);
        // Another device gets its index, and a policy.
        let (mut other, _) = (Fake::new(1).devices.remove(0), ());
        other.napis[0].id += 100;
        returns(&mut backend, (other, 701), 7);
        let store = place.store();
        let done =
            crash::at(Some(at), || applied(&mut backend, &store, "defer200", &plain()).is_ok());
        let restored = all_back(&mut backend, &store);
        assert_eq!(restored.devices.iter().filter(|it| it.away.is_some()).count(), 1, "{at}");
        backend.devices.remove(0);
        backend.identities.remove(&7);
        returns(&mut backend, device, 9);
        assert!(all_back(&mut backend, &store).is_complete(), "{at}");
        assert_eq!(backend.everything().into_values().collect::<Vec<_>>(), original, "{at}");
        if done == Some(true) {
            assert!(at > 6, "no point was come to");
            break;
        }
    }
}

#[test]
fn a_file_of_another_device_of_another_namespace_is_nothing_to_one_that_is_named() {
    let (mut backend, place) = (Fake::new(1), Home::new());
    let request = |ifname| {
        let options = RestoreOptions { ifname, ..RestoreOptions::default() };
        let namespace = Identity { cookie: Some(2), inode: 2 };
        let peer_store = Store::at(place.0.to_path_buf(), "this boot".into(), namespace);
        move |backend: &mut Fake| restore(backend, &peer_store, &options).expect("readable")
    };
    applied(&mut backend, &place.store(), "defer20", &plain()).expect("applied");
    backend.hides_identities = true;
    let other = request(Some("vb".into()))(&mut backend);
    assert!(other.is_complete() && other.is_empty(), "{other:?}");
    assert!(!request(None)(&mut backend).is_complete(), "all of them are asked for");
    assert!(!request(Some("va".into()))(&mut backend).is_complete(), "it is this one");
    backend.hides_identities = false;
    assert!(request(Some("va".into()))(&mut backend).is_complete());
    assert_eq!(place.files(), [""; 0]);
}
