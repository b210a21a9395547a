//! A pool of threads for independent runs, on all cores.
//!
//! The assignment of runs to threads differs from call to call. Each result carries its place, so that the caller
//! can put the results into a fixed order.

use std::num::NonZeroUsize;
use std::ops::{ControlFlow, Range};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc::{self, RecvTimeoutError};
use std::time::Duration;

use napkin_machine::abort::{Aborted, abort_by};

use crate::interrupt::Interrupt;

/// Interval of the checks for an interrupt.
const CHECK_INTERVAL: Duration = Duration::from_millis(50);

/// Returns the number of threads: as requested, or one per CPU.
pub fn jobs(asked: Option<NonZeroUsize>) -> NonZeroUsize {
    asked.unwrap_or_else(|| std::thread::available_parallelism().unwrap_or(NonZeroUsize::MIN))
}

/// Runs every place of a range, begun in its order. `done` receives each result on the calling thread, in order of
/// completion. When it returns `Break`, no further run begins; runs in progress finish, and `done` still receives
/// their results. On an interrupt, machines in progress are abandoned without a result. A run that panics yields
/// the panic's message as its error.
pub fn run_each<R: Send>(
    jobs: NonZeroUsize,
    places: Range<u64>,
    interrupt: &Interrupt,
    run: impl Fn(u64) -> R + Sync,
    mut done: impl FnMut(u64, Result<R, String>) -> ControlFlow<()>,
) {
    let next = AtomicU64::new(places.start);
    let enough = AtomicBool::new(false);
    let abandon = Arc::new(AtomicBool::new(false));
    let threads = places.end.saturating_sub(places.start).min(jobs.get() as u64);
    let (results, finished) = mpsc::channel();
    let work = |results: mpsc::Sender<_>| {
        abort_by(Arc::clone(&abandon));
        while !enough.load(Ordering::Relaxed) && interrupt.check().is_ok() {
            let place = next.fetch_add(1, Ordering::Relaxed);
            if place >= places.end {
                break;
            }
            // A panic is a broken invariant of the model; it must not end the other runs.
            let result = catch_unwind(AssertUnwindSafe(|| run(place)));
            if result.as_ref().is_err_and(|panic| panic.is::<Aborted>()) {
                break;
            }
            if results.send((place, result.map_err(|panic| panic_message(&*panic)))).is_err() {
                break;
            }
        }
    };
    std::thread::scope(|scope| {
        for _ in 0..threads {
            let results = results.clone();
            let work = &work;
            scope.spawn(move || work(results));
        }
        drop(results);
        loop {
            match finished.recv_timeout(CHECK_INTERVAL) {
                Ok((place, result)) => {
                    if done(place, result).is_break() {
                        enough.store(true, Ordering::Relaxed);
                    }
                }
                Err(RecvTimeoutError::Timeout) => {}
                Err(RecvTimeoutError::Disconnected) => break,
            }
            if interrupt.check().is_err() {
                enough.store(true, Ordering::Relaxed);
                abandon.store(true, Ordering::Relaxed);
            }
        }
    });
}

fn panic_message(panic: &(dyn std::any::Any + Send)) -> String {
    let text = panic.downcast_ref::<String>().map(String::as_str);
    let text = text.or_else(|| panic.downcast_ref::<&str>().copied());
    format!("the run panicked: {}", text.unwrap_or("without a message"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn all(jobs: usize, count: u64) -> Vec<(u64, Result<u64, String>)> {
        let mut results = Vec::new();
        let jobs = NonZeroUsize::new(jobs).unwrap();
        run_each(
            jobs,
            0..count,
            &Interrupt::default(),
            |place| place * place,
            |place, result| {
                results.push((place, result));
                ControlFlow::Continue(())
            },
        );
        results.sort_by_key(|(place, _)| *place);
        results
    }

    #[test]
    fn every_place_is_run_once_however_many_threads_there_are() {
        for jobs in [1, 3, 64] {
            let want: Vec<_> = (0..20).map(|place| (place, Ok(place * place))).collect();
            assert_eq!(all(jobs, 20), want);
        }
        assert!(all(2, 0).is_empty());
    }

    #[test]
    fn a_panic_costs_its_own_run_only() {
        let mut failed = Vec::new();
        let run = |place| assert!(place != 2, "two owners");
        run_each(NonZeroUsize::MIN, 0..4, &Interrupt::default(), run, |place, result| {
            if let Err(why) = result {
                failed.push((place, why));
            }
            ControlFlow::Continue(())
        });
        assert_eq!(failed, [(2, "the run panicked: two owners".to_owned())]);
    }

    #[test]
    fn enough_is_enough() {
        let mut seen = 0;
        run_each(
            NonZeroUsize::MIN,
            0..u64::MAX,
            &Interrupt::default(),
            |_| (),
            |_, _| {
                seen += 1;
                if seen < 3 { ControlFlow::Continue(()) } else { ControlFlow::Break(()) }
            },
        );
        assert!((3..1_000_000).contains(&seen), "{seen}");
    }

    #[test]
    fn when_it_is_interrupted_no_run_begins_and_machines_under_way_are_given_up() {
        let interrupt = Interrupt::default();
        let seeds = std::cell::Cell::new(0);
        let run = |seed| {
            if seed == 3 {
                interrupt.note(2);
            }
            // From the third place on, machines run endlessly: the interrupt abandons one of them.
            for more in 0..if seed < 3 { 1 } else { u64::MAX } {
                napkin_machine::swarm::run(more).unwrap();
            }
        };
        run_each(NonZeroUsize::MIN, 1..u64::MAX, &interrupt, run, |_, result| {
            assert_eq!(result, Ok(()));
            seeds.set(seeds.get() + 1);
            ControlFlow::Continue(())
        });
        assert_eq!(seeds.get(), 2);
    }
}
