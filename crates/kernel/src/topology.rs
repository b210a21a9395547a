//! The host's CPU topology, for the placement of threads and interrupts: shared cores, NUMA nodes, and isolated CPUs.

use std::fs;
use std::path::Path;

use napkin_os::procfs::{cpus, read_text};
use napkin_os::sched::usable_cpus;

use crate::sysfs::LIMIT;

/// The directory of CPUs and NUMA nodes in sysfs.
const SYSTEM: &str = "/sys/devices/system";

/// An online CPU.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Cpu {
    /// Its number, as in `/sys/devices/system/cpu/cpuN`.
    pub number: usize,
    /// The core: the lowest number among its CPUs (SMT siblings).
    pub core: usize,
    /// The NUMA node of the CPU; 0 if the kernel reports none.
    pub node: usize,
    /// Whether it is isolated from the scheduler (`isolcpus=`, or an isolated cpuset partition).
    pub isolated: bool,
}

/// The online CPUs in ascending order.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Topology {
    /// The CPUs, at least one.
    pub cpus: Vec<Cpu>,
}

impl Topology {
    /// Reads the topology from sysfs. Defaults for missing files: each CPU is a separate core, there is one node,
    /// and no CPU is isolated.
    pub fn read() -> Topology {
        Topology::read_from(Path::new(SYSTEM))
    }

    fn read_from(system: &Path) -> Topology {
        let list = |path: &str| cpus::parse_list(&read_text(system.join(path), LIMIT).ok()?);
        let online = list("cpu/online").unwrap_or_else(usable_cpus);
        let isolated = list("cpu/isolated").unwrap_or_default();
        let nodes = nodes(system);
        let cpu = |number: usize| {
            let siblings = list(&format!("cpu/cpu{number}/topology/thread_siblings_list"));
            let core = siblings.into_iter().flatten().min().unwrap_or(number);
            let node = nodes.iter().find(|(_, cpus)| cpus.contains(&number));
            Cpu {
                number,
                core,
                node: node.map_or(0, |(node, _)| *node),
                isolated: isolated.contains(&number),
            }
        };
        Topology { cpus: online.into_iter().map(cpu).collect() }
    }
}

/// Returns the NUMA nodes with their CPUs.
fn nodes(system: &Path) -> Vec<(usize, Vec<usize>)> {
    let Ok(entries) = fs::read_dir(system.join("node")) else { return Vec::new() };
    let node = |entry: fs::DirEntry| {
        let number = entry.file_name().to_str()?.strip_prefix("node")?.parse().ok()?;
        let list = read_text(entry.path().join("cpulist"), LIMIT).ok()?;
        Some((number, cpus::parse_list(&list)?))
    };
    entries.filter_map(|entry| node(entry.ok()?)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_host_of_two_nodes_with_siblings_is_read() {
        let root = std::env::temp_dir().join(format!("napkin-topology-{}", std::process::id()));
        let write = |path: &str, text: &str| {
            let path = root.join(path);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, text).unwrap();
        };
        write("cpu/online", "0-3\n");
        write("cpu/isolated", "3\n");
        for (cpu, siblings) in [(0, "0,2"), (1, "1,3"), (2, "0,2"), (3, "1,3")] {
            write(&format!("cpu/cpu{cpu}/topology/thread_siblings_list"), siblings);
        }
        write("node/node0/cpulist", "0,2\n");
        write("node/node1/cpulist", "1,3\n");
        write("node/possible", "0-1\n");
        let topology = Topology::read_from(&root);
        fs::remove_dir_all(&root).unwrap();
        let cpu = |number, core, node, isolated| Cpu { number, core, node, isolated };
        let expected =
            [cpu(0, 0, 0, false), cpu(1, 1, 1, false), cpu(2, 0, 0, false), cpu(3, 1, 1, true)];
        assert_eq!(topology.cpus, expected);
    }

    #[test]
    fn this_host_has_the_cpus_that_this_process_may_use() {
        let topology = Topology::read();
        let usable = usable_cpus();
        assert!(usable.iter().all(|it| topology.cpus.iter().any(|cpu| cpu.number == *it)));
    }
}
