//! Errors of planning, making and undoing changes.

use thiserror::Error;

use super::foreign::Foreign;
use crate::journal::JournalError;
use crate::place::Place;
use crate::support::Refusal;
use napkin_kernel::device::DeviceError;
use napkin_kernel::netlink::NetlinkError;
use napkin_kernel::settings::Setting;
use napkin_kernel::sysfs::SysfsError;
use napkin_os::procfs::irq::IrqError;
use napkin_os::rights::Right;
use napkin_os::sched::{Class, SchedError};
use rustix::io::Errno;

/// A failure to read or write the kernel.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum BackendError {
    /// The device cannot be found or read.
    #[error(transparent)]
    Device(#[from] DeviceError),
    /// A netlink request failed.
    #[error(transparent)]
    Netlink(#[from] NetlinkError),
    /// A file in sysfs cannot be read or written.
    #[error(transparent)]
    Sysfs(#[from] SysfsError),
    /// An interrupt's CPUs cannot be read or written.
    #[error(transparent)]
    Irq(#[from] IrqError),
    /// A poll thread's CPUs or scheduling class cannot be set.
    #[error("the NAPI thread of {instance}: {source}")]
    Thread {
        /// The NAPI instance that the thread polls.
        instance: String,
        /// The error of the scheduler's system call.
        source: napkin_os::sched::SchedError,
    },
    /// The place to be set has vanished.
    #[error(
        "{what} of {ifname} {subject} is not there any more: the device was changed meanwhile; \
         look again"
    )]
    Gone {
        /// The setting.
        what: &'static str,
        /// The device's name.
        ifname: String,
        /// The instance.
        subject: String,
    },
    /// A sleeping thread that is real-time would begin to spin.
    #[error(
        "the NAPI thread of {instance} is of class {class} now, and would spin: the kernel stops a \
         spinning real-time thread for 50 ms in every second (sched_rt_runtime_us); make it fair first \
         (chrt -o -p 0 TID)"
    )]
    RealTimeSpin {
        /// The NAPI instance that the thread polls.
        instance: String,
        /// The thread's class.
        class: Class,
    },
    /// The value is of the wrong kind for the place.
    #[error("{what} cannot be {value}")]
    NoSuchValue {
        /// The setting.
        what: &'static str,
        /// The value.
        value: String,
    },
}

impl BackendError {
    /// The error for a device that does not exist, by the name or index that was asked for.
    pub(super) fn absent(asked: String) -> BackendError {
        DeviceError::Absent { ifname: asked, nearest: None, there: Vec::new() }.into()
    }

    /// Whether the device does not exist (any more), as opposed to a kernel that does not answer.
    pub fn is_absent(&self) -> bool {
        matches!(
            self,
            BackendError::Device(DeviceError::Absent { .. })
                | BackendError::Netlink(NetlinkError::NoDevice { .. })
                | BackendError::Device(DeviceError::Netlink(NetlinkError::NoDevice { .. }))
        )
    }
}

/// The reason why there is no plan.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum PlanError {
    /// The kernel does not support the policy.
    #[error(transparent)]
    Refused(#[from] Refusal),
    /// The device has no instance.
    #[error(transparent)]
    Device(#[from] DeviceError),
    /// There is no such queue.
    #[error("{ifname} has no receive queue {queue} that an instance polls: there is {there}")]
    NoQueue {
        /// The interface's name, as `ip link` prints it.
        ifname: String,
        /// The index of the receive queue, from 0.
        queue: u32,
        /// The queues that exist.
        there: String,
    },
    /// The kernel sets this for whole devices only.
    #[error(
        "this kernel ({release}) sets {setting} of a whole device only: Linux {since} sets it of one \
         instance; leave --queue out to set all of {ifname}"
    )]
    QueueAlone {
        /// The interface's name, as `ip link` prints it.
        ifname: String,
        /// The setting, which the kernel has for a whole device only.
        setting: Setting,
        /// The running kernel's release.
        release: String,
        /// The first Linux release that sets it per instance.
        since: &'static str,
    },
    /// Without a list of instances there are no threads and interrupts to place.
    #[error(
        "this kernel ({release}) does not list NAPI instances, so {option} has nothing to act on: \
         Linux 6.8 lists them first"
    )]
    NoInstances {
        /// The option that needs instances.
        option: &'static str,
        /// The running kernel's release.
        release: String,
    },
    /// A real-time thread that never sleeps.
    #[error(
        "--rt is not for a thread that polls without end: the kernel stops a spinning SCHED_FIFO \
         thread for 50 ms in every second (sched_rt_runtime_us), and packets wait as long; leave \
         --rt out, and give the thread a CPU of its own with --cpus"
    )]
    RealTimeSpin,
    /// There is no thread to give a priority to.
    #[error("--rt is for NAPI threads, and {policy} has none; threaded has")]
    NoThread {
        /// The policy as text.
        policy: String,
    },
    /// A scheduling class that could not be put back.
    #[error(
        "--rt would take its scheduling class ({class}) from the thread of {ifname} {instance}, and that \
         could not be given back; leave --rt out, or give the thread another class first (chrt -o -p 0 \
         TID)"
    )]
    OtherClass {
        /// The interface's name, as `ip link` prints it.
        ifname: String,
        /// The instance that the thread polls.
        instance: String,
        /// The thread's class.
        class: Class,
    },
    /// A real-time priority outside of 1 to 99.
    #[error("--rt takes a priority of 1 to 99, not {priority}")]
    Priority {
        /// The requested priority.
        priority: u8,
    },
    /// The CPU is offline or does not exist.
    #[error("CPU {cpu} is offline or does not exist; online: {online}")]
    Cpu {
        /// The CPU's number.
        cpu: usize,
        /// The CPUs that are online.
        online: String,
    },
}

/// The reason why a policy was not applied, or not put back.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum ApplyError {
    /// There is no plan.
    #[error(transparent)]
    Plan(#[from] PlanError),
    /// A failure of the journal, without which nothing is changed.
    #[error(transparent)]
    Journal(#[from] JournalError),
    /// The kernel refused a change, or did not answer.
    #[error(transparent)]
    Backend(#[from] BackendError),
    /// A right is missing.
    #[error(
        "changing {ifname} takes {right} (run it as root); nothing was changed. --dry-run and \
         `napkin diff` show without it what would be"
    )]
    NoRight {
        /// The interface's name, as `ip link` prints it.
        ifname: String,
        /// The missing right.
        right: Right,
    },
    /// Another program changed what napkin had set.
    #[error(
        "another program has changed what napkin had set, and nothing was changed now: {}; `napkin \
         apply --force` sets it all the same, `napkin restore --force` puts back what was before, and \
         `napkin restore --forget` leaves it to that program",
        list(foreign)
    )]
    Foreign {
        /// The values that the other program has set.
        foreign: Vec<Foreign>,
    },
    /// A change failed after others had been made.
    #[error("{failed}{}", undone(.left))]
    Stopped {
        /// The place of the failed change.
        place: Place,
        /// The reason of the failure.
        failed: Box<ApplyError>,
        /// The changes that could not be undone.
        left: Vec<String>,
    },
}

impl ApplyError {
    /// The place whose change failed, if the kernel made it fail.
    pub fn refused(&self) -> Option<&Place> {
        match self {
            ApplyError::Stopped { place, failed, .. } => {
                matches!(**failed, ApplyError::Backend(_)).then_some(place)
            }
            _ => None,
        }
    }

    /// Whether a change failed because its place had vanished, as when a driver creates its instances anew
    /// meanwhile: a retry may succeed.
    pub fn is_vanished(&self) -> bool {
        let ApplyError::Stopped { failed, .. } = self else { return false };
        match &**failed {
            ApplyError::Backend(BackendError::Gone { .. }) => true,
            ApplyError::Backend(BackendError::Netlink(error)) => {
                matches!(error, NetlinkError::NoNapi { .. })
            }
            ApplyError::Backend(BackendError::Irq(error)) => {
                matches!(error, IrqError::Absent { .. })
            }
            ApplyError::Backend(BackendError::Thread { source, .. }) => matches!(
                source,
                SchedError::Affinity { source: Errno::SRCH }
                    | SchedError::Class { source: Errno::SRCH }
            ),
            _ => false,
        }
    }
}

fn list(foreign: &[Foreign]) -> String {
    foreign.iter().map(Foreign::to_string).collect::<Vec<_>>().join("; ")
}

fn undone(left: &[String]) -> String {
    if left.is_empty() {
        return "; what had been changed before that was put back".into();
    }
    let left = left.join("; ");
    format!(
        "; some of what had been changed before is not back, `napkin restore` tries again: {left}"
    )
}
