//! One thread's operations on a file, through io_uring.

use std::collections::VecDeque;
use std::fs::File;
use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use io_uring::types::{Fd, FsyncFlags};
use io_uring::{IoUring, opcode, squeue};
use napkin_service::nbd::{Action, BlockStore, Ended, Operation, StoreError};
use rustix::event::{EventfdFlags, eventfd};
use rustix::io::Errno;

/// Most operations submitted to the kernel at a time; others wait here. The completion queue has room for twice as
/// many.
const ENTRIES: u32 = 128;
/// Source of writes where `fallocate` cannot zero a range.
static ZEROES: [u8; 64 * 1_024] = [0; 64 * 1_024];

/// One thread's handle of a file.
pub struct FileStore {
    ring: IoUring,
    file: Arc<File>,
    size: u64,
    /// Whether a flush through any handle has failed; then none may succeed any more.
    flush_failed: Arc<AtomicBool>,
    /// eventfd that is signalled when operations have completed.
    event: Arc<OwnedFd>,
    /// Indexed by job number, which is the `user_data` of the submission.
    jobs: Vec<Option<Job>>,
    free: Vec<usize>,
    /// Jobs that have not been submitted.
    waiting: VecDeque<usize>,
    /// Number of jobs submitted to the kernel.
    submitted: u32,
}

/// An operation, and its progress.
#[derive(Debug)]
struct Job {
    operation: Operation,
    /// Bytes completed.
    done: u64,
    /// Whether zeroes are written because `fallocate` does not support the range.
    writes_zeroes: bool,
    /// Whether the result is not wanted any more, so that the rest need not be done.
    unwanted: bool,
}

impl FileStore {
    pub(super) fn new(
        file: Arc<File>,
        size: u64,
        flush_failed: Arc<AtomicBool>,
    ) -> io::Result<FileStore> {
        let ring = IoUring::new(ENTRIES)?;
        let event = eventfd(0, EventfdFlags::CLOEXEC)?;
        ring.submitter().register_eventfd(event.as_raw_fd())?;
        Ok(FileStore {
            ring,
            file,
            size,
            flush_failed,
            event: Arc::new(event),
            jobs: Vec::new(),
            free: Vec::new(),
            waiting: VecDeque::new(),
            submitted: 0,
        })
    }

    /// eventfd that is signalled when operations have completed, which [`ended`](BlockStore::ended) then returns.
    pub(crate) fn event(&self) -> &Arc<OwnedFd> {
        &self.event
    }

    /// Builds the next submission of a job.
    fn entry(&mut self, number: usize) -> Option<squeue::Entry> {
        let job = self.jobs.get_mut(number)?.as_mut()?;
        let fd = Fd(self.file.as_raw_fd());
        let at = job.operation.offset + job.done;
        let done = job.done as usize;
        let (punch, zero) = (libc::FALLOC_FL_PUNCH_HOLE, libc::FALLOC_FL_ZERO_RANGE);
        let allocate = |length, mode| {
            let entry = opcode::Fallocate::new(fd, length).offset(at);
            entry.mode(mode | libc::FALLOC_FL_KEEP_SIZE).build()
        };
        let entry = match &mut job.operation.action {
            Action::Read(bytes) => {
                let rest = &mut bytes[done..];
                // It is a piece of a request, far below 4 GiB.
                opcode::Read::new(fd, rest.as_mut_ptr(), rest.len() as u32).offset(at).build()
            }
            Action::Write(bytes) => {
                let rest = &bytes[done..];
                opcode::Write::new(fd, rest.as_ptr(), rest.len() as u32).offset(at).build()
            }
            Action::Zero { length, .. } if job.writes_zeroes => {
                let bytes = (*length - job.done).min(ZEROES.len() as u64) as u32;
                opcode::Write::new(fd, ZEROES.as_ptr(), bytes).offset(at).build()
            }
            Action::Flush => opcode::Fsync::new(fd).flags(FsyncFlags::DATASYNC).build(),
            Action::Trim(length) | Action::Zero { length, hole: true } => allocate(*length, punch),
            Action::Zero { length, hole: false } => allocate(*length, zero),
        };
        Some(entry.user_data(number as u64))
    }

    /// Handles a completion. Returns the operation if it has ended; `None` if more of it is left to do.
    fn settle(&mut self, number: usize, result: i32) -> Option<Ended> {
        let job = self.jobs.get_mut(number)?.as_mut()?;
        let length = match &job.operation.action {
            Action::Read(bytes) | Action::Write(bytes) => Some(bytes.len() as u64),
            Action::Zero { length, .. } if job.writes_zeroes => Some(*length),
            _ => None,
        };
        let errno = (result < 0).then(|| Errno::from_raw_os_error(result.wrapping_neg()));
        let ended = match (errno, length) {
            (Some(Errno::INTR | Errno::AGAIN), _) => None,
            // Not supported for this file or alignment. A trim is only a hint; zeroes can be written instead.
            (Some(Errno::OPNOTSUPP | Errno::INVAL | Errno::NOSYS), None) => {
                match &job.operation.action {
                    Action::Trim(_) => Some(Ok(())),
                    Action::Zero { .. } => {
                        job.writes_zeroes = true;
                        None
                    }
                    _ => Some(Err(StoreError::Io)),
                }
            }
            (Some(errno), _) => Some(Err(store_error(errno))),
            // The file was truncated, or the device accepts no more.
            (None, Some(_)) if result == 0 => Some(Err(StoreError::Io)),
            (None, Some(length)) => {
                job.done += u64::from(result.unsigned_abs());
                (job.done >= length).then_some(Ok(()))
            }
            (None, None) => Some(Ok(())),
        };
        let ended = match ended {
            Some(result) if matches!(job.operation.action, Action::Flush) => {
                if result.is_err() {
                    self.flush_failed.store(true, Ordering::Relaxed);
                }
                // The kernel reports a write-back error only once: every later flush must fail as well.
                let flush_failed = self.flush_failed.load(Ordering::Relaxed);
                Some(if flush_failed { result.and(Err(StoreError::Io)) } else { result })
            }
            ended => ended,
        };
        match ended {
            Some(result) => {
                self.free.push(number);
                self.jobs[number].take().map(|job| (job.operation, result))
            }
            None if job.unwanted => {
                self.drop_job(number);
                None
            }
            None => {
                self.waiting.push_back(number);
                None
            }
        }
    }

    fn drop_job(&mut self, number: usize) {
        self.jobs[number] = None;
        self.free.push(number);
    }

    /// Takes one completion off the ring.
    fn completed(&mut self) -> Option<(usize, i32)> {
        let completion = self.ring.completion().next()?;
        self.submitted -= 1;
        Some((completion.user_data() as usize, completion.result()))
    }
}

/// Converts an errno to an error of the protocol.
fn store_error(errno: Errno) -> StoreError {
    match errno {
        Errno::NOSPC | Errno::DQUOT | Errno::FBIG => StoreError::NoSpace,
        Errno::PERM | Errno::ACCESS | Errno::ROFS => StoreError::NotPermitted,
        _ => StoreError::Io,
    }
}

impl BlockStore for FileStore {
    fn size(&self) -> u64 {
        self.size
    }

    fn begin(&mut self, operation: Operation) -> Option<Ended> {
        let number = self.free.pop().unwrap_or_else(|| {
            self.jobs.push(None);
            self.jobs.len() - 1
        });
        self.jobs[number] = Some(Job { operation, done: 0, writes_zeroes: false, unwanted: false });
        self.waiting.push_back(number);
        None
    }

    fn forget(&mut self, wanted: &dyn Fn(u64) -> bool) {
        for job in self.jobs.iter_mut().flatten() {
            job.unwanted |= !wanted(job.operation.tag);
        }
        for number in std::mem::take(&mut self.waiting) {
            match &self.jobs[number] {
                Some(job) if !job.unwanted => self.waiting.push_back(number),
                _ => self.drop_job(number),
            }
        }
    }

    fn ended(&mut self) -> Option<Ended> {
        loop {
            let (number, result) = self.completed()?;
            if let Some(ended) = self.settle(number, result) {
                return Some(ended);
            }
        }
    }

    fn submit(&mut self) {
        while self.submitted < ENTRIES
            && let Some(number) = self.waiting.pop_front()
        {
            let Some(entry) = self.entry(number) else { continue };
            // SAFETY: the buffer, if there is one, belongs to the job, which stays in `jobs` unchanged until its
            // completion is taken; dropping the store waits for that as well. The file stays open.
            let pushed = unsafe { self.ring.submission().push(&entry) };
            if pushed.is_err() {
                self.waiting.push_front(number);
                break;
            }
            self.submitted += 1;
        }
        if self.ring.submission().is_empty() {
            return;
        }
        while let Err(error) = self.ring.submit() {
            if error.kind() != io::ErrorKind::Interrupted {
                // No memory, or completions must be taken first: wake the thread, so that it tries again.
                let _ = rustix::io::write(&self.event, &1u64.to_ne_bytes());
                return;
            }
        }
    }
}

impl Drop for FileStore {
    fn drop(&mut self) {
        // The kernel still accesses the jobs' buffers.
        while self.submitted > 0 {
            let waited = self.ring.submit_and_wait(1);
            while self.completed().is_some() {}
            if waited.is_err_and(|error| error.kind() != io::ErrorKind::Interrupted) {
                std::thread::yield_now();
            }
        }
    }
}

impl std::fmt::Debug for FileStore {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("FileStore")
            .field("size", &self.size)
            .field("submitted", &self.submitted)
            .field("waiting", &self.waiting.len())
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Flushes, and returns the result.
    fn flush(store: &mut FileStore) -> Result<(), StoreError> {
        store.begin(Operation { tag: 1, offset: 0, action: Action::Flush });
        loop {
            store.submit();
            match store.ended() {
                Some((_, result)) => return result,
                None => std::thread::yield_now(),
            }
        }
    }

    #[test]
    fn once_a_flush_has_failed_none_of_any_handle_succeeds() {
        let flush_failed = Arc::<AtomicBool>::default();
        let handle = |file| FileStore::new(Arc::new(file), 1, Arc::clone(&flush_failed));
        let own = File::open(std::env::current_exe().expect("a path")).expect("a file");
        // io_uring is not permitted here.
        let Ok(mut sound) = handle(own) else { return };
        let (pipe, _end) = io::pipe().expect("a pipe");
        let mut broken = handle(File::from(OwnedFd::from(pipe))).expect("another");
        assert_eq!(flush(&mut sound), Ok(()));
        assert_eq!(flush(&mut broken), Err(StoreError::Io), "a pipe has nothing to flush to");
        assert_eq!(flush(&mut sound), Err(StoreError::Io));
    }
}
