//! Plans, applies, crashes and restores over the fake kernel.

use crate::place::{Change, Instance, Place, Value};
use std::collections::BTreeSet;

use napkin_os::sched::Class;
use napkin_policy::{PRESETS, Policy};
use proptest::prelude::*;

use super::fake::{CPUS, Fake, Interference};
use super::*;
use crate::journal::fault::crash;
use crate::journal::{JournalError, Store};
use crate::support::tests::linux;
use napkin_kernel::namespace::Identity;
use napkin_kernel::settings::Setting;
use napkin_os::rights::Right;
use napkin_testing::Folder;

mod answers;
mod channels;
mod cost;
mod cpus_off;
mod crashes;
mod foreign;
mod holds;
mod moved;
mod space;
mod suspension;
mod threads;

/// A journal directory of this test.
struct Home(Folder);

impl Home {
    fn new() -> Home {
        Home(Folder::absent("apply"))
    }

    fn store(&self) -> Store {
        let namespace = Identity { cookie: Some(1), inode: 1 };
        Store::at(self.0.to_path_buf(), "this boot".into(), namespace)
    }

    /// The names of the files in it.
    fn files(&self) -> Vec<String> {
        let entries = std::fs::read_dir(&self.0).into_iter().flatten().flatten();
        entries.map(|entry| entry.file_name().to_string_lossy().into_owned()).collect()
    }
}

fn policy(text: &str) -> Policy {
    text.parse().expect(text)
}

fn queue(number: u32) -> Instance {
    Instance { rx: vec![number], tx: vec![number], nth: 0 }
}

fn napi(number: u32, setting: Setting) -> Place {
    Place::Napi(queue(number), setting)
}

fn applied(
    backend: &mut Fake,
    store: &Store,
    text: &str,
    options: &Options,
) -> Result<Applied, ApplyError> {
    let policy = policy(text);
    apply(backend, store, &Request { policy: &policy, ifname: "va", options, force: false })
}

fn plain() -> Options {
    Options::default()
}

fn placed() -> Options {
    Options { cpus: vec![1, 3], rt: Some(10), ..plain() }
}

fn all_back(backend: &mut Fake, store: &Store) -> Restoration {
    restore(backend, store, &RestoreOptions::default()).expect("the directory can be read")
}

#[test]
fn a_plan_says_what_changes_and_leaves_out_what_is_so() {
    let mut backend = Fake::new(2);
    backend.somebody_sets(&napi(0, Setting::GroFlushTimeout), &Value::Number(20_000));
    let at = backend.look(Target::Name("va")).expect("it is there");
    let plan = plan(&policy("suspend20"), &at, backend.kernel(), &plain()).expect("it can be done");
    let changes: Vec<String> = plan.changes.iter().map(Change::to_string).collect();
    assert_eq!(
        changes,
        [
            "defer-hard-irqs of queue 0 from 0 to 100",
            "irq-suspend-timeout of queue 0 from 0 to 20ms",
            "gro-flush-timeout of queue 1 from 0 to 20us",
            "defer-hard-irqs of queue 1 from 0 to 100",
            "irq-suspend-timeout of queue 1 from 0 to 20ms",
        ]
    );
    assert_eq!(plan.already, 3, "both modes, and one timeout");
    let expected: Vec<(String, &str)> =
        fold(&plan.changes).into_iter().map(|it| (it.subject, it.what)).collect();
    assert_eq!(
        expected,
        [
            ("queues 0-1".to_owned(), "defer-hard-irqs"),
            ("queues 0-1".to_owned(), "irq-suspend-timeout"),
            ("queue 1".to_owned(), "gro-flush-timeout"),
        ]
    );
}

#[test]
fn a_placement_leaves_the_settings_as_another_policy_has_them() {
    let (mut backend, place) = (Fake::new(2), Home::new());
    applied(&mut backend, &place.store(), "suspend20", &plain()).expect("applied");
    let options = Options { cpus: vec![1, 3], placement_only: true, ..plain() };
    let moved = applied(&mut backend, &place.store(), "defer200", &options).expect("applied");
    let changes: Vec<String> = moved.plan.changes.iter().map(Change::to_string).collect();
    assert_eq!(changes, ["irq-cpus of queue 0 from 0-3 to 1", "irq-cpus of queue 1 from 0-3 to 3"]);
    assert_eq!((moved.plan.already, moved.done.len()), (0, 2));
}

#[test]
fn deferral_goes_before_its_timeouts_and_comes_after_them() {
    let (mut backend, place) = (Fake::new(1), Home::new());
    let order = |applied: Applied| -> Vec<&str> {
        applied.done.iter().map(|change| change.place.what()).collect()
    };
    let on = applied(&mut backend, &place.store(), "suspend20", &plain()).expect("applied");
    assert_eq!(order(on), ["gro-flush-timeout", "defer-hard-irqs", "irq-suspend-timeout"]);
    let off = applied(&mut backend, &place.store(), "base", &plain()).expect("applied");
    assert_eq!(order(off), ["irq-suspend-timeout", "defer-hard-irqs", "gro-flush-timeout"]);
    let threaded = applied(&mut backend, &place.store(), "threaded", &placed()).expect("applied");
    assert_eq!(order(threaded), ["threaded", "thread-cpus", "thread-class", "irq-cpus"]);
}

#[test]
fn queues_take_the_cpus_round_and_round() {
    let (mut backend, place) = (Fake::new(3), Home::new());
    applied(&mut backend, &place.store(), "threaded", &placed()).expect("applied");
    let all = backend.everything();
    for (number, cpu) in [(0, 1), (1, 3), (2, 1)] {
        assert_eq!(all[&(7, Place::ThreadCpus(queue(number)))], Value::Cpus(vec![cpu]));
        assert_eq!(all[&(7, Place::IrqCpus(queue(number)))], Value::Cpus(vec![cpu]));
        let class = &all[&(7, Place::ThreadClass(queue(number)))];
        assert_eq!(*class, Value::Class(Class::Fifo(10)));
    }
}

#[test]
fn an_interrupt_of_several_instances_has_one_place() {
    let (mut backend, place) = (Fake::new(3), Home::new());
    backend.devices[0].napis[1].irq = backend.devices[0].napis[0].irq;
    let options = Options { cpus: vec![1, 3], ..plain() };
    let done = applied(&mut backend, &place.store(), "base", &options).expect("applied").done;
    let changes: Vec<String> = done.iter().map(Change::to_string).collect();
    let both = ["irq-cpus of queue 0 from 0-3 to 1", "irq-cpus of queue 2 from 0-3 to 1"];
    assert_eq!(changes, both, "who put it to a second place would find that at the first");
}

#[test]
fn one_queue_is_set_alone() {
    let (mut backend, place) = (Fake::new(3), Home::new());
    let options = Options { queue: Some(1), ..plain() };
    let done = applied(&mut backend, &place.store(), "defer20", &options).expect("applied").done;
    assert!(done.iter().all(|change| change.place.instance() == Some(&queue(1))));
    let error =
        applied(&mut backend, &place.store(), "base", &Options { queue: Some(9), ..plain() });
    let error = error.expect_err("there is none").to_string();
    assert!(error.contains("no receive queue 9") && error.contains("there is 0-2"), "{error}");
}

#[test]
fn options_that_make_no_sense_are_refused_with_the_reason() {
    let (mut backend, place) = (Fake::of(linux(6, 19), 1), Home::new());
    let mut refused = |text: &str, options: Options| {
        let error = applied(&mut backend, &place.store(), text, &options).expect_err(text);
        error.to_string()
    };
    let rt = |priority| Options { rt: Some(priority), ..plain() };
    assert!(refused("threaded-busy-poll", rt(1)).contains("50 ms in every second"));
    assert!(refused("defer20", rt(1)).contains("defer20 has none"));
    assert!(refused("threaded", rt(100)).contains("1 to 99"));
    let far = Options { cpus: vec![CPUS], ..plain() };
    assert!(refused("base", far).contains("CPU 4 is offline or does not exist; online: 0-3"));
    assert_eq!(place.files(), [""; 0], "nothing is begun");
}

#[test]
fn a_kernel_that_sets_whole_devices_only_cannot_set_one_queue() {
    let (mut backend, place) = (Fake::of(linux(6, 12), 2), Home::new());
    let one = Options { queue: Some(0), ..plain() };
    let error = applied(&mut backend, &place.store(), "defer20", &one).expect_err("refused");
    assert!(error.to_string().contains("Linux 6.13"), "{error}");
    let before = backend.everything();
    let done = applied(&mut backend, &place.store(), "defer20", &plain()).expect("applied").done;
    assert_eq!(done.iter().map(|it| it.place.subject()).collect::<Vec<_>>(), ["device"; 2]);
    all_back(&mut backend, &place.store());
    assert_eq!(backend.everything(), before);
}

#[test]
fn a_thread_gives_up_real_time_before_it_spins() {
    let (mut backend, place) = (Fake::of(linux(6, 19), 1), Home::new());
    applied(&mut backend, &place.store(), "threaded", &placed()).expect("applied");
    // The fake panics if a real-time thread is made to spin.
    applied(&mut backend, &place.store(), "threaded-busy-poll", &plain()).expect("applied");
    let class = &backend.everything()[&(7, Place::ThreadClass(queue(0)))];
    assert_eq!(*class, Value::Class(Class::Fair));
}

#[test]
fn applying_twice_is_applying_once() {
    let (mut backend, place) = (Fake::new(2), Home::new());
    let original = backend.everything();
    applied(&mut backend, &place.store(), "threaded", &placed()).expect("applied");
    let (set, writes) = (backend.everything(), backend.writes);
    let second = applied(&mut backend, &place.store(), "threaded", &placed()).expect("applied");
    assert_eq!((second.done.len(), backend.writes), (0, writes));
    assert_eq!(backend.everything(), set);
    all_back(&mut backend, &place.store());
    assert_eq!(backend.everything(), original);
    assert_eq!(place.files(), [""; 0]);
}

#[test]
fn every_preset_is_put_back_or_changes_nothing() {
    for kernel in [linux(6, 18), linux(6, 19), linux(6, 13), linux(6, 12), linux(5, 10)] {
        let release = kernel.release.clone();
        let (mut backend, place) = (Fake::of(kernel, 2), Home::new());
        let original = backend.everything();
        for preset in PRESETS {
            let result = applied(&mut backend, &place.store(), preset.name, &plain());
            if result.is_err() {
                assert_eq!(backend.everything(), original, "{release}: {}", preset.name);
            }
            assert!(all_back(&mut backend, &place.store()).is_complete());
            assert_eq!(backend.everything(), original, "{release}: {}", preset.name);
            assert_eq!(place.files(), [""; 0], "{release}: {}", preset.name);
        }
    }
}

#[test]
fn what_was_first_comes_back_after_several_applies() {
    let (mut backend, place) = (Fake::new(2), Home::new());
    backend.somebody_sets(&napi(1, Setting::GroFlushTimeout), &Value::Number(7));
    let original = backend.everything();
    for name in ["defer20", "threaded", "suspend200", "defer20", "base", "interrupts"] {
        applied(&mut backend, &place.store(), name, &plain()).expect(name);
    }
    assert!(all_back(&mut backend, &place.store()).is_complete());
    assert_eq!(backend.everything(), original);
}

#[test]
fn threads_that_somebody_had_placed_come_back_as_they_were() {
    // Until 6.16 threaded is a setting of the device.
    for (kernel, mode) in [
        (linux(6, 18), napi(0, Setting::Threaded)),
        (linux(6, 13), Place::Device(Setting::Threaded)),
    ] {
        let (mut backend, place) = (Fake::of(kernel, 2), Home::new());
        backend.somebody_sets(&mode, &Value::Number(1));
        backend.somebody_sets(&Place::ThreadCpus(queue(0)), &Value::Cpus(vec![2]));
        backend.somebody_sets(&Place::ThreadClass(queue(0)), &Value::Class(Class::Fifo(5)));
        let original = backend.everything();
        applied(&mut backend, &place.store(), "defer20", &plain()).expect("applied");
        assert!(!backend.everything().contains_key(&(7, Place::ThreadCpus(queue(0)))));
        assert!(all_back(&mut backend, &place.store()).is_complete());
        assert_eq!(backend.everything(), original);
    }
}

#[test]
fn what_somebody_else_set_is_told_and_left() {
    let (mut backend, place) = (Fake::new(2), Home::new());
    applied(&mut backend, &place.store(), "defer20", &plain()).expect("applied");
    let foreign = napi(0, Setting::GroFlushTimeout);
    backend.somebody_sets(&foreign, &Value::Number(50_000));

    let expected = "gro-flush-timeout of va queue 0 is 50us; napkin had set 20us, before it was 0";
    let before = backend.everything();
    let error = applied(&mut backend, &place.store(), "base", &plain()).expect_err("refused");
    assert!(error.to_string().contains(expected), "{error}");
    assert_eq!(backend.everything(), before, "nothing was changed");

    let restored = all_back(&mut backend, &place.store());
    assert!(!restored.is_complete());
    assert_eq!(restored.devices[0].foreign[0].to_string(), expected);
    assert_eq!(restored.devices[0].kept, 1);
    let all = backend.everything();
    assert_eq!(all[&(7, foreign.clone())], Value::Number(50_000));
    assert_eq!(all[&(7, napi(0, Setting::DeferHardIrqs))], Value::Number(0));

    let force = RestoreOptions { force: true, ..RestoreOptions::default() };
    assert!(restore(&mut backend, &place.store(), &force).expect("readable").is_complete());
    assert_eq!(backend.everything()[&(7, foreign)], Value::Number(0));
    assert_eq!(place.files(), [""; 0]);
}

#[test]
fn a_forced_apply_still_knows_what_was_first() {
    let (mut backend, place) = (Fake::new(1), Home::new());
    let original = backend.everything();
    applied(&mut backend, &place.store(), "defer20", &plain()).expect("applied");
    backend.somebody_sets(&napi(0, Setting::GroFlushTimeout), &Value::Number(50_000));
    let policy = policy("defer200");
    let options = plain();
    let request = Request { policy: &policy, ifname: "va", options: &options, force: true };
    apply(&mut backend, &place.store(), &request).expect("forced");
    assert!(all_back(&mut backend, &place.store()).is_complete());
    assert_eq!(backend.everything(), original);
}

#[test]
fn forgetting_leaves_things_as_they_are_and_says_so() {
    let (mut backend, place) = (Fake::new(1), Home::new());
    applied(&mut backend, &place.store(), "defer20", &plain()).expect("applied");
    backend.somebody_sets(&napi(0, Setting::GroFlushTimeout), &Value::Number(50_000));
    let forget = RestoreOptions { forget: true, ..RestoreOptions::default() };
    let restored = restore(&mut backend, &place.store(), &forget).expect("readable");
    assert!(restored.is_complete() && restored.devices[0].forgotten);
    assert_eq!(restored.devices[0].foreign.len(), 1);
    assert_eq!(place.files(), [""; 0]);
}

#[test]
fn a_dry_run_says_the_same_and_does_nothing() {
    let (mut backend, place) = (Fake::new(2), Home::new());
    applied(&mut backend, &place.store(), "threaded", &placed()).expect("applied");
    let (set, files) = (backend.everything(), place.files());
    let dry = RestoreOptions { dry_run: true, ..RestoreOptions::default() };
    let previewed = restore(&mut backend, &place.store(), &dry).expect("readable");
    assert_eq!((backend.everything(), place.files()), (set, files));
    let done = all_back(&mut backend, &place.store());
    assert_eq!(previewed.devices[0].changes, done.devices[0].changes);
}

#[test]
fn a_change_that_the_kernel_refuses_takes_back_those_before_it() {
    let place = Home::new();
    for after in 0..8 {
        let mut backend = Fake::new(2);
        backend.somebody_sets(&napi(0, Setting::Threaded), &Value::Number(1));
        backend.somebody_sets(&Place::ThreadCpus(queue(0)), &Value::Cpus(vec![2]));
        let original = backend.everything();
        backend.refuses_after = Some(after);
        let error = applied(&mut backend, &place.store(), "defer20", &plain());
        match error {
            Ok(applied) => assert!(applied.done.len() <= after as usize + 1, "{after}"),
            Err(ApplyError::Stopped { .. }) => {
                assert_eq!(backend.everything(), original, "{after}");
            }
            Err(other) => panic!("{other}"),
        }
        backend.refuses_after = None;
        all_back(&mut backend, &place.store());
        assert_eq!(backend.everything(), original, "{after}");
        assert_eq!(place.files(), [""; 0], "{after}");
    }
}

#[test]
fn without_the_right_nothing_is_begun_and_the_right_is_named() {
    let (mut backend, place) = (Fake::new(1), Home::new());
    backend.right = false;
    let error = applied(&mut backend, &place.store(), "defer20", &plain()).expect_err("refused");
    assert!(matches!(error, ApplyError::NoRight { right: Right::NetAdmin, .. }), "{error}");
    assert!(error.to_string().contains("CAP_NET_ADMIN"));
    assert_eq!(place.files(), [""; 0]);
}

#[test]
fn a_device_that_is_gone_takes_its_changes_with_it() {
    let (mut backend, place) = (Fake::new(1), Home::new());
    applied(&mut backend, &place.store(), "defer20", &plain()).expect("applied");
    backend.devices.retain(|device| device.ifname != "va");
    let named = RestoreOptions { ifname: Some("va".into()), ..RestoreOptions::default() };
    let restored = restore(&mut backend, &place.store(), &named).expect("it was there");
    assert!(restored.devices[0].gone && restored.is_complete());
    assert_eq!(restored.devices[0].ifname, "va");
    assert_eq!(place.files(), [""; 0]);
    assert!(restore(&mut backend, &place.store(), &named).is_err(), "there is no such device");
}

#[test]
fn a_device_that_goes_while_it_is_changed_takes_its_changes_with_it() {
    let goes: Interference = |fake| fake.devices.retain(|device| device.ifname != "va");
    for at in 1..4 {
        let (mut backend, place) = (Fake::new(2), Home::new());
        backend.after_write = Some((at, goes));
        let error = applied(&mut backend, &place.store(), "suspend20", &plain()).expect_err("gone");
        assert!(matches!(error, ApplyError::Stopped { .. }), "{error}");
        assert_eq!(place.files(), [""; 0], "{at}");
        // The same while it is being put back.
        let (mut backend, place) = (Fake::new(2), Home::new());
        let (policy, options) = (policy("suspend20"), plain());
        let request = Request { policy: &policy, ifname: "va", options: &options, force: false };
        let mut hold = Temporary::apply(&mut backend, &place.store(), &request).expect("applied");
        let backend = hold.backend();
        backend.after_write = Some((backend.writes + at, goes));
        assert!(hold.restore().expect("the kernel answers").gone, "{at}");
        assert_eq!(place.files(), [""; 0], "{at}");
    }
}

#[test]
fn instances_that_are_away_are_kept_for_when_they_come_back() {
    let (mut backend, place) = (Fake::new(2), Home::new());
    let original = backend.everything();
    applied(&mut backend, &place.store(), "defer20", &plain()).expect("applied");
    let away = std::mem::take(&mut backend.devices[0].napis);
    backend.devices[0].up = false;
    let restored = all_back(&mut backend, &place.store());
    assert!(!restored.is_complete());
    assert_eq!(restored.devices[0].missing.len(), 4);
    backend.devices[0].napis = away;
    backend.recreate();
    assert!(all_back(&mut backend, &place.store()).is_complete());
    assert_eq!(backend.everything(), original);
    assert_eq!(place.files(), [""; 0]);
}

#[test]
fn a_device_that_was_renamed_is_still_the_same() {
    let (mut backend, place) = (Fake::new(1), Home::new());
    let original = backend.everything();
    applied(&mut backend, &place.store(), "defer20", &plain()).expect("applied");
    backend.devices[0].ifname = "eth9".into();
    let restored = all_back(&mut backend, &place.store());
    assert_eq!(restored.devices[0].ifname, "eth9");
    assert_eq!(backend.everything(), original);
}
