//! Where the running kernel keeps what the programs look at, and where they can stand.
//!
//! Trace points are preferred, for they stay; where a kernel has not got one, the function that it
//! stands in is taken (`sk_data_ready`, `sock_recv_length` and `sock_send_length` came with Linux 6.3).

use super::super::btf::{Btf, Kind};
use super::super::layout::{Absent, Kernel};
use napkin_bpf::Hook;

/// A place to stand at, and where the arguments are in what a program is given, in bytes.
#[derive(Debug, Clone, Copy)]
pub(super) struct Stand {
    pub(super) hook: Hook,
    pub(super) to: u32,
    /// How many bytes were read or sent, or less than 1.
    pub(super) answer: i16,
    /// `MSG_*`.
    pub(super) flags: i16,
}

/// Places, in bytes from the beginning of their structures, and numbers of types.
#[derive(Debug)]
pub(super) struct Layout {
    /// A socket has data.
    pub(super) ready: Vec<Stand>,
    /// It was read.
    pub(super) read: Vec<Stand>,
    /// It was written to.
    pub(super) sent: Vec<Stand>,
    /// `sock.sk_napi_id`; a kernel without busy polling has none.
    pub(super) sk_napi_id: Option<i16>,
    /// `sock.__sk_common.skc_num`: the local port.
    pub(super) port: i16,
    /// `sock.__sk_common.skc_portpair`: that and the peer's.
    pub(super) ports: i16,
    /// `sock.__sk_common.skc_net.net` and `net.ns.inum`; a kernel without network namespaces has not got the first.
    pub(super) namespace: Option<[i16; 2]>,
    /// `tcp_sock.copied_seq` and `tcp_sock.rcv_nxt`: what was read, and what came.
    pub(super) sequence: [i16; 2],
    /// The trace point after each poll.
    pub(super) napi_poll: u32,
    /// `napi_struct.napi_id`
    pub(super) napi_id: i16,
    /// `napi_struct.timer.node.expires`
    pub(super) expires: i16,
    /// `napi_struct.state`, and its bit of an instance that somebody owns.
    pub(super) state: i16,
    pub(super) owned: i32,
    /// What tells when an instance was scheduled.
    pub(super) wake: Result<Wake, Absent>,
}

/// Of softirqs, and of instances' threads.
#[derive(Debug)]
pub(super) struct Wake {
    /// The trace point where a softirq is asked for.
    pub(super) raise: u32,
    /// The trace point before one runs.
    pub(super) entry: u32,
    /// The receive vector's number.
    pub(super) net_rx: i32,
    /// The trace point before a thread is woken.
    pub(super) waking: u32,
    /// `task_struct.comm`
    pub(super) comm: i16,
    /// `task_struct.pid`
    pub(super) pid: i16,
}

impl Layout {
    /// With `points` at trace points where there are any, otherwise at functions alone.
    pub(super) fn read(btf: &Btf, points: bool) -> Result<Layout, Absent> {
        let kernel = Kernel(btf);
        let point = |name: &str| {
            let to = btf.find(Kind::Typedef, &format!("btf_trace_{name}")).filter(|_| points)?;
            Some(Stand { hook: Hook::TracePoint, to, answer: 8, flags: 16 })
        };
        let exit = |name: &str| {
            let to = btf.find(Kind::Func, name)?;
            let place = |which: usize| i16::try_from(which * 8).ok();
            // What has no flags has none to be minded.
            let (flags, count) = match btf.parameter(to, "flags") {
                Some((flags, count)) => (place(flags)?, count),
                None => (-1, btf.parameter(to, "sk")?.1),
            };
            Some(Stand { hook: Hook::Exit, to, answer: place(count)?, flags })
        };
        let ready = point("sk_data_ready").or_else(|| {
            let to = btf.find(Kind::Func, "sock_def_readable")?;
            Some(Stand { hook: Hook::Entry, to, answer: -1, flags: -1 })
        });
        let read = match point("sock_recv_length") {
            Some(point) => vec![point],
            None => ["tcp_recvmsg", "udp_recvmsg"].into_iter().filter_map(exit).collect(),
        };
        let sent = match point("sock_send_length") {
            Some(point) => vec![point],
            None => ["tcp_sendmsg", "udp_sendmsg"].into_iter().filter_map(exit).collect(),
        };
        let some = |stands: Vec<Stand>, what: &str| {
            if stands.is_empty() { Err(Absent(what.into())) } else { Ok(stands) }
        };
        Ok(Layout {
            ready: some(ready.into_iter().collect(), "sk_data_ready")?,
            read: some(read, "sock_recv_length")?,
            sent: some(sent, "sock_send_length")?,
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
