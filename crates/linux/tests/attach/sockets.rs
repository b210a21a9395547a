//! Sockets under a policy that busy polls, and sockets that inherit the options from a listener.

use napkin_linux::apply::{Linux, RestoreOptions, restore};
use napkin_linux::attach::Attachment;
use napkin_os::rights::Right;
use napkin_testing::test;

use super::harness::Program;
use super::harness::namespace::needs_rights;
use super::{attach, plan, store};

/// Starts a program with a function for a socket's options; returns it, and the options that `busypoll` sets.
fn start() -> (Program, String) {
    needs_rights(&[Right::NetAdmin]);
    let mut program = Program::start();
    program.ask("def options(s): return s.getsockopt(1, 46), s.getsockopt(1, 69)");
    let set = plan("busypoll").socket.expect("it busy polls");
    let set = format!("({}, {})", set.busy_poll_usecs, i32::from(set.prefer_busy_poll));
    (program, set)
}

/// Makes a program open a socket with the same options as `busypoll` sets.
fn own(program: &mut Program, name: &str, set: &str) {
    program.ask(&format!(
        "{name} = socket.socket(socket.AF_INET, socket.SOCK_DGRAM); wanted = {set}\n\
         {name}.setsockopt(1, 69, wanted[1]); {name}.setsockopt(1, 46, wanted[0])"
    ));
}

const OFF: &str = "(0, 0)";

#[test]
fn sockets_are_set_and_what_a_listener_hands_on_is_put_back_too() {
    needs_rights(&[Right::NetAdmin]);
    let mut program = Program::start();
    program.ask(
        "def options(s): return s.getsockopt(1, 46), s.getsockopt(1, 69)\n\
         l = socket.create_server(('127.0.0.1', 0)); u = socket.socketpair()[0]",
    );
    let (mut attachment, notes) = attach(&program, "busypoll");
    attachment.scan();
    let set = program.ask("answer = options(l)");
    assert!(set.ends_with(", 1)") && !set.starts_with("(0"), "{set}");
    assert_eq!(program.ask("answer = options(u)"), "(0, 0)", "a unix socket has no packets");
    // An accepted connection inherits the options in the kernel, before any look.
    program.ask("c = socket.create_connection(l.getsockname()); s = l.accept()[0]");
    assert_eq!(program.ask("answer = options(s)"), set);
    assert_eq!(program.ask("answer = options(c)"), "(0, 0)");
    attachment.scan();
    assert_eq!(program.ask("answer = options(c)"), set);
    let written = notes.before.borrow().len();
    assert_eq!(written, 2, "the listener and the program's own connection");
    attachment.restore();
    for socket in ["l", "s", "c"] {
        assert_eq!(program.ask(&format!("answer = options({socket})")), "(0, 0)", "{socket}");
    }
}

#[test]
fn sockets_that_come_and_go_are_not_remembered() {
    needs_rights(&[Right::NetAdmin]);
    let mut program = Program::start();
    let (mut attachment, notes) = attach(&program, "busypoll");
    for _ in 0..5 {
        program.ask("u = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)");
        attachment.scan();
        program.ask("u.close()");
        attachment.scan();
    }
    assert_eq!(notes.before.borrow().len(), 5, "each was set");
    program.ask("u = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)");
    attachment.scan();
    let (restoration, _) = attachment.restore();
    assert_eq!((restoration.done, restoration.gone), (1, 0), "only what is open");
}

#[test]
fn a_socket_that_the_program_set_just_so_is_left_beside_a_listener_that_was_set() {
    let (mut program, set) = start();
    // The listener is visited first.
    program.ask("l = socket.create_server(('127.0.0.1', 0))");
    own(&mut program, "o", &set);
    let (mut attachment, notes) = attach(&program, "busypoll");
    attachment.scan();
    assert_eq!(program.ask("answer = options(l)"), set);
    let changes: Vec<bool> = notes.before.borrow().iter().map(|it| it.is_change()).collect();
    assert_eq!(changes, [false, true], "a restore has to know of both");
    let (restoration, events) = attachment.restore();
    assert_eq!((restoration.done, restoration.failed), (1, 0), "{events:?}");
    assert_eq!(program.ask("answer = options(l)"), OFF);
    assert_eq!(program.ask("answer = options(o)"), set, "its own it keeps");
}

#[test]
fn what_each_program_set_itself_is_left_whichever_is_looked_at_first() {
    let (mut one, set) = start();
    let (mut other, _) = start();
    for program in [&mut one, &mut other] {
        program.ask("l = socket.create_server(('127.0.0.1', 0))");
        own(program, "o", &set);
    }
    let (mut attachment, _) = attach(&one, "busypoll");
    attachment.add(other.pid()).expect("it lives");
    attachment.scan();
    let (restoration, events) = attachment.restore();
    assert_eq!((restoration.done, restoration.failed), (2, 0), "{events:?}");
    for program in [&mut one, &mut other] {
        assert_eq!(program.ask("answer = options(l)"), OFF);
        assert_eq!(program.ask("answer = options(o)"), set, "its own it keeps");
    }
}

#[test]
fn what_a_listener_hands_on_that_another_napkin_has_set_stays_when_this_one_ends() {
    let (mut program, set) = start();
    program.ask("l = socket.create_server(('127.0.0.1', 0))");
    let (mut first, _) = attach(&program, "busypoll");
    first.scan();
    let (mut second, _) = attach(&program, "busypoll");
    second.scan();
    program.ask("c = socket.create_connection(l.getsockname()); s = l.accept()[0]");
    let (restoration, events) = second.restore();
    assert_eq!((restoration.done, restoration.failed), (0, 0), "{events:?}");
    assert_eq!(program.ask("answer = options(s)"), set);
    first.restore();
    for socket in ["l", "s"] {
        assert_eq!(program.ask(&format!("answer = options({socket})")), OFF, "{socket}");
    }
}

#[test]
fn restore_finds_what_a_listener_handed_on_after_the_napkin_that_set_it_had_died() {
    for reattached in [false, true] {
        let (mut program, set) = start();
        program.ask("l = socket.create_server(('127.0.0.1', 0))");
        own(&mut program, "o", &set);
        let (directory, store) = store(&format!("inherited-{reattached}"));
        let pid = program.pid();
        let look = || {
            let mut attachment = Attachment::new(plan("busypoll"), store.recorder());
            attachment.add(pid).expect("it lives");
            attachment.scan();
            // As kill -9 would: nothing is put back, and the records stay.
            attachment.leave();
        };
        look();
        program.ask("c = socket.create_connection(l.getsockname()); s = l.accept()[0]");
        assert_eq!(program.ask("answer = options(s)"), set);
        if reattached {
            // To this second one it looks as if the program had set the options.
            look();
        }
        let mut world = Linux::open().expect("netlink");
        let restored = restore(&mut world, &store, &RestoreOptions::default()).expect("readable");
        for socket in ["l", "s", "c"] {
            let now = program.ask(&format!("answer = options({socket})"));
            assert_eq!(now, OFF, "{socket}: {restored:?}");
        }
        assert_eq!(program.ask("answer = options(o)"), set, "its own it keeps");
        assert!(restored.is_complete(), "{restored:?}");
        assert_eq!(
            restored.processes[0].changes.len(),
            if reattached { 3 } else { 2 },
            "{restored:?}"
        );
        assert_eq!(std::fs::read_dir(&directory).expect("there").count(), 0);
        std::fs::remove_dir(directory).expect("it is empty");
    }
}
