//! A device of your own in sixty lines: Ethernet frames over a pair of Unix sockets, one frame per datagram, as
//! used to connect virtual machines. An echo server runs on it, and a peer sends it requests.
//!
//! ```text
//! cargo run -p napkin-embed --example device
//! ```

use std::io::{ErrorKind, Result};
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::net::UnixDatagram;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;

use napkin_embed::nic::{ETHERNET_HEADER, FRAME_CAPACITY};
use napkin_embed::{
    Address, CpuId, DeviceConfig, Echo, Engine, EngineConfig, Epoll, Frame, FrameBuilder, Ns,
    PacketQueue, Policy, Pool, QueueCounters, SendError, Service, Transmitter, Work, now, sched,
};

/// The receive queue; its transmitter is a second handle to the same socket.
struct Cable {
    end: Arc<End>,
    pool: Pool,
}

struct End {
    socket: UnixDatagram,
    counters: Arc<QueueCounters>,
}

impl Cable {
    fn new(socket: UnixDatagram, pool: Pool) -> Result<Cable> {
        // A poll must not block when there is no frame.
        socket.set_nonblocking(true)?;
        Ok(Cable { end: Arc::new(End { socket, counters: Arc::default() }), pool })
    }
}

impl PacketQueue for Cable {
    fn poll(&mut self, budget: u16, now: Ns, into: &mut Vec<Frame>) -> Work {
        let mut rx = 0;
        // A datagram that is too long is truncated: one extra byte distinguishes it from one that fits exactly.
        let mut bytes = [0; FRAME_CAPACITY + 1];
        while rx < budget {
            let Ok(length) = self.end.socket.recv(&mut bytes) else { break };
            // A dropped frame counts as work, too: the poll has taken it out of the ring.
            rx += 1;
            into.extend(self.end.counters.received(&bytes[..length], &self.pool, now));
        }
        Work { rx, tx: 0 }
    }

    // The socket's descriptor is the interrupt. The engine watches it one shot at a time, which masks it, and
    // re-arming checks it again: nothing is left to do here.
    fn mask(&mut self) {}

    fn unmask(&mut self, _now: Ns) -> bool {
        false
    }

    fn interrupt(&self) -> BorrowedFd<'_> {
        self.end.socket.as_fd()
    }

    fn acknowledge(&mut self) {
        self.end.counters.interrupts_rx.fetch_add(1, Relaxed);
    }

    fn transmitter(&self) -> Arc<dyn Transmitter> {
        Arc::<End>::clone(&self.end)
    }

    fn counters(&self) -> Arc<QueueCounters> {
        Arc::clone(&self.end.counters)
    }
}

impl Transmitter for End {
    fn send(&self, frame: &[u8], _now: Ns) -> std::result::Result<(), SendError> {
        let sent = match frame.len() {
            ..ETHERNET_HEADER => Err(SendError::TooShort),
            ETHERNET_HEADER..=FRAME_CAPACITY => match self.socket.send(frame) {
                Ok(_) => Ok(()),
                Err(error) if error.kind() == ErrorKind::WouldBlock => Err(SendError::RingFull),
                Err(_) => Err(SendError::Down),
            },
            _ => Err(SendError::TooLong),
        };
        self.counters.sent(frame, sent)
    }
}

fn main() -> std::result::Result<(), Box<dyn std::error::Error>> {
    let us = Address::v4([2, 0, 0, 0, 0, 1], [10, 99, 0, 1], 24);
    let peer = Address::v4([2, 0, 0, 0, 0, 2], [10, 99, 0, 2], 24);
    let policy: Policy = "suspend20".parse()?;
    let (near, far) = UnixDatagram::pair()?;
    far.set_read_timeout(Some(Duration::from_secs(10)))?;

    let queue = Cable::new(near, Pool::new(256))?;
    let counters = queue.counters();
    let device = DeviceConfig::new("cable0", us, vec![(Box::new(queue), 0)], policy.instance);
    let cpus = sched::usable_cpus().into_iter().take(1).collect();
    let config = EngineConfig { cpu_policy: policy.cpu, ..EngineConfig::new(cpus, vec![device]) };
    let engine = Engine::start(config)?;
    engine.warnings().iter().for_each(|warning| eprintln!("{warning}"));
    let mut echo = Echo::new(engine.stack("cable0")?.bind_udp(7, 64)?);
    let mut epoll = Epoll::new(&engine, CpuId(0), policy.epoll)?;
    epoll.set_spin(policy.application.spin);
    epoll.add(echo.socket(), 0)?;

    let asking = std::thread::spawn(move || -> Result<()> {
        let (mut question, mut answer) = ([0; 128], [0; 128]);
        // Not valid frames: both are counted and dropped.
        far.send(&[0; ETHERNET_HEADER - 1])?;
        far.send(&[0; FRAME_CAPACITY + 1])?;
        for n in 0..100_u64 {
            let built = FrameBuilder::new(peer, us).udp(&mut question, 4_000, 7, &n.to_be_bytes());
            far.send(&question[..built.expect("it fits")])?;
            let length = far.recv(&mut answer)?;
            assert!(answer[..length].windows(8).any(|bytes| bytes == n.to_be_bytes()));
        }
        Ok(())
    });
    let mut events = Vec::new();
    while echo.answered() < 100 && !asking.is_finished() {
        epoll.wait(&mut events, 1, Some(Duration::from_millis(100)))?;
        echo.serve_ready(now(), 64);
    }
    asking.join().expect("the peer was answered")?;
    let counts = counters.read();
    assert_eq!((counts.rx_packets, counts.tx_packets), (100, 100));
    assert_eq!((counts.rx_truncated, counts.rx_oversized), (1, 1));
    println!("{policy}: {} answers, {:?}", echo.answered(), engine.napi(1)?.counts);
    Ok(())
}

#[test]
fn a_peer_on_a_cable_is_answered_a_hundred_times() {
    main().expect("it runs");
}
