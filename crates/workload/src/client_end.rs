//! A client without a stack, at the other end of a wire: a queue that it polls itself, and frames of its own.
//!
//! Where it has a CPU of its own it never sleeps, as the document's clients do; elsewhere it would take the time
//! of whom it measures, and sleeps until something is due, for a short while at most.

use std::sync::Arc;
use std::time::Duration;

use napkin_engine::sched;
use napkin_nic::{Frame, PacketQueue, Transmitter};
use napkin_policy::{MICROSECOND, Ns};

use crate::error::BenchError;
use crate::options::Placement;

/// Frames that a poll takes.
const BATCH: u16 = 64;
/// The longest that it sleeps: an answer waits as long.
const NAP: Ns = 20 * MICROSECOND;

/// Where a client's thread runs.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum ClientCpu {
    /// On a CPU that nobody else has.
    Own(usize),
    /// On CPUs that others have, too; with none of them wherever it is born.
    Shared(Vec<usize>),
}

impl ClientCpu {
    /// The CPU that is not the queue's, or the queue's own where there is no other.
    pub(crate) fn beside_queue(placement: Placement) -> ClientCpu {
        match placement.shared() {
            true => ClientCpu::Shared(vec![placement.other]),
            false => ClientCpu::Own(placement.other),
        }
    }

    /// The CPU, if it is nobody else's.
    pub(crate) fn own(&self) -> Option<usize> {
        match self {
            ClientCpu::Own(cpu) => Some(*cpu),
            ClientCpu::Shared(_) => None,
        }
    }

    fn all(&self) -> &[usize] {
        match self {
            ClientCpu::Own(cpu) => std::slice::from_ref(cpu),
            ClientCpu::Shared(cpus) => cpus,
        }
    }
}

/// The queue, in the hands of the thread that polls it.
pub(crate) struct ClientEnd {
    queue: Box<dyn PacketQueue>,
    wire: Arc<dyn Transmitter>,
    frames: Vec<Frame>,
    /// Whether this thread's CPU is nobody else's.
    alone: bool,
}

impl ClientEnd {
    /// Takes the queue for the calling thread, which moves to where it is to run.
    ///
    /// # Errors
    /// If it cannot be moved there.
    pub(crate) fn new(
        mut queue: Box<dyn PacketQueue>,
        cpu: &ClientCpu,
    ) -> Result<ClientEnd, BenchError> {
        sched::pin(None, cpu.all())?;
        queue.mask();
        let wire = queue.transmitter();
        let frames = Vec::with_capacity(BATCH.into());
        Ok(ClientEnd { queue, wire, frames, alone: cpu.own().is_some() })
    }

    /// The frames that have come.
    ///
    /// # Errors
    /// If the device has gone.
    pub(crate) fn poll(&mut self, now: Ns) -> Result<std::vec::Drain<'_, Frame>, BenchError> {
        self.queue.poll(BATCH, now, &mut self.frames);
        if self.queue.gone() {
            return Err(BenchError::Linux("the client's device has gone".into()));
        }
        Ok(self.frames.drain(..))
    }

    /// Sends a frame; one that the device has no room for is counted there.
    pub(crate) fn send(&self, frame: &[u8], now: Ns) {
        let _ = self.wire.send(frame, now);
    }

    /// Waits for a moment, until something is due.
    pub(crate) fn rest(&self, now: Ns, due: Ns) {
        if self.alone {
            std::hint::spin_loop();
        } else {
            std::thread::sleep(Duration::from_nanos(due.saturating_sub(now).min(NAP)));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::options::Options;

    #[test]
    fn with_one_cpu_the_client_is_there_too_and_does_not_take_it_for_its_own() {
        let of = |cpus: &[usize]| {
            let options = Options { cpus: cpus.to_vec(), ..Options::default() };
            ClientCpu::beside_queue(options.placement())
        };
        assert_eq!((of(&[3]), of(&[3]).own()), (ClientCpu::Shared(vec![3]), None));
        assert_eq!((of(&[5, 3]), of(&[5, 3]).own()), (ClientCpu::Own(3), Some(3)));
        assert_eq!((of(&[3]).all(), of(&[5, 3]).all()), (&[3][..], &[3][..]));
    }
}
