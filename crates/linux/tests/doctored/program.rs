//! The program under examination: a server that waits in one of several ways.

use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::os::fd::{AsFd, AsRawFd};
use std::thread;

use super::SERVER;

/// The environment variable that makes the test binary act as a server, with its mode and port.
pub(super) const PROGRAM: &str = "NAPKIN_TEST_DOCTORED";

/// How a server serves its connections.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Mode {
    /// One thread, one epoll, waits without timeout.
    Sound,
    /// As `Sound`, with an additional empty epoll.
    SpareEpoll,
    /// As `Sound`, with a pipe in the epoll that is always writable.
    AlwaysReady,
    /// Calls `epoll_wait` with timeout 0 only.
    ZeroTimeout,
    /// Waits with a timeout of 5 ms.
    FiniteTimeout,
    /// Two threads wait on the same epoll.
    SharedEpoll,
    /// A thread for each connection, blocking in receive calls.
    NoEpoll,
}

const MODES: [Mode; 7] = [
    Mode::Sound,
    Mode::SpareEpoll,
    Mode::AlwaysReady,
    Mode::ZeroTimeout,
    Mode::FiniteTimeout,
    Mode::SharedEpoll,
    Mode::NoEpoll,
];

/// A request, and every server's answer to it, as memcached gives it.
pub(super) const REQUEST: &[u8] = b"get x\r\n";
pub(super) const ANSWER: &[u8] = b"END\r\n";

/// Acts as a server, if the environment says so; returns true when done.
pub(crate) fn program() -> bool {
    let Ok(text) = std::env::var(PROGRAM) else { return false };
    let (name, port) = text.split_once(' ').expect("a mode and a port");
    let mode = MODES.into_iter().find(|mode| format!("{mode:?}") == name).expect("a mode");
    let address = (SERVER, port.parse::<u16>().expect("a port"));
    let listener = TcpListener::bind(address).expect("the address is ours");
    match mode {
        Mode::NoEpoll => serve_by_threads(&listener),
        Mode::SharedEpoll => {
            let epoll = Epoll::new();
            epoll.add(&listener);
            thread::scope(|scope| {
                for _ in 0..2 {
                    scope.spawn(|| serve(&epoll, &listener, -1));
                }
            });
        }
        Mode::SpareEpoll => {
            let epoll = Epoll::new();
            epoll.add(&listener);
            let _spare = Epoll::new();
            serve(&epoll, &listener, -1);
        }
        Mode::AlwaysReady => {
            let (_down, up) = rustix::pipe::pipe().expect("a pipe");
            let epoll = Epoll::new();
            epoll.add(&listener);
            epoll.add_for(&up, rustix::event::epoll::EventFlags::OUT);
            serve(&epoll, &listener, -1);
        }
        Mode::Sound | Mode::ZeroTimeout | Mode::FiniteTimeout => {
            let epoll = Epoll::new();
            epoll.add(&listener);
            let timeout = match mode {
                Mode::ZeroTimeout => 0,
                Mode::FiniteTimeout => 5,
                _ => -1,
            };
            serve(&epoll, &listener, timeout);
        }
    }
    true
}

fn serve_by_threads(listener: &TcpListener) {
    for stream in listener.incoming() {
        let mut stream = stream.expect("a connection");
        thread::spawn(move || while answer(&mut stream) {});
    }
}

/// Answers one request; returns false at the end of the stream.
fn answer(stream: &mut TcpStream) -> bool {
    let mut bytes = [0; 64];
    matches!(stream.read(&mut bytes), Ok(1..)) && stream.write_all(ANSWER).is_ok()
}

/// An epoll whose waits have exactly the requested timeouts.
struct Epoll(std::os::fd::OwnedFd);

impl Epoll {
    fn new() -> Epoll {
        let flags = rustix::event::epoll::CreateFlags::CLOEXEC;
        Epoll(rustix::event::epoll::create(flags).expect("an epoll"))
    }

    fn add(&self, member: &impl AsFd) {
        self.add_for(member, rustix::event::epoll::EventFlags::IN);
    }

    fn add_for(&self, member: &impl AsFd, events: rustix::event::epoll::EventFlags) {
        use rustix::event::epoll::{EventData, add};
        let number = u64::try_from(member.as_fd().as_raw_fd()).expect("a descriptor");
        add(&self.0, member, EventData::new_u64(number), events).expect("it is added");
    }

    /// Waits, and returns the descriptors that are ready.
    fn wait(&self, timeout: i32) -> Vec<i32> {
        let mut events = [libc::epoll_event { events: 0, u64: 0 }; 32];
        // SAFETY: the array has room for the 32 events that the call may write.
        let ready =
            unsafe { libc::epoll_wait(self.0.as_raw_fd(), events.as_mut_ptr(), 32, timeout) };
        let ready = usize::try_from(ready).unwrap_or(0);
        events[..ready].iter().map(|event| event.u64 as i32).collect()
    }
}

fn serve(epoll: &Epoll, listener: &TcpListener, timeout: i32) {
    listener.set_nonblocking(true).expect("an option");
    let mut streams: Vec<TcpStream> = Vec::new();
    loop {
        for fd in epoll.wait(timeout) {
            if fd == listener.as_raw_fd() {
                // The other thread may have accepted it already.
                let Ok((stream, _)) = listener.accept() else { continue };
                epoll.add(&stream);
                streams.push(stream);
                continue;
            }
            // The other thread's connections are answered by their descriptor number.
            match streams.iter_mut().position(|stream| stream.as_raw_fd() == fd) {
                Some(place) => {
                    if !answer(&mut streams[place]) {
                        streams.swap_remove(place);
                    }
                }
                None => answer_other(fd),
            }
        }
    }
}

/// Answers on a connection that another thread owns, and may have served already.
fn answer_other(fd: i32) {
    let mut bytes = [0_u8; 64];
    let flags = libc::MSG_DONTWAIT;
    // SAFETY: the buffer has the given length; a descriptor that is no socket is refused.
    let got = unsafe { libc::recv(fd, bytes.as_mut_ptr().cast(), bytes.len(), flags) };
    if got > 0 {
        // SAFETY: as above.
        unsafe { libc::send(fd, ANSWER.as_ptr().cast(), ANSWER.len(), libc::MSG_NOSIGNAL) };
    } else {
        thread::yield_now();
    }
}
