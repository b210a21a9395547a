//! The generic netlink family `netdev`: devices, queues and NAPI instances.
//!
//! Numbers and names are those of the kernel's specification (`netdev.yaml`); a test compares them with the running
//! kernel's. A value that a kernel does not report is `None`. The values that a policy wants, and the order of
//! writing them, are decided elsewhere.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

use rustix::io::Errno;
use serde::{Deserialize, Serialize};

use super::attribute::{Body, Malformed, attributes};
use super::error::NetlinkError;
use super::generic::Family;
use crate::settings::{Setting, Settings};

pub(super) const NETDEV_A_DEV_IFINDEX: u16 = 1;
pub(super) const NETDEV_A_DEV_XDP_FEATURES: u16 = 3;
pub(super) const NETDEV_A_DEV_XDP_ZC_MAX_SEGS: u16 = 4;
pub(super) const NETDEV_A_NAPI_IFINDEX: u16 = 1;
pub(super) const NETDEV_A_NAPI_ID: u16 = 2;
pub(super) const NETDEV_A_NAPI_IRQ: u16 = 3;
pub(super) const NETDEV_A_NAPI_PID: u16 = 4;
pub(super) const NETDEV_A_NAPI_DEFER_HARD_IRQS: u16 = 5;
pub(super) const NETDEV_A_NAPI_GRO_FLUSH_TIMEOUT: u16 = 6;
pub(super) const NETDEV_A_NAPI_IRQ_SUSPEND_TIMEOUT: u16 = 7;
pub(super) const NETDEV_A_NAPI_THREADED: u16 = 8;
pub(super) const NETDEV_A_QUEUE_ID: u16 = 1;
pub(super) const NETDEV_A_QUEUE_IFINDEX: u16 = 2;
pub(super) const NETDEV_A_QUEUE_TYPE: u16 = 3;
pub(super) const NETDEV_A_QUEUE_NAPI_ID: u16 = 4;

/// An operation of the family.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Operation {
    /// `NETDEV_CMD_DEV_GET`: devices and what they can do.
    DevGet,
    /// `NETDEV_CMD_QUEUE_GET`: queues and the instance of each.
    QueueGet,
    /// Lists NAPI instances.
    NapiGet,
    /// Lists drivers' counters.
    QstatsGet,
    /// Sets a NAPI instance.
    NapiSet,
}

impl Operation {
    /// All operations.
    pub const ALL: [Operation; 5] = [
        Operation::DevGet,
        Operation::QueueGet,
        Operation::NapiGet,
        Operation::QstatsGet,
        Operation::NapiSet,
    ];

    /// Its name in the kernel's specification.
    pub const fn name(self) -> &'static str {
        match self {
            Operation::DevGet => "dev-get",
            Operation::QueueGet => "queue-get",
            Operation::NapiGet => "napi-get",
            Operation::QstatsGet => "qstats-get",
            Operation::NapiSet => "napi-set",
        }
    }

    /// The first version of Linux that has it.
    pub const fn since(self) -> &'static str {
        match self {
            Operation::DevGet => "Linux 6.3",
            Operation::QueueGet | Operation::NapiGet => "Linux 6.8",
            Operation::QstatsGet => "Linux 6.9",
            Operation::NapiSet => "Linux 6.13",
        }
    }

    pub(super) const fn number(self) -> u8 {
        match self {
            Operation::DevGet => 1,
            Operation::QueueGet => 10,
            Operation::NapiGet => 11,
            Operation::QstatsGet => 12,
            Operation::NapiSet => 14,
        }
    }
}

impl fmt::Display for Operation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

/// The capabilities of this kernel's `netdev` family.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub struct Ability {
    /// The operations that the kernel has.
    pub operations: BTreeSet<Operation>,
    /// The settings that `napi-set` accepts, each with its largest value. If `threaded` ends at 1, there is no
    /// `busy-poll`.
    pub largest: BTreeMap<Setting, u64>,
}

impl Ability {
    /// Whether the kernel has an operation.
    pub fn has(&self, operation: Operation) -> bool {
        self.operations.contains(&operation)
    }

    /// Returns the largest value that `napi-set` accepts for a setting; `None` if the kernel does not know the setting.
    pub fn largest(&self, setting: Setting) -> Option<u64> {
        self.largest.get(&setting).copied()
    }
}

/// A device, as `dev-get` lists it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub struct DevRecord {
    /// Its interface index in this namespace.
    pub ifindex: u32,
    /// Its XDP features: a bit mask (1 `basic`, 2 `redirect`, 8 `xsk-zerocopy` ...).
    pub xdp_features: u64,
    /// Limit of fragments per packet in zero-copy mode.
    pub xdp_zc_max_segs: Option<u32>,
}

/// Direction of a queue: `enum netdev_queue_type`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum QueueKind {
    /// Receive queue, `NETDEV_QUEUE_TYPE_RX`.
    Rx,
    /// Transmit queue, `NETDEV_QUEUE_TYPE_TX`.
    Tx,
}

/// A queue, as `queue-get` lists it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub struct QueueRecord {
    /// The interface's index, as `ip link` prints it before the name.
    pub ifindex: u32,
    /// Its index among the device's queues of its kind, from 0.
    pub id: u32,
    /// Its direction.
    #[serde(rename = "type")]
    pub kind: QueueKind,
    /// The instance that polls it, if the driver reports it; veth does not.
    pub napi_id: Option<u32>,
}

/// A NAPI instance, as `napi-get` lists it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub struct NapiRecord {
    /// The interface's index, as `ip link` prints it before the name.
    pub ifindex: u32,
    /// Its id, unique in the whole kernel while it exists.
    pub id: u32,
    /// The number of its interrupt, if the driver reports it.
    pub irq: Option<u32>,
    /// The id of its thread in the initial PID namespace, if it has one.
    pub pid: Option<i32>,
    /// Its settings.
    #[serde(flatten)]
    pub settings: Settings,
}

/// The family's socket, in the network namespace of the thread that opened it.
#[derive(Debug)]
pub struct Netdev {
    family: Family,
}

impl Netdev {
    /// Opens the family.
    ///
    /// # Errors
    /// [`NetlinkError::NoFamily`] before Linux 6.3.
    pub fn open() -> Result<Netdev, NetlinkError> {
        Family::open("netdev", Operation::DevGet.since()).map(|family| Netdev { family })
    }

    /// Lists all devices of the namespace, without names: for these, see [`super::Route::links`].
    pub fn devices(&mut self) -> Result<Vec<DevRecord>, NetlinkError> {
        let operation = self.need(Operation::DevGet)?;
        self.family.dump(format_args!("dev-get"), operation, |body| body, dev)
    }

    /// Lists the queues of one device, or of all. A device that is down has none.
    ///
    /// # Errors
    /// [`NetlinkError::NoDevice`] if there is no such device.
    pub fn queues(&mut self, ifindex: Option<u32>) -> Result<Vec<QueueRecord>, NetlinkError> {
        let operation = self.need(Operation::QueueGet)?;
        let fill = |body| filter_by_device(body, NETDEV_A_QUEUE_IFINDEX, ifindex);
        self.family
            .dump(format_args!("queue-get"), operation, fill, queue)
            .map_err(|error| with_ifindex(error, ifindex))
    }

    /// Lists the NAPI instances of one device, or of all, by descending id as the kernel does. A device that is
    /// down, or whose driver registers none, has none.
    ///
    /// # Errors
    /// [`NetlinkError::NoDevice`] if there is no such device.
    pub fn napis(&mut self, ifindex: Option<u32>) -> Result<Vec<NapiRecord>, NetlinkError> {
        let operation = self.need(Operation::NapiGet)?;
        let fill = |body| filter_by_device(body, NETDEV_A_NAPI_IFINDEX, ifindex);
        self.family
            .dump(format_args!("napi-get"), operation, fill, napi)
            .map_err(|error| with_ifindex(error, ifindex))
    }

    /// Reads one instance.
    ///
    /// # Errors
    /// [`NetlinkError::NoNapi`] if no device of the namespace has the instance.
    pub fn napi(&mut self, id: u32) -> Result<NapiRecord, NetlinkError> {
        let operation = self.need(Operation::NapiGet)?;
        let fill = |body: Body| body.u32(NETDEV_A_NAPI_ID, id);
        let what = format_args!("napi-get of {id}");
        let found = self.family.ask(what, operation, fill, napi);
        let found = found.map_err(|error| with_napi_id(error, id))?;
        found.into_iter().next().ok_or_else(|| NetlinkError::Malformed {
            request: what.to_string(),
            what: "an acknowledgement without an instance",
        })
    }

    /// Changes one setting of one instance. Values are as in [`Settings`]; the kernel refuses a value above
    /// [`Ability::largest`]. For `threaded`, the call returns after the kernel has started or stopped the thread.
    ///
    /// # Errors
    /// [`NetlinkError::NoNapi`] if no device of the namespace has the instance, [`NetlinkError::NoRight`] without
    /// `CAP_NET_ADMIN`, [`NetlinkError::Refused`] with the kernel's text otherwise.
    pub fn set_napi(&mut self, id: u32, setting: Setting, value: u64) -> Result<(), NetlinkError> {
        let operation = self.need(Operation::NapiSet)?;
        let fill = |body: Body| body.u32(NETDEV_A_NAPI_ID, id).uint(number(setting), value);
        let what = format_args!("napi-set of {setting} to {value} on NAPI instance {id}");
        self.family
            .ask(what, operation, fill, |_| Ok(None::<()>))
            .map(drop)
            .map_err(|error| with_napi_id(error, id))
    }

    /// Reads the kernel's capabilities from the family and its policy.
    pub fn ability(&mut self) -> Result<Ability, NetlinkError> {
        let operations =
            Operation::ALL.into_iter().filter(|o| self.family.has(o.number())).collect();
        let mut ability = Ability { operations, largest: BTreeMap::new() };
        if !ability.has(Operation::NapiSet) {
            return Ok(ability);
        }
        let accepted = self.family.policy(Operation::NapiSet.number())?.unwrap_or_default();
        for setting in Setting::ALL {
            if let Some(largest) = accepted.get(&number(setting)) {
                ability.largest.insert(setting, largest.unwrap_or(u64::MAX));
            }
        }
        Ok(ability)
    }

    fn need(&self, operation: Operation) -> Result<u8, NetlinkError> {
        if self.family.has(operation.number()) {
            return Ok(operation.number());
        }
        Err(NetlinkError::NoOperation {
            family: "netdev",
            operation: operation.name(),
            since: operation.since(),
        })
    }
}

/// Returns the attribute of a setting.
const fn number(setting: Setting) -> u16 {
    match setting {
        Setting::Threaded => NETDEV_A_NAPI_THREADED,
        Setting::DeferHardIrqs => NETDEV_A_NAPI_DEFER_HARD_IRQS,
        Setting::GroFlushTimeout => NETDEV_A_NAPI_GRO_FLUSH_TIMEOUT,
        Setting::IrqSuspendTimeout => NETDEV_A_NAPI_IRQ_SUSPEND_TIMEOUT,
    }
}

fn filter_by_device(body: Body, kind: u16, ifindex: Option<u32>) -> Body {
    match ifindex {
        Some(ifindex) => body.u32(kind, ifindex),
        None => body,
    }
}

fn with_ifindex(error: NetlinkError, ifindex: Option<u32>) -> NetlinkError {
    match ifindex {
        Some(ifindex) => error.of_device(&format_args!("with ifindex {ifindex}")),
        None => error,
    }
}

fn with_napi_id(error: NetlinkError, id: u32) -> NetlinkError {
    match error {
        NetlinkError::Refused { errno: Errno::NOENT, .. } => NetlinkError::NoNapi { id },
        other => other,
    }
}

fn queue_kind(number: u64) -> Option<QueueKind> {
    match number {
        0 => Some(QueueKind::Rx),
        1 => Some(QueueKind::Tx),
        _ => None,
    }
}

pub(super) fn dev(list: &[u8]) -> Result<Option<DevRecord>, Malformed> {
    let (mut ifindex, mut xdp_features, mut xdp_zc_max_segs) = (None, 0, None);
    for attribute in attributes(list) {
        let attribute = attribute?;
        match attribute.kind {
            NETDEV_A_DEV_IFINDEX => ifindex = Some(attribute.u32()?),
            NETDEV_A_DEV_XDP_FEATURES => xdp_features = attribute.u64()?,
            NETDEV_A_DEV_XDP_ZC_MAX_SEGS => xdp_zc_max_segs = Some(attribute.u32()?),
            _ => {}
        }
    }
    let ifindex = ifindex.ok_or(Malformed("a device has no ifindex"))?;
    Ok(Some(DevRecord { ifindex, xdp_features, xdp_zc_max_segs }))
}

pub(super) fn queue(list: &[u8]) -> Result<Option<QueueRecord>, Malformed> {
    let (mut ifindex, mut id, mut kind, mut napi_id) = (None, None, None, None);
    for attribute in attributes(list) {
        let attribute = attribute?;
        match attribute.kind {
            NETDEV_A_QUEUE_IFINDEX => ifindex = Some(attribute.u32()?),
            NETDEV_A_QUEUE_ID => id = Some(attribute.u32()?),
            NETDEV_A_QUEUE_TYPE => kind = Some(attribute.u64()?),
            NETDEV_A_QUEUE_NAPI_ID => napi_id = Some(attribute.u32()?),
            _ => {}
        }
    }
    let ifindex = ifindex.ok_or(Malformed("a queue has no ifindex"))?;
    let id = id.ok_or(Malformed("a queue has no id"))?;
    // Skip a type of queue that a later kernel may add.
    let kind = queue_kind(kind.ok_or(Malformed("a queue has no type"))?);
    Ok(kind.map(|kind| QueueRecord { ifindex, id, kind, napi_id }))
}

pub(super) fn napi(list: &[u8]) -> Result<Option<NapiRecord>, Malformed> {
    let (mut ifindex, mut id, mut irq, mut pid) = (None, None, None, None);
    let mut settings = Settings::default();
    for attribute in attributes(list) {
        let attribute = attribute?;
        match attribute.kind {
            NETDEV_A_NAPI_IFINDEX => ifindex = Some(attribute.u32()?),
            NETDEV_A_NAPI_ID => id = Some(attribute.u32()?),
            NETDEV_A_NAPI_IRQ => irq = Some(attribute.u32()?),
            NETDEV_A_NAPI_PID => {
                let number = i32::try_from(attribute.u32()?);
                pid = Some(number.map_err(|_| Malformed("a thread's id is too large"))?);
            }
            NETDEV_A_NAPI_DEFER_HARD_IRQS => settings.defer_hard_irqs = Some(attribute.u32()?),
            NETDEV_A_NAPI_GRO_FLUSH_TIMEOUT => settings.gro_flush_timeout = Some(attribute.u64()?),
            NETDEV_A_NAPI_IRQ_SUSPEND_TIMEOUT => {
                settings.irq_suspend_timeout = Some(attribute.u64()?);
            }
            NETDEV_A_NAPI_THREADED => settings.threaded = Some(attribute.u32()?),
            _ => {}
        }
    }
    let ifindex = ifindex.ok_or(Malformed("a NAPI instance has no ifindex"))?;
    let id = id.ok_or(Malformed("a NAPI instance has no id"))?;
    Ok(Some(NapiRecord { ifindex, id, irq, pid, settings }))
}
