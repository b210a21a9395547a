//! `--guard` of `run`, `attach` and `apply --for`, with a program that starves its queue: a server with an
//! always-writable pipe in its epoll context.

mod common;

use std::fs;
use std::io::{BufRead, BufReader};
use std::net::{Ipv4Addr, UdpSocket};
use std::os::fd::AsFd;
use std::os::unix::process::CommandExt;
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{Receiver, channel};
use std::time::Duration;

use common::namespace::{fresh, needs_rights};
use common::{TempDir, text, within};
use napkin_kernel::namespace::Namespace;
use napkin_kernel::netlink::{Ethtool, GRO, GSO, Netdev, Route, TSO, VethConfig};
use napkin_os::rights::Right;
use napkin_testing::{needs_program, test};
use rustix::process::{Pid, Signal, kill_process};
use rustix::thread::CapabilitySet;

/// A timeout longer than a busy host keeps a program off its CPU.
const POLICY: &str = "suspend20,irq-suspend-timeout=200ms";

/// Counts received datagrams in the length of a file, until a signal ends it.
const PROGRAM: &str = "\
import os, select, socket, sys
got = open(sys.argv[1], 'wb', buffering=0)
sock = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
sock.bind(('10.9.0.1', 9000)); sock.setblocking(False)
down, up = os.pipe()
context = select.epoll()
context.register(sock.fileno(), select.EPOLLIN)
context.register(up, select.EPOLLOUT)
while True:
    for fd, _ in context.poll(1):
        if fd == sock.fileno():
            try:
                while True:
                    sock.recv(64); got.write(b'x')
            except BlockingIOError:
                pass
";

/// A veth between two namespaces, `va` with 10.9.0.1 here.
struct Bed {
    here: Namespace,
    home: TempDir,
    sender: UdpSocket,
}

impl Bed {
    fn new(name: &str) -> Bed {
        needs_rights(&[Right::Bpf, Right::Perfmon, Right::SysPtrace]);
        needs_program("python3");
        let (here, there) = (fresh(), fresh());
        let up = |ifname: &str, last| {
            let mut route = Route::open().expect("a socket");
            let ifindex = route.link(ifname).expect("it was made").ifindex;
            route.add_address(ifindex, Ipv4Addr::new(10, 9, 0, last), 24).expect("an address");
            route.set_up(ifindex).expect("up");
        };
        let pair = || {
            let peer_namespace = Some(there.as_fd());
            let config =
                VethConfig { name: "va", peer: "vb", peer_namespace, rx_queues: 1, tx_queues: 1 };
            Route::open().expect("a socket").add_veth(&config).expect("a pair");
            // Without GRO a veth has no NAPI instance.
            let mut ethtool = Ethtool::open().expect("ethtool");
            ethtool.set_features("va", &[(GRO[0], true)]).expect("features");
            up("va", 1);
        };
        here.run(pair).expect("entered");
        let other = || {
            // Packets that are not segmented yet bypass the NAPI instance.
            let off: Vec<_> = TSO.iter().chain(GSO).map(|name| (*name, false)).collect();
            Ethtool::open().expect("ethtool").set_features("vb", &off).expect("features");
            up("vb", 2);
            UdpSocket::bind("10.9.0.2:0").expect("a socket")
        };
        let sender = there.run(other).expect("entered");
        Bed { here, home: TempDir::new(name), sender }
    }

    fn command(&self, args: &str) -> Command {
        let mut command = common::command();
        command.args(args.split(' ')).env("NAPKIN_STATE", self.home.0.join("state"));
        command
    }

    /// Appends the program to a command.
    fn program(&self, mut command: Command) -> Command {
        command.args(["python3", "-c", PROGRAM]).arg(self.home.0.join("got"));
        command
    }

    fn start(&self, mut command: Command) -> Running {
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::piped());
        let mut child = self.here.run(|| command.spawn()).expect("entered").expect("it starts");
        let lines = BufReader::new(child.stderr.take().expect("piped")).lines();
        let (send, line_receiver) = channel();
        std::thread::spawn(move || {
            lines.map_while(Result::ok).for_each(|line| drop(send.send(line)));
        });
        Running { child, lines: line_receiver }
    }

    /// The number of datagrams received.
    fn got(&self) -> u64 {
        fs::metadata(self.home.0.join("got")).map_or(0, |it| it.len())
    }

    fn send(&self) {
        self.sender.send_to(b"x", "10.9.0.1:9000").expect("sent");
        std::thread::sleep(Duration::from_millis(2));
    }

    /// Sends until `more` further datagrams are received.
    fn arrive(&self, more: u64) {
        let before = self.got();
        within("datagrams arrive", || {
            self.send();
            (self.got() >= before + more).then_some(())
        });
    }

    fn timeout(&self) -> Option<u64> {
        let napis = || Netdev::open().expect("netdev").napis(None).expect("instances");
        self.here.run(napis).expect("entered")[0].settings.irq_suspend_timeout
    }

    fn journals(&self) -> usize {
        let files = fs::read_dir(self.home.0.join("state")).into_iter().flatten().flatten();
        files.filter(|it| it.path().extension().is_some_and(|it| it == "journal")).count()
    }
}

/// A program whose lines on standard error are read as they come.
struct Running {
    child: Child,
    lines: Receiver<String>,
}

impl Running {
    /// The next line that contains `wanted`.
    fn line(&self, wanted: &str) -> String {
        let next = || self.lines.recv_timeout(common::TIMEOUT);
        std::iter::from_fn(|| next().ok())
            .find(|line| line.contains(wanted))
            .unwrap_or_else(|| panic!("it never said: {wanted}"))
    }

    /// Ends it by SIGTERM. Returns its remaining output.
    fn end(&mut self) -> Vec<String> {
        let pid = Pid::from_child(&self.child);
        kill_process(pid, Signal::TERM).expect("it runs");
        self.child.wait().expect("it ends");
        self.lines.iter().collect()
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

#[test]
fn run_ends_a_starvation_and_names_the_program() {
    let bed = Bed::new("guard-run");
    let run = bed.command(&format!("run --policy {POLICY} --dev va --"));
    let mut napkin = bed.start(bed.program(run));
    bed.arrive(1);
    // From now on the interrupt is suspended, until the queue starves.
    let line = within("it starves and is helped", || {
        bed.send();
        napkin.lines.try_recv().ok().filter(|line| line.contains("starved"))
    });
    assert!(line.starts_with("va queue 0 (NAPI "), "{line}");
    assert!(line.contains("python3[") && line.contains(" thread "), "{line}");
    assert!(line.contains(" waits on epoll ") && line.contains(" (EPOLLOUT) is always "), "{line}");
    assert!(line.ends_with("irq-suspend-timeout 200ms -> 0 until napkin ends"), "{line}");
    assert_eq!(bed.timeout(), Some(0));
    bed.arrive(50);
    assert_eq!(napkin.end(), [""; 0]);
    assert_eq!((bed.timeout(), bed.journals()), (Some(0), 0), "as before run");
}

#[test]
fn attach_puts_back_what_apply_had_set() {
    let bed = Bed::new("guard-attach");
    let apply = || bed.command(&format!("apply {POLICY} --dev va")).output().expect("it runs");
    let applied = bed.here.run(apply).expect("entered");
    let stderr = text(&applied.stderr);
    assert!(applied.status.success(), "{stderr}");
    assert!(
        stderr.contains("starved queues are not watched for once napkin has ended"),
        "{stderr}"
    );
    let program = bed.program(Command::new("env"));
    let program = bed.start(program);
    bed.arrive(1);
    // Without --dev the guard watches all instances of this namespace that are set to suspend.
    let attach = format!("attach {} --policy {POLICY} --guard again", program.child.id());
    let mut napkin = bed.start(bed.command(&attach));
    let line = within("it starves and is helped", || {
        bed.send();
        napkin.lines.try_recv().ok().filter(|line| line.contains("starved"))
    });
    assert!(line.ends_with("irq-suspend-timeout 200ms -> 0 for 10 s"), "{line}");
    bed.arrive(50);
    napkin.end();
    assert_eq!(bed.timeout(), Some(200_000_000), "as apply had set it");
    let restore = || bed.command("restore").output().expect("it runs");
    assert!(bed.here.run(restore).expect("entered").status.success());
    assert_eq!((bed.timeout(), bed.journals()), (Some(0), 0));
}

#[test]
fn apply_for_a_time_watches_its_device_unless_told_not_to() {
    let bed = Bed::new("guard-apply");
    let mut napkin = bed.start(bed.command(&format!("apply {POLICY} --dev va --for 1h")));
    napkin.line("held for");
    let program = bed.program(bed.command(&format!("run --guard off --policy {POLICY} --")));
    let mut program = bed.start(program);
    bed.arrive(1);
    let line = within("it starves and is helped", || {
        bed.send();
        napkin.lines.try_recv().ok().filter(|line| line.contains("starved"))
    });
    assert!(line.contains("python3["), "{line}");
    bed.arrive(50);
    assert!(program.end().iter().all(|line| !line.contains("starved")), "it does not watch");
    napkin.end();
    assert_eq!((bed.timeout(), bed.journals()), (Some(0), 0));
}

#[test]
fn a_device_that_another_napkin_holds_is_said_to_be_beyond_help() {
    let bed = Bed::new("guard-held");
    let mut holder = bed.start(bed.command(&format!("apply {POLICY} --dev va --for 1h")));
    holder.line("held for");
    let run = |args: &str| {
        let mut command = bed.command(args);
        let output = bed.here.run(|| command.output().expect("it runs")).expect("entered");
        let stderr = text(&output.stderr);
        assert!(output.status.success(), "{stderr}");
        stderr
    };
    let stderr = run(&format!("run --policy {POLICY} -- true"));
    let whom = format!("note: va is held by process {} (", holder.child.id());
    assert!(stderr.contains(&whom) && stderr.contains("napkin keep ... --unit"), "{stderr}");
    assert!(!run(&format!("run -q --policy {POLICY} -- true")).contains("is held by"));
    holder.end();
    assert!(!run(&format!("run --policy {POLICY} --dev va -- true")).contains("is held by"));
}

#[test]
fn a_guard_of_ones_own_breaks_where_a_queue_starves_though_it_was_helped() {
    let bed = Bed::new("guard-canary");
    let program = bed.program(bed.command(&format!("run --guard off --policy {POLICY} --")));
    let mut program = bed.start(program);
    bed.arrive(1);
    let guarded = format!("apply {POLICY} --dev va --guard true --watch 1h");
    let mut napkin = bed.start(bed.command(&guarded));
    napkin.line("watched for");
    let line = within("it starves, and the policy is put back", || {
        bed.send();
        napkin.lines.try_recv().ok().filter(|line| line.contains("the guard broke"))
    });
    assert!(line.ends_with("a queue starved under it"), "{line}");
    assert_eq!(napkin.child.wait().expect("it ends").code(), Some(3));
    program.end();
    assert_eq!((bed.timeout(), bed.journals()), (Some(0), 0));
}

#[test]
fn without_the_right_to_count_it_says_that_nobody_watches_and_goes_on() {
    let bed = Bed::new("guard-right");
    let run = || {
        let mut command = bed.command(&format!("run --policy {POLICY} -- true"));
        // SAFETY: between fork and exec only system calls are made, and nothing is allocated.
        unsafe {
            command.pre_exec(|| {
                // exec as root grants no capability outside of the bounding set.
                let counts = [CapabilitySet::BPF, CapabilitySet::PERFMON, CapabilitySet::SYS_ADMIN];
                for right in counts {
                    rustix::thread::remove_capability_from_bounding_set(right)?;
                }
                Ok(())
            });
        }
        command.output().expect("it runs")
    };
    let output = bed.here.run(run).expect("entered");
    let stderr = text(&output.stderr);
    assert!(output.status.success(), "{stderr}");
    assert!(
        stderr.contains("starved queues are not watched for: counting polls needs CAP_BPF"),
        "{stderr}"
    );
}

napkin_testing::main!();
