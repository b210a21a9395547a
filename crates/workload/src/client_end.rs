//! A client without a network stack, at the other end of a wire: it polls its own queue and builds its own frames.
//!
//! On a CPU of its own it never sleeps, like the clients in the document. On a shared CPU, spinning would take
//! time from the thread under measurement, so it sleeps until something is due, at most [`MAX_SLEEP`].

use std::sync::Arc;
use std::time::Duration;

use napkin_engine::sched;
use napkin_nic::{Frame, PacketQueue, Transmitter};
use napkin_policy::{MICROSECOND, Ns};

use crate::error::BenchError;
use crate::options::Placement;

/// Frames per poll, at most.
const BATCH: u16 = 64;
/// The longest sleep; an answer may wait this long.
const MAX_SLEEP: Ns = 20 * MICROSECOND;

/// The CPUs of a client's thread.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum ClientCpu {
    /// A CPU that no other thread of the run uses.
    Own(usize),
    /// CPUs shared with other threads; if empty, the CPUs of the parent thread.
    Shared(Vec<usize>),
}

impl ClientCpu {
    /// Returns the CPU that does not serve the queue, or the queue's CPU, shared, if there is no other.
    pub(crate) fn beside_queue(placement: Placement) -> ClientCpu {
        match placement.shared() {
            true => ClientCpu::Shared(vec![placement.other]),
            false => ClientCpu::Own(placement.other),
        }
    }

    /// Returns the CPU, if no other thread of the run uses it.
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

/// The client's queue, owned by the thread that polls it.
pub(crate) struct ClientEnd {
    queue: Box<dyn PacketQueue>,
    wire: Arc<dyn Transmitter>,
    frames: Vec<Frame>,
    /// Whether no other thread of the run uses this thread's CPU.
    has_own_cpu: bool,
}

impl ClientEnd {
    /// Takes over the queue in the calling thread, and pins the thread to the client's CPUs.
    ///
    /// # Errors
    /// If the thread cannot be pinned there.
    pub(crate) fn new(
        mut queue: Box<dyn PacketQueue>,
        cpu: &ClientCpu,
    ) -> Result<ClientEnd, BenchError> {
        sched::pin(None, cpu.all())?;
        queue.mask();
        let wire = queue.transmitter();
        let frames = Vec::with_capacity(BATCH.into());
        Ok(ClientEnd { queue, wire, frames, has_own_cpu: cpu.own().is_some() })
    }

    /// Returns the frames that have arrived.
    ///
    /// # Errors
    /// If the device has disappeared.
    pub(crate) fn poll(&mut self, now: Ns) -> Result<std::vec::Drain<'_, Frame>, BenchError> {
        self.queue.poll(BATCH, now, &mut self.frames);
        if self.queue.gone() {
            return Err(BenchError::Linux("the client's device has gone".into()));
        }
        Ok(self.frames.drain(..))
    }

    /// Sends a frame. If the device has no room, it drops the frame and counts it.
    pub(crate) fn send(&self, frame: &[u8], now: Ns) {
        let _ = self.wire.send(frame, now);
    }

    /// Waits briefly, at most until `due`: spins on a CPU of its own, sleeps on a shared one.
    pub(crate) fn pause(&self, now: Ns, due: Ns) {
        if self.has_own_cpu {
            std::hint::spin_loop();
        } else {
            std::thread::sleep(Duration::from_nanos(due.saturating_sub(now).min(MAX_SLEEP)));
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
