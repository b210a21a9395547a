//! Tests of both ends of a cable, in one thread.

use proptest::prelude::*;

use super::*;

fn end(queues: u16, ring: usize, buffers: usize) -> EndConfig {
    EndConfig { queues, ring, pool: Pool::new(buffers) }
}

/// A cable with one queue at each end.
fn pair(ring: usize, buffers: usize) -> (CableQueue, CableQueue) {
    let (mut one, mut other) =
        cable(end(1, ring, buffers), end(1, ring, buffers)).expect("a cable");
    (one.remove(0), other.remove(0))
}

fn frame(number: u8) -> [u8; 60] {
    [number; 60]
}

/// A UDP datagram from `port`.
fn datagram(port: u16) -> [u8; 60] {
    let mut frame = [0; 60];
    frame[12..14].copy_from_slice(&[8, 0]);
    (frame[14], frame[23]) = (0x45, 17);
    frame[34..36].copy_from_slice(&port.to_be_bytes());
    frame
}

fn polled(queue: &mut CableQueue, budget: u16) -> Vec<Frame> {
    let mut frames = Vec::new();
    assert_eq!(usize::from(queue.poll(budget, 0, &mut frames).rx), frames.len());
    frames
}

fn readable(queue: &CableQueue) -> bool {
    use rustix::event::{PollFd, PollFlags, Timespec, poll};
    let interrupt = queue.interrupt();
    let mut watched = [PollFd::new(&interrupt, PollFlags::IN)];
    let at_once = Timespec { tv_sec: 0, tv_nsec: 0 };
    poll(&mut watched, Some(&at_once)).expect("it can be asked") == 1
}

#[test]
fn what_one_end_sends_the_other_polls_in_order_and_both_count_it() {
    let (here, mut there) = pair(4, 8);
    let wire = here.transmitter();
    for number in 0..3 {
        wire.send(&frame(number), 100 + Ns::from(number)).expect("room");
    }
    let frames = polled(&mut there, 2);
    assert_eq!((frames[0][..] == frame(0), frames[1].arrived()), (true, 101));
    assert_eq!(there.pending(), 1);
    let frames = polled(&mut there, 64);
    assert!(frames.len() == 1 && frames[0][..] == frame(2));
    assert!(polled(&mut there, 64).is_empty());
    let (sent, received) = (here.counters().read(), there.counters().read());
    assert_eq!((sent.tx_packets, sent.tx_bytes, sent.rx_packets), (3, 180, 0));
    assert_eq!((received.rx_packets, received.rx_bytes, received.tx_packets), (3, 180, 0));
}

#[test]
fn a_full_ring_refuses_and_has_room_after_a_poll() {
    // A size that is not a power of two is kept as it is.
    let (here, mut there) = pair(3, 8);
    let wire = here.transmitter();
    (0..3).for_each(|number| wire.send(&frame(number), 0).expect("room"));
    assert_eq!(wire.send(&frame(3), 0), Err(SendError::RingFull));
    assert_eq!(polled(&mut there, 1).len(), 1);
    wire.send(&frame(4), 0).expect("room again");
    assert_eq!(wire.send(&frame(5), 0), Err(SendError::RingFull));
    let counts = here.counters().read();
    assert_eq!((counts.tx_packets, counts.tx_dropped), (4, 2));
    let last = polled(&mut there, 64).pop().expect("three frames");
    assert_eq!(last[..], frame(4));
}

#[test]
fn who_keeps_all_buffers_gets_no_more_frames_and_that_is_counted_once() {
    let (here, mut there) = pair(8, 2);
    let wire = here.transmitter();
    (0..3).for_each(|number| wire.send(&frame(number), 0).expect("it leaves"));
    let kept = polled(&mut there, 64);
    assert_eq!((kept.len(), there.counters().read().rx_no_buffer), (2, 1));
    assert_eq!(here.counters().read().tx_packets, 3);
    drop(kept);
    wire.send(&frame(3), 0).expect("it leaves");
    assert_eq!(polled(&mut there, 64).len(), 1);
}

#[test]
fn what_is_no_frame_and_what_has_nowhere_to_go_is_refused_by_name() {
    let (here, there) = pair(8, 8);
    let wire = here.transmitter();
    assert_eq!(wire.send(&[0; 13], 0), Err(SendError::TooShort));
    assert_eq!(wire.send(&[0; FRAME_CAPACITY + 1], 0), Err(SendError::TooLong));
    wire.send(&[0; FRAME_CAPACITY], 0).expect("it just fits");
    drop(there);
    assert_eq!(wire.send(&frame(0), 0), Err(SendError::Down));
    assert_eq!(here.counters().read().tx_dropped, 3);
}

#[test]
fn it_interrupts_once_for_each_time_that_it_is_unmasked() {
    let (here, mut there) = pair(8, 16);
    let wire = here.transmitter();
    wire.send(&frame(0), 0).expect("room");
    assert!(!readable(&there), "masked");
    assert!(there.unmask(0), "a frame waits already");
    assert_eq!(polled(&mut there, 64).len(), 1);
    assert!(!there.unmask(0));
    (1..3).for_each(|number| wire.send(&frame(number), 0).expect("room"));
    assert!(readable(&there));
    there.acknowledge();
    assert!(!readable(&there) && there.counters().read().interrupts_rx == 1);
    there.acknowledge();
    assert_eq!(there.counters().read().interrupts_rx, 1, "there was none");
    assert_eq!(polled(&mut there, 64).len(), 2);
    assert!(!there.unmask(0));
    there.mask();
    wire.send(&frame(3), 0).expect("room");
    assert!(!readable(&there), "masked again");
}

#[test]
fn an_interrupt_that_a_poll_was_faster_than_is_taken_back() {
    let (here, mut there) = pair(8, 16);
    assert!(!there.unmask(0));
    here.transmitter().send(&frame(0), 0).expect("room");
    assert!(readable(&there));
    assert_eq!(polled(&mut there, 64).len(), 1);
    assert!(!there.unmask(0));
    assert!(!readable(&there));
}

#[test]
fn a_flow_keeps_its_queue_and_flows_are_spread() {
    let (mut many, one) = cable(end(4, 512, 2_048), end(1, 8, 8)).expect("a cable");
    let wire = one[0].transmitter();
    for port in 0..400 {
        wire.send(&datagram(port), 0).expect("room");
    }
    let counts: Vec<usize> = many.iter().map(CableQueue::pending).collect();
    // The mean is 100 a queue, with a standard deviation of 9.
    assert!(counts.iter().all(|count| (40..160).contains(count)), "{counts:?}");
    let ports = |queue: &mut CableQueue| -> Vec<Vec<u8>> {
        polled(queue, 512).iter().map(|frame| frame[34..36].to_vec()).collect()
    };
    let first: Vec<_> = many.iter_mut().map(ports).collect();
    for port in 0..400 {
        wire.send(&datagram(port), 0).expect("room");
    }
    let second: Vec<_> = many.iter_mut().map(ports).collect();
    assert_eq!(first, second);
}

#[test]
fn sizes_that_make_no_sense_are_refused() {
    let refused = |queues, ring| cable(end(queues, ring, 1), end(1, 1, 1)).unwrap_err();
    assert!(matches!(refused(0, 1), CableError::Queues(0)));
    assert!(matches!(refused(1, 0), CableError::Ring(0)));
    let error = refused(1, MAX_RING + 1).to_string();
    assert_eq!(error, "a ring of a cable holds 1 to 65536 frames, not 65537");
}

/// One operation on a cable.
#[derive(Debug, Clone)]
enum Act {
    Send { from: usize, port: u16 },
    Poll { queue: usize, budget: u16, keep: bool },
    LetGo,
    Unmask(usize),
}

fn act() -> impl Strategy<Value = Act> {
    prop_oneof![
        4 => (0..2usize, 0..50u16).prop_map(|(from, port)| Act::Send { from, port }),
        2 => (0..3usize, 0..6u16, any::<bool>())
            .prop_map(|(queue, budget, keep)| Act::Poll { queue, budget, keep }),
        1 => Just(Act::LetGo),
        1 => (0..3usize).prop_map(Act::Unmask),
    ]
}

proptest! {
    /// After any sequence of operations, each frame is in exactly one counter or waits in a ring, none comes twice
    /// or out of its flow's order, and an unmasked queue with a frame has interrupted.
    #[test]
    fn every_frame_is_accounted_for(acts in proptest::collection::vec(act(), 0..200)) {
        let (mut to, from) = cable(end(3, 5, 12), end(2, 1, 1)).expect("a cable");
        let (mut sent, mut refused, mut kept) = (0u64, 0u64, Vec::new());
        let mut numbers = [0u8; 50];
        let mut seen = [0u8; 50];
        for act in acts {
            match act {
                Act::Send { from: queue, port } => {
                    let mut bytes = datagram(port);
                    let number = &mut numbers[usize::from(port)];
                    bytes[59] = *number + 1;
                    match from[queue].transmitter().send(&bytes, 0) {
                        Ok(()) => { sent += 1; *number += 1; }
                        Err(error) => {
                            prop_assert_eq!(error, SendError::RingFull);
                            refused += 1;
                        }
                    }
                }
                Act::Poll { queue, budget, keep } => {
                    for frame in polled(&mut to[queue], budget) {
                        let port = usize::from(u16::from_be_bytes([frame[34], frame[35]]));
                        // A frame that found no buffer is missing; no other is repeated.
                        prop_assert!(frame[59] > seen[port]);
                        seen[port] = frame[59];
                        if keep { kept.push(frame); }
                    }
                }
                Act::LetGo => kept.clear(),
                Act::Unmask(queue) => {
                    let waits = to[queue].pending() > 0;
                    prop_assert_eq!(to[queue].unmask(0), waits);
                }
            }
            for queue in &to {
                let lost = queue.pending() > 0
                    && queue.ring.unmasked.load(SeqCst)
                    && !readable(queue);
                prop_assert!(!lost, "a frame waits and nobody is told");
            }
            let mut there = crate::QueueCounts::default();
            to.iter().for_each(|queue| there.add(&queue.counters().read()));
            let mut here = crate::QueueCounts::default();
            from.iter().for_each(|queue| here.add(&queue.counters().read()));
            let waiting: usize = to.iter().map(CableQueue::pending).sum();
            prop_assert_eq!((here.tx_packets, here.tx_dropped), (sent, refused));
            prop_assert_eq!(there.rx_packets + there.rx_no_buffer + waiting as u64, sent);
        }
    }
}
