//! The server's own part of each request beside what a client sees of the same requests: memcached over a
//! veth, under several loads and policies.
//!
//! `cargo run -p napkin-compare --example beside [SECONDS]`, as root, with two CPUs.

#[path = "../tests/harness/mod.rs"]
mod harness;

use std::time::Duration;

use harness::{Bed, PORT};
use napkin_client::{Client, ClientWait, Load};
use napkin_kernel::count::latency::{Options, Part, Probe};
use napkin_kernel::netlink::Netdev;
use napkin_linux::apply::{self, Request, Temporary};
use napkin_linux::attach::{Attachment, Plan};
use napkin_linux::journal::{ProcessJournals, Store};
use napkin_measure::report::text::time;
use napkin_policy::Policy;
use napkin_workload::linux::pair::DEVICE;

fn main() {
    let seconds = std::env::args().nth(1).map_or(3.0, |it| it.parse().expect("seconds"));
    let bed = Bed::new();
    let napis = || Netdev::open().expect("netdev").napis(None).expect("instances")[0].id;
    let id = bed.pair.server.run(napis).expect("entered");
    let options = Options { processes: vec![bed.pid()], ports: vec![PORT], one_in: 1 };
    println!(
        "policy load | client p50 p99 | whole p50 p99 | ring socket service p99 | whole/client p50 p99"
    );
    for per_second in [2_000.0, 5_000.0, 10_000.0, 20_000.0, 30_000.0] {
        for name in ["base", "threaded", "defer20", "suspend20"] {
            let policy: Policy = name.parse().expect("a policy");
            let config = napkin_client::Config {
                wait: ClientWait::Spin,
                ..bed.config(Load::Open { per_second })
            };
            let client = bed.pair.client.run(|| Client::start(&config)).expect("entered");
            let mut client = client.expect("connected");
            let mut measured = || {
                let plan = Plan::of(&policy).expect("a plan");
                let store = Store::open().expect("a journal");
                let mut attachment = Attachment::new(plan, ProcessJournals::new(store));
                attachment.add(bed.pid()).expect("it lives");
                let whole = apply::Options::default();
                let request =
                    Request { policy: &policy, ifname: DEVICE, options: &whole, force: false };
                let device = Temporary::here(&request).expect("applied");
                attachment.look();
                let probe = Probe::start(&options).expect("it starts");
                std::thread::sleep(Duration::from_millis(500));
                let before = probe.read(&[id]).expect("read");
                let figures = Bed::window(&mut client, Duration::from_secs_f64(seconds));
                let reading = probe.read(&[id]).expect("read").since(&before);
                attachment.restore();
                device.restore().expect("put back");
                (figures, reading)
            };
            // In a thread of its own, as a namespace is a thread's.
            let (figures, reading) = std::thread::scope(|scope| {
                scope
                    .spawn(|| {
                        bed.pair.server.enter_thread().expect("entered");
                        measured()
                    })
                    .join()
                    .expect("no panic")
            });
            let all = reading.all();
            let at = |part, p| all.of(part).quantile(p).unwrap_or(f64::NAN);
            let seen = figures
                .latency_ns
                .map(|it| (it.at.p50.unwrap_or(0) as f64, it.at.p99.unwrap_or(0) as f64));
            let (p50, p99) = seen.unwrap_or((f64::NAN, f64::NAN));
            let (whole50, whole99) = (at(Part::Whole, 0.5), at(Part::Whole, 0.99));
            println!(
                "{name} {per_second} | {} {} | {} {} | {} {} {} | {:.2} {:.2}",
                time(p50),
                time(p99),
                time(whole50),
                time(whole99),
                time(at(Part::Ring, 0.99)),
                time(at(Part::Socket, 0.99)),
                time(at(Part::Service, 0.99)),
                whole50 / p50,
                whole99 / p99
            );
            client.stop().expect("it stops");
        }
    }
}
