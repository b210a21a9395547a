//! Servers to compare the engine with: the same service on the operating system's sockets, or a program, behind a
//! veth, with the same client on its other side.
//!
//! RPS makes each side's kernel receive on that side's CPUs, as a card's interrupt affinity would. Without it, a
//! veth's receive processing runs on the sender's CPU, and the client would pay for the server's stack.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc;
use std::thread::JoinHandle;

use napkin_client::{Client, ClientFigures, Config};
use napkin_measure::Interruption;
use napkin_measure::report::Measurement;
use napkin_measure::window::CpuWindow;
use napkin_os::meter::ThreadMeter;
use napkin_os::sched;
use napkin_service::{Pump, StreamService};
use napkin_sockets::{OsTcp, Waker};

use crate::client_results::{add_answers, add_cpu_shares};
use crate::embedded::PORT;
use crate::error::BenchError;
use crate::linux::failed;
use crate::linux::pair::{CLIENT_DEVICE, DEVICE, Pair, SERVER, receive_on};
use crate::live::Trial;
use crate::options::Options;

/// Connections besides the client's: to fill the store, or to check that a server is up.
pub(crate) const EXTRA_CONNECTIONS: usize = 16;

/// Creates two namespaces with a veth between them; each side receives on its own CPUs.
pub(crate) fn pair(options: &Options) -> Result<Pair, BenchError> {
    let (pair, other) = (Pair::new()?, options.placement().other);
    pair.server.run(|| receive_on(DEVICE, &options.serving())).map_err(failed)??;
    pair.client.run(|| receive_on(CLIENT_DEVICE, &[other])).map_err(failed)??;
    Ok(pair)
}

/// Returns the configuration of a client whose server is in such a pair.
pub(crate) fn config(config: &Config) -> Config {
    Config { address: SocketAddr::from((SERVER, PORT)), ..config.clone() }
}

/// Runs a service on the operating system's sockets and its client, and measures a window. Each of `services` has a
/// thread of its own; the kernel distributes the connections over them.
pub(crate) fn run<S>(
    trial: Trial<'_>,
    services: Vec<S>,
    client: &Config,
) -> Result<(Measurement, ClientFigures), BenchError>
where
    S: StreamService + Send + 'static,
    S::Connection: Send,
{
    let (pair, client) = (pair(trial.options)?, config(client));
    let most = client.connections + EXTRA_CONNECTIONS;
    let start = || Threads::start(services, most, &trial.options.serving());
    let threads = pair.server.run(start).map_err(failed)??;
    let meter =
        ThreadMeter::of_self(|tid, _| threads.ids.contains(&tid)).map_err(BenchError::Proc)?;
    let results = measure(trial, &pair, &client, meter, &[])?;
    threads.end()?;
    Ok(results)
}

/// Runs the client against a listening server, and measures a window. `programs` are the processes that take part
/// besides this one.
pub(crate) fn measure(
    trial: Trial<'_>,
    pair: &Pair,
    client: &Config,
    server: ThreadMeter,
    programs: &[u32],
) -> Result<(Measurement, ClientFigures), BenchError> {
    let cpus = trial.options.serving();
    let mut client = pair.client.run(|| Client::start(client)).map_err(failed)??;
    trial.warm_up(std::time::Duration::ZERO)?;
    let watched = [&cpus[..], &[trial.options.placement().other]].concat();
    let interruption = Interruption::begin(&watched, programs).ok();
    let mut window = CpuWindow::new(server, cpus.clone()).map_err(BenchError::Proc)?;
    client.begin_window()?;
    window.begin().map_err(BenchError::Proc)?;
    trial.window()?;
    let results = client.end_window()?;
    let usage = window.end(0).map_err(BenchError::Proc)?;
    let mut figures = Measurement {
        window_ns: Some(usage.wall_ns),
        interrupted: interruption.and_then(|it| it.end().ok().flatten()),
        context_switches: Some(usage.totals.context_switches),
        wakeups: Some(usage.totals.wakeups),
        ..Measurement::default()
    };
    figures.extra.insert("serving_cpus".to_owned(), cpus.into());
    client.stop()?;
    add_answers(&mut figures, &results);
    add_cpu_shares(&mut figures, &usage, trial.options.placement());
    Ok((figures, results))
}

/// Threads that serve on the operating system's sockets. Dropping stops and joins them.
struct Threads {
    ends: Arc<AtomicBool>,
    threads: Vec<(Waker, JoinHandle<Result<(), BenchError>>)>,
    /// The kernel's IDs of the started threads, in this PID namespace.
    ids: Vec<u32>,
}

impl Threads {
    /// Starts a thread for each service, in the calling thread's namespace, on these CPUs in turn. Each accepts at
    /// most `most` connections.
    fn start<S>(services: Vec<S>, most: usize, cpus: &[usize]) -> Result<Threads, BenchError>
    where
        S: StreamService + Send + 'static,
        S::Connection: Send,
    {
        let mut all = Threads { ends: Arc::default(), threads: Vec::new(), ids: Vec::new() };
        // Open all listening sockets before the client connects.
        let listen = |_: &S| OsTcp::listen(SocketAddr::from((SERVER, PORT)), most).map_err(failed);
        let listening = services.iter().map(listen).collect::<Result<Vec<_>, _>>()?;
        for (number, (service, mut tcp)) in services.into_iter().zip(listening).enumerate() {
            let (waker, ends) = (tcp.waker(), Arc::clone(&all.ends));
            let (sender, id) = mpsc::channel();
            let cpu = cpus.get(number % cpus.len().max(1)).copied();
            let body = move || {
                sched::pin(None, cpu.as_slice())?;
                // The receiver may be gone; this thread does not depend on it.
                let _ = sender.send(rustix::thread::gettid().as_raw_nonzero().get());
                let goes_on = |_: &OsTcp<_>, _: &Pump<S>| !ends.load(Ordering::Acquire);
                tcp.serve(&mut Pump::new(service), napkin_engine::now, goes_on).map_err(failed)
            };
            let thread = std::thread::Builder::new().name(format!("app/{number}")).spawn(body);
            all.threads.push((waker, thread.map_err(BenchError::Proc)?));
            // If nothing arrives, the thread has ended already; joining it yields its error.
            all.ids.extend(id.recv().ok().and_then(|id| u32::try_from(id).ok()));
        }
        Ok(all)
    }

    fn end(mut self) -> Result<(), BenchError> {
        self.stop()
    }

    fn stop(&mut self) -> Result<(), BenchError> {
        self.ends.store(true, Ordering::Release);
        self.threads.iter().for_each(|(waker, _)| waker.wake());
        let join =
            |(_, thread): (_, JoinHandle<_>)| thread.join().unwrap_or(Err(BenchError::Panicked));
        // Join all threads before returning the first error.
        let ended: Vec<_> = self.threads.drain(..).map(join).collect();
        ended.into_iter().collect()
    }
}

impl Drop for Threads {
    fn drop(&mut self) {
        // A destructor cannot report the error.
        let _ = self.stop();
    }
}
