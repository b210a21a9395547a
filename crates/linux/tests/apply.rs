//! Policies applied to the running kernel, in unnamed network namespaces, and put back.

#[path = "../../kernel/tests/harness/namespace.rs"]
mod namespace;

use std::collections::BTreeMap;
use std::fs;
use std::os::fd::{AsFd, AsRawFd};
use std::path::{Path, PathBuf};
use std::process::Command;

use namespace::{fresh, needs_rights};
use napkin_kernel::namespace::Namespace;
use napkin_kernel::netlink::{Ethtool, GRO, Netdev, Route, VethConfig};
use napkin_kernel::{Setting, Settings, device};
use napkin_linux::apply::{
    Applied, ApplyError, Linux, Options, OtherJournal, Request, Restoration, RestoreOptions,
    Temporary, apply, restore,
};
use napkin_linux::journal::Store;
use napkin_os::procfs::{interrupts::Interrupts, irq, thread};
use napkin_os::rights::Right;
use napkin_os::sched::Class;
use napkin_policy::{PRESETS, Policy};
use napkin_testing::{Folder, ignore, needs, needs_cpus, needs_program, test};

/// A journal directory of this test.
struct Home(Folder);

impl Home {
    fn new(name: &str) -> Home {
        Home(Folder::absent(&format!("apply-{name}")))
    }

    /// The store, as seen from the calling thread's namespace.
    fn store(&self) -> Store {
        let boot = napkin_kernel::namespace::boot_id().expect("procfs");
        Store::at(self.0.to_path_buf(), boot, Namespace::identity().expect("procfs"))
    }

    fn files(&self) -> usize {
        fs::read_dir(&self.0).map_or(0, Iterator::count)
    }
}

/// Creates a veth pair with two queues, up, with GRO on: both ends have two instances.
fn pair(name: &str, peer: &str) {
    let mut route = Route::open().expect("a socket");
    let config = VethConfig { name, peer, peer_namespace: None, rx_queues: 2, tx_queues: 2 };
    route.add_veth(&config).expect("a pair");
    let mut ethtool = Ethtool::open().expect("ethtool");
    for name in [name, peer] {
        ethtool.set_features(name, &[(GRO[0], true)]).expect("GRO");
        let link = route.link(name).expect("it was made");
        route.set_up(link.ifindex).expect("up");
    }
}

/// Runs a test in a fresh namespace with `va` and `vb`.
fn lab(test: impl FnOnce() + Send) {
    fresh()
        .run(|| {
            pair("va", "vb");
            test();
        })
        .expect("entered");
}

/// The sysfs files of the devices visible here, except counters.
fn sysfs() -> BTreeMap<PathBuf, String> {
    let mut files = BTreeMap::new();
    for device in fs::read_dir("/sys/class/net").into_iter().flatten().flatten() {
        let mut directories = vec![device.path()];
        let queues = fs::read_dir(device.path().join("queues")).into_iter().flatten().flatten();
        directories.extend(queues.map(|queue| queue.path()));
        for file in directories.iter().flat_map(fs::read_dir).flatten().flatten() {
            let counts =
                |path: &Path| path.ends_with("carrier_changes") || path.ends_with("uevent");
            if file.path().is_file()
                && !counts(&file.path())
                && let Ok(text) = fs::read_to_string(file.path())
            {
                files.insert(file.path(), text);
            }
        }
    }
    files
}

/// Instances, sysfs files, CPUs of interrupts.
type Everything = (String, BTreeMap<PathBuf, String>, BTreeMap<u32, Option<Vec<usize>>>);

/// Returns all settings: of all instances, with the presence of their threads, all devices, and all interrupts.
/// A thread's id is not included, because it differs each time.
fn everything() -> Everything {
    let mut netdev = Netdev::open().expect("netdev");
    let mut napis = netdev.napis(None).expect("napi-get");
    napis.iter_mut().for_each(|napi| napi.pid = napi.pid.map(|_| 1));
    let irqs = Interrupts::read().expect("procfs").irqs.into_keys();
    let irqs = irqs.map(|number| (number, irq::affinity(number).ok())).collect();
    (format!("{napis:#?}"), sysfs(), irqs)
}

/// The threads of a device of this namespace, as the host sees them.
fn threads(ifname: &str) -> Vec<i32> {
    let mut netdev = Netdev::open().expect("netdev");
    let device = device::find(&mut netdev, ifname).expect("it is there");
    let pids: Vec<i32> = device.napis.iter().filter_map(|napi| napi.pid).collect();
    for pid in &pids {
        let comm = thread::comm(*pid).expect("it lives");
        assert!(comm.starts_with("napi/"), "{comm}");
    }
    pids
}

fn applied(home: &Home, text: &str, options: &Options) -> Result<Applied, ApplyError> {
    let policy: Policy = text.parse().expect(text);
    let mut world = Linux::open().expect("the kernel");
    let request = Request { policy: &policy, ifname: "va", options, force: false };
    apply(&mut world, &home.store(), &request)
}

fn restored(home: &Home) -> Restoration {
    let mut world = Linux::open().expect("the kernel");
    restore(&mut world, &home.store(), &RestoreOptions::default()).expect("readable")
}

fn set(queue: u32, setting: Setting, value: u64) {
    let mut netdev = Netdev::open().expect("netdev");
    let device = device::read(&mut netdev, "va").expect("it is there");
    let napi = device.of_rx_queue(queue).expect("a queue");
    netdev.set_napi(napi.id, setting, value).expect("it takes it");
}

/// With `NAPKIN_LONG=1` it makes a hundred rounds.
#[test]
fn every_policy_applied_and_restored_again_and_again_leaves_everything_as_it_was() {
    let long = std::env::var_os("NAPKIN_LONG").is_some_and(|it| it == "1");
    let rounds = if long { 100 } else { 10 };
    let host = everything();
    lab(|| {
        let home = Home::new("rounds");
        pair("vc", "vd");
        // Not the defaults, so that the test distinguishes the previous values from them.
        set(0, Setting::GroFlushTimeout, 50_000);
        set(1, Setting::DeferHardIrqs, 3);
        let before = everything();
        let mut refused = Vec::new();
        for round in 0..rounds {
            for preset in PRESETS {
                match applied(&home, preset.name, &Options::default()) {
                    Ok(_) => {}
                    Err(ApplyError::Plan(_)) if round == 0 => refused.push(preset.name),
                    Err(ApplyError::Plan(_)) => assert!(refused.contains(&preset.name)),
                    Err(error) => panic!("{}: {error}", preset.name),
                }
                if refused.contains(&preset.name) {
                    assert_eq!(everything(), before, "{} was refused", preset.name);
                }
                assert!(restored(&home).is_complete(), "{}", preset.name);
                assert_eq!(everything(), before, "{}, round {round}", preset.name);
                assert!(threads("va").is_empty());
            }
        }
        assert_eq!(home.files(), 0);
        assert!(refused.contains(&"hold") && !refused.contains(&"suspend20"), "{refused:?}");
    });
    let now = everything();
    assert_eq!((now.1, now.2), (host.1, host.2), "devices of the host");
}

#[test]
fn devices_that_were_not_named_are_not_touched() {
    lab(|| {
        let home = Home::new("untouched");
        pair("vc", "vd");
        let others = || {
            let mut netdev = Netdev::open().expect("netdev");
            let devices = device::read_all(&mut netdev).expect("devices");
            devices.into_iter().filter(|it| it.ifname != "va").collect::<Vec<_>>()
        };
        let (before, mut files) = (others(), sysfs());
        let options = Options { cpus: vec![0], ..Options::default() };
        applied(&home, "threaded", &options).expect("applied");
        assert_eq!(others(), before);
        let mut now = sysfs();
        for files in [&mut files, &mut now] {
            files.retain(|path, _| !path.starts_with("/sys/class/net/va"));
        }
        assert_eq!(now, files);
        assert!(restored(&home).is_complete());
    });
}

#[test]
fn a_threaded_device_has_threads_where_and_as_they_were_asked_for() {
    needs_cpus(2);
    let [one, other, ..] = napkin_os::sched::usable_cpus()[..] else { unreachable!("two CPUs") };
    lab(|| {
        let home = Home::new("threads");
        let options = Options { cpus: vec![other, one], rt: Some(10), ..Options::default() };
        applied(&home, "threaded", &options).expect("applied");
        let mut netdev = Netdev::open().expect("netdev");
        let device = device::read(&mut netdev, "va").expect("it is there");
        let thread = |queue| device.of_rx_queue(queue).and_then(|napi| napi.pid).expect("a thread");
        for (queue, cpu) in [(0, other), (1, one)] {
            let pid = thread(queue);
            assert_eq!(napkin_os::sched::affinity(Some(pid)).expect("it lives"), [cpu]);
            assert_eq!(napkin_os::sched::class(Some(pid)).expect("it lives"), Class::Fifo(10));
        }
        let second = applied(&home, "threaded", &options).expect("applied");
        assert_eq!(second.done, Vec::new(), "twice is once");
        // Another program's placement of a thread is reported like any other change. It differs from what
        // napkin set and, even with two CPUs, from all CPUs, where the thread runs by default.
        napkin_os::sched::pin(Some(thread(0)), &[one]).expect("it may");
        let error = applied(&home, "base", &Options::default()).expect_err("refused");
        assert!(error.to_string().contains("thread-cpus of va queue 0"), "{error}");
        assert!(restored(&home).is_complete(), "the thread goes, and its CPUs with it");
        assert!(threads("va").is_empty());
    });
}

#[test]
fn threads_of_somebody_s_come_back_where_they_were() {
    lab(|| {
        let home = Home::new("theirs");
        set(0, Setting::Threaded, 1);
        let pid = threads("va")[0];
        napkin_os::sched::pin(Some(pid), &[0]).expect("it may");
        napkin_os::sched::classify(Some(pid), Class::Fifo(4)).expect("it may");
        applied(&home, "defer20", &Options::default()).expect("applied");
        assert!(threads("va").is_empty());
        assert!(restored(&home).is_complete());
        let pid = threads("va")[0];
        assert_eq!(napkin_os::sched::affinity(Some(pid)).expect("it lives"), [0]);
        assert_eq!(napkin_os::sched::class(Some(pid)).expect("it lives"), Class::Fifo(4));
        assert_eq!(home.files(), 0);
    });
}

#[test]
fn threaded_busy_poll_is_refused_where_the_kernel_lacks_it() {
    lab(|| {
        let home = Home::new("busy");
        let ability = Netdev::open().and_then(|mut it| it.ability()).expect("netdev");
        if ability.largest(Setting::Threaded).is_some_and(|largest| largest >= 2) {
            ignore("this kernel has threaded busy poll");
        }
        let before = everything();
        let error = applied(&home, "threaded-busy-poll", &Options::default()).expect_err("refused");
        let message = error.to_string();
        assert!(
            message.contains("Linux 6.19") && message.ends_with("can do is threaded"),
            "{message}"
        );
        assert_eq!((everything(), home.files()), (before, 0));
    });
}

#[test]
fn a_device_that_was_made_anew_is_put_back_all_the_same() {
    lab(|| {
        let home = Home::new("anew");
        let mut route = Route::open().expect("a socket");
        let index = route.link("va").expect("it is there").ifindex;
        let ids = || {
            let mut netdev = Netdev::open().expect("netdev");
            let device = device::find(&mut netdev, "va").expect("it is there");
            device.napis.iter().map(|napi| (napi.id, napi.settings)).collect::<Vec<_>>()
        };
        let before = ids();
        applied(&home, "suspend20", &Options::default()).expect("applied");
        route.set_down(index).expect("down");
        let away = restored(&home);
        assert!(!away.is_complete() && away.devices[0].missing.len() == 6, "{away:?}");
        route.set_up(index).expect("up");
        assert_ne!(
            ids().iter().map(|it| it.0).collect::<Vec<_>>(),
            before.iter().map(|it| it.0).collect::<Vec<_>>()
        );
        assert!(restored(&home).is_complete());
        assert_eq!(
            ids().iter().map(|it| it.1).collect::<Vec<_>>(),
            before.iter().map(|it| it.1).collect::<Vec<_>>()
        );
        assert_eq!(home.files(), 0);

        // A hold on top of it finds its queues again, too.
        let policy: Policy = "defer20".parse().expect("a preset");
        let options = Options::default();
        let request = Request { policy: &policy, ifname: "va", options: &options, force: false };
        let hold = Temporary::apply(Linux::open().expect("the kernel"), &home.store(), &request);
        let hold = hold.expect("applied");
        route.set_down(index).expect("down");
        route.set_up(index).expect("up");
        assert!(hold.restore().expect("it is there").is_complete());
        assert_eq!(
            ids().iter().map(|it| it.1).collect::<Vec<_>>(),
            before.iter().map(|it| it.1).collect::<Vec<_>>()
        );

        applied(&home, "defer20", &Options::default()).expect("applied");
        route.delete(index).expect("deleted");
        let gone = restored(&home);
        assert!(gone.is_complete() && gone.devices[0].gone, "{gone:?}");
        assert_eq!(home.files(), 0);
    });
}

fn ip(args: &str) {
    let status = Command::new("ip").args(args.split(' ')).status().expect("it is installed");
    assert!(status.success(), "ip {args}: {status}");
}

/// A file that refers to a namespace while this process lives.
fn file(namespace: &Namespace) -> String {
    format!("/proc/{}/fd/{}", std::process::id(), namespace.as_fd().as_raw_fd())
}

/// The settings of each instance of a device, in list order.
fn settings(ifname: &str) -> Vec<Settings> {
    let mut netdev = Netdev::open().expect("netdev");
    let device = device::find(&mut netdev, ifname).expect("it is there");
    device.napis.iter().map(|napi| napi.settings).collect()
}

#[test]
fn a_device_that_moves_to_another_namespace_is_told_and_put_back_there() {
    needs_rights(&[Right::SysPtrace]);
    needs_program("ip");
    let host = fs::read_link("/proc/self/ns/pid").expect("procfs");
    needs(host.as_os_str() == "pid:[4026531836]", "the host's own PID namespace");
    let (one, other) = (fresh(), fresh());
    let home = Home::new("moves");
    let before = one.run(|| {
        pair("va", "vb");
        let before = settings("va");
        applied(&home, "suspend20", &Options::default()).expect("applied");
        ip(&format!("link set va netns {}", file(&other)));
        let seen = restored(&home);
        let away = seen.devices[0].away.clone().expect("it is not here");
        assert!(away.contains("as va") && away.contains("nsenter --net=/proc/"), "{away}");
        assert!(!seen.is_complete());
        before
    });
    let before = before.expect("entered");
    assert_eq!(home.files(), 1, "kept");
    other
        .run(|| {
            ip("link set va name eth0");
            ip("link set eth0 up");
            let seen = restored(&home);
            assert!(seen.is_complete() && seen.devices.len() == 1, "{seen:?}");
            assert_eq!(settings("eth0"), before);
        })
        .expect("entered");
    assert_eq!(home.files(), 0);
}

#[test]
fn a_device_that_moves_back_and_forth_has_one_journal_and_is_put_back_wherever_it_is() {
    needs_program("ip");
    for moves in 1..4 {
        let namespaces = [fresh(), fresh()];
        let home = Home::new("to and fro");
        let before = namespaces[0].run(|| {
            pair("va", "vb");
            settings("va")
        });
        for nth in 0..moves {
            let next = file(&namespaces[(nth + 1) % 2]);
            let change = || {
                ip("link set va up");
                applied(&home, ["suspend20", "defer200"][nth % 2], &Options::default())
                    .expect("nobody else's");
                assert_eq!(home.files(), 1);
                ip(&format!("link set va netns {next}"));
            };
            namespaces[nth % 2].run(change).expect("entered");
        }
        let seen = namespaces[moves % 2].run(|| {
            ip("link set va up");
            (restored(&home), settings("va"))
        });
        let (seen, now) = seen.expect("entered");
        assert!(seen.is_complete() && seen.devices.len() == 1, "{seen:?}");
        assert_eq!((now, home.files()), (before.expect("entered"), 0));
    }
}

#[test]
fn a_device_that_was_deleted_and_made_again_with_the_same_number_keeps_what_it_has() {
    lab(|| {
        needs_program("ip");
        let home = Home::new("again");
        let mut route = Route::open().expect("a socket");
        let index = route.link("va").expect("it is there").ifindex;
        applied(&home, "defer20", &Options::default()).expect("applied");
        route.delete(index).expect("deleted");
        ip(&format!(
            "link add va index {index} numtxqueues 2 numrxqueues 2 type veth peer name vb \
             numtxqueues 2 numrxqueues 2"
        ));
        Ethtool::open().expect("ethtool").set_features("va", &[(GRO[0], true)]).expect("GRO");
        for name in ["va", "vb"] {
            let made = route.link(name).expect("it was made").ifindex;
            route.set_up(made).expect("up");
        }
        // This device itself has the value that napkin had set on the other one.
        set(0, Setting::GroFlushTimeout, 20_000);
        let its = settings("va");
        let seen = restored(&home);
        assert!(seen.is_complete() && seen.devices[0].gone, "{seen:?}");
        assert_eq!((settings("va"), home.files()), (its, 0));
    });
}

#[test]
fn what_was_changed_in_a_namespace_that_is_gone_is_dropped_and_told() {
    // Without access to every process of the host, it is unknown whether the namespace still exists.
    needs_rights(&[Right::SysPtrace]);
    let host = fs::read_link("/proc/self/ns/pid").expect("procfs");
    needs(host.as_os_str() == "pid:[4026531836]", "the host's own PID namespace");
    let (one, other) = (fresh(), fresh());
    let home = Home::new("gone");
    one.run(|| {
        pair("va", "vb");
        applied(&home, "defer20", &Options::default()).expect("applied");
    })
    .expect("entered");
    let seen = other.run(|| restored(&home)).expect("entered");
    assert!(matches!(&seen.also[..], [OtherJournal::OtherNamespace { .. }]), "{seen:?}");
    assert_eq!(home.files(), 1, "left alone");
    drop(one);
    // The kernel deletes the namespace asynchronously; it counts as gone because it cannot be entered any more.
    let seen = other.run(|| restored(&home)).expect("entered");
    assert!(matches!(&seen.also[..], [OtherJournal::NamespaceGone { .. }]), "{seen:?}");
    assert!(seen.is_complete());
    assert_eq!(home.files(), 0);
}

#[test]
fn somebody_else_s_change_is_told_and_left() {
    lab(|| {
        let home = Home::new("foreign");
        applied(&home, "defer20", &Options::default()).expect("applied");
        set(0, Setting::GroFlushTimeout, 50_000);
        let expected =
            "gro-flush-timeout of va queue 0 is 50us; napkin had set 20us, before it was 0";
        let error = applied(&home, "base", &Options::default()).expect_err("refused");
        assert!(error.to_string().contains(expected), "{error}");
        let seen = restored(&home);
        assert_eq!(seen.devices[0].foreign[0].to_string(), expected);
        assert!(!seen.is_complete());
        set(0, Setting::GroFlushTimeout, 20_000);
        assert!(restored(&home).is_complete(), "it is what napkin had set again");
        assert_eq!(home.files(), 0);
    });
}

napkin_testing::main!();
