//! `/proc/irq/N`: the CPUs to which an interrupt may go (affinity) and goes (effective affinity).

use std::io;

use thiserror::Error;

use super::{cpus, read_text};
use crate::sched::CpuList;

/// Limit of a file's size: enough for a list of every second of eight thousand CPUs.
const LIMIT: usize = 64 << 10;

/// The reason why an interrupt's CPUs could not be read or set.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum IrqError {
    /// There is no interrupt of that number, or procfs is not mounted.
    #[error("there is no interrupt {irq} (/proc/irq/{irq} is not there)")]
    Absent {
        /// The interrupt's number, as in `/proc/interrupts`.
        irq: u32,
    },
    /// Only root may write the files.
    #[error(
        "interrupt {irq} cannot be sent to other CPUs: it takes root in the host's user \
             namespace, and a writable /proc"
    )]
    Denied {
        /// The interrupt's number, as in `/proc/interrupts`.
        irq: u32,
    },
    /// The kernel manages the interrupt's affinity itself (`EIO`).
    #[error("interrupt {irq} cannot be sent to other CPUs: the kernel or its driver places it")]
    Managed {
        /// The interrupt's number, as in `/proc/interrupts`.
        irq: u32,
    },
    /// None of the CPUs is online.
    #[error("interrupt {irq} cannot go to {cpus}: none of these CPUs is on")]
    Cpus {
        /// The interrupt's number, as in `/proc/interrupts`.
        irq: u32,
        /// The CPUs that were asked for.
        cpus: CpuList,
    },
    /// Reading or writing failed for another reason.
    #[error("interrupt {irq}'s CPUs cannot be had: {source}")]
    Io {
        /// The interrupt's number, as in `/proc/interrupts`.
        irq: u32,
        /// The operating system's answer.
        source: io::Error,
    },
}

/// Returns the CPUs to which an interrupt may go.
///
/// # Errors
/// If there is no such interrupt.
pub fn affinity(irq: u32) -> Result<Vec<usize>, IrqError> {
    list(irq, "smp_affinity_list")
}

/// Returns the CPUs to which an interrupt goes now; most controllers pick one of [`affinity`]'s.
///
/// # Errors
/// If there is no such interrupt, or the kernel does not say.
pub fn effective_affinity(irq: u32) -> Result<Vec<usize>, IrqError> {
    list(irq, "effective_affinity_list")
}

/// Sets the CPUs to which an interrupt may go. The kernel silently leaves out CPUs that are offline.
///
/// # Errors
/// Without the right, if the kernel manages this interrupt itself, or if none of the CPUs is online.
pub fn set_affinity(irq: u32, cpus: &[usize]) -> Result<(), IrqError> {
    let list = CpuList(cpus.to_vec());
    let path = path(irq, "smp_affinity_list");
    // `fs::write` would also truncate and create.
    let written = std::fs::OpenOptions::new()
        .write(true)
        .open(path)
        .and_then(|mut file| io::Write::write_all(&mut file, list.to_string().as_bytes()));
    written.map_err(|source| match source.raw_os_error() {
        Some(libc::EIO) => IrqError::Managed { irq },
        Some(libc::EINVAL | libc::EOVERFLOW | libc::ERANGE) => IrqError::Cpus { irq, cpus: list },
        _ => failed(irq, source),
    })
}

fn path(irq: u32, file: &str) -> String {
    format!("/proc/irq/{irq}/{file}")
}

fn list(irq: u32, file: &str) -> Result<Vec<usize>, IrqError> {
    let text = read_text(path(irq, file), LIMIT).map_err(|source| failed(irq, source))?;
    cpus::parse_list(&text).ok_or_else(|| {
        let what = format!("{file} is no list of CPUs: {:?}", text.get(..40).unwrap_or(&text));
        IrqError::Io { irq, source: io::Error::new(io::ErrorKind::InvalidData, what) }
    })
}

fn failed(irq: u32, source: io::Error) -> IrqError {
    match source.kind() {
        io::ErrorKind::NotFound => IrqError::Absent { irq },
        io::ErrorKind::PermissionDenied | io::ErrorKind::ReadOnlyFilesystem => {
            IrqError::Denied { irq }
        }
        _ => IrqError::Io { irq, source },
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_that_there_is_not_is_said_to_be_absent() {
        let error = affinity(4_000_000_000).expect_err("there is none");
        assert!(matches!(error, IrqError::Absent { irq: 4_000_000_000 }), "{error}");
        let error = set_affinity(4_000_000_000, &[0]).expect_err("there is none");
        assert!(matches!(error, IrqError::Absent { .. }), "{error}");
    }
}
