//! The state that all queues and sockets of one host share.
//!
//! The tables are replaced as a whole, under a mutex, when a socket opens or closes; the packet path reads them
//! without a lock. There are no threads and no clock: owners drive their queues through [`Input`](crate::Input),
//! and time is an argument.
//!
//! The stack creates the sockets and the sockets hold the stack, so this module and theirs depend on each other.

use std::hash::RandomState;
use std::net::{IpAddr, SocketAddr};
use std::sync::{Arc, Mutex, PoisonError};

use arc_swap::ArcSwap;
use napkin_nic::FRAME_CAPACITY;
use napkin_policy::Ns;

use crate::emit::{self, Addressing};
use crate::error::Resource;
use crate::neighbours::Neighbours;
use crate::queues::Queues;
use crate::receiver::CAPACITY_LIMIT;
use crate::tables::{RAW_SOCKETS, TCP_WORKERS, Tables, UDP_SOCKETS};
use crate::tcp::{TcpLimits, TcpWorker};
use crate::wire;
use crate::{
    Address, Addresses, BindError, Counters, RawFilter, RawSocket, Receiver, SendError, UdpSocket,
};

/// The first ephemeral port (RFC 6335).
pub(crate) const FIRST_EPHEMERAL_PORT: u16 = 49152;
/// Number of ephemeral ports: the most connections that one of our addresses can open to one port of a peer.
pub const EPHEMERAL_PORTS: usize = (u16::MAX - FIRST_EPHEMERAL_PORT) as usize + 1;

/// One host's addresses, sockets, neighbours and counters. A UDP or TCP port applies to all addresses.
#[derive(Debug)]
pub struct Stack {
    addresses: Addresses,
    pub(crate) tables: ArcSwap<Tables>,
    /// Slots of closed receivers, for reuse; the mutex also serialises changes of the tables.
    free_slots: Mutex<Vec<usize>>,
    pub(crate) queues: Arc<Queues>,
    pub(crate) neighbours: Neighbours,
    /// Key of the hash that distributes flows over TCP workers.
    pub(crate) flow_key: RandomState,
}

impl Stack {
    /// A stack with one or several addresses, without sockets and queues.
    pub fn new(addresses: impl Into<Addresses>) -> Arc<Stack> {
        let addresses = addresses.into();
        Arc::new(Stack {
            tables: ArcSwap::default(),
            free_slots: Mutex::default(),
            queues: Arc::default(),
            neighbours: Neighbours::new(addresses.clone()),
            addresses,
            flow_key: RandomState::new(),
        })
    }

    /// The host's own addresses.
    pub fn addresses(&self) -> &Addresses {
        &self.addresses
    }

    /// Opens a UDP socket whose receive buffer holds `capacity` frames. Port 0 selects any free ephemeral port
    /// (49152 and above).
    ///
    /// # Errors
    /// If the port is in use, the stack has [`UDP_SOCKETS`] sockets already, or the capacity is out of range.
    pub fn bind_udp(self: &Arc<Self>, port: u16, capacity: usize) -> Result<UdpSocket, BindError> {
        let (receiver, port) = self.open(capacity, |tables, receiver| {
            if tables.sockets().0 >= UDP_SOCKETS {
                return Err(BindError::TooMany { limit: UDP_SOCKETS });
            }
            let port = match port {
                0 => (FIRST_EPHEMERAL_PORT..=u16::MAX)
                    .find(|port| tables.udp(*port).is_none())
                    .ok_or(BindError::NoPortLeft)?,
                _ if tables.udp(port).is_some() => {
                    return Err(BindError::InUse(Resource::Port(port)));
                }
                _ => port,
            };
            tables.add_udp(port, receiver);
            Ok(port)
        })?;
        Ok(UdpSocket::new(Arc::clone(self), receiver, port))
    }

    /// Opens a raw socket whose receive buffer holds `capacity` frames.
    ///
    /// # Errors
    /// If another raw socket has the same filter, the stack has [`RAW_SOCKETS`] raw sockets already, or the
    /// capacity is out of range.
    pub fn open_raw(
        self: &Arc<Self>,
        filter: RawFilter,
        capacity: usize,
    ) -> Result<RawSocket, BindError> {
        let (receiver, filter) = self.open(capacity, |tables, receiver| {
            if tables.has_filter(filter) {
                return Err(BindError::InUse(Resource::Filter(filter)));
            }
            if tables.sockets().1 >= RAW_SOCKETS {
                return Err(BindError::TooMany { limit: RAW_SOCKETS });
            }
            tables.add_raw(filter, receiver);
            Ok(filter)
        })?;
        Ok(RawSocket::new(Arc::clone(self), receiver, filter))
    }

    /// Opens a TCP worker for one thread. With `queue`, a NAPI id, it receives all segments of that queue. Without,
    /// it receives its share of the flows from all queues that have no worker of their own, as sockets with
    /// `SO_REUSEPORT` do. When a worker without a queue opens or closes, flows move between such workers and their
    /// connections break: open all of them before the first one listens.
    ///
    /// # Errors
    /// If the queue has a worker already, the stack has [`TCP_WORKERS`] workers already, or the receive buffer's
    /// size is out of range.
    pub fn open_tcp<T>(
        self: &Arc<Self>,
        queue: Option<u32>,
        limits: TcpLimits,
    ) -> Result<TcpWorker<T>, BindError> {
        let (receiver, ()) = self.open(limits.segments, |tables, receiver| {
            if let Some(napi_id) = queue.filter(|_| tables.has_tcp(queue)) {
                return Err(BindError::InUse(Resource::Tcp(napi_id)));
            }
            if tables.tcp_workers() >= TCP_WORKERS {
                return Err(BindError::TooMany { limit: TCP_WORKERS });
            }
            tables.add_tcp(queue, receiver);
            Ok(())
        })?;
        Ok(TcpWorker::new(Arc::clone(self), receiver, limits))
    }

    /// Creates a receiver and calls `enter` to add it to a copy of the tables, which is then published unless
    /// `enter` refuses.
    fn open<T>(
        &self,
        capacity: usize,
        enter: impl FnOnce(&mut Tables, Arc<Receiver>) -> Result<T, BindError>,
    ) -> Result<(Arc<Receiver>, T), BindError> {
        if capacity == 0 || capacity > CAPACITY_LIMIT {
            return Err(BindError::Capacity(capacity));
        }
        let mut free = self.free_slots.lock().unwrap_or_else(PoisonError::into_inner);
        let mut next = Tables::clone(&self.tables.load());
        let slot = free.last().copied().unwrap_or(next.slots);
        let receiver = Arc::new(Receiver::new(capacity, slot, Arc::clone(&self.queues)));
        let entered = enter(&mut next, Arc::clone(&receiver))?;
        if free.pop().is_none() {
            next.slots += 1;
        }
        next.generation += 1;
        self.tables.store(Arc::new(next));
        Ok((receiver, entered))
    }

    /// Takes a receiver out of the tables and closes it.
    pub(crate) fn close(&self, receiver: &Arc<Receiver>) {
        // Must come first: a queue that sees the new tables must find the receiver closed to release it.
        receiver.refuse();
        {
            let mut free = self.free_slots.lock().unwrap_or_else(PoisonError::into_inner);
            let mut next = Tables::clone(&self.tables.load());
            next.remove(receiver);
            next.generation += 1;
            self.tables.store(Arc::new(next));
            free.push(receiver.slot());
        }
        // Called outside the lock, because it calls the listener.
        receiver.close();
    }

    /// Counts of the fates of all frames received so far.
    pub fn counters(&self) -> Counters {
        self.queues.counters()
    }

    /// The Ethernet address of a host of our networks, if ARP or neighbour discovery has provided it.
    pub fn neighbour(&self, ip: IpAddr) -> Option<[u8; 6]> {
        self.neighbours.find(ip)
    }

    /// Sends an ARP request or a neighbour solicitation for `ip`; the answer arrives through an
    /// [`Input`](crate::Input). This is the only call that does: sending a datagram to an unknown neighbour is an
    /// error, so that the application alone decides what is sent.
    ///
    /// # Errors
    /// If we have no address of that family, there is no queue, or the queue refuses the frame.
    pub fn resolve(&self, ip: IpAddr, now: Ns) -> Result<(), SendError> {
        self.neighbours.ask(ip);
        let mut frame = [0; wire::RESOLVE_FRAME];
        let length = emit::write_request(&mut frame, &self.addressing([0; 6], ip)?)?;
        self.transmit(0, &frame[..length], now)
    }

    /// The source address, destination and VLAN tag of a packet to a host.
    fn addressing(&self, mac: [u8; 6], ip: IpAddr) -> Result<Addressing, SendError> {
        let from = self.addresses.towards(ip).ok_or(SendError::NoNeighbour(ip))?;
        Ok(Addressing { from, to: Address::single(mac, ip), tag: self.addresses.vlan() })
    }

    /// Sends a datagram from one of our ports, on the queue `napi_id`.
    pub(crate) fn send_udp(
        &self,
        napi_id: u32,
        port: u16,
        payload: &[u8],
        to: SocketAddr,
        now: Ns,
    ) -> Result<(), SendError> {
        let ip = to.ip();
        let mac = match self.addresses.is_broadcast(ip) {
            true => Some([0xff; 6]),
            false => self.neighbours.find(ip),
        };
        let addressing = self.addressing(mac.ok_or(SendError::NoNeighbour(ip))?, ip)?;
        let mut frame = [0; FRAME_CAPACITY];
        emit::put(&mut frame, addressing.layout(), payload)?;
        let length = emit::write_udp(&mut frame, &addressing, (port, to.port()), payload.len())?;
        self.transmit(napi_id, &frame[..length], now)
    }

    /// Sends a whole frame on the queue `napi_id`, or on the first queue if that one is gone.
    pub(crate) fn transmit(&self, napi_id: u32, frame: &[u8], now: Ns) -> Result<(), SendError> {
        self.queues
            .with(napi_id, |queue| queue.transmitter.send(frame, now).map_err(SendError::Queue))
            .unwrap_or(Err(SendError::NoQueue))
    }

    /// Like [`transmit`](Self::transmit), for one frame of a batch: the queue may hold it back until the next
    /// [flush](Self::flush).
    pub(crate) fn post(&self, napi_id: u32, frame: &[u8], now: Ns) -> Result<(), SendError> {
        self.queues
            .with(napi_id, |queue| queue.transmitter.post(frame, now).map_err(SendError::Queue))
            .unwrap_or(Err(SendError::NoQueue))
    }

    /// Sends the frames posted on a queue.
    pub(crate) fn flush(&self, napi_id: u32) {
        self.queues.with(napi_id, |queue| queue.transmitter.flush());
    }

    /// Sends the frames posted on any queue.
    pub(crate) fn flush_all(&self) {
        self.queues.each(|queue| queue.transmitter.flush());
    }
}
