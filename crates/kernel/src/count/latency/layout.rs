//! The kernel's structure layout and hooks for the latency programs.
//!
//! Trace points are preferred because they are stable. Where a kernel lacks one, the program is attached to the
//! function that would contain it (`sk_data_ready`, `sock_recv_length` and `sock_send_length` came with Linux 6.3).

use super::super::btf::{Btf, Kind};
use super::super::layout::{Absent, Kernel};
use napkin_bpf::Hook;

/// A hook to attach to, and the offsets in bytes of its arguments in the program's context.
#[derive(Debug, Clone, Copy)]
pub(super) struct HookPoint {
    pub(super) hook: Hook,
    pub(super) btf_id: u32,
    /// The offset of the result: the number of bytes read or sent, below 1 if none; -1 where it is not used.
    pub(super) result_at: i16,
    /// The offset of the `MSG_*` flags; -1 if there are none.
    pub(super) flags_at: i16,
}

/// Offsets of members in bytes, and BTF ids of types.
#[derive(Debug)]
pub(super) struct Layout {
    /// Hooks where a socket receives data.
    pub(super) ready: Vec<HookPoint>,
    /// Hooks where a socket has been read.
    pub(super) read: Vec<HookPoint>,
    /// Hooks where a socket has been written to.
    pub(super) sent: Vec<HookPoint>,
    /// `sock.sk_napi_id`; absent in a kernel without busy polling.
    pub(super) sk_napi_id: Option<i16>,
    /// `sock.__sk_common.skc_num`: the local port.
    pub(super) port: i16,
    /// `sock.__sk_common.skc_portpair`: the local and the peer's port.
    pub(super) ports: i16,
    /// `sock.__sk_common.skc_net.net` and `net.ns.inum`; a kernel without network namespaces lacks the first.
    pub(super) namespace: Option<[i16; 2]>,
    /// `tcp_sock.copied_seq` and `tcp_sock.rcv_nxt`: the ends of what was read and of what has arrived.
    pub(super) sequence: [i16; 2],
    /// The trace point after each poll.
    pub(super) napi_poll: u32,
    /// `napi_struct.napi_id`
    pub(super) napi_id: i16,
    /// `napi_struct.timer.node.expires`
    pub(super) expires: i16,
    /// `napi_struct.state`, and the mask of `NAPI_STATE_SCHED` in it: the instance has an owner.
    pub(super) state: i16,
    pub(super) owned: i32,
    /// What is needed to observe when an instance was scheduled.
    pub(super) wake: Result<Wake, Absent>,
}

/// Hooks and offsets for wake-ups of softirqs and of instances' threads.
#[derive(Debug)]
pub(super) struct Wake {
    /// The trace point where a softirq is raised.
    pub(super) raise: u32,
    /// The trace point before a softirq runs.
    pub(super) entry: u32,
    /// The number of the receive softirq.
    pub(super) net_rx: i32,
    /// The trace point before a thread is woken.
    pub(super) waking: u32,
    /// `task_struct.comm`
    pub(super) comm: i16,
    /// `task_struct.pid`
    pub(super) pid: i16,
}

impl Layout {
    /// Reads the layout from BTF. Uses trace points where available if `trace_points` is set, else only functions.
    pub(super) fn read(btf: &Btf, trace_points: bool) -> Result<Layout, Absent> {
        let kernel = Kernel(btf);
        let trace_point = |name: &str| {
            let btf_id =
                btf.find(Kind::Typedef, &format!("btf_trace_{name}")).filter(|_| trace_points)?;
            Some(HookPoint { hook: Hook::TracePoint, btf_id, result_at: 8, flags_at: 16 })
        };
        let at_exit = |name: &str| {
            let btf_id = btf.find(Kind::Func, name)?;
            let offset_of = |which: usize| i16::try_from(which * 8).ok();
            // Without a `flags` parameter there are no flags to check.
            let (flags_at, count) = match btf.parameter(btf_id, "flags") {
                Some((flags_at, count)) => (offset_of(flags_at)?, count),
                None => (-1, btf.parameter(btf_id, "sk")?.1),
            };
            Some(HookPoint { hook: Hook::Exit, btf_id, result_at: offset_of(count)?, flags_at })
        };
        let ready = trace_point("sk_data_ready").or_else(|| {
            let btf_id = btf.find(Kind::Func, "sock_def_readable")?;
            Some(HookPoint { hook: Hook::Entry, btf_id, result_at: -1, flags_at: -1 })
        });
        let read = match trace_point("sock_recv_length") {
            Some(trace_point) => vec![trace_point],
            None => ["tcp_recvmsg", "udp_recvmsg"].into_iter().filter_map(at_exit).collect(),
        };
        let sent = match trace_point("sock_send_length") {
            Some(trace_point) => vec![trace_point],
            None => ["tcp_sendmsg", "udp_sendmsg"].into_iter().filter_map(at_exit).collect(),
        };
        let at_least_one = |hooks: Vec<HookPoint>, what: &str| {
            if hooks.is_empty() { Err(Absent(what.into())) } else { Ok(hooks) }
        };
        Ok(Layout {
            ready: at_least_one(ready.into_iter().collect(), "sk_data_ready")?,
            read: at_least_one(read, "sock_recv_length")?,
            sent: at_least_one(sent, "sock_send_length")?,
            sk_napi_id: kernel.offset("sock", "sk_napi_id").ok(),
            port: kernel.offset("sock", "__sk_common.skc_num")?,
            ports: kernel.offset("sock", "__sk_common.skc_portpair")?,
            namespace: match kernel.offset("sock", "__sk_common.skc_net.net") {
                Ok(net) => Some([net, kernel.offset("net", "ns.inum")?]),
                Err(_) => None,
            },
            sequence: [
                kernel.offset("tcp_sock", "copied_seq")?,
                kernel.offset("tcp_sock", "rcv_nxt")?,
            ],
            napi_poll: kernel.id(Kind::Typedef, "btf_trace_napi_poll")?,
            napi_id: kernel.offset("napi_struct", "napi_id")?,
            expires: kernel.offset("napi_struct", "timer.node.expires")?,
            state: kernel.offset("napi_struct", "state")?,
            owned: 1 << kernel.number("NAPI_STATE_SCHED")?,
            wake: wake(&kernel),
        })
    }
}

fn wake(kernel: &Kernel<'_>) -> Result<Wake, Absent> {
    Ok(Wake {
        raise: kernel.id(Kind::Typedef, "btf_trace_softirq_raise")?,
        entry: kernel.id(Kind::Typedef, "btf_trace_softirq_entry")?,
        net_rx: kernel.number("NET_RX_SOFTIRQ")?,
        waking: kernel.id(Kind::Typedef, "btf_trace_sched_waking")?,
        comm: kernel.offset("task_struct", "comm")?,
        pid: kernel.offset("task_struct", "pid")?,
    })
}
