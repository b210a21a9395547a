//! The kernel's structure layout and hooks for the counting programs.

use super::btf::{Btf, Kind};

/// The name of a member, type or function that this kernel does not have.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Absent(pub(super) String);

/// Offsets of members in bytes, and BTF ids of types.
#[derive(Debug)]
pub(super) struct Layout {
    /// The trace point after each poll.
    pub(super) napi_poll: u32,
    /// Offsets in `struct napi_struct`.
    pub(super) napi: Napi,
    /// Offset of `net_device.ifindex`.
    pub(super) ifindex: i16,
    /// Offset of `net_device.nd_net.net`.
    pub(super) net: i16,
    /// Offset of `net.ns.inum`.
    pub(super) inum: i16,
    /// Offset of `task_struct.pid`.
    pub(super) pid: i16,
    /// What is needed to recognise a receive softirq.
    pub(super) softirq: Result<Softirq, Absent>,
    /// What is needed to count the timers.
    pub(super) timer: Result<Timer, Absent>,
}

/// Offsets in `struct napi_struct`.
#[derive(Debug)]
pub(super) struct Napi {
    pub(super) napi_id: i16,
    pub(super) dev: i16,
    pub(super) state: i16,
    pub(super) thread: i16,
    /// The mask in `state` of an application that polls.
    pub(super) in_busy_poll: i32,
    /// The pointer to the settings that the device keeps for the instance, or null; since Linux 6.13.
    pub(super) config: Option<i16>,
}

#[derive(Debug)]
pub(super) struct Softirq {
    /// The trace point before a softirq.
    pub(super) entry: u32,
    /// The trace point after a softirq.
    pub(super) exit: u32,
    /// The number of the receive softirq.
    pub(super) net_rx: i32,
}

/// Hooks and offsets for the instances' timers.
#[derive(Debug)]
pub(super) struct Timer {
    /// The BTF id of `struct napi_struct`.
    pub(super) napi_struct: u32,
    /// Offset of `napi_struct.timer`.
    pub(super) within: i16,
    /// Offset of `hrtimer.function`.
    pub(super) function: i16,
    /// The callback of the instances' timers.
    pub(super) napi_watchdog: u32,
    /// The kernel function that turns a number into a typed pointer.
    pub(super) rdonly_cast: u32,
    /// The trace point where a timer is armed.
    pub(super) hrtimer_start: u32,
    /// The trace point before a timer's callback.
    pub(super) hrtimer_expire_entry: u32,
    /// What distinguishes the reasons for arming; without it (before Linux 6.13) all count as deferrals.
    pub(super) settings: Option<Settings>,
}

/// Offsets in `struct napi_struct` of the settings and of the timer's expiry.
#[derive(Debug)]
pub(super) struct Settings {
    pub(super) defer_hard_irqs: i16,
    pub(super) gro_flush_timeout: i16,
    pub(super) irq_suspend_timeout: i16,
    /// Offset of `timer.node.expires`.
    pub(super) expires: i16,
}

impl Layout {
    pub(super) fn read(btf: &Btf) -> Result<Layout, Absent> {
        let kernel = Kernel(btf);
        Ok(Layout {
            napi_poll: kernel.id(Kind::Typedef, "btf_trace_napi_poll")?,
            napi: Napi {
                napi_id: kernel.offset("napi_struct", "napi_id")?,
                dev: kernel.offset("napi_struct", "dev")?,
                state: kernel.offset("napi_struct", "state")?,
                thread: kernel.offset("napi_struct", "thread")?,
                in_busy_poll: 1 << kernel.number("NAPI_STATE_IN_BUSY_POLL")?,
                config: kernel.offset("napi_struct", "config").ok(),
            },
            ifindex: kernel.offset("net_device", "ifindex")?,
            net: kernel.offset("net_device", "nd_net.net")?,
            inum: kernel.offset("net", "ns.inum")?,
            pid: kernel.offset("task_struct", "pid")?,
            softirq: kernel.softirq(),
            timer: kernel.timer(),
        })
    }
}

/// Looks up names in BTF; the error carries the missing name.
pub(super) struct Kernel<'a>(pub(super) &'a Btf);

impl Kernel<'_> {
    pub(super) fn id(&self, kind: Kind, name: &str) -> Result<u32, Absent> {
        self.0.find(kind, name).ok_or_else(|| Absent(name.into()))
    }

    pub(super) fn offset(&self, structure: &str, path: &str) -> Result<i16, Absent> {
        let absent = || Absent(format!("{structure}.{path}"));
        let id = self.id(Kind::Struct, structure)?;
        let member = self.0.member(id, path).ok_or_else(absent)?;
        i16::try_from(member.offset).map_err(|_| absent())
    }

    /// Returns the value of an enumerator below 31, a bit number that an instruction's constant can hold.
    pub(super) fn number(&self, name: &str) -> Result<i32, Absent> {
        let value = self.0.enumerator(name).and_then(|value| i32::try_from(value).ok());
        value.filter(|&value| value < 31).ok_or_else(|| Absent(name.into()))
    }

    fn softirq(&self) -> Result<Softirq, Absent> {
        Ok(Softirq {
            entry: self.id(Kind::Typedef, "btf_trace_softirq_entry")?,
            exit: self.id(Kind::Typedef, "btf_trace_softirq_exit")?,
            net_rx: self.number("NET_RX_SOFTIRQ")?,
        })
    }

    fn timer(&self) -> Result<Timer, Absent> {
        Ok(Timer {
            napi_struct: self.id(Kind::Struct, "napi_struct")?,
            within: self.offset("napi_struct", "timer")?,
            function: self.offset("hrtimer", "function")?,
            napi_watchdog: self.id(Kind::Func, "napi_watchdog")?,
            rdonly_cast: self.id(Kind::Func, "bpf_rdonly_cast")?,
            hrtimer_start: self.id(Kind::Typedef, "btf_trace_hrtimer_start")?,
            hrtimer_expire_entry: self.id(Kind::Typedef, "btf_trace_hrtimer_expire_entry")?,
            settings: self.settings().ok(),
        })
    }

    fn settings(&self) -> Result<Settings, Absent> {
        Ok(Settings {
            defer_hard_irqs: self.offset("napi_struct", "defer_hard_irqs")?,
            gro_flush_timeout: self.offset("napi_struct", "gro_flush_timeout")?,
            irq_suspend_timeout: self.offset("napi_struct", "irq_suspend_timeout")?,
            expires: self.offset("napi_struct", "timer.node.expires")?,
        })
    }
}
