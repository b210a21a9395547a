//! Tests of SIGBUS handling, each in a process of its own.

use std::os::unix::process::ExitStatusExt;
use std::process::{Command, Output, exit};

use rustix::fs::{MemfdFlags, ftruncate, memfd_create};
use rustix::mm::mmap;

use super::*;

const PAGE: usize = 4096;

/// A page of a file that has been truncated since, mapped for ever.
fn truncated() -> NonNull<u8> {
    let file = memfd_create("napkin-test", MemfdFlags::CLOEXEC).expect("a memfd");
    ftruncate(&file, PAGE as u64).expect("it grows");
    // SAFETY: a new mapping at an address of the kernel's choice.
    let at =
        unsafe { mmap(std::ptr::null_mut(), PAGE, ProtFlags::READ, MapFlags::SHARED, &file, 0) };
    ftruncate(&file, 0).expect("it shrinks");
    NonNull::new(at.expect("a mapping").cast()).expect("not at 0")
}

fn read(at: NonNull<u8>) -> u8 {
    // SAFETY: it was mapped; whether the access succeeds is the test.
    unsafe { at.read_volatile() }
}

/// Sends the signal to this thread.
fn send() {
    // SAFETY: the effect of the signal is the test.
    unsafe { libc::raise(libc::SIGBUS) };
}

/// A peer truncates a file of its memory: the access succeeds.
fn a_peer_truncates() {
    let mapping = truncated();
    let watched = Watched::new(mapping, PAGE).expect("there is a place");
    assert_eq!((read(mapping), watched.truncated()), (0, true));
}

/// Sets the action for the signal, as the program that uses this library would.
fn before(action: usize, flags: c_int) {
    // SAFETY: zeros are a valid action.
    let mut action_before: libc::sigaction = unsafe { std::mem::zeroed() };
    (action_before.sa_sigaction, action_before.sa_flags) = (action, flags);
    // SAFETY: a plain action, or a handler below, which is async-signal-safe.
    let set =
        unsafe { libc::sigaction(libc::SIGBUS, &raw const action_before, std::ptr::null_mut()) };
    assert_eq!(set, 0, "{}", io::Error::last_os_error());
}

/// Runs `act` in a process of its own, by running the calling test, named `name`, again. Returns its status and
/// output.
fn in_child(name: &str, act: impl FnOnce()) -> Output {
    const CHILD: &str = "NAPKIN_TEST_SIGBUS";
    if std::env::var_os(CHILD).is_some() {
        act();
        exit(0);
    }
    let this = std::env::current_exe().expect("a path");
    let name = format!("vhost::sigbus::tests::{name}");
    let arguments = ["--exact", &name, "--nocapture"];
    let ended = Command::new(this).args(arguments).env(CHILD, "").output().expect("it starts");
    // The child exits in `act` or is killed; a run without this test would print a result.
    assert!(!printed(&ended, "test result"), "{ended:?}");
    ended
}

fn killed(ended: &Output) {
    assert_eq!(ended.status.signal(), Some(libc::SIGBUS), "{ended:?}");
}

fn printed(ended: &Output, what: &str) -> bool {
    String::from_utf8_lossy(&ended.stdout).contains(what)
}

#[test]
fn only_what_is_watched_is_mended_and_any_other_access_ends_the_process_as_ever() {
    let name = "only_what_is_watched_is_mended_and_any_other_access_ends_the_process_as_ever";
    killed(&in_child(name, || {
        a_peer_truncates();
        read(truncated());
    }));
}

#[test]
fn where_nothing_was_done_about_it_one_that_is_sent_ends_the_process_at_once() {
    let name = "where_nothing_was_done_about_it_one_that_is_sent_ends_the_process_at_once";
    let ended = in_child(name, || {
        before(libc::SIG_DFL, 0);
        a_peer_truncates();
        send();
        println!("it lives");
    });
    killed(&ended);
    assert!(!printed(&ended, "it lives"), "{ended:?}");
}

#[test]
fn where_it_was_ignored_one_that_is_sent_is_and_an_access_is_not() {
    let ended = in_child("where_it_was_ignored_one_that_is_sent_is_and_an_access_is_not", || {
        before(libc::SIG_IGN, 0);
        a_peer_truncates();
        send();
        a_peer_truncates();
        send();
        println!("it lives");
        read(truncated());
    });
    killed(&ended);
    assert!(printed(&ended, "it lives"), "{ended:?}");
}

static CALLED: AtomicUsize = AtomicUsize::new(0);
static AT: AtomicUsize = AtomicUsize::new(0);

/// Counts calls; and, as our handler does, maps a page at the address, so that the process continues.
extern "C" fn program_handler(_: c_int, info: *mut libc::siginfo_t, _: *mut libc::c_void) {
    // SAFETY: the kernel passes it, by way of our handler.
    let about = unsafe { &*info };
    CALLED.fetch_add(1, Relaxed);
    if about.si_code > 0 {
        // SAFETY: the signal is for an access.
        let at = unsafe { about.si_addr() };
        AT.store(at.addr(), Relaxed);
        // SAFETY: a page that a test has mapped.
        let _ = unsafe {
            mmap_anonymous(at, PAGE, ProtFlags::READ, MapFlags::PRIVATE | MapFlags::FIXED)
        };
    }
}

#[test]
fn the_handler_of_before_is_called_each_time_and_what_is_watched_is_mended_as_well() {
    let name = "the_handler_of_before_is_called_each_time_and_what_is_watched_is_mended_as_well";
    let ended = in_child(name, || {
        before(program_handler as *const () as usize, libc::SA_SIGINFO);
        for round in 1..4 {
            a_peer_truncates();
            let other = truncated();
            assert_eq!(read(other), 0);
            assert_eq!(AT.load(Relaxed), other.as_ptr().addr());
            send();
            assert_eq!(CALLED.load(Relaxed), 2 * round, "of ours it hears nothing");
        }
    });
    assert!(ended.status.success(), "{ended:?}");
}

#[test]
fn a_handler_of_before_that_is_called_once_is_and_the_next_one_ends_the_process() {
    let name = "a_handler_of_before_that_is_called_once_is_and_the_next_one_ends_the_process";
    let ended = in_child(name, || {
        before(program_handler as *const () as usize, libc::SA_SIGINFO | libc::SA_RESETHAND);
        a_peer_truncates();
        send();
        assert_eq!(CALLED.load(Relaxed), 1);
        a_peer_truncates();
        println!("it lives");
        send();
        println!("for ever");
    });
    killed(&ended);
    assert!(printed(&ended, "it lives") && !printed(&ended, "for ever"), "{ended:?}");
}

#[test]
fn a_handler_of_before_that_gives_itself_up_leaves_ours() {
    // The handler of Rust's runtime: it handles stack overflows, and resets the action to the default for all else.
    let name = "a_handler_of_before_that_gives_itself_up_leaves_ours";
    let ended = in_child(name, || {
        a_peer_truncates();
        send();
        a_peer_truncates();
        println!("it lives");
        send();
        println!("for ever");
    });
    killed(&ended);
    assert!(printed(&ended, "it lives") && !printed(&ended, "for ever"), "{ended:?}");
}

#[test]
fn sixty_four_devices_have_places_also_while_all_of_their_peers_give_other_memory() {
    let name = "sixty_four_devices_have_places_also_while_all_of_their_peers_give_other_memory";
    let ended = in_child(name, || {
        let page = truncated();
        // The regions, and the in-flight memory.
        let each = 2 * (MAX_REGIONS + 1);
        let watch = |_| Watched::new(page, PAGE);
        let all: Vec<_> = (0..64 * each).map(watch).collect::<io::Result<_>>().expect("places");
        assert!(watch(0).is_err(), "no more than {}", all.len());
    });
    assert!(ended.status.success(), "{ended:?}");
}
