//! The network devices of this namespace, with their queues and NAPI instances, as they are now.
//!
//! The data comes from netlink (devices, queues, instances), sysfs (the driver, and settings that an older netlink does
//! not report), `/proc/irq` and the scheduler. Values that none of them reports are `None`. Nothing is written here.

mod no_irq;

use std::collections::BTreeMap;

use napkin_os::sched::Class;
use serde::{Serialize, Serializer};
use thiserror::Error;

use crate::netlink::{LinkRecord, NapiRecord, Netdev, NetlinkError, QueueKind, QueueRecord, Route};
use crate::settings::{Setting, Settings};
use crate::shell;
use crate::sysfs::{DeviceFile, Sysfs, SysfsError};
use napkin_os::procfs::{Interrupts, irq, thread};

pub use no_irq::{NoIrq, NoIrqs};

/// A network device of this namespace, from sysfs and netlink.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub struct Device {
    /// Its interface index in this namespace.
    pub ifindex: u32,
    /// Its name, `eth0`.
    pub ifname: String,
    /// Its driver, or the kind of a virtual device (`veth`), if the kernel reports it.
    pub driver: Option<String>,
    /// Whether it is up.
    pub up: bool,
    /// Its NAPI instances in ascending order of ids. A device that is down, or whose driver registers none, has none.
    pub napis: Vec<Napi>,
}

/// A NAPI instance.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub struct Napi {
    /// Its id, which changes whenever the driver recreates it.
    pub id: u32,
    /// The receive queues that it polls; empty if the driver does not report them.
    pub rx_queues: Vec<u32>,
    /// The transmit queues that it polls.
    pub tx_queues: Vec<u32>,
    /// The number of its interrupt, if the driver reports it to netlink or the interrupt's name tells it; a virtual
    /// device has none.
    pub irq: Option<u32>,
    /// The CPUs to which that interrupt may be delivered.
    pub irq_cpus: Option<Vec<usize>>,
    /// The id of its thread, if it has one.
    pub pid: Option<i32>,
    /// The CPUs on which that thread may run.
    pub thread_cpus: Option<Vec<usize>>,
    /// The scheduling class of that thread: `fair`, `fifo` with its priority, or another.
    #[serde(serialize_with = "class_name")]
    pub thread_class: Option<Class>,
    /// Its settings. Those that netlink does not report are its device's, from sysfs.
    #[serde(flatten)]
    pub settings: Settings,
}

/// The reason why a device could not be read.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum DeviceError {
    /// The kernel did not answer.
    #[error(transparent)]
    Netlink(#[from] NetlinkError),
    /// There is no such device.
    #[error("{}", absent(ifname, nearest.as_deref(), there))]
    Absent {
        /// The name that was asked for.
        ifname: String,
        /// The existing name of which it may be a misspelling.
        nearest: Option<String>,
        /// The names of all devices.
        there: Vec<String>,
    },
    /// A device that is down has no instances.
    #[error("{ifname} is down, and has no NAPI instance before it is up: ip link set {ifname} up")]
    Down {
        /// The interface's name.
        ifname: String,
    },
    /// The device is up and has no instance.
    #[error("{ifname} has no NAPI instance: {advice}")]
    NoNapi {
        /// The interface's name.
        ifname: String,
        /// The reason, and what to do.
        advice: String,
    },
}

impl Napi {
    /// Whether it polls only transmit queues, as igb's do where vectors are not paired. An instance that polls no
    /// queue at all may belong to a driver that does not report its queues.
    pub fn transmits_only(&self) -> bool {
        self.rx_queues.is_empty() && !self.tx_queues.is_empty()
    }
}

impl Device {
    /// Returns an instance by its id.
    pub fn napi(&self, id: u32) -> Option<&Napi> {
        self.napis.iter().find(|napi| napi.id == id)
    }

    /// Returns the instance that polls a receive queue.
    pub fn of_rx_queue(&self, queue: u32) -> Option<&Napi> {
        self.napis.iter().find(|napi| napi.rx_queues.contains(&queue))
    }

    /// Returns the reason why it has no instance, with advice; `None` if it has one.
    pub fn why_none(&self) -> Option<DeviceError> {
        if !self.napis.is_empty() {
            return None;
        }
        let ifname = self.ifname.clone();
        Some(if self.up {
            let advice = self.advice();
            DeviceError::NoNapi { ifname, advice }
        } else {
            DeviceError::Down { ifname }
        })
    }

    fn advice(&self) -> String {
        let ifname = &self.ifname;
        match self.driver.as_deref() {
            _ if ifname == "lo" => "loopback hands packets over without one; nothing of a policy \
                                    applies to it"
                .into(),
            Some("veth") => format!(
                "a veth has one only with GRO on (ethtool -K {} gro on) or with an XDP program",
                shell::word(ifname)
            ),
            Some("tun" | "tap") => {
                "its instances come when a program opens its queues with IFF_NAPI".into()
            }
            Some(kind @ ("bridge" | "bond" | "team" | "vlan" | "macvlan" | "ipvlan" | "vrf")) => {
                format!("a {kind} is polled by the devices below it: name one of those")
            }
            Some(kind) => format!("{kind} registers none that netlink lists"),
            None => "its driver registers none that netlink lists".into(),
        }
    }
}

/// Reads all devices of the calling thread's namespace in ascending order of ifindex, including `lo` and those
/// without an instance.
///
/// # Errors
/// If the kernel does not answer.
pub fn read_all(netdev: &mut Netdev) -> Result<Vec<Device>, DeviceError> {
    let links = Route::open()?.links()?;
    let napis = netdev.napis(None)?;
    let queues = netdev.queues(None)?;
    Ok(join(links, &napis, &queues))
}

/// Reads one device by one of its names, whether or not it has an instance.
///
/// # Errors
/// If there is no device of that name, or the kernel does not answer.
pub fn find(netdev: &mut Netdev, ifname: &str) -> Result<Device, DeviceError> {
    let links = Route::open()?.links()?;
    let Some(link) = links.iter().find(|link| link.is_called(ifname)) else {
        let names: Vec<String> = links.into_iter().map(|link| link.name).collect();
        let known = names.iter().map(String::as_str);
        let nearest = napkin_policy::nearest(ifname, known).map(str::to_owned);
        return Err(DeviceError::Absent { ifname: ifname.to_owned(), nearest, there: names });
    };
    let ifindex = link.ifindex;
    of_index(netdev, links, ifindex)
}

/// Reads the device of one of these links by its ifindex, whether or not it has an instance. The links must be a
/// recent list of the calling thread's namespace.
///
/// # Errors
/// If the ifindex is not in the list, or the kernel does not answer.
pub fn of_index(
    netdev: &mut Netdev,
    links: Vec<LinkRecord>,
    ifindex: u32,
) -> Result<Device, DeviceError> {
    let napis = netdev.napis(Some(ifindex))?;
    let queues = netdev.queues(Some(ifindex))?;
    let mut devices = join(links, &napis, &queues);
    let place = devices.iter().position(|device| device.ifindex == ifindex);
    match place {
        Some(place) => Ok(devices.swap_remove(place)),
        None => {
            let ifname = format!("with ifindex {ifindex}");
            Err(DeviceError::Absent { ifname, nearest: None, there: vec![] })
        }
    }
}

/// Reads one device by its name, with at least one instance.
///
/// # Errors
/// As [`find`], and if it has no instance; then the error says what to do.
pub fn read(netdev: &mut Netdev, ifname: &str) -> Result<Device, DeviceError> {
    let device = find(netdev, ifname)?;
    match device.why_none() {
        Some(error) => Err(error),
        None => Ok(device),
    }
}

fn join(links: Vec<LinkRecord>, napis: &[NapiRecord], queues: &[QueueRecord]) -> Vec<Device> {
    let sysfs = Sysfs::open(&links);
    let mut devices: Vec<Device> = links
        .into_iter()
        .map(|link| Device {
            ifindex: link.ifindex,
            driver: driver(&sysfs, &link),
            ifname: link.name,
            up: link.up,
            napis: Vec::new(),
        })
        .collect();
    devices.sort_by_key(|device| device.ifindex);
    // An instance of a device that appeared between two of the kernel's answers is left out; the next reading has it.
    let mut of: BTreeMap<u32, &mut Device> =
        devices.iter_mut().map(|device| (device.ifindex, device)).collect();
    let polled = polled(queues);
    for record in napis {
        if let Some(device) = of.get_mut(&record.ifindex) {
            let mut napi = napi(record, &polled);
            if let Ok(sysfs) = &sysfs {
                fill_from_sysfs(&mut napi.settings, sysfs, &device.ifname);
            }
            device.napis.push(napi);
        }
    }
    for device in &mut devices {
        device.napis.sort_by_key(|napi| napi.id);
        assign_veth_queues(device, queues);
        if let Ok(sysfs) = &sysfs {
            find_virtio_irqs(device, sysfs);
        }
        for napi in &mut device.napis {
            napi.irq_cpus = napi.irq.and_then(|irq| irq::affinity(irq).ok());
        }
    }
    devices
}

/// Assigns queues to a veth's instances. The driver does not report to netlink which instance polls which queue,
/// but creates one per receive queue, in order, with ascending ids, and none for transmit queues.
fn assign_veth_queues(device: &mut Device, queues: &[QueueRecord]) {
    if device.driver.as_deref() != Some("veth") {
        return;
    }
    let mine = |queue: &&QueueRecord| queue.ifindex == device.ifindex;
    let mut rx: Vec<u32> = queues
        .iter()
        .filter(mine)
        .filter(|queue| queue.kind == QueueKind::Rx)
        .map(|queue| queue.id)
        .collect();
    rx.sort_unstable();
    // During a change of channels the numbers differ; the next reading assigns the queues.
    let reported = queues.iter().filter(mine).any(|queue| queue.napi_id.is_some());
    if reported || rx.len() != device.napis.len() {
        return;
    }
    for (napi, queue) in device.napis.iter_mut().zip(rx) {
        napi.rx_queues = vec![queue];
    }
}

/// Finds `virtio_net`'s interrupts by their names, which contain the queues. The driver does not report them to
/// netlink.
fn find_virtio_irqs(device: &mut Device, sysfs: &Sysfs) {
    let unknown = device.napis.iter().any(|napi| napi.irq.is_none());
    if !unknown || device.driver.as_deref() != Some("virtio_net") {
        return;
    }
    let Some(hardware) = sysfs.hardware(&device.ifname) else { return };
    let Ok(interrupts) = Interrupts::read() else { return };
    for napi in device.napis.iter_mut().filter(|napi| napi.irq.is_none()) {
        napi.irq = virtio_irq(&interrupts, &hardware, napi);
    }
}

fn virtio_irq(interrupts: &Interrupts, hardware: &str, napi: &Napi) -> Option<u32> {
    let rx = napi.rx_queues.first().map(|queue| format!("{hardware}-input.{queue}"));
    let tx = napi.tx_queues.first().map(|queue| format!("{hardware}-output.{queue}"));
    let name = rx.or(tx)?;
    let mut named = interrupts.irqs.iter().filter(|(_, interrupt)| interrupt.device == name);
    named.next().map(|(irq, _)| *irq)
}

/// Completes settings from sysfs. Before Linux 6.13 (`threaded`: 6.17) netlink does not report an instance's
/// settings: they are the device's, and the same for all of its instances.
fn fill_from_sysfs(settings: &mut Settings, sysfs: &Sysfs, ifname: &str) {
    for (setting, file) in [
        (Setting::Threaded, DeviceFile::Threaded),
        (Setting::DeferHardIrqs, DeviceFile::DeferHardIrqs),
        (Setting::GroFlushTimeout, DeviceFile::GroFlushTimeout),
    ] {
        if settings.get(setting).is_none()
            && let Some(value) = sysfs.device_file(ifname, file)
        {
            settings.set(setting, value);
        }
    }
}

fn driver(sysfs: &Result<Sysfs, SysfsError>, link: &LinkRecord) -> Option<String> {
    let named = sysfs.as_ref().ok().and_then(|sysfs| sysfs.driver(&link.name));
    named.or_else(|| link.kind.clone())
}

/// The queues that each instance polls, by its device's ifindex and its id.
type Polled = BTreeMap<(u32, u32), (Vec<u32>, Vec<u32>)>;

fn polled(queues: &[QueueRecord]) -> Polled {
    let mut polled = Polled::new();
    for queue in queues {
        let Some(id) = queue.napi_id else { continue };
        let (rx, tx) = polled.entry((queue.ifindex, id)).or_default();
        match queue.kind {
            QueueKind::Rx => rx.push(queue.id),
            QueueKind::Tx => tx.push(queue.id),
        }
    }
    for (rx, tx) in polled.values_mut() {
        rx.sort_unstable();
        tx.sort_unstable();
    }
    polled
}

fn napi(record: &NapiRecord, polled: &Polled) -> Napi {
    let (rx_queues, tx_queues) =
        polled.get(&(record.ifindex, record.id)).cloned().unwrap_or_default();
    // In another PID namespace, such as a container's, the kernel's thread ids are those of other processes, or unused.
    let real = |pid: &i32| thread::ThreadStat::read(*pid, *pid).is_some_and(|it| it.is_napi());
    let seen = record.pid.filter(real);
    Napi {
        id: record.id,
        rx_queues,
        tx_queues,
        irq: record.irq,
        irq_cpus: None,
        pid: record.pid,
        thread_cpus: seen.and_then(|pid| napkin_os::sched::affinity(Some(pid)).ok()),
        thread_class: seen.and_then(|pid| napkin_os::sched::class(Some(pid)).ok()),
        settings: record.settings,
    }
}

fn absent(ifname: &str, nearest: Option<&str>, there: &[String]) -> String {
    // On a host with a thousand devices the first few show what names look like.
    const SHOWN: usize = 8;
    let mut text = format!("there is no device {ifname:?} in this network namespace");
    if let Some(nearest) = nearest {
        text.push_str(&format!("; did you mean {nearest}?"));
    }
    if let Some((first, rest)) = there.split_first() {
        text.push_str(&format!(" (there is {first}"));
        for name in rest.iter().take(SHOWN - 1) {
            text.push_str(&format!(", {name}"));
        }
        match there.len().saturating_sub(SHOWN) {
            0 => text.push(')'),
            more => text.push_str(&format!(" and {more} more)")),
        }
    }
    text
}

/// Formats a class: `fair`, or another nice value or class with its priority, as in `fair -20` and `fifo 50`.
pub fn show_class(class: Class) -> String {
    class.to_string()
}

fn class_name<S: Serializer>(class: &Option<Class>, serializer: S) -> Result<S::Ok, S::Error> {
    class.map(show_class).serialize(serializer)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn link(ifindex: u32, name: &str, kind: Option<&str>) -> LinkRecord {
        LinkRecord {
            ifindex,
            name: name.into(),
            alternatives: vec![],
            kind: kind.map(str::to_owned),
            up: true,
            rx_queues: 1,
            tx_queues: 1,
            macs: vec![],
        }
    }

    fn record(ifindex: u32, id: u32) -> NapiRecord {
        NapiRecord { ifindex, id, irq: None, pid: None, settings: Settings::default() }
    }

    fn queue(ifindex: u32, id: u32, kind: QueueKind, napi_id: u32) -> QueueRecord {
        QueueRecord { ifindex, id, kind, napi_id: Some(napi_id) }
    }

    #[test]
    fn queues_go_to_their_instances_and_instances_to_their_devices() {
        let links = vec![link(7, "zz7", None), link(3, "zz3", Some("veth"))];
        let napis = [record(3, 12), record(3, 11), record(9, 1)];
        let queues = [
            queue(3, 1, QueueKind::Rx, 12),
            queue(3, 0, QueueKind::Rx, 12),
            queue(3, 0, QueueKind::Tx, 11),
            queue(7, 0, QueueKind::Rx, 12),
        ];
        let devices = join(links, &napis, &queues);
        let names: Vec<_> = devices.iter().map(|device| device.ifname.as_str()).collect();
        assert_eq!(names, ["zz3", "zz7"]);
        let ids: Vec<_> = devices[0].napis.iter().map(|napi| napi.id).collect();
        assert_eq!(ids, [11, 12]);
        assert_eq!(devices[0].of_rx_queue(1).map(|napi| napi.id), Some(12));
        assert_eq!(devices[0].napi(12).map(|napi| napi.rx_queues.clone()), Some(vec![0, 1]));
        assert_eq!(devices[0].napi(11).map(|napi| napi.tx_queues.clone()), Some(vec![0]));
        assert!(devices[0].why_none().is_none());
    }

    #[test]
    fn veth_has_an_instance_for_each_receive_queue_in_order() {
        let silent = |id, kind| QueueRecord { ifindex: 3, id, kind, napi_id: None };
        let queues = [
            silent(1, QueueKind::Rx),
            silent(0, QueueKind::Rx),
            silent(0, QueueKind::Tx),
            silent(1, QueueKind::Tx),
        ];
        let polled = |kind: &str, napis: &[NapiRecord]| -> Vec<Vec<u32>> {
            let devices = join(vec![link(3, "zz3", Some(kind))], napis, &queues);
            devices[0].napis.iter().map(|napi| napi.rx_queues.clone()).collect()
        };
        assert_eq!(polled("veth", &[record(3, 12), record(3, 11)]), [[0], [1]]);
        assert_eq!(polled("veth", &[record(3, 12)]), [Vec::<u32>::new()]);
        assert_eq!(polled("other", &[record(3, 12), record(3, 11)]), [Vec::<u32>::new(), vec![]]);
    }

    #[test]
    fn virtio_names_its_interrupts_after_its_queues() {
        let interrupts = Interrupts::parse(
            "     CPU0\n 38:  1 PCI-MSIX-0000:00:03.0 1-edge virtio2-input.0\n \
             39:  1 PCI-MSIX-0000:00:03.0 2-edge virtio2-output.0\n",
        );
        let polls = |rx: &[u32], tx: &[u32]| {
            let queues: Vec<QueueRecord> = rx
                .iter()
                .map(|id| queue(3, *id, QueueKind::Rx, 5))
                .chain(tx.iter().map(|id| queue(3, *id, QueueKind::Tx, 5)))
                .collect();
            virtio_irq(&interrupts, "virtio2", &napi(&record(3, 5), &polled(&queues)))
        };
        assert_eq!(polls(&[0], &[0]), Some(38));
        assert_eq!(polls(&[], &[0]), Some(39));
        assert_eq!(polls(&[1], &[]), None);
        assert_eq!(virtio_irq(&interrupts, "virtio1", &napi(&record(3, 5), &Polled::new())), None);
    }

    #[test]
    fn a_device_without_an_instance_says_what_to_do() {
        let device = |name: &str, kind: Option<&str>, up| Device {
            ifindex: 1,
            ifname: name.into(),
            driver: kind.map(str::to_owned),
            up,
            napis: vec![],
        };
        let message = |device: Device| device.why_none().expect("it has none").to_string();
        assert!(message(device("va", Some("veth"), true)).contains("ethtool -K va gro on"));
        assert!(message(device("va", Some("veth"), false)).contains("ip link set va up"));
        assert!(message(device("lo", None, true)).contains("loopback"));
        assert!(message(device("br0", Some("bridge"), true)).contains("below it"));
    }

    #[test]
    fn a_misspelt_device_gets_the_nearest_name() {
        let there: Vec<String> = (0..12).map(|n| format!("eth{n}")).collect();
        let text = absent("eht0", Some("eth0"), &there);
        assert!(text.contains("\"eht0\"") && text.contains("did you mean eth0?"), "{text}");
        assert!(text.ends_with("eth7 and 4 more)"), "{text}");
    }
}
