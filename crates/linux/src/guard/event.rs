//! The events of a guard, and their text.

use std::fmt;
use std::time::Duration;

use napkin_policy::Time;
use serde::Serialize;

use super::cause::Cause;

/// An action of a guard, or its failure, for an instance that starved.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub struct Event {
    /// The interface's name, as `ip link` prints it.
    pub ifname: String,
    /// The queues that the instance polls: `queue 0`.
    pub subject: String,
    /// Its NAPI id.
    pub napi_id: u32,
    /// The kind of event.
    #[serde(flatten)]
    pub kind: EventKind,
}

/// The kind of an event.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case", rename_all_fields = "kebab-case", tag = "event")]
#[non_exhaustive]
pub enum EventKind {
    /// The instance starved: `irq-suspend-timeout` was set to 0.
    Ended {
        /// The previous timeout, in nanoseconds.
        timeout: u64,
        /// The time for which the instance had not been polled, at least.
        silent: Duration,
        /// The time until suspension is tried again; `None`: not while the guard runs.
        again: Option<Duration>,
        /// The programs that kept it suspended, as far as they were found.
        causes: Vec<Cause>,
        /// The right that was missing to find more of them.
        unseen: Option<String>,
    },
    /// `irq-suspend-timeout` was restored, to try again.
    Again {
        /// The timeout, in nanoseconds.
        timeout: u64,
    },
    /// The instance starves, and its suspension could not be ended.
    Failed {
        /// The reason, in words.
        why: String,
    },
    /// `irq-suspend-timeout` could not be restored at the end: its value remains in the journal.
    NotGivenBack {
        /// The reason, in words.
        why: String,
    },
}

impl fmt::Display for Event {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Event { ifname, subject, napi_id, kind } = self;
        write!(f, "{ifname} {subject} (NAPI {napi_id}): ")?;
        match kind {
            EventKind::Ended { timeout, silent, again, causes, unseen } => {
                let timeout = Time(*timeout);
                write!(f, "starved, not polled for {} ms: ", silent.as_millis())?;
                for (place, cause) in causes.iter().enumerate() {
                    write!(f, "{}{cause}", if place == 0 { "" } else { "; " })?;
                }
                match (causes.is_empty(), unseen) {
                    (true, None) => f.write_str("the program behind it was not found")?,
                    (true, Some(unseen)) => write!(f, "by a program that was not seen ({unseen})")?,
                    (false, _) => {}
                }
                write!(f, "; irq-suspend-timeout {timeout} -> 0")?;
                match again {
                    Some(time) => write!(f, " for {} s", time.as_secs().max(1)),
                    None => f.write_str(" until napkin ends"),
                }
            }
            EventKind::Again { timeout } => {
                write!(f, "irq-suspend-timeout is {} again", Time(*timeout))
            }
            EventKind::Failed { why } => {
                write!(f, "it starves, and irq-suspend-timeout could not be set to 0: {why}")
            }
            EventKind::NotGivenBack { why } => {
                write!(f, "irq-suspend-timeout stays 0 until napkin restore: {why}")
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use napkin_kernel::process::Ready;

    #[test]
    fn a_line_names_the_instance_the_program_its_thread_and_what_is_always_ready() {
        let cause = Cause {
            pid: 812,
            comm: "proxy".into(),
            threads: vec![814],
            epoll: 5,
            always_ready: vec![Ready { fd: 7, readable: false, writable: true }],
        };
        let ended = |again, causes, unseen| Event {
            ifname: "eth0".into(),
            subject: "queue 0".into(),
            napi_id: 8_193,
            kind: EventKind::Ended {
                timeout: 20_000_000,
                silent: Duration::from_millis(80),
                again,
                causes,
                unseen,
            },
        };
        assert_eq!(
            ended(None, vec![cause.clone()], None).to_string(),
            "eth0 queue 0 (NAPI 8193): starved, not polled for 80 ms: proxy[812] thread 814 waits \
             on epoll 5, in which 7 (EPOLLOUT) is always ready; irq-suspend-timeout 20ms -> 0 until \
             napkin ends"
        );
        let later = ended(Some(Duration::from_secs(10)), vec![cause], None).to_string();
        assert!(later.ends_with("-> 0 for 10 s"), "{later}");
        let unseen = ended(None, vec![], Some("CAP_SYS_PTRACE".into())).to_string();
        assert!(unseen.contains("not seen (CAP_SYS_PTRACE)"), "{unseen}");
    }
}
