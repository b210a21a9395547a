//! Our end of the wire: queues that the sending thread polls itself, with a stack above them.

use std::net::IpAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};

use napkin_nic::{Frame, PacketQueue, Transmitter};
use napkin_os::clock;
use napkin_policy::{MILLISECOND, Ns};
use napkin_stack::{Addresses, Input, Stack};

use crate::error::LoadError;

/// Maximum number of frames per poll.
const BATCH: u16 = 64;
/// Interval between two address resolution requests.
const AGAIN: Ns = 100 * MILLISECOND;
/// Number of such requests: a virtual machine's driver may still start, or a link come up.
const QUESTIONS: u32 = 50;

/// Queues with masked interrupts, polled in turn.
pub(crate) struct Wire {
    pub(crate) stack: Arc<Stack>,
    queues: Vec<(Box<dyn PacketQueue>, Input)>,
    frames: Vec<Frame>,
}

impl Wire {
    pub(crate) fn new(addresses: Addresses, queues: Vec<Box<dyn PacketQueue>>) -> Wire {
        let stack = Stack::new(addresses);
        let of = |(napi_id, mut queue): (u32, Box<dyn PacketQueue>)| {
            queue.mask();
            let input = Input::new(Arc::clone(&stack), napi_id, queue.transmitter());
            (queue, input)
        };
        let queues = (1..).zip(queues).map(of).collect();
        Wire { stack, queues, frames: Vec::with_capacity(BATCH.into()) }
    }

    /// The transmitter of each queue.
    pub(crate) fn transmitters(&self) -> Vec<Arc<dyn Transmitter>> {
        self.queues.iter().map(|(queue, _)| queue.transmitter()).collect()
    }

    /// Polls each queue once; returns whether there was any frame.
    pub(crate) fn poll(&mut self, now: Ns) -> Result<bool, LoadError> {
        let mut any = false;
        for (queue, input) in &mut self.queues {
            any |= queue.poll(BATCH, now, &mut self.frames).any();
            input.deliver(&mut self.frames, now);
            if queue.gone() {
                return Err(LoadError::Gone);
            }
        }
        Ok(any)
    }

    /// Resolves a host's Ethernet address; `None` if `stop` was set before it answered.
    pub(crate) fn resolve(
        &mut self,
        ip: IpAddr,
        stop: &AtomicBool,
    ) -> Result<Option<[u8; 6]>, LoadError> {
        for _ in 0..QUESTIONS {
            let asked = clock::now();
            // A device whose other side is not there yet may refuse the frame.
            let _ = self.stack.resolve(ip, asked);
            while clock::now() < asked + AGAIN {
                self.poll(clock::now())?;
                if let Some(mac) = self.stack.neighbour(ip) {
                    return Ok(Some(mac));
                }
                if stop.load(Relaxed) {
                    return Ok(None);
                }
                std::thread::sleep(std::time::Duration::from_micros(100));
            }
        }
        Err(LoadError::NoNeighbour { ip, asked: QUESTIONS })
    }
}
