//! Timing of threads: a context switch, a wake-up on the same CPU, and wake-ups of another CPU that is busy, has
//! just become idle, or has been idle for longer.

use std::os::fd::{AsFd, OwnedFd};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;
use std::time::Duration;

use napkin_os::sched;
use rustix::event::{EventfdFlags, eventfd};
use rustix::process::getppid;

use super::connections::{wait, watch};
use super::round::Samples;
use super::timing::{Budget, now, timed};
use napkin_workload::error::BenchError;
use napkin_workload::linux::failed;

/// Idle times of a CPU before its thread is woken, in microseconds.
pub(super) const IDLE_US: [u64; 7] = [20, 50, 100, 200, 500, 1_000, 4_000];

/// Number of yields per sample.
const YIELDS: u32 = 64;

/// Times switches between two threads on this CPU, by yields.
pub(super) fn switches(
    cpu: usize,
    clock: f64,
    budget: Budget<'_>,
    samples: &mut Samples,
) -> Result<(), BenchError> {
    let (over, yields) = (AtomicBool::new(false), AtomicU64::new(0));
    thread::scope(|scope| {
        let other = scope.spawn(|| -> Result<(), BenchError> {
            sched::pin(None, &[cpu])?;
            while !over.load(Ordering::Relaxed) {
                thread::yield_now();
                yields.fetch_add(1, Ordering::Relaxed);
            }
            Ok(())
        });
        let mut measure = || -> Result<(), BenchError> {
            while budget.left()? {
                let (switches, others) = (own_switches(), yields.load(Ordering::Relaxed));
                let ((), time) = timed(clock, || (0..YIELDS).for_each(|_| thread::yield_now()));
                let switches = 2 * own_switches().saturating_sub(switches);
                let others = yields.load(Ordering::Relaxed).saturating_sub(others);
                // If the two have not alternated, another thread has run too.
                let (fewest, most) = (u64::from(YIELDS) * 2 - 8, u64::from(YIELDS) * 2 + 8);
                if (fewest..=most).contains(&switches) {
                    let calls = u64::from(YIELDS) + others;
                    samples.add("thread.yield", time / calls as f64);
                }
                samples.add("thread.null", timed(clock, getppid).1);
            }
            Ok(())
        };
        let measured = measure();
        over.store(true, Ordering::Relaxed);
        let other = other.join().map_err(|_| BenchError::Panicked)?;
        measured.and(other)
    })
}

/// Number of context switches of this thread, voluntary and involuntary.
fn own_switches() -> u64 {
    // SAFETY: `rusage` is plain data, for which all zeros are valid.
    let mut usage: libc::rusage = unsafe { std::mem::zeroed() };
    // SAFETY: the pointer is to a live `rusage`; the call writes it and nothing else.
    if unsafe { libc::getrusage(libc::RUSAGE_THREAD, &raw mut usage) } != 0 {
        return 0;
    }
    u64::try_from(usage.ru_nvcsw + usage.ru_nivcsw).unwrap_or(0)
}

/// Puts the calling thread into SCHED_IDLE, which needs no privilege: it runs only when no ordinary thread of its
/// CPU wants to.
fn be_idle_class() -> Result<(), BenchError> {
    // SAFETY: `sched_param` is plain data, for which all zeros are valid.
    let param: libc::sched_param = unsafe { std::mem::zeroed() };
    // SAFETY: the pointer is to a live `sched_param`; the call reads it and nothing else.
    let result = unsafe { libc::sched_setscheduler(0, libc::SCHED_IDLE, &raw const param) };
    if result == 0 { Ok(()) } else { Err(failed(std::io::Error::last_os_error())) }
}

/// An eventfd with an epoll on it.
struct Doorbell {
    event: OwnedFd,
    epoll: OwnedFd,
}

impl Doorbell {
    fn new() -> Result<Doorbell, BenchError> {
        let event = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK).map_err(failed)?;
        let epoll = watch(&[event.as_fd()])?;
        Ok(Doorbell { event, epoll })
    }

    fn ring(&self) {
        // Cannot block: the counter holds up to 2^64 - 2.
        let _ = rustix::io::write(&self.event, &1_u64.to_ne_bytes());
    }

    fn quiet(&self) {
        // Fails with EAGAIN if the counter is 0, which is fine.
        let _ = rustix::io::read(&self.event, &mut [0_u8; 8]);
    }
}

/// Times writes to an eventfd with a sleeper on this CPU and to one without; the difference is the wake-up. The
/// sleeper is in SCHED_IDLE and does not preempt this thread.
pub(super) fn wake_same_cpu(
    cpu: usize,
    clock: f64,
    budget: Budget<'_>,
    samples: &mut Samples,
) -> Result<(), BenchError> {
    let (with, without) = (Doorbell::new()?, Doorbell::new()?);
    let (over, sleeps) = (AtomicBool::new(false), AtomicU64::new(0));
    thread::scope(|scope| {
        let sleeper = scope.spawn(|| -> Result<(), BenchError> {
            sched::pin(None, &[cpu])?;
            be_idle_class()?;
            let mut events = Vec::new();
            while !over.load(Ordering::Relaxed) {
                sleeps.fetch_add(1, Ordering::Relaxed);
                wait(&with.epoll, &mut events, 1, true);
                with.quiet();
            }
            Ok(())
        });
        let mut measure = || -> Result<(), BenchError> {
            let mut seen = 0;
            while budget.left()? {
                // The sleeper runs only while this thread sleeps, and then waits again.
                budget.sleep(Duration::from_micros(100))?;
                let sleep = sleeps.load(Ordering::Relaxed);
                if sleep == seen {
                    continue;
                }
                seen = sleep;
                samples.add("thread.ring-nobody", timed(clock, || without.ring()).1);
                without.quiet();
                samples.add("thread.ring-sleeper", timed(clock, || with.ring()).1);
            }
            Ok(())
        };
        let measured = measure();
        over.store(true, Ordering::Relaxed);
        with.ring();
        let sleeper = sleeper.join().map_err(|_| BenchError::Panicked)?;
        measured.and(sleeper)
    })
}

/// Times wake-ups from a write on one CPU to the return of the wait on another. That CPU is busy with a SCHED_IDLE
/// thread, or has been idle for `idle_us` microseconds.
pub(super) fn wake_other_cpu(
    [sleeping, waking]: [usize; 2],
    idle_us: Option<u64>,
    budget: Budget<'_>,
    samples: &mut Samples,
) -> Result<(), BenchError> {
    let bell = Doorbell::new()?;
    let name = idle_us.map_or("wake.busy".to_owned(), |us| format!("wake.idle-{us}"));
    let over = AtomicBool::new(false);
    // When the sleeper began its wait and when it returned; 0 while either is still to come.
    let (asleep, awake) = (AtomicU64::new(0), AtomicU64::new(0));
    thread::scope(|scope| {
        let sleeper = scope.spawn(|| -> Result<(), BenchError> {
            sched::pin(None, &[sleeping])?;
            let mut events = Vec::new();
            while !over.load(Ordering::Relaxed) {
                asleep.store(now(), Ordering::Release);
                wait(&bell.epoll, &mut events, 1, true);
                awake.store(now(), Ordering::Release);
                bell.quiet();
            }
            Ok(())
        });
        let busy = idle_us.is_none().then(|| {
            scope.spawn(|| -> Result<(), BenchError> {
                sched::pin(None, &[sleeping])?;
                be_idle_class()?;
                while !over.load(Ordering::Relaxed) {
                    std::hint::spin_loop();
                }
                Ok(())
            })
        });
        let mut measure = || -> Result<(), BenchError> {
            sched::pin(None, &[waking])?;
            while budget.left()? {
                awake.store(0, Ordering::Release);
                let Some(since) = until(budget, || asleep.swap(0, Ordering::Acquire))? else {
                    break;
                };
                let due = since + 1_000 * idle_us.unwrap_or(20);
                while now() < due {
                    std::hint::spin_loop();
                }
                let rung = now();
                bell.ring();
                let Some(back) = until(budget, || awake.load(Ordering::Acquire))? else { break };
                samples.add(&name, back.saturating_sub(rung) as f64);
            }
            Ok(())
        };
        let measured = measure();
        over.store(true, Ordering::Relaxed);
        bell.ring();
        let sleeper = sleeper.join().map_err(|_| BenchError::Panicked)?;
        let busy = match busy.map(thread::ScopedJoinHandle::join) {
            Some(result) => result.map_err(|_| BenchError::Panicked)?,
            None => Ok(()),
        };
        measured.and(sleeper).and(busy)
    })
}

/// Spins until `read` returns a time; `None` once the budget is used up.
fn until(budget: Budget<'_>, read: impl Fn() -> u64) -> Result<Option<u64>, BenchError> {
    loop {
        for _ in 0..1_000 {
            match read() {
                0 => std::hint::spin_loop(),
                time => return Ok(Some(time)),
            }
        }
        if !budget.left()? {
            return Ok(None);
        }
    }
}

/// Finds interruptions of a thread that only reads the clock, most of which are ticks. Returns their beginnings and
/// ends.
pub(super) fn gaps(budget: Budget<'_>, clock: f64) -> Result<Vec<(u64, u64)>, BenchError> {
    /// In nanoseconds; more than a reading of the clock takes.
    const LEAST: u64 = 300;
    let least = LEAST + clock as u64;
    let mut gaps = Vec::new();
    while budget.left()? {
        let until = now() + 100_000;
        let mut last = now();
        while last < until {
            let this = now();
            if this - last > least {
                gaps.push((last, this));
            }
            last = this;
        }
    }
    Ok(gaps)
}
