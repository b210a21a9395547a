//! Behaviour when descriptors have run out. The only test of its process, whose limit it lowers.

use std::net::{Ipv4Addr, SocketAddr, TcpStream};
use std::time::{Duration, Instant};

use napkin_service::{EchoStream, Pump};
use napkin_sockets::{OsTcp, OsTcpCounters};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

const MINUTE: Duration = Duration::from_secs(60);

#[test]
fn without_a_descriptor_even_to_refuse_by_a_connection_waits_and_is_accepted_later() {
    let mut tcp = OsTcp::listen(SocketAddr::from((Ipv4Addr::LOCALHOST, 0)), 4).expect("it listens");
    let _client = TcpStream::connect(tcp.address().expect("its address")).expect("it answers");
    let (mut echo, begun) = (Pump::new(EchoStream), Instant::now());
    let mut step = |tcp: &mut OsTcp<_>| {
        tcp.wait(Some(Duration::from_millis(1))).expect("it waits");
        tcp.step(begun.elapsed().as_nanos() as u64, &mut echo);
    };
    let limit = getrlimit(Resource::Nofile);
    // Open descriptors stay open; no other one can be opened, even after one is closed.
    let none = Rlimit { current: Some(0), ..limit };
    setrlimit(Resource::Nofile, none).expect("less is always allowed");
    (0..20).for_each(|_| step(&mut tcp));
    assert_eq!(tcp.counters(), OsTcpCounters::default(), "nobody was refused");
    setrlimit(Resource::Nofile, limit).expect("as much as before");
    while tcp.counters().opened == 0 {
        assert!(begun.elapsed() < MINUTE);
        step(&mut tcp);
    }
    assert_eq!(tcp.counters(), OsTcpCounters { opened: 1, refused: 0 });
}
