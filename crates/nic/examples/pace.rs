//! Sends frames to a virtio device at a fixed rate, and measures how many come back and how long that takes, for
//! docs/performance.md. The peer is any program that returns UDP datagrams: an echo server, or a router that routes
//! them back to their source. With `icmp` they are echo requests, which an IP stack answers in its poll, without an
//! application, as a router does.
//!
//!   pace PATH RATE SECONDS [MAC] [packed] [ring-N] [icmp]
//!
//! RATE is in frames a second; 10 shows the latency of the first frame after a pause. Note the peer's CPU time
//! beside it. MAC is the destination of the frames (02:00:00:00:00:01).

use std::path::Path;
use std::process::ExitCode;
use std::sync::atomic::Ordering::Relaxed;
use std::time::{Duration, Instant};

use napkin_nic::vhost::{FrontendConfig, Vhost};
use napkin_nic::{Frame, PacketQueue, Pool};

const BURST: u16 = 32;
/// The most frames that are made up for when they are late.
const LATE: u64 = 128;
/// Offset of the timestamp in a frame.
const STAMP: usize = 42;
/// How long to wait for the last frames.
const AFTER: Duration = Duration::from_millis(100);

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [path, rate, seconds, options @ ..] = &arguments[..] else {
        eprintln!("usage: pace PATH RATE SECONDS [MAC] [packed] [ring-N] [icmp]");
        return ExitCode::from(2);
    };
    let (Ok(rate), Ok(seconds)) = (rate.parse::<f64>(), seconds.parse::<f64>()) else {
        eprintln!("pace: give two numbers");
        return ExitCode::from(2);
    };
    let mac = options.iter().find(|it| it.contains(':')).map_or("02:00:00:00:00:01", |it| it);
    let ring = options.iter().find_map(|it| it.strip_prefix("ring-")?.parse().ok()).unwrap_or(256);
    let packed = options.iter().any(|it| it == "packed");
    let icmp = options.iter().any(|it| it == "icmp");
    let mac: Vec<u8> = mac.split(':').filter_map(|it| u8::from_str_radix(it, 16).ok()).collect();
    let pool = Pool::new(4_096.max(2 * usize::from(ring)));
    let config = FrontendConfig { packed, ring, ..FrontendConfig::new(Path::new(path)) };
    let (mut device, mut frame) = match (Vhost::frontend(&config, &pool), mac.try_into()) {
        (Ok(device), Ok(mac)) => (device, frame(mac, icmp)),
        (Err(error), _) => {
            eprintln!("pace: {error}");
            return ExitCode::FAILURE;
        }
        (_, Err(_)) => {
            eprintln!("pace: give a MAC address of six bytes");
            return ExitCode::from(2);
        }
    };
    let mut queue = device.queues.remove(0);
    let wire = queue.transmitter();
    queue.mask();
    while device.peers.rings.load(Relaxed) == 0 {
        std::thread::sleep(Duration::from_millis(1));
    }
    std::thread::sleep(Duration::from_millis(200));
    let (mut frames, mut took) = (Vec::with_capacity(BURST.into()), Vec::with_capacity(1 << 22));
    let (mut sent, mut skipped, mut refused, mut back) = (0_u64, 0_u64, 0_u64, 0_u64);
    let began = Instant::now();
    let now = |began: Instant| began.elapsed().as_nanos() as u64;
    let total = (rate * seconds) as u64;
    let end = Duration::from_secs_f64(seconds) + AFTER;
    while began.elapsed() < end && (back < total || sent < total) {
        let due = ((now(began) as f64 / 1e9 * rate) as u64).min(total);
        // Frames that fell due while this program was interrupted are skipped, not sent in a burst that no ring
        // holds.
        if due - sent > LATE {
            (skipped, sent) = (skipped + (due - sent), due);
        }
        let mut room = u64::from(BURST);
        while sent < due && room > 0 {
            frame[STAMP..STAMP + 8].copy_from_slice(&now(began).to_ne_bytes());
            if icmp {
                frame[36..38].fill(0);
                let sum = checksum(&frame[34..]);
                frame[36..38].copy_from_slice(&sum);
            }
            refused += u64::from(wire.post(&frame, 0).is_err());
            (sent, room) = (sent + 1, room - 1);
        }
        wire.flush();
        queue.poll(BURST, 0, &mut frames);
        let at = now(began);
        for frame in frames.drain(..) {
            let Some(stamp) = stamp(&frame) else { continue };
            back += 1;
            if took.len() < took.capacity() {
                took.push(at.saturating_sub(stamp));
            }
        }
    }
    took.sort_unstable();
    let at = |share: f64| took.get((took.len() as f64 * share) as usize).copied().unwrap_or(0);
    println!(
        "{} sent, {skipped} not in time, {refused} refused, {back} back; p50 {:.1} us, p99 {:.1} us, most {:.1} us",
        sent - skipped,
        at(0.5) as f64 / 1e3,
        at(0.99) as f64 / 1e3,
        took.last().copied().unwrap_or(0) as f64 / 1e3
    );
    ExitCode::SUCCESS
}

/// When a frame that came back was sent; `None` of all others.
fn stamp(frame: &Frame) -> Option<u64> {
    let is_stamped = frame.get(12..14)? == [8, 0] && [1, 17].contains(frame.get(23)?);
    Some(u64::from_ne_bytes(frame.get(STAMP..STAMP + 8)?.try_into().ok()?)).filter(|_| is_stamped)
}

/// A datagram from 1.1.1.2 to port 7 of 1.1.1.1, addresses that the routers of DPDK's examples send
/// back out of its first port; or an echo request between them.
fn frame(mac: [u8; 6], icmp: bool) -> [u8; 60] {
    let mut frame = [0; 60];
    frame[..6].copy_from_slice(&mac);
    frame[6..14].copy_from_slice(&[2, 0, 0, 0, 0, 2, 8, 0]);
    let protocol = if icmp { 1 } else { 17 };
    let header = [0x45, 0, 0, 46, 0, 0, 0, 0, 64, protocol, 0, 0, 1, 1, 1, 2, 1, 1, 1, 1];
    frame[14..34].copy_from_slice(&header);
    frame[24..26].copy_from_slice(&checksum(&header));
    match icmp {
        true => frame[34] = 8,
        false => frame[34..42].copy_from_slice(&[0x13, 0x88, 0, 7, 0, 26, 0, 0]),
    }
    frame
}

/// The Internet checksum of an even number of bytes.
fn checksum(bytes: &[u8]) -> [u8; 2] {
    let words = bytes.chunks_exact(2).map(|it| u32::from(u16::from_be_bytes([it[0], it[1]])));
    let sum: u32 = words.sum();
    let folded = (sum & 0xffff) + (sum >> 16);
    (!((folded & 0xffff) + (folded >> 16)) as u16).to_be_bytes()
}
