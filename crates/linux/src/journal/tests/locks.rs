//! Locks: one holder at a time, which can be identified.

use std::sync::atomic::{AtomicU32, Ordering};

use super::*;

#[test]
fn a_lock_says_who_has_it_and_ends_with_its_holder() {
    let home = Home::new();
    let lock = home.store().lock(7, "va", None).expect("nobody has it");
    let error = home.store().lock(7, "va", None).expect_err("held");
    let JournalError::Locked { what, holder } = &error else { panic!("{error}") };
    assert_eq!((what.as_str(), holder.pid), ("va", std::process::id()));
    assert!(error.to_string().contains(&format!("process {} (", std::process::id())), "{error}");
    assert!(!holder.command.is_empty());
    for (ago, expected) in [(10, " s now"), (300, "for 5 min now"), (7_300, "for 2 h now")] {
        let holder = Holder { since: holder.since - ago, ..holder.clone() };
        assert!(holder.to_string().ends_with(expected), "{holder}");
        assert!(holder.to_string().starts_with(&holder.name()), "{holder}");
    }
    let later = Holder { since: holder.since + 5, ..holder.clone() };
    assert_eq!(holder.name(), later.name(), "it does not say since when");
    assert_eq!(Holder::default().name(), Holder::default().to_string());
    home.store().lock(8, "vb", None).expect("another device is another's");
    drop(lock);
    drop(home.store().lock(7, "va", None).expect("given up"));
    // A file that a dead holder left is no lock.
    fs::write(home.0.join("device-c1-7.lock"), b"{\"pid\":1,\"command\":\"x\",\"since\":0}")
        .expect("left");
    home.store().lock(7, "va", None).expect("nobody has it");
}

#[test]
fn who_holds_a_lock_is_known_without_taking_it() {
    let home = Home::new();
    let store = home.store();
    let holders = || [store.holder(7, None), store.process_holder(9, 5)];
    let nobody = || holders().iter().all(Option::is_none);
    assert!(nobody());
    let device = store.lock(7, "va", None).expect("nobody has it");
    let process = store.lock_process(9, 5).expect("nobody has it");
    for holder in holders() {
        assert_eq!(holder.expect("it is held").pid, std::process::id());
    }
    drop((device, process));
    assert!(nobody());
    fs::write(home.0.join("device-c1-7.lock"), "{}").expect("left by one that has died");
    assert!(nobody());
}

#[test]
fn a_lock_has_one_holder_however_many_come_and_go() {
    let home = Home::new();
    let holders = AtomicU32::new(0);
    std::thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| {
                for _ in 0..3_000 {
                    let Ok(lock) = home.store().lock(7, "va", None) else { continue };
                    assert_eq!(holders.fetch_add(1, Ordering::SeqCst), 0, "two at once");
                    std::thread::yield_now();
                    holders.fetch_sub(1, Ordering::SeqCst);
                    drop(lock);
                }
            });
        }
    });
}

#[test]
fn a_lock_is_held_without_a_word_where_there_is_no_room_for_one() {
    let home = Home::new();
    drop(home.store().lock(7, "va", None).expect("nobody has it"));
    fault::disk::fill(true);
    let lock = home.store().lock(7, "va", None);
    fault::disk::fill(false);
    let lock = lock.expect("nobody has it");
    let error = home.store().lock(7, "va", None).expect_err("held");
    assert!(error.to_string().contains("va is held by another napkin"), "{error}");
    drop(lock);
}
