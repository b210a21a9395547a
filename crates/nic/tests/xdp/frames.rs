//! Tests that every frame arrives once and unchanged, over one queue and several, with buffers and without.

use std::process::Command;
use std::sync::Arc;

use napkin_nic::xdp::{Traffic, XdpConfig};
use napkin_nic::{PacketQueue, Pool, SendError};
use napkin_testing::test;

use crate::lab::{DEVICE, Engine, Lab, checked, numbered, open, small};

/// Every sent frame arrives once and unchanged, also when three threads send at once and the rings wrap many times.
/// `NAPKIN_LONG=1` sends ten million.
#[test]
fn every_frame_arrives_once_with_all_its_bytes() {
    let lab = Lab::new(1);
    let peer = lab.peer_device();
    let mut xdp = open(&small(Traffic::All), &Pool::new(512)).expect("a device");
    let mut engine = Engine::new(xdp.queues.remove(0));
    engine.unmask();
    let long = std::env::var_os("NAPKIN_LONG").is_some();
    let (senders, each) = (3, if long { 10_000_000 / 3 } else { 4_000 });
    let received = Arc::new(std::sync::atomic::AtomicU64::new(0));
    let wire = peer.queue.transmitter();
    let sending: Vec<_> = (0..senders)
        .map(|sender| {
            let (wire, received) = (Arc::clone(&wire), Arc::clone(&received));
            std::thread::spawn(move || {
                let mut frame = [0; 2048];
                for number in 0..each {
                    // Keep no more in flight than the other side has room for.
                    while number * senders
                        >= received.load(std::sync::atomic::Ordering::SeqCst) + 48
                    {
                        wire.flush();
                        std::thread::yield_now();
                    }
                    let length = numbered(number * senders + sender, &mut frame);
                    while let Err(error) = wire.post(&frame[..length], 0) {
                        assert_eq!(error, SendError::RingFull);
                        std::thread::yield_now();
                    }
                }
                wire.flush();
            })
        })
        .collect();
    let mut seen = vec![false; (senders * each) as usize];
    let mut count = 0;
    let mut frames = Vec::with_capacity(64);
    while count < senders * each {
        if engine.queue.poll(64, 0, &mut frames).rx == 0 {
            engine.unmask();
            assert!(engine.sleeps(10_000), "{count} of {} came", senders * each);
        }
        for frame in frames.drain(..) {
            // The kernel sends a few frames of its own.
            if frame[12..14] != [0x88, 0xb5] {
                continue;
            }
            let number = checked(&frame).expect("its bytes are those that were sent");
            assert!(!std::mem::replace(&mut seen[number as usize], true), "{number} came twice");
            count += 1;
            received.fetch_add(1, std::sync::atomic::Ordering::SeqCst);
        }
    }
    sending.into_iter().for_each(|sender| sender.join().expect("ends"));
    let sent = peer.queue.counters().read();
    assert_eq!(sent.tx_packets, senders * each);
    assert_eq!(engine.queue.counters().read().rx_dropped(), 0);
}

#[test]
fn a_card_takes_frames_to_any_address_as_long_as_that_is_wanted() {
    let _lab = Lab::new(1);
    // IFF_PROMISC does not show the requests of sockets; the kernel's promiscuity count does.
    let promiscuity = || {
        let output = Command::new("ip").args(["-d", "link", "show", DEVICE]).output();
        let shown = String::from_utf8(output.expect("ip runs").stdout).expect("text");
        let (_, rest) = shown.split_once("promiscuity ").expect("it is told");
        rest.split_whitespace().next().and_then(|count| count.parse::<u32>().ok())
    };
    assert_eq!(promiscuity(), Some(0));
    let config = XdpConfig { promiscuous: true, ..small(Traffic::All) };
    let xdp = open(&config, &Pool::new(512)).expect("a device");
    assert_eq!(promiscuity(), Some(1));
    drop(xdp);
    assert_eq!(promiscuity(), Some(0));
}

#[test]
fn frames_without_a_buffer_are_dropped_and_counted_and_the_next_ones_come() {
    let lab = Lab::new(1);
    let peer = lab.peer_device();
    let pool = Pool::new(128);
    let mut xdp = open(&small(Traffic::All), &pool).expect("a device");
    assert_eq!(pool.available(), 0);
    let mut engine = Engine::new(xdp.queues.remove(0));
    engine.unmask();
    let wire = peer.queue.transmitter();
    let mut bytes = [0; 2048];
    for number in 0..1000 {
        let length = numbered(number, &mut bytes);
        wire.send(&bytes[..length], 0).expect("room");
        let mut none = Vec::with_capacity(64);
        engine.queue.poll(64, 0, &mut none);
        assert!(none.is_empty(), "there is no buffer for it");
    }
    assert!(engine.queue.counters().read().rx_no_buffer >= 1000);
}

#[test]
fn all_queues_of_a_device_share_its_memory_and_each_has_its_own_frames() {
    let lab = Lab::new(2);
    let peer_queues = lab.peer_device_of_all();
    let mut xdp = open(&small(Traffic::All), &Pool::new(1024)).expect("a device");
    assert_eq!(xdp.numbers, [0, 1]);
    let mut bytes = [0; 2048];
    // The receive queues of a veth correspond to the peer's transmit queues, in order.
    for (number, from) in (0..).zip(&peer_queues) {
        let length = numbered(number, &mut bytes);
        from.transmitter().send(&bytes[..length], 0).expect("room");
    }
    for (number, queue) in (0..).zip(xdp.queues.drain(..)) {
        let frame = Engine::new(queue).next(|frame| frame[12..14] == [0x88, 0xb5]);
        assert_eq!(checked(&frame), Some(number));
    }
}
