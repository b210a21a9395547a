//! A guard against starvation: watches the instances that programs suspend, and ends a suspension under which
//! no packet is received any more.
//!
//! Linux delivers no packet of a queue while a program that waits for it always finds another descriptor ready,
//! for example one with a level-triggered `EPOLLOUT`: each `epoll_wait` restarts the suspension's timer, and
//! nothing polls (docs/suspension-starves.md). `irq-suspend-timeout` is meant to bound this and does not. A
//! program or device under such a policy is therefore watched:
//! - the [counting programs](napkin_kernel::count) show that an instance is not polled while its suspension is
//!   prolonged (`judge`);
//! - then its `irq-suspend-timeout` is set to 0, recorded in the journal first
//!   ([`end_suspension`](crate::apply::end_suspension)). The pending timer is the last: it fires within the old
//!   timeout, and the instance goes back to deferral, without suspension;
//! - the [`Event`] names the program and the members of its context that are always ready ([`Cause`]);
//! - at the end, or to try [`Again`], the timeout is restored.
//!
//! It runs in threads of its own, so that no other work delays it.
//!
//! Not detected: suspension with an `irq-suspend-timeout` that is not longer than `gro-flush-timeout`, which
//! counts as deferral. Finding such programs beforehand is up to `doctor`.

mod cause;
mod event;
mod judge;
mod report;
mod watch;

use std::collections::BTreeSet;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Sender, channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;

use napkin_policy::Policy;
use thiserror::Error;

pub use cause::Cause;
pub use event::{Event, EventKind};

use crate::apply::{BackendError, Linux};
use crate::journal::{Holder, Store};
use napkin_kernel::count::{self, CountError, Counter};
use napkin_kernel::namespace::{Namespace, NamespaceError};
use napkin_kernel::netlink::{Netdev, NetlinkError};
use napkin_os::rights::Right;
use watch::Watch;

/// Whether a suspension that was ended is tried again.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Again {
    /// Not while the guard runs.
    #[default]
    Never,
    /// After this pause, which doubles each further time, up to [`Again::LONGEST`].
    After(Duration),
}

impl Again {
    /// After ten seconds: a try costs a starved instance its timeout and at most 0.1 s.
    pub const BACKOFF: Again = Again::After(Duration::from_secs(10));
    /// The longest pause.
    pub const LONGEST: Duration = Duration::from_secs(600);

    /// Returns the pause after a suspension that was ended `before` times before.
    fn pause(self, before: u32) -> Option<Duration> {
        let Again::After(first) = self else { return None };
        let doubled = first.saturating_mul(1_u32.checked_shl(before).unwrap_or(u32::MAX));
        Some(doubled.min(Again::LONGEST))
    }
}

/// The options of a guard.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Options {
    /// Watch only this device, by its interface index; otherwise all of this network namespace.
    pub only: Option<u32>,
    /// The interface index of the device that this process has locked.
    pub held: Option<u32>,
    /// Whether a suspension that was ended is tried again.
    pub again: Again,
}

/// The reason why a guard cannot start.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum GuardError {
    /// Polls cannot be counted.
    #[error(transparent)]
    Count(#[from] CountError),
    /// Suspensions cannot be counted.
    #[error("suspensions cannot be counted: {why}")]
    Suspensions {
        /// The reason, in words.
        why: String,
    },
    /// The right to end a suspension is missing.
    #[error("ending a suspension needs {right}")]
    Right {
        /// The right that is missing.
        right: Right,
    },
    /// The kernel cannot be read.
    #[error(transparent)]
    Backend(#[from] BackendError),
    /// The instances cannot be listed.
    #[error(transparent)]
    Netlink(#[from] NetlinkError),
    /// The calling thread's namespace cannot be determined.
    #[error(transparent)]
    Namespace(#[from] NamespaceError),
    /// A thread cannot be started.
    #[error("cannot start a thread: {0}")]
    Thread(#[from] std::io::Error),
}

/// A running guard, over the network namespace of the thread that started it. When dropped, it restores the
/// suspensions that it ended, and stops.
#[derive(Debug)]
pub struct Guard {
    /// The watching thread stops when this is dropped.
    stop: Option<Sender<()>>,
    /// The threads that watch and that report.
    threads: Vec<JoinHandle<()>>,
    /// Whether an instance has starved.
    starved: Arc<AtomicBool>,
    /// The instances whose suspension is ended now.
    ended: Arc<Mutex<BTreeSet<u32>>>,
    /// Devices that another napkin had locked at the start, with the holder of the lock.
    others: Vec<(String, Holder)>,
}

impl Guard {
    /// Starts to watch; records changes in `store`. `report` is called from a thread of the guard.
    ///
    /// # Errors
    /// If polls cannot be counted or suspensions cannot be ended, mostly for lack of a right. No guard runs
    /// then.
    pub fn start(
        options: Options,
        store: &Store,
        report: Box<dyn FnMut(&Event) + Send>,
    ) -> Result<Guard, GuardError> {
        if !Right::NetAdmin.held() {
            return Err(GuardError::Right { right: Right::NetAdmin });
        }
        // It matters whether an instance is polled, not by which context.
        let netns = u32::try_from(Namespace::identity()?.inode).unwrap_or(0);
        let counted = count::Options { exact: false, namespace: Some(netns), ..Default::default() };
        let counter = Counter::start(&counted)?;
        if counter.none_yet().suspensions.is_none() {
            let why = counter.notes().join("; ");
            return Err(GuardError::Suspensions { why });
        }
        let (backend, netdev) = (Linux::open()?, Netdev::open()?);
        let (reports, reporting) = report::start(report)?;
        let mut watch =
            Watch::new(options, counter, netns, backend, store.clone(), netdev, reports);
        watch.list();
        let others = watch.held_by_others();
        let (starved, ended) = (watch.starved.clone(), watch.ended_ids.clone());
        let (stop, stopped) = channel();
        let watching = std::thread::Builder::new()
            .name("napkin-guard".into())
            .spawn(move || watch.run(&stopped))?;
        // In the order in which they end.
        let threads = vec![watching, reporting];
        Ok(Guard { stop: Some(stop), threads, starved, ended, others })
    }

    /// The devices with suspended instances that another napkin had locked at the start, with the holder of the
    /// lock. The guard cannot end a suspension there: only the holder of the lock can change a device.
    pub fn held_by_others(&self) -> &[(String, Holder)] {
        &self.others
    }

    /// Whether an instance has starved since the start, even if its suspension could not be ended.
    pub fn starved(&self) -> bool {
        self.starved.load(Ordering::Relaxed)
    }

    /// Whether this instance's suspension is ended and not yet restored. True as soon as its timeout is 0; the
    /// [`Event`] follows once the program behind it has been looked for.
    pub fn has_ended(&self, napi_id: u32) -> bool {
        self.ended.lock().unwrap_or_else(PoisonError::into_inner).contains(&napi_id)
    }
}

impl Drop for Guard {
    fn drop(&mut self) {
        drop(self.stop.take());
        for thread in self.threads.drain(..) {
            // A panic has been reported already; the journal still records what the thread had changed.
            let _ = thread.join();
        }
    }
}

/// Whether a program under this policy can starve a queue: its contexts prefer busy polling, and either the
/// policy suspends instances, or an instance of this network namespace is configured for suspension.
///
/// # Errors
/// If the kernel does not list instances.
pub fn can_starve(policy: &Policy) -> Result<bool, NetlinkError> {
    if !policy.epoll.prefer_busy_poll {
        return Ok(false);
    }
    if policy.suspends() {
        return Ok(true);
    }
    let napis = Netdev::open()?.napis(None)?;
    Ok(napis.iter().any(|napi| napi.settings.policy().suspends()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_pause_doubles_up_to_its_longest() {
        assert_eq!(Again::Never.pause(0), None);
        let pauses: Vec<_> = (0..8).filter_map(|it| Again::BACKOFF.pause(it)).collect();
        let seconds: Vec<u64> = pauses.iter().map(Duration::as_secs).collect();
        assert_eq!(seconds, [10, 20, 40, 80, 160, 320, 600, 600]);
        assert_eq!(Again::BACKOFF.pause(40), Some(Again::LONGEST));
    }
}
