//! A process to inspect: a python3 that executes commands and answers them, line by line.

// Not every test binary uses all of it.
#![allow(dead_code)]

pub(crate) mod namespace;
pub(crate) mod softirqs;

use std::io::{BufRead, BufReader, Write};
use std::net::Ipv4Addr;
use std::os::fd::AsFd;
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};

use namespace::fresh;
use napkin_kernel::namespace::Namespace;
use napkin_kernel::netlink::{Ethtool, GRO, GSO, Route, TSO, VethConfig};
use napkin_testing::needs_program;

/// The Python program: it executes each line with `exec` and prints the variable `answer`.
const PROGRAM: &str = r#"
import sys, os, select, socket, struct, fcntl, threading, time, signal
answer = ""
def params(epoll):
    fd = epoll if isinstance(epoll, int) else epoll.fileno()
    return struct.unpack("IHBB", fcntl.ioctl(fd, 0x80088A02, bytes(8)))[:3]
def set_params(epoll, usecs, budget, prefer):
    fcntl.ioctl(epoll.fileno(), 0x40088A01, struct.pack("IHBB", usecs, budget, prefer, 0))
kept = []
def keep(thing):
    kept.append(thing)
    return thing
print("ready", flush=True)
for line in sys.stdin:
    answer = ""
    exec(line.rstrip("\n").replace("\\n", "\n"))
    print(answer, flush=True)
"#;

/// A running program.
pub(crate) struct Program {
    child: Child,
    input: Option<ChildStdin>,
    output: BufReader<ChildStdout>,
}

impl Program {
    /// Starts it in the calling thread's network namespace.
    pub(crate) fn start() -> Program {
        needs_program("python3");
        let mut command = Command::new("python3");
        command.args(["-c", PROGRAM]).stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut child = command.spawn().expect("it is installed");
        let input = child.stdin.take();
        let output = BufReader::new(child.stdout.take().expect("it is piped"));
        let mut program = Program { child, input, output };
        assert_eq!(program.line(), "ready");
        program
    }

    pub(crate) fn pid(&self) -> i32 {
        i32::try_from(self.child.id()).expect("an id")
    }

    /// Makes it execute a line of Python, and returns the value of `answer`.
    pub(crate) fn ask(&mut self, line: &str) -> String {
        self.send_line(line);
        self.answer()
    }

    /// Makes it execute a line without waiting for the answer.
    pub(crate) fn send_line(&mut self, line: &str) {
        let input = self.input.as_mut().expect("not ended yet");
        writeln!(input, "{}", line.replace('\n', "\\n")).expect("it listens");
    }

    /// Makes it execute a line whose answer is a number.
    pub(crate) fn number(&mut self, line: &str) -> i32 {
        let answer = self.ask(line);
        answer.parse().unwrap_or_else(|_| panic!("{line}: {answer}"))
    }

    /// Reads the answer to a line that was sent with [`Program::tell`].
    pub(crate) fn answer(&mut self) -> String {
        self.line()
    }

    fn line(&mut self) -> String {
        let mut line = String::new();
        self.output.read_line(&mut line).expect("it answers");
        line.trim_end().to_owned()
    }

    /// Closes its input and waits for its end.
    pub(crate) fn end(&mut self) {
        self.input = None;
        self.child.wait().expect("it ends");
    }

    /// Kills it and waits for it.
    pub(crate) fn kill(&mut self) {
        self.child.kill().expect("it is a child");
        self.child.wait().expect("it ends");
    }
}

impl Drop for Program {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Two network namespaces with a veth pair between them, so that sockets get a NAPI id: `10.9.0.1` here and
/// `10.9.0.2` there.
pub(crate) struct Link {
    pub(crate) here: Namespace,
    pub(crate) there: Namespace,
}

impl Link {
    pub(crate) fn new() -> Link {
        let link = Link { here: fresh(), there: fresh() };
        let up = |name: &str, last| {
            let mut route = Route::open().expect("a socket");
            let index = route.link(name).expect("it was made").ifindex;
            route.add_address(index, Ipv4Addr::new(10, 9, 0, last), 24).expect("an address");
            route.set_up(index).expect("up");
        };
        let set = |name: &str, features: &[(&str, bool)]| {
            Ethtool::open().expect("ethtool").set_features(name, features).expect("features");
        };
        let here = || {
            let config = VethConfig {
                name: "va",
                peer: "vb",
                peer_namespace: Some(link.there.as_fd()),
                rx_queues: 1,
                tx_queues: 1,
            };
            Route::open().expect("a socket").add_veth(&config).expect("a pair");
            // Without GRO a veth has no NAPI instance.
            set("va", &[(GRO[0], true)]);
            up("va", 1);
        };
        link.here.run(here).expect("entered");
        let there = || {
            // Packets that are still to be segmented would bypass the instance.
            let off: Vec<_> = TSO.iter().chain(GSO).map(|name| (*name, false)).collect();
            set("vb", &off);
            up("vb", 2);
        };
        link.there.run(there).expect("entered");
        link
    }
}
