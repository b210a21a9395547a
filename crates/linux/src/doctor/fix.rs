//! Fixes of findings: changes of a device, a program or the host, and the commands that make them.
//!
//! A change is a value, so that a test can apply it to facts as the kernel would. The printed command is safe
//! to paste into a shell, whatever the device's name. Nothing here makes a change; `checks` decides which
//! ones are needed.

use std::fmt;

use napkin_os::sched::CpuList;
use napkin_policy::{KEYS, PRESETS, Policy, Preset};

use napkin_kernel::shell::{dev, word as quoted};
use napkin_os::procfs::Sysctl;
use napkin_os::procfs::cpus::show_mask;

/// A change that would fix a finding: printed as a command, never made.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Fix {
    /// The device part of a policy, on every instance that receives.
    Apply {
        /// The policy to apply.
        policy: Policy,
        /// The interface's name, as `ip link` prints it.
        ifname: String,
        /// Whether it needs confirmation, as it can delay traffic that must not be delayed by mistake.
        yes: bool,
    },
    /// Sets the instance of one receive queue back to `base`.
    Release {
        /// The interface's name, as `ip link` prints it.
        ifname: String,
        /// The queue's index among those of its direction, from 0.
        queue: u32,
    },
    /// The program part of a policy; with a device, its device part too.
    Attach {
        /// Process ID, as this PID namespace has it.
        pid: i32,
        /// The policy that its epoll contexts get.
        policy: Policy,
        /// The interface's name, as `ip link` prints it.
        ifname: Option<String>,
    },
    /// Starts a program under a policy.
    Run {
        /// The policy under which it is to be started.
        policy: Policy,
        /// The interface's name, as `ip link` prints it.
        ifname: String,
    },
    /// Restarts memcached with one thread for each of this many instances.
    Memcached {
        /// The ID of the running process.
        pid: i32,
        /// The number of threads it should have (`-t`).
        threads: usize,
    },
    /// Sets the device up.
    LinkUp {
        /// The interface's name, as `ip link` prints it.
        ifname: String,
    },
    /// Switches GRO on.
    Gro {
        /// The interface's name, as `ip link` prints it.
        ifname: String,
    },
    /// Stops the other end of a veth from sending large packets.
    PeerOffloads,
    /// Reduces the device to one receive queue.
    OneChannel {
        /// The interface's name, as `ip link` prints it.
        ifname: String,
        /// Whether it has no combined channels, like a veth.
        per_direction: bool,
    },
    /// Sets the size of the receive ring.
    Ring {
        /// The interface's name, as `ip link` prints it.
        ifname: String,
        /// Entries that the ring should have.
        entries: u32,
    },
    /// Switches off the device's own interrupt moderation.
    FixedModeration {
        /// The interface's name, as `ip link` prints it.
        ifname: String,
    },
    /// Switches RPS off.
    NoRps {
        /// The interface's name, as `ip link` prints it.
        ifname: String,
        /// The receive queue; `None` for all.
        queue: Option<u32>,
    },
    /// Switches RFS off.
    NoRfs {
        /// The interface's name, as `ip link` prints it.
        ifname: String,
        /// The receive queue; `None` for all.
        queue: Option<u32>,
    },
    /// Sets the CPUs to which an interrupt may go.
    IrqCpus {
        /// Its number, as in `/proc/interrupts`.
        irq: u32,
        /// CPUs by the kernel's numbers; the thread or interrupt may use any of them.
        cpus: Vec<usize>,
    },
    /// Sets the CPUs on which a thread may run.
    ThreadCpus {
        /// Thread ID: a name in `/proc/PID/task`.
        tid: i32,
        /// CPUs by the kernel's numbers; the thread or interrupt may use any of them.
        cpus: Vec<usize>,
    },
    /// Makes a real-time thread an ordinary one.
    FairThread {
        /// Thread ID: a name in `/proc/PID/task`.
        tid: i32,
    },
    /// Writes a sysctl.
    Sysctl {
        /// The sysctl to write.
        name: Sysctl,
        /// The value to write.
        value: i64,
    },
    /// Sets the CPUs of unbound workqueues.
    WorkqueueCpus {
        /// CPUs by the kernel's numbers; the thread or interrupt may use any of them.
        cpus: Vec<usize>,
    },
    /// Leaves one CPU of each core online.
    NoSmt,
    /// Stops irqbalance.
    StopIrqbalance,
}

impl fmt::Display for Fix {
    /// The command, with placeholders in capitals.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Fix::Apply { policy, ifname, yes } => {
                let yes = if *yes { " --yes" } else { "" };
                write!(f, "napkin apply {} {}{yes}", short(policy), dev(ifname))
            }
            Fix::Release { ifname, queue } => {
                write!(f, "napkin apply base {} --queue {queue}", dev(ifname))
            }
            Fix::Attach { pid, policy, ifname } => {
                write!(f, "napkin attach {pid} --policy {}", short(policy))?;
                ifname.as_ref().map_or(Ok(()), |ifname| write!(f, " {}", dev(ifname)))
            }
            Fix::Run { policy, ifname } => {
                write!(f, "napkin run --policy {} {} -- PROGRAM", short(policy), dev(ifname))
            }
            Fix::Memcached { threads, .. } => write!(f, "memcached -t {threads} -N {threads} ..."),
            Fix::LinkUp { ifname } => write!(f, "ip link set {} up", quoted(ifname)),
            Fix::Gro { ifname } => write!(f, "ethtool -K {} gro on", quoted(ifname)),
            Fix::PeerOffloads => f.write_str("ethtool -K PEER tso off gso off"),
            Fix::OneChannel { ifname, per_direction } => {
                let what = if *per_direction { "rx" } else { "combined" };
                write!(f, "ethtool -L {} {what} 1", quoted(ifname))
            }
            Fix::Ring { ifname, entries } => {
                write!(f, "ethtool -G {} rx {entries}", quoted(ifname))
            }
            Fix::FixedModeration { ifname } => {
                write!(f, "ethtool -C {} adaptive-rx off", quoted(ifname))
            }
            Fix::NoRps { ifname, queue } => no_steering(f, ifname, *queue, "rps_cpus"),
            Fix::NoRfs { ifname, queue } => no_steering(f, ifname, *queue, "rps_flow_cnt"),
            Fix::IrqCpus { irq, cpus } => {
                write!(f, "echo {} > /proc/irq/{irq}/smp_affinity_list", CpuList(cpus.clone()))
            }
            Fix::ThreadCpus { tid, cpus } => {
                write!(f, "taskset -pc {} {tid}", CpuList(cpus.clone()))
            }
            Fix::FairThread { tid } => write!(f, "chrt -o -p 0 {tid}"),
            Fix::Sysctl { name, value } => write!(f, "sysctl -w {name}={value}"),
            Fix::WorkqueueCpus { cpus } => {
                write!(f, "echo {} > /sys/devices/virtual/workqueue/cpumask", mask(cpus))
            }
            Fix::NoSmt => f.write_str("echo off > /sys/devices/system/cpu/smt/control"),
            Fix::StopIrqbalance => f.write_str("systemctl stop irqbalance"),
        }
    }
}

impl Fix {
    /// Whether the command is napkin's, and locks the device.
    pub(super) const fn takes_device(&self) -> bool {
        matches!(
            self,
            Fix::Apply { .. }
                | Fix::Release { .. }
                | Fix::Run { .. }
                | Fix::Attach { ifname: Some(_), .. }
        )
    }

    /// The process that the command locks.
    pub(super) const fn takes_process(&self) -> Option<i32> {
        match self {
            Fix::Attach { pid, .. } => Some(*pid),
            _ => None,
        }
    }

    /// A hint for the reader: the meaning of a placeholder, or an alternative.
    fn note(&self) -> Option<&'static str> {
        match self {
            Fix::PeerOffloads => Some("PEER: the other end of the veth"),
            Fix::OneChannel { .. } => {
                Some("or give the program a thread and a listening socket for each queue")
            }
            Fix::Memcached { .. } => Some("a thread for each instance"),
            Fix::FairThread { .. } => Some("or sysctl -w kernel.sched_rt_runtime_us=-1"),
            _ => None,
        }
    }
}

/// Joins changes into one shell line: the commands, then `in_the_way` and their notes as its comment.
pub(super) fn line(fixes: &[Fix], in_the_way: Option<&str>) -> Option<String> {
    if fixes.is_empty() {
        return None;
    }
    let commands: Vec<String> = fixes.iter().map(Fix::to_string).collect();
    let mut notes: Vec<&str> = in_the_way.into_iter().collect();
    for fix in fixes {
        notes.extend(fix.note());
    }
    notes.dedup();
    let mut line = commands.join("; ");
    if !notes.is_empty() {
        line.push_str("    # ");
        line.push_str(&notes.join("; "));
    }
    Some(line)
}

fn no_steering(
    f: &mut fmt::Formatter<'_>,
    ifname: &str,
    queue: Option<u32>,
    file: &str,
) -> fmt::Result {
    let queue = queue.map_or_else(|| "*".to_owned(), |queue| queue.to_string());
    let ifname = quoted(ifname);
    write!(f, "for f in /sys/class/net/{ifname}/queues/rx-{queue}/{file}; do echo 0 > \"$f\"; done")
}

/// Writes a policy in its shortest form: `suspend20,irq-suspend-timeout=40ms` instead of all its keys.
fn short(policy: &Policy) -> String {
    let with = |preset: &Preset| {
        let differs = KEYS
            .iter()
            .filter(|key| key.value(policy).to_string() != key.value(&preset.policy).to_string());
        let others = differs.map(|key| format!(",{}={}", key.name, key.value(policy)));
        preset.name.to_owned() + &others.collect::<String>()
    };
    let texts = PRESETS.iter().map(with).chain([policy.to_string()]);
    // Only texts that parse to the same policy: whether a preset can be changed in each key is up to the parser.
    let same = |text: &String| text.parse::<Policy>().as_ref() == Ok(policy);
    texts.filter(same).min_by_key(String::len).unwrap_or_else(|| policy.to_string())
}

/// Formats CPUs as a mask without leading zeros.
fn mask(cpus: &[usize]) -> String {
    match show_mask(cpus).trim_start_matches('0') {
        "" => "0".to_owned(),
        mask => mask.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_mask_is_written_as_the_kernel_reads_it() {
        assert_eq!(mask(&[0, 1, 3]), "b");
        assert_eq!(mask(&[33]), "2,00000000");
        assert_eq!(mask(&[]), "0");
    }

    #[test]
    fn a_policy_is_written_as_the_nearest_preset_with_what_differs() {
        for text in ["suspend20,irq-suspend-timeout=40ms", "fullbusy,gro-flush-timeout=200us"] {
            let policy: Policy = text.parse().expect(text);
            assert_eq!(short(&policy), text);
        }
        for preset in PRESETS {
            assert_eq!(short(&preset.policy), preset.name);
        }
        assert_eq!(short(&"defer37".parse().expect("a member")), "defer37");
    }

    #[test]
    fn a_device_may_call_itself_what_it_likes() {
        let up = |ifname: &str| Fix::LinkUp { ifname: ifname.into() }.to_string();
        assert_eq!(up("eth0.7@x"), "ip link set eth0.7@x up");
        assert_eq!(up("x;reboot"), "ip link set 'x;reboot' up");
        assert_eq!(up("it's"), r"ip link set 'it'\''s' up");
        assert_eq!(up("ä"), "ip link set 'ä' up");
        assert_eq!(up("\x1b[2J'\\"), r"ip link set $'\x1b[2J\'\\' up");
        assert_eq!(up("a\u{202e}b"), r"ip link set $'a\xe2\x80\xaeb' up");
        let policy = Policy::BASE;
        let apply = |ifname: &str| Fix::Apply { policy, ifname: ifname.into(), yes: false };
        assert_eq!(apply("-rf").to_string(), "napkin apply base --dev=-rf");
        assert_eq!(apply("$(id)").to_string(), "napkin apply base --dev '$(id)'");
        let rps = Fix::NoRps { ifname: "a*".into(), queue: None };
        assert!(rps.to_string().starts_with("for f in /sys/class/net/'a*'/queues/rx-*/rps_cpus;"));
    }

    #[test]
    fn several_changes_are_one_line_with_what_is_said_of_them_behind() {
        let fair = |tid| Fix::FairThread { tid };
        assert_eq!(line(&[], None), None);
        assert_eq!(line(&[], Some("nothing to do")), None);
        assert_eq!(
            line(&[fair(7), fair(8)], None).as_deref(),
            Some("chrt -o -p 0 7; chrt -o -p 0 8    # or sysctl -w kernel.sched_rt_runtime_us=-1")
        );
        assert_eq!(
            line(&[fair(7)], Some("7 is held")).as_deref(),
            Some("chrt -o -p 0 7    # 7 is held; or sysctl -w kernel.sched_rt_runtime_us=-1")
        );
    }
}
