//! Tests of both ends of a vhost-user socket in one process, each driven as an engine drives a queue; and of peers
//! that connect, disconnect, and misbehave.

use std::io::{Read, Write};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::atomic::{AtomicU32, AtomicU64};
use std::time::{Duration, Instant};

use napkin_nic::vhost::{FrontendConfig, Peers, Vhost, VhostError, VhostQueue};
use napkin_nic::{Frame, PacketQueue, Pool, SendError};
use napkin_testing::{KillOnDrop, until};
use rustix::event::{PollFd, PollFlags, Timespec, poll};

/// Far longer than anything that works.
const HANGS: Duration = Duration::from_secs(60);

/// A path of our own, removed at the end.
struct TempPath(PathBuf);

impl TempPath {
    fn new() -> TempPath {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let name = format!("napkin-vhost-{}-{}", std::process::id(), NEXT.fetch_add(1, Relaxed));
        TempPath(std::env::temp_dir().join(name))
    }
}

impl Drop for TempPath {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.0);
    }
}

fn backend(path: &Path) -> (VhostQueue, Arc<Peers>) {
    let Vhost { mut queues, peers } =
        Vhost::backend(path, 1, &Pool::new(2_048)).expect("a free path");
    (queues.remove(0), peers)
}

fn frontend(config: &FrontendConfig) -> (VhostQueue, Arc<Peers>) {
    let Vhost { mut queues, peers } =
        Vhost::frontend(config, &Pool::new(2_048)).expect("it can be");
    (queues.remove(0), peers)
}

fn connected(peers: &Peers, rings: u64) {
    until("the rings are in use", || peers.rings.load(Relaxed) == rings);
}

/// A frame whose bytes follow from its number.
fn numbered(number: u32) -> Vec<u8> {
    let len = 60 + number as usize % 1_400;
    let mut frame: Vec<u8> = (0..len).map(|at| (at as u32 ^ number) as u8).collect();
    frame[14..18].copy_from_slice(&number.to_le_bytes());
    frame
}

fn number(frame: &[u8]) -> u32 {
    let number = u32::from_le_bytes(frame[14..18].try_into().expect("four bytes"));
    assert_eq!(frame, numbered(number), "bytes have changed");
    number
}

/// Sleeps until the queue interrupts; `false` after ten seconds.
fn sleep(queue: &mut VhostQueue) -> bool {
    sleep_of(&mut [queue])
}

/// Sleeps until one of the queues interrupts; `false` after ten seconds.
fn sleep_of(queues: &mut [&mut VhostQueue]) -> bool {
    let timeout = Timespec { tv_sec: 10, tv_nsec: 0 };
    let interrupted: Vec<bool> = {
        let watch = queues.iter().map(|it| PollFd::from_borrowed_fd(it.interrupt(), PollFlags::IN));
        let mut watched: Vec<_> = watch.collect();
        let _ = poll(&mut watched, Some(&timeout));
        watched.iter().map(|it| !it.revents().is_empty()).collect()
    };
    for (queue, interrupted) in queues.iter_mut().zip(&interrupted) {
        if *interrupted {
            queue.acknowledge();
        }
    }
    interrupted.contains(&true)
}

/// Polls as an engine does: masked, until no frame is left and interrupts are allowed again.
fn drain(queue: &mut VhostQueue, mut each: impl FnMut(&Frame)) {
    let mut frames = Vec::with_capacity(64);
    loop {
        queue.mask();
        while queue.poll(64, 0, &mut frames).rx == 64 {
            frames.drain(..).for_each(|frame| each(&frame));
        }
        frames.drain(..).for_each(|frame| each(&frame));
        if !queue.unmask(0) {
            return;
        }
    }
}

/// Sends `count` numbered frames from one queue to another, which sleeps in between: none is lost, changed or
/// overtaken.
fn carry(from: &VhostQueue, to: &mut VhostQueue, count: u32) {
    let wire = from.transmitter();
    std::thread::scope(|scope| {
        scope.spawn(|| {
            for number in 0..count {
                let frame = numbered(number);
                while let Err(error) = wire.send(&frame, 0) {
                    assert_eq!(error, SendError::RingFull);
                    std::thread::yield_now();
                }
                if number % 997 == 0 {
                    std::thread::sleep(Duration::from_micros(200));
                }
            }
        });
        let mut next = 0;
        loop {
            drain(to, |frame| {
                assert_eq!(number(frame), next);
                next += 1;
            });
            if next == count {
                return;
            }
            assert!(sleep(to), "an interrupt was lost after {next} frames");
        }
    });
}

/// Frames in each direction: few in a regular test run, ten million by hand.
fn frames() -> u32 {
    std::env::var("NAPKIN_VHOST_FRAMES").ok().and_then(|it| it.parse().ok()).unwrap_or(10_000)
}

#[test]
fn frames_go_both_ways_over_split_and_packed_rings() {
    for packed in [false, true] {
        for ring in [16, 256] {
            let place = TempPath::new();
            let (mut here, peers) = backend(&place.0);
            let config = FrontendConfig { packed, ring, ..FrontendConfig::new(&place.0) };
            let (mut there, others) = frontend(&config);
            connected(&peers, 2);
            connected(&others, 2);
            carry(&there, &mut here, frames());
            carry(&here, &mut there, frames());
            let (here_counts, there_counts) = (here.counters().read(), there.counters().read());
            let n = u64::from(frames());
            assert_eq!((here_counts.rx_packets, there_counts.tx_packets), (n, n));
            assert_eq!((here_counts.tx_packets, there_counts.rx_packets), (n, n));
            assert_eq!((here_counts.rx_dropped(), there_counts.rx_dropped()), (0, 0));
            assert_eq!((peers.refused.load(Relaxed), others.refused.load(Relaxed)), (0, 0));
        }
    }
}

#[test]
fn a_frame_is_under_way_until_the_peer_has_taken_it() {
    for packed in [false, true] {
        let place = TempPath::new();
        let (mut here, peers) = backend(&place.0);
        let (there, _) = frontend(&FrontendConfig { packed, ..FrontendConfig::new(&place.0) });
        until("nobody there has any", || there.transmitter().in_flight() == 0);
        connected(&peers, 2);
        let (device_wire, driver_wire) = (here.transmitter(), there.transmitter());
        until("a first frame went", || driver_wire.send(&numbered(0), 0).is_ok());
        (1..3).for_each(|number| driver_wire.send(&numbered(number), 0).expect("room"));
        assert_eq!(driver_wire.in_flight(), 3);
        until("two were taken", || here.poll(2, 0, &mut Vec::with_capacity(2)).rx == 2);
        assert_eq!(driver_wire.in_flight(), 1);
        drain(&mut here, |frame| assert_eq!(number(frame), 2));
        assert_eq!(driver_wire.in_flight(), 0);
        until("a frame to the driver went", || device_wire.send(&numbered(3), 0).is_ok());
        assert_eq!(device_wire.in_flight(), 0, "it stands in the driver's own memory");
    }
}

#[test]
fn an_interrupt_that_a_poll_was_faster_than_does_not_come_again_and_again() {
    let place = TempPath::new();
    let (mut here, peers) = backend(&place.0);
    let (there, _) = frontend(&FrontendConfig::new(&place.0));
    connected(&peers, 2);
    drain(&mut here, |_| ());
    there.transmitter().send(&numbered(1), 0).expect("room");
    // Polled without an acknowledgement, twice: as by an owner that was polling when the interrupt came.
    let mut frames = 0;
    (0..2).for_each(|_| drain(&mut here, |_| frames += 1));
    assert_eq!(frames, 1);
    let at_once = Timespec { tv_sec: 0, tv_nsec: 0 };
    let mut watched = [PollFd::from_borrowed_fd(here.interrupt(), PollFlags::IN)];
    assert_eq!(poll(&mut watched, Some(&at_once)), Ok(0), "it is still readable");
}

#[test]
fn senders_on_many_threads_wait_for_nobody_and_nothing_is_lost() {
    for packed in [false, true] {
        let place = TempPath::new();
        let (mut here, peers) = backend(&place.0);
        // A small ring, which is often full.
        let config = FrontendConfig { ring: 16, packed, ..FrontendConfig::new(&place.0) };
        let (mut there, _) = frontend(&config);
        connected(&peers, 2);
        let each = frames() / 4;
        let refused = AtomicU64::new(0);
        let start = Instant::now();
        std::thread::scope(|scope| {
            for thread in 0..4 {
                let (wire, refused) = (there.transmitter(), &refused);
                scope.spawn(move || {
                    for number in 0..each {
                        let frame = numbered(thread * each + number);
                        while let Err(error) = wire.send(&frame, 0) {
                            assert_eq!(error, SendError::RingFull);
                            refused.fetch_add(1, Relaxed);
                            assert!(start.elapsed() < HANGS, "nobody makes room");
                            std::thread::yield_now();
                        }
                    }
                });
            }
            let mut next: Vec<u32> = (0..4).map(|thread| thread * each).collect();
            let mut received = 0;
            while received < 4 * each {
                drain(&mut here, |frame| {
                    let number = number(frame);
                    let next = &mut next[(number / each) as usize];
                    assert_eq!(number, *next, "one was lost, or overtaken");
                    (*next, received) = (number + 1, received + 1);
                });
                // The senders' queue as well: frames that a sender left when the ring was full are sent by the
                // queue's owner, once the peer has notified of the room.
                drain(&mut there, |_| ());
                let woken = received == 4 * each || sleep_of(&mut [&mut here, &mut there]);
                assert!(woken, "an interrupt was lost at {next:?}");
            }
        });
        let (sent, received) = (there.counters().read(), here.counters().read());
        let all = u64::from(4 * each);
        assert_eq!((sent.tx_packets, received.rx_packets), (all, all));
        assert_eq!(sent.tx_dropped, refused.load(Relaxed), "who was refused was told");
    }
}

#[test]
fn several_queues_are_several_pairs_and_an_idle_one_sends_through_the_first() {
    let place = TempPath::new();
    let device = Vhost::backend(&place.0, 4, &Pool::new(2_048)).expect("a free path");
    let config = FrontendConfig { queues: 3, ..FrontendConfig::new(&place.0) };
    let mut driver = Vhost::frontend(&config, &Pool::new(2_048)).expect("it can be");
    connected(&device.peers, 6);
    connected(&driver.peers, 6);
    for (queue, pair) in device.queues.iter().zip([0, 1, 2, 0]) {
        queue.transmitter().send(&numbered(7), 0).expect("room");
        let mut got = 0;
        drain(&mut driver.queues[pair], |frame| got += u32::from(number(frame) == 7));
        assert_eq!(got, 1, "pair {pair}");
    }
    let too_many = FrontendConfig { queues: 5, ..FrontendConfig::new(&place.0) };
    drop(driver);
    let driver = Vhost::frontend(&too_many, &Pool::new(64)).expect("it can be");
    until("it is refused", || driver.peers.refused.load(Relaxed) > 0);
    let trouble = driver.peers.take_problem().expect("a reason");
    assert!(trouble.contains("has 4 queues: give no more"), "{trouble}");
}

#[test]
fn either_side_may_die_and_come_back_under_traffic() {
    let place = TempPath::new();
    let lives =
        std::env::var("NAPKIN_VHOST_LIVES").ok().and_then(|it| it.parse().ok()).unwrap_or(15);
    let (mut here, peers) = backend(&place.0);
    for life in 0..lives {
        let packed = life % 2 == 1;
        let config = FrontendConfig { packed, ..FrontendConfig::new(&place.0) };
        let (mut there, others) = frontend(&config);
        connected(&others, 2);
        until("it is served", || peers.served.load(Relaxed) == life + 1);
        connected(&peers, 2);
        drain(&mut here, |_| ());
        carry(&there, &mut here, 300);
        carry(&here, &mut there, 300);
        // It is closed under traffic.
        let wire = there.transmitter();
        (0..50).for_each(|number| _ = wire.send(&numbered(number), 0));
        drop(there);
        assert_eq!(wire.send(&numbered(0), 0), Err(SendError::Down));
        connected(&peers, 0);
        assert_eq!(here.transmitter().send(&numbered(0), 0), Err(SendError::Down));
    }
    // The same with the backend, while the frontend stays.
    drop(here);
    let (mut there, others) = frontend(&FrontendConfig::new(&place.0));
    for life in 0..lives {
        let (mut here, peers) = backend(&place.0);
        until("it is served", || others.served.load(Relaxed) == life + 1);
        connected(&peers, 2);
        connected(&others, 2);
        drain(&mut there, |_| ());
        carry(&here, &mut there, 300);
        carry(&there, &mut here, 300);
        let wire = here.transmitter();
        (0..50).for_each(|number| _ = wire.send(&numbered(number), 0));
        drop(here);
        connected(&others, 0);
    }
}

/// In a process of its own: a backend that echoes all frames, until it is killed.
fn echo(path: &Path) -> ! {
    let (mut queue, _) = backend(path);
    let wire = queue.transmitter();
    loop {
        drain(&mut queue, |frame| _ = wire.send(frame, 0));
        sleep(&mut queue);
    }
}

#[test]
fn a_backend_is_killed_under_traffic_and_the_next_one_goes_on_where_it_was() {
    const CHILD: &str = "NAPKIN_TEST_VHOST_ECHO";
    const NAME: &str = "a_backend_is_killed_under_traffic_and_the_next_one_goes_on_where_it_was";
    if let Some(path) = std::env::var_os(CHILD) {
        echo(Path::new(&path));
    }
    let lives =
        std::env::var("NAPKIN_VHOST_LIVES").ok().and_then(|it| it.parse().ok()).unwrap_or(15);
    for packed in [false, true] {
        let place = TempPath::new();
        let config = FrontendConfig { packed, ring: 64, ..FrontendConfig::new(&place.0) };
        let (mut there, others) = frontend(&config);
        let wire = there.transmitter();
        let mut received = 0;
        for life in 0..lives {
            let this = std::env::current_exe().expect("a path");
            let child = std::process::Command::new(this)
                .args(["--exact", NAME])
                .env(CHILD, &place.0)
                .stdout(std::process::Stdio::null())
                .spawn();
            let child = KillOnDrop(child.expect("it starts"));
            until("it is served", || others.served.load(Relaxed) == life + 1);
            // Killed at another position each time, and under traffic.
            let until = received + 100 + 37 * life;
            let mut sent = 0;
            while received < until {
                (0..16).for_each(|_| sent += u32::from(wire.send(&numbered(sent), 0).is_ok()));
                drain(&mut there, |frame| received += u64::from(number(frame) < u32::MAX));
            }
            drop(child);
            connected(&others, 0);
        }
        assert_eq!(others.refused.load(Relaxed), 0, "{:?}", others.take_problem());

        // The last one does not poll, and is killed as well.
        let (mut here, peers) = backend(&place.0);
        connected(&peers, 2);
        until("it is served", || others.served.load(Relaxed) == lives + 1);
        drain(&mut here, |_| ());
        drain(&mut there, |_| ());
        (0..64).for_each(|it| wire.send(&numbered(it), 0).expect("all buffers are there"));
        assert_eq!(wire.send(&numbered(64), 0), Err(SendError::RingFull));
        drop(here);
        connected(&others, 0);
        // A backend that goes before it has got the rings leaves them unchanged.
        let listener = UnixListener::bind(&place.0).expect("a free path");
        let (gone, _) = listener.accept().expect("it comes");
        drop(listener);
        drop(gone);
        let (mut here, peers) = backend(&place.0);
        connected(&peers, 2);
        until("it is served", || others.served.load(Relaxed) == lives + 2);
        let mut next = 0;
        drain(&mut here, |frame| {
            assert_eq!(number(frame), next);
            next += 1;
        });
        assert_eq!(next, 64, "what the last one had not taken is there for the next");
        carry(&there, &mut here, 300);
        carry(&here, &mut there, 300);
        assert_eq!((peers.refused.load(Relaxed), others.refused.load(Relaxed)), (0, 0));
        let counts = there.counters().read();
        assert_eq!((counts.rx_malformed, counts.rx_truncated, counts.rx_no_buffer), (0, 0, 0));
    }
}

#[test]
fn a_path_that_is_taken_is_refused_and_a_stale_one_is_replaced() {
    let place = TempPath::new();
    let pool = Pool::new(64);
    drop(UnixListener::bind(&place.0).expect("a free path"));
    let device = Vhost::backend(&place.0, 1, &pool).expect("nobody listens there");
    assert!(matches!(Vhost::backend(&place.0, 1, &pool), Err(VhostError::InUse { .. })));
    assert!(place.0.exists());
    drop(device);
    assert!(!place.0.exists(), "it is removed at the end");
    std::fs::write(&place.0, "precious").expect("written");
    assert!(matches!(Vhost::backend(&place.0, 1, &pool), Err(VhostError::NoSocket { .. })));
    assert_eq!(std::fs::read(&place.0).expect("read"), b"precious");
    let nowhere = Path::new("/nonexistent/vhost");
    assert!(matches!(Vhost::backend(nowhere, 1, &pool), Err(VhostError::Listen { .. })));
    for queues in [0, 65] {
        assert!(matches!(Vhost::backend(&place.0, queues, &pool), Err(VhostError::Queues { .. })));
    }
    for ring in [0, 8, 100, 1_000, u16::MAX] {
        let config = FrontendConfig { ring, ..FrontendConfig::new("x") };
        assert!(matches!(Vhost::frontend(&config, &pool), Err(VhostError::Ring { .. })), "{ring}");
    }
}

/// The bytes of a message.
fn message(request: u32, flags: u32, size: u32, payload: &[u8]) -> Vec<u8> {
    let header = [request, flags, size].map(u32::to_ne_bytes).concat();
    [&header[..], payload].concat()
}

#[test]
fn messages_that_make_no_sense_end_the_connection_and_no_more() {
    let place = TempPath::new();
    let (mut here, peers) = backend(&place.0);
    let pair = |a: u32, b: u32| [a.to_ne_bytes(), b.to_ne_bytes()].concat();
    let region = [1u64, 0, 0x1000, 0, 0].map(u64::to_ne_bytes).concat();
    let cases: Vec<(Vec<u8>, &str)> = vec![
        (message(1, 2, 0, &[]), "of another version"),
        (message(1, 1, 5_000, &[]), "longer than 4096"),
        (message(1, 1, 4, &[0; 4]), "has not the form"),
        (message(1, 5, 0, &[]), "has not the form"),
        (message(77, 1, 0, &[]), "request 77 was not agreed on"),
        (message(0, 1, 0, &[]), "request 0 was not agreed on"),
        (message(2, 1, 8, &u64::MAX.to_ne_bytes()), "features"),
        (message(2, 1, 8, &0u64.to_ne_bytes()), "virtio 1 has to be"),
        (message(2, 1, 4, &[0; 4]), "has not the form"),
        (message(16, 1, 8, &4u64.to_ne_bytes()), "features"),
        (message(8, 1, 8, &pair(0, 100)), "a ring of 100 entries"),
        (message(8, 1, 8, &pair(0, 0)), "a ring of 0 entries"),
        (message(8, 1, 8, &pair(0, 65_536)), "a ring of 65536 entries"),
        (message(8, 1, 8, &pair(2, 64)), "ring 2 does not exist"),
        (message(11, 1, 8, &pair(u32::MAX, 0)), "does not exist"),
        (message(9, 1, 8, &pair(0, 0)), "has not the form"),
        (message(12, 1, 8, &0u64.to_ne_bytes()), "has not the form"),
        (message(13, 1, 8, &0x300u64.to_ne_bytes()), "has not the form"),
        (message(12, 1, 8, &0x105u64.to_ne_bytes()), "ring 5 does not exist"),
        (message(18, 1, 8, &pair(0, 2)), "has not the form"),
        (message(5, 1, 40, &region), "has not the form"),
    ];
    for (bytes, why) in cases {
        let mut peer = UnixStream::connect(&place.0).expect("it listens");
        peer.set_read_timeout(Some(Duration::from_secs(10))).expect("a time");
        peer.write_all(&bytes).expect("written");
        assert_eq!(peer.read(&mut [0; 64]).unwrap_or(0), 0, "{why}");
        let trouble = peers.take_problem().unwrap_or_default();
        assert!(trouble.contains(why), "{trouble} is not {why}");
    }
    // An incomplete message.
    let mut peer = UnixStream::connect(&place.0).expect("it listens");
    peer.write_all(&message(1, 1, 0, &[])[..7]).expect("written");
    assert_eq!(peer.read(&mut [0; 64]).unwrap_or(0), 0);
    assert!(peers.take_problem().is_some_and(|it| it.contains("did not answer")));
    // After all of them, the backend still works.
    let (there, others) = frontend(&FrontendConfig::new(&place.0));
    connected(&others, 2);
    connected(&peers, 2);
    carry(&there, &mut here, 300);
}

#[test]
fn a_backend_that_answers_nonsense_or_nothing_is_tried_again() {
    let place = TempPath::new();
    let listener = UnixListener::bind(&place.0).expect("a free path");
    let (queue, peers) = frontend(&FrontendConfig::new(&place.0));
    for (answer, why) in [
        (message(1, 5, 4, &[0; 4]), "has not the form of a number"),
        (message(2, 5, 8, &[0; 8]), "is not the answer"),
        (message(1, 5, 8, &[0; 8]), "is older than virtio 1.0"),
        (message(1, 1, 8, &[0; 8]), "is not the answer"),
        (message(1, 5, 8, &[0; 4]), "did not answer within 1 s"),
    ] {
        let (mut peer, _) = listener.accept().expect("it comes");
        peer.read_exact(&mut [0; 12]).expect("a question");
        peer.write_all(&answer).expect("written");
        until(why, || peers.take_problem().is_some_and(|it| it.contains(why)));
    }
    // A persistent error is reported, and counted, once.
    for _ in 0..3 {
        let (mut peer, _) = listener.accept().expect("it comes");
        peer.read_exact(&mut [0; 12]).expect("a question");
        peer.write_all(&message(1, 5, 8, &[0; 8])).expect("written");
    }
    let _next = listener.accept().expect("it comes");
    assert_eq!(peers.refused.load(Relaxed), 6);
    assert_eq!(queue.transmitter().send(&numbered(0), 0), Err(SendError::Down));
}
