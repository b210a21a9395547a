//! A running server: devices, engine, applications and control socket, started in this order and stopped in
//! reverse. On the operating system's sockets there are only applications.

use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::thread::JoinHandle;

use napkin_core::CpuId;
use napkin_engine::control::{Control, default_path};
use napkin_engine::{Contexts, DeviceConfig, Engine, EngineConfig, Placement, sched};
use napkin_linux::apply::Temporary;
use napkin_nic::capture::Capture;
use napkin_nic::vhost::Peers;
use napkin_nic::xdp::{BusyPolling, BusyVerdict};
use napkin_policy::Policy;
use napkin_service::memcached::MemcachedUdp;
use napkin_stack::UdpSocket;

use super::application::{self, Progress, UdpService};
use super::config::{Listen, ServeConfig, ServiceKind};
use super::device;
use super::error::{ServeError, both};
use super::open_device::OpenDevice;
use super::sockets::{self, Sockets};
use super::status::{Meter, Status, Totals};
use super::streams::Streams;

/// A running server. Dropping it stops it.
#[derive(Debug, Default)]
pub struct Server {
    // In drop order: `control` holds a handle of the engine.
    control: Option<Control>,
    engine: Option<Arc<Engine>>,
    sockets: Option<Sockets>,
    threads: Vec<(String, JoinHandle<()>)>,
    meter: Meter,
    capture: Option<(PathBuf, Capture)>,
    notes: Vec<String>,
    /// A warning of the service; the engine has its own.
    warning: Option<String>,
    /// Devices that were removed, to report each one once.
    gone: Vec<String>,
    /// The kernel's settings below devices, which are restored on drop.
    deferrals: Vec<Temporary>,
    /// vhost-user peers, with the names of their devices.
    peers: Vec<(String, Arc<Peers>)>,
    /// Findings about the kernel's busy polling, with the names of their devices; removed once reported.
    busy: Vec<(String, Vec<BusyVerdict>)>,
}

/// A device's policy, and the CPUs of the engine that its queues are placed on.
struct Placed {
    /// The name as given; the operating system may replace a number in it.
    name: String,
    policy: Policy,
    first: usize,
    queues: usize,
}

impl Server {
    /// Starts a server.
    ///
    /// # Errors
    /// Anything that is invalid or unavailable; whatever was set up by then is undone.
    pub fn start(config: &ServeConfig) -> Result<Server, ServeError> {
        config.check()?;
        let cpus = if config.cpus.is_empty() { sched::usable_cpus() } else { config.cpus.clone() };
        if let Some(listen) = config.listen {
            return Server::listen(config, listen, &cpus);
        }
        let mut next = 0;
        let placed = config.devices.iter().enumerate().map(|(place, device)| {
            let (first, queues) = (next, usize::from(config.queues_of(device)));
            next += queues;
            Placed { name: device.name(place), policy: config.policy_of(device), first, queues }
        });
        let placed: Vec<Placed> = placed.collect();
        check_conflicts(&placed, &cpus)?;

        let capture = config.capture.as_ref().map(|path| match Capture::create(path) {
            Ok(capture) => Ok((path.clone(), capture)),
            Err(error) => Err(ServeError::Capture { path: path.clone(), error }),
        });
        let capture = capture.transpose()?;
        let streams = Streams::of(&config.what)?;
        let mut devices = Vec::new();
        for (place, device) in config.devices.iter().enumerate() {
            // `check` has ensured that there is one for every device.
            let networks: Vec<_> =
                config.networks.iter().filter_map(|network| network.later(place)).collect();
            let capture = capture.as_ref().map(|(_, capture)| capture);
            devices.push(device::make(config, device, &networks, place, capture)?);
        }
        let faults: Vec<_> =
            devices.iter_mut().flat_map(|it| std::mem::take(&mut it.faults)).collect();
        // These transmitters keep the device open until the settings are restored, even if the queues are closed:
        // without the XDP program, the driver may delete its NAPI instances.
        let open: Vec<_> = devices
            .iter()
            .filter(|it| it.deferral.is_some())
            .flat_map(|it| it.queues.iter().map(|queue| queue.transmitter()))
            .collect();
        // If anything fails from here on, dropping these restores the settings.
        let deferrals = devices.iter_mut().filter_map(|it| it.deferral.take()).collect();
        let peers = devices.iter().filter_map(|it| Some((it.name.clone(), it.peers.clone()?)));
        let peers = peers.collect();
        let busy = devices.iter_mut().map(|it| (it.name.clone(), std::mem::take(&mut it.busy)));
        let busy = busy.collect();
        let names: Vec<String> = devices.iter().map(|device| device.name.clone()).collect();
        let mut notes: Vec<String> = devices.iter().map(note).collect();

        let engine = Engine::start(engine_config(&cpus, devices, &placed))?;
        for device in &placed {
            for queue in 0..device.queues {
                let cpu = CpuId((device.cpu_of(queue, cpus.len())) as u16);
                engine.set_cpu_policy_of(cpu, device.policy.cpu);
            }
        }
        let engine = Arc::new(engine);
        // The server has the only handle, so that the engine stops with it if anything fails.
        let mut server = Server::default();
        server.engine = Some(engine);
        server.capture = capture;
        server.peers = peers;
        server.busy = busy;
        server.deferrals = deferrals;
        // From here on, the server restores the settings before it drops the engine.
        drop(open);
        server.warning = streams.as_ref().and_then(Streams::warning).map(str::to_owned);
        let Some(engine) = &server.engine else { return Ok(server) };
        let mut progress = Vec::new();
        for (device, name) in placed.iter().zip(&names) {
            // CPUs after those of the queues, as far as there are any.
            let application_cpu =
                |place| CpuId(device.cpu_of(device.queues + place, cpus.len()) as u16);
            let datagrams: Option<Box<dyn FnOnce(UdpSocket) -> UdpService<UdpSocket>>> =
                match (&config.what, &streams) {
                    (ServiceKind::Datagrams(what), _) => {
                        Some(Box::new(|socket| UdpService::of(*what, socket)))
                    }
                    (_, Some(Streams::Memcached(service))) if config.udp => {
                        let service = service.clone();
                        Some(Box::new(|socket| {
                            UdpService::Memcached(MemcachedUdp::new(socket, service))
                        }))
                    }
                    _ => None,
                };
            if let Some(service) = datagrams {
                let own = Arc::new(Progress::default());
                let service = (service, config.port);
                let policy = &device.policy;
                let threads =
                    application::start(engine, name, service, policy, application_cpu(0), &own)?;
                server.threads.extend(threads.into_iter().map(|it| (name.clone(), it)));
                progress.push(own);
            }
            if let Some(streams) = &streams {
                let cpus: Vec<CpuId> = (0..device.queues).map(application_cpu).collect();
                let started = streams.start(engine, name, config.port, &device.policy, &cpus)?;
                for (thread, own) in started {
                    server.threads.push((name.clone(), thread));
                    progress.push(own);
                }
            }
        }
        let path = match &config.control {
            Some(path) => path.clone(),
            None => default_path(names.first().map_or("napkin", String::as_str))?,
        };
        server.control = Some(Control::start(Arc::clone(engine), &path)?);
        notes.push(format!("control: {}", path.display()));
        server.notes = notes;
        server.meter = Meter::new(engine, progress, faults);
        // Last, because it overwrites an existing file: nothing can fail after it. Captured frames are buffered
        // until then.
        if let Some((path, capture)) = &server.capture {
            let refused = |error| ServeError::Capture { path: path.clone(), error };
            capture.begin().map_err(refused)?;
        }
        Ok(server)
    }

    /// Starts the threads that serve on the operating system's sockets.
    fn listen(config: &ServeConfig, listen: Listen, cpus: &[usize]) -> Result<Server, ServeError> {
        check_cpus(&config.cpus)?;
        let streams = Streams::of(&config.what)?;
        let (sockets, started) = sockets::start(config, listen, cpus, streams.as_ref())?;
        let mut server = Server::default();
        server.sockets = Some(sockets);
        server.warning = streams.as_ref().and_then(Streams::warning).map(str::to_owned);
        let mut progress = Vec::new();
        for (name, (thread, own)) in started {
            server.threads.push((name, thread));
            progress.push(own);
        }
        let protocols = match (streams.is_some(), config.udp) {
            (true, true) => "TCP and UDP",
            (true, false) => "TCP",
            (false, _) => "UDP",
        };
        let Listen { address, threads } = listen;
        let address = SocketAddr::new(address, config.port);
        let shared = if threads == 1 { "" } else { "s, which share the port" };
        server.notes.push(format!(
            "listening on {address} ({protocols}), the operating system's own sockets: {threads} \
             thread{shared}"
        ));
        if address.ip().is_unspecified() && protocols != "TCP" {
            server.notes.push(
                "an answer over UDP leaves from the address that its route picks: where this host has several, listen at \
                 one"
                .into(),
            );
        }
        server.meter = Meter::of_sockets(progress, cpus);
        Ok(server)
    }

    /// Information for the user, in sentences: the devices, and the control socket.
    pub fn notes(&self) -> &[String] {
        &self.notes
    }

    /// Warnings, in sentences: what could not be provided as requested, and other problems.
    pub fn warnings(&self) -> Vec<String> {
        let engine = self.engine.as_ref().map(|engine| engine.warnings()).unwrap_or_default();
        engine.into_iter().chain(self.warning.clone()).collect()
    }

    /// Path of the control socket.
    pub fn control(&self) -> Option<&Path> {
        self.control.as_ref().map(Control::path)
    }

    /// What was counted since the last call.
    pub fn status(&mut self) -> Status {
        self.meter.status(self.engine.as_deref())
    }

    /// Checks that everything still runs; returns the devices that were removed since the last call.
    ///
    /// # Errors
    /// A thread has ended, or no device is left.
    pub(super) fn check(&mut self) -> Result<Vec<String>, ServeError> {
        if let Some((device, _)) = self.threads.iter().find(|(_, thread)| thread.is_finished()) {
            return Err(ServeError::Ended(device.clone()));
        }
        let Some(engine) = &self.engine else { return Ok(Vec::new()) };
        let known = self.gone.len();
        for napi in engine.napis().into_iter().filter(|napi| napi.gone) {
            if !self.gone.contains(&napi.device) {
                self.gone.push(napi.device);
            }
        }
        let news = self.gone.get(known..).unwrap_or_default();
        if self.gone.len() >= engine.devices().len() {
            return Err(ServeError::Gone(news.join(", ")));
        }
        Ok(news.to_vec())
    }

    /// Problems with virtio peers, drivers that ignore busy polling, and the end of the capture, each reported
    /// once.
    pub(super) fn troubles(&mut self) -> Vec<String> {
        let ignored = |(_, queues): &mut (String, Vec<BusyVerdict>)| {
            queues.iter().any(|queue| queue.get() == BusyPolling::Ignored)
        };
        let ignored = self.busy.extract_if(.., ignored).map(|(name, _)| {
            let what = BusyPolling::Ignored;
            format!("device {name}: busy polling: {what}; a policy without it costs less then")
        });
        let troubles =
            self.peers.iter().filter_map(|(name, peers)| Some((name, peers.take_problem()?)));
        let troubles = troubles.map(|(name, trouble)| format!("device {name}: {trouble}"));
        let ended = self.capture.iter().filter_map(|(path, capture)| {
            let why = capture.failed()?;
            Some(format!("the capture has ended: cannot write {}: {why}", path.display()))
        });
        troubles.chain(ended).chain(ignored).collect()
    }

    /// Stops the server: all threads, devices and sockets are closed. Returns the totals, and an error if the
    /// capture could not be written, or the kernel's settings below a device could not be restored.
    pub fn stop(mut self) -> (Totals, Result<(), ServeError>) {
        let (engine, missed, stopped) = self.shut_down();
        // Read after the threads have ended: a thread counts answers after it has sent them.
        let mut totals = self.meter.ended(engine);
        if missed > 0 {
            totals.drops.insert("capture_missed", missed);
        }
        (totals, stopped)
    }

    /// Stops everything. Returns the engine's totals, the number of frames missing from the capture, and any error.
    fn shut_down(&mut self) -> (Totals, u64, Result<(), ServeError>) {
        self.control = None;
        // While the NAPI instances exist: the driver may delete them when the device's program is detached.
        let mut left = Vec::new();
        for deferral in self.deferrals.drain(..) {
            let name = deferral.applied().plan.ifname.clone();
            if !deferral.restore().is_ok_and(|restored| restored.is_complete()) {
                left.push(name);
            }
        }
        // The engine delivers until it has stopped, so read its counters as late as possible.
        let engine = self.engine.as_deref().map(Totals::of_engine).unwrap_or_default();
        // Drops the last handle: the engine stops, and every wait of the applications returns.
        self.engine = None;
        self.sockets = None;
        for (_, thread) in self.threads.drain(..) {
            // The message of a panic has been printed already.
            let _ = thread.join();
        }
        let left = if left.is_empty() { Ok(()) } else { Err(ServeError::Left(left.join(", "))) };
        let Some((path, capture)) = self.capture.take() else { return (engine, 0, left) };
        let missed = capture.missed();
        let written = capture.finish().map_err(|error| ServeError::Capture { path, error });
        (engine, missed, both(left, written.map(|_| ())))
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        // Callers that want the totals or the errors use `stop`.
        let _ = self.shut_down();
    }
}

impl Placed {
    /// The engine's CPU index for a queue.
    fn cpu_of(&self, queue: usize, cpus: usize) -> usize {
        (self.first + queue) % cpus.max(1)
    }
}

/// Refuses CPUs that threads cannot be pinned to, by trying it in a short-lived thread. (The affinity of this
/// thread may be narrower than what is allowed.)
fn check_cpus(cpus: &[usize]) -> Result<(), ServeError> {
    let cpus = cpus.to_vec();
    let tried = std::thread::Builder::new().spawn(move || sched::pin(None, &cpus));
    // The thread does not panic.
    Ok(tried.map_err(ServeError::Thread)?.join().unwrap_or(Ok(()))?)
}

/// Refuses two policies that conflict on a CPU that their queues share.
fn check_conflicts(placed: &[Placed], cpus: &[usize]) -> Result<(), ServeError> {
    let mut rules: Vec<Option<usize>> = vec![None; cpus.len()];
    for (place, device) in placed.iter().enumerate() {
        for queue in 0..device.queues {
            let on = device.cpu_of(queue, cpus.len());
            let (Some(rule), Some(cpu)) = (rules.get_mut(on), cpus.get(on)) else { continue };
            let other = *rule.get_or_insert(place);
            if let Some(conflict) = placed[other].policy.conflict_on_cpu(&device.policy) {
                let (one, other) = (placed[other].name.clone(), device.name.clone());
                return Err(ServeError::Conflict { one, other, cpu: *cpu, conflict });
            }
        }
    }
    Ok(())
}

fn engine_config(cpus: &[usize], devices: Vec<OpenDevice>, placed: &[Placed]) -> EngineConfig {
    let devices = devices.into_iter().zip(placed).map(|(device, place)| DeviceConfig {
        name: device.name,
        addresses: device.addresses,
        queues: (0..)
            .zip(device.queues)
            .map(|(i, queue)| (queue, place.cpu_of(i, cpus.len()) as u16))
            .collect(),
        delivery_cost: 0,
        settings: place.policy.instance,
    });
    let placement = Placement { cpus: cpus.to_vec(), ..Placement::default() };
    EngineConfig {
        contexts: Contexts { napi: placement.clone(), worker: placement, ..Contexts::default() },
        ..EngineConfig::new(cpus.to_vec(), devices.collect())
    }
}

fn note(device: &OpenDevice) -> String {
    let OpenDevice { name, addresses, note, .. } = device;
    let list: Vec<_> =
        addresses.list().iter().map(|own| format!("{}/{}", own.ip, own.prefix)).collect();
    let mac = addresses.mac().map(|byte| format!("{byte:02x}")).join(":");
    format!("{name}: {}, Ethernet {mac}; {note}", list.join(", "))
}

#[cfg(test)]
mod tests {
    use std::net::Ipv4Addr;

    use super::*;

    /// A CPU number that no test machine has.
    const ABSENT: usize = 1_023;

    #[test]
    fn a_server_without_devices_has_the_cpus_that_it_is_given_or_is_refused() {
        let usable = sched::usable_cpus();
        let config = ServeConfig {
            listen: Some(Listen { address: Ipv4Addr::LOCALHOST.into(), threads: 1 }),
            cpus: vec![usable[0], ABSENT],
            ..ServeConfig::default()
        };
        let refused = Server::start(&config).expect_err("one of them is not there");
        assert!(refused.to_string().starts_with("CPU 1023 is not available"), "{refused}");
        assert!(!refused.is_usage(), "as on devices");
        // A thread that is pinned to one CPU may start threads on others.
        let pinned = std::thread::spawn(move || {
            sched::pin(None, &usable[..1]).expect("it is there");
            check_cpus(&usable)
        });
        pinned.join().expect("no panic").expect("all are there");
    }

    #[test]
    fn a_start_that_fails_leaves_an_older_capture_as_it_is() {
        let path = std::env::temp_dir().join(format!("napkin-serve-older-{}", std::process::id()));
        std::fs::write(&path, b"older").expect("a file");
        let config = ServeConfig {
            devices: vec!["synthetic".parse().expect("a device")],
            capture: Some(path.clone()),
            cpus: vec![ABSENT],
            ..ServeConfig::default()
        };
        // The devices have been opened by then.
        let refused = Server::start(&config).expect_err("there is no such CPU");
        assert!(refused.to_string().contains("CPU 1023"), "{refused}");
        assert_eq!(std::fs::read(&path).expect("it is there"), b"older");
        std::fs::remove_file(&path).expect("it is ours");
    }
}
