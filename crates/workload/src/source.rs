//! Where a workload's frames come from: from within a synthetic queue, or from a sender at the other end of a wire.

use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::thread::{Builder, Scope, ScopedJoinHandle};

use napkin_measure::{Latency, PublishedEstimator};
use napkin_nic::QueueCounters;
use napkin_nic::synthetic::SourceControl;
use napkin_policy::Ns;

use crate::error::BenchError;
use crate::sender::{Sender, Shared};

/// A source that is ready.
pub(crate) enum Source {
    /// The synthetic queue's own.
    Within(SourceControl),
    /// A sender at the other end.
    AtTheOtherEnd(Sender),
}

/// A sender's thread: the times of the answers.
type Sending<'s> = ScopedJoinHandle<'s, Result<(Latency, PublishedEstimator), BenchError>>;

/// A source at work.
pub(crate) enum Running<'s> {
    Within(SourceControl),
    AtTheOtherEnd {
        thread: Sending<'s>,
        shared: &'s Shared,
        period: Ns,
        counters: Arc<QueueCounters>,
        /// The sender's CPU, if it is nobody else's.
        cpu: Option<usize>,
    },
}

/// What a source had done by a time.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Offered {
    /// Frames that were due.
    pub(crate) due: u64,
    /// Of these, frames that the wire had no room for.
    pub(crate) refused: u64,
    /// Whether the sender was as late as no chance explains.
    pub(crate) behind: bool,
}

impl Source {
    /// Starts it; a sender as a thread of this name, until `shared` says stop.
    ///
    /// # Errors
    /// If the thread cannot be started.
    pub(crate) fn start<'s>(
        self,
        scope: &'s Scope<'s, '_>,
        name: &str,
        shared: &'s Shared,
    ) -> Result<Running<'s>, BenchError> {
        let sender = match self {
            Source::Within(control) => return Ok(Running::Within(control)),
            Source::AtTheOtherEnd(sender) => sender,
        };
        let (period, cpu, counters) = (sender.period, sender.cpu.own(), sender.queue.counters());
        let named = Builder::new().name(name.to_owned());
        let thread = named.spawn_scoped(scope, || sender.run(shared)).map_err(BenchError::Proc)?;
        Ok(Running::AtTheOtherEnd { thread, shared, period, counters, cpu })
    }
}

impl Running<'_> {
    /// The sender's CPU, if it is nobody else's.
    pub(crate) fn cpu(&self) -> Option<usize> {
        match self {
            Running::Within(_) => None,
            Running::AtTheOtherEnd { cpu, .. } => *cpu,
        }
    }

    /// What it has done by now.
    pub(crate) fn offered(&self) -> Offered {
        match self {
            Running::Within(control) => Offered { due: control.offered(), ..Offered::default() },
            Running::AtTheOtherEnd { shared, period, counters, .. } => {
                let now = napkin_engine::now();
                Offered {
                    due: shared.due(*period, now),
                    refused: counters.read().tx_dropped,
                    behind: shared.is_behind(now),
                }
            }
        }
    }

    /// Ends it: what a sender saw of answers.
    ///
    /// # Errors
    /// Those of the sender.
    pub(crate) fn end(self) -> Result<Option<(Latency, PublishedEstimator)>, BenchError> {
        match self {
            Running::Within(control) => {
                control.stop();
                Ok(None)
            }
            Running::AtTheOtherEnd { thread, shared, .. } => {
                shared.stop.store(true, Relaxed);
                thread.join().map_err(|_| BenchError::Panicked)?.map(Some)
            }
        }
    }
}
