//! A pair of namespaces with a policy in force on the server's device, and its polls counted.

use std::fs::File;
use std::os::unix::fs::FileExt;

use napkin_kernel::Settings;
use napkin_kernel::count::{self, Counter, Key};
use napkin_kernel::netlink::{Netdev, Route};
use napkin_kernel::probe::Kernel;
use napkin_linux::apply::in_order;
use napkin_linux::support::{self, Scope};
use napkin_os::sched;
use napkin_policy::Policy;

use super::failed;
use super::pair::{DEVICE, Pair};
use crate::error::BenchError;
use crate::options::Placement;

/// The testbed of one run.
#[derive(Debug)]
pub struct Testbed {
    /// Server and client, joined by a veth.
    pub pair: Pair,
    /// Counts polls, from the first one on.
    pub counter: Counter,
    /// The key of the server's device in the counter.
    pub key: Key,
    /// The thread of the instance, if the policy gives it one.
    pub thread: Option<u32>,
    /// The device's `rx_packets` in sysfs. The open file can be read from outside of the namespace.
    received: File,
}

impl Testbed {
    /// Creates the namespaces and configures the server's device for the policy. A thread of its instance is pinned
    /// to the serving CPU.
    ///
    /// # Errors
    /// [`BenchError::Unsupported`] if this kernel cannot do what the policy asks for; otherwise any error of the
    /// namespaces, the settings or the counter.
    pub fn new(policy: &Policy, placement: Placement) -> Result<Testbed, BenchError> {
        support::check(policy, &Kernel::probe(), Scope::Device)
            .map_err(|refusal| BenchError::Unsupported(refusal.to_string()))?;
        let pair = Pair::new()?;
        let netns = pair.server.inode().map_err(failed)?;
        let netns = u32::try_from(netns).map_err(failed)?;
        let counter = Counter::start(&count::Options::default()).map_err(failed)?;
        let set = || -> Result<(Key, Option<u32>, File), BenchError> {
            let ifindex = Route::open().and_then(|mut it| it.link(DEVICE)).map_err(failed)?.ifindex;
            let mut netdev = Netdev::open().map_err(failed)?;
            let napis = netdev.napis(Some(ifindex)).map_err(failed)?;
            let [napi] = napis.as_slice() else {
                let count = napis.len();
                return Err(BenchError::Linux(format!("{DEVICE} has {count} NAPI instances")));
            };
            for (setting, value) in in_order(&Settings::of(&policy.instance)) {
                if napi.settings.get(setting) != Some(value) {
                    netdev.set_napi(napi.id, setting, value).map_err(failed)?;
                }
            }
            let thread = netdev.napi(napi.id).map_err(failed)?.pid;
            if let Some(pid) = thread {
                sched::pin(Some(pid), &[placement.queue])?;
            }
            let received = format!("/sys/class/net/{DEVICE}/statistics/rx_packets");
            let received = File::open(received).map_err(failed)?;
            let thread = thread.and_then(|pid| u32::try_from(pid).ok());
            Ok((Key { netns, ifindex, napi_id: napi.id }, thread, received))
        };
        let (key, thread, received) = pair.server.run(set).map_err(failed)??;
        Ok(Testbed { pair, counter, key, thread, received })
    }

    /// Returns the packets that the device has received since its creation.
    ///
    /// # Errors
    /// If its file cannot be read.
    pub fn received(&self) -> Result<u64, BenchError> {
        let mut bytes = [0; 32];
        let read = self.received.read_at(&mut bytes, 0).map_err(failed)?;
        let text = String::from_utf8_lossy(&bytes[..read]);
        text.trim().parse().map_err(|_| failed(format!("rx_packets of {DEVICE} is '{text}'")))
    }
}
