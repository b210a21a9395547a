//! Set-ups for the doctor to examine: a veth pair between two namespaces, a server on one end, its clients on
//! the other.

// Not every test binary uses all functions.
#![allow(dead_code)]

mod examination;
#[path = "../../../kernel/tests/harness/namespace.rs"]
mod namespace;
mod program;

use std::collections::BTreeSet;
use std::io::{Read, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpStream};
use std::os::fd::{AsFd, AsRawFd};
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use napkin_kernel::namespace::Namespace;
use napkin_kernel::netlink::{Ethtool, GRO, GSO, Netdev, Route, TSO, VethConfig};
use napkin_kernel::process::{Params, Process, Socket};
use napkin_kernel::{Setting, Settings, device};
use napkin_linux::doctor::{DoctorError, Facts, Request, examine, gather};
use napkin_policy::Policy;
use napkin_testing::needs_program;
use rustix::thread::{CapabilitySet, CapabilitySets, set_capabilities};

pub(crate) use examination::Examination;
use namespace::fresh;
use program::{ANSWER, PROGRAM, REQUEST};
pub(crate) use program::{Mode, program};

pub(crate) const SUSPEND20: &str = "suspend20";

/// Longer than any step here takes on a machine that is busy with other tests.
const LONG: Duration = Duration::from_secs(20);

const SERVER: Ipv4Addr = Ipv4Addr::new(10, 77, 0, 1);
const CLIENT: Ipv4Addr = Ipv4Addr::new(10, 77, 0, 2);

pub(crate) fn policy(text: &str) -> Policy {
    text.parse().expect(text)
}

/// The epoll descriptors of a process.
pub(crate) fn epolls(pid: i32) -> Vec<i32> {
    let process = Process::open(pid).expect("it runs");
    let found = process.descriptors(usize::MAX).expect("we may look");
    found.epolls().map(|epoll| epoll.fd).collect()
}

/// A server, its device, and its clients.
pub(crate) struct Rig {
    server: Namespace,
    client: Namespace,
    programs: Vec<Child>,
    connections: Vec<TcpStream>,
    /// Connections on which no answers are awaited.
    unanswered: Vec<TcpStream>,
    /// The directory in which a program was built.
    built: Option<PathBuf>,
}

impl Rig {
    /// Creates `va`, with two queues and an instance for each, and the clients' `vb`, without segmentation
    /// offloads, so that its packets take the NAPI path.
    pub(crate) fn new() -> Rig {
        let (server, client) = (fresh(), fresh());
        let peer = client.as_fd();
        server
            .run(|| {
                let config = VethConfig {
                    name: "va",
                    peer: "vb",
                    peer_namespace: Some(peer),
                    rx_queues: 2,
                    tx_queues: 2,
                };
                Route::open().expect("a socket").add_veth(&config).expect("a pair");
                feature("va", &[GRO[0]], true);
                address("va", SERVER);
            })
            .expect("entered");
        client.run(|| address("vb", CLIENT)).expect("entered");
        let rig = Rig {
            server,
            client,
            programs: vec![],
            connections: vec![],
            unanswered: vec![],
            built: None,
        };
        rig.peer_offloads(false);
        rig
    }

    /// Starts the program under a policy, with one connection, configured as by `napkin run --dev`.
    pub(crate) fn set_up(&mut self, text: &str, mode: Mode) {
        self.start(mode);
        self.set_device(text);
        self.set_epolls(Params::from(policy(text).epoll), |_| true);
        self.connect(1);
    }

    fn start(&mut self, mode: Mode) -> i32 {
        let name = format!("{mode:?}");
        let program = self.spawn(|port| {
            let mut command = Command::new(std::env::current_exe().expect("this binary"));
            command.env(PROGRAM, format!("{name} {port}"));
            command
        });
        self.pid_of(program)
    }

    /// Starts a server, waits until it listens, and returns its index among the programs.
    fn spawn(&mut self, command: impl FnOnce(u16) -> Command) -> usize {
        let place = self.programs.len();
        let mut command = command(port(place));
        command.stdin(Stdio::null()).stdout(Stdio::null());
        let child = self.server.run(|| command.spawn()).expect("entered").expect("it starts");
        self.programs.push(child);
        let start = Instant::now();
        while self.connection(place).is_none() {
            assert!(start.elapsed() < LONG, "the server does not listen");
            thread::sleep(Duration::from_millis(5));
        }
        place
    }

    /// Starts memcached with this many threads, each serving the connections of one instance.
    pub(crate) fn memcached(&mut self, threads: u32) {
        needs_program("memcached");
        self.spawn(|port| {
            let mut command = Command::new("memcached");
            command.args(["-u", "root", "-U", "0", "-l", "10.77.0.1", "-p"]).arg(port.to_string());
            command.arg("-t").arg(threads.to_string());
            if threads > 1 {
                command.arg("-N").arg(threads.to_string());
            }
            command
        });
    }

    /// Builds a server with Go without C, and starts it; returns false if that fails.
    pub(crate) fn go_server(&mut self) -> bool {
        const SOURCE: &str = "package main\n\
            import (\"net\"; \"os\")\n\
            func main() {\n\
            \tlistener, err := net.Listen(\"tcp4\", \"10.77.0.1:\" + os.Args[1])\n\
            \tif err != nil { panic(err) }\n\
            \tfor {\n\
            \t\tconnection, err := listener.Accept()\n\
            \t\tif err != nil { panic(err) }\n\
            \t\tgo func() {\n\
            \t\t\tbuffer := make([]byte, 64)\n\
            \t\t\tfor {\n\
            \t\t\t\tif n, err := connection.Read(buffer); n == 0 || err != nil { return }\n\
            \t\t\t\tconnection.Write([]byte(\"END\\r\\n\"))\n\
            \t\t\t}\n\
            \t\t}()\n\
            \t}\n\
            }\n";
        let directory =
            std::env::temp_dir().join(format!("napkin-doctored-{}", std::process::id()));
        std::fs::create_dir_all(&directory).expect("a directory");
        self.built = Some(directory.clone());
        std::fs::write(directory.join("main.go"), SOURCE).expect("written");
        let built = Command::new("go")
            .current_dir(&directory)
            .env("CGO_ENABLED", "0")
            .env("GO111MODULE", "off")
            .env("GOFLAGS", "")
            .args(["build", "-o", "server", "main.go"])
            .status();
        if !built.is_ok_and(|status| status.success()) {
            return false;
        }
        self.spawn(|port| {
            let mut command = Command::new(directory.join("server"));
            command.arg(port.to_string());
            command
        });
        true
    }

    pub(crate) fn start_another(&mut self, mode: Mode) -> i32 {
        let pid = self.start(mode);
        let connection = self.connection(self.programs.len() - 1).expect("it listens");
        self.connections.push(connection);
        pid
    }

    fn pid_of(&self, place: usize) -> i32 {
        i32::try_from(self.programs[place].id()).expect("an id")
    }

    /// The id of the first program.
    pub(crate) fn pid(&self) -> i32 {
        self.pid_of(0)
    }

    /// Runs a closure in the server's namespace.
    pub(crate) fn run<T: Send>(&self, work: impl FnOnce() -> T + Send) -> T {
        self.server.run(work).expect("entered")
    }

    /// Ends all programs and connections.
    pub(crate) fn stop(&mut self) {
        self.connections.clear();
        self.unanswered.clear();
        for mut program in self.programs.drain(..) {
            let _ = program.kill();
            let _ = program.wait();
        }
    }

    /// Opens a connection, and waits for the answer to a first request.
    fn connection(&self, program: usize) -> Option<TcpStream> {
        let address = SocketAddr::from((SERVER, port(program)));
        let connect = || TcpStream::connect_timeout(&address, LONG);
        let mut stream = self.client.run(connect).expect("entered").ok()?;
        stream.set_read_timeout(Some(LONG)).expect("a timeout");
        stream.set_nodelay(true).expect("an option");
        request(&mut stream).then_some(stream)
    }

    /// Opens more connections to the first program.
    pub(crate) fn connect(&mut self, connections: usize) {
        for _ in 0..connections {
            let connection = self.connection(0).expect("it listens");
            self.connections.push(connection);
        }
    }

    /// Opens connections until both instances have some.
    pub(crate) fn connect_both_queues(&mut self) {
        for _ in 0..64 {
            self.connect(1);
            if self.napi_ids().len() == 2 {
                return;
            }
        }
        panic!("64 connections came by one queue");
    }

    /// Returns the instances of the first program's connections.
    fn napi_ids(&self) -> BTreeSet<u32> {
        let process = Process::open(self.pid()).expect("it runs");
        let found = process.descriptors(usize::MAX).expect("we may look");
        let taken = found.sockets().filter_map(|it| process.take(&it).expect("we may take it"));
        let sockets = taken.filter_map(|it| Socket::of(&it).expect("a socket"));
        sockets.filter(|socket| socket.peer.is_some()).filter_map(|it| it.napi_id).collect()
    }

    /// Does not await answers on the existing connections any more.
    pub(crate) fn stop_awaiting_answers(&mut self) {
        self.unanswered.append(&mut self.connections);
    }

    /// Sends a request on each of these connections.
    pub(crate) fn send_without_awaiting(&mut self) {
        for stream in &mut self.unanswered {
            stream.write_all(REQUEST).expect("sent");
        }
    }

    pub(crate) fn disconnect(&mut self) {
        self.connections.clear();
    }

    pub(crate) fn feature(&self, name: &str, on: bool) {
        let name = format!("rx-{name}");
        self.server.run(|| feature("va", &[&name], on)).expect("entered");
    }

    /// Sets whether the clients' end sends large packets, which bypass NAPI.
    pub(crate) fn peer_offloads(&self, on: bool) {
        let names: Vec<&str> = TSO.iter().chain(GSO.iter()).copied().collect();
        self.client.run(|| feature("vb", &names, on)).expect("entered");
    }

    /// Writes to a sysfs file of the device.
    pub(crate) fn write(&self, file: &str, text: &str) {
        let path = format!("/sys/class/net/va/{file}");
        self.server.run(|| std::fs::write(&path, text)).expect("entered").expect(&path);
    }

    /// Sets every instance to a policy.
    pub(crate) fn set_device(&self, text: &str) {
        let wanted = Settings::of(&policy(text).instance);
        for setting in Setting::ALL {
            self.set(setting, wanted.get(setting).expect("a policy has them all"));
        }
    }

    /// Sets one setting of every instance.
    pub(crate) fn set(&self, setting: Setting, value: u64) {
        let set = || {
            let mut netdev = Netdev::open().expect("netdev");
            for napi in device::read(&mut netdev, "va").expect("instances").napis {
                netdev.set_napi(napi.id, setting, value).expect("it is taken");
            }
        };
        self.server.run(set).expect("entered");
    }

    /// Sets the parameters of the first program's epolls that match.
    pub(crate) fn set_epolls(&self, params: Params, wanted: impl Fn(i32) -> bool) {
        let process = Process::open(self.pid()).expect("it runs");
        let found = process.descriptors(usize::MAX).expect("we may look");
        for epoll in found.epolls().filter(|epoll| wanted(epoll.fd)) {
            let taken = process.take(&epoll).expect("we may take it").expect("it is open");
            assert_eq!(params.set(&taken), Ok(true));
        }
    }

    /// Pins the threads of all instances.
    pub(crate) fn pin_poll_threads(&self, cpu: usize) {
        let read = || device::read(&mut Netdev::open().expect("netdev"), "va");
        let device = self.server.run(read).expect("entered").expect("it is there");
        for napi in device.napis {
            napkin_os::sched::pin(napi.pid, &[cpu]).expect("it lives");
            assert!(napi.pid.is_some());
        }
    }

    /// Pins all threads of the first program.
    pub(crate) fn pin_program(&self, cpu: usize) {
        for tid in Process::open(self.pid()).expect("it runs").threads().expect("it has some") {
            napkin_os::sched::pin(Some(tid), &[cpu]).expect("it lives");
        }
    }

    /// Examines the first program, under traffic.
    pub(crate) fn doctor(&mut self, asked: Option<&str>) -> Examination {
        self.examine(Some(self.pid()), asked, || {}, |_| {})
    }

    /// Examines the device.
    pub(crate) fn doctor_of_device(&mut self, asked: Option<&str>) -> Examination {
        self.examine(None, asked, || {}, |_| {})
    }

    /// Examines the first program from a thread without capabilities.
    pub(crate) fn doctor_without_rights(&mut self, asked: Option<&str>) -> Examination {
        let none = CapabilitySets {
            effective: CapabilitySet::empty(),
            permitted: CapabilitySet::empty(),
            inheritable: CapabilitySet::empty(),
        };
        let drop = || set_capabilities(None, none).expect("it may always do less");
        self.examine(Some(self.pid()), asked, drop, |_| {})
    }

    /// Adds a veth pair with instances to the server's namespace.
    pub(crate) fn add_pair(&mut self, name: &str, peer: &str) {
        let config = VethConfig { name, peer, peer_namespace: None, rx_queues: 1, tx_queues: 1 };
        let add = || {
            Route::open().expect("a socket").add_veth(&config).expect("a pair");
            for ifname in [name, peer] {
                feature(ifname, &[GRO[0]], true);
                let mut route = Route::open().expect("a socket");
                let links = route.links().expect("links");
                let link = links.iter().find(|it| it.name == ifname).expect("it was made");
                route.set_up(link.ifindex).expect("it goes up");
            }
        };
        self.server.run(add).expect("entered");
    }

    /// Returns the devices of the first program, determined without the rights to inspect it.
    pub(crate) fn which_device_without_rights(&mut self) -> Result<Vec<Facts>, DoctorError> {
        let wanted = Request {
            pid: Some(self.pid()),
            ifname: None,
            policy: None,
            window: Duration::from_millis(10),
            wishes: vec![],
        };
        let look = || {
            let none = CapabilitySets {
                effective: CapabilitySet::empty(),
                permitted: CapabilitySet::empty(),
                inheritable: CapabilitySet::empty(),
            };
            // The capabilities are those of one thread only.
            thread::scope(|scope| {
                let looks = scope.spawn(|| {
                    set_capabilities(None, none).expect("it may always do less");
                    gather(&wanted)
                });
                looks.join().expect("no panic")
            })
        };
        self.server.run(look).expect("entered")
    }

    /// Examines the first program while `happens` runs.
    pub(crate) fn doctor_while(&mut self, happens: impl FnOnce(&mut Rig)) -> Examination {
        self.examine(Some(self.pid()), Some(SUSPEND20), || {}, happens)
    }

    fn examine(
        &mut self,
        pid: Option<i32>,
        asked: Option<&str>,
        before: impl FnOnce() + Send,
        meanwhile: impl FnOnce(&mut Rig),
    ) -> Examination {
        let wanted = Request {
            pid,
            ifname: Some("va".into()),
            policy: asked.map(policy),
            window: Duration::from_millis(300),
            wishes: vec![],
        };
        let stop = Arc::new(AtomicBool::new(false));
        let mut streams: Vec<TcpStream> =
            self.connections.iter().map(|it| it.try_clone().expect("a copy")).collect();
        let traffic = thread::spawn({
            let stop = stop.clone();
            move || {
                while !stop.load(Ordering::Relaxed) {
                    for stream in &mut streams {
                        // A connection whose packets reach no instance may get no answer any more.
                        let _ = request(stream);
                    }
                    thread::sleep(Duration::from_millis(1));
                }
            }
        });
        let server = Namespace::open(format!("/proc/self/fd/{}", self.server.as_fd().as_raw_fd()));
        let server = server.expect("it is one");
        let facts = thread::scope(|scope| {
            let looking = || {
                before();
                gather(&wanted)
            };
            let looking = scope.spawn(|| server.run(looking).expect("entered"));
            thread::sleep(Duration::from_millis(100));
            meanwhile(self);
            looking.join().expect("no panic")
        });
        stop.store(true, Ordering::Relaxed);
        traffic.join().expect("no panic");
        let facts = facts.expect("there is something to look at");
        let [facts] = &facts[..] else { panic!("one device was named") };
        let report = examine(facts);
        Examination { policy: report.policy, programs: report.programs, findings: report.findings }
    }
}

impl Drop for Rig {
    fn drop(&mut self) {
        self.stop();
        if let Some(directory) = &self.built {
            let _ = std::fs::remove_dir_all(directory);
        }
    }
}

fn port(program: usize) -> u16 {
    11_211 + u16::try_from(program).expect("a few")
}

fn feature(ifname: &str, names: &[&str], on: bool) {
    let wanted: Vec<_> = names.iter().map(|name| (*name, on)).collect();
    Ethtool::open().expect("ethtool").set_features(ifname, &wanted).expect("it is taken");
}

fn address(ifname: &str, address: Ipv4Addr) {
    let mut route = Route::open().expect("a socket");
    let link = route.link(ifname).expect("it is there");
    route.add_address(link.ifindex, address, 24).expect("it is taken");
    route.set_up(link.ifindex).expect("it goes up");
}

/// Whether a request was answered.
fn request(stream: &mut TcpStream) -> bool {
    let mut answer = [0; ANSWER.len()];
    stream.write_all(REQUEST).is_ok() && stream.read_exact(&mut answer).is_ok() && answer == ANSWER
}
