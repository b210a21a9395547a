//! memcached over UDP, behind the stack: datagrams of any content, each answered within the bound of an
//! answer or not at all.
#![no_main]

use std::sync::{Arc, Mutex};

use libfuzzer_sys::fuzz_target;
use napkin_nic::{Pool, SendError, Transmitter};
use napkin_service::Service;
use napkin_service::memcached::datagrams::ANSWER_LIMIT;
use napkin_service::memcached::{Limits, Memcached, MemcachedUdp};
use napkin_stack::{Address, FrameBuilder, Input, Stack};

const US: Address = Address::v4([2, 0, 0, 0, 0, 1], [10, 0, 0, 1], 24);
const PEER: Address = Address::v4([2, 0, 0, 0, 0, 2], [10, 0, 0, 2], 24);

#[derive(Default)]
struct Wire(Mutex<Vec<usize>>);

impl Transmitter for Wire {
    fn send(&self, frame: &[u8], _: u64) -> Result<(), SendError> {
        self.0.lock().expect("one thread").push(frame.len());
        Ok(())
    }
}

fuzz_target!(|data: &[u8]| {
    let (stack, wire) = (Stack::new(US), Arc::<Wire>::default());
    let mut input = Input::new(Arc::clone(&stack), 1, wire.clone());
    let socket = stack.bind_udp(11_211, 8).expect("a free port");
    let limits = Limits { memory: 64 * 1_024, item: 8_000 };
    let memcached = Memcached::new(limits, 0).expect("limits that agree");
    let mut service = MemcachedUdp::new(socket, memcached);
    let pool = Pool::new(8);
    for (now, datagram) in (1..).zip(data.split(|byte| *byte == 0xff).take(32)) {
        let mut frame = pool.take().expect("all are back");
        // Every other one has a header that is in order.
        let header: &[u8] = if now % 2 == 1 { &[0, 7, 0, 0, 0, 1, 0, 0] } else { &[] };
        let payload = [header, &datagram[..datagram.len().min(1_400)]].concat();
        let built = FrameBuilder::new(PEER, US).udp(frame.buffer(), 4_000, 11_211, &payload);
        frame.set_len(built.expect("it fits"));
        input.deliver(&mut vec![frame], now);
        assert_eq!(service.serve_ready(now, 8), 1);
        let sent = std::mem::take(&mut *wire.0.lock().expect("one thread"));
        assert!(sent.iter().sum::<usize>() <= ANSWER_LIMIT + sent.len() * 50, "{sent:?}");
    }
    assert_eq!(pool.available(), 8, "a frame was lost");
});
