//! Combines all wishes for one device.
//!
//! A pure function of the wishes and a snapshot of the device. Each place (an instance's setting, an
//! interrupt's affinity) belongs to one wish: the first in the order of the files. A later wish for the same
//! place is not held on that device at all, as half of it would be another policy.

use std::collections::{BTreeMap, BTreeSet};

use napkin_kernel::probe::Kernel;
use napkin_linux::apply::{Options, PlanError, Snapshot, wanted};
use napkin_linux::place::{Place, Value};

use crate::wish::Wish;

/// The combined wishes for a device.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Assignment {
    /// The wished value of each place.
    pub wanted: BTreeMap<Place, Value>,
    /// The share of each wish, in the order of the wishes.
    pub shares: Vec<Share>,
}

/// The part of one wish on a device.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Share {
    /// The places that belong to it.
    pub places: Vec<Place>,
    /// What cannot be had of it, and why.
    pub refused: Vec<String>,
}

impl Assignment {
    /// Leaves all places of the wish that owns `place` as they are on the device, and returns the index of that wish.
    pub fn leave(&mut self, place: &Place, at: &Snapshot) -> Option<usize> {
        let which = self.shares.iter().position(|share| share.places.contains(place))?;
        self.leave_wish(which, at);
        Some(which)
    }

    /// Leaves all places of the wish with this index as they are on the device; does nothing if there is no
    /// such wish.
    pub fn leave_wish(&mut self, which: usize, at: &Snapshot) {
        let Some(share) = self.shares.get_mut(which) else { return };
        for place in std::mem::take(&mut share.places) {
            match at.values.get(&place) {
                Some(now) => self.wanted.insert(place, now.clone()),
                None => self.wanted.remove(&place),
            };
        }
    }
}

/// Combines `wishes`, all of which match this device.
pub fn assign(wishes: &[&Wish], at: &Snapshot, kernel: &Kernel) -> Assignment {
    let mut assignment = Assignment::default();
    let mut owners: BTreeMap<Place, &Wish> = BTreeMap::new();
    let mut irqs = BTreeSet::new();
    let irq = |place: &Place| match place {
        Place::IrqCpus(instance) => at.napi(instance)?.irq,
        _ => None,
    };
    for wish in wishes {
        let (mut places, mut refused) = of_wish(wish, at, kernel);
        let taken = places.keys().find_map(|place| Some((place, *owners.get(place)?)));
        let share = match taken {
            Some((place, other)) => {
                refused.push(format!(
                    "{} of {} is held by the wish {} ({}): remove one of them, or give each queues of \
                     its own",
                    place.subject(),
                    at.device.ifname,
                    other.name,
                    other.place()
                ));
                Share { places: Vec::new(), refused }
            }
            None => {
                // An interrupt that several instances share can go to one place only: the first wish's.
                places.retain(|place, _| irq(place).is_none_or(|irq| irqs.insert(irq)));
                owners.extend(places.keys().map(|place| (place.clone(), *wish)));
                let share = Share { places: places.keys().cloned().collect(), refused };
                assignment.wanted.extend(places);
                share
            }
        };
        assignment.shares.push(share);
    }
    assignment
}

/// Returns the wished values of one wish, and what cannot be had of it.
fn of_wish(wish: &Wish, at: &Snapshot, kernel: &Kernel) -> (BTreeMap<Place, Value>, Vec<String>) {
    let (mut places, mut refused) = (BTreeMap::new(), Vec::new());
    for options in wish.options() {
        let found = match wanted(&wish.policy, at, kernel, &options) {
            // Hold the rest: what is assigned to no CPU, or to another one.
            Err(error @ PlanError::Cpu { .. }) => {
                let why = error.to_string();
                if !refused.contains(&why) {
                    refused.push(why);
                }
                let options = Options { skip_cpus_off: true, ..options };
                wanted(&wish.policy, at, kernel, &options)
            }
            found => found,
        };
        match found {
            Ok(found) => places.extend(found.places),
            // Hold the other queues.
            Err(error @ PlanError::NoQueue { .. }) => refused.push(error.to_string()),
            // Nothing of this wish can be held.
            Err(error) => return (BTreeMap::new(), vec![error.to_string()]),
        }
    }
    (places, refused)
}

#[cfg(test)]
mod tests {
    use super::*;
    use napkin_kernel::device::{Device, Napi};
    use napkin_kernel::probe::{Interface, KernelSupport};
    use napkin_kernel::settings::{Setting, Settings};
    use napkin_linux::place::Instance;
    use std::path::Path;

    #[test]
    fn what_goes_to_a_cpu_that_is_off_is_said_and_the_rest_is_wanted() {
        let napi = |queue: u32| Napi {
            id: 513 + queue,
            rx_queues: vec![queue],
            tx_queues: vec![queue],
            irq: Some(24 + queue),
            irq_cpus: Some(vec![0, 1, 2]),
            pid: None,
            thread_cpus: None,
            thread_class: None,
            settings: Settings::default(),
        };
        let (ifname, napis) = ("va".into(), vec![napi(0), napi(1)]);
        let device = Device { ifindex: 7, ifname, driver: None, up: true, napis };
        let at = Snapshot::new(device, BTreeMap::new(), vec![0, 1, 2], None);
        let way = |setting| (setting, Interface::Napi { largest: u64::MAX });
        let kernel = Kernel {
            release: "6.19".into(),
            instances: KernelSupport::Yes,
            settings: Setting::ALL.map(way).into(),
            queue_stats: KernelSupport::No,
            epoll_params: KernelSupport::No,
            incoming_napi_id: KernelSupport::No,
            socket_prefer_busy_poll: KernelSupport::No,
            pidfd: KernelSupport::No,
            pidfd_getfd: KernelSupport::No,
            namespace_cookie: KernelSupport::No,
        };
        let queue = |queue: u32| Instance { rx: vec![queue], tx: vec![queue], nth: 0 };
        for queues in ["", "queues = \"0-1\"\n"] {
            let rest = "cpus = \"1,3\"\n[match]\nname = \"va\"\n";
            let text = format!("policy = \"threaded\"\n{queues}{rest}");
            let wish = Wish::parse(Path::new("/etc/napkin/a.toml"), &text).expect("a wish");
            let assignment = assign(&[&wish], &at, &kernel);
            let refused = &assignment.shares[0].refused;
            assert!(
                matches!(&refused[..], [why] if why.contains("CPU 3 is offline")),
                "{refused:?}"
            );
            let wanted = |place: &Place| assignment.wanted.get(place).cloned();
            for place in [Place::IrqCpus, Place::ThreadCpus] {
                assert_eq!(wanted(&place(queue(0))), Some(Value::Cpus(vec![1])));
                assert_eq!(wanted(&place(queue(1))), None);
            }
            let threaded = Place::Napi(queue(1), Setting::Threaded);
            assert_eq!(wanted(&threaded), Some(Value::Number(1)));
        }
    }

    #[test]
    fn who_wants_what_is_refused_is_left_as_it_is_and_nobody_else() {
        let (place, number) = (Place::Device, Value::Number);
        let device =
            Device { ifindex: 7, ifname: "va".into(), driver: None, up: true, napis: vec![] };
        let now = BTreeMap::from([
            (place(Setting::GroFlushTimeout), number(1)),
            (place(Setting::Threaded), number(0)),
        ]);
        let at = Snapshot::new(device, now, vec![0], None);
        let share = |settings: &[Setting]| Share {
            places: settings.iter().copied().map(place).collect(),
            refused: vec![],
        };
        let mut assignment = Assignment {
            wanted: BTreeMap::from([
                (place(Setting::GroFlushTimeout), number(20)),
                (place(Setting::DeferHardIrqs), number(100)),
                (place(Setting::Threaded), number(1)),
            ]),
            // The kernel does not have the second place yet.
            shares: vec![
                share(&[Setting::Threaded]),
                share(&[Setting::GroFlushTimeout, Setting::DeferHardIrqs]),
            ],
        };
        assert_eq!(assignment.leave(&place(Setting::DeferHardIrqs), &at), Some(1));
        let left = BTreeMap::from([
            (place(Setting::GroFlushTimeout), number(1)),
            (place(Setting::Threaded), number(1)),
        ]);
        assert_eq!(assignment.wanted, left);
        // The share is empty now.
        assert_eq!(assignment.leave(&place(Setting::GroFlushTimeout), &at), None);
    }
}
