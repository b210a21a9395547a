//! The reports of plans, restores, holds and differences, in cases where not everything went well.

use crate::place::{Change, Instance, Place, Value};
use std::collections::BTreeSet;
use std::time::Duration;

use super::*;
use crate::apply::fake::Interference;
use crate::journal::{Found, fault, pid_namespace_ended};
use crate::{process_change::ProcessChange, process_change::Recorder, process_change::What};
use napkin_kernel::process::{Params, Process};
use napkin_os::procfs::thread::ticks_now;
use napkin_os::sched::{affinity, pin, usable_cpus};
use napkin_os::signals::Signals;

fn planned(backend: &mut Fake, text: &str, options: &Options) -> Result<Plan, PlanError> {
    let at = backend.look(Target::Name("va")).expect("it is there");
    plan(&policy(text), &at, backend.kernel(), options)
}

/// A restore of one device only.
fn named() -> RestoreOptions {
    RestoreOptions { ifname: Some("va".into()), ..RestoreOptions::default() }
}

fn gro() -> Place {
    napi(0, Setting::GroFlushTimeout)
}

#[test]
fn cpus_without_anything_to_place_are_told_of() {
    let mut backend = Fake::new(1);
    let cpus = Options { cpus: vec![1], ..plain() };
    let nothing = |backend: &mut Fake, text: &str, options: &Options| {
        planned(backend, text, options).expect("it can be done").nothing_to_place
    };
    assert!(!nothing(&mut backend, "base", &cpus), "an interrupt");
    backend.devices[0].napis[0].irq = None;
    backend.devices[0].napis[0].irq_cpus = None;
    assert!(nothing(&mut backend, "base", &cpus));
    assert!(!nothing(&mut backend, "base", &plain()), "nor asked for");
    assert!(!nothing(&mut backend, "threaded", &cpus), "a thread");
}

#[test]
fn instances_that_only_transmit_are_left_as_they_are_unless_asked_for() {
    let mut backend = Fake::of(linux(6, 19), 2);
    // Like igb with four vectors for two queues: two instances receive, two transmit.
    for napi in &mut backend.devices[0].napis {
        napi.tx_queues.clear();
    }
    let mut transmits = backend.devices[0].napis.clone();
    for napi in &mut transmits {
        (napi.tx_queues, napi.id) = (std::mem::take(&mut napi.rx_queues), napi.id + 100);
    }
    backend.devices[0].napis.extend(transmits);
    let spins = |backend: &mut Fake, options: &Options| {
        let plan = planned(backend, "threaded-busy-poll", options).expect("it can be done");
        let of = |change: &Change| change.place.instance().map(Instance::to_string);
        let all: BTreeSet<String> = plan.changes.iter().filter_map(of).collect();
        (all, plan.transmit_left)
    };
    let receiving = ["queue 0", "queue 1"].map(str::to_owned);
    assert_eq!(spins(&mut backend, &plain()), (receiving.into(), 2));
    let (all, left) = spins(&mut backend, &Options { transmit: true, ..plain() });
    assert_eq!((all.len(), left), (4, 0), "{all:?}");
    // Some kernels' veth reports no queues for any instance: the instances are set.
    for napi in &mut backend.devices[0].napis {
        (napi.rx_queues, napi.tx_queues) = (vec![], vec![]);
    }
    let (all, left) = spins(&mut backend, &plain());
    assert_eq!((all.len(), left), (4, 0), "{all:?}");
}

#[test]
fn an_instance_that_is_not_named_is_left_where_it_is() {
    let mut backend = Fake::new(2);
    // Like an instance private to the driver, whose queues it does not report.
    let napis = &mut backend.devices[0].napis;
    (napis[1].rx_queues, napis[1].tx_queues) = (vec![], vec![]);
    let first = napis[0].id;
    let mut placed = |napis| {
        let options = Options { cpus: vec![1], napis, ..plain() };
        let plan = planned(&mut backend, "base", &options).expect("it can be done");
        plan.changes.into_iter().map(|change| change.place).collect::<Vec<_>>()
    };
    assert_eq!(placed(vec![]).len(), 2);
    assert_eq!(placed(vec![first]), [Place::IrqCpus(queue(0))]);
}

#[test]
fn a_thread_s_class_is_planned_only_where_it_has_to_be() {
    let mut backend = Fake::of(linux(6, 19), 1);
    let classes = |backend: &mut Fake, text: &str| {
        let plan = planned(backend, text, &plain()).expect("it can be done");
        plan.changes.iter().filter(|it| it.place == Place::ThreadClass(queue(0))).count()
    };
    assert_eq!(classes(&mut backend, "threaded-busy-poll"), 0, "its thread will be fair");
    backend.somebody_sets(&napi(0, Setting::Threaded), &Value::Number(1));
    backend.somebody_sets(&Place::ThreadClass(queue(0)), &Value::Class(Class::Fifo(5)));
    assert_eq!(classes(&mut backend, "threaded"), 0, "somebody's own choice");
    assert_eq!(classes(&mut backend, "threaded-busy-poll"), 1, "it must not spin in real time");
    backend.somebody_sets(&Place::ThreadClass(queue(0)), &Value::Class(Class::Nice(-20)));
    assert_eq!(classes(&mut backend, "threaded-busy-poll"), 0, "it is fair");
}

#[test]
fn a_kernel_that_shows_no_instances_places_none() {
    let mut backend = Fake::of(linux(5, 10), 1);
    planned(&mut backend, "defer20", &plain()).expect("it can be done");
    let cpus = Options { cpus: vec![1], ..plain() };
    let error = planned(&mut backend, "defer20", &cpus).expect_err("refused").to_string();
    assert!(error.contains("--cpus"), "{error}");
}

#[test]
fn what_is_different_is_told_with_whose_it_is() {
    let (mut backend, place) = (Fake::new(1), Home::new());
    let differences =
        |backend: &mut Fake| difference(backend, &place.store(), "va").expect("it is there");
    assert_eq!(differences(&mut backend), []);
    applied(&mut backend, &place.store(), "defer20", &plain()).expect("applied");
    let [first, second] = &differences(&mut backend)[..] else { panic!("two") };
    assert_eq!((&first.place, &second.place), (&gro(), &napi(0, Setting::DeferHardIrqs)));
    let number = Value::Number;
    assert_eq!((&first.before, &first.set, first.foreign), (&number(0), &number(20_000), false));
    assert_eq!(first.now, Some(number(20_000)));
    backend.somebody_sets(&gro(), &number(50_000));
    let now = differences(&mut backend);
    assert_eq!((now[0].foreign, &now[0].now, now[1].foreign), (true, &Some(number(50_000)), false));
    backend.somebody_sets(&gro(), &number(0));
    assert_eq!(differences(&mut backend).len(), 1, "it is as it was");
    backend.devices[0].napis.clear();
    assert!(differences(&mut backend).iter().all(|it| it.now.is_none() && !it.foreign));
    assert_eq!(differences(&mut backend).len(), 2, "they may come back");
}

#[test]
fn what_is_different_by_a_journal_is_its_device_s_whatever_that_is_called() {
    let (mut backend, place) = (Fake::new(1), Home::new());
    applied(&mut backend, &place.store(), "defer20", &plain()).expect("applied");
    let found = place.store().survey().expect("readable").pop();
    let Some(Found::Device(journal)) = found else { panic!("a device's") };
    let differences = |backend: &mut Fake| difference_of(backend, &journal).expect("it answers");
    backend.devices[0].ifname = "renamed".into();
    let (ifname, different) = differences(&mut backend).expect("it is here");
    assert_eq!((ifname.as_str(), different.len()), ("renamed", 2));
    let identity = backend.identities.remove(&7).expect("it has one");
    assert!(
        differences(&mut backend).is_some(),
        "where nobody sees what a device is its number is it"
    );
    backend.identities.insert(7, identity + 1);
    assert_eq!(differences(&mut backend), None, "another has its number");
    backend.devices[0].ifindex = 9;
    backend.identities.insert(9, identity);
    assert!(differences(&mut backend).is_some(), "it has another number");
}

#[test]
fn what_went_with_a_thread_is_no_difference() {
    let (mut backend, place) = (Fake::new(1), Home::new());
    applied(&mut backend, &place.store(), "threaded", &placed()).expect("applied");
    backend.somebody_sets(&napi(0, Setting::Threaded), &Value::Number(0));
    let differences = difference(&mut backend, &place.store(), "va").expect("it is there");
    let places: Vec<_> = differences.into_iter().map(|it| it.place).collect();
    assert_eq!(places, [Place::IrqCpus(queue(0))]);
}

/// Holds a policy, makes `behind.1` happen after that many writes, and ends the hold.
fn held(backend: &mut Fake, place: &Home, behind: (u32, Interference)) -> DeviceRestored {
    backend.after_write = Some(behind);
    let (policy, options) = (policy("defer20"), plain());
    let request = Request { policy: &policy, ifname: "va", options: &options, force: false };
    let hold = Temporary::apply(&mut *backend, &place.store(), &request).expect("applied");
    let signals = Signals::block_termination().expect("blocked");
    assert_eq!(hold.wait(&signals, Duration::from_millis(1)), Ended::Time);
    hold.restore().expect("it is told")
}

#[test]
fn a_hold_of_a_device_that_is_gone_says_so() {
    let (mut backend, place) = (Fake::new(1), Home::new());
    let restored =
        held(&mut backend, &place, (2, |backend| backend.devices.retain(|it| it.ifname != "va")));
    assert_eq!((restored.ifname.as_str(), restored.gone), ("va", true));
    assert_eq!(place.files(), [""; 0]);
}

#[test]
fn a_hold_leaves_what_somebody_else_set_meanwhile() {
    let (mut backend, place) = (Fake::new(1), Home::new());
    let restored = held(
        &mut backend,
        &place,
        (2, |backend| backend.somebody_sets(&gro(), &Value::Number(50_000))),
    );
    assert_eq!((restored.ifname.as_str(), restored.up), ("va", true));
    assert_eq!((restored.changes.len(), restored.foreign.len(), restored.kept), (1, 1, 1));
    assert!(!restored.is_complete());
    assert_eq!(backend.everything()[&(7, gro())], Value::Number(50_000));
}

#[test]
fn a_hold_gives_back_what_somebody_set_between_its_plan_and_its_change() {
    let (mut backend, place) = (Fake::new(1), Home::new());
    let irqs = napi(0, Setting::DeferHardIrqs);
    let behind: Interference =
        |backend| backend.somebody_sets(&napi(0, Setting::DeferHardIrqs), &Value::Number(7));
    assert!(held(&mut backend, &place, (1, behind)).is_complete());
    assert_eq!(backend.everything()[&(7, irqs)], Value::Number(7));
}

#[test]
fn a_hold_whose_instances_are_away_keeps_what_it_knows() {
    let (mut backend, place) = (Fake::new(1), Home::new());
    let restored = held(&mut backend, &place, (2, |backend| backend.devices[0].napis.clear()));
    assert_eq!((restored.missing.len(), restored.kept), (2, 2));
}

#[test]
fn a_change_that_is_refused_says_whether_those_before_it_are_back() {
    let (mut backend, place) = (Fake::new(1), Home::new());
    backend.refuses_after = Some(1);
    let error = applied(&mut backend, &place.store(), "defer20", &plain()).expect_err("refused");
    assert!(error.to_string().ends_with("; what had been changed before that was put back"));
    let (mut backend, place) = (Fake::new(1), Home::new());
    backend.refuses_after = Some(1);
    backend.after_write =
        Some((1, |backend| backend.somebody_sets(&gro(), &Value::Number(50_000))));
    let error = applied(&mut backend, &place.store(), "defer20", &plain()).expect_err("refused");
    let error = error.to_string();
    assert!(error.contains("is not back") && error.contains("queue 0 is 50us"), "{error}");
}

#[test]
fn a_change_that_is_refused_is_not_written_down_as_made() {
    for after in 0..6 {
        let (mut backend, place) = (Fake::new(2), Home::new());
        backend.refuses_after = Some(after);
        applied(&mut backend, &place.store(), "suspend20", &plain()).expect_err("refused");
        assert_eq!(place.files(), [""; 0], "{after}");
        // The earlier changes are still recorded, and no others.
        applied(&mut backend, &place.store(), "defer20", &plain()).expect("applied");
        let known = || {
            let journal = place.store().device(7, "va", Some(700)).expect("readable");
            let all = journal.records().iter();
            all.map(|it| (it.spot.clone(), it.before.clone(), it.set.clone())).collect::<Vec<_>>()
        };
        let before = known();
        // Each instance takes two changes.
        backend.refuses_after = Some(backend.writes + after % 4);
        applied(&mut backend, &place.store(), "suspend200", &plain()).expect_err("refused");
        assert_eq!(known(), before, "{after}");
    }
}

#[test]
fn what_is_not_there_or_still_written_down_is_not_said_to_be_back() {
    let (mut backend, place) = (Fake::new(1), Home::new());
    backend.after_write = Some((1, |backend| backend.devices[0].napis.clear()));
    let error = applied(&mut backend, &place.store(), "defer20", &plain()).expect_err("gone");
    let expected =
        "is not back, `napkin restore` tries again: gro-flush-timeout of va queue 0 is not";
    assert!(error.to_string().contains(expected), "{error}");

    let (mut backend, place) = (Fake::new(1), Home::new());
    applied(&mut backend, &place.store(), "defer20", &plain()).expect("applied");
    backend.after_write = Some((backend.writes + 1, |_| fault::disk::fill(true)));
    let error = applied(&mut backend, &place.store(), "suspend200", &plain());
    fault::disk::fill(false);
    let error = error.expect_err("no room for the next line").to_string();
    assert!(error.contains("is not back") && error.contains("cannot write"), "{error}");
}

#[test]
fn a_class_that_could_not_be_given_back_is_left_alone() {
    let mut backend = Fake::of(linux(6, 19), 1);
    backend.somebody_sets(&napi(0, Setting::Threaded), &Value::Number(1));
    // SCHED_DEADLINE.
    backend.somebody_sets(&Place::ThreadClass(queue(0)), &Value::Class(Class::Other(6)));
    let rt = Options { rt: Some(5), ..plain() };
    let error = planned(&mut backend, "threaded", &rt).expect_err("refused").to_string();
    assert!(error.contains("(other 6)") && error.contains("leave --rt out"), "{error}");
    for text in ["threaded", "threaded-busy-poll"] {
        let plan = planned(&mut backend, text, &plain()).expect("it can be done");
        assert!(plan.changes.iter().all(|it| !it.place.of_thread()), "{text}: {:?}", plan.changes);
    }
    let place = Home::new();
    applied(&mut backend, &place.store(), "defer20", &plain()).expect("applied");
    assert!(all_back(&mut backend, &place.store()).is_complete(), "it went with its thread");
}

#[test]
fn a_place_that_refuses_to_be_put_back_is_kept_and_no_other() {
    let (mut backend, place) = (Fake::new(2), Home::new());
    let original = backend.everything();
    applied(&mut backend, &place.store(), "defer20", &plain()).expect("applied");
    backend.refuses_after = Some(backend.writes);
    let restored = all_back(&mut backend, &place.store());
    let device = &restored.devices[0];
    assert_eq!((device.changes.len(), device.failed.len(), device.kept), (3, 1, 1));
    assert!(!restored.is_complete());
    assert!(all_back(&mut backend, &place.store()).is_complete());
    assert_eq!(backend.everything(), original);
}

#[test]
fn the_placing_of_a_thread_that_ends_is_not_put_back() {
    for kernel in [linux(6, 18), linux(6, 13)] {
        let (mut backend, place) = (Fake::of(kernel, 1), Home::new());
        applied(&mut backend, &place.store(), "threaded", &placed()).expect("applied");
        let restored = all_back(&mut backend, &place.store());
        let device = &restored.devices[0];
        assert!(device.changes.iter().all(|it| !it.place.of_thread()), "{:?}", device.changes);
        assert!(restored.is_complete());
    }
}

#[test]
fn a_device_at_which_another_napkin_is_is_not_said_to_be_back() {
    let (mut backend, place) = (Fake::new(1), Home::new());
    applied(&mut backend, &place.store(), "defer20", &plain()).expect("applied");
    let lock = place.store().lock(7, "va", Some(700)).expect("nobody has it");
    let restored = all_back(&mut backend, &place.store());
    assert!(restored.devices[0].refused.is_some() && !restored.is_complete());
    drop(lock);
    assert!(all_back(&mut backend, &place.store()).is_complete());
}

#[test]
fn a_device_of_which_nothing_is_heard_is_not_taken_for_gone() {
    let (mut backend, place) = (Fake::new(1), Home::new());
    let original = backend.everything();
    let (policy, options) = (policy("defer20"), plain());
    let request = Request { policy: &policy, ifname: "va", options: &options, force: false };
    backend.after_write = Some((2, |backend| backend.unresponsive = true));
    let hold = Temporary::apply(&mut backend, &place.store(), &request).expect("applied");
    hold.restore().expect_err("nothing is heard");
    let restored = all_back(&mut backend, &place.store());
    assert!(restored.devices[0].refused.is_some() && !restored.devices[0].gone);
    restore(&mut backend, &place.store(), &named()).expect_err("nothing is heard");
    backend.unresponsive = false;
    assert!(all_back(&mut backend, &place.store()).is_complete());
    assert_eq!(backend.everything(), original, "nothing was forgotten");
}

#[test]
fn nothing_to_restore_is_said_to_be_nothing() {
    let (mut backend, place) = (Fake::new(1), Home::new());
    for options in [RestoreOptions::default(), named()] {
        let restored = restore(&mut backend, &place.store(), &options).expect("readable");
        assert!(restored.is_empty() && restored.is_complete());
    }
    applied(&mut backend, &place.store(), "defer20", &plain()).expect("applied");
    assert!(!all_back(&mut backend, &place.store()).is_empty());
}

#[test]
fn a_spoilt_file_of_a_named_device_is_given_up_only_if_that_is_asked_for() {
    let (mut backend, place) = (Fake::new(1), Home::new());
    applied(&mut backend, &place.store(), "defer20", &plain()).expect("applied");
    let file = place.0.join("device-700.journal");
    std::fs::write(&file, "spoilt\n").expect("written");
    let mut asked = |options| restore(&mut backend, &place.store(), &options);
    asked(named()).expect_err("it cannot be read");
    let forget = RestoreOptions { forget: true, ..named() };
    let dry = asked(RestoreOptions { dry_run: true, ..forget.clone() }).expect("told");
    assert!(matches!(&dry.also[..], [OtherJournal::Unreadable { .. }]) && file.exists());
    assert!(!dry.is_empty());
    let given_up = asked(forget).expect("given up");
    assert!(matches!(&given_up.also[..], [OtherJournal::Unreadable { forgotten: true, .. }]));
    assert_eq!(place.files(), [""; 0]);
}

#[test]
fn what_was_changed_in_a_process_that_has_ended_went_with_it() {
    let (mut backend, place) = (Fake::new(1), Home::new());
    let pid = 4_194_305;
    let mut recorder = place.store().recorder();
    for fd in [5, 6] {
        let new = Params { busy_poll_usecs: 10, ..Params::default() };
        let what = What::Epoll { tid: pid, fd, old: Params::default(), new };
        recorder.before(&ProcessChange { pid, start_time: 5, what }).expect("written");
    }
    drop(recorder);
    let dry = RestoreOptions { dry_run: true, ..RestoreOptions::default() };
    let dry_run = restore(&mut backend, &place.store(), &dry).expect("readable");
    assert_eq!((dry_run.processes[0].pid, dry_run.processes[0].changes.len()), (pid, 2));
    assert!(!dry_run.is_empty() && !place.files().is_empty());
    let restored = all_back(&mut backend, &place.store());
    let process = &restored.processes[0];
    assert_eq!((process.pid, process.gone, process.changes.len()), (pid, 2, 0));
    assert!(restored.is_complete());
    assert_eq!(place.files(), [""; 0]);
}

#[test]
fn a_thread_that_has_its_cpus_from_one_that_was_moved_is_put_back_with_it() {
    let usable = usable_cpus();
    let [_, .., last] = usable[..] else { return };
    let (mut backend, place) = (Fake::new(1), Home::new());
    let since = Some(ticks_now());
    let mut sleeper = std::process::Command::new("sleep").arg("60").spawn().expect("it starts");
    let pid = sleeper.id().cast_signed();
    // As if inherited from a thread that has ended since.
    pin(Some(pid), &[last]).expect("it is there");
    let (old, new) = (usable.clone(), vec![last]);
    let what = What::Affinity { tid: 1, thread_start_time: 5, old, new, since };
    let start_time = Process::open(pid).expect("it lives").start_time();
    place.store().recorder().before(&ProcessChange { pid, start_time, what }).expect("written");
    let restored = all_back(&mut backend, &place.store());
    let cpus = affinity(Some(pid));
    sleeper.kill().and_then(|()| sleeper.wait()).expect("it ends");
    let process = &restored.processes[0];
    assert_eq!((process.gone, process.changes.len()), (1, 1), "{process:?}");
    assert_eq!(cpus.expect("it lived"), usable);
    assert!(restored.is_complete());
}

#[test]
fn a_process_of_another_pid_namespace_is_left_alone_unless_that_has_ended() {
    let (mut backend, place) = (Fake::new(1), Home::new());
    let what = What::Epoll { tid: 7, fd: 5, old: Params::default(), new: Params::default() };
    let change = ProcessChange { pid: 4_194_305, start_time: 5, what };
    let file = place.0.join("process-4194305-5.journal");
    // With access to all processes, it is evident that the namespace has no process any more.
    let elsewhere = !pid_namespace_ended(1);
    // Older versions did not record it.
    for (namespace_field, elsewhere) in [(r#","pid-namespace":1}"#, elsewhere), ("}", false)] {
        place.store().recorder().before(&change).expect("written");
        let text = std::fs::read_to_string(&file).expect("written");
        let (header, lines) = text.split_once('\n').expect("a line");
        let (subject, own) = header.split_once(r#","pid-namespace":"#).expect("this one does");
        assert!(own.trim_end_matches('}').parse::<u64>().is_ok(), "{header}");
        std::fs::write(&file, format!("{subject}{namespace_field}\n{lines}")).expect("written");
        for dry_run in [true, false] {
            let options = RestoreOptions { dry_run, ..RestoreOptions::default() };
            let restored = restore(&mut backend, &place.store(), &options).expect("readable");
            let left = [
                "process 4194305: it is of another PID namespace: left alone; run napkin restore in \
                 that one, or give it up with --forget",
            ];
            assert_eq!(restored.processes[0].left, &left[..usize::from(elsewhere)]);
            assert_eq!(file.exists(), elsewhere || dry_run);
        }
        let forget = RestoreOptions { forget: true, ..RestoreOptions::default() };
        let given_up = restore(&mut backend, &place.store(), &forget).expect("readable");
        assert!(given_up.is_complete() && !file.exists(), "{given_up:?}");
    }
}

#[test]
fn instances_of_the_same_queues_are_told_apart_by_their_number() {
    let mut backend = Fake::new(4);
    for (at, (rx, tx)) in
        [(vec![0], vec![0]), (vec![0], vec![0]), (vec![0], vec![]), (vec![], vec![0])]
            .into_iter()
            .enumerate()
    {
        let napi = &mut backend.devices[0].napis[at];
        (napi.rx_queues, napi.tx_queues) = (rx, tx);
    }
    let all: Vec<Instance> =
        Instance::all(&backend.devices[0]).into_iter().map(|(instance, _)| instance).collect();
    let names: Vec<String> = all.iter().map(Instance::to_string).collect();
    assert_eq!(names, ["queue 0", "queue 0 (instance 2)", "queue 0", "tx 0"]);
    let written: Vec<_> =
        all.iter().map(|it| serde_json::to_string(it).expect("plain").contains("nth")).collect();
    assert_eq!(written, [false, true, false, false]);
    let set = |instances: &[&Instance]| -> Vec<String> {
        let change = |it: &&Instance| Change {
            place: Place::Napi((*it).clone(), Setting::GroFlushTimeout),
            old: Some(Value::Number(0)),
            new: Value::Number(1),
        };
        let changes: Vec<Change> = instances.iter().map(change).collect();
        fold(&changes).into_iter().map(|it| it.subject).collect()
    };
    assert_eq!(set(&[&all[0], &all[1]]), ["queue 0, queue 0 (instance 2)"]);
    assert_eq!(set(&[&all[0], &all[3]]), ["queue 0, tx 0"]);
    let other = Instance { rx: vec![1], tx: vec![4], nth: 0 };
    assert_eq!(set(&[&queue(0), &other]), ["queue 0, rx 1 tx 4"]);
    assert_eq!(set(&[&queue(0), &queue(1)]), ["queues 0-1"]);
}

#[test]
fn a_device_s_change_is_not_told_with_its_instances() {
    let change = |place| Change { place, old: Some(Value::Number(0)), new: Value::Number(1) };
    let gro_of_device = Place::Device(Setting::GroFlushTimeout);
    for places in [[gro_of_device.clone(), gro()], [gro(), gro_of_device]] {
        assert_eq!(fold(&places.map(change)).len(), 2);
    }
}
