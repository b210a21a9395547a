//! What goes through a queue, written to a pcap file, for Wireshark and `tcpdump -r`.
//!
//! Frames are copied on the packet path and written by a thread, so that a slow disk delays nobody:
//! where its backlog is full, a frame is missing in the file and counted. The file is the classic format
//! with times in nanoseconds; its two headers are fewer lines here than any library's interface to them.
//! It is no place for a measurement: the copies cost time.

use std::fmt;
use std::fs::File;
use std::io::{self, BufWriter, Write};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::mpsc::{self, Receiver, SyncSender};
use std::thread::{self, JoinHandle};

use napkin_core::Work;
use napkin_policy::Ns;
use rustix::time::{ClockId, clock_gettime};

use crate::forward::forward;
use crate::{FRAME_CAPACITY, Frame, PacketQueue, Pool, SendError, Transmitter};

/// Frames that wait to be written at most.
const BACKLOG: usize = 4_096;

/// The first four bytes of a file with times in nanoseconds, in this host's byte order.
const MAGIC: u32 = 0xa1b2_3c4d;

/// `LINKTYPE_ETHERNET` of the pcap format.
const ETHERNET: u32 = 1;

/// A file that several queues write to.
///
/// Whole frames stand in it at any time; all of them once [`finish`](Self::finish) has returned.
#[derive(Debug)]
pub struct Capture {
    tap: Tapped,
    writer: JoinHandle<io::Result<u64>>,
}

/// What queues and transmitters hold of a capture.
#[derive(Debug, Clone)]
struct Tapped {
    /// `None` after the last one.
    frames: SyncSender<Option<Frame>>,
    pool: Pool,
    missed: Arc<AtomicU64>,
}

impl Tapped {
    fn write(&self, bytes: &[u8], at: Ns) {
        let copy = self.pool.take().and_then(|mut copy| {
            copy.buffer().get_mut(..bytes.len())?.copy_from_slice(bytes);
            copy.set_len(bytes.len());
            copy.set_arrived(at);
            self.frames.try_send(Some(copy)).ok()
        });
        if copy.is_none() {
            self.missed.fetch_add(1, Relaxed);
        }
    }
}

impl Capture {
    /// Makes the file, or empties it, and starts the thread that writes it.
    ///
    /// # Errors
    ///
    /// The file cannot be made or written, or there can be no thread.
    pub fn create(path: &Path) -> io::Result<Capture> {
        let mut file = BufWriter::new(File::create(path)?);
        // Version 2.4, no time zone, no accuracy, the longest frame.
        for word in [MAGIC, 2 | 4 << 16, 0, 0, FRAME_CAPACITY as u32, ETHERNET] {
            file.write_all(&word.to_ne_bytes())?;
        }
        file.flush()?;
        let (frames, received) = mpsc::sync_channel(BACKLOG);
        let named = thread::Builder::new().name("capture".into());
        let writer = named.spawn(move || write(file, &received))?;
        let tap = Tapped { frames, pool: Pool::new(BACKLOG), missed: Arc::default() };
        Ok(Capture { tap, writer })
    }

    /// Captures what `inner` receives and sends from now on.
    pub fn around(&self, inner: Box<dyn PacketQueue>) -> CapturedQueue {
        CapturedQueue { inner, tap: self.tap.clone() }
    }

    /// Frames that are missing in the file because the thread could not keep up.
    pub fn missed(&self) -> u64 {
        self.tap.missed.load(Relaxed)
    }

    /// Waits until everything so far is written; says how many frames that were. What queues and
    /// transmitters still see is missed.
    ///
    /// # Errors
    ///
    /// The file could not be written: a full disk.
    pub fn finish(self) -> io::Result<u64> {
        // A thread that could not write has ended, and says why below.
        let _ = self.tap.frames.send(None);
        self.writer.join().unwrap_or_else(|_| Err(io::Error::other("the thread panicked")))
    }
}

/// Writes frames until there is no other.
fn write(mut file: BufWriter<File>, frames: &Receiver<Option<Frame>>) -> io::Result<u64> {
    let ns = |clock| {
        let now = clock_gettime(clock);
        i128::from(now.tv_sec) * 1_000_000_000 + i128::from(now.tv_nsec)
    };
    let since_1970 = ns(ClockId::Realtime) - ns(ClockId::Monotonic);
    let mut written = 0;
    while let Ok(Some(mut frame)) = frames.recv() {
        loop {
            let at = u64::try_from(since_1970 + i128::from(frame.arrived())).unwrap_or(0);
            let (seconds, ns) = ((at / 1_000_000_000) as u32, (at % 1_000_000_000) as u32);
            let len = frame.len() as u32;
            for word in [seconds, ns, len, len] {
                file.write_all(&word.to_ne_bytes())?;
            }
            file.write_all(&frame)?;
            written += 1;
            match frames.try_recv() {
                Ok(Some(next)) => frame = next,
                Ok(None) => return file.flush().map(|()| written),
                Err(_) => break,
            }
        }
        // Whoever looks while it runs sees whole frames.
        file.flush()?;
    }
    Ok(written)
}

/// A queue whose frames are written to a [`Capture`].
pub struct CapturedQueue {
    inner: Box<dyn PacketQueue>,
    tap: Tapped,
}

impl fmt::Debug for CapturedQueue {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("CapturedQueue").field("tap", &self.tap).finish_non_exhaustive()
    }
}

impl PacketQueue for CapturedQueue {
    forward!(mask, unmask, interrupt, acknowledge, gone, counters);

    fn poll(&mut self, budget: u16, now: Ns, into: &mut Vec<Frame>) -> Work {
        let before = into.len();
        let work = self.inner.poll(budget, now, into);
        into[before..].iter().for_each(|frame| self.tap.write(frame, frame.arrived()));
        work
    }

    fn transmitter(&self) -> Arc<dyn Transmitter> {
        Arc::new(CapturedTransmitter { inner: self.inner.transmitter(), tap: self.tap.clone() })
    }
}

struct CapturedTransmitter {
    inner: Arc<dyn Transmitter>,
    tap: Tapped,
}

impl Transmitter for CapturedTransmitter {
    fn send(&self, frame: &[u8], now: Ns) -> Result<(), SendError> {
        self.inner.send(frame, now)?;
        self.tap.write(frame, now);
        Ok(())
    }

    fn post(&self, frame: &[u8], now: Ns) -> Result<(), SendError> {
        self.inner.post(frame, now)?;
        self.tap.write(frame, now);
        Ok(())
    }

    fn flush(&self) {
        self.inner.flush();
    }

    fn under_way(&self) -> usize {
        self.inner.under_way()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::synthetic::{Arrivals, SyntheticConfig, SyntheticQueue};

    /// The frames of a file: when, and what.
    fn read(bytes: &[u8]) -> Vec<(u64, Vec<u8>)> {
        let word = |at: usize| {
            let word = bytes.get(at..at + 4).and_then(|bytes| bytes.first_chunk());
            u32::from_ne_bytes(*word.expect("a whole word"))
        };
        assert_eq!((word(0), word(20)), (MAGIC, ETHERNET));
        let (mut at, mut frames) = (24, Vec::new());
        while at < bytes.len() {
            let len = word(at + 8) as usize;
            assert_eq!(word(at + 12) as usize, len, "no frame is cut");
            let when = u64::from(word(at)) * 1_000_000_000 + u64::from(word(at + 4));
            frames.push((when, bytes[at + 16..at + 16 + len].to_vec()));
            at += 16 + len;
        }
        frames
    }

    #[test]
    fn what_is_received_and_sent_stands_in_the_file() {
        let directory = std::env::temp_dir().join(format!("napkin-capture-{}", std::process::id()));
        std::fs::create_dir_all(&directory).unwrap();
        let path = directory.join("both.pcap");
        let arrivals = Arrivals::Fixed { per_second: 1e9 };
        let config = SyntheticConfig { arrivals, count: 10, ..SyntheticConfig::default() };
        let template = |_: u32, seq: u64, buf: &mut [u8]| {
            buf[..60].fill(seq as u8);
            60
        };
        let queue = SyntheticQueue::new(&config, Box::new(template), Pool::new(64), None).unwrap();
        let capture = Capture::create(&path).unwrap();
        let mut queue = capture.around(Box::new(queue));
        let mut frames = Vec::with_capacity(64);
        queue.poll(64, 1_000, &mut frames);
        assert_eq!(frames.len(), 10);
        let transmitter = queue.transmitter();
        transmitter.send(&[0xaa; 100], 2_000).unwrap();
        assert_eq!(transmitter.send(&[0xbb; 3], 2_000), Err(SendError::TooShort));
        assert_eq!(capture.missed(), 0);
        drop((queue, transmitter));
        assert_eq!(capture.finish().unwrap(), 11);

        let written = read(&std::fs::read(&path).unwrap());
        for (seq, (_, frame)) in written[..10].iter().enumerate() {
            assert_eq!(*frame, [seq as u8; 60]);
        }
        assert_eq!(written[10].1, [0xaa; 100]);
        assert!(written.is_sorted_by_key(|&(when, _)| when));
        std::fs::remove_dir_all(&directory).unwrap();
    }

    #[test]
    fn a_backlog_that_nobody_writes_costs_frames_of_the_file_alone() {
        let (frames, received) = mpsc::sync_channel(2);
        let tap = Tapped { frames, pool: Pool::new(10), missed: Arc::default() };
        (0..5).for_each(|at| tap.write(&[1; 60], at));
        assert_eq!((received.try_iter().count(), tap.missed.load(Relaxed)), (2, 3));
    }

    #[test]
    fn a_file_that_cannot_be_made_is_an_error() {
        assert!(Capture::create(Path::new("/nonexistent/x.pcap")).is_err());
    }
}
