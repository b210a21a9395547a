//! A capture of a queue's traffic to a pcap file, for Wireshark and `tcpdump -r`.
//!
//! Frames are copied on the packet path and written by a thread, so that a slow disk does not delay the path: if
//! the thread's backlog is full, a frame is left out of the file and counted. The format is the classic pcap with
//! nanosecond timestamps; writing its two headers takes fewer lines than using a library. Do not measure with a
//! capture: the copies cost time.

use std::fs::{File, OpenOptions, TryLockError};
use std::io::{self, Write};
use std::os::unix::fs::{FileTypeExt, OpenOptionsExt};
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::mpsc::{self, Receiver, SyncSender, TrySendError};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};
use std::{fmt, iter};

use napkin_core::Work;
use napkin_policy::Ns;
use rustix::fs::{OFlags, fcntl_getfl, fcntl_setfl};
use rustix::time::{ClockId, clock_gettime};

use crate::forward::forward;
use crate::{FRAME_CAPACITY, Frame, PacketQueue, Pool, SendError, Transmitter};

/// The most frames that wait to be written.
const BACKLOG: usize = 4_096;

/// The magic number of a pcap file with nanosecond timestamps; written in this host's byte order.
const MAGIC: u32 = 0xa1b2_3c4d;

/// `LINKTYPE_ETHERNET` of the pcap format.
const ETHERNET: u32 = 1;

/// The least step of the wall clock, in nanoseconds, that changes the timestamps of later frames.
const CLOCK_STEP: i128 = 1_000_000;

/// Bytes per write to a pipe or device: as many as a pipe with a slow reader soon has room for.
const PIPE_WRITE: usize = 4_096;

/// How long `finish` waits for a reader that takes nothing.
const STALL_TIMEOUT: Duration = Duration::from_secs(5);

/// Bytes of the file header.
const HEADER: u64 = 24;

/// Bytes after which the thread writes, if more frames wait.
const CHUNK: usize = 64 * 1_024;

/// A file that several queues write to.
///
/// Each write to a regular file ends with a whole frame; writes to a pipe or a device need not. All captured frames
/// are in the file once [`finish`](Self::finish) has returned.
#[derive(Debug)]
pub struct Capture {
    file: Arc<File>,
    sender: CaptureSender,
    /// Starts the writing. If it is dropped without a message, nothing is ever written.
    start: SyncSender<()>,
    writer: JoinHandle<io::Result<u64>>,
    /// The number of pieces written so far.
    written: Arc<AtomicU64>,
    failure: Arc<Mutex<Option<String>>>,
}

/// The part of a capture that queues and transmitters hold.
#[derive(Debug, Clone)]
struct CaptureSender {
    /// Frames to write; `None` marks the end.
    frames: SyncSender<Option<Frame>>,
    pool: Pool,
    missed: Arc<AtomicU64>,
}

impl CaptureSender {
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
    /// Creates the file, or opens an existing one, whose contents stay until the capture [begins](Self::begin); and
    /// starts the writing thread. Up to 4,096 frames wait until then.
    ///
    /// # Errors
    ///
    /// The file cannot be created or opened, another capture writes to it, it is a FIFO without a reader, or the
    /// thread cannot be started.
    pub fn create(path: &Path) -> io::Result<Capture> {
        // Opening a FIFO would block until it has a reader, in a thread that may have signals blocked: hence
        // O_NONBLOCK. With O_CREAT, the kernel refuses another user's FIFO in a sticky directory
        // (fs.protected_fifos) even though nothing is created, so the flag is left out. Another user's regular file
        // there stays refused (fs.protected_regular): it may be an attack.
        let opened = OpenOptions::new()
            .write(true)
            .create(!is_fifo(path))
            .truncate(false)
            .custom_flags(libc::O_NONBLOCK)
            .open(path);
        let file = opened.map_err(|error| match error.raw_os_error() {
            Some(libc::ENXIO) if is_fifo(path) => {
                io::Error::other("this FIFO has no reader yet: start the reader first")
            }
            _ => error,
        })?;
        // From here on a slow reader may block the writing thread.
        fcntl_setfl(&file, fcntl_getfl(&file)? - OFlags::NONBLOCK)?;
        // A file system without locks is accepted; and a pipe or device (/dev/null) has no contents to protect.
        if file.metadata()?.is_file() && matches!(file.try_lock(), Err(TryLockError::WouldBlock)) {
            return Err(io::Error::other("another program captures to it"));
        }
        let (file, failure) = (Arc::new(file), Arc::<Mutex<Option<String>>>::default());
        let (frames, received) = mpsc::sync_channel(BACKLOG);
        let (start, started) = mpsc::sync_channel(1);
        let named = thread::Builder::new().name("capture".into());
        let (writer_file, failed_with) = (Arc::clone(&file), Arc::clone(&failure));
        let written = Arc::<AtomicU64>::default();
        let progress = Arc::clone(&written);
        let writer = named.spawn(move || {
            if started.recv().is_err() {
                return Ok(0);
            }
            write(&writer_file, &received, &progress).inspect_err(|error| {
                *failed_with.lock().unwrap_or_else(PoisonError::into_inner) =
                    Some(error.to_string());
            })
        })?;
        let sender = CaptureSender { frames, pool: Pool::new(BACKLOG), missed: Arc::default() };
        Ok(Capture { file, sender, start, writer, written, failure })
    }

    /// Empties the file, writes its header, and starts the writing of frames. To be called once.
    ///
    /// # Errors
    ///
    /// The file cannot be written.
    pub fn begin(&self) -> io::Result<()> {
        if self.file.metadata()?.is_file() {
            self.file.set_len(0)?;
        }
        // Version 2.4, time zone 0, accuracy 0, the snapshot length.
        let header = [MAGIC, 2 | 4 << 16, 0, 0, FRAME_CAPACITY as u32, ETHERNET];
        (&*self.file).write_all(header.map(u32::to_ne_bytes).as_flattened())?;
        // The thread waits for this message only.
        let _ = self.start.try_send(());
        Ok(())
    }

    /// Why the writing has failed, in the operating system's words. Returned once.
    pub fn failed(&self) -> Option<String> {
        self.failure.lock().unwrap_or_else(PoisonError::into_inner).take()
    }

    /// Captures what `inner` receives and sends from now on.
    pub fn wrap(&self, inner: Box<dyn PacketQueue>) -> CapturedQueue {
        CapturedQueue { inner, sender: self.sender.clone() }
    }

    /// Frames missing in the file because the thread could not keep up or has failed.
    pub fn missed(&self) -> u64 {
        self.sender.missed.load(Relaxed)
    }

    /// Waits until all frames so far are written, and returns how many were, 0 if the capture has not begun. Later
    /// frames of the queues and transmitters are missed.
    ///
    /// # Errors
    ///
    /// The file could not be written: a full disk, or a pipe whose reader has taken nothing for five seconds.
    pub fn finish(self) -> io::Result<u64> {
        // Stops a thread that has not begun.
        drop(self.start);
        // A regular file is waited for without limit, however slow its disk.
        let bounded = !self.file.metadata().is_ok_and(|it| it.is_file());
        let (mut written, mut since) = (0, Instant::now());
        let mut unread = || {
            let now = self.written.load(Relaxed);
            if now != written {
                (written, since) = (now, Instant::now());
            }
            if bounded && since.elapsed() >= STALL_TIMEOUT {
                let why = "what is written to it is not read";
                return Err(io::Error::new(io::ErrorKind::TimedOut, why));
            }
            thread::sleep(Duration::from_millis(1));
            Ok(())
        };
        // If the thread has failed, it has ended; its error is returned below.
        while let Err(TrySendError::Full(_)) = self.sender.frames.try_send(None) {
            unread()?;
        }
        while !self.writer.is_finished() {
            unread()?;
        }
        self.writer.join().unwrap_or_else(|_| Err(io::Error::other("the thread panicked")))
    }
}

fn is_fifo(path: &Path) -> bool {
    std::fs::metadata(path).is_ok_and(|it| it.file_type().is_fifo())
}

/// Wall-clock time at monotonic time 0, in nanoseconds since 1970: the reading with the least delay out of three.
fn monotonic_since_1970() -> i128 {
    let ns = |clock| {
        let now = clock_gettime(clock);
        i128::from(now.tv_sec) * 1_000_000_000 + i128::from(now.tv_nsec)
    };
    let look = || {
        let before = ns(ClockId::Monotonic);
        let now = ns(ClockId::Realtime);
        let after = ns(ClockId::Monotonic);
        (after - before, now - (before + after) / 2)
    };
    iter::repeat_with(look).take(3).min().map_or(0, |(_, since)| since)
}

/// Writes frames until the end, and returns how many. After an error a regular file ends with a whole frame.
fn write(
    mut file: &File,
    frames: &Receiver<Option<Frame>>,
    progress: &AtomicU64,
) -> io::Result<u64> {
    // A regular file grows by whole frames, so that a reader never sees a partial one, even after the disk fills
    // up. To a pipe, small pieces show whether its reader makes progress.
    let at_once = if file.metadata()?.is_file() { usize::MAX } else { PIPE_WRITE };
    let (mut records, mut end, mut written, mut last) = (Vec::new(), HEADER, 0, false);
    let mut since_1970 = monotonic_since_1970();
    while !last && let Ok(Some(first)) = frames.recv() {
        // Follow steps of the wall clock and sleeps of the machine. Smaller differences are reading errors, and
        // would put frames out of order.
        let now = monotonic_since_1970();
        if (now - since_1970).abs() > CLOCK_STEP {
            since_1970 = now;
        }
        for frame in iter::once(Some(first)).chain(frames.try_iter()) {
            let Some(frame) = frame else {
                last = true;
                break;
            };
            let at = u64::try_from(since_1970 + i128::from(frame.arrived())).unwrap_or(0);
            let (seconds, ns) = ((at / 1_000_000_000) as u32, (at % 1_000_000_000) as u32);
            let len = frame.len() as u32;
            let head = [seconds, ns, len, len].map(u32::to_ne_bytes);
            records.extend_from_slice(head.as_flattened());
            records.extend_from_slice(&frame);
            written += 1;
            if records.len() >= CHUNK {
                break;
            }
        }
        for piece in records.chunks(at_once) {
            if let Err(error) = file.write_all(piece) {
                let _ = file.set_len(end);
                return Err(error);
            }
            progress.fetch_add(1, Relaxed);
        }
        end += records.len() as u64;
        records.clear();
    }
    Ok(written)
}

/// A queue whose frames are written to a [`Capture`].
pub struct CapturedQueue {
    inner: Box<dyn PacketQueue>,
    sender: CaptureSender,
}

impl fmt::Debug for CapturedQueue {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("CapturedQueue").field("tap", &self.sender).finish_non_exhaustive()
    }
}

impl PacketQueue for CapturedQueue {
    forward!(mask, unmask, interrupt, acknowledge, gone, counters);

    fn poll(&mut self, budget: u16, now: Ns, into: &mut Vec<Frame>) -> Work {
        let before = into.len();
        let work = self.inner.poll(budget, now, into);
        into[before..].iter().for_each(|frame| self.sender.write(frame, frame.arrived()));
        work
    }

    fn transmitter(&self) -> Arc<dyn Transmitter> {
        Arc::new(CapturedTransmitter {
            inner: self.inner.transmitter(),
            sender: self.sender.clone(),
        })
    }
}

struct CapturedTransmitter {
    inner: Arc<dyn Transmitter>,
    sender: CaptureSender,
}

impl Transmitter for CapturedTransmitter {
    fn send(&self, frame: &[u8], now: Ns) -> Result<(), SendError> {
        self.inner.send(frame, now)?;
        self.sender.write(frame, now);
        Ok(())
    }

    fn post(&self, frame: &[u8], now: Ns) -> Result<(), SendError> {
        self.inner.post(frame, now)?;
        self.sender.write(frame, now);
        Ok(())
    }

    fn flush(&self) {
        self.inner.flush();
    }

    fn in_flight(&self) -> usize {
        self.inner.in_flight()
    }
}

#[cfg(test)]
mod tests {
    use std::io::Read;

    use napkin_testing::until;
    use rustix::fs::{CWD, MemfdFlags, Mode, SealFlags, fcntl_add_seals, memfd_create, mkfifoat};

    use super::*;
    use crate::synthetic::{Arrivals, SyntheticConfig, SyntheticQueue};

    /// Parses a file into its frames, each with its time.
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
        std::fs::write(&path, [7u8; 10_000]).unwrap();
        let capture = Capture::create(&path).unwrap();
        let other = Capture::create(&path).expect_err("one writes it");
        assert!(other.to_string().contains("another program"), "{other}");
        assert_eq!(std::fs::metadata(&path).unwrap().len(), 10_000, "it has not begun");
        capture.begin().unwrap();
        let mut queue = capture.wrap(Box::new(queue));
        let mut frames = Vec::with_capacity(64);
        queue.poll(64, 1_000, &mut frames);
        assert_eq!(frames.len(), 10);
        let transmitter = queue.transmitter();
        transmitter.send(&[0xaa; 100], 2_000).unwrap();
        assert_eq!(transmitter.send(&[0xbb; 3], 2_000), Err(SendError::TooShort));
        assert_eq!((capture.missed(), capture.failed()), (0, None));
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
        let sender = CaptureSender { frames, pool: Pool::new(10), missed: Arc::default() };
        (0..5).for_each(|at| sender.write(&[1; 60], at));
        assert_eq!((received.try_iter().count(), sender.missed.load(Relaxed)), (2, 3));
    }

    #[test]
    fn a_file_that_cannot_be_made_is_an_error() {
        assert!(Capture::create(Path::new("/nonexistent/x.pcap")).is_err());
    }

    #[test]
    fn a_capture_that_cannot_begin_or_does_not_writes_nothing() {
        let capture = Capture::create(Path::new("/dev/full")).unwrap();
        assert!(capture.begin().is_err());
        capture.sender.write(&[1; 60], 0);
        assert_eq!((capture.failed(), capture.finish().unwrap()), (None, 0));
    }

    #[test]
    fn a_fifo_is_written_while_somebody_reads_it_and_that_it_ends_is_told_once() {
        let path = std::env::temp_dir().join(format!("napkin-fifo-{}", std::process::id()));
        mkfifoat(CWD, &path, Mode::RUSR | Mode::WUSR).unwrap();
        let refused = Capture::create(&path).expect_err("nobody reads it");
        assert!(refused.to_string().contains("start the reader first"), "{refused}");
        let reader = OpenOptions::new().read(true).custom_flags(libc::O_NONBLOCK).open(&path);
        let mut reader = reader.unwrap();
        let capture = Capture::create(&path).unwrap();
        std::fs::remove_file(&path).unwrap();
        let flags = fcntl_getfl(&capture.file).unwrap();
        assert!(!flags.contains(OFlags::NONBLOCK), "who reads slowly is waited for");
        capture.sender.write(&[1; 60], 0);
        capture.begin().unwrap();
        // The header, and a frame that was sent before the capture began.
        let mut bytes = Vec::new();
        until("it was written", || {
            let _ = reader.read_to_end(&mut bytes);
            bytes.len() == HEADER as usize + 16 + 60
        });
        assert_eq!(read(&bytes).len(), 1);

        drop(reader);
        capture.sender.write(&[1; 60], 0);
        let mut why = None;
        until("it fails", || {
            why = capture.failed();
            why.is_some()
        });
        assert!(why.is_some_and(|why| why.contains("Broken pipe")));
        assert_eq!(capture.failed(), None);
        assert!(capture.finish().is_err());
    }

    #[test]
    fn a_file_that_grows_no_more_ends_with_a_whole_frame() {
        let file = File::from(memfd_create("full", MemfdFlags::ALLOW_SEALING).unwrap());
        (&file).write_all(&[0; HEADER as usize]).unwrap();
        file.set_len(HEADER + 100).unwrap();
        fcntl_add_seals(&file, SealFlags::GROW).unwrap();
        let (frames, received) = mpsc::sync_channel(2);
        let sender = CaptureSender { frames, pool: Pool::new(2), missed: Arc::default() };
        (0..2).for_each(|at| sender.write(&[1; 60], at));
        drop(sender);
        write(&file, &received, &AtomicU64::new(0)).expect_err("two records have more bytes");
        assert_eq!(file.metadata().unwrap().len(), HEADER);
    }
}
