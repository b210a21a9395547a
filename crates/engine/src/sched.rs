//! Where a thread may run, and in which class: settable for each context, and by anybody else's
//! tools on the thread's id.

use rustix::io;
use rustix::thread::{CpuSet, Pid, sched_setaffinity};
use thiserror::Error;

/// A scheduling class.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Class {
    /// `SCHED_OTHER`, nice 0.
    #[default]
    Fair,
    /// `SCHED_FIFO` with a priority from 1 to 99. Not for anything that spins: the operating system
    /// stops a spinning real-time thread for 50 ms in every second.
    Fifo(u8),
}

/// Where and how a kind of context runs.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Placement {
    /// The operating system's CPUs; empty for all.
    pub cpus: Vec<usize>,
    /// The class.
    pub class: Class,
}

/// What could not be had.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum SchedError {
    /// No such CPU, or not ours.
    #[error("CPU {cpu} cannot be used: {source} (this machine's are {online})")]
    Cpu {
        /// Which.
        cpu: usize,
        /// Those that are there.
        online: String,
        /// Why.
        source: io::Errno,
    },
    /// No right to real-time priority.
    #[error(
        "real-time priority {priority} was refused: {source}; run with CAP_SYS_NICE, or raise \
         RLIMIT_RTPRIO (ulimit -r)"
    )]
    RealTime {
        /// Which priority.
        priority: u8,
        /// Why.
        source: io::Errno,
    },
}

/// The CPUs that this process may use, in order.
pub fn usable_cpus() -> Vec<usize> {
    rustix::thread::sched_getaffinity(None)
        .map(|set| (0..CpuSet::MAX_CPU).filter(|cpu| set.is_set(*cpu)).collect())
        .unwrap_or_default()
}

/// Pins a thread (`None`: the calling one) to CPUs; none means all that are usable.
///
/// # Errors
/// If one of the CPUs is not there.
pub fn pin(thread: Option<i32>, cpus: &[usize]) -> Result<(), SchedError> {
    let Some(first) = cpus.first().copied() else { return Ok(()) };
    let fail = |cpu: usize, source: io::Errno| {
        let online = usable_cpus().iter().map(usize::to_string).collect::<Vec<_>>().join(" ");
        SchedError::Cpu { cpu, online, source }
    };
    let mut set = CpuSet::new();
    for cpu in cpus {
        if *cpu >= CpuSet::MAX_CPU {
            return Err(fail(*cpu, io::Errno::INVAL));
        }
        set.set(*cpu);
    }
    let pid = thread.and_then(Pid::from_raw);
    sched_setaffinity(pid, &set).map_err(|source| fail(first, source))
}

/// Puts a thread (`None`: the calling one) into a class.
///
/// # Errors
/// Without the right to real-time priority.
pub fn classify(thread: Option<i32>, class: Class) -> Result<(), SchedError> {
    let (policy, priority) = match class {
        Class::Fair => (libc::SCHED_OTHER, 0),
        Class::Fifo(priority) => (libc::SCHED_FIFO, priority),
    };
    // SAFETY: `sched_param` is plain data, for which all zeros are valid on every libc.
    let mut param: libc::sched_param = unsafe { std::mem::zeroed() };
    param.sched_priority = i32::from(priority);
    // SAFETY: the pointer is to a live `sched_param`; the call reads it and nothing else.
    let result = unsafe { libc::sched_setscheduler(thread.unwrap_or(0), policy, &raw const param) };
    if result == 0 {
        return Ok(());
    }
    let error = std::io::Error::last_os_error().raw_os_error().unwrap_or(libc::EPERM);
    Err(SchedError::RealTime { priority, source: io::Errno::from_raw_os_error(error) })
}

/// Whether this process may put its threads into a class: tried on a thread made for it.
pub fn may(class: Class) -> bool {
    std::thread::spawn(move || classify(None, class).is_ok()).join().unwrap_or(false)
}

/// Timers of this thread fire as exactly as the machine can (the default slack is 50 us).
pub(crate) fn exact_timers() {
    // It cannot fail for the calling thread; if it did, timers would only be later.
    let _ = rustix::thread::set_current_timer_slack(std::num::NonZero::new(1));
}

/// The calling thread's id.
pub(crate) fn current_tid() -> i32 {
    rustix::thread::gettid().as_raw_nonzero().get()
}
