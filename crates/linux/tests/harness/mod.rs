//! A program to look at: python3, told what to do line by line, which answers line by line.

// Not every test binary uses all of it.
#![allow(dead_code)]

use std::io::{BufRead, BufReader, Write};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};

/// What the program does with each line: `exec` it, and print what it leaves in `answer`.
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
    /// Starts it; `None`, with a line that says so, without python3.
    pub(crate) fn start() -> Option<Program> {
        Program::start_by(Command::new("python3"))
    }

    /// Starts it in a network namespace that has a name.
    pub(crate) fn start_in(namespace: &str) -> Option<Program> {
        let mut command = Command::new("ip");
        command.args(["netns", "exec", namespace, "python3"]);
        Program::start_by(command)
    }

    fn start_by(mut command: Command) -> Option<Program> {
        command.args(["-c", PROGRAM]).stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut child = match command.spawn() {
            Ok(child) => child,
            Err(error) => {
                eprintln!("skipped: python3 cannot be run: {error}");
                return None;
            }
        };
        let input = child.stdin.take();
        let output = BufReader::new(child.stdout.take().expect("it is piped"));
        let mut program = Program { child, input, output };
        assert_eq!(program.line(), "ready");
        Some(program)
    }

    pub(crate) fn pid(&self) -> i32 {
        i32::try_from(self.child.id()).expect("an id")
    }

    /// Has it execute a line of Python; what that leaves in `answer` comes back.
    pub(crate) fn ask(&mut self, line: &str) -> String {
        self.tell(line);
        self.answer()
    }

    /// Has it execute a line without waiting for an answer.
    pub(crate) fn tell(&mut self, line: &str) {
        let input = self.input.as_mut().expect("not ended yet");
        writeln!(input, "{}", line.replace('\n', "\\n")).expect("it listens");
    }

    /// An answer that is a number.
    pub(crate) fn number(&mut self, line: &str) -> i32 {
        let answer = self.ask(line);
        answer.parse().unwrap_or_else(|_| panic!("{line}: {answer}"))
    }

    /// The answer to what it was told.
    pub(crate) fn answer(&mut self) -> String {
        self.line()
    }

    fn line(&mut self) -> String {
        let mut line = String::new();
        self.output.read_line(&mut line).expect("it answers");
        line.trim_end().to_owned()
    }

    /// Lets it end by itself.
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

/// Two network namespaces and a veth between them, over which sockets get a NAPI id: `10.9.0.1` here
/// and `10.9.0.2` there.
pub(crate) struct Link {
    pub(crate) here: String,
    pub(crate) there: String,
}

impl Link {
    /// Makes them; `None`, with a line that says so, where that is not possible.
    pub(crate) fn new(name: &str) -> Option<Link> {
        let id = std::process::id();
        let link = Link { here: format!("nk-{name}-a-{id}"), there: format!("nk-{name}-b-{id}") };
        let (here, there) = (&link.here, &link.there);
        let commands = [
            format!("ip netns add {here}"),
            format!("ip netns add {there}"),
            format!("ip -n {here} link add va type veth peer name vb netns {there}"),
            format!("ip -n {here} address add 10.9.0.1/24 dev va"),
            format!("ip -n {there} address add 10.9.0.2/24 dev vb"),
            // Without GRO a veth has no NAPI instance; packets that still wait to be cut up pass it by.
            format!("ip netns exec {here} ethtool -K va gro on"),
            format!("ip netns exec {there} ethtool -K vb tso off gso off"),
            format!("ip -n {here} link set va up"),
            format!("ip -n {there} link set vb up"),
        ];
        for command in commands {
            let output = Command::new("sh").args(["-c", &command]).output().expect("a shell");
            if !output.status.success() {
                let why = String::from_utf8_lossy(&output.stderr);
                eprintln!("skipped: {command}: {}", why.trim());
                return None;
            }
        }
        Some(link)
    }
}

impl Drop for Link {
    fn drop(&mut self) {
        for namespace in [&self.here, &self.there] {
            let _ = Command::new("ip").args(["netns", "del", namespace]).output();
        }
    }
}
