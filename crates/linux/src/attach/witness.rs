//! A helper process that receives the signals that are sent to more than this process, and reports them.
//!
//! A signal sent to the whole process group (by a terminal, by `timeout`), or to every process of the control
//! group (by systemd), also reaches a program that runs in it; a signal sent to this process alone has to be
//! passed on. The signal itself does not carry that distinction. A second process in the same group and
//! control group, which has no other reason to be signalled, does.
//!
//! The witness is a copy of this process that executes no other program: only such a child may have no exit
//! signal, and without one a `wait` for all children neither returns nor counts it. It closes every
//! descriptor except its socket. It ends with this process, however that ends: the kernel kills it
//! (`PR_SET_PDEATHSIG`), and the peer of its socket is closed. It has its own name and arguments, so that
//! tools that signal processes by name do not match it.

use std::ffi::CStr;
use std::io::{self, Read, Write};
use std::ops::Range;
use std::os::fd::AsRawFd;
use std::os::unix::net::UnixStream;
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, getpid, getppid, set_parent_process_death_signal, setpgid};
use rustix::thread::set_name;

use napkin_os::procfs::{ThreadStat, read_text};
use napkin_os::signals::{ReceivedSignal, Signals};

/// The process group of a witness.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Place {
    /// In this process's group.
    Group,
    /// In a group of its own, and in this process's control group as well.
    Apart,
}

/// How long to wait for an answer. It comes at once unless the witness gets no CPU, or was stopped.
const ANSWER_TIMEOUT: Duration = Duration::from_millis(250);

/// A reported signal that is not claimed within this time was sent to the witness alone.
const CLAIM_WITHIN: Duration = Duration::from_secs(1);

/// The name under which `ps` shows the witness, in place of this process's name and arguments.
const NAME: &CStr = c"signal-witness";

/// The size of a report in bytes: three `i32`.
const REPORT_SIZE: usize = 12;

/// A running witness. Dropping it kills it.
#[derive(Debug)]
pub(super) struct Witness {
    pid: Pid,
    socket: UnixStream,
    /// The sequence number of the last question; an answer repeats it.
    asked: i32,
    /// Reported signals that are not claimed yet, with the time of the report.
    got: Vec<(ReceivedSignal, Instant)>,
}

impl Witness {
    /// Starts a witness for the signals that `signals` blocks. It ends with the calling thread.
    ///
    /// # Errors
    /// If the operating system has no process or descriptor left, or `setpgid` fails.
    pub(super) fn start(place: Place, signals: &Signals) -> io::Result<Witness> {
        let (socket, its_own) = UnixStream::pair()?;
        socket.set_read_timeout(Some(ANSWER_TIMEOUT))?;
        let child = Child { socket: its_own, parent: getpid(), signals, arguments: arguments() };
        // No flags, and no exit signal in the lowest byte.
        // SAFETY: this creates a process as `fork` does: the memory is a copy, and so is the stack, as none
        // is given. If this process has threads, the copy may hold their locks for ever, so `Child::run`
        // allocates nothing and only makes system calls, and the copy exits after it.
        let pid = unsafe { libc::syscall(libc::SYS_clone, 0, 0, 0, 0, 0) };
        if pid == 0 {
            let _ = child.run();
            // SAFETY: `_exit` ends this process without running the exit handlers that the parent registered.
            unsafe { libc::_exit(0) }
        }
        let pid = i32::try_from(pid).ok().and_then(Pid::from_raw);
        let pid = pid.ok_or_else(io::Error::last_os_error)?;
        let witness = Witness { pid, socket, asked: 0, got: Vec::new() };
        if place == Place::Apart {
            setpgid(Some(pid), Some(pid))?;
        }
        Ok(witness)
    }

    pub(super) const fn pid(&self) -> i32 {
        self.pid.as_raw_nonzero().get()
    }

    /// Asks which signals it received since the last question. If it does not answer in time, its reports
    /// come with the next answer.
    ///
    /// # Errors
    /// If it has ended, or does not answer.
    pub(super) fn ask(&mut self) -> io::Result<()> {
        self.got.retain(|(_, report)| report.elapsed() < CLAIM_WITHIN);
        self.asked = self.asked.wrapping_add(1);
        self.socket.write_all(&self.asked.to_ne_bytes())?;
        loop {
            let mut report = [[0; 4]; REPORT_SIZE / 4];
            self.socket.read_exact(report.as_flattened_mut())?;
            match report.map(i32::from_ne_bytes) {
                [0, answer, _] if answer == self.asked => return Ok(()),
                [0, ..] => {}
                [signal, code, sender] => {
                    let received = ReceivedSignal { signal, code, sender };
                    if !self.got.iter().any(|(got, _)| *got == received) {
                        self.got.push((received, Instant::now()));
                    }
                }
            }
        }
    }

    /// Whether the witness reported this signal from the same sender. Consumes the report.
    pub(super) fn claim(&mut self, received: ReceivedSignal) -> bool {
        let before = self.got.len();
        self.got.retain(|(got, _)| *got != received);
        self.got.len() < before
    }
}

impl Drop for Witness {
    fn drop(&mut self) {
        // SAFETY: the call takes two numbers; the process was not reaped, so its ID cannot have been reused.
        let _ = unsafe { libc::kill(self.pid(), libc::SIGKILL) };
        // SAFETY: the call takes two numbers, and a null pointer for the status, which is not needed.
        let _ = unsafe { libc::waitpid(self.pid(), std::ptr::null_mut(), libc::__WCLONE) };
    }
}

/// The address range from which the kernel reads this process's arguments (`/proc/PID/cmdline`).
fn arguments() -> Range<usize> {
    let stat = read_text("/proc/self/stat", 4_096).unwrap_or_default();
    ThreadStat::of_text(&stat).map_or(0..0, |it| it.arguments)
}

/// The state of a witness process, all copied from its parent.
struct Child<'a> {
    socket: UnixStream,
    parent: Pid,
    signals: &'a Signals,
    arguments: Range<usize>,
}

impl Child<'_> {
    /// Answers each question with all pending signals, until the parent closes the socket.
    fn run(&self) -> io::Result<()> {
        set_parent_process_death_signal(Some(Signal::KILL))?;
        if getppid() != Some(self.parent) {
            return Ok(());
        }
        self.close_others()?;
        self.rename()?;
        loop {
            let mut question = [0; 4];
            (&self.socket).read_exact(&mut question)?;
            while let Some(received) = self.signals.wait(Duration::ZERO) {
                self.report([received.signal, received.code, received.sender])?;
            }
            self.report([0, i32::from_ne_bytes(question), 0])?;
        }
    }

    fn report(&self, numbers: [i32; 3]) -> io::Result<()> {
        (&self.socket).write_all(numbers.map(i32::to_ne_bytes).as_flattened())
    }

    /// Closes inherited descriptors, so that the witness keeps no pipe open and no lock held.
    fn close_others(&self) -> io::Result<()> {
        let kept = self.socket.as_raw_fd().cast_unsigned();
        let below = kept.checked_sub(1).map(|last| (0, last));
        for (first, last) in below.into_iter().chain([(kept + 1, u32::MAX)]) {
            // SAFETY: the call takes three numbers. The owners of these descriptors live in the parent
            // process, and none of their code runs in this one.
            if unsafe { libc::syscall(libc::SYS_close_range, first, last, 0) } != 0 {
                return Err(io::Error::last_os_error());
            }
        }
        Ok(())
    }

    fn rename(&self) -> io::Result<()> {
        set_name(NAME)?;
        let Range { start, end } = self.arguments;
        if start == end {
            return Ok(());
        }
        let place = std::ptr::with_exposed_provenance_mut::<u8>(start);
        // SAFETY: the kernel says that the arguments are there, on the stack of the first thread, which is
        // writable. Nothing reads them any more: this process executes nothing else.
        let place = unsafe { std::slice::from_raw_parts_mut(place, end - start) };
        place.fill(0);
        // The last byte stays 0: otherwise the kernel shows the bytes behind the arguments as well.
        let shown = place.len().saturating_sub(1);
        place.iter_mut().take(shown).zip(NAME.to_bytes()).for_each(|(to, from)| *to = *from);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use rustix::io::Errno;
    use rustix::process::{WaitOptions, getpgid, getpgrp, kill_process, waitpid};

    use super::*;

    fn received(signal: i32) -> ReceivedSignal {
        ReceivedSignal { signal, code: libc::SI_USER, sender: getpid().as_raw_nonzero().get() }
    }

    #[test]
    fn it_tells_once_what_it_got_and_from_whom() {
        let signals = Signals::block(&[libc::SIGUSR1, libc::SIGUSR2]).unwrap();
        let mut witness = Witness::start(Place::Group, &signals).unwrap();
        witness.ask().unwrap();
        assert!(!witness.claim(received(libc::SIGUSR1)));
        kill_process(witness.pid, Signal::USR1).unwrap();
        kill_process(witness.pid, Signal::USR2).unwrap();
        witness.ask().unwrap();
        assert!(
            !witness.claim(ReceivedSignal { sender: 1, ..received(libc::SIGUSR1) }),
            "somebody else's"
        );
        assert!(witness.claim(received(libc::SIGUSR1)));
        assert!(!witness.claim(received(libc::SIGUSR1)), "it was taken");
        witness.ask().unwrap();
        assert!(witness.claim(received(libc::SIGUSR2)), "it is kept until it is asked for");
    }

    #[test]
    fn it_is_in_the_group_or_apart_has_a_name_of_its_own_and_nothing_open_but_its_socket() {
        let signals = Signals::block(&[libc::SIGUSR1]).unwrap();
        for place in [Place::Group, Place::Apart] {
            let mut witness = Witness::start(place, &signals).unwrap();
            witness.ask().unwrap();
            assert_eq!(getpgid(Some(witness.pid)).unwrap() == getpgrp(), place == Place::Group);
            let of = |file: &str| format!("/proc/{}/{file}", witness.pid());
            assert_eq!(fs::read_to_string(of("comm")).unwrap(), "signal-witness\n");
            let arguments = fs::read_to_string(of("cmdline")).unwrap();
            assert_eq!(arguments.trim_end_matches('\0'), "signal-witness");
            let open: Vec<_> = fs::read_dir(of("fd")).unwrap().collect();
            assert_eq!(open.len(), 1, "{open:?}");
            let (pid, name) = (witness.pid(), of("comm"));
            drop(witness);
            assert!(!fs::exists(name).unwrap(), "{pid} is left");
        }
    }

    #[test]
    fn one_that_has_ended_tells_so_and_is_no_child_that_is_waited_for() {
        let signals = Signals::block(&[libc::SIGUSR1]).unwrap();
        let mut witness = Witness::start(Place::Group, &signals).unwrap();
        kill_process(witness.pid, Signal::KILL).unwrap();
        assert!(witness.ask().is_err());
        assert_eq!(waitpid(Some(witness.pid), WaitOptions::NOHANG).err(), Some(Errno::CHILD));
    }
}
