//! A thread is pinned to the CPU that polls the instance of its packets.

use std::cell::RefCell;
use std::collections::BTreeSet;
use std::fs;
use std::path::PathBuf;
use std::rc::Rc;
use std::time::Duration;

use napkin_kernel::namespace::Namespace;
use napkin_kernel::process::Process;
use napkin_linux::attach::{Attachment, EventKind};
use napkin_linux::process_change::{ProcessChange, Restored, What};
use napkin_os::sched::{CpuList, affinity, cpus_to_restore, pin};
use napkin_testing::{needs_cpus, test};

use super::harness::{Link, Program};
use super::{MemoryRecorder, plan};

#[test]
fn a_thread_that_waits_is_pinned_where_its_packets_are_polled_and_put_back() {
    pins_and_puts_back("e = select.epoll(); e.register(s, select.EPOLLIN)", "e.poll(); s.recv(64)");
}

#[test]
fn a_thread_that_receives_without_epoll_is_pinned_as_well() {
    pins_and_puts_back("pass", "s.recv(64)");
}

#[test]
fn a_program_that_waits_in_another_way_is_said_to_have_nothing_to_pin() {
    let mut program = Program::start();
    program.ask("t = threading.Thread(target=threading.Event().wait, daemon=True); t.start()");
    // The first thread would read from its standard input, so it is kept busy with this.
    program.send_line("select.select([], [], [])");
    let mut attachment = Attachment::new(plan("suspend20"), MemoryRecorder::default());
    attachment.pin_with(Box::new(|_: u32| panic!("nothing has an instance")));
    attachment.add(program.pid()).unwrap();
    loop {
        let events = attachment.scan().events;
        if events.iter().any(|it| it.to_string().contains("none waits by epoll")) {
            break;
        }
        std::thread::yield_now();
    }
}

#[test]
fn a_thread_that_never_sleeps_is_known_as_one_of_which_nothing_is_known() {
    // With a single CPU there is nothing to pin.
    needs_cpus(2);
    let mut program = Program::start();
    let spins = "def spin():\n    while True: pass\n\
                 t = threading.Thread(target=spin, daemon=True); t.start(); answer = t.native_id";
    let spinner: i32 = program.ask(spins).parse().unwrap();
    let short = Duration::from_millis(100);
    // It may be found waiting for the interpreter lock while the first thread answers.
    loop {
        let mut attachment = Attachment::new(plan("suspend20"), MemoryRecorder::default());
        attachment.pin_with(Box::new(|_: u32| None::<usize>));
        attachment.add(program.pid()).unwrap();
        attachment.scan();
        attachment.pin_for(short, |it| it.always_ran().is_empty());
        if attachment.always_ran() == [spinner] {
            break;
        }
    }
}

#[test]
fn a_thread_that_has_ended_is_not_remembered() {
    let mut bed = Bed::new("pass", "if s.recv(64) == b'end': return");
    bed.send("x");
    bed.program.ask("arrived.wait()");
    until_pinned(&mut bed.attachment);
    bed.send("end");
    bed.program.ask("t.join(); task = f'/proc/self/task/{t.native_id}'");
    while bed.program.ask("answer = os.path.exists(task)") == "True" {
        std::thread::yield_now();
    }
    // Threads are listed twice a second.
    std::thread::sleep(Duration::from_millis(600));
    bed.attachment.scan();
    let (restoration, events) = bed.attachment.restore();
    assert_eq!((restoration.done, restoration.gone), (0, 0), "{events:?}");
}

#[test]
fn what_a_pinned_thread_begins_is_put_back_as_well() {
    let begins = "if s.recv(64) == b'more': \
                  made.append(threading.Thread(target=threading.Event().wait, daemon=True)); \
                  made[0].start(); made.append(subprocess.Popen(['sleep', '60']))";
    let mut bed = Bed::new("import subprocess; made = []", begins);
    bed.send("x");
    bed.program.ask("arrived.wait()");
    until_pinned(&mut bed.attachment);
    bed.program.ask("arrived.clear()");
    bed.send("more");
    bed.program.ask("arrived.wait()");
    let mut both = || {
        let of = |it: &str| format!("answer = sorted(os.sched_getaffinity({it}))");
        ["made[0].native_id", "made[1].pid"].map(|it| bed.program.ask(&of(it)))
    };
    let inherited = format!("[{}]", bed.cpu);
    assert_eq!(both(), [inherited.clone(), inherited]);
    // No look has found the process.
    let (restoration, events) = bed.attachment.restore();
    assert_eq!(restoration.failed + restoration.changed, 0, "{events:?}");
    let now = both();
    let all = bed.program.ask("answer = sorted(os.sched_getaffinity(0))");
    bed.program.ask("made[1].kill(); made[1].wait()");
    assert_eq!(now, [all.clone(), all], "as the program's first thread, which was never moved");
}

#[test]
fn a_thread_that_had_its_cpus_from_a_cpuset_follows_that_again() {
    needs_cpus(2);
    let [first, second, ..] = napkin_os::sched::usable_cpus()[..] else { panic!("there are two") };
    let program = Program::start();
    let pid = program.pid();
    let cpuset = Cpuset::of(pid, &[first]);
    let old = cpus_to_restore(pid).unwrap();
    cpuset.set(&[first, second]);
    let thread_start_time = Process::open(pid).unwrap().start_time();
    let what = What::Affinity { tid: pid, thread_start_time, old, new: vec![second], since: None };
    let change = ProcessChange { pid, start_time: thread_start_time, what };
    pin(Some(pid), &[second]).unwrap();
    // The set affinity is hidden by the cpuset, but the kernel remembers it.
    cpuset.set(&[first]);
    assert_eq!(affinity(Some(pid)).unwrap(), [first]);
    assert_eq!(change.restore().unwrap(), Restored::Done);
    cpuset.set(&[first, second]);
    assert_eq!(affinity(Some(pid)).unwrap(), [first, second]);
    // An affinity of its own does differ.
    pin(Some(pid), &[first]).unwrap();
    assert_eq!(cpus_to_restore(pid).unwrap(), [first]);
}

/// A cpuset of one process, in either version of control groups; removed when this is dropped.
struct Cpuset(PathBuf, i32);

impl Cpuset {
    /// Creates a cpuset with these CPUs, and moves a process into it; the test is ignored where that is not
    /// possible.
    fn of(pid: i32, cpus: &[usize]) -> Cpuset {
        let may = |root: &&str| {
            let v2 = fs::read_to_string(format!("{root}/cgroup.subtree_control"));
            v2.map_or(true, |it| it.contains("cpuset"))
                && fs::exists(format!("{root}/cgroup.procs")).unwrap_or(false)
        };
        let root = ["/sys/fs/cgroup/cpuset", "/sys/fs/cgroup"].into_iter().find(may);
        let Some(root) = root else { napkin_testing::ignore("no cpusets") };
        let path = PathBuf::from(format!("{root}/napkin-{pid}"));
        if let Err(error) = fs::create_dir(&path) {
            napkin_testing::ignore(format!("no cpuset can be made: {error}"));
        }
        let cpuset = Cpuset(path, pid);
        cpuset.set(cpus);
        let above = fs::read_to_string(format!("{root}/cpuset.mems")).unwrap_or_default();
        fs::write(cpuset.0.join("cpuset.mems"), above.trim()).unwrap();
        fs::write(cpuset.0.join("cgroup.procs"), pid.to_string()).unwrap();
        cpuset
    }

    fn set(&self, cpus: &[usize]) {
        fs::write(self.0.join("cpuset.cpus"), CpuList(cpus.to_vec()).to_string()).unwrap();
    }
}

impl Drop for Cpuset {
    fn drop(&mut self) {
        if let Some(root) = self.0.parent() {
            let _ = fs::write(root.join("cgroup.procs"), self.1.to_string());
        }
        let _ = fs::remove_dir(&self.0);
    }
}

/// A server at one end of a link, and a sender at the other.
struct Bed {
    program: Program,
    sender: Program,
    attachment: Attachment<MemoryRecorder>,
    notes: MemoryRecorder,
    /// The available CPUs, and the one that is reported as polling every instance.
    cpus: Vec<usize>,
    cpu: usize,
    /// The instances for which that CPU was requested.
    asked: Rc<RefCell<BTreeSet<u32>>>,
    _link: Link,
}

impl Bed {
    /// Starts a server whose thread runs `begin`, then `wait` in a loop.
    fn new(begin: &str, wait: &str) -> Bed {
        needs_cpus(2);
        let link = Link::new();
        let start = |within: &Namespace| within.run(Program::start).expect("entered");
        let (mut program, sender) = (start(&link.here), start(&link.there));
        let cpus = napkin_os::sched::usable_cpus();
        let cpu = cpus[1];
        let notes = MemoryRecorder::default();
        let mut attachment = Attachment::new(plan("suspend20"), notes.clone());
        let asked = Rc::new(RefCell::new(BTreeSet::new()));
        let asks = asked.clone();
        attachment.pin_with(Box::new(move |napi_id: u32| {
            asks.borrow_mut().insert(napi_id);
            Some(cpu)
        }));
        attachment.add(program.pid()).unwrap();
        program.ask(&format!(
            "s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM); s.bind(('10.9.0.1', 7000))\n\
             {begin}; arrived = threading.Event()\n\
             def serve():\n\
             \x20   while True:\n\
             \x20       {wait}\n\
             \x20       arrived.set()\n\
             t = threading.Thread(target=serve, daemon=True); t.start()",
        ));
        Bed { program, sender, attachment, notes, cpus, cpu, asked, _link: link }
    }

    fn send(&mut self, text: &str) {
        self.sender.ask(&format!(
            "u = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)\n\
             u.sendto(b'{text}', ('10.9.0.1', 7000))"
        ));
    }
}

fn pins_and_puts_back(begin: &str, wait: &str) {
    let mut bed = Bed::new(begin, wait);
    let affinity = "answer = sorted(os.sched_getaffinity(t.native_id))";
    let before = bed.program.ask(affinity);
    // Without a packet the instance is unknown, and nothing is moved.
    loop {
        let events = bed.attachment.scan().events;
        if events.iter().any(|it| it.to_string().contains("not pinned: nothing has come to")) {
            break;
        }
        std::thread::yield_now();
    }
    assert_eq!(bed.program.ask(affinity), before);
    bed.send("x");
    bed.program.ask("arrived.wait()");
    let napi_id: u32 = bed.program.ask("answer = s.getsockopt(1, 56)").parse().unwrap();
    assert!(napi_id > 0, "the socket has none");
    let pinned = until_pinned(&mut bed.attachment);
    let moved_to = |kind: &EventKind| match kind {
        EventKind::Pinned { napi_id, cpus, .. } => Some((*napi_id, cpus.clone())),
        _ => None,
    };
    assert_eq!(moved_to(&pinned), Some((napi_id, vec![bed.cpu])));
    assert_eq!(bed.program.ask(affinity), format!("[{}]", bed.cpu));
    assert_eq!(*bed.asked.borrow(), BTreeSet::from([napi_id]));
    let (restoration, _) = bed.attachment.restore();
    assert_eq!(restoration.failed + restoration.changed, 0);
    assert_eq!(bed.program.ask(affinity), before);
    let affinity_changes = |change: &&ProcessChange| matches!(change.what, What::Affinity { .. });
    let change = bed.notes.before.borrow().iter().find(affinity_changes).cloned().expect("noted");
    // Another program's affinity is left alone, and reported.
    let other = bed.cpus[0];
    bed.program.ask(&format!("os.sched_setaffinity(t.native_id, [{other}])"));
    let restored = change.restore().unwrap();
    assert_eq!(restored, Restored::Changed { now: format!("CPU {other}") });
    assert_eq!(bed.program.ask(affinity), format!("[{other}]"));
}

/// Looks until a thread was pinned, because it is seen waiting only now and then.
fn until_pinned(attachment: &mut Attachment<MemoryRecorder>) -> EventKind {
    loop {
        let events = attachment.scan().events;
        let pinned = events.into_iter().find(|it| matches!(it.kind, EventKind::Pinned { .. }));
        if let Some(event) = pinned {
            return event.kind;
        }
        std::thread::yield_now();
    }
}
