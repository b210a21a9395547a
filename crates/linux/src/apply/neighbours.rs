//! Other programs whose packets are delayed when a queue's interrupts are masked for long.

use std::fmt;

use napkin_policy::{Policy, Time};
use serde::Serialize;

use crate::place::Instance;
use crate::support;
use napkin_kernel::device::Device;
use napkin_kernel::process::{Owners, owners};

/// The maximum number of descriptors inspected per process.
const MAX_DESCRIPTORS: usize = 4_096;

/// The maximum number of programs listed by name; the rest is counted.
const MAX_SHOWN: usize = 5;

/// Other programs that receive from the instances that a policy sets.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub struct Neighbours {
    /// The maximum delay of their packets, in nanoseconds.
    pub wait: u64,
    /// The programs, as `sshd (812)`, sorted by name.
    pub programs: Vec<String>,
}

impl fmt::Display for Neighbours {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Neighbours { wait, programs } = self;
        let shown = programs.iter().take(MAX_SHOWN).cloned().collect::<Vec<_>>().join(", ");
        let more = programs.len().saturating_sub(MAX_SHOWN);
        let more = if more > 0 { format!(" and {more} more") } else { String::new() };
        let wait = Time(*wait);
        write!(
            f,
            "packets for {shown}{more} come in on the same queues, and may wait up to {wait} there \
             before anybody looks; steer them to another queue (ethtool -N), or set the \
             program's queue alone with --queue"
        )
    }
}

/// Returns the programs other than `but` that receive from the instances that a policy sets, if the policy may
/// delay their packets by 1 ms or more; otherwise `None`.
///
/// Inspects every process of the host, but only if the policy delays packets that long.
pub fn neighbours(
    policy: &Policy,
    device: &Device,
    queue: Option<u32>,
    but: &[i32],
) -> Option<Neighbours> {
    support::others_wait(policy)?;
    neighbours_among(policy, device, queue, &owners(MAX_DESCRIPTORS), but)
}

fn neighbours_among(
    policy: &Policy,
    device: &Device,
    queue: Option<u32>,
    owners: &Owners,
    but: &[i32],
) -> Option<Neighbours> {
    let wait = support::others_wait(policy)?;
    let set = |instance: &Instance| queue.is_none_or(|queue| instance.rx.contains(&queue));
    let instances = Instance::all(device).into_iter().filter(|(instance, _)| set(instance));
    let owners = instances.flat_map(|(_, napi)| owners.of(napi.id));
    let others = owners.filter(|owner| !but.contains(&owner.pid));
    let mut programs: Vec<String> =
        others.map(|owner| format!("{} ({})", owner.comm, owner.pid)).collect();
    programs.sort();
    programs.dedup();
    (!programs.is_empty()).then_some(Neighbours { wait, programs })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::apply::fake::Fake;
    use napkin_kernel::process::Owner;

    #[test]
    fn who_shares_a_queue_is_named_only_if_it_has_to_wait() {
        let device = Fake::new(2).devices.remove(0);
        let owner = |pid, comm: &str| Owner { pid, comm: comm.into(), sockets: 1 };
        let mut owners = Owners::default();
        owners.by_napi_id.insert(device.napis[0].id, vec![owner(812, "sshd"), owner(9, "own")]);
        let neighbours_of = |text: &str, queue| {
            let policy: Policy = text.parse().expect(text);
            neighbours_among(&policy, &device, queue, &owners, &[9])
        };
        let suspended = neighbours_of("suspend20", None).expect("it waits");
        assert_eq!(
            (suspended.wait, suspended.programs.as_slice()),
            (20_000_000, &["sshd (812)".to_owned()][..])
        );
        assert!(
            suspended
                .to_string()
                .contains("sshd (812) come in on the same queues, and may wait up to 20ms")
        );
        assert_eq!(neighbours_of("suspend20", Some(0)), Some(suspended));
        assert_eq!(neighbours_of("suspend20", Some(1)), None, "another queue");
        assert_eq!(neighbours_of("base", None), None, "nobody waits");
        assert_eq!(
            neighbours_of("defer-hard-irqs=2,gro-flush-timeout=20us", None),
            None,
            "not for long"
        );
    }
}
