//! Finding a device again that was changed some time ago.
//!
//! Its number in the namespace is not enough: it is used again when the device was deleted, and is
//! another one after the device was moved. What names a device for as long as it exists is the inode
//! of its directory in sysfs, which survives a new name and a move.

use super::backend::{Backend, Snapshot, Target, Whereabouts};
use super::error::BackendError;

/// A device that was looked for.
#[derive(Debug)]
pub(super) enum Again {
    /// Here it is.
    There(Box<Snapshot>),
    /// It was deleted.
    Gone,
    /// It is not here, and not known to be gone: why.
    Away(String),
}

/// Looks for a device by what it is, or by its number where that is all that is known.
///
/// # Errors
/// If the kernel does not answer.
pub(super) fn again<W: Backend>(
    backend: &mut W,
    ifindex: u32,
    identity: Option<u64>,
) -> Result<Again, BackendError> {
    let found = match backend.look(Target::Index(ifindex)) {
        Ok(at) => Some(at),
        Err(error) if error.is_absent() => None,
        Err(error) => return Err(error),
    };
    let Some(identity) = identity else {
        return Ok(found.map_or(Again::Gone, |at| Again::There(Box::new(at))));
    };
    if let Some(at) = found.filter(|at| at.identity.is_none_or(|it| it == identity)) {
        return Ok(Again::There(Box::new(at)));
    }
    Ok(match backend.whereabouts(identity)? {
        Whereabouts::Here(ifindex) => match backend.look(Target::Index(ifindex)) {
            Ok(at) => Again::There(Box::new(at)),
            Err(error) if error.is_absent() => Again::Gone,
            Err(error) => return Err(error),
        },
        Whereabouts::Elsewhere { ifname, namespace } => Again::Away(format!(
            "it is in another network namespace now, as {ifname}, with what was set: restore from \
             within that one (nsenter --net={namespace} napkin restore)"
        )),
        Whereabouts::Gone => Again::Gone,
        Whereabouts::Unknown => Again::Away(
            "it is not in this network namespace any more; whether it was deleted, or is in another \
             one with what was set, can be seen with CAP_SYS_ADMIN and CAP_SYS_PTRACE only: restore \
             as root, or give it up with --forget"
                .into(),
        ),
    })
}
