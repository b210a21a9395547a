//! Detection of the epoll context on which each thread waits, or the descriptor from which it receives.
//!
//! The source is `/proc/PID/task/TID/syscall`, which shows the system call of a sleeping thread, but nothing of a
//! running one. A loaded server is seen waiting only now and then, so it is sampled several times. A process of
//! another word size (a 32-bit program) has other numbers of system calls and is never seen waiting.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use rustix::io::Errno;
use serde::Serialize;

use super::error::ProcessError;
use super::handle::Process;
use super::procfile;

/// Absent on aarch64, where the C library calls `epoll_pwait` instead.
#[cfg(target_arch = "x86_64")]
const EPOLL_WAIT: Option<i64> = Some(libc::SYS_epoll_wait);
#[cfg(not(target_arch = "x86_64"))]
const EPOLL_WAIT: Option<i64> = None;
const EPOLL_PWAIT2: i64 = libc::SYS_epoll_pwait2;

/// System calls that sleep until their first argument has something to read.
const RECEIVES: [i64; 4] =
    [libc::SYS_read, libc::SYS_recvfrom, libc::SYS_recvmsg, libc::SYS_recvmmsg];

/// Limit of different waits that are recorded for one process.
const MAX_WAITS: usize = 1 << 16;

/// The timeout of a wait.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Timeout {
    /// No timeout.
    Infinite,
    /// A timeout in nanoseconds.
    Nanoseconds(u64),
    /// A timeout that could not be read from the process's memory.
    Unknown,
}

/// A thread in `epoll_wait`, `epoll_pwait` or `epoll_pwait2`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "kebab-case")]
pub struct Wait {
    /// The thread id: a name in `/proc/PID/task`.
    pub tid: i32,
    /// The descriptor of the epoll context, in the thread's table.
    pub epfd: i32,
    /// The maximum number of events per call.
    pub maxevents: i32,
    /// The timeout of the call.
    pub timeout: Timeout,
}

/// A thread in `read`, `recvfrom`, `recvmsg` or `recvmmsg`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "kebab-case")]
pub struct Receive {
    /// The thread id: a name in `/proc/PID/task`.
    pub tid: i32,
    /// The descriptor in the thread's table, of a socket or any other file.
    pub fd: i32,
}

/// The system calls in which a process's threads were seen.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize)]
#[serde(rename_all = "kebab-case")]
pub struct Waits {
    /// Each different wait, and how many times it was seen.
    pub seen: Vec<(Wait, u32)>,
    /// Each different receive.
    pub receives: BTreeSet<Receive>,
    /// Threads that were running at each sample, so that their waits are unknown.
    pub running: Vec<i32>,
    /// Threads that slept at some sample but never waited on an epoll context.
    pub elsewhere: Vec<i32>,
}

impl Waits {
    /// Returns the waits on one epoll descriptor.
    pub fn on(&self, epfd: i32) -> impl Iterator<Item = &Wait> {
        self.seen.iter().map(|(wait, _)| wait).filter(move |wait| wait.epfd == epfd)
    }
}

impl Process {
    /// Samples what its threads wait on, `samples` times, `gap` apart.
    ///
    /// # Errors
    /// If it has ended before the first sample, or belongs to another user.
    pub fn waits(&self, samples: u32, gap: Duration) -> Result<Waits, ProcessError> {
        let mut seen: BTreeMap<Wait, u32> = BTreeMap::new();
        let mut receives = BTreeSet::new();
        // By thread: whether it was seen asleep, and whether it was seen in a wait.
        let mut threads: BTreeMap<i32, (bool, bool)> = BTreeMap::new();
        for sample in 0..samples.max(1) {
            if sample > 0 && self.ends_within(gap) {
                break;
            }
            let ids = match self.threads() {
                Err(error) if error.is_gone() && sample > 0 => break,
                ids => ids?,
            };
            for tid in ids {
                let path = format!("/proc/{}/task/{tid}/syscall", self.pid());
                let text = match procfile::read_text(&path, 512) {
                    Ok(text) => text,
                    // The thread has ended.
                    Err(Errno::NOENT | Errno::SRCH) => continue,
                    Err(errno) => return Err(self.refused("to see its system calls", errno)),
                };
                let (asleep, waited) = threads.entry(tid).or_default();
                let activity = parse(&text);
                *asleep |= activity != Activity::Running;
                if let Activity::Waiting { epfd, maxevents, timeout } = activity {
                    *waited = true;
                    let timeout = match timeout {
                        RequestedTimeout::Known(timeout) => timeout,
                        RequestedTimeout::At(address) => self.timespec(address),
                    };
                    let wait = Wait { tid, epfd, maxevents, timeout };
                    if seen.len() < MAX_WAITS || seen.contains_key(&wait) {
                        *seen.entry(wait).or_default() += 1;
                    }
                }
                if let Activity::Receiving { fd } = activity
                    && receives.len() < MAX_WAITS
                {
                    receives.insert(Receive { tid, fd });
                }
            }
        }
        let of = |wanted: (bool, bool)| {
            let these = threads.iter().filter(move |(_, seen)| **seen == wanted);
            these.map(|(tid, _)| *tid).collect()
        };
        Ok(Waits {
            seen: seen.into_iter().collect(),
            receives,
            running: of((false, false)),
            elsewhere: of((true, false)),
        })
    }

    /// Reads a `timespec` from its memory.
    fn timespec(&self, address: u64) -> Timeout {
        let mut bytes = [0_u8; 16];
        let local = libc::iovec { iov_base: bytes.as_mut_ptr().cast(), iov_len: bytes.len() };
        let Ok(address) = usize::try_from(address) else { return Timeout::Unknown };
        let remote = libc::iovec {
            iov_base: std::ptr::without_provenance_mut(address),
            iov_len: bytes.len(),
        };
        // SAFETY: the local vector describes the array above, which is alive and not used meanwhile; the remote one
        // is an address in another process, which the kernel checks.
        let read = unsafe {
            libc::process_vm_readv(self.pid(), &raw const local, 1, &raw const remote, 1, 0)
        };
        if read != 16 || !self.alive() {
            return Timeout::Unknown;
        }
        let (seconds, nanoseconds) = bytes.split_at(8);
        let number = |bytes: &[u8]| bytes.try_into().map(u64::from_ne_bytes).unwrap_or(0);
        let whole = number(seconds).saturating_mul(1_000_000_000);
        Timeout::Nanoseconds(whole.saturating_add(number(nanoseconds)))
    }
}

/// The activity of a thread, from its `syscall` file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Activity {
    /// It is running or runnable: no system call is shown.
    Running,
    /// It sleeps elsewhere.
    OtherCall,
    Waiting {
        epfd: i32,
        maxevents: i32,
        timeout: RequestedTimeout,
    },
    Receiving {
        fd: i32,
    },
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum RequestedTimeout {
    Known(Timeout),
    /// It is in a `timespec` at this address.
    At(u64),
}

/// Parses `running`; or `NUMBER ARG ARG ARG ARG ARG ARG SP PC`, with a decimal number and the rest hexadecimal; or
/// `-1 SP PC` outside of system calls.
fn parse(text: &str) -> Activity {
    let mut words = text.split_ascii_whitespace();
    let first = words.next().unwrap_or("running");
    if first == "running" {
        return Activity::Running;
    }
    let Ok(number) = first.parse::<i64>() else { return Activity::OtherCall };
    let receives = RECEIVES.contains(&number);
    let waits =
        [EPOLL_WAIT, Some(libc::SYS_epoll_pwait), Some(EPOLL_PWAIT2)].contains(&Some(number));
    if !receives && !waits {
        return Activity::OtherCall;
    }
    let mut arguments = [0_u64; 4];
    for argument in &mut arguments {
        let hex = words.next().and_then(|word| word.strip_prefix("0x"));
        let Some(Ok(value)) = hex.map(|hex| u64::from_str_radix(hex, 16)) else {
            return Activity::OtherCall;
        };
        *argument = value;
    }
    let [epfd, _, maxevents, timeout] = arguments;
    // The lower halves of the registers: these arguments are of type int.
    let int = |register: u64| register as u32 as i32;
    if receives {
        return Activity::Receiving { fd: int(epfd) };
    }
    let timeout = match (number, timeout) {
        (EPOLL_PWAIT2, 0) => RequestedTimeout::Known(Timeout::Infinite),
        (EPOLL_PWAIT2, address) => RequestedTimeout::At(address),
        (_, milliseconds) => match u64::try_from(int(milliseconds)) {
            Ok(milliseconds) => {
                RequestedTimeout::Known(Timeout::Nanoseconds(milliseconds * 1_000_000))
            }
            Err(_) => RequestedTimeout::Known(Timeout::Infinite),
        },
    };
    Activity::Waiting { epfd: int(epfd), maxevents: int(maxevents), timeout }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_tells_what_a_thread_waits_on() {
        const EPOLL_PWAIT: i64 = libc::SYS_epoll_pwait;
        let line = |number: i64, timeout: &str| {
            format!("{number} 0x5 0x7f00 0x400 {timeout} 0x0 0x8 0x7ffe 0x7f01\n")
        };
        let waits = |timeout| Activity::Waiting { epfd: 5, maxevents: 1_024, timeout };
        let known = |timeout| waits(RequestedTimeout::Known(timeout));
        assert_eq!(parse(&line(EPOLL_PWAIT, "0xffffffff")), known(Timeout::Infinite));
        assert_eq!(parse(&line(EPOLL_PWAIT, "0xffffffffffffffff")), known(Timeout::Infinite));
        assert_eq!(parse(&line(EPOLL_PWAIT, "0xa")), known(Timeout::Nanoseconds(10_000_000)));
        assert_eq!(parse(&line(EPOLL_PWAIT2, "0x0")), known(Timeout::Infinite));
        assert_eq!(parse(&line(EPOLL_PWAIT2, "0x7ffe10")), waits(RequestedTimeout::At(0x7f_fe10)));
        if let Some(number) = EPOLL_WAIT {
            assert_eq!(parse(&line(number, "0x0")), known(Timeout::Nanoseconds(0)));
        }
        for running in ["running\n", ""] {
            assert_eq!(parse(running), Activity::Running);
        }
        for number in RECEIVES {
            assert_eq!(parse(&line(number, "0x0")), Activity::Receiving { fd: 5 });
        }
        let cut = [EPOLL_PWAIT.to_string(), format!("{EPOLL_PWAIT} 0x5 zz")];
        let futex = line(libc::SYS_futex, "0x0");
        for other in ["-1 0x7ffe 0x7f01", &futex, &cut[0], &cut[1]] {
            assert_eq!(parse(other), Activity::OtherCall, "{other}");
        }
    }
}
