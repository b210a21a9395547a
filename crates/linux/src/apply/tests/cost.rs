//! The cost of a device with many queues, counted in comparisons, because times depend on the host.

use super::*;
use crate::place::COMPARED;

/// The number of comparisons of instances needed to apply policies, to compute the differences, to apply a
/// policy to instances that were created anew, and to put everything back. Excludes the comparisons of the fake
/// kernel.
fn compared(queues: u32) -> u64 {
    let (mut backend, home) = (Fake::new(queues), Home::new());
    let store = home.store();
    let before = COMPARED.get();
    applied(&mut backend, &store, "threaded", &plain()).expect("applied");
    applied(&mut backend, &store, "suspend20", &plain()).expect("applied");
    let different = difference(&mut backend, &store, "va").expect("readable");
    assert_eq!(different.len(), 3 * queues as usize);
    backend.recreate();
    applied(&mut backend, &store, "threaded", &plain()).expect("applied");
    let back = all_back(&mut backend, &store);
    assert!(back.is_complete(), "{back:?}");
    let hold = Temporary::apply(
        &mut backend,
        &store,
        &Request { policy: &policy("suspend20"), ifname: "va", options: &plain(), force: false },
    );
    hold.expect("applied").restore().expect("put back");
    assert!(home.files().is_empty());
    COMPARED.get() - before
}

#[test]
fn it_grows_with_the_queues_and_not_with_their_square() {
    let (few, many) = (compared(32), compared(128));
    // Four times as many instances, each found in a tree that is two levels deeper.
    assert!(many < few * 8, "{few} comparisons for 32 queues, {many} for 128");
}
