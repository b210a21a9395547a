//! Two network namespaces and a veth between them: the server's end and the client's.
//!
//! A veth uses NAPI only with GRO on, and a large segment from the sender's end bypasses it. So both ends have GRO
//! on, and TSO and GSO off. A veth has no interrupts; its softirq runs on the sender's CPU. The namespaces have no
//! names, so they vanish with the last thread or program in them, even after `kill -9`.

use std::net::Ipv4Addr;
use std::os::fd::AsFd;

use napkin_kernel::namespace::Namespace;
use napkin_kernel::netlink::{Ethtool, GRO, GSO, Route, TSO, VethConfig};
use napkin_kernel::sysfs;

use super::failed;
use crate::error::BenchError;

/// The server's device.
pub const DEVICE: &str = "nk-server";

/// The client's device.
pub const CLIENT_DEVICE: &str = "nk-client";

/// The server's address.
pub const SERVER: Ipv4Addr = Ipv4Addr::new(10, 77, 1, 1);

/// The client's address.
pub const CLIENT: Ipv4Addr = Ipv4Addr::new(10, 77, 1, 2);

/// Prefix length of the network.
const PREFIX: u8 = 24;

/// The two namespaces.
#[derive(Debug)]
pub struct Pair {
    /// The namespace of the server, in which the policy is set.
    pub server: Namespace,
    /// The namespace of the load generator.
    pub client: Namespace,
}

impl Pair {
    /// Creates the namespaces and a veth with one queue, and brings both ends up.
    ///
    /// # Errors
    /// If `CAP_SYS_ADMIN` or `CAP_NET_ADMIN` is missing, or if the kernel has no veth.
    pub fn new() -> Result<Pair, BenchError> {
        let server = Namespace::new().map_err(failed)?;
        let client = Namespace::new().map_err(failed)?;
        let veth = VethConfig {
            name: DEVICE,
            peer: CLIENT_DEVICE,
            peer_namespace: Some(client.as_fd()),
            rx_queues: 1,
            tx_queues: 1,
        };
        let made = server.run(|| -> Result<(), BenchError> {
            Route::open().and_then(|mut route| route.add_veth(&veth)).map_err(failed)?;
            set_up(DEVICE, SERVER)
        });
        made.map_err(failed)??;
        client.run(|| set_up(CLIENT_DEVICE, CLIENT)).map_err(failed)??;
        Ok(Pair { server, client })
    }
}

/// Gives an end its address and its offloads, and brings it up.
fn set_up(ifname: &str, address: Ipv4Addr) -> Result<(), BenchError> {
    let mut route = Route::open().map_err(failed)?;
    let link = route.link(ifname).map_err(failed)?;
    let on = GRO.iter().map(|name| (*name, true));
    let off = TSO.iter().chain(GSO).map(|name| (*name, false));
    let offloads: Vec<_> = on.chain(off).collect();
    let mut ethtool = Ethtool::open().map_err(failed)?;
    ethtool.set_features(ifname, &offloads).map_err(failed)?;
    route.add_address(link.ifindex, address, PREFIX).map_err(failed)?;
    route.set_up(link.ifindex).map_err(failed)
}

/// Enables RPS: distributes the packets that a device of the calling thread's namespace receives over these CPUs,
/// by flow, whichever CPU they arrive on.
///
/// # Errors
/// If the kernel has no RPS (`CONFIG_RPS`), or refuses the mask.
pub fn receive_on(ifname: &str, cpus: &[usize]) -> Result<(), BenchError> {
    let refused = |error| failed(format!("{ifname} cannot receive on a CPU of its own: {error}"));
    sysfs::set_rps_cpus(ifname, cpus).map_err(refused)
}
