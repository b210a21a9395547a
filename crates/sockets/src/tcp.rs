//! One thread's share of a TCP port: accepts connections, waits, and notifies the application.

use std::collections::{HashMap, VecDeque};
use std::fmt;
use std::io;
use std::net::SocketAddr;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::time::Duration;

use napkin_policy::{MILLISECOND, Ns};
use napkin_stack::{Flow, TcpApplication};
use rustix::event::epoll::EventFlags;
use rustix::io::Errno;
use rustix::net::{
    SocketFlags, SocketType, acceptfrom_with, bind, getsockname, listen, socket_with, sockopt,
};
use slab::Slab;

use crate::Waker;
use crate::connection::{Connection, Directions};
use crate::epoll::Epoll;
use crate::port::family;

/// The maximum number of connections accepted per step.
const ACCEPTS_PER_STEP: usize = 64;
/// The listen backlog; the kernel limits it to `net.core.somaxconn`.
const BACKLOG: i32 = 4_096;
/// The maximum number of bytes per receive call.
const SCRATCH: usize = 64 * 1_024;
/// The time in which a peer has to close its side after we closed ours. What the kernel has not sent by then is
/// lost. Longer than the 60 s after which a service ends an idle connection itself.
const LINGER: Ns = 70_000 * MILLISECOND;
/// The idle time before a keepalive probe, as in the stack's own TCP.
const KEEP_ALIVE: Duration = Duration::from_secs(60);
/// The time in ms for which a peer may leave probes or sent bytes unanswered, as in the stack's own TCP.
const PEER_TIMEOUT_MS: u32 = 120_000;
/// The number of outdated deadlines, besides two per connection, at which they are removed.
const MAX_OUTDATED: usize = 64;
/// The pause in accepting after the operating system has run out of descriptors or memory.
const ACCEPT_PAUSE: Ns = 200 * MILLISECOND;

/// The epoll data of the listener, distinct from all connections' slab indexes.
const LISTENER: u64 = u64::MAX - 1;
/// The epoll data of the additional event descriptor.
const EXTRA_EVENT: u64 = u64::MAX - 2;

/// Events counted since the start.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct OsTcpCounters {
    /// Connections accepted, including those that have ended.
    pub opened: u64,
    /// Connections closed at once because the limit was reached, or descriptors had run out.
    pub refused: u64,
}

/// One thread's TCP on the operating system's sockets.
pub struct OsTcp<T> {
    epoll: Epoll,
    listener: OwnedFd,
    /// An additional event descriptor that ends a wait.
    extra_event: Option<Arc<OwnedFd>>,
    /// A spare descriptor. When descriptors have run out, it is closed to accept, and thereby refuse, a
    /// connection.
    spare: Option<OwnedFd>,
    connections: Slab<Connection<T>>,
    by_flow: HashMap<Flow, usize>,
    max_connections: usize,
    /// The epoll data of the events that the last wait returned.
    events: Vec<u64>,
    /// Connections to look at again: with bytes left at the end of their turn, or with a finished operation.
    revisit: Vec<usize>,
    /// The connections that we have closed, with the deadline for the peer to do so. An entry counts only if
    /// the connection's own `close_deadline` is the same: the slab index may have been reused.
    lingering: VecDeque<(Ns, usize)>,
    /// When accepting resumes; until then epoll does not watch the listener.
    accept_again_at: Option<Ns>,
    /// The time of the last step.
    now: Ns,
    scratch: Box<[u8]>,
    counters: OsTcpCounters,
}

impl<T> OsTcp<T> {
    /// Listens on an address, which other sockets may listen on, too; holds at most `connections` connections.
    ///
    /// # Errors
    /// If the address is not this host's (`EADDRNOTAVAIL`), or is used without `SO_REUSEPORT` or by another
    /// user (`EADDRINUSE`), the port needs a right (`EACCES`), or descriptors have run out.
    pub fn listen(address: SocketAddr, connections: usize) -> io::Result<OsTcp<T>> {
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        let listener = socket_with(family(address), SocketType::STREAM, flags, None)?;
        sockopt::set_socket_reuseport(&listener, true)?;
        sockopt::set_socket_reuseaddr(&listener, true)?;
        bind(&listener, &address)?;
        listen(&listener, BACKLOG)?;
        let epoll = Epoll::new()?;
        epoll.watch(&listener, LISTENER, EventFlags::IN)?;
        Ok(OsTcp {
            spare: Some(epoll.waker.as_fd().try_clone_to_owned()?),
            epoll,
            listener,
            extra_event: None,
            connections: Slab::new(),
            by_flow: HashMap::new(),
            max_connections: connections,
            events: Vec::new(),
            revisit: Vec::new(),
            lingering: VecDeque::new(),
            accept_again_at: None,
            now: 0,
            scratch: vec![0; SCRATCH].into_boxed_slice(),
            counters: OsTcpCounters::default(),
        })
    }

    /// The local address, with the port that the kernel chose, if 0 was given.
    ///
    /// # Errors
    /// Never for a listening socket.
    pub fn address(&self) -> io::Result<SocketAddr> {
        Ok(getsockname(&self.listener)?.try_into()?)
    }

    /// Returns a handle that ends a wait from any thread.
    pub fn waker(&self) -> Waker {
        self.epoll.waker.clone()
    }

    /// Lets `event`, an event descriptor, end a wait as well when it is signalled; the next step reads it.
    /// Replaces the previous one, if any.
    ///
    /// # Errors
    /// If epoll cannot watch the descriptor, or watches it already.
    pub fn watch(&mut self, event: Arc<OwnedFd>) -> io::Result<()> {
        self.epoll.watch(&event, EXTRA_EVENT, EventFlags::IN)?;
        if let Some(before) = self.extra_event.replace(event) {
            // Removed explicitly: other owners may keep it open, and it is not read any more.
            let _ = self.epoll.unwatch(before);
        }
        Ok(())
    }

    /// The number of open connections.
    pub fn connections(&self) -> usize {
        self.connections.len()
    }

    /// The events counted since the start.
    pub fn counters(&self) -> OsTcpCounters {
        self.counters
    }

    /// Waits until an event occurs, [`Waker::wake`] is called, or `timeout` has passed.
    ///
    /// # Errors
    /// If the kernel is older than 5.11 (`ENOSYS`).
    pub fn wait(&mut self, timeout: Option<Duration>) -> io::Result<()> {
        let timeout = if self.revisit.is_empty() { timeout } else { Some(Duration::ZERO) };
        let lingers = self.lingering.front().map(|&(until, ..)| until);
        let due = [lingers, self.accept_again_at].into_iter().flatten();
        let due = due.map(|due| Duration::from_nanos(due.saturating_sub(self.now)));
        let timeout = due.chain(timeout).min();
        self.events.clear();
        self.epoll.wait(timeout, |event| self.events.push(event))
    }

    /// Serves while `goes_on`, called before each wait, returns true. To end it from another thread, make
    /// `goes_on` return false and call [`Waker::wake`]. `clock` is any monotonic clock.
    ///
    /// # Errors
    /// As [`OsTcp::wait`].
    pub fn serve<A: TcpApplication<State = T>>(
        &mut self,
        application: &mut A,
        clock: impl Fn() -> Ns,
        mut goes_on: impl FnMut(&OsTcp<T>, &A) -> bool,
    ) -> io::Result<()> {
        while goes_on(self, application) {
            self.wait(None)?;
            self.step(clock(), application);
        }
        Ok(())
    }

    /// Notifies the application of the events of the last wait. `now` is the time of any monotonic clock.
    pub fn step<A: TcpApplication<State = T>>(&mut self, now: Ns, application: &mut A) {
        let (mut accepts, events) = (false, std::mem::take(&mut self.events));
        if events.contains(&EXTRA_EVENT) {
            // The descriptor is readable, so the read does not block. It precedes `collect`: an operation that
            // finishes later signals the descriptor again, and the next step submits what follows from it.
            let read = |event| rustix::io::read(event, &mut [0; 8]);
            let _ = self.extra_event.as_ref().map(read);
        }
        self.collect(application);
        for place in std::mem::take(&mut self.revisit) {
            self.visit(place, now, application);
        }
        for event in &events {
            match *event {
                LISTENER => accepts = true,
                EXTRA_EVENT => {}
                place => self.visit(place as usize, now, application),
            }
        }
        self.events = events;
        self.events.clear();
        while let Some(&(until, place)) = self.lingering.front() {
            let it = self.connections.get_mut(place).filter(|it| it.close_deadline == Some(until));
            if it.is_some() && until > now {
                break;
            }
            self.lingering.pop_front();
            if let Some(it) = it {
                it.abort(application, now);
                self.remove(place);
            }
        }
        self.now = now;
        // Accepting comes last: a new connection must not reuse a slab index for which there are still events.
        if accepts {
            self.accept(application);
        }
        if self.accept_again_at.is_some_and(|until| until <= now) {
            let watched = self.epoll.watch(&self.listener, LISTENER, EventFlags::IN);
            self.accept_again_at = watched.is_err().then(|| now.saturating_add(ACCEPT_PAUSE));
            self.spare = self.spare.take().or_else(|| self.spare_descriptor());
        }
        application.submit();
        self.collect(application);
    }

    /// Marks the connections for which an operation of the application has finished.
    fn collect<A: TcpApplication<State = T>>(&mut self, application: &mut A) {
        application.collect(&mut |flow| self.revisit.extend(self.by_flow.get(&flow)));
    }

    /// Closes the connection's descriptor, which removes it from epoll.
    fn remove(&mut self, place: usize) {
        let gone = self.connections.remove(place);
        self.by_flow.remove(&gone.flow);
    }

    fn visit<A: TcpApplication<State = T>>(&mut self, place: usize, now: Ns, application: &mut A) {
        let Some(connection) = self.connections.get_mut(place) else { return };
        if connection.ready(application, &mut self.scratch, now) {
            self.remove(place);
            return;
        }
        if connection.directions.bytes_left {
            self.revisit.push(place);
        }
        if connection.directions.shut && connection.close_deadline.is_none() {
            let until = now.saturating_add(LINGER);
            connection.close_deadline = Some(until);
            self.lingering.push_back((until, place));
            self.forget_ended();
        }
    }

    /// Removes deadlines of ended connections, once they outnumber those of open ones.
    fn forget_ended(&mut self) {
        let connections = &self.connections;
        if self.lingering.len() > 2 * connections.len() + MAX_OUTDATED {
            let is_current = |&(until, place): &(Ns, usize)| {
                connections.get(place).is_some_and(|it| it.close_deadline == Some(until))
            };
            self.lingering.retain(is_current);
        }
    }

    fn accept<A: TcpApplication<State = T>>(&mut self, application: &mut A) {
        for _ in 0..ACCEPTS_PER_STEP {
            let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
            let (socket, peer) = match acceptfrom_with(&self.listener, flags) {
                Ok(accepted) => accepted,
                Err(Errno::MFILE | Errno::NFILE) => {
                    // Left in the backlog, the connection would make the listener readable for ever.
                    self.spare = None;
                    let refused = acceptfrom_with(&self.listener, flags).is_ok();
                    self.spare = self.spare_descriptor();
                    if refused {
                        self.counters.refused += 1;
                    } else {
                        self.pause_accepting();
                    }
                    return;
                }
                Err(Errno::INTR | Errno::CONNABORTED) => continue,
                Err(Errno::AGAIN) => return,
                // The connection may still be in the backlog, as if memory is short or a security policy
                // forbids it.
                Err(_) => return self.pause_accepting(),
            };
            let peer = peer.and_then(|peer| SocketAddr::try_from(peer).ok());
            let local = getsockname(&socket).ok().and_then(|it| SocketAddr::try_from(it).ok());
            let (Some(peer), Some(local)) = (peer, local) else { continue };
            if self.connections.len() >= self.max_connections {
                self.counters.refused += 1;
                continue;
            }
            // Services combine their writes themselves, so Nagle's algorithm is off. A failure of these options
            // is harmless.
            let _ = sockopt::set_tcp_nodelay(&socket, true);
            let _ = sockopt::set_tcp_keepidle(&socket, KEEP_ALIVE);
            let _ = sockopt::set_socket_keepalive(&socket, true);
            let _ = sockopt::set_tcp_user_timeout(&socket, PEER_TIMEOUT_MS);
            let place = self.connections.vacant_key();
            let flags = EventFlags::IN | EventFlags::OUT | EventFlags::RDHUP | EventFlags::ET;
            if self.epoll.watch(&socket, place as u64, flags).is_err() {
                self.counters.refused += 1;
                continue;
            }
            self.counters.opened += 1;
            let flow = Flow { local, peer };
            let state = application.opened(flow);
            let directions = Directions::default();
            self.by_flow.insert(flow, place);
            self.connections.insert(Connection {
                socket,
                flow,
                state,
                directions,
                close_deadline: None,
            });
        }
    }

    /// Returns a spare descriptor, to be closed when descriptors have run out.
    fn spare_descriptor(&self) -> Option<OwnedFd> {
        self.epoll.waker.as_fd().try_clone_to_owned().ok()
    }

    /// Pauses accepting: otherwise a connection in the backlog would end each wait at once.
    fn pause_accepting(&mut self) {
        if self.epoll.unwatch(&self.listener).is_ok() {
            self.accept_again_at = Some(self.now.saturating_add(ACCEPT_PAUSE));
        }
    }
}

impl<T> fmt::Debug for OsTcp<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("OsTcp")
            .field("connections", &self.connections.len())
            .field("counters", &self.counters)
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use std::net::{Ipv4Addr, TcpStream};
    use std::time::Instant;

    use napkin_stack::ByteStream;

    use super::*;

    /// Closes each connection at its first event.
    struct Closer;

    impl TcpApplication for Closer {
        type State = ();

        fn opened(&mut self, _: Flow) {}

        fn ready(&mut self, (): &mut (), stream: &mut impl ByteStream, _: Ns) {
            stream.receive(&mut Vec::new(), 1_000);
            stream.close();
        }
    }

    /// Returns a listening socket, and a client connected to it.
    fn connected() -> (OsTcp<()>, TcpStream) {
        let tcp = OsTcp::listen(SocketAddr::from((Ipv4Addr::LOCALHOST, 0)), 4).expect("it listens");
        let client = TcpStream::connect(tcp.address().expect("its address")).expect("it answers");
        (tcp, client)
    }

    /// Steps, always at the time `now`, until the condition holds.
    fn until(tcp: &mut OsTcp<()>, now: Ns, so: impl Fn(&OsTcp<()>) -> bool) {
        let begun = Instant::now();
        while !so(tcp) {
            assert!(begun.elapsed() < Duration::from_secs(60), "{tcp:?}");
            tcp.wait(Some(Duration::from_millis(1))).expect("it waits");
            tcp.step(now, &mut Closer);
        }
    }

    #[test]
    fn what_both_sides_have_ended_has_no_deadline() {
        let (mut tcp, client) = connected();
        until(&mut tcp, 1, |tcp| !tcp.lingering.is_empty());
        drop(client);
        until(&mut tcp, 1, |tcp| tcp.connections() == 0);
        tcp.step(1, &mut Closer);
        assert!(tcp.lingering.is_empty());
    }

    #[test]
    fn deadlines_of_what_has_ended_do_not_gather_and_end_nobody_else() {
        let (mut tcp, _first) = connected();
        let address = tcp.address().expect("its address");
        let all_shut = |tcp: &OsTcp<()>| tcp.connections.iter().all(|(_, it)| it.directions.shut);
        for opened in 1..=100 {
            until(&mut tcp, opened, |tcp| tcp.counters.opened == opened && all_shut(tcp));
            assert!(tcp.lingering.len() <= 2 * 2 + MAX_OUTDATED, "of two at most at a time");
            // Not due, because they are queued after the deadline of the first connection, which stays open.
            let last = TcpStream::connect(address).expect("it answers");
            until(&mut tcp, opened, |tcp| tcp.connections() == 2 && all_shut(tcp));
            drop(last);
            until(&mut tcp, opened, |tcp| tcp.connections() == 1);
        }
        // A deadline of an earlier connection with the same slab index.
        tcp.lingering.push_front((0, 0));
        tcp.step(101, &mut Closer);
        assert_eq!(tcp.connections(), 1);
    }

    #[test]
    fn after_its_rest_it_accepts_what_has_waited() {
        let (mut tcp, _client) = connected();
        tcp.pause_accepting();
        for now in [0, ACCEPT_PAUSE - 1] {
            tcp.wait(Some(Duration::ZERO)).expect("it waits");
            assert!(tcp.events.is_empty());
            tcp.step(now, &mut Closer);
        }
        until(&mut tcp, ACCEPT_PAUSE, |tcp| tcp.counters.opened == 1);
    }
}
