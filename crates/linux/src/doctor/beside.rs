//! Programs that a device's instances do not know of: a socket learns its instance's id from the
//! packets that come in for it, and a program may have none that did. Without them, whoever asks about
//! a device would hear that nobody uses it.

use std::collections::{BTreeMap, BTreeSet};

use napkin_policy::EpollPolicy;

use napkin_kernel::namespace::Namespace;
use napkin_kernel::netlink::Route;
use napkin_kernel::process::{self, Kind, Owners, Params, Process, ProcessError, Socket};

/// Descriptors of each process that are looked at.
const DESCRIPTORS: usize = 4_096;

/// A process none of whose sockets knows an instance.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Beside {
    /// The devices that have the addresses of its connections, by ifindex.
    devices: BTreeSet<u32>,
    /// Whether one of its epoll contexts busy polls, as `napkin run` and `attach` set them.
    polls: bool,
}

impl Beside {
    /// Whether a device may be its. One that has no connection yet may get it over any.
    pub(super) fn may_be_on(&self, ifindex: u32) -> bool {
        self.devices.contains(&ifindex) || (self.polls && self.devices.is_empty())
    }
}

/// Those in this network namespace, by process id.
pub(super) fn find(owners: &Owners) -> BTreeMap<i32, Beside> {
    let owning: BTreeSet<i32> =
        owners.by_napi_id.values().flatten().map(|owner| owner.pid).collect();
    let addresses = Route::open().and_then(|mut route| route.addresses()).unwrap_or_default();
    let addresses: BTreeMap<_, _> = addresses.iter().map(|it| (it.ip, it.ifindex)).collect();
    let own = Namespace::identity().ok().map(|it| it.inode);
    let of = |pid: i32| -> Result<Beside, ProcessError> {
        let process = Process::open(pid)?;
        if Some(process.network_namespace()?) != own {
            return Ok(Beside::default());
        }
        let found = process.descriptors(DESCRIPTORS)?;
        let mut beside = Beside::default();
        for descriptor in found.epolls() {
            let Some(taken) = process.take(&descriptor)? else { continue };
            let params = Params::get(&taken).ok().flatten();
            beside.polls |= params.is_some_and(|it| EpollPolicy::from(it).enabled());
        }
        for descriptor in found.sockets() {
            let Kind::Socket(_) = descriptor.kind else { continue };
            let Some(taken) = process.take(&descriptor)? else { continue };
            let Ok(Some(socket)) = Socket::of(&taken) else { continue };
            let local = socket.local.filter(|_| socket.peer.is_some());
            let device = local.and_then(|it| addresses.get(&it.ip().to_canonical()));
            beside.devices.extend(device);
        }
        Ok(beside)
    };
    let all = process::all().into_iter().filter(|pid| !owning.contains(pid));
    let looked = all.filter_map(|pid| Some((pid, of(pid).ok()?)));
    looked.filter(|(_, it)| it.polls || !it.devices.is_empty()).collect()
}
