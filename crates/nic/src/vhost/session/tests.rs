//! Tests of a session with a driver's messages, without a socket.

use rustix::event::{EventfdFlags, eventfd};

use super::super::inflight::InflightAt;
use super::super::packed_ring::{AVAILABLE, Position};
use super::super::ports;
use super::super::queue::VhostQueue;
use super::super::tracking::PackedTracking;
use super::*;
use crate::{PacketQueue, Pool, SendError};

const START: u64 = 1 << 20;
const TABLE: u64 = START + 0x1000;
const DRIVER: u64 = START + 0x2000;
const DEVICE: u64 = START + 0x3000;

/// A driver that has made one buffer available to receive into.
fn begin(session: &mut Session) -> Memory {
    begin_at(session, 0)
}

/// A driver with one ring, and one buffer in it for the device to write into.
fn begin_at(session: &mut Session, ring: u32) -> Memory {
    let (memory, file) = Memory::own(START, 0x1_0000).expect("a memfd");
    let buffer = [&(START + 0x4000).to_le_bytes()[..], &2_060u32.to_le_bytes(), &[2, 0, 0, 0]];
    assert!(memory.write(TABLE, &buffer.concat()));
    assert!(memory.write(DRIVER + 2, &1u16.to_le_bytes()));
    let region = [START, 0x1_0000, START, 0].map(u64::to_ne_bytes).concat();
    let parts = [TABLE, DEVICE, DRIVER, 0].map(u64::to_ne_bytes).concat();
    let event = || vec![eventfd(0, EventfdFlags::CLOEXEC).expect("an eventfd")];
    for (request, payload, files) in [
        (request::SET_FEATURES, features::VERSION_1.to_ne_bytes().to_vec(), vec![]),
        (request::SET_MEM_TABLE, [two(1, 0), region].concat(), vec![file]),
        (request::SET_VRING_NUM, two(ring, 16), vec![]),
        (request::SET_VRING_BASE, two(ring, 0), vec![]),
        (request::SET_VRING_ADDR, [two(ring, 0), parts].concat(), vec![]),
        (request::SET_VRING_KICK, u64::from(ring).to_ne_bytes().to_vec(), event()),
    ] {
        session.handle(Message::ask(request, payload, files)).expect("in order");
    }
    memory
}

#[test]
fn what_waits_for_room_when_a_driver_stops_is_dropped_and_not_for_the_next_one() {
    let ends: [fn(&mut Session); 3] = [
        |it| {
            let stop = Message::ask(request::GET_VRING_BASE, two(0, 0), vec![]);
            assert!(it.handle(stop).expect("it runs").is_some());
        },
        |it| {
            let reset = Message::ask(request::RESET_OWNER, vec![], vec![]);
            it.handle(reset).expect("it may");
        },
        |it| *it = Session::new(&it.ports, &it.peers),
    ];
    for end in ends {
        let pool = Pool::new(4);
        let ports = ports(1, &pool).expect("a port");
        let mut queue = VhostQueue::new(&ports, 0, &Arc::default(), None);
        let wire = queue.transmitter();
        let mut session = Session::new(&ports, &Arc::default());
        let _first = begin(&mut session);
        let entered = ports[0].outgoing.try_enter().expect("nobody is there");
        (0..3).for_each(|_| wire.send(&[1; 60], 0).expect("it is left"));
        drop(entered);
        end(&mut session);
        let counts = queue.counters().read();
        assert_eq!((counts.tx_packets, counts.tx_dropped), (0, 3));
        assert_eq!(pool.available(), 4, "their buffers are back");

        // A late sender inserts its frame only now.
        let mut late = pool.take().expect("a buffer");
        late.set_len(60);
        assert!(late.arrived() < ports[0].stops() && ports[0].waiting.push(late));
        let next = begin(&mut session);
        queue.poll(0, 0, &mut Vec::new());
        let mut used = [9; 2];
        assert!(next.read(DEVICE + 2, &mut used));
        assert_eq!(used, [0, 0], "the next driver has got nothing");
        assert_eq!(queue.counters().read().tx_dropped, 4);
        wire.send(&[2; 60], 0).expect("it is ready to");
    }
}

#[test]
fn a_driver_whose_eventfd_is_at_its_end_and_waiting_again_stops_no_sender() {
    let ports = ports(1, &Pool::new(4)).expect("a port");
    let wire = VhostQueue::new(&ports, 0, &Arc::default(), None).transmitter();
    let mut session = Session::new(&ports, &Arc::default());
    let _memory = begin(&mut session);
    let event = eventfd(0, EventfdFlags::CLOEXEC).expect("an eventfd");
    let peer_copy = event.as_fd().try_clone_to_owned().expect("a descriptor");
    let call = Message::ask(request::SET_VRING_CALL, 0u64.to_ne_bytes().to_vec(), vec![peer_copy]);
    session.handle(call).expect("it is one");
    let mut count = [0; 8];
    let mut counted = || {
        rustix::io::read(&event, &mut count).expect("there is a count");
        u64::from_ne_bytes(count)
    };
    assert_eq!(counted(), 1, "of the last backend's frames, which it may not have told of");
    rustix::io::write(&event, &(u64::MAX - 1).to_ne_bytes()).expect("there is room");
    rustix::fs::fcntl_setfl(&event, rustix::fs::OFlags::empty()).expect("it may");
    wire.send(&[1; 60], 0).expect("there is a buffer");
    assert_eq!(counted(), u64::MAX, "it was notified");
}

/// A file other than an eventfd could block when it is watched.
#[test]
fn a_kick_that_is_no_eventfd_is_refused_before_it_is_watched() {
    let ports = ports(1, &Pool::new(4)).expect("a port");
    let mut session = Session::new(&ports, &Arc::default());
    let (pipe, _other) = rustix::pipe::pipe().expect("a pipe");
    let kick = Message::ask(request::SET_VRING_KICK, 0u64.to_ne_bytes().to_vec(), vec![pipe]);
    let refused = session.handle(kick).expect_err("it is a pipe");
    assert!(matches!(refused, Refused::NoEvent), "{refused}");
}

#[test]
fn what_goes_by_the_first_pair_does_so_also_while_another_sender_looks() {
    let ports = ports(2, &Pool::new(4)).expect("ports");
    let wire = VhostQueue::new(&ports, 1, &Arc::default(), None).transmitter();
    let mut session = Session::new(&ports, &Arc::default());
    let memory = begin(&mut session);
    let other = ports[1].outgoing.try_enter().expect("nobody is there");
    wire.send(&[1; 60], 0).expect("there is a buffer");
    drop(other);
    let mut used = [9; 2];
    assert!(memory.read(DEVICE + 2, &mut used));
    assert_eq!(used, [1, 0], "it went by the first");
}

/// Its owner may wait for interrupts, and would never poll it.
#[test]
fn a_ring_that_would_have_to_be_polled_is_refused() {
    let ports = ports(1, &Pool::new(4)).expect("a port");
    let mut session = Session::new(&ports, &Arc::default());
    let none = NO_DESCRIPTOR.to_ne_bytes().to_vec();
    let kick = Message::ask(request::SET_VRING_KICK, none, vec![]);
    let refused = session.handle(kick).expect_err("it has no descriptor");
    assert!(matches!(refused, Refused::NoKick(0)), "{refused}");
}

#[test]
fn the_base_of_a_packed_ring_is_where_it_takes_and_where_it_gives_back() {
    for (rings, answered) in [(0, 0x8003), (features::RING_PACKED, 0x8003_8003)] {
        let ports = ports(1, &Pool::new(4)).expect("a port");
        let mut session = Session::new(&ports, &Arc::default());
        let agreed = (features::VERSION_1 | rings).to_ne_bytes().to_vec();
        for (request, payload) in [
            (request::SET_FEATURES, agreed),
            (request::SET_VRING_BASE, two(1, base_word(rings != 0, 0x8003))),
        ] {
            session.handle(Message::ask(request, payload, vec![])).expect("in order");
        }
        let stop = Message::ask(request::GET_VRING_BASE, two(1, 0), vec![]);
        let answer = session.handle(stop).expect("it may").expect("an answer");
        assert_eq!(answer.ring_number(), Some((1, answered)));
    }
}

#[test]
fn memory_for_what_is_in_flight_is_ours_once_however_often_a_peer_asks() {
    let ports = ports(1, &Pool::new(4)).expect("a port");
    let mut session = Session::new(&ports, &Arc::default());
    let agreed = features::PROTOCOL_OFFERED.to_ne_bytes().to_vec();
    let agree = Message::ask(request::SET_PROTOCOL_FEATURES, agreed, vec![]);
    session.handle(agree).expect("it was offered");
    let asks = || {
        let at = InflightAt { len: 0, offset: 0, rings: 2, size: 16 };
        Message::ask(request::GET_INFLIGHT_FD, inflight(at), vec![])
    };
    let mut ask = || session.handle(asks()).expect("it may").expect("an answer");
    let first = ask();
    let [file] = &first.files[..] else { panic!("{first:?}") };
    let pages = || rustix::fs::fstat(file).expect("a file").st_blocks;
    assert_eq!(rustix::io::pwrite(file, &[1; 16], 0), Ok(16));
    assert!(pages() > 0);
    let second = ask();
    assert_eq!((second.files.len(), pages()), (1, 0), "the first is empty");
}

#[test]
fn a_ring_to_send_to_that_makes_no_sense_is_told_of_once_and_nothing_more_goes_there() {
    let ports = ports(1, &Pool::new(4)).expect("a port");
    let peers = Arc::<Peers>::default();
    let wire = VhostQueue::new(&ports, 0, &peers, None).transmitter();
    let mut session = Session::new(&ports, &peers);
    let memory = begin(&mut session);
    // The frame's bytes are within the memory, its header is not.
    assert!(memory.write(TABLE, &(START - 4).to_le_bytes()));
    assert_eq!(wire.send(&[1; 60], 0), Err(SendError::Down));
    let trouble = peers.take_problem().expect("a reason");
    assert!(trouble.contains("queue 0: the peer's ring to send to"), "{trouble}");
    assert!(memory.write(TABLE, &(START + 0x4000).to_le_bytes()));
    assert_eq!(wire.send(&[2; 60], 0), Err(SendError::Down), "a good buffer does not mend it");
    assert_eq!(peers.refused.load(Relaxed), 1, "it was told");
    let mut used = [9; 2];
    assert!(memory.read(DEVICE + 2, &mut used));
    assert_eq!(used, [0, 0], "nothing was given back");
}

#[test]
fn a_ring_that_makes_no_sense_is_told_of_once_also_by_polls_that_find_it_taken() {
    let ports = ports(1, &Pool::new(4)).expect("a port");
    let peers = Arc::<Peers>::default();
    let mut queue = VhostQueue::new(&ports, 0, &peers, None);
    let mut session = Session::new(&ports, &peers);
    let memory = begin_at(&mut session, 1);
    assert!(memory.write(DRIVER + 2, &1_000u16.to_le_bytes()), "more than there are");
    for _ in 0..3 {
        queue.poll(1, 0, &mut Vec::new());
        let _taken = ports[0].incoming.try_enter().expect("nobody is there");
        queue.poll(1, 0, &mut Vec::new());
    }
    assert_eq!(peers.refused.load(Relaxed), 1);
}

/// A driver whose chains are single descriptors sends by a packed ring, whose base is the beginning as far as its
/// monitor knows.
fn begin_packed(session: &mut Session, file: OwnedFd, notes: Option<Message>) {
    let agreed = features::VERSION_1 | features::RING_PACKED | features::INDIRECT_DESC;
    let map = [START, 0x1_0000, START, 0].map(u64::to_ne_bytes).concat();
    let parts = [TABLE, DEVICE, DRIVER, 0].map(u64::to_ne_bytes).concat();
    let kick = eventfd(0, EventfdFlags::CLOEXEC).expect("an eventfd");
    let number = |it: u64| it.to_ne_bytes().to_vec();
    let ask = Message::ask;
    let first = [
        ask(request::SET_PROTOCOL_FEATURES, number(features::PROTOCOL_OFFERED), vec![]),
        ask(request::SET_FEATURES, number(agreed), vec![]),
        ask(request::SET_MEM_TABLE, [two(1, 0), map].concat(), vec![file]),
    ];
    let ring = [
        ask(request::SET_VRING_NUM, two(1, 16), vec![]),
        ask(request::SET_VRING_BASE, two(1, base_word(true, BEGINNING)), vec![]),
        ask(request::SET_VRING_ADDR, [two(1, 0), parts].concat(), vec![]),
        ask(request::SET_VRING_KICK, number(1), vec![kick]),
    ];
    for message in first.into_iter().chain(notes).chain(ring) {
        session.handle(message).expect("in order");
    }
}

/// Used descriptors in it are then our own, not those of a backend that died.
#[test]
fn a_ring_that_has_run_here_goes_on_where_it_stopped_whatever_it_looks_like() {
    let ports = ports(1, &Pool::new(4)).expect("a port");
    let mut session = Session::new(&ports, &Arc::default());
    let (memory, file) = Memory::own(START, 0x1_0000).expect("a memfd");
    let memory = Arc::new(memory);
    let table = memory.area(TABLE, 256, 16).expect("within");
    begin_packed(&mut session, file, None);
    // One to send, and after it one that looks used.
    let first = Position::first(16);
    table.store16(14, AVAILABLE, Relaxed);
    table.store16(16 + 14, first.used(), Relaxed);
    let call = eventfd(0, EventfdFlags::CLOEXEC).expect("an eventfd");
    let call = Message::ask(request::SET_VRING_CALL, 1u64.to_ne_bytes().to_vec(), vec![call]);
    session.handle(call).expect("it may");
    assert!(first.is_available(table.load16(14, Relaxed)));
}

/// A backend was killed while it returned two frames, of which the driver sees the second.
#[test]
fn where_there_are_notes_nothing_is_given_back_by_what_the_ring_looks_like() {
    let ports = ports(1, &Pool::new(4)).expect("a port");
    let mut session = Session::new(&ports, &Arc::default());
    let (memory, file) = Memory::own(START, 0x1_0000).expect("a memfd");
    let memory = Arc::new(memory);
    let table = memory.area(TABLE, 256, 16).expect("within");
    let first = Position::first(16);
    for at in [0, 16] {
        table.store64(at, START + 0x4000, Relaxed);
        table.store64(at + 8, 60 | u64::from(AVAILABLE) << 48, Relaxed);
    }
    let (notes, noted) = Inflight::make(true, 2, 16).expect("it can be").expect("a memfd");
    let region = notes.region(1, true, 16).expect("within");
    let tracking = PackedTracking::begin(region, first);
    let behind = Position::new(2, 1, 16).expect("a place");
    tracking.giving_back(&table, first, behind, [0, 1].into_iter());
    table.store16(16 + 14, first.used(), Relaxed);

    let notes = Message::ask(request::SET_INFLIGHT_FD, inflight(notes.at()), vec![noted]);
    begin_packed(&mut session, file, Some(notes));
    let flags = [14, 30].map(|at| table.load16(at, Relaxed));
    assert!(flags.iter().all(|flags| first.is_available(*flags)), "{flags:x?}");
}
