//! Files that are truncated, corrupt, malicious or left by others, and locks.

use std::fs;
use std::os::fd::AsRawFd;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::PathBuf;

use proptest::prelude::*;

use super::*;
use crate::{place::Instance, place::Place, place::Spot, place::Value};
use crate::{process_change::ProcessChange, process_change::Recorder, process_change::What};
use napkin_kernel::process::{Params, SocketOptions};
use napkin_kernel::settings::Setting;
use napkin_testing::Folder;

mod locks;

/// A journal directory of this test.
struct Home(Folder);

impl Home {
    fn new() -> Home {
        Home(Folder::absent("journal"))
    }

    fn store(&self) -> Store {
        self.elsewhere("this boot", 1)
    }

    fn elsewhere(&self, boot: &str, cookie: u64) -> Store {
        let namespace = Identity { cookie: Some(cookie), inode: cookie };
        Store::at(self.0.to_path_buf(), boot.into(), namespace)
    }

    fn file(&self) -> PathBuf {
        self.0.join("device-c1-7.journal")
    }
}

fn place(queue: u32) -> Place {
    Place::Napi(Instance { rx: vec![queue], tx: vec![], nth: 0 }, Setting::GroFlushTimeout)
}

fn spot(queue: u32) -> Spot {
    Spot { place: place(queue), napi_id: Some(100 + queue) }
}

fn write(store: &Store, changes: &[(u32, u64, u64)]) -> DeviceJournal {
    let mut journal = store.device(7, "va", None).expect("readable");
    for (queue, old, new) in changes {
        let (old, new) = (Value::Number(*old), Value::Number(*new));
        journal.before(&spot(*queue), &old, &new).expect("written");
    }
    journal
}

#[test]
fn what_was_first_and_what_was_last_is_known_by_whoever_opens_it() {
    let home = Home::new();
    write(&home.store(), &[(0, 5, 20), (1, 0, 20), (0, 20, 30)]);
    let journal = home.store().device(7, "va", None).expect("readable");
    let [first, second] = journal.records() else { panic!("{:?}", journal.records()) };
    assert_eq!((&first.before, &first.set), (&Value::Number(5), &Value::Number(30)));
    assert_eq!((&second.before, &second.set), (&Value::Number(0), &Value::Number(20)));
    assert_eq!((journal.record(&spot(1)), journal.record(&spot(9))), (Some(second), None));
    assert!(!journal.stale());
    for (now, standing) in [
        (Some(5), Standing::Before),
        (Some(30), Standing::Ours),
        (Some(20), Standing::Ours),
        (Some(31), Standing::Foreign),
        (None, Standing::Gone),
    ] {
        assert_eq!(first.judge(now.map(Value::Number).as_ref(), &[]), standing, "{now:?}");
    }
}

#[test]
fn a_thread_that_lacks_a_cpu_that_is_off_is_as_it_was() {
    let home = Home::new();
    let instance = || Instance { rx: vec![0], tx: vec![], nth: 0 };
    let mut journal = home.store().device(7, "va", None).expect("there is none");
    for place in [Place::ThreadCpus(instance()), Place::IrqCpus(instance())] {
        let spot = Spot { place, napi_id: Some(100) };
        let (old, new) = (Value::Cpus(vec![0, 1, 2]), Value::Cpus(vec![1]));
        journal.before(&spot, &old, &new).expect("written");
    }
    let [thread, irq] = journal.records() else { panic!("{:?}", journal.records()) };
    for (now, on, of_thread, of_irq) in [
        (vec![0, 1, 2], vec![0, 1, 2, 3], Standing::Before, Standing::Before),
        (vec![0, 1], vec![0, 1, 3], Standing::Before, Standing::Foreign),
        (vec![0], vec![0, 1, 3], Standing::Foreign, Standing::Foreign),
        (vec![0, 1], vec![0, 1, 2], Standing::Foreign, Standing::Foreign),
        // All CPUs that were set are offline: the kernel assigned the others, of which one has gone offline
        // since.
        (vec![0, 2, 3], vec![0, 3], Standing::Ours, Standing::Ours),
        (vec![0, 2, 3], vec![0, 1, 3], Standing::Foreign, Standing::Foreign),
        // May be what is left of the original CPUs: it is set again, to be sure.
        (vec![1], vec![1, 3], Standing::Ours, Standing::Ours),
    ] {
        let now = Value::Cpus(now);
        let judged = (thread.judge(Some(&now), &on), irq.judge(Some(&now), &on));
        assert_eq!(judged, (of_thread, of_irq), "{now} of {on:?}");
    }
}

#[test]
fn the_directory_is_its_owner_s_alone() {
    let home = Home::new();
    write(&home.store(), &[(0, 0, 1)]);
    assert_eq!(fs::metadata(&home.0).expect("made").mode() & 0o777, 0o700);
    assert_eq!(fs::metadata(home.file()).expect("made").mode() & 0o777, 0o600);
    fs::remove_file(home.file()).expect("it is ours");
    fs::set_permissions(&home.0, fs::Permissions::from_mode(0o777)).expect("it is ours");
    let mut journal = home.store().device(7, "va", None).expect("there is none");
    let error = journal.before(&spot(0), &Value::Number(0), &Value::Number(1));
    assert!(matches!(error, Err(JournalError::Unsafe { .. })), "{error:?}");
    assert!(home.store().lock(7, "va", None).is_err());
}

#[test]
fn a_link_is_not_followed() {
    let (home, other) = (Home::new(), Home::new());
    write(&home.store(), &[(0, 0, 1)]);
    fs::rename(home.file(), &other.0).expect("moved");
    std::os::unix::fs::symlink(&other.0, home.file()).expect("a link");
    assert!(home.store().device(7, "va", None).is_err());
    fs::remove_file(&other.0).expect("it is ours");
}

#[test]
fn a_file_cut_anywhere_tells_of_what_was_complete_and_goes_on_from_there() {
    let home = Home::new();
    let all = write(&home.store(), &[(0, 0, 20), (1, 0, 21), (2, 0, 22)]);
    let bytes = fs::read(home.file()).expect("written");
    let ends: Vec<usize> = bytes
        .iter()
        .enumerate()
        .filter_map(|(place, byte)| (*byte == b'\n').then_some(place + 1))
        .collect();
    for cut in 0..bytes.len() {
        fs::write(home.file(), &bytes[..cut]).expect("written");
        let mut journal = home.store().device(7, "va", None).expect("cut, and not spoilt");
        let complete = ends.iter().filter(|end| **end <= cut).count().saturating_sub(1);
        assert_eq!(journal.records(), &all.records()[..complete], "cut at {cut}");
        journal.before(&spot(9), &Value::Number(1), &Value::Number(2)).expect("written");
        let reread = home.store().device(7, "va", None).expect("nothing is spoilt");
        assert_eq!(reread.records(), journal.records(), "cut at {cut}");
        assert_eq!(reread.records().len(), complete + 1, "cut at {cut}");
    }
}

#[test]
fn a_spoilt_line_in_the_middle_is_named_and_nothing_is_lost() {
    let home = Home::new();
    write(&home.store(), &[(0, 0, 20), (1, 0, 21)]);
    let text = fs::read_to_string(home.file()).expect("written");
    for (line, spoilt) in text.lines().enumerate() {
        let spoilt_text = text.replace(spoilt, &spoilt.replace(':', ";"));
        fs::write(home.file(), &spoilt_text).expect("written");
        let error = home.store().device(7, "va", None).expect_err("spoilt").to_string();
        assert!(error.starts_with(&format!("line {} of ", line + 1)), "{error}");
        assert!(error.contains("device-c1-7.journal"), "{error}");
        let found = home.store().survey().expect("the directory can be read");
        assert!(matches!(&found[..], [Found::Unreadable { .. }]), "{found:?}");
        assert_eq!(fs::read_to_string(home.file()).expect("there"), spoilt_text);
    }
}

#[test]
fn a_file_without_end_is_not_read() {
    let home = Home::new();
    write(&home.store(), &[(0, 0, 20)]);
    fs::File::options()
        .write(true)
        .open(home.file())
        .and_then(|it| it.set_len(1 << 30))
        .expect("long");
    let error = home.store().device(7, "va", None).expect_err("too long");
    assert!(matches!(error, JournalError::TooLarge { .. }), "{error}");
}

#[test]
fn another_boot_s_and_another_namespace_s_are_told_apart() {
    let home = Home::new();
    write(&home.elsewhere("the boot before", 1), &[(0, 0, 20)]);
    write(&home.elsewhere("this boot", 2), &[(0, 0, 20)]);
    let found = home.store().survey().expect("readable");
    // The file changed last comes first: a device that was moved may have a file of each namespace.
    let [Found::OtherNamespace { namespace, .. }, Found::OtherBoot { .. }] = &found[..] else {
        panic!("{found:?}")
    };
    assert_eq!(namespace.cookie, Some(2));
    // The same device begins a new journal in this boot.
    let journal = home.store().device(7, "va", None).expect("readable");
    assert!(journal.stale() && journal.records().is_empty());
    write(&home.store(), &[(3, 0, 1)]);
    assert_eq!(home.store().device(7, "va", None).expect("readable").records().len(), 1);
}

#[test]
fn a_file_does_not_grow_with_what_is_repeated() {
    let home = Home::new();
    let mut journal = home.store().device(7, "va", None).expect("there is none");
    for round in 0..500_u64 {
        for queue in 0..4 {
            let (old, new) = (Value::Number(round % 3), Value::Number((round + 1) % 3));
            journal.before(&spot(queue), &old, &new).expect("written");
        }
    }
    let length = fs::metadata(home.file()).expect("there").len();
    assert!(length < 8_000, "{length} bytes");
    let reread = home.store().device(7, "va", None).expect("readable");
    assert_eq!(reread.records().len(), 4);
    assert!(reread.records().iter().all(|it| it.before == Value::Number(0)));
    assert!(reread.records().iter().all(|it| it.set == Value::Number(500 % 3)));
}

fn epoll(fd: i32, old: u32, new: u32) -> ProcessChange {
    let usecs = |busy_poll_usecs| Params { busy_poll_usecs, ..Params::default() };
    let what = What::Epoll { tid: 4_194_305, fd, old: usecs(old), new: usecs(new) };
    ProcessChange { pid: 4_194_305, start_time: 5, what }
}

#[test]
fn a_process_s_changes_are_told_from_the_last_set_to_the_first_before() {
    let home = Home::new();
    let mut recorder = home.store().recorder();
    for change in [epoll(5, 0, 10), epoll(6, 1, 10), epoll(5, 10, 20), epoll(5, 10, 20)] {
        recorder.before(&change).expect("written");
    }
    let error = home.store().lock_process(4_194_305, 5).expect_err("held");
    assert!(error.to_string().contains("process 4194305 is held by"), "{error}");
    drop(recorder);
    // Visible from every network namespace: a process belongs to none.
    let found = home.elsewhere("this boot", 9).survey().expect("readable");
    let [Found::Process(journal)] = &found[..] else { panic!("{found:?}") };
    assert_eq!(journal.records(), [vec![epoll(5, 0, 20), epoll(5, 0, 10)], vec![epoll(6, 1, 10)]]);
    let reread = home.elsewhere("this boot", 9).process(4_194_305, 5).expect("readable");
    assert_eq!(reread.records(), journal.records());
    assert_eq!(reread.process(), (4_194_305, 5));
    let mut recorder = home.store().recorder();
    recorder.before(&epoll(7, 0, 10)).expect("written");
    recorder.finished(4_194_305, 5).expect("removed");
    assert_eq!(fs::read_dir(&home.0).expect("there").count(), 0);
}

#[test]
fn two_contexts_that_had_one_descriptor_are_not_taken_for_one() {
    let records = |changes: &[ProcessChange]| {
        let home = Home::new();
        let mut recorder = home.store().recorder();
        changes.iter().for_each(|change| recorder.before(change).expect("written"));
        drop(recorder);
        home.store().process(4_194_305, 5).expect("readable").records()
    };
    // The first context was closed, and the next had parameters of its own.
    let second = [epoll(5, 0, 10), epoll(5, 7, 10)];
    assert_eq!(records(&second), [vec![epoll(5, 7, 10)]]);
    let set_again = [&second[..], &[epoll(5, 10, 20)]].concat();
    assert_eq!(records(&set_again), [vec![epoll(5, 7, 20), epoll(5, 7, 10)]]);
    // The program itself had set the first one to the same value.
    assert_eq!(records(&[epoll(5, 10, 10), epoll(5, 0, 10)]), [vec![epoll(5, 0, 10)]]);
}

#[test]
fn a_process_s_sockets_and_threads_are_told_from_the_first_before_as_well() {
    let home = Home::new();
    let change = |what| ProcessChange { pid: 4_194_305, start_time: 5, what };
    let socket = |old, new| {
        let usecs = |busy_poll_usecs| SocketOptions { busy_poll_usecs, ..SocketOptions::default() };
        let (old, new) = (usecs(old), usecs(new));
        change(What::Socket { tid: 4_194_305, fd: 5, inode: 77, old, new })
    };
    let cpus = |old, new| {
        let (old, new) = (vec![old], vec![new]);
        change(What::Affinity { tid: 4_194_305, thread_start_time: 5, old, new, since: Some(9) })
    };
    let mut recorder = home.store().recorder();
    for change in [socket(1, 2), cpus(1, 2), socket(2, 3), cpus(2, 3)] {
        recorder.before(&change).expect("written");
    }
    drop(recorder);
    let journal = home.store().process(4_194_305, 5).expect("readable");
    let records = journal.records();
    assert_eq!(records, [vec![socket(1, 3), socket(1, 2)], vec![cpus(1, 3), cpus(1, 2)]]);
}

#[test]
fn a_socket_of_the_program_s_own_is_written_down_unless_it_may_be_an_earlier_run_s() {
    let home = Home::new();
    let usecs = |busy_poll_usecs| SocketOptions { busy_poll_usecs, ..SocketOptions::default() };
    let of = |inode, old, new| {
        let what = What::Socket { tid: 4_194_305, fd: 5, inode, old: usecs(old), new: usecs(new) };
        ProcessChange { pid: 4_194_305, start_time: 5, what }
    };
    let run = |changes: &[ProcessChange]| {
        let mut recorder = home.store().recorder();
        changes.iter().for_each(|change| recorder.before(change).expect("written"));
    };
    let records = || home.store().process(4_194_305, 5).expect("readable").records();
    run(&[of(77, 0, 10), of(78, 10, 10)]);
    assert_eq!(records(), [vec![of(77, 0, 10)], vec![of(78, 10, 10)]]);
    assert!(!records()[1][0].is_change());
    // Since then the first may have passed its options on to another.
    run(&[of(78, 10, 10), of(79, 10, 10), of(80, 20, 20)]);
    assert_eq!(records(), [vec![of(77, 0, 10)], vec![of(78, 10, 10)], vec![of(80, 20, 20)]]);
}

#[test]
fn what_another_boot_left_and_what_was_never_begun_is_swept() {
    let home = Home::new();
    write(&home.elsewhere("an earlier boot", 1), &[(0, 0, 20)]);
    let store = home.store();
    store.sweep(&home.file()).expect("swept");
    assert!(!home.file().exists());
    fs::write(home.file(), "{").expect("written");
    let found = store.survey().expect("readable");
    assert!(matches!(&found[..], [Found::Empty { .. }]), "{found:?}");
    store.sweep(&home.file()).expect("swept");
    store.sweep(&home.file()).expect("it is gone already");
    fs::create_dir(home.file()).expect("no file");
    assert!(store.forget(&home.file()).is_err(), "nor can it be removed as one");
}

#[test]
fn a_directory_that_cannot_be_read_is_not_an_empty_one() {
    let home = Home::new();
    assert_eq!(home.store().survey().expect("there is none").len(), 0);
    fs::write(&home.0, "no directory").expect("written");
    assert!(home.store().survey().is_err());
    fs::remove_file(&home.0).expect("it is ours");
}

#[test]
fn a_file_that_another_napkin_has_just_begun_is_not_swept_away() {
    let home = Home::new();
    write(&home.elsewhere("an earlier boot", 1), &[(0, 0, 20)]);
    // A restore sees it now; before it acts, an apply begins the file anew.
    let store = home.store();
    let found = store.survey().expect("readable");
    let [Found::OtherBoot { path, .. }] = &found[..] else { panic!("{found:?}") };
    let lock = store.lock(7, "va", None).expect("nobody has it");
    store.sweep(path).expect("left to who holds it");
    assert!(path.exists(), "somebody is at it");
    write(&store, &[(1, 5, 6)]);
    drop(lock);
    store.sweep(path).expect("looked at again");
    assert_eq!(store.device(7, "va", None).expect("readable").records().len(), 1, "this boot's");
    let lock = store.lock(7, "va", None).expect("nobody has it");
    let error = store.forget(path).expect_err("held");
    assert!(matches!(error, JournalError::Locked { .. }), "{error}");
    drop(lock);
    fs::write(path, "{").expect("written");
    store.sweep(path).expect("swept");
    assert_eq!(fs::read_dir(&home.0).expect("there").count(), 0, "the lock is gone as well");
}

#[test]
fn a_file_grows_no_longer_than_it_is_read() {
    let home = Home::new();
    let mut journal = write(&home.store(), &[(0, 0, 20)]);
    let cpus = Value::Cpus((0..1 << 20).collect());
    let error = (0..64).find_map(|queue| {
        let place = Place::IrqCpus(Instance { rx: vec![queue], tx: vec![], nth: 0 });
        journal.before(&Spot { place, napi_id: None }, &cpus, &Value::Number(0)).err()
    });
    assert!(matches!(error, Some(JournalError::Full { .. })), "{error:?}");
    let reread = home.store().device(7, "va", None).expect("still readable");
    assert_eq!(reread.records(), journal.records());
}

#[test]
fn a_process_s_file_forgets_what_is_closed() {
    let home = Home::new();
    let mut recorder = home.store().recorder();
    // There is no such process: all of its descriptors count as closed.
    for fd in 0..5_000 {
        recorder.before(&epoll(fd, 0, 10)).expect("written");
    }
    let lines = fs::read_dir(&home.0).expect("there").flatten().map(|it| it.path());
    let file = lines.into_iter().find(|it| it.extension().is_some_and(|it| it == JOURNAL));
    let text = fs::read_to_string(file.expect("a file")).expect("readable");
    assert!(text.lines().count() < 1_100, "{} lines", text.lines().count());
}

#[test]
fn what_an_earlier_run_left_in_a_process_that_lives_is_kept_until_it_is_closed() {
    let home = Home::new();
    let socket = std::net::UdpSocket::bind("127.0.0.1:0").expect("a socket");
    let fd = socket.as_raw_fd();
    let pid = std::process::id().cast_signed();
    let inode = fs::metadata(format!("/proc/self/fd/{fd}")).expect("it is open").ino();
    let usecs = |busy_poll_usecs| SocketOptions { busy_poll_usecs, ..SocketOptions::default() };
    let of = |fd, inode| {
        let what = What::Socket { tid: pid, fd, inode, old: usecs(0), new: usecs(10) };
        ProcessChange { pid, start_time: 5, what }
    };
    let left = of(fd, inode);
    // A first run is killed; a second one changes another descriptor, puts that back, and ends.
    let reread = || {
        let mut recorder = home.store().recorder();
        recorder.before(&of(1_000_000, 7)).expect("written");
        recorder.finished(pid, 5).expect("written");
    };
    let mut first = home.store().recorder();
    first.before(&left).expect("written");
    drop(first);
    reread();
    let kept = home.store().process(pid, 5).expect("readable").records();
    assert_eq!(kept, [vec![left]], "napkin restore has to know of it");
    drop(socket);
    reread();
    assert_eq!(fs::read_dir(&home.0).expect("there").count(), 0, "nothing is left to put back");
}

proptest! {
    #[test]
    fn no_file_makes_it_panic_or_lose_the_file(
        garbage in prop::collection::vec(any::<u8>(), 0..2_000),
        at in any::<prop::sample::Index>(),
        flip in any::<u8>(),
        mode in 0..3_u8,
    ) {
        let home = Home::new();
        write(&home.store(), &[(0, 0, 20), (1, 0, 21)]);
        let mut bytes = fs::read(home.file()).expect("written");
        match mode {
            0 => bytes = garbage,
            1 => { let at = at.index(bytes.len()); bytes[at] ^= flip; }
            _ => { let at = at.index(bytes.len()); bytes.splice(at..at, garbage); }
        }
        fs::write(home.file(), &bytes).expect("written");
        let _ = home.store().survey().expect("the directory can be read");
        let _ = home.store().device(7, "va", None);
        prop_assert_eq!(fs::read(home.file()).expect("it is still there"), bytes);
    }
}
