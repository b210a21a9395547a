//! The netlink interfaces against the running kernel, in unnamed network namespaces.

#[path = "../../kernel/tests/harness/namespace.rs"]
mod namespace;

use std::net::{Ipv4Addr, UdpSocket};
use std::os::fd::AsFd;

use namespace::fresh;
use napkin_kernel::namespace::{Namespace, NamespaceError, boot_id};
use napkin_kernel::netlink::{
    Ethtool, GRO, LinkRecord, Netdev, NetlinkError, Operation, QueueKind, Route, TSO, VethConfig,
};
use napkin_kernel::{Setting, Settings, device};
use napkin_linux::apply::{Backend, Linux, Target, lifelines};
use napkin_testing::{KillOnDrop, needs, test};
use rustix::io::Errno;
use rustix::thread::{CapabilitySet, CapabilitySets, set_capabilities};

/// Creates a veth pair with two queues, up, with GRO on the first device: `va` has two instances.
fn pair(namespace: &Namespace) -> u32 {
    namespace
        .run(|| {
            let mut route = Route::open().expect("a socket");
            let config = VethConfig {
                name: "va",
                peer: "vb",
                peer_namespace: None,
                rx_queues: 2,
                tx_queues: 2,
            };
            let index = route.add_veth(&config).expect("a pair");
            let mut ethtool = Ethtool::open().expect("ethtool");
            ethtool.set_features("va", &[(GRO[0], true)]).expect("GRO");
            for link in route.links().expect("links") {
                route.set_up(link.ifindex).expect(&link.name);
            }
            index
        })
        .expect("entered")
}

#[test]
fn a_pair_of_veth_has_links_queues_and_instances_as_it_was_made() {
    let namespace = fresh();
    let index = pair(&namespace);
    namespace
        .run(|| {
            let links = Route::open().expect("a socket").links().expect("links");
            let names: Vec<&str> = links.iter().map(|link| link.name.as_str()).collect();
            assert_eq!(names.len(), 3, "{names:?}");
            for name in ["lo", "va", "vb"] {
                assert!(names.contains(&name), "{names:?}");
            }
            let va = links.iter().find(|link| link.name == "va").expect("va");
            assert_eq!(
                *va,
                LinkRecord {
                    ifindex: index,
                    name: "va".into(),
                    alternatives: vec![],
                    kind: Some("veth".into()),
                    up: true,
                    rx_queues: 2,
                    tx_queues: 2,
                    macs: va.macs.clone(),
                }
            );
            assert_eq!(va.macs.len(), 1, "{va:?}");
            assert_eq!(links.iter().find(|link| link.name == "lo").expect("lo").kind, None);

            let mut netdev = Netdev::open().expect("netdev");
            let mut devices: Vec<u32> =
                netdev.devices().expect("dev-get").iter().map(|device| device.ifindex).collect();
            devices.sort_unstable();
            let mut indexes: Vec<u32> = links.iter().map(|link| link.ifindex).collect();
            indexes.sort_unstable();
            assert_eq!(devices, indexes);

            let napis = netdev.napis(Some(index)).expect("napi-get");
            assert_eq!(napis.len(), 2, "{napis:?}");
            assert_eq!(netdev.napis(None).expect("napi-get"), napis, "nobody else has any");
            for napi in &napis {
                assert_eq!((napi.ifindex, napi.irq, napi.pid), (index, None, None));
                assert_eq!(netdev.napi(napi.id).as_ref(), Ok(napi));
            }

            let queues = netdev.queues(Some(index)).expect("queue-get");
            for kind in [QueueKind::Rx, QueueKind::Tx] {
                let mut ids: Vec<u32> = queues
                    .iter()
                    .filter(|queue| queue.kind == kind)
                    .map(|queue| queue.id)
                    .collect();
                ids.sort_unstable();
                assert_eq!(ids, [0, 1], "{kind:?}");
            }
            let all = netdev.queues(None).expect("queue-get");
            assert!(queues.iter().all(|queue| all.contains(queue)));
        })
        .expect("entered");
}

#[test]
fn each_setting_is_read_back_as_it_was_set_and_no_other_changes() {
    let namespace = fresh();
    let index = pair(&namespace);
    namespace
        .run(|| {
            let mut netdev = Netdev::open().expect("netdev");
            let ability = netdev.ability().expect("ability");
            needs(ability.has(Operation::NapiSet), "napi-set (Linux 6.13)");
            let napis = netdev.napis(Some(index)).expect("napi-get");
            let [first, second] = &napis[..] else { panic!("two instances: {napis:?}") };
            let mut wanted: Settings = first.settings;
            for (setting, value) in [
                (Setting::DeferHardIrqs, 100),
                (Setting::GroFlushTimeout, 20_000),
                (Setting::IrqSuspendTimeout, 20_000_000),
                // More than 32 bits: written and read as eight bytes.
                (Setting::GroFlushTimeout, 5_000_000_000),
                (Setting::DeferHardIrqs, 0),
                (Setting::GroFlushTimeout, 0),
                (Setting::IrqSuspendTimeout, 0),
            ] {
                assert_eq!(netdev.set_napi(first.id, setting, value), Ok(()), "{setting}");
                wanted.set(setting, value);
                assert_eq!(netdev.napi(first.id).expect("napi-get").settings, wanted, "{setting}");
                assert_eq!(netdev.napi(second.id).as_ref(), Ok(second), "the other one");
            }
        })
        .expect("entered");
}

#[test]
fn an_instance_s_thread_is_there_while_it_is_threaded() {
    let namespace = fresh();
    let index = pair(&namespace);
    namespace
        .run(|| {
            let mut netdev = Netdev::open().expect("netdev");
            let ability = netdev.ability().expect("ability");
            needs(ability.largest(Setting::Threaded).is_some(), "napi-set `threaded` (Linux 6.17)");
            let id = netdev.napis(Some(index)).expect("napi-get")[0].id;
            netdev.set_napi(id, Setting::Threaded, 1).expect("threaded");
            let napi = netdev.napi(id).expect("napi-get");
            assert_eq!(napi.settings.threaded, Some(1));
            let pid = napi.pid.expect("a thread");
            let name = std::fs::read_to_string(format!("/proc/{pid}/comm")).expect("its name");
            assert_eq!(name.trim(), format!("napi/va-{id}"));
            netdev.set_napi(id, Setting::Threaded, 0).expect("not threaded");
            let napi = netdev.napi(id).expect("napi-get");
            assert_eq!((napi.settings.threaded, napi.pid), (Some(0), None));
        })
        .expect("entered");
}

#[test]
fn the_largest_value_that_the_kernel_names_is_taken_and_the_next_one_refused() {
    let namespace = fresh();
    let index = pair(&namespace);
    namespace
        .run(|| {
            let mut netdev = Netdev::open().expect("netdev");
            let ability = netdev.ability().expect("ability");
            eprintln!("{ability:?}");
            assert!(ability.has(Operation::DevGet));
            let Some(napi) = netdev.napis(Some(index)).expect("napi-get").pop() else {
                panic!("an instance");
            };
            assert_eq!(ability.has(Operation::NapiSet), !ability.largest.is_empty());
            for (setting, largest) in ability.largest {
                // A spinning thread would disturb measurements on the host.
                let busy_polls = setting == Setting::Threaded && largest == 2;
                if !busy_polls {
                    assert_eq!(netdev.set_napi(napi.id, setting, largest), Ok(()), "{setting}");
                    let now = netdev.napi(napi.id).expect("napi-get").settings;
                    assert_eq!(now.get(setting), Some(largest), "{setting}");
                    assert_eq!(netdev.set_napi(napi.id, setting, 0), Ok(()), "{setting}");
                }
                let Some(more) = largest.checked_add(1) else { continue };
                let refused = netdev.set_napi(napi.id, setting, more);
                let Err(NetlinkError::Refused { errno, text, request }) = refused else {
                    panic!("{setting}={more}: {refused:?}");
                };
                assert_eq!(errno, Errno::RANGE, "{setting}");
                assert!(text.is_some_and(|text| text.contains("out of range")), "its own words");
                assert!(request.contains(&format!("{setting} to {more}")), "{request}");
            }
        })
        .expect("entered");
}

#[test]
fn what_is_not_there_is_named() {
    let namespace = fresh();
    let gone = namespace
        .run(|| {
            let mut netdev = Netdev::open().expect("netdev");
            let none = NetlinkError::NoNapi { id: 4_000_000_000 };
            assert_eq!(netdev.napi(4_000_000_000), Err(none.clone()));
            assert_eq!(
                netdev.set_napi(4_000_000_000, Setting::DeferHardIrqs, 1),
                Err(none.clone())
            );
            let message = none.to_string();
            assert!(
                message.contains("no NAPI instance 4000000000") && message.contains("look again")
            );
            for error in [
                netdev.queues(Some(77)).expect_err("no device"),
                netdev.napis(Some(77)).expect_err("no device"),
                Route::open().expect("a socket").set_up(77).expect_err("no device"),
                Route::open().expect("a socket").delete(77).expect_err("no device"),
            ] {
                assert!(matches!(error, NetlinkError::NoDevice { .. }), "{error:?}");
                assert!(error.to_string().contains("no device with ifindex 77"), "{error}");
            }
            let mut ethtool = Ethtool::open().expect("ethtool");
            for name in ["nosuch0", "a-name-that-is-too-long-for-a-device", "", "a\0b"] {
                assert!(ethtool.features(name).is_err(), "{name:?}");
                assert!(ethtool.rings(name).is_err(), "{name:?}");
                assert!(Route::open().expect("a socket").link(name).is_err(), "{name:?}");
            }
            let error = ethtool.channels("nosuch0").expect_err("no device");
            assert!(error.to_string().contains("no device nosuch0"), "{error}");
            let long = "x".repeat(70_000);
            let error = ethtool.channels(&long).expect_err("too long");
            assert!(matches!(error, NetlinkError::RequestTooLarge { .. }));
            netdev
        })
        .expect("entered");
    // The socket outlives the thread, and works from another namespace's thread.
    let mut gone = gone;
    assert_eq!(gone.devices().expect("dev-get").len(), 1);
}

#[test]
fn devices_that_are_deleted_meanwhile_are_a_clean_error() {
    let namespace = fresh();
    let index = pair(&namespace);
    namespace
        .run(|| {
            let mut netdev = Netdev::open().expect("netdev");
            let mut route = Route::open().expect("a socket");
            let id = netdev.napis(Some(index)).expect("napi-get")[0].id;
            route.set_down(index).expect("down");
            assert_eq!(netdev.napi(id), Err(NetlinkError::NoNapi { id }));
            assert_eq!(netdev.napis(Some(index)), Ok(vec![]), "down: none");
            route.set_up(index).expect("up");
            let recreated = netdev.napis(Some(index)).expect("napi-get");
            assert_eq!(recreated.len(), 2);
            assert!(recreated.iter().all(|napi| napi.id != id), "ids are new");
            route.delete(index).expect("deleted");
            let id = recreated[0].id;
            assert_eq!(netdev.napi(id), Err(NetlinkError::NoNapi { id }));
            let error = netdev.napis(Some(index)).expect_err("no device");
            assert!(matches!(error, NetlinkError::NoDevice { .. }), "{error:?}");
            assert_eq!(route.links().expect("links").len(), 1, "its other end went as well");
        })
        .expect("entered");
}

#[test]
fn features_are_switched_and_one_that_is_fixed_is_named() {
    let namespace = fresh();
    pair(&namespace);
    namespace
        .run(|| {
            let mut ethtool = Ethtool::open().expect("ethtool");
            let before = ethtool.features("vb").expect("features");
            assert!(before.len() > 40, "{before:?}");
            assert_eq!(before.get("rx-gro"), Some(&false), "a veth begins without");
            for name in TSO {
                assert_eq!(before.get(*name), Some(&true), "{name}");
            }
            let off: Vec<_> = TSO.iter().map(|name| (*name, false)).collect();
            ethtool.set_features("vb", &off).expect("TSO off");
            let after = ethtool.features("vb").expect("features");
            for (name, was) in &before {
                let is = after.get(name);
                assert_eq!(is, Some(&(*was && !TSO.contains(&name.as_str()))), "{name}");
            }
            let error = ethtool.set_features("vb", &[("loopback", true)]).expect_err("fixed");
            assert!(
                error.to_string().contains("did not take the feature `loopback` on"),
                "{error}"
            );
            let error = ethtool.set_features("vb", &[("no-such", true)]).expect_err("unknown");
            let NetlinkError::Refused { text: Some(_), .. } = error else { panic!("{error:?}") };

            let channels = ethtool.channels("va").expect("channels").expect("a veth has them");
            assert_eq!((channels.rx, channels.tx), (Some(2), Some(2)), "{channels:?}");
            assert_eq!(ethtool.coalescing("va"), Ok(None), "a veth has no interrupt");
            assert_eq!(ethtool.rings("lo"), Ok(None));
        })
        .expect("entered");
}

#[test]
fn a_pair_across_two_namespaces_carries_packets() {
    let (here, there) = (fresh(), fresh());
    here.run(|| {
        let mut route = Route::open().expect("a socket");
        let config = VethConfig {
            name: "va",
            peer: "vb",
            peer_namespace: Some(there.as_fd()),
            rx_queues: 1,
            tx_queues: 1,
        };
        let index = route.add_veth(&config).expect("a pair");
        route.add_address(index, Ipv4Addr::new(10, 9, 8, 1), 24).expect("an address");
        route.set_up(index).expect("up");
        let error = route.add_veth(&config).expect_err("twice");
        assert_eq!(error.errno(), Some(Errno::EXIST));
        assert!(error.to_string().contains("making the veth pair va and vb"), "{error}");
    })
    .expect("entered");
    there
        .run(|| {
            let mut route = Route::open().expect("a socket");
            let index = route.link("vb").expect("the other end").ifindex;
            route.add_address(index, Ipv4Addr::new(10, 9, 8, 2), 24).expect("an address");
            route.set_up(index).expect("up");
        })
        .expect("entered");
    let receiver = there.run(|| UdpSocket::bind("10.9.8.2:7")).expect("entered").expect("bound");
    let sender = here.run(|| UdpSocket::bind("10.9.8.1:0")).expect("entered").expect("bound");
    receiver.set_read_timeout(Some(std::time::Duration::from_secs(5))).expect("a limit");
    sender.send_to(b"over there", "10.9.8.2:7").expect("sent");
    let mut buffer = [0; 32];
    let (length, from) = receiver.recv_from(&mut buffer).expect("received");
    assert_eq!(
        (&buffer[..length], from),
        (&b"over there"[..], sender.local_addr().expect("bound"))
    );
}

#[test]
fn a_namespace_is_known_by_its_cookie_and_leaves_nothing() {
    let namespace = fresh();
    let host = Namespace::identity().expect("an identity");
    // Other mounts do not matter here.
    let mounts = || {
        let all = std::fs::read_to_string("/proc/self/mountinfo").expect("procfs");
        let at_sys = all.lines().filter(|line| line.contains(" /sys")).map(str::to_owned);
        at_sys.collect::<Vec<String>>()
    };
    let before = mounts();
    let (inside, sysfs, path) = namespace
        .run(|| {
            let devices = std::fs::read_dir("/sys/class/net").expect("sysfs");
            let names: Vec<_> = devices.map(|entry| entry.expect("an entry").file_name()).collect();
            let tid = rustix::thread::gettid().as_raw_nonzero();
            let path = format!("/proc/{}/task/{tid}/ns/net", std::process::id());
            let reopened = Namespace::open(&path).expect("it is one");
            (Namespace::identity().expect("an identity"), names, reopened.inode())
        })
        .expect("entered");
    assert_eq!(sysfs, ["lo"], "/sys shows the namespace's devices");
    assert_eq!(path, Ok(inside.inode));
    assert_eq!(namespace.inode(), Ok(inside.inode));
    assert!(!inside.same(&host) && inside.same(&inside));
    assert_ne!((inside.cookie, inside.inode), (host.cookie, host.inode));
    assert!(inside.cookie.is_some() || inside.to_string() == format!("net:[{}]", inside.inode));
    assert_eq!(Namespace::identity(), Ok(host), "this thread has stayed");
    assert_eq!(mounts(), before, "nothing was mounted here");
}

#[test]
fn a_file_that_is_no_namespace_is_refused() {
    for path in ["/dev/null", "/proc/self/ns/mnt", "/proc/self/stat"] {
        let error = Namespace::open(path).expect_err(path);
        assert!(matches!(error, NamespaceError::NotOne { .. }), "{error:?}");
        assert!(error.to_string().contains("is not a network namespace"), "{error}");
    }
    let error = Namespace::open("/run/netns/no-such").expect_err("absent");
    assert!(matches!(error, NamespaceError::Read { errno: Errno::NOENT, .. }), "{error:?}");
    let boot = boot_id().expect("procfs");
    assert_eq!(boot.len(), 36, "{boot}");
    assert_eq!(boot_id(), Ok(boot));
}

#[test]
fn a_panic_inside_goes_on_outside() {
    let namespace = fresh();
    let caught = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
        namespace.run(|| std::panic::resume_unwind(Box::new("inside")))
    }));
    assert_eq!(caught.expect_err("it panicked").downcast_ref(), Some(&"inside"));
}

#[test]
fn without_a_right_everything_is_read_nothing_is_set_and_the_right_is_named() {
    let namespace = fresh();
    let index = pair(&namespace);
    namespace
        .run(|| {
            let mut before = Netdev::open().expect("netdev");
            // Only for this thread, which ends with the closure.
            let none = CapabilitySets {
                effective: CapabilitySet::empty(),
                permitted: CapabilitySet::empty(),
                inheritable: CapabilitySet::empty(),
            };
            set_capabilities(None, none).expect("dropped");
            let mut after = Netdev::open().expect("netdev");
            let napis = after.napis(Some(index)).expect("napi-get");
            assert_eq!(napis.len(), 2);
            assert!(after.ability().is_ok() && Route::open().expect("a socket").links().is_ok());
            let mut ethtool = Ethtool::open().expect("ethtool");
            assert_eq!(ethtool.features("va").expect("features").get(GRO[0]), Some(&true));
            let id = napis[0].id;
            for error in [
                after.set_napi(id, Setting::DeferHardIrqs, 1).expect_err("no right"),
                // Nor by a socket that was opened before.
                before.set_napi(id, Setting::DeferHardIrqs, 1).expect_err("no right"),
                ethtool.set_features("va", &[(GRO[0], false)]).expect_err("no right"),
                Route::open().expect("a socket").set_down(index).expect_err("no right"),
            ] {
                assert!(matches!(error, NetlinkError::NoRight { .. }), "{error:?}");
                assert!(error.to_string().ends_with("it needs CAP_NET_ADMIN"), "{error}");
            }
            assert_eq!(after.napis(Some(index)), Ok(napis));
            let error = Namespace::new().expect_err("no right");
            assert!(error.to_string().ends_with("it needs CAP_SYS_ADMIN"), "{error}");
            let error = namespace.run(|| ()).expect_err("no right");
            assert!(matches!(error, NamespaceError::NoRight { .. }), "{error:?}");
        })
        .expect("entered");
}

#[test]
fn a_namespace_vanishes_with_the_last_program_in_it_also_a_killed_one() {
    let (here, there) = (fresh(), fresh());
    let mut links = here
        .run(|| {
            let mut route = Route::open().expect("a socket");
            let config = VethConfig {
                name: "va",
                peer: "vb",
                peer_namespace: Some(there.as_fd()),
                rx_queues: 1,
                tx_queues: 1,
            };
            route.add_veth(&config).expect("a pair");
            route
        })
        .expect("entered");
    let sleeper = there.run(|| std::process::Command::new("sleep").arg("600").spawn());
    let sleeper = KillOnDrop(sleeper.expect("entered").expect("started"));
    drop(there);
    // This end of the pair exists as long as the other one does.
    std::thread::sleep(std::time::Duration::from_millis(200));
    assert_eq!(links.links().expect("links").len(), 2, "the program keeps it");
    drop(sleeper);
    // The kernel deletes the namespace later, in a thread of its own.
    let gone = (0..1000).any(|_| {
        std::thread::sleep(std::time::Duration::from_millis(20));
        links.links().expect("links").len() == 1
    });
    assert!(gone, "nothing keeps it any more");
}

#[test]
fn a_device_is_found_by_each_of_its_names() {
    let namespace = fresh();
    let index = pair(&namespace);
    let long = "a name that is longer than fifteen bytes".replace(' ', "-");
    namespace
        .run(|| {
            let mut route = Route::open().expect("a socket");
            route.add_alternative(index, &long).expect("Linux 5.5 has these");
            let links = route.links().expect("links");
            let va = links.iter().find(|link| link.is_called(&long)).expect("by its other name");
            assert_eq!((va.name.as_str(), &va.alternatives), ("va", &vec![long.clone()]));
            assert_eq!(route.link(&long).as_ref(), Ok(va));
            assert_eq!(lifelines(&long).expect("it is found"), []);
            let mut netdev = Netdev::open().expect("netdev");
            assert_eq!(device::find(&mut netdev, &long).expect("found").ifname, "va");
            let at = Linux::open().expect("netlink").look(Target::Name(&long)).expect("found");
            assert_eq!((at.device.ifindex, at.device.ifname.as_str()), (index, "va"));
            assert!(device::find(&mut netdev, "a-name").is_err(), "not by a part of one");
        })
        .expect("entered");
}

napkin_testing::main!();
