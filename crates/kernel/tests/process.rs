//! Tests of inspecting other processes: a program executes commands, and what is seen from outside is compared with
//! its own answers.

mod harness;

use std::net::UdpSocket;
use std::os::fd::AsRawFd;
use std::process::{Command, Stdio};
use std::time::Duration;

use harness::Program;
use harness::namespace::needs_rights;
use napkin_kernel::process::{
    Kind, Params, Process, Receive, Socket, SocketOptions, Tables, Timeout,
};
use napkin_os::rights::Right;
use napkin_testing::{KillOnDrop, test};
use rustix::io::Errno;

const ALL: usize = usize::MAX;

#[test]
fn a_program_s_epoll_contexts_and_sockets_are_found_and_read() {
    let mut program = Program::start();
    let process = Process::open(program.pid()).unwrap();
    assert_eq!(process.comm().unwrap(), "python3");
    assert_eq!(process.descriptors(ALL).unwrap().epolls().count(), 0);

    let epoll = program.number("e = keep(select.epoll()); answer = e.fileno()");
    let socket = program.number(
        "s = keep(socket.create_server(('127.0.0.1', 0))); e.register(s, select.EPOLLIN); \
         answer = s.fileno()",
    );
    let port = program.number("answer = s.getsockname()[1]");
    let found = process.descriptors(ALL).unwrap();
    assert_eq!(found.tables, Tables::One);
    let epolls: Vec<_> = found.epolls().collect();
    assert_eq!(epolls.iter().map(|epoll| epoll.fd).collect::<Vec<_>>(), [epoll]);

    // Parameters that the program sets are visible here, and the other way round.
    program.ask("set_params(e, 7, 16, 1)");
    let taken = process.take(&epolls[0]).unwrap().expect("it is open");
    let seen = Params { busy_poll_usecs: 7, busy_poll_budget: 16, prefer_busy_poll: true };
    assert_eq!(Params::get(&taken), Ok(Some(seen)));
    let set = Params { busy_poll_usecs: 0, busy_poll_budget: 64, prefer_busy_poll: true };
    assert_eq!(set.set(&taken), Ok(true));
    assert_eq!(program.ask("answer = params(e)"), "(0, 64, 1)");

    let sockets: Vec<_> = found.sockets().filter(|found| found.fd == socket).collect();
    let taken = process.take(&sockets[0]).unwrap().expect("it is open");
    let seen = Socket::of(&taken).unwrap().expect("a socket");
    assert!(seen.listening);
    assert_eq!(i32::from(seen.local.expect("it is bound").port()), port);

    let members = process.members(&epolls[0], ALL).unwrap();
    let Kind::Socket(inode) = sockets[0].kind else { panic!("{sockets:?}") };
    let [member] = members.list[..] else { panic!("{members:?}") };
    assert_eq!((member.fd, member.inode), (socket, Some(inode)));
}

#[test]
fn a_descriptor_that_vanished_is_none_and_a_process_that_ended_is_gone() {
    let mut program = Program::start();
    let process = Process::open(program.pid()).unwrap();
    program.ask("e = select.epoll()");
    let epoll = process.descriptors(ALL).unwrap().epolls().next().expect("one");
    program.ask("e.close()");
    assert!(process.take(&epoll).unwrap().is_none());
    assert_eq!(process.members(&epoll, ALL).unwrap().list, []);
    assert!(process.take_fd(program.pid(), -1).unwrap().is_none());
    assert!(process.take_fd(program.pid(), i32::MAX).unwrap().is_none());
    // A thread of another process is not found in this one.
    assert!(process.take_fd(rustix_pid(), 0).unwrap().is_none());

    program.end();
    assert!(!process.alive());
    assert!(process.take(&epoll).unwrap_err().is_gone());
    assert!(process.descriptors(ALL).unwrap_err().is_gone());
    assert!(process.comm().unwrap_err().is_gone());
    assert!(process.threads().unwrap_err().is_gone());
    assert!(process.children().unwrap_err().is_gone());
    assert!(process.waits(3, Duration::ZERO).unwrap_err().is_gone());
}

fn rustix_pid() -> i32 {
    i32::try_from(std::process::id()).unwrap()
}

#[test]
fn the_same_id_at_another_time_is_another_process() {
    let own = Process::open(rustix_pid()).unwrap();
    assert!(own.alive());
    assert!(Process::reopen(own.pid(), own.start_time()).is_ok());
    let other = Process::reopen(own.pid(), own.start_time() + 1).unwrap_err();
    assert!(other.is_gone());
}

#[test]
fn what_ended_and_was_not_waited_for_is_not_alive() {
    let mut child = KillOnDrop(Command::new("sleep").arg("600").spawn().unwrap());
    let process = Process::open(i32::try_from(child.0.id()).unwrap()).unwrap();
    assert!(process.alive());
    child.0.kill().unwrap();
    assert!(process.ends_within(Duration::from_secs(600)));
    assert!(!process.alive());
    assert!(process.descriptors(ALL).unwrap_err().is_gone());
    child.0.wait().unwrap();
    assert!(Process::open(process.pid()).unwrap_err().is_gone());
}

#[test]
fn children_and_theirs_are_found() {
    let mut program = Program::start();
    let process = Process::open(program.pid()).unwrap();
    assert!(process.descendants(ALL).unwrap().is_empty());
    // A child, created by a thread that has ended since, which forks another.
    let child = program.number(
        "r, w = os.pipe()\n\
         def make():\n\
         \x20   pid = os.fork()\n\
         \x20   if pid == 0:\n\
         \x20       inner = os.fork()\n\
         \x20       if inner:\n\
         \x20           os.write(w, str(inner).encode())\n\
         \x20       signal.pause()\n\
         \x20   kept.append(pid)\n\
         t = threading.Thread(target=make); t.start(); t.join()\n\
         answer = kept[-1]",
    );
    let inner = program.number("answer = os.read(r, 16).decode()");
    assert_eq!(process.children().unwrap(), [child]);
    assert_eq!(process.descendants(ALL).unwrap(), [child, inner]);
    assert_eq!(process.descendants(1).unwrap(), [child]);
    let grandchild = Process::open(inner).unwrap();
    assert_eq!(grandchild.parent().unwrap(), child);
    assert_eq!(grandchild.network_namespace().unwrap(), process.network_namespace().unwrap());
    program.ask(&format!("os.kill({inner}, 9); os.kill({child}, 9); os.waitpid({child}, 0)"));
    assert!(grandchild.ends_within(Duration::from_secs(600)));
}

#[test]
fn a_thread_with_a_table_of_its_own_is_looked_at_as_well() {
    let mut program = Program::start();
    // unshare(CLONE_FILES), and an epoll context in this thread's table only.
    let answer = program.ask(
        "import ctypes\n\
         done = threading.Event()\n\
         def own():\n\
         \x20   global tid, failed, fd\n\
         \x20   failed = ctypes.CDLL(None).unshare(0x400)\n\
         \x20   tid = threading.get_native_id()\n\
         \x20   fd = keep(select.epoll()).fileno()\n\
         \x20   done.set()\n\
         \x20   time.sleep(600)\n\
         threading.Thread(target=own, daemon=True).start()\n\
         done.wait()\n\
         answer = f'{failed} {tid} {fd}'",
    );
    let numbers: Vec<i32> = answer.split(' ').map(|word| word.parse().unwrap()).collect();
    let [0, tid, fd] = numbers[..] else { panic!("{answer}") };
    let process = Process::open(program.pid()).unwrap();
    let found = process.descriptors(ALL).unwrap();
    assert_eq!(found.tables, Tables::Several(2));
    let epolls: Vec<_> = found.epolls().collect();
    assert_eq!(epolls.iter().map(|epoll| (epoll.tid, epoll.fd)).collect::<Vec<_>>(), [(tid, fd)]);
    let taken = process.take(&epolls[0]).unwrap().expect("it is open");
    assert_eq!(Params::get(&taken), Ok(Some(Params::default())));
    assert!(taken.as_raw_fd() >= 0);
    // In the main table that number is not an epoll context.
    let main = process.take_fd(program.pid(), fd).unwrap();
    assert!(main.is_none_or(|main| Params::get(&main) == Ok(None)));
}

#[test]
fn a_first_thread_that_has_ended_does_not_hide_the_rest() {
    let mut program = Program::start();
    let process = Process::open(program.pid()).unwrap();
    // pthread_exit in the main thread; the other threads keep the process and its table.
    let epoll = program.number(
        "e = keep(select.epoll()); answer = e.fileno()\n\
         threading.Thread(target=time.sleep, args=(600,)).start()",
    );
    // It cannot answer any more, so do not wait.
    program.send_line("import ctypes; ctypes.CDLL(None).syscall(60, 0)");
    let first_ended = || {
        let stat = std::fs::read_to_string(format!("/proc/{}/stat", process.pid())).unwrap();
        stat.rsplit_once(')').unwrap().1.starts_with(" Z")
    };
    while !first_ended() {
        std::thread::yield_now();
    }
    assert!(process.alive());
    let found = process.descriptors(ALL).unwrap();
    let found = found.epolls().find(|found| found.fd == epoll).expect("it is still there");
    let taken = process.take(&found).unwrap().expect("it is open");
    assert_eq!(Params::get(&taken), Ok(Some(Params::default())));
}

#[test]
fn a_wait_is_seen_with_what_it_was_asked_for() {
    let mut program = Program::start();
    let process = Process::open(program.pid()).unwrap();
    let answer = program.ask(
        "e = keep(select.epoll()); t = threading.Thread(target=lambda: e.poll(500, 77), daemon=True)\n\
         t.start(); answer = f'{t.native_id} {e.fileno()}'",
    );
    let (tid, epfd) = answer.split_once(' ').unwrap();
    let (tid, epfd): (i32, i32) = (tid.parse().unwrap(), epfd.parse().unwrap());
    let waits = loop {
        let waits = process.waits(3, Duration::from_millis(1)).unwrap();
        if waits.on(epfd).next().is_some() {
            break waits;
        }
    };
    let wait = waits.on(epfd).next().unwrap();
    assert_eq!((wait.tid, wait.maxevents), (tid, 77));
    assert_eq!(wait.timeout, Timeout::Nanoseconds(500_000_000_000));
    assert!(waits.elsewhere.contains(&program.pid()), "the first thread reads: {waits:?}");
    let reads = Receive { tid: program.pid(), fd: 0 };
    assert!(waits.receives.contains(&reads), "from its standard input: {waits:?}");
}

#[test]
fn more_descriptors_than_asked_for_are_told() {
    let mut program = Program::start();
    program.ask("[keep(select.epoll()) for _ in range(50)]");
    let process = Process::open(program.pid()).unwrap();
    let few = process.descriptors(10).unwrap();
    assert!(few.cut && few.seen == 10);
    let all = process.descriptors(ALL).unwrap();
    assert!(!all.cut);
    assert_eq!(all.epolls().count(), 50);
}

#[test]
fn options_that_take_a_right_are_read_back() {
    needs_rights(&[Right::NetAdmin]);
    let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
    let off = SocketOptions::default();
    let prefers =
        SocketOptions { busy_poll_usecs: 50, prefer_busy_poll: true, busy_poll_budget: Some(16) };
    assert_eq!(prefers.set(&socket), Ok(()));
    let read = SocketOptions { busy_poll_budget: None, ..prefers };
    assert_eq!(SocketOptions::get(&socket), Ok(read));
    let wrong = SocketOptions { busy_poll_usecs: u32::MAX, ..off };
    assert_eq!(wrong.set(&socket), Err(Errno::INVAL));
}

#[test]
fn short_lived_processes_are_seen_or_gone_and_nothing_else() {
    // Each process opens, execs and ends by itself; any query meanwhile succeeds or returns `Gone`.
    let mut seen = 0;
    for round in 0..300 {
        let mut child = Command::new("sh")
            .args(["-c", "exec 3</dev/null; exec true"])
            .stdin(Stdio::null())
            .spawn()
            .unwrap();
        let pid = i32::try_from(child.id()).unwrap();
        if round % 2 == 0 {
            // Inspect some at once, others later.
            std::thread::sleep(Duration::from_micros(round * 10));
        }
        let process = match Process::open(pid) {
            Ok(process) => process,
            Err(error) => {
                assert!(error.is_gone(), "{error}");
                child.wait().unwrap();
                continue;
            }
        };
        loop {
            let looked = process
                .descriptors(ALL)
                .and_then(|found| found.list.iter().try_for_each(|it| process.take(it).map(drop)))
                .and_then(|()| process.descendants(ALL).map(drop))
                .and_then(|()| process.waits(1, Duration::ZERO).map(drop))
                .and_then(|()| process.comm().map(drop));
            match looked {
                Ok(()) => seen += 1,
                Err(error) => {
                    assert!(error.is_gone(), "{error}");
                    break;
                }
            }
        }
        child.wait().unwrap();
        assert!(Process::open(pid).is_err() || Process::reopen(pid, process.start_time()).is_err());
    }
    assert!(seen > 0, "not one was seen alive");
}

napkin_testing::main!();
