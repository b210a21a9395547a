//! A thread is pinned beside the packets that it waits for.

use std::cell::RefCell;
use std::collections::BTreeSet;
use std::rc::Rc;

use napkin_kernel::namespace::Namespace;
use napkin_linux::attach::{Attachment, EventKind};
use napkin_linux::process_change::{ProcessChange, Restored, What};
use napkin_testing::{needs_cpus, test};

use super::harness::{Link, Program};
use super::{Notes, plan};

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
    // Its first thread reads from its standard input, until it is busy with this.
    program.tell("select.select([], [], [])");
    let mut attachment = Attachment::new(plan("suspend20"), Notes::default());
    attachment.pin_with(Box::new(|_: u32| panic!("nothing has an instance")));
    attachment.add(program.pid()).unwrap();
    loop {
        let events = attachment.look().events;
        if events.iter().any(|it| it.to_string().contains("none waits by epoll")) {
            break;
        }
        std::thread::yield_now();
    }
}

/// A server whose thread begins with `begin` and then waits in `wait`, in a loop.
fn pins_and_puts_back(begin: &str, wait: &str) {
    needs_cpus(2);
    let link = Link::new();
    let start = |within: &Namespace| within.run(Program::start).expect("entered");
    let (mut program, mut sender) = (start(&link.here), start(&link.there));
    let cpus = napkin_os::sched::usable_cpus();
    let cpu = cpus[1];
    let notes = Notes::default();
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
         \x20       {wait}; arrived.set()\n\
         t = threading.Thread(target=serve, daemon=True); t.start()",
    ));
    let affinity = "answer = sorted(os.sched_getaffinity(t.native_id))";
    let before = program.ask(affinity);
    // Without a packet there is nothing to go by, and nothing is moved.
    loop {
        let events = attachment.look().events;
        if events.iter().any(|it| it.to_string().contains("not pinned: nothing has come to")) {
            break;
        }
        std::thread::yield_now();
    }
    assert_eq!(program.ask(affinity), before);
    sender.ask(
        "u = socket.socket(socket.AF_INET, socket.SOCK_DGRAM); u.sendto(b'x', ('10.9.0.1', 7000))",
    );
    program.ask("arrived.wait()");
    let napi_id: u32 = program.ask("answer = s.getsockopt(1, 56)").parse().unwrap();
    assert!(napi_id > 0, "the socket has none");
    let pinned = until_pinned(&mut attachment);
    let moved_to = |kind: &EventKind| match kind {
        EventKind::Pinned { napi_id, cpus, .. } => Some((*napi_id, cpus.clone())),
        _ => None,
    };
    assert_eq!(moved_to(&pinned), Some((napi_id, vec![cpu])));
    assert_eq!(program.ask(affinity), format!("[{cpu}]"));
    assert_eq!(*asked.borrow(), BTreeSet::from([napi_id]));
    let (restoration, _) = attachment.restore();
    assert_eq!(restoration.failed + restoration.changed, 0);
    assert_eq!(program.ask(affinity), before);
    let affinity_changes = |change: &&ProcessChange| matches!(change.what, What::Affinity { .. });
    let change = notes.before.borrow().iter().find(affinity_changes).cloned().expect("noted");
    // Moved by somebody else: left so, and said.
    let other = cpus[0];
    program.ask(&format!("os.sched_setaffinity(t.native_id, [{other}])"));
    let restored = change.restore().unwrap();
    assert_eq!(restored, Restored::Changed { now: format!("CPU {other}") });
    assert_eq!(program.ask(affinity), format!("[{other}]"));
}

/// Looks until a thread was pinned: it is seen to wait now and then only.
fn until_pinned(attachment: &mut Attachment<Notes>) -> EventKind {
    loop {
        let events = attachment.look().events;
        let pinned = events.into_iter().find(|it| matches!(it.kind, EventKind::Pinned { .. }));
        if let Some(event) = pinned {
            return event.kind;
        }
        std::thread::yield_now();
    }
}
