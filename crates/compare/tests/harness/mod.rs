//! A service and its load, to compare on: Debian's memcached, or another program, in a namespace, and napkin's own client in
//! another, over a veth.
#![allow(dead_code, unreachable_pub, reason = "each user takes its part")]

use std::net::{SocketAddr, TcpStream};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use napkin_client::{Asks, Client, ClientFigures, ClientWait, Config, Load, populate};
use napkin_os::sched::{CpuList, pin, usable_cpus};
use napkin_workload::linux::pair::{Pair, SERVER};

pub const PORT: u16 = 11_211;

/// The two namespaces, and a server in one of them.
pub struct Bed {
    pub pair: Pair,
    pub server: Child,
    /// The CPU that serves, and that of the client; the same where there is one alone.
    pub cpus: [usize; 2],
    asks: Asks,
}

impl Bed {
    /// Of memcached with one worker thread, on a CPU of its own where there is one; filled.
    pub fn new() -> Bed {
        let mut command = Command::new("memcached");
        command.args(["-l", &SERVER.to_string(), "-p", &PORT.to_string(), "-U", "0"]);
        command.args(["-t", "1", "-m", "64", "-c", "256"]);
        if rustix::process::geteuid().is_root() {
            command.args(["-u", "root"]);
        }
        let bed = Bed::serving(command, Asks::Records);
        let filled = bed.pair.client.run(|| populate(&bed.config(Load::Closed)));
        filled.expect("entered").expect("filled");
        bed
    }

    /// Of a program that listens on [`PORT`].
    pub fn serving(mut command: Command, asks: Asks) -> Bed {
        let all = usable_cpus();
        let cpus = [all[0], *all.last().expect("one")];
        let pair = Pair::new().expect("namespaces and a veth");
        let start = || {
            // A child runs where its parent did; this thread ends here.
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
        // One that asks for all that there is has a CPU to itself; others share theirs with other tests.
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

    /// Starts its load.
    pub fn client(&self, load: Load) -> Client {
        let config = self.config(load);
        self.pair.client.run(|| Client::start(&config)).expect("entered").expect("connected")
    }

    /// What a client saw in so much time.
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
