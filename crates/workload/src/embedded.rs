//! A TCP service on the engine, and its client at the other end of a wire.
//!
//! The queues, the threads that poll them, and the service's threads share the serving CPUs: one CPU, unless there
//! are several queues. The client has another CPU, on which it polls its end of a cable, or uses sockets behind a
//! TAP device; its CPU time is not measured.

use std::net::SocketAddr;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::Duration;

use napkin_client::{ClientFigures, ClientWait, Config, Load};
use napkin_core::CpuId;
use napkin_engine::{ApplicationWait, Class, Placement as Place, Relay, sched};
use napkin_nic::PacketQueue;
use napkin_os::sched::CpuList;
use napkin_service::{Pump, StreamService};
use napkin_stack::{TcpLimits, TcpWorker};
use rustix::time::{Itimerspec, TimerfdTimerFlags, Timespec, timerfd_settime};

use crate::client_results::{add_answers, add_cpu_shares};
use crate::error::BenchError;
use crate::live::Trial;
use crate::options::{Options, Placement};
use crate::server::{Server, Servers, Wire};
use crate::serving::{Serving, US, Window};
use crate::wire::open_wire;
use napkin_measure::report::{Column, Measurement, column};

/// The TCP port of the service.
pub(crate) const PORT: u16 = 11_211;

/// Duration of a run besides its warm-up and its window.
pub(crate) const OVERHEAD: Duration = Duration::from_millis(300);

/// The scheduling class of a thread that stands for a device's interrupt, the same as for the engine's interrupts.
const INTERRUPT: Class = Class::Fifo(50);

/// The threads of a service.
pub(crate) struct Threads<S> {
    /// The service of each thread. With one per queue, each thread gets the connections of its own queue. Otherwise
    /// the connections are distributed over the threads by their hash.
    pub services: Vec<S>,
    /// The limits of each connection.
    pub limits: TcpLimits,
    /// A timer descriptor per thread, whose expiry ends the thread's wait; empty if the service has none.
    pub timers: Vec<Arc<OwnedFd>>,
}

impl<S> From<Vec<S>> for Threads<S> {
    fn from(services: Vec<S>) -> Threads<S> {
        Threads { services, limits: TcpLimits::default(), timers: Vec::new() }
    }
}

/// Returns the configuration of a client of such a service. Its CPU is its own if there are two.
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

/// Runs a service under a policy, and its client, and measures a window.
pub(crate) fn run<S>(
    trial: Trial<'_>,
    threads: impl Into<Threads<S>>,
    config: &Config,
    wire: &Wire,
) -> Result<(Measurement, ClientFigures), BenchError>
where
    S: StreamService + Send + 'static,
    S::Connection: Send,
{
    let (queues, mut end) = open_wire(wire, trial.options)?;
    let of_queues: Vec<_> = queues.iter().map(|it| it.counters()).collect();
    let received = || of_queues.iter().map(|it| it.read().rx_packets).collect::<Vec<u64>>();
    let served = Served::start(trial, queues, threads.into())?;
    let mut client = end.client(config)?;
    trial.warm_up(Duration::ZERO)?;
    let Some(serving) = &served.serving else { return Err(BenchError::Panicked) };
    let window = Window::begin(serving, &served.cpus, &[trial.options.placement().other])?;
    client.begin_window()?;
    let before = received();
    trial.window()?;
    let results = client.end_window()?;
    let by_queue: Vec<u64> = received().iter().zip(before).map(|(now, it)| now - it).collect();
    let (mut figures, usage) = window.end_with_usage(0)?;
    client.stop()?;
    figures.extra.insert("client_tx_dropped".to_owned(), end.refused().into());
    served.stop()?;
    figures.extra.insert("packets_by_queue".to_owned(), by_queue.into());
    add_answers(&mut figures, &results);
    if !matches!(wire, Wire::Cable | Wire::Vhost) {
        add_cpu_shares(&mut figures, &usage, trial.options.placement());
    }
    Ok((figures, results))
}

/// Returns the columns of such a service's table: its own, those that a wire through the kernel adds, and the
/// engine's.
pub(crate) fn columns(own: &[&'static Column], wire: &Wire) -> Vec<&'static Column> {
    let of_a_wire: &[&Column] = match wire {
        Wire::Cable | Wire::Vhost => &[],
        Wire::Tap | Wire::Xdp | Wire::Ports { .. } => {
            &[column::CPU_PER_REQUEST, column::BUSY, column::SOFTIRQ_BUSY]
        }
    };
    let of_the_engine: &[&Column] = &[
        column::WORK,
        column::POLL,
        column::WAITING,
        column::INTERRUPTED,
        column::UNANSWERED,
        column::LATE,
        column::INTERRUPTS_PER_PACKET,
        column::PACKETS_PER_POLL,
        column::SWITCHES_PER_PACKET,
        column::SOFTIRQ_POLLS,
        column::THREAD_POLLS,
        column::APPLICATION_POLLS,
        column::EMPTY_POLLS,
        column::DEFERRALS,
        column::ASLEEP,
    ];
    [own, of_a_wire, of_the_engine].concat()
}

/// Returns remarks on such results, for the report.
pub(crate) fn notes(options: &Options, servers: &Servers) -> Vec<String> {
    let mut notes = match &servers.wire {
        Wire::Cable => vec![
            "the client is napkin's own, at the other end of a cable in memory: what a wire, a card and \
             a kernel's stack on the client would take is not in the latency"
                .to_owned(),
        ],
        Wire::Vhost => vec![
            "the client is napkin's own, and the driver of virtio rings whose backend the engine is: both copy \
             each frame once, and notify each other where that is asked for"
                .to_owned(),
        ],
        Wire::Ports { here, there } => vec![format!(
            "the engine is on queue {} of {}, over AF_XDP, and napkin's own client on queue {} of {}; \
             cpu/req is the serving CPUs' time, the kernel's interrupts and softirqs there among it",
            here.queue, here.interface, there.queue, there.interface
        )],
        Wire::Tap | Wire::Xdp => vec![
            "the client has the operating system's sockets, in a network namespace and on a CPU of its \
             own, where its kernel receives, too (RPS); cpu/req is the serving CPUs' time, in threads, \
             interrupts and softirqs, polls that found nothing among them"
                .to_owned(),
        ],
    };
    if servers.wire == Wire::Tap && servers.servers.contains(&Server::Napkin) {
        notes.push(
            "napkin is behind a TAP device: a system call and a copy for each frame that comes or goes, \
             and no offloads"
                .to_owned(),
        );
    }
    if servers.wire == Wire::Xdp && servers.servers.contains(&Server::Napkin) {
        notes.push(
            "napkin is on one end of a veth, over AF_XDP: the kernel copies each frame, and is called \
             once for all that a batch sends"
                .to_owned(),
        );
    }
    if servers.several() {
        notes.push(
            "the other servers are behind a veth, to which the kernel leaves checksums as to a card; they \
             run as the kernel delivers by itself. --world linux has its other policies, and its figures are \
             without RPS: there the client's CPU does much of the server's receiving, and it serves more"
                .to_owned(),
        );
    }
    let cpus = options.serving().len();
    if usize::from(options.queues) > cpus {
        notes.push(format!(
            "{} queues share {cpus} serving CPU{}: one more CPU has the client",
            options.queues,
            if cpus == 1 { "" } else { "s" }
        ));
    }
    notes
}

/// A service on an engine. Dropping stops the engine and joins the threads.
struct Served {
    /// `None` after the engine was stopped.
    serving: Option<Serving>,
    threads: Vec<JoinHandle<Result<(), BenchError>>>,
    /// The CPUs it uses: the serving CPUs, and those of separate polling threads.
    cpus: Vec<usize>,
    /// Each wakes one of the threads, which may have ended.
    relays: Vec<Relay>,
}

impl Served {
    fn start<S>(
        trial: Trial<'_>,
        queues: Vec<Box<dyn PacketQueue>>,
        threads: Threads<S>,
    ) -> Result<Served, BenchError>
    where
        S: StreamService + Send + 'static,
        S::Connection: Send,
    {
        let Threads { services, limits, timers } = threads;
        let (policy, cpus) = (trial.policy, trial.options.serving());
        let own = services.len() == queues.len();
        let serving = Serving::start_on(policy, trial.options, queues)?;
        let napis: Vec<u32> = serving.engine.napis().iter().map(|napi| napi.id).collect();
        let open = |(number, _): (usize, &S)| {
            let queue = napis.get(number).copied().filter(|_| own);
            serving.stack.open_tcp(queue, limits)
        };
        // Open all workers before the first one listens.
        let workers = services.iter().enumerate().map(open);
        let workers: Vec<TcpWorker<_>> = workers.collect::<Result<_, _>>()?;
        let mut waiting = Vec::new();
        for (number, (service, mut worker)) in services.into_iter().zip(workers).enumerate() {
            // A new worker has no listener, so the port is free.
            worker.listen(PORT).map_err(|error| BenchError::Usage(error.to_string()))?;
            let segments = worker.segments();
            let cpu = CpuId((number % cpus.len()) as u16);
            let waits = ApplicationWait::new(&serving.engine, cpu, &segments, policy)?;
            waiting.push((Pump::new(service), worker, waits, cpu));
        }
        let mut served = Served {
            serving: Some(serving),
            threads: Vec::new(),
            cpus: cpus.clone(),
            relays: Vec::new(),
        };
        for (number, (mut pump, mut worker, mut waits, cpu)) in waiting.into_iter().enumerate() {
            let own = cpus[usize::from(cpu.0)];
            if let Some(timer) = timers.get(number) {
                let place = Place { cpus: vec![own], class: INTERRUPT };
                let (name, timer) = (format!("disk/{number}"), Arc::clone(timer));
                let relay = Relay::start(name, place, timer, expire, waits.waker());
                served.relays.push(relay.map_err(BenchError::Proc)?);
            }
            if let Some(poller) = waits.poller(cpu) {
                let poller_cpu = Some(trial.options.placement().poller);
                let poller_cpu = poller_cpu.filter(|poller| !cpus.contains(poller)).unwrap_or(own);
                if !served.cpus.contains(&poller_cpu) {
                    served.cpus.push(poller_cpu);
                }
                served.spawn(format!("poll/{number}"), poller_cpu, move || {
                    while poller.poll().is_ok() {
                        std::hint::spin_loop();
                    }
                })?;
            }
            served.spawn(format!("app/{number}"), own, move || {
                // The wait fails when the engine stops, which is how the thread ends.
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

    /// Stops the engine, joins its threads, and returns the first error of any.
    fn stop(mut self) -> Result<(), BenchError> {
        self.end()
    }

    fn end(&mut self) -> Result<(), BenchError> {
        // Stopping the engine ends every wait of the threads.
        self.serving = None;
        self.relays.clear();
        let join = |thread: JoinHandle<_>| thread.join().unwrap_or(Err(BenchError::Panicked));
        // Join all threads before returning the first error.
        let ended: Vec<_> = self.threads.drain(..).map(join).collect();
        ended.into_iter().collect()
    }
}

/// Makes a timer descriptor expire at once.
fn expire(timer: &OwnedFd) {
    let zero = Timespec { tv_sec: 0, tv_nsec: 0 };
    let at_once = Itimerspec { it_interval: zero, it_value: Timespec { tv_nsec: 1, ..zero } };
    // This value is always valid.
    let _ = timerfd_settime(timer, TimerfdTimerFlags::empty(), &at_once);
}

impl Drop for Served {
    fn drop(&mut self) {
        // A destructor cannot report the error.
        let _ = self.end();
    }
}
