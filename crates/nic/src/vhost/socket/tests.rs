//! Tests of the listening socket, and of frontends that connect to it.

use std::io::{Read, Write};
use std::os::fd::OwnedFd;
use std::sync::Barrier;
use std::sync::atomic::AtomicU32;
use std::sync::atomic::Ordering::Relaxed;

use napkin_testing::until;

use super::super::{FrontendConfig, Peers, Vhost};
use super::*;
use crate::Pool;

/// A path of our own, removed at the end.
struct TempPath(PathBuf);

impl TempPath {
    fn new() -> TempPath {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let name = format!("napkin-socket-{}-{}", std::process::id(), NEXT.fetch_add(1, Relaxed));
        TempPath(std::env::temp_dir().join(name))
    }
}

impl Drop for TempPath {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.0);
    }
}

fn backend(place: &TempPath) -> Result<Vhost, VhostError> {
    Vhost::backend(&place.0, 1, &Pool::new(4))
}

fn frontend(place: &TempPath) -> Vhost {
    Vhost::frontend(&FrontendConfig::new(&place.0), &Pool::new(4)).expect("it can be")
}

fn expect_problem(peers: &Peers, what: &str) {
    until(what, || peers.take_problem().is_some_and(|it| it.contains(what)));
}

/// A backend that listens but does not accept, with a full accept queue.
fn full(place: &TempPath) -> (OwnedFd, Vec<OwnedFd>) {
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let socket =
        || socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None).expect("a socket");
    let address = SocketAddrUnix::new(&place.0).expect("it is short");
    let (listener, mut waiting) = (socket(), Vec::new());
    rustix::net::bind(&listener, &address).expect("a free path");
    rustix::net::listen(&listener, 0).expect("it listens");
    loop {
        let one = socket();
        if rustix::net::connect(&one, &address).is_err() {
            return (listener, waiting);
        }
        waiting.push(one);
    }
}

#[test]
fn a_backend_that_accepts_nobody_is_in_use_and_keeps_no_frontend_from_ending() {
    let place = TempPath::new();
    let listens = full(&place);
    assert!(matches!(backend(&place), Err(VhostError::InUse { .. })));
    let device = frontend(&place);
    expect_problem(&device.peers, "its accept queue is full");
    let ends = std::thread::spawn(move || drop(device));
    until("it ends", || ends.is_finished());

    // Once the queue has room, the frontend is served.
    let device = frontend(&place);
    expect_problem(&device.peers, "its accept queue is full");
    drop(listens);
    let other = backend(&place).expect("nobody listens there any more");
    until("they agree", || device.peers.rings.load(Relaxed) + other.peers.rings.load(Relaxed) == 4);
    assert_eq!(device.peers.refused.load(Relaxed), 1, "told once");
}

#[test]
fn of_several_backends_that_begin_at_one_path_at_once_one_has_it() {
    for _ in 0..100 {
        let place = TempPath::new();
        drop(UnixListener::bind(&place.0).expect("a free path"));
        let together = Barrier::new(3);
        let begin = || {
            together.wait();
            Listener::bind(&place.0)
        };
        let all: Vec<_> = std::thread::scope(|scope| {
            let threads = [(); 3].map(|()| scope.spawn(begin));
            threads.into_iter().map(|it| it.join().expect("it does not panic")).collect()
        });
        let (good, bad): (Vec<_>, Vec<_>) = all.into_iter().partition(Result::is_ok);
        assert_eq!(good.len(), 1, "{bad:?}");
        assert!(bad.iter().all(|it| matches!(it, Err(VhostError::InUse { .. }))), "{bad:?}");
        connect(&place.0).expect("it can be reached");
    }
}

/// Some programs lock a directory permanently, so that nothing in it is removed.
#[test]
fn a_directory_that_somebody_has_locked_is_as_good() {
    let place = TempPath::new();
    std::fs::create_dir(&place.0).expect("a new directory");
    let _locked = DirectoryLock::take(&place.0.join("socket")).expect("nobody has it");
    assert!(DirectoryLock::take(&place.0.join("socket")).is_none());
    drop(Listener::bind(&place.0.join("socket")).expect("a free path"));
    std::fs::remove_dir(&place.0).expect("it is empty");
}

#[test]
fn a_backend_that_refuses_by_hanging_up_is_told_of_once_and_has_not_served() {
    let place = TempPath::new();
    let listener = UnixListener::bind(&place.0).expect("a free path");
    let device = frontend(&place);
    for attempt in 0..5 {
        let (mut peer, _) = listener.accept().expect("it comes");
        peer.read_exact(&mut [0; 12]).expect("a question");
        if attempt > 0 {
            // Plain virtio 1.0, so that nothing else is requested; the memory and the rings follow.
            let answer = [1u32, 5, 8, 0, 1].map(u32::to_ne_bytes).concat();
            peer.write_all(&answer).expect("it waits for that");
            peer.read_exact(&mut [0; 12 + 12]).expect("it goes on");
        }
    }
    expect_problem(&device.peers, "closed the connection while rings were agreed on");
    let counts = [&device.peers.served, &device.peers.refused];
    assert_eq!(counts.map(|it| it.load(Relaxed)), [0, 1]);
}

#[test]
fn a_frontend_at_the_door_of_a_backend_that_serves_another_waits_and_says_so() {
    let place = TempPath::new();
    let backend = backend(&place).expect("a free path");
    let first = frontend(&place);
    until("one is served", || first.peers.rings.load(Relaxed) == 2);
    let second = frontend(&place);
    // After the time limit of all other answers.
    until("it says so", || {
        second.peers.take_problem().is_some_and(|it| it.contains("may serve another"))
    });
    drop(first);
    until("so is the other", || second.peers.served.load(Relaxed) == 1);
    let refused = [&second.peers.refused, &backend.peers.refused];
    assert_eq!(refused.map(|it| it.load(Relaxed)), [0, 0]);
}
