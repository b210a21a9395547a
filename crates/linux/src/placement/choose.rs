//! Chooses the best CPUs for a device's queues.
//!
//! Pure functions. A queue wants a core of its own near the device: a CPU of the device's NUMA node before
//! one of another node, a core of which no other CPU is taken before a sibling. CPU 0 comes last among
//! equals, as the kernel's own timers and interrupts run there by default.

use std::collections::BTreeSet;

use napkin_kernel::topology::{Cpu, Topology};

/// The constraints of a choice.
#[derive(Debug, Clone, Copy)]
pub struct Wanted<'a> {
    /// The NUMA node of the device, if it has one.
    pub node: Option<usize>,
    /// The CPUs to choose from: those that were named, or those on which the program may run; `None` for all
    /// online ones.
    pub within: Option<&'a [usize]>,
    /// The current CPU of each queue, in the queues' order, if that is exactly one.
    pub now: &'a [Option<usize>],
}

/// Returns a CPU for each queue, in the queues' order; several queues share one if there are too few. Empty
/// if no CPU of `within` is online.
///
/// Isolated CPUs are reserved for pinned programs: they are used only if all of `within` are isolated.
pub fn choose(topology: &Topology, wanted: &Wanted<'_>) -> Vec<usize> {
    let may = |cpu: &&Cpu| wanted.within.is_none_or(|within| within.contains(&cpu.number));
    let all: Vec<&Cpu> = topology.cpus.iter().filter(may).collect();
    let common = all.iter().any(|cpu| !cpu.isolated);
    let mut cores = BTreeSet::new();
    let mut ranked: Vec<_> = all
        .into_iter()
        .filter(|cpu| !(common && cpu.isolated))
        .map(|cpu| {
            let far = wanted.node.is_some_and(|node| node != cpu.node);
            (far, !cores.insert(cpu.core), cpu.number == 0, cpu.number)
        })
        .collect();
    ranked.sort_unstable();
    ranked.truncate(wanted.now.len());
    let chosen: Vec<usize> = ranked.into_iter().map(|(.., number)| number).collect();
    share(&chosen, wanted.now)
}

/// Distributes CPUs over queues, so that the numbers of queues on any two CPUs differ by at most one. A queue that is
/// already on one of them stays there if possible, so that a plan that was carried out yields no changes.
fn share(cpus: &[usize], now: &[Option<usize>]) -> Vec<usize> {
    let Some(each) = now.len().checked_div(cpus.len()) else { return Vec::new() };
    let mut more = now.len() % cpus.len();
    let mut loads = vec![0; cpus.len()];
    let mut places: Vec<Option<usize>> = vec![None; now.len()];
    for with_more in [false, true] {
        for (place, now) in places.iter_mut().zip(now) {
            let at = cpus.iter().position(|cpu| Some(*cpu) == *now);
            let Some(at) = at.filter(|_| place.is_none()) else { continue };
            if loads[at] < each || (with_more && more > 0 && loads[at] == each) {
                more -= usize::from(loads[at] == each);
                loads[at] += 1;
                *place = Some(at);
            }
        }
    }
    let deal = |place: Option<usize>| {
        // The first of the least loaded: there is at least one CPU.
        let least = (0..cpus.len()).min_by_key(|at| loads[*at]).unwrap_or(0);
        let at = place.unwrap_or_else(|| {
            loads[least] += 1;
            least
        });
        cpus[at]
    };
    places.into_iter().map(deal).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// Two nodes of two cores of two CPUs: siblings are 4 apart, nodes are even and odd.
    fn host() -> Topology {
        let cpu = |number| Cpu { number, core: number % 4, node: number % 2, isolated: false };
        Topology { cpus: (0..8).map(cpu).collect() }
    }

    fn chosen(
        topology: &Topology,
        node: Option<usize>,
        within: Option<&[usize]>,
        queues: usize,
    ) -> Vec<usize> {
        choose(topology, &Wanted { node, within, now: &vec![None; queues] })
    }

    #[test]
    fn near_cores_come_first_then_their_siblings_then_the_others() {
        assert_eq!(chosen(&host(), Some(1), None, 2), [1, 3]);
        assert_eq!(chosen(&host(), Some(1), None, 4), [1, 3, 5, 7]);
        assert_eq!(chosen(&host(), Some(1), None, 6), [1, 3, 5, 7, 2, 0]);
        assert_eq!(chosen(&host(), None, None, 4), [1, 2, 3, 0]);
    }

    #[test]
    fn too_few_cpus_are_shared_in_turn() {
        assert_eq!(chosen(&host(), None, Some(&[2, 3]), 5), [2, 3, 2, 3, 2]);
        assert!(chosen(&host(), None, Some(&[64]), 2).is_empty());
    }

    #[test]
    fn isolated_cpus_are_left_alone_unless_the_program_is_there() {
        let mut host = host();
        for cpu in [1, 3, 5] {
            host.cpus[cpu].isolated = true;
        }
        assert_eq!(chosen(&host, Some(1), None, 2), [7, 2]);
        assert_eq!(chosen(&host, Some(1), Some(&[1, 5]), 2), [1, 5]);
        assert_eq!(chosen(&host, Some(1), Some(&[1, 2]), 2), [2, 2]);
    }

    #[test]
    fn who_is_where_somebody_has_to_be_stays() {
        let wanted = Wanted { node: Some(1), within: None, now: &[Some(3), Some(6), Some(3)] };
        assert_eq!(choose(&host(), &wanted), [3, 1, 5]);
    }

    proptest! {
        #[test]
        fn a_plan_that_was_carried_out_plans_nothing(
            now in proptest::collection::vec(proptest::option::of(0_usize..10), 1..12),
            node in proptest::option::of(0_usize..3),
            within in proptest::option::of(proptest::collection::vec(0_usize..10, 1..10)),
        ) {
            let wanted = Wanted { node, within: within.as_deref(), now: &now };
            let first = choose(&host(), &wanted);
            let on = within.as_ref().is_none_or(|it| it.iter().any(|cpu| *cpu < 8));
            prop_assert_eq!(first.len(), if on { now.len() } else { 0 });
            let then: Vec<Option<usize>> = first.iter().copied().map(Some).collect();
            let second = choose(&host(), &Wanted { now: &then, ..wanted });
            prop_assert_eq!(second, first);
        }
    }
}
