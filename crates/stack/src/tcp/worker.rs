//! One thread's TCP: segments in, streams to the application, segments out.

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

/// The longest segment to an IPv6 peer beyond our networks: what every path carries (RFC 8200, 5), less
/// the headers of IPv6 and TCP.
const BEYOND_THE_LINK: u16 = 1_280 - 40 - 20;

/// One thread's TCP. See the [module](crate::tcp).
pub struct TcpWorker<T> {
    stack: Arc<Stack>,
    receiver: Arc<Receiver>,
    limits: TcpLimits,
    /// That of the connection that began last; it knows nothing of any.
    interface: Interface,
    interfaces: Interfaces,
    link: Link,
    /// Nobody's segments are presented with this, so that smoltcp answers them with a RST.
    nobody: SocketSet<'static>,
    ports: Vec<u16>,
    /// From where on a free port is looked for.
    next_port: u16,
    connections: Vec<Option<Connection<T>>>,
    free: Vec<u32>,
    places: HashMap<Flow, u32, RandomState>,
    /// Those that are half-open, begun by peers and begun here, and those in TIME-WAIT, the oldest first.
    half_open: BTreeSet<(u64, u32)>,
    begun: BTreeSet<(u64, u32)>,
    time_wait: BTreeSet<(u64, u32)>,
    /// Numbers connections in all three.
    serial: u64,
    deadlines: Deadlines,
    /// Connections to be looked at before this step ends.
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
            nobody: SocketSet::new(Vec::new()),
            ports: Vec::new(),
            next_port: FIRST_EPHEMERAL_PORT,
            connections: Vec::new(),
            free: Vec::new(),
            places: HashMap::default(),
            half_open: BTreeSet::new(),
            begun: BTreeSet::new(),
            time_wait: BTreeSet::new(),
            serial: 0,
            deadlines: Deadlines::default(),
            changed: Vec::new(),
            counters: TcpCounters::default(),
        }
    }

    /// Accepts connections to a port.
    ///
    /// # Errors
    /// If it does so already, or the port is 0.
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

    /// Where the ports of connections begun here come from next: this one on, of the ephemeral ones (49152
    /// and above). Without, from the first: the same run has the same ports, and so spreads over queues in
    /// the same way. A host that comes again and again to the same server takes another each time, since
    /// the server may still have what an earlier one left.
    pub fn begin_ports_at(&mut self, port: u16) {
        self.next_port = port.max(FIRST_EPHEMERAL_PORT);
    }

    /// Begins a connection to a peer whose Ethernet address is known; the application hears of it when
    /// it is open. Call [`step`](TcpWorker::step) soon: it sends the SYN.
    ///
    /// Of one that fails (refused, or [`TcpLimits::handshake`] over) it does not hear: it is gone, and
    /// [`connections`](TcpWorker::connections) counts it no more.
    ///
    /// # Errors
    /// If no address is known, no port is left, or there are connections up to a limit: only one in
    /// TIME-WAIT gives way.
    pub fn connect(&mut self, peer: SocketAddr, napi_id: u32) -> Result<Flow, ListenError> {
        let ip = peer.ip();
        let mac = self.stack.neighbour(ip).ok_or(ListenError::NoNeighbour(ip))?;
        let ours = self.stack.addresses().towards(ip).ok_or(ListenError::NoNeighbour(ip))?;
        // Without what IPv6 may have beside them.
        let peer = SocketAddr::new(ip, peer.port());
        let flow = |port: u16| Flow { local: SocketAddr::new(ours.ip, port), peer };
        let free = |port: &u16| !self.places.contains_key(&flow(*port));
        let ports = (self.next_port..=u16::MAX).chain(FIRST_EPHEMERAL_PORT..self.next_port);
        let port = { ports }.find(free).ok_or(ListenError::NoPortLeft(peer))?;
        let flow = flow(port);
        if self.begun.len() >= self.limits.half_open {
            return Err(ListenError::TooMany(self.limits.half_open));
        }
        let place = self.admit(flow).ok_or(ListenError::TooMany(self.limits.connections))?;
        self.begun.insert((self.serial, place));
        if let Some(connection) = self.connections[place as usize].as_mut() {
            (connection.mac, connection.napi_id) = (mac, napi_id);
            self.interface = self.interfaces.make(flow, self.stack.addresses(), &mut self.link);
            // Nothing that it refuses can be: the socket is new and both ends are specified.
            let _ = connection.socket().connect(self.interface.context(), peer, flow.local);
        }
        self.next_port = port.checked_add(1).unwrap_or(FIRST_EPHEMERAL_PORT);
        self.mark(place);
        Ok(flow)
    }

    /// Has the application called for a connection in the next [`step`](TcpWorker::step), whether or not
    /// anything has come: there is something to send. Of one that is gone nothing happens.
    pub fn wake(&mut self, flow: Flow) {
        if let Some(place) = self.places.get(&flow) {
            self.mark(*place);
        }
    }

    /// Takes up to `budget` segments, carries out what is due, and tells the application of every
    /// connection that changed. Returns how many segments it took; `budget` itself means that more may
    /// wait.
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
        while let Some(place) = self.deadlines.due(now) {
            if let Some(Some(connection)) = self.connections.get_mut(place as usize) {
                connection.armed = NEVER;
            }
            self.mark(place);
        }
        self.collect(application);
        loop {
            let mut changed = std::mem::take(&mut self.changed);
            for place in changed.drain(..) {
                self.look(place, now, application);
            }
            self.changed = changed;
            application.submit();
            // What was done at once, such as a read of what is in memory, is answered at once.
            self.collect(application);
            if self.changed.is_empty() {
                self.link.flush();
                return taken;
            }
        }
    }

    /// Notes the connections for which something has ended.
    fn collect<A: TcpApplication<State = T>>(&mut self, application: &mut A) {
        application.collect(&mut |flow| {
            if let Some(place) = self.places.get(&flow).copied() {
                self.mark(place);
            }
        });
    }

    /// When [`step`](TcpWorker::step) is to be called even if no segment comes; [`NEVER`] if at no time.
    pub fn next_deadline(&self) -> Ns {
        self.deadlines.next()
    }

    /// Its segments, to wait for.
    pub fn segments(&self) -> Segments {
        Segments(Arc::clone(&self.receiver))
    }

    /// Connections there are, half-open ones and those in TIME-WAIT included.
    pub fn connections(&self) -> usize {
        self.places.len()
    }

    /// Connections whose handshake has not ended, begun by peers or here.
    pub fn half_open(&self) -> usize {
        self.half_open.len() + self.begun.len()
    }

    /// What it has counted.
    pub fn counters(&self) -> TcpCounters {
        TcpCounters { sent: self.link.sent, send_failures: self.link.refused, ..self.counters }
    }

    /// Presents one segment to whom it is for.
    fn segment(&mut self, frame: &mut [u8], now: Ns) {
        let Some(segment) = Segment::read(frame) else { return };
        let peer = segment.flow.peer.ip();
        if segment.syn && peer.is_ipv6() && !self.stack.addresses().on_link(peer) {
            clamp_segments(frame, segment.tcp, BEYOND_THE_LINK);
        }
        // A RST is never too long.
        (self.link.mac, self.link.beyond) = (segment.mac, false);
        self.link.napi_id = self.receiver.incoming_napi_id();
        let known = self.places.get(&segment.flow).copied();
        let listened = segment.opens && self.listens(segment.flow);
        let over = |it: &Connection<T>| it.phase == Phase::TimeWait;
        let place = match known {
            // A new connection from the port of one that is over (RFC 1122, 4.2.2.13).
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
                    let (flow, ours) = (segment.flow, self.stack.addresses());
                    self.interface = self.interfaces.make(flow, ours, &mut self.link);
                }
                connection.napi_id = self.link.napi_id;
                (self.link.mac, self.link.beyond) = (connection.mac, connection.beyond);
                let before = (segment.mac != connection.mac).then(|| connection.progress());
                let sockets = &mut connection.sockets;
                self.interface.poll_ingress_single(at, &mut self.link.with(packet), sockets);
                if let Some(before) = before {
                    connection.came_from(segment.mac, before);
                }
                self.mark(place);
            }
            // There was no place for it, and no RST either: the peer asks again.
            None if listened => {}
            None => {
                let link = &mut self.link.with(packet);
                self.interface.poll_ingress_single(at, link, &mut self.nobody);
            }
        }
    }

    fn listens(&self, flow: Flow) -> bool {
        self.ports.contains(&flow.local.port())
    }

    fn at(&self, place: u32) -> Option<&Connection<T>> {
        self.connections.get(place as usize)?.as_ref()
    }

    /// Makes a connection that listens for its first segment. Where there is no room the oldest half-open
    /// one that a peer has begun gives way: a flood pushes out itself. Of a full server only a late one
    /// does: each SYN would push out the one before it.
    fn accept(&mut self, flow: Flow, now: Ns) -> Option<u32> {
        let full = self.places.len() >= self.limits.connections && self.time_wait.is_empty();
        let late = |place| self.at(place).is_some_and(|it| it.is_late(&self.limits, now));
        if let Some((_, oldest)) = self.half_open.first().copied()
            && (self.half_open.len() >= self.limits.half_open || full && late(oldest))
        {
            self.counters.pushed_out += 1;
            self.remove(oldest);
        }
        let Some(place) = self.admit(flow) else {
            self.counters.refused += 1;
            return None;
        };
        self.half_open.insert((self.serial, place));
        if let Some(connection) = self.connections[place as usize].as_mut() {
            // The socket is new and the port not 0.
            let _ = connection.socket().listen(flow.local);
        }
        Some(place)
    }

    /// Finds a place for a connection, perhaps of the oldest in TIME-WAIT; the caller notes it as half-open.
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
        connection.beyond = peer.is_ipv4() && !self.stack.addresses().on_link(peer);
        self.connections[place as usize] = Some(connection);
        self.places.insert(flow, place);
        Some(place)
    }

    /// Has a connection looked at before the step ends.
    fn mark(&mut self, place: u32) {
        if let Some(Some(connection)) = self.connections.get_mut(place as usize)
            && !std::mem::replace(&mut connection.listed, true)
        {
            self.changed.push(place);
        }
    }

    /// Looks at a connection that changed: tells the application, sends, and notes when to look again.
    fn look<A>(&mut self, place: u32, now: Ns, application: &mut A)
    where
        A: TcpApplication<State = T>,
    {
        // Gone meanwhile, or its place was given to another that is on the list itself.
        let Some(Some(connection)) = self.connections.get_mut(place as usize) else { return };
        if !std::mem::replace(&mut connection.listed, false) {
            return;
        }
        if connection.phase == Phase::HalfOpen {
            if connection.handshake_ends == NEVER {
                connection.handshake_ends = now.saturating_add(self.limits.handshake);
            }
            match connection.socket().state() {
                // What was no SYN after all, or was taken back.
                State::Listen => return self.remove(place),
                // Without a RST: to the peer it would say that nobody listens, and it may be about to
                // ask again.
                State::SynSent | State::SynReceived if now >= connection.handshake_ends => {
                    return self.remove(place);
                }
                State::SynSent | State::SynReceived | State::Closed => {}
                _ => {
                    self.half_open.remove(&(connection.serial, place));
                    self.begun.remove(&(connection.serial, place));
                    connection.established(&self.limits);
                    connection.state = Some(application.opened(connection.flow));
                    self.counters.opened += 1;
                }
            }
        }
        connection.ready(application, now);
        (self.link.mac, self.link.napi_id) = (connection.mac, connection.napi_id);
        self.link.beyond = connection.beyond;
        let at = instant(now);
        // All that there is to say in FIN-WAIT-2 is an acknowledgement and a window; anywhere, what fits the buffer. A peer
        // who acknowledges everything with a window of zero leaves a timer behind that is due for ever.
        let most = match connection.socket().state() {
            State::FinWait2 => 4,
            _ => self.limits.send_buffer / 16 + 64,
        };
        let mut said = 0;
        let sockets = &mut connection.sockets;
        let next = loop {
            let sent = self.interface.poll_egress(at, &mut self.link.idle(), sockets);
            let next = self.interface.poll_at(at, sockets);
            // It says whether there is more, so that most need not look for it in vain.
            if sent != PollResult::SocketStateChanged || next.is_none_or(|next| next > at) {
                break next;
            }
            said += 1;
            if said > most {
                connection.socket().abort();
                self.interface.poll_egress(at, &mut self.link.idle(), &mut connection.sockets);
                break None;
            }
        };
        // Perhaps closed by what was sent, or by a timeout that was found while sending.
        match connection.socket().state() {
            State::Closed => {
                connection.last_call(application, now);
                return self.remove(place);
            }
            State::TimeWait if connection.phase == Phase::Open => {
                connection.last_call(application, now);
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
            self.deadlines.by(next.max(now + 1), place, &mut connection.armed);
        }
    }

    fn remove(&mut self, place: u32) {
        let Some(slot) = self.connections.get_mut(place as usize) else { return };
        let Some(mut connection) = slot.take() else { return };
        self.deadlines.cancel(place, &mut connection.armed);
        self.half_open.remove(&(connection.serial, place));
        self.begun.remove(&(connection.serial, place));
        self.time_wait.remove(&(connection.serial, place));
        self.places.remove(&connection.flow);
        self.free.push(place);
    }
}

/// The segments of a [`TcpWorker`], as whoever waits for them sees them.
#[derive(Debug, Clone)]
pub struct Segments(Arc<Receiver>);

impl Socket for Segments {
    fn receiver(&self) -> &Arc<Receiver> {
        &self.0
    }
}

/// smoltcp counts microseconds.
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
