//! Runs that know nothing of each other, on all cores.
//!
//! Which thread runs what differs from call to call; results carry their place, so that whoever
//! collects them can put them into an order that does not.

use std::num::NonZeroUsize;
use std::ops::{ControlFlow, Range};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc;

/// As many as there are CPUs, unless a number was asked for.
pub fn jobs(asked: Option<NonZeroUsize>) -> NonZeroUsize {
    asked.unwrap_or_else(|| std::thread::available_parallelism().unwrap_or(NonZeroUsize::MIN))
}

/// Runs every place of a range, in its order as far as they begin. `done` gets each result on the
/// calling thread, in the order in which they end, and may say that it has had enough: runs under
/// way then end and are given to it still, and no other begins. A run that panics leaves its
/// message.
pub fn each<R: Send>(
    jobs: NonZeroUsize,
    places: Range<u64>,
    run: impl Fn(u64) -> R + Sync,
    mut done: impl FnMut(u64, Result<R, String>) -> ControlFlow<()>,
) {
    let next = AtomicU64::new(places.start);
    let enough = AtomicBool::new(false);
    let threads = places.end.saturating_sub(places.start).min(jobs.get() as u64);
    let (results, finished) = mpsc::channel();
    let work = |results: mpsc::Sender<_>| {
        while !enough.load(Ordering::Relaxed) {
            let place = next.fetch_add(1, Ordering::Relaxed);
            if place >= places.end {
                break;
            }
            // A panic is a broken invariant of the model: it must not take the other runs along.
            let result = catch_unwind(AssertUnwindSafe(|| run(place))).map_err(|p| words(&*p));
            if results.send((place, result)).is_err() {
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
        for (place, result) in finished {
            if done(place, result).is_break() {
                enough.store(true, Ordering::Relaxed);
            }
        }
    });
}

fn words(panic: &(dyn std::any::Any + Send)) -> String {
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
        each(
            jobs,
            0..count,
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
        each(NonZeroUsize::MIN, 0..4, run, |place, result| {
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
        each(
            NonZeroUsize::MIN,
            0..u64::MAX,
            |_| (),
            |_, _| {
                seen += 1;
                if seen < 3 { ControlFlow::Continue(()) } else { ControlFlow::Break(()) }
            },
        );
        assert!((3..1_000_000).contains(&seen), "{seen}");
    }
}
