//! Finds a device that was changed earlier.
//!
//! The interface index is not enough: it is reused after the device is deleted, and differs after the device
//! moves to another namespace. A device is identified for its lifetime by the inode of its directory in sysfs,
//! which survives a new name and a move.

use super::backend::{Backend, Snapshot, Target, Whereabouts};
use super::error::BackendError;

/// The result of looking for a device.
#[derive(Debug)]
pub(super) enum DeviceLookup {
    /// It is in this namespace.
    Here(Box<Snapshot>),
    /// It was deleted.
    Deleted,
    /// It is not in this namespace, and not known to be deleted; with the reason.
    Unreachable(String),
}

/// Looks for a device by its identity, or by its interface index if the identity is unknown.
///
/// # Errors
/// If the kernel does not answer.
pub(super) fn find_device<W: Backend>(
    backend: &mut W,
    ifindex: u32,
    identity: Option<u64>,
) -> Result<DeviceLookup, BackendError> {
    let found = match backend.look(Target::Index(ifindex)) {
        Ok(at) => Some(at),
        Err(error) if error.is_absent() => None,
        Err(error) => return Err(error),
    };
    let Some(identity) = identity else {
        return Ok(found.map_or(DeviceLookup::Deleted, |at| DeviceLookup::Here(Box::new(at))));
    };
    if let Some(at) = found.filter(|at| at.identity.is_none_or(|it| it == identity)) {
        return Ok(DeviceLookup::Here(Box::new(at)));
    }
    Ok(match backend.whereabouts(identity)? {
        Whereabouts::Here(ifindex) => match backend.look(Target::Index(ifindex)) {
            Ok(at) => DeviceLookup::Here(Box::new(at)),
            Err(error) if error.is_absent() => DeviceLookup::Deleted,
            Err(error) => return Err(error),
        },
        Whereabouts::Elsewhere { ifname, namespace } => DeviceLookup::Unreachable(format!(
            "it is in another network namespace now, as {ifname}, with what was set: restore from \
             within that one (nsenter --net={namespace} napkin restore)"
        )),
        Whereabouts::Gone => DeviceLookup::Deleted,
        Whereabouts::Unknown => DeviceLookup::Unreachable(
            "it is not in this network namespace any more; whether it was deleted, or is in another \
             one with what was set, can be seen with CAP_SYS_ADMIN and CAP_SYS_PTRACE only: restore \
             as root, or give it up with --forget"
                .into(),
        ),
    })
}
