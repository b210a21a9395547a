//! Wires between the engine and its client: a cable in memory, virtio rings, or two interfaces at the ends of a
//! real cable; or a TAP device, or AF_XDP on a veth, whose other side is in the client's network namespace. The
//! engine's end has as many queues as requested, if the wire supports several.

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering::Relaxed};
use std::time::{Duration, Instant};

use napkin_client::{Client, Config, Host};
use napkin_kernel::namespace::Namespace;
use napkin_kernel::netlink::{Ethtool, Route, VethConfig};
use napkin_nic::tap::{Tap, TapConfig};
use napkin_nic::vhost::{FrontendConfig, Vhost};
use napkin_nic::xdp::{Xdp, XdpConfig};
use napkin_nic::{EndConfig, PacketQueue, Pool, QueueCounters, cable};

use crate::error::BenchError;
use crate::linux::{failed, pair};
use crate::multi_queue::MultiQueue;
use crate::options::Options;
use crate::server::{Wire, XdpPort};
use crate::serving::PEER;

/// Frames per ring: more than a thousand connections have in flight.
const RING: usize = 4_096;

/// Buffers per queue of an end: a ring, a receive buffer, and the frames in process.
const BUFFERS: usize = 3 * RING;

/// The engine's end of a veth.
const ENGINE: &str = "nk-engine";

/// The ethtool feature for transmit checksum offload.
const CHECKSUM: &str = "tx-checksum-ip-generic";

/// The client's device: the TAP device, or the client's end of the veth.
const DEVICE: &str = "nk-client";

/// The engine's queue and the client's.
type Ends = (Box<dyn PacketQueue>, Box<dyn PacketQueue>);

/// Time limit for the connection of the two sides of virtio rings.
const CONNECTING: Duration = Duration::from_secs(5);

/// The client's end of a wire.
pub(crate) enum End {
    /// A queue, until the client takes it, and the queue's counters.
    Queue(Option<Box<dyn PacketQueue>>, Arc<QueueCounters>),
    /// The client's namespace, and the open file with the device's `tx_dropped`: frames for which the engine's
    /// queue had no room. An open file can be read from outside of the namespace.
    Kernel(Namespace, File),
}

/// Sets up a wire, and returns the engine's queues and the client's end. Behind a TAP device or a veth, the kernel
/// receives on the client's CPU.
///
/// # Errors
/// In particular, if the privileges for a device or a namespace are missing.
pub(crate) fn open_wire(
    wire: &Wire,
    options: &Options,
) -> Result<(Vec<Box<dyn PacketQueue>>, End), BenchError> {
    let pool = |queues: u16| Pool::new(BUFFERS * usize::from(queues));
    let boxed = |queue| Box::new(queue) as Box<dyn PacketQueue>;
    match wire {
        Wire::Cable => {
            let end = |queues: u16| EndConfig { queues, ring: RING, pool: pool(queues) };
            let (near, far) = cable(end(options.queues), end(1))?;
            let far = far.into_iter().next().ok_or(BenchError::Panicked)?;
            let near = near.into_iter().map(|queue| Box::new(queue) as Box<dyn PacketQueue>);
            Ok((near.collect(), End::of(Box::new(far))))
        }
        Wire::Vhost => {
            let (near, mut far) = vhost(options.queues)?;
            let far = match far.len() {
                1 => far.remove(0),
                _ => Box::new(MultiQueue::new(far).map_err(BenchError::Proc)?),
            };
            Ok((near, End::of(far)))
        }
        Wire::Ports { here, there } => {
            one_queue(options)?;
            Ok((vec![port(here)?], End::of(port(there)?)))
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
                let ifindex = veth(&mut route, options.queues)?;
                // Disable transmit checksum offload: a veth passes frames on without filling in checksums.
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

/// Creates a veth in the calling thread's namespace, and returns the index of the engine's end.
fn veth(route: &mut Route, queues: u16) -> Result<u32, BenchError> {
    let veth = VethConfig {
        name: ENGINE,
        peer: DEVICE,
        peer_namespace: None,
        rx_queues: queues.into(),
        tx_queues: queues.into(),
    };
    route.add_veth(&veth).map_err(failed)
}

/// Returns both ends of a wire as queues, for a client that builds its own frames, and the namespace that was
/// created for it, if any. Wires other than virtio rings and interfaces are replaced by a veth with AF_XDP at both
/// ends.
pub(crate) fn queues(
    wire: &Wire,
    options: &Options,
) -> Result<(Ends, Option<Namespace>), BenchError> {
    let made = match wire {
        Wire::Vhost => {
            one_queue(options)?;
            let (near, far) = vhost(1)?;
            let ends = near.into_iter().zip(far).next().ok_or(BenchError::Panicked)?;
            return Ok((ends, None));
        }
        Wire::Ports { here, there } => {
            one_queue(options)?;
            return Ok(((port(here)?, port(there)?), None));
        }
        _ => Namespace::new().map_err(failed)?,
    };
    let open = || -> Result<_, BenchError> {
        one_queue(options)?;
        let mut route = Route::open().map_err(failed)?;
        let near = veth(&mut route, 1)?;
        route.set_up(near).map_err(failed)?;
        let far = route.link(DEVICE).map_err(failed)?.ifindex;
        route.set_up(far).map_err(failed)?;
        let end = |name: &str| port(&XdpPort { interface: name.to_owned(), queue: 0 });
        Ok((end(ENGINE)?, end(DEVICE)?))
    };
    let ends = made.run(open).map_err(failed)??;
    Ok((ends, Some(made)))
}

/// Refuses several queues on a wire that has one.
fn one_queue(options: &Options) -> Result<(), BenchError> {
    match options.queues {
        1 => Ok(()),
        more => Err(BenchError::Usage(format!(
            "a client with a stack of its own has one queue, and so has the engine over this wire, not {more}: \
             leave --queues out"
        ))),
    }
}

/// Opens a queue of an interface, for all that arrives there.
fn port(port: &XdpPort) -> Result<Box<dyn PacketQueue>, BenchError> {
    // A bench uses its own MAC addresses, not the card's.
    let config = XdpConfig {
        queues: vec![port.queue],
        promiscuous: true,
        ..XdpConfig::new(&port.interface)
    };
    let pool = Pool::new(config.buffers_of_a_queue() + BUFFERS);
    let queue = Xdp::open(&config, &pool)?.queues.into_iter().next();
    queue.map(|queue| Box::new(queue) as Box<dyn PacketQueue>).ok_or(BenchError::Panicked)
}

/// The queues of a device.
type Queues = Vec<Box<dyn PacketQueue>>;

/// Creates a vhost-user backend and its driver, and waits until they are connected.
fn vhost(queues: u16) -> Result<(Queues, Queues), BenchError> {
    static NEXT: AtomicU32 = AtomicU32::new(0);
    let name = format!("napkin-bench-{}-{}", std::process::id(), NEXT.fetch_add(1, Relaxed));
    let path = std::env::temp_dir().join(name);
    let pool = || Pool::new(BUFFERS * usize::from(queues));
    let backend = Vhost::backend(&path, queues, &pool())?;
    let frontend = FrontendConfig { queues, ..FrontendConfig::new(&path) };
    let frontend = Vhost::frontend(&frontend, &pool())?;
    let begun = Instant::now();
    let rings = 2 * u64::from(queues);
    let connected = |device: &Vhost| device.peers.rings.load(Relaxed) == rings;
    while !(connected(&backend) && connected(&frontend)) {
        if begun.elapsed() > CONNECTING {
            let why =
                backend.peers.take_problem().or(frontend.peers.take_problem()).unwrap_or_default();
            return Err(BenchError::Linux(format!("virtio rings were not set up in 5 s: {why}")));
        }
        std::thread::sleep(Duration::from_millis(1));
    }
    let all = |device: Vhost| {
        let boxed = |queue| Box::new(queue) as Box<dyn PacketQueue>;
        device.queues.into_iter().map(boxed).collect()
    };
    Ok((all(backend), all(frontend)))
}

/// Sets up the client's device in the calling thread's namespace, received on the client's CPU, and opens its
/// counter of dropped frames.
fn client_end(options: &Options) -> Result<File, BenchError> {
    let mut route = Route::open().map_err(failed)?;
    let ifindex = route.link(DEVICE).map_err(failed)?.ifindex;
    route.add_address(ifindex, PEER.ip, PEER.prefix).map_err(failed)?;
    route.set_up(ifindex).map_err(failed)?;
    pair::receive_on(DEVICE, &[options.placement().other])?;
    File::open(format!("/sys/class/net/{DEVICE}/statistics/tx_dropped")).map_err(failed)
}

impl End {
    fn of(queue: Box<dyn PacketQueue>) -> End {
        let counters = queue.counters();
        End::Queue(Some(queue), counters)
    }

    /// Starts the client at this end.
    ///
    /// # Errors
    /// Any error of the client.
    pub(crate) fn client(&mut self, config: &Config) -> Result<Client, BenchError> {
        match self {
            End::Queue(queue, _) => {
                let queue = queue.take().ok_or(BenchError::Panicked)?;
                Ok(Client::embedded(
                    config,
                    Host { queue, addresses: PEER.into(), first_port: None },
                )?)
            }
            End::Kernel(namespace, _) => {
                Ok(namespace.run(|| Client::start(config)).map_err(failed)??)
            }
        }
    }

    /// Runs a function in the client's namespace, if it has one.
    ///
    /// # Errors
    /// Any error of the function, and of entering the namespace.
    pub(crate) fn run<T: Send>(
        &self,
        act: impl FnOnce() -> Result<T, BenchError> + Send,
    ) -> Result<T, BenchError> {
        match self {
            End::Queue(..) => act(),
            End::Kernel(namespace, _) => namespace.run(act).map_err(failed)?,
        }
    }

    /// Returns the number of the client's frames that the wire dropped for lack of room. TCP retransmits them,
    /// after a long timeout.
    pub(crate) fn refused(&self) -> u64 {
        match self {
            End::Queue(_, counters) => counters.read().tx_dropped,
            End::Kernel(_, dropped) => {
                let mut bytes = [0; 32];
                let read = dropped.read_at(&mut bytes, 0).unwrap_or(0);
                String::from_utf8_lossy(&bytes[..read]).trim().parse().unwrap_or(0)
            }
        }
    }
}
