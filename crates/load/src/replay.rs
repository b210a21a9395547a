//! Replay of a capture file: sends its frames at the times recorded in the file, or at a rate.
//!
//! One thread reads ahead, at most [`AHEAD`] frames, so that the disk delays none of them. The other sends; it
//! polls the device between frames and never sleeps. A frame that cannot be sent when it is due is sent as soon as
//! possible, and its delay is recorded.

use std::fmt;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::thread::JoinHandle;
use std::time::Duration;

use napkin_measure::report::text::{count, rate, time};
use napkin_measure::{Latency, LatencyNs};
use napkin_nic::{
    ETHERNET_HEADER, FRAME_CAPACITY, Frame, PacketQueue, Pool, SendError, Transmitter,
};
use napkin_os::{clock, sched};
use napkin_policy::{MILLISECOND, Ns};
use napkin_serve::{DeviceKind, DeviceSpec, Network};
use serde::Serialize;

use crate::config::HIGHEST_RATE;
use crate::datagrams::Progress;
use crate::error::LoadError;
use crate::pcap::{Pcap, PcapFileError};
use crate::rewrite::Rewrite;

/// Maximum number of frames that are read ahead.
const AHEAD: usize = 4_096;
/// Maximum number of frames that are sent at once, and per poll.
const BATCH: usize = 32;
/// How long a device may take no frame at all: a virtual machine's driver may still start, or restart.
const PATIENCE: Ns = 5_000 * MILLISECOND;
/// After the last frame: how long a device may make no progress with the frames that it holds.
const LINGER: Ns = 1_000 * MILLISECOND;

/// The configuration of a replay.
#[derive(Debug, Clone)]
pub struct ReplayConfig {
    /// The capture file: pcap or pcapng, with Ethernet frames.
    pub file: PathBuf,
    /// The device to send on: `tap`, `xdp` with `:all`, `vhost` or `virtio-user`.
    pub device: DeviceSpec,
    /// The network for the operating system's side of a TAP device.
    pub network: Network,
    /// When frames are due.
    pub pace: Pace,
    /// How many times the whole file is sent, at least once.
    pub times: u32,
    /// Changes to each frame; none by default.
    pub rewrite: Rewrite,
    /// Maximum duration; `None` for the whole file.
    pub limit: Option<Duration>,
    /// The CPU of the sending thread, which keeps it busy.
    pub cpu: Option<usize>,
}

/// The times at which frames are due.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Pace {
    /// At the intervals of the file.
    File,
    /// At this rate, in frames per second.
    PerSecond(u64),
    /// As fast as the device takes them.
    Max,
}

impl ReplayConfig {
    pub(crate) fn check(&self) -> Result<(), LoadError> {
        let wrong = |why: String| Err(LoadError::Usage(why));
        if let Pace::PerSecond(rate) = self.pace
            && !(1..=HIGHEST_RATE).contains(&rate)
        {
            return wrong(format!("a rate is 1 to {HIGHEST_RATE} a second, or max"));
        }
        if self.times == 0 {
            return wrong("a file is sent once or more often, not 0 times".into());
        }
        match &self.device.kind {
            DeviceKind::Xdp(spec) if !spec.all => wrong(
                "an AF_XDP device that sends a file takes all of its queue: give xdp:IF:QUEUE:all"
                    .into(),
            ),
            DeviceKind::Synthetic => wrong(
                "a synthetic device has no peer: give tap:NAME, xdp:IF:QUEUE:all, vhost:PATH or virtio-user:PATH"
                    .into(),
            ),
            _ if self.device.policy.is_some() => {
                wrong("a load polls its device itself, under no policy: leave =POLICY out".into())
            }
            _ => Ok(()),
        }
    }
}

/// The figures of a replay.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize)]
pub struct ReplayFigures {
    /// The signal that ended the replay early.
    pub signal: Option<i32>,
    /// Time from the first due frame to the end, in seconds.
    pub seconds: f64,
    /// Frames that the device took.
    pub sent: u64,
    /// Bytes of those frames.
    pub bytes: u64,
    /// Of those frames, the ones that the device still held a second after its last progress, or when the replay
    /// was stopped: its other side did not take them, and they are lost when it closes.
    pub not_taken: u64,
    /// Frames that were skipped because they are longer than the device takes.
    pub too_long: u64,
    /// Frames that were skipped because they are shorter than an Ethernet header.
    pub too_short: u64,
    /// Frames that are truncated in the file; what the file has of them was sent.
    pub cut: u64,
    /// Frames received from the other side meanwhile.
    pub received: u64,
    /// Delay from the due time of a frame until the device took it; `None` with [`Pace::Max`], and if there was no
    /// frame.
    pub late_ns: Option<LatencyNs>,
}

impl fmt::Display for ReplayFigures {
    /// `sent 1000 frames, 60000 bytes, in 1.00 s (1.00 k/s), late p50 1.0 us, p99 2.1 us; received 3`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let per_s = self.sent as f64 / self.seconds.max(1e-9);
        let (frames, seconds) = (count(self.sent), time(self.seconds * 1e9));
        write!(
            f,
            "sent {frames} frames, {} bytes, in {seconds} ({})",
            count(self.bytes),
            rate(per_s)
        )?;
        if let Some(late) = self.late_ns {
            for (name, value) in [("p50", late.at.p50), ("p99", late.at.p99)] {
                if let Some(value) = value {
                    write!(f, ", late {name} {}", time(value as f64))?;
                }
            }
        }
        for (number, what) in [
            (self.received, "received"),
            (self.not_taken, "not taken behind the device"),
            (self.too_long, "left out, longer than a device takes"),
            (self.too_short, "left out, shorter than a frame"),
            (self.cut, "sent as far as the file has them"),
        ] {
            if number > 0 {
                write!(f, "; {number} {what}")?;
            }
        }
        Ok(())
    }
}

/// Counts of the reading thread: frames that it skipped, and truncated frames.
#[derive(Debug, Default, Clone, Copy)]
struct Read {
    too_long: u64,
    too_short: u64,
    cut: u64,
}

/// Reads the file as many times as it is sent, and sends its frames to the other thread with their due times, in
/// nanoseconds since the first one.
fn read(
    config: &ReplayConfig,
    mut pcap: Pcap,
    frames: &SyncSender<Frame>,
) -> Result<Read, PcapFileError> {
    // As many buffers as can be in use, so one is always available.
    let pool = Pool::new(AHEAD + 2 * BATCH + 2);
    let mut read = Read::default();
    let (mut number, mut base): (u64, Ns) = (0, 0);
    for round in 0..config.times {
        if round > 0 {
            pcap = Pcap::open(&config.file)?;
        }
        let (mut first, mut last, mut of_round) = (None, base, 0u64);
        loop {
            let Some(mut frame) = pool.take() else { return Ok(read) };
            let Some(captured) = pcap.next(frame.buffer())? else { break };
            if captured.length > FRAME_CAPACITY {
                read.too_long += 1;
                continue;
            }
            if captured.length < ETHERNET_HEADER {
                read.too_short += 1;
                continue;
            }
            read.cut += u64::from(captured.cut);
            let since = captured.at - *first.get_or_insert(captured.at);
            // A time before that of the previous frame is replaced by the latter.
            let file = base.saturating_add(Ns::try_from(since.max(0)).unwrap_or(Ns::MAX)).max(last);
            last = file;
            let due = match config.pace {
                Pace::File => file,
                Pace::PerSecond(rate) => (number as f64 * 1e9 / rate as f64) as Ns,
                Pace::Max => 0,
            };
            frame.set_len(captured.length);
            frame.set_arrived(due);
            config.rewrite.apply(&mut frame);
            (number, of_round) = (number + 1, of_round + 1);
            if frames.send(frame).is_err() {
                // The sending thread has stopped.
                return Ok(read);
            }
        }
        if number == 0 {
            return Err(pcap.empty());
        }
        // The gap between two rounds is the mean gap between frames.
        base = last.saturating_add((last - base) / of_round.saturating_sub(1).max(1));
    }
    Ok(read)
}

/// A replay whose file is being read.
pub(crate) struct Replay {
    reader: JoinHandle<Result<Read, PcapFileError>>,
    frames: Receiver<Frame>,
}

impl Replay {
    /// Opens the file and starts to read it.
    pub(crate) fn begin(config: &ReplayConfig) -> Result<Replay, LoadError> {
        let pcap = Pcap::open(&config.file)?;
        let (sender, frames) = sync_channel(AHEAD);
        let config = config.clone();
        let body = move || read(&config, pcap, &sender);
        let reader = std::thread::Builder::new().name("pcap".into()).spawn(body);
        Ok(Replay { reader: reader.map_err(LoadError::Thread)?, frames })
    }

    /// Sends all frames, unless the time is over or `progress.stop` is set before.
    pub(crate) fn run(
        self,
        config: &ReplayConfig,
        mut queues: Vec<Box<dyn PacketQueue>>,
        progress: &Progress,
    ) -> Result<ReplayFigures, LoadError> {
        sched::pin(None, config.cpu.as_slice())?;
        queues.iter_mut().for_each(|queue| queue.mask());
        let wire = queues.first().ok_or(LoadError::Gone)?.transmitter();
        let mut sender = Sender { wire, queues, progress, frames: Vec::with_capacity(BATCH) };
        let mut figures = ReplayFigures::default();
        let mut batch: Vec<Frame> = Vec::with_capacity(BATCH);
        // If there is no frame, the reader's result says why.
        batch.extend(self.frames.recv());
        // The clock starts when the device takes the first frame.
        let start = sender.send_batch(&mut batch, &mut figures, |_, _| {})?;
        let limit = config.limit.and_then(|it| Ns::try_from(it.as_nanos()).ok()).unwrap_or(Ns::MAX);
        let mut late = Latency::new();
        let mut next = self.frames.recv().ok();
        while let Some(first) = next.take() {
            let now = clock::now();
            let since = now - start;
            if sender.progress.stop.load(Relaxed) || since >= limit {
                break;
            }
            if first.arrived() > since {
                next = Some(first);
                sender.poll(now, &mut figures)?;
                continue;
            }
            batch.push(first);
            while batch.len() < BATCH && next.is_none() {
                match self.frames.try_recv() {
                    Ok(frame) if frame.arrived() <= since => batch.push(frame),
                    Ok(frame) => next = Some(frame),
                    // Frames that are ready are not delayed for others.
                    Err(_) => break,
                }
            }
            sender.send_batch(&mut batch, &mut figures, |frame, at| {
                late.record((at - start).saturating_sub(frame.arrived()));
            })?;
            if next.is_none() {
                next = self.frames.recv().ok();
            }
        }
        figures.seconds = (clock::now() - start) as f64 / 1e9;
        figures.not_taken = sender.drain_device(&mut figures)?;
        figures.late_ns = match config.pace {
            Pace::Max => None,
            _ => late.summary(0).map(|it| it.supported(0, false)),
        };
        drop(self.frames);
        match self.reader.join().map_err(|_| LoadError::Panicked)? {
            Ok(Read { too_long, too_short, cut }) => {
                figures.too_long += too_long;
                figures.too_short += too_short;
                Ok(ReplayFigures { cut, ..figures })
            }
            Err(why) if figures.sent > 0 => Err(LoadError::Ends { why, sent: figures.sent }),
            Err(why) => Err(why.into()),
        }
    }
}

/// The sending thread's view of the device.
struct Sender<'a> {
    wire: Arc<dyn Transmitter>,
    queues: Vec<Box<dyn PacketQueue>>,
    progress: &'a Progress,
    /// Received frames, until they are counted.
    frames: Vec<Frame>,
}

impl Sender<'_> {
    /// Sends all frames of the batch, as long as the device makes progress. Returns when the last one was taken.
    fn send_batch(
        &mut self,
        batch: &mut Vec<Frame>,
        figures: &mut ReplayFigures,
        mut each: impl FnMut(&Frame, Ns),
    ) -> Result<Ns, LoadError> {
        let mut moved = clock::now();
        while !batch.is_empty() && !self.progress.stop.load(Relaxed) {
            let now = clock::now();
            let sent = self.wire.send_all(batch, now);
            self.wire.flush();
            let at = clock::now();
            for frame in batch.drain(..sent) {
                figures.bytes += frame.len() as u64;
                each(&frame, at);
            }
            figures.sent += sent as u64;
            self.progress.sent.store(figures.sent, Relaxed);
            self.poll(at, figures)?;
            if sent > 0 {
                moved = at;
                continue;
            }
            // Send the first frame alone to learn the reason: a frame that can never be sent would block the
            // others.
            match self.wire.send(&batch[0], at) {
                Ok(()) => {
                    let frame = batch.remove(0);
                    (figures.sent, figures.bytes) =
                        (figures.sent + 1, figures.bytes + frame.len() as u64);
                    each(&frame, at);
                }
                Err(SendError::TooLong) => {
                    batch.remove(0);
                    figures.too_long += 1;
                }
                Err(SendError::TooShort) => {
                    batch.remove(0);
                    figures.too_short += 1;
                }
                Err(_) if at <= moved + PATIENCE => continue,
                Err(why) => {
                    let (sent, why) = (figures.sent, Some(why.to_string()));
                    return Err(LoadError::Stalled { sent, why });
                }
            }
            moved = at;
        }
        batch.clear();
        Ok(moved)
    }

    /// Waits until the device has let go of all frames, which would be lost if it closed before. Returns how many
    /// it still holds when it makes no more progress.
    fn drain_device(&mut self, figures: &mut ReplayFigures) -> Result<u64, LoadError> {
        let (mut left, mut moved) = (usize::MAX, clock::now());
        loop {
            let (now, before) = (clock::now(), std::mem::replace(&mut left, self.wire.in_flight()));
            if left < before {
                moved = now;
            }
            if left == 0 || now > moved + LINGER || self.progress.stop.load(Relaxed) {
                return Ok(left as u64);
            }
            self.poll(now, figures)?;
            std::thread::yield_now();
        }
    }

    /// Receives frames from the other side and discards them.
    fn poll(&mut self, now: Ns, figures: &mut ReplayFigures) -> Result<(), LoadError> {
        for queue in &mut self.queues {
            queue.poll(BATCH as u16, now, &mut self.frames);
            figures.received += self.frames.len() as u64;
            self.frames.clear();
            if queue.gone() {
                return Err(LoadError::Gone);
            }
        }
        self.progress.answered.store(figures.received, Relaxed);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Mutex;
    use std::sync::atomic::AtomicUsize;

    use super::*;

    /// A device that refuses frames above 100 bytes and records the others. Each call of `in_flight` lets one frame
    /// go, except for the last `kept`.
    #[derive(Default)]
    struct Narrow {
        taken: Mutex<Vec<usize>>,
        let_go: AtomicUsize,
        kept: usize,
    }

    impl Transmitter for Narrow {
        fn send(&self, frame: &[u8], _: Ns) -> Result<(), SendError> {
            if frame.len() > 100 {
                return Err(SendError::TooLong);
            }
            self.taken.lock().expect("one thread").push(frame.len());
            Ok(())
        }

        fn in_flight(&self) -> usize {
            let taken = self.taken.lock().expect("one thread").len();
            taken.saturating_sub(self.let_go.fetch_add(1, Relaxed)).max(self.kept)
        }
    }

    #[test]
    fn a_frame_that_the_device_never_takes_is_left_out_and_the_others_go() {
        let pool = Pool::new(4);
        let mut batch: Vec<Frame> = [60, 1_500, 1_514, 64]
            .map(|length| {
                let mut frame = pool.take().expect("four are free");
                frame.set_len(length);
                frame
            })
            .into();
        let wire = Arc::new(Narrow::default());
        let progress = Progress::default();
        let (queues, frames) = (Vec::new(), Vec::new());
        let mut sender = Sender { wire: wire.clone(), queues, progress: &progress, frames };
        let (mut figures, mut calls) = (ReplayFigures::default(), 0);
        sender.send_batch(&mut batch, &mut figures, |_, _| calls += 1).expect("it goes on");
        assert_eq!(*wire.taken.lock().expect("one thread"), [60, 64]);
        assert_eq!((figures.sent, figures.bytes, figures.too_long, calls), (2, 124, 2, 2));
        assert!(batch.is_empty());
    }

    #[test]
    fn a_device_is_not_closed_before_it_has_let_go_of_what_it_can() {
        for kept in [0, 2] {
            let wire = Arc::new(Narrow { kept, ..Narrow::default() });
            (0..5).for_each(|_| wire.send(&[0; 60], 0).expect("it takes any number"));
            let progress = Progress::default();
            let (queues, frames) = (Vec::new(), Vec::new());
            let mut sender = Sender { wire: wire.clone(), queues, progress: &progress, frames };
            let left =
                sender.drain_device(&mut ReplayFigures::default()).expect("it is still there");
            assert_eq!(left, kept as u64);
            assert!(wire.let_go.load(Relaxed) > 5, "it was looked at until all had gone");
        }
        let figures =
            ReplayFigures { sent: 5, not_taken: 2, seconds: 1.0, ..ReplayFigures::default() };
        assert!(figures.to_string().ends_with("; 2 not taken behind the device"), "{figures}");
        assert!(
            figures.to_string().starts_with("sent 5 frames, 0 bytes, in 1.00 s (5.00/s)"),
            "{figures}"
        );
    }
}
