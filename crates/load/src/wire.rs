//! Our end of the wire: queues that the thread which asks polls itself, and a stack above them.

use std::net::IpAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};

use napkin_nic::{Frame, PacketQueue, Transmitter};
use napkin_os::clock;
use napkin_policy::{MILLISECOND, Ns};
use napkin_stack::{Addresses, Input, Stack};

use crate::error::LoadError;

/// Frames that a poll takes at most.
const BATCH: u16 = 64;
/// From one question where somebody is to the next.
const AGAIN: Ns = 100 * MILLISECOND;
/// How often it is asked: a virtual machine's driver may yet come, or a link go up.
const QUESTIONS: u32 = 50;

/// Queues without interrupts, polled in turn.
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

    /// The ways out, of each queue.
    pub(crate) fn transmitters(&self) -> Vec<Arc<dyn Transmitter>> {
        self.queues.iter().map(|(queue, _)| queue.transmitter()).collect()
    }

    /// Polls each queue once; whether there was anything.
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

    /// Finds out where a host is; `None` if it was told to stop before.
    pub(crate) fn find(
        &mut self,
        ip: IpAddr,
        stop: &AtomicBool,
    ) -> Result<Option<[u8; 6]>, LoadError> {
        for _ in 0..QUESTIONS {
            let asked = clock::now();
            // A device whose other side is not there yet takes nothing.
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
