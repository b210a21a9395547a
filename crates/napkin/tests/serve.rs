//! `napkin serve` and its control commands.

mod common;

use std::fs;
use std::io::Write;
use std::os::fd::AsRawFd;
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::process::Command;
use std::time::{Duration, Instant};

use common::namespace::needs_rights;
use common::{Served, TempDir, napkin, text, within};
use napkin_os::rights::Right;
use napkin_testing::{needs_cpus, needs_program, test};
use rustix::process::{Pid, Signal, kill_process};
use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};

const SYNTHETIC: &[&str] = &["echo", "--device", "synthetic", "--rate", "2000"];

fn serve(place: &TempDir, more: &[&str]) -> Served {
    let args: Vec<&str> = SYNTHETIC.iter().chain(more).copied().collect();
    Served::start(&place.socket("a.sock"), &args).expect("it starts")
}

#[test]
fn it_serves_for_a_time_and_leaves_nothing() {
    let place = TempDir::new("for");
    let mut served = serve(&place, &["--for", "2s"]);
    let devices = served.json(&["dev-get"]);
    assert_eq!((&devices[0]["ifindex"], &devices[0]["ifname"]), (&1.into(), &"syn0".into()));
    assert!(served.end().success());
    let log = served.log();
    assert!(log.contains(" replies/s, ") && log.contains("served: "), "{log}");
    assert!(!served.control.exists());
}

#[test]
fn a_thread_appears_with_its_mode_and_every_tool_knows_it() {
    let place = TempDir::new("threaded");
    let served = serve(&place, &[]);
    assert!(served.napi().get("pid").is_none(), "no thread, no pid");
    assert!(served.napi().get("irq").is_none(), "user space has none");
    served.set(&["--threaded", "busy-poll"]);
    let napi = served.napi();
    assert_eq!(napi["threaded"], "busy-poll");
    let pid = napi["pid"].as_i64().expect("a thread");
    let task = format!("/proc/{}/task/{pid}", served.pid());
    assert_eq!(fs::read_to_string(format!("{task}/comm")).unwrap().trim(), "napi/syn0-1");

    // Set and show the affinity as taskset does.
    let usable = sched_getaffinity(None).expect("our own");
    let cpu = (0..CpuSet::MAX_CPU).rfind(|cpu| usable.is_set(*cpu)).expect("one at least");
    let mut set = CpuSet::new();
    set.set(cpu);
    sched_setaffinity(Pid::from_raw(pid as i32), &set).expect("it is ours");
    let status = fs::read_to_string(format!("{task}/status")).unwrap();
    let allowed = status.lines().find_map(|it| it.strip_prefix("Cpus_allowed_list:")).unwrap();
    assert_eq!(allowed.trim(), cpu.to_string());
    for tool in ["taskset", "chrt"] {
        needs_program(tool);
        let output = Command::new(tool).args(["-p", &pid.to_string()]).output();
        let output = output.expect("it is installed");
        assert!(output.status.success(), "{tool}: {}", text(&output.stderr));
    }
    // Traffic goes on with the new affinity.
    let packets = |napi: &serde_json::Value| napi["packets"].as_u64().expect("a count");
    let before = packets(&served.napi());
    within("packets", || (packets(&served.napi()) > before).then_some(()));

    served.set(&["--threaded", "disabled"]);
    assert!(served.napi().get("pid").is_none());
    within("the thread ends", || (!fs::exists(&task).unwrap()).then_some(()));
    let before = packets(&served.napi());
    within("packets", || (packets(&served.napi()) > before).then_some(()));
}

#[test]
fn every_mode_can_be_had_from_every_other() {
    let place = TempDir::new("modes");
    let served = serve(&place, &[]);
    let modes = ["disabled", "enabled", "busy-poll", "workqueue"];
    for from in modes {
        for to in modes {
            served.set(&["--threaded", from]);
            served.set(&["--threaded", to]);
            let napi = served.napi();
            assert_eq!(napi["threaded"], to, "from {from}");
            assert_eq!(napi.get("pid").is_some(), to == "enabled" || to == "busy-poll", "{to}");
            let before = napi["packets"].as_u64();
            within(to, || (served.napi()["packets"].as_u64() > before).then_some(()));
        }
    }
}

#[test]
fn only_what_is_named_changes_and_no_setter_undoes_another() {
    let place = TempDir::new("setters");
    let served = serve(&place, &["--policy", "defer20"]);
    served.set(&["--hold", "1ms"]);
    let napi = served.napi();
    assert_eq!((&napi["defer-hard-irqs"], &napi["hold"]), (&100.into(), &1_000_000.into()));
    std::thread::scope(|scope| {
        let served = &served;
        scope.spawn(move || {
            for n in 1..=20 {
                served.set(&["--defer-hard-irqs", &n.to_string()]);
            }
        });
        scope.spawn(move || {
            for n in 1..=20 {
                served.set(&["--weight", &n.to_string(), "--feedback", "on"]);
            }
        });
    });
    let napi = served.napi();
    assert_eq!(napi["defer-hard-irqs"], 20);
    assert_eq!(napi["weight"], 20);
    assert_eq!(napi["gro-flush-timeout"], 20_000);
    assert_eq!((&napi["feedback"], &napi["hold"]), (&true.into(), &1_000_000.into()));
}

#[test]
fn a_device_is_set_as_a_whole() {
    let place = TempDir::new("device");
    let served = serve(&place, &["--queues", "3", "--device", "synthetic=hold"]);
    assert_eq!(served.json(&["queue-get", "--type", "rx"]).as_array().unwrap().len(), 6);
    let output = served.ask(&["dev-set", "--ifindex", "2", "--threaded", "enabled"]);
    assert!(output.status.success(), "{}", text(&output.stderr));
    let napis = served.json(&["napi-get"]);
    for napi in napis.as_array().unwrap() {
        let (threaded, hold) = (&napi["threaded"], napi["hold"].as_u64().unwrap());
        match napi["ifindex"].as_u64() {
            Some(1) => assert_eq!((threaded, hold), (&"disabled".into(), 0)),
            _ => assert_eq!((threaded, hold), (&"enabled".into(), 100_000)),
        }
    }
    let stats = served.json(&["qstats-get", "--scope", "queue", "--ifindex", "2"]);
    assert_eq!(stats.as_array().unwrap().len(), 6);
    let stats = served.json(&["qstats-get"]);
    assert_eq!(stats.as_array().unwrap().len(), 2);
}

#[test]
fn what_is_out_of_range_is_refused_with_the_limit() {
    let place = TempDir::new("range");
    let served = serve(&place, &[]);
    let refused = |args: &[&str], parts: &[&str]| {
        let output = served.ask(args);
        assert_eq!(output.status.code(), Some(1), "{args:?}");
        let error = text(&output.stderr);
        assert!(parts.iter().all(|part| error.contains(part)), "{args:?}: {error}");
    };
    let set = |more: [&'static str; 2]| ["napi-set", "--id", "1", more[0], more[1]];
    refused(&set(["--weight", "0"]), &["1 to 65535", "ERANGE"]);
    refused(&["napi-set", "--id", "7", "--hold", "1us"], &["no NAPI instance has id 7", "ENOENT"]);
    refused(&["napi-get", "--ifindex", "9"], &["no device has ifindex 9", "ENOENT"]);
    let unchanged = served.napi();
    assert_eq!((&unchanged["defer-hard-irqs"], &unchanged["hold"]), (&0.into(), &0.into()));
    for (args, part) in [
        (vec!["napi-set", "--id", "1"], "give a setting"),
        (vec!["napi-set", "--id", "1", "--threaded", "busypoll"], "busy-poll"),
        (vec!["napi-set", "--threaded", "enabled"], "--id"),
        (vec!["napi-set", "--id", "1", "--hold", "1parsec"], "20us"),
        (vec!["napi-set", "--id", "1", "--hold", "100s"], "hold=100s: at most 10s is allowed"),
        (vec!["napi-set", "--id", "1", "--defer-hard-irqs", "2147483648"], "at most 2147483647"),
    ] {
        let output = served.ask(&args);
        assert_eq!(output.status.code(), Some(2), "{args:?}");
        assert!(text(&output.stderr).contains(part), "{}", text(&output.stderr));
    }
}

#[test]
fn a_stale_socket_is_replaced_and_a_live_one_is_not() {
    let place = TempDir::new("stale");
    let mut first = serve(&place, &[]);
    match Served::start(&place.socket("a.sock"), SYNTHETIC) {
        Err(message) => assert!(message.contains(&format!("process {}", first.pid())), "{message}"),
        Ok(_) => panic!("two engines behind one socket"),
    }
    first.napi();
    first.signal(Signal::KILL);
    assert!(!first.end().success());
    assert!(first.control.exists(), "nobody removed it");
    let output = first.ask(&["napi-get"]);
    assert_eq!(output.status.code(), Some(1));
    assert!(text(&output.stderr).contains("nothing listens there"), "{}", text(&output.stderr));
    let mut second = serve(&place, &[]);
    second.napi();
    second.signal(Signal::INT);
    assert!(second.end().success());
    assert!(!second.control.exists());
}

#[test]
fn a_second_signal_changes_nothing_of_how_it_ends() {
    let place = TempDir::new("second");
    let mut served = serve(&place, &[]);
    served.napi();
    // Both signals are pending when it continues.
    for signal in [Signal::STOP, Signal::TERM, Signal::HUP, Signal::CONT] {
        served.signal(signal);
    }
    let status = served.end();
    assert!(status.success(), "{status}");
    assert!(served.log().contains("served: "), "{}", served.log());
    assert!(!served.control.exists());
}

#[test]
fn it_ends_when_it_is_told_to_while_nobody_reads_what_it_says() {
    let place = TempDir::new("unread");
    let (_reader, writer) = std::io::pipe().expect("a pipe");
    let control = place.socket("a.sock");
    let mut command = common::command();
    command.arg("serve").args(SYNTHETIC).arg("--control").arg(&control);
    let child = command.stderr(writer.try_clone().expect("another")).spawn();
    let mut child = child.expect("the binary runs");
    within("it runs", || control.exists().then_some(()));
    // A separate open file description, so that only this end is non-blocking.
    let path = format!("/proc/self/fd/{}", writer.as_raw_fd());
    let own_end = fs::OpenOptions::new().write(true).custom_flags(libc::O_NONBLOCK).open(path);
    let mut own_end = own_end.expect("the same pipe");
    // Several status lines are due meanwhile.
    let start = Instant::now();
    while start.elapsed() < Duration::from_millis(2_500) {
        while own_end.write_all(&[b'.'; 256]).is_ok() {}
        std::thread::sleep(Duration::from_millis(10));
    }
    kill_process(Pid::from_child(&child), Signal::TERM).expect("it is ours");
    let status = within("it ends", || child.try_wait().expect("our child"));
    assert!(status.success(), "{status}");
}

/// Starts and ends a server under each policy.
fn ends_when_it_is_told_to(name: &str, policies: &[&str]) {
    let place = TempDir::new(name);
    for policy in policies {
        let mut served = serve(&place, &["--policy", policy]);
        let replies = || served.json(&["qstats-get"])[0]["tx-packets"].as_u64();
        within(policy, || (replies() > Some(0)).then_some(()));
        served.signal(Signal::TERM);
        assert!(served.end().success(), "{policy}: {}", served.log());
        assert!(!served.control.exists(), "{policy}");
        let log = served.log();
        assert!(!log.contains(", 0 replies, "), "{policy}: {log}");
        assert!(!log.contains("panicked"), "{policy}: {log}");
    }
}

#[test]
fn it_ends_when_it_is_told_to_in_every_mode() {
    let modes = ["threaded-busy-poll", "fullbusy", "suspend20", "workqueue", "hold"];
    ends_when_it_is_told_to("end", &modes);
}

#[test]
fn it_ends_when_it_is_told_to_with_sockets_that_prefer_busy_polling() {
    needs_rights(&[Right::NetAdmin]);
    ends_when_it_is_told_to("end-prefer", &["busypoll-separate"]);
}

#[test]
fn policies_that_disagree_about_a_cpu_are_refused() {
    let place = TempDir::new("conflict");
    let devices = ["--device", "synthetic=ksoftirqd", "--device", "synthetic=threaded"];
    let cpus = napkin_engine::sched::usable_cpus();
    let first = cpus[0].to_string();
    let control = place.socket("a.sock");
    let args = [&["echo"][..], &devices, &["--cpus", &first]].concat();
    let message = Served::start(&control, &args).err().expect("refused");
    assert!(message.contains("two policies disagree about one CPU: net-softirq="), "{message}");
    assert!(message.contains(&format!("syn0 and syn1 share CPU {first}, but")), "{message}");
    let direct = [&["serve", "echo"][..], &devices, &["--cpus", &first]].concat();
    assert_eq!(napkin(direct).status.code(), Some(2));
}

#[test]
fn policies_that_disagree_may_have_a_cpu_each() {
    needs_cpus(2);
    let place = TempDir::new("a-cpu-each");
    let [one, two, ..] = napkin_engine::sched::usable_cpus()[..] else { unreachable!("two CPUs") };
    let both = format!("{one},{two}");
    let devices = ["--device", "synthetic=ksoftirqd", "--device", "synthetic=threaded"];
    let args = [&["echo"][..], &devices, &["--cpus", &both]].concat();
    Served::start(&place.socket("a.sock"), &args).expect("a CPU each").napi();
}

#[test]
fn options_that_make_no_sense_are_refused() {
    for args in [
        &["--device", "synthetic", "--queues", "0"][..],
        &["--device", "synthetic", "--port", "0"],
        &["--device", "eth0"],
        &["--device", "tap:a", "--device", "tap:a=hold"],
        &["--device", "synthetic", "--address", "10.99.0.0/24"],
        &["--device", "synthetic", "--cpus", "a"],
        &["--device", "synthetic", "--for", "soon"],
        &[],
    ] {
        let output = napkin(["serve", "echo"].into_iter().chain(args.iter().copied()));
        assert_eq!(output.status.code(), Some(2), "{args:?}: {}", text(&output.stderr));
    }
    let absent = napkin(["serve", "echo", "--device", "synthetic", "--cpus", "1023"]);
    assert_eq!(absent.status.code(), Some(1));
    let error = text(&absent.stderr);
    assert!(error.contains("CPU 1023 is not available to this process, which may use"), "{error}");
    assert!(!error.contains("os error"), "{error}");
}

#[test]
fn a_setting_without_effect_is_taken_and_warned_of() {
    let place = TempDir::new("idle");
    let served = serve(&place, &["--queues", "2"]);
    let set = ["napi-set", "--id", "1", "--irq-suspend-timeout", "20ms"];
    let output = served.ask(&set);
    assert!(output.status.success());
    let stderr = text(&output.stderr);
    assert!(
        stderr.starts_with("warning: irq-suspend-timeout does nothing without deferral"),
        "{stderr}"
    );
    assert!(stderr.contains("set defer-hard-irqs and gro-flush-timeout"), "{stderr}");
    assert_eq!(served.napi()["irq-suspend-timeout"], 20_000_000);
    // A warning that applies to both instances is printed once.
    let half = ["dev-set", "--ifindex", "1", "--defer-hard-irqs", "100"];
    let stderr = text(&served.ask(&half).stderr);
    assert_eq!(stderr.matches("defer-hard-irqs does nothing without gro-flush-timeout").count(), 1);
    let whole = ["dev-set", "--ifindex", "1", "--gro-flush-timeout", "20us"];
    assert_eq!(text(&served.ask(&whole).stderr), "");
}

#[test]
fn a_policy_s_warnings_are_told_once_and_a_preset_s_not() {
    let place = TempDir::new("warnings");
    let odd = "suspend20,defer-hard-irqs=0";
    let served = serve(
        &place,
        &["--policy", odd, "--device", "synthetic", "--device", "synthetic=interrupts"],
    );
    let log = served.log();
    assert_eq!(log.matches("irq-suspend-timeout does nothing without").count(), 1, "{log}");
    assert_eq!(log.matches("interrupts: ").count(), 0, "{log}");
}

#[test]
fn of_several_engines_one_is_to_be_chosen() {
    let place = TempDir::new("several");
    let runtime = place.0.join("napkin");
    // With the mode that `serve` uses: a directory with another mode is not trusted.
    fs::DirBuilder::new().mode(0o700).create(&runtime).unwrap();
    let paths = ["a.sock", "b.sock"].map(|name| runtime.join(name));
    let served = paths.clone().map(|path| Served::start(&path, SYNTHETIC).expect("it starts"));
    let output = Command::new(env!("CARGO_BIN_EXE_napkin"))
        .arg("napi-get")
        .env_remove("NAPKIN_CONTROL")
        .env("XDG_RUNTIME_DIR", &place.0)
        .output()
        .unwrap();
    assert_eq!(output.status.code(), Some(1));
    let error = text(&output.stderr);
    for (path, served) in paths.iter().zip(&served) {
        let line = format!("{}  (process {})", path.display(), served.pid());
        assert!(error.contains(&line) && error.contains("--control PATH"), "{error}");
    }
    // The advice names an option of the command that prints it.
    let output = Command::new(env!("CARGO_BIN_EXE_napkin"))
        .args(["top", "--batch", "--engine"])
        .env("XDG_RUNTIME_DIR", &place.0)
        .output()
        .unwrap();
    let error = text(&output.stderr);
    assert!(error.contains("choose one with --engine SOCKET:"), "{error}");
    let output = Command::new(env!("CARGO_BIN_EXE_napkin"))
        .arg("napi-get")
        .env("NAPKIN_CONTROL", &paths[1])
        .output()
        .unwrap();
    assert!(output.status.success(), "{}", text(&output.stderr));
}

napkin_testing::main!();
