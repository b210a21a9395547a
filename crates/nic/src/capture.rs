//! What goes through a queue, written to a pcap file, for Wireshark and `tcpdump -r`.
//!
//! Frames are copied on the packet path and written by a thread, so that a slow disk delays nobody:
//! where its backlog is full, a frame is missing in the file and counted. The file is the classic format
//! with times in nanoseconds; its two headers are fewer lines here than any library's interface to them.
//! It is no place for a measurement: the copies cost time.

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

/// Frames that wait to be written at most.
const BACKLOG: usize = 4_096;

/// The first four bytes of a file with times in nanoseconds, in this host's byte order.
const MAGIC: u32 = 0xa1b2_3c4d;

/// `LINKTYPE_ETHERNET` of the pcap format.
const ETHERNET: u32 = 1;

/// Nanoseconds by which the clock has to have been set for frames to have the new time.
const CLOCK_STEP: i128 = 1_000_000;

/// Bytes that are written at a time to what is no file: as many as a pipe whose reader is slow soon has room for.
const PIECE: usize = 4_096;

/// How long the end waits for a reader that takes nothing.
const LATE: Duration = Duration::from_secs(5);

/// Bytes of the file's own header.
const HEADER: u64 = 24;

/// Bytes that are written at once at least, while more frames wait.
const CHUNK: usize = 64 * 1_024;

/// A file that several queues write to.
///
/// Each write to it ends with a whole frame, unless it is a pipe or a device; all of them stand in it once
/// [`finish`](Self::finish) has returned.
#[derive(Debug)]
pub struct Capture {
    file: Arc<File>,
    tap: Tapped,
    /// Lets the thread begin to write. If it goes without, nothing is ever written.
    begun: SyncSender<()>,
    writer: JoinHandle<io::Result<u64>>,
    /// Pieces of it that are written.
    written: Arc<AtomicU64>,
    failure: Arc<Mutex<Option<String>>>,
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
    /// Makes the file, or takes one that is there and leaves what is in it until it [begins](Self::begin); and starts
    /// the thread that writes it. Frames wait for the beginning, some thousands of them.
    ///
    /// # Errors
    ///
    /// The file cannot be made or opened, another capture writes to it, it is a FIFO that nobody reads yet, or there can
    /// be no thread.
    pub fn create(path: &Path) -> io::Result<Capture> {
        // A FIFO's reader would be waited for, by a thread that may have signals blocked. And with O_CREAT the kernel
        // refuses another user's in a sticky directory (fs.protected_fifos), though nothing is made. Another user's file
        // stays refused there (fs.protected_regular): it may have been put in the way.
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
        // One who reads slowly is waited for, by the thread that writes.
        fcntl_setfl(&file, fcntl_getfl(&file)? - OFlags::NONBLOCK)?;
        // Where there are no locks it goes without; and what is no file (a pipe, /dev/null) has nothing to lose.
        if file.metadata()?.is_file() && matches!(file.try_lock(), Err(TryLockError::WouldBlock)) {
            return Err(io::Error::other("another program captures to it"));
        }
        let (file, failure) = (Arc::new(file), Arc::<Mutex<Option<String>>>::default());
        let (frames, received) = mpsc::sync_channel(BACKLOG);
        let (begun, begins) = mpsc::sync_channel(1);
        let named = thread::Builder::new().name("capture".into());
        let (theirs, told) = (Arc::clone(&file), Arc::clone(&failure));
        let written = Arc::<AtomicU64>::default();
        let progress = Arc::clone(&written);
        let writer = named.spawn(move || {
            if begins.recv().is_err() {
                return Ok(0);
            }
            write(&theirs, &received, &progress).inspect_err(|error| {
                *told.lock().unwrap_or_else(PoisonError::into_inner) = Some(error.to_string());
            })
        })?;
        let tap = Tapped { frames, pool: Pool::new(BACKLOG), missed: Arc::default() };
        Ok(Capture { file, tap, begun, writer, written, failure })
    }

    /// Empties the file, writes its header, and has the thread write the frames behind it. Once.
    ///
    /// # Errors
    ///
    /// The file cannot be written.
    pub fn begin(&self) -> io::Result<()> {
        if self.file.metadata()?.is_file() {
            self.file.set_len(0)?;
        }
        // Version 2.4, no time zone, no accuracy, the longest frame.
        let header = [MAGIC, 2 | 4 << 16, 0, 0, FRAME_CAPACITY as u32, ETHERNET];
        (&*self.file).write_all(header.map(u32::to_ne_bytes).as_flattened())?;
        // It waits for this, and for nothing else.
        let _ = self.begun.try_send(());
        Ok(())
    }

    /// Why nothing is written any more, in the operating system's words; told once.
    pub fn failed(&self) -> Option<String> {
        self.failure.lock().unwrap_or_else(PoisonError::into_inner).take()
    }

    /// Captures what `inner` receives and sends from now on.
    pub fn around(&self, inner: Box<dyn PacketQueue>) -> CapturedQueue {
        CapturedQueue { inner, tap: self.tap.clone() }
    }

    /// Frames that are missing in the file because the thread could not keep up, or has failed.
    pub fn missed(&self) -> u64 {
        self.tap.missed.load(Relaxed)
    }

    /// Waits until everything so far is written; says how many frames that were, none if it has not begun. What queues and
    /// transmitters still see is missed.
    ///
    /// # Errors
    ///
    /// The file could not be written: a full disk, or a pipe whose reader takes nothing for five seconds.
    pub fn finish(self) -> io::Result<u64> {
        // A thread that has not begun does not begin any more.
        drop(self.begun);
        // A disk is waited for, however slow it is.
        let bounded = !self.file.metadata().is_ok_and(|it| it.is_file());
        let (mut written, mut since) = (0, Instant::now());
        let mut unread = || {
            let now = self.written.load(Relaxed);
            if now != written {
                (written, since) = (now, Instant::now());
            }
            if bounded && since.elapsed() >= LATE {
                let why = "what is written to it is not read";
                return Err(io::Error::new(io::ErrorKind::TimedOut, why));
            }
            thread::sleep(Duration::from_millis(1));
            Ok(())
        };
        // A thread that could not write has ended, and says why below.
        while let Err(TrySendError::Full(_)) = self.tap.frames.try_send(None) {
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

/// When the monotonic clock was at 0, in nanoseconds since 1970: by the quickest of three looks at both clocks.
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

/// Writes frames until there is no other: how many. On an error the file ends with a whole one.
fn write(
    mut file: &File,
    frames: &Receiver<Option<Frame>>,
    progress: &AtomicU64,
) -> io::Result<u64> {
    // Whoever looks at a file while it grows sees whole frames, and so does who looks at what a full disk has left. Of a
    // pipe it is to be seen that its reader takes some.
    let at_once = if file.metadata()?.is_file() { usize::MAX } else { PIECE };
    let (mut records, mut end, mut written, mut last) = (Vec::new(), HEADER, 0, false);
    let mut since_1970 = monotonic_since_1970();
    while !last && let Ok(Some(first)) = frames.recv() {
        // The clock is set now and then, and the machine may have slept. What differs less is how well it is read, and
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
    use std::io::Read;

    use napkin_testing::until;
    use rustix::fs::{CWD, MemfdFlags, Mode, SealFlags, fcntl_add_seals, memfd_create, mkfifoat};

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
        std::fs::write(&path, [7u8; 10_000]).unwrap();
        let capture = Capture::create(&path).unwrap();
        let other = Capture::create(&path).expect_err("one writes it");
        assert!(other.to_string().contains("another program"), "{other}");
        assert_eq!(std::fs::metadata(&path).unwrap().len(), 10_000, "it has not begun");
        capture.begin().unwrap();
        let mut queue = capture.around(Box::new(queue));
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
        let tap = Tapped { frames, pool: Pool::new(10), missed: Arc::default() };
        (0..5).for_each(|at| tap.write(&[1; 60], at));
        assert_eq!((received.try_iter().count(), tap.missed.load(Relaxed)), (2, 3));
    }

    #[test]
    fn a_file_that_cannot_be_made_is_an_error() {
        assert!(Capture::create(Path::new("/nonexistent/x.pcap")).is_err());
    }

    #[test]
    fn a_capture_that_cannot_begin_or_does_not_writes_nothing() {
        let capture = Capture::create(Path::new("/dev/full")).unwrap();
        assert!(capture.begin().is_err());
        capture.tap.write(&[1; 60], 0);
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
        capture.tap.write(&[1; 60], 0);
        capture.begin().unwrap();
        // The header, and a frame that came before it.
        let mut bytes = Vec::new();
        until("it was written", || {
            let _ = reader.read_to_end(&mut bytes);
            bytes.len() == HEADER as usize + 16 + 60
        });
        assert_eq!(read(&bytes).len(), 1);

        drop(reader);
        capture.tap.write(&[1; 60], 0);
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
        let tap = Tapped { frames, pool: Pool::new(2), missed: Arc::default() };
        (0..2).for_each(|at| tap.write(&[1; 60], at));
        drop(tap);
        write(&file, &received, &AtomicU64::new(0)).expect_err("two records have more bytes");
        assert_eq!(file.metadata().unwrap().len(), HEADER);
    }
}
