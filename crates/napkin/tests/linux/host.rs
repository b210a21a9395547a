//! Checks that nothing outside of the named devices and programs is changed.

use std::collections::BTreeMap;

use napkin_kernel::netlink::Netdev;
use napkin_testing::test;
use rustix::process::Signal;

use super::common::TempDir;
use super::{
    KillOnDrop, SUSPEND20, child_under, command, done, journals, lab, memcached, settings, unusual,
};

/// Every setting outside of the test's namespace that napkin could change: those of all instances, the devices' files,
/// the affinity of all interrupts.
fn host() -> BTreeMap<String, String> {
    let mut all = BTreeMap::new();
    let mut netdev = Netdev::open().expect("netdev");
    for napi in netdev.napis(None).expect("napi-get") {
        all.insert(format!("napi {}", napi.id), format!("{napi:?}"));
    }
    let mut read = |path: std::path::PathBuf| {
        // Files that cannot be read, or are gone by now, are not compared.
        if let Ok(value) = std::fs::read_to_string(&path) {
            all.insert(path.display().to_string(), value);
        }
    };
    let list = |path: &std::path::Path| {
        let entries = std::fs::read_dir(path).into_iter().flatten().flatten();
        entries.map(|entry| entry.path()).collect::<Vec<_>>()
    };
    for device in list("/sys/class/net".as_ref()) {
        for file in [
            "napi_defer_hard_irqs",
            "gro_flush_timeout",
            "threaded",
            "mtu",
            "tx_queue_len",
            "flags",
        ] {
            read(device.join(file));
        }
        for queue in list(&device.join("queues")) {
            for file in ["rps_cpus", "rps_flow_cnt", "xps_cpus"] {
                read(queue.join(file));
            }
        }
    }
    for irq in list("/proc/irq".as_ref()) {
        read(irq.join("smp_affinity_list"));
    }
    for file in ["net/core/busy_poll", "net/core/busy_read", "kernel/sched_rt_runtime_us"] {
        read(std::path::Path::new("/proc/sys").join(file));
    }
    all
}

#[test]
fn nothing_else_on_the_host_is_touched() {
    let outside = host();
    lab(|| {
        let home = TempDir::new("linux-host");
        let neighbour = settings("vc");
        let before = unusual();
        for policy in ["suspend20", "threaded", "napibusy", "base"] {
            done(&home, &format!("apply {policy} --dev va --cpus 0"));
            assert_eq!(settings("vc"), neighbour, "{policy}");
        }
        done(&home, "apply threaded --dev va --cpus 0 --rt 10");
        done(&home, "run -q --policy suspend20 --dev va --cpus 0 -- true");
        let program = memcached();
        let run =
            format!("run -q --policy suspend20 --dev va --queue 1 --cpus 0 --pin -- {program}");
        let mut child = command(&home, &run).spawn().expect("it runs");
        let program = KillOnDrop(child_under(&child, SUSPEND20));
        assert_eq!(settings("vc"), neighbour);
        program.now(Signal::TERM);
        child.wait().expect("it ends");
        done(&home, "restore");
        assert_eq!(settings("vc"), neighbour);
        assert_eq!((settings("va"), journals(&home)), (before, 0));
    });
    let now = host();
    assert!(!outside.is_empty());
    for (what, before) in &outside {
        // Other tests create and remove devices meanwhile.
        if let Some(now) = now.get(what) {
            assert_eq!(now, before, "{what}");
        }
    }
}
