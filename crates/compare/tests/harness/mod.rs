//! A test bed: Debian's memcached, or another program, in one network namespace, and napkin's own client in
//! another, connected by a veth pair.
#![allow(dead_code, unreachable_pub, reason = "each user takes its part")]

use std::net::{SocketAddr, TcpStream};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use napkin_client::{Client, ClientFigures, ClientWait, Config, Load, RequestKind, populate};
use napkin_os::sched::{CpuList, pin, usable_cpus};
use napkin_workload::linux::pair::{Pair, SERVER};

pub const PORT: u16 = 11_211;

/// The two namespaces, with a server in one of them.
pub struct Bed {
    pub pair: Pair,
    pub server: Child,
    /// The CPU of the server and that of the client; the same if only one is usable.
    pub cpus: [usize; 2],
    asks: RequestKind,
}

impl Bed {
    /// A bed with memcached: one worker thread, on a CPU of its own if possible, filled with records.
    pub fn new() -> Bed {
        let mut command = Command::new("memcached");
        command.args(["-l", &SERVER.to_string(), "-p", &PORT.to_string(), "-U", "0"]);
        command.args(["-t", "1", "-m", "64", "-c", "256"]);
        if rustix::process::geteuid().is_root() {
            command.args(["-u", "root"]);
        }
        let bed = Bed::serving(command, RequestKind::Records);
        let filled = bed.pair.client.run(|| populate(&bed.config(Load::Closed)));
        filled.expect("entered").expect("filled");
        bed
    }

    /// A bed with a program that listens on [`PORT`].
    pub fn serving(mut command: Command, asks: RequestKind) -> Bed {
        let all = usable_cpus();
        let cpus = [all[0], *all.last().expect("one")];
        let pair = Pair::new().expect("namespaces and a veth");
        let start = || {
            // A child inherits the affinity of the thread that spawns it; this thread ends afterwards.
            pin(None, &[cpus[0]]).expect("pinned");
            command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
            command.spawn().expect("it is installed")
        };
        let server = pair.server.run(start).expect("entered");
        let bed = Bed { pair, server, cpus, asks };
        let began = Instant::now();
        let listens = || TcpStream::connect((SERVER, PORT)).is_ok();
        while !bed.pair.client.run(listens).expect("entered") {
            assert!(began.elapsed() < Duration::from_secs(30), "the server does not listen");
            std::thread::sleep(Duration::from_millis(10));
        }
        bed
    }

    pub fn pid(&self) -> i32 {
        i32::try_from(self.server.id()).expect("an id")
    }

    pub fn config(&self, load: Load) -> Config {
        // A client with a closed loop spins on a CPU of its own; others sleep, because they share CPUs with other
        // tests.
        let spins = load == Load::Closed && self.cpus[0] != self.cpus[1];
        Config {
            connections: 32,
            cpus: CpuList(vec![self.cpus[1]]),
            load,
            records: 1_000,
            asks: self.asks,
            wait: if spins { ClientWait::Spin } else { ClientWait::Sleep },
            ..Config::new(SocketAddr::from((SERVER, PORT)))
        }
    }

    /// Starts a client with this load.
    pub fn client(&self, load: Load) -> Client {
        let config = self.config(load);
        self.pair.client.run(|| Client::start(&config)).expect("entered").expect("connected")
    }

    /// Measures one window of the client's figures.
    pub fn window(client: &mut Client, time: Duration) -> ClientFigures {
        client.begin_window().expect("it runs");
        std::thread::sleep(time);
        client.end_window().expect("it runs")
    }
}

impl Drop for Bed {
    fn drop(&mut self) {
        let _ = self.server.kill();
        let _ = self.server.wait();
    }
}
