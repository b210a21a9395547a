//! Unmodified programs under a policy: the programs themselves report what was set.

#[path = "../../../kernel/tests/harness/mod.rs"]
mod harness;
mod pin;
mod sockets;

use std::cell::RefCell;
use std::collections::BTreeSet;
use std::io;
use std::path::PathBuf;
use std::rc::Rc;

use harness::Program;
use napkin_kernel::namespace::Namespace;
use napkin_kernel::process::{Params, Process};
use napkin_linux::apply::{Linux, RestoreOptions, restore};
use napkin_linux::attach::{Attachment, Event, EventKind, Plan};
use napkin_linux::journal::Store;
use napkin_linux::process_change::{ProcessChange, Recorder, Restored, What};
use napkin_testing::test;

/// A recorder in memory.
#[derive(Clone, Default)]
struct MemoryRecorder {
    before: Rc<RefCell<Vec<ProcessChange>>>,
    finished: Rc<RefCell<BTreeSet<i32>>>,
    full: Rc<RefCell<bool>>,
}

impl Recorder for MemoryRecorder {
    fn before(&mut self, change: &ProcessChange) -> io::Result<()> {
        if *self.full.borrow() {
            return Err(io::Error::from(io::ErrorKind::StorageFull));
        }
        self.before.borrow_mut().push(change.clone());
        Ok(())
    }

    fn finished(&mut self, pid: i32, _start_time: u64) -> io::Result<()> {
        self.finished.borrow_mut().insert(pid);
        Ok(())
    }
}

fn plan(policy: &str) -> Plan {
    Plan::of(&policy.parse().expect(policy)).expect(policy)
}

fn attach(program: &Program, policy: &str) -> (Attachment<MemoryRecorder>, MemoryRecorder) {
    let notes = MemoryRecorder::default();
    let mut attachment = Attachment::new(plan(policy), notes.clone());
    attachment.add(program.pid()).expect("it lives");
    (attachment, notes)
}

/// A journal of this test, for the running boot.
fn store(name: &str) -> (PathBuf, Store) {
    let directory = format!("napkin-attach-{}-{name}", std::process::id());
    let directory = std::env::temp_dir().join(directory);
    let boot = napkin_kernel::namespace::boot_id().expect("procfs");
    let own_namespace = Namespace::identity().expect("procfs");
    (directory.clone(), Store::at(directory, boot, own_namespace))
}

const OFF: &str = "(0, 0, 0)";
const SET: &str = "(0, 64, 1)";

#[test]
fn contexts_opened_before_and_later_and_in_children_are_set_and_put_back() {
    let mut program = Program::start();
    program.ask("a = select.epoll()");
    let (mut attachment, notes) = attach(&program, "suspend20");
    assert_eq!(program.ask("answer = params(a)"), OFF);
    attachment.scan();
    assert_eq!(program.ask("answer = params(a)"), SET);

    // A context opened later, one opened in a thread, and one in a child that existed before its context.
    program.ask(
        "t = threading.Thread(target=lambda: kept.append(select.epoll())); t.start(); t.join()",
    );
    program.ask(
        "down, up = os.pipe(), os.pipe()\n\
         child = os.fork()\n\
         if child == 0:\n\
         \x20   for _ in range(3):\n\
         \x20       os.read(down[0], 1)\n\
         \x20       e = keep(select.epoll()) if len(kept) < 2 else e\n\
         \x20       os.write(up[1], str(params(e)).encode())\n\
         \x20   os._exit(0)\n",
    );
    let in_child = "os.write(down[1], b'x'); answer = os.read(up[0], 64).decode()";
    assert_eq!(program.ask(in_child), OFF);
    let look = attachment.scan();
    assert_eq!(program.ask("answer = params(kept[0])"), SET);
    assert_eq!(program.ask(in_child), SET);
    // By number of contexts: where process ids have wrapped, the child is visited first and has both of them.
    let opened_meanwhile = look.events.iter().map(|event| match &event.kind {
        EventKind::Epolls { fds, within: Some(_), again: false, .. } => fds.len(),
        _ => 0,
    });
    assert_eq!(opened_meanwhile.sum::<usize>(), 2, "{:?}", look.events);
    // A look that finds nothing new records nothing.
    let written = notes.before.borrow().len();
    assert_eq!(attachment.scan().events, []);
    assert_eq!(notes.before.borrow().len(), written);

    let (restoration, events) = attachment.restore();
    assert_eq!((restoration.changed, restoration.failed), (0, 0), "{events:?}");
    for context in ["a", "kept[0]"] {
        assert_eq!(program.ask(&format!("answer = params({context})")), OFF);
    }
    assert_eq!(program.ask(in_child), OFF);
    assert!(notes.finished.borrow().contains(&program.pid()));
}

#[test]
fn every_change_was_written_down_before_it_was_made_or_was_not_made() {
    let mut program = Program::start();
    program.ask("a = select.epoll()");
    let (mut attachment, notes) = attach(&program, "suspend20");
    *notes.full.borrow_mut() = true;
    let events = attachment.scan().events;
    assert_eq!(program.ask("answer = params(a)"), OFF);
    assert!(events[0].to_string().contains("cannot be written down"), "{}", events[0]);
    assert_eq!(attachment.scan().events, [], "told once");
    *notes.full.borrow_mut() = false;
    attachment.scan();
    assert_eq!(program.ask("answer = params(a)"), SET);
    // As after a crash: from the recorded changes alone.
    attachment.leave();
    let written = notes.before.borrow();
    assert_eq!(written.len(), 1);
    assert_eq!(written[0].restore().unwrap(), Restored::Done);
    assert_eq!(program.ask("answer = params(a)"), OFF);
    // Repeating it has no effect.
    assert_eq!(written[0].restore().unwrap(), Restored::Done);
    program.ask("a.close()");
    assert_eq!(written[0].restore().unwrap(), Restored::Gone);
    program.end();
    assert_eq!(written[0].restore().unwrap(), Restored::Gone);
}

#[test]
fn what_the_program_set_itself_is_left_and_said() {
    let mut program = Program::start();
    program.ask("a = select.epoll()");
    let (mut attachment, notes) = attach(&program, "suspend20");
    attachment.scan();
    program.ask("set_params(a, 9, 8, 0)");
    let events = attachment.scan().events;
    assert!(matches!(events[0].kind, EventKind::OwnParams { .. }), "{events:?}");
    assert_eq!(attachment.scan().events, [], "told once");
    let change = notes.before.borrow()[0].clone();
    let now = "busy poll 9 us, budget 8, not preferred".to_owned();
    assert_eq!(change.restore().unwrap(), Restored::Changed { now });
    let (restoration, events) = attachment.restore();
    assert_eq!(restoration.changed, 1);
    assert!(events[0].to_string().contains("left so"), "{events:?}");
    assert_eq!(program.ask("answer = params(a)"), "(9, 8, 0)");
    assert_eq!(change.force().unwrap(), Restored::Done);
    assert_eq!(program.ask("answer = params(a)"), OFF);
}

#[test]
fn a_context_that_had_parameters_gets_them_back() {
    let mut program = Program::start();
    program.ask("a = select.epoll(); set_params(a, 50, 16, 1)");
    let (mut attachment, _) = attach(&program, "suspend20");
    attachment.scan();
    assert_eq!(program.ask("answer = params(a)"), SET);
    // When dropped, it puts back what it set.
    drop(attachment);
    assert_eq!(program.ask("answer = params(a)"), "(50, 16, 1)");
}

#[test]
fn a_number_that_is_used_again_is_set_again_and_written_down_once() {
    let mut program = Program::start();
    let (mut attachment, notes) = attach(&program, "suspend20");
    for round in 0..100 {
        program.ask("a = select.epoll()");
        attachment.scan();
        assert_eq!(program.ask("answer = params(a)"), SET, "{round}");
        program.ask("a.close()");
        // In between the number is another file's, which is not touched.
        program.ask("b = os.open('/dev/null', 0)");
        attachment.scan();
        program.ask("os.close(b)");
    }
    assert_eq!(notes.before.borrow().len(), 1);
}

#[test]
fn an_inherited_context_is_put_back_when_its_first_owner_has_ended() {
    let mut program = Program::start();
    // A child that ends after leaving a context to its own child, the program's grandchild.
    program.ask(
        "down, up = os.pipe(), os.pipe()\n\
         child = os.fork()\n\
         if child == 0:\n\
         \x20   e = select.epoll()\n\
         \x20   os.read(down[0], 1)\n\
         \x20   inner = os.fork()\n\
         \x20   if inner:\n\
         \x20       os.write(up[1], str(inner).encode())\n\
         \x20       os.read(down[0], 1)\n\
         \x20       os._exit(0)\n\
         \x20   signal.pause()\n",
    );
    let (mut attachment, _) = attach(&program, "suspend20");
    attachment.scan();
    let inner = program.number("os.write(down[1], b'x'); answer = os.read(up[0], 64).decode()");
    attachment.scan();
    program.ask("os.write(down[1], b'x'); os.waitpid(child, 0)");
    attachment.scan();
    assert!(attachment.contains(inner), "it was known before it lost its parent");
    let process = Process::open(inner).unwrap();
    let epoll = process.descriptors(usize::MAX).unwrap().epolls().next().expect("inherited");
    let params = || Params::get(process.take(&epoll).unwrap().expect("open")).unwrap().unwrap();
    assert!(params().prefer_busy_poll);
    attachment.restore();
    assert_eq!(params(), Params::default());
    program.ask(&format!("os.kill({inner}, 9)"));
    assert!(process.ends_within(std::time::Duration::from_secs(600)));
}

/// Makes a program move its context `a` from its descriptor to 100.
const MOVE: &str = "fd = a.fileno(); os.dup2(fd, 100); os.close(fd)";
const AT_100: &str = "answer = params(100)";

#[test]
fn a_context_that_moves_is_put_back_where_it_is() {
    let mut program = Program::start();
    program.ask("a = select.epoll()");
    let (mut attachment, notes) = attach(&program, "suspend20");
    attachment.scan();
    program.ask(MOVE);
    let events = attachment.scan().events;
    assert!(matches!(events[..], [Event { kind: EventKind::Already { .. }, .. }]), "{events:?}");
    // Recorded, so that another napkin's restore finds it.
    let written = notes.before.borrow().last().cloned().expect("noted");
    assert!(matches!(written.what, What::Epoll { fd: 100, .. }), "{written:?}");
    // Its old descriptor number is reused by another context.
    program.ask("b = select.epoll()");
    attachment.scan();
    let (restoration, events) = attachment.restore();
    assert_eq!((restoration.changed, restoration.failed), (0, 0), "{events:?}");
    assert_eq!(program.ask(AT_100), OFF);
    assert_eq!(program.ask("answer = params(b)"), OFF);
}

#[test]
fn a_context_that_moves_between_the_last_look_and_the_end_is_put_back() {
    for then in ["", "; b = select.epoll()"] {
        let mut program = Program::start();
        program.ask("a = select.epoll()");
        let (mut attachment, _) = attach(&program, "suspend20");
        attachment.scan();
        program.ask(&format!("{MOVE}{then}"));
        assert_eq!(program.ask(AT_100), SET);
        let (restoration, events) = attachment.restore();
        assert_eq!((restoration.done, restoration.gone), (1 + then.len().min(1), 0), "{events:?}");
        assert_eq!(program.ask(AT_100), OFF, "{then}");
    }
}

#[test]
fn contexts_of_a_program_whose_first_thread_ends_are_put_back() {
    for look in [true, false] {
        let mut program = Program::start();
        // The last of its threads goes on running.
        program.ask("a = select.epoll(); b = select.epoll(); set_params(b, 0, 64, 1)");
        let (mut attachment, _) = attach(&program, "suspend20");
        attachment.scan();
        program.send_line(
            "def go_on():\n\
             \x20   while os.path.exists(f'/proc/{os.getpid()}/fd/0'): time.sleep(0.001)\n\
             \x20   print('alone', flush=True)\n\
             \x20   for line in sys.stdin:\n\
             \x20       print(params(a), params(b), flush=True)\n\
             threading.Thread(target=go_on).start()\n\
             import ctypes; ctypes.CDLL(None).pthread_exit(None)",
        );
        assert_eq!(program.answer(), "alone");
        if look {
            attachment.scan();
        }
        assert_eq!(program.ask(""), format!("{SET} {SET}"));
        let (restoration, events) = attachment.restore();
        assert_eq!((restoration.done, restoration.failed), (1, 0), "{events:?}");
        assert_eq!(program.ask(""), format!("{OFF} {SET}"), "its own it keeps; looked: {look}");
    }
}

#[test]
fn a_context_that_the_program_set_just_so_is_left_wherever_it_moves() {
    let mut program = Program::start();
    program.ask("a = select.epoll(); set_params(a, 0, 64, 1)");
    let (mut attachment, _) = attach(&program, "suspend20");
    attachment.scan();
    program.ask("b = select.epoll()");
    attachment.scan();
    program.ask(MOVE);
    attachment.scan();
    attachment.restore();
    assert_eq!(program.ask(AT_100), SET);
    assert_eq!(program.ask("answer = params(b)"), OFF);
}

#[test]
fn restore_finds_what_moved_after_the_napkin_that_set_it_had_died() {
    for then in ["", "; c = select.epoll()"] {
        let mut program = Program::start();
        program.ask("a = select.epoll(); b = select.epoll(); set_params(b, 0, 64, 1)");
        let (directory, store) = store(&format!("moved-{}", then.len()));
        let mut attachment = Attachment::new(plan("suspend20"), store.recorder());
        attachment.add(program.pid()).expect("it lives");
        attachment.scan();
        // As kill -9 would: nothing is put back, and the records stay.
        attachment.leave();
        program.ask(&format!("{MOVE}{then}"));
        let mut world = Linux::open().expect("netlink");
        let restored = restore(&mut world, &store, &RestoreOptions::default()).expect("readable");
        assert_eq!(program.ask(AT_100), OFF, "{then:?}: {restored:?}");
        assert_eq!(program.ask("answer = params(b)"), SET, "the program's own");
        assert!(restored.is_complete() && restored.processes[0].gone == 0, "{restored:?}");
        assert_eq!(std::fs::read_dir(&directory).expect("there").count(), 0);
        std::fs::remove_dir(directory).expect("it is empty");
    }
}

#[test]
fn an_exec_is_survived() {
    let mut program = Program::start();
    // One descriptor is closed by exec, the other is not.
    let answer = program.ask(
        "a = select.epoll(); b = select.epoll(); os.set_inheritable(b.fileno(), True)\n\
         answer = f'{a.fileno()} {b.fileno()}'",
    );
    let (_, kept) = answer.split_once(' ').unwrap();
    let (mut attachment, notes) = attach(&program, "suspend20");
    attachment.scan();
    let process = Process::open(program.pid()).unwrap();
    program.send_line("os.execvp('sleep', ['sleep', '600'])");
    while process.comm().unwrap() != "sleep" {
        std::thread::yield_now();
    }
    let events = attachment.scan().events;
    let exec = events.iter().any(|event| matches!(event.kind, EventKind::Exec { .. }));
    assert!(exec, "{events:?}");
    let kept: i32 = kept.parse().unwrap();
    let params = || {
        let taken = process.take_fd(process.pid(), kept).unwrap().expect("not closed by exec");
        Params::get(taken).unwrap().expect("an epoll context")
    };
    assert!(params().prefer_busy_poll);
    let (restoration, _) = attachment.restore();
    assert_eq!((restoration.done, restoration.gone), (1, 1));
    assert_eq!(params(), Params::default());
    assert_eq!(notes.before.borrow().len(), 2);
}

#[test]
fn processes_that_come_and_go_leave_nothing_behind() {
    let mut program = Program::start();
    let (mut attachment, _) = attach(&program, "suspend20");
    attachment.scan();
    // Children that open contexts, exec and end as fast as possible, while the attachment looks.
    program.send_line(
        "for round in range(300):\n\
         \x20   pid = os.fork()\n\
         \x20   if pid == 0:\n\
         \x20       e = select.epoll(); f = select.epoll(); e.close()\n\
         \x20       if round % 3 == 0: os.execvp('true', ['true'])\n\
         \x20       os._exit(0)\n\
         \x20   if round % 5: os.waitpid(pid, 0)\n\
         while True:\n\
         \x20   try: os.wait()\n\
         \x20   except ChildProcessError: break",
    );
    let answered = std::thread::scope(|scope| {
        let answer = scope.spawn(|| program.answer());
        let mut looks = 0;
        while !answer.is_finished() {
            for event in attachment.scan().events {
                let failed = matches!(event.kind, EventKind::Failed { .. });
                assert!(!failed, "{event}");
            }
            looks += 1;
        }
        assert!(looks > 1);
        answer.join().unwrap()
    });
    assert_eq!(answered, "");
    attachment.scan();
    assert_eq!(attachment.pids(), [program.pid()]);
    program.ask("a = select.epoll()");
    attachment.scan();
    assert_eq!(program.ask("answer = params(a)"), SET);
    program.kill();
    attachment.scan();
    assert_eq!(attachment.processes(), 0);
}

#[test]
fn a_process_that_is_not_there_is_said_so() {
    let mut attachment = Attachment::new(plan("suspend20"), MemoryRecorder::default());
    let error = attachment.add(i32::MAX).unwrap_err().to_string();
    assert!(error.contains("there is no process 2147483647"), "{error}");
}

napkin_testing::main!();
