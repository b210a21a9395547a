//! `napkin keep` and the keeper as commands: links that go down, vanish and come again, changes of channels, writes
//! of other programs, wrong and conflicting wishes, `kill -9`.

mod common;

use std::fs;
use std::io::{BufRead, BufReader};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::ExitStatusExt;
use std::process::{Child, Command, Stdio};

use common::lab::Lab;
use common::namespace::fresh;
use common::{add_veth, text, within};
use napkin_kernel::netlink::{Ethtool, Netdev, Route};
use napkin_kernel::process::{Params, Process};
use napkin_kernel::sysfs::{DeviceFile, Sysfs};
use napkin_kernel::{Setting, device};
use napkin_os::rights::Right;
use napkin_policy::EpollPolicy;
use napkin_testing::{needs, needs_program, test};
use rustix::mount::MountFlags;
use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;

impl Lab {
    fn ok(&self, args: &str) -> String {
        let output = self.napkin(args);
        assert!(output.status.success(), "{args}: {}", text(&output.stderr));
        text(&output.stdout)
    }

    fn put(&self, file: &str, content: &str) {
        let path = self.0.0.join("etc").join(file);
        fs::write(&path, content).expect("written");
        fs::set_permissions(path, fs::Permissions::from_mode(0o644)).expect("mode");
    }

    /// Starts a keeper that relies on notifications alone (`--look never`).
    fn keeper(&self) -> Keeper {
        let file = fs::File::create(self.0.0.join("said")).expect("a file");
        let mut command = self.command("keeper --look never");
        let child = command.stderr(file).stdout(Stdio::null()).spawn().expect("the binary runs");
        Keeper(child)
    }

    fn log(&self) -> String {
        fs::read_to_string(self.0.0.join("said")).unwrap_or_default()
    }

    /// The state of a wish.
    fn state(&self, name: &str) -> String {
        let output = self.napkin("keep --list --json");
        let list: Value = serde_json::from_slice(&output.stdout).expect("JSON");
        let wishes = list["wishes"].as_array().expect("wishes");
        let wish = wishes.iter().find(|wish| wish["name"] == name).expect("the wish");
        wish["state"].as_str().expect("a state").to_owned()
    }

    fn held(&self, name: &str) {
        within(&format!("{name} is held"), || (self.state(name) == "held").then_some(()));
    }

    fn journals(&self) -> usize {
        let files = fs::read_dir(self.0.0.join("state")).into_iter().flatten().flatten();
        files.filter(|it| it.path().extension().is_some_and(|it| it == "journal")).count()
    }
}

struct Keeper(Child);

impl Keeper {
    fn signal(&self, signal: Signal) {
        kill_process(Pid::from_child(&self.0), signal).expect("it lives");
    }

    fn end(mut self, signal: Signal) -> std::process::ExitStatus {
        self.signal(signal);
        self.0.wait().expect("it ends")
    }

    /// The number of its voluntary context switches.
    fn sleeps(&self) -> u64 {
        let status = fs::read_to_string(format!("/proc/{}/status", self.0.id())).expect("it lives");
        let line = status.lines().find(|it| it.starts_with("voluntary_ctxt")).expect("a count");
        line.split_whitespace().last().and_then(|it| it.parse().ok()).expect("a number")
    }
}

impl Drop for Keeper {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn settings() -> String {
    let mut netdev = Netdev::open().expect("netdev");
    let device = device::find(&mut netdev, "va").expect("it is there");
    let settings: Vec<_> =
        device.napis.iter().map(|napi| (&napi.rx_queues, napi.settings)).collect();
    format!("{settings:?}")
}

fn of_queue(queue: u32, setting: Setting) -> Option<u64> {
    let mut netdev = Netdev::open().expect("netdev");
    let device = device::read(&mut netdev, "va").ok()?;
    device.of_rx_queue(queue)?.settings.get(setting)
}

fn link(up: bool) {
    let mut route = Route::open().expect("a socket");
    let index = route.link("va").expect("va").ifindex;
    if up { route.set_up(index) } else { route.set_down(index) }.expect("set");
}

fn ethtool(args: &[&str]) {
    let output = Command::new("ethtool").args(args).output().expect("ethtool");
    assert!(output.status.success(), "{}", text(&output.stderr));
}

#[test]
fn a_wish_is_held_over_down_and_up_and_removal_and_put_back_by_unkeep_and_at_the_end() {
    fresh()
        .run(|| {
            let lab = Lab::new("keep-links");
            add_veth(2);
            let original = settings();
            let output = lab.ok("keep suspend20 --dev va");
            assert!(output.contains("no keeper runs here"), "{output}");
            assert_eq!(settings(), original, "a wish alone sets nothing");
            let keeper = lab.keeper();
            lab.held("va");

            link(false);
            link(true);
            lab.held("va");

            let mut route = Route::open().expect("a socket");
            let index = route.link("va").expect("va").ifindex;
            route.delete(index).expect("deleted");
            assert_eq!(lab.state("va"), "not-held");
            add_veth(2);
            lab.held("va");

            // Another napkin is refused; the error names the holder.
            let refused = lab.napkin("apply base --dev va");
            assert!(text(&refused.stderr).contains("napkin keeper"), "{}", text(&refused.stderr));

            let output = lab.ok("keep defer20 --dev va");
            assert!(output.contains("in place of") && output.contains("in force"), "{output}");
            assert_eq!(of_queue(1, Setting::IrqSuspendTimeout), Some(0));
            lab.ok("unkeep va");
            within("it is put back", || (settings() == original).then_some(()));

            lab.ok("keep defer20 --dev va --queues 1");
            assert_eq!(of_queue(0, Setting::DeferHardIrqs), Some(0), "only queue 1");
            assert_ne!(of_queue(1, Setting::DeferHardIrqs), Some(0));
            let status = keeper.end(Signal::TERM);
            assert!(status.success(), "{}", lab.log());
            assert_eq!(settings(), original);
            assert_eq!(lab.journals(), 0, "{}", lab.log());
        })
        .expect("entered");
}

#[test]
fn channels_that_change_and_what_others_write_in_sysfs_are_noticed_and_nothing_is_done_otherwise() {
    needs_program("ethtool");
    fresh()
        .run(|| {
            let lab = Lab::new("keep-channels");
            add_veth(4);
            lab.ok("keep defer20 --dev ?a --name v");
            let keeper = lab.keeper();
            lab.held("v");
            ethtool(&["-L", "va", "rx", "2", "tx", "2"]);
            lab.held("v");
            ethtool(&["-L", "va", "rx", "4", "tx", "4"]);
            within("its new queues are set", || {
                (of_queue(3, Setting::DeferHardIrqs) != Some(0)).then_some(())
            });
            lab.held("v");

            let links = Route::open().expect("a socket").links().expect("links");
            let sysfs = Sysfs::open(&links).expect("sysfs");
            sysfs.set_device_file("va", DeviceFile::DeferHardIrqs, 5).expect("written");
            lab.held("v");
            assert!(lab.log().contains("set again: defer-hard-irqs of va queue"), "{}", lab.log());

            // At rest it is not woken once. It may first have to handle earlier events.
            within("it sleeps", || {
                let before = keeper.sleeps();
                std::thread::sleep(std::time::Duration::from_secs(2));
                (keeper.sleeps() == before).then_some(())
            });
            assert!(keeper.end(Signal::INT).success());
        })
        .expect("entered");
}

#[test]
fn bad_files_and_conflicts_are_named_with_file_and_line_and_the_rest_is_held() {
    fresh()
        .run(|| {
            let lab = Lab::new("keep-bad");
            add_veth(2);
            lab.put("a.toml", "policy = \"defer20\"\nqueues = \"0\"\n[match]\nname = \"va\"\n");
            lab.put("b.toml", "\npolicy = \"suspend20\"\n[match]\nname = \"va\"\n");
            lab.put("c.toml", "policy = \"defer20\"\nqueues = \"1,7\"\n[match]\nname = \"va\"\n");
            lab.put("d.toml", "policy = \"hold\"\n[match]\nname = \"va\"\n");
            lab.put("e.toml", "policy = \"base\"\n[match]\nname = \"eth77\"\n");
            let check = lab.napkin("keep --check");
            assert_eq!(check.status.code(), Some(1), "{}", text(&check.stderr));
            for args in ["keep --check", "keep --list --json"] {
                let gone = std::io::pipe().expect("a pipe").1;
                let status = lab.command(args).stdout(gone).stderr(Stdio::null()).status();
                assert_eq!(status.expect("the binary runs").code(), Some(1), "nobody reads {args}");
            }
            lab.put("f.toml", "policy = \"base\"\nqeues = \"1\"\n[match]\nname = \"va\"\n");
            let check = lab.napkin("keep --check");
            assert_eq!(check.status.code(), Some(2), "{}", text(&check.stderr));
            assert!(
                text(&check.stderr).contains("f.toml:2: unknown key"),
                "{}",
                text(&check.stderr)
            );
            let good = lab.0.0.join("etc/a.toml");
            lab.ok(&format!("keep --check {}", good.display()));

            let keeper = lab.keeper();
            lab.held("a");
            within("queue 1 is set", || {
                (of_queue(1, Setting::DeferHardIrqs) != Some(0)).then_some(())
            });
            let states: Vec<String> = ["b", "c", "d", "e"].iter().map(|it| lab.state(it)).collect();
            assert_eq!(states, ["refused", "refused", "refused", "not-held"]);
            let log = lab.log();
            for part in [
                "a.toml:1)",
                "b (",
                "b.toml:2): queue 0 of va is held by the wish a (",
                "c.toml:1): va has no receive queue 7",
                "d.toml:1): ",
                "e.toml:1): no device here is eth77; it is held when one comes",
                "f.toml:2: unknown key qeues: queues?",
            ] {
                assert!(log.contains(part), "{part}: {log}");
            }
            // doctor and export report the wishes as well.
            let doctor = text(&lab.napkin("doctor --dev va --for 100ms --all").stdout);
            assert!(doctor.contains("the wish b ("), "{doctor}");
            assert!(doctor.contains("the wish a (") && doctor.contains("is in force"), "{doctor}");
            let metrics = lab.ok("export --once --no-count");
            for series in [
                "napkin_wishes{state=\"held\"} 1",
                "napkin_wishes{state=\"not_held\"} 1",
                "napkin_wishes{state=\"refused\"} 3",
                "napkin_wishes{state=\"bad\"} 1",
            ] {
                assert!(metrics.contains(series), "{series}: {metrics}");
            }
            // A wish that is corrected is held, without a restart.
            fs::remove_file(good).expect("removed");
            lab.put("c.toml", "policy = \"base\"\n[match]\nname = \"eth78\"\n");
            lab.held("b");
            assert!(keeper.end(Signal::TERM).success());
        })
        .expect("entered");
}

#[test]
fn killed_it_leaves_what_the_next_one_goes_on_with_and_restore_puts_back() {
    fresh()
        .run(|| {
            let lab = Lab::new("keep-kill");
            add_veth(2);
            let original = settings();
            lab.ok("keep suspend20 --dev va");
            // Die before, between and after the first changes.
            let points: &[u32] = if cfg!(debug_assertions) { &[1, 2, 5, 8, 11] } else { &[] };
            for point in points {
                let mut command = lab.command("keeper --look never");
                let end = command.env("NAPKIN_FAULT", point.to_string()).output().expect("it runs");
                assert_eq!(end.status.signal(), Some(libc::SIGKILL), "{}", text(&end.stderr));
                if *point == 8 {
                    lab.ok("restore");
                    assert_eq!(settings(), original);
                }
            }
            let keeper = lab.keeper();
            lab.held("va");
            keeper.end(Signal::KILL);
            assert_ne!(settings(), original);
            let second = lab.keeper();
            lab.held("va");
            let third = lab.napkin("keeper");
            assert_eq!(third.status.code(), Some(1));
            let stderr = text(&third.stderr);
            assert!(stderr.contains("the wishes of this network namespace is held by"), "{stderr}");
            assert!(second.end(Signal::TERM).success(), "{}", lab.log());
            assert_eq!(settings(), original);
            assert_eq!(lab.journals(), 0);
        })
        .expect("entered");
}

/// A control group, removed on drop.
struct Group(std::path::PathBuf);

impl Group {
    fn root() -> Option<&'static str> {
        let roots = ["/sys/fs/cgroup", "/sys/fs/cgroup/unified"];
        roots.into_iter().find(|root| fs::exists(format!("{root}/cgroup.procs")).unwrap_or(false))
    }

    fn make(&self) {
        fs::create_dir(&self.0).expect("a control group");
    }

    /// Starts a program in the group that waits by epoll; returns once its context exists.
    fn program(&self) -> Child {
        let wait = "import select,sys; e=select.epoll(); print('ready',flush=True); e.poll(100)";
        let join =
            format!("echo $$ > {}/cgroup.procs && exec python3 -c \"{wait}\"", self.0.display());
        let mut child =
            Command::new("sh").args(["-c", &join]).stdout(Stdio::piped()).spawn().expect("a shell");
        let mut line = String::new();
        let stdout = child.stdout.take().expect("a pipe");
        BufReader::new(stdout).read_line(&mut line).expect("text");
        assert_eq!(line, "ready\n");
        child
    }

    fn gone(&self) {
        within("the group is empty", || fs::remove_dir(&self.0).ok());
    }
}

impl Drop for Group {
    fn drop(&mut self) {
        let _ = fs::write(self.0.join("cgroup.kill"), "1");
        within("the group is gone", || {
            (!self.0.exists() || fs::remove_dir(&self.0).is_ok()).then_some(())
        });
    }
}

/// Whether a program's epoll context prefers busy polling.
fn prefers(child: &Child) -> bool {
    let process = Process::open(child.id() as i32).expect("it lives");
    let found = process.descriptors(64).expect("ours");
    let epoll = found.epolls().next().expect("it has one");
    let taken = process.take(&epoll).expect("taken").expect("there");
    Params::get(&taken)
        .expect("they can be read")
        .is_some_and(|it| EpollPolicy::from(it).prefer_busy_poll)
}

#[test]
fn programs_of_a_unit_are_set_when_they_start_and_put_back_in_the_end() {
    for right in [Right::SysAdmin, Right::NetAdmin, Right::SysPtrace] {
        needs(right.held(), right);
    }
    needs_program("python3");
    let root = Group::root();
    needs(root.is_some(), "control groups (v2)");
    let name = format!("napkin-keep-{}", std::process::id());
    let tried = format!("{}/{name}", root.unwrap_or_default());
    let made = fs::create_dir(&tried).and_then(|()| fs::remove_dir(&tried));
    needs(made.is_ok(), "a control group that may be made");
    fresh()
        .run(|| {
            // The sysfs of the namespace has no cgroup file system mounted on it: mount one.
            let flags = MountFlags::NOSUID | MountFlags::NODEV | MountFlags::NOEXEC;
            rustix::mount::mount("cgroup2", "/sys/fs/cgroup", "cgroup2", flags, None)
                .expect("control groups");
            let group = Group(format!("/sys/fs/cgroup/{name}").into());
            let lab = Lab::new("keep-unit");
            add_veth(1);
            lab.ok(&format!("keep suspend20 --dev va --name u --unit /{name}"));
            let keeper = lab.keeper();
            lab.held("u");
            let second =
                format!("policy = \"napibusy\"\nunit = \"/{name}\"\n[match]\nname = \"vx\"\n");
            fs::write(lab.0.0.join("etc/v.toml"), second).expect("written");
            within("it is told", || {
                lab.log().contains("are those of the wish u; one wish names a unit").then_some(())
            });
            // As --check before a deployment reports it.
            assert_eq!(lab.state("v"), "refused");
            lab.ok("unkeep v");
            // Twice: the group is removed at the unit's stop, and created again at its start.
            for _ in 0..2 {
                group.make();
                let mut first = group.program();
                within("it is set", || prefers(&first).then_some(()));
                let mut second = group.program();
                within("the second, too", || prefers(&second).then_some(()));
                for child in [&mut first, &mut second] {
                    child.kill().expect("it lives");
                    child.wait().expect("it ends");
                }
                group.gone();
            }
            within("it sleeps", || {
                let before = keeper.sleeps();
                std::thread::sleep(std::time::Duration::from_secs(1));
                (keeper.sleeps() == before).then_some(())
            });
            group.make();
            let mut last = group.program();
            within("it is set", || prefers(&last).then_some(()));
            // The next keeper does not mistake the parameters set by this one for the program's own.
            keeper.end(Signal::KILL);
            let keeper = lab.keeper();
            lab.held("u");
            within("it is looked at", || {
                let log = lab.log();
                log.contains("what an earlier napkin left in").then_some(())
            });
            within("it is set again", || prefers(&last).then_some(()));
            assert!(keeper.end(Signal::TERM).success(), "{}", lab.log());
            assert!(!prefers(&last), "{}", lab.log());
            assert_eq!(lab.journals(), 0);
            last.kill().expect("it lives");
            last.wait().expect("it ends");
        })
        .expect("entered");
}

#[test]
fn a_device_with_the_default_route_takes_a_yes_where_the_policy_delays() {
    needs_program("ip");
    fresh()
        .run(|| {
            let lab = Lab::new("keep-route");
            add_veth(1);
            let ip = |args: &str| {
                let output = Command::new("ip").args(args.split(' ')).output().expect("ip");
                assert!(output.status.success(), "{}", text(&output.stderr));
            };
            ip("addr add 192.0.2.1/24 dev va");
            let connection = "192.0.2.7 40000 192.0.2.1 22";
            let refused =
                lab.command("keep defer20 --dev va").env("SSH_CONNECTION", connection).output();
            let stderr = text(&refused.expect("it runs").stderr);
            assert!(stderr.contains("va carries this terminal's own connection"), "{stderr}");
            ip("route add default via 192.0.2.2");
            let refused = lab.napkin("keep suspend20 --dev va");
            assert_eq!(refused.status.code(), Some(1));
            let stderr = text(&refused.stderr);
            assert!(
                stderr.contains("va carries the default route") && stderr.contains("--yes"),
                "{stderr}"
            );
            assert!(fs::read_dir(lab.0.0.join("etc")).expect("there").next().is_none());
            lab.ok("keep threaded --dev va");
            lab.ok("keep suspend20 --dev va --yes");
            // Without GRO a veth has no instance.
            let refused = lab.napkin("keep defer20 --dev vb");
            assert!(text(&refused.stderr).contains("vb has no NAPI instance"), "{refused:?}");
            let mut ethtool = Ethtool::open().expect("the family");
            ethtool.set_features("vb", &[("rx-gro", true)]).expect("a feature");
            lab.ok("keep defer20 --dev vb");
        })
        .expect("entered");
}

#[test]
fn the_unit_sees_the_same_procfs_as_who_moves_interrupts() {
    let unit = concat!(env!("CARGO_MANIFEST_DIR"), "/../../packaging/napkin.service");
    let unit = fs::read_to_string(unit).expect("it is in the repository");
    // Each of these options mounts a separate instance of the file system, whose inotify watches miss writes to the
    // host's.
    for option in [
        "ProtectControlGroups",
        "ProtectKernelTunables",
        "ProtectProc",
        "ProcSubset",
        "MountAPIVFS",
        "PrivatePIDs",
        "RootDirectory",
        "RootImage",
    ] {
        let set = unit.lines().find(|line| line.starts_with(&format!("{option}=")));
        assert_eq!(set, None);
    }
}

napkin_testing::main!();
