//! A service over TCP: a thread a queue, each with the connections whose segments come from its queue.
//!
//! As with `SO_REUSEPORT` and one socket a queue, a connection stays with the thread of the queue that
//! its flow falls to, and nothing of TCP is shared.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::thread::JoinHandle;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use napkin_core::CpuId;
use napkin_engine::{ApplicationWait, Engine};
use napkin_policy::Policy;
use napkin_service::memcached::{Limits, Memcached};
use napkin_service::{Pump, StreamService};
use napkin_stack::TcpLimits;

use super::application::{Progress, spawn};
use super::error::ServeError;

/// A thread, and what it counts.
type Started = (JoinHandle<()>, Arc<Progress>);

/// Starts the threads that serve memcached on `port` of `device`: one for each of its queues, on the
/// CPUs given (the engine's own numbers). They share the items, and end when the engine stops.
pub(super) fn memcached(
    engine: &Engine,
    device: &str,
    (limits, port): (Limits, u16),
    policy: &Policy,
    cpus: &[CpuId],
) -> Result<Vec<Started>, ServeError> {
    let seconds = |time: Duration| i64::try_from(time.as_secs()).unwrap_or(i64::MAX);
    let unix = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, seconds);
    let epoch = unix - seconds(Duration::from_nanos(napkin_engine::now()));
    let service = Memcached::new(limits, epoch)?;
    let napis = engine.napis().into_iter().filter(|napi| napi.device == device);
    let mut started = Vec::new();
    for (napi, cpu) in napis.zip(cpus) {
        let progress = Arc::<Progress>::default();
        let thread =
            start(engine, device, (service.clone(), port), policy, (napi.id, *cpu), &progress)?;
        started.push((thread, progress));
    }
    Ok(started)
}

/// Starts the thread of one queue.
fn start<S>(
    engine: &Engine,
    device: &str,
    (service, port): (S, u16),
    policy: &Policy,
    (napi_id, cpu): (u32, CpuId),
    progress: &Arc<Progress>,
) -> Result<JoinHandle<()>, ServeError>
where
    S: StreamService + Send + 'static,
    S::Connection: Send,
{
    let mut worker = engine.stack(device)?.open_tcp(Some(napi_id), TcpLimits::default())?;
    worker.listen(port)?;
    let mut waits = ApplicationWait::new(engine, cpu, &worker.segments(), policy)?;
    let mut pump = Pump::new(service);
    let progress = Arc::clone(progress);
    let own = engine.cpus().get(usize::from(cpu.0)).copied();
    spawn(format!("app/{device}-{napi_id}"), own.into_iter().collect(), move || {
        // An error is the engine's end.
        let _ = waits.serve(&mut worker, &mut pump, |worker, pump| {
            let counters = worker.counters();
            progress.received.store(pump.served, Ordering::Relaxed);
            progress.replied.store(pump.served, Ordering::Relaxed);
            progress.failed.store(counters.send_failures, Ordering::Relaxed);
            progress.no_listener.store(counters.unknown, Ordering::Relaxed);
            progress.no_place.store(counters.refused + counters.pushed_out, Ordering::Relaxed);
            true
        });
    })
}
