//! The TCP worker of one thread: segments in, streams to the application, segments out.

use std::collections::{BTreeSet, HashMap};
use std::fmt;
use std::hash::RandomState;
use std::net::SocketAddr;
use std::sync::Arc;

use napkin_policy::{NEVER, Ns};
use smoltcp::iface::{Interface, PollResult, SocketSet};
use smoltcp::socket::tcp::State;
use smoltcp::time::Instant;

use super::Flow;
use super::application::TcpApplication;
use super::connection::{Connection, Phase};
use super::counters::TcpCounters;
use super::deadlines::Deadlines;
use super::error::ListenError;
use super::flow::{Segment, clamp_segments};
use super::interface::Interfaces;
use super::limits::TcpLimits;
use super::link::Link;
use crate::receiver::Arrival;
use crate::stack::FIRST_EPHEMERAL_PORT;
use crate::{Receiver, Socket, Stack};

/// The MSS for an IPv6 peer beyond our networks: 1280 bytes, which every path carries (RFC 8200, 5), less the IPv6
/// and TCP headers.
const OFF_LINK_MSS: u16 = 1_280 - 40 - 20;

/// One thread's TCP. See the [module](crate::tcp).
pub struct TcpWorker<T> {
    stack: Arc<Stack>,
    receiver: Arc<Receiver>,
    limits: TcpLimits,
    /// The interface made for the connection that began last; it keeps no state of connections.
    interface: Interface,
    interfaces: Interfaces,
    link: Link,
    /// An empty set: a segment presented with it is answered with a RST.
    no_sockets: SocketSet<'static>,
    ports: Vec<u16>,
    /// Where the search for a free ephemeral port starts.
    next_port: u16,
    connections: Vec<Option<Connection<T>>>,
    free: Vec<u32>,
    places: HashMap<Flow, u32, RandomState>,
    /// The half-open connections begun by peers, those begun here, and those in TIME-WAIT, each ordered by age.
    half_open: BTreeSet<(u64, u32)>,
    initiated: BTreeSet<(u64, u32)>,
    time_wait: BTreeSet<(u64, u32)>,
    /// The serial of the newest connection.
    serial: u64,
    deadlines: Deadlines,
    /// Connections to process before this step ends.
    changed: Vec<u32>,
    counters: TcpCounters,
}

impl<T> TcpWorker<T> {
    pub(crate) fn new(stack: Arc<Stack>, receiver: Arc<Receiver>, limits: TcpLimits) -> Self {
        let mut link = Link::new(Arc::clone(&stack));
        let mut interfaces = Interfaces::default();
        let interface = interfaces.make((), stack.addresses(), &mut link);
        TcpWorker {
            stack,
            receiver,
            limits,
            interface,
            interfaces,
            link,
            no_sockets: SocketSet::new(Vec::new()),
            ports: Vec::new(),
            next_port: FIRST_EPHEMERAL_PORT,
            connections: Vec::new(),
            free: Vec::new(),
            places: HashMap::default(),
            half_open: BTreeSet::new(),
            initiated: BTreeSet::new(),
            time_wait: BTreeSet::new(),
            serial: 0,
            deadlines: Deadlines::default(),
            changed: Vec::new(),
            counters: TcpCounters::default(),
        }
    }

    /// Starts to accept connections to a port.
    ///
    /// # Errors
    /// If the worker already listens on it, or the port is 0.
    pub fn listen(&mut self, port: u16) -> Result<(), ListenError> {
        match port {
            0 => Err(ListenError::NoPort),
            _ if self.ports.contains(&port) => Err(ListenError::InUse(port)),
            _ => {
                self.ports.push(port);
                Ok(())
            }
        }
    }

    /// Sets the ephemeral port (49152 or above) at which the next search for a free local port starts. By default
    /// it is the first one, so that a repeated run uses the same ports and spreads over queues in the same way. A
    /// host that connects to the same server again and again should pass a different port each time, since the
    /// server may still hold state of an earlier connection.
    pub fn begin_ports_at(&mut self, port: u16) {
        self.next_port = port.max(FIRST_EPHEMERAL_PORT);
    }

    /// Opens a connection to a peer whose Ethernet address is known; the application is called once it is open.
    /// Call [`step`](TcpWorker::step) soon, which sends the SYN.
    ///
    /// The application is not called for a connection that fails (refused, or after [`TcpLimits::handshake`]); it
    /// is removed, and [`connections`](TcpWorker::connections) no longer counts it.
    ///
    /// # Errors
    /// If no Ethernet address is known, no port is free, or a limit on connections is reached; only a connection in
    /// TIME-WAIT is evicted.
    pub fn connect(&mut self, peer: SocketAddr, napi_id: u32) -> Result<Flow, ListenError> {
        let ip = peer.ip();
        let mac = self.stack.neighbour(ip).ok_or(ListenError::NoNeighbour(ip))?;
        let own = self.stack.addresses().towards(ip).ok_or(ListenError::NoNeighbour(ip))?;
        // Drops the flow label and scope of an IPv6 socket address.
        let peer = SocketAddr::new(ip, peer.port());
        let flow = |port: u16| Flow { local: SocketAddr::new(own.ip, port), peer };
        let free = |port: &u16| !self.places.contains_key(&flow(*port));
        let ports = (self.next_port..=u16::MAX).chain(FIRST_EPHEMERAL_PORT..self.next_port);
        let port = { ports }.find(free).ok_or(ListenError::NoPortLeft(peer))?;
        let flow = flow(port);
        if self.initiated.len() >= self.limits.half_open {
            return Err(ListenError::TooMany(self.limits.half_open));
        }
        let place = self.admit(flow).ok_or(ListenError::TooMany(self.limits.connections))?;
        self.initiated.insert((self.serial, place));
        if let Some(connection) = self.connections[place as usize].as_mut() {
            (connection.mac, connection.napi_id) = (mac, napi_id);
            self.interface = self.interfaces.make(flow, self.stack.addresses(), &mut self.link);
            // Cannot fail: the socket is new and both ends are specified.
            let _ = connection.socket().connect(self.interface.context(), peer, flow.local);
        }
        self.next_port = port.checked_add(1).unwrap_or(FIRST_EPHEMERAL_PORT);
        self.schedule(place);
        Ok(flow)
    }

    /// Makes the next [`step`](TcpWorker::step) call the application for a connection even if no segment arrives,
    /// because there is data to send. Does nothing if the connection is gone.
    pub fn wake(&mut self, flow: Flow) {
        if let Some(place) = self.places.get(&flow) {
            self.schedule(*place);
        }
    }

    /// Processes up to `budget` segments and the expired deadlines, and calls the application for every connection
    /// that changed. Returns the number of segments processed; if that is `budget`, more may be waiting.
    pub fn step<A>(&mut self, now: Ns, budget: usize, application: &mut A) -> usize
    where
        A: TcpApplication<State = T>,
    {
        self.link.now = now;
        let mut taken = 0;
        while taken < budget
            && let Some(Arrival { mut frame, end }) = self.receiver.pop()
        {
            taken += 1;
            self.counters.segments += 1;
            if let Some(frame) = frame.get_mut(..end) {
                self.segment(frame, now);
            }
        }
        while let Some(place) = self.deadlines.pop_expired(now) {
            if let Some(Some(connection)) = self.connections.get_mut(place as usize) {
                connection.armed = NEVER;
            }
            self.schedule(place);
        }
        self.collect(application);
        loop {
            let mut changed = std::mem::take(&mut self.changed);
            for place in changed.drain(..) {
                self.process(place, now, application);
            }
            self.changed = changed;
            application.submit();
            // Operations that completed at once, such as reads from memory, are answered in the same step.
            self.collect(application);
            if self.changed.is_empty() {
                self.link.flush();
                return taken;
            }
        }
    }

    /// Marks the connections for which an operation of the application has completed.
    fn collect<A: TcpApplication<State = T>>(&mut self, application: &mut A) {
        application.collect(&mut |flow| {
            if let Some(place) = self.places.get(&flow).copied() {
                self.schedule(place);
            }
        });
    }

    /// When [`step`](TcpWorker::step) must be called even if no segment arrives; [`NEVER`] if there is no deadline.
    pub fn next_deadline(&self) -> Ns {
        self.deadlines.next()
    }

    /// The worker's receive buffer, to wait on.
    pub fn segments(&self) -> Segments {
        Segments(Arc::clone(&self.receiver))
    }

    /// Number of connections, including half-open ones and those in TIME-WAIT.
    pub fn connections(&self) -> usize {
        self.places.len()
    }

    /// Number of connections whose handshake has not ended, begun by peers or here.
    pub fn half_open(&self) -> usize {
        self.half_open.len() + self.initiated.len()
    }

    /// The worker's counters.
    pub fn counters(&self) -> TcpCounters {
        TcpCounters { sent: self.link.sent, send_failures: self.link.refused, ..self.counters }
    }

    /// Presents one segment to its connection, or to none.
    fn segment(&mut self, frame: &mut [u8], now: Ns) {
        let Some(segment) = Segment::read(frame) else { return };
        let peer = segment.flow.peer.ip();
        if segment.syn && peer.is_ipv6() && !self.stack.addresses().on_link(peer) {
            clamp_segments(frame, segment.tcp, OFF_LINK_MSS);
        }
        // For now the frame's own source, for the RST to an unknown segment; a RST never needs fragmentation.
        (self.link.mac, self.link.off_link_ipv4) = (segment.mac, false);
        self.link.napi_id = self.receiver.incoming_napi_id();
        let known = self.places.get(&segment.flow).copied();
        let listened = segment.opens && self.listens(segment.flow);
        let over = |it: &Connection<T>| it.phase == Phase::TimeWait;
        let place = match known {
            // A new connection from the same port as one in TIME-WAIT (RFC 1122, 4.2.2.13).
            Some(place) if listened && self.at(place).is_some_and(over) => {
                self.remove(place);
                self.accept(segment.flow, now)
            }
            None if listened => self.accept(segment.flow, now),
            None => {
                self.counters.unknown += 1;
                None
            }
            known => known,
        };
        let packet = &frame[segment.ip..];
        let at = instant(now);
        match place {
            Some(place) => {
                let Some(Some(connection)) = self.connections.get_mut(place as usize) else {
                    return;
                };
                if segment.opens && connection.phase == Phase::HalfOpen {
                    connection.mac = segment.mac;
                    let (flow, own) = (segment.flow, self.stack.addresses());
                    self.interface = self.interfaces.make(flow, own, &mut self.link);
                }
                connection.napi_id = self.link.napi_id;
                (self.link.mac, self.link.off_link_ipv4) =
                    (connection.mac, connection.off_link_ipv4);
                let before = (segment.mac != connection.mac).then(|| connection.progress());
                let sockets = &mut connection.sockets;
                self.interface.poll_ingress_single(at, &mut self.link.with(packet), sockets);
                if let Some(before) = before {
                    connection.confirm_source(segment.mac, before);
                }
                self.schedule(place);
            }
            // The limit is reached. No RST, so that the peer retransmits its SYN.
            None if listened => {}
            None => {
                let link = &mut self.link.with(packet);
                self.interface.poll_ingress_single(at, link, &mut self.no_sockets);
            }
        }
    }

    fn listens(&self, flow: Flow) -> bool {
        self.ports.contains(&flow.local.port())
    }

    fn at(&self, place: u32) -> Option<&Connection<T>> {
        self.connections.get(place as usize)?.as_ref()
    }

    /// Creates a listening connection for a SYN. At the limit of half-open connections, the oldest one of a peer is
    /// evicted, so that a flood evicts its own. At the limit of all connections, it is evicted only if it is late,
    /// or else each SYN would evict the one before it.
    fn accept(&mut self, flow: Flow, now: Ns) -> Option<u32> {
        let full = self.places.len() >= self.limits.connections && self.time_wait.is_empty();
        let late = |place| self.at(place).is_some_and(|it| it.is_late(&self.limits, now));
        if let Some((_, oldest)) = self.half_open.first().copied()
            && (self.half_open.len() >= self.limits.half_open || full && late(oldest))
        {
            self.counters.evicted += 1;
            self.remove(oldest);
        }
        let Some(place) = self.admit(flow) else {
            self.counters.refused += 1;
            return None;
        };
        self.half_open.insert((self.serial, place));
        if let Some(connection) = self.connections[place as usize].as_mut() {
            // Cannot fail: the socket is new and the port is not 0.
            let _ = connection.socket().listen(flow.local);
        }
        Some(place)
    }

    /// Creates a connection, evicting the oldest one in TIME-WAIT if necessary; the caller records it as half-open.
    fn admit(&mut self, flow: Flow) -> Option<u32> {
        if self.places.len() >= self.limits.connections {
            let (_, oldest) = self.time_wait.first().copied()?;
            self.remove(oldest);
        }
        let place = self.free.pop().unwrap_or_else(|| {
            self.connections.push(None);
            self.connections.len() as u32 - 1
        });
        self.serial += 1;
        let mut connection = Connection::new(flow, &self.limits);
        connection.serial = self.serial;
        let peer = flow.peer.ip();
        connection.off_link_ipv4 = peer.is_ipv4() && !self.stack.addresses().on_link(peer);
        self.connections[place as usize] = Some(connection);
        self.places.insert(flow, place);
        Some(place)
    }

    /// Schedules a connection for processing before the step ends.
    fn schedule(&mut self, place: u32) {
        if let Some(Some(connection)) = self.connections.get_mut(place as usize)
            && !std::mem::replace(&mut connection.listed, true)
        {
            self.changed.push(place);
        }
    }

    /// Processes a changed connection: calls the application, sends, and sets its next deadline.
    fn process<A>(&mut self, place: u32, now: Ns, application: &mut A)
    where
        A: TcpApplication<State = T>,
    {
        // Removed meanwhile, or its place was given to another connection, which is on the list itself.
        let Some(Some(connection)) = self.connections.get_mut(place as usize) else { return };
        if !std::mem::replace(&mut connection.listed, false) {
            return;
        }
        if connection.phase == Phase::HalfOpen {
            if connection.handshake_ends == NEVER {
                connection.handshake_ends = now.saturating_add(self.limits.handshake);
            }
            match connection.socket().state() {
                // The segment was not a valid SYN, or a RST followed it.
                State::Listen => return self.remove(place),
                // No RST: the peer would take it for a closed port, and it may be about to retransmit.
                State::SynSent | State::SynReceived if now >= connection.handshake_ends => {
                    return self.remove(place);
                }
                State::SynSent | State::SynReceived | State::Closed => {}
                _ => {
                    self.half_open.remove(&(connection.serial, place));
                    self.initiated.remove(&(connection.serial, place));
                    connection.established(&self.limits);
                    connection.state = Some(application.opened(connection.flow));
                    self.counters.opened += 1;
                }
            }
        }
        connection.ready(application, now);
        (self.link.mac, self.link.napi_id) = (connection.mac, connection.napi_id);
        self.link.off_link_ipv4 = connection.off_link_ipv4;
        let at = instant(now);
        // Bounds the segments sent per call: in FIN-WAIT-2 there is only an acknowledgement and a window update, in
        // other states what fits the send buffer. A peer that acknowledges everything with a window of zero leaves
        // a smoltcp timer behind that is always due.
        let most = match connection.socket().state() {
            State::FinWait2 => 4,
            _ => self.limits.send_buffer / 16 + 64,
        };
        let mut total = 0;
        let sockets = &mut connection.sockets;
        let next = loop {
            let sent = self.interface.poll_egress(at, &mut self.link.idle(), sockets);
            let next = self.interface.poll_at(at, sockets);
            // smoltcp tells whether more is due, which saves an empty poll for most connections.
            if sent != PollResult::SocketStateChanged || next.is_none_or(|next| next > at) {
                break next;
            }
            total += 1;
            if total > most {
                connection.socket().abort();
                self.interface.poll_egress(at, &mut self.link.idle(), &mut connection.sockets);
                break None;
            }
        };
        // Closed by the segment sent, or by a timeout that smoltcp detected while sending.
        match connection.socket().state() {
            State::Closed => {
                connection.notify_closed(application, now);
                return self.remove(place);
            }
            State::TimeWait if connection.phase == Phase::Open => {
                connection.notify_closed(application, now);
                connection.phase = Phase::TimeWait;
                self.time_wait.insert((connection.serial, place));
            }
            _ => {}
        }
        if let Some(next) = next {
            let next = u64::try_from(next.total_micros()).unwrap_or(0).saturating_mul(1_000);
            let next = match connection.phase {
                Phase::HalfOpen => next.min(connection.handshake_ends),
                Phase::Open | Phase::TimeWait => next,
            };
            self.deadlines.set_at_most(next.max(now + 1), place, &mut connection.armed);
        }
    }

    fn remove(&mut self, place: u32) {
        let Some(slot) = self.connections.get_mut(place as usize) else { return };
        let Some(mut connection) = slot.take() else { return };
        self.deadlines.cancel(place, &mut connection.armed);
        self.half_open.remove(&(connection.serial, place));
        self.initiated.remove(&(connection.serial, place));
        self.time_wait.remove(&(connection.serial, place));
        self.places.remove(&connection.flow);
        self.free.push(place);
    }
}

/// The receive buffer of a [`TcpWorker`], to wait on.
#[derive(Debug, Clone)]
pub struct Segments(Arc<Receiver>);

impl Socket for Segments {
    fn receiver(&self) -> &Arc<Receiver> {
        &self.0
    }
}

/// Converts to smoltcp's time, which has a resolution of microseconds.
fn instant(now: Ns) -> Instant {
    Instant::from_micros(i64::try_from(now / 1_000).unwrap_or(i64::MAX))
}

impl<T> fmt::Debug for TcpWorker<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("TcpWorker")
            .field("ports", &self.ports)
            .field("connections", &self.places.len())
            .finish_non_exhaustive()
    }
}

impl<T> Drop for TcpWorker<T> {
    fn drop(&mut self) {
        self.stack.close(&self.receiver);
    }
}
