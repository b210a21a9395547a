//! Sockets that inherited busy-poll options from a listener on which napkin set them: the kernel copies them
//! to each accepted connection.
//!
//! Nobody writes these down, as a server accepts them without end, and after the last look too. They are
//! known by what they have, as epoll contexts that moved are.

use std::collections::BTreeSet;

use crate::process_change::What;
use napkin_kernel::process::{Descriptor, Kind, Process, ProcessError, SocketOptions, socket};

/// What was put back, each with its descriptor, and the first error of those that were not.
pub(crate) type Inherited = (Vec<What>, Option<ProcessError>);

/// Puts back the sockets of a process that have what was set (`set`: what listeners had before, and since), but for
/// those whose inode is `known`.
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
            // Nor could anything be set in a table of a thread's own.
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
    // Another may have the number by now, perhaps one that is known.
    let same = rustix::fs::fstat(&taken).map_err(refused)?.st_ino == inode;
    if !same || !socket::is_internet(&taken) {
        return Ok(None);
    }
    let now = SocketOptions::get(&taken).map_err(refused)?;
    let seen = |options: &SocketOptions| SocketOptions { busy_poll_budget: None, ..*options };
    let mut from = set.iter().filter(|(_, new)| seen(new) == now);
    let Some(&(first, new)) = from.next() else { return Ok(None) };
    // Which listener it is from is not known: off, if they had different ones.
    let old = if from.all(|(old, _)| *old == first) { first } else { off(new) };
    old.set(&taken).map_err(refused)?;
    Ok(Some(What::Socket { tid, fd, inode, old, new }))
}

/// The same options with busy polling off.
pub(crate) fn off(new: SocketOptions) -> SocketOptions {
    SocketOptions { busy_poll_budget: new.busy_poll_budget.map(|_| 0), ..SocketOptions::default() }
}
