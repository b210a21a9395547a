//! A check of `napkin compare` against an outside client: in each scenario, its verdict from the server's side
//! alone is compared with exhaustive measurements of the same policies by a client.
//!
//! `cargo run --release -p napkin-compare --example agree [SCENARIOS] [SECONDS] [ROUNDS]`, as root, with two CPUs
//! of its own: SCENARIOS as in 1-20 or 7; SECONDS of each slice (1); ROUNDS (6). All twenty take some 20 minutes.
//! `agree side_by_side SCENARIO RATE SECONDS POLICIES...` prints the server's part beside the client's latency of the
//! same requests.
//!
//! A scenario is a load (5, 20, 40, 60 or 90 % of the server's capacity), the program's own cost of a request (0:
//! Debian's memcached; 10, 30, 60 us: an echo server that spins for that long), and the context that polls under
//! the reference: the softirq on the server's CPU (RPS), or the instance's thread. The verdict's policy agrees if
//! it is the client's best, or within 10 % of it, in the quantity that the verdict was found by: a percentile, or
//! the rate of answers.

#[path = "../tests/harness/mod.rs"]
mod harness;

use std::collections::BTreeMap;
use std::io::{Read, Write};
use std::net::TcpListener;
use std::os::fd::AsRawFd;
use std::process::Command;
use std::time::{Duration, Instant};

use harness::{Bed, PORT};
use napkin_client::{Client, ClientFigures, ClientWait, Config, Load, RequestKind};
use napkin_compare::{Options, Report, Service, compare, verdict::Quantity};
use napkin_kernel::count::latency::{Part, Percentiles};
use napkin_linux::apply::{self, Request, Temporary};
use napkin_linux::attach::{Attachment, Plan};
use napkin_linux::journal::{ProcessJournals, Store};
use napkin_measure::interleave::median;
use napkin_measure::report::text::time;
use napkin_os::signals::Signals;
use napkin_policy::Policy;
use napkin_workload::linux::pair::{DEVICE, receive_on};
use rustix::event::epoll;
use rustix::process::{Pid, setpriority_process};

const LOADS: [f64; 5] = [0.05, 0.2, 0.4, 0.6, 0.9];
const COSTS_US: [u64; 4] = [0, 10, 30, 60];
/// Connections of the client: enough that it hardly ever sends a request on a connection before the previous one
/// was answered. Requests that the server takes with one read count once on its side, so with few connections a
/// stall of 3 ms would be a hundred late requests for the client and thirty for the server.
const CONNECTIONS: usize = 200;
/// A policy agrees if its figure is at most this many times the best one.
const AGREEMENT: f64 = 1.1;

#[derive(Debug, Clone, Copy)]
struct Scenario {
    number: usize,
    load: f64,
    cost_us: u64,
    rps: bool,
}

impl Scenario {
    fn all() -> impl Iterator<Item = Scenario> {
        let each = COSTS_US.into_iter().flat_map(|cost| LOADS.map(|load| (cost, load)));
        each.enumerate().map(|(at, (cost_us, load))| {
            // Every load and every cost occurs with both.
            Scenario {
                number: at + 1,
                load,
                cost_us,
                rps: (at / LOADS.len() + at).is_multiple_of(2),
            }
        })
    }

    /// The policies to compare, the reference first.
    fn policies(self) -> [&'static str; 4] {
        match self.rps {
            true => ["base", "threaded", "defer20", "suspend20"],
            false => ["threaded", "defer200", "napibusy", "suspend20"],
        }
    }

    fn bed(self) -> Bed {
        let bed = match self.cost_us {
            0 => Bed::new(),
            cost => {
                let mut command = Command::new(std::env::current_exe().expect("this program"));
                command.args(["serve", &cost.to_string()]);
                Bed::serving(command, RequestKind::Echo(64))
            }
        };
        if self.rps {
            let cpus = [bed.cpus[0]];
            bed.pair.server.run(|| receive_on(DEVICE, &cpus)).expect("entered").expect("RPS");
        }
        bed
    }
}

fn main() {
    let mut arguments = std::env::args().skip(1);
    let first = arguments.next().unwrap_or_else(|| "1-20".into());
    if first == "serve" {
        let cost = arguments.next().and_then(|it| it.parse().ok()).expect("microseconds");
        serve(Duration::from_micros(cost));
    }
    let number = |text: &str| text.parse::<usize>().expect("a number");
    if first == "beside" {
        let mut next = || arguments.next().expect("SCENARIO RATE SECONDS POLICIES");
        let (which, rate, seconds) = (number(&next()), next(), next());
        let scenario = Scenario::all().find(|it| it.number == which).expect("a scenario");
        let seconds = Duration::from_secs_f64(seconds.parse().expect("seconds"));
        side_by_side(
            scenario,
            rate.parse().expect("a rate"),
            seconds,
            &arguments.collect::<Vec<_>>(),
        );
        return;
    }
    let (from, to) = first.split_once('-').unwrap_or((&first, &first));
    let seconds = arguments.next().map_or(1.0, |it| it.parse().expect("seconds"));
    let rounds = arguments.next().map_or(6, |it| number(&it));
    // Before any thread is started, so that all threads inherit the mask.
    let signals = Signals::block_termination().expect("signals");
    let (mut agreed, mut itself, mut all) = (0, 0, 0);
    for scenario in Scenario::all().filter(|it| (number(from)..=number(to)).contains(&it.number)) {
        let ran = run(scenario, Duration::from_secs_f64(seconds), rounds, &signals);
        let Some([verdict, client]) = ran else { return println!("  ended by a signal") };
        (agreed, all) = (agreed + usize::from(verdict), all + 1);
        itself += usize::from(client);
        println!("agreed so far: {agreed} of {all}; the client with itself: {itself}\n");
    }
}

/// Prints the server's part beside the client's latency of the same requests, under each of these policies.
fn side_by_side(scenario: Scenario, per_second: f64, window: Duration, policies: &[String]) {
    let bed = scenario.bed();
    let config = config(&bed, Load::Open { per_second });
    let client = bed.pair.client.run(|| Client::start(&config));
    let mut client = client.expect("entered").expect("connected");
    prefer_client();
    println!("policy | client p50 p90 p99 | whole | ring | socket | service");
    for name in policies {
        let policy: Policy = name.parse().expect("a policy");
        under(&bed, &policy, || {
            let service = Service::find(bed.pid(), DEVICE).expect("it serves");
            let probe = service.probe().expect("it is timed");
            std::thread::sleep(window / 5);
            let before = probe.read(&service.napi_ids()).expect("read");
            let figures = Bed::window(&mut client, window);
            let parts = probe.read(&service.napi_ids()).expect("read").since(&before).all();
            let at = figures.latency_ns.map(|it| it.at).unwrap_or_default();
            let seen = [at.p50, at.p90, at.p99].map(|ns| time(ns.map_or(f64::NAN, |ns| ns as f64)));
            let columns = [Part::Whole, Part::Ring, Part::Socket, Part::Service].map(|part| {
                [0.5, 0.9, 0.99]
                    .map(|p| time(parts.of(part).quantile(p).unwrap_or(f64::NAN)))
                    .join(" ")
            });
            println!("{name} | {} | {}", seen.join(" "), columns.join(" | "));
        });
    }
    client.stop().expect("it stops");
}

/// A client that spins instead of sleeping.
fn config(bed: &Bed, load: Load) -> Config {
    Config { connections: CONNECTIONS, wait: ClientWait::Spin, ..bed.config(load) }
}

/// Raises the priority of the client's threads above all others on their CPU: time that they wait for another
/// program would be measured as the client's latency, whatever the policy.
fn prefer_client() {
    for task in std::fs::read_dir("/proc/self/task").expect("its own").flatten() {
        let name = std::fs::read_to_string(task.path().join("comm")).unwrap_or_default();
        let tid = task.file_name().to_string_lossy().parse().ok().and_then(Pid::from_raw);
        if name.starts_with("client/") {
            setpriority_process(tid, -20).expect("the right to");
        }
    }
}

/// Returns whether the verdict agrees with the client, and whether the client's even rounds agree with its odd
/// ones; `None` if a signal ended the run.
fn run(scenario: Scenario, slice: Duration, rounds: usize, signals: &Signals) -> Option<[bool; 2]> {
    let Scenario { number, load, cost_us, rps } = scenario;
    let bed = scenario.bed();
    let policies: Vec<(String, Policy)> =
        scenario.policies().map(|name| (name.to_owned(), name.parse().expect("a policy"))).into();
    let start = |load| {
        let client = bed.pair.client.run(|| Client::start(&config(&bed, load)));
        client.expect("entered").expect("connected")
    };
    // Measure the server's capacity under the reference.
    let mut client = start(Load::Closed);
    let most = under(&bed, &policies[0].1, || {
        std::thread::sleep(slice / 2);
        Bed::window(&mut client, slice).achieved_per_s
    });
    client.stop().expect("it stops");
    let rate = most * load;
    let by = if rps { "RPS" } else { "threaded" };
    println!("{number}: {cost_us} us, {:.0} % ({rate:.0}/s of {most:.0}), {by}", load * 100.0);

    let mut client = start(Load::Open { per_second: rate });
    let options = Options {
        policies: policies.clone(),
        slice: slice + slice / 5,
        settle: slice / 5,
        rounds,
        seed: number as u64,
        guard: None,
        measure: None,
    };
    let compared = in_server(&bed, || {
        // Not on the server's CPU, but on the client's, whose measurements do not count now.
        napkin_os::sched::pin(None, &[bed.cpus[1]]).expect("pinned");
        let service = Service::find(bed.pid(), DEVICE).expect("it serves");
        compare(&service, &options, signals, &mut |_| {})
    });
    let report: Report = match compared {
        Ok(report) => report,
        Err(error) => {
            println!("  NO verdict: {error}");
            client.stop().expect("it stops");
            return Some([false; 2]);
        }
    };
    if report.signal.is_some() {
        return None;
    }
    let verdict = report.verdict();
    println!("  {}", verdict.sentence);
    for why in report.failed.iter().chain(&report.notes) {
        println!("  note: {why}");
    }

    prefer_client();
    // The client measures the same policies, each once per round, in a rotating order.
    let mut seen: BTreeMap<&str, Vec<ClientFigures>> = BTreeMap::new();
    for round in 0..rounds {
        for at in 0..policies.len() {
            if signals.wait(Duration::ZERO).is_some() {
                return None;
            }
            let (name, policy) = &policies[(round + at) % policies.len()];
            let figures = under(&bed, policy, || {
                std::thread::sleep(slice / 5);
                Bed::window(&mut client, slice)
            });
            seen.entry(name).or_default().push(figures);
        }
    }
    client.stop().expect("it stops");

    let quantity = verdict.quantity;
    let client_in = |name: &str, quantity: Quantity, rounds: &dyn Fn(usize) -> bool| {
        // For every quantity less is better.
        let of = |it: &ClientFigures| {
            if quantity == Quantity::Answers {
                return Some(1e9 / it.achieved_per_s);
            }
            let at = it.latency_ns.as_ref()?.at;
            let ns = match quantity {
                Quantity::P90 => at.p90,
                Quantity::P50 => at.p50,
                _ => at.p99,
            };
            Some(ns? as f64)
        };
        let counted = seen[name].iter().enumerate().filter(|(round, _)| rounds(*round));
        median(counted.filter_map(|(_, it)| of(it))).unwrap_or(f64::INFINITY)
    };
    let client_at = |name: &str, quantity: Quantity| client_in(name, quantity, &|_| true);
    println!("  policy | server p50 p99 | client p50 p99 | server/client p50 p99");
    for row in &report.rows {
        let nan = f64::NAN;
        let p50 = row.median(|it| it.whole().p50).unwrap_or(nan);
        let p99 = row.median(|it| it.whole().p99).unwrap_or(nan);
        let (c50, c99) = (client_at(&row.name, Quantity::P50), client_at(&row.name, Quantity::P99));
        println!(
            "  {} | {} {} | {} {} | {:.2} {:.2}",
            row.name,
            time(p50),
            time(p99),
            time(c50),
            time(c99),
            p50 / c50,
            p99 / c99
        );
        let part = |part: Part, of: fn(&Percentiles) -> Option<f64>| {
            time(row.median(|it| of(it.latency_ns.get(part.name())?)).unwrap_or(nan))
        };
        for it in Part::ALL {
            println!("     {} {} {}", it.name(), part(it, |it| it.p50), part(it, |it| it.p99));
        }
    }
    let Some(quantity) = quantity else {
        println!("  NO verdict");
        return Some([false; 2]);
    };
    // The reference, unless another policy is shown to be better.
    let pick = verdict.best.as_ref().unwrap_or(&policies[0].0);
    let best_in = |rounds: &dyn Fn(usize) -> bool| {
        let at = |name: &str| client_in(name, quantity, rounds);
        let names = policies.iter().map(|(name, _)| name.as_str());
        names.min_by(|one, other| at(one).total_cmp(&at(other))).expect("some")
    };
    let best = best_in(&|_| true);
    let behind = client_at(pick, quantity) / client_at(best, quantity);
    let agrees = behind <= AGREEMENT;
    let (even, odd) = (|round: usize| round.is_multiple_of(2), |round: usize| round % 2 == 1);
    let [of_even, of_odd] = [best_in(&even), best_in(&odd)];
    let ratio = client_in(of_even, quantity, &odd) / client_in(of_odd, quantity, &odd);
    println!("  the client's best in even rounds {of_even} is {ratio:.2} of {of_odd} in odd ones");
    println!(
        "  {} verdict {pick}, client {best}, which is {behind:.2} of it by {quantity:?}",
        if agrees { "agree:" } else { "DISAGREE:" }
    );
    Some([agrees, ratio <= AGREEMENT])
}

/// Runs `what` in the server's namespace, in a thread of its own.
fn in_server<T: Send>(bed: &Bed, what: impl FnOnce() -> T + Send) -> T {
    std::thread::scope(|scope| {
        let thread = scope.spawn(|| {
            bed.pair.server.enter_thread().expect("entered");
            what()
        });
        thread.join().expect("no panic")
    })
}

/// Runs `what` with a policy in force on the device and the program.
fn under<T: Send>(bed: &Bed, policy: &Policy, what: impl FnOnce() -> T + Send) -> T {
    in_server(bed, || {
        let store = Store::open().expect("a journal");
        let plan = Plan::of(policy).expect("a plan");
        let mut attachment = Attachment::new(plan, ProcessJournals::new(store));
        attachment.add(bed.pid()).expect("it lives");
        let options = apply::Options::default();
        let request = Request { policy, ifname: DEVICE, options: &options, force: false };
        let device = Temporary::here(&request).expect("applied");
        attachment.scan();
        let outcome = what();
        attachment.restore();
        device.restore().expect("put back");
        outcome
    })
}

/// A single-threaded echo server that waits with epoll and spins for `cost` per request.
fn serve(cost: Duration) -> ! {
    let address = (napkin_workload::linux::pair::SERVER, PORT);
    let listener = TcpListener::bind(address).expect("an address");
    listener.set_nonblocking(true).expect("it can be");
    let context = epoll::create(epoll::CreateFlags::CLOEXEC).expect("a context");
    let watch = |socket: &dyn std::os::fd::AsFd, data: u64| {
        let data = epoll::EventData::new_u64(data);
        epoll::add(&context, socket.as_fd(), data, epoll::EventFlags::IN).expect("watched");
    };
    watch(&listener, u64::MAX);
    let mut connections = BTreeMap::new();
    let mut events = Vec::with_capacity(64);
    let mut bytes = [0; 4_096];
    loop {
        events.clear();
        epoll::wait(&context, rustix::buffer::spare_capacity(&mut events), None).expect("waited");
        for event in &events {
            let of = event.data.u64();
            if of == u64::MAX {
                while let Ok((stream, _)) = listener.accept() {
                    stream.set_nonblocking(true).expect("it can be");
                    stream.set_nodelay(true).expect("it can be");
                    let number = stream.as_raw_fd() as u64;
                    watch(&stream, number);
                    connections.insert(number, stream);
                }
                continue;
            }
            let Some(stream) = connections.get_mut(&of) else { continue };
            let ended = match stream.read(&mut bytes) {
                Ok(0) => true,
                Ok(count) => {
                    let began = Instant::now();
                    while began.elapsed() < cost {
                        std::hint::spin_loop();
                    }
                    stream.write_all(&bytes[..count]).is_err()
                }
                Err(error) => error.kind() != std::io::ErrorKind::WouldBlock,
            };
            if ended {
                connections.remove(&of);
            }
        }
    }
}
