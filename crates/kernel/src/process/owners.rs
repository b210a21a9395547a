//! The processes whose sockets receive from each NAPI instance.

use std::collections::BTreeMap;
use std::fmt;

use serde::Serialize;

use super::descriptor::{Descriptors, Kind};
use super::error::ProcessError;
use super::handle::{Process, all};
use super::socket;

/// A process with sockets whose last packet came through one instance.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub struct Owner {
    /// The process id in this PID namespace.
    pub pid: i32,
    /// Its name in `/proc/PID/comm`, of at most 15 bytes.
    pub comm: String,
    /// The number of these sockets. A socket that several processes share counts for each of them.
    pub sockets: usize,
}

/// Processes that could not be read, by id and name: `CAP_SYS_PTRACE` or `CAP_DAC_READ_SEARCH` is missing, or the
/// process is not accessible even with these.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize)]
pub struct Inaccessible(pub Vec<(i32, String)>);

impl Inaccessible {
    /// The number of processes.
    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

impl fmt::Display for Inaccessible {
    /// Formats the count and the first names: `1 process (memcached[812])`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        const NAMED: usize = 3;
        let count = self.len();
        write!(f, "{count} process{} (", if count == 1 { "" } else { "es" })?;
        for (place, (pid, comm)) in self.0.iter().take(NAMED).enumerate() {
            write!(f, "{}{comm}[{pid}]", if place == 0 { "" } else { ", " })?;
        }
        f.write_str(if count > NAMED { " ...)" } else { ")" })
    }
}

/// The owners of all instances.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize)]
#[serde(rename_all = "kebab-case")]
pub struct Owners {
    /// The owners by NAPI id, those with the most sockets first.
    pub by_napi_id: BTreeMap<u32, Vec<Owner>>,
    /// The processes that could not be read for lack of a capability.
    pub denied: Inaccessible,
    /// Processes of which not all sockets were read: they have more descriptors than the limit, some cannot be
    /// duplicated, or napkin has reached its own limit of open files.
    pub cut: Vec<i32>,
}

impl Owners {
    /// Returns the owners of one instance.
    pub fn of(&self, napi_id: u32) -> &[Owner] {
        self.by_napi_id.get(&napi_id).map_or(&[], Vec::as_slice)
    }
}

/// Finds the processes with sockets in this network namespace by the sockets' NAPI ids, reading at most `limit`
/// descriptors of each process.
///
/// The cost is about two microseconds per socket.
pub fn owners(limit: usize) -> Owners {
    let mut owners = Owners::default();
    let own_namespace = socket::own_netns_cookie();
    // Caches NAPI ids by inode: a master and its workers often share sockets.
    let mut known: BTreeMap<u64, Option<u32>> = BTreeMap::new();
    for pid in all() {
        match sockets_of(pid, limit, own_namespace, &mut known) {
            Ok(None) => {}
            Ok(Some((comm, cut, counts))) => {
                if cut {
                    owners.cut.push(pid);
                }
                for (napi_id, sockets) in counts {
                    let owner = Owner { pid, comm: comm.clone(), sockets };
                    owners.by_napi_id.entry(napi_id).or_default().push(owner);
                }
            }
            Err(ProcessError::Denied { pid, comm, .. }) => owners.denied.0.push((pid, comm)),
            Err(error) if error.is_gone() => {}
            // Napkin's own limit of open files, for example.
            Err(_) => owners.cut.push(pid),
        }
    }
    for owners in owners.by_napi_id.values_mut() {
        owners.sort_by_key(|owner| (std::cmp::Reverse(owner.sockets), owner.pid));
    }
    owners
}

/// A process's name, whether some of its sockets are missing, and its sockets by NAPI id; `None` without any socket.
type Counts = Option<(String, bool, BTreeMap<u32, usize>)>;

fn sockets_of(
    pid: i32,
    limit: usize,
    own_namespace: Option<u64>,
    known: &mut BTreeMap<u64, Option<u32>>,
) -> Result<Counts, ProcessError> {
    let process = Process::open(pid)?;
    let found: Descriptors = process.descriptors(limit)?;
    let (mut counts, mut unseen) = (BTreeMap::new(), false);
    for descriptor in found.sockets() {
        let Kind::Socket(inode) = descriptor.kind else { continue };
        let napi_id = match known.get(&inode) {
            Some(napi_id) => *napi_id,
            None => {
                let taken = match process.take(&descriptor) {
                    Ok(Some(taken)) => taken,
                    Ok(None) => continue,
                    Err(error @ ProcessError::Denied { .. }) => return Err(error),
                    Err(error) if error.is_gone() => return Err(error),
                    // It is in a thread's separate table (before Linux 6.9), or napkin has no descriptor left.
                    Err(_) => {
                        unseen = true;
                        continue;
                    }
                };
                let napi_id = socket::napi_id(&taken).ok().flatten();
                let in_this_namespace =
                    || own_namespace.is_none() || socket::netns_cookie(&taken) == own_namespace;
                let napi_id = napi_id.filter(|_| in_this_namespace());
                known.insert(inode, napi_id);
                napi_id
            }
        };
        if let Some(napi_id) = napi_id {
            *counts.entry(napi_id).or_insert(0_usize) += 1;
        }
    }
    let cut = found.cut || unseen;
    if counts.is_empty() && !cut {
        return Ok(None);
    }
    Ok(Some((process.comm()?, cut, counts)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn whoever_could_not_be_looked_at_is_named() {
        let mut unseen = Inaccessible(vec![(812, "memcached".into())]);
        assert_eq!(unseen.to_string(), "1 process (memcached[812])");
        unseen.0.extend([(1, "init".into()), (2, "b".into()), (3, "c".into())]);
        assert_eq!(unseen.to_string(), "4 processes (memcached[812], init[1], b[2] ...)");
    }
}
