//! The CPUs that a process may be put on: its cpuset's.
//!
//! A thread cannot be pinned to a CPU outside of it (`sched_setaffinity` refuses), so whoever advises
//! a CPU has to know. Not the CPUs on which a thread may run now, which is its affinity.

use super::{cpus, read_text};

/// Paths of control groups have fewer bytes, and so have lists of CPUs.
const LIMIT: usize = 64 << 10;

/// A process's cpuset, by either version of control groups; `None` if it cannot be seen from here.
pub fn cpuset(pid: i32) -> Option<Vec<usize>> {
    let groups = read_text(format!("/proc/{pid}/cgroup"), LIMIT).ok()?;
    files(&groups).iter().find_map(|file| {
        let list = cpus::parse_list(&read_text(file, LIMIT).ok()?)?;
        (!list.is_empty()).then_some(list)
    })
}

/// The files that may say it, the likeliest first. A group without the controller has what the
/// nearest one above it has.
fn files(groups: &str) -> Vec<String> {
    let mut files = Vec::new();
    for line in groups.lines() {
        let mut parts = line.splitn(3, ':').skip(1);
        let (Some(controllers), Some(path)) = (parts.next(), parts.next()) else { continue };
        // Out of this process's sight (`/../..`), or one that was removed.
        if path.contains("/..") {
            continue;
        }
        let (root, name) = if controllers.is_empty() {
            ("/sys/fs/cgroup", "cpuset.cpus.effective")
        } else if controllers.split(',').any(|it| it == "cpuset") {
            ("/sys/fs/cgroup/cpuset", "cpuset.effective_cpus")
        } else {
            continue;
        };
        let mut path = path.trim_end_matches('/');
        loop {
            files.push(format!("{root}{path}/{name}"));
            let Some((above, _)) = path.rsplit_once('/') else { break };
            path = above;
        }
    }
    files
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_versions_of_control_groups_are_read() {
        assert_eq!(
            files("0::/a/b\n"),
            [
                "/sys/fs/cgroup/a/b/cpuset.cpus.effective",
                "/sys/fs/cgroup/a/cpuset.cpus.effective",
                "/sys/fs/cgroup/cpuset.cpus.effective",
            ]
        );
        let old = files("4:memory:/x\n3:cpu,cpuset:/\n0::/../..\nnonsense\n");
        assert_eq!(old, ["/sys/fs/cgroup/cpuset/cpuset.effective_cpus"]);
    }

    #[test]
    fn a_process_may_be_put_where_it_is() {
        let own = i32::try_from(std::process::id()).expect("a process id");
        if let Some(cpus) = cpuset(own) {
            for cpu in crate::sched::usable_cpus() {
                assert!(cpus.contains(&cpu), "CPU {cpu}: {cpus:?}");
            }
        }
        assert_eq!(cpuset(-1), None);
    }
}
