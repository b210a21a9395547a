//! The settings that can be changed on a device: their location, and a change from one value to another.
//!
//! An instance is identified by the queues that it polls, because its NAPI id changes whenever the driver
//! creates it anew. A change recorded earlier can therefore be found again. Nothing here reads or writes the
//! kernel.

use std::cmp::Ordering;
use std::collections::BTreeMap;
use std::fmt;

use napkin_os::sched::{Class, CpuList, still_available};
use serde::de::Error as _;
use serde::{Deserialize, Deserializer, Serialize, Serializer};

use napkin_kernel::device::{Device, Napi};
use napkin_kernel::settings::Setting;

/// A NAPI instance of a device, identified by the queues that it polls.
#[derive(Debug, Clone, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub struct Instance {
    /// Its receive queues.
    pub rx: Vec<u32>,
    /// Its transmit queues.
    pub tx: Vec<u32>,
    /// Distinguishes instances that poll the same queues, from 0: usually those without any queue.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub nth: u32,
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "the signature is serde's")]
fn is_zero(nth: &u32) -> bool {
    *nth == 0
}

impl Instance {
    /// Returns each instance of a device with its identity, in the device's order.
    pub fn all(device: &Device) -> Vec<(Instance, &Napi)> {
        let mut alike: BTreeMap<Instance, u32> = BTreeMap::new();
        let named = device.napis.iter().map(|napi| {
            let (mut rx, mut tx) = (napi.rx_queues.clone(), napi.tx_queues.clone());
            rx.sort_unstable();
            tx.sort_unstable();
            let mut instance = Instance { rx, tx, nth: 0 };
            let next = alike.entry(instance.clone()).or_default();
            instance.nth = *next;
            *next = next.saturating_add(1);
            (instance, napi)
        });
        named.collect()
    }

    /// Whether it polls transmit queues only, as igb's do where vectors are not paired. False for an instance
    /// without any queue: its driver may not report which queues it polls.
    pub fn transmits_only(&self) -> bool {
        self.rx.is_empty() && !self.tx.is_empty()
    }

    /// The number that selects its CPU: its first queue, or `nth` if it has no queue.
    pub fn number(&self) -> u32 {
        self.rx.first().or(self.tx.first()).copied().unwrap_or(self.nth)
    }
}

impl PartialEq for Instance {
    fn eq(&self, other: &Instance) -> bool {
        self.cmp(other) == Ordering::Equal
    }
}

impl PartialOrd for Instance {
    fn partial_cmp(&self, other: &Instance) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for Instance {
    fn cmp(&self, other: &Instance) -> Ordering {
        // Counted for a test: searching all instances for each instance would be quadratic.
        #[cfg(test)]
        COMPARED.set(COMPARED.get() + 1);
        (&self.rx, &self.tx, self.nth).cmp(&(&other.rx, &other.tx, other.nth))
    }
}

#[cfg(test)]
thread_local! {
    /// The number of comparisons of instances made by this thread.
    pub(super) static COMPARED: std::cell::Cell<u64> = const { std::cell::Cell::new(0) };
}

impl fmt::Display for Instance {
    /// Formats as `queue 0` if that is unambiguous, otherwise as `rx 0 tx 4`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let list = |queues: &[u32]| {
            CpuList(queues.iter().map(|queue| *queue as usize).collect()).to_string()
        };
        let mut text = match (self.rx.as_slice(), self.tx.as_slice()) {
            ([], []) => "no queue".to_owned(),
            (rx, tx) if tx.is_empty() || rx == tx => {
                format!("queue{} {}", if rx.len() == 1 { "" } else { "s" }, list(rx))
            }
            ([], tx) => format!("tx {}", list(tx)),
            (rx, tx) => format!("rx {} tx {}", list(rx), list(tx)),
        };
        if self.nth > 0 {
            text.push_str(&format!(" (instance {})", self.nth.saturating_add(1)));
        }
        f.pad(&text)
    }
}

/// A location that can be set.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Place {
    /// A setting of an instance, by netlink.
    Napi(Instance, Setting),
    /// A setting of the whole device, by sysfs, where the kernel has no setting per instance.
    Device(Setting),
    /// The CPUs of an instance's thread.
    ThreadCpus(Instance),
    /// The scheduling class of an instance's thread.
    ThreadClass(Instance),
    /// The CPUs to which an instance's interrupt may be routed.
    IrqCpus(Instance),
}

impl Place {
    /// The instance that it belongs to; `None` for a setting of the whole device.
    pub fn instance(&self) -> Option<&Instance> {
        match self {
            Place::Napi(instance, _)
            | Place::ThreadCpus(instance)
            | Place::ThreadClass(instance)
            | Place::IrqCpus(instance) => Some(instance),
            Place::Device(_) => None,
        }
    }

    /// The name of the setting, or `thread-cpus`, `thread-class`, `irq-cpus`.
    pub fn what(&self) -> &'static str {
        match self {
            Place::Napi(_, setting) | Place::Device(setting) => setting.name(),
            Place::ThreadCpus(_) => "thread-cpus",
            Place::ThreadClass(_) => "thread-class",
            Place::IrqCpus(_) => "irq-cpus",
        }
    }

    /// The part of the device that it belongs to: `queue 0`, or `device` for all of it.
    pub fn subject(&self) -> String {
        self.instance().map_or_else(|| "device".to_owned(), Instance::to_string)
    }

    /// Whether it is a property of the instance's thread, lost when the thread ends.
    pub fn of_thread(&self) -> bool {
        matches!(self, Place::ThreadCpus(_) | Place::ThreadClass(_))
    }

    /// Whether `now` is the part of `before` that the kernel accepts: it drops the offline CPUs from a thread's
    /// affinity.
    pub(crate) fn is_online_part_of(&self, before: &Value, now: &Value, on: &[usize]) -> bool {
        match (self, before, now) {
            (Place::ThreadCpus(_), Value::Cpus(before), Value::Cpus(now)) => {
                *now == still_available(before, on)
            }
            _ => false,
        }
    }

    /// Whether `now` is the fallback affinity that the kernel assigns when all CPUs of `set` have gone offline.
    /// An interrupt gets the CPUs that are online at that time, of which some may have gone offline since; a
    /// thread gets all possible CPUs.
    pub(crate) fn is_offline_fallback(&self, set: &Value, now: &Value, on: &[usize]) -> bool {
        match (self, set, now) {
            (Place::IrqCpus(_) | Place::ThreadCpus(_), Value::Cpus(set), Value::Cpus(now)) => {
                let kept = |cpu: &usize| matches!(self, Place::IrqCpus(_)) && now.contains(cpu);
                let lost = |cpu: &usize| !on.contains(cpu) && !kept(cpu);
                set.iter().all(lost) && on.iter().all(|cpu| now.contains(cpu))
            }
            _ => false,
        }
    }

    /// Formats a value in the unit of this place.
    pub fn show(&self, value: &Value) -> String {
        match (self, value) {
            (Place::Napi(_, setting) | Place::Device(setting), Value::Number(number)) => {
                setting.show(*number)
            }
            (_, value) => value.to_string(),
        }
    }
}

/// A place, with the NAPI id that its instance had at the time.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub struct Spot {
    /// The place, by the queues that the instance polled then.
    pub place: Place,
    /// The instance's NAPI id; `None` for the whole device, and where it was not recorded.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub napi_id: Option<u32>,
}

/// A kernel thread, identified uniquely for the time since boot.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub struct ThreadId {
    /// Thread ID: a name in `/proc/PID/task`.
    pub tid: i32,
    /// Start time in ticks since boot, which distinguishes it from later threads with the same id.
    pub start_ticks: u64,
}

/// The flat JSON form of a place: `{"subject": "queue 0", "rx": [0], "tx": [], "what": "threaded"}`.
#[derive(Serialize)]
struct PlaceJson<'a> {
    subject: String,
    rx: &'a [u32],
    tx: &'a [u32],
    what: &'static str,
}

impl<'a> PlaceJson<'a> {
    fn of(place: &'a Place) -> PlaceJson<'a> {
        let none = (&[][..], &[][..]);
        let (rx, tx) = place.instance().map_or(none, |it| (it.rx.as_slice(), it.tx.as_slice()));
        PlaceJson { subject: place.subject(), rx, tx, what: place.what() }
    }
}

pub(super) fn as_json<S: Serializer>(place: &Place, serializer: S) -> Result<S::Ok, S::Error> {
    PlaceJson::of(place).serialize(serializer)
}

pub(super) fn all_as_json<S: Serializer>(
    places: &[Place],
    serializer: S,
) -> Result<S::Ok, S::Error> {
    serializer.collect_seq(places.iter().map(PlaceJson::of))
}

/// The value of a place.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Value {
    /// The value of a setting, in the setting's own unit.
    Number(u64),
    /// CPUs, in rising order.
    Cpus(Vec<usize>),
    /// A scheduling class.
    Class(Class),
}

impl Value {
    /// Builds a sorted list of CPUs without duplicates.
    pub fn cpus(cpus: &[usize]) -> Value {
        let mut cpus = cpus.to_vec();
        cpus.sort_unstable();
        cpus.dedup();
        Value::Cpus(cpus)
    }
}

impl fmt::Display for Value {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Value::Number(number) => f.pad(&number.to_string()),
            Value::Cpus(cpus) => CpuList(cpus.clone()).fmt(f),
            Value::Class(class) => class.fmt(f),
        }
    }
}

/// The serialised form of a value: a number, a list of numbers, or `fair` and `fifo 10`.
#[derive(Serialize, Deserialize)]
#[serde(untagged)]
enum Written {
    Number(u64),
    Cpus(Vec<usize>),
    Class(String),
}

impl Serialize for Value {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match self {
            Value::Number(number) => Written::Number(*number),
            Value::Cpus(cpus) => Written::Cpus(cpus.clone()),
            class @ Value::Class(_) => Written::Class(class.to_string()),
        }
        .serialize(serializer)
    }
}

impl<'de> Deserialize<'de> for Value {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Value, D::Error> {
        match Written::deserialize(deserializer)? {
            Written::Number(number) => Ok(Value::Number(number)),
            Written::Cpus(cpus) => Ok(Value::cpus(&cpus)),
            Written::Class(class) => class.parse().map(Value::Class).map_err(D::Error::custom),
        }
    }
}

/// A change of one place from one value to another.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub struct Change {
    /// The place on the device.
    #[serde(flatten, serialize_with = "as_json")]
    pub place: Place,
    /// The previous value; `None` where the place does not exist yet (a thread that is still to be created).
    pub old: Option<Value>,
    /// The new value.
    pub new: Value,
}

impl Change {
    /// Whether the value differs: a value that is only remembered is recorded as a change to itself.
    pub fn is_change(&self) -> bool {
        self.old.as_ref() != Some(&self.new)
    }

    /// Formats the previous value; a dash where the place did not exist.
    pub fn from(&self) -> String {
        self.old.as_ref().map_or_else(|| "-".to_owned(), |old| self.place.show(old))
    }

    /// Formats the new value.
    pub fn to(&self) -> String {
        self.place.show(&self.new)
    }
}

impl fmt::Display for Change {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (place, old, new) = (&self.place, self.from(), self.to());
        write!(f, "{} of {} from {old} to {new}", place.what(), place.subject())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn instance(rx: &[u32], tx: &[u32]) -> Instance {
        Instance { rx: rx.to_vec(), tx: tx.to_vec(), nth: 0 }
    }

    #[test]
    fn an_instance_is_called_by_its_queues() {
        for (rx, tx, expected) in [
            (&[0][..], &[][..], "queue 0"),
            (&[3], &[3], "queue 3"),
            (&[0, 1, 2], &[], "queues 0-2"),
            (&[], &[4], "tx 4"),
            (&[0], &[0, 4], "rx 0 tx 0,4"),
            (&[], &[], "no queue"),
        ] {
            assert_eq!(instance(rx, tx).to_string(), expected);
        }
    }

    #[test]
    fn what_is_written_down_is_read_back() {
        let queue = instance(&[1], &[]);
        for (place, value, shown) in [
            (Place::Napi(queue.clone(), Setting::GroFlushTimeout), Value::Number(20_000), "20us"),
            (Place::Device(Setting::Threaded), Value::Number(1), "enabled"),
            (Place::ThreadCpus(queue.clone()), Value::cpus(&[3, 1, 2]), "1-3"),
            (Place::ThreadClass(queue.clone()), Value::Class(Class::Fifo(10)), "fifo 10"),
            (Place::ThreadClass(queue.clone()), Value::Class(Class::Rr(9)), "rr 9"),
            (Place::ThreadClass(queue.clone()), Value::Class(Class::Fair), "fair"),
            (Place::ThreadClass(queue.clone()), Value::Class(Class::Nice(-20)), "fair -20"),
            (Place::IrqCpus(queue), Value::Cpus(Vec::new()), ""),
        ] {
            assert_eq!(place.show(&value), shown);
            let written = serde_json::to_string(&(&place, &value)).expect("it can be written");
            let read: (Place, Value) = serde_json::from_str(&written).expect(&written);
            assert_eq!(read, (place, value));
        }
    }

    #[test]
    fn a_class_that_does_not_exist_is_refused() {
        for wrong in ["\"fifo 0\"", "\"fifo 100\"", "\"other\"", "-1", "null", "1.5"] {
            assert!(serde_json::from_str::<Value>(wrong).is_err(), "{wrong}");
        }
    }
}
