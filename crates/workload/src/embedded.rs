//! A TCP service on the engine, and its client at the other end of a cable.
//!
//! The server has one CPU: the queue, whoever polls it, and the program's threads share it. The client
//! has the other, where it polls its end of the cable by itself and is no part of the figures.

use std::net::SocketAddr;
use std::thread::JoinHandle;
use std::time::Duration;

use napkin_client::{Client, ClientFigures, ClientWait, Config, Host, Load};
use napkin_core::CpuId;
use napkin_engine::{ApplicationWait, sched};
use napkin_nic::{EndConfig, PacketQueue, Pool, cable};
use napkin_os::sched::CpuList;
use napkin_service::{Pump, StreamService};
use napkin_stack::{TcpLimits, TcpWorker};

use crate::error::BenchError;
use crate::live::Trial;
use crate::options::{Options, Placement};
use crate::serving::{PEER, Serving, US, Window};
use napkin_measure::report::Figures;

/// Where the service listens.
const PORT: u16 = 11_211;

/// Frames of each ring: more than a thousand connections have on their way.
const RING: usize = 4_096;

/// Buffers of each end: a ring, a receive buffer, and what is in hand.
const BUFFERS: usize = 3 * RING;

/// What a run takes beside its warm-up and its window.
pub(crate) const OVERHEAD: Duration = Duration::from_millis(300);

/// A client of such a service, which has a CPU of its own if there are two.
pub(crate) fn client(connections: usize, load: Load, options: &Options, seed: u64) -> Config {
    let Placement { other, .. } = options.placement();
    let wait = if options.placement().shared() { ClientWait::Sleep } else { ClientWait::Spin };
    Config {
        connections,
        load,
        seed,
        wait,
        cpus: CpuList(vec![other]),
        ..Config::new(SocketAddr::from((US.ip, PORT)))
    }
}

/// Runs a service under a policy and a client, and measures a window. One thread serves for each of
/// `services`; they share the connections by their hash.
pub(crate) fn run<S>(
    trial: Trial<'_>,
    services: Vec<S>,
    config: &Config,
) -> Result<(Figures, ClientFigures), BenchError>
where
    S: StreamService + Send + 'static,
    S::Connection: Send,
{
    let placement = trial.options.placement();
    let end = || EndConfig { queues: 1, ring: RING, pool: Pool::new(BUFFERS) };
    let (here, there) = cable(end(), end())?;
    let queues = here.into_iter().map(|queue| Box::new(queue) as Box<dyn PacketQueue>).collect();
    let served = Served::start(trial, queues, services)?;
    let wire = there.first().map(PacketQueue::counters);
    let queue = there.into_iter().next().ok_or(BenchError::Panicked)?;
    let host = Host { queue: Box::new(queue), address: PEER };
    let mut client = Client::embedded(config, host)?;
    trial.warm_up(Duration::ZERO)?;
    let Some(serving) = &served.serving else { return Err(BenchError::Panicked) };
    let window = Window::begin(serving, &[placement.queue])?;
    client.begin_window()?;
    trial.window()?;
    let told = client.end_window()?;
    let mut figures = window.end(0)?;
    client.stop()?;
    served.stop()?;
    // A frame that the cable did not take is sent again, much later.
    let refused = wire.map_or(0, |counters| counters.read().tx_dropped);
    figures.extra.insert("client_tx_dropped".to_owned(), refused.into());
    answered(&mut figures, &told);
    Ok((figures, told))
}

/// Enters what the client saw: rates, latency, and what fell due.
pub(crate) fn answered(figures: &mut Figures, told: &ClientFigures) {
    if let (Some(asked), Some(offered)) = (told.asked_per_s, told.offered_per_s) {
        figures.set_due(told.due, told.requests);
        // By each thread's own window.
        figures.offered_per_s = Some(offered);
        figures.extra.insert("asked_per_s".to_owned(), asked.into());
    }
    figures.achieved_per_s = Some(told.achieved_per_s);
    figures.latency_ns = told.latency_ns;
    figures.packets = Some(told.requests);
    let polls = figures.polls.unwrap_or(0);
    let packets = figures.polled_packets.unwrap_or(0);
    crate::serving::set_ratio(&mut figures.extra, "packets_per_poll", packets, polls);
}

/// What a reader should know about such figures.
pub(crate) fn notes() -> Vec<String> {
    vec![
        "the client is napkin's own, at the other end of a cable in memory: what a wire, a card and a \
         kernel's stack on the client would take is not in the latency"
            .to_owned(),
    ]
}

/// A service on an engine. Dropping it ends the engine and its threads.
struct Served {
    /// `None` once it has ended.
    serving: Option<Serving>,
    threads: Vec<JoinHandle<Result<(), BenchError>>>,
}

impl Served {
    fn start<S>(
        trial: Trial<'_>,
        queues: Vec<Box<dyn PacketQueue>>,
        services: Vec<S>,
    ) -> Result<Served, BenchError>
    where
        S: StreamService + Send + 'static,
        S::Connection: Send,
    {
        let (policy, placement) = (trial.policy, trial.options.placement());
        let serving = Serving::start(policy, placement, queues, 0)?;
        let open = |_: &S| serving.stack.open_tcp(None, TcpLimits::default());
        // All of them before the first listens.
        let workers: Vec<TcpWorker<_>> = services.iter().map(open).collect::<Result<_, _>>()?;
        let mut waiting = Vec::new();
        for (service, mut worker) in services.into_iter().zip(workers) {
            // A new worker listens nowhere yet.
            worker.listen(PORT).map_err(|error| BenchError::Option(error.to_string()))?;
            let segments = worker.segments();
            let waits = ApplicationWait::new(&serving.engine, CpuId(0), &segments, policy)?;
            waiting.push((Pump::new(service), worker, waits));
        }
        let mut served = Served { serving: Some(serving), threads: Vec::new() };
        for (number, (mut pump, mut worker, mut waits)) in waiting.into_iter().enumerate() {
            if let Some(poller) = waits.poller(CpuId(0)) {
                served.spawn(format!("poll/{number}"), placement.poller, move || {
                    while poller.poll().is_ok() {
                        std::hint::spin_loop();
                    }
                })?;
            }
            served.spawn(format!("app/{number}"), placement.queue, move || {
                // The engine's end is its end.
                let _ = waits.serve(&mut worker, &mut pump, |_, _| true);
            })?;
        }
        Ok(served)
    }

    fn spawn(
        &mut self,
        name: String,
        cpu: usize,
        body: impl FnOnce() + Send + 'static,
    ) -> Result<(), BenchError> {
        let body = move || {
            sched::pin(None, &[cpu])?;
            body();
            Ok(())
        };
        let thread = std::thread::Builder::new().name(name).spawn(body);
        self.threads.push(thread.map_err(BenchError::Proc)?);
        Ok(())
    }

    /// Ends it.
    fn stop(mut self) -> Result<(), BenchError> {
        self.end()
    }

    fn end(&mut self) -> Result<(), BenchError> {
        // The engine stops, and every wait of its threads' ends.
        self.serving = None;
        let join = |thread: JoinHandle<_>| thread.join().unwrap_or(Err(BenchError::Panicked));
        // All of them, whatever the first says.
        let ended: Vec<_> = self.threads.drain(..).map(join).collect();
        ended.into_iter().collect()
    }
}

impl Drop for Served {
    fn drop(&mut self) {
        // Nobody is left to hear of it.
        let _ = self.end();
    }
}
