//! Starts and stops the real binary.
#![allow(dead_code, unreachable_pub, reason = "each test file uses its part")]

pub mod lab;
#[path = "../../../kernel/tests/harness/namespace.rs"]
pub mod namespace;

use std::io::{BufRead, BufReader};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Output, Stdio};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use napkin_kernel::netlink::{Ethtool, Route, VethConfig};
use serde_json::Value;

/// The timeout of tests: long enough for a machine that is busy with other tests. Only failures reach it.
pub const TIMEOUT: Duration = Duration::from_secs(60);

/// The binary with default actions for the signals that end it, also if the test was started with these signals
/// ignored, as a shell script does for its background jobs.
pub fn command() -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_napkin"));
    let default = || {
        for signal in [libc::SIGINT, libc::SIGQUIT, libc::SIGTERM, libc::SIGHUP] {
            // SAFETY: the default action is not a function of this program.
            let _ = unsafe { libc::signal(signal, libc::SIG_DFL) };
        }
        Ok(())
    };
    // SAFETY: between fork and exec it makes system calls only.
    unsafe { command.pre_exec(default) };
    command
}

pub fn napkin<'a>(args: impl IntoIterator<Item = &'a str>) -> Output {
    command().env_remove("NAPKIN_CONTROL").args(args).output().expect("the binary runs")
}

pub fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

/// A temporary directory, removed on drop.
pub struct TempDir(pub PathBuf);

impl TempDir {
    pub fn new(name: &str) -> TempDir {
        let directory = format!("napkin-test-{}-{name}", std::process::id());
        let directory = std::env::temp_dir().join(directory);
        let _ = std::fs::remove_dir_all(&directory);
        std::fs::create_dir(&directory).expect("a directory");
        TempDir(directory)
    }

    pub fn socket(&self, name: &str) -> PathBuf {
        self.0.join(name)
    }
}

impl Drop for TempDir {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

/// A running `napkin serve`.
pub struct Served {
    pub child: Child,
    pub control: PathBuf,
    pub log: Arc<Mutex<Vec<String>>>,
    reader: Option<JoinHandle<()>>,
}

impl Served {
    /// Starts a server and waits for its control socket; fails with its output if it ends before. Its journal is in
    /// `state`, beside the socket.
    pub fn start(control: &Path, args: &[&str]) -> Result<Served, String> {
        let path = control.to_str().expect("a plain path");
        Served::run(control, &[args, &["--control", path]].concat(), "control: ")
    }

    /// Starts a server on the operating system's sockets and waits until it listens.
    pub fn listen(args: &[&str]) -> Result<Served, String> {
        Served::run(Path::new(""), args, "listening on ")
    }

    fn run(control: &Path, args: &[&str], until: &str) -> Result<Served, String> {
        let mut child = command()
            .env_remove("NAPKIN_CONTROL")
            .env("NAPKIN_STATE", control.with_file_name("state"))
            .arg("serve")
            .args(args)
            .stderr(Stdio::piped())
            .stdout(Stdio::null())
            .spawn()
            .expect("the binary runs");
        let mut lines = BufReader::new(child.stderr.take().expect("a pipe")).lines();
        let mut log = Vec::new();
        loop {
            let Some(Ok(line)) = lines.next() else {
                let _ = child.wait();
                return Err(log.join("\n"));
            };
            log.push(line);
            if log.last().is_some_and(|line| line.starts_with(until)) {
                break;
            }
        }
        let log = Arc::new(Mutex::new(log));
        let also = Arc::clone(&log);
        let reader = std::thread::spawn(move || {
            for line in lines.map_while(Result::ok) {
                also.lock().expect("no panic").push(line);
            }
        });
        Ok(Served { child, control: control.to_owned(), log, reader: Some(reader) })
    }

    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    pub fn log(&self) -> String {
        self.log.lock().expect("no panic").join("\n")
    }

    pub fn ask(&self, args: &[&str]) -> Output {
        let control = self.control.to_str().expect("a plain path");
        napkin(args.iter().copied().chain(["--control", control]))
    }

    pub fn json(&self, args: &[&str]) -> Value {
        let args: Vec<&str> = args.iter().copied().chain(["--json"]).collect();
        let output = self.ask(&args);
        assert!(output.status.success(), "{}", text(&output.stderr));
        serde_json::from_slice(&output.stdout).expect("JSON")
    }

    /// The first instance.
    pub fn napi(&self) -> Value {
        self.json(&["napi-get", "--id", "1"])[0].clone()
    }

    pub fn set(&self, args: &[&str]) {
        let args: Vec<&str> = ["napi-set", "--id", "1"].iter().chain(args).copied().collect();
        let output = self.ask(&args);
        assert!(output.status.success(), "{}", text(&output.stderr));
    }

    pub fn signal(&self, signal: rustix::process::Signal) {
        let pid = rustix::process::Pid::from_raw(self.pid() as i32).expect("a process");
        rustix::process::kill_process(pid, signal).expect("it is ours");
    }

    /// Waits for its exit, and for the last line of its output.
    pub fn end(&mut self) -> ExitStatus {
        let status = within("the server ends", || self.child.try_wait().expect("our child"));
        self.reader.take().map(JoinHandle::join);
        status
    }
}

impl Drop for Served {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Creates a veth pair in this namespace: `va`, with `queues` queues and GRO, so that it has NAPI instances, and `vb`.
pub fn add_veth(queues: u32) {
    let mut route = Route::open().expect("a socket");
    let veth = VethConfig {
        name: "va",
        peer: "vb",
        peer_namespace: None,
        rx_queues: queues,
        tx_queues: queues,
    };
    let va = route.add_veth(&veth).expect("a veth");
    route.set_up(va).expect("a link");
    let vb = route.link("vb").expect("the other end").ifindex;
    route.set_up(vb).expect("a link");
    let mut ethtool = Ethtool::open().expect("the family");
    ethtool.set_features("va", &[("rx-gro", true)]).expect("a feature");
}

/// Calls `look` until it returns a value; fails after [`TIMEOUT`].
pub fn within<T>(what: &str, mut look: impl FnMut() -> Option<T>) -> T {
    let start = Instant::now();
    loop {
        if let Some(found) = look() {
            return found;
        }
        assert!(start.elapsed() < TIMEOUT, "{what}: not within {TIMEOUT:?}");
        std::thread::sleep(Duration::from_millis(10));
    }
}
