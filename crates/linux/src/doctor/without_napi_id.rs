//! Programs that may use a device although none of their sockets has the NAPI ID of one of its instances. A
//! socket learns the ID from the packets that come in for it, and a program may have no socket that received
//! one. Without this search, a report on the device would say that no program uses it.

use std::collections::{BTreeMap, BTreeSet};

use napkin_policy::EpollPolicy;

use napkin_kernel::namespace::Namespace;
use napkin_kernel::netlink::Route;
use napkin_kernel::process::{self, Kind, Owners, Params, Process, ProcessError, Socket};

/// The maximum number of descriptors read from each process.
const DESCRIPTORS: usize = 4_096;

/// A process none of whose sockets has a NAPI ID.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct WithoutNapiId {
    /// The ifindexes of the devices that have the local addresses of its connections.
    devices: BTreeSet<u32>,
    /// Whether one of its epoll contexts busy polls, as `napkin run` and `attach` set them.
    polls: bool,
}

impl WithoutNapiId {
    /// Whether it may use a device. A busy polling process without connections may get one over any device.
    pub(super) fn may_use(&self, ifindex: u32) -> bool {
        self.devices.contains(&ifindex) || (self.polls && self.devices.is_empty())
    }
}

/// Such processes, by process ID.
pub(super) type Candidates = BTreeMap<i32, WithoutNapiId>;

/// Finds such processes in this network namespace.
pub(super) fn find(owners: &Owners) -> Candidates {
    let owning: BTreeSet<i32> =
        owners.by_napi_id.values().flatten().map(|owner| owner.pid).collect();
    let addresses = Route::open().and_then(|mut route| route.addresses()).unwrap_or_default();
    let addresses: BTreeMap<_, _> = addresses.iter().map(|it| (it.ip, it.ifindex)).collect();
    let own = Namespace::identity().ok().map(|it| it.inode);
    let of = |pid: i32| -> Result<WithoutNapiId, ProcessError> {
        let process = Process::open(pid)?;
        if Some(process.network_namespace()?) != own {
            return Ok(WithoutNapiId::default());
        }
        let found = process.descriptors(DESCRIPTORS)?;
        let mut candidate = WithoutNapiId::default();
        for descriptor in found.epolls() {
            let Some(taken) = process.take(&descriptor)? else { continue };
            let params = Params::get(&taken).ok().flatten();
            candidate.polls |= params.is_some_and(|it| EpollPolicy::from(it).enabled());
        }
        for descriptor in found.sockets() {
            let Kind::Socket(_) = descriptor.kind else { continue };
            let Some(taken) = process.take(&descriptor)? else { continue };
            let Ok(Some(socket)) = Socket::of(&taken) else { continue };
            let local = socket.local.filter(|_| socket.peer.is_some());
            let device = local.and_then(|it| addresses.get(&it.ip().to_canonical()));
            candidate.devices.extend(device);
        }
        Ok(candidate)
    };
    let all = process::all().into_iter().filter(|pid| !owning.contains(pid));
    let looked = all.filter_map(|pid| Some((pid, of(pid).ok()?)));
    looked.filter(|(_, it)| it.polls || !it.devices.is_empty()).collect()
}
