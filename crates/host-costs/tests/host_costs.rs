//! Measurements of this host's kernel costs for a few seconds: as root with everything, and as an ordinary user
//! with what remains.

use std::thread;

use napkin_host_costs::derive::Constant;
use napkin_host_costs::{Measured, Options, measure};
use napkin_machine::profile::Profile;
use napkin_os::rights::Right;
use napkin_testing::{needs, test};
use napkin_workload::Interrupt;
use rustix::thread::{CapabilitySet, CapabilitySets, set_capabilities};

const RIGHTS: [Right; 4] = [Right::SysAdmin, Right::NetAdmin, Right::Bpf, Right::Perfmon];

fn options() -> Options {
    Options { seconds: 3, cpus: Vec::new(), based_on: None, device: None, name: "here".into() }
}

fn measured(options: &Options) -> Measured {
    let mut lines = Vec::new();
    let measured = measure(options, &Interrupt::default(), &mut |line| lines.push(line.to_owned()));
    let measured = measured.unwrap_or_else(|error| panic!("{error}"));
    assert!(lines[0].contains("round 1 of"), "{lines:?}");
    measured
}

fn of<'a>(measured: &'a Measured, key: &str) -> Option<&'a Constant> {
    measured.constants.iter().find(|it| it.key == key)
}

/// The reason why a key is not among the constants.
fn why<'a>(measured: &'a Measured, key: &str) -> &'a str {
    let missing = measured.missing.iter().find(|it| it.keys.split(", ").any(|it| it == key));
    &missing
        .unwrap_or_else(|| panic!("nobody says why there is no {key}: {:?}", measured.missing))
        .why
}

/// Keys that any user can measure, however loaded this machine is.
const CALLS: [&str; 6] = [
    "cost.recv",
    "cost.recv-empty",
    "cost.send",
    "cost.epoll-enter",
    "cost.epoll-return",
    "cost.timer-arm",
];

#[test]
fn root_measures_the_polls_of_a_veth_and_the_profile_is_one() {
    RIGHTS.into_iter().for_each(|right| needs(right.held(), right));
    let measured = measured(&options());
    let polls = ["cost.poll", "cost.softirq-exit", "cost.timer-expiry", "cost.timer-arm"];
    for key in CALLS.into_iter().chain(polls) {
        let constant =
            of(&measured, key).unwrap_or_else(|| panic!("{key}: {}", why(&measured, key)));
        assert!(constant.value > 0.0 && constant.value < 1e6, "{constant:?}");
        let (low, high) = constant.range.expect("a spread");
        assert!(low <= constant.value && constant.value <= high, "{constant:?}");
        assert!(constant.how.contains("measured on"), "{constant:?}");
    }
    let profile = Profile::parse(napkin_workload::schema(), &measured.toml, "here.toml")
        .expect("what was written is read");
    assert_eq!(profile, measured.profile);
    assert_eq!(profile.choice("nic.interrupt-cpu"), "sender");
    assert_eq!(profile.count("nic.queues"), 1);
    assert!(profile.has("memcached"), "based on {:?}", profile.based_on());
    let drawn = profile.uncertain().any(|it| it.key.path() == "cost.recv");
    let (low, high) = of(&measured, "cost.recv").unwrap().range.unwrap();
    assert!(drawn || high - low < 0.1, "the spread is drawn from");
    // Inherited keys are listed.
    assert!(measured.toml.contains("# - cost.look"), "{}", measured.toml);
    why(&measured, "cost.kthread-loop");
}

#[test]
fn an_ordinary_user_measures_calls_and_is_told_each_right_that_is_missing() {
    let user = thread::spawn(|| {
        let none = CapabilitySets {
            effective: CapabilitySet::empty(),
            permitted: CapabilitySet::empty(),
            inheritable: CapabilitySet::empty(),
        };
        set_capabilities(None, none).expect("rights can always be given up");
        measured(&Options { based_on: Some("epyc-7662".into()), ..options() })
    });
    let measured = user.join().expect("measured");
    for key in CALLS {
        assert!(of(&measured, key).is_some(), "{key}: {}", why(&measured, key));
    }
    for key in ["cost.poll", "cost.deliver-frame", "cost.interrupt-entry"] {
        assert!(of(&measured, key).is_none(), "{key}");
        let why = why(&measured, key);
        assert!(why.contains("CAP_BPF") && why.contains("CAP_PERFMON"), "{key}: {why}");
    }
    let reasons: Vec<&str> = measured.missing.iter().map(|it| it.why.as_str()).collect();
    let rights = ["CAP_SYS_ADMIN", "CAP_NET_ADMIN"];
    assert!(
        rights.iter().all(|right| reasons.iter().any(|why| why.contains(right))),
        "{reasons:?}"
    );
    assert!(why(&measured, "memcached.work").contains("veth"));
    // The NIC is that of the base profile, not a veth.
    assert_eq!(measured.profile.choice("nic.interrupt-cpu"), "own");
}

#[test]
fn what_makes_no_sense_is_refused_before_anything_runs() {
    let refused = |options: Options| {
        let answer = measure(&options, &Interrupt::default(), &mut |line| panic!("{line}"));
        answer.expect_err("refused").to_string()
    };
    let message = refused(Options { based_on: Some("epyc".into()), ..options() });
    assert!(message.contains("epyc-7662"), "{message}");
    assert!(refused(Options { seconds: 1, ..options() }).contains("2 to 3600"));
    let message = refused(Options { device: Some("nk-none".into()), ..options() });
    assert!(message.contains("nk-none"), "{message}");
}

#[test]
fn who_is_asked_to_end_ends() {
    let interrupt = Interrupt::default();
    interrupt.note(2);
    let answer = measure(&options(), &interrupt, &mut |_| {});
    assert!(matches!(answer, Err(napkin_workload::BenchError::Interrupted(_))), "{answer:?}");
}

napkin_testing::main!();
