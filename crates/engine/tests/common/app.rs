//! An application thread that echoes, until it is stopped or the engine stops; panics that a test injects into its
//! waits are caught, counted and survived.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

use napkin_core::CpuId;
use napkin_engine::{ApplicationWait, Engine};
use napkin_policy::Policy;
use napkin_stack::UdpSocket;

/// Its state as seen from outside.
#[derive(Default)]
pub struct Seen {
    /// Datagrams received.
    pub received: AtomicU64,
    /// Panics survived.
    pub panics: AtomicU64,
    stop: AtomicBool,
}

pub struct App {
    pub seen: Arc<Seen>,
    thread: JoinHandle<bool>,
}

impl App {
    /// Waits in an epoll or, where the policy has the socket itself busy poll, in the socket;
    /// `timeout` for each wait.
    pub fn start(engine: &Engine, port: u16, policy: &Policy, timeout: Option<Duration>) -> App {
        let seen = Arc::new(Seen::default());
        let socket = engine.stack("syn0").expect("the device").bind_udp(port, 512).expect("a port");
        let shared = Arc::clone(&seen);
        let mut waits = ApplicationWait::new(engine, CpuId(0), &socket, policy).expect("options");
        let body = move || run(&shared, &socket, || waits.wait(timeout).is_ok());
        let thread = std::thread::Builder::new().name("app".into()).spawn(body).expect("a thread");
        App { seen, thread }
    }

    pub fn received(&self) -> u64 {
        self.seen.received.load(Ordering::Relaxed)
    }

    pub fn panics(&self) -> u64 {
        self.seen.panics.load(Ordering::Relaxed)
    }

    /// Stops it, at the end of its current wait.
    pub fn stop(self) {
        self.seen.stop.store(true, Ordering::Relaxed);
        assert!(!self.join(), "it was to end by itself");
    }

    /// Whether it ended because a wait failed: the engine was stopped.
    pub fn join(self) -> bool {
        self.thread.join().expect("no panic but the injected ones")
    }
}

fn run(seen: &Seen, socket: &UdpSocket, mut wait: impl FnMut() -> bool) -> bool {
    while !seen.stop.load(Ordering::Relaxed) {
        match catch_unwind(AssertUnwindSafe(&mut wait)) {
            Ok(true) => {}
            Ok(false) => return true,
            Err(_) => {
                seen.panics.fetch_add(1, Ordering::Relaxed);
            }
        }
        for _ in 0..64 {
            let Some(datagram) = socket.try_recv() else { break };
            seen.received.fetch_add(1, Ordering::Relaxed);
            // The device counts a full transmit ring; the datagram was received all the same.
            let _ = socket.echo(datagram, napkin_engine::now());
        }
    }
    false
}
