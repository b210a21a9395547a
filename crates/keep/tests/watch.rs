//! Tests that a sleeping watcher is woken by changes that others make, on the kernel's own files.

use std::collections::BTreeMap;
use std::fs::{self, Permissions};
use std::os::fd::{AsFd, AsRawFd};
use std::os::unix::fs::PermissionsExt;
use std::path::PathBuf;
use std::process::Command;
use std::time::Duration;

use napkin_keep::{Follow, Watch};
use napkin_kernel::namespace::Namespace;
use napkin_kernel::netlink::{Route, VethConfig};
use napkin_os::rights::Right;
use napkin_os::signals::Signals;
use napkin_testing::{needs, needs_program, test, until};

const LONG: Option<Duration> = Some(Duration::from_secs(30));

#[test]
fn a_program_s_write_to_an_interrupt_s_cpus_is_noticed_by_either_name() {
    let irqs = fs::read_dir("/proc/irq").into_iter().flatten().flatten();
    // Writes back the current value: some interrupts cannot be moved, and refuse even that.
    let found = irqs.map(|irq| irq.path()).find(|irq| {
        let file = irq.join("smp_affinity_list");
        fs::read(&file).is_ok_and(|cpus| fs::write(&file, cpus).is_ok())
    });
    needs(found.is_some(), "an interrupt whose CPUs may be set");
    let irq = found.expect("one");
    let names = ["smp_affinity", "smp_affinity_list"].map(|name| irq.join(name));
    let paths: BTreeMap<PathBuf, Follow> =
        names.iter().map(|name| (name.clone(), Follow::Writes)).collect();
    let signals = Signals::block_termination().expect("blocked");
    let signal = signals.readable().expect("a descriptor");
    let mut watch = Watch::open(&std::env::temp_dir().join("napkin-none")).expect("it listens");
    assert!(watch.follow(&paths), "it was not watched before");
    assert!(!watch.follow(&paths), "now it is the same file");
    watch.take(signal.as_fd()).expect("taken");
    for name in &names {
        fs::write(name, fs::read(name).expect("it is there")).expect("it takes what it is");
        watch.wait(signal.as_fd(), LONG).expect("it waits");
        let woken = watch.take(signal.as_fd()).expect("taken");
        assert!(woken.kernel && !woken.signal && !woken.wishes, "{woken:?}");
    }
    // A write to a file that is no longer followed does not wake.
    watch.follow(&BTreeMap::new());
    fs::write(&names[0], fs::read(&names[0]).expect("there")).expect("it takes what it is");
    watch.wait(signal.as_fd(), Some(Duration::from_millis(20))).expect("it waits");
}

#[test]
fn a_file_that_cannot_be_watched_is_told_of_and_the_others_are_watched() {
    let directory = std::env::temp_dir().join(format!("napkin-unwatched-{}", std::process::id()));
    fs::create_dir_all(&directory).expect("a directory");
    let [closed, open] = ["closed", "open"].map(|name| directory.join(name));
    fs::write(&open, "").expect("written");
    fs::write(&closed, "").expect("written");
    fs::set_permissions(&closed, Permissions::from_mode(0o0)).expect("its owner's");
    let refused = fs::File::open(&closed).is_err();
    let mut watch = Watch::open(&directory).expect("it listens");
    let mut paths: BTreeMap<PathBuf, Follow> =
        [&closed, &open].map(|path| (path.clone(), Follow::Writes)).into();
    assert!(watch.follow(&paths), "the other one is watched");
    // Root may watch both.
    let reasons: Vec<String> = watch.unfollowed().cloned().collect();
    assert_eq!(reasons.len(), usize::from(refused), "{reasons:?}");
    assert!(reasons.iter().all(|why| why.contains("napkin-unwatched")), "{reasons:?}");
    paths.remove(&closed);
    assert!(!watch.follow(&paths));
    assert_eq!(watch.unfollowed().next(), None, "it is over");
    watch.follow(&[(directory.join("none"), Follow::Writes)].into());
    assert_eq!(watch.unfollowed().next(), None, "others tell of what has gone");
    watch.follow(&[(open.join("below"), Follow::Writes)].into());
    assert_eq!(watch.unfollowed().count(), 1, "it cannot be opened");
    let _ = fs::remove_dir_all(&directory);
}

#[test]
fn what_is_followed_stays_so_where_no_descriptor_is_left() {
    let directory = std::env::temp_dir().join(format!("napkin-short-{}", std::process::id()));
    fs::create_dir_all(&directory).expect("a directory");
    let [first, second] = ["first", "second"].map(|name| directory.join(name));
    for file in [&first, &second] {
        fs::write(file, "").expect("written");
    }
    let signals = Signals::block_termination().expect("blocked");
    let signal = signals.readable().expect("a descriptor");
    let mut watch = Watch::open(&directory.join("none")).expect("it listens");
    let mut paths: BTreeMap<PathBuf, Follow> = [(first.clone(), Follow::Writes)].into();
    assert!(watch.follow(&paths), "it was not watched before");
    watch.take(signal.as_fd()).expect("taken");
    watch.spare(u64::MAX);
    paths.insert(second.clone(), Follow::Writes);
    assert!(!watch.follow(&paths), "nothing is opened");
    let reasons: Vec<String> = watch.unfollowed().cloned().collect();
    assert!(matches!(&reasons[..], [why] if why.contains("ulimit -n")), "{reasons:?}");
    fs::write(&second, "x").expect("written");
    fs::write(&first, "x").expect("written");
    watch.wait(signal.as_fd(), LONG).expect("it waits");
    let woken = watch.take(signal.as_fd()).expect("taken");
    assert!(woken.kernel, "{woken:?}");
    // Another file of the same name is not the watched one.
    fs::write(directory.join("other"), "").expect("written");
    fs::rename(directory.join("other"), &first).expect("renamed");
    assert!(!watch.follow(&paths), "nothing is opened");
    let reasons: Vec<String> = watch.unfollowed().cloned().collect();
    assert!(matches!(&reasons[..], [why] if why.contains("/first")), "{reasons:?}");
    watch.spare(0);
    assert!(watch.follow(&paths), "the second is watched");
    assert_eq!(watch.unfollowed().next(), None);
    let _ = fs::remove_dir_all(&directory);
}

#[test]
fn a_device_that_was_deleted_is_told_from_one_that_was_moved() {
    for right in [Right::SysAdmin, Right::NetAdmin] {
        needs(right.held(), right);
    }
    needs_program("ip");
    let other = Namespace::new().expect("a namespace");
    let namespace = format!("/proc/{}/fd/{}", std::process::id(), other.as_fd().as_raw_fd());
    let inside = || {
        let signals = Signals::block_termination().expect("blocked");
        let signal = signals.readable().expect("a descriptor");
        let directory = std::env::temp_dir().join("napkin-none");
        let mut watch = Watch::open(&directory).expect("it listens");
        let mut route = Route::open().expect("a socket");
        let config =
            VethConfig { name: "va", peer: "vb", peer_namespace: None, rx_queues: 1, tx_queues: 1 };
        let index = route.add_veth(&config).expect("a veth");
        watch.track(index);
        route.set_up(index).expect("up");
        watch.track(index);
        // Notices arrive by the time the call returns.
        assert!(watch.take(signal.as_fd()).expect("taken").notice);
        assert!(!watch.may_have_left(index), "it is here");
        route.delete(index).expect("deleted");
        assert!(watch.was_deleted(index));
        assert!(!watch.was_deleted(index), "it is minded no more");

        let index = route.add_veth(&config).expect("a veth");
        watch.track(index);
        let moved = Command::new("ip").args(["link", "set", "va", "netns", &namespace]).status();
        assert!(moved.expect("it runs").success());
        until("a notice that it has left", || {
            watch.take(signal.as_fd()).expect("taken");
            watch.may_have_left(index)
        });
        assert!(!watch.was_deleted(index), "it is elsewhere");
    };
    Namespace::new().expect("a namespace").run(inside).expect("entered");
}

#[test]
fn wishes_are_to_be_read_once_their_directory_can_be_watched_again() {
    let directory = std::env::temp_dir().join(format!("napkin-again-{}", std::process::id()));
    fs::create_dir_all(&directory).expect("a directory");
    fs::set_permissions(&directory, Permissions::from_mode(0o0)).expect("its owner's");
    // Root may watch it all the same.
    let refused = fs::read_dir(&directory).is_err();
    let mut watch = Watch::open(&directory).expect("it listens");
    assert_eq!(watch.unfollowed().count(), usize::from(refused));
    watch.follow(&BTreeMap::new());
    assert!(!watch.take_rewatched(), "it still cannot be watched, or always could");
    fs::set_permissions(&directory, Permissions::from_mode(0o700)).expect("its owner's");
    watch.follow(&BTreeMap::new());
    assert_eq!(watch.take_rewatched(), refused);
    assert!(!watch.take_rewatched(), "it was told");
    let _ = fs::remove_dir_all(&directory);
}

#[test]
fn links_that_come_and_wishes_that_are_written_are_told_apart() {
    for right in [Right::SysAdmin, Right::NetAdmin] {
        needs(right.held(), right);
    }
    let directory = std::env::temp_dir().join(format!("napkin-watch-{}", std::process::id()));
    let _ = fs::remove_dir_all(&directory);
    fs::create_dir(&directory).expect("a directory");
    let etc = directory.join("etc");
    let inside = || {
        let signals = Signals::block_termination().expect("blocked");
        let signal = signals.readable().expect("a descriptor");
        let mut watch = Watch::open(&etc).expect("it listens");
        let mut woken = || {
            watch.wait(signal.as_fd(), LONG).expect("it waits");
            watch.take(signal.as_fd()).expect("taken")
        };
        fs::create_dir(&etc).expect("made");
        assert!(woken().wishes, "the directory itself is new");
        fs::write(etc.join("a.toml"), "x").expect("written");
        assert!(woken().wishes);
        std::os::unix::fs::symlink(&directory, etc.join("b.toml")).expect("a link");
        assert!(woken().wishes, "a link is not written to");
        let config =
            VethConfig { name: "va", peer: "vb", peer_namespace: None, rx_queues: 1, tx_queues: 1 };
        Route::open().and_then(|mut route| route.add_veth(&config)).expect("a veth");
        let event = woken();
        assert!(event.kernel && !event.wishes, "{event:?}");
    };
    Namespace::new().expect("a namespace").run(inside).expect("entered");
    let _ = fs::remove_dir_all(&directory);
}

napkin_testing::main!();
