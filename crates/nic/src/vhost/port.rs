//! One pair of rings as it is shared: by the queue's owner, who polls; by senders; and by the control
//! thread, which puts rings in and takes them out as the peer comes, changes its mind, and goes.
//!
//! Who moves frames never waits, and a queue that is being changed is empty ([`Gate`]). What came meanwhile is
//! found because the control thread wakes the queue when it is done ([`Port::wake`]).

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
use crate::places::Places;
use crate::{Pool, QueueCounters};

/// A ring of either kind, from either side.
#[derive(Debug)]
pub(super) enum Kind {
    SplitDevice(SplitDevice),
    SplitDriver(SplitDriver),
    // Most of it is what it has not shown its driver yet.
    PackedDevice(Box<PackedDevice>),
    PackedDriver(PackedDriver),
}

/// Calls a function that takes any ring with the one that there is.
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
    /// Notes what is in flight from now on ([`PackedDevice::track`]); `false` if that cannot be.
    pub(super) fn track(&mut self, region: Region, recover: bool) -> bool {
        match self {
            Kind::SplitDevice(ring) => ring.track(region, recover),
            Kind::PackedDevice(ring) => ring.track(region, recover),
            Kind::SplitDriver(_) | Kind::PackedDriver(_) => false,
        }
    }

    /// Where another device would go on.
    pub(super) fn base(&self) -> u16 {
        match self {
            Kind::SplitDevice(ring) => ring.base(),
            Kind::PackedDevice(ring) => ring.base(),
            Kind::SplitDriver(ring) => ring.base(),
            Kind::PackedDriver(ring) => ring.base(),
        }
    }

    /// Whether it makes no sense, and is not looked at any more.
    pub(super) fn is_broken(&self) -> bool {
        match self {
            Kind::SplitDevice(ring) => ring.is_broken(),
            Kind::PackedDevice(ring) => ring.is_broken(),
            Kind::SplitDriver(ring) => ring.is_broken(),
            Kind::PackedDriver(ring) => ring.is_broken(),
        }
    }
}

/// A ring in use, and where its peer is notified, if it wants to be at all.
#[derive(Debug)]
pub(super) struct Ring {
    pub(super) kind: Kind,
    pub(super) notify: Option<Arc<Notifier>>,
    pub(super) sending: Sending,
}

/// What its senders note of a ring.
#[derive(Debug, Default)]
pub(super) struct Sending {
    /// Frames wait for room, and the peer is to notify us of it.
    pub(super) awaits_room: bool,
    /// Who is told if the ring makes no sense, and of which pair it is: taken, for it is told once.
    tell: Option<(Arc<Peers>, usize)>,
    /// The connection to the one who serves a ring of ours.
    backend: Option<Arc<Backend>>,
}

impl Sending {
    /// A frame found that the ring makes no sense.
    #[cold]
    pub(super) fn broken(&mut self) {
        let Some((peers, pair)) = self.tell.take() else { return };
        let why = |until: &str| {
            format!(
                "queue {pair}: the peer's ring to send to holds what cannot be in one; nothing is sent there {until}"
            )
        };
        if let Some(until) = self.give_up(why) {
            peers.refuse(why(until));
        }
    }

    /// The ring makes no sense: until when that is so, to be told. A peer that drives one sets it up anew some time; of
    /// our own there is another with the next connection alone, so this one is ended, which wakes the control
    /// thread. It tells then, for it knows whether that was so the last time, too.
    #[cold]
    pub(super) fn give_up(&self, why: impl FnOnce(&str) -> String) -> Option<&'static str> {
        let Some(backend) = &self.backend else { return Some("until the peer sets it up anew") };
        backend.end(|| why("until there is another connection, for which this one is ended"));
        None
    }
}

/// The connection to a backend that serves rings of ours, and why it was ended if one of them made no sense.
#[derive(Debug)]
pub(super) struct Backend {
    pub(super) socket: UnixStream,
    broken: Mutex<Option<String>>,
}

impl Backend {
    pub(super) fn new(socket: UnixStream) -> Backend {
        Backend { socket, broken: Mutex::default() }
    }

    /// Ends it, if nobody has.
    fn end(&self, why: impl FnOnce() -> String) {
        let mut broken = self.broken.lock().unwrap_or_else(PoisonError::into_inner);
        if broken.is_none() {
            *broken = Some(why());
            let _ = self.socket.shutdown(Shutdown::Both);
        }
    }

    /// Why it was ended from here, in a sentence. For who has taken its rings out of use.
    pub(super) fn broken(&self) -> Option<String> {
        self.broken.lock().unwrap_or_else(PoisonError::into_inner).take()
    }
}

impl Ring {
    pub(super) fn new(kind: Kind, notify: Option<Arc<Notifier>>) -> Ring {
        Ring { kind, notify, sending: Sending::default() }
    }

    /// Who is told if a sender finds that it makes no sense, and of which pair it is.
    pub(super) fn telling(mut self, peers: &Arc<Peers>, pair: usize) -> Ring {
        self.sending.tell = Some((Arc::clone(peers), pair));
        self
    }

    /// Of our own, and served over this connection.
    pub(super) fn over(mut self, backend: &Arc<Backend>) -> Ring {
        self.sending.backend = Some(Arc::clone(backend));
        self
    }

    /// Notifies the peer.
    pub(super) fn ring(&self) {
        if let Some(notify) = &self.notify {
            notify.notify();
        }
    }
}

/// A pair of rings, one to receive from and one to send to.
#[derive(Debug)]
pub(super) struct Port {
    pub(super) incoming: Gate<Ring>,
    pub(super) outgoing: Gate<Ring>,
    /// Frames of senders that found another one at the ring, in their order; those that then find it full stay
    /// until there is room.
    pub(super) waiting: Places,
    /// How often a driver has stopped the ring to send to: what was left for one is not for the next.
    stops: AtomicU64,
    pub(super) pool: Pool,
    pub(super) counters: Arc<QueueCounters>,
    /// Readable when the peer notifies, or the control thread does; see [`Port::quiet`].
    interrupt: OwnedFd,
    wake: OwnedFd,
}

/// Frames that may wait for a sender at a time.
const WAITING: usize = 64;

impl Port {
    pub(super) fn new(pool: Pool) -> io::Result<Port> {
        let interrupt = epoll::create(epoll::CreateFlags::CLOEXEC)?;
        let wake = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?;
        let port = Port {
            incoming: Gate::default(),
            outgoing: Gate::default(),
            waiting: Places::new(WAITING),
            stops: AtomicU64::new(0),
            pool,
            counters: Arc::default(),
            interrupt,
            wake,
        };
        port.watch(port.wake.as_fd())?;
        Ok(port)
    }

    /// Interrupts when this descriptor becomes readable. It is never read: it may be a peer's, and reading
    /// might wait; each time that it is written to counts.
    pub(super) fn watch(&self, notified: BorrowedFd<'_>) -> io::Result<()> {
        let flags = epoll::EventFlags::IN | epoll::EventFlags::ET;
        epoll::add(&self.interrupt, notified, epoll::EventData::new_u64(0), flags)?;
        Ok(())
    }

    pub(super) fn forget(&self, notified: BorrowedFd<'_>) {
        let _ = epoll::delete(&self.interrupt, notified);
    }

    pub(super) fn interrupt(&self) -> BorrowedFd<'_> {
        self.interrupt.as_fd()
    }

    /// Makes the descriptor unreadable; whether it was readable.
    pub(super) fn quiet(&self) -> bool {
        let mut events = [epoll::Event {
            flags: epoll::EventFlags::empty(),
            data: epoll::EventData::new_u64(0),
        }; 4];
        let at_once = rustix::time::Timespec { tv_sec: 0, tv_nsec: 0 };
        epoll::wait(&self.interrupt, &mut events[..], Some(&at_once)).is_ok_and(|n| n > 0)
    }

    /// Drops what senders have left, and says how much it was. For who is at the ring to send to.
    pub(super) fn drop_waiting(&self) -> u64 {
        std::iter::from_fn(|| self.waiting.pop()).count() as u64
    }

    /// The driver has stopped the ring to send to, or has gone: what waits for room there is not for the next one.
    pub(super) fn end_waiting(&self) {
        self.outgoing.enter(|_| {
            // A sender that was late is behind one that has not put its frame in yet: that is found by its number.
            self.stops.fetch_add(1, Relaxed);
            add(&self.counters.tx_dropped, self.drop_waiting());
        });
    }

    /// The number of drivers before the one that is there.
    pub(super) fn stops(&self) -> u64 {
        self.stops.load(Relaxed)
    }

    /// Interrupts: something has changed, and is to be looked at.
    pub(super) fn wake(&self) {
        let _ = rustix::io::write(&self.wake, &1u64.to_ne_bytes());
    }
}
