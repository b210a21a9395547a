//! CPU affinity and scheduling class of threads, by thread id: for this process's own contexts and for the kernel's
//! `napi/*` threads.
//!
//! A thin layer over the system calls, whose errors name the CPU or the right that is missing. What the threads are
//! for is up to the callers.

mod class;
mod cpus;

use rustix::io;
use rustix::process::{getpriority_process, setpriority_process};
use rustix::thread::{CpuSet, Pid, sched_getaffinity, sched_setaffinity};
use thiserror::Error;

use crate::last_error;
use crate::procfs::{cpus::parse_list, cpuset, read_text};

pub use class::Class;
pub use cpus::{CpuList, ranges};

/// Limit of a file's size; a thread's `status` and a list of CPUs are shorter.
const LIMIT: usize = 64 << 10;

/// The CPUs and the scheduling class of one kind of context.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Placement {
    /// The CPUs by the operating system's numbers; empty for all.
    pub cpus: Vec<usize>,
    /// Scheduling class, and its priority or nice value.
    pub class: Class,
}

/// The reason why a thread's CPUs or class could not be read or set.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum SchedError {
    /// There is no such CPU, it is offline, or this process may not use it.
    #[error("CPU {cpu} is not available to this process, which may use {usable}")]
    Cpu {
        /// The CPU's number.
        cpu: usize,
        /// The CPUs that it may use, as in `0-3,6`.
        usable: String,
    },
    /// The thread has ended, or belongs to another user.
    #[error("a thread cannot be moved to other CPUs: {source}{}", advice(*source))]
    Affinity {
        /// The operating system's answer.
        source: io::Errno,
    },
    /// The thread has ended, or belongs to another user.
    #[error("a thread's class cannot be had: {source}{}", advice(*source))]
    Class {
        /// The operating system's answer.
        source: io::Errno,
    },
    /// A class that is reported but never set.
    #[error("a thread cannot be put into a scheduling class of another kind ({class})")]
    Opaque {
        /// The class that was asked for.
        class: Class,
    },
    /// The right to real-time priority is missing.
    #[error(
        "real-time priority {priority} was refused: {source}; run with CAP_SYS_NICE, or raise \
         RLIMIT_RTPRIO (ulimit -r)"
    )]
    RealTime {
        /// The priority that was asked for.
        priority: u8,
        /// The operating system's answer.
        source: io::Errno,
    },
}

/// Returns the remedy for a permission error: threads of other users, the kernel's included, take CAP_SYS_NICE.
fn advice(source: io::Errno) -> &'static str {
    let right = matches!(source, io::Errno::PERM | io::Errno::ACCESS);
    if right { "; run as root, or with CAP_SYS_NICE" } else { "" }
}

/// Returns the CPUs in the calling thread's affinity, in order.
pub fn usable_cpus() -> Vec<usize> {
    sched_getaffinity(None)
        .map(|set| (0..CpuSet::MAX_CPU).filter(|cpu| set.is_set(*cpu)).collect())
        .unwrap_or_default()
}

/// Whether a CPU's number is below the limit of `sched_setaffinity`'s mask.
pub const fn may_exist(cpu: usize) -> bool {
    cpu < CpuSet::MAX_CPU
}

/// Returns the error for a CPU that is not available, with the CPUs that are.
pub fn unusable(cpu: usize) -> SchedError {
    // The calling thread may be pinned itself: ask in a new thread that resets its affinity.
    let all = || {
        let mut all = CpuSet::new();
        (0..CpuSet::MAX_CPU).for_each(|cpu| all.set(cpu));
        // If this fails, the new thread keeps the affinity of the calling one.
        let _ = sched_setaffinity(None, &all);
        usable_cpus()
    };
    let usable = std::thread::spawn(all).join().unwrap_or_default();
    SchedError::Cpu { cpu, usable: CpuList(usable).to_string() }
}

/// Pins a thread (`None`: the calling one) to CPUs; an empty list leaves it as it is.
///
/// # Errors
/// If one of the CPUs cannot be used; then the thread's affinity is as before.
pub fn pin(thread: Option<i32>, cpus: &[usize]) -> Result<(), SchedError> {
    let Some(first) = cpus.first().copied() else { return Ok(()) };
    let mut set = CpuSet::new();
    for cpu in cpus {
        if !may_exist(*cpu) {
            return Err(unusable(*cpu));
        }
        set.set(*cpu);
    }
    let refused = |source| SchedError::Affinity { source };
    let pid = id(thread).map_err(refused)?;
    let before = allowed(thread)?;
    match sched_setaffinity(pid, &set) {
        Ok(()) => {}
        Err(io::Errno::INVAL) => return Err(unusable(first)),
        Err(errno) => return Err(refused(errno)),
    }
    // If at least one of the CPUs can be used, the kernel silently leaves out the others.
    let got = sched_getaffinity(pid).map_err(refused)?;
    match cpus.iter().find(|cpu| !got.is_set(**cpu)) {
        None => Ok(()),
        Some(missing) => {
            // Cannot fail: these CPUs were in use a moment ago.
            let _ = unpin(thread, &before);
            Err(unusable(*missing))
        }
    }
}

/// Restores the affinity of a thread (`None`: the calling one), as far as its former CPUs are still available. The
/// kernel leaves out the others, such as offline CPUs. A list of all possible CPUs sets the full mask, so that the
/// thread may also use CPUs that are added later. An empty list leaves the thread as it is.
///
/// # Errors
/// If none of the CPUs can be used any more; then the thread's affinity is as before.
pub fn unpin(thread: Option<i32>, cpus: &[usize]) -> Result<(), SchedError> {
    let Some(first) = cpus.first().copied() else { return Ok(()) };
    let mut set = CpuSet::new();
    if cpus == possible() {
        (0..CpuSet::MAX_CPU).for_each(|cpu| set.set(cpu));
    }
    cpus.iter().filter(|cpu| may_exist(**cpu)).for_each(|cpu| set.set(*cpu));
    let refused = |source| SchedError::Affinity { source };
    match sched_setaffinity(id(thread).map_err(refused)?, &set) {
        Ok(()) => Ok(()),
        Err(io::Errno::INVAL) => Err(unusable(first)),
        Err(errno) => Err(refused(errno)),
    }
}

/// Returns all CPUs that this kernel can have, online or not, in order; empty if sysfs does not tell.
fn possible() -> Vec<usize> {
    let list = read_text("/sys/devices/system/cpu/possible", LIMIT).unwrap_or_default();
    parse_list(&list).unwrap_or_default()
}

/// Returns those of a thread's CPUs that are in `on`, the CPUs that are online.
pub fn still_available(cpus: &[usize], on: &[usize]) -> Vec<usize> {
    cpus.iter().copied().filter(|cpu| on.contains(cpu)).collect()
}

/// Puts a thread (`None`: the calling one) into a class, and sets the nice value that the class includes.
///
/// # Errors
/// Without the right to real-time priority, and for [`Class::Other`]; then the thread is as before. Without the
/// right to lower the nice value, the thread is in the new class but keeps its nice value.
pub fn classify(thread: Option<i32>, class: Class) -> Result<(), SchedError> {
    let Some((policy, priority)) = class.policy() else {
        return Err(SchedError::Opaque { class });
    };
    let refused = |source| match class {
        Class::Fifo(priority) | Class::Rr(priority) => SchedError::RealTime { priority, source },
        _ => SchedError::Class { source },
    };
    let pid = id(thread).map_err(refused)?;
    let thread = number(thread).map_err(refused)?;
    // SAFETY: the call takes a number and returns one.
    let now = unsafe { libc::sched_getscheduler(thread) };
    // Keep `SCHED_RESET_ON_FORK`, which decides about child threads and is no part of the class.
    let reset = now.max(0) & libc::SCHED_RESET_ON_FORK;
    // SAFETY: `sched_param` is plain data, for which all zeros are valid on every libc.
    let mut param: libc::sched_param = unsafe { std::mem::zeroed() };
    param.sched_priority = i32::from(priority);
    // SAFETY: the pointer is to a live `sched_param`; the call reads it and nothing else.
    let result = unsafe { libc::sched_setscheduler(thread, policy | reset, &raw const param) };
    if result != 0 {
        return Err(refused(last_error()));
    }
    let Some(nice) = class.nice().map(i32::from) else { return Ok(()) };
    // After the class: leaving real-time takes no right, lowering the nice value does.
    match setpriority_process(pid, nice) {
        Err(source) if getpriority_process(pid) != Ok(nice) => Err(refused(source)),
        _ => Ok(()),
    }
}

/// Returns the online CPUs on which a thread (`None`: the calling one) may run, in order.
///
/// # Errors
/// If the thread has ended.
pub fn affinity(thread: Option<i32>) -> Result<Vec<usize>, SchedError> {
    let set =
        id(thread).and_then(sched_getaffinity).map_err(|source| SchedError::Affinity { source })?;
    Ok((0..CpuSet::MAX_CPU).filter(|cpu| set.is_set(*cpu)).collect())
}

/// Returns the CPUs to which a thread (`None`: the calling one) is assigned, in order, including offline ones,
/// which [`affinity`] leaves out.
///
/// # Errors
/// If the thread has ended.
pub fn allowed(thread: Option<i32>) -> Result<Vec<usize>, SchedError> {
    let path = match thread {
        Some(id) => format!("/proc/{id}/status"),
        None => "/proc/thread-self/status".to_owned(),
    };
    match read_text(path, LIMIT).ok().and_then(|text| listed(&text)) {
        Some(cpus) => Ok(cpus),
        // Without procfs, the online part is all that can be known.
        None => affinity(thread),
    }
}

/// Returns the CPUs that [`unpin`] should restore for a thread. That is [`allowed`], or, if the thread may use its
/// whole cpuset, all possible CPUs: then it follows later changes of the cpuset.
///
/// # Errors
/// If the thread has ended.
pub fn cpus_to_restore(thread: i32) -> Result<Vec<usize>, SchedError> {
    let allowed = allowed(Some(thread))?;
    let follows = cpuset(thread).is_some_and(|all| all == allowed);
    let possible = if follows { possible() } else { Vec::new() };
    Ok(if possible.is_empty() { allowed } else { possible })
}

/// Parses the CPUs in a thread's `status`.
fn listed(status: &str) -> Option<Vec<usize>> {
    let list = status.lines().find_map(|line| line.strip_prefix("Cpus_allowed_list:"))?;
    parse_list(list).filter(|cpus| !cpus.is_empty())
}

/// Returns the class of a thread (`None`: the calling one).
///
/// # Errors
/// If the thread has ended.
pub fn class(thread: Option<i32>) -> Result<Class, SchedError> {
    let refused = |source| SchedError::Class { source };
    let nice = getpriority_process(id(thread).map_err(refused)?).map_err(refused)?;
    let thread = number(thread).map_err(refused)?;
    let failed = || SchedError::Class { source: last_error() };
    // SAFETY: the call takes a number and returns one.
    let policy = unsafe { libc::sched_getscheduler(thread) };
    if policy < 0 {
        return Err(failed());
    }
    // SAFETY: `sched_param` is plain data, for which all zeros are valid on every libc.
    let mut param: libc::sched_param = unsafe { std::mem::zeroed() };
    // SAFETY: the pointer is to a live `sched_param`, which the call fills in.
    if unsafe { libc::sched_getparam(thread, &raw mut param) } != 0 {
        return Err(failed());
    }
    let priority = u8::try_from(param.sched_priority).unwrap_or(u8::MAX);
    let nice = i8::try_from(nice).unwrap_or(0);
    Ok(Class::of(policy & !libc::SCHED_RESET_ON_FORK, priority, nice))
}

/// Converts a thread id for rustix. An id that no thread has (0 or below, from a file or another process) is an
/// error, so that it does not stand for the calling thread.
fn id(thread: Option<i32>) -> Result<Option<Pid>, io::Errno> {
    match thread {
        None => Ok(None),
        Some(id @ 1..) => Ok(Pid::from_raw(id)),
        Some(_) => Err(io::Errno::SRCH),
    }
}

/// Converts a thread id for libc, where 0 is the calling thread.
fn number(thread: Option<i32>) -> Result<i32, io::Errno> {
    Ok(id(thread)?.map_or(0, |id| id.as_raw_nonzero().get()))
}

/// Whether this process may put its threads into a class; tries it on a temporary thread.
pub fn may(class: Class) -> bool {
    std::thread::spawn(move || classify(None, class).is_ok()).join().unwrap_or(false)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_thread_was_given_is_read_back() {
        let here = usable_cpus()[0];
        let given = class(None).expect("it lives");
        let thread = std::thread::spawn(move || {
            pin(None, &[here]).expect("it is there");
            (affinity(None).expect("it lives"), class(None).expect("it lives"))
        });
        assert_eq!(thread.join().expect("no panic"), (vec![here], given));
    }

    #[test]
    fn a_class_that_takes_no_right_is_read_back_and_one_of_another_kind_is_never_set() {
        for class in [Class::Batch, Class::Idle, Class::Nice(19)] {
            let thread = std::thread::spawn(move || {
                classify(None, class).expect("it takes no right");
                let opaque = classify(None, Class::Other(6)).expect_err("it is only seen");
                assert!(opaque.to_string().contains("other 6"), "{opaque}");
                super::class(None).expect("it lives")
            });
            assert_eq!(thread.join().expect("no panic"), class);
        }
    }

    #[test]
    fn a_class_is_given_up_also_where_the_nice_value_is_refused() {
        let thread = std::thread::spawn(|| {
            classify(None, Class::Nice(19)).expect("it takes no right");
            classify(None, Class::Batch).expect("it takes no right");
            let set = classify(None, Class::Fair);
            (set.is_ok(), class(None).expect("it lives"))
        });
        let (may, now) = thread.join().expect("no panic");
        assert_eq!(now, if may { Class::Fair } else { Class::Nice(19) });
    }

    #[test]
    fn what_its_children_get_stays_as_it_was() {
        let thread = std::thread::spawn(|| {
            // SAFETY: `sched_param` is plain data, for which all zeros are valid on every libc.
            let param: libc::sched_param = unsafe { std::mem::zeroed() };
            let policy = libc::SCHED_OTHER | libc::SCHED_RESET_ON_FORK;
            // SAFETY: the pointer is to a live `sched_param`; the call reads it and nothing else.
            let set = unsafe { libc::sched_setscheduler(0, policy, &raw const param) };
            assert_eq!(set, 0);
            classify(None, Class::Batch).expect("it takes no right");
            assert_eq!(class(None).expect("it lives"), Class::Batch);
            // SAFETY: the call takes a number and returns one.
            unsafe { libc::sched_getscheduler(0) }
        });
        let flag = thread.join().expect("no panic") & libc::SCHED_RESET_ON_FORK;
        assert_eq!(flag, libc::SCHED_RESET_ON_FORK);
    }

    #[test]
    fn the_right_that_is_missing_is_named() {
        let moved = SchedError::Affinity { source: io::Errno::PERM }.to_string();
        let classed = SchedError::Class { source: io::Errno::PERM }.to_string();
        assert!(moved.ends_with("CAP_SYS_NICE") && classed.ends_with("CAP_SYS_NICE"), "{moved}");
        let ended = SchedError::Affinity { source: io::Errno::SRCH }.to_string();
        assert!(!ended.contains("CAP_SYS_NICE"), "no right would help: {ended}");
    }

    /// A CPU number that no test machine has.
    const ABSENT: usize = CpuSet::MAX_CPU - 1;

    #[test]
    fn the_cpu_that_is_to_blame_is_named_and_the_thread_stays() {
        let before = usable_cpus();
        let here = before[0];
        for cpus in [vec![ABSENT], vec![here, ABSENT], vec![ABSENT, here], vec![here, 1 << 40]] {
            let error = pin(None, &cpus).expect_err("it is not there");
            let SchedError::Cpu { cpu, usable } = &error else { panic!("{error}") };
            assert!(*cpu >= ABSENT, "{error}");
            assert!(!usable.is_empty(), "{error}");
            assert!(!error.to_string().contains("os error"), "{error}");
            assert_eq!(usable_cpus(), before);
        }
    }

    #[test]
    fn a_thread_gets_back_those_of_its_cpus_that_are_still_there() {
        let all = usable_cpus();
        let had = [&all[..], &[ABSENT, 1 << 40]].concat();
        let here = all[0];
        let thread = std::thread::spawn(move || {
            pin(None, &[here]).expect("it is there");
            let none = unpin(None, &[ABSENT]).expect_err("none of them is there");
            assert!(matches!(none, SchedError::Cpu { cpu: ABSENT, .. }), "{none}");
            unpin(None, &[]).expect("nothing is asked for");
            assert_eq!(usable_cpus(), [here], "it stays");
            unpin(None, &had).expect("some of them are there");
            (still_available(&had, &usable_cpus()), usable_cpus())
        });
        assert_eq!(thread.join().expect("no panic"), (all.clone(), all));
    }

    #[test]
    fn a_thread_gets_back_those_that_are_off_as_well() {
        let status = "Cpus_allowed:\t87\nCpus_allowed_list:\t0-2,7\n";
        assert_eq!(listed(status), Some(vec![0, 1, 2, 7]));
        assert_eq!(listed("Cpus_allowed:\t87\n"), None);
        let thread = std::thread::spawn(|| {
            let (had, usable) = (allowed(None).expect("it lives"), usable_cpus());
            assert_eq!(still_available(&had, &usable), usable);
            pin(None, &usable[..1]).expect("it is there");
            assert_eq!(allowed(None).expect("it lives"), usable[..1]);
            unpin(None, &had).expect("they were its own");
            (had, usable, allowed(None).expect("it lives"))
        });
        let (had, usable, has) = thread.join().expect("no panic");
        // Before Linux 6.2 the affinity mask loses CPUs that are offline.
        assert!(has == had || has == usable, "{has:?} of {had:?}");
    }

    #[test]
    fn a_thread_of_a_few_cpus_knows_of_the_others() {
        let all = usable_cpus();
        let error_here = unusable(ABSENT).to_string();
        let thread = std::thread::spawn(move || {
            pin(None, &all[..1]).expect("it is there");
            assert_eq!(usable_cpus(), all[..1]);
            unusable(ABSENT).to_string()
        });
        assert_eq!(thread.join().expect("no panic"), error_here);
    }

    #[test]
    fn an_id_that_no_thread_has_is_not_the_calling_thread() {
        for id in [0, -1, i32::MIN] {
            assert!(pin(Some(id), &usable_cpus()[..1]).is_err(), "{id}");
            assert!(unpin(Some(id), &usable_cpus()[..1]).is_err(), "{id}");
            assert!(affinity(Some(id)).is_err(), "{id}");
            assert!(class(Some(id)).is_err(), "{id}");
            assert!(classify(Some(id), Class::Fair).is_err(), "{id}");
        }
    }

    #[test]
    fn a_thread_that_has_ended_is_no_cpu_s_fault() {
        let gone = std::thread::spawn(rustix::thread::gettid).join().expect("no panic");
        let gone = gone.as_raw_nonzero().get();
        // `join` returns shortly before the kernel removes the thread.
        while std::fs::exists(format!("/proc/self/task/{gone}")).expect("readable") {
            std::thread::yield_now();
        }
        let error = pin(Some(gone), &usable_cpus()[..1]).expect_err("it has ended");
        assert!(matches!(error, SchedError::Affinity { .. }), "{error}");
    }
}
