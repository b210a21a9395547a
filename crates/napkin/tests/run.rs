//! `napkin run` and `napkin attach` with real, unmodified servers: what was set is read from their
//! epoll contexts, from outside and by themselves; exit codes, signals, and what is left behind.

mod common;

use std::io::{BufRead, BufReader, Read, Write};
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::path::PathBuf;
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};

use napkin_kernel::process::{Params, Process};
use napkin_testing::{needs_program, test};

const SUSPEND20: Params =
    Params { busy_poll_usecs: 0, busy_poll_budget: 64, prefer_busy_poll: true };

/// Longest wait for something that must happen: a bound against hanging, not a measurement.
const PATIENCE: Duration = Duration::from_secs(60);

/// A directory for one test, removed with it: its journal, and what its server writes.
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

    /// The journals that are left.
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

/// A napkin that is ended with what it started, whatever happens to the test.
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

    /// Waits for the end; what it said comes with it.
    fn end(mut self) -> (std::process::ExitStatus, String) {
        let mut said = String::new();
        self.0.stderr.take().expect("piped").read_to_string(&mut said).expect("text");
        (self.0.wait().expect("it ends"), said)
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

/// Waits until something is so.
fn until<T>(what: &str, mut so: impl FnMut() -> Option<T>) -> T {
    let start = Instant::now();
    loop {
        if let Some(value) = so() {
            return value;
        }
        assert!(start.elapsed() < PATIENCE, "never so: {what}");
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// Waits until a server has so many epoll contexts, all of them set.
fn until_all_set(napkin: &Running, at_least: usize) -> usize {
    until("all contexts set", || {
        let epolls = epolls_below(napkin.pid());
        let set = epolls.iter().all(|(.., params)| *params == SUSPEND20);
        (epolls.len() >= at_least && set).then_some(epolls.len())
    })
}

/// A port that nobody listens on; somebody may take it before it is used.
fn free_port() -> u16 {
    let listener = std::net::TcpListener::bind("127.0.0.1:0").expect("loopback");
    listener.local_addr().expect("bound").port()
}

fn run(scratch: &Scratch, program: &[&str]) -> Output {
    let arguments = [&["run", "--policy", "suspend20", "--"], program].concat();
    scratch.napkin(&arguments).stdin(Stdio::null()).output().expect("napkin")
}

#[test]
fn the_exit_code_is_the_program_s() {
    let scratch = Scratch::new("codes");
    for code in [0, 3, 77, 255] {
        let output = run(&scratch, &["sh", "-c", &format!("exit {code}")]);
        assert_eq!(output.status.code(), Some(code));
    }
    let missing = run(&scratch, &["/nonexistent/program"]);
    assert_eq!(missing.status.code(), Some(127));
    let said = String::from_utf8_lossy(&missing.stderr).into_owned();
    assert!(said.contains("there is no program /nonexistent/program"), "{said}");
    assert_eq!(run(&scratch, &["/dev/null"]).status.code(), Some(126));
    assert_eq!(scratch.journals(), 0);
}

#[test]
fn the_program_s_output_is_its_own() {
    let scratch = Scratch::new("output");
    let output = run(&scratch, &["sh", "-c", "echo out; echo err >&2"]);
    assert_eq!(String::from_utf8_lossy(&output.stdout), "out\n");
    assert!(String::from_utf8_lossy(&output.stderr).contains("err\n"));
}

#[test]
fn a_program_that_a_signal_ended_ends_napkin_by_the_same() {
    let scratch = Scratch::new("signals");
    for signal in [libc::SIGKILL, libc::SIGTERM, libc::SIGSEGV] {
        let output = run(&scratch, &["sh", "-c", &format!("kill -{signal} $$")]);
        assert_eq!(output.status.signal(), Some(signal));
    }
}

#[test]
fn signals_are_passed_on_once_each_and_the_program_decides() {
    let scratch = Scratch::new("passed");
    let log = scratch.path("log");
    let script = format!(
        "for s in TERM INT HUP USR1 USR2 QUIT; do trap \"echo $s >> {0}\" $s; done\n\
         trap 'exit 9' WINCH; echo ready >> {0}; while :; do sleep 0.01; done",
        log.display()
    );
    let napkin = Running::start(scratch.napkin(&[
        "run",
        "--quiet",
        "--policy",
        "suspend20",
        "--",
        "sh",
        "-c",
        &script,
    ]));
    let lines = || std::fs::read_to_string(&log).unwrap_or_default();
    until("ready", || lines().contains("ready").then_some(()));
    let mut expected = "ready\n".to_owned();
    for (name, signal) in [
        ("TERM", libc::SIGTERM),
        ("INT", libc::SIGINT),
        ("HUP", libc::SIGHUP),
        ("USR1", libc::SIGUSR1),
        ("USR2", libc::SIGUSR2),
        ("QUIT", libc::SIGQUIT),
        ("TERM", libc::SIGTERM),
    ] {
        napkin.signal(signal);
        expected.push_str(&format!("{name}\n"));
        until(name, || (lines().len() >= expected.len()).then_some(()));
        assert_eq!(lines(), expected);
    }
    napkin.signal(libc::SIGWINCH);
    let (status, said) = napkin.end();
    assert_eq!((status.code(), said.as_str()), (Some(9), ""));
}

/// A program under napkin that writes down each signal, and what it runs in.
struct Listener {
    napkin: Running,
    log: PathBuf,
    scratch: Scratch,
}

impl Listener {
    /// Under napkin in a process group of its own; `before` comes before `napkin`, and `own_group`
    /// says whether the program makes one as well.
    fn start(name: &str, before: &[&str], own_group: bool) -> Listener {
        needs_program("python3");
        let scratch = Scratch::new(name);
        let log = scratch.path("log");
        let program = format!(
            "import os, signal\n\
             if {}: os.setpgid(0, 0)\n\
             log = os.open('{}', os.O_WRONLY | os.O_APPEND | os.O_CREAT)\n\
             def wrote(number, frame): os.write(log, (signal.Signals(number).name + ' ').encode())\n\
             for number in (signal.SIGTERM, signal.SIGHUP, signal.SIGWINCH): signal.signal(number, wrote)\n\
             signal.signal(signal.SIGUSR2, lambda *_: os._exit(5))\n\
             os.write(log, b'ready ')\n\
             while True: signal.pause()",
            if own_group { "True" } else { "False" },
            log.display()
        );
        let napkin = scratch.napkin(&["run", "-q", "--policy", "suspend20", "--", "python3", "-c"]);
        let words: Vec<_> = before.iter().map(std::ffi::OsStr::new).collect();
        let words = words.into_iter().chain([napkin.get_program()]).chain(napkin.get_args());
        let words: Vec<_> = words.collect();
        let mut command = Command::new(words[0]);
        command.args(&words[1..]).arg(program).process_group(0);
        command.env("NAPKIN_STATE", scratch.path("state"));
        let listener = Listener { napkin: Running::start(command), log, scratch };
        until("ready", || listener.got().starts_with("ready ").then_some(()));
        listener
    }

    fn got(&self) -> String {
        std::fs::read_to_string(&self.log).unwrap_or_default()
    }

    /// All that it got, once it has got a signal that is sent to napkin alone after all others. Its
    /// number is the highest: of those that are pending together a process gets the lowest first.
    fn all(&self) -> String {
        let count = |got: &str| got.matches("SIGWINCH ").count();
        let before = count(&self.got());
        self.napkin.signal(libc::SIGWINCH);
        until("SIGWINCH", || (count(&self.got()) > before).then(|| self.got()))
    }

    /// Signals napkin's whole group.
    fn signal_group(&self, signal: i32) {
        // SAFETY: the call takes two numbers; the group's first process was not waited for.
        assert_eq!(unsafe { libc::kill(-self.napkin.pid(), signal) }, 0);
    }

    /// Signals napkin and every process below it, one after the other, as systemd does.
    fn signal_each(&self, signal: i32) {
        let process = Process::open(self.napkin.pid()).expect("it lives");
        let below = process.descendants(1_000).expect("it lives");
        assert!(below.len() > 1, "the program, and what napkin needs");
        for pid in [self.napkin.pid()].into_iter().chain(below) {
            // SAFETY: the call takes two numbers; nobody but this test ends these processes.
            assert_eq!(unsafe { libc::kill(pid, signal) }, 0);
        }
    }

    /// Ends the program, and napkin with it.
    fn end(self) {
        self.napkin.signal(libc::SIGUSR2);
        let (status, said) = self.napkin.end();
        assert_eq!((status.code(), said.as_str()), (Some(5), ""));
        assert_eq!(self.scratch.journals(), 0);
    }
}

#[test]
fn a_signal_to_the_group_or_to_every_process_reaches_the_program_once() {
    for own_group in [false, true] {
        let listener = Listener::start("once", &[], own_group);
        listener.napkin.signal(libc::SIGTERM);
        assert_eq!(listener.all(), "ready SIGTERM SIGWINCH ", "to napkin alone");
        listener.signal_group(libc::SIGTERM);
        let group = "ready SIGTERM SIGWINCH SIGTERM SIGWINCH ";
        assert_eq!(listener.all(), group, "to the group, {own_group}");
        listener.signal_each(libc::SIGHUP);
        let all = format!("{group}SIGHUP SIGWINCH ");
        assert_eq!(listener.all(), all, "to each process, {own_group}");
        listener.end();
    }
}

#[test]
fn two_signals_to_napkin_alone_reach_the_program_both() {
    let listener = Listener::start("twice", &[], false);
    listener.napkin.signal(libc::SIGTERM);
    std::thread::sleep(Duration::from_millis(500));
    listener.napkin.signal(libc::SIGTERM);
    assert_eq!(listener.all(), "ready SIGTERM SIGTERM SIGWINCH ");
    listener.end();
}

#[test]
fn timeout_signals_the_program_once() {
    needs_program("timeout");
    // It is the group's first process, signals napkin, and then the group.
    let listener = Listener::start("timeout", &["timeout", "-s", "TERM", "1h"], false);
    // The hour is over.
    listener.napkin.signal(libc::SIGALRM);
    until("SIGTERM", || listener.got().contains("SIGTERM").then_some(()));
    let process = Process::open(listener.napkin.pid()).expect("it lives");
    let napkin = process.children().expect("it lives")[0];
    // SAFETY: the call takes two numbers; its parent has not waited for it.
    assert_eq!(unsafe { libc::kill(napkin, libc::SIGWINCH) }, 0);
    until("SIGWINCH", || listener.got().ends_with("SIGWINCH ").then_some(()));
    assert_eq!(listener.got(), "ready SIGTERM SIGWINCH ");
}

#[test]
fn a_stop_from_the_terminal_and_its_end_reach_the_program_once() {
    let listener = Listener::start("stopped", &[], false);
    let state = || {
        let stat = std::fs::read_to_string(format!("/proc/{}/stat", listener.napkin.pid()));
        stat.expect("it lives").rsplit(')').next().expect("its state").trim_start().to_owned()
    };
    for _ in 0..3 {
        listener.signal_group(libc::SIGTSTP);
        until("stopped", || state().starts_with('T').then_some(()));
        listener.signal_group(libc::SIGCONT);
        until("woken", || (!state().starts_with('T')).then_some(()));
        // A stop that was passed on late would keep the program from this.
        assert!(listener.all().ends_with("SIGWINCH "));
        assert!(!state().starts_with('T'));
        std::fs::write(&listener.log, "").expect("it is there");
    }
    listener.end();
}

#[test]
fn nothing_is_left_of_a_napkin_that_was_killed_but_the_program() {
    let listener = Listener::start("witness", &[], false);
    let process = Process::open(listener.napkin.pid()).expect("it lives");
    let below = process.descendants(1_000).expect("it lives");
    let name = |pid: i32| std::fs::read_to_string(format!("/proc/{pid}/cmdline"));
    let named = |what: &str| {
        let named = |pid: &&i32| name(**pid).is_ok_and(|name| name.contains(what));
        below.iter().filter(named).copied().collect::<Vec<i32>>()
    };
    // Who signals all that have napkin in their name, or its arguments, means napkin.
    let program = named("import os");
    assert_eq!((program.len(), named("napkin run").len()), (1, 0));
    let others: Vec<i32> = below.into_iter().filter(|pid| !program.contains(pid)).collect();
    assert!(!others.is_empty());
    listener.napkin.signal(libc::SIGKILL);
    until("gone", || others.iter().all(|pid| name(*pid).is_err()).then_some(()));
    assert!(name(program[0]).is_ok());
    // SAFETY: the call takes two numbers; it was alive just now, and nobody else ends it.
    assert_eq!(unsafe { libc::kill(program[0], libc::SIGUSR2) }, 0);
}

#[test]
fn what_a_daemon_leaves_behind_is_waited_for_and_set() {
    needs_program("python3");
    let scratch = Scratch::new("daemon");
    // The program ends with 4; its child goes on, is nobody's child any more, and opens a context.
    let program = "import os, select, signal\n\
                   r, w = os.pipe()\n\
                   if os.fork(): os.read(r, 1); os._exit(4)\n\
                   os.setsid()\n\
                   os.write(w, b'x')\n\
                   e = select.epoll()\n\
                   signal.pause()";
    let napkin = Running::start(scratch.napkin(&[
        "run",
        "--policy",
        "suspend20",
        "--",
        "python3",
        "-c",
        program,
    ]));
    until_all_set(&napkin, 1);
    napkin.signal(libc::SIGTERM);
    let (status, said) = napkin.end();
    assert_eq!(status.code(), Some(4), "{said}");
    assert_eq!(said.matches("waiting for what it left behind").count(), 1, "{said}");
    assert!(said.contains("python3["), "{said}");
    assert_eq!(scratch.journals(), 0);
}

#[test]
fn a_policy_that_cannot_be_had_is_refused_before_the_program_starts() {
    let scratch = Scratch::new("refused");
    let mark = scratch.path("started");
    let touch = format!("touch {}", mark.display());
    let output = scratch
        .napkin(&["run", "--policy", "busypoll-separate", "--", "sh", "-c", &touch])
        .output()
        .expect("napkin");
    assert_eq!(output.status.code(), Some(125));
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(said.contains("busypoll"), "{said}");
    let output = scratch
        .napkin(&["run", "--policy", "base", "--dev", "nosuch", "--", "sh", "-c", &touch])
        .output()
        .expect("napkin");
    assert_eq!(output.status.code(), Some(125), "as the help says");
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(said.contains("nosuch"), "{said}");
    assert!(!mark.exists());
}

/// Runs a server, waits until it has so many contexts and all are set, and ends it by SIGTERM.
fn serves(scratch: &Scratch, program: &[&str], at_least: usize, poke: impl FnOnce()) {
    let arguments = [&["run", "--verbose", "--policy", "suspend20", "--"], program].concat();
    let mut command = scratch.napkin(&arguments);
    command.stdout(Stdio::null());
    let napkin = Running::start(command);
    let before = until_all_set(&napkin, at_least);
    poke();
    let after = until_all_set(&napkin, before);
    napkin.signal(libc::SIGTERM);
    let (status, said) = napkin.end();
    let set: Vec<&str> = said.lines().filter(|line| line.contains("; set within")).collect();
    eprintln!("{}: {after} contexts\n{}", program[0], set.join("\n"));
    assert!(!set.is_empty(), "{said}");
    assert!(status.code() == Some(0) || status.signal() == Some(libc::SIGTERM), "{status} {said}");
    assert_eq!(scratch.journals(), 0, "{said}");
}

/// Waits until somebody listens, and connects.
fn connect(port: u16) -> std::net::TcpStream {
    until("a listener", || std::net::TcpStream::connect(("127.0.0.1", port)).ok())
}

fn whoami_is_root() -> bool {
    // SAFETY: the call takes nothing and returns a number.
    unsafe { libc::geteuid() == 0 }
}

#[test]
fn memcached_unmodified() {
    needs_program("memcached");
    let scratch = Scratch::new("memcached");
    let port = free_port().to_string();
    let mut program = vec!["memcached", "-l", "127.0.0.1", "-U", "0", "-t", "4", "-p", &port];
    if whoami_is_root() {
        program.extend(["-u", "root"]);
    }
    // One for each of four threads, and the main one's.
    serves(&scratch, &program, 5, || {
        let mut stream = connect(port.parse().expect("a port"));
        stream.write_all(b"version\r\n").expect("it listens");
        let mut line = String::new();
        BufReader::new(stream).read_line(&mut line).expect("it answers");
        assert!(line.starts_with("VERSION"), "{line}");
    });
}

#[test]
fn nginx_unmodified_a_master_and_two_workers() {
    needs_program("nginx");
    let scratch = Scratch::new("nginx");
    let port = free_port();
    let directory = scratch.0.display();
    let user = if whoami_is_root() { "user root;" } else { "" };
    let config = format!(
        "{user} worker_processes 2; pid {directory}/pid; error_log {directory}/error;\n\
         events {{ worker_connections 64; }}\n\
         http {{ access_log off; client_body_temp_path {directory}/b; proxy_temp_path {directory}/p;\n\
         fastcgi_temp_path {directory}/f; uwsgi_temp_path {directory}/u; scgi_temp_path {directory}/s;\n\
         server {{ listen 127.0.0.1:{port}; return 204; }} }}\n"
    );
    let path = scratch.path("nginx.conf");
    std::fs::write(&path, config).expect("a file");
    let path = path.to_str().expect("text");
    let mut workers_before = Vec::new();
    serves(&scratch, &["nginx", "-c", path, "-e", "stderr", "-g", "daemon off;"], 2, || {
        // New workers with new contexts, while the old ones end.
        let pid = std::fs::read_to_string(scratch.path("pid")).expect("nginx wrote it");
        let pid: i32 = pid.trim().parse().expect("an id");
        let master = Process::open(pid).expect("it lives");
        workers_before = master.children().expect("it lives");
        // SAFETY: the call takes two numbers.
        assert_eq!(unsafe { libc::kill(pid, libc::SIGHUP) }, 0);
        until("new workers", || {
            let now = master.children().ok()?;
            (now.len() == 2 && now.iter().all(|pid| !workers_before.contains(pid))).then_some(())
        });
        drop(connect(port));
    });
    assert_eq!(workers_before.len(), 2);
}

#[test]
fn redis_unmodified() {
    needs_program("redis-server");
    let scratch = Scratch::new("redis");
    let port = free_port().to_string();
    let directory = scratch.0.display().to_string();
    let program =
        ["redis-server", "--port", &port, "--bind", "127.0.0.1", "--save", "", "--dir", &directory];
    serves(&scratch, &program, 1, || drop(connect(port.parse().expect("a port"))));
}

const GO_SERVER: &str = "package main\n\
import (\"io\"; \"net\"; \"os\")\n\
func main() {\n\
\tl, err := net.Listen(\"tcp\", os.Args[1])\n\
\tif err != nil { panic(err) }\n\
\tfor {\n\
\t\tc, err := l.Accept()\n\
\t\tif err != nil { return }\n\
\t\tgo io.Copy(c, c)\n\
\t}\n\
}\n";

#[test]
fn a_go_server_statically_linked() {
    needs_program("go");
    let scratch = Scratch::new("go");
    std::fs::write(scratch.path("main.go"), GO_SERVER).expect("a file");
    let built = Command::new("go")
        .args(["build", "-o", "server", "main.go"])
        .current_dir(&scratch.0)
        .env("CGO_ENABLED", "0")
        .env("GOCACHE", concat!(env!("CARGO_TARGET_TMPDIR"), "/go"))
        .env("GO111MODULE", "off")
        .env("GOFLAGS", "")
        .output()
        .expect("go");
    let said = String::from_utf8_lossy(&built.stderr);
    assert!(built.status.success(), "{said}");
    let server = scratch.path("server");
    // No interpreter: nothing could be preloaded into it.
    let bytes = std::fs::read(&server).expect("it was built");
    assert!(!bytes.windows(8).any(|window| window == b"ld-linux"), "it is linked dynamically");
    let address = format!("127.0.0.1:{}", free_port());
    let program = [server.to_str().expect("text"), &address];
    serves(&scratch, &program, 1, || {
        let mut stream = connect(address.rsplit_once(':').expect("a port").1.parse().unwrap());
        stream.write_all(b"hello").expect("it listens");
        let mut back = [0; 5];
        stream.read_exact(&mut back).expect("it answers");
        assert_eq!(&back, b"hello");
    });
}

/// A python program with one context, that tells its parameters when it gets a line.
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

#[test]
fn attach_holds_until_it_is_interrupted_and_puts_back() {
    let (mut child, mut output) = python();
    let scratch = Scratch::new("attach");
    let pid = child.id().to_string();
    for (end, arguments) in
        [(Some(libc::SIGINT), &[][..]), (Some(libc::SIGTERM), &[]), (None, &["--for", "200ms"])]
    {
        let attach = [&["attach", &pid, "--policy", "suspend20"], arguments].concat();
        let napkin = Running::start(scratch.napkin(&attach));
        if let Some(signal) = end {
            until("set", || (params(&mut child, &mut output) == SET).then_some(()));
            assert_eq!(scratch.journals(), 1);
            napkin.signal(signal);
        }
        let (status, said) = napkin.end();
        assert_eq!(status.code(), Some(0), "{said}");
        assert!(said.contains("busy poll 0 us, budget 64, prefer; set"), "{said}");
        assert!(said.contains("put back: 1"), "{said}");
        assert_eq!(params(&mut child, &mut output), OFF);
        assert_eq!(scratch.journals(), 0);
    }
    child.kill().expect("a child");
    child.wait().expect("it ends");
}

#[test]
fn what_a_killed_napkin_leaves_is_put_back_by_restore() {
    let (mut child, mut output) = python();
    let scratch = Scratch::new("killed");
    let pid = child.id().to_string();
    let attach = ["attach", &pid, "--policy", "suspend20"];
    let mut napkin = Running::start(scratch.napkin(&attach));
    until("set", || (params(&mut child, &mut output) == SET).then_some(()));
    // A second one has nothing to do if it wants the same, and is told who is at it if not.
    let second = scratch.napkin(&attach).arg("--once").output().expect("napkin");
    let said = String::from_utf8_lossy(&second.stderr).into_owned();
    assert!(second.status.success() && said.contains("nothing was to be set"), "{said}");
    let other = ["attach", &pid, "--policy", "napibusy", "--once"];
    let second = scratch.napkin(&other).output().expect("napkin");
    let said = String::from_utf8_lossy(&second.stderr).into_owned();
    assert_eq!(second.status.code(), Some(1), "{said}");
    assert!(said.contains(&napkin.pid().to_string()), "{said}");
    napkin.0.kill().expect("a child");
    napkin.0.wait().expect("it ends");
    drop(napkin);
    assert_eq!(params(&mut child, &mut output), SET);
    assert_eq!(scratch.journals(), 1);
    let restored = scratch.napkin(&["restore"]).output().expect("napkin");
    assert!(restored.status.success(), "{}", String::from_utf8_lossy(&restored.stderr));
    assert_eq!(params(&mut child, &mut output), OFF);
    assert_eq!(scratch.journals(), 0);
    // What is set once and left is put back the same way.
    let once = scratch.napkin(&attach).arg("--once").output().expect("napkin");
    assert!(once.status.success(), "{}", String::from_utf8_lossy(&once.stderr));
    assert_eq!(params(&mut child, &mut output), SET);
    let restored = scratch.napkin(&["restore"]).output().expect("napkin");
    assert!(restored.status.success(), "{}", String::from_utf8_lossy(&restored.stderr));
    assert_eq!(params(&mut child, &mut output), OFF);
    child.kill().expect("a child");
    child.wait().expect("it ends");
}

#[test]
fn a_state_directory_may_be_named_from_here() {
    let (mut child, mut output) = python();
    let scratch = Scratch::new("relative");
    let pid = child.id().to_string();
    let napkin = |arguments: &[&str]| {
        let mut command = scratch.napkin(arguments);
        command.env("NAPKIN_STATE", "not-there-yet").current_dir(&scratch.0);
        command.output().expect("napkin")
    };
    let once = napkin(&["attach", &pid, "--policy", "suspend20", "--once"]);
    assert!(once.status.success(), "{}", String::from_utf8_lossy(&once.stderr));
    assert_eq!(params(&mut child, &mut output), SET);
    assert!(napkin(&["restore"]).status.success());
    assert_eq!(params(&mut child, &mut output), OFF);
    child.kill().and_then(|()| child.wait()).expect("a child");
}

#[test]
fn a_process_that_is_not_there_is_said_so() {
    let scratch = Scratch::new("absent");
    let output = scratch
        .napkin(&["attach", "2147483647", "--policy", "suspend20"])
        .output()
        .expect("napkin");
    assert_eq!(output.status.code(), Some(1));
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(said.contains("there is no process 2147483647"), "{said}");
}

/// A python that has made so many children, each with an epoll context, which end with it.
fn python_with_children(count: usize) -> (Child, BufReader<std::process::ChildStdout>) {
    needs_program("python3");
    let program = format!(
        "import os, select, sys\n\
         r, w = os.pipe()\n\
         for _ in range({count}):\n\
         \x20   if os.fork() == 0:\n\
         \x20       os.close(w); e = select.epoll(); os.write(1, b'.')\n\
         \x20       os.read(r, 1); os._exit(0)\n\
         sys.stdin.read()"
    );
    let mut child = Command::new("python3")
        .args(["-c", &program])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .expect("python3");
    let mut output = BufReader::new(child.stdout.take().expect("piped"));
    output.read_exact(&mut vec![0; count]).expect("each tells that it is there");
    (child, output)
}

/// How many of the contexts below a process are set.
fn set_below(pid: u32) -> usize {
    let epolls = epolls_below(i32::try_from(pid).expect("an id"));
    epolls.iter().filter(|(.., params)| *params == SUSPEND20).count()
}

/// Gives a command a soft and a hard limit of open files.
fn limit_files(command: &mut Command, soft: u64, hard: u64) {
    let limit = libc::rlimit { rlim_cur: soft, rlim_max: hard };
    let set = move || {
        // SAFETY: the pointer is to a live value.
        match unsafe { libc::setrlimit(libc::RLIMIT_NOFILE, &raw const limit) } {
            0 => Ok(()),
            _ => Err(std::io::Error::last_os_error()),
        }
    };
    // SAFETY: between fork and exec it makes one system call.
    unsafe { command.pre_exec(set) };
}

#[test]
fn more_processes_than_the_soft_limit_of_open_files_has_room_for_are_all_set() {
    let (mut child, _output) = python_with_children(60);
    let scratch = Scratch::new("soft");
    let pid = child.id().to_string();
    let mut attach = scratch.napkin(&["attach", &pid, "--policy", "suspend20", "--once", "-v"]);
    limit_files(&mut attach, 48, 1_024);
    let output = attach.output().expect("napkin");
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(output.status.success(), "{said}");
    assert_eq!(set_below(child.id()), 60, "{said}");
    // Each needs two: its own, and its journal's lock; the journal itself is closed.
    let mut fits = scratch.napkin(&["attach", &pid, "--policy", "suspend20", "--once", "-v"]);
    assert!(scratch.napkin(&["restore"]).status().expect("napkin").success());
    limit_files(&mut fits, 160, 160);
    let output = fits.output().expect("napkin");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    assert_eq!(set_below(child.id()), 60);
    child.kill().and_then(|()| child.wait()).expect("a child");
}

#[test]
fn each_process_that_there_is_no_descriptor_for_is_said_and_the_exit_status_tells() {
    let (mut child, _output) = python_with_children(60);
    let scratch = Scratch::new("hard");
    let pid = child.id().to_string();
    let attach = ["attach", &pid, "--policy", "suspend20"];
    let mut once = scratch.napkin(&[&attach[..], &["--once"]].concat());
    limit_files(&mut once, 64, 64);
    let output = once.output().expect("napkin");
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert_eq!(output.status.code(), Some(1), "{said}");
    let set = set_below(child.id());
    assert!((1..60).contains(&set), "{set}: {said}");
    let failed: Vec<&str> =
        said.lines().filter(|line| line.contains("may open 64 files")).collect();
    assert_eq!(failed.len(), 60 - set, "{said}");
    assert!(failed[0].contains("raise the limit"), "{}", failed[0]);
    assert!(said.contains(&format!("not everything was set in {} processes", 60 - set)), "{said}");
    assert!(scratch.napkin(&["restore"]).status().expect("napkin").success());
    assert_eq!(set_below(child.id()), 0);

    // Those that could be set stay so until the end, and there is room to put them back.
    let mut kept = scratch.napkin(&[&attach[..], &["-v"]].concat());
    limit_files(&mut kept, 64, 64);
    let mut napkin = Running::start(kept);
    // Told of the last of them, it has looked at all.
    let mut lines = BufReader::new(napkin.0.stderr.take().expect("piped"));
    let (mut told, mut said) = (0, String::new());
    while told < 60 {
        let mut line = String::new();
        assert!(lines.read_line(&mut line).expect("text") > 0, "{said}");
        told += usize::from(line.contains("; set") || line.contains("may open 64 files"));
        said += &line;
    }
    let set = set_below(child.id());
    assert!((1..60).contains(&set), "{set}: {said}");
    napkin.signal(libc::SIGINT);
    lines.read_to_string(&mut said).expect("text");
    let status = napkin.0.wait().expect("it ends");
    assert_eq!(status.code(), Some(1), "{said}");
    assert!(said.contains(&format!("put back: {set}")) && !said.contains("ended"), "{said}");
    assert_eq!((set_below(child.id()), scratch.journals()), (0, 0), "{said}");
    child.kill().and_then(|()| child.wait()).expect("a child");
}

#[test]
fn a_look_that_finds_no_descriptor_left_is_no_end_of_the_process() {
    let (mut child, mut output) = python();
    let scratch = Scratch::new("look");
    let pid = child.id().to_string();
    let mut napkin =
        Running::start(scratch.napkin(&["attach", &pid, "--policy", "suspend20", "-v"]));
    until("set", || (params(&mut child, &mut output) == SET).then_some(()));
    let id = napkin.pid();
    let limit = |files| {
        let limit = libc::rlimit { rlim_cur: files, rlim_max: 1_024 };
        // SAFETY: the pointer is to a live value; the last may be null.
        let set = unsafe {
            libc::prlimit(id, libc::RLIMIT_NOFILE, &raw const limit, std::ptr::null_mut())
        };
        assert_eq!(set, 0);
    };
    limit(3);
    let mut said = String::new();
    let mut lines = BufReader::new(napkin.0.stderr.take().expect("piped"));
    while !said.contains("may open 3 files") {
        assert!(lines.read_line(&mut said).expect("text") > 0, "{said}");
    }
    limit(1_024);
    params(&mut child, &mut output);
    napkin.signal(libc::SIGINT);
    lines.read_to_string(&mut said).expect("text");
    assert!(!said.contains("ended"), "{said}");
    assert!(said.contains("put back: 1"), "{said}");
    assert_eq!(params(&mut child, &mut output), OFF);
    napkin.0.wait().expect("it ends");
    child.kill().and_then(|()| child.wait()).expect("a child");
}

#[test]
fn a_program_starts_with_the_limit_of_open_files_that_napkin_had() {
    let scratch = Scratch::new("files");
    let mut command =
        scratch.napkin(&["run", "--policy", "suspend20", "--", "sh", "-c", "ulimit -Sn"]);
    limit_files(&mut command, 77, 1_024);
    let output = command.output().expect("napkin");
    assert_eq!(String::from_utf8_lossy(&output.stdout), "77\n");
}

napkin_testing::main!();
