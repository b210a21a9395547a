//! `napkin apply`, `restore` and `diff` as commands: killed at every step, two at once, by users
//! without rights.

mod common;

use std::ffi::CString;
use std::fs::DirBuilder;
use std::io::{BufRead, BufReader};
use std::os::unix::fs::DirBuilderExt;
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::path::Path;
use std::process::{Command, Output, Stdio};

use common::namespace::fresh;
use common::{TempDir, text};
use napkin_kernel::netlink::{Ethtool, GRO, Netdev, Route, VethConfig};
use napkin_kernel::{Setting, device};
use napkin_testing::{needs, needs_program, test};
use rustix::process::{Pid, Signal, kill_process};
use rustix::thread::{CapabilitySet, CapabilitySets, set_capabilities};
use serde_json::Value;

/// Runs a test in a fresh namespace with a veth of two queues, `va`.
fn lab(test: impl FnOnce() + Send) {
    with_queues(2, test);
}

fn with_queues(queues: u32, test: impl FnOnce() + Send) {
    let inside = || {
        let mut route = Route::open().expect("a socket");
        let config = VethConfig {
            name: "va",
            peer: "vb",
            peer_namespace: None,
            rx_queues: queues,
            tx_queues: queues,
        };
        route.add_veth(&config).expect("a pair");
        Ethtool::open().expect("ethtool").set_features("va", &[(GRO[0], true)]).expect("GRO");
        for name in ["va", "vb"] {
            let link = route.link(name).expect("it was made");
            route.set_up(link.ifindex).expect("up");
        }
        test();
    };
    fresh().run(inside).expect("entered");
}

fn command(home: &TempDir, args: &str) -> Command {
    let mut command = common::command();
    command.args(args.split(' ')).env("NAPKIN_STATE", home.0.join("state"));
    command
}

fn napkin(home: &TempDir, args: &str) -> Output {
    command(home, args).output().expect("the binary runs")
}

/// Every instance's settings and its thread's CPUs and class; ids of threads differ each time.
fn settings() -> String {
    let mut netdev = Netdev::open().expect("netdev");
    let mut device = device::find(&mut netdev, "va").expect("it is there");
    device.napis.iter_mut().for_each(|napi| napi.pid = napi.pid.map(|_| 1));
    format!("{device:#?}")
}

fn set(queue: u32, setting: Setting, value: u64) {
    let mut netdev = Netdev::open().expect("netdev");
    let device = device::read(&mut netdev, "va").expect("it is there");
    let napi = device.of_rx_queue(queue).expect("a queue");
    netdev.set_napi(napi.id, setting, value).expect("it takes it");
}

fn journals(home: &TempDir) -> usize {
    let files = std::fs::read_dir(home.0.join("state")).into_iter().flatten().flatten();
    files.filter(|it| it.path().extension().is_some_and(|it| it == "journal")).count()
}

#[test]
fn killed_at_every_step_restore_gives_the_earlier_state() {
    needs(cfg!(debug_assertions), "a debug build, which has points to be killed at");
    lab(|| {
        let home = TempDir::new("apply-kill");
        set(0, Setting::Threaded, 1);
        set(1, Setting::GroFlushTimeout, 50_000);
        let original = settings();
        let mut steps = 0;
        for apply in ["apply suspend20 --dev va", "apply threaded --dev va --cpus 0 --rt 7"] {
            for point in 1.. {
                let mut child = command(&home, apply);
                let status =
                    child.env("NAPKIN_FAULT", point.to_string()).output().expect("it runs");
                let killed = status.status.signal() == Some(libc::SIGKILL);
                assert!(killed || status.status.success(), "{}", text(&status.stderr));
                // Restore is killed as well, each time a step later.
                for back in 1.. {
                    steps += 1;
                    // Every third restore runs undisturbed, as a user's does.
                    let mut child = command(&home, "restore");
                    if point % 3 != 0 {
                        child.env("NAPKIN_FAULT", back.to_string());
                    }
                    let end = child.output().expect("it runs");
                    if end.status.signal() != Some(libc::SIGKILL) {
                        assert!(end.status.success(), "{}", text(&end.stderr));
                        break;
                    }
                }
                assert_eq!(settings(), original, "{apply}, killed at {point}");
                assert_eq!(journals(&home), 0, "{apply}, killed at {point}");
                if !killed {
                    assert!(point > 10, "{apply} has only {point} points");
                    break;
                }
            }
        }
        assert!(steps > 60, "{steps} steps");
    });
}

#[test]
fn for_a_time_only_one_has_the_device_and_a_signal_gives_it_back() {
    lab(|| {
        let home = TempDir::new("apply-for");
        let original = settings();
        for signal in [Signal::INT, Signal::TERM, Signal::HUP, Signal::KILL] {
            let mut child = command(&home, "apply defer20 --dev va --for 1h")
                .stdout(Stdio::null())
                .stderr(Stdio::piped())
                .spawn()
                .expect("the binary runs");
            let stderr = BufReader::new(child.stderr.take().expect("a pipe"));
            let held = stderr.lines().map_while(Result::ok).find(|line| line.contains("held for"));
            assert!(held.is_some());
            assert_ne!(settings(), original);

            let pid = child.id();
            for other in ["apply base --dev va", "restore", "restore --dev va --force"] {
                let refused = napkin(&home, other);
                assert_eq!(refused.status.code(), Some(1), "{other}");
                let message = text(&refused.stderr);
                assert!(
                    message.contains(&format!("held by process {pid} (")),
                    "{other}: {message}"
                );
                assert!(message.contains("apply defer20 --dev va --for 1h"), "{other}: {message}");
            }
            let pid = Pid::from_child(&child);
            kill_process(pid, signal).expect("it lives");
            let status = child.wait().expect("it ends");
            if signal == Signal::KILL {
                assert_ne!(settings(), original);
                let output = napkin(&home, "restore");
                assert!(output.status.success(), "{}", text(&output.stderr));
            } else {
                assert!(status.success(), "{status}");
            }
            assert_eq!(settings(), original, "{signal:?}");
            assert_eq!(journals(&home), 0, "{signal:?}");
        }
        let output = napkin(&home, "apply suspend200 --dev va --for 10ms");
        assert!(output.status.success(), "{}", text(&output.stderr));
        assert_eq!(settings(), original, "its time was up");
        // A closed output does not turn a broken guard into a success.
        let mut child = command(&home, "apply defer20 --dev va --guard false --watch 1h")
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .expect("the binary runs");
        drop(child.stdout.take());
        let output = child.wait_with_output().expect("it ends");
        let message = text(&output.stderr);
        assert_eq!(output.status.code(), Some(3), "{message}");
        assert!(message.contains("the guard broke"), "{message}");
        assert_eq!((settings(), journals(&home)), (original.clone(), 0));
        // If nothing was changed, the message does not say that something was put back.
        assert!(napkin(&home, "apply defer20 --dev va").status.success());
        let found = settings();
        let output = napkin(&home, "apply defer20 --dev va --guard false --watch 1h");
        let message = text(&output.stderr);
        assert_eq!(output.status.code(), Some(3), "{message}");
        assert!(message.contains("so nothing is put back; the journal has "), "{message}");
        assert!(message.contains("of va: napkin restore --dev va"), "{message}");
        assert!(!text(&output.stdout).contains("everything is as it was"));
        for (policy, unchanged) in [("base", false), ("defer20", true)] {
            let args = format!("apply {policy} --dev va --guard false --watch 1h --json");
            let output = napkin(&home, &args);
            assert_eq!(output.status.code(), Some(3));
            let documents =
                serde_json::Deserializer::from_slice(&output.stdout).into_iter::<Value>();
            let last = documents.map_while(Result::ok).last().expect("JSON");
            assert!(last["guard"].as_str().expect("why").contains("failed"), "{last:#}");
            assert_eq!(last["unchanged"], unchanged, "{last:#}");
            assert_eq!(settings(), found);
        }
        let refused = napkin(&home, "apply base --dev va --guard true --pid 999999");
        assert_eq!(refused.status.code(), Some(2), "{}", text(&refused.stderr));
        assert!(napkin(&home, "restore").status.success());
        assert_eq!((settings(), journals(&home)), (original, 0));
    });
}

#[test]
fn many_at_once_leave_what_one_would() {
    lab(|| {
        let home = TempDir::new("apply-many");
        let original = settings();
        let names = ["defer20", "suspend20", "threaded", "base", "defer200", "suspend200"];
        let children: Vec<_> = names
            .iter()
            .map(|name| {
                command(&home, &format!("apply {name} --dev va"))
                    .stdout(Stdio::null())
                    .stderr(Stdio::piped())
                    .spawn()
                    .expect("the binary runs")
            })
            .collect();
        for child in children {
            let output = child.wait_with_output().expect("it ends");
            let message = text(&output.stderr);
            assert!(output.status.success() || message.contains("held by"), "{message}");
        }
        let output = napkin(&home, "restore");
        assert!(output.status.success(), "{}", text(&output.stderr));
        assert_eq!(settings(), original);
        assert_eq!(journals(&home), 0);
    });
}

#[test]
fn diff_says_by_its_code_whether_anything_differs() {
    lab(|| {
        let home = TempDir::new("diff");
        let code = |args: &str| napkin(&home, args).status.code();
        assert_eq!(code("diff suspend20 --dev va"), Some(1));
        assert_eq!(code("diff base --dev va"), Some(0));
        assert_eq!(code("diff --dev va"), Some(0));
        assert_eq!(code("diff hold --dev va"), Some(2));
        assert_eq!(code("diff base --dev nowhere"), Some(2));
        assert_eq!(code("apply suspend20 --dev va"), Some(0));
        assert_eq!(code("diff suspend20 --dev va"), Some(0));
        let output = napkin(&home, "diff --dev va --json");
        assert_eq!(output.status.code(), Some(1));
        let different: Value = serde_json::from_slice(&output.stdout).expect("JSON");
        assert_eq!(different.as_array().map(Vec::len), Some(6));
        assert_eq!(different[0]["subject"], "queue 0");
        let to = |args: &str, out: Stdio| {
            let mut child = command(&home, args);
            child.stdout(out).stderr(Stdio::null()).status().expect("the binary runs").code()
        };
        for args in ["diff --dev va", "diff --dev va --json", "diff base --dev va"] {
            let gone = std::io::pipe().expect("a pipe").1;
            assert_eq!(to(args, gone.into()), Some(1), "nobody reads {args}");
            let full = std::fs::File::options().write(true).open("/dev/full").expect("a device");
            assert_eq!(to(args, full.into()), Some(2), "{args} cannot be told");
        }
        assert_eq!(code("restore"), Some(0));
        assert_eq!(code("diff --dev va"), Some(0));
    });
}

/// A state directory in a file system of its own, with room for `pages` pages, visible to this thread and its
/// children.
fn small(home: &TempDir, pages: u32) -> std::path::PathBuf {
    let state = home.0.join("state");
    DirBuilder::new().mode(0o700).create(&state).expect("a directory");
    let options = CString::new(format!("size={}k,mode=700", pages * 4)).expect("no NUL");
    let none = rustix::mount::MountFlags::empty();
    rustix::mount::mount("tmpfs", &state, "tmpfs", none, Some(options.as_c_str()))
        .expect("mounted");
    state
}

/// Fills the file system.
fn fill(state: &Path) {
    let mut ballast = std::fs::File::create(state.join("ballast")).expect("a file");
    while std::io::Write::write_all(&mut ballast, &[0; 512]).is_ok() {}
}

#[test]
fn on_a_full_disk_everything_is_put_back_all_the_same() {
    with_queues(16, || {
        let original = settings();
        for end in [Signal::TERM, Signal::KILL] {
            let home = TempDir::new("apply-full");
            let state = small(&home, 16);
            let mut child = command(&home, "apply suspend20 --dev va --for 1h")
                .stdout(Stdio::null())
                .stderr(Stdio::piped())
                .spawn()
                .expect("the binary runs");
            let mut messages = BufReader::new(child.stderr.take().expect("a pipe")).lines();
            assert!(messages.by_ref().map_while(Result::ok).any(|line| line.contains("held for")));
            fill(&state);
            kill_process(Pid::from_child(&child), end).expect("it lives");
            let messages: Vec<String> = messages.map_while(Result::ok).collect();
            let status = child.wait().expect("it ends");
            if end == Signal::KILL {
                assert_ne!(settings(), original);
                let output = napkin(&home, "restore");
                assert!(output.status.success(), "{}", text(&output.stderr));
            } else {
                assert!(status.success(), "{status}: {messages:?}");
            }
            assert_eq!(settings(), original, "{end:?}: {messages:?}");
            assert_eq!(journals(&home), 0, "{end:?}");
            rustix::mount::unmount(&state, rustix::mount::UnmountFlags::DETACH).expect("ours");
        }
        // Room for a part of the journal only: apply stops there, and puts everything back.
        let home = TempDir::new("apply-full");
        let state = small(&home, 1);
        let output = napkin(&home, "apply suspend20 --dev va");
        let message = text(&output.stderr);
        assert!(message.contains("No space left") && message.contains("was put back"), "{message}");
        assert_eq!(output.status.code(), Some(1));
        assert_eq!((settings(), journals(&home)), (original, 0));
        rustix::mount::unmount(&state, rustix::mount::UnmountFlags::DETACH).expect("ours");
    });
}

#[test]
fn what_run_could_not_put_back_is_in_its_exit_code() {
    needs_program("ip");
    lab(|| {
        let home = TempDir::new("run-left");
        let code = |program: &str| {
            let script = format!("{program}; ip link set va down; exit $0");
            let mut run = command(&home, "run -q --policy suspend20 --dev va -- sh -c");
            let output = run.args([&script, "0"]).output().expect("the binary runs");
            (output.status.code(), text(&output.stderr))
        };
        let (status, message) = code("true");
        assert_eq!(status, Some(125), "{message}");
        assert!(message.contains("not everything was put back"), "{message}");
        let mut route = Route::open().expect("a socket");
        let index = route.link("va").expect("it is there").ifindex;
        route.set_up(index).expect("up");
        let (status, message) = code("exit 3");
        assert_eq!(status, Some(3), "the program's own comes first: {message}");
    });
}

#[test]
fn without_rights_what_can_be_done_is_done_and_the_right_is_named() {
    lab(|| {
        let home = TempDir::new("apply-rights");
        let before = settings();
        let without = |args: &str| {
            let mut command = command(&home, args);
            // SAFETY: between fork and exec only system calls are made, and nothing is allocated.
            unsafe {
                command.pre_exec(|| {
                    // Without this, exec as root would regain the capabilities.
                    rustix::thread::set_no_new_privs(true)?;
                    let none = CapabilitySet::empty();
                    let sets =
                        CapabilitySets { effective: none, permitted: none, inheritable: none };
                    for right in [CapabilitySet::NET_ADMIN, CapabilitySet::SYS_ADMIN] {
                        rustix::thread::remove_capability_from_bounding_set(right)?;
                    }
                    set_capabilities(None, sets)?;
                    Ok(())
                });
            }
            command.output().expect("the binary runs")
        };
        let output = without("apply defer20 --dev va --dry-run");
        assert!(output.status.success(), "{}", text(&output.stderr));
        assert!(text(&output.stdout).contains("gro-flush-timeout"));
        assert_eq!(without("diff defer20 --dev va").status.code(), Some(1));
        let output = without("apply defer20 --dev va");
        assert_eq!(output.status.code(), Some(1));
        assert!(text(&output.stderr).contains("CAP_NET_ADMIN"), "{}", text(&output.stderr));
        assert_eq!((settings(), journals(&home)), (before, 0));
    });
}

#[test]
fn whoever_could_cut_himself_off_is_asked_first() {
    needs_program("ip");
    lab(|| {
        let home = TempDir::new("apply-lifeline");
        for args in ["addr add 192.0.2.1/24 dev va", "route add default via 192.0.2.2"] {
            let done = Command::new("ip").args(args.split(' ')).status();
            assert!(done.expect("installed").success(), "{args}");
        }
        let before = settings();
        let refused = napkin(&home, "apply defer20 --dev va");
        let stderr = text(&refused.stderr);
        assert_eq!((refused.status.code(), settings()), (Some(2), before.clone()), "{stderr}");
        assert!(stderr.contains("va carries the default route"), "{stderr}");
        // Allowed: a policy that delays nothing, one with --for, and one with --yes.
        for args in ["base --dev va", "defer20 --dev va --for 10ms", "defer20 --dev va --yes"] {
            let done = napkin(&home, &format!("apply {args}"));
            assert!(done.status.success(), "{args}: {}", text(&done.stderr));
        }
        assert_ne!(settings(), before);
    });
}

napkin_testing::main!();
