//! A backend's session with a peer, from its first message to its last: sans-I/O, a message in and an answer out. A
//! ring comes into use as soon as all of its parameters are known, and goes out of use before any of them changes.

use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;

use thiserror::Error;

use super::control::Peers;
use super::features;
use super::gate::Gate;
use super::inflight::Inflight;
use super::memory::{Memory, MemoryError, RegionAt};
use super::message::{Message, NO_DESCRIPTOR, base_word, inflight, request, two};
use super::notifier::{Notifier, is_eventfd};
use super::packed_device::PackedDevice;
use super::port::{Kind, Port, Ring};
use super::ring::{Incoming, MAX_RING};
use super::setup::RingAddresses;
use super::split_device::SplitDevice;

/// The base of a packed ring that has never run, or whose position a monitor has lost.
const BEGINNING: u16 = 1 << 15;

/// Why a message is refused, which ends the session.
#[derive(Debug, Error)]
#[non_exhaustive]
pub(super) enum Refused {
    /// The wrong length or the wrong number of descriptors.
    #[error("request {0} has not the form that it has to have")]
    Form(u32),
    /// A request that a NIC does not support, or that was not negotiated.
    #[error("request {0} was not agreed on")]
    Unknown(u32),
    /// Features that were not offered, or the lack of a required one.
    #[error("features {0:#x}: only what was offered can be taken, and virtio 1 has to be")]
    Features(u64),
    /// The index of a ring is out of range.
    #[error("ring {0} does not exist")]
    NoRing(u32),
    /// The size of a ring is invalid.
    #[error("a ring of {0} entries: at most 32768, and a power of two unless it is packed")]
    Size(u32),
    /// A part of a ring is not within the shared memory.
    #[error("ring {0} is not within the memory that is shared, or not aligned, or begins nowhere")]
    Outside(u32),
    /// A ring without a kick descriptor would have to be polled, but an owner may wait for interrupts here.
    #[error(
        "ring {0} comes without a descriptor to notify by: it would have to be polled, which is not done here"
    )]
    NoKick(u32),
    /// A descriptor to notify by is not an eventfd.
    #[error("a descriptor to notify by is no eventfd")]
    NoEvent,
    /// The kernel cannot watch another descriptor (ENOSPC, ENOMEM).
    #[error("a descriptor to notify by cannot be watched: {0}")]
    Watch(io::Error),
    /// Flags of a ring: logging is for migration, which was not negotiated.
    #[error("flags {0:#x} of a ring were not agreed on")]
    Flags(u32),
    /// The in-flight region of a ring is invalid or missing.
    #[error(
        "the memory for what is in flight has no region for ring {0}, or one that makes no sense"
    )]
    Inflight(u32),
    /// The memory cannot be mapped.
    #[error(transparent)]
    Memory(#[from] MemoryError),
}

/// The parameters of a ring, as far as they are known, and its state.
#[derive(Debug, Default)]
struct RingState {
    size: u16,
    base: u16,
    at: Option<RingAddresses>,
    /// The descriptor by which the peer notifies us; kept when the ring changes.
    kick: Option<OwnedFd>,
    call: Option<Arc<Notifier>>,
    /// Whether the ring was started by its kick, until its base is requested.
    started: bool,
    enabled: bool,
    /// Whether in-flight chains of the last backend are still to be recovered.
    recover: bool,
    /// Whether the ring was started and is in use.
    runs: bool,
    /// Whether the ring was in use in this session: `base` is then where it stopped.
    ran: bool,
}

/// A peer's session.
#[derive(Debug)]
pub(super) struct Session {
    ports: Arc<[Arc<Port>]>,
    peers: Arc<Peers>,
    features: u64,
    protocol: u64,
    memory: Option<Arc<Memory>>,
    inflight: Option<Inflight>,
    /// The file made for in-flight tracking, and its size in bytes.
    made_inflight: Option<(OwnedFd, u64)>,
    rings: Vec<RingState>,
    /// Whether any ring has run in this session, so that the peer is counted once.
    served: bool,
}

impl Session {
    pub(super) fn new(ports: &Arc<[Arc<Port>]>, peers: &Arc<Peers>) -> Session {
        Session {
            ports: Arc::clone(ports),
            peers: Arc::clone(peers),
            features: 0,
            protocol: 0,
            memory: None,
            inflight: None,
            made_inflight: None,
            rings: ports
                .iter()
                .flat_map(|_| [RingState::default(), RingState::default()])
                .collect(),
            served: false,
        }
    }

    /// Handles a message, and returns the answer, if there is one.
    pub(super) fn handle(&mut self, mut message: Message) -> Result<Option<Message>, Refused> {
        let Message { request, .. } = message;
        if message.is_reply() {
            return Err(Refused::Form(request));
        }
        let form = || Refused::Form(request);
        let files = std::mem::take(&mut message.files);
        let expects_files = matches!(
            request,
            request::SET_MEM_TABLE
                | request::SET_VRING_KICK
                | request::SET_VRING_CALL
                | request::SET_VRING_ERR
                | request::SET_INFLIGHT_FD
        );
        if !expects_files && !files.is_empty() {
            return Err(form());
        }
        let asks = matches!(
            request,
            request::GET_FEATURES
                | request::GET_PROTOCOL_FEATURES
                | request::GET_QUEUE_NUM
                | request::SET_OWNER
                | request::RESET_OWNER
        );
        if asks && !message.payload.is_empty() {
            return Err(form());
        }
        let number = |value: u64| Message::reply(request, value.to_ne_bytes().to_vec());
        match request {
            request::GET_FEATURES => return Ok(Some(number(features::OFFERED))),
            request::GET_PROTOCOL_FEATURES => return Ok(Some(number(features::PROTOCOL_OFFERED))),
            request::GET_QUEUE_NUM => return Ok(Some(number(self.ports.len() as u64))),
            request::SET_OWNER => {}
            request::RESET_OWNER => self.end_all(),
            request::SET_FEATURES => self.set_features(message.number().ok_or_else(form)?)?,
            request::SET_PROTOCOL_FEATURES => {
                let taken = message.number().ok_or_else(form)?;
                if taken & !features::PROTOCOL_OFFERED != 0 {
                    return Err(Refused::Features(taken));
                }
                self.protocol = taken;
            }
            request::SET_MEM_TABLE => {
                let regions = message.regions().ok_or_else(form)?;
                if regions.len() != files.len() {
                    return Err(form());
                }
                self.set_memory(&regions.into_iter().zip(files).collect::<Vec<_>>())?;
            }
            request::SET_VRING_NUM => {
                let (index, size) = message.ring_number().ok_or_else(form)?;
                let packed = self.packed();
                if size == 0 || size > MAX_RING.into() || !(packed || size.is_power_of_two()) {
                    return Err(Refused::Size(size));
                }
                self.change(index, |ring| ring.size = size as u16)?;
            }
            request::SET_VRING_BASE => {
                let (index, base) = message.ring_number().ok_or_else(form)?;
                // The upper half is where a packed ring's used descriptors continue, which is the same position here.
                self.change(index, |ring| ring.base = base as u16)?;
            }
            request::SET_VRING_ADDR => {
                let (index, flags, [table, device, driver, _log]) =
                    message.ring_addresses().ok_or_else(form)?;
                if flags != 0 {
                    return Err(Refused::Flags(flags));
                }
                let at = RingAddresses { table, driver, device };
                self.change(index, |ring| ring.at = Some(at))?;
            }
            request::GET_VRING_BASE => {
                let (index, _) = message.ring_number().ok_or_else(form)?;
                self.ring_state(index)?;
                self.end(index);
                let ring = self.ring_state(index)?;
                ring.started = false;
                let base = ring.base;
                self.set_kick(index, None)?;
                let base = base_word(self.packed(), base);
                return Ok(Some(Message::reply(request, two(index, base))));
            }
            request::SET_VRING_KICK | request::SET_VRING_CALL | request::SET_VRING_ERR => {
                let (index, file) =
                    ring_and_file(message.number().ok_or_else(form)?, files).ok_or_else(form)?;
                self.ring_state(index)?;
                self.stop(index);
                match request {
                    request::SET_VRING_KICK => {
                        let kick = file.ok_or(Refused::NoKick(index))?;
                        self.set_kick(index, Some(kick))?;
                        self.ring_state(index)?.started = true;
                    }
                    request::SET_VRING_CALL => {
                        let call = file.map(|file| Notifier::of_peer(file).ok_or(Refused::NoEvent));
                        let call = call.transpose()?.map(Arc::new);
                        self.ring_state(index)?.call = call;
                    }
                    // The error descriptor is never used: an error ends the connection.
                    _ => {}
                }
                self.start(index)?;
            }
            request::SET_VRING_ENABLE => {
                let (index, enabled) = message.ring_number().ok_or_else(form)?;
                // QEMU sends this before it has set any features, the one for it included.
                if enabled > 1 {
                    return Err(form());
                }
                self.change(index, |ring| ring.enabled = enabled == 1)?;
            }
            request::GET_INFLIGHT_FD if self.tracks() => {
                let asked = message.inflight().ok_or_else(form)?;
                let (packed, rings) = (self.packed(), asked.rings);
                if usize::from(rings) > self.rings.len() {
                    return Err(form());
                }
                let (made, file) = Inflight::make(packed, rings, asked.size).ok_or_else(form)??;
                let copy = (file.try_clone().map_err(MemoryError::System)?, made.at().len);
                let mut answer = Message::reply(request, inflight(made.at()));
                answer.files.push(file);
                self.set_inflight(made, false)?;
                // A repeated request, as cloud-hypervisor sends each time that its guest restarts.
                if let Some((file, len)) = self.made_inflight.replace(copy) {
                    Inflight::empty(&file, len);
                }
                return Ok(Some(answer));
            }
            request::SET_INFLIGHT_FD if self.tracks() => {
                let at = message.inflight().ok_or_else(form)?;
                let [file] = <[OwnedFd; 1]>::try_from(files).map_err(|_| form())?;
                self.set_inflight(Inflight::given(at, file)?, true)?;
            }
            _ => return Err(Refused::Unknown(request)),
        }
        Ok(message.needs_reply().then(|| number(0)))
    }

    fn ring_state(&mut self, index: u32) -> Result<&mut RingState, Refused> {
        self.rings.get_mut(index as usize).ok_or(Refused::NoRing(index))
    }

    /// Takes a ring out of use, changes its parameters, and takes it into use again.
    fn change(&mut self, index: u32, change: impl FnOnce(&mut RingState)) -> Result<(), Refused> {
        self.ring_state(index)?;
        self.stop(index);
        change(self.ring_state(index)?);
        self.start(index)
    }

    fn set_features(&mut self, taken: u64) -> Result<(), Refused> {
        if taken & !features::OFFERED != 0 || taken & features::VERSION_1 == 0 {
            return Err(Refused::Features(taken));
        }
        // QEMU repeats the features to switch logging on, which was not offered; the rings need not stop for that.
        if taken != self.features {
            self.stop_all();
            self.features = taken;
            self.start_all()?;
        }
        Ok(())
    }

    fn set_memory(&mut self, list: &[(RegionAt, OwnedFd)]) -> Result<(), Refused> {
        let memory = Memory::map(list)?;
        self.stop_all();
        self.report_truncation();
        self.memory = Some(Arc::new(memory));
        self.start_all()
    }

    fn packed(&self) -> bool {
        self.features & features::RING_PACKED != 0
    }

    /// Whether in-flight tracking was negotiated.
    fn tracks(&self) -> bool {
        self.protocol & features::PROTOCOL_INFLIGHT_SHMFD != 0
    }

    /// Sets new in-flight memory and restarts the rings; with `recover`, where the last backend's records say.
    fn set_inflight(&mut self, inflight: Inflight, recover: bool) -> Result<(), Refused> {
        self.stop_all();
        self.report_truncation();
        self.inflight = Some(inflight);
        self.rings.iter_mut().for_each(|ring| ring.recover = recover);
        self.start_all()
    }

    fn set_kick(&mut self, index: u32, kick: Option<OwnedFd>) -> Result<(), Refused> {
        let port = Arc::clone(self.port(index).0);
        if let Some(kick) = self.ring_state(index)?.kick.take() {
            port.unwatch(kick.as_fd());
        }
        if let Some(kick) = &kick {
            // Watching a file that the peer serves (FUSE) could block.
            if !is_eventfd(kick) {
                return Err(Refused::NoEvent);
            }
            port.watch(kick.as_fd()).map_err(Refused::Watch)?;
        }
        self.ring_state(index)?.kick = kick;
        Ok(())
    }

    /// The port of a ring, and whether frames arrive by it: the driver's transmit ring.
    fn port(&self, index: u32) -> (&Arc<Port>, bool) {
        (&self.ports[index as usize / 2], index % 2 == 1)
    }

    fn gate(&self, index: u32) -> &Gate<Ring> {
        let (port, incoming) = self.port(index);
        if incoming { &port.incoming } else { &port.outgoing }
    }

    fn stop(&mut self, index: u32) {
        if !self.rings[index as usize].runs {
            return;
        }
        let ring = self.gate(index).enter(Option::take);
        let state = &mut self.rings[index as usize];
        state.runs = false;
        if let Some(ring) = ring {
            state.base = ring.kind.base();
        }
        self.peers.rings.fetch_sub(1, Relaxed);
    }

    fn stop_all(&mut self) {
        (0..self.rings.len() as u32).for_each(|index| self.stop(index));
    }

    /// Stops a ring that its driver no longer uses.
    fn end(&mut self, index: u32) {
        self.stop(index);
        if let (port, false) = self.port(index) {
            port.end_waiting();
        }
    }

    fn end_all(&mut self) {
        (0..self.rings.len() as u32).for_each(|index| self.end(index));
    }

    /// Takes a ring into use, if all of its parameters are known.
    fn start(&mut self, index: u32) -> Result<(), Refused> {
        let state = &self.rings[index as usize];
        let enabled = state.enabled || self.features & features::PROTOCOL_FEATURES == 0;
        let (true, Some(at), Some(memory)) =
            (enabled && state.started && state.size > 0, state.at, &self.memory)
        else {
            return Ok(());
        };
        let rings = features::of_device(self.features);
        let packed = self.packed();
        let mut kind = if packed {
            let ring = PackedDevice::new(memory, at, state.size, state.base, rings);
            ring.map(Box::new).map(Kind::PackedDevice)
        } else {
            SplitDevice::new(memory, at, state.size, rings).map(Kind::SplitDevice)
        }
        .ok_or(Refused::Outside(index))?;
        let region = self.inflight.as_ref().map(|it| it.region(index, packed, state.size));
        let region = region.map(|it| it.ok_or(Refused::Inflight(index))).transpose()?;
        // Concerns the last backend's ring. With in-flight records, bursts are marked with one descriptor, and the
        // ring does not tell the position.
        let marked_each = rings.indirect && region.is_none() && !state.ran;
        if let Kind::PackedDevice(ring) = &mut kind
            && (marked_each, state.base) == (true, BEGINNING)
        {
            ring.resume();
        }
        if let Some(region) = region
            && !kind.track(region, state.recover)
        {
            return Err(Refused::Inflight(index));
        }
        match &mut kind {
            Kind::SplitDevice(ring) => ring.mask(),
            Kind::PackedDevice(ring) => ring.mask(),
            Kind::SplitDriver(_) | Kind::PackedDriver(_) => {}
        }
        let ring =
            Ring::new(kind, state.call.clone()).reporting_to(&self.peers, index as usize / 2);
        // The last backend may have died between returning chains and notifying.
        ring.notify();
        self.gate(index).enter(|place| *place = Some(ring));
        let state = &mut self.rings[index as usize];
        (state.runs, state.ran, state.recover) = (true, true, false);
        self.peers.rings.fetch_add(1, Relaxed);
        if !std::mem::replace(&mut self.served, true) {
            self.peers.served.fetch_add(1, Relaxed);
        }
        self.port(index).0.wake();
        Ok(())
    }

    /// Reports memory that is about to be dropped and whose file the peer has truncated.
    fn report_truncation(&self) {
        let memory = self.memory.as_ref().is_some_and(|it| it.truncated());
        if memory || self.inflight.as_ref().is_some_and(Inflight::truncated) {
            self.peers.refuse(
                "the peer has cut a file of its memory short, and was not served any more".into(),
            );
        }
    }

    fn start_all(&mut self) -> Result<(), Refused> {
        (0..self.rings.len() as u32).try_for_each(|index| self.start(index))
    }
}

impl Drop for Session {
    fn drop(&mut self) {
        self.end_all();
        self.report_truncation();
        for index in 0..self.rings.len() as u32 {
            let _ = self.set_kick(index, None);
            self.port(index).0.wake();
        }
    }
}

/// The ring, and the descriptor that comes with it, if any; `None` if the number of descriptors is wrong.
fn ring_and_file(number: u64, mut files: Vec<OwnedFd>) -> Option<(u32, Option<OwnedFd>)> {
    let without = number & NO_DESCRIPTOR != 0;
    let index = number & !NO_DESCRIPTOR;
    if index > 0xff || files.len() != usize::from(!without) {
        return None;
    }
    Some((index as u32, files.pop()))
}

#[cfg(test)]
mod tests;
