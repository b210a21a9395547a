//! Panics under TCP: a client at the other end of a cable gets every byte back in order, whichever context panics
//! meanwhile, and nothing is left of its connections.

use std::net::SocketAddr;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering::Relaxed};
use std::thread::JoinHandle;
use std::time::Duration;

use napkin_core::CpuId;
use napkin_engine::{ApplicationWait, DeviceConfig, Engine, EngineConfig, Role, now, sched};
use napkin_nic::{CableQueue, EndConfig, PacketQueue, Pool, cable};
use napkin_policy::Policy;
use napkin_service::{EchoStream, Pump};
use napkin_stack::{ByteStream, Flow, Input, Stack, TcpApplication, TcpLimits, TcpWorker};
use napkin_testing::test;
use napkin_traffic::SplitMix;

use crate::common::{PEER, PORT, US, alone, eventually, policy};

const PANICS: u64 = 10;
const CONNECTIONS: usize = 8;
const FRAMES: usize = 4_096;

/// The state of both sides as seen by the test.
#[derive(Default)]
struct Seen {
    /// Words that came back.
    answered: AtomicU64,
    /// Panics that the server's application survived.
    panics: AtomicU64,
    /// The server's connections.
    connections: AtomicUsize,
    closing: AtomicBool,
}

/// Sends counting words of eight bytes on each connection, and expects them back.
struct Caller {
    seen: Arc<Seen>,
    closed: usize,
}

#[derive(Default)]
struct Call {
    sent: u64,
    received: u64,
    bytes: Vec<u8>,
}

impl TcpApplication for Caller {
    type State = Call;

    fn opened(&mut self, _: Flow) -> Call {
        Call::default()
    }

    fn ready(&mut self, call: &mut Call, stream: &mut impl ByteStream, _: u64) {
        stream.receive(&mut call.bytes, usize::MAX);
        let (words, _) = call.bytes.as_chunks::<8>();
        for word in words {
            assert_eq!(u64::from_be_bytes(*word), call.received, "out of order, or twice");
            call.received += 1;
        }
        self.seen.answered.fetch_add(words.len() as u64, Relaxed);
        let taken = words.len() * 8;
        call.bytes.drain(..taken);
        if self.seen.closing.load(Relaxed) && call.received == call.sent {
            stream.close();
            self.closed += usize::from(stream.is_closed());
        } else if !self.seen.closing.load(Relaxed) && call.sent - call.received < 4 {
            assert_eq!(stream.send(&call.sent.to_be_bytes()), 8, "it has room for four");
            call.sent += 1;
        }
    }
}

/// The client's thread, which polls its end of the cable itself, without an engine.
fn call(mut queue: CableQueue, seen: &Arc<Seen>) {
    let stack = Stack::new(PEER);
    let mut input = Input::new(Arc::clone(&stack), 1, queue.transmitter());
    let mut worker: TcpWorker<Call> = stack.open_tcp(None, TcpLimits::default()).expect("a worker");
    let mut caller = Caller { seen: Arc::clone(seen), closed: 0 };
    let mut frames = Vec::new();
    let mut look = |worker: &mut TcpWorker<Call>, caller: &mut Caller| {
        queue.poll(64, now(), &mut frames);
        if frames.is_empty() {
            std::thread::sleep(Duration::from_micros(50));
        }
        input.deliver(&mut frames, now());
        worker.step(now(), 64, caller);
    };
    stack.resolve(US.ip, now()).expect("a queue");
    while stack.neighbour(US.ip).is_none() {
        look(&mut worker, &mut caller);
    }
    let server = SocketAddr::new(US.ip, PORT);
    let flows: Vec<Flow> =
        (0..CONNECTIONS).map(|_| worker.connect(server, 1).expect("a port")).collect();
    while caller.closed < CONNECTIONS {
        look(&mut worker, &mut caller);
        flows.iter().for_each(|flow| worker.wake(*flow));
    }
}

/// The server's thread.
fn serve(engine: &Engine, policy: &Policy, seen: Arc<Seen>) -> JoinHandle<()> {
    let stack = engine.stack("cable").expect("the device");
    let mut worker = stack.open_tcp(None, TcpLimits::default()).expect("the first");
    worker.listen(PORT).expect("a free port");
    let waits = ApplicationWait::new(engine, CpuId(0), &worker.segments(), policy);
    let (mut waits, mut pump) = (waits.expect("parameters"), Pump::new(EchoStream));
    std::thread::spawn(move || {
        loop {
            let connections = &seen.connections;
            let serves = || {
                waits.serve(&mut worker, &mut pump, |worker, _| {
                    connections.store(worker.connections(), Relaxed);
                    true
                })
            };
            match catch_unwind(AssertUnwindSafe(serves)) {
                // The engine has stopped.
                Ok(_) => return,
                Err(_) => seen.panics.fetch_add(1, Relaxed),
            };
        }
    })
}

/// Injects panics into contexts of these roles, one after the other.
fn inject_panics(roles: &[Role], name: &str) {
    let policy = policy(name);
    let pools = [Pool::new(FRAMES), Pool::new(FRAMES)];
    let end = |pool: &Pool| EndConfig { queues: 1, ring: 512, pool: pool.clone() };
    let (mut near, mut far) = cable(end(&pools[0]), end(&pools[1])).expect("a cable");
    let (near, far) = (near.remove(0), far.remove(0));
    let device = DeviceConfig::new("cable", US, vec![(Box::new(near), 0)], policy.instance);
    let cpus = sched::usable_cpus().into_iter().take(1).collect();
    let config = EngineConfig { cpu_policy: policy.cpu, ..EngineConfig::new(cpus, vec![device]) };
    let engine = Engine::start(config).expect("the engine starts");
    let seen = Arc::<Seen>::default();
    let server = serve(&engine, &policy, Arc::clone(&seen));
    let shared = Arc::clone(&seen);
    let client = std::thread::spawn(move || call(far, &shared));
    let answers = |what: &str| {
        let before = seen.answered.load(Relaxed);
        eventually(&format!("{name}: answers {what}"), || {
            seen.answered.load(Relaxed) >= before + 50
        });
    };
    answers("before the first panic");
    let mut rng = SplitMix::new(7);
    for strike in 1..=PANICS {
        for role in roles {
            engine.inject_panic(*role, 1 + rng.below(60));
            eventually(&format!("{name}: panic {strike} of {role:?}"), || {
                !engine.panic_pending(*role)
            });
            answers(&format!("after panic {strike} of {role:?}"));
        }
    }
    let of_application = roles.iter().filter(|role| **role == Role::Application).count() as u64;
    assert_eq!(seen.panics.load(Relaxed), PANICS * of_application, "{name}");
    assert_eq!(engine.panics(), PANICS * (roles.len() as u64 - of_application), "{name}");
    seen.closing.store(true, Relaxed);
    eventually(&format!("{name}: the client's end"), || client.is_finished());
    client.join().expect("every word came back in its place");
    eventually(&format!("{name}: the server's last connection"), || {
        seen.connections.load(Relaxed) == 0
    });
    engine.stop();
    server.join().expect("no panic but the injected ones");
    assert_eq!(pools.map(|pool| pool.available()), [FRAMES; 2], "{name}: every frame is back");
}

#[test]
fn no_byte_of_tcp_is_lost_whoever_panics() {
    let _alone = alone();
    for (name, roles) in [
        ("base", &[Role::Irq, Role::Application][..]),
        ("ksoftirqd", &[Role::Irq]),
        ("defer20", &[Role::Irq, Role::Application]),
        ("threaded", &[Role::Irq, Role::Napi, Role::Application]),
        ("threaded-busy-poll", &[Role::Napi]),
        ("workqueue", &[Role::Worker]),
        ("fullbusy", &[Role::Application]),
        ("suspend20", &[Role::Irq, Role::Application]),
    ] {
        inject_panics(roles, name);
    }
}
