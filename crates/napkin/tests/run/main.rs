//! `napkin run` and `napkin attach` with real, unmodified servers: the settings are read from their epoll contexts,
//! from outside and by the servers; exit codes, signals, and what is left behind.

mod attach;
#[path = "../common/mod.rs"]
mod common;
mod open_files;
mod servers;
mod signals;

use std::io::{BufRead, BufReader, Read, Write};
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::path::PathBuf;
use std::process::{Child, Command, Output, Stdio};

use common::within;
use napkin_kernel::process::{Params, Process};
use napkin_testing::needs_program;

const SUSPEND20: Params =
    Params { busy_poll_usecs: 0, busy_poll_budget: 64, prefer_busy_poll: true };

/// A directory for one test, removed on drop, for its journal and its server's files.
struct Scratch(PathBuf);

impl Scratch {
    fn new(name: &str) -> Scratch {
        let path = std::env::temp_dir().join(format!("napkin-run-{name}-{}", std::process::id()));
        std::fs::create_dir_all(path.join("state")).expect("a directory");
        Scratch(path)
    }

    fn path(&self, name: &str) -> PathBuf {
        self.0.join(name)
    }

    fn napkin(&self, arguments: &[&str]) -> Command {
        let mut command = common::command();
        command.args(arguments).env("NAPKIN_STATE", self.path("state"));
        command
    }

    /// The number of remaining journals.
    fn journals(&self) -> usize {
        let entries = std::fs::read_dir(self.path("state")).expect("it is there");
        let paths = entries.map(|entry| entry.expect("an entry").path());
        paths.filter(|path| path.extension().is_some_and(|end| end == "journal")).count()
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

/// A running napkin; it and its descendants are killed on drop.
struct Running(Child);

impl Running {
    fn start(mut command: Command) -> Running {
        Running(command.stdin(Stdio::null()).stderr(Stdio::piped()).spawn().expect("napkin"))
    }

    fn pid(&self) -> i32 {
        i32::try_from(self.0.id()).expect("an id")
    }

    fn signal(&self, signal: i32) {
        // SAFETY: the call takes two numbers; the child was not waited for.
        assert_eq!(unsafe { libc::kill(self.pid(), signal) }, 0);
    }

    /// Whether a signal is pending for it.
    fn has_pending(&self, signal: i32) -> bool {
        let status = std::fs::read_to_string(format!("/proc/{}/status", self.pid()));
        let status = status.expect("it lives");
        let pending = status.lines().find_map(|line| line.strip_prefix("ShdPnd:"));
        let pending = u64::from_str_radix(pending.expect("a line").trim(), 16).expect("a mask");
        pending & (1 << (signal - 1)) != 0
    }

    fn end(mut self) -> (std::process::ExitStatus, String) {
        let mut stderr = String::new();
        self.0.stderr.take().expect("piped").read_to_string(&mut stderr).expect("text");
        (self.0.wait().expect("it ends"), stderr)
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        let Ok(process) = Process::open(self.pid()) else { return };
        for pid in process.descendants(1_000).unwrap_or_default() {
            // SAFETY: the call takes two numbers.
            let _ = unsafe { libc::kill(pid, libc::SIGKILL) };
        }
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// The parameters of all epoll contexts of the descendants of a process.
fn epolls_below(pid: i32) -> Vec<(i32, i32, Params)> {
    let Ok(root) = Process::open(pid) else { return Vec::new() };
    let mut all = Vec::new();
    for pid in root.descendants(1_000).unwrap_or_default() {
        let Ok(process) = Process::open(pid) else { continue };
        let Ok(found) = process.descriptors(usize::MAX) else { continue };
        for epoll in found.epolls() {
            let Ok(Some(taken)) = process.take(&epoll) else { continue };
            if let Ok(Some(params)) = Params::get(&taken) {
                all.push((pid, epoll.fd, params));
            }
        }
    }
    all
}

fn run(scratch: &Scratch, program: &[&str]) -> Output {
    let arguments = [&["run", "--policy", "suspend20", "--"], program].concat();
    scratch.napkin(&arguments).stdin(Stdio::null()).output().expect("napkin")
}

/// A Python program with one epoll context, which prints its parameters for each line that it reads.
fn python() -> (Child, BufReader<std::process::ChildStdout>) {
    needs_program("python3");
    let program = "import fcntl, select, struct, sys\n\
                   e = select.epoll()\n\
                   print('ready', flush=True)\n\
                   for line in sys.stdin:\n\
                   \x20   b = fcntl.ioctl(e.fileno(), 0x80088A02, bytes(8))\n\
                   \x20   print(struct.unpack('IHBB', b)[:3], flush=True)";
    let mut child = Command::new("python3")
        .args(["-c", program])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .expect("python3");
    let mut output = BufReader::new(child.stdout.take().expect("piped"));
    let mut line = String::new();
    output.read_line(&mut line).expect("it answers");
    (child, output)
}

fn params(child: &mut Child, output: &mut impl BufRead) -> String {
    child.stdin.as_mut().expect("piped").write_all(b"\n").expect("it listens");
    let mut line = String::new();
    output.read_line(&mut line).expect("it answers");
    line.trim_end().to_owned()
}

const OFF: &str = "(0, 0, 0)";
const SET: &str = "(0, 64, 1)";

napkin_testing::main!();
