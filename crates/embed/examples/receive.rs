//! A receiver under a policy, comparable to testpmd's `rxonly` without one: counts and drops the frames of a
//! virtio ring. Measures the CPU time that this takes, and whether frames are lost, for docs/performance.md.
//!
//! ```text
//! cargo run --release -p napkin-embed --example receive -- PATH SECONDS POLICY [CPU] [socket]
//! ```
//!
//! Listens at PATH (`vhost`), so that any virtio driver may send. By default frames, which no socket wants, are
//! dropped on delivery by the polling context. With `socket` they go to a raw socket, and a thread that waits
//! for it as the policy says drops them: suspension needs an application that finds events. From half a second
//! after the first frame on, it measures the CPU time of all threads, the frames, and the actions of the
//! policy. Only the sender knows how many frames were refused.

use std::error::Error;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::{Duration, Instant};

use napkin_embed::nic::ReturnedFrames;
use napkin_embed::nic::vhost::Vhost;
use napkin_embed::stack::RawFilter;
use napkin_embed::{
    Address, ApplicationWait, CpuId, DeviceConfig, Engine, EngineConfig, Policy, Pool, sched,
};

/// The maximum number of frames taken per wait.
const BATCH: usize = 64;

fn main() -> Result<(), Box<dyn Error>> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [path, seconds, policy, options @ ..] = &arguments[..] else {
        return Err("usage: receive PATH SECONDS POLICY [CPU] [socket]".into());
    };
    let (time, policy) = (Duration::from_secs_f64(seconds.parse()?), policy.parse::<Policy>()?);
    let socket = options.iter().any(|it| it == "socket");
    let cpu = match options.iter().find(|it| *it != "socket") {
        Some(cpu) => cpu.parse()?,
        None => sched::usable_cpus()[0],
    };

    let queue = Vhost::backend(Path::new(path), 1, &Pool::new(8_192))?.queues.remove(0);
    let us = Address::v4([2, 0, 0, 0, 0, 1], [1, 1, 1, 1], 24);
    let device = DeviceConfig::new("vhost", us, vec![(Box::new(queue), 0)], policy.instance);
    let config =
        EngineConfig { cpu_policy: policy.cpu, ..EngineConfig::new(vec![cpu], vec![device]) };
    let engine = Engine::start(config)?;
    engine.warnings().iter().for_each(|warning| eprintln!("{warning}"));

    let done = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let application = socket.then(|| {
            scope.spawn(|| drain(&engine, cpu, &policy, &done).map_err(|error| error.to_string()))
        });
        let measured = measure(&engine, time).and_then(|()| to_the_end(&engine));
        done.store(true, Relaxed);
        application.map_or(Ok(()), |it| it.join().map_err(|_| "it panicked")?)?;
        measured
    })
}

/// The application: drops frames, and waits as the policy says.
fn drain(
    engine: &Engine,
    cpu: usize,
    policy: &Policy,
    done: &AtomicBool,
) -> Result<(), Box<dyn Error>> {
    sched::pin(None, &[cpu])?;
    let socket = engine.stack("vhost")?.open_raw(RawFilter::All, 4_096)?;
    let mut wait = ApplicationWait::new(engine, CpuId(0), &socket, policy)?;
    if let Some(poller) = wait.poller(CpuId(0)) {
        // The policy has another thread poll, on this CPU; it ends with the engine.
        std::thread::spawn(move || while poller.poll().is_ok() {});
    }
    let mut spent = ReturnedFrames::default();
    while !done.load(Relaxed) {
        wait.wait(Some(Duration::from_millis(100)))?;
        spent.extend((0..BATCH).map_while(|_| socket.try_recv()));
        spent.give_back();
    }
    Ok(())
}

/// Prints the cost of a window of this length.
fn measure(engine: &Engine, time: Duration) -> Result<(), Box<dyn Error>> {
    let napi = || engine.napi(1);
    while napi()?.counts.packets == 0 {
        std::thread::sleep(Duration::from_millis(10));
    }
    std::thread::sleep(Duration::from_millis(500));
    let (before, cpu_before, began) = (napi()?, cpu_time()?, Instant::now());
    std::thread::sleep(time);
    let (after, cpu, took) = (napi()?, cpu_time()? - cpu_before, began.elapsed());
    let counts = after.counts.since(&before.counts);
    let queue = after.queue_counts.since(&before.queue_counts);
    let a_second = |count: u64| count as f64 / took.as_secs_f64();
    println!(
        "{:.1} % of a CPU; {:.3} million frames/s, {} dropped; a second: {:.0} polls with frames, {:.0} without, {:.0} by timer, \
         {:.0} interrupts, {:.0} line calls",
        cpu.as_secs_f64() / took.as_secs_f64() * 100.0,
        a_second(counts.packets) / 1e6,
        queue.rx_dropped(),
        a_second(counts.polls.iter().sum()),
        a_second(counts.empty_polls.iter().sum()),
        a_second(counts.timer_polls),
        a_second(counts.interrupts),
        a_second(after.line_calls - before.line_calls),
    );
    Ok(())
}

/// Waits until no frame has arrived for a moment, so that the sender's count and ours cover the same frames.
fn to_the_end(engine: &Engine) -> Result<(), Box<dyn Error>> {
    let mut before = 0;
    loop {
        let all = engine.napi(1)?.counts.packets;
        if all == before {
            println!("{all} frames in all");
            return Ok(());
        }
        before = all;
        std::thread::sleep(Duration::from_millis(200));
    }
}

/// The CPU time of all threads of this process.
fn cpu_time() -> Result<Duration, Box<dyn Error>> {
    let mut sum = 0;
    for thread in std::fs::read_dir("/proc/self/task")? {
        let text = std::fs::read_to_string(thread?.path().join("schedstat"))?;
        sum += text.split(' ').next().unwrap_or_default().parse::<u64>()?;
    }
    Ok(Duration::from_nanos(sum))
}
