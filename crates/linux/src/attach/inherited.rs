//! Sockets that have what was set from a listener that was set: the kernel hands it on to each
//! connection.
//!
//! Nobody writes these down, as a server accepts them without end, and after the last look too. They are
//! known by what they have, as epoll contexts that moved are.

use std::collections::BTreeSet;

use crate::process_change::What;
use napkin_kernel::process::{Descriptor, Kind, Process, ProcessError, SocketOptions, socket};

/// Puts back the sockets of a process that have what was set (`set`: what listeners had before, and since), but for
/// those whose inode is `known`. Each comes with its descriptor.
///
/// # Errors
/// If the process has ended, or may not be reached.
pub(crate) fn restore_inherited(
    process: &Process,
    set: &[(SocketOptions, SocketOptions)],
    known: &BTreeSet<u64>,
    limit: usize,
) -> Result<Vec<What>, ProcessError> {
    let refused = |errno| process.refused("to put back a socket", errno);
    let mut back = Vec::new();
    for socket in process.descriptors(limit)?.sockets() {
        let Descriptor { tid, fd, kind: Kind::Socket(inode) } = socket else { continue };
        if known.contains(&inode) {
            continue;
        }
        let taken = match process.take(&socket) {
            Ok(Some(taken)) => taken,
            // Nor could anything be set in a table of a thread's own.
            Ok(None) | Err(ProcessError::Unsupported { .. }) => continue,
            Err(error) => return Err(error),
        };
        // Another may have the number by now, perhaps one that is known.
        let same = rustix::fs::fstat(&taken).map_err(refused)?.st_ino == inode;
        if !same || !socket::is_internet(&taken) {
            continue;
        }
        let now = SocketOptions::get(&taken).map_err(refused)?;
        let seen = |options: &SocketOptions| SocketOptions { busy_poll_budget: None, ..*options };
        let mut from = set.iter().filter(|(_, new)| seen(new) == now);
        let Some(&(first, new)) = from.next() else { continue };
        // Which listener it is from is not known: off, if they had different ones.
        let old = if from.all(|(old, _)| *old == first) { first } else { off(new) };
        old.set(&taken).map_err(refused)?;
        back.push(What::Socket { tid, fd, inode, old, new });
    }
    Ok(back)
}

/// No busy polling, in place of these.
pub(crate) fn off(new: SocketOptions) -> SocketOptions {
    SocketOptions { busy_poll_budget: new.busy_poll_budget.map(|_| 0), ..SocketOptions::default() }
}
