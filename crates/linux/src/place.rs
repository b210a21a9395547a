//! What can be changed on a device: where, and from what to what.
//!
//! An instance is named by what it polls, because its id changes whenever the driver makes it anew;
//! so a change that was written down yesterday can be found again today. Nothing here reads or
//! writes the kernel.

use std::cmp::Ordering;
use std::collections::BTreeMap;
use std::fmt;

use napkin_os::sched::{Class, CpuList, left_of};
use serde::de::Error as _;
use serde::{Deserialize, Deserializer, Serialize, Serializer};

use napkin_kernel::device::{Device, Napi};
use napkin_kernel::settings::Setting;

/// A NAPI instance of a device, by what it polls.
#[derive(Debug, Clone, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub struct Instance {
    /// Its receive queues.
    pub rx: Vec<u32>,
    /// Its transmit queues.
    pub tx: Vec<u32>,
    /// Which one of several that poll the same: instances without any queue, as a rule.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub nth: u32,
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "the signature is serde's")]
fn is_zero(nth: &u32) -> bool {
    *nth == 0
}

impl Instance {
    /// Each instance of a device with its name, in the device's order.
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

    /// Whether it polls transmit queues alone, as igb's do where vectors are not paired. One that polls
    /// none at all may be of a driver that does not say which.
    pub fn transmits_only(&self) -> bool {
        self.rx.is_empty() && !self.tx.is_empty()
    }

    /// The number by which its CPU is chosen: its first queue's, or its place among those without.
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
        // A test counts them: what looks through all instances for each of them is quadratic.
        #[cfg(test)]
        COMPARED.set(COMPARED.get() + 1);
        (&self.rx, &self.tx, self.nth).cmp(&(&other.rx, &other.tx, other.nth))
    }
}

#[cfg(test)]
thread_local! {
    /// How often two instances were compared by this thread.
    pub(super) static COMPARED: std::cell::Cell<u64> = const { std::cell::Cell::new(0) };
}

impl fmt::Display for Instance {
    /// `queue 0` as long as that says it, otherwise `rx 0 tx 4`.
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

/// One thing that can be changed.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Place {
    /// A setting of an instance, by netlink.
    Napi(Instance, Setting),
    /// A setting of the whole device, by sysfs: where the kernel knows no other.
    Device(Setting),
    /// The CPUs of an instance's thread.
    ThreadCpus(Instance),
    /// The scheduling class of an instance's thread.
    ThreadClass(Instance),
    /// The CPUs to which an instance's interrupt may go.
    IrqCpus(Instance),
}

impl Place {
    /// The instance that it belongs to, unless it is the device's.
    pub fn instance(&self) -> Option<&Instance> {
        match self {
            Place::Napi(instance, _)
            | Place::ThreadCpus(instance)
            | Place::ThreadClass(instance)
            | Place::IrqCpus(instance) => Some(instance),
            Place::Device(_) => None,
        }
    }

    /// What is set there: the setting's name, or `thread-cpus`, `thread-class`, `irq-cpus`.
    pub fn what(&self) -> &'static str {
        match self {
            Place::Napi(_, setting) | Place::Device(setting) => setting.name(),
            Place::ThreadCpus(_) => "thread-cpus",
            Place::ThreadClass(_) => "thread-class",
            Place::IrqCpus(_) => "irq-cpus",
        }
    }

    /// Where it is: `queue 0`, or `device` for all of it.
    pub fn subject(&self) -> String {
        self.instance().map_or_else(|| "device".to_owned(), Instance::to_string)
    }

    /// Whether it is a property of the instance's thread, and gone with it.
    pub fn of_thread(&self) -> bool {
        matches!(self, Place::ThreadCpus(_) | Place::ThreadClass(_))
    }

    /// Whether `now` is what can be had of what was there before: the kernel leaves out the CPUs of a
    /// thread that are not on.
    pub(crate) fn is_left_of(&self, before: &Value, now: &Value, on: &[usize]) -> bool {
        match (self, before, now) {
            (Place::ThreadCpus(_), Value::Cpus(before), Value::Cpus(now)) => {
                *now == left_of(before, on)
            }
            _ => false,
        }
    }

    /// Whether `now` is what the kernel gives an interrupt or a thread whose CPUs have all gone off: to an interrupt those
    /// that are on then, of which others may have gone off since, to a thread all that there may ever be.
    pub(crate) fn is_driven_off(&self, set: &Value, now: &Value, on: &[usize]) -> bool {
        match (self, set, now) {
            (Place::IrqCpus(_) | Place::ThreadCpus(_), Value::Cpus(set), Value::Cpus(now)) => {
                let kept = |cpu: &usize| matches!(self, Place::IrqCpus(_)) && now.contains(cpu);
                let lost = |cpu: &usize| !on.contains(cpu) && !kept(cpu);
                set.iter().all(lost) && on.iter().all(|cpu| now.contains(cpu))
            }
            _ => false,
        }
    }

    /// A value as this place's is written.
    pub fn show(&self, value: &Value) -> String {
        match (self, value) {
            (Place::Napi(_, setting) | Place::Device(setting), Value::Number(number)) => {
                setting.show(*number)
            }
            (_, value) => value.to_string(),
        }
    }
}

/// A place, with the instance's id at the time.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub struct Spot {
    /// Where, by the queues that the instance polled.
    pub place: Place,
    /// The instance's NAPI id; `None` of the whole device, and where it was not written down.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub napi_id: Option<u32>,
}

/// A thread of the kernel's, for as long as it lives.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub struct ThreadId {
    /// Thread ID: a name in `/proc/PID/task`.
    pub tid: i32,
    /// When it was started, in ticks since the boot: ids are used again.
    pub start_ticks: u64,
}

/// A place as it is in JSON, flat: `{"subject": "queue 0", "rx": [0], "tx": [], "what":
/// "threaded"}`.
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

/// What a place is set to.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Value {
    /// A setting's, in its own unit.
    Number(u64),
    /// CPUs, in rising order.
    Cpus(Vec<usize>),
    /// A scheduling class.
    Class(Class),
}

impl Value {
    /// CPUs, in rising order whatever order they came in.
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

/// How a value is written down: a number, a list of numbers, or `fair` and `fifo 10`.
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

/// One change: what, from, to.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub struct Change {
    /// The place on the device, or the setting of the process.
    #[serde(flatten, serialize_with = "as_json")]
    pub place: Place,
    /// What it was; `None` where it does not exist yet (a thread that is still to be made).
    pub old: Option<Value>,
    /// What it becomes.
    pub new: Value,
}

impl Change {
    /// Whether it changes anything: what is only remembered is written down as a change to what it is.
    pub fn is_change(&self) -> bool {
        self.old.as_ref() != Some(&self.new)
    }

    /// What it was, as it is shown: a dash where it did not exist.
    pub fn from(&self) -> String {
        self.old.as_ref().map_or_else(|| "-".to_owned(), |old| self.place.show(old))
    }

    /// What it becomes, as it is shown.
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
        for (rx, tx, said) in [
            (&[0][..], &[][..], "queue 0"),
            (&[3], &[3], "queue 3"),
            (&[0, 1, 2], &[], "queues 0-2"),
            (&[], &[4], "tx 4"),
            (&[0], &[0, 4], "rx 0 tx 0,4"),
            (&[], &[], "no queue"),
        ] {
            assert_eq!(instance(rx, tx).to_string(), said);
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
