//! The control thread of a frontend: connects, makes rings in its own memory, passes them to the backend, and
//! reconnects when the backend has gone. Each connection gets new memory, so that nothing of the last one is left;
//! or, if both backends record in-flight chains, the same rings, so that their contents are not lost. A backend
//! that breaks a ring is treated as gone.

use std::io::ErrorKind;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::time::{Duration, Instant};

use rustix::event::{EventfdFlags, eventfd};

use super::FrontendConfig;
use super::control::{Peers, pause};
use super::features;
use super::inflight::InflightAt;
use super::memory::Memory;
use super::message::{Connection, Ended, Message, base_word, inflight, request, two};
use super::notifier::Notifier;
use super::packed_driver::PackedDriver;
use super::port::{Backend, Kind, Port, Ring};
use super::setup::RingAddresses;
use super::slots::{STRIDE, Slots};
use super::socket::connect;
use super::split_driver::SplitDriver;

/// The address of our memory in descriptors and messages: arbitrary, but not 0.
const START: u64 = 1 << 32;

/// The first and the longest pause between attempts to connect, in milliseconds.
const PAUSE: (i64, i64) = (10, 500);

/// After a connection that lasted this long, without a broken ring at its end, the pause starts again at its minimum.
const USEFUL_AFTER: Duration = Duration::from_secs(1);

/// Why a connection to a backend failed or ended.
enum Unusable {
    Ended(Ended),
    /// A reason, as a sentence.
    Reason(String),
}

impl<E: Into<Ended>> From<E> for Unusable {
    fn from(error: E) -> Unusable {
        Unusable::Ended(error.into())
    }
}

/// Runs until `stop` becomes readable.
pub(super) fn run(
    config: &FrontendConfig,
    ports: &Arc<[Arc<Port>]>,
    peers: &Arc<Peers>,
    stop: BorrowedFd<'_>,
) {
    let mut wait = PAUSE.0;
    // The last reported problem, so that a persistent one is reported once.
    let mut reported: Option<String> = None;
    let mut last = None;
    // Whether a connection ended for a broken ring and none has been of use since: another such end is then not
    // reported, whichever ring it is.
    let mut broke_ring = false;
    // Consecutive connections that the backend closed during the negotiation.
    let mut hung_up = 0u32;
    loop {
        let why = match connect(&config.path) {
            Ok(socket) => {
                let backend = Arc::new(Backend::new(socket));
                let (start, served) = (Instant::now(), peers.served.load(Relaxed));
                let connection = Connection::new(&backend.socket, stop).map_err(Ended::System);
                let driven = connection.map_or_else(Unusable::Ended, |it| {
                    drive(config, ports, peers, (&it, &backend), &mut last)
                });
                let (was_served, broken) = (peers.served.load(Relaxed) != served, backend.broken());
                let ended_here = broken.is_some();
                let why = match (driven, broken) {
                    (Unusable::Ended(Ended::Stopped), _) => return,
                    (_, Some(why)) => (!std::mem::replace(&mut broke_ring, true)).then_some(why),
                    (Unusable::Ended(Ended::Closed), None) if was_served => None,
                    (Unusable::Ended(Ended::Closed), None) => {
                        hung_up = hung_up.saturating_add(1);
                        // A backend that is ending, with us in its accept queue, also closes one connection.
                        (hung_up == 2).then(|| {
                            let path = config.path.display();
                            format!("the backend at {path} closed the connection while rings were agreed on")
                        })
                    }
                    (Unusable::Ended(ended), None) => Some(ended.to_string()),
                    (Unusable::Reason(what), None) => Some(what),
                };
                if was_served && !ended_here {
                    (hung_up, reported, broke_ring) = (0, None, false);
                }
                if start.elapsed() >= USEFUL_AFTER && !ended_here {
                    wait = PAUSE.0;
                }
                why
            }
            Err(error) => {
                let path = config.path.display();
                match error.kind() {
                    // The backend is not there yet, or is gone.
                    ErrorKind::NotFound | ErrorKind::ConnectionRefused => None,
                    ErrorKind::WouldBlock => Some(format!(
                        "the backend at {path} accepts no connection: its accept queue is full"
                    )),
                    _ => Some(format!("cannot connect to {path}: {error}")),
                }
            }
        };
        if let Some(why) = why
            && reported.as_ref() != Some(&why)
        {
            peers.refuse(why.clone());
            reported = Some(why);
        }
        if pause(stop, wait) {
            return;
        }
        wait = (wait * 2).min(PAUSE.1);
    }
}

/// Serves one connection, and returns why it ended.
fn drive(
    config: &FrontendConfig,
    ports: &Arc<[Arc<Port>]>,
    peers: &Arc<Peers>,
    (connection, backend): (&Connection<'_>, &Arc<Backend>),
    last: &mut Option<Shared>,
) -> Unusable {
    let mut rings = Rings {
        ports: Arc::clone(ports),
        peers,
        backend,
        calls: Vec::new(),
        run: 0,
        shared: last,
        memory_sent: false,
    };
    if let Err(useless) = negotiate(config, connection, &mut rings) {
        let memory_sent = rings.memory_sent;
        drop(rings);
        // State with which the negotiation failed is not used again. A backend that never got the memory has not
        // touched it.
        if memory_sent {
            *last = None;
        }
        return useless;
    }
    peers.served.fetch_add(1, Relaxed);
    // A backend sends nothing unasked, so this waits for its end; a broken ring shuts the socket down.
    match connection.receive() {
        Ok(_) => Ended::Malformed("came that was not asked for").into(),
        Err(ended) => ended.into(),
    }
}

/// The memory and rings that are shared with a backend, and perhaps with the next one.
struct Shared {
    file: OwnedFd,
    /// The negotiated features.
    features: u64,
    /// The backend's in-flight record. Without it the next backend does not know where to continue.
    inflight: Option<(InflightAt, OwnedFd)>,
    /// The rings that are not in use.
    kinds: Vec<Option<Kind>>,
}

impl Shared {
    /// Makes new rings in new memory.
    fn new(config: &FrontendConfig, features: u64) -> Result<Shared, Unusable> {
        let lacks = |what: String| Unusable::Reason(what);
        let count = 2 * u64::from(config.queues);
        let (_, _, each) = layout(0, config.ring);
        let (memory, file) = Memory::own(START, each * count)
            .map_err(|error| lacks(format!("no memory for rings: {error}")))?;
        let memory = Arc::new(memory);
        let ring = |index| {
            let (at, buffers, _) = layout(START + index * each, config.ring);
            let slots = Slots::new(buffers, config.ring);
            let (rings, receive) = (features::of_driver(features), index % 2 == 0);
            if config.packed {
                PackedDriver::new(&memory, at, slots, rings, receive).map(Kind::PackedDriver)
            } else {
                SplitDriver::new(&memory, at, slots, rings, receive).map(Kind::SplitDriver)
            }
        };
        let kinds: Vec<_> = (0..count).map(ring).collect();
        if kinds.iter().any(Option::is_none) {
            return Err(lacks("no place for rings".into()));
        }
        Ok(Shared { file, features, inflight: None, kinds })
    }

    /// Whether another backend can continue with it.
    fn can_continue(&self) -> bool {
        let good = |it: &Option<Kind>| it.as_ref().is_some_and(|kind| !kind.is_broken());
        self.inflight.is_some() && self.kinds.iter().all(good)
    }
}

/// The rings of a connection; taken out of use when dropped.
struct Rings<'a> {
    ports: Arc<[Arc<Port>]>,
    peers: &'a Arc<Peers>,
    /// The connection, which a thread ends that finds one of the rings broken.
    backend: &'a Arc<Backend>,
    /// The descriptors by which the backend notifies, each with the index of its pair.
    calls: Vec<(usize, OwnedFd)>,
    run: u64,
    shared: &'a mut Option<Shared>,
    /// Whether the backend has got the memory.
    memory_sent: bool,
}

impl Drop for Rings<'_> {
    fn drop(&mut self) {
        for (pair, port) in self.ports.iter().enumerate() {
            let gates = [&port.incoming, &port.outgoing];
            for (ring, gate) in gates.into_iter().enumerate() {
                let taken = gate.enter(Option::take);
                let place = self.shared.as_mut().and_then(|it| it.kinds.get_mut(2 * pair + ring));
                if let (Some(place), Some(taken)) = (place, taken) {
                    *place = Some(taken.kind);
                }
            }
            port.end_waiting();
        }
        if !self.shared.as_ref().is_some_and(Shared::can_continue) {
            *self.shared = None;
        }
        for (pair, call) in &self.calls {
            self.ports[*pair].unwatch(call.as_fd());
            self.ports[*pair].wake();
        }
        self.peers.rings.fetch_sub(self.run, Relaxed);
    }
}

/// The addresses of a ring's parts and buffers from `start` on, and the address of the next ring.
fn layout(start: u64, size: u16) -> (RingAddresses, u64, u64) {
    let n = u64::from(size);
    let whole = |bytes: u64| bytes.next_multiple_of(128);
    let driver = start + whole(16 * n);
    let device = driver + whole(6 + 2 * n);
    let buffers = device + whole(6 + 8 * n);
    let end = buffers + n * STRIDE as u64;
    (RingAddresses { table: start, driver, device }, buffers, end.next_multiple_of(4096))
}

fn negotiate(
    config: &FrontendConfig,
    connection: &Connection<'_>,
    rings: &mut Rings<'_>,
) -> Result<(), Unusable> {
    let path = config.path.display();
    let lacks = |what: &str| Err(Unusable::Reason(format!("the backend at {path} {what}")));
    let ask = |request, late: Option<&dyn Fn()>| {
        let answer = connection.ask(request, late)?;
        answer.number().ok_or(Ended::Malformed("has not the form of a number"))
    };
    let number = |request| ask(request, None);
    let peers = rings.peers;
    let late =
        || peers.report(format!("the backend at {path} does not answer yet: it may serve another"));
    let offered = ask(request::GET_FEATURES, Some(&late))?;
    let taken = features::taken(offered, config.packed, config.ring);
    if taken & features::VERSION_1 == 0 {
        return lacks("is older than virtio 1.0");
    }
    if config.packed && taken & features::RING_PACKED == 0 {
        return lacks("has no packed rings: leave packed out");
    }
    let send =
        |request, payload: Vec<u8>, files| connection.send(&Message::ask(request, payload, files));
    let value = |value: u64| value.to_ne_bytes().to_vec();
    let protocol = match taken & features::PROTOCOL_FEATURES {
        0 => 0,
        _ => number(request::GET_PROTOCOL_FEATURES)? & features::PROTOCOL_TAKEN,
    };
    if taken & features::PROTOCOL_FEATURES != 0 {
        send(request::SET_PROTOCOL_FEATURES, value(protocol), vec![])?;
    }
    let most = match protocol & features::PROTOCOL_MQ {
        0 => 1,
        _ => number(request::GET_QUEUE_NUM)?,
    };
    if most < config.queues.into() {
        return lacks(&format!("has {most} queues: give no more"));
    }
    send(request::SET_OWNER, vec![], vec![])?;
    let multiple = if config.queues > 1 { u64::MAX } else { !features::MQ };
    send(request::SET_FEATURES, value(taken & multiple), vec![])?;

    let tracks = protocol & features::PROTOCOL_INFLIGHT_SHMFD != 0;
    let keeps_rings = rings.shared.as_ref().is_some_and(|it| tracks && it.features == taken);
    if !keeps_rings {
        *rings.shared = Some(Shared::new(config, taken)?);
    }
    let Some(shared) = &mut *rings.shared else { return lacks("has no place for rings") };

    let count = 2 * u64::from(config.queues);
    let (_, _, each) = layout(0, config.ring);
    let region = [START, each * count, START, 0].map(u64::to_ne_bytes).concat();
    let file = shared.file.try_clone()?;
    rings.memory_sent = true;
    send(request::SET_MEM_TABLE, [two(1, 0), region].concat(), vec![file])?;

    let event = || eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK);
    // The call descriptors first: DPDK makes its rings when it gets them.
    for index in 0..count {
        let (call, pair) = (event()?, index as usize / 2);
        rings.ports[pair].watch(call.as_fd())?;
        let sent_copy = call.try_clone()?;
        rings.calls.push((pair, call));
        send(request::SET_VRING_CALL, value(index), vec![sent_copy])?;
    }
    if tracks && shared.inflight.is_none() {
        let (rings, size) = (count as u16, config.ring);
        let asked = inflight(InflightAt { len: 0, offset: 0, rings, size });
        let answer = connection.ask_files(request::GET_INFLIGHT_FD, asked)?;
        let at = answer.inflight().filter(|it| (it.rings, it.size) == (rings, size));
        let [file] = <[OwnedFd; 1]>::try_from(answer.files)
            .map_err(|_| Ended::Malformed("brings no memory for what is in flight"))?;
        let at = at.ok_or(Ended::Malformed("speaks of other rings than was asked for"))?;
        shared.inflight = Some((at, file));
    }
    if let Some((at, file)) = &shared.inflight {
        send(request::SET_INFLIGHT_FD, inflight(*at), vec![file.try_clone()?])?;
    }
    for index in 0..count {
        let (at, ..) = layout(START + index * each, config.ring);
        let (ring, kick) = (index as u32, event()?);
        let Some(kind) = shared.kinds[index as usize].take() else {
            return lacks("has no place for rings");
        };
        let (base, sent_copy) = (base_word(config.packed, kind.base()), kick.try_clone()?);
        let (notify, pair) = (Some(Arc::new(Notifier::new(kick))), index as usize / 2);
        let ready =
            Ring::new(kind, notify).reporting_to(rings.peers, pair).served_over(rings.backend);
        if keeps_rings {
            // The last backend may have died before it acted on a notification.
            ready.notify();
        }
        let (port, receive) = (&rings.ports[pair], index % 2 == 0);
        let gate = if receive { &port.incoming } else { &port.outgoing };
        gate.enter(|place| *place = Some(ready));
        rings.run += 1;
        rings.peers.rings.fetch_add(1, Relaxed);
        send(request::SET_VRING_NUM, two(ring, config.ring.into()), vec![])?;
        send(request::SET_VRING_BASE, two(ring, base), vec![])?;
        let addresses = [at.table, at.device, at.driver, 0].map(u64::to_ne_bytes).concat();
        send(request::SET_VRING_ADDR, [two(ring, 0), addresses].concat(), vec![])?;
        send(request::SET_VRING_KICK, value(index), vec![sent_copy])?;
    }
    if taken & features::PROTOCOL_FEATURES != 0 {
        for ring in 0..count as u32 {
            send(request::SET_VRING_ENABLE, two(ring, 1), vec![])?;
        }
    }
    // An answer shows that all requests before it were accepted: a backend that refuses one closes the connection.
    number(request::GET_FEATURES)?;
    for port in &*rings.ports {
        port.wake();
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::os::unix::net::{UnixListener, UnixStream};

    use napkin_testing::until;

    use super::super::Vhost;
    use super::super::memory::RegionAt;
    use super::*;
    use crate::{PacketQueue, Pool};

    /// Negotiates as a backend of plain virtio 1.0 with the next frontend; returns the connection and the
    /// frontend's memory.
    fn negotiated(listener: &UnixListener) -> (UnixStream, OwnedFd) {
        let mut accepted = None;
        until("it connects", || {
            accepted = listener.accept().ok();
            accepted.is_some()
        });
        let (peer, _) = accepted.expect("it came");
        let never = eventfd(0, EventfdFlags::CLOEXEC).expect("an eventfd");
        let connection = Connection::new(&peer, never.as_fd()).expect("a connection");
        let (mut asked, mut memory) = (0, None);
        // The frontend requests the features first, and again at the end.
        while asked < 2 {
            let mut message = connection.receive().expect("a message");
            match message.request {
                request::GET_FEATURES => {
                    let offered = features::VERSION_1.to_ne_bytes().to_vec();
                    let answer = Message::reply(request::GET_FEATURES, offered);
                    connection.send(&answer).expect("it waits for that");
                    asked += 1;
                }
                request::SET_MEM_TABLE => memory = message.files.pop(),
                _ => {}
            }
        }
        (peer, memory.expect("it shares some"))
    }

    #[test]
    fn a_ring_of_ours_that_makes_no_sense_ends_the_connection_and_is_told_of_once() {
        let path = std::env::temp_dir().join(format!("napkin-frontend-{}", std::process::id()));
        let listener = UnixListener::bind(&path).expect("a free path");
        listener.set_nonblocking(true).expect("a socket");
        let config = FrontendConfig { ring: 16, ..FrontendConfig::new(&path) };
        let device = Vhost::frontend(&config, &Pool::new(64)).expect("it can be");
        let Vhost { mut queues, peers } = device;
        let mut queue = queues.remove(0);
        let wire = queue.transmitter();
        let (_, _, each) = layout(0, config.ring);
        // The ring to receive from, then the one to send to.
        for ring in 0..2 {
            let (_peer, file) = negotiated(&listener);
            until("it is served", || peers.served.load(Relaxed) == ring + 1);
            let at = RegionAt { guest: START, len: 2 * each, user: START, offset: 0 };
            let memory = Memory::map(&[(at, file)]).expect("it is whole");
            let (ring_area, ..) = layout(START + ring * each, config.ring);
            assert!(
                memory.write(ring_area.device + 2, &1_000u16.to_le_bytes()),
                "an index that leaps"
            );
            while wire.send(&[1; 60], 0).is_ok() {}
            queue.poll(1, 0, &mut Vec::new());
            if ring == 0 {
                let mut trouble = None;
                until("it is told", || {
                    trouble = peers.take_problem();
                    trouble.is_some()
                });
                let trouble = trouble.expect("a reason");
                assert!(trouble.contains("until there is another connection"), "{trouble}");
            }
        }
        negotiated(&listener);
        // A backend that breaks a ring each time is reported once.
        assert_eq!((peers.refused.load(Relaxed), peers.take_problem()), (1, None));
        std::fs::remove_file(&path).expect("it is ours");
    }
}
