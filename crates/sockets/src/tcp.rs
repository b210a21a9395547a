//! One thread's share of a port: accepts, waits, and tells the application what has changed.

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
use crate::port::family;
use crate::waits::Waits;

/// Connections that are accepted before others have their turn.
const ACCEPTED: usize = 64;
/// Connections that wait to be accepted; the kernel allows `net.core.somaxconn` at most.
const BACKLOG: i32 = 4_096;
/// Bytes of one receive.
const SCRATCH: usize = 64 * 1_024;
/// How long a peer may take to close its side after we closed ours. What the kernel has not sent by then is lost.
/// Longer than the 60 s after which a service ends an idle connection itself.
const LINGER: Ns = 70_000 * MILLISECOND;
/// How long a peer may say nothing before it is asked whether it is there, and then leave that or sent
/// bytes unanswered: as the stack's own TCP.
const KEEP_ALIVE: Duration = Duration::from_secs(60);
const PEER_TIMEOUT_MS: u32 = 120_000;
/// Deadlines that are kept beside two for each connection before those of ended ones are looked for.
const SPARE: usize = 64;
/// How long nothing is accepted where the operating system has neither descriptors nor memory for it.
const RESPITE: Ns = 200 * MILLISECOND;

/// What epoll says of the listener, in the place of a connection's number.
const LISTENER: u64 = u64::MAX - 1;
/// What it says of what else ends a wait.
const OTHER: u64 = u64::MAX - 2;

/// What has happened since it began.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct OsTcpCounters {
    /// Connections accepted, those that have ended included.
    pub opened: u64,
    /// Connections closed at once because there was no place for another, or no descriptor.
    pub refused: u64,
}

/// One thread's TCP on the operating system's sockets.
pub struct OsTcp<T> {
    waits: Waits,
    listener: OwnedFd,
    /// What else ends a wait.
    other: Option<Arc<OwnedFd>>,
    /// Closed to accept, and so to refuse, one more where descriptors have run out.
    spare: Option<OwnedFd>,
    connections: Slab<Connection<T>>,
    places: HashMap<Flow, usize>,
    most: usize,
    /// What the last wait has found.
    events: Vec<u64>,
    /// Those whose turn was over before their bytes were, or for which something has ended.
    again: Vec<usize>,
    /// Those that we ended, and until when the peer may take to do so. A connection knows its own time: its place may be
    /// another's by then.
    lingering: VecDeque<(Ns, usize)>,
    /// When connections are accepted again; until then the listener is not watched.
    respite: Option<Ns>,
    /// The time of the last step.
    now: Ns,
    scratch: Box<[u8]>,
    counters: OsTcpCounters,
}

impl<T> OsTcp<T> {
    /// Listens on an address, which others may listen on, too; holds `connections` at most.
    ///
    /// # Errors
    /// The address is not this host's (`EADDRNOTAVAIL`) or in use by a program without `SO_REUSEPORT`
    /// or of another user (`EADDRINUSE`), the port needs a right (`EACCES`), or descriptors have run out.
    pub fn listen(address: SocketAddr, connections: usize) -> io::Result<OsTcp<T>> {
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        let listener = socket_with(family(address), SocketType::STREAM, flags, None)?;
        sockopt::set_socket_reuseport(&listener, true)?;
        sockopt::set_socket_reuseaddr(&listener, true)?;
        bind(&listener, &address)?;
        listen(&listener, BACKLOG)?;
        let waits = Waits::new()?;
        waits.watch(&listener, LISTENER, EventFlags::IN)?;
        Ok(OsTcp {
            spare: Some(waits.waker.as_fd().try_clone_to_owned()?),
            waits,
            listener,
            other: None,
            connections: Slab::new(),
            places: HashMap::new(),
            most: connections,
            events: Vec::new(),
            again: Vec::new(),
            lingering: VecDeque::new(),
            respite: None,
            now: 0,
            scratch: vec![0; SCRATCH].into_boxed_slice(),
            counters: OsTcpCounters::default(),
        })
    }

    /// Where it listens: with the port that the kernel chose, if 0 was given.
    ///
    /// # Errors
    /// None that a listening socket has.
    pub fn address(&self) -> io::Result<SocketAddr> {
        Ok(getsockname(&self.listener)?.try_into()?)
    }

    /// Ends its wait, from any thread.
    pub fn waker(&self) -> Waker {
        self.waits.waker.clone()
    }

    /// Has `event`, an event descriptor, end its wait as well, whenever it is signalled; it is read then.
    /// One at most: the last that was given.
    ///
    /// # Errors
    /// No descriptor that epoll watches, or one that it watches already.
    pub fn watch(&mut self, event: Arc<OwnedFd>) -> io::Result<()> {
        self.waits.watch(&event, OTHER, EventFlags::IN)?;
        if let Some(before) = self.other.replace(event) {
            // Others may keep it open, and nobody would read it.
            let _ = self.waits.unwatch(before);
        }
        Ok(())
    }

    /// Connections that are open.
    pub fn connections(&self) -> usize {
        self.connections.len()
    }

    /// What has happened since it began.
    pub fn counters(&self) -> OsTcpCounters {
        self.counters
    }

    /// Waits until something has happened, somebody has [woken](Waker::wake) it, or `timeout` is over.
    ///
    /// # Errors
    /// The kernel is older than 5.11 (`ENOSYS`).
    pub fn wait(&mut self, timeout: Option<Duration>) -> io::Result<()> {
        let timeout = if self.again.is_empty() { timeout } else { Some(Duration::ZERO) };
        let lingers = self.lingering.front().map(|&(until, ..)| until);
        let due = [lingers, self.respite].into_iter().flatten();
        let due = due.map(|due| Duration::from_nanos(due.saturating_sub(self.now)));
        let timeout = due.chain(timeout).min();
        self.events.clear();
        self.waits.wait(timeout, |event| self.events.push(event))
    }

    /// Serves until `goes_on`, which is asked before each wait, says no: whoever ends it from another
    /// thread has it say so, and [wakes](Waker::wake) it. `clock` is any that does not go back.
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

    /// Tells the application what the last wait has found. `now` is any clock that does not go back.
    pub fn step<A: TcpApplication<State = T>>(&mut self, now: Ns, application: &mut A) {
        let (mut accepts, events) = (false, std::mem::take(&mut self.events));
        if events.contains(&OTHER) {
            // It is readable: nothing is waited for. Before what has ended is collected: what ends later
            // signals it anew, and there is another step, which hands over what is begun again for it.
            let read = |event| rustix::io::read(event, &mut [0; 8]);
            let _ = self.other.as_ref().map(read);
        }
        self.collect(application);
        for place in std::mem::take(&mut self.again) {
            self.look(place, now, application);
        }
        for event in &events {
            match *event {
                LISTENER => accepts = true,
                OTHER => {}
                place => self.look(place as usize, now, application),
            }
        }
        self.events = events;
        self.events.clear();
        while let Some(&(until, place)) = self.lingering.front() {
            let it = self.connections.get_mut(place).filter(|it| it.until == Some(until));
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
        // Last: places of connections that have ended would be given away while there are events of theirs.
        if accepts {
            self.accept(application);
        }
        if self.respite.is_some_and(|until| until <= now) {
            let watched = self.waits.watch(&self.listener, LISTENER, EventFlags::IN);
            self.respite = watched.is_err().then(|| now.saturating_add(RESPITE));
            self.spare = self.spare.take().or_else(|| self.another());
        }
        application.submit();
        self.collect(application);
    }

    /// Notes the connections for which something has ended that the application had begun.
    fn collect<A: TcpApplication<State = T>>(&mut self, application: &mut A) {
        application.collect(&mut |flow| self.again.extend(self.places.get(&flow)));
    }

    /// Its descriptor is closed, and so is no longer watched.
    fn remove(&mut self, place: usize) {
        let gone = self.connections.remove(place);
        self.places.remove(&gone.flow);
    }

    fn look<A: TcpApplication<State = T>>(&mut self, place: usize, now: Ns, application: &mut A) {
        let Some(connection) = self.connections.get_mut(place) else { return };
        if connection.ready(application, &mut self.scratch, now) {
            self.remove(place);
            return;
        }
        if connection.directions.more {
            self.again.push(place);
        }
        if connection.directions.shut && connection.until.is_none() {
            let until = now.saturating_add(LINGER);
            connection.until = Some(until);
            self.lingering.push_back((until, place));
            self.forget_ended();
        }
    }

    /// Drops deadlines of connections that have ended, once they are more than those that have not.
    fn forget_ended(&mut self) {
        let connections = &self.connections;
        if self.lingering.len() > 2 * connections.len() + SPARE {
            let there = |&(until, place): &(Ns, usize)| {
                connections.get(place).is_some_and(|it| it.until == Some(until))
            };
            self.lingering.retain(there);
        }
    }

    fn accept<A: TcpApplication<State = T>>(&mut self, application: &mut A) {
        for _ in 0..ACCEPTED {
            let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
            let (socket, peer) = match acceptfrom_with(&self.listener, flags) {
                Ok(accepted) => accepted,
                Err(Errno::MFILE | Errno::NFILE) => {
                    // Left in the backlog it would be told of without end.
                    self.spare = None;
                    let refused = acceptfrom_with(&self.listener, flags).is_ok();
                    self.spare = self.another();
                    if refused {
                        self.counters.refused += 1;
                    } else {
                        self.rest();
                    }
                    return;
                }
                Err(Errno::INTR | Errno::CONNABORTED) => continue,
                Err(Errno::AGAIN) => return,
                // Whoever asks may still be there, as with too little memory, or where a policy forbids it.
                Err(_) => return self.rest(),
            };
            let peer = peer.and_then(|peer| SocketAddr::try_from(peer).ok());
            let local = getsockname(&socket).ok().and_then(|it| SocketAddr::try_from(it).ok());
            let (Some(peer), Some(local)) = (peer, local) else { continue };
            if self.connections.len() >= self.most {
                self.counters.refused += 1;
                continue;
            }
            // A service says itself what belongs together. Of the rest nothing breaks without it.
            let _ = sockopt::set_tcp_nodelay(&socket, true);
            let _ = sockopt::set_tcp_keepidle(&socket, KEEP_ALIVE);
            let _ = sockopt::set_socket_keepalive(&socket, true);
            let _ = sockopt::set_tcp_user_timeout(&socket, PEER_TIMEOUT_MS);
            let place = self.connections.vacant_key();
            let flags = EventFlags::IN | EventFlags::OUT | EventFlags::RDHUP | EventFlags::ET;
            if self.waits.watch(&socket, place as u64, flags).is_err() {
                self.counters.refused += 1;
                continue;
            }
            self.counters.opened += 1;
            let flow = Flow { local, peer };
            let state = application.opened(flow);
            let directions = Directions::default();
            self.places.insert(flow, place);
            self.connections.insert(Connection { socket, flow, state, directions, until: None });
        }
    }

    /// A descriptor to be closed when others have run out.
    fn another(&self) -> Option<OwnedFd> {
        self.waits.waker.as_fd().try_clone_to_owned().ok()
    }

    /// Accepts nothing for a while: what waits would end each wait at once.
    fn rest(&mut self) {
        if self.waits.unwatch(&self.listener).is_ok() {
            self.respite = Some(self.now.saturating_add(RESPITE));
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

    /// Closes what it hears of.
    struct Closer;

    impl TcpApplication for Closer {
        type State = ();

        fn opened(&mut self, _: Flow) {}

        fn ready(&mut self, (): &mut (), stream: &mut impl ByteStream, _: Ns) {
            stream.receive(&mut Vec::new(), 1_000);
            stream.close();
        }
    }

    /// One that listens, and who has connected to it.
    fn connected() -> (OsTcp<()>, TcpStream) {
        let tcp = OsTcp::listen(SocketAddr::from((Ipv4Addr::LOCALHOST, 0)), 4).expect("it listens");
        let client = TcpStream::connect(tcp.address().expect("its address")).expect("it answers");
        (tcp, client)
    }

    /// Steps, all at the same time, until it is so.
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
            assert!(tcp.lingering.len() <= 2 * 2 + SPARE, "of two at most at a time");
            // Behind that of the first, which stays, they are not due.
            let last = TcpStream::connect(address).expect("it answers");
            until(&mut tcp, opened, |tcp| tcp.connections() == 2 && all_shut(tcp));
            drop(last);
            until(&mut tcp, opened, |tcp| tcp.connections() == 1);
        }
        // One that had the first one's place.
        tcp.lingering.push_front((0, 0));
        tcp.step(101, &mut Closer);
        assert_eq!(tcp.connections(), 1);
    }

    #[test]
    fn after_its_rest_it_accepts_what_has_waited() {
        let (mut tcp, _client) = connected();
        tcp.rest();
        for now in [0, RESPITE - 1] {
            tcp.wait(Some(Duration::ZERO)).expect("it waits");
            assert!(tcp.events.is_empty());
            tcp.step(now, &mut Closer);
        }
        until(&mut tcp, RESPITE, |tcp| tcp.counters.opened == 1);
    }
}
