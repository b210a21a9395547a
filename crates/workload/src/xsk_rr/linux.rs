//! `xsk-rr` (2025) in the linux world: the same application on AF_XDP rings over the kernel's own NAPI.
//!
//! Server and client have an AF_XDP queue each, at the two ends of a veth, without an engine in between. The
//! server's device is configured for the policy. The application checks its ring without pause and answers inline,
//! like the document's tool with `-n`, because no call could poll the queue: a veth only supports copy mode, in
//! which a socket has no NAPI id from Linux 6.13 on, and per-NAPI settings exist only from 6.13 on. So policies
//! whose application polls (`SO_BUSY_POLL`, epoll) are refused here.

use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;

use napkin_nic::xdp::{Xdp, XdpConfig};
use napkin_nic::{Frame, PacketQueue, Pool};
use napkin_policy::Ns;
use serde_json::{Map, Value, json};

use super::pace::{self, Pace};
use super::{PAYLOAD, UDP_PORT};
use crate::client_results::client_notes;
use crate::error::BenchError;
use crate::linux::pair::{CLIENT_DEVICE, DEVICE};
use crate::linux::testbed::Testbed;
use crate::linux::window::Window;
use crate::linux::{failed, notes};
use crate::live::Live;
use crate::sender::{Sender, Shared, client_cpu, own_cpu, turn_into_answer};
use crate::{live::Trial, options::Options};
use napkin_engine::sched;
use napkin_measure::report::{Column, Measurement, Report, column};

/// Two ends that exchange frames at a fixed pace.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct XskRr {
    /// The paces, each a load.
    pub paces: Vec<Pace>,
}

/// Opens the only queue of a device.
fn open(interface: &str) -> Result<Box<dyn PacketQueue>, BenchError> {
    let config = XdpConfig { queues: vec![0], ..XdpConfig::new(interface) };
    let xdp = Xdp::open(&config, &Pool::new(2 * config.buffers_of_a_queue()))?;
    let queue = xdp.queues.into_iter().next().ok_or(BenchError::Panicked)?;
    Ok(Box::new(queue))
}

/// The server: answers until it is stopped, and stays busy for `delay` after each answer.
fn serve(mut queue: Box<dyn PacketQueue>, delay: Ns, shared: &Shared) -> Result<(), BenchError> {
    queue.mask();
    let wire = queue.transmitter();
    let mut frames: Vec<Frame> = Vec::with_capacity(1);
    while !shared.stop.load(Relaxed) {
        queue.poll(1, napkin_engine::now(), &mut frames);
        let Some(mut frame) = frames.pop() else {
            if queue.gone() {
                return Err(BenchError::Linux(format!("{DEVICE} has gone")));
            }
            std::hint::spin_loop();
            continue;
        };
        // The ring counts an answer that it has no room for; that request remains unanswered.
        if turn_into_answer(&mut frame, UDP_PORT) {
            let _ = wire.send(&frame, 0);
        }
        let busy_until = napkin_engine::now() + delay;
        while napkin_engine::now() < busy_until && !shared.stop.load(Relaxed) {
            std::hint::spin_loop();
        }
    }
    Ok(())
}

impl Live for XskRr {
    fn name(&self) -> &'static str {
        "xsk-rr"
    }

    fn world(&self) -> &'static str {
        "linux"
    }

    fn loads(&self) -> usize {
        self.paces.len()
    }

    fn load(&self, index: usize) -> Map<String, Value> {
        self.paces[index].load()
    }

    fn run(&self, index: usize, trial: Trial<'_>) -> Result<Measurement, BenchError> {
        let (pace, policy) = (self.paces[index], trial.policy);
        if policy.application.socket_busy_polls() || policy.epoll.enabled() {
            return Err(BenchError::Unsupported(
                "a busy poll needs the socket's NAPI id, which from Linux 6.13 on only zero-copy AF_XDP \
                 sockets have, and a veth has none of these"
                    .into(),
            ));
        }
        let placement = trial.options.placement();
        let testbed = Testbed::new(policy, placement)?;
        let server = testbed.pair.server.run(|| open(DEVICE)).map_err(failed)??;
        let queue = testbed.pair.client.run(|| open(CLIENT_DEVICE)).map_err(failed)??;
        // Policies with a poller are refused above.
        let cpu = client_cpu(trial.options, false);
        let own = cpu.own();
        let sender = Sender { queue, period: pace.period, port: UDP_PORT, payload: PAYLOAD, cpu };
        let shared = Shared::default();
        std::thread::scope(|scope| {
            let named = |name: &str| std::thread::Builder::new().name(name.into());
            let server = named("xsk-rr").spawn_scoped(scope, || {
                sched::pin(None, &[placement.other])?;
                serve(server, pace.delay, &shared)
            });
            let server = server.map_err(BenchError::Proc)?;
            let client = named("xsk-rr-client").spawn_scoped(scope, || sender.run(&shared));
            let window = || -> Result<(Measurement, u64), BenchError> {
                trial.warm_up(Duration::from_millis(50))?;
                let window = Window::begin(&testbed, placement, &[])?;
                let before = shared.due(pace.period, napkin_engine::now());
                shared.measure.store(true, Relaxed);
                trial.window()?;
                // Before measuring stops: requests that are due later do not count.
                let now = napkin_engine::now();
                let offered = shared.due(pace.period, now) - before;
                shared.measure.store(false, Relaxed);
                let mut figures = window.end()?;
                figures.extra.insert("client_behind".into(), json!(shared.is_behind(now)));
                Ok((figures, offered))
            };
            let measured = window();
            shared.stop.store(true, Relaxed);
            server.join().map_err(|_| BenchError::Panicked)??;
            let client = client.map_err(BenchError::Proc)?;
            let (latency, mut published) = client.join().map_err(|_| BenchError::Panicked)??;
            let (mut figures, offered) = measured?;
            if own.is_none() {
                // The client's time may be on the same CPU, and in the same sums.
                for share in ["server_busy", "server_softirq", "server_threads"] {
                    figures.extra.remove(share);
                }
            }
            let seconds = figures.window_ns.unwrap_or(1) as f64 / 1e9;
            figures.extra.insert("offered".into(), json!(offered));
            figures.set_due(offered, latency.count());
            figures.packets = Some(latency.count());
            figures.achieved_per_s = Some(latency.count() as f64 / seconds);
            figures.latency_ns = latency.summary(figures.unanswered_beside(latency.count()));
            figures.published_estimator_ns = published.take();
            Ok(figures)
        })
    }

    fn conclude(&self, report: &mut Report) {
        report.rows.iter_mut().for_each(|row| row.notes.extend(client_notes(row)));
        crate::linux::conclude(report);
    }

    fn columns(&self) -> Vec<&'static Column> {
        vec![
            column::FRAMES_PER_S,
            column::DELAY,
            column::POLICY,
            column::P5,
            column::P50,
            column::P95,
            column::P99,
            column::P999,
            column::PUBLISHED_P5,
            column::PUBLISHED_P50,
            column::PUBLISHED_P95,
            column::PUBLISHED_P99,
            column::ACHIEVED,
            column::UNANSWERED,
            column::BUSY,
            column::INTERRUPTED,
            column::POLLS,
            column::SOFTIRQ_POLLS,
            column::THREAD_POLLS,
            column::EMPTY_POLLS,
            column::DEFERRALS,
            column::WATCHDOGS,
        ]
    }

    fn notes(&self, options: &Options) -> Vec<String> {
        let mut notes = notes();
        notes.push(pace::of_percentiles("when a request was due to its reply"));
        notes.extend(pace::notes(&self.paces));
        if own_cpu(options, false).is_none() {
            notes.push(
                "the client has no CPU of its own, so it sleeps between frames, and its timers are in the latency; \
                 server_* are left out, as its time may be in them"
                    .into(),
            );
        }
        notes
    }
}
