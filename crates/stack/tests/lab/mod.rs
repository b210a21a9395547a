//! A stack under test: frames are fed in by hand, and the frames that it sends are recorded.
#![allow(dead_code)] // Each test binary uses its own part of it.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};

use napkin_core::Pressure;
use napkin_nic::{Frame, Pool, SendError, Transmitter};
use napkin_policy::Ns;
use napkin_stack::{Address, Addresses, Counters, FrameBuilder, Input, Listener, Stack};

pub(crate) const US: Address = Address::v4([2, 0, 0, 0, 0, 1], [10, 0, 0, 1], 24);
pub(crate) const PEER: Address = Address::v4([2, 0, 0, 0, 0, 2], [10, 0, 0, 2], 24);
pub(crate) const US6: Address = Address::v6(US.mac, [0xfd00, 0, 0, 0, 0, 0, 0, 1], 64);
pub(crate) const PEER6: Address = Address::v6(PEER.mac, [0xfd00, 0, 0, 0, 0, 0, 0, 2], 64);
pub(crate) const NAPI: u32 = 513;

/// Records the frames that the stack sends.
#[derive(Default)]
pub(crate) struct Wire {
    sent: Mutex<Vec<Vec<u8>>>,
    pub(crate) cut: AtomicBool,
}

impl Wire {
    pub(crate) fn sent(&self) -> Vec<Vec<u8>> {
        std::mem::take(&mut self.sent.lock().unwrap())
    }
}

impl Transmitter for Wire {
    fn send(&self, frame: &[u8], _: Ns) -> Result<(), SendError> {
        if self.cut.load(Ordering::SeqCst) {
            return Err(SendError::Down);
        }
        self.sent.lock().unwrap().push(frame.to_vec());
        Ok(())
    }
}

/// A listener that records its notifications.
#[derive(Default)]
pub(crate) struct RecordingListener {
    pub(crate) readable: Mutex<Vec<u32>>,
    pub(crate) drained: Mutex<Vec<u32>>,
}

impl RecordingListener {
    pub(crate) fn readable(&self) -> Vec<u32> {
        std::mem::take(&mut self.readable.lock().unwrap())
    }

    pub(crate) fn drained(&self) -> Vec<u32> {
        std::mem::take(&mut self.drained.lock().unwrap())
    }
}

impl Listener for RecordingListener {
    fn readable(&self, napi_id: u32) {
        self.readable.lock().unwrap().push(napi_id);
    }

    fn drained(&self, napi_id: u32) {
        self.drained.lock().unwrap().push(napi_id);
    }
}

pub(crate) struct Lab {
    pub(crate) stack: Arc<Stack>,
    pub(crate) input: Input,
    pub(crate) wire: Arc<Wire>,
    pub(crate) pool: Pool,
}

impl Lab {
    /// A host with both families.
    pub(crate) fn new() -> Lab {
        Lab::of(Addresses::from(US).with(US6.ip, US6.prefix).unwrap())
    }

    pub(crate) fn of(addresses: impl Into<Addresses>) -> Lab {
        let stack = Stack::new(addresses);
        let wire = Arc::new(Wire::default());
        let input = Input::new(Arc::clone(&stack), NAPI, wire.clone());
        Lab { stack, input, wire, pool: Pool::new(256) }
    }

    /// Another queue of the same stack.
    pub(crate) fn another_queue(&self, napi_id: u32) -> (Input, Arc<Wire>) {
        let wire = Arc::new(Wire::default());
        (Input::new(Arc::clone(&self.stack), napi_id, wire.clone()), wire)
    }

    pub(crate) fn frame(&self, bytes: &[u8]) -> Frame {
        let mut frame = self.pool.take().expect("the pool is large enough");
        frame.buffer()[..bytes.len()].copy_from_slice(bytes);
        frame.set_len(bytes.len());
        frame
    }

    /// Receives these frames as one batch.
    pub(crate) fn receive(&mut self, batch: &[Vec<u8>], now: Ns) -> Pressure {
        let mut frames: Vec<_> = batch.iter().map(|bytes| self.frame(bytes)).collect();
        let pressure = self.input.deliver(&mut frames, now);
        assert!(frames.is_empty());
        pressure
    }

    pub(crate) fn counters(&self) -> Counters {
        let counters = self.stack.counters();
        assert_eq!(counters.frames, counters.accounted(), "conservation: {counters:?}");
        counters
    }
}

pub(crate) fn from_peer() -> FrameBuilder {
    FrameBuilder::new(PEER, US)
}

pub(crate) fn from_peer6() -> FrameBuilder {
    FrameBuilder::new(PEER6, US6)
}

pub(crate) fn udp(to_port: u16, payload: &[u8]) -> Vec<u8> {
    datagram(from_peer(), to_port, payload)
}

/// A datagram from port 4000.
pub(crate) fn datagram(build: FrameBuilder, to_port: u16, payload: &[u8]) -> Vec<u8> {
    built(build.length(payload.len()), |buffer| build.udp(buffer, 4000, to_port, payload))
}

pub(crate) fn ping(ident: u16, sequence: u16, payload: &[u8]) -> Vec<u8> {
    echo(from_peer(), ident, sequence, payload)
}

pub(crate) fn echo(build: FrameBuilder, ident: u16, sequence: u16, payload: &[u8]) -> Vec<u8> {
    built(build.length(payload.len()), |buffer| {
        build.echo_request(buffer, ident, sequence, payload)
    })
}

pub(crate) fn who_has_us() -> Vec<u8> {
    built(128, |buffer| from_peer().request(buffer))
}

/// The frame that `build` writes.
pub(crate) fn built<E: std::fmt::Debug>(
    most: usize,
    build: impl FnOnce(&mut [u8]) -> Result<usize, E>,
) -> Vec<u8> {
    let mut frame = vec![0; most];
    let length = build(&mut frame).unwrap();
    frame.truncate(length);
    frame
}
