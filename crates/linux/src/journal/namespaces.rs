//! Determines whether a network or PID namespace still exists.
//!
//! The kernel has no list of namespaces that every version shows. A namespace is held by a thread in it, a
//! descriptor of it, or a mount of it. All three are visible to a process that may inspect every process of the
//! host; others get no answer rather than a wrong one. A namespace that only a socket holds is not found, but
//! cannot be entered any more.

use std::collections::{BTreeMap, HashSet};
use std::path::{Path, PathBuf};
use std::{fs, io};

use napkin_kernel::namespace::Identity;
use napkin_os::procfs::read_text;
use napkin_os::rights::Right;
use rustix::io::Errno;

/// The inode of the initial PID namespace, the same in every kernel (`PROC_PID_INIT_INO`).
const INITIAL_PID_NAMESPACE: &str = "pid:[4026531836]";

/// The maximum number of bytes read of a mount table.
const MAX_MOUNT_TABLE: usize = 1 << 20;

/// The maximum number of threads and descriptors inspected.
const MAX_LINKS: usize = 1_000_000;

/// The network namespaces that exist, determined once, on demand.
#[derive(Debug, Default)]
pub(super) struct LiveNamespaces {
    inodes: Option<Option<BTreeMap<u64, PathBuf>>>,
}

impl LiveNamespaces {
    /// Whether a namespace exists; `None` if that cannot be determined. If its inode was reused, a namespace
    /// that is gone looks alive: its file is then kept longer than needed.
    pub(super) fn contains(&mut self, namespace: &Identity) -> Option<bool> {
        let inodes = self.inodes.get_or_insert_with(namespaces);
        inodes.as_ref().map(|inodes| inodes.contains_key(&namespace.inode))
    }
}

/// Whether a PID namespace has no process any more; `false` if not all processes are visible.
pub(crate) fn pid_namespace_ended(inode: u64) -> bool {
    let it = format!("pid:[{inode}]");
    let is_elsewhere = |entry: io::Result<fs::DirEntry>| {
        let Ok(entry) = entry else { return false };
        if !entry.file_name().as_encoded_bytes().iter().all(u8::is_ascii_digit) {
            return true;
        }
        match fs::read_link(entry.path().join("ns/pid")) {
            Ok(of) => of.as_os_str() != it.as_str(),
            // A process that has just ended is in none; a process that is not accessible may be in it.
            Err(error) => {
                let ended = [Errno::NOENT, Errno::SRCH].map(|errno| Some(errno.raw_os_error()));
                ended.contains(&error.raw_os_error())
            }
        }
    };
    sees_all_processes() && fs::read_dir("/proc").is_ok_and(|mut all| all.all(is_elsewhere))
}

fn sees_all_processes() -> bool {
    let first = fs::read_link("/proc/self/ns/pid");
    Right::SysPtrace.held() && first.is_ok_and(|it| it.as_os_str() == INITIAL_PID_NAMESPACE)
}

/// Returns every network namespace that exists, by inode, with a file that refers to it; `None` if not all are
/// visible.
pub(crate) fn namespaces() -> Option<BTreeMap<u64, PathBuf>> {
    if !sees_all_processes() {
        return None;
    }
    let mut found = BTreeMap::new();
    let mut add = |inode: Option<u64>, path: PathBuf| {
        if let Some(inode) = inode {
            found.entry(inode).or_insert(path);
        }
    };
    let mut mounts = HashSet::new();
    let mut left = MAX_LINKS;
    for process in fs::read_dir("/proc").ok()?.flatten() {
        let name = process.file_name();
        if !name.to_str().is_some_and(|name| name.bytes().all(|byte| byte.is_ascii_digit())) {
            continue;
        }
        let path = process.path();
        // A thread or descriptor that vanishes meanwhile holds no namespace any more.
        for task in fs::read_dir(path.join("task")).into_iter().flatten().flatten() {
            left = left.checked_sub(1)?;
            let file = task.path().join("ns/net");
            add(inode(&file), file);
        }
        for descriptor in fs::read_dir(path.join("fd")).into_iter().flatten().flatten() {
            left = left.checked_sub(1)?;
            let file = descriptor.path();
            add(inode(&file), file);
        }
        if let Ok(namespace) = fs::read_link(path.join("ns/mnt"))
            && mounts.insert(namespace)
        {
            let table = read_text(path.join("mountinfo"), MAX_MOUNT_TABLE).unwrap_or_default();
            for line in table.lines() {
                // The fourth field is the root of the mount within its file system, the fifth the mount point.
                let mut fields = line.split_ascii_whitespace().skip(3);
                if let (Some(what), Some(place)) = (fields.next(), fields.next()) {
                    let place = path.join("root").join(place.trim_start_matches('/'));
                    add(number(what), place);
                }
            }
        }
    }
    Some(found)
}

fn inode(link: &Path) -> Option<u64> {
    number(fs::read_link(link).ok()?.to_str()?)
}

/// Parses the inode of `net:[4026531840]`.
fn number(text: &str) -> Option<u64> {
    text.strip_prefix("net:[")?.strip_suffix(']')?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;
    use napkin_kernel::namespace::Namespace;

    #[test]
    fn this_namespace_is_never_said_to_be_gone_nor_one_that_nobody_has_to_live() {
        let own = Namespace::identity().expect("procfs");
        let mut live = LiveNamespaces::default();
        assert_ne!(live.contains(&own), Some(false));
        assert_ne!(live.contains(&Identity { cookie: None, inode: 1 }), Some(true));
    }

    #[test]
    fn our_own_pid_namespace_has_not_ended() {
        let link = fs::read_link("/proc/self/ns/pid").expect("procfs");
        let number = link.to_str().and_then(|it| it.strip_prefix("pid:[")?.strip_suffix(']'));
        assert!(!pid_namespace_ended(number.expect("a name").parse().expect("a number")));
    }
}
