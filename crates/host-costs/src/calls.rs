//! Timing of single system calls: in one thread that is client and server in turn, and between two spinning threads
//! on two CPUs.

use std::net::TcpStream;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;

use napkin_os::sched;
use rustix::time::{
    Itimerspec, TimerfdClockId, TimerfdFlags, TimerfdTimerFlags, Timespec, timerfd_create,
    timerfd_settime,
};

use super::connections::{
    ANSWER, CONNECTIONS, Connections, REQUEST, receive, receive_soon, send, wait,
};
use super::round::Samples;
use super::timing::{Budget, timed};
use napkin_workload::error::BenchError;
use napkin_workload::linux::failed;

/// Number of sockets that are ready at once when the cost of an event is measured.
const READY: usize = 8;

/// Times the calls of both sides in one thread.
pub(super) fn one_thread(
    connections: &Connections,
    clock: f64,
    budget: Budget<'_>,
    samples: &mut Samples,
) -> Result<(), BenchError> {
    let (request, answer) = ([b'q'; REQUEST], [b'a'; ANSWER]);
    let mut buffer = [0_u8; 4096];
    let mut events = Vec::new();
    let timer = timerfd_create(TimerfdClockId::Monotonic, TimerfdFlags::CLOEXEC).map_err(failed)?;
    let zero = Timespec { tv_sec: 0, tv_nsec: 0 };
    // It becomes this CPU's next timer, so that the hardware is programmed too; it is set again before it expires.
    let soon = Itimerspec { it_interval: zero, it_value: Timespec { tv_sec: 0, tv_nsec: 300_000 } };
    let never = Itimerspec { it_interval: zero, it_value: zero };
    let (server, client) = (&connections.server[0], &connections.client[0]);
    let mut turn = 0_u32;
    while budget.left()? {
        let mut note = |name: &str, time: f64| samples.add(name, time);
        note("call.send-request", timed_call(clock, || send(client, &request))?);
        note(
            "call.epoll-one",
            timed(clock, || wait(&connections.server_epoll, &mut events, 1, false)).1,
        );
        if let Some(time) = timed_receive(server, &mut buffer, clock)? {
            note("call.recv", time);
        }
        note("call.recv-empty", timed_call(clock, || receive(server, &mut buffer).map(drop))?);
        note("call.send-answer", timed_call(clock, || send(server, &answer))?);
        receive_soon(client, &mut buffer)?;
        note(
            "call.epoll-none",
            timed(clock, || wait(&connections.server_epoll, &mut events, 1, false)).1,
        );
        note("call.null", timed(clock, rustix::process::getppid).1);
        let set = || timerfd_settime(&timer, TimerfdTimerFlags::empty(), &soon);
        let (set, time) = timed(clock, set);
        set.map_err(failed)?;
        note("call.timer-set", time);
        turn += 1;
        if turn.is_multiple_of(8) {
            timerfd_settime(&timer, TimerfdTimerFlags::empty(), &never).map_err(failed)?;
            several_ready(connections, clock, &mut buffer, samples)?;
        }
    }
    Ok(())
}

fn timed_call(
    clock: f64,
    call: impl FnOnce() -> Result<(), BenchError>,
) -> Result<f64, BenchError> {
    let (answer, time) = timed(clock, call);
    answer.map(|()| time)
}

/// Times a receive call that finds data; `None` if the data came only later (from ksoftirqd).
fn timed_receive(
    stream: &TcpStream,
    buffer: &mut [u8],
    clock: f64,
) -> Result<Option<f64>, BenchError> {
    let (read, time) = timed(clock, || receive(stream, buffer));
    if read? > 0 {
        return Ok(Some(time));
    }
    receive_soon(stream, buffer).map(|_| None)
}

/// Times an epoll_wait that returns several events, and receive calls on sockets whose state has left the cache.
fn several_ready(
    connections: &Connections,
    clock: f64,
    buffer: &mut [u8],
    samples: &mut Samples,
) -> Result<(), BenchError> {
    let (request, answer) = ([b'q'; REQUEST], [b'a'; ANSWER]);
    let mut events = Vec::new();
    for client in &connections.client {
        send(client, &request)?;
    }
    let (found, time) = timed(clock, || wait(&connections.server_epoll, &mut events, READY, false));
    if found == READY {
        samples.add("call.epoll-several", time);
    }
    // Each was delivered CONNECTIONS - 1 frames ago.
    for server in &connections.server {
        if let Some(time) = timed_receive(server, buffer, clock)? {
            samples.add("call.recv-cold", time);
        }
    }
    for (server, client) in connections.server.iter().zip(&connections.client) {
        send(server, &answer)?;
        receive_soon(client, buffer)?;
    }
    Ok(())
}

/// Number of events in [`several_ready`] beyond the first.
pub(super) const EVENTS_BEYOND_ONE: f64 = (READY - 1) as f64;

/// Number of frames delivered in between in [`several_ready`].
pub(super) const FRAMES_BETWEEN: f64 = (CONNECTIONS - 1) as f64;

/// Times the server's calls on its CPU while the client spins on another.
pub(super) fn two_cpus(
    connections: &Connections,
    [serving, other]: [usize; 2],
    clock: f64,
    budget: Budget<'_>,
    samples: &mut Samples,
) -> Result<(), BenchError> {
    let over = AtomicBool::new(false);
    thread::scope(|scope| {
        let client = scope.spawn(|| -> Result<(), BenchError> {
            sched::pin(None, &[other])?;
            let mut buffer = [0_u8; 4096];
            let mut place = 0;
            while !over.load(Ordering::Relaxed) {
                send(&connections.client[place], &[b'q'; REQUEST])?;
                let answered = receive_while(&connections.client[place], &mut buffer, &over)?;
                if !answered {
                    break;
                }
                place = (place + 1) % CONNECTIONS;
            }
            Ok(())
        });
        sched::pin(None, &[serving])?;
        let result = serve(connections, clock, budget, samples);
        over.store(true, Ordering::Relaxed);
        let client = client.join().map_err(|_| BenchError::Panicked)?;
        result.and(client)
    })?;
    // Drain the sockets, or the next phase would find this data.
    let mut buffer = [0_u8; 4096];
    for stream in connections.server.iter().chain(&connections.client) {
        while receive(stream, &mut buffer)? > 0 {}
    }
    Ok(())
}

fn receive_while(
    stream: &TcpStream,
    buffer: &mut [u8],
    over: &AtomicBool,
) -> Result<bool, BenchError> {
    loop {
        if receive(stream, buffer)? > 0 {
            return Ok(true);
        }
        if over.load(Ordering::Relaxed) {
            return Ok(false);
        }
    }
}

fn serve(
    connections: &Connections,
    clock: f64,
    budget: Budget<'_>,
    samples: &mut Samples,
) -> Result<(), BenchError> {
    let answer = [b'a'; ANSWER];
    let mut buffer = [0_u8; 4096];
    let mut events = Vec::new();
    while budget.left()? {
        for _ in 0..64 {
            let (found, time) =
                timed(clock, || wait(&connections.server_epoll, &mut events, 8, false));
            let Some(event) = events.first() else { continue };
            samples.add(if found == 1 { "across.epoll-one" } else { "across.epoll-more" }, time);
            let Some(server) = connections.server.get(event.data.u64() as usize) else { continue };
            if let Some(time) = timed_receive(server, &mut buffer, clock)? {
                samples.add("across.recv", time);
            }
            samples.add("across.send-answer", timed_call(clock, || send(server, &answer))?);
            samples.add(
                "across.recv-empty",
                timed_call(clock, || receive(server, &mut buffer).map(drop))?,
            );
        }
    }
    Ok(())
}
