//! `napkin show`, the real binary in namespaces of its own.
#![allow(unreachable_pub, reason = "the shared module is another test's as well")]

mod common;

use std::process::{Command, Output};

use common::namespace::fresh;
use common::{add_veth, text};
use napkin_kernel::namespace::Namespace;
use napkin_kernel::netlink::Netdev;
use napkin_kernel::{Setting, Settings, device};
use napkin_policy::Policy;
use napkin_testing::{needs_program, test};
use serde_json::Value;

/// A namespace with `va`, a veth with `queues` queues and GRO, and its peer.
struct Lab(Namespace);

impl Lab {
    fn new(queues: u32) -> Lab {
        let lab = Lab(fresh());
        lab.within(|| add_veth(queues));
        lab
    }

    fn within<T: Send>(&self, work: impl FnOnce() -> T + Send) -> T {
        self.0.run(work).expect("the namespace is ours")
    }

    fn run(&self, program: &str, args: &[&str]) -> Output {
        self.within(|| Command::new(program).args(args).output().expect("it starts"))
    }

    fn show(&self, args: &[&str]) -> String {
        let args: Vec<&str> = ["show"].iter().chain(args).copied().collect();
        let output = self.run(env!("CARGO_BIN_EXE_napkin"), &args);
        assert!(output.status.success(), "{}", text(&output.stderr));
        text(&output.stdout)
    }

    fn set(&self, queues: impl IntoIterator<Item = u32> + Send, policy: &str) {
        let policy: Policy = policy.parse().expect(policy);
        let wanted = Settings::of(&policy.instance);
        self.within(|| {
            let mut netdev = Netdev::open().expect("the family");
            let va = device::read(&mut netdev, "va").expect("it is there");
            for queue in queues {
                let id = va.of_rx_queue(queue).expect("the queue has an instance").id;
                for setting in Setting::ALL {
                    let value = wanted.get(setting).expect("a policy has them all");
                    netdev.set_napi(id, setting, value).expect("the kernel takes it");
                }
            }
        });
    }
}

fn fits(shown: &str) {
    for line in shown.lines() {
        assert!(line.chars().count() <= 80, "{} characters: {line}", line.chars().count());
    }
}

#[test]
fn a_host_where_nothing_is_set_says_so() {
    let lab = Lab::new(2);
    let shown = lab.show(&[]);
    assert!(shown.contains("Nothing is set"), "{shown}");
    assert_eq!(shown.lines().filter(|line| line.starts_with("va ")).count(), 2, "{shown}");
    assert!(shown.contains("Without a NAPI instance: lo"), "{shown}");
    assert!(shown.contains("vb (veth)"), "{shown}");
    fits(&shown);
}

#[test]
fn what_is_set_is_named_and_what_differs_is_spelled_out() {
    let lab = Lab::new(2);
    lab.set([0], "suspend20");
    lab.set([1], "defer20,defer-hard-irqs=50");
    let shown = lab.show(&[]);
    assert!(!shown.contains("Nothing is set"), "{shown}");
    assert!(shown.contains("suspend20*"), "{shown}");
    assert!(shown.contains("none seen"), "{shown}");
    assert!(shown.contains("defer20 but defer-hard-irqs=50"), "{shown}");
    assert!(shown.contains("defer-hard-irqs=50, gro-flush-timeout=20us"), "{shown}");
    fits(&shown);

    lab.set([0, 1], "threaded");
    let shown = lab.show(&["va"]);
    assert!(shown.contains("thread") && shown.contains("fair"), "{shown}");
    assert!(shown.contains("threaded=enabled"), "{shown}");
    fits(&shown);
}

#[test]
fn sixty_four_queues_are_a_line_unless_all_are_asked_for() {
    let lab = Lab::new(64);
    lab.set([7], "defer20");
    let shown = lab.show(&["va"]);
    let lines = || shown.lines().filter(|line| line.starts_with("va "));
    assert_eq!(lines().count(), 2, "{shown}");
    assert!(lines().any(|line| line.contains("0-6,8-63") && line.contains("base")), "{shown}");
    assert!(lines().any(|line| line.contains("defer20")), "{shown}");
    fits(&shown);
    let all = lab.show(&["va", "--all"]);
    assert_eq!(all.lines().filter(|line| line.starts_with("va ")).count(), 64, "{all}");
}

#[test]
fn json_has_every_instance_by_the_kernel_s_names() {
    let lab = Lab::new(16);
    lab.set(0..16, "defer200");
    let json: Value = serde_json::from_str(&lab.show(&["va", "--json"])).expect("JSON");
    let va = &json["devices"][0];
    assert_eq!((&va["ifname"], &va["policy"]), (&"va".into(), &"defer200".into()));
    let napis = va["napis"].as_array().expect("a list");
    assert_eq!(napis.len(), 16);
    for napi in napis {
        assert_eq!(napi["defer-hard-irqs"], 100);
        assert_eq!(napi["gro-flush-timeout"], 200_000);
        assert_eq!(napi["policy"]["name"], "defer200");
        assert_eq!(napi["irq"], Value::Null);
    }
}

#[test]
fn a_device_that_is_not_there_is_an_error_and_one_without_an_instance_is_not() {
    let lab = Lab::new(2);
    let output = lab.run(env!("CARGO_BIN_EXE_napkin"), &["show", "vaa"]);
    assert_eq!(output.status.code(), Some(1));
    let stderr = text(&output.stderr);
    assert!(stderr.contains("\"vaa\"") && stderr.contains("did you mean va?"), "{stderr}");
    let shown = lab.show(&["vb"]);
    assert!(shown.contains("ethtool -K vb gro on"), "{shown}");
}

#[test]
fn without_any_right_it_still_shows_and_says_what_it_could_not_see() {
    let lab = Lab::new(2);
    lab.set([0, 1], "suspend20");
    let napkin = env!("CARGO_BIN_EXE_napkin");
    let drops = ["--bounding-set=-all", "--inh-caps=-all", "--ambient-caps=-all"];
    let args: Vec<&str> = drops.iter().chain(&[napkin, "show", "va"]).copied().collect();
    needs_program("setpriv");
    let output = lab.within(|| Command::new("setpriv").args(&args).output());
    let output = output.expect("it is installed");
    let shown = text(&output.stdout);
    assert!(output.status.success(), "{}", text(&output.stderr));
    assert!(shown.contains("suspend20"), "{shown}");
    // Every host has root processes with all capabilities, such as the test's parent.
    assert!(shown.contains("CAP_SYS_PTRACE"), "{shown}");
    fits(&shown);
}

napkin_testing::main!();
