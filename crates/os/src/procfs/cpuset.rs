//! The cpuset of a process: the CPUs to which it may be pinned.
//!
//! `sched_setaffinity` refuses a CPU outside the cpuset, so advice about CPUs depends on it. This is not the
//! affinity, which is the set of CPUs on which a thread may run now.

use super::{cpus, read_text};

/// Limit of a file's size; paths of control groups and lists of CPUs are shorter.
const LIMIT: usize = 64 << 10;

/// Returns a process's cpuset, from cgroup v2 or v1; `None` if it is not visible from here.
pub fn cpuset(pid: i32) -> Option<Vec<usize>> {
    let groups = read_text(format!("/proc/{pid}/cgroup"), LIMIT).ok()?;
    files(&groups).iter().find_map(|file| {
        let list = cpus::parse_list(&read_text(file, LIMIT).ok()?)?;
        (!list.is_empty()).then_some(list)
    })
}

/// Returns the candidate files, the most specific first. A group without the cpuset controller inherits the set of
/// its nearest ancestor that has it.
fn files(groups: &str) -> Vec<String> {
    let mut files = Vec::new();
    for line in groups.lines() {
        let mut parts = line.splitn(3, ':').skip(1);
        let (Some(controllers), Some(path)) = (parts.next(), parts.next()) else { continue };
        // Outside of this cgroup namespace (`/../..`), or removed.
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
