//! Instructions per frame of a virtio queue, counted by callgrind, so that every run of one build gives the same
//! numbers: for sending by the frontend, receiving by the backend, and a poll that finds nothing.
//!
//! `cargo bench -p napkin-nic --bench instructions` runs itself under valgrind. Frames have 60 bytes and go in
//! bursts of 32, both ends in turn in one thread, so that neither waits for the other.

use std::hint::black_box;
use std::process::ExitCode;
use std::sync::atomic::Ordering::Relaxed;
use std::thread::ScopedJoinHandle;

use napkin_nic::vhost::{FrontendConfig, Vhost, VhostQueue};
use napkin_nic::{Frame, PacketQueue, Pool, ReturnedFrames, Transmitter};
use napkin_testing::{callgrind, has_valgrind};

const BURST: u16 = 32;
const CHILD: &str = "--child";
/// The functions whose instructions are counted.
const PARTS: [&str; 3] = ["send_burst", "receive_burst", "poll_nothing"];

#[inline(never)]
fn send_burst(wire: &dyn Transmitter, frames: &[Frame]) {
    assert_eq!(black_box(wire).send_all(frames, 0), usize::from(BURST), "there is room");
}

#[inline(never)]
fn receive_burst(queue: &mut VhostQueue, frames: &mut Vec<Frame>) {
    assert_eq!(black_box(&mut *queue).poll(BURST, 0, frames).rx, BURST, "all came");
    ReturnedFrames::default().extend(frames.drain(..));
}

#[inline(never)]
fn poll_nothing(queue: &mut VhostQueue, frames: &mut Vec<Frame>) {
    assert_eq!(black_box(&mut *queue).poll(BURST, 0, frames).rx, 0, "there are none");
}

/// Sends and receives `bursts` bursts.
fn run(packed: bool, bursts: u32) {
    let path = std::env::temp_dir().join(format!("napkin-instructions-{}", std::process::id()));
    let pool = Pool::new(4_096);
    let mut backend = Vhost::backend(&path, 1, &pool).expect("a socket");
    let config = FrontendConfig { packed, ..FrontendConfig::new(&path) };
    let mut frontend = Vhost::frontend(&config, &pool).expect("connected");
    while backend.peers.rings.load(Relaxed) == 0 || frontend.peers.rings.load(Relaxed) == 0 {
        std::thread::yield_now();
    }
    let (mut to, mut from) = (backend.queues.remove(0), frontend.queues.remove(0));
    to.mask();
    from.mask();
    let wire = from.transmitter();
    let frame = || {
        let mut frame = pool.take().expect("the pool is new");
        frame.buffer()[..60].fill(1);
        frame.set_len(60);
        frame
    };
    let burst: Vec<Frame> = (0..BURST).map(|_| frame()).collect();
    let mut frames = Vec::with_capacity(BURST.into());
    // Each end starts to use the rings in a poll of its own.
    let mut warm = 0;
    while warm < BURST {
        if wire.send(&burst[0], 0).is_ok() {
            warm += 1;
        }
        while to.poll(BURST, 0, &mut frames).rx == 0 && warm > 0 {}
        frames.clear();
        from.poll(BURST, 0, &mut frames);
    }
    for _ in 0..bursts {
        send_burst(&*wire, &burst);
        receive_burst(&mut to, &mut frames);
        poll_nothing(&mut to, &mut frames);
        // Here the frontend takes its sent buffers back.
        from.poll(BURST, 0, &mut frames);
    }
    let _ = std::fs::remove_file(path);
}

/// The total of instructions in a function.
fn collected(part: &str, packed: bool, bursts: u32) -> Result<f64, String> {
    let only = format!("--toggle-collect=*{part}*");
    let arguments = [CHILD.into(), u8::from(packed).to_string(), bursts.to_string()];
    Ok(callgrind(&["--fair-sched=yes", &only], &arguments)?.0)
}

/// Instructions per burst in each function. The runs are concurrent: their counts do not depend on the number of
/// CPUs.
fn per_burst(packed: bool) -> Result<Vec<f64>, String> {
    const BURSTS: u32 = 2_000;
    std::thread::scope(|scope| {
        let run = |part, bursts| scope.spawn(move || collected(part, packed, bursts));
        let runs = PARTS.map(|part| (run(part, BURSTS), run(part, 2 * BURSTS)));
        let ended = |it: ScopedJoinHandle<'_, Result<f64, String>>| it.join().expect("no panic");
        runs.into_iter()
            .map(|(few, many)| {
                let (few, many) = (ended(few), ended(many));
                Ok((many? - few?) / f64::from(BURSTS))
            })
            .collect()
    })
}

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().collect();
    if let Some(at) = arguments.iter().position(|it| it == CHILD) {
        let number = |place: usize| arguments.get(at + place).and_then(|it| it.parse().ok());
        let (Some(packed), Some(bursts)) = (number(1), number(2)) else { return ExitCode::FAILURE };
        run(packed == 1, bursts);
        return ExitCode::SUCCESS;
    }
    // Without `--bench` (as `cargo test` runs it) there is nothing to do.
    if !arguments.iter().any(|it| it == "--bench") {
        return ExitCode::SUCCESS;
    }
    if !has_valgrind() {
        println!("skipped: valgrind is not installed");
        return ExitCode::SUCCESS;
    }
    println!("{:<8}{:>14}{:>14}{:>14}", "ring", "send/frame", "poll/frame", "empty poll");
    for (name, packed) in [("split", false), ("packed", true)] {
        match per_burst(packed).as_deref() {
            Ok([send, receive, nothing]) => {
                let frame = f64::from(BURST);
                println!("{name:<8}{:>14.1}{:>14.1}{nothing:>14.1}", send / frame, receive / frame);
            }
            Ok(_) => unreachable!("three parts"),
            Err(error) => {
                eprintln!("{error}");
                return ExitCode::FAILURE;
            }
        }
    }
    ExitCode::SUCCESS
}
