//! What being scraped once a second costs a saturated memcached: its rate with a running exporter and without
//! one, in turns, over a veth.
//!
//! `cargo run --release -p napkin-export --example scrape [PAIRS] [SECONDS] [latency|plain|no-count]`, as root, with two
//! CPUs. `latency` (the default) is `napkin export --latency`.

#[path = "../../compare/tests/harness/mod.rs"]
mod harness;

use std::sync::mpsc::{RecvTimeoutError, channel};
use std::time::Duration;

use harness::Bed;
use napkin_client::{Client, Load};
use napkin_export::{Exporter, Format};
use napkin_measure::paired::Ratio;
use napkin_os::clock;
use napkin_watch::LinuxSource;

fn main() {
    let mut arguments = std::env::args().skip(1);
    let pairs = arguments.next().map_or(20, |it| it.parse().expect("a number"));
    let seconds = arguments.next().map_or(2.0, |it| it.parse().expect("seconds"));
    let what = arguments.next().unwrap_or_else(|| "latency".into());
    let window = Duration::from_secs_f64(seconds);
    let bed = Bed::new();
    let mut client = bed.client(Load::Closed);
    Bed::window(&mut client, window);
    let mut rates = Vec::new();
    for pair in 0..pairs {
        let scraped = |client: &mut Client| scraped(&bed, client, window, &what);
        // In the order with, without, without, with: what drifts disturbs both.
        let (with, without) = if matches!(pair % 4, 0 | 3) {
            let with = scraped(&mut client);
            (with, Bed::window(&mut client, window).achieved_per_s)
        } else {
            let without = Bed::window(&mut client, window).achieved_per_s;
            (scraped(&mut client), without)
        };
        println!("with {with:.0}, without {without:.0}: {:.4}", with / without);
        rates.push((with, without));
    }
    let ratio = Ratio::of(rates).expect("some");
    println!(
        "{what}: rate with / without: {:.4} ({:.0} %: {:.4} to {:.4})",
        ratio.median,
        ratio.confidence * 100.0,
        ratio.low,
        ratio.high
    );
    client.stop().expect("it stops");
}

/// The rate while an exporter in the server's namespace is scraped each second.
fn scraped(bed: &Bed, client: &mut Client, window: Duration, what: &str) -> f64 {
    std::thread::scope(|scope| {
        let (stop, stopped) = channel::<()>();
        let (tell, ready) = channel();
        scope.spawn(move || {
            bed.pair.server.enter_thread().expect("entered");
            let source = LinuxSource::open(what != "no-count", what == "latency");
            let mut exporter = Exporter::new(Box::new(source.expect("it can be sampled")), None);
            exporter.text(Format::OpenMetrics, clock::now()).expect("sampled");
            tell.send(()).expect("somebody waits");
            while stopped.recv_timeout(Duration::from_secs(1)) == Err(RecvTimeoutError::Timeout) {
                exporter.text(Format::OpenMetrics, clock::now()).expect("sampled");
            }
        });
        ready.recv().expect("it begins");
        let rate = Bed::window(client, window).achieved_per_s;
        drop(stop);
        rate
    })
}
