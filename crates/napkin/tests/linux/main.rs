//! End-to-end tests of the linux world: servers and devices under the real binary, which is killed, and run twice at
//! once. At the end everything is as before, here and elsewhere on the host.

#[path = "../common/mod.rs"]
mod common;
mod host;

use std::io::ErrorKind;
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::process::{Child, Command, Output, Stdio};

use common::namespace::fresh;
use common::{TempDir, text, within};
use napkin_kernel::netlink::{Ethtool, GRO, Netdev, Route, VethConfig};
use napkin_kernel::process::{Params, Process};
use napkin_kernel::{Setting, device};
use napkin_testing::{needs, needs_program, test};
use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;

const SUSPEND20: Params =
    Params { busy_poll_usecs: 0, busy_poll_budget: 64, prefer_busy_poll: true };

/// Runs a test in a fresh namespace with two devices of two queues each: `va`, which is named to napkin, and `vc`,
/// which
/// must stay untouched.
fn lab(test: impl FnOnce() + Send) {
    let inside = || {
        pair("va", "vb");
        pair("vc", "vd");
        let lo = Route::open().expect("a socket").link("lo").expect("always there");
        Route::open().expect("a socket").set_up(lo.ifindex).expect("up");
        test();
    };
    fresh().run(inside).expect("entered");
}

fn pair(name: &str, peer: &str) {
    let mut route = Route::open().expect("a socket");
    let config = VethConfig { name, peer, peer_namespace: None, rx_queues: 2, tx_queues: 2 };
    route.add_veth(&config).expect("a pair");
    Ethtool::open().expect("ethtool").set_features(name, &[(GRO[0], true)]).expect("GRO");
    for name in [name, peer] {
        let link = route.link(name).expect("it was made");
        route.set_up(link.ifindex).expect("up");
    }
}

fn command(home: &TempDir, args: &str) -> Command {
    let mut command = common::command();
    command.args(args.split(' ')).env("NAPKIN_STATE", home.0.join("state")).stdin(Stdio::null());
    command
}

fn napkin(home: &TempDir, args: &str) -> Output {
    command(home, args).output().expect("the binary runs")
}

/// Runs a command that must succeed, and returns its output.
fn done(home: &TempDir, args: &str) -> String {
    let output = napkin(home, args);
    let printed = text(&output.stdout) + &text(&output.stderr);
    assert!(output.status.success(), "{args}: {} {printed}", output.status);
    printed
}

/// Every instance's settings, its thread's CPUs and class; ids of threads differ each time, and
/// those of instances each time that the device comes up.
fn settings(ifname: &str) -> String {
    let mut netdev = Netdev::open().expect("netdev");
    let mut device = device::find(&mut netdev, ifname).expect("it is there");
    for napi in &mut device.napis {
        napi.id = 0;
        napi.pid = napi.pid.map(|_| 1);
    }
    format!("{device:#?}")
}

/// Sets values that no policy has, so that restoring them differs from switching everything off.
fn unusual() -> String {
    let mut netdev = Netdev::open().expect("netdev");
    for (queue, setting, value) in [
        (0, Setting::Threaded, 1),
        (0, Setting::DeferHardIrqs, 3),
        (1, Setting::GroFlushTimeout, 50_000),
        (1, Setting::IrqSuspendTimeout, 7_000_000),
    ] {
        let device = device::read(&mut netdev, "va").expect("it is there");
        let napi = device.of_rx_queue(queue).expect("a queue");
        netdev.set_napi(napi.id, setting, value).expect("it takes it");
    }
    settings("va")
}

fn journals(home: &TempDir) -> usize {
    let files = std::fs::read_dir(home.0.join("state")).into_iter().flatten().flatten();
    files.filter(|it| it.path().extension().is_some_and(|it| it == "journal")).count()
}

/// A process that is ended with the test, also if it is not the test's own child.
struct KillOnDrop(i32);

impl KillOnDrop {
    fn now(&self, signal: Signal) {
        let pid = Pid::from_raw(self.0).expect("not 0");
        let _ = kill_process(pid, signal);
    }
}

impl Drop for KillOnDrop {
    fn drop(&mut self) {
        self.now(Signal::KILL);
    }
}

fn id(child: &Child) -> i32 {
    i32::try_from(child.id()).expect("an id")
}

/// The parameters of a process's epoll contexts, read from this process, in the order of descriptors.
fn epolls(pid: i32) -> Vec<Params> {
    let Ok(process) = Process::open(pid) else { return Vec::new() };
    let Ok(found) = process.descriptors(usize::MAX) else { return Vec::new() };
    let take = |epoll| Params::get(process.take(&epoll).ok()??).ok()?;
    found.epolls().filter_map(take).collect()
}

/// memcached's arguments with a free port, which another program may take before it is used.
fn memcached() -> String {
    needs_program("memcached");
    let listener = std::net::TcpListener::bind("127.0.0.1:0").expect("loopback");
    let port = listener.local_addr().expect("bound").port();
    format!("memcached -u root -l 127.0.0.1 -U 0 -t 2 -p {port}")
}

/// memcached's contexts, once it has all: the main thread's and one for each of its two workers.
fn serving(pid: i32) -> Vec<Params> {
    within("three contexts", || Some(epolls(pid)).filter(|all| all.len() == 3))
}

fn start(program: &str) -> Child {
    let mut words = program.split(' ');
    let mut command = Command::new(words.next().expect("a name"));
    command.args(words).stdin(Stdio::null()).stderr(Stdio::null()).spawn().expect("it starts")
}

/// The only child of a napkin, once its contexts have the policy's parameters.
fn child_under(napkin: &Child, params: Params) -> i32 {
    let napkin = Process::open(id(napkin)).expect("it runs");
    within("the program, set", || {
        let pid = *napkin.children().ok()?.first()?;
        let all = epolls(pid);
        (all.len() == 3 && all.iter().all(|it| *it == params)).then_some(pid)
    })
}

#[test]
fn once_is_put_back_by_restore() {
    lab(|| {
        let program = memcached();
        let home = TempDir::new("linux-once");
        let mut server = start(&program);
        let ends = KillOnDrop(id(&server));
        let before = serving(ends.0);
        let output = done(&home, &format!("attach {} --policy suspend20 --once", ends.0));
        assert!(output.contains("left in force: napkin restore puts it back"), "{output}");
        assert_eq!(serving(ends.0), [SUSPEND20; 3]);
        assert_eq!(journals(&home), 1);

        let output = done(&home, "restore --dry-run");
        assert!(output.contains("would be put back: epoll"), "{output}");
        assert_eq!(serving(ends.0), [SUSPEND20; 3]);
        let output = done(&home, "restore");
        assert_eq!(output.matches(": put back: epoll").count(), 3, "{output}");
        assert_eq!((serving(ends.0), journals(&home)), (before, 0));

        // The process in the journal has ended: nothing to restore is not a failure.
        done(&home, &format!("attach {} --policy suspend20 --once -q", ends.0));
        ends.now(Signal::TERM);
        server.wait().expect("it ends");
        done(&home, "restore");
        assert_eq!(journals(&home), 0);
    });
}

#[test]
fn what_an_earlier_attach_left_outlives_a_later_one() {
    lab(|| {
        let program = memcached();
        let home = TempDir::new("linux-nested");
        let mut server = start(&program);
        let ends = KillOnDrop(id(&server));
        let before = serving(ends.0);
        done(&home, &format!("attach {} --policy suspend20 --once", ends.0));
        for policy in ["napibusy", "suspend20"] {
            let output = done(&home, &format!("attach {} --policy {policy} --for 50ms", ends.0));
            assert!(output.contains("napkin restore puts it back"), "{policy}: {output}");
            assert_eq!(serving(ends.0), [SUSPEND20; 3], "{policy}");
            assert_eq!(journals(&home), 1, "{policy}");
        }
        done(&home, "restore");
        assert_eq!((serving(ends.0), journals(&home)), (before, 0));
        ends.now(Signal::TERM);
        server.wait().expect("it ends");
    });
}

#[test]
fn run_killed_in_the_middle_leaves_what_restore_puts_back() {
    lab(|| {
        let program = memcached();
        let home = TempDir::new("linux-killed");
        let before = unusual();
        let run = format!("run --policy suspend20 --dev va -- {program}");
        let mut child = command(&home, &run).stderr(Stdio::null()).spawn().expect("it runs");
        let program = KillOnDrop(child_under(&child, SUSPEND20));
        assert_ne!(settings("va"), before);
        child.kill().expect("it runs");
        child.wait().expect("it ends");

        // The program still serves; device and program are still set.
        assert_eq!(epolls(program.0), [SUSPEND20; 3]);
        assert_eq!(napkin(&home, "diff suspend20 --dev va").status.code(), Some(0));
        assert_eq!(napkin(&home, "diff --dev va").status.code(), Some(1));
        done(&home, "restore");
        assert_eq!(settings("va"), before);
        assert_eq!(epolls(program.0), [Params::default(); 3]);
        assert_eq!(journals(&home), 0);
        assert_eq!(napkin(&home, "diff --dev va").status.code(), Some(0));
    });
}

#[test]
fn run_puts_the_device_back_and_ends_as_its_program_did() {
    lab(|| {
        let home = TempDir::new("linux-run");
        let before = unusual();
        for (program, code) in [("true", 0), ("false", 1), ("/nonexistent", 127)] {
            let output = napkin(&home, &format!("run -q --policy suspend20 --dev va -- {program}"));
            assert_eq!(output.status.code(), Some(code), "{program}: {}", text(&output.stderr));
            assert_eq!((settings("va"), journals(&home)), (before.clone(), 0), "{program}");
        }
        let program = memcached();
        let run = format!("run -q --policy suspend20 --dev va -- {program}");
        let mut child = command(&home, &run).spawn().expect("it runs");
        let program = KillOnDrop(child_under(&child, SUSPEND20));
        assert_eq!(napkin(&home, "diff suspend20 --dev va").status.code(), Some(0));
        program.now(Signal::KILL);
        let status = child.wait().expect("it ends");
        assert_eq!(status.signal(), Some(libc::SIGKILL), "{status}");
        assert_eq!((settings("va"), journals(&home)), (before, 0));
    });
}

#[test]
fn whoever_comes_second_is_told_who_holds_device_and_program() {
    lab(|| {
        let program = memcached();
        let home = TempDir::new("linux-second");
        let before = unusual();
        let run = format!("run -q --policy suspend20 --dev va -- {program}");
        let mut first = command(&home, &run).spawn().expect("it runs");
        let program = KillOnDrop(child_under(&first, SUSPEND20));
        let held = settings("va");
        let attach = format!("attach {} --policy napibusy", program.0);
        for second in [
            "run --policy defer20 --dev va -- true",
            "apply defer20 --dev va",
            "apply defer20 --dev va --for 1h",
            "restore",
            "restore --force --forget",
            &format!("{attach} --dev va"),
            &format!("{attach} --once"),
            &format!("{attach} --for 50ms"),
        ] {
            let output = napkin(&home, second);
            let stderr = text(&output.stderr);
            assert_eq!(output.status.code(), Some(refused(second)), "{second}: {stderr}");
            assert!(
                stderr.contains(&format!("held by process {} (", first.id())),
                "{second}: {stderr}"
            );
            assert_eq!((settings("va"), epolls(program.0)), (held.clone(), vec![SUSPEND20; 3]));
        }
        // Another device is not locked.
        assert!(napkin(&home, "run --policy defer20 --dev vc -- true").status.success());
        kill_process(Pid::from_child(&first), Signal::TERM).expect("it runs");
        first.wait().expect("it ends");
        assert_eq!((settings("va"), journals(&home)), (before, 0));
    });
}

#[test]
fn a_device_that_goes_or_is_down_at_the_end_does_not_hide_how_the_program_ended() {
    lab(|| {
        let home = TempDir::new("linux-gone");
        let before = settings("vc");
        let mut route = Route::open().expect("a socket");
        let ifindex = route.link("vc").expect("it is there").ifindex;
        let mut run = |change: &mut dyn FnMut(&mut Route)| {
            let go = home.0.join("go");
            let _ = std::fs::remove_file(&go);
            let script = "until [ -e \"$0\" ]; do sleep 0.01; done; exit 5";
            let child = command(&home, "run --policy suspend20 --dev vc -- sh -c")
                .args([script, go.to_str().expect("text")])
                .stderr(Stdio::piped())
                .spawn()
                .expect("it runs");
            let process = Process::open(id(&child)).expect("it runs");
            within("the program", || process.children().ok()?.first().copied());
            change(&mut route);
            std::fs::write(&go, "").expect("a file");
            let output = child.wait_with_output().expect("it ends");
            assert_eq!(output.status.code(), Some(5), "{}", text(&output.stderr));
            text(&output.stderr)
        };
        let message = run(&mut |route| route.set_down(ifindex).expect("down"));
        assert!(message.contains("not everything was put back"), "{message}");
        assert_eq!(journals(&home), 1);
        let output = napkin(&home, "restore");
        let message = text(&output.stderr);
        assert_eq!(output.status.code(), Some(1), "{message}");
        assert!(message.contains("ip link set vc up"), "{message}");
        Route::open().expect("a socket").set_up(ifindex).expect("up");
        done(&home, "restore");
        assert_eq!((settings("vc"), journals(&home)), (before, 0));

        run(&mut |route| route.delete(ifindex).expect("deleted"));
        assert_eq!(journals(&home), 0);
        assert!(done(&home, "restore").contains("nothing to put back"));
    });
}

/// The exit code of a refused command; that of `run` must differ from its program's.
fn refused(args: &str) -> i32 {
    if args.starts_with("run ") { 125 } else { 1 }
}

#[test]
fn a_policy_without_a_part_for_programs_says_so_and_one_that_linux_lacks_is_refused() {
    lab(|| {
        let home = TempDir::new("linux-part");
        let printed = done(&home, "run --policy threaded -- true");
        assert!(printed.contains("sets nothing in the program"), "{printed}");
        let output = napkin(&home, "run --policy hold -- true");
        assert_eq!(output.status.code(), Some(125));
        assert!(text(&output.stderr).contains("no Linux has hold"), "{}", text(&output.stderr));
    });
}

#[test]
fn a_busy_poll_that_keeps_its_napi_id_is_refused_by_whoever_would_set_it() {
    lab(|| {
        let home = TempDir::new("linux-keep");
        let before = settings("va");
        let policy = "fullbusy,epoll-keep-napi-id=on";
        let mut sleeper = Command::new("sleep").arg("60").spawn().expect("sleep");
        for args in [
            format!("apply --dev va {policy}"),
            format!("run --policy {policy} -- true"),
            format!("run --dev va --policy {policy} -- true"),
            format!("attach --policy {policy} {}", sleeper.id()),
            format!("attach --dev va --policy {policy} {}", sleeper.id()),
        ] {
            let output = napkin(&home, &args);
            let message = text(&output.stderr);
            assert_eq!(output.status.code(), Some(refused(&args)), "{args}: {message}");
            assert!(
                message.contains("no Linux has an epoll that keeps its NAPI id"),
                "{args}: {message}"
            );
            assert!(
                message.contains("the nearest that this kernel can do is fullbusy"),
                "{args}: {message}"
            );
        }
        sleeper.kill().and_then(|()| sleeper.wait()).expect("ended");
        // The bench does not fail: the policy's row says why it was not measured.
        let printed =
            done(&home, &format!("bench udp-sink --world linux --policy {policy} --quiet"));
        let printed = printed.split_whitespace().collect::<Vec<_>>().join(" ");
        assert!(
            printed.contains("not measured") && printed.contains("keeps its NAPI id after"),
            "{printed}"
        );
        assert_eq!((settings("va"), journals(&home)), (before, 0));
    });
}

#[test]
fn without_a_right_and_a_directory_the_right_is_named() {
    lab(|| {
        let home = TempDir::new("linux-rights");
        let before = settings("va");
        // A copy that every user may execute, made by `cp`: a process that another test forks meanwhile would inherit
        // our descriptor that writes it, and exec would fail with ETXTBSY.
        let binary = home.0.join("napkin");
        let copied = Command::new("cp").arg(env!("CARGO_BIN_EXE_napkin")).arg(&binary).status();
        assert!(copied.expect("cp runs").success());
        let mut nobody = Command::new(&binary);
        nobody.args(["apply", "suspend20", "--dev", "va"]).uid(65_534).gid(65_534);
        nobody.env_remove("NAPKIN_STATE").env_remove("XDG_RUNTIME_DIR");
        let output = nobody.output();
        needs(
            !matches!(&output, Err(it) if it.kind() == ErrorKind::PermissionDenied),
            "a directory that nobody may execute from",
        );
        let output = output.expect("the binary runs");
        assert_eq!(output.status.code(), Some(1));
        assert!(text(&output.stderr).contains("CAP_NET_ADMIN"), "{}", text(&output.stderr));
        assert_eq!(settings("va"), before);
    });
}

#[test]
fn what_is_asked_for_as_json_is_json() {
    lab(|| {
        let home = TempDir::new("linux-json");
        for (args, codes) in [
            ("show --json", &[0][..]),
            ("show va --json", &[0]),
            ("apply suspend20 --dev va --dry-run --json", &[0]),
            ("apply suspend20 --dev va --json", &[0]),
            ("diff --dev va --json", &[1]),
            ("diff suspend20 --dev va --json", &[0]),
            // No program uses the suspension: advice, or a fault of this host.
            ("doctor --dev va --for 20ms --json", &[0, 1]),
            ("top --batch --json -n 1 --interval 100ms", &[0]),
            ("restore --dry-run --json", &[0]),
            ("restore --json", &[0]),
        ] {
            let output = napkin(&home, args);
            let code = output.status.code().expect("no signal");
            assert!(codes.contains(&code), "{args}: {code} {}", text(&output.stderr));
            let parsed: Result<Value, _> = serde_json::from_slice(&output.stdout);
            assert!(parsed.is_ok(), "{args}: {parsed:?} {}", text(&output.stdout));
        }
    });
}

napkin_testing::main!();
