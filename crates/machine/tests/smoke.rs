//! A sink under periodic frames.
use napkin_core::policy::Policy;
use napkin_core::{EpollContext, Id, MILLISECOND, Ns};
use napkin_machine::profile::Profile;
use napkin_machine::program::UdpSink;
use napkin_machine::*;

#[derive(Debug)]
struct Periodic {
    gap: Ns,
    left: u64,
    flow: u32,
}
impl Client for Periodic {
    fn start(&mut self, m: &mut Machine<'_>) {
        m.client_timer(10 * MILLISECOND, 0);
    }
    fn timer(&mut self, m: &mut Machine<'_>, _: u64) {
        let now = m.now();
        m.send_to_host(Packet::new(self.flow, Kind::Data, 64, 0, now));
        self.left -= 1;
        if self.left > 0 {
            m.client_timer(now + self.gap, 0);
        }
    }
    fn receive(&mut self, _: &mut Machine<'_>, _: Packet) {}
}

#[test]
fn smoke() {
    let profile = Profile::named("emulator-7.2").unwrap_or_else(|e| panic!("{e}"));
    let config = Config::of(&profile);
    for (text, gap) in [
        ("base", 50),
        ("base", 1000),
        ("threaded", 50),
        ("threaded-busy-poll", 50),
        ("defer20", 200),
        ("suspend20", 200),
        ("suspend200", 200),
        ("napibusy", 200),
    ] {
        let policy: Policy = text.parse().unwrap();
        let placement = Placement::aligned(1, 1);
        let host = placement.host(config.processor.cpus);
        let contexts = [EpollContext::new(policy.epoll, 0)];
        let client = Periodic { gap: gap * 1000, left: 600, flow: 0 };
        let mut m = Machine::new(config, policy, &placement, &host, &contexts, Box::new(client), 1);
        let socket = m.add_socket(10_000);
        m.add_flow(0, Some(socket));
        let app = m.add_thread(
            "sink",
            Affinity::pinned(0),
            Class::Fair,
            Box::new(UdpSink::new(0, false)),
        );
        m.watch(app, 0, socket);
        m.wake_thread(app);
        m.seen().detailed = true;
        m.run(1000 * MILLISECOND);
        let counts = host.instance(Id(0)).counts();
        let seen = m.seen().clone();
        println!(
            "{text} {gap} us: got {} p50 {} max {} steps {}",
            m.latency().count(),
            m.latency().quantile(0.5),
            m.latency().max(),
            m.steps()
        );
        println!(
            "  {:?}\n  {:?}\n {:?} {:?} cpu {:?}",
            counts,
            m.queue_counts(0),
            seen.polls,
            seen.returns,
            m.used(0)
        );
        assert_eq!(m.latency().count(), 600);
    }
}
