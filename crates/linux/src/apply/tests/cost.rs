//! What a device of many queues takes: counted, for the time is the machine's.

use super::*;
use crate::place::COMPARED;

/// How many comparisons of instances it takes to apply policies, to see what is different, to apply
/// one to instances that were made anew, and to put everything back. What the fake kernel compares
/// is left out.
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
    // Four times as many, and each is found in a tree that is two levels deeper.
    assert!(many < few * 8, "{few} comparisons for 32 queues, {many} for 128");
}
