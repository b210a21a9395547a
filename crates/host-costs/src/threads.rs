//! Threads: a switch, a wake-up on the same CPU, and one of another CPU that is busy, has just gone
//! idle, or has been idle for longer.

use std::os::fd::{AsFd, OwnedFd};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;
use std::time::Duration;

use napkin_os::sched;
use rustix::event::{EventfdFlags, eventfd};
use rustix::process::getppid;

use super::ends::{wait, watch};
use super::round::Samples;
use super::timing::{Budget, now, timed};
use napkin_workload::error::BenchError;
use napkin_workload::linux::failed;

/// For how long a CPU has been idle when its thread is woken.
pub(super) const IDLE_US: [u64; 7] = [20, 50, 100, 200, 500, 1_000, 4_000];

/// Yields of one sample.
const YIELDS: u32 = 64;

/// Switches between two threads on this CPU, by yields.
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
                // Unless they have taken turns, somebody else was there.
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

/// How often this thread gave up the CPU, of itself or not.
fn own_switches() -> u64 {
    // SAFETY: `rusage` is plain data, for which all zeros are valid.
    let mut usage: libc::rusage = unsafe { std::mem::zeroed() };
    // SAFETY: the pointer is to a live `rusage`; the call writes it and nothing else.
    if unsafe { libc::getrusage(libc::RUSAGE_THREAD, &raw mut usage) } != 0 {
        return 0;
    }
    u64::try_from(usage.ru_nvcsw + usage.ru_nivcsw).unwrap_or(0)
}

/// Lowers the calling thread below all that are fair: it needs no right, and gives way to everybody.
fn be_idle_class() -> Result<(), BenchError> {
    // SAFETY: `sched_param` is plain data, for which all zeros are valid.
    let param: libc::sched_param = unsafe { std::mem::zeroed() };
    // SAFETY: the pointer is to a live `sched_param`; the call reads it and nothing else.
    let result = unsafe { libc::sched_setscheduler(0, libc::SCHED_IDLE, &raw const param) };
    if result == 0 { Ok(()) } else { Err(failed(std::io::Error::last_os_error())) }
}

/// An event descriptor with an epoll on it.
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
        // It holds 2^64 - 2 rings.
        let _ = rustix::io::write(&self.event, &1_u64.to_ne_bytes());
    }

    fn quiet(&self) {
        // If nobody has rung there is nothing to take.
        let _ = rustix::io::read(&self.event, &mut [0_u8; 8]);
    }
}

/// Rings for a thread of this CPU that sleeps, and for nobody: the difference is the wake-up. The one
/// that is woken is in a class that does not preempt.
pub(super) fn wake_here(
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
                // It runs only while this thread sleeps, and then goes back to its wait.
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

/// From a ring on one CPU to the return of the wait on another, which is busy with a thread that gives
/// way, or has been idle for so many microseconds.
pub(super) fn wake_there(
    [sleeping, waking]: [usize; 2],
    idle_us: Option<u64>,
    budget: Budget<'_>,
    samples: &mut Samples,
) -> Result<(), BenchError> {
    let bell = Doorbell::new()?;
    let name = idle_us.map_or("wake.busy".to_owned(), |us| format!("wake.idle-{us}"));
    let over = AtomicBool::new(false);
    // When it went to sleep, and when it came back; 0 while it is on its way.
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

/// Spins until a time is there; `None` once the budget is used.
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

/// What interrupts a thread that does nothing but read the clock: most of it is the tick.
pub(super) fn gaps(budget: Budget<'_>, clock: f64) -> Result<Vec<(u64, u64)>, BenchError> {
    /// A reading of the clock takes less.
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
