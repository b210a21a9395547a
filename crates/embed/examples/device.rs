//! A device of one's own in sixty lines: Ethernet frames over a pair of Unix sockets, one datagram a
//! frame, as virtual machines are cabled. An echo server runs on it, and a peer asks it.
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

use napkin_embed::{
    Address, CpuId, DeviceConfig, Echo, Engine, EngineConfig, Epoll, Frame, FrameBuilder, Ns,
    PacketQueue, Policy, Pool, QueueCounters, SendError, Service, Transmitter, Work, now, sched,
};

/// One queue; its transmitter is a second handle on the same socket.
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
        // A poll that finds nothing has to say so, not wait.
        socket.set_nonblocking(true)?;
        Ok(Cable { end: Arc::new(End { socket, counters: Arc::default() }), pool })
    }
}

impl PacketQueue for Cable {
    fn poll(&mut self, budget: u16, now: Ns, into: &mut Vec<Frame>) -> Work {
        let (end, mut rx) = (&self.end, 0);
        while rx < budget {
            // Without a buffer a frame is taken and dropped: left in the ring it would be found for ever.
            let mut buffer = self.pool.take();
            let room = buffer.as_mut().map_or(&mut [][..], Frame::buffer);
            let Ok(length) = end.socket.recv(room) else { break };
            rx += 1;
            let Some(mut frame) = buffer else {
                end.counters.rx_no_buffer.fetch_add(1, Relaxed);
                continue;
            };
            frame.set_len(length);
            frame.set_arrived(now);
            end.counters.rx_packets.fetch_add(1, Relaxed);
            into.push(frame);
        }
        Work { rx, tx: 0 }
    }

    // The interrupt is the descriptor. The engine watches it one shot at a time, which masks it, and
    // arming it again looks at it once more: nothing is left to do here.
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
        let sent = self.socket.send(frame).map_err(|error| match error.kind() {
            ErrorKind::WouldBlock => SendError::RingFull,
            _ => SendError::Down,
        });
        let counter =
            if sent.is_ok() { &self.counters.tx_packets } else { &self.counters.tx_dropped };
        counter.fetch_add(1, Relaxed);
        sent.map(|_| ())
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
    let engine = Engine::start(EngineConfig::new(cpus, vec![device]))?;
    let mut echo = Echo::new(engine.stack("cable0")?.bind_udp(7, 64)?);
    let mut epoll = Epoll::new(&engine, CpuId(0), policy.epoll)?;
    epoll.add(echo.socket(), 0)?;

    let asking = std::thread::spawn(move || -> Result<()> {
        let (mut question, mut answer) = ([0; 128], [0; 128]);
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
    assert_eq!((counters.read().rx_packets, counters.read().tx_packets), (100, 100));
    println!("{policy}: {} answers, {:?}", echo.answered(), engine.napi(1)?.counts);
    Ok(())
}

#[test]
fn a_peer_on_a_cable_is_answered_a_hundred_times() {
    main().expect("it runs");
}
