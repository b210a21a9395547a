//! `udp-sink` (2018) in the linux world: a blocking sink on a socket of the operating system, and a sender with a
//! given rate.
//!
//! Behind a network card, the softirq of `base` preempts the sink on its CPU and starves it. Over a veth, the
//! softirq runs on the sender's CPU and slows the sender down instead, so livelock cannot be observed here.
//!
//! The sink has no epoll descriptor, so policies that poll in an epoll wait are refused.

use std::net::{SocketAddr, UdpSocket};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use napkin_linux::attach::Plan;
use napkin_os::sched;
use napkin_policy::Policy;
use serde_json::{Map, Value, json};

use crate::error::BenchError;
use crate::linux::pair::{CLIENT, SERVER};
use crate::linux::testbed::Testbed;
use crate::linux::window::Window;
use crate::linux::{failed, notes};
use crate::live::Live;
use crate::{live::Trial, options::Options, options::Placement};
use napkin_measure::report::{Column, Measurement, Report, column};

const PORT: u16 = 9;
/// Bytes of a datagram.
const DATAGRAM: usize = 64;
/// The sink's receive timeout, after which it checks for the end of the run.
const RECEIVE_TIMEOUT: Duration = Duration::from_millis(50);

/// A receiver in one namespace, and in another one a sender that does not wait for it.
#[derive(Debug, Clone, PartialEq)]
pub struct UdpSink {
    /// Datagrams per second, each a load; `None` for as many as the sender can send.
    pub offered: Vec<Option<u64>>,
}

impl Default for UdpSink {
    fn default() -> Self {
        UdpSink { offered: vec![Some(20_000), Some(100_000), None] }
    }
}

/// State shared by the threads of a run.
#[derive(Debug, Default)]
struct Shared {
    stop: AtomicBool,
    sent: AtomicU64,
    received: AtomicU64,
}

impl Live for UdpSink {
    fn name(&self) -> &'static str {
        "udp-sink"
    }

    fn world(&self) -> &'static str {
        "linux"
    }

    fn loads(&self) -> usize {
        self.offered.len()
    }

    fn load(&self, index: usize) -> Map<String, Value> {
        let rate = self.offered[index].map_or_else(|| json!("max"), |rate| json!(rate));
        Map::from_iter([("packets_per_s".to_owned(), rate)])
    }

    fn run(&self, index: usize, trial: Trial<'_>) -> Result<Measurement, BenchError> {
        let placement = trial.options.placement();
        let testbed = Testbed::new(trial.policy, placement)?;
        // After `Testbed::new`, which refuses what this kernel lacks and names the nearest alternative.
        if trial.policy.epoll.enabled() {
            return Err(BenchError::Unsupported(
                "the sink waits in a blocking receive call, and this policy polls or suspends in an \
                 epoll wait: memcached has one"
                    .into(),
            ));
        }
        let open = |address| bind(address, trial.policy);
        let server = testbed.pair.server.run(|| open((SERVER, PORT).into())).map_err(failed)??;
        let client = UdpSocket::bind;
        let client =
            testbed.pair.client.run(|| client((CLIENT, 0))).map_err(failed)?.map_err(failed)?;
        client.connect((SERVER, PORT)).map_err(failed)?;
        let shared = Shared::default();
        std::thread::scope(|scope| {
            let sink = scope.spawn(|| sink(&server, placement.queue, &shared));
            let sender =
                scope.spawn(|| send(&client, placement.other, self.offered[index], &shared));
            let measured = measure(&testbed, trial, placement, &shared);
            shared.stop.store(true, Ordering::Relaxed);
            for thread in [sink, sender] {
                thread.join().map_err(|_| BenchError::Panicked)??;
            }
            let mut figures = measured?;
            if let Some(rate) = self.offered[index] {
                // The schedule continues whether or not the sender keeps up.
                let seconds = figures.window_ns.unwrap_or(0) as f64 / 1e9;
                figures.set_due((rate as f64 * seconds) as u64, figures.packets.unwrap_or(0));
            }
            Ok(figures)
        })
    }

    fn conclude(&self, report: &mut Report) {
        crate::linux::conclude(report);
    }

    fn columns(&self) -> Vec<&'static Column> {
        vec![
            column::POLICY,
            column::PACKETS_PER_S,
            column::ACHIEVED,
            column::SENT,
            column::PACKETS,
            column::UNANSWERED,
            column::DROPS,
            column::POLLS,
            column::EMPTY_POLLS,
            column::SOFTIRQ_POLLS,
            column::THREAD_POLLS,
            column::APPLICATION_POLLS,
            column::DEFERRALS,
            column::WATCHDOGS,
            column::BUSY,
            column::INTERRUPTED,
            column::SOFTIRQ_BUSY,
        ]
    }

    fn notes(&self, _: &Options) -> Vec<String> {
        let mut notes = notes();
        notes.push(
            "the sender pays for the softirq that takes its datagrams, so livelock cannot be seen: \
             sent says what it could send"
                .into(),
        );
        notes
    }
}

/// Opens the sink's socket, with the policy's socket options.
fn bind(address: SocketAddr, policy: &Policy) -> Result<UdpSocket, BenchError> {
    let socket = UdpSocket::bind(address).map_err(failed)?;
    socket.set_read_timeout(Some(RECEIVE_TIMEOUT)).map_err(failed)?;
    let plan = Plan::of(policy).map_err(|error| BenchError::Unsupported(error.to_string()))?;
    if let Some(options) = plan.socket {
        options.set(&socket).map_err(failed)?;
    }
    Ok(socket)
}

/// Receives datagrams until the run ends.
fn sink(socket: &UdpSocket, cpu: usize, shared: &Shared) -> Result<(), BenchError> {
    sched::pin(None, &[cpu])?;
    let mut buffer = [0; DATAGRAM];
    while !shared.stop.load(Ordering::Relaxed) {
        // An error is the receive timeout.
        if socket.recv(&mut buffer).is_ok() {
            shared.received.fetch_add(1, Ordering::Relaxed);
        }
    }
    Ok(())
}

/// Sends on a schedule, and catches up without a pause if it is late.
fn send(
    socket: &UdpSocket,
    cpu: usize,
    rate: Option<u64>,
    shared: &Shared,
) -> Result<(), BenchError> {
    sched::pin(None, &[cpu])?;
    let began = Instant::now();
    let mut sent = 0_u64;
    while !shared.stop.load(Ordering::Relaxed) {
        let due =
            rate.map_or(u64::MAX, |rate| (began.elapsed().as_secs_f64() * rate as f64) as u64);
        if sent >= due {
            // It has a CPU of its own, and timers are too coarse.
            std::hint::spin_loop();
            continue;
        }
        // The first send may be refused while the sink is not bound yet.
        if socket.send(&[0x5a; DATAGRAM]).is_ok() {
            shared.sent.fetch_add(1, Ordering::Relaxed);
        }
        sent += 1;
    }
    Ok(())
}

fn measure(
    testbed: &Testbed,
    trial: Trial<'_>,
    placement: Placement,
    shared: &Shared,
) -> Result<Measurement, BenchError> {
    trial.warm_up(Duration::ZERO)?;
    let counts = || (shared.sent.load(Ordering::Relaxed), shared.received.load(Ordering::Relaxed));
    let window = Window::begin(testbed, placement, &[])?;
    let before = counts();
    trial.window()?;
    let after = counts();
    let mut figures = window.end()?;
    let (sent, received) = (after.0 - before.0, after.1 - before.1);
    let seconds = figures.window_ns.unwrap_or(1) as f64 / 1e9;
    figures.packets = Some(received);
    figures.achieved_per_s = Some(received as f64 / seconds);
    figures.extra.insert("sent".into(), sent.into());
    // Packets in flight at either end of the window cause a difference of a few.
    figures.drops.insert("not_received".into(), sent.saturating_sub(received));
    Ok(figures)
}
