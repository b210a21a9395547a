//! Remembers wishes of which the kernel has refused something on a device.
//!
//! What was set before the refusal is reverted, and the keeper's own writes wake it like anyone's: if such a
//! wish were tried at each look, it would be tried endlessly. So it is left alone until something relevant
//! changes: the wish, the device's instances, or enough time has passed.

use std::collections::BTreeSet;
use std::time::{Duration, Instant};

use napkin_linux::apply::{ApplyError, Snapshot};

use crate::assign::Assignment;
use crate::wish::Wish;

/// A refused wish on one device.
#[derive(Debug)]
struct Refusal {
    ifindex: u32,
    identity: Option<u64>,
    /// The NAPI IDs at the time.
    instances: Vec<u32>,
    wish: Wish,
    why: String,
    /// Whether the only reason was that something to be set had vanished.
    vanished: bool,
    at: Instant,
}

/// All remembered refusals.
#[derive(Debug, Default)]
pub(crate) struct Refusals(Vec<Refusal>);

impl Refusals {
    /// Adds a refusal of a wish on the device seen in `at`; `why` is the reported reason.
    pub(crate) fn add(&mut self, at: &Snapshot, wish: &Wish, error: &ApplyError, why: &str) {
        self.0.push(Refusal {
            ifindex: at.device.ifindex,
            identity: at.identity,
            instances: instances(at),
            wish: wish.clone(),
            why: why.to_owned(),
            vanished: error.is_vanished(),
            at: Instant::now(),
        });
    }

    /// Leaves the refused wishes as they are on the device, and returns the reported reasons. Forgets
    /// refusals of other wishes or instances on it, and those older than `retry_after`.
    pub(crate) fn leave(
        &mut self,
        wishes: &[&Wish],
        at: &Snapshot,
        assignment: &mut Assignment,
        retry_after: Option<Duration>,
    ) -> Vec<String> {
        let instances_now = instances(at);
        let mut reasons = Vec::new();
        self.0.retain(|refusal| {
            if (refusal.ifindex, refusal.identity) != (at.device.ifindex, at.identity) {
                return true;
            }
            let old = retry_after.is_some_and(|retry_after| refusal.at.elapsed() >= retry_after);
            let which = wishes.iter().position(|wish| **wish == refusal.wish);
            let holds = refusal.instances == instances_now && !old;
            let Some(which) = which.filter(|_| holds) else { return false };
            assignment.leave_wish(which, at);
            reasons.push(refusal.why.clone());
            true
        });
        reasons
    }

    /// Forgets refusals because of something that had vanished: after a change in the kernel it may be back.
    pub(crate) fn something_changed(&mut self) {
        self.0.retain(|refusal| !refusal.vanished);
    }

    /// Forgets refusals on other devices than these.
    pub(crate) fn retain(&mut self, devices: &BTreeSet<u32>) {
        self.0.retain(|refusal| devices.contains(&refusal.ifindex));
    }

    /// Forgets all refusals.
    pub(crate) fn clear(&mut self) {
        self.0.clear();
    }
}

fn instances(at: &Snapshot) -> Vec<u32> {
    at.device.napis.iter().map(|napi| napi.id).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeMap;
    use std::path::Path;

    use crate::assign::Share;
    use napkin_kernel::device::{Device, Napi};
    use napkin_kernel::settings::{Setting, Settings};
    use napkin_linux::apply::BackendError;
    use napkin_linux::place::{Place, Value};

    const PLACE: Place = Place::Device(Setting::GroFlushTimeout);

    fn seen(ifindex: u32, id: u32) -> Snapshot {
        let napi = Napi {
            id,
            rx_queues: vec![0],
            tx_queues: vec![],
            irq: None,
            irq_cpus: None,
            pid: None,
            thread_cpus: None,
            thread_class: None,
            settings: Settings::default(),
        };
        let ifname = "va".into();
        let device = Device { ifindex, ifname, driver: None, up: true, napis: vec![napi] };
        Snapshot::new(device, BTreeMap::from([(PLACE, Value::Number(1))]), vec![0], Some(700))
    }

    fn wish(policy: &str) -> Wish {
        let text = format!("policy = \"{policy}\"\n[match]\nname = \"va\"\n");
        Wish::parse(Path::new("/etc/napkin/a.toml"), &text).expect("a wish")
    }

    fn refused(failed: BackendError) -> ApplyError {
        let failed = Box::new(ApplyError::Backend(failed));
        ApplyError::Stopped { place: PLACE, failed, left: vec![] }
    }

    /// The number of reported refusals of a wish for the value 20, and the value wanted after them.
    fn look(
        refusals: &mut Refusals,
        wish: &Wish,
        at: &Snapshot,
        retry_after: Option<Duration>,
    ) -> (usize, Value) {
        let share = Share { places: vec![PLACE], refused: vec![] };
        let wanted = BTreeMap::from([(PLACE, Value::Number(20))]);
        let mut assignment = Assignment { wanted, shares: vec![share] };
        let reasons = refusals.leave(&[wish], at, &mut assignment, retry_after);
        (reasons.len(), assignment.wanted[&PLACE].clone())
    }

    #[test]
    fn a_refused_wish_is_left_until_it_or_the_instances_or_the_time_is_another() {
        let (left, tried) = ((1, Value::Number(1)), (0, Value::Number(20)));
        let no = || refused(BackendError::NoSuchValue { what: "x", value: "y".into() });
        let (at, first) = (seen(7, 513), wish("defer20"));
        let begun = || {
            let mut refusals = Refusals::default();
            refusals.add(&at, &first, &no(), "no");
            assert_eq!(look(&mut refusals, &first, &at, None), left);
            refusals
        };
        assert_eq!(look(&mut begun(), &first, &seen(8, 513), None), tried, "another device");
        let long = Some(Duration::from_secs(3_600));
        assert_eq!(look(&mut begun(), &first, &at, long), left);
        for (wish, at, retry_after) in [
            (wish("defer200"), seen(7, 513), None),
            (first.clone(), seen(7, 514), None),
            (first.clone(), seen(7, 513), Some(Duration::ZERO)),
        ] {
            let mut refusals = begun();
            assert_eq!(look(&mut refusals, &wish, &at, retry_after), tried);
            assert!(refusals.0.is_empty(), "forgotten");
        }
        let mut refusals = begun();
        refusals.something_changed();
        assert_eq!(look(&mut refusals, &first, &at, None), left, "not by itself");
        refusals.retain(&[8].into());
        assert_eq!(look(&mut refusals, &first, &at, None), tried, "the device has gone");
    }

    #[test]
    fn what_had_vanished_is_tried_again_when_the_kernel_tells_of_a_change() {
        let (at, wish) = (seen(7, 513), wish("defer20"));
        let gone = || BackendError::Gone { what: "x", ifname: "va".into(), subject: "y".into() };
        let mut refusals = Refusals::default();
        refusals.add(&at, &wish, &refused(gone()), "gone");
        assert_eq!(look(&mut refusals, &wish, &at, None), (1, Value::Number(1)));
        refusals.something_changed();
        assert_eq!(look(&mut refusals, &wish, &at, None), (0, Value::Number(20)));
    }
}
