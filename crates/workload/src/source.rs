//! Sources of a workload's frames: the generator inside a synthetic queue, or a sender at the other end of a wire.

use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::thread::{Builder, Scope, ScopedJoinHandle};

use napkin_measure::{Latency, PublishedEstimator};
use napkin_nic::QueueCounters;
use napkin_nic::synthetic::SourceControl;
use napkin_policy::Ns;

use crate::error::BenchError;
use crate::sender::{Sender, Shared};

/// A source that is ready to start.
pub(crate) enum Source {
    /// The generator inside the synthetic queue.
    Internal(SourceControl),
    /// A sender at the other end of the wire.
    Remote(Sender),
}

/// A sender's thread, which returns the latencies of the answers.
type SenderThread<'s> = ScopedJoinHandle<'s, Result<(Latency, PublishedEstimator), BenchError>>;

/// A running source.
pub(crate) enum Running<'s> {
    Internal(SourceControl),
    Remote {
        thread: SenderThread<'s>,
        shared: &'s Shared,
        period: Ns,
        counters: Arc<QueueCounters>,
        /// The sender's CPU, if no other thread of the run uses it.
        cpu: Option<usize>,
    },
}

/// The counts of a source at a point in time.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Offered {
    /// Frames that were due.
    pub(crate) due: u64,
    /// Due frames that were dropped because the wire was full.
    pub(crate) refused: u64,
    /// Whether the sender was later than scheduling noise explains.
    pub(crate) behind: bool,
}

impl Source {
    /// Starts the source. A sender runs as a thread of this name until `shared` says stop.
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
            Source::Internal(control) => return Ok(Running::Internal(control)),
            Source::Remote(sender) => sender,
        };
        let (period, cpu, counters) = (sender.period, sender.cpu.own(), sender.queue.counters());
        let named = Builder::new().name(name.to_owned());
        let thread = named.spawn_scoped(scope, || sender.run(shared)).map_err(BenchError::Proc)?;
        Ok(Running::Remote { thread, shared, period, counters, cpu })
    }
}

impl Running<'_> {
    /// The sender's CPU, if no other thread of the run uses it.
    pub(crate) fn cpu(&self) -> Option<usize> {
        match self {
            Running::Internal(_) => None,
            Running::Remote { cpu, .. } => *cpu,
        }
    }

    /// Returns the counts up to now.
    pub(crate) fn offered(&self) -> Offered {
        match self {
            Running::Internal(control) => Offered { due: control.offered(), ..Offered::default() },
            Running::Remote { shared, period, counters, .. } => {
                let now = napkin_engine::now();
                Offered {
                    due: shared.due(*period, now),
                    refused: counters.read().tx_dropped,
                    behind: shared.is_behind(now),
                }
            }
        }
    }

    /// Stops the source, and returns the latencies of the answers if it is a sender.
    ///
    /// # Errors
    /// Any error of the sender.
    pub(crate) fn end(self) -> Result<Option<(Latency, PublishedEstimator)>, BenchError> {
        match self {
            Running::Internal(control) => {
                control.stop();
                Ok(None)
            }
            Running::Remote { thread, shared, .. } => {
                shared.stop.store(true, Relaxed);
                thread.join().map_err(|_| BenchError::Panicked)?.map(Some)
            }
        }
    }
}
