//! Exit codes, and the signals that reach the program.

use napkin_testing::test;

use super::*;

#[test]
fn the_exit_code_is_the_program_s() {
    let scratch = Scratch::new("codes");
    for code in [0, 3, 77, 255] {
        let output = run(&scratch, &["sh", "-c", &format!("exit {code}")]);
        assert_eq!(output.status.code(), Some(code));
    }
    let missing = run(&scratch, &["/nonexistent/program"]);
    assert_eq!(missing.status.code(), Some(127));
    let stderr = String::from_utf8_lossy(&missing.stderr).into_owned();
    assert!(stderr.contains("there is no program /nonexistent/program"), "{stderr}");
    assert_eq!(run(&scratch, &["/dev/null"]).status.code(), Some(126));
    assert_eq!(scratch.journals(), 0);
}

#[test]
fn the_program_s_output_is_its_own() {
    let scratch = Scratch::new("output");
    let output = run(&scratch, &["sh", "-c", "echo out; echo err >&2"]);
    assert_eq!(String::from_utf8_lossy(&output.stdout), "out\n");
    assert!(String::from_utf8_lossy(&output.stderr).contains("err\n"));
}

#[test]
fn a_program_that_a_signal_ended_ends_napkin_by_the_same() {
    let scratch = Scratch::new("signals");
    for signal in [libc::SIGKILL, libc::SIGTERM, libc::SIGSEGV] {
        let output = run(&scratch, &["sh", "-c", &format!("kill -{signal} $$")]);
        assert_eq!(output.status.signal(), Some(signal));
    }
}

#[test]
fn signals_are_passed_on_once_each_and_the_program_decides() {
    let scratch = Scratch::new("passed");
    let log = scratch.path("log");
    let script = format!(
        "for s in TERM INT HUP USR1 USR2 QUIT; do trap \"echo $s >> {0}\" $s; done\n\
         trap 'exit 9' WINCH; echo ready >> {0}; while :; do sleep 0.01; done",
        log.display()
    );
    let napkin = Running::start(scratch.napkin(&[
        "run",
        "--quiet",
        "--policy",
        "suspend20",
        "--",
        "sh",
        "-c",
        &script,
    ]));
    let lines = || std::fs::read_to_string(&log).unwrap_or_default();
    within("ready", || lines().contains("ready").then_some(()));
    let mut expected = "ready\n".to_owned();
    for (name, signal) in [
        ("TERM", libc::SIGTERM),
        ("INT", libc::SIGINT),
        ("HUP", libc::SIGHUP),
        ("USR1", libc::SIGUSR1),
        ("USR2", libc::SIGUSR2),
        ("QUIT", libc::SIGQUIT),
        ("TERM", libc::SIGTERM),
    ] {
        napkin.signal(signal);
        expected.push_str(&format!("{name}\n"));
        within(name, || (lines().len() >= expected.len()).then_some(()));
        assert_eq!(lines(), expected);
    }
    napkin.signal(libc::SIGWINCH);
    let (status, stderr) = napkin.end();
    assert_eq!((status.code(), stderr.as_str()), (Some(9), ""));
}

/// A program under napkin that logs each signal, and its directory.
struct Listener {
    napkin: Running,
    log: PathBuf,
    scratch: Scratch,
}

impl Listener {
    /// Starts napkin with the program in a process group of its own. `before` is a command line in front of `napkin`;
    /// `own_group`: whether the program creates a group as well.
    fn start(name: &str, before: &[&str], own_group: bool) -> Listener {
        needs_program("python3");
        let scratch = Scratch::new(name);
        let log = scratch.path("log");
        let program = format!(
            "import os, signal\n\
             if {}: os.setpgid(0, 0)\n\
             log = os.open('{}', os.O_WRONLY | os.O_APPEND | os.O_CREAT)\n\
             def wrote(number, frame): os.write(log, (signal.Signals(number).name + ' ').encode())\n\
             for number in (signal.SIGTERM, signal.SIGHUP, signal.SIGWINCH): signal.signal(number, wrote)\n\
             signal.signal(signal.SIGUSR2, lambda *_: os._exit(5))\n\
             os.write(log, b'ready ')\n\
             while True: signal.pause()",
            if own_group { "True" } else { "False" },
            log.display()
        );
        let napkin = scratch.napkin(&["run", "-q", "--policy", "suspend20", "--", "python3", "-c"]);
        let words: Vec<_> = before.iter().map(std::ffi::OsStr::new).collect();
        let words = words.into_iter().chain([napkin.get_program()]).chain(napkin.get_args());
        let words: Vec<_> = words.collect();
        let mut command = Command::new(words[0]);
        command.args(&words[1..]).arg(program).process_group(0);
        command.env("NAPKIN_STATE", scratch.path("state"));
        let listener = Listener { napkin: Running::start(command), log, scratch };
        within("ready", || listener.got().starts_with("ready ").then_some(()));
        listener
    }

    fn got(&self) -> String {
        std::fs::read_to_string(&self.log).unwrap_or_default()
    }

    /// The log, once it has a last signal that is sent to napkin alone. Its number is higher than the others', as
    /// the lowest
    /// of several pending signals is delivered first.
    fn all(&self) -> String {
        let count = |got: &str| got.matches("SIGWINCH ").count();
        let before = count(&self.got());
        self.napkin.signal(libc::SIGWINCH);
        within("SIGWINCH", || (count(&self.got()) > before).then(|| self.got()))
    }

    /// Signals napkin's whole group.
    fn signal_group(&self, signal: i32) {
        // SAFETY: the call takes two numbers; the group's first process was not waited for.
        assert_eq!(unsafe { libc::kill(-self.napkin.pid(), signal) }, 0);
    }

    /// Signals napkin and every process below it, one after the other, as systemd does.
    fn signal_each(&self, signal: i32) {
        let process = Process::open(self.napkin.pid()).expect("it lives");
        let below = process.descendants(1_000).expect("it lives");
        assert!(below.len() > 1, "the program, and what napkin needs");
        for pid in [self.napkin.pid()].into_iter().chain(below) {
            // SAFETY: the call takes two numbers; only this test ends these processes.
            assert_eq!(unsafe { libc::kill(pid, signal) }, 0);
        }
    }

    /// Ends the program, and napkin with it.
    fn end(self) {
        self.napkin.signal(libc::SIGUSR2);
        let (status, stderr) = self.napkin.end();
        assert_eq!((status.code(), stderr.as_str()), (Some(5), ""));
        assert_eq!(self.scratch.journals(), 0);
    }
}

#[test]
fn a_signal_to_the_group_or_to_every_process_reaches_the_program_once() {
    for own_group in [false, true] {
        let listener = Listener::start("once", &[], own_group);
        listener.napkin.signal(libc::SIGTERM);
        assert_eq!(listener.all(), "ready SIGTERM SIGWINCH ", "to napkin alone");
        listener.signal_group(libc::SIGTERM);
        let group = "ready SIGTERM SIGWINCH SIGTERM SIGWINCH ";
        assert_eq!(listener.all(), group, "to the group, {own_group}");
        listener.signal_each(libc::SIGHUP);
        let all = format!("{group}SIGHUP SIGWINCH ");
        assert_eq!(listener.all(), all, "to each process, {own_group}");
        listener.end();
    }
}

#[test]
fn two_signals_to_napkin_alone_reach_the_program_both() {
    let listener = Listener::start("twice", &[], false);
    listener.napkin.signal(libc::SIGTERM);
    // Wait in between: two equal pending signals are merged.
    within("SIGTERM", || listener.got().contains("SIGTERM").then_some(()));
    listener.napkin.signal(libc::SIGTERM);
    assert_eq!(listener.all(), "ready SIGTERM SIGTERM SIGWINCH ");
    listener.end();
}

#[test]
fn timeout_signals_the_program_once() {
    needs_program("timeout");
    // timeout leads the group: it signals napkin, and then the group.
    let listener = Listener::start("timeout", &["timeout", "-s", "TERM", "1h"], false);
    // As if the hour were over.
    listener.napkin.signal(libc::SIGALRM);
    within("SIGTERM", || listener.got().contains("SIGTERM").then_some(()));
    let process = Process::open(listener.napkin.pid()).expect("it lives");
    let napkin = process.children().expect("it lives")[0];
    // SAFETY: the call takes two numbers; its parent has not waited for it.
    assert_eq!(unsafe { libc::kill(napkin, libc::SIGWINCH) }, 0);
    within("SIGWINCH", || listener.got().ends_with("SIGWINCH ").then_some(()));
    assert_eq!(listener.got(), "ready SIGTERM SIGWINCH ");
}

#[test]
fn a_stop_from_the_terminal_and_its_end_reach_the_program_once() {
    let listener = Listener::start("stopped", &[], false);
    let state = || {
        let stat = std::fs::read_to_string(format!("/proc/{}/stat", listener.napkin.pid()));
        stat.expect("it lives").rsplit(')').next().expect("its state").trim_start().to_owned()
    };
    for _ in 0..3 {
        listener.signal_group(libc::SIGTSTP);
        within("stopped", || state().starts_with('T').then_some(()));
        listener.signal_group(libc::SIGCONT);
        within("woken", || (!state().starts_with('T')).then_some(()));
        // If a stop were passed on late, the program would not respond.
        assert!(listener.all().ends_with("SIGWINCH "));
        assert!(!state().starts_with('T'));
        std::fs::write(&listener.log, "").expect("it is there");
    }
    listener.end();
}

#[test]
fn nothing_is_left_of_a_napkin_that_was_killed_but_the_program() {
    let listener = Listener::start("witness", &[], false);
    let process = Process::open(listener.napkin.pid()).expect("it lives");
    let below = process.descendants(1_000).expect("it lives");
    let name = |pid: i32| std::fs::read_to_string(format!("/proc/{pid}/cmdline"));
    let named = |what: &str| {
        let named = |pid: &&i32| name(**pid).is_ok_and(|name| name.contains(what));
        below.iter().filter(named).copied().collect::<Vec<i32>>()
    };
    // pkill by napkin's name or arguments must not match the witnesses.
    let program = named("import os");
    assert_eq!((program.len(), named("napkin run").len()), (1, 0));
    let others: Vec<i32> = below.into_iter().filter(|pid| !program.contains(pid)).collect();
    assert!(!others.is_empty());
    listener.napkin.signal(libc::SIGKILL);
    within("gone", || others.iter().all(|pid| name(*pid).is_err()).then_some(()));
    assert!(name(program[0]).is_ok());
    // SAFETY: the call takes two numbers; the process was alive just now, and only this test ends it.
    assert_eq!(unsafe { libc::kill(program[0], libc::SIGUSR2) }, 0);
}
