//! A guard against starvation: it watches the instances that programs suspend, and ends a suspension
//! under which nothing is received any more.
//!
//! Linux delivers nothing of a queue while a program that waits for it always finds something else
//! that is ready, one level-triggered `EPOLLOUT` for example: each `epoll_wait` starts the
//! suspension's timer anew, and nobody polls (docs/suspension-starves.md). `irq-suspend-timeout` is
//! meant to bound that and does not. So whoever puts a program or a device under such a policy
//! watches what becomes of it:
//! - the [counting programs](napkin_kernel::count) say that an instance is not polled while its suspension
//!   is prolonged (`judge`);
//! - then its `irq-suspend-timeout` goes to 0, written down before
//!   ([`end_suspension`](crate::apply::end_suspension)). The timer that runs is the last: it fires
//!   within the old timeout, and the instance is deferred as before, without suspension;
//! - the [`Event`] names the program and what in its context is always ready ([`Cause`]);
//! - at the end, or to try [`Again`], the timeout is given back.
//!
//! All of it in threads of its own, since an instance starves whatever else is to be done.
//!
//! Not seen: suspension with an `irq-suspend-timeout` that is not longer than `gro-flush-timeout`,
//! which counts as deferral. Not here: looking for such programs beforehand, which `doctor` does.

mod cause;
mod event;
mod judge;
mod tell;
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
    /// Not before the guard ends.
    #[default]
    Never,
    /// After this time, and after twice as long each further time, up to [`Again::LONGEST`].
    After(Duration),
}

impl Again {
    /// After ten seconds: a try costs a starved instance its timeout and at most 0.1 s.
    pub const LATER: Again = Again::After(Duration::from_secs(10));
    /// The longest pause.
    pub const LONGEST: Duration = Duration::from_secs(600);

    /// The pause after a suspension was ended so many times before.
    fn pause(self, before: u32) -> Option<Duration> {
        let Again::After(first) = self else { return None };
        let doubled = first.saturating_mul(1_u32.checked_shl(before).unwrap_or(u32::MAX));
        Some(doubled.min(Again::LONGEST))
    }
}

/// What to watch.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Options {
    /// Only this device, by its number; otherwise all of this network namespace.
    pub only: Option<u32>,
    /// The device whose lock this process holds, by its number.
    pub held: Option<u32>,
    /// Whether a suspension that was ended is tried again.
    pub again: Again,
}

/// Why nobody watches.
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
    /// A suspension could not be ended.
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
    /// The calling thread's namespace cannot be told.
    #[error(transparent)]
    Namespace(#[from] NamespaceError),
    /// There is no thread for it.
    #[error("cannot start a thread: {0}")]
    Thread(#[from] std::io::Error),
}

/// A guard at work, over the network namespace of the thread that started it. Dropped, it gives back
/// what it took away, and ends.
#[derive(Debug)]
pub struct Guard {
    /// The thread ends when this is dropped.
    stop: Option<Sender<()>>,
    /// That which watches, and that which tells.
    threads: Vec<JoinHandle<()>>,
    /// Whether an instance has starved.
    starved: Arc<AtomicBool>,
    /// The instances whose suspension is ended.
    ended: Arc<Mutex<BTreeSet<u32>>>,
    /// Devices that another napkin held when it began, and who that was.
    others: Vec<(String, Holder)>,
}

impl Guard {
    /// Begins to watch; what it changes is written down in `store`. `tell` is called by a thread of the guard's own.
    ///
    /// # Errors
    /// If polls cannot be counted or suspensions not be ended, mostly for lack of a right. Then
    /// nobody watches.
    pub fn start(
        options: Options,
        store: &Store,
        tell: Box<dyn FnMut(&Event) + Send>,
    ) -> Result<Guard, GuardError> {
        if !Right::NetAdmin.held() {
            return Err(GuardError::Right { right: Right::NetAdmin });
        }
        // Whether an instance is polled matters, and not by whom.
        let netns = u32::try_from(Namespace::identity()?.inode).unwrap_or(0);
        let counted = count::Options { exact: false, namespace: Some(netns), ..Default::default() };
        let counter = Counter::start(&counted)?;
        if counter.none_yet().suspensions.is_none() {
            let why = counter.notes().join("; ");
            return Err(GuardError::Suspensions { why });
        }
        let (backend, netdev) = (Linux::open()?, Netdev::open()?);
        let (tell, telling) = tell::start(tell)?;
        let mut watch = Watch::new(options, counter, netns, backend, store.clone(), netdev, tell);
        watch.list();
        let others = watch.held_by_others();
        let (starved, ended) = (watch.starved.clone(), watch.ended_ids.clone());
        let (stop, stopped) = channel();
        let watching = std::thread::Builder::new()
            .name("napkin-guard".into())
            .spawn(move || watch.run(&stopped))?;
        // In the order in which they end.
        let threads = vec![watching, telling];
        Ok(Guard { stop: Some(stop), threads, starved, ended, others })
    }

    /// The devices with suspended instances that another napkin held when this began, each with who that
    /// is. On them this one can end no suspension: a device is changed by who holds it alone.
    pub fn held_by_others(&self) -> &[(String, Holder)] {
        &self.others
    }

    /// Whether an instance has starved since it began, helped or not.
    pub fn starved(&self) -> bool {
        self.starved.load(Ordering::Relaxed)
    }

    /// Whether this instance's suspension is ended and not yet given back. True as soon as its timeout is 0; the
    /// [`Event`] follows once the program behind it has been looked for.
    pub fn has_ended(&self, napi_id: u32) -> bool {
        self.ended.lock().unwrap_or_else(PoisonError::into_inner).contains(&napi_id)
    }
}

impl Drop for Guard {
    fn drop(&mut self) {
        drop(self.stop.take());
        for thread in self.threads.drain(..) {
            // A panic in it has been told of; the journal knows what it had taken away.
            let _ = thread.join();
        }
    }
}

/// Whether a program under this policy can starve a queue: its contexts prefer busy polling, and the
/// policy suspends instances, or one of this network namespace is set to be.
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
        let pauses: Vec<_> = (0..8).filter_map(|it| Again::LATER.pause(it)).collect();
        let seconds: Vec<u64> = pauses.iter().map(Duration::as_secs).collect();
        assert_eq!(seconds, [10, 20, 40, 80, 160, 320, 600, 600]);
        assert_eq!(Again::LATER.pause(40), Some(Again::LONGEST));
    }
}
