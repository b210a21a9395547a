//! The kernel's files on this host, and in a network namespace other than the initial one.

#[path = "harness/namespace.rs"]
#[allow(dead_code, reason = "another test's as well")]
mod namespace;

use namespace::needs_rights;
use napkin_kernel::Setting;
use napkin_kernel::netlink::{Netdev, Operation, Route};
use napkin_kernel::probe::{Interface, Kernel, KernelSupport};
use napkin_kernel::sysfs::{DeviceFile, Sysfs};
use napkin_os::procfs::{Interrupts, Sysctl, SysctlError, irq};
use napkin_os::rights::Right;
use napkin_testing::{ignore, needs, test};
use rustix::thread::UnshareFlags;

/// Runs a closure in a new network namespace, with the `/sys` of the old one.
fn unshared<T: Send + 'static>(work: impl FnOnce() -> T + Send + 'static) -> T {
    needs_rights(&[Right::SysAdmin]);
    let thread = std::thread::spawn(|| {
        // SAFETY: a new network namespace affects only this thread, which ends.
        unsafe { rustix::thread::unshare_unsafe(UnshareFlags::NEWNET) }.expect("the right is held");
        work()
    });
    thread.join().expect("no panic")
}

#[test]
fn a_new_namespace_has_nothing_but_loopback() {
    unshared(|| {
        let sysfs = Sysfs::open(&[]).expect("with the right to unshare comes that to mount");
        assert_eq!(sysfs.device_file("lo", DeviceFile::GroFlushTimeout), Some(0));
        // Modules may add their own devices to every namespace, but no `eth0`.
        assert_eq!(sysfs.device_file("eth0", DeviceFile::GroFlushTimeout), None);
    });
}

#[test]
fn loopback_s_files_are_read() {
    needs(std::fs::exists("/sys/class/net/lo").is_ok_and(|it| it), "a sysfs");
    let links = Route::open().and_then(|mut it| it.links()).expect("links");
    let sysfs = Sysfs::open(&links).expect("it shows the devices of here");
    assert_eq!(sysfs.driver("lo"), None);
    assert_eq!(sysfs.device_file("lo", DeviceFile::GroFlushTimeout), Some(0));
    let steering = sysfs.steering("lo");
    assert!(steering.iter().all(|it| it.rps_cpus.is_empty()), "{steering:?}");
}

#[test]
fn a_net_switch_is_read_in_the_first_namespace() {
    match Sysctl::NetdevBudget.read() {
        Ok(budget) => assert!(budget > 0, "{budget}"),
        Err(SysctlError::Hidden { .. }) => ignore("needs the host's own network namespace"),
        Err(error) => panic!("{error}"),
    }
}

#[test]
fn a_net_switch_is_said_to_be_hidden_elsewhere() {
    let error = unshared(|| Sysctl::NetdevBudget.read()).expect_err("it is hidden");
    assert!(matches!(error, SysctlError::Hidden { .. }), "{error}");
    assert!(error.to_string().contains("net.core.netdev_budget"), "{error}");
}

#[test]
fn an_interrupt_that_there_is_has_cpus() {
    let all = Interrupts::read().expect("procfs");
    let irq = all.irqs.keys().next().copied();
    needs(irq.is_some(), "a numbered interrupt");
    let allowed = irq.map(|irq| irq::affinity(irq).expect("it is there"));
    assert_ne!(allowed, Some(vec![]));
}

#[test]
fn what_is_tried_agrees_with_what_the_family_says() {
    let kernel = Kernel::probe();
    assert!(!kernel.release.is_empty());
    needs(
        kernel.instances == KernelSupport::Yes,
        format_args!("napi-get ({})", Operation::NapiGet.since()),
    );
    let mut netdev = Netdev::open().expect("it was opened just now");
    let ability = netdev.ability().expect("it was asked just now");
    for setting in Setting::ALL {
        if let Some(largest) = ability.largest(setting) {
            assert_eq!(kernel.way(setting), Some(Interface::Napi { largest }), "{setting}");
        }
        assert!(kernel.takes(setting, 0), "{setting} can be off");
    }
}

napkin_testing::main!();
