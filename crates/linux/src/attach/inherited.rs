//! Sockets that inherited busy-poll options from a listener on which napkin set them: the kernel copies them
//! to each accepted connection.
//!
//! The journal does not list them, as a server accepts them without end, also after the last scan. They are
//! recognised by their options, like epoll contexts that moved.

use std::collections::BTreeSet;

use crate::process_change::What;
use napkin_kernel::process::{Descriptor, Kind, Process, ProcessError, SocketOptions, socket};

/// The sockets that were put back, each with its descriptor, and the first error.
pub(crate) type Inherited = (Vec<What>, Option<ProcessError>);

/// Puts back the sockets of a process that have options which napkin set, except those whose inode is in
/// `known`. `set` holds the old and new options of listeners.
///
/// # Errors
/// If the process has ended, or may not be reached.
pub(crate) fn restore_inherited(
    process: &Process,
    set: &[(SocketOptions, SocketOptions)],
    known: &BTreeSet<u64>,
    limit: usize,
) -> Result<Inherited, ProcessError> {
    let (mut back, mut failed) = (Vec::new(), None);
    for socket in process.descriptors(limit)?.sockets() {
        match restore(process, &socket, set, known) {
            Ok(what) => back.extend(what),
            Err(error) if error.is_gone() => return Err(error),
            // Nothing could be set either in a descriptor table that a thread does not share with its process.
            Err(ProcessError::Unsupported { .. }) => {}
            Err(error) => failed = failed.or(Some(error)),
        }
    }
    Ok((back, failed))
}

fn restore(
    process: &Process,
    socket: &Descriptor,
    set: &[(SocketOptions, SocketOptions)],
    known: &BTreeSet<u64>,
) -> Result<Option<What>, ProcessError> {
    let refused = |errno| process.refused("to put back a socket", errno);
    let Descriptor { tid, fd, kind: Kind::Socket(inode) } = *socket else { return Ok(None) };
    if known.contains(&inode) {
        return Ok(None);
    }
    let Some(taken) = process.take(socket)? else { return Ok(None) };
    // The descriptor number may belong to another socket by now, perhaps one that is known.
    let same = rustix::fs::fstat(&taken).map_err(refused)?.st_ino == inode;
    if !same || !socket::is_internet(&taken) {
        return Ok(None);
    }
    let now = SocketOptions::get(&taken).map_err(refused)?;
    let seen = |options: &SocketOptions| SocketOptions { busy_poll_budget: None, ..*options };
    let mut from = set.iter().filter(|(_, new)| seen(new) == now);
    let Some(&(first, new)) = from.next() else { return Ok(None) };
    // The listener that it came from is unknown: switch off if they had different options.
    let old = if from.all(|(old, _)| *old == first) { first } else { off(new) };
    old.set(&taken).map_err(refused)?;
    Ok(Some(What::Socket { tid, fd, inode, old, new }))
}

/// The same options with busy polling off.
pub(crate) fn off(new: SocketOptions) -> SocketOptions {
    SocketOptions { busy_poll_budget: new.busy_poll_budget.map(|_| 0), ..SocketOptions::default() }
}
