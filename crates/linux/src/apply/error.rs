//! What can go wrong in planning, making and undoing changes.

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

/// Why the kernel could not be read or written.
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
        /// What the scheduler's system call was refused for.
        source: napkin_os::sched::SchedError,
    },
    /// What was to be set has vanished.
    #[error(
        "{what} of {ifname} {subject} is not there any more: the device was changed meanwhile; \
         look again"
    )]
    Gone {
        /// What was tried, as part of the sentence.
        what: &'static str,
        /// Of which device.
        ifname: String,
        /// Of which instance.
        subject: String,
    },
    /// A thread that sleeps now and is real-time would spin.
    #[error(
        "the NAPI thread of {instance} is of class {class} now, and would spin: the kernel stops a \
         spinning real-time thread for 50 ms in every second (sched_rt_runtime_us); make it fair first \
         (chrt -o -p 0 TID)"
    )]
    RealTimeSpin {
        /// The NAPI instance that the thread polls.
        instance: String,
        /// What the thread has.
        class: Class,
    },
    /// It was to be set to something that it cannot be.
    #[error("{what} cannot be {value}")]
    NoSuchValue {
        /// What was tried, as part of the sentence.
        what: &'static str,
        /// The value as it was given.
        value: String,
    },
}

impl BackendError {
    /// That there is no such device, by whatever it was looked for.
    pub(super) fn absent(asked: String) -> BackendError {
        DeviceError::Absent { ifname: asked, nearest: None, there: Vec::new() }.into()
    }

    /// Whether there is no such device (any more), as opposed to no answer.
    pub fn is_absent(&self) -> bool {
        matches!(
            self,
            BackendError::Device(DeviceError::Absent { .. })
                | BackendError::Netlink(NetlinkError::NoDevice { .. })
                | BackendError::Device(DeviceError::Netlink(NetlinkError::NoDevice { .. }))
        )
    }
}

/// Why there is no plan.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum PlanError {
    /// The kernel cannot do it.
    #[error(transparent)]
    Refused(#[from] Refusal),
    /// The device has no instance.
    #[error(transparent)]
    Device(#[from] DeviceError),
    /// No such queue.
    #[error("{ifname} has no receive queue {queue} that an instance polls: there is {there}")]
    NoQueue {
        /// The interface's name, as `ip link` prints it.
        ifname: String,
        /// The queue's index among those of its direction, from 0.
        queue: u32,
        /// Those that there are.
        there: String,
    },
    /// One instance alone cannot be set.
    #[error(
        "this kernel ({release}) sets {setting} of a whole device only: Linux {since} sets it of one \
         instance; leave --queue out to set all of {ifname}"
    )]
    QueueAlone {
        /// The interface's name, as `ip link` prints it.
        ifname: String,
        /// The setting, which the kernel has for a whole device only.
        setting: Setting,
        /// The running kernel.
        release: String,
        /// The first Linux that can.
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
        /// The running kernel.
        release: String,
    },
    /// A real-time thread that never sleeps.
    #[error(
        "--rt is not for a thread that polls without end: the kernel stops a spinning SCHED_FIFO \
         thread for 50 ms in every second (sched_rt_runtime_us), and packets wait as long; leave \
         --rt out, and give the thread a CPU of its own with --cpus"
    )]
    RealTimeSpin,
    /// Nothing to give a priority to.
    #[error("--rt is for NAPI threads, and {policy} has none; threaded has")]
    NoThread {
        /// The policy as text.
        policy: String,
    },
    /// A class that could not be given back.
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
        /// What it has.
        class: Class,
    },
    /// A real-time priority outside of 1 to 99.
    #[error("--rt takes a priority of 1 to 99, not {priority}")]
    Priority {
        /// What was asked for.
        priority: u8,
    },
    /// No such CPU.
    #[error("CPU {cpu} is offline or does not exist; online: {online}")]
    Cpu {
        /// The CPU's number.
        cpu: usize,
        /// Those that are.
        online: String,
    },
}

/// Why a policy was not applied, or not put back.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum ApplyError {
    /// There is no plan.
    #[error(transparent)]
    Plan(#[from] PlanError),
    /// The journal. Without it nothing is changed.
    #[error(transparent)]
    Journal(#[from] JournalError),
    /// The kernel refused something, or could not be asked.
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
        /// What is missing.
        right: Right,
    },
    /// Somebody else changed what napkin had set.
    #[error(
        "another program has changed what napkin had set, and nothing was changed now: {}; `napkin \
         apply --force` sets it all the same, `napkin restore --force` puts back what was before, and \
         `napkin restore --forget` leaves it to that program",
        list(foreign)
    )]
    Foreign {
        /// The values that somebody else has set.
        foreign: Vec<Foreign>,
    },
    /// A change failed in the middle.
    #[error("{failed}{}", undone(.left))]
    Stopped {
        /// The place that was to be changed.
        place: Place,
        /// Why applying stopped.
        failed: Box<ApplyError>,
        /// What could not be put back.
        left: Vec<String>,
    },
}

impl ApplyError {
    /// The place that the kernel would not have changed, if it is that which made this fail.
    pub fn refused(&self) -> Option<&Place> {
        match self {
            ApplyError::Stopped { place, failed, .. } => {
                matches!(**failed, ApplyError::Backend(_)).then_some(place)
            }
            _ => None,
        }
    }

    /// Whether a change failed because what was to be changed had vanished, as when a driver makes its
    /// instances anew meanwhile: it may be there again.
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
