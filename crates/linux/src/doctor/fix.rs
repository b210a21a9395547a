//! What fixes a finding: one change of the device, a program or the host, and the command for it.
//!
//! The change is a value, so that a test can make it to facts as the kernel would. The command is
//! what is printed: it may be copied into a shell, whatever a device calls itself. Not whether a
//! finding needs one (`checks`), and nothing here changes anything.

use std::fmt;

use napkin_os::sched::CpuList;
use napkin_policy::{KEYS, PRESETS, Policy, Preset};

use napkin_kernel::shell::{dev, word as quoted};
use napkin_os::procfs::Sysctl;
use napkin_os::procfs::cpus::show_mask;

/// A change that would fix a finding; printed as a command, never made.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Fix {
    /// The device part of a policy, on every instance that receives.
    Apply {
        /// The policy to apply.
        policy: Policy,
        /// The interface's name, as `ip link` prints it.
        ifname: String,
        /// Whether that has to be confirmed: it can delay what must not be delayed by mistake.
        yes: bool,
    },
    /// The instance of one receive queue is set back to `base`.
    Release {
        /// The interface's name, as `ip link` prints it.
        ifname: String,
        /// The queue's index among those of its direction, from 0.
        queue: u32,
    },
    /// The program part of a policy; with a device, its device part, too.
    Attach {
        /// Process ID, as this PID namespace has it.
        pid: i32,
        /// The policy that its epoll contexts get.
        policy: Policy,
        /// The interface's name, as `ip link` prints it.
        ifname: Option<String>,
    },
    /// A program is started under a policy.
    Run {
        /// The policy under which it is to be started.
        policy: Policy,
        /// The interface's name, as `ip link` prints it.
        ifname: String,
    },
    /// memcached is started again with a thread for each of so many instances.
    Memcached {
        /// The program as it runs now.
        pid: i32,
        /// Threads that it should have (`-t`).
        threads: usize,
    },
    /// The device is set up.
    LinkUp {
        /// The interface's name, as `ip link` prints it.
        ifname: String,
    },
    /// GRO is switched on.
    Gro {
        /// The interface's name, as `ip link` prints it.
        ifname: String,
    },
    /// The other end of a veth no longer makes large packets.
    PeerOffloads,
    /// The device gets one receive queue.
    OneChannel {
        /// The interface's name, as `ip link` prints it.
        ifname: String,
        /// Whether its queues are set for each direction alone, as a veth's.
        per_direction: bool,
    },
    /// The receive ring's size.
    Ring {
        /// The interface's name, as `ip link` prints it.
        ifname: String,
        /// Entries that the ring should have.
        entries: u32,
    },
    /// The device's own interrupt moderation is switched off.
    FixedModeration {
        /// The interface's name, as `ip link` prints it.
        ifname: String,
    },
    /// RPS is switched off.
    NoRps {
        /// The interface's name, as `ip link` prints it.
        ifname: String,
        /// The receive queue; `None` for all.
        queue: Option<u32>,
    },
    /// RFS is switched off.
    NoRfs {
        /// The interface's name, as `ip link` prints it.
        ifname: String,
        /// The receive queue; `None` for all.
        queue: Option<u32>,
    },
    /// The CPUs to which an interrupt may go.
    IrqCpus {
        /// Its number, as in `/proc/interrupts`.
        irq: u32,
        /// CPUs by the kernel's numbers; the thread or interrupt may use any of them.
        cpus: Vec<usize>,
    },
    /// The CPUs on which a thread may run.
    ThreadCpus {
        /// Thread ID: a name in `/proc/PID/task`.
        tid: i32,
        /// CPUs by the kernel's numbers; the thread or interrupt may use any of them.
        cpus: Vec<usize>,
    },
    /// A thread is no longer a real-time one.
    FairThread {
        /// Thread ID: a name in `/proc/PID/task`.
        tid: i32,
    },
    /// A switch of the kernel's.
    Sysctl {
        /// The sysctl that is written.
        name: Sysctl,
        /// The value that is written.
        value: i64,
    },
    /// The CPUs of unbound workqueues.
    WorkqueueCpus {
        /// CPUs by the kernel's numbers; the thread or interrupt may use any of them.
        cpus: Vec<usize>,
    },
    /// One CPU of each core is left on.
    NoSmt,
    /// irqbalance is stopped.
    StopIrqbalance,
}

impl fmt::Display for Fix {
    /// The command. In capitals what its reader has to put in.
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
    /// Whether napkin does it, and has the device for itself meanwhile.
    pub(super) const fn takes_device(&self) -> bool {
        matches!(
            self,
            Fix::Apply { .. }
                | Fix::Release { .. }
                | Fix::Run { .. }
                | Fix::Attach { ifname: Some(_), .. }
        )
    }

    /// The program that napkin has for itself meanwhile.
    pub(super) const fn takes_process(&self) -> Option<i32> {
        match self {
            Fix::Attach { pid, .. } => Some(*pid),
            _ => None,
        }
    }

    /// What its reader has to know, or could do instead.
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

/// Some changes in one line for a shell: the commands, then what is in their way and their notes as its
/// comment.
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

/// A policy in the fewest letters: `suspend20,irq-suspend-timeout=40ms` instead of all that it sets.
fn short(policy: &Policy) -> String {
    let with = |preset: &Preset| {
        let differs = KEYS
            .iter()
            .filter(|key| key.value(policy).to_string() != key.value(&preset.policy).to_string());
        let others = differs.map(|key| format!(",{}={}", key.name, key.value(policy)));
        preset.name.to_owned() + &others.collect::<String>()
    };
    let texts = PRESETS.iter().map(with).chain([policy.to_string()]);
    // The same policy, certainly: that a preset can be changed in each key is the parser's word.
    let same = |text: &String| text.parse::<Policy>().as_ref() == Ok(policy);
    texts.filter(same).min_by_key(String::len).unwrap_or_else(|| policy.to_string())
}

/// CPUs as a mask in the fewest letters.
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
