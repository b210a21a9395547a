//! The changes that a policy needs on a device, and their order.
//!
//! Pure: computed from a snapshot of the device, the probed kernel and the options. A place that has the wanted
//! value already needs no change, so a second apply plans nothing.

use std::collections::BTreeSet;

use napkin_os::sched::{Class, CpuList};
use napkin_policy::{Policy, Threaded};
use serde::Serialize;

use super::backend::Snapshot;
use super::error::PlanError;
use super::suspension::is_off;
use crate::place::{Change, Instance, Place, Value};
use crate::support::{self, Scope, Warning};
use napkin_kernel::device::Napi;
use napkin_kernel::probe::{Interface, Kernel, KernelSupport};
use napkin_kernel::settings::{Setting, Settings};

/// The options of applying a policy.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Options {
    /// Only the instance that polls this receive queue.
    pub queue: Option<u32>,
    /// Only the instances of these ids; empty: all.
    pub napis: Vec<u32>,
    /// Only these settings; empty: all. The others stay as they are.
    pub settings: Vec<Setting>,
    /// Only the placement of interrupts and threads, by `cpus`: no setting and no class.
    pub placement_only: bool,
    /// Also the instances that poll transmit queues only. By default they are left alone: a policy concerns
    /// reception, and a thread that spins for transmit completions gains nothing.
    pub transmit: bool,
    /// The CPUs to use: the interrupt and the thread of queue i go to the i-th of them, modulo their number.
    /// Empty: they stay where they are.
    pub cpus: Vec<usize>,
    /// Skip an interrupt or thread whose CPU is offline, instead of refusing the plan.
    pub skip_cpus_off: bool,
    /// The priority of the threads in `SCHED_FIFO`, 1 to 99; `None` leaves their class alone.
    pub rt: Option<u8>,
}

/// The changes that a policy needs.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub struct Plan {
    /// The device's name.
    pub ifname: String,
    /// The interface's index, as `ip link` prints it before the name.
    pub ifindex: u32,
    /// The policy as text, in the form that `Policy` parses.
    pub policy: String,
    /// The changes, in a safe order.
    pub changes: Vec<Change>,
    /// The number of places that have the wanted value already.
    pub already: usize,
    /// The suspensions that are wanted off, whether or not they are off now.
    #[serde(skip)]
    pub(super) off: Vec<Place>,
    /// Parts of the policy that are not set here.
    pub warnings: Vec<Warning>,
    /// Whether CPUs were given but there is neither an interrupt nor a thread to place.
    pub nothing_to_place: bool,
    /// The number of instances that poll transmit queues only and are left alone.
    pub transmit_left: usize,
}

/// Plans the device part of a policy.
///
/// # Errors
/// If the kernel lacks a feature, or an option names a queue or CPU that does not exist.
pub fn plan(
    policy: &Policy,
    at: &Snapshot,
    kernel: &Kernel,
    options: &Options,
) -> Result<Plan, PlanError> {
    let Wanted { places, warnings, nothing_to_place, transmit_left } =
        wanted(policy, at, kernel, options)?;
    let all = places.len();
    let off = places.iter().filter(|(place, value)| is_off(place, value));
    let off = off.map(|(place, _)| place.clone()).collect();
    let changes = changes(places, at);
    Ok(Plan {
        ifname: at.device.ifname.clone(),
        ifindex: at.device.ifindex,
        policy: policy.to_string(),
        already: all - changes.len(),
        off,
        changes,
        warnings,
        nothing_to_place,
        transmit_left,
    })
}

/// Returns a change for each place that does not have its value yet, in a safe order.
pub fn changes(places: impl IntoIterator<Item = (Place, Value)>, at: &Snapshot) -> Vec<Change> {
    let mut changes: Vec<Change> = places
        .into_iter()
        .map(|(place, new)| Change { old: at.values.get(&place).cloned(), place, new })
        .filter(|change| change.old.as_ref() != Some(&change.new))
        .collect();
    sort(&mut changes, |change| (&change.place, &change.new, change.old.as_ref()));
    changes
}

/// All values that a policy wants on a device, set already or not.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Wanted {
    /// Each place with its wanted value, unordered.
    pub places: Vec<(Place, Value)>,
    /// Parts of the policy that are not set here.
    pub warnings: Vec<Warning>,
    /// Whether CPUs were given but there is neither an interrupt nor a thread to place.
    pub nothing_to_place: bool,
    /// The number of instances that poll transmit queues only and are left alone.
    pub transmit_left: usize,
}

/// Computes the values that a policy wants on a device.
///
/// # Errors
/// As [`plan`].
pub fn wanted(
    policy: &Policy,
    at: &Snapshot,
    kernel: &Kernel,
    options: &Options,
) -> Result<Wanted, PlanError> {
    let warnings = support::check(policy, kernel, Scope::Device)?;
    let busy = policy.instance.threaded == Threaded::BusyPoll;
    check_options(policy, at, kernel, options)?;
    let (instances, transmit_left) = chosen(at, options)?;
    let wanted = Settings::of(&policy.instance);
    let threaded = wanted.threaded.unwrap_or(0) != 0;

    let mut wishes: Vec<(Place, Value)> = Vec::new();
    let asked = |it: &Setting| {
        let named = options.settings.is_empty() || options.settings.contains(it);
        named && !options.placement_only
    };
    for setting in Setting::ALL.into_iter().filter(asked) {
        let value = Value::Number(wanted.get(setting).unwrap_or(0));
        match kernel.way(setting) {
            // On a kernel without it the setting is off, and `check` has refused any other value.
            None => {}
            Some(Interface::Napi { .. }) => wishes.extend(
                instances.iter().map(|(it, _)| (Place::Napi(it.clone(), setting), value.clone())),
            ),
            Some(Interface::Device { .. }) => {
                let place = Place::Device(setting);
                if options.queue.is_some() && at.values.get(&place) != Some(&value) {
                    return Err(PlanError::QueueAlone {
                        ifname: at.device.ifname.clone(),
                        setting,
                        release: kernel.release.clone(),
                        since: if setting == Setting::Threaded { "6.17" } else { "6.13" },
                    });
                }
                wishes.push((place, value));
            }
        }
    }
    let mut placed = false;
    // An interrupt that several instances share goes to the CPU of the first one.
    let mut irqs = BTreeSet::new();
    for (instance, napi) in &instances {
        let cpu = cpu_of(instance, &options.cpus);
        if let Some(cpu) = cpu.filter(|cpu| !options.skip_cpus_off || at.cpus.contains(cpu)) {
            if threaded {
                wishes.push((Place::ThreadCpus(instance.clone()), Value::Cpus(vec![cpu])));
            }
            if napi.irq.is_some_and(|irq| irqs.insert(irq)) {
                wishes.push((Place::IrqCpus(instance.clone()), Value::Cpus(vec![cpu])));
            }
            placed |= threaded || napi.irq.is_some();
        }
        let class = match options.rt {
            Some(priority) => Some(Class::Fifo(priority)),
            // A class left from before: a thread that is to spin must not be real-time.
            None if busy && !options.placement_only => Some(Class::Fair),
            None => None,
        };
        let place = Place::ThreadClass(instance.clone());
        let current = at.values.get(&place);
        if let Some(Value::Class(other @ Class::Other(_))) = current {
            if options.rt.is_some() {
                return Err(PlanError::OtherClass {
                    ifname: at.device.ifname.clone(),
                    instance: instance.to_string(),
                    class: *other,
                });
            }
            // It could not be put back.
            continue;
        }
        match class {
            // A thread that is still to be created is fair, and any nice value is harmless.
            Some(Class::Fair) if matches!(current, None | Some(Value::Class(Class::Nice(_)))) => {}
            Some(class) => wishes.push((place, Value::Class(class))),
            None => {}
        }
    }

    let nothing_to_place = !options.cpus.is_empty() && !placed;
    Ok(Wanted { places: wishes, warnings, nothing_to_place, transmit_left })
}

fn check_options(
    policy: &Policy,
    at: &Snapshot,
    kernel: &Kernel,
    options: &Options,
) -> Result<(), PlanError> {
    if let Some(priority) = options.rt {
        if !(1..=99).contains(&priority) {
            return Err(PlanError::Priority { priority });
        }
        match policy.instance.threaded {
            Threaded::BusyPoll => return Err(PlanError::RealTimeSpin),
            Threaded::Enabled => {}
            _ => {
                // This fails first on a kernel that has no NAPI threads.
                support::check(&Policy::THREADED, kernel, Scope::Device)?;
                return Err(PlanError::NoThread { policy: policy.to_string() });
            }
        }
    }
    let off = options.cpus.iter().find(|cpu| !at.cpus.contains(cpu));
    if let Some(cpu) = off.filter(|_| !options.skip_cpus_off) {
        let online = CpuList(at.cpus.clone()).to_string();
        return Err(PlanError::Cpu { cpu: *cpu, online });
    }
    let of_instances = [
        ("--queue", options.queue.is_some()),
        ("--cpus", !options.cpus.is_empty()),
        ("--rt", options.rt.is_some()),
    ];
    if kernel.instances == KernelSupport::No {
        return match of_instances.into_iter().find(|(_, given)| *given) {
            Some((option, _)) => {
                Err(PlanError::NoInstances { option, release: kernel.release.clone() })
            }
            None => Ok(()),
        };
    }
    match at.device.why_none() {
        Some(why) => Err(why.into()),
        None => Ok(()),
    }
}

/// Instances with their identities.
type Instances<'a> = Vec<(Instance, &'a Napi)>;

/// Returns the instances to set, and the number of those left alone because they only transmit.
fn chosen<'a>(at: &'a Snapshot, options: &Options) -> Result<(Instances<'a>, usize), PlanError> {
    let mut instances = Instance::all(&at.device);
    instances.retain(|(_, napi)| options.napis.is_empty() || options.napis.contains(&napi.id));
    let Some(queue) = options.queue else {
        let all = instances.len();
        instances.retain(|(instance, _)| options.transmit || !instance.transmits_only());
        let left = all - instances.len();
        return Ok((instances, left));
    };
    let mut queues: Vec<usize> =
        instances.iter().flat_map(|(it, _)| &it.rx).map(|queue| *queue as usize).collect();
    queues.sort_unstable();
    instances.retain(|(instance, _)| instance.rx.contains(&queue));
    if instances.is_empty() {
        let queues = if queues.is_empty() { "none".into() } else { CpuList(queues).to_string() };
        return Err(PlanError::NoQueue { ifname: at.device.ifname.clone(), queue, there: queues });
    }
    Ok((instances, 0))
}

fn cpu_of(instance: &Instance, cpus: &[usize]) -> Option<usize> {
    let place = (instance.number() as usize).checked_rem(cpus.len())?;
    cpus.get(place).copied()
}

/// Sorts writes so that every state in between is safe: instance by instance, settings of the whole device
/// first.
///
/// Timeouts are set before the count that activates them, and the count is cleared before the timeouts.
/// Suspension needs deferral, so it is set last and cleared first. A thread leaves the real-time class before
/// it may spin, and gets its CPU and class once it exists. `of` returns the place, its new value, and its
/// current one, if any.
pub(super) fn sort<T>(writes: &mut [T], of: impl Fn(&T) -> (&Place, &Value, Option<&Value>)) {
    writes.sort_by_cached_key(|write| {
        let (place, value, from) = of(write);
        (place.instance().cloned(), rank(place, value, from))
    });
}

/// Returns the settings that have a value, in the order in which they can be set on an instance.
pub fn in_order(settings: &Settings) -> Vec<(Setting, u64)> {
    let value = |setting| Some((setting, settings.get(setting)?));
    let mut all: Vec<_> = Setting::ALL.into_iter().filter_map(value).collect();
    all.sort_by_key(|(setting, value)| setting_rank(*setting, *value == 0));
    all
}

const fn setting_rank(setting: Setting, off: bool) -> u8 {
    match setting {
        Setting::IrqSuspendTimeout if off => 0,
        Setting::DeferHardIrqs if off => 1,
        Setting::GroFlushTimeout => 2,
        Setting::DeferHardIrqs => 3,
        Setting::IrqSuspendTimeout => 4,
        Setting::Threaded => 6,
    }
}

fn rank(place: &Place, value: &Value, from: Option<&Value>) -> u8 {
    let real_time = |value: &Value| matches!(value, Value::Class(Class::Fifo(_) | Class::Rr(_)));
    // All other classes, for which a fair one was a substitute, are set on a thread that was created anew.
    let given_up =
        *value == Value::Class(Class::Fair) || !real_time(value) && from.is_some_and(real_time);
    let off = *value == Value::Number(0);
    match place {
        Place::Napi(_, setting) | Place::Device(setting) => setting_rank(*setting, off),
        Place::ThreadClass(_) if given_up => 5,
        Place::ThreadCpus(_) => 7,
        Place::ThreadClass(_) => 8,
        Place::IrqCpus(_) => 9,
    }
}
