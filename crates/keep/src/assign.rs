//! What all wishes together want of one device.
//!
//! Pure: wishes and a device as it was found go in. An instance, and whatever else can be set, has one
//! wish: the first in the order of the files. A later one that wants the same is not held on that
//! device, as half of it would be another policy.

use std::collections::{BTreeMap, BTreeSet};

use napkin_kernel::probe::Kernel;
use napkin_linux::apply::{Options, PlanError, Snapshot, wanted};
use napkin_linux::place::{Place, Value};

use crate::wish::Wish;

/// What is wanted of a device.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Assignment {
    /// Each place with what it is to be.
    pub wanted: BTreeMap<Place, Value>,
    /// What each of the wishes gets, in their order.
    pub shares: Vec<Share>,
}

/// What one wish gets on a device.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Share {
    /// The places that are its.
    pub places: Vec<Place>,
    /// What of it cannot be had, and why.
    pub refused: Vec<String>,
}

impl Assignment {
    /// Has all that the wish of one place wants stay as it is on the device, and gives which of the wishes
    /// that is.
    pub fn leave(&mut self, place: &Place, at: &Snapshot) -> Option<usize> {
        let which = self.shares.iter().position(|share| share.places.contains(place))?;
        self.leave_wish(which, at);
        Some(which)
    }

    /// Has all that one of the wishes wants stay as it is on the device; none, if there is no such wish.
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

/// What `wishes`, all of which mean this device, want of it.
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
                // One that several instances have can go to one place only: the first wish's.
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

/// What one wish wants, and what of it is not to be had.
fn of_wish(wish: &Wish, at: &Snapshot, kernel: &Kernel) -> (BTreeMap<Place, Value>, Vec<String>) {
    let (mut places, mut refused) = (BTreeMap::new(), Vec::new());
    for options in wish.options() {
        let found = match wanted(&wish.policy, at, kernel, &options) {
            // What goes to no CPU, or to another one, is held.
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
            // The other queues are held.
            Err(error @ PlanError::NoQueue { .. }) => refused.push(error.to_string()),
            // Nothing of it can be.
            Err(error) => return (BTreeMap::new(), vec![error.to_string()]),
        }
    }
    (places, refused)
}

#[cfg(test)]
mod tests {
    use super::*;
    use napkin_kernel::device::{Device, Napi};
    use napkin_kernel::probe::{Can, Way};
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
        let way = |setting| (setting, Way::Napi { largest: u64::MAX });
        let kernel = Kernel {
            release: "6.19".into(),
            instances: Can::Yes,
            settings: Setting::ALL.map(way).into(),
            queue_stats: Can::No,
            epoll_params: Can::No,
            incoming_napi_id: Can::No,
            socket_prefer_busy_poll: Can::No,
            pidfd: Can::No,
            pidfd_getfd: Can::No,
            namespace_cookie: Can::No,
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
            // The kernel has no such place as the second yet.
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
        // Once more it is nobody's.
        assert_eq!(assignment.leave(&place(Setting::GroFlushTimeout), &at), None);
    }
}
