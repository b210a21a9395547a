//! More processes or contexts than the limit of open files.

use napkin_testing::test;

use super::*;

/// A Python program with `count` children, each with an epoll context, which end with it.
fn python_with_children(count: usize) -> (Child, BufReader<std::process::ChildStdout>) {
    needs_program("python3");
    let program = format!(
        "import os, select, sys\n\
         r, w = os.pipe()\n\
         for _ in range({count}):\n\
         \x20   if os.fork() == 0:\n\
         \x20       os.close(w); e = select.epoll(); os.write(1, b'.')\n\
         \x20       os.read(r, 1); os._exit(0)\n\
         sys.stdin.read()"
    );
    let mut child = Command::new("python3")
        .args(["-c", &program])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .expect("python3");
    let mut output = BufReader::new(child.stdout.take().expect("piped"));
    output.read_exact(&mut vec![0; count]).expect("each tells that it is there");
    (child, output)
}

/// The number of contexts of a process's descendants that are set.
fn set_below(pid: u32) -> usize {
    let epolls = epolls_below(i32::try_from(pid).expect("an id"));
    epolls.iter().filter(|(.., params)| *params == SUSPEND20).count()
}

/// Gives a command a soft and a hard limit of open files.
fn limit_files(command: &mut Command, soft: u64, hard: u64) {
    let limit = libc::rlimit { rlim_cur: soft, rlim_max: hard };
    let set = move || {
        // SAFETY: the pointer is to a live value.
        match unsafe { libc::setrlimit(libc::RLIMIT_NOFILE, &raw const limit) } {
            0 => Ok(()),
            _ => Err(std::io::Error::last_os_error()),
        }
    };
    // SAFETY: between fork and exec it makes one system call.
    unsafe { command.pre_exec(set) };
}

#[test]
fn more_processes_than_the_soft_limit_of_open_files_has_room_for_are_all_set() {
    let (mut child, _output) = python_with_children(60);
    let scratch = Scratch::new("soft");
    let pid = child.id().to_string();
    let mut attach = scratch.napkin(&["attach", &pid, "--policy", "suspend20", "--once", "-v"]);
    limit_files(&mut attach, 48, 1_024);
    let output = attach.output().expect("napkin");
    let stderr = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(output.status.success(), "{stderr}");
    assert_eq!(set_below(child.id()), 60, "{stderr}");
    // Each process needs two descriptors: its own, and its journal's lock; the journal itself is closed.
    let mut fits = scratch.napkin(&["attach", &pid, "--policy", "suspend20", "--once", "-v"]);
    assert!(scratch.napkin(&["restore"]).status().expect("napkin").success());
    limit_files(&mut fits, 160, 160);
    let output = fits.output().expect("napkin");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    assert_eq!(set_below(child.id()), 60);
    child.kill().and_then(|()| child.wait()).expect("a child");
}

#[test]
fn each_process_that_there_is_no_descriptor_for_is_said_and_the_exit_status_tells() {
    let (mut child, _output) = python_with_children(60);
    let scratch = Scratch::new("hard");
    let pid = child.id().to_string();
    let attach = ["attach", &pid, "--policy", "suspend20"];
    let mut once = scratch.napkin(&[&attach[..], &["--once"]].concat());
    limit_files(&mut once, 64, 64);
    let output = once.output().expect("napkin");
    let stderr = String::from_utf8_lossy(&output.stderr).into_owned();
    assert_eq!(output.status.code(), Some(1), "{stderr}");
    let set = set_below(child.id());
    assert!((1..60).contains(&set), "{set}: {stderr}");
    let failed: Vec<&str> =
        stderr.lines().filter(|line| line.contains("may open 64 files")).collect();
    assert_eq!(failed.len(), 60 - set, "{stderr}");
    assert!(failed[0].contains("raise the limit"), "{}", failed[0]);
    assert!(
        stderr.contains(&format!("not everything was set in {} processes", 60 - set)),
        "{stderr}"
    );
    assert!(scratch.napkin(&["restore"]).status().expect("napkin").success());
    assert_eq!(set_below(child.id()), 0);

    // The contexts that could be set stay set until the end, and descriptors are left to restore them.
    let mut kept = scratch.napkin(&[&attach[..], &["-v"]].concat());
    limit_files(&mut kept, 64, 64);
    let mut napkin = Running::start(kept);
    // After the message on the last process, it has examined all.
    let mut lines = BufReader::new(napkin.0.stderr.take().expect("piped"));
    let (mut reported, mut stderr) = (0, String::new());
    while reported < 60 {
        let mut line = String::new();
        assert!(lines.read_line(&mut line).expect("text") > 0, "{stderr}");
        reported += usize::from(line.contains("; set") || line.contains("may open 64 files"));
        stderr += &line;
    }
    let set = set_below(child.id());
    assert!((1..60).contains(&set), "{set}: {stderr}");
    napkin.signal(libc::SIGINT);
    lines.read_to_string(&mut stderr).expect("text");
    let status = napkin.0.wait().expect("it ends");
    assert_eq!(status.code(), Some(1), "{stderr}");
    assert!(stderr.contains(&format!("put back: {set}")) && !stderr.contains("ended"), "{stderr}");
    assert_eq!((set_below(child.id()), scratch.journals()), (0, 0), "{stderr}");
    child.kill().and_then(|()| child.wait()).expect("a child");
}

#[test]
fn a_look_that_finds_no_descriptor_left_is_no_end_of_the_process() {
    let (mut child, mut output) = python();
    let scratch = Scratch::new("look");
    let pid = child.id().to_string();
    let mut napkin =
        Running::start(scratch.napkin(&["attach", &pid, "--policy", "suspend20", "-v"]));
    within("set", || (params(&mut child, &mut output) == SET).then_some(()));
    let id = napkin.pid();
    let limit = |files| {
        let limit = libc::rlimit { rlim_cur: files, rlim_max: 1_024 };
        // SAFETY: the pointer is to a live value; the last may be null.
        let set = unsafe {
            libc::prlimit(id, libc::RLIMIT_NOFILE, &raw const limit, std::ptr::null_mut())
        };
        assert_eq!(set, 0);
    };
    limit(3);
    let mut stderr = String::new();
    let mut lines = BufReader::new(napkin.0.stderr.take().expect("piped"));
    while !stderr.contains("may open 3 files") {
        assert!(lines.read_line(&mut stderr).expect("text") > 0, "{stderr}");
    }
    limit(1_024);
    params(&mut child, &mut output);
    napkin.signal(libc::SIGINT);
    lines.read_to_string(&mut stderr).expect("text");
    assert!(!stderr.contains("ended"), "{stderr}");
    assert!(stderr.contains("put back: 1"), "{stderr}");
    assert_eq!(params(&mut child, &mut output), OFF);
    napkin.0.wait().expect("it ends");
    child.kill().and_then(|()| child.wait()).expect("a child");
}

#[test]
fn a_program_starts_with_the_limit_of_open_files_that_napkin_had() {
    let scratch = Scratch::new("files");
    let mut command =
        scratch.napkin(&["run", "--policy", "suspend20", "--", "sh", "-c", "ulimit -Sn"]);
    limit_files(&mut command, 77, 1_024);
    let output = command.output().expect("napkin");
    assert_eq!(String::from_utf8_lossy(&output.stdout), "77\n");
}
