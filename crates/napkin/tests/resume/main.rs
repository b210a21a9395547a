//! The real binary, interrupted or killed, and resumed.

#[path = "../common/mod.rs"]
mod common;
mod modelled;

use std::fs;
use std::io::{BufRead, BufReader};
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::path::PathBuf;
use std::process::{Child, ChildStderr, Command, ExitStatus, Output, Stdio};
use std::time::Duration;

use common::{TempDir, text, within};
use napkin_kernel::namespace::{Namespace, NamespaceError};
use napkin_testing::{ignore, needs_program, test};
use rustix::process::{Pid, Signal, kill_process, kill_process_group};

/// A run in a directory of its own, with the default action for SIGINT, however this test was started; or with SIGINT
/// ignored.
fn command(place: &TempDir, args: &[&str], ignores: bool) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_napkin"));
    command.args(args).current_dir(&place.0).stdin(Stdio::null());
    command.stdout(Stdio::piped()).stderr(Stdio::piped());
    let action = if ignores { libc::SIG_IGN } else { libc::SIG_DFL };
    let set = move || {
        for signal in [libc::SIGINT, libc::SIGTERM] {
            let action = if signal == libc::SIGINT { action } else { libc::SIG_DFL };
            // SAFETY: neither SIG_DFL nor SIG_IGN is a function.
            unsafe { libc::signal(signal, action) };
        }
        Ok(())
    };
    // SAFETY: between fork and exec it makes two system calls, which are safe there.
    unsafe { command.pre_exec(set) };
    command
}

fn run(place: &TempDir, args: &[&str]) -> Output {
    command(place, args, false).output().expect("the binary runs")
}

fn send(child: &Child, signal: Signal) {
    let pid = Pid::from_raw(child.id() as i32).expect("a process");
    kill_process(pid, signal).expect("it is ours");
}

/// The files that a run has left to resume from.
fn left(place: &TempDir) -> Vec<PathBuf> {
    let files = fs::read_dir(&place.0).expect("a directory").map(|it| it.expect("a file").path());
    files.filter(|it| it.extension().is_some_and(|it| it == "partial")).collect()
}

/// Starts a run and waits until its file has `after` lines after the first.
fn measuring(place: &TempDir, args: &[&str], after: usize) -> Child {
    let child = command(place, args, false).spawn().expect("the binary runs");
    within("some measurements are done", || {
        let file = left(place).pop().unwrap_or(place.0.join("a.csv"));
        let lines = fs::read_to_string(file).unwrap_or_default().lines().count();
        (lines > after).then_some(())
    });
    child
}

/// As [`measuring`], then interrupted by `signal`.
fn interrupted(place: &TempDir, args: &[&str], signal: Signal, after: usize) -> Output {
    let child = measuring(place, args, after);
    send(&child, signal);
    child.wait_with_output().expect("our child")
}

/// The arguments to resume with, which an interrupted run prints.
fn resume_args(output: &Output) -> Vec<String> {
    let stderr = text(&output.stderr);
    let (_, command) =
        stderr.split_once("go on with: napkin ").unwrap_or_else(|| panic!("{stderr}"));
    let line = command.lines().next().unwrap_or_default();
    line.split(' ').map(str::to_owned).collect()
}

fn json(place: &TempDir) -> serde_json::Value {
    serde_json::from_slice(&fs::read(place.0.join("a.json")).expect("a report")).expect("JSON")
}

/// The number of repetitions of each row of a report.
fn repetitions(place: &TempDir) -> Vec<usize> {
    let report = json(place);
    let rows = report["rows"].as_array().expect("rows").iter();
    rows.map(|row| row["repetitions"].as_array().expect("a list").len()).collect()
}

#[test]
fn a_bench_on_this_machine_goes_on_where_ctrl_c_ended_it() {
    let place = TempDir::new("resume-engine");
    let args = ["bench", "flood-ping", "--policy", "base,threaded", "--window", "50ms"];
    let args = [&args[..], &["--repetitions", "3", "--json", "a.json"]].concat();
    let output = interrupted(&place, &args, Signal::INT, 2);
    let stderr = text(&output.stderr);
    assert_eq!(output.status.code(), Some(130), "{stderr}");
    assert!(stderr.contains("12 measurements, about 3.6 s"), "{stderr}");
    let (_, far) = stderr.split_once("\ninterrupted: ").expect("it says so");
    let done: usize = far.split(' ').next().unwrap().parse().expect("a number");
    assert!((2..12).contains(&done) && far.contains(" of 12 measurements done; go on"), "{stderr}");
    let table = text(&output.stdout);
    assert!(table.contains("base") && table.contains("the run ended early"), "{table}");
    assert_eq!(repetitions(&place).iter().sum::<usize>(), done, "what there was");
    let [file] = &left(&place)[..] else { panic!("one file") };

    // As if killed in the middle of a line.
    let half = [&fs::read(file).expect("a file")[..], b"{\"part\":\"flood"].concat();
    fs::write(file, half).expect("a file");
    let other: Vec<&str> = args.iter().map(|it| if *it == "50ms" { "60ms" } else { it }).collect();
    let name = file.file_name().and_then(|it| it.to_str()).expect("a plain name");
    let refused = run(&place, &[&other[..], &["--resume", name]].concat());
    let why = text(&refused.stderr);
    assert_eq!(refused.status.code(), Some(2), "{why}");
    assert!(why.contains("flood-ping.window_ns is 50000000 there and 60000000 now"), "{why}");

    let resume = resume_args(&output);
    let resume: Vec<&str> = resume.iter().map(String::as_str).collect();
    assert_eq!(resume[..args.len()], args);
    let resumed = run(&place, &resume);
    let stderr = text(&resumed.stderr);
    assert!(resumed.status.success(), "{stderr}");
    assert!(stderr.contains(&format!("12 measurements, {} left, about ", 12 - done)), "{stderr}");
    assert_eq!(repetitions(&place), [3; 4]);
    assert!(!text(&resumed.stdout).contains("ended early"));
    assert_eq!(left(&place), [] as [PathBuf; 0], "nothing is left");
}

#[test]
fn a_ctrl_c_that_ends_the_reader_as_well_says_how_to_go_on() {
    let live = "bench flood-ping --policy base,threaded --window 50ms";
    let modelled = "bench udp-sink --world machine --load 5000,13000 --seeds 10 --jobs 1";
    for args in [live, modelled, "swarm --seeds 5..104 --jobs 1"] {
        let place = TempDir::new("resume-closed");
        let mut child = measuring(&place, &args.split(' ').collect::<Vec<_>>(), 1);
        drop(child.stdout.take());
        send(&child, Signal::INT);
        let output = child.wait_with_output().expect("our child");
        let stderr = text(&output.stderr);
        assert_eq!(output.status.code(), Some(130), "{args}: {stderr}");
        assert!(stderr.contains("\ninterrupted: "), "{args}: {stderr}");
        assert!(stderr.contains("; go on with: napkin "), "{args}: {stderr}");
    }
}

#[test]
fn a_bench_in_several_worlds_goes_on_in_the_one_where_it_was_ended() {
    let place = TempDir::new("resume-worlds");
    let args = "bench tcp-rr --window 50ms --warm-up 10ms --flows 50 --repetitions 4 --json a.json";
    let of = |worlds| args.split(' ').chain(["--world", worlds]).collect::<Vec<_>>();
    // Interrupted in the first world: the second follows.
    let first = of("engine,machine");
    let output = interrupted(&place, &first, Signal::INT, 1);
    assert_eq!(output.status.code(), Some(130), "{}", text(&output.stderr));
    let resume = resume_args(&output);
    assert_eq!(resume[..first.len()], first);
    let resumed = run(&place, &resume.iter().map(String::as_str).collect::<Vec<_>>());
    let (printed, stderr) = (text(&resumed.stdout), text(&resumed.stderr));
    assert!(resumed.status.success() && stderr.contains(" left, about "), "{stderr}");
    assert!(printed.contains("\nengine, machine, side by side\n"), "{printed}");

    // Interrupted in the second world: the first is done.
    let second = of("machine,engine");
    let child = command(&place, &second, false).spawn().expect("the binary runs");
    within("the second has begun", || {
        let kept = fs::read_to_string(left(&place).pop()?).ok()?;
        kept.contains("\"world\":\"engine\"").then_some(())
    });
    send(&child, Signal::INT);
    let output = child.wait_with_output().expect("our child");
    assert_eq!(output.status.code(), Some(130), "{}", text(&output.stderr));
    let resume = resume_args(&output);
    let resumed = run(&place, &resume.iter().map(String::as_str).collect::<Vec<_>>());
    let (printed, stderr) = (text(&resumed.stdout), text(&resumed.stderr));
    assert!(resumed.status.success(), "{stderr}");
    assert!(stderr.contains("continues in engine: the worlds before it are done\n"), "{stderr}");
    assert!(
        printed.contains("tcp-rr in engine\n") && !printed.contains("tcp-rr, modelled on"),
        "{printed}"
    );
    assert_eq!(left(&place), [] as [PathBuf; 0]);
}

#[test]
fn what_was_measured_is_still_there_if_it_could_not_be_written_in_the_end() {
    let modelled = "bench udp-sink --world machine --load 1000 --window 50ms --repetitions 2";
    let live = "bench flood-ping --policy base --window 50ms --repetitions 1";
    let published = "reproduce 2007 --quick";
    for command in [modelled, live, published] {
        for option in ["--json", "--report"] {
            let place = TempDir::new("resume-full");
            let args = format!("{command} {option} /dev/full");
            let full = run(&place, &args.split(' ').collect::<Vec<_>>());
            let stderr = text(&full.stderr);
            assert_eq!(full.status.code(), Some(1), "{args}: {stderr}");
            assert!(stderr.contains("/dev/full: No space left"), "{args}: {stderr}");
            assert_eq!(left(&place).len(), 1, "{args}: {stderr}");

            // As if the disk had room again.
            let resume = resume_args(&full);
            let given = |it: &str| if it == "/dev/full" { "a".to_owned() } else { it.to_owned() };
            let resume: Vec<String> = resume.iter().map(|it| given(it)).collect();
            let resumed = run(&place, &resume.iter().map(String::as_str).collect::<Vec<_>>());
            assert!(resumed.status.success(), "{args}: {}", text(&resumed.stderr));
            assert!(place.0.join("a").exists(), "{args}");
            assert_eq!(left(&place), [] as [PathBuf; 0], "{args}");
        }
    }
}

/// Starts a bench with a long first measurement, and waits until it has begun.
fn long(place: &TempDir, ignores: bool) -> (Child, BufReader<ChildStderr>) {
    let args = ["bench", "flood-ping", "--policy", "base,threaded", "--window", "600s"];
    begun(&mut command(place, &args, ignores))
}

fn begun(command: &mut Command) -> (Child, BufReader<ChildStderr>) {
    let mut child = command.spawn().expect("the binary runs");
    let mut stderr = BufReader::new(child.stderr.take().expect("a pipe"));
    let mut line = String::new();
    while !line.starts_with("[1/") {
        line.clear();
        assert!(stderr.read_line(&mut line).expect("a line") > 0, "it ended");
    }
    (child, stderr)
}

#[test]
fn a_measurement_is_given_up_in_the_middle_and_nothing_is_left_of_it() {
    let place = TempDir::new("resume-middle");
    let (mut child, stderr) = long(&place, false);
    send(&child, Signal::INT);
    let status = within("it ends", || child.try_wait().expect("our child"));
    assert_eq!(status.code(), Some(130));
    let last = stderr.lines().map_while(Result::ok).last();
    assert_eq!(last.as_deref(), Some("interrupted: 0 of 24 measurements done"));
    assert_eq!(left(&place), [] as [PathBuf; 0]);
}

#[test]
fn a_ctrl_c_that_was_ignored_from_the_beginning_stays_so() {
    let place = TempDir::new("resume-ignored");
    let (mut child, _said) = long(&place, true);
    send(&child, Signal::INT);
    send(&child, Signal::TERM);
    let status = within("it ends", || child.try_wait().expect("our child"));
    assert_eq!(status.code(), Some(143), "by the second");
}

/// The programs with this text in their environment.
fn programs(mark: &str) -> Vec<String> {
    let processes = fs::read_dir("/proc").expect("proc").filter_map(Result::ok);
    let marked = processes.filter(|process| {
        let environment = fs::read(process.path().join("environ")).unwrap_or_default();
        text(&environment).contains(mark)
    });
    marked.map(|it| fs::read_to_string(it.path().join("comm")).unwrap_or_default()).collect()
}

/// Interrupts a bench of the linux world while its client runs. Returns its exit status and the last line of its
/// output.
/// None of its programs may be left.
fn in_the_kernel(name: &str, interrupt: fn(Pid)) -> (ExitStatus, Option<String>) {
    needs_program("ping");
    if let Err(NamespaceError::NoRight { right, .. }) = Namespace::new() {
        ignore(format_args!("needs {right}, for a network namespace"));
    }
    let place = TempDir::new(name);
    let mark = place.0.to_str().expect("a plain path");
    let args = ["bench", "flood-ping", "--world", "linux", "--policy", "base", "--window", "600s"];
    let mut command = command(&place, &args, false);
    let (mut child, stderr) = begun(command.env("NAPKIN_TEST_MARK", mark).process_group(0));
    within("the client runs", || programs(mark).contains(&"ping\n".to_owned()).then_some(()));
    interrupt(Pid::from_raw(child.id() as i32).expect("a process"));
    let status = within("it ends", || child.try_wait().expect("our child"));
    within("nothing is left of it", || programs(mark).is_empty().then_some(()));
    (status, stderr.lines().map_while(Result::ok).last())
}

#[test]
fn a_terminal_s_ctrl_c_that_ends_the_client_as_well_is_no_failure() {
    let ctrl_c = |pid| kill_process_group(pid, Signal::INT).expect("it is ours");
    let (status, last) = in_the_kernel("resume-group", ctrl_c);
    assert_eq!(status.code(), Some(130), "{last:?}");
    assert_eq!(last.as_deref(), Some("interrupted: 0 of 6 measurements done"));
}

#[test]
fn a_second_signal_leaves_no_program_behind() {
    let (status, _) = in_the_kernel("resume-second", |pid| {
        let send = |signal| kill_process(pid, signal).expect("it is ours");
        send(Signal::INT);
        // It has received the first signal, and is stopped while it restores.
        std::thread::sleep(Duration::from_millis(1));
        send(Signal::STOP);
        std::thread::sleep(Duration::from_millis(1_100));
        send(Signal::TERM);
        send(Signal::CONT);
    });
    // It may have restored everything before it was stopped.
    let second = status.signal() == Some(libc::SIGTERM);
    assert!(second || status.code() == Some(130), "{status}");
}

napkin_testing::main!();
