//! One direction of one virtio queue at full speed: a busy-polling source or sink of 64-byte frames, for
//! docs/performance.md.
//!
//!   virtio send|receive vhost|virtio-user PATH SECONDS [packed] [ring-N]
//!
//! Prints the number of frames in each second, and at the end the mean rate while there was a peer.

use std::path::Path;
use std::process::ExitCode;
use std::sync::atomic::Ordering::Relaxed;
use std::time::{Duration, Instant};

use napkin_nic::vhost::{FrontendConfig, Vhost};
use napkin_nic::{Frame, PacketQueue, Pool, ReturnedFrames};

/// Frames per burst, as in DPDK's testpmd.
const BURST: u16 = 32;

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [what, side, path, seconds, options @ ..] = &arguments[..] else {
        eprintln!("usage: virtio send|receive vhost|virtio-user PATH SECONDS [packed] [ring-N]");
        return ExitCode::from(2);
    };
    let pool = Pool::new(4_096);
    let ring = options.iter().find_map(|it| it.strip_prefix("ring-")?.parse().ok()).unwrap_or(256);
    let packed = options.iter().any(|it| it == "packed");
    let device = match side.as_str() {
        "vhost" => Vhost::backend(Path::new(path), 1, &pool),
        _ => Vhost::frontend(&FrontendConfig { packed, ring, ..FrontendConfig::new(path) }, &pool),
    };
    let mut device = match device {
        Ok(device) => device,
        Err(error) => {
            eprintln!("virtio: {error}");
            return ExitCode::FAILURE;
        }
    };
    let mut queue = device.queues.remove(0);
    let (wire, counters) = (queue.transmitter(), queue.counters());
    let burst: Vec<Frame> = (0..BURST).map(|_| frame(&pool)).collect();
    let (mut frames, mut spent) = (Vec::with_capacity(BURST.into()), ReturnedFrames::default());
    let end = Instant::now() + Duration::from_secs(seconds.parse().unwrap_or(10));
    let (mut start, mut first, mut second) = (None, 0, (Instant::now(), 0));
    let total = |it: napkin_nic::QueueCounts| it.rx_packets + it.tx_packets;
    queue.mask();
    loop {
        for _ in 0..1_000 {
            if what == "send" {
                wire.send_all(&burst, 0);
            } else {
                queue.poll(BURST, 0, &mut frames);
                spent.extend(frames.drain(..));
                spent.give_back();
            }
        }
        let (now, count) = (Instant::now(), total(counters.read()));
        if now >= end {
            break;
        }
        if now - second.0 >= Duration::from_secs(1) {
            println!("{}", count - second.1);
            second = (now, count);
        }
        // The first second with a peer is for warming up.
        if count > 0 && start.is_none_or(|(_, warm): (Instant, bool)| !warm) {
            let began = start.map_or(now, |(began, _)| began);
            let warm = now - began >= Duration::from_secs(1);
            (start, first) = (Some((if warm { now } else { began }, warm)), count);
        }
        if device.peers.rings.load(Relaxed) == 0 {
            std::thread::sleep(Duration::from_millis(1));
        }
    }
    let Some((began, _)) = start else { return ExitCode::FAILURE };
    let rate = (total(counters.read()) - first) as f64 / began.elapsed().as_secs_f64();
    println!("{:.2} million a second; {:?}", rate / 1e6, counters.read());
    ExitCode::SUCCESS
}

/// A frame of 60 bytes, 64 with the FCS, with the Ethernet header of an IPv4 packet.
fn frame(pool: &Pool) -> Frame {
    let mut frame = pool.take().expect("the pool is new");
    frame.buffer()[..60].fill(0);
    frame.buffer()[..14].copy_from_slice(&[2, 0, 0, 0, 0, 1, 2, 0, 0, 0, 0, 2, 8, 0]);
    frame.set_len(60);
    frame
}
