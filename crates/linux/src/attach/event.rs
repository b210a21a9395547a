//! Events of a process under a policy, and the lines that report them.

use std::fmt;
use std::time::Duration;

use napkin_os::sched::CpuList;
use serde::Serialize;

use napkin_kernel::process::{Params, SocketOptions};

/// The number of lines about settings before the rest are suppressed, unless more detail is asked for. A
/// program that opens contexts without end would fill the terminal.
const MAX_LINES: usize = 20;

/// An event of a process.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub struct Event {
    /// Process ID in this PID namespace.
    pub pid: i32,
    /// The process name in `/proc/PID/comm`: the kernel keeps 15 bytes.
    pub comm: String,
    /// The kind of event with its details; in JSON they are fields beside these.
    #[serde(flatten)]
    pub kind: EventKind,
}

/// The kinds of events.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case", rename_all_fields = "kebab-case", tag = "event")]
#[non_exhaustive]
pub enum EventKind {
    /// Epoll contexts were set.
    Epolls {
        /// Their numbers in the program's table, names in `/proc/PID/fd`.
        fds: Vec<i32>,
        /// The parameters that were set.
        params: Params,
        /// The maximum time since they were opened; `None` for those that existed before the first scan.
        within: Option<Duration>,
        /// Whether all of them had been set before, and were opened anew or reset.
        again: bool,
    },
    /// Epoll contexts had the parameters already.
    Already {
        /// Their numbers in the program's table, names in `/proc/PID/fd`.
        fds: Vec<i32>,
    },
    /// Sockets were set.
    Sockets {
        /// Sockets whose options were set in this scan.
        count: usize,
        /// The options that were set.
        options: SocketOptions,
    },
    /// A thread was pinned.
    Pinned {
        /// Thread ID: a name in `/proc/PID/task`.
        tid: i32,
        /// The ID of the instance whose packets it waits for.
        napi_id: u32,
        /// The CPUs that the thread may use.
        cpus: Vec<usize>,
    },
    /// A thread was not pinned.
    NotPinned {
        /// Thread ID: a name in `/proc/PID/task`.
        tid: i32,
        /// The reason, in words.
        why: String,
    },
    /// The program set its own parameters after napkin had set them: they are left alone.
    OwnParams {
        /// Its number in the program's table, a name in `/proc/PID/fd`.
        fd: i32,
        /// The current parameters.
        now: Params,
    },
    /// Something could not be read or set.
    Failed {
        /// The reason, in words.
        why: String,
    },
    /// The process executed another program.
    Exec {
        /// Its previous name.
        before: String,
    },
    /// The process has ended, and its settings with it.
    Ended,
}

impl EventKind {
    /// Whether something was set that can be put back.
    pub const fn sets(&self) -> bool {
        matches!(
            self,
            EventKind::Epolls { .. } | EventKind::Sockets { .. } | EventKind::Pinned { .. }
        )
    }
}

impl fmt::Display for Event {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Event { pid, comm, kind } = self;
        write!(f, "{comm}[{pid}]: ")?;
        match kind {
            EventKind::Epolls { fds, params, within, again } => {
                let again = if *again { " again" } else { "" };
                write!(f, "epoll {}: {params}; set{again}", list(fds))?;
                match within {
                    Some(within) => write!(f, " within {} ms", within.as_millis().max(1)),
                    None => Ok(()),
                }
            }
            EventKind::Already { fds } => write!(f, "epoll {}: set so already", list(fds)),
            EventKind::Sockets { count: 1, options } => write!(f, "1 socket: {options}; set"),
            EventKind::Sockets { count, options } => write!(f, "{count} sockets: {options}; set"),
            EventKind::Pinned { tid, napi_id, cpus } => {
                let cpus = CpuList(cpus.clone());
                write!(f, "thread {tid}: pinned to CPU {cpus}, where NAPI {napi_id} is polled")
            }
            EventKind::NotPinned { tid, why } => write!(f, "thread {tid}: not pinned: {why}"),
            EventKind::OwnParams { fd, now } => {
                write!(f, "epoll {fd}: the program set it itself, to {now}: left so")
            }
            EventKind::Failed { why } => f.write_str(why),
            EventKind::Exec { before } => write!(f, "was {before}, and runs another program now"),
            EventKind::Ended => f.write_str("ended"),
        }
    }
}

/// Formats at most ten numbers and a count of the rest.
fn list(fds: &[i32]) -> String {
    const MOST: usize = 10;
    let shown: Vec<String> = fds.iter().take(MOST).map(i32::to_string).collect();
    match fds.len().checked_sub(MOST) {
        None | Some(0) => shown.join(", "),
        Some(more) => format!("{} and {more} more", shown.join(", ")),
    }
}

/// How much is reported.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Detail {
    /// Failures, once each.
    Quiet,
    /// Failures, and what was set for the first time.
    #[default]
    News,
    /// Also what was set already, and which programs were executed and ended.
    Everything,
}

/// Selects the events to report.
#[derive(Debug, Default)]
pub struct Lines {
    detail: Detail,
    lines: usize,
}

impl Lines {
    /// Creates a filter with this level of detail.
    pub const fn new(detail: Detail) -> Lines {
        Lines { detail, lines: 0 }
    }

    /// Returns the line that reports an event, unless it is suppressed.
    pub fn line(&mut self, event: &Event) -> Option<String> {
        let failed = matches!(event.kind, EventKind::Failed { .. });
        let news = match &event.kind {
            EventKind::Epolls { again, .. } => !again,
            EventKind::Sockets { .. }
            | EventKind::Pinned { .. }
            | EventKind::NotPinned { .. }
            | EventKind::OwnParams { .. }
            | EventKind::Failed { .. } => true,
            EventKind::Already { .. } | EventKind::Exec { .. } | EventKind::Ended => false,
        };
        let shown = match self.detail {
            Detail::Everything => return Some(event.to_string()),
            Detail::News => news,
            Detail::Quiet => failed,
        };
        if !shown {
            return None;
        }
        if failed {
            // Each failure comes once for its process; none is suppressed.
            return Some(event.to_string());
        }
        self.lines += 1;
        match self.lines {
            lines if lines <= MAX_LINES => Some(event.to_string()),
            lines if lines == MAX_LINES + 1 => Some("and so on: more with --verbose".into()),
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn set(fds: &[i32], again: bool) -> Event {
        let params = Params { busy_poll_usecs: 0, busy_poll_budget: 64, prefer_busy_poll: true };
        let within = Some(Duration::from_micros(12_400));
        let kind = EventKind::Epolls { fds: fds.to_vec(), params, within, again };
        Event { pid: 812, comm: "memcached".into(), kind }
    }

    #[test]
    fn a_line_says_what_was_set_and_how_soon() {
        assert_eq!(
            set(&[5, 8, 11], false).to_string(),
            "memcached[812]: epoll 5, 8, 11: busy poll 0 us, budget 64, prefer; set within 12 ms"
        );
        let many: Vec<i32> = (0..30).collect();
        assert!(set(&many, false).to_string().contains("9 and 20 more: "));
    }

    #[test]
    fn a_program_without_end_does_not_fill_the_terminal() {
        let lines = |detail, again| {
            let mut shown = Lines::new(detail);
            (0..1_000).filter_map(|_| shown.line(&set(&[5], again))).count()
        };
        assert_eq!(lines(Detail::News, false), MAX_LINES + 1);
        assert_eq!(lines(Detail::News, true), 0);
        assert_eq!(lines(Detail::Quiet, false), 0);
        assert_eq!(lines(Detail::Everything, true), 1_000);
    }

    #[test]
    fn every_failure_is_told() {
        for detail in [Detail::Quiet, Detail::News, Detail::Everything] {
            let mut shown = Lines::new(detail);
            let failed = |pid| {
                let kind = EventKind::Failed { why: "no descriptor is left".into() };
                Event { pid, comm: "memcached".into(), kind }
            };
            let lines = (1..=1_000).filter_map(|pid| shown.line(&failed(pid)));
            assert_eq!(lines.last().as_deref(), Some("memcached[1000]: no descriptor is left"));
        }
    }
}
