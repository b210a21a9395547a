//! What is between the engine and its client: a cable in memory, or a TAP device or AF_XDP on a
//! veth, whose other side is in a network namespace of the client's own. The engine's end has as many queues as are asked for.

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::sync::Arc;

use napkin_client::{Client, Config, Host};
use napkin_kernel::namespace::Namespace;
use napkin_kernel::netlink::{Ethtool, Route, VethConfig};
use napkin_nic::tap::{Tap, TapConfig};
use napkin_nic::xdp::{Xdp, XdpConfig};
use napkin_nic::{EndConfig, PacketQueue, Pool, QueueCounters, cable};

use crate::error::BenchError;
use crate::linux::{failed, pair};
use crate::options::Options;
use crate::server::Wire;
use crate::serving::PEER;

/// Frames of each ring: more than a thousand connections have on their way.
const RING: usize = 4_096;

/// Buffers for each queue of an end: a ring, a receive buffer, and what is in hand.
const BUFFERS: usize = 3 * RING;

/// The engine's end of a veth.
const ENGINE: &str = "nk-engine";

/// The feature by which a device fills in checksums.
const CHECKSUM: &str = "tx-checksum-ip-generic";

/// The operating system's side of the TAP device, or of the veth.
const DEVICE: &str = "nk-client";

/// The client's end.
pub(crate) enum End {
    /// A queue, until the client has it; and what it counts.
    Cable(Option<Box<dyn PacketQueue>>, Arc<QueueCounters>),
    /// The namespace, and the device's count of frames that the engine's queue had no room for: open, so
    /// that it can be read from here.
    Kernel(Namespace, File),
}

/// Lays a wire: the engine's queues, and the client's end. Behind a TAP device the kernel receives on the
/// client's CPU.
///
/// # Errors
/// Without the rights to a TAP device and a namespace.
pub(crate) fn lay(
    wire: Wire,
    options: &Options,
) -> Result<(Vec<Box<dyn PacketQueue>>, End), BenchError> {
    let pool = |queues: u16| Pool::new(BUFFERS * usize::from(queues));
    let boxed = |queue| Box::new(queue) as Box<dyn PacketQueue>;
    match wire {
        Wire::Cable => {
            let end = |queues: u16| EndConfig { queues, ring: RING, pool: pool(queues) };
            let (here, there) = cable(end(options.queues), end(1))?;
            let there = there.into_iter().next().ok_or(BenchError::Panicked)?;
            let counters = there.counters();
            let here = here.into_iter().map(|queue| Box::new(queue) as Box<dyn PacketQueue>);
            Ok((here.collect(), End::Cable(Some(Box::new(there)), counters)))
        }
        Wire::Tap => {
            let config = TapConfig {
                name: DEVICE.to_owned(),
                queues: options.queues,
                up: false,
                ..TapConfig::default()
            };
            let namespace = Namespace::new().map_err(failed)?;
            let open = || -> Result<_, BenchError> {
                let queues = Tap::open(&config, &pool(options.queues))?.queues;
                Ok((queues.into_iter().map(boxed).collect(), client_end(options)?))
            };
            let (queues, dropped) = namespace.run(open).map_err(failed)??;
            Ok((queues, End::Kernel(namespace, dropped)))
        }
        Wire::Xdp => {
            let namespace = Namespace::new().map_err(failed)?;
            let open = || -> Result<_, BenchError> {
                let mut route = Route::open().map_err(failed)?;
                let veth = VethConfig {
                    name: ENGINE,
                    peer: DEVICE,
                    peer_namespace: None,
                    rx_queues: options.queues.into(),
                    tx_queues: options.queues.into(),
                };
                let ifindex = route.add_veth(&veth).map_err(failed)?;
                // Nobody behind a veth fills in a checksum that was left to the card.
                let mut ethtool = Ethtool::open().map_err(failed)?;
                ethtool.set_features(DEVICE, &[(CHECKSUM, false)]).map_err(failed)?;
                route.set_up(ifindex).map_err(failed)?;
                let dropped = client_end(options)?;
                let config = XdpConfig {
                    queues: (0..options.queues.into()).collect(),
                    ..XdpConfig::new(ENGINE)
                };
                let queues = usize::from(options.queues);
                let pool = Pool::new(queues * (config.buffers_of_a_queue() + BUFFERS));
                let queues = Xdp::open(&config, &pool)?.queues;
                let boxed = |queue| Box::new(queue) as Box<dyn PacketQueue>;
                Ok((queues.into_iter().map(boxed).collect(), dropped))
            };
            let (queues, dropped) = namespace.run(open).map_err(failed)??;
            Ok((queues, End::Kernel(namespace, dropped)))
        }
    }
}

/// Sets up the client's device, in its namespace, where it is received on the client's CPU: its count of
/// frames that were not taken.
fn client_end(options: &Options) -> Result<File, BenchError> {
    let mut route = Route::open().map_err(failed)?;
    let ifindex = route.link(DEVICE).map_err(failed)?.ifindex;
    route.add_address(ifindex, PEER.ip, PEER.prefix).map_err(failed)?;
    route.set_up(ifindex).map_err(failed)?;
    pair::receive_on(DEVICE, &[options.placement().other])?;
    File::open(format!("/sys/class/net/{DEVICE}/statistics/tx_dropped")).map_err(failed)
}

impl End {
    /// Starts the client here.
    ///
    /// # Errors
    /// Those of the client.
    pub(crate) fn client(&mut self, config: &Config) -> Result<Client, BenchError> {
        match self {
            End::Cable(queue, _) => {
                let queue = queue.take().ok_or(BenchError::Panicked)?;
                Ok(Client::embedded(config, Host { queue, address: PEER, first_port: None })?)
            }
            End::Kernel(namespace, _) => {
                Ok(namespace.run(|| Client::start(config)).map_err(failed)??)
            }
        }
    }

    /// The client's frames that the wire did not take, for want of room: they are sent again, much later.
    pub(crate) fn refused(&self) -> u64 {
        match self {
            End::Cable(_, counters) => counters.read().tx_dropped,
            End::Kernel(_, dropped) => {
                let mut bytes = [0; 32];
                let read = dropped.read_at(&mut bytes, 0).unwrap_or(0);
                String::from_utf8_lossy(&bytes[..read]).trim().parse().unwrap_or(0)
            }
        }
    }
}
