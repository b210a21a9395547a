//! Folds instances with equal settings into one line.

use std::collections::BTreeSet;

use napkin_os::sched::Class;

use super::{DeviceReport, NapiReport, Program};

/// Instances are folded on a device that has more than this number.
pub const FOLDED_ABOVE: usize = 8;

/// Instances with equal settings: at least one.
#[derive(Debug, Clone)]
pub struct Group<'a> {
    /// In order of ID.
    pub napis: Vec<&'a NapiReport>,
}

impl Group<'_> {
    /// NAPI IDs of the group, in the device's order.
    pub fn ids(&self) -> Vec<u32> {
        self.napis.iter().map(|it| it.napi.id).collect()
    }

    /// The receive queues of all instances.
    pub fn rx_queues(&self) -> Vec<u32> {
        self.napis.iter().flat_map(|it| it.napi.rx_queues.iter().copied()).collect()
    }

    /// The transmit queues of all instances.
    pub fn tx_queues(&self) -> Vec<u32> {
        self.napis.iter().flat_map(|it| it.napi.tx_queues.iter().copied()).collect()
    }

    /// The interrupts of all instances.
    pub fn irqs(&self) -> Vec<u32> {
        self.napis.iter().filter_map(|it| it.napi.irq).collect()
    }

    /// The CPUs of all interrupts; `None` if none is known.
    pub fn irq_cpus(&self) -> Option<Vec<usize>> {
        union(self.napis.iter().map(|it| it.napi.irq_cpus.as_deref()))
    }

    /// Thread IDs of all instances.
    pub fn pids(&self) -> Vec<i32> {
        self.napis.iter().filter_map(|it| it.napi.pid).collect()
    }

    /// The CPUs of all threads; `None` if none is known.
    pub fn thread_cpus(&self) -> Option<Vec<usize>> {
        union(self.napis.iter().map(|it| it.napi.thread_cpus.as_deref()))
    }

    /// The scheduling class of the threads, which they share.
    pub fn thread_class(&self) -> Option<Class> {
        self.napis.first()?.napi.thread_class
    }

    /// The programs of all instances, each once, with the most sockets first.
    pub fn owners(&self) -> Vec<Program> {
        let mut owners: Vec<Program> = Vec::new();
        for program in self.napis.iter().flat_map(|it| &it.owners) {
            match owners.iter_mut().find(|known| known.owner.pid == program.owner.pid) {
                Some(known) => known.owner.sockets += program.owner.sockets,
                None => owners.push(program.clone()),
            }
        }
        owners.sort_by_key(|it| (std::cmp::Reverse(it.owner.sockets), it.owner.pid));
        owners
    }
}

/// Groups a device's instances with equal settings if there are many; `all` keeps each apart. Their
/// interrupts, CPUs and programs may differ: the group has those of all.
pub fn fold(device: &DeviceReport, all: bool) -> Vec<Group<'_>> {
    let each_alone = all || device.napis.len() <= FOLDED_ABOVE;
    let mut groups: Vec<Group<'_>> = Vec::new();
    for napi in &device.napis {
        let like = groups.iter_mut().find(|group| !each_alone && alike(group.napis[0], napi));
        match like {
            Some(group) => group.napis.push(napi),
            None => groups.push(Group { napis: vec![napi] }),
        }
    }
    groups
}

fn alike(one: &NapiReport, other: &NapiReport) -> bool {
    let directions = |it: &NapiReport| (it.napi.rx_queues.is_empty(), it.napi.tx_queues.is_empty());
    let thread = |it: &NapiReport| (it.napi.pid.is_some(), it.napi.thread_class);
    one.policy == other.policy
        && one.napi.settings == other.napi.settings
        && directions(one) == directions(other)
        && thread(one) == thread(other)
}

fn union<'a>(lists: impl Iterator<Item = Option<&'a [usize]>>) -> Option<Vec<usize>> {
    let known: Vec<&[usize]> = lists.flatten().collect();
    if known.is_empty() {
        return None;
    }
    let all: BTreeSet<usize> = known.into_iter().flatten().copied().collect();
    Some(all.into_iter().collect())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::show::{Programs, report};
    use napkin_kernel::device::{Device, Napi};
    use napkin_kernel::process::Owner;
    use napkin_os::sched::ranges;

    fn shown(policies: &[&str]) -> DeviceReport {
        let napis: Vec<Napi> = policies
            .iter()
            .zip(513_u32..)
            .map(|(policy, id)| Napi {
                rx_queues: vec![id - 513],
                irq: Some(id - 500),
                irq_cpus: Some(vec![(id - 513) as usize]),
                ..super::super::tests::napi(id, policy)
            })
            .collect();
        let device = Device { ifindex: 2, ifname: "eth0".into(), driver: None, up: true, napis };
        report(vec![device], &Programs::default()).devices.remove(0)
    }

    #[test]
    fn sixty_four_equal_queues_are_one_line() {
        let device = shown(&["base"; 64]);
        let groups = fold(&device, false);
        assert_eq!(groups.len(), 1);
        assert_eq!(ranges(&groups[0].ids()), "513-576");
        assert_eq!(ranges(&groups[0].rx_queues()), "0-63");
        assert_eq!(groups[0].irq_cpus(), Some((0..64).collect()));
        assert_eq!(fold(&device, true).len(), 64);
    }

    #[test]
    fn one_that_is_set_otherwise_stands_apart() {
        let mut policies = ["base"; 64];
        policies[5] = "defer20";
        let device = shown(&policies);
        let groups = fold(&device, false);
        let ids: Vec<_> = groups.iter().map(|group| ranges(&group.ids())).collect();
        assert_eq!(ids, ["513-517,519-576", "518"]);
    }

    #[test]
    fn a_few_are_shown_each() {
        assert_eq!(fold(&shown(&["base"; FOLDED_ABOVE]), false).len(), FOLDED_ABOVE);
    }

    #[test]
    fn a_program_of_several_instances_is_named_once() {
        let mut device = shown(&["base"; 9]);
        let program = |pid, sockets| Program {
            owner: Owner { pid, comm: "nginx".into(), sockets },
            epolls: vec![],
            socket_busy_poll_usecs: vec![],
        };
        device.napis[0].owners = vec![program(7, 2), program(8, 1)];
        device.napis[1].owners = vec![program(8, 4)];
        let owners = fold(&device, false)[0].owners();
        let found: Vec<_> = owners.iter().map(|it| (it.owner.pid, it.owner.sockets)).collect();
        assert_eq!(found, [(8, 5), (7, 2)]);
    }
}
