//! A ring pair, as shared by the queue's owner, which polls; by senders; and by the control thread, which puts
//! rings in and takes them out as the peer connects, changes settings, and disconnects.
//!
//! Threads that move frames never wait, and a queue that is being changed looks empty ([`Gate`]). Frames that
//! arrived meanwhile are found because the control thread wakes the queue when it is done ([`Port::wake`]).

use std::io;
use std::net::Shutdown;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::{Arc, Mutex, PoisonError};

use rustix::event::{EventfdFlags, epoll, eventfd};

use super::control::Peers;
use super::gate::Gate;
use super::notifier::Notifier;
use super::packed_device::PackedDevice;
use super::packed_driver::PackedDriver;
use super::split_device::SplitDevice;
use super::split_driver::SplitDriver;
use super::tracking::Region;
use crate::counters::add;
use crate::mpsc_ring::MpscRing;
use crate::{Pool, QueueCounters};

/// A ring of either layout, on either side.
#[derive(Debug)]
pub(super) enum Kind {
    SplitDevice(SplitDevice),
    SplitDriver(SplitDriver),
    // Boxed for its size: most of it is the batch that is not published yet.
    PackedDevice(Box<PackedDevice>),
    PackedDriver(PackedDriver),
}

/// Evaluates an expression with the ring inside, whatever its kind.
macro_rules! with {
    ($ring:expr, $inner:ident => $call:expr) => {
        match &mut $ring.kind {
            Kind::SplitDevice($inner) => $call,
            Kind::SplitDriver($inner) => $call,
            Kind::PackedDevice($inner) => {
                let $inner = &mut **$inner;
                $call
            }
            Kind::PackedDriver($inner) => $call,
        }
    };
}
pub(super) use with;

impl Kind {
    /// Records in-flight chains from now on ([`PackedDevice::track`]); `false` if that is impossible.
    pub(super) fn track(&mut self, region: Region, recover: bool) -> bool {
        match self {
            Kind::SplitDevice(ring) => ring.track(region, recover),
            Kind::PackedDevice(ring) => ring.track(region, recover),
            Kind::SplitDriver(_) | Kind::PackedDriver(_) => false,
        }
    }

    /// The base at which another device would continue.
    pub(super) fn base(&self) -> u16 {
        match self {
            Kind::SplitDevice(ring) => ring.base(),
            Kind::PackedDevice(ring) => ring.base(),
            Kind::SplitDriver(ring) => ring.base(),
            Kind::PackedDriver(ring) => ring.base(),
        }
    }

    /// Whether the ring is invalid, and no longer used.
    pub(super) fn is_broken(&self) -> bool {
        match self {
            Kind::SplitDevice(ring) => ring.is_broken(),
            Kind::PackedDevice(ring) => ring.is_broken(),
            Kind::SplitDriver(ring) => ring.is_broken(),
            Kind::PackedDriver(ring) => ring.is_broken(),
        }
    }
}

/// A ring in use, and the means to notify its peer, if it gave one.
#[derive(Debug)]
pub(super) struct Ring {
    pub(super) kind: Kind,
    pub(super) notify: Option<Arc<Notifier>>,
    pub(super) sending: Sending,
}

/// State of a ring that its senders update.
#[derive(Debug, Default)]
pub(super) struct Sending {
    /// Whether frames wait for room, of which the peer is to notify us.
    pub(super) awaits_room: bool,
    /// Where to report a broken ring, and the index of its pair; taken, since it is reported once.
    report_to: Option<(Arc<Peers>, usize)>,
    /// The connection to the backend that serves this ring, if we drive it.
    backend: Option<Arc<Backend>>,
}

impl Sending {
    /// Handles a frame that found the ring broken.
    #[cold]
    pub(super) fn report_broken(&mut self) {
        let Some((peers, pair)) = self.report_to.take() else { return };
        let why = |until: &str| {
            format!(
                "queue {pair}: the peer's ring to send to holds what cannot be in one; nothing is sent there {until}"
            )
        };
        if let Some(until) = self.give_up(why) {
            peers.refuse(why(until));
        }
    }

    /// Gives up a broken ring, and returns until when, for a report. A peer that drives the ring sets it up again
    /// some time. A ring that we drive is replaced only with the next connection, so the current one is ended,
    /// which wakes the control thread; that thread then reports, since it knows whether the last connection ended
    /// for the same reason.
    #[cold]
    pub(super) fn give_up(&self, why: impl FnOnce(&str) -> String) -> Option<&'static str> {
        let Some(backend) = &self.backend else { return Some("until the peer sets it up anew") };
        backend.end(|| why("until there is another connection, for which this one is ended"));
        None
    }
}

/// The connection to a backend that serves our rings, and why it was ended, if one of them was broken.
#[derive(Debug)]
pub(super) struct Backend {
    pub(super) socket: UnixStream,
    broken: Mutex<Option<String>>,
}

impl Backend {
    pub(super) fn new(socket: UnixStream) -> Backend {
        Backend { socket, broken: Mutex::default() }
    }

    /// Ends the connection, if it has not been ended.
    fn end(&self, why: impl FnOnce() -> String) {
        let mut broken = self.broken.lock().unwrap_or_else(PoisonError::into_inner);
        if broken.is_none() {
            *broken = Some(why());
            let _ = self.socket.shutdown(Shutdown::Both);
        }
    }

    /// Why this side ended it, in a sentence. For the thread that has taken its rings out of use.
    pub(super) fn broken(&self) -> Option<String> {
        self.broken.lock().unwrap_or_else(PoisonError::into_inner).take()
    }
}

impl Ring {
    pub(super) fn new(kind: Kind, notify: Option<Arc<Notifier>>) -> Ring {
        Ring { kind, notify, sending: Sending::default() }
    }

    /// Sets where to report if a sender finds the ring broken, and the index of its pair.
    pub(super) fn reporting_to(mut self, peers: &Arc<Peers>, pair: usize) -> Ring {
        self.sending.report_to = Some((Arc::clone(peers), pair));
        self
    }

    /// Marks the ring as driven by us and served over `backend`.
    pub(super) fn served_over(mut self, backend: &Arc<Backend>) -> Ring {
        self.sending.backend = Some(Arc::clone(backend));
        self
    }

    /// Notifies the peer.
    pub(super) fn notify(&self) {
        if let Some(notify) = &self.notify {
            notify.notify();
        }
    }
}

/// A ring pair, one to receive from and one to send to.
#[derive(Debug)]
pub(super) struct Port {
    pub(super) incoming: Gate<Ring>,
    pub(super) outgoing: Gate<Ring>,
    /// Frames of senders that found another one at the ring, in order; those that then find the ring full stay
    /// until there is room.
    pub(super) waiting: MpscRing,
    /// How often a driver has stopped the ring to send to: frames left for one driver are not for the next.
    stops: AtomicU64,
    pub(super) pool: Pool,
    pub(super) counters: Arc<QueueCounters>,
    /// Readable when the peer or the control thread notifies; see [`Port::clear_interrupt`].
    interrupt: OwnedFd,
    wake: OwnedFd,
}

/// The most frames that wait to be sent.
const WAITING: usize = 64;

impl Port {
    pub(super) fn new(pool: Pool) -> io::Result<Port> {
        let interrupt = epoll::create(epoll::CreateFlags::CLOEXEC)?;
        let wake = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?;
        let port = Port {
            incoming: Gate::default(),
            outgoing: Gate::default(),
            waiting: MpscRing::new(WAITING),
            stops: AtomicU64::new(0),
            pool,
            counters: Arc::default(),
            interrupt,
            wake,
        };
        port.watch(port.wake.as_fd())?;
        Ok(port)
    }

    /// Interrupts when `notified` becomes readable. The descriptor is never read, since it may be a peer's, and
    /// reading might block; the watch is edge-triggered, so each write to it counts.
    pub(super) fn watch(&self, notified: BorrowedFd<'_>) -> io::Result<()> {
        let flags = epoll::EventFlags::IN | epoll::EventFlags::ET;
        epoll::add(&self.interrupt, notified, epoll::EventData::new_u64(0), flags)?;
        Ok(())
    }

    pub(super) fn unwatch(&self, notified: BorrowedFd<'_>) {
        let _ = epoll::delete(&self.interrupt, notified);
    }

    pub(super) fn interrupt(&self) -> BorrowedFd<'_> {
        self.interrupt.as_fd()
    }

    /// Clears the interrupt descriptor; returns whether it was readable.
    pub(super) fn clear_interrupt(&self) -> bool {
        let mut events = [epoll::Event {
            flags: epoll::EventFlags::empty(),
            data: epoll::EventData::new_u64(0),
        }; 4];
        let at_once = rustix::time::Timespec { tv_sec: 0, tv_nsec: 0 };
        epoll::wait(&self.interrupt, &mut events[..], Some(&at_once)).is_ok_and(|n| n > 0)
    }

    /// Drops the frames that senders have left, and returns how many. For the thread at the ring to send to.
    pub(super) fn drop_waiting(&self) -> u64 {
        std::iter::from_fn(|| self.waiting.pop()).count() as u64
    }

    /// Drops the waiting frames after the driver has stopped the ring to send to, or has gone.
    pub(super) fn end_waiting(&self) {
        self.outgoing.enter(|_| {
            // A late sender may be behind one that has not inserted its frame yet: that frame is found by its number.
            self.stops.fetch_add(1, Relaxed);
            add(&self.counters.tx_dropped, self.drop_waiting());
        });
    }

    /// How often a driver has stopped the ring to send to so far.
    pub(super) fn stops(&self) -> u64 {
        self.stops.load(Relaxed)
    }

    /// Interrupts, since the rings have changed.
    pub(super) fn wake(&self) {
        let _ = rustix::io::write(&self.wake, &1u64.to_ne_bytes());
    }
}
