//! Notification of a peer by an eventfd, which the peer controls as well.
//!
//! A write to an eventfd blocks while its count is at the maximum, unless its file is non-blocking; and any process
//! that shares the file can undo that at any time. No flag of a write overrides it (`RWF_NOWAIT` does not apply to
//! eventfds). So nothing is written: the kernel itself increments the count, as it does at the end of an
//! asynchronous read (`IOCB_FLAG_RESFD` of io_submit(2)), and that never blocks: a count at its maximum stays
//! there. The read is of 0 bytes from an empty file. This is one system call as well, at about twice the cost of a
//! write; now and then another one collects the completions.
//!
//! Where asynchronous reads are not available (a kernel without `CONFIG_AIO`, a seccomp filter, `fs.aio-max-nr`
//! exhausted by others, a forked process), the eventfd is written after all. There, a peer that has driven the
//! count to its maximum and made the file blocking again stops the thread that notifies it.

use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::ptr::null_mut;
use std::sync::OnceLock;

use rustix::fs::{MemfdFlags, OFlags, memfd_create};

/// An eventfd, and the means to increment it.
#[derive(Debug)]
pub(super) struct Notifier {
    event: OwnedFd,
    reads: Option<&'static Reads>,
}

impl Notifier {
    /// Wraps a descriptor from a peer; `None` if it is not an eventfd.
    pub(super) fn of_peer(file: OwnedFd) -> Option<Notifier> {
        if !is_eventfd(&file) {
            return None;
        }
        let flags = rustix::fs::fcntl_getfl(&file).ok()?;
        rustix::fs::fcntl_setfl(&file, flags | OFlags::NONBLOCK).ok()?;
        Some(Notifier::new(file))
    }

    /// Wraps a non-blocking eventfd of our own that is shared with the peer.
    pub(super) fn new(event: OwnedFd) -> Notifier {
        Notifier { event, reads: Reads::of_this_process() }
    }

    /// Notifies the peer, without blocking.
    #[cold]
    pub(super) fn notify(&self) {
        if !self.reads.is_some_and(|it| it.count_in(&self.event)) {
            // It fails only for a count near the maximum: the peer then has a notification pending anyway.
            let _ = rustix::io::write(&self.event, &1u64.to_ne_bytes());
        }
    }
}

/// Whether a descriptor is an eventfd. Makes no call to the descriptor's own file, which could block.
pub(super) fn is_eventfd(file: &OwnedFd) -> bool {
    let name = std::fs::read_link(format!("/proc/self/fd/{}", file.as_raw_fd()));
    name.is_ok_and(|name| name.as_os_str() == "anon_inode:[eventfd]")
}

/// Asynchronous reads of 0 bytes, which complete at once.
#[derive(Debug)]
struct Reads {
    context: libc::c_ulong,
    nothing: OwnedFd,
}

/// The least number of completions that the kernel holds.
const REMEMBERED: usize = 64;

/// `struct iocb`, whose layout is part of the kernel's interface.
#[repr(C)]
#[derive(Debug, Default)]
struct Request {
    data: u64,
    key: u32,
    rw_flags: u32,
    opcode: u16,
    priority: i16,
    file: u32,
    buffer: u64,
    length: u64,
    offset: i64,
    reserved: u64,
    flags: u32,
    event: u32,
}

const READ: u16 = 0;
const COUNTS_IN_EVENT: u32 = 1;

/// `struct io_event`.
#[repr(C)]
#[derive(Debug, Default, Clone, Copy)]
struct Ended {
    data: u64,
    request: u64,
    results: [i64; 2],
}

impl Reads {
    /// The context of this process: one kernel object for all devices, which ends with the process. `None` if
    /// unavailable.
    fn of_this_process() -> Option<&'static Reads> {
        static READS: OnceLock<Option<Reads>> = OnceLock::new();
        READS.get_or_init(|| Reads::new().ok()).as_ref()
    }

    fn new() -> io::Result<Reads> {
        let nothing = memfd_create("napkin-nothing", MemfdFlags::CLOEXEC)?;
        let mut context: libc::c_ulong = 0;
        // SAFETY: the kernel writes the context's number, for which there is room.
        match unsafe { libc::syscall(libc::SYS_io_setup, REMEMBERED, &raw mut context) } {
            0 => Ok(Reads { context, nothing }),
            _ => Err(io::Error::last_os_error()),
        }
    }

    /// Has the kernel increment an eventfd by one; `false` if it cannot.
    fn count_in(&self, event: &OwnedFd) -> bool {
        let mut request = Request {
            opcode: READ,
            file: self.nothing.as_raw_fd() as u32,
            flags: COUNTS_IN_EVENT,
            event: event.as_raw_fd() as u32,
            ..Request::default()
        };
        // One repetition suffices, unless other threads take each place that becomes free.
        for _ in 0..REMEMBERED {
            let mut list = [&raw mut request];
            // SAFETY: one request, which the kernel reads, and whose key it writes, before it returns. It reads 0
            // bytes, so there is no buffer.
            match unsafe { libc::syscall(libc::SYS_io_submit, self.context, 1, &raw mut list) } {
                1 => return true,
                _ if io::Error::last_os_error().raw_os_error() == Some(libc::EAGAIN) => {}
                _ => return false,
            }
            self.forget_ended();
        }
        false
    }

    /// Collects completions, which makes room for as many.
    fn forget_ended(&self) {
        let mut ended = [Ended::default(); REMEMBERED];
        let at_once = null_mut::<libc::timespec>();
        // SAFETY: there is room for as many as are requested; at least 0 are requested, so the call does not wait
        // and needs no timeout.
        unsafe {
            libc::syscall(
                libc::SYS_io_getevents,
                self.context,
                0,
                REMEMBERED,
                &raw mut ended,
                at_once,
            )
        };
    }
}

#[cfg(test)]
mod tests {
    use rustix::event::{EventfdFlags, eventfd};
    use rustix::io::{Errno, read, write};
    use std::os::fd::AsFd;

    use super::*;

    /// A peer's eventfd, and our notifier of the same file.
    fn shared() -> (OwnedFd, Notifier) {
        let peer = eventfd(0, EventfdFlags::CLOEXEC).expect("an eventfd");
        let notifier = peer.as_fd().try_clone_to_owned().expect("a descriptor");
        let notifier = Notifier::of_peer(notifier).expect("it is an eventfd");
        assert!(notifier.reads.is_some(), "these tests need a kernel with asynchronous reads");
        (peer, notifier)
    }

    fn count(event: &OwnedFd) -> Result<u64, Errno> {
        let mut count = [0; 8];
        read(event, &mut count).map(|_| u64::from_ne_bytes(count))
    }

    #[test]
    fn each_notification_is_counted_however_many_there_are() {
        let (peer, notifier) = shared();
        for times in [1, 2, 5 * REMEMBERED as u64] {
            (0..times).for_each(|_| notifier.notify());
            assert_eq!(count(&peer), Ok(times));
        }
    }

    #[test]
    fn threads_that_notify_at_the_same_time_lose_none() {
        let ((peer, notifier), (others, also)) = (shared(), shared());
        let each = 20 * REMEMBERED as u64;
        std::thread::scope(|scope| {
            for one in [&notifier, &notifier, &also] {
                scope.spawn(move || (0..each).for_each(|_| one.notify()));
            }
        });
        assert_eq!((count(&peer), count(&others)), (Ok(2 * each), Ok(each)));
    }

    #[test]
    fn a_peer_that_counts_to_the_end_and_makes_its_eventfd_waiting_again_stops_nobody() {
        let (peer, notifier) = shared();
        write(&peer, &(u64::MAX - 1).to_ne_bytes()).expect("there is room");
        rustix::fs::fcntl_setfl(&peer, OFlags::empty()).expect("it may");
        // A write would block now.
        (0..3).for_each(|_| notifier.notify());
        assert_eq!(count(&peer), Ok(u64::MAX));
        notifier.notify();
        assert_eq!(count(&peer), Ok(1), "and from then on it is as any other");
    }

    #[test]
    fn without_asynchronous_reads_it_is_written_and_refused_at_the_end() {
        let (peer, mut notifier) = shared();
        notifier.reads = None;
        (0..2).for_each(|_| notifier.notify());
        assert_eq!(count(&peer), Ok(2));
        write(&peer, &(u64::MAX - 1).to_ne_bytes()).expect("there is room");
        notifier.notify();
        assert_eq!(count(&peer), Ok(u64::MAX - 1));
    }

    #[test]
    fn what_is_no_eventfd_is_nowhere_to_notify() {
        let (end, _other) = rustix::pipe::pipe().expect("a pipe");
        assert!(Notifier::of_peer(end).is_none());
    }
}
